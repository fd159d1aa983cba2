/* GPT-2 (Radford et al. 2019): its configuration, its graph, its weights as Hugging Face files. */
#ifndef GPT_MODEL_H
#define GPT_MODEL_H

#include "../common/causal.h"

typedef struct gpt_config {
    int64_t vocab, positions, hidden, layers, heads, intermediate;
    double eps, embedding_dropout, attention_dropout, residual_dropout, std;
    int64_t activation; /* a zf_activation */
    int64_t tied;       /* 0: the head has a weight of its own, not that of the word embedding */
    int64_t end;        /* the id of the token in front of a text and behind it; -1: not known */
    /* Whether scores are divided by the layer's number, from 1 on, as well; and whether they are
     * made in f32, which is so here in any case: it is kept for those who read config.json next. */
    int64_t inverse_layer, upcast;
} gpt_config;

/* One of small, 124m, 355m, 774m, 1558m, the path of a Hugging Face config.json, or of a folder
 * with one. False with *error. */
bool gpt_config_load(const char *name_or_path, gpt_config *config, zf_error *error);

/* To the samples' frame. Parameters have GPT-2's names. The weights of its Conv1D, which its files
 * hold as [in, out], are [out, in] here, as of any linear layer: reading and writing files turns
 * them. Accepted in files are a missing "transformer." prefix, a head that is present though tied,
 * and the buffers attn.bias and attn.masked_bias. */
extern const sample_model gpt_sample;

/* Builds the forward graph up to the loss, or for an answer up to the logits of one token that
 * follows each sequence. A mistake is the graph's error. */
zf_tensor gpt_build(zf_graph *g, const gpt_config *config, const sample_shape *shape,
                    sample_purpose purpose);

#endif
