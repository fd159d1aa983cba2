/* memory: gives every value its place in the arena of its space.
 *
 * requires: nothing; run once, last
 * ensures:  every value has offset and bytes; an arena's size is exactly what a run allocates; no
 *           two live values overlap, which ir/plan.c checks again in its own way
 * before:   %4 = matmul %1, %2 : f32[4,32]
 * after:    %4 = matmul %1, %2 : f32[4,32] @4096+512      ...      peak 8192 %4
 *
 *     | inputs, parameters, states, constants, caches | work: values that live within a step |
 *     0                                            persistent                               arena
 *
 * Work begins above the temporary caches of the program that lends them.
 *
 * There is one such arena for each space (device, host, disk), placed independently. A buffer is
 * the storage of a value and of all values that share it: views (reshape, a slice of leading rows);
 * results written over an operand at its last use; and operands of a pack at their last use, which
 * are computed inside the pack. Params of a concat are placed side by side, and the concat is a
 * view of them. What a store holds already has no place here.
 *
 * The lifetime of a buffer runs from the first definition to the last use. Operands and results of
 * a node on another queue live until its wait, an accumulator from the start, and a saved value
 * from its operand's turn on. A view of a parameter or state that would be read after a write to it
 * is a copy instead.
 *
 * Where a rank runs a schedule, a value that several tasks use has slots for several micro-batches
 * (course.c). These lie side by side, from the beginning to the end of the micro section.
 *
 * Placing buffers is packing rectangles (lifetime x size). Two greedy orders are tried - by size,
 * after Pisarchyk & Lee 2020, and by time with the best fit - and the smaller arena is used. In
 * host memory, buffers of a page or more have whole pages, and lie before the others. */

typedef struct zfi_buffer {
    int64_t bytes;        /* of the value for which it was made */
    int64_t size, offset; /* aligned */
    int32_t first, last;  /* its lifetime: positions in the order, both included */
    int32_t node;         /* the first node that defines it */
    int32_t rank;         /* its index, to break ties */
    zf_space space;
    bool persistent, scratch, accumulates;
    bool external; /* in a store, or a cache of another program: no place in this arena */
    int32_t host;  /* the buffer of a pack inside which it lies; -1: none */
    int64_t at;    /* its offset there */
    int32_t next;  /* of a param: the buffer that follows it in a concat; -1: none */
    bool follows;  /* it must follow another */
    bool sent;     /* a task sends it, perhaps while the next one runs */
    int32_t slots; /* copies, for several micro-batches (course.c), */
    int64_t apart; /* of so many bytes; 0: one */
} zfi_buffer;

/* The backend that computes in host memory: `host`, or a backend whose memory that is; NULL:
 * neither is given. */
static zf_backend *zfi_host_backend(zf_backend *backend, zf_backend *host)
{
    return host ? host : backend && backend->host_memory ? backend : NULL;
}

typedef struct zfi_placement {
    zf_graph *graph;
    const zf_store *store; /* zf_memory_desc.store */
    zfi_buffer *buffers; /* growing array */
    size_t nodes;
    int32_t *buffer_of; /* by node; -1: none */
    int64_t *inside;    /* by node: bytes from its buffer's start; -1: it depends on the rank */
    /* By node: position of the last reader, also of its views; after the end for an output */
    int32_t *last_use;
    /* By node: positions of the first and last node that writes it; after the end for none */
    int32_t *written, *written_last;
    int32_t *position; /* by node */
    int64_t total;     /* bytes of all buffers */
    int32_t micro_end; /* the position of the update section */
} zfi_placement;

static int64_t zfi_aligned(int64_t bytes)
{
    return (bytes + ZFI_ALIGN - 1) / ZFI_ALIGN * ZFI_ALIGN;
}

/* The value takes whole pages, so that a disk can read and write it where it lies (io/disk.c). */
static bool zfi_is_paged(uint8_t space, int64_t bytes)
{
    return space == ZF_DISK || (space == ZF_HOST && bytes >= ZFI_DISK_ALIGN);
}

/* The bytes that a value takes in a space, rounded up. */
static int64_t zfi_room_of(uint8_t space, int64_t bytes)
{
    const int64_t align = zfi_is_paged(space, bytes) ? ZFI_DISK_ALIGN : ZFI_ALIGN;
    return (bytes + align - 1) / align * align;
}

/* The bytes from a placed node's first slot to the end of its last one. */
static int64_t zfi_slots_room(const zfi_node *node)
{
    const int64_t room = zfi_room_of(node->space, node->bytes);
    return node->slots > 1 ? (node->slots - 1) * node->apart + room : room;
}

/* The node is storage that outlives a step. */
static bool zfi_is_persistent(const zf_graph *g, const zfi_node *node)
{
    return g->records[node->op]->place != ZFI_NO_PLACE && !node->held;
}

/* The node has a saved node. */
static bool zfi_saves(const zfi_node *node)
{
    for (int k = 0; k < ZF_MAX_SAVED; k++)
        if (node->saved[k]) return true;
    return false;
}

/* A node as a backend sees it, with data pointers not set. `args` has room for its operands and, if
 * it has saved nodes, for ZF_MAX_SAVED more. */
