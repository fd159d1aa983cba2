/* What BERT is trained for: masked words and next sentences of a text, or those of a batch file. */
#ifndef BERT_MASKED_H
#define BERT_MASKED_H

#include "../frame/model/session.h"
#include "../frame/model/settings.h"
#include "data/batch.h"
#include "data/batchfile.h"

extern const objective masked_objective;

enum { RECIPE_TEXT = 200 };

/* BERT's own options (settings.own; NULL: as if all were 0). */
typedef struct masked_options {
    int64_t masked; /* percent of the words of training examples; 0: 15. Held-out ones have 15 */
    bool no_nsp;    /* examples of one segment, without next sentences */
    int64_t sinusoids, unigrams; /* 1: first values of the position embedding, of the bias */
    bool pre_norm; /* bert_config.pre_norm of a new model */
    int64_t experts, chosen; /* of a new model: those of bert_config */
    double aux_loss, balance_bias;
    int64_t recipe; /* 1: bert44 */
    char phases[2][RECIPE_TEXT]; /* texts of its --phase */
} masked_options;
const masked_options *masked_options_of(const settings *o);

/* Whether a model predicts words. False with *error: it has labels. */
bool masked_predicts(const void *config, const char *folder, zf_error *error);

/* For settings_desc.choose, of masked_options.recipe (recipe.c): the phases of the recipe become
 * those of o, and *list the defaults of other options. */
bool recipe_choose(void *masked, settings *o, const settings_default **list, zf_error *error);

/* dataset.own */
typedef struct masked_data {
    bert_examples *train, *held_out; /* of a text */
    bert_examples_desc desc;         /* of train */
    bert_batch_file *file;           /* or this */
} masked_data;

/* Writes a batch, or a part of one, into the inputs. labelled, pairs: counts of the global batch,
 * whose mean the losses are. */
zf_status masked_feed(session *s, const bert_batch *batch, double labelled, double pairs);

/* The five best guesses for one [MASK]. */
enum { MASKED_GUESSES = 5 };
typedef struct masked_guess {
    int32_t token[MASKED_GUESSES];
    double probability[MASKED_GUESSES];
} masked_guess;

/* Guesses for the labelled positions of the batch that has been fed, among the ids below `tokens`
 * (a model may have room for more than its vocabulary holds); s is for answers. */
bool masked_guesses(session *s, int64_t positions, int64_t tokens, masked_guess *guesses,
                    zf_error *error);

/* Puts ids (with [CLS], [SEP]) into batch row 0, the [MASK] positions labelled 0. Returns how many
 * there are, -1 when the text is too long. */
int64_t masked_fill_batch(bert_batch *batch, const zf_wordpiece *vocab, const char *text);

/* The guesses for every [MASK] of one text, printed as lines or as JSON. `with` holds the
 * parameters. False with *error. */
bool masked_fill_text(session *with, const void *config, const zf_wordpiece *vocab,
                      int64_t sequence, const char *text, const char *truth, bool json,
                      zf_error *error);
/* Prints sentences of the held-out split, one word masked in each, with the best guesses. */
bool masked_show(session *with, const void *config, const dataset *d, int64_t sequence,
                 zf_error *error);

#endif
