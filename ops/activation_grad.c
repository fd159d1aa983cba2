/* The gradients of gelu and silu, with what can be had from the same reading of their operands.
 *
 *     %4 = gelu_grad %3, %1 {form=erf} : f32[4,8]     dx of gelu from (dy, x)
 *     %4 = silu_grad %3, %1 : f32[4,8]                dx of silu from (dy, x)
 *
 * saved 0: the activation of x, which shares most of the work
 * saved 1: [8], the sums of dx over its rows: the gradient of a bias that was added to give x
 *
 * Saved 1 has the bits that sum_to makes of the result, also in 16 bits: the sums are of rounded
 * elements, in sum_to's order. On the CPU a task has a strip of columns, of which it computes four
 * rows and then adds them, while they are in the first-level cache:
 *
 *              strip
 *            +-------+-------+
 *     rows   | dx    |       |
 *            |  |    |       |
 *            |  v    |       |
 *            +-------+-------+
 *              sums
 */

enum { ZFI_ACTIVATION, ZFI_BIAS_SUMS }; /* saved values */

static bool zfi_saved_activation(const zf_graph *g, const zfi_node *node, int64_t index,
                                 zf_dtype *dtype, zf_shape *shape)
{
    (void)g;
    *dtype = node->dtype;
    *shape = index == ZFI_BIAS_SUMS ? ZF_SHAPE(zfi_last(&node->shape)) : node->shape;
    return index == ZFI_ACTIVATION || (index == ZFI_BIAS_SUMS && node->shape.rank > 0);
}

/* Elements [first, last) of dx and of the activation. */
static void zfi_activation_grad_reference(const zf_launch *l, int64_t first, int64_t last)
{
    const zf_array *y = zfi_saved_out(l, ZFI_ACTIVATION);
    for (int64_t i = first; i < last; i++) {
        double dy = zfi_get(&l->args[0], i), x = zfi_get(&l->args[1], i);
        if (y)
            zfi_set(y, i,
                    l->op == ZF_OP_silu_grad ? x * zfi_sigmoid_f64(x)
                                             : zfi_gelu_f64(x, ZF_INT(l, gelu_grad, form)));
        zfi_set(&l->out, i, zfi_unary_value(l, dy, x));
    }
}

/* The same, in f32. */
static void zfi_activation_grad_fast(const zf_launch *l, int64_t first, int64_t last)
{
    const zf_array *y = zfi_saved_out(l, ZFI_ACTIVATION);
    const zf_dtype dtype = l->out.dtype;
    zfi_isa isa = zfi_cpu_of(l)->isa;
    float aside[4][ZFI_CONVERT_RUN];
    zf_array args[2], saved[ZF_MAX_SAVED] = {{.data = NULL}};
    zf_launch run = *l;
    run.args = args, run.saved = saved;
    for (int64_t i = first, n; i < last; i += n) {
        n = dtype == ZF_F32 ? last - i : zfi_min(last - i, ZFI_CONVERT_RUN);
        for (int k = 0; k < 2; k++)
            args[k].data = (void *)(uintptr_t)zfi_read_floats(isa, aside[k], &l->args[k], i, n);
        run.out.data = zfi_place_floats(aside[2], &l->out, i);
        if (y) saved[ZFI_ACTIVATION].data = zfi_place_floats(aside[3], y, i);
        zfi_unary_fast(&run, 0, n);
        zfi_write_floats(isa, &l->out, i, run.out.data, n);
        if (y) zfi_write_floats(isa, y, i, saved[ZFI_ACTIVATION].data, n);
    }
}

/* Fetches the columns of rows from element `at` on, before element `end`: the processor itself does
 * not foresee lines that lie a row apart. */
ZFI_INLINE void zfi_fetch_strip(const zf_launch *l, int64_t at, int64_t end, int64_t row,
                                int64_t columns)
{
    const zf_array *y = zfi_saved_out(l, ZFI_ACTIVATION);
    const zf_dtype dtype = l->out.dtype;
    const int64_t bytes = columns * (int64_t)zf_dtype_size(dtype);
    for (; at < end; at += row) {
        zfi_prefetch_bytes(zfi_element(l->args[0].data, dtype, at), bytes);
        zfi_prefetch_bytes(zfi_element(l->args[1].data, dtype, at), bytes);
        if (y) zfi_prefetch_bytes(zfi_element(y->data, dtype, at), bytes);
    }
}

