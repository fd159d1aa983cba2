/* The commands finetune and eval, and what finetune trains for. */
#include "classify.h"
#include "../commands.h"
#include "../../frame/commands/frame.h"
#include "../../frame/options/fail.h"

#include <stdlib.h>
#include <string.h>

static const classify_options *options_of(const settings *o)
{
    static const classify_options none = {.task = 0};
    return o->own ? o->own : &none;
}

/* -------------------------------------------------------------------------------------- data */

/* dataset.own */
typedef struct classify_data {
    texts texts;
    uint64_t seed;
    int64_t padding;
} classify_data;

bool classify_load(dataset *d, texts *t, const settings *o, const zf_config_facts *facts,
                   const texts_desc *desc, zf_error *error)
{
    const zf_wordpiece_options options = tokenizing_options(&o->words);
    zf_examples_desc e = {.end = -1,
                       .vocab = *facts->vocab,
                       .sequence = o->seq,
                       .evaluates = o->evaluates};
    texts_desc whole = *desc;
    zf_tokenizer *tokens = NULL;
    bool good;
    whole.examples = &e;
    if (zf_folder_is(o->tokenizer) && zf_folder_has_bpe(o->tokenizer)) {
        good = (e.tokens = tokens = zf_tokenizer_open(o->tokenizer, error)) &&
               zf_folder_texts_read(&d->texts, o->tokenizer, NULL, error);
    } else {
        good = (e.words = d->vocab = zf_folder_vocab(o->tokenizer, &options, error)) != NULL;
    }
    good = good && texts_load(t, o->data, &whole, error);
    zf_tokenizer_free(tokens);
    return good;
}

static bool open_data(dataset *d, const settings *o, const zf_config_facts *facts, void *config,
                      zf_error *error)
{
    const classify_options *own = options_of(o);
    bert_config *c = config;
    classify_data *data = d->own = calloc(1, sizeof *data);
    const bool regresses = o->evaluates ? c->task == BERT_REGRESSES : own->task != 0;
    const texts_desc desc = {.text = own->text ? own->text : "text",
                             .pair = own->pair,
                             .label = own->label ? own->label : "label",
                             .two_separators = bert_family_of(c)->two_separators};
    if (!data) return fail(error, ZF_ERR_NOMEM, "out of memory");
    if (o->evaluates && !c->task)
        return fail(error, ZF_ERR_MISMATCH, "%s has no labels: finetune trains a model for them",
                    o->load);
    if (!classify_load(d, &data->texts, o, facts, &desc, error) ||
        !texts_take_labels(&data->texts, c, regresses, o->data, error))
        return false;
    data->seed = (uint64_t)o->seed, data->padding = c->pad < 0 ? 0 : c->pad;
    d->tokens = data->texts.at[data->texts.count], d->documents = data->texts.count;
    d->held_out = data->texts.held_out, d->cut = data->texts.cut;
    d->digest = data->texts.digest | 1, d->begins = data->texts.begins | 1;
    return true;
}

static void close_data(dataset *d)
{
    classify_data *data = d->own;
    if (data) texts_free(&data->texts);
    free(data);
}

static void fit_shape(const dataset *d, const settings *o, int64_t parts, sample_shape *shape)
{
    const classify_data *data = d->own;
    (void)o, (void)parts;
    shape->predictions = shape->batch;
    shape->sequence = data->texts.longest;
}

static int64_t batches(const dataset *d, int64_t examples)
{
    const classify_data *data = d->own;
    return (data->texts.held_out + examples - 1) / examples;
}

typedef struct reader {
    const classify_data *data;
    bool held_out;
    classify_batch batch;
} reader;

static void stop(void *user)
{
    reader *r = user;
    if (r) classify_batch_free(&r->batch);
    free(r);
}

static void *start(const dataset *d, bool held_out, int64_t examples, int64_t first,
                   zf_error *error)
{
    const classify_data *data = d->own;
    reader *r = calloc(1, sizeof *r);
    (void)first;
    if (!r) return fail(error, ZF_ERR_NOMEM, "out of memory"), NULL;
    r->data = data, r->held_out = held_out;
    if (classify_batch_new(&r->batch, examples, data->texts.longest, data->padding, error)) return r;
    free(r);
    return NULL;
}

