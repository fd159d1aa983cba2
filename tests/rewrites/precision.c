/* Mixed precision: the loss scaler by a table that was derived by hand, the dtypes of nodes, and
 * steps in bf16 and f16 that have the same bits at every ZeRO stage, including skipped ones. */
#include "../support/test.h"

#include <stdio.h>

/* ---------------------------------------------------------------------------- the loss scaler
 *
 * Each step is + (gradients were finite), - (they were not: it is skipped) or ! (they were not, at
 * the least scale: an error, after which all is as before), then the scale and the hysteresis left
 * after it. The rule, of which iteration counts + and - from 0, and last is that of the last -, at
 * first -1:
 *
 *     -   left > 1: left - 1, otherwise scale / factor, not below least
 *     +   consecutive: left = hysteresis; iteration - last - 1 is a positive multiple of window:
 *         left = hysteresis, scale * factor
 */

typedef struct scaler_row {
    const char *name, *options, *steps;
} scaler_row;

static const scaler_row scaler_rows[] = {
    {"growth, after every third good step after the first",
     "scale=4 factor=2 least=1 window=3 hysteresis=2 consecutive=0",
     "+4:2 +4:2 +4:2 +8:2 +8:2 +8:2 +16:2"},
    {"hysteresis 1", "scale=16 factor=2 least=1 window=2 hysteresis=1 consecutive=0",
     "-8:1 +8:1 +8:1 +16:1 +16:1 +32:1 -16:1 -8:1 +8:1 +8:1 -4:1 +4:1 +4:1 +8:1"},
    {"hysteresis 1, consecutive", "scale=16 factor=2 least=1 window=2 hysteresis=1 consecutive=1",
     "-8:1 +8:1 -4:1 +4:1 +4:1 +8:1"},
    {"hysteresis 2", "scale=16 factor=2 least=1 window=2 hysteresis=2 consecutive=0",
     "-16:1 -8:1 -4:1 +4:1 +4:1 +8:2 -8:1 +8:1 -4:1 +4:1 +4:1 +8:2"},
    {"hysteresis 2: overflows apart add up",
     "scale=16 factor=2 least=1 window=2 hysteresis=2 consecutive=0",
     "-16:1 +16:1 -8:1 +8:1 -4:1 +4:1"},
    {"hysteresis 2, consecutive: they do not",
     "scale=16 factor=2 least=1 window=2 hysteresis=2 consecutive=1",
     "-16:1 +16:2 -16:1 +16:2 -16:1 -8:1 +8:2 +8:2 +16:2 -16:1"},
    {"hysteresis 3", "scale=16 factor=2 least=1 window=3 hysteresis=3 consecutive=0",
     "-16:2 +16:2 -16:1 -8:1 -4:1 +4:1 +4:1 +4:1 +8:3 -8:2 +8:2 +8:2"},
    {"hysteresis 3, consecutive", "scale=16 factor=2 least=1 window=3 hysteresis=3 consecutive=1",
     "-16:2 -16:1 +16:3 -16:2 -16:1 -8:1 +8:3"},
    {"overflow at first, hysteresis 1",
     "scale=65536 factor=2 least=1 window=1000 hysteresis=1 consecutive=0", "-32768:1 +32768:1"},
    {"overflow at first, hysteresis 2",
     "scale=65536 factor=2 least=1 window=1000 hysteresis=2 consecutive=0",
     "-65536:1 -32768:1 +32768:1"},
    {"growth after a skip counts from it",
     "scale=8 factor=2 least=1 window=2 hysteresis=1 consecutive=0",
     "-4:1 +4:1 +4:1 -2:1 +2:1 +2:1 +4:1 +4:1 +8:1"},
    {"window 1", "scale=8 factor=2 least=1 window=1 hysteresis=1 consecutive=0",
     "-4:1 +4:1 +8:1 +16:1 -8:1 +8:1 +16:1"},
    {"the least scale, hysteresis 1",
     "scale=2 factor=2 least=1 window=2 hysteresis=1 consecutive=0",
     "-1:1 !1:1 !1:1 +1:1 +1:1 +2:1 -1:1 !1:1"},
    {"the least scale, hysteresis 2",
     "scale=1 factor=2 least=1 window=2 hysteresis=2 consecutive=0",
     "-1:1 !1:1 +1:1 +1:1 +2:2 -2:1 -1:1 !1:1"},
    {"not below the least scale", "scale=6 factor=4 least=2 window=9 hysteresis=1 consecutive=0",
     "-2:1 !2:1"},
    {"factor 4", "scale=16 factor=4 least=1 window=2 hysteresis=1 consecutive=0",
     "-4:1 +4:1 +4:1 +16:1 -4:1"},
    {"a fixed scale", "scale=16 factor=1 least=1 window=2 hysteresis=2 consecutive=0",
     "-16:1 -16:1 -16:1 +16:1 +16:1 +16:2 -16:1"},
    {"a fixed scale, the least", "scale=1 factor=1 least=1 window=2 hysteresis=1 consecutive=0",
     "-1:1 -1:1 +1:1"},
    {"not beyond f32",
     "scale=1.7014118346046923e+38 factor=2 least=1 window=1 hysteresis=1 "
     "consecutive=0",
     "+1.7014118346046923e+38:1 +1.7014118346046923e+38:1 -8.507059173023462e+37:1"},
};

