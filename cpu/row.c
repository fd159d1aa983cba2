/* Products of one row of A and rows of B along k: C[n] = sum over k of A[k] B[n,k].
 *
 * They are bound by reading B, so B is not packed. Four words of k of some rows are turned in
 * registers,
 *
 *           k                             n
 *       | 0 1 2 3 |            | 0 4 8 c |
 *     n | 4 5 6 7 |    ->    k | 1 5 9 d |
 *       | 8 9 a b |            | 2 6 a e |
 *       | c d e f |            | 3 7 b f |
 *
 * and added as tiles add (tile.c): one k after the other, from zero in each block of k. So a row
 * has the same bits alone as among others. On AMX, whose instructions add in another order, a row
 * of bf16 is a tile.
 */

/* sums[n] = sum over k of x[k] * b[n][k] for ZFI_ONE_ROW_COLUMNS rows of B, which have `size` bytes
 * each and are `apart` bytes from each other; those that are read next begin at `after`. x is f32,
 * or words of bf16 (tile16.c) with the last one filled. */
typedef void zfi_one_row_sums(int64_t size, const float *x, const char *b, int64_t apart,
                              const char *after, float *sums);

typedef struct zfi_one_row {
    zfi_one_row_sums *sums;
    int per_word; /* elements of k in a float of x */
} zfi_one_row;

enum {
    ZFI_ONE_ROW_COLUMNS = 16,
    /* Of a row of B, that are copied before they are turned: rows at a distance of 4 KiB share one
     * set of the cache */
    ZFI_ROW_BYTES = 256,
    ZFI_ROW_APART = ZFI_ROW_BYTES + 32 /* of copies, in different banks */
};

/* In terms of one instruction set's vectors of `lanes`. read(at, four) gives words of k of rows,
 * each of `bytes` bytes: a quarter of a vector has four of a row, the next quarter those of the row
 * that is `four` bytes further. low and high interleave words of the quarters of two vectors, low2
 * and high2 pairs of words. part gives element j of the `parts` elements in each word. Several
 * groups of columns hide the latency of a sum. */
#define ZFI_ONE_ROW(name, attributes, vector, lanes, groups, bytes, parts, set1, load, store, fma, \
                    read, low, high, low2, high2, part)                                            \
    attributes ZFI_BODY vector name##_add(vector sum, const vector r[4], int64_t count,            \
                                          const float *x)                                          \
    {                                                                                              \
        const vector a = low(r[0], r[1]), b = high(r[0], r[1]);                                    \
        const vector c = low(r[2], r[3]), d = high(r[2], r[3]);                                    \
        const vector t[4] = {low2(a, c), high2(a, c), low2(b, d), high2(b, d)};                    \
        ZFI_UNROLL                                                                                 \
        for (int i = 0; i < 4 * parts; i++)                                                        \
            if (i < count)                                                                         \
                sum = fma(set1(zfi_word_at(x + i)), part(t[i / parts], i % parts), sum);           \
        return sum;                                                                                \
    }                                                                                              \
    attributes ZFI_BODY vector name##_four(vector sum, const char *at, int64_t count,              \
                                           const float *x)                                         \
    {                                                                                              \
        enum { ROW = ZFI_ROW_APART };                                                              \
        const vector r[4] = {read(at, 4 * ROW), read(at + ROW, 4 * ROW),                           \
                             read(at + 2 * ROW, 4 * ROW), read(at + 3 * ROW, 4 * ROW)};            \
        return name##_add(sum, r, count, x);                                                       \
    }                                                                                              \
    attributes ZFI_OPTIMIZE static void name(int64_t size, const float *x, const char *b,          \
                                             int64_t apart, const char *after, float *sums)        \
    {                                                                                              \
        enum { ROW = ZFI_ROW_BYTES, UNIT = bytes / parts, LINES = groups * lanes * bytes / 16 };   \
        char near[groups * lanes][ZFI_ROW_APART];                                                  \
        vector sum[groups];                                                                        \
        ZFI_UNROLL                                                                                 \
        for (int g = 0; g < groups; g++) sum[g] = set1(0.0f);                                      \
        for (; size > 0; size -= ROW, x += ROW / UNIT, b += ROW) {                                 \
            const int64_t end = zfi_min(ROW, size), floats = zfi_div_up(end, UNIT);                \
            const char *ahead = size > 2 * ROW ? b + 2 * ROW : size > ROW ? after : after + ROW;   \
            int64_t p = 0;                                                                         \
            for (int64_t i = 0; i < groups * lanes; i++) {                                         \
                const char *from = b + i * apart;                                                  \
                ZFI_UNROLL                                                                         \
                for (int j = 0; j < ROW && end == ROW; j += lanes * 4)                             \
                    store((float *)(void *)(near[i] + j),                                          \
                          load((const float *)(const void *)(from + j)));                          \
                for (int64_t j = 0; j < end && end < ROW; j += lanes * 4)                          \
                    if (j + lanes * 4 <= end)                                                      \
                        store((float *)(void *)(near[i] + j),                                      \
                              load((const float *)(const void *)(from + j)));                      \
                    else memcpy(near[i] + j, from + j, (size_t)(end - j));                         \
                memset(near[i] + end, 0, 2); /* the other half of a word */                        \
            }                                                                                      \
            for (; p + 4 * parts <= floats; p += 4 * parts) {                                      \
                ZFI_UNROLL                                                                         \
                for (int l = 0; l < LINES; l++)                                                    \
                    ZFI_PREFETCH_FAR(ahead + l % 4 * 64 + l / 4 * apart);                          \
                ahead += LINES >= 4 ? LINES / 4 * apart : p / (4 * parts) % 2 ? apart - 128 : 128; \
                ZFI_UNROLL                                                                         \
                for (int g = 0; g < groups; g++)                                                   \
                    sum[g] = name##_four(sum[g], near[g * lanes] + p * UNIT, 4 * parts, x + p);    \
            }                                                                                      \
            for (int g = 0; p < floats && g < groups; g++)                                         \
                sum[g] = name##_four(sum[g], near[g * lanes] + p * UNIT, floats - p, x + p);       \
        }                                                                                          \
        ZFI_UNROLL                                                                                 \
        for (int g = 0; g < groups; g++) store(sums + g * lanes, sum[g]);                          \
    }
