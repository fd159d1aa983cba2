/* BERT against PyTorch (tests/golden/bert/make.py says how the files are made), its memory, and its
 * weights as Hugging Face files. */
#include "../support/golden.h"

#include "../../examples/bert/masked.h"
#include "../../examples/bert/model.h"
#include "../../examples/frame/run/run.h"

#define GOLDEN "tests/golden/bert/"

enum { STEPS = 20, ENTRIES = 4 };
#ifndef BERT_STEPS /* fewer where a sanitizer looks at each */
#define BERT_STEPS STEPS
#endif

/* The gradient of a key's bias is 0, since it adds one number to all scores of a query. A program
 * computes rounding errors there, and optimizers turn these into steps. */
static bool is_key_bias(const char *name) { return strstr(name, ".key.bias") != NULL; }

static void free_json(void *json) { zf_json_free(json); }

/* --------------------------------------------------------------------------------- sessions */

/* What the goldens were made with. */
typedef struct recipe {
    const char *curve, *params; /* the golden files; params NULL: none */
    zf_optimizer optimizer;
    double lr, clip;
    double dropout, attention_dropout;
    const char *no_fuse; /* a session's */
} recipe;

static const recipe adamw = {.curve = GOLDEN "adamw20.json",
                             .params = GOLDEN "adamw20_params.safetensors",
                             .optimizer = ZF_ADAMW,
                             .lr = 1e-3,
                             .clip = 1};
static const recipe lamb = {
    .curve = GOLDEN "lamb20.json", .optimizer = ZF_LAMB, .lr = 1e-2, .clip = 5};

static void close_session(void *s) { session_close(s); }
static void free_batches(void *batches) { bert_batch_file_free(batches); }

static bert_batch_file *open_batches(test *t)
{
    zf_error error = {ZF_OK, ""};
    bert_batch_file *f = bert_batch_file_load(GOLDEN "batch.safetensors", 197, 2, &error);
    if (!f) test_fail(t, __FILE__, __LINE__, "the batches can be opened", error.text);
    else test_defer(t, free_batches, f);
    return f;
}

/* The golden model with its first parameters, ready to train. */
static bool open_session(test *t, session *s, const bert_batch_file *batches, const recipe *r,
                         int64_t threads, uint64_t seed)
{
    bert_config config;
    session_desc d = {.sample = &bert_sample,
                      .config = &config,
                      .shape = {.batch = batches->examples,
                                .sequence = batches->sequence,
                                .predictions = batches->predictions},
                      .threads = threads,
                      .seed = seed,
                      .training = {.optimizer = r->optimizer,
                                   .clip = r->clip,
                                   .fuse.without = r->no_fuse,
                                   .keep_gradients = true}};
    zf_error error = {ZF_OK, ""};
    zf_weights_report report;
    bool good = bert_config_load(GOLDEN "config.json", &config, &error);
    config.dropout = r->dropout, config.attention_dropout = r->attention_dropout;
    session_set(&d.training, "weight-decay", 0.01);
    good = good && session_open(s, &d, &error);
    if (good) {
        test_defer(t, close_session, s);
        good = zf_exchange_import(bert_sample.exchange(), s->program, s->graph,
                                  GOLDEN "init.safetensors", &report, &error) &&
               report.fresh == 0 && report.unused == 0;
    }
    if (!good) test_fail(t, __FILE__, __LINE__, "a session can be opened", error.text);
    return good;
}

static zf_status train_step(session *s, const bert_batch_file *batches, int64_t step, double lr)
{
    const bert_batch *b = &batches->batch[step % batches->entries];
    float rate = (float)lr;
    zf_status status = masked_feed(s, b, b->labelled, (double)s->shape.batch);
    if (!status) status = zf_write(s->program, s->lr, &rate, sizeof rate);
    return status ? status : zf_step(s->program);
}

static bool export_params(test *t, session *s, const char *path)
{
    zf_error error = {ZF_OK, ""};
    bool good = zf_exchange_export(bert_sample.exchange(), s->program, s->graph, path, false, ZF_F32,
                                   &error);
    if (!good) test_fail(t, __FILE__, __LINE__, "the parameters can be exported", error.text);
    return good;
}

/* --------------------------------------------------------------------------------- training */

/* Losses of the first step, and the gradients that the golden file has: *compared of them. */
static void check_step(test *t, const recipe *r, const char *file, uint64_t seed, int *compared)
{
    const char *path = test_path("gradients.safetensors");
    bert_batch_file *batches = open_batches(t);
    zf_safetensors *golden = open_file(t, file), *own;
    zf_error error = {ZF_OK, ""};
    static session s; /* outlives what the test defers */
    *compared = 0;
    CHECK(t, batches && golden && open_session(t, &s, batches, r, 1, seed));
    OK(t, train_step(&s, batches, 0, r->lr), zf_program_error(s.program));
    for (int i = 0; i < 3; i++) {
        const char *const names[] = {"loss", "mlm_loss", "nsp_loss"};
        int64_t count;
        double *value = values_of(golden, names[i], &count), expected = value ? *value : NAN;
        free(value);
        CHECK_NEAR(t, session_scalar(&s, names[i]), expected, 1e-5 * expected);
    }
    CHECK(t, zf_exchange_export(bert_sample.exchange(), s.program, s.graph, path, true, ZF_F32,
                                &error));
    own = open_file(t, path);
    CHECK(t, own && zf_safetensors_count(own) == zf_param_count(s.graph));
    for (int32_t i = 0; i < zf_safetensors_count(golden); i++) {
        const char *name = zf_safetensors_at(golden, i)->name;
        if (strstr(name, "loss")) continue;
        ++*compared;
        if (is_key_bias(name)) {
            char query[128];
            int64_t n = 0, m = 0;
            double *key, *other;
            snprintf(query, sizeof query, "%.*squery.bias", (int)(strstr(name, "key.bias") - name),
                     name);
            key = values_of(own, name, &n), other = values_of(golden, query, &m);
            if (!key || !other || !(square_sum(key, n) <= 1e-8 * square_sum(other, m)))
                test_fail(t, __FILE__, __LINE__, "the gradient of a key's bias is rounding", name);
            free(key);
            free(other);
        } else if (!(error_of(own, golden, name) <= 1e-10)) {
            char text[200];
            snprintf(text, sizeof text, "%s is off by %g", name, error_of(own, golden, name));
            test_fail(t, __FILE__, __LINE__, "a gradient is PyTorch's", text);
        }
    }
    session_close(&s); /* the test then closes it again, which does nothing */
}

TEST_ONCE(bert_loss_and_gradients_are_pytorchs)
{
    int compared = 0;
    check_step(t, &adamw, GOLDEN "step0.safetensors", 1, &compared);
    CHECK(t, compared == 46);
}

