/* Model folders as transformers writes and reads them (tests/golden/hf/make.py says how these are
 * made): losses and gradients of their models, and exports. */
#include "../support/golden.h"

#include "../../examples/bert/masked.h"
#include "../../examples/bert/model.h"
#include "../../examples/frame/data/causal_batch.h"
#include "../../examples/frame/options/command.h"
#include "../../examples/frame/commands/frame.h"
#include "../../examples/gpt/model.h"

#include <sys/stat.h>

#define GOLDEN "tests/golden/hf/"

static void close_bert(void *s) { session_close(s); }
static void close_gpt(void *s) { session_close(s); }
static void free_bert_batches(void *f) { bert_batch_file_free(f); }
static void free_gpt_batches(void *f) { causal_batch_file_free(f); }

/* The results of transformers for a case of losses.json. */
static bool expected(test *t, const char *name, double *loss, double *norm)
{
    zf_error error = {ZF_OK, ""};
    zf_json *json = zf_json_read(GOLDEN "losses.json", NULL, &error);
    const zf_json *v = zf_json_require(json, name, &error);
    zf_json_to_double(zf_json_require(v, "loss", &error), 0, 100, loss, &error);
    zf_json_to_double(zf_json_require(v, "grad_norm", &error), 0, 100, norm, &error);
    zf_json_free(json);
    if (error.status) test_fail(t, __FILE__, __LINE__, name, error.text);
    return !error.status;
}

/* -------------------------------------------------------------------------------------- BERT */

/* A case of BERT: a folder, a batch file, and what is different. */
typedef struct bert_case {
    const char *folder, *batch;
    const char *name; /* in losses.json */
    int64_t activation;
} bert_case;

static bool open_bert(test *t, const bert_case *c, session *s, const bert_batch **batch)
{
    bert_config config;
    session_desc d = {.sample = &bert_sample, .config = &config, .threads = 1, .seed = 1};
    zf_error error = {ZF_OK, ""};
    zf_weights_report report;
    bert_batch_file *f = NULL;
    bool good = bert_config_load(c->folder, &config, &error) &&
                session_config_take(&bert_sample, &config, c->folder, &error) &&
                (f = bert_batch_file_load(c->batch, config.vocab, config.types, &error));
    if (f) test_defer(t, free_bert_batches, f);
    if (good && !f->next_sentences) config.nsp = 0;
    if (good && c->activation >= 0) config.activation = c->activation;
    if (good)
        d.shape = (sample_shape){
            .batch = f->examples, .sequence = f->sequence, .predictions = f->predictions};
    good = good && session_open(s, &d, &error);
    if (good) {
        test_defer(t, close_bert, s);
        good = session_take(s, c->folder, &report, &error) && !report.fresh && !report.unused;
        *batch = &f->batch[0];
    }
    if (!good) test_fail(t, __FILE__, __LINE__, c->name, error.text);
    return good;
}

static void check_bert(test *t, const bert_case *c)
{
    static session s; /* outlives what the test defers */
    const bert_batch *b;
    double loss, norm;
    float lr = 0;
    CHECK(t, expected(t, c->name, &loss, &norm) && open_bert(t, c, &s, &b));
    OK(t, masked_feed(&s, b, b->labelled, b->pairs), zf_program_error(s.program));
    OK(t, zf_write(s.program, s.lr, &lr, sizeof lr), zf_program_error(s.program));
    OK(t, zf_step(s.program), zf_program_error(s.program));
    CHECK_NEAR(t, session_scalar(&s, "loss"), loss, 1e-5 * loss);
    CHECK_NEAR(t, session_scalar(&s, "grad_norm"), norm, 1e-5 * norm);
}

