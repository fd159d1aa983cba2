/* attention against the graph that it replaces: scaled products, bias, softmax, dropout. */
#include "../support/test.h"

enum bias { NO_BIAS, OF_KEYS, OF_QUERIES, OF_ALL };

typedef struct form {
    int64_t batch, heads, m, n, d;
    bool packed, causal;
    enum bias bias;
    double p;
    bool masked; /* the bias is -inf for some keys, and for all of the last example */
    int64_t kv;  /* heads of k and v; 0: as many as of q */
    int64_t window;
} form;

static double cap; /* of scaled scores, in all forms; 0: none */

static int64_t kv_of(const form *f) { return f->kv ? f->kv : f->heads; }

/* The last dimension of leaf x0, x1 or x2. */
static int64_t width_of(const form *f, int k)
{
    return f->d * (f->packed ? f->heads + 2 * kv_of(f) : k ? kv_of(f) : f->heads);
}

/* The results of a graph, as doubles: y, then the gradients of x0, x1, x2. */
enum { MOST = 1 << 17, RESULTS = 4 };
typedef struct answer {
    int64_t count[RESULTS];
    double value[RESULTS][MOST];
} answer;

typedef struct session {
    zf_graph *graph;
    zf_backend *cpu;
    zf_program *program;
    zf_error error;
} session;

static void session_close(void *object)
{
    session *s = object;
    zf_program_free(s->program);
    zf_backend_free(s->cpu);
    zf_graph_free(s->graph);
    *s = (session){.graph = NULL};
}

static zf_status failed(session *s, zf_status status, const char *text)
{
    if (status && !s->error.status) {
        s->error.status = status;
        snprintf(s->error.text, sizeof s->error.text, "%s", text);
    }
    return s->error.status;
}

/* -------------------------------------------------------------------------------- graphs */

static const char *const names[] = {"x0", "x1", "x2"};

static zf_shape bias_shape(const form *f)
{
    return f->bias == OF_KEYS      ? ZF_SHAPE(f->batch, 1, 1, f->n)
           : f->bias == OF_QUERIES ? ZF_SHAPE(f->heads, f->m, 1)
                                   : ZF_SHAPE(f->heads, f->m, f->n);
}

/* The leaves, and with `fused` the attention node; its value is the output "y". */
static void form_text(char *to, const form *f, zf_dtype dtype, bool fused)
{
    long long b = f->batch, hidden = f->heads * f->d, m = f->m, n = f->n;
    long long of_q = width_of(f, 0), of_k = width_of(f, 1);
    const char *type = zf_dtype_name(dtype), *operands = f->packed ? "%1" : "%1, %2, %3";
    zf_shape bias = bias_shape(f);
    if (f->packed) to += sprintf(to, "%%1 = param \"x0\" : %s[%lld,%lld,%lld]\n", type, b, m, of_q);
    else
        to += sprintf(to,
                      "%%1 = param \"x0\" : %s[%lld,%lld,%lld]\n"
                      "%%2 = param \"x1\" : %s[%lld,%lld,%lld]\n"
                      "%%3 = param \"x2\" : %s[%lld,%lld,%lld]\n",
                      type, b, m, of_q, type, b, n, of_k, type, b, n, of_k);
    if (f->bias) {
        to += sprintf(to, "%%4 = input \"bias\" : %s[", type);
        for (int i = 0; i < bias.rank; i++)
            to += sprintf(to, i ? ",%lld" : "%lld", (long long)bias.dims[i]);
        to += sprintf(to, "]\n");
    }
    if (fused)
        sprintf(to,
                "%%5 = attention %s%s {p=%.17g stream=3264523141 heads=%lld scale=%.17g causal=%s "
                "kv_heads=%lld window=%lld cap=%.17g} : %s[%lld,%lld,%lld]\noutput %%5 \"y\"\n",
                operands, f->bias ? ", %4" : "", f->p, (long long)f->heads, 1 / sqrt((double)f->d),
                f->causal ? "true" : "false", (long long)f->kv, (long long)f->window, cap, type, b,
                m, hidden);
}

/* [batch, tokens, hidden] cut into heads, each of which counts for some: [batch, heads, tokens, d]. */
static zf_tensor heads_of(const form *f, zf_tensor x, int64_t tokens, int64_t heads)
{
    int64_t times = f->heads / heads;
    x = zf_reshape(x, ZF_SHAPE(f->batch, tokens, heads, 1, f->d));
    x = zf_broadcast(x, ZF_SHAPE(f->batch, tokens, heads, times, f->d));
    return zf_transpose(zf_reshape(x, ZF_SHAPE(f->batch, tokens, f->heads, f->d)), 1, 2);
}

