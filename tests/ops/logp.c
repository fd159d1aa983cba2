/* head_logp and its gradient against the graph that they replace: product, bias, logsumexp,
 * cross_entropy, in f64. */
#include "../support/test.h"

enum { MOST_ROWS = 700 };

typedef struct head {
    int64_t rows, classes, width;
    zf_dtype dtype; /* of x, w and the bias */
    bool no_bias, plain;
    double temperature;
    int ignored; /* every which row has no label; 0: none, 1: all */
    int only;    /* only this row has a label; 0: by `ignored` */
} head;

/* Results as doubles. */
enum { LOGP, ENTROPY, BEST, DX, DW, DB, RESULTS };
static const char *const names[RESULTS] = {"logp", "entropy", "best", "dx", "dw", "db"};

typedef struct session {
    zf_graph *graph;
    zf_backend *cpu;
    zf_program *program;
    int64_t counts[RESULTS];
    double *values[RESULTS];
    zf_error error;
} session;

static void session_close(void *object)
{
    session *s = object;
    zf_program_free(s->program);
    zf_backend_free(s->cpu);
    zf_graph_free(s->graph);
    for (int k = 0; k < RESULTS; k++) free(s->values[k]);
    *s = (session){.graph = NULL};
}

/* By the builders; the plain graph as its definition says. */
static void build(zf_graph *g, const head *h)
{
    const zf_dtype wide = h->dtype == ZF_F64 ? ZF_F64 : ZF_F32;
    const zf_param_desc of = {.dtype = h->dtype};
    zf_tensor x = zf_param(g, "x", ZF_SHAPE(h->rows, h->width), &of);
    zf_tensor w = zf_param(g, "w", ZF_SHAPE(h->classes, h->width), &of);
    zf_tensor b = h->no_bias ? ZF_NONE : zf_param(g, "b", ZF_SHAPE(h->classes), &of);
    zf_tensor labels = zf_input(g, "labels", ZF_I32, ZF_SHAPE(h->rows));
    zf_tensor by = zf_input(g, "by", wide, ZF_SHAPE(h->rows)), logp, entropy, best;
    if (h->plain) {
        zf_tensor z = zf_scale(zf_cast(zf_linear(x, w, b), wide), 1 / h->temperature);
        zf_tensor log_p = zf_log_softmax(z), zero = zf_constant(g, wide, ZF_SCALAR, 0);
        zf_tensor none = zf_constant(g, ZF_I32, ZF_SCALAR, -100);
        zf_tensor ignored = zf_equal(labels, none);
        zf_tensor hot = zf_input(g, "hot", wide, ZF_SHAPE(h->rows, h->classes));
        const zf_reduce_desc last = {.axis = 1};
        zf_tensor row = zf_reshape(ignored, ZF_SHAPE(h->rows, 1));
        logp = zf_where(ignored, zero, zf_sum_ex(zf_mul(hot, log_p), &last));
        entropy = zf_neg(zf_sum_ex(zf_where(row, zero, zf_mul(zf_exp(log_p), log_p)), &last));
        best = zf_where(ignored, zf_constant(g, ZF_I32, ZF_SCALAR, -1), zf_argmax_ex(z, &last));
    } else {
        logp = zf_head_logp(x, w, b, labels, &(zf_head_desc){.temperature = h->temperature});
        entropy = zf_head_entropy(logp), best = zf_head_argmax(logp);
    }
    zf_output(logp, "logp"), zf_output(entropy, "entropy"), zf_output(best, "best");
    zf_autograd(g, zf_sum(zf_mul(logp, by)));
    zf_output(zf_gradient(g, x), "dx"), zf_output(zf_gradient(g, w), "dw");
    if (!h->no_bias) zf_output(zf_gradient(g, b), "db");
}

/* Element i of an operand, the same for every dtype: bf16 holds it. */
static double drawn(const char *name, int64_t i)
{
    uint64_t x = (uint64_t)i * 0x9e3779b97f4a7c15u + (uint64_t)name[0] * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 30) * 0x94d049bb133111ebu;
    return ((double)(x >> 57) - 63.5) / 64;
}

