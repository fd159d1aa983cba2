/* Layers of experts (nn/moe.c): values by a formula in double, gradients by differences, drops, the
 * bias that balances experts, and what is refused. */
#include "../support/test.h"

enum { T = 6, H = 4, E = 3, N = 5, K = 2 };

static zf_graph *graph_new(test *t)
{
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    if (g) test_defer(t, (test_cleanup *)zf_graph_free, g);
    return g;
}

static zf_program *program_new(test *t, zf_graph *g)
{
    zf_program *p = zf_compile(g, &(zf_compile_desc){.seed = 3});
    if (p) test_defer(t, (test_cleanup *)zf_program_free, p);
    return p;
}

#define PROGRAM(t, p, g)                                                                           \
    do {                                                                                           \
        zf_error program_error = {zf_graph_status(g), ""};                                         \
        snprintf(program_error.text, sizeof program_error.text, "%s", zf_graph_error(g));          \
        NEED((t), (p), &program_error);                                                            \
    } while (0)

static double number(int i, int salt) { return (double)((i * 37 + salt * 101 + i * i) % 41) / 20 - 1; }

/* Writes numbers to every parameter and to "x". */
static void fill(test *t, zf_program *p, zf_graph *g, double *x)
{
    double values[E * N * H];
    for (int32_t k = 0; k < zf_param_count(g); k++) {
        const zf_tensor param = zf_param_at(g, k);
        for (int i = 0; i < zf_shape_count(zf_tensor_shape(param)); i++)
            values[i] = number(i, (int)k + 2);
        OK(t, zf_write(p, param, values, zf_tensor_bytes(param)), zf_program_error(p));
    }
    for (int i = 0; i < T * H; i++) x[i] = number(i, 1);
    OK(t, zf_write(p, zf_graph_find(g, "x"), x, T * H * sizeof *x), zf_program_error(p));
}

static void read_param(test *t, zf_program *p, zf_graph *g, const char *name, double *to)
{
    const zf_tensor param = zf_graph_find(g, name);
    CHECK(t, zf_valid(param));
    OK(t, zf_read(p, param, to, zf_tensor_bytes(param)), zf_program_error(p));
}

/* The layer of one token, by loops. */
static void layer_of(const double *x, const double *router, const double *w1, const double *w3,
                     const double *w2, double *y)
{
    double s[E], sum = 0, most = 0;
    bool chosen[E] = {false};
    for (int e = 0; e < E; e++) {
        double z = 0;
        for (int h = 0; h < H; h++) z += router[e * H + h] * x[h];
        s[e] = exp(z);
    }
    memset(y, 0, H * sizeof *y);
    for (int k = 0; k < K; k++) {
        int best = -1;
        for (int e = 0; e < E; e++)
            if (!chosen[e] && (best < 0 || s[e] > most)) best = e, most = s[e];
        chosen[best] = true, sum += s[best];
    }
    for (int e = 0; e < E; e++)
        for (int n = 0; n < N && chosen[e]; n++) {
            double gate = 0, up = 0;
            for (int h = 0; h < H; h++) {
                gate += w1[(e * N + n) * H + h] * x[h];
                up += w3[(e * N + n) * H + h] * x[h];
            }
            for (int h = 0; h < H; h++)
                y[h] += s[e] / sum * w2[(e * H + h) * N + n] * gate / (1 + exp(-gate)) * up;
        }
}

TEST(moe_is_the_formula)
{
    const zf_moe_names names = {.gate = "w1", .up = "w3", .down = "w2"};
    zf_graph *g = graph_new(t);
    zf_program *p;
    zf_tensor x, y;
    double in[T * H], out[T * H], router[E * H], w1[E * N * H], w3[E * N * H], w2[E * H * N], want[H];
    NEED(t, g, NULL);
    x = zf_input(g, "x", ZF_F64, ZF_SHAPE(2, T / 2, H));
    y = zf_moe(x, &(zf_moe_desc){.experts = E,
                                 .intermediate = N,
                                 .activation = ZF_ACTIVATION_SILU,
                                 .gated = true,
                                 .normalize = true,
                                 .names = &names});
    y = zf_output(y, "y");
    p = program_new(t, g);
    PROGRAM(t, p, g);
    fill(t, p, g, in);
    if (t->failed || t->unwound) return;
    OK(t, zf_step(p), zf_program_error(p));
    OK(t, zf_read(p, y, out, sizeof out), zf_program_error(p));
    read_param(t, p, g, "gate.weight", router);
    read_param(t, p, g, "experts.w1.weight", w1);
    read_param(t, p, g, "experts.w3.weight", w3);
    read_param(t, p, g, "experts.w2.weight", w2);
    for (int i = 0; i < T; i++) {
        layer_of(in + i * H, router, w1, w3, w2, want);
        for (int h = 0; h < H; h++) CHECK_NEAR(t, out[i * H + h], want[h], 1e-13);
    }
}

