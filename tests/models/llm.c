/* Llama and its relatives, and OPT, against transformers (tests/golden/llm/make.py and
 * tests/golden/opt/make.py say how the folders are made), and their configurations. */
#include "generated.h"
#include "../support/golden.h"
#include "../support/numbers.h"

#include "../../examples/frame/data/causal_batch.h"
#include "../../examples/frame/options/command.h"
#include "../../examples/frame/model/decoder.h"
#include "../../examples/frame/commands/frame.h"
#include "../../examples/llm/model.h"
#include "../../examples/llm/options.h"
#include "../../examples/opt/model.h"

#include <pthread.h>

#define GOLDEN "tests/golden/llm/"

enum { VOCAB = 37, BATCH = 2, TOKENS = 11 };

static const struct {
    const char *name;
    bool masked, shards;
} cases[] = {
    {"llama2", false, false},
    {"llama3", true, false},
    {"linear", false, false},
    {"mistral", true, false},
    {"qwen2", false, true},
    {"qwen3", false, false},
    /* Layers with a window between others: a Qwen3, and a Ministral. */
    {"alternating", false, false},
    {"ministral", true, false},
    /* OPT with norms before, and with norms after and a narrow word embedding. */
    {"../opt/before", true, false},
    {"../opt/after", false, false},
    /* Rope scaled by yarn: a Qwen2, and a Llama with more of its members. */
    {"yarn", true, false},
    {"yarn3", false, false},
    {"gemma3", false, false},
    /* Numbers that multiply; norms that come after; layers without rope, of which one has a
              * window; joined products, and heads of which a part is rotated. */
    {"granite", true, false},
    {"olmo2", false, false},
    {"smollm3", true, false},
    {"phi3", false, false},
             /* Capped scores and logits. */
             {"gemma2", true, false},
    /* Longrope: by the long factors, of a part of each head; and by the short ones. */
    {"longrope", false, false},
    {"shortrope", true, false},
    /* Layer norms, and an MLP of two products. */
    {"starcoder2", true, false},
    /* q, k and v of each head in one product; attention and MLP of the same x, or not. */
    {"neox", false, false},
    {"pythia", true, false},
    /* q, k and v by groups of heads: with two norms, with one, and one part after the other. */
    {"falcon40b", false, false},
    {"falcon7b", true, false},
    {"falconrow", false, false},
    /* Experts: of all layers; with a shared one, but of one layer; of one layer; all are chosen. */
    {"mixtral", true, false},
    {"qwen2moe", false, false},
    {"qwen3moe", true, false},
    {"olmoe", false, false},
    /* ALiBi: of six heads, which are no power of two; and of four, in a file with a prefix. */
    {"bloom6", false, false},
    {"bloom4", true, false},
    {"falconalibi", true, false},
    {"mpt6", false, false},
    {"mpt4", true, false},
    /* The text parts of models of several: of a Gemma 3; of a Qwen2.5-VL, which is a Qwen2, with
     * and without text_config. */
    {"gemma3parts", false, false},
    {"qwen25vl", false, false},
    {"qwen25vlflat", false, false},
};
enum { CASES = sizeof cases / sizeof cases[0], PARTS = 3 };

static void close_session(void *s) { session_close(s); }
static void free_batches(void *f) { causal_batch_file_free(f); }

static const sample_model *sample_of(int k) 
{
    return strncmp(cases[k].name, "../opt/", 7) ? &llm_sample : &opt_sample;
}

static const char *folder_of(int k)
{
    static _Thread_local char path[100];
    snprintf(path, sizeof path, GOLDEN "%s", cases[k].name);
    return path;
}

static zf_safetensors *open_expected(test *t, int k)
{
    char path[140];
    snprintf(path, sizeof path, "%s/expected.safetensors", folder_of(k));
    return open_file(t, path);
}

/* A session with a case's weights, and its batch. */
static bool open_case(test *t, int k, session *s, causal_batch_file *f, session_desc *d)
{
    static zf_config_any config;
    zf_error error = {ZF_OK, ""};
    zf_weights_report report;
    bool good = session_config(sample_of(k), folder_of(k), NULL, &config, &error) &&
                causal_batch_file_load(f, cases[k].masked ? GOLDEN "batch-masked.safetensors"
                                                          : GOLDEN "batch.safetensors",
                                       VOCAB, &error);
    if (good) test_defer(t, free_batches, f);
    d->sample = sample_of(k), d->config = &config, d->threads = 1;
    d->shape = (sample_shape){.batch = BATCH, .sequence = TOKENS, .rows = cases[k].masked};
    good = good && session_open(s, d, &error);
    if (good) {
        test_defer(t, close_session, s);
        good = session_take(s, folder_of(k), &report, &error) && !report.fresh && !report.unused;
    }
    if (!good) test_fail(t, __FILE__, __LINE__, cases[k].name, error.text);
    return good;
}

/* The gradient of a bias of keys adds the same number to all scores of a query: rounding
 * remains. */
static bool is_zero(zf_safetensors *own, const char *name)
{
    int64_t count = 0;
    double *x = strstr(name, "k_proj.bias") ? values_of(own, name, &count) : NULL;
    const bool is = x && square_sum(x, count) < 1e-12;
    free(x);
    return is;
}

/* The loss, and the gradient of every parameter. */
static void check_gradients(test *t, int k, const char *no_fuse)
{
    static session s; /* outlive what the test defers */
    static causal_batch_file f;
    const char *path = test_path("llm-gradients.safetensors");
    session_desc d = {.purpose = SAMPLE_TRAIN, 
                      .training = {.keep_gradients = true, .fuse.without = no_fuse}};
    zf_safetensors *golden = open_expected(t, k), *own;
    zf_error error = {ZF_OK, ""};
    int64_t count;
    double *value;
    float lr = 0;
    CHECK(t, golden && open_case(t, k, &s, &f, &d));
    OK(t, session_feed(&s, &f.batch[0], false), zf_program_error(s.program));
    OK(t, zf_write(s.program, s.lr, &lr, sizeof lr), zf_program_error(s.program));
    OK(t, zf_step(s.program), zf_program_error(s.program));
    value = values_of(golden, "loss", &count);
    CHECK(t, value);
    lr = (float)*value;
    free(value);
    CHECK_NEAR(t, session_scalar(&s, "loss"), lr, 1e-5 * lr);
    CHECK(t,
          zf_exchange_export(sample_of(k)->exchange(), s.program, s.graph, path, true, ZF_F32, &error));
    own = open_file(t, path);
    CHECK(t, own && zf_safetensors_count(own) == zf_param_count(s.graph));
    CHECK(t, zf_safetensors_count(golden) == zf_param_count(s.graph) + 2); /* loss and logits */
    for (int32_t i = 0; i < zf_param_count(s.graph); i++) {
        const char *name = zf_tensor_name(zf_param_at(s.graph, i));
        double off = error_of(own, golden, name);
        char text[200];
        if (off <= 1e-10 || is_zero(own, name)) continue;
        snprintf(text, sizeof text, "%s: %s is off by %g", cases[k].name, name, off);
        test_fail(t, __FILE__, __LINE__, "a gradient is that of transformers", text);
    }
    session_close(&s); /* the next one may have these places */
    causal_batch_file_free(&f);
}

/* The logits after each token. */
static void check_logits(test *t, int k)
{
    static session s; /* outlive what the test defers */
    static causal_batch_file f;
    session_desc d = {.purpose = SAMPLE_ANSWER};
    zf_safetensors *golden = open_expected(t, k);
    int64_t count;
    double *value, most = 0;
    CHECK(t, golden && open_case(t, k, &s, &f, &d));
    value = values_of(golden, "logits", &count);
    CHECK(t, value);
    test_defer(t, free, value);
    CHECK(t, count == BATCH * TOKENS * VOCAB);
    for (int64_t i = 0; i < count; i++) most = fmax(most, fabs(value[i]));
    for (int32_t at = 0; at < TOKENS; at++) {
        const int32_t last[BATCH] = {at, TOKENS + at};
        float out[BATCH][VOCAB];
        double off = 0;
        OK(t, session_write(&s, "input_ids", f.batch[0].ids, BATCH * TOKENS * sizeof(int32_t)),
           zf_program_error(s.program));
        OK(t, session_write(&s, "last", last, sizeof last), zf_program_error(s.program));
        OK(t, zf_step(s.program), zf_program_error(s.program));
        OK(t, zf_read(s.program, zf_graph_find(s.graph, "logits"), out, sizeof out),
           zf_program_error(s.program));
        for (int b = 0; b < BATCH; b++)
            for (int v = 0; v < VOCAB; v++)
                off = fmax(off, fabs(out[b][v] - value[(b * TOKENS + at) * VOCAB + v]));
        CHECK_NEAR(t, off, 0, 1e-5 * most);
    }
}

static void check_case(test *t, int k, const char *no_fuse)
{
    check_gradients(t, k, no_fuse);
    if (!cases[k].masked) check_logits(t, k);
}

TEST_ONCE(llm_llama2_is_that_of_transformers) { check_case(t, 0, NULL); }
TEST_ONCE(llm_llama3_is_that_of_transformers) { check_case(t, 1, NULL); }
TEST_ONCE(llm_llama3_without_fusion) { check_case(t, 1, "all"); }
TEST_ONCE(llm_linear_is_that_of_transformers) { check_case(t, 2, NULL); }
TEST_ONCE(llm_mistral_is_that_of_transformers) { check_case(t, 3, NULL); }
TEST_ONCE(llm_qwen2_is_that_of_transformers) { check_case(t, 4, NULL); }
TEST_ONCE(llm_qwen2_without_fusion) { check_case(t, 4, "all"); }
TEST_ONCE(llm_qwen3_is_that_of_transformers) { check_case(t, 5, NULL); }
TEST_ONCE(llm_alternating_is_that_of_transformers) { check_case(t, 6, NULL); }
TEST_ONCE(llm_ministral_is_that_of_transformers) { check_case(t, 7, NULL); }
TEST_ONCE(opt_with_norms_before_is_that_of_transformers) { check_case(t, 8, NULL); }
TEST_ONCE(opt_with_norms_after_is_that_of_transformers) { check_case(t, 9, NULL); }
TEST_ONCE(llm_yarn_is_that_of_transformers) { check_case(t, 10, NULL); }
TEST_ONCE(llm_yarn_of_more_members_is_that_of_transformers) { check_case(t, 11, NULL); }
TEST_ONCE(llm_gemma3_is_that_of_transformers) { check_case(t, 12, NULL); }
TEST_ONCE(llm_gemma3_without_fusion) { check_case(t, 12, "all"); }
TEST_ONCE(opt_without_fusion) { check_case(t, 9, "all"); }

/* -------------------------------------------------------------------------------- generation */

static void close_decoder(void *d) { decoder_close(d); }

/* The most likely tokens of a case, a prompt in pieces of `chunk` tokens. */
static void check_case_generated(test *t, int k, int64_t chunk, double penalty)
{
    const bool is_opt = sample_of(k) == &opt_sample;
    check_generated(t, &(generated_case){.sample = sample_of(k),
                                         .folder = folder_of(k),
                                         .file = is_opt ? GOLDEN "../opt/generated.safetensors"
                                                        : GOLDEN "generated.safetensors",
                                         .name = is_opt ? strrchr(cases[k].name, '/') + 1
                                                        : cases[k].name,
                                         .chunk = chunk,
                                         .penalty = penalty});
}

TEST_ONCE(llm_llama2_generates_as_transformers) { check_case_generated(t, 0, 0, 1); }
TEST_ONCE(llm_llama3_generates_as_transformers) { check_case_generated(t, 1, 4, 1.2); }
TEST_ONCE(llm_linear_generates_as_transformers) { check_case_generated(t, 2, 2, 1.3); }
TEST_ONCE(llm_mistral_generates_as_transformers) { check_case_generated(t, 3, 7, 1); }
TEST_ONCE(llm_qwen2_generates_as_transformers) { check_case_generated(t, 4, 0, 1.3); }
TEST_ONCE(llm_qwen3_generates_as_transformers) { check_case_generated(t, 5, 1, 1.4); }
TEST_ONCE(llm_alternating_generates_as_transformers) { check_case_generated(t, 6, 5, 1.2); }
TEST_ONCE(llm_ministral_generates_as_transformers) { check_case_generated(t, 7, 9, 1.3); }
TEST_ONCE(opt_with_norms_before_generates_as_transformers) { check_case_generated(t, 8, 3, 3); }
TEST_ONCE(opt_with_norms_after_generates_as_transformers) { check_case_generated(t, 9, 0, 2.5); }
TEST_ONCE(llm_granite_is_that_of_transformers) { check_case(t, 13, NULL); }
TEST_ONCE(llm_granite_without_fusion) { check_case(t, 13, "all"); }
TEST_ONCE(llm_olmo2_is_that_of_transformers) { check_case(t, 14, NULL); }
TEST_ONCE(llm_olmo2_without_fusion) { check_case(t, 14, "all"); }
TEST_ONCE(llm_smollm3_is_that_of_transformers) { check_case(t, 15, NULL); }
TEST_ONCE(llm_smollm3_without_fusion) { check_case(t, 15, "all"); }
TEST_ONCE(llm_phi3_is_that_of_transformers) { check_case(t, 16, NULL); }
TEST_ONCE(llm_phi3_without_fusion) { check_case(t, 16, "all"); }
TEST_ONCE(llm_granite_generates_as_transformers) { check_case_generated(t, 13, 5, 1.3); }
TEST_ONCE(llm_olmo2_generates_as_transformers) { check_case_generated(t, 14, 5, 1.3); }
TEST_ONCE(llm_smollm3_generates_as_transformers) { check_case_generated(t, 15, 5, 1.3); }
TEST_ONCE(llm_phi3_generates_as_transformers) { check_case_generated(t, 16, 5, 1.3); }