/* zf_nn_attention with the cap. */
static zf_tensor capped(zf_tensor q, zf_tensor k, zf_tensor v, zf_tensor bias, double p)
{
    const double width = (double)zf_tensor_shape(q).dims[3];
    zf_tensor scores = zf_matmul_ex(zf_scale(q, 1 / sqrt(width)), k,
                                    &(zf_matmul_desc){.transpose_b = true});
    scores = zf_scale(zf_tanh(zf_scale(scores, 1 / cap)), cap);
    if (bias.graph) scores = zf_add(scores, bias);
    return zf_matmul(zf_dropout(zf_softmax(scores), p), v);
}

static zf_tensor plain(session *s, const form *f, zf_dtype dtype)
{
    int64_t hidden = f->heads * f->d, kv = kv_of(f), at = 0;
    zf_tensor x[3], bias = f->bias ? zf_graph_find(s->graph, "bias") : ZF_NONE, y;
    for (int k = 0; k < 3; k++) {
        int64_t end = at + (k ? kv : f->heads) * f->d;
        x[k] = f->packed ? zf_slice(zf_graph_find(s->graph, "x0"), 2, at, end)
                         : zf_graph_find(s->graph, names[k]);
        at = end;
    }
    if (f->causal || f->window) {
        static double hidden_keys[MOST * 8];
        zf_tensor unseen;
        for (int64_t i = 0; i < f->m * f->n; i++) {
            int64_t last = i / f->n + f->n - f->m, n = i % f->n;
            bool seen = (!f->causal || n <= last) && (!f->window || n > last - f->window) &&
                        (f->causal || n < last + f->window);
            hidden_keys[i] = seen ? 0 : -INFINITY;
        }
        unseen = zf_values(s->graph, dtype, ZF_SHAPE(f->m, f->n), hidden_keys);
        bias = f->bias ? zf_add(bias, unseen) : unseen;
    }
    y = (cap > 0 ? capped : zf_nn_attention)(heads_of(f, x[0], f->m, f->heads),
                                             heads_of(f, x[1], f->n, kv),
                                             heads_of(f, x[2], f->n, kv), bias, f->p);
    return zf_output(zf_reshape(zf_transpose(y, 1, 2), ZF_SHAPE(f->batch, f->m, hidden)), "y");
}

/* The graph with a loss, the sum of y times the input "w", and its gradients as outputs. */
static zf_status form_graph(test *t, session *s, const form *f, zf_dtype dtype, bool fused)
{
    char text[1024];
    zf_tensor y;
    s->error = (zf_error){ZF_OK, ""};
    form_text(text, f, dtype, fused);
    s->graph =
        zf_graph_parse(text, strlen(text), &(zf_graph_desc){.allocator = t->allocator}, &s->error);
    if (!s->graph) return s->error.status;
    y = fused ? zf_graph_find(s->graph, "y") : plain(s, f, dtype);
    zf_autograd(s->graph, zf_sum(zf_mul(y, zf_input(s->graph, "w", dtype, zf_tensor_shape(y)))));
    for (int k = 0; k < (f->packed ? 1 : 3); k++) {
        char name[16];
        sprintf(name, "d%d", k);
        zf_output(zf_gradient(s->graph, zf_graph_find(s->graph, names[k])), name);
    }
    return failed(s, zf_graph_status(s->graph), zf_graph_error(s->graph));
}

/* ------------------------------------------------------------------------------- values */

static double between(uint64_t i, double low, double high)
{
    uint64_t x = i * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return low + (high - low) * ((double)(x >> 11) * 0x1p-53);
}

static double values[MOST * 8];
static unsigned char bytes[MOST * 64];

/* Writes values[0..), rounded to this dtype if it has 16 bits. */
static zf_dtype narrow;

static zf_status put(session *s, const char *name)
{
    zf_tensor to = zf_graph_find(s->graph, name);
    size_t count = (size_t)zf_shape_count(zf_tensor_shape(to));
    if (narrow == ZF_BF16 || narrow == ZF_F16) {
        zf_convert(bytes, narrow, values, ZF_F64, count);
        zf_convert(values, ZF_F64, bytes, narrow, count);
    }
    zf_convert(bytes, zf_tensor_dtype(to), values, ZF_F64, count);
    return failed(s, zf_write(s->program, to, bytes, zf_tensor_bytes(to)),
                  zf_program_error(s->program));
}

/* q and k are such that the terms of a scaled product sum to at most 1; v, the bias and the terms
 * of dy v are within [-1, 1]. */
