/* head_loss against the graph that it replaces: product, bias, cross_entropy, argmax. */
#include "../support/test.h"

typedef struct head {
    int64_t rows, classes, width;
    zf_dtype dtype; /* of x, w and the bias */
    bool no_bias;
    int ignored;  /* every which row; 0: none, 1: all */
    double scale; /* the loss times this is differentiated; 0: 1 */
    bool wide;    /* logits of about 4, not 0.4 */
    /* Replaces the bias of this class (0: of all), where it is not 0 */
    double odd;
    int64_t odd_class;
    zf_quantize_desc records; /* bits 8 or 4: w is such records, and has no gradient */
} head;

/* All results of a head, as doubles. */
typedef struct answer {
    int64_t counts[5];
    double *values[5]; /* loss, dx, dw, db, best */
} answer;

enum { LOSS, DX, DW, DB, BEST };

typedef struct session {
    zf_graph *graph;
    zf_backend *cpu;
    zf_program *program;
    answer answer;
    zf_error error;
} session;

static void session_close(void *object)
{
    session *s = object;
    zf_program_free(s->program);
    zf_backend_free(s->cpu);
    zf_graph_free(s->graph);
    for (int k = 0; k < 5; k++) free(s->answer.values[k]);
    *s = (session){.graph = NULL};
}

static zf_status failed(session *s, zf_status status, const char *text)
{
    if (!s->error.status) {
        s->error.status = status;
        snprintf(s->error.text, sizeof s->error.text, "%s", text);
    }
    return status;
}

/* The graph as text; `fused`: by head_loss; else w's records become numbers of dtype `of_w`. */
static void head_text(char *to, const head *h, bool fused, zf_dtype of_w)
{
    const char *type = zf_dtype_name(h->dtype), *wide = h->dtype == ZF_F64 ? "f64" : "f32";
    long long p = h->rows, v = h->classes, k = h->width;
    int w = 2;
    char records[60] = "";
    to += sprintf(to,
                  "%%1 = param \"x\" : %s[%lld,%lld]\n%%2 = %s \"w\" : %s[%lld,%lld]\n"
                  "%%3 = input \"labels\" : i32[%lld]\n%%4 = input \"weight\" : %s[]\n",
                  type, p, k, h->records.bits ? "input" : "param", type, v, k, p, wide);
    if (!h->no_bias) to += sprintf(to, "%%5 = param \"b\" : %s[%lld]\n", type, v);
    if (h->records.bits) {
        const zf_quantize_desc *d = &h->records;
        const long long bytes = k / d->block * (d->block * d->bits / 8 + (d->scale ? 2 : 4));
        sprintf(records, "bits=%d block=%lld%s", (int)d->bits, (long long)d->block,
                d->scale ? " scale=bf16" : "");
        to += sprintf(to, "%%12 = quantize %%2 {%s} : u8[%lld,%lld]\n", records, v, bytes);
        w = 12;
    }
    if (h->records.bits && !fused) {
        to += sprintf(to, "%%13 = dequantize %%12 {%s to=%s} : %s[%lld,%lld]\n", records,
                      zf_dtype_name(of_w), zf_dtype_name(of_w), v, k);
        to += sprintf(to, "%%14 = cast %%13 {to=%s} : %s[%lld,%lld]\n", type, type, v, k);
        w = 14;
    }
    if (fused) {
        sprintf(to,
                "%%20 = head_loss %%1, %%%d, %%3, %%4%s {ignore=-100 %s} : %s[]\n"
                "%%21 = saved %%20 {index=3} : i32[%lld]\n"
                "output %%20 \"y\"\noutput %%21 \"best\"\n",
                w, h->no_bias ? "" : ", %5", records, wide, p);
        return;
    }
    to += sprintf(to, "%%6 = matmul %%1, %%%d {transpose_b=true} : %s[%lld,%lld]\n", w, type, p, v);
    if (!h->no_bias) to += sprintf(to, "%%7 = add %%6, %%5 : %s[%lld,%lld]\n", type, p, v);
    to += sprintf(to, "%%8 = cast %%%d {to=%s} : %s[%lld,%lld]\n", h->no_bias ? 6 : 7, wide, wide,
                  p, v);
    sprintf(to,
            "%%9 = logsumexp %%8 : %s[%lld]\n"
            "%%10 = cross_entropy %%8, %%9, %%3 {ignore=-100} : %s[%lld]\n"
            "%%11 = sum %%10 : %s[]\n%%20 = mul %%11, %%4 : %s[]\n"
            "%%21 = argmax %%8 {axis=1} : i32[%lld]\noutput %%20 \"y\"\noutput %%21 \"best\"\n",
            wide, p, wide, p, wide, wide, p);
}

