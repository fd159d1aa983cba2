/* A program's own operators: they print, parse, are copied, differentiated, fused around, sharded
 * over ranks and run as built-in ones are, and mistakes in them are reported.
 *
 *     snake        x + sin(a x)^2 / a, elementwise; its gradient is an own operator too
 *     unit_rows    rows divided by their lengths; its gradient uses builders
 *     pairs        sums of neighbours: another shape, by infer; no gradient
 *     offset       x + a row of constants: two operands, one broadcast; a list and a choice
 */
#include "../support/test.h"

/* -------------------------------------------------------------------------------- operators */

static void snake_range(const zf_launch *l, int64_t first, int64_t last)
{
    const float *x = l->args[l->arg_count - 1].data, *dy = l->args[0].data;
    float *out = l->out.data, a = (float)l->attributes[0].f;
    for (int64_t i = first; i < last; i++) {
        float s = sinf(a * x[i]);
        out[i] = l->arg_count == 1 ? x[i] + s * s / a : dy[i] * (1 + sinf(2 * a * x[i]));
    }
}

static zf_status snake(const zf_launch *l)
{
    zf_launch_split(l, zf_shape_count(l->out.shape), 100, snake_range);
    return ZF_OK;
}

static void snake_gradient(zf_grad *c)
{
    c->dx[0] = zf_apply(c->graph, "snake_grad", 2, (zf_tensor[]){c->dy, c->x[0]}, c->attributes);
}

static zf_status unit_rows(const zf_launch *l)
{
    int64_t n = l->out.shape.dims[l->out.shape.rank - 1],
            rows = n ? zf_shape_count(l->out.shape) / n : 0;
    const float *x = l->args[0].data;
    float *y = l->out.data;
    for (int64_t r = 0; r < rows; r++) {
        float sum = 0;
        for (int64_t i = 0; i < n; i++) sum += x[r * n + i] * x[r * n + i];
        for (int64_t i = 0; i < n; i++) y[r * n + i] = x[r * n + i] / sqrtf(sum);
    }
    return ZF_OK;
}

/* x / |x| of built-in operators. */
static zf_tensor unit_rows_built(zf_tensor x)
{
    zf_reduce_desc last = {.axis = -1, .keep = true};
    return zf_mul(x, zf_rsqrt(zf_sum_ex(zf_mul(x, x), &last)));
}

static void unit_rows_gradient(zf_grad *c)
{
    zf_reduce_desc last = {.axis = -1, .keep = true};
    zf_tensor x = c->x[0], along = zf_mul(c->y, zf_sum_ex(zf_mul(c->dy, c->y), &last));
    c->dx[0] = zf_mul(zf_sub(c->dy, along), zf_rsqrt(zf_sum_ex(zf_mul(x, x), &last)));
}

static zf_status pairs_infer(zf_infer *c)
{
    int64_t *last = &c->shape.dims[c->shape.rank - 1];
    if (c->dtype != ZF_F32) return zf_infer_fail(c, ZF_ERR_DTYPE, "pairs are of f32");
    if (c->shape.rank < 1 || *last % 2)
        return zf_infer_fail(c, ZF_ERR_SHAPE, "the last dimension must be even");
    *last /= 2;
    return ZF_OK;
}

static zf_status pairs(const zf_launch *l)
{
    const float *x = l->args[0].data;
    float *y = l->out.data, *twice = l->scratch;
    int64_t n = zf_shape_count(l->out.shape);
    for (int64_t i = 0; i < 2 * n; i++) {
        if (isnan(x[i])) return zf_launch_fail(l, ZF_ERR_NAN, "element %d is no number", (int)i);
        twice[i] = 2 * x[i];
    }
    for (int64_t i = 0; i < n; i++) y[i] = (twice[2 * i] + twice[2 * i + 1]) / 2;
    *(int *)l->own->user += 1; /* a count of calls */
    return ZF_OK;
}

static size_t pairs_scratch(const zf_launch *l) { return 2 * 4 * (size_t)zf_shape_count(l->out.shape); }

enum { BY, MODE };

static zf_status offset_infer(zf_infer *c)
{
    return c->args[0].dtype == c->args[1].dtype ? ZF_OK
                                                : zf_infer_fail(c, ZF_ERR_DTYPE, "two dtypes");
}

static zf_status offset(const zf_launch *l)
{
    int64_t n = l->out.shape.dims[l->out.shape.rank - 1], count = zf_shape_count(l->out.shape);
    const float *x = l->args[0].data, *row = l->args[1].data;
    const double *by = l->attributes[BY].list.data;
    float sum = 0;
    for (int64_t i = 0; i < l->attributes[BY].list.count; i++) sum += (float)by[i];
    if (l->attributes[MODE].i) sum = -sum;
    for (int64_t i = 0; i < count; i++) {
        if (x[i] > 1000) return zf_launch_fail(l, ZF_ERR_ARGUMENT, "%g is over 1000", (double)x[i]);
        ((float *)l->out.data)[i] = x[i] + row[i % n] + sum;
    }
    return ZF_OK;
}

static int calls_of_pairs;

