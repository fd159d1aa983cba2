/* attention that looks at less, block masks, documents, windows, against sums over all keys in double
 * precision. */
#include "test.h"

typedef struct form {
    const char *layout; /* as zf_block_mask_parse takes it; NULL: no block mask */
    int64_t tokens, heads, kv, d, window;
    bool packed, causal, documents, bias;
    double p;
} form;

enum { BATCH = 2, MOST = 1 << 17, RESULTS = 4 };

static const char *const names[] = {"q", "k", "v"};

typedef struct answer {
    int64_t count[RESULTS]; /* of y, dq, dk and dv; of the packed form y and dqkv */
    double value[RESULTS][MOST];
} answer;

typedef struct session {
    zf_graph *graph;
    zf_backend *cpu;
    zf_program *program;
    zf_block_mask *mask;
    zf_error error;
} session;

static session s;
static answer got, exact;

static void session_close(void *unused)
{
    (void)unused;
    zf_program_free(s.program), zf_backend_free(s.cpu), zf_graph_free(s.graph);
    zf_block_mask_free(s.mask);
    s = (session){.graph = NULL};
}

static int64_t kv_of(const form *f) { return f->kv ? f->kv : f->heads; }

/* The last dimension of q, k or v, or of all together. */
static int64_t width_of(const form *f, int k)
{
    return f->d * (f->packed ? f->heads + 2 * kv_of(f) : k ? kv_of(f) : f->heads);
}

static double between(uint64_t i, double low, double high)
{
    uint64_t x = i * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return low + (high - low) * ((double)(x >> 11) * 0x1p-53);
}

/* ------------------------------------------------------------------------------------ values */

/* Documents of 1, 2, 4, ... tokens and a rest, in another order in the second row. */
static int32_t segment_of(const form *f, int64_t b, int64_t t)
{
    int32_t number = 0;
    int64_t at = b ? f->tokens - 1 - t : t;
    while (at + 1 >= (int64_t)2 << number && number < 6) number++;
    return number + 5;
}

static bool sees(const form *f, int64_t b, int64_t h, int64_t m, int64_t n)
{
    const int64_t block = s.mask ? zf_block_mask_info_of(s.mask).block : 1;
    return (!s.mask || zf_block_mask_sees(s.mask, h, m / block, n / block)) &&
           (!f->causal || n <= m) && (!f->window || n > m - f->window) &&
           (!f->documents || segment_of(f, b, m) == segment_of(f, b, n));
}

static double rounded(double x, zf_dtype dtype)
{
    char room[8];
    zf_convert(room, dtype, &x, ZF_F64, 1);
    zf_convert(&x, ZF_F64, room, dtype, 1);
    return x;
}

/* Element i of token t of example b: of q, k or v (part) of head h. */
static double value_of(const form *f, zf_dtype dtype, int part, int64_t b, int64_t t, int64_t h,
                       int64_t i)
{
    const double most = part == 2 ? 1 : pow((double)f->d, -0.25);
    const uint64_t at = (uint64_t)(((b * f->tokens + t) * 3 + part) * 64 + h * f->d + i);
    return rounded(between(at, -most, most), dtype);
}

static double weight_of(const form *f, zf_dtype dtype, int64_t b, int64_t t, int64_t column)
{
    const uint64_t at = (uint64_t)((b * f->tokens + t) * 64 + column + 7000000);
    return rounded(between(at, -1, 1) / (double)f->d, dtype);
}

static double bias_of(const form *f, zf_dtype dtype, int64_t m, int64_t n)
{
    return f->bias ? rounded(between((uint64_t)(m * f->tokens + n + 5000000), -1, 1), dtype) : 0;
}

static double values[MOST];
static unsigned char bytes[MOST * 8];

