/* Accounting: the bytes that a placed graph takes and moves, known before it runs.
 *
 *     lifetimes      %4 |====|            in place: %9 takes over the bytes of %4
 *                    %9      |=======|
 *                    pack |==========|    with the operands that are computed inside it
 *     position       0  1  2  3  4  5     each has one kind; sums by position and kind
 *
 * Lifetimes are those of plan/memory.c (zfi_find_uses). Which values share bytes follows from the
 * places alone, so that parsed plans can be accounted for too. A result placed over an operand
 * counts with its own kind from then on. */

typedef struct zfi_lifetime {
    int64_t bytes; /* aligned; 0: counted with the pack in which it lies */
    int32_t first, last;
    int32_t before; /* the lifetime whose bytes it took over, an index; -1: none */
    uint8_t kind, space;
} zfi_lifetime;

typedef struct zfi_account {
    zf_graph *graph;
    zfi_placement uses;  /* last_use and written are set */
    uint8_t *kind;       /* by node: zf_kind */
    int32_t *life;       /* by node: the lifetime of its bytes, an index; -1: none in this arena */
    zfi_lifetime *lives; /* growing array */
    int32_t micro_end;   /* of the micro section: the position after it */
} zfi_account;

/* ----------------------------------------------------------------------------------- kinds */

static zf_kind zfi_holding_of(const zf_graph *g, int32_t id)
{
    const zfi_node *node = &g->nodes[id];
    if (node->op == ZF_OP_bucket) return zfi_holding_of(g, node->args[0]);
    if (zfi_is_held(node)) return ZF_COMMUNICATION;
    if (zfi_has(g, id, ZF_OP_LEAF) || zfi_record_of(g, id)->holds)
        return zfi_record_of(g, id)->holds;
    if (zfi_has(g, id, ZF_OP_COLLECTIVE)) return ZF_COMMUNICATION;
    if (node->op == ZF_OP_copy && zfi_holding_of(g, node->args[0]) == ZF_PARAMETERS)
        return ZF_PARAMETERS; /* brought for their use, or on their way */
    return node->update ? ZF_WORKSPACE : ZF_ACTIVATIONS;
}

/* Sets the kind of a value, or of the root of its view, and of an accumulator of which that is a
 * copy. Leaves keep theirs. */
static void zfi_set_kind(zfi_account *a, int32_t id, zf_kind kind)
{
    const zf_graph *g = a->graph;
    int64_t at;
    for (int32_t k; (k = zfi_viewed(g, &g->nodes[id], &at)) >= 0; id = g->nodes[id].args[k])
        a->kind[id] = (uint8_t)kind;
    if (!zfi_has(g, id, ZF_OP_LEAF)) a->kind[id] = (uint8_t)kind;
    id = (int32_t)(zfi_copied(g, &g->nodes[id]) - g->nodes);
    if (g->nodes[id].op == ZF_OP_accumulator) a->kind[id] = (uint8_t)kind;
}

/* The same for the value of which it is a cast or copy; returns that value. */
static int32_t zfi_set_casts(zfi_account *a, int32_t id, zf_kind kind)
{
    zfi_set_kind(a, id, kind);
    while (a->graph->nodes[id].op == ZF_OP_cast || a->graph->nodes[id].op == ZF_OP_copy) {
        id = a->graph->nodes[id].args[0];
        zfi_set_kind(a, id, kind);
    }
    return id;
}

/* The node moves a gradient, or is on the way there. */
static bool zfi_brings_gradient(const zf_graph *g, int32_t id)
{
    const zf_op op = g->nodes[id].op;
    return zfi_has(g, id, ZF_OP_COLLECTIVE) || zfi_reforms(op);
}

/* Sets the kinds for a gradient, from the value that an update reads back to the result of the
 * micro section; and of the value from which that was reduced: a gradient too if it is whole until
 * the update, else one that only passes through. */
