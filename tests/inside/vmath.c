/* Vector mathematics against the C library in double precision, over all exponents; reductions
 * against sums in double. */

static double vmath_sigmoid(double x) { return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x)); }
static double vmath_normal(double x) { return 0.5 * erfc(-x * 0.70710678118654752440); }
static double vmath_tanh_argument(double x)
{
    return 1.5957691216057308 * (x + 0.044715 * x * x * x);
}
static double vmath_silu(double x) { return x * vmath_sigmoid(x); }
static double vmath_silu_grad(double x)
{
    return x < -700 ? 0 : vmath_sigmoid(x) * (1 + (x > 700 ? 0 : x * vmath_sigmoid(-x)));
}
static double vmath_gelu(double x) { return x * vmath_normal(x); }
static double vmath_gelu_grad(double x)
{
    return vmath_normal(x) + (fabs(x) > 50 ? 0 : x * 0.39894228040143267794 * exp(-x * x / 2));
}
static double vmath_gelu_tanh(double x) { return x * vmath_sigmoid(vmath_tanh_argument(x)); }
static double vmath_gelu_tanh_grad(double x)
{
    double u = vmath_tanh_argument(x), s = vmath_sigmoid(u);
    return s + (fabs(x) > 50
                    ? 0
                    : s * vmath_sigmoid(-u) * 1.5957691216057308 * (x + 3 * 0.044715 * x * x * x));
}

static void vmath_one_gradient(void (*gradient)(zfi_isa, float *, const float *, const float *,
                                                int64_t),
                               zfi_isa isa, float *y, const float *x, int64_t n)
{
    static float one[4096];
    for (int i = 0; i < ZFI_COUNT(one); i++) one[i] = 1.0f;
    gradient(isa, y, one, x, n);
}

static void vmath_silu_grad_of_one(zfi_isa isa, float *y, const float *x, int64_t n)
{
    vmath_one_gradient(zfi_vsilu_grad, isa, y, x, n);
}
static void vmath_gelu_grad_of_one(zfi_isa isa, float *y, const float *x, int64_t n)
{
    vmath_one_gradient(zfi_vgelu_grad, isa, y, x, n);
}
static void vmath_gelu_tanh_grad_of_one(zfi_isa isa, float *y, const float *x, int64_t n)
{
    vmath_one_gradient(zfi_vgelu_tanh_grad, isa, y, x, n);
}

/* Bounds are those that cpu/vmath.c states: in units in the last place, or (relative to 0) of 2^-24
 * (1 + |x|). */
static const struct vmath_function {
    const char *name;
    void (*f)(zfi_isa, float *, const float *, int64_t);
    double (*exact)(double);
    double bound;
    bool absolute;
} vmath_functions[] = {
    {"exp", zfi_vexp, exp, 1.1, false},
    {"log", zfi_vlog, log, 1.0, false},
    {"tanh", zfi_vtanh, tanh, 2.6, false},
    {"erf", zfi_verf, erf, 2.0, false},
    {"sigmoid", zfi_vsigmoid, vmath_sigmoid, 2.5, false},
    {"silu", zfi_vsilu, vmath_silu, 2.5, true},
    {"gelu", zfi_vgelu, vmath_gelu, 2.5, true},
    {"gelu_tanh", zfi_vgelu_tanh, vmath_gelu_tanh, 2.5, true},
    {"silu_grad", vmath_silu_grad_of_one, vmath_silu_grad, 2.5, true},
    {"gelu_grad", vmath_gelu_grad_of_one, vmath_gelu_grad, 2.5, true},
    {"gelu_tanh_grad", vmath_gelu_tanh_grad_of_one, vmath_gelu_tanh_grad, 2.5, true},
};

/* How far y is from exact(x), in the function's units; 0 when both are NaN, the same infinity, or
 * rounded to it. */
