/* One row of x times rows of records (quantize.c): what a single token needs of a quantised weight.
 * It is bound by reading the records; a row after the other, since processors fetch ahead along
 * one stream of memory better than along several.
 *
 * x becomes integers X of 16 bits, in blocks like those of the records, once for all rows. The unit
 * u of a block is the power of 2 with which its largest number has 15 bits:
 *
 *     x = u X + r      2^14 u <= max |x| < 2^15 u, u >= 2^-126      |r| <= u / 2, often 0 in bf16
 *     y = the sum over blocks of (s u times the sum over the block of q X)
 *
 * x of f32 has r in a second part of as many bits: R = 2^15 r / u. X and R are rounded to nearest
 * and are within -32767 .. 32767. u is NaN where a number of the block is not finite.
 *
 * Sums of a block are exact, in lanes of 32 bits: element i goes to lane i / 2 % 16. Those over
 * blocks are in f32:
 *
 *     sum[l] = fma(s u, sum of q X in lane l, sum[l])        and for R with s u 2^-15
 *
 * and the lanes are folded: l takes l + 8, then + 4, + 2, + 1. So bits are the same on all
 * instruction sets with fma. */

enum {
    ZFI_DOT_LANES = 16,
    ZFI_DOT_BYTES = 32,  /* of a record, that are read at once */
    ZFI_DOT_AHEAD = 4096 /* bytes that are fetched ahead */
};

/* x as integers. */
typedef struct zfi_dot_x {
    const int16_t *high, *low; /* X; R of f32, else NULL */
    const float *unit;         /* of each block */
} zfi_dot_x;

ZFI_BODY void zfi_dot_integers_body(zfi_isa isa, int16_t *high, const float *x, float by, int64_t n)
{
    (void)isa;
    ZFI_VECTOR
    for (int64_t i = 0; i < n; i++) high[i] = (int16_t)zfi_nearest_bits(x[i], by, INT16_MAX);
}
ZFI_KERNEL(zfi_dot_integers, (int16_t * high, const float *x, float by, int64_t n),
           (high, x, by, n))

/* What `high` leaves of x. */
ZFI_BODY void zfi_dot_rest_body(zfi_isa isa, int16_t *low, const int16_t *high, const float *x,
                                float by, int64_t n)
{
    (void)isa;
    ZFI_VECTOR
    for (int64_t i = 0; i < n; i++)
        low[i] = (int16_t)zfi_nearest_bits(x[i] * by - (float)high[i], 0x1p15f, INT16_MAX);
}
ZFI_KERNEL(zfi_dot_rest, (int16_t * low, const int16_t *high, const float *x, float by, int64_t n),
           (low, high, x, by, n))

/* Bytes of the integers of k elements. */
static size_t zfi_dot_bytes(const zfi_blocks *b, zf_dtype dtype, int64_t k)
{
    return (size_t)k * (dtype == ZF_F32 ? 4 : 2) + (size_t)(k / b->block) * sizeof(float);
}

/* Where in `room` the integers of x [k] are. */
static zfi_dot_x zfi_dot_x_in(const zfi_blocks *b, zf_dtype dtype, int64_t k, void *room)
{
    float *unit = room;
    int16_t *high = (int16_t *)(unit + k / b->block);
    return (zfi_dot_x){high, dtype == ZF_F32 ? high + k : NULL, unit};
}

/* Writes the integers of x [k], of f32, bf16 or f16, to `room`. */
static zfi_dot_x zfi_dot_x_of(zfi_isa isa, const zfi_blocks *b, zf_dtype dtype, const void *x,
                              int64_t k, void *room)
{
    float *unit = room, wide[ZFI_BLOCK_MOST];
    int16_t *high = (int16_t *)(unit + k / b->block), *low = dtype == ZF_F32 ? high + k : NULL;
    for (int64_t at = 0, r = 0; at < k; at += b->block, r++) {
        const float *from = dtype == ZF_F32 ? (const float *)x + at : wide;
        int32_t exponent, of_unit;
        float by;
        if (dtype != ZF_F32) zfi_widen(isa, wide, dtype, zfi_element(x, dtype, at), b->block);
        exponent = zfi_largest_f32(isa, from, b->block) >> 23;
        of_unit = exponent > 14 ? exponent - 14 : 1;
        by = zfi_float_of((254 - of_unit) << 23);
        unit[r] = exponent == 255 ? NAN : zfi_float_of(of_unit << 23);
        zfi_dot_integers(isa, high + at, from, by, b->block);
        if (low) zfi_dot_rest(isa, low + at, high + at, from, by, b->block);
    }
    return zfi_dot_x_in(b, dtype, k, room);
}