static zf_status write_floats(session *s, const char *name)
{
    zf_tensor to = zf_graph_find(s->graph, name);
    const int64_t count = zf_shape_count(zf_tensor_shape(to));
    double *x = calloc((size_t)count + 1, sizeof *x);
    unsigned char *raw = calloc((size_t)count + 1, sizeof *x);
    zf_status status = x && raw ? ZF_OK : ZF_ERR_NOMEM;
    for (int64_t i = 0; i < count && !status; i++) x[i] = drawn(name, i);
    if (!status) zf_convert(raw, zf_tensor_dtype(to), x, ZF_F64, (size_t)count);
    if (!status) status = zf_write(s->program, to, raw, zf_tensor_bytes(to));
    free(x), free(raw);
    return status;
}

static zf_status write_all(session *s, const head *h)
{
    int32_t labels[MOST_ROWS];
    zf_status status;
    for (int64_t r = 0; r < h->rows; r++) {
        const bool ignored = h->only ? r != h->only : h->ignored && r % h->ignored == 0;
        labels[r] = ignored ? -100 : (int32_t)((r * 37 + 5) % h->classes);
    }
    status = zf_write(s->program, zf_graph_find(s->graph, "labels"), labels,
                      (size_t)h->rows * sizeof *labels);
    if (!status) status = write_floats(s, "x");
    if (!status) status = write_floats(s, "w");
    if (!status && !h->no_bias) status = write_floats(s, "b");
    if (!status && h->plain) {
        double *hot = calloc((size_t)(h->rows * h->classes) + 1, sizeof *hot);
        for (int64_t r = 0; r < h->rows && hot; r++)
            if (labels[r] >= 0) hot[r * h->classes + labels[r]] = 1;
        status = hot ? zf_write(s->program, zf_graph_find(s->graph, "hot"), hot,
                                (size_t)(h->rows * h->classes) * sizeof *hot)
                     : ZF_ERR_NOMEM;
        free(hot);
    }
    return status ? status : write_floats(s, "by");
}

static zf_status read_all(session *s)
{
    for (int k = 0; k < RESULTS; k++) {
        zf_tensor from = zf_graph_find(s->graph, names[k]);
        const int64_t count = zf_valid(from) ? zf_shape_count(zf_tensor_shape(from)) : 0;
        void *raw = calloc((size_t)count + 1, 8);
        zf_status status = ZF_OK;
        s->values[k] = calloc((size_t)count + 1, sizeof(double));
        s->counts[k] = count;
        if (!raw || !s->values[k]) status = ZF_ERR_NOMEM;
        if (!status && count) status = zf_read(s->program, from, raw, zf_tensor_bytes(from));
        if (!status && count)
            zf_convert(s->values[k], ZF_F64, raw, zf_tensor_dtype(from), (size_t)count);
        free(raw);
        if (status) return status;
    }
    return ZF_OK;
}

static void run(test *t, session *s, const head *h, zf_cpu_desc cpu)
{
    zf_status status;
    *s = (session){.graph = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator})};
    CHECK(t, s->graph);
    build(s->graph, h);
    zf_simplify(s->graph);
    cpu.allocator = t->allocator;
    CHECK(t, s->cpu = zf_cpu_backend(&cpu, &s->error));
    s->program =
        zf_compile(s->graph, &(zf_compile_desc){.backend = s->cpu, .seed = 1, .poison = true});
    OK(t, zf_graph_status(s->graph), zf_graph_error(s->graph));
    status = write_all(s, h);
    if (!status) status = zf_step(s->program);
    if (!status) status = read_all(s);
    OK(t, status, zf_program_error(s->program));
}

