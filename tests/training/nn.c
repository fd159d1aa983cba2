/* Layers, schedules and the training loop. */
#include "../support/golden.h"

/* -------------------------------------------------------------------------------- schedules */

static const double pi = 3.14159265358979323846;

static void check_rates(test *t, const zf_schedule *s, const double rates[][2], int count)
{
    for (int i = 0; i < count; i++)
        CHECK_NEAR(t, zf_schedule_at(s, (int64_t)rates[i][0]), rates[i][1], 1e-15);
}

#define CHECK_RATES(t, schedule, ...)                                                              \
    check_rates(t, &(zf_schedule)schedule, (const double[][2])__VA_ARGS__,                         \
                (int)(sizeof((double[][2])__VA_ARGS__) / sizeof(double[2])))
#define SCHEDULE(...)                                                                              \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

/* Each: {step, rate}. */
TEST(schedules_follow_their_formulas)
{
    CHECK_RATES(t, SCHEDULE(.kind = ZF_CONSTANT, .peak = 0.5, .warmup = 4, .steps = 10),
                {{0, 0}, {1, 0.125}, {3, 0.375}, {4, 0.5}, {10, 0.5}, {99, 0.5}});
    CHECK_RATES(t, SCHEDULE(.kind = ZF_LINEAR, .peak = 0.5, .end = 0.1, .warmup = 2, .steps = 10),
                {{1, 0.25}, {2, 0.5}, {3, 0.45}, {6, 0.3}, {9, 0.15}, {10, 0.1}, {11, 0.1}});
    CHECK_RATES(t, SCHEDULE(.kind = ZF_COSINE, .peak = 0.5, .end = 0.1, .warmup = 2, .steps = 10),
                {{1, 0.25},
                 {2, 0.5},
                 {3, 0.1 + 0.2 * (1 + cos(pi / 8))},
                 {6, 0.3},
                 {10, 0.1},
                 {1000, 0.1}});
    CHECK_RATES(t, SCHEDULE(.kind = ZF_POLYNOMIAL, .peak = 0.5, .end = 0.1, .steps = 8, .power = 2),
                {{0, 0.5}, {2, 0.1 + 0.4 * 0.5625}, {4, 0.2}, {8, 0.1}, {9, 0.1}});
    CHECK_RATES(t, SCHEDULE(.kind = ZF_POLYNOMIAL, .peak = 0.5, .steps = 8),
                {{4, 0.25}, {8, 0}, {9, 0}});
    CHECK_RATES(t,
                SCHEDULE(.kind = ZF_EXPONENTIAL, .peak = 0.5, .end = 0.15, .warmup = 2, .rate = 0.5,
                         .every = 3),
                {{1, 0.25}, {2, 0.5}, {4, 0.5}, {5, 0.25}, {7, 0.25}, {8, 0.15}, {99, 0.15}});
    CHECK_RATES(t, SCHEDULE(.kind = ZF_EXPONENTIAL, .peak = 0.5),
                {{0, 0.5}, {1, 0.45}, {2, 0.405}});
    CHECK_RATES(t,
                SCHEDULE(.kind = ZF_ONE_CYCLE, .peak = 0.5, .end = 0.1, .warmup = 4, .steps = 10),
                {{0, 0.02},
                 {1, 0.02 + 0.24 * (1 - cos(pi / 4))},
                 {2, 0.26},
                 {4, 0.5},
                 {5, 0.1 + 0.2 * (1 + cos(pi / 6))},
                 {7, 0.3},
                 {10, 0.1},
                 {11, 0.1}});
    CHECK_RATES(t, SCHEDULE(.kind = ZF_ONE_CYCLE, .peak = 0.5, .steps = 20),
                {{0, 0.02}, {3, 0.26}, {6, 0.5}, {13, 0.25}, {20, 0}});
    /* 0 where 0 is not the default */
    CHECK_RATES(t, SCHEDULE(.kind = ZF_ONE_CYCLE, .peak = 0.5, .steps = 20, .warmup = -1),
                {{0, 0.5}, {10, 0.25}, {20, 0}});
    CHECK_RATES(t, SCHEDULE(.kind = ZF_POLYNOMIAL, .peak = 0.5, .steps = 20, .power = ZF_ZERO),
                {{0, 0.5}, {10, 0.5}, {20, 0.5}});
    CHECK_RATES(t,
                SCHEDULE(.kind = ZF_EXPONENTIAL, .peak = 0.5, .end = 0.1, .every = 4,
                         .rate = ZF_ZERO),
                {{3, 0.5}, {4, 0.1}, {9, 0.1}});
}

