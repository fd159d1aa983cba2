/* How long ranks along pipe are idle: eight equal layers on two ranks, which are threads, eight
 * micro-batches, one thread for each rank's products. On two cores or more that nothing else uses:
 *
 *     build/bench/pipeline [--width 512] [--rows 256] [--steps 9] [--schedule 1f1b|gpipe|zb-h1]
 *
 * The idle share of a rank is the part of a step in which none of its launches that compute runs.
 * By the schedules (docs/pipelines.md) it is 1/9 = 11.1% of 1f1b and gpipe and 1/25 = 4.0% of
 * zb-h1, where F, B and W take equal times and sending takes none. Prints the median of the
 * steps. */
#define _POSIX_C_SOURCE 200809L
#include "../zeroflow.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RANKS = 2, LAYERS = 8, MICRO = 8, MOST_STEPS = 1000, MOST_SPANS = 1 << 16 };

typedef struct rank_of_bench {
    pthread_t thread;
    zf_graph *graph;
    zf_program *program;
    double share[MOST_STEPS]; /* idle, of each step */
} rank_of_bench;

static int64_t width = 512, rows = 256, steps = 9;
static float *examples; /* [rows, width] */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static zf_tensor layers(zf_graph *g)
{
    zf_tensor x = zf_input(g, "x", ZF_F32, ZF_SHAPE(rows, width));
    for (int k = 0; k < LAYERS; k++) {
        char name[32];
        snprintf(name, sizeof name, "h.%d", k);
        zf_push(g, name);
        if (!k) x = zf_add(x, zf_param(g, "start", ZF_SHAPE(width), NULL)); /* it wants dX */
        x = zf_relu(zf_nn_linear(x, "w", width, NULL));
        zf_pop(g);
    }
    return zf_mean(zf_mul(x, x));
}

/* Seconds in which launches that compute ran. */
static double busy(const zf_program *p)
{
    static _Thread_local zf_span spans[MOST_SPANS];
    int32_t count = MOST_SPANS;
    double seconds = 0;
    zf_measured(p, spans, &count);
    for (int32_t k = 0; k < count && k < MOST_SPANS; k++)
        if (spans[k].resource == ZF_RESOURCE_COMPUTE) seconds += spans[k].to - spans[k].from;
    return seconds;
}

static void *run(void *object)
{
    rank_of_bench *r = object;
    const float lr = 1e-3f;
    const size_t size = (size_t)(rows * width) * sizeof(float);
    const zf_tensor x = zf_graph_find(r->graph, "x");
    zf_status status = zf_write(r->program, zf_graph_find(r->graph, "lr"), &lr, sizeof lr);
    for (int64_t step = -1; step < steps && !status; step++) { /* the first one is not measured */
        double begin;
        for (int k = 1; k <= MICRO && !status; k++) {
            status = zf_write(r->program, x, examples, size);
            if (!status && k < MICRO) status = zf_micro(r->program);
        }
        if (!status) status = zf_measure(r->program, true);
        begin = now();
        if (!status) status = zf_step(r->program);
        if (!status && step >= 0) r->share[step] = 1 - busy(r->program) / (now() - begin);
    }
    if (status) fprintf(stderr, "pipeline: %s\n", zf_program_error(r->program)), exit(1);
    return NULL;
}

static void measure(zf_pipe_kind kind)
{
    zf_error error = {ZF_OK, ""};
    zf_local *local = zf_local_new(&(zf_local_desc){.world = RANKS}, &error);
    static rank_of_bench ranks[RANKS];
    for (int r = 0; r < RANKS && local; r++) {
        rank_of_bench *x = &ranks[r];
        x->graph = zf_graph_new(NULL);
        zf_passes(x->graph, &(zf_training){.loss = layers(x->graph),
                                           .optimizer = ZF_SGD,
                                           .stages = {.ranks = RANKS, .schedule.kind = kind},
                                           .zero.micro_batches = MICRO});
        x->program = zf_compile(x->graph, &(zf_compile_desc){.comm = zf_local_comm(local, r)});
        if (!x->program) fprintf(stderr, "pipeline: %s\n", zf_graph_error(x->graph)), exit(1);
    }
    for (int r = 0; r < RANKS; r++)
        if (pthread_create(&ranks[r].thread, NULL, run, &ranks[r])) exit(1);
    for (int r = 0; r < RANKS; r++) pthread_join(ranks[r].thread, NULL);
    printf("%-6s", zf_pipe_kind_name(kind));
    for (int r = 0; r < RANKS; r++) {
        qsort(ranks[r].share, (size_t)steps, sizeof *ranks[r].share, by_value);
        printf("  rank %d idle %4.1f%%", r, 100 * ranks[r].share[steps / 2]);
        zf_program_free(ranks[r].program), zf_graph_free(ranks[r].graph);
    }
    printf("\n");
    zf_local_free(local);
}

int main(int argc, char **argv)
{
    static const zf_pipe_kind kinds[] = {ZF_PIPE_1F1B, ZF_PIPE_GPIPE, ZF_PIPE_ZB_H1};
    const char *only = NULL;
    int known = 0;
    for (int k = 1; k + 1 < argc; k += 2) {
        if (!strcmp(argv[k], "--width")) width = atoll(argv[k + 1]), known += 2;
        else if (!strcmp(argv[k], "--rows")) rows = atoll(argv[k + 1]), known += 2;
        else if (!strcmp(argv[k], "--steps")) steps = atoll(argv[k + 1]), known += 2;
        else if (!strcmp(argv[k], "--schedule")) only = argv[k + 1], known += 2;
    }
    if (known != argc - 1 || width < 1 || rows < 1 || steps < 1 || steps > MOST_STEPS) {
        fprintf(stderr, "pipeline: its head says what it takes\n");
        return 2;
    }
    examples = malloc((size_t)(rows * width) * sizeof *examples);
    if (!examples) return 1;
    for (int64_t i = 0; i < rows * width; i++) examples[i] = (float)(i % 97) / 48 - 1;
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
        if (!only || !strcmp(only, zf_pipe_kind_name(kinds[k]))) measure(kinds[k]);
    return 0;
}
