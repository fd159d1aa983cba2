/* sum_to: the transpose of broadcast.
 *
 *     %2 = sum_to %1 {shape=[8]} : f32[8]               sums what was repeated dx = broadcast(dy)
 *
 * Order of additions in f32 (here, and of sum in reduce.c): runs of neighbours are split into
 * blocks of 1024 elements. A block is summed in f32 (zfi_vsum). Blocks are added in double in index
 * order, and so are rows where columns are kept. The sum is rounded once. The order depends on the
 * shapes alone. */

static zf_status zfi_infer_sum_to(zfi_infer *c)
{
    zf_status status = zfi_infer_dtypes(c, true);
    char type[ZFI_TYPE_TEXT];
    if (!status) status = zfi_infer_shape(c);
    if (!status && !zfi_broadcasts_to(&c->shape, &c->args[0]->shape))
        status = zfi_infer_fail(
            c, ZF_ERR_SHAPE,
            "%s does not broadcast to the operand's shape: aligned at the last, each dimension "
            "must be equal or 1",
            zfi_type_text(type, c->dtype, &c->shape));
    return status;
}

static void zfi_grad_sum_to(zf_grad *c)
{
    c->dx[0] = zf_broadcast(c->dy, zf_tensor_shape(c->x[0]));
}

/* ------------------------------------------------------------------------------ kernels */

/* The dimensions of x in a sum. Dimensions of size 1 are dropped; neighbouring dimensions are
 * merged where both are kept or both summed.
 *
 *     out[kept...,c] = sum over reduced..., r of x[kept...,reduced...,r,c]
 *
 * where kept and reduced dimensions interleave. `columns` is the number of c: neighbours both in x
 * and in out; 1 when x's last dimension is summed. */
typedef struct zfi_sums {
    zfi_walk kept, reduced;     /* steps in x */
    int64_t rows, row, columns; /* rows: the number of r; row: the step from one to the next */
    int64_t kept_count, reduced_count;
    int64_t strip; /* columns of a task */
} zfi_sums;

enum { ZFI_SUM_BLOCK = 1024, ZFI_STRIP = 1024 };

/* Puts a dimension before those that a walk has. */
static void zfi_walk_push(zfi_walk *w, int64_t *count, int64_t n, int64_t step)
{
    for (int axis = w->rank++; axis > 0; axis--) {
        w->dims[axis] = w->dims[axis - 1];
        w->strides[0][axis] = w->strides[0][axis - 1];
    }
    w->dims[0] = n, w->strides[0][0] = step;
    w->arrays = 1;
    *count *= n;
}

/* The columns of a task that sums over rows: at least sixteen tasks, none below 16 thousand
 * elements, each a whole number of cache lines. */
static int64_t zfi_sum_strip(int64_t rows, int64_t columns, zf_dtype dtype)
{
    int64_t line = (int64_t)(64 / zf_dtype_size(dtype)),
            strip = zfi_row_grain(rows) > columns / 16 ? zfi_row_grain(rows) : columns / 16;
    strip = (strip + line - 1) / line * line;
    return strip < line ? line : strip < ZFI_STRIP ? strip : ZFI_STRIP;
}

/* The sums of a sum_to or sum. */
static zfi_sums zfi_sums_of(const zf_launch *l)
{
    const zf_shape *x = &l->args[0].shape, *out = &l->out.shape;
    zfi_sums s = {.columns = 1, .rows = 1, .kept_count = 1, .reduced_count = 1};
    int64_t step = 1, n;
    bool keep, inner = true, had_rows = false;
    for (int axis = x->rank - 1; axis >= 0;) {
        int64_t from = step;
        bool group = true;
        /* The next group of dimensions: n elements, `from` apart. */
        for (n = 1, keep = false; axis >= 0; axis--) {
            bool kept = l->op == ZF_OP_sum ? axis != ZF_INT(l, sum, axis)
                                           : axis >= x->rank - out->rank &&
                                                 out->dims[axis - x->rank + out->rank] != 1;
            if (x->dims[axis] == 1) continue;
            if (!group && kept != keep) break;
            group = false;
            keep = kept;
            n *= x->dims[axis];
            step *= x->dims[axis];
        }
        if (group) break;
        if (keep && inner) s.columns = n;
        else if (keep) zfi_walk_push(&s.kept, &s.kept_count, n, from);
        else if (!had_rows) s.rows = n, s.row = from, had_rows = true;
        else zfi_walk_push(&s.reduced, &s.reduced_count, n, from);
        inner = false;
    }
    s.strip = zfi_sum_strip(s.rows, s.columns, l->args[0].dtype);
    return s;
}

/* The definition: elements [first, last) of out, each summed in index order, in double or of
 * integers in 64 bits. */