static zf_status write_x(void *user, zf_program *p, zf_graph *g)
{
    double x[T * H];
    (void)user;
    for (int i = 0; i < T * H; i++) x[i] = number(i, 1);
    return zf_write(p, zf_graph_find(g, "x"), x, sizeof x);
}

/* The loss of a layer, of its balance in both forms, and of its logits. */
static zf_tensor loss_of(zf_graph *g, zf_moe_desc d)
{
    zf_moe_parts parts[2];
    zf_tensor x = zf_input(g, "x", ZF_F64, ZF_SHAPE(T, H)), y = x, loss;
    d.experts = E, d.intermediate = N, d.std = 0.5;
    for (int k = 0; k < 2; k++) {
        d.parts = &parts[k];
        zf_push(g, "%d", k);
        y = zf_add(y, zf_moe(y, &d));
        zf_pop(g);
    }
    loss = zf_mean(zf_mul(y, y));
    loss = zf_add(loss, zf_scale(zf_moe_balance_loss(parts, 2, ZF_NONE, ZF_BALANCE_POOLED), 0.3));
    loss = zf_add(loss, zf_scale(zf_moe_balance_loss(parts, 2, ZF_NONE, ZF_BALANCE_LAYERS), 0.2));
    return zf_add(loss, zf_scale(zf_moe_z_loss(parts, 2, ZF_NONE), 0.1));
}

TEST_ONCE(moe_has_the_gradient_of_differences)
{
    static const zf_moe_desc forms[] = {
        {.gated = true, .activation = ZF_ACTIVATION_SILU, .normalize = true},
        {.k = 1, .sigmoid = true, .biased = true, .scale = 1.5},
        {.k = 3, .residual = true, .gated = true, .activation = ZF_ACTIVATION_GELU},
        {.k = 2, .capacity = 1, .normalize = true},
        {.k = 2, .capacity = 0.5, .sigmoid = true, .normalize = true, .scale = 2}};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
        zf_error error = {ZF_OK, ""};
        zf_status status;
        NEED(t, g, NULL);
        status = zf_check_gradient(loss_of(g, forms[i]),
                                   &(zf_check_gradient_desc){.write = write_x,
                                                             .allocator = t->allocator,
                                                             .seed = 11},
                                   &error);
        if (status && !*error.text)
            snprintf(error.text, sizeof error.text, "%s", zf_graph_error(g));
        zf_graph_free(g);
        OK(t, status, error.text);
    }
}

/* All tokens choose expert 0, whose capacity is two rows: four tokens get 0, and the other experts
 * have gradients that are 0. */
TEST(moe_drops_give_0_and_an_expert_without_rows_has_no_gradient)
{
    zf_graph *g = graph_new(t);
    zf_program *p;
    zf_tensor x, y, loss, lr;
    zf_moe_parts parts;
    double in[T * H], out[T * H], router[E * H] = {0}, w[E * H * N], rate = 0;
    int32_t counts[E];
    NEED(t, g, NULL);
    x = zf_input(g, "x", ZF_F64, ZF_SHAPE(T, H));
    lr = zf_input(g, "lr", ZF_F64, ZF_SCALAR);
    y = zf_moe(x, &(zf_moe_desc){.experts = E, .k = 1, .intermediate = N, .capacity = 1,
                                 .std = 0.5, .parts = &parts});
    loss = zf_mean(zf_mul(y, y));
    zf_output(y, "y"), zf_output(parts.counts, "counts"), zf_output(loss, "loss");
    zf_passes(g, &(zf_training){.loss = loss, .lr = lr, .optimizer = ZF_SGD, .keep_gradients = true});
    p = program_new(t, g);
    PROGRAM(t, p, g);
    fill(t, p, g, in);
    if (t->failed || t->unwound) return;
    for (int i = 0; i < T * H; i++) in[i] = fabs(in[i]) + 0.1;
    for (int h = 0; h < H; h++) router[h] = 1;
    OK(t, zf_write(p, x, in, sizeof in), zf_program_error(p));
    OK(t, zf_write(p, lr, &rate, sizeof rate), zf_program_error(p));
    OK(t, zf_write(p, zf_graph_find(g, "gate.weight"), router, sizeof router), zf_program_error(p));
    OK(t, zf_step(p), zf_program_error(p));
    OK(t, zf_read(p, zf_graph_find(g, "y"), out, sizeof out), zf_program_error(p));
    OK(t, zf_read(p, zf_graph_find(g, "counts"), counts, sizeof counts), zf_program_error(p));
    CHECK(t, counts[0] == T && !counts[1] && !counts[2]);
    for (int i = 0; i < T * H; i++) CHECK(t, (i < 2 * H) == (out[i] != 0));
    read_param(t, p, g, "gradient/experts.down_proj.weight", w);
    for (int i = 0; i < E * H * N; i++) CHECK(t, (i < H * N) == (w[i] != 0));
}

