/* BERT's relatives, and models with labels, against transformers (tests/golden/encoders/make.py):
 * what they compute, twenty steps of fine-tuning, and their folders. */
#include "../support/golden.h"

#include "../../examples/bert/classify/texts.h"
#include "../../examples/bert/masked.h"
#include "../../examples/bert/model.h"
#include "../../examples/frame/commands/frame.h"
#include "../../examples/frame/options/command.h"

#define GOLDEN "tests/golden/encoders/"

enum { BATCH = 4, TOKENS = 12, STEPS = 20 };

static void close_session(void *s) { session_close(s); }
static void free_batches(void *f) { bert_batch_file_free(f); }

/* A tensor of values.safetensors, FOLDER.NAME, in memory of its own. */
static double *value_of(test *t, const char *folder, const char *name, int64_t *count)
{
    zf_safetensors *f = open_file(t, GOLDEN "values.safetensors");
    char whole[200];
    double *x;
    snprintf(whole, sizeof whole, "%s.%s", folder, name);
    x = f ? values_of(f, whole, count) : NULL;
    if (!x) test_fail(t, __FILE__, __LINE__, "a golden value is there", whole);
    return x;
}

static double number_of(test *t, const char *folder, const char *name)
{
    int64_t count;
    double *x = value_of(t, folder, name, &count), value = x ? *x : NAN;
    free(x);
    return value;
}

static bool open_folder(test *t, const char *folder, sample_purpose purpose, bert_config *config,
                        session *s, const bert_batch_file *f)
{
    char path[200];
    zf_error error = {ZF_OK, ""};
    zf_weights_report report = {.fresh = 0};
    session_desc d = {.sample = &bert_sample,
                      .purpose = purpose,
                      .config = config,
                      .shape = {.batch = BATCH,
                                .sequence = TOKENS,
                                .predictions = f->predictions ? f->predictions : 1},
                      .threads = 1,
                      .training = {.adamw = {.eps = 1e-3, .weight_decay = 0.01}}};
    bool good;
    snprintf(path, sizeof path, GOLDEN "%s", folder);
    good = session_config(&bert_sample, path, NULL, config, &error) && session_open(s, &d, &error);
    if (good) {
        test_defer(t, close_session, s);
        good = session_take(s, path, &report, &error) && !report.fresh && !report.unused;
    }
    if (!good)
        test_fail(t, __FILE__, __LINE__, folder,
                  error.status   ? error.text
                  : report.fresh ? report.fresh_names
                                 : report.unused_names);
    return good;
}

static const bert_batch_file *open_batch(test *t)
{
    zf_error error = {ZF_OK, ""};
    bert_batch_file *f = bert_batch_file_load(GOLDEN "batch.safetensors", 48, 1, &error);
    if (!f) test_fail(t, __FILE__, __LINE__, "the batch can be opened", error.text);
    else test_defer(t, free_batches, f);
    return f;
}

/* The ids, and of a model with labels what texts have. */
static void feed(test *t, session *s, const char *folder, const bert_config *c, const bert_batch *b)
{
    static const int32_t types[BATCH * TOKENS];
    const float each = 1.0f / BATCH, ones[BATCH] = {1, 1, 1, 1};
    float lr = 1e-3f, numbers[BATCH];
    int32_t labels[BATCH];
    int64_t count = 0;
    double *x;
    OK(t, session_write(s, "lr", &lr, sizeof lr), zf_program_error(s->program));
    if (!c->task) {
        OK(t, masked_feed(s, b, b->labelled, 1), zf_program_error(s->program));
        return;
    }
    OK(t, session_write(s, "input_ids", b->input_ids, sizeof types), zf_program_error(s->program));
    OK(t, session_write(s, "token_type_ids", types, sizeof types), zf_program_error(s->program));
    OK(t, session_write(s, "attention_mask", b->attention_mask, BATCH * TOKENS),
       zf_program_error(s->program));
    x = value_of(t, folder, "text_labels", &count);
    CHECK(t, x && count == BATCH);
    for (int k = 0; k < BATCH; k++) numbers[k] = (float)x[k], labels[k] = (int32_t)x[k];
    free(x);
    OK(t, session_write(s, "text_labels", c->task == BERT_REGRESSES ? (void *)numbers : labels,
                        sizeof labels),
       zf_program_error(s->program));
    OK(t, session_write(s, "text_weight", &each, sizeof each), zf_program_error(s->program));
    OK(t, session_write(s, "text_there", ones, sizeof ones), zf_program_error(s->program));
}