static zf_launch zfi_launch_of(const zf_graph *g, int32_t id, zf_array *args)
{
    const zfi_node *node = &g->nodes[id];
    zf_launch l = {.op = node->op,
                   .own = g->records[node->op]->own,
                   .node = id,
                   .arg_count = node->arg_count,
                   .args = args,
                   .out = {NULL, node->dtype, node->shape},
                   .attributes = node->attributes};
    for (int32_t k = 0; k < node->arg_count; k++)
        args[k] = (zf_array){NULL, g->nodes[node->args[k]].dtype, g->nodes[node->args[k]].shape};
    if (!zfi_saves(node)) return l;
    l.saved = args + node->arg_count;
    for (int k = 0; k < ZF_MAX_SAVED; k++) {
        const zfi_node *saved = &g->nodes[node->saved[k]];
        args[node->arg_count + k] = node->saved[k] ? (zf_array){NULL, saved->dtype, saved->shape}
                                                   : (zf_array){.data = NULL};
    }
    return l;
}

/* Finds positions of last uses and of writes. A view's readers count as readers of its operand; a
 * wait counts as the last reader of the operands of its launch. */
static void zfi_find_uses(zfi_placement *p)
{
    const zf_graph *g = p->graph;
    int32_t end = zfi_len(g->order);
    int64_t at;
    for (size_t n = 0; n < p->nodes; n++)
        p->last_use[n] = -1, p->written[n] = p->written_last[n] = end + 1, p->position[n] = -1;
    for (int32_t i = end; zfi_down(i);) {
        const zfi_node *node = &g->nodes[g->order[i]];
        int32_t until = node->op == ZF_OP_output ? end : i, viewed = zfi_viewed(g, node, &at);
        p->position[g->order[i]] = i;
        if (p->last_use[g->order[i]] < i) p->last_use[g->order[i]] = i;
        if (node->op == ZF_OP_saved) continue; /* its operand computes it */
        for (int32_t k = 0; k < node->arg_count; k++) {
            int32_t x = node->args[k], last = k == viewed ? p->last_use[g->order[i]] : until;
            if (p->last_use[x] < last) p->last_use[x] = last;
            if (k < 31 && zfi_written_args(g, node) >> k & 1) {
                x = zfi_written_leaf(g, x);
                p->written[x] = i;
                if (p->written_last[x] > end) p->written_last[x] = i;
            }
        }
        if (node->op == ZF_OP_wait) {
            const zfi_node *made = &g->nodes[node->args[0]];
            for (int32_t k = 0; k < made->arg_count; k++)
                if (p->last_use[made->args[k]] < i) p->last_use[made->args[k]] = i;
        }
    }
}

/* Operands k and k + 1 of a node are neighbours in the store. */
static bool zfi_are_neighbours(const zfi_placement *p, const zfi_node *node, int32_t k)
{
    const zf_graph *g = p->graph;
    int32_t a = zfi_store_placed(p->store, g->nodes[node->args[k]].name),
            b = zfi_store_placed(p->store, g->nodes[node->args[k + 1]].name);
    return a >= 0 && b >= 0 && zfi_store_follows(p->store, a, b);
}

/* The node at `position` is a concat of params that can be made neighbours: none of them is written
 * before the last reader of the concat, and no other concat has any of them. Then marks them as
 * neighbours. Those in a store must be neighbours there. */
static bool zfi_joins_params(zfi_placement *p, int32_t id, int32_t position)
{
    const zf_graph *g = p->graph;
    const zfi_node *node = &g->nodes[id];
    if (node->op != ZF_OP_concat || ZF_INT(node, concat, axis) != 0) return false;
    for (int32_t k = 0; k < node->arg_count; k++) {
        int32_t x = node->args[k], b = p->buffer_of[x];
        const zfi_buffer *buffer = b < 0 ? NULL : &p->buffers[b];
        if (g->nodes[x].op != ZF_OP_param || !buffer || buffer->follows || buffer->next >= 0)
            return false;
        if (buffer->external ? k + 1 < node->arg_count && !zfi_are_neighbours(p, node, k)
                             : k + 1 < node->arg_count &&
                                   (int64_t)zfi_node_bytes(&g->nodes[x]) != buffer->size)
            return false;
        if (buffer->external != p->buffers[p->buffer_of[node->args[0]]].external) return false;
        if (p->written[x] <= p->last_use[id] && p->written_last[x] > position) return false;
        for (int32_t other = 0; other < k; other++)
            if (node->args[other] == x) return false;
    }
    for (int32_t k = 0; k + 1 < node->arg_count; k++) {
        int32_t b = p->buffer_of[node->args[k]], next = p->buffer_of[node->args[k + 1]];
        if (p->buffers[b].external) return true;
        p->buffers[b].next = next;
        p->buffers[next].follows = true;
    }
    return true;
}

/* The node at `position` shares the bytes of operand *k: it is a view, and no reader would see a
 * parameter or state changed by a later write. A view through which a node writes always shares. */
static bool zfi_shares_operand(zfi_placement *p, int32_t id, int32_t position, bool no_reuse,
                               int32_t *k, int64_t *at)
{
    const zf_graph *g = p->graph;
    int32_t viewed = zfi_viewed(g, &g->nodes[id], at), buffer, leaf;
    *k = viewed;
    if (!no_reuse && zfi_joins_params(p, id, position)) return *k = 0, true;
    if (viewed < 0) return false;
    if (zfi_is_part(&g->nodes[id]) || zfi_writes_into(g, id, viewed)) return true;
    buffer = p->buffer_of[g->nodes[id].args[viewed]];
    if (no_reuse || p->inside[g->nodes[id].args[viewed]] < 0) return false;
    if (buffer < 0) return true;
    leaf = p->buffers[buffer].node;
    return p->written[leaf] > p->last_use[id] || p->written_last[leaf] <= position;
}

