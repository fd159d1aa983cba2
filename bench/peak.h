/* What this machine can multiply and add at most, at this moment: independent multiply-adds of
 * vectors, or of AMX's tiles, that stay in registers, on so many threads at once. */
#ifndef PEAK_H
#define PEAK_H

#include "../zeroflow.h"
#include "figures.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

/* PEAK_BF16: dot products of pairs, summed in f32; PEAK_AMX: tiles of bf16, likewise. */
typedef enum peak_kind {
    PEAK_PORTABLE,
    PEAK_AVX2,
    PEAK_AVX512,
    PEAK_BF16,
    PEAK_AMX,
    PEAK_NEON
} peak_kind;

enum { PEAK_STEPS = 50000, PEAK_SUMS = 12, PEAK_TURNS = 4, PEAK_TRIES = 9, PEAK_THREADS = 256 };

typedef float peak_f4 __attribute__((vector_size(16)));

/* PEAK_STEPS * PEAK_SUMS multiply-adds. */
#define PEAK(name, attributes, vector, set1, fma, constraint)                                      \
    attributes static inline void name(void)                                                       \
    {                                                                                              \
        vector x = set1(0.999f), y = set1(0.001f), s0 = y, s1 = y, s2 = y, s3 = y, s4 = y, s5 = y; \
        vector s6 = y, s7 = y, s8 = y, s9 = y, s10 = y, s11 = y;                                   \
        for (int i = 0; i < PEAK_STEPS; i++) {                                                     \
            s0 = fma(s0, x, y), s1 = fma(s1, x, y), s2 = fma(s2, x, y), s3 = fma(s3, x, y);        \
            s4 = fma(s4, x, y), s5 = fma(s5, x, y), s6 = fma(s6, x, y), s7 = fma(s7, x, y);        \
            s8 = fma(s8, x, y), s9 = fma(s9, x, y), s10 = fma(s10, x, y), s11 = fma(s11, x, y);    \
            __asm__ volatile(""                                                                    \
                             : "+" constraint(s0), "+" constraint(s1), "+" constraint(s2),         \
                               "+" constraint(s3), "+" constraint(s4), "+" constraint(s5));        \
            __asm__ volatile(""                                                                    \
                             : "+" constraint(s6), "+" constraint(s7), "+" constraint(s8),         \
                               "+" constraint(s9), "+" constraint(s10), "+" constraint(s11));      \
        }                                                                                          \
    }

#define PEAK_SET1(x)      ((peak_f4){(x), (x), (x), (x)})
#define PEAK_FMA(a, b, c) ((a) * (b) + (c))
#if defined(__x86_64__)
#define PEAK_DOT(sum, x, y) _mm512_dpbf16_ps((sum), (__m512bh)(x), (__m512bh)(y))
PEAK(peak_portable, , peak_f4, PEAK_SET1, PEAK_FMA, "x")
PEAK(peak_avx2, __attribute__((target("avx2,fma"))), __m256, _mm256_set1_ps, _mm256_fmadd_ps, "x")
PEAK(peak_avx512, __attribute__((target("avx512f"))), __m512, _mm512_set1_ps, _mm512_fmadd_ps, "v")
PEAK(peak_bf16, __attribute__((target("avx512f,avx512bf16"))), __m512, _mm512_set1_ps, PEAK_DOT,
     "v")

