/* ema: an exponential moving average of each trained parameter, a state that a step moves towards
 * the updated parameter.
 *
 * requires: an optimizer; before zf_zero
 * after:    %40 = state %2 "ema.average/w" : f32[8,32] role=average of=%2
 *           %41 = sub %2, %40     %42 = scale %41 {by=0.001}     %43 = add %40, %42
 *           %44 = assign %40, %43
 *
 * The average begins as the parameter, and is f32 for one of 16 bits: of its master weights. With a
 * loss scale a skipped step leaves it:
 *
 *           %45 = less %scale, 0     %46 = where %45, %40, %43     %44 = assign %40, %46
 *
 * Source: Polyak & Juditsky 1992; as torch.optim.swa_utils.get_ema_multi_avg_fn. */

static const zf_option zfi_ema_options[] = {
    ZF_OPTION(zf_ema_desc, NUMBER, decay, 0, "[0,1)", .flag = "ema",
              .traits = ZF_OPTION_CHANGES | ZF_OPTION_BASIC,
              .help = "decay of an average of the weights, which checkpoints hold as well"),
    {.name = NULL}};

/* The master weights by parameter, 0 where there are none; NULL without memory. */
static int32_t *zfi_masters(zf_graph *g)
{
    int32_t *masters = zfi_calloc(&g->memory, (size_t)zfi_len(g->nodes), sizeof *masters);
    for (int32_t i = 0; masters && i < zfi_len(g->order); i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        if (node->op == ZF_OP_state && node->role == ZFI_ROLE_MASTER)
            masters[node->of] = g->order[i];
    }
    return masters;
}

/* Whether the step is skipped; ZF_NONE: no step is. */
static zf_tensor zfi_is_skipped(zf_graph *g)
{
    const int32_t scaler = zfi_scaler_node(g, ZF_OP_loss_scale_update);
    const zf_tensor good = {g, scaler ? g->nodes[scaler].args[ZFI_SCALER_STATES] : 0};
    if (!scaler) return ZF_NONE;
    return zf_less(good, zf_constant(g, zf_tensor_dtype(good), ZF_SCALAR, 0));
}

/* Appends the average of a parameter; master: its master weights, 0: none. */
static void zfi_average(zf_graph *g, zf_tensor param, int32_t master, double decay,
                        zf_tensor skipped)
{
    const zf_tensor p = {g, master ? master : param.id};
    const zf_tensor e = zfi_state_for(g, "ema.average", param, zf_tensor_dtype(p),
                                      zf_tensor_shape(param), param.id, ZFI_STATE_STAGE);
    zf_tensor x = zf_add(e, zf_scale(zf_sub(p, e), 1 - decay));
    if (skipped.graph) x = zf_where(skipped, e, x);
    (void)zfi_op(assign, NULL, e, x);
}

ZF_API zf_status zf_ema(zf_graph *g, const zf_ema_desc *desc)
{
    zf_ema_desc d = desc ? *desc : (zf_ema_desc){.decay = 0};
    zf_status status =
        zfi_enter(g, "zf_ema", ZFI_STAGE_UPDATES, ZFI_STAGE_RANKS | ZFI_STAGE_PLACED);
    const char *scope;
    zf_tensor skipped;
    int32_t *marks, *masters;
    size_t nodes;
    if (d.decay == 0) d.decay = 0.999;
    if (status || (status = zfi_settle_desc("zf_ema", zfi_ema_options, &d, &g->error)))
        return status;
    if (zfi_check_dense(g, "zf_ema", "an average of it moves in each step")) return g->error.status;
    scope = g->scope;
    g->scope = "";
    g->in_update = true;
    skipped = zfi_is_skipped(g);
    marks = zfi_gradient_nodes(g);
    nodes = (size_t)zfi_len(g->nodes);
    masters = zfi_masters(g);
    for (int32_t k = 0; k < zfi_len(marks) && !g->error.status && !g->memory.failed; k++) {
        const int32_t param = g->nodes[marks[k]].args[0];
        zfi_average(g, (zf_tensor){g, param}, masters[param], d.decay, skipped);
    }
    if (masters) zfi_free(&g->memory, masters, nodes * sizeof *masters);
    zfi_array_free(&g->memory, marks);
    g->scope = scope;
    if (g->memory.failed) return zfi_graph_nomem(g);
    return zfi_leave(g, 0);
}
