/* MPT (MosaicML 2023): layer norms without biases, q, k and v of one product, an MLP of two; no
 * product has a bias. Tokens have no positions: attention has ALiBi (alibi.c).
 *
 *     x += attend(norm(x))      numbers of q, k and v are at most clip_qkv from 0
 *     x += ffn(norm(x))
 *
 * As transformers reads it: the MLP is four times as wide as the model, all dropouts are attn_pdrop,
 * and members about embeddings of positions, which there are none of, change nothing. */

static const char
    *const zfl_mpt_keys[] = {"attn_config", "expansion_ratio", "learned_pos_emb",    "init_device",
                             "logit_scale", "no_bias",         "embedding_fraction", "norm_type",
                             "verbose",     "emb_pdrop",       "resid_pdrop",        "init_config",
                             NULL},
           *const zfl_mpt_optional[] = {"hidden_size",         "num_hidden_layers",
                                        "num_attention_heads", "max_position_embeddings",
                                        "intermediate_size",   NULL},
           *const zfl_mpt_unwritten[] = {"hidden_size",
                                         "num_hidden_layers",
                                         "num_attention_heads",
                                         "max_position_embeddings",
                                         "head_dim",
                                         "num_key_value_heads",
                                         "intermediate_size",
                                         "hidden_act",
                                         "rms_norm_eps",
                                         "rope_theta",
                                         "attention_bias",
                                         "mlp_bias",
                                         "attention_dropout",
                                         NULL};

static const zf_config_row zfl_mpt_rows[] = {
    {"d_model", ZF_CONFIG_COUNT, .at = ZFL_AT(hidden), .least = 1, .most = 1 << 20,
     .use = ZF_CONFIG_NEEDED, .other = {"hidden_size"}},
    {"n_layers", ZF_CONFIG_COUNT, .at = ZFL_AT(layers), .least = 1, .most = 1 << 16,
     .use = ZF_CONFIG_NEEDED, .other = {"num_hidden_layers"}},
    {"n_heads", ZF_CONFIG_COUNT, .at = ZFL_AT(heads), .least = 1, .most = 1 << 16,
     .use = ZF_CONFIG_NEEDED, .other = {"num_attention_heads"}},
    {"max_seq_len", ZF_CONFIG_COUNT, .at = ZFL_AT(positions), .least = 1, .most = 1 << 24},
    {"layer_norm_epsilon", ZF_CONFIG_NUMBER, .at = ZFL_AT(eps), .most = 1},
    {.key = NULL}};

/* attn_config: what transformers reads of it, and what it must not say. */
static void zfl_mpt_read_attention(zf_causal_config *c, const zf_json *json, zf_error *error)
{
    static const char *const others[] = {"prefix_lm", "qk_ln", "attn_uses_sequence_id"};
    const zf_json *type = zf_config_member(json, "attn_type");
    const char *text = "multihead_attention";
    for (int k = 0; k < 3 && !error->status; k++)
        zfl_repeat(json, others[k], false, " in this family", error);
    zfl_repeat(json, "alibi", true, ": tokens have no other positions", error);
    zfl_repeat_count(json, "alibi_bias_max", 8, " in this family", error);
    if (!error->status && !zf_json_to_string(type, &text, error) &&
        zf_json_type_of(type) == ZF_JSON_STRING && text[5] != 'h')
        zf_json_expected(type, error, "multihead_attention");
    zf_json_to_double(zf_config_member(json, "clip_qkv"), 1e-6, 1e6, &c->clip, error);
    zf_json_to_double(zf_config_member(json, "softmax_scale"), 1e-6, 1e6, &c->score, error);
    zf_json_to_double(zf_config_member(json, "attn_pdrop"), 0, 0.999, &c->attention_dropout, error);
}

static void zfl_mpt_read(zf_causal_config *c, const zf_json *json, zf_error *error)
{
    zfl_mpt_read_attention(c, zf_config_member(json, "attn_config"), error);
    zfl_repeat_count(json, "expansion_ratio", 4, " in this family", error);
    zfl_repeat(json, "no_bias", true, " in this family", error);
    if (!error->status && zf_config_member(json, "logit_scale"))
        zf_json_expected(zf_config_member(json, "logit_scale"), error, "null in this family");
    c->attention_bias = c->mlp_bias = 0, c->alibi = ZF_CAUSAL_ALIBI_MPT;
    c->activation = ZF_ACTIVATION_GELU, c->intermediate = 4 * c->hidden;
    c->kv_heads = c->heads, c->width = c->hidden / c->heads;
}

static void zfl_mpt_write(const zf_causal_config *c, zf_json_writer *w)
{
    zf_json_put_key(w, "attn_config");
    zf_json_begin_object(w);
    zf_json_put_bool_member(w, "alibi", true);
    if (c->attention_dropout > 0) /* transformers takes 0 as an integer alone */
        zf_json_put_double_member(w, "attn_pdrop", c->attention_dropout);
    if (c->clip > 0) zf_json_put_double_member(w, "clip_qkv", c->clip);
    if (c->score > 0) zf_json_put_double_member(w, "softmax_scale", c->score);
    zf_json_end(w);
}

static const zfl_family_desc zfl_mpt = {
    .architecture = "MptForCausalLM",
    .config = {.rows = zfl_mpt_rows,
               .keys = zfl_mpt_keys,
               .optional = zfl_mpt_optional,
               .unwritten = zfl_mpt_unwritten,
               .defaults = &(const zf_causal_config){.vocab = 50368,
                                                     .positions = 2048,
                                                     .std = 0.02,
                                                     .activation = ZF_ACTIVATION_GELU,
                                                     .eps = 1e-5,
                                                     .begin = -1,
                                                     .pad = -1,
                                                     .tied = 1,
                                                     .ends = {-1, -1, -1, -1, -1, -1, -1, -1}}},
    .read = zfl_mpt_read,
    .write = zfl_mpt_write,
    .reads_rope = true,
    .reads_windows = true,
    .names = {.model = "transformer",
              .embedding = "wte",
              .layers = "blocks",
              .attention = "attn",
              .out = "out_proj",
              .joined = "Wqkv",
              .mlp = "ffn",
              .last_norm = "norm_f"},
    .norms = {.before_attention = "norm_1", .before_mlp = "norm_2"},
    .layer_norm = true,
    .no_norm_bias = true,
    .dropouts = true,
    .same_dropout = true,
    .mlp = {"up_proj", "down_proj"},
    .joined = true,
};
