/* Folders whose files do not say the same: what is missing, too much or broken in them is an error
 * that names it, in all commands that do not train. */
#define _POSIX_C_SOURCE 200809L
#include "../support/golden.h"

#include "../../examples/frame/commands/frame.h"
#include "../../examples/frame/model/decoder.h"
#include "../../examples/frame/options/command.h"
#include "../../examples/llm/model.h"
#include "../../zeroflow_llm.h"

#include <sys/stat.h>
#include <unistd.h>

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
                      .shape = {.batch = 1, .sequence = 8, .predictions = 1},
                      .threads = 1};
    session s;
    error = (zf_error){ZF_OK, ""};
    if (session_config(&llm_sample, folder, NULL, &config, &error) &&
        session_open_folder(&s, folder, &d, 1 + dtype, &error))
        session_close(&s);
    return strncmp(error.text, folder, strlen(folder)) ? error.text
                                                       : error.text + strlen(folder);
}

/* ----------------------------------------------------------------------------------- weights */

TEST_ONCE(folders_weights_that_are_missing_or_too_many)
{
    static const change headless = {.drop = "lm_head.weight"}, rewards = {.add = "score.weight"},
                        two = {.drop = "lm_head.weight", .add = "score.weight"},
                        none = {.drop = NULL}, cut = {.drop = "model.norm.weight"};
    const char *folder;
    for (int k = 0; k < 2; k++) {
        const zf_dtype dtype = k ? ZF_BF16 : ZF_F32;
        CHECK(t, (folder = varied("llama2", &none)));
        CHECK_TEXT(t, opened(folder, dtype), "");
        CHECK(t, (folder = varied("llama2", &headless)));
        CHECK_TEXT(t, opened(folder, dtype),
                   " lacks tensors of the model (1), which only training could set: lm_head.weight");
        CHECK(t, (folder = varied("llama2", &two)));
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

/* Those of a model that scores: its head has one weight, and is no other one. */
TEST_ONCE(folders_weights_of_reward_models)
{
    static const change none = {.drop = NULL}, headless = {.drop = "score.weight"},
                        biased = {.add = "score.bias"}, also = {.add = "lm_head.weight"};
    static const struct {
        const change *change;
        const char *problem;
    } all[] = {
        {&none, ""},
        {&headless,
         " lacks tensors of the model (1), which only training could set: score.weight"},
        {&biased, ": the model has no tensor score.bias; do the sizes of --model fit?"},
        {&also,
         " has tensors that the model does not use (1), so it is another model: lm_head.weight"},
    };
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
        const char *folder = varied("../reward/llama", all[k].change);
        CHECK(t, folder);
        CHECK_TEXT(t, opened(folder, ZF_F32), all[k].problem);
    }
}

/* ------------------------------------------------------------------------------- not finite */

/* The error of the first step after a prompt of two texts, and its explanation. */
static const char *decoded(const char *folder)
{
    static const int32_t text[] = {5, 11, 3};
    decoder d;
    static zf_error error;
    zf_config_any config = {{0}};
    session_desc s = {.sample = &llm_sample, .config = &config, .threads = 1};
    decoder_desc room = {.texts = 2, .context = 4};
    const int32_t *next[2] = {text, text};
    const int64_t count[2] = {0, 3};
    error = (zf_error){ZF_OK, ""};
    if (!session_config(&llm_sample, folder, NULL, &config, &error) ||
        !decoder_open(&d, &room, &s, folder, 1 + ZF_F32, &error))
        return error.text;
    if (!zf_decoder_add(&d.steps, next, count, &error) && error.status == ZF_ERR_NAN)
        zf_decoder_blame(&d.steps, &error);
    decoder_close(&d);
    return error.text;
}

TEST_ONCE(folders_weights_that_are_not_finite)
{
    static const change none = {.drop = NULL}, norm = {.spoil = "model.norm.weight"},
                        layer = {.spoil = "model.layers.1.mlp.up_proj.weight"};
    const char *folder;
    CHECK(t, (folder = varied("llama2", &none)));
    CHECK_TEXT(t, decoded(folder), "");
    CHECK(t, (folder = varied("llama2", &norm)));
    CHECK_TEXT(t, decoded(folder),
               "the logits after token 3 of text 2 are not finite numbers; the weight "
               "model.norm.weight has a value that is not a finite number");
    CHECK(t, (folder = varied("llama2", &layer)));
    CHECK_TEXT(t, decoded(folder),
               "the logits after token 3 of text 2 are not finite numbers; the weight "
               "model.layers.1.mlp.up_proj.weight has a value that is not a finite number");
}

/* ------------------------------------------------------------------ tokens beyond the model */

/* 40 tokens, of which the golden models have ids for 37. */
static const char tokens_json[] =
    "{\"added_tokens\": [{\"id\": 39, \"content\": \"<new>\", \"special\": true}], \"model\": "
    "{\"type\": \"BPE\", \"unk_token\": \"a\", \"vocab\": {\"a\": 0, \"b\": 1, \"c\": 36, \"d\": 37}, "
    "\"merges\": []}}";

static zf_tokenizer *larger_tokenizer(test *t)
{
    zf_error error = {ZF_OK, ""};
    zf_tokenizer *tokens =
        zf_tokenizer_parse(tokens_json, sizeof tokens_json - 1, "t", &error);
    if (tokens) test_defer(t, (test_cleanup *)zf_tokenizer_free, tokens);
    else test_unwind(t, __FILE__, __LINE__, "tokenizer", error.status, error.text);
    return tokens;
}

#define BEYOND(token, id)                                                                          \
    "the token \"" token "\" of the text has the id " id ", and the model has only 37 ids: it "     \
    "needs the tokenizer that it was trained with"

/* Ids are compared with the model's number of them, one by one: a prompt may use the tokens that
 * both have, and answers are drawn from all ids of the model. */
TEST_ONCE(folders_tokens_beyond_the_model)
{
    static zf_generator g; /* outlives what the test defers */
    static const struct {
        const char *prompt, *problem;
    } cases[] = {{"abc", ""}, {"abd", BEYOND("d", "37")}, {"a<new>b", BEYOND("<new>", "39")}};
    zf_tokenizer *tokens = larger_tokenizer(t);
    zf_backend *cpu = zf_cpu_backend(NULL, NULL);
    zf_error error = {ZF_OK, ""};
    if (!tokens) return;
    NEED(t, cpu, NULL);
    test_defer(t, (test_cleanup *)zf_backend_free, cpu);
    if (!zf_generator_open(&g,
                           &(zf_generator_desc){
                               .folder = MODELS "llama2", .backend = cpu},
                           &error)) {
        test_unwind(t, __FILE__, __LINE__, "generator", error.status, error.text);
        return;
    }
    test_defer(t, (test_cleanup *)zf_generator_close, &g);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        zf_text out = {.at = NULL};
        (void)zf_generate(&g, tokens, cases[k].prompt, &(zf_generate_desc){.tokens = 3}, &out,
                          &error);
        zf_text_free(&out);
        CHECK_TEXT(t, error.text, cases[k].problem);
    }
}