/* Every dropout drops the elements of its stream at the places where PyTorch has a dropout, and
 * scales the rest; plain, fused, and with rewrites left out that contain a dropout. */
TEST_ONCE(bert_dropouts_are_where_pytorchs_are)
{
    static const char *const without[] = {"all",  NULL,        "attention", "attention,softmax",
                                          "norm", "embedding", "invert"};
    recipe r = adamw;
    r.dropout = 0.2, r.attention_dropout = 0.3;
    for (size_t k = 0; k < sizeof without / sizeof *without; k++) {
        int compared = 0;
        r.no_fuse = without[k];
        check_step(t, &r, GOLDEN "dropout.safetensors", 5, &compared);
        CHECK(t, compared == 30);
    }
}

/* The results of twenty steps: losses and gradient norms, parameters in a file. */
typedef struct course {
    double loss[STEPS + 1], mlm[STEPS], nsp[STEPS], norm[STEPS];
    const char *params;
} course;

/* loss[STEPS] is the one of entry 0 after the last update. */
static bool run_course(test *t, course *c, const recipe *r, int64_t threads, const char *params)
{
    static session s; /* outlives what the test defers */
    bert_batch_file *batches = open_batches(t);
    zf_status status = ZF_OK;
    *c = (course){.params = params};
    if (!batches || !open_session(t, &s, batches, r, threads, 1)) return false;
    for (int k = 0; k < BERT_STEPS && !status; k++) {
        status = train_step(&s, batches, k, r->lr);
        c->loss[k] = session_scalar(&s, "loss");
        c->mlm[k] = session_scalar(&s, "mlm_loss");
        c->nsp[k] = session_scalar(&s, "nsp_loss");
        c->norm[k] = session_scalar(&s, "grad_norm");
    }
    if (!status && !export_params(t, &s, params)) return false;
    if (!status) status = train_step(&s, batches, 0, 0);
    c->loss[STEPS] = session_scalar(&s, "loss");
    if (status) test_fail(t, __FILE__, __LINE__, "twenty steps", zf_program_error(s.program));
    session_close(&s); /* the test then closes it again, which does nothing */
    return !status;
}

/* Twenty steps equal PyTorch's in double precision within the rounding of single precision, and are
 * equal to the last bit on any number of threads. */
static void compare_courses(test *t, const recipe *r)
{
    const char *const names[] = {"loss", "mlm_loss", "nsp_loss", "grad_norm"};
    zf_error error = {ZF_OK, ""};
    zf_json *golden = zf_json_read(r->curve, NULL, &error);
    course one, other;
    const double *const own[] = {one.loss, one.mlm, one.nsp, one.norm};
    zf_safetensors *params, *golden_params;
    double after = NAN;
    NEED(t, golden, &error);
    test_defer(t, free_json, golden);
    CHECK(t, run_course(t, &one, r, 1, test_path("one.safetensors")));
    for (int which = 0; which < 4; which++)
        for (int k = 0; k < BERT_STEPS; k++) {
            double expected = NAN;
            const zf_json *v = zf_json_element(zf_json_require(golden, names[which], &error), k);
            OK(t, zf_json_to_double(v, 0, 1e3, &expected, &error), error.text);
            CHECK_NEAR(t, own[which][k], expected, 1e-5 * (which < 3 ? one.loss[k] : expected));
        }
    OK(t, zf_json_to_double(zf_json_require(golden, "loss_after", &error), 0, 1e3, &after, &error),
       error.text);
    if (BERT_STEPS == STEPS) CHECK_NEAR(t, one.loss[STEPS], after, 1e-5 * after);
    if (r->params && BERT_STEPS == STEPS) {
        params = open_file(t, one.params), golden_params = open_file(t, r->params);
        CHECK(t, params && golden_params);
        for (int32_t i = 0; i < zf_safetensors_count(golden_params); i++) {
            const char *name = zf_safetensors_at(golden_params, i)->name;
            if (is_key_bias(name) || error_of(params, golden_params, name) <= 1e-10) continue;
            test_fail(t, __FILE__, __LINE__, "a parameter is PyTorch's after twenty steps", name);
        }
    }
    for (int64_t threads = 2; threads <= 3; threads++) {
        CHECK(t, run_course(t, &other, r, threads, test_path("other.safetensors")));
        CHECK(t, !memcmp(one.loss, other.loss, sizeof one.loss));
        CHECK(t, !memcmp(one.norm, other.norm, sizeof one.norm));
        CHECK(t, same_files(one.params, other.params));
    }
}

TEST_ONCE(bert_twenty_adamw_steps_are_pytorchs) { compare_courses(t, &adamw); }
TEST_ONCE(bert_twenty_lamb_steps_are_pytorchs) { compare_courses(t, &lamb); }

/* ----------------------------------------------------------------------------------- memory */

static void free_graph(void *g) { zf_graph_free(g); }
static void free_program(void *p) { zf_program_free(p); }
static void free_backend(void *b) { zf_backend_free(b); }

/* A training graph, as a session makes it, in a graph of the test. */
static zf_graph *training_graph(test *t, const bert_config *config, const sample_shape *shape,
                                bert_model *m, bool fuse)
{
    zf_graph *g = zf_graph_new(NULL);
    if (!g) return NULL;
    test_defer(t, free_graph, g);
    *m = bert_build(g, config, shape, SAMPLE_TRAIN);
    if (fuse) zf_fuse(g, NULL);
    zf_autograd(g, m->loss);
    zf_simplify(g);
    zf_clip(g, 1);
    zf_adamw(g, m->lr, &(zf_adamw_desc){.weight_decay = 0.01});
    if (fuse) zf_fuse(g, NULL);
    return g;
}

static size_t asked_bytes;
static int asked_times;
static void *(*allocate_of_cpu)(void *self, size_t bytes, zf_error *error);

static void *count_allocation(void *self, size_t bytes, zf_error *error)
{
    asked_times++;
    asked_bytes += bytes;
    return allocate_of_cpu(self, bytes, error);
}

/* So that a large model's arena is never touched, and uses no memory. */
static zf_status copy_nothing(void *self, void *to, const void *from, size_t bytes, zf_copy kind,
                              zf_error *error)
{
    (void)self, (void)to, (void)from, (void)bytes, (void)kind, (void)error;
    return ZF_OK;
}

