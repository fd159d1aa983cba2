/* prefetch, updates: puts the update section, during the backward pass where early.c allows it
 * (prefetch.c).
 *
 *     ahead       copies to the host are issued in the order of updates, as far as their budget
 *                 allows
 *     due         an update is put when its gradient has arrived: a copy of it to the host when it
 *                 has had twice its time, by the cost table; a reduction, or a slower copy, when the
 *                 next gradient is complete
 *     spread      an update of which the disk has not given the states, by the cost table, comes
 *                 later: while gradients of the next buckets are computed, its bucket's states are
 *                 read piece by piece
 *
 *     compute     gradient A | gradient B |  A0  | gradient C, A1 | gradient C, A2 |  B0  | ...
 *     reads       A0 | A1    .            | A2   | A3             |
 */

/* The node is the summed gradient of a bucket, or its copy to the host. */
static bool zfi_completes_gradient(const zf_graph *g, int32_t id)
{
    const zfi_node *node = &g->nodes[id];
    return !node->update && (node->queue == ZFI_QUEUE_REDUCE ||
                             (node->op == ZF_OP_copy && node->space == ZF_HOST &&
                              g->nodes[node->args[0]].space == ZF_DEVICE &&
                              !zfi_has(g, zfi_bytes_of(g, node->args[0]), ZF_OP_LEAF)));
}

/* The value is a copy to the host that has had twice its time, by the cost table. */
static bool zfi_has_arrived(const zfi_prefetch *p, int32_t id)
{
    const zfi_node *node = &p->graph->nodes[id];
    return node->op == ZF_OP_copy && node->space == ZF_HOST && p->pending[id] == id &&
           p->ready[id] + zfi_seconds_of(p->graph, &p->cost, id) <= p->now + p->late;
}

/* The operands of a node of the update section are there; or they are in flight and have arrived by
 * the cost table, or were in flight until the next gradient was complete; or they are from the
 * update section itself. */
static bool zfi_is_due(const zfi_prefetch *p, int32_t id, bool last)
{
    const zf_graph *g = p->graph;
    const zfi_node *node = &g->nodes[id];
    for (int32_t k = 0; k < node->arg_count; k++) {
        const int32_t x = node->args[k];
        if (g->nodes[x].update) continue;
        if (!p->born[x]) return false;
        if (!last && p->pending[x] && p->born[x] >= p->complete && !zfi_has_arrived(p, x))
            return false;
    }
    return true;
}

/* Puts a node that is due, unless it was issued early. */
static void zfi_put_one_due(zfi_prefetch *p, const zfi_due *due)
{
    const zf_graph *g = p->graph;
    if (p->born[due->node]) return;
    if (p->updates.early[due->node])
        p->ahead[zfi_queue_of(p, due->node)] += (int64_t)zfi_node_bytes(&g->nodes[due->node]);
    zfi_put(p, due->node);
}

/* Puts the operand of an early copy, if it is a leaf or a piece of one; false: it is not there
 * yet. */
static bool zfi_put_source(zfi_prefetch *p, int32_t id)
{
    const zf_graph *g = p->graph;
    const int32_t of = g->nodes[id].op == ZF_OP_piece ? g->nodes[id].args[0] : 0;
    if (p->born[id]) return true;
    if (of && !p->born[of] && zfi_has(g, of, ZF_OP_LEAF)) zfi_put_source(p, of);
    for (int32_t k = 0; k < g->nodes[id].arg_count; k++)
        if (!p->born[g->nodes[id].args[k]]) return false;
    if (!of && !zfi_has(g, id, ZF_OP_LEAF)) return false;
    zfi_put(p, id);
    return true;
}

/* The maximum of bytes of early copies on a queue. After the last fetch from the disk they have
 * its share too. */
static int64_t zfi_early_budget(const zfi_prefetch *p, uint8_t queue)
{
    const int64_t most = (int64_t)zfi_budget_of(p, queue);
    if (queue != ZFI_QUEUE_READ) return most;
    if (p->issued[ZFI_READS] < zfi_len(p->aheads[ZFI_READS])) return most;
    return most + zfi_max(most - p->fetched, 0);
}

/* The value is of a gradient that has not been written to the disk so far. */
static bool zfi_is_under_way(const zfi_prefetch *p, int32_t id)
{
    const zf_graph *g = p->graph;
    const int32_t x = g->nodes[id].op == ZF_OP_piece ? g->nodes[id].args[0] : id;
    return zfi_is_stored_gradient(g, zfi_bytes_of(g, x)) && (!p->born[x] || p->pending[x]);
}

/* Issues copies early, while at most `bytes` of them have not been used; with a cost table, when it
 * is time. */
