/* Steps that leave out layers: the draws, and that what a step leaves out changes no number. */
#define _POSIX_C_SOURCE 200809L
#include "../../tools/pass.h"
#include "../support/test.h"

#include <math.h>

enum { LAYERS = 4, BATCH = 4, TOKENS = 6, HIDDEN = 16, MOST = 4, STEPS = 4, ROOM = 1 << 16 };

/* ------------------------------------------------------------------------------------- draws */

static double factor_of(const zf_layer_drop_desc *d, int64_t step)
{
    zf_attribute at[4];
    const zf_run run = {.seed = 5, .step = step};
    at[ZF_AT_layer_drop_coin].i = 2 * d->layer + (d->halves ? d->half : 0);
    at[ZF_AT_layer_drop_share].f = (double)(d->layer + !d->first_kept) / (double)d->layers;
    at[ZF_AT_layer_drop_theta].f = d->theta, at[ZF_AT_layer_drop_gamma].f = d->gamma;
    return zf_layer_drop_factor(
        &(zf_launch){.op = ZF_OP_layer_drop, .attributes = at, .run = &run});
}

/* At the limit, of each layer: the mean factor is 1, and the layer is kept as often as it should
 * be, within 4.5 deviations. The share of layers that are computed is 0.729, or 0.771 from layer 0
 * on. */
TEST(layers_are_kept_as_often_as_they_should_be)
{
    enum { DRAWS = 10000, DEPTH = 12 };
    for (int kept_first = 0; kept_first < 2; kept_first++) {
        double share = 0, variance = 0;
        for (int64_t i = 0; i < DEPTH; i++) {
            const zf_layer_drop_desc d = {.theta = 0.5,
                                          .gamma = 0.001,
                                          .first_kept = kept_first,
                                          .layer = i,
                                          .layers = DEPTH};
            const double p = 1 - 0.5 * (double)(i + !kept_first) / DEPTH;
            double sum = 0, kept = 0;
            for (int64_t k = 0; k < DRAWS; k++) {
                const double by = factor_of(&d, 1000000 + k);
                CHECK(t, by == 0 || fabs(by - 1 / p) < 1e-8);
                sum += by, kept += by != 0;
            }
            CHECK_NEAR(t, sum / DRAWS, 1, 4.5 * sqrt((1 / p - 1) / DRAWS) + 1e-12);
            CHECK_NEAR(t, kept / DRAWS, p, 4.5 * sqrt(p * (1 - p) / DRAWS) + 1e-12);
            share += kept / DRAWS / DEPTH, variance += p * (1 - p) / DRAWS / DEPTH / DEPTH;
        }
        CHECK_NEAR(t, share, kept_first ? 0.770833 : 0.729167, 4.5 * sqrt(variance) + 1e-6);
    }
}

/* theta falls from 1: the first step keeps all, and later ones as exp(-gamma t) says. */
TEST(layers_are_dropped_more_and_more)
{
    const zf_layer_drop_desc d = {.theta = 0.5, .gamma = 0.01, .layer = 3, .layers = 4};
    CHECK(t, factor_of(&d, 1) == 1);
    for (int64_t step = 2; step < 400; step++) {
        const double p = 0.5 + 0.5 * exp(-0.01 * (double)(step - 1)), by = factor_of(&d, step);
        CHECK(t, by == 0 || fabs(by - 1 / p) < 1e-8);
    }
}

/* -------------------------------------------------------------------------------------- models */

typedef struct ranks {
    int world;
    zf_local *group;
    zf_graph *graphs[MOST];
    zf_program *programs[MOST];
    zf_error error;
} ranks;

static ranks now;

static void ranks_close(void *unused)
{
    (void)unused;
    for (int r = 0; r < MOST; r++) zf_program_free(now.programs[r]), zf_graph_free(now.graphs[r]);
    zf_local_free(now.group);
    now = (ranks){.world = 0};
}

static const zf_layer_drop_desc half_of_them = {
    .theta = 0.4, .gamma = 100, .halves = true, .layers = LAYERS};