/* Sigmoids of logits far below 0 are 0, and so is their sum: gradients are 0, not NaN. */
TEST(moe_scores_of_0_have_gradients_of_0)
{
    zf_graph *g = graph_new(t);
    zf_program *p;
    zf_tensor x, y, loss, lr;
    double in[T * H], router[E * H], rate = 0;
    NEED(t, g, NULL);
    x = zf_input(g, "x", ZF_F64, ZF_SHAPE(T, H));
    lr = zf_input(g, "lr", ZF_F64, ZF_SCALAR);
    y = zf_moe(x, &(zf_moe_desc){.experts = E, .intermediate = N, .sigmoid = true, .normalize = true});
    loss = zf_output(zf_mean(zf_mul(y, y)), "loss");
    zf_passes(g, &(zf_training){.loss = loss, .lr = lr, .optimizer = ZF_SGD, .keep_gradients = true});
    p = program_new(t, g);
    PROGRAM(t, p, g);
    fill(t, p, g, in);
    if (t->failed || t->unwound) return;
    for (int i = 0; i < T * H; i++) in[i] = 1;
    for (int i = 0; i < E * H; i++) router[i] = -1000;
    OK(t, zf_write(p, x, in, sizeof in), zf_program_error(p));
    OK(t, zf_write(p, lr, &rate, sizeof rate), zf_program_error(p));
    OK(t, zf_write(p, zf_graph_find(g, "gate.weight"), router, sizeof router), zf_program_error(p));
    OK(t, zf_step(p), zf_program_error(p));
    read_param(t, p, g, "gradient/gate.weight", router);
    for (int i = 0; i < E * H; i++) CHECK(t, router[i] == 0);
}

/* Losses of routers over no token are 0. */
TEST(moe_losses_of_no_token_are_0)
{
    zf_graph *g = graph_new(t);
    zf_program *p;
    zf_moe_parts parts;
    zf_tensor mask, sum;
    double in[T * H], got = NAN;
    NEED(t, g, NULL);
    (void)zf_moe(zf_input(g, "x", ZF_F64, ZF_SHAPE(T, H)),
                 &(zf_moe_desc){.experts = E, .intermediate = N, .parts = &parts});
    mask = zf_constant(g, ZF_F64, ZF_SHAPE(T), 0);
    sum = zf_moe_balance_loss(&parts, 1, mask, ZF_BALANCE_POOLED);
    sum = zf_output(zf_add(sum, zf_moe_z_loss(&parts, 1, mask)), "sum");
    p = program_new(t, g);
    PROGRAM(t, p, g);
    fill(t, p, g, in);
    if (t->failed || t->unwound) return;
    OK(t, zf_step(p), zf_program_error(p));
    OK(t, zf_read(p, sum, &got, sizeof got), zf_program_error(p));
    CHECK(t, got == 0);
}

/* Lion's sign moves the bias of experts by a constant rate: up of those with fewer choices than the
 * mean. */
TEST(moe_bias_balances_experts)
{
    zf_graph *g = graph_new(t);
    zf_program *p;
    zf_tensor x, y, loss, lr;
    zf_moe_parts parts;
    double in[T * H], router[E * H] = {0}, bias[E] = {0}, rate = 0.5;
    const zf_param_group group = {.params = "*e_score_correction_bias",
                                  .rate = 0.125,
                                  .constant = true,
                                  .no_decay = true,
                                  .beta1 = 1e-45,
                                  .optimizer = "lion"};
    NEED(t, g, NULL);
    x = zf_input(g, "x", ZF_F64, ZF_SHAPE(T, H));
    lr = zf_input(g, "lr", ZF_F64, ZF_SCALAR);
    y = zf_moe(x, &(zf_moe_desc){.experts = E, .k = 1, .intermediate = N, .balance = true,
                                 .sigmoid = true, .parts = &parts});
    loss = zf_mean(zf_mul(y, y));
    zf_output(loss, "loss");
    zf_param_groups(g, &group, 1);
    zf_passes(g, &(zf_training){.loss = loss, .lr = lr, .optimizer = ZF_SGD});
    p = program_new(t, g);
    PROGRAM(t, p, g);
    fill(t, p, g, in);
    if (t->failed || t->unwound) return;
    for (int i = 0; i < T * H; i++) in[i] = fabs(in[i]) + 0.1;
    for (int h = 0; h < H; h++) router[h] = 1;
    OK(t, zf_write(p, x, in, sizeof in), zf_program_error(p));
    OK(t, zf_write(p, lr, &rate, sizeof rate), zf_program_error(p));
    OK(t, zf_write(p, zf_graph_find(g, "gate.weight"), router, sizeof router), zf_program_error(p));
    OK(t, zf_write(p, zf_graph_find(g, "gate.e_score_correction_bias"), bias, sizeof bias),
       zf_program_error(p));
    OK(t, zf_step(p), zf_program_error(p));
    read_param(t, p, g, "gate.e_score_correction_bias", bias);
    CHECK_NEAR(t, bias[0], -0.125, 1e-9);
    CHECK_NEAR(t, bias[1], 0.125, 1e-9);
    CHECK_NEAR(t, bias[2], 0.125, 1e-9);
}

