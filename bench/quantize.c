/* Gigabytes per second of quantize, with and without errors, dequantize and dequantize_sum: the
 * bytes that they read and write, and their share of the rate of a copy of 64 MiB of floats.
 *
 *     build/bench/quantize [--threads N] [--rounds N] [--block N] [--isa NAME] [--only TEXT]
 *
 * Of 64 MiB of f32 or 32 MiB of bf16, which no cache holds, each with the best instruction set or
 * --isa; --only: those with this text in their names. A round runs the operator once between two
 * copies; rates and shares are medians of the rounds. On a busy machine run it under `chrt -f
 * 1`. */
#define _POSIX_C_SOURCE 200809L
#define ZEROFLOW_IMPLEMENTATION
#include "../zeroflow.h"
#include "figures.h"
#include "options.h"

enum { COUNT = 16 << 20, PARTS = 4, ROUNDS = 1000 };

static float *spare[2];

static const struct row {
    const char *name;
    zf_op op;
    int bits;
    zf_dtype floats;
    bool kept8; /* errors are records of 8 bits */
} rows[] = {{"quantize 8, f32", ZF_OP_quantize, 8, ZF_F32, false},
            {"quantize 8, bf16", ZF_OP_quantize, 8, ZF_BF16, false},
            {"quantize 4, f32", ZF_OP_quantize, 4, ZF_F32, false},
            {"quantize 4, bf16", ZF_OP_quantize, 4, ZF_BF16, false},
            {"with errors 4, f32", ZF_OP_quantize_feedback, 4, ZF_F32, false},
            {"with errors 4, bf16", ZF_OP_quantize_feedback, 4, ZF_BF16, false},
            {"of 8 bits, 4, bf16", ZF_OP_quantize_feedback, 4, ZF_BF16, true},
            {"dequantize 8, f32", ZF_OP_dequantize, 8, ZF_F32, false},
            {"dequantize 8, bf16", ZF_OP_dequantize, 8, ZF_BF16, false},
            {"dequantize 4, f32", ZF_OP_dequantize, 4, ZF_F32, false},
            {"dequantize 4, bf16", ZF_OP_dequantize, 4, ZF_BF16, false},
            {"sum of 4 parts, f32", ZF_OP_dequantize_sum, 4, ZF_F32, false}};

static void fill(zf_dtype dtype, void *floats, float *aside)
{
    zfi_random_normal(zfi_isa_best(), aside, 0, COUNT, 0.0f, 1.0f, false, 1, 1, 1);
    zfi_narrow(zfi_isa_best(), floats, dtype, aside, COUNT);
}

static double seconds_of_copy(zf_backend *cpu, void *to, const void *from)
{
    const zf_launch l = {.op = ZF_OP_pack, .backend = cpu->self};
    const double start = bench_now();
    zfi_move_bytes(&l, to, from, 4 * (int64_t)COUNT);
    return bench_now() - start;
}

/* The launch of a row: floats, perhaps errors, and records are the arrays of its operands and its
 * result. *share: of the copy's rate. */
