/* offload, activations: values of the forward pass that the backward pass reads are in host memory
 * or on a disk between them (offload.c).
 *
 *     found      values of the forward pass on the device, of more than keep_bytes, that a node of
 *                the backward pass reads: with zf_recompute, those kept of each layer. Values
 *                that the program or the update section reads stay, and so do bounds of the rows
 *                of experts, by which these are fetched (experts.c)
 *     forward    a value is copied to the host after its last use there; from there to the disk
 *                when the next one leaves, so that the device need not wait for the first copy
 *     backward   it is copied back before its first use, and released after its last one; views of
 *                it are appended again
 *
 * before:   %4 = tanh %3     %5 = matmul %4, %2     ...     %9 = tanh_grad %8, %4
 * after:    %4 = tanh %3     %5 = matmul %4, %2     %20 = copy %4 {to=host} : f32[4,8] host     ...
 *           %21 = copy %20 : f32[4,8]     %9 = tanh_grad %8, %21     release %21
 */

enum { ZFI_SMALL_ACTIVATION = 1 << 10 }; /* bytes of the largest that stays */

/* The last position of the forward pass: where the scalar outputs of the micro section are complete
 * on this rank; -1: there are none. */
static int32_t zfi_find_turn(const zfi_offloading *o, const int32_t *position)
{
    const zf_graph *g = o->graph;
    int32_t turn = -1;
    for (int32_t i = 0; i < zfi_len(o->order) && !g->nodes[o->order[i]].update; i++) {
        const zfi_node *mark = &g->nodes[o->order[i]];
        int32_t x, sum;
        if (!zfi_marks_number(g, mark)) continue;
        x = mark->args[0];
        if ((sum = zfi_sum_after(g, x))) x = g->nodes[sum].args[0];
        while (sum && (g->nodes[x].op == ZF_OP_cast || zfi_has(g, x, ZF_OP_COLLECTIVE)))
            x = g->nodes[x].args[0]; /* of several axes, one sum after the other */
        if (position[x] > turn && !(sum && g->nodes[x].op == ZF_OP_pack)) turn = position[x];
        for (int32_t k = 0; sum && g->nodes[x].op == ZF_OP_pack && k < g->nodes[x].arg_count; k++)
            if (position[g->nodes[x].args[k]] > turn) turn = position[g->nodes[x].args[k]];
    }
    return turn;
}

/* The node reads its operands when it runs. */
static bool zfi_reads_operands(const zfi_node *node)
{
    return node->op != ZF_OP_saved && node->op != ZF_OP_gradient && node->op != ZF_OP_release;
}

/* The node computes a value of its own that can be moved from the device. What a rank sends of its
 * shard of parameters is no activation. */
static bool zfi_can_leave(const zfi_offloading *o, int32_t id)
{
    const zf_graph *g = o->graph;
    const zfi_node *node = &g->nodes[id];
    const size_t bytes = zfi_node_bytes(node);
    return zfi_bytes_of(g, id) == id && node->op != ZF_OP_copy && !zfi_quantizes(node->op) &&
           !zfi_has(g, id, ZF_OP_LEAF | ZF_OP_EFFECT | ZF_OP_COLLECTIVE | ZF_OP_MUTATES) &&
           bytes > o->d.keep_bytes && bytes > ZFI_SMALL_ACTIVATION;
}