/* ---------------------------------------------------------------------- generation_config.json */

static zf_error read_generation(const char *text, zf_folder_generation *g)
{
    const char *folder = test_path("generation");
    zf_error error = {ZF_OK, ""};
    if (zf_folder_make(folder, &error) && put_text(folder, "generation_config.json", text))
        (void)zf_folder_generation_read(g, folder, &error);
    return error;
}

TEST_ONCE(folders_generation_as_transformers_completes_it)
{
    static const struct {
        const char *text;
        zf_folder_generation says;
    } cases[] = {
        {"{\"transformers_version\": \"5.0\", \"num_beams\": 1, \"min_length\": 0, \"min_p\": null, "
         "\"suppress_tokens\": [], \"max_length\": 4096}",
         {.how = {0, 0, 1, 1}}},
        {"{\"eos_token_id\": [7, 5], \"do_sample\": false, \"temperature\": 0.6}",
         {.has_ends = true, .has_sampling = true, .ends = {7, 5}, .how = {0, 0, 1, 1}}},
        {"{\"eos_token_id\": 9, \"temperature\": 0.6}",
         {.has_ends = true, .ends = {9, -1}, .how = {0, 0, 1, 1}}},
        {"{\"do_sample\": true}", {.has_sampling = true, .how = {1, 50, 1, 1}}},
        {"{\"do_sample\": true, \"temperature\": 0.6, \"top_p\": 0.9, \"top_k\": 20, "
         "\"repetition_penalty\": 1.05}",
         {.has_sampling = true, .has_penalty = true, .how = {0.6, 20, 0.9, 1.05}}},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        zf_folder_generation g, says = cases[k].says;
        const zf_error error = read_generation(cases[k].text, &g);
        int32_t ends[ZF_CONFIG_ENDS];
        int64_t of_config[] = {4, 2};
        const zf_config_facts facts = {.end = of_config, .ends = 2};
        CHECK_TEXT(t, error.text, "");
        CHECK(t, g.has_ends == says.has_ends && g.has_sampling == says.has_sampling);
        CHECK(t, g.has_penalty == says.has_penalty && !memcmp(&g.how, &says.how, sizeof g.how));
        zf_folder_generation_ends(&g, &facts, ends);
        CHECK(t, ends[0] == (says.has_ends ? says.ends[0] : 4));
        CHECK(t, ends[1] == (says.has_ends ? says.ends[1] : 2) && ends[2] == -1);
    }
}

