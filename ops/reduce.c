/* Reductions: sum max argmax over one axis; total; block_norms and norm.
 *
 *     %2 = sum %1 {axis=1 keep=true} : f32[4,1]  y[o,i] = sum over n of x[o,n,i]; of integers too
 *                                                dx = broadcast(dy)
 *     %2 = max %1 {axis=1} : f32[4]              the largest; NaN where one is NaN, -inf of none
 *                                                dx = dy / ties where x = y, else 0; saved: x, y
 *     %2 = argmax %1 {axis=1} : i32[4]           the first index of the largest; NaN is the largest
 *     %3 = total %1, %2 : f32[]                  the sum of every element of every operand
 *                                                dx = broadcast(dy)
 *     %2 = block_norms %1 : f32[3]               y[b] = sqrt(sum of x[i]^2, 1024 b <= i <
 *                                                1024 (b + 1)), x taken flat
 *     %3 = norm %1, %2 : f32[]                   sqrt(sum of x[i]^2) over every element of every
 *                                                operand; of block norms: the norm of all
 *
 * The order of additions is fixed. sum adds in the order of sum_to (move.c). block_norms adds in
 * f32 within its block (f64 for f64), so the norms do not change when a tensor is split at a
 * multiple of 1024. total and norm add operand by operand, element by element, in double, and round
 * once.
 *
 * A norm stays exact where squares would underflow or overflow: elements are first multiplied by a
 * power of two, or squared in a wider type. */

/* `floats`: it must be float. */
static zf_status zfi_infer_reduced(zfi_infer *c, bool floats)
{
    zf_status status = zfi_infer_dtypes(c, floats);
    if (!status) status = zfi_infer_axis(c, ZF_INT(c, sum, axis));
    if (status) return status;
    c->dtype = c->args[0]->dtype;
    c->shape =
        zfi_without_axis(c->args[0]->shape, (int)ZF_INT(c, sum, axis), ZF_INT(c, sum, keep) != 0);
    return ZF_OK;
}

static zf_status zfi_infer_reduce(zfi_infer *c) { return zfi_infer_reduced(c, true); }

static zf_status zfi_infer_any_sum(zfi_infer *c)
{
    if (!zfi_is_float(c->args[0]->dtype) && !zfi_is_integer(c->args[0]->dtype))
        return zfi_infer_fail(c, ZF_ERR_DTYPE,
                              "the operand must be float or integer (zf_cast converts)");
    return zfi_infer_reduced(c, false);
}

static zf_status zfi_infer_argmax(zfi_infer *c)
{
    zf_status status = zfi_infer_reduce(c);
    int64_t n = status ? 0 : c->args[0]->shape.dims[ZF_INT(c, argmax, axis)];
    if (!status && (n < 1 || n > INT32_MAX))
        status = zfi_infer_fail(
            c, ZF_ERR_SHAPE, "the axis has %lld elements; 1 to 2^31 - 1 is possible", (long long)n);
    c->dtype = ZF_I32;
    return status;
}

static zf_status zfi_infer_block_norms(zfi_infer *c)
{
    zf_status status = zfi_infer_dtypes(c, true);
    int64_t count = zfi_node_count(c->args[0]);
    c->dtype = c->args[0]->dtype == ZF_F64 ? ZF_F64 : ZF_F32;
    c->shape = ZF_SHAPE(count / ZFI_NORM_BLOCK + (count % ZFI_NORM_BLOCK != 0));
    return status;
}

static zf_status zfi_infer_total(zfi_infer *c)
{
    c->dtype = c->args[0]->dtype;
    c->shape = ZF_SCALAR;
    return zfi_infer_dtypes(c, true);
}

/* --------------------------------------------------------------------------- gradients */

/* x with the reduced axis kept as a dimension of size 1. */
static zf_tensor zfi_kept_axis(const zf_grad *c, zf_tensor x)
{
    return zf_reshape(x,
                      zfi_without_axis(zf_tensor_shape(c->x[0]), (int)ZF_INT(c, sum, axis), true));
}