/* Strips [first, last) of the result, with their sums. */
static void zfi_activation_grad_strips(const zf_launch *l, int64_t first, int64_t last)
{
    const zf_array *dx = &l->out, *sums = zfi_saved_out(l, ZFI_BIAS_SUMS);
    int64_t n = zfi_last(&dx->shape), rows = zfi_row_count(&dx->shape),
            strip = zfi_sum_strip(rows, n, dx->dtype);
    zfi_isa isa = zfi_cpu_of(l)->isa;
    bool fast = zfi_fast_or_half(l);
    for (int64_t c = first * strip; c < zfi_min(last * strip, n); c += strip) {
        int64_t columns = zfi_min(strip, n - c);
        double sum[ZFI_STRIP] = {0};
        for (int64_t r = 0; r < rows; r += 4) {
            int64_t begin = r * n + c, end = zfi_min(r + 4, rows) * n;
            if (fast) zfi_fetch_strip(l, end + c, zfi_min(r + 8, rows) * n, n, columns);
            for (int64_t at = begin; at < end; at += n)
                (fast ? zfi_activation_grad_fast : zfi_activation_grad_reference)(l, at,
                                                                                  at + columns);
            if (fast) zfi_add_rows(isa, sum, dx, begin, zfi_min(4, rows - r), n, columns);
            for (int64_t at = begin; !fast && at < end; at += n)
                for (int64_t i = 0; i < columns; i++) sum[i] += zfi_get(dx, at + i);
        }
        if (fast) zfi_put_sums(isa, sums, c, sum, columns);
        for (int64_t i = 0; !fast && i < columns; i++) zfi_set(sums, c + i, sum[i]);
    }
}

static zf_status zfi_cpu_activation_grad(const zf_launch *l)
{
    int64_t n = zfi_last(&l->out.shape), rows = zfi_row_count(&l->out.shape), strip;
    if (zfi_saved_out(l, ZFI_BIAS_SUMS)) {
        strip = zfi_sum_strip(rows, n, l->out.dtype);
        zfi_split(l, (n + strip - 1) / strip, zfi_row_grain(rows * strip),
                  zfi_activation_grad_strips);
        return ZF_OK;
    }
    zfi_split(l, zfi_count(&l->out), ZFI_GRAIN,
              zfi_fast_or_half(l) ? zfi_activation_grad_fast : zfi_activation_grad_reference);
    return ZF_OK;
}

/* The activation shares those of its gradient. */
static double zfi_functions_gelu_grad(const zf_launch *l)
{
    return (ZF_INT(l, gelu_grad, form) ? 2.0 : 3.0) * zfi_functions_each(l);
}

static int32_t zfi_row_sums_activation(const zfi_node *node, int64_t of)
{
    return (void)node, of < 0 ? ZFI_BIAS_SUMS : -1;
}

/* ------------------------------------------------------------------------------- records */

ZFI_SAME_ATTRIBUTE(gelu_grad, gelu, form)
ZFI_OPERATOR(gelu_grad, .infer = zfi_infer_gelu, .cpu = zfi_cpu_activation_grad,
             .value = zfi_unary_value, .piece = zfi_unary_fast, .saved = zfi_saved_activation,
             .activates = 1, .functions = zfi_functions_gelu_grad,
             .row_sums = zfi_row_sums_activation,
             .cuts = "... c, ... c -> ... c; ... c; c | , -> ;",
             .linear_in = 1, .linear_saved = 1 << ZFI_BIAS_SUMS,
             .traits = ZF_OP_INPLACE | ZF_OP_ELEMENTWISE | ZF_OP_READS_HALF)
ZFI_OPERATOR(silu_grad, .infer = zfi_infer_alike, .cpu = zfi_cpu_activation_grad,
             .value = zfi_unary_value, .piece = zfi_unary_fast, .saved = zfi_saved_activation,
             .activates = 1, .functions = zfi_functions_each,
             .row_sums = zfi_row_sums_activation,
             .cuts = "... c, ... c -> ... c; ... c; c | , -> ;",
             .linear_in = 1, .linear_saved = 1 << ZFI_BIAS_SUMS,
             .traits = ZF_OP_INPLACE | ZF_OP_ELEMENTWISE | ZF_OP_READS_HALF)