/* Element i of an operand, the same for every dtype: bf16 holds it. */
static double drawn(const char *name, int64_t i)
{
    uint64_t x = (uint64_t)i * 0x9e3779b97f4a7c15u + (uint64_t)name[0] * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 30) * 0x94d049bb133111ebu;
    return ((double)(x >> 57) - 63.5) / 64;
}

static double factor_of(const head *h, const char *name)
{
    return strcmp(name, "w") || h->wide ? 1 : 0.125;
}

static zf_status write_floats(session *s, const head *h, const char *name)
{
    zf_tensor to = zf_graph_find(s->graph, name);
    int64_t count = zf_shape_count(zf_tensor_shape(to));
    double *x = malloc(((size_t)count + 1) * sizeof *x);
    unsigned char *raw = malloc(((size_t)count + 1) * sizeof *x);
    zf_status status = x && raw ? ZF_OK : failed(s, ZF_ERR_IO, "the test lacks memory");
    for (int64_t i = 0; i < count && !status; i++) {
        x[i] = drawn(name, i) * factor_of(h, name);
        if (h->odd != 0 && name[0] == 'b' && (!h->odd_class || h->odd_class == i)) x[i] = h->odd;
    }
    if (!status) {
        zf_convert(raw, zf_tensor_dtype(to), x, ZF_F64, (size_t)count);
        status = zf_write(s->program, to, raw, zf_tensor_bytes(to));
        if (status) failed(s, status, zf_program_error(s->program));
    }
    free(x);
    free(raw);
    return status;
}

static int32_t label_of(const head *h, int64_t row)
{
    if (h->ignored && row % h->ignored == 0) return -100;
    return (int32_t)((uint64_t)row * 2654435769u % (uint64_t)h->classes);
}

static zf_status write_labels(session *s, const head *h)
{
    zf_status status;
    int32_t *labels = malloc(((size_t)h->rows + 1) * sizeof *labels);
    if (!labels) return failed(s, ZF_ERR_IO, "the test lacks memory");
    for (int64_t r = 0; r < h->rows; r++) labels[r] = label_of(h, r);
    status = zf_write(s->program, zf_graph_find(s->graph, "labels"), labels,
                      (size_t)h->rows * sizeof *labels);
    free(labels);
    return status;
}

static const double weight = 0.375;

static zf_status write_all(session *s, const head *h)
{
    zf_tensor to = zf_graph_find(s->graph, "weight");
    double wide = weight;
    float narrow = (float)weight;
    zf_status status = zf_tensor_dtype(to) == ZF_F64
                           ? zf_write(s->program, to, &wide, sizeof wide)
                           : zf_write(s->program, to, &narrow, sizeof narrow);
    if (!status) status = write_floats(s, h, "x");
    if (!status) status = write_floats(s, h, "w");
    if (!status && !h->no_bias) status = write_floats(s, h, "b");
    return status ? status : write_labels(s, h);
}

static zf_status read_all(session *s, const head *h)
{
    static const char *const names[] = {"y", "dx", "dw", "db", "best"};
    for (int k = 0; k < 5; k++) {
        zf_tensor from = zf_graph_find(s->graph, names[k]);
        int64_t count = zf_valid(from) ? zf_shape_count(zf_tensor_shape(from)) : 0;
        void *raw = malloc(zf_tensor_bytes(from) + 1);
        double *x = s->answer.values[k] = malloc(((size_t)count + 1) * sizeof *x);
        zf_status status = x && raw ? ZF_OK : failed(s, ZF_ERR_IO, "the test lacks memory");
        s->answer.counts[k] = count;
        if (!status && count && (status = zf_read(s->program, from, raw, zf_tensor_bytes(from))))
            failed(s, status, zf_program_error(s->program));
        if (!status) zf_convert(x, ZF_F64, raw, zf_tensor_dtype(from), (size_t)count);
        free(raw);
        if (status) return status;
    }
    (void)h;
    return ZF_OK;
}

/* Builds, differentiates, runs and reads; s->graph stays as it ran. */
static zf_status run_as(test *t, session *s, const head *h, bool fused, zf_dtype of_w,
                        zf_cpu_desc cpu)
{
    static const char *const params[] = {"x", "w", "b"}, *const outputs[] = {"dx", "dw", "db"};
    char text[1024];
    zf_tensor loss;
    zf_status status;
    *s = (session){.graph = NULL};
    head_text(text, h, fused, of_w);
    s->graph =
        zf_graph_parse(text, strlen(text), &(zf_graph_desc){.allocator = t->allocator}, &s->error);
    if (!s->graph) return s->error.status;
    loss = zf_graph_find(s->graph, "y");
    if (h->scale != 0)
        loss = zf_mul(loss, zf_constant(s->graph, zf_tensor_dtype(loss), ZF_SCALAR, h->scale));
    zf_autograd(s->graph, loss);
    for (int k = 0; k < (h->no_bias ? 2 : 3); k++)
        if (k != 1 || !h->records.bits)
            zf_output(zf_gradient(s->graph, zf_graph_find(s->graph, params[k])), outputs[k]);
    zf_simplify(s->graph);
    cpu.allocator = t->allocator;
    s->cpu = zf_cpu_backend(&cpu, &s->error);
    if (!s->cpu) return s->error.status;
    s->program =
        zf_compile(s->graph, &(zf_compile_desc){.backend = s->cpu, .seed = 1, .poison = true});
    if (!s->program) return failed(s, zf_graph_status(s->graph), zf_graph_error(s->graph));
    if ((status = write_all(s, h))) return failed(s, status, zf_program_error(s->program));
    if ((status = zf_step(s->program))) return failed(s, status, zf_program_error(s->program));
    return read_all(s, h);
}

