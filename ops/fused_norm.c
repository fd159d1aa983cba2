/* LayerNorm with what stands around it, a row at a time: the row is read once and stays in the
 * first-level cache until its results are written.
 *
 *     %5 = residual_norm %x, %residual, %gamma, %beta, %bias {p=0.1 stream=3 eps=1e-12} : f32[4,8]
 *          s = residual + dropout(x + bias), bias [8] or none
 *          y = gamma xhat + beta, xhat = (s - mean s) rstd, rstd = 1 / sqrt(var s + eps)
 *     %8 = embed_norm %words, %ids, %types, %type_ids, %positions, %gamma, %beta
 *          {p=0.1 stream=3 eps=1e-12} : f32[2,4,8]
 *          s = words[ids[b,t],:] + types[type_ids[b,t],:] + positions[t,:]
 *          y = dropout(gamma xhat + beta)
 *     saved 0: xhat    saved 1: rstd, one for each row (f32; f64 for f64)
 *
 *     %9 = residual_norm_grad %dy, %xhat, %rstd, %gamma {p=0.1 stream=3} : f32[4,8]
 *          ds = rstd (g - mean g - xhat mean(g xhat)), g = dy gamma
 *     left beside it, all in one sweep over dy and xhat:
 *     0: dx = dropout(ds)    sums over rows, 1: dgamma of dy xhat, 2: dbeta of dy, 3: dbias of dx
 *
 *     %9 = affine %xhat, %gamma, %beta : f32[4,8]
 *          y = gamma xhat + beta
 *
 *     x, residual -> s -> xhat, rstd -> y        s never leaves the cache
 *                          |             \
 *     dx, ds  <------------+-- dy         affine makes y of it again
 *
 * The gradient is made of xhat and rstd alone: neither x, s nor y is kept for it. Where y itself is
 * wanted again, for the gradient of a weight that it was multiplied with, affine makes it of xhat
 * with the very arithmetic of residual_norm, to the same bits in f32 and f64. This is the form
 * xhat = (y - beta) / gamma of the same identity read the other way round: it divides by nothing,
 * so it is exact for any gamma, 0 included, for which y has lost xhat.
 *
 * Dropout draws the words of the `dropout` row of the same stream: its masks are the same, and a
 * run that evaluates has none. p = 0: none.
 *
 * f32: y, xhat, rstd, ds, dx and dgamma have the bits of add, dropout, moments, layer_norm,
 * layer_norm_grad and norm_gamma_grad one after the other. dbeta and dbias are added as dgamma is,
 * over blocks of ZFI_GAMMA_ROWS rows and then over the blocks, where sum_to adds in double: of r
 * rows they are within (64 + r / 64) 2^-24 of the sum of magnitudes. bf16 and f16 are computed in
 * f32 and rounded when they are stored, s never, y from the xhat that has not been rounded.
 */

/* p, stream and eps of a row that has them in this order. */
static zf_status zfi_infer_norm_attributes(const zfi_infer *c)
{
    zf_status status = zfi_infer_mask(c);
    return status ? status : zfi_infer_eps(c, 2);
}

static zf_status zfi_infer_residual_norm(zfi_infer *c)
{
    zf_status status = zfi_infer_rows(c, 1);
    if (!status) status = zfi_infer_vector(c, 2, "gamma");
    if (!status) status = zfi_infer_vector(c, 3, "beta");
    if (!status && c->arg_count > 4) status = zfi_infer_vector(c, 4, "the bias");
    if (!status) status = zfi_infer_norm_attributes(c);
    return status ? status : zfi_infer_like(c, 0);
}

/* Operand k is [rows, n], of the dtype of operand 0 and as wide; rows < 0: any number of them. */
static zf_status zfi_infer_table(const zfi_infer *c, int32_t k, const char *what, int64_t rows)
{
    const zf_shape *shape = &c->args[k]->shape;
    const char *dtype = zf_dtype_name(c->args[0]->dtype);
    long long n = (long long)zfi_last(&c->args[0]->shape);
    if (c->args[k]->dtype == c->args[0]->dtype && shape->rank == 2 && shape->dims[1] == n &&
        (rows < 0 || shape->dims[0] == rows))
        return ZF_OK;
    if (rows < 0)
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "%s must be %s[rows,%lld]", what, dtype, n);
    return zfi_infer_fail(c, ZF_ERR_SHAPE, "%s must be %s[%lld,%lld]", what, dtype, (long long)rows,
                          n);
}

