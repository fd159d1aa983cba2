/* Tiles of the matrix product for bf16 and f16, which add in f32.
 *
 * bf16 where the processor has AVX512_BF16: a word is two neighbours of k, and one instruction adds
 * both of their products to each of 16 sums:
 *
 *     B, n along memory            packed: one word for each column
 *     row k    | b0 b1 b2 ... |    | b0 c0 | b1 c1 | b2 c2 | ...
 *     row k+1  | c0 c1 c2 ... |
 *
 * Where k runs along memory the words are there already: A is then read in place or transposed as
 * if it were f32. An odd k is followed by a 0. The instruction, vdpbf16ps, rounds to nearest even
 * after each of the two products, which are exact, whatever the rounding mode; it takes subnormal
 * numbers for 0, gives 0 for subnormal sums, and raises no exceptions. So the error of a sum of k
 * products of numbers up to |a| and |b| is at most
 *
 *     k 2^-24 (sum of |a b|)  +  k 2^-126 (1 + |a| + |b|)
 *
 * f16, and bf16 on other processors: converted to f32 while they are packed, and f32 tiles.
 */

#if ZFI_X86 && (defined(__clang__) ? __clang_major__ >= 9 : __GNUC__ >= 10)
#define ZFI_BF16 1
#else
#define ZFI_BF16 0
#endif

#if ZFI_BF16
#if defined(__clang__)
#define ZFI_TARGET_BF16                                                                            \
    __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx512bf16,avx2,fma,f16c"),               \
                   min_vector_width(512)))
#else
#define ZFI_TARGET_BF16                                                                            \
    __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx512bf16,avx2,fma,f16c,"              \
                          "prefer-vector-width=512")))
#endif

#define ZFI_BF16_FMA(a, b, c) _mm512_dpbf16_ps((c), (__m512bh)(a), (__m512bh)(b))
ZFI_MICRO_BODY(zfi_micro_bf16_body, ZFI_TARGET_BF16, __m512, 16, _mm512_set1_ps, _mm512_loadu_ps,
               _mm512_storeu_ps, ZFI_BF16_FMA, _mm512_add_ps)
ZFI_MICROS_14(zfi_micro_bf16, ZFI_TARGET_BF16)

/* Words of 16 lanes at most, from two rows along the lanes. */
ZFI_TARGET_AVX512 ZFI_INLINE __m512i zfi_pair_words(__mmask16 low, const uint16_t *even,
                                                    __mmask16 high, const uint16_t *odd)
{
    __m512i head = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(low, even));
    __m512i tail = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(high, odd));
    return _mm512_or_si512(head, _mm512_slli_epi32(tail, 16));
}

enum { ZFI_ROWS_AHEAD = 24 }; /* rows that are fetched ahead: a cache line or two of each is read */

ZFI_TARGET_AVX512 ZFI_OPTIMIZE static void zfi_pack_bf16(float *dst, int64_t width,
                                                         const void *from, int64_t lane_stride,
                                                         int64_t k_stride, int64_t lanes, int64_t k)
{
    const uint16_t *src = from;
    int64_t words = zfi_div_up(k, 2), ahead = ZFI_ROWS_AHEAD * k_stride;
    __mmask16 low = (__mmask16)(width < 16 ? (1 << width) - 1 : 0xffff);
    if (k_stride == 1) {
        zfi_pack_turned(dst, width, src, 2 * lane_stride, lanes, k);
        return;
    }
    for (int64_t p = 0; p < words; p++) {
        const uint16_t *even = src + 2 * p * k_stride, *odd = even;
        bool both = 2 * p + 1 < k;
        float *to = dst + p * width;
        int64_t l = 0;
        if (both) odd += k_stride;
        if (lane_stride != 1) {
            for (; l < lanes; l += width, to += width * words)
                for (int64_t i = 0; i < width; i++) {
                    int64_t at = zfi_min(l + i, lanes - 1) * lane_stride;
                    uint32_t word = even[at] | (both ? (uint32_t)odd[at] << 16 : 0);
                    memcpy(to + i, &word, sizeof word);
                }
            continue;
        }
        for (; l + width <= lanes && (width == 32 || width <= 16);
             l += width, to += width * words) {
            ZFI_PREFETCH(even + ahead + l);
            ZFI_PREFETCH(odd + ahead + l);
            _mm512_mask_storeu_epi32(to, low,
                                     zfi_pair_words(low, even + l, both ? low : 0, odd + l));
            if (width == 32)
                _mm512_storeu_si512(
                    to + 16, zfi_pair_words(low, even + l + 16, both ? low : 0, odd + l + 16));
        }
        for (; l < lanes; l += width, to += width * words)
            for (int64_t i = 0; i < width && l + i < lanes; i += 16) {
                int64_t more = zfi_min(zfi_min(16, width - i), lanes - l - i);
                __mmask16 mask = (__mmask16)((1 << more) - 1);
                _mm512_mask_storeu_epi32(
                    to + i, mask, zfi_pair_words(mask, even + l + i, both ? mask : 0, odd + l + i));
            }
    }
}