static void zfi_grad_sum(zf_grad *c)
{
    c->dx[0] = zf_broadcast(zfi_kept_axis(c, c->dy), zf_tensor_shape(c->x[0]));
}

static void zfi_grad_max(zf_grad *c)
{
    zf_dtype dtype = zf_tensor_dtype(c->y);
    zf_tensor one = zf_constant(c->graph, dtype, ZF_SCALAR, 1),
              zero = zf_constant(c->graph, dtype, ZF_SCALAR, 0);
    zf_tensor largest = zf_equal(c->x[0], zfi_kept_axis(c, c->y));
    zf_tensor ties = zf_sum_ex(zf_where(largest, one, zero),
                               &(zf_reduce_desc){(int32_t)ZF_INT(c, max, axis), true});
    c->dx[0] = zf_where(largest, zf_div(zfi_kept_axis(c, c->dy), ties), zero);
}

static void zfi_grad_total(zf_grad *c)
{
    for (int32_t k = 0; k < c->count; k++)
        if (c->need[k]) c->dx[k] = zf_broadcast(c->dy, zf_tensor_shape(c->x[k]));
}

/* ------------------------------------------------------------------------------ kernels */

#define zfi_scratch_sum zfi_scratch_sum_to

/* out[o,i] is computed from x[o,n,i] */
typedef struct zfi_axis_of {
    int64_t n, inner;
} zfi_axis_of;

static zfi_axis_of zfi_reduced_axis(const zf_launch *l)
{
    const zf_shape *x = &l->args[0].shape;
    int axis = (int)ZF_INT(l, sum, axis);
    return (zfi_axis_of){x->dims[axis], zfi_span(x, axis + 1, x->rank)};
}

/* max and argmax: elements [first, last) of out. */
static void zfi_max_reference(const zf_launch *l, int64_t first, int64_t last)
{
    zfi_axis_of a = zfi_reduced_axis(l);
    for (int64_t i = first; i < last; i++) {
        int64_t start = i / a.inner * a.n * a.inner + i % a.inner, at = 0;
        double most = -INFINITY;
        for (int64_t n = 0; n < a.n; n++) {
            double x = zfi_get(&l->args[0], start + n * a.inner);
            if (x > most || (isnan(x) && !isnan(most))) most = x, at = n;
        }
        zfi_set(&l->out, i, l->op == ZF_OP_max ? most : (double)at);
    }
}

/* y[i] = the larger of y[i] and x[i]; NaN where one of them is NaN. */
ZFI_BODY void zfi_larger_body(zfi_isa isa, float *y, const float *x, int64_t n)
{
    (void)isa;
    ZFI_VECTOR
    for (int64_t i = 0; i < n; i++) y[i] = x[i] > y[i] || x[i] != x[i] ? x[i] : y[i];
}
ZFI_KERNEL(zfi_larger, (float *y, const float *x, int64_t n), (y, x, n))

static void zfi_max_fast(const zf_launch *l, int64_t first, int64_t last)
{
    zfi_isa isa = zfi_cpu_of(l)->isa;
    zfi_axis_of a = zfi_reduced_axis(l);
    const float *x = l->args[0].data;
    for (int64_t i = first; i < last;) {
        int64_t o = i / a.inner, from = i % a.inner,
                n = a.inner - from < last - i ? a.inner - from : last - i;
        if (a.inner == 1) {
            float most = zfi_vmax(isa, x + i * a.n, a.n);
            if (l->op == ZF_OP_max) {
                ((float *)l->out.data)[i] = most;
            } else {
                const float *row = x + i * a.n;
                int32_t at = 0;
                while (most == most ? row[at] != most : row[at] == row[at]) at++;
                ((int32_t *)l->out.data)[i] = at;
            }
        } else {
            float *y = (float *)l->out.data + i;
            for (int64_t c = 0; c < n; c++) y[c] = -INFINITY;
            for (int64_t r = 0; r < a.n; r++)
                zfi_larger(isa, y, x + (o * a.n + r) * a.inner + from, n);
        }
        i += n;
    }
}

