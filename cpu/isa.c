/* Instruction sets, and one source for kernels of all of them.
 *
 * The library is compiled without machine flags and chooses at run time. A kernel is written once,
 * as an inlined body of plain loops that takes the instruction set first; ZFI_KERNEL compiles it
 * for each set, where the compiler vectorises it, and makes a function that dispatches on the
 * value:
 *
 *     ZFI_BODY void zfi_scale_body(zfi_isa isa, float *y, const float *x, float by, int64_t n)
 *     {
 *         (void)isa;
 *         ZFI_VECTOR
 *         for (int64_t i = 0; i < n; i++) y[i] = x[i] * by;
 *     }
 *     ZFI_KERNEL(zfi_scale, (float *y, const float *x, float by, int64_t n), (y, x, by, n))
 *
 * makes `void zfi_scale(zfi_isa, float *y, const float *x, float by, int64_t n)`. ZFI_KERNEL_OF
 * gives a kernel with a result. What a body calls in its loops must be a body (or a macro) as well.
 *
 * - ZFI_VECTOR before a loop promises that iterations are independent (y may be x itself, not x
 * shifted); without it the compiler tests for overlap and runs y == x one element at a time.
 * - zfi_fma(isa, a, b, c) is a * b + c in one rounding where the set has it and in two where not.
 * Written with it, an element has the same value in the vectorised part of a loop and in the rest,
 * hence for any cut among threads.
 * - The portable instance is compiled for less size where processors have another set, as all x86
 * of the last ten years do.
 * - Nothing is reassociated: a sum is vectorised only when it is written as ZFI_LANES running sums
 * that are folded at the end (zfi_fold_sum), whose order depends on the length alone.
 */
typedef enum zfi_isa {
    ZFI_ISA_PORTABLE,
    ZFI_ISA_AVX2,
    ZFI_ISA_AVX512,
    ZFI_ISA_AMX, /* AVX-512, and products of bf16 by tiles (tile_amx.c) */
    ZFI_ISA_NEON
} zfi_isa;

#if defined(__GNUC__) && defined(__x86_64__) && !defined(ZFI_PORTABLE)
#define ZFI_X86 1
#include <cpuid.h>
#include <immintrin.h>
#else
#define ZFI_X86 0
#endif
#if defined(__GNUC__) && defined(__aarch64__)
#define ZFI_NEON 1
#include <arm_neon.h>
#else
#define ZFI_NEON 0
#endif

#define ZFI_BODY ZFI_INLINE

#if defined(__clang__)
#pragma clang diagnostic push                    /* up to the library's end */
#pragma clang diagnostic ignored "-Wpass-failed" /* a loop that stays scalar is no defect */
#pragma STDC FP_CONTRACT OFF /* only zfi_fma fuses, so that bits do not depend on how loops go */
#define ZFI_VECTOR _Pragma("clang loop vectorize(assume_safety) interleave(assume_safety)")
#define ZFI_UNROLL _Pragma("clang loop unroll(full)")
#define ZFI_OPTIMIZE
#define ZFI_OPTIMIZE_LESS
#elif defined(__GNUC__)
#define ZFI_VECTOR _Pragma("GCC ivdep")
#define ZFI_UNROLL _Pragma("GCC unroll 16")
#ifndef ZFI_LEVEL /* how hard gcc tries; less where sanitizers keep loops scalar */
#define ZFI_LEVEL "O3"
#endif
#define ZFI_OPTIMIZE_AT(level)                                                                     \
    __attribute__((optimize(level, "no-math-errno", "no-trapping-math", "no-thread-jumps",         \
                            "fp-contract=off")))
#define ZFI_OPTIMIZE      ZFI_OPTIMIZE_AT(ZFI_LEVEL)
#define ZFI_OPTIMIZE_LESS ZFI_OPTIMIZE_AT("O2") /* does not unroll, leaves more loops scalar */
#else
#define ZFI_VECTOR
#define ZFI_UNROLL
#define ZFI_OPTIMIZE
#define ZFI_OPTIMIZE_LESS
#endif