static zf_status run(test *t, session *s, const head *h, bool fused, zf_cpu_desc cpu)
{
    return run_as(t, s, h, fused, ZF_F64, cpu);
}

/* ------------------------------------------------------------------------------- bounds */

/* How far each answer may be from the exact one when a number is rounded to 1/u.
 *
 * A logit z is a sum of `width` products (each two roundings where nothing is fused) and the bias,
 * of magnitudes that add up to A at most: it is off by e = (2 width + 2) u A. A sum of exponentials
 * is off by the roundings of z - maximum (at most 2 A u), of exp (3 u), of at most 16 + 16 sums and
 * of a chunk's factor, which is an exponential again: d = (4 A + 40) u, so lse by e + d, and a
 * row's loss by 2 e + d. dz = weight (p - onehot) is off by p f + u [label], f = 2 e + d + (4 A +
 * 20 + log classes) u, and the magnitudes of a row's dz add up to 2 at most. dx adds `classes`
 * products of it with w, in some blocks; dw and db add `rows`. */
typedef struct bounds {
    double loss, dx, dw, db, logit;
} bounds;

static bounds bounds_of(const head *h, double u, double loss)
{
    double w = factor_of(h, "w"), a = (double)h->width * w + 1, p = (double)h->rows,
           v = (double)h->classes, k = (double)h->width, e, d, f;
    a += isfinite(h->odd) ? fabs(h->odd) : 0;
    e = (2 * k + 2) * u * a, d = (4 * a + 40) * u, f = 2 * e + d + (4 * a + 20 + log(v)) * u;
    return (bounds){.loss = weight * p * (2 * e + d) + 2 * u * fabs(loss),
                    .dx = weight * w * (f + u + 2 * (2 * v + 32) * u),
                    .dw = weight * p * (f + u + (2 * p + 2) * u),
                    .db = weight * p * (f + u + (2 * p + 2) * u),
                    .logit = 2 * e};
}

/* Compares; `scale` is what gradients were multiplied by. */
static void compare(test *t, int line, const head *h, const answer *got, const answer *exact,
                    double u)
{
    static const char *const names[] = {"loss", "dx", "dw", "db"};
    bounds b = bounds_of(h, u, exact->values[LOSS][0]);
    double bound[] = {b.loss, b.dx, b.dw, b.db}, scale = h->scale == 0 ? 1 : h->scale;
    char text[200];
    for (int k = LOSS; k < BEST; k++)
        for (int64_t i = 0; i < got->counts[k]; i++) {
            double x = got->values[k][i], y = exact->values[k][i];
            if (fabs(x - y) <= bound[k] * (k ? scale : 1) * 1.01) continue;
            snprintf(text, sizeof text, "[%lld,%lld,%lld] element %lld is %.9g, not %.9g +- %.3g",
                     (long long)h->rows, (long long)h->classes, (long long)h->width, (long long)i,
                     x, y, bound[k]);
            test_fail(t, __FILE__, line, names[k], text);
            return;
        }
}

/* The logit of a row and class, in f64. */
static double logit(const head *h, int64_t row, int64_t class)
{
    double z = h->no_bias ? 0 : drawn("b", class);
    for (int64_t i = 0; i < h->width; i++)
        z += drawn("x", row * h->width + i) * drawn("w", class * h->width + i) * factor_of(h, "w");
    return z;
}

/* The class found is that of the exact graph, or as good within the error of a logit. */
static void compare_best(test *t, const head *h, const answer *got, const answer *exact, double u)
{
    double off = bounds_of(h, u, 0).logit;
    for (int64_t r = 0; r < h->rows; r++) {
        int64_t x = (int64_t)got->values[BEST][r], y = (int64_t)exact->values[BEST][r];
        CHECK(t, x >= 0 && x < h->classes);
        CHECK(t, x == y || logit(h, r, y) - logit(h, r, x) <= off);
    }
}

static const char *const isas[] = {"portable", "avx2", "avx512", "neon", NULL};