/* What a layer makes of ten tokens (a, b): logits are a of expert 0, b of expert 1 and 0 of others,
 * and expert e makes (e + 1)(a + b). */
static void layer_of_ten(test *t, zf_moe_desc d, const double a[10], const double b[10], double y[10])
{
    zf_graph *g = graph_new(t);
    zf_program *p;
    double x[10 * H] = {0}, router[4 * H] = {0}, up[4 * H] = {0}, down[4 * H], out[10 * H];
    NEED(t, g, NULL);
    d.intermediate = 1, d.activation = ZF_ACTIVATION_RELU, d.normalize = true;
    zf_output(zf_moe(zf_input(g, "x", ZF_F64, ZF_SHAPE(10, H)), &d), "y");
    p = program_new(t, g);
    PROGRAM(t, p, g);
    if (t->failed || t->unwound) return;
    for (int i = 0; i < 10; i++) x[i * H] = a[i], x[i * H + 1] = b[i];
    router[0] = router[H + 1] = 1;
    for (int e = 0; e < d.experts; e++)
        for (int h = 0; h < H; h++) up[e * H + h] = h < 2, down[e * H + h] = e + 1;
    const struct {
        const char *name;
        const double *values;
    } given[] = {{"x", x}, {"gate.weight", router}, {"experts.up_proj.weight", up},
                 {"experts.down_proj.weight", down}};
    for (size_t k = 0; k < sizeof given / sizeof *given; k++) {
        const zf_tensor to = zf_graph_find(g, given[k].name);
        OK(t, zf_write(p, to, given[k].values, zf_tensor_bytes(to)), zf_program_error(p));
    }
    OK(t, zf_step(p), zf_program_error(p));
    OK(t, zf_read(p, zf_graph_find(g, "y"), out, sizeof out), zf_program_error(p));
    for (int i = 0; i < 10; i++) y[i] = out[i * H];
}

/* Of ten tokens an expert of four has ceil(1.25 10 / 4) = 4 rows, or as many as there are least. */
TEST(moe_capacities_are_rounded_up)
{
    static const struct {
        double capacity;
        int64_t least;
        int rows;
    } all[] = {{1.25, 0, 4}, {0.5, 0, 2}, {0.25, 1, 1}, {0.25, 3, 3}, {4, 0, 10}, {4, 99, 10}};
    double a[10], b[10] = {0}, y[10];
    for (int i = 0; i < 10; i++) a[i] = 1;
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
        layer_of_ten(t,
                     (zf_moe_desc){.experts = 4, .k = 1, .capacity = all[k].capacity,
                                   .least = all[k].least},
                     a, b, y);
        if (t->failed || t->unwound) return;
        for (int i = 0; i < 10; i++) CHECK(t, y[i] == (i < all[k].rows));
    }
}

/* Five rows of each expert: first choices come before second ones, and gates are shares of what is
 * left. Tokens 5 and 6 lose both choices. */
TEST(moe_gates_are_shares_of_what_is_kept)
{
    double a[10], b[10], y[10];
    for (int i = 0; i < 10; i++) a[i] = i < 7 ? 2 : 1, b[i] = i < 7 ? 1 : 2;
    layer_of_ten(t, (zf_moe_desc){.experts = 2, .k = 2, .capacity = 0.5}, a, b, y);
    if (t->failed || t->unwound) return;
    for (int i = 0; i < 10; i++) {
        const double gate = i < 2 ? 1 / (1 + exp(1)) : i < 7 ? 0 : 1;
        CHECK_NEAR(t, y[i], i == 5 || i == 6 ? 0 : 3 * (1 - gate + 2 * gate), 1e-12);
    }
}

/* ------------------------------------------------------------------------------------- ranks */

enum { PARTS = 4, STEPS = 3 };

/* Ranks that run in turns; world * micro is PARTS. */
typedef struct crew {
    int32_t world, stage, threads;
    int64_t micro;
    bool recompute, alike; /* alike: all parts are the same, and nothing is dropped */
    zf_comm comms[PARTS];
    zf_graph *graphs[PARTS];
    zf_backend *backends[PARTS];
    zf_program *programs[PARTS];
    zf_error error;
} crew;

static void crew_end(void *object)
{
    crew *c = object;
    for (int k = PARTS; k-- > 0;) zf_program_free(c->programs[k]);
    for (int k = PARTS; k-- > 0;) zf_graph_free(c->graphs[k]);
    for (int k = PARTS; k-- > 0;) zf_backend_free(c->backends[k]);
    memset(c, 0, sizeof *c);
}

