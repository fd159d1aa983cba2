/* GPT-2 against PyTorch (tests/golden/gpt/make.py says how the files are made), its weights as
 * Hugging Face files, and the sample's other commands. */
#include "generated.h"
#include "../support/golden.h"

#include "../../examples/frame/data/causal_batch.h"
#include "../../examples/gpt/model.h"

#define GOLDEN "tests/golden/gpt/"

enum { STEPS = 10, VOCAB = 97 };

static void close_session(void *s) { session_close(s); }
static void free_batches(void *f) { causal_batch_file_free(f); }
static void free_batch(void *b) { zf_causal_batch_free(b); }
static void free_json(void *json) { zf_json_free(json); }

/* The key's third of c_attn.bias has no gradient: it adds one number to all scores of a query. */
static bool has_key_bias(const char *name) { return strstr(name, ".c_attn.bias") != NULL; }

/* --------------------------------------------------------------------------------- sessions */

/* What the goldens were made with. */
static session_desc recipe(sample_purpose purpose)
{
    static gpt_config config;
    session_desc d = {.sample = &gpt_sample,
                      .purpose = purpose,
                      .config = &config,
                      .threads = 1,
                      .training = {.adamw.weight_decay = 0.1, .clip = 1}};
    zf_error error = {ZF_OK, ""};
    (void)gpt_config_load(GOLDEN "config.json", &config, &error);
    d.shape = (sample_shape){.batch = 3, .sequence = 24};
    return d;
}

static bool open_batches(test *t, causal_batch_file *f)
{
    zf_error error = {ZF_OK, ""};
    bool good = causal_batch_file_load(f, GOLDEN "batch.safetensors", VOCAB, &error);
    if (!good) test_fail(t, __FILE__, __LINE__, "the batches can be opened", error.text);
    else test_defer(t, free_batches, f);
    return good;
}

/* A session with the golden model's first parameters. */
static bool open_session(test *t, session *s, const session_desc *d)
{
    zf_error error = {ZF_OK, ""};
    zf_weights_report report;
    bool good = session_open(s, d, &error);
    if (good) test_defer(t, close_session, s);
    if (good && !d->share)
        good = zf_exchange_import(gpt_sample.exchange(), s->program, s->graph,
                                  GOLDEN "init.safetensors", &report, &error) &&
               !report.fresh && !report.unused;
    if (!good) test_fail(t, __FILE__, __LINE__, "a session can be opened", error.text);
    return good;
}

static zf_status train_step(session *s, const causal_batch_file *f, int64_t step, float lr)
{
    zf_status status = session_feed(s, &f->batch[step % f->entries], false);
    if (!status) status = zf_write(s->program, s->lr, &lr, sizeof lr);
    return status ? status : zf_step(s->program);
}

/* --------------------------------------------------------------------------------- training */

/* Loss and gradients of the first batch, fused or not. */
static void compare_gradients(test *t, const char *no_fuse)
{
    const char *path = test_path("gpt-gradients.safetensors");
    session_desc d = recipe(SAMPLE_TRAIN);
    zf_safetensors *golden = open_file(t, GOLDEN "step0.safetensors"), *own;
    zf_error error = {ZF_OK, ""};
    static session s; /* outlive what the test defers */
    static causal_batch_file f;
    int compared = 0;
    int64_t count;
    double *value, expected;
    d.training.fuse.without = no_fuse, d.training.keep_gradients = true;
    CHECK(t, golden && open_batches(t, &f) && open_session(t, &s, &d));
    OK(t, train_step(&s, &f, 0, 1e-3f), zf_program_error(s.program));
    value = values_of(golden, "loss", &count), expected = value ? *value : NAN;
    free(value);
    CHECK_NEAR(t, session_scalar(&s, "loss"), expected, 1e-5 * expected);
    CHECK(t,
          zf_exchange_export(gpt_sample.exchange(), s.program, s.graph, path, true, ZF_F32, &error));
    own = open_file(t, path);
    CHECK(t, own && zf_safetensors_count(own) == zf_param_count(s.graph));
    for (int32_t i = 0; i < zf_safetensors_count(golden); i++) {
        const char *name = zf_safetensors_at(golden, i)->name;
        if (!strcmp(name, "loss")) continue;
        compared++;
        if (!(error_of(own, golden, name) <= 1e-10)) {
            char text[200];
            snprintf(text, sizeof text, "%s is off by %g", name, error_of(own, golden, name));
            test_fail(t, __FILE__, __LINE__, "a gradient is PyTorch's", text);
        }
    }
    CHECK(t, compared == zf_param_count(s.graph));
}

