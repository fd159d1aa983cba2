/* Blocks of numbers as records, and back (quantize.c): the reference, and kernels of all
 * instruction sets, whose bits are equal.
 *
 * Kernels take q = x (1 / s), which needs no bounds where s is a normal number: it rounds to no
 * more than `most` (quantize.c). Blocks with smaller scales are made larger first.
 *
 * Processors are to wait for memory alone. So what takes long and is done once for a block, the
 * largest number and divisions by it, is done for a run of blocks before the integers are. */

/* x by, rounded to an integer, as the bits of a float: the integer is added to 1.5 * 2^23, where
 * floats are integers. */
enum { ZFI_INTEGER_0 = 0x4b400000 };

ZFI_BODY int32_t zfi_integer_bits(float x, float by) { return zfi_bits_of(x * by + 0x1.8p23f); }

/* The same within -most .. most. */
ZFI_BODY int32_t zfi_nearest_bits(float x, float by, int32_t most)
{
    int32_t bits = zfi_integer_bits(x, by);
    bits = bits > ZFI_INTEGER_0 + most ? ZFI_INTEGER_0 + most : bits;
    return bits < ZFI_INTEGER_0 - most ? ZFI_INTEGER_0 - most : bits;
}

/* The integer of these bits. */
ZFI_BODY float zfi_integer_of(int32_t bits) { return zfi_float_of(bits) - 0x1.8p23f; }

/* Two integers of 4 bits in a byte. */
ZFI_BODY uint8_t zfi_pair_of(int32_t low, int32_t high)
{
    return (uint8_t)((low & 15) | (int32_t)((uint32_t)high << 4));
}

/* Of f32 or bf16:
 * zfi_largest: the bits of the largest |x|; those of infinity and NaN have the largest exponent
 * zfi_quantize8, zfi_quantize4: q = x by to the nearest integer */
#define ZFI_QUANTIZE(suffix, type, integer, without_sign, widen)                                   \
    ZFI_BODY int32_t zfi_largest_##suffix##_body(zfi_isa isa, const type *x, int64_t n)            \
    {                                                                                              \
        integer most = 0;                                                                          \
        (void)isa;                                                                                 \
        ZFI_VECTOR                                                                                 \
        for (int64_t i = 0; i < n; i++) {                                                          \
            integer bits = without_sign;                                                           \
            most = bits > most ? bits : most;                                                      \
        }                                                                                          \
        return most;                                                                               \
    }                                                                                              \
    ZFI_KERNEL_OF(int32_t, zfi_largest_##suffix, (const type *x, int64_t n), (x, n))               \
    ZFI_BODY void zfi_quantize8_##suffix##_body(zfi_isa isa, uint8_t *q, const type *x, float by,  \
                                                int64_t n)                                         \
    {                                                                                              \
        (void)isa;                                                                                 \
        ZFI_VECTOR                                                                                 \
        for (int64_t i = 0; i < n; i++) q[i] = (uint8_t)zfi_integer_bits(widen(x[i]), by);         \
    }                                                                                              \
    ZFI_KERNEL(zfi_quantize8_##suffix, (uint8_t * q, const type *x, float by, int64_t n),          \
               (q, x, by, n))                                                                      \
    ZFI_BODY void zfi_quantize4_##suffix##_body(zfi_isa isa, uint8_t *q, const type *x, float by,  \
                                                int64_t n)                                         \
    {                                                                                              \
        const type *high = x + n / 2;                                                              \
        (void)isa;                                                                                 \
        ZFI_VECTOR                                                                                 \
        for (int64_t i = 0; i < n / 2; i++)                                                        \
            q[i] = zfi_pair_of(zfi_integer_bits(widen(x[i]), by),                                  \
                               zfi_integer_bits(widen(high[i]), by));                              \
    }                                                                                              \
    ZFI_KERNEL(zfi_quantize4_##suffix, (uint8_t * q, const type *x, float by, int64_t n),          \
               (q, x, by, n))

ZFI_QUANTIZE(f32, float, int32_t, zfi_bits_of(x[i]) & INT32_MAX, )
ZFI_QUANTIZE(bf16, uint16_t, int16_t, (int16_t)(x[i] & INT16_MAX), zfi_bf16_to_f32)

/* The integer in the lowest 4 bits. */
ZFI_BODY int32_t zfi_low_integer(int32_t q) { return ((q & 15) ^ 8) - 8; }

