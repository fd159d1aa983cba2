/* Elementwise over one operand: neg scale exp log sqrt rsqrt abs sin cos tanh sigmoid relu gelu silu
 * cast dropout; and gradients that are operators of their own: tanh_grad sigmoid_grad relu_grad. Those
 * of gelu and silu have a file of their own (activation_grad.c).
 *
 *     %2 = neg %1 : f32[4,8]              y = -x                 dx = -dy
 *     %2 = scale %1 {by=0.5} : f32[4,8]   y = by x               dx = by dy
 *     %2 = exp %1 : f32[4,8]              y = e^x                dx = dy y              saved: y
 *     %2 = log %1 : f32[4,8]              y = ln x               dx = dy / x            saved: x
 *     %2 = sqrt %1 : f32[4,8]             y = x^(1/2)            dx = dy / (2 y)        saved: y
 *     %2 = rsqrt %1 : f32[4,8]            y = x^(-1/2)           dx = -dy y^3 / 2       saved: y
 *     %2 = abs %1 : f32[4,8]              y = |x|                dx = dy x / |x|, 0 at 0 saved: x
 *     %2 = sin %1 : f32[4,8]              y = sin x              dx = dy cos x          saved: x
 *     %2 = cos %1 : f32[4,8]              y = cos x              dx = -dy sin x         saved: x
 *     %2 = tanh %1 : f32[4,8]             y = tanh x             dx = dy (1 - y^2)      saved: y
 *     %2 = sigmoid %1 : f32[4,8]          y = 1 / (1 + e^-x)     dx = dy y (1 - y)      saved: y
 *     %2 = relu %1 : f32[4,8]             y = max(x, 0)          dx = y > 0 ? dy : 0    saved: y
 *     %2 = gelu %1 {form=erf} : f32[4,8]  y = x Phi(x)           dx = dy (Phi(x) + x phi(x))
 *     %2 = gelu %1 {form=tanh} : f32[4,8] y = x (1 + tanh u) / 2, u = sqrt(2/pi) (x + 0.044715 x^3)
 *     %2 = silu %1 : f32[4,8]             y = x s, s = sigmoid x dx = dy s (1 + x (1 - s))
 *     %4 = tanh_grad %3, %2 : f32[4,8]    dx of tanh from (dy, y); so sigmoid_grad, relu_grad
 *     %2 = cast %1 {to=bf16} : bf16[4,8]  dx = dy cast back, between floats; none through integers
 *     %2 = dropout %1 {p=0.1 stream=3} : f32[4,8]   dx = dropout of dy, the same attributes; saved:
 *                                                   nothing
 *
 * gelu and silu save x (Hendrycks & Gimpel 2016). All of them propagate NaN.
 *
 * cast rounds floats to nearest even, truncates a float that becomes an integer, and saturates at
 * the ends of the new type's range (NaN becomes 0); bool is x != 0.
 *
 * dropout keeps element e where half < threshold and gives x 2^16 / threshold there, 0 elsewhere.
 * threshold is (1-p) 2^16 as an integer (zfi_dropout_threshold), so p is rounded to a multiple of
 * 2^-16. half is 16 random bits (cpu/random.c) of element slot * count + e of `stream`, keyed by
 * the low 32 bits of the step and the run's seed; slot numbers the parts of the global batch. In
 * evaluation, y = x. */

static zf_status zfi_infer_gelu(zfi_infer *c)
{
    int64_t form = ZF_INT(c, gelu, form);
    if (form != 0 && form != 1)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "form %lld is neither erf (0) nor tanh (1)",
                              (long long)form);
    return zfi_infer_alike(c);
}

static zf_status zfi_infer_cast(zfi_infer *c)
{
    int64_t to = ZF_INT(c, cast, to);
    if (to < 0 || to > INT_MAX || !zf_dtype_size((zf_dtype)to))
        return zfi_infer_fail(c, ZF_ERR_DTYPE, "%lld is no dtype", (long long)to);
    zfi_infer_like(c, 0);
    c->dtype = (zf_dtype)to;
    return ZF_OK;
}

/* Checks p and stream of a dropout, attributes 0 and 1. */
static zf_status zfi_infer_mask(const zfi_infer *c)
{
    double p = ZF_FLOAT(c, dropout, p);
    int64_t stream = ZF_INT(c, dropout, stream);
    if (!(p >= 0 && p < 1))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "p = %g must be at least 0 and below 1", p);
    if (stream < 0 || stream > UINT32_MAX)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "stream %lld must be 0 to 2^32 - 1",
                              (long long)stream);
    return ZF_OK;
}