TEST_ONCE(gpt_loss_and_gradients_are_pytorchs) { compare_gradients(t, NULL); }
TEST_ONCE(gpt_loss_and_gradients_without_fusion_are_pytorchs) { compare_gradients(t, "all"); }

/* The results of ten steps: losses and gradient norms, parameters in a file. */
typedef struct course {
    double loss[STEPS + 1], norm[STEPS];
} course;

/* loss[STEPS] is the one of entry 0 after the last update. */
static bool run_course(test *t, course *c, int64_t threads, const char *params)
{
    session_desc d = recipe(SAMPLE_TRAIN);
    zf_error error = {ZF_OK, ""};
    zf_status status = ZF_OK;
    static session s; /* outlive what the test defers */
    static causal_batch_file f;
    d.threads = threads;
    if (!open_batches(t, &f) || !open_session(t, &s, &d)) return false;
    for (int k = 0; k < STEPS && !status; k++) {
        status = train_step(&s, &f, k, 1e-3f);
        c->loss[k] = session_scalar(&s, "loss");
        c->norm[k] = session_scalar(&s, "grad_norm");
    }
    if (!status && !zf_exchange_export(gpt_sample.exchange(), s.program, s.graph, params, false,
                                       ZF_F32, &error)) {
        test_fail(t, __FILE__, __LINE__, "the parameters can be exported", error.text);
        return false;
    }
    if (!status) status = train_step(&s, &f, 0, 0);
    c->loss[STEPS] = session_scalar(&s, "loss");
    if (status) test_fail(t, __FILE__, __LINE__, "ten steps", zf_program_error(s.program));
    session_close(&s); /* the test then closes it again, which does nothing */
    causal_batch_file_free(&f);
    return !status;
}

/* Ten steps equal PyTorch's in double precision within the rounding of single precision, and are
 * equal to the last bit on any number of threads. */
TEST_ONCE(gpt_ten_adamw_steps_are_pytorchs)
{
    const char *first = test_path("gpt-one.safetensors"), *second;
    zf_error error = {ZF_OK, ""};
    zf_json *golden = zf_json_read(GOLDEN "adamw10.json", NULL, &error);
    zf_safetensors *params, *golden_params;
    course one, other;
    double after = NAN;
    NEED(t, golden, &error);
    test_defer(t, free_json, golden);
    CHECK(t, run_course(t, &one, 1, first));
    for (int k = 0; k < STEPS; k++) {
        double loss = NAN, norm = NAN;
        zf_json_to_double(zf_json_element(zf_json_require(golden, "loss", &error), k), 0, 1e3,
                          &loss, &error);
        zf_json_to_double(zf_json_element(zf_json_require(golden, "grad_norm", &error), k), 0, 1e3,
                          &norm, &error);
        CHECK_NEAR(t, one.loss[k], loss, 1e-5 * loss);
        CHECK_NEAR(t, one.norm[k], norm, 1e-5 * norm);
    }
    zf_json_to_double(zf_json_require(golden, "loss_after", &error), 0, 1e3, &after, &error);
    CHECK_NEAR(t, one.loss[STEPS], after, 1e-5 * after);
    params = open_file(t, first), golden_params = open_file(t, GOLDEN "adamw10_params.safetensors");
    CHECK(t, params && golden_params &&
                 zf_safetensors_count(params) == zf_safetensors_count(golden_params));
    for (int32_t i = 0; i < zf_safetensors_count(golden_params); i++) {
        const char *name = zf_safetensors_at(golden_params, i)->name;
        if (has_key_bias(name) || error_of(params, golden_params, name) <= 1e-10) continue;
        test_fail(t, __FILE__, __LINE__, "a parameter is PyTorch's after ten steps", name);
    }
    second = test_path("gpt-other.safetensors");
    for (int64_t threads = 2; threads <= 3; threads++) {
        CHECK(t, run_course(t, &other, threads, second));
        CHECK(t, !memcmp(&one, &other, sizeof one) && same_files(first, second));
    }
}

