/* Products of a warpgroup (wgmma, compute capability 9.0): 128 threads multiply 64 rows of A with N
 * columns of B, 16 deep, and continue while the tensor cores work.
 *
 *     zfd_shared_to_products();            they see what this thread wrote to shared memory
 *     zfd_barrier or __syncthreads();
 *     zfd_wgmma_begin();
 *     zfd_wgmma<T, 64>::rows(c, a, b, true); ...
 *     zfd_wgmma_commit();                  these are one group
 *     ...                                  must not touch c or the operands
 *     zfd_wgmma_wait<0>();                 at most 0 groups are left in flight
 *     zfd_wgmma_settle(c);                 c may be read after this
 *
 * Warp w of the group has rows 16 w to 16 w + 15 of a product: c[4 j + i] of lane 4 g + t is row g
 * + i / 2 * 8 of these, column 8 j + 2 t + i % 2.
 *
 * Operands are tiles in shared memory with rows of 64 elements, 128 bytes, aligned to 1024 bytes.
 * Chunk i of 16 bytes of row r is at chunk i ^ r % 8 (zfd_swizzled). A row of the tile is a row of
 * A (a column of B), 64 deep. If the operand is `across`, a row of the tile is one step of the
 * depth, of 64 rows of A (columns of B). More columns are more tiles, one after the other.
 *
 * Only sm_90a has these instructions. Elsewhere ZFD_HAS_WGMMA is 0, and kernels that call them are
 * empty. */

#if defined(ZFD_INSTRUCTIONS) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define ZFD_HAS_WGMMA 1
#else
#define ZFD_HAS_WGMMA 0
#endif

enum { ZFD_WARPGROUP = 128 };

/* Its launch bounds show for which architecture the code was compiled that this device runs. */
static __global__ void __launch_bounds__(ZFD_HAS_WGMMA ? 128 : 256) zfd_wgmma_probe() {}

/* Whether kernels with products of warpgroups run on the current device. */
static cudaError_t zfd_find_wgmma(bool *has)
{
    cudaFuncAttributes probe;
    cudaError_t code = cudaFuncGetAttributes(&probe, zfd_wgmma_probe);
    *has = code == cudaSuccess && probe.maxThreadsPerBlock == 128;
    return code;
}

/* Where chunk `chunk` of 8 elements of a row begins, in elements. */
__device__ __forceinline__ int zfd_swizzled(int row, int chunk)
{
    return row * 64 + (chunk ^ (row & 7)) * 8;
}

/* The operand that begins at `tile`. If it is `across` and has more than 64 columns, the tile with
 * the next 64 is `next` bytes further. */