static zf_status zfi_infer_dropout(zfi_infer *c)
{
    zf_status status = zfi_infer_mask(c);
    return status ? status : zfi_infer_alike(c);
}

/* --------------------------------------------------------------------------- gradients */

static void zfi_grad_neg(zf_grad *c) { c->dx[0] = zf_neg(c->dy); }
static void zfi_grad_scale(zf_grad *c) { c->dx[0] = zf_scale(c->dy, ZF_FLOAT(c, scale, by)); }
static void zfi_grad_exp(zf_grad *c) { c->dx[0] = zf_mul(c->dy, c->y); }
static void zfi_grad_log(zf_grad *c) { c->dx[0] = zf_div(c->dy, c->x[0]); }
static void zfi_grad_sqrt(zf_grad *c) { c->dx[0] = zf_scale(zf_div(c->dy, c->y), 0.5); }

static void zfi_grad_rsqrt(zf_grad *c)
{
    c->dx[0] = zf_scale(zf_mul(c->dy, zf_mul(c->y, zf_mul(c->y, c->y))), -0.5);
}

static void zfi_grad_abs(zf_grad *c)
{
    const zf_tensor zero = zf_constant(c->graph, zf_tensor_dtype(c->y), ZF_SCALAR, 0);
    const zf_tensor above = zf_where(zf_greater(c->x[0], zero), c->dy, zero);
    c->dx[0] = zf_where(zf_less(c->x[0], zero), zf_neg(c->dy), above);
}

static void zfi_grad_sin(zf_grad *c) { c->dx[0] = zf_mul(c->dy, zf_cos(c->x[0])); }
static void zfi_grad_cos(zf_grad *c) { c->dx[0] = zf_neg(zf_mul(c->dy, zf_sin(c->x[0]))); }
static void zfi_grad_tanh(zf_grad *c) { c->dx[0] = zfi_op(tanh_grad, NULL, c->dy, c->y); }
static void zfi_grad_sigmoid(zf_grad *c) { c->dx[0] = zfi_op(sigmoid_grad, NULL, c->dy, c->y); }
static void zfi_grad_relu(zf_grad *c) { c->dx[0] = zfi_op(relu_grad, NULL, c->dy, c->y); }
static void zfi_grad_gelu(zf_grad *c)
{
    c->dx[0] = zfi_op(gelu_grad, c->attributes, c->dy, c->x[0]);
}
static void zfi_grad_silu(zf_grad *c) { c->dx[0] = zfi_op(silu_grad, NULL, c->dy, c->x[0]); }
static void zfi_grad_dropout(zf_grad *c) { c->dx[0] = zfi_op(dropout, c->attributes, c->dy); }

static void zfi_grad_cast(zf_grad *c)
{
    zf_dtype from = zf_tensor_dtype(c->x[0]);
    if (zfi_is_float(from) && zfi_is_float(zf_tensor_dtype(c->y))) c->dx[0] = zf_cast(c->dy, from);
}

/* --------------------------------------------------------------- the reference kernels */

static double zfi_sigmoid_f64(double x) { return 1.0 / (1.0 + exp(-x)); }

/* u of the tanh form. (1 + tanh u) / 2 is sigmoid(2 u), which is exact below 0 too. */
static double zfi_gelu_u(double x) { return 0.79788456080286535588 * (x + 0.044715 * x * x * x); }

static double zfi_gelu_f64(double x, bool by_tanh)
{
    return x * (by_tanh ? zfi_sigmoid_f64(2.0 * zfi_gelu_u(x))
                        : 0.5 * erfc(-0.70710678118654752440 * x));
}

static double zfi_gelu_grad_f64(double x, bool by_tanh)
{
    double s, slope;
    if (!by_tanh)
        return 0.5 * erfc(-0.70710678118654752440 * x) +
               x * 0.39894228040143267794 * exp(-0.5 * x * x);
    s = zfi_sigmoid_f64(2.0 * zfi_gelu_u(x));
    slope = 2.0 * 0.79788456080286535588 * (1.0 + 0.134145 * x * x);
    return s + x * slope * s * zfi_sigmoid_f64(-2.0 * zfi_gelu_u(x));
}

