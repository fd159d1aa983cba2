/* beside: updates in host memory run during the backward pass.
 *
 * In a step of one micro-batch with offloaded updates, updates need not wait for the end of the
 * backward pass. A bucket's states are read while its gradient is computed, and it is updated as
 * soon as its gradient is in host memory and its parameters have been read for the last time.
 * zf_prefetch orders the update section like this:
 *
 *     losses | backward ... sum, to host | backward ... | backward ... | rest of the updates
 *            |    reads ahead            |   update A   |   update B   |
 *         update:
 *
 * Below `update:` nodes run once per step; nodes of the micro section there have the mark `micro`.
 * The losses and their sums over the ranks are above it, so that a non-finite loss leaves
 * parameters and states unchanged. Values that need all gradients (the global norm, which also
 * decides whether a step of f16 is skipped) are computed after the backward pass, and so are nodes
 * that depend on them: then only reads run ahead.
 *
 * A sum over ranks, or a copy of a gradient to the host, is waited for when the next bucket's
 * gradient is complete. */

typedef struct zfi_due {
    int32_t node;
    int32_t after; /* position of the node after which it may come */
    int32_t index; /* index of its position before */
} zfi_due;

typedef struct zfi_beside {
    zf_graph *graph;
    const int32_t *order;
    int32_t end;    /* of the micro section */
    int32_t begin;  /* position from which on nodes are below `update:`; `end`: none is */
    bool *above;    /* by node: it is after `begin`, and moves above `update:`; */
    bool *early;    /* or it copies to the host a value that this step has not written before */
    int32_t *after; /* by node: its position; for the update section, that of zfi_due */
    int32_t *used;  /* by owner of bytes: the last position of a reader; */
    int32_t *wrote; /* and of a writer */
    int32_t *until; /* by node: the index in `due` of its last reader */
    zfi_due *due;   /* growing array: the update section, in its new order */
    size_t nodes;
} zfi_beside;

/* Moves outputs of losses above `update:`, with their sums and packs; false: there are none. */
static bool zfi_find_above(zfi_beside *b)
{
    const zf_graph *g = b->graph;
    bool found = false;
    for (int32_t i = 0; i < b->end; i++) {
        const zfi_node *mark = &g->nodes[b->order[i]];
        int32_t id, sum;
        if (!zfi_marks_loss(g, mark)) continue;
        b->above[b->order[i]] = found = true;
        if (!(sum = zfi_sum_behind(g, mark->args[0]))) continue;
        for (id = mark->args[0]; id != sum; id = g->nodes[id].args[0]) b->above[id] = true;
        b->above[sum] = true;
        if (g->nodes[g->nodes[sum].args[0]].op == ZF_OP_pack)
            b->above[g->nodes[sum].args[0]] = true;
    }
    return found;
}

/* Some node of the update section is computed in host memory. */
static bool zfi_updates_on_host(const zfi_beside *b)
{
    const zf_graph *g = b->graph;
    for (int32_t i = b->end; i < zfi_len(b->order); i++)
        if (zfi_has(g, b->order[i], ZF_OP_UPDATE) && g->nodes[b->order[i]].space == ZF_HOST)
            return true;
    return false;
}

/* Finds where the losses are complete: after everything that moves above `update:` needs. */
static void zfi_find_begin(zfi_beside *b)
{
    const zf_graph *g = b->graph;
    int32_t begin = 0;
    if (g->micro_batches > 1 || !zfi_updates_on_host(b) || !zfi_find_above(b)) return;
    for (int32_t i = 0; i < b->end; i++) {
        const zfi_node *node = &g->nodes[b->order[i]];
        if (!b->above[b->order[i]]) continue;
        for (int32_t k = 0; k < node->arg_count; k++)
            if (!b->above[node->args[k]] && b->after[node->args[k]] >= begin)
                begin = b->after[node->args[k]] + 1;
    }
    b->begin = begin;
    for (int32_t i = begin; i < b->end; i++) {
        const zfi_node *node = &g->nodes[b->order[i]];
        const bool saved = node->op == ZF_OP_saved && b->after[node->args[0]] < begin;
        if (saved || zfi_has(g, b->order[i], ZF_OP_LEAF)) b->above[b->order[i]] = true;
    }
}

