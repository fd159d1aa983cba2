/* Rows of the last dimension, n long: softmax; LayerNorm (Ba, Kiros & Hinton 2016); RMSNorm (Zhang
 * & Sennrich 2019).
 *
 *     %2 = softmax %1 : f32[4,8]
 *          y = exp(x - max x) / sum exp(x - max x); saved: y
 *     %4 = softmax_grad %3, %2 : f32[4,8]
 *          dx = y (dy - sum dy y), of (dy, y)
 *     %2 = moments %1 {eps=1e-12} : f32[4,2]
 *          mean, rstd = 1 / sqrt(mean (x - mean)^2 + eps)
 *     %5 = layer_norm %1, %2, %3, %4 : f32[4,8]
 *          y = gamma xhat + beta, xhat = (x - mean) rstd; saved: x, moments
 *     %7 = layer_norm_grad %6, %1, %2, %3, %more : f32[4,8]
 *          dx = more + rstd (g - mean g - xhat mean(g xhat)), g = dy gamma; more or none
 *     %2 = rms %1 {eps=1e-06} : f32[4,2]
 *          0, 1 / sqrt(mean x^2 + eps): as moments, with the mean 0
 *     %4 = rms_norm %1, %2, %3 : f32[4,8]
 *          y = gamma xhat; saved: x, rms
 *     %6 = rms_norm_grad %5, %1, %2, %3, %more : f32[4,8]
 *          dx = more + rstd (g - xhat mean(g xhat)), g = dy gamma; more or none
 *     %8 = norm_gamma_grad %6, %1, %2 : f32[8]
 *          dgamma = sum over rows of dy xhat, of either norm
 *
 * softmax: a fully masked row (only -inf) gives zeros, not the NaN of 0 / 0. A row with NaN or +inf
 * gives NaN.
 *
 * Moments are f32, f64 for an f64 x. dx is the whole gradient: it includes the gradient through the
 * moments, so the operand moments gets none. In f32 and f64 the sum with `more` has the bits of a
 * node add; in 16 bits it is rounded once. dbeta is sum_to(dy).
 *
 * norm_gamma_grad adds over blocks of ZFI_GAMMA_ROWS rows, then over the blocks, both in order of
 * the rows. */

/* Checks that operand k has at least one dimension, and that operands 0..k have one float dtype. */
static zf_status zfi_infer_rows(const zfi_infer *c, int32_t k)
{
    if (!zfi_is_float(c->args[0]->dtype))
        return zfi_infer_fail(c, ZF_ERR_DTYPE, "the operand must be float: f32, bf16, f16 or f64");
    if (c->args[0]->shape.rank < 1)
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "needs one dimension or more");
    for (int32_t i = 1; i <= k; i++)
        if (c->args[i]->dtype != c->args[0]->dtype)
            return zfi_infer_fail(c, ZF_ERR_DTYPE,
                                  "operand %d must be %s, as operand 0 (zf_cast converts)", (int)i,
                                  zf_dtype_name(c->args[0]->dtype));
        else if (!zfi_same_shape(&c->args[i]->shape, &c->args[0]->shape))
            return zfi_infer_fail(c, ZF_ERR_SHAPE, "operand %d must have the shape of operand 0",
                                  (int)i);
    return ZF_OK;
}

/* The dtype of sums and moments of a tensor of `dtype`. */
static zf_dtype zfi_wide(zf_dtype dtype) { return dtype == ZF_F64 ? ZF_F64 : ZF_F32; }

/* Checks that operand k has the shape and dtype of the moments of operand 0. */
static zf_status zfi_infer_moments_of(const zfi_infer *c, int32_t k)
{
    zf_shape shape = c->args[0]->shape;
    char type[ZFI_TYPE_TEXT];
    shape.dims[shape.rank - 1] = 2;
    if (c->args[k]->dtype == zfi_wide(c->args[0]->dtype) &&
        zfi_same_shape(&c->args[k]->shape, &shape))
        return ZF_OK;
    return zfi_infer_fail(c, ZF_ERR_SHAPE, "operand %d must be the moments, %s", (int)k,
                          zfi_type_text(type, zfi_wide(c->args[0]->dtype), &shape));
}

