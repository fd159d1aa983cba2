/* Random numbers that are counters: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel Random
 * Numbers: As Easy as 1, 2, 3; SC 2011).
 *
 * Element e of a stream in a step is word e % 4 of the block with counter {low(e / 4), high(e / 4),
 * stream, step} under the key seed: its value depends on nothing else, so a tensor may be cut among
 * threads and ranks anywhere.
 */

/* One block: out = Philox4x32-10(counter, key). */
ZFI_BODY void zfi_philox(uint32_t out[4], const uint32_t counter[4], const uint32_t key[2])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3], k0 = key[0],
             k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

/* The word of one element. */
ZFI_BODY uint32_t zfi_random_word(uint64_t element, uint32_t stream, uint32_t step, uint64_t seed)
{
    uint64_t block = element / 4;
    uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), stream, step}, out[4];
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    zfi_philox(out, counter, key);
    return out[element % 4];
}

/* Words of the blocks block..block+blocks-1, four each. */
typedef void zfi_philox_blocks(uint32_t *out, uint64_t block, int64_t blocks, uint32_t stream,
                               uint32_t step, uint64_t seed);

static void zfi_philox_portable(uint32_t *out, uint64_t block, int64_t blocks, uint32_t stream,
                                uint32_t step, uint64_t seed)
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    for (int64_t n = 0; n < blocks; n++) {
        uint64_t at = block + (uint64_t)n;
        const uint32_t counter[4] = {(uint32_t)at, (uint32_t)(at >> 32), stream, step};
        zfi_philox(out + 4 * n, counter, key);
    }
}

#if ZFI_X86
/* A block per 64-bit lane, its words in the lanes' low halves; what is in the high halves is never
 * looked at, as the widening product ignores it. At the end words 0, 1 and 2, 3 are paired, and the
 * pairs of each block put side by side.
 *
 *     c0 = 0 . 4 . 8 .   c1 = 1 . 5 . 9 .   ->   0 1 4 5 8 9,   2 3 6 7 10 11   ->   0 1 2 3 4 5 6 7
 */
ZFI_TARGET_AVX512 static void zfi_philox_avx512(uint32_t *out, uint64_t block, int64_t blocks,
                                                uint32_t stream, uint32_t step, uint64_t seed)
{
    const __m512i m0 = _mm512_set1_epi64(0xD2511F53), m1 = _mm512_set1_epi64(0xCD9E8D57);
    const __m512i lanes = _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i low = _mm512_set_epi64(11, 3, 10, 2, 9, 1, 8, 0);
    const __m512i high = _mm512_set_epi64(15, 7, 14, 6, 13, 5, 12, 4);
    int64_t n = 0;
    for (; n + 8 <= blocks; n += 8) {
        __m512i c0 = _mm512_add_epi64(_mm512_set1_epi64((long long)(block + (uint64_t)n)), lanes);
        __m512i c1 = _mm512_srli_epi64(c0, 32);
        __m512i c2 = _mm512_set1_epi64(stream), c3 = _mm512_set1_epi64(step);
        uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
        for (int round = 0; round < 10; round++) {
            __m512i a = _mm512_mul_epu32(m0, c0), b = _mm512_mul_epu32(m1, c2);
            c0 = _mm512_xor_si512(_mm512_srli_epi64(b, 32), c1);
            c0 = _mm512_xor_si512(c0, _mm512_set1_epi64(k0));
            c2 = _mm512_xor_si512(_mm512_srli_epi64(a, 32), c3);
            c2 = _mm512_xor_si512(c2, _mm512_set1_epi64(k1));
            c1 = b, c3 = a;
            k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
        }
        c0 = _mm512_mask_blend_epi32(0xaaaa, c0, _mm512_slli_epi64(c1, 32));
        c2 = _mm512_mask_blend_epi32(0xaaaa, c2, _mm512_slli_epi64(c3, 32));
        _mm512_storeu_si512(out + 4 * n, _mm512_permutex2var_epi64(c0, low, c2));
        _mm512_storeu_si512(out + 4 * n + 16, _mm512_permutex2var_epi64(c0, high, c2));
    }
    zfi_philox_portable(out + 4 * n, block + (uint64_t)n, blocks - n, stream, step, seed);
}