static void zfi_set_gradient(zfi_account *a, int32_t value)
{
    const zf_graph *g = a->graph;
    zf_kind from = g->zero < 2 ? ZF_GRADIENTS : ZF_COMMUNICATION;
    const zfi_node *node;
    value = zfi_set_casts(a, zfi_raw_gradient(g, value), ZF_GRADIENTS);
    if (!zfi_brings_gradient(g, value)) from = ZF_GRADIENTS;
    while (zfi_brings_gradient(g, value))
        value = zfi_set_casts(a, g->nodes[value].args[0], from);
    node = &g->nodes[value];
    for (int32_t k = 0; node->op == ZF_OP_pack && k < node->arg_count; k++)
        zfi_set_kind(a, node->args[k], from);
}

static void zfi_find_kinds(zfi_account *a)
{
    const zf_graph *g = a->graph;
    int32_t end = zfi_len(g->order);
    for (int32_t i = 0; i < end; i++)
        a->kind[g->order[i]] = (uint8_t)zfi_holding_of(g, g->order[i]);
    for (int32_t i = 0; i < end; i++)
        if (g->nodes[g->order[i]].op == ZF_OP_gradient)
            zfi_set_gradient(a, g->nodes[g->order[i]].args[1]);
}

/* ------------------------------------------------------------------------------- lifetimes */

/* The operand over which the node's result is placed; -1: none. */
static int32_t zfi_made_over(const zfi_account *a, int32_t id, int32_t position)
{
    const zf_graph *g = a->graph;
    const zfi_node *node = &g->nodes[id];
    for (int32_t k = 0; k < node->arg_count; k++) {
        const zfi_node *x = &g->nodes[node->args[k]];
        int32_t life = a->life[node->args[k]];
        if (zfi_may_overwrite(g, id, k) && life >= 0 && x->placed && x->offset == node->offset &&
            x->bytes == node->bytes && node->bytes &&
            (a->lives[life].last == position || x->slots))
            return k;
    }
    return -1;
}

/* Operands that lie in a pack are counted with it from their first definition on. */
static void zfi_count_with_pack(zfi_account *a, int32_t id, int32_t position)
{
    const zf_graph *g = a->graph;
    const zfi_node *node = &g->nodes[id];
    zfi_lifetime *pack = &a->lives[a->life[id]];
    for (int32_t k = 0; k < node->arg_count; k++) {
        int32_t life = a->life[node->args[k]];
        const bool ends = life >= 0 && (a->lives[life].last == position ||
                                        g->nodes[node->args[k]].slots); /* as long as the pack */
        if (!ends || !zfi_packed_in_place(g, node, k)) continue;
        for (; life >= 0; life = a->lives[life].before) {
            a->lives[life].bytes = 0;
            if (a->lives[life].first < pack->first) pack->first = a->lives[life].first;
        }
    }
}

static void zfi_add_life(zfi_account *a, int32_t id, int32_t position)
{
    zf_graph *g = a->graph;
    const zfi_node *node = &g->nodes[id];
    zfi_lifetime life = {zfi_slots_room(node),
                         position,
                         a->uses.last_use[id],
                         -1,
                         a->kind[id],
                         node->space};
    int32_t over, end = zfi_len(g->order);
    int64_t at;
    if (node->scratch_bytes)
        zfi_push(&g->memory, a->lives,
                 ((zfi_lifetime){zfi_aligned(node->scratch_bytes), position, position, -1,
                                 ZF_WORKSPACE, node->space}));
    if (!node->placed || g->memory.failed) return;
    if (zfi_is_joined(g, node)) return;
    if (zfi_lies_in_operand(g, node)) {
        a->life[id] = a->life[node->args[zfi_viewed(g, node, &at)]];
        return;
    }
    if ((over = zfi_made_over(a, id, position)) >= 0 && node->slots) {
        a->life[id] = a->life[node->args[over]]; /* as long */
        return;
    }
    if (over >= 0) {
        life.before = a->life[node->args[over]];
        a->lives[life.before].last = position - 1;
    }
    if (node->op == ZF_OP_saved) life.first = a->uses.position[node->args[0]];
    if (zfi_is_persistent(g, node)) life.first = 0, life.last = end;
    if (node->op == ZF_OP_accumulator || (node->slots && !zfi_is_persistent(g, node))) {
        /* the micro section runs again */
        life.first = 0;
        if (life.last < a->micro_end) life.last = a->micro_end;
    }
    if (!zfi_push(&g->memory, a->lives, life)) return;
    a->life[id] = zfi_len(a->lives) - 1;
    if (node->op == ZF_OP_pack) zfi_count_with_pack(a, id, position);
}

