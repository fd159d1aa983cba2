/* Fused LayerNorm against the plain nodes that it replaces, forward and backward: to the last bit
 * in f32 where the operator's comment says so, to the rounding of f64 in f64; bf16 and f16 against
 * the reference kernels; messages of steps and graphs. */
#include "../support/test.h"

#include <float.h>

enum { RESULTS = 12, MOST = 80 * 520 };

/* Rows that are normalised, and gamma. */
enum kind { ORDINARY, CONSTANT, LARGE_MEAN, HUGE_ROWS, TINY_ROWS, KINDS };
enum gamma { USUAL, ZERO, SMALL, MIXED, GAMMAS };

typedef struct setup {
    zf_dtype dtype;
    int64_t rows, n;
    enum kind kind;
    enum gamma gamma;
    zf_cpu_desc cpu;
    bool evaluate, forward; /* forward: no gradients */
} setup;

typedef struct result {
    char name[16];
    zf_dtype dtype;
    int64_t count;
    size_t bytes;
    unsigned char raw[MOST * 8];
    double values[MOST];
} result;

typedef struct bench {
    zf_graph *graph;
    zf_backend *cpu;
    zf_program *program;
    zf_error error;
    int count;
    result results[RESULTS];
} bench;

static bench fused, plain;

static void close_bench(void *object)
{
    bench *b = object;
    zf_program_free(b->program);
    zf_backend_free(b->cpu);
    zf_graph_free(b->graph);
    b->program = NULL, b->cpu = NULL, b->graph = NULL;
}

/* x[0..count) = what is made up for `name`. */
static void make_up(const setup *s, const char *name, double *x, int64_t count)
{
    bool gamma = !strcmp(name, "gamma"), bias = !strcmp(name, "bias"),
         row = !strcmp(name, "x") || !strcmp(name, "residual");
    uint64_t seed = 0;
    for (; *name; name++) seed = (seed + (unsigned char)*name) * 0x100000001b3u;
    for (int64_t i = 0; i < count; i++) {
        uint64_t bits = (seed + (uint64_t)i) * 0x9e3779b97f4a7c15u;
        double u;
        bits = (bits ^ bits >> 31) * 0xbf58476d1ce4e5b9u;
        bits = (bits ^ bits >> 29) * 0x94d049bb133111ebu;
        u = (double)(int64_t)(bits ^ bits >> 32) * 0x1p-63; /* -1..1 */
        x[i] = u;
        if (gamma)
            x[i] = s->gamma == ZERO    ? 0
                   : s->gamma == SMALL ? u < 0 ? -1e-6 : 1e-6
                   : s->gamma == MIXED ? i % 3 == 0   ? 0
                                         : i % 3 == 1 ? 1e-6
                                                      : u
                                       : 1 + u;
        else if (bias && s->kind == CONSTANT) x[i] = 0.5;
        else if (row)
            x[i] = s->kind == CONSTANT     ? (double)(i / s->n) / 8
                   : s->kind == LARGE_MEAN ? 1e4 + u
                   : s->kind == HUGE_ROWS  ? 1e30 * u
                   : s->kind == TINY_ROWS  ? 1e-30 * u
                                           : 2 * u;
    }
}

static zf_status bench_failed(bench *b, zf_status status)
{
    const char *text = b->program ? zf_program_error(b->program) : zf_graph_error(b->graph);
    b->error.status = status ? status : zf_graph_status(b->graph);
    snprintf(b->error.text, sizeof b->error.text, "%s", text);
    return b->error.status;
}

/* Writes made-up values, or row numbers, into what is called `name`. */
static zf_status write_values(bench *b, const setup *s, zf_tensor to)
{
    static double x[MOST];
    static unsigned char raw[MOST * 8];
    zf_dtype dtype = zf_tensor_dtype(to);
    int64_t count = zf_shape_count(zf_tensor_shape(to));
    if (dtype == ZF_I32)
        for (int64_t i = 0; i < count; i++)
            ((int32_t *)(void *)raw)[i] = (int32_t)((uint64_t)i * 2654435761u >> 7 & 1);
    else if (dtype == ZF_I64)
        for (int64_t i = 0; i < count; i++) ((int64_t *)(void *)raw)[i] = i * i % 5;
    make_up(s, zf_tensor_name(to), x, count);
    if (dtype <= ZF_F64) zf_convert(raw, dtype, x, ZF_F64, (size_t)count);
    return zf_write(b->program, to, raw, zf_tensor_bytes(to));
}

/* The next result: the value of the output `name`. */
static zf_status keep(bench *b, const char *name)
{
    result *r = &b->results[b->count++];
    zf_tensor from = zf_graph_find(b->graph, name);
    snprintf(r->name, sizeof r->name, "%s", name);
    r->dtype = zf_tensor_dtype(from);
    r->count = zf_shape_count(zf_tensor_shape(from));
    r->bytes = zf_tensor_bytes(from);
    if (zf_read(b->program, from, r->raw, r->bytes)) return bench_failed(b, ZF_ERR_BACKEND);
    zf_convert(r->values, ZF_F64, r->raw, r->dtype, (size_t)r->count);
    return ZF_OK;
}

/* Runs a step of the text, whose outputs are called "y", "y1", ...; the loss is the sum of y times
 * an input "dy". Keeps the outputs, then the gradient of each param under its name. */