TEST_ONCE(folders_generation_that_is_refused)
{
    static const struct {
        const char *text, *problem;
    } cases[] = {
        {"{\"num_beams\": 4}", ":1:15: num_beams must be 1: another value is not done here, not 4"},
        {"{\"min_p\": 0.05}", ":1:11: min_p must be 0: another value is not done here, not 0.05"},
        {"{\"remove_invalid_values\": true}",
         ":1:27: remove_invalid_values must be 0: another value is not done here, not true"},
        {"{\"bad_words_ids\": [[3]]}",
         ":1:19: bad_words_ids is not done here, and may change the text; remove it if it does "
         "not"},
        {"{\"stop_strings\": \"x\"}",
         ":1:18: stop_strings is not done here, and may change the text; remove it if it does not"},
        {"{\"my_sampler\": 0}",
         ":1:16: my_sampler is not done here, and may change the text; remove it if it does not"},
        {"{\"do_sample\": true, \"temperature\": 0}",
         ":1:36: temperature must be a number from 1e-6 to 100.0, not 0"},
        {"{\"cache_implementation\": \"quantized\"}",
         ":1:26: cache_implementation must be another kind: caches are not rounded, not "
         "\"quantized\""},
        {"[]", ":1:1: the top value must be an object, not an array"},
    };
    zf_folder_generation g;
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const zf_error error = read_generation(cases[k].text, &g);
        const char *text = strstr(error.text, ".json:");
        CHECK_TEXT(t, text ? text + 5 : error.text, cases[k].problem);
    }
}

/* ------------------------------------------------------------------------------------- files */

static bool has_text(const char *folder, const char *name, const char *text)
{
    char path[400];
    zf_text is = {.at = NULL};
    zf_error error = {ZF_OK, ""};
    bool same;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    same = zf_text_read(path, &is, &error) && !strcmp(is.at, text);
    zf_text_free(&is);
    return same;
}

static bool is_there(const char *folder, const char *name)
{
    char path[400];
    struct stat about;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return !lstat(path, &about);
}

/* A file is replaced as a whole; a link is replaced, and not what it points to; nothing is left
 * next to it. */
TEST_ONCE(folders_files_replace_links)
{
    const char *folder = test_path("links");
    char file[400], link[400], left[420];
    zf_error error = {ZF_OK, ""};
    struct stat about;
    CHECK(t, zf_folder_make(folder, &error) && put_text(folder, "far", "precious"));
    snprintf(file, sizeof file, "%s/far", folder);
    snprintf(link, sizeof link, "%s/near", folder);
    CHECK(t, !symlink("far", link) && !chmod(file, 0640));
    if (!zf_file_save(link, "new", 3, &error)) OK(t, error.status, error.text);
    CHECK(t, has_text(folder, "near", "new") && has_text(folder, "far", "precious"));
    CHECK(t, !lstat(link, &about) && S_ISREG(about.st_mode));
    if (!zf_file_save(file, "newer", 5, &error)) OK(t, error.status, error.text);
    CHECK(t, has_text(folder, "far", "newer"));
    CHECK(t, !stat(file, &about) && (about.st_mode & 0777) == 0640);
    CHECK(t, !is_there(folder, "near.zf-new") && !is_there(folder, "near.zf-link") &&
              !is_there(folder, "far.zf-new"));
    CHECK(t, !(about.st_mode & 01000)); /* the mark of what a stopped writer leaves */
    CHECK(t, put_text(folder, "far.zf-new", "dear"));
    CHECK(t, !zf_file_save(file, "no", 2, &error));
    CHECK(t, strstr(error.text, "far.zf-new is there, and no interrupted run has left it"));
    CHECK(t, has_text(folder, "far.zf-new", "dear") && has_text(folder, "far", "newer"));
    snprintf(left, sizeof left, "%s.zf-new", file);
    CHECK(t, !chmod(left, 01644));
    error = (zf_error){ZF_OK, ""};
    if (!zf_file_save(file, "newer", 5, &error)) OK(t, error.status, error.text);
    CHECK(t, !unlink(link) && !symlink("far", link) && put_text(folder, "near.zf-link", "dear"));
    CHECK(t, !zf_file_save(link, "no", 2, &error) && strstr(error.text, "near.zf-link is there"));
    CHECK(t, has_text(folder, "near.zf-link", "dear"));
    error = (zf_error){ZF_OK, ""};
    /* A folder, a device, and links to them stay. */
    CHECK(t, !unlink(link) && !symlink("/dev/null", link));
    CHECK(t, !zf_file_save(link, "new", 3, &error));
    CHECK(t, strstr(error.text, "near: it is not a regular file"));
    CHECK(t, !zf_file_save(folder, "new", 3, &error));
    CHECK(t, strstr(error.text, "links: it is not a regular file"));
    snprintf(file, sizeof file, "%s/none/file", folder);
    error = (zf_error){ZF_OK, ""};
    CHECK(t, !zf_file_save(file, "new", 3, &error) && strstr(error.text, "cannot create"));
}

