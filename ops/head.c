/* The head of a language model in tiles of rows: head_loss here, head_logp in ops/logp.c. Only the
 * logits of one tile are in memory, and their gradient replaces them.
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
 * an error of the step. weight has the result's dtype, f32, or f64 for f64 operands: a scalar, or
 * [P], of each row. The gradient of a scalar is dy y / weight; a trained one must not be 0.
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
 * bf16: the same with bf16 products, for which dz is rounded. Between steps 1 and 3 exponentials
 * are f16, so that as many bytes hold twice as many rows; dz replaces them. The largest of a chunk
 * is 1, which f16 holds: dz at the label of a row whose loss is almost 0 has no other error than in
 * f32.
 * f16: its range is too small for dz, so x and w are converted to f32, a tile and a chunk at a
 * time. All sums are in f32.
 *
 * dx is summed within groups of neighbouring chunks, then over the groups. Tiles, chunks and groups
 * depend on the shape alone. Where there are more threads than groups, they share the columns of dw
 * and dx. x is packed for products once a tile. Each tile reads all of w twice, and reads and
 * writes dw in f32: with too few rows in a tile, memory bandwidth is the limit. Scratch is at most
 *
 *     z: 1 KiB for each class (f32, f16: 256 rows of 4 bytes; bf16: 512 rows of 2 bytes)
 *     dx of the groups: as much as half of z in bf16, a quarter in f32; at least two of a tile
 *     12 bytes for each chunk and row, x of a tile twice, and for each thread packed operands
 *
 * With bits (8 or 4), w is u8 [V, records of a row of H numbers] in the blocks of quantize.c, and
 * frozen: it has no gradient. A chunk of it is dequantised for each product, into a worker's
 * scratch, in the dtype of products. */

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
    ZFI_HEAD_LIMIT = 32 << 20, /* bytes of the exponentials of a tile of head_logp_grad */
    ZFI_HEAD_ALIGN = 64
};

/* The dtype of exponentials that are kept. */
static zf_dtype zfi_head_kept(zf_dtype x) { return x == ZF_BF16 ? ZF_F16 : ZF_F32; }

/* Rows of a tile, at most; two vectors or a multiple, but in the last. */
static int64_t zfi_head_most(zf_dtype x)
{
    return ZFI_HEAD_BYTES / (int64_t)zf_dtype_size(zfi_head_kept(x));
}

/* The same in a launch: head_logp_grad keeps the exponentials of its tile below ZFI_HEAD_LIMIT. */
static int64_t zfi_head_most_of(const zf_launch *l)
{
    const int64_t most = zfi_head_most(l->args[0].dtype), classes = l->args[1].shape.dims[0],
                  each = classes * (int64_t)zf_dtype_size(zfi_head_kept(l->args[0].dtype)),
                  rows = ZFI_HEAD_LIMIT / each / (2 * ZFI_HEAD_LANES) * (2 * ZFI_HEAD_LANES);
    return l->op == ZF_OP_head_logp_grad ? zfi_max(2 * ZFI_HEAD_LANES, zfi_min(most, rows)) : most;
}

/* How w is quantised; bits 0: it is floats. */
static zfi_blocks zfi_head_blocks(const zf_attribute *attributes)
{
    return zfi_blocks_by(attributes[ZF_AT_head_loss_bits].i, attributes[ZF_AT_head_loss_block].i,
                         attributes[ZF_AT_head_loss_scale].i);
}

/* Checks x, w, labels, and the bias where it is operand `bias`. */
static zf_status zfi_infer_head(zfi_infer *c, int32_t bias)
{
    const zfi_node *x = c->args[0], *w = c->args[1], *labels = c->args[2];
    const zfi_blocks b = zfi_head_blocks(c->attributes);
    zf_status status = ZF_OK;
    int64_t width;
    if (!zfi_is_float(x->dtype))
        return zfi_infer_fail(c, ZF_ERR_DTYPE, "x must be float: f32, bf16, f16 or f64");
    if (b.bits) status = zfi_infer_quantized(c, b.bits, b.block, b.scale);
    if (b.bits && !status) status = zfi_infer_weight_of(c, &b, 2);
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
    if ((!b.bits && w->dtype != x->dtype) ||
        (c->arg_count > bias && c->args[bias]->dtype != x->dtype))
        return zfi_infer_fail(c, ZF_ERR_DTYPE, "x, w and the bias must have one dtype");
    if (labels->shape.rank != 1 || labels->shape.dims[0] != x->shape.dims[0])
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "the labels must be [%lld], one for each row of x",
                              (long long)x->shape.dims[0]);
    if (!zfi_is_integer(labels->dtype))
        return zfi_infer_fail(c, ZF_ERR_DTYPE, "the labels must be i32 or i64");
    if (c->arg_count > bias &&
        (c->args[bias]->shape.rank != 1 || c->args[bias]->shape.dims[0] != w->shape.dims[0]))
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "the bias must be [%lld]",
                              (long long)w->shape.dims[0]);
    c->dtype = zfi_wide(x->dtype);
    return ZF_OK;
}