/* The loss of a batch that is fed in so many parts. */
static double loss_in_parts(test *t, const causal_batch_file *f, int64_t parts, bool sums)
{
    session_desc d = recipe(SAMPLE_EVALUATE);
    static session all[4]; /* outlive what the test defers */
    static int opened;
    session *s = &all[opened++ % 4];
    zf_status status;
    d.shape.batch /= parts, d.training.zero.micro_batches = parts;
    if (!open_session(t, s, &d)) return NAN;
    status = session_feed(s, &f->batch[0], sums);
    if (!status) status = zf_step(s->program);
    if (status) test_fail(t, __FILE__, __LINE__, "a step", zf_program_error(s->program));
    return session_scalar(s, "loss");
}

TEST_ONCE(gpt_parts_of_a_batch)
{
    static causal_batch_file f;
    double whole;
    CHECK(t, open_batches(t, &f));
    whole = loss_in_parts(t, &f, 1, false);
    CHECK_NEAR(t, loss_in_parts(t, &f, 3, false), whole, 1e-6 * whole);
    whole *= (double)f.batch[0].labelled;
    CHECK_NEAR(t, loss_in_parts(t, &f, 1, true), whole, 1e-6 * whole);
    CHECK_NEAR(t, loss_in_parts(t, &f, 3, true), whole, 1e-6 * whole);
}

/* The standard deviation of a parameter's first values. */
static double spread(session *s, const char *name)
{
    zf_tensor param = zf_graph_find(s->graph, name);
    size_t bytes = zf_tensor_bytes(param);
    float *x = malloc(bytes + 1);
    double sum = 0;
    if (!x || !bytes || zf_read(s->program, param, x, bytes)) sum = NAN;
    for (size_t i = 0; i < bytes / sizeof *x && x; i++) sum += x[i] * x[i];
    free(x);
    return sqrt(sum / (double)(bytes / sizeof *x));
}

TEST_ONCE(gpt_layers_that_add_to_the_residual_start_smaller)
{
    gpt_config config;
    session_desc d = {.sample = &gpt_sample,
                      .purpose = SAMPLE_EVALUATE,
                      .config = &config,
                      .shape = {.batch = 1, .sequence = 4},
                      .threads = 1,
                      .seed = 1};
    zf_error error = {ZF_OK, ""};
    static session s;
    double word;
    CHECK(t, gpt_config_load("small", &config, &error) && session_open(&s, &d, &error));
    test_defer(t, close_session, &s);
    word = spread(&s, "transformer.wte.weight");
    CHECK_NEAR(t, word, 0.88 * 0.02, 0.001); /* a normal cut at two deviations has 0.88 of one */
    CHECK_NEAR(t, spread(&s, "transformer.h.3.attn.c_attn.weight") / word, 1, 0.01);
    CHECK_NEAR(t, spread(&s, "transformer.h.3.mlp.c_fc.weight") / word, 1, 0.01);
    CHECK_NEAR(t, spread(&s, "transformer.h.3.attn.c_proj.weight") / word, 1 / sqrt(8), 0.01);
    CHECK_NEAR(t, spread(&s, "transformer.h.3.mlp.c_proj.weight") / word, 1 / sqrt(8), 0.01);
}

/* -------------------------------------------------------------------------------- generation */

/* The logits of what follows token `last` of each example. */
static bool logits_of(test *t, session *s, const int32_t *ids, int32_t last, float *out)
{
    int32_t at[3] = {last, 24 + last, 48 + last};
    zf_status status = session_write(s, "input_ids", ids, 3 * 24 * sizeof *ids);
    if (!status) status = session_write(s, "last", at, sizeof at);
    if (!status) status = zf_step(s->program);
    if (!status)
        status =
            zf_read(s->program, zf_graph_find(s->graph, "logits"), out, 3 * VOCAB * sizeof *out);
    if (status) test_fail(t, __FILE__, __LINE__, "logits", zf_program_error(s->program));
    return !status;
}

/* The loss of a trained model is the mean of -log p over the tokens, with p from the logits of
 * generation. */
