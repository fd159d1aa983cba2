/* One row of x times rows of records (quantize.c): what a single token needs of a quantised weight.
 * It is bound by reading the records; a row after the other, since processors fetch ahead along one
 * stream of memory better than along several.
 *
 *     y = the sum over blocks of (s times the sum over the block of q[i] x[i])
 *
 * in f32. Element i of a block goes to lane i % 16, of 8 bits in order, of 4 bits i before i + h:
 *
 *     lane[l] = fma(q[i], x[i], lane[l]) from 0 in each block       sum[l] = fma(s, lane[l], sum[l])
 *
 * and the lanes are folded: l takes l + 8, then + 4, + 2, + 1. So bits are the same on all instruction
 * sets with fma. */

enum { ZFI_DOT_LANES = 16 };

/* The product of x with a row of records. wide: scales are f32, else bf16. */
typedef float zfi_dot(const float *x, const uint8_t *q, int64_t records, int64_t block, bool wide);

/* The scale in the higher half of a word, if it is not all of it. A record has more than 4 bytes. */
ZFI_INLINE float zfi_scale_at(const uint8_t *record, bool wide)
{
    uint32_t word;
    memcpy(&word, record, sizeof word);
    return zfi_float_of((int32_t)(wide ? word : word << 16));
}

ZFI_INLINE float zfi_fold_sixteen(const float lane[ZFI_DOT_LANES])
{
#if defined(__GNUC__)
    zfi_f4 v[4];
    memcpy(v, lane, sizeof v);
    v[0] = (v[0] + v[2]) + (v[1] + v[3]);
    return (v[0][0] + v[0][2]) + (v[0][1] + v[0][3]);
#else
    float a[8], b[4];
    for (int l = 0; l < 8; l++) a[l] = lane[l] + lane[l + 8];
    for (int l = 0; l < 4; l++) b[l] = a[l] + a[l + 4];
    return (b[0] + b[2]) + (b[1] + b[3]);
#endif
}

/* In terms of one instruction set's vector of `lanes` floats: get8 makes one of that many bytes; get4
 * gives these bytes, of which low and high are the two integers of 4 bits. bits and block are
 * constants where it is called. */
#define ZFI_DOT_BODY(name, attributes, vector, lanes, set1, load, store, fma, get8, bytes, get4, low, \
                     high)                                                                         \
    attributes ZFI_BODY float name(const int bits, const float *x, const uint8_t *q,               \
                                   int64_t records, int64_t block, bool wide)                      \
    {                                                                                              \
        enum { VECTORS = ZFI_DOT_LANES / lanes };                                                  \
        const int64_t head = wide ? 4 : 2, size = block * bits / 8;                                \
        vector sum[VECTORS], lane[VECTORS], scale;                                                 \
        float folded[ZFI_DOT_LANES];                                                               \
        ZFI_UNROLL                                                                                 \
        for (int v = 0; v < VECTORS; v++) sum[v] = set1(0.0f);                                     \
        for (int64_t r = 0; r < records; r++, q += head + size, x += block) {                      \
            ZFI_UNROLL                                                                             \
            for (int v = 0; v < VECTORS; v++) lane[v] = set1(0.0f);                                \
            for (int64_t i = 0; i < size; i += ZFI_DOT_LANES) {                                    \
                ZFI_UNROLL                                                                         \
                for (int v = 0; v < VECTORS; v++) {                                                \
                    const int64_t at = i + v * lanes;                                              \
                    if (bits == 8) {                                                               \
                        lane[v] = fma(get8(q + head + at), load(x + at), lane[v]);                 \
                    } else {                                                                       \
                        const bytes both = get4(q + head + at);                                    \
                        lane[v] = fma(low(both), load(x + at), lane[v]);                           \
                        lane[v] = fma(high(both), load(x + size + at), lane[v]);                   \
                    }                                                                              \
                }                                                                                  \
            }                                                                                      \
            scale = set1(zfi_scale_at(q, wide));                                                   \
            ZFI_UNROLL                                                                             \
            for (int v = 0; v < VECTORS; v++) sum[v] = fma(scale, lane[v], sum[v]);                \
        }                                                                                          \
        ZFI_UNROLL                                                                                 \
        for (int v = 0; v < VECTORS; v++) store(folded + v * lanes, sum[v]);                       \
        return zfi_fold_sixteen(folded);                                                           \
    }

/* Blocks of 64, the most common ones, have loops of known length. */
#define ZFI_DOT(name, attributes, bits)                                                            \
    attributes ZFI_OPTIMIZE static float name##_##bits(                                            \
        const float *x, const uint8_t *q, int64_t records, int64_t block, bool wide)               \
    {                                                                                              \
        if (block == 64 && !wide) return name(bits, x, q, records, 64, false);                     \
        return name(bits, x, q, records, block, wide);                                             \
    }
#define ZFI_DOTS(name, attributes) ZFI_DOT(name, attributes, 8) ZFI_DOT(name, attributes, 4)

