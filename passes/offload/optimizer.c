/* offload, the optimizer: states lie in host memory or on the disk, and the update section is
 * computed where its operands lie (offload.c).
 *
 *     found      states that updates write, master weights, and the count of steps. Gradients of
 *                the step before (delay.c) lie in host memory
 *     update     updates run in host memory, and so do nodes that read a value there; a copy that
 *                they have written is then copied back
 */

/* The node sets an average, which lies where master weights do. */
static bool zfi_sets_average(const zf_graph *g, const zfi_node *node)
{
    const zfi_node *state = &g->nodes[node->args[0]];
    if (node->op != ZF_OP_assign) return false;
    if (state->op == ZF_OP_bucket) state = &g->nodes[state->args[0]];
    return state->op == ZF_OP_state && state->role == ZFI_ROLE_AVERAGE;
}

/* Finds the states of updates, and averages. */
static void zfi_find_states(zfi_offloading *o)
{
    zf_graph *g = o->graph;
    if (o->d.optimizer == ZF_DEVICE) return;
    for (int32_t i = 0; i < zfi_len(o->order); i++) {
        const zfi_node *node = &g->nodes[o->order[i]];
        if (node->arg_count && zfi_sets_average(g, node))
            zfi_set_home(g, node->args[0], o->d.optimizer);
        if (!zfi_has(g, o->order[i], ZF_OP_UPDATE)) continue;
        for (int32_t k = 1; k < node->arg_count; k++)
            if ((zfi_written_args(g, node) >> (k < 31 ? k : 31) & 1) ||
                k == zfi_master_arg(g, node))
                zfi_set_home(g, node->args[k], o->d.optimizer);
        if (zfi_has(g, node->args[1], ZF_OP_LEAF)) zfi_set_home(g, node->args[1], ZF_HOST);
    }
}

/* Finds states that only updates, and the nodes that advance them, read: their counts. */
static void zfi_find_counts(zfi_offloading *o)
{
    enum { BY_UPDATE = 1, ELSEWHERE = 2 };
    zf_graph *g = o->graph;
    uint8_t *read = zfi_calloc(&g->memory, o->nodes, sizeof *read);
    for (int32_t i = 0; i < zfi_len(o->order) && read; i++) {
        const zfi_node *node = &g->nodes[o->order[i]];
        for (int32_t k = 0; k < node->arg_count; k++)
            if (zfi_has(g, o->order[i], ZF_OP_UPDATE)) read[node->args[k]] |= BY_UPDATE;
            else if (!(zfi_written_args(g, node) >> (k < 31 ? k : 31) & 1))
                read[node->args[k]] |= ELSEWHERE;
    }
    for (int32_t i = 0; i < zfi_len(o->order) && read; i++)
        if (g->nodes[o->order[i]].op == ZF_OP_state && read[o->order[i]] == BY_UPDATE &&
            o->d.optimizer != ZF_DEVICE)
            zfi_set_home(g, o->order[i], ZF_HOST);
    zfi_free(&g->memory, read, o->nodes * sizeof *read);
}

/* The space in which a node of the update section is computed. */
static zf_space zfi_space_of_update(const zfi_offloading *o, int32_t id)
{
    const zf_graph *g = o->graph;
    const zfi_node *node = &g->nodes[id];
    const uint32_t written = zfi_written_args(g, node);
    zf_space space = ZF_DEVICE;
    if (zfi_has(g, id, ZF_OP_UPDATE)) return o->d.optimizer == ZF_DEVICE ? ZF_DEVICE : ZF_HOST;
    if (zfi_has(g, id, ZF_OP_COLLECTIVE)) return ZF_DEVICE;
    if (node->op == ZF_OP_block_norms && o->norms_of[node->args[0]])
        return (zf_space)g->nodes[node->args[0]].space;
    for (int32_t k = 0; k < node->arg_count && k < 31; k++)
        if (written >> k & 1)
            return g->nodes[node->args[k]].space == ZF_DEVICE ? ZF_DEVICE : ZF_HOST;
    for (int32_t k = 0; k < node->arg_count; k++)
        if (g->nodes[node->args[k]].space != ZF_DEVICE || o->moved[node->args[k]]) space = ZF_HOST;
    return space;
}

/* Copies back the copies in a space that the node has written. */
static void zfi_copy_back(zfi_offloading *o, int32_t id, zf_space space, const int32_t *before)
{
    zf_graph *g = o->graph;
    const uint32_t written = zfi_written_args(g, &g->nodes[id]);
    const int32_t count = g->nodes[id].arg_count;
    for (int32_t k = 0; k < count && k < 31 && !g->error.status; k++) {
        if (!(written >> k & 1)) continue;
        o->version[zfi_bytes_of(g, before[k])]++;
        if (g->nodes[id].args[k] != before[k]) zfi_bring_back(o, before[k], space);
    }
}

/* Puts a node of the update section, with operands in the space where it is computed. */
static void zfi_offload_update(zfi_offloading *o, int32_t id)
{
    zf_graph *g = o->graph;
    zf_space space;
    int32_t before[31] = {0};
    const int32_t count = g->nodes[id].arg_count;
    if (!zfi_record_of(g, id)->cpu) { /* leaves and marks */
        if (zfi_has(g, id, ZF_OP_EFFECT)) g->nodes[id].space = g->nodes[g->nodes[id].args[0]].space;
        if (g->nodes[id].op == ZF_OP_gradient && o->moved[g->nodes[id].args[1]]) {
            const int32_t x = g->nodes[id].args[1], stored = zfi_stored_gradient(o, x),
                          there = stored ? stored : zfi_value_in(o, x, ZF_HOST);
            g->nodes[id].args[1] = there;
        }
        zfi_keep_node(o, id);
        return;
    }
    space = zfi_space_of_update(o, id);
    g->scope = g->nodes[id].scope;
    for (int32_t k = 0; k < count && !g->error.status; k++) {
        const int32_t x = g->nodes[id].args[k], there = zfi_operand_in(o, x, space);
        if (k < ZFI_COUNT(before)) before[k] = x;
        g->nodes[id].args[k] = there;
    }
    g->nodes[id].space = (uint8_t)space;
    zfi_keep_node(o, id);
    zfi_copy_back(o, id, space, before);
}