/* Encoder blocks over x, with the mean square of the result as the loss. */
static zf_graph *model(test *t, const zf_layer_drop_desc *drop, int64_t rows, bool pre_norm)
{
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    zf_nn_encoder_desc d = {.heads = 2,
                            .intermediate = 24,
                            .dropout = 0.1,
                            .attention_dropout = 0.1,
                            .pre_norm = pre_norm,
                            .layer_drop = *drop};
    zf_tensor x = zf_input(g, "x", ZF_F32, ZF_SHAPE(rows, TOKENS, HIDDEN));
    zf_input(g, "lr", ZF_F32, ZF_SCALAR);
    x = zf_nn_linear(x, "in", HIDDEN, NULL);
    for (int64_t i = 0; i < LAYERS; i++) {
        zf_push(g, "layer.%d", (int)i);
        d.layer_drop.layer = i;
        x = zf_nn_encoder_block(x, ZF_NONE, &d);
        zf_pop(g);
    }
    x = zf_nn_linear(x, "out", 3, NULL);
    zf_output(zf_mean(zf_mul(x, x)), "loss");
    return g;
}

typedef struct setup {
    const char *passes; /* before zero */
    int32_t stage, micro_batches;
    int world;
    const char *after; /* passes after zero */
    bool pre_norm, poison;
} setup;

/* Makes the programs of all ranks. */
static zf_status make(test *t, const setup *s, const zf_layer_drop_desc *drop)
{
    char line[400], message[600] = "";
    ranks_close(NULL);
    now.world = s->world;
    now.group =
        zf_local_new(&(zf_local_desc){.allocator = t->allocator, .world = s->world}, &now.error);
    if (!now.group) return now.error.status;
    snprintf(line, sizeof line, "%s; zero stage=%d world=%d micro_batches=%d bucket_bytes=1%s",
             s->passes, (int)s->stage, s->world, (int)s->micro_batches, s->after);
    for (int r = 0; r < s->world; r++) {
        now.graphs[r] = model(t, drop, BATCH / s->world / s->micro_batches, s->pre_norm);
        if (!now.graphs[r]) return ZF_ERR_NOMEM;
        if (zf_graph_status(now.graphs[r]) ||
            pass_run(now.graphs[r], line, NULL, message, sizeof message)) {
            snprintf(now.error.text, sizeof now.error.text, "%s: %s", line,
                     *message ? message : zf_graph_error(now.graphs[r]));
            return ZF_ERR_ARGUMENT;
        }
        now.programs[r] =
            zf_compile(now.graphs[r], &(zf_compile_desc){.comm = zf_local_comm(now.group, r),
                                                         .seed = 5,
                                                         .poison = s->poison,
                                                         .verify = true});
        if (now.programs[r]) continue;
        snprintf(now.error.text, sizeof now.error.text, "%s", zf_graph_error(now.graphs[r]));
        return zf_graph_status(now.graphs[r]);
    }
    return ZF_OK;
}

/* One step: each rank and micro-batch has its rows of the batch. */
static zf_status step(const setup *s, int64_t number)
{
    const zf_lockstep_desc all = {now.programs, now.world, (uint64_t)number};
    const int rows = BATCH / s->world / s->micro_batches;
    static float x[BATCH * TOKENS * HIDDEN];
    zf_status status = ZF_OK;
    for (int m = 0; m < s->micro_batches && !status; m++) {
        for (int r = 0; r < s->world && !status; r++) {
            const int first = (m * s->world + r) * rows;
            const size_t count = (size_t)(rows * TOKENS * HIDDEN);
            const float lr = 0.01f;
            for (size_t i = 0; i < count; i++)
                x[i] = (float)sin((double)(first * TOKENS * HIDDEN + (int64_t)i + number * 7));
            status =
                zf_write(now.programs[r], zf_graph_find(now.graphs[r], "x"), x, count * sizeof *x);
            if (!status)
                status =
                    zf_write(now.programs[r], zf_graph_find(now.graphs[r], "lr"), &lr, sizeof lr);
        }
        if (status) break;
        status = m + 1 < s->micro_batches ? zf_lockstep_micro(&all, &now.error)
                                          : zf_lockstep_step(&all, &now.error);
    }
    return status;
}

