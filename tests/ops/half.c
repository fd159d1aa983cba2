/* bf16 and f16: conversions by definition, kernels on converted operands against the same graph in
 * f32, sums over ranks. */
#include "../support/test.h"

enum { PATTERNS = 1 << 16, MOST = 1 << 19 };

static const zf_dtype halves[] = {ZF_BF16, ZF_F16};
static const char *const isas[] = {"portable", "avx2", "avx512", "neon"};

/* -------------------------------------------------------------------------- conversions */

/* What 16 bits say. */
static double value_of(uint16_t bits, zf_dtype dtype)
{
    int digits = dtype == ZF_BF16 ? 7 : 10, bias = dtype == ZF_BF16 ? 127 : 15;
    int exponent = (bits & 0x7fff) >> digits, fraction = bits & ((1 << digits) - 1);
    double value = exponent == 2 * bias + 1 ? (fraction ? NAN : INFINITY)
                   : exponent ? ldexp(fraction + (1 << digits), exponent - bias - digits)
                              : ldexp(fraction, 1 - bias - digits);
    return bits & 0x8000 ? -value : value;
}

/* x to the nearest number of the dtype, ties to even. */
static double nearest(double x, zf_dtype dtype)
{
    int digits = dtype == ZF_BF16 ? 8 : dtype == ZF_F16 ? 11 : 24;
    int least = dtype == ZF_F16 ? -13 : -125, exponent;
    double limit = dtype == ZF_F16 ? 65536.0 : 0x1p128;
    if (x == 0 || !isfinite(x)) return x;
    (void)frexp(x, &exponent);
    if (exponent < least) exponent = least;
    x = ldexp(nearbyint(ldexp(x, digits - exponent)), exponent - digits);
    return fabs(x) >= limit ? copysign(INFINITY, x) : x;
}

static bool same(double a, double b)
{
    return isnan(a) ? isnan(b) : a == b && !signbit(a) == !signbit(b);
}

TEST_ONCE(half_values_are_what_their_bits_say)
{
    static uint16_t bits[PATTERNS], back[PATTERNS];
    static float single[PATTERNS];
    static double wide[PATTERNS];
    for (int i = 0; i < PATTERNS; i++) bits[i] = (uint16_t)i;
    for (int d = 0; d < 2; d++) {
        zf_convert(single, ZF_F32, bits, halves[d], PATTERNS);
        zf_convert(wide, ZF_F64, bits, halves[d], PATTERNS);
        for (int i = 0; i < PATTERNS; i++) {
            CHECK(t, same(single[i], value_of(bits[i], halves[d])));
            CHECK(t, same(wide[i], value_of(bits[i], halves[d])));
            CHECK(t, !signbit(single[i]) == (i < 0x8000));
        }
        for (int from = 0; from < 2; from++) {
            if (from) zf_convert(back, halves[d], wide, ZF_F64, PATTERNS);
            else zf_convert(back, halves[d], single, ZF_F32, PATTERNS);
            for (int i = 0; i < PATTERNS; i++)
                if (isnan(single[i])) CHECK(t, isnan(value_of(back[i], halves[d])));
                else CHECK(t, back[i] == bits[i]);
        }
    }
}

/* Numbers at which rounding to a dtype of 16 bits changes: halfway between two neighbours, and one
 * step of f32 or f64 on either side; then random ones. Returns how many. */
static int64_t turning_points(double *x, zf_dtype dtype, bool wide)
{
    uint64_t state = 1;
    int64_t n = 0;
    for (int i = 0; i < 0x7fff; i++) {
        double low = value_of((uint16_t)i, dtype), high = value_of((uint16_t)(i + 1), dtype);
        double middle =
            isinf(high) ? low + (low - value_of((uint16_t)(i - 1), dtype)) / 2 : (low + high) / 2;
        if (!isfinite(low)) break;
        x[n++] = i & 1 ? middle : -middle;
        for (int side = -1; side <= 1; side += 2)
            x[n++] = wide ? nextafter(middle, side * INFINITY)
                          : (double)nextafterf((float)middle, (float)side * INFINITY);
    }
    for (int i = 0; i < 100000; i++) {
        uint32_t bits;
        float value;
        state = state * 6364136223846793005u + 1442695040888963407u;
        bits = (uint32_t)(state >> 32);
        memcpy(&value, &bits, sizeof value);
        x[n++] = value;
    }
    return n;
}

