/* The device side of CUDA for g++: forced in front of zeroflow_cuda.cu (-include). What a kernel
 * calls is here; block.cpp runs it, runtime.cpp is what host code calls. */
#ifndef EMULATION_KERNEL_H
#define EMULATION_KERNEL_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <functional>
#include <limits>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <cuda_runtime.h>

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define ZFD_LAUNCH(kernel, grid, block, shared, stream, ...)                                       \
    emulation::launch(#kernel, (grid), (block), (shared), (stream), kernel, __VA_ARGS__)
#define ZFD_SHARED(type, name) type *name = static_cast<type *>(emulation::shared_memory())
#define ZFD_SMALL_TILES        1

/* Of cuda/gpu.cu: kernels with each kind of instructions for products, and warps in waves;
 * emulation_waves says which the device has. */
#define ZFD_GPU          "CUDA"
#define ZFD_BACKEND      "cuda"
#define ZFD_FINDER       "under compute-sanitizer"
#define ZFD_NAME_CALL(what)
#define ZFD_HAS_MMA      1
#define ZFD_HAS_PLAIN    1
#define ZFD_CORES        (zfd_cores)emulation::has_cores()
#define ZFD_INSTRUCTIONS "tests/emulation/cores.h"
#define ZFD_WAVE_INSTRUCTIONS "tests/emulation/wave_cores.h"
#define ZFD_WAVES
#define ZFD_SITE , EMULATION_SITE
#define ZFD_AT   , file, line

#undef __launch_bounds__
#define __launch_bounds__(...)

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
static const int warpSize = 32;

/* ------------------------------------------------------------------------------- launching */

namespace emulation
{

void enqueue(const char *kernel, const void *function, dim3 grid, dim3 block, size_t shared,
             cudaStream_t stream, std::function<void()> call);
void *shared_memory();

template <class... P, class... A>
void launch(const char *kernel, dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
            void (*function)(P...), A &&...args)
{
    std::tuple<P...> values(std::forward<A>(args)...);
    enqueue(kernel, reinterpret_cast<const void *>(function), grid, block, shared, stream,
            [function, values]() { std::apply(function, values); });
}

/* ------------------------------------------------------------------ barriers, warp operations */

enum warp_kind {
    SHUFFLE,
    SHUFFLE_UP,
    SHUFFLE_DOWN,
    SHUFFLE_XOR,
    BALLOT,
    ANY,
    ALL,
    SYNCWARP,
    MATCH_ANY,
    REDUCE_ADD,
    REDUCE_MIN_INT,
    REDUCE_MAX_INT,
    REDUCE_MIN,
    REDUCE_MAX,
    REDUCE_AND,
    REDUCE_OR,
    REDUCE_XOR
};
enum barrier_kind { SYNCTHREADS, SYNCTHREADS_COUNT, SYNCTHREADS_AND, SYNCTHREADS_OR };

/* Waits for every thread of the block; of a kind with a value, returns the answer for all. */
int barrier(barrier_kind kind, int value, const char *file, int line);
/* Waits for the lanes of the mask; returns the answer for this lane. */
uint64_t exchange(warp_kind kind, unsigned mask, uint64_t bits, int lane, int width,
                  const char *file, int line);

template <class T>
T shuffle(warp_kind kind, unsigned mask, T value, int lane, int width, const char *file, int line)
{
    static_assert(sizeof(T) <= 8 && std::is_trivially_copyable<T>::value, "shuffles of 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    bits = exchange(kind, mask, bits, lane, width, file, line);
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Of a wave, which has 32 or 64 lanes: the lane that calls; what another lane has; bit k: lane k
 * says so. What lanes of the other half of a wave have is noise. */
int wave_lane();
uint64_t wave_read(uint64_t bits, int lane, const char *file, int line);
uint64_t wave_ballot(bool says, const char *file, int line);
/* What each lane of the wave has given, in the order of lanes: each `bytes`. */
std::vector<unsigned char> wave_all(const void *mine, size_t bytes, const char *file, int line);
/* Which instructions for products the device has (emulation.h). */
int has_cores();

/* Barrier `id` of so many threads: waits for all of them, or only comes to it. */
void named_barrier(int id, int threads, bool waits, const char *file, int line);

/* A product of a warpgroup, as far as this thread makes it: at once, or (by the block's seed) when
 * it is waited for. products_wait leaves at most so many of the groups that were committed. */
void product(const std::function<void()> &make);
void products_commit();
void products_wait(int groups);

} /* namespace emulation */

#define EMULATION_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

static inline void __syncthreads(EMULATION_SITE)
{
    emulation::barrier(emulation::SYNCTHREADS, 0, file, line);
}
static inline int __syncthreads_count(int value, EMULATION_SITE)
{
    return emulation::barrier(emulation::SYNCTHREADS_COUNT, value, file, line);
}
static inline int __syncthreads_and(int value, EMULATION_SITE)
{
    return emulation::barrier(emulation::SYNCTHREADS_AND, value, file, line);
}
static inline int __syncthreads_or(int value, EMULATION_SITE)
{
    return emulation::barrier(emulation::SYNCTHREADS_OR, value, file, line);
}
static inline void __syncwarp(unsigned mask = 0xffffffffu, EMULATION_SITE)
{
    emulation::exchange(emulation::SYNCWARP, mask, 0, 0, 32, file, line);
}
template <class T>
static inline T __shfl_sync(unsigned mask, T value, int lane, int width = 32, EMULATION_SITE)
{
    return emulation::shuffle(emulation::SHUFFLE, mask, value, lane, width, file, line);
}
template <class T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32, EMULATION_SITE)
{
    return emulation::shuffle(emulation::SHUFFLE_UP, mask, value, (int)by, width, file, line);
}
template <class T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32,
                                 EMULATION_SITE)
{
    return emulation::shuffle(emulation::SHUFFLE_DOWN, mask, value, (int)by, width, file, line);
}
template <class T>
static inline T __shfl_xor_sync(unsigned mask, T value, int by, int width = 32, EMULATION_SITE)
{
    return emulation::shuffle(emulation::SHUFFLE_XOR, mask, value, by, width, file, line);
}
static inline unsigned __ballot_sync(unsigned mask, int value, EMULATION_SITE)
{
    return (unsigned)emulation::exchange(emulation::BALLOT, mask, value != 0, 0, 32, file, line);
}
static inline int __any_sync(unsigned mask, int value, EMULATION_SITE)
{
    return (int)emulation::exchange(emulation::ANY, mask, value != 0, 0, 32, file, line);
}
static inline int __all_sync(unsigned mask, int value, EMULATION_SITE)
{
    return (int)emulation::exchange(emulation::ALL, mask, value != 0, 0, 32, file, line);
}
template <class T> static inline unsigned __match_any_sync(unsigned mask, T value, EMULATION_SITE)
{
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    return (unsigned)emulation::exchange(emulation::MATCH_ANY, mask, bits, 0, 32, file, line);
}
#define EMULATION_REDUCE(name, type, kind)                                                         \
    static inline type name(unsigned mask, type value, EMULATION_SITE)                             \
    {                                                                                              \
        return (type)emulation::exchange(emulation::kind, mask, (uint64_t)(uint32_t)value, 0, 32,  \
                                         file, line);                                              \
    }
EMULATION_REDUCE(__reduce_add_sync, unsigned, REDUCE_ADD)
EMULATION_REDUCE(__reduce_add_sync, int, REDUCE_ADD)
EMULATION_REDUCE(__reduce_min_sync, unsigned, REDUCE_MIN)
EMULATION_REDUCE(__reduce_min_sync, int, REDUCE_MIN_INT)
EMULATION_REDUCE(__reduce_max_sync, unsigned, REDUCE_MAX)
EMULATION_REDUCE(__reduce_max_sync, int, REDUCE_MAX_INT)
EMULATION_REDUCE(__reduce_and_sync, unsigned, REDUCE_AND)
EMULATION_REDUCE(__reduce_or_sync, unsigned, REDUCE_OR)
EMULATION_REDUCE(__reduce_xor_sync, unsigned, REDUCE_XOR)

static inline int zfd_wave_lane() { return emulation::wave_lane(); }
template <class T> static inline T zfd_wave_read(T value, int lane, EMULATION_SITE)
{
    static_assert(sizeof(T) % 4 == 0 && sizeof(T) <= 8, "words of a wave");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    bits = emulation::wave_read(bits, lane, file, line);
    memcpy(static_cast<void *>(&value), &bits, sizeof value);
    return value;
}
static inline uint64_t zfd_wave_ballot(bool says, EMULATION_SITE)
{
    return emulation::wave_ballot(says, file, line);
}
static inline void zfd_wave_sync(EMULATION_SITE)
{
    emulation::exchange(emulation::SYNCWARP, 0xffffffffu, 0, 0, 32, file, line);
}

static inline void __threadfence() {}
static inline void __threadfence_block() {}
static inline void __threadfence_system() {}
static inline void __nanosleep(unsigned) {}

/* --------------------------------------------------------------------------------- atomics
 * One thread runs at a time. Of floats there are none: their order would be the device's. */

#define EMULATION_ATOMIC(name, expression)                                                         \
    template <class T, class V> static inline T name(T *at, V value_)                              \
    {                                                                                              \
        static_assert(std::is_integral<T>::value, #name " of floats has no order");                \
        T value = (T)value_, old = *at;                                                            \
        *at = (T)(expression);                                                                     \
        return old;                                                                                \
    }
EMULATION_ATOMIC(atomicAdd, old + value)
EMULATION_ATOMIC(atomicSub, old - value)
EMULATION_ATOMIC(atomicExch, value)
EMULATION_ATOMIC(atomicMin, old < value ? old : value)
EMULATION_ATOMIC(atomicMax, old > value ? old : value)
EMULATION_ATOMIC(atomicAnd, old &value)
EMULATION_ATOMIC(atomicOr, old | value)
EMULATION_ATOMIC(atomicXor, old ^ value)
EMULATION_ATOMIC(atomicInc, old >= value ? 0 : old + 1)

template <class T, class V, class W> static inline T atomicCAS(T *at, V expected, W value)
{
    T old = *at;
    if (old == (T)expected) *at = (T)value;
    return old;
}
template <class T, class V> static inline T atomicAdd_system(T *at, V v)
{
    return atomicAdd(at, v);
}
template <class T, class V> static inline T atomicExch_system(T *at, V v)
{
    return atomicExch(at, v);
}
template <class T, class V, class W> static inline T atomicCAS_system(T *at, V expected, W value)
{
    return atomicCAS(at, expected, value);
}

/* ------------------------------------------------------------------------------ loads, bits */

template <class T> static inline T __ldg(const T *at) { return *at; }
template <class T> static inline T __ldcg(const T *at) { return *at; }
template <class T> static inline T __ldca(const T *at) { return *at; }
template <class T> static inline T __ldcs(const T *at) { return *at; }
template <class T> static inline T __ldlu(const T *at) { return *at; }
template <class T> static inline T __ldcv(const T *at) { return *at; }
template <class T> static inline void __stcg(T *at, T value) { *at = value; }
template <class T> static inline void __stcs(T *at, T value) { *at = value; }
template <class T> static inline void __stwb(T *at, T value) { *at = value; }
template <class T> static inline void __stwt(T *at, T value) { *at = value; }

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
static inline unsigned __brev(unsigned x)
{
    unsigned y = 0;
    for (int i = 0; i < 32; i++) y |= (x >> i & 1) << (31 - i);
    return y;
}
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector)
{
    uint64_t both = (uint64_t)y << 32 | x;
    unsigned out = 0;
    for (int i = 0; i < 4; i++) {
        unsigned byte = (unsigned)(both >> 8 * (selector >> 4 * i & 7)) & 0xff;
        if (selector >> 4 * i & 8) byte = byte & 0x80 ? 0xff : 0;
        out |= byte << 8 * i;
    }
    return out;
}
static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((uint64_t)a * b >> 32);
}
static inline int __mulhi(int a, int b) { return (int)((int64_t)a * b >> 32); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}