TEST_ONCE(gpt_generation_has_the_probabilities_of_training)
{
    session_desc d = recipe(SAMPLE_EVALUATE);
    static session s, writer;
    static causal_batch_file f;
    float logits[3][VOCAB];
    const zf_causal_batch *b;
    double sum = 0;
    CHECK(t, open_batches(t, &f) && open_session(t, &s, &d));
    d.purpose = SAMPLE_ANSWER, d.share = &s;
    CHECK(t, open_session(t, &writer, &d));
    b = &f.batch[0];
    for (int32_t at = 0; at < 24; at++) {
        CHECK(t, logits_of(t, &writer, b->ids, at, logits[0]));
        for (int row = 0; row < 3; row++) {
            int32_t label = b->labels[row * 24 + at];
            double all = 0;
            for (int v = 0; v < VOCAB; v++) all += exp(logits[row][v]);
            if (label != -100) sum += log(all) - logits[row][label];
        }
    }
    OK(t, session_feed(&s, b, false), zf_program_error(s.program));
    OK(t, zf_step(s.program), zf_program_error(s.program));
    CHECK_NEAR(t, sum / (double)b->labelled, session_scalar(&s, "loss"), 1e-5);
}

TEST_ONCE(gpt_sees_no_later_token)
{
    session_desc d = recipe(SAMPLE_ANSWER);
    static session s;
    static causal_batch_file f;
    float before[3 * VOCAB], after[3 * VOCAB];
    CHECK(t, open_batches(t, &f) && open_session(t, &s, &d));
    CHECK(t, logits_of(t, &s, f.batch[0].ids, 10, before));
    f.batch[0].ids[11] ^= 1;
    CHECK(t, logits_of(t, &s, f.batch[0].ids, 10, after));
    CHECK(t, !memcmp(before, after, sizeof before));
    f.batch[0].ids[10] ^= 1;
    CHECK(t, logits_of(t, &s, f.batch[0].ids, 10, after));
    CHECK(t, memcmp(before, after, VOCAB * sizeof *before));
    CHECK(t, !memcmp(before + VOCAB, after + VOCAB, 2 * VOCAB * sizeof *before)); /* others */
}

/* ---------------------------------------------------------------------------------- weights */

TEST_ONCE(gpt_export_of_what_was_imported_is_the_file)
{
    const char *path = test_path("gpt-again.safetensors");
    session_desc d = recipe(SAMPLE_EVALUATE);
    zf_safetensors *golden = open_file(t, GOLDEN "init.safetensors"), *own;
    zf_error error = {ZF_OK, ""};
    static session s;
    CHECK(t, golden && open_session(t, &s, &d));
    CHECK(t, zf_exchange_export(gpt_sample.exchange(), s.program, s.graph, path, false, ZF_F32,
                                &error));
    own = open_file(t, path);
    CHECK(t, own && zf_safetensors_count(own) == zf_safetensors_count(golden));
    for (int32_t i = 0; i < zf_safetensors_count(golden); i++) {
        const zf_safetensors_entry *e = zf_safetensors_at(golden, i);
        int32_t at = zf_safetensors_find(own, e->name);
        CHECK(t, at >= 0 && error_of(own, golden, e->name) == 0);
        CHECK(t, !memcmp(&zf_safetensors_at(own, at)->shape, &e->shape, sizeof e->shape));
    }
    /* Files have Conv1D's weights as [in, out]. */
    CHECK(t, zf_safetensors_at(own, zf_safetensors_find(own, "transformer.h.0.attn.c_attn.weight"))
                     ->shape.dims[1] == 96);
}

/* A file that differs from golden/gpt/init.safetensors. */
typedef struct variant {
    bool bare;           /* without "transformer." */
    bool buffers;        /* with the masks that old files have */
    const char *head;    /* the tied head's name: with it; instead of wte where that is left out */
    const char *without; /* this one left out */
    const char *more;    /* a tensor of this name besides */
    const char *flat;    /* this one in one dimension */
} variant;