static void zfi_find_activations(zfi_offloading *o)
{
    zf_graph *g = o->graph;
    const int32_t end = zfi_len(o->order);
    /* by node: its position; its last reader (also of its views) in the forward pass, and in all */
    int32_t *position, *early, *last;
    if (o->d.activations == ZF_DEVICE) return;
    if (!(position = zfi_calloc(&g->memory, 3 * o->nodes, sizeof *position))) return;
    early = position + o->nodes, last = position + 2 * o->nodes;
    for (int32_t i = 0; i < end; i++) early[o->order[i]] = position[o->order[i]] = i;
    o->turn = zfi_find_turn(o, position);
    for (int32_t i = 0; i < end; i++) {
        const zfi_node *node = &g->nodes[o->order[i]];
        int64_t at;
        for (int32_t k = 0; k < node->arg_count && zfi_reads_operands(node); k++) {
            const int32_t x = zfi_bytes_of(g, node->args[k]);
            if (node->op == ZF_OP_output || node->update || zfi_is_bounds(g, o->order[i], k))
                last[x] = INT32_MAX; /* it stays */
            else if (zfi_viewed(g, node, &at) == k) continue;
            else if (i <= o->turn) early[x] = i;
            else if (last[x] < i) last[x] = i;
        }
    }
    for (int32_t i = 0; i < end && !g->memory.failed; i++) {
        const int32_t id = o->order[i];
        const zfi_node *node = &g->nodes[id];
        int64_t at;
        if (node->update) break;
        if (zfi_viewed(g, node, &at) == 0 && o->fetched_of[node->args[0]] >= 0)
            o->fetched_of[id] = o->fetched_of[node->args[0]];
        if (i > o->turn || last[id] <= o->turn || last[id] == INT32_MAX || !zfi_can_leave(o, id))
            continue;
        o->fetched_of[id] = zfi_len(o->fetched);
        zfi_push(&g->memory, o->fetched,
                 ((zfi_fetched){
                     .node = id, .activation = true, .leaves = early[id], .last = last[id]}));
    }
    zfi_free(&g->memory, position, 3 * o->nodes * sizeof *position);
}

/* The activation that the node is, or of which it is a view, while it is in host memory; NULL:
 * none. */
static zfi_fetched *zfi_activation_of(zfi_offloading *o, int32_t id)
{
    zfi_fetched *f =
        (size_t)id >= o->nodes || o->fetched_of[id] < 0 ? NULL : &o->fetched[o->fetched_of[id]];
    return f && f->activation ? f : NULL;
}

/* Copies to the disk the last value that has left the device. */
static void zfi_store_activation(zfi_offloading *o)
{
    zfi_fetched *f = o->left < 0 ? NULL : &o->fetched[o->left];
    const char *scope = o->graph->scope;
    o->left = -1;
    if (!f) return;
    o->graph->scope = o->graph->nodes[f->node].scope;
    f->from = zfi_append_copy(o->graph, f->from, ZF_DISK);
    o->graph->scope = scope;
}

/* After the node at `position` of the forward pass: copies to the host values that this pass does
 * not read any more. */
static void zfi_send_activations(zfi_offloading *o, int32_t position)
{
    zf_graph *g = o->graph;
    const int32_t id = o->order[position], count = g->nodes[id].arg_count;
    for (int32_t k = -1; k < count && position <= o->turn && !g->error.status; k++) {
        zfi_fetched *f = zfi_activation_of(o, k < 0 ? id : g->nodes[id].args[k]);
        if (!f || f->leaves != position || f->from) continue;
        zfi_store_activation(o);
        f->from = zfi_append_copy(g, f->node, ZF_HOST);
        if (o->d.activations == ZF_DISK) o->left = (int32_t)(f - o->fetched);
    }
}

/* Before the node at `position` of the backward pass: copies back the values that it reads. */
static void zfi_fetch_activations(zfi_offloading *o, int32_t position)
{
    zf_graph *g = o->graph;
    const int32_t id = o->order[position];
    if (position <= o->turn || !zfi_reads_operands(&g->nodes[id])) return;
    for (int32_t k = 0; k < g->nodes[id].arg_count && !g->error.status; k++) {
        zfi_fetched *f = zfi_activation_of(o, g->nodes[id].args[k]);
        int32_t from;
        if (!f || f->here) continue;
        zfi_store_activation(o);
        from = f->from;
        if (g->nodes[from].space == ZF_DISK) from = zfi_append_copy(g, from, ZF_HOST);
        f->here = zfi_append_copy(g, from, ZF_DEVICE);
    }
}

/* After it: releases values that nothing reads any more. */
static void zfi_drop_activations(zfi_offloading *o, int32_t position, const int32_t *read,
                                 int32_t count)
{
    zf_graph *g = o->graph;
    for (int32_t k = 0; k < count && position > o->turn && !g->error.status; k++) {
        zfi_fetched *f = zfi_activation_of(o, read[k]);
        if (!f || !f->here || f->last != position) continue;
        zfi_append_nodes(g, release, NULL, f->here);
        f->here = 0;
    }
}
