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
    LLM_GEMMA3, /* its text part: gemma.c */
    LLM_GRANITE,
    LLM_OLMO2,
    LLM_SMOLLM3,
    LLM_PHI3,
    LLM_GEMMA2,
    LLM_STARCODER2,
    LLM_NEOX,
    LLM_FALCON,
    LLM_MIXTRAL,
    LLM_QWEN2_MOE,
    LLM_QWEN3_MOE,
    LLM_OLMOE,
    LLM_DEEPSEEK3, /* refused: family/deepseek.c */
    LLM_BLOOM,
    LLM_FAMILIES
} llm_family;

enum {
    LLM_ENDS = ZF_CONFIG_ENDS,
    LLM_LAYERS = 1024, /* of a model with windows, at most */
    LLM_FACTORS = 64   /* frequencies of longrope, at most */
};

/* How experts are trained: options of a run. */
typedef struct llm_training {
    double aux_loss, z_loss; /* what losses of the router are multiplied by; 0: there are none */
    double capacity;         /* zf_moe_desc.capacity */
    int64_t by_layer, random; /* 0 or 1: a zf_moe_balance, zf_moe_desc.random */
} llm_training;

typedef struct llm_config {
    int64_t vocab, positions, hidden, layers, intermediate;
    int64_t family;                 /* an llm_family */
    int64_t heads, kv_heads, width; /* width: of a head */
    double eps, attention_dropout, std;
    double dropout, embedding_dropout; /* of what is added in a layer; families have them or not */
    double theta, factor, low, high;   /* of rope; factor, low, high and original if it is scaled */
    int64_t scaling, original;         /* a zf_rope_scaling; plain with a factor: dynamic */
    double attention;                  /* of yarn and longrope */
    int64_t unrounded;                 /* of yarn */
    int64_t factors; /* of each list of longrope, with `original`; 0: rope is another one */
    float of_short[LLM_FACTORS], of_long[LLM_FACTORS];
    double near_theta;          /* of layers with a window; they have plain rope; 0: as others */
    int64_t query;              /* scores are divided by its root; 0: width */
    double cap, last_cap;       /* of scores and of logits; 0: none */
    double score;               /* scores are multiplied by it instead; 0: they are not */
    double embedding, residual; /* what is read, and added in a layer, is multiplied by it; */
    double logits;              /* these are divided by it; 0: 1, of all three */
    int64_t alibi;              /* attention has ALiBi (bloom.c), and there is no rope */
    int64_t rotated;            /* numbers of a head that rope rotates, the first ones; 0: all */
    int64_t activation;         /* a zf_activation */
    int64_t parallel;           /* an llm_parallel */
    int64_t experts, chosen;    /* of a layer with experts, and of a token; 0: there are none */
    int64_t expert_width, shared_width; /* intermediate of an expert; of the shared one, 0: none */
    int64_t normalize;          /* weights of a token's experts add up to 1 */
    double balance;             /* router_aux_loss_coef of the file, which is kept */
    llm_training of;            /* what a run says of experts; no file has it */
    int64_t attention_bias;     /* of q, k, v and o; Qwen2 always has those of q, k and v */
    int64_t mlp_bias;
    int64_t window;                 /* tokens that a token sees, but in these layers; 0: all */
    int64_t full[LLM_LAYERS / 64];  /* a bit each */
    int64_t plain[LLM_LAYERS / 64]; /* layers without rope, a bit each */
    int64_t dense[LLM_LAYERS / 64]; /* layers without experts, a bit each */
    int64_t tied;                   /* 0: the head has its own weight */
    int64_t begin, pad;             /* ids; -1: not known. pad: its embedding is not trained */
    int64_t ends[LLM_ENDS];         /* ids that end a text; -1 after the last */
    int64_t bits;                   /* of weights, as zf_config_facts says; 0: they are floats */
    int64_t scores;                 /* as zf_config_facts says: 1: it scores texts */
    char layout[ZF_CONFIG_LAYOUT];  /* as zf_config_facts says: blocks that tokens see */
} llm_config;

/* What the MLP of a layer is of: of what attention has been added to; of the same x as attention,
 * by its own norm or by the same one. */
typedef enum llm_parallel { LLM_SEQUENTIAL, LLM_PARALLEL, LLM_PARALLEL_ONE_NORM } llm_parallel;

/* Which norms q and k have. */
typedef enum llm_query_norm { LLM_NO_NORM, LLM_NORM_OF_HEADS, LLM_NORM_OF_ROWS } llm_query_norm;

/* Names of parts of the graph; NULL: those of a Llama. */
typedef struct llm_names {
    const char *model, *embedding, *layers, *attention, *out, *last_norm, *head;
    const char *embedding_norm; /* a norm after the embedding; NULL: there is none */
} llm_names;

/* Names of the norms of a layer. */
typedef struct llm_norms {
    const char *before_attention, *after_attention, *before_mlp, *after_mlp;
} llm_norms;