static zf_status put(const char *name, const double *from)
{
    const zf_tensor to = zf_graph_find(s.graph, name);
    const size_t count = (size_t)zf_shape_count(zf_tensor_shape(to));
    zf_convert(bytes, zf_tensor_dtype(to), from, ZF_F64, count);
    return zf_write(s.program, to, bytes, zf_tensor_bytes(to));
}

static zf_status write_form(const form *f, zf_dtype dtype)
{
    const int64_t rows = BATCH * f->tokens, hidden = f->heads * f->d;
    zf_status status = ZF_OK;
    for (int k = 0; k < (f->packed ? 1 : 3) && !status; k++) {
        const int64_t width = width_of(f, k);
        for (int64_t i = 0; i < rows * width; i++) {
            int64_t row = i / width, at = i % width;
            int part = k;
            if (f->packed && at >= hidden) {
                part = 1 + (int)((at - hidden) / (kv_of(f) * f->d));
                at = (at - hidden) % (kv_of(f) * f->d);
            }
            values[i] =
                value_of(f, dtype, part, row / f->tokens, row % f->tokens, at / f->d, at % f->d);
        }
        status = put(names[k], values);
    }
    for (int64_t i = 0; i < rows * hidden; i++)
        values[i] = weight_of(f, dtype, i / hidden / f->tokens, i / hidden % f->tokens, i % hidden);
    if (!status) status = put("w", values);
    for (int64_t i = 0; i < f->tokens * f->tokens && f->bias; i++)
        values[i] = bias_of(f, dtype, i / f->tokens, i % f->tokens);
    if (!status && f->bias) status = put("bias", values);
    for (int64_t i = 0; i < rows && f->documents; i++)
        values[i] = segment_of(f, i / f->tokens, i % f->tokens);
    if (!status && f->documents) status = put("segments", values);
    return status;
}

/* ------------------------------------------------------------------------------------ graphs */

static zf_status make_mask(test *t, const form *f)
{
    zf_block_mask_desc d = {
        .allocator = t->allocator, .tokens = f->tokens, .heads = f->heads, .causal = f->causal};
    static char text[600];
    if (!f->layout) return ZF_OK;
    snprintf(text, sizeof text, "%s", f->layout);
    if (zf_block_mask_parse(text, &d, &s.error)) return s.error.status;
    s.mask = zf_block_mask_new(&d, &s.error);
    return s.mask ? ZF_OK : s.error.status;
}

/* y, with the sum of y times the input "w" as the loss, and its gradients. */
static zf_status make_graph(test *t, const form *f, zf_dtype dtype)
{
    zf_attention_desc d = {.heads = f->heads,
                           .kv_heads = f->kv,
                           .dropout = f->p,
                           .causal = f->causal,
                           .window = f->window};
    zf_tensor x[3] = {ZF_NONE, ZF_NONE, ZF_NONE}, y;
    zf_graph *g = s.graph = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    if (!g) return ZF_ERR_NOMEM;
    for (int k = 0; k < (f->packed ? 1 : 3); k++)
        x[k] = zf_param(g, names[k], ZF_SHAPE(BATCH, f->tokens, width_of(f, k)),
                        &(zf_param_desc){.dtype = dtype});
    if (f->bias) d.mask = zf_input(g, "bias", dtype, ZF_SHAPE(f->tokens, f->tokens));
    if (f->documents)
        d.documents = zf_documents(zf_input(g, "segments", ZF_I32, ZF_SHAPE(BATCH, f->tokens)));
    if (s.mask) d.blocks = zf_block_mask_lists(g, s.mask);
    y = zf_output(zf_attention(x[0], x[1], x[2], &d), "y");
    zf_autograd(g, zf_sum(zf_mul(y, zf_input(g, "w", dtype, zf_tensor_shape(y)))));
    for (int k = 0; k < (f->packed ? 1 : 3); k++)
        zf_output(zf_gradient(g, x[k]), k == 0 ? "d0" : k == 1 ? "d1" : "d2");
    return zf_graph_status(g);
}

