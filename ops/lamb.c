/* lamb_update, lamb_apply: Adam with a step in proportion to the parameter (LAMB, You et al. 2020).
 *
 *     %u = lamb_update %p, %g, %m, %v, %t {beta1=0.9 ...} : f32[8]
 *         m, v, m^, v^ as for adamw; u = m^ / (sqrt(v^) + eps) + wd p
 *     lamb_apply %p, %u, %lr, %np, %nu {least=0.01 most=10}
 *         p -= lr r u, r = |p| / |u| in [least, most]
 *
 * np and nu are the norms |p| and |u|; r is 1 where one of them is 0. u is f32, f64 for an f64
 * parameter; lr, np and nu are floats of one element. The master weights may follow as operand 5 of
 * each, and with scaled=true the scale of lamb_update comes last (update.c). */

static zf_status zfi_infer_lamb_update(zfi_infer *c)
{
    zf_status status = zfi_infer_adam(c, 4);
    c->dtype = zfi_wide(c->args[0]->dtype);
    return status;
}

static zf_status zfi_infer_lamb_apply(zfi_infer *c)
{
    double least = ZF_FLOAT(c, lamb_apply, least), most = ZF_FLOAT(c, lamb_apply, most);
    int64_t norms =
        ZF_LIST(c, lamb_apply, blocks).count ? ZF_LIST(c, lamb_apply, blocks).count / 2 : 1;
    zf_status status = zfi_infer_target(c, ZF_AT_lamb_apply_world);
    if (!status) status = zfi_infer_paired(c, 1, "the update", zfi_wide(c->args[0]->dtype), false);
    if (!status) status = zfi_infer_number(c, 2, "the learning rate");
    if (!status) status = zfi_infer_numbers(c, 3, "the parameter's norm", norms);
    if (!status) status = zfi_infer_numbers(c, 4, "the update's norm", norms);
    if (!status) status = zfi_infer_master(c, 5);
    if (!status && !(least >= 0 && least <= most))
        status = zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                                "the ratio's bounds, %g and %g, must be 0 <= least <= most", least,
                                most);
    return status;
}

static void zfi_lamb_update_reference(const zf_launch *l, int64_t first, int64_t last)
{
    const zf_array *p = zfi_weights(l, 5);
    zfi_adam a = zfi_adam_of(l);
    zfi_stretch s = zfi_stretch_over(first, last);
    zfi_clear_update(l, first, last);
    while (zfi_next_stretch(l, ZF_AT_adamw_world, ZF_FLOAT(l, lamb_update, weight_decay), &s))
        for (int64_t i = s.first; i < s.last; i++)
            zfi_set(&l->out, i, zfi_adam_reference(l, &a, i) + s.decay * zfi_get(p, i));
}

static zf_status zfi_cpu_lamb_update(const zf_launch *l)
{
    return zfi_cpu_adam(l, "lamb_update",
                        &(zfi_update_tasks){.scaled = ZF_AT_lamb_update_scaled,
                                            .fast = zfi_adam_fast,
                                            .reference = zfi_lamb_update_reference});
}

/* lr r for parameter `index`; NaN if a norm is NaN. */
static double zfi_lamb_rate(const zf_launch *l, int64_t index)
{
    double p = zfi_get(&l->args[3], index), u = zfi_get(&l->args[4], index), ratio = p / u;
    if (ratio < ZF_FLOAT(l, lamb_apply, least)) ratio = ZF_FLOAT(l, lamb_apply, least);
    if (ratio > ZF_FLOAT(l, lamb_apply, most)) ratio = ZF_FLOAT(l, lamb_apply, most);
    if (p == 0 || u == 0) ratio = 1;
    return zfi_get(&l->args[2], 0) * ratio;
}

