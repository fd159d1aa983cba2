/* Random numbers by counters, equal to those of cpu/random.c: Philox4x32-10 (Salmon, Moraes, Dror,
 * Shaw: Parallel Random Numbers: As Easy as 1, 2, 3; SC 2011). Element e has word e % 4 of the
 * block with counter {low(e / 4), high(e / 4), stream, step} under the key seed. */

/* Both words of a product by one instruction; nvcc makes two of the product in C, and also of
 * __umulhi and `*`. */
__device__ __forceinline__ uint64_t zfd_wide_product(uint32_t a, uint32_t b)
{
#if defined(__CUDA_ARCH__)
    uint64_t product;
    asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
    return product;
#else
    return (uint64_t)a * b;
#endif
}

/* Computes N blocks at a time, which share the keys of each round and do not depend on each
 * other. */
template <int N>
__device__ __forceinline__ void zfd_random_blocks(const uint64_t (&block)[N], uint32_t stream,
                                                  uint32_t step, uint64_t seed, uint4 (&word)[N])
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
#pragma unroll
    for (int i = 0; i < N; i++)
        word[i] = make_uint4((uint32_t)block[i], (uint32_t)(block[i] >> 32), stream, step);
#pragma unroll
    for (int round = 0; round < 10; round++) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            const uint64_t a = zfd_wide_product(0xD2511F53u, word[i].x),
                           b = zfd_wide_product(0xCD9E8D57u, word[i].z);
            word[i].x = (uint32_t)(b >> 32) ^ word[i].y ^ k0;
            word[i].y = (uint32_t)b;
            word[i].z = (uint32_t)(a >> 32) ^ word[i].w ^ k1;
            word[i].w = (uint32_t)a;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

__device__ __forceinline__ uint4 zfd_random_block(uint64_t block, uint32_t stream, uint32_t step,
                                                  uint64_t seed)
{
    const uint64_t one[1] = {block};
    uint4 word[1];
    zfd_random_blocks(one, stream, step, seed, word);
    return word[0];
}

/* The word of one element. */
__device__ __forceinline__ uint32_t zfd_random_word(uint64_t element, uint32_t stream,
                                                    uint32_t step, uint64_t seed)
{
    uint4 block = zfd_random_block(element / 4, stream, step, seed);
    switch (element % 4) {
    case 0: return block.x;
    case 1: return block.y;
    case 2: return block.z;
    default: return block.w;
    }
}

/* A dropout, from the attributes of a node; zfd_dropper is its form in a step. Element e of `count`
 * is number slot * count + e of the stream. Number i has half i % 2 (0: the low 16 bits) of word i
 * % 8 / 2 of block i / 8, and is kept where that is below the threshold. */
typedef struct zfd_dropout {
    const zf_run *run; /* in device memory */
    uint64_t count;
    uint32_t threshold, stream; /* threshold: out of 2^16 */
    float scale;                /* the factor of kept elements */
    bool none;                  /* p = 0 */
} zfd_dropout;

static inline zfd_dropout zfd_dropout_of(const zf_launch *l, double p, int64_t stream, int64_t count)
{
    double kept = fmin(fmax(nearbyint((1 - p) * 65536), 1), 65535);
    zfd_dropout d = {zfd_device_of(l)->run,
                     (uint64_t)count,
                     (uint32_t)kept,
                     (uint32_t)stream,
                     (float)(65536 / kept),
                     p == 0};
    return d;
}

typedef struct zfd_dropper {
    uint64_t first, seed;
    uint32_t threshold, stream, step;
    float scale;
    bool off; /* nothing is dropped */
} zfd_dropper;

__device__ __forceinline__ zfd_dropper zfd_dropper_of(const zfd_dropout &d)
{
    zfd_dropper r;
    r.off = d.none || d.run->evaluate;
    r.first = (uint64_t)d.run->slot * d.count;
    r.seed = d.run->seed;
    r.step = (uint32_t)d.run->step;
    r.stream = d.stream, r.threshold = d.threshold, r.scale = d.scale;
    return r;
}

/* Which numbers of a block are kept: bit i is number i of its 8. */
__device__ __forceinline__ uint32_t zfd_kept_of_block(const uint4 &w, uint32_t threshold)
{
    const uint32_t bound = threshold << 16;
    return (uint32_t)(w.x << 16 < bound) | (uint32_t)(w.x < bound) << 1 |
           (uint32_t)(w.y << 16 < bound) << 2 | (uint32_t)(w.y < bound) << 3 |
           (uint32_t)(w.z << 16 < bound) << 4 | (uint32_t)(w.z < bound) << 5 |
           (uint32_t)(w.w << 16 < bound) << 6 | (uint32_t)(w.w < bound) << 7;
}

/* Which of N <= 8 neighbours are kept, from element e on: bit i is element e + i. They may be in
 * two blocks. Not called where dropout is off. WHOLE: numbers of first elements are multiples of N,
 * which divides 8. */
template <int N, bool WHOLE = false>
__device__ __forceinline__ uint32_t zfd_kept_from(const zfd_dropper &d, uint64_t e)
{
    const uint64_t block = (d.first + e) / 8;
    const int at = WHOLE && N == 8 ? 0 : (int)((d.first + e) % 8);
    uint32_t bits =
        zfd_kept_of_block(zfd_random_block(block, d.stream, d.step, d.seed), d.threshold);
    if (!WHOLE && at + N > 8)
        bits |= zfd_kept_of_block(zfd_random_block(block + 1, d.stream, d.step, d.seed),
                                  d.threshold)
                << 8;
    return bits >> at & ((1u << N) - 1);
}

/* The factor of element e. */
__device__ __forceinline__ float zfd_kept(const zfd_dropper &d, uint64_t e)
{
    return d.off ? 1 : zfd_kept_from<1>(d, e) ? d.scale : 0;
}

/* Applies dropout to N <= 8 neighbours; WHOLE as above. */
template <int N, bool WHOLE = false>
__device__ __forceinline__ void zfd_kept_of(const zfd_dropper &d, uint64_t e, float (&by)[N])
{
    const uint32_t bits = d.off ? 0 : zfd_kept_from<N, WHOLE>(d, e);
    const float off = d.off ? 1 : 0;
#pragma unroll
    for (int i = 0; i < N; i++) by[i] = bits >> i & 1 ? d.scale : off;
}