static int export_llm(int argc, char **argv) { return export_command(&llm_sample, argc, argv); }

static int exported(const char *from, const char *to)
{
    static const command commands[] = {{"export", "", export_llm}, {NULL, NULL, NULL}};
    char *argv[] = {(char *)"llm", (char *)"export", (char *)"--load", (char *)from, (char *)to, NULL};
    return command_main(&(command_program){"llm", commands}, 5, argv);
}

/* The files that a folder of Hugging Face may have besides its weights and config.json. */
static const char *const kept[][2] = {
    {"tokenizer.json", "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": []}}"},
    {"tokenizer_config.json", "{\"eos_token\": \"a\"}"},
    {"special_tokens_map.json", "{\"eos_token\": \"a\" }"},
    {"added_tokens.json", "{ }"},
    {"chat_template.jinja", "{{ messages }}"},
    {"generation_config.json", "{\"eos_token_id\": [3, 5]}"}};
enum { KEPT = sizeof kept / sizeof *kept };

/* A folder like a snapshot of a cache: its files are links to others. */
TEST_ONCE(folders_export_keeps_files_and_replaces_links)
{
    static const change none = {.drop = NULL};
    char to[300], blobs[300], path[700], link[700];
    const char *from;
    zf_error error = {ZF_OK, ""};
    struct stat about;
    CHECK(t, (from = varied("llama2", &none)));
    for (int k = 0; k < KEPT; k++) CHECK(t, put_text(from, kept[k][0], kept[k][1]));
    snprintf(to, sizeof to, "%s", test_path("snapshot"));
    snprintf(blobs, sizeof blobs, "%s", test_path("blobs"));
    CHECK(t, zf_folder_make(to, &error) && zf_folder_make(blobs, &error));
    for (int k = 0; k < KEPT + 2; k++) {
        const char *name = k < KEPT    ? kept[k][0]
                           : k == KEPT ? "config.json"
                                       : "model.safetensors";
        snprintf(path, sizeof path, "../%s/%s", strrchr(blobs, '/') + 1, name);
        snprintf(link, sizeof link, "%s/%s", to, name);
        CHECK(t, put_text(blobs, name, "precious") && !symlink(path, link));
    }
    CHECK(t, exported(from, to) == EXIT_GOOD);
    for (int k = 0; k < KEPT; k++) {
        CHECK(t, has_text(to, kept[k][0], kept[k][1]) && has_text(blobs, kept[k][0], "precious"));
        CHECK(t, !is_there(to, "model.safetensors.zf-link"));
    }
    CHECK(t, has_text(blobs, "config.json", "precious"));
    CHECK(t, has_text(blobs, "model.safetensors", "precious"));
    snprintf(path, sizeof path, "%s/model.safetensors", to);
    CHECK(t, !lstat(path, &about) && S_ISREG(about.st_mode) && about.st_size > 10000);
    CHECK_TEXT(t, opened(to, ZF_F32), "");
    /* Again over itself; a file of another model in it is an error, which changes nothing. */
    CHECK(t, exported(from, to) == EXIT_GOOD);
    for (int k = 0; k < KEPT; k++) {
        char name[400];
        if (k == 0) continue; /* without it there is no tokenizer to keep */
        snprintf(name, sizeof name, "%s/%s", from, kept[k][0]);
        CHECK(t, !remove(name) && put_text(to, "config.json", "as it was"));
        CHECK(t, exported(from, to) == EXIT_FAILED && has_text(to, "config.json", "as it was"));
        CHECK(t, put_text(from, kept[k][0], kept[k][1]));
    }
    CHECK(t, put_text(to, "vocab.txt", "a\n") && exported(from, to) == EXIT_FAILED);
}

/* --------------------------------------------------------------------------------- tokenizers */

#define GOLDEN "tests/golden/folders/"

/* Removes the files that an earlier case has left, and writes those of this one. */
static bool put_files(const char *folder, const zf_json *files)
{
    bool good = true;
    for (int k = 0; k < KEPT; k++) {
        char path[400];
        snprintf(path, sizeof path, "%s/%s", folder, kept[k][0]);
        remove(path);
    }
    for (const zf_json *v = zf_json_first(files); v && good; v = zf_json_next(v))
        good = put_text(folder, zf_json_key(v, NULL), zf_json_string(v, NULL));
    return good;
}

/* A list of ids as text. */
static void ids_text(char out[600], const int32_t *ids, const zf_json *json)
{
    size_t n = 0, i = 0, count = ids ? (size_t)ids[0] : (size_t)zf_json_length(json);
    const zf_json *v = zf_json_first(json);
    *out = 0;
    for (; i < count; i++, v = ids ? NULL : zf_json_next(v)) {
        int64_t id = ids ? ids[i + 1] : -1;
        if (!ids) zf_json_to_int(v, 0, INT32_MAX, &id, NULL);
        n += (size_t)snprintf(out + n, 600 - n, "%lld ", (long long)id);
    }
}

