/* One description of a training step, and the list of the passes that make it.
 *
 *     lora  fuse  precision  tile  autograd  simplify  clip  OPTIMIZER  delay  fuse  recompute
 *     zero  offload  prefetch        recompute.c has the list of these, which run in trials too
 *
 * A pass that the description does not ask for is not run. Without a loss, no pass for gradients is
 * run. */

static bool zfi_wants_always(const zf_training *t)
{
    (void)t;
    return true;
}

static bool zfi_wants_gradients(const zf_training *t)
{
    return zfi_wants_training(t) && t->keep_gradients;
}

static bool zfi_wants_clip(const zf_training *t) { return zfi_wants_training(t) && t->clip != 0; }

static bool zfi_wants_precision(const zf_training *t)
{
    return t->precision.dtype != ZF_F32 || t->precision.scale != 0;
}

static bool zfi_wants_lora(const zf_training *t)
{
    const zf_lora_desc *d = &t->lora;
    return d->rank || d->alpha != 0 || d->rslora || d->dropout != 0 || d->targets;
}

static zf_status zfi_pass_lora(zf_graph *g, const zf_training *t) { return zf_lora(g, &t->lora); }

static zf_status zfi_pass_fuse(zf_graph *g, const zf_training *t)
{
    zf_fuse_desc d = t->fuse;
    if (!d.tile_bytes) d.tile_bytes = t->tile.bytes;
    return zf_fuse(g, &d);
}

static zf_status zfi_pass_precision(zf_graph *g, const zf_training *t)
{
    return zf_precision(g, &t->precision);
}

static bool zfi_wants_tile(const zf_training *t) { return t->tile.bytes != 0; }

static zf_status zfi_pass_tile(zf_graph *g, const zf_training *t) { return zf_tile(g, &t->tile); }

static zf_status zfi_pass_autograd(zf_graph *g, const zf_training *t)
{
    return zf_autograd(g, t->loss);
}

static zf_status zfi_pass_simplify(zf_graph *g, const zf_training *t)
{
    (void)t;
    return zf_simplify(g);
}

/* Of a parameter in pieces, the gradients of its pieces are joined. */
static zf_status zfi_pass_gradients(zf_graph *g, const zf_training *t)
{
    zf_tensor *pieces = NULL;
    (void)t;
    for (int32_t k = 0; k < zfi_len(g->params) && !g->error.status && !g->memory.failed; k++) {
        const zfi_node *param = &g->nodes[g->params[k]];
        const zfi_cut_rows cut = zfi_cut_rows_of(param);
        const int whole = (int)(cut.rows ? zfi_whole_name(param->name) : strlen(param->name));
        zf_tensor gradient = zf_gradient(g, (zf_tensor){g, g->params[k]});
        char name[300];
        if (!zf_valid(gradient)) continue;
        zfi_push(&g->memory, pieces, gradient);
        if (g->memory.failed || cut.row + (cut.rows ? param->shape.dims[0] : 0) < cut.rows) continue;
        snprintf(name, sizeof name, "gradient/%.*s", whole, param->name);
        if (zfi_len(pieces) > 1) gradient = zf_concat(pieces, zfi_len(pieces), 0);
        zf_output(gradient, name);
        stbds_header(pieces)->length = 0;
    }
    zfi_array_free(&g->memory, pieces);
    return g->memory.failed ? zfi_graph_nomem(g) : zf_graph_status(g);
}

static zf_status zfi_pass_clip(zf_graph *g, const zf_training *t) { return zf_clip(g, t->clip); }

/* ---------------------------------------------------------------------------------- optimizers */

static zf_status zfi_pass_adamw(zf_graph *g, const zf_training *t)
{
    return zf_adamw(g, t->lr, &t->adamw);
}

static zf_status zfi_pass_lamb(zf_graph *g, const zf_training *t)
{
    return zf_lamb(g, t->lr, &t->lamb);
}

