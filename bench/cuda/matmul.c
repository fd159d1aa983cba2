/* The matrix rate of a GPU: what cuBLASLt reaches on the products of a step of BERT-large, and on a
 * large square one.
 *
 *     cc -O2 -isystem $CUDA/include bench/cuda/matmul.c -L$CUDA/lib64 -lcublasLt -lcudart
 *     ./a.out [--dtype bf16|f16|tf32|f32] [--tokens N] [--labelled N] [--rounds N] [--first]
 *
 * Y = X W^T, dX = dY W and dW = dY^T X of every linear of 24 layers, for --tokens tokens, and those
 * of the head for --labelled of them; products of attention, which a fused kernel makes, are not
 * among them. Each shape is run with every algorithm that cuBLASLt recommends (--first: with the
 * first), in turns; its time is the best algorithm's median over rounds, of a few launches each. A
 * line has
 *
 *     name  M N K  times in a step  microseconds  TFLOP/s  index of the algorithm
 *
 * and the last two lines are the rate of the whole step, all flops over all time, and the largest
 * of any shape. Operands are random: a GPU is faster with zeros. */
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CANDIDATES = 16, LAUNCHES = 4, ROUNDS = 64, HIDDEN = 1024, VOCAB = 30522, LAYERS = 24 };
static const size_t workspace_bytes = (size_t)32 << 20;

static void check(int code, const char *what)
{
    if (!code) return;
    fprintf(stderr, "matmul: %s: error %d\n", what, code);
    exit(1);
}
#define CHECK(call) check((int)(call), #call)

typedef struct bench {
    cublasLtHandle_t blas;
    cudaStream_t stream;
    cudaEvent_t begin, end;
    cudaDataType_t type;
    cublasComputeType_t compute;
    size_t size; /* of an element */
    int rounds, candidates;
    char *memory[3], *workspace;
    double flops, seconds, most; /* of the step; of a shape, per second */
} bench;

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* 64 MiB of numbers below 2, again and again. */
static void fill(char *to, size_t bytes)
{
    const size_t piece = (size_t)64 << 20;
    uint32_t *words = malloc(piece), state = 1;
    if (!words) check(1, "malloc");
    for (size_t i = 0; i < piece / 4; i++) {
        state = state * 1664525u + 1013904223u;
        words[i] = (state ^ state >> 15) & 0xbfffbfffu;
    }
    for (size_t at = 0; at < bytes; at += piece)
        CHECK(cudaMemcpy(to + at, words, bytes - at < piece ? bytes - at : piece,
                         cudaMemcpyHostToDevice));
    free(words);
}

static void set(cublasLtMatmulDesc_t to, cublasLtMatmulDescAttributes_t attribute, int32_t value)
{
    CHECK(cublasLtMatmulDescSetAttribute(to, attribute, &value, sizeof value));
}

/* c [m,n] = a b, row by row, a lying as [m,k] or [k,m], b as [k,n] or [n,k]; `times` of these are
 * in a step. As columns: c^T = b^T a^T. */
