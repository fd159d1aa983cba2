/* clip: scales all gradients so that their global norm is at most max_norm.
 *
 * requires: gradients; no optimizer yet
 * ensures:  an output "grad_norm", the norm before scaling
 * before:   gradient %2, %9
 * after:    update:
 *           %20 = block_norms %9      %22 = norm %20, ... : f32[]
 *           %28 = mul %9, %27         gradient %2, %28
 *
 * With a loss scale, the gradients do not change. The updates multiply them by one number, which
 * removes the scale and clips. It is -1 where the norm is non-finite: then nothing is updated.
 *
 *           %30 = less %22, %29       %31 = where %30, %27, %28     of inf, -1
 *           loss_scale_update %11, %12, %13, %14, %15, %31 {factor=2 ...}
 *
 * Source: Pascanu et al. 2013; all ZeRO stages share the rule g / max(1, (norm + 1e-6) / max_norm).
 * The global norm is computed from the norms of blocks of 1024 elements, added in index order, so
 * it does not change when a tensor is split between blocks. */

/* Removes the nodes marked in `drop` from the order. */
static void zfi_drop_marked(zf_graph *g, const bool *drop, int32_t marked)
{
    int32_t kept = 0;
    for (int32_t i = 0; i < zfi_len(g->order); i++)
        if (g->order[i] >= marked || !drop[g->order[i]]) g->order[kept++] = g->order[i];
    if (g->order) stbds_header(g->order)->length = (size_t)kept;
}

/* The `gradient` nodes in order, as a growing array. */
static int32_t *zfi_gradient_nodes(zf_graph *g)
{
    int32_t *list = NULL;
    for (int32_t i = 0; i < zfi_len(g->order); i++)
        if (g->nodes[g->order[i]].op == ZF_OP_gradient && !zfi_push(&g->memory, list, g->order[i]))
            break;
    if (g->memory.failed) zfi_graph_nomem(g);
    return list;
}

/* The global norm of x[0..count): f32, or f64 if one of them is f64. */
static zf_tensor zfi_global_norm(zf_graph *g, const int32_t *x, int32_t count)
{
    zf_tensor *norms = zfi_calloc(&g->memory, (size_t)count, sizeof *norms), norm = {g, 0};
    zf_dtype dtype = ZF_F32;
    if (!norms) return zfi_graph_nomem(g), norm;
    for (int32_t k = 0; k < count; k++)
        if (g->nodes[x[k]].dtype == ZF_F64) dtype = ZF_F64;
    for (int32_t k = 0; k < count; k++)
        norms[k] = zf_cast(zfi_op(block_norms, NULL, ((zf_tensor){g, x[k]})), dtype);
    norm = zfi_build(ZF_OP_norm, count, norms, NULL);
    zfi_free(&g->memory, norms, (size_t)count * sizeof *norms);
    return norm;
}

/* max(1, (norm + 1e-6) / max_norm) */
static zf_tensor zfi_clip_divisor(zf_tensor norm, zf_tensor one, double max_norm)
{
    zf_tensor tiny = zf_constant(norm.graph, zf_tensor_dtype(norm), ZF_SCALAR, 1e-6);
    return zf_maximum(zf_scale(zf_add(norm, tiny), 1 / max_norm), one);
}

/* With a loss scale: appends the number by which updates multiply the scaled gradients x[0..count),
 * and the update of the scale. max_norm <= 0 or infinite: no clipping. `keep`: the norm of the
 * unscaled gradients is an output "grad_norm". */
static void zfi_unscale(zf_graph *g, const int32_t *x, int32_t count, double max_norm, bool keep)
{
    const zfi_node mark = g->nodes[zfi_scaler_node(g, ZF_OP_loss_scale)];
    zf_tensor norm = zfi_global_norm(g, x, count), states[ZFI_SCALER_STATES + 1], one, all, finite;
    zf_dtype dtype = zf_tensor_dtype(norm);
    for (int k = 0; k < ZFI_SCALER_STATES; k++) states[k] = (zf_tensor){g, mark.args[k]};
    one = zf_constant(g, dtype, ZF_SCALAR, 1);
    all = zf_cast(states[0], dtype);
    if (keep) {
        zf_tensor unscaled = zfi_output(zf_div(norm, all), "grad_norm", ZFI_ROLE_NORM);
        if (max_norm > 0 && isfinite(max_norm))
            all = zf_mul(zfi_clip_divisor(unscaled, one, max_norm), all);
    }
    finite = zf_less(norm, zf_constant(g, dtype, ZF_SCALAR, INFINITY));
    all = zf_div(one, all);
    states[ZFI_SCALER_STATES] = zf_where(finite, all, zf_constant(g, dtype, ZF_SCALAR, -1));
    (void)zfi_build(ZF_OP_loss_scale_update, ZFI_SCALER_STATES + 1, states, mark.attributes);
    zf_output(states[0], "loss_scale");
    zf_output(states[4], "skipped_steps");
}

ZF_API zf_status zf_clip(zf_graph *g, double max_norm)
{
    zf_status status = zfi_enter(g, "zf_clip", ZFI_STAGE_GRADIENTS,
                                 ZFI_STAGE_CLIPPED | ZFI_STAGE_UPDATES | ZFI_STAGE_PLACED);
    int32_t *marks, *values = NULL, count, known;
    bool *drop;
    zf_tensor norm = ZF_NONE, factor = ZF_NONE;
    if (status) return status;
    if (isnan(max_norm))
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT, "zf_clip: max_norm is not a number");
    marks = zfi_gradient_nodes(g);
    count = zfi_len(marks);
    for (int32_t k = 0; k < count; k++) zfi_push(&g->memory, values, g->nodes[marks[k]].args[1]);
    known = zfi_len(g->nodes);
    drop = zfi_calloc(&g->memory, (size_t)known, sizeof *drop);
    if (drop && !g->memory.failed) {
        bool scaled = zfi_scaler_node(g, ZF_OP_loss_scale) > 0;
        g->in_update = true;
        if (scaled) zfi_unscale(g, values, count, max_norm, true);
        else norm = zfi_output(zfi_global_norm(g, values, count), "grad_norm", ZFI_ROLE_NORM);
        if (!scaled && max_norm > 0 && isfinite(max_norm) && zf_valid(norm)) {
            zf_tensor one = zf_constant(g, zf_tensor_dtype(norm), ZF_SCALAR, 1);
            factor = zf_div(one, zfi_clip_divisor(norm, one, max_norm));
            for (int32_t k = 0; k < count && !g->error.status; k++) {
                zf_tensor value = {g, values[k]};
                const zfi_node mark = g->nodes[marks[k]];
                int32_t args[3] = {mark.args[0],
                                   zf_mul(value, zf_cast(factor, zf_tensor_dtype(value))).id,
                                   mark.arg_count > 2 ? mark.args[2] : 0};
                drop[marks[k]] = true;
                zfi_append(g, &(zfi_new){.op = ZF_OP_gradient,
                                         .args = args,
                                         .arg_count = mark.arg_count});
            }
            zfi_drop_marked(g, drop, known);
        }
    } else {
        zfi_graph_nomem(g);
    }
    zfi_free(&g->memory, drop, (size_t)known * sizeof *drop);
    zfi_array_free(&g->memory, marks);
    zfi_array_free(&g->memory, values);
    return zfi_leave(g, ZFI_STAGE_CLIPPED);
}
