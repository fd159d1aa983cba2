/* Batches of pairs of texts for a model that scores (score.h). */
#ifndef SCORE_BATCH_H
#define SCORE_BATCH_H

#include "../data/pairs.h"

typedef struct score_batch {
    pairs_batch pairs;  /* P pairs of rows of T tokens; here `padding` is after the end of a text */
    int32_t padding;    /* which only the loss of positions reads */
    float center;       /* of the loss */
    float *margin;      /* [P] */
    float *mean, *sum;  /* [P], weights of pairs for a mean over those that are there, and a sum */
    /* For the loss of positions, else NULL: [2P, T], 1: a token; [P, T], the weights of positions
     * for a mean and a sum */
    uint8_t *mask;
    float *mean_places, *sum_places;
} score_batch;

/* Room for a batch. False with *error. */
bool score_batch_new(score_batch *b, int64_t count, int64_t sequence, bool positions,
                     zf_error *error);
void score_batch_free(score_batch *b);

/* Sets all that follows from b->pairs and the margins. */
void score_batch_finish(score_batch *b);

#endif