/* A training step's plan is exactly what is allocated, and hardly more than its live bytes. */
static void check_plan(test *t, const char *model, int64_t batch, bool fuse)
{
    static zf_backend counting; /* outlives what the test defers */
    zf_backend *cpu = zf_cpu_backend(NULL, NULL);
    sample_shape shape = {.batch = batch, .sequence = 128, .predictions = batch * 19};
    zf_error error = {ZF_OK, ""};
    bert_config config;
    bert_model m;
    zf_graph *g;
    zf_program *p;
    zf_program_info info;
    NEED(t, cpu, NULL);
    CHECK(t, bert_config_load(model, &config, &error));
    test_defer(t, free_backend, cpu);
    counting = *cpu;
    counting.allocate = count_allocation, counting.copy = copy_nothing;
    allocate_of_cpu = cpu->allocate;
    asked_bytes = 0, asked_times = 0;
    g = training_graph(t, &config, &shape, &m, fuse);
    p = zf_compile(g, &(zf_compile_desc){.backend = &counting});
    if (!p) test_fail(t, __FILE__, __LINE__, model, zf_graph_error(g));
    if (!p) return;
    test_defer(t, free_program, p);
    info = zf_program_info_of(p);
    CHECK(t, asked_times == 3 && info.allocated_bytes == asked_bytes &&
                 info.peak_bytes == asked_bytes);
    printf("BERT-%s, batch %d, %s: arena %.4f of the largest sum of live bytes\n", model, (int)batch,
           fuse ? "fused" : "plain", (double)info.peak_bytes / (double)info.live_bytes);
    CHECK(t, info.live_bytes <= info.peak_bytes &&
                 (double)info.peak_bytes <= 1.05 * (double)info.live_bytes);
    CHECK(t, info.param_bytes >= 4 * (size_t)info.param_count);
    CHECK(t, info.peak_bytes == info.param_bytes + info.state_bytes + info.input_bytes +
                                    info.constant_bytes + info.work_bytes);
}

