/* One training step of GPT-2, or of a Llama, on made-up tokens: tokens per second, GFLOP/s, bytes
 * by kind, and where the time goes.
 *
 *     build/bench/gpt --model small|124m --batch 8 --seq 128 --threads 2 --steps 30 [--dropout P]
 *                     [--precision f32|bf16|f16] [--no-fuse NAME,...] [--profile] [--json]
 *                     [--offload KIND=SPACE,... [--offload-dir DIR]] [--prefetch BYTES]
 *                     [--recompute layers] [--clip NORM] [--estimate]
 *     build/bench/gpt --llama [--lora RANK [--weights int8|int4]] --model 160m ...
 *
 * The loss of every position counts; AdamW. Without dropout, as bench/peers/llmc.c has none. Times
 * are medians. --estimate measures the machine's rates before the steps, and prints the time that
 * they predict. */
#define _POSIX_C_SOURCE 200809L
#include "../examples/frame/data/causal_batch.h"
#include "../examples/frame/model/settings.h"
#include "../examples/gpt/model.h"
#include "../examples/llm/model.h"
#include "estimate.h"
#include "profile.h"
#include "session.h"

typedef struct options {
    const char *model;
    int64_t weights;
    double dropout;
    bool llama;
} options;

#define ROW(kind, member, default_, range, ...)                                                    \
    ZF_OPTION(options, kind, member, default_, range, __VA_ARGS__)

static const zf_option rows[] = {
    ROW(FLAG, llama, 0, NULL, .topic = "step", .help = "a model of llm, not of gpt"),
    ROW(TEXT, model, 0, NULL, .unit = "NAME|FILE", .traits = ZF_OPTION_READS,
        .help = "model, as gpt pretrain or llm pretrain takes it"),
    ROW(CHOICE, weights, 0, ZF_CONFIG_WEIGHTS,
        .help = "how weights of products are stored under an adapter"),
    ROW(NUMBER, dropout, 0, "[0,1)", .unit = "P", .help = "probability of every dropout"),
    {.name = NULL}};

int main(int argc, char **argv)
{
    options o = {.model = "small"};
    int64_t vocab;
    bool loaded;
    gpt_config config;
    zf_causal_config llama_config;
    session_desc d = {.sample = &gpt_sample,
                      .config = &config,
                      .purpose = SAMPLE_TRAIN,
                      .training.clip = 1,
                      .seed = 1,
                      .threads = 2,
                      .shape = {.batch = 8, .sequence = 128}};
    bench_step m = {.steps = 0};
    const zf_options all[] = {{.rows = rows, .desc = &o},
                              {.rows = bench_step_rows, .desc = &m},
                              {.rows = bench_session_rows, .desc = &d},
                              {.rows = zf_training_options(), .desc = &d.training}};
    int status;
    char decay[] = "0.1";
    zf_error error = {ZF_OK, ""};
    zf_estimate estimate = {0};
    zf_program_info info;
    session s;
    zf_causal_batch batch;
    double *times, tokens, median;
    if (!bench_options(argc, argv, all, 4, 3, NULL, &status)) return status;
    if (zf_options_default(&all[3], 1, "weight-decay", decay, &error)) return 1;
    if (o.llama) d.sample = &llm_sample, d.config = &llama_config;
    loaded = o.llama ? llm_config_load(o.model, &llama_config, &error)
                   : gpt_config_load(o.model, &config, &error);
    loaded = loaded &&
             (o.llama ? zf_config_set_weights(llm_sample.config(), &llama_config, o.weights, &error)
                      : zf_config_set_weights(gpt_sample.config(), &config, o.weights, &error));
    if (!loaded) return fprintf(stderr, "gpt: %s\n", error.text), 1;
    vocab = o.llama ? llama_config.vocab : config.vocab;
    if (o.llama) llama_config.attention_dropout = o.dropout;
    config.embedding_dropout = config.attention_dropout = config.residual_dropout = o.dropout;
    if (!session_open(&s, &d, &error) ||
        !zf_causal_batch_new(&batch, d.shape.batch, d.shape.sequence, false, &error))
        return fprintf(stderr, "gpt: %s\n", error.text), 1;
    batch.labelled = batch.examples * batch.sequence;
    for (int64_t i = 0; i < batch.labelled; i++) {
        batch.ids[i] = (int32_t)(bert_mix((uint64_t)i) % (uint64_t)vocab);
        batch.labels[i] = (int32_t)(bert_mix((uint64_t)i + 1) % (uint64_t)vocab);
    }
    times = calloc((size_t)m.steps, sizeof *times);
    if (!times) return 1;
    if (m.estimate && !bench_estimate(&s, d.offload_dir, &estimate, &error))
        return fprintf(stderr, "gpt: %s\n", error.text), 1;
    if (m.profile) profile_begin(s.backend, m.roof_gflops, m.roof_gbytes);
    for (int64_t n = -3; n < m.steps; n++) {
        float lr = 1e-4f;
        double start = bench_now();
        if (n == 0) profile_reset();
        if (session_feed(&s, &batch, false) || zf_write(s.program, s.lr, &lr, sizeof lr) ||
            zf_step(s.program))
            return fprintf(stderr, "gpt: %s\n", zf_program_error(s.program)), 1;
        if (n >= 0) times[n] = bench_now() - start;
        if (m.profile) profile_step();
    }
    median = bench_median(times, m.steps);
    tokens = (double)batch.labelled;
    info = zf_program_info_of(s.program);
    if (m.json) {
        printf("{\"model\": \"%s\", \"tokens_per_s\": %.1f, \"best_tokens_per_s\": %.1f, "
               "\"gflops\": %.1f, \"step_ms\": %.3f, \"peak_bytes\": %zu, "
               "\"peak_rss_bytes\": %.0f, \"parameters\": %.0f, \"host_bytes\": %zu, "
               "\"disk_bytes\": %zu, \"up_bytes\": %.0f, \"down_bytes\": %.0f",
               o.model, tokens / median, tokens / times[0], 1e-9 * info.flops / median,
               1e3 * median, info.peak_bytes, bench_most_resident(), (double)info.param_count,
               info.allocated[ZF_HOST], info.allocated[ZF_DISK], (double)info.counted.upload.bytes,
               (double)info.counted.download.bytes);
        profile_print_members(&info.plan, m.steps);
        puts("}");
    } else {
        printf(
            "%s %s, batch %lld x %lld, %lld threads: %.0f tokens/s (best %.0f), %.1f GFLOP/s, "
            "%.2f ms, %.1f GFLOP a step, %.1f MiB\n",
            o.llama ? "Llama" : "GPT-2", o.model, (long long)batch.examples,
            (long long)batch.sequence, (long long)d.threads,
            tokens / median, tokens / times[0], 1e-9 * info.flops / median, 1e3 * median,
            1e-9 * info.flops, (double)info.peak_bytes / 1048576);
        if (m.profile) profile_print(m.steps);
        if (m.estimate) bench_print_estimate(&estimate, median);
    }
    free(times);
    zf_causal_batch_free(&batch);
    session_close(&s);
    return 0;
}