static zf_status zfi_pass_sgd(zf_graph *g, const zf_training *t)
{
    return zf_sgd(g, t->lr, &t->sgd);
}

static zf_status zfi_pass_lion(zf_graph *g, const zf_training *t)
{
    return zf_lion(g, t->lr, &t->lion);
}

static zf_status zfi_pass_onebit_adam(zf_graph *g, const zf_training *t)
{
    zf_onebit_adam_desc d = t->onebit_adam;
    d.variant = t->variant;
    return zf_onebit_adam(g, t->lr, &d);
}

static zf_status zfi_pass_onebit_lamb(zf_graph *g, const zf_training *t)
{
    zf_onebit_lamb_desc d = t->onebit_lamb;
    d.variant = t->variant;
    return zf_onebit_lamb(g, t->lr, &d);
}

static zf_status zfi_pass_zero_one_adam(zf_graph *g, const zf_training *t)
{
    zf_zero_one_adam_desc d = t->zero_one_adam;
    d.variant = t->variant;
    return zf_zero_one_adam(g, t->lr, &d);
}

/* By zf_optimizer. */
static const zfi_pass zfi_optimizers[] = {{"adamw", zfi_wants_always, zfi_pass_adamw},
                                          {"lamb", zfi_wants_always, zfi_pass_lamb},
                                          {"sgd", zfi_wants_always, zfi_pass_sgd},
                                          {"lion", zfi_wants_always, zfi_pass_lion},
                                          {"onebit_adam", zfi_wants_always, zfi_pass_onebit_adam},
                                          {"zero_one_adam", zfi_wants_always,
                                           zfi_pass_zero_one_adam},
                                          {"onebit_lamb", zfi_wants_always, zfi_pass_onebit_lamb}};

ZF_API const char *zf_optimizer_name(zf_optimizer optimizer)
{
    return (unsigned)optimizer < (unsigned)ZFI_COUNT(zfi_optimizers)
               ? zfi_optimizers[optimizer].name
               : NULL;
}

static bool zfi_wants_delay(const zf_training *t)
{
    return zfi_wants_training(t) && t->delay && (t->delay_from == 0 || t->variant > 0);
}

static zf_status zfi_pass_delay(zf_graph *g, const zf_training *t)
{
    (void)t;
    return zf_delay(g);
}

/* ------------------------------------------------------------------------------------ variants */

static int32_t zfi_onebit_adam_at(const zf_training *t, int64_t step)
{
    return step <= zfi_onebit_adam_resolved(&t->onebit_adam).freeze_step ? ZFI_WARM_UP
                                                                         : ZFI_COMPRESSED;
}

static int32_t zfi_onebit_lamb_at(const zf_training *t, int64_t step)
{
    return step <= zfi_onebit_lamb_resolved(&t->onebit_lamb).freeze_step ? ZFI_WARM_UP
                                                                         : ZFI_COMPRESSED;
}

static int32_t zfi_zero_one_at(const zf_training *t, int64_t step)
{
    return zfi_zero_one_adam_at(&t->zero_one_adam, step);
}

/* Optimizers whose steps differ. */
static const struct zfi_varying {
    zf_optimizer optimizer;
    const char *names[4];
    int32_t (*at)(const zf_training *, int64_t step);
} zfi_varying[] = {{ZF_ONEBIT_ADAM, {"warm-up", "compressed"}, zfi_onebit_adam_at},
                   {ZF_ONEBIT_LAMB, {"warm-up", "compressed"}, zfi_onebit_lamb_at},
                   {ZF_ZERO_ONE_ADAM, {"refresh", "sync", "local"}, zfi_zero_one_at}};

static const struct zfi_varying zfi_zero_one_together = {
    ZF_ZERO_ONE_ADAM, {"refresh", "sync"}, zfi_zero_one_at}; /* without local steps */

