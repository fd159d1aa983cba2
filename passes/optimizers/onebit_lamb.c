/* onebit_lamb: LAMB whose momentum is averaged over the ranks as signs (Li et al. 2021).
 *
 * requires, ensures: as optimizer.c; after zf_autograd, before zf_zero at stage 0, 1 or 2
 *
 *     warm-up     LAMB, and after all updates the running means of the tensors' ratios, an element
 *                 each:
 *                     %70 = concat of all |p|, %71 = concat of all |u|     ratios %75 of these
 *                     %80 = assign %c, beta %c + (1 - beta) %75            "onebit_lamb.coefficient"
 *     compressed  %38 = the average of momenta, as in onebit.c
 *                 %39 = variance_ratio %fresh, %m, %38, %v, %t, %k {...}   a maximum of each block
 *                 %40 = max %39         %41 = assign %m, %38
 *                 after these of all tensors, with %50 = concat of all %40:
 *                     %57 = assign %factor, %50 within its bounds          "onebit_lamb.factor"
 *                     %60 = lr * %c^ * %57                                 a rate for each tensor
 *                 adam_apply %2, %41, %v, %60[0], %t, %k {...}
 *
 * Elements of these states are tensors in the order in which parameters were declared, which
 * neither ranks nor rewrites change. */

typedef struct zfi_lamb_tensor {
    zf_tensor param, momentum, variance, master;
    zf_tensor numbers[2]; /* the norms of warm-up steps; or the ratio of variances */
    double decay, rate, beta1, beta2; /* of its group; rate is a factor */
} zfi_lamb_tensor;

static const zf_option zfi_onebit_lamb_options[] = {
    ZFI_ADAM_OPTIONS(zf_onebit_lamb_desc, 1e-6),
    ZFI_DECAY_OPTIONS(zf_onebit_lamb_desc),
    ZFI_RATIO_OPTIONS(zf_onebit_lamb_desc),
    ZF_OPTION(zf_onebit_lamb_desc, NUMBER, coeff_beta, 0.9, "[0,1)", .traits = ZF_OPTION_CHANGES,
              .help = "decay of the averaged trust ratio"),
    ZF_OPTION(zf_onebit_lamb_desc, NUMBER, min_factor, 0.5, "[0,inf)", .traits = ZF_OPTION_CHANGES,
              .help = "minimum of the factor by which a frozen trust ratio is scaled"),
    ZF_OPTION(zf_onebit_lamb_desc, NUMBER, max_factor, 4, "[0,inf)", .traits = ZF_OPTION_CHANGES,
              .help = "maximum of that factor"),
    ZF_OPTION(zf_onebit_lamb_desc, NUMBER, factor_change, 0.1, "[0,1)", .traits = ZF_OPTION_CHANGES,
              .help = "maximum change of that factor in one step, as a part of it"),
    ZFI_FREEZE_OPTIONS(zf_onebit_lamb_desc),
    ZFI_LIMIT_OPTION(zf_onebit_lamb_desc),
    {.name = NULL}};

