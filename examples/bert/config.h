/* The configuration of BERT and its relatives, the tensors of their graphs, and what a family has
 * of its own: members of config.json, names of parameters, and what its graph does otherwise, one
 * file each in family/. */
#ifndef BERT_CONFIG_H
#define BERT_CONFIG_H

#include "../frame/model/sample.h"

/* model_type. */
typedef enum bert_family {
    BERT_BERT,
    BERT_ROBERTA,
    BERT_XLM_ROBERTA,
    BERT_CAMEMBERT,
    BERT_DISTILBERT,
    BERT_MODERNBERT,
    BERT_FAMILIES
} bert_family;

/* What the model computes of a text: words that are masked, a label of several, a number. */
typedef enum bert_task { BERT_PREDICTS, BERT_CLASSIFIES, BERT_REGRESSES } bert_task;

enum {
    BERT_LAYERS = 256, /* of ModernBERT, at most */
    BERT_NAMES = 8192  /* bytes of names of labels */
};

typedef struct bert_config {
    int64_t vocab, hidden, layers, heads, intermediate, types;
    int64_t positions; /* tokens of a text, at most */
    double eps, dropout, attention_dropout, std;
    int64_t activation; /* a zf_activation */
    int64_t pad;        /* the id of [PAD], -1: none */
    int64_t tied;       /* 0: the head has its own weight, not tied to the word embedding */
    int64_t nsp;        /* 0: masked words alone, without pooler and next-sentence head */
    int64_t pre_norm;   /* LayerNorm before each half of a layer, and one after the last layer */
    char layout[ZF_CONFIG_LAYOUT]; /* as zf_config_facts.layout says */
    int64_t family;                /* a bert_family */
    int64_t task, labels;          /* a bert_task; labels of a text, 1 of BERT_REGRESSES */
    char names[BERT_NAMES];        /* of labels, each with \n after it */
    double classifier_dropout;     /* before labels are computed; negative: `dropout` */
    int64_t sinusoids;             /* of DistilBERT: the position embedding is not trained */
    /* Of ModernBERT: */
    double embedding_dropout, theta, near_theta; /* theta: of rope; near: of layers with a window */
    int64_t near; /* tokens that such layers see, half of them on either side of a token's own */
    int64_t near_layers[BERT_LAYERS / 64]; /* a bit each */
    int64_t norm_bias, attention_bias, mlp_bias, decoder_bias, classifier_bias;
    int64_t classifier_activation; /* a zf_activation */
    int64_t begin, end, cls, sep;  /* ids, which are read and written; -1: none */
    int64_t mean; /* labels are of the mean over tokens, not of the first one */
    /* Of BERT alone: experts of a layer, 0: none; those of a token, each with intermediate / chosen
     * hidden numbers; 1: a bias for the choice. And of a run alone: the factor of the loss that
     * spreads tokens over experts, and by how much the bias moves in a step */
    int64_t experts, chosen, router_bias;
    double aux_loss, balance_bias;
} bert_config;

/* Defaults of BERT and others. */
#define BERT_DEFAULTS(token_types, of_classifier)                                                  \
    .positions = 512, .types = (token_types), .eps = 1e-12, .dropout = 0.1,                        \
    .attention_dropout = 0.1, .std = 0.02, .tied = 1, .classifier_dropout = (of_classifier)

/* Tensors that the configuration does not need are invalid: token types if there is only one, and
 * those for next sentences. */