typedef struct scaler {
    zf_graph *graph;
    zf_program *program;
} scaler;

static void scaler_close(void *object)
{
    scaler *s = object;
    zf_program_free(s->program);
    zf_graph_free(s->graph);
    *s = (scaler){NULL, NULL};
}

static bool scaler_open(test *t, scaler *s, const scaler_row *row, zf_error *error)
{
    char text[1024];
    double scale, factor, least;
    int window, hysteresis, consecutive, length;
    if (sscanf(row->options,
               "scale=%lf factor=%lf least=%lf window=%d hysteresis=%d consecutive=%d", &scale,
               &factor, &least, &window, &hysteresis, &consecutive) != 6) {
        error->status = ZF_ERR_ARGUMENT;
        return false;
    }
    length = snprintf(
        text, sizeof text,
        "%%1 = state \"scale\" {value=%.17g} : f32[]\n%%2 = state \"left\" {value=%d} : i64[]\n"
        "%%3 = state \"iteration\" : i64[]\n%%4 = state \"last\" {value=-1} : i64[]\n"
        "%%5 = state \"skipped\" : i64[]\n%%6 = input \"good\" : f32[]\nupdate:\n"
        "loss_scale_update %%1, %%2, %%3, %%4, %%5, %%6 {factor=%.17g window=%d hysteresis=%d "
        "least=%.17g consecutive=%s}\n",
        scale, hysteresis, factor, window, hysteresis, least, consecutive ? "true" : "false");
    *s = (scaler){
        zf_graph_parse(text, (size_t)length, &(zf_graph_desc){.allocator = t->allocator}, error),
        NULL};
    if (!s->graph) return false;
    s->program = zf_compile(s->graph, NULL);
    if (s->program) return true;
    error->status = zf_graph_status(s->graph);
    snprintf(error->text, sizeof error->text, "%s", zf_graph_error(s->graph));
    return false;
}

static double scaler_state(scaler *s, const char *name)
{
    zf_tensor x = zf_graph_find(s->graph, name);
    float value = NAN;
    int64_t count = -99;
    bool scale = zf_tensor_dtype(x) == ZF_F32;
    if (zf_read(s->program, x, scale ? (void *)&value : (void *)&count, zf_tensor_bytes(x)))
        return NAN;
    return scale ? (double)value : (double)count;
}

