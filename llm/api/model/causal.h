/* Models that predict the next token, as graphs: Llama and its relatives, by the config.json and
 * the weights of Hugging Face's folders. The families are those of zf_causal_family.
 *
 *     zf_causal_model     their table of config.json, their graph of generation, names in files
 *     zf_causal_body      the graph from ids to what the head is given
 *     zf_causal_logits    the head
 *     zf_causal_train     the graph of a training step, up to the loss
 *
 *     zf_causal_config config;
 *     zf_config_load(zf_causal_model()->config, "DIR", &config, &error);
 *     zf_tensor loss = zf_causal_train(g, &config, &(zf_causal_shape){8, 512, false});
 *     zf_passes(g, &(zf_training){.loss = loss, .lora = {.rank = 8}});
 *     zf_program *p = zf_compile(g, NULL);
 *     zf_exchange_import(&zf_causal_model()->exchange, p, g, "DIR", &report, &error);
 *
 * zf_tuner does all of this, and reads the examples; zf_generator takes the same models. Functions
 * that build a graph return its tensors; a mistake is the graph's error (zf_graph_error). */

/* model_type of config.json, by its place in zf_causal_model()->config->types. */
typedef enum zf_causal_family {
    ZF_CAUSAL_LLAMA,
    ZF_CAUSAL_MISTRAL,
    ZF_CAUSAL_MINISTRAL, /* a Mistral whose layers differ: its config.json may say mistral */
    ZF_CAUSAL_QWEN2,
    ZF_CAUSAL_QWEN3,
    ZF_CAUSAL_GEMMA3, /* its text part */
    ZF_CAUSAL_GRANITE,
    ZF_CAUSAL_OLMO2,
    ZF_CAUSAL_SMOLLM3,
    ZF_CAUSAL_PHI3,
    ZF_CAUSAL_GEMMA2,
    ZF_CAUSAL_STARCODER2,
    ZF_CAUSAL_NEOX,
    ZF_CAUSAL_FALCON,
    ZF_CAUSAL_MIXTRAL,
    ZF_CAUSAL_QWEN2_MOE,
    ZF_CAUSAL_QWEN3_MOE,
    ZF_CAUSAL_OLMOE,
    ZF_CAUSAL_DEEPSEEK3, /* refused: zf_config_load says why */
    ZF_CAUSAL_BLOOM,
    ZF_CAUSAL_MPT,
    ZF_CAUSAL_FAMILIES
} zf_causal_family;

enum {
    ZF_CAUSAL_LAYERS = 1024, /* of a model with windows, at most */
    ZF_CAUSAL_FACTORS = 64   /* frequencies of longrope, at most */
};

/* How experts are trained: what a run says of them, and no file has. {0}: no losses, no limit. */
typedef struct zf_causal_routing {
    double aux_loss, z_loss; /* what losses of the router are multiplied by; 0: there are none */
    double capacity;         /* zf_moe_desc.capacity */
    int64_t by_layer, random; /* 0 or 1: a zf_moe_balance, zf_moe_desc.random */
    /* By which the bias of a router moves in a step (zf_moe_desc.balance; the configuration must have
     * router_bias); 0: it is not trained */
    double balance_bias;
    bool residual; /* the model is to have residual_experts; else this is an error */
    /* There are outputs of how often experts of layer N are chosen (zf_moe_load), "experts.N" */
    bool watched;
} zf_causal_routing;

/* What the MLP of a layer is of: of what attention has been added to; of the same x as attention,
 * by its own norm or by the same one. */
typedef enum zf_causal_parallel {
    ZF_CAUSAL_SEQUENTIAL,
    ZF_CAUSAL_PARALLEL,
    ZF_CAUSAL_PARALLEL_ONE_NORM
} zf_causal_parallel;

/* ALiBi (Press et al. 2022): which slopes heads have, and how numbers are rounded. */
typedef enum zf_causal_alibi {
    ZF_CAUSAL_NO_ALIBI,
    ZF_CAUSAL_ALIBI, /* of Bloom */
    /* The same slopes; slopes, places and their products are rounded to bf16, and divided by the
     * root of a head's width, as scores are */
    ZF_CAUSAL_ALIBI_FALCON,
    ZF_CAUSAL_ALIBI_MPT /* other slopes where heads are no power of 2; padding has places too */
} zf_causal_alibi;