static const zf_operator operators[] = {
    {.name = "snake",
     .attributes = "a:f",
     .traits = ZF_OP_ELEMENTWISE | ZF_OP_INPLACE,
     .grad = snake_gradient,
     .cpu = snake},
    {.name = "snake_grad",
     .least = 2,
     .attributes = "a:f",
     .traits = ZF_OP_ELEMENTWISE | ZF_OP_INPLACE,
     .cpu = snake},
    {.name = "unit_rows",
     .traits = ZF_OP_BY_ROWS | ZF_OP_INPLACE,
     .grad = unit_rows_gradient,
     .cpu = unit_rows},
    {.name = "pairs", .infer = pairs_infer, .cpu = pairs, .scratch = pairs_scratch,
     .user = &calls_of_pairs},
    {.name = "offset", .least = 2, .attributes = "by:v mode:e(plus|minus)",
     .traits = ZF_OP_ELEMENTWISE, .infer = offset_infer, .cpu = offset},
};

enum { OPERATORS = sizeof operators / sizeof *operators };

static zf_graph_desc with_operators(const test *t)
{
    return (zf_graph_desc){
        .allocator = t->allocator, .operators = operators, .operator_count = OPERATORS};
}

static zf_graph *new_graph(test *t)
{
    zf_graph_desc desc = with_operators(t);
    zf_graph *g = zf_graph_new(&desc);
    if (g) test_defer(t, (test_cleanup *)zf_graph_free, g);
    return g;
}

static zf_tensor apply(zf_tensor x, const char *name, double a)
{
    return zf_apply(x.graph, name, 1, &x, &(zf_attribute){.f = a});
}

static zf_tensor offset_of(zf_tensor x, zf_tensor row, int64_t mode)
{
    static const double by[] = {1, 2, 0.5};
    zf_attribute attributes[] = {[BY] = {.list = {by, 3}}, [MODE] = {.i = mode}};
    return zf_apply(x.graph, "offset", 2, (zf_tensor[]){x, row}, attributes);
}

/* --------------------------------------------------------------------------------------- text */

TEST(own_operators_print_parse_and_are_copied)
{
    static char text[1024], again[1024];
    zf_graph_desc desc = with_operators(t);
    zf_error error = {ZF_OK, ""};
    zf_graph *g = new_graph(t), *parsed, *copy;
    zf_tensor x, h;
    NEED(t, g, NULL);
    x = zf_input(g, "x", ZF_F32, ZF_SHAPE(3, 4));
    h = apply(x, "snake", 0.5);
    h = offset_of(h, zf_input(g, "row", ZF_F32, ZF_SHAPE(4)), 1);
    zf_output(zf_apply(g, "pairs", 1, &h, NULL), "y");
    OK(t, zf_graph_status(g), zf_graph_error(g));
    zf_graph_text(g, text, sizeof text);
    CHECK_TEXT(t, text,
               "%1 = input \"x\" : f32[3,4]\n"
               "%2 = snake %1 {a=0.5} : f32[3,4]\n"
               "%3 = input \"row\" : f32[4]\n"
               "%4 = offset %2, %3 {by=[1,2,0.5] mode=minus} : f32[3,4]\n"
               "%5 = pairs %4 : f32[3,2]\n"
               "     output %5 \"y\"\n");
    parsed = zf_graph_parse(text, strlen(text), &desc, &error);
    NEED(t, parsed, &error);
    test_defer(t, (test_cleanup *)zf_graph_free, parsed);
    zf_graph_text(parsed, again, sizeof again);
    CHECK_TEXT(t, again, text);
    CHECK(t, zf_graph_hash(parsed) == zf_graph_hash(g));
    NEED(t, copy = zf_graph_copy(parsed), NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, copy);
    zf_graph_text(copy, again, sizeof again);
    CHECK_TEXT(t, again, text);
    /* A copy has records of its own, and more can be appended to it */
    h = apply((zf_tensor){copy, h.id}, "snake", 2);
    OK(t, zf_graph_status(copy), zf_graph_error(copy));
    CHECK(t, zf_valid(h));
    error = (zf_error){ZF_OK, ""};
    CHECK(t, !zf_graph_parse(text, strlen(text), &(zf_graph_desc){.allocator = t->allocator}, &error));
    CHECK_TEXT(t, error.text, "2:6: 'snake' is no operator");
}

/* -------------------------------------------------------------------------------------- values */

enum { ROWS = 5, IN = 6, HIDDEN = 300, SLOTS = 4, STEPS = 4 };

/* The loss of a perceptron: with own operators, or with built-in ones in place of unit_rows. */
static zf_tensor perceptron(zf_graph *g, bool own, double weight)
{
    const zf_param_desc normal = {.init = ZF_NORMAL, .std = 0.4};
    zf_tensor x = zf_input(g, "x", ZF_F32, ZF_SHAPE(ROWS, IN));
    zf_tensor y = zf_input(g, "y", ZF_F32, ZF_SHAPE(ROWS, 1));
    zf_tensor h = zf_matmul(x, zf_param(g, "in", ZF_SHAPE(IN, HIDDEN), &normal));
    h = zf_add(h, zf_param(g, "bias", ZF_SHAPE(HIDDEN), &normal));
    h = apply(h, "snake", 0.7);
    h = own ? zf_apply(g, "unit_rows", 1, &h, NULL) : unit_rows_built(h);
    h = zf_sub(zf_matmul(h, zf_param(g, "out", ZF_SHAPE(HIDDEN, 1), &normal)), y);
    return zf_output_ex(zf_scale(zf_sum(zf_mul(h, h)), weight), "loss",
                        &(zf_output_desc){.reduction = ZF_REDUCTION_SUM});
}