#if ZFI_X86
#define ZFI_TARGET_AVX2 __attribute__((target("avx2,fma,f16c")))
#if defined(__clang__)
#define ZFI_TARGET_AVX512                                                                          \
    __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,f16c"),                     \
                   min_vector_width(512)))
#else
#define ZFI_TARGET_AVX512                                                                          \
    __attribute__((                                                                                \
        target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,f16c,prefer-vector-width=512")))
#endif
#endif

#if ZFI_X86
/* What `ask` says, asked once: cpuid takes microseconds on a virtual machine. *known is 0
 * before. */
static bool zfi_ask_once(atomic_int *known, bool (*ask)(void))
{
    enum { NO = 1, YES };
    int answer = atomic_load_explicit(known, memory_order_relaxed);
    if (!answer) {
        answer = ask() ? YES : NO;
        atomic_store_explicit(known, answer, memory_order_relaxed);
    }
    return answer == YES;
}

/* Not by name, which compilers learned late. */
static bool zfi_ask_f16c(void)
{
    enum { F16C = 1 << 29 };
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && c & F16C;
}

static bool zfi_has_f16c(void)
{
    static atomic_int known;
    return zfi_ask_once(&known, zfi_ask_f16c);
}
#endif

#if ZFI_X86 && defined(__linux__) && (defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11)
#define ZFI_AMX 1

/* Asks the processor and the kernel for AMX. The kernel gives tiles to a process that requests
 * them: call 158, arch_prctl; 0x1023, ARCH_REQ_XCOMP_PERM; 18, the tiles' data. */
static bool zfi_request_amx(void)
{
    enum { BF16 = 1 << 22, TILE = 1 << 24 };
    unsigned a, b, c, d;
    long result;
    if (!__builtin_cpu_supports("avx512bf16") || !__get_cpuid_count(7, 0, &a, &b, &c, &d) ||
        !(d & BF16) || !(d & TILE))
        return false;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "0"(158L), "D"(0x1023L), "S"(18L)
                     : "rcx", "r11", "memory");
    return result == 0;
}

static bool zfi_has_amx(void)
{
    static atomic_int known;
    return zfi_ask_once(&known, zfi_request_amx);
}
#else
#define ZFI_AMX 0
ZFI_UNUSED static bool zfi_has_amx(void) { return false; }
#endif

/* The best instruction set of this machine that needs no request; those below it run too. */
ZFI_UNUSED static zfi_isa zfi_isa_best(void)
{
#if ZFI_X86
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !zfi_has_f16c())
        return ZFI_ISA_PORTABLE;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
        return ZFI_ISA_AVX512;
    return ZFI_ISA_AVX2;
#elif ZFI_NEON
    return ZFI_ISA_NEON;
#else
    return ZFI_ISA_PORTABLE;
#endif
}

/* The best of all: that, or AMX. */
ZFI_UNUSED static zfi_isa zfi_isa_best_of_all(void)
{
    const zfi_isa best = zfi_isa_best();
    return best == ZFI_ISA_AVX512 && zfi_has_amx() ? ZFI_ISA_AMX : best;
}

ZFI_UNUSED static const char *zfi_isa_name(zfi_isa isa)
{
    static const char *const names[] = {"portable", "avx2", "avx512", "amx", "neon"};
    return names[isa];
}

#define ZFI_STRIP(...) __VA_ARGS__

#define ZFI_INSTANCE(attributes, isa, suffix, type, give, name, params, args)                      \
    attributes ZFI_UNUSED static type name##suffix params { give name##_body(isa, ZFI_STRIP args); }
#if ZFI_X86
#define ZFI_INSTANCES_BUT_X86(type, give, name, params, args)                                      \
    ZFI_INSTANCE(ZFI_OPTIMIZE_LESS, ZFI_ISA_PORTABLE, _portable, type, give, name, params, args)
