/* prefetch, waits: puts nodes on their queues, and a `wait` where a result is needed (prefetch.c).
 *
 * A node waits for what is in flight and computes its operands, reads what it writes, or writes
 * what it reads. Nodes on one queue run in order and need no waits for each other.
 *
 * What follows a sum that is in flight (its copy to the host, its block norms, the next step of a
 * quantised sum) is deferred until that sum is waited for. */

enum { ZFI_SMALL_COPY = 1 << 10 }; /* bytes of the smallest copy on a queue */

/* The leaf of which the node writes a piece, as operand 1; 0: none. */
static int32_t zfi_fills_piece(const zf_graph *g, int32_t id)
{
    const zfi_node *node = &g->nodes[id];
    return node->arg_count > 1 && zfi_piece_of(g, node->args[1])
               ? zfi_written_leaf(g, node->args[1])
               : 0;
}

static void zfi_forget_pending(zfi_prefetch *p, int32_t id)
{
    const zfi_node *node = &p->graph->nodes[id];
    p->pending[id] = 0;
    for (int32_t k = 0; k < node->arg_count; k++) {
        int32_t leaf = zfi_written_leaf(p->graph, node->args[k]);
        if (p->pending[node->args[k]] == id) p->pending[node->args[k]] = 0;
        if (p->pending[leaf] == id) p->pending[leaf] = 0;
    }
    if (zfi_fills_piece(p->graph, id)) p->pieces[zfi_fills_piece(p->graph, id)]--;
}

/* The bytes of the node, which is on a queue, are limited while it is in flight; those of fetches
 * and of early copies are until they have been used. */
static bool zfi_is_moving(const zfi_prefetch *p, int32_t id)
{
    return p->graph->nodes[id].queue != ZFI_QUEUE_GATHER && zfi_link_of(p->graph, id) < 0 &&
           !((size_t)id < p->updates.nodes && p->updates.early[id]);
}

/* A copy to the host is issued, from the device or a disk: it is done after those before it. */
static void zfi_time_copy(zfi_prefetch *p, int32_t id)
{
    double *busy = &p->busy[zfi_queue_of_copy(p->graph, &p->graph->nodes[id])];
    if (*busy < p->now + p->late) *busy = p->now + p->late;
    p->ready[id] = *busy += zfi_seconds_of(p->graph, &p->cost, id);
}

/* A copy is waited for. */
static void zfi_time_wait(zfi_prefetch *p, int32_t id)
{
    if (p->ready[id] > p->now + p->late) p->late = p->ready[id] - p->now;
}

/* Puts a wait for a node in flight. */
static void zfi_put_wait(zfi_prefetch *p, int32_t id)
{
    zf_graph *g = p->graph;
    int32_t at = 0;
    for (int32_t k = 0; k < g->nodes[id].arg_count; k++) { /* what it reads of its own queue */
        int32_t before = p->pending[g->nodes[id].args[k]];
        if (before && before != id && before == g->nodes[id].args[k]) zfi_put_wait(p, before);
    }
    while (at < zfi_len(p->waiting) && p->waiting[at] != id) at++;
    if (at == zfi_len(p->waiting)) return;
    stbds_header(p->waiting)->length--;
    memmove(p->waiting + at, p->waiting + at + 1,
            (size_t)(zfi_len(p->waiting) - at) * sizeof *p->waiting);
    zfi_append_nodes(g, wait, NULL, id);
    zfi_time_wait(p, id);
    if (g->nodes[id].op == ZF_OP_copy) p->readers[zfi_bytes_of(g, g->nodes[id].args[0])]--;
    if (zfi_is_moving(p, id))
        p->moving[g->nodes[id].queue] -= (int64_t)zfi_node_bytes(&g->nodes[g->nodes[id].args[0]]);
    zfi_forget_pending(p, id);
}

