/* config.json of Llama and its relatives. */

#include <string.h>

/* ----------------------------------------------------------------------------------- families */

static const zfl_family_desc *const zfl_causal_families[ZF_CAUSAL_FAMILIES] = {
    [ZF_CAUSAL_LLAMA] = &zfl_llama,
    [ZF_CAUSAL_MISTRAL] = &zfl_mistral,
    [ZF_CAUSAL_MINISTRAL] = &zfl_ministral,
    [ZF_CAUSAL_QWEN2] = &zfl_qwen2,
    [ZF_CAUSAL_QWEN3] = &zfl_qwen3,
    [ZF_CAUSAL_GEMMA3] = &zfl_gemma3,
    [ZF_CAUSAL_GRANITE] = &zfl_granite,
    [ZF_CAUSAL_OLMO2] = &zfl_olmo2,
    [ZF_CAUSAL_SMOLLM3] = &zfl_smollm3,
    [ZF_CAUSAL_PHI3] = &zfl_phi3,
    [ZF_CAUSAL_GEMMA2] = &zfl_gemma2,
    [ZF_CAUSAL_STARCODER2] = &zfl_starcoder2,
    [ZF_CAUSAL_NEOX] = &zfl_neox,
    [ZF_CAUSAL_FALCON] = &zfl_falcon,
    [ZF_CAUSAL_MIXTRAL] = &zfl_mixtral,
    [ZF_CAUSAL_QWEN2_MOE] = &zfl_qwen2_moe,
    [ZF_CAUSAL_QWEN3_MOE] = &zfl_qwen3_moe,
    [ZF_CAUSAL_OLMOE] = &zfl_olmoe,
    [ZF_CAUSAL_DEEPSEEK3] = &zfl_deepseek3,
    [ZF_CAUSAL_BLOOM] = &zfl_bloom,
    [ZF_CAUSAL_MPT] = &zfl_mpt};

static const zfl_family_desc *zfl_causal_of(const zf_causal_config *c)
{
    return zfl_causal_families[c->family];
}

static const zf_config_family *zfl_causal_family_of(const void *config)
{
    return &zfl_causal_of(config)->config;
}

static bool zfl_causal_is_qwen(const zf_causal_config *c)
{
    return c->family == ZF_CAUSAL_QWEN2 || c->family == ZF_CAUSAL_QWEN3 ||
           c->family == ZF_CAUSAL_QWEN2_MOE;
}

/* ------------------------------------------------------------------------------------ reading */

static void zfl_causal_read_rope(zf_causal_config *c, const zf_json *json, zf_error *error)
{
    zf_rope_desc rope = {.theta = 0};
    if (zf_config_read_rope(json, c->positions, &rope, error)) zfl_set_rope(c, &rope);
}

/* Which layers have a window. */
static void zfl_causal_read_windows(zf_causal_config *c, const zf_json *json, zf_error *error)
{
    const zf_json *types = zf_config_member(json, "layer_types");
    int64_t from = 0;
    const bool none = c->family == ZF_CAUSAL_LLAMA;
    bool used = !none, uses = false;
    if (used) zfl_read_window(c, json, zfl_causal_of(c)->window, error);
    else if (zf_config_member(json, "sliding_window"))
        zf_json_expected(zf_config_member(json, "sliding_window"), error, "null in a llama");
    zf_json_to_bool(zf_config_member(json, "use_sliding_window"), &uses, error);
    if (!zfl_causal_is_qwen(c) && uses && !error->status)
        zf_json_expected(zf_json_member(json, "use_sliding_window"), error,
                         "false in this family, which does not read it");
    if (zfl_causal_is_qwen(c)) {
        used = uses, from = 28;
        zf_json_to_int(zf_config_member(json, "max_window_layers"), 0, INT32_MAX, &from, error);
    }
    if (!used || (!types && from >= c->layers)) c->window = 0;
    if (c->window && c->layers > ZF_CAUSAL_LAYERS)
        zf_json_expected(zf_json_member(json, "num_hidden_layers"), error,
                         "at most %d in a model with a sliding_window", ZF_CAUSAL_LAYERS);
    if (types && c->family == ZF_CAUSAL_MISTRAL) c->family = ZF_CAUSAL_MINISTRAL;
    if (types) zfl_read_types(c, types, error);
    for (int64_t k = 0; !types && c->window && k < from; k++) zfl_mark_layer(c->full, k);
    if (!c->window) memset(c->full, 0, sizeof c->full);
}

