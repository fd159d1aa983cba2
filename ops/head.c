/* head_loss: the head of a language model and its loss, in tiles of rows. Only the logits of one
 * tile are in memory, and their gradient replaces them.
 *
 *     %6 = head_loss %1, %2, %3, %4, %5 {ignore=-100} : f32[]
 *     %6 = head_loss %1, %2, %3, %4 {ignore=-100 bits=8 block=64} : f32[]
 *
 *     z[r,:] = w x[r,:] + b                 x [P,H], w [V,H], b [V] or none
 *     y = weight * sum over r of (log sum over v of exp z[r,v]) - z[r,label[r]]
 *     dz[r,v] = weight (exp(z[r,v] - lse[r]) - (v = label[r]))
 *     dx = dy dz w     dw = dy dz^T x     db = dy sum over r of dz[r,:]
 *
 * labels [P] are i32 or i64. Rows whose label is `ignore` add nothing; a label that is no class is
 * an error of the step. weight is a scalar of the result's dtype: f32, or f64 for f64 operands. Its
 * gradient is dy y / weight; a trained weight must not be 0.
 *
 * The gradients for dy = 1 are computed together with y, where there are saved nodes for them:
 *
 *     saved 0: dx                 saved 2: db
 *     saved 1: dw                 saved 3: i32[P], of each row the first of its largest logits
 *
 * The gradients are f32 (f64 for f64 operands) also where operands have 16 bits. With bf16 operands
 * and only one tile they are bf16: then nothing is added to a rounded sum.
 *
 * f32: z is transposed. A row of x is a lane of a vector, and w is read in its own layout. Classes
 * are split into chunks. A chunk is one task; it is computed, and later read again, while it is in
 * cache:
 *
 *                 x^T [H, tile]                            1. z = w x^T + b; its columns' maxima
 *                +-------+                                    and sums of exp(z - maximum),
 *                |       |                                    is what stays of z
 *       w [V,H]  +-------+   z [V, tile]                   2. from these lse of the whole columns,
 *      +-------+ +-------+                                    the loss, a factor of every chunk
 *      | chunk | |       |   dw chunk  += dz x                and column
 *      +-------+ +-------+   db chunk  += rows of dz       3. dz = factor * exp(z - maximum), less
 *      | chunk | |       |   dx        += dz^T w chunk        the weight at the label
 *      +-------+ +-------+
 *
 * bf16: the same with bf16 products, for which dz is rounded. Between steps 1 and 3 exponentials are
 * f16, so that as many bytes hold twice as many rows; dz replaces them. The largest of a chunk is 1,
 * which f16 holds: dz at the label of a row whose loss is almost 0 has no other error than in f32.
 * f16: its range is too small for dz, so x and w are converted to f32, a tile and a chunk at a time.
 * All sums are in f32.
 *
 * dx is summed within groups of neighbouring chunks, then over the groups. Tiles, chunks and groups
 * depend on the shape alone. Where there are more threads than groups, they share the columns of dw
 * and dx. x is packed for products once a tile. Each tile reads all of w twice, and reads and writes
 * dw in f32: with too few rows in a tile, memory bandwidth is the limit. Scratch is at most
 *
 *     z: 1 KiB for each class (f32, f16: 256 rows of 4 bytes; bf16: 512 rows of 2 bytes)
 *     dx of the groups: as much as half of z in bf16, a quarter in f32; at least two of a tile
 *     12 bytes for each chunk and row, x of a tile twice, and for each thread packed operands
 *
 * With bits (8 or 4), w is u8 [V, records of a row of H numbers] in the blocks of quantize.c, and
 * frozen: it has no gradient. A chunk of it is dequantised for each product, into a worker's scratch,
 * in the dtype of products. */

enum {
    ZFI_HEAD_BYTES = 1024,              /* of a tile's exponentials of a class, at most */
    ZFI_HEAD_TILE = ZFI_HEAD_BYTES / 2, /* rows of a tile, at most; fewer in f32 */
    ZFI_HEAD_ONE_TILE = 160,            /* rows: with at most so many, bf16 has gradients in bf16 */
    ZFI_HEAD_LANES = 16,                /* numbers of the widest vector */
    ZFI_HEAD_CHUNK = 256,               /* classes of a chunk */
    ZFI_HEAD_STEP = 512, /* classes of a product that adds to dx, in 16 bits; in f32 a chunk */
    ZFI_HEAD_GROUPS = 8, /* sums of dx, at most */
    ZFI_HEAD_GROUPS_LEAST = 2, /* the same where h is large */
    ZFI_HEAD_TASKS = 2,        /* of a thread in the products of gradients, at least */
    ZFI_HEAD_SPAN = 64,        /* columns of such a task, at least */
    ZFI_HEAD_STRIP = 16,       /* classes whose dz are made together */
    ZFI_HEAD_SUM = 16,         /* exponentials that are summed before they are added to the total */
    ZFI_HEAD_ALIGN = 64
};

/* The dtype of exponentials that are kept. */
static zf_dtype zfi_head_kept(zf_dtype x) { return x == ZF_BF16 ? ZF_F16 : ZF_F32; }

/* Rows of a tile, at most; two vectors or a multiple, but in the last. */
static int64_t zfi_head_most(zf_dtype x)
{
    return ZFI_HEAD_BYTES / (int64_t)zf_dtype_size(zfi_head_kept(x));
}

/* How w is quantised; bits 0: it is floats. */
static zfi_blocks zfi_head_blocks(const zf_attribute *attributes)
{
    return zfi_blocks_by(attributes[ZF_AT_head_loss_bits].i, attributes[ZF_AT_head_loss_block].i,
                         attributes[ZF_AT_head_loss_scale].i);
}

