/* What config.json says about rotary positions. */
#include <math.h>
#include <string.h>

/* How config.json calls a kind of scaling, and the members that its object may have; those of all
 * kinds are rope_type, type, rope_theta and partial_rotary_factor. */
typedef struct zfl_rope_kind {
    const char *name;
    zf_rope_scaling kind; /* of dynamic: up to the positions of the model it changes nothing */
    const char *members[8];
} zfl_rope_kind;

static const zfl_rope_kind zfl_rope_kinds[] = {
    {"default", ZF_ROPE_PLAIN, {"mrope_section"}},
    /* Of the numbers of a head these sections turn by positions in time, height and width, which
     * are one number for text. */
    {"mrope", ZF_ROPE_PLAIN, {"mrope_section"}},
    {"linear", ZF_ROPE_LINEAR, {"factor"}},
    {"dynamic", ZF_ROPE_PLAIN, {"factor"}},
    {"llama3",
     ZF_ROPE_LLAMA3,
     {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}},
    {"yarn",
     ZF_ROPE_YARN,
     {"factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow",
      "mscale", "mscale_all_dim", "truncate"}}};

/* A member that this kind of scaling does not read is an error; null says nothing. */
static void zfl_expect_rope_members(const zf_json *rope, const zfl_rope_kind *kind, zf_error *error)
{
    static const char *const all[] = {"rope_type", "type", "rope_theta", "partial_rotary_factor",
                                      NULL};
    for (const zf_json *v = zf_json_first(rope); v && !error->status; v = zf_json_next(v)) {
        bool known = zfl_is_listed(all, zf_json_key(v, NULL));
        for (int k = 0; k < 8 && kind->members[k]; k++)
            known = known || !strcmp(kind->members[k], zf_json_key(v, NULL));
        if (zf_json_type_of(v) == ZF_JSON_OBJECT)
            zf_json_fail(v, error,
                         "is of some layers alone; all layers must have one kind of rope");
        else if (!known && zf_json_type_of(v) != ZF_JSON_NULL)
            zf_json_fail(v, error, "is not read in rope of the type %s", kind->name);
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

/* The part of a head that is rotated. part NULL: it must be all. */
static void zfl_read_part(const zf_json *object, double *part, zf_error *error)
{
    const zf_json *v = zf_config_member(object, "partial_rotary_factor");
    double whole = 1;
    zf_json_to_double(v, 0, 1, part ? part : &whole, error);
    if (!error->status && whole != 1) zf_json_expected(v, error, "1: all of a head is rotated");
}

static const zfl_rope_kind *zfl_read_rope_kind(const zf_json *rope, zf_error *error)
{
    const zf_json *v = zf_config_member(rope, "rope_type");
    const char *text = zfl_rope_kinds[0].name;
    if (!v) v = zf_config_member(rope, "type");
    if (zf_json_to_string(v, &text, error)) return NULL;
    for (size_t k = 0; k < sizeof zfl_rope_kinds / sizeof *zfl_rope_kinds; k++)
        if (!strcmp(text, zfl_rope_kinds[k].name)) return &zfl_rope_kinds[k];
    zf_json_expected(v, error, "default, linear, dynamic, llama3 or yarn");
    return NULL;
}

/* The factors of llama3. */
static void zfl_read_llama3(const zf_json *rope, zf_rope_desc *out, zf_error *error)
{
    const zf_json *high = zf_config_member(rope, "high_freq_factor");
    zf_json_to_double(zf_json_require(rope, "low_freq_factor", error), 1e-6, 1e6, &out->low_factor,
                      error);
    zf_json_to_double(zf_json_require(rope, "high_freq_factor", error), 1e-6, 1e6,
                      &out->high_factor, error);
    if (!error->status && out->high_factor <= out->low_factor)
        zf_json_expected(high, error, "above low_freq_factor (%g)", out->low_factor);
}

/* A number of yarn; 0, which transformers takes for none, and null leave what it is. */
static void zfl_read_yarn_number(const zf_json *rope, const char *key, double *out, zf_error *error)
{
    double x = 0;
    if (!zf_json_to_double(zf_config_member(rope, key), 0, 1e6, &x, error) && x > 0) *out = x;
}

/* What yarn multiplies attention by, from mscale: 0.1 mscale log(factor) + 1. */
static double zfl_yarn_mscale(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

static void zfl_read_yarn(const zf_json *rope, zf_rope_desc *out, zf_error *error)
{
    const zf_json *fast = zf_config_member(rope, "beta_fast");
    double mscale = 0, all_dim = 0;
    bool rounded = true;
    out->low_factor = 1, out->high_factor = 32;
    zfl_read_yarn_number(rope, "beta_slow", &out->low_factor, error);
    zfl_read_yarn_number(rope, "beta_fast", &out->high_factor, error);
    zfl_read_yarn_number(rope, "mscale", &mscale, error);
    zfl_read_yarn_number(rope, "mscale_all_dim", &all_dim, error);
    zf_json_to_bool(zf_config_member(rope, "truncate"), &rounded, error);
    out->unrounded = !rounded;
    out->attention = mscale > 0 && all_dim > 0 ? zfl_yarn_mscale(out->factor, mscale) /
                                                     zfl_yarn_mscale(out->factor, all_dim)
                                               : zfl_yarn_mscale(out->factor, 1);
    zf_json_to_double(zf_config_member(rope, "attention_factor"), 1e-6, 1e6, &out->attention, error);
    if (!error->status && out->high_factor < out->low_factor)
        zf_json_expected(fast ? fast : rope, error, "a beta_fast not below beta_slow (%g)",
                         out->low_factor);
}

/* The factors of a kind of scaling. */
static void zfl_read_rope_factors(const zf_json *rope, const zfl_rope_kind *kind, int64_t positions,
                                  zf_rope_desc *out, zf_error *error)
{
    const zf_json *factor;
    if (!kind->members[0] || !strcmp(kind->members[0], "mrope_section")) return;
    if (kind->kind >= ZF_ROPE_LLAMA3) {
        out->original = positions;
        zf_json_to_int(zf_config_member(rope, "original_max_position_embeddings"), 1, INT32_MAX,
                       &out->original, error);
    }
    factor = zf_json_require(rope, "factor", error);
    if (kind->kind == ZF_ROPE_YARN && zf_json_type_of(factor) == ZF_JSON_NULL)
        out->factor = (double)positions / (double)out->original;
    else zf_json_to_double(factor, 1e-6, 1e6, &out->factor, error);
    if (kind->kind == ZF_ROPE_LLAMA3) zfl_read_llama3(rope, out, error);
    if (kind->kind == ZF_ROPE_YARN) zfl_read_yarn(rope, out, error);
}

/* One object. */
static bool zfl_read_rope(const zf_json *rope, const zf_json *theta, double otherwise,
                          int64_t positions, zf_rope_desc *out, double *part, zf_error *error)
{
    const zf_json *within = zf_config_member(rope, "rope_theta");
    const zfl_rope_kind *kind = NULL;
    double other;
    if (rope && zf_json_type_of(rope) != ZF_JSON_OBJECT)
        return zf_json_expected(rope, error, "an object"), false;
    out->theta = otherwise;
    zf_json_to_double(within ? within : theta, 1e-6, 1e12, &out->theta, error);
    other = out->theta;
    zf_json_to_double(theta, 1e-6, 1e12, &other, error);
    if (!error->status && other != out->theta)
        zf_json_expected(theta, error, "%.17g, as in the object of rope", out->theta);
    zfl_read_part(rope, part, error);
    if (!error->status) kind = zfl_read_rope_kind(rope, error);
    if (!error->status) zfl_expect_rope_members(rope, kind, error);
    if (!error->status) out->scaling = kind->kind;
    if (!error->status) zfl_read_rope_factors(rope, kind, positions, out, error);
    return !error->status;
}

bool zf_config_read_rope_object(const zf_json *rope, const zf_json *theta, double otherwise,
                                int64_t positions, zf_rope_desc *out, zf_error *error)
{
    return zfl_read_rope(rope, theta, otherwise, positions, out, NULL, error);
}

/* The object that counts, of a file. */
static bool zfl_read_file_rope(const zf_json *json, double otherwise, int64_t positions,
                               zf_rope_desc *out, double *part, zf_error *error)
{
    const zf_json *rope = zfl_rope_object(json, error);
    zfl_read_part(json, part, error);
    return !error->status && zfl_read_rope(rope, zf_config_member(json, "rope_theta"), otherwise,
                                           positions, out, part, error);
}

bool zf_config_read_rope(const zf_json *json, int64_t positions, zf_rope_desc *out, zf_error *error)
{
    return zfl_read_file_rope(json, 10000, positions, out, NULL, error);
}

bool zf_config_read_rope_part(const zf_json *json, double otherwise, int64_t positions,
                              zf_rope_desc *rope, double *part, zf_error *error)
{
    *part = 1;
    return zfl_read_file_rope(json, otherwise, positions, rope, part, error);
}