static double zfi_silu_grad_f64(double x)
{
    double s = zfi_sigmoid_f64(x);
    return s * (1.0 + x * (1.0 - s));
}

/* x: the element of the first operand; v: that of the second, y or x, for gradients. */
static double zfi_unary_value(const zf_launch *l, double x, double v)
{
    switch (l->op) {
    case ZF_OP_neg: return -x;
    case ZF_OP_scale: return x * ZF_FLOAT(l, scale, by);
    case ZF_OP_exp: return exp(x);
    case ZF_OP_log: return log(x);
    case ZF_OP_sqrt: return sqrt(x);
    case ZF_OP_rsqrt: return 1.0 / sqrt(x);
    case ZF_OP_abs: return fabs(x);
    case ZF_OP_sin: return sin(x);
    case ZF_OP_cos: return cos(x);
    case ZF_OP_tanh: return tanh(x);
    case ZF_OP_tanh_grad: return x * (1.0 - v * v);
    case ZF_OP_sigmoid: return zfi_sigmoid_f64(x);
    case ZF_OP_sigmoid_grad: return x * v * (1.0 - v);
    case ZF_OP_relu: return x <= 0 ? 0 : x;
    case ZF_OP_relu_grad: return v <= 0 ? 0 : x;
    case ZF_OP_gelu: return zfi_gelu_f64(x, ZF_INT(l, gelu, form));
    case ZF_OP_gelu_grad: return x * zfi_gelu_grad_f64(v, ZF_INT(l, gelu_grad, form));
    case ZF_OP_silu: return x * zfi_sigmoid_f64(x);
    case ZF_OP_silu_grad: return x * zfi_silu_grad_f64(v);
    default: return 0;
    }
}

/* An i64 as a double: the nearest, or, if it is converted to a narrower float next, rounded to odd,
 * so that the second rounding meets no false tie. */
static double zfi_integer_to_f64(int64_t value, zf_dtype to)
{
    uint64_t magnitude = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    if (to == ZF_F64 || magnitude < (uint64_t)1 << 53) return (double)value;
    magnitude = (magnitude >> 11 | ((magnitude & 2047) != 0)) << 11;
    return value < 0 ? -(double)magnitude : (double)magnitude;
}

static void zfi_cast_reference(const zf_launch *l, int64_t first, int64_t last)
{
    const zf_array *x = &l->args[0];
    for (int64_t i = first; i < last; i++)
        if (l->out.dtype == ZF_I64) zfi_set_integer(&l->out, i, zfi_get_integer(x, i));
        else if (x->dtype == ZF_I64)
            zfi_set(&l->out, i, zfi_integer_to_f64(zfi_get_integer(x, i), l->out.dtype));
        else zfi_set(&l->out, i, zfi_get(x, i));
}

/* What dropout needs from its attributes and the run. Elements are kept with probability threshold
 * / 2^16, which is exactly 1 / scale: the expectation is x. */
typedef struct zfi_drop {
    uint64_t element, seed; /* of the whole tensor's first element */
    uint32_t threshold, stream, step;
    double scale;
    bool shared; /* the tensor is a share of a whole one, of this shape */
    zf_share share;
    zf_shape shape;
} zfi_drop;

static zfi_drop zfi_drop_of(const zf_launch *l)
{
    const uint32_t threshold = zfi_dropout_threshold(ZF_FLOAT(l, dropout, p));
    const zf_shape *whole = l->share ? &l->share->whole : &l->out.shape;
    return (zfi_drop){.element = (uint64_t)l->run->slot * (uint64_t)zf_shape_count(*whole),
                      .seed = l->run->seed,
                      .threshold = threshold,
                      .stream = (uint32_t)ZF_INT(l, dropout, stream),
                      .step = (uint32_t)l->run->step,
                      .scale = 65536.0 / threshold,
                      .shared = l->share != NULL,
                      .share = l->share ? *l->share : (zf_share){.whole = ZF_SCALAR},
                      .shape = l->out.shape};
}

/* The element of the whole tensor that is element i here; *run: how many follow it in both. */
static int64_t zfi_drop_at(const zfi_drop *d, int64_t i, int64_t *run)
{
    if (d->shared) return zfi_whole_element(&d->share, &d->shape, i, run);
    *run = INT64_MAX;
    return i;
}