static void zfi_lamb_apply_reference(const zf_launch *l, int64_t first, int64_t last)
{
    const zf_array *p = zfi_weights(l, 5), *u = &l->args[1];
    zfi_stretch s = zfi_stretch_over(first, last);
    while (zfi_next_stretch(l, ZF_AT_lamb_apply_world, 0, &s)) {
        double rate = zfi_lamb_rate(l, s.index);
        for (int64_t i = s.first; i < s.last; i++)
            zfi_set_weight(l, p, i, zfi_get(p, i) - rate * zfi_get(u, i));
    }
}

/* p -= rate u: the same loop as the step of sgd. */
static void zfi_lamb_apply_fast(const zf_launch *l, int64_t first, int64_t last)
{
    int32_t weights = (int32_t)(zfi_weights(l, 5) - l->args);
    const float *u = l->args[1].data;
    zfi_stretch s = zfi_stretch_over(first, last);
    while (zfi_next_stretch(l, ZF_AT_lamb_apply_world, 0, &s))
        for (int64_t at = s.first, n; at < s.last; at += n) {
            float of_p[ZFI_CONVERT_RUN], *p;
            n = zfi_update_run(l, s.last - at);
            p = zfi_update_floats(l, weights, at, n, of_p);
            zfi_sgd_run(zfi_cpu_of(l)->isa, p, u + at, NULL, 1, (float)zfi_lamb_rate(l, s.index), 0,
                        false, 0, n);
            zfi_update_parameter(l, at, n, p);
        }
}

static zf_status zfi_cpu_lamb_apply(const zf_launch *l)
{
    zfi_split(l, zfi_count(&l->args[0]), ZFI_GRAIN,
              zfi_fast_or_half(l) ? zfi_lamb_apply_fast : zfi_lamb_apply_reference);
    return ZF_OK;
}

static int32_t zfi_master_lamb_update(const zfi_node *node)
{
    return zfi_master_at(node, 5, ZF_INT(node, lamb_update, scaled));
}

static int32_t zfi_master_lamb_apply(const zfi_node *node) { return zfi_master_at(node, 5, false); }

/* lamb_update does not write the master weights; lamb_apply does. */
static uint32_t zfi_writes_lamb_update(const zfi_node *node)
{
    (void)node;
    return 1 << 2 | 1 << 3;
}

static uint32_t zfi_writes_lamb_apply(const zfi_node *node)
{
    return 1 | (zfi_master_lamb_apply(node) > 0 ? 1 << 5 : 0);
}

ZFI_SAME_ATTRIBUTE(lamb_update, adamw, beta1)
ZFI_SAME_ATTRIBUTE(lamb_update, adamw, beta2)
ZFI_SAME_ATTRIBUTE(lamb_update, adamw, eps)
ZFI_SAME_ATTRIBUTE(lamb_update, adamw, weight_decay)
ZFI_SAME_ATTRIBUTE(lamb_update, adamw, world)
ZFI_SAME_ATTRIBUTE(lamb_update, adamw, scaled)
ZFI_SAME_ATTRIBUTE(lamb_update, adamw, uncorrected)
ZFI_OPERATOR(lamb_update, .infer = zfi_infer_lamb_update, .cpu = zfi_cpu_lamb_update,
             .writes = zfi_writes_lamb_update, .master = zfi_master_lamb_update,
             .ranks = ZFI_RANKS_GRADIENT, .traits = ZF_OP_MUTATES | ZF_OP_UPDATE)
ZFI_OPERATOR(lamb_apply, .infer = zfi_infer_lamb_apply, .grad = zfi_grad_none,
             .cpu = zfi_cpu_lamb_apply, .writes = zfi_writes_lamb_apply,
             .master = zfi_master_lamb_apply, .bytes = zfi_bytes_update, .rate = 2,
             .traits = ZF_OP_EFFECT | ZF_OP_MUTATES | ZF_OP_UPDATE)

/* ------------------------------------------------------------------------------- the optimizer */