/* The operand over which the node at `position` can write its result; -1: none. The operand's
 * buffer ends here and holds no other value; other operands in this buffer have the same bytes. */
static int32_t zfi_overwrites(const zfi_placement *p, int32_t id, int32_t position)
{
    const zf_graph *g = p->graph;
    const zfi_node *node = &g->nodes[id];
    for (int32_t k = 0; k < node->arg_count; k++) {
        const zfi_node *x = &g->nodes[node->args[k]];
        int32_t b = p->buffer_of[node->args[k]];
        bool good = zfi_may_overwrite(g, id, k) && b >= 0 && !p->buffers[b].persistent &&
                    !p->buffers[b].accumulates && !p->buffers[b].sent &&
                    p->buffers[b].host < 0 && p->buffers[b].last == position &&
                    zf_dtype_size(x->dtype) == zf_dtype_size(node->dtype) &&
                    zfi_same_shape(&x->shape, &node->shape) &&
                    (int64_t)zfi_node_bytes(x) == p->buffers[b].bytes &&
                    p->inside[node->args[k]] == 0;
        for (int32_t other = 0; other < node->arg_count && good; other++)
            good = p->buffer_of[node->args[other]] != b ||
                   (zfi_may_overwrite(g, id, other) && p->inside[node->args[other]] == 0 &&
                    zfi_same_shape(&g->nodes[node->args[other]].shape, &node->shape));
        if (good) return k;
    }
    return -1;
}

/* Adds a buffer of `bytes`; returns its index. The sum of all buffers must fit int64, so that no
 * offset overflows. */
static int32_t zfi_add_buffer(zfi_placement *p, zfi_buffer buffer, int64_t bytes)
{
    if (bytes < 0 || bytes > INT64_MAX - ZFI_DISK_ALIGN - p->total) {
        zfi_fail(&p->graph->error, ZF_ERR_LIMIT,
                 "zf_memory: the values up to %%%d take 2^63 bytes or more", (int)buffer.node);
        return -1;
    }
    buffer.bytes = bytes;
    buffer.size = zfi_room_of((uint8_t)buffer.space, bytes);
    buffer.rank = zfi_len(p->buffers);
    p->total += buffer.size;
    return zfi_push(&p->graph->memory, p->buffers, buffer) ? buffer.rank : -1;
}

/* Puts operands of a pack whose last use it is, and which have their buffers alone, inside its
 * buffer. */
static void zfi_host_operands(zfi_placement *p, int32_t id, int32_t position)
{
    const zf_graph *g = p->graph;
    const zfi_node *node = &g->nodes[id];
    const int64_t *places = ZF_LIST(node, pack, at).data;
    int32_t host = p->buffer_of[id];
    for (int32_t k = 0; k < node->arg_count && host >= 0; k++) {
        int32_t x = node->args[k], b = p->buffer_of[x];
        int64_t at = places[k] * (int64_t)zf_dtype_size(node->dtype);
        zfi_buffer *buffer = b < 0 ? NULL : &p->buffers[b];
        if (!buffer || buffer->persistent || buffer->host >= 0 || buffer->last != position ||
            buffer->accumulates || p->inside[x] != 0 || at % ZFI_ALIGN ||
            (int64_t)zfi_node_bytes(&g->nodes[x]) != buffer->bytes ||
            at + buffer->size > p->buffers[host].size)
            continue;
        if (k + 1 < node->arg_count &&
            at + buffer->size > places[k + 1] * (int64_t)zf_dtype_size(node->dtype))
            continue;
        buffer->host = host;
        buffer->at = at;
        if (buffer->first < p->buffers[host].first) p->buffers[host].first = buffer->first;
    }
}

/* The store has the leaf, or a leaf of the bucket. */
static bool zfi_has_stored(const zf_graph *g, int32_t id, const zf_store *store)
{
    const zfi_node *node = &g->nodes[id];
    bool has = node->name && zfi_store_placed(store, node->name) >= 0;
    for (int32_t k = 0; node->op == ZF_OP_bucket && k < node->arg_count && !has; k++)
        has = zfi_store_placed(store, g->nodes[node->args[k]].name) >= 0;
    return has;
}

/* The cache of that name in a graph, which may be NULL; 0: there is none. */
static int32_t zfi_cache_in(const zf_graph *g, const char *name)
{
    int32_t id = g ? zfi_map_get(g->names, name, 0) : 0;
    return id && g->nodes[id].op == ZF_OP_cache ? id : 0;
}