static void zfi_put_early(zfi_prefetch *p)
{
    for (; p->next_early < zfi_len(p->updates.due); p->next_early++) {
        const zfi_due *due = &p->updates.due[p->next_early];
        const int64_t bytes = (int64_t)zfi_node_bytes(&p->graph->nodes[due->node]);
        const uint8_t queue = p->updates.early[due->node] ? zfi_queue_of(p, due->node) : 0;
        if (!queue || p->born[due->node]) continue;
        if (p->costed && p->now < p->start[due->node]) return;
        if (zfi_is_under_way(p, p->graph->nodes[due->node].args[0])) continue;
        if (!zfi_put_source(p, p->graph->nodes[due->node].args[0])) return;
        if (p->ahead[queue] + bytes > zfi_early_budget(p, queue)) return;
        zfi_put_one_due(p, due);
    }
}

/* The node of the update section has been put: early copies that it reads as the last, and fetches
 * that stay, are not ahead any more. */
static void zfi_count_used(zfi_prefetch *p, int32_t id)
{
    const zf_graph *g = p->graph;
    for (int32_t k = 0; k < g->nodes[id].arg_count && g->nodes[id].op != ZF_OP_piece; k++) {
        const int32_t x = g->nodes[id].args[k];
        const bool stays = zfi_stays(p, zfi_bytes_of(g, x));
        if (p->updates.until[x] == p->next && (p->updates.early[x] || stays))
            p->ahead[stays ? ZFI_QUEUE_READ : zfi_queue_of(p, x)] -=
                (int64_t)zfi_node_bytes(&g->nodes[x]);
    }
}

/* The update comes later, since the disk has not given what it reads. It does not wait any more
 * when two gradients have been completed since its own has been on its way and its parameters have
 * been read, so that one gradient more is kept than otherwise. */
static bool zfi_waits_for_disk(const zfi_prefetch *p, const zfi_due *due)
{
    const zf_graph *g = p->graph;
    const zfi_node *node = &g->nodes[due->node];
    int32_t gradient = due->node;
    if (!zfi_has(g, due->node, ZF_OP_UPDATE)) return false;
    while (zfi_has(g, gradient, ZF_OP_UPDATE)) /* lamb has two for a parameter */
        gradient = zfi_bytes_of(g, g->nodes[gradient].args[1]);
    if (zfi_node_bytes(&g->nodes[gradient]) > p->host_bytes) return false;
    if (due->after <= p->completed[0] && p->born[gradient] + 2 <= p->complete) return false;
    for (int32_t k = 0; k < node->arg_count; k++) {
        const int32_t read = p->pending[node->args[k]];
        if (read && p->ready[read] > p->now + p->late) return true;
    }
    return false;
}

/* Puts the nodes of the update section that may come after `position`; all of them if it is the
 * `last`. */
static void zfi_put_due(zfi_prefetch *p, int32_t position, bool last)
{
    const zf_graph *g = p->graph;
    p->now = p->time[last ? p->updates.end : position + 1];
    zfi_put_early(p);
    for (; p->next < zfi_len(p->updates.due) && !g->memory.failed && !g->error.status; p->next++) {
        const zfi_due *due = &p->updates.due[p->next];
        if (!last && (due->after > position || !zfi_is_due(p, due->node, false) ||
                      zfi_waits_for_disk(p, due)))
            return;
        while (!zfi_is_due(p, due->node, true) && zfi_wait_for_sum(p, INT32_MAX)) {}
        zfi_put_one_due(p, due);
        p->late += zfi_node_seconds(g, &p->cost, due->node);
        zfi_count_used(p, due->node);
        zfi_put_early(p);
    }
}

/* The node at `position` completes a gradient: reductions that were issued before it are waited
 * for. */
static void zfi_complete_gradient(zfi_prefetch *p, int32_t position)
{
    p->completed[0] = p->completed[1], p->completed[1] = p->completed[2];
    p->completed[2] = position;
    while (zfi_wait_for_sum(p, p->complete)) {}
    p->complete++;
}

/* From here on, nodes are below `update:`. */
static void zfi_begin_update(zfi_prefetch *p)
{
    zf_graph *g = p->graph;
    for (int32_t i = p->updates.begin; i < p->updates.end; i++)
        if (p->updates.above[p->order[i]]) zfi_put(p, p->order[i]);
    zfi_wait_all(p);
    p->update = zfi_len(g->order);
    g->in_update = true;
}

/* Marks the nodes below `update:` that belong to the micro section. */
static void zfi_mark_below(zfi_prefetch *p)
{
    zf_graph *g = p->graph;
    for (int32_t i = p->update; i < zfi_len(g->order); i++) {
        zfi_node *node = &g->nodes[g->order[i]];
        if (node->op == ZF_OP_wait) node->update = g->nodes[node->args[0]].update;
        node->below = !node->update;
    }
}
