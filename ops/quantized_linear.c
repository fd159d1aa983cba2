/* quantized_linear: a product with a weight of 8 or 4 bits, in the blocks of quantize.c, of which
 * only a tile at a time is ever floats.
 *
 *     %4 = quantized_linear %1, %2 {bits=8 block=64} : f32[4,8,32]
 *     %4 = quantized_linear %1, %2, %3 {bits=8 block=64} : f32[4,8,32]
 *
 *          y = x w^T + b        x [...,k], w u8 [n, records of a row of k numbers], b [n] or none
 *
 *     %5 = quantized_linear %4, %2 {bits=8 block=64 transposed=true} : f32[4,8,128]
 *
 *          y = x w              x [...,n]; the gradient of one form is the other
 *
 * w has no gradient: it is frozen. Saved: nothing.
 *
 * A few rows of x are bound by reading w: each element of y is one sum along a row of w, of
 * integers block by block (quantized_dot.c). Of more rows, a task dequantises some rows
 * (transposed: columns) of w into its own cache, in x's dtype, and multiplies by them. Which of the
 * two depends on the rows of a matrix of x, not on how many matrices there are: so a token of a
 * text has the same bits alone and among those of other texts. */

/* Rows of w that a task dequantises at a time: as many as a cache takes, since x is read once for
 * them. Of a few rows of x, rows of a task. Transposed, k of a product, whose sums are read and
 * written once for them. */
enum {
    ZFI_QUANTIZED_FEW = 16, /* rows at most of an x [rows, k] that are sums of integers; 1 of more
                             * dimensions */
    ZFI_QUANTIZED_ROWS = 64,
    ZFI_QUANTIZED_MORE = 128,
    ZFI_QUANTIZED_TILE = 1 << 18, /* bytes of a tile of so many more */
    ZFI_QUANTIZED_DEEP = 256
};

/* Checks that operand 1 is a weight [n, k], or with `rank` 3 [experts, n, k], in such records. */
static zf_status zfi_infer_weight_of(const zfi_infer *c, const zfi_blocks *b, int32_t rank)
{
    const zfi_node *w = c->args[1];
    if (w->op == ZF_OP_param &&
        (ZF_INT(w, param, bits) != b->bits || ZF_INT(w, param, block) != b->block ||
         ZF_INT(w, param, scale) != b->scale))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "the weight is a parameter that is not quantised like this "
                              "(zf_param_desc.quantized)");
    if (w->dtype != ZF_U8 || w->shape.rank != rank || w->shape.dims[rank - 1] % b->record)
        return zfi_infer_fail(c, ZF_ERR_SHAPE,
                              "operand 1 must be u8 [%sn, bytes], whole records of %lld bytes: the "
                              "result of quantize",
                              rank > 2 ? "experts, " : "", (long long)b->record);
    return ZF_OK;
}

static zf_status zfi_infer_quantized_linear(zfi_infer *c)
{
    const zf_shape *x = &c->args[0]->shape, *w = &c->args[1]->shape;
    const bool transposed = ZF_INT(c, quantized_linear, transposed) != 0;
    zf_status status = zfi_infer_block(c);
    zfi_blocks b;
    int64_t k;
    if (status) return status;
    b = zfi_blocks_of(c->attributes);
    if (!zfi_is_float(c->args[0]->dtype))
        return zfi_infer_fail(c, ZF_ERR_DTYPE, "operand 0 must be float: f32, bf16, f16 or f64");
    if ((status = zfi_infer_weight_of(c, &b, 2))) return status;
    k = w->dims[1] / b.record * b.block;
    if (x->rank < 1 || zfi_last(x) != (transposed ? w->dims[0] : k))
        return zfi_infer_fail(c, ZF_ERR_SHAPE,
                              "the last dimension of operand 0 must be %lld, as the weight is "
                              "[%lld, %lld]",
                              (long long)(transposed ? w->dims[0] : k), (long long)w->dims[0],
                              (long long)k);
    if (c->arg_count > 2 &&
        (transposed || c->args[2]->dtype != c->args[0]->dtype || c->args[2]->shape.rank != 1 ||
         c->args[2]->shape.dims[0] != w->dims[0]))
        return zfi_infer_fail(c, ZF_ERR_SHAPE,
                              "operand 2, the bias, must be %s [%lld], and the product not "
                              "transposed",
                              zf_dtype_name(c->args[0]->dtype), (long long)w->dims[0]);
    c->dtype = c->args[0]->dtype;
    c->shape = *x;
    c->shape.dims[x->rank - 1] = transposed ? k : w->dims[0];
    return ZF_OK;
}

