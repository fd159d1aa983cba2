/* prefetch: collectives and copies run at the same time as computation, on queues of their own.
 *
 * requires: zf_zero
 * ensures:  numbers are unchanged to the last bit. What waits for a collective or a copy is a
 *           `wait` node; its operands and its result are its own from its line to there
 *
 *     gathers     of sharded buckets are issued before their use, while at most `bytes` of gathered
 *                 parameters are not yet used
 *     fetches     of the micro section (copies to the device, reads of a disk) likewise, before the
 *                 gather, the copy or the use that needs them; values read from the disk wait in
 *                 at most `host_bytes`
 *     timed       with a cost table, gathers, fetches and copies ahead are issued as late as their
 *                 queue can still be done with them, and twice their time before their use
 *     reductions  are waited for where their result is read, when more than `bytes` of gradients
 *                 are in flight, or at the end of the section
 *     exchanges   of quantised gradients are waited for when the next one is issued; then their
 *                 parts are added, quantised again and sent to other nodes
 *     updated     parameters are gathered into their buckets during the next updates
 *     small       gathers of the update section are joined into one
 *     copies      between device and host overlap computation and are waited for where they are
 *                 read, or when more than `bytes` are in flight in one direction. A gradient is
 *                 copied to the host after the wait for its reduction
 *     ahead       copies to the host, of states for example, are issued before the updates that
 *                 read them, as many as have at most `bytes` in one direction; of a disk at most
 *                 `host_bytes`, twice that behind the last fetch
 *     beside      updates in host memory run during the backward pass (beside.c); parameters that
 *                 this has read from a disk are not read again for them (reuse.c)
 *     put off     nodes that the last large reduction does not need are computed during it,
 *                 while at most `bytes` are kept for them
 *     kept        with `keep_gathered`, buckets stay gathered from the forward to the backward
 *                 pass, as many as fit the exact plan; those needed again soonest come first
 *
 * before:   %20 = all_gather %18 ...    %4 = matmul %1, %21     release %20
 *           %30 = all_gather %28 ...    %5 = matmul %4, %31     release %30
 * after:    %20 = all_gather %18 ... queue=gather     %30 = all_gather %28 ... queue=gather
 *           wait %20      %4 = matmul %1, %21     release %20
 *           wait %30      %5 = matmul %4, %31     release %30
 */

enum {
    ZFI_SMALL_GATHER = 64 << 10, /* bytes of the largest result of a gather that is joined */
    ZFI_SMALL_COPY = 1 << 10     /* bytes of the smallest copy on a queue */
};

/* Links by which values are fetched for their use in the micro section. */
enum { ZFI_GATHERS, ZFI_UPLOADS, ZFI_READS, ZFI_LINKS };

/* A fetch in the micro section: a gather of a sharded bucket, a copy to the device, or a read of a
 * disk. */
typedef struct zfi_ahead {
    int32_t node;
    int32_t from;  /* position after which its operand is there */
    int32_t use;   /* position before which it must be issued: its first use, or where the node that
                    * reads it is issued */
    int32_t issue; /* position before which it is issued */
    int64_t bytes;
    bool chained;   /* its operand is fetched over another link */
} zfi_ahead;

/* Two runs of uses of a bucket that could be one. */
typedef struct zfi_keepable {
    int32_t first, second; /* fetches */
    int32_t release;       /* of the first */
    int32_t gap;           /* positions between them */
} zfi_keepable;

typedef struct zfi_prefetch {
    zf_graph *graph;
    size_t bytes; /* zf_prefetch_desc.bytes, */
    size_t host_bytes;
    bool costed; /* fetches are not issued earlier than `cost` requires */
    zf_cost cost;
    zfi_ahead *aheads[ZFI_LINKS]; /* growing arrays, ordered by use */
    double *time;  /* by position: seconds of computation from the start of the micro section */
    double *start; /* by node: the time at which a fetch must be issued so that it is hidden */
    double now;    /* the time behind what has been put */
    int32_t *order;               /* the order before */
    int32_t *pending;  /* by node: the collective or copy in flight that writes it; 0: none */
    int32_t *pieces;   /* by leaf: the number of copies in flight that write pieces of it */
    int32_t *readers;  /* by node: copies in flight that read its bytes */
    int32_t *waiting;  /* those without a wait so far, oldest first */
    int32_t *deferred; /* what follows sums that are still in flight */
    int64_t moving[ZFI_QUEUES]; /* bytes in flight: of gradients, and of copies */
    zfi_beside beside;
    int32_t next;              /* index in beside.due of the next node, */
    int32_t next_early;        /* and of the next copy that may be issued early; */
    int64_t ahead[ZFI_QUEUES]; /* bytes of early copies that have not been used */
    int32_t issued[ZFI_LINKS]; /* fetches; */
    int64_t fetched;           /* and bytes of those from the disk that have not been used */
    int32_t *born; /* by node: 0 until it is put, then 1 + the number of complete gradients */
    int32_t complete;
    int32_t update; /* position of the first node below `update:` */
    size_t nodes;
} zfi_prefetch;

