/* distinct_rows, sum_rows, collect: the gradient of some rows of a table, in place of one of all
 * (zf_param_group.lazy_rows).
 *
 *     %3 = distinct_rows %2 {rows=1000} : i32[6]      index  7 3 7 0 3 7     0 3 7 -1 -1 -1
 *     %4 = sum_rows %1, %2, %3 : f32[6,8]             of f32[6,8]: out[k,:] = sum of x[i,:] where
 *                                                     index[i] = rows[k]; of a free row 0
 *     %9 = collect %8, %7 {parts=2} : f32[96]         x becomes part `micro-batch` of the
 *                                                     accumulator %7; y is %7
 *
 * The index is i32 or i64 of any shape. distinct_rows gives its numbers once each, ascending, then
 * -1 in what is left; -1 in the index is no row, and with padded=true `padding` is none. Another
 * number that is none of 0 to rows - 1 is an error of the step. The result is i64 where rows
 * are 2^31 or more. sum_rows adds in the order of the index, from 0 on, with any number of
 * threads, since threads split rows; bf16 and f16 are summed in f32 and rounded once. Positions
 * whose row is not in `rows` are left out. So both take their own results: rows and sums of several
 * parts, side by side, become one list.
 *
 *     rows  0 3 7 -1 ...  |  1 3 -1 -1 ...                 0 1 3 7 -1 ...
 *     sums  a b c 0       |  d e 0  0           ->         a d b+e c 0
 */

static zf_status zfi_infer_distinct_rows(zfi_infer *c)
{
    const int64_t rows = ZF_INT(c, distinct_rows, rows);
    if (!zfi_is_integer(c->args[0]->dtype))
        return zfi_infer_fail(c, ZF_ERR_DTYPE, "the index must be i32 or i64");
    if (rows < 0)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "rows = %lld must not be negative",
                              (long long)rows);
    c->dtype = rows > INT32_MAX ? ZF_I64 : ZF_I32;
    c->shape = ZF_SHAPE(zfi_node_count(c->args[0]));
    return zfi_infer_padding(c, ZF_AT_distinct_rows_padded, rows);
}

static zf_status zfi_infer_sum_rows(zfi_infer *c)
{
    const zf_shape *x = &c->args[0]->shape, *index = &c->args[1]->shape, *rows = &c->args[2]->shape;
    zf_status status = zfi_infer_index(c);
    bool fits = index->rank <= x->rank;
    if (status) return status;
    if (!zfi_is_float(c->args[0]->dtype))
        return zfi_infer_fail(c, ZF_ERR_DTYPE, "operand 0 must be float: f32, bf16, f16 or f64");
    if (!zfi_is_integer(c->args[2]->dtype) || rows->rank != 1)
        return zfi_infer_fail(c, ZF_ERR_SHAPE,
                              "operand 2, the rows, must be i32 or i64 of one dimension");
    for (int axis = 0; axis < index->rank && fits; axis++)
        fits = x->dims[axis] == index->dims[axis];
    if (!fits || x->rank - index->rank + 1 > ZF_MAX_RANK)
        return zfi_infer_fail(c, ZF_ERR_SHAPE,
                              "operand 0 must have the index's dimensions first, and with one "
                              "in their place at most %d",
                              ZF_MAX_RANK);
    c->dtype = c->args[0]->dtype;
    c->shape = *rows;
    for (int axis = index->rank; axis < x->rank; axis++)
        c->shape.dims[c->shape.rank++] = x->dims[axis];
    return ZF_OK;
}

static zf_status zfi_infer_collect(zfi_infer *c)
{
    const int64_t parts = ZF_INT(c, collect, parts), count = zfi_node_count(c->args[0]);
    if (parts < 1 || (count && parts > INT64_MAX / 8 / count))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "parts is %lld; it must be 1 or more",
                              (long long)parts);
    c->dtype = c->args[0]->dtype;
    c->shape = ZF_SHAPE(count * parts);
    return zfi_infer_into(c, ZF_OP_accumulator);
}

/* ------------------------------------------------------------------------------ kernels */

enum { ZFI_DISTINCT_BITS = 11, ZFI_DISTINCT_DIGITS = 1 << ZFI_DISTINCT_BITS };

