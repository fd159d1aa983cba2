/* reuse: the backward pass and the update read parameters from the disk together.
 *
 * Where updates run during the backward pass (early.c), a bucket is updated soon after its last
 * use. Then its copy in host memory, of which the device has another, stays there, and the update
 * writes this copy instead of one that it reads again. At most `bytes` stay for that at one time.
 *
 * before:   %40 = copy %20 {to=host}     %41 = copy %40     ... %41 ...
 *           %50 = piece %20 {size=1024}  %60 = copy %50 {to=host}
 *           adamw %60 ...                copy %60, %50
 * after:    %40 = copy %20 {to=host}     %41 = copy %40     ... %41 ...
 *           %50 = piece %20 {size=1024}  %60 = piece %40 {size=1024}
 *           adamw %60 ...                copy %60, %50
 */

/* By bucket: */
typedef struct zfi_reused {
    int32_t fetch;  /* its last copy to host memory in the micro section; 0: none */
    int32_t until;  /* the last position after which the update section reads copies of it */
    int64_t copied; /* elements that updates copy from the disk */
} zfi_reused;

typedef struct zfi_reusing {
    zf_graph *graph;
    zfi_early_updates updates;
    zfi_reused *of;  /* by node */
    bool *again;     /* by node: it is a copy for an update */
    int32_t *staying; /* growing array: buckets that stay */
} zfi_reusing;

/* The bucket of parameters on a disk that the node copies to host memory, or of which it copies a
 * piece; 0: none. */
static int32_t zfi_reads_bucket(const zf_graph *g, int32_t id)
{
    const zfi_node *node = &g->nodes[id];
    int32_t x = node->op == ZF_OP_copy && node->arg_count == 1 ? node->args[0] : 0;
    if (x && g->nodes[x].op == ZF_OP_piece) x = g->nodes[x].args[0];
    return g->nodes[x].op == ZF_OP_bucket && g->nodes[x].space == ZF_DISK &&
                   g->nodes[g->nodes[x].args[0]].op == ZF_OP_param
               ? x
               : 0;
}

/* Finds the last fetch of each bucket in the backward pass, and what updates copy of it. */
static void zfi_find_reused(zfi_reusing *r)
{
    const zf_graph *g = r->graph;
    const zfi_early_updates *b = &r->updates;
    for (int32_t i = b->begin; i < b->end; i++) {
        const int32_t bucket = zfi_reads_bucket(g, g->order[i]);
        if (bucket) r->of[bucket].fetch = g->order[i];
    }
    for (int32_t k = 0; k < zfi_len(b->due); k++) {
        const zfi_node *node = &g->nodes[b->due[k].node];
        const uint32_t written = zfi_written_args(g, node);
        if (!zfi_has(g, b->due[k].node, ZF_OP_UPDATE)) continue;
        for (int32_t n = 0; n < node->arg_count && n < 31; n++) {
            const int32_t x = node->args[n], bucket = zfi_reads_bucket(g, x);
            zfi_reused *of = &r->of[bucket];
            if (!bucket || !of->fetch || !(written >> n & 1)) continue;
            r->again[x] = true;
            of->copied += zfi_node_count(&g->nodes[x]);
            if (of->until < b->due[b->until[x]].after) of->until = b->due[b->until[x]].after;
        }
    }
}

/* Chooses the buckets whose fetches stay; forgets other fetches. */
static void zfi_choose_reused(zfi_reusing *r, size_t bytes)
{
    zf_graph *g = r->graph;
    int64_t staying = 0;
    for (int32_t i = r->updates.begin; i < r->updates.end && !g->memory.failed; i++) {
        const int32_t fetch = g->order[i], bucket = zfi_reads_bucket(g, fetch);
        const int64_t size = (int64_t)zfi_node_bytes(&g->nodes[fetch]);
        int32_t kept = 0;
        if (!bucket || r->of[bucket].fetch != fetch) continue;
        for (int32_t k = 0; k < zfi_len(r->staying); k++)
            if (r->of[r->staying[k]].until >= i) r->staying[kept++] = r->staying[k];
            else staying -= (int64_t)zfi_node_bytes(&g->nodes[r->staying[k]]);
        if (r->staying) stbds_header(r->staying)->length = (size_t)kept;
        if (r->of[bucket].copied != zfi_node_count(&g->nodes[fetch]) ||
            staying + size > (int64_t)bytes) {
            r->of[bucket].fetch = 0;
            continue;
        }
        zfi_push(&g->memory, r->staying, bucket);
        staying += size;
    }
}

/* Puts the order again, where updates write the fetches that stay, or pieces of them. */
static void zfi_put_reused(zfi_reusing *r)
{
    zf_graph *g = r->graph;
    int32_t *order = g->order;
    g->order = NULL;
    for (int32_t i = 0; i < zfi_len(order) && !g->memory.failed && !g->error.status; i++) {
        const int32_t id = order[i], bucket = r->again[id] ? zfi_reads_bucket(g, id) : 0,
                      fetch = r->of[bucket].fetch, x = bucket ? g->nodes[id].args[0] : 0;
        for (int32_t k = 0; k < g->nodes[id].arg_count; k++) {
            const int32_t arg = zfi_resolve(g, g->nodes[id].args[k]);
            g->nodes[id].args[k] = arg;
        }
        if (!fetch) zfi_push(&g->memory, g->order, id);
        else if (x == bucket) zfi_replace(g, id, fetch);
        else {
            const int64_t at = ZF_INT(&g->nodes[x], piece, at);
            g->scope = g->nodes[id].scope;
            zfi_replace(g, id,
                        zfi_append_nodes(g, piece,
                                         zfi_with({.i = at}, {.i = zfi_node_count(&g->nodes[x])}),
                                         fetch));
        }
    }
    zfi_array_free(&g->memory, order);
}

/* Lets updates write what the backward pass has fetched. */
static void zfi_reuse_fetches(zf_graph *g, size_t bytes)
{
    const size_t nodes = (size_t)zfi_len(g->nodes);
    const char *scope = g->scope;
    zfi_reusing r = {.graph = g, .updates.graph = g};
    bool some = false;
    for (int32_t i = 0; i < zfi_len(g->order) && !some; i++)
        some = zfi_reads_bucket(g, g->order[i]) != 0;
    if (!some) return;
    r.of = zfi_calloc(&g->memory, nodes, sizeof *r.of);
    r.again = zfi_calloc(&g->memory, nodes, sizeof *r.again);
    if (r.of && r.again && zfi_early_plan(&r.updates, g->order, true) &&
        r.updates.begin < r.updates.end) {
        zfi_find_reused(&r);
        zfi_choose_reused(&r, bytes);
        if (zfi_len(r.staying) && !g->memory.failed) zfi_put_reused(&r);
    }
    zfi_early_free(&r.updates);
    zfi_free(&g->memory, r.of, nodes * sizeof *r.of);
    zfi_free(&g->memory, r.again, nodes * sizeof *r.again);
    zfi_array_free(&g->memory, r.staying);
    g->scope = scope;
    if (g->memory.failed) zfi_graph_nomem(g);
}