static zf_status zfi_infer_head_loss(zfi_infer *c)
{
    const zfi_node *weight = c->args[3];
    const zf_status status = zfi_infer_head(c, 4);
    if (status) return status;
    if (weight->dtype != c->dtype ||
        (weight->shape.rank && !zfi_same_shape(&weight->shape, &c->args[2]->shape)))
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "the weight must be %s[], or %s[%lld], of each row",
                              zf_dtype_name(c->dtype), zf_dtype_name(c->dtype),
                              (long long)c->args[2]->shape.dims[0]);
    c->shape = ZF_SCALAR;
    return ZF_OK;
}

/* Saved values of head_loss, head_logp and its gradient. */
enum { ZFI_HEAD_DX, ZFI_HEAD_DW, ZFI_HEAD_DB, ZFI_HEAD_BEST };
enum { ZFI_LOGP_ENTROPY, ZFI_LOGP_BEST };
enum { ZFI_LOGP_DW, ZFI_LOGP_DB };

/* Numbers of a section of the classes (ops/head_part.c). */
enum {
    ZFI_SECTION_TOP,
    ZFI_SECTION_SUM,
    ZFI_SECTION_LABEL,
    ZFI_SECTION_BEST,
    ZFI_SECTION_SPREAD
};

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

/* The log-probabilities of the labels that a head_loss has. */
static zf_tensor zfi_head_logp_like(const zf_grad *c)
{
    const zf_tensor args[] = {c->x[0], c->x[1], c->x[2], c->count > 4 ? c->x[4] : c->x[3]};
    zf_attribute attributes[ZF_MAX_ATTRIBUTES] = {{0}};
    memcpy(attributes, c->attributes, sizeof attributes);
    attributes[ZF_AT_head_logp_temperature].f = 1;
    return zfi_build(ZF_OP_head_logp, c->count > 4 ? 4 : 3, args, attributes);
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
    if (!c->need[3]) return;
    if (zf_tensor_shape(c->x[3]).rank)
        c->dx[3] = zf_neg(zf_mul(c->dy, zfi_head_logp_like(c)));
    else c->dx[3] = zf_mul(c->dy, zf_div(c->y, c->x[3]));
}

/* ------------------------------------------------------------------------------ reference */

/* The operands and results of a launch; NULL: there is none. */
typedef struct zfi_head_values {
    const zf_array *bias;
    const zf_array *weight;       /* of losses: one number, or one for each row */
    double factor;                /* of the weight in dz */
    double scale;                 /* of logits */
    bool labelled;                /* only rows with a label are computed */
    bool makes_dx, makes_entropy; /* also before there is memory for them */
    const zf_array *dx, *dw, *db; /* gradients */
    const zf_array *best, *logp, *entropy;
    /* Of a section of the classes (ops/head_part.c): what head_part makes; of its gradient, slopes
     * and the largest logits; the number of its first class; its number here and in all, and how
     * many are here */
    const zf_array *parts, *slopes, *tops;
    int64_t class, section, place, of;
} zfi_head_values;

static zfi_head_values zfi_head_values_of(const zf_launch *l)
{
    return (zfi_head_values){.bias = l->arg_count > 4 ? &l->args[4] : NULL,
                             .weight = &l->args[3],
                             .factor = 1,
                             .scale = 1,
                             .makes_dx = true,
                             .dx = zfi_saved_out(l, ZFI_HEAD_DX),
                             .dw = zfi_saved_out(l, ZFI_HEAD_DW),
                             .db = zfi_saved_out(l, ZFI_HEAD_DB),
                             .best = zfi_saved_out(l, ZFI_HEAD_BEST)};
}

/* What dz of a row is multiplied by; 0 where the row adds nothing. */
static double zfi_head_weight_of(const zf_launch *l, const zfi_head_values *v, int64_t row)
{
    const int64_t label = zfi_get_integer(&l->args[2], row);
    if (!v->weight || label == ZF_INT(l, head_loss, ignore)) return 0;
    return v->factor * zfi_get(v->weight, v->weight->shape.rank ? row : 0);
}

/* Scratch: lse of every row, and for each worker one row of classes or one column of rows. */
typedef struct zfi_head_plain {
    const zf_launch *launch;
    zfi_head_values of;
    zfi_blocks blocks; /* bits 0: w is floats */
    int64_t rows, width, classes, room;
    double *lse, *loss, *work;
} zfi_head_plain;

