/* prefetch, small gathers: those of the update section are joined into one (prefetch.c).
 *
 * before:   %20 = all_gather %18     %30 = all_gather %28
 * after:    %40 = pack %18, %28      %41 = all_gather %40     %42 = view %41
 *           %43 = slice %42          %44 = reshape %43        in place of %20
 *           %45 = slice %42          %46 = reshape %45        in place of %30
 */

enum { ZFI_SMALL_GATHER = 64 << 10 }; /* bytes of the largest result of a gather that is joined */

/* A small gather of the update section, over all ranks, which can be joined with others. */
static bool zfi_joinable(const zf_graph *g, int32_t id)
{
    const zfi_node *node = &g->nodes[id];
    return node->op == ZF_OP_all_gather && node->arg_count == 1 && node->update &&
           ZF_INT(node, all_gather, world) > 1 && !ZF_INT(node, all_gather, over) &&
           !ZF_INT(node, all_gather, dim) &&
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
