/* LayerNorm and RMSNorm, fused with the nodes around them. A row is read once and stays in the
 * first-level cache until its results are written.
 *
 *     %5 = residual_norm %x, %residual, %gamma, %beta, %bias {p=0.1 stream=3 eps=1e-12} : f32[4,8]
 *          s = residual + dropout(x + bias), bias [8] or none
 *          y = gamma xhat + beta, xhat = (s - mean s) rstd, rstd = 1 / sqrt(var s + eps)
 *     %5 = residual_norm %x, %residual, %gamma, %bias {p=0.1 stream=3 eps=1e-06 form=rms} : f32[4,8]
 *          the same of RMSNorm: y = gamma xhat, xhat = s rstd, rstd = 1 / sqrt(mean s^2 + eps)
 *          sum=saved: the node also saves s, and y is the norm of the rounded s that it saves
 *          sum=given: x and residual are both s itself, which such a node has saved; no bias, p = 0.
 *          It computes y, xhat and rstd again, to the same bits (passes/recompute/recompute.c)
 *     %8 = embed_norm %words, %ids, %types, %type_ids, %positions, %gamma, %beta
 *          {p=0.1 stream=3 eps=1e-12} : f32[2,4,8]
 *          s = words[ids[b,t],:] + types[type_ids[b,t],:] + positions[t,:]
 *          y = dropout(gamma xhat + beta)
 *          padded=true padding=0: words[0,:] has no gradient (rows.c)
 *     saved 0: xhat    saved 1: rstd, one for each row (f32; f64 for f64)
 *     saved 2 of residual_norm, sum=saved: s, which the next residual sum reads in a pre-norm model
 *
 *     %9 = residual_norm_grad %dy, %xhat, %rstd, %gamma, %dsum {p=0.1 stream=3} : f32[4,8]
 *          ds = dsum + rstd (g - mean g - xhat mean(g xhat)), g = dy gamma; form=rms: without mean g
 *          dsum, the gradient of saved 2, or none
 *     saved, computed in the same sweep over dy and xhat:
 *     0: dx = dropout(ds)    sums over rows: 1: dgamma of dy xhat, 2: dbeta of dy, 3: dbias of dx
 *
 *     %9 = affine %xhat, %gamma, %beta : f32[4,8]
 *          y = gamma xhat + beta, beta or none
 *
 *     x, residual -> s -> xhat, rstd -> y        s is written to memory only as saved 2
 *                          |             \
 *     dx, ds  <------------+-- dy         affine recomputes y from xhat
 *
 * The gradient is computed from xhat and rstd alone; x, s and y are not kept for it. Where the
 * gradient of a following weight needs y, affine recomputes y from xhat with the same arithmetic as
 * residual_norm, to the same bits in f32 and f64. (An invertible LayerNorm keeps y and computes
 * xhat = (y - beta) / gamma. Keeping xhat needs no division, so it is exact for any gamma, 0
 * included.)
 *
 * Dropout has the masks of the operator `dropout` with the same stream, and none in evaluation. p =
 * 0: no dropout.
 *
 * f32: y, xhat, rstd, s, ds, dx and dgamma have the bits of the nodes add, dropout, moments,
 * layer_norm, layer_norm_grad and norm_gamma_grad, or of rms, rms_norm and rms_norm_grad. dbeta and
 * dbias are added in f32 like dgamma, over blocks of ZFI_GAMMA_ROWS rows and then over the blocks,
 * while sum_to adds in double: for r rows they differ by at most (64 + r / 64) 2^-24 of the sum of
 * magnitudes. bf16 and f16 are computed in f32 and rounded when they are stored; y is computed from
 * the unrounded xhat, and from the unrounded s where that is not saved. */

/* The forms of a norm, in the order of the attribute's names. */
enum { ZFI_FORM_LAYER, ZFI_FORM_RMS };

/* What becomes of the sum, in the order of the attribute's names. */
enum { ZFI_SUM_NONE, ZFI_SUM_SAVED, ZFI_SUM_GIVEN };

/* The number of the operand of residual_norm that is its optional bias. */
static int32_t zfi_norm_bias_at(int64_t form) { return form == ZFI_FORM_RMS ? 3 : 4; }

static zf_status zfi_infer_form(const zfi_infer *c, int64_t form)
{
    if (form == ZFI_FORM_LAYER || form == ZFI_FORM_RMS) return ZF_OK;
    return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "there is no form %lld", (long long)form);
}

/* Checks p, stream and eps, the first attributes in this order. */
static zf_status zfi_infer_norm_attributes(const zfi_infer *c)
{
    zf_status status = zfi_infer_mask(c);
    return status ? status : zfi_infer_eps(c, ZF_FLOAT(c, residual_norm, eps));
}

/* Checks the attribute `sum`. */
static zf_status zfi_infer_sum(const zfi_infer *c, int32_t bias)
{
    int64_t sum = ZF_INT(c, residual_norm, sum);
    if (sum < ZFI_SUM_NONE || sum > ZFI_SUM_GIVEN)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "there is no sum %lld", (long long)sum);
    if (sum != ZFI_SUM_GIVEN) return ZF_OK;
    if (c->args[0] != c->args[1])
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "sum=given takes the sum as both of its first operands");
    if (c->arg_count > bias || ZF_FLOAT(c, residual_norm, p) != 0)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "sum=given has neither a bias nor dropout");
    return ZF_OK;
}

static zf_status zfi_infer_residual_norm(zfi_infer *c)
{
    int64_t form = ZF_INT(c, residual_norm, form);
    int32_t bias = zfi_norm_bias_at(form);
    zf_status status = zfi_infer_form(c, form);
    if (!status && (c->arg_count < bias || c->arg_count > bias + 1))
        status = zfi_infer_fail(c, ZF_ERR_ARGUMENT, "%d operands, but form=%s takes %d or %d",
                                (int)c->arg_count, form == ZFI_FORM_RMS ? "rms" : "layer",
                                (int)bias, (int)bias + 1);
    if (!status) status = zfi_infer_rows(c, 1);
    if (!status) status = zfi_infer_vector(c, 2, "gamma");
    if (!status && form == ZFI_FORM_LAYER) status = zfi_infer_vector(c, 3, "beta");
    if (!status && c->arg_count > bias) status = zfi_infer_vector(c, bias, "the bias");
    if (!status) status = zfi_infer_norm_attributes(c);
    if (!status) status = zfi_infer_sum(c, bias);
    return status ? status : zfi_infer_like(c, 0);
}

