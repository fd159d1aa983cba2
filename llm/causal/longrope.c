/* Longrope (Ding et al. 2024): each frequency of rope is divided by a number of its own.
 *
 *     frequency i = theta^(-2 i / d) / factor[i]     cosines and sines are multiplied by `attention`
 *
 * There are two lists of factors: graphs with room for more tokens than `original` take the long
 * one, all others the short one. The room is the sequence of training and evaluation, and the
 * context of generation: all tokens of a text have the same frequencies, however long it is. */

#include <math.h>
#include <string.h>

/* ------------------------------------------------------------------------------------ reading */

/* The object of rope that counts; NULL: there is none. */
static const zf_json *zfl_rope_of(const zf_json *json, zf_error *error)
{
    const zf_json *scaling = zf_config_member(json, "rope_scaling"),
                  *parameters = zf_config_member(json, "rope_parameters");
    if (!zf_json_length(scaling)) return parameters;
    if (zf_json_length(parameters))
        zf_json_fail(parameters, error,
                     "is not read where there is rope_scaling: one of the two must say all");
    return scaling;
}

/* The object of rope, where it is longrope; else NULL. */
static const zf_json *zfl_longrope_of(const zf_json *json, zf_error *error)
{
    static const char *const names[] = {"longrope", "su", "yarn"};
    const zf_json *object = zfl_rope_of(json, error), *kind;
    const char *text = "";
    if (error->status || !object || zf_json_type_of(object) != ZF_JSON_OBJECT) return NULL;
    kind = zf_config_member(object, "rope_type");
    zf_json_to_string(kind ? kind : zf_config_member(object, "type"), &text, error);
    for (int k = 0; k < 3; k++)
        if (!strcmp(text, names[k])) return object;
    return NULL;
}

static void zfl_longrope_check_members(const zf_json *object, zf_error *error)
{
    static const char *const known[] = {"rope_type",
                                        "type",
                                        "rope_theta",
                                        "partial_rotary_factor",
                                        "short_factor",
                                        "long_factor",
                                        "factor",
                                        "attention_factor",
                                        "original_max_position_embeddings"};
    for (const zf_json *v = zf_json_first(object); v && !error->status; v = zf_json_next(v)) {
        bool is = zf_json_type_of(v) == ZF_JSON_NULL;
        for (size_t k = 0; k < sizeof known / sizeof *known; k++)
            is = is || !strcmp(known[k], zf_json_key(v, NULL));
        if (!is) zf_json_fail(v, error, "is not read in rope of the type longrope");
    }
}

/* A number that the object may have, or the file; both must say the same. */
static void zfl_longrope_read_number(const zf_json *json, const zf_json *object, const char *key,
                                     double least, double most, double *out, zf_error *error)
{
    const zf_json *of_file = zf_config_member(json, key);
    double of_object;
    if (zf_json_to_double(of_file, least, most, out, error)) return;
    of_object = *out;
    zf_json_to_double(zf_config_member(object, key), least, most, &of_object, error);
    if (!error->status && of_file && of_object != *out)
        zf_json_expected(of_file, error, "%.17g, as in the object of rope", of_object);
    *out = of_object;
}

static void zfl_longrope_read_list(const zf_json *object, const char *key, int64_t count,
                                   float *out, zf_error *error)
{
    const zf_json *list = zf_json_require(object, key, error);
    int64_t read = 0;
    if (error->status) return;
    if (zf_json_type_of(list) != ZF_JSON_ARRAY || zf_json_length(list) != count) {
        zf_json_expected(list, error, "a list of %lld numbers, one for each frequency",
                         (long long)count);
        return;
    }
    for (const zf_json *v = zf_json_first(list); v && !error->status; v = zf_json_next(v)) {
        double factor = 1;
        zf_json_to_double(v, 1e-6, 1e6, &factor, error);
        out[read++] = (float)factor;
    }
}

/* What cosines are multiplied by, unless attention_factor says it. */
static double zfl_longrope_attention_of(double factor, int64_t original)
{
    return factor <= 1 || original < 2 ? 1 : sqrt(1 + log(factor) / log((double)original));
}

