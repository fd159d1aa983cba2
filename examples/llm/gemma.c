#include "gemma.h"
#include "../frame/options/fail.h"

#include <string.h>

/* ------------------------------------------------------------------------------ configuration */

/* hidden_activation is not that of other families, hidden_act. */
const char *const llm_gemma_keys[] = {"hidden_activation",
                                      "query_pre_attn_scalar",
                                      "rope_local_base_freq",
                                      "sliding_window_pattern",
                                      "_sliding_window_pattern",
                                      "use_bidirectional_attention",
                                      NULL};

static const char activation[] = "gelu_pytorch_tanh";

/* What transformers takes where the file has none. */
static void read_defaults(llm_config *c, const zf_json *json)
{
    if (!zf_json_member(json, "head_dim")) c->width = 256;
    if (!zf_json_member(json, "tie_word_embeddings")) c->tied = 1;
    if (!zf_json_member(json, "bos_token_id")) c->begin = 2;
    if (!zf_json_member(json, "eos_token_id")) c->ends[0] = 1;
    if (!zf_json_member(json, "pad_token_id")) c->pad = 0;
}

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

/* Which layers see all: those of layer_types, else each sixth. */
static void read_windows(llm_config *c, const zf_json *json, zf_error *error)
{
    const zf_json *types = zf_config_member(json, "layer_types"),
                  *window = zf_json_member(json, "sliding_window");
    int64_t pattern = 6;
    c->window = !window ? 4096 : 0;
    zf_json_to_int(zf_config_member(json, "sliding_window"), 1, INT32_MAX, &c->window, error);
    zf_json_to_int(zf_config_member(json, "sliding_window_pattern"), 1, INT32_MAX, &pattern, error);
    if (error->status) return;
    if (types) llm_read_types(c, types, error);
    else if (c->layers > LLM_LAYERS)
        fail(error, ZF_ERR_MISMATCH, "config.json: num_hidden_layers must be at most %d",
             LLM_LAYERS);
    for (int64_t k = pattern - 1; !types && k < c->layers; k += pattern) llm_set_full(c, k);
    if (!c->window) memset(c->full, 0, sizeof c->full);
}

bool llm_gemma_read(llm_config *c, const zf_json *json, zf_error *error)
{
    const zf_json *act = zf_config_member(json, "hidden_activation"),
                  *old = zf_config_member(json, "hidden_act");
    const char *name = activation;
    bool both_ways = false;
    for (int k = 0; c->family != LLM_GEMMA3 && llm_gemma_keys[k] && !error->status; k++)
        if (zf_config_member(json, llm_gemma_keys[k]))
            zf_json_fail(zf_config_member(json, llm_gemma_keys[k]), error,
                         "is not read in this family");
    if (c->family != LLM_GEMMA3 || error->status) return !error->status;
    if (!zf_json_to_string(act, &name, error) && strcmp(name, activation))
        zf_json_expected(act, error, "%s", activation);
    if (!error->status && old && c->activation != ZF_ACTIVATION_GELU_TANH)
        zf_json_expected(old, error, "%s, as hidden_activation", activation);
    c->activation = ZF_ACTIVATION_GELU_TANH;
    c->query = 256;
    zf_json_to_int(zf_config_member(json, "query_pre_attn_scalar"), 1, INT32_MAX, &c->query, error);
    zf_json_to_bool(zf_config_member(json, "use_bidirectional_attention"), &both_ways, error);
    if (both_ways && !error->status)
        zf_json_expected(zf_json_member(json, "use_bidirectional_attention"), error, "false");
    read_defaults(c, json);
    if (!error->status) read_ropes(c, json, error);
    if (!error->status) read_windows(c, json, error);
    return !error->status;
}

void llm_gemma_write(const llm_config *c, zf_json_writer *w)
{
    zf_json_put_text_member(w, "hidden_activation", activation);
    zf_json_put_int_member(w, "query_pre_attn_scalar", c->query);
    zf_json_put_double_member(w, "rope_local_base_freq", c->near_theta);
}

/* -------------------------------------------------------------------------------------- graph */

zf_tensor llm_gemma_norm(zf_tensor x, const char *name, double eps)
{
    zf_graph *g = x.graph;
    const zf_shape s = zf_tensor_shape(x);
    zf_tensor gamma;
    zf_push(g, "%s", name);
    gamma = zf_param(g, "weight", ZF_SHAPE(s.dims[s.rank - 1]), &(zf_param_desc){.init = ZF_ZEROS});
    zf_pop(g);
    return zf_rms_norm(x, zf_add(gamma, zf_constant(g, ZF_F32, ZF_SCALAR, 1)), eps);
}