static zf_status write_form(session *s, const form *f)
{
    int64_t hidden = f->heads * f->d, of_bias = f->bias ? zf_shape_count(bias_shape(f)) : 0;
    double most = pow((double)f->d, -0.25);
    for (int k = 0; k < (f->packed ? 1 : 3); k++) {
        int64_t width = width_of(f, k), of_v = hidden + kv_of(f) * f->d;
        int64_t count = f->batch * (k ? f->n : f->m) * width;
        for (int64_t i = 0; i < count; i++) {
            double high = k == 2 || i % width >= of_v ? 1 : most;
            values[i] = between((uint64_t)(i + 1000000 * k), -high, high);
        }
        if (put(s, names[k])) return s->error.status;
    }
    for (int64_t i = 0; i < of_bias; i++) {
        bool none = f->masked && (i % 5 == 1 || i >= of_bias / f->batch * (f->batch - 1));
        values[i] = none ? -INFINITY : between((uint64_t)i + 5000000, -1, 1);
    }
    if (f->bias && put(s, "bias")) return s->error.status;
    for (int64_t i = 0; i < f->batch * f->m * hidden; i++)
        values[i] = between((uint64_t)i + 7000000, -1, 1) / (double)f->d;
    return put(s, "w");
}

static zf_status take(session *s, const char *name, double *to, int64_t *count)
{
    zf_tensor from = zf_graph_find(s->graph, name);
    *count = zf_shape_count(zf_tensor_shape(from));
    if (failed(s, zf_read(s->program, from, bytes, zf_tensor_bytes(from)),
               zf_program_error(s->program)))
        return s->error.status;
    zf_convert(to, ZF_F64, bytes, zf_tensor_dtype(from), (size_t)*count);
    return ZF_OK;
}

static zf_status form_compile(test *t, session *s, zf_cpu_desc cpu, bool evaluate)
{
    cpu.allocator = t->allocator;
    s->cpu = zf_cpu_backend(&cpu, &s->error);
    if (!s->cpu) return s->error.status;
    s->program = zf_compile(
        s->graph,
        &(zf_compile_desc){.backend = s->cpu, .seed = 3, .poison = true, .evaluate = evaluate});
    return s->program ? ZF_OK : failed(s, zf_graph_status(s->graph), zf_graph_error(s->graph));
}

static zf_status form_step(session *s, const form *f, answer *a)
{
    if (failed(s, zf_step(s->program), zf_program_error(s->program)) ||
        take(s, "y", a->value[0], &a->count[0]))
        return s->error.status;
    a->count[2] = a->count[3] = 0;
    for (int k = 0; k < (f->packed ? 1 : 3); k++) {
        char name[16];
        sprintf(name, "d%d", k);
        if (take(s, name, a->value[1 + k], &a->count[1 + k])) return s->error.status;
    }
    return ZF_OK;
}

static zf_status run_form(test *t, session *s, const form *f, zf_dtype dtype, bool fused,
                          zf_cpu_desc cpu, answer *a)
{
    zf_status status = form_graph(t, s, f, dtype, fused);
    if (!status) status = form_compile(t, s, cpu, false);
    if (!status) status = write_form(s, f);
    if (!status) status = form_step(s, f, a);
    session_close(s);
    return status;
}

/* -------------------------------------------------------------------------------- tests */

static answer got, exact;

/* How far a result may be off, in roundings u of f64 or f32. Terms are as write_form says.
 *
 * A score takes d + 2 roundings of terms that sum to 1, and one of the bias. An exponential adds
 * that, 3 of its own, and as many as |lse| <= 2 + log n has in its last place; so does their sum,
 * of at most n. Hence a probability errs by E = 2 (d + 16 + n / 4) of itself, and
 *
 *     y   E + n terms of v, which its probabilities weigh to 1 / (1 - p)
 *     dS  P (dP - D): 4 / (1 - p) of P, with d more roundings
 *     dq  sum of dS k, dk: sum of dS q, dv: sum of P dy
 *
 * A key's probabilities sum over queries, and heads of q that read it, to C: each of them is e^4 /
 * seen keys at most.
 *
 * 16 bits round by h: every result, and bf16 tiles P and dS before they are multiplied; D is made
 * of a rounded y. That is 2 h of y and dv, and of dS and its sums 2 + 1 + 1 times 2 h / (1 - p) of
 * P. */
static double bound_of(const form *f, zf_dtype dtype, int part)
{
    double u = dtype == ZF_F64 ? 0x1p-53 : 0x1p-24, d = (double)f->d, n = (double)f->n;
    double h = dtype == ZF_BF16 ? 0x1.01p-9 : dtype == ZF_F16 ? 0x1.01p-12 : 0;
    double m = (double)f->m, keep = 1 / (1 - f->p), e = 2 * (d + 16 + n / 4);
    double keys = 55 * (1 + log(m)) * (f->causal ? 1 : fmax(1, m / n));
    if (f->kv) keys *= (double)(f->heads / f->kv); /* heads of q add theirs */
    double side = keep / sqrt(d) * pow(d, -0.25);
    double y = keep * (u * (e + n) + 2 * h), dq = side * (4 * u * (e + d + n) + 8 * h);
    double dk = side * keys * (4 * u * (e + d + m) + 8 * h);
    double dv = keep * keys / d * (u * (e + m) + 2 * h);
    return part == 0   ? y
           : f->packed ? fmax(dq, fmax(dk, dv))
           : part == 1 ? dq
           : part == 2 ? dk
                       : dv;
}