/* Declares the tensors, or writes them. */
static void put_tensors(zf_safetensors_writer *w, zf_safetensors *file, const variant *v,
                        bool writing)
{
    static const float mask[4] = {1, 0, 1, 1};
    const char *const extra[] = {v->more, v->buffers ? "h.0.attn.bias" : NULL,
                                 v->buffers ? "transformer.h.1.attn.masked_bias" : NULL};
    int32_t index = 0;
    for (int32_t i = 0; i < zf_safetensors_count(file); i++) {
        const zf_safetensors_entry *e = zf_safetensors_at(file, i);
        const char *name = v->bare ? strchr(e->name, '.') + 1 : e->name;
        bool words = strstr(e->name, ".wte.") != NULL,
             without = v->without && !strcmp(e->name, v->without);
        for (int copy = 0; copy < 2; copy++) {
            float *data = malloc(e->bytes);
            zf_error error = {ZF_OK, ""};
            bool wanted = copy ? words && v->head : !without;
            zf_shape shape = v->flat && !strcmp(e->name, v->flat)
                                 ? ZF_SHAPE(zf_shape_count(e->shape))
                                 : e->shape;
            if (wanted && !writing) zf_safetensors_declare(w, copy ? v->head : name, ZF_F32, shape);
            else if (wanted && data && !zf_safetensors_read(file, i, data, e->bytes, &error))
                zf_safetensors_write(w, index++, data, e->bytes);
            free(data);
        }
    }
    for (int k = 0; k < 3; k++)
        if (extra[k] && !writing) zf_safetensors_declare(w, extra[k], ZF_F32, ZF_SHAPE(2, 2));
        else if (extra[k]) zf_safetensors_write(w, index++, mask, sizeof mask);
}

/* Imports the variant. problem: the error after the path; NULL: the result is that of the golden
 * file. */
static void check_import(test *t, const variant *v, const char *problem)
{
    const char *path = test_path("gpt-variant.safetensors"), *out;
    session_desc d = recipe(SAMPLE_EVALUATE);
    zf_safetensors *golden = open_file(t, GOLDEN "init.safetensors"), *own;
    zf_error error = {ZF_OK, ""};
    zf_safetensors_writer *w = zf_safetensors_writer_new(path, NULL, &error);
    zf_weights_report report;
    static session s;
    bool good;
    CHECK(t, golden && w);
    put_tensors(w, golden, v, false);
    put_tensors(w, golden, v, true);
    good = !zf_safetensors_finish(w, &error);
    zf_safetensors_writer_free(w);
    CHECK(t, good && session_open(&s, &d, &error));
    test_defer(t, close_session, &s);
    good = zf_exchange_import(gpt_sample.exchange(), s.program, s.graph, path, &report, &error);
    CHECK(t, good == !problem && good == !error.status);
    if (problem) {
        CHECK(t, !strncmp(error.text, path, strlen(path)));
        CHECK_TEXT(t, error.text + strlen(path), problem);
        return;
    }
    out = test_path("gpt-variant-out.safetensors");
    CHECK(t,
          zf_exchange_export(gpt_sample.exchange(), s.program, s.graph, out, false, ZF_F32, &error));
    own = open_file(t, out);
    CHECK(t, own);
    for (int32_t i = 0; i < zf_safetensors_count(golden); i++)
        CHECK(t, error_of(own, golden, zf_safetensors_at(golden, i)->name) == 0);
}

TEST_ONCE(gpt_generates_as_transformers)
{
    check_generated(t, &(generated_case){.sample = &gpt_sample,
                                         .folder = GOLDEN "generated",
                                         .file = GOLDEN "generated/tokens.safetensors",
                                         .name = "tokens",
                                         .chunk = 4,
                                         .penalty = 1.3});
}

TEST_ONCE(gpt_import_without_prefix) { check_import(t, &(variant){.bare = true}, NULL); }
TEST_ONCE(gpt_import_with_buffers)
{
    check_import(t, &(variant){.buffers = true, .head = "lm_head.weight"}, NULL);
}
TEST_ONCE(gpt_import_of_the_head_alone)
{
    check_import(t, &(variant){.head = "lm_head.weight", .without = "transformer.wte.weight"},
                 NULL);
}
TEST_ONCE(gpt_import_lacks_a_tensor)
{
    check_import(t, &(variant){.without = "transformer.h.1.ln_2.bias"},
                 ": there is no tensor transformer.h.1.ln_2.bias");
}
TEST_ONCE(gpt_import_of_a_larger_model)
{
    check_import(t, &(variant){.more = "h.2.ln_1.weight"},
                 ": the model has no tensor h.2.ln_1.weight; do the sizes of --model fit?");
}
TEST_ONCE(gpt_import_of_another_shape)
{
    check_import(t, &(variant){.flat = "transformer.h.0.mlp.c_fc.weight"},
                 ": transformer.h.0.mlp.c_fc.weight is [4096], the model's is [32,128]; do the "
                 "sizes of --model fit?");
}

/* ----------------------------------------------------------------------------------- batches */