#define PLAN(model, batch)                                                                         \
    TEST_ONCE(bert_plan_##model##_##batch) { check_plan(t, #model, batch, false); }                \
    TEST_ONCE(bert_plan_##model##_##batch##_fused) { check_plan(t, #model, batch, true); }
PLAN(tiny, 8)
PLAN(tiny, 16)
PLAN(mini, 8)
PLAN(mini, 16)
PLAN(small, 8)
PLAN(medium, 16)
TEST_ONCE(bert_plan_base_8_fused) { check_plan(t, "base", 8, true); }

/* Three steps with dropout: the loss of the last one and the sum of all parameters' bits. */
static bool run_plainly(test *t, const bert_batch_file *batches, const zf_compile_desc *d,
                        double *loss, uint64_t *sum)
{
    session s = {.shape = {.batch = batches->examples,
                           .sequence = batches->sequence,
                           .predictions = batches->predictions}};
    zf_error error = {ZF_OK, ""};
    zf_status status = ZF_OK;
    bert_config config;
    bert_model m;
    if (!bert_config_load(GOLDEN "config.json", &config, &error)) return false;
    config.dropout = config.attention_dropout = 0.1;
    s.graph = training_graph(t, &config, &s.shape, &m, false);
    s.lr = m.lr;
    s.program = zf_compile(s.graph, d);
    if (!s.program)
        return test_fail(t, __FILE__, __LINE__, "zf_compile", zf_graph_error(s.graph)), false;
    test_defer(t, free_program, s.program);
    for (int k = 0; k < 3 && !status; k++) status = train_step(&s, batches, k, 1e-3);
    *loss = session_scalar(&s, "loss");
    *sum = 0;
    for (int32_t i = 0; i < zf_param_count(s.graph) && !status; i++) {
        size_t bytes = zf_tensor_bytes(zf_param_at(s.graph, i));
        unsigned char *data = malloc(bytes);
        status = data ? zf_read(s.program, zf_param_at(s.graph, i), data, bytes) : ZF_ERR_NOMEM;
        for (size_t b = 0; b < bytes && !status; b++) *sum = *sum * 31 + data[b];
        free(data);
    }
    if (status) test_fail(t, __FILE__, __LINE__, "three steps", zf_program_error(s.program));
    return !status;
}

/* Memory reuse changes no number: compared with a plan without reuse, and with dead values
 * overwritten with NaN. */
TEST_ONCE(bert_reuse_of_memory_changes_nothing)
{
    bert_batch_file *batches = open_batches(t);
    double loss, other;
    uint64_t sum, other_sum;
    CHECK(t, batches && run_plainly(t, batches, &(zf_compile_desc){.seed = 3}, &loss, &sum));
    CHECK(t, isfinite(loss));
    CHECK(t, run_plainly(t, batches, &(zf_compile_desc){.seed = 3, .no_reuse = true}, &other,
                         &other_sum));
    CHECK(t, loss == other && sum == other_sum);
    CHECK(t, run_plainly(t, batches, &(zf_compile_desc){.seed = 3, .poison = true}, &other,
                         &other_sum));
    CHECK(t, loss == other && sum == other_sum);
    CHECK(t, run_plainly(t, batches, &(zf_compile_desc){.seed = 4}, &other, &other_sum));
    CHECK(t, loss != other && sum != other_sum);
}

/* ---------------------------------------------------------------------- Hugging Face weights */

TEST_ONCE(bert_export_and_import_keep_the_bits)
{
    const char *first = test_path("first.safetensors"), *second = test_path("second.safetensors");
    bert_batch_file *batches = open_batches(t);
    static session a, b;
    zf_error error = {ZF_OK, ""};
    zf_weights_report report;
    double loss;
    CHECK(t, batches && open_session(t, &a, batches, &adamw, 1, 1));
    OK(t, train_step(&a, batches, 0, 1e-3), zf_program_error(a.program));
    CHECK(t, export_params(t, &a, first));
    CHECK(t, !same_files(first, GOLDEN "init.safetensors"));
    CHECK(t, open_session(t, &b, batches, &adamw, 1, 2));
    CHECK(t, zf_exchange_import(bert_sample.exchange(), b.program, b.graph, first, &report, &error));
    CHECK(t, report.fresh == 0 && export_params(t, &b, second) && same_files(first, second));
    OK(t, train_step(&a, batches, 1, 1e-3), zf_program_error(a.program));
    loss = session_scalar(&a, "loss");
    OK(t, train_step(&b, batches, 1, 1e-3), zf_program_error(b.program));
    CHECK(t, session_scalar(&b, "loss") == loss);
}

/* A file that differs from golden/bert/init.safetensors. */
typedef struct variant {
    bool old_norms;      /* LayerNorm.gamma and .beta */
    const char *prefix;  /* in front of all names */
    bool bare;           /* without "bert." */
    bool decoder;        /* with the tied decoder's weight and bias too */
    bool decoder_alone;  /* with these instead of those to which they are tied */
    bool headless;       /* without "cls." and the pooler */
    const char *without; /* this one left out */
    const char *flat;    /* this one in one dimension */
    const char *integer; /* this one as I64 */
    zf_dtype dtype;
} variant;

static bool wanted(const variant *v, const char *name)
{
    if (v->headless && (!strncmp(name, "cls.", 4) || strstr(name, ".pooler."))) return false;
    return !v->without || strcmp(name, v->without) != 0;
}

static void renamed(const variant *v, const char *name, char out[128])
{
    const char *norm = strstr(name, "LayerNorm.");
    if (v->bare && !strncmp(name, "bert.", 5)) name += 5;
    if (v->decoder_alone && !strcmp(name, "cls.predictions.bias"))
        name = "cls.predictions.decoder.bias";
    if (v->decoder_alone && strstr(name, ".word_embeddings."))
        name = "cls.predictions.decoder.weight";
    if (v->old_norms && norm)
        snprintf(out, 128, "%.*s%s", (int)(norm + 10 - name), name,
                 strcmp(norm + 10, "weight") ? "beta" : "gamma");
    else snprintf(out, 128, "%s%s", v->prefix ? v->prefix : "", name);
}

/* A tensor of the variant: declares it, or writes it as number *index. */
static void put_tensor(zf_safetensors_writer *w, zf_safetensors *file, int32_t at, const variant *v,
                       const char *name, bool writing, int32_t *index)
{
    const zf_safetensors_entry *e = zf_safetensors_at(file, at);
    zf_dtype dtype = v->integer && !strcmp(e->name, v->integer) ? ZF_I64 : v->dtype;
    int64_t count = zf_shape_count(e->shape);
    zf_error error = {ZF_OK, ""};
    if (writing) {
        float *x = malloc(e->bytes);
        void *y = malloc(8 * (size_t)count);
        if (x && y && !zf_safetensors_read(file, at, x, e->bytes, &error)) {
            zf_convert(y, dtype, x, ZF_F32, (size_t)count);
            zf_safetensors_write(w, (*index)++, y, (size_t)count * zf_dtype_size(dtype));
        }
        free(x);
        free(y);
    } else {
        zf_safetensors_declare(w, name, dtype,
                               v->flat && !strcmp(e->name, v->flat) ? ZF_SHAPE(count) : e->shape);
    }
}

static bool write_variant(test *t, const variant *v, const char *path)
{
    zf_safetensors *file = open_file(t, GOLDEN "init.safetensors");
    zf_error error = {ZF_OK, ""};
    zf_safetensors_writer *w = zf_safetensors_writer_new(path, NULL, &error);
    int32_t index = 0;
    zf_status status;
    for (int writing = 0; writing < 2 && file && w; writing++)
        for (int32_t i = 0; i < zf_safetensors_count(file); i++) {
            const char *name = zf_safetensors_at(file, i)->name;
            char out[128];
            if (!wanted(v, name)) continue;
            renamed(v, name, out);
            put_tensor(w, file, i, v, out, writing, &index);
            if (v->decoder && !strcmp(name, "bert.embeddings.word_embeddings.weight"))
                put_tensor(w, file, i, v, "cls.predictions.decoder.weight", writing, &index);
            if (v->decoder && !strcmp(name, "cls.predictions.bias"))
                put_tensor(w, file, i, v, "cls.predictions.decoder.bias", writing, &index);
        }
    status = w ? zf_safetensors_finish(w, &error) : error.status;
    zf_safetensors_writer_free(w);
    if (status) test_fail(t, __FILE__, __LINE__, "a variant can be written", error.text);
    return file && !status;
}

/* The parameter has the file's values, rounded to `dtype`, if the variant has it; else its old
 * ones. */
static bool is_imported(session *s, zf_safetensors *init, zf_safetensors *before, zf_tensor param,
                        const variant *v)
{
    const char *name = zf_tensor_name(param);
    zf_safetensors *from = wanted(v, name) ? init : before;
    int32_t at = zf_safetensors_find(from, name);
    size_t bytes = zf_tensor_bytes(param), count = bytes / sizeof(float);
    float *own = malloc(bytes), *expected = malloc(bytes);
    void *narrow = malloc(2 * bytes);
    zf_error error = {ZF_OK, ""};
    bool same = own && expected && narrow && at >= 0 && !zf_read(s->program, param, own, bytes) &&
                !zf_safetensors_read(from, at, expected, bytes, &error);
    if (same && from == init) {
        zf_convert(narrow, v->dtype, expected, ZF_F32, count);
        zf_convert(expected, ZF_F32, narrow, v->dtype, count);
    }
    same = same && !memcmp(own, expected, bytes);
    free(own);
    free(expected);
    free(narrow);
    return same;
}

/* Imports the variant into a model with other first values. problem: the error after the path, or
 * NULL. */
static void check_import(test *t, const variant *v, int expected_fresh, const char *problem)
{
    static session s; /* outlives what the test defers */
    const char *path = test_path("variant.safetensors"), *start = test_path("before.safetensors");
    bert_config config;
    session_desc d = {.sample = &bert_sample,
                      .config = &config,
                      .purpose = SAMPLE_EVALUATE,
                      .shape = {.batch = 1, .sequence = 8, .predictions = 1},
                      .threads = 1,
                      .seed = 5};
    zf_safetensors *init, *before;
    zf_error error = {ZF_OK, ""};
    zf_weights_report report;
    bool good;
    OK(t, bert_config_load(GOLDEN "config.json", &config, &error) ? ZF_OK : error.status,
       error.text);
    OK(t, session_open(&s, &d, &error) ? ZF_OK : error.status, error.text);
    test_defer(t, close_session, &s);
    CHECK(t, write_variant(t, v, path) && export_params(t, &s, start));
    init = open_file(t, GOLDEN "init.safetensors"), before = open_file(t, start);
    CHECK(t, init && before);
    good = zf_exchange_import(bert_sample.exchange(), s.program, s.graph, path, &report, &error);
    CHECK(t, good == !error.status);
    if (problem) {
        CHECK(t, !good && !strncmp(error.text, path, strlen(path)));
        CHECK_TEXT(t, error.text + strlen(path), problem);
        return;
    }
    CHECK_TEXT(t, error.text, "");
    CHECK(t, report.fresh == expected_fresh && report.unused == 0);
    for (int32_t i = 0; i < zf_param_count(s.graph); i++)
        if (!is_imported(&s, init, before, zf_param_at(s.graph, i), v))
            test_fail(t, __FILE__, __LINE__, "a parameter is the file's",
                      zf_tensor_name(zf_param_at(s.graph, i)));
}

#define IMPORTS(name, fresh, problem, ...)                                                         \
    TEST_ONCE(bert_import_##name) { check_import(t, &(variant){__VA_ARGS__}, fresh, problem); }

IMPORTS(of_gamma_and_beta, 0, NULL, .old_norms = true)
IMPORTS(without_prefix, 0, NULL, .bare = true)
IMPORTS(without_prefix_of_gamma_and_beta, 0, NULL, .bare = true, .old_norms = true)
IMPORTS(with_a_wrapper, 0, NULL, .prefix = "module.")
IMPORTS(with_two_wrappers, 0, NULL, .prefix = "module._orig_mod.")
IMPORTS(with_decoder, 0, NULL, .decoder = true)
IMPORTS(with_decoder_alone, 0, NULL, .decoder_alone = true)
IMPORTS(without_heads, 9, NULL, .headless = true)
IMPORTS(without_one_of_a_head, 1, NULL, .without = "cls.seq_relationship.bias")
IMPORTS(of_half_precision, 0, NULL, .dtype = ZF_F16)
IMPORTS(of_bfloat16, 0, NULL, .dtype = ZF_BF16)
IMPORTS(of_double_precision, 0, NULL, .dtype = ZF_F64)
IMPORTS(lacks_a_tensor, 0, ": there is no tensor bert.encoder.layer.1.output.dense.bias",
        .without = "bert.encoder.layer.1.output.dense.bias")
IMPORTS(
    finds_another_shape, 0,
    ": bert.pooler.dense.weight is [4096], the model's is [64,64]; do the sizes of --model fit?",
    .flat = "bert.pooler.dense.weight")
IMPORTS(finds_integers, 0, ": cls.predictions.bias is I64; F32, F64, BF16 or F16 is needed",
        .integer = "cls.predictions.bias")

/* ------------------------------------------------------------------------------ configuration */

TEST_ONCE(bert_configurations_by_name)
{
    static const struct {
        const char *name;
        int64_t layers, hidden, heads, intermediate;
    } expected[] = {{"tiny", 2, 128, 2, 512},    {"mini", 4, 256, 4, 1024},
                    {"small", 4, 512, 8, 2048},  {"medium", 8, 512, 8, 2048},
                    {"base", 12, 768, 12, 3072}, {"large", 24, 1024, 16, 4096}};
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        bert_config c;
        zf_error error = {ZF_OK, ""};
        CHECK(t, bert_config_load(expected[i].name, &c, &error));
        CHECK(t, c.layers == expected[i].layers && c.hidden == expected[i].hidden &&
                     c.heads == expected[i].heads);
        CHECK(t,
              c.intermediate == expected[i].intermediate && c.vocab == 30522 && c.positions == 512);
        CHECK(t, c.types == 2 && c.eps == 1e-12 && c.dropout == 0.1 && c.attention_dropout == 0.1 &&
                     c.std == 0.02);
    }
}

/* Writes a config.json and loads it; false with *error, whose text then lacks the path. */
static bool load_config(const char *text, bert_config *config, zf_error *error)
{
    const char *path = test_path("config.json");
    FILE *file = fopen(path, "w");
    bool good = file && fputs(text, file) >= 0;
    if (file) fclose(file);
    *error = (zf_error){ZF_OK, ""};
    good = good && bert_config_load(path, config, error);
    if (!strncmp(error->text, path, strlen(path)))
        memmove(error->text, error->text + strlen(path), strlen(error->text + strlen(path)) + 1);
    return good;
}

TEST_ONCE(bert_configuration_of_a_file_and_back)
{
    bert_config c, again;
    zf_error error = {ZF_OK, ""};
    zf_json_writer *w;
    const char *text;
    CHECK(t, load_config(
                 "{\"vocab_size\": 99, \"hidden_size\": 6, \"num_hidden_layers\": 1, "
                 "\"num_attention_heads\": 3, \"intermediate_size\": 7, "
                 "\"max_position_embeddings\": 40, "
                 "\"type_vocab_size\": 4, \"layer_norm_eps\": 1e-6, \"hidden_dropout_prob\": 0.25, "
                 "\"attention_probs_dropout_prob\": 0, \"initializer_range\": 0.3}",
                 &c, &error));
    CHECK(t,
          c.vocab == 99 && c.hidden == 6 && c.layers == 1 && c.heads == 3 && c.intermediate == 7);
    CHECK(t, c.positions == 40 && c.types == 4 && c.eps == 1e-6 && c.dropout == 0.25);
    CHECK(t, c.attention_dropout == 0 && c.std == 0.3);
    CHECK(t, c.pad == 0 && c.tied && c.nsp && c.activation == ZF_ACTIVATION_GELU);
    CHECK(t, load_config("{\"vocab_size\": 99, \"hidden_size\": 6, \"num_hidden_layers\": 1, "
                         "\"num_attention_heads\": 3, \"intermediate_size\": 7, "
                         "\"layer_norm_eps\": null, \"type_vocab_size\": 1, "
                         "\"pad_token_id\": null, \"tie_word_embeddings\": false, "
                         "\"hidden_act\": \"swish\", \"pruned_heads\": {}, "
                         "\"architectures\": [\"BertForMaskedLM\"]}",
                         &c, &error));
    CHECK(t, c.eps == 1e-12 && c.types == 1 && c.pad == -1 && !c.tied && !c.nsp);
    CHECK(t, c.activation == ZF_ACTIVATION_SILU);
    w = zf_config_json(bert_sample.config(), &c);
    text = zf_json_text(w, NULL, &error);
    CHECK(t, text && load_config(text, &again, &error) && !memcmp(&c, &again, sizeof c));
    zf_json_writer_free(w);
}

TEST_ONCE(bert_configurations_that_are_refused)
{
    static const struct {
        const char *text, *problem;
    } bad[] = {
#define SIZES(hidden, heads)                                                                       \
    "{\"vocab_size\": 99, \"hidden_size\": " hidden ", \"num_hidden_layers\": 1,\n"                \
    "\"intermediate_size\": 7, \"num_attention_heads\": " heads
        {SIZES("\"6\"", "3") "}",
         ":1:35: hidden_size must be an integer from 1 to 1048576, not \"6\""},
        {SIZES("6", "4") "}",
         ":2:48: num_attention_heads must be a divisor of hidden_size (6), not 4"},
        {SIZES("6", "0") "}",
         ":2:48: num_attention_heads must be an integer from 1 to 65536, not 0"},
        {SIZES("6", "3") ", \"hidden_act\": \"mish\"}",
         ":2:65: hidden_act must be one of gelu, gelu_new, gelu_pytorch_tanh, relu and silu, not "
         "\"mish\""},
        {SIZES("6", "3") ", \"position_embedding_type\": \"relative_key\"}",
         ":2:78: position_embedding_type must be \"absolute\", not \"relative_key\""},
        {SIZES("6", "3") ", \"model_type\": \"electra\"}",
         ":2:65: model_type must be \"bert\", \"roberta\", \"xlm-roberta\", \"camembert\", "
         "\"distilbert\" or \"modernbert\", not \"electra\""},
        {SIZES("6", "3") ", \"is_decoder\": true}", ":2:65: is_decoder must be false, not true"},
        {SIZES("6", "3") ", \"add_cross_attention\": true}",
         ":2:74: add_cross_attention must be false, not true"},
        {SIZES("6", "3") ", \"pad_token_id\": 99}",
         ":2:67: pad_token_id must be an integer from -99 to 98, not 99"},
        {SIZES("6", "3") ", \"pruned_heads\": {\"0\": [1]}}",
         ":2:67: pruned_heads removes heads; all layers must have all of them"},
        {SIZES("6", "3") ", \"quantization_config\": {}}",
         ":2:74: quantization_config says that the weights are quantised, which is not read"},
        {SIZES("6", "3") ", \"hidden_dropout_prob\": 1}",
         ":2:74: hidden_dropout_prob must be a number from 0.0 to 0.999, not 1"},
        {"{\"vocab_size\": 99}", ":1:1: the top value lacks \"hidden_size\""},
        {"{", ":1:2: expected a key in double quotes or '}', found the end of the text"},
#undef SIZES
    };
    bert_config c;
    zf_error error = {ZF_OK, ""};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CHECK(t, !load_config(bad[i].text, &c, &error));
        CHECK_TEXT(t, error.text, bad[i].problem);
    }
    error = (zf_error){ZF_OK, ""};
    CHECK(t, !bert_config_load("huge", &c, &error));
    CHECK_TEXT(
        t, error.text,
        "model \"huge\" is none of tiny, mini, small, medium, base, large, and no config.json");
    error = (zf_error){ZF_OK, ""};
    CHECK(t, !bert_config_load("nowhere/config.json", &c, &error));
    CHECK_TEXT(t, error.text, "cannot open nowhere/config.json: No such file or directory");
}

/* --------------------------------------------------------------------------------- sessions */

TEST_ONCE(bert_steps_that_fit_into_a_time)
{
    CHECK(t, run_steps_within(150, 0.25, 1500) == 600);
    CHECK(t, run_steps_within(150, 0.4, 1500) == 375);
    CHECK(t, run_steps_within(150, 1, 1500) == 200);
    CHECK(t, run_steps_within(150, 0.01, 1500) == 1500 && run_steps_within(150, 0, 7) == 7);
    CHECK(t, run_steps_within(1, 1, 100) == 100); /* fewer were asked for */
}

/* Logits [4, vocab] of masked words of a forward pass over rows of tokens; NULL: it failed. The
 * first values are those of every such model. */
static float *logits_of(test *t, const bert_config *config, const sample_shape *shape,
                        const int32_t *ids, const int32_t *segments, const int32_t *places,
                        const uint8_t *mask, const int32_t *positions)
{
    static const int32_t types[64], labels[4];
    const float weight = 1;
    const struct {
        const char *name;
        const void *data;
    } inputs[] = {{"input_ids", ids},       {"token_type_ids", types}, {"segments", segments},
                  {"places", places},       {"attention_mask", mask},  {"positions", positions},
                  {"labels", labels},       {"mlm_weight", &weight}};
    zf_graph *g = zf_graph_new(NULL);
    zf_program *p;
    zf_tensor output;
    float *logits;
    bool good = true;
    test_defer(t, free_graph, g);
    bert_build(g, config, shape, SAMPLE_ANSWER);
    p = zf_compile(g, NULL);
    if (!p) return test_fail(t, __FILE__, __LINE__, "a program", zf_graph_error(g)), NULL;
    test_defer(t, free_program, p);
    output = zf_graph_find(g, "mlm_logits");
    for (size_t k = 0; k < sizeof inputs / sizeof inputs[0] && good; k++) {
        const zf_tensor x = zf_graph_find(g, inputs[k].name);
        if (zf_valid(x)) good = !zf_write(p, x, inputs[k].data, zf_tensor_bytes(x));
    }
    logits = malloc(zf_tensor_bytes(output));
    test_defer(t, free, logits);
    good = good && logits && !zf_step(p) && !zf_read(p, output, logits, zf_tensor_bytes(output));
    if (!good) test_fail(t, __FILE__, __LINE__, "logits", zf_program_error(p));
    return good ? logits : NULL;
}

/* Documents of a packed row have the logits of rows of their own. */
TEST_ONCE(bert_packed_documents_do_not_see_one_another)
{
    enum { A = 7, B = 12, PAD = 3, T = A + B + PAD };
    for (int k = 0; k < 2; k++) {
        int32_t ids[T], segments[T], places[T], apart[2 * B] = {0};
        const int32_t at[] = {2, 5, A + 1, A + B - 1}, own[] = {2, 5, B + 1, 2 * B - 1};
        uint8_t mask[2 * B];
        bert_config c;
        zf_error error;
        const float *packed, *alone;
        CHECK(t, bert_config_load("tiny", &c, &error));
        c.vocab = 50, c.dropout = c.attention_dropout = 0, c.nsp = 0, c.std = 0.3;
        if (k) c.family = BERT_ROBERTA, c.pad = 1, c.types = 1;
        for (int i = 0; i < T; i++) {
            segments[i] = i < A ? 0 : i < A + B ? 1 : 2;
            places[i] = i < A ? i : i < A + B ? i - A : i - A - B;
            ids[i] = segments[i] == 2 ? (int32_t)c.pad : 5 + i * 7 % 40;
            if (segments[i] < 2) apart[segments[i] * B + places[i]] = ids[i];
        }
        for (int i = 0; i < 2 * B; i++) {
            mask[i] = i < A || i >= B;
            if (!mask[i]) apart[i] = (int32_t)c.pad;
        }
        packed = logits_of(
            t, &c,
            &(sample_shape){.batch = 1, .sequence = T, .predictions = 4, .rows = SAMPLE_PACKED},
            ids, segments, places, NULL, at);
        alone = logits_of(t, &c, &(sample_shape){.batch = 2, .sequence = B, .predictions = 4},
                          apart, NULL, NULL, mask, own);
        CHECK(t, packed && alone);
        for (int i = 0; i < 4 * 50; i++)
            CHECK_NEAR(t, packed[i], alone[i], 2e-5 * (1 + fabs((double)alone[i])));
    }
}

TEST_ONCE(bert_evaluation_shares_parameters)
{
    bert_batch_file *batches = open_batches(t);
    bert_config config;
    session_desc d = {.sample = &bert_sample, .config = &config, .purpose = SAMPLE_ANSWER};
    static session s, forward;
    zf_error error = {ZF_OK, ""};
    const bert_batch *b;
    masked_guess guesses[8];
    double before;
    zf_tensor output;
    float *logits;
    int64_t vocab = 197, tokens = 100; /* ids from 100 on are no guesses */
    CHECK(t, batches && open_session(t, &s, batches, &adamw, 2, 1));
    b = &batches->batch[0];
    d.shape = s.shape, d.share = &s;
    CHECK(t, bert_config_load(GOLDEN "config.json", &config, &error));
    CHECK(t, session_open(&forward, &d, &error));
    test_defer(t, close_session, &forward);
    OK(t, masked_feed(&forward, b, b->labelled, batches->examples),
       zf_program_error(forward.program));
    OK(t, zf_step(forward.program), zf_program_error(forward.program));
    before = session_scalar(&forward, "loss");
    OK(t, train_step(&s, batches, 0, 1e-3), zf_program_error(s.program));
    CHECK_NEAR(t, before, session_scalar(&s, "loss"), 1e-6 * before);
    CHECK(t, masked_guesses(&forward, 8, tokens, guesses, &error));
    CHECK(t, session_scalar(&forward, "loss") < before); /* of the updated parameters */
    output = zf_graph_find(forward.graph, "mlm_logits");
    logits = malloc(zf_tensor_bytes(output));
    CHECK(t, logits);
    test_defer(t, free, logits);
    OK(t, zf_read(forward.program, output, logits, zf_tensor_bytes(output)),
       zf_program_error(forward.program));
    for (int row = 0; row < 8; row++) {
        const float *x = logits + row * vocab;
        double sum = 0;
        for (int64_t v = 0; v < vocab; v++) sum += exp(x[v]);
        for (int n = 0; n < MASKED_GUESSES; n++) {
            int64_t better = 0;
            for (int64_t v = 0; v < tokens; v++) better += x[v] > x[guesses[row].token[n]];
            CHECK(t, better == n);
            CHECK_NEAR(t, guesses[row].probability[n], exp(x[guesses[row].token[n]]) / sum, 1e-6);
        }
    }
}

/* Ids of a text of numbers. */
static int64_t encode_numbers(const void *user, const char *text, size_t bytes, int32_t *ids,
                              int64_t cap)
{
    int64_t n = 0;
    (void)user;
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] == ' ') continue;
        if (n < cap) ids[n] = (int32_t)strtol(text + i, NULL, 10);
        while (i + 1 < bytes && text[i + 1] != ' ') i++;
        n++;
    }
    return n;
}