/* Checks that operand k is [rows, n], with dtype and width of operand 0. rows < 0: any number of
 * rows. */
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
    if (!status) status = zfi_infer_padding(c, ZF_AT_embed_norm_padded, c->args[0]->shape.dims[0]);
    if (status) return status;
    c->dtype = c->args[0]->dtype;
    c->shape = *ids;
    c->shape.dims[c->shape.rank++] = zfi_last(&c->args[0]->shape);
    return ZF_OK;
}

/* The shape of one number for each row of `shape`. */
static zf_shape zfi_shape_of_rows(zf_shape shape)
{
    return zfi_without_axis(shape, shape.rank - 1, false);
}

enum { ZFI_XHAT, ZFI_RSTD, ZFI_SUM }; /* saved values of residual_norm; embed_norm has no ZFI_SUM */

static bool zfi_saved_residual_norm(const zf_graph *g, const zfi_node *node, int64_t index,
                                    zf_dtype *dtype, zf_shape *shape)
{
    bool rows = index == ZFI_RSTD;
    (void)g;
    *dtype = rows ? zfi_wide(node->dtype) : node->dtype;
    *shape = rows ? zfi_shape_of_rows(node->shape) : node->shape;
    return index <= ZFI_RSTD || (index == ZFI_SUM && node->op == ZF_OP_residual_norm &&
                                 ZF_INT(node, residual_norm, sum) == ZFI_SUM_SAVED);
}

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
    if (!status && c->arg_count > 4) status = zfi_infer_as_first(c, 4, "the gradient of the sum");
    if (!status) status = zfi_infer_form(c, ZF_INT(c, residual_norm_grad, form));
    if (!status) status = zfi_infer_mask(c);
    return status ? status : zfi_infer_like(c, 0);
}

enum { ZFI_DX, ZFI_DGAMMA, ZFI_DBETA, ZFI_DBIAS }; /* saved values of residual_norm_grad */

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
    if (!status && c->arg_count > 2) status = zfi_infer_vector(c, 2, "beta");
    return status ? status : zfi_infer_like(c, 0);
}

/* --------------------------------------------------------------------------- gradients */

static void zfi_grad_residual_norm(zf_grad *c)
{
    double p = ZF_FLOAT(c, residual_norm, p);
    int64_t form = ZF_INT(c, residual_norm, form);
    int32_t bias = zfi_norm_bias_at(form);
    bool summed = c->dsaved[ZFI_SUM].graph != NULL;
    zf_tensor ds, x[] = {c->dy, zfi_saved(c->y, ZFI_XHAT), zfi_saved(c->y, ZFI_RSTD), c->x[2],
                         c->dsaved[ZFI_SUM]};
    ds = zfi_build(ZF_OP_residual_norm_grad, summed ? 5 : 4, x,
                   zfi_with({.f = p}, {.i = ZF_INT(c, residual_norm, stream)}, {.i = form}));
    if (c->need[0]) c->dx[0] = p > 0 ? zfi_saved(ds, ZFI_DX) : ds;
    if (c->need[1] && ZF_INT(c, residual_norm, sum) != ZFI_SUM_GIVEN) c->dx[1] = ds;
    if (c->need[2]) c->dx[2] = zfi_saved(ds, ZFI_DGAMMA);
    if (form == ZFI_FORM_LAYER && c->need[3]) c->dx[3] = zfi_saved(ds, ZFI_DBETA);
    if (c->count > bias && c->need[bias]) c->dx[bias] = zfi_saved(ds, ZFI_DBIAS);
}

static void zfi_grad_embed_norm(zf_grad *c)
{
    double p = ZF_FLOAT(c, embed_norm, p);
    zf_tensor dy = c->dy, ds;
    if (p > 0) dy = zfi_op(dropout, zfi_with({.f = p}, {.i = ZF_INT(c, embed_norm, stream)}), dy);
    ds = zfi_op(residual_norm_grad, NULL, dy, zfi_saved(c->y, 0), zfi_saved(c->y, 1), c->x[5]);
    for (int k = 0; k <= 2; k += 2) /* words, types */
        if (c->need[k])
            c->dx[k] = zfi_op(scatter_rows,
                              zfi_with({.i = zf_tensor_shape(c->x[k]).dims[0]},
                                       {.i = k ? 0 : ZF_INT(c, embed_norm, padded)},
                                       {.i = k ? 0 : ZF_INT(c, embed_norm, padding)}),
                              ds, c->x[k + 1]);
    if (c->need[4]) c->dx[4] = zfi_sum_like(ds, c->x[4]);
    if (c->need[5]) c->dx[5] = zfi_saved(ds, ZFI_DGAMMA);
    if (c->need[6]) c->dx[6] = zfi_saved(ds, ZFI_DBETA);
}

static void zfi_grad_affine(zf_grad *c)
{
    if (c->need[0]) c->dx[0] = zf_mul(c->dy, c->x[1]);
    if (c->need[1]) c->dx[1] = zfi_sum_like(zf_mul(c->dy, c->x[0]), c->x[1]);
    if (c->count > 2 && c->need[2]) c->dx[2] = zfi_sum_like(c->dy, c->x[2]);
}

/* --------------------------------------------------------------------------- references
 *
 * An element of s is computed each time it is needed, since y may lie over any operand. Element i
 * of a row of every operand is read for the last time before element i of y is written. */

static bool zfi_drops(const zf_launch *l)
{
    return ZF_FLOAT(l, residual_norm, p) > 0 && !l->run->evaluate;
}

/* Element i of dropout, of which x is the input. */
static double zfi_dropped(const zf_launch *l, double x, int64_t i)
{
    zfi_drop d = zfi_drop_of(l);
    return zfi_drops(l) ? zfi_drop_value(&d, i, x) : x;
}