#define ZFI_WORD_ALONE(r, j) (r) /* a word is one element, or is multiplied as a whole */

#if ZFI_X86
#define ZFI_AVX2_QUARTERS(p, four)                                                                 \
    _mm256_insertf128_ps(_mm256_castps128_ps256(ZFI_SSE_WORDS(p)), ZFI_SSE_WORDS((p) + (four)), 1)
#define ZFI_SSE_WORDS(p) _mm_loadu_ps((const float *)(const void *)(p))
#define ZFI_SSE_F16(p)   _mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)(const void *)(p)))
#define ZFI_AVX2_F16_QUARTERS(p, four)                                                             \
    _mm256_insertf128_ps(_mm256_castps128_ps256(ZFI_SSE_F16(p)), ZFI_SSE_F16((p) + (four)), 1)
#define ZFI_AVX2_HALF(r, j)                                                                        \
    _mm256_castsi256_ps((j) ? _mm256_and_si256(_mm256_castps_si256(r), _mm256_set1_epi32(-65536))  \
                            : _mm256_slli_epi32(_mm256_castps_si256(r), 16))
#define ZFI_AVX2_PAIRS(which, a, b)                                                                \
    _mm256_castpd_ps(_mm256_unpack##which##_pd(_mm256_castps_pd(a), _mm256_castps_pd(b)))
#define ZFI_AVX2_LOW2(a, b)  ZFI_AVX2_PAIRS(lo, a, b)
#define ZFI_AVX2_HIGH2(a, b) ZFI_AVX2_PAIRS(hi, a, b)
#define ZFI_ONE_ROW_X86(dtype, target, bytes, parts, fma, read, part)                              \
    ZFI_ONE_ROW(zfi_row_##dtype##_avx2, target, __m256, 8, 2, bytes, parts, _mm256_set1_ps,        \
                _mm256_loadu_ps, _mm256_storeu_ps, fma, read, _mm256_unpacklo_ps,                  \
                _mm256_unpackhi_ps, ZFI_AVX2_LOW2, ZFI_AVX2_HIGH2, part)
ZFI_ONE_ROW_X86(f32, ZFI_TARGET_AVX2, 4, 1, _mm256_fmadd_ps, ZFI_AVX2_QUARTERS, ZFI_WORD_ALONE)
ZFI_ONE_ROW_X86(bf16, ZFI_TARGET_AVX2, 4, 2, _mm256_fmadd_ps, ZFI_AVX2_QUARTERS, ZFI_AVX2_HALF)
ZFI_ONE_ROW_X86(f16, ZFI_TARGET_AVX2, 2, 1, _mm256_fmadd_ps, ZFI_AVX2_F16_QUARTERS, ZFI_WORD_ALONE)

#if ZFI_BF16
#define ZFI_PAIRS_FMA(a, b, c) _mm256_dpbf16_ps((c), (__m256bh)(a), (__m256bh)(b))
ZFI_ONE_ROW_X86(pairs, ZFI_TARGET_BF16, 4, 1, ZFI_PAIRS_FMA, ZFI_AVX2_QUARTERS, ZFI_WORD_ALONE)
#endif
#endif

#if ZFI_NEON
#define ZFI_NEON_F32(p, four)  vld1q_f32((const float *)(const void *)(p))
#define ZFI_NEON_U16(p)        vld1_u16((const uint16_t *)(const void *)(p))
#define ZFI_NEON_BF16(p, four) vreinterpretq_f32_u32(vshll_n_u16(ZFI_NEON_U16(p), 16))
#define ZFI_NEON_F16(p, four)  vcvt_f32_f16(vreinterpret_f16_u16(ZFI_NEON_U16(p)))
#define ZFI_NEON_PAIRS(zip, a, b)                                                                  \
    vreinterpretq_f32_f64(zip(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b)))
