/* zero_one_adam: 1-bit Adam without a warm-up, whose ranks also make steps of their own (Lu et al.
 * 2022).
 *
 * requires, ensures: as optimizer.c; after zf_autograd, before zf_zero at stage 0, without
 *                    local steps also at stage 1 or 2
 *
 *     refresh   the gradient is averaged, and m and v are updated by it; p -= lr m / (sqrt(v) + eps);
 *               v is corrected for its first value, 0: v += (g^2 - v) (1 - beta2) / (1 - beta2^k)
 *     local     m_r = beta1 m_r + (1 - beta1) g_r, u_r += lr m_r (local_sum), within
 *               limit (sum of lr) (sqrt(v) + eps); nothing is exchanged
 *     sync      the same sums; then u, the average of all u_r by signs, m = u / (sum of lr), within
 *               limit (sqrt(v) + eps); p -= (sum of lr) m / (sqrt(v) + eps), m_r = m, u_r = 0
 *
 * p, m and v are the same on all ranks at all times. What a rank computes with, in steps local and
 * sync, is p - u_r / (sqrt(v) + eps), a value of the micro section that takes the place of p:
 *
 *     %40 = adam_drift %2, %u, %v {eps=1e-08} : f32[8,32]     %4 = matmul %1, %40
 *
 * Without local steps u_r is 0 and m_r is m where a step begins, so neither is a state, and p is
 * what is computed with. v and the master weights are then read by the update alone, which the
 * stages shard. The limit is that of the update (adam_apply), as in onebit.c: m itself is not
 * within it.
 *
 *     sync      m_r = beta1 m + (1 - beta1) g_r; m = (the average of all lr m_r by signs) / lr */

enum { ZFI_REFRESH, ZFI_SYNC, ZFI_LOCAL };

static bool zfi_makes_local_steps(const zf_zero_one_adam_desc *resolved)
{
    return resolved->local_step_clipper > 1;
}

static const zf_option zfi_zero_one_adam_options[] = {
    ZFI_ADAM_OPTIONS(zf_zero_one_adam_desc, 1e-8),
    ZFI_DECAY_OPTIONS(zf_zero_one_adam_desc),
    ZF_OPTION(zf_zero_one_adam_desc, COUNT, var_freeze_step, 100000, "[1,inf)", .unit = "STEP",
              .flag = "freeze-step", .traits = ZF_OPTION_CHANGES,
              .help = "last step that may refresh the variance"),
    ZF_OPTION(zf_zero_one_adam_desc, COUNT, var_update_scaler, 16, "[1,inf)",
              .traits = ZF_OPTION_CHANGES, .help = "refreshes until their distance doubles"),
    ZF_OPTION(zf_zero_one_adam_desc, COUNT, local_step_scaler, 32768, "[1,inf)", .unit = "STEPS",
              .traits = ZF_OPTION_CHANGES, .help = "steps until the interval of averages doubles"),
    ZF_OPTION(zf_zero_one_adam_desc, COUNT, local_step_clipper, 16, "[1,inf)", .unit = "STEPS",
              .traits = ZF_OPTION_CHANGES,
              .help = "longest interval of averages; 1: no local steps, as stages 1 and 2 require"),
    ZFI_LIMIT_OPTION(zf_zero_one_adam_desc),
    ZF_OPTION(zf_zero_one_adam_desc, COUNT, variant, 0, "[0,2]", .flag = ""),
    {.name = NULL}};

/* Refreshes come with distances 1, var_update_scaler times, then 2, 4, ..., up to var_freeze_step.
 * After it come intervals, each of which ends with an average: of 1 step in the first
 * local_step_scaler steps, of 2 in as many, of 4, ... local_step_clipper. An interval has the
 * length that holds where it begins. */
static int32_t zfi_zero_one_adam_at(const void *desc, int64_t step)
{
    const zf_zero_one_adam_desc d = *(const zf_zero_one_adam_desc *)desc;
    int64_t at = 1, distance = 1, offset, begin = 0, end, interval = 1;
    if (step <= d.var_freeze_step) {
        while (step - at >= distance * d.var_update_scaler)
            at += distance * d.var_update_scaler, distance *= 2;
        return (step - at) % distance ? ZFI_SYNC : ZFI_REFRESH;
    }
    offset = step - d.var_freeze_step - 1;
    for (int64_t k = 1; interval < d.local_step_clipper; k++) {
        const int64_t after = zfi_max(k * d.local_step_scaler - begin, 0);
        end = begin + (after + interval - 1) / interval * interval;
        if (offset < end) break;
        begin = end, interval = zfi_min(2 * interval, d.local_step_clipper);
    }
    return (offset - begin + 1) % interval ? ZFI_LOCAL : ZFI_SYNC;
}

/* The state of that name, which is made if there is none. */
static zf_tensor zfi_state_over(zf_graph *g, const char *kind, zf_tensor param, int64_t ranks)
{
    char name[ZFI_STATE_NAME];
    const int32_t id = zfi_map_get(g->names, zfi_state_name(g, kind, param, name), 0);
    return id ? (zf_tensor){g, id} : zfi_moment_over(g, kind, param, ranks);
}