/* Two layers of experts, one that drops by chance, with losses of routers and a trained bias. */
static zf_status crew_open(crew *c, int32_t rank)
{
    const zf_param_group group = {.params = "*e_score_correction_bias",
                                  .rate = 0.005,
                                  .constant = true,
                                  .no_decay = true,
                                  .beta1 = 1e-45,
                                  .optimizer = "lion"};
    zf_moe_parts parts[2];
    zf_moe_desc d = {.experts = E, .intermediate = N, .gated = true, .std = 0.5,
                     .activation = ZF_ACTIVATION_SILU, .normalize = true};
    zf_graph *g = c->graphs[rank] = zf_graph_new(NULL);
    zf_tensor x = zf_input(g, "x", ZF_F32, ZF_SHAPE(T, H)), y = x, loss;
    zf_training training = {.adamw.eps = 1e-3};
    for (int k = 0; k < 2; k++) {
        d.parts = &parts[k], d.balance = !k;
        d.capacity = k && !c->alike ? 0.75 : 0, d.random = k && !c->alike;
        zf_push(g, "%d", k);
        y = zf_add(y, zf_moe(y, &d));
        zf_pop(g);
    }
    loss = zf_mean(zf_mul(y, y));
    loss = zf_add(loss, zf_scale(zf_moe_balance_loss(parts, 2, ZF_NONE, ZF_BALANCE_POOLED), 0.1));
    loss = zf_add(loss, zf_scale(zf_moe_z_loss(parts, 2, ZF_NONE), 0.1));
    loss = zf_output_ex(loss, "loss", &(zf_output_desc){.reduction = ZF_REDUCTION_MEAN});
    zf_output_ex(zf_moe_load(&parts[1], ZF_NONE), "load", &(zf_output_desc){.reduction = ZF_REDUCTION_SUM});
    zf_param_groups(g, &group, 1);
    training.loss = loss, training.recompute.mode = c->recompute ? ZF_RECOMPUTE_LAYERS : 0;
    training.zero.stage = c->stage, training.zero.world = c->world;
    training.zero.micro_batches = c->micro;
    zf_passes(g, &training);
    c->comms[rank] = (zf_comm){.rank = rank, .world = c->world};
    c->backends[rank] = zf_cpu_backend(&(zf_cpu_desc){.threads = c->threads}, &c->error);
    c->programs[rank] = zf_compile(g, &(zf_compile_desc){.comm = c->world > 1 ? &c->comms[rank] : NULL,
                                                         .backend = c->backends[rank],
                                                         .seed = 9,
                                                         .verify = true});
    if (!c->programs[rank]) snprintf(c->error.text, sizeof c->error.text, "%s", zf_graph_error(g));
    return zf_graph_status(g);
}

static zf_status crew_feed(crew *c, int32_t rank, int64_t part, int step)
{
    const float lr = 0.01f;
    float x[T * H];
    zf_graph *g = c->graphs[rank];
    for (int i = 0; i < T * H; i++) x[i] = (float)number(i + 50 * (int)part, step);
    if (zf_write(c->programs[rank], zf_graph_find(g, "lr"), &lr, sizeof lr)) return ZF_ERR_ARGUMENT;
    return zf_write(c->programs[rank], zf_graph_find(g, "x"), x, sizeof x);
}

static zf_status crew_train(crew *c)
{
    const zf_lockstep_desc d = {c->programs, c->world, 0};
    zf_status status = ZF_OK;
    for (int32_t rank = 0; rank < c->world && !status; rank++) status = crew_open(c, rank);
    for (int step = 0; step < STEPS && !status; step++)
        for (int64_t micro = 0; micro < c->micro && !status; micro++) {
            for (int32_t rank = 0; rank < c->world && !status; rank++)
                status = crew_feed(c, rank, c->alike ? 0 : micro * c->world + rank, step);
            if (!status)
                status = micro + 1 < c->micro ? zf_lockstep_micro(&d, &c->error)
                                              : zf_lockstep_step(&d, &c->error);
        }
    return status;
}

/* Each rank knows how often experts of the second layer, which have three rows each, were chosen by
 * all parts, and how many choices were dropped. */
static void crew_check_load(test *t, crew *c, crew *first)
{
    for (int32_t rank = 0; rank < c->world && !t->failed && !c->alike; rank++) {
        float load[E + 2] = {0}, other[E + 2] = {0};
        OK(t, zf_read(c->programs[rank], zf_graph_find(c->graphs[rank], "load"), load, sizeof load),
           zf_program_error(c->programs[rank]));
        CHECK(t, load[0] + load[1] + load[2] == PARTS * T * K);
        CHECK(t, load[E] >= PARTS * (T * K - E * 3) && load[E] < PARTS * T * K);
        CHECK(t, load[E] + load[E + 1] == PARTS * T * K);
        if (!first) continue;
        OK(t, zf_read(first->programs[0], zf_graph_find(first->graphs[0], "load"), other, sizeof other),
           zf_program_error(first->programs[0]));
        CHECK(t, !memcmp(load, other, sizeof load));
    }
}

