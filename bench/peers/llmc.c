/* One training step of llm.c's train_gpt2.c (github.com/karpathy/llm.c) on made-up tokens: the same
 * shapes and counts as bench/gpt.c, one JSON object. bench/peers/llmc.py builds and runs it.
 *
 *     llmc small|124m BATCH SEQ STEPS
 *
 * The file is compiled as it is, its main left out (TESTING). Weights are made here, in place of a
 * checkpoint. With PEER_BLAS its two matrix products are weak, and llmc_blas.c has others. */
#ifdef PEER_BLAS
__attribute__((weak)) void matmul_forward(float *, const float *, const float *, const float *, int,
                                          int, int, int);
__attribute__((weak)) void matmul_backward(float *, float *, float *, const float *, const float *,
                                           const float *, int, int, int, int);
#endif
#define TESTING
#include "train_gpt2.c"

#include "../figures.h"

#include <sys/resource.h>

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/* A model with weights in [-0.035, 0.035], whose deviation is 0.02. */
static void build(GPT2 *model, GPT2Config config)
{
    memset(model, 0, sizeof *model);
    model->config = config;
    fill_in_parameter_sizes(model->param_sizes, config);
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) model->num_parameters += model->param_sizes[i];
    model->params_memory = malloc_and_point_parameters(&model->params, model->param_sizes);
    for (size_t i = 0; i < model->num_parameters; i++)
        model->params_memory[i] = 0.07f * ((float)(mix(i + 1) >> 40) * 0x1p-24f - 0.5f);
    model->mean_loss = -1;
}

int main(int argc, char **argv)
{
    GPT2Config config = {1024, 8192, 8192, 4, 4, 256};
    int batch, tokens, steps, *ids, *labels;
    double *times;
    struct rusage usage;
    GPT2 model;
    if (argc != 5) return fputs("usage: llmc small|124m BATCH SEQ STEPS\n", stderr), 2;
    if (!strcmp(argv[1], "124m")) config = (GPT2Config){1024, 50257, 50304, 12, 12, 768};
    batch = atoi(argv[2]), tokens = batch * atoi(argv[3]), steps = atoi(argv[4]);
    build(&model, config);
    ids = mallocCheck((size_t)zf_tokenizer * sizeof *ids),
    labels = mallocCheck((size_t)zf_tokenizer * sizeof *ids);
    times = mallocCheck((size_t)steps * sizeof *times);
    for (int i = 0; i < tokens; i++) {
        ids[i] = (int)(mix((uint64_t)i) % (uint64_t)config.vocab_size);
        labels[i] = (int)(mix((uint64_t)i + 1) % (uint64_t)config.vocab_size);
    }
    for (int n = -1; n < steps; n++) {
        double start = bench_now();
        gpt2_forward(&model, ids, labels, (size_t)batch, (size_t)(tokens / batch));
        gpt2_zero_grad(&model);
        gpt2_backward(&model);
        gpt2_update(&model, 1e-4f, 0.9f, 0.999f, 1e-8f, 0.1f, n + 2);
        if (n >= 0) times[n] = bench_now() - start;
    }
    qsort(times, (size_t)steps, sizeof *times, bench_by_value);
    getrusage(RUSAGE_SELF, &usage);
    printf("{\"model\": \"%s\", \"tokens_per_s\": %.1f, \"best_tokens_per_s\": %.1f, \"step_ms\": "
           "%.3f, \"loss\": %.4f, \"peak_rss_bytes\": %.0f}\n",
           argv[1], tokens / times[steps / 2], tokens / times[0], 1e3 * times[steps / 2],
           model.mean_loss, 1024.0 * (double)usage.ru_maxrss);
    gpt2_free(&model);
    return 0;
}
