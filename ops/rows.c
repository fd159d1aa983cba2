/* Rows of a table by index: gather_rows reads them, scatter_rows adds to them.
 *
 *     %3 = gather_rows %1, %2 : f32[4,8,256]
 *          out[i...,:] = table[index[i...],:]
 *     %5 = scatter_rows %4, %2 {rows=1000} : f32[1000,256]
 *          out[r,:] = sum of dy[i...,:] where index[i...] = r
 *
 * The table has rank 1 or more; the index is i32 or i64 of any shape. Each operator is the gradient
 * of the other; saved: the index. With padded=true, the row `padding` of the table gets no gradient
 * (an embedding of padding):
 *
 *     %3 = gather_rows %1, %2 {padded=true padding=3} : f32[4,8,256]      the same numbers
 *     %5 = scatter_rows %4, %2 {rows=1000 padded=true padding=3} : f32[1000,256]
 *          out[3,:] = 0
 *
 * With of=n, the table has the rows from `first` on of one of n rows (tile.c): others are
 * read as -0, to which adding what another part has leaves its bits, and get no gradient. padding is
 * a row of all n.
 *
 *     %3 = gather_rows %1, %2 {first=4 of=12} : f32[6,256]     %1 has rows 4 to 7 of 12, say
 *     %5 = scatter_rows %4, %2 {rows=4 first=4 of=12} : f32[4,256]
 *
 * The gradient of a table {lazy=true} is one of the rows that are read (lazy_rows.c).
 *
 * An index outside the table is an error of the step. scatter_rows adds in the order of the index,
 * starting from 0, with any number of threads, since threads split the columns and not the rows:
 *
 *     index  3 1 3            out | worker 0 | worker 1 | ...
 *                               1 |   dy[1]  |   dy[1]  |
 *                               3 | dy[0]+[2]| dy[0]+[2]|
 */

static zf_status zfi_infer_index(const zfi_infer *c)
{
    if (!zfi_is_integer(c->args[1]->dtype))
        return zfi_infer_fail(c, ZF_ERR_DTYPE, "the index must be i32 or i64");
    return ZF_OK;
}

/* Checks the attributes padded, which is number `first`, and padding: padding is a row of the
 * table. */
static zf_status zfi_infer_padding(const zfi_infer *c, int first, int64_t rows)
{
    bool padded = (c->attributes + first)->i;
    int64_t padding = (c->attributes + first + 1)->i;
    if (padded ? padding >= 0 && padding < rows : !padding) return ZF_OK;
    if (!padded)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "padding = %lld is only for padded=true",
                              (long long)padding);
    return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "padding = %lld must be one of the %lld rows",
                          (long long)padding, (long long)rows);
}

/* Checks the attributes first, which is number `at`, and of: `rows` rows from `first` on are rows
 * of a table of `of`. */
static zf_status zfi_infer_part(const zfi_infer *c, int at, int64_t rows)
{
    const int64_t first = (c->attributes + at)->i, of = (c->attributes + at + 1)->i;
    if (of ? first >= 0 && rows <= of && first <= of - rows : !first) return ZF_OK;
    return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "%lld rows from row %lld on are not in %lld",
                          (long long)rows, (long long)first, (long long)of);
}

static zf_status zfi_infer_gather_rows(zfi_infer *c)
{
    const zf_shape *table = &c->args[0]->shape;
    const int64_t of = ZF_INT(c, gather_rows, of);
    zf_status status = zfi_infer_index(c);
    if (!status && table->rank)
        status = zfi_infer_padding(c, ZF_AT_gather_rows_padded, of ? of : table->dims[0]);
    if (!status && table->rank)
        status = zfi_infer_part(c, ZF_AT_gather_rows_first, table->dims[0]);
    if (status) return status;
    if (!zfi_is_float(c->args[0]->dtype))
        return zfi_infer_fail(c, ZF_ERR_DTYPE, "the table must be float: f32, bf16, f16 or f64");
    if (table->rank < 1)
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "the table needs one dimension or more");
    c->dtype = c->args[0]->dtype;
    c->shape = c->args[1]->shape;
    if (c->shape.rank + table->rank - 1 > ZF_MAX_RANK)
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "the result has more than %d dimensions",
                              ZF_MAX_RANK);
    for (int axis = 1; axis < table->rank; axis++)
        c->shape.dims[c->shape.rank++] = table->dims[axis];
    return ZF_OK;
}

