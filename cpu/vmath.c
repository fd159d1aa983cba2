/* Vector mathematics: functions of single numbers for use inside kernels (zfi_exp1, ...), functions
 * of arrays (zfi_vexp, ...), and reductions of rows in a fixed order.
 *
 * The polynomials are minimax fits made for this file. NaN gives NaN. The maximum error over all
 * floats is, in units in the last place of the result,
 *
 *     exp 1.1    log 1    tanh 2.6    erf 2    sigmoid 2.5
 *
 * and in units of 2^-24 (1 + |x|), because they cross 0 or fall to it,
 *
 *     gelu, silu, their gradients and those of the tanh form 2.5
 */

/* 2^k as a float, for -126 <= k <= 127. */
ZFI_BODY float zfi_exp2_of(int32_t k) { return zfi_float_of((int32_t)((uint32_t)(k + 127) << 23)); }

/* e^r - 1 = r + r^2 q(r) for |r| <= ln(2) / 2. */
ZFI_BODY float zfi_expm1_small(zfi_isa isa, float r)
{
    float q = 0x1.6b9c68p-10f;
    q = zfi_fma(isa, q, r, 0x1.12254ap-7f);
    q = zfi_fma(isa, q, r, 0x1.5556f2p-5f);
    q = zfi_fma(isa, q, r, 0x1.5554b4p-3f);
    q = zfi_fma(isa, q, r, 0x1.fffffep-2f);
    return zfi_fma(isa, r * r, q, r);
}

/* x = n ln 2 + r, |r| <= ln(2) / 2: returns r and puts the integer n into *n; |x| < 10^4 or NaN. */
ZFI_BODY float zfi_exp_reduce(zfi_isa isa, float x, int32_t *n)
{
    const float big = 0x1.8p23f; /* x + big is rounded to an integer, in the low bits */
    float z = zfi_fma(isa, x, 0x1.715476p+0f, big), whole = z - big;
    *n = zfi_bits_of(z) - zfi_bits_of(big);
    x = zfi_fma(isa, whole, -0x1.62e4p-1f, x); /* 15 bits of ln 2: the product is exact */
    return zfi_fma(isa, whole, -0x1.7f7d1cp-20f, x);
}

/* e^x for -104.5 < x < 89 or NaN. */
ZFI_BODY float zfi_exp_within(zfi_isa isa, float x)
{
    int32_t n, half;
    float r = zfi_exp_reduce(isa, x, &n), y = 1.0f + zfi_expm1_small(isa, r);
    half = n >> 1; /* in two steps: 2^n itself may be out of range, above or below */
    return y * zfi_exp2_of(half) * zfi_exp2_of(n - half);
}

ZFI_BODY float zfi_exp1(zfi_isa isa, float x)
{
    return zfi_exp_within(isa, zfi_clamp(isa, x, -104.0f, 89.0f));
}

/* x = 2^e m with m in [sqrt(1/2), sqrt(2)); log m = f - f^2 / 2 + f^3 p(f), f = m - 1. */
ZFI_BODY float zfi_log1(zfi_isa isa, float x)
{
    bool tiny = x < FLT_MIN;
    float scaled = zfi_pick(isa, tiny, x * 0x1p23f, x), f, p, e, y;
    int32_t bits = zfi_bits_of(scaled), exponent = (int32_t)((uint32_t)bits - 0x3f3504f3u) >> 23;
    f = zfi_float_of((int32_t)((uint32_t)bits - ((uint32_t)exponent << 23))) - 1.0f;
    e = (float)exponent - zfi_pick(isa, tiny, 23.0f, 0.0f);
    p = -0x1.38d4fcp-4f;
    p = zfi_fma(isa, p, f, 0x1.0568b4p-3f);
    p = zfi_fma(isa, p, f, -0x1.0d84ccp-3f);
    p = zfi_fma(isa, p, f, 0x1.22d7d2p-3f);
    p = zfi_fma(isa, p, f, -0x1.54721ap-3f);
    p = zfi_fma(isa, p, f, 0x1.99a028p-3f);
    p = zfi_fma(isa, p, f, -0x1.000228p-2f);
    p = zfi_fma(isa, p, f, 0x1.555554p-2f);
    p = zfi_fma(isa, p, f, -0.5f);
    y = zfi_fma(isa, f * f, p, e * 0x1.7f7d1cp-20f) + f;
    y = zfi_fma(isa, e, 0x1.62e4p-1f, y);
    y = zfi_pick(isa, x < INFINITY, y, x); /* infinity, NaN */
    y = zfi_pick(isa, x < 0.0f, NAN, y);
    return zfi_pick(isa, x == 0.0f, -INFINITY, y);
}