/* The rows of the index, and as much room again. */
static size_t zfi_scratch_distinct_rows(const zf_launch *l)
{
    size_t bytes;
    return zfi_mul_size((size_t)zfi_count(&l->args[0]), 2 * sizeof(int64_t), &bytes) ? bytes
                                                                                     : SIZE_MAX;
}

/* Sorts count numbers below `end`, with as much room after them; returns where they are then. */
static int64_t *zfi_sort_rows(int64_t *from, int64_t count, int64_t end)
{
    int64_t *to = from + count;
    for (int shift = 0; shift < 63 && (end - 1) >> shift > 0; shift += ZFI_DISTINCT_BITS) {
        int64_t places[ZFI_DISTINCT_DIGITS] = {0}, *was = from, sum = 0;
        for (int64_t i = 0; i < count; i++) places[from[i] >> shift & (ZFI_DISTINCT_DIGITS - 1)]++;
        for (int d = 0; d < ZFI_DISTINCT_DIGITS; d++) {
            const int64_t n = places[d];
            places[d] = sum, sum += n;
        }
        for (int64_t i = 0; i < count; i++)
            to[places[from[i] >> shift & (ZFI_DISTINCT_DIGITS - 1)]++] = from[i];
        from = to, to = was;
    }
    return from;
}

static zf_status zfi_cpu_distinct_rows(const zf_launch *l)
{
    const int64_t rows = ZF_INT(l, distinct_rows, rows), count = zfi_count(&l->args[0]),
                  none = ZF_INT(l, distinct_rows, padded) ? ZF_INT(l, distinct_rows, padding) : -1;
    int64_t *sorted = l->scratch, there = 0, made = 0;
    for (int64_t i = 0; i < count; i++) {
        const int64_t row = zfi_get_integer(&l->args[0], i);
        if (row < -1 || row >= rows)
            return zfi_fail(l->error, ZF_ERR_ARGUMENT,
                            "distinct_rows %%%d: element %lld of the index is %lld; it must be at "
                            "least -1 and less than %lld, the number of rows",
                            (int)l->node, (long long)i, (long long)row, (long long)rows);
        if (row >= 0 && row != none) sorted[there++] = row;
    }
    sorted = zfi_sort_rows(sorted, there, rows);
    for (int64_t i = 0; i < there; i++)
        if (!i || sorted[i] != sorted[i - 1]) zfi_set_integer(&l->out, made++, sorted[i]);
    for (; made < count; made++) zfi_set_integer(&l->out, made, -1);
    return ZF_OK;
}

/* The place of a row in a sorted list that ends with -1; -1: it is not there. */
static int64_t zfi_place_in_rows(const zf_array *rows, int64_t row)
{
    const int64_t count = zfi_count(rows);
    int64_t low = 0, high = count;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if ((uint64_t)zfi_get_integer(rows, middle) < (uint64_t)row) low = middle + 1;
        else high = middle;
    }
    return row >= 0 && low < count && zfi_get_integer(rows, low) == row ? low : -1;
}

/* The terms of a row form a list in scratch, ascending:
 *
 *     int64 next[count]: the term after each, or -1; first[rows]: the first term of a row, or -1
 */
static size_t zfi_scratch_sum_rows(const zf_launch *l)
{
    size_t bytes;
    return zfi_add_size((size_t)zfi_count(&l->args[1]), (size_t)zfi_count(&l->args[2]), &bytes) &&
                   zfi_mul_size(bytes, sizeof(int64_t), &bytes)
               ? bytes
               : SIZE_MAX;
}

/* Notes the place of each term. */
static void zfi_sum_rows_places(const zf_launch *l, int64_t first, int64_t last)
{
    int64_t *next = l->scratch;
    for (int64_t i = first; i < last; i++)
        next[i] = zfi_place_in_rows(&l->args[2], zfi_get_integer(&l->args[1], i));
}

