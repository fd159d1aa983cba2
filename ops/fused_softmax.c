/* Softmax, fused with the scale, mask and dropout around it in attention, row by row.
 *
 *     %3 = masked_softmax %1, %2 {p=0.1 stream=3 scale=0.125} : f32[2,4,8,8]
 *          y = dropout(P), P = softmax(scale x + bias) over the last dimension
 *          bias, optional, broadcasts to x
 *     saved 0: P, where there is dropout, since y lacks the dropped elements
 *     %5 = masked_softmax_grad %4, %3 {p=0.1 stream=3 scale=0.125} : f32[2,4,8,8]
 *          dx = scale P (g - sum g P), g = dropout(dy), of (dy, P)
 *
 * The gradient is computed from P alone; neither x nor scale x + bias is kept. The bias gets no
 * gradient. Dropout has the masks of the operator `dropout` with the same stream. Fully masked rows
 * are as in `softmax`. p = 0: no dropout.
 *
 * f32: the bits are those of the nodes scale, add, softmax and dropout, and of their gradients. */

static zf_status zfi_infer_masked_softmax(zfi_infer *c)
{
    zf_status status = zfi_infer_rows(c, 0);
    zf_shape both;
    if (!status) status = zfi_infer_mask(c);
    if (status) return status;
    if (!isfinite(ZF_FLOAT(c, masked_softmax, scale)))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "scale must be finite");
    if (c->arg_count > 1 && (c->args[1]->dtype != c->args[0]->dtype ||
                             !zfi_broadcast_shape(&c->args[0]->shape, &c->args[1]->shape, &both) ||
                             !zfi_same_shape(&both, &c->args[0]->shape)))
        return zfi_infer_fail(c, ZF_ERR_SHAPE,
                              "the bias must have the dtype of x and broadcast to its shape");
    return zfi_infer_like(c, 0);
}

static zf_status zfi_infer_masked_softmax_grad(zfi_infer *c)
{
    zf_status status = zfi_infer_rows(c, 1);
    if (!status) status = zfi_infer_mask(c);
    if (!status && !isfinite(ZF_FLOAT(c, masked_softmax_grad, scale)))
        status = zfi_infer_fail(c, ZF_ERR_ARGUMENT, "scale must be finite");
    return status ? status : zfi_infer_like(c, 0);
}

static bool zfi_saved_masked_softmax(const zf_graph *g, const zfi_node *node, int64_t index,
                                     zf_dtype *dtype, zf_shape *shape)
{
    (void)g;
    *dtype = node->dtype, *shape = node->shape;
    return index == 0 && ZF_FLOAT(node, masked_softmax, p) > 0;
}

static void zfi_grad_masked_softmax(zf_grad *c)
{
    zf_tensor p = ZF_FLOAT(c, masked_softmax, p) > 0 ? zfi_saved(c->y, 0) : c->y;
    if (c->count > 1 && c->need[1])
        zfi_graph_fail(c->graph, ZF_ERR_ARGUMENT, "masked_softmax", "its bias has no gradient");
    if (c->need[0]) c->dx[0] = zfi_op(masked_softmax_grad, c->attributes, c->dy, p);
}

/* ------------------------------------------------------------------------------ kernels */

/* The bias of a row: its first element, and the step from one to the next, 0 or 1. */
typedef struct zfi_row_bias {
    zf_shape rows;
    int64_t steps[ZF_MAX_RANK], step;
} zfi_row_bias;

static zfi_row_bias zfi_row_bias_of(const zf_launch *l)
{
    zfi_row_bias b = {.rows = l->out.shape};
    if (l->arg_count > 1) zfi_broadcast_strides(&l->args[1].shape, &l->out.shape, b.steps);
    b.rows.rank--;
    b.step = l->arg_count > 1 ? b.steps[b.rows.rank] : 0;
    return b;
}

static bool zfi_masks(const zf_launch *l)
{
    return ZF_FLOAT(l, masked_softmax, p) > 0 && !l->run->evaluate;
}

/* The dropout of x, element i of the tensor. */
static double zfi_masked(const zf_launch *l, const zfi_drop *d, int64_t i, double x)
{
    return zfi_masks(l) ? zfi_drop_value(d, i, x) : x;
}