/* Each epoch has all texts that are not held out, in an order drawn by the seed. */
static const void *read_batch(void *user, int64_t step)
{
    reader *r = user;
    const texts *t = &r->data->texts;
    classify_batch *b = &r->batch;
    const int64_t trained = t->count - t->held_out;
    b->filled = 0;
    for (int64_t row = 0; row < b->rows; row++) {
        const int64_t at = step * b->rows + row;
        int64_t text = -1;
        if (!r->held_out) text = t->order[t->held_out + zf_examples_drawn(at, trained, r->data->seed)];
        else if (at < t->held_out) text = t->order[at];
        classify_batch_put(b, t, row, text);
    }
    return b;
}

/* -------------------------------------------------------------------------------------- steps */

static batch_counts count(const void *batch)
{
    const classify_batch *b = batch;
    return (batch_counts){b->filled, b->filled};
}

static zf_status feed(session *s, const void *batch, int64_t part, int64_t parts, bool sums)
{
    const classify_batch *b = batch;
    const int64_t here = b->rows / parts;
    const float each = 1 / (float)(b->filled ? b->filled : 1);
    return classify_feed(s, b, part * here, here, sums ? 1 : each);
}

enum { LOSS, ACCURACY, DISTANCE };

static void print_score(const sample_score *score, const void *config, double unigram_nats,
                        bool exact)
{
    const bert_config *c = config;
    (void)unigram_nats, (void)exact;
    if (c->task == BERT_REGRESSES)
        printf("mean squared error %.6g, mean distance %.6g of %lld texts\n", score->value[LOSS],
               score->value[DISTANCE], (long long)score->labelled);
    else
        printf("accuracy %.1f%% of %lld texts; loss %.4f\n", 100 * score->value[ACCURACY],
               (long long)score->labelled, score->value[LOSS]);
}

static const char *head(const void *config) { return bert_family_of(config)->labels; }

const objective classify_objective = {
    .losses = {"loss"},
    .curve_title = "loss of texts",
    .scores = {{"loss", "loss", false, false},
               {"accuracy", "accurate", false, true},
               {"distance", "distance", false, true}},
    .least_sequence = 3,
    .head = head,
    .frame = ZF_FOLDER_BERT,
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
};

/* ---------------------------------------------------------------------------------- the command */

static const char *wrong(const settings *o)
{
    if (o->corpus || o->batch_file || !o->data) return "texts with labels are needed: --data FILE";
    if (o->chat || o->chat_vars || o->date) return "--chat and its options are for conversations";
    return o->alone ? "--alone: each text has a row of its own already" : NULL;
}

/* Those of finetune; without the first, of eval. */
static const zf_option rows[] = {
    ZF_OPTION(classify_options, CHOICE, task, 0, "classify|regress", .topic = "data",
              .traits = ZF_OPTION_CHANGES,
              .help = "labels of --data are classes, or numbers"),
    ZF_OPTION(classify_options, TEXT, text, 0, NULL, .unit = "COLUMN", .traits = ZF_OPTION_CHANGES,
              .help = "column of --data (CSV with a header line, TSV, or JSON Lines) with the text; "
                      "else text"),
    ZF_OPTION(classify_options, TEXT, pair, 0, NULL, .unit = "COLUMN", .traits = ZF_OPTION_CHANGES,
              .help = "column with a second text"),
    ZF_OPTION(classify_options, TEXT, label, 0, NULL, .unit = "COLUMN",
              .traits = ZF_OPTION_CHANGES, .help = "column with the label; else label"),
    {.name = NULL}};

int bert_command_finetune(int argc, char **argv)
{
    static const settings_default defaults[] = {
        {"batch", "32"}, {"lr", "5e-5"}, {"seq", "128"}, {NULL, NULL}};
    classify_options own = {.task = 0};
    sample_model with = bert_sample;
    with.objective = &classify_objective, with.wrong = wrong, with.configure = NULL;
    with.first = NULL;
    return pretrain_command(&with,
                            &(settings_desc){.defaults = defaults,
                                             .own = {.rows = rows, .desc = &own},
                                             .tunes = true,
                                             .usage = "finetune --model DIR --data FILE [OPTIONS]"},
                            argc, argv);
}

/* Of texts with labels (--data), or a text whose words are masked. */
int bert_command_eval(int argc, char **argv)
{
    sample_model with = bert_sample;
    classify_options own = {.task = 0};
    bool labelled = false;
    for (int k = 1; k < argc; k++) labelled = labelled || !strncmp(argv[k], "--data", 6);
    if (!labelled) return evaluate_command(&with, argc, argv);
    with.objective = &classify_objective;
    return evaluate_command_with(&with, (zf_options){.rows = rows + 1, .desc = &own}, argc, argv);
}
