/* Drops: dropout within a norm becomes a node of its own, which draws the masks of its part of a
 * value. The gradient of such a norm sums over tokens, in sections that are no parts on one rank,
 * and dropout draws by the elements of the whole value.
 *
 * before:   %5 = residual_norm %1, %2, %3, %4 {p=0.1 stream=3}
 *           %9 = residual_norm_grad %8, %6, %7, %3 {p=0.1 stream=3}
 *           %10 = saved %9 {index=0}    %11 = saved %9 {index=3}
 * after:    %12 = dropout %1 {p=0.1 stream=3}    %5 = residual_norm %12, %2, %3, %4
 *           %9 = residual_norm_grad %8, %6, %7, %3    %13 = dropout %9 {p=0.1 stream=3}
 *           %11 = sum_to %13 {shape=[8]}
 *
 * zf_cut sets both apart, zf_context gradients alone. */

/* The node is a norm with dropout, or its gradient. */
static bool zfi_norm_drops(const zfi_node *node)
{
    return (node->op == ZF_OP_residual_norm || node->op == ZF_OP_residual_norm_grad) &&
           ZF_FLOAT(node, residual_norm, p) > 0;
}

static int32_t zfi_append_drop(zf_graph *g, int32_t norm, int32_t x)
{
    const zfi_node node = g->nodes[norm]; /* appending moves the nodes */
    return zfi_append_op(g, ZF_OP_dropout, &x, 1,
                         zfi_with(ZF_ATTRIBUTE(&node, residual_norm, p),
                                  ZF_ATTRIBUTE(&node, residual_norm, stream)));
}

/* What comes before the norm: bias and dropout. */
static void zfi_drop_before(zf_graph *g, int32_t id)
{
    const zfi_node node = g->nodes[id];
    const int32_t bias = zfi_norm_bias_at(ZF_INT(&node, residual_norm, form));
    int32_t x = node.args[0];
    g->scope = g->nodes[x].scope;
    if (node.arg_count > bias) x = zfi_append_nodes(g, add, NULL, x, node.args[bias]);
    if (x) x = zfi_append_drop(g, id, x);
    if (!x) return;
    g->nodes[id].args[0] = x;
    if (node.arg_count > bias) g->nodes[id].arg_count--;
    zfi_push(&g->memory, g->order, id);
}

/* The scope of what the norm of a gradient adds to its residual: its own where it is not known. */
static const char *zfi_dropped_scope(const zf_graph *g, const zfi_node *grad)
{
    const zfi_node *xhat = &g->nodes[grad->args[1]];
    const zfi_node *norm = xhat->op == ZF_OP_saved ? &g->nodes[xhat->args[0]] : grad;
    return norm->op == ZF_OP_residual_norm ? g->nodes[norm->args[0]].scope : grad->scope;
}

/* The gradients before dropout, and of the bias. */
static void zfi_drop_after(zf_graph *g, int32_t id)
{
    const zfi_node node = g->nodes[id];
    const int64_t wide = zfi_last(&node.shape);
    int32_t dx;
    zfi_push(&g->memory, g->order, id);
    g->scope = zfi_dropped_scope(g, &node);
    dx = node.saved[ZFI_DX] || node.saved[ZFI_DBIAS] ? zfi_append_drop(g, id, id) : 0;
    if (dx && node.saved[ZFI_DX]) zfi_replace(g, node.saved[ZFI_DX], dx);
    if (dx && node.saved[ZFI_DBIAS])
        zfi_replace(g, node.saved[ZFI_DBIAS],
                    zfi_append_nodes(g, sum_to, zfi_with(zfi_listed(&wide, 1)), dx));
    g->nodes[id].saved[ZFI_DX] = g->nodes[id].saved[ZFI_DBIAS] = 0;
}

/* Sets dropout of gradients of norms apart; with `forward`, that of norms too. */
static void zfi_set_drops_apart(zf_graph *g, bool forward)
{
    int32_t *order = g->order;
    g->order = NULL;
    for (int32_t i = 0; i < zfi_len(order) && !g->error.status && !g->memory.failed; i++) {
        zfi_node *node = &g->nodes[order[i]];
        const bool norm = node->op == ZF_OP_residual_norm,
                   drops = zfi_norm_drops(node) && (forward || !norm);
        if (node->op == ZF_OP_none) continue; /* what a gradient has saved */
        for (int32_t k = 0; k < node->arg_count; k++) node->args[k] = zfi_resolve(g, node->args[k]);
        g->in_update = node->update, g->scope = node->scope;
        if (!drops) zfi_push(&g->memory, g->order, order[i]);
        else if (norm) zfi_drop_before(g, order[i]);
        else zfi_drop_after(g, order[i]);
        if (!drops) continue;
        ZF_FLOAT(&g->nodes[order[i]], residual_norm, p) = 0;
        ZF_INT(&g->nodes[order[i]], residual_norm, stream) = 0;
    }
    zfi_array_free(&g->memory, order);
}