/* Element i of the tensor after dropout. */
static double zfi_drop_value(const zfi_drop *d, int64_t i, double x)
{
    int64_t run;
    i = zfi_drop_at(d, i, &run);
    return zfi_random_half(d->element + (uint64_t)i, d->stream, d->step, d->seed) < d->threshold
               ? x * d->scale
               : 0.0;
}

static void zfi_dropout_reference(const zf_launch *l, int64_t first, int64_t last)
{
    zfi_drop d = zfi_drop_of(l);
    for (int64_t i = first; i < last; i++)
        zfi_set(&l->out, i, zfi_drop_value(&d, i, zfi_get(&l->args[0], i)));
}

/* -------------------------------------------------------------------- the fast kernels */

#define ZFI_UNARY_RUN(name, expression)                                                            \
    ZFI_BODY void zfi_##name##_run_body(zfi_isa isa, float *y, const float *x, const float *v,     \
                                        float by, int64_t n)                                       \
    {                                                                                              \
        (void)isa, (void)v, (void)by;                                                              \
        ZFI_VECTOR                                                                                 \
        for (int64_t i = 0; i < n; i++) y[i] = expression;                                         \
    }                                                                                              \
    ZFI_KERNEL(zfi_##name##_run, (float *y, const float *x, const float *v, float by, int64_t n),  \
               (y, x, v, by, n))

ZFI_UNARY_RUN(neg, -x[i])
ZFI_UNARY_RUN(scale, x[i] * by)
ZFI_UNARY_RUN(sqrt, sqrtf(x[i]))
ZFI_UNARY_RUN(rsqrt, 1.0f / sqrtf(x[i]))
ZFI_UNARY_RUN(abs, fabsf(x[i]))
ZFI_UNARY_RUN(relu, x[i] <= 0 ? 0 : x[i])
ZFI_UNARY_RUN(tanh_grad,
              x[i] * ((1.0f - v[i]) * (1.0f + v[i]))) /* exact near |v| = 1, unlike 1 - v^2 */
ZFI_UNARY_RUN(sigmoid_grad, x[i] * (v[i] * (1.0f - v[i])))
ZFI_UNARY_RUN(relu_grad, v[i] <= 0 ? 0 : x[i])

/* sin, or cos, of elements that zfi_cos_sin takes; of each other one by itself, so that bits do not
 * depend on what is next to an element. y may be x. */
static void zfi_sin_run(zfi_isa isa, bool cosine, float *y, const float *x, int64_t n)
{
    float within[ZFI_CONVERT_RUN], other[ZFI_CONVERT_RUN], far[ZFI_CONVERT_RUN];
    for (int64_t i = 0, m; i < n; i += m) {
        m = n - i < ZFI_CONVERT_RUN ? n - i : ZFI_CONVERT_RUN;
        for (int64_t k = 0; k < m; k++) {
            const bool fits = fabsf(x[i + k]) < 0x1p20f;
            within[k] = fits ? x[i + k] : 0, far[k] = fits ? 0 : x[i + k];
        }
        zfi_cos_sin(isa, cosine ? y + i : other, cosine ? other : y + i, within, m);
        for (int64_t k = 0; k < m; k++)
            if (far[k] != 0) y[i + k] = (float)(cosine ? cos((double)far[k]) : sin((double)far[k]));
    }
}

