/* recompute, the order: which values of the forward pass are given up, and which first. See
 * recompute.c.
 *
 *     bytes |          ____ peak
 *           |     ____/    \____      A value is idle from its last use in the forward pass to its
 *           |    /  |- idle -| \      first in the backward pass. A step of the order gives up what
 *           |___/   x        x  \___  is idle where most is alive, as things then are, at the least
 *           +----------------------   FLOPs for a byte, then the least bytes moved for one, then
 *             forward    backward     the first in the graph.
 *
 * A node is given up with all that it leaves; or, where what it leaves stays and its result can be
 * made of that, its result alone. To make it again takes the nodes above it up to those whose
 * values are there: kept ones, leaves, and what other layers have made, which is kept for it. So a
 * layer keeps what enters it. It is what has one numbered scope ("layer.7"), or a piece of what has
 * none. A value that several layers read is given up where it takes few nodes, and no product, to
 * make it of what is always there, as a mask is; it is made in each.
 *
 * Lives are those of passes/memory.c, without their places: what the order is good for is found out
 * by the plan (recompute.c).
 */

enum {
    ZFI_FORWARD_VALUE = 1,  /* the loss depends on it, or it is left by what the loss depends on */
    ZFI_BACKWARD_VALUE = 2, /* gradients depend on it, and the loss does not */
    ZFI_GIVEN = 4,          /* is not made again: it is always there, or cannot be */
    ZFI_LATE = 8,           /* the backward pass reads it */
    ZFI_HELD_ON = 16,       /* and an effect or the update section, so that it stays in any case */
    ZFI_CROSSES = 32,       /* another layer's forward pass reads it */
    ZFI_AGAIN = 64          /* made again by a step of the order */
};

enum { ZFI_CHEAP_NODES = 32, ZFI_LAYER_NODES = 128 };

/* Of a node. */
typedef struct zfi_again {
    uint8_t marks;
    uint8_t cheap; /* nodes, none a product, that make it of what is always there; 0: no such */
    int32_t layer; /* 0: none */
    int32_t step;  /* from which on it is given up with what it leaves; 0: it is not */
    int32_t result_step; /* the same of its result alone */
    int32_t early;       /* the last position where it is read or made in the forward pass; */
    int32_t first, last; /* those where the backward pass first and last reads it */
    int32_t inverse;     /* the node of the backward pass that makes its value of what it left; 0 */
    int32_t stamp;
} zfi_again;

typedef struct zfi_layer {
    const char *name; /* its first `length` bytes; of layers without a number none count */
    size_t length;
    int32_t nodes; /* of its forward pass, but for views */
    int32_t next;  /* where it goes on when it has many; 0 */
} zfi_layer;

/* A step that could be taken. */
typedef struct zfi_step {
    int32_t node;
    bool result; /* that alone */
    bool worthless;
    bool known; /* what follows is: */
    double flops, moved;
    double kept;       /* bytes that are kept for it, and were not before */
    int32_t *products; /* growing array: nodes */
} zfi_step;

typedef struct zfi_recompute {
    zf_graph *graph;
    zfi_again *of;     /* by node; */
    size_t nodes;      /* there were */
    int32_t taken;     /* how many steps are */
    zfi_layer *layers; /* growing array; [0] is none */
    int32_t *position; /* by node */
    /* A trace: what must be made again, and what is there that it takes; growing arrays */
    int32_t *list, *there, *stack;
    int32_t stamp;
    /* The choice of the order; by position, bytes that are alive */
    double *alive;
    zfi_step *candidates; /* growing array */
} zfi_recompute;

static bool zfi_is(const zfi_recompute *r, int32_t id, int marks)
{
    return (r->of[id].marks & marks) != 0;
}

/* The node that makes the value: of a saved one, what leaves it. */
static int32_t zfi_maker(const zf_graph *g, int32_t id)
{
    return g->nodes[id].op == ZF_OP_saved ? g->nodes[id].args[0] : id;
}

static bool zfi_is_taken(const zfi_recompute *r, int32_t step) { return step && step <= r->taken; }

