/* Qwen2-MoE (Qwen 2024), in whose layers each token also has a shared expert, times the sigmoid of a
 * number of its own; and Qwen3-MoE (Qwen 2025), which has none. Some layers may be without experts. */

static const char *const zfl_moe_keys[] = {"mlp_only_layers", "decoder_sparse_step",
                                           "output_router_logits", "qkv_bias", NULL};

#define ZFL_MOE_ROWS                                                                               \
    {"num_experts", ZF_CONFIG_COUNT, .at = ZFL_AT(experts),                                        \
     .least = 1,    .most = 1 << 14, .other = {"num_local_experts"}},                              \
        {"num_experts_per_tok", ZF_CONFIG_COUNT, .at = ZFL_AT(chosen), .least = 1, .most = 64},    \
        {"moe_intermediate_size", ZF_CONFIG_COUNT, .at = ZFL_AT(expert_width), .least = 1,         \
         .most = 1 << 22},                                                                         \
        {"norm_topk_prob", ZF_CONFIG_TRUTH, .at = ZFL_AT(normalize)},                              \
    {                                                                                              \
        "router_aux_loss_coef", ZF_CONFIG_NUMBER, .at = ZFL_AT(balance), .most = 1e3               \
    }
static const zf_config_row zfl_moe_rows2[] = {ZFL_MOE_ROWS,
                                              {"shared_expert_intermediate_size", ZF_CONFIG_COUNT,
                                               .at = ZFL_AT(shared_width), .least = 1,
                                               .most = 1 << 22},
                                              {.key = NULL}},
                           zfl_moe_rows3[] = {ZFL_MOE_ROWS, {.key = NULL}};

/* Which layers have no experts: listed ones, and those that the step leaves out. */
static void zfl_moe_read_layers(zf_causal_config *c, const zf_json *json, zf_error *error)
{
    const zf_json *only = zf_config_member(json, "mlp_only_layers");
    int64_t step = 1;
    zf_json_to_int(zf_config_member(json, "decoder_sparse_step"), 1, INT32_MAX, &step, error);
    if ((only || step > 1) && c->layers > ZF_CAUSAL_LAYERS && !error->status)
        zf_json_expected(zf_json_member(json, "num_hidden_layers"), error,
                         "at most %d in a model of which some layers have no experts",
                         ZF_CAUSAL_LAYERS);
    for (int64_t i = 0; i < c->layers && step > 1; i++)
        if ((i + 1) % step) zfl_mark_layer(c->dense, i);
    for (const zf_json *v = zf_json_first(only); v && !error->status; v = zf_json_next(v)) {
        int64_t layer = 0;
        zf_json_to_int(v, 0, c->layers - 1, &layer, error);
        zfl_mark_layer(c->dense, layer);
    }
}

static void zfl_moe_read(zf_causal_config *c, const zf_json *json, zf_error *error)
{
    if (c->family == ZF_CAUSAL_QWEN2_MOE)
        zfl_repeat(json, "qkv_bias", true, " in this family", error);
    else zfl_repeat(json, "use_sliding_window", false, " in this family", error);
    zfl_moe_read_layers(c, json, error);
    zfl_check_experts(c, json, error);
}

static void zfl_moe_write(const zf_causal_config *c, zf_json_writer *w)
{
    zf_json_put_int_member(w, "decoder_sparse_step", 1);
    zf_json_put_key(w, "mlp_only_layers");
    zf_json_begin_array(w);
    for (int64_t i = 0; i < c->layers; i++)
        if (!zfl_is_sparse(c, i)) zf_json_put_int(w, i);
    zf_json_end(w);
}

static const zfl_family_desc zfl_qwen2_moe = {
    .architecture = "Qwen2MoeForCausalLM",
    .config = {.rows = zfl_moe_rows2,
               .keys = zfl_moe_keys,
               .defaults =
                   &(const zf_causal_config){ZFL_DEFAULTS(10000, 1e-6, -1, -1, -1), .experts = 60,
                                             .chosen = 4, .expert_width = 1408,
                                             .shared_width = 5632, .balance = 0.001}},
    .kv_heads = 16,
    .window = 4096,
    .no_attention_bias = true,
    .no_mlp_bias = true,
    .read = zfl_moe_read,
    .write = zfl_moe_write,
    .norms = ZFL_NORMS,
    .qkv_bias = true,
};

static const zfl_family_desc zfl_qwen3_moe = {
    .architecture = "Qwen3MoeForCausalLM",
    .config = {.rows = zfl_moe_rows3,
               .keys = zfl_moe_keys,
               .defaults =
                   &(const zf_causal_config){ZFL_DEFAULTS(10000, 1e-6, -1, -1, -1), .experts = 128,
                                             .chosen = 8, .expert_width = 768, .balance = 0.001}},
    .kv_heads = 4,
    .no_mlp_bias = true,
    .read = zfl_moe_read,
    .write = zfl_moe_write,
    .reads_windows = true,
    .norms = ZFL_NORMS,
    .queries = ZFL_NORM_OF_HEADS,
};