static void compare(test *t, int line, const form *f, zf_dtype dtype, const char *isa)
{
    for (int part = 0; part < RESULTS; part++) {
        double bound = bound_of(f, dtype, part);
        if (got.count[part] != exact.count[part]) test_fail(t, __FILE__, line, "counts", "");
        for (int64_t i = 0; i < got.count[part]; i++) {
            char text[256];
            if (fabs(got.value[part][i] - exact.value[part][i]) <= bound) continue;
            snprintf(
                text, sizeof text,
                "%s %s, %lld:%lld heads %lld x %lld x %lld %s%s bias %d p %g: %s[%lld] is %.9g, "
                "the plain graph has %.9g, %.3g times the bound off",
                zf_dtype_name(dtype), isa ? isa : "", (long long)f->heads, (long long)kv_of(f),
                (long long)f->m, (long long)f->n, (long long)f->d, f->packed ? "packed" : "apart",
                f->causal ? " causal" : "", (int)f->bias, f->p, part ? names[part - 1] : "y",
                (long long)i, got.value[part][i], exact.value[part][i],
                fabs(got.value[part][i] - exact.value[part][i]) / bound);
            test_fail(t, __FILE__, line, "attention", text);
            return;
        }
    }
}

TEST_ONCE(attention_agrees_with_the_plain_graph)
{
    static const int64_t lengths[] = {1, 7, 127, 128, 259};
    static const zf_dtype dtypes[] = {ZF_F32, ZF_BF16, ZF_F16};
    static const char *const isas[] = {NULL, "portable", "avx2"};
    static session s;
    test_defer(t, session_close, &s);
    for (int k = 0; k < 5; k++) {
        int64_t n = lengths[k];
        const form forms[] = {
            {1, 2, n, n, 16, true, false, NO_BIAS, 0, false, 0, 0},
            {2, 2, n, n, 8, true, false, OF_KEYS, 0.25, true, 0, 0},
            {1, 2, n, n, 5, true, true, OF_ALL, 0.1, false, 1, n / 3 + 1},
            {1, 3, (n + 1) / 2, n, 8, false, true, NO_BIAS, 0.5, false, 1, n / 8 + 1},
            {1, 1, n, n / 4 + 1, 24, false, true, OF_QUERIES, 0.1, false, 0, 0},
            {2, 2, n / 2 + 1, n, 3, false, false, OF_KEYS, 0, true, 1, 0},
            {1, 2, n, n, 16, true, false, NO_BIAS, 0.1, false, 1, n / 6 + 1},
            {1, 1, (n + 1) / 2, n, 8, false, false, OF_ALL, 0, false, 0, n / 2 + 2},
        };
        for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++)
            for (int type = 0; type < 3; type++) {
                if (!TEST_TAKES(k + (int)i + type)) continue;
                narrow = dtypes[type];
                OK(t,
                   run_form(t, &s, &forms[i], ZF_F64, false, (zf_cpu_desc){.threads = 2}, &exact),
                   s.error.text);
                for (int isa = 0; isa < 3; isa++) {
                    zf_cpu_desc cpu = {.threads = 2, .isa = isas[isa]};
                    if (isa && (!TEST_TAKES(isa + (int)i) || !test_has_isa(t, isas[isa])))
                        continue;
                    OK(t, run_form(t, &s, &forms[i], narrow, true, cpu, &got), s.error.text);
                    compare(t, __LINE__, &forms[i], narrow, isas[isa]);
                }
                if (type) continue;
                OK(t, run_form(t, &s, &forms[i], ZF_F64, true, (zf_cpu_desc){.threads = 2}, &got),
                   s.error.text);
                compare(t, __LINE__, &forms[i], ZF_F64, NULL);
            }
    }
    narrow = ZF_F32;
}

