/* Bloom (BigScience 2022): layer norms with biases, one of them after the embedding; an MLP of two
 * products; q, k and v are one product, head by head. Tokens have no positions: attention has ALiBi
 * (Press et al. 2022), a number for each head and key that is added to scores.
 *
 *     x = norm(embedding)       score of key n, head h: q k / sqrt(d) + slope(h) n
 *     x += attend(norm(x))
 *     x += ffn(norm(x))
 *
 * Of a query m that is slope(h) (n - m), since the same number for all keys changes no softmax. In
 * 16 bits it is rounded to these, as transformers does. */

/* The last lines: of its first files. */
static const char
    *const zfl_bloom_file_keys[] = {"apply_residual_connection_post_layernorm",
                                    "slow_but_exact",
                                    "n_embed",
                                    "unk_token_id",
                                    "attention_softmax_in_fp32",
                                    "bias_dropout_fusion",
                                    "masked_softmax_fusion",
                                    "offset_alibi",
                                    "skip_bias_add",
                                    "skip_bias_add_qkv",
                                    NULL},
           *const zfl_bloom_optional[] = {"max_position_embeddings", "intermediate_size",
                                          "num_hidden_layers", "num_attention_heads", NULL},
           *const zfl_bloom_unwritten[] = {
               "head_dim",          "num_key_value_heads", "intermediate_size",       "hidden_act",
               "rms_norm_eps",      "rope_theta",          "attention_bias",          "mlp_bias",
               "num_hidden_layers", "num_attention_heads", "max_position_embeddings", NULL};

static const zf_config_row zfl_bloom_rows[] = {
    {"n_layer", ZF_CONFIG_COUNT, .at = ZFL_AT(layers), .least = 1, .most = 1 << 16,
     .use = ZF_CONFIG_NEEDED, .other = {"num_hidden_layers"}},
    {"n_head", ZF_CONFIG_COUNT, .at = ZFL_AT(heads), .least = 1, .most = 1 << 16,
     .use = ZF_CONFIG_NEEDED, .other = {"num_attention_heads"}},
    {"seq_length", ZF_CONFIG_COUNT, .at = ZFL_AT(positions), .least = 1, .most = 1 << 24},
    {"layer_norm_epsilon", ZF_CONFIG_NUMBER, .at = ZFL_AT(eps), .most = 1},
    {"hidden_dropout", ZF_CONFIG_NUMBER, .at = ZFL_AT(dropout), .most = 0.999},
    {.key = NULL}};

static const char zfl_bloom_here[] = " in this family";

static void zfl_bloom_read(zf_causal_config *c, const zf_json *json, zf_error *error)
{
    zfl_repeat(json, "apply_residual_connection_post_layernorm", false, zfl_bloom_here, error);
    if (!error->status) zfl_repeat_count(json, "n_embed", c->hidden, ", as hidden_size", error);
    if (!error->status)
        zfl_repeat_count(json, "intermediate_size", 4 * c->hidden, zfl_bloom_here, error);
    if (!error->status)
        zfl_repeat_count(json, "head_dim", c->hidden / c->heads, zfl_bloom_here, error);
    if (!error->status)
        zfl_repeat_count(json, "num_key_value_heads", c->heads, zfl_bloom_here, error);
    c->attention_bias = c->mlp_bias = 1, c->alibi = ZF_CAUSAL_ALIBI;
    c->activation = ZF_ACTIVATION_GELU_TANH, c->intermediate = 4 * c->hidden;
    c->kv_heads = c->heads, c->width = c->hidden / c->heads;
}

/* Nothing says how rope is, since there is none. */
static void zfl_bloom_write(const zf_causal_config *c, zf_json_writer *w)
{
    (void)c;
    zf_json_put_bool_member(w, "apply_residual_connection_post_layernorm", false);
}

static const zfl_family_desc zfl_bloom = {
    .architecture = "BloomForCausalLM",
    .config = {.rows = zfl_bloom_rows,
               .keys = zfl_bloom_file_keys,
               .optional = zfl_bloom_optional,
               .unwritten = zfl_bloom_unwritten,
               .defaults = &(const zf_causal_config){.vocab = 250880,
                                                     .positions = 2048,
                                                     .std = 0.02,
                                                     .activation = ZF_ACTIVATION_GELU_TANH,
                                                     .eps = 1e-5,
                                                     .begin = 1,
                                                     .pad = 3,
                                                     .tied = 1,
                                                     .ends = {2, -1, -1, -1, -1, -1, -1, -1}}},
    .read = zfl_bloom_read,
    .write = zfl_bloom_write,
    .reads_rope = true,
    .reads_windows = true,
    .names = {.model = "transformer",
              .embedding = "word_embeddings",
              .embedding_norm = "word_embeddings_layernorm",
              .layers = "h",
              .attention = "self_attention",
              .out = "dense",
              .last_norm = "ln_f"},
    .norms = ZFL_NORMS,
    .layer_norm = true,
    .dropouts = true,
    .mlp = {"dense_h_to_4h", "dense_4h_to_h"},
    .grouped = "query_key_value",
};