/* A step whose operand 5 is `good`. */
static zf_status scaler_step(scaler *s, float good)
{
    zf_status status = zf_write(s->program, zf_graph_find(s->graph, "good"), &good, sizeof good);
    return status ? status : zf_step(s->program);
}

TEST(precision_scaler_table)
{
    static scaler s;
    for (size_t r = 0; r < sizeof scaler_rows / sizeof scaler_rows[0]; r++) {
        const scaler_row *row = &scaler_rows[r];
        zf_error error = {ZF_OK, ""};
        int iteration = 0, last = -1, skipped = 0, k = 0;
        test_defer(t, scaler_close, &s);
        OK(t, scaler_open(t, &s, row, &error) ? ZF_OK : error.status, error.text);
        for (const char *at = row->steps; *at; at += strspn(at, " "), k++) {
            static const float good[] = {0.5, 0, 1, 65536}, bad[] = {-1, -1e-30f, -2, -INFINITY};
            char step = *at++, got[160], want[160];
            zf_status status = scaler_step(&s, step == '+' ? good[k % 4] : bad[k % 4]);
            double scale = strtod(at, (char **)&at);
            long left = strtol(at + 1, (char **)&at, 10);
            CHECK(t, status == (step == '!' ? ZF_ERR_NAN : ZF_OK));
            CHECK(t, !status || strstr(zf_program_error(s.program),
                                       "gradients are not finite at the least loss scale"));
            if (step == '-') last = iteration, skipped++;
            iteration += step != '!';
            snprintf(want, sizeof want, "%s: step %d: %.9g %ld %d %d %d", row->name, k, scale, left,
                     iteration, last, skipped);
            snprintf(got, sizeof got, "%s: step %d: %.9g %.0f %.0f %.0f %.0f", row->name, k,
                     scaler_state(&s, "scale"), scaler_state(&s, "left"),
                     scaler_state(&s, "iteration"), scaler_state(&s, "last"),
                     scaler_state(&s, "skipped"));
            CHECK_TEXT(t, got, want);
        }
        scaler_close(&s);
        t->deferred_count--;
    }
}

/* States may hold any values, as in a damaged checkpoint, without undefined behaviour. */
TEST_ONCE(precision_scaler_survives_any_state)
{
    static scaler s;
    static const int64_t values[] = {INT64_MIN, -1, 0, 1, INT64_MAX};
    static const char *const names[] = {"left", "iteration", "last", "skipped"};
    zf_error error = {ZF_OK, ""};
    test_defer(t, scaler_close, &s);
    OK(t, scaler_open(t, &s, &scaler_rows[0], &error) ? ZF_OK : error.status, error.text);
    for (int k = 0; k < 5 * 5 * 5 * 5 * 2; k++) {
        int rest = k / 2;
        float scale = 8;
        OK(t, zf_write(s.program, zf_graph_find(s.graph, "scale"), &scale, sizeof scale),
           zf_program_error(s.program));
        for (int n = 0; n < 4; n++, rest /= 5)
            OK(t,
               zf_write(s.program, zf_graph_find(s.graph, names[n]), &values[rest % 5],
                        sizeof values[0]),
               zf_program_error(s.program));
        OK(t, scaler_step(&s, k % 2 ? 1.0f : -1.0f), zf_program_error(s.program));
    }
}

#define SCALER                                                                                     \
    "%1 = state \"scale\" : f32[]\n%2 = state \"left\" : i64[]\n%3 = state \"at\" : i64[]\n"       \
    "%4 = state \"last\" : i64[]\n%5 = state \"skipped\" : i64[]\n%6 = input \"x\" : f32[2]\n"     \
    "%7 = input \"good\" : f32[]\n"