static void free_corpus(void *corpus) { bert_corpus_free(corpus); }
static void free_examples(void *examples) { bert_examples_free(examples); }

/* Held-out examples of a text whose small numbers are frequent. */
static bert_examples *number_examples(test *t)
{
    const bert_corpus_desc d = {.encode = encode_numbers, .vocab_size = 197};
    bert_examples_desc e = {
        .held_out = true, .sequence = 32, .pad = 0, .unk = 1, .cls = 2, .sep = 3, .mask = 4};
    char *text = malloc(1 << 18), err[256] = "";
    uint64_t state = 1;
    size_t n = 0;
    bert_examples *examples;
    if (!text) return NULL;
    for (int line = 0; line < 2400; line++) {
        for (int word = 0; word < 3 + line % 7; word++) {
            uint64_t draw = bert_mix(state++) % 192;
            n += (size_t)sprintf(text + n, "%d ", (int)(5 + draw * draw / 192));
        }
        n += (size_t)sprintf(text + n, line % 6 == 5 ? "\n\n" : "\n");
    }
    e.corpus = bert_corpus_parse(text, n, "numbers", &d, err, sizeof err);
    free(text);
    if (!e.corpus) return test_fail(t, __FILE__, __LINE__, "a corpus", err), NULL;
    test_defer(t, free_corpus, (void *)e.corpus);
    examples = bert_examples_new(&e, err, sizeof err);
    if (examples) test_defer(t, free_examples, examples);
    else test_fail(t, __FILE__, __LINE__, "held-out examples", err);
    return examples;
}

