/* BERT for pretraining (Devlin et al. 2018): its configuration, its graph, its weights as Hugging
 * Face files. */
#ifndef BERT_MODEL_H
#define BERT_MODEL_H

#include "../frame/model/sample.h"

typedef struct bert_config {
    int64_t vocab, hidden, layers, heads, intermediate, positions, types;
    double eps, dropout, attention_dropout, std;
    int64_t activation; /* a zf_activation */
    int64_t pad;        /* the id of [PAD], -1: none */
    int64_t tied;       /* 0: the head has its own weight, not tied to the word embedding */
    int64_t nsp;        /* 0: masked words alone, without pooler and next-sentence head */
    int64_t pre_norm;   /* LayerNorm before each half of a layer, and one after the last layer */
    char layout[ZF_CONFIG_LAYOUT]; /* as zf_config_facts.layout says */
} bert_config;

/* One of tiny, mini, small, medium, base, large, the path of a Hugging Face config.json, or of a
 * folder with one. False with *error. */
bool bert_config_load(const char *name_or_path, bert_config *config, zf_error *error);

extern const zf_config_table bert_config_table; /* its keys in config.json */

/* For the samples' frame (sample.c). Parameters have Hugging Face's names. Files may have
 * LayerNorm's gamma and beta, may lack the prefix "bert.", and may have a decoder although it is
 * tied. */
extern const sample_model bert_sample;

/* Tensors that the configuration does not need are invalid: token types if there is only one, and
 * those for next sentences. */
typedef struct bert_model {
    zf_tensor input_ids, token_type_ids; /* i32 [B, T] */
    zf_tensor attention_mask;            /* u8 [B, T], 1: a token */
    zf_tensor positions, labels;         /* i32 [P]: b * T + t, and the token there; -100: none */
    zf_tensor next_sentence_label;       /* i32 [B], 0: the second segment follows the first */
    zf_tensor mlm_weight, nsp_weight;    /* f32 []: 1 / labels and 1 / pairs of the global batch */
    zf_tensor lr;                        /* f32 [] */
    zf_tensor loss, mlm_loss, nsp_loss;  /* outputs, f32 []; loss = mlm + nsp */
    /* output, f32 []: labelled positions where the argmax is the label */
    zf_tensor mlm_correct;
    zf_tensor mlm_logits; /* [P, vocab]; an output when `keep_logits` */
} bert_model;

/* Builds the forward graph, in f32. A mistake is the graph's error. */
bert_model bert_build(zf_graph *g, const bert_config *config, const sample_shape *shape,
                      bool keep_logits);

/* First values (bert_sample.first): with settings.own's sinusoids and unigrams. */
bool bert_first_values(struct session *s, const settings *o, const void *config, const dataset *d,
                       zf_error *error);
/* rows x width: sin and cos of t / 10000^(i / width), with a mean square of std^2. */
void bert_sinusoids(float *table, int64_t rows, int64_t width, double std);

#endif
