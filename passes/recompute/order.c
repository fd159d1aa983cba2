/* recompute, the order: which values of the forward pass are given up, and which first
 * (recompute.c).
 *
 *     bytes |          ____ peak
 *           |     ____/    \____      A value is idle from its last use in the forward pass to its
 *           |    /  |- idle -| \      first in the backward pass. A step gives up values that are
 *           |___/   x        x  \___  idle at the current peak: those with the fewest FLOPs per
 *           +----------------------   byte, then the fewest bytes moved per byte, then the first
 *             forward    backward     in the graph.
 *
 * A node is given up together with its saved values; or only its result, if that can be recomputed
 * from a saved value that stays. Recomputing a node takes the nodes above it up to values that are
 * available: kept ones, leaves, and values of other layers, which are kept for it. So a layer keeps
 * its inputs. Where it begins with the norm of a sum of two of them, it keeps the sum instead
 * (zfi_record.remake_from_sum). A layer is the nodes of one numbered scope ("layer.7"), or a part
 * of the nodes outside such scopes. A value that several layers read is given up only if a few
 * nodes, none a product, recompute it from what is always available, as for a mask; each layer
 * recomputes it.
 *
 * Lifetimes are those of plan/memory.c, without places. The plan shows what the order saves
 * (recompute.c). */

enum {
    ZFI_FORWARD_VALUE = 1,  /* the loss depends on it, or on the node that saves it */
    ZFI_BACKWARD_VALUE = 2, /* gradients depend on it, and the loss does not */
    ZFI_GIVEN = 4,          /* never recomputed: it is always available, or cannot be recomputed */
    ZFI_LATE = 8,           /* the backward pass reads it */
    ZFI_HELD_ON = 16,       /* an effect or the update section reads it too, so it stays */
    ZFI_CROSSES = 32,       /* another layer's forward pass reads it */
    ZFI_AGAIN = 64          /* recomputed by a step of the order */
};

enum { ZFI_CHEAP_NODES = 32, ZFI_LAYER_NODES = 128 };

/* For each node: */
typedef struct zfi_again {
    uint8_t marks;
    uint8_t cheap; /* the number of nodes that recompute it, none a product; 0: not cheap */
    int32_t layer; /* 0: none */
    int32_t step;  /* the step that gives it up with its saved values; 0: none */
    int32_t result_step; /* the step that gives up only its result */
    int32_t early;       /* the last position in the forward pass where it is read or computed */
    int32_t first, last; /* the first and last positions where the backward pass reads it */
    int32_t sum;         /* the saved value from which it is recomputed whole; 0: its operands */
    int32_t inverse;     /* the backward node that computes it from its saved value; 0 */
    int32_t candidate;   /* the first candidate that gives it up; they are neighbours */
    int32_t stamp;
    int32_t whole; /* of the trace that takes its saved values too, not its result alone */
} zfi_again;

typedef struct zfi_layer {
    const char *name; /* its first `length` bytes; layers without a number count no bytes */
    size_t length;
    int32_t nodes; /* of its forward pass, without views */
    int32_t next;  /* the layer that continues it when it has many nodes; 0 */
    int32_t runs;  /* its last run of candidates, + 1 */
} zfi_layer;

/* A candidate for a step. */
typedef struct zfi_step {
    int32_t node;
    bool result; /* gives up only the result */
    bool worthless;
    int32_t run;
    int32_t from, until; /* positions that it covers: where it is idle and may be taken */
    bool known;          /* the following are known: */
    double flops, moved;
    double kept;       /* bytes that are kept for it, and were not before */
    int32_t *products; /* growing array: nodes */
} zfi_step;

/* Candidates [first, last), neighbours in one layer. */
typedef struct zfi_run {
    int32_t first, last;
    int32_t before; /* the layer's run before, + 1; 0: there is none */
} zfi_run;

/* The best candidate of one or more runs for a peak at positions [from, until); no positions: not
 * known. */
typedef struct zfi_winner {
    int32_t from, until;
    int32_t candidate; /* -1: none saves bytes there */
    double bytes;      /* bytes that it saves */
} zfi_winner;

