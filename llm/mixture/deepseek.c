/* DeepSeek-V3 (DeepSeek-AI 2024), of which the router is there (zf_route_desc: sigmoid, groups, kept,
 * bias), and the latent attention is not: a file is refused. */

static const char *const zfl_deepseek_keys[] = {"aux_loss_alpha",
                                                "ep_size",
                                                "first_k_dense_replace",
                                                "kv_lora_rank",
                                                "moe_intermediate_size",
                                                "moe_layer_freq",
                                                "n_group",
                                                "n_routed_experts",
                                                "n_shared_experts",
                                                "norm_topk_prob",
                                                "num_experts_per_tok",
                                                "num_local_experts",
                                                "num_nextn_predict_layers",
                                                "q_lora_rank",
                                                "qk_head_dim",
                                                "qk_nope_head_dim",
                                                "qk_rope_head_dim",
                                                "rope_interleave",
                                                "routed_scaling_factor",
                                                "scoring_func",
                                                "seq_aux",
                                                "topk_group",
                                                "topk_method",
                                                "v_head_dim",
                                                NULL};

static void zfl_deepseek_read(zf_causal_config *c, const zf_json *json, zf_error *error)
{
    (void)c;
    zf_json_fail(zf_json_member(json, "model_type"), error,
                 "has latent attention (kv_lora_rank), which is not there; its router is, in C "
                 "(zf_route)");
}

static const zfl_family_desc zfl_deepseek3 = {
    .architecture = "DeepseekV3ForCausalLM",
    .config = {.keys = zfl_deepseek_keys,
               .defaults = &(const zf_causal_config){ZFL_DEFAULTS(10000, 1e-6, 0, 1, -1)}},
    .read = zfl_deepseek_read,
    .reads_rope = true,
    .reads_windows = true,
    .norms = ZFL_NORMS,
};
