/* AMD's devices: what a wave does for a warp (cuda/gpu.cu), 16-bit floats, and CUDA's functions of
 * device code that HIP lacks. */
#include <hip/hip_runtime.h>
#include <hip/hip_fp16.h>

#define ZFD_GPU       "HIP"
#define ZFD_BACKEND   "hip"
#define ZFD_FINDER    "with AMD_LOG_LEVEL=3 in the environment"
/* In messages, HIP's name of a call in place of CUDA's: "hip" for "cuda". */
#define ZFD_NAME_CALL(what)                                                                        \
    char named_[128];                                                                              \
    what = zfd_hip_names(named_, sizeof named_, what)
#define ZFD_HAS_MMA   0
#define ZFD_HAS_PLAIN 1
#ifdef ZFD_WITHOUT_CORES /* make HIP=1 CORES=none */
#define ZFD_USES_CORES false
#else
#define ZFD_USES_CORES true
#endif
#define ZFD_WAVES

/* Functions of kernels' attributes take any pointer in CUDA. */
#define cudaFuncAttributeMaxDynamicSharedMemorySize hipFuncAttributeMaxDynamicSharedMemorySize
template <class K>
static inline hipError_t cudaFuncSetAttribute(K *kernel, hipFuncAttribute attribute, int value)
{
    return hipFuncSetAttribute(reinterpret_cast<const void *>(kernel), attribute, value);
}

/* The text with "hip" where it has "cuda" and a capital letter. */
static const char *zfd_hip_names(char *to, size_t size, const char *text)
{
    size_t n = 0;
    for (; *text && n + 4 < size; text++) {
        const bool is_name = !strncmp(text, "cuda", 4) && text[4] >= 'A' && text[4] <= 'Z';
        if (is_name) memcpy(to + n, "hip", 3), n += 3, text += 3;
        else to[n++] = *text;
    }
    to[n] = 0;
    return to;
}

/* ------------------------------------------------------------------------------------- waves */

/* The lane of this thread in its wave, which has 64 on gfx9 and 32 on what is newer. */
__device__ __forceinline__ int zfd_wave_lane()
{
    return (int)__builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0));
}

template <class T> __device__ __forceinline__ T zfd_wave_read(T x, int lane)
{
    static_assert(sizeof(T) % 4 == 0, "whole words");
    int word[sizeof(T) / 4];
    T y;
    memcpy(static_cast<void *>(word), &x, sizeof x);
#pragma unroll
    for (int i = 0; i < (int)(sizeof(T) / 4); i++)
        word[i] = __builtin_amdgcn_ds_bpermute(4 * lane, word[i]);
    memcpy(static_cast<void *>(&y), word, sizeof y);
    return y;
}

__device__ __forceinline__ uint64_t zfd_wave_ballot(bool says)
{
#if defined(__GFX9__)
    return __builtin_amdgcn_ballot_w64(says);
#elif defined(__HIP_DEVICE_COMPILE__)
    return __builtin_amdgcn_ballot_w32(says);
#else
    return says;
#endif
}

/* What lanes have written to shared memory is there for all lanes of the wave. */
__device__ __forceinline__ void zfd_wave_sync()
{
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
    __builtin_amdgcn_wave_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}

/* ------------------------------------------------------------------------------------ numbers */

/* bfloat16 as its bits: HIP's own type differs from one version to the next. */
typedef struct __nv_bfloat16 {
    uint16_t bits;
} __nv_bfloat16;

__device__ __forceinline__ float __bfloat162float(__nv_bfloat16 x)
{
    return __uint_as_float((uint32_t)x.bits << 16);
}

/* To nearest, ties to even; a NaN stays one. */
__device__ __forceinline__ __nv_bfloat16 __float2bfloat16_rn(float x)
{
    const uint32_t bits = __float_as_uint(x);
    __nv_bfloat16 y = {(uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
    if (x != x) y.bits = 0x7fff;
    return y;
}

/* Hints for caches, which are not needed for the result. */
template <class T> __device__ __forceinline__ T __ldcg(const T *at) { return *at; }
template <class T> __device__ __forceinline__ void __stcg(T *at, T x) { *at = x; }
