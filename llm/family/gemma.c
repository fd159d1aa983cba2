/* Gemma 2 (Gemma Team 2024), and the text part of Gemma 3 (Gemma Team 2025).
 *
 *     x = embedding sqrt(H)
 *     x += norm(attend(norm(x)))    q and k normed by heads; of six layers five have a window, and a
 *     x += norm(ffn(norm(x)))       theta of their own
 *
 * Gemma 2 has no norms of q and k and one theta, and each second layer has a window. Its scores and
 * logits are capped: cap tanh(x / cap).
 *
 * norm: RMS norm by 1 + weight. Where activations are 16 bits wide, 1 + weight and sqrt(H) are
 * rounded to these. */

#include <math.h>
#include <string.h>

/* hidden_activation is not that of other families, hidden_act. */
static const char *const zfl_gemma_keys[] =
    {"hidden_activation",      "query_pre_attn_scalar",   "rope_local_base_freq",
     "sliding_window_pattern", "_sliding_window_pattern", "use_bidirectional_attention",
     "attn_logit_softcapping", "final_logit_softcapping", NULL},
                         *const zfl_gemma_keys2[] = {
                             "hidden_activation",           "query_pre_attn_scalar",
                             "use_bidirectional_attention", "attn_logit_softcapping",
                             "final_logit_softcapping",     NULL};

static const char zfl_gemma_activation[] = "gelu_pytorch_tanh";

/* The objects of rope: of transformers 5 one for each kind of layers, before that rope_scaling for
 * those that see all. */
static void zfl_gemma_read_ropes(zf_causal_config *c, const zf_json *json, zf_error *error)
{
    const zf_json *both = zf_config_member(json, "rope_parameters"),
                  *scaling = zf_config_member(json, "rope_scaling"),
                  *full = zf_config_member(both, "full_attention"),
                  *near = zf_config_member(both, "sliding_attention");
    zf_rope_desc rope = {.theta = 0};
    for (const zf_json *v = zf_json_first(both); v && !error->status; v = zf_json_next(v))
        if (v != full && v != near && zf_json_type_of(v) != ZF_JSON_NULL)
            zf_json_fail(v, error,
                         "is not read: rope of this family is in full_attention and "
                         "sliding_attention");
    if (scaling && full && !error->status)
        zf_json_fail(scaling, error, "is not read where rope_parameters has full_attention");
    /* transformers does not read the older name of rope_type here. */
    if (scaling && !error->status) (void)zf_json_require(scaling, "rope_type", error);
    if (error->status ||
        !zf_config_read_rope_object(near, zf_config_member(json, "rope_local_base_freq"), 10000,
                                    c->positions, &rope, error))
        return;
    if (rope.scaling || rope.factor != 0)
        zf_json_fail(near, error, "is scaled, which layers with a window are not");
    c->near_theta = rope.theta;
    if (!error->status &&
        zf_config_read_rope_object(full ? full : scaling, zf_config_member(json, "rope_theta"), 1e6,
                                   c->positions, &rope, error))
        zfl_set_rope(c, &rope);
}

/* Which layers see all: those of layer_types, else one of so many. */
static void zfl_gemma_read_windows(zf_causal_config *c, const zf_json *json, int64_t pattern,
                                   zf_error *error)
{
    const zf_json *types = zf_config_member(json, "layer_types");
    zfl_read_window(c, json, zfl_causal_of(c)->window, error);
    zf_json_to_int(zf_config_member(json, "sliding_window_pattern"), 1, INT32_MAX, &pattern, error);
    if (error->status) return;
    if (types) zfl_read_types(c, types, error);
    else if (c->layers > ZF_CAUSAL_LAYERS)
        zfl_fail(error, ZF_ERR_MISMATCH, "config.json: num_hidden_layers must be at most %d",
                 ZF_CAUSAL_LAYERS);
    for (int64_t k = pattern - 1; !types && k < c->layers; k += pattern) zfl_mark_layer(c->full, k);
    if (!c->window) memset(c->full, 0, sizeof c->full);
}

static void zfl_gemma_read_activation(zf_causal_config *c, const zf_json *json, zf_error *error)
{
    const zf_json *act = zf_config_member(json, "hidden_activation"),
                  *old = zf_config_member(json, "hidden_act");
    const char *name = zfl_gemma_activation;
    if (!zf_json_to_string(act, &name, error) && strcmp(name, zfl_gemma_activation))
        zf_json_expected(act, error, "%s", zfl_gemma_activation);
    if (!error->status && old && c->activation != ZF_ACTIVATION_GELU_TANH)
        zf_json_expected(old, error, "%s, as hidden_activation", zfl_gemma_activation);
    c->activation = ZF_ACTIVATION_GELU_TANH;
}