TEST(precision_scaler_misused)
{
    static const char *const rows[][2] = {
        {"loss_scale %7, %2, %3, %4, %5 {factor=2 window=9 hysteresis=1 least=1}",
         "operand 0, the scale, must be a state f32[]"},
        {"loss_scale %2, %2, %3, %4, %5 {factor=2 window=9 hysteresis=1 least=1}",
         "operand 0, the scale, must be a state f32[]"},
        {"loss_scale %1, %2, %3, %1, %5 {factor=2 window=9 hysteresis=1 least=1}",
         "operand 3, the last overflow, must be a state i64[]"},
        {"loss_scale %1, %2, %3, %2, %5 {factor=2 window=9 hysteresis=1 least=1}",
         "operands 1 and 3, the hysteresis left and the last overflow, must be two states"},
        {"loss_scale %1, %2, %3, %4, %5 {factor=0.5 window=9 hysteresis=1 least=1}",
         "factor = 0.5 must be finite and at least 1"},
        {"loss_scale %1, %2, %3, %4, %5 {factor=nan window=9 hysteresis=1 least=1}",
         "factor = nan must be finite and at least 1"},
        {"loss_scale %1, %2, %3, %4, %5 {factor=2 hysteresis=1 least=1}",
         "window = 0, hysteresis = 1: both must be at least 1"},
        {"loss_scale %1, %2, %3, %4, %5 {factor=2 window=9 hysteresis=-1 least=1}",
         "window = 9, hysteresis = -1: both must be at least 1"},
        {"loss_scale %1, %2, %3, %4, %5 {factor=2 window=9 hysteresis=1}",
         "least = 0 must be finite and above 0"},
        {"loss_scale_update %1, %2, %3, %4, %5, %6 {factor=2 window=9 hysteresis=1 least=1}",
         "operand 5, which is below 0 where gradients are not finite, must be one float"},
        {"loss_scale_update %1, %2, %3, %4, %5, %2 {factor=2 window=9 hysteresis=1 least=1}",
         "operand 5, which is below 0 where gradients are not finite, must be one float"},
        {"advance %2, %3", "operand 1 must be one float"},
    };
    for (size_t n = 0; n < sizeof rows / sizeof rows[0]; n++) {
        char text[1024];
        zf_error error = {ZF_OK, ""};
        zf_graph *g;
        snprintf(text, sizeof text, "%s%s\n", SCALER, rows[n][0]);
        g = zf_graph_parse(text, strlen(text), &(zf_graph_desc){.allocator = t->allocator}, &error);
        zf_graph_free(g);
        CHECK(t, !g);
        if (t->refused && error.status == ZF_ERR_NOMEM) return;
        if (!strstr(error.text, rows[n][1])) CHECK_TEXT(t, error.text, rows[n][1]);
    }
}

/* ------------------------------------------------------------------------------------- models */

enum {
    RANKS = 4, /* at most */
    SLOTS = 8, /* parts of the global batch, which 1, 2 and 4 ranks share */
    ROWS = 3,
    IN = 19,
    HIDDEN = 71,
    CLASSES = 5
};

typedef struct job {
    zf_precision_desc precision;
    zf_optimizer optimizer;
    double clip; /* 0: none */
    int32_t stage, world;
    bool fuse;
} job;

typedef struct model {
    int32_t world;
    zf_comm comms[RANKS]; /* say who is who; lockstep needs no more */
    zf_graph *graphs[RANKS];
    zf_program *programs[RANKS];
    zf_lockstep_desc lockstep;
    zf_error error;
} model;

static void model_close(void *object)
{
    model *m = object;
    for (int r = 0; r < RANKS; r++) zf_program_free(m->programs[r]);
    for (int r = 0; r < RANKS; r++) zf_graph_free(m->graphs[r]);
    *m = (model){.world = 0};
}

/* A classifier with what a transformer has: an embedding, products, LayerNorm, dropout, a tied
 * head. */