typedef struct training {
    bool built, no_fuse, recompute, lockstep;
    zf_dtype dtype;
    int32_t stage, world, threads;
    bool reference;
} training;

typedef struct trained {
    float losses[STEPS], in[IN * HIDDEN], out[HIDDEN];
} trained;

typedef struct rank {
    test *t;
    const training *d;
    zf_graph *graph;
    zf_program *program;
    zf_backend *backend;
    zf_comm comm;
} rank;

enum { RANKS = 2 };

typedef struct ranks {
    rank of[RANKS];
    zf_program *programs[RANKS];
} ranks;

static void ranks_free(void *object)
{
    ranks *r = object;
    for (int k = 0; k < RANKS; k++) {
        zf_program_free(r->of[k].program);
        zf_backend_free(r->of[k].backend);
        zf_graph_free(r->of[k].graph);
    }
    memset(r, 0, sizeof *r);
}

/* What slot `slot` of each step is trained on. */
static void feed(const rank *r, int64_t slot)
{
    float x[ROWS * IN], y[ROWS];
    for (int i = 0; i < ROWS * IN; i++)
        x[i] = (float)((i * 37 + 5 * (int)slot) % 17) / 8 - 1;
    for (int i = 0; i < ROWS; i++) y[i] = sinf((float)(i + 3 * (int)slot));
    zf_write(r->program, zf_graph_find(r->graph, "layer.0.x"), x, sizeof x);
    zf_write(r->program, zf_graph_find(r->graph, "layer.0.y"), y, sizeof y);
}

static zf_status open_rank(rank *r, int32_t number, zf_error *error)
{
    const training *d = r->d;
    zf_graph_desc desc = with_operators(r->t);
    zf_cpu_desc cpu = {
        .threads = d->threads, .reference = d->reference, .allocator = r->t->allocator};
    zf_graph *g = r->graph = zf_graph_new(&desc);
    zf_training passes = {.optimizer = ZF_ADAMW,
                          .precision.dtype = d->dtype,
                          .clip = 0.5,
                          .recompute.mode = d->recompute ? ZF_RECOMPUTE_LAYERS : ZF_RECOMPUTE_OFF,
                          .zero = {.stage = d->stage,
                                   .world = d->world,
                                   .micro_batches = SLOTS / d->world,
                                   .bucket_bytes = 4096}};
    if (!g) return error->status = ZF_ERR_NOMEM;
    r->comm = (zf_comm){.rank = number, .world = d->world};
    if (d->no_fuse) passes.fuse.without = "all";
    zf_push(g, "layer.0");
    passes.loss = perceptron(g, !d->built, 1.0 / (SLOTS * ROWS));
    zf_pop(g);
    passes.lr = zf_constant(g, ZF_F32, ZF_SCALAR, 0.05);
    zf_passes(g, &passes);
    if (!(r->backend = zf_cpu_backend(&cpu, error))) return error->status;
    r->program = zf_compile(g, &(zf_compile_desc){.backend = r->backend,
                                                  .comm = d->world > 1 ? &r->comm : NULL,
                                                  .verify = true,
                                                  .seed = 3});
    if (r->program) return ZF_OK;
    snprintf(error->text, sizeof error->text, "%s", zf_graph_error(g));
    return error->status = zf_graph_status(g);
}

/* Trains STEPS steps, the ranks in lockstep. */
static zf_status train(test *t, const training *desc, trained *made, zf_error *error)
{
    static ranks all;
    training d = *desc;
    zf_lockstep_desc lockstep = {all.programs, 0, 7};
    zf_status status = ZF_OK;
    if (!d.world) d.world = 1;
    lockstep.count = d.world;
    ranks_free(&all);
    if (!t->deferred_count || t->deferred[t->deferred_count - 1].object != &all)
        test_defer(t, ranks_free, &all);
    for (int k = 0; k < d.world && !status; k++) {
        all.of[k].t = t, all.of[k].d = &d;
        status = open_rank(&all.of[k], k, error);
        all.programs[k] = all.of[k].program;
    }
    for (int64_t step = 0; step < STEPS && !status; step++) {
        for (int64_t micro = 0; micro < SLOTS / d.world && !status; micro++) {
            for (int k = 0; k < d.world; k++) feed(&all.of[k], micro * d.world + k);
            status = micro + 1 < SLOTS / d.world ? zf_lockstep_micro(&lockstep, error)
                                                 : zf_lockstep_step(&lockstep, error);
        }
        if (!status)
            status = zf_read(all.programs[0], zf_graph_find(all.of[0].graph, "loss"),
                             &made->losses[step], sizeof *made->losses);
    }
    if (!status && d.dtype == ZF_F32)
        status = zf_lockstep_read(&lockstep, "layer.0.in", made->in, sizeof made->in, error);
    if (!status && d.dtype == ZF_F32)
        status = zf_lockstep_read(&lockstep, "layer.0.out", made->out, sizeof made->out, error);
    return status;
}