/* Without warm-up, without steps, long after the end: the rate is finite and at most peak. */
TEST_ONCE(schedules_without_room_are_within_their_bounds)
{
    static const int64_t steps[] = {0, 1, 2, 100}, warmups[] = {0, 1, 2, 200},
                         at[] = {0, 1, 2, 3, 150, 1000000};
    static const double powers[] = {0, 0.5, 1, 3, -1}, ends[] = {0, 0.25, 0.5};
    for (int kind = ZF_CONSTANT; kind <= ZF_CYCLE_LR; kind++)
        for (int a = 0; a < 4; a++)
            for (int b = 0; b < 4; b++)
                for (int c = 0; c < 5; c++)
                    for (int e = 0; e < 3; e++)
                        for (int n = 0; n < 6; n++) {
                            zf_schedule s = {.kind = (zf_schedule_kind)kind,
                                             .peak = 0.5,
                                             .end = ends[e],
                                             .warmup = warmups[a],
                                             .steps = steps[b],
                                             .power = powers[c]};
                            double rate = zf_schedule_at(&s, at[n]);
                            CHECK(t, rate >= 0 && rate <= 0.5);
                        }
    CHECK_RATES(t, SCHEDULE(.kind = ZF_LINEAR, .peak = 0.5, .end = 0.1), {{0, 0.1}, {1, 0.1}});
    CHECK_RATES(t, SCHEDULE(.kind = ZF_ONE_CYCLE, .peak = 0.5, .end = 0.1), {{0, 0.1}, {1, 0.1}});
}

/* Doubles between two positive ones. */
static int64_t ulps(double a, double b)
{
    int64_t of_a, of_b;
    memcpy(&of_a, &a, sizeof a), memcpy(&of_b, &b, sizeof b);
    return of_a < of_b ? of_b - of_a : of_a - of_b;
}

/* The rates of 2,000 steps that DeepSpeed's lr_schedules.py computes (golden/schedules/make.py). */
TEST_ONCE(schedules_are_those_of_deepspeed)
{
    static const struct {
        const char *name;
        zf_schedule s;
    } cases[] = {
        {"warmup_log",
         {.kind = ZF_WARMUP_LR, .start = 1e-6, .peak = 2e-3, .warmup = 700, .logarithmic = true}},
        {"warmup_linear", {.kind = ZF_WARMUP_LR, .start = 1e-6, .peak = 3e-4, .warmup = 333}},
        {"decay",
         {.kind = ZF_WARMUP_DECAY_LR, .start = 1e-5, .peak = 1e-3, .warmup = 100, .steps = 1500,
          .logarithmic = true}},
        {"cosine",
         {.kind = ZF_WARMUP_COSINE_LR, .start = 0.1, .peak = 3e-4, .end = 0.01, .warmup = 150,
          .steps = 1900, .logarithmic = true}},
        {"cosine_linear",
         {.kind = ZF_WARMUP_COSINE_LR, .peak = 3e-4, .end = 1e-4, .warmup = 1, .steps = 2500}},
        {"cycle",
         {.kind = ZF_CYCLE_LR, .start = 1e-4, .peak = 1e-3, .warmup = 300, .fall = 517,
          .rate = 0.01, .every = 7}},
        {"range", {.kind = ZF_RANGE_TEST_LR, .peak = 1e-4, .every = 13, .rate = 0.7}},
        {"range_stairs",
         {.kind = ZF_RANGE_TEST_LR, .peak = 1e-4, .every = 200, .rate = 5, .stairs = true}},
    };
    zf_safetensors *golden = open_file(t, "tests/golden/schedules/rates.safetensors");
    for (size_t k = 0; k < sizeof cases / sizeof *cases && golden; k++) {
        int64_t count = 0, most = 0;
        double *rates = values_of(golden, cases[k].name, &count);
        for (int64_t n = 0; n < count; n++) {
            const int64_t off = ulps(zf_schedule_at(&cases[k].s, n + 1), rates[n]);
            most = off > most ? off : most;
        }
        if (count != 2000 || most > 1) test_fail(t, __FILE__, __LINE__, cases[k].name, "differs");
        free(rates);
    }
}

