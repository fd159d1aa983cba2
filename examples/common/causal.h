/* Models that predict the next token of a text: their inputs and head, and what they are trained
 * for. Text and batches: causal_text.h, causal_batch.h.
 *
 *     causal_inputs in = causal_begin(g, shape, purpose);
 *     x = ...in.input_ids...
 *     causal_end(x, words, &in);
 */
#ifndef CAUSAL_H
#define CAUSAL_H

#include "session.h"

typedef struct causal_inputs {
    zf_tensor input_ids;      /* i32 [B, T] */
    zf_tensor attention_mask; /* u8 [B, T], 1: a token; invalid unless the shape is masked */
    /* Of training and evaluation: */
    zf_tensor labels;      /* i32 [B, T], the token behind each; -100: none */
    zf_tensor loss_weight; /* f32 []: 1 / labels of the global batch */
    /* For an answer: */
    zf_tensor last; /* i32 [B], b * T + t of the token to be followed */
} causal_inputs;

causal_inputs causal_begin(zf_graph *g, const sample_shape *shape, sample_purpose purpose);

/* For attention's mask, [B, 1, 1, T]: added to the scores where some keys are padding, so far below
 * the others that their softmax is 0, though not where all are padding. ZF_NONE where the shape is
 * not masked. */
zf_tensor causal_padding(const causal_inputs *in, const sample_shape *shape);

/* The output "loss", or for an answer "logits", [B, vocab], of the token that follows each
 * sequence. x [B T, H]: of the last layer; words [vocab, H]: the head's weight. */
zf_tensor causal_end(zf_tensor x, zf_tensor words, const causal_inputs *in);

extern const objective causal_objective;

/* The next token after logits[0..count): the likeliest at temperature 0, else one drawn with
 * probabilities softmax(logits / temperature), by `dice`, which is a different number each time. */
int32_t causal_draw(const float *logits, int64_t count, double temperature, uint64_t dice);

/* A command: the whole command line; it reads its own options, returns an exit status. */
int causal_generate(const sample_model *sample, int argc, char **argv);

#endif
