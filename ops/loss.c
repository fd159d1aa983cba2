/* Losses over rows of logits: logsumexp, cross_entropy, cross_entropy_grad.
 *
 *     %2 = logsumexp %1 : f32[4]
 *          y[r] = log sum over i of exp(x[r,i])
 *     %4 = cross_entropy %1, %2, %3 {ignore=-100} : f32[4]
 *          y[r] = lse[r] - x[r,label[r]], 0 where label[r] = ignore
 *     %6 = cross_entropy_grad %5, %1, %2, %3 {ignore=-100} : f32[4,8]
 *          dx[r,i] = dy[r] (exp(x[r,i] - lse[r]) - (i = label[r])), 0 where label[r] = ignore
 *
 * The gradient of logsumexp is dy softmax(x); saved: x. The operands of cross_entropy are the
 * logits, their logsumexp, and the labels, i32 or i64, one for each row; saved: these three. dx is
 * the whole gradient: it includes the gradient through lse, so the operand lse gets none. A label
 * that is neither a class nor `ignore` is an error of the step.
 *
 * A row of only -inf has logsumexp -inf and gradient 0; a row with +inf has logsumexp +inf. */

static zf_status zfi_infer_logsumexp(zfi_infer *c)
{
    zf_status status = zfi_infer_rows(c, 0);
    if (status) return status;
    c->dtype = c->args[0]->dtype;
    c->shape = zfi_without_axis(c->args[0]->shape, c->args[0]->shape.rank - 1, false);
    return ZF_OK;
}

/* Checks that operand k, called `what` in messages, has one element for each row of operand x. */
static zf_status zfi_infer_row_values(const zfi_infer *c, int32_t x, int32_t k, const char *what,
                                      bool label)
{
    zf_shape rows = zfi_without_axis(c->args[x]->shape, c->args[x]->shape.rank - 1, false);
    char type[ZFI_TYPE_TEXT];
    if (!zfi_same_shape(&c->args[k]->shape, &rows))
        return zfi_infer_fail(c, ZF_ERR_SHAPE,
                              "%s must have one element for each row of the logits", what);
    if (label ? !zfi_is_integer(c->args[k]->dtype) : c->args[k]->dtype != c->args[x]->dtype)
        return zfi_infer_fail(c, ZF_ERR_DTYPE, "%s must be %s", what,
                              label ? "i32 or i64" : zfi_type_text(type, c->args[x]->dtype, &rows));
    return ZF_OK;
}

/* Checks that operands x, x + 1 and x + 2 are logits, lse and labels. */
static zf_status zfi_infer_logits(const zfi_infer *c, int32_t x)
{
    zf_status status = ZF_OK;
    if (!zfi_is_float(c->args[x]->dtype))
        return zfi_infer_fail(c, ZF_ERR_DTYPE, "the logits must be float: f32, bf16, f16 or f64");
    if (c->args[x]->shape.rank < 1)
        return zfi_infer_fail(c, ZF_ERR_SHAPE,
                              "the logits need one dimension or more, the classes last");
    if (x > 0) status = zfi_infer_row_values(c, x, 0, "dy", false);
    if (!status) status = zfi_infer_row_values(c, x, x + 1, "lse", false);
    return status ? status : zfi_infer_row_values(c, x, x + 2, "the labels", true);
}

static zf_status zfi_infer_cross_entropy(zfi_infer *c)
{
    zf_status status = zfi_infer_logits(c, 0);
    return status ? status : zfi_infer_like(c, 1);
}

static zf_status zfi_infer_cross_entropy_grad(zfi_infer *c)
{
    zf_status status = zfi_infer_logits(c, 1);
    return status ? status : zfi_infer_like(c, 1);
}

static void zfi_grad_logsumexp(zf_grad *c)
{
    zf_tensor y = zf_softmax(c->x[0]);
    c->dx[0] = zf_mul(zfi_column(c->dy), y);
}

static void zfi_grad_cross_entropy(zf_grad *c)
{
    if (c->need[0])
        c->dx[0] = zfi_op(cross_entropy_grad, c->attributes, c->dy, c->x[0], c->x[1], c->x[2]);
}