static zf_status take(const char *name, int part)
{
    const zf_tensor from = zf_graph_find(s.graph, name);
    got.count[part] = zf_shape_count(zf_tensor_shape(from));
    if (zf_read(s.program, from, bytes, zf_tensor_bytes(from))) return ZF_ERR_ARGUMENT;
    zf_convert(got.value[part], ZF_F64, bytes, zf_tensor_dtype(from), (size_t)got.count[part]);
    return ZF_OK;
}

/* Computes a form; the results are in `got`. The session stays open. */
static zf_status run_form(test *t, const form *f, zf_dtype dtype, zf_cpu_desc cpu)
{
    zf_status status;
    session_close(NULL);
    cpu.allocator = t->allocator;
    status = make_mask(t, f);
    if (!status) status = make_graph(t, f, dtype);
    if (status) {
        if (s.graph) snprintf(s.error.text, sizeof s.error.text, "%s", zf_graph_error(s.graph));
        return status;
    }
    s.cpu = zf_cpu_backend(&cpu, &s.error);
    if (!s.cpu) return s.error.status;
    s.program =
        zf_compile(s.graph, &(zf_compile_desc){.backend = s.cpu, .seed = 3, .poison = true});
    if (!s.program) {
        snprintf(s.error.text, sizeof s.error.text, "%s", zf_graph_error(s.graph));
        return zf_graph_status(s.graph);
    }
    status = write_form(f, dtype);
    if (!status) status = zf_step(s.program);
    if (!status) status = take("y", 0);
    for (int k = 0; k < (f->packed ? 1 : 3) && !status; k++)
        status = take(k == 0 ? "d0" : k == 1 ? "d1" : "d2", 1 + k);
    if (status) snprintf(s.error.text, sizeof s.error.text, "%s", zf_program_error(s.program));
    return status;
}

/* ------------------------------------------------------------------------------- the definition */

static double *result(const form *f, int part, int64_t b, int64_t t, int64_t h)
{
    const int64_t row = b * f->tokens + t;
    if (!part || !f->packed)
        return exact.value[part] + row * width_of(f, part > 1) * !f->packed +
               (!part ? row * f->heads * f->d * f->packed : 0) + h * f->d;
    return exact.value[1] + row * width_of(f, 0) +
           (part > 1 ? f->heads + (part - 2) * kv_of(f) : 0) * f->d + h * f->d;
}

/* q, k, v and w as the kernels read them: of rows of a head, d numbers each. */
static double read_as[4][1 << 15];

static double *read_at(const form *f, int part, int64_t b, int64_t t, int64_t h)
{
    const int64_t heads = part == 1 || part == 2 ? kv_of(f) : f->heads;
    return read_as[part] + ((b * f->tokens + t) * heads + h) * f->d;
}

static void read_inputs(const form *f, zf_dtype dtype)
{
    for (int part = 0; part < 4; part++)
        for (int64_t b = 0; b < BATCH; b++)
            for (int64_t t = 0; t < f->tokens; t++)
                for (int64_t h = 0; h < (part == 1 || part == 2 ? kv_of(f) : f->heads); h++)
                    for (int64_t i = 0; i < f->d; i++)
                        read_at(f, part, b, t, h)[i] =
                            part == 3 ? weight_of(f, dtype, b, t, h * f->d + i)
                                      : value_of(f, dtype, part, b, t, h, i);
}

/* Row m of head h of example b: y, and what it adds to gradients. Adds its probabilities to those of
 * keys. */
