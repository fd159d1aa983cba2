/* Nanoseconds per element of the vector functions and of the conversions between f32 and 16 bits
 * (6 bytes an element), by instruction set, with the C library next to it.
 *
 *     build/bench/vmath [--threads N] [--rounds N]
 *
 * A million elements in pieces of 16 Ki, shared among the threads; the least of the rounds. The
 * last column is the C library's function, an element at a time on one thread. On a busy machine
 * run it under `chrt -f 1`. */
#define _POSIX_C_SOURCE 200809L
#define ZEROFLOW_IMPLEMENTATION
#include "../zeroflow.h"
#include "figures.h"
#include "options.h"

enum { COUNT = 1 << 20, PIECE = 1 << 14 };

static float *x, *y, *ones;
static uint16_t *half;

static float sum; /* so that reductions are not left out */

#define FUNCTION(name)                                                                             \
    static void do_##name(zfi_isa isa, int64_t at) { zfi_v##name(isa, y + at, x + at, PIECE); }
#define GRADIENT(name)                                                                             \
    static void do_##name(zfi_isa isa, int64_t at)                                                 \
    {                                                                                              \
        zfi_v##name(isa, y + at, ones + at, x + at, PIECE);                                        \
    }
FUNCTION(exp)
FUNCTION(log)
FUNCTION(tanh)
FUNCTION(erf)
FUNCTION(sigmoid)
FUNCTION(silu)
FUNCTION(gelu)
FUNCTION(gelu_tanh)
GRADIENT(silu_grad)
GRADIENT(gelu_grad)
GRADIENT(gelu_tanh_grad)
static void do_sum(zfi_isa isa, int64_t at) { y[at] = zfi_vsum(isa, x + at, PIECE); }
static void do_dot(zfi_isa isa, int64_t at) { y[at] = zfi_vdot(isa, x + at, ones + at, PIECE); }
static void do_max(zfi_isa isa, int64_t at) { y[at] = zfi_vmax(isa, x + at, PIECE); }
static void do_dropout(zfi_isa isa, int64_t at)
{
    zfi_dropout(isa, y + at, x + at, (uint64_t)at, PIECE, 58982, 65536.0f / 58982, 1, 2, 3);
}
static void do_uniform(zfi_isa isa, int64_t at)
{
    zfi_random_uniform(isa, y + at, (uint64_t)at, PIECE, 1, 2, 3);
}
static void do_normal(zfi_isa isa, int64_t at)
{
    zfi_random_normal(isa, y + at, (uint64_t)at, PIECE, 0.0f, 1.0f, true, 1, 2, 3);
}

#define CONVERSIONS(name)                                                                          \
    static void do_widen_##name(zfi_isa isa, int64_t at)                                           \
    {                                                                                              \
        zfi_widen_##name(isa, y + at, half + at, PIECE);                                           \
    }                                                                                              \
    static void do_narrow_##name(zfi_isa isa, int64_t at)                                          \
    {                                                                                              \
        zfi_narrow_##name(isa, half + at, x + at, PIECE);                                          \
    }
CONVERSIONS(bf16)
CONVERSIONS(f16)

static const struct function {
    const char *name;
    void (*piece)(zfi_isa, int64_t at);
    float (*library)(float);
} functions[] = {
    {"exp", do_exp, expf},
    {"log", do_log, logf},
    {"tanh", do_tanh, tanhf},
    {"erf", do_erf, erff},
    {"sigmoid", do_sigmoid, NULL},
    {"silu", do_silu, NULL},
    {"gelu", do_gelu, NULL},
    {"gelu_tanh", do_gelu_tanh, NULL},
    {"silu_grad", do_silu_grad, NULL},
    {"gelu_grad", do_gelu_grad, NULL},
    {"gelu_tanh_grad", do_gelu_tanh_grad, NULL},
    {"sum", do_sum, NULL},
    {"dot", do_dot, NULL},
    {"max", do_max, NULL},
    {"dropout", do_dropout, NULL},
    {"uniform", do_uniform, NULL},
    {"normal, truncated", do_normal, NULL},
    {"f32 to bf16", do_narrow_bf16, NULL},
    {"bf16 to f32", do_widen_bf16, NULL},
    {"f32 to f16", do_narrow_f16, NULL},
    {"f16 to f32", do_widen_f16, NULL},
};

typedef struct job {
    const struct function *function;
    zfi_isa isa;
} job;

static void task(void *context, int64_t index, int worker)
{
    const job *j = context;
    (void)worker;
    j->function->piece(j->isa, index * PIECE);
}

typedef struct setting {
    int64_t threads, rounds;
} setting;

static const zf_option setting_rows[] = {
    ZF_OPTION(setting, COUNT, threads, 2, "[1,1024]", .topic = "vmath", .help = "worker threads"),
    ZF_OPTION(setting, COUNT, rounds, 20, "[1,1000000]",
              .help = "rounds, of which the fastest counts"),
    {.name = NULL}};

int main(int argc, char **argv)
{
    setting s = {.threads = 0};
    const zf_options all = {.rows = setting_rows, .desc = &s};
    int status;
    zfi_memory memory = zfi_memory_of(NULL);
    zf_error error = {0};
    int isas = zfi_isa_best() == ZFI_ISA_NEON ? 2 : (int)zfi_isa_best() + 1;
    zfi_pool *pool;
    if (!bench_options(argc, argv, &all, 1, 1, NULL, &status)) return status;
    const int threads = (int)s.threads, rounds = (int)s.rounds;
    pool = zfi_pool_new(&memory, threads, &error);
    x = malloc(COUNT * sizeof *x), y = malloc(COUNT * sizeof *y),
    ones = malloc(COUNT * sizeof *ones), half = malloc(COUNT * sizeof *half);
    if (!pool || !x || !y || !ones || !half) {
        fprintf(stderr, "vmath: %s\n", pool ? "out of memory" : error.text);
        return 1;
    }
    zfi_random_normal(zfi_isa_best(), x, 0, COUNT, 0.0f, 1.5f, false, 1, 1, 1);
    for (int i = 0; i < COUNT; i++) y[i] = 0.0f, ones[i] = 1.0f, half[i] = 0;
    printf("%d threads, ns per element\n%-18s", threads, "");
    for (int i = 0; i < isas; i++)
        printf(" %9s", zfi_isa_name(isas == 2 && i ? zfi_isa_best() : (zfi_isa)i));
    printf("   C library\n");
    for (int f = 0; f < ZFI_COUNT(functions); f++) {
        printf("%-18s", functions[f].name);
        for (int i = 0; i < isas; i++) {
            job j = {&functions[f], isas == 2 && i ? zfi_isa_best() : (zfi_isa)i};
            double least = 1;
            for (int round = 0; round < rounds; round++) {
                double start = bench_now(), time;
                zfi_pool_run(pool, COUNT / PIECE, task, &j);
                time = bench_now() - start;
                if (time < least) least = time;
            }
            printf(" %9.3f", least / COUNT * 1e9);
        }
        if (functions[f].library) {
            double start = bench_now();
            for (int i = 0; i < COUNT; i++) sum += functions[f].library(x[i]);
            printf(" %11.3f", (bench_now() - start) / COUNT * 1e9);
        }
        puts("");
        fflush(stdout);
    }
    zfi_pool_free(pool);
    free(x), free(y), free(ones), free(half);
    return 0;
}