static zf_status run(test *t, bench *b, const setup *s, const char *text)
{
    char name[32];
    zf_tensor y;
    b->count = 0;
    b->error = (zf_error){ZF_OK, ""};
    b->graph =
        zf_graph_parse(text, strlen(text), &(zf_graph_desc){.allocator = t->allocator}, &b->error);
    if (!b->graph) return b->error.status;
    y = zf_graph_find(b->graph, "y");
    if (!s->forward) {
        zf_tensor dy = zf_input(b->graph, "dy", s->dtype, zf_tensor_shape(y));
        zf_autograd(b->graph, zf_sum(zf_mul(y, dy)));
        for (int32_t k = 0; k < zf_param_count(b->graph); k++) {
            zf_tensor param = zf_param_at(b->graph, k);
            snprintf(name, sizeof name, "d %s", zf_tensor_name(param));
            zf_output(zf_gradient(b->graph, param), name);
        }
    }
    if (zf_graph_status(b->graph)) return bench_failed(b, ZF_OK);
    b->cpu = zf_cpu_backend(&s->cpu, &b->error);
    if (!b->cpu) return b->error.status;
    b->program = zf_compile(b->graph, &(zf_compile_desc){.backend = b->cpu,
                                                         .seed = 5,
                                                         .evaluate = s->evaluate,
                                                         .allow_nan = true,
                                                         .poison = true});
    if (!b->program) return bench_failed(b, ZF_OK);
    for (int32_t k = 0; k < 64; k++) { /* params, then inputs, by their names */
        static const char *const inputs[] = {"dy", "ids", "type_ids", "xhat", "rstd", "dsum"};
        int32_t params = zf_param_count(b->graph), i = k - params;
        zf_tensor to = k < params ? zf_param_at(b->graph, k) : ZF_NONE;
        if (i >= (int32_t)(sizeof inputs / sizeof inputs[0])) break;
        if (i >= 0) to = zf_graph_find(b->graph, inputs[i]);
        if (zf_valid(to) && write_values(b, s, to)) return bench_failed(b, ZF_ERR_BACKEND);
    }
    if (zf_step(b->program)) return bench_failed(b, ZF_ERR_BACKEND);
    for (int k = 0; k < 8; k++) {
        snprintf(name, sizeof name, k ? "y%d" : "y", k);
        if (zf_valid(zf_graph_find(b->graph, name)) && keep(b, name)) return b->error.status;
    }
    for (int32_t k = 0; k < zf_param_count(b->graph) && !s->forward; k++) {
        snprintf(name, sizeof name, "d %s", zf_tensor_name(zf_param_at(b->graph, k)));
        if (keep(b, name)) return b->error.status;
    }
    close_bench(b);
    return ZF_OK;
}

static const result *result_of(const bench *b, const char *name)
{
    for (int k = 0; k < b->count; k++)
        if (!strcmp(b->results[k].name, name)) return &b->results[k];
    return NULL;
}

static double largest(const result *r)
{
    double most = 0;
    for (int64_t i = 0; i < r->count; i++) most = fmax(most, fabs(r->values[i]));
    return most;
}

static void wrong(test *t, int line, const setup *s, const char *text, const result *r, int64_t i,
                  double expected)
{
    static char message[4096];
    snprintf(message, sizeof message,
             "%s %s, kind %d, gamma %d: element %lld is %.17g, not %.17g, of\n%s",
             zf_dtype_name(s->dtype), s->cpu.isa ? s->cpu.isa : "best", (int)s->kind, (int)s->gamma,
             (long long)i, r->values[i], expected, text);
    test_fail(t, __FILE__, line, r->name, message);
}

/* The results `name` are equal, bit for bit. */
static bool same_bits(test *t, int line, const setup *s, const char *text, const char *name)
{
    const result *a = result_of(&fused, name), *b = result_of(&plain, name);
    if (a && b && a->bytes == b->bytes && !memcmp(a->raw, b->raw, a->bytes)) return true;
    for (int64_t i = 0; i < a->count; i++)
        if (memcmp(&a->values[i], &b->values[i], sizeof(double))) {
            wrong(t, line, s, text, a, i, b->values[i]);
            return false;
        }
    return true;
}

/* They differ by no more than `bound`. */
static bool near(test *t, int line, const setup *s, const char *text, const char *name,
                 double bound)
{
    const result *a = result_of(&fused, name), *b = result_of(&plain, name);
    for (int64_t i = 0; i < a->count; i++)
        if (!(fabs(a->values[i] - b->values[i]) <= bound)) {
            wrong(t, line, s, text, a, i, b->values[i]);
            return false;
        }
    return true;
}

/* Sums over rows of `term`, which are its terms to the last bit in both graphs: in blocks of 64
 * rows, then over the blocks, against a sum in double, each rounded once more. */
static bool near_sums(test *t, int line, const setup *s, const char *text, const char *name,
                      const double *term, int64_t rows)
{
    const result *a = result_of(&fused, name), *b = result_of(&plain, name);
    for (int64_t i = 0; i < a->count; i++) {
        double terms = 0;
        for (int64_t r = 0; r < rows; r++) terms += fabs(term[r * a->count + i]);
        if (fabs(a->values[i] - b->values[i]) <= (64 + (double)(rows / 64) + 2) * 0x1p-24 * terms)
            continue;
        wrong(t, line, s, text, a, i, b->values[i]);
        return false;
    }
    return true;
}

/* dy as it was written. */
static const double *upstream(const setup *s, int64_t count)
{
    static double dy[MOST];
    static unsigned char raw[MOST * 8];
    make_up(s, "dy", dy, count);
    zf_convert(raw, s->dtype, dy, ZF_F64, (size_t)count);
    zf_convert(dy, ZF_F64, raw, s->dtype, (size_t)count);
    return dy;
}