/* What a family has of its own, one file each in family/. */
typedef struct llm_family_desc {
    const char *architecture;
    zf_config_family config; /* members of config.json that it alone has; defaults */
    /* Defaults of config.json; 0: heads, hidden / heads, none */
    int64_t kv_heads, width, window;
    bool no_attention_bias, no_mlp_bias; /* these members change nothing */
    /* Further reading, and writing; NULL: none. The rope and the windows are read before, but where
     * it says that it reads them. */
    void (*read)(llm_config *config, const zf_json *json, zf_error *error);
    void (*write)(const llm_config *config, zf_json_writer *w);
    bool reads_rope, reads_windows;
    llm_names names;
    /* The graph: names of the norms of a layer, NULL: there is none; */
    llm_norms norms;
    llm_norms parallel_norms; /* of LLM_PARALLEL; all NULL: the same; */
    bool layer_norm;          /* they are layer norms, with biases, not RMS norms; */
    bool one_more;            /* norms multiply by 1 + weight; */
    llm_query_norm queries;
    bool qkv_bias;      /* q, k and v have biases, and o has none; */
    bool dropouts;      /* the embedding and what is added have dropout; */
    bool one_dropout;   /* of one probability, `dropout`; */
    const char *mlp[2]; /* the MLP is two products of these names; NULL: gate, up and down; */
    /* q, k and v are one product of this name: of each group of heads the queries, a key, a
     * value; */
    const char *grouped;
    const char *expert_scope;   /* of a layer with experts; NULL: mlp; */
    zf_moe_names expert_names;
    bool joined; /* q, k and v are one product, qkv_proj, gate and up another, gate_up_proj */
} llm_family_desc;

const llm_family_desc *llm_family_of(const llm_config *config);

extern const llm_family_desc llm_gemma2, llm_gemma3, llm_granite, llm_olmo2, llm_smollm3, llm_phi3,
    llm_starcoder2, llm_neox, llm_falcon, llm_mixtral, llm_qwen2_moe, llm_qwen3_moe, llm_olmoe,
    llm_deepseek3, llm_bloom;

/* The names of the norms of a Llama. */
#define LLM_NORMS                                                                                  \
    {                                                                                              \
        .before_attention = "input_layernorm", .before_mlp = "post_attention_layernorm"            \
    }

/* Defaults of a family; those of rope, of norms and of ids differ. */
#define LLM_DEFAULTS(of_rope, of_norms, of_begin, of_end, of_pad)                                  \
    .vocab = 32000, .positions = 2048, .std = 0.02, .activation = ZF_ACTIVATION_SILU,              \
    .theta = (of_rope), .eps = (of_norms), .begin = (of_begin), .pad = (of_pad),                   \
    .ends = {(of_end), -1, -1, -1, -1, -1, -1, -1}

extern const zf_config_table llm_members;

/* The layer sees all tokens; has no rope. */
bool llm_is_full(const llm_config *config, int64_t layer);
bool llm_is_plain(const llm_config *config, int64_t layer);
/* The layer has experts. */
bool llm_is_sparse(const llm_config *config, int64_t layer);

/* For families that read more. The rope of all layers, or of those without a window. */
void llm_set_rope(llm_config *config, const zf_rope_desc *rope);
/* Sets the bit of a layer, in full or plain. */
void llm_mark(int64_t *bits, int64_t layer);
/* layer_types: the kind of each layer. */
void llm_read_types(llm_config *config, const zf_json *types, zf_error *error);
/* sliding_window: `absent` where it is missing, 0 for null. */
void llm_read_window(llm_config *config, const zf_json *json, int64_t absent, zf_error *error);
/* partial_rotary_factor of the file, or what it stands for. */
void llm_set_part(llm_config *config, double part, const zf_json *json, zf_error *error);
/* The epsilon of norms, 1e-5 if it is missing; rms_norm_eps may repeat it. */
void llm_read_eps(llm_config *config, const zf_json *json, const char *key, zf_error *error);
/* A member that may only repeat a value. why: what an error ends with. */
void llm_repeat(const zf_json *json, const char *key, bool value, const char *why, zf_error *error);
void llm_repeat_count(const zf_json *json, const char *key, int64_t value, const char *why,
                      zf_error *error);
/* A token's experts are no more than there are. */
void llm_check_experts(const llm_config *config, const zf_json *json, zf_error *error);
/* The object of rope that counts; NULL: there is none. */
const zf_json *llm_rope_of(const zf_json *json, zf_error *error);
/* layer_types. */
void llm_write_types(const llm_config *config, zf_json_writer *w);

/* bloom.c. The number by which ALiBi multiplies the place of a key. */
double llm_alibi_slope(int64_t head, int64_t heads);
/* ALiBi of so many keys, [1 or B, heads, 1, keys]: a mask of zf_attention_desc. mask: [B, keys], of
 * which tokens that are 0 do not count as places; ZF_NONE: all do. */
zf_tensor llm_alibi(zf_graph *g, int64_t heads, int64_t keys, zf_tensor mask);

/* longrope.c. The object of rope, where it is longrope; else NULL. */
const zf_json *llm_longrope_of(const zf_json *json, zf_error *error);
/* Reads it, and the part of a head that is rotated. */
void llm_read_longrope(llm_config *config, const zf_json *json, const zf_json *object, double *part,
                       zf_error *error);
void llm_write_longrope(const llm_config *config, zf_json_writer *w);
/* Cosines and sines of all positions, [1 or B, T, 1, factors], by the list for the graph's room. */
void llm_longrope_table(zf_graph *g, const llm_config *config, const sample_shape *shape,
                        const causal_inputs *in, zf_tensor *cosine, zf_tensor *sine);
/* Rotates the first numbers of each head of x [B, T, heads width] by them. */
zf_tensor llm_rotate_by(zf_tensor x, zf_tensor cosine, zf_tensor sine, int64_t heads,
                        const llm_config *config);

#endif