#define ZFI_INSTANCES(type, give, name, params, args)                                              \
    ZFI_INSTANCES_BUT_X86(type, give, name, params, args)                                          \
    ZFI_INSTANCE(ZFI_OPTIMIZE ZFI_TARGET_AVX2, ZFI_ISA_AVX2, _avx2, type, give, name, params,      \
                 args)                                                                             \
    ZFI_INSTANCE(ZFI_OPTIMIZE ZFI_TARGET_AVX512, ZFI_ISA_AVX512, _avx512, type, give, name,        \
                 params, args)
#define ZFI_DISPATCH(give, name, args)                                                             \
    if (isa >= ZFI_ISA_AVX512) give name##_avx512 args;                                            \
    else if (isa == ZFI_ISA_AVX2) give name##_avx2 args;                                           \
    else give name##_portable args;
#elif ZFI_NEON
#define ZFI_INSTANCES(type, give, name, params, args)                                              \
    ZFI_INSTANCE(ZFI_OPTIMIZE, ZFI_ISA_PORTABLE, _portable, type, give, name, params, args)        \
    ZFI_INSTANCE(ZFI_OPTIMIZE, ZFI_ISA_NEON, _neon, type, give, name, params, args)
#define ZFI_DISPATCH(give, name, args)                                                             \
    if (isa == ZFI_ISA_NEON) give name##_neon args;                                                \
    else give name##_portable args;
#else
#define ZFI_INSTANCES(type, give, name, params, args)                                              \
    ZFI_INSTANCE(ZFI_OPTIMIZE, ZFI_ISA_PORTABLE, _portable, type, give, name, params, args)
#define ZFI_DISPATCH(give, name, args)                                                             \
    (void)isa;                                                                                     \
    give name##_portable args;
#endif

#if !ZFI_X86
#define ZFI_INSTANCES_BUT_X86 ZFI_INSTANCES
#endif

#define ZFI_KERNEL(name, params, args)                                                             \
    ZFI_INSTANCES(void, , name, params, args)                                                      \
    ZFI_UNUSED static void name(zfi_isa isa, ZFI_STRIP params) { ZFI_DISPATCH(, name, args) }

#define ZFI_KERNEL_OF(type, name, params, args)                                                    \
    ZFI_INSTANCES(type, return, name, params, args)                                                \
    ZFI_UNUSED static type name(zfi_isa isa, ZFI_STRIP params) { ZFI_DISPATCH(return, name, args) }

/* A kernel whose instances for x86, NAME_avx2 and NAME_avx512, are written by hand and stand before
 * it; the others are those of its body. `give` is return, or empty where type is void. */
#define ZFI_KERNEL_BY_HAND(type, give, name, params, args)                                         \
    ZFI_INSTANCES_BUT_X86(type, give, name, params, args)                                          \
    ZFI_UNUSED static type name(zfi_isa isa, ZFI_STRIP params) { ZFI_DISPATCH(give, name, args) }

/* a * b + c: one rounding where the instruction set fuses, two where it does not. */
ZFI_BODY float zfi_fma(zfi_isa isa, float a, float b, float c)
{
#if defined(__GNUC__)
    if (isa != ZFI_ISA_PORTABLE) return __builtin_fmaf(a, b, c);
#endif
    return a * b + c;
}

#if defined(__GNUC__)
/* errno is of no interest: compilers make vectors of square roots then. */
float sqrtf(float) __attribute__((const));
#endif

