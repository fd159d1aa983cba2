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
 *     small       gathers of the update section are joined into one (join.c)
 *     copies      between device and host overlap computation and are waited for where they are
 *                 read, or when more than `bytes` are in flight in one direction. A gradient is
 *                 copied to the host after the wait for its reduction
 *     ahead       copies to the host, of states for example, are issued before the updates that
 *                 read them, as many as have at most `bytes` in one direction; of a disk at most
 *                 `host_bytes`, twice that after the last fetch
 *     early       updates in host memory run during the backward pass (early.c); parameters that
 *                 this has read from a disk are not read again for them (reuse.c)
 *     stay        gradients for which host memory has room until they are updated, of at most
 *                 `host_bytes`, do not go to the disk (reuse_gradients.c)
 *     spread      an update waits until the disk has given what it reads, by the cost table, while
 *                 gradients of the next buckets are computed; so its pieces lie apart. Of host
 *                 memory this takes one gradient more, of at most `host_bytes`, and the parameters
 *                 that are updated with it
 *     put off     nodes that the last large reduction does not need are computed during it,
 *                 while at most `bytes` are kept for them (prefetch_put_off.c)
 *     kept        with `keep_gathered`, buckets stay gathered from the forward to the backward
 *                 pass, as many as fit the exact plan; those needed again soonest come first
 *
 * before:   %20 = all_gather %18 ...    %4 = matmul %1, %21     release %20
 *           %30 = all_gather %28 ...    %5 = matmul %4, %31     release %30
 * after:    %20 = all_gather %18 ... queue=gather     %30 = all_gather %28 ... queue=gather
 *           wait %20      %4 = matmul %1, %21     release %20
 *           wait %30      %5 = matmul %4, %31     release %30
 */

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
    const zfi_early_updates *b = &p->updates;
    zfi_find_aheads(p);
    if (!g->memory.failed && p->bytes) zfi_place_links(p);
    g->in_update = false;
    for (int32_t i = 0; i < b->end && !g->memory.failed && !g->error.status; i++) {
        const int32_t id = p->order[i];
        p->now = p->time[i];
        if (i == b->begin) zfi_begin_update(p);
        for (int link = ZFI_LINKS; link-- > 0;)
            for (const zfi_ahead *a = p->aheads[link];
                 p->issued[link] < zfi_len(a) && a[p->issued[link]].issue <= i; p->issued[link]++)
                if (!p->born[a[p->issued[link]].node]) zfi_put(p, a[p->issued[link]].node);
        if (p->born[id]) continue; /* it was issued early, or is above `update:` */
        zfi_put(p, id);
        if (i < b->begin) continue;
        if (p->born[id] && zfi_completes_gradient(g, id)) zfi_complete_gradient(p, i);
        zfi_put_due(p, i, false);
    }
    if (b->begin == b->end && zfi_len(b->due)) zfi_begin_update(p);
    zfi_put_due(p, b->end, true);
    zfi_wait_all(p);
    if (zfi_len(b->due)) zfi_mark_below(p);
    zfi_drop_idle_waits(g);
}

/* ----------------------------------------------------------------------------- kept gathered */

/* Two runs of uses of a bucket that could be one. */
typedef struct zfi_keepable {
    int32_t first, second; /* fetches */
    int32_t release;       /* of the first */
    int32_t gap;           /* positions between them */
} zfi_keepable;

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
        if (!bucket || zfi_node_count(node) != ZF_INT(&g->nodes[bucket], bucket, size) ||
            zfi_fetches_experts(&g->nodes[node->args[0]]))
            continue;
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
                      .updates.graph = g,
                      .completed = {-1, -1, -1},
                      .bytes = t->prefetch.bytes,
                      .host_bytes = t->prefetch.host_bytes ? t->prefetch.host_bytes
                                                           : t->prefetch.bytes,
                      .costed = t->cost != NULL,
                      .cost = zfi_cost_resolved(t->cost)};
    size_t positions;
    if (p.bytes) zfi_join_small(g);
    if (p.bytes && !g->error.status) zfi_put_off_gradients(g, &p.cost, p.bytes);
    if (p.bytes && !g->error.status) zfi_keep_gradients(g, p.host_bytes);
    if (p.bytes && !g->error.status) zfi_reuse_fetches(g, p.host_bytes);
    if (g->error.status) return g->error.status;
    positions = (size_t)zfi_len(g->order);
    /* plus at most one `wait` for each node */
    p.nodes = 2 * (size_t)zfi_len(g->nodes) + 1;
    p.time = zfi_calloc(&g->memory, positions + 2 * p.nodes, sizeof *p.time);
    p.pending = zfi_calloc(&g->memory, 4 * p.nodes, sizeof *p.pending);
    if (p.time && p.pending && zfi_early_plan(&p.updates, g->order, p.bytes > 0)) {
        p.born = p.pending + p.nodes, p.readers = p.pending + 2 * p.nodes;
        p.pieces = p.pending + 3 * p.nodes;
        p.start = p.time + positions, p.ready = p.start + p.nodes;
        p.order = g->order;
        g->order = NULL;
        zfi_run_prefetch(&p);
    }
    zfi_early_free(&p.updates);
    zfi_free(&g->memory, p.time, (positions + 2 * p.nodes) * sizeof *p.time);
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

static const zf_option zfi_prefetch_options[] = {
    ZF_OPTION(zf_prefetch_desc, BYTES, bytes, 0, NULL, .flag = "prefetch", .topic = "ranks",
              .traits = ZF_OPTION_BASIC,
              .help = "maximum of parameters gathered, and of states read, ahead of their use; 0: "
                      "nothing overlaps"),
    ZF_OPTION(zf_prefetch_desc, BYTES, host_bytes, 0, NULL, .flag = "prefetch-host",
              .with = "bytes",
              .help = "maximum in host memory of what is read from a disk ahead of its use; 0: as "
                      "--prefetch"),
    ZF_OPTION(zf_prefetch_desc, FLAG, keep_gathered, 0, NULL, .with = "bytes",
              .help =
                  "parameters stay on the device between forward and backward pass where memory "
                  "allows"),
    {.name = NULL}};

ZF_API zf_status zf_prefetch(zf_graph *g, const zf_training *training)
{
    zf_training t = training ? *training : (zf_training){.loss = ZF_NONE};
    zf_status status =
        zfi_enter(g, "zf_prefetch", ZFI_STAGE_RANKS, ZFI_STAGE_OVERLAP | ZFI_STAGE_PLACED);
    if (status) return status;
    if (t.prefetch.keep_gathered && t.memory_limit && g->schedule && g->micro_batches > 1)
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        "zf_prefetch: keep_gathered is for steps without a schedule: other "
                        "micro-batches come between the forward and the backward pass of one");
    if (t.prefetch.bytes > INT64_MAX / 2) t.prefetch.bytes = INT64_MAX / 2;
    if (t.prefetch.host_bytes > INT64_MAX / 2) t.prefetch.host_bytes = INT64_MAX / 2;
    if (t.memory_limit > INT64_MAX / 2) t.memory_limit = INT64_MAX / 2;
    if (t.cost && (status = zfi_check_cost(g, "zf_prefetch", t.cost))) return status;
    if (t.prefetch.keep_gathered && t.memory_limit) zfi_choose_kept(g, &t);
    return g->error.status ? g->error.status : zfi_overlap_queues(g, &t);
}