/* Checks that operand k, called `what` in messages, has the type of operand 0. */
static zf_status zfi_infer_as_first(const zfi_infer *c, int32_t k, const char *what)
{
    char type[ZFI_TYPE_TEXT];
    if (c->args[k]->dtype == c->args[0]->dtype &&
        zfi_same_shape(&c->args[k]->shape, &c->args[0]->shape))
        return ZF_OK;
    return zfi_infer_fail(c, ZF_ERR_SHAPE, "%s must be %s", what,
                          zfi_type_text(type, c->args[0]->dtype, &c->args[0]->shape));
}

/* Checks that operand k, called `what` in messages, is a vector as long as the rows of operand
 * 0. */
static zf_status zfi_infer_vector(const zfi_infer *c, int32_t k, const char *what)
{
    zf_shape shape = {1, {zfi_last(&c->args[0]->shape)}};
    char type[ZFI_TYPE_TEXT];
    if (c->args[k]->dtype == c->args[0]->dtype && zfi_same_shape(&c->args[k]->shape, &shape))
        return ZF_OK;
    return zfi_infer_fail(c, ZF_ERR_SHAPE, "%s must be %s", what,
                          zfi_type_text(type, c->args[0]->dtype, &shape));
}

static zf_status zfi_infer_softmax(zfi_infer *c)
{
    zf_status status = zfi_infer_rows(c, 0);
    return status ? status : zfi_infer_like(c, 0);
}

static zf_status zfi_infer_softmax_grad(zfi_infer *c)
{
    zf_status status = zfi_infer_rows(c, 1);
    return status ? status : zfi_infer_like(c, 0);
}

static zf_status zfi_infer_eps(const zfi_infer *c, double eps)
{
    if (eps >= 0 && !isinf(eps)) return ZF_OK;
    return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "eps = %g must be finite and not negative", eps);
}

static zf_status zfi_infer_moments(zfi_infer *c)
{
    zf_status status = zfi_infer_rows(c, 0);
    if (!status) status = zfi_infer_eps(c, ZF_FLOAT(c, moments, eps));
    if (status) return status;
    c->dtype = zfi_wide(c->args[0]->dtype);
    c->shape = c->args[0]->shape;
    c->shape.dims[c->shape.rank - 1] = 2;
    return ZF_OK;
}

static zf_status zfi_infer_layer_norm(zfi_infer *c)
{
    zf_status status = zfi_infer_rows(c, 0);
    if (!status) status = zfi_infer_moments_of(c, 1);
    if (!status) status = zfi_infer_vector(c, 2, "gamma");
    if (!status && c->arg_count > 3) status = zfi_infer_vector(c, 3, "beta");
    return status ? status : zfi_infer_like(c, 0);
}

static zf_status zfi_infer_layer_norm_grad(zfi_infer *c)
{
    zf_status status = zfi_infer_rows(c, 1);
    if (!status) status = zfi_infer_moments_of(c, 2);
    if (!status) status = zfi_infer_vector(c, 3, "gamma");
    if (!status && c->arg_count > 4) status = zfi_infer_as_first(c, 4, "the value to add to");
    return status ? status : zfi_infer_like(c, 0);
}

static zf_status zfi_infer_norm_gamma_grad(zfi_infer *c)
{
    zf_status status = zfi_infer_rows(c, 1);
    if (!status) status = zfi_infer_moments_of(c, 2);
    if (status) return status;
    c->dtype = c->args[0]->dtype;
    c->shape = (zf_shape){1, {zfi_last(&c->args[0]->shape)}};
    return ZF_OK;
}

/* --------------------------------------------------------------------------- gradients */

static void zfi_grad_softmax(zf_grad *c) { c->dx[0] = zfi_op(softmax_grad, NULL, c->dy, c->y); }