static void define_row(const form *f, zf_dtype dtype, int64_t b, int64_t h, int64_t m, double *key)
{
    static double p[4096];
    const int64_t group = f->heads / kv_of(f), kv = h / group, d = f->d;
    const double scale = 1 / sqrt((double)d);
    const double *q = read_at(f, 0, b, m, h), *w = read_at(f, 3, b, m, h);
    double sum = 0, delta = 0, *y = result(f, 0, b, m, h), *dq = result(f, 1, b, m, h);
    for (int64_t n = 0; n < f->tokens; n++) {
        const double *k = read_at(f, 1, b, n, kv);
        double score = 0;
        p[n] = 0;
        if (!sees(f, b, h, m, n)) continue;
        for (int64_t i = 0; i < d; i++) score += scale * q[i] * k[i];
        sum += p[n] = exp(score + bias_of(f, dtype, m, n));
    }
    for (int64_t n = 0; n < f->tokens; n++) {
        p[n] = sum > 0 ? p[n] / sum : 0;
        key[n] += p[n];
        for (int64_t i = 0; i < d && p[n] > 0; i++)
            y[i] += p[n] * read_at(f, 2, b, n, kv)[i];
    }
    for (int64_t i = 0; i < d; i++) delta += y[i] * w[i];
    for (int64_t n = 0; n < f->tokens; n++) {
        double *dk = result(f, 2, b, n, kv), *dv = result(f, 3, b, n, kv), dp = 0, ds;
        if (p[n] == 0) continue;
        for (int64_t i = 0; i < d; i++) dp += w[i] * read_at(f, 2, b, n, kv)[i];
        ds = p[n] * (dp - delta) * scale;
        for (int64_t i = 0; i < d; i++) {
            dq[i] += ds * read_at(f, 1, b, n, kv)[i];
            dk[i] += ds * q[i];
            dv[i] += p[n] * w[i];
        }
    }
}

/* Computes `exact`; returns the largest sum of probabilities of a key. */
static double define(const form *f, zf_dtype dtype)
{
    static double key[4096];
    double most = 1;
    memset(&exact, 0, sizeof exact);
    read_inputs(f, dtype);
    for (int64_t b = 0; b < BATCH; b++)
        for (int64_t h = 0; h < f->heads; h++) {
            if (h % (f->heads / kv_of(f)) == 0) memset(key, 0, sizeof key);
            for (int64_t m = 0; m < f->tokens; m++) define_row(f, dtype, b, h, m, key);
            for (int64_t n = 0; n < f->tokens; n++) most = fmax(most, key[n]);
        }
    return most;
}

/* How far results may be off, as derived in tests/attention.c; a key's probabilities sum to `keys` */
static double bound_of(const form *f, zf_dtype dtype, int part, double keys)
{
    const double u = dtype == ZF_F64 ? 0x1p-53 : 0x1p-24, d = (double)f->d, n = (double)f->tokens;
    const double h = dtype == ZF_BF16 ? 0x1.01p-9 : dtype == ZF_F16 ? 0x1.01p-12 : 0;
    const double e = 2 * (d + 16 + n / 4), side = pow(d, -0.75);
    const double y = u * (e + n) + 2 * h, dq = side * (4 * u * (e + d + n) + 8 * h);
    if (part == 0) return y;
    if (f->packed) return fmax(dq, keys * (4 * u * (e + d + n) + 8 * h));
    return part == 1 ? dq : part == 2 ? keys * dq : keys / d * y;
}

static void compare(test *t, int line, const form *f, zf_dtype dtype, double keys)
{
    for (int part = 0; part < (f->packed ? 2 : 4); part++)
        for (int64_t i = 0; i < got.count[part]; i++) {
            const double bound = bound_of(f, dtype, part, keys);
            char text[256];
            if (fabs(got.value[part][i] - exact.value[part][i]) <= bound) continue;
            snprintf(text, sizeof text,
                     "%s %s of %lld: result %d [%lld] is %.9g, not %.9g, bound %g",
                     f->layout ? f->layout : "", zf_dtype_name(dtype), (long long)f->tokens, part,
                     (long long)i, got.value[part][i], exact.value[part][i], bound);
            test_fail(t, __FILE__, line, "attention", text);
            return;
        }
}

/* -------------------------------------------------------------------------------------- tests */

