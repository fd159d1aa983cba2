/* Mixtral (Jiang et al. 2024): a Mistral whose layers have experts; the weights of a token's experts
 * add up to 1. */

static const char *const zfl_mixtral_keys[] = {"router_jitter_noise", "output_router_logits", NULL};

static const zf_config_row zfl_mixtral_rows[] = {
    {"num_local_experts", ZF_CONFIG_COUNT, .at = ZFL_AT(experts), .least = 1, .most = 1 << 14,
     .other = {"num_experts"}},
    {"num_experts_per_tok", ZF_CONFIG_COUNT, .at = ZFL_AT(chosen), .least = 1, .most = 64},
    {"router_aux_loss_coef", ZF_CONFIG_NUMBER, .at = ZFL_AT(balance), .most = 1e3},
    {.key = NULL}};

static void zfl_mixtral_read(zf_causal_config *c, const zf_json *json, zf_error *error)
{
    double noise = 0;
    const zf_json *v = zf_config_member(json, "router_jitter_noise");
    if (!zf_json_to_double(v, 0, 1, &noise, error) && noise > 0)
        zf_json_expected(v, error, "0: there is no noise of routers");
    zfl_check_experts(c, json, error);
    c->expert_width = c->intermediate;
}

static const zfl_family_desc zfl_mixtral = {
    .architecture = "MixtralForCausalLM",
    .config = {.rows = zfl_mixtral_rows,
               .keys = zfl_mixtral_keys,
               .defaults =
                   &(const zf_causal_config){ZFL_DEFAULTS(1e6, 1e-5, 1, 2, -1), .experts = 8,
                                             .chosen = 2, .normalize = 1, .balance = 0.001}},
    .kv_heads = 8,
    .no_attention_bias = true,
    .no_mlp_bias = true,
    .read = zfl_mixtral_read,
    .norms = ZFL_NORMS,
    .expert_scope = "block_sparse_moe",
    .expert_names = {.gate = "w1", .up = "w3", .down = "w2"},
};