/* The ids that transformers takes where the file has none. */
static void zfl_causal_read_ids(zf_causal_config *c, const zf_json *json)
{
    if (zfl_causal_is_qwen(c) || zfl_causal_of(c)->config.defaults) return;
    if (!zf_json_member(json, "bos_token_id")) c->begin = 1;
    if (!zf_json_member(json, "eos_token_id")) c->ends[0] = 2;
}

/* What rows cannot say. */
static void zfl_causal_read_file(zf_causal_config *c, const zf_json *json, zf_error *error)
{
    const zfl_family_desc *family = zfl_causal_of(c);
    zfl_read_count_or(json, "num_key_value_heads", 1, family->kv_heads, 0, &c->kv_heads, error);
    if (!c->width && !zf_json_member(json, "head_dim")) c->width = family->width;
    if (!family->reads_rope) zfl_causal_read_rope(c, json, error);
    if (!family->reads_windows) zfl_causal_read_windows(c, json, error);
    if (family->read && !error->status) family->read(c, json, error);
    zfl_causal_read_ids(c, json);
    if (family->no_attention_bias) c->attention_bias = 0;
    if (family->no_mlp_bias) c->mlp_bias = 0;
}

static bool zfl_causal_read_more(void *config, const zf_json *json, zf_error *error)
{
    zf_causal_config *c = config;
    if (json) zfl_causal_read_file(c, json, error);
    if (!c->kv_heads) c->kv_heads = c->heads;
    if (!json && c->experts) c->expert_width = c->intermediate;
    if (!c->width) c->width = c->hidden / c->heads;
    if (json && !c->experts && (c->router_bias || c->residual_experts))
        zf_json_fail(zf_json_member(json, c->router_bias ? "zeroflow_router_bias"
                                                         : "zeroflow_residual_experts"),
                     error, "is of layers of experts, and this model has none");
    if (error->status) return false;
    if (c->heads % c->kv_heads)
        return zfl_fail(error, ZF_ERR_MISMATCH,
                        "config.json: num_key_value_heads (%lld) must be a divisor of "
                        "num_attention_heads (%lld)",
                        (long long)c->kv_heads, (long long)c->heads);
    return c->width % 2 == 0 || c->alibi ||
           zfl_fail(error, ZF_ERR_MISMATCH,
                    "config.json: heads are %lld wide; rope needs an even width",
                    (long long)c->width);
}

/* ------------------------------------------------------------------------------------ writing */

static void zfl_causal_write_rope(const zf_causal_config *c, zf_json_writer *w)
{
    static const char *const names[] = {[ZF_ROPE_PLAIN] = "dynamic",
                                        [ZF_ROPE_LINEAR] = "linear",
                                        [ZF_ROPE_LLAMA3] = "llama3",
                                        [ZF_ROPE_YARN] = "yarn"};
    const bool yarn = c->scaling == ZF_ROPE_YARN;
    zf_json_put_key(w, "rope_scaling");
    if (c->factors) {
        zfl_write_longrope(c, w);
        return;
    }
    if (!c->scaling && c->factor == 0) {
        zf_json_put_null(w);
        return;
    }
    zf_json_begin_object(w);
    zf_json_put_text_member(w, "rope_type", names[c->scaling]);
    zf_json_put_double_member(w, "factor", c->factor);
    if (c->scaling >= ZF_ROPE_LLAMA3) {
        zf_json_put_double_member(w, yarn ? "beta_slow" : "low_freq_factor", c->low);
        zf_json_put_double_member(w, yarn ? "beta_fast" : "high_freq_factor", c->high);
        zf_json_put_int_member(w, "original_max_position_embeddings", c->original);
    }
    if (yarn) {
        zf_json_put_double_member(w, "attention_factor", c->attention);
        zf_json_put_bool_member(w, "truncate", !c->unrounded);
    }
    zf_json_end(w);
}