/* The product of x with a row of records. wide: scales are f32, else bf16. */
typedef float zfi_dot(const zfi_dot_x *x, const uint8_t *q, int64_t records, int64_t block,
                      bool wide);

/* The scale in the higher half of a word, if it is not all of it. A record has more than 4
 * bytes. */
ZFI_INLINE float zfi_scale_at(const uint8_t *record, bool wide)
{
    uint32_t word;
    memcpy(&word, record, sizeof word);
    return zfi_float_of((int32_t)(wide ? word : word << 16));
}

/* Without vectors of integers; what is fused elsewhere is rounded twice. */
static float zfi_dot_plain(int bits, const zfi_dot_x *x, const uint8_t *q, int64_t records,
                           int64_t block, bool wide)
{
    const int64_t head = wide ? 4 : 2, half = block / 2;
    float sum[ZFI_DOT_LANES] = {0};
    for (int64_t r = 0; r < records; r++, q += head + block * bits / 8) {
        float scale = zfi_scale_at(q, wide) * x->unit[r];
        for (const int16_t *part = x->high; part; part = part == x->low ? NULL : x->low) {
            int32_t lane[ZFI_DOT_LANES] = {0};
            for (int64_t i = 0; i < block; i++) {
                const int32_t integer = bits == 8  ? (int8_t)q[head + i]
                                        : i < half ? zfi_low_integer(q[head + i])
                                                   : zfi_low_integer(q[head + i - half] >> 4);
                lane[i / 2 % ZFI_DOT_LANES] += integer * part[r * block + i];
            }
            for (int l = 0; l < ZFI_DOT_LANES; l++) sum[l] += scale * (float)lane[l];
            scale *= 0x1p-15f;
        }
    }
    return zfi_fold_sixteen(sum);
}

static float zfi_dot_plain_8(const zfi_dot_x *x, const uint8_t *q, int64_t records, int64_t block,
                             bool wide)
{
    return zfi_dot_plain(8, x, q, records, block, wide);
}

static float zfi_dot_plain_4(const zfi_dot_x *x, const uint8_t *q, int64_t records, int64_t block,
                             bool wide)
{
    return zfi_dot_plain(4, x, q, records, block, wide);
}

/* In terms of one instruction set's vectors of `lanes` floats and of integers of 32 bits. get makes
 * a vector of 16 bits of 2 * lanes bytes, of which first and second are the two integers of 4 bits;
 * dot gives the sums of neighbours in the products of such a vector and X. bits, parts and block
 * are constants where it is called. */
