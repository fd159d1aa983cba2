/* What config.json says about rotary positions. */
#include <string.h>

/* A member that this kind of scaling does not read is an error; null says nothing. */
static void zfl_expect_rope_members(const zf_json *rope, zf_rope_scaling kind, zf_error *error)
{
    static const char *const all[] = {"rope_type",        "type",
                                      "rope_theta",       "partial_rotary_factor",
                                      "factor",           "low_freq_factor",
                                      "high_freq_factor", "original_max_position_embeddings"};
    const int known = kind == ZF_ROPE_LLAMA3 ? 8 : kind == ZF_ROPE_LINEAR ? 5 : 4;
    for (const zf_json *v = zf_json_first(rope); v && !error->status; v = zf_json_next(v)) {
        int k = 0;
        while (k < known && strcmp(all[k], zf_json_key(v, NULL))) k++;
        if (zf_json_type_of(v) == ZF_JSON_OBJECT)
            zf_json_fail(v, error,
                         "is of some layers alone; all layers must have one kind of rope");
        else if (k == known && zf_json_type_of(v) != ZF_JSON_NULL)
            zf_json_fail(v, error, "is not read in rope of the type %s",
                         kind == ZF_ROPE_LLAMA3   ? "llama3"
                         : kind == ZF_ROPE_LINEAR ? "linear"
                                                  : "default");
    }
}

/* The object that counts. */
static const zf_json *zfl_rope_object(const zf_json *json, zf_error *error)
{
    static const char *const keys[] = {"rope_scaling", "rope_parameters"};
    const zf_json *found = NULL;
    for (int k = 0; k < 2 && !error->status; k++) {
        const zf_json *v = zf_config_member(json, keys[k]);
        if (v && zf_json_type_of(v) != ZF_JSON_OBJECT) zf_json_expected(v, error, "an object");
        else if (!zf_json_length(v)) continue;
        else if (found)
            zf_json_fail(v, error,
                         "is not read where there is rope_scaling: one of the two must "
                         "say all");
        else found = v;
    }
    return found;
}

/* All of a head is rotated. */
static void zfl_expect_whole_heads(const zf_json *object, zf_error *error)
{
    const zf_json *v = zf_config_member(object, "partial_rotary_factor");
    double whole = 1;
    zf_json_to_double(v, 0, 1, &whole, error);
    if (!error->status && whole != 1) zf_json_expected(v, error, "1: all of a head is rotated");
}

static zf_rope_scaling zfl_read_rope_kind(const zf_json *rope, zf_error *error)
{
    static const struct {
        const char *name;
        zf_rope_scaling kind;
    } kinds[] = {
        {"default", ZF_ROPE_PLAIN}, {"linear", ZF_ROPE_LINEAR}, {"llama3", ZF_ROPE_LLAMA3}};
    const zf_json *v = zf_config_member(rope, "rope_type");
    const char *text = kinds[0].name;
    if (!v) v = zf_config_member(rope, "type");
    if (zf_json_to_string(v, &text, error)) return ZF_ROPE_PLAIN;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        if (!strcmp(text, kinds[k].name)) return kinds[k].kind;
    zf_json_expected(v, error, "default, linear or llama3");
    return ZF_ROPE_PLAIN;
}

/* The factors of a kind of scaling. */
static void zfl_read_rope_factors(const zf_json *rope, int64_t positions, zf_rope_desc *out,
                                  zf_error *error)
{
    const zf_json *high = zf_config_member(rope, "high_freq_factor");
    if (out->scaling == ZF_ROPE_PLAIN) return;
    zf_json_to_double(zf_json_require(rope, "factor", error), 1e-6, 1e6, &out->factor, error);
    if (out->scaling != ZF_ROPE_LLAMA3) return;
    zf_json_to_double(zf_json_require(rope, "low_freq_factor", error), 1e-6, 1e6, &out->low_factor,
                      error);
    zf_json_to_double(zf_json_require(rope, "high_freq_factor", error), 1e-6, 1e6,
                      &out->high_factor, error);
    out->original = positions;
    zf_json_to_int(zf_config_member(rope, "original_max_position_embeddings"), 1, INT32_MAX,
                   &out->original, error);
    if (!error->status && out->high_factor <= out->low_factor)
        zf_json_expected(high, error, "above low_freq_factor (%g)", out->low_factor);
}

bool zf_config_read_rope(const zf_json *json, int64_t positions, zf_rope_desc *out, zf_error *error)
{
    const zf_json *rope = zfl_rope_object(json, error), *own = zf_config_member(json, "rope_theta"),
                  *theta = zf_config_member(rope, "rope_theta");
    double other;
    out->theta = 10000;
    zf_json_to_double(theta ? theta : own, 1e-6, 1e12, &out->theta, error);
    other = out->theta;
    zf_json_to_double(own, 1e-6, 1e12, &other, error);
    if (!error->status && other != out->theta)
        zf_json_expected(own, error, "%.17g, as in the object of rope", out->theta);
    zfl_expect_whole_heads(json, error);
    zfl_expect_whole_heads(rope, error);
    if (!error->status) out->scaling = zfl_read_rope_kind(rope, error);
    if (!error->status) zfl_expect_rope_members(rope, out->scaling, error);
    if (!error->status) zfl_read_rope_factors(rope, positions, out, error);
    return !error->status;
}
