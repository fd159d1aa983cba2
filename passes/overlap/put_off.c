/* prefetch, put off: gradients are computed during the last large reduction (prefetch.c).
 *
 * The gradient of an embedding is complete at the end of the backward pass, and nothing is left to
 * compute during its reduction, except what can be put off: the last gradients of weights, which
 * only their own reductions read.
 *
 * before:   dx   dw1   reduce w1   dx   dw0   reduce w0   table   reduce table |
 * after:    dx   dw1   reduce w1   dx   table   reduce table   dw0   reduce w0 |
 */

typedef struct zfi_put_off {
    const zf_graph *graph;
    const zf_cost *cost;
    int32_t end;   /* of the micro section */
    int32_t begin; /* nodes that are not needed from here on are put off; `end`: none */
    bool *needed;  /* by node */
    bool *off;     /* by node: it is put off; it is kept for one that is */
} zfi_put_off;

/* Seconds for its bytes alone, since the latency is the same at any place. */
static double zfi_reduction_seconds(const zfi_put_off *o, int32_t id, size_t most)
{
    const zfi_node *node = &o->graph->nodes[id];
    zf_traffic traffic = {.all_gather = {0}};
    if (!zfi_reduces(node->op) || ZF_INT(node, all_gather, world) <= 1 ||
        zfi_node_bytes(&o->graph->nodes[node->args[0]]) > most)
        return 0;
    return zfi_link_seconds(o->cost, zfi_count_node(&traffic, o->graph, id, 1, -1));
}

/* The position of the reduction with the least computation during it, and the seconds that are
 * missing; `end` when none is missing any. */
static int32_t zfi_find_exposed(const zfi_put_off *o, size_t bytes, double *seconds)
{
    const zf_graph *g = o->graph;
    double after = 0;
    int32_t found = o->end;
    *seconds = 0;
    for (int32_t i = o->end; zfi_down(i);) {
        double bare = zfi_reduction_seconds(o, g->order[i], bytes) - after;
        if (bare > *seconds) *seconds = bare, found = i;
        after += zfi_node_seconds(g, o->cost, g->order[i]);
    }
    return found;
}

/* The node can be moved to the end of the section: all its users are there. */
static bool zfi_can_wait(const zfi_put_off *o, int32_t id)
{
    const zfi_node *node = &o->graph->nodes[id];
    if (o->needed[id] || zfi_has(o->graph, id, ZF_OP_LEAF)) return false;
    return node->arg_count < 2 || !zfi_has(o->graph, id, ZF_OP_COLLECTIVE) ||
           !o->needed[node->args[1]];
}

/* Goes back from the reduction at position `bare`, collecting nodes that can be put off, while at
 * most `bytes` are kept for them: for four times `seconds`, since the cost table is not exact, and
 * more does no harm. A reduction that is put off must itself take less than half as long. */
static void zfi_find_put_off(zfi_put_off *o, int32_t bare, double seconds, size_t bytes)
{
    const zf_graph *g = o->graph;
    double off = 0, last = 0;
    int64_t kept = 0;
    for (int32_t i = o->end - 1; i >= 0 && off < 4 * seconds; i--) {
        int32_t id = g->order[i], arg_count = g->nodes[id].arg_count;
        if (i >= bare) o->needed[id] = true;
        if (zfi_can_wait(o, id)) {
            if (g->nodes[id].op == ZF_OP_release) continue;
            off += zfi_node_seconds(g, o->cost, id);
            if (last <= 0) last = zfi_reduction_seconds(o, id, SIZE_MAX);
            if (2 * last > seconds) return;
            if (o->off[id]) kept -= (int64_t)zfi_node_bytes(&g->nodes[id]);
            for (int32_t k = 0; k < arg_count; k++) {
                int32_t x = zfi_bytes_of(g, g->nodes[id].args[k]);
                if (o->off[x] || zfi_has(g, x, ZF_OP_LEAF)) continue;
                o->off[x] = true;
                kept += (int64_t)zfi_node_bytes(&g->nodes[x]);
            }
            if (kept <= (int64_t)bytes && off > 0) o->begin = i;
        } else {
            for (int32_t k = 0; k < arg_count; k++) o->needed[g->nodes[id].args[k]] = true;
        }
    }
}

/* Moves the nodes that are put off after the last reduction of the section. */
static void zfi_move_put_off(zf_graph *g, zfi_put_off *o)
{
    int32_t *moved = NULL, kept = o->begin, last = o->end - 1;
    while (g->nodes[g->order[last]].op != ZF_OP_reduce_scatter &&
           g->nodes[g->order[last]].op != ZF_OP_all_reduce)
        last--;
    memset(o->off, 0, (size_t)zfi_len(g->nodes) * sizeof *o->off);
    for (int32_t i = o->begin; i <= last && !g->memory.failed; i++) {
        int32_t id = g->order[i];
        const zfi_node *node = &g->nodes[id];
        bool off = zfi_can_wait(o, id);
        /* The release of a value that only put-off nodes use moves with them. */
        if (off && node->op == ZF_OP_release) off = o->off[zfi_bytes_of(g, node->args[0])];
        if (!off) {
            g->order[kept++] = id;
            continue;
        }
        for (int32_t k = 0; k < node->arg_count; k++) o->off[zfi_bytes_of(g, node->args[k])] = true;
        zfi_push(&g->memory, moved, id);
    }
    for (int32_t k = 0; k < zfi_len(moved) && !g->memory.failed; k++) g->order[kept++] = moved[k];
    zfi_array_free(&g->memory, moved);
}

static void zfi_put_off_gradients(zf_graph *g, const zf_cost *cost, size_t bytes)
{
    size_t nodes = (size_t)zfi_len(g->nodes);
    zfi_put_off o = {.graph = g, .cost = cost};
    double seconds;
    int32_t bare;
    while (o.end < zfi_len(g->order) && !g->nodes[g->order[o.end]].update) o.end++;
    o.begin = o.end;
    bare = zfi_find_exposed(&o, bytes, &seconds);
    if (bare == o.end) return;
    o.needed = zfi_calloc(&g->memory, nodes, sizeof *o.needed);
    o.off = zfi_calloc(&g->memory, nodes, sizeof *o.off);
    if (o.needed && o.off) zfi_find_put_off(&o, bare, seconds, bytes);
    if (o.begin < o.end) zfi_move_put_off(g, &o);
    zfi_free(&g->memory, o.needed, nodes * sizeof *o.needed);
    zfi_free(&g->memory, o.off, nodes * sizeof *o.off);
    if (g->memory.failed) zfi_graph_nomem(g);
}