static const zfi_tile zfi_tile_bf16 = {
    .rows = 14,
    .lanes = 16,
    .per_word = 2,
    ZFI_VECTOR_TILE,
    .micro = {ZFI_MICRO_ROWS_14(zfi_micro_bf16)},
    .pack = zfi_pack_bf16,
};
#endif

/* The tile in vectors for operands of a dtype: f32, bf16 or f16. */
static const zfi_tile *zfi_tile_for(zfi_isa isa, zf_dtype dtype)
{
#if ZFI_BF16
    if (isa >= ZFI_ISA_AVX512 && dtype == ZF_BF16 && __builtin_cpu_supports("avx512bf16"))
        return &zfi_tile_bf16;
#endif
    (void)dtype;
    return zfi_tile_of(isa);
}

/* Packs f16 or bf16 as f32. */
static void zfi_pack_widened(zfi_isa isa, zf_dtype dtype, float *dst, int64_t width,
                             const uint16_t *src, int64_t lane_stride, int64_t k_stride,
                             int64_t lanes, int64_t k)
{
    enum { ALL = 4096, RUN = 256, DEEP = ALL / ZFI_TILE_COLUMNS }; /* of what is converted aside */
    zfi_pack *pack = zfi_tile_of(isa)->pack;
    float aside[ALL];
    if (lane_stride == 1) { /* [some of k][lanes of some panels] */
        int64_t wide = RUN / width * width;
        for (int64_t l0 = 0; l0 < lanes; l0 += wide)
            for (int64_t p = 0; p < k; p += ALL / RUN) {
                int64_t run = zfi_min(wide, lanes - l0), some = zfi_min(ALL / RUN, k - p);
                for (int64_t i = 0; i < some; i++)
                    zfi_widen(isa, aside + i * RUN, dtype, src + (p + i) * k_stride + l0, run);
                for (int64_t l = 0; l < run; l += width)
                    pack(dst + (l0 + l) * k + p * width, width, aside + l, 1, RUN,
                         zfi_min(width, run - l), some);
            }
        return;
    }
    for (int64_t l0 = 0; l0 < lanes; l0 += width) /* [lanes of a panel][some of k] */
        for (int64_t p = 0; p < k; p += DEEP) {
            int64_t run = zfi_min(width, lanes - l0), some = zfi_min(DEEP, k - p);
            for (int64_t l = 0; l < run; l++) {
                const uint16_t *from = src + (l0 + l) * lane_stride + p * k_stride;
                uint16_t gathered[DEEP];
                for (int64_t i = 0; i < some && k_stride != 1; i++)
                    gathered[i] = from[i * k_stride];
                zfi_widen(isa, aside + l * DEEP, dtype, k_stride == 1 ? from : gathered, some);
            }
            pack(dst + l0 * k + p * width, width, aside, DEEP, 1, run, some);
        }
}
