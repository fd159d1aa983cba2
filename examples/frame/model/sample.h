/* What a sample gives to the samples' frame: a model (sample_model) and the task it is trained
 * for (objective). The frame has options, ranks, steps, checkpoints, logs, reports, evaluation
 * and Hugging Face's files.
 *
 * How to add a sample of a model that predicts the next token:
 *
 *     examples/NAME/model.h    struct NAME_config, extern const sample_model NAME_sample
 *     examples/NAME/model.c    its keys in config.json (zf_config_table), its graph between causal_begin
 *                              and causal_end (causal.h), and NAME_sample: these two, the names that
 *                              files have for parameters (zf_exchange), .objective = &causal_objective
 *     examples/NAME/main.c     its commands (frame.h, causal.h), with its defaults for settings
 *     Makefile                 NAME in SAMPLES
 *
 * Give parameters the names of Hugging Face's files: then most of exchange is empty. A model for
 * another task has an objective of its own, as BERT (examples/bert/masked.c): it opens the data,
 * reads batches, feeds them and prints scores. An option of all samples is a member and a row of
 * settings (settings.h); an option of one sample is a row that the sample passes. */
#ifndef SAMPLE_H
#define SAMPLE_H

#include "../data/corpus.h"
#include "shape_phases.h"
#include "../../../zeroflow_llm.h"

/* What a row of a batch is: tokens; tokens and padding, with an attention_mask, which the model can
 * do without; several texts, which do not see one another. */
typedef enum sample_rows { SAMPLE_FULL, SAMPLE_PADDED, SAMPLE_PACKED } sample_rows;

/* What a graph of a policy has (causal_end). */
typedef struct policy_graph {
    zf_policy_desc loss;
    double temperature; /* at which answers were sampled */
    /* Of a step: rows of a text that are predicted as well, after those of the batch, and by what
     * the mean over their tokens is multiplied in the loss */
    int64_t texts;
    double text_coefficient;
} policy_graph;

/* The shape of a graph's inputs. */
typedef struct sample_shape {
    int64_t batch, sequence;
    /* Labelled positions of a batch, at most; 0: all have a label. For SAMPLE_GENERATE the
     * tokens of an example for which caches have room */
    int64_t predictions;
    sample_rows rows;
    /* Of SAMPLE_GENERATE: new tokens of an example in any of its programs, at most */
    int64_t chunk;
    zf_layer_drop_desc layer_drop; /* of training; the model sets layer, layers and half */
    /* Each row is a prompt and its answer, with this loss; NULL: it is none */
    const struct policy_graph *policy;
    /* The batch is pairs of texts, one in each row, with this loss; NULL: it is none */
    const zf_preference_desc *preference;
    /* Of a model that scores: each row is a prompt and its answer, whose tokens have values, with
     * this loss; NULL: rows have scores. And the scope of its parameters; NULL: none */
    const zf_value_desc *value;
    const char *scope;
} sample_shape;

/* SAMPLE_ANSWER: has an output of logits, from which the model's answer is read.
 * SAMPLE_GENERATE: the same, of tokens that continue those of earlier steps, whose keys and
 * values are in caches. */
typedef enum sample_purpose {
    SAMPLE_TRAIN,
    SAMPLE_EVALUATE,
    SAMPLE_ANSWER,
    SAMPLE_GENERATE
} sample_purpose;

/* The name of an output of a layer with experts, by its number (zf_causal_routing.watched). */
#define SAMPLE_EXPERTS "experts.%lld"
#define SAMPLE_NOTE "objective" /* objective.note in a checkpoint */
#define SAMPLE_FILE "answers.bin" /* objective.keep in a checkpoint */

struct session;
struct session_desc;
typedef struct settings settings; /* settings.h */

/* What a run trains on: a text or the batches of a file. */
typedef struct dataset {
    zf_wordpiece *vocab; /* of the text; NULL: there is none */
    bert_corpus *corpus; /* the text; NULL: none, or the objective keeps what it needs of it */
    int64_t tokens, documents, held_out; /* of the text; documents held out */
    int64_t cut, left_out;               /* examples of --data: truncated; without a label */
    uint64_t digest; /* of its tokens, or of --batch-file; 0: there is no text */
    uint64_t begins; /* of where the examples of --data begin; 0: there are none */
    bool first; /* the first weights are needed later, as --init says: their digest is kept */
    double unigram_nats; /* loss of a model that only knows the frequency of tokens */
    zf_folder_texts texts; /* of the tokenizer of --data, and of the folder of --model */
    void *own;           /* the objective's */
} dataset;

