/* offload, experts: of a weight of experts, those that have rows are copied alone (offload.c,
 * ops/copy.c).
 *
 *     found      a bucket of one parameter (zf_zero_desc.experts_apart) all of whose readers in a
 *                run of uses read the experts with rows by the same bounds (zfi_record.by_expert)
 *     bounds     are copied to host memory for a read of the disk, once for all fetches by them
 *     shards     all ranks that gather a weight bring the experts with rows on any of them: bounds
 *                are gathered first, once for all fetches by them
 *     planned    are the bytes of all experts, since all may have rows
 *
 * before:   %8 = grouped_linear %6, %42, %5     %42 a view of the bucket %20, on a disk
 * after:    %12 = copy %5 {to=host} : i32[4,2] host
 *           %40 = copy %20, %12 {to=host experts=4 each=256} : f32[1024] host
 *           %41 = copy %40, %5 {experts=4 each=256} : f32[1024]
 *           %42 = view %41 ...     %8 = grouped_linear %6, %42, %5     release %41 */

/* By what bounds a fetch is made. */
typedef struct zfi_fetch_bounds {
    int32_t node;   /* the bounds; 0: all of the bucket is copied */
    int32_t gather; /* the all_gather of the shards; 0: the bucket is whole */
    int64_t experts, each, world;
} zfi_fetch_bounds;

/* Each rank has a shard of the bucket. */
static bool zfi_is_cut(const zf_graph *g, int32_t bucket)
{
    return ZF_INT(&g->nodes[bucket], bucket, world) > 1;
}

/* Operand k of the node has the bounds of rows of experts. */
static bool zfi_is_bounds(const zf_graph *g, int32_t id, int32_t k)
{
    const int32_t weight = zfi_record_of(g, id)->by_expert;
    return weight && k == weight + 1;
}

/* What the node reads of a value, the one of this number that is fetched or else the result of a
 * gather, are experts with rows by the bounds *b, which it notes; false: it reads others. */
static bool zfi_reads_by_bounds(const zfi_offloading *o, int32_t id, zfi_fetch_bounds *b,
                                int32_t fetched, int32_t gather)
{
    const zf_graph *g = o->graph;
    const zfi_node *node = &g->nodes[id];
    for (int32_t k = 0; k < node->arg_count; k++) {
        const zf_shape *shape = &g->nodes[node->args[k]].shape;
        if (gather ? zfi_bytes_of(g, node->args[k]) != gather
                   : (size_t)node->args[k] >= o->nodes || o->fetched_of[node->args[k]] != fetched)
            continue;
        if (!k || zfi_record_of(g, id)->by_expert != k || shape->dims[0] != b->experts ||
            zfi_span(shape, 1, shape->rank) != b->each ||
            (b->node && b->node != node->args[k + 1]))
            return false;
        b->node = node->args[k + 1];
    }
    return true;
}

/* Finds the bounds by which what a gather at `position` gathers is read; false: there are none. */
static bool zfi_find_gathered(const zfi_offloading *o, int32_t position, zfi_fetch_bounds *b)
{
    const zf_graph *g = o->graph;
    const int32_t gather = o->order[position];
    const zfi_node *node = &g->nodes[gather];
    int64_t at;
    int32_t above = position;
    if (node->op != ZF_OP_all_gather || node->arg_count > 1 || zfi_runs_first(node)) return false;
    b->gather = gather;
    for (int32_t i = position + 1; i < zfi_len(o->order); i++) {
        const zfi_node *reader = &g->nodes[o->order[i]];
        if (reader->op == ZF_OP_release && reader->args[0] == gather) break;
        if (zfi_viewed(g, reader, &at) >= 0) continue;
        if (!zfi_reads_by_bounds(o, o->order[i], b, -1, gather)) return false;
    }
    while (b->node && above > 0 && o->order[above - 1] != b->node) above--;
    return b->node && above > 0;
}

/* The bounds by which the bucket is read from this use to the end of its run. */
static zfi_fetch_bounds zfi_bounds_of_use(const zfi_offloading *o, int32_t use)
{
    const zfi_fetch_bounds none = {.node = 0};
    const zf_graph *g = o->graph;
    const int32_t fetched = o->uses[use].bucket;
    const zfi_node *bucket = &g->nodes[o->fetched[fetched].node];
    const zf_shape *shape = &g->nodes[bucket->args[0]].shape;
    zfi_fetch_bounds b = {.experts = shape->dims[0],
                          .each = zfi_span(shape, 1, shape->rank),
                          .world = ZF_INT(bucket, bucket, world)};
    if (bucket->arg_count > 1 || shape->rank < 2 || !b.experts || !b.each) return none;
    if (b.world > 1) return zfi_find_gathered(o, o->uses[use].position, &b) ? b : none;
    b.world = 0;
    for (int32_t u = use; u < zfi_len(o->uses); u++) {
        if (o->uses[u].bucket != fetched) continue;
        if (!zfi_reads_by_bounds(o, o->order[o->uses[u].position], &b, fetched, 0)) return none;
        if (o->uses[u].closes) break;
    }
    return b;
}

/* The bounds of all ranks that gather, in the space. */
static int32_t zfi_gather_bounds(zfi_offloading *o, const zfi_fetch_bounds *b, zf_space space)
{
    zf_graph *g = o->graph;
    zfi_gathered_bounds *all = &o->bounds[b->node];
    const zfi_node *gather = &g->nodes[b->gather];
    if (!all->here)
        all->here = zfi_append_nodes(g, all_gather,
                                     zfi_with({.i = ZF_INT(gather, all_gather, world)},
                                              {.i = ZF_INT(gather, all_gather, over)}),
                                     b->node);
    if (space == ZF_HOST && all->here && !all->host)
        all->host = zfi_append_copy(g, all->here, ZF_HOST);
    return space == ZF_HOST ? all->host : all->here;
}

/* A copy of %x, a bucket or a copy of it, in the space: by the bounds, if there are some. */
static int32_t zfi_fetch_to(zfi_offloading *o, int32_t x, const zfi_fetch_bounds *b, zf_space space)
{
    int32_t bounds;
    if (!b->node) return zfi_append_copy(o->graph, x, space);
    bounds = b->gather ? zfi_gather_bounds(o, b, space) : zfi_value_in(o, b->node, space);
    return bounds ? zfi_append_nodes(
                        o->graph, copy,
                        zfi_with({.i = space}, {.i = b->experts}, {.i = b->each}, {.i = b->world}),
                        x, bounds)
                  : 0;
}