/* The same with a cap, which most scores come near. */
TEST_ONCE(attention_with_a_cap_agrees_with_the_plain_graph)
{
    static const zf_dtype dtypes[] = {ZF_F32, ZF_BF16, ZF_F16};
    static const form forms[] = {
        {1, 2, 130, 130, 16, true, true, NO_BIAS, 0, false, 0, 0},
        {2, 2, 37, 37, 8, true, false, OF_KEYS, 0.25, true, 0, 0},
        {1, 4, 70, 140, 5, false, true, OF_ALL, 0.1, false, 2, 33},
        {1, 1, 513, 200, 24, false, true, OF_QUERIES, 0, false, 0, 0},
        {1, 2, 37, 9, 8, false, false, NO_BIAS, 0, false, 0, 12},
    };
    static session s;
    test_defer(t, session_close, &s);
    cap = 0.3;
    for (size_t i = 0; i < sizeof forms / sizeof forms[0] && !t->failed; i++)
        for (int type = 0; type < 3 && !t->failed; type++) {
            const zf_cpu_desc cpu = {.threads = 2, .isa = (type + i) % 2 ? NULL : "portable"};
            zf_status status;
            narrow = dtypes[type];
            status = run_form(t, &s, &forms[i], ZF_F64, false, (zf_cpu_desc){.threads = 2}, &exact);
            if (!status) status = run_form(t, &s, &forms[i], narrow, true, cpu, &got);
            if (status) test_fail(t, __FILE__, __LINE__, "a cap", s.error.text);
            else compare(t, __LINE__, &forms[i], narrow, cpu.isa);
            if (type || status) continue;
            status = run_form(t, &s, &forms[i], ZF_F64, true, (zf_cpu_desc){.threads = 2}, &got);
            if (status) test_fail(t, __FILE__, __LINE__, "a cap", s.error.text);
            else compare(t, __LINE__, &forms[i], ZF_F64, NULL);
        }
    cap = 0, narrow = ZF_F32;
}

/* With q (or k) 0 every probability is 1 over the number of keys, here a power of 2, and with small
 * integers elsewhere nothing is rounded forward: the bits are equal, so the same elements are
 * dropped. Backward each P is exp(-log n), off by the same 8 roundings of itself. */
TEST_ONCE(attention_drops_what_dropout_drops)
{
    static const form forms[] = {{2, 2, 128, 128, 16, true, false, NO_BIAS, 0.5, false, 0, 0},
                                 {1, 2, 512, 512, 16, true, false, NO_BIAS, 0.5, false, 0, 0},
                                 {1, 3, 77, 256, 4, false, false, NO_BIAS, 0.5, false, 0, 0},
                                 {1, 2, 130, 4, 5, false, false, NO_BIAS, 0.75, false, 0, 0}};
    static session s;
    test_defer(t, session_close, &s);
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++)
        for (int zero = 0; zero < 2; zero++)
            for (int fused = 0; fused < 2; fused++) {
                const form *f = &forms[i];
                int64_t hidden = f->heads * f->d, width = f->packed ? 3 * hidden : hidden;
                OK(t, form_graph(t, &s, f, ZF_F32, fused), s.error.text);
                OK(t, form_compile(t, &s, (zf_cpu_desc){.threads = 2}, false), s.error.text);
                for (int k = 0; k < (f->packed ? 1 : 3); k++) {
                    int64_t count = f->batch * (k ? f->n : f->m) * width;
                    for (int64_t e = 0; e < count; e++)
                        values[e] = (f->packed ? e % width / hidden : k) == zero
                                        ? 0
                                        : floor(between((uint64_t)e, -4, 4));
                    OK(t, put(&s, names[k]), s.error.text);
                }
                for (int64_t e = 0; e < f->batch * f->m * hidden; e++)
                    values[e] = floor(between((uint64_t)e + 77, -4, 4));
                OK(t, put(&s, "w"), s.error.text);
                OK(t, form_step(&s, f, fused ? &got : &exact), s.error.text);
                session_close(&s);
                if (!fused) continue;
                for (int part = 0; part < RESULTS; part++)
                    for (int64_t e = 0; e < got.count[part]; e++) {
                        double a = got.value[part][e], b = exact.value[part][e];
                        /* terms: at most m n (or n) of 4 * 4 * 4 d * 2 at 1 / n */
                        double terms = 16 * (double)(f->m + f->n) / (double)f->n * (double)f->d;
                        CHECK_NEAR(t, a, b, part ? 0x1p-24 * 16 * 8 * terms : 0);
                    }
            }
}

