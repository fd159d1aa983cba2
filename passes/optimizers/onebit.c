/* onebit_adam: an optimizer whose momentum is averaged over the ranks as signs (Tang et al. 2021).
 *
 * requires, ensures: as optimizer.c; after zf_autograd, before zf_zero at stage 0, 1 or 2
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
 * zf_zero puts the exchanges between these: all_to_all after the first sign_compress, all_gather
 * after the second (zero/update.c). Which of the variants is built is the desc's: the warm-up is
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
    if (zfi_check_uncut(g, pass)) return g->error.status;
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

enum { ZFI_WARM_UP, ZFI_COMPRESSED };

/* The rows that 1-bit Adam and 1-bit LAMB share. */
#define ZFI_FREEZE_OPTIONS(desc)                                                                   \
    ZF_OPTION(desc, COUNT, freeze_step, 100000, "[1,inf)", .traits = ZF_OPTION_CHANGES,            \
              .unit = "STEP", .help = "last step of the warm-up, for example a fifth of all"),     \
        ZF_OPTION(desc, COUNT, variant, 0, "[0,1]", .flag = "")
#define ZFI_LIMIT_OPTION(desc)                                                                     \
    ZF_OPTION(desc, NUMBER, limit, 1, "(0,inf]", .traits = ZF_OPTION_CHANGES,                      \
              .help = "maximum by which a compressed step moves an element, in multiples of the "  \
                      "rate; inf: no limit")

static const char *const *zfi_warm_up_variants(const void *desc)
{
    static const char *const names[] = {"warm-up", "compressed", NULL};
    (void)desc;
    return names;
}

static const zf_option zfi_onebit_adam_options[] = {
    ZFI_ADAM_OPTIONS(zf_onebit_adam_desc, 1e-8), ZFI_DECAY_OPTIONS(zf_onebit_adam_desc),
    ZFI_FREEZE_OPTIONS(zf_onebit_adam_desc), ZFI_LIMIT_OPTION(zf_onebit_adam_desc),
    {.name = NULL}};

static void zfi_update_onebit_adam(zf_graph *g, zfi_optimizer *o, zf_tensor p, zf_tensor dp,
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
    o->variance_step = zfi_state(g, state, ZF_I64, ZF_SCALAR, 0);
    if (variant == ZFI_WARM_UP) (void)zfi_build_update(ZF_OP_advance, 1, &o->variance_step, NULL);
}

static void zfi_begin_onebit_adam(zf_graph *g, zfi_optimizer *o)
{
    const zf_onebit_adam_desc *d = o->desc;
    zfi_count_variance(g, o, "onebit_adam.variance_step", d->variant);
}

static zf_status zfi_prepare_onebit_adam(zf_graph *g, const void *desc)
{
    (void)desc;
    return zfi_check_onebit(g, "zf_onebit_adam");
}

static int32_t zfi_onebit_adam_at(const void *desc, int64_t step)
{
    const zf_onebit_adam_desc *d = desc;
    return step <= d->freeze_step ? ZFI_WARM_UP : ZFI_COMPRESSED;
}
ZFI_OPTIMIZER(onebit_adam, .counts = true, .signs = true, .prepare = zfi_prepare_onebit_adam,
              .begin = zfi_begin_onebit_adam, .update = zfi_update_onebit_adam,
              .variants = zfi_warm_up_variants, .variant_at = zfi_onebit_adam_at)