/* Means over the batches of an evaluation. */
enum { SAMPLE_LOSSES = 18, SAMPLE_SCORES = 5 };
typedef struct sample_score {
    double value[SAMPLE_SCORES]; /* as the objective lists them */
    double loss;                 /* the sum of the losses, without counts */
    int64_t labelled;            /* 0: nothing was evaluated */
} sample_score;

/* For a batch: its labels, and its examples that have a label as a whole. */
typedef struct batch_counts {
    int64_t labelled, pairs;
} batch_counts;

/* A training task: masked words, or the next token. */
typedef struct objective {
    const char *losses[SAMPLE_LOSSES]; /* outputs in the log, "loss" first; NULL after the last */
    int32_t curve;                     /* the one of them that --svg draws, */
    const char *curve_title;           /* and its title */
    struct {
        const char *name, *output;
    } hits; /* labels that are predicted correctly, in the live line; NULL: not shown */
    const char *also; /* one of `losses` that the live line has as well; NULL: none */
    struct {
        const char *name, *output; /* name in the report; output of the graph */
        bool of_pairs;             /* a mean over pairs, not over labels */
        bool counts;               /* the output counts, and is no loss */
    } scores[SAMPLE_SCORES];
    int64_t least_sequence;
    bool no_dropout; /* a model with dropout is an error */
    bool joins; /* checkpoints have parameters besides those of the session that trains */
    bool shares_layers; /* ranks along tensor and pipe can share a model that is trained for it */
    bool scores_texts; /* texts get a score, of a model with zf_config_facts.scores */
    /* The modules that texts' labels are computed by, with commas between: an adapter keeps them.
     * NULL: there are none, or that of scores_texts */
    const char *(*head)(const void *config);
    zf_folder_frame frame; /* the special tokens that the tokenizer adds to a text */

    /* The dataset of --batch-file; it sets o->batch and o->seq. False with *error. */
    bool (*open_file)(dataset *d, settings *o, const zf_config_facts *facts, void *config,
                      zf_error *error);
    /* The dataset of --data; NULL: there is no such option. False with *error. */
    bool (*open_data)(dataset *d, const settings *o, const zf_config_facts *facts, void *config,
                      zf_error *error);
    /* Opens what it needs in addition to vocabulary and corpus, which are open. False with
     * *error. */
    bool (*open_text)(dataset *d, const settings *o, void *config, zf_error *error);
    void (*close)(dataset *d);
    /* Sets what the data say about the shape of a part, for a batch that is split into `parts`
     * parts: .predictions and .rows, and perhaps rows of an example and a shorter sequence. */
    void (*fit_shape)(const dataset *d, const settings *o, int64_t parts, sample_shape *shape);

    /* How many global batches of `examples` rows have held-out ones, or those of a file; NULL,
     * or 0: any number has. */
    int64_t (*batches)(const dataset *d, int64_t examples);
    /* A rank's reader of global batches of `examples` rows: of training, in order from step
     * `first` on, or held out. NULL with *error. */
    void *(*start)(const dataset *d, bool held_out, int64_t examples, int64_t first,
                   zf_error *error);
    const void *(*read)(void *reader, int64_t step); /* valid until the next call */
    /* The same of a phase (shape_phases.h), whose steps are read from 0 on: `first` of them were
     * made before. NULL: all steps have one shape. */
    void *(*start_phase)(const dataset *d, const struct shape_phase *phase, int64_t first,
                         zf_error *error);
    int64_t (*waits)(void *reader); /* how often a step waited for its batch; NULL: never */
    void (*stop)(void *reader);     /* NULL: nothing */

    /* Called before `read` of each step, by all ranks: what the steps from this one on train on may
     * depend on the parameters. False with *error. NULL: nothing. */
    bool (*prepare)(struct session *s, void *reader, int64_t step, zf_error *error);
    /* Sets the bytes that a step of the session `train` describes needs to have
     * (session_desc.reserve), so that the sessions of `prepare` lie in its memory. False with
     * *error. NULL: 0. */
    bool (*reserve)(const dataset *d, const struct session_desc *train, size_t *bytes,
                    zf_error *error);
    /* Called by all ranks after the last step of a run that was not interrupted. False with *error.
     * NULL: nothing. */
    bool (*finish)(struct session *s, void *reader, zf_error *error);
    /* A number of `losses` that is no output of the graph: sets *out. NULL: all are outputs. */
    bool (*number)(void *reader, const char *name, double *out);
    /* A number that steps go on from, next to what the store has: its text for a checkpoint, of
     * `size` bytes, where it is called SAMPLE_NOTE. NULL: there is none. */
    void (*note)(void *reader, char *text, size_t size);
    /* What steps go on from that is not a number: a file of a checkpoint of step `done`, which is
     * called SAMPLE_FILE; valid until the reader stops. out->data NULL: none. False with *error.
     * NULL: there is none. */
    bool (*keep)(void *reader, int64_t done, zf_attachment *out, zf_error *error);
    /* What losses need of the first parameters (session.reference): how many numbers, and their
     * values by a session that evaluates one part. NULL: nothing. All ranks must call `refer`. */
    int64_t (*references)(const dataset *d, const settings *o);
    bool (*refer)(struct session *s, const dataset *d, float *reference, zf_error *error);

    batch_counts (*count)(const void *batch);
    /* Writes part `part` of `parts` equal parts of a global batch into the inputs. Losses are means
     * over the global batch, or with `sums` sums. */
    zf_status (*feed)(struct session *s, const void *batch, int64_t part, int64_t parts, bool sums);

    /* Prints one line about the scores of held-out batches; exact: with all digits. */
    void (*print)(const sample_score *score, const void *config, double unigram_nats, bool exact);
    /* Writes what a checkpoint keeps of the scores of its held-out examples, as reward.json; NULL:
     * nothing. */
    void (*describe)(const sample_score *score, zf_json_writer *w);
    /* Prints answers of a trained model; NULL: nothing. All ranks must call it. */
    bool (*show)(struct session *with, const void *config, const dataset *d, int64_t sequence,
                 zf_error *error);
} objective;