static void zfi_grad_layer_norm(zf_grad *c)
{
    if (c->need[0]) c->dx[0] = zfi_op(layer_norm_grad, NULL, c->dy, c->x[0], c->x[1], c->x[2]);
    if (c->need[2]) c->dx[2] = zfi_op(norm_gamma_grad, NULL, c->dy, c->x[0], c->x[1]);
    if (c->need[3]) c->dx[3] = zfi_sum_like(c->dy, c->x[3]);
}

static void zfi_grad_rms_norm(zf_grad *c)
{
    if (c->need[0]) c->dx[0] = zfi_op(rms_norm_grad, NULL, c->dy, c->x[0], c->x[1], c->x[2]);
    if (c->need[2]) c->dx[2] = zfi_op(norm_gamma_grad, NULL, c->dy, c->x[0], c->x[1]);
}

/* ----------------------------------------------------------------------------- softmax
 *
 * A task computes rows [first, last). Kernels that may run in place read what they need of a row
 * before they write to it. */

static void zfi_softmax_reference(const zf_launch *l, int64_t first, int64_t last)
{
    const zf_array *x = &l->args[0];
    int64_t n = zfi_last(&x->shape);
    for (int64_t r = first; r < last; r++) {
        double most = -INFINITY, sum = 0;
        for (int64_t i = r * n; i < (r + 1) * n; i++)
            if (zfi_get(x, i) > most) most = zfi_get(x, i);
        if (most == -INFINITY) most = 0;
        for (int64_t i = r * n; i < (r + 1) * n; i++) sum += exp(zfi_get(x, i) - most);
        for (int64_t i = r * n; i < (r + 1) * n; i++)
            zfi_set(&l->out, i, sum == 0 ? 0 : exp(zfi_get(x, i) - most) / sum);
    }
}

ZFI_BODY void zfi_softmax_rows_body(zfi_isa isa, float *y, const float *x, int64_t rows, int64_t n)
{
    for (; rows > 0; rows--, y += n, x += n) {
        float most = zfi_vmax_body(isa, x, n), sum;
        if (most == -INFINITY) most = 0;
        ZFI_VECTOR
        for (int64_t i = 0; i < n; i++) y[i] = zfi_exp1(isa, x[i] - most);
        sum = zfi_vsum_body(isa, y, n);
        sum = sum == 0 ? 0 : 1 / sum;
        ZFI_VECTOR
        for (int64_t i = 0; i < n; i++) y[i] *= sum;
    }
}
ZFI_KERNEL(zfi_softmax_rows, (float *y, const float *x, int64_t rows, int64_t n), (y, x, rows, n))

static void zfi_softmax_fast(const zf_launch *l, int64_t first, int64_t last)
{
    int64_t n = zfi_last(&l->out.shape);
    const float *x = l->args[0].data;
    zfi_softmax_rows(zfi_cpu_of(l)->isa, (float *)l->out.data + first * n, x + first * n,
                     last - first, n);
}

static void zfi_softmax_grad_reference(const zf_launch *l, int64_t first, int64_t last)
{
    const zf_array *dy = &l->args[0], *y = &l->args[1];
    int64_t n = zfi_last(&y->shape);
    for (int64_t r = first; r < last; r++) {
        double dot = 0;
        for (int64_t i = r * n; i < (r + 1) * n; i++) dot += zfi_get(dy, i) * zfi_get(y, i);
        for (int64_t i = r * n; i < (r + 1) * n; i++)
            zfi_set(&l->out, i, zfi_get(y, i) * (zfi_get(dy, i) - dot));
    }
}

ZFI_BODY void zfi_softmax_grad_rows_body(zfi_isa isa, float *dx, const float *dy, const float *y,
                                         int64_t rows, int64_t n)
{
    for (; rows > 0; rows--, dx += n, dy += n, y += n) {
        float dot = zfi_vdot_body(isa, dy, y, n);
        ZFI_VECTOR
        for (int64_t i = 0; i < n; i++) dx[i] = y[i] * (dy[i] - dot);
    }
}
ZFI_KERNEL(zfi_softmax_grad_rows,
           (float *dx, const float *dy, const float *y, int64_t rows, int64_t n),
           (dx, dy, y, rows, n))