/* Few heads with long rows are split in another way than many heads: the bits are the same. */
TEST_ONCE(attention_has_one_result_for_any_threads)
{
    static const form forms[] = {{1, 1, 513, 513, 16, true, false, OF_KEYS, 0.1, false, 0, 0},
                                 {1, 1, 300, 513, 16, false, true, NO_BIAS, 0.1, false, 0, 0},
                                 {1, 1, 513, 200, 5, false, true, OF_QUERIES, 0.1, false, 0, 0},
                                 {2, 3, 128, 128, 7, true, true, OF_ALL, 0.1, false, 0, 0},
                                 {1, 4, 300, 513, 16, false, true, NO_BIAS, 0, false, 2, 150},
                                 {1, 6, 200, 200, 5, true, true, NO_BIAS, 0, false, 2, 0}};
    static const zf_dtype dtypes[] = {ZF_F32, ZF_BF16, ZF_F16};
    static session s;
    test_defer(t, session_close, &s);
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++)
        for (int k = 0; k < 24; k++) {
            int threads = 1 + k % 8;
            if (threads > 1 && !TEST_TAKES(k + (int)i)) continue;
            OK(t,
               run_form(t, &s, &forms[i], dtypes[k / 8], true, (zf_cpu_desc){.threads = threads},
                        threads == 1 ? &exact : &got),
               s.error.text);
            for (int part = 0; part < RESULTS && threads > 1; part++)
                CHECK(t, !memcmp(got.value[part], exact.value[part],
                                 (size_t)got.count[part] * sizeof(double)));
        }
}

/* Scores with NaN or +inf make their row NaN, and no other. */
TEST(attention_keeps_special_values_to_their_rows)
{
    static const zf_dtype dtypes[] = {ZF_F32, ZF_F64};
    static const double odd[] = {NAN, INFINITY};
    const form f = {1, 1, 200, 200, 16, true, false, NO_BIAS, 0, false, 0, 0};
    static session s;
    test_defer(t, session_close, &s);
    for (int k = 0; k < 4; k++) {
        OK(t, form_graph(t, &s, &f, dtypes[k / 2], true), s.error.text);
        OK(t, form_compile(t, &s, (zf_cpu_desc){.threads = 2}, false), s.error.text);
        OK(t, write_form(&s, &f), s.error.text);
        for (int64_t i = 0; i < 200 * 48; i++)
            values[i] = i / 48 == 150 && i % 48 < 16 ? odd[k % 2] : between((uint64_t)i, 0.1, 1);
        OK(t, put(&s, "x0"), s.error.text);
        OK(t, form_step(&s, &f, &got), s.error.text);
        for (int64_t i = 0; i < 200 * 16; i++) {
            CHECK(t, isnan(got.value[0][i]) == (i / 16 == 150));
            CHECK(t, isnan(got.value[1][i / 16 * 48 + i % 16]) == (i / 16 == 150));
        }
        session_close(&s);
    }
}

TEST(attention_evaluates_without_dropout)
{
    form f = {1, 2, 130, 130, 8, true, false, OF_KEYS, 0.5, false, 0, 0};
    static session s;
    test_defer(t, session_close, &s);
    OK(t, form_graph(t, &s, &f, ZF_F32, true), s.error.text);
    OK(t, form_compile(t, &s, (zf_cpu_desc){.threads = 2}, true), s.error.text);
    OK(t, write_form(&s, &f), s.error.text);
    OK(t, form_step(&s, &f, &got), s.error.text);
    session_close(&s);
    f.p = 0;
    OK(t, run_form(t, &s, &f, ZF_F32, true, (zf_cpu_desc){.threads = 2}, &exact), s.error.text);
    CHECK(t, !memcmp(got.value[0], exact.value[0], (size_t)got.count[0] * sizeof(double)));
}

/* 2048 x 2048 scores are 16 MiB; q, k, v, y, their gradients and everything between take less. */
TEST(attention_has_no_scores_in_memory)
{
    const form f = {1, 1, 2048, 2048, 16, true, false, NO_BIAS, 0.1, false, 0, 0};
    static session s;
    test_defer(t, session_close, &s);
    OK(t, form_graph(t, &s, &f, ZF_F32, true), s.error.text);
    OK(t, form_compile(t, &s, (zf_cpu_desc){.threads = 2}, false), s.error.text);
    CHECK(t, zf_program_info_of(s.program).peak_bytes < (size_t)4 << 20);
}

/* For each head, two products of [m,d], [n,d] and the [m,n] between them; in the gradient, each
 * product's two operands: as many as in the plain graph. Scores that are recomputed in the backward
 * pass do not count. */
TEST(attention_counts_its_operations)
{
    static const form forms[] = {
        {2, 3, 5, 5, 4, true, false, NO_BIAS, 0, false, 0, 0},
        {2, 3, 5, 5, 4, true, false, OF_KEYS, 0.1, false, 0, 0},
        {2, 3, 7, 5, 4, false, false, NO_BIAS, 0, false, 0, 0},
        {2, 3, 5, 7, 4, false, true, OF_ALL, 0.1, false, 0, 0},
        {2, 4, 5, 5, 4, true, false, NO_BIAS, 0, false, 2, 0},
    };
    for (size_t i = 0; i < 2 * sizeof forms / sizeof forms[0]; i++) {
        const form *f = &forms[i / 2];
        session s = {.graph = NULL};
        double product = 2.0 * (double)(f->batch * f->heads * f->m * f->n * f->d);
        zf_plan plan = {0};
        zf_status status = form_graph(t, &s, f, ZF_F32, i % 2);
        if (!status) status = zf_graph_plan(s.graph, &plan);
        if (status && !s.error.status) failed(&s, status, zf_graph_error(s.graph));
        session_close(&s);
        OK(t, status, s.error.text);
        CHECK(t, plan.flops == 6 * product);
    }
}