/* ----------------------------------------------------------------------- residual_norm */

#define ROWS "%s[%lld,%lld]"
#define ROW  "%s[%lld]"

static char fused_text[2048], plain_text[2048];

/* What a residual_norm is asked for. */
enum residual { BIAS = 1, DROPOUT = 2, RMS = 4, SUMMED = 8, RESIDUALS = 16 };

/* SUMMED: s is added to y, so that both have a gradient. */
static void residual_texts(const setup *s, int flags)
{
    const char *d = zf_dtype_name(s->dtype), *wide = s->dtype == ZF_F64 ? "f64" : "f32",
               *beta = flags & RMS ? "" : ", %4", *norm = flags & RMS ? "rms" : "moments";
    const double p = flags & DROPOUT ? 0.3 : 0;
    long long r = s->rows, n = s->n;
    int at = 0, from = 1;
    at += sprintf(fused_text, "%%1 = param \"x\" : " ROWS "\n%%2 = param \"residual\" : " ROWS "\n",
                  d, r, n, d, r, n);
    at += sprintf(fused_text + at, "%%3 = param \"gamma\" : " ROW "\n", d, n);
    if (!(flags & RMS)) at += sprintf(fused_text + at, "%%4 = param \"beta\" : " ROW "\n", d, n);
    if (flags & BIAS) at += sprintf(fused_text + at, "%%5 = param \"bias\" : " ROW "\n", d, n);
    strcpy(plain_text, fused_text);
    at += sprintf(fused_text + at,
                  "%%6 = residual_norm %%1, %%2, %%3%s%s {p=%g stream=3 eps=1e-12%s} : " ROWS "\n",
                  beta, flags & BIAS ? ", %5" : "", p,
                  flags & RMS      ? flags & SUMMED ? " form=rms sum=saved" : " form=rms"
                  : flags & SUMMED ? " sum=saved"
                                   : "",
                  d, r, n);
    if (flags & SUMMED)
        at += sprintf(fused_text + at,
                      "%%7 = saved %%6 {index=2} : " ROWS "\n%%8 = add %%6, %%7 : " ROWS "\n", d, r, n,
                      d, r, n);
    sprintf(fused_text + at, "output %%%d \"y\"\n", flags & SUMMED ? 8 : 6);
    at = (int)strlen(plain_text);
    if (flags & BIAS)
        at += sprintf(plain_text + at, "%%6 = add %%1, %%5 : " ROWS "\n", d, r, n), from = 6;
    if (p > 0) {
        at += sprintf(plain_text + at, "%%7 = dropout %%%d {p=%g stream=3} : " ROWS "\n", from, p,
                      d, r, n);
        from = 7;
    }
    at += sprintf(plain_text + at,
                  "%%8 = add %%2, %%%d : " ROWS "\n%%9 = %s %%8 {eps=1e-12} : %s[%lld,2]\n"
                  "%%10 = %s_norm %%8, %%9, %%3%s : " ROWS "\n",
                  from, d, r, n, norm, wide, r, flags & RMS ? "rms" : "layer", beta, d, r, n);
    if (flags & SUMMED) at += sprintf(plain_text + at, "%%11 = add %%10, %%8 : " ROWS "\n", d, r, n);
    sprintf(plain_text + at, "output %%%d \"y\"\n", flags & SUMMED ? 11 : 10);
}

static void close_both(void *unused)
{
    (void)unused;
    close_bench(&fused), close_bench(&plain);
}

/* Both texts; false: stopped. */
static bool run_both(test *t, const setup *s)
{
    if (run(t, &fused, s, fused_text) || run(t, &plain, s, plain_text)) {
        const bench *b = fused.error.status ? &fused : &plain;
        test_unwind(t, __FILE__, __LINE__, "a step", b->error.status, b->error.text);
        return false;
    }
    return true;
}

static const int64_t lengths[] = {1, 7, 127, 128, 513};
static const char *const isas[] = {"portable", "avx2", "avx512", "neon"};

static bool check_residual_bits(test *t, const setup *s, int flags)
{
    if (!run_both(t, s)) return false;
    for (int k = 0; k < 4; k++)
        if (!same_bits(t, __LINE__, s, fused_text,
                       (const char *[]){"y", "d x", "d residual", "d gamma"}[k]))
            return false;
    return (flags & RMS ||
            near_sums(t, __LINE__, s, fused_text, "d beta", upstream(s, s->rows * s->n), s->rows)) &&
           (!(flags & BIAS) || near_sums(t, __LINE__, s, fused_text, "d bias",
                               result_of(&plain, "d x")->values, s->rows));
}

TEST_ONCE(fused_norm_has_the_bits_of_plain_nodes)
{
    test_defer(t, close_both, NULL);
    for (int isa = 0; isa < 4; isa++) {
        for (int n = 0; n < 5 && test_has_isa(t, isas[isa]); n++)
            for (int variant = 0; variant < KINDS * RESIDUALS; variant++) {
                if (!TEST_TAKES(variant + n + isa)) continue;
                setup s = {.dtype = ZF_F32,
                           .rows = variant & 1 ? 70 : 3,
                           .n = lengths[n],
                           .kind = (enum kind)(variant / RESIDUALS),
                           .gamma = (enum gamma)((variant / 2 + n) % GAMMAS),
                           .cpu = {.threads = 2, .isa = isas[isa]}};
                residual_texts(&s, variant % RESIDUALS);
                if (!check_residual_bits(t, &s, variant % RESIDUALS)) return;
            }
    }
}