static double rate(const struct row *row, zf_backend *cpu, int rounds, int64_t block, void *floats,
                   float *errors, void *quantised, double *share)
{
    const bool kept = row->op == ZF_OP_quantize_feedback, forth = kept || row->op == ZF_OP_quantize,
               sum = row->op == ZF_OP_dequantize_sum;
    const zf_attribute attributes[ZF_MAX_ATTRIBUTES] = {
        {.i = row->bits}, {.i = block}, {.i = ZF_F32}, {.i = kept ? 0 : row->floats}, {.i = PARTS}};
    const zfi_blocks b = zfi_blocks_of(attributes);
    const zf_run run = {.world = 1};
    const zf_dtype of_errors = row->kept8 ? ZF_U8 : ZF_F32;
    const zf_array wide = {floats, row->floats, ZF_SHAPE(sum ? COUNT / PARTS : COUNT)},
                   narrow = {quantised, ZF_U8, ZF_SHAPE(COUNT / block * b.record)},
                   args[2] = {
                       forth ? wide : narrow,
                       {errors, of_errors, ZF_SHAPE(zfi_errors_count(of_errors, COUNT, block))}};
    zf_launch l = {.op = row->op,
                   .arg_count = 1 + kept,
                   .args = args,
                   .out = forth ? narrow : wide,
                   .attributes = attributes,
                   .run = &run,
                   .backend = cpu->self};
    const double bytes = (double)(zfi_array_bytes(&wide) + zfi_array_bytes(&narrow) +
                                  kept * 2 * zfi_array_bytes(&args[1]));
    double rates[ROUNDS], shares[ROUNDS], copy, time;
    memset(errors, 0, 4 * (size_t)COUNT);
    for (int r = -1; r < rounds; r++) { /* the first one warms up */
        copy = seconds_of_copy(cpu, spare[0], spare[1]);
        time = bench_now();
        if (kept    ? zfi_cpu_quantize_feedback(&l)
            : forth ? zfi_cpu_quantize(&l)
                    : zfi_cpu_dequantize(&l))
            return 0;
        time = bench_now() - time;
        copy = (copy + seconds_of_copy(cpu, spare[0], spare[1])) / 2;
        if (r < 0) continue;
        rates[r] = bytes / time;
        shares[r] = rates[r] / (8.0 * COUNT / copy);
    }
    *share = bench_median(shares, rounds);
    return bench_median(rates, rounds);
}

typedef struct setting {
    int64_t threads, rounds, block;
    const char *isa, *only;
} setting;

static const zf_option setting_rows[] = {
    ZF_OPTION(setting, COUNT, threads, 2, "[1,1024]", .topic = "quantize",
              .help = "worker threads"),
    ZF_OPTION(setting, COUNT, rounds, 10, "[1,1000]", .help = "rounds, of which the median counts"),
    ZF_OPTION(setting, COUNT, block, 256, "64|128|256|512|1024|2048",
              .help = "numbers with one scale"),
    ZF_OPTION(setting, TEXT, isa, 0, NULL, .unit = "NAME",
              .help = "instruction set; without this option the best"),
    ZF_OPTION(setting, TEXT, only, 0, NULL, .unit = "TEXT",
              .help = "rows with this text in their names"),
    {.name = NULL}};

int main(int argc, char **argv)
{
    setting s = {.isa = NULL};
    const zf_options all = {.rows = setting_rows, .desc = &s};
    int status;
    zf_error error = {ZF_OK, ""};
    zf_backend *cpu;
    float *arrays[5], *floats, *errors, *copy;
    double times[ROUNDS];
    if (!bench_options(argc, argv, &all, 1, 1, NULL, &status)) return status;
    const int threads = (int)s.threads, rounds = (int)s.rounds;
    const int64_t block = s.block;
    cpu = zf_cpu_backend(&(zf_cpu_desc){.threads = threads, .isa = s.isa}, &error);
    /* As a program's values are; written, since pages of zeros are one */
    for (int k = 0; k < 5; k++) {
        arrays[k] = cpu ? cpu->allocate(cpu->self, 4 * (size_t)COUNT, &error) : NULL;
        if (!arrays[k]) {
            fprintf(stderr, "quantize: %s\n", error.text);
            return 1;
        }
        memset(arrays[k], 1, 4 * (size_t)COUNT);
    }
    floats = arrays[0], copy = arrays[1], errors = arrays[2];
    spare[0] = arrays[3], spare[1] = arrays[4];
    fill(ZF_F32, floats, copy);
    for (int r = 0; r < rounds; r++) times[r] = seconds_of_copy(cpu, spare[0], spare[1]);
    printf("%d threads, blocks of %d, scales of f32\n%-20s %6.2f GB/s\n", threads, (int)block,
           "copy", 8e-9 * COUNT / bench_median(times, rounds));
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
        double bytes, share = 0;
        if (s.only && !strstr(rows[n].name, s.only)) continue;
        fill(rows[n].floats, floats, copy);
        bytes = rate(&rows[n], cpu, rounds, block, floats, errors, copy, &share);
        printf("%-20s %6.2f GB/s  %5.1f%%\n", rows[n].name, 1e-9 * bytes, 100 * share);
    }
    for (int k = 0; k < 5; k++) cpu->release(cpu->self, arrays[k], 4 * (size_t)COUNT);
    zf_backend_free(cpu);
    return 0;
}