TEST(attention_survives_refused_memory)
{
    const form f = {2, 2, 7, 9, 3, false, true, OF_KEYS, 0.1, false, 0, 0};
    static session s;
    test_defer(t, session_close, &s);
    OK(t, run_form(t, &s, &f, ZF_F32, true, (zf_cpu_desc){.threads = 2}, &got), s.error.text);
}

/* ------------------------------------------------------------------------------ messages */

static const struct {
    const char *operands, *attributes, *message;
} mistakes[] = {
    {"i32[2,3,12]", "heads=2",
     "attention: operand 0 must be float: f32, bf16, f16 or f64; %1 = i32[2,3,12]"},
    {"f32[2,3,12]", "", "attention: heads = 0 must be 1 or more; %1 = f32[2,3,12]"},
    {"f32[2,3,12]", "heads=-1", "attention: heads = -1 must be 1 or more; %1 = f32[2,3,12]"},
    {"f32[2,3,12]", "heads=3",
     "attention: operand 0 must be [batch, tokens, q, k and v], the last a multiple of their 9 "
     "heads; "
     "%1 = f32[2,3,12]"},
    {"f32[2,3,12]", "heads=3 kv_heads=2",
     "attention: kv_heads = 2 must be a divisor of the 3 heads; %1 = f32[2,3,12]"},
    {"f32[2,3,12]", "heads=2 window=-1 causal=true",
     "attention: window = -1 must not be negative; %1 = f32[2,3,12]"},
    {"f32[2,12]", "heads=2",
     "attention: operand 0 must be [batch, tokens, q, k and v], the last a multiple of their 6 "
     "heads; "
     "%1 = f32[2,12]"},
    {"f32[2,3,12]", "heads=2 scale=inf", "attention: scale = inf must be finite; %1 = f32[2,3,12]"},
    {"f32[2,3,12]", "heads=2 cap=-1",
     "attention: cap = -1 must be 0 or above, and finite; %1 = f32[2,3,12]"},
    {"f32[2,3,12]", "heads=2 p=1",
     "attention: p = 1 must be at least 0 and below 1; %1 = f32[2,3,12]"},
    {"f32[2,3,12]", "heads=2 p=0.1 stream=4294967296",
     "attention: stream 4294967296 must be 0 to 2^32 - 1; %1 = f32[2,3,12]"},
    {"f32[2,3,12] f64[3]", "heads=2",
     "attention: operand 1 must be f32, as operand 0 (zf_cast converts); %1 = f32[2,3,12], %2 = "
     "f64[3]"},
    {"f32[2,3,12] f32[4]", "heads=2",
     "attention: the bias, operand 1, must broadcast to the scores, f32[2,2,3,3]; %1 = "
     "f32[2,3,12], %2 = f32[4]"},
    {"f32[2,3,12] f32[1,2,2,3,3]", "heads=2",
     "attention: the bias, operand 1, must broadcast to the scores, f32[2,2,3,3]; %1 = "
     "f32[2,3,12], %2 = f32[1,2,2,3,3]"},
    {"f32[2,3,4] f32[2,5,4] f32[2,4,4]", "heads=2",
     "attention: operands 1 and 2 must be [batch, tokens, 4] of one shape: 2 heads as wide as "
     "those "
     "of operand 0, and its batch; %1 = f32[2,3,4], %2 = f32[2,5,4], %3 = f32[2,4,4]"},
    {"f32[2,3,8] f32[2,5,8] f32[2,5,8]", "heads=4 kv_heads=2",
     "attention: operands 1 and 2 must be [batch, tokens, 4] of one shape: 2 heads as wide as "
     "those "
     "of operand 0, and its batch; %1 = f32[2,3,8], %2 = f32[2,5,8], %3 = f32[2,5,8]"},
    {"f32[2,3,4] f32[2,5,6] f32[2,5,6]", "heads=2",
     "attention: operands 1 and 2 must be [batch, tokens, 4] of one shape: 2 heads as wide as "
     "those "
     "of operand 0, and its batch; %1 = f32[2,3,4], %2 = f32[2,5,6], %3 = f32[2,5,6]"},
    {"f32[2,3,5] f32[2,5,5] f32[2,5,5]", "heads=2",
     "attention: operand 0 must be [batch, tokens, hidden], hidden a multiple of the 2 heads; %1 = "
     "f32[2,3,5], %2 = f32[2,5,5], %3 = f32[2,5,5]"},
    {"f32[1,1099511627776,0]", "heads=1",
     "attention: there would be 2^60 scores or more; %1 = f32[1,1099511627776,0]"},
};