/* Puts in place of the trained parameters, where the micro section reads them, where this rank has
 * taken them. */
static void zfi_drift_params(zf_graph *g, double eps)
{
    const size_t nodes = (size_t)zfi_len(g->nodes);
    int32_t *marks = zfi_gradient_nodes(g), *order = NULL, known = zfi_len(g->order);
    /* By parameter: what takes its place, and where that and its states begin in the order */
    int32_t *drift = zfi_calloc(&g->memory, 2 * nodes, sizeof *drift);
    int32_t *begins = drift ? drift + nodes : NULL;
    for (int32_t k = 0; drift && k < zfi_len(marks) && !g->error.status; k++) {
        const zf_tensor p = {g, g->nodes[marks[k]].args[0]};
        zf_tensor args[4] = {p};
        begins[p.id] = zfi_len(g->order);
        args[1] = zfi_moment_over(g, "zero_one_adam.u", p, ZFI_STATE_EACH);
        args[2] = zfi_moment_over(g, "zero_one_adam.v", p, ZFI_STATE_STAGE);
        args[3] = zfi_master(g, "zero_one_adam.master", p);
        drift[p.id] = zfi_build_update(ZF_OP_adam_drift, 4, args, zfi_with({.f = eps})).id;
    }
    if (drift && !g->error.status && !g->memory.failed) {
        for (int32_t i = 0; i < known; i++) {
            const int32_t id = g->order[i];
            zfi_node *node = &g->nodes[id];
            zfi_push(&g->memory, order, id);
            for (int32_t k = 0; k < node->arg_count && !node->update && !g->memory.failed; k++)
                if (node->op != ZF_OP_gradient && drift[node->args[k]])
                    node->args[k] = drift[node->args[k]];
            if (node->op != ZF_OP_param || !drift[id]) continue;
            for (int32_t n = begins[id]; !g->memory.failed; n++) {
                g->nodes[g->order[n]].update = false;
                zfi_push(&g->memory, order, g->order[n]);
                if (g->order[n] == drift[id]) break;
            }
        }
    }
    if (order && !g->memory.failed && !g->error.status) {
        zfi_array_free(&g->memory, g->order);
        g->order = order;
    } else {
        zfi_array_free(&g->memory, order);
    }
    zfi_free(&g->memory, drift, 2 * nodes * sizeof *drift);
    zfi_array_free(&g->memory, marks);
    if (g->memory.failed) zfi_graph_nomem(g);
}

/* x averaged over the ranks as signs. */
static zf_tensor zfi_zero_one_mean(zf_graph *g, zf_tensor x, zf_tensor p)
{
    return zfi_sign_mean(x, zfi_moment_over(g, "zero_one_adam.worker", p, ZFI_STATE_EACH),
                         zfi_moment_over(g, "zero_one_adam.server", p, ZFI_STATE_CUT));
}

static void zfi_update_zero_one_adam(zf_graph *g, zfi_optimizer *o, zf_tensor p, zf_tensor dp,
                                     double decay)
{
    const zf_zero_one_adam_desc *d = o->desc;
    const zf_attribute *rates = zfi_with({.f = 0}, {.f = 0}, {.f = d->eps}, {.f = decay});
    const bool local = d->variant == ZFI_LOCAL; /* m and v are not updated */
    const zf_tensor none = {NULL, 0},
                    m = local ? none : zfi_moment_over(g, "zero_one_adam.m", p, ZFI_STATE_WHOLE),
                    own = zfi_makes_local_steps(d)
                              ? zfi_moment_over(g, "zero_one_adam.own_m", p, ZFI_STATE_EACH)
                              : none,
                    v = zfi_state_over(g, "zero_one_adam.v", p, ZFI_STATE_STAGE);
    zf_tensor u, w, mean, sum, most = ZF_NONE;
    char name[ZFI_STATE_NAME];
    w = zf_graph_find(g, zfi_state_name(g, "zero_one_adam.master", p, name));
    if (!zf_valid(w)) w = zfi_master(g, "zero_one_adam.master", p);
    if (d->variant == ZFI_REFRESH) {
        mean = zfi_op(momentum, zfi_with({.f = d->beta1}), m, dp);
        mean = zfi_op(assign, NULL, m, mean);
        if (zf_valid(own)) (void)zfi_op(assign, NULL, own, mean);
        dp = zf_cast(dp, ZF_F32);
        (void)zfi_op(assign, NULL, v,
                     zf_add(v, zf_mul(zf_sub(zf_mul(dp, dp), v), o->share)));
        (void)zfi_build_update(ZF_OP_adam_apply, 7,
                               (zf_tensor[]){p, mean, v, o->lr, o->step, o->variance_step, w},
                               rates);
        return;
    }
    if (!zf_valid(own)) {
        sum = zf_mul(zfi_op(momentum, zfi_with({.f = d->beta1}), m, dp), o->lr);
        mean = zf_where(o->moved, zf_div(zfi_zero_one_mean(g, sum, p), o->lr), m);
        mean = zfi_op(assign, NULL, m, mean);
        (void)zfi_build_update(ZF_OP_adam_apply, 7,
                               (zf_tensor[]){p, mean, v, o->lr, o->step, o->variance_step, w},
                               zfi_with({.f = 0}, {.f = 0}, {.f = d->eps}, {.f = decay},
                                        zfi_limit_attribute(d->limit)));
        return;
    }
    u = zfi_state_over(g, "zero_one_adam.u", p, ZFI_STATE_EACH);
    sum = zfi_op(local_sum, zfi_with({.f = d->beta1}), u, dp, own, o->lr);
    if (!isinf(d->limit)) most = zf_scale(zf_add(zf_sqrt(v), o->eps), d->limit);
    if (local) {
        if (zf_valid(most))
            (void)zfi_op(assign, NULL, u, zfi_within_size(sum, zf_mul(most, o->total)));
        return;
    }
    mean = zf_where(o->moved, zf_div(zfi_zero_one_mean(g, sum, p), o->total), m);
    if (zf_valid(most)) mean = zfi_within_size(mean, most);
    mean = zfi_op(assign, NULL, m, mean);
    (void)zfi_op(assign, NULL, own, mean);
    (void)zfi_op(assign, NULL, u, zf_scale(mean, 0));
    (void)zfi_build_update(ZF_OP_adam_apply, 7,
                           (zf_tensor[]){p, mean, v, o->total, o->step, o->variance_step, w},
                           rates);
}

