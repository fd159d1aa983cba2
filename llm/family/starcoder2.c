/* StarCoder2 (Lozhkov et al. 2024): a Llama with layer norms, biases, and an MLP of two products.
 *
 *     x = dropout(embedding)
 *     x += dropout(attend(norm(x)))
 *     x += dropout(c_proj(gelu(c_fc(norm(x))))) */

static const char *const zfl_starcoder_keys[] = {"norm_epsilon", "use_bias", NULL};

static const char *const zfl_starcoder_unwritten[] = {"rms_norm_eps", "attention_bias", "mlp_bias",
                                                      NULL};

static const zf_config_row zfl_starcoder_rows[] = {
    {"residual_dropout", ZF_CONFIG_NUMBER, .at = ZFL_AT(dropout), .most = 0.999},
    {"embedding_dropout", ZF_CONFIG_NUMBER, .at = ZFL_AT(embedding_dropout), .most = 0.999},
    /* Of published files; transformers does not read them. */
    {.key = "mlp_type", .kind = ZF_CONFIG_TEXT, .text = "default"},
    {.key = "norm_type", .kind = ZF_CONFIG_TEXT, .text = "layer_norm"},
    {.key = "scale_attn_weights", .kind = ZF_CONFIG_TRUE},
    {.key = NULL}};

static void zfl_starcoder_read(zf_causal_config *c, const zf_json *json, zf_error *error)
{
    bool bias = true;
    zfl_read_eps(c, json, "norm_epsilon", error);
    zf_json_to_bool(zf_config_member(json, "use_bias"), &bias, error);
    zfl_repeat(json, "attention_bias", bias, ", as use_bias", error);
    zfl_repeat(json, "mlp_bias", bias, ", as use_bias", error);
    c->attention_bias = c->mlp_bias = bias;
    zfl_read_window(c, json, 0, error);
}

static void zfl_starcoder_write(const zf_causal_config *c, zf_json_writer *w)
{
    zf_json_put_double_member(w, "norm_epsilon", c->eps);
    zf_json_put_bool_member(w, "use_bias", c->mlp_bias != 0);
}

static const zfl_family_desc zfl_starcoder2 = {
    .architecture = "Starcoder2ForCausalLM",
    .config = {.rows = zfl_starcoder_rows,
               .keys = zfl_starcoder_keys,
               .unwritten = zfl_starcoder_unwritten,
               .defaults = &(const zf_causal_config){.vocab = 49152,
                                                     .positions = 4096,
                                                     .std = 0.018042,
                                                     .activation = ZF_ACTIVATION_GELU_TANH,
                                                     .theta = 10000,
                                                     .eps = 1e-5,
                                                     .begin = 50256,
                                                     .pad = -1,
                                                     .tied = 1,
                                                     .ends = {50256, -1, -1, -1, -1, -1, -1, -1}}},
    .kv_heads = 2,
    .read = zfl_starcoder_read,
    .write = zfl_starcoder_write,
    .reads_windows = true,
    .norms = ZFL_NORMS,
    .layer_norm = true,
    .dropouts = true,
    .mlp = {"c_fc", "c_proj"},
};