#define FORM(...)                                                                                  \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

static const form forms[] = {
    FORM(.layout = "fixed,local=2", .tokens = 100, .heads = 2, .d = 16, .packed = true,
         .causal = true),
    FORM(.layout = "fixed,local=4,per_head,patterns=3,block=16", .tokens = 160, .heads = 3, .d = 5),
    FORM(.layout = "bigbird,block=32,random=1,seed=5,per_head", .tokens = 257, .heads = 4, .kv = 2,
         .d = 8, .documents = true),
    FORM(.layout = "variable,block=64,windows=1+2,globals=1", .tokens = 200, .heads = 1, .d = 24,
         .bias = true),
    FORM(.layout = "longformer,width=1,globals=3", .tokens = 130, .heads = 2, .kv = 1, .d = 16,
         .causal = true, .packed = true, .documents = true),
    FORM(.layout = "window,block=128", .tokens = 300, .heads = 2, .kv = 1, .d = 16, .window = 70,
         .causal = true, .bias = true),
    FORM(.tokens = 200, .heads = 2, .d = 16, .packed = true, .documents = true),
    FORM(.tokens = 257, .heads = 2, .kv = 1, .d = 7, .documents = true, .causal = true),
    FORM(.tokens = 300, .heads = 2, .d = 16, .documents = true, .causal = true, .window = 33,
         .bias = true),
};

TEST_ONCE(attention_of_blocks_and_documents_agrees_with_its_definition)
{
    static const zf_dtype dtypes[] = {ZF_F64, ZF_F32, ZF_BF16, ZF_F16};
    static const char *const isas[] = {NULL, "portable", "avx2"};
    test_defer(t, session_close, NULL);
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++)
        for (int k = 0; k < 4; k++) {
            const zf_dtype dtype = dtypes[k];
            double keys = 0;
            for (int isa = 0; isa < (k ? 3 : 1); isa++) {
                if (isa && ((k + isa + (int)i) % TEST_ONE_IN || !test_has_isa(t, isas[isa])))
                    continue;
                OK(t, run_form(t, &forms[i], dtype, (zf_cpu_desc){.threads = 2, .isa = isas[isa]}),
                   s.error.text);
                if (!isa) keys = define(&forms[i], dtype);
                compare(t, __LINE__, &forms[i], dtype, keys);
            }
        }
}

/* Dropout is that of the kernels in double precision, which is by element. */
TEST_ONCE(attention_of_blocks_drops_by_element)
{
    test_defer(t, session_close, NULL);
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        form f = forms[i];
        f.p = 0.25;
        OK(t, run_form(t, &f, ZF_F64, (zf_cpu_desc){.threads = 1}), s.error.text);
        exact = got;
        for (int64_t e = 0; e < exact.count[1]; e++) /* inputs were rounded to f64 */
            CHECK(t, isfinite(exact.value[1][e]));
        OK(t, run_form(t, &f, ZF_F32, (zf_cpu_desc){.threads = 2}), s.error.text);
        /* f32 inputs differ from f64 by a rounding each: as much again as the bound, and 1 / (1 - p)
         * twice */
        for (int part = 0; part < (f.packed ? 2 : 4); part++)
            for (int64_t e = 0; e < got.count[part]; e++)
                CHECK_NEAR(t, got.value[part][e], exact.value[part][e],
                           4 * bound_of(&f, ZF_F32, part, (double)f.tokens));
    }
}

TEST_ONCE(attention_of_blocks_has_one_result_for_any_threads)
{
    static const zf_dtype dtypes[] = {ZF_F32, ZF_BF16, ZF_F16};
    test_defer(t, session_close, NULL);
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++)
        for (int k = 0; k < 12; k++) {
            form f = forms[i];
            const int threads = 1 + k % 4 * 2;
            if ((k / 4 + (int)i) % TEST_ONE_IN) continue;
            f.p = 0.1;
            OK(t, run_form(t, &f, dtypes[k / 4], (zf_cpu_desc){.threads = threads}), s.error.text);
            if (threads == 1) exact = got;
            for (int part = 0; part < (f.packed ? 2 : 4); part++)
                CHECK(t, !memcmp(got.value[part], exact.value[part],
                                 (size_t)got.count[part] * sizeof(double)));
        }
}