static void zfi_softmax_grad_fast(const zf_launch *l, int64_t first, int64_t last)
{
    int64_t n = zfi_last(&l->out.shape);
    const float *dy = l->args[0].data, *y = l->args[1].data;
    zfi_softmax_grad_rows(zfi_cpu_of(l)->isa, (float *)l->out.data + first * n, dy + first * n,
                          y + first * n, last - first, n);
}

/* Runs one of two tasks over the rows of operand 0. */
static zf_status zfi_cpu_rows(const zf_launch *l, zfi_range_task *fast, zfi_range_task *reference)
{
    const zf_shape *x = &l->args[0].shape;
    if (zfi_count(&l->out) > 0) /* else there are no rows, or empty ones */
        zfi_split(l, zfi_row_count(x), zfi_row_grain(zfi_last(x)), zfi_fast(l) ? fast : reference);
    return ZF_OK;
}

static zf_status zfi_cpu_softmax(const zf_launch *l)
{
    return zfi_cpu_rows(l, zfi_softmax_fast, zfi_softmax_reference);
}

static zf_status zfi_cpu_softmax_grad(const zf_launch *l)
{
    return zfi_cpu_rows(l, zfi_softmax_grad_fast, zfi_softmax_grad_reference);
}

/* ----------------------------------------------------------------------------- moments
 *
 * In two passes: the mean first, then the squares of the differences, so that a large mean does not
 * cost precision. An empty row has mean 0 and variance 0. */

static void zfi_moments_reference(const zf_launch *l, int64_t first, int64_t last)
{
    const zf_array *x = &l->args[0];
    int64_t n = zfi_last(&x->shape);
    double count = n ? (double)n : 1, eps = ZF_FLOAT(l, moments, eps);
    for (int64_t r = first; r < last; r++) {
        double mean = 0, squares = 0;
        for (int64_t i = r * n; i < (r + 1) * n && l->op == ZF_OP_moments; i++)
            mean += zfi_get(x, i);
        mean /= count;
        for (int64_t i = r * n; i < (r + 1) * n; i++)
            squares += (zfi_get(x, i) - mean) * (zfi_get(x, i) - mean);
        zfi_set(&l->out, 2 * r, mean);
        zfi_set(&l->out, 2 * r + 1, 1 / sqrt(squares / count + eps));
    }
}

/* Runs `statement` for i = 0..n-1 with l = i % ZFI_LANES, ZFI_LANES elements at a time: for sums
 * over a row that cpu/vmath.c does not have. */
#define ZFI_LANED(i, l, n, statement)                                                              \
    do {                                                                                           \
        int64_t laned_ = 0;                                                                        \
        for (; laned_ + ZFI_LANES <= (n); laned_ += ZFI_LANES)                                     \
            for (int l = 0; l < ZFI_LANES; l++) {                                                  \
                int64_t i = laned_ + l;                                                            \
                statement;                                                                         \
            }                                                                                      \
        for (int l = 0; l < (n)-laned_; l++) {                                                     \
            int64_t i = laned_ + l;                                                                \
            statement;                                                                             \
        }                                                                                          \
    } while (0)

ZFI_BODY void zfi_moments_rows_body(zfi_isa isa, float *out, const float *x, int64_t rows,
                                    int64_t n, bool centred, double eps)
{
    float count = n ? (float)n : 1;
    for (; rows > 0; rows--, out += 2, x += n) {
        float mean = centred ? zfi_vsum_body(isa, x, n) / count : 0, lane[ZFI_LANES] = {0};
        ZFI_LANED(i, l, n, lane[l] = zfi_fma(isa, x[i] - mean, x[i] - mean, lane[l]));
        out[0] = mean;
        out[1] = (float)(1 / sqrt((double)(zfi_fold_sum(lane) / count) + eps));
    }
}
ZFI_KERNEL(zfi_moments_rows,
           (float *out, const float *x, int64_t rows, int64_t n, bool centred, double eps),
           (out, x, rows, n, centred, eps))