/* --------------------------------------------------------------------------- logsumexp */

static void zfi_logsumexp_reference(const zf_launch *l, int64_t first, int64_t last)
{
    const zf_array *x = &l->args[0];
    int64_t n = zfi_last(&x->shape);
    for (int64_t r = first; r < last; r++) {
        double most = -INFINITY, sum = 0;
        for (int64_t i = r * n; i < (r + 1) * n; i++)
            if (zfi_get(x, i) > most) most = zfi_get(x, i);
        if (isinf(most)) most = 0;
        for (int64_t i = r * n; i < (r + 1) * n; i++) sum += exp(zfi_get(x, i) - most);
        zfi_set(&l->out, r, most + log(sum));
    }
}

/* exponentials of so many classes are summed before they are added in double */
enum { ZFI_CLASS_BLOCK = 4096 };

ZFI_BODY void zfi_logsumexp_rows_body(zfi_isa isa, float *y, const float *x, int64_t rows,
                                      int64_t n)
{
    for (; rows > 0; rows--, y++, x += n) {
        float most = zfi_vmax_body(isa, x, n);
        double sum = 0;
        if (most == INFINITY || most == -INFINITY) most = 0;
        for (int64_t at = 0; at < n; at += ZFI_CLASS_BLOCK) {
            int64_t count = n - at < ZFI_CLASS_BLOCK ? n - at : ZFI_CLASS_BLOCK;
            float lane[ZFI_LANES] = {0};
            ZFI_LANED(i, l, count, lane[l] += zfi_exp1(isa, x[at + i] - most));
            sum += zfi_fold_sum(lane);
        }
        y[0] = (float)(most + log(sum));
    }
}
ZFI_KERNEL(zfi_logsumexp_rows, (float *y, const float *x, int64_t rows, int64_t n), (y, x, rows, n))

static void zfi_logsumexp_fast(const zf_launch *l, int64_t first, int64_t last)
{
    int64_t n = zfi_last(&l->args[0].shape);
    const float *x = l->args[0].data;
    zfi_logsumexp_rows(zfi_cpu_of(l)->isa, (float *)l->out.data + first, x + first * n,
                       last - first, n);
}

static zf_status zfi_cpu_logsumexp(const zf_launch *l)
{
    return zfi_cpu_rows(l, zfi_logsumexp_fast, zfi_logsumexp_reference);
}

/* ----------------------------------------------------------------------- cross-entropy */

/* Checks that every label, in the last operand, is a class or `ignore`. */
static zf_status zfi_check_labels(const zf_launch *l, const char *name, const zf_array *x)
{
    const zf_array *labels = &l->args[l->arg_count - 1];
    int64_t classes = zfi_last(&x->shape), ignored = ZF_INT(l, cross_entropy, ignore);
    for (int64_t r = 0, rows = zfi_count(labels); r < rows; r++) {
        int64_t label = zfi_get_integer(labels, r);
        if (label != ignored && (label < 0 || label >= classes))
            return zfi_fail(l->error, ZF_ERR_ARGUMENT,
                            "%s %%%d: the label of row %lld is %lld; it must be at least 0 and "
                            "less than %lld, the "
                            "number of classes, or %lld to be ignored",
                            name, (int)l->node, (long long)r, (long long)label, (long long)classes,
                            (long long)ignored);
    }
    return ZF_OK;
}

/* One element for each row: threads would not pay. */
static zf_status zfi_cpu_cross_entropy(const zf_launch *l)
{
    const zf_array *x = &l->args[0], *lse = &l->args[1], *labels = &l->args[2];
    int64_t rows = zfi_count(lse), classes = zfi_last(&x->shape);
    zf_status status = zfi_check_labels(l, "cross_entropy", x);
    for (int64_t r = 0; r < rows && !status; r++) {
        int64_t label = zfi_get_integer(labels, r);
        zfi_set(&l->out, r,
                label == ZF_INT(l, cross_entropy, ignore) ? 0
                                            : zfi_get(lse, r) - zfi_get(x, r * classes + label));
    }
    return status;
}