static int32_t zfi_delay_at(const zf_training *t, int64_t step) { return step > t->delay_from; }

/* Of all other optimizers, where updates are delayed from some step on. */
static const struct zfi_varying zfi_delaying_later = {
    ZF_ADAMW, {"direct", "delayed"}, zfi_delay_at};

/* The optimizer's steps differ. */
static const struct zfi_varying *zfi_varies(const zf_training *t)
{
    const zf_zero_one_adam_desc zero_one = zfi_zero_one_adam_resolved(&t->zero_one_adam);
    if (t->optimizer == ZF_ZERO_ONE_ADAM && !zfi_makes_local_steps(&zero_one))
        return &zfi_zero_one_together;
    for (int k = 0; k < ZFI_COUNT(zfi_varying); k++)
        if (zfi_varying[k].optimizer == t->optimizer) return &zfi_varying[k];
    return NULL;
}

/* What is known of the variants of a description's step; NULL: there is one. */
static const struct zfi_varying *zfi_varying_of(const zf_training *t)
{
    if (!t || !zfi_wants_training(t)) return NULL;
    return t->delay && t->delay_from > 0 && !zfi_varies(t) ? &zfi_delaying_later : zfi_varies(t);
}

ZF_API int32_t zf_variant_count(const zf_training *t)
{
    const struct zfi_varying *v = zfi_varying_of(t);
    int32_t count = v == NULL;
    while (v && count < ZFI_COUNT(v->names) && v->names[count]) count++;
    return count;
}

ZF_API const char *zf_variant_name(const zf_training *t, int32_t variant)
{
    const struct zfi_varying *v = zfi_varying_of(t);
    if (variant < 0 || variant >= zf_variant_count(t)) return NULL;
    return v ? v->names[variant] : "step";
}

ZF_API int32_t zf_variant_at(const zf_training *t, int64_t step)
{
    const struct zfi_varying *v = zfi_varying_of(t);
    return v && step > 0 ? v->at(t, step) : 0;
}

/* ------------------------------------------------------------------------------------ the list */

static const zfi_pass zfi_delay_pass = {"delay", zfi_wants_delay, zfi_pass_delay};

static const zfi_pass zfi_forward_passes[] = {
    {"lora", zfi_wants_lora, zfi_pass_lora},
    {"fuse", zfi_wants_fuse, zfi_pass_fuse},
    {"precision", zfi_wants_precision, zfi_pass_precision},
    {"tile", zfi_wants_tile, zfi_pass_tile},
    {"autograd", zfi_wants_training, zfi_pass_autograd},
    {"simplify", zfi_wants_always, zfi_pass_simplify},
    {"gradients", zfi_wants_gradients, zfi_pass_gradients},
    {"clip", zfi_wants_clip, zfi_pass_clip}};

static const zfi_pass zfi_update_passes[] = {{"fuse", zfi_wants_fuse_again, zfi_pass_fuse_again},
                                             {"recompute", zfi_wants_recompute, zf_recompute}};

/* Prints the graph after a pass, if the pass has changed it. */
static void zfi_show(zf_graph *g, const zf_training *t, const char *pass, uint64_t before)
{
    bool same = zf_graph_hash(g) == before;
    fprintf(t->print, "# after %s%s\n", pass, same ? ": the same" : "");
    if ((!same && zf_graph_print(g, t->print)) || ferror(t->print))
        zfi_fail(&g->error, ZF_ERR_IO, "zf_passes: the graph after %s could not be printed", pass);
}

static void zfi_run_passes(zf_graph *g, const zf_training *t, const zfi_pass *passes, int count)
{
    for (int k = 0; k < count && !g->error.status; k++) {
        uint64_t before = t->print ? zf_graph_hash(g) : 0;
        if (!passes[k].wanted(t) || passes[k].run(g, t)) continue;
        if (t->print) zfi_show(g, t, passes[k].name, before);
        if (t->after && !g->error.status) t->after(t->user, g, passes[k].name);
    }
}