static const zf_option zfi_lamb_options[] = {
    ZFI_ADAM_OPTIONS(zf_lamb_desc, 1e-6),
    ZFI_CORRECTION_OPTION(zf_lamb_desc),
    ZFI_DECAY_OPTIONS(zf_lamb_desc),
    ZFI_RATIO_OPTIONS(zf_lamb_desc),
    {.name = NULL}};

/* What LAMB will apply to a parameter, or a piece of one, when the norms of all its pieces are
 * known. */
typedef struct zfi_lamb_piece {
    zf_tensor param, update, master;
} zfi_lamb_piece;

/* The norm of all pieces of a parameter, or of their updates. */
static zf_tensor zfi_lamb_norm(zf_graph *g, const zfi_lamb_piece *pieces, int32_t count,
                               bool of_update)
{
    zf_tensor *norms = zfi_calloc(&g->memory, (size_t)count, sizeof *norms), norm = {g, 0};
    if (!norms) return zfi_graph_nomem(g), norm;
    for (int32_t k = 0; k < count; k++) {
        const zfi_lamb_piece *piece = &pieces[k];
        const zf_tensor x = of_update              ? piece->update
                            : piece->master.graph ? piece->master
                                                  : piece->param;
        norms[k] = zfi_op(block_norms, NULL, x);
    }
    norm = zfi_build(ZF_OP_norm, count, norms, NULL);
    zfi_free(&g->memory, norms, (size_t)count * sizeof *norms);
    return norm;
}

/* Applies the updates of all pieces of a parameter. norms: those of the parameter and of its
 * update. */
static void zfi_apply_lamb(zf_graph *g, const zfi_lamb_piece *pieces, int32_t count, zf_tensor lr,
                           double least, double most, zf_tensor norms[2])
{
    norms[0] = zfi_lamb_norm(g, pieces, count, false);
    norms[1] = zfi_lamb_norm(g, pieces, count, true);
    for (int32_t k = 0; k < count; k++)
        (void)zfi_build_update(ZF_OP_lamb_apply, 6,
                               (zf_tensor[]){pieces[k].param, pieces[k].update, lr, norms[0],
                                             norms[1], pieces[k].master},
                               zfi_with({.f = least}, {.f = most}));
}

static void zfi_update_lamb(zf_graph *g, zfi_optimizer *o, zf_tensor p, zf_tensor dp,
                            double decay)
{
    const zf_lamb_desc *d = o->desc;
    zf_tensor m = zfi_moment(g, "lamb.m", p), v = zfi_moment(g, "lamb.v", p);
    zf_tensor w = zfi_master(g, "lamb.master", p), norms[2];
    const zfi_cut_rows cut = zfi_cut_rows_of(&g->nodes[p.id]);
    zf_tensor u = zfi_build_update(
        ZF_OP_lamb_update, 7, (zf_tensor[]){p, dp, m, v, o->step, w, o->scale},
        zfi_with({.f = d->beta1}, {.f = d->beta2}, {.f = d->eps},
                 {.f = decay}, [ZF_AT_lamb_update_scaled] = {.i = o->scale.graph != NULL},
                 [ZF_AT_lamb_update_uncorrected] = {.i = d->no_bias_correction}));
    zfi_push(&g->memory, o->pieces, ((zfi_lamb_piece){p, u, w}));
    if (g->memory.failed || cut.row + zf_tensor_shape(p).dims[0] < cut.rows) return;
    zfi_apply_lamb(g, o->pieces, zfi_len(o->pieces), o->lr, d->min_coeff, d->max_coeff, norms);
    if (o->pieces) stbds_header(o->pieces)->length = 0;
}

static zf_status zfi_prepare_lamb(zf_graph *g, const void *desc)
{
    const zf_lamb_desc *d = desc;
    return zfi_check_bounds(g, "zf_lamb", "min_coeff", d->min_coeff, "max_coeff", d->max_coeff);
}
ZFI_OPTIMIZER(lamb, .counts = true, .prepare = zfi_prepare_lamb, .update = zfi_update_lamb)
