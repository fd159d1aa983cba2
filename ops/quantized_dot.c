/* One row of x times rows of records (quantize.c): what a single token needs of a quantised weight.
 * It is bound by reading the records, of a few rows at a time, so that x is read once for them.
 *
 *     y = the sum over blocks of (s times the sum over the block of q[i] x[i])
 *
 * in f32. Element i of a block goes to lane i % 16, of 8 bits in order, of 4 bits i before i + h:
 *
 *     lane[l] = fma(q[i], x[i], lane[l]) from 0 in each block       sum[l] = fma(s, lane[l], sum[l])
 *
 * and the lanes are folded: l takes l + 8, then + 4, + 2, + 1. So bits are the same on all instruction
 * sets with fma, and for any number of rows at a time. */

enum { ZFI_DOT_LANES = 16, ZFI_DOT_ROWS = 4 };

/* out[k] = the product of x with row k, of the instance's rows, `stride` bytes apart. wide: scales are
 * f32, else bf16. */
typedef void zfi_dot(const float *x, const uint8_t *q, int64_t stride, int64_t records,
                     int64_t block, bool wide, float *out);

/* Instances for 8 and 4 bits, each for one row and for `rows`. */
typedef struct zfi_dots {
    int rows;
    zfi_dot *one[2], *several[2];
} zfi_dots;

ZFI_INLINE float zfi_scale_at(const uint8_t *record, bool wide)
{
    uint32_t bits;
    uint16_t half;
    memcpy(&half, record, sizeof half);
    bits = (uint32_t)half << 16;
    if (wide) memcpy(&bits, record, sizeof bits);
    return zfi_float_of((int32_t)bits);
}

ZFI_INLINE float zfi_fold_sixteen(const float lane[ZFI_DOT_LANES])
{
    float a[8], b[4];
    for (int l = 0; l < 8; l++) a[l] = lane[l] + lane[l + 8];
    for (int l = 0; l < 4; l++) b[l] = a[l] + a[l + 4];
    return (b[0] + b[2]) + (b[1] + b[3]);
}

/* In terms of one instruction set's vector of `lanes` floats: get8 makes one of that many bytes; get4
 * gives these bytes, of which low and high are the two integers of 4 bits. rows, bits and block are
 * constants where it is called, so that sums become registers. */
#define ZFI_DOT_BODY(name, attributes, vector, lanes, set1, load, store, fma, get8, bytes, get4, low, \
                     high)                                                                         \
    attributes ZFI_BODY void name(const int rows, const int bits, const float *x,                  \
                                  const uint8_t *q, int64_t stride, int64_t records,               \
                                  int64_t block, bool wide, float *out)                            \
    {                                                                                              \
        enum { VECTORS = ZFI_DOT_LANES / lanes };                                                  \
        const int64_t head = wide ? 4 : 2, size = block * bits / 8;                                \
        vector sum[ZFI_DOT_ROWS][VECTORS], lane[ZFI_DOT_ROWS][VECTORS];                            \
        ZFI_UNROLL                                                                                 \
        for (int k = 0; k < rows; k++) {                                                           \
            ZFI_UNROLL                                                                             \
            for (int v = 0; v < VECTORS; v++) sum[k][v] = set1(0.0f);                              \
        }                                                                                          \
        for (int64_t r = 0; r < records; r++, q += head + size, x += block) {                      \
            ZFI_UNROLL                                                                             \
            for (int k = 0; k < rows; k++) {                                                       \
                ZFI_UNROLL                                                                         \
                for (int v = 0; v < VECTORS; v++) lane[k][v] = set1(0.0f);                         \
            }                                                                                      \
            for (int64_t i = 0; i < size; i += ZFI_DOT_LANES) {                                    \
                ZFI_UNROLL                                                                         \
                for (int v = 0; v < VECTORS; v++) {                                                \
                    const int64_t at = i + v * lanes;                                              \
                    const vector of_x = load(x + at);                                              \
                    const vector of_high = bits == 4 ? load(x + size + at) : of_x;                 \
                    ZFI_UNROLL                                                                     \
                    for (int k = 0; k < rows; k++) {                                               \
                        const uint8_t *from = q + k * stride + head + at;                          \
                        if (bits == 8) {                                                           \
                            lane[k][v] = fma(get8(from), of_x, lane[k][v]);                        \
                        } else {                                                                   \
                            const bytes both = get4(from);                                         \
                            lane[k][v] = fma(low(both), of_x, lane[k][v]);                         \
                            lane[k][v] = fma(high(both), of_high, lane[k][v]);                     \
                        }                                                                          \
                    }                                                                              \
                }                                                                                  \
            }                                                                                      \
            ZFI_UNROLL                                                                             \
            for (int k = 0; k < rows; k++) {                                                       \
                const vector scale = set1(zfi_scale_at(q + k * stride, wide));                 \
                ZFI_UNROLL                                                                         \
                for (int v = 0; v < VECTORS; v++) sum[k][v] = fma(scale, lane[k][v], sum[k][v]);   \
            }                                                                                      \
        }                                                                                          \
        ZFI_UNROLL                                                                                 \
        for (int k = 0; k < rows; k++) {                                                           \
            float folded[ZFI_DOT_LANES];                                                           \
            ZFI_UNROLL                                                                             \
            for (int v = 0; v < VECTORS; v++) store(folded + v * lanes, sum[k][v]);                \
            out[k] = zfi_fold_sixteen(folded);                                                     \
        }                                                                                          \
    }