static void zfi_grad_quantized_linear(zf_grad *c)
{
    zf_attribute turned[ZF_MAX_ATTRIBUTES];
    memcpy(turned, c->attributes, sizeof turned);
    turned[ZF_AT_quantized_linear_transposed].i = !turned[ZF_AT_quantized_linear_transposed].i;
    if (c->need[0])
        c->dx[0] = zfi_build(ZF_OP_quantized_linear, 2, (zf_tensor[]){c->dy, c->x[1]}, turned);
    if (c->count > 2 && c->need[2]) c->dx[2] = zfi_sum_like(c->dy, c->x[2]);
}

/* A product of m rows of x with a weight of n rows of k numbers. */
typedef struct zfi_quantized {
    zfi_blocks b;
    zfi_isa isa;
    zfi_pool *pool;
    const void *x, *bias; /* bias [n]; NULL: none */
    const uint8_t *w;
    void *y, *scratch;
    zf_dtype out; /* of x, the bias and y */
    int64_t m, n, k, bytes; /* bytes: of a row of the weight */
    bool transposed, aside; /* aside: sums are made in f32 in scratch */
    zf_dtype dtype;      /* of a dequantised tile and of x with it: f32 or bf16 */
    int64_t rows;        /* of w, of a tile */
    int64_t span;        /* columns of y of a task */
    bool few;            /* x has a few rows, whose integers have so many bytes each: */
    size_t x_bytes;
    size_t tile, product; /* a worker's scratch, in bytes: the tile; what its product needs */
    size_t wide, all;    /* f16: x in f32; transposed: sums in f32. All of it */
} zfi_quantized;

static const uint8_t *zfi_quantized_at(const zfi_quantized *q, int64_t n, int64_t k)
{
    return q->w + n * q->bytes + k / q->b.block * q->b.record;
}

/* Element [n,k] of the weight, by definition. */
static double zfi_quantized_get(const zfi_quantized *q, int64_t n, int64_t k)
{
    return zfi_dequantize_plain(&q->b, zfi_quantized_at(q, n, k), k % q->b.block);
}

/* The product of a task: rows of x with a tile, [n of the tile][k of the tile]. */
static zfi_matmul_desc zfi_quantized_product(const zfi_quantized *q, int64_t rows, int64_t columns)
{
    zfi_matmul_desc d = {.m = q->m,
                         .n = q->transposed ? columns : rows,
                         .k = q->transposed ? rows : columns,
                         .batch = 1,
                         .a_row = q->transposed ? q->n : q->k,
                         .a_col = 1,
                         .b_row = q->transposed ? columns : 1,
                         .b_col = q->transposed ? 1 : columns,
                         .dtype = q->dtype,
                         .c_dtype = ZF_F32};
    d.c_row = q->aside ? d.n : q->n;
    return d;
}

static size_t zfi_round_bytes(size_t bytes) { return (bytes + 63) / 64 * 64; }

/* Plans a product of which all is known but how it is computed. */
static void zfi_quantized_plan(zfi_quantized *q)
{
    zfi_matmul_desc d, rest;
    int64_t left;
    q->aside = q->transposed || q->out != ZF_F32;
    q->dtype = q->out == ZF_BF16 ? ZF_BF16 : ZF_F32;
    q->rows = q->transposed ? ZFI_QUANTIZED_DEEP
              : !q->few && q->k * ZFI_QUANTIZED_MORE * (int64_t)zf_dtype_size(q->dtype) <=
                               ZFI_QUANTIZED_TILE
                  ? ZFI_QUANTIZED_MORE
                  : ZFI_QUANTIZED_ROWS;
    q->span = q->transposed ? q->b.block : q->rows;
    if (q->few) {
        q->x_bytes = zfi_round_bytes(zfi_dot_bytes(&q->b, q->out, q->k));
        q->all = (size_t)q->m * q->x_bytes;
        return;
    }
    if (q->out == ZF_F16)
        q->wide = zfi_round_bytes((size_t)(q->m * (q->transposed ? q->n : q->k)) * sizeof(float));
    q->tile = zfi_round_bytes((size_t)(q->rows * (q->transposed ? q->b.block : q->k)) *
                              zf_dtype_size(q->dtype));
    left = q->n % q->rows;
    d = zfi_quantized_product(q, q->rows, q->transposed ? q->b.block : q->k);
    rest = zfi_quantized_product(q, left, q->transposed ? q->b.block : q->k);
    d.accumulate = rest.accumulate = q->transposed;
    q->product = zfi_matmul_tiled_scratch(q->isa, 1, &d);
    if (left && zfi_matmul_tiled_scratch(q->isa, 1, &rest) > q->product)
        q->product = zfi_matmul_tiled_scratch(q->isa, 1, &rest);
    q->product = zfi_round_bytes(q->product);
    if (q->aside)
        q->product += zfi_round_bytes((size_t)(q->m * q->span) * sizeof(float));
    q->all = q->wide + (size_t)zfi_pool_threads(q->pool) * (q->tile + q->product);
}