static double vmath_error(const struct vmath_function *f, float x, float y)
{
    double exact = f->exact(x), unit;
    int exponent;
    if (isnan(exact) || isnan(y)) return isnan(exact) && isnan(y) ? 0 : INFINITY;
    if (isinf((float)exact) || isinf(y)) return (float)exact == y ? 0 : INFINITY;
    frexp(exact, &exponent);
    unit = f->absolute ? 0x1p-24 * (1 + fabs((double)x))
                       : ldexp(1, (exponent < -125 || exact == 0 ? -125 : exponent) - 24);
    return fabs(y - exact) / unit;
}

TEST_ONCE(vmath_errors)
{
    enum { ROW = 1024 };
    static float x[ROW], y[ROW];
    uint64_t random = 3;
    for (int f = 0; f < ZFI_COUNT(vmath_functions); f++)
        for (int i = 0; i < 3; i++)
            for (uint32_t top = 0; top < 512;
                 top++) { /* sign and exponent: denormals, infinity and NaN as well */
                zfi_isa isa = matmul_isa(t, i);
                for (uint32_t j = 0; j < ROW; j++) {
                    uint32_t bits = top << 23 | (j << 13);
                    random = random * 6364136223846793005u + 1442695040888963407u;
                    if (j) bits |= (uint32_t)(random >> 51);
                    x[j] = zfi_float_of((int32_t)bits);
                }
                vmath_functions[f].f(isa, y, x, ROW);
                for (int j = 0; j < ROW; j++)
                    if (!(vmath_error(&vmath_functions[f], x[j], y[j]) <=
                          vmath_functions[f].bound)) {
                        char text[160];
                        snprintf(text, sizeof text, "%s(%.9g) = %.9g on %s, exact %.17g, error %g",
                                 vmath_functions[f].name, x[j], y[j], zfi_isa_name(isa),
                                 vmath_functions[f].exact(x[j]),
                                 vmath_error(&vmath_functions[f], x[j], y[j]));
                        test_fail(t, __FILE__, __LINE__, "error bound", text);
                        return;
                    }
            }
}

TEST_ONCE(vmath_special_values)
{
    static const float x[] = {0.0f, -0.0f, INFINITY, -INFINITY, 1.0f};
    float y[5];
    for (int i = 0; i < 3; i++) {
        zfi_isa isa = matmul_isa(t, i);
        zfi_vexp(isa, y, x, 5);
        CHECK(t, y[0] == 1 && y[1] == 1 && y[2] == INFINITY && y[3] == 0);
        zfi_vlog(isa, y, x, 5);
        CHECK(t, y[0] == -INFINITY && y[1] == -INFINITY && y[2] == INFINITY && isnan(y[3]) &&
                     y[4] == 0);
        zfi_vtanh(isa, y, x, 5);
        CHECK(t,
              y[0] == 0 && !signbit(y[0]) && y[1] == 0 && signbit(y[1]) && y[2] == 1 && y[3] == -1);
        zfi_verf(isa, y, x, 5);
        CHECK(t,
              y[0] == 0 && !signbit(y[0]) && y[1] == 0 && signbit(y[1]) && y[2] == 1 && y[3] == -1);
        zfi_vsigmoid(isa, y, x, 5);
        CHECK(t, y[0] == 0.5f && y[2] == 1 && y[3] == 0);
        vmath_gelu_grad_of_one(isa, y, x, 5);
        CHECK(t, y[0] == 0.5f && y[2] == 1 && y[3] == 0);
        vmath_gelu_tanh_grad_of_one(isa, y, x, 5);
        CHECK(t, y[0] == 0.5f && y[2] == 1 && y[3] == 0);
        vmath_silu_grad_of_one(isa, y, x, 5);
        CHECK(t, y[0] == 0.5f && y[2] == 1 && y[3] == 0);
    }
}

