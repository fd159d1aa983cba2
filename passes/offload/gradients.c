/* offload, gradients: summed gradients are copied to host memory, or by way of it to a disk
 * (offload.c).
 *
 *     found      the value that an update reads as its gradient, after clipping and loss scale, or
 *                that is kept for the next step's: where updates are computed in host memory, or
 *                gradients are to lie there
 *     once       with one micro-batch a gradient is complete where it is reduced, and its copy
 *                follows there; what an update on the device reads is copied back for it
 *     norms      of a gradient's blocks are computed on the device. With one micro-batch that is
 *                before its copy, so that it need not stay there until the norm is needed. With a
 *                disk norms are always computed where the sum is, so that it need not be read for
 *                them
 *     sums       with several micro-batches on one rank, each micro-batch's gradient is copied, and
 *                added in host memory to the sum that lies there. On several ranks the sum lies there
 *                too, and is on the device while the ranks add to it, in their order
 *     disk       a sum over micro-batches lies there, and is in host memory while the next one is
 *                added; what the first one reads has no meaning, and is not read (ops/copy.c).
 *                Other gradients are written when the next one has left the device, so that this
 *                need not wait for the copy. Each reader in the update section reads for itself, in
 *                pieces if it updates
 *
 * before:   %7 = accumulator : f32[1024]
 *           %31 = reduce_scatter %30, %7 {world=4} : f32[1024]
 * after:    %7 = accumulator : f32[1024] host
 *           %40 = copy %7 : f32[1024]     %41 = reduce_scatter %30, %40 {world=4} : f32[1024]
 *           %31 = copy %41, %7 {to=host} : f32[1024] host
 * disk:     %7 = accumulator : f32[1024] disk
 *           %39 = copy %7 {to=host} : f32[1024] host
 *           %40 = copy %39 : f32[1024]    %41 = reduce_scatter %30, %40 {world=4} : f32[1024]
 *           %42 = copy %41, %39 {to=host} : f32[1024] host
 *           %31 = copy %42, %7 {to=disk} : f32[1024] disk
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
             node = &g->nodes[node->args[0]]) {
        }
        if (o->d.gradients != ZF_DEVICE && zfi_is_sum(node) && node->arg_count > 1)
            zfi_set_home(g, node->args[1], o->d.gradients);
    }
    for (int32_t i = 0; i < zfi_len(o->order); i++) {
        const zfi_node *node = &g->nodes[o->order[i]];
        if (node->op == ZF_OP_block_norms && o->moved[node->args[0]])
            o->norms_of[node->args[0]] = o->order[i];
    }
}

/* Accumulators on a disk come first, so that they can be read ahead of their sums. */
static void zfi_keep_sums(zfi_offloading *o)
{
    const zf_graph *g = o->graph;
    for (int32_t i = 0; i < zfi_len(o->order); i++)
        if (zfi_is_sum_on_disk(g, o->order[i])) zfi_keep_node(o, o->order[i]);
}

/* The accumulator in the space, for a sum onto it: itself or a copy, by way of host memory. */
static int32_t zfi_bring_sum(zfi_offloading *o, int32_t leaf, zf_space space)
{
    int32_t x = leaf;
    if (o->graph->nodes[leaf].space == ZF_DISK) x = zfi_append_copy(o->graph, x, ZF_HOST);
    return x && space != ZF_HOST ? zfi_append_copy(o->graph, x, space) : x;
}

/* The copy of `sum`, made onto `onto`, into what that is a copy of: a new node, or `id`. */
static int32_t zfi_return_sum(zfi_offloading *o, int32_t sum, int32_t onto, int32_t id)
{
    zf_graph *g = o->graph;
    const int32_t into = onto ? g->nodes[onto].args[0] : 0, args[2] = {sum, into};
    if (!sum || !into) return 0;
    return zfi_append(g, &(zfi_new){.op = ZF_OP_copy,
                                    .args = args,
                                    .arg_count = 2,
                                    .attributes = {{.i = g->nodes[into].space}},
                                    .id = id});
}

/* In place of a sum onto an accumulator in host memory or on a disk: the sum onto a copy of that,
 * and a copy of it into the accumulator. It is made in host memory, but ranks add on the device. */
static void zfi_offload_sum(zfi_offloading *o, int32_t id)
{
    zf_graph *g = o->graph;
    const zfi_node node = g->nodes[id]; /* appending moves the nodes */
    const bool ranks = node.op == ZF_OP_dequantize_sum || ZF_INT(&node, all_reduce, world) > 1;
    const int32_t leaf = node.args[1];
    int32_t sum, onto, args[2];
    onto = args[1] = zfi_bring_sum(o, leaf, ranks ? ZF_DEVICE : ZF_HOST);
    args[0] = ranks ? node.args[0] : zfi_append_copy(g, node.args[0], ZF_HOST);
    if (!args[0] || !args[1]) return;
    if (onto == leaf) { /* computed where it lies */
        g->nodes[id].args[0] = args[0];
        g->nodes[id].space = ZF_HOST;
        zfi_keep_node(o, id);
        return;
    }
    sum = zfi_append_op(g, node.op, args, 2, node.attributes);
    if (g->nodes[onto].args[0] != leaf) {
        sum = zfi_return_sum(o, sum, onto, 0);
        onto = g->nodes[onto].args[0];
    }
    zfi_return_sum(o, sum, onto, id);
}

