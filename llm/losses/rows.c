/* Rows of texts: what of them is an answer, and sums over it.
 *
 * zf_precision keeps f32 what is computed of a sum, and rounds what is computed of data alone. So
 * log p and scores go through a sum of one element, and data meets such a value first. */

typedef struct zfl_rows {
    const char *who;   /* the builder, for errors */
    zf_tensor ignored; /* bool [texts, tokens]: not of an answer */
    zf_shape shape;    /* [texts, tokens] */
    zf_dtype dtype;    /* F32 or F64, of all that is computed */
} zfl_rows;

static zf_tensor zfl_number(const zfl_rows *r, double value)
{
    return zf_constant(r->ignored.graph, r->dtype, ZF_SCALAR, value);
}

static bool zfl_is_float(zf_dtype dtype)
{
    return dtype == ZF_F32 || dtype == ZF_F64 || dtype == ZF_F16 || dtype == ZF_BF16;
}

static zf_dtype zfl_wide_dtype(zf_tensor x)
{
    return zf_tensor_dtype(x) == ZF_F64 ? ZF_F64 : ZF_F32;
}

/* The invalid tensor of x's graph: its error has been set. */
static zf_tensor zfl_invalid(zf_tensor x) { return (zf_tensor){x.graph, 0}; }

/* x in f32 or f64, in this shape of as many elements. */
static zf_tensor zfl_wide(zf_tensor x, zf_shape shape)
{
    zf_shape ones = shape;
    ones.dims[ones.rank++] = 1;
    return zf_sum_ex(zf_reshape(zf_cast(x, zfl_wide_dtype(x)), ones),
                     &(zf_reduce_desc){.axis = shape.rank});
}

/* Checks a desc by its table and fills in its defaults; false with the graph's error. */
static bool zfl_settle(const char *who, const zf_option *rows, void *desc, zf_tensor at)
{
    const zf_options one = {.rows = rows, .desc = desc};
    zf_error error = {ZF_OK, ""};
    if (zf_options_check(&one, 1, false, &error)) {
        zf_fail(at, "%s: %s", who, error.text);
        return false;
    }
    zf_options_resolve(&one, 1);
    return true;
}

/* Whether x, called so, is a tensor of this dtype and shape, or, if it may be broad, of this shape
 * with a last dimension 1; else the graph's error of `at`. */
static bool zfl_fits(const char *who, const char *name, zf_tensor x, zf_dtype dtype, zf_shape shape,
                     bool broad, zf_tensor at)
{
    const zf_shape own = zf_tensor_shape(x);
    bool fits = zf_valid(x) && zf_tensor_dtype(x) == dtype && own.rank == shape.rank;
    char text[64] = "";
    int length = 0;
    for (int32_t i = 0; i < shape.rank; i++) {
        const bool may_be_1 = broad && i > 0 && i + 1 == shape.rank;
        fits = fits && (own.dims[i] == shape.dims[i] || (may_be_1 && own.dims[i] == 1));
        length += snprintf(text + length, sizeof text - (size_t)length, "%s%lld", i ? "," : "",
                           (long long)shape.dims[i]);
    }
    if (!fits && zf_valid(at))
        zf_fail(at, "%s: %s must be %s[%s]%s", who, name, zf_dtype_name(dtype), text,
                broad && shape.rank > 1 ? ", or with 1 as the last dimension" : "");
    return fits;
}

/* log p or values as [texts, tokens] of the labels; invalid with the graph's error. */
static zf_tensor zfl_rows_open(zfl_rows *r, const char *who, zf_tensor x, zf_tensor labels)
{
    const zf_dtype dtype = zf_tensor_dtype(labels);
    *r = (zfl_rows){.who = who, .shape = zf_tensor_shape(labels), .dtype = zfl_wide_dtype(x)};
    if (!zf_valid(x) || !zf_valid(labels))
        return zf_fail(zf_valid(x) ? x : labels, "%s: log p and labels are needed", who);
    if (r->shape.rank != 2 || (dtype != ZF_I32 && dtype != ZF_I64))
        return zf_fail(labels, "%s: the labels must be i32 or i64 [texts, tokens]", who);
    if (!zfl_is_float(zf_tensor_dtype(x)) ||
        zf_shape_count(zf_tensor_shape(x)) != zf_shape_count(r->shape))
        return zf_fail(x, "%s: %lld floats are needed, one for each label", who,
                       (long long)zf_shape_count(r->shape));
    r->ignored = zf_equal(labels, zf_constant(labels.graph, dtype, ZF_SCALAR, -100));
    return zfl_wide(x, r->shape);
}

