/* Models that predict the next token of a text: their inputs and head, and what they are trained
 * for. Text and batches: causal_text.h, causal_batch.h.
 *
 *     sample_shape rows = *shape;
 *     causal_inputs in = causal_begin(g, &rows, purpose);
 *     x = ...in.input_ids...                     with `rows` as the shape
 *     causal_end(x, words, &in);
 */
#ifndef CAUSAL_H
#define CAUSAL_H

#include "session.h"

typedef struct causal_inputs {
    zf_tensor input_ids;      /* i32 [B, T] */
    zf_tensor attention_mask; /* u8 [B, T], 1: a token; invalid unless rows are padded */
    /* Of training and evaluation: */
    /* i32 [B, T]: which of several texts a token is of, and its place in that text; invalid unless
     * rows are packed */
    zf_tensor segments, positions;
    /* For the attention of all layers (causal_masks): where texts of a packed row begin and end,
     * and the blocks of the model's layout; invalid: none */
    zf_tensor documents, blocks;
    zf_layer_drop_desc layer_drop; /* of shape.layer_drop */
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
    /* For generation, with `positions`: i32 [B], tokens in the caches; and all inputs of it */
    zf_tensor past;
    zf_decode_inputs decode;
    zf_tensor penalty; /* added to the loss of a text: f32 [], a sum over parts; invalid: none */
    /* Tokens do not stay in their rows, as with experts: the loss of a text then says that it is a sum
     * over parts, which cannot be derived */
    bool moved;
    double cap; /* logits become cap tanh(logit / cap); 0: they stay */
} causal_inputs;

/* No input at all. */
causal_inputs causal_none(zf_graph *g);
/* shape->batch becomes the rows of the graph. */
causal_inputs causal_begin(zf_graph *g, sample_shape *shape, sample_purpose purpose);

/* The branch y of layer `layer` of `layers`, its half 0 or 1, as --layer-drop leaves it out. */
zf_tensor causal_branch(zf_tensor y, const causal_inputs *in, int64_t layer, int64_t layers,
                        int64_t half);

/* The blocks of a model with this layout (zf_config_facts.layout) and so many heads. */
void causal_blocks(causal_inputs *in, const sample_shape *shape, const char *layout, int64_t heads);
/* Gives the attention of a layer the documents and blocks, if there are any. */
void causal_masks(zf_attention_desc *attention, const causal_inputs *in);

/* The attention mask for padding, [B, 1, 1, T]. It is added to scores and makes the softmax of
 * padding 0, unless all keys are padding. ZF_NONE where rows are not padded. */
zf_tensor causal_padding(const causal_inputs *in, const sample_shape *shape);

/* The output "loss", or for an answer "logits", [B, vocab], of the token after each sequence. x [B
 * T, H]: from the last layer; words [vocab, H]: the head's weight. Of a policy (zf_policy_loss)
 * also "clipped", a sum by weights, and "ratio_low" and "ratio_high" of a rank's last part; for
 * evaluation "logp" and "entropy" [B T] alone. Of pairs (zf_preference_loss) also "rewards/chosen",
 * "rewards/rejected", "accuracy" and "margin", sums by pair_weight; "accurate", how many pairs have
 * the higher reward for the chosen text; and for evaluation "logp" [B T]. */
zf_tensor causal_end(zf_tensor x, zf_tensor words, const causal_inputs *in);

/* zf_nn_linear, or with `bits` (8 or 4) the same with a frozen weight in blocks of 64 numbers of
 * so many bits (zf_param_desc.quantized), of the same name. Rows of other lengths stay floats. */
zf_tensor causal_linear(zf_tensor x, const char *name, int64_t out, const zf_nn_linear_desc *desc,
                        int64_t bits);
/* Such a weight, `name` [out, in]; invalid where it stays float. std: of first values; 0: 0.02 */
zf_tensor causal_weight(zf_graph *g, const char *name, int64_t out, int64_t in, double std,
                        int64_t bits);

/* Gives the attention of a layer, whose keys are `width` wide, its caches if the graph is for
 * generation: a ring where it has a window. */
void causal_caches(zf_attention_desc *attention, const causal_inputs *in, int64_t width);

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