/* -------------------------------------------------------------------------------- tests */

/* One tile and several, chunks and groups that are full and that are not. */
static const head shapes[] = {{1, 1, 1, .ignored = 0},
                              {1, 7, 3, .ignored = 0},
                              {7, 513, 33, .ignored = 3, .wide = true},
                              {127, 7, 16, .ignored = 5},
                              {128, 256, 16, .ignored = 4, .no_bias = true},
                              {129, 257, 17, .ignored = 2},
                              {300, 1031, 48, .ignored = 7, .wide = true},
                              {513, 127, 5, .ignored = 9},
                              {20, 4500, 40, .ignored = 6, .scale = 1024},
                              {5, 9, 0, .ignored = 2},
                              {4, 9, 3, .ignored = 1},
                              {200, 3000, 8, .ignored = 1},
                              {33, 70, 530, .ignored = 8}, /* several blocks of k */
                              /* 16 bits: three tiles; several blocks of k; products of several chunks,
                               * the last not full, and groups with an odd number of them */
                              {1100, 700, 24, .ignored = 6},
                              {33, 1300, 530, .ignored = 8},
                              {17, 5200, 35, .ignored = 5, .wide = true}};
enum { SHAPES = sizeof shapes / sizeof shapes[0], EXACT_SHAPES = SHAPES - 3 };

TEST_ONCE(head_loss_in_f64_is_the_plain_graph)
{
    static session plain, fused;
    test_defer(t, session_close, &plain);
    test_defer(t, session_close, &fused);
    for (int n = 0; n < EXACT_SHAPES; n++) {
        head h = shapes[n];
        h.dtype = ZF_F64;
        OK(t, run(t, &plain, &h, false, (zf_cpu_desc){.threads = 2}), plain.error.text);
        OK(t, run(t, &fused, &h, true, (zf_cpu_desc){.threads = 2}), fused.error.text);
        compare(t, __LINE__, &h, &fused.answer, &plain.answer, 0x1p-53);
        compare_best(t, &h, &fused.answer, &plain.answer, 0x1p-53);
        session_close(&plain);
        session_close(&fused);
    }
}

TEST_ONCE(head_loss_in_f32_is_near_the_plain_graph_in_f64)
{
    static session plain, fused;
    test_defer(t, session_close, &plain);
    test_defer(t, session_close, &fused);
    for (int n = 0; n < EXACT_SHAPES; n++) {
        head h = shapes[n];
        h.dtype = ZF_F64;
        OK(t, run(t, &plain, &h, false, (zf_cpu_desc){.threads = 2}), plain.error.text);
        h.dtype = ZF_F32;
        for (int k = -1; k < 4; k++) {
            zf_cpu_desc cpu = {.threads = 2, .reference = k < 0, .isa = k < 0 ? NULL : isas[k]};
            if (k >= 0 && (!TEST_TAKES(n + k) || !test_has_isa(t, isas[k]))) continue;
            OK(t, run(t, &fused, &h, true, cpu), fused.error.text);
            compare(t, __LINE__, &h, &fused.answer, &plain.answer, 0x1p-24);
            compare_best(t, &h, &fused.answer, &plain.answer, 0x1p-24);
            session_close(&fused);
        }
        session_close(&plain);
    }
}

/* A weight of records is what they say: the exact graph over these numbers, which are rounded to bf16
 * for products in bf16. Its gradient is not there. */
TEST_ONCE(head_loss_over_records_is_that_over_their_numbers)
{
    static const head over[] = {
        {7, 513, 64, .ignored = 3, .wide = true, .records = {8, 64, ZF_F32}},
        {129, 257, 128, .ignored = 2, .no_bias = true, .records = {4, 128, ZF_BF16}},
        {300, 300, 192, .ignored = 7, .scale = 2, .records = {4, 64, ZF_F32}},
        {3, 9, 128, .ignored = 4, .records = {8, 64, ZF_BF16}}};
    static const zf_dtype dtypes[] = {ZF_F64, ZF_F32, ZF_BF16, ZF_F16};
    static session plain, fused;
    test_defer(t, session_close, &plain);
    test_defer(t, session_close, &fused);
    for (int n = 0; n < 16; n++) {
        const zf_dtype dtype = dtypes[n % 4];
        const double unit = dtype == ZF_BF16 ? 0x1p-8 : dtype == ZF_F16 ? 0x1p-11 : 0;
        zf_cpu_desc cpu = {.threads = 2,
                           .reference = n == 5,
                           .isa = test_has_isa(t, isas[n / 4]) ? isas[n / 4] : NULL};
        head h = over[n / 4];
        bounds b;
        h.dtype = ZF_F64;
        OK(t, run_as(t, &plain, &h, false, dtype == ZF_BF16 ? ZF_BF16 : ZF_F64, cpu),
           plain.error.text);
        h.dtype = dtype;
        OK(t, run(t, &fused, &h, true, cpu), fused.error.text);
        CHECK(t, !fused.answer.counts[DW] && fused.answer.counts[DX] == h.rows * h.width);
        if (!unit) {
            const double u = dtype == ZF_F64 ? 0x1p-53 : 0x1p-23; /* and that of a number */
            compare(t, __LINE__, &h, &fused.answer, &plain.answer, u);
        } else {
            const double by = h.scale != 0 ? h.scale : 1, dz = dtype == ZF_BF16 ? unit * weight : 0;
            b = bounds_of(&h, 0x1p-23, plain.answer.values[LOSS][0]);
            CHECK_NEAR(t, fused.answer.values[LOSS][0], plain.answer.values[LOSS][0], b.loss);
            for (int64_t i = 0; i < fused.answer.counts[DX]; i++) {
                const double x = plain.answer.values[DX][i];
                CHECK_NEAR(t, fused.answer.values[DX][i], x,
                           1.01 * by * (b.dx + 2 * dz) + 1.01 * unit * fabs(x) + 0x1p-24);
            }
        }
        session_close(&plain);
        session_close(&fused);
    }
}

