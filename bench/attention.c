/* Attention that looks at less, next to attention that looks at all keys: milliseconds of a forward
 * pass and of forward with backward, and bytes of activations.
 *
 *     build/bench/attention [--tokens 4096] [--heads 12] [--width 64] [--batch 1] [--threads 2]
 *                           [--dtype f32|bf16|f16] [--rounds 5] [CASE...]
 *
 * CASE: only cases whose name contains one of these. In each round each case runs once; times are
 * medians over rounds, and so are the ratios to `dense`, which are taken within a round. The last
 * line of a case has the form NAME TAB forward TAB both TAB bytes, for bench/peers/attention.py.
 * On a busy machine run it under `chrt -f 1`. */
#define _POSIX_C_SOURCE 200809L
#include "../zeroflow.h"
#include "figures.h"

#include <stdio.h>
#include <string.h>

enum { MOST_ROUNDS = 99 };

typedef struct shape {
    int64_t tokens, heads, width, batch, threads, rounds;
    zf_dtype dtype;
} shape;

static const struct kind {
    const char *name, *layout;
    int64_t window;
    int documents;      /* in a row of tokens */
    bool causal, dense; /* documents as a dense mask of all pairs */
} kinds[] = {
    {.name = "dense"},
    {.name = "bigbird, 1/8", .layout = "bigbird,block=64,random=3,width=3"},
    {.name = "causal", .causal = true},
    {.name = "window of 256", .window = 256, .causal = true},
    {.name = "8 documents, dense mask", .documents = 8, .causal = true, .dense = true},
    {.name = "8 documents", .documents = 8, .causal = true},
};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

typedef struct bench_case {
    zf_program *program[2]; /* forward, forward and backward */
    double seconds[2][MOST_ROUNDS], density;
    size_t bytes;
} bench_case;

static void give_up(const char *why)
{
    fprintf(stderr, "attention: %s\n", why);
    exit(1);
}

/* 1 where query and key are of one document, [1, 1, T, T]. */
static zf_tensor pairs(zf_tensor segments, int64_t tokens)
{
    zf_tensor rows = zf_reshape(segments, ZF_SHAPE(1, 1, tokens, 1));
    return zf_equal(rows, zf_reshape(segments, ZF_SHAPE(1, 1, 1, tokens)));
}

static zf_tensor attend(zf_graph *g, const struct kind *kind, const shape *s, double *density)
{
    const zf_shape dims = ZF_SHAPE(s->batch, s->tokens, s->heads * s->width);
    const zf_param_desc drawn = {.init = ZF_NORMAL, .std = 1, .dtype = s->dtype};
    zf_attention_desc d = {.heads = s->heads, .causal = kind->causal, .window = kind->window};
    if (kind->layout) {
        zf_block_mask_desc m = {.tokens = s->tokens, .heads = s->heads};
        char text[128];
        zf_error error;
        zf_block_mask *mask;
        snprintf(text, sizeof text, "%s", kind->layout);
        if (zf_block_mask_parse(text, &m, &error) || !(mask = zf_block_mask_new(&m, &error)))
            give_up(error.text);
        const zf_block_mask_info info = zf_block_mask_info_of(mask);
        *density = (double)info.seen / (double)(info.layouts * info.blocks * info.blocks);
        d.blocks = zf_block_mask_lists(g, mask);
        zf_block_mask_free(mask);
    }
    if (kind->documents) {
        zf_tensor segments = zf_input(g, "segments", ZF_I32, ZF_SHAPE(1, s->tokens));
        if (kind->dense) d.mask = pairs(segments, s->tokens);
        else d.documents = zf_documents(segments);
    }
    return zf_attention(zf_param(g, "q", dims, &drawn), zf_param(g, "k", dims, &drawn),
                        zf_param(g, "v", dims, &drawn), &d);
}

static zf_program *compile(const struct kind *kind, const shape *s, zf_backend *backend, bool both,
                           bench_case *c)
{
    zf_graph *g = zf_graph_new(NULL);
    zf_tensor y = attend(g, kind, s, &c->density), segments;
    zf_program *p;
    zf_plan plan;
    if (both) {
        zf_autograd(g, zf_mean(zf_mul(y, y)));
        for (const char *name = "qkv"; *name; name++) {
            const char text[] = {*name, '\0'}, of[] = {'d', *name, '\0'};
            zf_output(zf_gradient(g, zf_graph_find(g, text)), of);
        }
    } else zf_output(y, "y");
    p = zf_compile(g, &(zf_compile_desc){.backend = backend});
    if (zf_graph_plan(g, &plan)) give_up(zf_graph_error(g));
    c->bytes = plan.most[ZF_ACTIVATIONS];
    if (!p) give_up(zf_graph_error(g));
    segments = zf_graph_find(g, "segments");
    if (kind->documents) {
        int32_t *numbers = malloc((size_t)s->tokens * sizeof *numbers);
        for (int64_t t = 0; t < s->tokens && numbers; t++)
            numbers[t] = (int32_t)(t * kind->documents / s->tokens);
        if (!numbers || zf_write(p, segments, numbers, (size_t)s->tokens * sizeof *numbers))
            give_up(zf_program_error(p));
        free(numbers);
    }
    return p;
}