static void zfi_moments_fast(const zf_launch *l, int64_t first, int64_t last)
{
    int64_t n = zfi_last(&l->args[0].shape);
    const float *x = l->args[0].data;
    zfi_moments_rows(zfi_cpu_of(l)->isa, (float *)l->out.data + 2 * first, x + first * n,
                     last - first, n, l->op == ZF_OP_moments, ZF_FLOAT(l, moments, eps));
}

static zf_status zfi_cpu_moments(const zf_launch *l)
{
    return zfi_cpu_rows(l, zfi_moments_fast, zfi_moments_reference);
}

/* ------------------------------------------------------------------------------- norms */

static void zfi_norm_reference(const zf_launch *l, int64_t first, int64_t last)
{
    const zf_array *x = &l->args[0], *moments = &l->args[1], *gamma = &l->args[2];
    const zf_array *beta = l->arg_count > 3 ? &l->args[3] : NULL;
    int64_t n = zfi_last(&x->shape);
    for (int64_t r = first; r < last; r++) {
        double mean = zfi_get(moments, 2 * r), rstd = zfi_get(moments, 2 * r + 1);
        for (int64_t i = 0; i < n; i++)
            zfi_set(&l->out, r * n + i,
                    (zfi_get(x, r * n + i) - mean) * rstd * zfi_get(gamma, i) +
                        (beta ? zfi_get(beta, i) : 0));
    }
}

ZFI_BODY void zfi_norm_rows_body(zfi_isa isa, float *y, const float *x, const float *moments,
                                 const float *gamma, const float *beta, int64_t rows, int64_t n)
{
    for (; rows > 0; rows--, y += n, x += n, moments += 2) {
        float mean = moments[0], rstd = moments[1];
        if (beta) {
            ZFI_VECTOR
            for (int64_t i = 0; i < n; i++)
                y[i] = zfi_fma(isa, (x[i] - mean) * rstd, gamma[i], beta[i]);
        } else {
            ZFI_VECTOR
            for (int64_t i = 0; i < n; i++) y[i] = (x[i] - mean) * rstd * gamma[i];
        }
    }
}
ZFI_KERNEL(zfi_norm_rows,
           (float *y, const float *x, const float *moments, const float *gamma, const float *beta,
            int64_t rows, int64_t n),
           (y, x, moments, gamma, beta, rows, n))

static void zfi_norm_fast(const zf_launch *l, int64_t first, int64_t last)
{
    int64_t n = zfi_last(&l->out.shape);
    const float *x = l->args[0].data, *moments = l->args[1].data, *gamma = l->args[2].data;
    zfi_norm_rows(zfi_cpu_of(l)->isa, (float *)l->out.data + first * n, x + first * n,
                  moments + 2 * first, gamma, l->arg_count > 3 ? l->args[3].data : NULL,
                  last - first, n);
}

static zf_status zfi_cpu_layer_norm(const zf_launch *l)
{
    return zfi_cpu_rows(l, zfi_norm_fast, zfi_norm_reference);
}

static void zfi_norm_grad_reference(const zf_launch *l, int64_t first, int64_t last)
{
    const zf_array *dy = &l->args[0], *x = &l->args[1], *moments = &l->args[2],
                   *gamma = &l->args[3], *more = l->arg_count > 4 ? &l->args[4] : NULL;
    int64_t n = zfi_last(&x->shape);
    for (int64_t r = first; r < last; r++) {
        double mean = zfi_get(moments, 2 * r), rstd = zfi_get(moments, 2 * r + 1), mean_g = 0,
               mean_gx = 0;
        for (int64_t i = 0; i < n; i++) {
            double g = zfi_get(dy, r * n + i) * zfi_get(gamma, i);
            if (l->op == ZF_OP_layer_norm_grad) mean_g += g / (double)n;
            mean_gx += g * (zfi_get(x, r * n + i) - mean) * rstd / (double)n;
        }
        for (int64_t i = 0; i < n; i++) {
            double g = zfi_get(dy, r * n + i) * zfi_get(gamma, i),
                   xhat = (zfi_get(x, r * n + i) - mean) * rstd;
            g = rstd * (g - mean_g - xhat * mean_gx);
            zfi_set(&l->out, r * n + i, more ? zfi_get(more, r * n + i) + g : g);
        }
    }
}

