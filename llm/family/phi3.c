/* Phi-3 and Phi-4 (Abdin et al. 2024): a Llama in which q, k and v are one product, and gate and up
 * another; rope may rotate a part of each head, and be longrope. */

static const char *const zfl_phi3_keys[] = {"original_max_position_embeddings",
                                            "resid_pdrop",
                                            "embd_pdrop",
                                            "full_attn_mod",
                                            "interpolate_factor",
                                            "lm_head_bias",
                                            NULL};

/* Dropouts that no published model has. */
static void zfl_phi3_read_dropout(const zf_json *json, const char *key, zf_error *error)
{
    double none = 0;
    if (!zf_json_to_double(zf_config_member(json, key), 0, 1, &none, error) && none > 0)
        zf_json_expected(zf_json_member(json, key), error, "0");
}

/* Sets the rope, and the part of a head that it rotates. */
static bool zfl_phi3_read_rope(zf_causal_config *c, const zf_json *json, double *part,
                               zf_error *error)
{
    const zf_json *object = zfl_longrope_of(json, error);
    zf_rope_desc rope = {.theta = 0};
    *part = 1;
    if (object) zfl_read_longrope(c, json, object, part, error);
    else if (!error->status)
        zf_config_read_rope_part(json, c->theta, c->positions, &rope, part, error);
    if (error->status || object) return !error->status;
    zfl_set_rope(c, &rope);
    object = zf_config_member(json, "rope_scaling");
    if (rope.scaling || rope.factor != 0)
        zf_json_fail(object ? object : zf_config_member(json, "rope_parameters"), error,
                     "must be of the type default or longrope in this family");
    return !error->status;
}

static void zfl_phi3_read(zf_causal_config *c, const zf_json *json, zf_error *error)
{
    double part;
    if (!zfl_phi3_read_rope(c, json, &part, error)) return;
    zfl_set_part(c, part, json, error);
    zfl_phi3_read_dropout(json, "resid_pdrop", error);
    zfl_phi3_read_dropout(json, "embd_pdrop", error);
    /* Of Phi-4-mini's files. */
    zfl_repeat_count(json, "full_attn_mod", 1, " in this family", error);
    zfl_repeat_count(json, "interpolate_factor", 1, " in this family", error);
    zfl_repeat(json, "lm_head_bias", false, " in this family", error);
    zfl_read_window(c, json, 0, error);
}

static void zfl_phi3_write(const zf_causal_config *c, zf_json_writer *w)
{
    const int64_t rotated = c->rotated ? c->rotated : c->width;
    zf_json_put_double_member(w, "partial_rotary_factor", (double)rotated / (double)c->width);
    zf_json_put_int_member(w, "original_max_position_embeddings",
                           c->factors ? c->original : c->positions);
}

static const zfl_family_desc zfl_phi3 = {
    .architecture = "Phi3ForCausalLM",
    .config = {.keys = zfl_phi3_keys,
               .defaults = &(const zf_causal_config){ZFL_DEFAULTS(10000, 1e-5, 1, 32000, 32000)}},
    .no_attention_bias = true,
    .no_mlp_bias = true,
    .read = zfl_phi3_read,
    .write = zfl_phi3_write,
    .reads_rope = true,
    .reads_windows = true,
    .norms = ZFL_NORMS,
    .joined = true,
};