static zf_status zfi_infer_head_loss(zfi_infer *c)
{
    const zfi_node *x = c->args[0], *w = c->args[1], *labels = c->args[2], *weight = c->args[3];
    const zfi_blocks b = zfi_head_blocks(c->attributes);
    zf_dtype wide = zfi_wide(x->dtype);
    zf_status status = ZF_OK;
    int64_t width;
    if (!zfi_is_float(x->dtype))
        return zfi_infer_fail(c, ZF_ERR_DTYPE, "x must be float: f32, bf16, f16 or f64");
    if (b.bits) status = zfi_infer_quantized(c, b.bits, b.block, b.scale);
    if (b.bits && !status) status = zfi_infer_weight_of(c, &b);
    if (status) return status;
    width = w->shape.rank == 2 ? w->shape.dims[1] : -1;
    if (b.bits) width = width / b.record * b.block;
    if (x->shape.rank != 2 || x->shape.dims[1] != width)
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "x [p, k] and w [n, k] are needed");
    if (w->shape.dims[0] < 1 || w->shape.dims[0] > INT32_MAX || width > INT32_MAX)
        return zfi_infer_fail(c, ZF_ERR_SHAPE,
                              "%lld classes of %lld features; 1 to 2^31 - 1 of up to 2^31 - 1 are "
                              "possible",
                              (long long)w->shape.dims[0], (long long)width);
    if ((!b.bits && w->dtype != x->dtype) || (c->arg_count > 4 && c->args[4]->dtype != x->dtype))
        return zfi_infer_fail(c, ZF_ERR_DTYPE, "x, w and the bias must have one dtype");
    if (labels->shape.rank != 1 || labels->shape.dims[0] != x->shape.dims[0])
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "the labels must be [%lld], one for each row of x",
                              (long long)x->shape.dims[0]);
    if (!zfi_is_integer(labels->dtype))
        return zfi_infer_fail(c, ZF_ERR_DTYPE, "the labels must be i32 or i64");
    if (weight->shape.rank || weight->dtype != wide)
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "the weight must be %s[]", zf_dtype_name(wide));
    if (c->arg_count > 4 &&
        (c->args[4]->shape.rank != 1 || c->args[4]->shape.dims[0] != w->shape.dims[0]))
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "the bias must be [%lld]",
                              (long long)w->shape.dims[0]);
    c->dtype = wide;
    c->shape = ZF_SCALAR;
    return ZF_OK;
}

enum { ZFI_HEAD_DX, ZFI_HEAD_DW, ZFI_HEAD_DB, ZFI_HEAD_BEST }; /* saved values */

/* The dtype of the saved gradients. */
static zf_dtype zfi_head_saved_dtype(zf_dtype x, int64_t rows)
{
    return x == ZF_BF16 && rows <= ZFI_HEAD_ONE_TILE ? x : zfi_wide(x);
}

static bool zfi_saved_head_loss(const zf_graph *g, const zfi_node *node, int64_t index,
                                zf_dtype *dtype, zf_shape *shape)
{
    static const int operand[] = {
        [ZFI_HEAD_DX] = 0, [ZFI_HEAD_DW] = 1, [ZFI_HEAD_DB] = 4, [ZFI_HEAD_BEST] = 2};
    const zfi_node *x = &g->nodes[node->args[0]];
    if (index < 0 || index >= ZFI_COUNT(operand) || operand[index] >= node->arg_count) return false;
    if (index == ZFI_HEAD_DW && ZF_INT(node, head_loss, bits)) return false;
    *dtype = index == ZFI_HEAD_BEST ? ZF_I32 : zfi_head_saved_dtype(x->dtype, x->shape.dims[0]);
    *shape = g->nodes[node->args[operand[index]]].shape;
    return true;
}

static void zfi_grad_head_loss(zf_grad *c)
{
    static const int saved[] = {ZFI_HEAD_DX, ZFI_HEAD_DW, -1, -1, ZFI_HEAD_DB};
    const zfi_node *dy = zfi_node_of(c->dy);
    bool one = dy && dy->op == ZF_OP_constant && ZF_LIST(dy, constant, values).count == 1 &&
               *(const double *)ZF_LIST(dy, constant, values).data == 1;
    for (int32_t k = 0; k < c->count; k++) {
        zf_tensor dx;
        if (!c->need[k] || saved[k] < 0) continue;
        dx = zfi_saved(c->y, saved[k]);
        if (!one) dx = zf_mul(zf_cast(dx, zf_tensor_dtype(c->dy)), c->dy);
        c->dx[k] = zf_cast(dx, zf_tensor_dtype(c->x[k]));
    }
    if (c->need[3]) c->dx[3] = zf_mul(c->dy, zf_div(c->y, c->x[3]));
}

/* ------------------------------------------------------------------------------ reference */

/* Scratch: lse of every row, and for each worker one row of classes or one column of rows. */
typedef struct zfi_head_plain {
    const zf_launch *launch;
    zfi_blocks blocks; /* bits 0: w is floats */
    int64_t rows, width, classes, room;
    double weight;
    double *lse, *loss, *work;
} zfi_head_plain;

static zfi_head_plain zfi_head_plain_of(const zf_launch *l)
{
    zfi_head_plain h = {.launch = l,
                        .blocks = zfi_head_blocks(l->attributes),
                        .rows = l->args[0].shape.dims[0],
                        .width = l->args[0].shape.dims[1],
                        .classes = l->args[1].shape.dims[0]};
    h.room = h.rows > h.classes ? h.rows : h.classes;
    h.lse = l->scratch;
    h.loss = h.lse ? h.lse + h.rows : NULL;
    h.work = h.lse ? h.loss + h.rows : NULL;
    return h;
}

