/* The dataset of a run (sample.h). */
#ifndef DATASET_H
#define DATASET_H

#include "sample.h"

/* Opens the text of --corpus, or the batches of --batch-file, which set o->batch and o->seq. A
 * named model (--model) gets the size and the special tokens of the vocabulary. False with *error,
 * and then there is nothing to close. */
bool dataset_open(dataset *d, const sample_model *sample, settings *o, void *config,
                  zf_error *error);
/* Prints how many examples of --data are cut or left out, if any are. */
void dataset_tell(const dataset *d, const settings *o);
void dataset_close(dataset *d, const sample_model *sample);

#endif
