/* Random numbers by counters, the very words of cpu/random.c: Philox4x32-10 (Salmon, Moraes, Dror,
 * Shaw: Parallel Random Numbers: As Easy as 1, 2, 3; SC 2011). Word e % 4 of the block with counter
 * {low(e / 4), high(e / 4), stream, step} under the key seed is element e's. */

/* Both words of a product, by one instruction; nvcc makes two of the product in C, and also of
 * __umulhi and `*`. */
__device__ __forceinline__ uint64_t zfi_wide_product(uint32_t a, uint32_t b)
{
#if ZF_TENSOR_CORES
    uint64_t product;
    asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
    return product;
#else
    return (uint64_t)a * b;
#endif
}

/* N blocks at a time: they share the keys of each round, and none waits for another. */
template <int N>
__device__ __forceinline__ void zfi_random_blocks(const uint64_t (&block)[N], uint32_t stream,
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
            const uint64_t a = zfi_wide_product(0xD2511F53u, word[i].x),
                           b = zfi_wide_product(0xCD9E8D57u, word[i].z);
            word[i].x = (uint32_t)(b >> 32) ^ word[i].y ^ k0;
            word[i].y = (uint32_t)b;
            word[i].z = (uint32_t)(a >> 32) ^ word[i].w ^ k1;
            word[i].w = (uint32_t)a;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

__device__ __forceinline__ uint4 zfi_random_block(uint64_t block, uint32_t stream, uint32_t step,
                                                  uint64_t seed)
{
    const uint64_t one[1] = {block};
    uint4 word[1];
    zfi_random_blocks(one, stream, step, seed, word);
    return word[0];
}

/* The word of one element. Where four neighbours are wanted, the block has them. */
__device__ __forceinline__ uint32_t zfi_random_word(uint64_t element, uint32_t stream,
                                                    uint32_t step, uint64_t seed)
{
    uint4 block = zfi_random_block(element / 4, stream, step, seed);
    switch (element % 4) {
    case 0: return block.x;
    case 1: return block.y;
    case 2: return block.z;
    default: return block.w;
    }
}

/* A dropout as a node states it, and as a kernel has it in a step. Element e of the value, of
 * `count`, is number slot * count + e of the stream; its word is below the threshold where it is
 * kept. */
typedef struct zfi_dropout {
    const zf_run *run; /* in device memory */
    uint64_t count;
    uint32_t threshold, stream;
    float scale; /* of what is kept */
    bool none;   /* p = 0 */
} zfi_dropout;

static inline zfi_dropout zfi_dropout_of(const zf_launch *l, double p, int64_t stream, int64_t count)
{
    double keep = 1.0 - p, bound = nearbyint(keep * 4294967296.0);
    zfi_dropout d = {zfi_device_of(l)->run,
                     (uint64_t)count,
                     bound < 4294967296.0 ? (uint32_t)bound : UINT32_MAX,
                     (uint32_t)stream,
                     (float)(1.0 / keep),
                     p == 0};
    return d;
}

typedef struct zfi_dropper {
    uint64_t first, seed;
    uint32_t threshold, stream, step;
    float scale;
    bool off; /* all is kept as it is */
} zfi_dropper;

__device__ __forceinline__ zfi_dropper zfi_dropper_of(const zfi_dropout &d)
{
    zfi_dropper r;
    r.off = d.none || d.run->evaluate;
    r.first = (uint64_t)d.run->slot * d.count;
    r.seed = d.run->seed;
    r.step = (uint32_t)d.run->step;
    r.stream = d.stream, r.threshold = d.threshold, r.scale = d.scale;
    return r;
}

/* What element e is multiplied by. */
__device__ __forceinline__ float zfi_kept(const zfi_dropper &d, uint64_t e)
{
    if (d.off) return 1;
    return zfi_random_word(d.first + e, d.stream, d.step, d.seed) < d.threshold ? d.scale : 0;
}

/* The same of N neighbours, N being 1 or a multiple of 4. Where the first is one too, they
 * are those of whole blocks of words. */
template <int N>
__device__ __forceinline__ void zfi_kept_of(const zfi_dropper &d, uint64_t e, float (&by)[N])
{
    const uint64_t first = d.first + e;
    if (d.off) {
#pragma unroll
        for (int i = 0; i < N; i++) by[i] = 1;
    } else if (N >= 4 && first % 4 == 0) {
        const int blocks = N < 4 ? 1 : N / 4;
        uint64_t block[blocks];
        uint4 word[blocks];
#pragma unroll
        for (int i = 0; i < blocks; i++) block[i] = first / 4 + (uint64_t)i;
        zfi_random_blocks(block, d.stream, d.step, d.seed, word);
#pragma unroll
        for (int i = 0; i < N / 4; i++) {
            by[4 * i] = word[i].x < d.threshold ? d.scale : 0;
            by[4 * i + 1] = word[i].y < d.threshold ? d.scale : 0;
            by[4 * i + 2] = word[i].z < d.threshold ? d.scale : 0;
            by[4 * i + 3] = word[i].w < d.threshold ? d.scale : 0;
        }
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) by[i] = zfi_kept(d, e + (uint64_t)i);
    }
}