static void model_build(zf_graph *g, const job *j)
{
    zf_param_desc normal = {.init = ZF_NORMAL, .std = 0.3}, ones = {.init = ZF_ONES};
    zf_tensor x = zf_input(g, "x", ZF_F32, ZF_SHAPE(ROWS, IN));
    zf_tensor ids = zf_input(g, "ids", ZF_I32, ZF_SHAPE(ROWS));
    zf_tensor labels = zf_input(g, "labels", ZF_I32, ZF_SHAPE(ROWS));
    zf_tensor weight = zf_input(g, "weight", ZF_F32, ZF_SCALAR);
    zf_tensor lr = zf_input(g, "lr", ZF_F32, ZF_SCALAR);
    zf_tensor table = zf_param(g, "table", ZF_SHAPE(CLASSES, HIDDEN), &normal);
    zf_tensor h = zf_matmul_ex(x, zf_param(g, "in.weight", ZF_SHAPE(HIDDEN, IN), &normal),
                               &(zf_matmul_desc){.transpose_b = true});
    zf_tensor gamma, beta, loss;
    h = zf_gelu(zf_add(h, zf_param(g, "in.bias", ZF_SHAPE(HIDDEN), NULL)));
    h = zf_add(zf_dropout(h, 0.2), zf_embedding(table, ids));
    gamma = zf_param(g, "norm.weight", ZF_SHAPE(HIDDEN), &ones);
    beta = zf_param(g, "norm.bias", ZF_SHAPE(HIDDEN), NULL);
    h = zf_layer_norm(h, gamma, beta, 1e-12);
    h = zf_matmul_ex(h, table, &(zf_matmul_desc){.transpose_b = true});
    loss = zf_output(zf_cross_entropy(h, labels, weight), "loss");
    zf_training training = {.loss = loss,
                            .lr = lr,
                            .fuse.without = j->fuse ? NULL : "all",
                            .precision = j->precision,
                            .clip = j->clip,
                            .optimizer = j->optimizer,
                            .sgd.momentum = j->optimizer == ZF_SGD ? 0.9 : 0,
                            .zero = {.stage = j->stage,
                                     .world = j->world,
                                     .micro_batches = SLOTS / j->world,
                                     .bucket_bytes = 3000}};
    test_set(&training, "weight-decay", 0.01);
    zf_passes(g, &training);
}

static zf_status model_open(test *t, model *m, const job *j)
{
    *m = (model){.world = j->world};
    for (int32_t r = 0; r < j->world; r++) {
        zf_graph *g = m->graphs[r] = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
        if (!g) return m->error.status = ZF_ERR_NOMEM;
        model_build(g, j);
        m->comms[r] = (zf_comm){.rank = r, .world = j->world};
        m->programs[r] = zf_compile(
            g, &(zf_compile_desc){.seed = 11, .comm = j->world > 1 ? &m->comms[r] : NULL});
        if (m->programs[r]) continue;
        snprintf(m->error.text, sizeof m->error.text, "%s", zf_graph_error(g));
        return m->error.status = zf_graph_status(g);
    }
    m->lockstep = (zf_lockstep_desc){m->programs, m->world, 0};
    return ZF_OK;
}

static zf_status put(model *m, int32_t r, const char *name, const void *data)
{
    zf_tensor x = zf_graph_find(m->graphs[r], name);
    zf_status status = zf_write(m->programs[r], x, data, zf_tensor_bytes(x));
    if (status)
        snprintf(m->error.text, sizeof m->error.text, "%s", zf_program_error(m->programs[r]));
    return m->error.status = status;
}

static zf_status feed(model *m, int32_t r, int64_t slot, int64_t step)
{
    float x[ROWS * IN], weight = 1.0f / (ROWS * SLOTS), lr = 0.01f;
    int32_t ids[ROWS], labels[ROWS];
    for (int i = 0; i < ROWS * IN; i++)
        x[i] = (float)((i * 7 + slot * 5 + step * 3) % 41 - 20) / 16;
    for (int i = 0; i < ROWS; i++) {
        ids[i] = (int32_t)((i + slot) % CLASSES);
        labels[i] = (int32_t)((i * 3 + slot + step) % CLASSES);
    }
    if (put(m, r, "x", x) || put(m, r, "ids", ids) || put(m, r, "labels", labels) ||
        put(m, r, "weight", &weight))
        return m->error.status;
    return put(m, r, "lr", &lr);
}