/* All parameters, one after the other. */
static zf_status parameters(unsigned char *to, size_t *bytes)
{
    const zf_lockstep_desc all = {now.programs, now.world, 0};
    zf_graph *g = now.graphs[0];
    zf_status status = ZF_OK;
    *bytes = 0;
    for (int32_t i = 0; i < zf_param_count(g) && !status; i++) {
        const zf_tensor w = zf_param_at(g, i);
        status =
            zf_lockstep_read(&all, zf_tensor_name(w), to + *bytes, zf_tensor_bytes(w), &now.error);
        *bytes += zf_tensor_bytes(w);
    }
    return status;
}

/* --------------------------------------------------------------------------------------- tests */

/* Bits do not depend on the stage, on prefetching, on offloading or on what is recomputed; the sums
 * over the batch are the same, in the same parts. */
TEST_ONCE(left_out_layers_give_the_same_bits)
{
    static const char plain[] = "fuse; autograd loss; clip 1; adamw lr; fuse",
                      half[] = "fuse; precision bf16; autograd loss; adamw lr; fuse",
                      again[] = "fuse; autograd loss; clip 1; adamw lr; fuse; recompute";
    /* Those from a stage 0 on, in two parts a step, are alike. */
    static const setup setups[] = {
        {plain, 0, 2, 2, "", true, false},
        {plain, 1, 2, 2, "", true, false},
        {plain, 2, 2, 2, "; prefetch bytes=100000", true, false},
        {plain, 3, 2, 2, "; prefetch bytes=100000", true, true},
        {plain, 3, 1, 4, "; prefetch bytes=4000", true, false},
        {plain, 3, 4, 1, "", true, false},
        {plain, 3, 2, 2,
         "; offload optimizer=host parameters=host gradients=host; prefetch "
         "bytes=100000",
         true, false},
        {again, 3, 2, 2, "", true, false},
        {plain, 0, 2, 2, "", false, false},
        {plain, 3, 2, 2, "; prefetch bytes=100000", false, false},
        {half, 0, 2, 2, "", true, false},
        {half, 3, 2, 2, "; prefetch bytes=100000", true, false},
    };
    static unsigned char first[ROOM], got[ROOM];
    size_t bytes = 0, found;
    test_defer(t, ranks_close, NULL);
    for (size_t k = 0; k < sizeof setups / sizeof *setups; k++) {
        OK(t, make(t, &setups[k], &half_of_them), now.error.text);
        for (int64_t n = 1; n <= STEPS; n++) OK(t, step(&setups[k], n), now.error.text);
        OK(t, parameters(setups[k].stage ? got : first, &found), now.error.text);
        if (!setups[k].stage) bytes = found;
        if (found != bytes || (setups[k].stage && memcmp(first, got, bytes)))
            test_fail(t, __FILE__, __LINE__, setups[k].after, "other parameters");
    }
}

/* What the rows of a rank cost: a half forward and backward, and what is in no layer. */
enum {
    OWN = BATCH / 2 * TOKENS,
    FLOPS_OF_ATTENTION = 3 * 4 * 2 * OWN * HIDDEN * HIDDEN + 12 * OWN * TOKENS * HIDDEN,
    FLOPS_OF_FEED_FORWARD = 3 * 2 * 2 * OWN * HIDDEN * 24,
    FLOPS_OF_NO_LAYER = 2 * 2 * OWN * HIDDEN * HIDDEN + 3 * 2 * OWN * HIDDEN * 3
};

enum { HALVES = 2 * LAYERS, SUMS = 3 };

/* Steps as equations: the halves that one leaves out, and what it gathers (bytes, calls) and
 * reduces (bytes) less than a step that keeps all. */
typedef struct saving {
    double left_out[HALVES], less[SUMS];
} saving;