#define ZFI_DEQUANTIZE(suffix, type, assign, narrow)                                               \
    ZFI_BODY void zfi_dequantize8_##suffix##_body(zfi_isa isa, type *y, const uint8_t *q,          \
                                                  float scale, int64_t n)                          \
    {                                                                                              \
        (void)isa;                                                                                 \
        ZFI_VECTOR                                                                                 \
        for (int64_t i = 0; i < n; i++) y[i] assign narrow((float)(int8_t)q[i] * scale);           \
    }                                                                                              \
    ZFI_KERNEL(zfi_dequantize8_##suffix, (type * y, const uint8_t *q, float scale, int64_t n),     \
               (y, q, scale, n))                                                                   \
    ZFI_BODY void zfi_dequantize4_##suffix##_body(zfi_isa isa, type *y, const uint8_t *q,          \
                                                  float scale, int64_t n)                          \
    {                                                                                              \
        type *high = y + n / 2;                                                                    \
        (void)isa;                                                                                 \
        ZFI_VECTOR                                                                                 \
        for (int64_t i = 0; i < n / 2; i++) {                                                      \
            y[i] assign narrow((float)zfi_low_integer(q[i]) * scale);                              \
            high[i] assign narrow((float)zfi_low_integer(q[i] >> 4) * scale);                      \
        }                                                                                          \
    }                                                                                              \
    ZFI_KERNEL(zfi_dequantize4_##suffix, (type * y, const uint8_t *q, float scale, int64_t n),     \
               (y, q, scale, n))

/* A float, which is no NaN but that of IEEE operations, rounded to bf16. */
ZFI_BODY uint16_t zfi_near_bf16(float x)
{
    const uint32_t bits = (uint32_t)zfi_bits_of(x);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

ZFI_DEQUANTIZE(f32, float, =, )
ZFI_DEQUANTIZE(add, float, +=, )
ZFI_DEQUANTIZE(bf16, uint16_t, =, zfi_near_bf16)

/* Of f32 or bf16: h = x + S e; the bits of the largest |h|.
 * zfi_feedback_sum8: the same where e is unpacked from integers q of 8 bits with the scale
 * `kept` */
#define ZFI_FEEDBACK_SUM(suffix, type, widen)                                                      \
    ZFI_BODY int32_t zfi_feedback_sum_##suffix##_body(zfi_isa isa, float *h, const type *x,        \
                                                      const float *e, float scale, int64_t n)      \
    {                                                                                              \
        int32_t most = 0;                                                                          \
        (void)isa;                                                                                 \
        ZFI_VECTOR                                                                                 \
        for (int64_t i = 0; i < n; i++) {                                                          \
            const float more = scale * e[i], sum = widen(x[i]) + more;                             \
            const int32_t bits = zfi_bits_of(sum) & INT32_MAX;                                     \
            h[i] = sum;                                                                            \
            most = bits > most ? bits : most;                                                      \
        }                                                                                          \
        return most;                                                                               \
    }                                                                                              \
    ZFI_KERNEL_OF(int32_t, zfi_feedback_sum_##suffix,                                              \
                  (float *h, const type *x, const float *e, float scale, int64_t n),               \
                  (h, x, e, scale, n))                                                             \
    ZFI_BODY int32_t zfi_feedback_sum8_##suffix##_body(zfi_isa isa, float *h, float *e,            \
                                                       const type *x, const uint8_t *q,            \
                                                       float kept, float scale, int64_t n)         \
    {                                                                                              \
        int32_t most = 0;                                                                          \
        (void)isa;                                                                                 \
        ZFI_VECTOR                                                                                 \
        for (int64_t i = 0; i < n; i++) {                                                          \
            const float error = (float)(int8_t)q[i] * kept, more = scale * error;                  \
            const float sum = widen(x[i]) + more;                                                  \
            const int32_t bits = zfi_bits_of(sum) & INT32_MAX;                                     \
            h[i] = sum, e[i] = error;                                                              \
            most = bits > most ? bits : most;                                                      \
        }                                                                                          \
        return most;                                                                               \
    }                                                                                              \
    ZFI_KERNEL_OF(                                                                                 \
        int32_t, zfi_feedback_sum8_##suffix,                                                       \
        (float *h, float *e, const type *x, const uint8_t *q, float kept, float scale, int64_t n), \
        (h, e, x, q, kept, scale, n))

ZFI_FEEDBACK_SUM(f32, float, )
ZFI_FEEDBACK_SUM(bf16, uint16_t, zfi_bf16_to_f32)

/* Numbers that all elements of a block share. */
typedef struct zfi_feedback {
    float scale, by;  /* 1 / scale, or 0 for 0 */
    float beta, rest; /* (1 - beta) / S */
} zfi_feedback;

