/* Folders whose files do not say the same: what is missing, too much or broken in them is an error
 * that names it, in all commands that do not train. */
#include "golden.h"

#include "../examples/frame/commands/frame.h"
#include "../examples/frame/model/session.h"
#include "../examples/llm/model.h"
#include "../zeroflow_llm.h"

#define MODELS "tests/golden/llm/"

/* How the weights of a folder are changed. NULL: not. */
typedef struct change {
    const char *drop, *add, *spoil; /* a tensor that is left out, added, or has a NaN */
} change;

static bool put_tensor(zf_safetensors *from, int32_t i, zf_safetensors_writer *w, int32_t *at,
                       const change *c)
{
    const zf_safetensors_entry *e = zf_safetensors_at(from, i);
    float *values = malloc(e->bytes + 1);
    bool good = values && !zf_safetensors_read(from, i, values, e->bytes, NULL);
    if (good && c->spoil && !strcmp(e->name, c->spoil)) values[e->bytes / sizeof *values / 2] = NAN;
    good = good && !zf_safetensors_write(w, (*at)++, values, e->bytes);
    free(values);
    return good;
}

/* A copy of a golden model in f32 with changed weights. False out of memory. */
static bool vary_weights(const char *to, const char *from, const change *c)
{
    char path[400];
    zf_error error = {ZF_OK, ""};
    zf_safetensors *file;
    zf_safetensors_writer *w;
    const float one = 1;
    int32_t at = 0;
    bool good;
    snprintf(path, sizeof path, "%s/model.safetensors", from);
    if (!(file = zf_safetensors_open(path, NULL, &error))) return false;
    snprintf(path, sizeof path, "%s/model.safetensors", to);
    w = zf_safetensors_writer_new(path, NULL, &error);
    for (int32_t i = 0; i < zf_safetensors_count(file); i++) {
        const zf_safetensors_entry *e = zf_safetensors_at(file, i);
        if (!c->drop || strcmp(e->name, c->drop))
            zf_safetensors_declare(w, e->name, e->dtype, e->shape);
    }
    if (c->add) zf_safetensors_declare(w, c->add, ZF_F32, ZF_SHAPE(1));
    good = w != NULL;
    for (int32_t i = 0; good && i < zf_safetensors_count(file); i++)
        if (!c->drop || strcmp(zf_safetensors_at(file, i)->name, c->drop))
            good = put_tensor(file, i, w, &at, c);
    if (good && c->add) good = !zf_safetensors_write(w, at, &one, sizeof one);
    good = good && !zf_safetensors_finish(w, &error);
    zf_safetensors_writer_free(w);
    zf_safetensors_close(file);
    return good;
}

/* A file of the folder. */
static bool put_text(const char *folder, const char *name, const char *text)
{
    char path[400];
    FILE *file;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    file = fopen(path, "w");
    return file && fputs(text, file) >= 0 && !fclose(file);
}

static bool copy_text(const char *to, const char *from, const char *name)
{
    char path[400];
    zf_text text = {.at = NULL};
    zf_error error = {ZF_OK, ""};
    bool good;
    snprintf(path, sizeof path, "%s/%s", from, name);
    good = zf_text_read(path, &text, &error) && put_text(to, name, text.at);
    zf_text_free(&text);
    return good;
}

/* A golden model with changed weights; the folder's path. NULL when it cannot be made. */
static const char *varied(const char *name, const change *c)
{
    const char *to = test_path("varied");
    char from[200];
    zf_error error = {ZF_OK, ""};
    snprintf(from, sizeof from, MODELS "%s", name);
    return zf_folder_make(to, &error) && copy_text(to, from, "config.json") &&
                   vary_weights(to, from, c)
               ? to
               : NULL;
}

/* Opens the folder's model in a dtype, as commands do; the message after its path, "" for none. */
static const char *opened(const char *folder, zf_dtype dtype)
{
    static zf_error error;
    zf_config_any config = {{0}};
    session_desc d = {.sample = &llm_sample,
                      .config = &config,
                      .purpose = SAMPLE_EVALUATE,
                      .shape = {1, 8, 1, false, 0},
                      .threads = 1};
    session s;
    error = (zf_error){ZF_OK, ""};
    if (session_config(&llm_sample, folder, &config, &error) &&
        session_open_folder(&s, folder, &d, 1 + dtype, &error))
        session_close(&s);
    return strncmp(error.text, folder, strlen(folder)) ? error.text
                                                       : error.text + strlen(folder);
}

/* ----------------------------------------------------------------------------------- weights */

TEST_ONCE(folders_weights_that_are_missing_or_too_many)
{
    static const change headless = {.drop = "lm_head.weight"}, rewards = {.add = "score.weight"},
                        both = {.drop = "lm_head.weight", .add = "score.weight"},
                        none = {.drop = NULL}, cut = {.drop = "model.norm.weight"};
    const char *folder;
    for (int k = 0; k < 2; k++) {
        const zf_dtype dtype = k ? ZF_BF16 : ZF_F32;
        CHECK(t, (folder = varied("llama2", &none)));
        CHECK_TEXT(t, opened(folder, dtype), "");
        CHECK(t, (folder = varied("llama2", &headless)));
        CHECK_TEXT(t, opened(folder, dtype),
                   " lacks tensors of the model (1), which only training could set: lm_head.weight");
        CHECK(t, (folder = varied("llama2", &both)));
        CHECK_TEXT(t, opened(folder, dtype),
                   " lacks tensors of the model (1), which only training could set: lm_head.weight");
        CHECK(t, (folder = varied("llama2", &rewards)));
        CHECK_TEXT(t, opened(folder, dtype),
                   " has tensors that the model does not use (1), so it is another model: "
                   "score.weight");
        CHECK(t, (folder = varied("llama2", &cut)));
        CHECK_TEXT(t, opened(folder, dtype), ": there is no tensor model.norm.weight");
    }
}