static void zfi_sums_reference(const zf_launch *l, int64_t first, int64_t last)
{
    zfi_sums s = zfi_sums_of(l);
    const bool integer = zfi_is_integer(l->out.dtype);
    for (int64_t i = first; i < last; i++) {
        double sum = 0;
        uint64_t whole = 0;
        zfi_walk_seek(&s.kept, i / s.columns);
        if (s.reduced_count) zfi_walk_seek(&s.reduced, 0);
        for (int64_t k = 0; k < s.reduced_count; k++, zfi_walk_next(&s.reduced))
            for (int64_t r = 0; r < s.rows; r++) {
                const int64_t at = s.kept.at[0] + s.reduced.at[0] + r * s.row + i % s.columns;
                if (integer) whole += (uint64_t)zfi_get_integer(&l->args[0], at);
                else sum += zfi_get(&l->args[0], at);
            }
        if (integer) zfi_set_integer(&l->out, i, (int64_t)whole);
        else zfi_set(&l->out, i, sum);
    }
}

/* The fast kernels may run. */
static bool zfi_sums_are_fast(const zf_launch *l)
{
    return zfi_is_float(l->out.dtype) && zfi_fast_or_half(l);
}

/* sum[c] += x[r,c] over the rows r in order, four rows at a time. */
#define ZFI_ADD_ROWS(name, type, wide)                                                             \
    ZFI_BODY void name##_body(zfi_isa isa, double *sum, const type *x, int64_t rows, int64_t row,  \
                              int64_t columns)                                                     \
    {                                                                                              \
        int64_t r = 0;                                                                             \
        (void)isa;                                                                                 \
        for (; r + 4 <= rows; r += 4) {                                                            \
            const type *x0 = x + r * row, *x1 = x0 + row, *x2 = x1 + row, *x3 = x2 + row;          \
            ZFI_VECTOR                                                                             \
            for (int64_t c = 0; c < columns; c++)                                                  \
                sum[c] += ((double)wide(x0[c]) + (double)wide(x1[c])) +                            \
                          ((double)wide(x2[c]) + (double)wide(x3[c]));                             \
        }                                                                                          \
        for (; r < rows; r++) {                                                                    \
            const type *x0 = x + r * row;                                                          \
            ZFI_VECTOR                                                                             \
            for (int64_t c = 0; c < columns; c++) sum[c] += (double)wide(x0[c]);                   \
        }                                                                                          \
    }                                                                                              \
    ZFI_KERNEL(name, (double *sum, const type *x, int64_t rows, int64_t row, int64_t columns),     \
               (sum, x, rows, row, columns))

ZFI_ADD_ROWS(zfi_add_rows_f32, float, )
ZFI_ADD_ROWS(zfi_add_rows_bf16, uint16_t, zfi_bf16_to_f32)
ZFI_ADD_ROWS(zfi_add_rows_f16, uint16_t, zfi_f16_to_f32)

/* The same for x of any dtype but f64, from element `at` on. */
static void zfi_add_rows(zfi_isa isa, double *sum, const zf_array *x, int64_t at, int64_t rows,
                         int64_t row, int64_t columns)
{
    const void *from = zfi_element(x->data, x->dtype, at);
    if (x->dtype == ZF_BF16) zfi_add_rows_bf16(isa, sum, from, rows, row, columns);
    else if (x->dtype == ZF_F16) zfi_add_rows_f16(isa, sum, from, rows, row, columns);
    else zfi_add_rows_f32(isa, sum, from, rows, row, columns);
}

/* The sum of x[at..at+n), at most one block. */
static float zfi_sum_block(zfi_isa isa, const zf_array *x, int64_t at, int64_t n)
{
    float aside[ZFI_SUM_BLOCK];
    if (x->dtype == ZF_F32) return zfi_vsum(isa, (const float *)x->data + at, n);
    zfi_widen(isa, aside, x->dtype, zfi_element(x->data, x->dtype, at), n);
    return zfi_vsum(isa, aside, n);
}

/* sum plus x[at..at+n); blocks are added in order. */
static double zfi_sum_blocks(zfi_isa isa, double sum, const zf_array *x, int64_t at, int64_t n)
{
    for (int64_t i = 0; i < n; i += ZFI_SUM_BLOCK)
        sum += zfi_sum_block(isa, x, at + i, n - i < ZFI_SUM_BLOCK ? n - i : ZFI_SUM_BLOCK);
    return sum;
}

/* Elements [at, at + n), n <= ZFI_STRIP, of an array of f32, bf16 or f16 from their sums. */
static void zfi_put_sums(zfi_isa isa, const zf_array *to, int64_t at, const double *sum, int64_t n)
{
    float y[ZFI_STRIP];
    for (int64_t i = 0; i < n; i++) y[i] = (float)sum[i];
    zfi_narrow(isa, zfi_element_of(to->data, to->dtype, at), to->dtype, y, n);
}