/* The value, which is no view, is there in the backward pass. */
static bool zfi_is_there(const zfi_recompute *r, int32_t id)
{
    const zfi_again *maker = &r->of[zfi_maker(r->graph, id)];
    if (!zfi_is(r, id, ZFI_FORWARD_VALUE) || zfi_is(r, id, ZFI_GIVEN | ZFI_HELD_ON)) return true;
    if (!zfi_is(r, id, ZFI_LATE) || zfi_is_taken(r, maker->step)) return false;
    return r->graph->nodes[id].op == ZF_OP_saved || !zfi_is_taken(r, maker->result_step);
}

/* What the node leaves and its result can be made of, to the same bits; 0: there is none. */
static int32_t zfi_left_for_result(const zf_graph *g, int32_t id)
{
    const zfi_node *node = &g->nodes[id];
    if (node->dtype != ZF_F32 && node->dtype != ZF_F64) return 0;
    return zfi_record_of(g, id)->remake ? node->saved[0] : 0;
}

/* The same where that is there. */
static int32_t zfi_makes_result(const zfi_recompute *r, int32_t id)
{
    int32_t left = zfi_left_for_result(r->graph, id);
    return left && zfi_is_there(r, left) ? left : 0;
}

static void zfi_visit_later(zfi_recompute *r, int32_t id)
{
    if (r->of[id].stamp == r->stamp) return;
    r->of[id].stamp = r->stamp;
    zfi_push(&r->graph->memory, r->stack, id);
}

static void zfi_clear(int32_t *array)
{
    if (array) stbds_header(array)->length = 0;
}

/* What it takes to have value `id` again in a layer: into r->list nodes to be made, in no order,
 * and into r->there values that they are made of. What must not be made in this layer, since it is
 * another one's, is there too, although it may not have been kept before. */
static void zfi_trace(zfi_recompute *r, int32_t id, int32_t layer)
{
    zf_graph *g = r->graph;
    zfi_clear(r->list), zfi_clear(r->there), zfi_clear(r->stack);
    r->stamp++;
    for (zfi_visit_later(r, id); zfi_len(r->stack) && !g->memory.failed;) {
        int32_t v = stbds_arrpop(r->stack), left;
        const zfi_node *node = &g->nodes[v];
        int64_t at;
        if (!zfi_is(r, v, ZFI_FORWARD_VALUE) || zfi_is(r, v, ZFI_GIVEN)) continue;
        if (zfi_viewed(g, node, &at) >= 0) {
            zfi_push(&g->memory, r->list, v);
            zfi_visit_later(r, node->args[zfi_viewed(g, node, &at)]);
            continue;
        }
        if (zfi_is_there(r, v)) {
            zfi_push(&g->memory, r->there, v);
            continue;
        }
        if (node->op == ZF_OP_saved) {
            /* What is left is not made again without what leaves it. */
            zfi_push(&g->memory, r->list, v);
            if (r->of[node->args[0]].stamp != r->stamp) {
                r->of[node->args[0]].stamp = r->stamp;
                zfi_push(&g->memory, r->list, node->args[0]);
                node = &g->nodes[node->args[0]];
                for (int32_t k = 0; k < node->arg_count; k++) zfi_visit_later(r, node->args[k]);
            }
            continue;
        }
        left = zfi_makes_result(r, v);
        if (!left && r->of[v].layer != layer && !r->of[v].cheap) {
            zfi_push(&g->memory, r->there, v);
            continue;
        }
        zfi_push(&g->memory, r->list, v);
        if (left) zfi_visit_later(r, left);
        for (int32_t k = 0; k < node->arg_count && !left; k++) zfi_visit_later(r, node->args[k]);
    }
}

/* ---------------------------------------------------------------------------------- marks */

/* Never made again: leaves and what shows them, what has effects or reads what the micro section
 * writes, and what leaves gradients, which are read at once. */