typedef struct zfi_recompute {
    zf_graph *graph;
    zfi_again *of;     /* by node; */
    size_t nodes;      /* number of nodes */
    int32_t taken;     /* number of steps */
    int32_t rank;      /* along pipe: plans are of its nodes; -1: of all */
    int32_t *taken_by; /* the same by rank along pipe, of all before 0; NULL: `taken` of each */
    zfi_layer *layers; /* growing array; [0] is no layer */
    int32_t *position; /* by node */
    /* A trace: nodes to recompute, and the available values that they read; growing arrays */
    int32_t *list, *there, *stack;
    int32_t stamp;
    /* For choosing the order */
    zfi_alive alive;
    zfi_step *candidates; /* growing arrays */
    zfi_run *runs;
    zfi_winner *winners; /* a tree: k is the parent of 2k and 2k + 1; run i is leaf leaves + i */
    int32_t leaves;
    double *peaks; /* growing array: the peak after each number of steps */
} zfi_recompute;

static bool zfi_is(const zfi_recompute *r, int32_t id, int marks)
{
    return (r->of[id].marks & marks) != 0;
}

/* The node that computes the value: for a saved one, its operand. */
static int32_t zfi_maker(const zf_graph *g, int32_t id)
{
    return g->nodes[id].op == ZF_OP_saved ? g->nodes[id].args[0] : id;
}

/* Node `id` takes the step. */
static bool zfi_is_taken(const zfi_recompute *r, int32_t id, int32_t step)
{
    const int32_t rank = r->taken_by ? zfi_rank_at(r->graph, r->graph->nodes[id].stage) : 0;
    return step && step <= (r->taken_by ? r->taken_by[rank] : r->taken);
}

/* The value, which is no view, is available in the backward pass. */
static bool zfi_is_there(const zfi_recompute *r, int32_t id)
{
    const int32_t maker = zfi_maker(r->graph, id);
    if (!zfi_is(r, id, ZFI_FORWARD_VALUE) || zfi_is(r, id, ZFI_GIVEN | ZFI_HELD_ON)) return true;
    if (!zfi_is(r, id, ZFI_LATE) || zfi_is_taken(r, maker, r->of[maker].step)) return false;
    return r->graph->nodes[id].op == ZF_OP_saved ||
           !zfi_is_taken(r, maker, r->of[maker].result_step);
}

/* The saved value of the node from which its result can be recomputed to the same bits; 0: there is
 * none. */
static int32_t zfi_left_for_result(const zf_graph *g, int32_t id)
{
    const zfi_node *node = &g->nodes[id];
    if (node->dtype != ZF_F32 && node->dtype != ZF_F64) return 0;
    return zfi_record_of(g, id)->remake ? node->saved[0] : 0;
}

/* The same if that value is available. */
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

static void zfi_visit_operands(zfi_recompute *r, int32_t id)
{
    const zfi_node *node = &r->graph->nodes[id];
    int32_t sum = r->of[id].sum;
    if (sum) zfi_visit_later(r, sum);
    for (int32_t k = sum ? 2 : 0; k < node->arg_count; k++) zfi_visit_later(r, node->args[k]);
}

static void zfi_clear(int32_t *array)
{
    if (array) stbds_header(array)->length = 0;
}

/* Finds what recomputing value `id` in a layer takes: in r->list the nodes to recompute, in no
 * order, and in r->there the values that they read. Values of other layers are not recomputed here:
 * they are in r->there too, although they may not have been kept before. */
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
            /* A saved value is recomputed together with its operand. */
            const int32_t maker = node->args[0];
            if (r->of[maker].sum == v || (r->of[maker].layer != layer && !r->of[maker].cheap)) {
                zfi_push(&g->memory, r->there, v);
                continue;
            }
            zfi_push(&g->memory, r->list, v);
            if (r->of[maker].whole == r->stamp) continue;
            r->of[maker].whole = r->stamp;
            if (r->of[maker].stamp != r->stamp) {
                r->of[maker].stamp = r->stamp;
                zfi_push(&g->memory, r->list, maker);
            }
            zfi_visit_operands(r, maker);
            continue;
        }
        left = zfi_makes_result(r, v);
        if (!left && r->of[v].layer != layer && !r->of[v].cheap) {
            zfi_push(&g->memory, r->there, v);
            continue;
        }
        zfi_push(&g->memory, r->list, v);
        if (left) zfi_visit_later(r, left);
        else zfi_visit_operands(r, v);
    }
}