/* x at the answers, 0 elsewhere. x was computed in r->dtype. */
static zf_tensor zfl_masked(const zfl_rows *r, zf_tensor x)
{
    return zf_where(r->ignored, zfl_number(r, 0), x);
}

/* The sum over each text: [texts]. */
static zf_tensor zfl_text_sum(zf_tensor x) { return zf_sum_ex(x, &(zf_reduce_desc){.axis = 1}); }

/* 1 at the answers, 0 elsewhere. */
static zf_tensor zfl_ones(const zfl_rows *r)
{
    return zf_where(r->ignored, zf_broadcast(zfl_number(r, 0), r->shape), zfl_number(r, 1));
}

/* The mean over each text's answer: [texts], 0 of a text without one. */
static zf_tensor zfl_text_mean(const zfl_rows *r, zf_tensor x)
{
    return zf_div(zfl_text_sum(x), zf_maximum(zfl_text_sum(zfl_ones(r)), zfl_number(r, 1)));
}

/* x between -most and most. */
static zf_tensor zfl_within(const zfl_rows *r, zf_tensor x, double most)
{
    return zf_maximum(zf_minimum(x, zfl_number(r, most)), zfl_number(r, -most));
}

/* What the program writes, [texts, tokens] or [texts, 1], at the answers; 0 elsewhere, as is `zero`
 * there. */
static zf_tensor zfl_written(const zfl_rows *r, zf_tensor zero, zf_tensor x)
{
    return zf_where(r->ignored, zf_stop_gradient(zero), x);
}

/* The weighted sum of losses of tokens, which are 0 outside of answers; without weights the mean
 * over the tokens of all answers. */
static zf_tensor zfl_token_loss(const zfl_rows *r, zf_tensor losses, zf_tensor zero,
                                zf_tensor weight)
{
    if (weight.id) return zf_sum(zf_mul(losses, zfl_written(r, zero, weight)));
    return zf_div(zf_sum(losses), zf_maximum(zf_sum(zfl_ones(r)), zfl_number(r, 1)));
}

/* The weighted sum of losses; without weights their mean. */
static zf_tensor zfl_weighted(zf_tensor losses, zf_tensor weight)
{
    return zf_valid(weight) ? zf_sum(zf_mul(losses, weight)) : zf_mean(losses);
}

/* -------------------------------------------------------------------------------------- pairs */

/* Whether there are as many chosen as rejected texts; else the graph's error. */
static bool zfl_are_pairs(const char *who, zf_tensor x, int64_t texts)
{
    if (texts % 2 == 0) return true;
    zf_fail(x, "%s: %lld texts are no pairs: chosen and rejected come in turns", who,
            (long long)texts);
    return false;
}

/* Of [2 pairs, ...], in which chosen (0) and rejected (1) texts come in turns, those of one
 * kind. */
static zf_tensor zfl_answers(zf_tensor x, int64_t which)
{
    zf_shape shape = zf_tensor_shape(x), pairs = shape;
    if (!zf_valid(x)) return x;
    pairs.rank++, pairs.dims[0] = shape.dims[0] / 2, pairs.dims[1] = 2;
    for (int32_t i = 1; i < shape.rank; i++) pairs.dims[i + 1] = shape.dims[i];
    shape.dims[0] /= 2;
    return zf_reshape(zf_slice(zf_reshape(x, pairs), 1, which, which + 1), shape);
}