/* The maximum of bytes in flight on a queue. */
static size_t zfi_budget_of(const zfi_prefetch *p, uint8_t queue)
{
    return queue == ZFI_QUEUE_READ ? p->host_bytes : p->bytes;
}

/* The queue of a collective or copy; compute where a queue would gain nothing. */
static uint8_t zfi_queue_of(const zfi_prefetch *p, int32_t id)
{
    const zf_graph *g = p->graph;
    const zfi_node *node = &g->nodes[id];
    int64_t bytes = (int64_t)zfi_node_bytes(node);
    if (p->bytes && node->op == ZF_OP_copy) {
        const uint8_t queue = zfi_queue_of_copy(g, node);
        const size_t most = zfi_budget_of(p, queue);
        return bytes >= ZFI_SMALL_COPY && bytes <= (int64_t)most ? queue : ZFI_QUEUE_COMPUTE;
    }
    if (!p->bytes || !zfi_has(g, id, ZF_OP_COLLECTIVE) || ZF_INT(node, all_gather, world) <= 1 ||
        zfi_is_along(node->op, node->attributes))
        return ZFI_QUEUE_COMPUTE;
    if (node->op == ZF_OP_all_gather) {
        int32_t sum = p->pending[node->args[0]];
        if (sum && g->nodes[sum].queue == ZFI_QUEUE_REDUCE) return ZFI_QUEUE_REDUCE;
        if (node->arg_count == 1 && bytes > (int64_t)p->bytes) return ZFI_QUEUE_COMPUTE;
        return ZFI_QUEUE_GATHER;
    }
    bytes = (int64_t)zfi_node_bytes(&g->nodes[node->args[0]]);
    if (node->update || bytes > (int64_t)p->bytes) return ZFI_QUEUE_COMPUTE;
    if (node->op == ZF_OP_bcast && ZF_INT(node, bcast, over) == ZF_OVER_CONTEXT)
        return ZFI_QUEUE_GATHER;
    if (!zfi_reduces(node->op) && node->op != ZF_OP_all_to_all && node->op != ZF_OP_reduce)
        return ZFI_QUEUE_COMPUTE;
    return ZFI_QUEUE_REDUCE;
}

/* Two values have bytes in common: one is a view of the other, or both are of a third; two pieces
 * have none. */
static bool zfi_has_bytes_of(const zf_graph *g, int32_t a, int32_t b)
{
    const int32_t piece = zfi_piece_of(g, a), other = zfi_piece_of(g, b);
    return zfi_bytes_of(g, a) == zfi_bytes_of(g, b) && (!piece || !other || piece == other);
}

/* Waits for copies in flight of what the node writes. */
static void zfi_wait_for_readers(zfi_prefetch *p, int32_t id)
{
    zf_graph *g = p->graph;
    const uint32_t written = zfi_written_args(g, &g->nodes[id]);
    for (int32_t k = 0; k < g->nodes[id].arg_count && k < 31; k++) {
        const int32_t x = g->nodes[id].args[k],
                      bytes = written >> k & 1 ? zfi_bytes_of(g, x) : 0;
        for (int32_t n = 0; bytes && p->readers[bytes] && n < zfi_len(p->waiting);) {
            const zfi_node *other = &g->nodes[p->waiting[n]];
            if (other->op == ZF_OP_copy && zfi_has_bytes_of(g, other->args[0], x))
                zfi_put_wait(p, p->waiting[n]);
            else n++;
        }
    }
}

/* Waits for copies in flight that write pieces of the leaf. */
static void zfi_wait_for_pieces(zfi_prefetch *p, int32_t leaf)
{
    for (int32_t n = 0; p->pieces[leaf] && n < zfi_len(p->waiting);)
        if (zfi_fills_piece(p->graph, p->waiting[n]) == leaf) zfi_put_wait(p, p->waiting[n]);
        else n++;
}