TEST(schedules_have_names)
{
    static const char *const names[] = {
        "constant",  "linear",          "cosine",           "polynomial", "exponential", "one_cycle",
        "warmup_lr", "warmup_decay_lr", "warmup_cosine_lr", "cycle_lr",   "range_test_lr"};
    for (int kind = ZF_CONSTANT; kind <= ZF_RANGE_TEST_LR; kind++)
        CHECK_TEXT(t, zf_schedule_name((zf_schedule_kind)kind), names[kind]);
    CHECK(t, !zf_schedule_name((zf_schedule_kind)(ZF_RANGE_TEST_LR + 1)));
    CHECK(t, !zf_schedule_name((zf_schedule_kind)-1));
}

/* ----------------------------------------------------------------------------------- layers */

static void free_graph(void *g) { zf_graph_free(g); }
static void free_program(void *p) { zf_program_free(p); }
static void close_file(void *f) { zf_safetensors_close(f); }

static zf_graph *new_graph(test *t)
{
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    if (g) test_defer(t, free_graph, g);
    return g;
}

/* The graph's parameters are these, in this order: "NAME f32[2,3]". */
static void check_params(test *t, zf_graph *g, const char *const *expected, int count)
{
    OK(t, zf_graph_status(g), zf_graph_error(g));
    CHECK(t, zf_param_count(g) == count);
    for (int32_t i = 0; i < count; i++) {
        zf_tensor p = zf_param_at(g, i);
        zf_shape shape = zf_tensor_shape(p);
        char text[300];
        int at = snprintf(text, sizeof text, "%s %s[", zf_tensor_name(p),
                          zf_dtype_name(zf_tensor_dtype(p)));
        for (int axis = 0; axis < shape.rank; axis++)
            at += snprintf(text + at, sizeof text - (size_t)at, "%s%lld", axis ? "," : "",
                           (long long)shape.dims[axis]);
        snprintf(text + at, sizeof text - (size_t)at, "]");
        CHECK_TEXT(t, text, expected[i]);
    }
}

TEST(layers_name_and_shape_their_parameters)
{
    static const char *const expected[] = {"a.fc.weight f32[5,3]",   "a.fc.bias f32[5]",
                                           "a.bare.weight f32[2,5]", "a.norm.weight f32[2]",
                                           "a.norm.bias f32[2]",     "a.table.weight f32[9,4]"};
    zf_graph *g = new_graph(t);
    zf_tensor x;
    NEED(t, g, NULL);
    x = zf_input(g, "x", ZF_F32, ZF_SHAPE(7, 2, 3));
    zf_push(g, "a");
    x = zf_nn_linear(x, "fc", 5, NULL);
    x = zf_nn_linear(x, "bare", 2, &(zf_nn_linear_desc){.no_bias = true});
    x = zf_nn_layer_norm(x, "norm", 1e-5);
    zf_nn_embedding_table(g, "table", 9, 4, NULL);
    zf_pop(g);
    check_params(t, g, expected, 6);
    CHECK(t, zf_tensor_shape(x).rank == 3 && zf_tensor_shape(x).dims[0] == 7 &&
                 zf_tensor_shape(x).dims[2] == 2);
}

/* A standard deviation of ZF_ZERO is 0, as for an adapter's second matrix. eps likewise. */
TEST(layers_begin_with_zeros)
{
    float weight[6], rows[8];
    zf_graph *g = new_graph(t);
    zf_program *p;
    zf_tensor x, y, w, table;
    NEED(t, g, NULL);
    x = zf_input(g, "x", ZF_F32, ZF_SHAPE(1, 3));
    y = zf_nn_linear(x, "up", 2, &(zf_nn_linear_desc){.std = ZF_ZERO, .no_bias = true});
    table = zf_nn_embedding_table(g, "table", 4, 2, &(zf_nn_embedding_desc){.std = ZF_ZERO});
    w = zf_graph_find(g, "up.weight");
    zf_output(zf_add(y, zf_slice(table, 0, 1, 1)), "y");
    p = zf_compile(g, NULL);
    OK(t, zf_graph_status(g), zf_graph_error(g));
    NEED(t, p, NULL);
    test_defer(t, free_program, p);
    OK(t, zf_read(p, w, weight, sizeof weight), zf_program_error(p));
    OK(t, zf_read(p, table, rows, sizeof rows), zf_program_error(p));
    for (int i = 0; i < 6; i++) CHECK(t, weight[i] == 0);
    for (int i = 0; i < 8; i++) CHECK(t, rows[i] == 0);
}