static void zfi_update_onebit_lamb(zf_graph *g, zfi_optimizer *o, zf_tensor p, zf_tensor dp,
                                   double decay)
{
    const zf_onebit_lamb_desc *d = o->desc;
    zfi_lamb_tensor made = {.param = p,
                            .decay = decay,
                            .rate = ZF_FLOAT(&g->nodes[p.id], param, rate),
                            .beta1 = d->beta1,
                            .beta2 = d->beta2};
    zf_tensor m = zfi_moment_over(g, "onebit_lamb.m", p, ZFI_STATE_WHOLE), worker, server, fresh, x;
    const zf_attribute none = zfi_listed(NULL, 0);
    made.variance = zfi_moment(g, "onebit_lamb.v", p);
    made.master = zfi_master(g, "onebit_lamb.master", p);
    if (d->variant == ZFI_WARM_UP) {
        zfi_lamb_piece piece = {.param = p, .master = made.master};
        piece.update = zfi_build_update(
            ZF_OP_lamb_update, 6, (zf_tensor[]){p, dp, m, made.variance, o->step, made.master},
            zfi_with({.f = d->beta1}, {.f = d->beta2}, {.f = d->eps}, {.f = decay}));
        zfi_apply_lamb(g, &piece, 1, o->lr, d->min_coeff, d->max_coeff, made.numbers);
    } else {
        worker = zfi_moment_over(g, "onebit_lamb.worker", p, ZFI_STATE_EACH);
        server = zfi_moment_over(g, "onebit_lamb.server", p, ZFI_STATE_CUT);
        fresh = zfi_moment(g, "onebit_lamb.fresh", p);
        x = zfi_op(momentum, zfi_with({.f = d->beta1}), m, dp);
        x = zfi_sign_mean(x, worker, server);
        made.numbers[0] = zf_max_ex(
            zfi_op(variance_ratio,
                   zfi_with(none, none, {.i = 0}, {.f = d->beta1}, {.f = d->beta2}, {.f = d->eps}),
                   fresh, m, x, made.variance, o->step, o->variance_step),
            &(zf_reduce_desc){.axis = 0});
        made.momentum = zfi_op(assign, NULL, m, x);
    }
    zfi_push(&g->memory, o->tensors, made);
}

static int zfi_by_declaration(const void *a, const void *b)
{
    const zfi_lamb_tensor *x = a, *y = b;
    return (x->param.id > y->param.id) - (x->param.id < y->param.id);
}

/* One of the numbers of all tensors: f32[tensors]. */
static zf_tensor zfi_lamb_numbers(zf_graph *g, const zfi_lamb_tensor *tensors, int which)
{
    const int32_t count = zfi_len(tensors);
    zf_tensor *numbers = zfi_calloc(&g->memory, (size_t)count, sizeof *numbers), all = ZF_NONE;
    if (!numbers) return zfi_graph_nomem(g), (zf_tensor){g, 0};
    for (int32_t k = 0; k < count; k++)
        numbers[k] = zf_reshape(tensors[k].numbers[which], ZF_SHAPE(1));
    all = zf_concat(numbers, count, 0);
    zfi_free(&g->memory, numbers, (size_t)count * sizeof *numbers);
    return all;
}

static zf_tensor zfi_f32_number(zf_graph *g, double value)
{
    return zf_constant(g, ZF_F32, ZF_SCALAR, value);
}

/* c = beta c + (1 - beta) r, with r as lamb_apply computes it; `weight` is what c would be if every
 * r were 1. */
static void zfi_average_coefficients(zf_graph *g, const zf_onebit_lamb_desc *d,
                                     const zfi_lamb_tensor *tensors, zf_tensor c, zf_tensor weight)
{
    const zf_tensor of_p = zfi_lamb_numbers(g, tensors, 0), of_u = zfi_lamb_numbers(g, tensors, 1),
                    zero = zfi_f32_number(g, 0), one = zfi_f32_number(g, 1);
    zf_tensor r = zfi_within(zf_div(of_p, of_u), zfi_f32_number(g, d->min_coeff),
                             zfi_f32_number(g, d->max_coeff));
    r = zf_where(zf_equal(of_p, zero), one, zf_where(zf_equal(of_u, zero), one, r));
    (void)zfi_op(assign, NULL, c,
                 zf_add(zf_scale(c, d->coeff_beta), zf_scale(r, 1 - d->coeff_beta)));
    (void)zfi_op(assign, NULL, weight,
                 zf_add(zf_scale(weight, d->coeff_beta), zfi_f32_number(g, 1 - d->coeff_beta)));
}