/* A row of blocks that lists nothing gives 0 and gradients of 0, and a column that nobody lists. */
TEST(attention_of_no_blocks_is_zero)
{
    static const zf_dtype dtypes[] = {ZF_F64, ZF_F32, ZF_BF16};
    const form f = {.tokens = 48, .heads = 1, .d = 16};
    char layout[600], path[512];
    form with = f;
    FILE *file;
    test_defer(t, session_close, NULL);
    snprintf(path, sizeof path, "%s", test_path("rows.txt"));
    file = fopen(path, "w");
    CHECK(t, file && fputs("110\n000\n010\n", file) > 0);
    fclose(file);
    snprintf(layout, sizeof layout, "file,path=%s", path);
    with.layout = layout;
    for (int k = 0; k < 3; k++) {
        OK(t, run_form(t, &with, dtypes[k], (zf_cpu_desc){.threads = 2}), s.error.text);
        compare(t, __LINE__, &with, dtypes[k], define(&with, dtypes[k]));
        for (int64_t i = 0; i < 16 * 16; i++) {
            const int64_t row = i / 16 + 16, column = i / 16 + 32, at = i % 16;
            CHECK(t, got.value[0][row * 16 + at] == 0 && got.value[1][row * 16 + at] == 0);
            CHECK(t, got.value[2][column * 16 + at] == 0 && got.value[3][column * 16 + at] == 0);
        }
    }
    remove(path);
}

/* Documents in one row have the numbers that each has in a row of its own. */
TEST(documents_in_a_row_are_each_alone)
{
    const form f = {.tokens = 200, .heads = 2, .d = 16, .documents = true, .causal = true};
    int64_t begin = 0;
    test_defer(t, session_close, NULL);
    OK(t, run_form(t, &f, ZF_F64, (zf_cpu_desc){.threads = 2}), s.error.text);
    for (int64_t end = 1; end <= 200; end++) {
        if (end < 200 && segment_of(&f, 0, end) == segment_of(&f, 0, begin)) continue;
        for (int64_t m = begin; m < end; m++) { /* sums over its own document alone */
            double sum = 0, y = 0;
            for (int64_t n = begin; n <= m; n++) {
                double score = 0;
                for (int64_t i = 0; i < 16; i++)
                    score +=
                        value_of(&f, ZF_F64, 0, 0, m, 0, i) * value_of(&f, ZF_F64, 1, 0, n, 0, i);
                sum += exp(score / 4), y += exp(score / 4) * value_of(&f, ZF_F64, 2, 0, n, 0, 3);
            }
            CHECK_NEAR(t, got.value[0][m * 32 + 3], y / sum, bound_of(&f, ZF_F64, 0, 1));
        }
        begin = end;
    }
}

/* Two products of each listed block, four backward; lists of half the blocks are half of them. */
TEST(attention_counts_the_blocks_that_are_listed)
{
    const form all = {.tokens = 256, .heads = 2, .d = 16, .layout = "window,block=64,width=4"};
    form half = all;
    zf_plan plan[2];
    half.layout = "window,block=64,width=1";
    test_defer(t, session_close, NULL);
    for (int k = 0; k < 2; k++) {
        session_close(NULL);
        OK(t, make_mask(t, k ? &half : &all), s.error.text);
        OK(t, make_graph(t, k ? &half : &all, ZF_F32), zf_graph_error(s.graph));
        OK(t, zf_graph_plan(s.graph, &plan[k]), zf_graph_error(s.graph));
    }
    /* 14 of 16 blocks, and 4 */
    CHECK(t, plan[0].flops == 12.0 * BATCH * 2 * 14 * 64 * 64 * 16);
    CHECK(t, plan[1].flops == 12.0 * BATCH * 2 * 4 * 64 * 64 * 16);
}

