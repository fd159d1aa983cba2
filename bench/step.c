/* One training step of BERT on made-up tokens: tokens per second, GFLOP/s, bytes by kind, and where
 * the time goes.
 *
 *     build/bench/step --model mini --vocab 8192 --batch 16 --seq 128 --threads 2 --steps 30
 *                      [--precision f32|bf16|f16] [--no-fuse NAME,...] [--profile] [--json]
 *                      [--offload KIND=SPACE,... --offload-dir DIR --prefetch BYTES] [--estimate]
 *     build/cuda/bench/step --device cuda [--tuning FILE] [--no-graphs] ...
 *
 * The shapes and counts are those of bench/peers/torch_bert.py: 19 labelled positions in each 128
 * tokens, AdamW, dropout 0.1. Times are medians. --profile wraps the backend's launch with a clock
 * and adds up by operator; the floor of each is what its bytes or FLOPs take at the roof's rates
 * (of the FMA peak, say). --peak measures that peak before and after every step (peak.h), for the
 * share of it that a step's products make, with the machine at the same pace. --losses writes the
 * loss of every step, from the first. --estimate measures the machine's rates before the steps, and
 * prints the time that they foretell; --timed plans the overlap by them too. */
#define _POSIX_C_SOURCE 200809L
#include "../examples/frame/options/options.h"
#include "../examples/frame/model/settings.h"
#include "../examples/frame/run/training.h"
#include "foretell.h"
#include "peak.h"
#include "profile.h"