__device__ __forceinline__ uint64_t zfd_wgmma_operand(const void *tile, int next = 0)
{
    return (uint64_t)((zfd_shared_at(tile) & 0x3ffff) >> 4) | (uint64_t)(next >> 4) << 16 |
           (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

/* What is added to an operand for the next 16 of its depth; */
template <bool ACROSS> struct zfd_wgmma_step {
    static const int of = (ACROSS ? 16 * 128 : 32) >> 4;
};
/* and for the next 64 rows of A (columns of B), where it is not ACROSS. */
enum { ZFD_WGMMA_ROWS = 64 * 128 >> 4 };

#ifndef ZFD_INSTRUCTIONS

/* Orders this thread's accesses to shared memory before those of the tensor cores after a
 * barrier. */
__device__ __forceinline__ void zfd_shared_to_products()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Orders this thread's writes to accumulators and operands in registers before products. */
__device__ __forceinline__ void zfd_wgmma_begin()
{
#if ZFD_HAS_WGMMA
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

__device__ __forceinline__ void zfd_wgmma_commit()
{
#if ZFD_HAS_WGMMA
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

template <int GROUPS> __device__ __forceinline__ void zfd_wgmma_wait()
{
#if ZFD_HAS_WGMMA
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(GROUPS) : "memory");
#endif
}

/* Keeps the compiler from moving uses of these to the other side. */
template <class V, int N> __device__ __forceinline__ void zfd_wgmma_settle(V (&c)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        if constexpr (std::is_same<V, float>::value) asm volatile("" : "+f"(c[i])::"memory");
        else asm volatile("" : "+r"(c[i])::"memory");
    }
}

/* Sets the number of registers of the warpgroup's threads from now on: more, or fewer. */
template <int COUNT> __device__ __forceinline__ void zfd_more_registers()
{
#if ZFD_HAS_WGMMA
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
#endif
}
template <int COUNT> __device__ __forceinline__ void zfd_fewer_registers()
{
#if ZFD_HAS_WGMMA
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
#endif
}

/* Barrier `id`, 1 to 15, of `threads` threads in whole warps: waits for all of them, or only
 * signals the arrival of this one. */
__device__ __forceinline__ void zfd_barrier(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void zfd_barrier_arrive(int id, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* Makes a group of what zfd_fetch has begun since the last group; at most GROUPS groups are left in
 * flight. */
__device__ __forceinline__ void zfd_fetch_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int GROUPS> __device__ __forceinline__ void zfd_fetch_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(GROUPS) : "memory");
}

/* c += A B, or c = A B where !add. rows: A in registers, in the layout of accumulators of a product
 * whose neighbours are packed in pairs: a[0] is row g, columns 2 t and 2 t + 1; a[1] row g + 8;
 * a[2] and a[3] the same 8 columns further. */
template <class T, int N> struct zfd_wgmma;

#define ZFD_ACC4(c, i) "+f"((c)[i]), "+f"((c)[i + 1]), "+f"((c)[i + 2]), "+f"((c)[i + 3])
#define ZFD_ACC16(c, i)                                                                            \
    ZFD_ACC4(c, i), ZFD_ACC4(c, i + 4), ZFD_ACC4(c, i + 8), ZFD_ACC4(c, i + 12)
#define ZFD_ACC32(c) ZFD_ACC16(c, 0), ZFD_ACC16(c, 16)
#define ZFD_ACC64(c) ZFD_ACC16(c, 0), ZFD_ACC16(c, 16), ZFD_ACC16(c, 32), ZFD_ACC16(c, 48)
#define ZFD_IN32                                                                                   \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                       \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define ZFD_IN64                                                                                   \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                       \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "             \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "             \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

#if ZFD_HAS_WGMMA
#define ZFD_WGMMA(T, name, n, in, acc, p0, p1, p2, p3, p4, p5, p6)                                 \
    template <> struct zfd_wgmma<T, n> {                                                           \
        template <bool A_ACROSS, bool B_ACROSS>                                                    \
        static __device__ __forceinline__ void both(float (&c)[n / 2], uint64_t a, uint64_t b,     \
                                                    bool add)                                      \
        {                                                                                          \
            asm volatile("{.reg .pred p; setp.ne.b32 p, " p2 ", 0; "                               \
                         "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." name "." name " {" in   \
                         "}, " p0 ", " p1 ", p, 1, 1, " p3 ", " p4 ";}"                            \
                         : acc(c)                                                                  \
                         : "l"(a), "l"(b), "r"((int)add), "n"(A_ACROSS), "n"(B_ACROSS));           \
        }                                                                                          \
        template <bool B_ACROSS>                                                                   \
        static __device__ __forceinline__ void rows(float (&c)[n / 2], const uint32_t (&a)[4],     \
                                                    uint64_t b, bool add)                          \
        {                                                                                          \
            asm volatile("{.reg .pred p; setp.ne.b32 p, " p5 ", 0; "                               \
                         "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." name "." name " {" in   \
                         "}, {" p0 ", " p1 ", " p2 ", " p3 "}, " p4 ", p, 1, 1, " p6 ";}"          \
                         : acc(c)                                                                  \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add),      \
                           "n"(B_ACROSS));                                                         \
        }                                                                                          \
    };
ZFD_WGMMA(zfd_bf16, "bf16", 64, ZFD_IN32, ZFD_ACC32,
          "%32", "%33", "%34", "%35", "%36", "%37", "%38")
ZFD_WGMMA(zfd_f16, "f16", 64, ZFD_IN32, ZFD_ACC32, "%32", "%33", "%34", "%35", "%36", "%37", "%38")
ZFD_WGMMA(zfd_bf16, "bf16", 128, ZFD_IN64, ZFD_ACC64,
          "%64", "%65", "%66", "%67", "%68", "%69", "%70")
ZFD_WGMMA(zfd_f16, "f16", 128, ZFD_IN64, ZFD_ACC64, "%64", "%65", "%66", "%67", "%68", "%69", "%70")
#else
template <class T, int N> struct zfd_wgmma {
    template <bool A_ACROSS, bool B_ACROSS>
    static __device__ __forceinline__ void both(float (&)[N / 2], uint64_t, uint64_t, bool)
    {
    }
    template <bool B_ACROSS>
    static __device__ __forceinline__ void rows(float (&)[N / 2], const uint32_t (&)[4], uint64_t,
                                                bool)
    {
    }
};
#endif

#endif