/* Logits of the labelled positions, or scores of texts. */
static void check_logits(test *t, const char *folder, const bert_batch_file *f)
{
    static session s; /* outlives what the test defers */
    static bert_config c;
    static float got[BATCH * TOKENS * 48];
    zf_tensor from;
    int64_t count = 0;
    double *golden, largest = 0;
    CHECK(t, open_folder(t, folder, SAMPLE_ANSWER, &c, &s, f));
    feed(t, &s, folder, &c, &f->batch[0]);
    OK(t, zf_step(s.program), zf_program_error(s.program));
    from = zf_graph_find(s.graph, c.task ? "scores" : "mlm_logits");
    OK(t, zf_read(s.program, from, got, zf_tensor_bytes(from)), zf_program_error(s.program));
    golden = value_of(t, folder, "logits", &count);
    CHECK(t, golden && count <= zf_shape_count(zf_tensor_shape(from)));
    for (int64_t i = 0; i < count; i++) largest = fmax(largest, fabs(golden[i]));
    for (int64_t i = 0; i < count; i++) CHECK_NEAR(t, got[i], golden[i], 1e-5 * largest);
    free(golden);
    session_close(&s);
}

/* The loss, the norm of gradients, the losses of twenty steps, and of models with labels a parameter
 * after them. */
static void check_steps(test *t, const char *folder, const bert_batch_file *f, const char *param)
{
    static session s; /* outlives what the test defers */
    static bert_config c;
    static float got[1024];
    char after[200];
    int64_t count = 0;
    double *losses, *golden, loss = number_of(t, folder, "loss"), norm = number_of(t, folder, "norm");
    CHECK(t, open_folder(t, folder, SAMPLE_TRAIN, &c, &s, f));
    feed(t, &s, folder, &c, &f->batch[0]);
    OK(t, zf_step(s.program), zf_program_error(s.program));
    CHECK_NEAR(t, session_scalar(&s, "loss"), loss, 1e-5 * loss);
    CHECK_NEAR(t, session_scalar(&s, "grad_norm"), norm, 1e-5 * norm);
    losses = value_of(t, folder, "losses", &count);
    CHECK(t, losses && count == STEPS);
    for (int k = 1; k < STEPS; k++) {
        OK(t, zf_step(s.program), zf_program_error(s.program));
        CHECK_NEAR(t, session_scalar(&s, "loss"), losses[k], 1e-6 * losses[0]);
    }
    free(losses);
    if (!c.task) return;
    snprintf(after, sizeof after, "after.%s", param);
    golden = value_of(t, folder, after, &count);
    CHECK(t, golden && count <= 1024);
    OK(t, zf_read(s.program, zf_graph_find(s.graph, param), got, (size_t)count * sizeof *got),
       zf_program_error(s.program));
    for (int64_t i = 0; i < count; i++) CHECK_NEAR(t, got[i], golden[i], 1e-5);
    free(golden);
}

static int export_bert(int argc, char **argv) { return export_command(&bert_sample, argc, argv); }

/* An exported folder has the configuration and the weights of the one that was read. */
static void check_export(test *t, const char *folder)
{
    const command commands[] = {{"export", "", export_bert}, {NULL, NULL, NULL}};
    char from[200], to[300], path[400];
    static bert_config golden, own;
    zf_error error = {ZF_OK, ""};
    zf_safetensors *a, *b;
    snprintf(from, sizeof from, GOLDEN "%s", folder);
    snprintf(to, sizeof to, "%s", test_path(folder));
    char *argv[] = {"bert", "export", "--load", from, to, NULL};
    CHECK(t, command_main(&(command_program){.name = "bert", .commands = commands}, 5, argv) ==
                 EXIT_GOOD);
    CHECK(t, bert_config_load(from, &golden, &error) && bert_config_load(to, &own, &error));
    CHECK(t, !memcmp(&golden, &own, sizeof own));
    snprintf(path, sizeof path, "%s/model.safetensors", from), a = open_file(t, path);
    snprintf(path, sizeof path, "%s/model.safetensors", to), b = open_file(t, path);
    CHECK(t, a && b && zf_safetensors_count(a) == zf_safetensors_count(b));
    for (int32_t i = 0; i < zf_safetensors_count(a); i++) {
        const char *name = zf_safetensors_at(a, i)->name;
        if (error_of(b, a, name) != 0) test_fail(t, __FILE__, __LINE__, "a tensor is exported", name);
    }
}