/* What all products of a launch have: x of so many rows, and the first weight. */
static zfi_quantized zfi_quantized_begin(const zf_launch *l, const zfi_blocks *b, int64_t m,
                                         bool transposed)
{
    const zf_shape *w = &l->args[1].shape;
    zfi_quantized q = {.b = *b,
                       .isa = zfi_cpu_of(l)->isa,
                       .pool = zfi_cpu_of(l)->pool,
                       .x = l->args[0].data,
                       .w = l->args[1].data,
                       .y = l->out.data,
                       .scratch = l->scratch,
                       .out = l->out.dtype,
                       .m = m,
                       .n = w->dims[w->rank - 2],
                       .bytes = w->dims[w->rank - 1],
                       .transposed = transposed};
    q.k = q.bytes / b->record * b->block;
    return q;
}

static zfi_quantized zfi_quantized_of(const zf_launch *l)
{
    const zf_shape *x = &l->args[0].shape;
    const zfi_blocks b = zfi_blocks_of(l->attributes);
    const int64_t last = zfi_last(x);
    zfi_quantized q = zfi_quantized_begin(l, &b, last ? zfi_count(&l->args[0]) / last : 0,
                                          ZF_INT(l, quantized_linear, transposed) != 0);
    q.bias = l->arg_count > 2 ? l->args[2].data : NULL;
    q.few = !q.transposed && (x->rank > 2 ? x->dims[x->rank - 2] == 1 : q.m <= ZFI_QUANTIZED_FEW);
    zfi_quantized_plan(&q);
    return q;
}

/* ------------------------------------------------------------------------------ kernels */

/* Element [row, col] of the product, by definition. */
static double zfi_quantized_sum(const zfi_quantized *q, const zf_array *x, int64_t row, int64_t col)
{
    const int64_t inner = q->transposed ? q->n : q->k;
    double sum = 0;
    for (int64_t p = 0; p < inner; p++)
        sum += zfi_get(x, row * inner + p) *
               (q->transposed ? zfi_quantized_get(q, p, col) : zfi_quantized_get(q, col, p));
    return sum;
}

/* Elements first..last-1 of the result. */
static void zfi_quantized_reference(const zf_launch *l, int64_t first, int64_t last)
{
    const zfi_quantized q = zfi_quantized_of(l);
    const int64_t columns = q.transposed ? q.k : q.n;
    for (int64_t i = first; i < last; i++) {
        double sum = zfi_quantized_sum(&q, &l->args[0], i / columns, i % columns);
        if (l->arg_count > 2) sum += zfi_get(&l->args[2], i % columns);
        zfi_set(&l->out, i, sum);
    }
}

/* Bias of columns first.. of a block of f32, and its way into the result. */
static void zfi_quantized_finish(const zfi_quantized *q, float *sums, int64_t at, int64_t first,
                                 int64_t n)
{
    float bias[ZFI_SPAN];
    if (q->bias) {
        zfi_widen(q->isa, bias, q->out, zfi_element(q->bias, q->out, first), n);
        zfi_add_run(q->isa, sums, bias, n);
    }
    zfi_narrow(q->isa, zfi_element_of(q->y, q->out, at), q->out, sums, n);
}

/* Where the integers of row m of x are. */
static void *zfi_quantized_x(const zfi_quantized *q, int64_t m)
{
    return (char *)q->scratch + (size_t)m * q->x_bytes;
}

/* Some columns of a few rows of y. */
static void zfi_quantized_row_task(void *context, int64_t index, int worker)
{
    const zfi_quantized *q = context;
    const int64_t n0 = index * q->span, n = zfi_min(q->span, q->n - n0);
    float sums[ZFI_QUANTIZED_ROWS];
    (void)worker;
    for (int64_t m = 0; m < q->m; m++) {
        const zfi_dot_x x = zfi_dot_x_in(&q->b, q->out, q->k, zfi_quantized_x(q, m));
        zfi_dot_rows(q->isa, &q->b, &x, zfi_quantized_at(q, n0, 0), q->bytes,
                     q->k / q->b.block, n, sums);
        zfi_quantized_finish(q, sums, m * q->n + n0, n0, n);
    }
}

/* Dequantises columns k0..k0+columns-1 of rows n0..n0+rows-1. */
static void zfi_quantized_tile(const zfi_quantized *q, void *tile, int64_t n0, int64_t rows,
                               int64_t k0, int64_t columns)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = 0; k < columns; k += q->b.block)
            zfi_dequantize_block(q->isa, &q->b, q->dtype,
                                 zfi_element_of(tile, q->dtype, i * columns + k),
                                 zfi_quantized_at(q, n0 + i, k0 + k), false);
}