#define ZFI_DOT_BODY(name, attributes, vector, integers, lanes, set1, store, fma, mul, zero, add,  \
                     dot, convert, get, first, second)                                             \
    attributes ZFI_BODY float name(const int bits, const int parts, const zfi_dot_x *x,            \
                                   const uint8_t *q, int64_t records, int64_t block, bool wide)    \
    {                                                                                              \
        enum { VECTORS = ZFI_DOT_LANES / lanes };                                                  \
        const int64_t head = wide ? 4 : 2, size = block * bits / 8;                                \
        const int16_t *from[2] = {x->high, x->low};                                                \
        vector sum[VECTORS], scale;                                                                \
        integers lane[2][VECTORS];                                                                 \
        float folded[ZFI_DOT_LANES];                                                               \
        ZFI_UNROLL                                                                                 \
        for (int v = 0; v < VECTORS; v++) sum[v] = set1(0.0f);                                     \
        for (int64_t r = 0; r < records; r++, q += head + size) {                                  \
            ZFI_UNROLL                                                                             \
            for (int v = 0; v < VECTORS; v++) lane[0][v] = lane[1][v] = zero();                    \
            for (int64_t i = 0; i < size; i += ZFI_DOT_BYTES) {                                    \
                ZFI_PREFETCH(q + i + ZFI_DOT_AHEAD);                                               \
                ZFI_UNROLL                                                                         \
                for (int v = 0; v < VECTORS; v++) {                                                \
                    const int64_t at = i + v * 2 * lanes;                                          \
                    const integers both = get(q + head + at);                                      \
                    ZFI_UNROLL                                                                     \
                    for (int p = 0; p < parts; p++) {                                              \
                        const int16_t *X = from[p] + r * block + at;                               \
                        if (bits == 8) {                                                           \
                            lane[p][v] = add(lane[p][v], dot(both, X));                            \
                        } else {                                                                   \
                            lane[p][v] = add(lane[p][v], dot(first(both), X));                     \
                            lane[p][v] = add(lane[p][v], dot(second(both), X + size));             \
                        }                                                                          \
                    }                                                                              \
                }                                                                                  \
            }                                                                                      \
            scale = set1(zfi_scale_at(q, wide) * x->unit[r]);                                      \
            ZFI_UNROLL                                                                             \
            for (int v = 0; v < VECTORS; v++) sum[v] = fma(scale, convert(lane[0][v]), sum[v]);    \
            if (parts == 1) continue;                                                              \
            scale = mul(scale, set1(0x1p-15f));                                                    \
            ZFI_UNROLL                                                                             \
            for (int v = 0; v < VECTORS; v++) sum[v] = fma(scale, convert(lane[1][v]), sum[v]);    \
        }                                                                                          \
        ZFI_UNROLL                                                                                 \
        for (int v = 0; v < VECTORS; v++) store(folded + v * lanes, sum[v]);                       \
        return zfi_fold_sixteen(folded);                                                           \
    }

/* Blocks of 64, the most common ones, have loops of known length. */
#define ZFI_DOT(name, attributes, bits)                                                            \
    attributes ZFI_OPTIMIZE static float name##_##bits(const zfi_dot_x *x, const uint8_t *q,       \
                                                       int64_t records, int64_t block, bool wide)  \
    {                                                                                              \
        if (x->low) return name(bits, 2, x, q, records, block, wide);                              \
        if (block == 64 && !wide) return name(bits, 1, x, q, records, 64, false);                  \
        return name(bits, 1, x, q, records, block, wide);                                          \
    }
#define ZFI_DOTS(name, attributes) ZFI_DOT(name, attributes, 8) ZFI_DOT(name, attributes, 4)

#if ZFI_X86
#define ZFI_AVX2_BYTES(q) _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(q)))
#define ZFI_AVX2_LOW(w)   _mm256_srai_epi16(_mm256_slli_epi16((w), 12), 12)
#define ZFI_AVX2_HIGH(w)  _mm256_srai_epi16((w), 4)
#define ZFI_AVX2_DOT(w, X)                                                                         \
    _mm256_madd_epi16((w), _mm256_loadu_si256((const __m256i *)(const void *)(X)))
ZFI_DOT_BODY(zfi_dot_avx2, ZFI_TARGET_AVX2, __m256, __m256i, 8, _mm256_set1_ps, _mm256_storeu_ps,
             _mm256_fmadd_ps, _mm256_mul_ps, _mm256_setzero_si256, _mm256_add_epi32, ZFI_AVX2_DOT,
             _mm256_cvtepi32_ps, ZFI_AVX2_BYTES, ZFI_AVX2_LOW, ZFI_AVX2_HIGH)
ZFI_DOTS(zfi_dot_avx2, ZFI_TARGET_AVX2)

/* The first integer is looked up by the lowest 5 bits of a word, the highest of which means
 * nothing. */