/* e = beta e + rest (h - y). Not by zfi_fma, which rounds otherwise on some sets. */
ZFI_BODY float zfi_kept_error(const zfi_feedback *f, float e, float h, float y)
{
    const float r = h - y, kept = f->beta * e, more = f->rest * r;
    return kept + more;
}

/* q, and the errors that are kept, in one pass; the bits of the largest of these. */
ZFI_BODY int32_t zfi_feedback8_body(zfi_isa isa, uint8_t *q, float *e, const float *h,
                                    const zfi_feedback *of, int64_t n)
{
    const zfi_feedback f = *of;
    int32_t most = 0;
    (void)isa;
    ZFI_VECTOR
    for (int64_t i = 0; i < n; i++) {
        const int32_t bits = zfi_integer_bits(h[i], f.by);
        const float kept = zfi_kept_error(&f, e[i], h[i], zfi_integer_of(bits) * f.scale);
        const int32_t size = zfi_bits_of(kept) & INT32_MAX;
        q[i] = (uint8_t)bits;
        e[i] = kept;
        most = size > most ? size : most;
    }
    return most;
}
ZFI_KERNEL_OF(int32_t, zfi_feedback8,
              (uint8_t * q, float *e, const float *h, const zfi_feedback *of, int64_t n),
              (q, e, h, of, n))

ZFI_BODY int32_t zfi_feedback4_body(zfi_isa isa, uint8_t *q, float *e, const float *h,
                                    const zfi_feedback *of, int64_t n)
{
    const zfi_feedback f = *of;
    const float *high = h + n / 2;
    float *above = e + n / 2;
    int32_t most = 0;
    (void)isa;
    ZFI_VECTOR
    for (int64_t i = 0; i < n / 2; i++) {
        const int32_t a = zfi_integer_bits(h[i], f.by), b = zfi_integer_bits(high[i], f.by);
        const float kept = zfi_kept_error(&f, e[i], h[i], zfi_integer_of(a) * f.scale),
                    more = zfi_kept_error(&f, above[i], high[i], zfi_integer_of(b) * f.scale);
        const int32_t size = zfi_bits_of(kept) & INT32_MAX, other = zfi_bits_of(more) & INT32_MAX;
        q[i] = zfi_pair_of(a, b);
        e[i] = kept, above[i] = more;
        most = size > most ? size : most;
        most = other > most ? other : most;
    }
    return most;
}
ZFI_KERNEL_OF(int32_t, zfi_feedback4,
              (uint8_t * q, float *e, const float *h, const zfi_feedback *of, int64_t n),
              (q, e, h, of, n))

/* The same errors, of what the records are known to say. */
ZFI_BODY void zfi_feedback_error_body(zfi_isa isa, float *e, const float *h, const float *y,
                                      const zfi_feedback *of, int64_t n)
{
    const zfi_feedback f = *of;
    (void)isa;
    ZFI_VECTOR
    for (int64_t i = 0; i < n; i++) e[i] = zfi_kept_error(&f, e[i], h[i], y[i]);
}
ZFI_KERNEL(zfi_feedback_error,
           (float *e, const float *h, const float *y, const zfi_feedback *of, int64_t n),
           (e, h, y, of, n))

#if ZFI_X86
/* With AVX2: integers of 4 bits as bf16 are looked up among the 16 numbers that a block has, the
 * low bytes of these and the high ones. Their order is that of unpacked bytes of both halves. */
ZFI_TARGET_AVX2 ZFI_INLINE void zfi_put_looked_up(uint16_t *y, __m256i index, __m256i low,
                                                  __m256i high)
{
    const __m256i a = _mm256_shuffle_epi8(low, index), b = _mm256_shuffle_epi8(high, index),
                  even = _mm256_unpacklo_epi8(a, b), odd = _mm256_unpackhi_epi8(a, b);
    _mm256_storeu_si256((__m256i *)(void *)y, _mm256_permute2x128_si256(even, odd, 0x20));
    _mm256_storeu_si256((__m256i *)(void *)(y + 16), _mm256_permute2x128_si256(even, odd, 0x31));
}

ZFI_TARGET_AVX2 ZFI_OPTIMIZE static void zfi_look_up4_bf16_avx2(uint16_t *y, const uint8_t *q,
                                                                float scale, int64_t n)
{
    const __m256i of_4 = _mm256_set1_epi8(15);
    uint8_t bytes[2][16];
    __m256i low, high;
    for (int k = 0; k < 16; k++) {
        const uint16_t number = zfi_near_bf16((float)zfi_low_integer(k) * scale);
        bytes[0][k] = (uint8_t)number, bytes[1][k] = (uint8_t)(number >> 8);
    }
    low = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)bytes[0]));
    high = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)bytes[1]));
    for (int64_t i = 0; i < n / 2; i += 32) {
        const __m256i both = _mm256_loadu_si256((const __m256i *)(const void *)(q + i));
        zfi_put_looked_up(y + i, _mm256_and_si256(both, of_4), low, high);
        zfi_put_looked_up(y + n / 2 + i, _mm256_and_si256(_mm256_srli_epi16(both, 4), of_4), low,
                          high);
    }
}