/* Logits of bf16 and f16 operands are sums in f32 that nothing rounds to 16 bits, so the loss is
 * that of the same numbers in f64. Gradients are rounded at the end, half a unit of 8 or 11 bits;
 * of bf16, so is dz before, whose magnitudes add up to 2 weight for a row. */
TEST_ONCE(head_loss_of_16_bits_has_the_loss_of_its_operands)
{
    static const zf_dtype dtypes[] = {ZF_BF16, ZF_F16};
    static session plain, fused;
    test_defer(t, session_close, &plain);
    test_defer(t, session_close, &fused);
    for (int n = 0; n < SHAPES; n++) {
        head h = shapes[n];
        h.scale = 0, h.dtype = ZF_F64;
        OK(t, run(t, &plain, &h, false, (zf_cpu_desc){.threads = 2}), plain.error.text);
        for (int d = 0; d < 2; d++) {
            double unit = d ? 0x1p-11 : 0x1p-8, least = d ? 0x1p-25 : 0;
            if (!TEST_TAKES(n + d)) continue;
            h.dtype = dtypes[d];
            OK(t, run(t, &fused, &h, true, (zf_cpu_desc){.threads = 2}), fused.error.text);
            bounds b = bounds_of(&h, 0x1p-24, plain.answer.values[LOSS][0]);
            double dz = d ? 0 : unit * weight;
            double bound[] = {b.loss, b.dx + 2 * dz * factor_of(&h, "w"),
                              b.dw + dz * (double)h.rows, b.db};
            for (int k = LOSS; k < BEST; k++)
                for (int64_t i = 0; i < fused.answer.counts[k]; i++) {
                    double x = plain.answer.values[k][i];
                    CHECK_NEAR(t, fused.answer.values[k][i], x,
                               1.01 * (bound[k] + (k ? unit * fabs(x) + least : 0)));
                }
            session_close(&fused);
        }
        session_close(&plain);
    }
}

/* dz at the label of a row whose loss is almost 0 is exact relative to 1 - p, though exponentials are
 * kept in 16 bits and smaller ones than the least of f16 are needed. dz of the only row that counts
 * is db. The magnitudes of its other dz add up to as much, and each is rounded to 11 and to 8 bits. */
TEST(head_loss_of_16_bits_keeps_small_slopes)
{
    static const head sure = {2, 300, 8, .ignored = 2, .odd = 12, .odd_class = 69};
    static session plain, fused;
    head h = sure;
    double slope;
    test_defer(t, session_close, &plain);
    test_defer(t, session_close, &fused);
    h.dtype = ZF_F64;
    OK(t, run(t, &plain, &h, false, (zf_cpu_desc){.threads = 1}), plain.error.text);
    h.dtype = ZF_BF16;
    OK(t, run(t, &fused, &h, true, (zf_cpu_desc){.threads = 1}), fused.error.text);
    CHECK(t, label_of(&h, 1) == h.odd_class);
    slope = fabs(plain.answer.values[DB][h.odd_class]);
    CHECK(t, slope > 0 && slope < 0.01 * weight);
    for (int k = DX; k < BEST; k++)
        for (int64_t i = 0; i < plain.answer.counts[k]; i++) {
            const double x = plain.answer.values[k][i], size = k == DX ? 2 * slope : fabs(x);
            CHECK_NEAR(t, fused.answer.values[k][i], x,
                       (0x1p-8 + 0x1p-12) * size + 0x1p-9 * fabs(x) + 1e-5 * slope);
        }
}

