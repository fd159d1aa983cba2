/* GPT-NeoX (Black et al. 2022) and Pythia (Biderman et al. 2023): layer norms, biases, an MLP of two
 * products; q, k and v are one product, head by head; rope rotates a part of each head.
 *
 *     x += attend(norm(x)) + ffn(norm(x))    use_parallel_residual, each with its own norm; else
 *     x += attend(norm(x)), x += ffn(norm(x)) */

static const char *const zfl_neox_keys[] = {"layer_norm_eps", "rotary_pct", "rotary_emb_base",
                                            "classifier_dropout", /* of another task */
                                            NULL};

static const char *const zfl_neox_unwritten[] = {
    "head_dim", "num_key_value_heads", "rms_norm_eps", "rope_theta", "mlp_bias", NULL};

static const zf_config_row zfl_neox_rows[] = {
    {"hidden_dropout", ZF_CONFIG_NUMBER, .at = ZFL_AT(dropout), .most = 0.999},
    {"use_parallel_residual", ZF_CONFIG_TRUTH, .at = ZFL_AT(parallel)},
    {.key = NULL}};

static void zfl_neox_expect(const zf_json *v, double value, zf_error *error)
{
    double other = value;
    if (!zf_json_to_double(v, 0, 1e12, &other, error) && other != value)
        zf_json_expected(v, error, "%.17g, as rope of this family has it", value);
}

/* The member `key` of the object of rope, else `own` of the file, else `usual`. What the file says
 * besides must be the same. */
static double zfl_neox_read_of_rope(const zf_json *json, const char *key, const char *own,
                                    double usual, double least, double most, zf_error *error)
{
    const zf_json *object = zfl_rope_of(json, error), *of_file = zf_config_member(json, own);
    double value = usual;
    zf_json_to_double(of_file, least, most, &value, error);
    zf_json_to_double(zf_config_member(object, key), least, most, &value, error);
    if (!error->status) zfl_neox_expect(of_file, value, error);
    if (!error->status) zfl_neox_expect(zf_config_member(json, key), value, error);
    return value;
}

static void zfl_neox_read_rope(zf_causal_config *c, const zf_json *json, zf_error *error)
{
    const double theta = zfl_neox_read_of_rope(json, "rope_theta", "rotary_emb_base", 10000, 1e-6,
                                               1e12, error),
                 part = zfl_neox_read_of_rope(json, "partial_rotary_factor", "rotary_pct", 0.25, 0,
                                              1, error);
    zf_rope_desc rope = {.theta = 0};
    double zfl_neox_read;
    if (error->status ||
        !zf_config_read_rope_part(json, theta, c->positions, &rope, &zfl_neox_read, error))
        return;
    zfl_set_rope(c, &rope);
    zfl_set_part(c, part, json, error);
}

/* Heads are as many as keys, and hidden_size / num_attention_heads wide. */
static void zfl_neox_check_heads(const zf_causal_config *c, const zf_json *json, zf_error *error)
{
    if (c->kv_heads && c->kv_heads != c->heads)
        zf_json_expected(zf_json_member(json, "num_key_value_heads"), error,
                         "num_attention_heads (%lld) in this family", (long long)c->heads);
    else if (c->width && c->width * c->heads != c->hidden)
        zf_json_expected(zf_json_member(json, "head_dim"), error,
                         "hidden_size / num_attention_heads in this family");
}

static void zfl_neox_read(zf_causal_config *c, const zf_json *json, zf_error *error)
{
    zfl_neox_check_heads(c, json, error);
    if (!error->status) zfl_neox_read_rope(c, json, error);
    if (!error->status) zfl_read_eps(c, json, "layer_norm_eps", error);
    zfl_repeat(json, "mlp_bias", true, " in this family", error);
    zfl_repeat(json, "tie_word_embeddings", false, " in this family", error);
    if (!error->status && zf_config_member(json, "sliding_window"))
        zf_json_expected(zf_config_member(json, "sliding_window"), error, "null in this family");
    c->mlp_bias = 1;
}

static void zfl_neox_write(const zf_causal_config *c, zf_json_writer *w)
{
    zf_json_put_double_member(w, "layer_norm_eps", c->eps);
    zf_json_put_double_member(w, "rotary_emb_base", c->theta);
    zf_json_put_double_member(w, "rotary_pct",
                              (double)(c->rotated ? c->rotated : c->width) / (double)c->width);
    if (!c->attention_bias) zf_json_put_bool_member(w, "attention_bias", false);
}

static const zfl_family_desc zfl_neox = {
    .architecture = "GPTNeoXForCausalLM",
    .config = {.rows = zfl_neox_rows,
               .keys = zfl_neox_keys,
               .unwritten = zfl_neox_unwritten,
               .defaults = &(const zf_causal_config){.vocab = 50432,
                                                     .positions = 2048,
                                                     .std = 0.02,
                                                     .activation = ZF_ACTIVATION_GELU,
                                                     .theta = 10000,
                                                     .eps = 1e-5,
                                                     .begin = 0,
                                                     .pad = -1,
                                                     .attention_bias = 1,
                                                     .parallel = 1,
                                                     .ends = {2, -1, -1, -1, -1, -1, -1, -1}}},
    .read = zfl_neox_read,
    .write = zfl_neox_write,
    .reads_rope = true,
    .reads_windows = true,
    .names = {.model = "gpt_neox",
              .embedding = "embed_in",
              .attention = "attention",
              .out = "dense",
              .last_norm = "final_layer_norm",
              .head = "embed_out"},
    .norms = ZFL_NORMS,
    .layer_norm = true,
    .dropouts = true,
    .one_dropout = true,
    .mlp = {"dense_h_to_4h", "dense_4h_to_h"},
    .grouped = "query_key_value",
};
