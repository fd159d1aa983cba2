/* Along an axis: cumsum gather scatter_add top_k; and one_hot, which makes one.
 *
 *     %2 = cumsum %1 {axis=1} : f32[4,8]                y[o,n] = x[o,0] + ... + x[o,n]
 *     %2 = cumsum %1 {axis=1 reverse=true} : f32[4,8]   y[o,n] = x[o,n] + ... + x[o,7]
 *                                                       dx = cumsum(dy), from the other side
 *     %3 = gather %1, %2 {axis=1} : f32[4,3]            y[o,n] = x[o,index[o,n]]
 *                                                       dx = scatter_add(dy)
 *     %3 = scatter_add %1, %2 {axis=1 size=8} : f32[4,8]
 *                                                       y[o,r] = sum of x[o,n], index[o,n] = r
 *                                                       dx = gather(dy)
 *     %2 = top_k %1 {k=3} : i32[4,3]                    places of the largest of each row, the
 *                                                       largest first, of equal ones the first
 *     %2 = one_hot %1 {classes=5 to=f32} : f32[4,5]     y[o,c] = index[o] is c
 *
 * Saved: the index. An index outside the axis is an error of the step; one_hot gives zeros for it.
 * cumsum adds in double, of integers in 64 bits with wrapping, and rounds each sum once.
 * scatter_add adds in the order of the index. In top_k NaN is larger than every number.
 *
 * A line is the elements that differ along the axis alone; kernels take neighbouring lines at a
 * time. */

static zf_status zfi_infer_cumsum(zfi_infer *c)
{
    zf_status status = zfi_infer_axis(c, ZF_INT(c, cumsum, axis));
    if (!status && !zfi_is_float(c->args[0]->dtype) && !zfi_is_integer(c->args[0]->dtype))
        status = zfi_infer_fail(c, ZF_ERR_DTYPE, "the operand must be float or integer");
    return status ? status : zfi_infer_like(c, 0);
}

/* Checks that the index has the dimensions of operand 0 but for the axis. */
static zf_status zfi_infer_indexed(zfi_infer *c, int64_t axis, bool also_axis)
{
    zf_shape x = c->args[0]->shape;
    const zf_shape *index = &c->args[1]->shape;
    zf_status status = zfi_infer_index(c);
    if (!status) status = zfi_infer_axis(c, axis);
    if (status) return status;
    if (!also_axis && index->rank == x.rank) x.dims[axis] = index->dims[axis];
    if (!zfi_same_shape(index, &x))
        return zfi_infer_fail(c, ZF_ERR_SHAPE,
                              also_axis ? "the index must have the shape of operand 0"
                                        : "the index must have the dimensions of operand 0 but for "
                                          "axis %lld",
                              (long long)axis);
    c->dtype = c->args[0]->dtype;
    c->shape = x;
    return ZF_OK;
}

static zf_status zfi_infer_gather(zfi_infer *c)
{
    return zfi_infer_indexed(c, ZF_INT(c, gather, axis), false);
}

static zf_status zfi_infer_scatter_add(zfi_infer *c)
{
    const int64_t axis = ZF_INT(c, scatter_add, axis), size = ZF_INT(c, scatter_add, size);
    if (!zfi_is_float(c->args[0]->dtype))
        return zfi_infer_fail(c, ZF_ERR_DTYPE, "operand 0 must be float: f32, bf16, f16 or f64");
    if (size < 0)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "size = %lld must not be negative",
                              (long long)size);
    if (zfi_infer_indexed(c, axis, true)) return c->graph->error.status;
    c->shape.dims[axis] = size;
    return ZF_OK;
}

static zf_status zfi_infer_top_k(zfi_infer *c)
{
    const int64_t k = ZF_INT(c, top_k, k);
    zf_status status = zfi_infer_dtypes(c, true);
    int64_t n;
    if (status) return status;
    zfi_infer_like(c, 0);
    if (!c->shape.rank) return zfi_infer_fail(c, ZF_ERR_SHAPE, "a scalar has no rows");
    n = c->shape.dims[c->shape.rank - 1];
    if (k < 1 || k > n || n > INT32_MAX)
        return zfi_infer_fail(
            c, ZF_ERR_ARGUMENT, "k = %lld of rows of %lld elements; 1 to %lld is possible",
            (long long)k, (long long)n, (long long)(n < INT32_MAX ? n : INT32_MAX));
    c->shape.dims[c->shape.rank - 1] = k;
    c->dtype = ZF_I32;
    return ZF_OK;
}