static zf_status zfi_infer_embed_norm(zfi_infer *c)
{
    const zf_shape *ids = &c->args[1]->shape;
    zf_status status = zfi_infer_rows(c, 0);
    if (!status) status = zfi_infer_table(c, 0, "the words", -1);
    if (!status) status = zfi_infer_index(c);
    if (status) return status;
    if (ids->rank < 1 || ids->rank >= ZF_MAX_RANK)
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "the ids must have 1 to %d dimensions",
                              ZF_MAX_RANK - 1);
    if (!zfi_is_integer(c->args[3]->dtype) || !zfi_same_shape(&c->args[3]->shape, ids))
        return zfi_infer_fail(c, ZF_ERR_SHAPE,
                              "the type ids must be i32 or i64 and have the shape of the ids");
    status = zfi_infer_table(c, 2, "the types", -1);
    if (!status) status = zfi_infer_table(c, 4, "the positions", zfi_last(ids));
    if (!status) status = zfi_infer_vector(c, 5, "gamma");
    if (!status) status = zfi_infer_vector(c, 6, "beta");
    if (!status) status = zfi_infer_norm_attributes(c);
    if (status) return status;
    c->dtype = c->args[0]->dtype;
    c->shape = *ids;
    c->shape.dims[c->shape.rank++] = zfi_last(&c->args[0]->shape);
    return ZF_OK;
}

/* One number for each row of `shape`. */
static zf_shape zfi_shape_of_rows(zf_shape shape)
{
    return zfi_without_axis(shape, shape.rank - 1, false);
}

static bool zfi_saved_residual_norm(const zf_graph *g, const zfi_node *node, int64_t index,
                                    zf_dtype *dtype, zf_shape *shape)
{
    (void)g;
    *dtype = index == 0 ? node->dtype : zfi_wide(node->dtype);
    *shape = index == 0 ? node->shape : zfi_shape_of_rows(node->shape);
    return index <= 1;
}

#define zfi_saved_embed_norm zfi_saved_residual_norm

static zf_status zfi_infer_residual_norm_grad(zfi_infer *c)
{
    zf_status status = zfi_infer_rows(c, 1);
    zf_shape rows;
    char type[ZFI_TYPE_TEXT];
    if (status) return status;
    rows = zfi_shape_of_rows(c->args[0]->shape);
    if (c->args[2]->dtype != zfi_wide(c->args[0]->dtype) ||
        !zfi_same_shape(&c->args[2]->shape, &rows))
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "rstd must be %s",
                              zfi_type_text(type, zfi_wide(c->args[0]->dtype), &rows));
    status = zfi_infer_vector(c, 3, "gamma");
    if (!status) status = zfi_infer_mask(c);
    return status ? status : zfi_infer_like(c, 0);
}

enum { ZFI_DX, ZFI_DGAMMA, ZFI_DBETA, ZFI_DBIAS }; /* what residual_norm_grad leaves beside ds */

static bool zfi_saved_residual_norm_grad(const zf_graph *g, const zfi_node *node, int64_t index,
                                         zf_dtype *dtype, zf_shape *shape)
{
    (void)g;
    *dtype = node->dtype;
    *shape = index == ZFI_DX ? node->shape : ZF_SHAPE(zfi_last(&node->shape));
    return true;
}

static zf_status zfi_infer_affine(zfi_infer *c)
{
    zf_status status = zfi_infer_rows(c, 0);
    if (!status) status = zfi_infer_vector(c, 1, "gamma");
    if (!status) status = zfi_infer_vector(c, 2, "beta");
    return status ? status : zfi_infer_like(c, 0);
}

/* --------------------------------------------------------------------------- gradients */

static void zfi_grad_residual_norm(zfi_grad *c)
{
    double p = c->attributes[0].f;
    zf_tensor ds = zfi_op(residual_norm_grad, zfi_with({.f = p}, {.i = c->attributes[1].i}), c->dy,
                          zfi_saved(c->y, 0), zfi_saved(c->y, 1), c->x[2]);
    if (c->need[0]) c->dx[0] = p > 0 ? zfi_saved(ds, ZFI_DX) : ds;
    if (c->need[1]) c->dx[1] = ds;
    if (c->need[2]) c->dx[2] = zfi_saved(ds, ZFI_DGAMMA);
    if (c->need[3]) c->dx[3] = zfi_saved(ds, ZFI_DBETA);
    if (c->count > 4 && c->need[4]) c->dx[4] = zfi_saved(ds, ZFI_DBIAS);
}