/* gelu_grad and silu_grad also compute the activation, where it is a saved value. */
static void zfi_unary_fast(const zf_launch *l, int64_t first, int64_t last)
{
    zfi_isa isa = zfi_cpu_of(l)->isa;
    const float *x = (const float *)l->args[0].data + first,
                *v = (const float *)l->args[l->arg_count - 1].data + first;
    float *y = (float *)l->out.data + first;
    const zf_array *made = zfi_saved_out(l, 0);
    float *z = made ? (float *)made->data + first : NULL;
    int64_t n = last - first;
    bool by_tanh = ZF_INT(l, gelu, form) != 0;
    switch (l->op) {
    case ZF_OP_neg: zfi_neg_run(isa, y, x, v, 0, n); break;
    case ZF_OP_scale: zfi_scale_run(isa, y, x, v, (float)ZF_FLOAT(l, scale, by), n); break;
    case ZF_OP_exp: zfi_vexp(isa, y, x, n); break;
    case ZF_OP_log: zfi_vlog(isa, y, x, n); break;
    case ZF_OP_sqrt: zfi_sqrt_run(isa, y, x, v, 0, n); break;
    case ZF_OP_rsqrt: zfi_rsqrt_run(isa, y, x, v, 0, n); break;
    case ZF_OP_abs: zfi_abs_run(isa, y, x, v, 0, n); break;
    case ZF_OP_sin: zfi_sin_run(isa, false, y, x, n); break;
    case ZF_OP_cos: zfi_sin_run(isa, true, y, x, n); break;
    case ZF_OP_tanh: zfi_vtanh(isa, y, x, n); break;
    case ZF_OP_tanh_grad: zfi_tanh_grad_run(isa, y, x, v, 0, n); break;
    case ZF_OP_sigmoid: zfi_vsigmoid(isa, y, x, n); break;
    case ZF_OP_sigmoid_grad: zfi_sigmoid_grad_run(isa, y, x, v, 0, n); break;
    case ZF_OP_relu: zfi_relu_run(isa, y, x, v, 0, n); break;
    case ZF_OP_relu_grad: zfi_relu_grad_run(isa, y, x, v, 0, n); break;
    case ZF_OP_gelu: by_tanh ? zfi_vgelu_tanh(isa, y, x, n) : zfi_vgelu(isa, y, x, n); break;
    case ZF_OP_gelu_grad:
        if (z && by_tanh) zfi_vgelu_tanh_both(isa, y, z, x, v, n);
        else if (z) zfi_vgelu_both(isa, y, z, x, v, n);
        else by_tanh ? zfi_vgelu_tanh_grad(isa, y, x, v, n) : zfi_vgelu_grad(isa, y, x, v, n);
        break;
    case ZF_OP_silu: zfi_vsilu(isa, y, x, n); break;
    case ZF_OP_silu_grad:
        if (z) zfi_vsilu_both(isa, y, z, x, v, n);
        else zfi_vsilu_grad(isa, y, x, v, n);
        break;
    default: break;
    }
}

static void zfi_cast_floats(const zf_launch *l, int64_t first, int64_t last)
{
    const zf_array *x = &l->args[0];
    const char *from = x->data;
    char *to = l->out.data;
    zfi_convert_floats(zfi_cpu_of(l)->isa, to + (size_t)first * zf_dtype_size(l->out.dtype),
                       l->out.dtype, from + (size_t)first * zf_dtype_size(x->dtype), x->dtype,
                       last - first);
}

static zf_status zfi_cpu_cast(const zf_launch *l)
{
    bool floats = zfi_is_float(l->args[0].dtype) && zfi_is_float(l->out.dtype);
    zfi_split(l, zfi_count(&l->out), ZFI_GRAIN,
              floats && !zfi_cpu_of(l)->reference ? zfi_cast_floats : zfi_cast_reference);
    return ZF_OK;
}

static void zfi_dropout_fast(const zf_launch *l, int64_t first, int64_t last)
{
    zfi_drop d = zfi_drop_of(l);
    zfi_isa isa = zfi_cpu_of(l)->isa;
    zf_dtype dtype = l->out.dtype;
    for (int64_t i = first, n; i < last; i += n) {
        const void *x = zfi_element(l->args[0].data, dtype, i);
        void *y = zfi_element_of(l->out.data, dtype, i);
        float aside[ZFI_CONVERT_RUN], *to = dtype == ZF_F32 ? y : aside;
        const float *from = dtype == ZF_F32 ? x : aside;
        int64_t run;
        const uint64_t at = d.element + (uint64_t)zfi_drop_at(&d, i, &run);
        n = dtype == ZF_F32 || last - i < ZFI_CONVERT_RUN ? last - i : ZFI_CONVERT_RUN;
        n = zfi_min(n, run);
        if (from == aside) zfi_widen(isa, aside, dtype, x, n);
        zfi_dropout(isa, to, from, at, n, d.threshold, (float)d.scale, d.stream, d.step, d.seed);
        if (to == aside) zfi_narrow(isa, y, dtype, aside, n);
    }
}

static zf_status zfi_cpu_dropout(const zf_launch *l)
{
    int64_t count = zfi_count(&l->out);
    if (!l->run->evaluate)
        zfi_split(l, count, ZFI_GRAIN,
                  zfi_fast_or_half(l) ? zfi_dropout_fast : zfi_dropout_reference);
    else if (count && l->out.data != l->args[0].data)
        memcpy(l->out.data, l->args[0].data, (size_t)count * zf_dtype_size(l->out.dtype));
    return ZF_OK;
}