#define BLOCK(in, wide)                                                                            \
    "attention.self.query.weight f64[" in "," in "]", "attention.self.query.bias f64[" in "]",     \
        "attention.self.key.weight f64[" in "," in "]", "attention.self.key.bias f64[" in "]",     \
        "attention.self.value.weight f64[" in "," in "]", "attention.self.value.bias f64[" in "]", \
        "attention.output.dense.weight f64[" in "," in "]",                                        \
        "attention.output.dense.bias f64[" in "]"
#define NORM(name, in) name ".LayerNorm.weight f64[" in "]", name ".LayerNorm.bias f64[" in "]"
#define MLP(in, wide)                                                                              \
    "intermediate.dense.weight f64[" wide "," in "]", "intermediate.dense.bias f64[" wide "]",     \
        "output.dense.weight f64[" in "," wide "]", "output.dense.bias f64[" in "]"

TEST(encoder_blocks_name_and_shape_their_parameters)
{
    static const char *const post[] = {BLOCK("128", "512"), NORM("attention.output", "128"),
                                       MLP("128", "512"), NORM("output", "128")};
    static const char *const pre[] = {NORM("attention.output", "6"), BLOCK("6", "10"),
                                      NORM("output", "6"), MLP("6", "10")};
    zf_graph *g = new_graph(t), *h = new_graph(t);
    zf_tensor y;
    NEED(t, g && h, NULL);
    y = zf_nn_encoder_block(zf_input(g, "x", ZF_F64, ZF_SHAPE(2, 3, 128)), ZF_NONE, NULL);
    check_params(t, g, post, 16);
    CHECK(t, zf_tensor_shape(y).rank == 3 && zf_tensor_shape(y).dims[1] == 3 &&
                 zf_tensor_shape(y).dims[2] == 128);
    zf_nn_encoder_block(zf_input(h, "x", ZF_F64, ZF_SHAPE(2, 3, 6)), ZF_NONE,
                        &(zf_nn_encoder_desc){.heads = 2, .intermediate = 10, .pre_norm = true});
    check_params(t, h, pre, 16);
}

/* First values: weights within two of their standard deviations, biases 0, LayerNorm's 1 and 0. */
TEST(layers_begin_as_they_say)
{
    enum { N = 64 };
    static float x[N * N];
    zf_graph *g = new_graph(t);
    zf_program *p;
    double squares = 0, most = 0;
    NEED(t, g, NULL);
    zf_nn_layer_norm(zf_nn_linear(zf_input(g, "x", ZF_F32, ZF_SHAPE(1, N)), "fc", N,
                                  &(zf_nn_linear_desc){.std = 0.5}),
                     "norm", 1e-5);
    p = zf_compile(g, NULL);
    NEED(t, p, &((zf_error){zf_graph_status(g), ""}));
    test_defer(t, free_program, p);
    OK(t, zf_read(p, zf_graph_find(g, "fc.weight"), x, N * N * sizeof *x), zf_program_error(p));
    for (int i = 0; i < N * N; i++) squares += x[i] * x[i], most = fmax(most, fabs(x[i]));
    CHECK(t, most <= 1 && most > 0.99);
    CHECK_NEAR(t, sqrt(squares / (N * N)), 0.5 * 0.8796, 0.02); /* of a normal cut at two sigma */
    OK(t, zf_read(p, zf_graph_find(g, "fc.bias"), x, N * sizeof *x), zf_program_error(p));
    for (int i = 0; i < N; i++) CHECK(t, x[i] == 0);
    OK(t, zf_read(p, zf_graph_find(g, "norm.weight"), x, N * sizeof *x), zf_program_error(p));
    for (int i = 0; i < N; i++) CHECK(t, x[i] == 1);
    OK(t, zf_read(p, zf_graph_find(g, "norm.bias"), x, N * sizeof *x), zf_program_error(p));
    for (int i = 0; i < N; i++) CHECK(t, x[i] == 0);
}

/* Labels that would broadcast to the rows are refused: they would count as others' too. */
TEST(accuracy_takes_a_label_of_each_row)
{
    for (int rank = 0; rank < 3; rank++) {
        const zf_shape shapes[] = {ZF_SCALAR, ZF_SHAPE(3), ZF_SHAPE(4, 1)};
        zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
        zf_tensor logits;
        NEED(t, g, NULL);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        logits = zf_input(g, "logits", ZF_F32, ZF_SHAPE(4, 3, 7));
        zf_nn_accuracy(logits, zf_input(g, "labels", ZF_I32, shapes[rank]));
        if (zf_graph_status(g) != ZF_ERR_ARGUMENT) OK(t, zf_graph_status(g), zf_graph_error(g));
        CHECK(t, strstr(zf_graph_error(g),
                        "zf_nn_accuracy: %2 must be the labels of the rows of %1, one of each: its "
                        "shape without classes"));
    }
}