static zf_status zfi_infer_one_hot(zfi_infer *c)
{
    const int64_t classes = ZF_INT(c, one_hot, classes), to = ZF_INT(c, one_hot, to);
    if (!zfi_is_integer(c->args[0]->dtype))
        return zfi_infer_fail(c, ZF_ERR_DTYPE, "the index must be i32 or i64");
    if (to < 0 || to > INT_MAX || !zf_dtype_size((zf_dtype)to))
        return zfi_infer_fail(c, ZF_ERR_DTYPE, "%lld is no dtype", (long long)to);
    if (classes < 1 || c->args[0]->shape.rank == ZF_MAX_RANK)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "classes = %lld must be 1 or more, and the index has fewer than %d "
                              "dimensions",
                              (long long)classes, ZF_MAX_RANK);
    zfi_infer_like(c, 0);
    c->dtype = (zf_dtype)to;
    c->shape.dims[c->shape.rank++] = classes;
    if (zf_shape_count(c->shape) >= 0) return ZF_OK;
    return zfi_infer_fail(c, ZF_ERR_SHAPE, "the result has more than 2^63 elements");
}

/* --------------------------------------------------------------------------- gradients */

static void zfi_grad_cumsum(zf_grad *c)
{
    if (!zfi_is_float(zf_tensor_dtype(c->y))) return;
    c->dx[0] =
        zfi_op(cumsum, zfi_with({.i = ZF_INT(c, cumsum, axis)}, {.i = !ZF_INT(c, cumsum, reverse)}),
               c->dy);
}

static void zfi_grad_gather(zf_grad *c)
{
    const int64_t axis = ZF_INT(c, gather, axis), size = zf_tensor_shape(c->x[0]).dims[axis];
    if (c->need[0])
        c->dx[0] = zfi_op(scatter_add, zfi_with({.i = axis}, {.i = size}), c->dy, c->x[1]);
}

static void zfi_grad_scatter_add(zf_grad *c)
{
    if (c->need[0])
        c->dx[0] = zfi_op(gather, zfi_with({.i = ZF_INT(c, scatter_add, axis)}), c->dy, c->x[1]);
}

/* ------------------------------------------------------------------------------ kernels */

enum { ZFI_LINES = 64 }; /* lines that are taken at a time */

static zfi_axis_of zfi_lines_along(const zf_shape *x, int64_t axis)
{
    return (zfi_axis_of){x->dims[axis], zfi_span(x, (int)axis + 1, x->rank)};
}

/* The number of lines from line `at` on, before `last`, that are neighbours; at most ZFI_LINES. */
static int64_t zfi_lines_from(int64_t at, int64_t last, int64_t inner)
{
    const int64_t n = zfi_min(inner - at % inner, last - at);
    return n < ZFI_LINES ? n : ZFI_LINES;
}

/* The first element of line `at`. */
static int64_t zfi_line_start(zfi_axis_of a, int64_t at)
{
    return at / a.inner * a.n * a.inner + at % a.inner;
}

/* Work of about 16 thousand elements. */
static void zfi_split_lines(const zf_launch *l, const zf_shape *x, int64_t axis,
                            zfi_range_task *task)
{
    const zfi_axis_of a = zfi_lines_along(x, axis);
    zfi_split(l, zfi_span(x, 0, (int)axis) * a.inner, zfi_row_grain(a.n), task);
}