static void zfi_masked_softmax_reference(const zf_launch *l, int64_t first, int64_t last)
{
    const zf_array *x = &l->args[0], *bias = &l->args[1], *p = zfi_saved_out(l, 0);
    const zfi_row_bias b = zfi_row_bias_of(l);
    const zfi_drop d = zfi_drop_of(l);
    int64_t n = zfi_last(&x->shape);
    double scale = ZF_FLOAT(l, masked_softmax, scale);
    for (int64_t row = first; row < last; row++) {
        int64_t of = l->arg_count > 1 ? zfi_offset(row, &b.rows, b.steps) : 0;
        double most = -INFINITY, sum = 0;
        for (int pass = 0; pass < 3; pass++)
            for (int64_t i = 0; i < n; i++) {
                int64_t at = row * n + i;
                double z = scale * zfi_get(x, at), e;
                if (l->arg_count > 1) z += zfi_get(bias, of + i * b.step);
                if (pass == 0) {
                    if (z > most || isnan(z)) most = z;
                    if (isnan(most)) break;
                    continue;
                }
                e = most == -INFINITY ? 0 : exp(z - most);
                if (pass == 1) {
                    sum += e;
                    continue;
                }
                e = sum == 0 ? 0 : e / sum;
                if (p) zfi_set(p, at, e);
                zfi_set(&l->out, at, zfi_masked(l, &d, at, e));
            }
    }
}

ZFI_BODY void zfi_scale_add_body(zfi_isa isa, float *y, const float *x, float scale,
                                 const float *bias, int64_t step, int64_t n)
{
    (void)isa;
    if (bias && step) {
        ZFI_VECTOR
        for (int64_t i = 0; i < n; i++) y[i] = x[i] * scale + bias[i];
    } else {
        float one = bias ? *bias : 0;
        ZFI_VECTOR
        for (int64_t i = 0; i < n; i++) y[i] = x[i] * scale + one;
    }
}
ZFI_KERNEL(zfi_scale_add,
           (float *y, const float *x, float scale, const float *bias, int64_t step, int64_t n),
           (y, x, scale, bias, step, n))

static void zfi_drop_row(const zf_launch *l, const zfi_drop *d, float *y, const float *x,
                         int64_t at, int64_t n)
{
    int64_t run; /* rows are whole */
    zfi_dropout(zfi_cpu_of(l)->isa, y, x, d->element + (uint64_t)zfi_drop_at(d, at, &run), n,
                d->threshold, (float)d->scale, d->stream, d->step, d->seed);
}

static void zfi_masked_softmax_fast(const zf_launch *l, int64_t first, int64_t last)
{
    const zf_array *p = zfi_saved_out(l, 0);
    const zfi_row_bias b = zfi_row_bias_of(l);
    const zfi_drop d = zfi_drop_of(l);
    zfi_isa isa = zfi_cpu_of(l)->isa;
    int64_t n = zfi_last(&l->out.shape);
    for (int64_t row = first; row < last; row++) {
        float *y = (float *)l->out.data + row * n;
        const float *x = (const float *)l->args[0].data + row * n, *bias = NULL;
        if (l->arg_count > 1)
            bias = (const float *)l->args[1].data + zfi_offset(row, &b.rows, b.steps);
        zfi_scale_add(isa, y, x, (float)ZF_FLOAT(l, masked_softmax, scale), bias, b.step, n);
        zfi_softmax_rows(isa, y, y, 1, n);
        if (p) memcpy((float *)p->data + row * n, y, (size_t)n * sizeof *y);
        if (zfi_masks(l)) zfi_drop_row(l, &d, y, y, row * n, n);
    }
}

static zf_status zfi_cpu_masked_softmax(const zf_launch *l)
{
    return zfi_cpu_rows(l, zfi_masked_softmax_fast, zfi_masked_softmax_reference);
}

