/* repeat: heads of keys and values, each for several groups of heads of queries.
 *
 *     %3 = repeat %1 {heads=2 copies=2} : bf16[4,8,256]     %1: bf16[4,8,128], heads a and b of 64
 *                                                           elements: a a b b
 *     %5 = repeat_grad %4 {heads=2 copies=2} : f32[4,8,128] of each head the sum of its copies
 *
 * The last dimension is `heads` heads. Copies are added in f32 (f64 of f64) by a balanced tree
 * (base/tree.c), so ranks that have some of the copies each make the rest of it.
 *
 * over: ranks along that axis have the same heads, and other copies of them (copies, tensor):
 *
 *     mesh tensor=2x2
 *     %3 = repeat %1 {heads=1 copies=1 over=copies} : bf16[4,8,64@tensor]    %1: bf16[4,8,64@group]
 *     %5 = repeat_grad %4 {heads=1 copies=1 over=copies} : f32[4,8,64@group]+copies
 */

enum { ZFI_COPY_SPAN = 64, ZFI_COPY_DEPTH = 40 }; /* elements at a time, and open sums */

/* Checks that the last dimension of operand 0 is `heads * by` equal parts. */
static zf_status zfi_infer_copied(zfi_infer *c, int64_t by)
{
    const zf_shape *x = &c->args[0]->shape;
    const int64_t heads = ZF_INT(c, repeat, heads), copies = ZF_INT(c, repeat, copies),
                  over = ZF_INT(c, repeat, over);
    if (!zfi_is_float(c->args[0]->dtype))
        return zfi_infer_fail(c, ZF_ERR_DTYPE, "the operand must be float: f32, bf16, f16 or f64");
    if (heads < 1 || copies < 1 || copies > INT32_MAX || heads > INT32_MAX)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "%lld heads and %lld copies; 1 or more are needed", (long long)heads,
                              (long long)copies);
    if (x->rank < 1 || zfi_last(x) % (heads * by))
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "the last dimension is not %lld equal heads",
                              (long long)(heads * by));
    if (over && over != ZF_OVER_TENSOR && over != ZF_OVER_COPIES)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "copies are over tensor or copies, not over %s",
                              zfi_axis_names[over]);
    return zfi_infer_like(c, 0);
}

static zf_status zfi_infer_repeat(zfi_infer *c)
{
    const zf_status status = zfi_infer_copied(c, 1);
    int64_t *last = &c->shape.dims[c->shape.rank - 1];
    if (status) return status;
    if (*last > INT64_MAX / 8 / ZF_INT(c, repeat, copies))
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "%lld copies are too many",
                              (long long)ZF_INT(c, repeat, copies));
    *last *= ZF_INT(c, repeat, copies);
    return ZF_OK;
}

static zf_status zfi_infer_repeat_grad(zfi_infer *c)
{
    const zf_status status = zfi_infer_copied(c, ZF_INT(c, repeat_grad, copies));
    if (status) return status;
    c->shape.dims[c->shape.rank - 1] /= ZF_INT(c, repeat_grad, copies);
    if (zfi_is_half(c->dtype)) c->dtype = ZF_F32;
    return ZF_OK;
}

static void zfi_grad_repeat(zf_grad *c)
{
    if (c->need[0])
        c->dx[0] = zf_cast(zfi_op(repeat_grad, c->attributes, c->dy), zf_tensor_dtype(c->x[0]));
}

/* ------------------------------------------------------------------------------ kernels */

/* Heads of all rows, [first, last): copies of each. */
static void zfi_repeat_range(const zf_launch *l, int64_t first, int64_t last)
{
    const int64_t copies = ZF_INT(l, repeat, copies),
                  wide = zfi_last(&l->args[0].shape) / ZF_INT(l, repeat, heads);
    const size_t bytes = (size_t)wide * zf_dtype_size(l->out.dtype);
    for (int64_t h = first; h < last; h++)
        for (int64_t c = 0; c < copies; c++)
            memcpy((char *)l->out.data + (size_t)(h * copies + c) * bytes,
                   (const char *)l->args[0].data + (size_t)h * bytes, bytes);
}