/* ---------------------------------------------------------------------------------- marks */

/* Nodes that are never recomputed: leaves and views of them, nodes with effects, nodes that read
 * what the micro section writes, and nodes whose saved values are gradients, which are read at
 * once. */
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
    for (int32_t i = zfi_len(g->order); zfi_down(i);) {
        const zfi_node *node = &g->nodes[g->order[i]];
        uint8_t *marks = &r->of[g->order[i]].marks;
        if (node->update) continue;
        if (node->role == ZFI_ROLE_LOSS) *marks |= ZFI_FORWARD_VALUE;
        for (int32_t k = 0; k < node->arg_count && (*marks & ZFI_FORWARD_VALUE); k++)
            r->of[node->args[k]].marks |= ZFI_FORWARD_VALUE;
    }
    for (int32_t i = 0; i < zfi_len(g->order); i++)
        if (g->nodes[g->order[i]].op == ZF_OP_saved)
            r->of[g->order[i]].marks |=
                r->of[g->nodes[g->order[i]].args[0]].marks & ZFI_FORWARD_VALUE;
    for (int32_t i = zfi_len(g->order); zfi_down(i);) {
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

/* Finds who reads each value, and where; readers of a view count as readers of its operand. */
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

/* The name that decides the layer of a node; NULL where its operands decide. */
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

static bool zfi_is_layer(const zfi_recompute *r, int32_t l, const char *name, size_t length)
{
    return l > 0 && l < zfi_len(r->layers) && r->layers[l].length == length &&
           !memcmp(r->layers[l].name, name, length);
}

/* The last layer with the numbered part of a name; 0: there is none. The search begins at layer
 * `near` and goes both ways. */
static int32_t zfi_find_layer(const zfi_recompute *r, const char *name, size_t length, int32_t near)
{
    int32_t found = 0;
    for (int32_t k = 0; k < zfi_len(r->layers) && !found; k++)
        found = zfi_is_layer(r, near - k, name, length)   ? near - k
                : zfi_is_layer(r, near + k, name, length) ? near + k
                                                          : 0;
    while (r->layers[found].next) found = r->layers[found].next;
    return found;
}

/* The layer of a node, from those of its operands. `last`: the layer of the node before it in the
 * forward pass; `near`: of the node before it. */
static int32_t zfi_layer_of(zfi_recompute *r, int32_t id, int32_t last, int32_t near)
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
                    : zfi_find_layer(r, name, length, near);
        if (!layer && forward) layer = zfi_new_layer(r, name, length);
    }
    for (int32_t k = 0; k < node->arg_count && !name; k++) {
        int32_t x = zfi_bytes_of(g, node->args[k]);
        if (zfi_is(r, x, ZFI_GIVEN) || r->position[x] < latest) continue;
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
    int32_t last = 0, near = 0;
    int64_t at;
    zfi_new_layer(r, "", 0);
    for (int32_t i = 0; i < zfi_len(g->order) && !g->memory.failed; i++) {
        int32_t id = g->order[i];
        bool counts = zfi_is(r, id, ZFI_FORWARD_VALUE) && !zfi_is(r, id, ZFI_GIVEN) &&
                      g->nodes[id].op != ZF_OP_saved;
        if (g->nodes[id].update || (!counts && !zfi_is(r, id, ZFI_BACKWARD_VALUE))) continue;
        near = r->of[id].layer = zfi_layer_of(r, id, last, near);
        if (!counts) continue;
        last = r->of[id].layer;
        if (zfi_viewed(g, &g->nodes[id], &at) < 0) r->layers[last].nodes++;
    }
}

