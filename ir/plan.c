/* The verifier of plans. It does not use the lifetimes that plan/memory.c computes: it runs the
 * plan on a map of memory that holds the last writer of every byte, one map for each space.
 *
 *     bytes   0        64            192      256
 *     owner   | %1     | %4          | scratch | %7 ...
 *
 * Every value must own its bytes when it is read, and every output at the end. A view owns what its
 * operand owns. It must not be read after a write to a param or state of which it is a view, since
 * without sharing memory it would still have the old value. A written leaf owns its bytes, and a
 * saved value owns its bytes from its operand's turn on; scratch has no owner afterwards. What
 * outlives a step must own its bytes at the end of the step, and an accumulator at the end of the
 * micro section, which may run again.
 *
 *     queue 0   %5 = ...   %7 = all_gather %5 queue=gather   %8 = ...      wait %7
 *     bytes     | %5       | %5, %7: nobody else may write   |             | as before
 *
 * From a collective or copy on another queue to its wait, nothing may write the bytes of the owners
 * of its operands and result for another value. (queues.c checks that no node reads or writes these
 * values themselves.)
 *
 * A concat of params that are neighbours in memory may have their bytes as its own: it owns
 * nothing, and reading it reads them.
 *
 * These have no place in the plan: params, states and their buckets that lie in a store; views of
 * them; a concat of neighbours in the store; and a shard, which begins at a place that depends on
 * the rank, with pieces of it. */

enum { ZFI_ALIGN = 64 }; /* of every place, except views and places on a disk */

/* Places in a space are multiples of this. */
static int64_t zfi_align_of(uint8_t space)
{
    return space == ZF_DISK ? ZFI_DISK_ALIGN : ZFI_ALIGN;
}

/* Bytes from start to the next segment's start belong to `owner`; 0: no owner. */
typedef struct zfi_segment {
    int64_t start;
    int32_t owner;
} zfi_segment;

/* The index of the segment that holds byte `at`. */
static int32_t zfi_segment_of(const zfi_segment *map, int64_t at)
{
    int32_t low = 0, high = zfi_len(map) - 1;
    while (low < high) {
        int32_t middle = (low + high + 1) / 2;
        if (map[middle].start <= at) low = middle;
        else high = middle - 1;
    }
    return low;
}

/* Bytes [start, stop) belong to `owner` from now on. */
static zfi_segment *zfi_own(zfi_memory *memory, zfi_segment *map, int64_t start, int64_t stop,
                            int32_t owner)
{
    zfi_segment insert[3];
    int32_t from, to, after, n = 0, removed;
    if (start == stop) return map;
    map = zfi_grow(memory, map, sizeof *map, 2);
    if (memory->failed) return map;
    from = zfi_segment_of(map, start);
    to = zfi_segment_of(map, stop - 1);
    after = to + 1;
    if (map[from].start < start) insert[n++] = map[from];
    insert[n++] = (zfi_segment){start, owner};
    if (after == zfi_len(map) ? true : map[after].start > stop)
        insert[n++] = (zfi_segment){stop, map[to].owner};
    removed = after - from;
    memmove(map + from + n, map + after, (size_t)(zfi_len(map) - after) * sizeof *map);
    stbds_header(map)->length += (size_t)n;
    stbds_header(map)->length -= (size_t)removed;
    memcpy(map + from, insert, (size_t)n * sizeof *insert);
    return map;
}

/* An owner other than `owner` of a byte in [start, stop); `owner` where it owns all of them. */
static int32_t zfi_intruder(const zfi_segment *map, int64_t start, int64_t stop, int32_t owner)
{
    if (start == stop) return owner;
    for (int32_t s = zfi_segment_of(map, start); s < zfi_len(map) && map[s].start < stop; s++)
        if (map[s].owner != owner) return map[s].owner;
    return owner;
}

typedef struct zfi_play {
    zf_graph *graph;
    zfi_segment *maps[ZF_SPACES]; /* growing arrays */
    /* By node: the owner of its value's bytes, the node itself or the root of its view */
    int32_t *owner;
    /* By node: the position of the node that made the value; for a leaf, of its last writer */
    int32_t *made;
    /* By leaf: the position of the last node that wrote it otherwise than through a piece */
    int32_t *whole;
    /* By node: the node whose place contains its bytes, itself or the root of its view */
    int32_t *place;
    int32_t queues; /* in use */
    /* By queue and owner: the last collective in flight that uses the bytes; 0: none */
    int32_t *held[ZFI_QUEUES];
} zfi_play;