/* With AVX-512, for blocks of whole vectors. First q = x by: of 32 numbers as words, which hold the
 * lower halves of integer bits. */
ZFI_TARGET_AVX512 ZFI_INLINE __m512i zfi_integer_bits_avx512(__m512 x, __m512 by)
{
    return _mm512_castps_si512(_mm512_add_ps(_mm512_mul_ps(x, by), _mm512_set1_ps(0x1.8p23f)));
}

ZFI_TARGET_AVX512 ZFI_INLINE __m512i zfi_lower_words(__m512i a, __m512i b)
{
    const __m512i even =
        _mm512_set_epi16(62, 60, 58, 56, 54, 52, 50, 48, 46, 44, 42, 40, 38, 36, 34, 32, 30, 28, 26,
                         24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    return _mm512_permutex2var_epi16(a, even, b);
}

ZFI_TARGET_AVX512 ZFI_INLINE __m512i zfi_words_of(zf_dtype dtype, const void *x, int64_t i,
                                                  __m512 by)
{
    __m512i both, even, odd;
    if (dtype == ZF_F32) {
        const float *of = (const float *)x + i;
        return zfi_lower_words(zfi_integer_bits_avx512(_mm512_loadu_ps(of), by),
                               zfi_integer_bits_avx512(_mm512_loadu_ps(of + 16), by));
    }
    both = _mm512_loadu_si512((const uint16_t *)x + i);
    even = _mm512_slli_epi32(both, 16);
    odd = _mm512_and_si512(both, _mm512_set1_epi32(INT32_MIN >> 15));
    even = zfi_integer_bits_avx512(_mm512_castsi512_ps(even), by);
    odd = zfi_integer_bits_avx512(_mm512_castsi512_ps(odd), by);
    return _mm512_mask_blend_epi16(0xaaaaaaaa, even, _mm512_slli_epi32(odd, 16));
}

/* The low bytes of 32 words, and pairs of the integers of two. */
ZFI_TARGET_AVX512 ZFI_INLINE void zfi_put_low_bytes(uint8_t *q, __m512i words)
{
    _mm256_storeu_si256((__m256i *)(void *)q, _mm512_cvtepi16_epi8(words));
}

ZFI_TARGET_AVX512 ZFI_INLINE void zfi_put_pairs(uint8_t *q, __m512i low, __m512i high)
{
    zfi_put_low_bytes(q, _mm512_or_si512(_mm512_and_si512(low, _mm512_set1_epi16(15)),
                                         _mm512_slli_epi16(high, 4)));
}

ZFI_TARGET_AVX512 ZFI_INLINE void zfi_quantize_words(int bits, uint8_t *q, zf_dtype dtype,
                                                     const void *x, float factor, int64_t n)
{
    const __m512 by = _mm512_set1_ps(factor);
    if (bits == 8)
        for (int64_t i = 0; i < n; i += 32) zfi_put_low_bytes(q + i, zfi_words_of(dtype, x, i, by));
    else
        for (int64_t i = 0; i < n / 2; i += 32)
            zfi_put_pairs(q + i, zfi_words_of(dtype, x, i, by),
                          zfi_words_of(dtype, x, n / 2 + i, by));
}

ZFI_TARGET_AVX512 ZFI_OPTIMIZE static void zfi_quantize_avx512(int bits, uint8_t *q, zf_dtype dtype,
                                                               const void *x, float by, int64_t n)
{
    if (bits == 8 && dtype == ZF_F32) zfi_quantize_words(8, q, ZF_F32, x, by, n);
    else if (bits == 8) zfi_quantize_words(8, q, ZF_BF16, x, by, n);
    else if (dtype == ZF_F32) zfi_quantize_words(4, q, ZF_F32, x, by, n);
    else zfi_quantize_words(4, q, ZF_BF16, x, by, n);
}

/* 16 of f32 or bf16. */
ZFI_TARGET_AVX512 ZFI_INLINE __m512 zfi_floats_of(zf_dtype dtype, const void *x, int64_t i)
{
    const uint16_t *half = (const uint16_t *)x + i;
    if (dtype == ZF_F32) return _mm512_loadu_ps((const float *)x + i);
    return _mm512_castsi512_ps(_mm512_slli_epi32(
        _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)half)), 16));
}

