/* head_logp: the log-probability of each row's label under a language model's head, in the tiles of
 * ops/head.c, and its gradient. Logits are never in memory as a whole.
 *
 *     %5 = head_logp %1, %2, %3, %4 {ignore=-100 temperature=1} : f32[P]
 *     %7 = head_logp_grad %1, %2, %3, %6, %4 {ignore=-100 temperature=1} : f32[P,H]
 *
 *     z[r,:] = (w x[r,:] + b) / temperature           x [P,H], w [V,H], b [V] or none
 *     y[r] = z[r,label[r]] - log sum over v of exp z[r,v]
 *     dz[r,v] = dy[r] ((v = label[r]) - exp(z[r,v] - lse[r])) / temperature
 *     dx = dz w      dw = dz^T x      db = sum over r of dz[r,:]
 *
 * Labels are those of head_loss. A row whose label is `ignore` gives 0 and has no gradient; on the
 * CPU it is not computed. The value of a row does not depend on the other rows, nor on how many
 * there are.
 *
 *     saved 0 of head_logp: f32[P], the entropy of each row, which has no gradient
 *     saved 1: i32[P], of each row the first of its largest logits; -1 without a label
 *     saved 0, 1 of head_logp_grad: dw, db, of the dtype of dx
 *
 * head_logp keeps nothing for its gradient, which computes the logits of a tile again: 4 products
 * where head_loss, which knows dy before, has 3. */

static zf_status zfi_infer_temperature(zfi_infer *c, double temperature)
{
    if (temperature > 0 && temperature <= DBL_MAX) return ZF_OK;
    return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                          "the temperature is %g; it must be above 0 and finite", temperature);
}

static zf_status zfi_infer_head_logp(zfi_infer *c)
{
    zf_status status = zfi_infer_head(c, 3);
    if (!status) status = zfi_infer_temperature(c, ZF_FLOAT(c, head_logp, temperature));
    c->shape = c->args[2]->shape;
    return status;
}

static zf_status zfi_infer_head_logp_grad(zfi_infer *c)
{
    const zfi_node *dy = c->args[3];
    zf_status status = zfi_infer_head(c, 4);
    if (!status) status = zfi_infer_temperature(c, ZF_FLOAT(c, head_logp_grad, temperature));
    if (status) return status;
    if (dy->dtype != c->dtype || !zfi_same_shape(&dy->shape, &c->args[2]->shape))
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "dy must be %s[%lld]", zf_dtype_name(c->dtype),
                              (long long)c->args[2]->shape.dims[0]);
    c->shape = c->args[0]->shape;
    return ZF_OK;
}

static bool zfi_saved_head_logp(const zf_graph *g, const zfi_node *node, int64_t index,
                                zf_dtype *dtype, zf_shape *shape)
{
    if (index != ZFI_LOGP_ENTROPY && index != ZFI_LOGP_BEST) return false;
    *dtype = index == ZFI_LOGP_BEST ? ZF_I32 : node->dtype;
    *shape = g->nodes[node->args[2]].shape;
    return true;
}

static bool zfi_saved_head_logp_grad(const zf_graph *g, const zfi_node *node, int64_t index,
                                     zf_dtype *dtype, zf_shape *shape)
{
    const int32_t operand = index == ZFI_LOGP_DW ? 1 : 4;
    if (index < 0 || index > ZFI_LOGP_DB || operand >= node->arg_count) return false;
    if (index == ZFI_LOGP_DW && ZF_INT(node, head_logp_grad, bits)) return false;
    *dtype = node->dtype;
    *shape = g->nodes[node->args[operand]].shape;
    return true;
}

static void zfi_grad_head_logp(zf_grad *c)
{
    const bool biased = c->count > 3;
    const zf_tensor args[] = {c->x[0], c->x[1], c->x[2], c->dy, biased ? c->x[3] : c->dy};
    if (!c->need[0] && !c->need[1] && !(biased && c->need[3])) return;
    const zf_tensor dx = zfi_build(ZF_OP_head_logp_grad, biased ? 5 : 4, args, c->attributes);
    if (c->need[0]) c->dx[0] = zf_cast(dx, zf_tensor_dtype(c->x[0]));
    if (c->need[1]) c->dx[1] = zf_cast(zfi_saved(dx, ZFI_LOGP_DW), zf_tensor_dtype(c->x[1]));
    if (biased && c->need[3])
        c->dx[3] = zf_cast(zfi_saved(dx, ZFI_LOGP_DB), zf_tensor_dtype(c->x[3]));
}

