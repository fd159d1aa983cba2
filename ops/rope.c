/* rope: rotary position embedding (Su et al. 2021), in the form that rotates the two halves of a
 * head.
 *
 *     %2 = rope %1 {heads=4 theta=10000} : f32[2,8,256]
 *
 *          of a head (x1, x2), halves of d / 2: y = (x1 cos a - x2 sin a, x2 cos a + x1 sin a),
 *          a = position f(i), i < d / 2; f(i) = theta^(-2 i / d), scaled (zf_rope_frequency)
 *          inverse=true rotates back: it is the gradient of rope, and rope is its gradient;
 *          by, of yarn, multiplies both cos a and sin a
 *
 *     %4 = rope %1, %3 {...}       the positions %3, [8] or [2,8]; else they are 0, 1, ..., or with
 *                                  of=n those from `first` on of n
 *
 * Frequencies and angles are rounded to f32, as in the models' training code. Saved: nothing.
 *
 * The fast kernel computes the cosines and sines of each position once, for all heads, and for all
 * examples that share the position:
 *
 *     scratch [positions, 2, d / 2]    cos, sin
 */

enum { ZFI_ROPE_FREQUENCIES = 512 };

/* Which frequency turns so many times in the original tokens. */
static double zfi_yarn_bound(const zf_rope_desc *d, int64_t width, double turns)
{
    const double pi = 3.14159265358979323846;
    return (double)width * log((double)d->original / (turns * 2 * pi)) / (2 * log(d->theta));
}

/* In f32, step by step, as the models' training code. */
static double zfi_yarn_frequency(const zf_rope_desc *d, int64_t width, int64_t i)
{
    const float wave = (float)pow(d->theta, 2 * (double)i / (double)width), plain = 1 / wave,
                scaled = 1 / ((float)d->factor * wave);
    double low = zfi_yarn_bound(d, width, d->high_factor),
           high = zfi_yarn_bound(d, width, d->low_factor);
    float share;
    if (!d->unrounded) low = floor(low), high = ceil(high);
    low = fmax(low, 0), high = fmin(high, (double)width - 1);
    if (low == high) high += 0.001;
    share = ((float)i - (float)low) / (float)(high - low);
    share = 1 - fminf(fmaxf(share, 0), 1);
    return scaled * (1 - share) + plain * share;
}

ZF_API double zf_rope_frequency(const zf_rope_desc *desc, int64_t width, int64_t i)
{
    zf_rope_desc d = zfi_rope_resolved(desc);
    float f = (float)pow(d.theta, -2 * (double)i / (double)width);
    double wave = 2 * 3.14159265358979323846 / (double)f, share;
    if (d.scaling == ZF_ROPE_YARN) return zfi_yarn_frequency(&d, width, i);
    if (d.scaling == ZF_ROPE_LINEAR) return (float)(f / d.factor);
    if (d.scaling == ZF_ROPE_PLAIN || wave < (double)d.original / d.high_factor) return f;
    if (wave > (double)d.original / d.low_factor) return (float)(f / d.factor);
    share = ((double)d.original / wave - d.low_factor) / (d.high_factor - d.low_factor);
    return (float)((1 - share) * f / d.factor + share * f);
}

/* The attributes of a node or a launch, as a desc. */
static zf_rope_desc zfi_rope_of(const zf_attribute *attributes)
{
    struct {
        const zf_attribute *attributes;
    } a = {attributes};
    return (zf_rope_desc){.heads = ZF_INT(&a, rope, heads),
                          .theta = ZF_FLOAT(&a, rope, theta),
                          .scaling = (zf_rope_scaling)ZF_INT(&a, rope, scaling),
                          .factor = ZF_FLOAT(&a, rope, factor),
                          .low_factor = ZF_FLOAT(&a, rope, low),
                          .high_factor = ZF_FLOAT(&a, rope, high),
                          .original = ZF_INT(&a, rope, original),
                          .unrounded = ZF_INT(&a, rope, unrounded) != 0,
                          .attention = ZF_FLOAT(&a, rope, by)};
}