/* Notes what the node, which comes after position `after`, reads and writes. */
static void zfi_note_use(zfi_beside *b, int32_t id, int32_t after)
{
    const zf_graph *g = b->graph;
    const zfi_node *node = &g->nodes[id];
    b->after[id] = after;
    for (int32_t k = 0; k < node->arg_count; k++) {
        const int32_t bytes = zfi_bytes_of(g, node->args[k]);
        if (after > b->used[bytes]) b->used[bytes] = after;
        if (k < 31 && zfi_written_args(g, node) >> k & 1 && after > b->wrote[bytes])
            b->wrote[bytes] = after;
    }
}

/* The position after which a node of the update section may come: its operands are computed, what
 * it reads is written, and what it writes has been read. */
static int32_t zfi_may_follow(const zfi_beside *b, int32_t id)
{
    const zf_graph *g = b->graph;
    const zfi_node *node = &g->nodes[id];
    int64_t after = b->begin - 1;
    for (int32_t k = 0; k < node->arg_count; k++) {
        const int32_t bytes = zfi_bytes_of(g, node->args[k]);
        after = zfi_max(after, zfi_max(b->after[node->args[k]], b->wrote[bytes]));
        if (k < 31 && zfi_written_args(g, node) >> k & 1) after = zfi_max(after, b->used[bytes]);
    }
    return (int32_t)after;
}

/* The node copies to the host a value from elsewhere that this step has not written. */
static bool zfi_can_be_early(const zfi_beside *b, int32_t id)
{
    const zfi_node *node = &b->graph->nodes[id];
    const int32_t bytes = node->op == ZF_OP_copy ? zfi_bytes_of(b->graph, node->args[0]) : 0;
    return bytes && node->arg_count == 1 && node->space == ZF_HOST &&
           zfi_has(b->graph, bytes, ZF_OP_LEAF) && b->wrote[bytes] < 0;
}

static int zfi_by_after(const void *left, const void *right)
{
    const zfi_due *a = left, *b = right;
    if (a->after != b->after) return a->after < b->after ? -1 : 1;
    return a->index < b->index ? -1 : 1;
}

/* Orders the update section; false without memory. `overlap`: during the backward pass, where
 * possible. */
static bool zfi_beside_plan(zfi_beside *b, const int32_t *order, bool overlap)
{
    zf_graph *g = b->graph;
    b->order = order;
    b->nodes = (size_t)zfi_len(g->nodes);
    b->above = zfi_calloc(&g->memory, 2 * b->nodes, sizeof *b->above);
    b->after = zfi_calloc(&g->memory, 4 * b->nodes, sizeof *b->after);
    if (!b->above || !b->after) return false;
    b->early = b->above + b->nodes;
    b->used = b->after + b->nodes, b->wrote = b->after + 2 * b->nodes;
    b->until = b->after + 3 * b->nodes;
    for (size_t n = 0; n < b->nodes; n++) b->used[n] = b->wrote[n] = -1;
    while (b->end < zfi_len(order) && !g->nodes[order[b->end]].update) b->end++;
    for (int32_t i = 0; i < b->end; i++) zfi_note_use(b, order[i], i);
    b->begin = b->end;
    if (overlap) zfi_find_begin(b);
    for (int32_t i = b->end; i < zfi_len(order) && !g->memory.failed; i++) {
        const zfi_node *node = &g->nodes[order[i]];
        const bool early = overlap && zfi_can_be_early(b, order[i]);
        const int32_t after = zfi_may_follow(b, order[i]);
        for (int32_t k = 0; k < node->arg_count; k++) { /* an early copy is due with its reader */
            const int32_t index = b->until[node->args[k]];
            zfi_due *made = index < zfi_len(b->due) ? &b->due[index] : NULL;
            if (made && made->node == node->args[k] && b->early[made->node] && made->after > after)
                made->after = after;
        }
        zfi_note_use(b, order[i], after);
        b->until[order[i]] = zfi_len(b->due);
        b->early[order[i]] = early;
        zfi_push(&g->memory, b->due, ((zfi_due){order[i], early ? INT32_MAX : after, i}));
    }
    if (g->memory.failed) return false;
    if (b->due) qsort(b->due, stbds_arrlenu(b->due), sizeof *b->due, zfi_by_after);
    for (int32_t i = 0; i < zfi_len(b->due); i++) {
        const zfi_node *node = &g->nodes[b->due[i].node];
        for (int32_t k = 0; k < node->arg_count; k++) b->until[node->args[k]] = i;
    }
    return true;
}

static void zfi_beside_free(zfi_beside *b)
{
    zfi_memory *memory = &b->graph->memory;
    zfi_free(memory, b->above, 2 * b->nodes * sizeof *b->above);
    zfi_free(memory, b->after, 4 * b->nodes * sizeof *b->after);
    zfi_array_free(memory, b->due);
}
