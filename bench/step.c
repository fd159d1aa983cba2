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
 * prints the time that they predict; --timed plans the overlap by them too. */
#define _POSIX_C_SOURCE 200809L
#include "../examples/frame/model/settings.h"
#include "../examples/frame/output/training.h"
#include "estimate.h"
#include "peak.h"
#include "profile.h"
#include "session.h"

typedef struct options {
    const char *model, *losses;
    int64_t vocab;
    bool fusions, peak, timed;
} options;

#define ROW(kind, member, default_, range, ...)                                                    \
    ZF_OPTION(options, kind, member, default_, range, __VA_ARGS__)

static const zf_option rows[] = {
    ROW(TEXT, model, 0, NULL, .unit = "NAME|FILE", .traits = ZF_OPTION_READS, .topic = "step",
        .help = "model, as bert pretrain takes it"),
    ROW(COUNT, vocab, 8192, "[8,1000000000]", .help = "tokens of the vocabulary"),
    ROW(FLAG, timed, 0, NULL, .help = "file of rates by which the overlap is planned"),
    ROW(FLAG, fusions, 0, NULL, .help = "print the names of the rewrites"),
    ROW(FLAG, peak, 0, NULL, .help = "print the share of the FMA peak, measured in turns"),
    ROW(TEXT, losses, 0, NULL, .unit = "FILE", .traits = ZF_OPTION_WRITES,
        .help = "print the losses of all steps, a line each"),
    {.name = NULL}};

int main(int argc, char **argv)
{
    options o = {.model = "mini"};
    bert_config config;
    session_desc d = {.sample = &bert_sample,
                      .config = &config,
                      .training.clip = 1,
                      .seed = 1,
                      .threads = 2,
                      .shape = {.batch = 16, .sequence = 128}};
    bench_step m = {.steps = 0};
    const zf_options all[] = {{.rows = rows, .desc = &o},
                              {.rows = bench_step_rows, .desc = &m},
                              {.rows = bench_session_rows, .desc = &d},
                              {.rows = zf_training_options(), .desc = &d.training}};
    int status;
    char decay[] = "0.01";
    zf_error error = {ZF_OK, ""};
    zf_estimate estimate = {0};
    zf_program_info info;
    peak_kind kind;
    session s;
    bert_batch *batch;
    FILE *losses;
    double *times, *peaks, *shares, tokens, median, peak = 0, share = 0, before = 0;
    if (!bench_options(argc, argv, all, 4, 3, NULL, &status)) return status;
    for (int32_t k = 0; o.fusions && zf_fuse_name(k); k++) puts(zf_fuse_name(k));
    if (o.fusions) return 0;
    d.measure = o.timed;
    if (zf_options_default(&all[3], 1, "weight-decay", decay, &error)) return 1;
    d.shape.predictions = bench_predictions(d.shape.batch, d.shape.sequence);
    if (bert_config_load(o.model, &config, &error)) config.vocab = o.vocab;
    if (error.status || !session_open(&s, &d, &error))
        return fprintf(stderr, "step: %s\n", error.text), 1;
    batch = bench_batch(&d.shape, o.vocab, 0);
    times = calloc(3 * (size_t)m.steps, sizeof *times);
    losses = o.losses ? fopen(o.losses, "w") : NULL;
    if (!batch || !times || (o.losses && !losses))
        return fprintf(stderr, "step: no memory, or no file %s\n", o.losses ? o.losses : ""), 1;
    peaks = times + m.steps, shares = peaks + m.steps;
    info = zf_program_info_of(s.program);
    kind = peak_best(d.training.precision.dtype == ZF_BF16);
    if (m.estimate && !bench_estimate(&s, d.offload_dir, &estimate, &error))
        return fprintf(stderr, "step: %s\n", error.text), 1;
    if (m.profile) profile_begin(s.backend, m.roof_gflops, m.roof_gbytes);
    for (int64_t n = -3; n < m.steps; n++) {
        float lr = 1e-4f;
        double start = bench_now();
        if (n == 0) profile_reset();
        if (masked_feed(&s, batch, batch->labelled, (double)d.shape.batch) ||
            zf_write(s.program, s.lr, &lr, sizeof lr) || zf_step(s.program))
            return fprintf(stderr, "step: %s\n", zf_program_error(s.program)), 1;
        if (n >= 0) times[n] = bench_now() - start;
        if (o.peak) { /* the peak after a step is the one before the next */
            double after = peak_rate(kind, (int)d.threads);
            if (n >= 0) {
                peaks[n] = 0.5 * (before + after);
                shares[n] = info.flops / times[n] / peaks[n];
            }
            before = after;
        }
        if (m.profile) profile_step();
        if (losses) fprintf(losses, "%.9g\n", session_scalar(&s, "loss"));
    }
    median = bench_median(times, m.steps);
    if (o.peak) peak = bench_median(peaks, m.steps), share = bench_median(shares, m.steps);
    tokens = (double)(d.shape.batch * d.shape.sequence);
    if (m.json) {
        printf("{\"model\": \"%s\", \"tokens_per_s\": %.1f, \"best_tokens_per_s\": %.1f, "
               "\"gflops\": %.1f, \"peak_gflops\": %.1f, \"peak_share\": %.4f, "
               "\"step_ms\": %.3f, \"peak_bytes\": %zu, \"device_bytes\": %.0f, "
               "\"peak_rss_bytes\": %.0f",
               o.model, tokens / median, tokens / times[0], 1e-9 * info.flops / median, 1e-9 * peak,
               share, 1e3 * median, info.peak_bytes, profile_device_bytes(s.backend),
               bench_most_resident());
        profile_print_members(&info.plan, m.steps);
        puts("}");
    } else
        printf("BERT-%s, batch %lld x %lld, %lld threads: %.0f tokens/s (best %.0f), %.1f GFLOP/s, "
               "%.2f ms, %.1f GFLOP a "
               "step, %.1f MiB\n",
               o.model, (long long)d.shape.batch, (long long)d.shape.sequence, (long long)d.threads,
               tokens / median, tokens / times[0], 1e-9 * info.flops / median, 1e3 * median,
               1e-9 * info.flops, (double)info.peak_bytes / 1048576);
    if (o.peak && !m.json)
        printf("the peak: %.1f GFLOP/s (median); of it in a step: %.3f (median), %.3f (best)\n",
               1e-9 * peak, share, shares[m.steps - 1]);
    if (m.profile && !m.json) profile_print(m.steps);
    if (m.estimate && !m.json) bench_print_estimate(&estimate, median);
    session_close(&s);
    if (losses && fclose(losses))
        return fprintf(stderr, "step: %s cannot be written\n", o.losses), 1;
    return 0;
}