static void zfi_cross_entropy_grad_reference(const zf_launch *l, int64_t first, int64_t last)
{
    const zf_array *dy = &l->args[0], *x = &l->args[1], *lse = &l->args[2], *labels = &l->args[3];
    int64_t classes = zfi_last(&x->shape);
    for (int64_t r = first; r < last; r++) {
        int64_t label = zfi_get_integer(labels, r);
        for (int64_t i = 0; i < classes; i++) {
            double p = exp(zfi_get(x, r * classes + i) - zfi_get(lse, r)),
                   dx = zfi_get(dy, r) * (p - (i == label));
            zfi_set(&l->out, r * classes + i,
                    label == ZF_INT(l, cross_entropy_grad, ignore) ? 0 : dx);
        }
    }
}

/* The gradient of one row; dx may be x. */
ZFI_BODY void zfi_cross_entropy_row_body(zfi_isa isa, float *dx, const float *x, int64_t n,
                                         int64_t label, float lse, float dy)
{
    float of_label = dy * (zfi_exp1(isa, x[label] - lse) - 1);
    ZFI_VECTOR
    for (int64_t i = 0; i < n; i++) dx[i] = dy * zfi_exp1(isa, x[i] - lse);
    dx[label] = of_label;
}
ZFI_KERNEL(zfi_cross_entropy_row,
           (float *dx, const float *x, int64_t n, int64_t label, float lse, float dy),
           (dx, x, n, label, lse, dy))

static void zfi_cross_entropy_grad_fast(const zf_launch *l, int64_t first, int64_t last)
{
    int64_t n = zfi_last(&l->out.shape);
    const float *dy = l->args[0].data, *x = l->args[1].data, *lse = l->args[2].data;
    float *dx = l->out.data;
    for (int64_t r = first; r < last; r++) {
        int64_t label = zfi_get_integer(&l->args[3], r);
        if (label == ZF_INT(l, cross_entropy_grad, ignore))
            memset(dx + r * n, 0, (size_t)n * sizeof *dx);
        else
            zfi_cross_entropy_row(zfi_cpu_of(l)->isa, dx + r * n, x + r * n, n, label, lse[r],
                                  dy[r]);
    }
}

static zf_status zfi_cpu_cross_entropy_grad(const zf_launch *l)
{
    const zf_shape *x = &l->args[1].shape;
    zf_status status = zfi_check_labels(l, "cross_entropy_grad", &l->args[1]);
    if (!status && zfi_count(&l->out) > 0)
        zfi_split(l, zfi_row_count(x), zfi_row_grain(zfi_last(x)),
                  zfi_fast(l) ? zfi_cross_entropy_grad_fast : zfi_cross_entropy_grad_reference);
    return status;
}

static zf_status zfi_check_cross_entropy_grad(const zf_launch *l)
{
    return zfi_check_labels(l, "cross_entropy_grad", &l->args[1]);
}

static double zfi_functions_logsumexp(const zf_launch *l) { return (double)zfi_count(&l->args[0]); }

/* ------------------------------------------------------------------------------- records */

ZFI_SAME_ATTRIBUTE(cross_entropy_grad, cross_entropy, ignore)
ZFI_SAME_ATTRIBUTE(head_loss, cross_entropy, ignore)
ZFI_OPERATOR(logsumexp, .infer = zfi_infer_logsumexp, .grad = zfi_grad_logsumexp,
             .cpu = zfi_cpu_logsumexp, .functions = zfi_functions_logsumexp,
             .traits = ZF_OP_BY_ROWS | ZF_OP_WANTS_F32)
ZFI_OPERATOR(cross_entropy, .infer = zfi_infer_cross_entropy, .grad = zfi_grad_cross_entropy,
             .cpu = zfi_cpu_cross_entropy,
             .cuts = "... c!, ..., ... -> ...",
             .traits = ZF_OP_WANTS_F32 | ZF_OP_READS_HALF)
ZFI_OPERATOR(cross_entropy_grad, .infer = zfi_infer_cross_entropy_grad,
             .cpu = zfi_cpu_cross_entropy_grad, .check = zfi_check_cross_entropy_grad, .rows = 1,
             .functions = zfi_functions_each, .traits = ZF_OP_INPLACE | ZF_OP_BY_ROWS)
