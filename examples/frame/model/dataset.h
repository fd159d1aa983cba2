/* The dataset of a run (sample.h). */
#ifndef DATASET_H
#define DATASET_H

#include "../data/pairs.h"
#include "sample.h"

/* Opens the text of --corpus, or the batches of --batch-file, which set o->batch and o->seq. A
 * named model (--model) gets the size and the special tokens of the vocabulary. False with *error,
 * and then there is nothing to close. */
bool dataset_open(dataset *d, const sample_model *sample, settings *o, void *config,
                  zf_error *error);
/* For an objective's open_data: opens the tokenizer and the template of --data as the options say,
 * and calls `load` with how its lines are read; load sets counts and digests of *d. A named model
 * gets the size and the end token of the tokenizer. The tokenizer's files are kept in d->texts, a
 * WordPiece vocabulary in d->vocab. False with *error. */
typedef bool dataset_load(dataset *d, const settings *o, const zf_examples_desc *desc,
                          zf_error *error);
bool dataset_open_examples(dataset *d, const settings *o, const zf_config_facts *facts,
                           dataset_load *load, zf_error *error);
/* For a dataset_load: loads the pairs of --data, and sets counts and digests of *d. False with
 * *error. */
bool dataset_load_pairs(dataset *d, const settings *o, const zf_examples_desc *desc, pairs *p,
                        zf_error *error);
/* For sample_model.wrong of a command that takes pairs: what of the options does not fit them. */
const char *dataset_wrong_for_pairs(const settings *o);
/* The template of chats, as the options say; without a tokenizer.json these must not be given. To
 * be closed all the same. */
bool dataset_open_chat(zf_chat *chat, const settings *o, const zf_tokenizer *tokenizer,
                       zf_error *error);
/* Prints how many examples of --data are cut or left out, if any are. */
void dataset_tell(const dataset *d, const settings *o);
void dataset_close(dataset *d, const sample_model *sample);

#endif