static zfi_head_plain zfi_head_plain_of(const zf_launch *l, const zfi_head_values *of)
{
    zfi_head_plain h = {.launch = l,
                        .of = *of,
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
    return (h->of.bias ? sum + zfi_get(h->of.bias, class) : sum) * h->of.scale;
}

/* dz of one logit. */
static double zfi_head_slope(const zfi_head_plain *h, int64_t row, int64_t class, double logit)
{
    const int64_t label = zfi_get_integer(&h->launch->args[2], row);
    if (label == ZF_INT(h->launch, head_loss, ignore)) return 0;
    return zfi_head_weight_of(h->launch, &h->of, row) *
           (exp(logit - h->lse[row]) - (class == label));
}

/* What a row of logits is made into, but for gradients. */
static void zfi_head_plain_scores(const zfi_head_plain *h, int64_t row, const double *z, int64_t at)
{
    const int64_t label = zfi_get_integer(&h->launch->args[2], row);
    const bool counts = label != ZF_INT(h->launch, head_loss, ignore);
    double entropy = 0;
    h->loss[row] = counts ? h->lse[row] - z[label] : 0;
    if (h->of.best) zfi_set_integer(h->of.best, row, counts || !h->of.labelled ? at : -1);
    if (h->of.logp) zfi_set(h->of.logp, row, -h->loss[row]);
    for (int64_t v = 0; v < h->classes && h->of.entropy && counts; v++) {
        const double p = exp(z[v] - h->lse[row]);
        if (p > 0) entropy += p * (h->lse[row] - z[v]);
    }
    if (h->of.entropy) zfi_set(h->of.entropy, row, entropy);
}

/* One row: lse, loss, the class with the largest logit, dx. */
static void zfi_head_plain_row(void *context, int64_t row, int worker)
{
    const zfi_head_plain *h = context;
    double *z = h->work + worker * h->room, most = -INFINITY, sum = 0;
    int64_t at = 0;
    for (int64_t v = 0; v < h->classes; v++) {
        z[v] = zfi_head_logit(h, row, v);
        if (z[v] > most || (isnan(z[v]) && !isnan(most))) most = z[v], at = v;
    }
    if (isinf(most)) most = 0;
    for (int64_t v = 0; v < h->classes; v++) sum += exp(z[v] - most);
    h->lse[row] = most + log(sum);
    zfi_head_plain_scores(h, row, z, at);
    for (int64_t v = 0; v < h->classes && h->of.dx; v++) z[v] = zfi_head_slope(h, row, v, z[v]);
    for (int64_t i = 0; i < h->width && h->of.dx; i++) { /* dx[row,i] */
        sum = 0;
        for (int64_t v = 0; v < h->classes; v++) sum += z[v] * zfi_head_weight(h, v, i);
        zfi_set(h->of.dx, row * h->width + i, sum);
    }
}

/* One class: dw and db. */
static void zfi_head_plain_class(void *context, int64_t class, int worker)
{
    const zfi_head_plain *h = context;
    double *dz = h->work + worker * h->room, sum = 0;
    for (int64_t row = 0; row < h->rows; row++) {
        dz[row] = zfi_head_slope(h, row, class, zfi_head_logit(h, row, class));
        sum += dz[row];
    }
    if (h->of.db) zfi_set(h->of.db, class, sum);
    for (int64_t i = 0; i < h->width && h->of.dw; i++) { /* dw[class,i] */
        sum = 0;
        for (int64_t row = 0; row < h->rows; row++)
            sum += dz[row] * zfi_get(&h->launch->args[0], row * h->width + i);
        zfi_set(h->of.dw, class * h->width + i, sum);
    }
}

/* What the loss of a row is multiplied by before it is added to others. */
static double zfi_head_row_weight(const zfi_head_values *of, int64_t row)
{
    return of->weight && of->weight->shape.rank ? zfi_get(of->weight, row) : 1;
}

/* Returns the sum of the losses, without a common weight. */
static double zfi_head_reference(const zf_launch *l, const zfi_head_values *of)
{
    zfi_head_plain h = zfi_head_plain_of(l, of);
    double loss = 0;
    zfi_pool_run(zfi_cpu_of(l)->pool, h.rows, zfi_head_plain_row, &h);
    for (int64_t row = 0; row < h.rows; row++)
        loss += zfi_head_row_weight(of, row) * h.loss[row];
    if (of->dw || of->db) zfi_pool_run(zfi_cpu_of(l)->pool, h.classes, zfi_head_plain_class, &h);
    return loss;
}

/* ----------------------------------------------------------------------------------- fast */

/* For each of `lanes` neighbouring columns of z: adds the bias (may be NULL), multiplies by
 * `scale`, and finds the maximum of `classes` numbers, NaN being the largest, and the first index
 * at which it is, counted from `first`. */
ZFI_BODY void zfi_head_top_body(zfi_isa isa, float *z, int64_t lanes, const float *bias,
                                float scale, int64_t classes, int32_t first, float *top,
                                int32_t *best)
{
    for (int64_t t = 0; t < lanes; t++) top[t] = -INFINITY, best[t] = first;
    for (int64_t v = 0; v < classes; v++, z += lanes) {
        float b = bias ? bias[v] : 0;
        int32_t index = first + (int32_t)v;
        ZFI_VECTOR
        for (int64_t t = 0; t < lanes; t++) {
            float x = (z[t] + b) * scale, most = top[t];
            bool more = (most < x) | ((x != x) & (most == most));
            z[t] = x;
            top[t] = zfi_pick(isa, more, x, most);
            best[t] = more ? index : best[t];
        }
    }
}
ZFI_KERNEL(zfi_head_top,
           (float *z, int64_t lanes, const float *bias, float scale, int64_t classes, int32_t first,
            float *top, int32_t *best),
           (z, lanes, bias, scale, classes, first, top, best))

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

/* The sum over each column of e^d d, d = z - base: what the entropy needs of a chunk. */
ZFI_BODY void zfi_head_spread_body(zfi_isa isa, const float *z, int64_t lanes, int64_t classes,
                                   const float *top, float *spread)
{
    float base[ZFI_HEAD_TILE];
    for (int64_t t = 0; t < lanes; t++) base[t] = zfi_head_base(isa, top[t]), spread[t] = 0;
    for (int64_t v = 0; v < classes; v++, z += lanes) {
        ZFI_VECTOR
        for (int64_t t = 0; t < lanes; t++) {
            float d = z[t] - base[t], e = zfi_exp1(isa, d);
            spread[t] += zfi_pick(isa, e == 0.0f, 0.0f, e * d);
        }
    }
}
ZFI_KERNEL(zfi_head_spread,
           (const float *z, int64_t lanes, int64_t classes, const float *top, float *spread),
           (z, lanes, classes, top, spread))

/* For each column, from top and sum [chunks, lanes] of all chunks: computes lse. If the largest
 * logit is infinite, it is lse. */
ZFI_BODY void zfi_head_lse_body(zfi_isa isa, int64_t lanes, int64_t chunks, const float *top,
                                const float *sum, double *lse)
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
}
ZFI_KERNEL(zfi_head_lse,
           (int64_t lanes, int64_t chunks, const float *top, const float *sum, double *lse),
           (lanes, chunks, top, sum, lse))

