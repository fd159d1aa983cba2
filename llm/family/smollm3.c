/* SmolLM3 (Hugging Face 2025): a Llama in which each fourth layer, or those that config.json lists,
 * has no rope. With a window, these layers have it. */

static const char *const zfl_smollm3_keys[] = {"no_rope_layers", "no_rope_layer_interval", NULL};

/* no_rope_layers: 1 for each layer with rope, 0 for one without. */
static void zfl_smollm3_read_list(zf_causal_config *c, const zf_json *list, zf_error *error)
{
    int64_t layer = 0;
    for (const zf_json *v = zf_json_first(list); v && !error->status;
         v = zf_json_next(v), layer++) {
        int64_t has = 1;
        zf_json_to_int(v, 0, 1, &has, error);
        if (!has && layer < c->layers) zfl_mark_layer(c->plain, layer);
    }
    if (layer < c->layers && !error->status)
        zf_json_expected(list, error, "a list of num_hidden_layers (%lld)", (long long)c->layers);
}

static void zfl_smollm3_read_plain(zf_causal_config *c, const zf_json *json, zf_error *error)
{
    const zf_json *list = zf_config_member(json, "no_rope_layers");
    int64_t interval = 4;
    if (c->layers > ZF_CAUSAL_LAYERS)
        zf_json_expected(zf_json_member(json, "num_hidden_layers"), error, "at most %d",
                         ZF_CAUSAL_LAYERS);
    zf_json_to_int(zf_config_member(json, "no_rope_layer_interval"), 1, INT32_MAX, &interval,
                   error);
    if (list) zfl_smollm3_read_list(c, list, error);
    for (int64_t k = interval - 1; !list && !error->status && k < c->layers; k += interval)
        zfl_mark_layer(c->plain, k);
}

static void zfl_smollm3_read(zf_causal_config *c, const zf_json *json, zf_error *error)
{
    const zf_json *types = zf_config_member(json, "layer_types");
    zf_rope_desc rope = {.theta = 0};
    bool uses = false;
    double whole;
    if (!zf_config_read_rope_part(json, c->theta, c->positions, &rope, &whole, error)) return;
    if (whole != 1)
        zf_json_expected(zf_json_member(json, "partial_rotary_factor"), error,
                         "1: all of a head is rotated");
    zfl_set_rope(c, &rope);
    zfl_smollm3_read_plain(c, json, error);
    zfl_read_window(c, json, 0, error);
    zf_json_to_bool(zf_config_member(json, "use_sliding_window"), &uses, error);
    if (types) zfl_read_types(c, types, error);
    else if (!uses) c->window = 0;
    for (int64_t k = 0; !types && c->window && k < c->layers; k++)
        if (!zfl_is_plain(c, k)) zfl_mark_layer(c->full, k);
}

static void zfl_smollm3_write(const zf_causal_config *c, zf_json_writer *w)
{
    zf_json_put_key(w, "no_rope_layers");
    zf_json_begin_array(w);
    for (int64_t k = 0; k < c->layers; k++) zf_json_put_int(w, !zfl_is_plain(c, k));
    zf_json_end(w);
    zf_json_put_bool_member(w, "use_sliding_window", c->window > 0);
    zfl_write_types(c, w);
}

static const zfl_family_desc zfl_smollm3 = {
    .architecture = "SmolLM3ForCausalLM",
    .config = {.keys = zfl_smollm3_keys,
               .defaults =
                   &(const zf_causal_config){ZFL_DEFAULTS(2e6, 1e-6, 128000, 128001, 128004),
                                             .tied = 1}},
    .kv_heads = 4,
    .read = zfl_smollm3_read,
    .write = zfl_smollm3_write,
    .reads_rope = true,
    .reads_windows = true,
    .norms = ZFL_NORMS,
};
