/* sgd, adamw, lamb, lion: append one update per parameter that has a gradient.
 *
 * requires: gradients; no optimizer yet
 * ensures:  the parameter and its states are written in the update section; states are named
 *           "adamw.m/PARAM"; bf16 and f16 parameters have master weights, "adamw.master/PARAM"
 * before:   gradient %2, %9
 * after:    update:
 *           advance %30
 *           adamw %2, %9, %31, %32, %7, %30 {beta1=0.9 beta2=0.999 eps=1e-08}
 *
 * With a loss scale, updates multiply gradients by the number that removes the scale (from zf_clip,
 * or computed here). If it is negative, they change nothing:
 *
 *           advance %30, %29
 *           adamw %2, %9, %31, %32, %7, %30, %29 {beta1=0.9 beta2=0.999 eps=1e-08 scaled=true}
 */

/* What LAMB will apply to a parameter, or a piece of one, when the norms of all its pieces are
 * known. */
typedef struct zfi_lamb_piece {
    zf_tensor param, update, master;
} zfi_lamb_piece;

typedef struct zfi_optimizer {
    const char *name;
    /* step: counts updates; ZF_NONE if the optimizer does not need it. scale: the factor for
     * gradients; ZF_NONE: 1 */
    zf_tensor lr, step, scale;
    double weight_decay;
    bool decay_all;
    const void *desc;
    /* Counts updates of the variance, where these are fewer: made by `begin`; NULL: none */
    zf_tensor variance_step;
    /* 0/1 Adam: the sum of the rates, whether it is above 0, a constant, and the share of the newest
     * gradient in the variance */
    zf_tensor total, moved, eps, share;
    void (*begin)(zf_graph *, struct zfi_optimizer *);
    void (*update)(zf_graph *, const struct zfi_optimizer *, zf_tensor param, zf_tensor gradient,
                   double decay);
    void (*finish)(zf_graph *, const struct zfi_optimizer *); /* after all updates; NULL: nothing */
    void *work; /* what `update` collects, of the optimizer's own type */
} zfi_optimizer;

/* A new state for a parameter, laid out over the ranks as `ranks` says (graph/mesh.c): of zeros, or
 * as `from` if that is not 0. */
static zf_tensor zfi_state_for(zf_graph *g, const char *kind, zf_tensor param, zf_dtype dtype,
                               zf_shape shape, int32_t from, int64_t ranks)
{
    const zfi_cut_rows cut = zfi_cut_rows_of(&g->nodes[param.id]);
    zfi_new state = {.op = ZF_OP_state,
                     .args = &from,
                     .arg_count = from != 0,
                     .dtype = dtype,
                     .shape = shape};
    char name[400];
    ZF_INT(&state, state, row) = cut.row, ZF_INT(&state, state, rows) = cut.rows;
    ZF_INT(&state, state, ranks) = ranks;
    snprintf(name, sizeof name, "%s/%s", kind, zf_tensor_name(param));
    return zfi_leaf(g, state, name);
}

/* A new state of zeros for a parameter: f32, or f64 for an f64 parameter. */
static zf_tensor zfi_moment(zf_graph *g, const char *kind, zf_tensor param)
{
    return zfi_state_for(g, kind, param, zf_tensor_dtype(param) == ZF_F64 ? ZF_F64 : ZF_F32,
                         zf_tensor_shape(param), 0, ZFI_STATE_STAGE);
}

/* A new f32 state of zeros for a parameter, laid out as `ranks` says. */
static zf_tensor zfi_moment_over(zf_graph *g, const char *kind, zf_tensor param, int64_t ranks)
{
    return zfi_state_for(g, kind, param, ZF_F32, zf_tensor_shape(param), 0, ranks);
}

/* New master weights for a bf16 or f16 parameter, which start with its values; ZF_NONE for
 * others. */
static zf_tensor zfi_master(zf_graph *g, const char *kind, zf_tensor param)
{
    const zf_dtype dtype = zf_tensor_dtype(param);
    if (dtype != ZF_BF16 && dtype != ZF_F16) return ZF_NONE;
    return zfi_state_for(g, kind, param, ZF_F32, zf_tensor_shape(param), param.id,
                         ZFI_STATE_STAGE);
}

