/* Generation by a Llama of made-up weights: tokens per second of the prompt and of one stream, the
 * products of the prompt per second next to the peak of this machine's registers, and the bytes of
 * weights and caches that a token reads per second next to what its memory gives.
 *
 *     build/bench/generate --model 160m|15m|... --prompt 256 --tokens 64 --threads 2 [--rounds 5]
 *                          [--precision f32|bf16|f16] [--weights int8|int4] [--streams 1] [--json]
 *                          [--device cuda [--tuning FILE]] [--profile]
 *
 * --profile prints the time of prompts and of tokens by operator instead, and the time between
 * launches.
 *
 * Each round measures the peak, the prompt, the memory and the tokens, in turns; figures are
 * medians over the rounds, of a round's tokens the median as well. Resident is what the process has
 * taken until its first token is there, next to what is planned: weights, caches, and the values of
 * steps. Memory is read by as many threads, 512 MiB of 2 MiB pages where the system gives them. On
 * a GPU both rates are zf_calibrate's, once, and the peak is that of products of f32. */
#define _GNU_SOURCE
#include "options.h"
#include "../examples/frame/data/causal_batch.h"
#include "../examples/frame/model/decoder.h"
#include "../examples/llm/model.h"
#include "figures.h"
#include "peak.h"
#include "profile.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

/* ------------------------------------------------------------------------------- memory */

enum { READ_BYTES = 512 << 20, ROUNDS = 64 };

typedef unsigned long long words __attribute__((vector_size(64)));

typedef struct reading {
    const words *from;
    size_t count;
    unsigned long long sum;
} reading;

#if defined(__x86_64__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
static unsigned long long fold(const words *x, size_t count)
{
    words sum[8] = {{0}};
    unsigned long long all = 0;
    for (size_t i = 0; i + 8 <= count; i += 8)
        for (int k = 0; k < 8; k++) sum[k] ^= x[i + (size_t)k];
    for (int k = 0; k < 8; k++)
        for (int l = 0; l < 8; l++) all ^= sum[k][l];
    return all;
}

static void *read_part(void *object)
{
    reading *r = object;
    r->sum = fold(r->from, r->count);
    return NULL;
}