/* Assigns every value to its buffer, and asks the backend for scratch. */
static void zfi_make_buffers(zfi_placement *p, const zf_memory_desc *d, zf_array *args)
{
    zf_graph *g = p->graph;
    int32_t end = zfi_len(g->order);
    for (int32_t i = 0; i < end && !g->memory.failed && !g->error.status; i++) {
        int32_t id = g->order[i], over, k;
        zfi_node *node = &g->nodes[id];
        int64_t at;
        bool view = zfi_shares_operand(p, id, i, d->no_reuse, &k, &at);
        if (node->held || (g->unread && node->op == ZF_OP_input && p->last_use[id] == i)) continue;
        if (!zfi_is_persistent(g, node) && !view) {
            const zf_backend *runs =
                node->space == ZF_HOST && node->op != ZF_OP_copy ? d->host : d->backend;
            zf_launch l = zfi_launch_of(g, id, args);
            if (runs) l.backend = runs->self;
            node->scratch_bytes = runs ? (int64_t)runs->scratch(runs->self, &l) : 0;
            if (node->scratch_bytes)
                zfi_add_buffer(p,
                               (zfi_buffer){.first = i,
                                            .last = i,
                                            .node = id,
                                            .space = (zf_space)node->space,
                                            .scratch = true,
                                            .host = -1,
                                            .next = -1},
                               node->scratch_bytes);
        }
        if (zfi_has(g, id, ZF_OP_EFFECT)) continue;
        if (zfi_is_transfer(g, id) && node->arg_count && p->buffer_of[node->args[0]] >= 0)
            p->buffers[p->buffer_of[node->args[0]]].sent = true;
        if (view) {
            p->buffer_of[id] = p->buffer_of[node->args[k]];
            p->inside[id] = p->inside[node->args[k]];
            p->inside[id] = at < 0 || p->inside[id] < 0 ? -1 : p->inside[id] + at;
        } else if ((over = d->no_reuse ? -1 : zfi_overwrites(p, id, i)) >= 0) {
            p->buffer_of[id] = p->buffer_of[node->args[over]];
            p->buffers[p->buffer_of[id]].last = p->last_use[id];
        } else {
            zfi_buffer b = {.first = node->op == ZF_OP_saved ? p->position[node->args[0]] : i,
                            .last = p->last_use[id],
                            .node = id,
                            .space = (zf_space)node->space,
                            .persistent = zfi_is_persistent(g, node),
                            .accumulates = node->op == ZF_OP_accumulator,
                            .host = -1,
                            .next = -1};
            b.external = b.persistent && zfi_is_written(g, node->op) &&
                         (node->op == ZF_OP_cache ? zfi_cache_in(d->caches, node->name) > 0
                                                  : zfi_has_stored(g, id, d->store));
            if (b.persistent) b.first = 0, b.last = end;
            if (b.accumulates) { /* the micro section runs again */
                b.first = 0;
                if (b.last < p->micro_end) b.last = p->micro_end;
            }
            p->buffer_of[id] = zfi_add_buffer(p, b, (int64_t)zfi_node_bytes(node));
        }
        if (node->op == ZF_OP_pack && !d->no_reuse) zfi_host_operands(p, id, i);
    }
}

/* ------------------------------------------------------------------------------- slots */

/* The buffer in whose place a node's value lies; -1: none. */
static int32_t zfi_place_of(const zfi_placement *p, int32_t id)
{
    int32_t b = p->buffer_of[id];
    while (b >= 0 && p->buffers[b].host >= 0) b = p->buffers[b].host;
    return b;
}

/* Notes what a node uses, by buffer. before: as in zfi_value_life. */
static void zfi_note_value_uses(const zfi_placement *p, int32_t id, zfi_value_uses *uses,
                                int32_t *before)
{
    const zf_graph *g = p->graph;
    const zfi_node *node = &g->nodes[id];
    const bool once = zfi_runs_once(node), shown = node->op == ZF_OP_output;
    const uint64_t place = once || zfi_has(g, id, ZF_OP_LEAF)
                               ? 0
                               : (uint64_t)1 << zfi_course_place(g, id);
    int32_t b = zfi_place_of(p, id);
    if (node->op == ZF_OP_saved || node->op == ZF_OP_release) return;
    if (b >= 0) uses[b].places |= place, uses[b].once |= zfi_runs_first(node);
    if (b >= 0 && zfi_is_transfer(g, id) && !node->arg_count)
        before[id] = uses[b].received, uses[b].received = id;
    for (int k = 0; k < ZF_MAX_SAVED; k++)
        if (node->saved[k] && (b = zfi_place_of(p, node->saved[k])) >= 0) uses[b].places |= place;
    for (int32_t k = 0; k < node->arg_count; k++) {
        if ((b = zfi_place_of(p, node->args[k])) < 0) continue;
        uses[b].places |= place, uses[b].later |= once || shown;
        if (zfi_is_transfer(g, id)) uses[b].sent |= place;
    }
}

/* Gives a buffer its slots: it lives as long as the micro section. */
static void zfi_give_slots(zfi_placement *p, zfi_buffer *b, int32_t slots)
{
    if (slots > 1 && b->size > (INT64_MAX - ZFI_DISK_ALIGN - p->total) / slots) {
        zfi_fail(&p->graph->error, ZF_ERR_LIMIT,
                 "zf_memory: the values up to %%%d take 2^63 bytes or more", (int)b->node);
        return;
    }
    p->total += b->size * (slots - 1);
    b->slots = slots, b->apart = b->size, b->size *= slots;
    if (b->persistent) return;
    b->first = 0;
    if (b->last < p->micro_end) b->last = p->micro_end;
}

/* What the first micro-batch makes for all stays while the others run. */
static void zfi_keep_once(zfi_placement *p)
{
    const zf_graph *g = p->graph;
    for (int32_t i = 0; i < zfi_len(g->order) && g->micro_batches > 1; i++) {
        const int32_t id = g->order[i], b = zfi_runs_first(&g->nodes[id]) ? zfi_place_of(p, id) : -1;
        if (b >= 0 && !p->buffers[b].persistent) zfi_give_slots(p, &p->buffers[b], 1);
    }
}

