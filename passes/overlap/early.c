/* early: updates in host memory run during the backward pass.
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
 * A value that needs no gradient, such as the norm of a parameter, is computed with the update that
 * reads it, so that its operands need not stay in memory until then.
 *
 * A sum over ranks is waited for when the next bucket's gradient is complete; a copy of a gradient
 * to the host at the latest then. */

typedef struct zfi_due {
    int32_t node;
    int32_t after; /* position of the node after which it may come */
    int32_t index; /* index of its position before */
} zfi_due;

typedef struct zfi_early_updates {
    zf_graph *graph;
    const int32_t *order;
    int32_t end;    /* of the micro section */
    int32_t begin;  /* position from which on nodes are below `update:`; `end`: none is */
    bool *above;    /* by node: it is after `begin`, and moves above `update:` */
    bool *early;    /* by node: it copies to the host a value that this step does not write later */
    int32_t *after; /* by node: its position; for the update section, that of zfi_due */
    int32_t *used;  /* by owner of bytes, or piece: the last position of a reader */
    int32_t *wrote; /* by owner of bytes, or piece: the last position of a writer */
    int32_t *used_pieces, *wrote_pieces; /* by owner: the same of its pieces */
    int32_t *until; /* by node: the index in `due` of its last reader; before, the first position
                     * after which a reader comes */
    int32_t *limit, *limit_pieces; /* as wrote, for the writers that follow: the first position */
    zfi_due *due;   /* growing array: the update section, in its new order */
    size_t nodes;
} zfi_early_updates;

/* Marks what is computed of a sum of losses for node id; false: that is not computed of it. */
static bool zfi_mark_above(zfi_early_updates *b, int32_t id, int32_t sum, int32_t pack)
{
    const zfi_node *node = &b->graph->nodes[id];
    bool above = id == sum;
    for (int32_t k = 0; k < node->arg_count && id != sum && b->after[id] > b->after[pack]; k++)
        above |= zfi_mark_above(b, node->args[k], sum, pack);
    if (above) b->above[id] = true;
    return above;
}

/* Moves outputs of losses above `update:`, with their sums and packs; false: there are none. */
static bool zfi_find_above(zfi_early_updates *b)
{
    const zf_graph *g = b->graph;
    bool found = false;
    for (int32_t i = 0; i < b->end; i++) {
        const zfi_node *mark = &g->nodes[b->order[i]];
        int32_t sum;
        if (!zfi_marks_number(g, mark)) continue;
        b->above[b->order[i]] = found = true;
        if (!(sum = zfi_sum_after(g, mark->args[0]))) continue;
        zfi_mark_above(b, mark->args[0], sum, g->nodes[sum].args[0]);
        if (g->nodes[g->nodes[sum].args[0]].op == ZF_OP_pack)
            b->above[g->nodes[sum].args[0]] = true;
    }
    return found;
}

/* Some node of the update section is computed in host memory. */
static bool zfi_updates_on_host(const zfi_early_updates *b)
{
    const zf_graph *g = b->graph;
    for (int32_t i = b->end; i < zfi_len(b->order); i++)
        if (zfi_has(g, b->order[i], ZF_OP_UPDATE) && g->nodes[b->order[i]].space == ZF_HOST)
            return true;
    return false;
}

/* Finds where the losses are complete: after everything that moves above `update:` needs. */
static void zfi_find_begin(zfi_early_updates *b)
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

static void zfi_raise(int32_t *to, int32_t value)
{
    if (value > *to) *to = value;
}