/* The gradient of snake is right, and that of unit_rows is that of the built-in operators: the same
 * losses. bf16, whose kernels are given f32, is near them. */
TEST(own_operators_train)
{
    static trained own, other;
    zf_error error = {ZF_OK, ""};
    OK(t, train(t, &(training){.threads = 1}, &own, &error), error.text);
    CHECK(t, own.losses[STEPS - 1] < 0.9f * own.losses[0]);
    OK(t, train(t, &(training){.threads = 1, .built = true}, &other, &error), error.text);
    for (int k = 0; k < STEPS; k++) CHECK_NEAR(t, own.losses[k], other.losses[k], 2e-5);
    OK(t, train(t, &(training){.threads = 1, .no_fuse = true}, &other, &error), error.text);
    for (int k = 0; k < STEPS; k++) CHECK_NEAR(t, own.losses[k], other.losses[k], 2e-5);
    OK(t, train(t, &(training){.threads = 1, .dtype = ZF_BF16}, &other, &error), error.text);
    for (int k = 0; k < STEPS; k++) CHECK_NEAR(t, own.losses[k], other.losses[k], 0.02);
}

/* The same bits on several threads, on the reference backend of 16 bits, recomputed, and on two
 * ranks at every stage. */
TEST(own_operators_have_the_same_bits)
{
    static trained one, two;
    zf_error error = {ZF_OK, ""};
    OK(t, train(t, &(training){.threads = 1}, &one, &error), error.text);
    OK(t, train(t, &(training){.threads = 3}, &two, &error), error.text);
    CHECK(t, !memcmp(&one, &two, sizeof one));
    OK(t, train(t, &(training){.threads = 1, .recompute = true}, &two, &error), error.text);
    CHECK(t, !memcmp(&one, &two, sizeof one));
    for (int stage = 0; stage <= 3; stage++) {
        OK(t, train(t, &(training){.stage = stage, .world = 2}, &two, &error), error.text);
        CHECK(t, !memcmp(&one, &two, sizeof one));
    }
    OK(t, train(t, &(training){.dtype = ZF_BF16, .threads = 1}, &one, &error), error.text);
    OK(t, train(t, &(training){.dtype = ZF_BF16, .threads = 3}, &two, &error), error.text);
    CHECK(t, !memcmp(one.losses, two.losses, sizeof one.losses));
}

/* A launch of y = op(x, row) in a dtype. */
static zf_status run_offset(test *t, zf_dtype dtype, bool reference, int threads, const float *x,
                            float *y, zf_error *error)
{
    zf_graph *g = new_graph(t);
    zf_backend *cpu = zf_cpu_backend(
        &(zf_cpu_desc){.threads = threads, .reference = reference, .allocator = t->allocator}, error);
    zf_program *p;
    zf_tensor in, row, out;
    if (cpu) test_defer(t, (test_cleanup *)zf_backend_free, cpu);
    if (!g || !cpu) return ZF_ERR_NOMEM;
    in = zf_input(g, "x", ZF_F32, ZF_SHAPE(64, 40));
    row = zf_cast(zf_constant(g, ZF_F32, ZF_SHAPE(40), 0.25), dtype);
    out = zf_output(zf_cast(offset_of(zf_cast(in, dtype), row, 0), ZF_F32), "y");
    p = zf_compile(g, &(zf_compile_desc){.backend = cpu});
    if (!p) {
        snprintf(error->text, sizeof error->text, "%s", zf_graph_error(g));
        return zf_graph_status(g);
    }
    test_defer(t, (test_cleanup *)zf_program_free, p);
    zf_write(p, in, x, 64 * 40 * 4);
    error->status = zf_step(p);
    if (!error->status) error->status = zf_read(p, out, y, 64 * 40 * 4);
    snprintf(error->text, sizeof error->text, "%s", zf_program_error(p));
    return error->status;
}

/* 16 bits in pieces: rounded once; and an error of a piece is the error of the step, the same one
 * on any number of threads. */
TEST(own_operators_of_16_bits)
{
    static float x[64 * 40], y[64 * 40];
    zf_error error = {ZF_OK, ""}, other = {ZF_OK, ""};
    for (int i = 0; i < 64 * 40; i++) x[i] = (float)(i % 256) / 2;
    for (int reference = 0; reference < 2; reference++) {
        OK(t, run_offset(t, ZF_BF16, reference, 2, x, y, &error), error.text);
        for (int i = 0; i < 64 * 40; i++) {
            uint16_t bits;
            float want = x[i] + 3.75f;
            zf_convert(&bits, ZF_BF16, &want, ZF_F32, 1);
            zf_convert(&want, ZF_F32, &bits, ZF_BF16, 1);
            CHECK(t, y[i] == want);
        }
    }
    x[300] = x[2000] = 2048;
    GIVES(t, run_offset(t, ZF_BF16, false, 1, x, y, &error), ZF_ERR_ARGUMENT, error.text);
    GIVES(t, run_offset(t, ZF_BF16, false, 3, x, y, &other), ZF_ERR_ARGUMENT, other.text);
    CHECK_TEXT(t, error.text, "offset %5: 2048 is over 1000");
    CHECK_TEXT(t, other.text, error.text);
}