TEST(head_loss_of_ignored_rows_is_nothing)
{
    static const head all[] = {{200, 300, 8, .dtype = ZF_F32, .ignored = 1},
                               {3, 9, 8, .dtype = ZF_F64, .ignored = 1},
                               {0, 9, 8, .dtype = ZF_F32},
                               {0, 9, 8, .dtype = ZF_F64}};
    static session s;
    test_defer(t, session_close, &s);
    for (size_t n = 0; n < sizeof all / sizeof all[0]; n++) {
        OK(t, run(t, &s, &all[n], true, (zf_cpu_desc){.threads = 2}), s.error.text);
        for (int k = LOSS; k < BEST; k++)
            for (int64_t i = 0; i < s.answer.counts[k]; i++) CHECK(t, s.answer.values[k][i] == 0);
        CHECK(t, s.answer.counts[BEST] == all[n].rows);
        compare_best(t, &all[n], &s.answer, &s.answer, 0);
        session_close(&s);
    }
}

/* Both are the same infinity, both are NaN, or they are near one another; the classes found are
 * equal. */
static bool alike(test *t, const head *h, const answer *got, const answer *exact, double u)
{
    bounds b = bounds_of(h, u, exact->values[LOSS][0]);
    double bound[] = {b.loss, b.dx, b.dw, b.db, 0};
    for (int k = LOSS; k <= BEST; k++)
        for (int64_t i = 0; i < got->counts[k]; i++) {
            double x = got->values[k][i], y = exact->values[k][i];
            char text[200];
            if (x == y || (isnan(x) && isnan(y)) || fabs(x - y) <= 1.01 * bound[k]) continue;
            snprintf(text, sizeof text, "bias %g of class %lld: element %lld of %d is %g, not %g",
                     h->odd, (long long)h->odd_class, (long long)i, k, x, y);
            test_fail(t, __FILE__, __LINE__, "other than the plain graph", text);
            return false;
        }
    return true;
}

/* Infinite and NaN logits, in the first chunk and in another, everywhere and alone: the result is
 * NaN exactly where it is in the plain graph. */
TEST_ONCE(head_loss_treats_special_values_as_the_plain_graph)
{
    static const double odd[] = {-INFINITY, INFINITY, NAN, -1e4, 1e4};
    static const int64_t classes[] = {0, 1, 270};
    static session plain, fused;
    test_defer(t, session_close, &plain);
    test_defer(t, session_close, &fused);
    for (int n = 0; n < 15; n++) {
        head h = {5, 300, 8, .dtype = ZF_F64, .ignored = 3};
        h.odd = odd[n / 3], h.odd_class = classes[n % 3];
        OK(t, run(t, &plain, &h, false, (zf_cpu_desc){.threads = 1}), plain.error.text);
        for (int wide = 0; wide < 2; wide++) {
            h.dtype = wide ? ZF_F64 : ZF_F32;
            OK(t, run(t, &fused, &h, true, (zf_cpu_desc){.threads = 1}), fused.error.text);
            if (!alike(t, &h, &fused.answer, &plain.answer, wide ? 0x1p-53 : 0x1p-24)) return;
            session_close(&fused);
        }
        h.dtype = ZF_BF16;
        OK(t, run(t, &fused, &h, true, (zf_cpu_desc){.threads = 1}), fused.error.text);
        for (int k = LOSS; k <= BEST; k++)
            for (int64_t i = 0; i < fused.answer.counts[k]; i++) {
                const double x = fused.answer.values[k][i], y = plain.answer.values[k][i];
                CHECK(t,
                      x == y || (isnan(x) && isnan(y)) || (k < BEST && isfinite(x) && isfinite(y)));
            }
        session_close(&fused);
        session_close(&plain);
    }
}

/* Tiles, chunks and groups are cut alike for any number of threads. The second is wide enough for
 * threads to share its columns, and the third has records. */
TEST_ONCE(head_loss_does_not_depend_on_threads)
{
    static const head all[] = {
        {300, 4500, 40, .dtype = ZF_F32, .ignored = 7, .wide = true},
        {530, 1500, 200, .dtype = ZF_BF16, .ignored = 7},
        {40, 700, 192, .dtype = ZF_BF16, .ignored = 7, .records = {8, 64, ZF_F32}}};
    static session one, more;
    test_defer(t, session_close, &one);
    test_defer(t, session_close, &more);
    for (int n = 0; n < 15; n++) {
        const head h = all[n / 5];
        const int k = n % 5; /* 4: the best instruction set of all */
        if (k < 4 ? !test_has_isa(t, isas[k]) : !TEST_LARGE) continue;
        if (n / 5 == 1 && (TEST_ONE_IN > 3 || TEST_SANITIZED)) continue; /* the largest */
        OK(t, run(t, &one, &h, true, (zf_cpu_desc){.threads = 1, .isa = isas[k]}), one.error.text);
        for (int threads = 2; threads <= 5; threads++) {
            if (threads > 3 && k < 4 && !TEST_TAKES(k + threads)) continue;
            OK(t, run(t, &more, &h, true, (zf_cpu_desc){.threads = threads, .isa = isas[k]}),
               more.error.text);
            for (int i = 0; i < 5; i++)
                CHECK(t, !memcmp(one.answer.values[i], more.answer.values[i],
                                 (size_t)one.answer.counts[i] * sizeof(double)));
            session_close(&more);
        }
        session_close(&one);
    }
}