/* Notes what the node, which comes after position `after`, reads and writes. */
static void zfi_note_use(zfi_early_updates *b, int32_t id, int32_t after)
{
    const zf_graph *g = b->graph;
    const zfi_node *node = &g->nodes[id];
    b->after[id] = after;
    for (int32_t k = 0; k < node->arg_count && node->op != ZF_OP_piece; k++) {
        const int32_t bytes = zfi_bytes_of(g, node->args[k]),
                      piece = zfi_piece_of(g, node->args[k]);
        zfi_raise(&b->used[piece ? piece : bytes], after);
        if (piece) zfi_raise(&b->used_pieces[bytes], after);
        if (k >= 31 || !(zfi_written_args(g, node) >> k & 1)) continue;
        zfi_raise(&b->wrote[piece ? piece : bytes], after);
        if (piece) zfi_raise(&b->wrote_pieces[bytes], after);
    }
}

/* The last position of a writer (of a reader: `used`) of bytes of the value. */
static int32_t zfi_last_of(const zfi_early_updates *b, int32_t id, bool used)
{
    const int32_t bytes = zfi_bytes_of(b->graph, id), piece = zfi_piece_of(b->graph, id);
    const int32_t *all = used ? b->used : b->wrote;
    const int32_t other = piece ? all[piece] : (used ? b->used_pieces : b->wrote_pieces)[bytes];
    return all[bytes] > other ? all[bytes] : other;
}

/* The position after which a node of the update section may come: its operands are computed, what
 * it reads is written, and what it writes has been read, also where it writes a copy, which would
 * have to be kept until it can be copied back. */
static int32_t zfi_may_follow(const zfi_early_updates *b, int32_t id)
{
    const zf_graph *g = b->graph;
    const zfi_node *node = &g->nodes[id];
    int32_t after = b->begin - 1;
    for (int32_t k = 0; k < node->arg_count; k++) {
        zfi_raise(&after, b->after[node->args[k]]);
        if (node->op == ZF_OP_piece) continue; /* it does not read */
        zfi_raise(&after, zfi_last_of(b, node->args[k], false));
        if (k >= 31 || !(zfi_written_args(g, node) >> k & 1)) continue;
        zfi_raise(&after, zfi_last_of(b, node->args[k], true));
        zfi_raise(&after, zfi_last_of(b, zfi_updated_leaf(g, node->args[k]), true));
    }
    return after;
}

/* The value is a gradient on a disk, which nothing changes when the micro section has written
 * it. */
static bool zfi_is_stored_gradient(const zf_graph *g, int32_t bytes)
{
    const zfi_node *node = &g->nodes[bytes];
    return zfi_is_sum_on_disk(g, bytes) ||
           (node->op == ZF_OP_copy && node->space == ZF_DISK && !node->update);
}

/* The node copies to the host a value from elsewhere that this step has not written, or a gradient
 * from a disk. */
static bool zfi_can_be_early(const zfi_early_updates *b, int32_t id)
{
    const zfi_node *node = &b->graph->nodes[id];
    const int32_t bytes = node->op == ZF_OP_copy ? zfi_bytes_of(b->graph, node->args[0]) : 0;
    return bytes && node->arg_count == 1 && node->space == ZF_HOST &&
           (zfi_is_stored_gradient(b->graph, bytes) ||
            (zfi_has(b->graph, bytes, ZF_OP_LEAF) && zfi_last_of(b, node->args[0], false) < 0));
}

/* The first position after which a node that follows writes bytes of the value. */
static int32_t zfi_first_writer(const zfi_early_updates *b, int32_t id)
{
    const int32_t bytes = zfi_bytes_of(b->graph, id), piece = zfi_piece_of(b->graph, id);
    const int32_t other = piece ? b->limit[piece] : b->limit_pieces[bytes];
    return b->limit[bytes] < other ? b->limit[bytes] : other;
}

static void zfi_lower(int32_t *to, int32_t value)
{
    if (value < *to) *to = value;
}

/* Moves nodes of the update section that compute a value, and write nothing else, to the first of
 * their readers, unless what they read is written before. */