/* Bytes alive at each position, by kind, in one space. */
typedef struct zfi_alive_rows {
    zf_space space;
    size_t (*bytes)[ZF_KINDS]; /* by position; NULL: not asked for */
} zfi_alive_rows;

/* Sums the lifetimes of a space by position and kind. */
static void zfi_sum_lives(zfi_account *a, zf_space space, zf_space_plan *plan,
                          const zfi_alive_rows *alive)
{
    zf_graph *g = a->graph;
    int32_t end = zfi_len(g->order);
    size_t room = ((size_t)end + 2) * ZF_KINDS;
    int64_t *change = zfi_calloc(&g->memory, room, sizeof *change), sum[ZF_KINDS] = {0};
    if (!change) return;
    for (int32_t n = 0; n < zfi_len(a->lives); n++) {
        const zfi_lifetime *life = &a->lives[n];
        if (life->space != space) continue;
        change[(size_t)life->first * ZF_KINDS + life->kind] += life->bytes;
        change[((size_t)life->last + 1) * ZF_KINDS + life->kind] -= life->bytes;
    }
    for (int32_t i = 0; i < end; i++) {
        size_t all = 0;
        for (int k = 0; k < ZF_KINDS; k++) {
            sum[k] += change[(size_t)i * ZF_KINDS + (size_t)k];
            if ((size_t)sum[k] > plan->most[k]) plan->most[k] = (size_t)sum[k];
            all += (size_t)sum[k];
            if (alive->bytes && alive->space == space) alive->bytes[i][k] = (size_t)sum[k];
        }
        if (all <= plan->live_bytes) continue;
        plan->live_bytes = all;
        for (int k = 0; k < ZF_KINDS; k++) plan->at_peak[k] = (size_t)sum[k];
    }
    zfi_free(&g->memory, change, room * sizeof *change);
}

static void zfi_account_memory(zf_graph *g, zf_plan *plan, const zfi_alive_rows *alive)
{
    size_t nodes = (size_t)zfi_len(g->nodes);
    zfi_account a = {.graph = g, .uses = {.graph = g, .nodes = nodes}};
    a.uses.last_use = zfi_calloc(&g->memory, nodes, sizeof *a.uses.last_use);
    a.uses.written = zfi_calloc(&g->memory, 3 * nodes, sizeof *a.uses.written);
    a.kind = zfi_calloc(&g->memory, nodes, sizeof *a.kind);
    a.life = zfi_calloc(&g->memory, nodes, sizeof *a.life);
    if (a.uses.last_use && a.uses.written && a.kind && a.life) {
        a.uses.written_last = a.uses.written + nodes;
        a.uses.position = a.uses.written + 2 * nodes;
        for (size_t n = 0; n < nodes; n++) a.life[n] = -1;
        zfi_find_uses(&a.uses);
        zfi_find_kinds(&a);
        while (a.micro_end < zfi_len(g->order) &&
               !zfi_runs_once(&g->nodes[g->order[a.micro_end]]))
            a.micro_end++;
        for (int32_t i = 0; i < zfi_len(g->order) && !g->memory.failed; i++)
            zfi_add_life(&a, g->order[i], i);
        if (g->above)
            zfi_push(&g->memory, a.lives,
                     ((zfi_lifetime){g->above, 0, zfi_len(g->order), -1, ZF_CACHES, ZF_DEVICE}));
        for (int space = 0; space < ZF_SPACES; space++)
            if (g->peaks[space].bytes)
                zfi_sum_lives(&a, (zf_space)space, &plan->spaces[space], alive);
        for (int space = 0; space < ZF_SPACES; space++) {
            const size_t overhead = (size_t)zfi_overhead_of(g, (zf_space)space);
            plan->spaces[space].most[ZF_WORKSPACE] += overhead;
            plan->spaces[space].at_peak[ZF_WORKSPACE] += overhead;
            plan->spaces[space].live_bytes += overhead;
            for (int32_t i = 0; alive->bytes && alive->space == (zf_space)space &&
                                i < zfi_len(g->order); i++)
                alive->bytes[i][ZF_WORKSPACE] += overhead;
        }
    }
    zfi_free(&g->memory, a.uses.last_use, nodes * sizeof *a.uses.last_use);
    zfi_free(&g->memory, a.uses.written, 3 * nodes * sizeof *a.uses.written);
    zfi_free(&g->memory, a.kind, nodes * sizeof *a.kind);
    zfi_free(&g->memory, a.life, nodes * sizeof *a.life);
    zfi_array_free(&g->memory, a.lives);
}