/* Lines [first, last). The result may lie over x. */
static void zfi_cumsum_range(const zf_launch *l, int64_t first, int64_t last)
{
    const zf_array *x = &l->args[0];
    const zfi_axis_of a = zfi_lines_along(&x->shape, ZF_INT(l, cumsum, axis));
    const bool reverse = ZF_INT(l, cumsum, reverse) != 0, integer = zfi_is_integer(x->dtype);
    for (int64_t at = first, m; at < last; at += m) {
        const int64_t start = zfi_line_start(a, at);
        double sum[ZFI_LINES] = {0};
        uint64_t whole[ZFI_LINES] = {0};
        m = zfi_lines_from(at, last, a.inner);
        for (int64_t n = 0; n < a.n; n++) {
            const int64_t e = start + (reverse ? a.n - 1 - n : n) * a.inner;
            if (x->dtype == ZF_F32) {
                const float *from = (const float *)x->data + e;
                float *to = (float *)l->out.data + e;
                for (int64_t c = 0; c < m; c++) to[c] = (float)(sum[c] += from[c]);
            } else if (integer) {
                for (int64_t c = 0; c < m; c++) {
                    whole[c] += (uint64_t)zfi_get_integer(x, e + c);
                    zfi_set_integer(&l->out, e + c, (int64_t)whole[c]);
                }
            } else {
                for (int64_t c = 0; c < m; c++)
                    zfi_set(&l->out, e + c, sum[c] += zfi_get(x, e + c));
            }
        }
    }
}

static zf_status zfi_cpu_cumsum(const zf_launch *l)
{
    zfi_split_lines(l, &l->out.shape, ZF_INT(l, cumsum, axis), zfi_cumsum_range);
    return ZF_OK;
}

/* Elements [first, last) of the result. Copies bytes, for every dtype. */
static void zfi_gather_along(const zf_launch *l, int64_t first, int64_t last)
{
    const zf_array *x = &l->args[0];
    const int64_t axis = ZF_INT(l, gather, axis);
    const zfi_axis_of a = zfi_lines_along(&x->shape, axis),
                      b = zfi_lines_along(&l->out.shape, axis);
    const size_t size = zf_dtype_size(x->dtype);
    const char *from = x->data;
    char *to = l->out.data;
    for (int64_t i = first; i < last; i++) {
        const int64_t outer = i / (b.n * b.inner), row = zfi_get_integer(&l->args[1], i);
        memcpy(to + (size_t)i * size,
               from + (size_t)((outer * a.n + row) * a.inner + i % a.inner) * size, size);
    }
}

static zf_status zfi_cpu_gather(const zf_launch *l)
{
    const int64_t rows = l->args[0].shape.dims[ZF_INT(l, gather, axis)];
    zf_status status = zfi_check_rows(l, "gather", rows);
    if (!status) zfi_split(l, zfi_count(&l->out), ZFI_GRAIN, zfi_gather_along);
    return status;
}

/* Lines [first, last) of the result, whose elements are summed in double and rounded once. */
static void zfi_scatter_lines_reference(const zf_launch *l, int64_t first, int64_t last)
{
    const zf_array *x = &l->args[0], *index = &l->args[1];
    const int64_t axis = ZF_INT(l, scatter_add, axis);
    const zfi_axis_of a = zfi_lines_along(&x->shape, axis),
                      b = zfi_lines_along(&l->out.shape, axis);
    for (int64_t at = first; at < last; at++) {
        const int64_t from = zfi_line_start(a, at), to = zfi_line_start(b, at);
        for (int64_t r = 0; r < b.n; r++) {
            double sum = 0;
            for (int64_t n = 0; n < a.n; n++)
                if (zfi_get_integer(index, from + n * a.inner) == r)
                    sum += zfi_get(x, from + n * a.inner);
            zfi_set(&l->out, to + r * b.inner, sum);
        }
    }
}

static void zfi_scatter_lines_fast(const zf_launch *l, int64_t first, int64_t last)
{
    const float *x = l->args[0].data;
    const int64_t axis = ZF_INT(l, scatter_add, axis);
    const zfi_axis_of a = zfi_lines_along(&l->args[0].shape, axis),
                      b = zfi_lines_along(&l->out.shape, axis);
    for (int64_t at = first, m; at < last; at += m) {
        const int64_t from = zfi_line_start(a, at);
        float *to = (float *)l->out.data + zfi_line_start(b, at);
        m = zfi_lines_from(at, last, a.inner);
        for (int64_t r = 0; r < b.n; r++) memset(to + r * b.inner, 0, (size_t)m * sizeof *to);
        for (int64_t n = 0; n < a.n; n++)
            for (int64_t c = 0; c < m; c++) {
                const int64_t e = from + n * a.inner + c;
                to[zfi_get_integer(&l->args[1], e) * b.inner + c] += x[e];
            }
    }
}