static void subtract(saving *from, const saving *x, double by)
{
    for (int k = 0; k < HALVES; k++) from->left_out[k] -= by * x->left_out[k];
    for (int k = 0; k < SUMS; k++) from->less[k] -= by * x->less[k];
}

/* Eliminates known halves from an equation. The half that it then gives; -1: none is left. */
static int reduce(const saving known[HALVES], const bool is_known[HALVES], saving *x)
{
    for (int k = 0; k < HALVES; k++) {
        if (fabs(x->left_out[k]) < 1e-9) continue;
        if (!is_known[k]) return k;
        subtract(x, &known[k], x->left_out[k] / known[k].left_out[k]);
    }
    return -1;
}

/* FLOPs of a step are those of the halves that it keeps and of what is in no layer. Bytes that it
 * gathers and reduces are a sum over the halves, exactly: more steps than halves agree. */
TEST_ONCE(steps_cost_what_they_keep)
{
    enum { DRAWN = 24 };
    static const setup s = {"fuse; autograd loss; adamw lr; fuse", 3, 1, 2, "", true, false};
    saving known[HALVES];
    bool is_known[HALVES] = {false};
    int agreed = 0, found = 0;
    test_defer(t, ranks_close, NULL);
    OK(t, make(t, &s, &half_of_them), now.error.text);
    for (int64_t n = 1; n <= DRAWN; n++) {
        double flops = FLOPS_OF_NO_LAYER;
        saving x;
        zf_program_info info;
        int k;
        for (int i = 0; i < HALVES; i++) {
            zf_layer_drop_desc d = half_of_them;
            d.layer = i / 2, d.half = i % 2;
            x.left_out[i] = factor_of(&d, n) == 0;
            flops += x.left_out[i] ? 0 : i % 2 ? FLOPS_OF_FEED_FORWARD : FLOPS_OF_ATTENTION;
        }
        OK(t, step(&s, n), now.error.text);
        info = zf_program_info_of(now.programs[0]);
        CHECK(t, info.counted_flops == flops && (n > 1 || flops == info.flops));
        x.less[0] = (double)(info.plan.traffic.all_gather.bytes - info.counted.all_gather.bytes);
        x.less[1] = (double)(info.plan.traffic.all_gather.calls - info.counted.all_gather.calls);
        x.less[2] =
            (double)(info.plan.traffic.reduce_scatter.bytes - info.counted.reduce_scatter.bytes);
        CHECK(t, n > 1 || (x.less[0] == 0 && x.less[2] == 0));
        k = reduce(known, is_known, &x);
        if (k < 0) {
            for (int i = 0; i < SUMS; i++) CHECK_NEAR(t, x.less[i], 0, 1e-6);
            agreed++;
            continue;
        }
        known[k] = x, is_known[k] = true, found++;
    }
    CHECK(t, found == HALVES && agreed >= DRAWN / 2);
    for (int k = HALVES; k-- > 0;) { /* each half saves something */
        for (int i = k + 1; i < HALVES; i++)
            subtract(&known[k], &known[i], known[k].left_out[i] / known[i].left_out[i]);
        for (int i = 0; i < SUMS; i++) CHECK(t, known[k].less[i] / known[k].left_out[k] > 0);
    }
}

/* Interrupted after each number of steps, and resumed at another stage: the same bits. */
TEST_ONCE(left_out_layers_go_on_from_a_checkpoint)
{
    static const setup first = {"autograd loss; adamw lr", 1, 2, 2, "", true, false},
                       then = {"autograd loss; adamw lr", 3, 2, 2, "", true, false};
    static unsigned char whole[ROOM], got[ROOM];
    char saved[512];
    size_t bytes, found;
    zf_lockstep_desc all = {now.programs, 2, 0};
    test_defer(t, ranks_close, NULL);
    OK(t, make(t, &first, &half_of_them), now.error.text);
    for (int64_t n = 1; n <= STEPS; n++) OK(t, step(&first, n), now.error.text);
    OK(t, parameters(whole, &bytes), now.error.text);
    for (int64_t stop = 2; stop < STEPS; stop += 2) {
        snprintf(saved, sizeof saved, "%s", test_path("dropped"));
        OK(t, make(t, &first, &half_of_them), now.error.text);
        for (int64_t n = 1; n <= stop; n++) OK(t, step(&first, n), now.error.text);
        OK(t, zf_lockstep_save(&all, saved, NULL, &now.error), now.error.text);
        OK(t, make(t, &then, &half_of_them), now.error.text);
        OK(t, zf_lockstep_load(&all, saved, NULL, &now.error), now.error.text);
        for (int64_t n = stop + 1; n <= STEPS; n++) OK(t, step(&then, n), now.error.text);
        OK(t, parameters(got, &found), now.error.text);
        CHECK(t, found == bytes && !memcmp(whole, got, bytes));
    }
}