/* centred: for layer_norm, whose gradient has the term mean g; else for rms_norm. more may be
 * NULL. */
ZFI_BODY void zfi_norm_grad_rows_body(zfi_isa isa, float *dx, const float *dy, const float *x,
                                      const float *moments, const float *gamma, const float *more,
                                      bool centred, int64_t rows, int64_t n)
{
    float count = n ? (float)n : 1;
    for (; rows > 0; rows--, dx += n, dy += n, x += n, moments += 2) {
        float mean = moments[0], rstd = moments[1], mean_g = 0, mean_gx, sum_g[ZFI_LANES] = {0},
              sum_gx[ZFI_LANES] = {0};
        ZFI_LANED(i, l, n, {
            float g = dy[i] * gamma[i];
            sum_g[l] += g;
            sum_gx[l] = zfi_fma(isa, g, (x[i] - mean) * rstd, sum_gx[l]);
        });
        if (centred) mean_g = zfi_fold_sum(sum_g) / count;
        mean_gx = zfi_fold_sum(sum_gx) / count;
        if (more) {
            ZFI_VECTOR
            for (int64_t i = 0; i < n; i++) {
                float g = dy[i] * gamma[i], xhat = (x[i] - mean) * rstd;
                dx[i] = more[i] + rstd * (g - zfi_fma(isa, xhat, mean_gx, mean_g));
            }
            more += n;
            continue;
        }
        ZFI_VECTOR
        for (int64_t i = 0; i < n; i++) {
            float g = dy[i] * gamma[i], xhat = (x[i] - mean) * rstd;
            dx[i] = rstd * (g - zfi_fma(isa, xhat, mean_gx, mean_g));
        }
    }
}
ZFI_KERNEL(zfi_norm_grad_rows,
           (float *dx, const float *dy, const float *x, const float *moments, const float *gamma,
            const float *more, bool centred, int64_t rows, int64_t n),
           (dx, dy, x, moments, gamma, more, centred, rows, n))

static void zfi_norm_grad_fast(const zf_launch *l, int64_t first, int64_t last)
{
    int64_t n = zfi_last(&l->out.shape);
    const float *dy = l->args[0].data, *x = l->args[1].data, *moments = l->args[2].data,
                *gamma = l->args[3].data, *more = l->arg_count > 4 ? l->args[4].data : NULL;
    zfi_norm_grad_rows(zfi_cpu_of(l)->isa, (float *)l->out.data + first * n, dy + first * n,
                       x + first * n, moments + 2 * first, gamma, more ? more + first * n : NULL,
                       l->op == ZF_OP_layer_norm_grad, last - first, n);
}

static zf_status zfi_cpu_layer_norm_grad(const zf_launch *l)
{
    return zfi_cpu_rows(l, zfi_norm_grad_fast, zfi_norm_grad_reference);
}

/* ------------------------------------------------------------------------ gamma's gradient
 *
 * A task of the fast kernel adds one block of rows, reading them in memory order, into one row of
 * sums:
 *
 *     dy, x [rows,n] -> scratch [blocks,n] -> out [n]
 *
 * An `out` of 16 bits is summed in one more row of scratch.
 */
enum { ZFI_GAMMA_ROWS = 64 };

static int64_t zfi_gamma_blocks(const zf_launch *l)
{
    int64_t rows = zfi_row_count(&l->args[0].shape);
    return rows / ZFI_GAMMA_ROWS + (rows % ZFI_GAMMA_ROWS != 0);
}

static size_t zfi_scratch_norm_gamma_grad(const zf_launch *l)
{
    int64_t rows = zfi_gamma_blocks(l) + zfi_is_half(l->out.dtype);
    return zfi_fast_or_half(l) ? (size_t)(rows * zfi_last(&l->out.shape)) * sizeof(float) : 0;
}

