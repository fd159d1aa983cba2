/* Random numbers that are counters: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel Random
 * Numbers: As Easy as 1, 2, 3; SC 2011).
 *
 * Element e of a stream in a step is word e % 4 of the block with counter {low(e / 4), high(e / 4),
 * stream, step} under the key seed: its value depends on nothing else, so a tensor may be cut among
 * threads and ranks anywhere.
 *
 * Dropout needs 16 bits of an element, and one block serves 8 neighbours: element e has half e % 2
 * (0: the low 16 bits) of word e % 8 / 2 of the block with counter {low(e / 8), high(e / 8),
 * stream, step}. It is kept where its half is below a threshold:
 *
 *     block e / 8    word 0     word 1     word 2     word 3
 *     half          low high   low high   low high   low high
 *     e % 8          0   1      2   3      4   5      6   7
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

/* The half of one element. */
ZFI_BODY uint32_t zfi_random_half(uint64_t element, uint32_t stream, uint32_t step, uint64_t seed)
{
    uint64_t word = element / 8 * 4 + element % 8 / 2;
    return zfi_random_word(word, stream, step, seed) >> 16 * (element % 2) & 0xffff;
}

/* `count` vectors (an even number) of blocks from number `block` on, 4 * lanes words each, as
 * vectors of 64-bit lanes. A lane holds one word of one block in its lower half, which a
 * multiplication reads; the upper half is never read. Two vectors are computed at a time, to hide
 * the latency of the products.
 *
 * For the end, when words 0 and 1 of a block are joined into one lane and 2 and 3 into another,
 * lanes 0, 2, 4, ... hold the first half of the blocks and lanes 1, 3, 5, ... the second:
 * interleaving then gives the blocks in order.
 */
#define ZFI_PHILOX(name, attributes, vector, lanes, order, set1, multiply, right, left, add, xor3, \
                   join, low, high, store)                                                         \
    attributes ZFI_OPTIMIZE static void name(char *out, uint64_t block, int64_t count,             \
                                             uint32_t stream, uint32_t step, uint64_t seed)        \
    {                                                                                              \
        const vector in_block = order, m0 = set1(0xD2511F53), m1 = set1(0xCD9E8D57);               \
        for (; count > 0; count -= 2, block += 2 * lanes) {                                        \
            vector c0[2], c1[2], c2[2], c3[2];                                                     \
            uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);                             \
            ZFI_UNROLL                                                                             \
            for (int i = 0; i < 2; i++) {                                                          \
                c0[i] = add(set1((long long)(block + (uint64_t)(i * lanes))), in_block);           \
                c1[i] = right(c0[i], 32);                                                          \
                c2[i] = set1(stream);                                                              \
                c3[i] = set1(step);                                                                \
            }                                                                                      \
            ZFI_UNROLL                                                                             \
            for (int round = 0; round < 10; round++) {                                             \
                ZFI_UNROLL                                                                         \
                for (int i = 0; i < 2; i++) {                                                      \
                    vector a = multiply(c0[i], m0), b = multiply(c2[i], m1);                       \
                    c0[i] = xor3(right(b, 32), c1[i], set1(k0));                                   \
                    c2[i] = xor3(right(a, 32), c3[i], set1(k1));                                   \
                    c1[i] = b;                                                                     \
                    c3[i] = a;                                                                     \
                }                                                                                  \
                k0 += 0x9E3779B9u;                                                                 \
                k1 += 0xBB67AE85u;                                                                 \
            }                                                                                      \
            ZFI_UNROLL                                                                             \
            for (int i = 0; i < 2; i++) {                                                          \
                vector c01 = join(c0[i], left(c1[i], 32)), c23 = join(c2[i], left(c3[i], 32));     \
                store(out, low(c01, c23));                                                         \
                store(out + 8 * lanes, high(c01, c23));                                            \
                out += 16 * lanes;                                                                 \
            }                                                                                      \
        }                                                                                          \
    }

#if ZFI_X86
#define ZFI_STORE256(p, v)  _mm256_storeu_si256((__m256i *)(void *)(p), (v))
#define ZFI_XOR256(a, b, c) _mm256_xor_si256(_mm256_xor_si256((a), (b)), (c))
#define ZFI_JOIN256(a, b)   _mm256_blend_epi32((a), (b), 0xaa)
#define ZFI_STORE512(p, v)  _mm512_storeu_si512((void *)(p), (v))
#define ZFI_XOR512(a, b, c) _mm512_ternarylogic_epi32((a), (b), (c), 0x96)
#define ZFI_JOIN512(a, b)   _mm512_mask_blend_epi32(0xaaaa, (a), (b))
ZFI_PHILOX(zfi_philox_avx2, ZFI_TARGET_AVX2, __m256i, 4, _mm256_setr_epi64x(0, 2, 1, 3),
           _mm256_set1_epi64x, _mm256_mul_epu32, _mm256_srli_epi64, _mm256_slli_epi64,
           _mm256_add_epi64, ZFI_XOR256, ZFI_JOIN256, _mm256_unpacklo_epi64, _mm256_unpackhi_epi64,
           ZFI_STORE256)