/* The same for the gradient, whose operands come after dy, y and lse. */
static const struct {
    const char *operands, *message;
} gradient_mistakes[] = {
    {"f32[2,3,4] f32[2,3,4] f32[2,2,3] f32[2,3,13]",
     "attention_grad: operand 3 must be [batch, tokens, q, k and v], the last a multiple of their "
     "6 "
     "heads; %1 = f32[2,3,4], %2 = f32[2,3,4], %3 = f32[2,2,3], %4 = f32[2,3,13]"},
    {"f32[2,3,5] f32[2,3,4] f32[2,2,3] f32[2,3,12]",
     "attention_grad: operand 0, dy, must be f32[2,3,4]; %1 = f32[2,3,5], %2 = f32[2,3,4], %3 = "
     "f32[2,2,3], %4 = f32[2,3,12]"},
    {"f32[2,3,4] f64[2,3,4] f32[2,2,3] f32[2,3,12]",
     "attention_grad: operand 1, y, must be f32[2,3,4]; %1 = f32[2,3,4], %2 = f64[2,3,4], %3 = "
     "f32[2,2,3], %4 = f32[2,3,12]"},
    {"bf16[2,3,4] bf16[2,3,4] bf16[2,2,3] bf16[2,3,12]",
     "attention_grad: operand 2, the rows' log-sum-exp, must be f32[2,2,3]; %1 = bf16[2,3,4], %2 "
     "= bf16[2,3,4], %3 = bf16[2,2,3], %4 = bf16[2,3,12]"},
};

static int leaves(char *text, const char *operands)
{
    int count = 0, at = 0;
    while (*operands) {
        int length = (int)strcspn(operands, " ");
        at +=
            sprintf(text + at, "%%%d = input \"%d\" : %.*s\n", count + 1, count, length, operands);
        operands += length + (operands[length] == ' ');
        count++;
    }
    return count;
}

static void check_message(test *t, const char *text, const char *message)
{
    zf_error error = {ZF_OK, ""};
    zf_graph *g =
        zf_graph_parse(text, strlen(text), &(zf_graph_desc){.allocator = t->allocator}, &error);
    const char *said = strstr(error.text, "attention");
    zf_graph_free(g);
    if (error.status == ZF_ERR_NOMEM) OK(t, error.status, error.text);
    CHECK_TEXT(t, said ? said : error.text, message);
    CHECK(t, error.status == ZF_ERR_PARSE);
}

TEST(attention_explains_mistakes)
{
    char text[1024];
    for (size_t n = 0; n < sizeof mistakes / sizeof mistakes[0]; n++) {
        int count = leaves(text, mistakes[n].operands);
        sprintf(text + strlen(text), "%%%d = attention %%1", count + 1);
        for (int k = 2; k <= count; k++) sprintf(text + strlen(text), ", %%%d", k);
        sprintf(text + strlen(text), " {%s} : f32[2,3,4]\n", mistakes[n].attributes);
        check_message(t, text, mistakes[n].message);
    }
    for (size_t n = 0; n < sizeof gradient_mistakes / sizeof gradient_mistakes[0]; n++) {
        leaves(text, gradient_mistakes[n].operands);
        strcat(text, "%5 = attention_grad %1, %2, %3, %4 {heads=2} : f32[2,3,12]\n");
        check_message(t, text, gradient_mistakes[n].message);
    }
}

TEST(attention_gives_a_bias_no_gradient)
{
    static const char text[] = "%1 = param \"x\" : f32[2,3,12]\n%2 = param \"bias\" : f32[3]\n"
                               "%3 = attention %1, %2 {heads=2} : f32[2,3,4]\noutput %3 \"y\"\n";
    zf_error error = {ZF_OK, ""};
    zf_graph *g =
        zf_graph_parse(text, sizeof text - 1, &(zf_graph_desc){.allocator = t->allocator}, &error);
    NEED(t, g, &error);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    if (zf_autograd(g, zf_sum(zf_graph_find(g, "y"))) == ZF_ERR_NOMEM)
        OK(t, zf_graph_status(g), zf_graph_error(g));
    CHECK(t, zf_graph_status(g) == ZF_ERR_ARGUMENT);
    CHECK_TEXT(
        t, zf_graph_error(g),
        "autograd: %3 = attention gives its bias no gradient, and %2 is trained: matmul, add "
        "and softmax do");
}