static zf_status zfi_cpu_repeat(const zf_launch *l)
{
    const int64_t heads = ZF_INT(l, repeat, heads), wide = zfi_last(&l->args[0].shape) / heads;
    if (zfi_count(&l->out))
        zfi_split(l, zfi_count(&l->args[0]) / wide, zfi_row_grain(zfi_last(&l->out.shape) / heads),
                  zfi_repeat_range);
    return ZF_OK;
}

/* Elements [i, i + n) of the sum of the copies of a head, the first of which is at `at`. */
static void zfi_sum_copies_fast(const zf_launch *l, int64_t at, int64_t wide, float *to, int64_t n)
{
    const zfi_isa isa = zfi_cpu_of(l)->isa;
    const int64_t copies = ZF_INT(l, repeat_grad, copies);
    float open[ZFI_COPY_DEPTH][ZFI_COPY_SPAN], aside[ZFI_COPY_SPAN];
    for (int64_t c = 0; c < copies; c++) {
        int depth = zfi_tree_depth(c);
        memcpy(open[depth], zfi_read_floats(isa, aside, &l->args[0], at + c * wide, n),
               (size_t)n * sizeof(float));
        for (int k = zfi_tree_merges(c, copies); k > 0; k--, depth--)
            zfi_binary_run(isa, ZF_OP_add, open[depth - 1], open[depth - 1], open[depth], true,
                           true, n);
    }
    memcpy(to, open[0], (size_t)n * sizeof(float));
}

static double zfi_sum_copies(const zf_launch *l, int64_t at, int64_t wide)
{
    zfi_tree sum = {.sections = ZF_INT(l, repeat_grad, copies)};
    for (int64_t c = 0; c < sum.sections; c++)
        zfi_tree_put(&sum, zfi_get(&l->args[0], at + c * wide));
    return sum.sums[0];
}

/* Heads of all rows, [first, last): the sum of the copies of each. */
static void zfi_repeat_grad_range(const zf_launch *l, int64_t first, int64_t last)
{
    const int64_t copies = ZF_INT(l, repeat_grad, copies),
                  wide = zfi_last(&l->out.shape) / ZF_INT(l, repeat_grad, heads);
    const bool fast = zfi_fast_or_half(l);
    for (int64_t h = first; h < last; h++)
        for (int64_t i = 0, n; i < wide; i += n) {
            const int64_t at = h * copies * wide + i, to = h * wide + i;
            n = fast ? zfi_min(ZFI_COPY_SPAN, wide - i) : 1;
            if (fast) zfi_sum_copies_fast(l, at, wide, (float *)l->out.data + to, n);
            else zfi_set(&l->out, to, zfi_sum_copies(l, at, wide));
        }
}

static zf_status zfi_cpu_repeat_grad(const zf_launch *l)
{
    const int64_t heads = ZF_INT(l, repeat_grad, heads);
    if (zfi_count(&l->out))
        zfi_split(l, zfi_count(&l->out) * heads / zfi_last(&l->out.shape),
                  zfi_row_grain(zfi_last(&l->args[0].shape) / heads), zfi_repeat_grad_range);
    return ZF_OK;
}

/* ------------------------------------------------------------------------------- records */

ZFI_SAME_ATTRIBUTE(repeat_grad, repeat, heads)
ZFI_SAME_ATTRIBUTE(repeat_grad, repeat, copies)
ZFI_SAME_ATTRIBUTE(repeat_grad, repeat, over)
ZFI_OPERATOR(repeat, .infer = zfi_infer_repeat, .grad = zfi_grad_repeat, .cpu = zfi_cpu_repeat,
             .cuts = "... h -> ... h {heads/h}", .copies = ZFI_COPIES_MADE, .linear_in = 1,
             .traits = ZF_OP_READS_HALF)
ZFI_OPERATOR(repeat_grad, .infer = zfi_infer_repeat_grad, .cpu = zfi_cpu_repeat_grad,
             .cuts = "... h -> ... h {heads/h}", .copies = ZFI_COPIES_ADDED, .linear_in = 1,
             .traits = ZF_OP_READS_HALF)