/* -t / (t + 2) with t = e^(-2 |x|) - 1. */
ZFI_BODY float zfi_tanh1(zfi_isa isa, float x)
{
    float a = zfi_clamp(isa, zfi_abs(x), 0.0f, 9.1f), r, s, t; /* it is 1 from there on */
    int32_t n;
    r = zfi_exp_reduce(isa, -2.0f * a, &n);
    s = zfi_exp2_of(n);
    t = zfi_fma(isa, s, zfi_expm1_small(isa, r), s - 1.0f);
    return zfi_with_sign(zfi_abs(t) / (t + 2.0f), x);
}

/* erf(a) = a + a s(a^2) for 0 <= a <= 1. The longer polynomials are summed in pairs, which
 * shortens the chain of dependent operations. */
ZFI_BODY float zfi_erf_small(zfi_isa isa, float a)
{
    float b = a * a, b2 = b * b;
    float s01 = zfi_fma(isa, -0x1.812740p-2f, b, 0x1.06eba8p-3f);
    float s23 = zfi_fma(isa, -0x1.b7fe90p-6f, b, 0x1.ce2d50p-4f);
    float s45 = zfi_fma(isa, -0x1.a50b0ep-11f, b, 0x1.542e10p-8f);
    float s46 = zfi_fma(isa, 0x1.4c344ep-14f, b2, s45);
    float s = zfi_fma(isa, zfi_fma(isa, s46, b2, s23), b2, s01);
    return zfi_fma(isa, s, a, a);
}

/* 1 - erf(a) = e^(-a q(a)) for a >= 1; 0 from 10.05 on. */
ZFI_BODY float zfi_erfc_large(zfi_isa isa, float x)
{
    float a = zfi_clamp(isa, x, 0.0f, 10.05f), a2 = a * a, a4 = a2 * a2;
    float q01 = zfi_fma(isa, 0x1.448de8p-1f, a, 0x1.21020cp+0f);
    float q23 = zfi_fma(isa, -0x1.a5c5d0p-6f, a, 0x1.bc1b46p-4f);
    float q45 = zfi_fma(isa, -0x1.42e0aep-11f, a, 0x1.30f25ap-8f);
    float q67 = zfi_fma(isa, -0x1.d66f70p-19f, a, 0x1.dfc602p-15f);
    float q89 = zfi_fma(isa, -0x1.185084p-29f, a, 0x1.10149cp-23f);
    float q03 = zfi_fma(isa, q23, a2, q01), q47 = zfi_fma(isa, q67, a2, q45);
    float q = zfi_fma(isa, zfi_fma(isa, q89, a4, q47), a4, q03);
    return zfi_exp_within(isa, -a * q);
}

ZFI_BODY float zfi_erf1(zfi_isa isa, float x)
{
    float a = zfi_abs(x);
    a = zfi_pick(isa, a < 1.0f, zfi_erf_small(isa, a), 1.0f - zfi_erfc_large(isa, a));
    return zfi_with_sign(a, x);
}

/* The normal distribution function, (1 + erf(x / sqrt 2)) / 2, with small relative error also where
 * it is small. */
ZFI_BODY float zfi_normal1(zfi_isa isa, float x)
{
    float a = zfi_abs(x) * 0x1.6a09e6p-1f, tail = 0.5f * zfi_erfc_large(isa, a);
    float middle = zfi_fma(isa, 0.5f, zfi_with_sign(zfi_erf_small(isa, a), x), 0.5f);
    return zfi_pick(isa, a < 1.0f, middle, zfi_pick(isa, x < 0.0f, tail, 1.0f - tail));
}

/* 1 / (1 + e^-x), and one minus that in *rest, both with small relative error. */
ZFI_BODY float zfi_sigmoid_both(zfi_isa isa, float x, float *rest)
{
    float e = zfi_exp_within(isa, zfi_clamp(isa, -zfi_abs(x), -104.0f, 0.0f)),
          high = 1.0f / (1.0f + e), low = e * high;
    *rest = zfi_pick(isa, x < 0.0f, high, low);
    return zfi_pick(isa, x < 0.0f, low, high);
}

ZFI_BODY float zfi_sigmoid1(zfi_isa isa, float x)
{
    float rest;
    return zfi_sigmoid_both(isa, x, &rest);
}

ZFI_BODY float zfi_silu1(zfi_isa isa, float x) { return x * zfi_sigmoid1(isa, x); }

ZFI_BODY float zfi_silu_grad1(zfi_isa isa, float x)
{
    float rest, s = zfi_sigmoid_both(isa, x, &rest);
    return s * zfi_fma(isa, zfi_clamp(isa, x, -200.0f, 200.0f), rest, 1.0f);
}