/* The crew trains; its parameters have the bits of those of `first`, NULL: it is the first. */
static void crew_check(test *t, crew *c, crew *first)
{
    test_defer(t, crew_end, c);
    OK(t, crew_train(c), c->error.text);
    crew_check_load(t, c, first);
    for (int32_t k = 0; first && k < zf_param_count(c->graphs[0]) && !t->failed; k++) {
        static float x[E * N * H], y[E * N * H];
        const zf_tensor param = zf_param_at(first->graphs[0], k);
        const size_t bytes = (size_t)zf_shape_count(zf_tensor_shape(param)) * sizeof *x;
        const zf_lockstep_desc d = {c->programs, c->world, 0},
                               of = {first->programs, first->world, 0};
        OK(t, zf_lockstep_read(&d, zf_tensor_name(param), x, bytes, &c->error), c->error.text);
        OK(t, zf_lockstep_read(&of, zf_tensor_name(param), y, bytes, &c->error), c->error.text);
        if (memcmp(x, y, bytes))
            test_fail(t, __FILE__, __LINE__, "a parameter has other bits", zf_tensor_name(param));
    }
}

TEST_ONCE(moe_has_the_same_bits_on_ranks)
{
    static crew crews[] = {
        {.world = 1, .micro = 4, .threads = 1},
        {.world = 1, .micro = 4, .threads = 2, .recompute = true},
        {.world = 2, .micro = 2, .stage = 1, .threads = 1},
        {.world = 2, .micro = 2, .stage = 2, .threads = 2, .recompute = true},
        {.world = 4, .micro = 1, .stage = 3, .threads = 1},
        {.world = 4, .micro = 1, .threads = 1, .recompute = true}};
    const zf_lockstep_desc of = {crews[0].programs, 1, 0};
    float bias[E] = {0};
    for (size_t w = 0; w < sizeof crews / sizeof *crews && !t->failed; w++)
        crew_check(t, &crews[w], w ? crews : NULL);
    if (t->failed) return;
    OK(t, zf_lockstep_read(&of, "0.gate.e_score_correction_bias", bias, sizeof bias, &crews->error),
       crews->error.text);
    /* Once a step, by 0.005, whatever the micro-batches are. */
    CHECK(t, fabs((double)bias[0]) > 0.004 && fabs((double)bias[0]) < STEPS * 0.005 + 1e-6);
}

/* Losses of routers are means over parts: of parts that are alike, gradients are those of one. */
TEST_ONCE(moe_losses_are_means_over_parts)
{
    static crew crews[] = {{.world = 1, .micro = 1, .threads = 1, .alike = true},
                           {.world = 1, .micro = 2, .threads = 1, .alike = true},
                           {.world = 1, .micro = 4, .threads = 1, .alike = true, .recompute = true},
                           {.world = 2, .micro = 2, .stage = 2, .threads = 1, .alike = true}};
    for (size_t w = 0; w < sizeof crews / sizeof *crews && !t->failed; w++)
        crew_check(t, &crews[w], w ? crews : NULL);
}

/* An error of the step names the layer. */
TEST(moe_says_which_layer_has_too_few_rows)
{
    zf_graph *g = graph_new(t);
    zf_program *p;
    double in[T * H];
    NEED(t, g, NULL);
    zf_push(g, "h.%d", 3);
    zf_output(zf_moe(zf_input(g, "x", ZF_F64, ZF_SHAPE(T, H)),
                     &(zf_moe_desc){.experts = E, .intermediate = N, .rows = T}),
              "y");
    zf_pop(g);
    p = program_new(t, g);
    PROGRAM(t, p, g);
    for (int i = 0; i < T * H; i++) in[i] = number(i, 1);
    OK(t, zf_write(p, zf_graph_find(g, "h.3.x"), in, sizeof in), zf_program_error(p));
    CHECK(t, zf_step(p) == ZF_ERR_ARGUMENT);
    if (!strstr(zf_program_error(p), " in h.3: 12 choices need as many rows, and there are 6"))
        CHECK_TEXT(t, zf_program_error(p), "");
}

#define SAYS(t, expression, part)                                                                  \
    do {                                                                                           \
        zf_graph *says_g = zf_graph_new(&(zf_graph_desc){.allocator = (t)->allocator});            \
        char text[400];                                                                            \
        NEED((t), says_g, NULL);                                                                   \
        x = zf_input(says_g, "x", ZF_F32, ZF_SHAPE(T, H)), g = says_g;                             \
        (void)(expression), (void)g;                                                               \
        snprintf(text, sizeof text, "%s", zf_graph_error(says_g));                                 \
        zf_graph_free(says_g);                                                                     \
        if (!strstr(text, (part))) CHECK_TEXT((t), text, (part));                                  \
    } while (0)