/* Applies averaged momenta, each tensor's with its own rate. */
static void zfi_apply_compressed(zf_graph *g, zfi_optimizer *o,
                                 const zfi_lamb_tensor *tensors, zf_tensor c, zf_tensor weight)
{
    const zf_onebit_lamb_desc *d = o->desc;
    const int32_t count = zfi_len(tensors);
    const zf_tensor last =
        zfi_state(g, "onebit_lamb.factor", ZF_F32, ZF_SHAPE(zfi_len(tensors)), 1);
    zf_tensor factor = zfi_lamb_numbers(g, tensors, 0), rates, *own;
    factor = zfi_within(factor, zfi_f32_number(g, d->min_factor), zfi_f32_number(g, d->max_factor));
    factor = zfi_within(factor, zf_scale(last, 1 - d->factor_change),
                        zf_scale(last, 1 + d->factor_change));
    factor = zfi_op(assign, NULL, last, factor);
    rates = zf_mul(zf_mul(zf_div(c, weight), factor), zf_cast(o->lr, ZF_F32));
    own = zfi_calloc(&g->memory, (size_t)count, sizeof *own);
    for (int32_t k = 0; own && k < count; k++)
        own[k] = zf_scale(zf_reshape(zf_slice(rates, 0, k, k + 1), ZF_SCALAR),
                          tensors[k].rate == 0 ? 1 : tensors[k].rate);
    for (int32_t k = 0; own && k < count; k++) {
        const zfi_lamb_tensor *x = &tensors[k];
        (void)zfi_build_update(ZF_OP_adam_apply, 7,
                               (zf_tensor[]){x->param, x->momentum, x->variance, own[k], o->step,
                                             o->variance_step, x->master},
                               zfi_with({.f = x->beta1}, {.f = x->beta2}, {.f = d->eps},
                                        {.f = x->decay}, zfi_limit_attribute(d->limit)));
    }
    if (!own) zfi_graph_nomem(g);
    zfi_free(&g->memory, own, (size_t)count * sizeof *own);
}

static void zfi_finish_onebit_lamb(zf_graph *g, zfi_optimizer *o)
{
    const zf_onebit_lamb_desc *d = o->desc;
    zfi_lamb_tensor *tensors = o->tensors;
    const int32_t count = zfi_len(tensors);
    zf_tensor c, weight;
    if (!count) return;
    qsort(tensors, (size_t)count, sizeof *tensors, zfi_by_declaration);
    c = zfi_state(g, "onebit_lamb.coefficient", ZF_F32, ZF_SHAPE(count), 0);
    weight = zfi_state(g, "onebit_lamb.weight", ZF_F32, ZF_SCALAR, 0);
    if (d->variant == ZFI_WARM_UP) zfi_average_coefficients(g, d, tensors, c, weight);
    else zfi_apply_compressed(g, o, tensors, c, weight);
}

static void zfi_begin_onebit_lamb(zf_graph *g, zfi_optimizer *o)
{
    const zf_onebit_lamb_desc *d = o->desc;
    zfi_count_variance(g, o, "onebit_lamb.variance_step", d->variant);
}

static zf_status zfi_prepare_onebit_lamb(zf_graph *g, const void *desc)
{
    const zf_onebit_lamb_desc *d = desc;
    const char *pass = "zf_onebit_lamb";
    zf_status status = zfi_check_onebit(g, pass);
    if (!status)
        status =
            zfi_check_bounds(g, pass, "min_coeff", d->min_coeff, "max_coeff", d->max_coeff);
    if (!status)
        status =
            zfi_check_bounds(g, pass, "min_factor", d->min_factor, "max_factor", d->max_factor);
    return status;
}

static int32_t zfi_onebit_lamb_at(const void *desc, int64_t step)
{
    const zf_onebit_lamb_desc *d = desc;
    return step <= d->freeze_step ? ZFI_WARM_UP : ZFI_COMPRESSED;
}
ZFI_OPTIMIZER(onebit_lamb, .counts = true, .signs = true, .prepare = zfi_prepare_onebit_lamb,
              .begin = zfi_begin_onebit_lamb, .update = zfi_update_onebit_lamb,
              .finish = zfi_finish_onebit_lamb, .variants = zfi_warm_up_variants,
              .variant_at = zfi_onebit_lamb_at)