/* Values of several tasks, and inputs, have slots for several micro-batches. */
static void zfi_find_slots(zfi_placement *p)
{
    zf_graph *g = p->graph;
    const size_t count = (size_t)zfi_len(p->buffers), nodes = (size_t)zfi_len(g->nodes);
    zfi_course c;
    zfi_value_uses *uses = zfi_calloc(&g->memory, count, sizeof *uses);
    int32_t *before = zfi_calloc(&g->memory, nodes, sizeof *before);
    if (!zfi_course_make(g, &c) && uses && before) {
        for (int32_t i = 0; i < zfi_len(g->order); i++)
            zfi_note_value_uses(p, g->order[i], uses, before);
        for (size_t n = 0; n < count && !g->error.status; n++) {
            zfi_buffer *b = &p->buffers[n];
            const bool input = g->nodes[b->node].op == ZF_OP_input;
            if (b->scratch || b->accumulates || b->external || b->host >= 0) continue;
            if (b->persistent ? !input || !uses[n].places : zfi_is_of_one_task(&uses[n])) continue;
            zfi_give_slots(p, b, input ? (int32_t)g->micro_batches
                                       : zfi_value_slots(&c, g, &uses[n], before));
        }
    }
    zfi_course_free(&c);
    zfi_free(&g->memory, before, nodes * sizeof *before);
    zfi_free(&g->memory, uses, count * sizeof *uses);
}

/* ------------------------------------------------------------------------------ packing */

static int zfi_by_size(const void *left, const void *right)
{
    const zfi_buffer *a = left, *b = right;
    if (a->size != b->size) return a->size < b->size ? 1 : -1;
    return a->rank < b->rank ? -1 : 1;
}

static int zfi_by_first(const void *left, const void *right)
{
    const zfi_buffer *a = left, *b = right;
    if (a->first != b->first) return a->first < b->first ? -1 : 1;
    return a->rank < b->rank ? -1 : 1;
}

static bool zfi_lives_with(const zfi_buffer *a, const zfi_buffer *b)
{
    return a->first <= b->last && b->first <= a->last;
}

/* Largest first: each buffer goes into the smallest gap that holds it between the placed buffers
 * that live at the same time. `sorted` is by size; `placed` has room for all. Sets offsets from 0;
 * returns the arena's size. Quadratic. */
static int64_t zfi_pack_by_size(zfi_buffer *sorted, int32_t count, zfi_buffer **placed)
{
    int64_t arena = 0;
    for (int32_t n = 0; n < count; n++) {
        zfi_buffer *b = &sorted[n];
        int64_t gap_start = 0, best = -1, best_size = INT64_MAX;
        int32_t at;
        for (int32_t k = 0; k < n; k++) { /* placed[] is in the order of offsets */
            if (!zfi_lives_with(b, placed[k])) continue;
            if (placed[k]->offset - gap_start >= b->size &&
                placed[k]->offset - gap_start < best_size)
                best = gap_start, best_size = placed[k]->offset - gap_start;
            if (placed[k]->offset + placed[k]->size > gap_start)
                gap_start = placed[k]->offset + placed[k]->size;
        }
        b->offset = best >= 0 ? best : gap_start;
        if (b->offset + b->size > arena) arena = b->offset + b->size;
        for (at = n; at > 0 && placed[at - 1]->offset > b->offset; at--)
            placed[at] = placed[at - 1];
        placed[at] = b;
    }
    return arena;
}

/* A piece of the arena, taken or free. Neighbours are linked by offset; free pieces are also in a
 * tree by size. */
typedef struct zfi_block {
    int64_t offset, size;
    int32_t before, after; /* neighbours; 0: none */
    int32_t left, right;   /* the tree is a treap, whose priorities are hashes of the index */
    bool free;
} zfi_block;

typedef struct zfi_heap {
    zfi_block *blocks;               /* [0] is no block */
    int32_t used, root, last, spare; /* spare: unused blocks, linked by `after` */
} zfi_heap;

static uint32_t zfi_priority(int32_t block) { return (uint32_t)block * 2654435769u; }

static bool zfi_smaller(const zfi_heap *h, int32_t a, int32_t b)
{
    const zfi_block *x = &h->blocks[a], *y = &h->blocks[b];
    return x->size != y->size ? x->size < y->size : x->offset < y->offset;
}

/* Splits the tree into blocks smaller than `at` and the rest. */
static void zfi_tree_split(zfi_heap *h, int32_t tree, int32_t at, int32_t *low, int32_t *high)
{
    while (tree) {
        zfi_block *b = &h->blocks[tree];
        if (zfi_smaller(h, tree, at)) {
            *low = tree, low = &b->right, tree = b->right;
        } else {
            *high = tree, high = &b->left, tree = b->left;
        }
    }
    *low = *high = 0;
}

static void zfi_tree_add(zfi_heap *h, int32_t block)
{
    int32_t *link = &h->root;
    while (*link && zfi_priority(*link) > zfi_priority(block))
        link = zfi_smaller(h, *link, block) ? &h->blocks[*link].right : &h->blocks[*link].left;
    zfi_tree_split(h, *link, block, &h->blocks[block].left, &h->blocks[block].right);
    *link = block;
}

static void zfi_tree_remove(zfi_heap *h, int32_t block)
{
    int32_t *link = &h->root, low = h->blocks[block].left, high = h->blocks[block].right;
    while (*link != block)
        link = zfi_smaller(h, *link, block) ? &h->blocks[*link].right : &h->blocks[*link].left;
    while (low && high) {
        bool of_low = zfi_priority(low) > zfi_priority(high);
        int32_t top = of_low ? low : high;
        *link = top;
        link = of_low ? &h->blocks[top].right : &h->blocks[top].left;
        if (of_low) low = *link;
        else high = *link;
    }
    *link = low ? low : high;
}

