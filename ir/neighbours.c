/* neighbours: what a rank has of the keys of a few ranks is read by attention whose queries see no
 * others.
 *
 *     %5 = all_gather %4 {world=4 over=context dim=1 before=1} : f32[2,32,8]      8 tokens of a rank
 *     %6 = attention %1, %5, %7 {heads=4 causal=true window=9 of=32}              9 keys of a query
 *
 * So is what is scattered to a few: gradients of such keys, which are 0 elsewhere. */

/* The value of which it is another form. */
static const zfi_node *zfi_formed_of(const zf_graph *g, int32_t id)
{
    while (g->nodes[id].op == ZF_OP_reshape) id = g->nodes[id].args[0];
    return &g->nodes[id];
}

/* The queries of the node see keys of so many ranks before and after theirs at most. */
static bool zfi_sees_neighbours(const zfi_node *node, int64_t tokens, int64_t before, int64_t after)
{
    const int64_t window = ZF_INT(node, attention, window);
    return window && window - 1 <= before * tokens &&
           (ZF_INT(node, attention, causal) || window - 1 <= after * tokens);
}

/* Node `id` reads operand k, a value that is gathered of a few ranks. */
static void zfi_check_neighbour_reader(zf_graph *g, int32_t id, int32_t k)
{
    const zfi_node *node = &g->nodes[id], *x = zfi_formed_of(g, node->args[k]);
    const int32_t kv = node->op == ZF_OP_attention            ? 1
                       : node->op == ZF_OP_attention_backward ? 4
                                                              : -1;
    const int64_t tokens = x->shape.dims[ZF_INT(x, all_gather, dim)] / ZF_INT(x, all_gather, world);
    if (node->op == ZF_OP_reshape || node->op == ZF_OP_release || node->op == ZF_OP_wait) return;
    if (kv < 0 || (k != kv && k != kv + 1) ||
        !zfi_sees_neighbours(node, tokens, ZF_INT(x, all_gather, before),
                             ZF_INT(x, all_gather, after)))
        zfi_verify_fail(g, id,
                        "%%%d is gathered of %lld ranks before a rank and %lld after it: only "
                        "attention reads it, as keys or values of a window that is no longer",
                        (int)node->args[k], (long long)ZF_INT(x, all_gather, before),
                        (long long)ZF_INT(x, all_gather, after));
}

/* What is scattered by node `by` is made of gradients of keys that attention sees. */
static bool zfi_is_of_neighbours(const zf_graph *g, int32_t id, const zfi_node *by)
{
    const zfi_node *node = &g->nodes[id];
    bool near = node->arg_count > 0;
    if (node->op == ZF_OP_saved && g->nodes[node->args[0]].op == ZF_OP_attention_backward)
        return zfi_sees_neighbours(
            &g->nodes[node->args[0]], by->shape.dims[ZF_INT(by, reduce_scatter, dim)],
            ZF_INT(by, reduce_scatter, after), ZF_INT(by, reduce_scatter, before));
    if (!(g->records[node->op]->traits & ZF_OP_ELEMENTWISE) && node->op != ZF_OP_reshape &&
        node->op != ZF_OP_cast)
        return false;
    for (int32_t k = 0; k < node->arg_count; k++)
        near = near && zfi_is_of_neighbours(g, node->args[k], by);
    return near;
}

/* Checks the node's operands that are of a few ranks, and what it scatters to a few. */
static void zfi_check_neighbours(zf_graph *g, int32_t id)
{
    const zfi_node *node = &g->nodes[id];
    int32_t before, after;
    for (int32_t k = 0; k < node->arg_count; k++) {
        const zfi_node *x = zfi_formed_of(g, node->args[k]);
        if (x->op == ZF_OP_all_gather && zfi_neighbours_of(x->op, x->attributes, &before, &after))
            zfi_check_neighbour_reader(g, id, k);
    }
    if (node->op == ZF_OP_reduce_scatter &&
        zfi_neighbours_of(node->op, node->attributes, &before, &after) &&
        !zfi_is_of_neighbours(g, node->args[0], node))
        zfi_verify_fail(g, id,
                        "%%%d goes to %d ranks before a rank and %d after it: it must be a gradient "
                        "of keys or values of a window that is no longer",
                        (int)node->args[0], (int)after, (int)before);
}