static void zfi_put_late(zfi_early_updates *b)
{
    zf_graph *g = b->graph;
    for (size_t n = 0; n < b->nodes; n++)
        b->until[n] = b->limit[n] = b->limit_pieces[n] = INT32_MAX;
    for (int32_t i = zfi_len(b->due); zfi_down(i);) {
        const int32_t id = b->due[i].node;
        const zfi_node *node = &g->nodes[id];
        const uint32_t written = zfi_written_args(g, node);
        int32_t late = b->until[id];
        for (int32_t k = 0; k < node->arg_count; k++)
            zfi_lower(&late, zfi_first_writer(b, node->args[k]));
        if (!written && b->until[id] < INT32_MAX && zfi_bytes_of(g, id) == id &&
            !zfi_has(g, id, ZF_OP_LEAF))
            zfi_raise(&b->due[i].after, late);
        for (int32_t k = 0; k < node->arg_count; k++) {
            const int32_t bytes = zfi_bytes_of(g, node->args[k]),
                          piece = zfi_piece_of(g, node->args[k]);
            zfi_lower(&b->until[node->args[k]], b->due[i].after);
            if (k >= 31 || !(written >> k & 1)) continue;
            zfi_lower(&b->limit[piece ? piece : bytes], b->due[i].after);
            if (piece) zfi_lower(&b->limit_pieces[bytes], b->due[i].after);
        }
    }
}

static int zfi_by_after(const void *left, const void *right)
{
    const zfi_due *a = left, *b = right;
    if (a->after != b->after) return a->after < b->after ? -1 : 1;
    return a->index < b->index ? -1 : 1;
}

/* Orders the update section; false without memory. `overlap`: during the backward pass, where
 * possible. */
static bool zfi_early_plan(zfi_early_updates *b, const int32_t *order, bool overlap)
{
    zf_graph *g = b->graph;
    b->order = order;
    b->nodes = (size_t)zfi_len(g->nodes);
    b->above = zfi_calloc(&g->memory, 2 * b->nodes, sizeof *b->above);
    b->after = zfi_calloc(&g->memory, 8 * b->nodes, sizeof *b->after);
    if (!b->above || !b->after) return false;
    b->early = b->above + b->nodes;
    b->used = b->after + b->nodes, b->wrote = b->after + 2 * b->nodes;
    b->until = b->after + 3 * b->nodes;
    b->used_pieces = b->after + 4 * b->nodes, b->wrote_pieces = b->after + 5 * b->nodes;
    b->limit = b->after + 6 * b->nodes, b->limit_pieces = b->after + 7 * b->nodes;
    for (size_t n = 0; n < b->nodes; n++)
        b->used[n] = b->wrote[n] = b->used_pieces[n] = b->wrote_pieces[n] = -1;
    while (b->end < zfi_len(order) && !g->nodes[order[b->end]].update) b->end++;
    for (int32_t i = 0; i < b->end; i++) zfi_note_use(b, order[i], i);
    b->begin = b->end;
    if (overlap) zfi_find_begin(b);
    for (int32_t i = b->end; i < zfi_len(order) && !g->memory.failed; i++) {
        const int32_t after = zfi_may_follow(b, order[i]);
        b->early[order[i]] = overlap && zfi_can_be_early(b, order[i]);
        zfi_note_use(b, order[i], after);
        zfi_push(&g->memory, b->due, ((zfi_due){order[i], after, i}));
    }
    if (g->memory.failed) return false;
    if (overlap) zfi_put_late(b);
    if (b->due) qsort(b->due, stbds_arrlenu(b->due), sizeof *b->due, zfi_by_after);
    for (int32_t i = 0; i < zfi_len(b->due); i++) {
        const zfi_node *node = &g->nodes[b->due[i].node];
        for (int32_t k = 0; k < node->arg_count; k++) b->until[node->args[k]] = i;
    }
    return true;
}

static void zfi_early_free(zfi_early_updates *b)
{
    zfi_memory *memory = &b->graph->memory;
    zfi_free(memory, b->above, 2 * b->nodes * sizeof *b->above);
    zfi_free(memory, b->after, 8 * b->nodes * sizeof *b->after);
    zfi_array_free(memory, b->due);
}