/* Inserts a block after `before`, in no tree. */
static int32_t zfi_heap_insert(zfi_heap *h, int32_t before, int64_t offset, int64_t size)
{
    int32_t id = h->spare ? h->spare : ++h->used, after = before ? h->blocks[before].after : 0;
    if (h->spare) h->spare = h->blocks[id].after;
    h->blocks[id] = (zfi_block){.offset = offset, .size = size, .before = before, .after = after};
    if (before) h->blocks[before].after = id;
    if (after) h->blocks[after].before = id;
    else h->last = id;
    return id;
}

static void zfi_heap_drop(zfi_heap *h, int32_t id)
{
    zfi_block *b = &h->blocks[id];
    if (b->before) h->blocks[b->before].after = b->after;
    if (b->after) h->blocks[b->after].before = b->before;
    else h->last = b->before;
    b->after = h->spare;
    h->spare = id;
}

/* Takes `size` bytes from the smallest free block that holds them, or from the end of the arena. */
static int32_t zfi_heap_take(zfi_heap *h, int64_t size)
{
    int32_t best = 0;
    for (int32_t tree = h->root; tree;)
        if (h->blocks[tree].size >= size) best = tree, tree = h->blocks[tree].left;
        else tree = h->blocks[tree].right;
    if (!best && h->last && h->blocks[h->last].free) { /* grow the end */
        best = h->last;
        zfi_tree_remove(h, best);
        h->blocks[best].size = size;
    } else if (best) {
        zfi_tree_remove(h, best);
    } else {
        int64_t end = h->last ? h->blocks[h->last].offset + h->blocks[h->last].size : 0;
        best = zfi_heap_insert(h, h->last, end, size);
    }
    h->blocks[best].free = false;
    if (h->blocks[best].size > size) {
        int32_t rest =
            zfi_heap_insert(h, best, h->blocks[best].offset + size, h->blocks[best].size - size);
        h->blocks[best].size = size;
        h->blocks[rest].free = true;
        zfi_tree_add(h, rest);
    }
    return best;
}

static void zfi_heap_give(zfi_heap *h, int32_t id)
{
    int32_t before = h->blocks[id].before, after = h->blocks[id].after;
    if (before && h->blocks[before].free) {
        zfi_tree_remove(h, before);
        h->blocks[before].size += h->blocks[id].size;
        zfi_heap_drop(h, id);
        id = before;
    }
    if (after && h->blocks[after].free) {
        zfi_tree_remove(h, after);
        h->blocks[id].size += h->blocks[after].size;
        zfi_heap_drop(h, after);
    }
    h->blocks[id].free = true;
    zfi_tree_add(h, id);
}

/* In the order of first definitions: each buffer goes into the smallest gap between the live ones.
 * `ending` has room for one number for each position and one more, then for two for each buffer;
 * `blocks` for two for each buffer and one more. Takes n log n. */
static int64_t zfi_pack_by_time(zfi_buffer *buffers, int32_t count, int32_t positions,
                                int32_t *ending, zfi_block *blocks)
{
    zfi_heap heap = {.blocks = blocks};
    int32_t *next = ending + positions, *block = next + count, now = 0;
    int64_t arena = 0;
    for (int32_t i = 0; i < positions; i++) ending[i] = -1;
    for (int32_t n = 0; n < count; n++) { /* ending[i]: buffers whose lifetime ends at position i */
        next[n] = ending[buffers[n].last];
        ending[buffers[n].last] = n;
    }
    for (int32_t n = 0; n < count; n++) {
        zfi_buffer *b = &buffers[n];
        for (; now < b->first; now++)
            for (int32_t dead = ending[now]; dead >= 0; dead = next[dead])
                if (buffers[dead].size) zfi_heap_give(&heap, block[dead]);
        if (!b->size) continue;
        block[n] = zfi_heap_take(&heap, b->size);
        b->offset = blocks[block[n]].offset;
        if (b->offset + b->size > arena) arena = b->offset + b->size;
    }
    return arena;
}

static int64_t zfi_pack_apart(zfi_buffer *buffers, int32_t count)
{
    int64_t arena = 0;
    for (int32_t n = 0; n < count; n++) buffers[n].offset = arena, arena += buffers[n].size;
    return arena;
}

/* Up to so many buffers, packing by size, which is quadratic, is tried too */
enum { ZFI_QUADRATIC = 1024 };

/* Packs the buffers of a space that live within a step, those of whole pages or the others, from
 * `at` on; returns the size of their part of its arena. */