/* Rows, some of them constant, with a gamma of 0 or 1e-6. In f64 both sides add n numbers, or one
 * for each row, in one order, and otherwise round at most a few times for each; a mean of 1e4 costs
 * as many digits. */
TEST_ONCE(fused_norm_agrees_in_f64_for_any_gamma)
{
    test_defer(t, close_both, NULL);
    for (int n = 0; n < 5; n++)
        for (int gamma = 0; gamma < GAMMAS; gamma++)
            for (int variant = 0; variant < 12; variant++) {
                setup s = {.dtype = ZF_F64,
                           .rows = 5,
                           .n = lengths[n],
                           .kind = (enum kind)(variant / 4),
                           .gamma = (enum gamma)gamma,
                           .cpu = {.threads = 2}};
                double units =
                    8 * 0x1p-53 * (double)(s.n + s.rows) * (s.kind == LARGE_MEAN ? 1e4 : 1);
                /* In a row of one element, the gradient of RMSNorm is 0 up to eps. */
                residual_texts(&s, variant % 4 + (n ? (variant / 4 + gamma + n) % 4 * RMS : 0));
                if (!run_both(t, &s)) return;
                for (int k = 0; k < plain.count; k++)
                    if (!near(t, __LINE__, &s, fused_text, plain.results[k].name,
                              units * fmax(largest(&plain.results[k]), DBL_MIN)))
                        return;
            }
}

/* affine computes y from xhat, to the last bit, for any gamma. */
TEST_ONCE(fused_norm_is_inverted_exactly)
{
    test_defer(t, close_both, NULL);
    for (int variant = 0; variant < KINDS * GAMMAS * 2; variant++) {
        setup s = {.dtype = variant & 1 ? ZF_F64 : ZF_F32,
                   .rows = 70,
                   .n = lengths[variant % 5],
                   .kind = (enum kind)(variant / 2 % KINDS),
                   .gamma = (enum gamma)(variant / 2 / KINDS),
                   .cpu = {.threads = 2},
                   .forward = true};
        const char *d = zf_dtype_name(s.dtype);
        bool rms = variant / 2 % 2;
        residual_texts(&s, BIAS | DROPOUT | (rms ? RMS : 0));
        sprintf(fused_text + strlen(fused_text),
                "%%7 = saved %%6 {index=0} : " ROWS "\n%%8 = affine %%7, %%3%s : " ROWS
                "\noutput %%8 \"y1\"\n",
                d, (long long)s.rows, (long long)s.n, rms ? "" : ", %4", d, (long long)s.rows,
                (long long)s.n);
        OK(t, run(t, &fused, &s, fused_text), fused.error.text);
        plain.count = 1;
        plain.results[0] = fused.results[0];
        snprintf(plain.results[0].name, sizeof plain.results[0].name, "y1");
        if (!same_bits(t, __LINE__, &s, fused_text, "y1")) return;
    }
}

/* sum=given computes y, xhat and rstd from the sum that sum=saved has saved, to the last bit. The
 * sum need not be saved where the first node runs again (y2). */
TEST_ONCE(fused_norm_of_a_saved_sum_has_the_same_bits)
{
    static const zf_dtype dtypes[] = {ZF_F32, ZF_BF16, ZF_F16, ZF_F64};
    test_defer(t, close_both, NULL);
    for (int isa = 0; isa < 4; isa++)
        for (int variant = 0; variant < 4 * KINDS * 8 && test_has_isa(t, isas[isa]); variant++) {
            if (!TEST_TAKES(variant + isa)) continue;
            setup s = {.dtype = dtypes[variant / 8 % 4],
                       .rows = variant & 8 ? 70 : 3,
                       .n = lengths[variant % 5],
                       .kind = (enum kind)(variant / 32),
                       .cpu = {.threads = 2, .isa = isas[isa]},
                       .forward = true};
            const char *d = zf_dtype_name(s.dtype), *wide = s.dtype == ZF_F64 ? "f64" : "f32",
                       *form = variant & RMS ? " form=rms" : "";
            const char *vectors = variant & RMS ? "%3" : "%3, %4";
            long long r = s.rows, n = s.n;
            int at;
            residual_texts(&s, variant % 8 | SUMMED);
            at = (int)(strstr(fused_text, "%8 =") - fused_text);
            at += sprintf(fused_text + at,
                          "%%8 = residual_norm %%7, %%7, %s {eps=1e-12%s sum=given} : " ROWS "\n"
                          "%%9 = residual_norm %%1, %%2, %s%s {p=%g stream=3 eps=1e-12%s sum=saved}"
                          " : " ROWS "\noutput %%6 \"y\"\noutput %%8 \"y1\"\noutput %%9 \"y2\"\n",
                          vectors, form, d, r, n, vectors, variant & BIAS ? ", %5" : "",
                          variant & DROPOUT ? 0.3 : 0.0, form, d, r, n);
            for (int k = 0; k < 2; k++)
                at += sprintf(fused_text + at,
                              "%%%d = saved %%%d : " ROWS "\noutput %%%d \"y%d\"\n"
                              "%%%d = saved %%%d {index=1} : %s[%lld]\noutput %%%d \"y%d\"\n",
                              10 + 2 * k, 6 + 2 * k, d, r, n, 10 + 2 * k, 3 + k, 11 + 2 * k,
                              6 + 2 * k, wide, r, 11 + 2 * k, 5 + k);
            OK(t, run(t, &fused, &s, fused_text), fused.error.text);
            static const char *const pairs[][2] = {
                {"y", "y1"}, {"y", "y2"}, {"y3", "y4"}, {"y5", "y6"}};
            for (int k = 0; k < 4; k++) {
                plain.count = 1;
                plain.results[0] = *result_of(&fused, pairs[k][0]);
                snprintf(plain.results[0].name, sizeof plain.results[0].name, "%s", pairs[k][1]);
                if (!same_bits(t, __LINE__, &s, fused_text, pairs[k][1])) return;
            }
        }
}