/* The larger of `most` and the bits of |x|. */
ZFI_TARGET_AVX512 ZFI_INLINE __m512i zfi_larger_bits(__m512i most, __m512 x)
{
    const __m512i bits = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(INT32_MAX));
    return _mm512_max_epi32(most, bits);
}

/* zfi_feedback_sum8 and zfi_feedback4. */
ZFI_TARGET_AVX512 ZFI_INLINE int32_t zfi_sum_of_kept(zf_dtype dtype, float *h, float *e,
                                                     const void *x, const uint8_t *q, float kept,
                                                     float scale, int64_t n)
{
    const __m512 by = _mm512_set1_ps(kept), loss = _mm512_set1_ps(scale);
    __m512i most = _mm512_setzero_si512(), other = most;
    for (int64_t i = 0; i < n; i += 32) {
        const __m512i low = _mm512_cvtepi8_epi32(
                          _mm_loadu_si128((const __m128i *)(const void *)(q + i))),
                      high = _mm512_cvtepi8_epi32(
                          _mm_loadu_si128((const __m128i *)(const void *)(q + i + 16)));
        const __m512 a = _mm512_mul_ps(_mm512_cvtepi32_ps(low), by),
                     b = _mm512_mul_ps(_mm512_cvtepi32_ps(high), by),
                     u = _mm512_add_ps(zfi_floats_of(dtype, x, i), _mm512_mul_ps(loss, a)),
                     v = _mm512_add_ps(zfi_floats_of(dtype, x, i + 16), _mm512_mul_ps(loss, b));
        _mm512_storeu_ps(e + i, a), _mm512_storeu_ps(e + i + 16, b);
        _mm512_storeu_ps(h + i, u), _mm512_storeu_ps(h + i + 16, v);
        most = zfi_larger_bits(most, u), other = zfi_larger_bits(other, v);
    }
    return _mm512_reduce_max_epi32(_mm512_max_epi32(most, other));
}

ZFI_TARGET_AVX512 ZFI_OPTIMIZE static int32_t zfi_feedback_sum8_512(zf_dtype dtype, float *h,
                                                                    float *e, const void *x,
                                                                    const uint8_t *q, float kept,
                                                                    float scale, int64_t n)
{
    if (dtype == ZF_F32) return zfi_sum_of_kept(ZF_F32, h, e, x, q, kept, scale, n);
    return zfi_sum_of_kept(ZF_BF16, h, e, x, q, kept, scale, n);
}

/* The integer bits of 16 of h; their errors take the place of e. */
ZFI_TARGET_AVX512 ZFI_INLINE __m512i zfi_feedback_bits(float *e, const float *h,
                                                       const zfi_feedback *f, __m512i *most)
{
    const __m512 x = _mm512_loadu_ps(h);
    const __m512i bits = zfi_integer_bits_avx512(x, _mm512_set1_ps(f->by));
    const __m512 q = _mm512_sub_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(0x1.8p23f)),
                 r = _mm512_sub_ps(x, _mm512_mul_ps(q, _mm512_set1_ps(f->scale))),
                 kept = _mm512_mul_ps(_mm512_set1_ps(f->beta), _mm512_loadu_ps(e)),
                 sum = _mm512_add_ps(kept, _mm512_mul_ps(_mm512_set1_ps(f->rest), r));
    _mm512_storeu_ps(e, sum);
    *most = zfi_larger_bits(*most, sum);
    return bits;
}

ZFI_TARGET_AVX512 ZFI_OPTIMIZE static int32_t
zfi_feedback4_512(uint8_t *q, float *e, const float *h, const zfi_feedback *of, int64_t n)
{
    const zfi_feedback f = *of;
    __m512i most = _mm512_setzero_si512(), other = most;
    for (int64_t i = 0; i < n / 2; i += 16) {
        const __m512i low = zfi_feedback_bits(e + i, h + i, &f, &most),
                      high = zfi_feedback_bits(e + n / 2 + i, h + n / 2 + i, &f, &other),
                      pairs = _mm512_ternarylogic_epi32(_mm512_set1_epi32(15), low,
                                                        _mm512_slli_epi32(high, 4), 0xca);
        _mm_storeu_si128((__m128i *)(void *)(q + i), _mm512_cvtepi32_epi8(pairs));
    }
    return _mm512_reduce_max_epi32(_mm512_max_epi32(most, other));
}

/* Integers of 4 bits are looked up among the 16 numbers that a block has; of bf16 by the lowest 5
 * bits of a word, the highest of which means nothing. */
#define ZFI_INTEGERS_OF_4 _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1)