TEST_ONCE(gpt_batches_of_a_text)
{
    int32_t ids[100], all = 0;
    causal_tokens text = {ids, 100, -1};
    zf_error error = {ZF_OK, ""};
    static zf_causal_batch b, again;
    for (int32_t i = 0; i < 100; i++) ids[i] = i;
    CHECK(t, zf_causal_batch_new(&b, 5, 7, false, &error));
    test_defer(t, free_batch, &b);
    CHECK(t, zf_causal_batch_new(&again, 5, 7, false, &error));
    test_defer(t, free_batch, &again);
    causal_batch_read(&b, &text, 12);
    CHECK(t, b.labelled == 35);
    for (int row = 0; row < 5; row++) /* windows 12, 13, and from the beginning again */
        for (int at = 0; at < 7; at++) {
            CHECK(t, b.ids[row * 7 + at] == (12 + row) % 14 * 7 + at);
            CHECK(t, b.labels[row * 7 + at] == b.ids[row * 7 + at] + 1);
        }
    for (int64_t first = 0; first < 1000; first += 5) {
        causal_batch_draw(&b, &text, 3, first);
        for (int row = 0; row < 5; row++) {
            CHECK(t, b.ids[row * 7] >= 0 && b.labels[row * 7 + 6] <= 99);
            CHECK(t, b.labels[row * 7 + 6] == b.ids[row * 7] + 7);
            all |= b.ids[row * 7] == 0 ? 1 : b.ids[row * 7] == 92 ? 2 : 0;
        }
    }
    CHECK(t, all == 3); /* the first and the last place are among them */
    causal_batch_draw(&b, &text, 3, 10), causal_batch_draw(&again, &text, 3, 12);
    CHECK(t, !memcmp(b.ids + 2 * 7, again.ids, 3 * 7 * sizeof *b.ids));
    causal_batch_draw(&again, &text, 4, 10);
    CHECK(t, memcmp(b.ids, again.ids, 5 * 7 * sizeof *b.ids));
}

/* Loads a batch file of these tensors, which have `count` elements each; labels NULL: there are
 * none. */
static bool load_batches(test *t, const int64_t *ids, zf_shape ids_shape, const int64_t *labels,
                         zf_shape labels_shape, causal_batch_file *f, zf_error *error)
{
    const char *path = test_path("gpt-batches.safetensors");
    zf_safetensors_writer *w = zf_safetensors_writer_new(path, NULL, error);
    (void)t;
    if (!w) return false;
    zf_safetensors_declare(w, "input_ids", ZF_I64, ids_shape);
    if (labels) zf_safetensors_declare(w, "labels", ZF_I64, labels_shape);
    zf_safetensors_write(w, 0, ids, (size_t)zf_shape_count(ids_shape) * 8);
    if (labels) zf_safetensors_write(w, 1, labels, (size_t)zf_shape_count(labels_shape) * 8);
    zf_safetensors_finish(w, error);
    zf_safetensors_writer_free(w);
    return !error->status && causal_batch_file_load(f, path, 9, error);
}

