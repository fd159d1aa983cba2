/* Conversions between floats, a run of elements at a time: f32 from and to bf16, f16 and f64, and
 * through it any to any.
 *
 * To nearest, ties to even; what is too large becomes infinite, subnormals are kept, NaN stays NaN.
 * A result is rounded once, also where it goes through f32: f64 is rounded to odd on the way to 16
 * bits (Boldo, Melquiond: Emulation of FMA and correctly rounded sums, 2008).
 */

/* bf16 is the upper half of a float. */
ZFI_BODY float zfi_bf16_to_f32(uint16_t bits)
{
    return zfi_float_of((int32_t)((uint32_t)bits << 16));
}

ZFI_BODY uint16_t zfi_f32_to_bf16(float x)
{
    uint32_t bits = (uint32_t)zfi_bits_of(x), near = bits + 0x7fff + (bits >> 16 & 1);
    bool nan = (bits & 0x7fffffff) > 0x7f800000;
    return (uint16_t)((nan ? bits | 0x400000 : near) >> 16);
}

/* f16 has 5 bits of exponent, whose bias is 112 less than a float's, and 10 of fraction. */
ZFI_BODY float zfi_f16_to_f32(uint16_t half)
{
    uint32_t magnitude = (uint32_t)(half & 0x7fff) << 13, sign = (uint32_t)(half & 0x8000) << 16;
    float one = zfi_float_of((int32_t)(magnitude + (113u << 23)));
    uint32_t subnormal = (uint32_t)zfi_bits_of(one - 0x1p-14f); /* exact: 2^-14 (1 + f) - 2^-14 */
    uint32_t normal = magnitude + (112u << 23);
    uint32_t infinite = magnitude | 0x7f800000 | (uint32_t)(magnitude > 0x0f800000) << 22;
    normal = magnitude >= 0x0f800000 ? infinite : normal;
    return zfi_float_of((int32_t)((magnitude < 0x00800000 ? subnormal : normal) | sign));
}

ZFI_BODY uint16_t zfi_f32_to_f16(float x)
{
    uint32_t bits = (uint32_t)zfi_bits_of(x), magnitude = bits & 0x7fffffff;
    /* in 1/2 + |x| the last bit is 2^-24, a subnormal's */
    float shifted = zfi_float_of((int32_t)magnitude) + 0.5f;
    uint32_t subnormal = (uint32_t)zfi_bits_of(shifted) - 0x3f000000;
    uint32_t normal = (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
    normal = magnitude >= 0x477ff000 ? 0x7c00 : normal; /* 65520 */
    normal = magnitude > 0x7f800000 ? 0x7e00 : normal;
    return (uint16_t)((magnitude < 0x38800000 ? subnormal : normal) | (bits >> 16 & 0x8000));
}

/* x to the next float towards zero, whose last bit is set where that is not exact. */
ZFI_BODY float zfi_f64_to_odd(double x)
{
    float near = (float)x;
    double wide = (double)near;
    bool inexact = wide != x && zfi_abs(near) <= FLT_MAX; /* false of NaN */
    bool above = inexact && (x < 0 ? wide < x : wide > x);
    return zfi_float_of((zfi_bits_of(near) - (int32_t)above) | (int32_t)inexact);
}

#define ZFI_CONVERSION_BODY(name, to, from, expression)                                            \
    ZFI_BODY void name##_body(zfi_isa isa, to *y, const from *x, int64_t n)                        \
    {                                                                                              \
        (void)isa;                                                                                 \
        ZFI_VECTOR                                                                                 \
        for (int64_t i = 0; i < n; i++) y[i] = expression;                                         \
    }
#define ZFI_CONVERSION(name, to, from, expression)                                                 \
    ZFI_CONVERSION_BODY(name, to, from, expression)                                                \
    ZFI_KERNEL(name, (to * y, const from *x, int64_t n), (y, x, n))

ZFI_CONVERSION(zfi_widen_bf16, float, uint16_t, zfi_bf16_to_f32(x[i]))
ZFI_CONVERSION(zfi_narrow_bf16, uint16_t, float, zfi_f32_to_bf16(x[i]))
ZFI_CONVERSION(zfi_near_f64, float, double, (float)x[i])
ZFI_CONVERSION(zfi_odd_f64, float, double, zfi_f64_to_odd(x[i]))
ZFI_CONVERSION(zfi_wide_f64, double, float, (double)x[i])

/* f16 by instructions, which give the bits of zfi_f16_to_f32: a vector of those at p. What rounds
 * to f16 keeps a NaN's bits; zfi_f32_to_f16 has one NaN of each sign. */
#if ZFI_X86
#define ZFI_AVX2_F16(p)   _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(p)))
#define ZFI_AVX512_F16(p) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(p)))

ZFI_TARGET_AVX2 ZFI_OPTIMIZE static void zfi_widen_f16_avx2(float *y, const uint16_t *x, int64_t n)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, ZFI_AVX2_F16(x + i));
    for (; i < n; i++) y[i] = zfi_f16_to_f32(x[i]);
}