ZFI_PHILOX(zfi_philox_avx512, ZFI_TARGET_AVX512, __m512i, 8,
           _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), _mm512_set1_epi64, _mm512_mul_epu32,
           _mm512_srli_epi64, _mm512_slli_epi64, _mm512_add_epi64, ZFI_XOR512, ZFI_JOIN512,
           _mm512_unpacklo_epi64, _mm512_unpackhi_epi64, ZFI_STORE512)
#endif

/* Blocks block..block+count-1, count a multiple of 16, as `size` bytes an element: 4, words, or 2,
 * their halves. */
static void zfi_random_blocks(zfi_isa isa, size_t size, char *out, uint64_t block, int64_t count,
                              uint32_t stream, uint32_t step, uint64_t seed)
{
#if ZFI_X86 /* in memory the low half of a word is the first */
    if (isa >= ZFI_ISA_AVX512) {
        zfi_philox_avx512(out, block, count / 8, stream, step, seed);
        return;
    }
    if (isa == ZFI_ISA_AVX2) {
        zfi_philox_avx2(out, block, count / 4, stream, step, seed);
        return;
    }
#endif
    (void)isa;
    for (; count > 0; count--, block++, out += 16) {
        uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), stream, step}, word[4];
        uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
        zfi_philox(word, counter, key);
        if (size == sizeof *word) {
            memcpy(out, word, sizeof word);
        } else {
            uint16_t half[8];
            for (int i = 0; i < 8; i++) half[i] = (uint16_t)(word[i / 2] >> 16 * (i % 2));
            memcpy(out, half, sizeof half);
        }
    }
}

/* Elements first..first+n-1, of `size` bytes. */
static void zfi_random_elements(zfi_isa isa, size_t size, char *out, uint64_t first, int64_t n,
                                uint32_t stream, uint32_t step, uint64_t seed)
{
    const int64_t block = 16 / (int64_t)size, most = 16 * block;
    while (n > 0) {
        int64_t whole = n / most * most, skip = (int64_t)(first % (uint64_t)block);
        uint64_t at = first / (uint64_t)block;
        if (skip || !whole) { /* by way of a piece that begins and ends with whole blocks */
            char piece[16 * 16];
            whole = n < most - skip ? n : most - skip;
            zfi_random_blocks(isa, size, piece, at, 16, stream, step, seed);
            memcpy(out, piece + (size_t)skip * size, (size_t)whole * size);
        } else {
            zfi_random_blocks(isa, size, out, at, whole / block, stream, step, seed);
        }
        out += (size_t)whole * size;
        first += (uint64_t)whole;
        n -= whole;
    }
}

/* Words of elements first..first+n-1. */
ZFI_UNUSED static void zfi_random_bits(zfi_isa isa, uint32_t *out, uint64_t first, int64_t n,
                                       uint32_t stream, uint32_t step, uint64_t seed)
{
    zfi_random_elements(isa, sizeof *out, (char *)out, first, n, stream, step, seed);
}

/* Halves of elements first..first+n-1. */
ZFI_UNUSED static void zfi_random_halves(zfi_isa isa, uint16_t *out, uint64_t first, int64_t n,
                                         uint32_t stream, uint32_t step, uint64_t seed)
{
    zfi_random_elements(isa, sizeof *out, (char *)out, first, n, stream, step, seed);
}

enum { ZFI_RANDOM_PIECE = 512 }; /* elements at a time, in the first-level cache */

/* A uniform number in [0, 1) on a grid of 2^-24. */
ZFI_BODY float zfi_uniform1(uint32_t word) { return (float)(int32_t)(word >> 8) * 0x1p-24f; }

/* y = a uniform number in [0, 1), an element each. */
ZFI_BODY void zfi_random_uniform_body(zfi_isa isa, float *y, uint64_t first, int64_t n,
                                      uint32_t stream, uint32_t step, uint64_t seed)
{
    uint32_t word[ZFI_RANDOM_PIECE];
    for (int64_t i = 0; i < n; i += ZFI_RANDOM_PIECE) {
        int64_t count = n - i < ZFI_RANDOM_PIECE ? n - i : ZFI_RANDOM_PIECE;
        zfi_random_bits(isa, word, first + (uint64_t)i, count, stream, step, seed);
        ZFI_VECTOR
        for (int64_t j = 0; j < count; j++) y[i + j] = zfi_uniform1(word[j]);
    }
}
ZFI_KERNEL(zfi_random_uniform,
           (float *y, uint64_t first, int64_t n, uint32_t stream, uint32_t step, uint64_t seed),
           (y, first, n, stream, step, seed))