/* Memory to be read; NULL where there is none. */
static void *read_open(void)
{
    void *memory =
        mmap(NULL, READ_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return NULL;
    madvise(memory, READ_BYTES, MADV_HUGEPAGE);
    memset(memory, 1, READ_BYTES);
    return memory;
}

/* Bytes per second that `threads` threads read, the best of two turns; 0 where it cannot be
 * measured. */
static double read_rate(void *memory, int64_t threads)
{
    reading parts[PEAK_THREADS];
    pthread_t ids[PEAK_THREADS];
    double best = 0;
    for (int turn = 0; turn < 2 && memory; turn++) {
        double start = bench_now();
        for (int64_t k = 0; k < threads; k++) {
            size_t all = READ_BYTES / sizeof(words), each = all / (size_t)threads;
            parts[k] = (reading){(const words *)memory + (size_t)k * each, each, 0};
            if (pthread_create(&ids[k], NULL, read_part, &parts[k])) return 0;
        }
        for (int64_t k = 0; k < threads; k++) pthread_join(ids[k], NULL);
        start = READ_BYTES / (bench_now() - start);
        best = start > best ? start : best;
    }
    return best;
}

/* --------------------------------------------------------------------------- generation */

/* Bytes of weights that a token reads: all but rows of an embedding that is no head. */
static double weight_bytes(const session *s, const zf_causal_config *c)
{
    double bytes = 0, table = (double)(c->vocab * c->hidden) * (s->dtype == ZF_F32 ? 4 : 2);
    for (int32_t k = 0; k < zf_store_count(zf_program_store(s->program)); k++) {
        zf_stored of = zf_store_at(zf_program_store(s->program), k);
        bytes += (double)zf_shape_count(of.shape) * (double)zf_dtype_size(of.dtype);
    }
    return c->tied ? bytes : bytes - table;
}

/* Bytes that the programs have of the device: weights, caches and the values of a step. */
static double planned_bytes(const session *base, const decoder *d)
{
    return (double)zf_program_info_of(base->program).allocated_bytes +
           (double)zf_program_info_of(d->prompt.program).allocated_bytes +
           (double)zf_program_info_of(d->token.program).allocated_bytes;
}

/* Adds `count` tokens to each text; seconds, or a negative number with *error. */
static double add(decoder *d, int64_t count, zf_error *error)
{
    static int32_t ids[1 << 16];
    const int32_t *from[PEAK_THREADS];
    int64_t counts[PEAK_THREADS];
    double start = bench_now();
    for (int64_t i = 0; i < count; i++) ids[i] = (int32_t)(i * 7 % d->steps.vocab);
    for (int64_t k = 0; k < d->steps.texts; k++) from[k] = ids, counts[k] = count;
    return zf_decoder_add(&d->steps, from, counts, error) ? bench_now() - start : -1;
}

/* What a round has measured: seconds of the prompt and of a token; rates. */
typedef struct round_figures {
    double prompt[ROUNDS], token[ROUNDS], peak[ROUNDS], read[ROUNDS];
    double resident; /* bytes of the process at most, up to the first prompt and token */
} round_figures;

/* device: a GPU's backend, or NULL. */
static bool measure(decoder *d, int64_t prompt, int64_t tokens, int64_t threads, zf_dtype dtype,
                    int64_t rounds, zf_backend *device, round_figures *r, zf_error *error)
{
    double *times = calloc((size_t)tokens, sizeof *times);
    zf_cost cost = zf_cost_default();
    void *memory;
    /* The first ones meet a cold memory. */
    bool good = times && (r->prompt[0] = add(d, prompt, error)) >= 0 &&
                (r->token[0] = add(d, 1, error)) >= 0;
    r->resident = bench_most_resident();
    memory = device ? NULL : read_open();
    if (good && device)
        good = !zf_calibrate(&(zf_calibrate_desc){.backend = device}, &cost, error);
    for (int64_t k = 0; k < rounds && good; k++) {
        for (int64_t text = 0; text < d->steps.texts; text++) zf_decoder_rewind(&d->steps, text, 0);
        r->peak[k] =
            device ? cost.device.flops_per_s : peak_rate(peak_best(dtype == ZF_BF16), (int)threads);
        good = (r->prompt[k] = add(d, prompt, error)) >= 0;
        r->read[k] = device ? cost.device.bytes_per_s : read_rate(memory, threads);
        for (int64_t n = 0; n < tokens && good; n++)
            good = (times[n] = add(d, 1, error)) >= 0;
        r->token[k] = bench_median(times, tokens);
    }
    if (memory) munmap(memory, READ_BYTES);
    free(times);
    return good;
}

/* Prints by operator the time of adding `count` tokens, a mean of `calls`. They begin after the
 * prompt, or each replaces it. */
static bool profile_calls(decoder *d, int64_t count, int64_t calls, bool replace, zf_error *error)
{
    double *times = calloc((size_t)calls, sizeof *times), launched = 0, all = 0;
    bool good = times != NULL;
    profile_reset();
    for (int64_t n = 0; n < calls && good; n++) {
        for (int64_t text = 0; text < d->steps.texts && replace; text++)
            zf_decoder_rewind(&d->steps, text, 0);
        good = (times[n] = add(d, count, error)) >= 0;
        profile_step();
        all += times[n];
    }
    for (int op = 0; op < ZF_OP_COUNT; op++) launched += profiled.seconds[op];
    if (good) {
        profile_print(calls);
        printf("between launches %.3f ms of %.3f; median %.3f ms\n",
               1e3 * (all - launched) / (double)calls, 1e3 * all / (double)calls,
               1e3 * bench_median(times, calls));
    }
    free(times);
    return good;
}

/* Prints the time of a prompt and of tokens after it by operator. */
static bool profile(decoder *d, int64_t prompt, int64_t tokens, int64_t rounds, zf_backend *backend,
                    zf_error *error)
{
    if (add(d, prompt, error) < 0 || add(d, 1, error) < 0) return false;
    profile_begin(backend, 0, 0);
    printf("a prompt of %lld tokens:\n", (long long)prompt);
    if (!profile_calls(d, prompt, rounds, true, error)) return false;
    printf("a token after it:\n");
    return profile_calls(d, 1, tokens, false, error);
}

typedef struct options {
    const char *model;
    int64_t prompt, tokens, streams, threads, rounds, precision, weights;
    device_desc device;
    bool json, profile;
} options;

#define ROW(kind, member, default_, range, ...)                                                    \
    ZF_OPTION(options, kind, member, default_, range, __VA_ARGS__)

static const zf_option rows[] = {
    ROW(TEXT, model, 0, NULL, .unit = "NAME|FILE", .traits = ZF_OPTION_READS, .topic = "generation",
        .help = "model, as llm pretrain takes it"),
    ROW(COUNT, prompt, 256, "[1,65536]", .help = "tokens of the prompt"),
    ROW(COUNT, tokens, 64, "[1,65536]", .help = "tokens that are generated"),
    ROW(COUNT, streams, 1, "[1,256]", .help = "texts that are continued together"),
    ROW(COUNT, threads, 2, "[1,256]", .help = "worker threads"),
    ROW(COUNT, rounds, 5, "[0,64]",
        .help = "rounds of all measurements; 0: the prompt and a token once, and their bytes"),
    ROW(CHOICE, precision, 0, "f32|bf16|f16", .help = "dtype of the computation"),
    ROW(CHOICE, weights, 0, ZF_CONFIG_WEIGHTS, .help = "how weights of products are stored"),
    ROW(FLAG, json, 0, NULL, .help = "print one JSON object"),
    ROW(FLAG, profile, 0, NULL, .help = "print the time by operator"),
    ROW(DESC, device, 0, NULL, .rows = bench_device_rows),
    {.name = NULL}};

int main(int argc, char **argv)
{
    options o = {.model = "160m"};
    const zf_options all = {.rows = rows, .desc = &o};
    int status;
    bool good;
    zf_causal_config config;
    session base;
    decoder d;
    decoder_desc room;
    session_desc b = {.sample = &llm_sample,
                      .config = &config,
                      .purpose = SAMPLE_EVALUATE,
                      .shape = {.batch = 1, .sequence = 1}},
                 s = {.sample = &llm_sample, .config = &config};
    zf_error error = {ZF_OK, ""};
    zf_program_info info;
    round_figures r;
    double first, each, bytes, flops, read, peak;
    if (!bench_options(argc, argv, &all, 1, 1, NULL, &status)) return status;
    const int64_t prompt = o.prompt, tokens = o.tokens, streams = o.streams, rounds = o.rounds;
    const zf_dtype precision = (zf_dtype)o.precision;
    b.device = o.device;
    if (!llm_config_load(o.model, &config, &error) ||
        !zf_config_set_weights(llm_sample.config(), &config, o.weights, &error))
        return fprintf(stderr, "generate: %s\n", error.text), 1;
    room = (decoder_desc){.texts = streams, .context = prompt + tokens + o.profile};
    if (config.positions < room.context) config.positions = room.context;
    b.training.precision.dtype = precision, b.threads = o.threads, b.seed = 1;
    s.share = &base, s.threads = o.threads;
    good = session_open(&base, &b, &error) && decoder_open(&d, &room, &s, NULL, 0, &error);
    if (good && o.profile) {
        good = profile(&d, prompt, tokens, rounds, base.backend, &error);
        if (good) return decoder_close(&d), session_close(&base), 0;
    }
    if (!good ||
        !measure(&d, prompt, tokens, o.threads, precision, rounds,
                 b.device.kind == DEVICE_CPU ? NULL : base.backend, &r, &error))
        return fprintf(stderr, "generate: %s\n", error.text), 1;
    info = zf_program_info_of(d.prompt.program);
    if (!rounds) {
        printf("%s: prompt %.1f s, a token after it %.3f s; caches %zu bytes; planned %.0f bytes, "
               "resident %.0f\n",
               o.model, r.prompt[0], r.token[0], info.cache_bytes, planned_bytes(&base, &d),
               r.resident);
        return decoder_close(&d), session_close(&base), 0;
    }
    bytes = weight_bytes(&d.token, &config) + (double)info.cache_bytes *
                                                  (double)(prompt + tokens / 2) /
                                                  (double)(prompt + tokens);
    flops = info.flops / (double)(d.prompt.shape.batch * d.prompt.shape.sequence) *
            (double)(prompt * streams);
    first = bench_median(r.prompt, rounds), each = bench_median(r.token, rounds);
    read = bench_median(r.read, rounds), peak = bench_median(r.peak, rounds);
    printf(o.json
               ? "{\"model\": \"%s\", \"prompt_tokens_per_s\": %.1f, \"prompt_gflops\": %.1f, "
                 "\"peak_gflops\": %.1f, \"prompt_of_peak\": %.3f, \"tokens_per_s\": %.2f, "
                 "\"read_gbytes_per_s\": %.2f, \"memory_gbytes_per_s\": %.2f, "
                 "\"read_of_memory\": %.3f, \"cache_bytes\": %zu, \"planned_bytes\": %.0f, "
                 "\"resident_bytes\": %.0f}\n"
               : "%s: prompt %.0f tokens/s, %.1f GFLOP/s of a peak of %.1f (%.2f); generation %.2f "
                 "tokens/s, %.2f GB/s read of %.2f that memory gives (%.2f); caches %zu bytes; "
                 "planned %.0f bytes, resident %.0f\n",
           o.model, (double)(prompt * streams) / first, 1e-9 * flops / first, 1e-9 * peak,
           flops / first / peak, (double)streams / each, 1e-9 * bytes / each, 1e-9 * read,
           bytes / each / read, info.cache_bytes, planned_bytes(&base, &d), r.resident);
    decoder_close(&d);
    session_close(&base);
    return 0;
}
