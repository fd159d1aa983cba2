#include "preference.h"
#include "../commands/frame.h"
#include "../model/dataset.h"
#include "../model/session.h"
#include "../options/fail.h"
#include "../ranks/ranks.h"

#include <stdlib.h>
#include <string.h>

/* -------------------------------------------------------------------------------------- data */

typedef struct preference_data {
    pairs pairs;
    uint64_t seed;
    zf_preference_desc desc; /* without what the loss does not have */
} preference_data;

static bool load(dataset *d, const settings *o, const zf_examples_desc *desc, zf_error *error)
{
    preference_data *data = d->own;
    data->seed = (uint64_t)o->seed;
    data->desc = *(const zf_preference_desc *)o->own;
    if (data->desc.loss != ZF_PREFERENCE_SIMPO) data->desc.gamma = 0;
    return dataset_load_pairs(d, o, desc, &data->pairs, error);
}

static bool open_data(dataset *d, const settings *o, const zf_config_facts *facts, void *config,
                      zf_error *error)
{
    (void)config;
    if (!(d->own = calloc(1, sizeof(preference_data))))
        return fail(error, ZF_ERR_NOMEM, "out of memory");
    return dataset_open_examples(d, o, facts, load, error);
}

static void close_data(dataset *d)
{
    preference_data *data = d->own;
    if (data) pairs_free(&data->pairs);
    free(data);
}

/* A pair is two rows, as long as the longest text. */
static void fit_shape(const dataset *d, const settings *o, int64_t parts, sample_shape *shape)
{
    const preference_data *data = d->own;
    (void)o, (void)parts;
    shape->batch *= 2, shape->sequence = data->pairs.longest;
    shape->preference = &data->desc;
}

static int64_t batches(const dataset *d, int64_t examples)
{
    const preference_data *data = d->own;
    const int64_t each = examples / 2;
    return (data->pairs.held_out + each - 1) / each;
}

/* ----------------------------------------------------------------------------------- batches */

typedef struct preference_batch {
    const preference_data *data;
    bool held_out;
    pairs_batch pairs;
    float *weight, *reference; /* room for those of a batch */
} preference_batch;

static void stop(void *user)
{
    preference_batch *b = user;
    if (!b) return;
    pairs_batch_free(&b->pairs);
    free(b->weight);
    free(b->reference);
    free(b);
}

/* Room for a batch of `rows` texts. */
static preference_batch *new_batch(const dataset *d, int64_t rows, zf_error *error)
{
    preference_batch *b = calloc(1, sizeof *b);
    const preference_data *data = d->own;
    if (b && !pairs_batch_new(&b->pairs, rows / 2, data->pairs.longest, error)) {
        stop(b);
        return NULL;
    }
    if (b) {
        const size_t count = (size_t)(rows * data->pairs.longest);
        b->data = data;
        b->weight = malloc((size_t)rows * sizeof *b->weight);
        b->reference = malloc(count * sizeof *b->reference);
    }
    if (b && b->weight && b->reference) return b;
    stop(b);
    return fail(error, ZF_ERR_NOMEM, "out of memory"), NULL;
}

static void *start(const dataset *d, bool held_out, int64_t examples, int64_t first,
                   zf_error *error)
{
    preference_batch *b = new_batch(d, examples, error);
    (void)first;
    if (b) b->held_out = held_out;
    return b;
}

static const void *read_batch(void *user, int64_t step)
{
    preference_batch *b = user;
    pairs_read(&b->data->pairs, &b->pairs, b->held_out, b->data->seed, step * b->pairs.pairs);
    return b;
}

/* --------------------------------------------------------------------------------------- steps */

static batch_counts count(const void *batch)
{
    const preference_batch *b = batch;
    return (batch_counts){b->pairs.filled, b->pairs.filled};
}

/* What the reference says of a row's labels; NULL: it is not known yet. */
static void fill_reference(const preference_batch *b, const float *reference, int64_t row)
{
    const pairs *p = &b->data->pairs;
    const int64_t text = b->pairs.text[row], length = b->pairs.lengths[row];
    float *to = b->reference + row * b->pairs.sequence;
    for (int64_t i = 0; i < b->pairs.sequence; i++)
        to[i] = reference && i < length ? reference[p->at[text] + i] : 0;
}

static zf_status feed(session *s, const void *batch, int64_t part, int64_t parts, bool sums)
{
    const preference_batch *b = batch;
    const int64_t rows = 2 * b->pairs.pairs / parts, first = part * rows,
                  from = first * b->pairs.sequence;
    const size_t bytes = (size_t)(rows * b->pairs.sequence) * sizeof *b->pairs.ids;
    const float each = sums ? 1 : 1 / (float)(b->pairs.filled ? b->pairs.filled : 1);
    zf_status status = session_write(s, "input_ids", b->pairs.ids + from, bytes);
    for (int64_t row = first; row < first + rows; row++) {
        fill_reference(b, s->reference, row);
        b->weight[row / 2] = b->pairs.text[row] >= 0 ? each : 0;
    }
    if (!status) status = session_write(s, "labels", b->pairs.labels + from, bytes);
    if (!status) status = session_write(s, "reference", b->reference + from, bytes);
    if (!status) status = session_write(s, "pair_share", &each, sizeof each);
    return status ? status
                  : session_write(s, "pair_weight", b->weight + first / 2,
                                  (size_t)(rows / 2) * sizeof *b->weight);
}