/* w[class,i] */
static double zfi_head_weight(const zfi_head_plain *h, int64_t class, int64_t i)
{
    const zf_array *w = &h->launch->args[1];
    const zfi_blocks *b = &h->blocks;
    const int64_t at = class * h->width + i;
    if (!b->bits) return zfi_get(w, at);
    return zfi_dequantize_plain(b, (const uint8_t *)w->data + at / b->block * b->record,
                                at % b->block);
}

static double zfi_head_logit(const zfi_head_plain *h, int64_t row, int64_t class)
{
    const zf_array *args = h->launch->args;
    double sum = 0;
    for (int64_t i = 0; i < h->width; i++)
        sum += zfi_get(&args[0], row * h->width + i) * zfi_head_weight(h, class, i);
    return h->launch->arg_count > 4 ? sum + zfi_get(&args[4], class) : sum;
}

/* dz of one logit. */
static double zfi_head_slope(const zfi_head_plain *h, int64_t row, int64_t class, double logit)
{
    int64_t label = zfi_get_integer(&h->launch->args[2], row);
    if (label == ZF_INT(h->launch, head_loss, ignore)) return 0;
    return h->weight * (exp(logit - h->lse[row]) - (class == label));
}

/* One row: lse, loss, the class with the largest logit, dx. */
static void zfi_head_plain_row(void *context, int64_t row, int worker)
{
    const zfi_head_plain *h = context;
    const zf_launch *l = h->launch;
    const zf_array *dx = zfi_saved_out(l, ZFI_HEAD_DX), *best = zfi_saved_out(l, ZFI_HEAD_BEST);
    double *z = h->work + worker * h->room, most = -INFINITY, sum = 0;
    int64_t label = zfi_get_integer(&l->args[2], row), at = 0;
    for (int64_t v = 0; v < h->classes; v++) {
        z[v] = zfi_head_logit(h, row, v);
        if (z[v] > most || (isnan(z[v]) && !isnan(most))) most = z[v], at = v;
    }
    if (best) zfi_set_integer(best, row, at);
    if (isinf(most)) most = 0;
    for (int64_t v = 0; v < h->classes; v++) sum += exp(z[v] - most);
    h->lse[row] = most + log(sum);
    h->loss[row] = label == ZF_INT(l, head_loss, ignore) ? 0 : h->lse[row] - z[label];
    for (int64_t v = 0; v < h->classes && dx; v++) z[v] = zfi_head_slope(h, row, v, z[v]);
    for (int64_t i = 0; i < h->width && dx; i++) { /* dx[row,i] */
        sum = 0;
        for (int64_t v = 0; v < h->classes; v++) sum += z[v] * zfi_head_weight(h, v, i);
        zfi_set(dx, row * h->width + i, sum);
    }
}

/* One class: dw and db. */
static void zfi_head_plain_class(void *context, int64_t class, int worker)
{
    const zfi_head_plain *h = context;
    const zf_launch *l = h->launch;
    const zf_array *dw = zfi_saved_out(l, ZFI_HEAD_DW), *db = zfi_saved_out(l, ZFI_HEAD_DB);
    double *dz = h->work + worker * h->room, sum = 0;
    for (int64_t row = 0; row < h->rows; row++) {
        dz[row] = zfi_head_slope(h, row, class, zfi_head_logit(h, row, class));
        sum += dz[row];
    }
    if (db) zfi_set(db, class, sum);
    for (int64_t i = 0; i < h->width && dw; i++) { /* dw[class,i] */
        sum = 0;
        for (int64_t row = 0; row < h->rows; row++)
            sum += dz[row] * zfi_get(&l->args[0], row * h->width + i);
        zfi_set(dw, class * h->width + i, sum);
    }
}

static void zfi_head_reference(const zf_launch *l)
{
    zfi_head_plain h = zfi_head_plain_of(l);
    double loss = 0;
    h.weight = zfi_get(&l->args[3], 0);
    zfi_pool_run(zfi_cpu_of(l)->pool, h.rows, zfi_head_plain_row, &h);
    for (int64_t row = 0; row < h.rows; row++) loss += h.loss[row];
    zfi_set(&l->out, 0, h.weight * loss);
    if (zfi_saved_out(l, ZFI_HEAD_DW) || zfi_saved_out(l, ZFI_HEAD_DB))
        zfi_pool_run(zfi_cpu_of(l)->pool, h.classes, zfi_head_plain_class, &h);
}

/* ----------------------------------------------------------------------------------- fast */

/* For each of `lanes` neighbouring columns of z: adds the bias (may be NULL), and finds the maximum
 * of `classes` numbers, NaN being the largest, and the first index at which it is, counted from
 * `first`. */
ZFI_BODY void zfi_head_top_body(zfi_isa isa, float *z, int64_t lanes, const float *bias,
                                int64_t classes, int32_t first, float *top, int32_t *best)
{
    for (int64_t t = 0; t < lanes; t++) top[t] = -INFINITY, best[t] = first;
    for (int64_t v = 0; v < classes; v++, z += lanes) {
        float b = bias ? bias[v] : 0;
        int32_t index = first + (int32_t)v;
        ZFI_VECTOR
        for (int64_t t = 0; t < lanes; t++) {
            float x = z[t] + b, most = top[t];
            bool more = (most < x) | ((x != x) & (most == most));
            z[t] = x;
            top[t] = zfi_pick(isa, more, x, most);
            best[t] = more ? index : best[t];
        }
    }
}
ZFI_KERNEL(zfi_head_top,
           (float *z, int64_t lanes, const float *bias, int64_t classes, int32_t first, float *top,
            int32_t *best),
           (z, lanes, bias, classes, first, top, best))