/* The value of an element does not depend on its place, on the call, or on whether y is x. */
TEST_ONCE(vmath_any_cut_same_bits)
{
    enum { N = 211 };
    float x[N], whole[N], part[N];
    for (int i = 0; i < N; i++) x[i] = 0.07f * (float)(i - N / 2);
    for (int f = 0; f < ZFI_COUNT(vmath_functions); f++)
        for (int i = 0; i < 3; i++) {
            zfi_isa isa = matmul_isa(t, i);
            vmath_functions[f].f(isa, whole, x, N);
            for (int cut = 0; cut < 40; cut++) {
                memcpy(part, x, sizeof x);
                vmath_functions[f].f(isa, part, part, cut);
                vmath_functions[f].f(isa, part + cut, part + cut, N - cut);
                CHECK(t, !memcmp(part, whole, sizeof whole));
            }
        }
}

TEST_ONCE(vmath_reductions)
{
    enum { MOST = 5000 };
    static float x[MOST + 64], y[MOST + 64], moved[MOST + 64];
    matmul_random random = {4};
    for (int i = 0; i < MOST; i++) x[i] = matmul_value(&random), y[i] = matmul_value(&random);
    for (int n = 0; n <= MOST; n += n < 300 ? 1 : 471)
        for (int i = 0; i < 3; i++) {
            zfi_isa isa = matmul_isa(t, i);
            double sum = 0, dot = 0, squares = 0, size = 0, size_dot = 0;
            float most = -INFINITY, got = zfi_vsum(isa, x, n);
            /* additions that a term goes through: those of its lane and six of the fold */
            double steps = n / 64 + 8, unit = steps * 0x1p-24;
            for (int j = 0; j < n; j++) {
                sum += x[j], size += fabs((double)x[j]);
                dot += (double)x[j] * y[j], size_dot += fabs((double)x[j] * y[j]);
                squares += (double)x[j] * x[j];
                most = x[j] > most ? x[j] : most;
            }
            CHECK_NEAR(t, got, sum, unit * size);
            CHECK_NEAR(t, zfi_vdot(isa, x, y, n), dot, unit * size_dot);
            CHECK_NEAR(t, zfi_vsumsq(isa, x, n), squares, unit * squares);
            CHECK(t, zfi_vmax(isa, x, n) == most);
            memcpy(moved + n % 17, x, (size_t)n * sizeof *x); /* other addresses, same order */
            CHECK(t, zfi_vsum(isa, moved + n % 17, n) == got);
            if (n) {
                float kept = x[n / 2];
                x[n / 2] = NAN;
                CHECK(t, isnan(zfi_vmax(isa, x, n)));
                x[n / 2] = kept;
            }
        }
}

/* Every instruction set rounds to f16 as zfi_f32_to_f16 does, NaN and subnormals too, and at each end
 * of a run: all numbers of f16, those halfway to the next, and their neighbours in f32. */
TEST_ONCE(vmath_f16_rounds_alike)
{
    enum { N = 65536 };
    static float x[6 * N];
    static uint16_t y[6 * N], want[6 * N];
    const int best = (int)zfi_isa_best();
    for (int i = 0; i < N; i++) {
        const float low = zfi_f16_to_f32((uint16_t)i);
        const uint32_t bits = (uint32_t)zfi_bits_of(low), half = bits + 0x1000;
        const uint32_t all[] = {bits, bits - 1, half - 1, half, half + 1, (uint32_t)i * 65599u};
        for (int k = 0; k < 6; k++) x[6 * i + k] = zfi_float_of((int32_t)all[k]);
    }
    for (int i = 0; i < 6 * N; i++) want[i] = zfi_f32_to_f16(x[i]);
    for (int isa = 0; isa <= best; isa++) {
        if (best == ZFI_ISA_NEON && isa && isa < best) continue;
        memset(y, 0, sizeof y);
        zfi_narrow_f16((zfi_isa)isa, y, x, 6 * N);
        CHECK(t, !memcmp(y, want, sizeof y));
        for (int n = 0; n < 40; n++) {
            memset(y, 0, 41 * sizeof *y);
            zfi_narrow_f16((zfi_isa)isa, y, x + 6 * 31700, n); /* up to NaN */
            CHECK(t, !memcmp(y, want + 6 * 31700, (size_t)n * sizeof *y) && !y[n]);
        }
    }
}