/* Replaces the sums of chunks by the factors that turn exponentials into dz. `weights` has one
 * number for each column, 0 where the row adds nothing. */
ZFI_BODY void zfi_head_factors_body(zfi_isa isa, int64_t lanes, int64_t chunks, const float *top,
                                    float *sum, const float *weights, const double *lse)
{
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
ZFI_KERNEL(zfi_head_factors,
           (int64_t lanes, int64_t chunks, const float *top, float *sum, const float *weights,
            const double *lse),
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
    zfi_head_values of;
    zfi_isa isa;
    zf_dtype dtype, product; /* dtype: of x, w and the bias; product: of the operands of products */
    zf_dtype kept;           /* of exponentials */
    float by;                /* zfi_head_by of it */
    zfi_blocks blocks;       /* of w; bits 0: it is floats */
    int64_t rows, width, classes;
    int64_t tile, chunks, groups; /* rows of a tile but the last; chunks; groups of chunks */
    int64_t step;                 /* chunks that a product adds to dx */
    int64_t spans, span; /* of columns of dw and dx, which tasks share; no bits depend on it */
    /* The current tile: its first row, rows, rows of products, and these rounded up. Of labelled
     * rows alone, `first` counts these, and products have 2 ZFI_HEAD_LANES or a multiple */
    int64_t first, used, count, lanes;
    int32_t *index;       /* [rows]: the rows with a label; NULL: all are computed */
    const void *x, *w;
    void *dx, *dw, *db;   /* may be NULL */
    zf_dtype made;               /* the dtype of dx, dw and db */
    /* Arrays in scratch: */
    int64_t *label;            /* [lanes], -1: ignored */
    double *lse;               /* [lanes] */
    float *of_label, *weights; /* [lanes]; weights: of `by`, 0 where a row adds nothing */
    float *at_label;           /* [lanes]: what dz at the label is less */
    float *top, *sum;          /* [chunks, lanes]; the sums become factors */
    float *spread;             /* [chunks, lanes], NULL: no entropy is asked for */
    int32_t *best;             /* [chunks, lanes] */
    void *turned, *straight;   /* x^T and x of the tile, packed */
    /* [classes, lanes]: exponentials, f16 if products are bf16; then dz. Without gradients they are
     * not kept, and a chunk's are in `own` */
    void *z;
    float *part; /* [groups, tile, width]: sums of dx */
    float *open; /* [open sums, tile, width]: dx of sections; NULL: there is one */
    /* [tile, width]: the tile's rows of x in the dtype of products; NULL: they lie in x so */
    void *own_x;
    /* for each worker: a chunk in f32 if z is not, w if it is converted, the product's scratch */
    char *own;
    size_t z_bytes, w_bytes, own_bytes, bytes; /* of these two, of `own`, of all scratch */
} zfi_head;

enum { ZFI_HEAD_LOGITS, ZFI_HEAD_TO_W, ZFI_HEAD_TO_X, ZFI_HEAD_PRODUCTS };

static void zfi_head_rows(zfi_head *h, int64_t count)
{
    h->used = count;
    h->count = h->of.labelled ? zfi_round_up(count, 2 * ZFI_HEAD_LANES) : count;
    h->lanes = zfi_round_up(h->count, ZFI_HEAD_LANES);
}

/* The row of x that row `t` of the tile is. */
static int64_t zfi_head_row(const zfi_head *h, int64_t t)
{
    return h->index ? h->index[h->first + t] : h->first + t;
}

/* The product of `classes` with the current tile; of dw and dx, columns from `from` on. Pointers
 * are not set. */
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

/* Raises own_bytes to what products of a tile of `count` rows need. */
static void zfi_head_make_room(zfi_head *h, int64_t count)
{
    const int64_t step = h->step * ZFI_HEAD_CHUNK;
    /* classes of products: of full chunks, and with the last */
    const int64_t last = (h->classes - 1) % ZFI_HEAD_CHUNK + 1,
                  classes[] = {ZFI_HEAD_CHUNK, step, last, step - ZFI_HEAD_CHUNK + last};
    zfi_head_rows(h, count);
    for (int i = 0; i < 8 * ZFI_HEAD_PRODUCTS; i++) {
        const zfi_matmul_desc d = zfi_head_product(h, i / 8, zfi_min(h->classes, classes[i & 3]),
                                                   i & 4 ? (h->spans - 1) * h->span : 0);
        const size_t bytes = zfi_matmul_tiled_scratch(h->isa, 1, &d);
        if (bytes > h->own_bytes) h->own_bytes = bytes;
    }
}

/* How the work is split, and where the arrays in scratch are. */
static zfi_head zfi_head_of(const zf_launch *l, const zfi_head_values *of)
{
    zfi_head h = {.launch = l,
                  .of = *of,
                  .isa = zfi_cpu_of(l)->isa,
                  .dtype = l->args[0].dtype,
                  .product = l->args[0].dtype == ZF_BF16 ? ZF_BF16 : ZF_F32,
                  .kept = zfi_head_kept(l->args[0].dtype),
                  .by = zfi_head_by(zfi_head_kept(l->args[0].dtype)),
                  .blocks = zfi_head_blocks(l->attributes),
                  .made = l->op == ZF_OP_head_loss
                              ? zfi_head_saved_dtype(l->args[0].dtype, l->args[0].shape.dims[0])
                              : zfi_wide(l->args[0].dtype),
                  .rows = l->args[0].shape.dims[0],
                  .width = l->args[0].shape.dims[1],
                  .classes = l->args[1].shape.dims[0]};
    const int64_t step = h.kept == ZF_F32 ? ZFI_HEAD_CHUNK : ZFI_HEAD_STEP;
    int64_t tiles = zfi_max(1, zfi_div_up(h.rows, zfi_head_most_of(l))), spans;
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
    if (of->labelled) /* any number of rows may have a label */
        for (int64_t count = h.tile; count > 0; count -= 2 * ZFI_HEAD_LANES)
            zfi_head_make_room(&h, count);
    else
        for (int last = 0; last < 2; last++)
            zfi_head_make_room(&h, last ? h.rows - (tiles - 1) * h.tile : zfi_min(h.tile, h.rows));
    zfi_head_rows(&h, h.tile);
    if (h.kept != ZF_F32 || !of->makes_dx) h.z_bytes = ZFI_HEAD_CHUNK * (size_t)h.lanes * sizeof(float);
    if (h.dtype == ZF_F16 || h.blocks.bits)
        h.w_bytes = (size_t)(step * h.width) * zf_dtype_size(h.product);
    h.own_bytes =
        (size_t)zfi_round_up((int64_t)(h.z_bytes + h.w_bytes + h.own_bytes), ZFI_HEAD_ALIGN);
    /* first: at one place for all sections, of which the last may have fewer classes */
    if (of->makes_dx && of->of > 1)
        h.open = zfi_head_take(&h, zfi_tree_depths(of->of) * h.tile * h.width, sizeof *h.open);
    h.label = zfi_head_take(&h, h.lanes, sizeof *h.label);
    h.lse = zfi_head_take(&h, h.lanes, sizeof *h.lse);
    h.of_label = zfi_head_take(&h, h.lanes, sizeof *h.of_label);
    h.weights = zfi_head_take(&h, h.lanes, sizeof *h.weights);
    h.at_label = zfi_head_take(&h, h.lanes, sizeof *h.at_label);
    h.top = zfi_head_take(&h, h.chunks * h.lanes, sizeof *h.top);
    h.sum = zfi_head_take(&h, h.chunks * h.lanes, sizeof *h.sum);
    h.best = zfi_head_take(&h, h.chunks * h.lanes, sizeof *h.best);
    if (of->makes_entropy) h.spread = zfi_head_take(&h, h.chunks * h.lanes, sizeof *h.spread);
    if (of->labelled) h.index = zfi_head_take(&h, h.rows, sizeof *h.index);
    turned = zfi_head_packing(&h, ZFI_HEAD_LOGITS);
    straight = zfi_head_packing(&h, ZFI_HEAD_TO_W);
    h.turned = zfi_head_take(&h, 1, zfi_matmul_packed_bytes(h.isa, &turned));
    h.straight = zfi_head_take(&h, 1, zfi_matmul_packed_bytes(h.isa, &straight));
    if (of->makes_dx) h.z = zfi_head_take(&h, h.classes * h.lanes, zf_dtype_size(h.kept));
    if (of->makes_dx) h.part = zfi_head_take(&h, h.groups * h.tile * h.width, sizeof *h.part);
    if (h.dtype == ZF_F16 || of->labelled)
        h.own_x = zfi_head_take(&h, h.tile * h.width, zf_dtype_size(h.product));
    h.own = zfi_head_take(&h, zfi_pool_threads(zfi_cpu_of(l)->pool), h.own_bytes);
    return h;
}

static size_t zfi_head_scratch(const zf_launch *l, const zfi_head_values *of)
{
    zfi_head_plain h = zfi_head_plain_of(l, of);
    if (zfi_fast_or_half(l)) return zfi_head_of(l, of).bytes;
    return (2 * (size_t)h.rows + (size_t)zfi_pool_threads(zfi_cpu_of(l)->pool) * (size_t)h.room) *
           sizeof(double);
}

static size_t zfi_scratch_head_loss(const zf_launch *l)
{
    const zfi_head_values of = zfi_head_values_of(l);
    return zfi_head_scratch(l, &of);
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
    const bool in_own = h->kept != ZF_F32 || !h->of.makes_dx;
    float *z = in_own ? (void *)zfi_head_own(h, worker) : zfi_head_z(h, first);
    float *top = h->top + chunk * h->lanes, bias[ZFI_HEAD_CHUNK];
    const zf_array *of_bias = h->of.bias;
    d.a = zfi_head_weights(h, first, classes, worker), d.b = h->turned, d.c = z;
    zfi_head_multiply(h, &d, worker);
    for (int64_t v = 0; v < classes && h->count < h->lanes; v++)
        memset(z + v * h->lanes + h->count, 0, (size_t)(h->lanes - h->count) * sizeof *z);
    if (of_bias)
        zfi_widen(h->isa, bias, h->dtype, zfi_element(of_bias->data, h->dtype, first), classes);
    zfi_head_top(h->isa, z, h->lanes, of_bias ? bias : NULL, (float)h->of.scale, classes,
                 (int32_t)first, top, h->best + chunk * h->lanes);
    for (int64_t t = 0; t < h->count; t++) {
        int64_t at = h->label[t] - first;
        if (at >= 0 && at < classes) h->of_label[t] = z[at * h->lanes + t];
    }
    if (h->spread)
        zfi_head_spread(h->isa, z, h->lanes, classes, top, h->spread + chunk * h->lanes);
    zfi_head_exp(h->isa, z, h->lanes, classes, h->by, top, h->sum + chunk * h->lanes);
    if (in_own && h->of.makes_dx)
        zfi_narrow(h->isa, zfi_head_z(h, first), h->kept, z, classes * h->lanes);
}

/* The tile's rows of x, in the dtype of products. */
static const void *zfi_head_x(const zfi_head *h)
{
    return h->own_x ? h->own_x : zfi_element(h->x, h->dtype, h->first * h->width);
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
            if (at >= 0 && at < classes) z[at * h->lanes + t] -= h->at_label[t];
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

/* Adds one row of dx of a section to those of the sections before, by a balanced tree; NULL: more
 * sections follow. */
static float *zfi_head_add_section(const zfi_head *h, int64_t row, const float *x)
{
    int depth = zfi_tree_depth(h->of.section);
    float *sum = h->open + (depth * h->tile + row) * h->width;
    memcpy(sum, x, (size_t)h->width * sizeof *sum);
    for (int k = zfi_tree_merges(h->of.section, h->of.of); k > 0; k--) {
        float *into = h->open + (--depth * h->tile + row) * h->width;
        zfi_add_run(h->isa, into, sum, h->width);
        sum = into;
    }
    return h->of.section + 1 == h->of.of ? sum : NULL;
}

/* One row of dx: adds the sums of the groups. */
static void zfi_head_add_groups(void *context, int64_t row, int worker)
{
    const zfi_head *h = context;
    float *sum = h->part + row * h->width;
    (void)worker;
    for (int64_t group = 1; group < h->groups; group++)
        zfi_add_run(h->isa, sum, h->part + (group * h->tile + row) * h->width, h->width);
    if (h->open && !(sum = zfi_head_add_section(h, row, sum))) return;
    zfi_narrow(h->isa, zfi_element_of(h->dx, h->made, zfi_head_row(h, row) * h->width), h->made, sum,
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

/* Copies the tile's rows of x, where they do not lie as products need them. */
static void zfi_head_take_x(const zfi_head *h)
{
    const size_t bytes = zf_dtype_size(h->product) * (size_t)h->width;
    for (int64_t t = 0; t < h->count && h->own_x; t++) {
        char *to = (char *)h->own_x + (size_t)t * bytes;
        const void *from = t < h->used ? zfi_element(h->x, h->dtype, zfi_head_row(h, t) * h->width)
                                       : NULL;
        if (!from) memset(to, 0, bytes);
        else if (h->dtype == h->product) memcpy(to, from, bytes);
        else zfi_widen(h->isa, (float *)(void *)to, h->dtype, from, h->width);
    }
}

/* The numbers of a row in parts. */
static const float *zfi_head_parts_of(const zfi_head *h, const zf_array *parts, int64_t row)
{
    const zf_shape *s = &parts->shape;
    return (const float *)parts->data + (row * s->dims[1] + h->of.place) * s->dims[2];
}

/* What dz of column t is made of, as head_join_grad gives it. */
static void zfi_head_take_slopes(const zfi_head *h, int64_t t, int64_t row)
{
    const float *slopes = zfi_head_parts_of(h, h->of.slopes, row),
                top = *zfi_head_parts_of(h, h->of.tops, row), factor = (float)h->of.factor;
    h->weights[t] = slopes[ZFI_SECTION_SUM] * factor / h->by;
    h->at_label[t] = -slopes[ZFI_SECTION_LABEL] * factor;
    h->lse[t] = top == -INFINITY ? 0 : (double)top;
}

/* The labels of the tile's rows, and the weights of their dz. */
static void zfi_head_take_labels(const zfi_head *h)
{
    const zf_launch *l = h->launch;
    for (int64_t t = 0; t < h->lanes; t++) {
        const int64_t row = t < h->used ? zfi_head_row(h, t) : 0,
                      label = t < h->used ? zfi_get_integer(&l->args[2], row) : -1;
        const bool counts = t < h->used && label != ZF_INT(l, head_loss, ignore);
        h->label[t] = counts ? label - h->of.class : -1;
        h->weights[t] = counts ? (float)zfi_head_weight_of(l, &h->of, row) / h->by : 0;
        h->at_label[t] = h->weights[t] * h->by;
        if (counts && h->of.slopes) zfi_head_take_slopes(h, t, row);
    }
}

/* The entropy of a column: with P = e^(base - most) of each chunk,
 * log(sum of P sum) - (sum of P (spread + (base - most) sum)) / (sum of P sum). */
static double zfi_head_entropy(const zfi_head *h, int64_t t)
{
    double most = -INFINITY, sum = 0, spread = 0;
    for (int64_t c = 0; c < h->chunks; c++) most = fmax(most, (double)h->top[c * h->lanes + t]);
    if (isinf(most)) return 0;
    for (int64_t c = 0; c < h->chunks; c++) {
        const double top = (double)h->top[c * h->lanes + t], d = (isinf(top) ? 0 : top) - most,
                     p = isinf(top) ? 0 : exp(d), of = (double)h->sum[c * h->lanes + t];
        sum += p * of;
        spread += p * ((double)h->spread[c * h->lanes + t] + d * of);
    }
    return log(sum) - spread / sum;
}

/* Writes what a tile gives for each row; returns the sum of the losses. */
static double zfi_head_put_scores(const zfi_head *h)
{
    double loss = 0;
    for (int64_t t = 0; t < h->used; t++) {
        const int64_t row = zfi_head_row(h, t);
        const double of = h->label[t] < 0 ? 0 : h->lse[t] - h->of_label[t];
        if (h->label[t] >= 0) loss += zfi_head_row_weight(&h->of, row) * of;
        if (h->of.logp) ((float *)h->of.logp->data)[row] = (float)-of;
        if (h->of.best) ((int32_t *)h->of.best->data)[row] = zfi_head_best(h, t);
    }
    return loss;
}

/* Writes what head_part makes of the section of column t. */
static void zfi_head_put_part(const zfi_head *h, int64_t t, float *to)
{
    double sum = 0, spread = 0;
    float most = -INFINITY;
    for (int64_t c = 0; c < h->chunks; c++) {
        const float top = h->top[c * h->lanes + t];
        if (top > most || (isnan(top) && !isnan(most))) most = top;
    }
    for (int64_t c = 0; c < h->chunks; c++) {
        const double top = (double)h->top[c * h->lanes + t], of = (double)h->sum[c * h->lanes + t],
                     d = top == (double)most ? 0 : top - (double)most, p = exp(d);
        sum += p == 0 ? 0 : p * of;
        if (h->spread && p != 0) spread += p * ((double)h->spread[c * h->lanes + t] + d * of);
    }
    to[ZFI_SECTION_TOP] = most, to[ZFI_SECTION_SUM] = (float)sum;
    if (h->label[t] >= 0 && h->label[t] < h->classes) to[ZFI_SECTION_LABEL] = h->of_label[t];
    to[ZFI_SECTION_BEST] = (float)(h->of.class + zfi_head_best(h, t));
    if (h->spread) to[ZFI_SECTION_SPREAD] = (float)spread;
}

static void zfi_head_put_parts(const zfi_head *h)
{
    for (int64_t t = 0; t < h->used; t++)
        zfi_head_put_part(
            h, t, (float *)(uintptr_t)zfi_head_parts_of(h, h->of.parts, zfi_head_row(h, t)));
}

/* Computes a tile of rows. Returns the sum of their losses. */
static double zfi_head_tile(zfi_head *h)
{
    zfi_pool *pool = zfi_cpu_of(h->launch)->pool;
    zfi_head_take_x(h);
    zfi_head_pack(h, ZFI_HEAD_LOGITS, h->turned);
    if (h->dw) zfi_head_pack(h, ZFI_HEAD_TO_W, h->straight);
    zfi_head_take_labels(h);
    zfi_pool_run(pool, h->chunks, zfi_head_forward, h);
    for (int64_t t = 0; t < h->used && h->of.entropy; t++)
        ((float *)h->of.entropy->data)[zfi_head_row(h, t)] = (float)zfi_head_entropy(h, t);
    if (h->of.parts) return zfi_head_put_parts(h), 0;
    if (!h->of.slopes) zfi_head_lse(h->isa, h->lanes, h->chunks, h->top, h->sum, h->lse);
    zfi_head_factors(h->isa, h->lanes, h->chunks, h->top, h->sum, h->weights, h->lse);
    if (h->dx || h->dw || h->db) zfi_pool_run(pool, h->chunks, zfi_head_slopes, h);
    if (h->dx || h->dw) zfi_pool_run(pool, h->groups * h->spans, zfi_head_backward, h);
    if (h->dx) zfi_pool_run(pool, h->used, zfi_head_add_groups, h);
    return zfi_head_put_scores(h);
}

/* Fills index with the rows that have a label, and sets what others give. Returns how many have. */
static int64_t zfi_head_find_labelled(const zfi_head *h)
{
    const zf_launch *l = h->launch;
    int64_t count = 0;
    for (int64_t row = 0; row < h->rows; row++) {
        if (zfi_get_integer(&l->args[2], row) != ZF_INT(l, head_loss, ignore)) {
            h->index[count++] = (int32_t)row;
            continue;
        }
        if (h->of.logp) ((float *)h->of.logp->data)[row] = 0;
        if (h->of.entropy) ((float *)h->of.entropy->data)[row] = 0;
        if (h->of.best) ((int32_t *)h->of.best->data)[row] = -1;
        if (h->dx)
            memset(zfi_element_of(h->dx, h->made, row * h->width), 0,
                   (size_t)h->width * zf_dtype_size(h->made));
    }
    return count;
}

static void *zfi_head_data(const zf_array *of) { return of ? of->data : NULL; }

/* The head of a launch before its first tile; *rows: those that are computed. */
static zfi_head zfi_head_begin(const zf_launch *l, const zfi_head_values *of, int64_t *rows)
{
    zfi_head h = zfi_head_of(l, of);
    h.x = l->args[0].data, h.w = l->args[1].data;
    h.dx = zfi_head_data(of->dx), h.dw = zfi_head_data(of->dw), h.db = zfi_head_data(of->db);
    *rows = h.index ? zfi_head_find_labelled(&h) : h.rows;
    return h;
}

/* Returns the sum of the losses, without a common weight. */
static double zfi_head_fast(const zf_launch *l, const zfi_head_values *of)
{
    double loss = 0;
    int64_t rows;
    zfi_head h = zfi_head_begin(l, of, &rows);
    if (!rows && h.dw) memset(h.dw, 0, (size_t)(h.classes * h.width) * zf_dtype_size(h.made));
    if (!rows && h.db) memset(h.db, 0, (size_t)h.classes * zf_dtype_size(h.made));
    for (; h.first < rows; h.first += h.tile) {
        zfi_head_rows(&h, zfi_min(h.tile, rows - h.first));
        loss += zfi_head_tile(&h);
    }
    return loss;
}

/* Runs the head; *loss: what the functions return. */
static zf_status zfi_head_run(const zf_launch *l, const char *name, const zfi_head_values *of,
                              double *loss)
{
    zf_array logits = {NULL, l->args[0].dtype, ZF_SHAPE(l->args[1].shape.dims[0])};
    zf_launch labelled = *l;
    zf_status status;
    labelled.arg_count = 3; /* so that the labels are the last operand */
    status = zfi_check_labels(&labelled, name, &logits);
    if (!status) *loss = zfi_fast_or_half(l) ? zfi_head_fast(l, of) : zfi_head_reference(l, of);
    return status;
}

static zf_status zfi_cpu_head_loss(const zf_launch *l)
{
    const zfi_head_values of = zfi_head_values_of(l);
    double loss = 0;
    const zf_status status = zfi_head_run(l, "head_loss", &of, &loss);
    const double weight = l->args[3].shape.rank ? 1 : zfi_get(&l->args[3], 0);
    if (!status) zfi_set(&l->out, 0, weight * loss);
    return status;
}

/* Saved value `index` is made. */
static bool zfi_head_saves(const zf_launch *l, int index)
{
    return l->saved && l->saved[index].shape.rank;
}

/* Products: the logits, dx and dw. */
static int zfi_head_products(const zf_launch *l)
{
    if (l->op == ZF_OP_head_logp) return 1;
    if (l->op == ZF_OP_head_logp_grad) return 2 + zfi_head_saves(l, ZFI_LOGP_DW);
    return 1 + zfi_head_saves(l, ZFI_HEAD_DX) + zfi_head_saves(l, ZFI_HEAD_DW);
}

static double zfi_flops_head(const zf_launch *l)
{
    return 2.0 * (double)zfi_count(&l->args[0]) * (double)l->args[1].shape.dims[0] *
           zfi_head_products(l);
}

/* An exponential for each logit. */
static double zfi_functions_head(const zf_launch *l)
{
    return (double)zfi_row_count(&l->args[0].shape) * (double)l->args[1].shape.dims[0];
}

/* Logits, which every product writes or reads; and for each tile but the first, w for z and for dx,
 * and dw, which is f32, read and written: four values of 16 bits. */
static double zfi_between_head(const zf_launch *l)
{
    const int64_t rows = zfi_row_count(&l->args[0].shape), most = zfi_head_most_of(l),
                  tiles = zfi_div_up(rows, most);
    const double table = (double)l->args[1].shape.dims[0] * (double)zfi_last(&l->args[0].shape);
    const bool grad = l->op == ZF_OP_head_logp_grad, loss = l->op == ZF_OP_head_loss;
    double each = 1; /* values for each number of w */
    if (grad || (loss && zfi_head_saves(l, ZFI_HEAD_DX))) each += 1;
    if (zfi_head_saves(l, ZFI_LOGP_DW) && grad) each += 4;
    if (zfi_head_saves(l, ZFI_HEAD_DW) && loss) each += 4;
    return zfi_functions_head(l) * zfi_head_products(l) +
           (tiles > 1 ? (double)(tiles - 1) * table * each : 0);
}

/* ------------------------------------------------------------------------------- records */

ZFI_OPERATOR(head_loss, .infer = zfi_infer_head_loss, .grad = zfi_grad_head_loss,
             .cpu = zfi_cpu_head_loss, .scratch = zfi_scratch_head_loss,
             .saved = zfi_saved_head_loss, .flops = zfi_flops_head,
             .functions = zfi_functions_head, .between = zfi_between_head,
             .parts = ZFI_PARTS_WEIGHTED,
             .cuts = "r h!, v! h!, r, r, ?v! -> ; r h!; v! h!; v!; r | "
                     "r h!, v! h!, r, , ?v! -> ; r h!; v! h!; v!; r",
             .traits = ZF_OP_ONCE | ZF_OP_READS_HALF)
