/* What readers of families share. */
#include <string.h>

/* The rope of all layers, or of those without a window. */
static void zfl_set_rope(zf_causal_config *c, const zf_rope_desc *rope)
{
    c->theta = rope->theta, c->scaling = rope->scaling, c->factor = rope->factor;
    c->low = rope->low_factor, c->high = rope->high_factor, c->original = rope->original;
    c->attention = rope->attention, c->unrounded = rope->unrounded;
}

/* layer_types: the kind of each layer. */
static void zfl_read_types(zf_causal_config *c, const zf_json *types, zf_error *error)
{
    int64_t layer = 0, sliding = 0;
    for (const zf_json *v = zf_json_first(types); v && !error->status; v = zf_json_next(v)) {
        const char *text = "";
        bool full;
        zf_json_to_string(v, &text, error);
        full = !strcmp(text, "full_attention");
        if (!error->status && !full && strcmp(text, "sliding_attention"))
            zf_json_expected(v, error, "full_attention or sliding_attention");
        if (full) zfl_mark_layer(c->full, layer);
        sliding += !full, layer++;
    }
    if (error->status) return;
    if (layer != c->layers)
        zf_json_expected(types, error, "a list of num_hidden_layers (%lld)", (long long)c->layers);
    else if (sliding && !c->window)
        zf_json_fail(types, error, "names sliding layers, and there is no sliding_window%s",
                     c->family == ZF_CAUSAL_LLAMA ? " in a llama" : "");
    if (!sliding) c->window = 0;
}

/* A count, at least `least`: from the file, or `empty` for null, or `absent` if it is missing. */
static void zfl_read_count_or(const zf_json *json, const char *key, int64_t least, int64_t absent,
                              int64_t empty, int64_t *out, zf_error *error)
{
    const zf_json *v = zf_json_member(json, key);
    *out = !v ? absent : zf_json_type_of(v) == ZF_JSON_NULL ? empty : *out;
    if (zf_config_member(json, key)) zf_json_to_int(v, least, INT32_MAX, out, error);
}

/* sliding_window: `absent` where it is missing, 0 for null. */
static void zfl_read_window(zf_causal_config *c, const zf_json *json, int64_t absent,
                            zf_error *error)
{
    /* Of a Qwen2-MoE transformers writes 0 where there is none. */
    zfl_read_count_or(json, "sliding_window", c->family != ZF_CAUSAL_QWEN2_MOE, absent, 0,
                      &c->window, error);
}

/* partial_rotary_factor of the file, or what it stands for. */
static void zfl_set_part(zf_causal_config *c, double part, const zf_json *json, zf_error *error)
{
    const int64_t width = c->width ? c->width : c->hidden / c->heads;
    c->rotated = part < 1 ? (int64_t)((double)width * part) : 0;
    if (part < 1 && (c->rotated < 2 || c->rotated % 2))
        zf_json_fail(
            zf_json_member(json, "hidden_size"), error,
            "with partial_rotary_factor gives heads of which %lld numbers are rotated; the "
            "number must be even and at least 2",
            (long long)c->rotated);
}

/* The epsilon of norms, 1e-5 if it is missing; rms_norm_eps may repeat it. */
static void zfl_read_eps(zf_causal_config *c, const zf_json *json, const char *key, zf_error *error)
{
    const zf_json *other = zf_config_member(json, "rms_norm_eps");
    double eps = 1e-5;
    zf_json_to_double(zf_config_member(json, key), 0, 1, &eps, error);
    if (!error->status && other && c->eps != eps)
        zf_json_expected(other, error, "%.17g, as %s", eps, key);
    c->eps = eps;
}

/* A member that may only repeat a value. why: what an error ends with. */
static void zfl_repeat(const zf_json *json, const char *key, bool value, const char *why,
                       zf_error *error)
{
    bool other = value;
    zf_json_to_bool(zf_config_member(json, key), &other, error);
    if (!error->status && other != value)
        zf_json_expected(zf_json_member(json, key), error, "%s%s", value ? "true" : "false", why);
}

static void zfl_repeat_count(const zf_json *json, const char *key, int64_t value, const char *why,
                             zf_error *error)
{
    int64_t other = value;
    zf_json_to_int(zf_config_member(json, key), 1, INT32_MAX, &other, error);
    if (!error->status && other != value)
        zf_json_expected(zf_json_member(json, key), error, "%lld%s", (long long)value, why);
}

/* A token's experts are no more than there are. */
static void zfl_check_experts(const zf_causal_config *c, const zf_json *json, zf_error *error)
{
    if (!error->status && c->chosen > c->experts)
        zf_json_expected(zf_json_member(json, "num_experts_per_tok"), error,
                         "at most the number of experts (%lld)", (long long)c->experts);
}

/* layer_types. */
static void zfl_write_types(const zf_causal_config *c, zf_json_writer *w)
{
    zf_json_put_key(w, "layer_types");
    zf_json_begin_array(w);
    for (int64_t k = 0; k < c->layers; k++)
        zf_json_put_string(w, zfl_is_full(c, k) ? "full_attention" : "sliding_attention");
    zf_json_end(w);
}