/* A run that evaluates has no masks, and saved values for a gradient do not change the result. */
TEST(fused_norm_evaluates)
{
    setup s = {.dtype = ZF_F32,
               .rows = 9,
               .n = 33,
               .cpu = {.threads = 1},
               .evaluate = true,
               .forward = true};
    s.cpu.allocator = t->allocator;
    test_defer(t, close_both, NULL);
    residual_texts(&s, BIAS | DROPOUT);
    if (!run_both(t, &s)) return;
    if (!same_bits(t, __LINE__, &s, fused_text, "y")) return;
    residual_texts(&s, BIAS);
    OK(t, run(t, &plain, &s, fused_text), plain.error.text);
    same_bits(t, __LINE__, &s, fused_text, "y");
}

/* ------------------------------------------------------------------------- embed_norm */

static void embedding_texts(const setup *s, double p)
{
    const char *d = zf_dtype_name(s->dtype), *wide = s->dtype == ZF_F64 ? "f64" : "f32";
    long long t = s->rows, n = s->n;
    int at = sprintf(fused_text,
                     "%%1 = param \"words\" : %s[5,%lld]\n%%2 = input \"ids\" : i64[2,%lld]\n"
                     "%%3 = param \"types\" : %s[2,%lld]\n%%4 = input \"type_ids\" : i32[2,%lld]\n"
                     "%%5 = param \"positions\" : " ROWS "\n%%6 = param \"gamma\" : " ROW
                     "\n%%7 = param \"beta\" : " ROW "\n",
                     d, n, t, d, n, t, d, t, n, d, n, d, n);
    strcpy(plain_text, fused_text);
    sprintf(fused_text + at,
            "%%8 = embed_norm %%1, %%2, %%3, %%4, %%5, %%6, %%7 {p=%g stream=3 eps=1e-12} : "
            "%s[2,%lld,%lld]\noutput %%8 \"y\"\n",
            p, d, t, n);
    at += sprintf(plain_text + at,
                  "%%8 = gather_rows %%1, %%2 : %s[2,%lld,%lld]\n"
                  "%%9 = gather_rows %%3, %%4 : %s[2,%lld,%lld]\n"
                  "%%10 = add %%8, %%9 : %s[2,%lld,%lld]\n%%11 = add %%10, %%5 : %s[2,%lld,%lld]\n"
                  "%%12 = moments %%11 {eps=1e-12} : %s[2,%lld,2]\n"
                  "%%13 = layer_norm %%11, %%12, %%6, %%7 : %s[2,%lld,%lld]\n",
                  d, t, n, d, t, n, d, t, n, d, t, n, wide, t, d, t, n);
    if (p > 0)
        sprintf(plain_text + at,
                "%%14 = dropout %%13 {p=%g stream=3} : %s[2,%lld,%lld]\noutput %%14 \"y\"\n", p, d,
                t, n);
    else sprintf(plain_text + at, "output %%13 \"y\"\n");
}

TEST_ONCE(fused_norm_of_embeddings_has_the_bits_of_plain_nodes)
{
    test_defer(t, close_both, NULL);
    for (int variant = 0; variant < 5 * 4 * 4; variant++) {
        int isa = variant % 4;
        bool drops = variant / 4 % 2, evaluate = variant / 8 % 2;
        setup s = {.dtype = ZF_F32,
                   .rows = 37,
                   .n = lengths[variant / 16],
                   .cpu = {.threads = 2, .isa = isas[isa]},
                   .evaluate = evaluate,
                   .forward = evaluate};
        embedding_texts(&s, drops ? 0.3 : 0);
        if (!test_has_isa(t, isas[isa])) continue;
        if (!run_both(t, &s)) return;
        for (int k = 0; k < plain.count; k++)
            if (strcmp(plain.results[k].name, "d beta") &&
                !same_bits(t, __LINE__, &s, fused_text, plain.results[k].name))
                return;
        /* magnitudes of dy after dropout are at most these */
        if (!evaluate) {
            static double dy[MOST];
            const double *all = upstream(&s, 2 * s.rows * s.n);
            for (int64_t i = 0; i < 2 * s.rows * s.n; i++) dy[i] = all[i] / (drops ? 0.7 : 1);
            if (!near_sums(t, __LINE__, &s, fused_text, "d beta", dy, 2 * s.rows)) return;
        }
    }
}

TEST_ONCE(fused_norm_of_embeddings_agrees_in_f64)
{
    test_defer(t, close_both, NULL);
    for (int variant = 0; variant < 5 * GAMMAS * 2; variant++) {
        setup s = {.dtype = ZF_F64,
                   .rows = 4,
                   .n = lengths[variant % 5],
                   .gamma = (enum gamma)(variant / 10),
                   .cpu = {.threads = 2}};
        embedding_texts(&s, variant / 5 % 2 ? 0.3 : 0);
        if (!run_both(t, &s)) return;
        for (int k = 0; k < plain.count; k++)
            if (!near(t, __LINE__, &s, fused_text, plain.results[k].name,
                      8 * 0x1p-53 * (double)(s.n + 2 * s.rows) *
                          fmax(largest(&plain.results[k]), DBL_MIN)))
                return;
    }
}