static zf_status zfi_infer_scatter_rows(zfi_infer *c)
{
    const zf_shape *dy = &c->args[0]->shape, *index = &c->args[1]->shape;
    zf_status status = zfi_infer_index(c);
    bool fits = index->rank <= dy->rank;
    if (status) return status;
    if (!zfi_is_float(c->args[0]->dtype))
        return zfi_infer_fail(c, ZF_ERR_DTYPE, "operand 0 must be float: f32, bf16, f16 or f64");
    for (int axis = 0; axis < index->rank && fits; axis++)
        fits = dy->dims[axis] == index->dims[axis];
    if (!fits)
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "operand 0 must have the index's dimensions first");
    if (dy->rank - index->rank + 1 > ZF_MAX_RANK)
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "the result has more than %d dimensions",
                              ZF_MAX_RANK);
    if (ZF_INT(c, scatter_rows, rows) < 0)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "rows = %lld must not be negative",
                              (long long)ZF_INT(c, scatter_rows, rows));
    status = zfi_infer_padding(c, ZF_AT_scatter_rows_padded,
                               ZF_INT(c, scatter_rows, of) ? ZF_INT(c, scatter_rows, of)
                                                           : ZF_INT(c, scatter_rows, rows));
    if (!status)
        status = zfi_infer_part(c, ZF_AT_scatter_rows_first, ZF_INT(c, scatter_rows, rows));
    if (status) return status;
    c->dtype = c->args[0]->dtype;
    c->shape = (zf_shape){1, {ZF_INT(c, scatter_rows, rows)}};
    for (int axis = index->rank; axis < dy->rank; axis++)
        c->shape.dims[c->shape.rank++] = dy->dims[axis];
    return ZF_OK;
}

static void zfi_grad_gather_rows(zf_grad *c)
{
    int64_t rows = zf_tensor_shape(c->x[0]).dims[0];
    if (c->need[0] && zfi_is_lazy_table(zfi_node_of(c->x[0]))) {
        c->rows = zfi_op(distinct_rows,
                         zfi_with({.i = rows}, ZF_ATTRIBUTE(c, gather_rows, padded),
                                  ZF_ATTRIBUTE(c, gather_rows, padding)),
                         c->x[1]);
        c->dx[0] = zf_sum_rows(c->dy, c->x[1], c->rows);
    } else if (c->need[0]) {
        c->dx[0] = zfi_op(scatter_rows,
                          zfi_with({.i = rows}, ZF_ATTRIBUTE(c, gather_rows, padded),
                                   ZF_ATTRIBUTE(c, gather_rows, padding),
                                   ZF_ATTRIBUTE(c, gather_rows, first),
                                   ZF_ATTRIBUTE(c, gather_rows, of)),
                          c->dy, c->x[1]);
    }
}

static void zfi_grad_scatter_rows(zf_grad *c)
{
    zf_shape shape = zf_tensor_shape(c->x[1]);
    zf_tensor padding, dx;
    if (!c->need[0]) return;
    dx = zfi_op(gather_rows,
                zfi_with({.i = false}, {.i = 0}, ZF_ATTRIBUTE(c, scatter_rows, first),
                         ZF_ATTRIBUTE(c, scatter_rows, of)),
                c->dy, c->x[1]);
    if (ZF_INT(c, scatter_rows, padded)) { /* dy of the padding row was not added */
        padding = zf_constant(c->graph, zf_tensor_dtype(c->x[1]), ZF_SCALAR,
                              (double)ZF_INT(c, scatter_rows, padding));
        padding = zf_equal(c->x[1], padding);
        while (shape.rank < zf_tensor_shape(dx).rank) shape.dims[shape.rank++] = 1;
        dx = zf_where(zf_reshape(padding, shape),
                      zf_constant(c->graph, zf_tensor_dtype(dx), ZF_SCALAR, 0), dx);
    }
    c->dx[0] = dx;
}

/* Checks that every element of operand 1 is one of so many rows. */
static zf_status zfi_check_rows(const zf_launch *l, const char *name, int64_t rows)
{
    const zf_array *index = &l->args[1];
    for (int64_t i = 0, count = zfi_count(index); i < count; i++) {
        int64_t row = zfi_get_integer(index, i);
        if (row < 0 || row >= rows)
            return zfi_fail(l->error, ZF_ERR_ARGUMENT,
                            "%s %%%d: element %lld of the index is %lld; it must be at least 0 and "
                            "less than %lld, the "
                            "number of rows",
                            name, (int)l->node, (long long)i, (long long)row, (long long)rows);
    }
    return ZF_OK;
}

/* The same for the rows of a table. */
static zf_status zfi_check_index(const zf_launch *l, const char *name, const zf_array *table)
{
    return zfi_check_rows(l, name, table->shape.dims[0]);
}