/* --------------------------------------------------------------------------------- traffic */

/* bytes + count * size * ranks * times; INT64_MAX on overflow. */
static size_t zfi_add_moved(size_t bytes, int64_t count, size_t size, int64_t ranks, int64_t times)
{
    size_t more = (size_t)count, all;
    bool fits = zfi_mul_size(more, size, &more) && zfi_mul_size(more, (size_t)ranks, &more) &&
                zfi_mul_size(more, (size_t)times, &more) && zfi_add_size(more, bytes, &all);
    return fits && all < INT64_MAX ? all : INT64_MAX;
}

/* To how many others of its group a rank sends what a collective moves; -1 in place of the rank: one
 * that sends, or receives, over its link. The root of a bcast sends to all others, and these send
 * the root of a reduce. A stage's end of a send has an operand where it sends. */
static int64_t zfi_ranks_sent_to(zf_op op, const zf_attribute *attributes, zfi_mesh m, int32_t rank)
{
    const int64_t world = attributes[ZF_AT_all_gather_world].i,
                  over = attributes[ZF_AT_all_gather_over].i;
    const int32_t place = rank < 0 || world < 2 ? -1 : zfi_mesh_place(m, over, rank);
    int32_t before, after;
    (void)zfi_neighbours_of(op, attributes, &before, &after);
    switch (world < 2 ? ZF_OP_none : op) {
    case ZF_OP_none: return 0;
    case ZF_OP_bcast: return place < 0 ? 1 : place == attributes[ZF_AT_bcast_root].i ? world - 1 : 0;
    case ZF_OP_reduce: return place < 0 || place != attributes[ZF_AT_reduce_root].i;
    case ZF_OP_send: return place < 0 || place == attributes[ZF_AT_send_from].i;
    default: return before + after ? before + after : world - 1;
    }
}

/* Adds `times` calls of a collective of `world` ranks with `count` elements as in zf_collective. A
 * rank sends to so many others, of which `far` or all are in other nodes. Returns the counter. */
static zf_moved *zfi_count_calls(zf_traffic *t, zf_op op, zf_dtype dtype, int64_t count,
                                 int64_t world, int64_t others, int64_t far, int64_t times)
{
    size_t size = zf_dtype_size(dtype);
    zf_moved *moved;
    switch (op) {
    case ZF_OP_all_gather: moved = &t->all_gather; break;
    case ZF_OP_reduce_scatter: case ZF_OP_reduce: moved = &t->reduce_scatter; break;
    case ZF_OP_all_to_all: moved = &t->all_to_all; break;
    case ZF_OP_all_reduce: /* as a reduce_scatter and an all_gather of equal shards */
        moved = &t->all_reduce;
        count = count / world + (count % world != 0);
        size *= 2;
        break;
    case ZF_OP_send: moved = &t->send; break;
    default: moved = &t->bcast;
    }
    moved->calls += times;
    moved->bytes = zfi_add_moved(moved->bytes, count, size, others, times);
    moved->between = zfi_add_moved(moved->between, count, size, zfi_min(far, others), times);
    return moved;
}

/* Adds `times` copies of the node between spaces. Returns the counter. */
static zf_moved *zfi_count_copies(zf_traffic *t, const zf_graph *g, const zfi_node *copy,
                                  int64_t times)
{
    zf_moved *const moved[] = {&t->download, &t->upload, &t->read, &t->write};
    zf_moved *to = moved[zfi_queue_of_copy(g, copy) - ZFI_QUEUE_DOWNLOAD];
    to->calls += times;
    to->bytes = zfi_add_moved(to->bytes, (int64_t)zfi_node_bytes(copy), 1, 1, times);
    return to;
}