/* The node is a fetch of parameters to host memory that stays there to be updated (reuse.c). */
static bool zfi_stays(const zfi_prefetch *p, int32_t id)
{
    const zfi_node *node = &p->graph->nodes[id];
    return (size_t)id < p->updates.nodes && node->op == ZF_OP_copy && !node->update &&
           (p->updates.wrote[id] >= 0 || p->updates.wrote_pieces[id] >= 0);
}

/* Counts what a fetch reads from the disk, or what it uses of that. */
static void zfi_count_fetch(zfi_prefetch *p, int32_t id)
{
    const zf_graph *g = p->graph;
    const int32_t x = g->nodes[id].arg_count ? g->nodes[id].args[0] : 0;
    const int64_t bytes = (int64_t)zfi_node_bytes(&g->nodes[id]);
    const bool adds = zfi_is_sum(&g->nodes[id]) && g->nodes[id].arg_count > 1;
    if (zfi_link_of(g, id) == ZFI_READS) p->fetched += bytes;
    if (adds && zfi_link_of(g, g->nodes[id].args[1]) == ZFI_READS) p->fetched -= bytes;
    if (zfi_link_of(g, id) != ZFI_UPLOADS || zfi_link_of(g, x) != ZFI_READS) return;
    p->fetched -= bytes;
    if (zfi_stays(p, x)) p->ahead[ZFI_QUEUE_READ] += bytes;
}

/* Puts a node, after the waits that it needs. Nodes in flight on its own queue need none, since a
 * queue is in order. */
static void zfi_put_node(zfi_prefetch *p, int32_t id)
{
    zf_graph *g = p->graph;
    const uint8_t queue = zfi_queue_of(p, id);
    int32_t into;
    /* a mark does not read, and neither does what only says where a piece lies (ir/queues.c) */
    const bool reads = g->nodes[id].op != ZF_OP_gradient && g->nodes[id].op != ZF_OP_piece;
    for (int32_t k = 0; k < g->nodes[id].arg_count && reads; k++) {
        int32_t leaf = zfi_written_leaf(g, g->nodes[id].args[k]),
                made = p->pending[g->nodes[id].args[k]];
        if (made && !(queue && g->nodes[made].queue == queue && made == g->nodes[id].args[k]))
            zfi_put_wait(p, made);
        else if (made) continue;
        if (p->pending[leaf]) zfi_put_wait(p, p->pending[leaf]);
        if (p->pieces[leaf] && !zfi_piece_of(g, g->nodes[id].args[k]))
            zfi_wait_for_pieces(p, leaf);
    }
    zfi_wait_for_readers(p, id);
    g->nodes[id].queue = queue;
    if (queue && zfi_is_moving(p, id)) {
        int64_t bytes = (int64_t)zfi_node_bytes(&g->nodes[g->nodes[id].args[0]]);
        const int64_t most = (int64_t)zfi_budget_of(p, queue);
        for (int32_t k = 0; p->moving[queue] + bytes > most && k < zfi_len(p->waiting);)
            if (g->nodes[p->waiting[k]].queue == queue) zfi_put_wait(p, p->waiting[k]);
            else k++;
        p->moving[queue] += bytes;
    }
    if (!g->memory.failed) zfi_push(&g->memory, g->order, id);
    zfi_count_fetch(p, id);
    p->born[id] = 1 + p->complete;
    if (g->nodes[id].op == ZF_OP_copy && g->nodes[id].space == ZF_HOST) {
        zfi_time_copy(p, id);
        if (!queue) zfi_time_wait(p, id);
    }
    if (!queue || g->memory.failed) return;
    zfi_push(&g->memory, p->waiting, id);
    if (g->nodes[id].op == ZF_OP_copy) p->readers[zfi_bytes_of(g, g->nodes[id].args[0])]++;
    p->pending[id] = id;
    if (g->nodes[id].arg_count < 2 || zfi_fetches_experts(&g->nodes[id])) return;
    /* Until its wait, the leaf that it writes is in use too. */
    into = g->nodes[id].args[1];
    p->pending[into] = id;
    if (zfi_fills_piece(g, id)) p->pieces[zfi_fills_piece(g, id)]++;
    else p->pending[zfi_written_leaf(g, into)] = id;
}