/* Finds the norms of sums whose operands are of other layers. */
static void zfi_find_first_sums(zfi_recompute *r)
{
    const zf_graph *g = r->graph;
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        int32_t id = g->order[i];
        const zfi_node *node = &g->nodes[id];
        bool others = g->records[node->op]->remake_from_sum && zfi_is(r, id, ZFI_FORWARD_VALUE);
        for (int32_t k = 0; k < 2 && others; k++) {
            int32_t x = zfi_maker(g, zfi_bytes_of(g, node->args[k]));
            others = !zfi_is(r, x, ZFI_GIVEN) && r->of[x].layer != r->of[id].layer;
        }
        if (others) r->of[id].sum = node->saved[g->records[node->op]->sum];
    }
}

/* Finds values that cross layers, and which of them are cheap: recomputed by few nodes, none a
 * product, from what is always available. */
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
        for (int32_t k = r->of[id].sum ? 2 : 0; k < node->arg_count; k++) {
            zfi_again *x = &r->of[zfi_maker(g, zfi_bytes_of(g, node->args[k]))];
            if (x->layer != r->of[id].layer) x->marks |= ZFI_CROSSES;
        }
    }
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        int32_t id = g->order[i], count = 1;
        const zfi_node *node = &g->nodes[id];
        if (!zfi_is(r, id, ZFI_FORWARD_VALUE) || node->op == ZF_OP_saved ||
            zfi_is(r, id, ZFI_GIVEN) || zfi_viewed(g, node, &at) >= 0 || r->of[id].sum ||
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

/* Value k of a node: -1 is its result, others its saved values; 0 where the backward pass does not
 * read it, or it stays anyway, or there is none. */
static int32_t zfi_late_value(const zfi_recompute *r, int32_t id, int k)
{
    int32_t v = k < 0 ? id : r->graph->nodes[id].saved[k];
    if (!v || v == r->of[id].sum) return 0;
    return zfi_is(r, v, ZFI_LATE) && !zfi_is(r, v, ZFI_HELD_ON) ? v : 0;
}

static void zfi_add_candidate(zfi_recompute *r, int32_t id, bool result)
{
    zf_graph *g = r->graph;
    int32_t n = zfi_len(r->candidates), layer = r->of[id].layer;
    if (!n || r->of[r->candidates[n - 1].node].layer != layer) {
        zfi_run run = {n, n, r->layers[layer].runs};
        if (!zfi_push(&g->memory, r->runs, run)) return;
        r->layers[layer].runs = zfi_len(r->runs);
    }
    if (!n || r->candidates[n - 1].node != id) r->of[id].candidate = n;
    zfi_step step = {.node = id, .result = result, .run = zfi_len(r->runs) - 1};
    if (zfi_push(&g->memory, r->candidates, step)) r->runs[step.run].last = n + 1;
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
        if (zfi_late_value(r, id, -1) && zfi_makes_result(r, id)) zfi_add_candidate(r, id, true);
        for (int k = -1; k < ZF_MAX_SAVED; k++) late |= zfi_late_value(r, id, k) != 0;
        if (late && (!zfi_is(r, id, ZFI_CROSSES) || r->of[id].cheap))
            zfi_add_candidate(r, id, false);
    }
}

/* In double, so that sums cannot overflow. */
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

/* The candidate counts as taken until zfi_suppose(r, c, false). */
static void zfi_suppose(zfi_recompute *r, const zfi_step *c, bool taken)
{
    int32_t *step = c->result ? &r->of[c->node].result_step : &r->of[c->node].step;
    r->taken += taken ? 1 : -1;
    *step = taken ? r->taken : 0;
}

/* The trace of a candidate that is supposed to be taken: of its result, or of its saved values,
 * which include the result. */
static void zfi_trace_step(zfi_recompute *r, const zfi_step *c)
{
    int32_t root = c->node;
    for (int k = 0; k < ZF_MAX_SAVED && !c->result; k++)
        if (zfi_late_value(r, c->node, k)) root = zfi_late_value(r, c->node, k);
    zfi_trace(r, root, r->of[c->node].layer);
}