/* Columns [first, last). */
static void zfi_gamma_reference(const zf_launch *l, int64_t first, int64_t last)
{
    const zf_array *dy = &l->args[0], *x = &l->args[1], *moments = &l->args[2];
    int64_t n = zfi_last(&x->shape), rows = zfi_row_count(&x->shape);
    for (int64_t i = first; i < last; i++) {
        double sum = 0;
        for (int64_t r = 0; r < rows; r++)
            sum += zfi_get(dy, r * n + i) * (zfi_get(x, r * n + i) - zfi_get(moments, 2 * r)) *
                   zfi_get(moments, 2 * r + 1);
        zfi_set(&l->out, i, sum);
    }
}

/* sum[:] += sum over rows of dy[r,:] xhat[r,:], four rows for each visit of a sum. */
ZFI_BODY void zfi_gamma_rows_body(zfi_isa isa, float *sum, const float *dy, const float *x,
                                  const float *moments, int64_t rows, int64_t n)
{
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4, dy += 4 * n, x += 4 * n, moments += 8) {
        const float *dy1 = dy + n, *dy2 = dy1 + n, *dy3 = dy2 + n, *x1 = x + n, *x2 = x1 + n,
                    *x3 = x2 + n;
        float mean = moments[0], rstd = moments[1], mean1 = moments[2], rstd1 = moments[3];
        float mean2 = moments[4], rstd2 = moments[5], mean3 = moments[6], rstd3 = moments[7];
        ZFI_VECTOR
        for (int64_t i = 0; i < n; i++) {
            float s = zfi_fma(isa, dy[i], (x[i] - mean) * rstd, sum[i]);
            s = zfi_fma(isa, dy1[i], (x1[i] - mean1) * rstd1, s);
            s = zfi_fma(isa, dy2[i], (x2[i] - mean2) * rstd2, s);
            sum[i] = zfi_fma(isa, dy3[i], (x3[i] - mean3) * rstd3, s);
        }
    }
    for (; r < rows; r++, dy += n, x += n, moments += 2) {
        float mean = moments[0], rstd = moments[1];
        ZFI_VECTOR
        for (int64_t i = 0; i < n; i++) sum[i] = zfi_fma(isa, dy[i], (x[i] - mean) * rstd, sum[i]);
    }
}
ZFI_KERNEL(zfi_gamma_rows,
           (float *sum, const float *dy, const float *x, const float *moments, int64_t rows,
            int64_t n),
           (sum, dy, x, moments, rows, n))

/* Adds `count` rows from row r on to sum[:]. Those of 16 bits are converted, four rows of a strip
 * of columns at a time. */
static void zfi_gamma_add(const zf_launch *l, float *sum, int64_t r, int64_t count)
{
    enum { ROWS = 4, COLUMNS = ZFI_CONVERT_RUN / ROWS };
    const zf_array *dy = &l->args[0], *x = &l->args[1];
    const float *moments = (const float *)l->args[2].data + 2 * r;
    const int64_t n = zfi_last(&l->out.shape);
    const zfi_isa isa = zfi_cpu_of(l)->isa;
    float aside[2][ZFI_CONVERT_RUN];
    if (dy->dtype == ZF_F32) {
        zfi_gamma_rows(isa, sum, (const float *)dy->data + r * n, (const float *)x->data + r * n,
                       moments, count, n);
        return;
    }
    for (int64_t c = 0; c < n; c += COLUMNS)
        for (int64_t k = 0; k < count; k += ROWS) {
            const int64_t columns = zfi_min(COLUMNS, n - c), rows = zfi_min(ROWS, count - k);
            for (int64_t i = 0; i < rows; i++) {
                const int64_t at = (r + k + i) * n + c;
                (void)zfi_read_floats(isa, aside[0] + i * columns, dy, at, columns);
                (void)zfi_read_floats(isa, aside[1] + i * columns, x, at, columns);
            }
            zfi_gamma_rows(isa, sum + c, aside[0], aside[1], moments + 2 * k, rows, columns);
        }
}

/* Blocks [first, last). */
static void zfi_gamma_fast(const zf_launch *l, int64_t first, int64_t last)
{
    int64_t n = zfi_last(&l->out.shape), rows = zfi_row_count(&l->args[0].shape);
    for (int64_t b = first; b < last; b++) {
        float *sum = (float *)l->scratch + b * n;
        memset(sum, 0, (size_t)n * sizeof *sum);
        zfi_gamma_add(l, sum, b * ZFI_GAMMA_ROWS,
                      zfi_min(ZFI_GAMMA_ROWS, rows - b * ZFI_GAMMA_ROWS));
    }
}