/* Layers of other experts and choices: the loss is the sum of those of each. */
TEST(moe_balance_of_layers_that_differ)
{
    zf_graph *g = graph_new(t);
    zf_moe_parts parts[2];
    zf_program *p;
    double x[T * H], sum, one[2];
    zf_tensor in, all, each[2];
    NEED(t, g, NULL);
    in = zf_input(g, "x", ZF_F64, ZF_SHAPE(T, H));
    for (int i = 0; i < 2; i++) {
        zf_push(g, "%d", i);
        zf_moe(in, &(zf_moe_desc){.experts = 2 + i, .k = 1 + i, .parts = &parts[i]});
        zf_pop(g);
        each[i] = zf_output(zf_moe_balance_loss(&parts[i], 1, ZF_NONE, ZF_BALANCE_LAYERS),
                            i ? "second" : "first");
    }
    all = zf_output(zf_moe_balance_loss(parts, 2, ZF_NONE, ZF_BALANCE_LAYERS), "all");
    p = program_new(t, g);
    PROGRAM(t, p, g);
    for (int i = 0; i < T * H; i++) x[i] = number(i, 1);
    OK(t, zf_write(p, in, x, sizeof x), zf_program_error(p));
    OK(t, zf_step(p), zf_program_error(p));
    OK(t, zf_read(p, all, &sum, sizeof sum), zf_program_error(p));
    for (int i = 0; i < 2; i++)
        OK(t, zf_read(p, each[i], &one[i], sizeof *one), zf_program_error(p));
    CHECK(t, one[1] > 0 && fabs(sum - one[0] - one[1]) < 1e-14);
}

/* Of the scores of tokens of two layers: the formula of transformers (load_balancing_loss_func), over
 * the tokens of all layers; with `layers` that of Switch, equation 4, of each layer. */
static double balance_of(double scores[2][T][E], const double mask[T], bool layers)
{
    double all[2][E] = {{0}}, chosen[2][E] = {{0}}, tokens = 0, sum = 0;
    for (int i = 0; i < T; i++) tokens += mask[i];
    for (int n = 0; n < 2 * T; n++) {
        const double *s = scores[n / T][n % T];
        for (int e = 0; e < E; e++) {
            int above = 0;
            for (int other = 0; other < E; other++) above += s[other] > s[e];
            all[layers ? n / T : 0][e] += mask[n % T] * s[e];
            chosen[layers ? n / T : 0][e] += above < K ? mask[n % T] : 0;
        }
    }
    if (!layers) tokens *= 2;
    for (int k = 0; k < 2; k++)
        for (int e = 0; e < E; e++)
            sum += E * (chosen[k][e] / tokens / (layers ? K : 1)) * (all[k][e] / tokens);
    return sum;
}

/* Padding is in no loss of routers, and in no share. */
TEST(moe_losses_are_those_of_tokens)
{
    static const double mask[2][T] = {{1, 1, 1, 1, 1, 1}, {1, 0, 1, 1, 0, 0}};
    for (int with = 0; with < 2; with++) {
        zf_graph *g = graph_new(t);
        zf_moe_parts parts[2];
        zf_tensor in, of, loss[3], load;
        zf_program *p;
        double x[T * H], scores[2][T][E], z = 0, got[3];
        float chosen[E + 2];
        NEED(t, g, NULL);
        in = zf_input(g, "x", ZF_F64, ZF_SHAPE(T, H));
        of = with ? zf_input(g, "mask", ZF_F64, ZF_SHAPE(T)) : ZF_NONE;
        for (int k = 0; k < 2; k++) {
            zf_push(g, "%d", k);
            zf_moe(in, &(zf_moe_desc){.experts = E, .std = 1, .parts = &parts[k]});
            zf_output(parts[k].scores, k ? "second" : "first");
            zf_pop(g);
        }
        loss[0] = zf_output(zf_moe_balance_loss(parts, 2, of, ZF_BALANCE_POOLED), "pooled");
        loss[1] = zf_output(zf_moe_balance_loss(parts, 2, of, ZF_BALANCE_LAYERS), "layers");
        loss[2] = zf_output(zf_moe_z_loss(parts, 2, of), "z");
        zf_output(parts[0].logits, "logits0"), zf_output(parts[1].logits, "logits1");
        load = zf_output(zf_moe_load(parts, of), "load");
        p = program_new(t, g);
        PROGRAM(t, p, g);
        for (int i = 0; i < T * H; i++) x[i] = number(i, 1);
        OK(t, zf_write(p, in, x, sizeof x), zf_program_error(p));
        if (with) OK(t, zf_write(p, of, mask[1], sizeof mask[1]), zf_program_error(p));
        OK(t, zf_step(p), zf_program_error(p));
        for (int k = 0; k < 2; k++) {
            double logits[T][E];
            const zf_tensor y = zf_graph_find(g, k ? "logits1" : "logits0");
            OK(t, zf_read(p, y, logits, sizeof logits), zf_program_error(p));
            for (int i = 0; i < T; i++) {
                double sum = 0, tokens = with ? 3 : T;
                for (int e = 0; e < E; e++) sum += exp(logits[i][e]);
                for (int e = 0; e < E; e++) scores[k][i][e] = exp(logits[i][e]) / sum;
                z += mask[with][i] * log(sum) * log(sum) / tokens;
            }
        }
        for (int k = 0; k < 3; k++)
            OK(t, zf_read(p, loss[k], &got[k], sizeof *got), zf_program_error(p));
        CHECK_NEAR(t, got[0], balance_of(scores, mask[with], false), 1e-13);
        CHECK_NEAR(t, got[1], balance_of(scores, mask[with], true), 1e-13);
        CHECK_NEAR(t, got[2], z, 1e-13);
        OK(t, zf_read(p, load, chosen, sizeof chosen), zf_program_error(p));
        CHECK(t, chosen[0] + chosen[1] + chosen[2] == (with ? 3 : T) * K);
        CHECK(t, chosen[E] == 0 && chosen[E + 1] == T * K);
    }
}