/* Scratch, another shape, `user`, and an error of the kernel. */
TEST(own_operators_fail_with_a_message)
{
    float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, y[4];
    zf_graph *g = new_graph(t);
    zf_program *p;
    zf_tensor in, out;
    NEED(t, g, NULL);
    in = zf_input(g, "x", ZF_F32, ZF_SHAPE(2, 4));
    out = zf_output(zf_apply(g, "pairs", 1, &in, NULL), "y");
    p = zf_compile(g, NULL);
    if (!p) OK(t, zf_graph_status(g), zf_graph_error(g));
    test_defer(t, (test_cleanup *)zf_program_free, p);
    calls_of_pairs = 0;
    zf_write(p, in, x, sizeof x);
    OK(t, zf_step(p), zf_program_error(p));
    OK(t, zf_read(p, out, y, sizeof y), zf_program_error(p));
    CHECK(t, y[0] == 3 && y[1] == 7 && y[2] == 11 && y[3] == 15 && calls_of_pairs == 1);
    x[5] = NAN;
    zf_write(p, in, x, sizeof x);
    CHECK(t, zf_step(p) == ZF_ERR_NAN);
    CHECK_TEXT(t, zf_program_error(p), "pairs %2: element 5 is no number");
    x[5] = 1;
    zf_write(p, in, x, sizeof x);
    OK(t, zf_step(p), zf_program_error(p));
}

/* Equal nodes are one, others are not. */
TEST(own_operators_are_merged)
{
    zf_graph *g = new_graph(t);
    zf_tensor x, a, b, c;
    NEED(t, g, NULL);
    x = zf_input(g, "x", ZF_F32, ZF_SHAPE(3));
    a = apply(x, "snake", 1), b = apply(x, "snake", 1), c = apply(x, "snake", 2);
    zf_output(zf_add(zf_add(a, b), c), "y");
    apply(x, "snake", 3);
    OK(t, zf_simplify(g), zf_graph_error(g));
    CHECK(t, zf_valid(a) && zf_valid(b) && zf_valid(c));
    CHECK(t, strcmp(zf_op_name(ZF_OP_OWN), "?") == 0 && zf_op_traits_of(ZF_OP_OWN) == 0);
    {
        zf_work work = {0, 0, 0};
        OK(t, zf_graph_work(g, ZF_OP_OWN, &work), zf_graph_error(g));
        CHECK(t, work.launches == 2 && work.bytes == 2 * 24);
    }
}

/* zf_nn_fit makes its graphs with them. */
static zf_tensor fitted(void *user, zf_graph *g, int64_t examples)
{
    zf_tensor x = zf_input(g, "x", ZF_F32, ZF_SHAPE(examples, 2));
    (void)user;
    return zf_mean(zf_nn_linear(apply(x, "snake", 0.5), "out", 1, NULL));
}