TEST_ONCE(half_rounds_to_nearest)
{
    static double x[MOST];
    static float single[MOST];
    static uint16_t got[MOST];
    for (int d = 0; d < 2; d++)
        for (int wide = 0; wide < 2; wide++) {
            int64_t n = turning_points(x, halves[d], wide);
            for (int64_t i = 0; i < n; i++) single[i] = (float)x[i];
            zf_convert(got, halves[d], wide ? (void *)x : (void *)single, wide ? ZF_F64 : ZF_F32,
                       (size_t)n);
            for (int64_t i = 0; i < n; i++)
                CHECK(t, same(value_of(got[i], halves[d]), nearest(x[i], halves[d])));
        }
}

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

static zf_status session_open(test *t, session *s, const char *text, zf_cpu_desc cpu)
{
    session_close(s);
    cpu.allocator = t->allocator;
    s->graph =
        zf_graph_parse(text, strlen(text), &(zf_graph_desc){.allocator = t->allocator}, &s->error);
    if (!s->graph) return s->error.status;
    s->cpu = zf_cpu_backend(&cpu, &s->error);
    if (!s->cpu) return s->error.status;
    s->program = zf_compile(s->graph, &(zf_compile_desc){.backend = s->cpu, .seed = 3});
    if (s->program) return ZF_OK;
    snprintf(s->error.text, sizeof s->error.text, "%s", zf_graph_error(s->graph));
    return s->error.status = zf_graph_status(s->graph);
}

/* Writes data to the input `name`; reads the output. */
static zf_status session_write(session *s, const char *name, const void *data)
{
    zf_tensor x = zf_graph_find(s->graph, name);
    return zf_write(s->program, x, data, zf_tensor_bytes(x));
}

static zf_status session_read(session *s, const char *name, void *data)
{
    zf_tensor x = zf_graph_find(s->graph, name);
    return zf_read(s->program, x, data, zf_tensor_bytes(x));
}

/* cast does what zf_convert does, on every instruction set. */
TEST_ONCE(half_casts_are_conversions)
{
    static const zf_dtype floats[] = {ZF_F32, ZF_BF16, ZF_F16, ZF_F64};
    static double x[MOST], expected[MOST], got[MOST], from[MOST];
    static session s;
    test_defer(t, session_close, &s);
    for (int k = 0; k < 4; k++)
        for (int pair = 0; pair < 16 && test_has_isa(t, isas[k]); pair++) {
            zf_dtype a = floats[pair / 4], b = floats[pair % 4];
            int64_t n = turning_points(x, b == ZF_F16 ? ZF_F16 : ZF_BF16, a == ZF_F64);
            char text[256];
            snprintf(text, sizeof text,
                     "%%1 = input \"x\" : %s[%lld]\n%%2 = cast %%1 {to=%s} : %s[%lld]\n"
                     "output %%2 \"y\"\n",
                     zf_dtype_name(a), (long long)n, zf_dtype_name(b), zf_dtype_name(b),
                     (long long)n);
            OK(t, session_open(t, &s, text, (zf_cpu_desc){.isa = isas[k], .threads = 2}),
               s.error.text);
            zf_convert(from, a, x, ZF_F64, (size_t)n);
            zf_convert(expected, b, from, a, (size_t)n);
            OK(t, session_write(&s, "x", from), "x");
            OK(t, zf_step(s.program), zf_program_error(s.program));
            OK(t, session_read(&s, "y", got), "y");
            if (b != ZF_F64) { /* NaN may be any */
                CHECK(t, !memcmp(got, expected, (size_t)n * zf_dtype_size(b)));
            } else {
                for (int64_t i = 0; i < n; i++) CHECK(t, same(got[i], expected[i]));
            }
        }
}

/* ------------------------------------------------------------------------------- kernels */

/* A graph in which T is the dtype; operands are the lines `%k = input "xk"`, of T, i32 below 40, or
 * bool. The outputs are "y" and, where there is one, "z". */
