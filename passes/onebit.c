/* onebit_adam: an optimizer whose momentum is averaged over the ranks as signs (Tang et al. 2021).
 *
 * requires, ensures: as passes/optimizer.c; after zf_autograd, before zf_zero at stage 0, 1 or 2
 * before:   gradient %2, %9
 * after (compressed):
 *           update:
 *           advance %30
 *           %34 = momentum %m, %9 {beta=0.9}                             the momentum of one rank
 *           %35 = sign_compress %34, %31      %36 = sign_expand %35      its average over the ranks
 *           %37 = sign_compress %36, %32 {server=true}  %38 = sign_expand %37
 *           %39 = assign %m, %38
 *           adam_apply %2, %39, %v, %lr, %30, %k {...}
 *
 * zf_zero puts the exchanges between these: all_to_all behind the first sign_compress, all_gather
 * behind the second (zero_update.c). Which of the variants is built is the desc's: the warm-up is
 * AdamW over the same states. */

/* x averaged over the ranks as signs; errors stay in the states worker and server. */
static zf_tensor zfi_sign_mean(zf_tensor x, zf_tensor worker, zf_tensor server)
{
    const zf_shape shape = zf_tensor_shape(x);
    const zf_attribute none = zfi_listed(NULL, 0), dims = zfi_listed(shape.dims, shape.rank);
    x = zfi_op(sign_compress, zfi_with(none), x, worker);
    x = zfi_op(sign_expand, zfi_with(none, none, {.i = 0}, {.i = 1}, dims), x);
    x = zfi_op(sign_compress, zfi_with(none, none, {.i = 0}, {.i = 1}), x, server);
    return zfi_op(sign_expand, zfi_with(none, none, {.i = 0}, {.i = 1}, dims), x);
}

/* 1-bit optimizers: parameters are no f64, and there is no loss scale. */
static zf_status zfi_check_onebit(zf_graph *g, const char *pass)
{
    if (!g || g->error.status) return g ? g->error.status : ZF_ERR_ARGUMENT;
    if (zfi_scaler_node(g, ZF_OP_loss_scale))
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        "%s: it has no steps that a loss scale skips, since each rank's gradients "
                        "stay its own; use bf16 or f32",
                        pass);
    for (int32_t k = 0; k < zf_param_count(g); k++)
        if (zfi_cut_rows_of(&g->nodes[zf_param_at(g, k).id]).rows)
            return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                            "%s: \"%s\" is a piece of a parameter; leave out zf_tile", pass,
                            zf_tensor_name(zf_param_at(g, k)));
    for (int32_t k = 0; k < zf_param_count(g); k++)
        if (zf_tensor_dtype(zf_param_at(g, k)) == ZF_F64)
            return zfi_fail(&g->error, ZF_ERR_DTYPE, "%s: the parameter \"%s\" is f64; signs are "
                            "those of f32", pass, zf_tensor_name(zf_param_at(g, k)));
    return ZF_OK;
}

/* x between least and most; NaN stays NaN, as the second operand. */
static zf_tensor zfi_within(zf_tensor x, zf_tensor least, zf_tensor most)
{
    return zf_minimum(most, zf_maximum(least, x));
}

static zf_tensor zfi_within_size(zf_tensor x, zf_tensor most)
{
    return zfi_within(x, zf_scale(most, -1), most);
}

/* The attribute of adam_apply. */
static zf_attribute zfi_limit_attribute(double limit)
{
    return (zf_attribute){.f = isinf(limit) ? 0 : limit};
}

static bool zfi_limit_in_range(zf_graph *g, const char *pass, double limit)
{
    if (limit > 0) return true;
    zfi_fail(&g->error, ZF_ERR_ARGUMENT,
             "%s: limit is %g; it must be above 0, or INFINITY for none", pass, limit);
    return false;
}

enum { ZFI_WARM_UP, ZFI_COMPRESSED };

