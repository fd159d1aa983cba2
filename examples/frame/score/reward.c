#include "reward.h"
#include "score_batch.h"
#include "../commands/frame.h"
#include "../model/dataset.h"
#include "../options/fail.h"

#include <math.h>
#include <stdlib.h>

#define CHANGES ZF_OPTION_CHANGES

typedef struct reward_options {
    double center;  /* of the loss (score.h) */
    bool positions; /* the loss of DeepSpeed-Chat */
} reward_options;

static const zf_option reward_rows[] = {
    ZF_OPTION(
        reward_options, NUMBER, center, 0, "[0,1000000]", .topic = "loss", .traits = CHANGES,
        .unit = "C",
        .help = "adds C (chosen + rejected)^2 to the loss of a pair, so that scores stay around 0"),
    ZF_OPTION(reward_options, FLAG, positions, 0, NULL, .traits = CHANGES,
              .help =
                  "the loss of DeepSpeed-Chat: the mean over positions, from the first token that "
                  "differs to the end of the longer text; else that of scores alone"),
    {.name = NULL}};

/* -------------------------------------------------------------------------------------- data */

/* dataset.own */
typedef struct reward_data {
    pairs pairs;
    const reward_options *options;
    uint64_t seed;
    int32_t padding;
} reward_data;

static const reward_options *options_of(const settings *o)
{
    static const reward_options none = {.center = 0};
    return o->own ? o->own : &none;
}

static bool load_pairs(dataset *d, const settings *o, const zf_examples_desc *desc, zf_error *error)
{
    reward_data *data = d->own;
    return dataset_load_pairs(d, o, desc, &data->pairs, error);
}

static bool open_data(dataset *d, const settings *o, const zf_config_facts *facts, void *config,
                      zf_error *error)
{
    reward_data *data;
    (void)config;
    if (!(data = d->own = calloc(1, sizeof *data)))
        return fail(error, ZF_ERR_NOMEM, "out of memory");
    data->options = options_of(o), data->seed = (uint64_t)o->seed;
    data->padding = facts->pad && *facts->pad >= 0 ? (int32_t)*facts->pad : 0;
    return dataset_open_examples(d, o, facts, load_pairs, error);
}

static void close_data(dataset *d)
{
    reward_data *data = d->own;
    if (data) pairs_free(&data->pairs);
    free(data);
}

/* Rows are as long as the longest text. */
static void fit_shape(const dataset *d, const settings *o, int64_t parts, sample_shape *shape)
{
    const reward_data *data = d->own;
    (void)parts;
    shape->predictions = shape->batch; /* room for two numbers of each pair */
    shape->sequence = data->pairs.longest;
    shape->rows = options_of(o)->positions ? SAMPLE_PADDED : SAMPLE_FULL;
}

static int64_t batches(const dataset *d, int64_t examples)
{
    const reward_data *data = d->own;
    return (data->pairs.held_out + examples - 1) / examples;
}

typedef struct reader {
    const reward_data *data;
    bool held_out;
    score_batch batch;
} reader;

static void stop(void *user)
{
    reader *r = user;
    if (r) score_batch_free(&r->batch);
    free(r);
}

static void *start(const dataset *d, bool held_out, int64_t examples, int64_t first,
                   zf_error *error)
{
    reader *r = calloc(1, sizeof *r);
    (void)first;
    if (!r) return fail(error, ZF_ERR_NOMEM, "out of memory"), NULL;
    r->data = d->own, r->held_out = held_out;
    if (!score_batch_new(&r->batch, examples, r->data->pairs.longest, r->data->options->positions,
                         error))
        return free(r), NULL;
    r->batch.padding = r->data->padding, r->batch.center = (float)r->data->options->center;
    return r;
}

static const void *read_batch(void *user, int64_t step)
{
    reader *r = user;
    score_batch *b = &r->batch;
    const pairs *all = &r->data->pairs;
    pairs_read(all, &b->pairs, r->held_out, r->data->seed, step * b->pairs.pairs);
    for (int64_t p = 0; p < b->pairs.pairs; p++) {
        const int64_t text = b->pairs.text[2 * p];
        b->margin[p] = text < 0 ? 0 : (float)all->margin[text / 2];
    }
    score_batch_finish(b);
    return b;
}

/* -------------------------------------------------------------------------------------- steps */

static batch_counts count(const void *batch)
{
    const score_batch *b = batch;
    return (batch_counts){b->pairs.filled, b->pairs.filled};
}

/* The places of last tokens, from the beginning of the part's rows on. A row that is empty has
 * one. */