/* Counts updates of the variance, and sums the rates since the last average. The variance is the
 * mean of squares in which one k refreshes ago weighs beta2^k: `weight` is the sum of these
 * weights, times 1 - beta2, `share` that of the newest. */
static void zfi_begin_zero_one_adam(zf_graph *g, zfi_optimizer *o)
{
    const zf_zero_one_adam_desc *d = o->desc;
    zf_tensor rate;
    o->variance_step = zfi_state(g, "zero_one_adam.variance_step", ZF_I64, ZF_SCALAR, 0);
    if (d->variant == ZFI_REFRESH) {
        const zf_tensor weight = zfi_state(g, "zero_one_adam.weight", ZF_F32, ZF_SCALAR, 0),
                        new_share = zf_constant(g, ZF_F32, ZF_SCALAR, 1 - d->beta2),
                        sum = zf_add(zf_scale(weight, d->beta2), new_share);
        (void)zfi_build_update(ZF_OP_advance, 1, &o->variance_step, NULL);
        (void)zfi_op(assign, NULL, weight, sum);
        o->share = zf_div(new_share, sum);
        return;
    }
    if (!zfi_makes_local_steps(d)) {
        o->moved = zf_less(zf_constant(g, ZF_F32, ZF_SCALAR, 0), o->lr);
        return;
    }
    rate = zfi_state(g, "zero_one_adam.rate", ZF_F32, ZF_SCALAR, 0);
    o->total = zf_add(rate, o->lr);
    o->eps = zf_constant(g, ZF_F32, ZF_SCALAR, d->eps);
    o->moved = zf_less(zf_constant(g, ZF_F32, ZF_SCALAR, 0), o->total);
    (void)zfi_op(assign, NULL, rate, d->variant == ZFI_LOCAL ? o->total : zf_scale(o->total, 0));
}

static zf_status zfi_prepare_zero_one_adam(zf_graph *g, const void *desc)
{
    const zf_zero_one_adam_desc *d = desc;
    if (zfi_check_onebit(g, "zf_zero_one_adam")) return g->error.status;
    if (d->variant == ZFI_LOCAL && !zfi_makes_local_steps(d))
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        "zf_zero_one_adam: there is no variant 2; 0 is refresh, 1 sync, and "
                        "local_step_clipper is 1");
    if (d->variant != ZFI_REFRESH && zfi_makes_local_steps(d) &&
        (g->stages & ZFI_STAGE_GRADIENTS) && !(g->stages & (ZFI_STAGE_UPDATES | ZFI_STAGE_PLACED)))
        zfi_drift_params(g, d->eps);
    return g->error.status;
}

static const char *const *zfi_zero_one_adam_variants(const void *desc)
{
    static const char *const names[] = {"refresh", "sync", "local", NULL},
                             *const without_local[] = {"refresh", "sync", NULL};
    return zfi_makes_local_steps(desc) ? names : without_local;
}
ZFI_OPTIMIZER(zero_one_adam, .counts = true, .one_rate = true, .signs = true,
              .prepare = zfi_prepare_zero_one_adam,
              .begin = zfi_begin_zero_one_adam, .update = zfi_update_zero_one_adam,
              .variants = zfi_zero_one_adam_variants, .variant_at = zfi_zero_one_adam_at)