#define ZFI_AVX512_INTEGERS                                                                        \
    _mm512_set_epi16(-1, -2, -3, -4, -5, -6, -7, -8, 7, 6, 5, 4, 3, 2, 1, 0, -1, -2, -3, -4, -5,   \
                     -6, -7, -8, 7, 6, 5, 4, 3, 2, 1, 0)
#define ZFI_AVX512_BYTES(q)                                                                        \
    _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)(q)))
#define ZFI_AVX512_LOW(w)    _mm512_permutexvar_epi16((w), ZFI_AVX512_INTEGERS)
#define ZFI_AVX512_HIGH(w)   _mm512_srai_epi16((w), 4)
#define ZFI_AVX512_DOT(w, X) _mm512_madd_epi16((w), _mm512_loadu_si512(X))
ZFI_DOT_BODY(zfi_dot_avx512, ZFI_TARGET_AVX512, __m512, __m512i, 16, _mm512_set1_ps,
             _mm512_storeu_ps, _mm512_fmadd_ps, _mm512_mul_ps, _mm512_setzero_si512,
             _mm512_add_epi32, ZFI_AVX512_DOT, _mm512_cvtepi32_ps, ZFI_AVX512_BYTES, ZFI_AVX512_LOW,
             ZFI_AVX512_HIGH)
ZFI_DOTS(zfi_dot_avx512, ZFI_TARGET_AVX512)
#endif

#if ZFI_NEON
#define ZFI_NEON_ZERO()   vdupq_n_s32(0)
#define ZFI_NEON_BYTES(q) vreinterpretq_s32_s16(vmovl_s8(vreinterpret_s8_u8(vld1_u8(q))))
#define ZFI_NEON_LOW(w)                                                                            \
    vreinterpretq_s32_s16(vshrq_n_s16(vshlq_n_s16(vreinterpretq_s16_s32(w), 12), 12))
#define ZFI_NEON_HIGH(w) vreinterpretq_s32_s16(vshrq_n_s16(vreinterpretq_s16_s32(w), 4))
ZFI_INLINE int32x4_t zfi_neon_dot(int32x4_t w, const int16_t *X)
{
    const int16x8_t a = vreinterpretq_s16_s32(w), b = vld1q_s16(X);
    return vpaddq_s32(vmull_s16(vget_low_s16(a), vget_low_s16(b)), vmull_high_s16(a, b));
}
ZFI_DOT_BODY(zfi_dot_neon, , float32x4_t, int32x4_t, 4, vdupq_n_f32, vst1q_f32, ZFI_NEON_FMA,
             vmulq_f32, ZFI_NEON_ZERO, vaddq_s32, zfi_neon_dot, vcvtq_f32_s32, ZFI_NEON_BYTES,
             ZFI_NEON_LOW, ZFI_NEON_HIGH)
ZFI_DOTS(zfi_dot_neon, )
#endif

static zfi_dot *zfi_dot_of(zfi_isa isa, int bits)
{
#if ZFI_X86
    if (isa >= ZFI_ISA_AVX512) return bits == 8 ? zfi_dot_avx512_8 : zfi_dot_avx512_4;
    if (isa == ZFI_ISA_AVX2) return bits == 8 ? zfi_dot_avx2_8 : zfi_dot_avx2_4;
#elif ZFI_NEON
    if (isa == ZFI_ISA_NEON) return bits == 8 ? zfi_dot_neon_8 : zfi_dot_neon_4;
#endif
    (void)isa;
    return bits == 8 ? zfi_dot_plain_8 : zfi_dot_plain_4;
}

/* out[0..rows) = the products of x with rows of records, `stride` bytes apart. */
static void zfi_dot_rows(zfi_isa isa, const zfi_blocks *b, const zfi_dot_x *x, const uint8_t *q,
                         int64_t stride, int64_t records, int64_t rows, float *out)
{
    zfi_dot *dot = zfi_dot_of(isa, b->bits);
    for (int64_t k = 0; k < rows; k++)
        out[k] = dot(x, q + k * stride, records, b->block, b->scale == ZF_F32);
}