TEST(layers_pass_mistakes_on)
{
    zf_graph *g = new_graph(t);
    zf_tensor x, bad;
    NEED(t, g, NULL);
    x = zf_input(g, "x", ZF_F32, ZF_SHAPE(2, 3, 6));
    OK(t, zf_graph_status(g), zf_graph_error(g));
    zf_push(g, "layer.3");
    bad = zf_nn_encoder_block(x, ZF_NONE, &(zf_nn_encoder_desc){.heads = 4});
    zf_pop(g);
    CHECK(t, !zf_valid(bad));
    if (zf_graph_status(g) == ZF_ERR_NOMEM) OK(t, ZF_ERR_NOMEM, zf_graph_error(g));
    CHECK(t, strstr(zf_graph_error(g),
                    "zf_nn_encoder_block: x must be [batch, tokens, hidden], hidden a "
                    "multiple of the 4 heads"));
    CHECK(t, strstr(zf_graph_error(g), "layer.3"));
    CHECK(t, !zf_valid(zf_nn_linear(bad, "fc", 3, NULL)));
    CHECK(t, !zf_valid(zf_nn_layer_norm(bad, "norm", 1e-5)));
    CHECK(t, !zf_valid(zf_nn_attention(bad, x, x, ZF_NONE, 0)));
    CHECK(t, !zf_valid(zf_nn_attention(x, bad, x, ZF_NONE, 0)));
    CHECK(t, !zf_valid(zf_nn_attention(x, x, x, bad, 0)));
    CHECK(t, !zf_valid(zf_nn_encoder_block(bad, ZF_NONE, NULL)));
    CHECK(t, zf_param_count(g) == 0);
    CHECK(t, zf_nn_linear(ZF_NONE, "fc", 3, NULL).graph == NULL);
}

/* Central differences in double precision against the gradients of a sum with random weights. */
static void check_block_gradients(test *t, const zf_nn_encoder_desc *desc)
{
    enum { B = 2, T = 3, H = 6, MOST = 144, PARAMS = 17 };
    const double step = 1e-5;
    zf_graph *g = new_graph(t);
    zf_param_desc normal = {.dtype = ZF_F64, .init = ZF_NORMAL, .std = 1};
    zf_tensor x, mask, weights, params[PARAMS], gradients[PARAMS], loss;
    double weight[B * T * H], value[MOST], gradient[MOST];
    zf_program *p;
    NEED(t, g, NULL);
    x = zf_param(g, "x", ZF_SHAPE(B, T, H), &normal);
    mask = zf_values(g, ZF_F64, ZF_SHAPE(B, 1, 1, T), (double[]){0, 0, -1e9, 0, -0.5, 0.25});
    weights = zf_input(g, "weights", ZF_F64, ZF_SHAPE(B, T, H));
    loss = zf_sum(zf_mul(zf_nn_encoder_block(x, mask, desc), weights));
    zf_autograd(g, loss);
    CHECK(t, zf_param_count(g) == PARAMS);
    for (int i = 0; i < PARAMS; i++) {
        char name[100];
        params[i] = zf_param_at(g, i), gradients[i] = zf_gradient(g, params[i]);
        snprintf(name, sizeof name, "gradient/%s", zf_tensor_name(params[i]));
        zf_output(gradients[i], name);
    }
    p = zf_compile(g, &(zf_compile_desc){.seed = 5, .evaluate = true});
    CHECK(t, p);
    test_defer(t, free_program, p);
    for (int i = 0; i < B * T * H; i++) weight[i] = sin(1 + 7 * i);
    OK(t, zf_write(p, weights, weight, sizeof weight), zf_program_error(p));
    for (int i = 0; i < PARAMS; i++) {
        size_t bytes = zf_tensor_bytes(params[i]), count = bytes / sizeof(double);
        CHECK(t, count <= MOST);
        OK(t, zf_step(p), zf_program_error(p));
        OK(t, zf_read(p, gradients[i], gradient, bytes), zf_program_error(p));
        OK(t, zf_read(p, params[i], value, bytes), zf_program_error(p));
        for (size_t k = 0; k < count; k++) {
            double at = value[k], side[2];
            for (int s = 0; s < 2; s++) {
                value[k] = at + (s ? step : -step);
                OK(t, zf_write(p, params[i], value, bytes), zf_program_error(p));
                OK(t, zf_step(p), zf_program_error(p));
                OK(t, zf_read(p, loss, &side[s], sizeof side[s]), zf_program_error(p));
            }
            value[k] = at;
            if (fabs((side[1] - side[0]) / (2 * step) - gradient[k]) <= 1e-7) continue;
            test_fail(t, __FILE__, __LINE__, "a gradient is the central difference",
                      zf_tensor_name(params[i]));
        }
        OK(t, zf_write(p, params[i], value, bytes), zf_program_error(p));
    }
}