/* Some columns of all rows of y. */
static void zfi_quantized_task(void *context, int64_t index, int worker)
{
    const zfi_quantized *q = context;
    char *scratch = (char *)q->scratch + q->wide + (size_t)worker * (q->tile + q->product);
    const void *x = q->wide ? q->scratch : q->x;
    const int64_t columns = q->transposed ? q->k : q->n, first = index * q->span,
                  span = zfi_min(q->span, columns - first);
    const size_t sums_bytes = q->aside ? zfi_round_bytes((size_t)(q->m * q->span) * sizeof(float)) : 0;
    float *sums = (float *)(void *)(scratch + q->tile);
    void *room = scratch + q->tile + sums_bytes;
    for (int64_t n0 = q->transposed ? 0 : first; n0 < (q->transposed ? q->n : first + span);
         n0 += q->rows) {
        const int64_t rows = zfi_min(q->rows, q->n - n0);
        zfi_matmul_desc d = zfi_quantized_product(q, rows, q->transposed ? span : q->k);
        zfi_quantized_tile(q, scratch, n0, rows, q->transposed ? first : 0,
                           q->transposed ? span : q->k);
        d.a = q->transposed ? zfi_element(x, q->dtype, n0) : x;
        d.b = scratch;
        d.c = q->aside ? (void *)sums : zfi_element_of(q->y, q->out, first);
        d.accumulate = q->transposed && n0 > 0;
        zfi_matmul_tiled(q->isa, NULL, &d, room);
    }
    for (int64_t m = 0; m < q->m; m++) {
        const int64_t at = m * columns + first;
        if (q->aside || q->bias)
            zfi_quantized_finish(q, q->aside ? sums + m * span : (float *)q->y + at, at, first, span);
    }
}

static size_t zfi_scratch_quantized_linear(const zf_launch *l)
{
    return zfi_by_tiles(l) && zfi_count(&l->out) ? zfi_quantized_of(l).all : 0;
}

/* Computes a planned product. */
static void zfi_quantized_run(zfi_quantized *q)
{
    const int64_t inner = q->transposed ? q->n : q->k;
    if (q->few) {
        for (int64_t m = 0; m < q->m; m++)
            zfi_dot_x_of(q->isa, &q->b, q->out, zfi_element(q->x, q->out, m * q->k), q->k,
                         zfi_quantized_x(q, m));
        zfi_pool_run(q->pool, zfi_div_up(q->n, q->span), zfi_quantized_row_task, q);
        return;
    }
    if (q->wide) zfi_widen(q->isa, q->scratch, q->out, q->x, q->m * inner);
    zfi_pool_run(q->pool, zfi_div_up(q->transposed ? q->k : q->n, q->span), zfi_quantized_task, q);
}

static zf_status zfi_cpu_quantized_linear(const zf_launch *l)
{
    zfi_quantized q;
    if (!zfi_count(&l->out)) return ZF_OK;
    q = zfi_quantized_of(l);
    if (!zfi_by_tiles(l) || !q.n || !q.k)
        zfi_split(l, zfi_count(&l->out), 1, zfi_quantized_reference);
    else zfi_quantized_run(&q);
    return ZF_OK;
}

static double zfi_flops_quantized_linear(const zf_launch *l)
{
    return 2.0 * (double)zfi_count(&l->out) * (double)zfi_last(&l->args[0].shape);
}

static zfi_weight zfi_weight_quantized_linear(const zfi_node *node)
{
    return ZF_INT(node, quantized_linear, transposed) ? ZFI_WEIGHT_IN_OUT : ZFI_WEIGHT_OUT_IN;
}

/* ------------------------------------------------------------------------------- records */

ZFI_SAME_ATTRIBUTE(quantized_linear, quantize, bits)
ZFI_SAME_ATTRIBUTE(quantized_linear, quantize, block)
ZFI_SAME_ATTRIBUTE(quantized_linear, quantize, scale)
ZFI_OPERATOR(quantized_linear, .infer = zfi_infer_quantized_linear,
             .grad = zfi_grad_quantized_linear, .cpu = zfi_cpu_quantized_linear,
             .scratch = zfi_scratch_quantized_linear, .flops = zfi_flops_quantized_linear,
             .weight = zfi_weight_quantized_linear,
             .cuts = "transposed: ... m! n!, n! r! -> ... m! k! | "
                     "... m! k!, n r!, ?n -> ... m! n",
             .traits = ZF_OP_PRODUCT | ZF_OP_READS_HALF)