static bool zfi_overlap(int64_t a, int64_t a_bytes, int64_t b, int64_t b_bytes)
{
    return a_bytes > 0 && b_bytes > 0 && a < b + b_bytes && b < a + a_bytes;
}

/* The node is a concat of params that are neighbours in the plan or in a store, and has their
 * bytes. */
static bool zfi_is_joined(const zf_graph *g, const zfi_node *node)
{
    int64_t at = node->offset;
    if (node->op != ZF_OP_concat || ZF_INT(node, concat, axis) != 0) return false;
    for (int32_t k = 0; k < node->arg_count; k++) {
        const zfi_node *x = &g->nodes[node->args[k]];
        if (x->op != ZF_OP_param || x->held || x->placed != node->placed ||
            (x->placed && x->offset != at))
            return false;
        at += x->bytes;
    }
    return true;
}

/* Checks that the node's place is that of its bytes in its operand. */
static bool zfi_lies_in_operand(const zf_graph *g, const zfi_node *node)
{
    int64_t at;
    int32_t k = zfi_viewed(g, node, &at);
    const zfi_node *x = k < 0 ? NULL : &g->nodes[node->args[k]];
    if (x && at < 0) return !node->placed;
    if (!x || node->placed != x->placed) return false;
    return !node->placed || node->offset == x->offset + at;
}

/* The node is an input that nothing reads, which needs no place. */
static bool zfi_is_unread_input(const zf_graph *g, int32_t id)
{
    if (g->nodes[id].op != ZF_OP_input || !g->unread) return false;
    for (int32_t i = 0; i < zfi_len(g->order); i++)
        for (int32_t k = 0; k < g->nodes[g->order[i]].arg_count; k++)
            if (g->nodes[g->order[i]].args[k] == id) return false;
    return true;
}

/* Bytes from the value's first slot to its last one. */
static int64_t zfi_slots_beyond(const zfi_node *node)
{
    return node->slots > 1 ? (node->slots - 1) * node->apart : 0;
}

/* Checks a place: inside the arena, of the value's size, aligned. */
static void zfi_play_place(zf_graph *g, int32_t id)
{
    const zfi_node *node = &g->nodes[id];
    bool view = zfi_lies_in_operand(g, node);
    const int64_t arena = g->peaks[node->space].bytes;
    if (node->placed &&
        (node->bytes != (int64_t)zfi_node_bytes(node) ||
         node->offset > arena - node->bytes - zfi_slots_beyond(node)))
        zfi_verify_fail(g, id, "its bytes do not fit its type or the arena of %lld",
                        (long long)arena);
    if (!node->placed && !view && !zfi_has(g, id, ZF_OP_EFFECT) && !zfi_is_joined(g, node) &&
        (!zfi_is_written(g, node->op) || node->op == ZF_OP_accumulator) &&
        !zfi_is_unread_input(g, id))
        zfi_verify_fail(g, id, "it has no place");
    if (node->placed && node->held)
        zfi_verify_fail(g, id, "it has a place, and lies in the bucket %%%d", (int)node->held);
    if (zfi_writes_into(g, id, 1) && !view)
        zfi_verify_fail(g, id, "its place must be that of %%%d, into which it writes",
                        (int)node->args[1]);
    for (int32_t k = 0; k < node->arg_count && k < 31; k++)
        if ((zfi_written_args(g, node) >> k & 1) && zfi_is_part(&g->nodes[node->args[k]]) &&
            !zfi_lies_in_operand(g, &g->nodes[node->args[k]]))
            zfi_verify_fail(g, id, "it writes %%%d, which is a copy and no view of %%%d",
                            (int)node->args[k], (int)g->nodes[node->args[k]].args[0]);
    if (node->scratch_bytes && node->scratch_offset > arena - node->scratch_bytes)
        zfi_verify_fail(g, id, "its scratch does not fit the arena of %lld", (long long)arena);
    if ((node->placed && !view && node->offset % zfi_align_of(node->space)) ||
        node->scratch_offset % ZFI_ALIGN)
        zfi_verify_fail(g, id, "places are multiples of %d", (int)zfi_align_of(node->space));
}

/* Two values with slots have as many, at the same distance. */
static bool zfi_shares_slots(const zfi_node *a, const zfi_node *b)
{
    return b->slots && a->slots == b->slots && a->apart == b->apart;
}