ZFI_TARGET_AVX2 static void zfi_philox_avx2(uint32_t *out, uint64_t block, int64_t blocks,
                                            uint32_t stream, uint32_t step, uint64_t seed)
{
    const __m256i m0 = _mm256_set1_epi64x(0xD2511F53), m1 = _mm256_set1_epi64x(0xCD9E8D57);
    const __m256i lanes = _mm256_set_epi64x(3, 2, 1, 0);
    int64_t n = 0;
    for (; n + 4 <= blocks; n += 4) {
        __m256i c0 = _mm256_add_epi64(_mm256_set1_epi64x((long long)(block + (uint64_t)n)), lanes);
        __m256i c1 = _mm256_srli_epi64(c0, 32), even, odd;
        __m256i c2 = _mm256_set1_epi64x(stream), c3 = _mm256_set1_epi64x(step);
        uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
        for (int round = 0; round < 10; round++) {
            __m256i a = _mm256_mul_epu32(m0, c0), b = _mm256_mul_epu32(m1, c2);
            c0 = _mm256_xor_si256(_mm256_srli_epi64(b, 32), c1);
            c0 = _mm256_xor_si256(c0, _mm256_set1_epi64x(k0));
            c2 = _mm256_xor_si256(_mm256_srli_epi64(a, 32), c3);
            c2 = _mm256_xor_si256(c2, _mm256_set1_epi64x(k1));
            c1 = b, c3 = a;
            k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
        }
        c0 = _mm256_blend_epi32(c0, _mm256_slli_epi64(c1, 32), 0xaa);
        c2 = _mm256_blend_epi32(c2, _mm256_slli_epi64(c3, 32), 0xaa);
        even = _mm256_unpacklo_epi64(c0, c2), odd = _mm256_unpackhi_epi64(c0, c2);
        _mm256_storeu_si256((__m256i *)(void *)(out + 4 * n),
                            _mm256_permute2x128_si256(even, odd, 0x20));
        _mm256_storeu_si256((__m256i *)(void *)(out + 4 * n + 8),
                            _mm256_permute2x128_si256(even, odd, 0x31));
    }
    zfi_philox_portable(out + 4 * n, block + (uint64_t)n, blocks - n, stream, step, seed);
}
#endif

/* Words of elements first..first+n-1. */
ZFI_UNUSED static void zfi_random_bits(zfi_isa isa, uint32_t *out, uint64_t first, int64_t n,
                                       uint32_t stream, uint32_t step, uint64_t seed)
{
    zfi_philox_blocks *blocks = zfi_philox_portable;
    int64_t i = 0, whole;
#if ZFI_X86
    if (isa == ZFI_ISA_AVX512) blocks = zfi_philox_avx512;
    if (isa == ZFI_ISA_AVX2) blocks = zfi_philox_avx2;
#endif
    (void)isa;
    for (; i < n && (first + (uint64_t)i) % 4; i++)
        out[i] = zfi_random_word(first + (uint64_t)i, stream, step, seed);
    whole = (n - i) / 4;
    blocks(out + i, (first + (uint64_t)i) / 4, whole, stream, step, seed);
    for (i += 4 * whole; i < n; i++)
        out[i] = zfi_random_word(first + (uint64_t)i, stream, step, seed);
}

/* A ratio of two polynomials of degree 7 in x, coefficients from the constant up. */
static double zfi_ratio7(const double above[8], const double below[8], double x)
{
    double p = above[7], q = below[7];
    for (int k = 6; k >= 0; k--) p = p * x + above[k], q = q * x + below[k];
    return p / q;
}

/* The inverse of the normal distribution function, p in (0, 1), to about 1e-16 (Wichura, Algorithm
 * AS 241, Applied Statistics 37, 1988: PPND16). */