static void zfi_grad_embed_norm(zfi_grad *c)
{
    double p = c->attributes[0].f;
    zf_tensor dy = c->dy, ds;
    if (p > 0) dy = zfi_op(dropout, zfi_with({.f = p}, {.i = c->attributes[1].i}), dy);
    ds = zfi_op(residual_norm_grad, NULL, dy, zfi_saved(c->y, 0), zfi_saved(c->y, 1), c->x[5]);
    for (int k = 0; k <= 2; k += 2) /* words, types */
        if (c->need[k])
            c->dx[k] = zfi_op(scatter_rows, zfi_with({.i = zf_tensor_shape(c->x[k]).dims[0]}), ds,
                              c->x[k + 1]);
    if (c->need[4]) c->dx[4] = zfi_sum_like(ds, c->x[4]);
    if (c->need[5]) c->dx[5] = zfi_saved(ds, ZFI_DGAMMA);
    if (c->need[6]) c->dx[6] = zfi_saved(ds, ZFI_DBETA);
}

static void zfi_grad_affine(zfi_grad *c)
{
    if (c->need[0]) c->dx[0] = zf_mul(c->dy, c->x[1]);
    if (c->need[1]) c->dx[1] = zfi_sum_like(zf_mul(c->dy, c->x[0]), c->x[1]);
    if (c->need[2]) c->dx[2] = zfi_sum_like(c->dy, c->x[2]);
}

#define zfi_grad_residual_norm_grad zfi_grad_refuse

/* --------------------------------------------------------------------------- references
 *
 * An element of s is made anew each time it is looked at, so that y may lie over any operand: of
 * each, element i of a row is read for the last time before element i of y is written. */

static bool zfi_drops(const zf_launch *l) { return l->attributes[0].f > 0 && !l->run->evaluate; }

/* Element i of what becomes of x in dropout. */
static double zfi_dropped(const zf_launch *l, double x, int64_t i)
{
    zfi_drop d = zfi_drop_of(l);
    if (!zfi_drops(l)) return x;
    return zfi_random_word(d.element + (uint64_t)i, d.stream, d.step, d.seed) < d.threshold
               ? x * d.scale
               : 0.0;
}

/* Element i of row r of s. */
static double zfi_norm_input(const zf_launch *l, int64_t r, int64_t i)
{
    const zf_array *x = l->args;
    int64_t n = zfi_last(&l->out.shape), at = r * n + i;
    if (l->op == ZF_OP_embed_norm)
        return zfi_get(&x[0], zfi_get_integer(&x[1], r) * n + i) +
               zfi_get(&x[2], zfi_get_integer(&x[3], r) * n + i) +
               zfi_get(&x[4], r % x[4].shape.dims[0] * n + i);
    return zfi_get(&x[1], at) +
           zfi_dropped(l, zfi_get(&x[0], at) + (l->arg_count > 4 ? zfi_get(&x[4], i) : 0), at);
}

static void zfi_fused_norm_reference(const zf_launch *l, int64_t first, int64_t last)
{
    bool embeds = l->op == ZF_OP_embed_norm;
    const zf_array *gamma = &l->args[embeds ? 5 : 2], *beta = gamma + 1,
                   *xhat = zfi_saved_out(l, 0), *rstds = zfi_saved_out(l, 1);
    int64_t n = zfi_last(&l->out.shape);
    for (int64_t r = first; r < last; r++) {
        double mean = 0, squares = 0, rstd;
        for (int64_t i = 0; i < n; i++) mean += zfi_norm_input(l, r, i) / (double)n;
        for (int64_t i = 0; i < n; i++) {
            double s = zfi_norm_input(l, r, i);
            squares += (s - mean) * (s - mean) / (double)n;
        }
        rstd = 1 / sqrt(squares + l->attributes[2].f);
        if (rstds) zfi_set(rstds, r, rstd);
        for (int64_t i = 0; i < n; i++) {
            double h = (zfi_norm_input(l, r, i) - mean) * rstd,
                   y = zfi_get(gamma, i) * h + zfi_get(beta, i);
            if (xhat) zfi_set(xhat, r * n + i, h);
            zfi_set(&l->out, r * n + i, embeds ? zfi_dropped(l, y, r * n + i) : y);
        }
    }
}