static void check_probe(test *t, const zf_tokenizer *tokens, const char *name, const char *probe,
                        const zf_json *expected)
{
    char got[700], want[700];
    zf_error error = {ZF_OK, ""};
    zf_ids ids = {.at = NULL};
    zf_ids_add(&ids, 0);
    (void)zf_tokenizer_encode(tokens, probe, strlen(probe), ZF_TOKENIZER_FRAME, &ids, &error);
    if (!error.status && ids.at) ids.at[0] = (int32_t)ids.count - 1;
    snprintf(got, sizeof got, "%s: %s: ", name, probe);
    memcpy(want, got, sizeof got);
    if (!error.status && ids.at) ids_text(got + strlen(got), ids.at, NULL);
    zf_ids_free(&ids);
    OK(t, error.status, error.text);
    ids_text(want + strlen(want), NULL, expected);
    CHECK_TEXT(t, got, want);
}

/* tokens NULL: opening the folder has failed. */
static void check_opened(test *t, const zf_tokenizer *tokens, const zf_error *error,
                         const zf_json *one, const zf_json *probes)
{
    const char *name = zf_json_string(zf_json_member(one, "name"), NULL),
               *refused = zf_json_string(zf_json_member(one, "refused"), NULL);
    const zf_json *ids = zf_json_first(zf_json_member(one, "ids"));
    int64_t size = 0;
    zf_json_to_int(zf_json_member(one, "size"), 0, INT32_MAX, &size, NULL);
    if (refused) {
        if (!strstr(error->text, refused)) CHECK_TEXT(t, error->text, refused);
        return;
    }
    OK(t, error->status, error->text);
    if (zf_tokenizer_size(tokens) != size)
        test_fail(t, __FILE__, __LINE__, "the number of ids", name);
    for (const zf_json *p = zf_json_first(probes); p && !t->failed && !t->unwound;
         p = zf_json_next(p), ids = zf_json_next(ids))
        check_probe(t, tokens, name, zf_json_string(p, NULL), ids);
}

static void check_tokenizer(test *t, const zf_json *one, const zf_json *probes)
{
    const char *folder = test_path("tokenizer-case");
    zf_error error = {ZF_OK, ""};
    zf_tokenizer *tokens;
    CHECK(t, zf_folder_make(folder, &error) && put_files(folder, zf_json_member(one, "files")));
    tokens = zf_tokenizer_open(folder, &error);
    check_opened(t, tokens, &error, one, probes);
    zf_tokenizer_free(tokens);
}

/* The same rule for tokenizers of words. */
TEST_ONCE(folders_words_of_all_files)
{
    static const char vocab[] = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n</s>\n";
    static const struct {
        const char *config, *map, *problem;
    } cases[] = {
        {"{\"do_lower_case\": true, \"never_split\": null, \"do_basic_tokenize\": true, "
         "\"clean_up_tokenization_spaces\": true, \"eos_token\": \"[SEP]\", \"bos_token\": null}",
         NULL, ""},
        {"{\"do_basic_tokenize\": false}", NULL, ":1:23: do_basic_tokenize must be true, not false"},
        {"{\"never_split\": [\"a\"]}", NULL, ":1:17: never_split is not empty, which is not read"},
        {"{\"wordpieces_prefix\": \"@@\"}", NULL, ":1:23: wordpieces_prefix must be \"##\", not \"@@\""},
        {"{\"split_special_tokens\": true}", NULL,
         ":1:26: split_special_tokens must be false, not true"},
        {"{\"my_way\": true}", NULL, ":1:12: my_way is not read, and may change the text"},
        {"{\"eos_token\": \"</s>\"}", NULL,
         ":1:15: eos_token names the token \"</s>\", which is no added token of the vocabulary"},
        {"{\"additional_special_tokens\": [\"<x>\"]}", NULL,
         ":1:32: additional_special_tokens[0] names the token \"<x>\", which is no added token of the "
         "vocabulary"},
        {"{\"additional_special_tokens\": [\"<x>\"], \"added_tokens_decoder\": {\"7\": {\"content\": "
         "\"<x>\", \"special\": true}}}",
         "{\"eos_token\": \"<y>\"}", ""},
        {"{}", "{\"eos_token\": \"<y>\"}",
         ":1:15: eos_token names the token \"<y>\", which is no added token of the vocabulary"},
        {"{}", "{\"cls_token\": {\"content\": \"[CLS]\"}}", ""},
    };
    const char *folder = test_path("words");
    zf_error error = {ZF_OK, ""};
    CHECK(t, zf_folder_make(folder, &error) && put_text(folder, "vocab.txt", vocab));
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const char *text;
        CHECK(t, put_text(folder, "tokenizer_config.json", cases[k].config));
        CHECK(t, put_text(folder, "special_tokens_map.json", cases[k].map ? cases[k].map : "{}"));
        error = (zf_error){ZF_OK, ""};
        zf_wordpiece_free(zf_wordpiece_open(folder, NULL, &error));
        text = strstr(error.text, ".json:");
        CHECK_TEXT(t, text ? text + 5 : error.text, cases[k].problem);
    }
}