/* Makes lists of the places. */
static void zfi_sum_rows_lists(const zf_launch *l)
{
    const int64_t count = zfi_count(&l->args[1]), rows = zfi_count(&l->args[2]);
    int64_t *next = l->scratch, *first = next + count;
    for (int64_t k = 0; k < rows; k++) first[k] = -1;
    for (int64_t i = count; i-- > 0;) {
        const int64_t place = next[i];
        if (place >= 0) next[i] = first[place], first[place] = i;
    }
}

/* Rows [first, last): each is summed in double and rounded once. */
static void zfi_sum_rows_reference(const zf_launch *l, int64_t first, int64_t last)
{
    const int64_t width = zfi_row_width(&l->out), *next = l->scratch,
                  *terms = next + zfi_count(&l->args[1]);
    for (int64_t k = first; k < last; k++)
        for (int64_t n = 0; n < width; n++) {
            double sum = 0;
            for (int64_t i = terms[k]; i >= 0; i = next[i])
                sum += zfi_get(&l->args[0], i * width + n);
            zfi_set(&l->out, k * width + n, sum);
        }
}

enum { ZFI_SUM_ROWS_RUN = 128 };

/* In f32, which 16 bits are widened to. */
static void zfi_sum_rows_fast(const zf_launch *l, int64_t first, int64_t last)
{
    const zfi_isa isa = zfi_cpu_of(l)->isa;
    const zf_dtype dtype = l->out.dtype;
    const int64_t width = zfi_row_width(&l->out), *next = l->scratch,
                  *terms = next + zfi_count(&l->args[1]);
    for (int64_t k = first; k < last; k++)
        for (int64_t n = 0, run; n < width; n += run) {
            float sum[ZFI_SUM_ROWS_RUN] = {0}, term[ZFI_SUM_ROWS_RUN];
            run = zfi_min(width - n, ZFI_SUM_ROWS_RUN);
            for (int64_t i = terms[k]; i >= 0; i = next[i]) {
                const void *x = zfi_element(l->args[0].data, dtype, i * width + n);
                if (dtype != ZF_F32) zfi_widen(isa, term, dtype, x, run);
                zfi_binary_run(isa, ZF_OP_add, sum, sum, dtype == ZF_F32 ? x : term, true, true,
                               run);
            }
            zfi_narrow(isa, zfi_element_of(l->out.data, dtype, k * width + n), dtype, sum, run);
        }
}

static zf_status zfi_cpu_sums_of_rows(const zf_launch *l)
{
    enum { GRAIN = 512 };
    if (!zfi_count(&l->out)) return ZF_OK;
    zfi_split(l, zfi_count(&l->args[1]), GRAIN, zfi_sum_rows_places);
    zfi_sum_rows_lists(l);
    zfi_split(l, zfi_count(&l->args[2]), zfi_row_grain(zfi_row_width(&l->out)),
              zfi_fast_or_half(l) ? zfi_sum_rows_fast : zfi_sum_rows_reference);
    return ZF_OK;
}

static zf_status zfi_cpu_collect(const zf_launch *l)
{
    const int64_t bytes = zfi_array_bytes(&l->args[0]);
    zfi_move_bytes(l, (char *)l->out.data + l->run->micro * bytes, l->args[0].data, bytes);
    return ZF_OK;
}

/* One part of the result. */
static double zfi_bytes_of_collect(const zf_launch *l)
{
    return 2 * (double)zfi_array_bytes(&l->args[0]);
}

/* ------------------------------------------------------------------------------- records */

ZFI_OPERATOR(distinct_rows, .infer = zfi_infer_distinct_rows, .grad = zfi_grad_none,
             .cpu = zfi_cpu_distinct_rows, .scratch = zfi_scratch_distinct_rows)
ZFI_OPERATOR(sum_rows, .infer = zfi_infer_sum_rows, .cpu = zfi_cpu_sums_of_rows,
             .scratch = zfi_scratch_sum_rows, .linear_in = 1, .traits = ZF_OP_READS_HALF)
ZFI_OPERATOR(collect, .infer = zfi_infer_collect, .cpu = zfi_cpu_collect, .views = zfi_views_into,
             .writes = zfi_writes_into_1, .bytes = zfi_bytes_of_collect,
             .ranks = ZFI_RANKS_PARTS,
             .traits = ZF_OP_MUTATES | ZF_OP_READS_HALF)