static bool zfi_is_given(const zfi_recompute *r, const zfi_node *node, const bool *written)
{
    const zf_graph *g = r->graph;
    uint32_t flags = g->records[node->op]->traits;
    bool given =
        flags & (ZF_OP_LEAF | ZF_OP_EFFECT | ZF_OP_MUTATES | ZF_OP_COLLECTIVE | ZF_OP_ONCE);
    int64_t at;
    int32_t viewed = zfi_viewed(g, node, &at);
    given |= viewed >= 0 && zfi_is(r, node->args[viewed], ZFI_GIVEN);
    for (int32_t k = 0; k < node->arg_count; k++) given |= written[zfi_bytes_of(g, node->args[k])];
    if (given || node->op != ZF_OP_concat || ZF_INT(node, concat, axis) != 0) return given;
    for (int32_t k = 0; k < node->arg_count; k++)
        if (g->nodes[node->args[k]].op != ZF_OP_param) return false;
    return true;
}

static void zfi_mark_directions(zfi_recompute *r)
{
    const zf_graph *g = r->graph;
    for (int32_t i = zfi_len(g->order) - 1; i >= 0; i--) {
        const zfi_node *node = &g->nodes[g->order[i]];
        uint8_t *marks = &r->of[g->order[i]].marks;
        if (node->update) continue;
        if (node->op == ZF_OP_output && !strcmp(node->name, "loss")) *marks |= ZFI_FORWARD_VALUE;
        for (int32_t k = 0; k < node->arg_count && (*marks & ZFI_FORWARD_VALUE); k++)
            r->of[node->args[k]].marks |= ZFI_FORWARD_VALUE;
    }
    for (int32_t i = 0; i < zfi_len(g->order); i++)
        if (g->nodes[g->order[i]].op == ZF_OP_saved)
            r->of[g->order[i]].marks |=
                r->of[g->nodes[g->order[i]].args[0]].marks & ZFI_FORWARD_VALUE;
    for (int32_t i = zfi_len(g->order) - 1; i >= 0; i--) {
        const zfi_node *node = &g->nodes[g->order[i]];
        if (!node->update && node->op != ZF_OP_gradient &&
            !zfi_is(r, g->order[i], ZFI_BACKWARD_VALUE))
            continue;
        for (int32_t k = 0; k < node->arg_count; k++)
            if (!zfi_is(r, node->args[k], ZFI_FORWARD_VALUE) &&
                !zfi_has(g, node->args[k], ZF_OP_LEAF) && !g->nodes[node->args[k]].update)
                r->of[node->args[k]].marks |= ZFI_BACKWARD_VALUE;
    }
}

/* Who reads what, and where; views are those who look through them. */
static void zfi_mark_uses(zfi_recompute *r, const zfi_placement *uses)
{
    const zf_graph *g = r->graph;
    int32_t end = zfi_len(g->order);
    for (int32_t i = 0; i < end; i++) {
        zfi_again *a = &r->of[g->order[i]];
        a->early = i, a->first = end, a->last = -1;
        if (g->nodes[g->order[i]].op == ZF_OP_saved)
            a->early = r->position[g->nodes[g->order[i]].args[0]];
    }
    for (int32_t i = 0; i < end; i++) {
        int32_t id = g->order[i];
        const zfi_node *node = &g->nodes[id];
        bool stays = node->update || zfi_has(g, id, ZF_OP_EFFECT);
        if (node->op == ZF_OP_saved) continue;
        for (int32_t k = 0; k < node->arg_count; k++) {
            zfi_again *x = &r->of[zfi_bytes_of(g, node->args[k])];
            if (stays) x->marks |= ZFI_HELD_ON;
            else if (!zfi_is(r, id, ZFI_BACKWARD_VALUE)) x->early = i;
            if (stays || !zfi_is(r, id, ZFI_BACKWARD_VALUE)) continue;
            x->marks |= ZFI_LATE;
            if (x->first > i) x->first = i;
            if (x->last < uses->last_use[node->args[k]]) x->last = uses->last_use[node->args[k]];
        }
    }
}

/* ---------------------------------------------------------------------------------- layers */