/* A sum that was copied into an accumulator elsewhere; itself where it is none. */
static int32_t zfi_sum_before(const zf_graph *g, int32_t id, zf_space space)
{
    while (g->nodes[id].op == ZF_OP_copy && g->nodes[id].arg_count > 1 &&
           (zf_space)g->nodes[id].space != space)
        id = g->nodes[id].args[0];
    return id;
}

/* Puts a node of the micro section, with its operands set. A cast of a sum in host memory is
 * computed there. */
static void zfi_keep_micro_node(zfi_offloading *o, int32_t id)
{
    zf_graph *g = o->graph;
    zfi_node *node = &g->nodes[id];
    if (zfi_is_sum(node) && node->arg_count > 1 && g->nodes[node->args[1]].space != ZF_DEVICE) {
        zfi_offload_sum(o, id);
        return;
    }
    if (node->op == ZF_OP_cast) {
        if (g->nodes[node->args[0]].space == ZF_DISK)
            node->args[0] = zfi_sum_before(g, node->args[0], ZF_HOST);
        node->space = g->nodes[node->args[0]].space;
    }
    if (node->op == ZF_OP_all_gather) node->args[0] = zfi_sum_before(g, node->args[0], ZF_DEVICE);
    zfi_keep_node(o, id);
}

/* Sums of gradients are complete on the device, where they were made. */
static bool zfi_sums_on_device(const zfi_offloading *o)
{
    return o->graph->micro_batches > 1 && o->d.gradients == ZF_DEVICE;
}

/* Copies to the disk the last gradient that has left the device. */
static void zfi_store_gradient(zfi_offloading *o)
{
    zf_graph *g = o->graph;
    const int32_t id = o->left_gradient;
    o->left_gradient = 0;
    if (!id) return;
    g->scope = g->nodes[id].scope;
    (void)zfi_value_in(o, id, ZF_DISK);
}

/* After a node of the micro section. */
static void zfi_offload_gradient(zfi_offloading *o, int32_t id)
{
    zf_graph *g = o->graph;
    const int32_t norms = o->norms_of[id];
    const bool disk = o->d.gradients == ZF_DISK;
    if (!o->moved[id] || zfi_sums_on_device(o)) return;
    if (norms && (disk || g->micro_batches == 1)) {
        const int32_t x = g->nodes[id].space == ZF_DISK ? zfi_sum_before(g, id, ZF_DEVICE) : id;
        g->nodes[norms].args[0] = x;
        g->nodes[norms].space = g->nodes[x].space;
        g->nodes[norms].update = false;
        g->nodes[norms].task = g->nodes[x].task, g->nodes[norms].stage = g->nodes[x].stage;
        zfi_keep_node(o, norms);
        o->taken[norms] = true;
    }
    g->scope = g->nodes[id].scope;
    if (g->nodes[id].space == ZF_DISK) return;
    (void)zfi_value_in(o, id, ZF_HOST);
    if (!disk) return;
    zfi_store_gradient(o);
    o->left_gradient = id;
}

/* The gradient as it lies on the disk; 0: it lies elsewhere. */
static int32_t zfi_stored_gradient(const zfi_offloading *o, int32_t id)
{
    if ((size_t)id >= o->nodes || !o->moved[id]) return 0;
    return o->graph->nodes[id].space == ZF_DISK ? id : o->copy[id][ZF_DISK];
}

/* An operand of the update section: a gradient is that in host memory, or a copy of it; one on the
 * disk is read for each reader. */
static int32_t zfi_operand_in(zfi_offloading *o, int32_t id, zf_space space)
{
    const int32_t stored = zfi_stored_gradient(o, id);
    int32_t there;
    if (stored) {
        there = zfi_append_copy(o->graph, stored, ZF_HOST);
        return space == ZF_HOST || !there ? there : zfi_append_copy(o->graph, there, space);
    }
    if (space != ZF_DEVICE || !o->moved[id] || o->graph->nodes[id].space != ZF_DEVICE ||
        zfi_sums_on_device(o))
        return zfi_value_in(o, id, space);
    there = zfi_value_in(o, id, ZF_HOST);
    if (!zfi_has_copy(o, id, ZF_DEVICE))
        zfi_note_copy(o, id, ZF_DEVICE, zfi_append_copy(o->graph, there, ZF_DEVICE));
    return o->copy[id][ZF_DEVICE];
}
