/* Elements: every dtype in the type in which kernels compute, and 16 bytes at a time. */

typedef __nv_bfloat16 zfd_bf16;
typedef __half zfd_f16;

/* Runs the code with T being the type of the float dtype. Any other dtype is ZF_ERR_BACKEND, which
 * zfd_cuda_check rules out. */
#define ZFD_FLOATS(l, of, T, ...)                                                                  \
    switch (of) {                                                                                  \
    case ZF_F32: {                                                                                 \
        typedef float T;                                                                           \
        __VA_ARGS__                                                                                \
    } break;                                                                                       \
    case ZF_BF16: {                                                                                \
        typedef zfd_bf16 T;                                                                        \
        __VA_ARGS__                                                                                \
    } break;                                                                                       \
    case ZF_F16: {                                                                                 \
        typedef zfd_f16 T;                                                                         \
        __VA_ARGS__                                                                                \
    } break;                                                                                       \
    default: return zfd_no_dtype(l, of);                                                           \
    }

static zf_status zfd_no_dtype(const zf_launch *l, zf_dtype dtype)
{
    if (l->error && !l->error->status) {
        l->error->status = ZF_ERR_BACKEND;
        snprintf(l->error->text, sizeof l->error->text, "%s %%%d: there is no %s on " ZFD_GPU,
                 zf_launch_name(l), (int)l->node, zf_dtype_name(dtype));
    }
    return ZF_ERR_BACKEND;
}

/* The number of this rank's shard of a value that has so many. */
static int64_t zfd_shard_here(const zf_run *run, int64_t shards)
{
    return run->shards > shards && shards > 0 ? run->shard / (run->shards / shards) : run->shard;
}

__device__ __forceinline__ float zfd_to_f32(float x) { return x; }
__device__ __forceinline__ float zfd_to_f32(zfd_bf16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float zfd_to_f32(zfd_f16 x) { return __half2float(x); }

/* To nearest, ties to even. */
template <class T> __device__ __forceinline__ T zfd_from_f32(float x);
template <> __device__ __forceinline__ float zfd_from_f32<float>(float x) { return x; }
template <> __device__ __forceinline__ zfd_bf16 zfd_from_f32<zfd_bf16>(float x)
{
    return __float2bfloat16_rn(x);
}
template <> __device__ __forceinline__ zfd_f16 zfd_from_f32<zfd_f16>(float x)
{
    return __float2half_rn(x);
}

/* N elements that are moved at once: N * sizeof(T) is 16, or less where arrays are not aligned or
 * too short. */
template <class T, int N> struct alignas(sizeof(T) * N) zfd_pack {
    T at[N];
};

template <class T> struct zfd_wide {
    static const int count = 16 / sizeof(T);
};

template <class T, int N>
__device__ __forceinline__ void zfd_unpack(float (&x)[N], const zfd_pack<T, N> &p)
{
#pragma unroll
    for (int i = 0; i < N; i++) x[i] = zfd_to_f32(p.at[i]);
}

/* 16 bytes of T. */
template <class T, int N>
__device__ __forceinline__ void zfd_unpack(float (&x)[N], const uint4 &raw)
{
    zfd_unpack(x, reinterpret_cast<const zfd_pack<T, N> &>(raw));
}

template <class T, int N>
__device__ __forceinline__ void zfd_load(float (&x)[N], const T *from)
{
    zfd_unpack(x, *reinterpret_cast<const zfd_pack<T, N> *>(from));
}

template <class T, int N>
__device__ __forceinline__ void zfd_store(T *to, const float (&x)[N])
{
    zfd_pack<T, N> p;
#pragma unroll
    for (int i = 0; i < N; i++) p.at[i] = zfd_from_f32<T>(x[i]);
    *reinterpret_cast<zfd_pack<T, N> *>(to) = p;
}

/* All addresses, and rows of `width` elements, are aligned to 16 bytes. NULL counts as aligned. */
static bool zfd_lies_well(int64_t width, size_t size, const void *a, const void *b = NULL,
                          const void *c = NULL, const void *d = NULL)
{
    uintptr_t all = reinterpret_cast<uintptr_t>(a) | reinterpret_cast<uintptr_t>(b) |
                    reinterpret_cast<uintptr_t>(c) | reinterpret_cast<uintptr_t>(d) |
                    static_cast<uintptr_t>(width) * size;
    return all % 16 == 0;
}