/* The configuration of a model, as zf_config_load sets it. A program may change members, of which
 * the family must have what it says; sizes that do not fit are an error of the graph. */
typedef struct zf_causal_config {
    int64_t vocab, positions, hidden, layers, intermediate;
    int64_t family;                 /* a zf_causal_family */
    int64_t heads, kv_heads, width; /* width: of a head */
    double eps, attention_dropout, std;
    double dropout, embedding_dropout; /* of what is added in a layer; families have them or not */
    double theta, factor, low, high;   /* of rope; factor, low, high and original if it is scaled */
    int64_t scaling, original;         /* a zf_rope_scaling; plain with a factor: dynamic */
    double attention;                  /* of yarn and longrope */
    int64_t unrounded;                 /* of yarn */
    int64_t factors; /* of each list of longrope, with `original`; 0: rope is another one */
    float of_short[ZF_CAUSAL_FACTORS], of_long[ZF_CAUSAL_FACTORS];
    double near_theta;          /* of layers with a window; they have plain rope; 0: as others */
    int64_t query;              /* scores are divided by its root; 0: width */
    double cap, last_cap;       /* of scores and of logits; 0: none */
    double score;               /* scores are multiplied by it instead; 0: they are not */
    double embedding, residual; /* what is read, and added in a layer, is multiplied by it; */
    double logits;              /* these are divided by it; 0: 1, of all three */
    int64_t alibi;              /* a zf_causal_alibi; with one there is no rope */
    double clip;                /* numbers of q, k and v are at most so far from 0; 0: any */
    int64_t rotated;            /* numbers of a head that rope rotates, the first ones; 0: all */
    int64_t activation;         /* a zf_activation */
    int64_t parallel;           /* a zf_causal_parallel */
    int64_t experts, chosen;    /* of a layer with experts, and of a token; 0: there are none */
    int64_t expert_width, shared_width; /* intermediate of an expert; of the shared one, 0: none */
    int64_t normalize;          /* weights of a token's experts add up to 1 */
    int64_t router_bias;        /* routers have a bias for the choice of experts */
    int64_t residual_experts;   /* a layer of experts has an MLP for all tokens (PR-MoE) */
    double balance;             /* router_aux_loss_coef of the file, which is kept */
    zf_causal_routing of;       /* how experts are trained */
    int64_t attention_bias;     /* of q, k, v and o; Qwen2 always has those of q, k and v */
    int64_t mlp_bias;
    int64_t window;             /* tokens that a token sees, but in these layers; 0: all */
    int64_t full[ZF_CAUSAL_LAYERS / 64];  /* a bit each */
    int64_t plain[ZF_CAUSAL_LAYERS / 64]; /* layers without rope, a bit each */
    int64_t dense[ZF_CAUSAL_LAYERS / 64]; /* layers without experts, a bit each */
    int64_t tied;                   /* 0: the head has its own weight */
    int64_t begin, pad;             /* ids; -1: not known. pad: its embedding is not trained */
    int64_t ends[ZF_CONFIG_ENDS];   /* ids that end a text; -1 after the last */
    int64_t bits;                   /* of weights, as zf_config_facts says; 0: they are floats */
    int64_t scores;                 /* as zf_config_facts says: 1: it scores texts */
    char layout[ZF_CONFIG_LAYOUT];  /* as zf_config_facts says: blocks that tokens see */
} zf_causal_config;

/* For zf_generator_desc.model, zf_config_load and zf_exchange_import. A configuration is a
 * zf_causal_config; parameters have the names of the files. */
ZF_API const zf_model *zf_causal_model(void);