/* Adds what the rank moves for the node, `times` times; -1 in place of the rank: what passes a link.
 * Returns the counter; NULL: it moves nothing. */
static zf_moved *zfi_count_node(zf_traffic *t, const zf_graph *g, int32_t id, int64_t times,
                                int32_t rank)
{
    const zfi_node *node = &g->nodes[id];
    const zfi_mesh m = zfi_mesh_of(g);
    int64_t world, far, count;
    if (node->op == ZF_OP_copy) return zfi_count_copies(t, g, node, times);
    if (!zfi_has(g, id, ZF_OP_COLLECTIVE)) return NULL;
    world = ZF_INT(node, all_gather, world);
    far = world > 1 ? zfi_mesh_far(m, ZF_INT(node, all_gather, over)) : 0;
    count = zfi_node_count(&g->nodes[node->args[0]]);
    if (node->op == ZF_OP_send && !node->arg_count) count = 0; /* another rank sends it */
    if (node->op == ZF_OP_send && node->stage) rank = -1; /* that of the stage it is of */
    if (node->op == ZF_OP_reduce_scatter || node->op == ZF_OP_all_to_all) count /= world;
    return zfi_count_calls(t, node->op, node->dtype, count, world,
                           zfi_ranks_sent_to(node->op, node->attributes, m, rank), far, times);
}

/* Adds what of the bytes that a collective has `moved` are scales, and what padding of buckets. */
static void zfi_count_overhead(zf_plan *plan, const zf_graph *g, int32_t id, const zf_moved *moved)
{
    size_t *const scales[] = {&plan->scales.bytes, &plan->scales.between},
                  *const padding[] = {&plan->padding.bytes, &plan->padding.between};
    const size_t bytes[] = {moved->bytes, moved->between};
    int64_t head = 0, record = 1, used = 0;
    bool formed = false; /* it is known what is sent: floats, or records */
    for (const zfi_node *node;; id = node->args[0]) {
        node = &g->nodes[id];
        if (node->op == ZF_OP_bucket || node->op == ZF_OP_pack) break;
        if (!zfi_reforms(node->op) && !zfi_has(g, id, ZF_OP_COLLECTIVE) &&
            node->op != ZF_OP_cast && node->op != ZF_OP_shard && node->op != ZF_OP_copy)
            return;
        if (zfi_quantizes(node->op) && !formed) {
            const zfi_blocks b = zfi_blocks_of(node->attributes);
            head = (int64_t)zf_dtype_size(b.scale), record = b.record;
        }
        formed |= zfi_reforms(node->op);
    }
    for (int32_t k = 0; k < g->nodes[id].arg_count; k++)
        used += zfi_node_count(&g->nodes[g->nodes[id].args[k]]);
    for (int k = 0; k < 2; k++) {
        const size_t of_scales = bytes[k] / (size_t)record * (size_t)head;
        *scales[k] += of_scales;
        *padding[k] += (size_t)((double)(bytes[k] - of_scales) *
                                (1 - (double)used / (double)ZF_INT(&g->nodes[id], bucket, size)));
    }
}

/* The node is a bucket of what quantised gradients have left to send. */
static bool zfi_holds_left(const zf_graph *g, const zfi_node *node)
{
    const zfi_node *leaf = &g->nodes[node->arg_count ? node->args[0] : 0];
    return node->op == ZF_OP_bucket && zfi_is_left((zfi_role)leaf->role);
}

static void zfi_account_traffic(const zf_graph *g, int32_t rank, zf_plan *plan)
{
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const int32_t id = g->order[i];
        const zfi_node *node = &g->nodes[id];
        const int64_t times = zfi_times_in_step(g, node);
        zfi_count_node(&plan->traffic, g, id, times, rank);
        if (zfi_holds_left(g, node)) plan->loco_bytes += zfi_node_bytes(node);
        if (zfi_has(g, id, ZF_OP_COLLECTIVE)) {
            zf_traffic own = {.bcast.calls = 0};
            zfi_count_node(&plan->traffic_over[ZF_INT(node, all_gather, over)], g, id, times, rank);
            zfi_count_overhead(plan, g, id, zfi_count_node(&own, g, id, times, rank));
        }
    }
}