/* Appends `op` over those of x[0..count) that are not ZF_NONE. */
static zf_tensor zfi_build_update(zf_op op, int32_t count, const zf_tensor *x,
                                  const zf_attribute *attributes)
{
    zf_tensor args[8];
    int32_t n = 0;
    for (int32_t k = 0; k < count; k++)
        if (x[k].graph) args[n++] = x[k];
    return zfi_build(op, n, args, attributes);
}

/* The factor by which updates multiply the gradients of the marks; ZF_NONE: none. */
static zf_tensor zfi_gradients_scale(zf_graph *g, const int32_t *marks)
{
    int32_t *values = NULL, made;
    if (!zfi_scaler_node(g, ZF_OP_loss_scale)) return ZF_NONE;
    if (!zfi_scaler_node(g, ZF_OP_loss_scale_update)) {
        for (int32_t k = 0; k < zfi_len(marks); k++)
            zfi_push(&g->memory, values, g->nodes[marks[k]].args[1]);
        if (!g->memory.failed) zfi_unscale(g, values, zfi_len(values), 0, false);
        zfi_array_free(&g->memory, values);
        if (g->memory.failed) zfi_graph_nomem(g);
    }
    made = zfi_scaler_node(g, ZF_OP_loss_scale_update);
    return (zf_tensor){g, made ? g->nodes[made].args[ZFI_SCALER_STATES] : 0};
}

static zf_status zfi_optimize(zf_graph *g, zfi_optimizer *o, bool counts)
{
    zf_status status =
        zfi_enter(g, o->name, ZFI_STAGE_GRADIENTS, ZFI_STAGE_UPDATES | ZFI_STAGE_PLACED);
    const char *scope;
    int32_t *marks;
    if (status) return status;
    if (o->lr.graph != g || !zf_valid(o->lr) || zf_shape_count(zf_tensor_shape(o->lr)) != 1 ||
        !zfi_is_float(zf_tensor_dtype(o->lr)))
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        "%s: lr must be a float scalar of this graph, an input for example",
                        o->name);
    marks = zfi_gradient_nodes(g);
    scope = g->scope;
    g->scope = "";
    g->in_update = true;
    o->scale = zfi_gradients_scale(g, marks);
    if (counts) {
        char name[32];
        snprintf(name, sizeof name, "%s.step", o->name + 3);
        o->step = zf_state(g, name, ZF_I64, ZF_SCALAR, 0);
        (void)zfi_build_update(ZF_OP_advance, 2, (zf_tensor[]){o->step, o->scale}, NULL);
    }
    if (o->begin) o->begin(g, o);
    for (int32_t k = 0; k < zfi_len(marks) && !g->error.status; k++) {
        zf_tensor param = {g, g->nodes[marks[k]].args[0]},
                  gradient = {g, g->nodes[marks[k]].args[1]};
        bool decays = o->decay_all || zf_tensor_shape(param).rank >= 2;
        o->update(g, o, param, gradient, decays ? o->weight_decay : 0);
    }
    if (o->finish && !g->error.status && !g->memory.failed) o->finish(g, o);
    g->scope = scope;
    zfi_array_free(&g->memory, marks);
    return zfi_leave(g, ZFI_STAGE_UPDATES);
}

/* False, after recording an error, where a value is outside its range. */
static bool zfi_in_range(zf_graph *g, const char *pass, const char *field, double value, double low,
                         double high)
{
    if (!g || (value >= low && value < high)) return true;
    zfi_fail(&g->error, ZF_ERR_ARGUMENT, "%s: %s is %g; it must be in [%g, %g)", pass, field, value,
             low, high);
    return false;
}

static void zfi_update_sgd(zf_graph *g, const zfi_optimizer *o, zf_tensor p, zf_tensor dp,
                           double decay)
{
    const zf_sgd_desc *d = o->desc;
    zf_tensor buffer = d->momentum == 0 ? ZF_NONE : zfi_moment(g, "sgd.momentum", p);
    zf_tensor w = zfi_master(g, "sgd.master", p);
    (void)zfi_build_update(
        ZF_OP_sgd, 6, (zf_tensor[]){p, dp, o->lr, buffer, w, o->scale},
        zfi_with({.f = d->momentum}, {.i = d->nesterov},
                 {.f = decay}, [ZF_AT_sgd_scaled] = {.i = o->scale.graph != NULL}));
}

