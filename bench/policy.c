/* What training on rewards costs next to training on a text, for a Llama of made-up weights and
 * tokens, each of whose positions counts:
 *
 *     build/bench/policy --model 15m --rows 16 --seq 128 --texts 64 --prompt 32 --tokens 64 --threads 2
 *
 *     scores    log p and entropy of each token (head_logp) next to evaluation of the loss (head_loss)
 *     steps     a step of GRPO next to one of the loss
 *     answers   sampled texts (zf_rollouts_write) next to the same steps with the most likely tokens,
 *               as llm selftest makes them
 *
 * Both of a pair run in turns, in one process; figures are medians over --rounds. With --processor
 * times are those of all processors that the process has used, which other programs disturb less:
 * use it with --threads 1, since threads that wait use one as well. The times of answers then have
 * the prompts in them. */
#define _POSIX_C_SOURCE 200809L
#include "../examples/frame/data/causal_batch.h"
#include "../examples/frame/model/decoder.h"
#include "../examples/llm/model.h"
#include "../zeroflow_llm.h"
#include "figures.h"
#include "options.h"

#include <math.h>

enum { ROUNDS = 256 };

static const char no_words[] = "{\"decoder\": {\"type\": \"Fuse\"}, \"model\": {\"vocab\": {\"a\": "
                               "0}, \"merges\": []}}";

typedef struct options {
    const char *model;
    int64_t rows, sequence, texts, prompt, tokens, threads, rounds, precision;
    bool processor, json;
} options;

#define ROW(kind, member, default_, range, ...)                                                    \
    ZF_OPTION(options, kind, member, default_, range, __VA_ARGS__)

static const zf_option rows[] = {
    ROW(TEXT, model, 0, NULL, .unit = "NAME|FILE", .traits = ZF_OPTION_READS, .topic = "policy",
        .help = "as llm pretrain"),
    ROW(COUNT, rows, 16, "[1,65536]", .help = "of a batch"),
    ROW(COUNT, sequence, 128, "[2,65536]", .flag = "seq", .help = "tokens of a row"),
    ROW(COUNT, texts, 64, "[2,4096]", .help = "that are written together"),
    ROW(COUNT, prompt, 32, "[1,65536]", .help = "tokens of a prompt"),
    ROW(COUNT, tokens, 64, "[2,65536]", .help = "tokens that are written"),
    ROW(COUNT, threads, 2, "[1,256]", .help = "worker threads"),
    ROW(COUNT, rounds, 5, "[1,256]", .help = "of all measurements"),
    ROW(CHOICE, precision, 0, "f32|bf16|f16", .help = "of the computation"),
    ROW(FLAG, processor, 0, NULL, .help = "seconds of processors, not of a clock"),
    ROW(FLAG, json, 0, NULL, .help = "one JSON object"),
    {.name = NULL}};