static zf_status train_step(model *m, int64_t step)
{
    zf_status status = ZF_OK;
    for (int64_t slot = 0; slot < SLOTS && !status; slot++) {
        int32_t r = (int32_t)(slot % m->world);
        if ((status = feed(m, r, slot, step)) || r < m->world - 1) continue;
        status = slot == SLOTS - 1 ? zf_lockstep_step(&m->lockstep, &m->error)
                                   : zf_lockstep_micro(&m->lockstep, &m->error);
    }
    return status;
}

/* An output or state of one element; NaN where there is none. */
static double number_of(model *m, const char *name)
{
    char data[8] = {0};
    float value;
    int64_t count;
    zf_tensor x = zf_graph_find(m->graphs[0], name);
    if (!zf_valid(x) || zf_read(m->programs[0], x, data, zf_tensor_bytes(x))) return NAN;
    memcpy(&value, data, sizeof value);
    memcpy(&count, data, sizeof count);
    return zf_tensor_dtype(x) == ZF_I64 ? (double)count : (double)value;
}

static const char *const params[] = {"table", "in.weight", "in.bias", "norm.weight", "norm.bias"};
static const char *const kinds[] = {"",         "sgd.momentum/", "adamw.m/",
                                    "adamw.v/", "adamw.master/", "lamb.m/",
                                    "lamb.v/",  "lamb.master/"};
static const char *const counters[] = {"adamw.step",       "lamb.step",
                                       "scaler.scale",     "scaler.hysteresis",
                                       "scaler.iteration", "scaler.last_overflow",
                                       "scaler.skipped"};

enum { IMAGE = 1 << 16 };

/* Appends the value called `name`, if there is one; false when it cannot be read. */
static bool image_add(model *m, const char *name, unsigned char image[IMAGE], size_t *at)
{
    zf_tensor x = zf_graph_find(m->graphs[0], name);
    size_t bytes = zf_tensor_bytes(x);
    if (!zf_valid(x)) return true;
    if (*at + bytes > IMAGE || zf_lockstep_read(&m->lockstep, name, image + *at, bytes, &m->error))
        return false;
    *at += bytes;
    return true;
}

/* Every parameter and state of the optimizer, and with `all` those of the loss scale; returns
 * their bytes, 0 on failure. */
static size_t image_of(model *m, bool all, unsigned char image[IMAGE])
{
    size_t at = 0;
    char name[64];
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (size_t i = 0; i < sizeof params / sizeof *params; i++) {
            snprintf(name, sizeof name, "%s%s", kinds[k], params[i]);
            if (!image_add(m, name, image, &at)) return 0;
        }
    for (size_t k = 0; k < (all ? sizeof counters / sizeof *counters : 2); k++)
        if (!image_add(m, counters[k], image, &at)) return 0;
    return at;
}

/* -------------------------------------------------------------------------------------- steps */

/* A scale that is far too large: steps are skipped until f16 can hold the gradients, which changes
 * only the scaler; the output loss is unscaled. */
