/* Instructions of a warp for tensor cores and shared memory. The instruction defines which thread
 * of a warp holds which elements; a fragment is 2 elements of a thread.
 *
 * Only NVIDIA has them. To run kernels on the CPU, tests/emulation/ names a file in
 * ZFD_INSTRUCTIONS that has the same functions, and those of cuda/cores/wgmma.cu. */

#ifdef ZFD_INSTRUCTIONS
#include ZFD_INSTRUCTIONS
#else

__device__ __forceinline__ uint32_t zfd_shared_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Copies 16 bytes (SIZE 4: 4) to shared memory, zeros where !there. They have arrived after
 * zfd_fetched. */
template <int SIZE>
__device__ __forceinline__ void zfd_fetch(void *to, const void *from, bool there)
{
    int bytes = there ? SIZE : 0;
    if (SIZE == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(zfd_shared_at(to)),
                     "l"(from), "r"(bytes)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(zfd_shared_at(to)),
                     "l"(from), "r"(bytes)
                     : "memory");
}

__device__ __forceinline__ void zfd_fetched() { asm volatile("cp.async.wait_all;" ::: "memory"); }

/* Loads four 8x8 matrices; matrix i from the 8 rows to which lanes 8 i.. point. A lane gets
 * elements lane % 4 * 2 and the next one of row lane / 4; ACROSS: of column lane / 4. */
template <bool ACROSS>
__device__ __forceinline__ void zfd_fragments(uint32_t (&x)[4], const void *row)
{
    if (ACROSS)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(zfd_shared_at(row))
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(zfd_shared_at(row))
                     : "memory");
}

template <class T> struct zfd_tensor_core;

#define ZFD_TENSOR_CORE(T, name)                                                                   \
    template <> struct zfd_tensor_core<T> {                                                        \
        static __device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4],          \
                                                   uint32_t b0, uint32_t b1)                       \
        {                                                                                          \
            asm("mma.sync.aligned.m16n8k16.row.col.f32." name "." name ".f32 "                     \
                "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                  \
                : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                   \
                : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                   \
        }                                                                                          \
        static __device__ __forceinline__ uint32_t pair(float low, float high)                     \
        {                                                                                          \
            uint32_t x;                                                                            \
            asm("cvt.rn." name "x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));              \
            return x;                                                                              \
        }                                                                                          \
    };
ZFD_TENSOR_CORE(zfd_bf16, "bf16")
ZFD_TENSOR_CORE(zfd_f16, "f16")

/* Stores four 8x8 matrices to the rows to which lanes point, in the layout of
 * zfd_fragments<false>. */
__device__ __forceinline__ void zfd_put_fragments(void *row, const uint32_t (&x)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     zfd_shared_at(row)),
                 "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
}

/* Adds to 4 floats that no other thread touches, without waiting for the result. */
__device__ __forceinline__ void zfd_add_there(float *to, const float *x)
{
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x[0]),
                 "f"(x[1]), "f"(x[2]), "f"(x[3])
                 : "memory");
}

/* x, hidden from the compiler in each round of a loop, so that values derived from it are
 * recomputed and not kept in registers. */
__device__ __forceinline__ int zfd_anew(int x)
{
    asm volatile("" : "+r"(x));
    return x;
}

/* For both halves of a word: bit 0 or 16 where the half is larger than that of `less`. */
__device__ __forceinline__ uint32_t zfd_drops_two(uint32_t word, uint32_t less)
{
    return __viaddmin_u16x2(__vmaxu2(word, less), __vneg2(less), 0x00010001u);
}

/* Keeps the compiler from computing x again where it is used. */
template <class P> __device__ __forceinline__ void zfd_keep(P *&x)
{
    asm volatile("" : "+l"(x));
}

#endif