static double zfi_normal_quantile(double p)
{
    static const double a[8] = {3.3871328727963666080,   1.3314166789178437745e2,
                                1.9715909503065514427e3, 1.3731693765509461125e4,
                                4.5921953931549871457e4, 6.7265770927008700853e4,
                                3.3430575583588128105e4, 2.5090809287301226727e3};
    static const double b[8] = {1,                       4.2313330701600911252e1,
                                6.8718700749205790830e2, 5.3941960214247511077e3,
                                2.1213794301586595867e4, 3.9307895800092710610e4,
                                2.8729085735721942674e4, 5.2264952788528545610e3};
    static const double c[8] = {1.42343711074968357734,    4.63033784615654529590,
                                5.76949722146069140550,    3.64784832476320460504,
                                1.27045825245236838258,    2.41780725177450611770e-1,
                                2.27238449892691845833e-2, 7.74545014278341407640e-4};
    static const double d[8] = {1,                         2.05319162663775882187,
                                1.67638483018380384940,    6.89767334985100004550e-1,
                                1.48103976427480074590e-1, 1.51986665636164571966e-2,
                                5.47593808499534494600e-4, 1.05075007164441684324e-9};
    static const double e[8] = {6.65790464350110377720,    5.46378491116411436990,
                                1.78482653991729133580,    2.96560571828504891230e-1,
                                2.65321895265761230930e-2, 1.24266094738807843860e-3,
                                2.71155556874348757815e-5, 2.01033439929228813265e-7};
    static const double f[8] = {1,                         5.99832206555887937690e-1,
                                1.36929880922735805310e-1, 1.48753612908506148525e-2,
                                7.86869131145613259100e-4, 1.84631831751005468180e-5,
                                1.42151175831644588870e-7, 2.04426310338993978564e-15};
    double q = p - 0.5, r, x;
    if (fabs(q) <= 0.425) return q * zfi_ratio7(a, b, 0.180625 - q * q);
    r = sqrt(-log(q < 0 ? p : 1 - p));
    x = r <= 5 ? zfi_ratio7(c, d, r - 1.6) : zfi_ratio7(e, f, r - 5);
    return q < 0 ? -x : x;
}

/* Words are made in pieces of this many, which stay in the first-level cache. */
enum { ZFI_WORDS = 512 };

/* y = mean + deviation * a standard normal number, an element each; truncated: the distribution
 * within two deviations of the mean. */
ZFI_UNUSED static void zfi_random_normal(zfi_isa isa, float *y, uint64_t first, int64_t n,
                                         float mean, float deviation, bool truncated,
                                         uint32_t stream, uint32_t step, uint64_t seed)
{
    const double low = truncated ? 0.022750131948179207 : 0.0; /* as many lie below -2 */
    uint32_t words[ZFI_WORDS];
    for (int64_t at = 0; at < n; at += ZFI_WORDS) {
        int64_t count = n - at < ZFI_WORDS ? n - at : ZFI_WORDS;
        zfi_random_bits(isa, words, first + (uint64_t)at, count, stream, step, seed);
        for (int64_t i = 0; i < count; i++) {
            double u = (words[i] + 0.5) * 0x1p-32;
            y[at + i] = (float)(mean + deviation * zfi_normal_quantile(low + (1.0 - 2.0 * low) * u));
        }
    }
}

/* y = a uniform number in [0, 1) on a grid of 2^-24, an element each. */
ZFI_BODY void zfi_random_uniform_body(zfi_isa isa, float *y, uint64_t first, int64_t n,
                                      uint32_t stream, uint32_t step, uint64_t seed)
{
    uint32_t words[ZFI_WORDS];
    for (int64_t at = 0; at < n; at += ZFI_WORDS) {
        int64_t count = n - at < ZFI_WORDS ? n - at : ZFI_WORDS;
        float *to = y + at;
        zfi_random_bits(isa, words, first + (uint64_t)at, count, stream, step, seed);
        ZFI_VECTOR
        for (int64_t i = 0; i < count; i++) to[i] = (float)(words[i] >> 8) * 0x1p-24f;
    }
}
ZFI_KERNEL(zfi_random_uniform,
           (float *y, uint64_t first, int64_t n, uint32_t stream, uint32_t step, uint64_t seed),
           (y, first, n, stream, step, seed))

/* y = word < threshold ? x * scale : 0, the word being that of the element; y may be x. */
ZFI_BODY void zfi_dropout_body(zfi_isa isa, float *y, const float *x, uint64_t first, int64_t n,
                               uint32_t threshold, float scale, uint32_t stream, uint32_t step,
                               uint64_t seed)
{
    uint32_t words[ZFI_WORDS];
    for (int64_t at = 0; at < n; at += ZFI_WORDS) {
        int64_t count = n - at < ZFI_WORDS ? n - at : ZFI_WORDS;
        const float *from = x + at;
        float *to = y + at;
        zfi_random_bits(isa, words, first + (uint64_t)at, count, stream, step, seed);
        ZFI_VECTOR
        for (int64_t i = 0; i < count; i++) to[i] = words[i] < threshold ? from[i] * scale : 0.0f;
    }
}
ZFI_KERNEL(zfi_dropout,
           (float *y, const float *x, uint64_t first, int64_t n, uint32_t threshold, float scale,
            uint32_t stream, uint32_t step, uint64_t seed),
           (y, x, first, n, threshold, scale, stream, step, seed))
