/* BERT for pretraining (Devlin et al. 2018): its configuration, its graph, its weights as Hugging
 * Face files. */
#ifndef BERT_MODEL_H
#define BERT_MODEL_H

#include "../common/weights.h"

typedef struct bert_config {
    int64_t vocab, hidden, layers, heads, intermediate, positions, types;
    double eps, dropout, attention_dropout, std;
    int64_t activation; /* a zf_activation */
    int64_t pad;        /* the id of [PAD], -1: none */
    int64_t tied;       /* 0: the head has a weight of its own, not that of the word embedding */
    int64_t nsp;        /* 0: masked words alone, without pooler and next-sentence head */
} bert_config;

/* One of tiny, mini, small, medium, base, large, the path of a Hugging Face config.json, or of a
 * folder with one. False with *error. */
bool bert_config_load(const char *name_or_path, bert_config *config, zf_error *error);
/* The same as a config.json in the Hugging Face form: a writer whose text it is, to be freed; NULL
 * out of memory. */
zf_json_writer *bert_config_json(const bert_config *config);

/* What a graph is built for. */
typedef struct bert_shape {
    int64_t batch, sequence;
    /* Rows of the masked-language head: labelled positions of a batch, at most */
    int64_t predictions;
} bert_shape;

/* What the configuration leaves out is the invalid tensor: token types where there is but one, and
 * what is about next sentences. */
typedef struct bert_model {
    zf_tensor input_ids, token_type_ids; /* i32 [B, T] */
    zf_tensor attention_mask;            /* u8 [B, T], 1: a token */
    zf_tensor positions, labels;         /* i32 [P]: b * T + t, and the token there; -100: none */
    zf_tensor next_sentence_label;       /* i32 [B], 0: the second segment follows the first */
    zf_tensor mlm_weight, nsp_weight;    /* f32 []: 1 / labels and 1 / pairs of the global batch */
    zf_tensor lr;                        /* f32 [] */
    zf_tensor loss, mlm_loss, nsp_loss;  /* outputs, f32 []; loss = mlm + nsp */
    /* output, f32 []: labelled positions whose label is the best guess */
    zf_tensor mlm_correct;
    zf_tensor mlm_logits; /* [P, vocab]; an output when `keep_logits` */
} bert_model;

/* Builds the forward graph, in f32. A mistake is the graph's error. */
bert_model bert_build(zf_graph *g, const bert_config *config, const bert_shape *shape,
                      bool keep_logits);

/* What the weights at `path` (weights.h) say about the model: a head whose weight differs from the
 * word embedding is not tied to it, whatever config.json says. *has_nsp (may be NULL): there is a
 * next-sentence head. */
bool bert_config_fit(bert_config *config, const char *path, bool *has_nsp, zf_error *error);

/* Reads every parameter from files with Hugging Face names. LayerNorm's gamma and beta, a missing
 * "bert." prefix and a decoder that is present though tied are accepted; a parameter that is missing
 * (but for the heads, which then keep their first values) or of another shape, and a tensor of the
 * encoder that the model does not have, is an error that names it. What else the files have is
 * reported. Parameters of bf16 or f16 are rounded, their master weights are not. */
zf_status bert_import(zf_program *program, zf_graph *g, const char *path, weights_report *report,
                      zf_error *error);

/* Writes parameters under Hugging Face names: their master weights, where there are any, rounded to
 * `dtype`. gradients: instead those gradients that outputs "gradient/NAME" keep, in their own. All
 * ranks must call; path NULL: another one writes. */
zf_status bert_export(zf_program *program, zf_graph *g, const char *path, bool gradients,
                      zf_dtype dtype, zf_error *error);

#endif