/* ------------------------------------------------------------------------------- work */

/* A random number for each, by an operator with the attribute p of dropout. */
static double zfi_draws_each(const zf_launch *l)
{
    return ZF_FLOAT(l, dropout, p) > 0 ? zfi_functions_each(l) : 0;
}

static double zfi_functions_gelu(const zf_launch *l)
{
    return (ZF_INT(l, gelu, form) ? 1.0 : 2.0) * zfi_functions_each(l);
}

/* ----------------------------------------------------------------------------- simplify */

/* scale by 1 is x. */
static int32_t zfi_same_scale(zf_graph *g, int32_t id, bool written)
{
    (void)written;
    return ZF_FLOAT(&g->nodes[id], scale, by) == 1 ? g->nodes[id].args[0] : id;
}

/* neg neg x is x. */
static int32_t zfi_same_neg(zf_graph *g, int32_t id, bool written)
{
    const zfi_node *x = &g->nodes[g->nodes[id].args[0]];
    (void)written;
    return x->op == ZF_OP_neg ? x->args[0] : id;
}

/* A cast to its own dtype is x. */
static int32_t zfi_same_cast(zf_graph *g, int32_t id, bool written)
{
    (void)written;
    return zfi_same_type(g, g->nodes[id].args[0], id) ? g->nodes[id].args[0] : id;
}

/* ------------------------------------------------------------------------------- records */

ZFI_OPERATOR(neg, .infer = zfi_infer_alike, .grad = zfi_grad_neg, .cpu = zfi_cpu_elements,
             .value = zfi_unary_value, .piece = zfi_unary_fast, .same = zfi_same_neg,
             .functions = zfi_functions_none,
             .parts = ZFI_PARTS_MOVED, .traits = ZF_OP_INPLACE | ZF_OP_ELEMENTWISE | ZF_OP_FOLDABLE)
ZFI_OPERATOR(scale, .infer = zfi_infer_alike, .grad = zfi_grad_scale, .cpu = zfi_cpu_elements,
             .value = zfi_unary_value, .piece = zfi_unary_fast, .same = zfi_same_scale,
             .functions = zfi_functions_none, .parts = ZFI_PARTS_SCALED,
             .traits = ZF_OP_INPLACE | ZF_OP_ELEMENTWISE | ZF_OP_FOLDABLE)
ZFI_OPERATOR(exp, .infer = zfi_infer_alike, .grad = zfi_grad_exp, .cpu = zfi_cpu_elements,
             .value = zfi_unary_value, .piece = zfi_unary_fast, .functions = zfi_functions_each,
             .traits = ZF_OP_INPLACE | ZF_OP_ELEMENTWISE | ZF_OP_WANTS_F32)
ZFI_OPERATOR(log, .infer = zfi_infer_alike, .grad = zfi_grad_log, .cpu = zfi_cpu_elements,
             .value = zfi_unary_value, .piece = zfi_unary_fast, .functions = zfi_functions_each,
             .traits = ZF_OP_INPLACE | ZF_OP_ELEMENTWISE | ZF_OP_WANTS_F32)
ZFI_OPERATOR(sqrt, .infer = zfi_infer_alike, .grad = zfi_grad_sqrt, .cpu = zfi_cpu_elements,
             .value = zfi_unary_value, .piece = zfi_unary_fast, .functions = zfi_functions_none,
             .traits = ZF_OP_INPLACE | ZF_OP_ELEMENTWISE | ZF_OP_FOLDABLE)
ZFI_OPERATOR(rsqrt, .infer = zfi_infer_alike, .grad = zfi_grad_rsqrt, .cpu = zfi_cpu_elements,
             .value = zfi_unary_value, .piece = zfi_unary_fast, .functions = zfi_functions_none,
             .traits = ZF_OP_INPLACE | ZF_OP_ELEMENTWISE | ZF_OP_WANTS_F32)
ZFI_OPERATOR(abs, .infer = zfi_infer_alike, .grad = zfi_grad_abs, .cpu = zfi_cpu_elements,
             .value = zfi_unary_value, .piece = zfi_unary_fast, .functions = zfi_functions_none,
             .traits = ZF_OP_INPLACE | ZF_OP_ELEMENTWISE | ZF_OP_FOLDABLE)