/* The launch is of RMSNorm. */
static bool zfi_norm_is_rms(const zf_launch *l)
{
    return l->op == ZF_OP_residual_norm        ? ZF_INT(l, residual_norm, form) == ZFI_FORM_RMS
           : l->op == ZF_OP_residual_norm_grad ? ZF_INT(l, residual_norm_grad, form) == ZFI_FORM_RMS
                                               : false;
}

/* The vectors of a forward launch: gamma; beta, NULL for RMSNorm; the bias of x, NULL where there
 * is none. */
static void zfi_norm_vectors(const zf_launch *l, const zf_array *vectors[3])
{
    bool embeds = l->op == ZF_OP_embed_norm, rms = zfi_norm_is_rms(l);
    int32_t bias = zfi_norm_bias_at(rms ? ZFI_FORM_RMS : ZFI_FORM_LAYER);
    vectors[0] = &l->args[embeds ? 5 : 2];
    vectors[1] = rms ? NULL : vectors[0] + 1;
    vectors[2] = !embeds && l->arg_count > bias ? &l->args[bias] : NULL;
}

/* The sum of the launch, ZFI_SUM_NONE for embed_norm. */
static int64_t zfi_norm_sum(const zf_launch *l)
{
    return l->op == ZF_OP_residual_norm ? ZF_INT(l, residual_norm, sum) : ZFI_SUM_NONE;
}

/* A value as it is stored in a type. */
static double zfi_as_stored(zf_dtype dtype, double value)
{
    double room;
    zf_array one = {.data = &room, .dtype = dtype};
    zfi_set(&one, 0, value);
    return zfi_get(&one, 0);
}

/* Element i of row r of s. bias: of x, may be NULL. */
static double zfi_norm_input(const zf_launch *l, const zf_array *bias, int64_t r, int64_t i)
{
    const zf_array *x = l->args;
    int64_t n = zfi_last(&l->out.shape), at = r * n + i, kept = zfi_norm_sum(l);
    double s;
    if (l->op == ZF_OP_embed_norm)
        return zfi_get(&x[0], zfi_get_integer(&x[1], r) * n + i) +
               zfi_get(&x[2], zfi_get_integer(&x[3], r) * n + i) +
               zfi_get(&x[4], r % x[4].shape.dims[0] * n + i);
    if (kept == ZFI_SUM_GIVEN) return zfi_get(&x[0], at);
    s = zfi_get(&x[1], at) + zfi_dropped(l, zfi_get(&x[0], at) + (bias ? zfi_get(bias, i) : 0), at);
    return kept == ZFI_SUM_SAVED ? zfi_as_stored(l->out.dtype, s) : s;
}

static void zfi_fused_norm_reference(const zf_launch *l, int64_t first, int64_t last)
{
    bool embeds = l->op == ZF_OP_embed_norm;
    const zf_array *xhat = zfi_saved_out(l, ZFI_XHAT), *rstds = zfi_saved_out(l, ZFI_RSTD),
                   *sum = zfi_saved_out(l, ZFI_SUM), *vectors[3];
    int64_t n = zfi_last(&l->out.shape);
    double elements = n ? (double)n : 1;
    zfi_norm_vectors(l, vectors);
    for (int64_t r = first; r < last; r++) {
        double mean = 0, squares = 0, rstd;
        for (int64_t i = 0; i < n && vectors[1]; i++) mean += zfi_norm_input(l, vectors[2], r, i);
        mean /= elements;
        for (int64_t i = 0; i < n; i++) {
            double s = zfi_norm_input(l, vectors[2], r, i);
            squares += (s - mean) * (s - mean);
        }
        rstd = 1 / sqrt(squares / elements + ZF_FLOAT(l, residual_norm, eps));
        if (rstds) zfi_set(rstds, r, rstd);
        for (int64_t i = 0; i < n; i++) {
            double s = zfi_norm_input(l, vectors[2], r, i), h = (s - mean) * rstd,
                   y = zfi_get(vectors[0], i) * h + (vectors[1] ? zfi_get(vectors[1], i) : 0);
            if (sum) zfi_set(sum, r * n + i, s);
            if (xhat) zfi_set(xhat, r * n + i, h);
            zfi_set(&l->out, r * n + i, embeds ? zfi_dropped(l, y, r * n + i) : y);
        }
    }
}