TEST_ONCE(llm_text_part_of_gemma3_is_that_of_transformers) { check_case(t, CASES - 3, NULL); }
TEST_ONCE(llm_text_part_of_qwen25vl_is_that_of_transformers) { check_case(t, CASES - 2, NULL); }
TEST_ONCE(llm_older_qwen25vl_is_that_of_transformers) { check_case(t, CASES - 1, NULL); }
TEST_ONCE(llm_gemma2_is_that_of_transformers) { check_case(t, 17, NULL); }
TEST_ONCE(llm_gemma2_without_fusion) { check_case(t, 17, "all"); }
TEST_ONCE(llm_gemma2_generates_as_transformers) { check_case_generated(t, 17, 5, 1.3); }

TEST_ONCE(llm_longrope_is_that_of_transformers) { check_case(t, 18, NULL); }
TEST_ONCE(llm_longrope_without_fusion) { check_case(t, 18, "all"); }
TEST_ONCE(llm_longrope_generates_as_transformers) { check_case_generated(t, 18, 5, 1.3); }
TEST_ONCE(llm_short_factors_are_those_of_transformers) { check_case(t, 19, NULL); }
TEST_ONCE(llm_short_factors_generate_as_transformers) { check_case_generated(t, 19, 3, 1.3); }

TEST_ONCE(llm_starcoder2_is_that_of_transformers) { check_case(t, 20, NULL); }
TEST_ONCE(llm_starcoder2_without_fusion) { check_case(t, 20, "all"); }
TEST_ONCE(llm_starcoder2_generates_as_transformers) { check_case_generated(t, 20, 4, 2); }

TEST_ONCE(llm_mixtral_is_that_of_transformers) { check_case(t, 26, NULL); }
TEST_ONCE(llm_mixtral_without_fusion) { check_case(t, 26, "all"); }
TEST_ONCE(llm_mixtral_generates_as_transformers) { check_case_generated(t, 26, 4, 1.3); }
TEST_ONCE(llm_qwen2_moe_is_that_of_transformers) { check_case(t, 27, NULL); }
TEST_ONCE(llm_qwen2_moe_generates_as_transformers) { check_case_generated(t, 27, 5, 2); }
TEST_ONCE(llm_qwen3_moe_is_that_of_transformers) { check_case(t, 28, NULL); }
TEST_ONCE(llm_qwen3_moe_generates_as_transformers) { check_case_generated(t, 28, 3, 1.3); }
TEST_ONCE(llm_olmoe_is_that_of_transformers) { check_case(t, 29, NULL); }
TEST_ONCE(llm_olmoe_generates_as_transformers) { check_case_generated(t, 29, 4, 1.3); }

/* The graph of a case with the outputs loss, logits and, where the configuration has an auxiliary
 * loss, penalty, of f64 in place of f32. */
static zf_graph *wide_graph(const zf_causal_config *c, bool masked)
{
    zf_graph *g = zf_graph_new(NULL), *wide = NULL;
    const zf_shape rows = ZF_SHAPE(BATCH, TOKENS);
    zf_causal_inputs in = {.trains = true, .penalized = true};
    zf_causal_outputs out;
    zf_error error = {ZF_OK, ""};
    size_t size;
    char *text, *in_f64 = NULL;
    if (!g) return NULL;
    in.input_ids = zf_input(g, "input_ids", ZF_I32, rows);
    if (masked) in.attention_mask = zf_input(g, "attention_mask", ZF_U8, rows);
    zf_input(g, "lr", ZF_F32, ZF_SCALAR);
    out = zf_causal_body(c, &in);
    if (zf_valid(out.penalty)) zf_output(out.penalty, "penalty");
    zf_output(zf_causal_logits(out.x, out.words, c->last_cap), "logits");
    zf_output(zf_causal_loss(&out, zf_input(g, "labels", ZF_I32, rows),
                             zf_input(g, "loss_weight", ZF_F32, ZF_SCALAR), c->last_cap),
              "loss");
    size = zf_graph_text(g, NULL, 0) + 1;
    if ((text = malloc(size))) zf_graph_text(g, text, size), in_f64 = text_in_f64(text);
    if (in_f64) wide = zf_graph_parse(in_f64, strlen(in_f64), NULL, &error);
    if (!wide) fprintf(stderr, "%s%s\n", zf_graph_error(g), error.text);
    free(text), free(in_f64);
    zf_graph_free(g);
    return wide;
}

/* Runs it on the case's weights and batch; NULL with a message: it cannot. */
static zf_program *wide_program(int k, zf_graph *g, zf_error *error)
{
    const double lr = 0;
    double weight;
    causal_batch_file f = {.entries = 0};
    zf_weights_report report;
    zf_program *p = zf_compile(g, NULL);
    zf_status status = p ? ZF_OK : ZF_ERR_ARGUMENT;
    if (!p) return snprintf(error->text, sizeof error->text, "%s", zf_graph_error(g)), NULL;
    if (!zf_exchange_import(llm_sample.exchange(), p, g, folder_of(k), &report, error) ||
        !causal_batch_file_load(&f, cases[k].masked ? GOLDEN "batch-masked.safetensors"
                                                    : GOLDEN "batch.safetensors",
                                VOCAB, error))
        return zf_program_free(p), NULL;
    weight = 1.0 / (double)f.batch[0].labelled;
    status = zf_write(p, zf_graph_find(g, "input_ids"), f.batch[0].ids, BATCH * TOKENS * 4);
    if (!status)
        status = zf_write(p, zf_graph_find(g, "labels"), f.batch[0].labels, BATCH * TOKENS * 4);
    if (!status && cases[k].masked)
        status = zf_write(p, zf_graph_find(g, "attention_mask"), f.batch[0].mask, BATCH * TOKENS);
    if (!status) status = zf_write(p, zf_graph_find(g, "loss_weight"), &weight, sizeof weight);
    if (!status && zf_valid(zf_graph_find(g, "lr")))
        status = zf_write(p, zf_graph_find(g, "lr"), &lr, sizeof lr);
    if (!status) status = zf_step(p);
    if (status) snprintf(error->text, sizeof error->text, "%s", zf_program_error(p));
    causal_batch_file_free(&f);
    if (!status) return p;
    zf_program_free(p);
    return NULL;
}

/* An output is what the golden file has, within 1e-11 of its largest number. */
static void check_output(test *t, zf_program *p, zf_graph *g, const char *output,
                         zf_safetensors *golden, const char *name)
{
    int64_t count = 0;
    double *want = values_of(golden, name, &count), *got = malloc((size_t)count * sizeof *got),
           off = 0, most = 0;
    if (want && got && !zf_read(p, zf_graph_find(g, output), got, (size_t)count * sizeof *got))
        for (int64_t i = 0; i < count; i++)
            off = fmax(off, fabs(got[i] - want[i])), most = fmax(most, fabs(want[i]));
    free(want), free(got);
    if (!(most > 0)) test_fail(t, __FILE__, __LINE__, name, "there is none");
    CHECK_NEAR(t, off, 0, 1e-11 * most);
}

/* In f64: logits, loss and gradients, and the auxiliary loss over all layers and of each. */
static void check_wide(test *t, int k)
{
    const char *path = test_path("llm-wide.safetensors");
    char file[140];
    zf_safetensors *golden, *own;
    zf_error error = {ZF_OK, ""};
    zf_causal_config c;
    snprintf(file, sizeof file, "%s/wide.safetensors", folder_of(k));
    golden = open_file(t, file);
    CHECK(t, golden && llm_config_load(folder_of(k), &c, &error));
    for (int form = 0; form < 3 && !t->failed; form++) {
        zf_graph *g;
        zf_program *p = NULL;
        c.of.aux_loss = form > 0, c.of.by_layer = form == 2;
        g = wide_graph(&c, cases[k].masked);
        if (g && !form)
            zf_passes(g, &(zf_training){.loss = zf_graph_find(g, "loss"),
                                        .lr = zf_graph_find(g, "lr"),
                                        .optimizer = ZF_SGD,
                                        .keep_gradients = true});
        if (g) p = wide_program(k, g, &error);
        if (!p) test_fail(t, __FILE__, __LINE__, cases[k].name, error.text);
        else if (form) check_output(t, p, g, "penalty", golden, form == 1 ? "pooled" : "layers");
        else {
            check_output(t, p, g, "loss", golden, "loss");
            check_output(t, p, g, "logits", golden, "logits");
            if (!zf_exchange_export(llm_sample.exchange(), p, g, path, true, ZF_F64, &error))
                test_fail(t, __FILE__, __LINE__, cases[k].name, error.text);
            own = open_file(t, path);
            CHECK(t, own && zf_safetensors_count(own) + 4 == zf_safetensors_count(golden));
            for (int32_t i = 0; i < zf_safetensors_count(own); i++) {
                const char *name = zf_safetensors_at(own, i)->name;
                if (error_of(own, golden, name) <= 1e-22 || is_zero(golden, name)) continue;
                test_fail(t, __FILE__, __LINE__, "a gradient is that of transformers", name);
            }
        }
        zf_program_free(p);
        zf_graph_free(g);
    }
}

TEST_ONCE(llm_experts_in_f64_are_those_of_transformers)
{
    for (int k = 26; k < 30 && !t->failed; k++) check_wide(t, k);
}

/* The auxiliary loss of transformers, and what it adds to the gradients of routers. */
static void check_balanced(test *t, int k)
{
    static session s; /* outlive what the test defers */
    static causal_batch_file f;
    const char *path = test_path("llm-balanced.safetensors");
    char balanced[140];
    session_desc d = {.purpose = SAMPLE_TRAIN, .training = {.keep_gradients = true}};
    zf_safetensors *golden = open_expected(t, k), *more, *own;
    zf_error error = {ZF_OK, ""};
    zf_config_any config;
    zf_weights_report report;
    int64_t count;
    double *loss, *aux;
    const float lr = 0;
    int32_t seen = 0;
    snprintf(balanced, sizeof balanced, "%s/balanced.safetensors", folder_of(k));
    more = open_file(t, balanced);
    CHECK(t, golden && more);
    CHECK(t, session_config(sample_of(k), folder_of(k), NULL, &config, &error));
    ((zf_causal_config *)(void *)&config)->of.aux_loss = 0.5;
    CHECK(t, causal_batch_file_load(&f, GOLDEN "batch-masked.safetensors", VOCAB, &error));
    test_defer(t, free_batches, &f);
    d.sample = sample_of(k), d.config = &config, d.threads = 1;
    d.shape = (sample_shape){.batch = BATCH, .sequence = TOKENS, .rows = SAMPLE_PADDED};
    if (!session_open(&s, &d, &error)) goto failed;
    test_defer(t, close_session, &s);
    if (!session_take(&s, folder_of(k), &report, &error)) goto failed;
    OK(t, session_feed(&s, &f.batch[0], false), zf_program_error(s.program));
    OK(t, zf_write(s.program, s.lr, &lr, sizeof lr), zf_program_error(s.program));
    OK(t, zf_step(s.program), zf_program_error(s.program));
    loss = values_of(golden, "loss", &count), aux = values_of(more, "aux_loss", &count);
    CHECK(t, loss && aux);
    CHECK_NEAR(t, session_scalar(&s, "loss"), *loss + 0.5 * *aux, 1e-5);
    free(loss), free(aux);
    if (!zf_exchange_export(llm_sample.exchange(), s.program, s.graph, path, true, ZF_F32, &error))
        goto failed;
    own = open_file(t, path);
    for (int32_t i = 0; i < zf_safetensors_count(more) && own; i++) {
        const char *name = zf_safetensors_at(more, i)->name;
        double *x, *y, *z, off = 0, most = 0;
        if (!strcmp(name, "aux_loss")) continue;
        x = values_of(own, name, &count), y = values_of(golden, name, &count);
        z = values_of(more, name, &count);
        CHECK(t, x && y && z);
        for (int64_t e = 0; e < count; e++)
            off = fmax(off, fabs(x[e] - y[e] - z[e])), most = fmax(most, fabs(z[e]));
        free(x), free(y), free(z);
        CHECK_NEAR(t, off, 0, 1e-4 * most);
        seen++;
    }
    CHECK(t, seen > 0);
    return;
failed:
    (void)test_unwind(t, __FILE__, __LINE__, folder_of(k), error.status, error.text);
}

TEST_ONCE(llm_mixtral_is_balanced_as_by_transformers) { check_balanced(t, 26); }
TEST_ONCE(llm_qwen3_moe_is_balanced_as_by_transformers) { check_balanced(t, 28); }