static const struct {
    const char *operands, *body;
} graphs[] = {
    {"x0:T[70,300] x1:T[70,300]", "%3 = add %1, %2 : T[70,300]"},
    {"x0:T[70,300] x1:T[300]", "%3 = mul %1, %2 : T[70,300]"},
    {"x0:T[70,1] x1:T[300]", "%3 = sub %1, %2 : T[70,300]"},
    {"x0:T[70,300] x1:T[]", "%3 = maximum %1, %2 : T[70,300]"},
    {"x0:T[3,1,5,300] x1:T[4,1,300]", "%3 = add %1, %2 : T[3,4,5,300]"},
    {"x0:T[21000] x1:T[21000]", "%3 = less %1, %2 : bool[21000]"},
    {"x0:b[70,1,300] x1:T[5,300] x2:T[70,5,1]", "%4 = where %1, %2, %3 : T[70,5,300]"},
    {"x0:T[2,70000] x1:T[70000]", "%3 = add %1, %2 : T[2,70000]"},
    {"x0:T[70,300]", "%2 = gelu %1 : T[70,300]"},
    {"x0:T[70,300] x1:T[70,300]",
     "%3 = gelu_grad %1, %2 : T[70,300]\n%4 = saved %3 {index=0} : T[70,300]\noutput %4 \"z\""},
    {"x0:T[70,300] x1:T[70,300]", /* sums of rounded elements */
     "%3 = gelu_grad %1, %2 : T[70,300]\n%4 = saved %3 {index=1} : T[300]\n"
     "%5 = sum_to %3 {shape=[300]} : T[300]\n%6 = sub %4, %5 : T[300]\noutput %6 \"z\""},
    {"x0:T[70,300]", "%2 = dropout %1 {p=0.3 stream=5} : T[70,300]"},
    {"x0:T[70,300]", "%2 = softmax %1 : T[70,300]"},
    {"x0:T[7,10,300] x1:T[7,10,300]", "%3 = softmax_grad %1, %2 : T[7,10,300]"},
    {"x0:T[300,300] x1:f32[300,2] x2:T[300] x3:T[300]",
     "%5 = layer_norm %1, %2, %3, %4 : T[300,300]"},
    {"x0:T[300,300] x1:T[300,300] x2:f32[300,2] x3:T[300]",
     "%5 = layer_norm_grad %1, %2, %3, %4 : T[300,300]"},
    {"x0:T[70,300] x1:T[70,300] x2:f32[70,2]", "%4 = norm_gamma_grad %1, %2, %3 : T[300]"},
    {"x0:T[135,7] x1:T[135,7] x2:f32[135,2]", "%4 = norm_gamma_grad %1, %2, %3 : T[7]"},
    {"x0:T[70,300] x1:T[70,300]", "%3 = silu_grad %1, %2 : T[70,300]"},
    {"x0:T[70,300] x1:T[300]", "%3 = affine %1, %2 : T[70,300]"},
    {"x0:T[70,300] x1:T[70,300]", "%3 = swiglu %1, %2 : T[70,300]"},
    {"x0:T[11,2406]", "%2 = swiglu %1 : T[11,1203]"},
    {"x0:T[70,300] x1:T[70,300] x2:T[70,300]", "%4 = swiglu_grad %1, %2, %3 : T[70,300]"},
    {"x0:T[11,1203] x1:T[11,2406]", "%3 = swiglu_grad %1, %2 : T[11,2406]"},
    {"x0:T[2,35,1230]", "%2 = rope %1 {heads=41 theta=10000} : T[2,35,1230]"},
    {"x0:T[2,35,1020] x1:i32[35]",
     "%3 = rope %1, %2 {heads=1 theta=100 inverse=true} : T[2,35,1020]"},
    {"x0:T[70,300] x1:T[70,300] x2:T[300]",
     "%4 = residual_norm %1, %2, %3 {p=0 stream=0 eps=0.001 form=rms} : T[70,300]\n"
     "%5 = saved %4 {index=0} : T[70,300]\noutput %5 \"z\""},
    {"x0:T[70,300] x1:T[70,300] x2:T[300]",
     "%5 = residual_norm %1, %2, %3 {eps=0.001 form=rms sum=saved} : T[70,300]\n"
     "%4 = saved %5 {index=2} : T[70,300]"},
    {"x0:T[70,300] x1:T[70,300] x2:f32[70] x3:T[300]",
     "%5 = residual_norm_grad %1, %2, %3, %4 {form=rms} : T[70,300]\n"
     "%6 = saved %5 {index=1} : T[300]\noutput %6 \"z\""},
    {"x0:T[70,300]", "%2 = moments %1 {eps=0.001} : f32[70,2]"},
    {"x0:T[70,300]", "%2 = logsumexp %1 : T[70]"},
    {"x0:T[70] x1:T[70,300] x2:T[70] x3:i32[70]",
     "%5 = cross_entropy_grad %1, %2, %3, %4 {ignore=-100} : T[70,300]"},
    {"x0:T[70,300] x1:i32[70]", "%3 = scatter_rows %1, %2 {rows=40} : T[40,300]"},
    {"x0:T[70,300] x1:i32[70]",
     "%3 = scatter_rows %1, %2 {rows=40 padded=true padding=3} : T[40,300]"},
    {"x0:T[70,300]", "%2 = max %1 {axis=0} : T[300]"},
    {"x0:T[70,300]", "%2 = argmax %1 {axis=1} : i32[70]"},
    {"x0:T[70,1300]", "%2 = sum %1 {axis=0} : T[1300]"},
    {"x0:T[70,1300]", "%2 = sum %1 {axis=1} : T[70]"},
    {"x0:T[91000]", "%2 = sum_to %1 : T[]"},
    {"x0:T[9,50,70]", "%2 = sum_to %1 {shape=[50,1]} : T[50,1]"},
    {"x0:T[70,300]", "%2 = block_norms %1 : f32[21]"},
};