TEST_ONCE(encoder_block_gradients)
{
    check_block_gradients(t, &(zf_nn_encoder_desc){.heads = 2, .intermediate = 10, .std = 0.5});
}
TEST_ONCE(encoder_block_with_norms_in_front_gradients)
{
    check_block_gradients(t, &(zf_nn_encoder_desc){.heads = 3, .std = 0.5, .pre_norm = true});
}

/* In evaluation a block with dropout is one without. */
TEST_ONCE(encoder_block_without_dropout_in_evaluation)
{
    float y[3][24];
    for (int run = 0; run < 3; run++) {
        zf_nn_encoder_desc d = {
            .heads = 2, .dropout = run ? 0.5 : 0, .attention_dropout = run ? 0.5 : 0};
        zf_graph *g = new_graph(t);
        zf_tensor out;
        zf_program *p;
        NEED(t, g, NULL);
        out = zf_nn_encoder_block(
            zf_param(g, "x", ZF_SHAPE(2, 3, 4), &(zf_param_desc){.init = ZF_NORMAL, .std = 1}),
            ZF_NONE, &d);
        zf_output(out, "y");
        p = zf_compile(g, &(zf_compile_desc){.evaluate = run < 2});
        CHECK(t, p);
        test_defer(t, free_program, p);
        OK(t, zf_step(p), zf_program_error(p));
        OK(t, zf_read(p, out, y[run], sizeof y[run]), zf_program_error(p));
    }
    CHECK(t, !memcmp(y[0], y[1], sizeof y[0]));
    CHECK(t, memcmp(y[0], y[2], sizeof y[0]) != 0);
}

/* PyTorch's attention in double precision (tests/golden/ops/make.py). */
static void check_attention(test *t, const char *name, bool causal)
{
    enum { B = 2, H = 3, T = 7, D = 5, N = B * H * T * D };
    static const char *const parts[] = {"q", "k", "v", "dy", "y", "dq", "dk", "dv"};
    static double values[8][N], got[N];
    double bias[T * T];
    int64_t mask[B * T];
    zf_graph *g = new_graph(t);
    zf_error error = {ZF_OK, ""};
    zf_safetensors *file =
        zf_safetensors_open("tests/golden/ops/ops.safetensors", &t->allocator, &error);
    zf_tensor qkv[3], dy, y, loss;
    zf_program *p;
    char full[64];
    NEED(t, file, &error);
    test_defer(t, close_file, file);
    NEED(t, g, NULL);
    for (int i = 0; i < 8; i++) {
        snprintf(full, sizeof full, "%s.%s", name, parts[i]);
        OK(t,
           zf_safetensors_read(file, zf_safetensors_find(file, full), values[i], sizeof values[i],
                               &error),
           error.text);
    }
    if (causal) {
        for (int row = 0; row < T; row++)
            for (int column = 0; column < T; column++)
                bias[row * T + column] = column > row ? -1e9 : 0;
    } else {
        snprintf(full, sizeof full, "%s.mask", name);
        OK(t, zf_safetensors_read(file, zf_safetensors_find(file, full), mask, sizeof mask, &error),
           error.text);
        for (int i = 0; i < B * T; i++) bias[i] = mask[i] ? 0 : -1e9;
    }
    for (int i = 0; i < 3; i++)
        qkv[i] = zf_param(g, parts[i], ZF_SHAPE(B, H, T, D), &(zf_param_desc){.dtype = ZF_F64});
    dy = zf_input(g, "dy", ZF_F64, ZF_SHAPE(B, H, T, D));
    y = zf_nn_attention(qkv[0], qkv[1], qkv[2],
                        zf_values(g, ZF_F64, causal ? ZF_SHAPE(T, T) : ZF_SHAPE(B, 1, 1, T), bias),
                        0);
    zf_output(y, "y");
    loss = zf_sum(zf_mul(y, dy));
    OK(t, zf_autograd(g, loss), zf_graph_error(g));
    for (int i = 0; i < 3; i++) zf_output(zf_gradient(g, qkv[i]), parts[5 + i]);
    p = zf_compile(g, NULL);
    NEED(t, p, &((zf_error){zf_graph_status(g), ""}));
    test_defer(t, free_program, p);
    for (int i = 0; i < 4; i++)
        OK(t, zf_write(p, i < 3 ? qkv[i] : dy, values[i], sizeof values[i]), zf_program_error(p));
    OK(t, zf_step(p), zf_program_error(p));
    for (int i = 4; i < 8; i++) {
        OK(t, zf_read(p, i == 4 ? y : zf_gradient(g, qkv[i - 5]), got, sizeof got),
           zf_program_error(p));
        for (int k = 0; k < N; k++) CHECK_NEAR(t, got[k], values[i][k], 1e-14);
    }
}