static zf_status zfi_cpu_scatter_add(const zf_launch *l)
{
    zf_status status = zfi_check_rows(l, "scatter_add", ZF_INT(l, scatter_add, size));
    if (!status)
        zfi_split_lines(l, &l->out.shape, ZF_INT(l, scatter_add, axis),
                        zfi_fast(l) ? zfi_scatter_lines_fast : zfi_scatter_lines_reference);
    return status;
}

static bool zfi_is_larger(double a, double b) { return a > b || (isnan(a) && !isnan(b)); }

/* Rows [first, last). The places so far are in the result, the largest first. */
static void zfi_top_k_range(const zf_launch *l, int64_t first, int64_t last)
{
    const zf_array *x = &l->args[0];
    const int64_t n = zfi_last(&x->shape), k = ZF_INT(l, top_k, k);
    for (int64_t row = first; row < last; row++) {
        int32_t *places = (int32_t *)l->out.data + row * k;
        double least = 0;
        for (int64_t i = 0; i < n; i++) {
            const double value = zfi_get(x, row * n + i);
            int64_t at = i < k ? i : k - 1;
            if (i >= k && !zfi_is_larger(value, least)) continue;
            for (; at > 0 && zfi_is_larger(value, zfi_get(x, row * n + places[at - 1])); at--)
                places[at] = places[at - 1];
            places[at] = (int32_t)i;
            if (i >= k - 1) least = zfi_get(x, row * n + places[k - 1]);
        }
    }
}

static zf_status zfi_cpu_top_k(const zf_launch *l)
{
    zfi_split(l, zfi_row_count(&l->args[0].shape), zfi_row_grain(zfi_last(&l->args[0].shape)),
              zfi_top_k_range);
    return ZF_OK;
}

static void zfi_one_hot_range(const zf_launch *l, int64_t first, int64_t last)
{
    const int64_t classes = ZF_INT(l, one_hot, classes);
    const size_t row = (size_t)classes * zf_dtype_size(l->out.dtype);
    memset((char *)l->out.data + (size_t)first * row, 0, (size_t)(last - first) * row);
    for (int64_t i = first; i < last; i++) {
        const int64_t at = zfi_get_integer(&l->args[0], i);
        if (at >= 0 && at < classes) zfi_set(&l->out, i * classes + at, 1);
    }
}

static zf_status zfi_cpu_one_hot(const zf_launch *l)
{
    zfi_split(l, zfi_count(&l->args[0]), zfi_row_grain(ZF_INT(l, one_hot, classes)),
              zfi_one_hot_range);
    return ZF_OK;
}

/* ------------------------------------------------------------------------------- records */

ZFI_OPERATOR(cumsum, .infer = zfi_infer_cumsum, .grad = zfi_grad_cumsum, .cpu = zfi_cpu_cumsum,
             .cut = zfi_cut_along, .linear = ZFI_LINEAR_TOGETHER,
             .traits = ZF_OP_INPLACE | ZF_OP_WANTS_F32)
ZFI_OPERATOR(gather, .infer = zfi_infer_gather, .grad = zfi_grad_gather, .cpu = zfi_cpu_gather,
             .cut = zfi_cut_along, .linear = ZFI_LINEAR_FIRST, .traits = ZF_OP_READS_HALF)
ZFI_OPERATOR(scatter_add, .infer = zfi_infer_scatter_add, .grad = zfi_grad_scatter_add,
             .cpu = zfi_cpu_scatter_add, .cut = zfi_cut_along, .linear = ZFI_LINEAR_FIRST)
ZFI_OPERATOR(top_k, .infer = zfi_infer_top_k, .grad = zfi_grad_none, .cpu = zfi_cpu_top_k,
             .cuts = "... n! -> ... k!", .traits = ZF_OP_READS_HALF)
ZFI_OPERATOR(one_hot, .infer = zfi_infer_one_hot, .grad = zfi_grad_none, .cpu = zfi_cpu_one_hot,
             .cuts = "... -> ... c!")