static void zfi_masked_softmax_grad_reference(const zf_launch *l, int64_t first, int64_t last)
{
    const zf_array *dy = &l->args[0], *p = &l->args[1];
    const zfi_drop d = zfi_drop_of(l);
    int64_t n = zfi_last(&p->shape);
    for (int64_t row = first; row < last; row++) {
        double dot = 0;
        for (int64_t i = row * n; i < (row + 1) * n; i++)
            dot += zfi_masked(l, &d, i, zfi_get(dy, i)) * zfi_get(p, i);
        for (int64_t i = row * n; i < (row + 1) * n; i++)
            zfi_set(&l->out, i,
                    ZF_FLOAT(l, masked_softmax_grad, scale) * zfi_get(p, i) *
                        (zfi_masked(l, &d, i, zfi_get(dy, i)) - dot));
    }
}

static void zfi_masked_softmax_grad_fast(const zf_launch *l, int64_t first, int64_t last)
{
    const zfi_drop d = zfi_drop_of(l);
    zfi_isa isa = zfi_cpu_of(l)->isa;
    int64_t n = zfi_last(&l->out.shape);
    float scale = (float)ZF_FLOAT(l, masked_softmax_grad, scale);
    for (int64_t row = first; row < last; row++) {
        float *dx = (float *)l->out.data + row * n;
        const float *dy = (const float *)l->args[0].data + row * n,
                    *p = (const float *)l->args[1].data + row * n;
        if (zfi_masks(l)) zfi_drop_row(l, &d, dx, dy, row * n, n), dy = dx;
        zfi_softmax_grad_rows(isa, dx, dy, p, 1, n);
        if (scale != 1) zfi_scale_run(isa, dx, dx, dx, scale, n);
    }
}

static zf_status zfi_cpu_masked_softmax_grad(const zf_launch *l)
{
    return zfi_cpu_rows(l, zfi_masked_softmax_grad_fast, zfi_masked_softmax_grad_reference);
}

/* Recomputes the result: the dropout of the saved P. */
static int32_t zfi_remake_masked_softmax(zf_graph *g, int32_t id, int32_t left)
{
    const zfi_node *node = &g->nodes[id];
    return zfi_op(dropout,
                  zfi_with({.f = ZF_FLOAT(node, masked_softmax, p)},
                           {.i = ZF_INT(node, masked_softmax, stream)}),
                  ((zf_tensor){g, left}))
        .id;
}

static bool zfi_remade_masked_softmax(const zf_graph *g, const zfi_node *of, const zfi_node *node,
                                      bool alike)
{
    (void)g, (void)alike;
    return node->op == ZF_OP_dropout &&
           ZF_INT(node, dropout, stream) == ZF_INT(of, masked_softmax, stream);
}

/* ------------------------------------------------------------------------------- records */

static double zfi_functions_masked_softmax(const zf_launch *l)
{
    return zfi_functions_each(l) + zfi_draws_each(l);
}

ZFI_SAME_ATTRIBUTE(masked_softmax, dropout, p)
ZFI_SAME_ATTRIBUTE(masked_softmax, dropout, stream)
ZFI_SAME_ATTRIBUTE(masked_softmax_grad, dropout, p)
ZFI_SAME_ATTRIBUTE(masked_softmax_grad, dropout, stream)
ZFI_SAME_ATTRIBUTE(masked_softmax_grad, masked_softmax, scale)
ZFI_OPERATOR(masked_softmax, .infer = zfi_infer_masked_softmax, .grad = zfi_grad_masked_softmax,
             .cpu = zfi_cpu_masked_softmax, .saved = zfi_saved_masked_softmax,
             .functions = zfi_functions_masked_softmax, .remake = zfi_remake_masked_softmax,
             .remade = zfi_remade_masked_softmax,
             .cuts = "... c!, ?... c! -> ... c!; ... c!",
             .draws = ZFI_DRAWS_AS_RESULT, .traits = ZF_OP_INPLACE | ZF_OP_RANDOM)
ZFI_OPERATOR(masked_softmax_grad, .infer = zfi_infer_masked_softmax_grad,
             .cpu = zfi_cpu_masked_softmax_grad, .functions = zfi_draws_each,
             .cuts = "... c!, ... c! -> ... c!",
             .linear_in = 1, .draws = ZFI_DRAWS_AS_RESULT, .traits = ZF_OP_RANDOM)