/* A node in the list of a trace is recomputed from its saved value, not from its operands. */
static bool zfi_is_inverted(const zfi_recompute *r, int32_t id)
{
    return r->graph->nodes[id].op != ZF_OP_saved && zfi_makes_result(r, id);
}

/* Computes the cost of a candidate, given the steps taken so far. */
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

/* Value k of a candidate if it would be given up; 0: none. */
static int32_t zfi_given_up(const zfi_recompute *r, const zfi_step *c, int k)
{
    if (k < 0 ? r->of[c->node].result_step != 0 : c->result) return 0;
    return zfi_late_value(r, c->node, k);
}

/* The positions between which all values of a candidate are idle: none of them is recomputed
 * earlier. */
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

static bool zfi_is_idle(const zfi_step *c, int32_t position)
{
    return c->from <= position && position < c->until;
}

/* Bytes of the values that a candidate gives up and that are idle at a position. */
static double zfi_idle_bytes(const zfi_recompute *r, const zfi_step *c, int32_t position)
{
    double bytes = 0;
    if (!zfi_is_idle(c, position)) return 0;
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
    if (from < until) zfi_alive_change_by(&r->alive, from, until, bytes, 0);
}

/* Live bytes at each position before any step, without leaves. */
static void zfi_sum_alive(zfi_recompute *r, const zfi_placement *uses)
{
    const zf_graph *g = r->graph;
    int32_t end = zfi_len(g->order);
    double sum = 0, *alive = r->alive.bytes;
    int64_t at;
    for (int32_t i = 0; i < end; i++) {
        int32_t id = g->order[i], first = i;
        const zfi_node *node = &g->nodes[id];
        if (zfi_has(g, id, ZF_OP_LEAF | ZF_OP_EFFECT) || zfi_viewed(g, node, &at) >= 0) continue;
        if (node->op == ZF_OP_saved) first = r->position[node->args[0]];
        alive[first] += zfi_value_bytes(g, id);
        alive[uses->last_use[id] + 1] -= zfi_value_bytes(g, id);
        for (int32_t k = 0; k < node->arg_count; k++) {
            int32_t x = node->args[k];
            if (!zfi_may_overwrite(g, id, k) || zfi_has(g, x, ZF_OP_LEAF) ||
                uses->last_use[x] != i || !zfi_same_shape(&g->nodes[x].shape, &node->shape))
                continue;
            alive[i] -= zfi_value_bytes(g, x); /* its bytes are written over */
            alive[i + 1] += zfi_value_bytes(g, x);
            break;
        }
    }
    for (int32_t i = 0; i < end; i++) alive[i] = sum += alive[i];
    zfi_alive_build(&r->alive, 0, 0, zfi_alive_blocks(&r->alive));
}

/* Forgets the best candidate of the run of candidate n, and of all sets of runs with it. */
static void zfi_forget_winner(zfi_recompute *r, int32_t n)
{
    for (int32_t k = r->leaves + r->candidates[n].run; k; k /= 2)
        r->winners[k].from = r->winners[k].until = 0;
}

/* Sets the positions that candidate n covers to those where it is now idle, until it is gone. */
static void zfi_cover(zfi_recompute *r, int32_t n)
{
    zfi_step *c = &r->candidates[n];
    int32_t from = 0, until = 0;
    if (!zfi_is_gone(r, c)) zfi_idle(r, c, &from, &until);
    if (from >= until) from = until = 0;
    zfi_forget_winner(r, n);
    if (from == c->from && until == c->until) return;
    if (c->from < c->until) zfi_alive_change_by(&r->alive, c->from, c->until, 0, -1);
    if (from < until) zfi_alive_change_by(&r->alive, from, until, 0, 1);
    c->from = from, c->until = until;
}

/* The same for the candidates that give up value `id`, whose idle positions have changed. */
static void zfi_cover_value(zfi_recompute *r, int32_t id)
{
    int32_t maker = zfi_maker(r->graph, id), n = r->of[maker].candidate;
    for (; n < zfi_len(r->candidates) && r->candidates[n].node == maker; n++) zfi_cover(r, n);
}