ZFI_BODY float zfi_gelu1(zfi_isa isa, float x) { return x * zfi_normal1(isa, x); }

/* The distribution function, and x times the density. */
ZFI_BODY float zfi_gelu_grad1(zfi_isa isa, float x)
{
    float c = zfi_clamp(isa, x, -14.45f, 14.45f);
    return zfi_fma(isa, c * 0x1.988454p-2f, zfi_exp_within(isa, -0.5f * c * c),
                   zfi_normal1(isa, x));
}

/* x (1 + tanh u) / 2 = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3). */
ZFI_BODY float zfi_gelu_tanh1(zfi_isa isa, float x)
{
    return x * zfi_sigmoid1(isa, x * zfi_fma(isa, x * x, 0x1.2444f2p-4f, 0x1.988454p+0f));
}

ZFI_BODY float zfi_gelu_tanh_grad1(zfi_isa isa, float x)
{
    float c = zfi_clamp(isa, x, -20.0f, 20.0f), b = c * c, rest, s;
    s = zfi_sigmoid_both(isa, c * zfi_fma(isa, b, 0x1.2444f2p-4f, 0x1.988454p+0f), &rest);
    return zfi_fma(isa, s * rest, c * zfi_fma(isa, b, 3 * 0x1.2444f2p-4f, 0x1.988454p+0f), s);
}

/* y[i] = f(x[i]); y may be x. */
#define ZFI_ARRAY_FUNCTION(name)                                                                   \
    ZFI_BODY void zfi_v##name##_body(zfi_isa isa, float *y, const float *x, int64_t n)             \
    {                                                                                              \
        ZFI_VECTOR                                                                                 \
        for (int64_t i = 0; i < n; i++) y[i] = zfi_##name##1(isa, x[i]);                           \
    }                                                                                              \
    ZFI_KERNEL(zfi_v##name, (float *y, const float *x, int64_t n), (y, x, n))
/* dx[i] = dy[i] * f'(x[i]); dx may be dy or x. */
#define ZFI_ARRAY_GRADIENT(name)                                                                   \
    ZFI_BODY void zfi_v##name##_body(zfi_isa isa, float *dx, const float *dy, const float *x,      \
                                     int64_t n)                                                    \
    {                                                                                              \
        ZFI_VECTOR                                                                                 \
        for (int64_t i = 0; i < n; i++) dx[i] = dy[i] * zfi_##name##1(isa, x[i]);                  \
    }                                                                                              \
    ZFI_KERNEL(zfi_v##name, (float *dx, const float *dy, const float *x, int64_t n), (dx, dy, x, n))

/* The same together with y[i] = f(x[i]), which shares most of the computation. */
#define ZFI_ARRAY_BOTH(name)                                                                       \
    ZFI_BODY void zfi_v##name##_both_body(zfi_isa isa, float *dx, float *y, const float *dy,       \
                                          const float *x, int64_t n)                               \
    {                                                                                              \
        ZFI_VECTOR                                                                                 \
        for (int64_t i = 0; i < n; i++) {                                                          \
            float of = x[i], gradient = dy[i];                                                     \
            y[i] = zfi_##name##1(isa, of);                                                         \
            dx[i] = gradient * zfi_##name##_grad1(isa, of);                                        \
        }                                                                                          \
    }                                                                                              \
    ZFI_KERNEL(zfi_v##name##_both,                                                                 \
               (float *dx, float *y, const float *dy, const float *x, int64_t n),                  \
               (dx, y, dy, x, n))

ZFI_ARRAY_FUNCTION(exp)
ZFI_ARRAY_FUNCTION(log)
ZFI_ARRAY_FUNCTION(tanh)
ZFI_ARRAY_FUNCTION(erf)
ZFI_ARRAY_FUNCTION(sigmoid)
ZFI_ARRAY_FUNCTION(silu)
ZFI_ARRAY_FUNCTION(gelu)
ZFI_ARRAY_FUNCTION(gelu_tanh)
ZFI_ARRAY_GRADIENT(silu_grad)
ZFI_ARRAY_GRADIENT(gelu_grad)
ZFI_ARRAY_GRADIENT(gelu_tanh_grad)
ZFI_ARRAY_BOTH(silu)
ZFI_ARRAY_BOTH(gelu)
ZFI_ARRAY_BOTH(gelu_tanh)