/* 20 steps of AdamW over one batch have the losses of transformers. most: of the first loss. */
static void check_trained(test *t, int k, double most)
{
    static session s; /* outlive what the test defers */
    static causal_batch_file f;
    session_desc d = {.purpose = SAMPLE_TRAIN, .training = {.adamw.eps = 1e-3}};
    char path[140];
    const float lr = 0.01f;
    zf_safetensors *golden;
    int64_t count = 0;
    double *losses;
    snprintf(path, sizeof path, "%s/trained.safetensors", folder_of(k));
    golden = open_file(t, path);
    CHECK(t, golden && open_case(t, k, &s, &f, &d));
    losses = values_of(golden, "losses", &count);
    CHECK(t, losses && count == 20);
    test_defer(t, free, losses);
    for (int step = 0; step < 20; step++) {
        OK(t, session_feed(&s, &f.batch[0], false), zf_program_error(s.program));
        OK(t, zf_write(s.program, s.lr, &lr, sizeof lr), zf_program_error(s.program));
        OK(t, zf_step(s.program), zf_program_error(s.program));
        CHECK_NEAR(t, session_scalar(&s, "loss"), losses[step], most * losses[0]);
    }
    session_close(&s); /* the next one may have these places */
    causal_batch_file_free(&f);
}

TEST_ONCE(llm_mixtral_trains_as_by_transformers) { check_trained(t, 26, 1e-6); }
TEST_ONCE(llm_qwen2_moe_trains_as_by_transformers) { check_trained(t, 27, 1e-6); }
TEST_ONCE(llm_qwen3_moe_trains_as_by_transformers) { check_trained(t, 28, 1e-6); }
TEST_ONCE(llm_olmoe_trains_as_by_transformers) { check_trained(t, 29, 1e-6); }

/* The others, and OPT; there is not room for what all of them would defer. Rounding to f32 grows most
 * in the Qwen3, to 5e-6. */
TEST_ONCE(llm_families_train_as_by_transformers)
{
    for (int k = 0; k < CASES && !t->failed; k++) {
        if (k < 26 || k > 29) check_trained(t, k, k == 5 ? 1e-5 : 1e-6);
        while (t->deferred_count) {
            t->deferred_count--;
            t->deferred[t->deferred_count].run(t->deferred[t->deferred_count].object);
        }
    }
}

/* The loss of a model with experts is a sum over the parts of a batch, with and without that of
 * routers. */
TEST_ONCE(llm_experts_are_trained_in_parts)
{
    const sample_shape shape = {.batch = 1, .sequence = TOKENS};
    for (int aux = 0; aux < 2; aux++) {
        zf_training training = {.zero = {.stage = 3, .world = 2, .micro_batches = 2}};
        zf_causal_config c;
        zf_error error = {ZF_OK, ""};
        zf_graph *g = zf_graph_new(NULL);
        NEED(t, g, NULL);
        if (llm_config_load(folder_of(26), &c, &error)) {
            c.of.aux_loss = 0.25 * aux;
            training.loss = llm_build(g, &c, &shape, SAMPLE_TRAIN);
            zf_passes(g, &training);
            error.status = zf_graph_status(g);
            snprintf(error.text, sizeof error.text, "%s", zf_graph_error(g));
        }
        zf_graph_free(g);
        OK(t, error.status, error.text);
    }
}

/* Training of a model with these options is refused with this error. */
static void check_refused(test *t, zf_causal_routing of, const char *error)
{
    const sample_shape shape = {.batch = 1, .sequence = TOKENS};
    zf_training training = {.loss = ZF_NONE};
    zf_causal_config c;
    zf_error got = {ZF_OK, ""};
    zf_graph *g = zf_graph_new(NULL);
    NEED(t, g, NULL);
    if (llm_config_load(folder_of(0), &c, &got)) {
        c.of = of;
        training.loss = llm_build(g, &c, &shape, SAMPLE_TRAIN);
        if (!zf_graph_status(g)) zf_passes(g, &training);
        snprintf(got.text, sizeof got.text, "%s", zf_graph_error(g));
    }
    zf_graph_free(g);
    if (!strstr(got.text, error)) CHECK_TEXT(t, got.text, error);
}

TEST_ONCE(llm_refuses_what_is_for_experts)
{
    static const char none[] = "aux_loss, z_loss, capacity, balance_bias and residual are for layers "
                               "of experts, and the model has none";
    check_refused(t, (zf_causal_routing){.aux_loss = 1}, none);
    check_refused(t, (zf_causal_routing){.z_loss = 1}, none);
    check_refused(t, (zf_causal_routing){.capacity = 1}, none);
    check_refused(t, (zf_causal_routing){.balance_bias = 1e-3}, none);
    check_refused(t, (zf_causal_routing){.residual = true}, none);
}

TEST_ONCE(llm_losses_of_routers_train_these)
{
    static const struct {
        const char *targets, *keep;
        bool good;
    } tried[] = {{NULL, NULL, true},           {"all-linear", NULL, true},
                 {"q_proj,gate", NULL, true},  {"layers.0.mlp.gate", NULL, true},
                 {"q_proj", "*.gate", true},   {"q_proj,gate_proj", NULL, false},
                 {"shared_expert_gate", "norm", false}};
    zf_causal_routing *of = llm_options().desc;
    for (size_t k = 0; k < sizeof tried / sizeof *tried; k++) {
        settings o = {.own = of};
        const char *wrong;
        o.training.lora = (zf_lora_desc){.rank = 2, .targets = tried[k].targets, .keep = tried[k].keep};
        CHECK(t, !llm_wrong(&o));
        of->balance_bias = 1e-3, wrong = llm_wrong(&o), of->balance_bias = 0;
        CHECK_TEXT(t, wrong ? wrong : "",
                   "--balance-bias trains the bias of routers, which --lora leaves as it is");
        of->aux_loss = 0.5, wrong = llm_wrong(&o), of->aux_loss = 0;
        CHECK(t, tried[k].good == !wrong);
        if (wrong)
            CHECK_TEXT(t, wrong, "--aux-loss and --z-loss train routers: their module, gate, must be a "
                                 "target of --lora, or be kept");
    }
}

/* A loss of routers that are frozen trains nothing of them. */
TEST_ONCE(llm_losses_of_frozen_routers_are_refused)
{
    static const struct {
        const char *groups;
        bool good;
    } tried[] = {{"*.gate.weight:frozen", false},
                 {"*norm*:no_decay;lm_head.*|model.layers.?.mlp.gate.*:rate=1,frozen", false},
                 {"*:frozen", false},
                 {"*.gate.weight:rate=0.5;lm_head.*:frozen", true},
                 {"model.layers.3.block_sparse_moe.gate.weight:frozen", false},
                 {"*.gate_proj.weight|*.31.mlp.gate.weight:frozen", false},
                 {"*.gate_proj.weight|*.mlp.gate.bias:frozen", true}};
    zf_causal_routing *of = llm_options().desc;
    for (size_t k = 0; k < sizeof tried / sizeof *tried; k++) {
        settings o = {.own = of};
        const char *wrong;
        o.training.param_groups = tried[k].groups;
        CHECK(t, !llm_wrong(&o));
        of->z_loss = 0.5, wrong = llm_wrong(&o), of->z_loss = 0;
        CHECK_TEXT(t, wrong ? wrong : "",
                   tried[k].good ? ""
                                 : "--aux-loss and --z-loss train routers, and --param-groups freezes "
                                   "one or more: leave one out");
    }
}

TEST_ONCE(llm_neox_is_that_of_transformers) { check_case(t, 21, NULL); }
TEST_ONCE(llm_neox_without_fusion) { check_case(t, 21, "all"); }
TEST_ONCE(llm_neox_generates_as_transformers) { check_case_generated(t, 21, 5, 2); }
TEST_ONCE(llm_pythia_is_that_of_transformers) { check_case(t, 22, NULL); }
TEST_ONCE(llm_pythia_generates_as_transformers) { check_case_generated(t, 22, 3, 2); }

TEST_ONCE(llm_falcon40b_is_that_of_transformers) { check_case(t, 23, NULL); }
TEST_ONCE(llm_falcon40b_without_fusion) { check_case(t, 23, "all"); }
TEST_ONCE(llm_falcon40b_generates_as_transformers) { check_case_generated(t, 23, 5, 2); }
TEST_ONCE(llm_falcon7b_is_that_of_transformers) { check_case(t, 24, NULL); }
TEST_ONCE(llm_falcon7b_without_fusion) { check_case(t, 24, "all"); }
TEST_ONCE(llm_falcon7b_generates_as_transformers) { check_case_generated(t, 24, 3, 2); }
TEST_ONCE(llm_sequential_falcon_is_that_of_transformers) { check_case(t, 25, NULL); }
TEST_ONCE(llm_sequential_falcon_generates_as_transformers) { check_case_generated(t, 25, 0, 2); }

TEST_ONCE(llm_bloom_is_that_of_transformers) { check_case(t, CASES - PARTS - 5, NULL); }
TEST_ONCE(llm_padded_bloom_is_that_of_transformers) { check_case(t, CASES - PARTS - 4, NULL); }
TEST_ONCE(llm_bloom_without_fusion) { check_case(t, CASES - PARTS - 4, "all"); }
TEST_ONCE(llm_bloom_generates_as_transformers)
{
    check_case_generated(t, CASES - PARTS - 5, 3, 1.3);
}
TEST_ONCE(llm_falcon_with_alibi_is_that_of_transformers) { check_case(t, CASES - PARTS - 3, NULL); }
TEST_ONCE(llm_falcon_with_alibi_generates_as_transformers)
{
    check_case_generated(t, CASES - PARTS - 3, 2, 2);
}
TEST_ONCE(llm_mpt_is_that_of_transformers) { check_case(t, CASES - PARTS - 2, NULL); }
TEST_ONCE(llm_padded_mpt_is_that_of_transformers) { check_case(t, CASES - PARTS - 1, NULL); }
TEST_ONCE(llm_mpt_generates_as_transformers) { check_case_generated(t, CASES - PARTS - 2, 4, 1.3); }
TEST_ONCE(llm_gemma3_generates_as_transformers) { check_case_generated(t, 12, 5, 1.3); }
TEST_ONCE(llm_yarn_generates_as_transformers) { check_case_generated(t, 10, 3, 1.3); }
TEST_ONCE(llm_yarn_of_more_members_generates_as_transformers) { check_case_generated(t, 11, 0, 1.2); }

/* Caches of layers with a window have no more tokens than that and a step's, in whole blocks. All
 * windows here fit into one. */
TEST_ONCE(llm_caches_of_windows_are_rings)
{
    static const int with[] = {3, 4, 6, 7};
    static decoder d; /* outlives what the test defers */
    for (size_t i = 0; i < sizeof with / sizeof *with; i++) {
        zf_causal_config c;
        session_desc desc = {.sample = &llm_sample, .config = &c, .threads = 1};
        decoder_desc room = {.texts = 3, .context = 200, .chunk = 61};
        zf_error error = {ZF_OK, ""};
        size_t bytes = 0;
        CHECK(t, llm_config_load(folder_of(with[i]), &c, &error));
        c.positions = 200;
        for (int64_t k = 0; k < c.layers; k++) {
            int64_t tokens = c.full[0] >> k & 1 ? 200 : 64;
            bytes += 2 * ((size_t)(3 * tokens * c.kv_heads * c.width * 4 + 63) / 64 * 64);
        }
        if (decoder_open(&d, &room, &desc, folder_of(with[i]), 0, &error)) {
            size_t planned = zf_program_info_of(d.prompt.program).cache_bytes;
            decoder_close(&d);
            CHECK(t, planned == bytes);
        } else if (!test_unwind(t, __FILE__, __LINE__, "caches", error.status, error.text)) {
            return;
        }
    }
}

/* A prompt goes in chunks, so a plan grows with the room for tokens by their caches alone, and not
 * with the prompt: of 1024, 8192 and 32768 tokens, to which yarn stretches 64 places. What is
 * written has the bits of a text with less room, in chunks of other lengths, and at once. */
TEST_ONCE(llm_long_contexts_cost_their_caches)
{
    enum { TEXT = 300, CHUNK = 32, ROOMS = 6 };
    static decoder d[ROOMS]; /* outlives what the test defers */
    static const struct {
        int64_t context, chunk;
    } rooms[ROOMS] = {{TEXT, CHUNK}, {1024, CHUNK}, {8192, CHUNK}, {32768, CHUNK},
                      {TEXT, 77},    {TEXT, TEXT}};
    zf_causal_config c;
    const session_desc desc = {.sample = &llm_sample, .config = &c, .threads = 1};
    session_desc of[ROOMS];
    zf_program_info info[ROOMS];
    zf_error error = {ZF_OK, ""};
    int32_t ids[TEXT];
    for (int i = 0; i < TEXT; i++) ids[i] = (7 * i * i + 3 * i) % VOCAB;
    CHECK(t, llm_config_load(folder_of(10), &c, &error));
    c.positions = 32768, c.factor = 512;
    for (int k = 0; k < ROOMS; k++) {
        const decoder_desc room = {
            .texts = 1, .context = rooms[k].context, .chunk = rooms[k].chunk};
        of[k] = desc;
        if (!decoder_open(&d[k], &room, &of[k], folder_of(10), 0, &error)) goto failed;
        test_defer(t, close_decoder, &d[k]);
        info[k] = zf_program_info_of(d[k].prompt.program);
        if (rooms[k].chunk != CHUNK) continue;
        CHECK(t, info[k].cache_bytes == 2 * (size_t)c.layers *
                                            ((size_t)(rooms[k].context * c.kv_heads * c.width * 4 + 63) /
                                             64 * 64));
        CHECK(t, info[k].plan.peak_bytes - info[0].plan.peak_bytes ==
                     info[k].cache_bytes - info[0].cache_bytes);
    }
    CHECK(t, info[5].plan.peak_bytes - info[5].cache_bytes >
                 info[0].plan.peak_bytes - info[0].cache_bytes);
    for (int64_t at = 0, count; at < TEXT; at += count) {
        const int32_t *next = ids + at;
        count = at < TEXT - 4 ? TEXT - 4 - at : 1; /* a prompt, and tokens one by one */
        for (int k = 0; k < ROOMS; k++) {
            if (!zf_decoder_add(&d[k].steps, &next, &count, &error)) goto failed;
            CHECK(t, !memcmp(d[0].steps.logits, d[k].steps.logits, VOCAB * sizeof(float)));
        }
    }
    return;
failed:
    (void)test_unwind(t, __FILE__, __LINE__, folder_of(10), error.status, error.text);
}