/* Blocks of 64, the most common ones, have loops of known length. */
#define ZFI_DOT(name, attributes, rows, bits)                                                      \
    attributes ZFI_OPTIMIZE static void name##_##bits##x##rows(                                    \
        const float *x, const uint8_t *q, int64_t stride, int64_t records, int64_t block,          \
        bool wide, float *out)                                                                     \
    {                                                                                              \
        if (block == 64 && !wide) name(rows, bits, x, q, stride, records, 64, false, out);         \
        else name(rows, bits, x, q, stride, records, block, wide, out);                            \
    }
#define ZFI_DOTS(name, attributes, rows)                                                           \
    ZFI_DOT(name, attributes, 1, 8)                                                                \
    ZFI_DOT(name, attributes, 1, 4)                                                                \
    ZFI_DOT(name, attributes, rows, 8)                                                             \
    ZFI_DOT(name, attributes, rows, 4)                                                             \
    static const zfi_dots name##_all = {                                                           \
        rows, {name##_8x1, name##_4x1}, {name##_8x##rows, name##_4x##rows}};

#if defined(__GNUC__)
ZFI_INLINE zfi_f4 zfi_f4_get8(const uint8_t *q)
{
    return (zfi_f4){(int8_t)q[0], (int8_t)q[1], (int8_t)q[2], (int8_t)q[3]};
}
ZFI_INLINE zfi_f4 zfi_f4_low(const uint8_t *q)
{
    return (zfi_f4){(float)zfi_low_integer(q[0]), (float)zfi_low_integer(q[1]),
                    (float)zfi_low_integer(q[2]), (float)zfi_low_integer(q[3])};
}
ZFI_INLINE zfi_f4 zfi_f4_high(const uint8_t *q)
{
    return (zfi_f4){(float)zfi_low_integer(q[0] >> 4), (float)zfi_low_integer(q[1] >> 4),
                    (float)zfi_low_integer(q[2] >> 4), (float)zfi_low_integer(q[3] >> 4)};
}
#else
#define zfi_f4_get8(q) ((float)(int8_t)*(q))
#define zfi_f4_low(q)  ((float)zfi_low_integer(*(q)))
#define zfi_f4_high(q) ((float)zfi_low_integer(*(q) >> 4))
#endif
typedef const uint8_t *zfi_f4_bytes;
#define zfi_f4_get4(q) (q)
ZFI_DOT_BODY(zfi_dot_portable, , zfi_f4, ZFI_PORTABLE_LANES, zfi_f4_set1, zfi_f4_load, zfi_f4_store,
             ZFI_F4_FMA, zfi_f4_get8, zfi_f4_bytes, zfi_f4_get4, zfi_f4_low, zfi_f4_high)
ZFI_DOTS(zfi_dot_portable, , 2)

#if ZFI_X86
#define ZFI_AVX2_BYTES(q) _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(q)))
#define ZFI_AVX2_GET8(q)  _mm256_cvtepi32_ps(ZFI_AVX2_BYTES(q))
#define ZFI_AVX2_LOW(b)   _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32((b), 28), 28))
#define ZFI_AVX2_HIGH(b)  _mm256_cvtepi32_ps(_mm256_srai_epi32((b), 4))
ZFI_DOT_BODY(zfi_dot_avx2, ZFI_TARGET_AVX2, __m256, 8, _mm256_set1_ps, _mm256_loadu_ps,
             _mm256_storeu_ps, _mm256_fmadd_ps, ZFI_AVX2_GET8, __m256i, ZFI_AVX2_BYTES, ZFI_AVX2_LOW,
             ZFI_AVX2_HIGH)
ZFI_DOTS(zfi_dot_avx2, ZFI_TARGET_AVX2, 2)

/* An integer of 4 bits is looked up among 16 floats, by the lowest 4 bits of a word. */
#define ZFI_AVX512_FLOATS                                                                          \
    _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1)