TEST(precision_skips_steps_that_overflow)
{
    static model m;
    static unsigned char before[IMAGE], after[IMAGE];
    const job j = {.precision = {.dtype = ZF_F16, .scale = 0x1p21, .hysteresis = 1, .window = 3},
                   .optimizer = ZF_ADAMW,
                   .clip = 0.5,
                   .world = 1};
    double scale = 0x1p21, skipped = 0;
    int good = 0, grown = 0;
    test_defer(t, model_close, &m);
    OK(t, model_open(t, &m, &j), m.error.text);
    for (int step = 0; step < 16; step++) {
        size_t bytes = image_of(&m, false, before);
        double norm, now;
        bool overflow, same;
        CHECK(t, bytes);
        OK(t, train_step(&m, step), m.error.text);
        norm = number_of(&m, "grad_norm"), now = number_of(&m, "loss_scale");
        overflow = !isfinite(norm);
        same = image_of(&m, false, after) == bytes && !memcmp(before, after, bytes);
        CHECK(t, same == overflow);
        CHECK(t, isfinite(number_of(&m, "loss")) && number_of(&m, "loss") < 50);
        CHECK(t, overflow || norm < 50);
        CHECK(t, overflow ? now == scale / 2 : now == scale || now == 2 * scale);
        skipped += overflow, good += !overflow, grown += now > scale;
        CHECK(t, number_of(&m, "skipped_steps") == skipped);
        CHECK(t, number_of(&m, "adamw.step") == good);
        CHECK(t, number_of(&m, "scaler.iteration") == step + 1);
        scale = now;
    }
    CHECK(t, skipped > 2 && good > 5 && grown > 0);
}

/* A scale of 2^k changes no bit in f32: the unscaled gradients are those of a graph without one,
 * with clipping and without. */
TEST_ONCE(precision_scale_leaves_no_trace_in_f32)
{
    static model plain, scaled;
    static unsigned char want[IMAGE], got[IMAGE];
    for (int k = 0; k < 3 * 3; k++) {
        static const double clips[] = {0, 0.05, 100};
        job j = {.optimizer = (zf_optimizer)(k % 3), .clip = clips[k / 3], .world = 2, .stage = 2};
        size_t bytes;
        test_defer(t, model_close, &plain);
        OK(t, model_open(t, &plain, &j), plain.error.text);
        j.precision = (zf_precision_desc){.scale = 4096, .window = 2};
        test_defer(t, model_close, &scaled);
        OK(t, model_open(t, &scaled, &j), scaled.error.text);
        for (int step = 0; step < 5; step++) {
            OK(t, train_step(&plain, step), plain.error.text);
            OK(t, train_step(&scaled, step), scaled.error.text);
            CHECK(t, number_of(&plain, "loss") == number_of(&scaled, "loss"));
            CHECK(t, !j.clip || number_of(&plain, "grad_norm") == number_of(&scaled, "grad_norm"));
        }
        bytes = image_of(&plain, false, want);
        CHECK(t, bytes && image_of(&scaled, false, got) == bytes && !memcmp(want, got, bytes));
        CHECK(t, number_of(&scaled, "loss_scale") == 16384);
        model_close(&scaled), model_close(&plain);
        t->deferred_count -= 2;
    }
}

/* Stages 0 to 3 of 1, 2 and 4 ranks, with skipped steps among them, have the same bits. */
static void check_stages(test *t, const job *base, bool skips)
{
    static model m;
    static unsigned char first[IMAGE], image[IMAGE];
    double losses[8] = {0}, scales[8] = {0};
    size_t bytes = 0;
    for (int32_t world = 1; world <= RANKS; world *= 2)
        for (int32_t stage = 0; stage < 4; stage++) {
            bool once = world == 1 && stage == 0;
            job j = *base;
            j.world = world, j.stage = stage;
            test_defer(t, model_close, &m);
            OK(t, model_open(t, &m, &j), m.error.text);
            for (int step = 0; step < 8; step++) {
                double loss, scale;
                OK(t, train_step(&m, step), m.error.text);
                loss = number_of(&m, "loss"), scale = number_of(&m, "loss_scale");
                if (once) losses[step] = loss, scales[step] = scale;
                CHECK(t, loss == losses[step]);
                CHECK(t, scale == scales[step] || (isnan(scale) && isnan(scales[step])));
            }
            if (once) bytes = image_of(&m, true, first);
            CHECK(t, bytes && image_of(&m, true, image) == bytes && !memcmp(first, image, bytes));
            if (skips) CHECK(t, number_of(&m, "skipped_steps") >= 2);
            if (skips) CHECK(t, number_of(&m, "skipped_steps") <= 5);
            model_close(&m);
            t->deferred_count--;
        }
}