/* A model. */
typedef struct sample_model {
    const char *program;   /* "gpt" */
    const char *title;     /* "GPT-2" */
    const char *models;    /* --model's help */
    const char *otherwise; /* --model's default */
    const zf_config_table *(*config)(void);
    /* Sets what the weights of a folder show about the model, besides a tied head; NULL:
     * nothing. */
    void (*fit)(void *config, const zf_weights *w);
    /* Builds the forward graph: the inputs of its objective and "lr", the outputs "loss" and those
     * of the objective. A mistake is the graph's error. */
    void (*build)(zf_graph *g, const void *config, const sample_shape *shape,
                  sample_purpose purpose);
    const zf_exchange *(*exchange)(void); /* how files name its parameters */
    const objective *objective;
    /* Sets first values of a new model that are better than random ones; NULL: there are none. */
    bool (*first)(struct session *s, const settings *o, const void *config, const dataset *d,
                  zf_error *error);
    /* Describes a mistake in the sample's own options; NULL: none. */
    const char *(*wrong)(const settings *o);
    /* Sets what the sample's own options say of a new model; NULL: nothing. */
    void (*configure)(void *config, const settings *o);
    /* Sets what an adapter in this folder says of the model. False with *error. NULL: nothing. */
    bool (*adapt)(void *config, const char *adapter, zf_error *error);
    /* What a program that knows this kind of model by its config.json, but not all of its keys,
     * would do otherwise; NULL: nothing. */
    const char *(*unlike)(const void *config);
    /* The rows of a layer of experts that a part of so many tokens has room for, on all ranks that
     * share them; NULL: no model has experts. */
    int64_t (*rows)(const void *config, const settings *o, int64_t tokens);
} sample_model;

/* Ranks with one part of the batch: those along tensor, context and pipe. */
static inline int32_t sample_sharing(const zf_training *t)
{
    return (t->tensor > 1 ? t->tensor : 1) * (t->context > 1 ? t->context : 1) *
           (t->stages.ranks > 1 ? t->stages.ranks : 1);
}

#endif
