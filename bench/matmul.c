/* The matrix product against the peak of this machine and against OpenBLAS, taken in turns.
 *
 *     build/bench/matmul [--shapes bert|attention|vectors|M,N,K] [--dtype f32|bf16|f16]
 *                        [--threads N] [--isa NAME] [--blas FILE|none] [--rounds N] [--quick]
 *
 * bert: Y = X W^T, dX = dY W and dW = dY^T X for every M of 512, 1024, 4096 and every (N, K) of
 * BERT. attention: batches of Q K^T, P V and their gradients. vectors: few rows or columns. A round
 * measures the peak (independent fused multiply-adds in registers, on the same threads; of bf16,
 * where the processor has them, its dot products or tiles), the library, the peak, OpenBLAS (f32),
 * and the peak again; figures are medians over rounds, and ratios are taken within a round, so that
 * a machine that changes its pace (a neighbour, another clock, siblings of one core) changes both
 * sides. --blas is a shared library with cblas_sgemm; OPENBLAS_CORETYPE=SKYLAKEX in the environment
 * makes OpenBLAS use AVX-512 on processors that it does not know. On a busy machine run all this
 * under `chrt -f 1`. */
#define _GNU_SOURCE
#define ZEROFLOW_IMPLEMENTATION
#include "../zeroflow.h"
#include "options.h"
#include "peak.h"

#include <dlfcn.h>
#include <sys/mman.h>

static zf_dtype dtype;

