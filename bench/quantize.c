/* Gigabytes per second of quantize, with and without errors, dequantize and dequantize_sum: the
 * bytes that they read and write, and their share of the rate of a copy of 64 MiB of floats.
 *
 *     build/bench/quantize [--threads N] [--rounds N] [--block N] [--isa NAME]
 *
 * Of 64 MiB of f32 or 32 MiB of bf16, which no cache holds; the best of the rounds, each with the
 * best instruction set or --isa. On a busy machine run it under `chrt -f 1`. */
#define _POSIX_C_SOURCE 200809L
#define ZEROFLOW_IMPLEMENTATION
#include "../zeroflow.h"
#include "figures.h"

enum { COUNT = 16 << 20, PARTS = 4 };

static const struct row {
    const char *name;
    zf_op op;
    int bits;
    zf_dtype floats;
} rows[] = {{"quantize 8, f32", ZF_OP_quantize, 8, ZF_F32},
            {"quantize 8, bf16", ZF_OP_quantize, 8, ZF_BF16},
            {"quantize 4, f32", ZF_OP_quantize, 4, ZF_F32},
            {"quantize 4, bf16", ZF_OP_quantize, 4, ZF_BF16},
            {"with errors 4, f32", ZF_OP_quantize_feedback, 4, ZF_F32},
            {"with errors 4, bf16", ZF_OP_quantize_feedback, 4, ZF_BF16},
            {"dequantize 8, f32", ZF_OP_dequantize, 8, ZF_F32},
            {"dequantize 8, bf16", ZF_OP_dequantize, 8, ZF_BF16},
            {"dequantize 4, f32", ZF_OP_dequantize, 4, ZF_F32},
            {"dequantize 4, bf16", ZF_OP_dequantize, 4, ZF_BF16},
            {"sum of 4 parts, f32", ZF_OP_dequantize_sum, 4, ZF_F32}};

static void fill(zf_dtype dtype, void *floats, float *aside)
{
    zfi_random_normal(zfi_isa_best(), aside, 0, COUNT, 0.0f, 1.0f, false, 1, 1, 1);
    zfi_narrow(zfi_isa_best(), floats, dtype, aside, COUNT);
}

static double copy_rate(zf_backend *cpu, int rounds, void *to, const void *from)
{
    double least = 1e9;
    zf_launch l = {.op = ZF_OP_pack, .backend = cpu->self};
    for (int r = 0; r < rounds; r++) {
        const double start = bench_now();
        double time;
        zfi_move_bytes(&l, to, from, 4 * (int64_t)COUNT);
        time = bench_now() - start;
        if (time < least) least = time;
    }
    return 8.0 * COUNT / least;
}

/* The launch of a row: floats, perhaps errors, and records are the arrays of its operands and its
 * result. */
static double rate(const struct row *row, zf_backend *cpu, int rounds, int64_t block, void *floats,
                   float *errors, void *quantised)
{
    const bool kept = row->op == ZF_OP_quantize_feedback, forth = kept || row->op == ZF_OP_quantize,
               sum = row->op == ZF_OP_dequantize_sum;
    const zf_attribute attributes[ZF_MAX_ATTRIBUTES] = {
        {.i = row->bits}, {.i = block}, {.i = ZF_F32}, {.i = kept ? 0 : row->floats}, {.i = PARTS}};
    const zfi_blocks b = zfi_blocks_of(attributes);
    const zf_run run = {.world = 1};
    const zf_array wide = {floats, row->floats, ZF_SHAPE(sum ? COUNT / PARTS : COUNT)},
                   narrow = {quantised, ZF_U8, ZF_SHAPE(COUNT / block * b.record)},
                   args[2] = {forth ? wide : narrow, {errors, ZF_F32, ZF_SHAPE(COUNT)}};
    zf_launch l = {.op = row->op,
                   .arg_count = 1 + kept,
                   .args = args,
                   .out = forth ? narrow : wide,
                   .attributes = attributes,
                   .run = &run,
                   .backend = cpu->self};
    double least = 1e9;
    for (int r = 0; r < rounds; r++) {
        const double start = bench_now();
        double time;
        if (kept    ? zfi_cpu_quantize_feedback(&l)
            : forth ? zfi_cpu_quantize(&l)
                    : zfi_cpu_dequantize(&l))
            return 0;
        time = bench_now() - start;
        if (time < least) least = time;
    }
    return (double)(zfi_array_bytes(&wide) + zfi_array_bytes(&narrow) +
                    kept * 2 * zfi_array_bytes(&args[1])) /
           least;
}

int main(int argc, char **argv)
{
    int threads = 2, rounds = 10;
    int64_t block = 256;
    zf_error error = {ZF_OK, ""};
    const char *isa = NULL;
    zf_backend *cpu;
    float *floats = malloc(4 * (size_t)COUNT), *copy = malloc(4 * (size_t)COUNT),
          *errors = calloc(COUNT, sizeof *errors);
    double whole;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--threads")) threads = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--rounds")) rounds = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--block")) block = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--isa")) isa = argv[i + 1];
    }
    if (block < 64 || block > 2048 || 2048 % block) block = 256;
    cpu = zf_cpu_backend(&(zf_cpu_desc){.threads = threads, .isa = isa}, &error);
    if (!cpu || !floats || !copy || !errors) {
        fprintf(stderr, "quantize: %s\n", cpu ? "out of memory" : error.text);
        return 1;
    }
    fill(ZF_F32, floats, copy);
    whole = copy_rate(cpu, rounds, copy, floats);
    printf("%d threads, blocks of %d, scales of f32\n%-20s %6.2f GB/s\n", threads, (int)block,
           "copy", 1e-9 * whole);
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
        double bytes;
        fill(rows[n].floats, floats, copy);
        bytes = rate(&rows[n], cpu, rounds, block, floats, errors, copy);
        printf("%-20s %6.2f GB/s  %5.1f%%\n", rows[n].name, 1e-9 * bytes, 100 * bytes / whole);
    }
    free(floats), free(copy), free(errors);
    zf_backend_free(cpu);
    return 0;
}
