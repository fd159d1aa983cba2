/* prefetch, fetches: when gathers of sharded buckets, copies to the device and reads of a disk are
 * issued in the micro section (prefetch.c).
 *
 *     bounds      of rows, by which experts are fetched, are known before
 *     use         the position of the first use; for what a fetch over another link reads, the
 *                 position at which that fetch is issued
 *     issue       as early as the link's budget allows; with a cost table, not much earlier than
 *                 computation needs to hide it
 *
 *     reads       | read A | read B |
 *     uploads              | copy A | copy B |
 *     compute     |        .        | use A  | use B |
 */

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

typedef struct zfi_prefetch {
    zf_graph *graph;
    size_t bytes; /* zf_prefetch_desc.bytes, */
    size_t host_bytes;
    bool costed; /* fetches are not issued earlier than `cost` requires */
    zf_cost cost;
    zfi_ahead *aheads[ZFI_LINKS]; /* growing arrays, ordered by use */
    double *time;  /* by position: seconds of computation from the start of the micro section */
    double *start; /* by node: the time at which a fetch must be issued so that it is hidden */
    double *ready; /* by node: the time at which a copy to the host is done, waits included */
    double now;    /* the time after what has been put; */
    double late;   /* by so much it is later with updates, and waits for copies; */
    double busy[ZFI_QUEUES]; /* and until this time a queue has copies to the host */
    int32_t *order;               /* the order before */
    int32_t *pending;  /* by node: the collective or copy in flight that writes it; 0: none */
    int32_t *pieces;   /* by leaf: the number of copies in flight that write pieces of it */
    int32_t *readers;  /* by node: copies in flight that read its bytes */
    int32_t *waiting;  /* those without a wait so far, oldest first */
    int32_t *deferred; /* what follows sums that are still in flight */
    int64_t moving[ZFI_QUEUES]; /* bytes in flight: of gradients, and of copies */
    zfi_early_updates updates;
    int32_t next;              /* index in updates.due of the next node, */
    int32_t next_early;        /* and of the next copy that may be issued early; */
    int64_t ahead[ZFI_QUEUES]; /* bytes of early copies that have not been used */
    int32_t issued[ZFI_LINKS]; /* fetches; */
    int64_t fetched;           /* and bytes of those from the disk that have not been used */
    int32_t *born; /* by node: 0 until it is put, then 1 + the number of complete gradients */
    int32_t complete;
    int32_t completed[3]; /* positions of the last complete gradients, oldest first; -1 */
    int32_t update; /* position of the first node below `update:` */
    size_t nodes;
} zfi_prefetch;

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
    if (node->update || (node->arg_count != 1 && !zfi_fetches_experts(node))) return -1;
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
    for (int32_t i = p->updates.end; i < zfi_len(p->order); i++) p->time[i] = seconds;
}

/* The position after the first computation from `use` on. */
static int32_t zfi_after_use(const zfi_prefetch *p, int32_t use)
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
    const zfi_due *due = p->updates.due;
    double next = INFINITY;
    for (int32_t k = zfi_len(aheads), n = zfi_len(due); k > 0 || n > 0;) {
        const bool updates = n > 0 && (!k || due[n - 1].after >= aheads[k - 1].use);
        const int32_t id = updates ? due[n - 1].node : aheads[k - 1].node,
                      use = updates ? due[n - 1].after + 1 : aheads[k - 1].use;
        double seconds;
        updates ? n-- : k--;
        if (updates && (!p->updates.early[id] || zfi_queue_of_copy(g, &g->nodes[id]) != queue))
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
            const int32_t after = zfi_after_use(p, aheads[k - 1].use);
            if (after > at) at = after;
        }
        while (p->costed && at < a->use && p->time[at + 1] <= p->start[a->node]) at++;
        a->issue = at < a->use ? at : a->use;
        ready += a->bytes;
    }
}

/* The position after which the bounds are there by which the fetch, and the fetches that it reads,
 * are made. */
static int32_t zfi_known_after(const zf_graph *g, const int32_t *position, int32_t id)
{
    int32_t after = 0;
    for (const zfi_node *node = &g->nodes[id]; zfi_link_of(g, id) >= 0; node = &g->nodes[id]) {
        if (zfi_fetches_experts(node) && position[node->args[1]] + 1 > after)
            after = position[node->args[1]] + 1;
        id = node->args[0];
    }
    return after;
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
            aheads[k].from = zfi_known_after(g, position, aheads[k].node);
            if (before < 0 && position[x] + 1 > aheads[k].from) aheads[k].from = position[x] + 1;
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