/* `count` numbers on 2 MiB pages, where the system grants them. */
static void *numbers(size_t count)
{
    const size_t page = (size_t)2 << 20;
    size_t bytes = (count * sizeof(float) + page - 1) / page * page;
    char *p = mmap(NULL, bytes + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void *x;
    uint32_t state = 1;
    if (p == MAP_FAILED) {
        perror("matmul: mmap");
        exit(1);
    }
    x = p + (page - (uintptr_t)p % page) % page;
    madvise(x, bytes, MADV_HUGEPAGE);
    for (size_t i = 0; i < count; i++) {
        float value;
        state = state * 1664525u + 1013904223u;
        value = (float)(state >> 8) * 0x1p-24f - 0.5f;
        zfi_narrow(ZFI_ISA_PORTABLE, zfi_element_of(x, dtype, (int64_t)i), dtype, &value, 1);
    }
    return x;
}

/* --------------------------------------------------------------------------------- the rounds */

/* cblas_sgemm's signature, with ints for its enumerations. */
typedef void sgemm(int order, int form_a, int form_b, int m, int n, int k, float alpha,
                   const float *a, int a_ld, const float *b, int b_ld, float beta, float *c,
                   int c_ld);

typedef struct turns {
    zfi_pool *pool;
    zfi_isa isa;
    int threads, rounds;
    sgemm *blas;
    void *a, *b, *c;
    float *scratch;
    size_t a_size, b_size, c_size, scratch_size;
    double ratio_sum, over_blas_sum; /* the latter of logarithms */
    int cases, blas_cases, not_slower;
} turns;

static double peak(turns *bench)
{
    peak_kind kind = bench->isa == ZFI_ISA_AVX512 || bench->isa == ZFI_ISA_AMX ? PEAK_AVX512
                     : bench->isa == ZFI_ISA_AVX2                              ? PEAK_AVX2
                     : bench->isa == ZFI_ISA_NEON                              ? PEAK_NEON
                                                                               : PEAK_PORTABLE;
    if (zfi_tile_of_product(bench->isa, dtype)->per_word == 2)
        kind = bench->isa == ZFI_ISA_AMX ? PEAK_AMX : PEAK_BF16;
    return peak_rate(kind, bench->threads);
}

static double peak_of(turns *bench, zf_dtype of)
{
    zf_dtype old = dtype;
    double tries[5];
    dtype = of;
    for (int i = 0; i < 5; i++) tries[i] = peak(bench);
    dtype = old;
    return bench_median(tries, 5);
}

static void run_blas(const turns *bench, const zfi_matmul_desc *d)
{
    int form_a = d->a_col == 1 ? 111 : 112, form_b = d->b_col == 1 ? 111 : 112;
    for (int64_t i = 0; i < zfi_matmul_count(d); i++) {
        const void *a, *b;
        void *c;
        zfi_matmul_at(d, i, &a, &b, &c);
        bench->blas(101, form_a, form_b, (int)d->m, (int)d->n, (int)d->k, 1.0f, a,
                    (int)(form_a == 111 ? d->a_row : d->a_col), b,
                    (int)(form_b == 111 ? d->b_row : d->b_col), 0.0f, c, (int)d->c_row);
    }
}

/* Seconds of one product, repeated for about two milliseconds. */
static double seconds(turns *bench, const zfi_matmul_desc *d, bool blas, int repeats)
{
    double start = bench_now();
    for (int i = 0; i < repeats; i++) {
        if (blas) run_blas(bench, d);
        else zfi_matmul_tiled(bench->isa, bench->pool, d, bench->scratch);
    }
    return (bench_now() - start) / repeats;
}

/* Measures a product that lies in a, b and c from their beginnings. */
static void measure(turns *bench, const char *name, zfi_matmul_desc d)
{
    enum { MOST = 200 };
    double flops = 2.0 * (double)zfi_matmul_count(&d) * (double)d.m * (double)d.n * (double)d.k;
    double own[MOST], blas[MOST], top[MOST], ratio[MOST], over[MOST];
    int repeats, count = bench->rounds, kept = 0;
    d.a = bench->a, d.b = bench->b, d.c = bench->c;
    d.dtype = d.c_dtype = dtype;
    if (zfi_matmul_tiled_scratch(bench->isa, bench->threads, &d) >
        bench->scratch_size * sizeof(float)) {
        fprintf(stderr, "matmul: %s needs too much scratch\n", name);
        exit(1);
    }
    repeats = (int)(2e-3 / seconds(bench, &d, false, 1)) + 1;
    for (int round = 0; round < 3 * count && kept < count; round++) {
        double before, between, after;
        seconds(bench, &d, false, 1); /* wakes the threads, fills the caches */
        before = peak(bench);
        own[kept] = flops / seconds(bench, &d, false, repeats);
        between = after = peak(bench);
        if (bench->blas) {
            struct timespec pause = {0, 5000000};
            seconds(bench, &d, true, 1);
            blas[kept] = flops / seconds(bench, &d, true, repeats);
            nanosleep(&pause, NULL);
            seconds(bench, &d, false, 1);
            after = peak(bench);
        }
        top[kept] = (before + between) / 2;
        ratio[kept] = own[kept] / top[kept];
        if (bench->blas) over[kept] = ratio[kept] / (blas[kept] / ((between + after) / 2));
        /* a round in which the pace changed says nothing; when it always does, take what there is
         */
        if (round + (count - kept) >= 3 * count ||
            (fabs(before - between) < 0.05 * between && fabs(after - between) < 0.05 * between))
            kept++;
    }
    printf("%-34s %8.1f of %7.1f = %.3f", name, bench_median(own, kept) * 1e-9,
           bench_median(top, kept) * 1e-9, bench_median(ratio, kept));
    bench->ratio_sum += bench_median(ratio, kept);
    bench->cases++;
    if (bench->blas) {
        printf("   OpenBLAS %8.1f, we %.2f", bench_median(blas, kept) * 1e-9,
               bench_median(over, kept));
        bench->over_blas_sum += log(bench_median(over, kept));
        bench->blas_cases++;
        bench->not_slower += bench_median(over, kept) >= 1;
    }
    puts("");
    fflush(stdout);
}

static void measure_linear(turns *bench, int64_t m, int64_t n, int64_t k)
{
    char name[64];
    snprintf(name, sizeof name, "M %5d N %5d K %5d  Y = X W^T", (int)m, (int)n, (int)k);
    measure(
        bench, name,
        (zfi_matmul_desc){m, n, k, 1, .a_row = k, .a_col = 1, .b_row = 1, .b_col = k, .c_row = n});
    snprintf(name, sizeof name, "M %5d N %5d K %5d  dX = dY W", (int)m, (int)n, (int)k);
    measure(
        bench, name,
        (zfi_matmul_desc){m, k, n, 1, .a_row = n, .a_col = 1, .b_row = k, .b_col = 1, .c_row = k});
    snprintf(name, sizeof name, "M %5d N %5d K %5d  dW = dY^T X", (int)m, (int)n, (int)k);
    measure(
        bench, name,
        (zfi_matmul_desc){n, k, m, 1, .a_row = 1, .a_col = n, .b_row = k, .b_col = 1, .c_row = k});
}

/* Heads of one sequence: [batch, t, d] each, and probabilities [batch, t, t]. */
static void measure_attention(turns *bench, int64_t batch, int64_t t, int64_t d)
{
    char name[64];
    zfi_matmul_desc scores = {t,
                              t,
                              d,
                              batch,
                              .a_row = d,
                              .a_col = 1,
                              .a_batch = t * d,
                              .b_row = 1,
                              .b_col = d,
                              .b_batch = t * d,
                              .c_row = t,
                              .c_batch = t * t};
    zfi_matmul_desc values = {t,
                              d,
                              t,
                              batch,
                              .a_row = t,
                              .a_col = 1,
                              .a_batch = t * t,
                              .b_row = d,
                              .b_col = 1,
                              .b_batch = t * d,
                              .c_row = d,
                              .c_batch = t * d};
    snprintf(name, sizeof name, "%3d x T %4d d %3d  Q K^T, dY V^T", (int)batch, (int)t, (int)d);
    measure(bench, name, scores);
    snprintf(name, sizeof name, "%3d x T %4d d %3d  P V, dS K", (int)batch, (int)t, (int)d);
    measure(bench, name, values);
    values.a_row = 1, values.a_col = t;
    snprintf(name, sizeof name, "%3d x T %4d d %3d  P^T dY, dS^T Q", (int)batch, (int)t, (int)d);
    measure(bench, name, values);
}

static int bad(const char *option, const char *what)
{
    fprintf(stderr, "matmul: %s: %s\n", option, what);
    return 2;
}

typedef struct setting {
    int64_t threads, rounds;
    const char *shapes, *blas, *isa;
    int64_t dtype;
    bool quick;
} setting;

static const zf_option setting_rows[] = {
    ZF_OPTION(setting, TEXT, shapes, 0, NULL, .unit = "bert|attention|vectors|M,N,K",
              .topic = "matmul", .help = "shapes of the products; bert without this option"),
    ZF_OPTION(setting, CHOICE, dtype, 0, "f32|bf16|f16", .help = "dtype of the operands"),
    ZF_OPTION(setting, COUNT, threads, 2, "[1,1024]", .help = "worker threads"),
    ZF_OPTION(setting, TEXT, isa, 0, NULL, .unit = "NAME",
              .help = "instruction set; without this option the best"),
    ZF_OPTION(setting, TEXT, blas, 0, NULL, .unit = "FILE|none",
              .help = "shared library with cblas_sgemm; libopenblas.so.0 without this option"),
    ZF_OPTION(setting, COUNT, rounds, 11, "[1,200]", .help = "rounds, of which the median counts"),
    ZF_OPTION(setting, FLAG, quick, 0, NULL, .help = "without the largest products"),
    {.name = NULL}};

int main(int argc, char **argv)
{
    static const zf_dtype dtypes[] = {ZF_F32, ZF_BF16, ZF_F16};
    static const int64_t bert[][2] = {{256, 256},  {768, 256},  {1024, 256}, {256, 1024},
                                      {768, 768},  {2304, 768}, {3072, 768}, {768, 3072},
                                      {8192, 256}, {30522, 768}};
    static const int64_t rows[] = {512, 1024, 4096};
    setting s = {.isa = NULL};
    const zf_options all = {.rows = setting_rows, .desc = &s};
    long long m = 0, n = 0, k = 0;
    turns bench = {.isa = zfi_isa_best_of_all()};
    zfi_memory memory = zfi_memory_of(NULL);
    zf_error error = {0};
    int status;
    if (!bench_options(argc, argv, &all, 1, 1, NULL, &status)) return status;
    const char *shapes = s.shapes ? s.shapes : "bert",
               *library = s.blas ? s.blas : "libopenblas.so.0";
    bench.threads = (int)s.threads, bench.rounds = (int)s.rounds, dtype = dtypes[s.dtype];
    if (s.isa) {
        int isa = 0;
        while (isa <= (int)zfi_isa_best_of_all() && strcmp(s.isa, zfi_isa_name((zfi_isa)isa)))
            isa++;
        if (isa > (int)zfi_isa_best_of_all())
            return bad("--isa", "portable, avx2, avx512, amx or neon, as far as this machine goes");
        bench.isa = (zfi_isa)isa;
    }
    if (strcmp(library, "none") && dtype == ZF_F32) {
        /* its idle threads spin for 2^26 cycles, in which nobody else computes: 2^20 will do */
        setenv("OPENBLAS_THREAD_TIMEOUT", "20", 0);
        void *loaded = dlopen(library, RTLD_NOW);
        void (*set_threads)(int);
        char *(*config)(void), *(*core)(void);
        if (!loaded) return bad("--blas", dlerror());
        *(void **)&bench.blas = dlsym(loaded, "cblas_sgemm");
        *(void **)&set_threads = dlsym(loaded, "openblas_set_num_threads");
        *(void **)&config = dlsym(loaded, "openblas_get_config");
        *(void **)&core = dlsym(loaded, "openblas_get_corename");
        if (!bench.blas) return bad("--blas", "has no cblas_sgemm");
        if (set_threads) set_threads(bench.threads);
        printf("%s: %s, kernels for %s\n", library, config ? config() : "not OpenBLAS",
               core ? core() : "?");
    }
    bench.pool = zfi_pool_new(&memory, bench.threads, &error);
    if (!bench.pool) return bad("--threads", error.text);
    bench.scratch_size = (size_t)(4 + bench.threads) << 20;
    bench.scratch = numbers(bench.scratch_size);
    printf("%s of %s, %d threads, GFLOP/s; peak in registers f32 %.0f", zf_dtype_name(dtype),
           zfi_isa_name(bench.isa), bench.threads, peak_of(&bench, ZF_F32) * 1e-9);
    if (zfi_tile_of_product(bench.isa, ZF_BF16)->per_word == 2)
        printf(", bf16 %.0f", peak_of(&bench, ZF_BF16) * 1e-9);
    puts("");
    if (!strcmp(shapes, "attention")) {
        bench.a = numbers(8 << 20), bench.b = numbers(8 << 20), bench.c = numbers(8 << 20);
        measure_attention(&bench, 64, 128, 64);
        measure_attention(&bench, 96, 128, 64);
        measure_attention(&bench, 64, 128, 32);
        measure_attention(&bench, 12, 512, 64);
    } else if (!strcmp(shapes, "vectors")) {
        bench.a = numbers(32 << 20), bench.b = numbers(32 << 20), bench.c = numbers(1 << 20);
        for (int64_t few = 1; few <= 16; few *= 4) {
            char name[64];
            for (int form = 0; form < 2; form++) {
                int64_t size = 3072, depth = 768;
                snprintf(name, sizeof name, "M %2d N %d K %d%s", (int)few, (int)size, (int)depth,
                         form ? ", B transposed" : "");
                measure(&bench, name,
                        (zfi_matmul_desc){few, size, depth, 1, .a_row = depth, .a_col = 1,
                                          .b_row = form ? 1 : size, .b_col = form ? depth : 1,
                                          .c_row = size});
                snprintf(name, sizeof name, "M %d N %2d K %d%s", (int)size, (int)few, (int)depth,
                         form ? ", A transposed" : "");
                measure(&bench, name,
                        (zfi_matmul_desc){size, few, depth, 1, .a_row = form ? 1 : depth,
                                          .a_col = form ? size : 1, .b_row = few, .b_col = 1,
                                          .c_row = few});
            }
        }
    } else {
        bool one = sscanf(shapes, "%lld,%lld,%lld", &m, &n, &k) == 3 && m > 0 && n > 0 && k > 0;
        size_t most_m = one ? (size_t)m : 4096, most_n = one ? (size_t)n : 30522,
               most_k = one ? (size_t)k : 3072;
        if (!one && strcmp(shapes, "bert"))
            return bad("--shapes", "bert, attention, vectors or M,N,K");
        /* dY [m,n] is the largest operand, the first or the result */
        bench.a = numbers(most_m * (most_n > most_k ? most_n : most_k));
        bench.b = numbers(one ? most_n * most_k + most_m * most_k : 30522 * 1024);
        bench.c =
            numbers(most_m * (most_n > most_k ? most_n : most_k) + (one ? most_n * most_k : 0));
        if (one) measure_linear(&bench, m, n, k);
        for (int i = 0; !one && i < ZFI_COUNT(rows); i++)
            for (int j = 0; j < ZFI_COUNT(bert); j++)
                if (!s.quick || rows[i] * bert[j][0] * bert[j][1] <= 1500000000)
                    measure_linear(&bench, rows[i], bert[j][0], bert[j][1]);
    }
    printf("mean of ratios to the peak: %.3f", bench.ratio_sum / bench.cases);
    if (bench.blas_cases)
        printf("; to OpenBLAS (geometric): %.3f, not slower in %d of %d",
               exp(bench.over_blas_sum / bench.blas_cases), bench.not_slower, bench.blas_cases);
    puts("");
    zfi_pool_free(bench.pool);
    return 0;
}