/* Reductions of a row: x[i] goes to lane i % ZFI_LANES, lanes are folded in a tree. */
ZFI_BODY float zfi_vsum_body(zfi_isa isa, const float *x, int64_t n)
{
    float lane[ZFI_LANES] = {0};
    int64_t i = 0;
    (void)isa;
    for (; i + ZFI_LANES <= n; i += ZFI_LANES)
        for (int l = 0; l < ZFI_LANES; l++) lane[l] += x[i + l];
    for (int l = 0; l < n % ZFI_LANES; l++) lane[l] += x[i + l];
    return zfi_fold_sum(lane);
}
ZFI_KERNEL_OF(float, zfi_vsum, (const float *x, int64_t n), (x, n))

ZFI_BODY float zfi_vdot_body(zfi_isa isa, const float *x, const float *y, int64_t n)
{
    float lane[ZFI_LANES] = {0};
    int64_t i = 0;
    for (; i + ZFI_LANES <= n; i += ZFI_LANES)
        for (int l = 0; l < ZFI_LANES; l++) lane[l] = zfi_fma(isa, x[i + l], y[i + l], lane[l]);
    for (int l = 0; l < n % ZFI_LANES; l++) lane[l] = zfi_fma(isa, x[i + l], y[i + l], lane[l]);
    return zfi_fold_sum(lane);
}
ZFI_KERNEL_OF(float, zfi_vdot, (const float *x, const float *y, int64_t n), (x, y, n))

ZFI_BODY float zfi_vsumsq_body(zfi_isa isa, const float *x, int64_t n)
{
    return zfi_vdot_body(isa, x, x, n);
}
ZFI_KERNEL_OF(float, zfi_vsumsq, (const float *x, int64_t n), (x, n))

/* The largest of x; -inf when n is 0, NaN when one is NaN. */
ZFI_BODY float zfi_vmax_body(zfi_isa isa, const float *x, int64_t n)
{
    float lane[ZFI_LANES];
    int64_t i = 0;
    for (int l = 0; l < ZFI_LANES; l++) lane[l] = -INFINITY;
    for (; i + ZFI_LANES <= n; i += ZFI_LANES)
        for (int l = 0; l < ZFI_LANES; l++) lane[l] = zfi_max1(isa, lane[l], x[i + l]);
    for (int l = 0; l < n % ZFI_LANES; l++) lane[l] = zfi_max1(isa, lane[l], x[i + l]);
    return zfi_fold_max(isa, lane);
}
ZFI_KERNEL_OF(float, zfi_vmax, (const float *x, int64_t n), (x, n))

/* The largest of |x|; 0 when n is 0, NaN when one is NaN. */
ZFI_BODY float zfi_vabsmax_body(zfi_isa isa, const float *x, int64_t n)
{
    float lane[ZFI_LANES] = {0};
    int64_t i = 0;
    for (; i + ZFI_LANES <= n; i += ZFI_LANES)
        for (int l = 0; l < ZFI_LANES; l++) lane[l] = zfi_max1(isa, lane[l], fabsf(x[i + l]));
    for (int l = 0; l < n % ZFI_LANES; l++) lane[l] = zfi_max1(isa, lane[l], fabsf(x[i + l]));
    return zfi_fold_max(isa, lane);
}
ZFI_KERNEL_OF(float, zfi_vabsmax, (const float *x, int64_t n), (x, n))

/* cos and sin of x, |x| < 2^20, as if rounded once. x is reduced by the nearest multiple of pi / 2,
 * which is subtracted as the sum of two numbers; the series of the rest are summed in double. */
ZFI_BODY void zfi_cos_sin_body(zfi_isa isa, float *cosine, float *sine, const float *x, int64_t n)
{
    (void)isa;
    ZFI_VECTOR
    for (int64_t i = 0; i < n; i++) {
        double v = x[i], turns = v * 0.63661977236758134308;
        double whole = turns + 0x1.8p52 - 0x1.8p52;
        double t = (v - whole * 0x1.921fb544p+0) - whole * 0x1.0b4611a626331p-34, t2 = t * t;
        double s = 1.0 / 362880 - t2 / 39916800, c = 1.0 / 40320 - t2 / 3628800 + t2 * t2 / 479001600;
        s = t + t * t2 * (-1.0 / 6 + t2 * (1.0 / 120 + t2 * (-1.0 / 5040 + t2 * s)));
        c = 1 + t2 * (-1.0 / 2 + t2 * (1.0 / 24 + t2 * (-1.0 / 720 + t2 * c)));
        int32_t quarter = (int32_t)whole & 3;
        double of_cos = quarter & 1 ? s : c, of_sin = quarter & 1 ? c : s;
        cosine[i] = (float)(quarter == 1 || quarter == 2 ? -of_cos : of_cos);
        sine[i] = (float)(quarter >= 2 ? -of_sin : of_sin);
    }
}
ZFI_KERNEL(zfi_cos_sin, (float *cosine, float *sine, const float *x, int64_t n),
           (cosine, sine, x, n))