/* All rows, sums in scratch: double [ZFI_DBIAS + 1, n]. */
static void zfi_residual_norm_grad_reference(const zf_launch *l)
{
    const zf_array *dy = &l->args[0], *xhat = &l->args[1], *gamma = &l->args[3],
                   *dx = zfi_saved_out(l, ZFI_DX);
    int64_t n = zfi_last(&l->out.shape), rows = zfi_row_count(&l->out.shape);
    double *sum = l->scratch;
    for (int64_t i = 0; i < (ZFI_DBIAS + 1) * n; i++) sum[i] = 0;
    for (int64_t r = 0; r < rows; r++) {
        double rstd = zfi_get(&l->args[2], r), mean_g = 0, mean_gx = 0;
        for (int64_t i = 0; i < n; i++) {
            double g = zfi_get(dy, r * n + i) * zfi_get(gamma, i) / (double)n;
            mean_g += g;
            mean_gx += g * zfi_get(xhat, r * n + i);
        }
        for (int64_t i = 0; i < n; i++) {
            double d = zfi_get(dy, r * n + i), h = zfi_get(xhat, r * n + i),
                   ds = rstd * (d * zfi_get(gamma, i) - mean_g - h * mean_gx),
                   dropped = zfi_dropped(l, ds, r * n + i);
            sum[ZFI_DGAMMA * n + i] += d * h;
            sum[ZFI_DBETA * n + i] += d;
            sum[ZFI_DBIAS * n + i] += dropped;
            if (dx) zfi_set(dx, r * n + i, dropped);
            zfi_set(&l->out, r * n + i, ds);
        }
    }
    for (int k = ZFI_DGAMMA; k <= ZFI_DBIAS; k++)
        for (int64_t i = 0; i < n && zfi_saved_out(l, k); i++)
            zfi_set(zfi_saved_out(l, k), i, sum[k * n + i]);
}

static void zfi_affine_reference(const zf_launch *l, int64_t first, int64_t last)
{
    int64_t n = zfi_last(&l->out.shape);
    for (int64_t i = first * n; i < last * n; i++)
        zfi_set(&l->out, i,
                zfi_get(&l->args[1], i % n) * zfi_get(&l->args[0], i) +
                    zfi_get(&l->args[2], i % n));
}

/* --------------------------------------------------------------------------- fast kernels
 *
 * Scratch: a row of f32 for each worker, ZFI_NORM_ROOM of them. What a row goes through are the
 * kernels of the plain nodes; as their moments xhat has mean 0 and rstd 1. */

static const float zfi_xhat_moments[2] = {0, 1};

enum { ZFI_NORM_ROOM = 1 };

typedef struct zfi_norm_job {
    const zf_launch *l;
    zfi_isa isa;
    int64_t n, rows, grain, stride; /* stride: of rows in scratch */
    bool drops;
    zfi_drop drop;
} zfi_norm_job;

static zfi_norm_job zfi_norm_job_of(const zf_launch *l)
{
    zfi_norm_job j = {.l = l, .isa = zfi_cpu_of(l)->isa};
    j.n = zfi_last(&l->out.shape);
    j.rows = zfi_row_count(&l->out.shape);
    j.grain = zfi_row_grain(j.n);
    j.stride = (j.n + 31) / 32 * 32;
    return j;
}

/* y = x with dropout, elements first..first+n-1. */
static void zfi_drop_run(const zfi_norm_job *j, float *y, const float *x, int64_t first)
{
    const zfi_drop *d = &j->drop;
    zfi_dropout(j->isa, y, x, d->element + (uint64_t)first, j->n, d->threshold, (float)d->scale,
                d->stream, d->step, d->seed);
}

ZFI_BODY void zfi_standardize_body(zfi_isa isa, float *xhat, const float *s, float mean, float rstd,
                                   int64_t n)
{
    (void)isa;
    ZFI_VECTOR
    for (int64_t i = 0; i < n; i++) xhat[i] = (s[i] - mean) * rstd;
}
ZFI_KERNEL(zfi_standardize, (float *xhat, const float *s, float mean, float rstd, int64_t n),
           (xhat, s, mean, rstd, n))

/* s[:] = row r of the sum that is normalised. */
static void zfi_residual_row(const zfi_norm_job *j, float *s, int64_t r)
{
    const zf_array *args = j->l->args;
    const float *x = (const float *)args[0].data + r * j->n;
    if (j->l->arg_count > 4) {
        zfi_binary_run(j->isa, ZF_OP_add, s, x, args[4].data, true, true, j->n);
        x = s;
    }
    if (j->drops) {
        zfi_drop_run(j, s, x, r * j->n);
        x = s;
    }
    zfi_binary_run(j->isa, ZF_OP_add, s, (const float *)args[1].data + r * j->n, x, true, true,
                   j->n);
}