static double ratio(const bench_case *c, const bench_case *dense, int both, int64_t rounds)
{
    double values[MOST_ROUNDS];
    for (int64_t r = 0; r < rounds; r++) values[r] = dense->seconds[both][r] / c->seconds[both][r];
    return bench_median(values, rounds);
}

static void print(const bench_case *cases, const shape *s, const bool *chosen)
{
    printf("%lld tokens, %lld x %lld, batch %lld, %s, %lld threads\n", (long long)s->tokens,
           (long long)s->heads, (long long)s->width, (long long)s->batch, zf_dtype_name(s->dtype),
           (long long)s->threads);
    for (int k = 0; k < KINDS; k++) {
        bench_case c = cases[k];
        double ratios[2] = {0, 0};
        if (!chosen[k]) continue;
        for (int both = 0; both < 2 && chosen[0]; both++)
            ratios[both] = ratio(&c, &cases[0], both, s->rounds);
        printf("%s\t%.2f\t%.2f\t%zu", kinds[k].name, 1e3 * bench_median(c.seconds[0], s->rounds),
               1e3 * bench_median(c.seconds[1], s->rounds), c.bytes);
        if (chosen[0]) printf("\t%.2f and %.2f of dense", ratios[0], ratios[1]);
        if (kinds[k].layout) printf(", %.3f of blocks", c.density);
        printf("\n");
    }
}

static bool read_options(int *argc, char **argv, shape *s)
{
    const struct {
        const char *name;
        int64_t *value;
    } numbers[] = {{"--tokens", &s->tokens}, {"--heads", &s->heads},   {"--width", &s->width},
                   {"--batch", &s->batch},   {"--rounds", &s->rounds}, {"--threads", &s->threads}};
    static const zf_dtype dtypes[] = {ZF_F32, ZF_BF16, ZF_F16};
    int rest = 1;
    for (int k = 1; k < *argc; k++) {
        bool known = strncmp(argv[k], "--", 2) != 0;
        if (known) argv[rest++] = argv[k];
        for (size_t i = 0; i < sizeof numbers / sizeof numbers[0] && !known && k + 1 < *argc; i++)
            if (!strcmp(argv[k], numbers[i].name))
                *numbers[i].value = atoll(argv[++k]), known = *numbers[i].value > 0;
        for (size_t i = 0; i < 3 && !known && k + 1 < *argc && !strcmp(argv[k], "--dtype"); i++)
            if (!strcmp(argv[k + 1], zf_dtype_name(dtypes[i])))
                s->dtype = dtypes[i], k++, known = true;
        if (!known) return false;
    }
    *argc = rest;
    return s->rounds <= MOST_ROUNDS;
}

int main(int argc, char **argv)
{
    shape s = {4096, 12, 64, 1, 2, 5, ZF_F32};
    static bench_case cases[KINDS];
    bool chosen[KINDS];
    zf_error error;
    zf_backend *backend;
    if (!read_options(&argc, argv, &s)) {
        fprintf(stderr, "attention: its head says what it takes\n");
        return 2;
    }
    backend = zf_cpu_backend(&(zf_cpu_desc){.threads = (int32_t)s.threads}, &error);
    if (!backend) give_up(error.text);
    for (int k = 0; k < KINDS; k++) {
        chosen[k] = argc == 1;
        for (int i = 1; i < argc; i++) chosen[k] |= strstr(kinds[k].name, argv[i]) != NULL;
        for (int both = 0; both < 2 && chosen[k]; both++)
            cases[k].program[both] = compile(&kinds[k], &s, backend, both, &cases[k]);
    }
    for (int64_t r = -1; r < s.rounds; r++) /* the first one is not counted */
        for (int k = 0; k < KINDS; k++)
            for (int both = 0; both < 2 && chosen[k]; both++) {
                const double begin = bench_now();
                if (zf_step(cases[k].program[both]))
                    give_up(zf_program_error(cases[k].program[both]));
                if (r >= 0) cases[k].seconds[both][r] = bench_now() - begin;
            }
    print(cases, &s, chosen);
    return 0;
}