/* All rows. The sums are in scratch: double [ZFI_DBIAS + 1, n]. */
static void zfi_residual_norm_grad_reference(const zf_launch *l)
{
    const zf_array *dy = &l->args[0], *xhat = &l->args[1], *gamma = &l->args[3],
                   *dsum = l->arg_count > 4 ? &l->args[4] : NULL, *dx = zfi_saved_out(l, ZFI_DX);
    bool rms = zfi_norm_is_rms(l);
    int64_t n = zfi_last(&l->out.shape), rows = zfi_row_count(&l->out.shape);
    double *sum = l->scratch;
    for (int64_t i = 0; i < (ZFI_DBIAS + 1) * n; i++) sum[i] = 0;
    for (int64_t r = 0; r < rows; r++) {
        double rstd = zfi_get(&l->args[2], r), mean_g = 0, mean_gx = 0;
        for (int64_t i = 0; i < n; i++) {
            double g = zfi_get(dy, r * n + i) * zfi_get(gamma, i);
            if (!rms) mean_g += g / (double)n;
            mean_gx += g * zfi_get(xhat, r * n + i) / (double)n;
        }
        for (int64_t i = 0; i < n; i++) {
            double d = zfi_get(dy, r * n + i), h = zfi_get(xhat, r * n + i),
                   ds = rstd * (d * zfi_get(gamma, i) - mean_g - h * mean_gx) +
                        (dsum ? zfi_get(dsum, r * n + i) : 0),
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
                    (l->arg_count > 2 ? zfi_get(&l->args[2], i % n) : 0));
}

/* --------------------------------------------------------------------------- fast kernels
 *
 * A worker takes its rows in groups that fit into its first-level cache, and performs each stage
 * for all rows of a group before the next stage. So the latency of one row's folded sum or root is
 * hidden after the other rows. bf16 and f16 are converted when they are read and written.
 *
 * Scratch: rows of f32, `stride` apart,
 *
 *     [workers, rooms, group]            rows of a group, for each worker
 *     [3]                                gamma, beta and bias as f32
 *     [blocks + 1, 3]                    of residual_norm_grad: sums of blocks of rows
 */

enum { ZFI_NORM_GROUP = 8, ZFI_NORM_ELEMENTS = 4096 };

typedef struct zfi_norm_job {
    const zf_launch *l;
    zfi_isa isa;
    int64_t n, rows, piece, group, stride; /* piece: rows of a task; group: rows at a time */
    int rooms;                             /* rows of scratch for each row of a group */
    bool rms;
    const zfi_drop *drop;                  /* NULL: no dropout */
    const float *gamma, *beta, *bias;      /* NULL where there is none */
    zfi_drop drawn;
} zfi_norm_job;

static int64_t zfi_norm_workers(const zfi_norm_job *j)
{
    return zfi_pool_threads(zfi_cpu_of(j->l)->pool);
}

/* Row k of scratch. */
static float *zfi_norm_row(const zfi_norm_job *j, int64_t k)
{
    return (float *)j->l->scratch + k * j->stride;
}

static float *zfi_norm_room(const zfi_norm_job *j, int worker, int room)
{
    return zfi_norm_row(j, (worker * j->rooms + room) * j->group);
}

/* The sums `which`, ZFI_DGAMMA to ZFI_DBIAS, of block b. */
static float *zfi_norm_sums(const zfi_norm_job *j, int64_t b, int which)
{
    return zfi_norm_row(j,
                        zfi_norm_workers(j) * j->rooms * j->group + 3 + 3 * b + which - ZFI_DGAMMA);
}

static zfi_norm_job zfi_norm_job_of(const zf_launch *l)
{
    bool grad = l->op == ZF_OP_residual_norm_grad;
    zfi_norm_job j = {.l = l, .isa = zfi_cpu_of(l)->isa, .rms = zfi_norm_is_rms(l)};
    j.rooms = grad && l->arg_count > 4 ? 4 : 3;
    j.n = zfi_last(&l->out.shape);
    j.rows = zfi_row_count(&l->out.shape);
    j.piece = grad ? ZFI_GAMMA_ROWS : zfi_row_grain(j.n);
    j.group = j.n ? ZFI_NORM_ELEMENTS / j.n : 1;
    if (j.group > ZFI_NORM_GROUP) j.group = ZFI_NORM_GROUP;
    if (j.group < 1) j.group = 1;
    j.stride = (j.n / ZFI_LANES + (j.n % ZFI_LANES != 0)) * ZFI_LANES;
    return j;
}

/* The fast kernel takes all dtypes but f64, and rows of at least one element. */
static bool zfi_norm_is_fast(const zf_launch *l)
{
    return zfi_fast_or_half(l) && zfi_last(&l->out.shape) > 0;
}

/* The bytes of scratch; SIZE_MAX, which fits no plan, where their number overflows. */
static size_t zfi_scratch_residual_norm(const zf_launch *l)
{
    zfi_norm_job j = zfi_norm_job_of(l);
    bool grad = l->op == ZF_OP_residual_norm_grad, fast = zfi_norm_is_fast(l);
    int64_t count = zfi_norm_workers(&j) * j.rooms * j.group + 3;
    size_t bytes;
    if (!fast && !grad) return 0;
    if (grad) count += 3 * (zfi_gamma_blocks(l) + 1);
    if (!fast) count = ZFI_DBIAS + 1;
    return zfi_mul_size((size_t)j.stride, (size_t)count, &bytes) &&
                   zfi_mul_size(bytes, fast ? sizeof(float) : sizeof(double), &bytes)
               ? bytes
               : SIZE_MAX;
}

/* Vector `a` as f32: in place, or converted into row k of the vectors after the workers' rows. */
static const float *zfi_norm_vector(const zfi_norm_job *j, const zf_array *a, int k)
{
    float *room = zfi_norm_sums(j, -1, ZFI_DGAMMA + k);
    if (a->dtype == ZF_F32) return a->data;
    zfi_widen(j->isa, room, a->dtype, a->data, j->n);
    return room;
}

/* Rows first..first+count-1 of `a` as f32, n apart: in place, or converted into `room`. */
static const float *zfi_norm_in(const zfi_norm_job *j, const zf_array *a, int64_t first,
                                int64_t count, float *room)
{
    if (a->dtype == ZF_F32) return (const float *)a->data + first * j->n;
    zfi_widen(j->isa, room, a->dtype, (const uint16_t *)a->data + first * j->n, count * j->n);
    return room;
}

/* Where to compute rows of `a`: in place, or in `room`, from which zfi_norm_put converts them. */
static float *zfi_norm_out(const zfi_norm_job *j, const zf_array *a, int64_t first, float *room)
{
    return a && a->dtype == ZF_F32 ? (float *)a->data + first * j->n : room;
}

static void zfi_norm_put(const zfi_norm_job *j, const zf_array *a, int64_t first, int64_t count,
                         const float *room)
{
    if (a && a->dtype != ZF_F32)
        zfi_narrow(j->isa, (uint16_t *)a->data + first * j->n, a->dtype, room, count * j->n);
}

/* y = dropout(x); rows as in zfi_norm_in. */
static void zfi_norm_drop(const zfi_norm_job *j, float *y, const float *x, int64_t first,
                          int64_t count)
{
    const zfi_drop *d = j->drop;
    int64_t run;
    for (int64_t i = 0, n; i < count * j->n; i += n) {
        const uint64_t at = d->element + (uint64_t)zfi_drop_at(d, first * j->n + i, &run);
        n = zfi_min(run, count * j->n - i);
        zfi_dropout(j->isa, y + i, x + i, at, n, d->threshold, (float)d->scale, d->stream, d->step,
                    d->seed);
    }
}

/* s = residual + dropout(x + bias). bias and half, one number for each element, may be NULL. */
ZFI_BODY void zfi_residual_run_body(zfi_isa isa, float *s, const float *x, const float *residual,
                                    const float *bias, const uint16_t *half, uint32_t threshold,
                                    float scale, int64_t n)
{
    if (bias && half) {
        ZFI_VECTOR
        for (int64_t i = 0; i < n; i++)
            s[i] = residual[i] + zfi_pick(isa, half[i] < threshold, (x[i] + bias[i]) * scale, 0.0f);
    } else if (half) {
        ZFI_VECTOR
        for (int64_t i = 0; i < n; i++)
            s[i] = residual[i] + zfi_pick(isa, half[i] < threshold, x[i] * scale, 0.0f);
    } else if (bias) {
        ZFI_VECTOR
        for (int64_t i = 0; i < n; i++) s[i] = residual[i] + (x[i] + bias[i]);
    } else {
        ZFI_VECTOR
        for (int64_t i = 0; i < n; i++) s[i] = residual[i] + x[i];
    }
}

/* The same for several rows; those of s are `stride` apart. The first row of x begins at element
 * `first`. */
ZFI_BODY void zfi_residual_rows_body(zfi_isa isa, float *s, int64_t stride, const float *x,
                                     const float *residual, const float *bias, const zfi_drop *drop,
                                     int64_t first, int64_t rows, int64_t n)
{
    uint16_t half[ZFI_RANDOM_PIECE];
    for (; rows > 0; rows--, s += stride, x += n, residual += n, first += n)
        for (int64_t i = 0; i < n; i += ZFI_RANDOM_PIECE) {
            int64_t count = n - i < ZFI_RANDOM_PIECE ? n - i : ZFI_RANDOM_PIECE;
            if (drop)
                zfi_random_halves(isa, half, drop->element + (uint64_t)(first + i), count,
                                  drop->stream, drop->step, drop->seed);
            zfi_residual_run_body(isa, s + i, x + i, residual + i, bias ? bias + i : NULL,
                                  drop ? half : NULL, drop ? drop->threshold : 0,
                                  drop ? (float)drop->scale : 0, count);
        }
}
ZFI_KERNEL(zfi_residual_rows,
           (float *s, int64_t stride, const float *x, const float *residual, const float *bias,
            const zfi_drop *drop, int64_t first, int64_t rows, int64_t n),
           (s, stride, x, residual, bias, drop, first, rows, n))

/* The norm of at most ZFI_NORM_GROUP rows of s. They are `stride` apart, a multiple of ZFI_LANES,
 * and the elements from n on are filled with numbers that do not change sums. beta NULL: RMSNorm,
 * with mean 0. xhat may be NULL. The sums are those of zfi_moments_rows. */
ZFI_BODY void zfi_norm_group_body(zfi_isa isa, float *y, float *xhat, float *rstd, float *s,
                                  int64_t stride, const float *gamma, const float *beta,
                                  int64_t rows, int64_t n, double eps)
{
    float mean[ZFI_NORM_GROUP], variance[ZFI_NORM_GROUP];
    int64_t blocks = stride / ZFI_LANES;
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = n; i < stride; i++) s[r * stride + i] = 0;
        mean[r] = beta ? zfi_vsum_body(isa, s + r * stride, blocks * ZFI_LANES) / (float)n : 0;
    }
    for (int64_t r = 0; r < rows; r++) {
        const float *row = s + r * stride;
        float lane[ZFI_LANES] = {0}, centre = mean[r];
        for (int64_t i = n; i < stride; i++) s[r * stride + i] = isfinite(centre) ? centre : 0;
        for (int64_t b = 0; b < blocks; b++, row += ZFI_LANES)
            for (int l = 0; l < ZFI_LANES; l++)
                lane[l] = zfi_fma(isa, row[l] - centre, row[l] - centre, lane[l]);
        variance[r] = zfi_fold_sum(lane) / (float)n;
    }
    for (int64_t r = 0; r < rows; r++) rstd[r] = (float)(1 / sqrt((double)variance[r] + eps));
    for (int64_t r = 0; r < rows; r++, y += n, s += stride) {
        float centre = mean[r], scale = rstd[r];
        if (xhat) {
            ZFI_VECTOR
            for (int64_t i = 0; i < n; i++) {
                float h = (s[i] - centre) * scale;
                xhat[r * n + i] = h;
                y[i] = beta ? zfi_fma(isa, h, gamma[i], beta[i]) : h * gamma[i];
            }
        } else if (!beta) {
            ZFI_VECTOR
            for (int64_t i = 0; i < n; i++) y[i] = (s[i] - centre) * scale * gamma[i];
        } else {
            ZFI_VECTOR
            for (int64_t i = 0; i < n; i++)
                y[i] = zfi_fma(isa, (s[i] - centre) * scale, gamma[i], beta[i]);
        }
    }
}
ZFI_KERNEL(zfi_norm_group,
           (float *y, float *xhat, float *rstd, float *s, int64_t stride, const float *gamma,
            const float *beta, int64_t rows, int64_t n, double eps),
           (y, xhat, rstd, s, stride, gamma, beta, rows, n, eps))