static zfi_head_values zfi_head_logp_values(const zf_launch *l)
{
    return (zfi_head_values){.bias = l->arg_count > 3 ? &l->args[3] : NULL,
                             .scale = 1 / ZF_FLOAT(l, head_logp, temperature),
                             .labelled = true,
                             .makes_entropy = zfi_head_saves(l, ZFI_LOGP_ENTROPY),
                             .logp = &l->out,
                             .entropy = zfi_saved_out(l, ZFI_LOGP_ENTROPY),
                             .best = zfi_saved_out(l, ZFI_LOGP_BEST)};
}

static zfi_head_values zfi_head_logp_grad_values(const zf_launch *l)
{
    const double scale = 1 / ZF_FLOAT(l, head_logp_grad, temperature);
    return (zfi_head_values){.bias = l->arg_count > 4 ? &l->args[4] : NULL,
                             .weight = &l->args[3],
                             .factor = -scale,
                             .scale = scale,
                             .labelled = true,
                             .makes_dx = true,
                             .dx = &l->out,
                             .dw = zfi_saved_out(l, ZFI_LOGP_DW),
                             .db = zfi_saved_out(l, ZFI_LOGP_DB)};
}

static size_t zfi_scratch_head_logp(const zf_launch *l)
{
    const zfi_head_values of = zfi_head_logp_values(l);
    return zfi_head_scratch(l, &of);
}

static size_t zfi_scratch_head_logp_grad(const zf_launch *l)
{
    const zfi_head_values of = zfi_head_logp_grad_values(l);
    return zfi_head_scratch(l, &of);
}

static zf_status zfi_cpu_head_logp(const zf_launch *l)
{
    const zfi_head_values of = zfi_head_logp_values(l);
    double loss;
    return zfi_head_run(l, "head_logp", &of, &loss);
}

static zf_status zfi_cpu_head_logp_grad(const zf_launch *l)
{
    const zfi_head_values of = zfi_head_logp_grad_values(l);
    double loss;
    return zfi_head_run(l, "head_logp_grad", &of, &loss);
}

/* ------------------------------------------------------------------------------- records */

#define ZFI_SAME_HEAD(op)                                                                          \
    ZFI_SAME_ATTRIBUTE(op, head_loss, ignore)                                                      \
    ZFI_SAME_ATTRIBUTE(op, head_loss, bits)                                                        \
    ZFI_SAME_ATTRIBUTE(op, head_loss, block)                                                       \
    ZFI_SAME_ATTRIBUTE(op, head_loss, scale)
ZFI_SAME_HEAD(head_logp)
ZFI_SAME_HEAD(head_logp_grad)
ZFI_SAME_ATTRIBUTE(head_logp_grad, head_logp, temperature)
ZFI_OPERATOR(head_logp, .infer = zfi_infer_head_logp, .grad = zfi_grad_head_logp,
             .cpu = zfi_cpu_head_logp, .scratch = zfi_scratch_head_logp,
             .saved = zfi_saved_head_logp, .flops = zfi_flops_head, .functions = zfi_functions_head,
             .between = zfi_between_head,
             .cuts = "r h!, v! h!, r, ?v! -> r; r; r",
             .traits = ZF_OP_PRODUCT | ZF_OP_READS_HALF)
ZFI_OPERATOR(head_logp_grad, .infer = zfi_infer_head_logp_grad, .cpu = zfi_cpu_head_logp_grad,
             .scratch = zfi_scratch_head_logp_grad, .saved = zfi_saved_head_logp_grad,
             .flops = zfi_flops_head, .functions = zfi_functions_head, .between = zfi_between_head,
             .cuts = "r h!, v! h!, r, r, ?v! -> r h!; v! h!; v!",
             .traits = ZF_OP_READS_HALF)