/* By whose name a node is told to be of a layer; NULL where that is up to its operands. */
static const char *zfi_layer_name(const zf_graph *g, const zfi_node *node)
{
    if (*node->scope) return node->scope;
    for (int32_t k = 0; k < node->arg_count; k++) {
        const zfi_node *x = &g->nodes[zfi_bytes_of(g, node->args[k])];
        if (x->op == ZF_OP_param) return x->name;
    }
    return NULL;
}

static int32_t zfi_new_layer(zfi_recompute *r, const char *name, size_t length)
{
    zfi_layer layer = {.name = name, .length = length};
    return zfi_push(&r->graph->memory, r->layers, layer) ? zfi_len(r->layers) - 1 : 0;
}

/* The layer of a name's numbered part; 0: there is none. */
static int32_t zfi_find_layer(const zfi_recompute *r, const char *name, size_t length)
{
    for (int32_t l = zfi_len(r->layers) - 1; l > 0; l--)
        if (r->layers[l].length == length && !memcmp(r->layers[l].name, name, length)) return l;
    return 0;
}

/* The layer of a node, given those of its operands; `last` is that of the node before it. */
static int32_t zfi_layer_of(zfi_recompute *r, int32_t id, int32_t last)
{
    const zf_graph *g = r->graph;
    const zfi_node *node = &g->nodes[id];
    const char *name = zfi_layer_name(g, node);
    size_t length = name ? zfi_numbered(name) : 0;
    bool forward = zfi_is(r, id, ZFI_FORWARD_VALUE);
    int32_t layer = 0, latest = -1;
    if (length) {
        const zfi_layer *before = &r->layers[last];
        layer = before->length == length && !memcmp(before->name, name, length)
                    ? last
                    : zfi_find_layer(r, name, length);
        if (!layer && forward) layer = zfi_new_layer(r, name, length);
    }
    for (int32_t k = 0; k < node->arg_count && !name; k++) {
        int32_t x = zfi_bytes_of(g, node->args[k]);
        if (zfi_has(g, x, ZF_OP_LEAF) || r->position[x] < latest) continue;
        latest = r->position[x], layer = r->of[x].layer;
    }
    if (!layer && forward) layer = last && !r->layers[last].length ? last : zfi_new_layer(r, "", 0);
    while (forward && layer && r->layers[layer].nodes >= ZFI_LAYER_NODES) {
        if (!r->layers[layer].next) {
            int32_t next = zfi_new_layer(r, r->layers[layer].name, r->layers[layer].length);
            r->layers[layer].next = next;
        }
        layer = r->layers[layer].next;
    }
    return layer;
}

static void zfi_find_layers(zfi_recompute *r)
{
    zf_graph *g = r->graph;
    int32_t last = 0;
    int64_t at;
    zfi_new_layer(r, "", 0);
    for (int32_t i = 0; i < zfi_len(g->order) && !g->memory.failed; i++) {
        int32_t id = g->order[i];
        bool counts = zfi_is(r, id, ZFI_FORWARD_VALUE) && !zfi_is(r, id, ZFI_GIVEN) &&
                      g->nodes[id].op != ZF_OP_saved;
        if (g->nodes[id].update || (!counts && !zfi_is(r, id, ZFI_BACKWARD_VALUE))) continue;
        r->of[id].layer = zfi_layer_of(r, id, last);
        if (!counts) continue;
        last = r->of[id].layer;
        if (zfi_viewed(g, &g->nodes[id], &at) < 0) r->layers[last].nodes++;
    }
}

/* Which values cross layers, and which of them are cheap: made by few nodes, none a product, of
 * what is always there. */
