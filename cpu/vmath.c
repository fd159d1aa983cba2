/* Vector mathematics: functions of single numbers for use inside kernels (zfi_exp1, ...), functions
 * of arrays (zfi_vexp, ...), and reductions of rows in a fixed order. */

ZFI_BODY float zfi_exp1(zfi_isa isa, float x)
{
    (void)isa;
    return expf(x);
}
ZFI_BODY float zfi_log1(zfi_isa isa, float x)
{
    (void)isa;
    return logf(x);
}
ZFI_BODY float zfi_tanh1(zfi_isa isa, float x)
{
    (void)isa;
    return tanhf(x);
}
ZFI_BODY float zfi_erf1(zfi_isa isa, float x)
{
    (void)isa;
    return erff(x);
}
ZFI_BODY float zfi_sigmoid1(zfi_isa isa, float x) { return 1.0f / (1.0f + zfi_exp1(isa, -x)); }
ZFI_BODY float zfi_silu1(zfi_isa isa, float x) { return x * zfi_sigmoid1(isa, x); }
ZFI_BODY float zfi_silu_grad1(zfi_isa isa, float x)
{
    float s = zfi_sigmoid1(isa, x);
    return s * (1.0f + x * (1.0f - s));
}
ZFI_BODY float zfi_gelu1(zfi_isa isa, float x)
{
    return 0.5f * x * (1.0f + zfi_erf1(isa, x * 0.70710678f));
}
ZFI_BODY float zfi_gelu_grad1(zfi_isa isa, float x)
{
    return 0.5f * (1.0f + zfi_erf1(isa, x * 0.70710678f)) +
           x * 0.39894228f * zfi_exp1(isa, -0.5f * x * x);
}
ZFI_BODY float zfi_gelu_tanh1(zfi_isa isa, float x)
{
    return 0.5f * x * (1.0f + zfi_tanh1(isa, 0.79788456f * (x + 0.044715f * x * x * x)));
}
ZFI_BODY float zfi_gelu_tanh_grad1(zfi_isa isa, float x)
{
    float t = zfi_tanh1(isa, 0.79788456f * (x + 0.044715f * x * x * x));
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * 0.79788456f * (1.0f + 0.134145f * x * x);
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

/* Reductions of a row: x[i] goes to lane i % ZFI_LANES, lanes are folded in a tree. */
ZFI_BODY float zfi_vsum_body(zfi_isa isa, const float *x, int64_t n)
{
    float lane[ZFI_LANES] = {0};
    int64_t i = 0;
    (void)isa;
    for (; i + ZFI_LANES <= n; i += ZFI_LANES)
        for (int l = 0; l < ZFI_LANES; l++) lane[l] += x[i + l];
    for (int l = 0; i < n; i++, l++) lane[l] += x[i];
    return zfi_fold_sum(lane);
}
ZFI_KERNEL_OF(float, zfi_vsum, (const float *x, int64_t n), (x, n))

ZFI_BODY float zfi_vdot_body(zfi_isa isa, const float *x, const float *y, int64_t n)
{
    float lane[ZFI_LANES] = {0};
    int64_t i = 0;
    for (; i + ZFI_LANES <= n; i += ZFI_LANES)
        for (int l = 0; l < ZFI_LANES; l++) lane[l] = zfi_fma(isa, x[i + l], y[i + l], lane[l]);
    for (int l = 0; i < n; i++, l++) lane[l] = zfi_fma(isa, x[i], y[i], lane[l]);
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
    (void)isa;
    for (int l = 0; l < ZFI_LANES; l++) lane[l] = -INFINITY;
    for (; i + ZFI_LANES <= n; i += ZFI_LANES)
        for (int l = 0; l < ZFI_LANES; l++) lane[l] = x[i + l] <= lane[l] ? lane[l] : x[i + l];
    for (int l = 0; i < n; i++, l++) lane[l] = x[i] <= lane[l] ? lane[l] : x[i];
    return zfi_fold_max(lane);
}
ZFI_KERNEL_OF(float, zfi_vmax, (const float *x, int64_t n), (x, n))