static zf_status zfi_cpu_max(const zf_launch *l)
{
    zfi_axis_of a = zfi_reduced_axis(l);
    bool fast = zfi_fast(l) && (l->op == ZF_OP_max || a.inner == 1);
    zfi_split(l, zfi_count(&l->out), zfi_row_grain(a.n), fast ? zfi_max_fast : zfi_max_reference);
    return ZF_OK;
}

/* The norm of elements [first, last) of each of x[0..count); an array may end before `last`. */
static double zfi_norm_of(const zf_array *x, int32_t count, int64_t first, int64_t last)
{
    double most = 0, by = 1, sum = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int32_t k = 0; k < count; k++)
            for (int64_t i = first, n = zfi_count(&x[k]); i < n && i < last; i++) {
                double y = fabs(zfi_get(&x[k], i));
                if (pass) sum += by * y * (by * y);
                else if (y > most || isnan(y)) most = y; /* NaN counts as the largest */
            }
        if (most == 0 || !isfinite(most)) return most;
        if (!pass) {
            int exponent;
            frexp(most, &exponent);
            by = ldexp(1, exponent < -1000 ? 1000 : exponent > 1000 ? -1000 : -exponent);
        }
    }
    return sqrt(sum) / by;
}

/* Blocks [first, last). */
static void zfi_block_norms_reference(const zf_launch *l, int64_t first, int64_t last)
{
    for (int64_t block = first; block < last; block++)
        zfi_set(&l->out, block,
                zfi_norm_of(&l->args[0], 1, block * ZFI_NORM_BLOCK, (block + 1) * ZFI_NORM_BLOCK));
}

/* sqrt(sum of x[i]^2), 0 <= i < n <= ZFI_NORM_BLOCK. */
static float zfi_block_norm(zfi_isa isa, const float *x, int64_t n)
{
    float sum = zfi_vsumsq(isa, x, n), scaled[ZFI_NORM_BLOCK], most, by;
    int exponent;
    if ((sum >= 0x1p-80f && sum < INFINITY) || isnan(sum)) return sqrtf(sum);
    most = zfi_vabsmax(isa, x, n);
    if (most == 0 || isinf(most)) return most;
    frexpf(most, &exponent);
    by = ldexpf(1, exponent < -100 ? 100 : exponent > 100 ? -100 : -exponent);
    for (int64_t i = 0; i < n; i++) scaled[i] = by * x[i];
    return sqrtf(zfi_vsumsq(isa, scaled, n)) / by;
}

static void zfi_block_norms_fast(const zf_launch *l, int64_t first, int64_t last)
{
    zfi_isa isa = zfi_cpu_of(l)->isa;
    int64_t count = zfi_count(&l->args[0]);
    for (int64_t block = first; block < last; block++) {
        int64_t i = block * ZFI_NORM_BLOCK,
                n = count - i < ZFI_NORM_BLOCK ? count - i : ZFI_NORM_BLOCK;
        const void *x = zfi_element(l->args[0].data, l->args[0].dtype, i);
        float aside[ZFI_NORM_BLOCK];
        if (l->args[0].dtype != ZF_F32) zfi_widen(isa, aside, l->args[0].dtype, x, n), x = aside;
        ((float *)l->out.data)[block] = zfi_block_norm(isa, x, n);
    }
}

static zf_status zfi_cpu_block_norms(const zf_launch *l)
{
    zfi_split(l, zfi_count(&l->out), ZFI_GRAIN / ZFI_NORM_BLOCK,
              zfi_fast_or_half(l) ? zfi_block_norms_fast : zfi_block_norms_reference);
    return ZF_OK;
}

