/* BERT for pretraining (Devlin et al. 2018): its configuration, its graph, its weights as Hugging
 * Face files. */
#ifndef BERT_MODEL_H
#define BERT_MODEL_H

#include "config.h"

/* For the samples' frame (sample.c). Parameters have Hugging Face's names. Files may have
 * LayerNorm's gamma and beta, may lack the prefix "bert.", and may have a decoder although it is
 * tied. */
extern const sample_model bert_sample;

/* Builds the forward graph, in f32. A mistake is the graph's error. */
bert_model bert_build(zf_graph *g, const bert_config *config, const sample_shape *shape,
                      sample_purpose purpose);

/* First values (bert_sample.first): with settings.own's sinusoids and unigrams. */
bool bert_first_values(struct session *s, const settings *o, const void *config, const dataset *d,
                       zf_error *error);
/* rows x width: sin and cos of t / 10000^(i / width), with a mean square of std^2. */
void bert_sinusoids(float *table, int64_t rows, int64_t width, double std);

#endif
