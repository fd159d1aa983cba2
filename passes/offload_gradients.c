/* offload, gradients: gradients that updates read in host memory are copied there (offload.c).
 *
 *     found      the value that an update reads as its gradient, after clipping and loss scale
 *     micro      with one micro-batch a gradient is complete where it is reduced, and its copy
 *                follows there; with several, the copy is before the updates
 */

static void zfi_find_moved(zfi_offloading *o)
{
    const zf_graph *g = o->graph;
    if (o->d.optimizer == ZF_DEVICE) return;
    for (int32_t i = 0; i < zfi_len(o->order); i++) {
        const zfi_node *node = &g->nodes[o->order[i]];
        int32_t gradient;
        if (!zfi_has(g, o->order[i], ZF_OP_UPDATE)) continue;
        gradient = zfi_raw_gradient(g, node->args[1]);
        if (!zfi_has(g, gradient, ZF_OP_LEAF)) o->moved[gradient] = true;
    }
}

/* After a node of the micro section. */
static void zfi_offload_gradient(zfi_offloading *o, int32_t id)
{
    zf_graph *g = o->graph;
    if (!o->moved[id] || g->micro_batches > 1) return;
    g->scope = g->nodes[id].scope;
    (void)zfi_value_in(o, id, ZF_HOST);
}
