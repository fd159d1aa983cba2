/* What families of models have of their own, and what their readers share. */
#include <stddef.h>

#define ZFL_AT(member) offsetof(zf_causal_config, member)

/* Which norms q and k have. */
typedef enum zfl_query_norm { ZFL_NO_NORM, ZFL_NORM_OF_HEADS, ZFL_NORM_OF_ROWS } zfl_query_norm;

/* Names of parts of the graph; NULL: those of a Llama. */
typedef struct zfl_names {
    const char *model, *embedding, *layers, *attention, *out, *last_norm, *head;
    const char *mlp, *joined; /* of a product that joins q, k and v: qkv_proj */
    const char *embedding_norm; /* a norm after the embedding; NULL: there is none */
} zfl_names;

/* Names of the norms of a layer. */
typedef struct zfl_norms {
    const char *before_attention, *after_attention, *before_mlp, *after_mlp;
} zfl_norms;

/* What a family has of its own, one file each in family/ and mixture/. */
typedef struct zfl_family_desc {
    const char *architecture;
    zf_config_family config; /* members of config.json that it alone has; defaults */
    /* Defaults of config.json; 0: heads, hidden / heads, none */
    int64_t kv_heads, width, window;
    bool no_attention_bias, no_mlp_bias; /* these members change nothing */
    /* Further reading, and writing; NULL: none. The rope and the windows are read before, but where
     * it says that it reads them. */
    void (*read)(zf_causal_config *config, const zf_json *json, zf_error *error);
    void (*write)(const zf_causal_config *config, zf_json_writer *w);
    bool reads_rope, reads_windows;
    zfl_names names;
    /* The graph: names of the norms of a layer, NULL: there is none; */
    zfl_norms norms;
    zfl_norms parallel_norms; /* of ZF_CAUSAL_PARALLEL; all NULL: the same; */
    bool layer_norm;          /* they are layer norms, with biases, not RMS norms; */
    bool no_norm_bias;        /* but without the biases; */
    bool one_more;            /* norms multiply by 1 + weight; */
    zfl_query_norm queries;
    bool qkv_bias;      /* q, k and v have biases, and o has none; */
    bool dropouts;      /* the embedding and what is added have dropout; */
    bool same_dropout;  /* that of attention is that of what is added; */
    bool one_dropout;   /* of one probability, `dropout`; */
    const char *mlp[2]; /* the MLP is two products of these names; NULL: gate, up and down; */
    /* q, k and v are one product of this name: of each group of heads the queries, a key, a
     * value; */
    const char *grouped;
    const char *expert_scope; /* of a layer with experts; NULL: mlp; */
    zf_moe_names expert_names;
    bool joined; /* q, k and v are one product, gate and up another, gate_up_proj */
} zfl_family_desc;

static const zfl_family_desc *zfl_causal_of(const zf_causal_config *config);

/* The names of the norms of a Llama. */
#define ZFL_NORMS                                                                                  \
    {                                                                                              \
        .before_attention = "input_layernorm", .before_mlp = "post_attention_layernorm"            \
    }

/* Defaults of a family; those of rope, of norms and of ids differ. */
#define ZFL_DEFAULTS(of_rope, of_norms, of_begin, of_end, of_pad)                                  \
    .vocab = 32000, .positions = 2048, .std = 0.02, .activation = ZF_ACTIVATION_SILU,              \
    .theta = (of_rope), .eps = (of_norms), .begin = (of_begin), .pad = (of_pad),                   \
    .ends = {(of_end), -1, -1, -1, -1, -1, -1, -1}
