/* The configuration of Llama and its relatives, and what their readers share. */
#ifndef LLM_CONFIG_H
#define LLM_CONFIG_H

#include "../frame/model/causal.h"

/* model_type. */
typedef enum llm_family {
    LLM_LLAMA,
    LLM_MISTRAL,
    LLM_MINISTRAL, /* a Mistral whose layers differ: its config.json may say mistral */
    LLM_QWEN2,
    LLM_QWEN3,
    LLM_GEMMA3 /* its text part: gemma.h */
} llm_family;

enum { LLM_ENDS = ZF_CONFIG_ENDS, LLM_LAYERS = 1024 /* of a model with windows, at most */ };

typedef struct llm_config {
    int64_t vocab, positions, hidden, layers, intermediate;
    int64_t family;                  /* an llm_family */
    int64_t heads, kv_heads, width; /* width: of a head */
    double eps, attention_dropout, std;
    double theta, factor, low, high; /* of rope; factor, low, high and original if it is scaled */
    int64_t scaling, original;       /* a zf_rope_scaling; plain with a factor: dynamic */
    double attention;                /* of yarn */
    int64_t unrounded;               /* of yarn */
    double near_theta;               /* of layers with a window; they have plain rope; 0: as others */
    int64_t query;                   /* scores are divided by its root; 0: width */
    int64_t activation;              /* a zf_activation */
    int64_t attention_bias;          /* of q, k, v and o; Qwen2 always has those of q, k and v */
    int64_t mlp_bias;
    int64_t window;                  /* tokens that a token sees, but in these layers; 0: all */
    int64_t full[LLM_LAYERS / 64];   /* a bit each */
    int64_t tied;                    /* 0: the head has its own weight */
    int64_t begin, pad;              /* ids; -1: not known. pad: its embedding is not trained */
    int64_t ends[LLM_ENDS];          /* ids that end a text; -1 after the last */
    int64_t bits;                    /* of weights, as zf_config_facts says; 0: they are floats */
    int64_t scores;                  /* as zf_config_facts says: 1: it scores texts */
    char layout[ZF_CONFIG_LAYOUT];   /* as zf_config_facts says: blocks that tokens see */
} llm_config;

/* For families that read more. The rope of all layers, or of those without a window. */
void llm_set_rope(llm_config *config, const zf_rope_desc *rope);
/* The layer sees all tokens. */
void llm_set_full(llm_config *config, int64_t layer);
/* layer_types: the kind of each layer. */
void llm_read_types(llm_config *config, const zf_json *types, zf_error *error);

#endif