/* Special tokens that only some files of a folder have, and members of those (make.py next to the
 * cases says how they are made). */
TEST_ONCE(folders_tokens_of_all_files)
{
    zf_error error = {ZF_OK, ""};
    zf_json *cases = zf_json_read(GOLDEN "cases.json", NULL, &error);
    NEED(t, cases, &error);
    test_defer(t, (test_cleanup *)zf_json_free, cases);
    for (const zf_json *v = zf_json_first(zf_json_member(cases, "cases"));
         v && !t->failed && !t->unwound; v = zf_json_next(v))
        check_tokenizer(t, v, zf_json_member(cases, "probes"));
}

/* ------------------------------------------------------------------------------ other refusals */

static const char few[] = "{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": []}}";

/* Each is a call with one thing wrong, in an empty folder. */
typedef void wrong_call(const char *folder, zf_error *error);

static void wrong_layout(const char *folder, zf_error *error)
{
    char text[ZF_CONFIG_LAYOUT + 1];
    zf_causal_config config = {.heads = 2};
    (void)folder;
    memset(text, 'x', sizeof text - 1), text[sizeof text - 1] = 0;
    (void)zf_config_set_layout(llm_sample.config(), &config, text, 64, error);
}

/* A kind of model that has neither blocks of attention nor weights of few bits. */
static zf_config_table plain_kind(void)
{
    zf_config_table table = *llm_sample.config();
    table.layout = table.bits = 0;
    return table;
}

static void wrong_kind_for_a_layout(const char *folder, zf_error *error)
{
    const zf_config_table table = plain_kind();
    zf_causal_config config = {.heads = 2};
    (void)folder;
    (void)zf_config_set_layout(&table, &config, "window,width=1", 64, error);
}

static void wrong_kind_for_few_bits(const char *folder, zf_error *error)
{
    const zf_config_table table = plain_kind();
    zf_causal_config config = {.heads = 2};
    (void)folder;
    (void)zf_config_set_weights(&table, &config, 1, error);
}

static void wrong_labels(const char *folder, zf_error *error)
{
    char path[400];
    zf_causal_config config;
    snprintf(path, sizeof path, "%s/config.json", folder);
    if (put_text(
            folder, "config.json",
            "{\"model_type\": \"llama\", \"architectures\": [\"LlamaForSequenceClassification\"], "
            "\"num_labels\": 3, \"vocab_size\": 9, \"hidden_size\": 8, \"num_hidden_layers\": 1, "
            "\"num_attention_heads\": 2, \"intermediate_size\": 8, "
            "\"max_position_embeddings\": 8, \"rms_norm_eps\": 1e-5, \"hidden_act\": \"silu\"}"))
        (void)zf_config_load(llm_sample.config(), path, &config, error);
}

static void wrong_folder(const char *folder, zf_error *error)
{
    char path[400];
    snprintf(path, sizeof path, "%s/file", folder);
    if (put_text(folder, "file", "")) (void)zf_folder_make(path, error);
}

static void wrong_export(const char *folder, const char *holds, zf_error *error)
{
    char weights[ZF_FOLDER_PATH];
    const zf_causal_config config = {.heads = 2};
    if (put_text(folder, holds, "{}"))
        (void)zf_folder_export(folder, MODELS "llama2", zf_config_json(llm_sample.config(), &config),
                               ZF_FOLDER_BERT, 64, weights, error);
}

static void wrong_export_over_a_run(const char *folder, zf_error *error)
{
    wrong_export(folder, "manifest.json", error);
}

static void wrong_export_next_to_words(const char *folder, zf_error *error)
{
    wrong_export(folder, "vocab.txt", error);
}

static void wrong_place_of_a_link(const char *folder, zf_error *error)
{
    char path[400];
    snprintf(path, sizeof path, "%s/link", folder);
    if (put_text(folder, "link.zf-link", "") && !symlink("away", path))
        (void)zf_file_save(path, "x", 1, error);
}

static void wrong_context(const char *folder, zf_error *error)
{
    zf_generator g;
    zf_backend *cpu = zf_cpu_backend(NULL, error);
    (void)folder;
    if (cpu && zf_generator_open(&g,
                                 &(zf_generator_desc){.folder = MODELS "llama2",
                                                      .context = 1 << 20,
                                                      .backend = cpu},
                                 error))
        zf_generator_close(&g);
    zf_backend_free(cpu);
}

