/* offload, gradients: summed gradients are copied to host memory (offload.c).
 *
 *     found      the value that an update reads as its gradient, after clipping and loss scale, or
 *                that is kept for the next step's: where updates are computed in host memory, or
 *                gradients are to lie there
 *     once       with one micro-batch a gradient is complete where it is reduced, and its copy
 *                follows there; what an update on the device reads is copied back for it
 *     sums       with several micro-batches on one rank, each micro-batch's gradient is copied, and
 *                added in host memory to the sum that lies there. On several ranks the sum stays on
 *                the device, where ranks add to it, and its copy is before the updates
 */

static void zfi_find_moved(zfi_offloading *o)
{
    zf_graph *g = o->graph;
    if (o->d.optimizer == ZF_DEVICE && o->d.gradients == ZF_DEVICE) return;
    for (int32_t i = 0; i < zfi_len(o->order); i++) {
        const zfi_node *node = &g->nodes[o->order[i]];
        int32_t gradient;
        if (!zfi_has(g, o->order[i], ZF_OP_UPDATE) && node->op != ZF_OP_delay) continue;
        gradient = zfi_raw_gradient(g, node->args[1]);
        if (!zfi_has(g, gradient, ZF_OP_LEAF)) o->moved[gradient] = true;
        while (g->nodes[gradient].op == ZF_OP_cast) gradient = g->nodes[gradient].args[0];
        node = &g->nodes[gradient];
        if (o->d.gradients != ZF_DEVICE && zfi_reduces(node->op) && node->arg_count > 1 &&
            ZF_INT(node, all_reduce, world) <= 1)
            zfi_set_home(g, node->args[1], ZF_HOST);
    }
}

/* Before a node of the micro section: a sum whose accumulator is in host memory is computed there,
 * and so is a cast of it. */
static void zfi_sum_on_host(zfi_offloading *o, int32_t id)
{
    zf_graph *g = o->graph;
    zfi_node *node = &g->nodes[id];
    if (zfi_reduces(node->op) && node->arg_count > 1 &&
        g->nodes[node->args[1]].space == ZF_HOST) {
        const int32_t x = zfi_append_copy(g, node->args[0], ZF_HOST);
        node = &g->nodes[id]; /* appending moves the nodes */
        node->args[0] = x;
        node->space = ZF_HOST;
    }
    if (node->op == ZF_OP_cast) node->space = g->nodes[node->args[0]].space;
}

/* After a node of the micro section. */
static void zfi_offload_gradient(zfi_offloading *o, int32_t id)
{
    zf_graph *g = o->graph;
    if (!o->moved[id] || g->micro_batches > 1) return;
    g->scope = g->nodes[id].scope;
    (void)zfi_value_in(o, id, ZF_HOST);
}

/* An operand of the update section: a gradient is that in host memory, or a copy of it. */
static int32_t zfi_operand_in(zfi_offloading *o, int32_t id, zf_space space)
{
    int32_t there;
    if (space != ZF_DEVICE || !o->moved[id] || o->graph->nodes[id].space != ZF_DEVICE)
        return zfi_value_in(o, id, space);
    there = zfi_value_in(o, id, ZF_HOST);
    if (!zfi_has_copy(o, id, ZF_DEVICE))
        zfi_note_copy(o, id, ZF_DEVICE, zfi_append_copy(o->graph, there, ZF_DEVICE));
    return o->copy[id][ZF_DEVICE];
}