ZFI_TARGET_AVX512 ZFI_OPTIMIZE static void zfi_look_up4_f32(float *y, const uint8_t *q, float scale,
                                                            int64_t n)
{
    const __m512 numbers = _mm512_mul_ps(ZFI_INTEGERS_OF_4, _mm512_set1_ps(scale));
    for (int64_t i = 0; i < n / 2; i += 16) {
        const __m512i both =
            _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(q + i)));
        _mm512_storeu_ps(y + i, _mm512_permutexvar_ps(both, numbers));
        _mm512_storeu_ps(y + n / 2 + i, _mm512_permutexvar_ps(_mm512_srli_epi32(both, 4), numbers));
    }
}

ZFI_TARGET_AVX512 ZFI_OPTIMIZE static void zfi_look_up4_bf16(uint16_t *y, const uint8_t *q,
                                                             float scale, int64_t n)
{
    const __m512 numbers = _mm512_mul_ps(ZFI_INTEGERS_OF_4, _mm512_set1_ps(scale));
    const __m512i bits = _mm512_castps_si512(numbers), one = _mm512_set1_epi32(1),
                  odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), one),
                  near = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __m512i table = _mm512_broadcast_i64x4(_mm512_cvtepi32_epi16(
        _mm512_srli_epi32(isnan(scale) ? _mm512_set1_epi32(0x7fc00000) : near, 16)));
    for (int64_t i = 0; i < n / 2; i += 32) {
        const __m512i both =
            _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)(q + i)));
        _mm512_storeu_si512(y + i, _mm512_permutexvar_epi16(both, table));
        _mm512_storeu_si512(y + n / 2 + i,
                            _mm512_permutexvar_epi16(_mm512_srli_epi16(both, 4), table));
    }
}

/* Of several parts at once, added in their order; with `add` to y. */
enum { ZFI_PARTS_AT_ONCE = 8 };

ZFI_TARGET_AVX512 ZFI_OPTIMIZE static void zfi_look_up4_sum(float *y, const uint8_t *const *q,
                                                            const float *scales, int parts,
                                                            bool add, int64_t n)
{
    __m512 numbers[ZFI_PARTS_AT_ONCE];
    for (int p = 0; p < parts; p++)
        numbers[p] = _mm512_mul_ps(ZFI_INTEGERS_OF_4, _mm512_set1_ps(scales[p]));
    for (int64_t i = 0; i < n / 2; i += 16) {
        __m512 low = _mm512_setzero_ps(), high = low;
        if (add) low = _mm512_loadu_ps(y + i), high = _mm512_loadu_ps(y + n / 2 + i);
        for (int p = 0; p < parts; p++) {
            const __m512i both =
                _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(q[p] + i)));
            const __m512 a = _mm512_permutexvar_ps(both, numbers[p]),
                         b = _mm512_permutexvar_ps(_mm512_srli_epi32(both, 4), numbers[p]);
            low = add || p ? _mm512_add_ps(low, a) : a;
            high = add || p ? _mm512_add_ps(high, b) : b;
        }
        _mm512_storeu_ps(y + i, low), _mm512_storeu_ps(y + n / 2 + i, high);
    }
}
#endif

/* The scale of a block by the largest |x| of it; NaN where that is no number. */
static float zfi_block_scale(const zfi_blocks *b, float largest)
{
    float scale = isfinite(largest) ? largest / b->most : NAN;
    if (b->scale == ZF_BF16 && isfinite(largest)) scale = zfi_bf16_to_f32(zfi_f32_to_bf16(scale));
    return scale;
}

static void zfi_put_scale(const zfi_blocks *b, uint8_t *record, float scale)
{
    const uint16_t half = isnan(scale) ? 0x7fc0 : zfi_f32_to_bf16(scale);
    const uint32_t nan = 0x7fc00000;
    if (b->scale == ZF_BF16) memcpy(record, &half, sizeof half);
    else if (isnan(scale)) memcpy(record, &nan, sizeof nan);
    else memcpy(record, &scale, sizeof scale);
}

/* The scale of a record, one NaN where it is any; *q: its integers. */
static float zfi_get_scale(const zfi_blocks *b, const uint8_t *record, const uint8_t **q)
{
    uint16_t half;
    float scale;
    *q = record + zf_dtype_size(b->scale);
    if (b->scale == ZF_F32) {
        memcpy(&scale, record, sizeof scale);
    } else {
        memcpy(&half, record, sizeof half);
        scale = zfi_bf16_to_f32(half);
    }
    return isnan(scale) ? zfi_float_of(0x7fc00000) : scale;
}