/* -------------------------------------------------------------------------------- the rest */

/* The node recomputes a value as zfi_invert does (passes/fuse/fuse.c), or is a view or saved value
 * of such a node. */
static bool zfi_is_recomputed(const zf_graph *g, const zfi_node *node)
{
    if (node->op == ZF_OP_saved) /* the activation again; saved value 1 is sums */
        return zfi_record_of(g, node->args[0])->activates && !ZF_INT(node, saved, index);
    return zfi_remade_of(g, node, false) != 0;
}

/* A parameter of records has more numbers than bytes, or fewer. */
static int64_t zfi_numbers_of_param(const zfi_node *param)
{
    const int64_t count = zfi_node_count(param), bits = ZF_INT(param, param, bits),
                  block = ZF_INT(param, param, block);
    if (!bits) return count;
    return count / zfi_blocks_by(bits, block, ZF_INT(param, param, scale)).record * block;
}

/* A weight that each of several ranks along tensor has whole. */
static bool zfi_is_whole_weight(const zf_graph *g, const zfi_node *node)
{
    const uint8_t tensor = zfi_axes_met(zfi_axis_bit(ZF_OVER_TENSOR));
    return node->op == ZF_OP_param && node->shape.rank > 1 && node->role != ZFI_ROLE_ADAPTER &&
           zfi_mesh_size(zfi_mesh_of(g), ZF_OVER_TENSOR) > 1 &&
           !(zfi_spread_cut(&node->spread) & tensor);
}

static void zfi_account_counts(const zf_graph *g, zf_plan *plan)
{
    plan->nodes = zfi_len(g->order);
    for (int32_t i = 0; i < plan->nodes; i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        *(node->recompute ? &plan->recomputed_flops : &plan->flops) +=
            zfi_node_flops(g, node) * (double)zfi_times_in_step(g, node);
        plan->inverted += zfi_is_recomputed(g, node);
        if (node->op == ZF_OP_bucket && g->nodes[node->args[0]].op == ZF_OP_param)
            plan->padded_count += ZF_INT(node, bucket, size);
        if (node->op != ZF_OP_param) continue;
        if (zfi_is_whole_weight(g, node))
            plan->whole_weights++, plan->whole_bytes += (size_t)zfi_node_bytes(node);
        plan->parameter_count += zfi_numbers_of_param(node);
        if (!node->held) plan->padded_count += zfi_node_count(node);
    }
}

/* Copies the device's sums to the plan's own members. */
static void zfi_show_device(zf_plan *plan)
{
    const zf_space_plan *device = &plan->spaces[ZF_DEVICE];
    plan->peak_bytes = device->peak_bytes, plan->live_bytes = device->live_bytes;
    plan->peak_node = device->peak_node;
    plan->peak_op = device->peak_op, plan->peak_scope = device->peak_scope;
    memcpy(plan->most, device->most, sizeof plan->most);
    memcpy(plan->at_peak, device->at_peak, sizeof plan->at_peak);
}

/* The plan of a rank of the graph. */
static zf_status zfi_plan_of_rank(zf_graph *g, int32_t rank, zf_plan *plan)
{
    *plan = (zf_plan){0};
    for (int k = 0; k < ZF_SPACES; k++) plan->spaces[k].peak_op = plan->spaces[k].peak_scope = "";
    zfi_show_device(plan);
    if (g->error.status) return g->error.status;
    zfi_account_traffic(g, rank, plan);
    zfi_account_counts(g, plan);
    if (!(g->stages & ZFI_STAGE_PLACED)) return ZF_OK;
    for (int k = 0; k < ZF_SPACES; k++) {
        const int32_t node = g->peaks[k].node;
        plan->spaces[k].peak_bytes = (size_t)g->peaks[k].bytes;
        plan->spaces[k].peak_node = node;
        if (!node) continue;
        plan->spaces[k].peak_op = zfi_record_of(g, node)->name;
        plan->spaces[k].peak_scope = g->nodes[node].scope;
    }
    zfi_account_memory(g, plan, &(zfi_alive_rows){.bytes = NULL});
    zfi_show_device(plan);
    return g->memory.failed ? zfi_graph_nomem(g) : ZF_OK;
}