TEST(own_operators_in_a_fit)
{
    static const float data[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    zf_error error = {ZF_OK, ""};
    zf_store *store = zf_store_new(&(zf_store_desc){.allocator = t->allocator}, &error);
    NEED(t, store, &error);
    test_defer(t, (test_cleanup *)zf_store_free, store);
    OK(t,
       zf_nn_fit(store,
                 &(zf_nn_fit_desc){.build = fitted,
                                   .fields = {{"x", data}},
                                   .examples = 4,
                                   .allocator = t->allocator,
                                   .operators = operators,
                                   .operator_count = OPERATORS},
                 &error),
       error.text);
    CHECK(t, zf_store_step(store) == 1);
}

/* ------------------------------------------------------------------------------------ mistakes */

static zf_status ok_kernel(const zf_launch *l) { return l->out.data ? ZF_OK : ZF_ERR_BACKEND; }
static zf_status silent_kernel(const zf_launch *l) { return l->op ? ZF_ERR_IO : ZF_OK; }
static zf_status silent_infer(zf_infer *c) { return c->arg_count ? ZF_ERR_LIMIT : ZF_OK; }
static zf_status forgetful_infer(zf_infer *c)
{
    zf_infer_fail(c, ZF_ERR_SHAPE, "too %s", "long");
    return ZF_OK;
}
static zf_status deep_infer(zf_infer *c) { return c->shape.rank = 9, ZF_OK; }
static zf_status grown_infer(zf_infer *c) { return c->shape.dims[0] += 1, ZF_OK; }
static void scalar_gradient(zf_grad *c) { c->dx[0] = zf_sum(c->dy); }
static void lost_gradient(zf_grad *c) { c->dx[0] = zf_concat(NULL, 0, 0); }
static void part_gradient(zf_grad *c) { c->dx[0] = c->dy, c->part = true, c->axis = 1, c->start = 2; }

/* An invalid operator is the graph's error, which says where. */
TEST(own_operators_must_be_whole)
{
    static const struct {
        zf_operator of;
        const char *says;
    } wrong[] = {
        {{.cpu = ok_kernel}, "operator 1, \"\": a name has 1 to 63 letters a to z"},
        {{.name = "Two", .cpu = ok_kernel}, "a name has 1 to 63 letters"},
        {{.name = "2x", .cpu = ok_kernel}, "a name has 1 to 63 letters"},
        {{.name = "softplus", .cpu = ok_kernel}, "there is one of that name already"},
        {{.name = "none", .cpu = ok_kernel}, "there is one of that name already"},
        {{.name = "first", .cpu = ok_kernel}, "operator 1, \"first\": there is one of that name"},
        {{.name = "x"}, "operator 1, \"x\": cpu is NULL; it must be the kernel"},
        {{.name = "x", .least = 3, .most = 2, .cpu = ok_kernel}, "it takes 3 to 2 operands; it must"},
        {{.name = "x", .least = -1, .cpu = ok_kernel}, "it takes -1 to -1 operands"},
        {{.name = "x", .most = 17, .cpu = ok_kernel}, "it takes 1 to 17 operands; it must be 1 to 16"},
        {{.name = "x", .attributes = "a", .cpu = ok_kernel}, "attributes is \"a\"; it must be such as"},
        {{.name = "x", .attributes = "a:q", .cpu = ok_kernel}, "attributes is"},
        {{.name = "x", .attributes = "a:f  b:f", .cpu = ok_kernel}, "attributes is"},
        {{.name = "x", .attributes = "a:f ", .cpu = ok_kernel}, "attributes is"},
        {{.name = "x", .attributes = "a:f b:i a:i", .cpu = ok_kernel}, "each once"},
        {{.name = "x", .attributes = "a:e", .cpu = ok_kernel}, "attributes is"},
        {{.name = "x", .attributes = "a:e()", .cpu = ok_kernel}, "attributes is"},
        {{.name = "x", .attributes = "a:e(b|)", .cpu = ok_kernel}, "attributes is"},
        {{.name = "x", .attributes = "a:e(b|c", .cpu = ok_kernel}, "attributes is"},
        {{.name = "x", .attributes = "a:i b:i c:i d:i e:i f:i g:i h:i i:i j:i k:i l:i m:i n:i o:i p:i q:i r:i", .cpu = ok_kernel},
         "at most 17 names"},
        {{.name = "x", .traits = ZF_OP_MUTATES, .cpu = ok_kernel}, "traits has the bits 0x8;"},
        {{.name = "x", .traits = ZF_OP_RANDOM | ZF_OP_INPLACE, .cpu = ok_kernel}, "the bits 0x200;"},
        {{.name = "x", .traits = ZF_OP_ELEMENTWISE | ZF_OP_BY_ROWS, .cpu = ok_kernel}, "not both"},
        {{.name = "x", .whole = 1, .cpu = ok_kernel}, "whole and rows go with the trait BY_ROWS"},
        {{.name = "x", .over = 1, .cpu = ok_kernel}, "over goes with the trait INPLACE"},
        {{.name = "x", .traits = ZF_OP_BY_ROWS, .rows = 1, .cpu = ok_kernel}, "rows is 1, whole 0"},
        {{.name = "x", .traits = ZF_OP_BY_ROWS, .whole = 1, .cpu = ok_kernel}, "whole 0x1"},
        {{.name = "x", .traits = ZF_OP_INPLACE, .over = 2, .cpu = ok_kernel}, "over 0x2;"},
        {{.name = "x", .cpu = ok_kernel, .cuda_scratch = pairs_scratch}, "goes with a kernel, cuda"},
    };
    zf_error error = {ZF_OK, ""};
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
        zf_operator two[2] = {{.name = "first", .cpu = ok_kernel}, wrong[k].of};
        zf_graph_desc desc = {t->allocator, two, 2};
        zf_graph *g = zf_graph_new(&desc);
        NEED(t, g, NULL);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        if (!strstr(zf_graph_error(g), wrong[k].says))
            CHECK_TEXT(t, zf_graph_error(g), wrong[k].says);
        CHECK(t, zf_graph_status(g) == ZF_ERR_ARGUMENT);
        CHECK(t, !zf_valid(zf_input(g, "x", ZF_F32, ZF_SCALAR)));
        zf_graph_free(t->deferred[--t->deferred_count].object);
        error = (zf_error){ZF_OK, ""};
        CHECK(t, !zf_graph_parse("%1 = x %2 : f32[]", 17, &desc, &error));
        if (!strstr(error.text, wrong[k].says)) CHECK_TEXT(t, error.text, wrong[k].says);
    }
    {
        zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator, .operator_count = 2});
        NEED(t, g, NULL);
        CHECK_TEXT(t, zf_graph_error(g),
                   "zf_graph_new: operator_count is 2 and operators is NULL; there can be 0 to 256, in "
                   "an array");
        zf_graph_free(g);
    }
}

/* A mistake in a graph of own operators: what it says. */
#define SAYS(t, expression, part)                                                                  \
    do {                                                                                           \
        zf_graph *g = zf_graph_new(&(zf_graph_desc){t->allocator, odd, 10});                        \
        zf_tensor x, y, out;                                                                       \
        NEED(t, g, NULL);                                                                          \
        test_defer(t, (test_cleanup *)zf_graph_free, g);                                           \
        x = zf_param(g, "x", ZF_SHAPE(4, 8), NULL);                                                \
        y = zf_param(g, "y", ZF_SHAPE(3), NULL);                                                   \
        OK(t, zf_graph_status(g), zf_graph_error(g));                                              \
        out = (expression);                                                                        \
        if (zf_valid(out)) zf_autograd(g, zf_sum(out));                                            \
        if (!strstr(zf_graph_error(g), part)) CHECK_TEXT(t, zf_graph_error(g), part);              \
        zf_graph_free(t->deferred[--t->deferred_count].object);                                    \
        (void)x, (void)y;                                                                          \
    } while (0)