ZF_API zf_status zf_sgd(zf_graph *g, zf_tensor lr, const zf_sgd_desc *desc)
{
    zf_sgd_desc d = desc ? *desc : (zf_sgd_desc){.momentum = 0};
    zfi_optimizer o = {.name = "zf_sgd",
                       .lr = lr,
                       .weight_decay = d.weight_decay,
                       .decay_all = d.decay_all,
                       .desc = &d,
                       .update = zfi_update_sgd};
    if (!zfi_in_range(g, o.name, "momentum", d.momentum, 0, 1) ||
        !zfi_in_range(g, o.name, "weight_decay", d.weight_decay, 0, INFINITY))
        return g->error.status;
    if (g && d.nesterov && d.momentum == 0)
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT, "zf_sgd: nesterov needs a momentum above 0");
    return zfi_optimize(g, &o, false);
}

static void zfi_update_adamw(zf_graph *g, const zfi_optimizer *o, zf_tensor p, zf_tensor dp,
                             double decay)
{
    const zf_adamw_desc *d = o->desc;
    zf_tensor m = zfi_moment(g, "adamw.m", p), v = zfi_moment(g, "adamw.v", p);
    zf_tensor w = zfi_master(g, "adamw.master", p);
    (void)zfi_build_update(
        ZF_OP_adamw, 8, (zf_tensor[]){p, dp, m, v, o->lr, o->step, w, o->scale},
        zfi_with({.f = d->beta1}, {.f = d->beta2}, {.f = d->eps},
                 {.f = decay}, [ZF_AT_adamw_scaled] = {.i = o->scale.graph != NULL}));
}

static bool zfi_moments_in_range(zf_graph *g, const char *pass, double beta1, double beta2,
                                 double eps, double decay)
{
    return zfi_in_range(g, pass, "beta1", beta1, 0, 1) &&
           zfi_in_range(g, pass, "beta2", beta2, 0, 1) &&
           zfi_in_range(g, pass, "eps", eps, 0, INFINITY) &&
           zfi_in_range(g, pass, "weight_decay", decay, 0, INFINITY);
}

static zf_adamw_desc zfi_adamw_resolved(const zf_adamw_desc *desc)
{
    zf_adamw_desc d = desc ? *desc : (zf_adamw_desc){.beta1 = 0};
    d.beta1 = zfi_or(d.beta1, 0.9), d.beta2 = zfi_or(d.beta2, 0.999), d.eps = zfi_or(d.eps, 1e-8);
    return d;
}

ZF_API zf_status zf_adamw(zf_graph *g, zf_tensor lr, const zf_adamw_desc *desc)
{
    const zf_adamw_desc d = zfi_adamw_resolved(desc);
    zfi_optimizer o = {.name = "zf_adamw",
                       .lr = lr,
                       .weight_decay = d.weight_decay,
                       .decay_all = d.decay_all,
                       .desc = &d,
                       .update = zfi_update_adamw};
    if (!zfi_moments_in_range(g, o.name, d.beta1, d.beta2, d.eps, d.weight_decay))
        return g->error.status;
    return zfi_optimize(g, &o, true);
}

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

static void zfi_update_lamb(zf_graph *g, const zfi_optimizer *o, zf_tensor p, zf_tensor dp,
                            double decay)
{
    const zf_lamb_desc *d = o->desc;
    zf_tensor m = zfi_moment(g, "lamb.m", p), v = zfi_moment(g, "lamb.v", p);
    zf_tensor w = zfi_master(g, "lamb.master", p), norms[2];
    zfi_lamb_piece **pieces = o->work; /* a growing array of those of this parameter */
    const zfi_cut_rows cut = zfi_cut_rows_of(&g->nodes[p.id]);
    zf_tensor u = zfi_build_update(
        ZF_OP_lamb_update, 7, (zf_tensor[]){p, dp, m, v, o->step, w, o->scale},
        zfi_with({.f = d->beta1}, {.f = d->beta2}, {.f = d->eps},
                 {.f = decay}, [ZF_AT_lamb_update_scaled] = {.i = o->scale.graph != NULL}));
    zfi_push(&g->memory, *pieces, ((zfi_lamb_piece){p, u, w}));
    if (g->memory.failed || cut.row + zf_tensor_shape(p).dims[0] < cut.rows) return;
    zfi_apply_lamb(g, *pieces, zfi_len(*pieces), o->lr, d->min_coeff, d->max_coeff, norms);
    if (*pieces) stbds_header(*pieces)->length = 0;
}