static const int32_t *last_of(session *s, const pairs_batch *b, int64_t first, int64_t rows)
{
    for (int64_t row = 0; row < rows; row++) {
        const int32_t length = b->lengths[first + row];
        s->labelled[row] = (int32_t)(row * b->sequence) + (length ? length - 1 : 0);
    }
    return s->labelled;
}

static zf_status feed_positions(session *s, const score_batch *b, int64_t first, int64_t count,
                                bool sums)
{
    const int64_t tokens = b->pairs.sequence;
    const float *places = sums ? b->sum_places : b->mean_places;
    zf_status status = session_write(s, "attention_mask", b->mask + 2 * first * tokens,
                                     (size_t)(2 * count * tokens));
    return status ? status
                  : session_write(s, "places", places + first * tokens,
                                  (size_t)(count * tokens) * sizeof *places);
}

static zf_status feed(session *s, const void *batch, int64_t part, int64_t parts, bool sums)
{
    const score_batch *b = batch;
    const int64_t here = b->pairs.pairs / parts, first = part * here, rows = 2 * here,
                  tokens = b->pairs.sequence;
    const size_t floats = (size_t)here * sizeof(float);
    zf_status status = session_write(s, "input_ids", b->pairs.ids + 2 * first * tokens,
                                     (size_t)(rows * tokens) * sizeof *b->pairs.ids);
    if (!status)
        status = session_write(s, "last", last_of(s, &b->pairs, 2 * first, rows),
                               (size_t)rows * sizeof *s->labelled);
    if (!status) status = session_write(s, "weight", (sums ? b->sum : b->mean) + first, floats);
    if (!status) status = session_write(s, "margin", b->margin + first, floats);
    if (!status) status = session_write(s, "center", &b->center, sizeof b->center);
    return status || !b->mask ? status : feed_positions(s, b, first, here, sums);
}

/* ------------------------------------------------------------------------------------- scores */

enum { LOSS, ACCURACY, MARGIN, CHOSEN, SQUARES };

/* The deviation of chosen scores, of a sample. */
static double deviation_of(const sample_score *score)
{
    const double n = (double)score->labelled, mean = score->value[CHOSEN],
                 variance = score->value[SQUARES] - mean * mean;
    return n > 1 && variance > 0 ? sqrt(variance * n / (n - 1)) : 0;
}

static void print_score(const sample_score *score, const void *config, double unigram_nats,
                        bool exact)
{
    const double *v = score->value;
    (void)config, (void)unigram_nats, (void)exact;
    printf("accuracy %.1f%% of %lld pairs, margin %.4f, chosen scores %.4f +- %.4f; loss %.4f\n",
           100 * v[ACCURACY], (long long)score->labelled, v[MARGIN], v[CHOSEN], deviation_of(score),
           v[LOSS]);
}

static void describe(const sample_score *score, zf_json_writer *w)
{
    zf_json_begin_object(w);
    zf_json_put_int_member(w, "pairs", score->labelled);
    zf_json_put_double_member(w, "accuracy", score->value[ACCURACY]);
    zf_json_put_double_member(w, "margin", score->value[MARGIN]);
    zf_json_put_double_member(w, "mean", score->value[CHOSEN]);
    zf_json_put_double_member(w, "deviation", deviation_of(score));
    zf_json_end(w);
}

const objective reward_objective = {
    .losses = {"loss"},
    .curve_title = "loss of pairs",
    .hits = {"accuracy", "accurate"},
    .scores = {{"loss", "loss", false, false},
               {"accuracy", "accurate", false, true},
               {"margin", "margins", false, true},
               {"chosen_score", "chosen", false, true},
               {"chosen_square", "squares", false, true}},
    .least_sequence = 1,
    .scores_texts = true,
    .frame = ZF_FOLDER_GPT,
    .open_data = open_data,
    .close = close_data,
    .fit_shape = fit_shape,
    .batches = batches,
    .start = start,
    .read = read_batch,
    .stop = stop,
    .count = count,
    .feed = feed,
    .print = print_score,
    .describe = describe,
};

/* ---------------------------------------------------------------------------------- the command */

int reward_command(const sample_model *sample, int argc, char **argv)
{
    static const settings_default defaults[] = {{"batch", "8"},         {"schedule", "cosine"},
                                                {"lr", "1e-5"},         {"seq", "1024"},
                                                {"weight-decay", "0"}, {NULL, NULL}};
    reward_options own = {.center = 0};
    sample_model with = *sample;
    with.objective = &reward_objective, with.wrong = dataset_wrong_for_pairs;
    return pretrain_command(&with,
                            &(settings_desc){.defaults = defaults,
                                             .own = {.rows = reward_rows, .desc = &own},
                                             .tunes = true,
                                             .usage = "reward --model DIR --data FILE [OPTIONS]"},
                            argc, argv);
}