/* ------------------------------------------------------------------------------------ blocks */

enum {
    SEEN = 53,
    ALONE = 4
}; /* tokens of a text, of which the last, in a new block, go one by one */

/* The logits after the first `count` tokens of a text, of a model of a case with this layout:
 * `from` computes all of them, without caches. */
static bool logits_of(session *from, const int32_t *ids, int32_t count, float *logits,
                      zf_error *error)
{
    const int32_t last = count - 1;
    zf_status status = session_write(from, "input_ids", ids, SEEN * sizeof *ids);
    if (!status) status = session_write(from, "last", &last, sizeof last);
    if (!status) status = zf_step(from->program);
    if (!status)
        status = zf_read(from->program, zf_graph_find(from->graph, "logits"), logits,
                         VOCAB * sizeof *logits);
    if (status) *error = (zf_error){status, ""};
    return !status;
}

static bool open_seen(session *s, int k, zf_config_any *config, const char *layout, zf_error *error)
{
    session_desc d = {.sample = sample_of(k),
                      .purpose = SAMPLE_ANSWER,
                      .config = config,
                      .shape = {.batch = 1, .sequence = SEEN},
                      .threads = 1};
    return session_config(d.sample, folder_of(k), NULL, config, error) &&
           zf_config_set_layout(d.sample->config(), config, layout, 64, error) &&
           session_open_folder(s, folder_of(k), &d, 1, error);
}

/* The largest difference of logits, by the largest of them. */
static double difference(const float *a, const float *b)
{
    double off = 0, most = 0;
    for (int v = 0; v < VOCAB; v++)
        off = fmax(off, fabs(a[v] - b[v])), most = fmax(most, fabs(a[v]));
    return off / most;
}

/* A model of blocks generates what it computes without caches, by a prompt in pieces and by single
 * tokens, and not what it would if all keys were seen. */
static void check_seen(test *t, int k, const char *layout)
{
    static session all, blocks; /* outlive what the test defers */
    static decoder d;
    static zf_config_any of_all, of_blocks;
    static float cached[VOCAB], whole[VOCAB], dense[VOCAB];
    const decoder_desc room = {.texts = 1, .context = SEEN, .chunk = 9};
    session_desc desc = {.sample = sample_of(k), .config = &of_blocks, .threads = 1};
    zf_error error = {ZF_OK, ""};
    int32_t ids[SEEN];
    for (int i = 0; i < SEEN; i++) ids[i] = 3 + i * 7 % (VOCAB - 3);
    if (!open_seen(&all, k, &of_all, "off", &error)) goto failed;
    test_defer(t, close_session, &all);
    if (!open_seen(&blocks, k, &of_blocks, layout, &error)) goto failed;
    test_defer(t, close_session, &blocks);
    CHECK(t, zf_config_positions(sample_of(k)->config(), &of_blocks) == 64);
    if (!decoder_open(&d, &room, &desc, folder_of(k), 1, &error)) goto failed;
    test_defer(t, close_decoder, &d);
    for (int32_t count = SEEN - ALONE, done = 0; count <= SEEN; done = count++) {
        const int32_t *next = ids + done;
        const int64_t some = count - done;
        if (!zf_decoder_add(&d.steps, &next, &some, &error) ||
            !logits_of(&blocks, ids, count, whole, &error) ||
            !logits_of(&all, ids, count, dense, &error))
            goto failed;
        memcpy(cached, d.steps.logits, sizeof cached);
        CHECK_NEAR(t, difference(whole, cached), 0, 1e-5);
        CHECK(t, difference(whole, dense) > 1e-3);
    }
    decoder_close(&d);
    session_close(&blocks);
    session_close(&all);
    return;
failed:
    (void)test_unwind(t, __FILE__, __LINE__, layout, error.status, error.text);
}

TEST_ONCE(llm_llama3_generates_with_the_blocks_that_it_has) { check_seen(t, 1, "window,width=1"); }
TEST_ONCE(llm_windows_generate_with_the_blocks_that_they_have)
{
    check_seen(t, 3, "bigbird,width=1,per_head,seed=3");
}
TEST_ONCE(opt_generates_with_the_blocks_that_it_has)
{
    check_seen(t, 8, "window,width=1,length=64");
}

/* A text goes back a few tokens in caches of windows; further back it begins anew. Its logits are
 * those of a text that has seen the same tokens alone. */
TEST_ONCE(llm_windows_go_back)
{
    static decoder all, d; /* outlive what the test defers */
    static const int64_t backs[][2] = {{90, 86}, {86, 84}, {84, 0}, {100, 97}};
    zf_causal_config config;
    session_desc desc = {.sample = &llm_sample, .config = &config, .threads = 1}, again = desc;
    decoder_desc room = {.texts = 1, .context = 120, .chunk = 7};
    zf_error error = {ZF_OK, ""};
    int32_t ids[120];
    const int32_t *next = ids;
    int64_t count;
    for (int i = 0; i < 120; i++) ids[i] = (7 * i * i + 3 * i) % VOCAB;
    CHECK(t, llm_config_load(folder_of(6), &config, &error));
    config.positions = 120;
    if (!decoder_open(&d, &room, &desc, folder_of(6), 0, &error)) goto failed;
    test_defer(t, close_decoder, &d);
    if (!decoder_open(&all, &room, &again, folder_of(6), 0, &error)) goto failed;
    test_defer(t, close_decoder, &all);
    CHECK(t, d.steps.rings);
    for (size_t k = 0; k < sizeof backs / sizeof *backs; k++) {
        int64_t to = backs[k][1] ? backs[k][1] : 83;
        next = ids + d.steps.past[0], count = backs[k][0] - d.steps.past[0];
        if (!zf_decoder_add(&d.steps, &next, &count, &error)) goto failed;
        CHECK_NEAR(t, zf_decoder_rewind(&d.steps, 0, to), backs[k][1], 0);
        /* Other tokens take the places of those that were left. */
        ids[to] = (ids[to] + 1) % VOCAB;
        next = ids + d.steps.past[0], count = to + 1 - d.steps.past[0];
        if (!zf_decoder_add(&d.steps, &next, &count, &error)) goto failed;
        CHECK(t, zf_decoder_rewind(&all.steps, 0, 0) == 0);
        next = ids, count = to + 1;
        if (!zf_decoder_add(&all.steps, &next, &count, &error)) goto failed;
        for (int v = 0; v < VOCAB; v++) CHECK_NEAR(t, d.steps.logits[v], all.steps.logits[v], 1e-4);
        zf_decoder_rewind(&d.steps, 0, to);
    }
    decoder_close(&d);
    decoder_close(&all);
    return;
failed:
    if (!test_unwind(t, __FILE__, __LINE__, "caches of windows", error.status, error.text)) return;
}

/* A session that scores, and a decoder in its memory. */
typedef struct scored {
    session scores;
    decoder writes;
} scored;

static void close_scored(void *object)
{
    scored *s = object;
    decoder_close(&s->writes);
    session_close(&s->scores);
    *s = (scored){.writes = {.steps = {.texts = 0}}};
}

/* The logits after a prompt of seven tokens and one more. */
static bool write_eight(decoder *d, float logits[VOCAB], zf_error *error)
{
    static const int32_t ids[8] = {3, 1, 4, 1, 5, 9, 2, 6};
    const int32_t *next = ids, *last = ids + 7;
    int64_t count = 7, one = 1;
    const bool good = zf_decoder_add(&d->steps, &next, &count, error) &&
                      zf_decoder_add(&d->steps, &last, &one, error);
    if (good) memcpy(logits, d->steps.logits, VOCAB * sizeof *logits);
    return good;
}

/* The caches lie in the memory of the session that scores, in the dtype of the model. What it
 * computes ends the texts; those that begin again are the same. */
static void check_scored(test *t, scored *s, zf_dtype dtype, zf_error *error)
{
    zf_causal_config c;
    session_desc desc = {.sample = &llm_sample,
                         .config = &c,
                         .threads = 1,
                         .shape = {.batch = 8, .sequence = 60},
                         .purpose = SAMPLE_EVALUATE},
                 writer;
    const decoder_desc room = {.texts = 1, .context = 60};
    const int32_t ids[480] = {1}, *next = ids;
    const float weight = 0.5f;
    float before[VOCAB] = {0}, after[VOCAB] = {1};
    const int64_t count = 1;
    zf_program_info prompt;
    size_t each;
    CHECK(t, llm_config_load(folder_of(5), &c, error));
    writer = desc, writer.share = &s->scores;
    if (!session_open_folder(&s->scores, folder_of(5), &desc, 1 + dtype, error) ||
        !decoder_open(&s->writes, &room, &writer, NULL, 0, error))
        return;
    prompt = zf_program_info_of(s->writes.prompt.program);
    each = (size_t)(60 * c.kv_heads * c.width) * zf_dtype_size(dtype);
    CHECK(t, prompt.cache_bytes == (size_t)(2 * c.layers) * ((each + 63) / 64 * 64));
    CHECK(t, prompt.allocated_bytes == prompt.input_bytes + prompt.constant_bytes);
    CHECK(t, prompt.shared[ZF_DEVICE] >= prompt.cache_bytes &&
                 prompt.allocated_bytes + prompt.shared[ZF_DEVICE] == prompt.peak_bytes);
    if (!write_eight(&s->writes, before, error)) return;
    if (session_write(&s->scores, "input_ids", ids, sizeof ids) ||
        session_write(&s->scores, "labels", ids, sizeof ids) ||
        session_write(&s->scores, "loss_weight", &weight, sizeof weight) ||
        zf_step(s->scores.program)) {
        error->status = ZF_ERR_BACKEND;
        snprintf(error->text, sizeof error->text, "%s", zf_program_error(s->scores.program));
        return;
    }
    CHECK(t, !zf_decoder_add(&s->writes.steps, &next, &count, error));
    CHECK_TEXT(t, error->text,
               "another program has run in the memory of the caches "
               "(zf_compile_desc.temporary_caches): text 1, of 8 tokens, begins anew "
               "(zf_decoder_rewind)");
    *error = (zf_error){ZF_OK, ""};
    zf_decoder_rewind(&s->writes.steps, 0, 0);
    if (!write_eight(&s->writes, after, error)) return;
    CHECK(t, !memcmp(before, after, sizeof before));
}

TEST_ONCE(llm_caches_lie_in_the_memory_of_a_session)
{
    static const zf_dtype dtypes[] = {ZF_F32, ZF_BF16, ZF_F16};
    static scored s; /* outlives what the test defers */
    test_defer(t, close_scored, &s);
    for (size_t k = 0; k < sizeof dtypes / sizeof *dtypes && !t->failed; k++) {
        zf_error error = {ZF_OK, ""};
        check_scored(t, &s, dtypes[k], &error);
        close_scored(&s);
        if (error.status && !test_unwind(t, __FILE__, __LINE__, "scored", error.status, error.text))
            return;
    }
}

/* Rounds the weights of all products of a session to so many bits, in blocks of 64. */
static bool round_weights(session *s, int64_t bits)
{
    const zf_quantize_desc blocks = {.bits = (int32_t)bits, .block = 64, .scale = ZF_BF16};
    bool good = true;
    for (int32_t k = 0; k < zf_param_count(s->graph) && good; k++) {
        zf_tensor w = zf_param_at(s->graph, k), x, y;
        zf_shape shape = zf_tensor_shape(w);
        zf_graph *g;
        zf_program *p;
        float *data;
        if (shape.rank < 2 || strstr(zf_tensor_name(w), "embed_tokens") ||
            strstr(zf_tensor_name(w), "gate.weight"))
            continue; /* tables and routers stay floats */
        g = zf_graph_new(NULL);
        x = zf_input(g, "x", ZF_F32, shape);
        y = zf_output(zf_dequantize(zf_quantize(x, &blocks), ZF_F32, &blocks), "y");
        p = zf_compile(g, NULL);
        data = malloc(zf_tensor_bytes(w));
        good = p && data && !zf_read(s->program, w, data, zf_tensor_bytes(w)) &&
               !zf_write(p, x, data, zf_tensor_bytes(w)) && !zf_step(p) &&
               !zf_read(p, y, data, zf_tensor_bytes(w)) &&
               !zf_write(s->program, w, data, zf_tensor_bytes(w));
        free(data);
        zf_program_free(p);
        zf_graph_free(g);
    }
    return good;
}