/* The graph as text, `dtype` in place of T. */
static void graph_text(char *text, const char *operands, const char *body, zf_dtype dtype)
{
    int at = 0, id = 1;
    for (const char *x = operands; *x; id++) {
        int length = (int)strcspn(x, " "), name = (int)strcspn(x, ":");
        at += sprintf(text + at, "%%%d = input \"%.*s\" : ", id, name, x);
        at += sprintf(text + at, "%s%.*s\n",
                      x[name + 1] == 'T'   ? zf_dtype_name(dtype)
                      : x[name + 1] == 'b' ? "bool"
                                           : "",
                      length - name - 1 - (strchr("Tb", x[name + 1]) != NULL),
                      x + name + 1 + (strchr("Tb", x[name + 1]) != NULL));
        x += length + (x[length] == ' ');
    }
    for (const char *b = body; *b; b++)
        if (*b == 'T' && b[1] == '[') at += sprintf(text + at, "%s", zf_dtype_name(dtype));
        else text[at++] = *b;
    sprintf(text + at, "\noutput %%%d \"y\"\n", id);
}

/* Fills the inputs with numbers of `half`, runs, and reads y and z, as f64. */
static zf_status run_graph(session *s, zf_dtype half, double *y, double *z, int64_t count[2])
{
    static double x[MOST];
    static unsigned char data[MOST * 8];
    zf_status status = ZF_OK;
    for (int k = 0; k < 4 && !status; k++) {
        char name[] = {'x', (char)('0' + k), 0};
        zf_tensor to = zf_graph_find(s->graph, name);
        int64_t n = zf_shape_count(zf_tensor_shape(to));
        uint64_t state = (uint64_t)k + 1;
        if (!zf_valid(to)) continue;
        for (int64_t i = 0; i < n; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            x[i] = (double)(state >> 40) * 0x1p-22 - 2;
            if (zf_tensor_dtype(to) == ZF_I32) x[i] = (double)(state >> 40 & 31);
            else if (zf_tensor_dtype(to) == ZF_BOOL) x[i] = (double)(state >> 40 & 1);
        }
        zf_convert(data, half, x, ZF_F64, (size_t)n);
        if (zf_tensor_dtype(to) != ZF_I32) zf_convert(x, ZF_F64, data, half, (size_t)n);
        zf_convert(data, zf_tensor_dtype(to), x, ZF_F64, (size_t)n);
        status = session_write(s, name, data);
    }
    if (!status) status = zf_step(s->program);
    for (int k = 0; k < 2 && !status; k++) {
        zf_tensor from = zf_graph_find(s->graph, k ? "z" : "y");
        count[k] = zf_valid(from) ? zf_shape_count(zf_tensor_shape(from)) : 0;
        if (!count[k]) continue;
        status = session_read(s, k ? "z" : "y", data);
        zf_convert(k ? z : y, ZF_F64, data, zf_tensor_dtype(from), (size_t)count[k]);
    }
    return status;
}

/* On operands that bf16 and f16 hold, operators give the results of f32, rounded once, to the last
 * bit, for any number of threads. */