static void check_folder(test *t, const char *folder, const char *param)
{
    const bert_batch_file *f = open_batch(t);
    CHECK(t, f);
    check_logits(t, folder, f);
    check_steps(t, folder, f, param);
    check_export(t, folder);
}

TEST_ONCE(encoders_roberta_is_that_of_transformers) { check_folder(t, "roberta", NULL); }
TEST_ONCE(encoders_camembert_is_that_of_transformers) { check_folder(t, "camembert", NULL); }
TEST_ONCE(encoders_distilbert_is_that_of_transformers) { check_folder(t, "distilbert", NULL); }
TEST_ONCE(encoders_modernbert_is_that_of_transformers) { check_folder(t, "modernbert", NULL); }
TEST_ONCE(encoders_bert_classifies_as_transformers)
{
    check_folder(t, "bert-labels", "classifier.weight");
}
TEST_ONCE(encoders_bert_regresses_as_transformers)
{
    check_folder(t, "bert-number", "classifier.weight");
}
TEST_ONCE(encoders_roberta_classifies_as_transformers)
{
    check_folder(t, "roberta-labels", "classifier.out_proj.weight");
}
TEST_ONCE(encoders_distilbert_classifies_as_transformers)
{
    check_folder(t, "distilbert-labels", "classifier.weight");
}
TEST_ONCE(encoders_modernbert_regresses_as_transformers)
{
    check_folder(t, "modernbert-labels", "classifier.weight");
}

/* An adapter of PEFT, whose head gives a model that predicts words its labels. */
TEST_ONCE(encoders_take_labels_of_an_adapter)
{
    static session s; /* outlives what the test defers */
    static bert_config c;
    float got[BATCH * 3];
    const bert_batch_file *f = open_batch(t);
    session_desc d = {.sample = &bert_sample,
                      .purpose = SAMPLE_ANSWER,
                      .config = &c,
                      .shape = {.batch = BATCH, .sequence = TOKENS, .predictions = 1},
                      .threads = 1,
                      .adapter = GOLDEN "adapter"};
    zf_error error = {ZF_OK, ""};
    int64_t count = 0;
    double *golden;
    CHECK(t, f);
    if (!session_config(&bert_sample, GOLDEN "roberta", d.adapter, &c, &error) ||
        !session_open_folder(&s, GOLDEN "roberta", &d, 0, &error))
        OK(t, error.status, error.text);
    test_defer(t, close_session, &s);
    CHECK(t, c.task == BERT_CLASSIFIES && c.labels == 3);
    CHECK_TEXT(t, c.names, "LABEL_0\nLABEL_1\nLABEL_2\n");
    feed(t, &s, "roberta-labels", &c, &f->batch[0]);
    OK(t, zf_step(s.program), zf_program_error(s.program));
    OK(t, zf_read(s.program, zf_graph_find(s.graph, "scores"), got, sizeof got),
       zf_program_error(s.program));
    golden = value_of(t, "adapter", "logits", &count);
    CHECK(t, golden && count == BATCH * 3);
    for (int64_t i = 0; i < count; i++) CHECK_NEAR(t, got[i], golden[i], 1e-5);
    free(golden);
    CHECK(t, !session_config(&bert_sample, GOLDEN "distilbert-labels", d.adapter, &c, &error));
    CHECK_TEXT(t, error.text,
               GOLDEN "adapter is an adapter with a head of 3 labels, and the model has 2");
    error.status = ZF_OK;
    session_close(&s);
    CHECK(t, session_config(&bert_sample, GOLDEN "modernbert", d.adapter, &c, &error) &&
                 !session_open_folder(&s, GOLDEN "modernbert", &d, 0, &error) &&
                 strstr(error.text, "adapter is an adapter of another model: zf_lora: keep has"));
}