TEST(own_operators_misused)
{
    static const zf_operator odd[] = {
        {.name = "plain",
         .most = 2,
         .attributes = "flag:b to:d form:e(a|b) list:l",
         .cpu = ok_kernel},
        {.name = "quiet", .infer = silent_infer, .cpu = ok_kernel},
        {.name = "late", .infer = forgetful_infer, .cpu = ok_kernel},
        {.name = "deep", .infer = deep_infer, .cpu = ok_kernel},
        {.name = "grown", .traits = ZF_OP_ELEMENTWISE, .infer = grown_infer, .cpu = ok_kernel},
        {.name = "rows", .traits = ZF_OP_BY_ROWS, .cpu = ok_kernel},
        {.name = "turned", .traits = ZF_OP_BY_ROWS, .infer = grown_infer, .cpu = ok_kernel},
        {.name = "summed", .grad = scalar_gradient, .cpu = ok_kernel},
        {.name = "lost", .grad = lost_gradient, .cpu = ok_kernel},
        {.name = "partial", .grad = part_gradient, .cpu = ok_kernel}};
#define ONE(name)  zf_apply(g, name, 1, &x, NULL)
#define WITH(...)  zf_apply(g, "plain", 1, &x, ((zf_attribute[4]){__VA_ARGS__}))
#define TWO(a, b)  zf_apply(g, "plain", 2, ((zf_tensor[]){a, b}), NULL)
    SAYS(t, ONE("softplus"),
         "\"softplus\" is no operator of the program's own; zf_graph_desc.operators "
         "lists 10 of them");
    SAYS(t, ONE(NULL), "zf_apply (own.c:");
    SAYS(t, zf_apply(g, "plain", 0, &x, NULL), "operand 0 is no tensor of this graph");
    SAYS(t, zf_apply(g, "plain", 1, NULL, NULL), "operand 0 is no tensor of this graph");
    SAYS(t, TWO(ZF_NONE, x), "plain (own.c:");
    SAYS(t, TWO(x, ZF_NONE), "operand 1 is missing (ZF_NONE)");
    SAYS(t, TWO(x, y), "the operands must have one shape; %1 = f32[4,8], %2 = f32[3]");
    SAYS(t, TWO(x, zf_cast(x, ZF_BF16)), "the operands must have one dtype");
    SAYS(t, zf_apply(g, "plain", 3, ((zf_tensor[]){x, x, x}), NULL), "3 operands, but it takes 1 to 2");
    SAYS(t, TWO(zf_cast(x, ZF_F64), x),
         "the operand must be f32, bf16 or f16; for others the operator needs an infer "
         "function");
    SAYS(t, WITH({.i = 2}), "flag, attribute 0, is neither 0 nor 1");
    SAYS(t, WITH({.i = 0}, {.i = 99}), "to, attribute 1, is no dtype");
    SAYS(t, WITH({.i = 0}, {.i = 0}, {.i = 2}), "form, attribute 2, is the index of no choice");
    SAYS(t, WITH({.i = 0}, {.i = 0}, {.i = 1}, {.list = {NULL, 3}}),
         "list, attribute 3, is a list without elements, or of "
         "less than none");
    SAYS(t, ONE("quiet"), "its infer function returned \"does not fit\"; %1 = f32[4,8]");
    SAYS(t, ONE("late"), "late (own.c:");
    SAYS(t, ONE("late"), "): too long; %1 = f32[4,8]");
    SAYS(t, ONE("deep"), "its infer function made dtype 0 of rank 9");
    SAYS(t, ONE("grown"), "the operator is ELEMENTWISE, and operand 0 does not broadcast to the result, "
                          "f32[5,8]");
    SAYS(t, zf_apply(g, "rows", 1, &(zf_tensor){zf_sum(x).graph, zf_sum(x).id}, NULL),
         "the operator is BY_ROWS, and operand 0 has no rows");
    SAYS(t, ONE("turned"),
         "the operator is BY_ROWS, and the result, f32[5,8], lacks the rows of "
         "operand 0");
    SAYS(t, ONE("plain"), "%3 = plain has no gradient of its own");
    SAYS(t, ONE("summed"), "%3 = summed: its gradient of operand 0 is f32[]; it must be f32[4,8]");
    SAYS(t, ONE("partial"), "its gradient of a part of operand 0 is f32[4,8]; it must be elements 2 and "
                            "up along axis 1 of f32[4,8]");
    SAYS(t, ONE("lost"), "its gradient of operand 0 is no tensor of this graph; it must be f32[4,8]");
}

