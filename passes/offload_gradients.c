/* offload, gradients: summed gradients are copied to host memory (offload.c).
 *
 *     found      the value that an update reads as its gradient, after clipping and loss scale, or
 *                that is kept for the next step's: where updates are computed in host memory, or
 *                gradients are to lie there
 *     once       with one micro-batch a gradient is complete where it is reduced, and its copy
 *                follows there; what an update on the device reads is copied back for it
 *     norms      of a gradient's blocks are computed on the device. With one micro-batch that is
 *                before its copy, so that it need not stay there until the norm is needed
 *     sums       with several micro-batches on one rank, each micro-batch's gradient is copied, and
 *                added in host memory to the sum that lies there. On several ranks the sum lies there
 *                too, and is on the device while the ranks add to it, in their order
 *
 * before:   %7 = accumulator : f32[1024]
 *           %31 = reduce_scatter %30, %7 {world=4} : f32[1024]
 * after:    %7 = accumulator : f32[1024] host
 *           %40 = copy %7 : f32[1024]     %41 = reduce_scatter %30, %40 {world=4} : f32[1024]
 *           %31 = copy %41, %7 {to=host} : f32[1024] host
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
        for (node = &g->nodes[gradient];
             node->op == ZF_OP_cast || (node->op == ZF_OP_all_gather && !node->update);
             node = &g->nodes[node->args[0]]) {}
        if (o->d.gradients != ZF_DEVICE && zfi_is_sum(node) && node->arg_count > 1)
            zfi_set_home(g, node->args[1], ZF_HOST);
    }
    for (int32_t i = 0; i < zfi_len(o->order); i++) {
        const zfi_node *node = &g->nodes[o->order[i]];
        if (node->op == ZF_OP_block_norms && o->moved[node->args[0]])
            o->norms_of[node->args[0]] = o->order[i];
    }
}

/* In place of a sum over ranks, onto an accumulator in host memory: the sum onto a copy of that on
 * the device, and a copy of it into the accumulator. */
static void zfi_sum_of_ranks(zfi_offloading *o, int32_t id)
{
    zf_graph *g = o->graph;
    const zfi_node node = g->nodes[id]; /* appending moves the nodes */
    const int32_t onto = zfi_append_copy(g, node.args[1], ZF_DEVICE);
    int32_t args[2] = {node.args[0], onto};
    if (!onto || !(args[0] = zfi_append_op(g, node.op, args, 2, node.attributes))) return;
    args[1] = node.args[1];
    zfi_append(g, &(zfi_new){.op = ZF_OP_copy,
                             .args = args,
                             .arg_count = 2,
                             .attributes = {{.i = ZF_HOST}},
                             .id = id});
}

/* Puts a node of the micro section, with its operands set. A sum whose accumulator is in host memory
 * is computed there, and so is a cast of it; ranks add to it on the device. */
static void zfi_keep_micro_node(zfi_offloading *o, int32_t id)
{
    zf_graph *g = o->graph;
    zfi_node *node = &g->nodes[id];
    if (zfi_is_sum(node) && node->arg_count > 1 && g->nodes[node->args[1]].space == ZF_HOST) {
        int32_t x;
        if (node->op == ZF_OP_dequantize_sum || ZF_INT(node, all_reduce, world) > 1) {
            zfi_sum_of_ranks(o, id);
            return;
        }
        x = zfi_append_copy(g, node->args[0], ZF_HOST);
        node = &g->nodes[id]; /* appending moves the nodes */
        node->args[0] = x;
        node->space = ZF_HOST;
    }
    if (node->op == ZF_OP_cast) node->space = g->nodes[node->args[0]].space;
    if (node->op == ZF_OP_all_gather && g->nodes[node->args[0]].space == ZF_HOST)
        node->args[0] = g->nodes[node->args[0]].args[0]; /* the sum of which that is a copy */
    zfi_keep_node(o, id);
}

/* Sums of gradients are complete on the device, where they were made. */
static bool zfi_sums_on_device(const zfi_offloading *o)
{
    return o->graph->micro_batches > 1 && o->d.gradients == ZF_DEVICE;
}

/* After a node of the micro section. */
static void zfi_offload_gradient(zfi_offloading *o, int32_t id)
{
    zf_graph *g = o->graph;
    const int32_t norms = o->norms_of[id];
    if (!o->moved[id] || zfi_sums_on_device(o)) return;
    if (norms && g->micro_batches == 1) {
        g->nodes[norms].update = false;
        zfi_keep_node(o, norms);
        o->taken[norms] = true;
    }
    g->scope = g->nodes[id].scope;
    (void)zfi_value_in(o, id, ZF_HOST);
}

/* An operand of the update section: a gradient is that in host memory, or a copy of it. */
static int32_t zfi_operand_in(zfi_offloading *o, int32_t id, zf_space space)
{
    int32_t there;
    if (space != ZF_DEVICE || !o->moved[id] || o->graph->nodes[id].space != ZF_DEVICE ||
        zfi_sums_on_device(o))
        return zfi_value_in(o, id, space);
    there = zfi_value_in(o, id, ZF_HOST);
    if (!zfi_has_copy(o, id, ZF_DEVICE))
        zfi_note_copy(o, id, ZF_DEVICE, zfi_append_copy(o->graph, there, ZF_DEVICE));
    return o->copy[id][ZF_DEVICE];
}