enum { HELD_OUT_BATCHES = 3, HELD_OUT_B = 4, HELD_OUT_T = 32 };

/* The batches that session_score draws, as a batch file. */
static bool write_held_out(const bert_examples *examples, const char *path, zf_error *error)
{
    static const char *const names[] = {"input_ids", "token_type_ids", "attention_mask", "labels",
                                        "next_sentence_label"};
    enum { PART = HELD_OUT_B * HELD_OUT_T, ALL = HELD_OUT_BATCHES * PART };
    static int32_t data[5][ALL];
    zf_safetensors_writer *w = zf_safetensors_writer_new(path, NULL, error);
    bert_batch *b = bert_batch_new(examples, HELD_OUT_B, NULL, 0);
    bool good = w && b;
    for (int i = 0; i < ALL; i++) data[3][i] = -100;
    for (int k = 0; good && k < HELD_OUT_BATCHES; k++) {
        bert_batch_fill(b, examples, k * HELD_OUT_B);
        for (int i = 0; i < PART; i++) {
            data[0][k * PART + i] = b->input_ids[i];
            data[1][k * PART + i] = b->token_type_ids[i];
            data[2][k * PART + i] = b->attention_mask[i];
        }
        for (int i = 0; i < b->labelled; i++) data[3][k * PART + b->positions[i]] = b->labels[i];
        for (int i = 0; i < HELD_OUT_B; i++)
            data[4][k * HELD_OUT_B + i] = b->next_sentence_label[i];
    }
    for (int i = 0; good && i < 5; i++)
        good = !zf_safetensors_declare(w, names[i], ZF_I32,
                                       i < 4 ? ZF_SHAPE(HELD_OUT_BATCHES, HELD_OUT_B, HELD_OUT_T)
                                             : ZF_SHAPE(HELD_OUT_BATCHES, HELD_OUT_B));
    for (int i = 0; good && i < 5; i++)
        good = !zf_safetensors_write(w, i, data[i], (size_t)(i < 4 ? ALL : ALL / HELD_OUT_T) * 4);
    good = good && !zf_safetensors_finish(w, error);
    zf_safetensors_writer_free(w);
    bert_batch_free(b);
    return good;
}