/* The learning rate that was given, or the input "lr", which is made if there is none. *fixed: it
 * is a constant, which zf_simplify removes as long as nothing reads it. */
static zf_tensor zfi_rate(zf_graph *g, zf_tensor lr, bool *fixed, double *value)
{
    bool given = lr.graph || lr.id;
    if (!given) lr = zf_graph_find(g, "lr");
    if (!given && !zf_valid(lr)) lr = zf_input(g, "lr", ZF_F32, ZF_SCALAR);
    *fixed = lr.graph == g && zf_valid(lr) && g->nodes[lr.id].op == ZF_OP_constant;
    *value = *fixed ? *(const double *)ZF_LIST(&g->nodes[lr.id], constant, values).data : 0;
    return lr;
}

ZF_API zf_status zf_passes(zf_graph *g, const zf_training *training)
{
    zf_training t = training ? *training : (zf_training){.loss = ZF_NONE};
    bool fixed = false;
    double rate = 0;
    if (!g) return ZF_ERR_ARGUMENT;
    if (g->error.status) return g->error.status;
    if (!zf_optimizer_name(t.optimizer))
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        "zf_passes: there is no optimizer %d; the last one is %d", (int)t.optimizer,
                        (int)ZFI_COUNT(zfi_optimizers) - 1);
    if (t.variant < 0 || t.variant >= zf_variant_count(&t))
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        "zf_passes: there is no variant %d; a step of this description has %d "
                        "(zf_variant_count)",
                        (int)t.variant, (int)zf_variant_count(&t));
    if (t.delay && t.delay_from < 0)
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        "zf_passes: delay_from is %lld; it must be the number of a step, or 0",
                        (long long)t.delay_from);
    if (t.delay && zfi_varies(&t))
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        "zf_passes: delay has no meaning for %s, whose steps differ",
                        zf_optimizer_name(t.optimizer));
    if (t.print && !t.fuse.miss) t.fuse.miss = zf_fuse_miss_print, t.fuse.user = t.print;
    if (zfi_wants_training(&t)) t.lr = zfi_rate(g, t.lr, &fixed, &rate);
    zfi_run_passes(g, &t, zfi_forward_passes, ZFI_COUNT(zfi_forward_passes));
    if (fixed) t.lr = zf_constant(g, ZF_F32, ZF_SCALAR, rate);
    if (zfi_wants_training(&t)) zfi_run_passes(g, &t, &zfi_optimizers[t.optimizer], 1);
    if (zfi_wants_fit(&t) && !g->error.status && zfi_fit_training(g, &t)) return g->error.status;
    zfi_run_passes(g, &t, &zfi_delay_pass, 1);
    zfi_run_passes(g, &t, zfi_update_passes, ZFI_COUNT(zfi_update_passes));
    zfi_run_passes(g, &t, zfi_rank_passes, ZFI_COUNT(zfi_rank_passes));
    return g->error.status;
}

ZF_API zf_training zf_training_resolved(const zf_training *training)
{
    zf_training t = training ? *training : (zf_training){.loss = ZF_NONE};
    if (zfi_wants_lora(&t)) t.lora = zfi_lora_resolved(&t.lora);
    t.precision = zfi_precision_resolved(&t.precision);
    t.adamw = zfi_adamw_resolved(&t.adamw);
    t.lamb = zfi_lamb_resolved(&t.lamb);
    t.lion = zfi_lion_resolved(&t.lion);
    t.onebit_adam = zfi_onebit_adam_resolved(&t.onebit_adam);
    t.zero_one_adam = zfi_zero_one_adam_resolved(&t.zero_one_adam);
    t.onebit_lamb = zfi_onebit_lamb_resolved(&t.onebit_lamb);
    t.recompute = zfi_recompute_resolved(&t);
    t.zero = zfi_zero_resolved(&t.zero);
    return t;
}