static void measure(bench *t, const char *name, int64_t m, int64_t n, int64_t k, int turn_a,
                    int turn_b, int times)
{
    static float took[CANDIDATES][ROUNDS];
    const float one = 1, zero = 0;
    const uint32_t adding = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    cublasLtMatmulHeuristicResult_t results[CANDIDATES];
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulPreference_t want;
    double seconds = 1e30, flops = 2.0 * (double)m * (double)n * (double)k;
    int found = 0, good = 0, best = 0;
    CHECK(cublasLtMatmulDescCreate(&operation, t->compute, CUDA_R_32F));
    set(operation, CUBLASLT_MATMUL_DESC_TRANSA, turn_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(operation, CUBLASLT_MATMUL_DESC_TRANSB, turn_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    CHECK(cublasLtMatrixLayoutCreate(&b, t->type, (uint64_t)(turn_b ? k : n),
                                     (uint64_t)(turn_b ? n : k), turn_b ? k : n));
    CHECK(cublasLtMatrixLayoutCreate(&a, t->type, (uint64_t)(turn_a ? m : k),
                                     (uint64_t)(turn_a ? k : m), turn_a ? m : k));
    CHECK(cublasLtMatrixLayoutCreate(&c, t->type, (uint64_t)n, (uint64_t)m, n));
    CHECK(cublasLtMatmulPreferenceCreate(&want));
    CHECK(cublasLtMatmulPreferenceSetAttribute(want, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                               &workspace_bytes, sizeof workspace_bytes));
    CHECK(cublasLtMatmulPreferenceSetAttribute(want, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                               &adding, sizeof adding));
    CHECK(cublasLtMatmulAlgoGetHeuristic(t->blas, operation, b, a, c, c, want, t->candidates,
                                         results, &found));
    for (int i = 0; i < found; i++)
        if (!results[i].state) results[good++] = results[i];
    found = good;
    if (!found) check(1, name);
    for (int round = -1; round < t->rounds; round++) /* the first one warms up */
        for (int i = 0; i < found; i++) {
            CHECK(cudaEventRecord(t->begin, t->stream));
            for (int n_th = 0; n_th < LAUNCHES; n_th++)
                CHECK(cublasLtMatmul(t->blas, operation, &one, t->memory[1], b, t->memory[0], a,
                                     &zero, t->memory[2], c, t->memory[2], c, &results[i].algo,
                                     t->workspace, workspace_bytes, t->stream));
            CHECK(cudaEventRecord(t->end, t->stream));
            CHECK(cudaEventSynchronize(t->end));
            if (round >= 0) CHECK(cudaEventElapsedTime(&took[i][round], t->begin, t->end));
        }
    for (int i = 0; i < found; i++) {
        double median;
        qsort(took[i], (size_t)t->rounds, sizeof took[i][0], by_value);
        median = 1e-3 * took[i][t->rounds / 2] / LAUNCHES;
        if (median < seconds) seconds = median, best = i;
    }
    printf("%-22s %6lld %6lld %6lld %4d %10.1f %8.1f %3d\n", name, (long long)m, (long long)n,
           (long long)k, times, 1e6 * seconds, 1e-12 * flops / seconds, best);
    t->flops += times * flops, t->seconds += times * seconds;
    if (flops / seconds > t->most) t->most = flops / seconds;
    cublasLtMatmulPreferenceDestroy(want);
    cublasLtMatrixLayoutDestroy(a);
    cublasLtMatrixLayoutDestroy(b);
    cublasLtMatrixLayoutDestroy(c);
    cublasLtMatmulDescDestroy(operation);
}

/* The three products of y [rows,n] = x [rows,k] w [n,k]^T. */
static void linear(bench *t, const char *name, int64_t rows, int64_t n, int64_t k, int times)
{
    char text[64];
    snprintf(text, sizeof text, "%s y", name);
    measure(t, text, rows, n, k, 0, 1, times);
    snprintf(text, sizeof text, "%s dx", name);
    measure(t, text, rows, k, n, 0, 0, times);
    snprintf(text, sizeof text, "%s dw", name);
    measure(t, text, n, k, rows, 1, 0, times);
}

static int64_t number(const char *text, int64_t most)
{
    char *end;
    long long value = strtoll(text, &end, 10);
    if (*end || end == text || value < 1 || value > most) {
        fprintf(stderr, "matmul: %s must be a number from 1 to %lld\n", text, (long long)most);
        exit(2);
    }
    return value;
}

int main(int argc, char **argv)
{
    bench t = {.type = CUDA_R_16BF, .compute = CUBLAS_COMPUTE_32F, .size = 2, .rounds = 9,
               .candidates = CANDIDATES};
    int64_t tokens = 32768, labelled = 4864, square = 8192, rows;
    const char *dtype = "bf16";
    struct cudaDeviceProp properties;
    size_t bytes;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(argv[i], "--first")) t.candidates = 1;
        else if (!strcmp(argv[i], "--dtype")) dtype = value, i++;
        else if (!strcmp(argv[i], "--tokens")) tokens = number(value, 1 << 20), i++;
        else if (!strcmp(argv[i], "--labelled")) labelled = number(value, 1 << 20), i++;
        else if (!strcmp(argv[i], "--rounds")) t.rounds = (int)number(value, ROUNDS), i++;
        else {
            fprintf(stderr, "matmul: %s is no option; the head of bench/cuda/matmul.c names them\n",
                    argv[i]);
            return 2;
        }
    }
    if (!strcmp(dtype, "f16")) t.type = CUDA_R_16F;
    else if (!strcmp(dtype, "f32") || !strcmp(dtype, "tf32")) t.type = CUDA_R_32F, t.size = 4;
    else if (strcmp(dtype, "bf16")) check(2, "--dtype is bf16, f16, tf32 or f32");
    if (!strcmp(dtype, "tf32")) t.compute = CUBLAS_COMPUTE_32F_FAST_TF32;
    CHECK(cudaGetDeviceProperties(&properties, 0));
    CHECK(cublasLtCreate(&t.blas));
    CHECK(cudaStreamCreate(&t.stream));
    CHECK(cudaEventCreate(&t.begin));
    CHECK(cudaEventCreate(&t.end));
    CHECK(cudaMalloc((void **)&t.workspace, workspace_bytes));
    /* Of all operands the largest is a side of 4 HIDDEN with every token, the head's weights or
     * logits, or the square one. */
    bytes = (size_t)(tokens > square ? tokens : square) * 4 * HIDDEN;
    if (bytes < (size_t)square * (size_t)square) bytes = (size_t)square * (size_t)square;
    if (bytes < (size_t)labelled * VOCAB) bytes = (size_t)labelled * VOCAB;
    if (bytes < (size_t)HIDDEN * VOCAB) bytes = (size_t)HIDDEN * VOCAB;
    bytes *= t.size;
    for (int i = 0; i < 3; i++) {
        CHECK(cudaMalloc((void **)&t.memory[i], bytes));
        if (i < 2) fill(t.memory[i], bytes);
    }
    printf("# %s, cuBLASLt %zu, %s, %lld tokens, %lld of them labelled\n", properties.name,
           cublasLtGetVersion(), dtype, (long long)tokens, (long long)labelled);
    linear(&t, "query, key, value", tokens, 3 * HIDDEN, HIDDEN, LAYERS);
    linear(&t, "attention output", tokens, HIDDEN, HIDDEN, LAYERS);
    linear(&t, "intermediate", tokens, 4 * HIDDEN, HIDDEN, LAYERS);
    linear(&t, "output", tokens, HIDDEN, 4 * HIDDEN, LAYERS);
    linear(&t, "head transform", labelled, HIDDEN, HIDDEN, 1);
    rows = labelled < 512 ? labelled : 512; /* the head goes by tiles */
    linear(&t, "head", rows, VOCAB, HIDDEN, (int)((labelled + rows - 1) / rows));
    measure(&t, "square", square, square, square, 0, 1, 0);
    printf("step %.1f TFLOP/s\nmost %.1f TFLOP/s\n", 1e-12 * t.flops / t.seconds, 1e-12 * t.most);
    for (int i = 0; i < 3; i++) cudaFree(t.memory[i]);
    cudaFree(t.workspace);
    cudaEventDestroy(t.begin);
    cudaEventDestroy(t.end);
    cudaStreamDestroy(t.stream);
    cublasLtDestroy(t.blas);
    return 0;
}