/* The number that is subtracted from a column before exp: its maximum; 0 where all are -inf. */
ZFI_BODY float zfi_head_base(zfi_isa isa, float top)
{
    return zfi_pick(isa, top == -INFINITY, 0.0f, top);
}

/* z = by exp(z - base), and the sum of each column's exponentials. */
ZFI_BODY void zfi_head_exp_body(zfi_isa isa, float *z, int64_t lanes, int64_t classes, float by,
                                const float *top, float *sum)
{
    float base[ZFI_HEAD_TILE], part[ZFI_HEAD_TILE];
    for (int64_t t = 0; t < lanes; t++) base[t] = zfi_head_base(isa, top[t]), sum[t] = 0;
    for (int64_t v = 0; v < classes; v += ZFI_HEAD_SUM) {
        int64_t end = v + ZFI_HEAD_SUM < classes ? v + ZFI_HEAD_SUM : classes;
        for (int64_t t = 0; t < lanes; t++) part[t] = 0;
        for (int64_t u = v; u < end; u++, z += lanes) {
            ZFI_VECTOR
            for (int64_t t = 0; t < lanes; t++) {
                float e = zfi_exp1(isa, z[t] - base[t]);
                z[t] = by * e;
                part[t] += e;
            }
        }
        for (int64_t t = 0; t < lanes; t++) sum[t] += part[t];
    }
}
ZFI_KERNEL(zfi_head_exp,
           (float *z, int64_t lanes, int64_t classes, float by, const float *top, float *sum),
           (z, lanes, classes, by, top, sum))

/* For each column, from top and sum [chunks, lanes] of all chunks: computes lse, and replaces the
 * sums by the factors that turn exponentials into dz. `weights` has one number for each column, 0
 * where the row adds nothing. If the largest logit is infinite, it is lse. */
ZFI_BODY void zfi_head_lse_body(zfi_isa isa, int64_t lanes, int64_t chunks, const float *top,
                                float *sum, const float *weights, double *lse)
{
    float most[ZFI_HEAD_TILE];
    for (int64_t t = 0; t < lanes; t++) most[t] = -INFINITY, lse[t] = 0;
    for (int64_t c = 0; c < chunks; c++) {
        const float *row = top + c * lanes;
        ZFI_VECTOR
        for (int64_t t = 0; t < lanes; t++) most[t] = zfi_max1(isa, most[t], row[t]);
    }
    for (int64_t c = 0; c < chunks; c++) {
        const float *row = top + c * lanes, *of = sum + c * lanes;
        ZFI_VECTOR
        for (int64_t t = 0; t < lanes; t++) {
            float part = of[t] * zfi_exp1(isa, zfi_head_base(isa, row[t]) - most[t]);
            lse[t] += (double)zfi_pick(isa, of[t] == 0.0f, 0.0f, part);
        }
    }
    for (int64_t t = 0; t < lanes; t++)
        lse[t] = most[t] - most[t] == 0 ? most[t] + log(lse[t]) : (double)most[t];
    for (int64_t c = 0; c < chunks; c++) {
        const float *row = top + c * lanes;
        float *factor = sum + c * lanes;
        ZFI_VECTOR
        for (int64_t t = 0; t < lanes; t++) {
            float base = zfi_head_base(isa, row[t]);
            float e = zfi_exp1(isa, (float)((double)base - lse[t]));
            e = weights[t] * zfi_pick(isa, base == INFINITY, 1.0f, e);
            factor[t] = zfi_pick(isa, weights[t] == 0.0f, 0.0f, e);
        }
    }
}
ZFI_KERNEL(zfi_head_lse,
           (int64_t lanes, int64_t chunks, const float *top, float *sum, const float *weights,
            double *lse),
           (lanes, chunks, top, sum, weights, lse))

/* z *= the factor of its column; 0 where the factor is 0, even for NaN and infinity. */
ZFI_BODY void zfi_head_scale_body(zfi_isa isa, float *z, int64_t lanes, int64_t classes,
                                  const float *factor)
{
    for (int64_t v = 0; v < classes; v++, z += lanes) {
        ZFI_VECTOR
        for (int64_t t = 0; t < lanes; t++)
            z[t] = zfi_pick(isa, factor[t] == 0.0f, 0.0f, z[t] * factor[t]);
    }
}
ZFI_KERNEL(zfi_head_scale, (float *z, int64_t lanes, int64_t classes, const float *factor),
           (z, lanes, classes, factor))

/* What exponentials are multiplied by to be kept: 2^15 in f16. Down to 2^-29 they are then exact to
 * 2^-12, more than bf16 has. */
static float zfi_head_by(zf_dtype kept) { return kept == ZF_F16 ? 0x1p15f : 1; }

typedef struct zfi_head {
    const zf_launch *launch;
    zfi_isa isa;
    zf_dtype dtype, product; /* dtype: of x, w and the bias; product: of the operands of products */
    zf_dtype kept;           /* of exponentials */
    float by;                /* zfi_head_by of it */
    zfi_blocks blocks;       /* of w; bits 0: it is floats */
    int64_t rows, width, classes;
    int64_t tile, chunks, groups; /* rows of a tile but the last; chunks; groups of chunks */
    int64_t step;                 /* chunks that a product adds to dx */
    int64_t spans, span; /* of columns of dw and dx, which tasks share; no bits depend on it */
    int64_t first, count, lanes; /* the current tile: first row, rows, these rounded up */
    const void *x, *w, *bias;    /* bias may be NULL */
    void *dx, *dw, *db;          /* may be NULL */
    zf_dtype made;               /* the dtype of dx, dw and db */
    /* Arrays in scratch: */
    int64_t *label;            /* [lanes], -1: ignored */
    double *lse;               /* [lanes] */
    float *of_label, *weights; /* [lanes]; weights: of `by`, 0 where a row adds nothing */
    float *top, *sum;          /* [chunks, lanes]; the sums become factors */
    int32_t *best;             /* [chunks, lanes] */
    void *turned, *straight;   /* x^T and x of the tile, packed */
    void *z;     /* [classes, lanes]: exponentials, f16 if products are bf16; then dz */
    float *part; /* [groups, tile, width]: sums of dx */
    float *wide; /* f16: [tile, width]: the tile's rows of x in f32 */
    /* for each worker: a chunk in f32 if z is not, w if it is converted, the product's scratch */
    char *own;
    size_t z_bytes, w_bytes, own_bytes, bytes; /* of these two, of `own`, of all scratch */
} zfi_head;