#define BERT(id, folder, batch, name, activation)                                                  \
    TEST_ONCE(hf_##id)                                                                             \
    {                                                                                              \
        check_bert(t, &(bert_case){GOLDEN folder, GOLDEN batch ".safetensors", name, activation}); \
    }
BERT(bert_of_its_own_decoder, "bert", "bert-batch", "bert", -1)
BERT(bert_gelu, "bert", "bert-batch", "bert gelu", ZF_ACTIVATION_GELU)
BERT(bert_gelu_tanh, "bert", "bert-batch", "bert gelu_pytorch_tanh", ZF_ACTIVATION_GELU_TANH)
BERT(bert_relu, "bert", "bert-batch", "bert relu", ZF_ACTIVATION_RELU)
BERT(bert_silu, "bert", "bert-batch", "bert silu", ZF_ACTIVATION_SILU)
BERT(bert_of_masked_words_alone_in_shards, "bert-mlm", "bert-mlm-batch", "bert-mlm", -1)

/* --------------------------------------------------------------------------------------- GPT */

/* The model of the folder with attention as `change` has it; `name`: in losses.json. */
static void check_gpt(test *t, const char *name, const gpt_config *change)
{
    gpt_config config;
    session_desc d = {
        .sample = &gpt_sample, .purpose = SAMPLE_TRAIN, .config = &config, .threads = 1, .seed = 1};
    zf_error error = {ZF_OK, ""};
    static session s; /* outlive what the test defers */
    static causal_batch_file f;
    zf_weights_report report;
    double loss, norm;
    float lr = 0;
    CHECK(t, expected(t, name, &loss, &norm));
    CHECK(t, gpt_config_load(GOLDEN "gpt", &config, &error) &&
                 session_config_take(&gpt_sample, &config, GOLDEN "gpt", &error) && !config.tied);
    config.inverse_layer = change->inverse_layer, config.upcast = change->upcast;
    CHECK(t, causal_batch_file_load(&f, GOLDEN "gpt-batch.safetensors", config.vocab, &error));
    test_defer(t, free_gpt_batches, &f);
    d.shape = (sample_shape){
        .batch = f.batch[0].examples, .sequence = f.batch[0].sequence, .rows = f.masked};
    CHECK(t, f.masked && session_open(&s, &d, &error));
    test_defer(t, close_gpt, &s);
    CHECK(t, zf_exchange_import(gpt_sample.exchange(), s.program, s.graph, GOLDEN "gpt", &report,
                                &error));
    CHECK(t, !report.fresh && !report.unused);
    OK(t, session_feed(&s, &f.batch[0], false), zf_program_error(s.program));
    OK(t, zf_write(s.program, s.lr, &lr, sizeof lr), zf_program_error(s.program));
    OK(t, zf_step(s.program), zf_program_error(s.program));
    CHECK_NEAR(t, session_scalar(&s, "loss"), loss, 1e-5 * loss);
    CHECK_NEAR(t, session_scalar(&s, "grad_norm"), norm, 1e-5 * norm);
}

TEST_ONCE(hf_gpt_of_its_own_head_with_padding)
{
    check_gpt(t, "gpt", &(gpt_config){.inverse_layer = 0});
}

TEST_ONCE(hf_gpt_scores_in_f32)
{
    check_gpt(t, "gpt reorder_and_upcast_attn", &(gpt_config){.upcast = 1});
}

TEST_ONCE(hf_gpt_scores_by_layer)
{
    check_gpt(t, "gpt scale_attn_by_inverse_layer_idx", &(gpt_config){.inverse_layer = 1});
}

/* ------------------------------------------------------------------------------------ export */

/* The properties that make.py check has proved of the committed files hold for files that are
 * written now. */
static void check_export(test *t, const char *name, int (*command_export)(int, char **))
{
    static const char *const files[] = {
        "config.json",    "model.safetensors",     "vocab.txt",
        "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"};
    const command commands[] = {{"export", "", command_export}, {NULL, NULL, NULL}};
    char load[200], folder[300], golden[300], own[400];
    char *argv[] = {(char *)name, "export", "--load", load, folder, NULL};
    snprintf(load, sizeof load, GOLDEN "%s", name);
    snprintf(folder, sizeof folder, "%s", test_path(name));
    CHECK(t, command_main(&(command_program){.name = name, .commands = commands}, 5, argv) ==
                 EXIT_GOOD);
    for (int i = 0; i < 6; i++) {
        snprintf(golden, sizeof golden, GOLDEN "exported/%s/%s", name, files[i]);
        snprintf(own, sizeof own, "%s/%s", folder, files[i]);
        if (!same_files(own, golden))
            test_fail(t, __FILE__, __LINE__, "a file is as transformers has taken it", files[i]);
    }
}

static int export_bert(int argc, char **argv) { return export_command(&bert_sample, argc, argv); }
TEST_ONCE(hf_export_of_bert) { check_export(t, "bert", export_bert); }
static int export_gpt(int argc, char **argv) { return export_command(&gpt_sample, argc, argv); }
TEST_ONCE(hf_export_of_gpt) { check_export(t, "gpt", export_gpt); }

/* ----------------------------------------------------------------------------- what is refused */

/* Reads the folder's weights into a model of another configuration: the error after the path, ""
 * when there is none. */
static const char *take(test *t, const bert_config *config, const char *path,
                        zf_weights_report *report)
{
    static zf_error error;
    static session s;
    session_desc d = {.sample = &bert_sample,
                      .config = config,
                      .purpose = SAMPLE_EVALUATE,
                      .shape = {.batch = 1, .sequence = 8, .predictions = 1},
                      .threads = 1};
    error = (zf_error){ZF_OK, ""};
    if (!session_open(&s, &d, &error)) test_fail(t, __FILE__, __LINE__, "open", error.text);
    else if (session_take(&s, path, report, &error)) error.text[0] = '\0';
    session_close(&s);
    return error.text;
}

TEST_ONCE(hf_tensors_without_a_use_are_said)
{
    zf_error error = {ZF_OK, ""};
    zf_weights_report report;
    bert_config c;
    CHECK(t, bert_config_load(GOLDEN "bert", &c, &error));
    CHECK_TEXT(t, take(t, &c, GOLDEN "bert", &report), "");
    CHECK(t, !report.unused && !report.fresh);
    c.layers = 1;
    CHECK_TEXT(t, take(t, &c, GOLDEN "bert", &report),
               GOLDEN "bert: the model has no tensor bert.encoder.layer.1.attention.output."
                      "LayerNorm.bias; do the sizes of --model fit?");
    c.layers = 2, c.nsp = 0;
    CHECK_TEXT(t, take(t, &c, GOLDEN "bert", &report), "");
    CHECK(t, report.unused == 4 && !report.fresh);
    CHECK_TEXT(t, report.unused_names,
               "bert.pooler.dense.bias, bert.pooler.dense.weight, cls.seq_relationship.bias, "
               "cls.seq_relationship.weight");
    c.nsp = 1, c.tied = 1;
    CHECK_TEXT(t, take(t, &c, GOLDEN "bert", &report),
               GOLDEN "bert: cls.predictions.decoder.weight differs from the word embedding, to "
                      "which the model ties it: its config.json must have "
                      "\"tie_word_embeddings\": false");
    /* A masked-word model lacks the heads of the other kind. */
    CHECK(t, bert_config_load(GOLDEN "bert-mlm", &c, &error) && !c.nsp);
    c.nsp = 1;
    CHECK_TEXT(t, take(t, &c, GOLDEN "bert-mlm", &report), "");
    CHECK(t, report.fresh == 4 && !report.unused);
    CHECK_TEXT(t, report.fresh_names,
               "bert.pooler.dense.weight, bert.pooler.dense.bias, cls.seq_relationship.weight, "
               "cls.seq_relationship.bias");
}

/* A decoder that differs is used, even if config.json says that it is tied. */
TEST_ONCE(hf_decoder_counts_before_the_configuration)
{
    zf_error error = {ZF_OK, ""};
    bert_config c;
    gpt_config g;
    CHECK(t, bert_config_load(GOLDEN "bert", &c, &error));
    CHECK(t, gpt_config_load(GOLDEN "gpt", &g, &error) && g.ends[0] == 3);
    c.tied = 1, g.tied = 1;
    CHECK(t, session_config_take(&bert_sample, &c, GOLDEN "bert", &error) && !c.tied);
    CHECK(t, session_config_take(&gpt_sample, &g, GOLDEN "gpt", &error) && !g.tied);
    CHECK(t, bert_config_load(GOLDEN "bert-mlm", &c, &error));
    CHECK(t, session_config_take(&bert_sample, &c, GOLDEN "bert-mlm", &error) &&
                 c.tied); /* it is not there */
}

/* A file of that text; its path. */
static const char *file_of(const char *name, const char *text, size_t bytes)
{
    const char *path = test_path(name);
    FILE *file = fopen(path, "wb");
    if (file) fwrite(text, 1, bytes, file);
    if (file) fclose(file);
    return path;
}

/* Opens a file of so many tensors without elements, and finds each; the comparisons of names. */
static long comparisons_of(test *t, int count)
{
    const char *path = test_path("many.safetensors");
    zf_error error = {ZF_OK, ""};
    zf_safetensors_writer *writer = zf_safetensors_writer_new(path, NULL, &error);
    long before = test_comparisons();
    zf_weights *w;
    char name[24];
    int found = 0;
    if (!writer) return test_fail(t, __FILE__, __LINE__, "zf_safetensors_writer_new", error.text), 0;
    for (int i = 0; i < count; i++) {
        snprintf(name, sizeof name, "x%d", i);
        zf_safetensors_declare(writer, name, ZF_F32, ZF_SHAPE(0));
    }
    const zf_status status = zf_safetensors_finish(writer, &error);
    zf_safetensors_writer_free(writer);
    if (status) return test_fail(t, __FILE__, __LINE__, "zf_safetensors_finish", error.text), 0;
    w = zf_weights_open(path, &error);
    if (!w) return test_fail(t, __FILE__, __LINE__, "zf_weights_open", error.text), 0;
    for (int i = 0; i < count; i++) {
        const int32_t at = zf_weights_find(w, zf_weights_name(w, i));
        snprintf(name, sizeof name, "y%d", i);
        found += at == i && zf_weights_find(w, name) < 0;
    }
    zf_weights_close(w);
    return found == count ? test_comparisons() - before : 0;
}

/* Names are searched for in n log n comparisons: four times as many tensors are not 16 times as
 * many. */
TEST_ONCE(hf_weights_of_many_tensors)
{
    const long few = comparisons_of(t, 500), many = comparisons_of(t, 2000);
    CHECK(t, few > 500 && many < 6 * few);
}

TEST_ONCE(hf_weights_that_are_none)
{
    static const char index[] = "{\"weight_map\": {\"x\": \"../y.safetensors\"}}",
                      absent[] = "{\"weight_map\": {\"x\": \"there.safetensors\"}}";
    zf_error error = {ZF_OK, ""};
    const char *path = file_of("pytorch_model.bin", "PK\3\4 and so on", 14);
    char expected[900], folder[300];
    CHECK(t, !zf_weights_open(path, &error));
    snprintf(expected, sizeof expected,
             "%s is a pickle of PyTorch, which is a program and is not run here: in Python, "
             "from_pretrained(\"DIR\").save_pretrained(\"NEW\") writes a model.safetensors",
             path);
    CHECK_TEXT(t, error.text, expected);
    CHECK(t, !zf_weights_open(file_of("old.bin", "\x80\2}q", 4), &error));
    CHECK(t, strstr(error.text, "is a pickle of PyTorch"));
    snprintf(folder, sizeof folder, "%s", test_path("empty folder"));
    CHECK(t, !mkdir(folder, 0777) && !zf_weights_open(folder, &error));
    CHECK(t, strstr(error.text, " has no weights: neither model.safetensors nor "));
    CHECK(t, !zf_weights_open(file_of("away.json", index, sizeof index - 1), &error));
    CHECK(t, strstr(error.text, "x must be the name of a file in the folder of the index, not"));
    CHECK(t, !zf_weights_open(file_of("absent.json", absent, sizeof absent - 1), &error));
    CHECK(t, strstr(error.text, "there.safetensors: No such file"));
    snprintf(folder, sizeof folder, "%s", test_path("a pipe"));
    CHECK(t, !mkfifo(folder, 0666) && !zf_weights_open(folder, &error));
    CHECK(t, strstr(error.text, "it is not a regular file"));
}

/* A safetensors file of two tensors, of one value each: `value` and the next one. */
static const char *pair_of(const char *name, const char *first, const char *second, float value)
{
    char file[8 + 256 + 8] = {0, 1}; /* the length of the header is 256 */
    const float values[2] = {value, value + 1};
    const int n = snprintf(file + 8, 256,
                           "{\"%s\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                           "\"%s\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
                           first, second);
    memset(file + 8 + n, ' ', (size_t)(256 - n));
    memcpy(file + 8 + 256, values, sizeof values);
    return file_of(name, file, sizeof file);
}

/* All tensors of an index's files are read, wherever the index says that they are, and the report
 * says what the two do not have in common. */
TEST_ONCE(hf_index_that_lists_more_and_less)
{
    static const char index[] =
        "{\"weight_map\": {\"a\": \"1.safetensors\", \"b\": \"1.safetensors\","
        " \"gone\": \"2.safetensors\", \"c\": \"2.safetensors\"}}";
    static const zf_exchange exchange = {.words = "w", .head = "h"};
    zf_graph *g = zf_graph_new(NULL);
    zf_error error = {ZF_OK, ""};
    zf_weights_report report;
    zf_program *p;
    float y;
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    zf_output(zf_add(zf_param(g, "b", ZF_SHAPE(1), NULL), zf_param(g, "d", ZF_SHAPE(1), NULL)),
              "y");
    OK(t, zf_graph_status(g), zf_graph_error(g));
    p = zf_compile(g, NULL);
    CHECK_TEXT(t, zf_graph_error(g), "");
    test_defer(t, (test_cleanup *)zf_program_free, p);
    pair_of("1.safetensors", "a", "d", 1);
    pair_of("2.safetensors", "b", "c", 30);
    (void)zf_exchange_import(&exchange, p, g, file_of("both.json", index, sizeof index - 1),
                             &report, &error);
    CHECK_TEXT(t, error.text, "");
    OK(t, zf_step(p), zf_program_error(p));
    OK(t, zf_read(p, zf_graph_find(g, "y"), &y, sizeof y), zf_program_error(p));
    CHECK_NEAR(t, y, 32, 0);
    CHECK(t, report.absent == 1 && report.unlisted == 1 && report.unused == 2 && !report.fresh);
    CHECK_TEXT(t, report.absent_names, "gone");
    CHECK_TEXT(t, report.unlisted_names, "d");
}

/* A tensor that two files of an index have, and one that a file has under two names. */
TEST_ONCE(hf_weights_of_which_there_are_two)
{
    static const char index[] =
        "{\"weight_map\": {\"a\": \"1.safetensors\", \"b\": \"2.safetensors\"}}";
    zf_error error = {ZF_OK, ""};
    pair_of("1.safetensors", "a", "b", 1), pair_of("2.safetensors", "b", "c", 3);
    CHECK(t, !zf_weights_open(file_of("twice.json", index, sizeof index - 1), &error));
    CHECK(t, strstr(error.text, ".safetensors: there are two tensors b"));
    error = (zf_error){ZF_OK, ""};
    CHECK(t, !zf_weights_open(pair_of("1.safetensors", "a", "module.a", 1), &error));
    CHECK(t, strstr(error.text, "1.safetensors: there are two tensors a"));
}

/* A header of 640 bytes: the file begins with 0x80 2, as a pickle does. */
TEST_ONCE(hf_weights_that_look_like_a_pickle)
{
    static char file[8 + 640 + 4] = "\x80\2";
    static const char header[] = "{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}";
    zf_error error = {ZF_OK, ""};
    zf_weights *w;
    memset(file + 8, ' ', 640);
    memcpy(file + 8, header, sizeof header - 1);
    w = zf_weights_open(file_of("x.safetensors", file, sizeof file), &error);
    CHECK_TEXT(t, error.text, "");
    CHECK(t, w && zf_weights_find(w, "x") == 0);
    zf_weights_close(w);
}