static void zfi_embed_row(const zfi_norm_job *j, float *s, int64_t r)
{
    const zf_array *args = j->l->args;
    const float *word = (const float *)args[0].data + zfi_get_integer(&args[1], r) * j->n,
                *type = (const float *)args[2].data + zfi_get_integer(&args[3], r) * j->n,
                *position = (const float *)args[4].data + r % args[4].shape.dims[0] * j->n;
    zfi_binary_run(j->isa, ZF_OP_add, s, word, type, true, true, j->n);
    zfi_add_run(j->isa, s, position, j->n);
}

static void zfi_fused_norm_piece(void *context, int64_t piece, int worker)
{
    const zfi_norm_job *j = context;
    const zf_launch *l = j->l;
    bool embeds = l->op == ZF_OP_embed_norm;
    int64_t n = j->n, first = piece * j->grain,
            last = j->rows - first < j->grain ? j->rows : first + j->grain;
    const float *gamma = l->args[embeds ? 5 : 2].data, *beta = l->args[embeds ? 6 : 3].data;
    const zf_array *xhat = zfi_saved_out(l, 0), *rstd = zfi_saved_out(l, 1);
    float *s = (float *)l->scratch + worker * j->stride;
    for (int64_t r = first; r < last; r++) {
        float moments[2], *h = xhat ? (float *)xhat->data + r * n : s,
                          *y = (float *)l->out.data + r * n;
        embeds ? zfi_embed_row(j, s, r) : zfi_residual_row(j, s, r);
        zfi_moments_rows(j->isa, moments, s, 1, n, true, l->attributes[2].f);
        if (rstd) ((float *)rstd->data)[r] = moments[1];
        zfi_standardize(j->isa, h, s, moments[0], moments[1], n);
        zfi_norm_rows(j->isa, y, h, zfi_xhat_moments, gamma, beta, 1, n);
        if (embeds && j->drops) zfi_drop_run(j, y, y, r * n);
    }
}

static size_t zfi_norm_room(const zf_launch *l, int64_t rows, size_t element)
{
    size_t bytes;
    zfi_norm_job j = zfi_norm_job_of(l);
    if (!j.rows && l->op != ZF_OP_residual_norm_grad) return 0;
    return zfi_mul_size((size_t)rows, (size_t)j.stride, &bytes) &&
                   zfi_mul_size(bytes, element, &bytes)
               ? bytes
               : SIZE_MAX;
}

static size_t zfi_scratch_residual_norm(const zf_launch *l)
{
    return zfi_fast(l) ? zfi_norm_room(l, zfi_pool_threads(zfi_cpu_of(l)->pool) * ZFI_NORM_ROOM, 4)
                       : 0;
}

#define zfi_scratch_embed_norm zfi_scratch_residual_norm

static zf_status zfi_cpu_residual_norm(const zf_launch *l)
{
    zfi_norm_job j = zfi_norm_job_of(l);
    j.drops = zfi_drops(l);
    j.drop = zfi_drop_of(l);
    if (!zfi_fast(l)) zfi_split(l, j.rows, j.grain, zfi_fused_norm_reference);
    else
        zfi_pool_run(zfi_cpu_of(l)->pool, (j.rows + j.grain - 1) / j.grain, zfi_fused_norm_piece,
                     &j);
    return ZF_OK;
}

static zf_status zfi_cpu_embed_norm(const zf_launch *l)
{
    zf_launch types = *l;
    zf_status status = zfi_check_index(l, "words of embed_norm", &l->args[0]);
    types.args += 2;
    if (!status) status = zfi_check_index(&types, "types of embed_norm", &types.args[0]);
    return status ? status : zfi_cpu_residual_norm(l);
}

static void zfi_affine_fast(const zf_launch *l, int64_t first, int64_t last)
{
    int64_t n = zfi_last(&l->out.shape);
    for (int64_t r = first; r < last; r++)
        zfi_norm_rows(zfi_cpu_of(l)->isa, (float *)l->out.data + r * n,
                      (const float *)l->args[0].data + r * n, zfi_xhat_moments, l->args[1].data,
                      l->args[2].data, 1, n);
}

static zf_status zfi_cpu_affine(const zf_launch *l)
{
    return zfi_cpu_rows(l, zfi_affine_fast, zfi_affine_reference);
}