/* s[0..count) = words + types + positions of rows first, first + 1, ... */
static void zfi_embed_rows(const zfi_norm_job *j, float *s, int64_t first, int64_t count,
                           float *room)
{
    const zf_array *x = j->l->args;
    for (int64_t k = 0; k < count; k++, s += j->stride) {
        int64_t r = first + k;
        const float *word = zfi_norm_in(j, &x[0], zfi_get_integer(&x[1], r), 1, s),
                    *type = zfi_norm_in(j, &x[2], zfi_get_integer(&x[3], r), 1, room);
        zfi_binary_run(j->isa, ZF_OP_add, s, word, type, true, true, j->n);
        zfi_add_run(j->isa, s, zfi_norm_in(j, &x[4], r % x[4].shape.dims[0], 1, room), j->n);
    }
}

/* The rows of s from `first` on: those at a time that are neighbours in the whole value too. */
static void zfi_residual_runs(const zfi_norm_job *j, float *s, const float *x,
                              const float *residual, int64_t first, int64_t count)
{
    for (int64_t k = 0, rows; k < count; k += rows) {
        int64_t run = INT64_MAX, at = (first + k) * j->n;
        if (j->drop) at = zfi_drop_at(j->drop, at, &run);
        rows = zfi_min(count - k, run / j->n);
        zfi_residual_rows(j->isa, s + k * j->stride, j->stride, x + k * j->n,
                          residual + k * j->n, j->bias, j->drop, at, rows, j->n);
    }
}