/* If the loss is the graph's, the gradient's factor is 1, and no product with it is left; another
 * factor multiplies the saved gradients. */
TEST(head_loss_scales_its_gradient)
{
    static const head plain = {9, 300, 8, .dtype = ZF_F32, .ignored = 4};
    head scaled = plain;
    static session one, other;
    static char text[4096];
    test_defer(t, session_close, &one);
    test_defer(t, session_close, &other);
    scaled.scale = 1024;
    OK(t, run(t, &one, &plain, true, (zf_cpu_desc){.threads = 1}), one.error.text);
    OK(t, run(t, &other, &scaled, true, (zf_cpu_desc){.threads = 1}), other.error.text);
    for (int k = DX; k < BEST; k++)
        for (int64_t i = 0; i < one.answer.counts[k]; i++)
            CHECK(t, 1024 * one.answer.values[k][i] == other.answer.values[k][i]);
    CHECK(t, zf_graph_text(one.graph, text, sizeof text) < sizeof text);
    CHECK(t, !strstr(text, "mul"));
    CHECK(t, zf_graph_text(other.graph, text, sizeof text) < sizeof text);
    CHECK(t, strstr(text, "mul"));
}

TEST(head_loss_names_a_label_that_is_no_class)
{
    static const struct {
        int32_t label;
        const char *text;
    } bad[] = {{7, "head_loss %20: the label of row 2 is 7; it must be at least 0 and less than 7, "
                   "the number of classes, or -100 to be ignored"},
               {-1, "head_loss %20: the label of row 2 is -1; it must be at least 0 and less than "
                    "7, the number of classes, or -100 to be ignored"}};
    static const head h = {4, 7, 3, .dtype = ZF_F32};
    static session s;
    test_defer(t, session_close, &s);
    OK(t, run(t, &s, &h, true, (zf_cpu_desc){.threads = 1}), s.error.text);
    for (int n = 0; n < 2; n++) {
        int32_t labels[4] = {0, -100, bad[n].label, 9};
        OK(t, zf_write(s.program, zf_graph_find(s.graph, "labels"), labels, sizeof labels), NULL);
        CHECK(t, zf_step(s.program) == ZF_ERR_ARGUMENT);
        CHECK_TEXT(t, zf_program_error(s.program), bad[n].text);
    }
}

TEST(head_loss_explains_mistakes)
{
    static const struct {
        const char *text, *message;
    } mistakes[] = {
        {"i32[4,8] f32[9,8] i32[4] f32[] f32[9]",
         "6: head_loss: x must be float: f32, bf16, f16 or f64; "},
        {"f32[4,8] f32[8,9] i32[4] f32[] f32[9]", "6: head_loss: x [p, k] and w [n, k] are "
                                                  "needed; "},
        {"f32[4] f32[9,8] i32[4] f32[] f32[9]", "6: head_loss: x [p, k] and w [n, k] are needed; "},
        {"f32[4,8] f32[0,8] i32[4] f32[] f32[0]",
         "6: head_loss: 0 classes of 8 features; 1 to 2^31 - 1 of up to 2^31 - 1 are possible; "},
        {"f32[0,4294967296] f32[1,4294967296] i32[0] f32[] f32[1]",
         "6: head_loss: 1 classes of 4294967296 features; 1 to 2^31 - 1 of up to 2^31 - 1 are "
         "possible; "},
        {"f32[4,8] f64[9,8] i32[4] f32[] f32[9]",
         "6: head_loss: x, w and the bias must have one dtype; "},
        {"f32[4,8] f32[9,8] i32[4] f32[] bf16[9]",
         "6: head_loss: x, w and the bias must have one dtype; "},
        {"f32[4,8] f32[9,8] i32[5] f32[] f32[9]",
         "6: head_loss: the labels must be [4], one for each row of x; "},
        {"f32[4,8] f32[9,8] f32[4] f32[] f32[9]", "6: head_loss: the labels must be i32 or i64; "},
        {"bf16[4,8] bf16[9,8] i32[4] bf16[] bf16[9]", "6: head_loss: the weight must be f32[], or f32[4], of each row; "},
        {"f64[4,8] f64[9,8] i32[4] f64[1] f64[9]", "6: head_loss: the weight must be f64[], or f64[4], of each row; "},
        {"f32[4,8] f32[9,8] i32[4] f32[] f32[8]", "6: head_loss: the bias must be [9]; "},
        {"f32[4,64] f32[9,64] i32[4] f32[] f32[9] bits=8 block=64",
         "6: head_loss: operand 1 must be u8 [n, bytes], whole records of 68 bytes: the result of "
         "quantize; "},
        {"f32[4,64] u8[9,136] i32[4] f32[] f32[9] bits=8 block=64",
         "6: head_loss: x [p, k] and w [n, k] are needed; "},
        {"f32[4,64] u8[9,68] i32[4] f32[] f32[9] bits=3 block=64",
         "6: head_loss: bits is 3; it must be 8 or 4; "},
    };
    for (size_t n = 0; n < sizeof mistakes / sizeof mistakes[0]; n++) {
        char text[512], *to = text;
        zf_error error = {ZF_OK, ""};
        zf_graph *g;
        const char *type = mistakes[n].text;
        for (int k = 1; k <= 5; k++) {
            int length = (int)strcspn(type, " ");
            to += sprintf(to, "%%%d = input \"x%d\" : %.*s\n", k, k, length, type);
            type += length + (type[length] == ' ');
        }
        sprintf(to, "%%6 = head_loss %%1, %%2, %%3, %%4, %%5 {ignore=-100 %s} : f32[]\n", type);
        g = zf_graph_parse(text, strlen(text), &(zf_graph_desc){.allocator = t->allocator}, &error);
        zf_graph_free(g);
        if (error.status == ZF_ERR_NOMEM) OK(t, error.status, error.text);
        CHECK(t, !g);
        error.text[strlen(mistakes[n].message)] = '\0';
        CHECK_TEXT(t, error.text, mistakes[n].message);
    }
}

