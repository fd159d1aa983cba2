/* Forms of attention that looks at less, block masks, documents and windows: a form computed by a
 * backend, and by sums over all keys in double precision. */
#include "../support/test.h"

typedef struct form {
    const char *layout; /* as zf_block_mask_parse takes it; NULL: no block mask */
    int64_t tokens, heads, kv, d, window;
    bool packed, causal, documents, bias;
    double p, cap;
} form;

enum { BATCH = 2, MOST = 1 << 17, RESULTS = 4 };

static const char *const names[] = {"q", "k", "v"};

typedef struct answer {
    int64_t count[RESULTS]; /* of y, dq, dk and dv; of the packed form y and dqkv */
    double value[RESULTS][MOST];
} answer;

typedef struct session {
    zf_graph *graph;
    zf_backend *backend;
    zf_program *program;
    zf_block_mask *mask;
    zf_error error;
} session;

static session s;
static answer got, exact;

static void session_close(void *unused)
{
    (void)unused;
    zf_program_free(s.program), zf_backend_free(s.backend), zf_graph_free(s.graph);
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

/* Of a block that is listed. */
static bool sees(const form *f, int64_t b, int64_t m, int64_t n)
{
    return (!f->causal || n <= m) && (!f->window || n > m - f->window) &&
           (f->causal || !f->window || n < m + f->window) &&
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
                           .cap = f->cap,
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

/* Computes a form on `backend`, which becomes the session's; the results are in `got`. The session
 * stays open. */
static zf_status run_form_on(test *t, const form *f, zf_dtype dtype, zf_backend *backend)
{
    zf_status status = s.error.status;
    s.backend = backend;
    if (!backend) return status;
    status = make_mask(t, f);
    if (!status) status = make_graph(t, f, dtype);
    if (status) {
        if (s.graph) snprintf(s.error.text, sizeof s.error.text, "%s", zf_graph_error(s.graph));
        return status;
    }
    s.program = zf_compile(s.graph,
                           &(zf_compile_desc){.backend = s.backend, .seed = 3, .poison = true});
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
static double read_as[4][1 << 16];

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

/* Row m of head h of example b: y, and what it adds to gradients. Adds its probabilities to those
 * of keys. */
static void define_row(const form *f, zf_dtype dtype, int64_t b, int64_t h, int64_t m, double *key)
{
    static double p[4096];
    const int64_t block = s.mask ? zf_block_mask_info_of(s.mask).block : f->tokens;
    bool listed = true;
    const int64_t group = f->heads / kv_of(f), kv = h / group, d = f->d;
    const double scale = 1 / sqrt((double)d);
    const double *q = read_at(f, 0, b, m, h), *w = read_at(f, 3, b, m, h);
    double sum = 0, delta = 0, *y = result(f, 0, b, m, h), *dq = result(f, 1, b, m, h);
    for (int64_t n = 0; n < f->tokens; n++) {
        const double *k = read_at(f, 1, b, n, kv);
        double score = 0;
        p[n] = 0;
        if (s.mask && n % block == 0) listed = zf_block_mask_sees(s.mask, h, m / block, n / block);
        if (!listed || !sees(f, b, m, n)) continue;
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

/* How far results may be off, as derived in tests/attention/attention.c; a key's probabilities sum
 * to `keys` */
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
    FORM(.layout = "window,block=64", .tokens = 300, .heads = 2, .kv = 1, .d = 16, .window = 40,
         .documents = true),
};