/* Weights of 8 and of 4 bits: the logits are those of a model whose weights have been rounded, for
 * a prompt and token by token. */
static void check_few_bits(test *t, int model, int64_t bits, bool tied)
{
    static const int32_t text[] = {5, 11, 3, 28, 30, 7};
    static session floats, rounded; /* outlive what the test defers */
    static decoder few, many;
    static zf_causal_config config, of_bits;
    zf_weights_report report;
    zf_error error = {ZF_OK, ""};
    session_desc d = {.sample = &llm_sample,
                      .config = &config,
                      .purpose = SAMPLE_EVALUATE,
                      .shape = {.batch = 1, .sequence = 1},
                      .threads = 2,
                      .seed = 3},
                 of_few = {.sample = &llm_sample, .config = &of_bits, .share = &rounded, .threads = 2},
                 of_many = {.sample = &llm_sample, .config = &config, .share = &floats, .threads = 2};
    decoder_desc room = {.texts = 1, .context = 6, .chunk = 4};
    const int32_t *next = text;
    int64_t count = 4;
    CHECK(t, llm_config_load(folder_of(model), &config, &error));
    config.hidden = 64, config.width = 32, config.heads = 4, config.kv_heads = 2;
    config.expert_width = config.experts ? 128 : 0, config.shared_width = config.shared_width ? 64 : 0;
    config.intermediate = 192, config.tied = tied, config.std = 0.2;
    if (!session_open(&floats, &d, &error)) goto failed;
    test_defer(t, close_session, &floats);
    of_bits = config, of_bits.bits = bits, d.config = &of_bits;
    if (!session_open(&rounded, &d, &error)) goto failed;
    test_defer(t, close_session, &rounded);
    if (!zf_exchange_copy(llm_sample.exchange(), rounded.program, rounded.graph, floats.program,
                          floats.graph, "floats", &report, &error) ||
        !decoder_open(&few, &room, &of_few, NULL, 0, &error))
        goto failed;
    test_defer(t, close_decoder, &few);
    CHECK(t, round_weights(&floats, bits));
    if (!decoder_open(&many, &room, &of_many, NULL, 0, &error)) goto failed;
    test_defer(t, close_decoder, &many);
    for (int turn = 0; turn < 3; turn++, count = 1) {
        double most = 0;
        if (!zf_decoder_add(&few.steps, &next, &count, &error) ||
            !zf_decoder_add(&many.steps, &next, &count, &error))
            goto failed;
        next += count;
        for (int v = 0; v < VOCAB; v++) most = fmax(most, fabs((double)many.steps.logits[v]));
        CHECK(t, most > 0.1);
        for (int v = 0; v < VOCAB; v++)
            CHECK_NEAR(t, few.steps.logits[v], many.steps.logits[v], 1e-5 * most);
    }
    CHECK(t, zf_store_info_of(zf_program_store(few.token.program)).bytes <
                 (tied ? 3 : 2) * zf_store_info_of(zf_program_store(floats.program)).bytes / 6);
    return;
failed:
    if (!test_unwind(t, __FILE__, __LINE__, "weights of few bits", error.status, error.text)) return;
}

/* It is said which matrices stay floats. */
TEST_ONCE(llm_weights_that_stay_floats)
{
    static const struct {
        int64_t hidden, intermediate, bits;
        const char *says;
    } kinds[] = {
        {64, 100, 8, ", but for those of down_proj, whose rows are no multiple of 64 numbers"},
        {60, 64, 4,
         ", but for those of embed_tokens, q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, "
         "whose "
         "rows are no multiple of 64 numbers"},
        {64, 100, 0, ""},
        {64, 128, 8, ""}};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        zf_error error = {ZF_OK, ""};
        zf_causal_config config;
        zf_graph *g = zf_graph_new(NULL);
        char text[500];
        NEED(t, g, NULL);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        if (!llm_config_load(folder_of(0), &config, &error)) OK(t, error.status, error.text);
        config.hidden = kinds[k].hidden, config.heads = 2, config.kv_heads = 2;
        config.width = kinds[k].hidden / 2, config.intermediate = kinds[k].intermediate;
        config.bits = kinds[k].bits, config.tied = 1;
        llm_sample.build(g, &config, &(sample_shape){.batch = 1, .sequence = 2}, SAMPLE_GENERATE);
        OK(t, zf_graph_status(g), zf_graph_error(g));
        CHECK_TEXT(t, session_floats(g, text, sizeof text), kinds[k].says);
    }
}

TEST_ONCE(llm_weights_of_8_bits) { check_few_bits(t, 0, 8, false); }
TEST_ONCE(llm_weights_of_4_bits) { check_few_bits(t, 0, 4, true); }
TEST_ONCE(llm_experts_of_8_bits) { check_few_bits(t, 26, 8, false); }
TEST_ONCE(llm_experts_of_4_bits) { check_few_bits(t, 27, 4, true); }

/* Ranks that train at stage 3, and generate in between. */
enum { RANKS = 2, ANSWER = 6, ROOM = 1 << 14 };

typedef struct trainer {
    zf_comm *comm;
    enum { NOTHING, GATHERED, HELD } how; /* generation between the first step and the others */
    int folder, stage;                    /* an index into cases */
    float params[ROOM];
    int64_t count;
    float logits[2][ANSWER][VOCAB];
    zf_error error;
} trainer;

static bool train(session *s, const causal_batch_file *f, int64_t steps, zf_error *error)
{
    const float lr = 1e-2f;
    for (int64_t k = 0; k < steps && !error->status; k++) {
        zf_status status = session_feed(s, &f->batch[0], false);
        if (!status) status = zf_write(s->program, s->lr, &lr, sizeof lr);
        if (!status) status = zf_step(s->program);
        if (!status) continue;
        error->status = status;
        snprintf(error->text, sizeof error->text, "%s", zf_program_error(s->program));
    }
    return !error->status;
}

/* Continues two texts with given tokens, and keeps the logits. */
static bool answer(trainer *r, session *s, const zf_causal_config *config)
{
    static const int32_t texts[2][ANSWER + 2] = {{5, 11, 3, 28, 30, 1, 2, 7}, {7, 1, 2, 35, 4, 36, 6, 9}};
    session_desc d = {.sample = &llm_sample, .config = config, .threads = 1, .share = s};
    decoder_desc room = {.texts = 2, .context = ANSWER + 2, .chunk = 2, .hold = r->how == HELD};
    const int32_t *next[2] = {texts[0], texts[1]};
    int64_t count[2] = {3, 2};
    decoder generates;
    bool open = decoder_open(&generates, &room, &d, NULL, 0, &r->error),
         good = open && (r->how != HELD || decoder_hold(&generates, &r->error));
    for (int n = 0; n < ANSWER && good; n++) {
        good = zf_decoder_add(&generates.steps, next, count, &r->error);
        for (int b = 0; b < 2 && good; b++) {
            memcpy(r->logits[b][n], generates.steps.logits + b * VOCAB, sizeof r->logits[b][n]);
            next[b] += count[b], count[b] = 1;
        }
    }
    if (open) decoder_close(&generates);
    return good;
}

static void train_and_answer(trainer *r)
{
    zf_causal_config config;
    causal_batch_file f = {0};
    zf_weights_report report;
    session s;
    session_desc d = {.sample = &llm_sample,
                      .purpose = SAMPLE_TRAIN,
                      .config = &config,
                      .threads = 1,
                      .shape = {.batch = BATCH / RANKS,
                                .sequence = TOKENS,
                                .rows = cases[r->folder].masked},
                      .comm = r->comm,
                      .training.zero = {.stage = r->stage, .bucket_bytes = 1}};
    bool good = llm_config_load(folder_of(r->folder), &config, &r->error) &&
                causal_batch_file_load(&f,
                                       cases[r->folder].masked ? GOLDEN "batch-masked.safetensors"
                                                               : GOLDEN "batch.safetensors",
                                       VOCAB, &r->error);
    if (!good || !session_open(&s, &d, &r->error)) {
        causal_batch_file_free(&f);
        return;
    }
    good = session_take(&s, folder_of(r->folder), &report, &r->error) &&
           train(&s, &f, 1, &r->error) &&
           (r->how == NOTHING || answer(r, &s, &config)) && train(&s, &f, 2, &r->error);
    for (int32_t k = 0; k < zf_param_count(s.graph) && good; k++) {
        zf_tensor x = zf_param_at(s.graph, k);
        good = r->count + zf_shape_count(zf_tensor_shape(x)) <= ROOM &&
               !zf_read(s.program, x, r->params + r->count, zf_tensor_bytes(x));
        r->count += zf_shape_count(zf_tensor_shape(x));
    }
    if (!good && !r->error.status)
        r->error = (zf_error){ZF_ERR_ARGUMENT, "the parameters cannot be read"};
    session_close(&s);
    causal_batch_file_free(&f);
}

static void *train_rank(void *object)
{
    trainer *r = object;
    train_and_answer(r);
    if (r->error.status) /* the others wait */
        r->comm->abort(r->comm->self, r->error.status, r->error.text);
    return NULL;
}

static void train_ranks(test *t, trainer ranks[RANKS])
{
    zf_local *group = zf_local_new(&(zf_local_desc){.world = RANKS}, NULL);
    pthread_t threads[RANKS];
    NEED(t, group, NULL);
    for (int r = 0; r < RANKS; r++) {
        ranks[r].comm = zf_local_comm(group, r);
        if (pthread_create(&threads[r], NULL, train_rank, &ranks[r])) abort();
    }
    for (int r = 0; r < RANKS; r++) pthread_join(threads[r], NULL);
    zf_local_free(group);
    for (int r = 0; r < RANKS; r++) OK(t, ranks[r].error.status, ranks[r].error.text);
}

/* Of each family, and of the text parts: three steps of ranks at stages 0 and 3. */
TEST_ONCE(llm_families_have_the_same_bits_at_stages_0_and_3)
{
    static trainer ranks[2][RANKS];
    for (int k = 0; k < CASES && !t->failed; k++) {
        if (sample_of(k) != &llm_sample) continue;
        memset(ranks, 0, sizeof ranks);
        for (int way = 0; way < 2 && !t->failed; way++) {
            for (int r = 0; r < RANKS; r++)
                ranks[way][r].folder = k, ranks[way][r].stage = 3 * way;
            train_ranks(t, ranks[way]);
        }
        if (ranks[0][0].count < 1000 || ranks[0][0].count != ranks[1][0].count ||
            memcmp(ranks[0][0].params, ranks[1][0].params, sizeof ranks[0][0].params))
            test_fail(t, __FILE__, __LINE__, "stage 3 has the bits of stage 0", cases[k].name);
    }
}

/* A run with answers between its steps has the bits of one without; answers do not depend on where
 * the parameters are gathered. */
TEST_ONCE(llm_generates_between_steps_at_stage_3)
{
    static trainer ranks[3][RANKS];
    memset(ranks, 0, sizeof ranks);
    for (int how = 0; how < 3; how++) {
        for (int r = 0; r < RANKS; r++) ranks[how][r].how = how, ranks[how][r].stage = 3;
        train_ranks(t, ranks[how]);
        if (t->failed) return;
        for (int r = 0; r < RANKS; r++) {
            CHECK(t, ranks[how][r].count > 1000 && ranks[how][r].count == ranks[0][0].count);
            CHECK(t, !memcmp(ranks[how][r].params, ranks[0][0].params, sizeof ranks[0][0].params));
        }
    }
    for (int r = 0; r < RANKS; r++) {
        CHECK(t, ranks[GATHERED][r].logits[0][0][0] != 0);
        for (int how = GATHERED; how <= HELD; how++)
            CHECK(t, !memcmp(ranks[how][r].logits, ranks[GATHERED][0].logits,
                             sizeof ranks[0][0].logits));
    }
}

/* What was read goes out as it was: the weights to the bit, the configuration to one that reads
 * alike. */
static int export(int argc, char **argv) { return export_command(&llm_sample, argc, argv); }
static int export_opt(int argc, char **argv) { return export_command(&opt_sample, argc, argv); }

static void check_exports(test *t, int first, int end)
{
    static const command commands[] = {{"export", "", export}, {NULL, NULL, NULL}},
                         of_opt[] = {{"export", "", export_opt}, {NULL, NULL, NULL}};
    for (int k = first; k < end; k++) {
        char from[140], to[340];
        char *argv[] = {(char *)"llm", "export", "--load", from, "--dtype", "f32", to, NULL};
        const bool is_opt = sample_of(k) == &opt_sample;
        const zf_config_table *table = sample_of(k)->config();
        const char *name = is_opt ? "opt" : cases[k].name;
        zf_config_any config, again;
        zf_error error = {ZF_OK, ""};
        zf_safetensors *golden, *own;
        snprintf(from, sizeof from, "%s", folder_of(k));
        snprintf(to, sizeof to, "%s", test_path(name));
        CHECK(t, command_main(&(command_program){"llm", is_opt ? of_opt : commands}, 7, argv) == EXIT_GOOD);
        CHECK(t, zf_config_load(table, from, &config, &error) && zf_config_load(table, to, &again, &error));
        CHECK(t, !memcmp(&config, &again, table->bytes));
        snprintf(from, sizeof from, "%s/model.safetensors", folder_of(k));
        snprintf(to, sizeof to, "%s/model.safetensors", test_path(name));
        if (cases[k].shards || k >= CASES - PARTS) continue;
        golden = open_file(t, from), own = open_file(t, to);
        CHECK(t, golden && own && zf_safetensors_count(own) == zf_safetensors_count(golden));
        for (int32_t i = 0; i < zf_safetensors_count(golden); i++) {
            const char *tensor = zf_safetensors_at(golden, i)->name;
            if (error_of(own, golden, tensor) != 0)
                test_fail(t, __FILE__, __LINE__, "a tensor is as it was", tensor);
        }
    }
}