/* ------------------------------------------------------------- threads, bf16, f16, nothing */

/* The gradient's row with all that it leaves. */
/* Rows of an odd length: of RMSNorm, whose sum has a gradient of its own. */
static void gradient_text(const setup *s, double p)
{
    const char *d = zf_dtype_name(s->dtype);
    long long r = s->rows, n = s->n;
    bool rms = n % 2;
    int at = sprintf(fused_text,
                     "%%1 = input \"dy\" : " ROWS "\n%%2 = input \"xhat\" : " ROWS
                     "\n%%3 = input \"rstd\" : %s[%lld]\n%%4 = param \"gamma\" : " ROW
                     "\n%%10 = input \"dsum\" : " ROWS "\n",
                     d, r, n, d, r, n, s->dtype == ZF_F64 ? "f64" : "f32", r, d, n, d, r, n);
    at += sprintf(fused_text + at,
                  "%%5 = residual_norm_grad %%1, %%2, %%3, %%4%s {p=%g stream=3%s} : " ROWS "\n"
                  "output %%5 \"y\"\n%%6 = saved %%5 {index=0} : " ROWS "\noutput %%6 \"y1\"\n",
                  rms ? ", %10" : "", p, rms ? " form=rms" : "", d, r, n, d, r, n);
    for (int k = 1; k <= 3; k++)
        at +=
            sprintf(fused_text + at, "%%%d = saved %%5 {index=%d} : " ROW "\noutput %%%d \"y%d\"\n",
                    6 + k, k, d, n, 6 + k, k + 1);
}

/* With SUMMED, s is an output too. */
static void forward_text(const setup *s, int flags)
{
    const char *d = zf_dtype_name(s->dtype);
    long long r = s->rows, n = s->n;
    int at;
    residual_texts(s, flags | (s->n % 2 ? RMS : 0));
    if (flags & SUMMED)
        sprintf(strstr(fused_text, "%8 ="), "output %%6 \"y\"\noutput %%7 \"y3\"\n");
    at = (int)strlen(fused_text);
    sprintf(fused_text + at,
            "%%8 = saved %%6 {index=0} : " ROWS "\n%%9 = saved %%6 {index=1} : %s[%lld]\n"
            "output %%8 \"y1\"\noutput %%9 \"y2\"\n",
            d, r, n, s->dtype == ZF_F64 ? "f64" : "f32", r);
}

TEST_ONCE(fused_norm_does_not_depend_on_threads)
{
    static const zf_dtype dtypes[] = {ZF_F32, ZF_BF16, ZF_F16};
    test_defer(t, close_both, NULL);
    for (int variant = 0; variant < 3 * 3 * 3; variant++) {
        setup s = {.dtype = dtypes[variant % 3],
                   .rows = 333,
                   .n = 67,
                   .cpu = {.threads = 1},
                   .forward = true};
        if (variant / 9 == 0) forward_text(&s, BIAS | DROPOUT | SUMMED);
        else if (variant / 9 == 1) gradient_text(&s, 0.3);
        else s.rows = 150, embedding_texts(&s, 0.3);
        OK(t, run(t, &plain, &s, fused_text), plain.error.text);
        s.cpu.threads = 2 + variant / 3 % 3;
        OK(t, run(t, &fused, &s, fused_text), fused.error.text);
        CHECK(t, fused.count == plain.count);
        for (int k = 0; k < plain.count; k++)
            if (!same_bits(t, __LINE__, &s, fused_text, plain.results[k].name)) return;
    }
}

/* Computed in f32 and in double, then rounded: half a unit each, and the error of f32, which is
 * that of the cases in tests/ops/ops.c. A sum of two numbers is exact in f32, so that both round it
 * to the same s. */
TEST_ONCE(fused_norm_in_16_bits_agrees_with_the_reference)
{
    test_defer(t, close_both, NULL);
    for (int variant = 0; variant < 4 * 2 * 5; variant++) {
        int isa = variant % 4;
        bool half = variant / 4 % 2;
        setup s = {.dtype = half ? ZF_F16 : ZF_BF16,
                   .rows = 75,
                   .n = variant / 8 == 1 ? 128 : 131,
                   .cpu = {.threads = 2, .isa = isas[isa]},
                   .forward = true};
        if (!test_has_isa(t, isas[isa])) continue;
        if (variant / 8 == 2) embedding_texts(&s, 0.3);
        else if (variant / 8 == 3) gradient_text(&s, 0);
        else if (variant / 8 == 1) gradient_text(&s, 0.3);
        else forward_text(&s, variant / 8 == 4 ? SUMMED : BIAS | DROPOUT);
        OK(t, run(t, &fused, &s, fused_text), fused.error.text);
        s.cpu.reference = true;
        OK(t, run(t, &plain, &s, fused_text), plain.error.text);
        for (int k = 0; k < plain.count; k++) {
            const result *r = &plain.results[k];
            double f32 = 0x1p-24 * (160 + (double)s.rows) * fmax(1, largest(r));
            for (int64_t i = 0; i < r->count; i++) {
                double unit =
                    r->dtype == ZF_F32 ? 0 : fabs(r->values[i]) * (half ? 0x1p-10 : 0x1p-7);
                if (half && r->dtype != ZF_F32) unit = fmax(unit, 0x1p-24);
                if (fabs(r->values[i] - fused.results[k].values[i]) <= 1.01 * unit + f32) continue;
                wrong(t, __LINE__, &s, fused_text, &fused.results[k], i, r->values[i]);
                return;
            }
        }
    }
}