TEST_ONCE(precision_bf16_is_the_same_at_every_stage)
{
    job j = {.precision = {.dtype = ZF_BF16}, .optimizer = ZF_ADAMW, .clip = 0.5};
    check_stages(t, &j, false);
    j.optimizer = ZF_LAMB, j.precision.scale = 1024, j.fuse = true;
    check_stages(t, &j, false);
}

TEST_ONCE(precision_f16_is_the_same_at_every_stage)
{
    job j = {.precision = {.dtype = ZF_F16, .scale = 0x1p20, .hysteresis = 1, .window = 2},
             .optimizer = ZF_ADAMW,
             .clip = 0.5};
    check_stages(t, &j, true);
    j.optimizer = ZF_LAMB, j.clip = 0;
    check_stages(t, &j, true);
    j.optimizer = ZF_SGD, j.fuse = true;
    check_stages(t, &j, true);
}

/* At the least scale an overflow is the error of a step, on all ranks, and changes nothing. */
TEST(precision_least_scale_is_an_error)
{
    static model m;
    static unsigned char before[IMAGE], after[IMAGE];
    const job j = {.precision = {.dtype = ZF_F16, .scale = 0x1p23, .min_scale = 0x1p22},
                   .optimizer = ZF_ADAMW,
                   .clip = 0,
                   .world = 2,
                   .stage = 3};
    size_t bytes;
    test_defer(t, model_close, &m);
    OK(t, model_open(t, &m, &j), m.error.text);
    OK(t, train_step(&m, 0), m.error.text); /* hysteresis 2 */
    OK(t, train_step(&m, 1), m.error.text); /* 2^22 */
    bytes = image_of(&m, true, before);
    CHECK(t, bytes && number_of(&m, "loss_scale") == 0x1p22);
    GIVES(t, train_step(&m, 2), ZF_ERR_NAN, m.error.text);
    CHECK(t, strstr(m.error.text, "step 3: gradients are not finite at the least loss scale, "
                                  "4.1943e+06; parameters and states are as they were"));
    m.error = (zf_error){ZF_OK, ""};
    CHECK(t, image_of(&m, true, after) == bytes && !memcmp(before, after, bytes));
    CHECK(t, zf_program_step(m.programs[0]) == 2 && zf_program_step(m.programs[1]) == 2);
}

/* Parameters are their master weights, rounded; a written one writes them too. */
TEST(precision_master_weights)
{
    static model m;
    static float master[HIDDEN * IN];
    static uint16_t param[HIDDEN * IN], rounded[HIDDEN * IN];
    const job j = {.precision = {.dtype = ZF_BF16}, .optimizer = ZF_LAMB, .clip = 1, .world = 1};
    test_defer(t, model_close, &m);
    OK(t, model_open(t, &m, &j), m.error.text);
    for (int step = 0; step < 2; step++) {
        OK(t,
           zf_lockstep_read(&m.lockstep, "lamb.master/in.weight", master, sizeof master, &m.error),
           m.error.text);
        OK(t, zf_lockstep_read(&m.lockstep, "in.weight", param, sizeof param, &m.error),
           m.error.text);
        zf_convert(rounded, ZF_BF16, master, ZF_F32, HIDDEN * IN);
        CHECK(t, !memcmp(param, rounded, sizeof param));
        OK(t, train_step(&m, step), m.error.text);
    }
    OK(t, put(&m, 0, "in.weight", rounded), m.error.text);
    OK(t, zf_lockstep_read(&m.lockstep, "lamb.master/in.weight", master, sizeof master, &m.error),
       m.error.text);
    zf_convert(param, ZF_BF16, master, ZF_F32, HIDDEN * IN);
    CHECK(t, !memcmp(param, rounded, sizeof param));
}