/* Of a model of several parts that of text is written, under the names of a model of its own. */
TEST_ONCE(llm_export_of_a_text_part_is_what_was_read)
{
    for (int k = CASES - PARTS; k < CASES; k++) {
        char from[140], to[340];
        zf_safetensors *golden, *own;
        check_exports(t, k, k + 1);
        snprintf(from, sizeof from, "%s/model.safetensors", folder_of(k));
        snprintf(to, sizeof to, "%s/model.safetensors", test_path(cases[k].name));
        golden = open_file(t, from), own = open_file(t, to);
        CHECK(t, golden && own && zf_safetensors_count(own) >= 26);
        for (int32_t i = 0; i < zf_safetensors_count(own); i++) {
            const char *name = zf_safetensors_at(own, i)->name;
            char outer[200];
            int64_t count = 0, other = 0;
            double *x = values_of(own, name, &count), *y;
            snprintf(outer, sizeof outer, "language_model.%s", name);
            y = values_of(golden, zf_safetensors_find(golden, name) < 0 ? outer : name, &other);
            if (!x || !y || count != other || memcmp(x, y, (size_t)count * sizeof *x))
                test_fail(t, __FILE__, __LINE__, "a tensor is not what was read", name);
            free(x), free(y);
        }
    }
}

TEST_ONCE(llm_export_is_what_was_read) { check_exports(t, 0, CASES / 2); }
TEST_ONCE(llm_export_of_more_is_what_was_read) { check_exports(t, CASES / 2, CASES - PARTS); }

/* Losses over log-probabilities do not cap logits. */
TEST_ONCE(llm_capped_logits_have_no_preferences)
{
    const zf_preference_desc preference = {.beta = 0.1};
    const sample_shape shape = {.batch = 2, .sequence = 4, .preference = &preference};
    zf_causal_config c;
    zf_error error = {ZF_OK, ""};
    zf_graph *g = zf_graph_new(NULL);
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    if (!llm_config_load(folder_of(17), &c, &error)) OK(t, error.status, error.text);
    CHECK(t, !zf_valid(llm_build(g, &c, &shape, SAMPLE_TRAIN)));
    CHECK(t, strstr(zf_graph_error(g),
                    "the model caps its logits (final_logit_softcapping), which losses over "
                    "log-probabilities do not: dpo, grpo, ppo and rlhf need a model without"));
}

/* Dropouts of what is added in a layer, and of the embedding, are those of families that have
 * them. */
TEST_ONCE(llm_dropouts_are_those_of_the_family)
{
    static const struct {
        int folder, dropouts;
    } of[] = {{20, 2 * 2 + 1}, {0, 0}};
    for (size_t k = 0; k < sizeof of / sizeof *of; k++) {
        const sample_shape shape = {.batch = 2, .sequence = 8};
        zf_error error = {ZF_OK, ""};
        zf_graph *g = zf_graph_new(NULL);
        zf_causal_config c;
        zf_node n;
        int found = 0;
        NEED(t, g, NULL);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        if (!llm_config_load(folder_of(of[k].folder), &c, &error)) OK(t, error.status, error.text);
        c.dropout = 0.1, c.embedding_dropout = 0.2;
        CHECK(t, zf_valid(llm_build(g, &c, &shape, SAMPLE_TRAIN)));
        for (int32_t at = 0; zf_graph_node(g, at, &n); at++) found += !strcmp(n.op_name, "dropout");
        CHECK_NEAR(t, found, of[k].dropouts, 0);
    }
}

/* ------------------------------------------------------------------------------------ memory */

/* 1024 rows of 131072 logits are 512 MiB (256 in 16 bits); parameters, their gradients and AdamW's
 * states are 16 MiB, with master weights and parameters of 16 bits 18; frozen, in 16 and in 8 bits,
 * of 64 features, 24. */
TEST_ONCE(llm_has_no_logits_in_memory)
{
    for (int n = 0; n < 3; n++) {
        const bool half = n > 0, few = n > 1;
        zf_causal_config c;
        zf_error error = {ZF_OK, ""};
        zf_graph *g = zf_graph_new(NULL);
        zf_training training = {.precision.dtype = half ? ZF_BF16 : ZF_F32};
        zf_plan plan = {0};
        NEED(t, g, NULL);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        CHECK(t, llm_config_load(GOLDEN "llama3", &c, &error));
        c.vocab = 131072, c.hidden = few ? 64 : 8, c.layers = 1, c.positions = 512;
        if (few) c.bits = 8, c.tied = 0, training.lora.rank = 2;
        llm_build(g, &c, &(sample_shape){.batch = 2, .sequence = 512}, SAMPLE_TRAIN);
        training.loss = zf_graph_find(g, "loss"), training.lr = zf_graph_find(g, "lr");
        OK(t, zf_passes(g, &training), zf_graph_error(g));
        OK(t, zf_memory(g, NULL), zf_graph_error(g));
        OK(t, zf_graph_plan(g, &plan), zf_graph_error(g));
        CHECK(t, plan.peak_bytes > (size_t)8 << 20 && plan.peak_bytes < (size_t)(few ? 40 : 32) << 20);
    }
}

/* ----------------------------------------------------------------------------- configurations */

static bool load_config(const char *text, zf_causal_config *c, zf_error *error)
{
    const char *path = test_path("llm-config.json");
    FILE *file = fopen(path, "w");
    if (!file) return false;
    fputs(text, file);
    fclose(file);
    *error = (zf_error){ZF_OK, ""};
    return llm_config_load(path, c, error);
}

#define SIZES                                                                                      \
    "{\"vocab_size\": 99, \"hidden_size\": 12, \"num_hidden_layers\": 3, \"intermediate_size\": "   \
    "7, \"num_attention_heads\": 6, \"max_position_embeddings\": 50,\n"

#define GEMMA SIZES "\"model_type\": \"gemma3_text\", \"num_key_value_heads\": 2, "

#define NEOX SIZES "\"model_type\": \"gpt_neox\", \"rotary_pct\": 1, "
#define FALCON                                                                                     \
    "{\"model_type\": \"falcon\", \"vocab_size\": 99, \"hidden_size\": 12, "                           \
    "\"num_hidden_layers\": 3, \"num_attention_heads\": 6,\n"
#define MPT                                                                                        \
    "{\"model_type\": \"mpt\", \"vocab_size\": 99, \"d_model\": 12, \"n_layers\": 3, "               \
    "\"n_heads\": 6, \"max_seq_len\": 50,\n"
#define LONGROPE                                                                                   \
    SIZES "\"model_type\": \"phi3\", \"pad_token_id\": 3, \"rope_scaling\": {\"type\": "           \
          "\"longrope\", \"rope_theta\": 500, \"short_factor\": [1.5], \"long_factor\": [4]"

/* Defaults of Gemma 3, and what it writes. */
TEST_ONCE(llm_configurations_of_gemma)
{
    zf_causal_config c, again;
    zf_error error = {ZF_OK, ""};
    zf_json_writer *w;
    const char *text;
    CHECK(t, load_config(GEMMA "\"sliding_window_pattern\": 2}", &c, &error));
    CHECK(t, c.width == 256 && c.query == 256 && c.window == 4096 && c.full[0] == 2 && c.tied);
    CHECK(t, c.theta == 1e6 && c.near_theta == 1e4 && c.activation == ZF_ACTIVATION_GELU_TANH);
    CHECK(t, c.begin == 2 && c.ends[0] == 1 && !c.pad);
    CHECK(t, load_config(GEMMA "\"rope_parameters\": {\"full_attention\": {\"rope_type\": "
                               "\"linear\", \"factor\": 8, \"rope_theta\": 7e5}, "
                               "\"sliding_attention\": {\"rope_theta\": 3e4}}}",
                         &c, &error));
    CHECK(t, c.theta == 7e5 && c.near_theta == 3e4 && c.factor == 8 && !c.full[0]);
    w = zf_config_json(llm_sample.config(), &c);
    test_defer(t, (test_cleanup *)zf_json_writer_free, w);
    text = zf_json_text(w, NULL, &error);
    CHECK(t, text && load_config(text, &again, &error));
    CHECK(t, !memcmp(&c, &again, sizeof c));
}

/* What is written of a configuration is all of it. */
static void reads_back(test *t, const zf_causal_config *c)
{
    zf_causal_config again;
    zf_error error = {ZF_OK, ""};
    zf_json_writer *w = zf_config_json(llm_sample.config(), c);
    const char *text = zf_json_text(w, NULL, &error);
    test_defer(t, (test_cleanup *)zf_json_writer_free, w);
    (void)load_config(text, &again, &error);
    CHECK_TEXT(t, error.text, "");
    CHECK(t, !memcmp(c, &again, sizeof again));
}

/* Defaults of families that come after it, and what they write, also with --dropout. */
TEST_ONCE(llm_configurations_of_families)
{
    static const char *const texts[] = {
        SIZES "\"model_type\": \"granite\", \"embedding_multiplier\": 12}",
        SIZES "\"model_type\": \"olmo2\"}",
        SIZES
        "\"model_type\": \"smollm3\", \"num_key_value_heads\": 2, \"use_sliding_window\": true, "
        "\"sliding_window\": 7, \"no_rope_layer_interval\": 2, \"pad_token_id\": 3}",
        SIZES "\"model_type\": \"phi3\", \"head_dim\": 8, \"partial_rotary_factor\": 0.75, "
              "\"pad_token_id\": 3}",
        SIZES "\"model_type\": \"gemma2\", \"num_key_value_heads\": 2, "
              "\"final_logit_softcapping\": null}",
        LONGROPE ", \"factor\": 9}, \"full_attn_mod\": 1, \"interpolate_factor\": 1, \"lm_head_bias\": "
                 "false, \"original_max_position_embeddings\": 9}",
        SIZES "\"model_type\": \"starcoder2\", \"residual_dropout\": 0.1, \"use_bias\": false, "
              "\"mlp_type\": \"default\", \"norm_type\": \"layer_norm\", \"rms_norm_eps\": 1e-5}",
        SIZES "\"model_type\": \"gpt_neox\", \"rotary_pct\": 1, \"hidden_dropout\": 0.1, "
              "\"attention_bias\": false}",
        FALCON "\"num_kv_heads\": 6}",
        FALCON "\"new_decoder_architecture\": true, \"num_kv_heads\": 2, \"ffn_hidden_size\": 9, "
               "\"activation\": \"gelu_fast\", \"bias\": true}",
        FALCON "\"parallel_attn\": false, \"multi_query\": false}",
        FALCON "\"parallel_attn\": false, \"alibi\": true}",
        MPT "\"attn_config\": {\"clip_qkv\": 6, \"softmax_scale\": 0.25, \"attn_pdrop\": 0.1}}"};
    zf_causal_config c[13], dropped;
    zf_error error = {ZF_OK, ""};
    for (int k = 0; k < 13; k++) {
        (void)load_config(texts[k], &c[k], &error);
        CHECK_TEXT(t, error.text, "");
        reads_back(t, &c[k]);
        dropped = c[k];
        zf_config_set_dropout(llm_sample.config(), &dropped, 0.25);
        reads_back(t, &dropped);
    }
    CHECK(t, c[0].embedding == 12 && c[0].score == 1 && c[0].ends[0] == 2 && c[0].kv_heads == 6);
    CHECK(t, c[1].eps == 1e-5 && c[1].ends[0] == 50279 && c[1].pad == 1 && !c[1].window);
    CHECK(t, c[2].theta == 2e6 && c[2].plain[0] == 2 && c[2].full[0] == 5 && c[2].window == 7);
    CHECK(t, c[2].tied && c[2].ends[0] == 128001);
    CHECK(t, c[4].cap == 50 && !c[4].last_cap && c[4].full[0] == 2 && c[4].window == 4096);
    CHECK(t, c[5].factors == 1 && c[5].of_short[0] == 1.5f && c[5].of_long[0] == 4);
    CHECK_NEAR(t, c[5].attention, sqrt(2), 1e-12);
    CHECK(t, c[5].original == 9 && c[5].theta == 500);
    CHECK(t, c[6].kv_heads == 2 && c[6].eps == 1e-5 && c[6].tied && c[6].ends[0] == 50256);
    CHECK(t, c[6].dropout == 0.1 && !c[6].mlp_bias && !c[6].attention_bias && !c[6].window);
    CHECK(t, c[6].activation == ZF_ACTIVATION_GELU_TANH && c[6].std == 0.018042);
    CHECK(t, c[7].parallel && c[7].mlp_bias && !c[7].attention_bias && c[7].kv_heads == 6);
    CHECK(t, c[7].dropout == 0.1 && !c[7].rotated);
    CHECK(t, c[7].begin == 0 && c[7].ends[0] == 2 && c[7].activation == ZF_ACTIVATION_GELU);
    CHECK(t, c[8].parallel == ZF_CAUSAL_PARALLEL_ONE_NORM && c[8].kv_heads == 1 && !c[8].mlp_bias);
    CHECK(t, c[8].positions == 2048 && c[8].intermediate == 48 && c[8].ends[0] == 11 && c[8].tied);
    CHECK(t, c[9].parallel == ZF_CAUSAL_PARALLEL && c[9].kv_heads == 2 && c[9].attention_bias);
    CHECK(t, c[9].intermediate == 9 && c[9].activation == ZF_ACTIVATION_GELU_TANH);
    CHECK(t, c[10].parallel == ZF_CAUSAL_SEQUENTIAL && c[10].kv_heads == 6);
    CHECK(t, c[11].alibi == ZF_CAUSAL_ALIBI_FALCON && c[12].alibi == ZF_CAUSAL_ALIBI_MPT);
    CHECK(t, c[12].clip == 6 && c[12].score == 0.25 && c[12].attention_dropout == 0.1 && c[12].positions == 50);
    CHECK(t, c[3].rotated == 6 && c[3].width == 8 && c[3].ends[0] == 32000 && c[3].eps == 1e-5);
}