/* The sum of squared differences beyond `tiny`, by the sum of squares. */
static double error_of(const session *got, const session *exact, int k, double tiny)
{
    double off = 0, all = 0;
    for (int64_t i = 0; i < exact->counts[k]; i++) {
        const double d = fmax(0, fabs(got->values[k][i] - exact->values[k][i]) - tiny);
        off += d * d, all += exact->values[k][i] * exact->values[k][i];
    }
    return all > 0 ? off / all : off;
}

static const head shapes[] = {{1, 1, 1, .temperature = 1},
                              {1, 7, 3, .temperature = 0.5},
                              {7, 513, 33, .temperature = 1, .ignored = 3},
                              {129, 257, 17, .temperature = 1.25, .ignored = 2},
                              {128, 256, 16, .temperature = 1, .ignored = 4, .no_bias = true},
                              {300, 1031, 48, .temperature = 0.75, .ignored = 7},
                              {520, 700, 24, .temperature = 1, .ignored = 6},
                              {20, 4500, 40, .temperature = 1, .ignored = 6},
                              {33, 1300, 530, .temperature = 4, .ignored = 8},
                              {4, 9, 3, .temperature = 1, .ignored = 1}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };
static const char *const isas[] = {"portable", "avx2", "avx512", "neon"};

/* Errors, squared and by the squares: of f64 some roundings; of f32 sums of up to 4500 terms.
 * Gradients of f16 are rounded to 2^-11, small ones to 2^-25; those of bf16 to 2^-8 twice, since dz
 * is, too. Operands are the same numbers in all. */
TEST_ONCE(head_logp_is_the_plain_graph)
{
    static const struct {
        zf_dtype dtype;
        double scores, gradients, tiny;
    } ways[] = {{ZF_F64, 1e-28, 1e-28, 0},
                {ZF_F32, 1e-11, 1e-10, 0},
                {ZF_F16, 1e-11, 0x1p-22, 0x1p-25},
                {ZF_BF16, 1e-11, 0x1p-14, 0}};
    static session exact, got;
    test_defer(t, session_close, &exact);
    test_defer(t, session_close, &got);
    for (int n = 0; n < SHAPES; n++) {
        head h = shapes[n];
        h.dtype = ZF_F64, h.plain = true;
        run(t, &exact, &h, (zf_cpu_desc){.threads = 2});
        h.plain = false;
        for (int way = 0; way < 4; way++)
            for (int isa = 0; isa < 4; isa++) {
                const int number = n + way + isa; /* half of the large ones */
                if (n > 4 && (number % 2 || !TEST_TAKES(number / 2))) continue;
                if (way == 0 && isa) continue; /* f64 is the same for all */
                if (!test_has_isa(t, isas[isa])) continue;
                h.dtype = ways[way].dtype;
                run(t, &got, &h, (zf_cpu_desc){.threads = 2, .isa = isas[isa]});
                for (int k = 0; k < RESULTS; k++) {
                    CHECK(t, got.counts[k] == exact.counts[k]);
                    for (int64_t i = 0; k == LOGP && i < got.counts[k]; i++)
                        CHECK(t, got.values[k][i] <= 0);
                    CHECK_NEAR(t, error_of(&got, &exact, k, k < DX ? 0 : ways[way].tiny), 0,
                               k < DX ? ways[way].scores : ways[way].gradients);
                }
                session_close(&got);
            }
        session_close(&exact);
    }
}