typedef struct bert_model {
    zf_tensor input_ids, token_type_ids; /* i32 [B, T] */
    zf_tensor attention_mask;            /* u8 [B, T], 1: a token. Not of packed rows */
    zf_tensor segments, places;          /* of packed rows: i32 [B, T] */
    zf_tensor positions, labels;         /* i32 [P]: b * T + t, and the token there; -100: none */
    zf_tensor next_sentence_label;       /* i32 [B], 0: the second segment follows the first */
    zf_tensor mlm_weight, nsp_weight;    /* f32 []: 1 / labels and 1 / pairs of the global batch */
    zf_tensor lr;                        /* f32 [] */
    zf_moe_parts *routers; /* while it is built, of each layer; NULL: there are no experts */
    /* Of a model with labels, in place of what is predicted: i32 [B], -100: none, or of
     * BERT_REGRESSES f32; f32 [], 1 / texts of the global batch; of BERT_REGRESSES f32 [B], 0: the
     * row is no text. And the scores, f32 [B, labels], an output when `keep_logits` */
    zf_tensor text_labels, text_weight, text_there, scores;
    zf_tensor loss, mlm_loss, nsp_loss;  /* outputs, f32 []; loss = mlm + nsp */
    /* output, f32 []: labelled positions where the argmax is the label */
    zf_tensor mlm_correct;
    zf_tensor mlm_logits; /* [P, vocab]; an output when `keep_logits` */
} bert_model;

/* One of tiny, mini, small, medium, base, large, the path of a Hugging Face config.json, or of a
 * folder with one. False with *error. */
bool bert_config_load(const char *name_or_path, bert_config *config, zf_error *error);

/* Sets the labels of a model with an adapter (sample_model.adapt): those that the adapter was trained
 * for. One without a head for them fits a model that predicts words. */
bool bert_adapt(void *config, const char *adapter, zf_error *error);

/* What a model with experts must be, and whether it is, or has none. */
#define BERT_WITH_EXPERTS                                                                          \
    "a BERT of at most 256 layers, with an intermediate size that is a multiple of the experts of a " \
    "token, at least one and at most all"
bool bert_experts_fit(const bert_config *config);

extern const zf_config_table bert_config_table; /* its keys in config.json */

/* Names of the parts that predict masked words. */
typedef struct bert_head_names {
    const char *scope, *dense, *norm, *decoder, *bias;
} bert_head_names;

typedef struct bert_family_desc {
    const char *class; /* of transformers, as "Roberta" */
    const char *masked, *classifier; /* its models for masked words and for texts */
    zf_config_family config; /* members of config.json that it alone has; defaults */
    /* Further reading and writing; NULL: none. */
    void (*read)(bert_config *config, const zf_json *json, zf_error *error);
    void (*write)(const bert_config *config, zf_json_writer *w);
    const char *dropout; /* the key of bert_config.classifier_dropout */
    /* The states of all tokens, [B, T, H]; *words: the word embedding. */
    zf_tensor (*body)(zf_graph *g, const bert_config *config, const sample_shape *shape,
                      const bert_model *m, zf_tensor *words);
    bert_head_names head;
    /* What the head does before the decoder; NULL: a product, an activation and a norm. */
    zf_tensor (*transform)(zf_tensor x, const bert_config *config);
    /* The scores of labels, [B, labels], by the states of all tokens. */
    zf_tensor (*classify)(zf_tensor x, const bert_config *config, const bert_model *m);
    const char *labels; /* the modules of `classify`, with commas between */
    bool two_separators; /* between two texts */
} bert_family_desc;

const bert_family_desc *bert_family_of(const bert_config *config);

extern const bert_family_desc bert_roberta, bert_xlm_roberta, bert_camembert, bert_distilbert,
    bert_modernbert;

/* For the graphs of families (model.c). The body of BERT and RoBERTa, under this scope, whose first
 * token has row `first` of the position embedding. */
zf_tensor bert_encode(zf_graph *g, const bert_config *config, const sample_shape *shape,
                      const bert_model *m, zf_tensor *words, const char *scope, int64_t first);
/* The states of first tokens, [B, H], of x [B, T, H]. */
zf_tensor bert_first(zf_tensor x);
/* zf_nn_linear with the configuration's standard deviation. */
zf_tensor bert_linear(zf_tensor x, const char *name, int64_t out, const bert_config *config);
zf_tensor bert_words(zf_graph *g, const char *name, const bert_config *config);
/* attention_mask as [B, 1, 1, T], for zf_attention_desc.mask. */
zf_tensor bert_seen(const bert_model *m);

#endif