/* The shape of the positions is that of all tokens, or of one example's tokens. */
static bool zfi_rope_positions_fit(const zf_shape *positions, const zf_shape *x)
{
    bool all = positions->rank == x->rank - 1;
    for (int axis = 0; axis < positions->rank && all; axis++)
        all = positions->dims[axis] == x->dims[axis];
    return all || (positions->rank == 1 && positions->dims[0] == x->dims[x->rank - 2]);
}

static bool zfi_is_positive(double x) { return x > 0 && isfinite(x); }

static zf_status zfi_infer_rope(zfi_infer *c)
{
    const zf_shape *x = &c->args[0]->shape;
    zf_rope_desc d = zfi_rope_of(c->attributes);
    int64_t width;
    if (!zfi_is_float(c->args[0]->dtype))
        return zfi_infer_fail(c, ZF_ERR_DTYPE, "the operand must be float: f32, bf16, f16 or f64");
    if (d.heads < 1)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "heads = %lld must be 1 or more",
                              (long long)d.heads);
    if (x->rank < 2 || zfi_last(x) % (2 * d.heads))
        return zfi_infer_fail(c, ZF_ERR_SHAPE,
                              "the operand must be [..., tokens, hidden], hidden a multiple of 2 * "
                              "%lld, twice the heads",
                              (long long)d.heads);
    width = zfi_last(x) / d.heads;
    if (width > 2 * ZFI_ROPE_FREQUENCIES)
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "a head has %lld elements; at most %d are possible",
                              (long long)width, 2 * ZFI_ROPE_FREQUENCIES);
    if (d.scaling < ZF_ROPE_PLAIN || d.scaling > ZF_ROPE_YARN)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "there is no scaling %d", (int)d.scaling);
    if (!zfi_is_positive(d.theta))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "theta = %g must be positive", d.theta);
    if (d.scaling && !zfi_is_positive(d.factor))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "factor = %g must be positive", d.factor);
    if (d.scaling == ZF_ROPE_LLAMA3 &&
        !(zfi_is_positive(d.low_factor) && d.high_factor > d.low_factor &&
          isfinite(d.high_factor) && d.original > 0))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "low = %g, high = %g and original = %lld must be positive, and high "
                              "above low",
                              d.low_factor, d.high_factor, (long long)d.original);
    if (d.scaling == ZF_ROPE_YARN &&
        !(zfi_is_positive(d.low_factor) && d.high_factor >= d.low_factor &&
          isfinite(d.high_factor) && d.original > 0 && d.theta > 1 && zfi_is_positive(d.attention)))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "low = %g, high = %g, original = %lld and by = %g must be positive, "
                              "high not below low, and theta above 1",
                              d.low_factor, d.high_factor, (long long)d.original, d.attention);
    if (d.scaling != ZF_ROPE_YARN && (d.unrounded || d.attention != 0))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "unrounded and by are of yarn alone");
    if (c->arg_count > 1 && (!zfi_is_integer(c->args[1]->dtype) ||
                             !zfi_rope_positions_fit(&c->args[1]->shape, x)))
        return zfi_infer_fail(c, ZF_ERR_SHAPE,
                              "the positions must be i32 or i64 and one for each token: the "
                              "operand's shape without hidden, or [%lld]",
                              (long long)x->dims[x->rank - 2]);
    if (c->arg_count > 1 && ZF_INT(c, rope, of))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "first and of are of positions that are not given");
    if (zfi_infer_part(c, ZF_AT_rope_first, x->dims[x->rank - 2])) return ZF_ERR_ARGUMENT;
    return zfi_infer_like(c, 0);
}