/* Loss and accuracy on the held-out examples while a model with dropout is trained, against
 * transformers' on the same batches (held_out.py). */
TEST_ONCE(bert_evaluation_is_pytorchs)
{
    const recipe dropped = {
        .optimizer = ZF_ADAMW, .clip = 1, .dropout = 0.2, .attention_dropout = 0.3};
    const char *path = test_path("held_out.safetensors"), *golden = GOLDEN "held_out.safetensors";
    bert_batch_file *batches = open_batches(t), *own, *committed;
    bert_examples *examples = number_examples(t);
    zf_error error = {ZF_OK, ""};
    zf_json *expected;
    double mlm_loss = NAN, mlm_accuracy = NAN, nsp_loss = NAN;
    int64_t labelled = 0;
    static session s, evaluation;
    bert_config config;
    session_desc d = {
        .sample = &bert_sample, .config = &config, .purpose = SAMPLE_EVALUATE, .threads = 1};
    masked_data held_out = {.held_out = examples};
    zf_weights_report report;
    sample_score score;
    CHECK(t, batches && examples);
    CHECK(t, write_held_out(examples, test_bless ? golden : path, &error));
    if (test_bless) return;
    CHECK(t, (own = bert_batch_file_load(path, 197, 2, &error)));
    test_defer(t, free_batches, own);
    CHECK(t, (committed = bert_batch_file_load(golden, 197, 2, &error)));
    test_defer(t, free_batches, committed);
    CHECK(t, own->entries == HELD_OUT_BATCHES && committed->entries == HELD_OUT_BATCHES);
    for (int k = 0; k < HELD_OUT_BATCHES; k++) {
        const bert_batch *a = &own->batch[k], *b = &committed->batch[k];
        size_t all = (size_t)HELD_OUT_B * HELD_OUT_T, rows = (size_t)a->labelled;
        CHECK(t, a->labelled == b->labelled && !memcmp(a->input_ids, b->input_ids, all * 4));
        CHECK(t, !memcmp(a->token_type_ids, b->token_type_ids, all * 4));
        CHECK(t, !memcmp(a->attention_mask, b->attention_mask, all));
        CHECK(t, !memcmp(a->positions, b->positions, rows * 4));
        CHECK(t, !memcmp(a->labels, b->labels, rows * 4));
        CHECK(t, !memcmp(a->next_sentence_label, b->next_sentence_label, HELD_OUT_B * 4));
    }
    CHECK(t, (expected = zf_json_read(GOLDEN "held_out.json", NULL, &error)));
    test_defer(t, free_json, expected);
    zf_json_to_double(zf_json_member(expected, "mlm_loss"), 0, 100, &mlm_loss, &error);
    zf_json_to_double(zf_json_member(expected, "mlm_accuracy"), 0, 1, &mlm_accuracy, &error);
    zf_json_to_double(zf_json_member(expected, "nsp_loss"), 0, 100, &nsp_loss, &error);
    zf_json_to_int(zf_json_member(expected, "labelled"), 1, 1000, &labelled, &error);
    CHECK(t, open_session(t, &s, batches, &dropped, 1, 1));
    CHECK(t, zf_exchange_import(bert_sample.exchange(), s.program, s.graph, adamw.params, &report,
                                &error));
    d.shape = s.shape, d.share = &s;
    CHECK(t, bert_config_load(GOLDEN "config.json", &config, &error));
    config.dropout = dropped.dropout, config.attention_dropout = dropped.attention_dropout;
    CHECK(t, session_open(&evaluation, &d, &error));
    test_defer(t, close_session, &evaluation);
    if (!session_score(&evaluation, &(dataset){.own = &held_out}, HELD_OUT_BATCHES, &score, &error))
        test_fail(t, __FILE__, __LINE__, "a score", error.text);
    CHECK(t, score.labelled == labelled);
    CHECK_NEAR(t, score.value[0], mlm_loss, 1e-5 * mlm_loss);
    CHECK_NEAR(t, score.value[2], nsp_loss, 1e-5 * nsp_loss);
    CHECK(t, mlm_accuracy > 0);
    CHECK_NEAR(t, score.value[1], mlm_accuracy, 1e-12);
}