TEST_ONCE(gpt_batch_files)
{
    const int64_t ids[6] = {1, 2, 3, 4, 5, 6}, labels[6] = {1, -100, 3, -100, 5, 8};
    const int64_t wrong[6] = {1, 2, 3, 4, 9, 6}, none[6] = {1, 2, 3, 4, -100, -100};
    const char *path = test_path("gpt-batches.safetensors");
    zf_error error = {ZF_OK, ""};
    static causal_batch_file f;
    CHECK(t, load_batches(t, ids, ZF_SHAPE(2, 3), NULL, ZF_SCALAR, &f, &error));
    test_defer(t, free_batches, &f);
    CHECK(t, f.entries == 1 && f.batch[0].examples == 2 && f.batch[0].sequence == 3);
    CHECK(t, !memcmp(f.batch[0].ids, (int32_t[]){1, 2, 3, 4, 5, 6}, 24));
    CHECK(t, !memcmp(f.batch[0].labels, (int32_t[]){2, 3, -100, 5, 6, -100}, 24));
    CHECK(t, f.batch[0].labelled == 4);
    causal_batch_file_free(&f);
    CHECK(t, load_batches(t, ids, ZF_SHAPE(2, 1, 3), labels, ZF_SHAPE(2, 1, 3), &f, &error));
    CHECK(t, f.entries == 2 && f.batch[1].examples == 1);
    CHECK(t, !memcmp(f.batch[0].labels, (int32_t[]){-100, 3, -100}, 12));
    CHECK(t, !memcmp(f.batch[1].labels, (int32_t[]){5, 8, -100}, 12));
    CHECK(t, f.batch[0].labelled == 1 && f.batch[1].labelled == 2);
    causal_batch_file_free(&f);
    CHECK(t, !load_batches(t, ids, ZF_SHAPE(2, 1, 3), none, ZF_SHAPE(2, 1, 3), &f, &error));
    CHECK_TEXT(t, error.text + strlen(path),
               ": batch 1 has no label but -100: there is nothing to learn");
    error = (zf_error){ZF_OK, ""};
    CHECK(t, !load_batches(t, wrong, ZF_SHAPE(2, 3), NULL, ZF_SCALAR, &f, &error));
    CHECK_TEXT(t, error.text + strlen(path), ": input_ids: element 4 is 9; it must be in [0, 9)");
    error = (zf_error){ZF_OK, ""};
    CHECK(t, !load_batches(t, ids, ZF_SHAPE(2, 3), labels, ZF_SHAPE(3, 2), &f, &error));
    CHECK_TEXT(t, error.text + strlen(path), ": labels and input_ids differ in shape");
    error = (zf_error){ZF_OK, ""};
    CHECK(t, !load_batches(t, ids, ZF_SHAPE(6), NULL, ZF_SCALAR, &f, &error));
    CHECK_TEXT(t, error.text + strlen(path),
               ": input_ids must be an I64, I32, U8 or BOOL tensor [S,B,T] or [B,T]");
    error = (zf_error){ZF_OK, ""};
    CHECK(t, !causal_batch_file_load(&f, GOLDEN "init.safetensors", 9, &error));
    CHECK_TEXT(t, error.text,
               GOLDEN "init.safetensors: input_ids must be an I64, I32, U8 or BOOL tensor [S,B,T] "
                      "or [B,T], and is "
                      "missing");
}

/* ----------------------------------------------------------------------------- configurations */

static bool load_config(const char *text, gpt_config *c, zf_error *error)
{
    const char *path = test_path("gpt-config.json");
    FILE *file = fopen(path, "w");
    if (!file) return false;
    fputs(text, file);
    fclose(file);
    *error = (zf_error){ZF_OK, ""};
    return gpt_config_load(path, c, error);
}

TEST_ONCE(gpt_configurations)
{
    gpt_config c, again;
    zf_error error = {ZF_OK, ""};
    zf_json_writer *w;
    const char *text;
    CHECK(t, gpt_config_load("124m", &c, &error));
    CHECK(t, c.vocab == 50257 && c.positions == 1024 && c.hidden == 768 && c.layers == 12);
    CHECK(t, c.heads == 12 && c.intermediate == 3072 && c.eps == 1e-5 && c.std == 0.02);
    CHECK(t, gpt_config_load("small", &c, &error));
    CHECK(t, c.vocab == 8192 && c.hidden == 256 && c.layers == 4 && c.intermediate == 1024);
    CHECK(t, load_config("{\"vocab_size\": 99, \"n_embd\": 6, \"n_layer\": 1, \"n_head\": 3, "
                         "\"n_inner\": 7, \"n_positions\": 40, \"layer_norm_epsilon\": 1e-6, "
                         "\"embd_pdrop\": 0.25, \"attn_pdrop\": 0, \"resid_pdrop\": 0.5, "
                         "\"initializer_range\": 0.3}",
                         &c, &error));
    CHECK(t, c.vocab == 99 && c.positions == 40 && c.hidden == 6 && c.layers == 1 && c.heads == 3);
    CHECK(t, c.intermediate == 7 && c.eps == 1e-6 && c.embedding_dropout == 0.25);
    CHECK(t, c.attention_dropout == 0 && c.residual_dropout == 0.5 && c.std == 0.3);
    CHECK(t, c.begin == -1 && c.ends[0] == -1 && c.tied && c.activation == ZF_ACTIVATION_GELU_TANH);
    CHECK(t, load_config("{\"vocab_size\": 99, \"hidden_size\": 6, \"num_hidden_layers\": 1, "
                         "\"num_attention_heads\": 3, \"n_inner\": null, \"n_ctx\": 40, "
                         "\"tie_word_embeddings\": false, \"eos_token_id\": [7, 200], \"bos_token_id\": 3, "
                         "\"reorder_and_upcast_attn\": true, "
                         "\"scale_attn_by_inverse_layer_idx\": true, "
                         "\"activation_function\": \"relu\"}",
                         &c, &error));
    CHECK(t, c.positions == 40 && c.hidden == 6 && c.intermediate == 24 && !c.tied);
    /* Ids beyond the vocabulary never end a text. */
    CHECK(t, c.begin == 3 && c.ends[0] == 7 && c.ends[1] == 200 && c.ends[2] == -1);
    CHECK(t, c.upcast && c.inverse_layer);
    /* transformers' own default, where it is a token */
    CHECK(t, load_config("{\"vocab_size\": 50257, \"n_embd\": 6, \"n_layer\": 1, \"n_head\": 3}",
                         &again, &error));
    CHECK(t, again.begin == 50256 && again.ends[0] == 50256 && again.ends[1] == -1);
    CHECK(t, c.activation == ZF_ACTIVATION_RELU);
    w = zf_config_json(gpt_sample.config(), &c);
    text = zf_json_text(w, NULL, &error);
    CHECK(t, text && load_config(text, &again, &error) && !memcmp(&c, &again, sizeof c));
    zf_json_writer_free(w);
}