/* -------------------------------------------------------------------------------- small gathers */

/* A small gather of the update section, over all ranks, which can be joined with others. */
static bool zfi_joinable(const zf_graph *g, int32_t id)
{
    const zfi_node *node = &g->nodes[id];
    return node->op == ZF_OP_all_gather && node->arg_count == 1 && node->update &&
           ZF_INT(node, all_gather, world) > 1 && !ZF_INT(node, all_gather, over) &&
           zfi_node_bytes(node) <= ZFI_SMALL_GATHER;
}

/* Replaces joined[0..count) by one gather; slices of its result replace theirs. */
static void zfi_join(zf_graph *g, const int32_t *joined, int32_t count)
{
    int64_t world = ZF_INT(&g->nodes[joined[0]], all_gather, world), size = 0, *at;
    int32_t *shards = zfi_calloc(&g->memory, (size_t)count, sizeof *shards), all = 0;
    at = zfi_calloc(&g->memory, (size_t)count, sizeof *at);
    for (int32_t k = 0; shards && at && k < count; k++) {
        shards[k] = g->nodes[joined[k]].args[0];
        at[k] = size;
        size += zfi_node_count(&g->nodes[shards[k]]);
    }
    if (shards && at)
        all = zfi_append_op(g, ZF_OP_pack, shards, count,
                            zfi_with(zfi_listed(at, count), {.i = size}));
    if (all) all = zfi_append_nodes(g, all_gather, zfi_with({.i = world}), all);
    if (all)
        all = zfi_append_nodes(g, view,
                               zfi_with({.i = 0}, zfi_listed(((int64_t[]){world, size}), 2)), all);
    for (int32_t k = 0; all && k < count; k++) {
        int64_t n = zfi_node_count(&g->nodes[shards[k]]), flat = n * world;
        int32_t piece =
            zfi_append_nodes(g, slice, zfi_with({.i = 1}, {.i = at[k]}, {.i = at[k] + n}), all);
        if (piece) piece = zfi_append_nodes(g, reshape, zfi_with(zfi_listed(&flat, 1)), piece);
        if (piece) zfi_replace(g, joined[k], piece);
    }
    zfi_free(&g->memory, shards, (size_t)count * sizeof *shards);
    zfi_free(&g->memory, at, (size_t)count * sizeof *at);
    if (g->memory.failed) zfi_graph_nomem(g);
}

/* Joins small gathers up to the first use of one of them. */
static void zfi_join_small(zf_graph *g)
{
    int32_t *order = g->order, *joined = NULL, end = zfi_len(order);
    size_t known = (size_t)zfi_len(g->nodes); /* joined gathers have ids below this */
    bool *open = zfi_calloc(&g->memory, known, sizeof *open);
    g->order = NULL;
    for (int32_t i = 0; i <= end && open && !g->memory.failed && !g->error.status; i++) {
        int32_t id = i < end ? order[i] : 0;
        bool used =
            i == end || (zfi_len(joined) && g->nodes[id].dtype != g->nodes[joined[0]].dtype &&
                         zfi_joinable(g, id));
        for (int32_t k = 0; id && k < g->nodes[id].arg_count; k++)
            used |= open[g->nodes[id].args[k]];
        if (used && zfi_len(joined)) {
            if (zfi_len(joined) > 1) zfi_join(g, joined, zfi_len(joined));
            else zfi_push(&g->memory, g->order, joined[0]);
            for (int32_t k = 0; k < zfi_len(joined); k++) open[joined[k]] = false;
            stbds_header(joined)->length = 0;
        }
        if (!id) break;
        for (int32_t k = 0; k < g->nodes[id].arg_count; k++) {
            int32_t arg = zfi_resolve(g, g->nodes[id].args[k]);
            g->nodes[id].args[k] = arg;
        }
        open[id] = zfi_joinable(g, id);
        if (open[id]) zfi_push(&g->memory, joined, id);
        else zfi_push(&g->memory, g->order, id);
    }
    zfi_free(&g->memory, open, known * sizeof *open);
    zfi_array_free(&g->memory, joined);
    zfi_array_free(&g->memory, order);
    if (g->memory.failed) zfi_graph_nomem(g);
}

/* -------------------------------------------------------------------------------------- put off
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
    return zfi_link_seconds(o->cost, zfi_count_node(&traffic, o->graph, id, 1));
}

/* The position of the reduction with the least computation during it, and the seconds that are
 * missing; `end` when none is missing any. */