/* Leaves own their bytes from the start and must not overlap. */
static void zfi_play_leaf(zfi_play *p, int32_t id)
{
    zf_graph *g = p->graph;
    const zfi_node *node = &g->nodes[id];
    int64_t until;
    int32_t other;
    if (!zfi_has(g, id, ZF_OP_LEAF)) return;
    p->owner[id] = id;
    if (!node->placed) return;
    until = node->offset + zfi_slots_beyond(node) + node->bytes;
    other = zfi_intruder(p->maps[node->space], node->offset, until, 0);
    if (other) zfi_verify_fail(g, id, "it overlaps %%%d, whose bytes are never free", (int)other);
    else
        p->maps[node->space] =
            zfi_own(&g->memory, p->maps[node->space], node->offset, until, id);
}

/* Values with slots own all of them from the start. Those of one place follow each other there. */
static void zfi_play_slots(zfi_play *p, int32_t id)
{
    zf_graph *g = p->graph;
    const zfi_node *node = &g->nodes[id];
    const int64_t until = node->offset + zfi_slots_beyond(node) + node->bytes;
    if (!node->slots || !node->placed || zfi_has(g, id, ZF_OP_LEAF)) return;
    if (zfi_lies_in_operand(g, node)) return;
    for (int32_t s = zfi_segment_of(p->maps[node->space], node->offset);
         s < zfi_len(p->maps[node->space]) && p->maps[node->space][s].start < until; s++) {
        const int32_t other = p->maps[node->space][s].owner;
        if (other && !zfi_shares_slots(node, &g->nodes[other]))
            zfi_verify_fail(g, id, "its slots overlap %%%d", (int)other);
    }
    p->maps[node->space] = zfi_own(&g->memory, p->maps[node->space], node->offset, until, id);
}

/* The position of the last node that wrote to the leaf of which the node is a view, where the two
 * have bytes in common. */
static int32_t zfi_last_write(const zfi_play *p, int32_t id)
{
    const int32_t owner = p->owner[id], piece = zfi_piece_of(p->graph, id);
    if (!piece) return p->made[owner];
    return p->made[piece] > p->whole[owner] ? p->made[piece] : p->whole[owner];
}

/* Checks that the operands of a node, or the value of an output, own their bytes; for a concat that
 * has the bytes of its operands, that these do. */
static void zfi_play_reads(zfi_play *p, int32_t id)
{
    zf_graph *g = p->graph;
    const zfi_node *node = &g->nodes[id];
    for (int32_t k = 0; k < node->arg_count && node->op != ZF_OP_saved; k++) {
        int32_t arg = node->args[k], owner = p->owner[arg], found = owner;
        if (zfi_is_joined(g, &g->nodes[arg])) {
            const zfi_node *joined = &g->nodes[arg];
            for (int32_t shard = 0; shard < joined->arg_count; shard++)
                if (p->made[joined->args[shard]] > p->made[arg])
                    zfi_verify_fail(g, id, "%%%d is a view of %%%d, which has been written since",
                                    (int)arg, (int)joined->args[shard]);
            zfi_play_reads(p, arg);
            continue;
        }
        const zfi_node *x = &g->nodes[arg], *place = &g->nodes[p->place[arg]];
        if (place->placed)
            found = zfi_intruder(p->maps[place->space], place->offset, place->offset + place->bytes,
                                 owner);
        if (found != owner)
            zfi_verify_fail(
                g, id, found ? "the bytes of %%%d belong to %%%d" : "the bytes of %%%d are gone",
                (int)arg, (int)found);
        if (owner != arg && !zfi_is_part(x) && zfi_is_written(g, g->nodes[owner].op) &&
            zfi_last_write(p, arg) > p->made[arg])
            zfi_verify_fail(g, id, "%%%d is a view of %%%d, which has been written since", (int)arg,
                            (int)owner);
    }
}

/* Operand k of a pack has the place that belongs to it in the pack; or another operand of the same
 * bytes has. */
static bool zfi_packed_in_place(const zf_graph *g, const zfi_node *node, int32_t k)
{
    const zfi_node *x = &g->nodes[node->args[k]], *there;
    int64_t size = (int64_t)zf_dtype_size(node->dtype), at = (x->offset - node->offset) / size;
    const int64_t *places = ZF_LIST(node, pack, at).data;
    int32_t low = 0, high = node->arg_count - 1;
    if (node->op != ZF_OP_pack || x->offset < node->offset) return false;
    while (low < high) { /* the last that begins at or before `at` */
        int32_t middle = (low + high + 1) / 2;
        if (places[middle] <= at) low = middle;
        else high = middle - 1;
    }
    there = &g->nodes[node->args[low]];
    return there->placed && there->offset == x->offset && there->bytes == x->bytes &&
           x->offset == node->offset + places[low] * size;
}