/* A graph of a model that scores texts. */
static void wrong_task(zf_error *error, bool trains)
{
    static const zf_decode_shape shape = {.texts = 1, .tokens = 2, .context = 4, .chunk = 2};
    zf_graph *g = zf_graph_new(NULL);
    zf_causal_config config;
    if (g && zf_config_load(zf_causal_model()->config, MODELS "llama2", &config, error)) {
        config.scores = 1;
        if (trains) (void)zf_causal_train(g, &config, &(zf_causal_shape){2, 3, false});
        else zf_causal_model()->build(g, &config, &shape);
        if (zf_graph_status(g)) {
            error->status = zf_graph_status(g);
            snprintf(error->text, sizeof error->text, "%s", zf_graph_error(g));
        }
    }
    zf_graph_free(g);
}

static void wrong_task_of_training(const char *folder, zf_error *error)
{
    (void)folder;
    wrong_task(error, true);
}

static void wrong_task_of_generation(const char *folder, zf_error *error)
{
    (void)folder;
    wrong_task(error, false);
}

static void wrong_variables(const char *folder, zf_error *error)
{
    zf_json *list = zf_json_parse("[1]", 3, NULL, error);
    zf_jinja *jinja = list ? zf_jinja_parse("a", 1, "T", error) : NULL;
    zf_text out = {.at = NULL};
    (void)folder;
    if (jinja) (void)zf_jinja_run(jinja, &(zf_jinja_desc){.variables = list}, &out, NULL, error);
    zf_text_free(&out);
    zf_jinja_free(jinja);
    zf_json_free(list);
}

static void wrong_chat(const char *folder, const char *config, zf_error *error)
{
    zf_chat chat;
    if (put_text(folder, "tokenizer_config.json", config) &&
        zf_chat_open(&chat, folder, NULL, error))
        zf_chat_close(&chat);
}

static void wrong_template_twice(const char *folder, zf_error *error)
{
    wrong_chat(folder,
               "{\"chat_template\": [{\"name\": \"default\", \"template\": \"a\"}, "
               "{\"name\": \"default\", \"template\": \"b\"}]}",
               error);
}

static void wrong_templates(const char *folder, zf_error *error)
{
    wrong_chat(folder, "{\"chat_template\": [{\"name\": \"rag\", \"template\": \"a\"}]}", error);
}

static void wrong_begin(const char *folder, zf_error *error)
{
    char config[1000], token[ZF_CHAT_TOKEN + 8];
    memset(token, 'x', sizeof token - 1), token[sizeof token - 1] = 0;
    snprintf(config, sizeof config, "{\"bos_token\": \"%s\", \"chat_template\": \"a\"}", token);
    wrong_chat(folder, config, error);
}

static void wrong_style(const char *folder, zf_error *error)
{
    zf_tokenizer *tokens = zf_tokenizer_parse(few, strlen(few), "few", error);
    zf_chat chat;
    if (tokens && put_text(folder, "tokenizer_config.json", "{}") &&
        zf_chat_open(&chat, folder, "llama2", error)) {
        (void)zf_chat_fits(&chat, tokens, error);
        zf_chat_close(&chat);
    }
    zf_tokenizer_free(tokens);
}

static void wrong_tokens(const char *folder, const char *config, zf_error *error)
{
    zf_tokenizer *tokens = NULL;
    if (put_text(folder, "tokenizer.json", few) &&
        put_text(folder, "tokenizer_config.json", config))
        tokens = zf_tokenizer_open(folder, error);
    zf_tokenizer_free(tokens);
}

static void wrong_id_of_a_token(const char *folder, zf_error *error)
{
    wrong_tokens(folder, "{\"added_tokens_decoder\": {\"7\": {\"content\": \"<x>\"}}}", error);
}

static void wrong_place_of_a_token(const char *folder, zf_error *error)
{
    zf_tokenizer *tokens = NULL;
    if (put_text(folder, "tokenizer.json",
                 "{\"model\": {\"vocab\": {\"a\": 0, \"b\": 2}, \"merges\": []}}") &&
        put_text(folder, "tokenizer_config.json", "{\"eos_token\": \"<x>\"}"))
        tokens = zf_tokenizer_open(folder, error);
    zf_tokenizer_free(tokens);
}

static void wrong_key_of_a_token(const char *folder, zf_error *error)
{
    wrong_tokens(folder, "{\"added_tokens_decoder\": {\"1x\": {\"content\": \"<x>\"}}}", error);
}

static void wrong_files_of_tokens(const char *folder, zf_error *error)
{
    wrong_tokens(folder, "{\"fast_tokenizer_files\": [\"tokenizer.4.json\"]}", error);
}

static void wrong_key_of_a_word(const char *folder, zf_error *error)
{
    if (put_text(folder, "vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n") &&
        put_text(folder, "tokenizer_config.json",
                 "{\"added_tokens_decoder\": {\"five\": {\"content\": \"<x>\"}}}"))
        zf_wordpiece_free(zf_wordpiece_open(folder, NULL, error));
}

