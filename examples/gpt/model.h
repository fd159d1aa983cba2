/* GPT-2 (Radford et al. 2019): its configuration, its graph, its weights as Hugging Face files. */
#ifndef GPT_MODEL_H
#define GPT_MODEL_H

#include "../frame/model/causal.h"

typedef struct gpt_config {
    int64_t vocab, positions, hidden, layers, heads, intermediate;
    double eps, embedding_dropout, attention_dropout, residual_dropout, std;
    int64_t activation; /* a zf_activation */
    int64_t tied;       /* 0: the head has its own weight, not tied to the word embedding */
    int64_t begin;      /* the id before a text; -1: not known */
    int64_t ends[ZF_CONFIG_ENDS]; /* ids that end a text; -1 after the last */
    /* Whether scores are also divided by the layer's number, from 1 on; and whether they are
     * computed in f32, which they always are here: kept for writing config.json. */
    int64_t inverse_layer, upcast;
    int64_t bits; /* of weights, as zf_config_facts says; 0: they are floats */
    int64_t scores; /* as zf_config_facts says: 1: it scores texts */
    char layout[ZF_CONFIG_LAYOUT]; /* as zf_config_facts.layout says */
} gpt_config;

/* One of small, 124m, 355m, 774m, 1558m, the path of a Hugging Face config.json, or of a folder
 * with one. False with *error. */
bool gpt_config_load(const char *name_or_path, gpt_config *config, zf_error *error);

/* For the samples' frame. Parameters have GPT-2's names. The weights of its Conv1D are [in, out] in
 * its files and [out, in] here, as in any linear layer; reading and writing transposes them. Files
 * may lack the prefix "transformer.", may have a head although it is tied, and may have the buffers
 * attn.bias and attn.masked_bias. */
extern const sample_model gpt_sample;

/* Builds the forward graph up to the loss, or for an answer up to the logits of the token after
 * each sequence; of a model that scores, as score.h says. A mistake is the graph's error. */
zf_tensor gpt_build(zf_graph *g, const gpt_config *config, const sample_shape *shape,
                    sample_purpose purpose);

#endif