template <class To, class From> static inline To emulation_bits(From from)
{
    static_assert(sizeof(To) == sizeof(From), "of one size");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
static inline unsigned __float_as_uint(float x) { return emulation_bits<unsigned>(x); }
static inline int __float_as_int(float x) { return emulation_bits<int>(x); }
static inline float __uint_as_float(unsigned x) { return emulation_bits<float>(x); }
static inline float __int_as_float(int x) { return emulation_bits<float>(x); }
static inline long long __double_as_longlong(double x) { return emulation_bits<long long>(x); }
static inline double __longlong_as_double(long long x) { return emulation_bits<double>(x); }

/* --------------------------------------------------------------------- numbers
 * Names that glibc has for itself (__expf) stand aside for macros. Fast ones are exact here. */

template <class To, class From> static inline To emulation_integer(From x)
{
    const double least = (double)std::numeric_limits<To>::min();
    const double most = (double)std::numeric_limits<To>::max();
    if (isnan(x)) return 0;
    return (double)x <= least  ? std::numeric_limits<To>::min()
           : (double)x >= most ? std::numeric_limits<To>::max()
                               : (To)x;
}
static inline int __float2int_rz(float x) { return emulation_integer<int>(truncf(x)); }
static inline int __float2int_rn(float x) { return emulation_integer<int>(rintf(x)); }
static inline int __float2int_rd(float x) { return emulation_integer<int>(floorf(x)); }
static inline int __float2int_ru(float x) { return emulation_integer<int>(ceilf(x)); }
static inline unsigned __float2uint_rz(float x) { return emulation_integer<unsigned>(truncf(x)); }
static inline unsigned __float2uint_rn(float x) { return emulation_integer<unsigned>(rintf(x)); }
static inline long long __float2ll_rz(float x) { return emulation_integer<long long>(truncf(x)); }
static inline long long __float2ll_rn(float x) { return emulation_integer<long long>(rintf(x)); }
static inline int __double2int_rz(double x) { return emulation_integer<int>(trunc(x)); }
static inline long long __double2ll_rz(double x) { return emulation_integer<long long>(trunc(x)); }
static inline float __int2float_rn(int x) { return (float)x; }
static inline float __uint2float_rn(unsigned x) { return (float)x; }
static inline float __ll2float_rn(long long x) { return (float)x; }
static inline float __ull2float_rn(unsigned long long x) { return (float)x; }
static inline double __ll2double_rn(long long x) { return (double)x; }
static inline float __double2float_rn(double x) { return (float)x; }

static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline float __frcp_rn(float x) { return 1 / x; }
static inline float __frsqrt_rn(float x) { return (float)(1 / sqrt((double)x)); }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float fdividef(float a, float b) { return a / b; }
static inline float __saturatef(float x) { return x > 0 ? x < 1 ? x : 1 : 0; }
static inline float rsqrtf(float x) { return 1 / sqrtf(x); }
static inline double rsqrt(double x) { return 1 / sqrt(x); }

#define __expf(x)    expf(x)
#define __exp2f(x)   exp2f(x)
#define __exp10f(x)  exp10f(x)
#define __logf(x)    logf(x)
#define __log2f(x)   log2f(x)
#define __log10f(x)  log10f(x)
#define __powf(x, y) powf((x), (y))
#define __sinf(x)    sinf(x)
#define __cosf(x)    cosf(x)
#define __tanhf(x)   tanhf(x)

template <class A, class B> static inline typename std::common_type<A, B>::type min(A a, B b)
{
    return b < a ? b : a;
}
template <class A, class B> static inline typename std::common_type<A, B>::type max(A a, B b)
{
    return a < b ? b : a;
}
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }

/* ------------------------------------------------------- what the headers have for nvcc alone */

template <class T>
static inline cudaError_t cudaFuncSetAttribute(T *function, cudaFuncAttribute attribute, int value)
{
    return ::cudaFuncSetAttribute(reinterpret_cast<const void *>(function), attribute, value);
}
template <class T>
static inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, T *function)
{
    return ::cudaFuncGetAttributes(attributes, reinterpret_cast<const void *>(function));
}
template <class T>
static inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, T *function,
                                                                        int threads, size_t shared)
{
    return ::cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks, reinterpret_cast<const void *>(function), threads, shared);
}

#endif
