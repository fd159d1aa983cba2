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

__device__ __forceinline__ uint4 zfi_random_block(uint64_t block, uint32_t stream, uint32_t step,
                                                  uint64_t seed)
{
    uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32), c2 = stream, c3 = step;
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const uint64_t a = zfi_wide_product(0xD2511F53u, c0),
                       b = zfi_wide_product(0xCD9E8D57u, c2);
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return make_uint4(c0, c1, c2, c3);
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

/* The same of four neighbours: one block of words where the first is a multiple of 4. */
__device__ __forceinline__ void zfi_kept4(const zfi_dropper &d, uint64_t e, float (&by)[4])
{
    uint64_t first = d.first + e;
    if (d.off) {
        by[0] = by[1] = by[2] = by[3] = 1;
    } else if (first % 4 == 0) {
        uint4 word = zfi_random_block(first / 4, d.stream, d.step, d.seed);
        by[0] = word.x < d.threshold ? d.scale : 0;
        by[1] = word.y < d.threshold ? d.scale : 0;
        by[2] = word.z < d.threshold ? d.scale : 0;
        by[3] = word.w < d.threshold ? d.scale : 0;
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) by[i] = zfi_kept(d, e + (uint64_t)i);
    }
}