/* 1 and 01 are labels of their own, each once. */
TEST_ONCE(encoders_name_each_label_once)
{
    static bert_config c;
    char *said[] = {"1", "01", "1", "01", "-2", "1"};
    texts of = {.said = said, .count = 6};
    zf_error error = {ZF_OK, ""};
    const bool good = texts_take_labels(&of, &c, false, "x", &error);
    const int32_t first = good ? of.label[0] : -1, second = good ? of.label[1] : -1;
    free(of.label), free(of.number);
    OK(t, error.status, error.text);
    CHECK_TEXT(t, c.names, "-2\n01\n1\n");
    CHECK(t, c.labels == 3 && first == 2 && second == 1);
}

/* A ModernBERT's ids of special tokens, of which the file has some, and one is null. */
TEST_ONCE(encoders_modernbert_keeps_special_ids)
{
    static bert_config c;
    const char *path = test_path("modernbert-ids.json");
    zf_error error = {ZF_OK, ""};
    zf_json_writer *w;
    zf_json *json;
    FILE *f = fopen(path, "w");
    int64_t id = -2;
    CHECK(t, f);
    fputs("{\"model_type\": \"modernbert\", \"architectures\": [\"ModernBertForMaskedLM\"], "
          "\"vocab_size\": 99, \"hidden_size\": 12, \"num_hidden_layers\": 2, "
          "\"num_attention_heads\": 2, \"intermediate_size\": 8, \"pad_token_id\": 3, "
          "\"bos_token_id\": 7, \"cls_token_id\": null, \"sep_token_id\": 9}",
          f);
    fclose(f);
    if (!bert_config_load(path, &c, &error)) OK(t, error.status, error.text);
    w = zf_config_json(&bert_config_table, &c);
    test_defer(t, (test_cleanup *)zf_json_writer_free, w);
    json = zf_json_parse(zf_json_text(w, NULL, &error), strlen(zf_json_text(w, NULL, &error)), NULL,
                         &error);
    NEED(t, json, &error);
    test_defer(t, (test_cleanup *)zf_json_free, json);
    zf_json_to_int(zf_json_member(json, "bos_token_id"), 0, 99999, &id, &error);
    CHECK(t, id == 7);
    zf_json_to_int(zf_json_member(json, "sep_token_id"), 0, 99999, &id, &error);
    CHECK(t, id == 9);
    zf_json_to_int(zf_json_member(json, "eos_token_id"), 0, 99999, &id, &error);
    CHECK(t, id == 50282 && !error.status);
    CHECK(t, zf_json_type_of(zf_json_member(json, "cls_token_id")) == ZF_JSON_NULL);
}

/* ----------------------------------------------------------------------------- what is refused */

/* The folder's config.json with one text in the place of another makes this error. */
static void refuse(test *t, const char *folder, const char *is, const char *not, const char *error)
{
    static char text[8000], path[300];
    static bert_config c;
    zf_error got = {ZF_OK, ""};
    FILE *f;
    char *at;
    size_t bytes;
    snprintf(path, sizeof path, GOLDEN "%s/config.json", folder);
    f = fopen(path, "r");
    bytes = f ? fread(text, 1, sizeof text - 1, f) : 0, text[bytes] = 0;
    if (f) fclose(f);
    at = strstr(text, is);
    CHECK(t, at);
    snprintf(path, sizeof path, "%s", test_path("config.json"));
    f = fopen(path, "w");
    CHECK(t, f);
    fprintf(f, "%.*s%s%s", (int)(at - text), text, not, at + strlen(is));
    fclose(f);
    if (bert_config_load(path, &c, &got) || !strstr(got.text, error))
        test_fail(t, __FILE__, __LINE__, error, got.text);
}