TEST_ONCE(half_rows_are_rows_of_f32_rounded)
{
    static double single[2][MOST], got[2][MOST];
    static session s;
    test_defer(t, session_close, &s);
    for (size_t n = 0; n < sizeof graphs / sizeof graphs[0]; n++)
        for (int k = 0; k < 4; k++)
            for (int d = 0; d < 2 && test_has_isa(t, isas[k]); d++) {
                int64_t count[2], more[2];
                char text[1024];
                graph_text(text, graphs[n].operands, graphs[n].body, ZF_F32);
                OK(t, session_open(t, &s, text, (zf_cpu_desc){.isa = isas[k]}), s.error.text);
                OK(t, run_graph(&s, halves[d], single[0], single[1], count),
                   zf_program_error(s.program));
                graph_text(text, graphs[n].operands, graphs[n].body, halves[d]);
                for (int threads = 1; threads <= 3; threads += 2) {
                    OK(t, session_open(t, &s, text, (zf_cpu_desc){threads, .isa = isas[k]}),
                       s.error.text);
                    OK(t, run_graph(&s, halves[d], got[0], got[1], more),
                       zf_program_error(s.program));
                    for (int out = 0; out < 2; out++) {
                        zf_tensor of = zf_graph_find(s.graph, out ? "z" : "y");
                        bool narrow = zf_tensor_dtype(of) == halves[d];
                        CHECK(t, count[out] == more[out]);
                        for (int64_t i = 0; i < count[out]; i++) {
                            double exact = single[out][i];
                            if (narrow) exact = nearest(exact, halves[d]);
                            if (same(got[out][i], exact)) continue;
                            snprintf(text, sizeof text, "%s, %s, %d threads: element %lld is %.9g",
                                     zf_dtype_name(halves[d]), isas[k], threads, (long long)i,
                                     got[out][i]);
                            test_fail(t, __FILE__, __LINE__, graphs[n].body, text);
                            return;
                        }
                    }
                }
            }
}

/* Elementwise operators and operators BY_ROWS use a few pieces of scratch, not whole tensors. */
TEST(half_pieces_are_small)
{
    static const char *const bodies[] = {"%2 = gelu %1 : bf16[2048,1024]",
                                         "%2 = softmax %1 : bf16[2048,1024]"};
    static session s;
    test_defer(t, session_close, &s);
    for (int k = 0; k < 2; k++) {
        char text[1024];
        graph_text(text, "x0:T[2048,1024]", bodies[k], ZF_BF16);
        OK(t, session_open(t, &s, text, (zf_cpu_desc){.threads = 2}), s.error.text);
        CHECK(t, zf_program_info_of(s.program).peak_bytes <= (8u << 20) + (256 << 10));
    }
}

/* A bad label is found before pieces are handed out, and its row counts from the first one. */
TEST(half_labels_are_checked)
{
    static float zeros[70 * 300];
    static int32_t labels[70];
    static session s;
    char text[1024];
    test_defer(t, session_close, &s);
    graph_text(text, "x0:T[70] x1:T[70,300] x2:T[70] x3:i32[70]",
               "%5 = cross_entropy_grad %1, %2, %3, %4 {ignore=-100} : T[70,300]", ZF_BF16);
    OK(t, session_open(t, &s, text, (zf_cpu_desc){.threads = 2}), s.error.text);
    labels[66] = 300;
    OK(t, session_write(&s, "x0", zeros), "x0");
    OK(t, session_write(&s, "x1", zeros), "x1");
    OK(t, session_write(&s, "x2", zeros), "x2");
    OK(t, session_write(&s, "x3", labels), "x3");
    CHECK(t, zf_step(s.program) == ZF_ERR_ARGUMENT);
    CHECK_TEXT(t, zf_program_error(s.program),
               "cross_entropy_grad %5: the label of row 66 is 300; it must be at least 0 and less "
               "than 300, the number of classes, or -100 to be ignored");
}

/* --------------------------------------------------------------------------------- ranks */

TEST_ONCE(half_sums_over_ranks_round_once)
{
    enum { COUNT = 2500, WORLD = 3 };
    static uint16_t part[WORLD][COUNT], out[COUNT], before[COUNT];
    const void *parts[WORLD] = {part[0], part[1], part[2]};
    uint64_t state = 1;
    for (int d = 0; d < 2; d++)
        for (int add = 0; add < 2; add++) {
            for (int i = 0; i < COUNT; i++)
                for (int r = 0; r <= WORLD; r++) {
                    uint16_t *to = r == WORLD ? &before[i] : &part[r][i];
                    state = state * 6364136223846793005u + 1442695040888963407u;
                    *to = (uint16_t)(state >> 48); /* all kinds, infinities and NaN among them */
                }
            memcpy(out, before, sizeof out);
            zf_add_ranks(out, parts, WORLD, COUNT, halves[d], add);
            for (int i = 0; i < COUNT; i++) {
                float sum = (float)value_of(add ? before[i] : part[0][i], halves[d]);
                for (int r = !add; r < WORLD; r++) sum += (float)value_of(part[r][i], halves[d]);
                CHECK(t, same(value_of(out[i], halves[d]), nearest(sum, halves[d])));
            }
            /* onto a part */
            memcpy(before, out, sizeof out);
            if (!add) {
                zf_add_ranks(part[1], parts, WORLD, COUNT, halves[d], false);
                CHECK(t, !memcmp(part[1], before, sizeof before));
            }
        }
}