/* Which layers have the window: from one on (of Qwen), or a list. */
static void zfl_causal_write_windows(const zf_causal_config *c, zf_json_writer *w)
{
    int64_t from = 0, full = 0;
    while (from < c->layers && zfl_is_full(c, from)) from++;
    for (int64_t k = from; k < c->layers; k++) full += zfl_is_full(c, k);
    if (zfl_causal_is_qwen(c)) {
        zf_json_put_bool_member(w, "use_sliding_window", c->window > 0);
        zf_json_put_int_member(w, "max_window_layers", from);
    }
    if (full || c->family == ZF_CAUSAL_MINISTRAL) zfl_write_types(c, w);
}

static void zfl_causal_write_more(const void *config, zf_json_writer *w)
{
    const zf_causal_config *c = config;
    const zfl_family_desc *family = zfl_causal_of(c);
    if (!c->alibi) zfl_causal_write_rope(c, w);
    if (family->write) family->write(c, w);
    if (c->family != ZF_CAUSAL_LLAMA && !c->alibi) {
        zf_json_put_key(w, "sliding_window");
        if (c->window) zf_json_put_int(w, c->window);
        else zf_json_put_null(w);
    }
    if (!family->reads_windows) zfl_causal_write_windows(c, w);
}

static const char *zfl_causal_architecture_of(const void *config)
{
    return zfl_causal_of(config)->architecture;
}

/* -------------------------------------------------------------------------------------- table */

static const char *const zfl_causal_other_keys[] = {
    "rope_scaling",
    "rope_parameters",
    "partial_rotary_factor",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "layer_types",
    "cache_implementation", /* of transformers' caches */
    NULL};

/* Gemma 3 and Qwen2.5-VL: their text parts. That of Qwen2.5-VL is a Qwen2, since positions of text
 * are the same number in all sections of its rope. */
static const char *const zfl_causal_others_gemma3[] = {"vision_config",     "mm_tokens_per_image",
                                                       "boi_token_index",   "eoi_token_index",
                                                       "image_token_index", NULL},
                         *const zfl_causal_others_qwen[] = {"vision_config",
                                                            "image_token_id",
                                                            "video_token_id",
                                                            "vision_start_token_id",
                                                            "vision_end_token_id",
                                                            "vision_token_id",
                                                            NULL};

static const zf_config_nest zfl_causal_nests[] = {
    {"gemma3", "gemma3_text", zfl_causal_others_gemma3, "{}", .tied = true},
    {"qwen2_5_vl", "qwen2", zfl_causal_others_qwen,
     "{\"rms_norm_eps\": 1e-5, \"num_key_value_heads\": 8, \"max_window_layers\": 80}",
     .either = true},
    {.type = NULL}};