/* The end of the warm-up, and which of the two steps is built. */
static zf_status zfi_check_freeze(zf_graph *g, const char *pass, int64_t freeze_step,
                                  int32_t variant)
{
    if (freeze_step < 1)
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT, "%s: freeze_step is %lld; it must be 1 or more",
                        pass, (long long)freeze_step);
    if (variant < 0 || variant > ZFI_COMPRESSED)
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        "%s: there is no variant %d; 0 is the warm-up, 1 compressed", pass,
                        (int)variant);
    return ZF_OK;
}

static zf_onebit_adam_desc zfi_onebit_adam_resolved(const zf_onebit_adam_desc *desc)
{
    zf_onebit_adam_desc d = desc ? *desc : (zf_onebit_adam_desc){.beta1 = 0};
    d.beta1 = zfi_or(d.beta1, 0.9), d.beta2 = zfi_or(d.beta2, 0.999), d.eps = zfi_or(d.eps, 1e-8);
    if (!d.freeze_step) d.freeze_step = 100000;
    d.limit = zfi_or(d.limit, 1);
    return d;
}

static void zfi_update_onebit_adam(zf_graph *g, const zfi_optimizer *o, zf_tensor p, zf_tensor dp,
                                   double decay)
{
    const zf_onebit_adam_desc *d = o->desc;
    zf_tensor m = zfi_moment_over(g, "onebit_adam.m", p, ZFI_STATE_WHOLE);
    zf_tensor v = zfi_moment(g, "onebit_adam.v", p), w = zfi_master(g, "onebit_adam.master", p);
    zf_tensor worker, server, x;
    if (d->variant == ZFI_WARM_UP) {
        (void)zfi_build_update(ZF_OP_adamw, 7, (zf_tensor[]){p, dp, m, v, o->lr, o->step, w},
                               zfi_with({.f = d->beta1}, {.f = d->beta2}, {.f = d->eps},
                                        {.f = decay}));
        return;
    }
    worker = zfi_moment_over(g, "onebit_adam.worker", p, ZFI_STATE_EACH);
    server = zfi_moment_over(g, "onebit_adam.server", p, ZFI_STATE_CUT);
    x = zfi_op(momentum, zfi_with({.f = d->beta1}), m, dp);
    x = zfi_op(assign, NULL, m, zfi_sign_mean(x, worker, server));
    (void)zfi_build_update(
        ZF_OP_adam_apply, 7, (zf_tensor[]){p, x, v, o->lr, o->step, o->variance_step, w},
        zfi_with({.f = d->beta1}, {.f = d->beta2}, {.f = d->eps}, {.f = decay},
                 zfi_limit_attribute(d->limit)));
}

/* Counts updates of the variance, apart from those of the momentum: only the warm-up has any. */
static void zfi_count_variance(zf_graph *g, zfi_optimizer *o, const char *state, int32_t variant)
{
    o->variance_step = zf_state(g, state, ZF_I64, ZF_SCALAR, 0);
    if (variant == ZFI_WARM_UP) (void)zfi_build_update(ZF_OP_advance, 1, &o->variance_step, NULL);
}

static void zfi_begin_onebit_adam(zf_graph *g, zfi_optimizer *o)
{
    const zf_onebit_adam_desc *d = o->desc;
    zfi_count_variance(g, o, "onebit_adam.variance_step", d->variant);
}

ZF_API zf_status zf_onebit_adam(zf_graph *g, zf_tensor lr, const zf_onebit_adam_desc *desc)
{
    const zf_onebit_adam_desc d = zfi_onebit_adam_resolved(desc);
    zfi_optimizer o = {.name = "zf_onebit_adam",
                       .lr = lr,
                       .weight_decay = d.weight_decay,
                       .decay_all = d.decay_all,
                       .desc = &d,
                       .begin = zfi_begin_onebit_adam,
                       .update = zfi_update_onebit_adam};
    if (zfi_check_onebit(g, o.name) ||
        !zfi_moments_in_range(g, o.name, d.beta1, d.beta2, d.eps, d.weight_decay) ||
        !zfi_limit_in_range(g, o.name, d.limit) ||
        zfi_check_freeze(g, o.name, d.freeze_step, d.variant))
        return g ? g->error.status : ZF_ERR_ARGUMENT;
    return zfi_optimize(g, &o, true);
}