static int32_t zfi_find_exposed(const zfi_put_off *o, size_t bytes, double *seconds)
{
    const zf_graph *g = o->graph;
    double behind = 0;
    int32_t found = o->end;
    *seconds = 0;
    for (int32_t i = o->end - 1; i >= 0; i--) {
        double bare = zfi_reduction_seconds(o, g->order[i], bytes) - behind;
        if (bare > *seconds) *seconds = bare, found = i;
        behind += zfi_node_seconds(g, o->cost, g->order[i]);
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

/* ------------------------------------------------------------------------- fetches ahead of use */

/* The bucket of parameters that the node fetches to the device for a run of uses: a gather of all
 * of it or, in a mesh, of a piece, what that is dequantised to, or a copy of a whole one; 0:
 * none. */
static int32_t zfi_brings_bucket(const zf_graph *g, int32_t id)
{
    const zfi_node *node = &g->nodes[id], *from = node;
    bool gathers;
    if (node->update) return 0;
    if (from->op == ZF_OP_dequantize) from = &g->nodes[from->args[0]];
    while (from->op == ZF_OP_all_gather && from->arg_count == 1) from = &g->nodes[from->args[0]];
    gathers = from != node;
    if (gathers && from->op == ZF_OP_quantize) from = &g->nodes[from->args[0]];
    from = zfi_copied(g, from);
    if (!gathers && (from == node || node->arg_count > 1 || node->space != ZF_DEVICE)) return 0;
    if (from->op != ZF_OP_bucket || (!gathers && ZF_INT(from, bucket, world) > 1)) return 0;
    return (int32_t)(from - g->nodes);
}

/* The link of a fetch in the micro section; -1: the node is none. */
static int zfi_link_of(const zf_graph *g, int32_t id)
{
    const zfi_node *node = &g->nodes[id];
    if (node->update || node->arg_count != 1) return -1;
    if (node->op == ZF_OP_all_gather) return zfi_brings_bucket(g, id) ? ZFI_GATHERS : -1;
    if (node->op != ZF_OP_copy) return -1;
    if (node->space == ZF_DEVICE) return ZFI_UPLOADS;
    return g->nodes[node->args[0]].space == ZF_DISK ? ZFI_READS : -1;
}

static void zfi_find_aheads(zfi_prefetch *p)
{
    zf_graph *g = p->graph;
    double seconds = 0;
    for (int32_t i = 0; i < zfi_len(p->order) && !g->nodes[p->order[i]].update; i++) {
        const int32_t id = p->order[i];
        const int link = zfi_link_of(g, id);
        zfi_ahead a = {.node = id, .use = i, .issue = i};
        p->time[i] = seconds;
        if (link < 0) {
            seconds += zfi_node_seconds(g, &p->cost, id);
            continue;
        }
        a.bytes = (int64_t)zfi_node_bytes(&g->nodes[id]);
        zfi_push(&g->memory, p->aheads[link], a);
    }
    for (int32_t i = p->beside.end; i < zfi_len(p->order); i++) p->time[i] = seconds;
}

/* The position after the first computation from `use` on. */
static int32_t zfi_behind_use(const zfi_prefetch *p, int32_t use)
{
    int32_t at = use;
    while (at + 1 < zfi_len(p->order) && !p->graph->nodes[p->order[at + 1]].update &&
           p->time[at] <= p->time[use])
        at++;
    return at;
}

/* Finds when the fetches on a queue must be issued so that computation hides them: each takes its
 * time before the next one, and is issued twice its time before its use, since the cost table is
 * not exact; all twice as early for a disk, whose rate varies most. To the fetches of the micro
 * section come copies that are issued ahead of their updates. */
static void zfi_time_fetches(zfi_prefetch *p, const zfi_ahead *aheads, uint8_t queue)
{
    const zf_graph *g = p->graph;
    const zfi_due *due = p->beside.due;
    double next = INFINITY;
    for (int32_t k = zfi_len(aheads), n = zfi_len(due); k > 0 || n > 0;) {
        const bool updates = n > 0 && (!k || due[n - 1].after >= aheads[k - 1].use);
        const int32_t id = updates ? due[n - 1].node : aheads[k - 1].node,
                      use = updates ? due[n - 1].after + 1 : aheads[k - 1].use;
        double seconds;
        updates ? n-- : k--;
        if (updates && (!p->beside.early[id] || zfi_queue_of_copy(g, &g->nodes[id]) != queue))
            continue;
        seconds = zfi_seconds_of(g, &p->cost, id) * (queue == ZFI_QUEUE_READ ? 2 : 1);
        next -= seconds;
        if (next > p->time[use] - 2 * seconds) next = p->time[use] - 2 * seconds;
        p->start[id] = next;
    }
}

/* Issues each fetch as early as the budget allows, in the order of uses; with a cost table, not
 * much earlier than it must be. Without one, a fetch whose operand comes over another link is
 * issued where the one before it is used: until then that link has time. */
static void zfi_place_aheads(zfi_prefetch *p, zfi_ahead *aheads, size_t budget)
{
    const zf_graph *g = p->graph;
    int32_t start = 0, oldest = 0; /* of the fetches issued and not yet used */
    int64_t ready = 0;             /* their bytes */
    while (start < zfi_len(p->order) && zfi_has(g, p->order[start], ZF_OP_LEAF)) start++;
    for (int32_t k = 0; k < zfi_len(aheads); k++) {
        zfi_ahead *a = &aheads[k];
        int32_t at = k && aheads[k - 1].issue > start ? aheads[k - 1].issue : start;
        a->issue = a->use;
        if (a->bytes > (int64_t)budget) { /* it does not fit, and no later one may pass it */
            oldest = k + 1, ready = 0;
            continue;
        }
        while (oldest < k &&
               (ready + a->bytes > (int64_t)budget || aheads[oldest].use < at)) {
            if (aheads[oldest].use + 1 > at) at = aheads[oldest].use + 1;
            ready -= aheads[oldest++].bytes;
        }
        if (a->from > at) at = a->from;
        if (k && a->chained && !p->costed) {
            const int32_t behind = zfi_behind_use(p, aheads[k - 1].use);
            if (behind > at) at = behind;
        }
        while (p->costed && at < a->use && p->time[at + 1] <= p->start[a->node]) at++;
        a->issue = at < a->use ? at : a->use;
        ready += a->bytes;
    }
}

static int zfi_by_use(const void *left, const void *right)
{
    const zfi_ahead *a = left, *b = right;
    if (a->use != b->use) return a->use < b->use ? -1 : 1;
    return a->node < b->node ? -1 : a->node > b->node;
}

/* Places gathers first, then the copies that they read, then the reads of these: each is issued
 * before the node that needs it. */
static void zfi_place_links(zfi_prefetch *p)
{
    zf_graph *g = p->graph;
    const size_t nodes = (size_t)zfi_len(g->nodes);
    /* by node: the position before which a reader of it is issued; its own position */
    int32_t *wanted = zfi_calloc(&g->memory, 2 * nodes, sizeof *wanted), *position = wanted;
    if (!wanted) return;
    position += nodes;
    for (int32_t i = 0; i < zfi_len(p->order); i++) position[p->order[i]] = i;
    for (int link = 0; link < ZFI_LINKS; link++) {
        static const uint8_t queues[] = {ZFI_QUEUE_GATHER, ZFI_QUEUE_UPLOAD, ZFI_QUEUE_READ};
        zfi_ahead *aheads = p->aheads[link];
        for (int32_t k = 0; k < zfi_len(aheads); k++) {
            const int32_t x = g->nodes[aheads[k].node].args[0];
            if (wanted[aheads[k].node]) aheads[k].use = wanted[aheads[k].node];
            const int before = zfi_link_of(g, x); /* of one link, it is in order */
            aheads[k].chained = before >= 0 && before != link;
            if (before < 0) aheads[k].from = position[x] + 1;
        }
        if (aheads) qsort(aheads, stbds_arrlenu(aheads), sizeof *aheads, zfi_by_use);
        if (p->costed) zfi_time_fetches(p, aheads, queues[link]);
        zfi_place_aheads(p, aheads, link == ZFI_READS ? p->host_bytes : p->bytes);
        for (int32_t k = 0; k < zfi_len(aheads); k++)
            wanted[g->nodes[aheads[k].node].args[0]] = aheads[k].issue;
    }
    if (p->costed) zfi_time_fetches(p, NULL, ZFI_QUEUE_DOWNLOAD);
    zfi_free(&g->memory, wanted, 2 * nodes * sizeof *wanted);
}

/* --------------------------------------------------------------------------------------- waits */

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
           !((size_t)id < p->beside.nodes && p->beside.early[id]);
}

/* Puts a wait for a node in flight. */
static void zfi_put_wait(zfi_prefetch *p, int32_t id)
{
    zf_graph *g = p->graph;
    int32_t kept = 0;
    for (int32_t k = 0; k < g->nodes[id].arg_count; k++) { /* what it reads of its own queue */
        int32_t before = p->pending[g->nodes[id].args[k]];
        if (before && before != id && before == g->nodes[id].args[k]) zfi_put_wait(p, before);
    }
    for (int32_t k = 0; k < zfi_len(p->waiting); k++) {
        int32_t other = p->waiting[k];
        if (other != id) {
            p->waiting[kept++] = other;
            continue;
        }
        zfi_append_nodes(g, wait, NULL, id);
        if (g->nodes[id].op == ZF_OP_copy) p->readers[zfi_bytes_of(g, g->nodes[id].args[0])]--;
        if (zfi_is_moving(p, id))
            p->moving[g->nodes[id].queue] -=
                (int64_t)zfi_node_bytes(&g->nodes[g->nodes[id].args[0]]);
        zfi_forget_pending(p, id);
    }
    if (p->waiting) stbds_header(p->waiting)->length = (size_t)kept; /* NULL: out of memory */
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
    if (!p->bytes || !zfi_has(g, id, ZF_OP_COLLECTIVE) || ZF_INT(node, all_gather, world) <= 1)
        return ZFI_QUEUE_COMPUTE;
    if (node->op == ZF_OP_all_gather) {
        int32_t sum = p->pending[node->args[0]];
        if (sum && g->nodes[sum].queue == ZFI_QUEUE_REDUCE) return ZFI_QUEUE_REDUCE;
        if (node->arg_count == 1 && bytes > (int64_t)p->bytes) return ZFI_QUEUE_COMPUTE;
        return ZFI_QUEUE_GATHER;
    }
    bytes = (int64_t)zfi_node_bytes(&g->nodes[node->args[0]]);
    if ((!zfi_reduces(node->op) && node->op != ZF_OP_all_to_all) || node->update ||
        bytes > (int64_t)p->bytes)
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
    return (size_t)id < p->beside.nodes && node->op == ZF_OP_copy && !node->update &&
           (p->beside.wrote[id] >= 0 || p->beside.wrote_pieces[id] >= 0);
}

/* Counts what a fetch reads from the disk, or what it uses of that. */
static void zfi_count_fetch(zfi_prefetch *p, int32_t id)
{
    const zf_graph *g = p->graph;
    const int32_t x = g->nodes[id].arg_count ? g->nodes[id].args[0] : 0;
    const int64_t bytes = (int64_t)zfi_node_bytes(&g->nodes[id]);
    if (zfi_link_of(g, id) == ZFI_READS) p->fetched += bytes;
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
    if (!queue || g->memory.failed) return;
    zfi_push(&g->memory, p->waiting, id);
    if (g->nodes[id].op == ZF_OP_copy) p->readers[zfi_bytes_of(g, g->nodes[id].args[0])]++;
    p->pending[id] = id;
    if (g->nodes[id].arg_count < 2) return;
    /* Until its wait, the leaf that it writes is in use too. */
    into = g->nodes[id].args[1];
    p->pending[into] = id;
    if (zfi_fills_piece(g, id)) p->pieces[zfi_fills_piece(g, id)]++;
    else p->pending[zfi_written_leaf(g, into)] = id;
}

/* The node follows a sum that is in flight, or a node that is deferred: a copy of the sum, its block
 * norms, or the next step of quantised gradients. It can wait. */
static bool zfi_is_deferred(const zfi_prefetch *p, int32_t id)
{
    const zf_graph *g = p->graph;
    const zfi_node *node = &g->nodes[id];
    const int32_t x = node->arg_count ? node->args[0] : 0, sum = x ? p->pending[x] : 0;
    if (node->update || !x) return false;
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

/* ------------------------------------------------------------------------------- update section */

/* The node is the summed gradient of a bucket, or its copy to the host. */
static bool zfi_completes_gradient(const zf_graph *g, int32_t id)
{
    const zfi_node *node = &g->nodes[id];
    return !node->update && (node->queue == ZFI_QUEUE_REDUCE ||
                             (node->op == ZF_OP_copy && node->space == ZF_HOST &&
                              !zfi_has(g, zfi_bytes_of(g, node->args[0]), ZF_OP_LEAF)));
}

/* The operands of a node of the update section are there; or they were in flight until the next
 * gradient was complete; or they are from the update section itself. */
static bool zfi_is_due(const zfi_prefetch *p, int32_t id, bool last)
{
    const zf_graph *g = p->graph;
    const zfi_node *node = &g->nodes[id];
    for (int32_t k = 0; k < node->arg_count; k++) {
        const int32_t x = node->args[k];
        if (g->nodes[x].update) continue;
        if (!p->born[x]) return false;
        if (!last && p->pending[x] && p->born[x] >= p->complete) return false;
    }
    return true;
}

/* Puts a node that is due, unless it was issued early. */
static void zfi_put_one_due(zfi_prefetch *p, const zfi_due *due)
{
    const zf_graph *g = p->graph;
    if (p->born[due->node]) return;
    if (p->beside.early[due->node])
        p->ahead[zfi_queue_of(p, due->node)] += (int64_t)zfi_node_bytes(&g->nodes[due->node]);
    zfi_put(p, due->node);
}

/* Puts the operand of an early copy, if it is a leaf or a piece of one; false: it is not there
 * yet. */
static bool zfi_put_source(zfi_prefetch *p, int32_t id)
{
    const zf_graph *g = p->graph;
    const int32_t of = g->nodes[id].op == ZF_OP_piece ? g->nodes[id].args[0] : 0;
    if (p->born[id]) return true;
    if (of && !p->born[of] && zfi_has(g, of, ZF_OP_LEAF)) zfi_put_source(p, of);
    for (int32_t k = 0; k < g->nodes[id].arg_count; k++)
        if (!p->born[g->nodes[id].args[k]]) return false;
    if (!of && !zfi_has(g, id, ZF_OP_LEAF)) return false;
    zfi_put(p, id);
    return true;
}

/* The maximum of bytes of early copies on a queue. Behind the last fetch from the disk they have
 * its share too. */
static int64_t zfi_early_budget(const zfi_prefetch *p, uint8_t queue)
{
    const int64_t most = (int64_t)zfi_budget_of(p, queue);
    if (queue != ZFI_QUEUE_READ) return most;
    if (p->issued[ZFI_READS] < zfi_len(p->aheads[ZFI_READS])) return most;
    return most + zfi_max(most - p->fetched, 0);
}

/* Issues copies early, while at most `bytes` of them have not been used; with a cost table, when it
 * is time. */
static void zfi_put_early(zfi_prefetch *p)
{
    for (; p->next_early < zfi_len(p->beside.due); p->next_early++) {
        const zfi_due *due = &p->beside.due[p->next_early];
        const int64_t bytes = (int64_t)zfi_node_bytes(&p->graph->nodes[due->node]);
        const uint8_t queue = p->beside.early[due->node] ? zfi_queue_of(p, due->node) : 0;
        if (!queue || p->born[due->node]) continue;
        if (p->costed && p->now < p->start[due->node]) return;
        if (!zfi_put_source(p, p->graph->nodes[due->node].args[0])) return;
        if (p->ahead[queue] + bytes > zfi_early_budget(p, queue)) return;
        zfi_put_one_due(p, due);
    }
}

/* The node of the update section has been put: early copies that it reads as the last, and fetches
 * that stay, are not ahead any more. */
static void zfi_count_used(zfi_prefetch *p, int32_t id)
{
    const zf_graph *g = p->graph;
    for (int32_t k = 0; k < g->nodes[id].arg_count && g->nodes[id].op != ZF_OP_piece; k++) {
        const int32_t x = g->nodes[id].args[k];
        const bool stays = zfi_stays(p, zfi_bytes_of(g, x));
        if (p->beside.until[x] == p->next && (p->beside.early[x] || stays))
            p->ahead[stays ? ZFI_QUEUE_READ : zfi_queue_of(p, x)] -=
                (int64_t)zfi_node_bytes(&g->nodes[x]);
    }
}

/* Puts the nodes of the update section that may come after `position`; all of them if it is the
 * `last`. */
static void zfi_put_due(zfi_prefetch *p, int32_t position, bool last)
{
    const zf_graph *g = p->graph;
    p->now = last ? INFINITY : p->time[position + 1];
    zfi_put_early(p);
    for (; p->next < zfi_len(p->beside.due) && !g->memory.failed && !g->error.status; p->next++) {
        const zfi_due *due = &p->beside.due[p->next];
        if (!last && (due->after > position || !zfi_is_due(p, due->node, false))) return;
        while (!zfi_is_due(p, due->node, true) && zfi_wait_for_sum(p, INT32_MAX)) {}
        zfi_put_one_due(p, due);
        zfi_count_used(p, due->node);
        zfi_put_early(p);
    }
}

/* A gradient is complete: reductions that were issued before it are waited for. */
static void zfi_complete_gradient(zfi_prefetch *p)
{
    while (zfi_wait_for_sum(p, p->complete)) {}
    p->complete++;
}

/* From here on, nodes are below `update:`. */
static void zfi_begin_update(zfi_prefetch *p)
{
    zf_graph *g = p->graph;
    for (int32_t i = p->beside.begin; i < p->beside.end; i++)
        if (p->beside.above[p->order[i]]) zfi_put(p, p->order[i]);
    zfi_wait_all(p);
    p->update = zfi_len(g->order);
    g->in_update = true;
}

/* Marks the nodes below `update:` that belong to the micro section. */
static void zfi_mark_below(zfi_prefetch *p)
{
    zf_graph *g = p->graph;
    for (int32_t i = p->update; i < zfi_len(g->order); i++) {
        zfi_node *node = &g->nodes[g->order[i]];
        if (node->op == ZF_OP_wait) node->update = g->nodes[node->args[0]].update;
        node->below = !node->update;
    }
}

/* Moves a collective or copy back to queue compute if its wait follows directly. */
static void zfi_drop_idle_waits(zf_graph *g)
{
    int32_t kept = 0;
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        int32_t id = g->order[i], before = kept ? g->order[kept - 1] : 0;
        if (g->nodes[id].op == ZF_OP_wait && g->nodes[id].args[0] == before) {
            g->nodes[before].queue = ZFI_QUEUE_COMPUTE;
            zfi_replace(g, id, 0);
            continue;
        }
        g->order[kept++] = id;
    }
    if (g->order) stbds_header(g->order)->length = (size_t)kept;
}

static void zfi_run_prefetch(zfi_prefetch *p)
{
    zf_graph *g = p->graph;
    const zfi_beside *b = &p->beside;
    zfi_find_aheads(p);
    if (!g->memory.failed && p->bytes) zfi_place_links(p);
    g->in_update = false;
    for (int32_t i = 0; i < b->end && !g->memory.failed && !g->error.status; i++) {
        const int32_t id = p->order[i];
        if (i == b->begin) zfi_begin_update(p);
        for (int link = ZFI_LINKS; link-- > 0;)
            for (const zfi_ahead *a = p->aheads[link];
                 p->issued[link] < zfi_len(a) && a[p->issued[link]].issue <= i; p->issued[link]++)
                if (!p->born[a[p->issued[link]].node]) zfi_put(p, a[p->issued[link]].node);
        if (p->born[id]) continue; /* it was issued early, or is above `update:` */
        zfi_put(p, id);
        if (i < b->begin) continue;
        if (p->born[id] && zfi_completes_gradient(g, id)) zfi_complete_gradient(p);
        zfi_put_due(p, i, false);
    }
    if (b->begin == b->end && zfi_len(b->due)) zfi_begin_update(p);
    zfi_put_due(p, b->end, true);
    zfi_wait_all(p);
    if (zfi_len(b->due)) zfi_mark_below(p);
    zfi_drop_idle_waits(g);
}

/* ----------------------------------------------------------------------------- kept gathered */

static int zfi_by_gap(const void *left, const void *right)
{
    const zfi_keepable *a = left, *b = right;
    if (a->gap != b->gap) return a->gap < b->gap ? -1 : 1;
    return a->first < b->first ? -1 : 1;
}

/* Pairs of fetches of one bucket, those with the fewest positions between them first. */
static zfi_keepable *zfi_find_keepable(zf_graph *g)
{
    zfi_keepable *list = NULL;
    int32_t count = zfi_len(g->nodes);
    int32_t *last =
        zfi_calloc(&g->memory, 2 * (size_t)count, sizeof *last); /* by bucket: a gather; */
    int32_t *released = last ? last + count : NULL; /* by gather: position of its release */
    for (int32_t i = 0; last && i < zfi_len(g->order); i++) {
        int32_t id = g->order[i], bucket;
        const zfi_node *node = &g->nodes[id];
        if (node->op == ZF_OP_release) released[node->args[0]] = i;
        bucket = zfi_brings_bucket(g, id);
        if (!bucket || zfi_node_count(node) != ZF_INT(&g->nodes[bucket], bucket, size)) continue;
        if (last[bucket] && released[last[bucket]])
            zfi_push(&g->memory, list,
                     ((zfi_keepable){last[bucket], id, g->order[released[last[bucket]]],
                                     i - released[last[bucket]]}));
        last[bucket] = id;
    }
    zfi_free(&g->memory, last, 2 * (size_t)count * sizeof *last);
    if (list) qsort(list, stbds_arrlenu(list), sizeof *list, zfi_by_gap);
    return list;
}

/* Merges each of the pairs keep[0..count) into one fetch. */
static void zfi_keep_gathered(zf_graph *g, const zfi_keepable *keep, int32_t count)
{
    int32_t kept = 0;
    for (int32_t k = 0; k < count; k++) {
        int32_t x = g->nodes[keep[k].second].args[0], part = g->nodes[keep[k].first].args[0];
        zfi_replace(g, keep[k].second, keep[k].first);
        /* So are the parts in a mesh, and what is dequantised. */
        while (g->nodes[x].op == ZF_OP_all_gather && x != part) {
            const int32_t shard = g->nodes[x].args[0], other = g->nodes[part].args[0];
            zfi_replace(g, x, part);
            x = shard, part = other;
        }
        for (int32_t next; g->nodes[x].op == ZF_OP_copy; x = next) { /* on its way alone */
            next = g->nodes[x].args[0];
            zfi_replace(g, x, 0);
        }
    }
    for (int32_t k = 0; k < count; k++) zfi_replace(g, keep[k].release, 0);
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        int32_t id = g->order[i];
        if (g->nodes[id].op == ZF_OP_none) continue;
        for (int32_t k = 0; k < g->nodes[id].arg_count; k++) {
            int32_t arg = zfi_resolve(g, g->nodes[id].args[k]);
            g->nodes[id].args[k] = arg;
        }
        g->order[kept++] = id;
    }
    if (g->order) stbds_header(g->order)->length = (size_t)kept;
}