/* 1 / (scale up), where up is a power of 2 with which it does not overflow. */
static float zfi_inverse_scale(float scale, float *up)
{
    *up = scale < FLT_MIN ? 0x1p64f : 1;
    return 1 / (scale * *up);
}

/* The integers q = x by. */
static void zfi_put_integers(zfi_isa isa, const zfi_blocks *b, uint8_t *q, zf_dtype dtype,
                             const void *x, float by)
{
#if ZFI_X86
    if (isa >= ZFI_ISA_AVX512) {
        zfi_quantize_avx512(b->bits, q, dtype, x, by, b->block);
        return;
    }
#endif
    if (dtype == ZF_BF16 && b->bits == 8) zfi_quantize8_bf16(isa, q, x, by, b->block);
    else if (dtype == ZF_BF16) zfi_quantize4_bf16(isa, q, x, by, b->block);
    else if (b->bits == 8) zfi_quantize8_f32(isa, q, x, by, b->block);
    else zfi_quantize4_f32(isa, q, x, by, b->block);
}

/* h = x + S e and e, of errors that are integers of 8 bits; x of f32 or bf16. */
static int32_t zfi_feedback_sum8(zfi_isa isa, zf_dtype dtype, float *h, float *e, const void *x,
                                 const uint8_t *q, float kept, float scale, int64_t n)
{
#if ZFI_X86
    if (isa >= ZFI_ISA_AVX512) return zfi_feedback_sum8_512(dtype, h, e, x, q, kept, scale, n);
#endif
    if (dtype == ZF_BF16) return zfi_feedback_sum8_bf16(isa, h, e, x, q, kept, scale, n);
    return zfi_feedback_sum8_f32(isa, h, e, x, q, kept, scale, n);
}

/* The integers of h, and the errors that are kept. */
static int32_t zfi_put_feedback(zfi_isa isa, const zfi_blocks *b, uint8_t *q, float *e,
                                const float *h, const zfi_feedback *f)
{
    if (b->bits == 8) return zfi_feedback8(isa, q, e, h, f, b->block);
#if ZFI_X86
    if (isa >= ZFI_ISA_AVX512) return zfi_feedback4_512(q, e, h, f, b->block);
#endif
    return zfi_feedback4(isa, q, e, h, f, b->block);
}

/* The integers where the scale is subnormal, with bounds. */
static void zfi_put_small_integers(zfi_isa isa, const zfi_blocks *b, uint8_t *q, zf_dtype dtype,
                                   const void *x, float scale)
{
    float wide[ZFI_BLOCK_MOST], up;
    const float by = zfi_inverse_scale(scale, &up), most = (b->most + 0.25f) * (scale * up);
    zfi_widen(isa, wide, dtype, x, b->block);
    for (int64_t i = 0; i < b->block; i++) {
        const float large = wide[i] * up;
        wide[i] = large > most ? most : large < -most ? -most : large;
    }
    zfi_put_integers(isa, b, q, ZF_F32, wide, by);
}

/* The record of f32 or bf16 with this scale. */
static void zfi_put_record(zfi_isa isa, const zfi_blocks *b, uint8_t *record, zf_dtype dtype,
                           const void *x, float scale)
{
    uint8_t *q = record + zf_dtype_size(b->scale);
    zfi_put_scale(b, record, scale);
    if (!(scale > 0)) memset(q, 0, (size_t)(b->block * b->bits / 8));
    else if (scale < FLT_MIN) zfi_put_small_integers(isa, b, q, dtype, x, scale);
    else zfi_put_integers(isa, b, q, dtype, x, 1 / scale);
}

/* The blocks of a run, whose numbers wait in the first-level cache. */
enum { ZFI_RUN_MOST = ZFI_BLOCK_MOST / ZFI_BLOCK_LEAST };

static int64_t zfi_run_of(const zfi_blocks *b, int64_t count)
{
    return count < ZFI_BLOCK_MOST / b->block ? count : ZFI_BLOCK_MOST / b->block;
}

/* The records of f32 or bf16. */
static void zfi_quantize_blocks(zfi_isa isa, const zfi_blocks *b, uint8_t *records, zf_dtype dtype,
                                const void *x, int64_t count)
{
    const size_t each = (size_t)b->block * zf_dtype_size(dtype);
    const char *from = x;
    for (int64_t run; count > 0; count -= run) {
        float scales[ZFI_RUN_MOST];
        run = zfi_run_of(b, count);
        for (int64_t k = 0; k < run; k++) {
            const void *of = from + (size_t)k * each;
            const int32_t largest = dtype == ZF_BF16 ? zfi_largest_bf16(isa, of, b->block) * 65536
                                                     : zfi_largest_f32(isa, of, b->block);
            scales[k] = zfi_block_scale(b, zfi_float_of(largest));
        }
        for (int64_t k = 0; k < run; k++, records += b->record, from += each) {
            if (count - run > k) zfi_prefetch_bytes(from + (size_t)run * each, (int64_t)each);
            zfi_put_record(isa, b, records, dtype, from, scales[k]);
        }
    }
}