/* ------------------------------------------------------------------------------------ messages */

static const struct {
    const char *lists, *attributes, *message;
} mistakes[] = {
    {"constant {values=[16,1,0,1,0,1,0,0]} : i32[8]", "block=48 layouts=1",
     "attention: block = 48 must be 16, 32, 64 or 128, and layouts = 1 1 or the 2 heads; "},
    {"constant {values=[16,1,0,1,0,1,0,0]} : i32[8]", "block=16 layouts=3",
     "attention: block = 16 must be 16, 32, 64 or 128, and layouts = 3 1 or the 2 heads; "},
    {"constant {values=[16,1,0,1,0,1,1,0]} : i32[8]", "block=16 layouts=1",
     "attention: the blocks, operand 1, are no lists of 1 layouts of 1 blocks; "},
    {"constant {values=[16,1,0,1,0,1,0]} : i32[7]", "block=16 layouts=1",
     "attention: the blocks, operand 1, are no lists of 1 layouts of 1 blocks; "},
    {"constant {values=[16,1,0,2,0,1,0,0]} : i32[8]", "block=16 layouts=1",
     "attention: the blocks, operand 1, are no lists of 1 layouts of 1 blocks; "},
    {"constant {values=[32,1,0,1,0,1,0,0]} : i32[8]", "block=16 layouts=1",
     "attention: the blocks, operand 1, are no lists of 1 layouts of 1 blocks; "},
    {"input \"l\" : i32[8]", "block=16 layouts=1",
     "attention: the blocks, operand 1, must be a constant i32 (zf_block_mask_lists); "},
    {"input \"l\" : i32[2,3]", "documents=true",
     "attention: the documents, operand 1, must be i32[2,3,2] (zf_documents); "},
    {"input \"l\" : f32[2,3,2]", "documents=true",
     "attention: the documents, operand 1, must be i32[2,3,2] (zf_documents); "},
};

TEST(attention_explains_mistakes_of_masks)
{
    for (size_t k = 0; k < sizeof mistakes / sizeof mistakes[0]; k++) {
        char text[512];
        zf_error error = {ZF_OK, ""};
        const char *said;
        zf_graph *g;
        sprintf(text,
                "%%1 = input \"x\" : f32[2,3,12]\n%%2 = %s\n"
                "%%3 = attention %%1, %%2 {heads=2 %s} : f32[2,3,4]\n",
                mistakes[k].lists, mistakes[k].attributes);
        g = zf_graph_parse(text, strlen(text), &(zf_graph_desc){.allocator = t->allocator}, &error);
        zf_graph_free(g);
        if (error.status == ZF_ERR_NOMEM) OK(t, error.status, error.text);
        said = strstr(error.text, "attention: ");
        CHECK(t, said);
        CHECK(t, !strncmp(said, mistakes[k].message, strlen(mistakes[k].message)) ||
                     (printf("%s\n", said), false));
    }
}

TEST(attention_takes_blocks_of_a_mask_alone)
{
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    zf_tensor x;
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    x = zf_input(g, "x", ZF_F32, ZF_SHAPE(2, 3, 12));
    zf_attention(x, ZF_NONE, ZF_NONE,
                 &(zf_attention_desc){.heads = 2, .blocks = zf_input(g, "l", ZF_I32, ZF_SHAPE(8))});
    if (zf_graph_status(g) != ZF_ERR_ARGUMENT) OK(t, zf_graph_status(g), zf_graph_error(g));
    CHECK(t, zf_graph_status(g) == ZF_ERR_ARGUMENT);
    CHECK(t, strstr(zf_graph_error(g), "the blocks must be the result of zf_block_mask_lists"));
}