TEST(attention_is_pytorchs) { check_attention(t, "attention", false); }
TEST(causal_attention_is_pytorchs) { check_attention(t, "attention_causal", true); }

/* --------------------------------------------------------------------------- the training loop */

typedef struct course {
    int fed, reported, stop_feeding, stop_reporting; /* the last two: -1 for never */
    zf_tensor x, lr;
    double rates[16];
} course;

static zf_status feed(void *user, zf_program *program, int64_t step)
{
    course *c = user;
    float x = (float)step;
    if (step != c->fed++) return ZF_ERR_VERIFY;
    if (step == c->stop_feeding) return ZF_ERR_IO;
    return zf_write(program, c->x, &x, sizeof x);
}

static bool report(void *user, zf_program *program, int64_t done, double lr)
{
    course *c = user;
    float written = -1;
    bool good = !zf_read(program, c->lr, &written, sizeof written) && written == (float)lr &&
                done == c->reported + 1 && done == zf_program_step(program);
    c->rates[c->reported++] = good ? lr : NAN;
    return done != c->stop_reporting;
}

/* w - lr (w - x), from w = 8 on. */
static zf_program *make_course(test *t, course *c, zf_tensor *w)
{
    zf_graph *g = new_graph(t);
    zf_program *p;
    zf_tensor d;
    *c = (course){.stop_feeding = -1, .stop_reporting = -1};
    if (!g) return test_unwind(t, __FILE__, __LINE__, "a graph", ZF_ERR_NOMEM, NULL), NULL;
    *w = zf_param(g, "w", ZF_SCALAR, &(zf_param_desc){.init = ZF_FILL, .value = 8});
    c->x = zf_input(g, "x", ZF_F32, ZF_SCALAR), c->lr = zf_input(g, "lr", ZF_F32, ZF_SCALAR);
    d = zf_sub(*w, c->x);
    zf_autograd(g, zf_scale(zf_mul(d, d), 0.5));
    zf_sgd(g, c->lr, NULL);
    p = zf_compile(g, NULL);
    if (p) test_defer(t, free_program, p);
    else test_unwind(t, __FILE__, __LINE__, "a program", zf_graph_status(g), zf_graph_error(g));
    return p;
}

TEST(training_feeds_steps_and_reports)
{
    course c;
    zf_tensor w;
    zf_program *p = make_course(t, &c, &w);
    zf_nn_train_desc d = {.program = p,
                          .steps = 5,
                          .lr = c.lr,
                          .user = &c,
                          .feed = feed,
                          .report = report,
                          .schedule = {.kind = ZF_LINEAR, .peak = 0.5, .warmup = 2, .steps = 6}};
    float value, expected = 8;
    if (!p) return;
    OK(t, zf_nn_train(&d), zf_program_error(p));
    CHECK(t, c.fed == 5 && c.reported == 5 && zf_program_step(p) == 5);
    for (int k = 0; k < 5; k++) {
        CHECK(t, c.rates[k] == (float)zf_schedule_at(&d.schedule, k + 1));
        expected -= (float)c.rates[k] * (expected - (float)k);
    }
    OK(t, zf_read(p, w, &value, sizeof value), zf_program_error(p));
    CHECK_NEAR(t, value, expected, 1e-6);
    OK(t, zf_nn_train(&d), zf_program_error(p)); /* the steps are done: nothing more happens */
    CHECK(t, c.fed == 5 && c.reported == 5);
    d.steps = 6; /* and it goes on from where it is */
    OK(t, zf_nn_train(&d), zf_program_error(p));
    CHECK(t, c.fed == 6 && c.reported == 6 && zf_program_step(p) == 6);
}

