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
#include "../config.h"
#include "../../frame/options/fail.h"

#include <math.h>
#include <string.h>

/* hidden_activation is not that of other families, hidden_act. */
static const char *const keys[] =
    {"hidden_activation",      "query_pre_attn_scalar",   "rope_local_base_freq",
     "sliding_window_pattern", "_sliding_window_pattern", "use_bidirectional_attention",
     "attn_logit_softcapping", "final_logit_softcapping", NULL},
                         *const keys2[] = {"hidden_activation",           "query_pre_attn_scalar",
                                           "use_bidirectional_attention", "attn_logit_softcapping",
                                           "final_logit_softcapping",     NULL};

static const char activation[] = "gelu_pytorch_tanh";

/* The objects of rope: of transformers 5 one for each kind of layers, before that rope_scaling for
 * those that see all. */
static void read_ropes(llm_config *c, const zf_json *json, zf_error *error)
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
        llm_set_rope(c, &rope);
}

/* Which layers see all: those of layer_types, else one of so many. */
static void read_windows(llm_config *c, const zf_json *json, int64_t pattern, zf_error *error)
{
    const zf_json *types = zf_config_member(json, "layer_types");
    llm_read_window(c, json, llm_family_of(c)->window, error);
    zf_json_to_int(zf_config_member(json, "sliding_window_pattern"), 1, INT32_MAX, &pattern, error);
    if (error->status) return;
    if (types) llm_read_types(c, types, error);
    else if (c->layers > LLM_LAYERS)
        fail(error, ZF_ERR_MISMATCH, "config.json: num_hidden_layers must be at most %d",
             LLM_LAYERS);
    for (int64_t k = pattern - 1; !types && k < c->layers; k += pattern) llm_mark(c->full, k);
    if (!c->window) memset(c->full, 0, sizeof c->full);
}

static void read_activation(llm_config *c, const zf_json *json, zf_error *error)
{
    const zf_json *act = zf_config_member(json, "hidden_activation"),
                  *old = zf_config_member(json, "hidden_act");
    const char *name = activation;
    if (!zf_json_to_string(act, &name, error) && strcmp(name, activation))
        zf_json_expected(act, error, "%s", activation);
    if (!error->status && old && c->activation != ZF_ACTIVATION_GELU_TANH)
        zf_json_expected(old, error, "%s, as hidden_activation", activation);
    c->activation = ZF_ACTIVATION_GELU_TANH;
}

/* null: none. */
static void read_cap(const zf_json *json, const char *key, double *cap, zf_error *error)
{
    const zf_json *v = zf_json_member(json, key);
    if (v && zf_json_type_of(v) == ZF_JSON_NULL) *cap = 0;
    zf_json_to_double(zf_config_member(json, key), 1e-3, 1e6, cap, error);
}

/* What both have. */
static void read_both(llm_config *c, const zf_json *json, zf_error *error)
{
    bool both_ways = false;
    read_activation(c, json, error);
    zf_json_to_int(zf_config_member(json, "query_pre_attn_scalar"), 1, INT32_MAX, &c->query, error);
    zf_json_to_bool(zf_config_member(json, "use_bidirectional_attention"), &both_ways, error);
    if (both_ways && !error->status)
        zf_json_expected(zf_json_member(json, "use_bidirectional_attention"), error, "false");
    read_cap(json, "attn_logit_softcapping", &c->cap, error);
    read_cap(json, "final_logit_softcapping", &c->last_cap, error);
    c->embedding = sqrt((double)c->hidden);
}

static void read(llm_config *c, const zf_json *json, zf_error *error)
{
    read_both(c, json, error);
    if (!error->status) read_ropes(c, json, error);
    if (!error->status) read_windows(c, json, 6, error);
}

static void read2(llm_config *c, const zf_json *json, zf_error *error)
{
    read_both(c, json, error);
    if (!error->status) read_windows(c, json, 2, error);
}

static void write_cap(zf_json_writer *w, const char *key, double cap)
{
    zf_json_put_key(w, key);
    if (cap > 0) zf_json_put_double(w, cap);
    else zf_json_put_null(w);
}

static void write2(const llm_config *c, zf_json_writer *w)
{
    zf_json_put_text_member(w, "hidden_activation", activation);
    zf_json_put_int_member(w, "query_pre_attn_scalar", c->query);
    write_cap(w, "attn_logit_softcapping", c->cap);
    write_cap(w, "final_logit_softcapping", c->last_cap);
    llm_write_types(c, w);
}

static void write(const llm_config *c, zf_json_writer *w)
{
    write2(c, w);
    zf_json_put_double_member(w, "rope_local_base_freq", c->near_theta);
}

#define GEMMA_NORMS                                                                                \
    {                                                                                              \
        "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",                \
            "post_feedforward_layernorm"                                                           \
    }

const llm_family_desc llm_gemma2 = {
    .architecture = "Gemma2ForCausalLM",
    .config = {.keys = keys2,
               .defaults = &(const llm_config){LLM_DEFAULTS(10000, 1e-6, 2, 1, 0), .tied = 1,
                                               .query = 256, .cap = 50, .last_cap = 30}},
    .kv_heads = 4,
    .width = 256,
    .window = 4096,
    .no_mlp_bias = true,
    .read = read2,
    .write = write2,
    .reads_windows = true,
    .norms = GEMMA_NORMS,
    .one_more = true,
};

const llm_family_desc llm_gemma3 = {
    .architecture = "Gemma3ForCausalLM",
    .config = {.keys = keys,
               .defaults =
                   &(const llm_config){LLM_DEFAULTS(1e6, 1e-6, 2, 1, 0), .tied = 1, .query = 256}},
    .kv_heads = 4,
    .width = 256,
    .window = 4096,
    .no_mlp_bias = true,
    .read = read,
    .write = write,
    .reads_rope = true,
    .reads_windows = true,
    .norms = GEMMA_NORMS,
    .one_more = true,
    .queries = LLM_NORM_OF_HEADS,
};
