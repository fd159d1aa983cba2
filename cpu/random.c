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

/* Words of elements first..first+n-1. */
ZFI_BODY void zfi_random_bits_body(zfi_isa isa, uint32_t *out, uint64_t first, int64_t n,
                                   uint32_t stream, uint32_t step, uint64_t seed)
{
    (void)isa;
    for (int64_t i = 0; i < n; i++)
        out[i] = zfi_random_word(first + (uint64_t)i, stream, step, seed);
}
ZFI_KERNEL(zfi_random_bits,
           (uint32_t * out, uint64_t first, int64_t n, uint32_t stream, uint32_t step,
            uint64_t seed),
           (out, first, n, stream, step, seed))

/* The inverse of the normal distribution function, p in (0, 1): bisection on erfc. */
static double zfi_normal_quantile(double p)
{
    double low = -10.0, high = 10.0;
    for (int i = 0; i < 60; i++) {
        double middle = 0.5 * (low + high);
        if (0.5 * erfc(-middle * 0.70710678118654752440) < p)
            low = middle;
        else
            high = middle;
    }
    return 0.5 * (low + high);
}

/* y = mean + deviation * a standard normal number, an element each; truncated: the distribution
 * within two deviations of the mean. */
ZFI_UNUSED static void zfi_random_normal(zfi_isa isa, float *y, uint64_t first, int64_t n,
                                         float mean, float deviation, bool truncated,
                                         uint32_t stream, uint32_t step, uint64_t seed)
{
    const double low =
        truncated ? 0.022750131948179207 : 0.0; /* of all normal numbers are below -2 */
    (void)isa;
    for (int64_t i = 0; i < n; i++) {
        double u = (zfi_random_word(first + (uint64_t)i, stream, step, seed) + 0.5) * 0x1p-32;
        y[i] = (float)(mean + deviation * zfi_normal_quantile(low + (1.0 - 2.0 * low) * u));
    }
}

/* y = a uniform number in [0, 1) on a grid of 2^-24, an element each. */
ZFI_BODY void zfi_random_uniform_body(zfi_isa isa, float *y, uint64_t first, int64_t n,
                                      uint32_t stream, uint32_t step, uint64_t seed)
{
    (void)isa;
    for (int64_t i = 0; i < n; i++)
        y[i] = (float)(zfi_random_word(first + (uint64_t)i, stream, step, seed) >> 8) * 0x1p-24f;
}
ZFI_KERNEL(zfi_random_uniform,
           (float *y, uint64_t first, int64_t n, uint32_t stream, uint32_t step, uint64_t seed),
           (y, first, n, stream, step, seed))

/* y = word < threshold ? x * scale : 0, the word being that of the element; y may be x. */
ZFI_BODY void zfi_dropout_body(zfi_isa isa, float *y, const float *x, uint64_t first, int64_t n,
                               uint32_t threshold, float scale, uint32_t stream, uint32_t step,
                               uint64_t seed)
{
    (void)isa;
    for (int64_t i = 0; i < n; i++)
        y[i] = zfi_random_word(first + (uint64_t)i, stream, step, seed) < threshold ? x[i] * scale
                                                                                    : 0.0f;
}
ZFI_KERNEL(zfi_dropout,
           (float *y, const float *x, uint64_t first, int64_t n, uint32_t threshold, float scale,
            uint32_t stream, uint32_t step, uint64_t seed),
           (y, x, first, n, threshold, scale, stream, step, seed))
