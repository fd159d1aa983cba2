/* Models that predict the next token of a text: their inputs and head, and what they are trained
 * for. Text and batches: causal_text.h, causal_batch.h.
 *
 *     sample_shape rows = *shape;
 *     causal_inputs in = causal_begin(g, &rows, purpose);
 *     x = ...in.model.input_ids...                   with `rows` as the shape
 *     causal_end(x, words, &in);
 */
#ifndef CAUSAL_H
#define CAUSAL_H

#include "session.h"

typedef struct causal_inputs {
    zf_causal_inputs model; /* those of the layers; of generation with its caches */
    /* i32 [B, T]: which of several texts a token is of; invalid unless rows are packed */
    zf_tensor segments;
    /* Of training and evaluation: */
    zf_tensor labels;      /* i32 [B, T], the token after each; -100: none */
    zf_tensor loss_weight; /* f32 []: 1 / labels of the global batch */
    /* Of a policy, in place of loss_weight: f32 [B, T]; weight: f32 [B, 1] */
    zf_tensor advantage, weight, old, correction, reference;
    /* Of its texts: i32 [texts, T]; f32 []: 1 / labels of the global batch */
    zf_tensor text_labels, text_share;
    bool scores; /* there is an output of log p, and of a policy no loss */
    const policy_graph *policy; /* NULL: rows are no answers of one */
    /* Of pairs, in place of loss_weight: f32 [B / 2], 1 / pairs of the global batch, 0: the pair is
     * not there; f32 [], the same for all; and `reference`, log p of the labels at first, invalid
     * unless the loss has one */
    zf_tensor pair_weight, pair_share;
    const zf_preference_desc *preference; /* NULL: rows are no pairs */
    /* For an answer: */
    zf_tensor last; /* i32 [B], b * T + t of the token before the answer */
    zf_tensor penalty; /* zf_causal_outputs.penalty */
    /* Tokens do not stay in their rows, as with experts: the loss of a text then says that it is a sum
     * over parts, which cannot be derived */
    bool moved;
    double cap; /* logits become cap tanh(logit / cap); 0: they stay */
} causal_inputs;

/* No input at all. */
causal_inputs causal_none(zf_graph *g);
/* shape->batch becomes the rows of the graph. */
causal_inputs causal_begin(zf_graph *g, sample_shape *shape, sample_purpose purpose);

/* The output "loss", or for an answer "logits", [B, vocab], of the token after each sequence. x [B
 * T, H]: from the last layer; words [vocab, H]: the head's weight. Of a policy (zf_policy_loss)
 * also "clipped", a sum by weights, and "ratio_low" and "ratio_high" of a rank's last part; for
 * evaluation "logp" and "entropy" [B T] alone. Of pairs (zf_preference_loss) also "rewards/chosen",
 * "rewards/rejected", "accuracy" and "margin", sums by pair_weight; "accurate", how many pairs have
 * the higher reward for the chosen text; and for evaluation "logp" [B T]. */
zf_tensor causal_end(zf_tensor x, zf_tensor words, const causal_inputs *in);

extern const objective causal_objective;

/* A command: the whole command line; it reads its own options, returns an exit status. */
int causal_pretrain(const sample_model *sample, int argc, char **argv);
/* The same with options of the model's own. */
int causal_pretrain_with(const sample_model *sample, zf_options own, int argc, char **argv);
/* Trains a model of a folder, or an adapter of it, on examples (--data). */
int causal_finetune(const sample_model *sample, int argc, char **argv);
int causal_finetune_with(const sample_model *sample, zf_options own, int argc, char **argv);
int causal_generate(const sample_model *sample, int argc, char **argv);
int causal_chat(const sample_model *sample, int argc, char **argv);
/* Prints how well and how fast a model predicts a text, and the memory that it takes. */
int causal_selftest(const sample_model *sample, int argc, char **argv);

#endif