/* PEAK_STEPS * PEAK_SUMS multiply-adds of 16 lanes of pairs each, 16 to an instruction. */
__attribute__((target("amx-tile,amx-bf16"))) static inline void peak_amx(void)
{
    struct {
        unsigned char palette, start, reserved[14];
        unsigned short row_bytes[16];
        unsigned char rows[16];
    } config = {.palette = 1};
    for (int i = 0; i < 8; i++) config.row_bytes[i] = 64, config.rows[i] = 16;
    __asm__ volatile("" : : "m"(config)); /* gcc's intrinsic reads 8 bytes of it, as gcc sees it */
    _tile_loadconfig(&config);
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
    for (int i = 0; i < PEAK_STEPS * PEAK_SUMS / 64; i++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
}

/* Whether there are tiles of bf16; asking for them makes them usable. */
static inline bool peak_has_amx(void)
{
    zf_backend *amx = zf_cpu_backend(&(zf_cpu_desc){.isa = "amx"}, NULL);
    zf_backend_free(amx);
    return amx != NULL;
}
#elif defined(__aarch64__)
#define PEAK_NEON_FMA(a, b, c) vfmaq_f32((c), (a), (b))
PEAK(peak_portable, , peak_f4, PEAK_SET1, PEAK_FMA, "w")
PEAK(peak_neon, , float32x4_t, vdupq_n_f32, PEAK_NEON_FMA, "w")
#else
PEAK(peak_portable, , peak_f4, PEAK_SET1, PEAK_FMA, "m")
#endif

/* What this processor does best, in f32 or in bf16. */
static inline peak_kind peak_best(bool bf16)
{
#if defined(__x86_64__)
    if (bf16 && peak_has_amx()) return PEAK_AMX;
    if (bf16 && __builtin_cpu_supports("avx512bf16")) return PEAK_BF16;
    if (__builtin_cpu_supports("avx512f")) return PEAK_AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return PEAK_AVX2;
#elif defined(__aarch64__)
    (void)bf16;
    return PEAK_NEON;
#endif
    (void)bf16;
    return PEAK_PORTABLE;
}

/* Multiply-adds of one of its instructions. */
static inline double peak_width(peak_kind kind)
{
    return kind == PEAK_AMX      ? 512 /* an instruction has 16 times as many */
           : kind == PEAK_BF16   ? 32
           : kind == PEAK_AVX512 ? 16
           : kind == PEAK_AVX2   ? 8
                                 : 4;
}

static inline void peak_run(peak_kind kind)
{
    switch (kind) {
#if defined(__x86_64__)
    case PEAK_AVX2: peak_avx2(); break;
    case PEAK_AVX512: peak_avx512(); break;
    case PEAK_BF16: peak_bf16(); break;
    case PEAK_AMX: peak_amx(); break;
#elif defined(__aarch64__)
    case PEAK_NEON: peak_neon(); break;
#endif
    default: peak_portable();
    }
}

typedef struct peak_gate {
    peak_kind kind;
    int threads;
    atomic_int come, done; /* threads, of all tries so far */
} peak_gate;

static inline void peak_wait(atomic_int *counted, int until)
{
    while (atomic_load(counted) < until) sched_yield();
}

/* Tries of one thread; the median of their times, from when all were there until all were done. */
static inline double peak_tries(peak_gate *gate)
{
    double seconds[PEAK_TRIES];
    for (int try = 1; try <= PEAK_TRIES; try++) {
        double start;
        atomic_fetch_add(&gate->come, 1);
        peak_wait(&gate->come, try * gate->threads);
        start = bench_now();
        for (int i = 0; i < PEAK_TURNS; i++) peak_run(gate->kind);
        atomic_fetch_add(&gate->done, 1);
        peak_wait(&gate->done, try * gate->threads);
        seconds[try - 1] = bench_now() - start;
    }
    return bench_median(seconds, PEAK_TRIES);
}

static inline void *peak_thread(void *gate)
{
    (void)peak_tries(gate);
    return NULL;
}

/* FLOP/s, a multiply-add being two: the median of tries of a third of a millisecond, since new
 * threads may begin on one core. 0: the system gives no threads. */
static inline double peak_rate(peak_kind kind, int threads)
{
    peak_gate gate = {.kind = kind, .threads = threads};
    pthread_t thread[PEAK_THREADS];
    int started = 1;
    double seconds;
    if (threads > PEAK_THREADS) return 0;
    while (started < threads && !pthread_create(&thread[started], NULL, peak_thread, &gate))
        started++;
    if (started < threads) /* those that wait are let go */
        atomic_store(&gate.come, PEAK_TRIES * threads), atomic_store(&gate.done, gate.come);
    seconds = peak_tries(&gate);
    for (int i = 1; i < started; i++) pthread_join(thread[i], NULL);
    if (started < threads) return 0;
    return 2.0 * PEAK_TURNS * PEAK_STEPS * PEAK_SUMS * peak_width(kind) * threads / seconds;
}

#endif