TEST(fused_norm_of_nothing)
{
    test_defer(t, close_both, NULL);
    for (int variant = 0; variant < 8; variant++) {
        setup s = {.dtype = variant & 1 ? ZF_BF16 : ZF_F32, .forward = true};
        s.cpu.allocator = t->allocator;
        if (variant & 2) s.rows = 4;
        else s.n = 5;
        if (variant & 4) gradient_text(&s, 0.3);
        else forward_text(&s, BIAS | DROPOUT | SUMMED);
        OK(t, run(t, &fused, &s, fused_text), fused.error.text);
        for (int k = 0; k < fused.count; k++)
            for (int64_t i = 0; i < fused.results[k].count; i++) /* sums, and rstd of nothing */
                CHECK(t,
                      fused.results[k].values[i] == (variant & 4 ? 0 : fused.results[k].values[0]));
    }
}

/* --------------------------------------------------------------------------- mistakes */

#define LEAVES                                                                                     \
    "%1 = input \"x\" : f32[2,3]\n%2 = input \"v\" : f32[3]\n%3 = input \"w\" : f32[2]\n"          \
    "%4 = input \"d\" : f64[2,3]\n%5 = input \"i\" : i32[4,2]\n%6 = input \"j\" : i64[2,4]\n"      \
    "%7 = input \"k\" : i64[1,1,1,1,1,2]\n%8 = input \"s\" : f32[]\n"

/* A line of IR and what is said of it. */
static const char *const mistakes[][2] = {
    {"residual_norm %8, %8, %2, %2 : f32[]", "needs one dimension or more"},
    {"residual_norm %5, %5, %2, %2 : i32[4,2]", "the operand must be float"},
    {"residual_norm %1, %4, %2, %2 : f32[2,3]", "operand 1 must be f32, as operand 0"},
    {"residual_norm %1, %2, %2, %2 : f32[2,3]", "operand 1 must have the shape of operand 0"},
    {"residual_norm %1, %1, %3, %2 : f32[2,3]", "gamma must be f32[3]"},
    {"residual_norm %1, %1, %2, %3 : f32[2,3]", "beta must be f32[3]"},
    {"residual_norm %1, %1, %2, %2, %3 : f32[2,3]", "the bias must be f32[3]"},
    {"residual_norm %1, %1, %2, %2 {p=1} : f32[2,3]", "p = 1 must be at least 0 and below 1"},
    {"residual_norm %1, %1, %2, %2 {stream=-1} : f32[2,3]", "stream -1 must be 0 to 2^32 - 1"},
    {"residual_norm %1, %1, %2, %2 {eps=-1} : f32[2,3]",
     "eps = -1 must be finite and not negative"},
    {"residual_norm %1, %1, %2, %2 {eps=nan} : f32[2,3]", "eps = nan must be finite"},
    {"embed_norm %2, %5, %1, %5, %1, %2, %2 : f32[4,2,3]", "the words must be f32[rows,3]"},
    {"embed_norm %1, %3, %1, %3, %1, %2, %2 : f32[2,3]", "the index must be i32 or i64"},
    {"embed_norm %1, %7, %1, %7, %1, %2, %2 : f32[2,3]", "the ids must have 1 to 5 dimensions"},
    {"embed_norm %1, %5, %1, %6, %1, %2, %2 : f32[4,2,3]",
     "the type ids must be i32 or i64 and have the shape of the ids"},
    {"embed_norm %1, %5, %1, %1, %1, %2, %2 : f32[4,2,3]",
     "the type ids must be i32 or i64 and have the shape of the ids"},
    {"embed_norm %1, %5, %4, %5, %1, %2, %2 : f32[4,2,3]", "the types must be f32[rows,3]"},
    {"embed_norm %1, %6, %1, %6, %1, %2, %2 : f32[2,4,3]", "the positions must be f32[4,3]"},
    {"embed_norm %1, %5, %1, %5, %1, %3, %2 : f32[4,2,3]", "gamma must be f32[3]"},
    {"embed_norm %1, %5, %1, %5, %1, %2, %3 : f32[4,2,3]", "beta must be f32[3]"},
    {"embed_norm %1, %5, %1, %5, %1, %2, %2 {p=-0.5} : f32[4,2,3]",
     "p = -0.5 must be at least 0 and below 1"},
    {"residual_norm_grad %1, %2, %3, %2 : f32[2,3]", "operand 1 must have the shape of operand 0"},
    {"residual_norm_grad %1, %1, %2, %2 : f32[2,3]", "rstd must be f32[2]"},
    {"residual_norm_grad %4, %4, %3, %2 : f64[2,3]", "rstd must be f64[2]"},
    {"residual_norm_grad %1, %1, %3, %3 : f32[2,3]", "gamma must be f32[3]"},
    {"residual_norm_grad %1, %1, %3, %2 {p=2} : f32[2,3]", "p = 2 must be at least 0 and below 1"},
    {"affine %8, %2, %2 : f32[]", "needs one dimension or more"},
    {"affine %1, %3, %2 : f32[2,3]", "gamma must be f32[3]"},
    {"affine %1, %2, %3 : f32[2,3]", "beta must be f32[3]"},
    {"residual_norm %1, %1, %2 : f32[2,3]", "3 operands, but form=layer takes 4 or 5"},
    {"residual_norm %1, %1, %2, %2, %2 {form=rms} : f32[2,3]",
     "5 operands, but form=rms takes 3 or 4"},
    {"residual_norm %1, %1, %3 {form=rms} : f32[2,3]", "gamma must be f32[3]"},
    {"residual_norm %1, %1, %2, %3 {form=rms} : f32[2,3]", "the bias must be f32[3]"},
    {"residual_norm %1, %1, %2, %2 {sum=given p=0.5} : f32[2,3]",
     "sum=given has neither a bias nor dropout"},
    {"residual_norm %1, %1, %2, %2, %2 {sum=given} : f32[2,3]",
     "sum=given has neither a bias nor dropout"},
    {"residual_norm %1, %1, %2, %2 {sum=given} : f32[2,3]\n"
     "%10 = residual_norm %1, %9, %2, %2 {sum=given} : f32[2,3]",
     "sum=given takes the sum as both of its first operands"},
    {"residual_norm %1, %1, %2, %2 : f32[2,3]\n%10 = saved %9 {index=2} : f32[2,3]",
     "residual_norm leaves nothing under index 2"},
    {"residual_norm_grad %1, %1, %3, %2, %2 : f32[2,3]",
     "the gradient of the sum must be f32[2,3]"},
    {"residual_norm %1, %1, %2, %2 : f32[2,3]\n%10 = saved %9 {index=3} : f32[2,3]",
     "residual_norm leaves nothing under index 3"},
    {"embed_norm %1, %5, %1, %5, %1, %2, %2 : f32[4,2,3]\n%10 = saved %9 {index=2} : f32[4,2,3]",
     "embed_norm leaves nothing under index 2"},
    {"residual_norm_grad %1, %1, %3, %2 : f32[2,3]\n%10 = saved %9 {index=4} : f32[2,3]",
     "residual_norm_grad leaves nothing under index 4"},
};