/* The node follows a sum that is in flight, or a node that is deferred: a copy of the sum, its
 * block norms, or the next step of quantised gradients. It can wait. */
static bool zfi_is_deferred(const zfi_prefetch *p, int32_t id)
{
    const zf_graph *g = p->graph;
    const zfi_node *node = &g->nodes[id];
    const int32_t x = node->arg_count ? node->args[0] : 0, sum = x ? p->pending[x] : 0;
    if (node->update || !x) return false;
    if (node->op == ZF_OP_copy && !zfi_is_float(node->dtype)) return false; /* bounds, not a sum */
    if (sum && g->nodes[sum].queue == ZFI_QUEUE_REDUCE)
        return node->op == ZF_OP_copy || node->op == ZF_OP_block_norms ||
               node->op == ZF_OP_dequantize_sum;
    return !p->born[x] && !zfi_has(g, x, ZF_OP_LEAF) &&
           (zfi_quantizes(node->op) || node->op == ZF_OP_all_to_all ||
            node->op == ZF_OP_dequantize_sum || node->op == ZF_OP_cast ||
            node->op == ZF_OP_block_norms || node->op == ZF_OP_copy);
}

/* Puts what was deferred and need not be any more. */
static void zfi_put_deferred(zfi_prefetch *p)
{
    for (int32_t k = 0; k < zfi_len(p->deferred) && !p->graph->memory.failed;) {
        const int32_t id = p->deferred[k];
        if (zfi_is_deferred(p, id)) {
            k++;
            continue;
        }
        for (int32_t n = k; n + 1 < zfi_len(p->deferred); n++) p->deferred[n] = p->deferred[n + 1];
        stbds_header(p->deferred)->length--;
        zfi_put_node(p, id);
    }
}

/* Waits for the exchanges that were issued before `last`. */
static void zfi_wait_for_exchanges(zfi_prefetch *p, int32_t last)
{
    for (int32_t k = 0; k < zfi_len(p->waiting);) {
        const int32_t id = p->waiting[k];
        const zfi_node *node = &p->graph->nodes[id];
        if (id != last && node->op == ZF_OP_all_to_all && node->queue == ZFI_QUEUE_REDUCE)
            zfi_put_wait(p, id);
        else k++;
    }
}

/* Puts a node, or defers it. */
static void zfi_put(zfi_prefetch *p, int32_t id)
{
    if (zfi_is_deferred(p, id)) {
        zfi_push(&p->graph->memory, p->deferred, id);
        return;
    }
    zfi_put_node(p, id);
    if (p->graph->nodes[id].op == ZF_OP_all_to_all) zfi_wait_for_exchanges(p, id);
    zfi_put_deferred(p);
}

/* Waits for the oldest reduction, if it was issued before `complete` gradients were complete;
 * false: there is none. */
static bool zfi_wait_for_sum(zfi_prefetch *p, int32_t complete)
{
    const zf_graph *g = p->graph;
    for (int32_t k = 0; k < zfi_len(p->waiting); k++) {
        const int32_t id = p->waiting[k];
        if (g->nodes[id].queue != ZFI_QUEUE_REDUCE) continue;
        if (p->born[id] > complete) return false;
        zfi_put_wait(p, id);
        zfi_put_deferred(p);
        return true;
    }
    return false;
}

/* Waits for everything, at the end of a section. */
static void zfi_wait_all(zfi_prefetch *p)
{
    while (zfi_len(p->waiting) && !p->graph->error.status && !p->graph->memory.failed) {
        zfi_put_wait(p, p->waiting[0]);
        zfi_put_deferred(p);
    }
}
