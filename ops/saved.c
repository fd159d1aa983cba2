/* saved: a second result of a node, for its gradient.
 *
 *     %9  = linear %1, %2, %3 {activation=gelu} : f32[4,32]
 *     %12 = saved %9 {index=0} : f32[4,32]       x w^T + b, of which %9 is the gelu
 *
 * Its operand computes the value, and only where a saved node exists: a forward pass alone has
 * none. The value has its own memory, from the operand's turn to its last use. The saved node
 * itself takes no time. The file of each operator says which values it can save. */

/* Dtype and shape of saved value `index` of a node; false: it has no such value. */
static bool zfi_saved_type(const zf_graph *g, const zfi_node *node, int64_t index, zf_dtype *dtype,
                           zf_shape *shape)
{
    const zfi_record *record = g->records[node->op];
    return index >= 0 && index < ZF_MAX_SAVED && record->saved &&
           record->saved(g, node, index, dtype, shape);
}

/* The node whose result this node recomputes, from the operands `alike` and the values that the
 * other node saved; 0: none. */
static int32_t zfi_remade_of(const zf_graph *g, const zfi_node *node, bool alike)
{
    const zfi_node *left = &g->nodes[node->arg_count ? node->args[0] : 0], *of;
    if (left->op != ZF_OP_saved || ZF_INT(left, saved, index)) return 0;
    of = &g->nodes[left->args[0]];
    if (!g->records[of->op]->remade || !g->records[of->op]->remade(g, of, node, alike)) return 0;
    return left->args[0];
}

static zf_status zfi_infer_saved(zfi_infer *c)
{
    int64_t index = ZF_INT(c, saved, index);
    if (zfi_saved_type(c->graph, c->args[0], index, &c->dtype, &c->shape)) return ZF_OK;
    return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "%s leaves nothing under index %lld",
                          c->graph->records[c->args[0]->op]->name, (long long)index);
}

/* ------------------------------------------------------------------------------- records */

ZFI_OPERATOR(saved, .infer = zfi_infer_saved, .parts = ZFI_PARTS_SAVED)
