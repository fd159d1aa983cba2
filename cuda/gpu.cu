/* The maker of the device: the headers of CUDA, or the names of HIP as CUDA has them; which kernels
 * are compiled; and the operations of a warp. No other file names what differs by maker.
 *
 * A warp has 32 threads for every kernel, and the order of every sum follows from that number. A
 * wave of AMD has 32 or 64 lanes; a warp is then one half of a wave of 64. */

/* The instructions that multiply matrices. */
enum zfd_cores {
    ZFD_NO_CORES, /* none are used */
    ZFD_MMA,      /* NVIDIA's (cuda/cores/mma.cu) */
    ZFD_MFMA,     /* AMD's, of waves of 64 lanes and of 32 (cuda/cores/waves.cu) */
    ZFD_WMMA
};

#if defined(__HIP__)
#include "hip/names.h"
#include "hip/device.cu"
#elif !defined(ZFD_GPU)
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#define ZFD_GPU       "CUDA" /* in messages */
#define ZFD_BACKEND   "cuda" /* zf_backend.name */
#define ZFD_FINDER    "under compute-sanitizer"
#define ZFD_NAME_CALL(what) /* names of the runtime are as this file has them */
#define ZFD_HAS_MMA   1       /* kernels with mma are compiled, */
#define ZFD_HAS_PLAIN 0       /* and kernels with other instructions, or none, in their place */
#define ZFD_CORES     ZFD_MMA /* those that a device has */
#endif

/* In the emulation, the place in a kernel that calls. */
#ifndef ZFD_SITE
#define ZFD_SITE
#define ZFD_AT
#endif

#ifndef ZFD_WAVES

#define ZFD_ALL_LANES 0xffffffffu

/* The value that thread `lane` has, or the one whose number differs in these bits. */
#define zfd_shuffle(...)     __shfl_sync(ZFD_ALL_LANES, __VA_ARGS__)
#define zfd_shuffle_xor(...) __shfl_xor_sync(ZFD_ALL_LANES, __VA_ARGS__)
/* Bit k: the value of thread k is not 0. */
#define zfd_ballot(...)      __ballot_sync(ZFD_ALL_LANES, __VA_ARGS__)
/* The value of some thread is not 0. */
#define zfd_any(...)         __any_sync(ZFD_ALL_LANES, __VA_ARGS__)
/* What the threads wrote before is seen by all of them. */
#define zfd_sync_warp()      __syncwarp()

#else

/* The same by a wave's own operations: zfd_wave_lane is the lane of this thread, zfd_wave_read what
 * another lane has, zfd_wave_ballot bit k: lane k says so. Lanes of the other half may
 * do something else meanwhile; then what they have is not known, and nothing here depends on it. */

/* The lane of the wave that is thread `lane` of this warp. */
__device__ __forceinline__ int zfd_lane_of_wave(int lane)
{
    return (zfd_wave_lane() & ~31) | (lane & 31);
}

template <class T> __device__ __forceinline__ T zfd_shuffle(T x, int lane ZFD_SITE)
{
    return zfd_wave_read(x, zfd_lane_of_wave(lane) ZFD_AT);
}

template <class T> __device__ __forceinline__ T zfd_shuffle_xor(T x, int by ZFD_SITE)
{
    return zfd_shuffle(x, zfd_wave_lane() ^ by ZFD_AT);
}

__device__ __forceinline__ uint32_t zfd_ballot(bool says ZFD_SITE)
{
    return (uint32_t)(zfd_wave_ballot(says ZFD_AT) >> (zfd_wave_lane() & 32));
}

__device__ __forceinline__ bool zfd_any(bool says ZFD_SITE)
{
    return zfd_ballot(says ZFD_AT) != 0;
}

#define zfd_sync_warp zfd_wave_sync

#endif