/* For a head like BERT's, besides parameters, inputs, gradients and outputs there is only the
 * scratch of one tile, a quarter of the logits and a little more. */
TEST_ONCE(head_loss_keeps_no_logits)
{
    static const head h = {640, 8192, 64, .dtype = ZF_F32, .ignored = 6},
                      many = {2000, 8192, 64, .dtype = ZF_BF16, .ignored = 6};
    static session s;
    size_t values = (size_t)(h.rows * h.width + h.classes * (h.width + 1)) * sizeof(float),
           logits = (size_t)(h.rows * h.classes) * sizeof(float);
    test_defer(t, session_close, &s);
    OK(t, run(t, &s, &h, true, (zf_cpu_desc){.threads = 2}), s.error.text);
    CHECK(t, zf_program_info_of(s.program).peak_bytes < 2 * values + logits * 4 / 10);
    session_close(&s);
    if (!TEST_LARGE) return;
    /* bf16, many rows: 1.5 KiB for each class, operands, gradients in both dtypes, and packed ones */
    OK(t, run(t, &s, &many, true, (zf_cpu_desc){.threads = 2}), s.error.text);
    values = (size_t)(many.rows * many.width + many.classes * (many.width + 1));
    CHECK(t, zf_program_info_of(s.program).peak_bytes <
                 values * 8 + (size_t)many.classes * 1536 + (3 << 20));
    session_close(&s);
    OK(t, run(t, &s, &h, false, (zf_cpu_desc){.threads = 2}), s.error.text);
    CHECK(t, zf_program_info_of(s.program).peak_bytes > 2 * values + logits);
}

/* What it does is counted: the logits, and each of dx and dw. */
TEST(head_loss_counts_its_operations)
{
    static const char *const grads[] = {"", "x", "w", "xw"};
    for (int n = 0; n < 4; n++) {
        char text[512];
        zf_error error = {ZF_OK, ""};
        zf_graph *g;
        zf_program *p;
        double flops;
        sprintf(text,
                "%%1 = %s \"x\" : f32[6,8]\n%%2 = %s \"w\" : f32[10,8]\n%%3 = input \"l\" : "
                "i64[6]\n%%4 = input \"s\" : f32[]\n%%5 = param \"b\" : f32[10]\n"
                "%%6 = head_loss %%1, %%2, %%3, %%4, %%5 {ignore=-100} : f32[]\noutput %%6 \"y\"\n",
                strchr(grads[n], 'x') ? "param" : "input",
                strchr(grads[n], 'w') ? "param" : "input");
        g = zf_graph_parse(text, strlen(text), &(zf_graph_desc){.allocator = t->allocator}, &error);
        NEED(t, g, &error);
        zf_autograd(g, zf_graph_find(g, "y"));
        p = zf_compile(g, NULL);
        flops = p ? zf_program_info_of(p).flops : 0;
        zf_program_free(p);
        error.status = zf_graph_status(g);
        zf_graph_free(g);
        OK(t, error.status, NULL);
        CHECK(t, flops == 2.0 * 6 * 8 * 10 * (double)(1 + strlen(grads[n])));
    }
}