/* Gives [start, start + bytes) of a space to `owner`, written by node `id`. Bytes in use on another
 * queue must not be written. */
static void zfi_claim(zfi_play *p, int32_t id, uint8_t space, int64_t start, int64_t bytes,
                      int32_t owner)
{
    zf_graph *g = p->graph;
    zfi_segment **map = &p->maps[space];
    if (!bytes || g->memory.failed) return;
    for (int32_t s = zfi_segment_of(*map, start);
         s < zfi_len(*map) && (*map)[s].start < start + bytes && !g->error.status; s++) {
        const zfi_node *other = &g->nodes[(*map)[s].owner];
        if ((*map)[s].owner && other->slots && !zfi_has(g, (*map)[s].owner, ZF_OP_LEAF) &&
            !zfi_shares_slots(&g->nodes[owner ? owner : id], other) && !g->nodes[id].update)
            zfi_verify_fail(g, id, "it overlaps %%%d, which other micro-batches still need",
                            (int)(*map)[s].owner);
    }
    for (int32_t s = zfi_segment_of(*map, start);
         s < zfi_len(*map) && (*map)[s].start < start + bytes; s++)
        for (int q = 1; q < p->queues; q++) {
            int32_t other = p->held[q][(*map)[s].owner];
            if (!other || q == g->nodes[id].queue) continue;
            zfi_verify_fail(g, id,
                            owner
                                ? "its result overlaps %%%d, which %s %%%d on queue %s uses until "
                                  "it is waited for"
                                : "its scratch overlaps %%%d, which %s %%%d on queue %s uses "
                                  "until it is waited for",
                            (int)(*map)[s].owner, zfi_record_of(g, other)->name, (int)other,
                            zfi_queue_names[q]);
        }
    if (!g->error.status) *map = zfi_own(&g->memory, *map, start, start + bytes, owner);
}

/* Marks the bytes of a collective's operands and result on another queue as in use, or as free
 * again. */
static void zfi_hold(zfi_play *p, int32_t id, bool holds)
{
    const zfi_node *node = &p->graph->nodes[id];
    int32_t *held = p->held[node->queue];
    if (!node->queue) return;
    for (int32_t k = -1; k < node->arg_count; k++) {
        int32_t owner = p->owner[k < 0 ? id : node->args[k]];
        if (holds) held[owner] = id;
        else if (held[owner] == id) held[owner] = 0;
    }
}

/* Checks that a leaf owns its bytes at the end of a section. */
static void zfi_play_end(zfi_play *p, int32_t id, const char *section)
{
    zf_graph *g = p->graph;
    const zfi_node *node = &g->nodes[id];
    int32_t found;
    if (!zfi_has(g, id, ZF_OP_LEAF) || !node->placed) return;
    found = zfi_intruder(p->maps[node->space], node->offset, node->offset + node->bytes, id);
    if (found != id)
        zfi_verify_fail(g, id,
                        found ? "at the end of the %s its bytes belong to %%%d"
                              : "at the end of the %s its bytes are gone",
                        section, (int)found);
}

/* Node `id` writes the value of `result`: its own, or that of its saved node. */
static void zfi_play_result(zfi_play *p, int32_t id, int32_t result)
{
    zf_graph *g = p->graph;
    const zfi_node *node = &g->nodes[id], *made = &g->nodes[result];
    if (zfi_overlap(made->offset, made->bytes, node->scratch_offset, node->scratch_bytes))
        zfi_verify_fail(g, result,
                        result == id ? "its result overlaps its scratch"
                                     : "its result overlaps the scratch of %%%d",
                        (int)id);
    if (result != id && zfi_overlap(made->offset, made->bytes, node->offset, node->bytes))
        zfi_verify_fail(g, result, "its result overlaps that of %%%d", (int)id);
    for (int32_t k = 0; k < node->arg_count; k++) {
        const zfi_node *x = &g->nodes[node->args[k]];
        bool over =
            result == id && ((zfi_may_overwrite(g, id, k) && x->offset == node->offset &&
                              zfi_same_shape(&x->shape, &node->shape) && x->bytes == node->bytes) ||
                             zfi_packed_in_place(g, node, k));
        if (x->placed && !over && x->space == made->space &&
            zfi_overlap(made->offset, made->bytes, x->offset, x->bytes))
            zfi_verify_fail(g, result, "its result overlaps %%%d, which %s still reads",
                            (int)node->args[k], result == id ? "it" : "what saves it");
    }
    if (!g->error.status) zfi_claim(p, id, made->space, made->offset, made->bytes, result);
}

