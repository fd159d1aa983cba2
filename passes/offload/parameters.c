/* offload, parameters: their buckets lie in host memory or on the disk, and are copied to the
 * device while they are used (offload.c).
 *
 *     shards     of stage 3 are copied before their all_gather: every rank copies its own, so
 *                that the links of all ranks add up (Rajbhandari et al. 2021, section 6.1)
 *     whole      buckets are copied before a run of uses and released after it; views of
 *                parameters (view, reshape, leading rows) are appended anew in each run
 *     update     it reads and writes buckets where they lie; values of the micro section that it
 *                reads are views appended before it
 *     small      buckets of at most keep_bytes stay on the device
 *     experts    of a bucket that is a weight of experts, those with rows alone are copied
 *                (experts.c)
 *
 * before:   %20 = bucket %2 ...     %4 = matmul %1, %21
 * after:    %20 = bucket %2 ... disk
 *           %40 = copy %20 {to=host} : f32[1024] host     %41 = copy %40 : f32[1024]
 *           %42 = view %41 ...      %4 = matmul %1, %42     release %41
 */

/* The bucket is offloaded. */
static bool zfi_leaves(const zfi_offloading *o, const zfi_node *node)
{
    const int64_t element = (int64_t)zf_dtype_size(node->dtype);
    return o->d.parameters != ZF_DEVICE && node->op == ZF_OP_bucket &&
           o->graph->nodes[node->args[0]].op == ZF_OP_param &&
           (uint64_t)(ZF_INT(node, bucket, size) * element) > o->d.keep_bytes;
}

static void zfi_find_parameters(zfi_offloading *o)
{
    zf_graph *g = o->graph;
    bool *frozen;
    size_t count;
    for (size_t n = 0; n < o->nodes; n++) o->fetched_of[n] = -1;
    for (int32_t i = 0; i < zfi_len(o->order) && !g->memory.failed; i++) {
        const int32_t id = o->order[i];
        const zfi_node *node = &g->nodes[id];
        int64_t at;
        if (zfi_leaves(o, node)) {
            o->fetched_of[id] = zfi_len(o->fetched);
            zfi_set_home(g, id, o->d.parameters);
            zfi_push(&g->memory, o->fetched, (zfi_fetched){.node = id});
        }
        if (!node->update && zfi_viewed(g, node, &at) == 0)
            o->fetched_of[id] = o->fetched_of[node->args[0]];
    }
    for (int32_t i = zfi_len(o->order); zfi_down(i);) {
        const zfi_node *node = &g->nodes[o->order[i]];
        const bool late =
            node->update || (o->late[o->order[i]] && o->fetched_of[o->order[i]] >= 0);
        for (int32_t k = 0; k < node->arg_count; k++) o->late[node->args[k]] |= late;
    }
    if (g->memory.failed) return; /* not all are in o->fetched */
    count = (size_t)zfi_len(o->fetched);
    if (!(frozen = zfi_calloc(&g->memory, count, sizeof *frozen))) return;
    for (size_t k = 0; k < count; k++)
        frozen[k] = zfi_is_frozen(&g->nodes[g->nodes[o->fetched[k].node].args[0]]);
    o->uses = zfi_find_runs(g, o->order, o->fetched_of, NULL, frozen, (int32_t)count);
    zfi_free(&g->memory, frozen, count * sizeof *frozen);
}

/* Before the node at `position` of the micro section: copies the buckets that it uses to the
 * device. */
static void zfi_fetch_parameters(zfi_offloading *o, int32_t position, int32_t use)
{
    zf_graph *g = o->graph;
    for (int32_t u = use; u < zfi_len(o->uses) && o->uses[u].position == position; u++) {
        zfi_fetched *f = &o->fetched[o->uses[u].bucket];
        zfi_fetch_bounds bounds;
        int32_t x = f->node;
        if (!o->uses[u].opens && !zfi_is_cut(g, x)) continue;
        bounds = zfi_bounds_of_use(o, u);
        if (g->nodes[x].space == ZF_DISK) x = zfi_fetch_to(o, x, &bounds, ZF_HOST);
        f->here = x ? zfi_fetch_to(o, x, &bounds, ZF_DEVICE) : 0;
    }
}

/* After it: releases those that are not used again. A shard's place is free after the wait for its
 * all_gather. Returns the next use. */
static int32_t zfi_drop_parameters(zfi_offloading *o, int32_t position, int32_t use)
{
    zf_graph *g = o->graph;
    for (; use < zfi_len(o->uses) && o->uses[use].position == position; use++) {
        const zfi_fetched *f = &o->fetched[o->uses[use].bucket];
        if (o->uses[use].closes && !zfi_is_cut(g, f->node) && f->here)
            zfi_append_nodes(g, release, NULL, f->here);
    }
    return use;
}
