/* Falcon (Almazrouei et al. 2023), of which tokens have rope or ALiBi (Falcon-RW): layer norms, an MLP
 * of two products; q, k and v are one product, by groups of heads.
 *
 *     x += attend(norm(x)) + ffn(norm(x))        each with its own norm (40B, 180B), or of the same
 *                                                one (7B, 11B); parallel_attn false: one after the
 *                                                other
 *
 * A file of a model with one norm is written as the newer architecture with one norm and so many
 * num_kv_heads, which computes the same. */

#include <string.h>

static const char *const zfl_falcon_keys[] = {"num_kv_heads",
                                              "num_ln_in_parallel_attn",
                                              "layer_norm_epsilon",
                                              "alibi",
                                              "new_decoder_architecture",
                                              "multi_query",
                                              "parallel_attn",
                                              "bias",
                                              "ffn_hidden_size",
                                              "hidden_dropout",
                                              "apply_residual_connection_post_layernorm",
                                              NULL},
                         *const zfl_falcon_optional[] = {"max_position_embeddings",
                                                         "intermediate_size", NULL};

static const char *const zfl_falcon_unwritten[] = {
    "head_dim",     "num_key_value_heads", "intermediate_size", "hidden_act",
    "rms_norm_eps", "attention_bias",      "mlp_bias",          NULL};

static const zf_config_row zfl_falcon_rows[] = {
    {"activation", ZF_CONFIG_ACTIVATION, .at = ZFL_AT(activation), .text = "gelu_pytorch_tanh"},
    {.key = NULL}};

static const char zfl_falcon_here[] = " in this family";

/* transformers has it in some of the forms alone, and no published model has it. */
static void zfl_falcon_read_hidden_dropout(const zf_json *json, zf_error *error)
{
    double none = 0;
    if (!zf_json_to_double(zf_config_member(json, "hidden_dropout"), 0, 1, &none, error) &&
        none > 0)
        zf_json_expected(zf_json_member(json, "hidden_dropout"), error, "0%s", zfl_falcon_here);
}

/* Norms of a layer, and heads of keys. */
static void zfl_falcon_read_form(zf_causal_config *c, const zf_json *json, zf_error *error)
{
    const zf_json *norms = zf_config_member(json, "num_ln_in_parallel_attn");
    bool newer = false, one = true, parallel = true;
    int64_t count = 2, kv = c->heads;
    zf_json_to_bool(zf_config_member(json, "new_decoder_architecture"), &newer, error);
    zf_json_to_bool(zf_config_member(json, "multi_query"), &one, error);
    zf_json_to_bool(zf_config_member(json, "parallel_attn"), &parallel, error);
    zf_json_to_int(zf_config_member(json, "num_kv_heads"), 1, INT32_MAX, &kv, error);
    if (!newer) count = 1;
    zf_json_to_int(norms, 1, 2, &count, error);
    if (error->status) return;
    if (!newer && count > 1) zf_json_expected(norms, error, "1 without new_decoder_architecture");
    else if (newer && !parallel)
        zf_json_expected(zf_json_member(json, "parallel_attn"), error,
                         "true with new_decoder_architecture");
    else if (!newer && !one && kv != c->heads)
        zf_json_expected(zf_json_member(json, "num_kv_heads"), error,
                         "num_attention_heads (%lld) without multi_query", (long long)c->heads);
    kv = newer || !one ? kv : 1;
    if (!error->status) zfl_repeat_count(json, "num_key_value_heads", kv, zfl_falcon_here, error);
    c->kv_heads = kv;
    c->parallel = !parallel   ? ZF_CAUSAL_SEQUENTIAL
                  : count > 1 ? ZF_CAUSAL_PARALLEL
                              : ZF_CAUSAL_PARALLEL_ONE_NORM;
}

static void zfl_falcon_read_activation(const zf_json *json, zf_error *error)
{
    const zf_json *other = zf_config_member(json, "hidden_act");
    const char *own = "gelu", *text;
    zf_json_to_string(zf_config_member(json, "activation"), &own, error);
    text = own;
    if (!error->status && !zf_json_to_string(other, &text, error) && strcmp(own, text))
        zf_json_expected(other, error, "%.40s, as activation", own);
}