static void zfi_mark_crossing(zfi_recompute *r)
{
    const zf_graph *g = r->graph;
    int64_t at;
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        int32_t id = g->order[i];
        const zfi_node *node = &g->nodes[id];
        if (!zfi_is(r, id, ZFI_FORWARD_VALUE) || node->op == ZF_OP_saved ||
            zfi_is(r, id, ZFI_GIVEN) || zfi_viewed(g, node, &at) >= 0)
            continue;
        for (int32_t k = 0; k < node->arg_count; k++) {
            zfi_again *x = &r->of[zfi_maker(g, zfi_bytes_of(g, node->args[k]))];
            if (x->layer != r->of[id].layer) x->marks |= ZFI_CROSSES;
        }
    }
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        int32_t id = g->order[i], count = 1;
        const zfi_node *node = &g->nodes[id];
        if (!zfi_is(r, id, ZFI_FORWARD_VALUE) || node->op == ZF_OP_saved ||
            zfi_is(r, id, ZFI_GIVEN) || zfi_viewed(g, node, &at) >= 0 ||
            zfi_node_flops(g, node) > 0)
            continue;
        for (int32_t k = 0; k < node->arg_count && count; k++) {
            int32_t x = zfi_bytes_of(g, node->args[k]);
            const zfi_again *a = &r->of[x];
            bool stays = (a->marks & ZFI_LATE) && (a->marks & ZFI_CROSSES) && !a->cheap;
            if (stays || zfi_is(r, x, ZFI_GIVEN | ZFI_HELD_ON)) continue;
            count = a->cheap ? count + a->cheap : 0;
        }
        r->of[id].cheap = count <= ZFI_CHEAP_NODES ? (uint8_t)count : 0;
    }
}

/* ------------------------------------------------------------------------------ candidates */

/* Value k of a node: its result for -1, else what it leaves; 0 where the backward pass does not
 * read it, or it stays anyway, or there is none. */
static int32_t zfi_late_value(const zfi_recompute *r, int32_t id, int k)
{
    int32_t v = k < 0 ? id : r->graph->nodes[id].saved[k];
    return v && zfi_is(r, v, ZFI_LATE) && !zfi_is(r, v, ZFI_HELD_ON) ? v : 0;
}

static void zfi_find_candidates(zfi_recompute *r)
{
    zf_graph *g = r->graph;
    int64_t at;
    for (int32_t i = 0; i < zfi_len(g->order) && !g->memory.failed; i++) {
        int32_t id = g->order[i];
        bool late = false;
        if (!zfi_is(r, id, ZFI_FORWARD_VALUE) || zfi_is(r, id, ZFI_GIVEN) ||
            g->nodes[id].op == ZF_OP_saved || zfi_viewed(g, &g->nodes[id], &at) >= 0)
            continue;
        if (zfi_late_value(r, id, -1) && zfi_makes_result(r, id))
            zfi_push(&g->memory, r->candidates, ((zfi_step){.node = id, .result = true}));
        for (int k = -1; k < ZF_MAX_SAVED; k++) late |= zfi_late_value(r, id, k) != 0;
        if (late && (!zfi_is(r, id, ZFI_CROSSES) || r->of[id].cheap))
            zfi_push(&g->memory, r->candidates, ((zfi_step){.node = id}));
    }
}

/* In double, so that sums cannot overflow, whatever is alive at one time. */
static double zfi_value_bytes(const zf_graph *g, int32_t id)
{
    return (double)zfi_node_bytes(&g->nodes[id]);
}

/* Bytes that the node reads and writes. */
static double zfi_moved_bytes(const zf_graph *g, int32_t id)
{
    const zfi_node *node = &g->nodes[id];
    double bytes = zfi_value_bytes(g, id);
    int64_t at;
    if (zfi_viewed(g, node, &at) >= 0 || node->op == ZF_OP_saved) return 0;
    for (int32_t k = 0; k < node->arg_count; k++) bytes += zfi_value_bytes(g, node->args[k]);
    return bytes;
}

/* Until zfi_suppose(r, c, false) the candidate counts as taken. */
static void zfi_suppose(zfi_recompute *r, const zfi_step *c, bool taken)
{
    int32_t *step = c->result ? &r->of[c->node].result_step : &r->of[c->node].step;
    r->taken += taken ? 1 : -1;
    *step = taken ? r->taken : 0;
}

/* The trace of a candidate that is supposed to be taken: of its result, or of what it leaves, which
 * takes it whole. */
