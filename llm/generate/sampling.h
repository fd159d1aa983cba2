/* The next token from a model's logits, in the order of Hugging Face's transformers: repetition
 * penalty, temperature, top-k, top-p, and then by chance.
 *
 *     logits --penalty--> --/ temperature--> --the best k--> softmax --the best of sum p--> p
 */
#ifndef SAMPLING_H
#define SAMPLING_H

#include <stdbool.h>
#include <stdint.h>

typedef struct sampling {
    double temperature; /* 0: always the most likely token */
    int64_t top_k;      /* tokens that are kept, and those equal to the last of them; 0: all */
    double top_p;       /* the most likely tokens are kept until their sum reaches it; 1: all */
    double repetition;  /* logits of tokens that were there are divided by it, or multiplied if they
                         * are negative; 1: none */
} sampling;

/* Room for `count` tokens; false out of memory. */
typedef struct sampler {
    sampling how;
    int64_t count;
    double *p;
    int32_t *order;
} sampler;
bool sampler_open(sampler *, const sampling *, int64_t count);
void sampler_close(sampler *);

/* The token that follows: of equally likely ones the first, or one drawn by `dice`, a random number
 * that must differ in each call. seen: tokens before it. Leaves probabilities in s->p, unless the
 * temperature is 0. Changes the logits. */
int32_t sampler_draw(sampler *s, float *logits, const int32_t *seen, int64_t seen_count,
                     uint64_t dice);

#endif