/* The rows of s from `first` on. A saved s has the rounding of its type; `room`: of two rows. */
static void zfi_residual_sums(const zfi_norm_job *j, float *s, int64_t first, int64_t count,
                              float *const room[2])
{
    const zf_launch *l = j->l;
    const zf_array *sum = zfi_saved_out(l, ZFI_SUM);
    const int64_t kept = zfi_norm_sum(l);
    const bool rounds = l->out.dtype != ZF_F32;
    const float *x = zfi_norm_in(j, &l->args[0], first, count, room[0]);
    if (kept == ZFI_SUM_GIVEN) {
        for (int64_t k = 0; k < count; k++)
            memcpy(s + k * j->stride, x + k * j->n, (size_t)j->n * sizeof *s);
        return;
    }
    zfi_residual_runs(j, s, x, zfi_norm_in(j, &l->args[1], first, count, room[1]), first, count);
    for (int64_t k = 0; k < count && kept == ZFI_SUM_SAVED && (sum || rounds); k++) {
        void *to = sum ? zfi_element_of(sum->data, sum->dtype, (first + k) * j->n) : room[0];
        zfi_narrow(j->isa, to, l->out.dtype, s + k * j->stride, j->n);
        if (rounds) zfi_widen(j->isa, s + k * j->stride, l->out.dtype, to, j->n);
    }
}

static void zfi_norm_piece(void *context, int64_t piece, int worker)
{
    const zfi_norm_job *j = context;
    const zf_launch *l = j->l;
    const zf_array *xhat = zfi_saved_out(l, ZFI_XHAT), *rstd = zfi_saved_out(l, ZFI_RSTD);
    bool embeds = l->op == ZF_OP_embed_norm;
    float *s = zfi_norm_room(j, worker, 0), *room[2];
    int64_t r = piece * j->piece, last = j->rows - r < j->piece ? j->rows : r + j->piece;
    room[0] = zfi_norm_room(j, worker, 1), room[1] = zfi_norm_room(j, worker, 2);
    for (; r < last; r += j->group) {
        int64_t count = last - r < j->group ? last - r : j->group;
        float unsaved[ZFI_NORM_GROUP], *rstds = rstd ? (float *)rstd->data + r : unsaved;
        float *y = zfi_norm_out(j, &l->out, r, room[0]),
              *h = xhat ? zfi_norm_out(j, xhat, r, room[1]) : NULL;
        if (embeds) zfi_embed_rows(j, s, r, count, room[0]);
        else zfi_residual_sums(j, s, r, count, room);
        zfi_norm_group(j->isa, y, h, rstds, s, j->stride, j->gamma, j->beta, count, j->n,
                       ZF_FLOAT(l, residual_norm, eps));
        if (embeds && j->drop) zfi_norm_drop(j, y, y, r, count);
        zfi_norm_put(j, &l->out, r, count, y);
        zfi_norm_put(j, xhat, r, count, h);
    }
}

/* Runs `task` over pieces of rows. `vectors`: gamma, beta and bias; each may be NULL. */
static void zfi_norm_run(const zf_launch *l, zfi_norm_job *j, zfi_task *task,
                         const zf_array *const vectors[3])
{
    const float **to[3] = {&j->gamma, &j->beta, &j->bias};
    j->drawn = zfi_drop_of(l);
    if (zfi_drops(l)) j->drop = &j->drawn;
    for (int k = 0; k < 3; k++)
        if (vectors[k]) *to[k] = zfi_norm_vector(j, vectors[k], k);
    zfi_pool_run(zfi_cpu_of(l)->pool, j->rows / j->piece + (j->rows % j->piece != 0), task, j);
}