/* How many of 2^16 halves keep an element that is dropped with probability p: all if p = 0, else at
 * least one and not all. */
static uint32_t zfi_dropout_threshold(double p)
{
    double kept = nearbyint((1 - p) * 65536);
    if (p == 0) return 65536;
    return kept < 1 ? 1 : kept > 65535 ? 65535 : (uint32_t)kept;
}

/* y = half < threshold ? x * scale : 0, the half being that of the element; y may be x. */
ZFI_BODY void zfi_dropout_body(zfi_isa isa, float *y, const float *x, uint64_t first, int64_t n,
                               uint32_t threshold, float scale, uint32_t stream, uint32_t step,
                               uint64_t seed)
{
    uint16_t half[ZFI_RANDOM_PIECE];
    for (int64_t i = 0; i < n; i += ZFI_RANDOM_PIECE) {
        int64_t count = n - i < ZFI_RANDOM_PIECE ? n - i : ZFI_RANDOM_PIECE;
        zfi_random_halves(isa, half, first + (uint64_t)i, count, stream, step, seed);
        ZFI_VECTOR
        for (int64_t j = 0; j < count; j++)
            y[i + j] = zfi_pick(isa, half[j] < threshold, x[i + j] * scale, 0.0f);
    }
}
ZFI_KERNEL(zfi_dropout,
           (float *y, const float *x, uint64_t first, int64_t n, uint32_t threshold, float scale,
            uint32_t stream, uint32_t step, uint64_t seed),
           (y, x, first, n, threshold, scale, stream, step, seed))

/* numerator(x) / denominator(x), eight coefficients each, that of x^0 first. */
ZFI_BODY double zfi_ratio(double x, const double numerator[8], const double denominator[8])
{
    double top = numerator[7], bottom = denominator[7];
    ZFI_UNROLL
    for (int i = 6; i >= 0; i--) {
        top = top * x + numerator[i];
        bottom = bottom * x + denominator[i];
    }
    return top / bottom;
}

/* The x below which a standard normal number lies with probability 0.5 + q, |q| <= 0.425; relative
 * error about 10^-16. cpu/normal.c has the coefficients. */
ZFI_BODY double zfi_normal_middle(double q)
{
    const double middle[2][8] = ZFI_NORMAL_MIDDLE;
    return q * zfi_ratio(0.180625 - q * q, middle[0], middle[1]);
}

/* The same for any probability p, 0 < p < 1. In the tails it is a rational function of
 * sqrt(-log(p)) or sqrt(-log(1 - p)). */
static double zfi_normal_quantile(double p)
{
    static const double near_tail[2][8] = ZFI_NORMAL_NEAR_TAIL;
    static const double far_tail[2][8] = ZFI_NORMAL_FAR_TAIL;
    double q = p - 0.5, r, x;
    if (fabs(q) <= 0.425) return zfi_normal_middle(q);
    r = sqrt(-log(q < 0.0 ? p : 1.0 - p));
    x = r <= 5.0 ? zfi_ratio(r - 1.6, near_tail[0], near_tail[1])
                 : zfi_ratio(r - 5.0, far_tail[0], far_tail[1]);
    return q < 0.0 ? -x : x;
}

/* y = mean + deviation * a standard normal number, an element each; truncated: the distribution
 * within two deviations of the mean. The tails' elements, one in seven, are computed a second
 * time by the tails' formula. */
ZFI_BODY void zfi_random_normal_body(zfi_isa isa, float *y, uint64_t first, int64_t n, float mean,
                                     float deviation, bool truncated, uint32_t stream,
                                     uint32_t step, uint64_t seed)
{
    const double below = truncated ? 0.022750131948179207 : 0.0; /* how many are under -2 */
    uint32_t word[ZFI_RANDOM_PIECE];
    double p[ZFI_RANDOM_PIECE];
    for (int64_t i = 0; i < n; i += ZFI_RANDOM_PIECE) {
        int64_t count = n - i < ZFI_RANDOM_PIECE ? n - i : ZFI_RANDOM_PIECE;
        zfi_random_bits(isa, word, first + (uint64_t)i, count, stream, step, seed);
        ZFI_VECTOR
        for (int64_t j = 0; j < count; j++) {
            p[j] = below + (1.0 - 2.0 * below) * ((word[j] + 0.5) * 0x1p-32);
            y[i + j] = (float)(mean + deviation * zfi_normal_middle(p[j] - 0.5));
        }
        for (int64_t j = 0; j < count; j++)
            if (fabs(p[j] - 0.5) > 0.425)
                y[i + j] = (float)(mean + deviation * zfi_normal_quantile(p[j]));
    }
}
ZFI_KERNEL(zfi_random_normal,
           (float *y, uint64_t first, int64_t n, float mean, float deviation, bool truncated,
            uint32_t stream, uint32_t step, uint64_t seed),
           (y, first, n, mean, deviation, truncated, stream, step, seed))