enum { ZFI_HEAD_LOGITS, ZFI_HEAD_TO_W, ZFI_HEAD_TO_X, ZFI_HEAD_PRODUCTS };

static void zfi_head_rows(zfi_head *h, int64_t count)
{
    h->count = count;
    h->lanes = zfi_round_up(count, ZFI_HEAD_LANES);
}

/* The product of `classes` with the current tile; of dw and dx, columns from `from` on. Pointers are
 * not set. */
static zfi_matmul_desc zfi_head_product(const zfi_head *h, int which, int64_t classes, int64_t from)
{
    zfi_matmul_desc d = {.batch = 1, .b_col = 1, .dtype = h->product};
    switch (which) {
    case ZFI_HEAD_LOGITS: /* z[v,t] = sum over i of w[v,i] x^T[i,t] */
        d.m = classes, d.n = d.packed = h->count, d.k = h->width;
        d.a_row = h->width, d.a_col = 1, d.b_row = 1, d.b_col = h->width;
        d.c_row = h->lanes;
        return d;
    case ZFI_HEAD_TO_W: /* dw[v,i] = sum over t of dz[v,t] x[t,i] */
        d.m = classes, d.k = h->count;
        d.a_row = h->lanes, d.a_col = 1;
        d.packed = h->width, d.packed_from = from;
        d.c_dtype = h->made;
        break;
    default: /* dx[t,i] = sum over v of dz[v,t] w[v,i] */
        d.m = h->count, d.k = classes;
        d.a_row = 1, d.a_col = h->lanes;
        break;
    }
    d.n = zfi_min(h->span, h->width - from);
    d.b_row = d.c_row = h->width;
    return d;
}

/* That product with all columns, as its second operand is packed. */
static zfi_matmul_desc zfi_head_packing(const zfi_head *h, int which)
{
    zfi_matmul_desc d = zfi_head_product(h, which, 1, 0);
    d.n = d.packed;
    return d;
}

static void *zfi_head_take(zfi_head *h, int64_t count, size_t size)
{
    char *at = h->launch->scratch ? (char *)h->launch->scratch + h->bytes : NULL;
    h->bytes += (size_t)zfi_round_up(count * (int64_t)size, ZFI_HEAD_ALIGN);
    return at;
}

/* How the work is split, and where the arrays in scratch are. */
static zfi_head zfi_head_of(const zf_launch *l)
{
    zfi_head h = {.launch = l,
                  .isa = zfi_cpu_of(l)->isa,
                  .dtype = l->args[0].dtype,
                  .product = l->args[0].dtype == ZF_BF16 ? ZF_BF16 : ZF_F32,
                  .kept = zfi_head_kept(l->args[0].dtype),
                  .by = zfi_head_by(zfi_head_kept(l->args[0].dtype)),
                  .blocks = zfi_head_blocks(l->attributes),
                  .made = zfi_head_saved_dtype(l->args[0].dtype, l->args[0].shape.dims[0]),
                  .rows = l->args[0].shape.dims[0],
                  .width = l->args[0].shape.dims[1],
                  .classes = l->args[1].shape.dims[0]};
    const int64_t step = h.kept == ZF_F32 ? ZFI_HEAD_CHUNK : ZFI_HEAD_STEP;
    /* classes of products: of full chunks, and with the last */
    const int64_t last = (h.classes - 1) % ZFI_HEAD_CHUNK + 1,
                  classes[] = {ZFI_HEAD_CHUNK, step, last, step - ZFI_HEAD_CHUNK + last};
    int64_t tiles = zfi_max(1, zfi_div_up(h.rows, zfi_head_most(h.dtype))), rest, spans;
    zfi_matmul_desc turned, straight;
    h.tile = zfi_round_up(zfi_max(1, zfi_div_up(h.rows, tiles)), 2 * ZFI_HEAD_LANES);
    tiles = zfi_div_up(h.rows, h.tile);
    h.chunks = zfi_div_up(h.classes, ZFI_HEAD_CHUNK);
    h.step = step / ZFI_HEAD_CHUNK;
    h.groups = zfi_min(ZFI_HEAD_GROUPS, h.classes / zfi_max(1, 4 * h.width));
    h.groups = zfi_min(zfi_max(ZFI_HEAD_GROUPS_LEAST, h.groups), h.chunks);
    spans = zfi_div_up(ZFI_HEAD_TASKS * zfi_pool_threads(zfi_cpu_of(l)->pool), h.groups);
    spans = zfi_max(1, zfi_min(spans, h.width / ZFI_HEAD_SPAN));
    h.span = zfi_max(ZFI_TILE_COLUMNS, zfi_round_up(zfi_div_up(h.width, spans), ZFI_TILE_COLUMNS));
    h.spans = zfi_max(1, zfi_div_up(h.width, h.span));
    rest = h.rows - (tiles - 1) * h.tile; /* rows of the last tile */
    for (int i = 0; i < 16 * ZFI_HEAD_PRODUCTS; i++) {
        const int which = i / 16;
        zfi_matmul_desc d;
        size_t bytes;
        zfi_head_rows(&h, i & 4 ? rest : zfi_min(h.tile, h.rows));
        d = zfi_head_product(&h, which, zfi_min(h.classes, classes[i & 3]),
                             i & 8 ? (h.spans - 1) * h.span : 0);
        bytes = zfi_matmul_tiled_scratch(h.isa, 1, &d);
        if (bytes > h.own_bytes) h.own_bytes = bytes;
    }
    zfi_head_rows(&h, h.tile);
    if (h.kept != ZF_F32) h.z_bytes = ZFI_HEAD_CHUNK * (size_t)h.lanes * sizeof(float);
    if (h.dtype == ZF_F16 || h.blocks.bits)
        h.w_bytes = (size_t)(step * h.width) * zf_dtype_size(h.product);
    h.own_bytes =
        (size_t)zfi_round_up((int64_t)(h.z_bytes + h.w_bytes + h.own_bytes), ZFI_HEAD_ALIGN);
    h.label = zfi_head_take(&h, h.lanes, sizeof *h.label);
    h.lse = zfi_head_take(&h, h.lanes, sizeof *h.lse);
    h.of_label = zfi_head_take(&h, h.lanes, sizeof *h.of_label);
    h.weights = zfi_head_take(&h, h.lanes, sizeof *h.weights);
    h.top = zfi_head_take(&h, h.chunks * h.lanes, sizeof *h.top);
    h.sum = zfi_head_take(&h, h.chunks * h.lanes, sizeof *h.sum);
    h.best = zfi_head_take(&h, h.chunks * h.lanes, sizeof *h.best);
    turned = zfi_head_packing(&h, ZFI_HEAD_LOGITS);
    straight = zfi_head_packing(&h, ZFI_HEAD_TO_W);
    h.turned = zfi_head_take(&h, 1, zfi_matmul_packed_bytes(h.isa, &turned));
    h.straight = zfi_head_take(&h, 1, zfi_matmul_packed_bytes(h.isa, &straight));
    h.z = zfi_head_take(&h, h.classes * h.lanes, zf_dtype_size(h.kept));
    h.part = zfi_head_take(&h, h.groups * h.tile * h.width, sizeof *h.part);
    if (h.dtype == ZF_F16) h.wide = zfi_head_take(&h, h.tile * h.width, sizeof *h.wide);
    h.own = zfi_head_take(&h, zfi_pool_threads(zfi_cpu_of(l)->pool), h.own_bytes);
    return h;
}