/* ------------------------------------------------------------------------------------ reference */

static int64_t references(const dataset *d, const settings *o)
{
    const preference_data *data = d->own;
    (void)o;
    return zf_preference_needs_reference(&data->desc) ? data->pairs.tokens : 0;
}

/* Computes log p of this rank's part of a batch, and puts it where the texts are. */
static bool refer_part(session *s, const preference_batch *b, float *logp, float *reference,
                       zf_error *error)
{
    const pairs *p = &b->data->pairs;
    const zf_tensor output = zf_graph_find(s->graph, "logp");
    const int64_t rows = s->shape.batch, first = s->rank * rows, sequence = b->pairs.sequence;
    zf_status status = feed(s, b, s->rank, s->world, false);
    if (!status) status = zf_step(s->program);
    if (!status)
        status = zf_read(s->program, output, logp, (size_t)(rows * sequence) * sizeof *logp);
    if (status) return fail(error, status, "%s", zf_program_error(s->program));
    for (int64_t row = 0; row < rows; row++) {
        const int64_t text = b->pairs.text[first + row], length = b->pairs.lengths[first + row];
        if (text >= 0)
            memcpy(reference + p->at[text], logp + row * sequence, (size_t)length * sizeof *logp);
    }
    return true;
}

/* Each rank computes a part of each batch; the others of that part have zeros. */
static bool refer(session *s, const dataset *d, float *reference, zf_error *error)
{
    const preference_data *data = d->own;
    const int64_t rows = s->shape.batch * s->world;
    preference_batch *b = new_batch(d, rows, error);
    float *logp = b ? malloc((size_t)(rows * b->pairs.sequence) * sizeof *logp) : NULL;
    bool good = logp != NULL;
    if (b && !logp) fail(error, ZF_ERR_NOMEM, "out of memory");
    for (int64_t k = 0; good && k < data->pairs.count; k += rows / 2) {
        pairs_read_file(&data->pairs, &b->pairs, k);
        good = refer_part(s, b, logp, reference, error);
    }
    free(logp);
    stop(b);
    return good && !ranks_add(s->comm, reference, data->pairs.tokens, error);
}

/* --------------------------------------------------------------------------------------- scores */

enum { LOSS, ACCURACY, MARGIN, CHOSEN, REJECTED };

static void print_score(const sample_score *score, const void *config, double unigram_nats,
                        bool exact)
{
    const double *v = score->value;
    (void)config, (void)unigram_nats, (void)exact;
    printf("loss %.4f, accuracy %.1f%% of %lld pairs, margin %.4f, rewards %.4f of chosen and %.4f "
           "of rejected answers\n",
           v[LOSS], 100 * v[ACCURACY], (long long)score->labelled, v[MARGIN], v[CHOSEN],
           v[REJECTED]);
}

const objective preference_objective = {
    .losses = {"loss", "rewards/chosen", "rewards/rejected", "accuracy", "margin"},
    .curve_title = "loss of pairs",
    .hits = {"accuracy", "accurate"},
    .also = "margin",
    .scores = {[LOSS] = {"loss", "loss", false, false},
               [ACCURACY] = {"accuracy", "accuracy", false, true},
               [MARGIN] = {"margin", "margin", false, true},
               [CHOSEN] = {"chosen_reward", "rewards/chosen", false, true},
               [REJECTED] = {"rejected_reward", "rewards/rejected", false, true}},
    .least_sequence = 2,
    .no_dropout = true,
    .frame = ZF_FOLDER_GPT,
    .open_data = open_data,
    .close = close_data,
    .fit_shape = fit_shape,
    .batches = batches,
    .start = start,
    .read = read_batch,
    .stop = stop,
    .references = references,
    .refer = refer,
    .count = count,
    .feed = feed,
    .print = print_score,
};

/* ---------------------------------------------------------------------------------- the command */

int preference_command(const sample_model *sample, int argc, char **argv)
{
    static const settings_default defaults[] = {{"batch", "8"},         {"schedule", "cosine"},
                                                {"lr", "1e-6"},         {"seq", "1024"},
                                                {"weight-decay", "0"}, {NULL, NULL}};
    zf_preference_desc preference = {.beta = 0};
    sample_model with = *sample;
    with.objective = &preference_objective, with.wrong = dataset_wrong_for_pairs;
    return pretrain_command(&with,
                            &(settings_desc){.defaults = defaults,
                                             .own = {.rows = zf_preference_options(),
                                                     .desc = &preference},
                                             .tunes = true,
                                             .usage = "dpo --model DIR --data FILE [OPTIONS]"},
                            argc, argv);
}