/* null: none. */
static void zfl_gemma_read_cap(const zf_json *json, const char *key, double *cap, zf_error *error)
{
    const zf_json *v = zf_json_member(json, key);
    if (v && zf_json_type_of(v) == ZF_JSON_NULL) *cap = 0;
    zf_json_to_double(zf_config_member(json, key), 1e-3, 1e6, cap, error);
}

/* What both have. */
static void zfl_gemma_read_both(zf_causal_config *c, const zf_json *json, zf_error *error)
{
    bool both_ways = false;
    zfl_gemma_read_activation(c, json, error);
    zf_json_to_int(zf_config_member(json, "query_pre_attn_scalar"), 1, INT32_MAX, &c->query, error);
    zf_json_to_bool(zf_config_member(json, "use_bidirectional_attention"), &both_ways, error);
    if (both_ways && !error->status)
        zf_json_expected(zf_json_member(json, "use_bidirectional_attention"), error, "false");
    zfl_gemma_read_cap(json, "attn_logit_softcapping", &c->cap, error);
    zfl_gemma_read_cap(json, "final_logit_softcapping", &c->last_cap, error);
    c->embedding = sqrt((double)c->hidden);
}

static void zfl_gemma_read(zf_causal_config *c, const zf_json *json, zf_error *error)
{
    zfl_gemma_read_both(c, json, error);
    if (!error->status) zfl_gemma_read_ropes(c, json, error);
    if (!error->status) zfl_gemma_read_windows(c, json, 6, error);
}

static void zfl_gemma_read2(zf_causal_config *c, const zf_json *json, zf_error *error)
{
    zfl_gemma_read_both(c, json, error);
    if (!error->status) zfl_gemma_read_windows(c, json, 2, error);
}

static void zfl_gemma_write_cap(zf_json_writer *w, const char *key, double cap)
{
    zf_json_put_key(w, key);
    if (cap > 0) zf_json_put_double(w, cap);
    else zf_json_put_null(w);
}

static void zfl_gemma_write2(const zf_causal_config *c, zf_json_writer *w)
{
    zf_json_put_text_member(w, "hidden_activation", zfl_gemma_activation);
    zf_json_put_int_member(w, "query_pre_attn_scalar", c->query);
    zfl_gemma_write_cap(w, "attn_logit_softcapping", c->cap);
    zfl_gemma_write_cap(w, "final_logit_softcapping", c->last_cap);
    zfl_write_types(c, w);
}

static void zfl_gemma_write(const zf_causal_config *c, zf_json_writer *w)
{
    zfl_gemma_write2(c, w);
    zf_json_put_double_member(w, "rope_local_base_freq", c->near_theta);
}

#define GEMMA_NORMS                                                                                \
    {                                                                                              \
        "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",                \
            "post_feedforward_layernorm"                                                           \
    }

static const zfl_family_desc zfl_gemma2 = {
    .architecture = "Gemma2ForCausalLM",
    .config = {.keys = zfl_gemma_keys2,
               .defaults = &(const zf_causal_config){ZFL_DEFAULTS(10000, 1e-6, 2, 1, 0), .tied = 1,
                                                     .query = 256, .cap = 50, .last_cap = 30}},
    .kv_heads = 4,
    .width = 256,
    .window = 4096,
    .no_mlp_bias = true,
    .read = zfl_gemma_read2,
    .write = zfl_gemma_write2,
    .reads_windows = true,
    .norms = GEMMA_NORMS,
    .one_more = true,
};

static const zfl_family_desc zfl_gemma3 = {
    .architecture = "Gemma3ForCausalLM",
    .config = {.keys = zfl_gemma_keys,
               .defaults = &(const zf_causal_config){ZFL_DEFAULTS(1e6, 1e-6, 2, 1, 0), .tied = 1,
                                                     .query = 256}},
    .kv_heads = 4,
    .width = 256,
    .window = 4096,
    .no_mlp_bias = true,
    .read = zfl_gemma_read,
    .write = zfl_gemma_write,
    .reads_rope = true,
    .reads_windows = true,
    .norms = GEMMA_NORMS,
    .one_more = true,
    .queries = ZFL_NORM_OF_HEADS,
};