/* Numbers of choices that bf16 does not have. */
TEST(moe_load_is_not_rounded)
{
    enum { MANY = 601 };
    static const float tokens[MANY * H];
    for (int with = 0; with < 2; with++) {
        zf_graph *g = graph_new(t);
        zf_moe_parts parts;
        zf_tensor x, mask;
        zf_program *p;
        float load[4] = {0};
        NEED(t, g, NULL);
        x = zf_input(g, "x", ZF_F32, ZF_SHAPE(MANY, H));
        mask = zf_cast(zf_constant(g, ZF_I32, ZF_SHAPE(MANY), 1), ZF_F32);
        (void)zf_moe(x, &(zf_moe_desc){.experts = 2, .k = 1, .capacity = 0.5, .parts = &parts});
        zf_output(zf_moe_load(&parts, with ? mask : ZF_NONE), "load");
        zf_precision(g, &(zf_precision_desc){.dtype = ZF_BF16});
        p = program_new(t, g);
        PROGRAM(t, p, g);
        OK(t, zf_write(p, x, tokens, sizeof tokens), zf_program_error(p));
        OK(t, zf_step(p), zf_program_error(p));
        OK(t, zf_read(p, zf_graph_find(g, "load"), load, sizeof load), zf_program_error(p));
        CHECK(t, load[0] == MANY && !load[1] && load[2] == 450 && load[3] == 151);
    }
}

/* The pooled loss of a layer of 2 experts and one of 3. */
static zf_tensor pooled_of_two(zf_tensor x)
{
    zf_moe_parts parts[2];
    for (int i = 0; i < 2; i++) {
        zf_push(x.graph, "%d", i);
        zf_moe(x, &(zf_moe_desc){.experts = 2 + i, .parts = &parts[i]});
        zf_pop(x.graph);
    }
    return zf_moe_balance_loss(parts, 2, ZF_NONE, ZF_BALANCE_POOLED);
}

TEST(moe_misuse)
{
    zf_graph *g;
    zf_tensor x;
    SAYS(t, zf_moe(zf_input(g, "one", ZF_F32, ZF_SHAPE(4)), &(zf_moe_desc){.experts = 2}),
         "zf_moe: x must be [..., hidden]");
    SAYS(t, zf_moe(x, NULL), "zf_moe: experts = 0 must be 1 or more");
    SAYS(t, zf_moe(x, &(zf_moe_desc){.experts = 2, .capacity = 3}),
         "zf_moe: capacity = 3 must be 0 to the number of experts, and has no rows");
    SAYS(t, zf_moe(x, &(zf_moe_desc){.experts = 2, .k = 3}), "k = 3 of 2 experts");
    SAYS(t, zf_moe(x, &(zf_moe_desc){.experts = 2, .random = true}),
         "zf_moe: random is of a capacity, and there is none: nothing is dropped");
    SAYS(t, zf_moe(x, &(zf_moe_desc){.experts = 2, .least = 4}), "zf_moe: least is of a capacity");
    SAYS(t, pooled_of_two(x),
         "zf_moe_balance_loss: layer 1 has 3 experts and layer 0 has 2: only layers with as many "
         "are "
         "pooled");
    SAYS(t, zf_moe_balance_loss(&(zf_moe_parts){.scores = x}, 0, ZF_NONE, ZF_BALANCE_POOLED),
         "zf_moe_balance_loss: there is no layer");
    SAYS(t, zf_moe_z_loss(&(zf_moe_parts){.logits = x}, 0, ZF_NONE),
         "zf_moe_z_loss: there is no layer");
    SAYS(t, zf_moe_load(&(zf_moe_parts){.counts = {g, 0}}, ZF_NONE), "zf_moe_load: there is no layer");
    SAYS(t, zf_moe(x, &(zf_moe_desc){.experts = 8, .k = 1, .capacity = 0.5}),
         "zf_moe: capacity = 0.5 is below one row: 6 tokens with 1 of 8 experts each make 0.75 rows of "
         "an expert on average; 1.33333 is the least, or say how many rows an expert has at least");
    SAYS(t, zf_output_ex(zf_cast(x, ZF_I32), "x", &(zf_output_desc){.reduction = ZF_REDUCTION_SUM}),
         "a reduction is that of one float, a sum also that of f32 and f64; the value is i32 with ");
}