static void zfi_grad_rope(zf_grad *c)
{
    zf_attribute turned[ZF_MAX_ATTRIBUTES];
    memcpy(turned, c->attributes, sizeof turned);
    turned[ZF_AT_rope_inverse].i = !turned[ZF_AT_rope_inverse].i;
    c->dx[0] = zfi_build(ZF_OP_rope, c->count, (zf_tensor[]){c->dy, c->x[c->count - 1]}, turned);
}

/* A launch taken apart. */
typedef struct zfi_rope {
    const zf_launch *l;
    int64_t rows, tokens, heads, half; /* half: half the width of a head */
    int64_t tables; /* rows of cosines and sines; several rows of x may share one */
    int64_t piece;  /* rows of a task */
    bool inverse;
    float by; /* what cosines and sines are multiplied by */
    float frequencies[ZFI_ROPE_FREQUENCIES];
} zfi_rope;

static zfi_rope zfi_rope_job(const zf_launch *l)
{
    const zf_shape *x = &l->args[0].shape;
    zf_rope_desc d = zfi_rope_of(l->attributes);
    zfi_rope r = {.l = l, .tokens = x->dims[x->rank - 2], .heads = d.heads};
    r.rows = zfi_row_count(x);
    r.half = zfi_last(x) / d.heads / 2;
    r.tables = l->arg_count > 1 ? zfi_count(&l->args[1]) : r.tokens;
    r.piece = zfi_row_grain(zfi_last(x));
    r.inverse = ZF_INT(l, rope, inverse) != 0;
    r.by = d.scaling == ZF_ROPE_YARN ? (float)d.attention : 1;
    return r;
}

static void zfi_rope_tune(zfi_rope *r)
{
    zf_rope_desc d = zfi_rope_of(r->l->attributes);
    for (int64_t i = 0; i < r->half; i++)
        r->frequencies[i] = (float)zf_rope_frequency(&d, 2 * r->half, i);
}

/* The angle of frequency i at the position of row `table` of the table. */
static float zfi_rope_angle(const zfi_rope *r, int64_t table, int64_t i)
{
    const int64_t position = r->l->arg_count > 1 ? zfi_get_integer(&r->l->args[1], table)
                                                 : ZF_INT(r->l, rope, first) + table;
    float angle = (float)position * r->frequencies[i];
    return r->inverse ? -angle : angle;
}

/* Reads a pair before it is written: the result may lie over x. */
static void zfi_rope_reference(const zfi_rope *r, int64_t row)
{
    const zf_array *x = &r->l->args[0], *out = &r->l->out;
    for (int64_t h = 0; h < r->heads; h++)
        for (int64_t i = 0; i < r->half; i++) {
            int64_t at = (row * r->heads + h) * 2 * r->half + i;
            double angle = zfi_rope_angle(r, row % r->tables, i), a = zfi_get(x, at),
                   b = zfi_get(x, at + r->half);
            zfi_set(out, at, r->by * (a * cos(angle) - b * sin(angle)));
            zfi_set(out, at + r->half, r->by * (b * cos(angle) + a * sin(angle)));
        }
}

/* ----------------------------------------------------------------------------- fast kernels */

/* Computes the cosines and sines of one row of the table. */
static void zfi_rope_table(const zfi_rope *r, int64_t table)
{
    float *c = (float *)r->l->scratch + table * 2 * r->half, *s = c + r->half;
    float angles[ZFI_ROPE_FREQUENCIES], most = 0;
    for (int64_t i = 0; i < r->half; i++) {
        angles[i] = zfi_rope_angle(r, table, i);
        most = fmaxf(most, fabsf(angles[i]));
    }
    if (most < 0x1p20f) zfi_cos_sin(zfi_cpu_of(r->l)->isa, c, s, angles, r->half);
    for (int64_t i = 0; i < r->half && most >= 0x1p20f; i++) {
        c[i] = (float)cos((double)angles[i]);
        s[i] = (float)sin((double)angles[i]);
    }
    for (int64_t i = 0; i < 2 * r->half && r->by != 1; i++) c[i] *= r->by;
}

