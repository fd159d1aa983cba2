/* The command score: the scores of texts by a reward model. */
#include "reward.h"
#include "scorer.h"
#include "../commands/frame.h"
#include "../data/pairs.h"
#include "../model/dataset.h"
#include "../model/settings.h"
#include "../options/command.h"
#include "../options/fail.h"
#include "../folder/folder.h"

#include <stdlib.h>

typedef struct score_options {
    folder_options from;
    settings o; /* of the data */
    bool standardize;
} score_options;

static const zf_option own_rows[] = {
    ZF_OPTION(
        score_options, COUNT, o.seq, 0, "[0,65536]", .flag = "seq", .unit = "T", .topic = "data",
        .help = "maximum number of tokens of a text; 0: the model's; a longer text is an error"),
    ZF_OPTION(score_options, COUNT, o.batch, 8, "[1,1048576]", .flag = "batch", .unit = "B",
              .help = "texts at a time"),
    ZF_OPTION(score_options, FLAG, standardize, 0, NULL,
              .help = "scores minus the mean of the chosen held-out answers that the model was "
                      "trained with, divided by their deviation"),
    {.name = NULL}};

static bool load_texts(dataset *d, const settings *o, const zf_examples_desc *desc, zf_error *error)
{
    return pairs_load_texts(d->own, o->data, desc, error);
}

/* Scores all texts, in their order, to be freed; NULL with *error. */
static double *score_texts(scorer *r, const pairs *texts, zf_error *error)
{
    const size_t n = (size_t)texts->count;
    const int32_t **ids = malloc(n * sizeof *ids);
    int64_t *counts = malloc(n * sizeof *counts);
    double *scores = malloc(n * sizeof *scores);
    bool good = ids && counts && scores;
    if (!good) fail(error, ZF_ERR_NOMEM, "out of memory");
    for (size_t k = 0; k < n && good; k++)
        ids[k] = texts->ids + texts->at[k], counts[k] = texts->at[k + 1] - texts->at[k];
    good = good && scorer_run(r, ids, counts, texts->count, scores, error);
    free(ids), free(counts);
    if (good) return scores;
    free(scores);
    return NULL;
}

static void print_scores(const scorer_scale *scale, bool standardize, const double *scores,
                         int64_t n)
{
    for (int64_t k = 0; k < n; k++)
        printf("{\"score\": %.9g}\n",
               standardize ? (scores[k] - scale->mean) / scale->deviation : scores[k]);
}

static bool has_scale(const score_options *s, const scorer *r, zf_error *error)
{
    if (!s->standardize || (r->scale.known && r->scale.deviation > 0)) return true;
    return fail(error, ZF_ERR_ARGUMENT,
                r->scale.known
                    ? "%s: the deviation in its reward.json is 0: --standardize needs more "
                      "held-out pairs"
                    : "%s has no reward.json, which --standardize reads",
                r->adapter ? r->adapter : r->base);
}

/* The tokenizer is that of the reward model, which may be an adapter's. */
static void find_tokenizer(settings *o, const scorer *r)
{
    if (o->tokenizer) return;
    o->tokenizer = r->adapter && zf_folder_has_vocab(r->adapter) ? r->adapter : r->base;
}

/* Reads the texts, opens the model for the longest of them, and prints. */
static bool run(score_options *s, scorer_desc *d, zf_error *error)
{
    pairs texts = {.count = 0};
    dataset data = {.own = &texts};
    scorer r;
    double *scores = NULL;
    bool good = scorer_read(&r, d, error) && has_scale(s, &r, error);
    if (good) {
        const zf_config_facts facts = zf_config_facts_of(d->sample->config(), &r.config);
        find_tokenizer(&s->o, &r);
        const int64_t most = zf_config_positions(d->sample->config(), &r.config);
        if (!s->o.seq || s->o.seq > most) s->o.seq = most;
        good = dataset_open_examples(&data, &s->o, &facts, load_texts, error);
    }
    d->tokens = texts.longest;
    if (good && (good = scorer_open(&r, d, error))) {
        good = (scores = score_texts(&r, &texts, error)) != NULL;
        if (good) print_scores(&r.scale, s->standardize, scores, texts.count);
        scorer_close(&r);
    }
    free(scores);
    pairs_free(&texts);
    zf_wordpiece_free(data.vocab);
    zf_folder_texts_free(&data.texts);
    return good;
}

int score_command(const sample_model *sample, int argc, char **argv)
{
    score_options s = {.standardize = false};
    command_tables t = {.count = 0};
    zf_error error = {ZF_OK, ""};
    scorer_desc d = {.sample = sample};
    int status;
    command_add(&t, folder_load_rows, &s.from);
    command_add(&t, folder_adapter_rows, &s.from);
    command_add(&t, frame_examples_rows, &s.o);
    command_add(&t, own_rows, &s);
    command_add(&t, folder_compute_rows, &s.from);
    command_add(&t, sample->config()->bits ? folder_weights_rows : NULL, &s.from);
    if (!command_options(argc, argv, "score --model DIR --data FILE [OPTIONS]", &t, NULL, &status))
        return status;
    if (!s.from.load) return command_usage_error(argv, "a reward model is needed: --model DIR");
    if (!s.o.data) return command_usage_error(argv, "texts are needed: --data FILE");
    d.folder = s.from.load, d.adapter = s.from.adapter, d.dtype = s.from.dtype;
    d.weights = s.from.weights, d.texts = s.o.batch, d.average = s.from.average;
    d.threads = folder_threads(&s.from);
    s.o.model = ".", s.o.load = s.from.load, s.o.evaluates = true;
    return run(&s, &d, &error) ? EXIT_GOOD : command_error("%s", error.text);
}