/* Bits of a float, and back. */
ZFI_BODY int32_t zfi_bits_of(float x)
{
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

ZFI_BODY float zfi_float_of(int32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* condition ? a : b, without a branch that a compiler could split a loop over. */
ZFI_BODY float zfi_pick(zfi_isa isa, bool condition, float a, float b)
{
    if (isa == ZFI_ISA_AVX512) return condition ? a : b; /* has masks */
    int32_t mask = -(int32_t)condition;
    return zfi_float_of((zfi_bits_of(a) & mask) | (zfi_bits_of(b) & ~mask));
}

/* x between least and most; NaN stays NaN. */
ZFI_BODY float zfi_clamp(zfi_isa isa, float x, float least, float most)
{
    x = zfi_pick(isa, most < x, most, x);
    return zfi_pick(isa, least > x, least, x);
}

/* |x|, and x with the sign of `sign` (which is not looked at otherwise). x is not negative. */
ZFI_BODY float zfi_abs(float x) { return zfi_float_of(zfi_bits_of(x) & INT32_MAX); }

ZFI_BODY float zfi_with_sign(float x, float sign)
{
    return zfi_float_of(zfi_bits_of(x) | (zfi_bits_of(sign) & INT32_MIN));
}

/* Running sums are kept in this many lanes: element i of a row goes to lane i % ZFI_LANES. */
enum { ZFI_LANES = 64 };

/* Folds in a fixed tree: lane l takes lane l + 8, then + 4, + 2, + 1. Here and below in vectors,
 * since the compilers fold so few numbers one by one. */
ZFI_BODY float zfi_fold_sixteen(const float lane[16])
{
#if defined(__GNUC__)
    typedef float four __attribute__((vector_size(16)));
    four v[4];
    memcpy(v, lane, sizeof v);
    v[0] = (v[0] + v[2]) + (v[1] + v[3]);
    return (v[0][0] + v[0][2]) + (v[0][1] + v[0][3]);
#else
    float a[8], b[4];
    for (int l = 0; l < 8; l++) a[l] = lane[l] + lane[l + 8];
    for (int l = 0; l < 4; l++) b[l] = a[l] + a[l + 4];
    return (b[0] + b[2]) + (b[1] + b[3]);
#endif
}

/* The same of twice as many: lane l takes lane l + 16 first. */
ZFI_BODY float zfi_fold_half_sum(const float lane[ZFI_LANES / 2])
{
    float sum[16];
#if defined(__GNUC__)
    typedef float quarter __attribute__((vector_size(4 * ZFI_LANES / 4)));
    quarter a[2];
    memcpy(a, lane, sizeof a);
    a[0] += a[1];
    memcpy(sum, a, sizeof sum);
#else
    for (int l = 0; l < 16; l++) sum[l] = lane[l] + lane[l + 16];
#endif
    return zfi_fold_sixteen(sum);
}

/* The same of all lanes: lane l takes lane l + 32 first. */
ZFI_BODY float zfi_fold_sum(const float lane[ZFI_LANES])
{
    float sum[ZFI_LANES / 2];
#if defined(__GNUC__)
    typedef float half __attribute__((vector_size(4 * ZFI_LANES / 2)));
    half a[2];
    memcpy(a, lane, sizeof a);
    a[0] += a[1];
    memcpy(sum, a, sizeof sum);
#else
    for (int l = 0; l < ZFI_LANES / 2; l++) sum[l] = lane[l] + lane[l + ZFI_LANES / 2];
#endif
    return zfi_fold_half_sum(sum);
}

/* The greater of two; NaN when one is NaN. */
ZFI_BODY float zfi_max1(zfi_isa isa, float a, float b)
{
    a = zfi_pick(isa, a < b, b, a);
    return zfi_pick(isa, b != b, b, a);
}

ZFI_BODY float zfi_fold_max(zfi_isa isa, float lane[ZFI_LANES])
{
    for (int l = 0; l < 32; l++) lane[l] = zfi_max1(isa, lane[l], lane[l + 32]);
    for (int l = 0; l < 16; l++) lane[l] = zfi_max1(isa, lane[l], lane[l + 16]);
    for (int l = 0; l < 8; l++) lane[l] = zfi_max1(isa, lane[l], lane[l + 8]);
    for (int l = 0; l < 4; l++) lane[l] = zfi_max1(isa, lane[l], lane[l + 4]);
    return zfi_max1(isa, zfi_max1(isa, lane[0], lane[2]), zfi_max1(isa, lane[1], lane[3]));
}
