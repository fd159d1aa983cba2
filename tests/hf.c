/* Model folders as transformers writes and reads them (tests/golden/hf/make.py says how these are
 * made): losses and gradients of what is in them, and what goes out again. */
#include "golden.h"

#include "../examples/bert/batchfile.h"
#include "../examples/bert/commands.h"
#include "../examples/gpt/session.h"

#define GOLDEN "tests/golden/hf/"

static void close_bert(void *s) { bert_session_close(s); }
static void close_gpt(void *s) { gpt_session_close(s); }
static void free_bert_batches(void *f) { bert_batch_file_free(f); }
static void free_gpt_batches(void *f) { gpt_batch_file_free(f); }

/* What transformers has computed of a case of losses.json. */
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

static bool open_bert(test *t, const bert_case *c, bert_session *s, const bert_batch **batch)
{
    bert_session_desc d = {.threads = 1, .seed = 1, .train = true, .optimizer = BERT_ADAMW};
    zf_error error = {ZF_OK, ""};
    weights_report report;
    bert_batch_file *f = NULL;
    bool good = bert_config_load(c->folder, &d.config, &error) &&
                bert_config_take(&d.config, c->folder, &error) &&
                (f = bert_batch_file_load(c->batch, d.config.vocab, d.config.types, &error));
    if (f) test_defer(t, free_bert_batches, f);
    if (good && !f->next_sentences) d.config.nsp = 0;
    if (good && c->activation >= 0) d.config.activation = c->activation;
    if (good) d.shape = (bert_shape){f->examples, f->sequence, f->predictions};
    good = good && bert_session_open(s, &d, &error);
    if (good) {
        test_defer(t, close_bert, s);
        good = !bert_session_take(s, c->folder, &report, &error) && !report.fresh && !report.unused;
        *batch = &f->batch[0];
    }
    if (!good) test_fail(t, __FILE__, __LINE__, c->name, error.text);
    return good;
}

static void check_bert(test *t, const bert_case *c)
{
    static bert_session s; /* outlives what the test defers */
    const bert_batch *b;
    double loss, norm;
    float lr = 0;
    CHECK(t, expected(t, c->name, &loss, &norm) && open_bert(t, c, &s, &b));
    OK(t, bert_session_feed(&s, b, b->labelled, b->pairs), zf_program_error(s.program));
    OK(t, zf_write(s.program, s.model.lr, &lr, sizeof lr), zf_program_error(s.program));
    OK(t, zf_step(s.program), zf_program_error(s.program));
    CHECK_NEAR(t, bert_session_scalar(&s, s.model.loss), loss, 1e-5 * loss);
    CHECK_NEAR(t, bert_session_scalar(&s, zf_graph_find(s.graph, "grad_norm")), norm, 1e-5 * norm);
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

TEST_ONCE(hf_gpt_of_its_own_head_with_padding)
{
    gpt_session_desc d = {.purpose = GPT_TRAIN, .threads = 1, .seed = 1};
    zf_error error = {ZF_OK, ""};
    static gpt_session s; /* outlive what the test defers */
    static gpt_batch_file f;
    weights_report report;
    double loss, norm;
    float lr = 0;
    CHECK(t, expected(t, "gpt", &loss, &norm));
    CHECK(t, gpt_config_load(GOLDEN "gpt", &d.config, &error) &&
                 gpt_config_fit(&d.config, GOLDEN "gpt", &error) && !d.config.tied);
    CHECK(t, gpt_batch_file_load(&f, GOLDEN "gpt-batch.safetensors", d.config.vocab, &error));
    test_defer(t, free_gpt_batches, &f);
    d.shape = (gpt_shape){f.batch[0].examples, f.batch[0].sequence, f.masked};
    CHECK(t, f.masked && gpt_session_open(&s, &d, &error));
    test_defer(t, close_gpt, &s);
    CHECK(t, gpt_import(s.program, s.graph, GOLDEN "gpt", &report, &error));
    CHECK(t, !report.fresh && !report.unused);
    OK(t, gpt_session_feed(&s, &f.batch[0]), zf_program_error(s.program));
    OK(t, zf_write(s.program, s.model.lr, &lr, sizeof lr), zf_program_error(s.program));
    OK(t, zf_step(s.program), zf_program_error(s.program));
    CHECK_NEAR(t, gpt_session_scalar(&s, "loss"), loss, 1e-5 * loss);
    CHECK_NEAR(t, gpt_session_scalar(&s, "grad_norm"), norm, 1e-5 * norm);
}