TEST_ONCE(llm_configurations)
{
    zf_causal_config c, again;
    zf_error error = {ZF_OK, ""};
    zf_json_writer *w;
    const char *text;
    CHECK(t, llm_config_load("15m", &c, &error));
    CHECK(t, c.hidden == 288 && c.intermediate == 768 && c.kv_heads == 6 && c.width == 48);
    CHECK(t, load_config(SIZES "\"rope_theta\": 5e5}", &c, &error));
    CHECK(t, c.family == ZF_CAUSAL_LLAMA && c.kv_heads == 6 && c.width == 2 && c.theta == 5e5);
    CHECK(t, c.activation == ZF_ACTIVATION_SILU && c.ends[0] == 2 && c.begin == 1 && c.eps == 1e-6);
    /* What is left out and what is null differ. */
    CHECK(t, load_config(SIZES "\"model_type\": \"mistral\", \"num_key_value_heads\": null}", &c,
                         &error));
    CHECK(t, c.kv_heads == 6 && c.window == 4096 && !c.full[0]);
    CHECK(t, load_config(SIZES "\"model_type\": \"mistral\", \"num_key_value_heads\": 2, "
                               "\"sliding_window\": null, \"attention_bias\": true}",
                         &c, &error));
    CHECK(t, c.kv_heads == 2 && !c.window && !c.attention_bias);
    CHECK(t, load_config(SIZES "\"model_type\": \"qwen3\", \"num_key_value_heads\": 3, "
                               "\"sliding_window\": 9, \"max_window_layers\": 1}",
                         &c, &error));
    CHECK(t, c.width == 128 && !c.window); /* use_sliding_window is false */
    CHECK(t, load_config(SIZES "\"model_type\": \"qwen2\", \"num_key_value_heads\": 3, "
                               "\"use_sliding_window\": true, \"sliding_window\": 9, "
                               "\"layer_types\": [\"full_attention\", \"full_attention\", "
                               "\"sliding_attention\"], \"max_window_layers\": 1, "
                               "\"eos_token_id\": [7, 5], \"pad_token_id\": 3}",
                         &c, &error));
    CHECK(t, c.window == 9 && c.full[0] == 3 && c.ends[1] == 5 && c.ends[2] == -1);
    CHECK(t, c.pad == 3);
    w = zf_config_json(llm_sample.config(), &c);
    test_defer(t, (test_cleanup *)zf_json_writer_free, w);
    text = zf_json_text(w, NULL, &error);
    CHECK(t, text && load_config(text, &again, &error) && !memcmp(&c, &again, sizeof c));
    /* Layers that alternate make a Mistral a Ministral; without a sliding one there is no
     * window. */
    CHECK(t, load_config(SIZES "\"model_type\": \"mistral\", \"num_key_value_heads\": 2, "
                               "\"layer_types\": [\"sliding_attention\", \"full_attention\", "
                               "\"sliding_attention\"]}",
                         &c, &error));
    CHECK(t, c.family == ZF_CAUSAL_MINISTRAL && c.window == 4096 && c.full[0] == 2);
    CHECK(t, load_config(SIZES "\"model_type\": \"qwen3\", \"num_key_value_heads\": 3, "
                               "\"use_sliding_window\": true, \"layer_types\": [\"full_attention\", "
                               "\"full_attention\", \"full_attention\"]}",
                         &c, &error));
    CHECK(t, !c.window && !c.full[0]);
    CHECK(t, load_config(SIZES "\"layer_types\": [\"full_attention\", \"full_attention\", "
                               "\"full_attention\"]}",
                         &c, &error));
}

/* The order of transformers 5: the object rope_scaling, unless it is empty, else rope_parameters;
 * in it rope_theta, else that of the file, else 10000. Nulls and keys of other tasks change
 * nothing. */
TEST_ONCE(llm_configurations_of_rope)
{
    static const struct {
        const char *text;
        double theta, factor;
        int64_t scaling;
    } ropes[] = {
        {SIZES "\"rope_scaling\": {}, \"rope_parameters\": {\"rope_theta\": 5e5}}", 5e5, 0,
         ZF_ROPE_PLAIN},
        {SIZES "\"rope_scaling\": null, \"rope_parameters\": {\"type\": \"linear\", \"factor\": "
               "3, \"beta_fast\": null}, \"rope_theta\": 7e4}",
         7e4, 3, ZF_ROPE_LINEAR},
        {SIZES "\"rope_scaling\": {\"rope_theta\": 2e4, \"rope_type\": \"default\", \"type\": "
               "\"yarn\"}, \"rope_parameters\": {}, \"rope_theta\": 20000}",
         2e4, 0, ZF_ROPE_PLAIN},
        {SIZES "\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2.5}}", 1e4, 2.5, ZF_ROPE_PLAIN},
        {SIZES "\"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": null, "
               "\"original_max_position_embeddings\": 20, \"beta_fast\": 0}}",
         1e4, 2.5, ZF_ROPE_YARN},
        {SIZES "\"rope_parameters\": {\"rope_type\": \"default\"}, \"final_logit_softcapping\": null, "
               "\"id2label\": {\"0\": \"a\"}, \"temperature\": 3, \"add_cross_attention\": false, "
               "\"pruned_heads\": {}, \"use_sliding_window\": false}",
         1e4, 0, ZF_ROPE_PLAIN},
    };
    zf_causal_config c;
    zf_error error;
    for (size_t k = 0; k < sizeof ropes / sizeof *ropes; k++) {
        (void)load_config(ropes[k].text, &c, &error);
        CHECK_TEXT(t, error.text, "");
        CHECK(t, c.theta == ropes[k].theta && c.scaling == ropes[k].scaling);
        CHECK(t, c.factor == ropes[k].factor);
    }
    /* PyTorch counts a negative [PAD] from the end; other ids beyond the vocabulary never occur. */
    CHECK(t, load_config(SIZES "\"pad_token_id\": -1, \"eos_token_id\": 50256}", &c, &error));
    CHECK(t, c.pad == 98 && c.ends[0] == 50256 && c.ends[1] == -1);
}

/* A member of the text part counts before one of the file; of both, but for ties, and what neither
 * has is as transformers has it. */
TEST_ONCE(llm_configurations_of_text_parts)
{
    zf_causal_config c;
    zf_error error = {ZF_OK, ""};
#define INNER "\"text_config\": {\"hidden_size\": 24, \"tie_word_embeddings\": "
    CHECK(t, load_config(SIZES "\"model_type\": \"qwen2_5_vl\", \"vision_config\": {}, "
                               "\"num_key_value_heads\": 2, " INNER "true}}",
                         &c, &error));
    CHECK(t, c.family == ZF_CAUSAL_QWEN2 && c.hidden == 24 && c.tied && c.eps == 1e-5 && c.vocab == 99);
    CHECK(t, load_config(SIZES "\"model_type\": \"qwen2_5_vl\", \"num_key_value_heads\": 3}", &c,
                         &error));
    CHECK(t, !c.tied && c.kv_heads == 3);
    CHECK(t, load_config(SIZES "\"model_type\": \"gemma3\", \"num_key_value_heads\": 2, "
                               "\"mm_tokens_per_image\": 4, " INNER "false, \"head_dim\": 6}}",
                         &c, &error));
    CHECK(t, c.family == ZF_CAUSAL_GEMMA3 && c.tied && c.width == 6 && c.query == 256);
    CHECK(t, load_config(SIZES "\"model_type\": \"gemma3\", \"num_key_value_heads\": 2, "
                               "\"tie_word_embeddings\": false, " INNER "true}}",
                         &c, &error));
    CHECK(t, !c.tied);
#undef INNER
}