TEST(fused_norm_mistakes_in_a_graph)
{
    for (size_t n = 0; n < sizeof mistakes / sizeof mistakes[0]; n++) {
        char text[1024];
        zf_error error = {ZF_OK, ""};
        zf_graph *g;
        snprintf(text, sizeof text, "%s%%9 = %s\n", LEAVES, mistakes[n][0]);
        g = zf_graph_parse(text, strlen(text), &(zf_graph_desc){.allocator = t->allocator}, &error);
        zf_graph_free(g);
        CHECK(t, !g);
        if (t->refused && error.status == ZF_ERR_NOMEM) return;
        if (!strstr(error.text, mistakes[n][1])) CHECK_TEXT(t, error.text, mistakes[n][1]);
    }
}

/* Indices outside their tables are errors of the step, whichever they are. */
TEST(fused_norm_bad_indices)
{
    static const struct {
        int32_t ids[2], type_ids[2];
        const char *expected;
    } steps[] = {
        {{4, 0}, {0, 1}, ""},
        {{0, 5},
         {0, 1},
         "words of embed_norm %8: element 1 of the index is 5; it must be at least 0 and less than "
         "5, the number of rows"},
        {{0, 1},
         {-1, 2},
         "types of embed_norm %8: element 0 of the index is -1; it must be at least 0 and less "
         "than "
         "2, the number of rows"},
    };
    const char *text = "%1 = param \"words\" : f32[5,3]\n%2 = input \"ids\" : i32[2]\n"
                       "%3 = param \"types\" : f32[2,3]\n%4 = input \"type_ids\" : i32[2]\n"
                       "%5 = param \"positions\" : f32[2,3]\n%6 = param \"gamma\" : f32[3]\n"
                       "%7 = param \"beta\" : f32[3]\n"
                       "%8 = embed_norm %1, %2, %3, %4, %5, %6, %7 : f32[2,3]\noutput %8 \"y\"\n";
    bench *b = &fused;
    test_defer(t, close_bench, b);
    for (size_t n = 0; n < sizeof steps / sizeof steps[0]; n++) {
        b->graph = zf_graph_parse(text, strlen(text), &(zf_graph_desc){.allocator = t->allocator},
                                  &b->error);
        NEED(t, b->graph, &b->error);
        b->program = zf_compile(b->graph, NULL);
        if (!b->program) OK(t, zf_graph_status(b->graph), zf_graph_error(b->graph));
        zf_write(b->program, zf_graph_find(b->graph, "ids"), steps[n].ids, 8);
        zf_write(b->program, zf_graph_find(b->graph, "type_ids"), steps[n].type_ids, 8);
        CHECK(t, zf_step(b->program) == (*steps[n].expected ? ZF_ERR_ARGUMENT : ZF_OK));
        CHECK_TEXT(t, zf_program_error(b->program), steps[n].expected);
        close_bench(b);
    }
}

/* A dropout that is built later gets a stream of its own. */
TEST(fused_norm_takes_a_stream)
{
    const char *text = LEAVES "%9 = residual_norm %1, %1, %2, %2 {p=0.5 stream=3264523141} : f32[2,3]\n";
    char printed[2048];
    zf_error error = {ZF_OK, ""};
    zf_graph *g =
        zf_graph_parse(text, strlen(text), &(zf_graph_desc){.allocator = t->allocator}, &error);
    NEED(t, g, &error);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    zf_dropout(zf_graph_find(g, "x"), 0.5);
    if (t->refused && zf_graph_status(g) == ZF_ERR_NOMEM) return;
    zf_graph_text(g, printed, sizeof printed);
    CHECK(t, strstr(printed, "= dropout %1 {p=0.5 stream="));
    CHECK(t, !strstr(printed, "= dropout %1 {p=0.5 stream=3264523141}"));
}