/* Reads it, and the part of a head that is rotated. */
static void zfl_read_longrope(zf_causal_config *c, const zf_json *json, const zf_json *object,
                              double *part, zf_error *error)
{
    const int64_t width = c->width ? c->width : c->hidden / c->heads;
    double original = 4096, factor;
    zfl_longrope_check_members(object, error);
    if (!error->status)
        zfl_longrope_read_number(json, object, "partial_rotary_factor", 0, 1, part, error);
    if (!error->status)
        zfl_longrope_read_number(json, object, "rope_theta", 1e-6, 1e12, &c->theta, error);
    if (!error->status)
        zfl_longrope_read_number(json, object, "original_max_position_embeddings", 1, 1 << 24,
                                 &original, error);
    if (error->status) return;
    c->original = (int64_t)original, factor = (double)c->positions / original;
    c->factors = (int64_t)((double)width * *part) / 2;
    if (c->factors > ZF_CAUSAL_FACTORS) {
        zf_json_fail(object, error,
                     "is of heads of which %lld numbers are rotated; at most %d are "
                     "possible",
                     2 * (long long)c->factors, 2 * ZF_CAUSAL_FACTORS);
        return;
    }
    zfl_longrope_read_list(object, "short_factor", c->factors, c->of_short, error);
    if (!error->status)
        zfl_longrope_read_list(object, "long_factor", c->factors, c->of_long, error);
    zf_json_to_double(zf_config_member(object, "factor"), 1, 1e6, &factor, error);
    c->attention = zfl_longrope_attention_of(factor, c->original);
    zf_json_to_double(zf_config_member(object, "attention_factor"), 1e-6, 1e6, &c->attention,
                      error);
}

/* ------------------------------------------------------------------------------------ writing */

static void zfl_longrope_write_list(zf_json_writer *w, const char *key, const float *factors,
                                    int64_t count)
{
    zf_json_put_key(w, key);
    zf_json_begin_array(w);
    for (int64_t k = 0; k < count; k++) zf_json_put_double(w, (double)factors[k]);
    zf_json_end(w);
}

static void zfl_write_longrope(const zf_causal_config *c, zf_json_writer *w)
{
    zf_json_begin_object(w);
    zf_json_put_text_member(w, "rope_type", "longrope");
    zfl_longrope_write_list(w, "short_factor", c->of_short, c->factors);
    zfl_longrope_write_list(w, "long_factor", c->of_long, c->factors);
    zf_json_put_double_member(w, "attention_factor", c->attention);
    zf_json_end(w);
}

/* -------------------------------------------------------------------------------------- graph */

/* The cosine and the sine of a frequency at each position, [..., T, 2]: (1, 0), rotated by rope of
 * heads that are two wide. */
static zf_tensor zfl_longrope_column(const zf_causal_inputs *in, double factor)
{
    static const double one[2] = {1, 0};
    const bool given = zf_valid(in->positions);
    const zf_shape ids = zf_tensor_shape(in->input_ids);
    const zf_shape shape = given ? ZF_SHAPE(ids.dims[0], ids.dims[1], 2) : ZF_SHAPE(ids.dims[1], 2);
    const zf_rope_desc rope = {
        .scaling = ZF_ROPE_LINEAR, .factor = factor, .positions = given ? in->positions : ZF_NONE};
    return zf_rope(zf_broadcast(zf_values(in->input_ids.graph, ZF_F32, ZF_SHAPE(2), one), shape),
                   &rope);
}

/* Cosines and sines of all positions, [1 or B, T, 1, factors], by the list for the graph's room. */
static void zfl_longrope_table(const zf_causal_config *c, const zf_causal_inputs *in,
                               zf_tensor *cosine, zf_tensor *sine)
{
    const zf_shape ids = zf_tensor_shape(in->input_ids);
    const int64_t n = c->factors, tokens = ids.dims[1],
                  room = zf_valid(in->decode.past) ? in->decode.shape.context : tokens,
                  rows = zf_valid(in->positions) ? ids.dims[0] : 1;
    const float *factors = room > c->original ? c->of_long : c->of_short;
    zf_tensor columns[ZF_CAUSAL_FACTORS], all;
    for (int64_t k = 0; k < n; k++)
        columns[k] =
            zfl_longrope_column(in, (double)factors[k] * pow(c->theta, (double)k / (double)n));
    all = zf_concat(columns, (int32_t)n, -1);
    all = zf_scale(zf_reshape(all, ZF_SHAPE(rows, tokens, 1, n, 2)), c->attention);
    *cosine = zf_reshape(zf_slice(all, 4, 0, 1), ZF_SHAPE(rows, tokens, 1, n));
    *sine = zf_reshape(zf_slice(all, 4, 1, 2), ZF_SHAPE(rows, tokens, 1, n));
}

/* Rotates the first numbers of each head of x [B, T, heads width] by them. */
static zf_tensor zfl_rotate_by(zf_tensor x, zf_tensor cosine, zf_tensor sine, int64_t heads,
                               const zf_causal_config *c)
{
    const zf_shape s = zf_tensor_shape(x);
    const int64_t n = c->factors;
    zf_tensor a, b, parts[3];
    x = zf_reshape(x, ZF_SHAPE(s.dims[0], s.dims[1], heads, c->width));
    a = zf_slice(x, 3, 0, n), b = zf_slice(x, 3, n, 2 * n);
    parts[0] = zf_sub(zf_mul(a, cosine), zf_mul(b, sine));
    parts[1] = zf_add(zf_mul(b, cosine), zf_mul(a, sine));
    if (2 * n < c->width) parts[2] = zf_slice(x, 3, 2 * n, c->width);
    return zf_reshape(zf_concat(parts, 2 * n < c->width ? 3 : 2, 3), s);
}