static zf_status zfi_cpu_total(const zf_launch *l)
{
    double sum = 0;
    for (int32_t k = 0; k < l->arg_count; k++)
        for (int64_t i = 0, count = zfi_count(&l->args[k]); i < count; i++)
            sum += zfi_get(&l->args[k], i);
    zfi_set(&l->out, 0, sum);
    return ZF_OK;
}

static zf_status zfi_cpu_norm(const zf_launch *l)
{
    zfi_set(&l->out, 0, zfi_norm_of(l->args, l->arg_count, 0, INT64_MAX));
    return ZF_OK;
}

/* -------------------------------------------------------------------------------------- cuts */

/* Puts the dimensions of the operand and of the result, which lacks the axis; the axis and the
 * others have marks. */
static void zfi_cut_put_axis(const zf_graph *g, const zfi_node *node, char axis_mark, char mark,
                             zfi_cut_text *t)
{
    const int32_t rank = g->nodes[node->args[0]].shape.rank;
    const int32_t axis = (int32_t)ZF_INT(node, sum, axis);
    const bool one = ZF_INT(node, sum, keep);
    zfi_cut_put_dims(t, zfi_cut_order, rank, axis_mark, 1u << axis, 0);
    zfi_cut_put(t, "-> ");
    zfi_cut_put_dims(t, zfi_cut_order, axis + one, mark, ~0u, 1u << axis);
    zfi_cut_put_dims(t, zfi_cut_order + axis + 1, rank - axis - 1, mark, ~0u, 0);
}

/* Ranks add parts of floats alone. */
static void zfi_cut_sum(const zf_graph *g, const zfi_node *node, zfi_cut_text *t)
{
    const bool added = zfi_is_float(node->dtype);
    zfi_cut_put_axis(g, node, added ? ' ' : '!', added ? '+' : ' ', t);
}

static void zfi_cut_max(const zf_graph *g, const zfi_node *node, zfi_cut_text *t)
{
    zfi_cut_put_axis(g, node, '!', ' ', t);
}

/* ------------------------------------------------------------------------------- records */

ZFI_SAME_ATTRIBUTE(max, sum, axis)
ZFI_SAME_ATTRIBUTE(max, sum, keep)
ZFI_SAME_ATTRIBUTE(argmax, sum, axis)
ZFI_SAME_ATTRIBUTE(argmax, sum, keep)
ZFI_OPERATOR(sum, .infer = zfi_infer_any_sum, .grad = zfi_grad_sum, .cpu = zfi_cpu_sum_to,
             .cut = zfi_cut_sum, .scratch = zfi_scratch_sum_to, .parts = ZFI_PARTS_SUMMED,
             .traits = ZF_OP_WANTS_F32 | ZF_OP_READS_HALF)
ZFI_OPERATOR(max, .infer = zfi_infer_reduce, .grad = zfi_grad_max, .cpu = zfi_cpu_max,
             .cut = zfi_cut_max)
ZFI_OPERATOR(argmax, .infer = zfi_infer_argmax, .grad = zfi_grad_none, .cpu = zfi_cpu_max,
             .cut = zfi_cut_max)
ZFI_OPERATOR(total, .infer = zfi_infer_total, .grad = zfi_grad_total, .cpu = zfi_cpu_total,
             .parts = ZFI_PARTS_SUMMED_TO, .traits = ZF_OP_WANTS_F32 | ZF_OP_READS_HALF)
ZFI_OPERATOR(block_norms, .infer = zfi_infer_block_norms, .cpu = zfi_cpu_block_norms,
             .ranks = ZFI_RANKS_BLOCKS, .traits = ZF_OP_READS_HALF)
ZFI_OPERATOR(norm, .infer = zfi_infer_total, .cpu = zfi_cpu_norm,
             .traits = ZF_OP_WANTS_F32 | ZF_OP_READS_HALF)