/* False, after recording an error, where two bounds of a ratio are none. */
static bool zfi_bounds_in_range(zf_graph *g, const char *pass, const char *least_field,
                                double least, const char *most_field, double most)
{
    if (!zfi_in_range(g, pass, least_field, least, 0, INFINITY) ||
        !zfi_in_range(g, pass, most_field, most, 0, INFINITY))
        return false;
    if (!g || least <= most) return true;
    zfi_fail(&g->error, ZF_ERR_ARGUMENT, "%s: %s is %g, above %s, %g", pass, least_field, least,
             most_field, most);
    return false;
}

static zf_lamb_desc zfi_lamb_resolved(const zf_lamb_desc *desc)
{
    zf_lamb_desc d = desc ? *desc : (zf_lamb_desc){.beta1 = 0};
    d.beta1 = zfi_or(d.beta1, 0.9), d.beta2 = zfi_or(d.beta2, 0.999), d.eps = zfi_or(d.eps, 1e-6);
    d.min_coeff = zfi_or(d.min_coeff, 0.01), d.max_coeff = zfi_or(d.max_coeff, 10);
    return d;
}

ZF_API zf_status zf_lamb(zf_graph *g, zf_tensor lr, const zf_lamb_desc *desc)
{
    const zf_lamb_desc d = zfi_lamb_resolved(desc);
    zfi_lamb_piece *pieces = NULL;
    zfi_optimizer o = {.name = "zf_lamb",
                       .lr = lr,
                       .weight_decay = d.weight_decay,
                       .decay_all = d.decay_all,
                       .desc = &d,
                       .update = zfi_update_lamb,
                       .work = &pieces};
    zf_status status;
    if (!zfi_moments_in_range(g, o.name, d.beta1, d.beta2, d.eps, d.weight_decay) ||
        !zfi_bounds_in_range(g, o.name, "min_coeff", d.min_coeff, "max_coeff", d.max_coeff))
        return g->error.status;
    status = zfi_optimize(g, &o, true);
    if (g) zfi_array_free(&g->memory, pieces);
    return status;
}

static void zfi_update_lion(zf_graph *g, const zfi_optimizer *o, zf_tensor p, zf_tensor dp,
                            double decay)
{
    const zf_lion_desc *d = o->desc;
    zf_tensor m = zfi_moment(g, "lion.m", p), w = zfi_master(g, "lion.master", p);
    (void)zfi_build_update(
        ZF_OP_lion, 6, (zf_tensor[]){p, dp, m, o->lr, w, o->scale},
        zfi_with({.f = d->beta1}, {.f = d->beta2},
                 {.f = decay}, [ZF_AT_lion_scaled] = {.i = o->scale.graph != NULL}));
}

static zf_lion_desc zfi_lion_resolved(const zf_lion_desc *desc)
{
    zf_lion_desc d = desc ? *desc : (zf_lion_desc){.beta1 = 0};
    d.beta1 = zfi_or(d.beta1, 0.9), d.beta2 = zfi_or(d.beta2, 0.99);
    return d;
}

ZF_API zf_status zf_lion(zf_graph *g, zf_tensor lr, const zf_lion_desc *desc)
{
    const zf_lion_desc d = zfi_lion_resolved(desc);
    zfi_optimizer o = {.name = "zf_lion",
                       .lr = lr,
                       .weight_decay = d.weight_decay,
                       .decay_all = d.decay_all,
                       .desc = &d,
                       .update = zfi_update_lion};
    if (!zfi_moments_in_range(g, o.name, d.beta1, d.beta2, 0, d.weight_decay))
        return g->error.status;
    return zfi_optimize(g, &o, false);
}