ZF_API zf_status zf_graph_plan(zf_graph *g, zf_plan *plan)
{
    if (!g || !plan) return ZF_ERR_ARGUMENT;
    return zfi_plan_of_rank(
        g, g->whole ? g->kept * zfi_mesh_stride(zfi_mesh_of(g), ZF_OVER_PIPE) : 0, plan);
}

ZF_API zf_status zf_graph_alive(zf_graph *g, zf_space space, size_t (*bytes)[ZF_KINDS])
{
    zf_plan plan = {.nodes = 0};
    if (!g || !bytes || (unsigned)space >= ZF_SPACES) return ZF_ERR_ARGUMENT;
    if (g->error.status) return g->error.status;
    if (!(g->stages & ZFI_STAGE_PLACED))
        return zfi_fail(&g->error, ZF_ERR_STAGE, "zf_graph_alive: needs %s before it",
                        zfi_stage_advice(ZFI_STAGE_PLACED));
    memset(bytes, 0, (size_t)zfi_len(g->order) * sizeof *bytes);
    zfi_account_memory(g, &plan, &(zfi_alive_rows){space, bytes});
    return g->memory.failed ? zfi_graph_nomem(g) : ZF_OK;
}

ZF_API zf_status zf_graph_work(zf_graph *g, zf_op op, zf_work *work)
{
    zf_array *args;
    int32_t most = 1;
    if (!g || !work) return ZF_ERR_ARGUMENT;
    *work = (zf_work){0};
    if (g->error.status) return g->error.status;
    for (int32_t i = 0; i < zfi_len(g->order); i++)
        if (g->nodes[g->order[i]].arg_count > most) most = g->nodes[g->order[i]].arg_count;
    args = zfi_calloc(&g->memory, (size_t)most + ZF_MAX_SAVED, sizeof *args);
    for (int32_t i = 0; i < zfi_len(g->order) && args; i++) {
        int32_t id = g->order[i];
        int64_t times = zfi_times_in_step(g, &g->nodes[id]);
        zf_launch l;
        if ((op != ZF_OP_none && g->nodes[id].op != op) || !zfi_works(g, id)) continue;
        l = zfi_launch_of(g, id, args);
        work->launches += times;
        work->flops += (double)times * zf_launch_flops(&l);
        work->bytes += (double)times * zf_launch_bytes(&l);
    }
    zfi_free(&g->memory, args, ((size_t)most + ZF_MAX_SAVED) * sizeof *args);
    return g->memory.failed ? zfi_graph_nomem(g) : ZF_OK;
}

ZF_API const char *zf_kind_name(zf_kind kind)
{
    static const char *const names[ZF_KINDS] = {"parameters",  "gradients",     "optimizer",
                                                "activations", "communication", "workspace",
                                                "inputs",      "caches"};
    return (unsigned)kind < ZF_KINDS ? names[kind] : NULL;
}

/* ------------------------------------------------------------------------------- the limit */

/* Marks what is live at the peak: leaves, and values that are computed by then and read there or
 * later. Views are not marked, since their bytes are those of their operands. */
static void zfi_mark_peak(const zf_graph *g, bool *there)
{
    int32_t end = zfi_len(g->order), peak = end - 1, view, most = g->peaks[ZF_DEVICE].node;
    int64_t at;
    for (int32_t i = 0; i < end; i++)
        if (g->order[i] == most && !zfi_is_persistent(g, &g->nodes[most])) peak = i;
    for (int32_t i = 0; i < end; i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        for (int32_t k = 0; k < node->arg_count && (i >= peak || node->op == ZF_OP_output); k++) {
            int32_t x = node->args[k];
            while ((view = zfi_viewed(g, &g->nodes[x], &at)) >= 0) x = g->nodes[x].args[view];
            there[x] = true;
        }
    }
    there[most] = true;
    for (int32_t i = 0; i < end; i++) {
        int32_t id = g->order[i];
        const zfi_node *node = &g->nodes[id];
        there[id] = node->placed && node->space == ZF_DEVICE &&
                    (zfi_is_persistent(g, node) || (there[id] && i <= peak));
    }
}