ZFI_BODY void zfi_rope_row_body(zfi_isa isa, float *y, const float *x, const float *c,
                                const float *s, int64_t heads, int64_t half)
{
    for (; heads > 0; heads--, y += 2 * half, x += 2 * half) {
        ZFI_VECTOR
        for (int64_t i = 0; i < half; i++) {
            float a = x[i], b = x[half + i];
            y[i] = zfi_fma(isa, a, c[i], -(b * s[i]));
            y[half + i] = zfi_fma(isa, b, c[i], a * s[i]);
        }
    }
}
ZFI_KERNEL(zfi_rope_row,
           (float *y, const float *x, const float *c, const float *s, int64_t heads, int64_t half),
           (y, x, c, s, heads, half))

/* f32 in place; rows of 16 bits are converted a few heads at a time. */
static void zfi_rope_fast(const zfi_rope *r, int64_t row)
{
    const zf_array *x = &r->l->args[0], *out = &r->l->out;
    const zfi_isa isa = zfi_cpu_of(r->l)->isa;
    const float *c = (const float *)r->l->scratch + row % r->tables * 2 * r->half;
    const int64_t width = 2 * r->half,
                  group = x->dtype == ZF_F32 ? r->heads : ZFI_CONVERT_RUN / width;
    float aside[ZFI_CONVERT_RUN];
    for (int64_t h = 0, heads; h < r->heads; h += heads) {
        const int64_t at = (row * r->heads + h) * width;
        float *y = zfi_place_floats(aside, out, at);
        heads = zfi_min(group, r->heads - h);
        zfi_rope_row(isa, y, zfi_read_floats(isa, aside, x, at, heads * width), c, c + r->half,
                     heads, r->half);
        zfi_write_floats(isa, out, at, y, heads * width);
    }
}

static size_t zfi_scratch_rope(const zf_launch *l)
{
    zfi_rope r = zfi_rope_job(l);
    return zfi_fast_or_half(l) ? (size_t)(r.tables * 2 * r.half) * sizeof(float) : 0;
}

/* Tasks: rows of the table, or rows of the result. */
static void zfi_rope_tables_piece(void *context, int64_t piece, int worker)
{
    const zfi_rope *r = context;
    int64_t last = zfi_min(r->tables, (piece + 1) * r->piece);
    (void)worker;
    for (int64_t table = piece * r->piece; table < last; table++) zfi_rope_table(r, table);
}

static void zfi_rope_piece(void *context, int64_t piece, int worker)
{
    const zfi_rope *r = context;
    int64_t last = zfi_min(r->rows, (piece + 1) * r->piece);
    bool fast = zfi_fast_or_half(r->l);
    (void)worker;
    for (int64_t row = piece * r->piece; row < last; row++)
        fast ? zfi_rope_fast(r, row) : zfi_rope_reference(r, row);
}

static zf_status zfi_cpu_rope(const zf_launch *l)
{
    zfi_rope r = zfi_rope_job(l);
    zfi_pool *pool = zfi_cpu_of(l)->pool;
    if (!zfi_count(&l->out)) return ZF_OK;
    zfi_rope_tune(&r);
    if (zfi_fast_or_half(l))
        zfi_pool_run(pool, (r.tables + r.piece - 1) / r.piece, zfi_rope_tables_piece, &r);
    zfi_pool_run(pool, (r.rows + r.piece - 1) / r.piece, zfi_rope_piece, &r);
    return ZF_OK;
}

/* ------------------------------------------------------------------------------- records */

ZFI_OPERATOR(rope, .infer = zfi_infer_rope, .grad = zfi_grad_rope, .cpu = zfi_cpu_rope,
             .scratch = zfi_scratch_rope, .over = 1,
             .cuts = "... s h -> ... s h {heads/h first+s of=s} | "
                     "... h, ... -> ... h {heads/h}",
             .linear_in = 1, .traits = ZF_OP_INPLACE | ZF_OP_READS_HALF)