static void zfi_trace_step(zfi_recompute *r, const zfi_step *c)
{
    int32_t root = c->node;
    for (int k = 0; k < ZF_MAX_SAVED && !c->result; k++)
        if (zfi_late_value(r, c->node, k)) root = zfi_late_value(r, c->node, k);
    zfi_trace(r, root, r->of[c->node].layer);
}

/* A node of the list of a trace is made of what it left, not of its operands. */
static bool zfi_is_inverted(const zfi_recompute *r, int32_t id)
{
    return r->graph->nodes[id].op != ZF_OP_saved && zfi_makes_result(r, id);
}

/* What a candidate costs as things are. */
static void zfi_know_step(zfi_recompute *r, zfi_step *c)
{
    zf_graph *g = r->graph;
    c->known = true;
    c->flops = c->moved = c->kept = 0;
    zfi_clear(c->products);
    zfi_suppose(r, c, true);
    zfi_trace_step(r, c);
    for (int32_t k = 0; k < zfi_len(r->list); k++) {
        int32_t id = r->list[k];
        double flops = zfi_node_flops(g, &g->nodes[id]);
        if (zfi_is(r, id, ZFI_AGAIN)) continue;
        c->moved += zfi_moved_bytes(g, id);
        if (flops <= 0 || zfi_is_inverted(r, id)) continue;
        c->flops += flops;
        zfi_push(&g->memory, c->products, id);
    }
    for (int32_t k = 0; k < zfi_len(r->there); k++)
        if (!zfi_is(r, r->there[k], ZFI_LATE | ZFI_HELD_ON))
            c->kept += zfi_value_bytes(g, r->there[k]);
    zfi_suppose(r, c, false);
}

/* Value k of a candidate that would be given up with it, 0: none. */
static int32_t zfi_given_up(const zfi_recompute *r, const zfi_step *c, int k)
{
    if (k < 0 ? r->of[c->node].result_step != 0 : c->result) return 0;
    return zfi_late_value(r, c->node, k);
}

/* The positions from which and before which some value of a candidate is idle: none of it is made
 * again before. */
static void zfi_idle(const zfi_recompute *r, const zfi_step *c, int32_t *from, int32_t *until)
{
    *from = *until = zfi_len(r->graph->order);
    for (int k = -1; k < ZF_MAX_SAVED; k++) {
        int32_t late = k < 0 || !c->result ? zfi_late_value(r, c->node, k) : 0;
        int32_t v = zfi_given_up(r, c, k);
        if (late && r->of[late].first < *until) *until = r->of[late].first;
        if (v && r->of[v].early + 1 < *from) *from = r->of[v].early + 1;
    }
}

static bool zfi_is_idle(const zfi_recompute *r, const zfi_step *c, int32_t position)
{
    int32_t from, until;
    zfi_idle(r, c, &from, &until);
    return from <= position && position < until;
}

/* Bytes of what a candidate gives up and is idle at a position. */
static double zfi_idle_bytes(const zfi_recompute *r, const zfi_step *c, int32_t position)
{
    double bytes = 0;
    if (!zfi_is_idle(r, c, position)) return 0;
    for (int k = -1; k < ZF_MAX_SAVED; k++) {
        int32_t v = zfi_given_up(r, c, k);
        if (v && r->of[v].early < position) bytes += zfi_value_bytes(r->graph, v);
    }
    return bytes;
}

static bool zfi_is_gone(const zfi_recompute *r, const zfi_step *c)
{
    const zfi_again *a = &r->of[c->node];
    return c->worthless || a->step || (c->result && a->result_step);
}

/* -------------------------------------------------------------------------------- the peak */

static void zfi_add_alive(zfi_recompute *r, int32_t from, int32_t until, double bytes)
{
    for (int32_t i = from; i < until; i++) r->alive[i] += bytes;
}

