/* BERT for pretraining (Devlin et al. 2018): its configuration, its graph, its weights as Hugging
 * Face files. */
#ifndef BERT_MODEL_H
#define BERT_MODEL_H

#include "../../zeroflow.h"

typedef struct bert_config {
    int64_t vocab, hidden, layers, heads, intermediate, positions, types;
    double eps, dropout, attention_dropout, std;
} bert_config;

/* One of tiny, mini, small, medium, base, large, or the path of a Hugging Face config.json. False
 * with *error. */
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

/* Reads every parameter from a safetensors file with Hugging Face names. LayerNorm's gamma and
 * beta, a missing "bert." prefix and a decoder that is present though tied are accepted; a
 * parameter that is missing (but for the heads, which then keep their first values and are counted
 * in *fresh) or of another shape is an error that names it. Parameters of bf16 or f16 are rounded,
 * their master weights are not. */
zf_status bert_import(zf_program *program, zf_graph *g, const char *path, int *fresh,
                      zf_error *error);

/* A shape as "[2,3]"; returns text. */
enum { BERT_SHAPE_TEXT = 21 * ZF_MAX_RANK + 2 };
const char *bert_shape_text(char text[BERT_SHAPE_TEXT], zf_shape shape);

/* Writes parameters under Hugging Face names. gradients: instead those gradients that outputs
 * "gradient/NAME" keep. All ranks must call; path NULL: another one writes. */
zf_status bert_export(zf_program *program, zf_graph *g, const char *path, bool gradients,
                      zf_error *error);

#endif
