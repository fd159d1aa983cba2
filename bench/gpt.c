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
 * they foretell. */
#define _POSIX_C_SOURCE 200809L
#include "../examples/frame/data/causal_batch.h"
#include "../examples/frame/model/settings.h"
#include "../examples/gpt/model.h"
#include "../examples/llm/model.h"
#include "foretell.h"
#include "profile.h"

int main(int argc, char **argv)
{
    const char *model = "small", *offload = NULL, *recompute = NULL, *rest;
    int64_t steps = 30, precision = ZF_F32, bits = 0, prefetch = 0, vocab;
    double dropout = 0;
    double roof[2] = {0, 0};
    bool profile = false, json = false, llama = false, estimate = false, loaded;
    gpt_config config;
    llm_config llama_config;
    session_desc d = {.sample = &gpt_sample,
                      .config = &config,
                      .purpose = SAMPLE_TRAIN,
                      .training = {.clip = 1, .adamw.weight_decay = 0.1},
                      .seed = 1,
                      .threads = 2,
                      .shape = {8, 128, 0, false, 0}};
    const option_row rows[] = {
        {"llama", OPTION_FLAG, NULL, &llama, 0, 0, "a model of llm, not of gpt"},
        {"model", OPTION_TEXT, "NAME|FILE", &model, 0, 0, "as gpt pretrain, or llm pretrain"},
        {"lora", OPTION_COUNT, "RANK", &d.training.lora.rank, 0, 4096, "of an adapter; 0: all are trained"},
        {"weights", OPTION_CHOICE, ZF_CONFIG_WEIGHTS, &bits, 0, 0, "of products, under an adapter"},
        {"batch", OPTION_COUNT, "B", &d.shape.batch, 1, 1e6, "examples"},
        {"seq", OPTION_COUNT, "T", &d.shape.sequence, 1, 65536, "tokens of an example"},
        {"device", OPTION_CHOICE, DEVICE_KINDS, &d.device.kind, 0, 0, "it computes on"},
        {"tuning", OPTION_TEXT, "FILE", &d.device.tuning, 0, 0, "of CUDA's algorithms"},
        {"threads", OPTION_COUNT, "N", &d.threads, 1, 1024, "workers"},
        {"steps", OPTION_COUNT, "N", &steps, 1, 1e6, "steps that are timed, after three others"},
        {"dropout", OPTION_NUMBER, "P", &dropout, 0, 0.999, "everywhere"},
        {"precision", OPTION_CHOICE, "f32|bf16|f16", &precision, 0, 0, "it computes in"},
        {"no-fuse", OPTION_TEXT, "NAME,...", &d.training.fuse.without, 0, 0, "rewrites left out, or all"},
        {"offload", OPTION_TEXT, "KIND=SPACE,...", &offload, 0, 0, "as gpt pretrain"},
        {"offload-dir", OPTION_TEXT, "DIR", &d.offload_dir, 0, 0, "for values on a disk"},
        {"prefetch", OPTION_COUNT, "BYTES", &prefetch, 0, 1e15, "on their way at a time"},
        {"recompute", OPTION_TEXT, "off|layers|BYTES", &recompute, 0, 0, "as gpt pretrain"},
        {"clip", OPTION_NUMBER, "NORM", &d.training.clip, 0, 1e9, "of gradients; 0: they are not clipped"},
        {"estimate", OPTION_FLAG, NULL, &estimate, 0, 0, "print what measured rates foretell"},
        {"profile", OPTION_FLAG, NULL, &profile, 0, 0, "time by operator, beside its floor"},
        {"roof-gflops", OPTION_NUMBER, "X", &roof[0], 0, 1e9, "of the floor; 0: it is measured"},
        {"roof-gbytes", OPTION_NUMBER, "X", &roof[1], 0, 1e9, "the same of memory, GB/s"},
        {"json", OPTION_FLAG, NULL, &json, 0, 0, "one JSON object"},
        {NULL, OPTION_FLAG, NULL, NULL, 0, 0, NULL},
    };
    char text[512];
    int count;
    zf_error error = {ZF_OK, ""};
    zf_estimate foretold = {0};
    zf_program_info info;
    session s;
    causal_batch batch;
    double *times, tokens, median;
    options_result result = options_parse(argc, argv, rows, &rest, 1, &count, text, sizeof text);
    if (result != OPTIONS_GOOD || count) {
        if (result == OPTIONS_BAD) fprintf(stderr, "gpt: %s\n", text);
        options_print(stdout, rows);
        return result == OPTIONS_HELP ? 0 : 2;
    }
    d.training.precision.dtype = (zf_dtype)precision;
    d.training.prefetch.bytes = (size_t)prefetch;
    if (!bench_set(&d.training, "offload", offload, &error) ||
        !bench_set(&d.training, "recompute", recompute, &error))
        return fprintf(stderr, "gpt: %s\n", error.text), 2;
    if (llama) d.sample = &llm_sample, d.config = &llama_config;
    loaded = llama ? llm_config_load(model, &llama_config, &error)
                   : gpt_config_load(model, &config, &error);
    loaded =
        loaded && (llama ? zf_config_set_weights(llm_sample.config, &llama_config, bits, &error)
                         : zf_config_set_weights(gpt_sample.config, &config, bits, &error));
    if (!loaded) return fprintf(stderr, "gpt: %s\n", error.text), 1;
    vocab = llama ? llama_config.vocab : config.vocab;
    if (llama) llama_config.attention_dropout = dropout;
    config.embedding_dropout = config.attention_dropout = config.residual_dropout = dropout;
    if (!session_open(&s, &d, &error) ||
        !causal_batch_new(&batch, d.shape.batch, d.shape.sequence, false, &error))
        return fprintf(stderr, "gpt: %s\n", error.text), 1;
    batch.labelled = batch.examples * batch.sequence;
    for (int64_t i = 0; i < batch.labelled; i++) {
        batch.ids[i] = (int32_t)(bert_mix((uint64_t)i) % (uint64_t)vocab);
        batch.labels[i] = (int32_t)(bert_mix((uint64_t)i + 1) % (uint64_t)vocab);
    }
    times = calloc((size_t)steps, sizeof *times);
    if (!times) return 1;
    if (estimate && !foretell(&s, d.offload_dir, &foretold, &error))
        return fprintf(stderr, "gpt: %s\n", error.text), 1;
    if (profile) profile_begin(s.backend, roof[0], roof[1]);
    for (int64_t n = -3; n < steps; n++) {
        float lr = 1e-4f;
        double start = bench_now();
        if (n == 0) profile_reset();
        if (session_feed(&s, &batch, false) || zf_write(s.program, s.lr, &lr, sizeof lr) ||
            zf_step(s.program))
            return fprintf(stderr, "gpt: %s\n", zf_program_error(s.program)), 1;
        if (n >= 0) times[n] = bench_now() - start;
        if (profile) profile_step();
    }
    median = bench_median(times, steps);
    tokens = (double)batch.labelled;
    info = zf_program_info_of(s.program);
    if (json) {
        printf("{\"model\": \"%s\", \"tokens_per_s\": %.1f, \"best_tokens_per_s\": %.1f, "
               "\"gflops\": %.1f, \"step_ms\": %.3f, \"peak_bytes\": %zu, "
               "\"peak_rss_bytes\": %.0f, \"parameters\": %.0f, \"host_bytes\": %zu, "
               "\"disk_bytes\": %zu, \"up_bytes\": %.0f, \"down_bytes\": %.0f",
               model, tokens / median, tokens / times[0], 1e-9 * info.flops / median, 1e3 * median,
               info.peak_bytes, bench_most_resident(), (double)info.param_count,
               info.allocated[ZF_HOST], info.allocated[ZF_DISK],
               (double)info.counted.upload.bytes, (double)info.counted.download.bytes);
        profile_print_members(&info.plan, steps);
        puts("}");
    } else {
        printf(
            "%s %s, batch %lld x %lld, %lld threads: %.0f tokens/s (best %.0f), %.1f GFLOP/s, "
            "%.2f ms, %.1f GFLOP a step, %.1f MiB\n",
            llama ? "Llama" : "GPT-2", model, (long long)batch.examples,
            (long long)batch.sequence, (long long)d.threads,
            tokens / median, tokens / times[0], 1e-9 * info.flops / median, 1e3 * median,
            1e-9 * info.flops, (double)info.peak_bytes / 1048576);
        if (profile) profile_print(steps);
        if (estimate) print_foretold(&foretold, median);
    }
    free(times);
    causal_batch_free(&batch);
    session_close(&s);
    return 0;
}