static void zfl_falcon_read(zf_causal_config *c, const zf_json *json, zf_error *error)
{
    bool bias = false, alibi = false;
    int64_t wide = 4 * c->hidden;
    zf_json_to_bool(zf_config_member(json, "alibi"), &alibi, error);
    zfl_repeat(json, "apply_residual_connection_post_layernorm", false, zfl_falcon_here, error);
    zfl_falcon_read_hidden_dropout(json, error);
    if (!error->status) zfl_falcon_read_activation(json, error);
    if (!error->status) zfl_falcon_read_form(c, json, error);
    if (!error->status) zfl_read_eps(c, json, "layer_norm_epsilon", error);
    zf_json_to_bool(zf_config_member(json, "bias"), &bias, error);
    zfl_repeat(json, "attention_bias", bias, ", as bias", error);
    zfl_repeat(json, "mlp_bias", bias, ", as bias", error);
    zf_json_to_int(zf_config_member(json, "ffn_hidden_size"), 1, 1 << 22, &wide, error);
    if (!error->status) zfl_repeat_count(json, "intermediate_size", wide, zfl_falcon_here, error);
    if (!error->status)
        zfl_repeat_count(json, "head_dim", c->hidden / c->heads, zfl_falcon_here, error);
    if (!error->status && zf_config_member(json, "sliding_window"))
        zf_json_expected(zf_config_member(json, "sliding_window"), error, "null%s",
                         zfl_falcon_here);
    c->attention_bias = c->mlp_bias = bias, c->intermediate = wide;
    c->alibi = alibi ? ZF_CAUSAL_ALIBI_FALCON : ZF_CAUSAL_NO_ALIBI;
}

static void zfl_falcon_write(const zf_causal_config *c, zf_json_writer *w)
{
    const bool parallel = c->parallel != ZF_CAUSAL_SEQUENTIAL;
    if (c->alibi) zf_json_put_bool_member(w, "alibi", true);
    zf_json_put_bool_member(w, "new_decoder_architecture", parallel);
    zf_json_put_bool_member(w, "parallel_attn", parallel);
    zf_json_put_bool_member(w, "multi_query", c->kv_heads == 1);
    zf_json_put_int_member(w, "num_kv_heads", c->kv_heads);
    if (parallel)
        zf_json_put_int_member(w, "num_ln_in_parallel_attn",
                               c->parallel == ZF_CAUSAL_PARALLEL ? 2 : 1);
    zf_json_put_double_member(w, "layer_norm_epsilon", c->eps);
    zf_json_put_bool_member(w, "bias", c->mlp_bias != 0);
    zf_json_put_int_member(w, "ffn_hidden_size", c->intermediate);
}

static const zfl_family_desc zfl_falcon = {
    .architecture = "FalconForCausalLM",
    .config = {.rows = zfl_falcon_rows,
               .keys = zfl_falcon_keys,
               .unwritten = zfl_falcon_unwritten,
               .optional = zfl_falcon_optional,
               .defaults = &(const zf_causal_config){.vocab = 65024,
                                                     .positions = 2048,
                                                     .std = 0.02,
                                                     .activation = ZF_ACTIVATION_GELU,
                                                     .theta = 10000,
                                                     .eps = 1e-5,
                                                     .begin = 11,
                                                     .pad = -1,
                                                     .tied = 1,
                                                     .ends = {11, -1, -1, -1, -1, -1, -1, -1}}},
    .read = zfl_falcon_read,
    .write = zfl_falcon_write,
    .reads_windows = true,
    .names = {.model = "transformer",
              .embedding = "word_embeddings",
              .layers = "h",
              .attention = "self_attention",
              .out = "dense",
              .last_norm = "ln_f"},
    .norms = ZFL_NORMS,
    .parallel_norms = {.before_attention = "ln_attn", .before_mlp = "ln_mlp"},
    .layer_norm = true,
    .mlp = {"dense_h_to_4h", "dense_4h_to_h"},
    .grouped = "query_key_value",
};
