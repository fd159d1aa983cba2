/* Models that score: r = w . h, with h [H] from the last norm at the last token of a text, and no
 * bias (Stiennon et al. 2020). Their graph is between two calls, as one that predicts tokens is:
 *
 *     sample_shape rows = *shape;
 *     causal_inputs in = score_begin(g, &rows, purpose);
 *     x = ...in.model.input_ids...                   with `rows` as the shape
 *     score_end(x, &rows, purpose);
 *
 * A graph for SAMPLE_ANSWER has shape.batch texts, and the output "scores" [B]. Other graphs have
 * shape.batch pairs of texts, row 2p the chosen one and row 2p + 1 the rejected one, and the loss
 *
 *     sum over p of weight[p] (-log sigma(chosen - rejected - margin[p]) + center (chosen + rejected)^2)
 *
 * (zf_pair_loss; the centre, which keeps scores around 0, is that of Eisenstein et al. 2023). With
 * rows of padding (SAMPLE_PADDED) the first term is that of DeepSpeed-Chat, of values r at
 * positions in place of scores.
 *
 * With shape.value each of shape.batch rows is a prompt and its answer, and r at a position is the
 * value of the text up to there (zf_value_loss): what the tokens after it are expected to be
 * rewarded with.
 *
 * Texts begin at the left. Their last tokens are an input: padding is never looked for by its id,
 * and as attention is causal, it changes no score. */
#ifndef SCORE_H
#define SCORE_H

#include "../model/causal.h"

/* rows->batch becomes the rows of the graph. */
causal_inputs score_begin(zf_graph *g, sample_shape *rows, sample_purpose purpose);

/* x [rows->batch T, H]: from the last norm. Adds the parameter score.weight [1, H], whose first
 * values are normal with a standard deviation of 1 / (H + 1) (as OpenRLHF's), and the inputs
 *
 *     last      i32 [rows]  row * T + place of each text's last token
 *     weight    f32 [P]     of each pair; 0: the pair is not there
 *     margin    f32 [P], of SAMPLE_PADDED [P, 1]: by which the chosen score should exceed the other one
 *     center    f32 []
 *     places    f32 [P, T]  of SAMPLE_PADDED: weights of positions, in place of `weight`
 *
 * Of values, in place of these, for SAMPLE_TRAIN alone:
 *
 *     labels       i32 [rows, T]  the token after each, where it is of the answer, else -100
 *     returns      f32 [rows, T]
 *     old_values   f32 [rows, T]  by the parameters that sampled
 *     weight       f32 [rows, 1]  of each token of the row
 *
 * Outputs: "loss", and sums over pairs: "accurate", how many chosen texts have the higher score;
 * "margins", of score differences; "chosen" and "squares", of scores of chosen texts and of their
 * squares. Of values: "values" f32 [rows, T], or for SAMPLE_TRAIN "loss" and
 * "value_clipped", the share of tokens, by weight, whose loss is that of the clipped value. */
zf_tensor score_end(zf_tensor x, const sample_shape *rows, sample_purpose purpose);

#endif
