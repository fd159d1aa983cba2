/* GPT-2 (Radford et al. 2019): its configuration, its graph, its weights as Hugging Face files. */
#ifndef GPT_MODEL_H
#define GPT_MODEL_H

#include "../common/lm.h"

typedef struct gpt_config {
    int64_t vocab, positions, hidden, layers, heads, intermediate;
    double eps, embedding_dropout, attention_dropout, residual_dropout, std;
    int64_t activation; /* a zf_activation */
    int64_t tied;       /* 0: the head has a weight of its own, not that of the word embedding */
    int64_t end;        /* the id of the token in front of a text and behind it; -1: not known */
    /* Whether scores are divided by the layer's number, from 1 on, as well; and whether they are made
     * in f32, which is so here in any case: it is kept for those who read config.json next. */
    int64_t inverse_layer, upcast;
} gpt_config;

/* One of small, 124m, 355m, 774m, 1558m, the path of a Hugging Face config.json, or of a folder
 * with one. False with *error. */
bool gpt_config_load(const char *name_or_path, gpt_config *config, zf_error *error);
/* The same as a config.json in the Hugging Face form: a writer whose text it is, to be freed; NULL
 * out of memory. */
zf_json_writer *gpt_config_json(const gpt_config *config);

/* To the samples' frame. */
extern const lm_kind gpt_kind;

/* Builds the forward graph up to the loss, or up to the logits of one token that follows each
 * sequence. A mistake is the graph's error. */
lm_model gpt_build(zf_graph *g, const gpt_config *config, const lm_shape *shape);
lm_model gpt_build_next(zf_graph *g, const gpt_config *config, const lm_shape *shape);

/* Parameters have GPT-2's names. The weights of its Conv1D, which its files hold as [in, out], are
 * [out, in] here, as of any linear layer: reading and writing files turns them.
 *
 * Reads every parameter from files with GPT-2's names (weights.h). A missing "transformer." prefix,
 * a head that is present though tied, and the buffers attn.bias and attn.masked_bias are accepted; a
 * parameter that is missing (but for an untied head, which then keeps its first values) or of
 * another shape, and a tensor of the transformer that the model does not have, is an error that
 * names it. What else the files have is reported. */
bool gpt_import(zf_program *program, zf_graph *g, const char *path, weights_report *report,
                zf_error *error);
/* What the weights at `path` say about the model: a head whose weight differs from the word
 * embedding is not tied to it, whatever config.json says. */
bool gpt_config_fit(gpt_config *config, const char *path, zf_error *error);
/* Writes parameters: their master weights, where there are any, rounded to `dtype`. gradients:
 * instead those gradients that outputs "gradient/NAME" keep, in their own. */
bool gpt_export(zf_program *program, zf_graph *g, const char *path, bool gradients, zf_dtype dtype,
                zf_error *error);

#endif