static int64_t zfi_pack_some(zfi_placement *p, const zf_memory_desc *d, zf_space space, bool paged,
                             int64_t at)
{
    zfi_memory *memory = &p->graph->memory;
    int32_t count = 0, all = zfi_len(p->buffers), positions = zfi_len(p->graph->order) + 1;
    size_t room = (size_t)all + 1, numbers = (size_t)positions + 2 * room;
    zfi_buffer *work = zfi_calloc(memory, room, sizeof *work),
               *again = zfi_calloc(memory, room, sizeof *again);
    zfi_buffer **list = zfi_calloc(memory, room, sizeof *list);
    int32_t *ending = zfi_calloc(memory, numbers, sizeof *ending);
    zfi_block *blocks = zfi_calloc(memory, 2 * room, sizeof *blocks);
    int64_t arena = 0;
    if (work && again && list && ending && blocks) {
        for (int32_t n = 0; n < all; n++) {
            const zfi_buffer *b = &p->buffers[n];
            if (!b->persistent && b->host < 0 && b->space == space &&
                zfi_is_paged((uint8_t)space, b->bytes) == paged)
                work[count++] = *b;
        }
        qsort(work, (size_t)count, sizeof *work, zfi_by_first);
        arena = d->no_reuse ? zfi_pack_apart(work, count)
                            : zfi_pack_by_time(work, count, positions, ending, blocks);
        if (!d->no_reuse && count <= ZFI_QUADRATIC) {
            int64_t other;
            memcpy(again, work, (size_t)count * sizeof *again);
            qsort(again, (size_t)count, sizeof *again, zfi_by_size);
            other = zfi_pack_by_size(again, count, list);
            if (other < arena) {
                arena = other;
                memcpy(work, again, (size_t)count * sizeof *again);
            }
        }
        for (int32_t n = 0; n < count; n++) p->buffers[work[n].rank].offset = at + work[n].offset;
    }
    zfi_free(memory, work, room * sizeof *work);
    zfi_free(memory, again, room * sizeof *again);
    zfi_free(memory, list, room * sizeof *list);
    zfi_free(memory, ending, numbers * sizeof *ending);
    zfi_free(memory, blocks, 2 * room * sizeof *blocks);
    return arena;
}

/* Packs all buffers of a space that live within a step: in host memory those of whole pages first,
 * so that each of them begins at a page. */
static int64_t zfi_pack_work(zfi_placement *p, const zf_memory_desc *d, zf_space space)
{
    const int64_t paged = space == ZF_DEVICE ? 0 : zfi_pack_some(p, d, space, true, 0);
    return paged + (space == ZF_DISK ? 0 : zfi_pack_some(p, d, space, false, paged));
}

/* The largest sum of live work bytes of a space, and the node at whose position it occurs; for an
 * effect, which has no id in the text, its first operand. */
static int64_t zfi_largest_sum(zfi_placement *p, zf_space space, int32_t *node)
{
    zf_graph *g = p->graph;
    size_t positions = (size_t)zfi_len(g->order) + 2;
    int64_t *change = zfi_calloc(&g->memory, positions, sizeof *change), sum = 0, most = 0;
    if (!change) return 0;
    for (int32_t n = 0; n < zfi_len(p->buffers); n++)
        if (!p->buffers[n].persistent && p->buffers[n].host < 0 && p->buffers[n].space == space) {
            change[p->buffers[n].first] += p->buffers[n].size;
            change[p->buffers[n].last + 1] -= p->buffers[n].size;
        }
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        sum += change[i];
        if (sum > most) most = sum, *node = g->order[i];
    }
    if (*node && zfi_has(g, *node, ZF_OP_EFFECT)) *node = g->nodes[*node].args[0];
    zfi_free(&g->memory, change, positions * sizeof *change);
    return most;
}

/* Places inputs, buckets, parameters, states and constants, each kind in the order of its nodes,
 * except params that are neighbours for a concat. Returns the end of the last one. */
static int64_t zfi_place_persistent(zfi_placement *p, zf_space space)
{
    int64_t at = 0;
    for (int place = ZFI_NO_PLACE + 1; place < ZFI_PLACES; place++)
        for (int32_t n = 0; n < zfi_len(p->buffers); n++) {
            zfi_buffer *b = &p->buffers[n];
            if (!b->persistent || b->external || b->follows || b->space != space ||
                (int)zfi_record_of(p->graph, b->node)->place != place)
                continue;
            for (;; b = &p->buffers[b->next]) {
                b->offset = at;
                at += b->size;
                if (b->next < 0) break;
            }
        }
    return at;
}

/* The node has bytes of its own in the plan of the disk. */
static bool zfi_is_on_disk(const zf_graph *g, int32_t id)
{
    const zfi_node *node = &g->nodes[id];
    return node->space == ZF_DISK && node->placed && node->bytes &&
           (zfi_is_persistent(g, node) || zfi_bytes_of(g, id) == id);
}

/* What a space takes besides the values in it, for those on the disk: of host memory what reads and
 * writes them, of the disk the file's first page. */
static int64_t zfi_overhead_of(const zf_graph *g, zf_space space)
{
    int64_t blocks = 0;
    int32_t values = 0;
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        if (!zfi_is_on_disk(g, g->order[i])) continue;
        values++;
        blocks += zfi_disk_blocks(g->nodes[g->order[i]].bytes, ZFI_DISK_BLOCK);
    }
    if (!values || space == ZF_DEVICE) return 0;
    if (space == ZF_DISK) return zfi_disk_file_bytes(0);
    /* A page more, since it begins at one. */
    return ZFI_DISK_ALIGN +
           (int64_t)zfi_disk_host_bytes(&(zfi_disk_desc){.count = values}, blocks);
}