static zf_status zfi_cpu_norm_gamma_grad(const zf_launch *l)
{
    const zfi_isa isa = zfi_cpu_of(l)->isa;
    int64_t n = zfi_last(&l->out.shape), blocks = zfi_gamma_blocks(l);
    float *sums = l->scratch, *sum;
    if (n == 0) return ZF_OK; /* there may be rows, but without elements */
    if (!zfi_fast_or_half(l)) {
        zfi_split(l, n, 64, zfi_gamma_reference);
        return ZF_OK;
    }
    zfi_split(l, blocks, 1, zfi_gamma_fast);
    sum = zfi_place_floats(sums + blocks * n, &l->out, 0);
    memset(sum, 0, (size_t)n * sizeof *sum);
    for (int64_t b = 0; b < blocks; b++)
        zfi_binary_run(isa, ZF_OP_add, sum, sum, sums + b * n, true, true, n);
    zfi_write_floats(isa, &l->out, 0, sum, n);
    return ZF_OK;
}

static int32_t zfi_addend_norm_grad(const zfi_node *node) { return (void)node, 4; }

/* ------------------------------------------------------------------------------- records */

ZFI_SAME_ATTRIBUTE(rms, moments, eps)
ZFI_OPERATOR(softmax, .infer = zfi_infer_softmax, .grad = zfi_grad_softmax, .cpu = zfi_cpu_softmax,
             .functions = zfi_functions_each, .traits = ZF_OP_INPLACE | ZF_OP_BY_ROWS)
ZFI_OPERATOR(softmax_grad, .infer = zfi_infer_softmax_grad, .cpu = zfi_cpu_softmax_grad,
             .linear_in = 1, .traits = ZF_OP_INPLACE | ZF_OP_BY_ROWS)
ZFI_OPERATOR(moments, .infer = zfi_infer_moments, .cpu = zfi_cpu_moments, .traits = ZF_OP_BY_ROWS)
ZFI_OPERATOR(layer_norm, .infer = zfi_infer_layer_norm, .grad = zfi_grad_layer_norm,
             .cpu = zfi_cpu_layer_norm, .whole = 1 << 2 | 1 << 3,
             .traits = ZF_OP_INPLACE | ZF_OP_BY_ROWS)
ZFI_OPERATOR(layer_norm_grad, .infer = zfi_infer_layer_norm_grad, .cpu = zfi_cpu_layer_norm_grad,
             .whole = 1 << 3, .addend = zfi_addend_norm_grad,
             .linear_in = 1 | 1 << 4, .traits = ZF_OP_INPLACE | ZF_OP_BY_ROWS)
ZFI_OPERATOR(rms, .infer = zfi_infer_moments, .cpu = zfi_cpu_moments, .traits = ZF_OP_BY_ROWS)
ZFI_OPERATOR(rms_norm, .infer = zfi_infer_layer_norm, .grad = zfi_grad_rms_norm,
             .cpu = zfi_cpu_layer_norm, .whole = 1 << 2 | 1 << 3,
             .traits = ZF_OP_INPLACE | ZF_OP_BY_ROWS)
ZFI_OPERATOR(rms_norm_grad, .infer = zfi_infer_layer_norm_grad, .cpu = zfi_cpu_layer_norm_grad,
             .whole = 1 << 3, .addend = zfi_addend_norm_grad,
             .linear_in = 1 | 1 << 4, .traits = ZF_OP_INPLACE | ZF_OP_BY_ROWS)
ZFI_OPERATOR(norm_gamma_grad, .infer = zfi_infer_norm_gamma_grad, .cpu = zfi_cpu_norm_gamma_grad,
             .scratch = zfi_scratch_norm_gamma_grad,
             .cuts = "... c, ... c, ... e! -> c",
             .linear_in = 1, .traits = ZF_OP_READS_HALF)