/* Issues collectives and copies early, and waits for them late. */
static zf_status zfi_overlap_queues(zf_graph *g, const zf_training *t)
{
    zfi_prefetch p = {.graph = g,
                      .beside.graph = g,
                      .bytes = t->prefetch.bytes,
                      .host_bytes = t->prefetch.host_bytes ? t->prefetch.host_bytes
                                                           : t->prefetch.bytes,
                      .costed = t->cost != NULL,
                      .cost = zfi_cost_resolved(t->cost)};
    size_t positions;
    if (p.bytes) zfi_join_small(g);
    if (p.bytes && !g->error.status) zfi_put_off_gradients(g, &p.cost, p.bytes);
    if (p.bytes && !g->error.status) zfi_reuse_fetches(g, p.host_bytes);
    if (g->error.status) return g->error.status;
    positions = (size_t)zfi_len(g->order);
    /* plus at most one `wait` for each node */
    p.nodes = 2 * (size_t)zfi_len(g->nodes) + 1;
    p.time = zfi_calloc(&g->memory, positions + p.nodes, sizeof *p.time);
    p.pending = zfi_calloc(&g->memory, 4 * p.nodes, sizeof *p.pending);
    if (p.time && p.pending && zfi_beside_plan(&p.beside, g->order, p.bytes > 0)) {
        p.born = p.pending + p.nodes, p.readers = p.pending + 2 * p.nodes;
        p.pieces = p.pending + 3 * p.nodes;
        p.start = p.time + positions;
        p.order = g->order;
        g->order = NULL;
        zfi_run_prefetch(&p);
    }
    zfi_beside_free(&p.beside);
    zfi_free(&g->memory, p.time, (positions + p.nodes) * sizeof *p.time);
    zfi_free(&g->memory, p.pending, 4 * p.nodes * sizeof *p.pending);
    for (int link = 0; link < ZFI_LINKS; link++) zfi_array_free(&g->memory, p.aheads[link]);
    zfi_array_free(&g->memory, p.waiting);
    zfi_array_free(&g->memory, p.deferred);
    zfi_array_free(&g->memory, p.order);
    if (g->memory.failed) return zfi_graph_nomem(g);
    return zfi_leave(g, ZFI_STAGE_OVERLAP);
}