TEST_ONCE(gpt_configurations_that_are_refused)
{
    static const struct {
        const char *text, *problem;
    } bad[] = {
#define SIZES "{\"vocab_size\": 99, \"n_embd\": 6, \"n_layer\": 1,\n\"n_head\": 3"
        {SIZES ", \"activation_function\": \"mish\"}",
         ":2:37: activation_function must be one of gelu, gelu_new, gelu_pytorch_tanh, relu and "
         "silu, not \"mish\""},
        {SIZES ", \"model_type\": \"bert\"}", ":2:28: model_type must be \"gpt2\", not \"bert\""},
        {SIZES ", \"add_cross_attention\": true}",
         ":2:37: add_cross_attention must be false, not true"},
        {SIZES ", \"reorder_and_upcast_attn\": 1}",
         ":2:41: reorder_and_upcast_attn must be true or false, not 1"},
        {SIZES ", \"scale_attn_weights\": false}",
         ":2:36: scale_attn_weights must be true, not false"},
        {SIZES ", \"n_inner\": 0}", ":2:25: n_inner must be an integer from 1 to 4194304, not 0"},
        {"{\"vocab_size\": 99, \"n_embd\": 6, \"n_layer\": 1,\n\"n_head\": 4}",
         ":2:11: n_head must be a divisor of n_embd (6), not 4"},
        {SIZES ", \"n_special\": 3}",
         ":2:27: n_special is not read, and may change what the model computes; remove it if it "
         "changes nothing"},
        {SIZES ", \"eos_token_id\": [1,2,3,4,5,6,7,8,9]}",
         ":2:30: eos_token_id has more than 8 ids"},
        {"{\"vocab_size\": 99}", ":1:1: the top value lacks \"n_embd\""},
#undef SIZES
    };
    const char *path = test_path("gpt-config.json");
    gpt_config c;
    zf_error error = {ZF_OK, ""};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CHECK(t, !load_config(bad[i].text, &c, &error));
        CHECK_TEXT(t, error.text + strlen(path), bad[i].problem);
    }
    error = (zf_error){ZF_OK, ""};
    CHECK(t, !gpt_config_load("huge", &c, &error));
    CHECK_TEXT(t, error.text,
               "model \"huge\" is none of small, 124m, 355m, 774m, 1558m, and no config.json");
}

TEST_ONCE(gpt_sessions_that_cannot_be)
{
    session_desc d = recipe(SAMPLE_TRAIN);
    zf_error error = {ZF_OK, ""};
    session s;
    d.shape.sequence = 41;
    CHECK(t, !session_open(&s, &d, &error));
    CHECK_TEXT(t, error.text, "sequences of 41 tokens are too long for the model's 40 positions");
    d.shape.sequence = 40, d.threads = 2000, error = (zf_error){ZF_OK, ""};
    CHECK(t, !session_open(&s, &d, &error));
    CHECK_TEXT(t, error.text, "zf_cpu_backend: threads is 2000; it must be 1 to 1024");
}