static void zfi_place(zfi_placement *p, const zf_memory_desc *d)
{
    zf_graph *g = p->graph;
    int64_t persistent[ZF_SPACES] = {0};
    bool used[ZF_SPACES] = {[ZF_DEVICE] = true};
    for (int32_t n = 0; n < zfi_len(p->buffers); n++) used[p->buffers[n].space] = true;
    for (int space = 0; space < ZF_SPACES && !g->memory.failed; space++) {
        zfi_peak *peak = &g->peaks[space];
        *peak = (zfi_peak){0};
        if (!used[space]) continue;
        persistent[space] = zfi_place_persistent(p, (zf_space)space);
        if (space == ZF_DEVICE && d->caches) g->above = d->caches->temporary;
        if (space == ZF_DEVICE) persistent[space] += g->above;
        peak->bytes = persistent[space] + zfi_pack_work(p, d, (zf_space)space);
        peak->live = persistent[space] + zfi_largest_sum(p, (zf_space)space, &peak->node);
    }
    for (int32_t n = 0; n < zfi_len(p->buffers); n++) {
        zfi_buffer *b = &p->buffers[n];
        if (!b->persistent) b->offset += persistent[b->space];
        if (b->scratch) g->nodes[b->node].scratch_offset = b->offset;
    }
    for (int32_t n = zfi_len(p->buffers); zfi_down(n);) /* a pack may lie in one that comes after it */
        if (p->buffers[n].host >= 0)
            p->buffers[n].offset = p->buffers[p->buffers[n].host].offset + p->buffers[n].at;
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        int32_t id = g->order[i], b = p->buffer_of[id];
        if (b < 0 || p->buffers[b].external || p->inside[id] < 0) continue;
        g->nodes[id].placed = true;
        g->nodes[id].offset = p->buffers[b].offset + p->inside[id];
        g->nodes[id].bytes = (int64_t)zfi_node_bytes(&g->nodes[id]);
    }
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const int32_t b = zfi_place_of(p, g->order[i]);
        if (b < 0 || !p->buffers[b].slots) continue;
        g->nodes[g->order[i]].slots = p->buffers[b].slots;
        g->nodes[g->order[i]].apart = p->buffers[b].apart;
    }
    for (int space = 0; space < ZF_SPACES; space++) {
        const int64_t overhead = zfi_overhead_of(g, (zf_space)space);
        g->peaks[space].bytes += overhead, g->peaks[space].live += overhead;
    }
}

/* Every gradient that is wanted has been made. */
static zf_status zfi_check_wanted(zf_graph *g)
{
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const zfi_node *mark = &g->nodes[g->order[i]];
        if (mark->role == ZFI_ROLE_WANTED)
            return zfi_fail(
                &g->error, ZF_ERR_STAGE,
                "the output \"%.200s\" is the gradient of %%%d, which zf_autograd makes; "
                "it has not been run",
                mark->name, (int)mark->args[0]);
    }
    return ZF_OK;
}

ZF_API zf_status zf_memory(zf_graph *g, const zf_memory_desc *desc)
{
    zf_memory_desc d = desc ? *desc : (zf_memory_desc){.backend = NULL};
    zf_status status = zfi_enter(g, "zf_memory", 0, ZFI_STAGE_PLACED);
    zfi_placement p = {.graph = g, .store = d.store};
    zf_array *args;
    int32_t most = 1;
    if (!status && g->repeats) status = zfi_settle(g);
    if (!status) status = zfi_check_wanted(g);
    if (!status) status = zfi_check_gathered(g);
    if (status || (status = zfi_settle_sets(g))) return status;
    d.host = zfi_host_backend(d.backend, d.host);
    p.nodes = (size_t)zfi_len(g->nodes);
    p.buffer_of = zfi_calloc(&g->memory, p.nodes, sizeof *p.buffer_of);
    p.inside = zfi_calloc(&g->memory, p.nodes, sizeof *p.inside);
    p.last_use = zfi_calloc(&g->memory, p.nodes, sizeof *p.last_use);
    p.written = zfi_calloc(&g->memory, 3 * p.nodes, sizeof *p.written);
    for (int32_t i = 0; i < zfi_len(g->order); i++)
        if (g->nodes[g->order[i]].arg_count > most) most = g->nodes[g->order[i]].arg_count;
    args = zfi_calloc(&g->memory, (size_t)most + ZF_MAX_SAVED, sizeof *args);
    if (p.buffer_of && p.inside && p.last_use && p.written && args) {
        p.written_last = p.written + p.nodes;
        p.position = p.written + 2 * p.nodes;
        for (size_t n = 0; n < p.nodes; n++) p.buffer_of[n] = -1;
        while (p.micro_end < zfi_len(g->order) && !zfi_runs_once(&g->nodes[g->order[p.micro_end]]))
            p.micro_end++;
        zfi_find_uses(&p);
        zfi_make_buffers(&p, &d, args);
        if (!g->memory.failed && !g->error.status) {
            if (zfi_runs_schedule(g)) zfi_find_slots(&p);
            else zfi_keep_once(&p);
        }
        if (!g->memory.failed && !g->error.status) zfi_place(&p, &d);
    }
    zfi_free(&g->memory, p.buffer_of, p.nodes * sizeof *p.buffer_of);
    zfi_free(&g->memory, p.inside, p.nodes * sizeof *p.inside);
    zfi_free(&g->memory, p.last_use, p.nodes * sizeof *p.last_use);
    zfi_free(&g->memory, p.written, 3 * p.nodes * sizeof *p.written);
    zfi_free(&g->memory, args, ((size_t)most + ZF_MAX_SAVED) * sizeof *args);
    zfi_array_free(&g->memory, p.buffers);
    if (g->memory.failed) return zfi_graph_nomem(g);
    status = zfi_leave(g, ZFI_STAGE_PLACED);
    return status || g->trial ? status : zfi_verify_plan(g);
}