/* ------------------------------------------------------------------------------- the order */

/* All products of a candidate have the current stamp. */
static bool zfi_products_stamped(const zfi_recompute *r, const zfi_step *c)
{
    for (int32_t k = 0; k < zfi_len(c->products); k++)
        if (r->of[c->products[k]].stamp != r->stamp) return false;
    return zfi_len(c->products) > 0;
}

/* Bytes that the candidate at index n saves at a position, with those of its run that are
 * recomputed by the same products, less the bytes that are kept for it. */
static double zfi_benefit(zfi_recompute *r, int32_t n, int32_t position)
{
    const zfi_step *c = &r->candidates[n];
    const zfi_run *run = &r->runs[c->run];
    double bytes = zfi_idle_bytes(r, c, position);
    if (bytes <= 0 || c->flops <= 0) return bytes - c->kept;
    r->stamp++;
    for (int32_t k = 0; k < zfi_len(c->products); k++) r->of[c->products[k]].stamp = r->stamp;
    for (int32_t m = run->first; m < run->last; m++) {
        const zfi_step *other = &r->candidates[m];
        if (m != n && !zfi_is_gone(r, other) && zfi_products_stamped(r, other))
            bytes += zfi_idle_bytes(r, other, position);
    }
    return bytes - c->kept;
}

/* Adds the lifetimes of recomputed values, from `until` on. */
static void zfi_live_again(zfi_recompute *r, const zfi_step *c, int32_t until)
{
    const zf_graph *g = r->graph;
    int64_t at;
    double most = 0; /* of values read at once, over which the next may be written */
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
            zfi_cover_value(r, id);
        }
    }
    zfi_add_alive(r, until, until + 1, most);
}

/* Extends the lifetimes of the values from which these are recomputed, to `until` at least. */
static void zfi_live_on(zfi_recompute *r, int32_t until)
{
    for (int32_t k = 0; k < zfi_len(r->there); k++) {
        zfi_again *a = &r->of[r->there[k]];
        if (a->marks & ZFI_HELD_ON) continue;
        if (!(a->marks & ZFI_LATE)) a->marks |= ZFI_LATE, a->first = until, a->last = a->early;
        if (until < a->first) a->first = until;
        zfi_cover_value(r, r->there[k]);
        if (until <= a->last) continue;
        zfi_add_alive(r, a->last + 1, until + 1, zfi_value_bytes(r->graph, r->there[k]));
        a->last = until;
    }
}

/* Takes a step. What it gives up is not live where it is idle. */
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
    zfi_suppose(r, c, true); /* and it stays taken */
    zfi_trace_step(r, c);
    zfi_live_again(r, c, until);
    zfi_live_on(r, until);
    zfi_cover_value(r, c->node);
    for (int32_t run = r->layers[layer].runs; run; run = r->runs[run - 1].before) {
        zfi_forget_winner(r, r->runs[run - 1].first);
        for (int32_t n = r->runs[run - 1].first; n < r->runs[run - 1].last; n++)
            r->candidates[n].known = false;
    }
}

/* The better of two candidates: fewer FLOPs per byte, then fewer bytes moved, then the first. */
static zfi_winner zfi_better(const zfi_recompute *r, zfi_winner x, zfi_winner y)
{
    const zfi_step *a, *b;
    double less;
    if (x.candidate < 0 || y.candidate < 0) return x.candidate < 0 ? y : x;
    a = &r->candidates[x.candidate], b = &r->candidates[y.candidate];
    less = b->flops * x.bytes - a->flops * y.bytes;
    if (less == 0) less = b->moved * x.bytes - a->moved * y.bytes;
    return less < 0 ? y : x;
}

/* Limits the positions of *w to those on the side of `at` on which `position` is. */
static void zfi_split_at(zfi_winner *w, int32_t at, int32_t position)
{
    if (at <= position && at > w->from) w->from = at;
    if (at > position && at < w->until) w->until = at;
}