/* What is alive at each position, before anything is given up; leaves are left out. */
static void zfi_sum_alive(zfi_recompute *r, const zfi_placement *uses)
{
    const zf_graph *g = r->graph;
    int32_t end = zfi_len(g->order);
    double sum = 0;
    int64_t at;
    for (int32_t i = 0; i < end; i++) {
        int32_t id = g->order[i], first = i;
        const zfi_node *node = &g->nodes[id];
        if (zfi_has(g, id, ZF_OP_LEAF | ZF_OP_EFFECT) || zfi_viewed(g, node, &at) >= 0) continue;
        if (node->op == ZF_OP_saved) first = r->position[node->args[0]];
        r->alive[first] += zfi_value_bytes(g, id);
        r->alive[uses->last_use[id] + 1] -= zfi_value_bytes(g, id);
        for (int32_t k = 0; k < node->arg_count; k++) {
            int32_t x = node->args[k];
            if (!zfi_may_overwrite(g, id, k) || zfi_has(g, x, ZF_OP_LEAF) ||
                uses->last_use[x] != i || !zfi_same_shape(&g->nodes[x].shape, &node->shape))
                continue;
            r->alive[i] -= zfi_value_bytes(g, x); /* written over */
            r->alive[i + 1] += zfi_value_bytes(g, x);
            break;
        }
    }
    for (int32_t i = 0; i < end; i++) r->alive[i] = sum += r->alive[i];
}

/* The position where most is alive of those where some candidate is idle; -1: there is none. */
static int32_t zfi_find_peak(const zfi_recompute *r, int32_t *cover)
{
    int32_t end = zfi_len(r->graph->order), best = -1, sum = 0;
    memset(cover, 0, ((size_t)end + 1) * sizeof *cover);
    for (int32_t n = 0; n < zfi_len(r->candidates); n++) {
        const zfi_step *c = &r->candidates[n];
        int32_t from, until;
        zfi_idle(r, c, &from, &until);
        if (!zfi_is_gone(r, c) && from < until) cover[from]++, cover[until]--;
    }
    for (int32_t i = 0; i < end; i++) {
        sum += cover[i];
        if (sum && (best < 0 || r->alive[i] > r->alive[best])) best = i;
    }
    return best;
}

/* ------------------------------------------------------------------------------- the order */

/* All products of a candidate are among those that are stamped. */
static bool zfi_products_stamped(const zfi_recompute *r, const zfi_step *c)
{
    for (int32_t k = 0; k < zfi_len(c->products); k++)
        if (r->of[c->products[k]].stamp != r->stamp) return false;
    return zfi_len(c->products) > 0;
}

/* Bytes that are idle at a position of the candidate at index n, and of those of its layer that its
 * products pay for as well, less those that are kept for it. Candidates of a layer are neighbours.
 */
static double zfi_benefit(zfi_recompute *r, int32_t n, int32_t position)
{
    const zfi_step *c = &r->candidates[n];
    double bytes = zfi_idle_bytes(r, c, position);
    int32_t layer = r->of[c->node].layer, count = zfi_len(r->candidates);
    if (bytes <= 0 || c->flops <= 0) return bytes - c->kept;
    r->stamp++;
    for (int32_t k = 0; k < zfi_len(c->products); k++) r->of[c->products[k]].stamp = r->stamp;
    for (int step = -1; step <= 1; step += 2)
        for (int32_t m = n + step; m >= 0 && m < count; m += step) {
            const zfi_step *other = &r->candidates[m];
            if (r->of[other->node].layer != layer) break;
            if (!zfi_is_gone(r, other) && zfi_products_stamped(r, other))
                bytes += zfi_idle_bytes(r, other, position);
        }
    return bytes - c->kept;
}

/* The lives of what is made again, from `until` on. */
static void zfi_live_again(zfi_recompute *r, const zfi_step *c, int32_t until)
{
    const zf_graph *g = r->graph;
    int64_t at;
    double most = 0; /* of what is read at once, and over which the next may be written */
    for (int32_t k = 0; k < zfi_len(r->list); k++) {
        int32_t id = r->list[k];
        zfi_again *a = &r->of[id];
        if (!zfi_is_inverted(r, id)) a->marks |= ZFI_AGAIN;
        if (zfi_viewed(g, &g->nodes[id], &at) >= 0 || zfi_maker(g, id) == c->node) continue;
        if (!(a->marks & ZFI_LATE)) {
            if (zfi_value_bytes(g, id) > most) most = zfi_value_bytes(g, id);
        } else if (until < a->first) {
            zfi_add_alive(r, until, a->first, zfi_value_bytes(g, id));
            a->first = until;
        }
    }
    r->alive[until] += most;
}