/* The largest value or workspace that is left in there[0..nodes), of values, and there[nodes..),
 * of workspaces; its bytes. -1: none is left. */
static int32_t zfi_largest_there(const zf_graph *g, const bool *there, int64_t *bytes)
{
    const int32_t nodes = zfi_len(g->nodes);
    int32_t best = -1;
    *bytes = 0;
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const int32_t id = g->order[i];
        if (there[id] && g->nodes[id].bytes > *bytes) best = id, *bytes = g->nodes[id].bytes;
        if (there[nodes + id] && g->nodes[id].scratch_bytes > *bytes)
            best = nodes + id, *bytes = g->nodes[id].scratch_bytes;
    }
    return best;
}

/* "%16 matmul with 480, workspace of %15 add with 384 and others with 128": what makes the peak. */
static void zfi_peak_text(const zf_graph *g, bool *there, char *text, size_t size)
{
    const int32_t nodes = zfi_len(g->nodes);
    int64_t left = g->peaks[ZF_DEVICE].bytes, bytes;
    size_t at = 0;
    *text = '\0';
    for (int n = 0; n < 3 && at < size; n++) {
        const int32_t best = zfi_largest_there(g, there, &bytes);
        const zfi_node *node = &g->nodes[best < 0 ? 0 : best % nodes];
        if (best < 0) break;
        there[best] = false;
        left -= bytes;
        at += (size_t)snprintf(text + at, size - at, "%s%s%%%d %.40s with %lld", n ? ", " : "",
                               best < nodes ? "" : "workspace of ", (int)(best % nodes),
                               node->name ? node->name : g->records[node->op]->name,
                               (long long)bytes);
    }
    if (left > 0 && at < size)
        snprintf(text + at, size - at, " and others with %lld", (long long)left);
}

/* Checks a plan against the limit (0: none). The error, by function `call`, says by how much the
 * limit is exceeded, at which node, and which tensors and workspaces make the peak. */
static zf_status zfi_check_limit(zf_graph *g, const char *call, size_t limit)
{
    char largest[300], where[64] = "";
    const size_t count = 2 * (size_t)zfi_len(g->nodes);
    const zfi_peak *peak = &g->peaks[ZF_DEVICE];
    bool *there;
    if (!limit || (uint64_t)peak->bytes <= limit) return ZF_OK;
    if (!(there = zfi_calloc(&g->memory, count, sizeof *there))) return zfi_graph_nomem(g);
    zfi_mark_peak(g, there);
    there[count / 2 + (size_t)peak->node] = true;
    zfi_peak_text(g, there, largest, sizeof largest);
    if (peak->node)
        snprintf(where, sizeof where, "; most is alive at %%%d %s", (int)peak->node,
                 g->records[g->nodes[peak->node].op]->name);
    zfi_free(&g->memory, there, count * sizeof *there);
    return zfi_fail(&g->error, ZF_ERR_LIMIT,
                    "%s: the plan takes %lld bytes, %lld more than the limit of %zu%s; the largest "
                    "there are %s",
                    call, (long long)peak->bytes, (long long)(peak->bytes - (int64_t)limit), limit,
                    where, largest);
}

ZF_API zf_status zf_plan_fits(zf_graph *g, size_t limit)
{
    if (!g) return ZF_ERR_ARGUMENT;
    if (g->error.status) return g->error.status;
    if (!(g->stages & ZFI_STAGE_PLACED))
        return zfi_fail(&g->error, ZF_ERR_STAGE, "zf_plan_fits: needs %s before it",
                        zfi_stage_advice(ZFI_STAGE_PLACED));
    return zfi_check_limit(g, "zf_plan_fits", limit);
}