static size_t zfi_scratch_head_loss(const zf_launch *l)
{
    zfi_head_plain h = zfi_head_plain_of(l);
    if (zfi_fast_or_half(l)) return zfi_head_of(l).bytes;
    return (2 * (size_t)h.rows + (size_t)zfi_pool_threads(zfi_cpu_of(l)->pool) * (size_t)h.room) *
           sizeof(double);
}

static char *zfi_head_own(const zfi_head *h, int worker)
{
    return h->own + (size_t)worker * h->own_bytes;
}

static void zfi_head_multiply(const zfi_head *h, const zfi_matmul_desc *d, int worker)
{
    zfi_matmul_tiled(h->isa, NULL, d, zfi_head_own(h, worker) + h->z_bytes + h->w_bytes);
}

/* Rows [first, first + count) of w, in the dtype of products. */
static const void *zfi_head_weights(const zfi_head *h, int64_t first, int64_t count, int worker)
{
    const zfi_blocks *b = &h->blocks;
    char *to = zfi_head_own(h, worker) + h->z_bytes;
    if (b->bits) {
        const int64_t records = h->width / b->block;
        const uint8_t *from = (const uint8_t *)h->w + first * records * b->record;
        for (int64_t r = 0; r < count * records; r++)
            zfi_dequantize_block(h->isa, b, h->product, zfi_element_of(to, h->product, r * b->block),
                                 from + r * b->record, false);
        return to;
    }
    if (h->dtype != ZF_F16) return zfi_element(h->w, h->dtype, first * h->width);
    zfi_widen(h->isa, (float *)(void *)to, ZF_F16, zfi_element(h->w, ZF_F16, first * h->width),
              count * h->width);
    return to;
}

/* The number of classes in a chunk. */
static int64_t zfi_head_classes(const zfi_head *h, int64_t chunk)
{
    return zfi_min(ZFI_HEAD_CHUNK, h->classes - chunk * ZFI_HEAD_CHUNK);
}

/* z of a class in scratch. */
static void *zfi_head_z(const zfi_head *h, int64_t class)
{
    return zfi_element_of(h->z, h->kept, class * h->lanes);
}

/* Step 1 for one chunk. */
static void zfi_head_forward(void *context, int64_t chunk, int worker)
{
    const zfi_head *h = context;
    const int64_t first = chunk * ZFI_HEAD_CHUNK, classes = zfi_head_classes(h, chunk);
    zfi_matmul_desc d = zfi_head_product(h, ZFI_HEAD_LOGITS, classes, 0);
    float *z = h->kept == ZF_F32 ? zfi_head_z(h, first) : (void *)zfi_head_own(h, worker);
    float *top = h->top + chunk * h->lanes, bias[ZFI_HEAD_CHUNK];
    d.a = zfi_head_weights(h, first, classes, worker), d.b = h->turned, d.c = z;
    zfi_head_multiply(h, &d, worker);
    for (int64_t v = 0; v < classes && h->count < h->lanes; v++)
        memset(z + v * h->lanes + h->count, 0, (size_t)(h->lanes - h->count) * sizeof *z);
    if (h->bias) zfi_widen(h->isa, bias, h->dtype, zfi_element(h->bias, h->dtype, first), classes);
    zfi_head_top(h->isa, z, h->lanes, h->bias ? bias : NULL, classes, (int32_t)first, top,
                 h->best + chunk * h->lanes);
    for (int64_t t = 0; t < h->count; t++) {
        int64_t at = h->label[t] - first;
        if (at >= 0 && at < classes) h->of_label[t] = z[at * h->lanes + t];
    }
    zfi_head_exp(h->isa, z, h->lanes, classes, h->by, top, h->sum + chunk * h->lanes);
    if (h->kept != ZF_F32) zfi_narrow(h->isa, zfi_head_z(h, first), h->kept, z, classes * h->lanes);
}

