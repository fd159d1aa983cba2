/* Drops: gradients of norms with dropout lose it to a node of its own, so that they can be summed over
 * sections of tokens. Dropout draws by the elements of the whole value, which a section does not
 * know on one rank.
 *
 * before:   %9  = residual_norm_grad %1, %2, %3, %4 {p=0.1 stream=3} : f32[2,8,16]
 *           %10 = saved %9 {index=0} : f32[2,8,16]     %11 = saved %9 {index=3} : f32[16]
 * after:    %9  = residual_norm_grad %1, %2, %3, %4 : f32[2,8,16]
 *           %10 = dropout %9 {p=0.1 stream=3} : f32[2,8,16]
 *           %11 = sum_to %10 {shape=[16]} : f32[16] */

/* The node is a gradient of a norm with dropout. */
static bool zfi_drops_in_sections(const zfi_node *node)
{
    return node->op == ZF_OP_residual_norm_grad && ZF_FLOAT(node, residual_norm_grad, p) > 0;
}

/* dx, under the id of `saved`, or under a new one: 0. */
static int32_t zfi_append_dropped(zf_graph *g, int32_t grad, int32_t saved)
{
    zfi_new n = {.op = ZF_OP_dropout, .args = &grad, .arg_count = 1, .id = saved};
    ZF_FLOAT(&n, dropout, p) = ZF_FLOAT(&g->nodes[grad], residual_norm_grad, p);
    ZF_INT(&n, dropout, stream) = ZF_INT(&g->nodes[grad], residual_norm_grad, stream);
    return zfi_append(g, &n);
}

/* What the gradient has saved. */
static void zfi_saved_dropped(zf_graph *g, int32_t id)
{
    const zfi_node saved = g->nodes[id];
    const int64_t index = ZF_INT(&saved, saved, index);
    int32_t dx = g->nodes[saved.args[0]].saved[ZFI_DX];
    zfi_new n = {.op = ZF_OP_sum_to, .args = &dx, .arg_count = 1, .id = id};
    if (index == ZFI_DX) zfi_append_dropped(g, saved.args[0], id);
    else if (index != ZFI_DBIAS) zfi_push(&g->memory, g->order, id);
    else {
        if (!dx || g->nodes[dx].op == ZF_OP_saved) dx = zfi_append_dropped(g, saved.args[0], 0);
        n.attributes[ZF_AT_sum_to_shape] =
            (zf_attribute)zfi_listed(saved.shape.dims, saved.shape.rank);
        if (dx) zfi_append(g, &n);
    }
}

/* Takes dropout out of all gradients of norms. */
static void zfi_set_drops_apart(zf_graph *g)
{
    int32_t *order = g->order;
    g->order = NULL;
    for (int32_t i = 0; i < zfi_len(order) && !g->error.status; i++) {
        const zfi_node *node = &g->nodes[order[i]];
        g->in_update = node->update, g->scope = node->scope;
        if (node->op == ZF_OP_saved && zfi_drops_in_sections(&g->nodes[node->args[0]]))
            zfi_saved_dropped(g, order[i]);
        else zfi_push(&g->memory, g->order, order[i]);
    }
    for (int32_t i = 0; i < zfi_len(order) && !g->error.status; i++) {
        zfi_node *node = &g->nodes[order[i]];
        if (!zfi_drops_in_sections(node)) continue;
        ZF_FLOAT(node, residual_norm_grad, p) = 0, ZF_INT(node, residual_norm_grad, stream) = 0;
        node->saved[ZFI_DX] = node->saved[ZFI_DBIAS] = 0;
    }
    zfi_array_free(&g->memory, order);
}