TEST(training_ends_with_a_feed_that_fails)
{
    course c;
    zf_tensor w;
    zf_program *p = make_course(t, &c, &w);
    zf_nn_train_desc d = {
        .program = p, .steps = 5, .lr = c.lr, .user = &c, .feed = feed, .report = report};
    if (!p) return;
    c.stop_feeding = 2;
    CHECK(t, zf_nn_train(&d) == ZF_ERR_IO);
    CHECK(t, c.fed == 3 && c.reported == 2 && zf_program_step(p) == 2);
}

TEST(training_ends_when_the_report_says_so)
{
    course c;
    zf_tensor w;
    zf_program *p = make_course(t, &c, &w);
    zf_nn_train_desc d = {
        .program = p, .steps = 5, .lr = c.lr, .user = &c, .feed = feed, .report = report};
    if (!p) return;
    c.stop_reporting = 3;
    OK(t, zf_nn_train(&d), zf_program_error(p));
    CHECK(t, c.fed == 3 && c.reported == 3 && zf_program_step(p) == 3);
}

TEST(training_ends_with_a_rate_that_cannot_be_written)
{
    course c;
    zf_tensor w;
    zf_program *p = make_course(t, &c, &w);
    zf_nn_train_desc d = {.program = p, .steps = 5, .user = &c, .report = report};
    if (!p) return;
    d.lr = (zf_tensor){w.graph, 0}; /* an invalid tensor of the graph */
    CHECK(t, zf_nn_train(&d) == ZF_ERR_ARGUMENT);
    CHECK_TEXT(t, zf_program_error(p), "zf_write: the tensor is not one of the program's graph");
    CHECK(t, zf_program_step(p) == 0 && c.reported == 0);
    d = (zf_nn_train_desc){.program = p, .steps = 2};
    OK(t, zf_write(p, c.x, &(float){1}, sizeof(float)), zf_program_error(p));
    OK(t, zf_write(p, c.lr, &(float){1}, sizeof(float)), zf_program_error(p));
    OK(t, zf_nn_train(&d), zf_program_error(p)); /* nothing is fed, written or reported */
    CHECK(t, zf_program_step(p) == 2 && c.fed == 0);
}

/* As torch.nn.init has them, of a weight [6, 4, 3, 2]: 24 inputs and 36 outputs. */
TEST_ONCE(first_values_by_name)
{
    static const struct {
        const char *name;
        zf_init init;
        double bound, deviation; /* 0: not of this kind */
    } cases[] = {{"xavier_uniform", ZF_UNIFORM, 0.31622776601683794, 0},
                 {"xavier_normal", ZF_NORMAL, 0, 0.18257418583505536},
                 {"kaiming_uniform", ZF_UNIFORM, 0.5, 0},
                 {"kaiming_normal", ZF_NORMAL, 0, 0.28867513459481287},
                 {"linear", ZF_UNIFORM, 0.2041241452319315, 0},
                 {"truncated_normal", ZF_TRUNCATED_NORMAL, 0, 0.02},
                 {"zeros", ZF_ZEROS, 0, 0},
                 {"ones", ZF_ONES, 0, 0}};
    const zf_shape shape = ZF_SHAPE(6, 4, 3, 2);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        zf_param_desc d = {.dtype = ZF_F64, .init = ZF_FILL, .value = 7, .frozen = true};
        CHECK(t, zf_nn_init(cases[k].name, shape, &d));
        CHECK(t, d.init == cases[k].init && d.dtype == ZF_F64 && d.frozen && d.mean == 0);
        if (cases[k].bound > 0) CHECK_NEAR(t, d.high, cases[k].bound, 1e-15);
        if (cases[k].bound > 0) CHECK(t, d.low == -d.high);
        if (cases[k].deviation > 0) CHECK_NEAR(t, d.std, cases[k].deviation, 1e-15);
    }
    zf_param_desc kept = {.init = ZF_FILL, .value = 7};
    CHECK(t, !zf_nn_init("xavier", shape, &kept) && !zf_nn_init(NULL, shape, &kept));
    CHECK(t, !zf_nn_init("ones", ZF_SHAPE(6), &kept) && !zf_nn_init("ones", shape, NULL));
    CHECK(t, !zf_nn_init("ones", ZF_SHAPE(6, 0), &kept));
    CHECK(t, kept.init == ZF_FILL && kept.value == 7);
}