TEST_ONCE(bert_sessions_that_cannot_be)
{
    bert_config config;
    session_desc d = {
        .sample = &bert_sample, .config = &config, .threads = 1,
        .shape = {.batch = 1, .sequence = 65, .predictions = 1}};
    zf_error error = {ZF_OK, ""};
    session s;
    CHECK(t, bert_config_load(GOLDEN "config.json", &config, &error));
    CHECK(t, !session_open(&s, &d, &error));
    CHECK_TEXT(t, error.text, "sequences of 65 tokens are too long for the model's 64 positions");
    d.shape.sequence = 64, d.threads = 2000, error = (zf_error){ZF_OK, ""};
    CHECK(t, !session_open(&s, &d, &error));
    CHECK_TEXT(t, error.text, "zf_cpu_backend: threads is 2000; it must be 1 to 1024");
}

static void free_vocab(void *vocab) { zf_wordpiece_free(vocab); }

TEST_ONCE(bert_text_with_masks_becomes_a_batch)
{
    static const char tokens[] = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nparis\nis\n.\n";
    enum { T = 8, P = 2 };
    int32_t ids[T], types[T], positions[P], labels[P], next[1];
    uint8_t mask[T];
    bert_batch b = {.examples = 1,
                    .sequence = T,
                    .predictions = P,
                    .input_ids = ids,
                    .token_type_ids = types,
                    .attention_mask = mask,
                    .positions = positions,
                    .labels = labels,
                    .next_sentence_label = next};
    zf_wordpiece *vocab = zf_wordpiece_parse(tokens, sizeof tokens - 1, "v", NULL, NULL);
    CHECK(t, vocab);
    test_defer(t, free_vocab, vocab);
    CHECK(t, masked_fill_batch(&b, vocab, "Paris is [MASK] .") == 1);
    CHECK(t, !memcmp(ids, (int32_t[]){2, 5, 6, 4, 7, 3, 0, 0}, sizeof ids));
    CHECK(t, !memcmp(types, (int32_t[T]){0}, sizeof types));
    CHECK(t, !memcmp(mask, (uint8_t[]){1, 1, 1, 1, 1, 1, 0, 0}, sizeof mask));
    CHECK(t, positions[0] == 3 && labels[0] == 0 && positions[1] == 0 && labels[1] == -100);
    CHECK(t, masked_fill_batch(&b, vocab, "paris is paris is [MASK] [MASK]") == 2);
    CHECK(t, ids[7] == 3 && mask[7] == 1 && positions[0] == 5 && positions[1] == 6);
    CHECK(t, masked_fill_batch(&b, vocab, "[MASK] [MASK] [MASK]") ==
                 P); /* no more than there is room for */
    CHECK(t, masked_fill_batch(&b, vocab, "Paris is Rome .") == 0);
    CHECK(t, masked_fill_batch(&b, vocab, "paris is paris is paris is .") == -1);
}