static double now(const options *o)
{
    struct timespec t;
    if (!o->processor) return bench_now();
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Two things that are compared: seconds of each round, and what both make in a round. */
typedef struct pair {
    const char *name, *first, *second;
    double tokens;
    double seconds[2][ROUNDS];
} pair;

/* ------------------------------------------------------------------------- scores and steps */

typedef struct pass {
    session s;
    bool open, policy;
} pass;

static bool pass_open(pass *p, const options *o, const zf_causal_config *config, sample_purpose purpose,
                      const policy_graph *policy, zf_error *error)
{
    const session_desc d = {.sample = &llm_sample,
                            .purpose = purpose,
                            .config = config,
                            .shape = {.batch = o->rows, .sequence = o->sequence, .policy = policy},
                            .training = {.clip = 1, .precision.dtype = (zf_dtype)o->precision},
                            .threads = o->threads,
                            .seed = 1};
    *p = (pass){.policy = policy != NULL};
    return p->open = session_open(&p->s, &d, error);
}

/* What a policy's step takes of answers: the first ratios are near 1. */
static zf_status feed_policy(session *s, const zf_causal_batch *b, const float *numbers)
{
    const size_t cells = (size_t)(b->examples * b->sequence);
    const float *advantage = numbers, *old = numbers + cells, *one = numbers + 2 * cells,
                *share = numbers + 3 * cells;
    zf_status status = session_write(s, "input_ids", b->ids, cells * sizeof *b->ids);
    if (!status) status = session_write(s, "labels", b->labels, cells * sizeof *b->labels);
    if (!status) status = session_write(s, "advantage", advantage, cells * sizeof *numbers);
    if (!status) status = session_write(s, "old", old, cells * sizeof *numbers);
    if (!status) status = session_write(s, "correction", one, cells * sizeof *numbers);
    return status ? status
                  : session_write(s, "weight", share, (size_t)b->examples * sizeof *numbers);
}

/* Seconds of a step, or a negative number with *error. The parameters stay. */
static double pass_run(pass *p, const options *o, const zf_causal_batch *b, const float *numbers,
                       zf_error *error)
{
    const float lr = 0;
    const double start = now(o);
    zf_status status = p->policy ? feed_policy(&p->s, b, numbers) : session_feed(&p->s, b, false);
    if (!status && zf_valid(p->s.lr)) status = zf_write(p->s.program, p->s.lr, &lr, sizeof lr);
    if (!status) status = zf_step(p->s.program);
    if (!status) return now(o) - start;
    *error = (zf_error){.status = status};
    snprintf(error->text, sizeof error->text, "%s", zf_program_error(p->s.program));
    return -1;
}

/* Rounds of both, after one that meets a cold memory. */
static bool compare(pass p[2], const options *o, const zf_causal_batch *b, const float *numbers,
                    pair *out, zf_error *error)
{
    out->tokens = (double)(b->examples * b->sequence);
    for (int64_t n = -1; n < o->rounds; n++)
        for (int k = 0; k < 2; k++) {
            const double seconds = pass_run(&p[k], o, b, numbers, error);
            if (seconds < 0) return false;
            if (n >= 0) out->seconds[k][n] = seconds;
        }
    return true;
}

static bool measure_passes(const options *o, const zf_causal_config *config, const zf_causal_batch *b,
                           const float *numbers, sample_purpose purpose, pair *out, zf_error *error)
{
    const policy_graph policy = {.temperature = 1};
    pass p[2] = {{.open = false}, {.open = false}};
    const bool good = pass_open(&p[0], o, config, purpose, NULL, error) &&
                      pass_open(&p[1], o, config, purpose, &policy, error) &&
                      compare(p, o, b, numbers, out, error);
    for (int k = 0; k < 2; k++)
        if (p[k].open) session_close(&p[k].s);
    return good;
}

/* Made-up tokens, and what a policy needs besides; false out of memory. */
static bool make_up(const options *o, int64_t vocab, zf_causal_batch *b, float **numbers,
                    zf_error *error)
{
    const int64_t cells = o->rows * o->sequence;
    if (!zf_causal_batch_new(b, o->rows, o->sequence, false, error)) return false;
    *numbers = calloc((size_t)(3 * cells + o->rows), sizeof **numbers);
    if (!*numbers) return false;
    b->labelled = cells;
    for (int64_t i = 0; i < cells; i++) {
        b->ids[i] = (int32_t)(bert_mix((uint64_t)i) % (uint64_t)vocab);
        b->labels[i] = (int32_t)(bert_mix((uint64_t)i + 1) % (uint64_t)vocab);
        (*numbers)[i] = i % 3 ? 1 : -1;
        (*numbers)[cells + i] = (float)-log((double)vocab);
        (*numbers)[2 * cells + i] = 1;
    }
    for (int64_t i = 0; i < o->rows; i++) (*numbers)[3 * cells + i] = 1 / (float)cells;
    return true;
}

/* -------------------------------------------------------------------------------- answers */

static bool make_prompts(const options *o, int64_t vocab, zf_prompts *data)
{
    data->at = calloc((size_t)o->texts, sizeof *data->at);
    if (!data->at) return false;
    for (data->count = 0; data->count < o->texts; data->count++) {
        zf_prompt *p = &data->at[data->count];
        p->number = data->count, p->line = data->count + 1;
        for (int64_t i = 0; i < o->prompt; i++)
            zf_ids_add(&p->ids,
                       (int32_t)(bert_mix((uint64_t)(p->number * o->prompt + i)) % (uint64_t)vocab));
        if (p->ids.failed) return false;
    }
    return true;
}

/* Seconds of the tokens after the first of each text, or a negative number with *error: sampled. */
static double sample(decoder *d, const options *o, const zf_prompts *data, const int64_t *numbers,
                     const zf_tokenizer *tokens, int64_t round, zf_error *error)
{
    const int32_t none = -1;
    const zf_answer_desc how = {.tokenizer = tokens, .ends = &none, .end_count = 1};
    const zf_rollout_desc desc = {.decoder = &d->steps,
                                  .how = &how,
                                  .sampling = {.temperature = 1},
                                  .iteration = round,
                                  .group = 1,
                                  .tokens = o->tokens};
    zf_rollouts r;
    double start = now(o), prompt = d->steps.prompt_seconds;
    if (!zf_rollouts_write(&r, data, numbers, data->count, &desc, error)) return -1;
    start = now(o) - start, prompt = d->steps.prompt_seconds - prompt;
    zf_rollouts_free(&r);
    return start - (o->processor ? 0 : prompt);
}

/* The same of the most likely tokens. */
static double select_tokens(decoder *d, const options *o, const zf_prompts *data,
                            const int32_t **from, int64_t *counts, int32_t *next, zf_error *error)
{
    const int64_t vocab = d->steps.vocab;
    double start = now(o);
    for (int64_t k = 0; k < data->count; k++) {
        zf_decoder_rewind(&d->steps, k, 0);
        from[k] = data->at[k].ids.at, counts[k] = o->prompt;
    }
    if (!zf_decoder_add(&d->steps, from, counts, error)) return -1;
    if (!o->processor) start = now(o);
    for (int64_t n = 0; n + 1 < o->tokens; n++) {
        for (int64_t k = 0; k < data->count; k++) {
            const float *logits = d->steps.logits + k * vocab;
            next[k] = 0;
            for (int32_t i = 0; i < vocab; i++)
                if (logits[i] > logits[next[k]]) next[k] = i;
            from[k] = &next[k], counts[k] = 1;
        }
        if (!zf_decoder_add(&d->steps, from, counts, error)) return -1;
    }
    return now(o) - start;
}

/* What a decoder and its prompts need; freed by answers_close. */
typedef struct answers {
    session base;
    decoder d;
    bool has_base, has_decoder;
    zf_tokenizer *tokens;
    zf_prompts data;
    int64_t *numbers, *counts;
    const int32_t **from;
    int32_t *next;
} answers;

static bool answers_open(answers *a, const options *o, const zf_causal_config *config, zf_error *error)
{
    const session_desc b = {.sample = &llm_sample,
                            .config = config,
                            .purpose = SAMPLE_EVALUATE,
                            .shape = {.batch = 1, .sequence = 1},
                            .training.precision.dtype = (zf_dtype)o->precision,
                            .threads = o->threads,
                            .seed = 1};
    session_desc s = {.sample = &llm_sample, .config = config, .share = &a->base};
    const decoder_desc room = {.texts = o->texts, .context = o->prompt + o->tokens, .chunk = 32};
    *a = (answers){.tokens = zf_tokenizer_parse(no_words, sizeof no_words - 1, "none", error)};
    a->numbers = calloc((size_t)o->texts, sizeof *a->numbers);
    a->counts = calloc((size_t)o->texts, sizeof *a->counts);
    a->from = calloc((size_t)o->texts, sizeof *a->from);
    a->next = calloc((size_t)o->texts, sizeof *a->next);
    if (!a->tokens || !a->numbers || !a->counts || !a->from || !a->next ||
        !make_prompts(o, config->vocab, &a->data))
        return false;
    for (int64_t k = 0; k < o->texts; k++) a->numbers[k] = k;
    a->has_base = session_open(&a->base, &b, error);
    return a->has_base && (a->has_decoder = decoder_open(&a->d, &room, &s, NULL, 0, error));
}

static void answers_close(answers *a)
{
    if (a->has_decoder) decoder_close(&a->d);
    if (a->has_base) session_close(&a->base);
    for (int64_t k = 0; k < a->data.count; k++) zf_ids_free(&a->data.at[k].ids);
    free(a->data.at);
    zf_tokenizer_free(a->tokens);
    free(a->numbers), free(a->counts), free(a->from), free(a->next);
}

static bool measure_answers(const options *o, const zf_causal_config *config, pair *out, zf_error *error)
{
    answers a;
    bool good = answers_open(&a, o, config, error);
    out->tokens = (double)(o->texts * (o->tokens - 1));
    for (int64_t n = -1; n < o->rounds && good; n++) {
        const double greedy = select_tokens(&a.d, o, &a.data, a.from, a.counts, a.next, error),
                     sampled = sample(&a.d, o, &a.data, a.numbers, a.tokens, n + 1, error);
        good = greedy >= 0 && sampled >= 0;
        if (n >= 0) out->seconds[0][n] = greedy, out->seconds[1][n] = sampled;
    }
    answers_close(&a);
    return good;
}

/* ------------------------------------------------------------------------------------ figures */

static void print(pair *p, const options *o, bool last)
{
    double ratios[ROUNDS], each[2], ratio;
    for (int64_t n = 0; n < o->rounds; n++) ratios[n] = p->seconds[0][n] / p->seconds[1][n];
    ratio = bench_median(ratios, o->rounds);
    for (int k = 0; k < 2; k++) each[k] = p->tokens / bench_median(p->seconds[k], o->rounds);
    if (o->json)
        printf("\"%s\": {\"%s\": %.1f, \"%s\": %.1f, \"ratio\": %.4f, \"least\": %.4f, "
               "\"most\": %.4f}%s",
               p->name, p->first, each[0], p->second, each[1], ratio, ratios[0],
               ratios[o->rounds - 1], last ? "}\n" : ", ");
    else
        printf("%s: %s %.0f tokens/s, %s %.0f tokens/s; ratio of rates %.3f (%.3f to %.3f)\n",
               p->name, p->first, each[0], p->second, each[1], ratio, ratios[0],
               ratios[o->rounds - 1]);
}

int main(int argc, char **argv)
{
    options o = {.model = "15m"};
    const zf_options all = {.rows = rows, .desc = &o};
    pair scores = {.name = "scores", .first = "head_loss", .second = "head_logp"},
         steps = {.name = "steps", .first = "head_loss", .second = "head_logp"},
         texts = {.name = "answers", .first = "most_likely", .second = "sampled"};
    zf_error error = {ZF_OK, ""};
    zf_causal_config config;
    zf_causal_batch b = {.ids = NULL};
    float *numbers = NULL;
    int status;
    bool good;
    if (!bench_options(argc, argv, &all, 1, 1, NULL, &status)) return status;
    good = llm_config_load(o.model, &config, &error);
    if (good && config.positions < o.prompt + o.tokens) config.positions = o.prompt + o.tokens;
    if (good && config.positions < o.sequence) config.positions = o.sequence;
    good = good && make_up(&o, config.vocab, &b, &numbers, &error) &&
           measure_passes(&o, &config, &b, numbers, SAMPLE_EVALUATE, &scores, &error) &&
           measure_passes(&o, &config, &b, numbers, SAMPLE_TRAIN, &steps, &error) &&
           measure_answers(&o, &config, &texts, &error);
    zf_causal_batch_free(&b);
    free(numbers);
    if (!good)
        return fprintf(stderr, "policy: %s\n", error.status ? error.text : "out of memory"), 1;
    if (o.json) printf("{\"model\": \"%s\", ", o.model);
    print(&scores, &o, false), print(&steps, &o, false), print(&texts, &o, true);
    return 0;
}