#define ZFI_NEON_LOW2(a, b)  ZFI_NEON_PAIRS(vzip1q_f64, a, b)
#define ZFI_NEON_HIGH2(a, b) ZFI_NEON_PAIRS(vzip2q_f64, a, b)
#define ZFI_ONE_ROW_NEON(dtype, bytes, read)                                                       \
    ZFI_ONE_ROW(zfi_row_##dtype##_neon, , float32x4_t, 4, 4, bytes, 1, vdupq_n_f32, vld1q_f32,     \
                vst1q_f32, ZFI_NEON_FMA, read, vzip1q_f32, vzip2q_f32, ZFI_NEON_LOW2,              \
                ZFI_NEON_HIGH2, ZFI_WORD_ALONE)
ZFI_ONE_ROW_NEON(f32, 4, ZFI_NEON_F32)
ZFI_ONE_ROW_NEON(bf16, 2, ZFI_NEON_BF16)
ZFI_ONE_ROW_NEON(f16, 2, ZFI_NEON_F16)
#endif

#if defined(__GNUC__)
typedef int32_t zfi_i4 __attribute__((vector_size(16)));
#define ZFI_F4_WORDS(p, four) zfi_f4_load((const float *)(const void *)(p))
#define ZFI_F4_F16(p, four)   zfi_f4_of_f16(p)
#define ZFI_F4_HALF(r, j)     ((zfi_f4)((j) ? (zfi_i4)(r) & -65536 : (zfi_i4)(r) << 16))
#define ZFI_F4_LOW(a, b)      ((zfi_f4){(a)[0], (b)[0], (a)[1], (b)[1]})
#define ZFI_F4_HIGH(a, b)     ((zfi_f4){(a)[2], (b)[2], (a)[3], (b)[3]})
#define ZFI_F4_LOW2(a, b)     ((zfi_f4){(a)[0], (a)[1], (b)[0], (b)[1]})
#define ZFI_F4_HIGH2(a, b)    ((zfi_f4){(a)[2], (a)[3], (b)[2], (b)[3]})
/* Not inlined: a row would have 256 conversions, which take a second to compile. */
__attribute__((noinline)) static zfi_f4 zfi_f4_of_f16(const char *p)
{
    uint16_t x[4];
    memcpy(x, p, sizeof x);
    return (zfi_f4){zfi_f16_to_f32(x[0]), zfi_f16_to_f32(x[1]), zfi_f16_to_f32(x[2]),
                    zfi_f16_to_f32(x[3])};
}
#define ZFI_ONE_ROW_PORTABLE(dtype, bytes, parts, read, part)                                      \
    ZFI_ONE_ROW(zfi_row_##dtype##_portable, , zfi_f4, 4, 4, bytes, parts, zfi_f4_set1,             \
                zfi_f4_load, zfi_f4_store, ZFI_F4_FMA, read, ZFI_F4_LOW, ZFI_F4_HIGH, ZFI_F4_LOW2, \
                ZFI_F4_HIGH2, part)
ZFI_ONE_ROW_PORTABLE(f32, 4, 1, ZFI_F4_WORDS, ZFI_WORD_ALONE)
ZFI_ONE_ROW_PORTABLE(bf16, 4, 2, ZFI_F4_WORDS, ZFI_F4_HALF)
ZFI_ONE_ROW_PORTABLE(f16, 2, 1, ZFI_F4_F16, ZFI_WORD_ALONE)
#endif

/* The kernel of a product of this dtype; all zero where a row is a tile. */
static zfi_one_row zfi_one_row_of(zfi_isa isa, zf_dtype dtype)
{
#define ZFI_ONE_ROWS(isa)                                                                          \
    {                                                                                              \
        [ZF_F32] = {zfi_row_f32_##isa, 1}, [ZF_BF16] = {zfi_row_bf16_##isa, 1}, [ZF_F16] = {       \
            zfi_row_f16_##isa,                                                                     \
            1                                                                                      \
        }                                                                                          \
    }
#if ZFI_X86
    static const zfi_one_row avx2[] = ZFI_ONE_ROWS(avx2);
    if (zfi_tile_of_product(isa, dtype)->column) return (zfi_one_row){.sums = NULL};
#if ZFI_BF16
    if (zfi_tile_of_product(isa, dtype) == &zfi_tile_bf16)
        return (zfi_one_row){zfi_row_pairs_avx2, 2};
#endif
    if (isa >= ZFI_ISA_AVX2) return avx2[dtype];
#elif ZFI_NEON
    static const zfi_one_row neon[] = ZFI_ONE_ROWS(neon);
    if (isa == ZFI_ISA_NEON) return neon[dtype];
#endif
#if defined(__GNUC__)
    static const zfi_one_row portable[] = ZFI_ONE_ROWS(portable);
    (void)isa;
    return portable[dtype];
#else
    (void)isa, (void)dtype;
    return (zfi_one_row){.sums = NULL};
#endif
}