static const zf_config_table zfl_members = {
    .types = {"llama",       "mistral", "ministral", "qwen2",     "qwen3",     "gemma3_text",
              "granite",     "olmo2",   "smollm3",   "phi3",      "gemma2",    "starcoder2",
              "gpt_neox",    "falcon",  "mixtral",   "qwen2_moe", "qwen3_moe", "olmoe",
              "deepseek_v3", "bloom",   "mpt"},
    .type = ZFL_AT(family),
    .bytes = sizeof(zf_causal_config),
    .defaults = &(const zf_causal_config){ZFL_DEFAULTS(10000, 1e-6, -1, -1, -1)},
    .sizes = {{"15m", 6, 288, 6, 32000, 768},
              {"110m", 12, 768, 12, 32000, 2048},
              {"160m", 12, 768, 12, 32000, 3072},
              {"moe-15m", 6, 288, 6, 32000, 384}},
    .size_types = {ZF_CAUSAL_LLAMA, ZF_CAUSAL_LLAMA, ZF_CAUSAL_LLAMA, ZF_CAUSAL_MIXTRAL},
    .rows = {{"vocab_size", ZF_CONFIG_COUNT, .at = ZFL_AT(vocab), .least = 8, .most = INT32_MAX,
              .use = ZF_CONFIG_NEEDED},
             {"max_position_embeddings", ZF_CONFIG_COUNT, .at = ZFL_AT(positions), .least = 1,
              .most = 1 << 24, .use = ZF_CONFIG_NEEDED},
             {"hidden_size", ZF_CONFIG_COUNT, .at = ZFL_AT(hidden), .least = 1, .most = 1 << 20,
              .use = ZF_CONFIG_NEEDED},
             {"num_hidden_layers", ZF_CONFIG_COUNT, .at = ZFL_AT(layers), .least = 1,
              .most = 1 << 16, .use = ZF_CONFIG_NEEDED},
             {"head_dim", ZF_CONFIG_COUNT, .at = ZFL_AT(width), .least = 2, .most = 1024},
             {"num_attention_heads", ZF_CONFIG_COUNT, .at = ZFL_AT(heads), .least = 1,
              .most = 1 << 16, .use = ZF_CONFIG_NEEDED},
             {"num_key_value_heads", ZF_CONFIG_COUNT, .at = ZFL_AT(kv_heads), .least = 1,
              .most = 1 << 16},
             {"intermediate_size", ZF_CONFIG_COUNT, .at = ZFL_AT(intermediate), .least = 1,
              .most = 1 << 22, .use = ZF_CONFIG_NEEDED},
             {"hidden_act", ZF_CONFIG_ACTIVATION, .at = ZFL_AT(activation),
              .text = "gelu_pytorch_tanh"},
             {"rms_norm_eps", ZF_CONFIG_NUMBER, .at = ZFL_AT(eps), .most = 1},
             {"rope_theta", ZF_CONFIG_NUMBER, .at = ZFL_AT(theta), .least = 1e-6, .most = 1e12},
             {"attention_dropout", ZF_CONFIG_NUMBER, .at = ZFL_AT(attention_dropout),
              .most = 0.999},
             {"attention_bias", ZF_CONFIG_TRUTH, .at = ZFL_AT(attention_bias),
              .use = ZF_CONFIG_RARE},
             {"mlp_bias", ZF_CONFIG_TRUTH, .at = ZFL_AT(mlp_bias), .use = ZF_CONFIG_RARE},
             {"initializer_range", ZF_CONFIG_NUMBER, .at = ZFL_AT(std), .most = 10},
             {"tie_word_embeddings", ZF_CONFIG_TRUTH, .at = ZFL_AT(tied)},
             {"bos_token_id", ZF_CONFIG_TOKEN, .at = ZFL_AT(begin)},
             {"eos_token_id", ZF_CONFIG_TOKENS, .at = ZFL_AT(ends)},
             {"pad_token_id", ZF_CONFIG_TOKEN, .at = ZFL_AT(pad)},
             {"zeroflow_router_bias", ZF_CONFIG_TRUTH, .at = ZFL_AT(router_bias),
              .use = ZF_CONFIG_RARE},
             {"zeroflow_residual_experts", ZF_CONFIG_TRUTH, .at = ZFL_AT(residual_experts),
              .use = ZF_CONFIG_RARE},
             {"zeroflow_attention", ZF_CONFIG_BLOCKS, .at = ZFL_AT(layout)}},
    .keys = zfl_causal_other_keys,
    .nests = zfl_causal_nests,
    .vocab = ZFL_AT(vocab),
    .positions = ZFL_AT(positions),
    .layers = ZFL_AT(layers),
    .hidden = ZFL_AT(hidden),
    .heads = ZFL_AT(heads),
    .intermediate = ZFL_AT(intermediate),
    .tied = ZFL_AT(tied),
    .end = ZFL_AT(ends),
    .ends = ZF_CONFIG_ENDS,
    .pad = ZFL_AT(pad),
    .width = ZFL_AT(width),
    .dropouts = {ZFL_AT(attention_dropout), ZFL_AT(dropout), ZFL_AT(embedding_dropout)},
    .bits = ZFL_AT(bits),
    .scores = ZFL_AT(scores),
    .layout = ZFL_AT(layout),
    .window = ZFL_AT(window),
    .architecture_of = zfl_causal_architecture_of,
    .family_of = zfl_causal_family_of,
    .read_more = zfl_causal_read_more,
    .write_more = zfl_causal_write_more,
};