ZFI_OPERATOR(sin, .infer = zfi_infer_alike, .grad = zfi_grad_sin, .cpu = zfi_cpu_elements,
             .value = zfi_unary_value, .piece = zfi_unary_fast, .functions = zfi_functions_each,
             .traits = ZF_OP_INPLACE | ZF_OP_ELEMENTWISE | ZF_OP_WANTS_F32)
ZFI_OPERATOR(cos, .infer = zfi_infer_alike, .grad = zfi_grad_cos, .cpu = zfi_cpu_elements,
             .value = zfi_unary_value, .piece = zfi_unary_fast, .functions = zfi_functions_each,
             .traits = ZF_OP_INPLACE | ZF_OP_ELEMENTWISE | ZF_OP_WANTS_F32)
ZFI_OPERATOR(tanh, .infer = zfi_infer_alike, .grad = zfi_grad_tanh, .cpu = zfi_cpu_elements,
             .value = zfi_unary_value, .piece = zfi_unary_fast, .functions = zfi_functions_each,
             .traits = ZF_OP_INPLACE | ZF_OP_ELEMENTWISE)
ZFI_OPERATOR(tanh_grad, .infer = zfi_infer_alike, .cpu = zfi_cpu_elements, .value = zfi_unary_value,
             .piece = zfi_unary_fast, .functions = zfi_functions_none,
             .linear_in = 1, .traits = ZF_OP_INPLACE | ZF_OP_ELEMENTWISE)
ZFI_OPERATOR(sigmoid, .infer = zfi_infer_alike, .grad = zfi_grad_sigmoid, .cpu = zfi_cpu_elements,
             .value = zfi_unary_value, .piece = zfi_unary_fast, .functions = zfi_functions_each,
             .traits = ZF_OP_INPLACE | ZF_OP_ELEMENTWISE)
ZFI_OPERATOR(sigmoid_grad, .infer = zfi_infer_alike, .cpu = zfi_cpu_elements,
             .value = zfi_unary_value, .piece = zfi_unary_fast, .functions = zfi_functions_none,
             .linear_in = 1, .traits = ZF_OP_INPLACE | ZF_OP_ELEMENTWISE)
ZFI_OPERATOR(relu, .infer = zfi_infer_alike, .grad = zfi_grad_relu, .cpu = zfi_cpu_elements,
             .value = zfi_unary_value, .piece = zfi_unary_fast, .functions = zfi_functions_none,
             .traits = ZF_OP_INPLACE | ZF_OP_ELEMENTWISE)
ZFI_OPERATOR(relu_grad, .infer = zfi_infer_alike, .cpu = zfi_cpu_elements, .value = zfi_unary_value,
             .piece = zfi_unary_fast, .functions = zfi_functions_none,
             .linear_in = 1, .traits = ZF_OP_INPLACE | ZF_OP_ELEMENTWISE)
ZFI_OPERATOR(gelu, .infer = zfi_infer_gelu, .grad = zfi_grad_gelu, .cpu = zfi_cpu_elements,
             .value = zfi_unary_value, .piece = zfi_unary_fast, .functions = zfi_functions_gelu,
             .grad_reads_x = true, .traits = ZF_OP_INPLACE | ZF_OP_ELEMENTWISE)
ZFI_OPERATOR(silu, .infer = zfi_infer_alike, .grad = zfi_grad_silu, .cpu = zfi_cpu_elements,
             .value = zfi_unary_value, .piece = zfi_unary_fast, .functions = zfi_functions_each,
             .grad_reads_x = true, .traits = ZF_OP_INPLACE | ZF_OP_ELEMENTWISE)
ZFI_OPERATOR(cast, .infer = zfi_infer_cast, .grad = zfi_grad_cast, .cpu = zfi_cpu_cast,
             .same = zfi_same_cast, .functions = zfi_functions_none, .parts = ZFI_PARTS_MOVED,
             .traits = ZF_OP_INPLACE | ZF_OP_ELEMENTWISE | ZF_OP_READS_HALF)
ZFI_OPERATOR(dropout, .infer = zfi_infer_dropout, .grad = zfi_grad_dropout, .cpu = zfi_cpu_dropout,
             .functions = zfi_draws_each,
             .linear_in = 1,
             .draws = ZFI_DRAWS_AS_RESULT, .traits = ZF_OP_INPLACE | ZF_OP_ELEMENTWISE | ZF_OP_RANDOM | ZF_OP_READS_HALF)