int main(int argc, char **argv)
{
    const char *model = "mini", *losses = NULL, *offload = NULL, *optimizer = "adamw",
               *rest;
    int64_t vocab = 8192, threads = 2, steps = 30, stage = 0, prefetch = 0, precision = ZF_F32;
    double roof[2] = {0, 0};
    bool profile = false, json = false, fusions = false, with_peak = false, estimate = false;
    bert_config config;
    session_desc d = {.sample = &bert_sample,
                      .config = &config,
                      .training.clip = 1,
                      .seed = 1,
                      .shape = {16, 128, 0, false, 0}};
    const option_row rows[] = {
        {"model", OPTION_TEXT, "NAME|FILE", &model, 0, 0, "as bert pretrain"},
        {"vocab", OPTION_COUNT, "N", &vocab, 8, 1e9, "tokens of the vocabulary"},
        {"batch", OPTION_COUNT, "B", &d.shape.batch, 1, 1e6, "examples"},
        {"seq", OPTION_COUNT, "T", &d.shape.sequence, 8, 65536, "tokens of an example"},
        {"device", OPTION_CHOICE, DEVICE_KINDS, &d.device.kind, 0, 0, "it computes on"},
        {"tuning", OPTION_TEXT, "FILE", &d.device.tuning, 0, 0, "of CUDA's algorithms"},
        {"no-graphs", OPTION_FLAG, NULL, &d.device.no_graphs, 0, 0, "CUDA launch by launch"},
        {"threads", OPTION_COUNT, "N", &threads, 1, 1024, "workers"},
        {"steps", OPTION_COUNT, "N", &steps, 1, 1e6, "steps that are timed, after three others"},
        {"optimizer", OPTION_TEXT, "NAME", &optimizer, 0, 0, "the update"},
        {"zero", OPTION_COUNT, "STAGE", &stage, 0, 3, "ZeRO stage, on one rank: buckets"},
        {"no-fuse", OPTION_TEXT, "NAME,...", &d.training.fuse.without, 0, 0, "rewrites left out, or all"},
        {"precision", OPTION_CHOICE, "f32|bf16|f16", &precision, 0, 0, "it computes in"},
        {"clip", OPTION_NUMBER, "X", &d.training.clip, 0, 1e30, "maximum gradient norm; 0: none"},
        {"offload", OPTION_TEXT, "KIND=SPACE,...", &offload, 0, 0, "as bert pretrain"},
        {"offload-dir", OPTION_TEXT, "DIR", &d.offload_dir, 0, 0, "for values on a disk"},
        {"prefetch", OPTION_COUNT, "BYTES", &prefetch, 0, 1e15, "as bert pretrain"},
        {"estimate", OPTION_FLAG, NULL, &estimate, 0, 0, "print what measured rates foretell"},
        {"timed", OPTION_FLAG, NULL, &d.measure, 0, 0, "plan the overlap by such rates"},
        {"fusions", OPTION_FLAG, NULL, &fusions, 0, 0, "print the names of the rewrites"},
        {"profile", OPTION_FLAG, NULL, &profile, 0, 0, "time by operator, beside its floor"},
        {"roof-gflops", OPTION_NUMBER, "X", &roof[0], 0, 1e9, "of the floor; 0: it is measured"},
        {"roof-gbytes", OPTION_NUMBER, "X", &roof[1], 0, 1e9, "the same of memory, GB/s"},
        {"peak", OPTION_FLAG, NULL, &with_peak, 0, 0, "the share of the FMA peak, taken in turns"},
        {"json", OPTION_FLAG, NULL, &json, 0, 0, "one JSON object"},
        {"losses", OPTION_TEXT, "FILE", &losses, 0, 0, "those of all steps, a line each"},
        {NULL, OPTION_FLAG, NULL, NULL, 0, 0, NULL},
    };
    char text[512];
    int count;
    zf_error error = {ZF_OK, ""};
    zf_estimate foretold = {0};
    zf_program_info info;
    peak_kind kind;
    session s;
    bert_batch *batch;
    FILE *told;
    double *times, *peaks, *shares, tokens, median, peak = 0, share = 0, before = 0;
    options_result result = options_parse(argc, argv, rows, &rest, 1, &count, text, sizeof text);
    if (result != OPTIONS_GOOD || count) {
        if (result == OPTIONS_BAD) fprintf(stderr, "step: %s\n", text);
        options_print(stdout, rows);
        return result == OPTIONS_HELP ? 0 : 2;
    }
    for (int32_t k = 0; fusions && zf_fuse_name(k); k++) puts(zf_fuse_name(k));
    if (fusions) return 0;
    d.training.zero.stage = (int32_t)stage;
    d.training.prefetch.bytes = (size_t)prefetch;
    d.training.precision.dtype = (zf_dtype)precision;
    d.threads = threads;
    if (!bench_set(&d.training, "optimizer", optimizer, &error) ||
        !bench_set(&d.training, "offload", offload, &error))
        return fprintf(stderr, "step: %s\n", error.text), 2;
    session_set(&d.training, "weight-decay", 0.01);
    d.shape.predictions = bench_predictions(d.shape.batch, d.shape.sequence);
    if (bert_config_load(model, &config, &error)) config.vocab = vocab;
    if (error.status || !session_open(&s, &d, &error))
        return fprintf(stderr, "step: %s\n", error.text), 1;
    batch = bench_batch(&d.shape, vocab, 0);
    times = calloc(3 * (size_t)steps, sizeof *times);
    told = losses ? fopen(losses, "w") : NULL;
    if (!batch || !times || (losses && !told))
        return fprintf(stderr, "step: no memory, or no file %s\n", losses ? losses : ""), 1;
    peaks = times + steps, shares = peaks + steps;
    info = zf_program_info_of(s.program);
    kind = peak_best(precision == ZF_BF16);
    if (estimate && !foretell(&s, d.offload_dir, &foretold, &error))
        return fprintf(stderr, "step: %s\n", error.text), 1;
    if (profile) profile_begin(s.backend, roof[0], roof[1]);
    for (int64_t n = -3; n < steps; n++) {
        float lr = 1e-4f;
        double start = bench_now();
        if (n == 0) profile_reset();
        if (masked_feed(&s, batch, batch->labelled, (double)d.shape.batch) ||
            zf_write(s.program, s.lr, &lr, sizeof lr) || zf_step(s.program))
            return fprintf(stderr, "step: %s\n", zf_program_error(s.program)), 1;
        if (n >= 0) times[n] = bench_now() - start;
        if (with_peak) { /* what is behind one step is before the next */
            double behind = peak_rate(kind, (int)threads);
            if (n >= 0) {
                peaks[n] = 0.5 * (before + behind);
                shares[n] = info.flops / times[n] / peaks[n];
            }
            before = behind;
        }
        if (profile) profile_step();
        if (told) fprintf(told, "%.9g\n", session_scalar(&s, "loss"));
    }
    median = bench_median(times, steps);
    if (with_peak) peak = bench_median(peaks, steps), share = bench_median(shares, steps);
    tokens = (double)(d.shape.batch * d.shape.sequence);
    if (json) {
        printf("{\"model\": \"%s\", \"tokens_per_s\": %.1f, \"best_tokens_per_s\": %.1f, "
               "\"gflops\": %.1f, \"peak_gflops\": %.1f, \"peak_share\": %.4f, "
               "\"step_ms\": %.3f, \"peak_bytes\": %zu, \"device_bytes\": %.0f, "
               "\"peak_rss_bytes\": %.0f",
               model, tokens / median, tokens / times[0], 1e-9 * info.flops / median, 1e-9 * peak,
               share, 1e3 * median, info.peak_bytes, profile_device_bytes(s.backend),
               bench_most_resident());
        profile_print_members(&info.plan, steps);
        puts("}");
    } else
        printf("BERT-%s, batch %lld x %lld, %lld threads: %.0f tokens/s (best %.0f), %.1f GFLOP/s, "
               "%.2f ms, %.1f GFLOP a "
               "step, %.1f MiB\n",
               model, (long long)d.shape.batch, (long long)d.shape.sequence, (long long)threads,
               tokens / median, tokens / times[0], 1e-9 * info.flops / median, 1e3 * median,
               1e-9 * info.flops, (double)info.peak_bytes / 1048576);
    if (with_peak && !json)
        printf("the peak: %.1f GFLOP/s (median); of it in a step: %.3f (median), %.3f (best)\n",
               1e-9 * peak, share, shares[steps - 1]);
    if (profile && !json) profile_print(steps);
    if (estimate && !json) print_foretold(&foretold, median);
    session_close(&s);
    if (told && fclose(told)) return fprintf(stderr, "step: %s cannot be written\n", losses), 1;
    return 0;
}