/* The bits of a row do not depend on other rows, on their number, on threads. */
TEST_ONCE(head_logp_of_a_row_does_not_depend_on_others)
{
    static const zf_dtype dtypes[] = {ZF_F32, ZF_F16, ZF_BF16};
    static session all, some;
    test_defer(t, session_close, &all);
    test_defer(t, session_close, &some);
    for (int d = 0; d < 3; d++)
        for (int isa = 0; isa < 4; isa++) {
            head h = {300, 1031, 48, .dtype = dtypes[d], .temperature = 0.75, .ignored = 0};
            if (!test_has_isa(t, isas[isa])) continue;
            run(t, &all, &h, (zf_cpu_desc){.threads = 2, .isa = isas[isa]});
            for (int turn = 0; turn < 4; turn++) {
                head other = h;
                int64_t row = 33;
                other.ignored = turn == 0 ? 2 : 0, other.only = turn == 1 ? (int)row : 0;
                other.rows = turn == 2 ? 40 : h.rows;
                run(t, &some, &other,
                    (zf_cpu_desc){.threads = turn == 3 ? 1 : 2, .isa = isas[isa]});
                for (int k = 0; k < RESULTS; k++) CHECK(t, some.values[k] && all.values[k]);
                for (int k = LOGP; k <= BEST; k++)
                    CHECK(t, some.values[k][row] == all.values[k][row]);
                CHECK(t, !memcmp(some.values[DX] + row * h.width, all.values[DX] + row * h.width,
                                 (size_t)h.width * sizeof(double)));
                if (turn == 3)
                    CHECK(t, !memcmp(some.values[DW], all.values[DW],
                                     (size_t)all.counts[DW] * sizeof(double)));
                session_close(&some);
            }
            session_close(&all);
        }
}

/* Nothing of size rows x classes: 64 MiB above parameters and gradients, where the logits have
 * 2 GiB. The plan alone, which the allocator's count equals (tests/programs/plan.c). */
TEST_ONCE(head_logp_keeps_no_logits)
{
    static const zf_dtype dtypes[] = {ZF_F32, ZF_BF16};
    for (int d = 0; d < 2; d++) {
        zf_error error;
        zf_plan plan;
        const head h = {4096, 131072, 64, .dtype = dtypes[d], .temperature = 1, .no_bias = true};
        zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
        zf_backend *cpu =
            zf_cpu_backend(&(zf_cpu_desc){.threads = 2, .allocator = t->allocator}, &error);
        const double numbers = (double)((h.rows + h.classes) * h.width),
                     each = (double)zf_dtype_size(h.dtype);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        test_defer(t, (test_cleanup *)zf_backend_free, cpu);
        build(g, &h);
        zf_simplify(g);
        zf_memory(g, &(zf_memory_desc){.backend = cpu});
        OK(t, zf_graph_plan(g, &plan), zf_graph_error(g));
        /* parameters, gradients in f32 and in the dtype of parameters */
        CHECK(t, (double)plan.peak_bytes < numbers * (2 * each + 4) + (64 << 20));
    }
}

TEST(head_logp_explains_mistakes)
{
    static const struct {
        int what;
        const char *error;
    } bad[] = {
        {0, ": the temperature is -1; it must be above 0 and finite"},
        {1, ": it is the result of input; it must be that of zf_head_logp"},
        {2, ": x [p, k] and w [n, k] are needed"},
        {3, ": the labels must be i32 or i64"},
        {4, ": the bias must be [9]"},
        {5, "has no gradient"},
    };
    for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) {
        zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
        NEED(t, g, NULL);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        zf_tensor x = zf_param(g, "x", ZF_SHAPE(4, bad[k].what == 2 ? 7 : 8), NULL);
        zf_tensor w = zf_param(g, "w", ZF_SHAPE(9, 8), NULL);
        zf_tensor b = zf_param(g, "b", ZF_SHAPE(bad[k].what == 4 ? 8 : 9), NULL);
        zf_tensor labels = zf_input(g, "labels", bad[k].what == 3 ? ZF_F32 : ZF_I32, ZF_SHAPE(4));
        const zf_head_desc desc = {.temperature = bad[k].what == 0 ? -1 : 0};
        if (bad[k].what == 1) zf_head_entropy(labels);
        else {
            zf_tensor logp = zf_head_logp(x, w, b, labels, &desc);
            if (bad[k].what == 5) zf_autograd(g, zf_sum(zf_head_entropy(logp)));
        }
        CHECK(t, zf_graph_status(g));
        if (!strstr(zf_graph_error(g), bad[k].error))
            CHECK_TEXT(t, zf_graph_error(g), bad[k].error);
    }
}