/* ------------------------------------------------------------------------- the gradient
 *
 * A task has a block of ZFI_GAMMA_ROWS rows and leaves the sums over them:
 *
 *     scratch f32 [workers,n], then [blocks + 1, 3, n], of which the last is the sum of the others
 */

/* sum += a b */
ZFI_BODY void zfi_add_products_body(zfi_isa isa, float *sum, const float *a, const float *b,
                                    int64_t n)
{
    ZFI_VECTOR
    for (int64_t i = 0; i < n; i++) sum[i] = zfi_fma(isa, a[i], b[i], sum[i]);
}
ZFI_KERNEL(zfi_add_products, (float *sum, const float *a, const float *b, int64_t n),
           (sum, a, b, n))

/* The sums of block b, of which `which` is ZFI_DGAMMA to ZFI_DBIAS. */
static float *zfi_norm_sums(const zfi_norm_job *j, int64_t b, int which)
{
    int64_t workers = zfi_pool_threads(zfi_cpu_of(j->l)->pool);
    return (float *)j->l->scratch + (workers + 3 * b + which - ZFI_DGAMMA) * j->stride;
}

static void zfi_norm_grad_block(void *context, int64_t b, int worker)
{
    const zfi_norm_job *j = context;
    const zf_launch *l = j->l;
    int64_t n = j->n, first = b * ZFI_GAMMA_ROWS,
            last = j->rows - first < ZFI_GAMMA_ROWS ? j->rows : first + ZFI_GAMMA_ROWS;
    const float *gamma = l->args[3].data, *rstd = l->args[2].data;
    const zf_array *dx = zfi_saved_out(l, ZFI_DX);
    bool gammas = zfi_saved_out(l, ZFI_DGAMMA), betas = zfi_saved_out(l, ZFI_DBETA),
         biases = zfi_saved_out(l, ZFI_DBIAS);
    for (int which = ZFI_DGAMMA; which <= ZFI_DBIAS; which++)
        memset(zfi_norm_sums(j, b, which), 0, (size_t)n * sizeof(float));
    for (int64_t r = first; r < last; r++) {
        const float *dy = (const float *)l->args[0].data + r * n,
                    *xhat = (const float *)l->args[1].data + r * n;
        float *ds = (float *)l->out.data + r * n,
              *to = dx ? (float *)dx->data + r * n : (float *)l->scratch + worker * j->stride;
        if (gammas) zfi_add_products(j->isa, zfi_norm_sums(j, b, ZFI_DGAMMA), dy, xhat, n);
        if (betas) zfi_add_run(j->isa, zfi_norm_sums(j, b, ZFI_DBETA), dy, n);
        zfi_norm_grad_rows(j->isa, ds, dy, xhat, zfi_xhat_moments, gamma, true, 1, n);
        zfi_scale_run(j->isa, ds, ds, NULL, rstd[r], n);
        if (!dx && !biases) continue;
        if (j->drops) zfi_drop_run(j, to, ds, r * n);
        else memcpy(to, ds, (size_t)n * sizeof *to);
        if (biases) zfi_add_run(j->isa, zfi_norm_sums(j, b, ZFI_DBIAS), to, n);
    }
}

static size_t zfi_scratch_residual_norm_grad(const zf_launch *l)
{
    int64_t blocks = zfi_gamma_blocks(l);
    if (!zfi_fast(l)) return zfi_norm_room(l, ZFI_DBIAS + 1, sizeof(double));
    return zfi_norm_room(l, zfi_pool_threads(zfi_cpu_of(l)->pool) + 3 * (blocks + 1),
                         sizeof(float));
}

static zf_status zfi_cpu_residual_norm_grad(const zf_launch *l)
{
    zfi_norm_job j = zfi_norm_job_of(l);
    int64_t blocks = zfi_gamma_blocks(l);
    j.drops = zfi_drops(l);
    j.drop = zfi_drop_of(l);
    if (!j.n) return ZF_OK;
    if (!zfi_fast(l)) {
        zfi_residual_norm_grad_reference(l);
        return ZF_OK;
    }
    zfi_pool_run(zfi_cpu_of(l)->pool, blocks, zfi_norm_grad_block, &j);
    for (int which = ZFI_DGAMMA; which <= ZFI_DBIAS; which++) {
        const zf_array *out = zfi_saved_out(l, which);
        if (!out) continue;
        memset(out->data, 0, (size_t)j.n * sizeof(float));
        for (int64_t b = 0; b < blocks; b++)
            zfi_add_run(j.isa, out->data, zfi_norm_sums(&j, b, which), j.n);
    }
    return ZF_OK;
}