/* The number of elements in a row of a table. */
static int64_t zfi_row_width(const zf_array *table)
{
    return zfi_span(&table->shape, 1, table->shape.rank);
}

/* Writes n numbers -0. */
static void zfi_minus_0(void *to, zf_dtype dtype, int64_t n)
{
    const zf_array out = {to, dtype, {1, {n}}};
    const size_t size = zf_dtype_size(dtype);
    if (n) zfi_set(&out, 0, -0.0);
    for (int64_t done = 1, count; done < n; done += count) {
        count = zfi_min(done, n - done);
        memcpy((char *)to + (size_t)done * size, to, (size_t)count * size);
    }
}

/* Copies bytes, for every dtype. */
static void zfi_gather_range(const zf_launch *l, int64_t first, int64_t last)
{
    const char *table = l->args[0].data;
    char *out = l->out.data;
    size_t bytes = (size_t)zfi_row_width(&l->args[0]) * zf_dtype_size(l->out.dtype);
    for (int64_t i = first; i < last; i++) {
        const int64_t row = zfi_get_integer(&l->args[1], i) - ZF_INT(l, gather_rows, first);
        if (row < 0 || row >= l->args[0].shape.dims[0])
            zfi_minus_0(out + (size_t)i * bytes, l->out.dtype, zfi_row_width(&l->args[0]));
        else memcpy(out + (size_t)i * bytes, table + (size_t)row * bytes, bytes);
    }
}

static zf_status zfi_cpu_gather_rows(const zf_launch *l)
{
    const int64_t of = ZF_INT(l, gather_rows, of);
    zf_status status = zfi_check_rows(l, "gather_rows", of ? of : l->args[0].shape.dims[0]);
    int64_t width = zfi_row_width(&l->args[0]);
    if (!status && width)
        zfi_split(l, zfi_count(&l->args[1]), zfi_row_grain(width), zfi_gather_range);
    return status;
}

enum { ZFI_ZERO_GRAIN = 1 << 20, ZFI_SCATTER_GRAIN = 64, ZFI_SCATTER_FAST_GRAIN = 128 };

static void zfi_zero_range(const zf_launch *l, int64_t first, int64_t last)
{
    memset((char *)l->out.data + first, 0, (size_t)(last - first));
}

/* The row to which scatter_rows adds term i; -1: none. */
static int64_t zfi_scatter_row(const zf_launch *l, int64_t i)
{
    const int64_t of = zfi_get_integer(&l->args[1], i), row = of - ZF_INT(l, scatter_rows, first);
    if (row < 0 || row >= ZF_INT(l, scatter_rows, rows)) return -1;
    return ZF_INT(l, scatter_rows, padded) && of == ZF_INT(l, scatter_rows, padding) ? -1 : row;
}

/* Columns [first, last), at most ZFI_SCATTER_GRAIN: each row is summed in double and rounded
 * once. */
static void zfi_scatter_reference(const zf_launch *l, int64_t first, int64_t last)
{
    const zf_array *dy = &l->args[0];
    int64_t count = zfi_count(&l->args[1]), width = zfi_row_width(&l->out);
    for (int64_t i = 0; i < count; i++) {
        double sum[ZFI_SCATTER_GRAIN] = {0};
        int64_t row = zfi_scatter_row(l, i), j = 0;
        if (row < 0) continue;
        while (j < i && zfi_scatter_row(l, j) != row) j++;
        if (j < i) continue; /* this row was summed before */
        for (; j < count; j++)
            for (int64_t k = first; k < last && zfi_scatter_row(l, j) == row; k++)
                sum[k - first] += zfi_get(dy, j * width + k);
        for (int64_t k = first; k < last; k++) zfi_set(&l->out, row * width + k, sum[k - first]);
    }
}

static void zfi_scatter_fast(const zf_launch *l, int64_t first, int64_t last)
{
    const float *dy = l->args[0].data;
    float *out = l->out.data;
    int64_t count = zfi_count(&l->args[1]), width = zfi_row_width(&l->out);
    for (int64_t i = 0; i < count; i++) {
        const int64_t row = zfi_scatter_row(l, i);
        float *to = out + (row < 0 ? 0 : row) * width + first;
        if (row < 0) continue;
        zfi_binary_run(zfi_cpu_of(l)->isa, ZF_OP_add, to, to, dy + i * width + first, true, true,
                       last - first);
    }
}