static zf_status zfi_cpu_residual_norm(const zf_launch *l)
{
    zfi_norm_job j = zfi_norm_job_of(l);
    const zf_array *vectors[3];
    zfi_norm_vectors(l, vectors);
    if (!zfi_norm_is_fast(l)) zfi_split(l, j.rows, j.piece, zfi_fused_norm_reference);
    else zfi_norm_run(l, &j, zfi_norm_piece, vectors);
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

/* Normalises xhat with mean 0 and rstd 1: y = gamma xhat + beta. */
static void zfi_affine_fast(const zf_launch *l, int64_t first, int64_t last)
{
    static const float moments[2] = {0, 1};
    int64_t n = zfi_last(&l->out.shape);
    for (int64_t r = first; r < last; r++)
        zfi_norm_rows(zfi_cpu_of(l)->isa, (float *)l->out.data + r * n,
                      (const float *)l->args[0].data + r * n, moments, l->args[1].data,
                      l->arg_count > 2 ? l->args[2].data : NULL, 1, n);
}

static zf_status zfi_cpu_affine(const zf_launch *l)
{
    return zfi_cpu_rows(l, zfi_affine_fast, zfi_affine_reference);
}

/* --------------------------------------------------------------------------- the gradient */

/* The gradient of at most ZFI_NORM_GROUP rows. ds may be the memory of dy, xhat or dsum; dsum may
 * be NULL. The sums are those of zfi_norm_grad_rows. */
ZFI_BODY void zfi_norm_grad_group_body(zfi_isa isa, float *ds, const float *dy, const float *xhat,
                                       const float *rstd, const float *gamma, const float *dsum,
                                       bool rms, int64_t rows, int64_t n)
{
    float mean_g[ZFI_NORM_GROUP], mean_gx[ZFI_NORM_GROUP];
    for (int64_t r = 0; r < rows; r++) {
        const float *d = dy + r * n, *h = xhat + r * n;
        float sum_g[ZFI_LANES] = {0}, sum_gx[ZFI_LANES] = {0};
        ZFI_LANED(i, l, n, {
            float g = d[i] * gamma[i];
            sum_g[l] += g;
            sum_gx[l] = zfi_fma(isa, g, h[i], sum_gx[l]);
        });
        mean_g[r] = rms ? 0 : zfi_fold_sum(sum_g) / (float)n;
        mean_gx[r] = zfi_fold_sum(sum_gx) / (float)n;
    }
    for (int64_t r = 0; r < rows; r++, ds += n, dy += n, xhat += n) {
        float mean = mean_g[r], mean_x = mean_gx[r], scale = rstd[r];
        if (dsum) {
            const float *more = dsum + r * n;
            ZFI_VECTOR
            for (int64_t i = 0; i < n; i++) {
                float d = scale * (dy[i] * gamma[i] - zfi_fma(isa, xhat[i], mean_x, mean));
                ds[i] = more[i] + d;
            }
        } else {
            ZFI_VECTOR
            for (int64_t i = 0; i < n; i++)
                ds[i] = scale * (dy[i] * gamma[i] - zfi_fma(isa, xhat[i], mean_x, mean));
        }
    }
}
ZFI_KERNEL(zfi_norm_grad_group,
           (float *ds, const float *dy, const float *xhat, const float *rstd, const float *gamma,
            const float *dsum, bool rms, int64_t rows, int64_t n),
           (ds, dy, xhat, rstd, gamma, dsum, rms, rows, n))

/* sum += rows of a, products += rows of a b. Rows are added in order, four for each visit of a sum.
 * b and products may be NULL. */
ZFI_BODY void zfi_add_columns_body(zfi_isa isa, float *sum, float *products, const float *a,
                                   const float *b, int64_t rows, int64_t n)
{
    for (; rows >= 4; rows -= 4, a += 4 * n) {
        const float *a1 = a + n, *a2 = a1 + n, *a3 = a2 + n;
        if (products) {
            const float *b1 = b + n, *b2 = b1 + n, *b3 = b2 + n;
            ZFI_VECTOR
            for (int64_t i = 0; i < n; i++) {
                float p = zfi_fma(isa, a[i], b[i], products[i]);
                p = zfi_fma(isa, a1[i], b1[i], p);
                p = zfi_fma(isa, a2[i], b2[i], p);
                products[i] = zfi_fma(isa, a3[i], b3[i], p);
                sum[i] = sum[i] + a[i] + a1[i] + a2[i] + a3[i];
            }
            b += 4 * n;
        } else {
            ZFI_VECTOR
            for (int64_t i = 0; i < n; i++) sum[i] = sum[i] + a[i] + a1[i] + a2[i] + a3[i];
        }
    }
    for (; rows > 0; rows--, a += n) {
        ZFI_VECTOR
        for (int64_t i = 0; i < n; i++) sum[i] += a[i];
        if (!products) continue;
        ZFI_VECTOR
        for (int64_t i = 0; i < n; i++) products[i] = zfi_fma(isa, a[i], b[i], products[i]);
        b += n;
    }
}
ZFI_KERNEL(zfi_add_columns,
           (float *sum, float *products, const float *a, const float *b, int64_t rows, int64_t n),
           (sum, products, a, b, rows, n))

static void zfi_norm_grad_piece(void *context, int64_t piece, int worker)
{
    const zfi_norm_job *j = context;
    const zf_launch *l = j->l;
    const zf_array *dx = zfi_saved_out(l, ZFI_DX), *biases = zfi_saved_out(l, ZFI_DBIAS);
    bool sums = zfi_saved_out(l, ZFI_DGAMMA) || zfi_saved_out(l, ZFI_DBETA);
    const float *rstd = l->args[2].data;
    float *dgamma = zfi_norm_sums(j, piece, ZFI_DGAMMA),
          *dbeta = zfi_norm_sums(j, piece, ZFI_DBETA), *dbias = zfi_norm_sums(j, piece, ZFI_DBIAS);
    int64_t n = j->n, r = piece * j->piece, last = j->rows - r < j->piece ? j->rows : r + j->piece;
    memset(dgamma, 0, 3 * (size_t)j->stride * sizeof *dgamma);
    for (; r < last; r += j->group) {
        int64_t count = last - r < j->group ? last - r : j->group;
        float *room = zfi_norm_room(j, worker, 0);
        const float *dy = zfi_norm_in(j, &l->args[0], r, count, room),
                    *xhat = zfi_norm_in(j, &l->args[1], r, count, zfi_norm_room(j, worker, 1)),
                    *dsum = l->arg_count > 4 ? zfi_norm_in(j, &l->args[4], r, count,
                                                           zfi_norm_room(j, worker, 3))
                                             : NULL;
        float *ds = zfi_norm_out(j, &l->out, r, zfi_norm_room(j, worker, 2)),
              *to = zfi_norm_out(j, dx, r, room);
        if (sums) zfi_add_columns(j->isa, dbeta, dgamma, dy, xhat, count, n);
        zfi_norm_grad_group(j->isa, ds, dy, xhat, rstd + r, j->gamma, dsum, j->rms, count, n);
        if (j->drop && (dx || biases)) zfi_norm_drop(j, to, ds, r, count);
        else if (dx) memcpy(to, ds, (size_t)(count * n) * sizeof *to);
        if (biases) zfi_add_columns(j->isa, dbias, NULL, j->drop ? to : ds, NULL, count, n);
        zfi_norm_put(j, &l->out, r, count, ds);
        zfi_norm_put(j, dx, r, count, to);
    }
}

static zf_status zfi_cpu_residual_norm_grad(const zf_launch *l)
{
    zfi_norm_job j = zfi_norm_job_of(l);
    int64_t blocks = zfi_gamma_blocks(l);
    if (!zfi_norm_is_fast(l)) {
        zfi_residual_norm_grad_reference(l);
        return ZF_OK;
    }
    zfi_norm_run(l, &j, zfi_norm_grad_piece, (const zf_array *const[3]){&l->args[3]});
    for (int which = ZFI_DGAMMA; which <= ZFI_DBIAS; which++) {
        const zf_array *out = zfi_saved_out(l, which);
        float *sum = zfi_norm_sums(&j, blocks, which);
        if (!out) continue;
        memset(sum, 0, (size_t)j.n * sizeof *sum);
        for (int64_t b = 0; b < blocks; b++)
            zfi_add_run(j.isa, sum, zfi_norm_sums(&j, b, which), j.n);
        zfi_narrow(j.isa, out->data, out->dtype, sum, j.n);
    }
    return ZF_OK;
}

/* Recomputes the result of residual_norm or embed_norm: gamma and beta over the saved xhat, and the
 * dropout of embed_norm. */
static int32_t zfi_remake_residual_norm(zf_graph *g, int32_t id, int32_t left)
{
    const zfi_node node = g->nodes[id]; /* a copy: appending moves the nodes */
    bool embeds = node.op == ZF_OP_embed_norm,
         rms = !embeds && ZF_INT(&node, residual_norm, form) == ZFI_FORM_RMS;
    int32_t gamma = embeds ? node.arg_count - 2 : 2;
    zf_tensor x[3] = {{g, left}, {g, node.args[gamma]}, {g, rms ? 0 : node.args[gamma + 1]}},
              again = zfi_build(ZF_OP_affine, rms ? 2 : 3, x, NULL);
    if (!embeds || ZF_FLOAT(&node, embed_norm, p) == 0) return again.id;
    return zfi_op(dropout,
                  zfi_with({.f = ZF_FLOAT(&node, embed_norm, p)},
                           {.i = ZF_INT(&node, embed_norm, stream)}),
                  again)
        .id;
}

static bool zfi_remade_residual_norm(const zf_graph *g, const zfi_node *of, const zfi_node *node,
                                     bool alike)
{
    bool embeds = of->op == ZF_OP_embed_norm;
    int32_t gamma = embeds ? of->arg_count - 2 : 2;
    (void)g;
    if (node->op != ZF_OP_affine || !alike) return node->op == ZF_OP_affine;
    return (!embeds || ZF_FLOAT(of, embed_norm, p) == 0) && node->args[1] == of->args[gamma] &&
           (node->arg_count == 2 || node->args[2] == of->args[gamma + 1]);
}

/* Recomputes a residual_norm and what it saves from the sum that it has saved. */
static int32_t zfi_remake_from_sum(zf_graph *g, int32_t id, int32_t sum)
{
    const zfi_node node = g->nodes[id]; /* a copy: appending moves the nodes */
    bool rms = ZF_INT(&node, residual_norm, form) == ZFI_FORM_RMS;
    zf_tensor x[4] = {{g, sum}, {g, sum}, {g, node.args[2]}, {g, rms ? 0 : node.args[3]}};
    return zfi_build(ZF_OP_residual_norm, rms ? 3 : 4, x,
                     zfi_with({.f = 0}, {.i = 0}, ZF_ATTRIBUTE(&node, residual_norm, eps),
                              ZF_ATTRIBUTE(&node, residual_norm, form), {.i = ZFI_SUM_GIVEN}))
        .id;
}

/* dbias is that of dx, which is the result where there is no dropout. */
static int32_t zfi_row_sums_residual_norm_grad(const zfi_node *node, int64_t of)
{
    const bool is_dx = of < 0 ? ZF_FLOAT(node, residual_norm_grad, p) == 0 : of == ZFI_DX;
    return is_dx ? ZFI_DBIAS : -1;
}

/* ------------------------------------------------------------------------------- records */

ZFI_SAME_ATTRIBUTE(residual_norm, dropout, p)
ZFI_SAME_ATTRIBUTE(residual_norm, dropout, stream)
ZFI_SAME_ATTRIBUTE(embed_norm, dropout, p)
ZFI_SAME_ATTRIBUTE(embed_norm, dropout, stream)
ZFI_SAME_ATTRIBUTE(residual_norm_grad, dropout, p)
ZFI_SAME_ATTRIBUTE(residual_norm_grad, dropout, stream)
ZFI_SAME_ATTRIBUTE(embed_norm, residual_norm, eps)
ZFI_OPERATOR(residual_norm, .infer = zfi_infer_residual_norm, .grad = zfi_grad_residual_norm,
             .cpu = zfi_cpu_residual_norm, .scratch = zfi_scratch_residual_norm,
             .saved = zfi_saved_residual_norm, .saved_grads = 1 << ZFI_SUM,
             .remake = zfi_remake_residual_norm, .remade = zfi_remade_residual_norm, .sum = ZFI_SUM,
             .remake_from_sum = zfi_remake_from_sum, .functions = zfi_draws_each,
             .cuts = "... c!, ... c!, c!, ?c!, c! -> ... c!; ... c!; ...; ... c!",
             .draws = ZFI_DRAWS_AS_RESULT,
             .traits = ZF_OP_INPLACE | ZF_OP_RANDOM | ZF_OP_READS_HALF)
ZFI_OPERATOR(embed_norm, .infer = zfi_infer_embed_norm, .grad = zfi_grad_embed_norm,
             .cpu = zfi_cpu_embed_norm, .scratch = zfi_scratch_residual_norm,
             .saved = zfi_saved_residual_norm, .remake = zfi_remake_residual_norm,
             .remade = zfi_remade_residual_norm, .bytes = zfi_bytes_of_rows,
             .functions = zfi_draws_each,
             .cuts = "v! c!, b t, u! c!, b t, t c!, c!, c! -> b t c!; b t c!; b t",
             .draws = ZFI_DRAWS_AS_RESULT,
             .traits = ZF_OP_RANDOM | ZF_OP_READS_HALF)
ZFI_OPERATOR(residual_norm_grad, .infer = zfi_infer_residual_norm_grad,
             .cpu = zfi_cpu_residual_norm_grad, .scratch = zfi_scratch_residual_norm,
             .saved = zfi_saved_residual_norm_grad, .functions = zfi_draws_each,
             .row_sums = zfi_row_sums_residual_norm_grad,
             .cuts = "... c!, ... c!, ..., c!, ?... c! -> ... c!; ... c!; c!; c!; c!",
             .linear_in = 1 | 1 << 4,
             .linear_saved = 1 << ZFI_DX | 1 << ZFI_DGAMMA | 1 << ZFI_DBETA | 1 << ZFI_DBIAS,
             .draws = ZFI_DRAWS_AS_RESULT,
             .traits = ZF_OP_INPLACE | ZF_OP_RANDOM | ZF_OP_READS_HALF)
ZFI_OPERATOR(affine, .infer = zfi_infer_affine, .grad = zfi_grad_affine, .cpu = zfi_cpu_affine,
             .functions = zfi_functions_none, .traits = ZF_OP_INPLACE | ZF_OP_ELEMENTWISE)