/* Tasks [first, last). The number of a task is kept * strips + strip. */
static void zfi_sums_fast(const zf_launch *l, int64_t first, int64_t last)
{
    zfi_isa isa = zfi_cpu_of(l)->isa;
    zfi_sums s = zfi_sums_of(l);
    int64_t strips = (s.columns + s.strip - 1) / s.strip;
    for (int64_t task = first; task < last; task++) {
        int64_t kept = task / strips, c = task % strips * s.strip,
                n = s.columns - c < s.strip ? s.columns - c : s.strip;
        double sum[ZFI_STRIP];
        memset(sum, 0, (size_t)n * sizeof *sum);
        zfi_walk_seek(&s.kept, kept);
        if (s.reduced_count) zfi_walk_seek(&s.reduced, 0);
        for (int64_t k = 0; k < s.reduced_count; k++, zfi_walk_next(&s.reduced)) {
            int64_t at = c + s.kept.at[0] + s.reduced.at[0];
            if (s.row == 1) sum[0] = zfi_sum_blocks(isa, sum[0], &l->args[0], at, s.rows);
            else zfi_add_rows(isa, sum, &l->args[0], at, s.rows, s.row, n);
        }
        zfi_put_sums(isa, &l->out, kept * s.columns + c, sum, n);
    }
}

/* One long row: writes the sums of blocks [first, last) to scratch. */
static void zfi_sum_row(const zf_launch *l, int64_t first, int64_t last)
{
    int64_t n = zfi_count(&l->args[0]);
    for (int64_t block = first; block < last; block++) {
        int64_t i = block * ZFI_SUM_BLOCK;
        ((float *)l->scratch)[block] = zfi_sum_block(zfi_cpu_of(l)->isa, &l->args[0], i,
                                                     n - i < ZFI_SUM_BLOCK ? n - i : ZFI_SUM_BLOCK);
    }
}

/* The number of blocks of a single long row, whose block sums all workers compute; 0 where x is not
 * such a row. */
static int64_t zfi_sum_row_blocks(const zf_launch *l, const zfi_sums *s)
{
    bool row = s->row == 1 && s->kept_count == 1 && s->reduced_count == 1 && s->rows > ZFI_GRAIN;
    return row && zfi_sums_are_fast(l) ? (s->rows + ZFI_SUM_BLOCK - 1) / ZFI_SUM_BLOCK : 0;
}

static size_t zfi_scratch_sum_to(const zf_launch *l)
{
    zfi_sums s = zfi_sums_of(l);
    return (size_t)zfi_sum_row_blocks(l, &s) * sizeof(float);
}

static zf_status zfi_cpu_sum_to(const zf_launch *l)
{
    zfi_sums s = zfi_sums_of(l);
    int64_t count = zfi_count(&l->out), blocks = zfi_sum_row_blocks(l, &s),
            terms = s.rows * s.reduced_count;
    double sum = 0;
    if (!terms && count) {
        memset(l->out.data, 0, (size_t)count * zf_dtype_size(l->out.dtype));
    } else if (blocks && l->scratch) { /* without scratch, one worker computes the same sum below */
        zfi_split(l, blocks, ZFI_GRAIN / ZFI_SUM_BLOCK, zfi_sum_row);
        for (int64_t block = 0; block < blocks; block++) sum += ((const float *)l->scratch)[block];
        zfi_set(&l->out, 0, (float)sum);
    } else if (zfi_sums_are_fast(l) && count) {
        int64_t strips = (s.columns + s.strip - 1) / s.strip,
                wide = s.columns < s.strip ? s.columns : s.strip;
        zfi_split(l, s.kept_count * strips, zfi_row_grain(terms * wide), zfi_sums_fast);
    } else {
        zfi_split(l, count, zfi_row_grain(terms), zfi_sums_reference);
    }
    return ZF_OK;
}

/* sums = the sum_to of x, at the end of another operator's launch. */
static zf_status zfi_cpu_sum_rows(const zf_launch *l, const zf_array *x, const zf_array *sums)
{
    zf_launch of = *l;
    of.op = ZF_OP_sum_to;
    of.args = x, of.arg_count = 1, of.out = *sums;
    of.saved = NULL, of.scratch = NULL;
    return zfi_cpu_sum_to(&of);
}

/* -------------------------------------------------------------------------------------- cuts */

static void zfi_cut_sum_to(const zf_graph *g, const zfi_node *node, zfi_cut_text *t)
{
    const zf_shape *from = &g->nodes[node->args[0]].shape;
    zfi_cut_put_dims(t, zfi_cut_order, from->rank, ' ', 0, 0);
    zfi_cut_put(t, "-> ");
    zfi_cut_put_small(t, &node->shape, from, '+', 0);
    zfi_cut_put(t, "{shape}");
}

/* ------------------------------------------------------------------------------- records */

ZFI_SAME_ATTRIBUTE(sum_to, reshape, shape)
ZFI_OPERATOR(sum_to, .infer = zfi_infer_sum_to, .grad = zfi_grad_sum_to, .cpu = zfi_cpu_sum_to,
             .scratch = zfi_scratch_sum_to, .cut = zfi_cut_sum_to,
             .parts = ZFI_PARTS_SUMMED_TO, .traits = ZF_OP_READS_HALF)
