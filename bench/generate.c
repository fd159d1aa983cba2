/* Generation by a Llama of made-up weights: tokens per second of the prompt and of one stream, the
 * bytes of weights and caches that a token reads per second, beside what this machine's memory gives.
 *
 *     build/bench/generate --model 160m|15m|... --prompt 256 --tokens 64 --threads 2
 *                          [--precision f32|bf16|f16] [--weights int8|int4] [--streams 1] [--json]
 *
 * Times are medians of the steps. Memory is read by as many threads, 512 MiB of 2 MiB pages where the
 * system gives them. */
#define _GNU_SOURCE
#include "../examples/common/causal_batch.h"
#include "../examples/common/decoder.h"
#include "../examples/common/options.h"
#include "../examples/llm/model.h"
#include "figures.h"
#include "peak.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

/* ------------------------------------------------------------------------------- memory */

enum { READ_BYTES = 512 << 20, READ_TURNS = 5 };

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

/* Bytes per second that `threads` threads read, the best of several turns; 0 where it cannot be
 * measured. */
static double read_rate(int64_t threads)
{
    void *memory = mmap(NULL, READ_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    reading parts[PEAK_THREADS];
    pthread_t ids[PEAK_THREADS];
    double best = 0;
    if (memory == MAP_FAILED) return 0;
    madvise(memory, READ_BYTES, MADV_HUGEPAGE);
    memset(memory, 1, READ_BYTES);
    for (int turn = 0; turn < READ_TURNS; turn++) {
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
    munmap(memory, READ_BYTES);
    return best;
}

/* --------------------------------------------------------------------------- generation */

/* Bytes of weights that a token reads: all but rows of an embedding that is no head. */
static double weight_bytes(const session *s, const llm_config *c)
{
    double bytes = 0, table = (double)(c->vocab * c->hidden) * (s->dtype == ZF_F32 ? 4 : 2);
    for (int32_t k = 0; k < zf_store_count(zf_program_store(s->program)); k++) {
        zf_stored of = zf_store_at(zf_program_store(s->program), k);
        bytes += (double)zf_shape_count(of.shape) * (double)zf_dtype_size(of.dtype);
    }
    return c->tied ? bytes : bytes - table;
}

/* Adds `count` tokens to each text; seconds, or a negative number with *error. */
static double add(decoder *d, int64_t count, zf_error *error)
{
    static int32_t ids[1 << 16];
    const int32_t *from[PEAK_THREADS];
    int64_t counts[PEAK_THREADS];
    double start = bench_now();
    for (int64_t i = 0; i < count; i++) ids[i] = (int32_t)(i * 7 % d->vocab);
    for (int64_t k = 0; k < d->texts; k++) from[k] = ids, counts[k] = count;
    return decoder_add(d, from, counts, error) ? bench_now() - start : -1;
}

int main(int argc, char **argv)
{
    const char *model = "160m", *rest;
    int64_t prompt = 256, tokens = 64, precision = ZF_F32, streams = 1, threads = 2, few = 0;
    bool json = false;
    llm_config config;
    session base;
    decoder d;
    decoder_desc room;
    session_desc b = {.sample = &llm_sample,
                      .config = &config,
                      .purpose = SAMPLE_EVALUATE,
                      .shape = {.batch = 1, .sequence = 1}},
                 s = {.sample = &llm_sample, .config = &config};
    const option_row rows[] = {
        {"model", OPTION_TEXT, "NAME|FILE", &model, 0, 0, "as llm pretrain"},
        {"prompt", OPTION_COUNT, "N", &prompt, 1, 1 << 16, "tokens of the prompt"},
        {"tokens", OPTION_COUNT, "N", &tokens, 1, 1 << 16, "tokens that are generated"},
        {"streams", OPTION_COUNT, "N", &streams, 1, PEAK_THREADS, "texts that go on together"},
        {"threads", OPTION_COUNT, "N", &threads, 1, PEAK_THREADS, "workers"},
        {"precision", OPTION_CHOICE, "f32|bf16|f16", &precision, 0, 0, "it computes in"},
        {"weights", OPTION_CHOICE, DECODER_WEIGHTS, &few, 0, 0, "of products"},
        {"json", OPTION_FLAG, NULL, &json, 0, 0, "one JSON object"},
        {NULL, OPTION_FLAG, NULL, NULL, 0, 0, NULL},
    };
    char text[512];
    int count;
    zf_error error = {ZF_OK, ""};
    zf_program_info info;
    double *times, first, each, bytes, cache, read, flops;
    options_result result = options_parse(argc, argv, rows, &rest, 1, &count, text, sizeof text);
    if (result != OPTIONS_GOOD || count) {
        if (result == OPTIONS_BAD) fprintf(stderr, "generate: %s\n", text);
        options_print(stdout, rows);
        return result == OPTIONS_HELP ? 0 : 2;
    }
    if (!llm_config_load(model, &config, &error))
        return fprintf(stderr, "generate: %s\n", error.text), 1;
    if (config.positions < prompt + tokens) config.positions = prompt + tokens;
    b.dtype = (zf_dtype)precision, b.threads = threads, b.seed = 1;
    s.share = &base, s.threads = threads;
    room = (decoder_desc){
        .texts = streams, .context = prompt + tokens, .bits = decoder_bits(few)};
    if (!session_open(&base, &b, &error) ||
        !decoder_open(&d, &room, &s, NULL, 0, &error))
        return fprintf(stderr, "generate: %s\n", error.text), 1;
    if (!(times = calloc((size_t)tokens, sizeof *times))) return 1;
    if (add(&d, prompt, &error) < 0) return fprintf(stderr, "generate: %s\n", error.text), 1;
    for (int64_t k = 0; k < streams; k++) decoder_rewind(&d, k, 0);
    if ((first = add(&d, prompt, &error)) < 0)
        return fprintf(stderr, "generate: %s\n", error.text), 1;
    for (int64_t n = 0; n < tokens; n++)
        if ((times[n] = add(&d, 1, &error)) < 0)
            return fprintf(stderr, "generate: %s\n", error.text), 1;
    each = bench_median(times, tokens);
    info = zf_program_info_of(d.prompt.program);
    bytes = weight_bytes(&d.token, &config);
    cache = (double)info.cache_bytes * (double)(prompt + tokens / 2) / (double)(prompt + tokens);
    flops = info.flops / (double)(d.prompt.shape.batch * d.prompt.shape.sequence);
    read = read_rate(threads);
    printf(json ? "{\"model\": \"%s\", \"prompt_tokens_per_s\": %.1f, \"prompt_gflops\": %.1f, "
                  "\"tokens_per_s\": %.2f, \"read_gbytes_per_s\": %.2f, \"memory_gbytes_per_s\": "
                  "%.2f, \"cache_bytes\": %zu}\n"
                : "%s: prompt %.0f tokens/s, %.1f GFLOP/s; generation %.2f tokens/s, %.2f GB/s read "
                  "of %.2f that memory gives; caches %zu bytes\n",
           model, (double)(prompt * streams) / first,
           1e-9 * flops * (double)(prompt * streams) / first, (double)streams / each,
           1e-9 * (bytes + cache) / each, 1e-9 * read, info.cache_bytes);
    decoder_close(&d);
    session_close(&base);
    free(times);
    return 0;
}