/* The best candidate of a run for a peak at a position. */
static zfi_winner zfi_best_of_run(zfi_recompute *r, const zfi_run *run, int32_t position)
{
    zfi_winner best = {0, INT32_MAX, -1, 0};
    for (int32_t n = run->first; n < run->last; n++)
        if (!zfi_is_gone(r, &r->candidates[n]) && !r->candidates[n].known)
            zfi_know_step(r, &r->candidates[n]);
    for (int32_t n = run->first; n < run->last; n++) {
        const zfi_step *c = &r->candidates[n];
        zfi_winner own = {.candidate = n};
        if (zfi_is_gone(r, c)) continue;
        zfi_split_at(&best, c->from, position);
        zfi_split_at(&best, c->until, position);
        for (int k = -1; k < ZF_MAX_SAVED; k++) {
            int32_t v = zfi_given_up(r, c, k);
            if (v) zfi_split_at(&best, r->of[v].early + 1, position);
        }
        own.bytes = zfi_benefit(r, n, position);
        own.from = best.from, own.until = best.until;
        if (own.bytes > 0) best = zfi_better(r, best, own);
        else own.candidate = -1;
    }
    return best;
}

/* The best candidate of the runs below node k of r->winners. */
static zfi_winner zfi_best_below(zfi_recompute *r, int32_t k, int32_t position)
{
    zfi_winner *w = &r->winners[k], x, y;
    if (w->from <= position && position < w->until) return *w;
    if (k >= r->leaves + zfi_len(r->runs)) {
        *w = (zfi_winner){0, INT32_MAX, -1, 0};
    } else if (k >= r->leaves) {
        *w = zfi_best_of_run(r, &r->runs[k - r->leaves], position);
    } else {
        x = zfi_best_below(r, 2 * k, position), y = zfi_best_below(r, 2 * k + 1, position);
        *w = zfi_better(r, x, y);
        w->from = x.from > y.from ? x.from : y.from;
        w->until = x.until < y.until ? x.until : y.until;
    }
    return *w;
}

/* Takes steps against the peak until no candidate saves bytes there. */
static void zfi_take_steps(zfi_recompute *r)
{
    zf_graph *g = r->graph;
    zfi_alive_most peak = zfi_alive_peak(&r->alive, false);
    zfi_push(&g->memory, r->peaks, peak.bytes);
    while (peak = zfi_alive_peak(&r->alive, true), peak.position < INT32_MAX && !g->memory.failed) {
        int32_t best = zfi_best_below(r, 1, peak.position).candidate;
        if (g->memory.failed) return;
        if (best >= 0) {
            zfi_take_step(r, &r->candidates[best]);
            peak = zfi_alive_peak(&r->alive, false);
            zfi_push(&g->memory, r->peaks, peak.bytes);
        }
        for (int32_t n = 0; n < zfi_len(r->candidates) && best < 0; n++)
            if (zfi_is_idle(&r->candidates[n], peak.position)) {
                r->candidates[n].worthless = true;
                zfi_cover(r, n);
            }
    }
}

/* Puts all candidates that save bytes into an order: of[].step and of[].result_step; r->taken,
 * their number; r->peaks. */
static void zfi_find_order(zfi_recompute *r, const zfi_placement *uses)
{
    zf_graph *g = r->graph;
    size_t winners;
    for (r->leaves = 1; r->leaves < zfi_len(r->runs);) r->leaves *= 2;
    winners = 2 * (size_t)r->leaves;
    r->winners = zfi_calloc(&g->memory, winners, sizeof *r->winners);
    if (zfi_alive_open(&r->alive, &g->memory, zfi_len(g->order) + 2) && r->winners) {
        zfi_sum_alive(r, uses);
        for (int32_t n = 0; n < zfi_len(r->candidates); n++) zfi_cover(r, n);
        zfi_take_steps(r);
    }
    zfi_alive_close(&r->alive);
    zfi_free(&g->memory, r->winners, winners * sizeof *r->winners);
}