/* The tile's rows of x, in the dtype of products. */
static const void *zfi_head_x(const zfi_head *h)
{
    return h->wide ? h->wide : zfi_element(h->x, h->dtype, h->first * h->width);
}

/* Adds rows of dz to db. */
static void zfi_head_add_bias(const zfi_head *h, const float *z, int64_t first, int64_t classes)
{
    float sums[ZFI_HEAD_STRIP];
    for (int64_t v = 0; v < classes; v++) {
        sums[v] = zfi_vsum(h->isa, z + v * h->lanes, h->count);
        if (h->first) sums[v] += ((const float *)h->db)[first + v]; /* not the first tile */
    }
    zfi_narrow(h->isa, zfi_element_of(h->db, h->made, first), h->made, sums, classes);
}

/* The exponentials of one chunk become dz, in the dtype of products: some classes at a time, which
 * are in the nearest cache in f32. */
static void zfi_head_slopes(void *context, int64_t chunk, int worker)
{
    const zfi_head *h = context;
    const int64_t begin = chunk * ZFI_HEAD_CHUNK, end = begin + zfi_head_classes(h, chunk);
    for (int64_t first = begin, classes; first < end; first += classes) {
        float *z = h->kept == ZF_F32 ? zfi_head_z(h, first) : (void *)zfi_head_own(h, worker);
        classes = zfi_min(ZFI_HEAD_STRIP, end - first);
        if (h->kept != ZF_F32)
            zfi_widen(h->isa, z, h->kept, zfi_head_z(h, first), classes * h->lanes);
        zfi_head_scale(h->isa, z, h->lanes, classes, h->sum + chunk * h->lanes);
        for (int64_t t = 0; t < h->count; t++) {
            const int64_t at = h->label[t] - first;
            if (at >= 0 && at < classes) z[at * h->lanes + t] -= h->weights[t] * h->by;
        }
        if (h->db) zfi_head_add_bias(h, z, first, classes);
        if (h->kept != ZF_F32)
            zfi_narrow(h->isa, zfi_head_z(h, first), h->product, z, classes * h->lanes);
    }
}

/* Products of step 3 for one group of chunks and one span of columns. */
static void zfi_head_backward(void *context, int64_t task, int worker)
{
    const zfi_head *h = context;
    const int64_t group = task / h->spans, from = task % h->spans * h->span;
    const int64_t begin = group * h->chunks / h->groups, end = (group + 1) * h->chunks / h->groups;
    for (int64_t chunk = begin, next; chunk < end; chunk = next) {
        const int64_t first = chunk * ZFI_HEAD_CHUNK;
        int64_t classes;
        next = zfi_min(chunk + h->step, end);
        classes = zfi_min(next * ZFI_HEAD_CHUNK, h->classes) - first;
        if (h->dw) {
            zfi_matmul_desc d = zfi_head_product(h, ZFI_HEAD_TO_W, classes, from);
            d.a = zfi_head_z(h, first), d.b = h->straight;
            d.c = zfi_element_of(h->dw, h->made, first * h->width + from);
            d.accumulate = h->first > 0;
            zfi_head_multiply(h, &d, worker);
        }
        if (h->dx) {
            zfi_matmul_desc d = zfi_head_product(h, ZFI_HEAD_TO_X, classes, from);
            d.a = zfi_head_z(h, first);
            d.b = zfi_element(zfi_head_weights(h, first, classes, worker), h->product, from);
            d.c = h->part + group * h->tile * h->width + from;
            d.accumulate = chunk > begin;
            zfi_head_multiply(h, &d, worker);
        }
    }
}

/* One row of dx: adds the sums of the groups. */
static void zfi_head_add_groups(void *context, int64_t row, int worker)
{
    const zfi_head *h = context;
    float *sum = h->part + row * h->width;
    (void)worker;
    for (int64_t group = 1; group < h->groups; group++)
        zfi_add_run(h->isa, sum, h->part + (group * h->tile + row) * h->width, h->width);
    zfi_narrow(h->isa, zfi_element_of(h->dx, h->made, (h->first + row) * h->width), h->made, sum,
               h->width);
}

/* The class of a column's maximum over all chunks: the first, where several have it. */
static int32_t zfi_head_best(const zfi_head *h, int64_t t)
{
    int64_t at = 0;
    for (int64_t chunk = 1; chunk < h->chunks; chunk++) {
        float most = h->top[at * h->lanes + t], top = h->top[chunk * h->lanes + t];
        if (top > most || (isnan(top) && !isnan(most))) at = chunk;
    }
    return h->best[at * h->lanes + t];
}

/* Packs the tile's rows of x as the second operand of a product. */
static void zfi_head_pack(const zfi_head *h, int which, void *to)
{
    zfi_matmul_desc d = zfi_head_packing(h, which);
    d.b = zfi_head_x(h);
    zfi_matmul_pack_b(h->isa, zfi_cpu_of(h->launch)->pool, &d, to);
}