ZFI_TARGET_AVX512 ZFI_OPTIMIZE static void zfi_widen_f16_avx512(float *y, const uint16_t *x,
                                                                int64_t n)
{
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) _mm512_storeu_ps(y + i, ZFI_AVX512_F16(x + i));
    for (; i < n; i++) y[i] = zfi_f16_to_f32(x[i]);
}

ZFI_TARGET_AVX2 ZFI_OPTIMIZE static void zfi_narrow_f16_avx2(uint16_t *y, const float *x, int64_t n)
{
    const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000)),
                 sign = _mm256_set1_ps(-0.0f);
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 v = _mm256_loadu_ps(x + i);
        v = _mm256_blendv_ps(v, _mm256_or_ps(nan, _mm256_and_ps(sign, v)),
                             _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
        _mm_storeu_si128((__m128i *)(void *)(y + i),
                         _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }
    for (; i < n; i++) y[i] = zfi_f32_to_f16(x[i]);
}

ZFI_TARGET_AVX512 ZFI_OPTIMIZE static void zfi_narrow_f16_avx512(uint16_t *y, const float *x,
                                                                 int64_t n)
{
    const __m512i nan = _mm512_set1_epi32(0x7fc00000), sign = _mm512_set1_epi32(INT32_MIN);
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m512i v = _mm512_loadu_si512(x + i);
        const __m512 f = _mm512_castsi512_ps(v);
        v = _mm512_mask_or_epi32(v, _mm512_cmp_ps_mask(f, f, _CMP_UNORD_Q), nan,
                                 _mm512_and_si512(sign, v));
        _mm256_storeu_si256(
            (__m256i *)(void *)(y + i),
            _mm512_cvtps_ph(_mm512_castsi512_ps(v), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }
    for (; i < n; i++) y[i] = zfi_f32_to_f16(x[i]);
}
#endif

ZFI_CONVERSION_BODY(zfi_widen_f16, float, uint16_t, zfi_f16_to_f32(x[i]))
ZFI_KERNEL_BY_HAND(void, , zfi_widen_f16, (float *y, const uint16_t *x, int64_t n), (y, x, n))
ZFI_CONVERSION_BODY(zfi_narrow_f16, uint16_t, float, zfi_f32_to_f16(x[i]))
ZFI_KERNEL_BY_HAND(void, , zfi_narrow_f16, (uint16_t * y, const float *x, int64_t n), (y, x, n))

/* Whether it is bf16 or f16. */
ZFI_INLINE bool zfi_is_half(zf_dtype dtype) { return dtype == ZF_BF16 || dtype == ZF_F16; }

/* y[0..n) = x[0..n), of bf16, f16 or f32. */
ZFI_UNUSED static void zfi_widen(zfi_isa isa, float *y, zf_dtype dtype, const void *x, int64_t n)
{
    if (dtype == ZF_BF16) zfi_widen_bf16(isa, y, x, n);
    else if (dtype == ZF_F16) zfi_widen_f16(isa, y, x, n);
    else if (n) memcpy(y, x, (size_t)n * sizeof *y);
}

/* y[0..n), of bf16, f16 or f32, = x[0..n). */
ZFI_UNUSED static void zfi_narrow(zfi_isa isa, void *y, zf_dtype dtype, const float *x, int64_t n)
{
    if (dtype == ZF_BF16) zfi_narrow_bf16(isa, y, x, n);
    else if (dtype == ZF_F16) zfi_narrow_f16(isa, y, x, n);
    else if (n) memcpy(y, x, (size_t)n * sizeof *x);
}

enum { ZFI_CONVERT_RUN = 1024 }; /* elements that wait in the first-level cache */

/* y[0..n) = x[0..n), both float of any kind; y may be x where the elements have one size. */
ZFI_UNUSED static void zfi_convert_floats(zfi_isa isa, void *y, zf_dtype y_dtype, const void *x,
                                          zf_dtype x_dtype, int64_t n)
{
    size_t y_size = zf_dtype_size(y_dtype), x_size = zf_dtype_size(x_dtype);
    if (y_dtype == x_dtype) {
        if (n) memmove(y, x, (size_t)n * y_size);
        return;
    }
    if (y_dtype == ZF_F32 && zfi_is_half(x_dtype)) {
        zfi_widen(isa, y, x_dtype, x, n);
        return;
    }
    if (x_dtype == ZF_F32 && zfi_is_half(y_dtype)) {
        zfi_narrow(isa, y, y_dtype, x, n);
        return;
    }
    for (int64_t i = 0, more; i < n; i += more) {
        const char *from = (const char *)x + (size_t)i * x_size;
        char *to = (char *)y + (size_t)i * y_size;
        float aside[ZFI_CONVERT_RUN];
        more = n - i < ZFI_CONVERT_RUN ? n - i : ZFI_CONVERT_RUN;
        if (x_dtype == ZF_F64 && zfi_is_half(y_dtype))
            zfi_odd_f64(isa, aside, (const double *)(const void *)from, more);
        else if (x_dtype == ZF_F64)
            zfi_near_f64(isa, aside, (const double *)(const void *)from, more);
        else zfi_widen(isa, aside, x_dtype, from, more);
        if (y_dtype == ZF_F64) zfi_wide_f64(isa, (double *)(void *)to, aside, more);
        else zfi_narrow(isa, to, y_dtype, aside, more);
    }
}