#if defined(__GNUC__)
#define ZFI_F4_OF(q, integer)                                                                      \
    ((zfi_f4){(float)integer((q)[0]), (float)integer((q)[1]), (float)integer((q)[2]),              \
              (float)integer((q)[3])})
#else
#define ZFI_F4_OF(q, integer) ((float)integer((q)[0]))
#endif
#define ZFI_HIGH_INTEGER(q) zfi_low_integer((q) >> 4)
#define ZFI_F4_GET8(q)      ZFI_F4_OF(q, (int8_t))
#define ZFI_F4_GET4(q)      (q)
#define ZFI_F4_LOW(q)       ZFI_F4_OF(q, zfi_low_integer)
#define ZFI_F4_HIGH(q)      ZFI_F4_OF(q, ZFI_HIGH_INTEGER)
typedef const uint8_t *zfi_f4_bytes;
ZFI_DOT_BODY(zfi_dot_portable, , zfi_f4, ZFI_PORTABLE_LANES, zfi_f4_set1, zfi_f4_load, zfi_f4_store,
             ZFI_F4_FMA, ZFI_F4_GET8, zfi_f4_bytes, ZFI_F4_GET4, ZFI_F4_LOW, ZFI_F4_HIGH)
ZFI_DOTS(zfi_dot_portable, )

#if ZFI_X86
#define ZFI_AVX2_BYTES(q) _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(q)))
#define ZFI_AVX2_GET8(q)  _mm256_cvtepi32_ps(ZFI_AVX2_BYTES(q))
#define ZFI_AVX2_LOW(b)   _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32((b), 28), 28))
#define ZFI_AVX2_HIGH(b)  _mm256_cvtepi32_ps(_mm256_srai_epi32((b), 4))
ZFI_DOT_BODY(zfi_dot_avx2, ZFI_TARGET_AVX2, __m256, 8, _mm256_set1_ps, _mm256_loadu_ps,
             _mm256_storeu_ps, _mm256_fmadd_ps, ZFI_AVX2_GET8, __m256i, ZFI_AVX2_BYTES, ZFI_AVX2_LOW,
             ZFI_AVX2_HIGH)
ZFI_DOTS(zfi_dot_avx2, ZFI_TARGET_AVX2)

/* An integer of 4 bits is looked up among 16 floats, by the lowest 4 bits of a word. */
#define ZFI_AVX512_FLOATS                                                                          \
    _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1)
#define ZFI_AVX512_BYTES(q) _mm_loadu_si128((const __m128i *)(const void *)(q))
#define ZFI_AVX512_GET8(q)  _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(ZFI_AVX512_BYTES(q)))
#define ZFI_AVX512_GET4(q)  _mm512_cvtepu8_epi32(ZFI_AVX512_BYTES(q))
#define ZFI_AVX512_LOW(b)   _mm512_permutexvar_ps((b), ZFI_AVX512_FLOATS)
#define ZFI_AVX512_HIGH(b)  _mm512_permutexvar_ps(_mm512_srli_epi32((b), 4), ZFI_AVX512_FLOATS)
ZFI_DOT_BODY(zfi_dot_avx512, ZFI_TARGET_AVX512, __m512, 16, _mm512_set1_ps, _mm512_loadu_ps,
             _mm512_storeu_ps, _mm512_fmadd_ps, ZFI_AVX512_GET8, __m512i, ZFI_AVX512_GET4,
             ZFI_AVX512_LOW, ZFI_AVX512_HIGH)
ZFI_DOTS(zfi_dot_avx512, ZFI_TARGET_AVX512)
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
ZFI_DOTS(zfi_dot_neon, )
#endif

static zfi_dot *zfi_dot_of(zfi_isa isa, int bits)
{
#if ZFI_X86
    if (isa == ZFI_ISA_AVX512) return bits == 8 ? zfi_dot_avx512_8 : zfi_dot_avx512_4;
    if (isa == ZFI_ISA_AVX2) return bits == 8 ? zfi_dot_avx2_8 : zfi_dot_avx2_4;
#elif ZFI_NEON
    if (isa == ZFI_ISA_NEON) return bits == 8 ? zfi_dot_neon_8 : zfi_dot_neon_4;
#endif
    (void)isa;
    return bits == 8 ? zfi_dot_portable_8 : zfi_dot_portable_4;
}

/* out[0..rows) = the products of x, f32 [records * block], with rows of records, `stride` bytes
 * apart. */
static void zfi_dot_rows(zfi_isa isa, const zfi_blocks *b, const float *x, const uint8_t *q,
                         int64_t stride, int64_t records, int64_t rows, float *out)
{
    zfi_dot *dot = zfi_dot_of(isa, b->bits);
    for (int64_t k = 0; k < rows; k++)
        out[k] = dot(x, q + k * stride, records, b->block, b->scale == ZF_F32);
}