TEST_ONCE(llm_configurations_that_are_refused)
{
    static const struct {
        const char *text, *problem;
    } bad[] = {
        {SIZES "\"model_type\": \"gemma\"}",
         ":2:15: model_type must be \"llama\", \"mistral\", \"ministral\", \"qwen2\", "
         "\"qwen3\", \"gemma3_text\", \"granite\", \"olmo2\", \"smollm3\", \"phi3\", "
         "\"gemma2\", \"starcoder2\", \"gpt_neox\", \"falcon\", \"mixtral\", \"qwen2_moe\", \"qwen3_moe\", \"olmoe\", \"deepseek_v3\", \"bloom\" or \"mpt\", not \"gemma\""},
        {SIZES "\"model_type\": \"gemma2\", \"num_key_value_heads\": 2, "
               "\"attn_logit_softcapping\": 0}",
         "attn_logit_softcapping must be a number from 0.001 to 1000000.0, not 0"},
        {SIZES "\"model_type\": \"gemma2\", \"rope_local_base_freq\": 10}",
         "rope_local_base_freq is not read, and may"},
        {SIZES "\"model_type\": \"gemma3\", \"text_config\": 3}",
         "text_config must be an object, not 3"},
        {SIZES "\"model_type\": \"qwen2_5_vl\", \"audio_config\": {}}", "audio_config is not read"},
        {SIZES "\"model_type\": \"qwen2_5_vl\", \"text_config\": {\"rope_scaling\": {\"type\": "
               "\"mrope\", \"factor\": 2}}}",
         "factor is not read in rope of the type mrope"},
        {SIZES "\"query_pre_attn_scalar\": 8}",
         ":2:26: query_pre_attn_scalar is not read, and may change what the model computes"},
        {SIZES "\"residual_multiplier\": 2}", "residual_multiplier is not read, and may change"},
        {SIZES "\"model_type\": \"olmo2\", \"partial_rotary_factor\": 0.5}",
         "partial_rotary_factor must be 1: all of a head is rotated, not 0.5"},
        {SIZES "\"model_type\": \"granite\", \"logits_scaling\": 0}",
         "logits_scaling must be a number from 1e-6 to 1000000.0, not 0"},
        {SIZES "\"model_type\": \"starcoder2\", \"rms_norm_eps\": 1e-6}",
         "rms_norm_eps must be 1.0000000000000001e-05, as norm_epsilon, not 1e-6"},
        {SIZES "\"model_type\": \"starcoder2\", \"mlp_bias\": false}",
         "mlp_bias must be true, as use_bias, not false"},
        {SIZES "\"model_type\": \"starcoder2\", \"use_bias\": false, \"attention_bias\": true}",
         "attention_bias must be false, as use_bias, not true"},
        {SIZES "\"norm_epsilon\": 1e-6}", "norm_epsilon is not read, and may change"},
        {MPT "\"expansion_ratio\": 3}", "expansion_ratio must be 4 in this family, not 3"},
        {MPT "\"no_bias\": false}", "no_bias must be true in this family, not false"},
        {MPT "\"logit_scale\": 0.5}", "logit_scale must be null in this family, not 0.5"},
        {MPT "\"attn_config\": {\"alibi\": false}}",
         "attn_config.alibi must be true: tokens have no other positions, not false"},
        {MPT "\"attn_config\": {\"qk_ln\": true}}",
         "attn_config.qk_ln must be false in this family, not true"},
        {MPT "\"attn_config\": {\"alibi_bias_max\": 16}}",
         "attn_config.alibi_bias_max must be 8 in this family, not 16"},
        {MPT "\"attn_config\": {\"attn_type\": \"multiquery_attention\"}}",
         "attn_config.attn_type must be multihead_attention, not \"multiquery_attention\""},
        {FALCON "\"apply_residual_connection_post_layernorm\": true}",
         "apply_residual_connection_post_layernorm must be false in this family, not true"},
        {FALCON "\"hidden_dropout\": 0.1}", "hidden_dropout must be 0 in this family, not 0.1"},
        {FALCON "\"hidden_act\": \"relu\"}", "hidden_act must be gelu, as activation, not \"relu\""},
        {FALCON "\"num_ln_in_parallel_attn\": 2}",
         "num_ln_in_parallel_attn must be 1 without new_decoder_architecture, not 2"},
        {FALCON "\"new_decoder_architecture\": true, \"parallel_attn\": false}",
         "parallel_attn must be true with new_decoder_architecture, not false"},
        {FALCON "\"multi_query\": false, \"num_kv_heads\": 2}",
         "num_kv_heads must be num_attention_heads (6) without multi_query, not 2"},
        {FALCON "\"num_key_value_heads\": 2}", "num_key_value_heads must be 1 in this family, not 2"},
        {FALCON "\"intermediate_size\": 7}", "intermediate_size must be 48 in this family, not 7"},
        {FALCON "\"head_dim\": 4}", "head_dim must be 2 in this family, not 4"},
        {FALCON "\"sliding_window\": 4}", "sliding_window must be null in this family, not 4"},
        {FALCON "\"mlp_bias\": true}", "mlp_bias must be false, as bias, not true"},
        {FALCON "\"attention_bias\": true}", "attention_bias must be false, as bias, not true"},
        {FALCON "\"partial_rotary_factor\": 0.5}", "partial_rotary_factor must be 1: all of a head"},
        {SIZES "\"ffn_hidden_size\": 7}", "ffn_hidden_size is not read, and may change"},
        {"{\"vocab_size\": 99}", "lacks \"max_position_embeddings\""},
        {NEOX "\"tie_word_embeddings\": true}",
         "tie_word_embeddings must be false in this family, not true"},
        {NEOX "\"num_key_value_heads\": 2}",
         "num_key_value_heads must be num_attention_heads (6) in this family, not 2"},
        {NEOX "\"head_dim\": 4}",
         "head_dim must be hidden_size / num_attention_heads in this family, not 4"},
        {NEOX "\"rope_theta\": 500}",
         "rope_theta must be 10000, as rope of this family has it, not 500"},
        {NEOX "\"rope_parameters\": {\"rope_theta\": 500}, \"rotary_emb_base\": 600}",
         "rotary_emb_base must be 500, as rope of this family has it, not 600"},
        {NEOX "\"partial_rotary_factor\": 0.5}",
         "partial_rotary_factor must be 1, as rope of this family has it, not 0.5"},
        {NEOX "\"sliding_window\": 5}", "sliding_window must be null in this family, not 5"},
        {NEOX "\"mlp_bias\": false}", "mlp_bias must be true in this family, not false"},
        {NEOX "\"rms_norm_eps\": 1e-6}", "rms_norm_eps must be "},
        {SIZES "\"model_type\": \"gpt_neox\"}",
         "hidden_size with partial_rotary_factor gives heads of which 0 numbers are rotated"},
        {SIZES "\"use_parallel_residual\": true}", "use_parallel_residual is not read, and may"},
        {LONGROPE "}, \"full_attn_mod\": 2}", "full_attn_mod must be 1 in this family, not 2"},
        {LONGROPE "}, \"interpolate_factor\": 2}",
         "interpolate_factor must be 1 in this family, not 2"},
        {LONGROPE "}, \"lm_head_bias\": true}", "lm_head_bias must be false in this family, not true"},
        {SIZES "\"model_type\": \"starcoder2\", \"mlp_type\": \"gated\"}",
         "mlp_type must be \"default\", not \"gated\""},
        {SIZES "\"model_type\": \"starcoder2\", \"norm_type\": \"rms\"}",
         "norm_type must be \"layer_norm\", not \"rms\""},
        {SIZES "\"model_type\": \"starcoder2\", \"scale_attn_weights\": false}",
         "scale_attn_weights must be true, not false"},
        {LONGROPE ", \"mscale\": 1}}", "rope_scaling.mscale is not read in rope of the type longrope"},
        {LONGROPE "}, \"rope_theta\": 400}", "rope_theta must be 500, as in the object of rope, not 400"},
        {LONGROPE ", \"original_max_position_embeddings\": 9}, "
                  "\"original_max_position_embeddings\": 8}",
         "original_max_position_embeddings must be 9, as in the object of rope, not 8"},
        {LONGROPE "}, \"rope_parameters\": {\"rope_theta\": 500}}",
         "rope_parameters is not read where there is rope_scaling"},
        {LONGROPE "}, \"head_dim\": 4}",
         "short_factor must be a list of 2 numbers, one for each frequency, not an array"},
        {LONGROPE "}, \"head_dim\": 130}",
         "rope_scaling is of heads of which 130 numbers are rotated; at most 128 are possible"},
        {LONGROPE ", \"attention_factor\": 0}}",
         "attention_factor must be a number from 1e-6 to 1000000.0, not 0"},
        {SIZES "\"model_type\": \"phi3\", \"rope_scaling\": {\"type\": \"su\", \"short_factor\": [1]}}",
         "rope_scaling lacks \"long_factor\""},
        {SIZES "\"model_type\": \"phi3\", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}}",
         "rope_scaling must be of the type default or longrope in this family"},
        {SIZES "\"model_type\": \"phi3\", \"resid_pdrop\": 0.1}", "resid_pdrop must be 0, not 0.1"},
        {SIZES "\"model_type\": \"phi3\", \"partial_rotary_factor\": 0.5}",
         "hidden_size with partial_rotary_factor gives heads of which 1 numbers are rotated; the "
         "number must be even and at least 2"},
        {SIZES "\"model_type\": \"smollm3\", \"num_key_value_heads\": 2, \"no_rope_layers\": [1]}",
         "no_rope_layers must be a list of num_hidden_layers (3), not an array"},
        {SIZES "\"model_type\": \"smollm3\", \"num_key_value_heads\": 2, "
               "\"partial_rotary_factor\": 0.5}",
         "partial_rotary_factor must be 1: all of a head is rotated, not 0.5"},
        {GEMMA "\"hidden_activation\": \"gelu\"}",
         "hidden_activation must be gelu_pytorch_tanh, not \"gelu\""},
        {GEMMA "\"use_bidirectional_attention\": true}",
         "use_bidirectional_attention must be false, not true"},
        {GEMMA "\"rope_parameters\": {\"rope_type\": \"default\"}}",
         "rope_parameters.rope_type is not read: rope of this family is in full_attention and"},
        {GEMMA "\"rope_parameters\": {\"sliding_attention\": {\"rope_type\": \"linear\", "
               "\"factor\": 2}}}",
         "sliding_attention is scaled, which layers with a window are not"},
        {GEMMA "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}}",
         "rope_scaling lacks \"rope_type\""},
        {GEMMA "\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 2}, "
               "\"rope_parameters\": {\"full_attention\": {}}}",
         "rope_scaling is not read where rope_parameters has full_attention"},
        {SIZES "\"rope_scaling\": {\"type\": \"longrope\", \"factor\": 2}}",
         ":2:26: rope_scaling.type must be default, linear, dynamic, llama3 or yarn, not "
         "\"longrope\""},
        {SIZES "\"rope_scaling\": {\"type\": \"yarn\"}}", ":2:17: rope_scaling lacks \"factor\""},
        {SIZES "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2, \"beta_slow\": 40}}",
         ":2:17: rope_scaling must be a beta_fast not below beta_slow (40), not an object"},
        {SIZES "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2, \"attention_factor\": 0}}",
         "rope_scaling.attention_factor must be a number from 1e-6 to 1000000.0, not 0"},
        {SIZES "\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2, \"alpha\": 1000}}",
         "rope_scaling.alpha is not read in rope of the type dynamic"},
        {SIZES "\"rope_scaling\": {\"rope_type\": \"linear\"}}",
         ":2:17: rope_scaling lacks \"factor\""},
        {SIZES "\"partial_rotary_factor\": 0.5}",
         ":2:26: partial_rotary_factor must be 1: all of a head is rotated, not 0.5"},
        {SIZES "\"hidden_act\": \"mish\"}",
         ":2:15: hidden_act must be one of gelu, gelu_new, gelu_pytorch_tanh, relu and silu, not "
         "\"mish\""},
        {SIZES "\"num_key_value_heads\": 4}",
         "config.json: num_key_value_heads (4) must be a divisor of num_attention_heads (6)"},
        {SIZES "\"head_dim\": 5}", "config.json: heads are 5 wide; rope needs an even width"},
        {SIZES "\"quantization_config\": {}}", ":2:24: quantization_config says that the weights "
                                               "are quantised, which is not read"},
        {SIZES "\"model_type\": \"qwen2\", \"num_key_value_heads\": 3, "
               "\"use_sliding_window\": true, \"layer_types\": [\"sliding_attention\", "
               "\"chunked_attention\", \"full_attention\"]}",
         ":2:115: layer_types[1] must be full_attention or sliding_attention, not "
         "\"chunked_attention\""},
        {SIZES "\"model_type\": \"qwen3\", \"num_key_value_heads\": 3, \"layer_types\": "
               "[\"sliding_attention\", \"full_attention\", \"full_attention\"]}",
         ":2:65: layer_types names sliding layers, and there is no sliding_window"},
        {SIZES "\"layer_types\": [\"sliding_attention\", \"full_attention\", "
               "\"full_attention\"]}",
         ":2:16: layer_types names sliding layers, and there is no sliding_window in a llama"},
        {SIZES "\"model_type\": \"mistral\", \"num_key_value_heads\": 2, \"layer_types\": "
               "[\"full_attention\"]}",
         ":2:67: layer_types must be a list of num_hidden_layers (3), not an array"},
        {SIZES "\"eos_token_id\": [5, -2]}",
         ":2:21: eos_token_id[1] must be an integer from -1 to 2147483647, not -2"},
        {SIZES "\"pad_token_id\": 99}",
         ":2:17: pad_token_id must be an integer from -99 to 98, not 99"},
        {SIZES "\"sliding_window\": 9}", ":2:19: sliding_window must be null in a llama, not 9"},
        {SIZES "\"use_sliding_window\": true}",
         ":2:23: use_sliding_window must be false in this family, which does not read it, not "
         "true"},
        {SIZES "\"attn_logit_softcapping\": 30}",
         ":2:27: attn_logit_softcapping is not read, and may change what the model computes; "
         "remove it if it changes nothing"},
        {SIZES "\"is_encoder_decoder\": true}",
         ":2:23: is_encoder_decoder must be false, not true"},
        /* rope */
        {SIZES "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}, \"rope_parameters\": "
               "{\"rope_theta\": 5e5}}",
         ":2:69: rope_parameters is not read where there is rope_scaling: one of the two must say "
         "all"},
        {SIZES "\"rope_parameters\": {\"rope_theta\": 5e5}, \"rope_theta\": 1e4}",
         ":2:55: rope_theta must be 500000, as in the object of rope, not 1e4"},
        {SIZES "\"rope_parameters\": {\"rope_type\": \"default\", \"factor\": 2}}",
         ":2:55: rope_parameters.factor is not read in rope of the type default"},
        {SIZES "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2, \"mscale\": 1}}",
         ":2:59: rope_scaling.mscale is not read in rope of the type linear"},
        {SIZES "\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 2, "
               "\"low_freq_factor\": 1, \"high_freq_factor\": 1}}",
         ":2:96: rope_scaling.high_freq_factor must be above low_freq_factor (1), not 1"},
        {SIZES "\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 2, "
               "\"low_freq_factor\": 1, \"high_freq_factor\": 4, \"beta_fast\": 32}}",
         ":2:112: rope_scaling.beta_fast is not read in rope of the type llama3"},
        {SIZES "\"rope_parameters\": {\"full_attention\": {\"rope_theta\": 5e5}, "
               "\"sliding_attention\": {}}}",
         ":2:39: rope_parameters.full_attention is of some layers alone; all layers must have one "
         "kind of rope"},
        {SIZES "\"rope_parameters\": {\"partial_rotary_factor\": 0.5}}",
         ":2:46: rope_parameters.partial_rotary_factor must be 1: all of a head is rotated, not "
         "0.5"},
        {SIZES "\"rope_scaling\": 4}", ":2:17: rope_scaling must be an object, not 4"},
        /* experts */
        {SIZES "\"model_type\": \"mixtral\", \"num_key_value_heads\": 3, \"num_local_experts\": 3, "
               "\"num_experts_per_tok\": 4}",
         "num_experts_per_tok must be at most the number of experts (3), not 4"},
        {SIZES "\"model_type\": \"mixtral\", \"num_key_value_heads\": 3, "
               "\"router_jitter_noise\": 0.01}",
         "router_jitter_noise must be 0: there is no noise of routers, not 0.01"},
        {SIZES "\"model_type\": \"qwen2_moe\", \"num_key_value_heads\": 3, \"qkv_bias\": false}",
         "qkv_bias must be true in this family, not false"},
        {SIZES "\"model_type\": \"qwen3_moe\", \"num_key_value_heads\": 3, \"mlp_only_layers\": "
               "[3]}",
         "mlp_only_layers[0] must be an integer from 0 to 2, not 3"},
        {SIZES "\"model_type\": \"qwen3_moe\", \"num_key_value_heads\": 3, "
               "\"use_sliding_window\": true}",
         "use_sliding_window must be false in this family, not true"},
        {SIZES "\"model_type\": \"olmoe\", \"clip_qkv\": 8}",
         "clip_qkv must be null in this family, not 8"},
        {SIZES "\"model_type\": \"deepseek_v3\", \"kv_lora_rank\": 8}",
         "model_type has latent attention (kv_lora_rank), which is not there; its router is, in C "
         "(zf_route)"},
    };
    size_t prefix = strlen(test_path("llm-config.json"));
    zf_causal_config c;
    zf_error error;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CHECK(t, !load_config(bad[i].text, &c, &error));
        const char *got = error.text + (bad[i].problem[0] == ':' ? prefix : 0);
        if (!strstr(got, bad[i].problem)) CHECK_TEXT(t, got, bad[i].problem);
    }
}