static void zfi_play_node(zfi_play *p, int32_t position)
{
    zf_graph *g = p->graph;
    int32_t id = g->order[position];
    const zfi_node *node = &g->nodes[id];
    bool view = zfi_lies_in_operand(g, node);
    int64_t at;
    if (node->op == ZF_OP_wait) zfi_hold(p, node->args[0], false);
    zfi_claim(p, id, node->space, node->scratch_offset, node->scratch_bytes, 0);
    if (g->memory.failed) return;
    for (int32_t k = 0; k < node->arg_count && k < 31; k++)
        if (zfi_written_args(g, node) >> k & 1) {
            const int32_t leaf = zfi_written_leaf(g, node->args[k]);
            p->made[node->args[k]] = p->made[leaf] = position;
            if (!zfi_piece_of(g, node->args[k])) p->whole[leaf] = position;
        }
    zfi_play_reads(p, id);
    if (zfi_has(g, id, ZF_OP_LEAF | ZF_OP_EFFECT)) return;
    p->owner[id] = view ? p->owner[node->args[zfi_viewed(g, node, &at)]] : id;
    p->place[id] = view && !node->placed ? p->place[node->args[zfi_viewed(g, node, &at)]] : id;
    p->made[id] = position;
    if (zfi_is_joined(g, node)) return;
    if (node->op == ZF_OP_saved) return; /* it owns its bytes since its operand was computed */
    if (!view) zfi_play_result(p, id, id);
    for (int k = 0; k < ZF_MAX_SAVED; k++)
        if (node->saved[k]) zfi_play_result(p, id, node->saved[k]);
    zfi_hold(p, id, true);
}

/* Checks the placement of a graph whose nodes have been verified. O(n log n) in nodes and operands,
 * apart from inserting segments into the maps. */
static zf_status zfi_verify_plan(zf_graph *g)
{
    const int32_t queues = zfi_queue_count(g);
    size_t count = (size_t)zfi_len(g->nodes), all = (4 + (size_t)queues) * count;
    int32_t end = zfi_len(g->order), *arrays = zfi_calloc(&g->memory, all, sizeof *arrays);
    zfi_play p = {.graph = g, .owner = arrays, .queues = queues};
    for (int space = 0; space < ZF_SPACES && arrays; space++)
        zfi_push(&g->memory, p.maps[space], ((zfi_segment){0, 0}));
    if (arrays && !g->memory.failed) {
        p.made = arrays + count, p.place = arrays + 2 * count, p.whole = arrays + 3 * count;
        for (int q = 0; q < queues; q++) p.held[q] = arrays + (size_t)(4 + q) * count;
        for (size_t n = 0; n < count; n++)
            p.made[n] = p.whole[n] = -1, p.place[n] = (int32_t)n;
        for (int32_t i = 0; i < end && !g->error.status; i++) zfi_play_place(g, g->order[i]);
        for (int32_t i = 0; i < end && !g->error.status && !g->memory.failed; i++)
            zfi_play_leaf(&p, g->order[i]);
        for (int32_t i = 0; i < end && !g->error.status && !g->memory.failed; i++)
            zfi_play_slots(&p, g->order[i]);
        for (int32_t i = 0; i < end && !g->error.status && !g->memory.failed; i++) {
            zfi_play_node(&p, i);
            if (zfi_runs_once(&g->nodes[g->order[i]]) ||
                (i + 1 < end && !zfi_runs_once(&g->nodes[g->order[i + 1]])))
                continue;
            for (int32_t k = 0; k < end && !g->error.status; k++)
                if (g->nodes[g->order[k]].op == ZF_OP_accumulator)
                    zfi_play_end(&p, g->order[k], "micro section");
        }
        for (int32_t i = 0; i < end && !g->error.status && !g->memory.failed; i++) {
            if (g->nodes[g->order[i]].op == ZF_OP_output) zfi_play_reads(&p, g->order[i]);
            if (g->nodes[g->order[i]].op != ZF_OP_accumulator)
                zfi_play_end(&p, g->order[i], "step");
        }
    }
    zfi_free(&g->memory, arrays, all * sizeof *arrays);
    for (int space = 0; space < ZF_SPACES; space++) zfi_array_free(&g->memory, p.maps[space]);
    if (g->memory.failed) return zfi_graph_nomem(g);
    return g->error.status;
}
