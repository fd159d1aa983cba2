/* What the samples' frame asks of a model (sample_model), and of what it is trained for (objective).
 * Options, ranks, steps, checkpoints, logs, reports, evaluation and Hugging Face's files are the
 * frame's.
 *
 * How to add a sample of a model that predicts the next token:
 *
 *     examples/NAME/model.h    struct NAME_config, extern const sample_model NAME_sample
 *     examples/NAME/model.c    its keys in config.json (config_table), its graph between causal_begin
 *                              and causal_end (causal.h), and NAME_sample: these two, the names that
 *                              files have for parameters (exchange.h), .objective = &causal_objective
 *     examples/NAME/main.c     its commands (frame.h, causal.h), with its defaults for settings
 *     Makefile                 NAME in SAMPLES
 *
 * Parameters are best named as Hugging Face's files name them: then most of exchange is empty. A model
 * that is trained for something else has an objective of its own, as BERT (examples/bert/masked.c),
 * which opens the data, reads batches, feeds them and prints scores. An option that all samples have is
 * a member and a row of settings (settings.h); one of a sample's own is a row that it hands over.
 */
#ifndef SAMPLE_H
#define SAMPLE_H

#include "../bert/corpus.h"
#include "../bert/tokenizer.h"
#include "config.h"
#include "exchange.h"
#include "folder.h"
#include "settings.h"

/* What a graph is built for. */
typedef struct sample_shape {
    int64_t batch, sequence;
    int64_t predictions; /* labelled positions of a batch, at most; 0: all have a label */
    bool masked;         /* with an attention_mask where the model can do without */
} sample_shape;

/* SAMPLE_ANSWER: with an output of logits, which say what the model makes of an input. */
typedef enum sample_purpose { SAMPLE_TRAIN, SAMPLE_EVALUATE, SAMPLE_ANSWER } sample_purpose;

struct session;

/* What a run trains on: a text or the batches of a file. */
typedef struct dataset {
    bert_vocab *vocab;   /* of the text; NULL: there is none */
    bert_corpus *corpus; /* the text; NULL: there is none, or the objective keeps what it needs */
    int64_t tokens, documents, held_out; /* of the text; of its documents, those held out */
    uint64_t digest;                     /* of its tokens */
    double unigram_nats; /* loss of a model that knows how frequent tokens are, and nothing else */
    void *own;           /* the objective's */
} dataset;

/* Means over the batches of an evaluation. */
enum { SAMPLE_LOSSES = 4, SAMPLE_SCORES = 4 };
typedef struct sample_score {
    double value[SAMPLE_SCORES]; /* as the objective lists them */
    double loss;                 /* their sum, but for counts */
    int64_t labelled;            /* 0: nothing was evaluated */
} sample_score;

/* Of a batch: its labels, and its examples with a label of their own. */
typedef struct batch_counts {
    int64_t labelled, pairs;
} batch_counts;

/* What models are trained for: masked words, or the next token. */
typedef struct objective {
    const char *losses[SAMPLE_LOSSES]; /* outputs that the log has, "loss" first; NULL behind them */
    int32_t curve;                     /* the one of them that --svg draws, */
    const char *curve_title;           /* and what is written over it */
    struct {
        const char *name, *output;
    } hits; /* labels that are guessed right, in the live line; NULL: it has none */
    struct {
        const char *name, *output; /* in the report; of the graph */
        bool of_pairs;             /* a mean over pairs, not over labels */
        bool counts;               /* the output counts, and is no loss */
    } scores[SAMPLE_SCORES];
    int64_t least_sequence;
    folder_frame frame; /* what the tokenizer puts around a text */

    /* The dataset of --batch-file; it sets o->batch and o->seq. False with *error. */
    bool (*open_file)(dataset *d, settings *o, const config_facts *facts, void *config,
                      zf_error *error);
    /* What it needs beside vocabulary and corpus, which are there. False with *error. */
    bool (*open_text)(dataset *d, const settings *o, void *config, zf_error *error);
    void (*close)(dataset *d);
    /* sample_shape.predictions and .masked, where a batch is cut into `parts` parts. */
    void (*fit_shape)(const dataset *d, const settings *o, int64_t parts, sample_shape *shape);

    /* A rank's reader of global batches of `examples` examples: of training, in order from step
     * `first` on, or held out. NULL with *error. */
    void *(*start)(const dataset *d, bool held_out, int64_t examples, int64_t first,
                   zf_error *error);
    const void *(*read)(void *reader, int64_t step); /* valid until the next call */
    int64_t (*waits)(void *reader); /* how often a step waited for its batch; NULL: never */
    void (*stop)(void *reader);     /* NULL: nothing */

    batch_counts (*count)(const void *batch);
    /* Writes part `part` of `parts` equal ones of a global batch into the inputs. Losses are means
     * over the global batch; sums: they are sums. */
    zf_status (*feed)(struct session *s, const void *batch, int64_t part, int64_t parts, bool sums);

    /* One line of what a model makes of held-out batches; exact: with all digits. */
    void (*print)(const sample_score *score, const void *config, double unigram_nats, bool exact);
    /* What a trained model answers, printed; NULL: nothing. All ranks call it. */
    bool (*show)(struct session *with, const void *config, const dataset *d, int64_t sequence,
                 zf_error *error);
} objective;

/* A model. */
typedef struct sample_model {
    const char *program;   /* "gpt" */
    const char *title;     /* "GPT-2" */
    const char *models;    /* --model's help */
    const char *otherwise; /* --model's default */
    const config_table *config;
    /* What else than a tied head the weights of a folder say about the model; NULL: nothing. */
    void (*fit)(void *config, const weights *w);
    /* The forward graph: the inputs of its objective and "lr", the outputs "loss" and those of the
     * objective. A mistake is the graph's error. */
    void (*build)(zf_graph *g, const void *config, const sample_shape *shape,
                  sample_purpose purpose);
    exchange exchange;
    const objective *objective;
    /* Gives a new model first values that are better known than drawn; NULL: there are none. */
    bool (*first)(struct session *s, const settings *o, const void *config, const dataset *d,
                  zf_error *error);
    /* What is wrong with the sample's own options, or NULL; NULL: it has none. */
    const char *(*wrong)(const settings *o);
} sample_model;

#endif