/* bf16 and f16: a row is summed in f32 and rounded once. Its terms form a list in scratch,
 * ascending:
 *
 *     int64 first[rows]: the first term of a row, or -1; next[count]: the term after each, or -1
 */
static size_t zfi_scratch_scatter_rows(const zf_launch *l)
{
    size_t bytes;
    if (!zfi_is_half(l->out.dtype) || zfi_cpu_of(l)->reference) return 0;
    return zfi_add_size((size_t)ZF_INT(l, scatter_rows, rows), (size_t)zfi_count(&l->args[1]),
                        &bytes) &&
                   zfi_mul_size(bytes, sizeof(int64_t), &bytes)
               ? bytes
               : SIZE_MAX;
}

static void zfi_scatter_lists(const zf_launch *l)
{
    int64_t *first = l->scratch, *next = first + ZF_INT(l, scatter_rows, rows);
    for (int64_t row = 0; row < ZF_INT(l, scatter_rows, rows); row++) first[row] = -1;
    for (int64_t i = zfi_count(&l->args[1]) - 1; i >= 0; i--) {
        const int64_t row = zfi_scatter_row(l, i);
        if (row < 0) continue;
        next[i] = first[row];
        first[row] = i;
    }
}

/* Columns [first, last), at most ZFI_SCATTER_FAST_GRAIN. */
static void zfi_scatter_half(const zf_launch *l, int64_t first, int64_t last)
{
    zfi_isa isa = zfi_cpu_of(l)->isa;
    zf_dtype dtype = l->out.dtype;
    const int64_t *lists = l->scratch, *next = lists + ZF_INT(l, scatter_rows, rows);
    int64_t width = zfi_row_width(&l->out), n = last - first;
    for (int64_t row = 0; row < ZF_INT(l, scatter_rows, rows); row++) {
        float sum[ZFI_SCATTER_FAST_GRAIN] = {0}, term[ZFI_SCATTER_FAST_GRAIN];
        if (lists[row] < 0) continue;
        for (int64_t i = lists[row]; i >= 0; i = next[i]) {
            zfi_widen(isa, term, dtype, zfi_element(l->args[0].data, dtype, i * width + first), n);
            zfi_binary_run(isa, ZF_OP_add, sum, sum, term, true, true, n);
        }
        zfi_narrow(isa, zfi_element_of(l->out.data, dtype, row * width + first), dtype, sum, n);
    }
}

static zf_status zfi_cpu_scatter_rows(const zf_launch *l)
{
    const int64_t of = ZF_INT(l, scatter_rows, of);
    zf_status status = zfi_check_rows(l, "scatter_rows", of ? of : l->out.shape.dims[0]);
    int64_t width = zfi_row_width(&l->out);
    if (status || !zfi_count(&l->out)) return status;
    zfi_split(l, zfi_count(&l->out) * (int64_t)zf_dtype_size(l->out.dtype), ZFI_ZERO_GRAIN,
              zfi_zero_range);
    if (zfi_fast(l)) {
        zfi_split(l, width, ZFI_SCATTER_FAST_GRAIN, zfi_scatter_fast);
    } else if (zfi_fast_or_half(l)) {
        zfi_scatter_lists(l);
        zfi_split(l, width, ZFI_SCATTER_FAST_GRAIN, zfi_scatter_half);
    } else {
        zfi_split(l, width, ZFI_SCATTER_GRAIN, zfi_scatter_reference);
    }
    return ZF_OK;
}

/* Of the table, only the rows that are read count. */
static double zfi_bytes_of_rows(const zf_launch *l)
{
    double out = (double)zfi_array_bytes(&l->out), bytes = out;
    for (int32_t k = 0; k < l->arg_count; k++)
        bytes += fmin(out, (double)zfi_array_bytes(&l->args[k]));
    return bytes;
}

/* ------------------------------------------------------------------------------- records */

ZFI_OPERATOR(gather_rows, .infer = zfi_infer_gather_rows, .grad = zfi_grad_gather_rows,
             .cpu = zfi_cpu_gather_rows, .bytes = zfi_bytes_of_rows,
             .cuts = "v? d, ... -> ... d {first+v of=v}",
             .linear_in = 1, .traits = ZF_OP_READS_HALF)
ZFI_OPERATOR(scatter_rows, .infer = zfi_infer_scatter_rows, .grad = zfi_grad_scatter_rows,
             .cpu = zfi_cpu_scatter_rows, .scratch = zfi_scratch_scatter_rows,
             .cuts = "... d, ... -> v? d {rows/v first+v of=v}",
             .linear_in = 1, .traits = ZF_OP_READS_HALF)