/* The lives of what that is made of: until `until` at least. */
static void zfi_live_on(zfi_recompute *r, int32_t until)
{
    for (int32_t k = 0; k < zfi_len(r->there); k++) {
        zfi_again *a = &r->of[r->there[k]];
        if (a->marks & ZFI_HELD_ON) continue;
        if (!(a->marks & ZFI_LATE)) a->marks |= ZFI_LATE, a->first = until, a->last = a->early;
        if (until < a->first) a->first = until;
        if (until <= a->last) continue;
        zfi_add_alive(r, a->last + 1, until + 1, zfi_value_bytes(r->graph, r->there[k]));
        a->last = until;
    }
}

/* Takes a step. What it gives up is not alive where it is idle. */
static void zfi_take_step(zfi_recompute *r, zfi_step *c)
{
    int32_t from, until, layer = r->of[c->node].layer;
    zfi_idle(r, c, &from, &until);
    for (int k = -1; k < ZF_MAX_SAVED; k++) {
        int32_t v = zfi_given_up(r, c, k);
        if (!v) continue;
        zfi_add_alive(r, r->of[v].early + 1, until, -zfi_value_bytes(r->graph, v));
        r->of[v].first = until;
    }
    zfi_suppose(r, c, true); /* and so it stays */
    zfi_trace_step(r, c);
    zfi_live_again(r, c, until);
    zfi_live_on(r, until);
    for (int32_t n = 0; n < zfi_len(r->candidates); n++)
        if (r->of[r->candidates[n].node].layer == layer) r->candidates[n].known = false;
}

/* The candidate to be taken next against the peak at a position; NULL: none. */
static zfi_step *zfi_best_step(zfi_recompute *r, int32_t position)
{
    zfi_step *best = NULL;
    double best_bytes = 0;
    for (int32_t n = 0; n < zfi_len(r->candidates) && !r->graph->memory.failed; n++) {
        zfi_step *c = &r->candidates[n];
        double bytes;
        if (zfi_is_gone(r, c)) continue;
        if (!c->known) zfi_know_step(r, c);
        bytes = zfi_benefit(r, n, position);
        if (bytes <= 0) continue;
        if (best) {
            double less = c->flops * best_bytes - best->flops * bytes;
            if (less == 0) less = c->moved * best_bytes - best->moved * bytes;
            if (less >= 0) continue;
        }
        best = c, best_bytes = bytes;
    }
    return best;
}

/* Puts all candidates that are worth anything into an order: of[].step and of[].result_step, and
 * r->taken, how many there are. */
static void zfi_find_order(zfi_recompute *r, const zfi_placement *uses)
{
    zf_graph *g = r->graph;
    size_t positions = (size_t)zfi_len(g->order) + 2;
    int32_t *cover = zfi_calloc(&g->memory, positions, sizeof *cover), peak;
    r->alive = zfi_calloc(&g->memory, positions, sizeof *r->alive);
    if (cover && r->alive) zfi_sum_alive(r, uses);
    while (cover && r->alive && !g->memory.failed && (peak = zfi_find_peak(r, cover)) >= 0) {
        zfi_step *best = zfi_best_step(r, peak);
        if (best) zfi_take_step(r, best);
        for (int32_t n = 0; n < zfi_len(r->candidates) && !best; n++)
            r->candidates[n].worthless |= zfi_is_idle(r, &r->candidates[n], peak);
    }
    zfi_free(&g->memory, cover, positions * sizeof *cover);
    zfi_free(&g->memory, r->alive, positions * sizeof *r->alive);
    r->alive = NULL;
}