/* *fits: a plan with the first `count` pairs merged is within the memory limit. */
static zf_status zfi_try_keeping(const zf_graph *g, const zf_training *t,
                                 const zfi_keepable *keep, int32_t count, bool *fits)
{
    zf_status status;
    zf_graph *trial = zf_graph_copy(g);
    if (!trial) return ZF_ERR_NOMEM;
    zfi_keep_gathered(trial, keep, count);
    status = zfi_overlap_queues(trial, t);
    if (!status) status = zf_memory(trial, &(zf_memory_desc){.backend = t->backend});
    *fits = !status && trial->peaks[ZF_DEVICE].bytes <= (int64_t)t->memory_limit;
    zf_graph_free(trial);
    return status == ZF_ERR_NOMEM ? status : ZF_OK;
}

/* Keeps as many buckets gathered as fit the memory limit. */
static void zfi_choose_kept(zf_graph *g, const zf_training *t)
{
    zfi_keepable *keep = zfi_find_keepable(g);
    int32_t most = 0, over = zfi_len(keep) + 1; /* the first `most` fit, the first `over` do not */
    zf_status status = g->memory.failed ? ZF_ERR_NOMEM : ZF_OK;
    while (!status && over - most > 1) {
        int32_t middle = most + (over - most) / 2;
        bool fits;
        status = zfi_try_keeping(g, t, keep, middle, &fits);
        if (!status && fits) most = middle;
        else over = middle;
    }
    if (status) zfi_graph_nomem(g);
    else zfi_keep_gathered(g, keep, most);
    zfi_array_free(&g->memory, keep);
}

/* ------------------------------------------------------------------------------------ the pass */

ZF_API zf_status zf_prefetch(zf_graph *g, const zf_training *training)
{
    zf_training t = training ? *training : (zf_training){.loss = ZF_NONE};
    zf_status status =
        zfi_enter(g, "zf_prefetch", ZFI_STAGE_RANKS, ZFI_STAGE_OVERLAP | ZFI_STAGE_PLACED);
    if (status) return status;
    if (t.prefetch.bytes > INT64_MAX / 2) t.prefetch.bytes = INT64_MAX / 2;
    if (t.prefetch.host_bytes > INT64_MAX / 2) t.prefetch.host_bytes = INT64_MAX / 2;
    if (t.memory_limit > INT64_MAX / 2) t.memory_limit = INT64_MAX / 2;
    if (t.cost && (status = zfi_check_cost(g, "zf_prefetch", t.cost))) return status;
    if (t.prefetch.keep_gathered && t.memory_limit) zfi_choose_kept(g, &t);
    return g->error.status ? g->error.status : zfi_overlap_queues(g, &t);
}