#define ZFI_AVX512_FOUR(q) _mm_loadu_si128((const __m128i *)(const void *)(q))
#define ZFI_AVX512_GET8(q) _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(ZFI_AVX512_FOUR(q)))
#define ZFI_AVX512_GET4(q) _mm512_cvtepu8_epi32(ZFI_AVX512_FOUR(q))
#define ZFI_AVX512_LOW(b)  _mm512_permutexvar_ps((b), ZFI_AVX512_FLOATS)
#define ZFI_AVX512_HIGH(b) _mm512_permutexvar_ps(_mm512_srli_epi32((b), 4), ZFI_AVX512_FLOATS)
ZFI_DOT_BODY(zfi_dot_avx512, ZFI_TARGET_AVX512, __m512, 16, _mm512_set1_ps, _mm512_loadu_ps,
             _mm512_storeu_ps, _mm512_fmadd_ps, ZFI_AVX512_GET8, __m512i, ZFI_AVX512_GET4,
             ZFI_AVX512_LOW, ZFI_AVX512_HIGH)
ZFI_DOTS(zfi_dot_avx512, ZFI_TARGET_AVX512, 4)
#endif

#if ZFI_NEON
ZFI_INLINE int32x4_t zfi_neon_bytes(const uint8_t *q)
{
    uint32_t word;
    memcpy(&word, q, sizeof word);
    return vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(word)))));
}
#define ZFI_NEON_GET8(q) vcvtq_f32_s32(zfi_neon_bytes(q))
#define ZFI_NEON_LOW(b)  vcvtq_f32_s32(vshrq_n_s32(vshlq_n_s32((b), 28), 28))
#define ZFI_NEON_HIGH(b) vcvtq_f32_s32(vshrq_n_s32((b), 4))
ZFI_DOT_BODY(zfi_dot_neon, , float32x4_t, 4, vdupq_n_f32, vld1q_f32, vst1q_f32, ZFI_NEON_FMA,
             ZFI_NEON_GET8, int32x4_t, zfi_neon_bytes, ZFI_NEON_LOW, ZFI_NEON_HIGH)
ZFI_DOTS(zfi_dot_neon, , 2)
#endif

static const zfi_dots *zfi_dots_of(zfi_isa isa)
{
#if ZFI_X86
    if (isa == ZFI_ISA_AVX512) return &zfi_dot_avx512_all;
    if (isa == ZFI_ISA_AVX2) return &zfi_dot_avx2_all;
#elif ZFI_NEON
    if (isa == ZFI_ISA_NEON) return &zfi_dot_neon_all;
#endif
    (void)isa;
    return &zfi_dot_portable_all;
}

/* out[0..rows) = the products of x, f32 [records * block], with rows of records, `stride` bytes
 * apart. */
static void zfi_dot_rows(zfi_isa isa, const zfi_blocks *b, const float *x, const uint8_t *q,
                         int64_t stride, int64_t records, int64_t rows, float *out)
{
    const zfi_dots *dots = zfi_dots_of(isa);
    const int four = b->bits == 4;
    const bool wide = b->scale == ZF_F32;
    int64_t k = 0;
    for (; k + dots->rows <= rows; k += dots->rows)
        dots->several[four](x, q + k * stride, stride, records, b->block, wide, out + k);
    for (; k < rows; k++)
        dots->one[four](x, q + k * stride, stride, records, b->block, wide, out + k);
}