/* What the graph of a model is of. {0} but for input_ids: whole rows, of places 0, 1, ... */
typedef struct zf_causal_inputs {
    zf_tensor input_ids;      /* i32 [B, T] */
    zf_tensor attention_mask; /* u8 [B, T], 1: a token, 0: padding; invalid: all are tokens */
    zf_tensor positions; /* i32 [B, T]: the place of each token in its text; invalid: in its row */
    /* Of the attention of all layers: where texts of a row begin and end (zf_documents), and blocks
     * (zf_causal_blocks); invalid: none */
    zf_tensor documents, blocks;
    zf_layer_drop_desc layer_drop; /* the model sets layer, layers, half; {0}: none is left out */
    zf_decode_inputs decode;       /* of generation (zf_causal_of_decode); else {0} */
    bool trains;    /* the routing's capacity holds */
    bool penalized; /* its losses are computed, where it trains (zf_causal_outputs.penalty) */
} zf_causal_inputs;

/* Those of a step of generation. */
ZF_API zf_causal_inputs zf_causal_of_decode(const zf_decode_inputs *decode);
/* Sets in->blocks by a layout (zf_config_facts.layout; "": nothing) for so many heads. */
ZF_API void zf_causal_blocks(zf_causal_inputs *in, const char *layout, int64_t heads);
/* Gives the attention of a layer the documents and blocks, and in generation its caches, of keys
 * that are `width` wide. */
ZF_API void zf_causal_masks(zf_attention_desc *attention, const zf_causal_inputs *in,
                            int64_t width);
/* The attention mask for padding, [B, 1, 1, T]. It is added to scores and makes the softmax of
 * padding 0, unless all keys are padding. ZF_NONE where rows have none. */
ZF_API zf_tensor zf_causal_padding(const zf_causal_inputs *in);
/* The branch y of layer `layer` of `layers`, its half 0 or 1, as in->layer_drop leaves it out. */
ZF_API zf_tensor zf_causal_branch(zf_tensor y, const zf_causal_inputs *in, int64_t layer,
                                  int64_t layers, int64_t half);

/* zf_nn_linear, or with `bits` (8 or 4) the same with a frozen weight in blocks of 64 numbers of
 * so many bits (zf_param_desc.quantized), of the same name. Rows of other lengths stay floats. */
ZF_API zf_tensor zf_causal_linear(zf_tensor x, const char *name, int64_t out,
                                  const zf_nn_linear_desc *desc, int64_t bits);
/* Such a weight, `name` [out, in]; invalid where it stays float. std: of first values; 0: 0.02 */
ZF_API zf_tensor zf_causal_weight(zf_graph *g, const char *name, int64_t out, int64_t in,
                                  double std, int64_t bits);

typedef struct zf_causal_outputs {
    zf_tensor x;     /* [B T, H]: from the last norm */
    zf_tensor words; /* [vocab, H]: the head's weight; the embedding, if they are tied */
    /* What routers add to the mean loss of a token, f32 []; invalid: nothing */
    zf_tensor penalty;
} zf_causal_outputs;

/* The layers of a model, between the scopes and with the parameters that its files have. */
ZF_API zf_causal_outputs zf_causal_body(const zf_causal_config *config, const zf_causal_inputs *in);

/* x [n, H] by the head's weight, which may be quantized: [n, vocab]. cap: last_cap of the
 * configuration. */
ZF_API zf_tensor zf_causal_logits(zf_tensor x, zf_tensor words, double cap);

/* The loss of labels i32 [B, T], the token after each, -100: none: the sum of their cross-entropies
 * times weight f32 [], 1 / labels of the global batch; and the penalty, by the share that these
 * labels have. */
ZF_API zf_tensor zf_causal_loss(const zf_causal_outputs *out, zf_tensor labels, zf_tensor weight,
                                double cap);

typedef struct zf_causal_shape {
    int64_t batch, sequence; /* B, T */
    bool packed;             /* rows are of several texts, which do not see one another */
} zf_causal_shape;

/* The graph of a training step up to its loss, which it returns and which is the output "loss". Its
 * inputs are input_ids, labels i32 [B, T] and loss_weight f32 [] (zf_causal_loss), and of packed
 * rows segments, positions i32 [B, T] (zf_examples_batch). */
ZF_API zf_tensor zf_causal_train(zf_graph *g, const zf_causal_config *config,
                                 const zf_causal_shape *shape);