/* Computes a tile of rows. Returns the sum of their losses. */
static double zfi_head_tile(zfi_head *h, float weight, const zf_array *best)
{
    const zf_launch *l = h->launch;
    zfi_pool *pool = zfi_cpu_of(l)->pool;
    double loss = 0;
    if (h->wide)
        zfi_widen(h->isa, h->wide, h->dtype, zfi_element(h->x, h->dtype, h->first * h->width),
                  h->count * h->width);
    zfi_head_pack(h, ZFI_HEAD_LOGITS, h->turned);
    if (h->dw) zfi_head_pack(h, ZFI_HEAD_TO_W, h->straight);
    for (int64_t t = 0; t < h->lanes; t++) {
        int64_t label = t < h->count ? zfi_get_integer(&l->args[2], h->first + t) : -1;
        bool counts = t < h->count && label != ZF_INT(l, head_loss, ignore);
        h->label[t] = counts ? label : -1;
        h->weights[t] = counts ? weight / h->by : 0;
    }
    zfi_pool_run(pool, h->chunks, zfi_head_forward, h);
    zfi_head_lse(h->isa, h->lanes, h->chunks, h->top, h->sum, h->weights, h->lse);
    for (int64_t t = 0; t < h->count; t++) {
        if (h->label[t] >= 0) loss += h->lse[t] - h->of_label[t];
        if (best) ((int32_t *)best->data)[h->first + t] = zfi_head_best(h, t);
    }
    if (h->dx || h->dw || h->db) zfi_pool_run(pool, h->chunks, zfi_head_slopes, h);
    if (h->dx || h->dw) zfi_pool_run(pool, h->groups * h->spans, zfi_head_backward, h);
    if (h->dx) zfi_pool_run(pool, h->count, zfi_head_add_groups, h);
    return loss;
}

static void *zfi_head_saved(const zf_launch *l, int index)
{
    const zf_array *saved = zfi_saved_out(l, index);
    return saved ? saved->data : NULL;
}

static void zfi_head_fast(const zf_launch *l)
{
    zfi_head h = zfi_head_of(l);
    float weight = *(const float *)l->args[3].data;
    double loss = 0;
    h.x = l->args[0].data, h.w = l->args[1].data;
    h.bias = l->arg_count > 4 ? l->args[4].data : NULL;
    h.dx = zfi_head_saved(l, ZFI_HEAD_DX), h.dw = zfi_head_saved(l, ZFI_HEAD_DW);
    h.db = zfi_head_saved(l, ZFI_HEAD_DB);
    if (!h.rows && h.dw) memset(h.dw, 0, (size_t)(h.classes * h.width) * zf_dtype_size(h.made));
    if (!h.rows && h.db) memset(h.db, 0, (size_t)h.classes * zf_dtype_size(h.made));
    for (; h.first < h.rows; h.first += h.tile) {
        zfi_head_rows(&h, zfi_min(h.tile, h.rows - h.first));
        loss += zfi_head_tile(&h, weight, zfi_saved_out(l, ZFI_HEAD_BEST));
    }
    *(float *)l->out.data = (float)(weight * loss);
}

static zf_status zfi_cpu_head_loss(const zf_launch *l)
{
    zf_array logits = {NULL, l->args[0].dtype, ZF_SHAPE(l->args[1].shape.dims[0])};
    zf_launch labelled = *l;
    zf_status status;
    labelled.arg_count = 3; /* so that the labels are the last operand */
    status = zfi_check_labels(&labelled, "head_loss", &logits);
    if (status) return status;
    if (zfi_fast_or_half(l)) zfi_head_fast(l);
    else zfi_head_reference(l);
    return ZF_OK;
}

/* Products: the logits, dx and dw. */
static int zfi_head_products(const zf_launch *l)
{
    return 1 + (l->saved && l->saved[ZFI_HEAD_DX].shape.rank) +
           (l->saved && l->saved[ZFI_HEAD_DW].shape.rank);
}

static double zfi_flops_head_loss(const zf_launch *l)
{
    return 2.0 * (double)zfi_count(&l->args[0]) * (double)l->args[1].shape.dims[0] *
           zfi_head_products(l);
}

/* An exponential for each logit. */
static double zfi_functions_head_loss(const zf_launch *l)
{
    return (double)zfi_row_count(&l->args[0].shape) * (double)l->args[1].shape.dims[0];
}

/* Logits, which every product writes or reads; and for each tile but the first, w for z and for dx,
 * and dw, which is f32, read and written: four values of 16 bits. */
static double zfi_between_head_loss(const zf_launch *l)
{
    const int64_t rows = zfi_row_count(&l->args[0].shape), most = zfi_head_most(l->args[0].dtype),
                  tiles = zfi_div_up(rows, most);
    const double table = (double)l->args[1].shape.dims[0] * (double)zfi_last(&l->args[0].shape);
    double each = 1; /* values for each number of w */
    if (l->saved && l->saved[ZFI_HEAD_DX].shape.rank) each += 1;
    if (l->saved && l->saved[ZFI_HEAD_DW].shape.rank) each += 4;
    return zfi_functions_head_loss(l) * zfi_head_products(l) +
           (tiles > 1 ? (double)(tiles - 1) * table * each : 0);
}

/* ------------------------------------------------------------------------------- records */

ZFI_OPERATOR(head_loss, .infer = zfi_infer_head_loss, .grad = zfi_grad_head_loss,
             .cpu = zfi_cpu_head_loss, .scratch = zfi_scratch_head_loss,
             .saved = zfi_saved_head_loss, .flops = zfi_flops_head_loss,
             .functions = zfi_functions_head_loss, .between = zfi_between_head_loss,
             .traits = ZF_OP_ONCE | ZF_OP_READS_HALF)
