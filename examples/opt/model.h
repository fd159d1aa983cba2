/* OPT (Zhang et al. 2022): its configuration, its graph, its weights as Hugging Face files. */
#ifndef OPT_MODEL_H
#define OPT_MODEL_H

#include "../frame/model/causal.h"

typedef struct opt_config {
    int64_t vocab, positions, hidden, layers, heads, intermediate;
    int64_t words; /* width of the word embedding and of the head; others than hidden are projected */
    int64_t norm_before, norm_removed; /* norms are before what they are for; the last is left out */
    double dropout, attention_dropout, layerdrop, std; /* layerdrop: 0 */
    int64_t activation; /* a zf_activation */
    int64_t tied;       /* 0: the head has its own weight, not tied to the word embedding */
    int64_t begin, pad; /* ids; -1: not known. pad: its embedding is not trained */
    int64_t ends[ZF_CONFIG_ENDS]; /* ids that end a text; -1 after the last */
    int64_t bits;   /* of weights, as zf_config_facts says; 0: they are floats */
    int64_t scores; /* as zf_config_facts says: 1: it scores texts */
    char layout[ZF_CONFIG_LAYOUT]; /* as zf_config_facts.layout says */
} opt_config;

/* For the samples' frame. Parameters have the
 * names of the files. Files may lack the prefix "model.", and may have a head although it is
 * tied. */
extern const sample_model opt_sample;

/* Builds the forward graph up to the loss, or for an answer up to the logits of the token after
 * each sequence; of a model that scores, as score.h says. A mistake is the graph's error. */
zf_tensor opt_build(zf_graph *g, const opt_config *config, const sample_shape *shape,
                    sample_purpose purpose);

#endif