/* Evaluation computes all layers, with the numbers of a model that drops none. */
TEST_ONCE(evaluation_keeps_all_layers)
{
    static const zf_layer_drop_desc off = {.layers = LAYERS};
    float loss[2] = {0};
    for (int k = 0; k < 2; k++) {
        zf_graph *g = model(t, k ? &off : &half_of_them, BATCH, true);
        zf_program *p = NULL;
        static float x[BATCH * TOKENS * HIDDEN];
        zf_status status = ZF_ERR_NOMEM;
        for (size_t i = 0; i < sizeof x / sizeof *x; i++) x[i] = (float)sin((double)i);
        if (g) p = zf_compile(g, &(zf_compile_desc){.seed = 5, .evaluate = true});
        if (p) status = zf_write(p, zf_graph_find(g, "x"), x, sizeof x);
        for (int n = 0; n < 3 && !status; n++) status = zf_step(p);
        if (!status) status = zf_read(p, zf_graph_find(g, "loss"), &loss[k], sizeof loss[k]);
        if (!status && zf_program_info_of(p).counted_flops != zf_program_info_of(p).flops)
            test_fail(t, __FILE__, __LINE__, "evaluation", "other FLOPs than all layers'");
        zf_program_free(p), zf_graph_free(g);
        OK(t, status, "");
    }
    CHECK(t, loss[0] == loss[1] && loss[0] > 0);
}

static const struct {
    const char *attributes, *message;
} mistakes[] = {
    {"coin=-1 share=0.5 theta=0.5 gamma=0", "coin -1 must not be negative"},
    {"coin=0 share=1.5 theta=0.5 gamma=0",
     "share = 1.5 must be 0 to 1, theta = 0.5 above 0 and at"},
    {"coin=0 share=1 theta=0 gamma=0", "share = 1 must be 0 to 1, theta = 0 above 0 and at most 1"},
    {"coin=0 share=1 theta=1 gamma=-1", "theta = 1 above 0 and at most 1, gamma = -1 not negative"},
};

TEST(layer_drop_explains_mistakes)
{
    for (size_t k = 0; k < sizeof mistakes / sizeof *mistakes; k++) {
        char text[300];
        zf_error error = {ZF_OK, ""};
        snprintf(text, sizeof text,
                 "%%1 = input \"x\" : f32[2]\n%%2 = layer_drop %%1 {%s} : f32[2]\n",
                 mistakes[k].attributes);
        zf_graph_free(zf_graph_parse(text, strlen(text),
                                     &(zf_graph_desc){.allocator = t->allocator}, &error));
        if (error.status == ZF_ERR_NOMEM) OK(t, error.status, error.text);
        CHECK(t, error.status && strstr(error.text, mistakes[k].message));
    }
    {
        const zf_layer_drop_desc d = {.theta = 0.5, .layer = 3, .layers = 3};
        zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
        NEED(t, g, NULL);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        zf_layer_drop(zf_input(g, "x", ZF_F32, ZF_SHAPE(2)), &d);
        if (zf_graph_status(g) != ZF_ERR_ARGUMENT) OK(t, zf_graph_status(g), zf_graph_error(g));
        CHECK(t, strstr(zf_graph_error(g), "zf_layer_drop: layer 3, half 0: there are 3 layers"));
    }
}
