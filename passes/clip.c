/* clip: scales all gradients so that their global norm is at most max_norm.
 *
 * requires: gradients; no optimizer yet
 * ensures:  an output "grad_norm", the norm before scaling
 * before:   gradient %2, %9
 * after:    update:
 *           %20 = square_sums %9      %21 = total %20, ... : f32[]      %22 = sqrt %21
 *           %28 = mul %9, %27         gradient %2, %28
 *
 * Source: Pascanu et al. 2013; the rule g / max(1, (norm + 1e-6) / max_norm) is the one that all
 * ZeRO stages share. The norm is a sum over blocks of 1024 elements in index order, so cutting a
 * tensor at such a block cannot change it.
 */

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

/* sqrt of the sum of squares of all of x[0..count): f32, f64 if one of them is. */
static zf_tensor zfi_global_norm(zf_graph *g, const int32_t *x, int32_t count)
{
    zf_tensor *sums = zfi_calloc(&g->memory, (size_t)count, sizeof *sums), norm = {g, 0};
    zf_dtype dtype = ZF_F32;
    if (!sums) return zfi_graph_nomem(g), norm;
    for (int32_t k = 0; k < count; k++)
        if (g->nodes[x[k]].dtype == ZF_F64) dtype = ZF_F64;
    for (int32_t k = 0; k < count; k++)
        sums[k] = zf_cast(zfi_op(square_sums, NULL, ((zf_tensor){g, x[k]})), dtype);
    norm = zf_sqrt(zfi_build(ZF_OP_total, count, sums, NULL));
    zfi_free(&g->memory, sums, (size_t)count * sizeof *sums);
    return norm;
}

ZF_API zf_status zf_clip(zf_graph *g, double max_norm)
{
    zf_status status = zfi_enter(g, "zf_clip", ZFI_STAGE_GRADIENTS,
                                 ZFI_STAGE_CLIPPED | ZFI_STAGE_UPDATES | ZFI_STAGE_PLACED);
    int32_t *marks, *values = NULL, count, known;
    bool *drop;
    zf_tensor norm, factor = ZF_NONE;
    if (status) return status;
    if (isnan(max_norm))
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT, "zf_clip: max_norm is not a number");
    marks = zfi_gradient_nodes(g);
    count = zfi_len(marks);
    for (int32_t k = 0; k < count; k++) zfi_push(&g->memory, values, g->nodes[marks[k]].args[1]);
    known = zfi_len(g->nodes);
    drop = zfi_calloc(&g->memory, (size_t)known, sizeof *drop);
    if (drop && !g->memory.failed) {
        g->in_update = true;
        norm = zf_output(zfi_global_norm(g, values, count), "grad_norm");
        if (max_norm > 0 && isfinite(max_norm) && zf_valid(norm)) {
            zf_dtype dtype = zf_tensor_dtype(norm);
            zf_tensor one = zf_constant(g, dtype, ZF_SCALAR, 1),
                      tiny = zf_constant(g, dtype, ZF_SCALAR, 1e-6);
            factor = zf_div(one, zf_maximum(zf_scale(zf_add(norm, tiny), 1 / max_norm), one));
            for (int32_t k = 0; k < count && !g->error.status; k++) {
                zf_tensor value = {g, values[k]};
                int32_t pair[2] = {g->nodes[marks[k]].args[0],
                                   zf_mul(value, zf_cast(factor, zf_tensor_dtype(value))).id};
                drop[marks[k]] = true;
                zfi_append(g, &(zfi_new){.op = ZF_OP_gradient, .args = pair, .arg_count = 2});
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