TEST(own_operators_that_fail_in_silence)
{
    static const zf_operator silent[] = {{.name = "silent", .cpu = silent_kernel}};
    zf_graph *g = zf_graph_new(&(zf_graph_desc){t->allocator, silent, 1});
    zf_program *p;
    zf_tensor x;
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    x = zf_constant(g, ZF_F32, ZF_SHAPE(2), 1);
    zf_output(zf_apply(g, "silent", 1, &x, NULL), "y");
    p = zf_compile(g, NULL);
    if (!p) OK(t, zf_graph_status(g), zf_graph_error(g));
    test_defer(t, (test_cleanup *)zf_program_free, p);
    GIVES(t, zf_step(p), ZF_ERR_IO, zf_program_error(p));
    CHECK_TEXT(t, zf_program_error(p),
               "silent %2: its kernel returned \"input/output error\"");
}

/* x^2 with a gradient that is `by` times the right one. */
static zf_status check_square(const zf_launch *l)
{
    const float *x = l->args[0].data;
    float *y = l->out.data;
    for (int64_t i = 0; i < zf_shape_count(l->out.shape); i++) y[i] = x[i] * x[i];
    return ZF_OK;
}
static void right_gradient(zf_grad *c) { c->dx[0] = zf_scale(zf_mul(c->dy, c->x[0]), 2); }
static void wrong_gradient(zf_grad *c) { c->dx[0] = zf_scale(zf_mul(c->dy, c->x[0]), 2.02); }

static void infinite_gradient(zf_grad *c)
{
    c->dx[0] = zf_div(zf_mul(c->dy, c->x[0]), zf_sub(c->x[0], c->x[0]));
}

static zf_status write_ones(void *user, zf_program *program, zf_graph *graph)
{
    const double ones[4] = {1, 1, 1, 1};
    return zf_write(program, zf_graph_find(graph, user), ones, sizeof ones);
}

/* zf_check_gradient gives the status, and its message has `part`. */
#define CHECKS(t, loss, desc, expected, part)                                                      \
    do {                                                                                           \
        zf_error error_;                                                                           \
        const zf_status status_ = zf_check_gradient(loss, desc, &error_);                          \
        if (t->refused || status_ == ZF_ERR_NOMEM) return;                                         \
        if (!strstr(error_.text, part)) CHECK_TEXT(t, error_.text, part);                          \
        CHECK(t, status_ == (expected) && status_ == error_.status);                               \
    } while (0)

TEST(own_gradients_are_checked)
{
    static const zf_operator square[] = {
        {.name = "square", .grad = right_gradient, .cpu = check_square, .least = 1},
        {.name = "near_square", .grad = wrong_gradient, .cpu = check_square, .least = 1},
        {.name = "far_square", .grad = infinite_gradient, .cpu = check_square, .least = 1}};
    const zf_param_desc normal = {.init = ZF_NORMAL, .std = 1},
                        wide = {.dtype = ZF_F64, .init = ZF_NORMAL, .std = 1};
    zf_check_gradient_desc d = {.allocator = t->allocator};
    zf_graph *g = zf_graph_new(&(zf_graph_desc){t->allocator, square, 3});
    zf_tensor w, v, x, loss;
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    w = zf_param(g, "w", ZF_SHAPE(3, 100), &normal), v = zf_param(g, "v", ZF_SHAPE(4), &wide);
    x = zf_input(g, "x", ZF_F64, ZF_SHAPE(4));
    loss = zf_sum(zf_mul(zf_exp(zf_scale(v, 0.5)), x));
    OK(t, zf_graph_status(g), zf_graph_error(g));
    CHECKS(t, zf_sum(zf_apply(g, "square", 1, &w, NULL)), &d, ZF_OK, "");
    CHECKS(t, zf_sum(zf_apply(g, "near_square", 1, &w, NULL)), &d, ZF_ERR_MISMATCH,
           "zf_check_gradient: element ");
    CHECKS(t, zf_sum(zf_apply(g, "near_square", 1, &w, NULL)), &d, ZF_ERR_MISMATCH,
           " of \"w\": the gradient is ");
    CHECKS(t, zf_sum(zf_apply(g, "near_square", 1, &w, NULL)), &d, ZF_ERR_MISMATCH,
           ", differences give ");
    CHECKS(t, zf_sum(zf_apply(g, "far_square", 1, &w, NULL)), &d, ZF_ERR_MISMATCH,
           "element 0 of \"w\": the gradient is ");
    CHECKS(t, loss, &d, ZF_ERR_STAGE, "zf_check_gradient: ");
    d.write = write_ones, d.user = (void *)(uintptr_t) "x";
    CHECKS(t, loss, &d, ZF_OK, "");
    d.write = NULL;
    CHECKS(t, zf_sum(zf_add(w, zf_random_normal(w, 0, 1))), &d, ZF_ERR_ARGUMENT,
           " in the next; it must not draw random numbers");
    CHECKS(t, zf_mul(w, w), &d, ZF_ERR_SHAPE, "it must be one float");
    CHECKS(t, ZF_NONE, &d, ZF_ERR_ARGUMENT, "the loss is no tensor");
    d.most = -1;
    CHECKS(t, loss, &d, ZF_ERR_ARGUMENT, "most -1 must be 0 or above");
    OK(t, zf_graph_status(g), zf_graph_error(g));
}