TEST_ONCE(encoders_refuse_what_they_do_not_compute)
{
    static char names[9000];
    refuse(t, "roberta", "\"pad_token_id\": 1", "\"pad_token_id\": null",
           "is null; the positions of this family begin after it");
    refuse(t, "roberta", "\"pad_token_id\": 1", "\"pad_token_id\": 20",
           "must be more than pad_token_id + 1 (21)");
    refuse(t, "roberta", "\"vocab_size\"", "\"zeroflow_pre_layer_norm\": true, \"vocab_size\"",
           "must be false in this family");
    refuse(t, "roberta", "\"vocab_size\"",
           "\"zeroflow_experts\": 4, \"zeroflow_experts_per_token\": 2, \"vocab_size\"",
           "zeroflow_experts is for a BERT of at most 256 layers, with an intermediate size that is a "
           "multiple of the experts of a token, at least one and at most all");
    refuse(t, "modernbert", "\"sliding_attention\",", "",
           "must be a list of num_hidden_layers (4)");
    refuse(t, "modernbert", "\"sliding_attention\",", "\"chunked_attention\",",
           "must be full_attention or sliding_attention");
    refuse(t, "modernbert", "\"rope_type\": \"default\"",
           "\"rope_type\": \"linear\", \"factor\": 2.0", "is scaled, which is not read");
    refuse(t, "modernbert", "\"classifier_pooling\": \"cls\"", "\"classifier_pooling\": \"max\"",
           "must be cls or mean");
    refuse(t, "modernbert", "\"num_hidden_layers\": 4", "\"num_hidden_layers\": 257",
           "must be at most 256 in this family");
    refuse(t, "roberta-labels", "gut \\u00e9", "a\\nb", "must be a name without a line break");
    refuse(t, "roberta-labels", "\"2\":", "\"3\":", "\"2\"");
    refuse(t, "bert-number", "\"0\": \"LABEL_0\"", "", "must be one label or more");
    refuse(t, "bert-number", "\"0\": \"LABEL_0\"", "\"0\": \"a\", \"1\": \"b\"",
           "is regression with 2 labels; a text has one number");
    refuse(t, "bert-number", "\"regression\"", "\"multi_label_classification\"",
           "must be single_label_classification or regression; several labels of a text are not read");
    refuse(t, "bert-number", "\"regression\"", "\"single_label_classification\"",
           "is single_label_classification with one label, which every text would have; "
           "regression is with one");
    memset(names, 'a', sizeof names - 1);
    refuse(t, "roberta-labels", "gut \\u00e9", names, "has names of more than 8191 bytes");
}

/* A file of these bytes, with labels, makes this error. */
static void refuse_texts(test *t, const char *name, const char *bytes, size_t count,
                         const char *error)
{
    static texts of;
    zf_error got = {ZF_OK, ""};
    const char *path = test_path(name);
    zf_wordpiece *words = zf_wordpiece_open("docs/data/vocab.txt", NULL, &got);
    const zf_examples_desc e = {.words = words, .end = -1, .vocab = 1 << 16, .sequence = 16};
    const texts_desc d = {.examples = &e, .text = "text", .label = "label"};
    FILE *f = fopen(path, "wb");
    CHECK(t, f && words);
    fwrite(bytes, 1, count, f), fclose(f);
    if (texts_load(&of, path, &d, &got)) texts_free(&of);
    if (!strstr(got.text, error)) test_fail(t, __FILE__, __LINE__, error, got.text);
    zf_wordpiece_free(words);
}

#define REFUSE_TEXTS(t, name, text, error) refuse_texts(t, name, text, sizeof(text) - 1, error)

TEST_ONCE(encoders_refuse_texts_with_nul_bytes)
{
    REFUSE_TEXTS(t, "nul.csv", "text,label\nthe owl,a\nthe \0cat,b\n",
                 "line 3: a NUL byte, so this is no text");
    REFUSE_TEXTS(t, "nul.tsv", "text\tlabel\nthe owl\ta\0\n", "line 2: a NUL byte");
    REFUSE_TEXTS(t, "nul.jsonl", "{\"text\": \"the owl\", \"label\": \"a\\u0000b\"}\n",
                 "\"label\" has a NUL character");
}
