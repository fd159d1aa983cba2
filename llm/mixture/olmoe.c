/* OLMoE (Muennighoff et al. 2024): layers of experts; q and k have a norm of whole rows. */

static const char *const zfl_olmoe_keys[] = {"clip_qkv", "output_router_logits", NULL};

static const zf_config_row zfl_olmoe_rows[] = {
    {"num_experts", ZF_CONFIG_COUNT, .at = ZFL_AT(experts), .least = 1, .most = 1 << 14,
     .other = {"num_local_experts"}},
    {"num_experts_per_tok", ZF_CONFIG_COUNT, .at = ZFL_AT(chosen), .least = 1, .most = 64},
    {"norm_topk_prob", ZF_CONFIG_TRUTH, .at = ZFL_AT(normalize)},
    {"router_aux_loss_coef", ZF_CONFIG_NUMBER, .at = ZFL_AT(balance), .most = 1e3},
    {.key = NULL}};

static void zfl_olmoe_read(zf_causal_config *c, const zf_json *json, zf_error *error)
{
    static const char *const absent[] = {"clip_qkv", "sliding_window"};
    for (int k = 0; k < 2 && !error->status; k++)
        if (zf_config_member(json, absent[k]))
            zf_json_expected(zf_config_member(json, absent[k]), error, "null in this family");
    zfl_check_experts(c, json, error);
    c->expert_width = c->intermediate;
}

static const zfl_family_desc zfl_olmoe = {
    .architecture = "OlmoeForCausalLM",
    .config = {.rows = zfl_olmoe_rows,
               .keys = zfl_olmoe_keys,
               .defaults = &(const zf_causal_config){ZFL_DEFAULTS(10000, 1e-5, -1, 50279, 1),
                                                     .experts = 64, .chosen = 8, .balance = 0.01}},
    .no_mlp_bias = true,
    .read = zfl_olmoe_read,
    .reads_windows = true,
    .norms = ZFL_NORMS,
    .queries = ZFL_NORM_OF_ROWS,
};