/* y[0..block), of f32 or bf16, = what the record says; with `add`, for f32 alone, += it. */
static void zfi_dequantize_block(zfi_isa isa, const zfi_blocks *b, zf_dtype dtype, void *y,
                                 const uint8_t *record, bool add)
{
    const uint8_t *q;
    const float scale = zfi_get_scale(b, record, &q);
#if ZFI_X86
    if (isa == ZFI_ISA_AVX2 && b->bits == 4 && dtype == ZF_BF16) {
        zfi_look_up4_bf16_avx2(y, q, scale, b->block);
        return;
    }
    if (isa >= ZFI_ISA_AVX512 && b->bits == 4 && !add) {
        if (dtype == ZF_BF16) zfi_look_up4_bf16(y, q, scale, b->block);
        else zfi_look_up4_f32(y, q, scale, b->block);
        return;
    }
#endif
    if (add && b->bits == 8) zfi_dequantize8_add(isa, y, q, scale, b->block);
    else if (add) zfi_dequantize4_add(isa, y, q, scale, b->block);
    else if (dtype == ZF_BF16 && b->bits == 8) zfi_dequantize8_bf16(isa, y, q, scale, b->block);
    else if (dtype == ZF_BF16) zfi_dequantize4_bf16(isa, y, q, scale, b->block);
    else if (b->bits == 8) zfi_dequantize8_f32(isa, y, q, scale, b->block);
    else zfi_dequantize4_f32(isa, y, q, scale, b->block);
}

/* y[0..block) = the sum of records that are `stride` bytes apart, in their order; with `add`, +=
 * it, record by record. */
static void zfi_dequantize_parts(zfi_isa isa, const zfi_blocks *b, float *y, const uint8_t *record,
                                 int64_t stride, int64_t parts, bool add)
{
#if ZFI_X86
    for (int64_t more; isa >= ZFI_ISA_AVX512 && b->bits == 4 && parts > 0; parts -= more) {
        const uint8_t *q[ZFI_PARTS_AT_ONCE];
        float scales[ZFI_PARTS_AT_ONCE];
        more = parts < ZFI_PARTS_AT_ONCE ? parts : ZFI_PARTS_AT_ONCE;
        for (int64_t p = 0; p < more; p++, record += stride)
            scales[p] = zfi_get_scale(b, record, &q[p]);
        if (more == 1 && !add) zfi_look_up4_f32(y, q[0], scales[0], b->block);
        else zfi_look_up4_sum(y, q, scales, (int)more, add, b->block);
        add = true;
    }
#endif
    for (int64_t p = 0; p < parts; p++, record += stride)
        zfi_dequantize_block(isa, b, ZF_F32, y, record, add || p);
}

/* The record of a block of any dtype, an element at a time. */
static void zfi_quantize_plain(const zfi_blocks *b, uint8_t *record, const zf_array *x,
                               int64_t first)
{
    const int64_t half = b->block / 2;
    uint8_t *q = record + zf_dtype_size(b->scale);
    double largest = 0;
    float scale, up, factor;
    for (int64_t i = first; i < first + b->block; i++) {
        const double size = fabs(zfi_get(x, i));
        if (size > largest || isnan(size)) largest = size;
    }
    scale = zfi_block_scale(b, (float)largest);
    zfi_put_scale(b, record, scale);
    memset(q, 0, (size_t)(b->block * b->bits / 8));
    factor = zfi_inverse_scale(scale, &up);
    for (int64_t i = 0; i < b->block && scale > 0; i++) {
        const float by = (float)(zfi_get(x, first + i) * (double)up * (double)factor);
        const int value = (int)nearbyintf(by < -b->most ? -b->most : by > b->most ? b->most : by);
        if (b->bits == 8) q[i] = (uint8_t)value;
        else q[i % half] |= (uint8_t)((value & 15) << (i < half ? 0 : 4));
    }
}

/* Element i of a record. */
static double zfi_dequantize_plain(const zfi_blocks *b, const uint8_t *record, int64_t i)
{
    const int64_t half = b->block / 2;
    const uint8_t *q;
    const double scale = (double)zfi_get_scale(b, record, &q);
    if (b->bits == 8) return scale * (int8_t)q[i];
    return scale * zfi_low_integer(q[i % half] >> (i < half ? 0 : 4));
}
