/* The time of a step of a large table with few lookups, which are updated alone
 * (zf_param_group.lazy_rows), and of the same step with the dense update: medians, in milliseconds.
 *
 *     build/bench/lazy [--rows 1000000] [--width 32] [--lookups 256] [--rounds 200] [--threads 1]
 *
 * The loss is the mean of the squared rows; AdamW with clipping. Lookups are drawn anew for each
 * step. On a busy machine run it under `chrt -f 1`. bench/peers/torch_rows.py does the same. */
#define _POSIX_C_SOURCE 200809L
#include "figures.h"
#include "options.h"

typedef struct lazy_options {
    int64_t rows, width, lookups, rounds;
    int32_t threads;
} lazy_options;

static const zf_option lazy_rows[] = {
    ZF_OPTION(lazy_options, COUNT, rows, 1000000, "[1,2147483647]", .help = "rows of the table"),
    ZF_OPTION(lazy_options, COUNT, width, 32, "[1,1048576]", .help = "their width"),
    ZF_OPTION(lazy_options, COUNT, lookups, 256, "[1,1048576]", .help = "lookups of a step"),
    ZF_OPTION(lazy_options, COUNT, rounds, 200, "[3,1000000]", .help = "steps that are measured"),
    ZF_OPTION(lazy_options, COUNT, threads, 1, "[1,1024]", .help = "threads"),
    {.name = NULL}};

/* The median of the steps' milliseconds; below 0 after an error, which is printed. */
static double measure(const lazy_options *o, bool lazy, int64_t rounds)
{
    char groups[] = "table:lazy_rows";
    zf_graph *g = zf_graph_new(NULL);
    zf_tensor ids = zf_input(g, "ids", ZF_I32, ZF_SHAPE(o->lookups)),
              table = zf_param(g, "table", ZF_SHAPE(o->rows, o->width),
                               &(zf_param_desc){.init = ZF_NORMAL, .std = 0.02}),
              x = zf_embedding(table, ids), loss = zf_mean(zf_mul(x, x)),
              lr = zf_input(g, "lr", ZF_F32, ZF_SCALAR);
    zf_error error = {ZF_OK, ""};
    zf_backend *cpu = zf_cpu_backend(&(zf_cpu_desc){.threads = o->threads}, &error);
    zf_program *p = NULL;
    int32_t *index = calloc((size_t)o->lookups, sizeof *index);
    double *times = calloc((size_t)rounds, sizeof *times), median = -1;
    const float rate = 0.001f;
    uint64_t draw = 1;
    zf_passes(g, &(zf_training){
                     .loss = loss, .lr = lr, .clip = 1, .param_groups = lazy ? groups : NULL});
    if (cpu && index && times) p = zf_compile(g, &(zf_compile_desc){.backend = cpu, .seed = 1});
    for (int64_t round = -2; p && round < rounds; round++) {
        double begin;
        for (int64_t i = 0; i < o->lookups; i++) {
            draw = draw * 6364136223846793005u + 1442695040888963407u;
            index[i] = (int32_t)((draw >> 33) % (uint64_t)o->rows);
        }
        begin = bench_now();
        if (zf_write(p, ids, index, (size_t)o->lookups * sizeof *index) ||
            zf_write(p, lr, &rate, sizeof rate) || zf_step(p))
            break;
        if (round >= 0) times[round] = (bench_now() - begin) * 1e3;
        if (round + 1 < rounds) continue;
        median = bench_median(times, rounds);
    }
    if (median < 0)
        fprintf(stderr, "lazy: %s%s%s\n", error.text, zf_graph_error(g),
                p ? zf_program_error(p) : "");
    zf_program_free(p), zf_backend_free(cpu), zf_graph_free(g);
    free(index), free(times);
    return median;
}

int main(int argc, char **argv)
{
    lazy_options o = {.rows = 0};
    const zf_options all = {.rows = lazy_rows, .desc = &o};
    double lazy, dense;
    int status = 0;
    if (!bench_options(argc, argv, &all, 1, 1, NULL, &status)) return status;
    lazy = measure(&o, true, o.rounds);
    if (lazy < 0) return 1;
    printf("%lld x %lld, %lld lookups, %d threads: lazy_rows %.3f ms a step\n", (long long)o.rows,
           (long long)o.width, (long long)o.lookups, (int)o.threads, lazy);
    dense = measure(&o, false, 9);
    if (dense < 0) return 1;
    printf("the dense update: %.1f ms\n", dense);
    return 0;
}
