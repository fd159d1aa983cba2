/* The rule of copies of the experts with rows (ops/copy.c), checked from the nodes alone.
 *
 *     %40 = copy %20, %12 {to=host experts=4 each=256} : f32[1024] host
 *     %41 = copy %40, %5 {experts=4 each=256} : f32[1024]      %12 is a copy of %5
 *     %42 = view %41 {shape=[4,16,16]} : f32[4,16,16]
 *     %8  = grouped_linear %6, %42, %5                          the same bounds: it may read them
 *
 *   - views, copies and gathers of such a value have the same experts
 *   - any other reader reads no more than the experts that have rows by its bounds
 *     (zfi_record.by_expert), and these are those of the copy, or copies of them
 *   - a shard is copied by the bounds of all ranks that gather it */

/* The bounds of which these are copies, on this rank or, gathered, on several. */
static int32_t zfi_bounds_of(const zf_graph *g, int32_t id)
{
    for (const zfi_node *node = &g->nodes[id];
         (node->op == ZF_OP_copy || node->op == ZF_OP_all_gather) && node->arg_count == 1;
         node = &g->nodes[id])
        id = node->args[0];
    return id;
}

/* The bounds of a copy of a shard are those of all ranks. */
static void zfi_check_fetch(zf_graph *g, int32_t id)
{
    const int64_t world = ZF_INT(&g->nodes[id], copy, world);
    const zfi_node *bounds = zfi_copied(g, &g->nodes[g->nodes[id].args[1]]);
    if (world > 1 && (bounds->op != ZF_OP_all_gather || ZF_INT(bounds, all_gather, world) != world))
        zfi_verify_fail(g, id, "it is one of %lld shards: the bounds must be those of all ranks",
                        (long long)world);
}

/* The copy of whose experts the result has some, as operand k does; 0: its reader has others. */
static int32_t zfi_hands_on(const zf_graph *g, const zfi_node *node, int32_t k, int32_t fetch)
{
    const int64_t world = zfi_max(ZF_INT(&g->nodes[fetch], copy, world), 1);
    int64_t at = 0;
    if (zfi_viewed(g, node, &at) == k || (node->op == ZF_OP_copy && node->arg_count == 1))
        return fetch;
    return node->op == ZF_OP_all_gather && node->arg_count == 1 &&
                   ZF_INT(node, all_gather, world) == world
               ? fetch
               : 0;
}

/* Node `id` reads, as operand k, experts that the copy `fetch` has copied. */
static void zfi_check_reader(zf_graph *g, int32_t id, int32_t k, int32_t fetch)
{
    const zfi_node *node = &g->nodes[id], *copy = &g->nodes[fetch];
    const zf_shape *shape = &g->nodes[node->args[k]].shape;
    const int32_t bounds = zfi_bounds_of(g, copy->args[1]);
    const bool again = zfi_fetches_experts(node) && k == 0,
               reads = again || (k && zfi_record_of(g, id)->by_expert == k);
    if (node->op == ZF_OP_wait || node->op == ZF_OP_release) return;
    if (!reads || zfi_bounds_of(g, node->args[k + 1]) != bounds)
        zfi_verify_fail(g, id, "%%%d has only the experts with rows by %%%d, and it reads others",
                        (int)node->args[k], (int)bounds);
    else if (!again && (shape->dims[0] != ZF_INT(copy, copy, experts) ||
                        zfi_span(shape, 1, shape->rank) != ZF_INT(copy, copy, each)))
        zfi_verify_fail(g, id, "%%%d must be [%lld, ...] of %lld elements each",
                        (int)node->args[k], (long long)ZF_INT(copy, copy, experts),
                        (long long)ZF_INT(copy, copy, each));
}

/* Checks a graph whose nodes have been verified. Linear in nodes and operands. */
static zf_status zfi_verify_fetched(zf_graph *g)
{
    const size_t count = (size_t)zfi_len(g->nodes);
    bool some = false;
    int32_t *from; /* by node: the copy of whose experts it has some; 0: none */
    for (int32_t i = 0; i < zfi_len(g->order) && !some; i++)
        some = zfi_fetches_experts(&g->nodes[g->order[i]]);
    if (!some) return g->error.status;
    if (!(from = zfi_calloc(&g->memory, count, sizeof *from))) return zfi_graph_nomem(g);
    for (int32_t i = 0; i < zfi_len(g->order) && !g->error.status; i++) {
        const int32_t id = g->order[i];
        const zfi_node *node = &g->nodes[id];
        for (int32_t k = 0; k < node->arg_count && !g->error.status; k++) {
            const int32_t fetch = from[node->args[k]];
            if (!fetch) continue;
            from[id] = zfi_hands_on(g, node, k, fetch);
            if (!from[id]) zfi_check_reader(g, id, k, fetch);
        }
        if (!zfi_fetches_experts(node) || g->error.status) continue;
        zfi_check_fetch(g, id);
        from[id] = id;
    }
    zfi_free(&g->memory, from, count * sizeof *from);
    return g->error.status;
}