static void wrong_regex(const char *folder, zf_error *error)
{
    static const char text[] =
        "{\"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"Regex\": \"(a+)+(a+)+[bd]\"}, "
        "\"content\": \"\"}, \"model\": {\"vocab\": {\"a\": 0}, \"merges\": []}}";
    char word[120];
    zf_tokenizer *tokens = zf_tokenizer_parse(text, strlen(text), "slow", error);
    zf_ids ids = {.at = NULL};
    (void)folder;
    memset(word, 'a', sizeof word);
    word[sizeof word - 1] = 'c';
    if (tokens) (void)zf_tokenizer_encode(tokens, word, sizeof word, 0, &ids, error);
    zf_ids_free(&ids);
    zf_tokenizer_free(tokens);
}

/* An adapter of the product "a.weight" that keeps another parameter. */
static void wrong_adapter(const char *keep, zf_error *error)
{
    zf_graph *g = zf_graph_new(NULL);
    zf_tensor x = zf_input(g, "x", ZF_F32, ZF_SHAPE(2, 3));
    x = zf_add(zf_matmul(x, zf_param(g, "a.weight", ZF_SHAPE(3, 3), NULL)),
               zf_param(g, "a.bias", ZF_SHAPE(3), NULL));
    x = zf_mul(x, zf_param(g, "b.bias", ZF_SHAPE(3), NULL));
    x = zf_mul(x, zf_param(g, "scales", ZF_SHAPE(3), NULL));
    zf_output(x, "y");
    if (zf_lora(g, &(zf_lora_desc){.targets = "a", .keep = keep}))
        snprintf(error->text, sizeof error->text, "%s", zf_graph_error(g));
    else (void)zf_adapter_can_write(g, error);
    zf_graph_free(g);
}

static void wrong_module(const char *folder, zf_error *error)
{
    (void)folder;
    wrong_adapter("scales", error);
}

static void wrong_part_of_a_module(const char *folder, zf_error *error)
{
    (void)folder;
    wrong_adapter("a.bias", error);
}

TEST_ONCE(folders_refuse_one_wrong_thing)
{
    static const struct {
        wrong_call *call;
        const char *says;
    } cases[] = {
        {wrong_layout, "a layout of attention has at most "},
        {wrong_kind_for_a_layout, "attention of this kind of model sees all tokens"},
        {wrong_kind_for_few_bits, "weights of this kind of model stay floats"},
        {wrong_labels,
         "has 3 labels (num_labels, id2label); a score, which is one label, is read alone"},
        {wrong_folder, "cannot make the folder "},
        {wrong_export_over_a_run, " holds the checkpoint of a run; name another place"},
        {wrong_export_next_to_words, " has the file vocab.txt, which the exported model has not: "
                                     "remove it, or name another folder"},
        {wrong_place_of_a_link, "link.zf-link is there: move it, or name another place"},
        {wrong_task_of_training, "a model that scores texts predicts no token"},
        {wrong_task_of_generation, "a model that scores texts continues none"},
        {wrong_context, "a context of 1048576 tokens is too long for the model's 64 positions"},
        {wrong_variables, "the variables of a template are an object"},
        {wrong_template_twice, "chat_template[1] is given twice"},
        {wrong_templates, "has no template of the name default: name another with --chat ("},
        {wrong_begin, "bos_token has 71 bytes, and may have 63"},
        {wrong_style,
         "chats of the style llama2 need a bos_token, and tokenizer_config.json has none"},
        {wrong_id_of_a_token, "has the token \"<x>\", whose id would be 1"},
        {wrong_place_of_a_token, "has the token \"<x>\", whose id would be that of another one"},
        {wrong_key_of_a_token, "added_tokens_decoder.1x has no id as its key"},
        {wrong_files_of_tokens, "fast_tokenizer_files names other files than tokenizer.json"},
        {wrong_key_of_a_word, "added_tokens_decoder.five must have an id from 0 to "},
        {wrong_regex, "the regular expression was given up in a text of 120 bytes: "},
        {wrong_module,
         "the adapter keeps scales, which is of no module: PEFT's files keep modules"},
        {wrong_part_of_a_module,
         "the adapter keeps a.bias, and has a product with the weight of its "
         "module: PEFT's files have a module as one or the other"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        char folder[300];
        zf_error error = {ZF_OK, ""};
        if (!zf_regex_there() && cases[k].call == wrong_regex) continue;
        snprintf(folder, sizeof folder, "%s%zu", test_path("wrong"), k);
        CHECK(t, !mkdir(folder, 0777));
        cases[k].call(folder, &error);
        if (!strstr(error.text, cases[k].says)) CHECK_TEXT(t, error.text, cases[k].says);
    }
}
