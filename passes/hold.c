/* hold: a graph that gathers the parameters which another one reads from held memory
 * (zf_zero_desc.hold). Its program runs in zf_hold, once for many steps of the readers: a sampler
 * gathers once for a batch of answers, not once for a token. Copies of the graph are made after
 * the other passes, so that it knows where buckets lie.
 *
 * reader:   %20 = bucket %2 {at=[0] size=4096 world=4} : f32[1024]
 *           %21 = cache "held/w" {held=true} : f32[4096]    %22 = view %21 {shape=[8,32]} ...
 * gathers:  %20 = bucket %2 {at=[0] size=4096 world=4} : f32[1024]
 *           %21 = cache "held/w" {held=true} : f32[4096]
 *           %50 = all_gather %20, %21 {world=4} : f32[4096]
 *
 * In a mesh ranks at one place of all nodes gather first, then those of a node. Quantised buckets
 * are dequantised into their memory. Buckets of stages 0 to 2 are copied, offloaded ones from where
 * they lie. */

/* The bucket that is held in the cache. */
static int32_t zfi_bucket_held(const zf_graph *g, int32_t cache)
{
    const char *param = g->nodes[cache].name + strlen(zfi_held_prefix);
    return g->nodes[zfi_map_get(g->names, param, 0)].held;
}

/* What a rank has of the bucket, on the device. */
static int32_t zfi_brought(zf_graph *g, int32_t bucket)
{
    int32_t x = bucket;
    if (g->nodes[x].space == ZF_DISK) x = zfi_append_copy(g, x, ZF_HOST);
    return x && g->nodes[x].space == ZF_HOST ? zfi_append_copy(g, x, ZF_DEVICE) : x;
}

static int32_t zfi_gather_over(zf_graph *g, int64_t over, int32_t x, int32_t into)
{
    const int32_t args[2] = {x, into};
    return zfi_append_op(g, ZF_OP_all_gather, args, into ? 2 : 1,
                         zfi_with({.i = zfi_mesh_size(zfi_mesh_of(g), over)}, {.i = over}));
}

/* Gathers the bucket of a held cache. */
static void zfi_gather_held(zf_graph *g, int32_t cache)
{
    const zfi_node held = g->nodes[cache];
    const int64_t bits = ZF_INT(&held, cache, bits), block = ZF_INT(&held, cache, block),
                  scale = ZF_INT(&held, cache, scale);
    const int32_t bucket = zfi_bucket_held(g, cache);
    const bool mesh = zfi_is_mesh(zfi_mesh_of(g));
    int32_t x = zfi_brought(g, bucket);
    if (ZF_INT(&g->nodes[bucket], bucket, world) <= 1) {
        zfi_append_nodes(g, assign, NULL, cache, x);
        return;
    }
    if (bits)
        x = zfi_append_nodes(g, quantize, zfi_with({.i = bits}, {.i = block}, {.i = scale}), x);
    if (mesh && g->shards == g->world) x = zfi_gather_over(g, ZF_OVER_NODE, x, 0);
    x = zfi_gather_over(g, mesh ? ZF_OVER_LOCAL : zfi_mesh_data(zfi_mesh_of(g)), x,
                        bits ? 0 : cache);
    if (!bits) return;
    x = zfi_append_nodes(
        g, dequantize,
        zfi_with({.i = bits}, {.i = block}, {.i = scale}, {.i = (int64_t)held.dtype}), x);
    zfi_append_nodes(g, assign, NULL, cache, x);
}

/* The node is what the gathers are made of: a parameter, its bucket, or held memory. */
static bool zfi_is_gathered(const zf_graph *g, const zfi_node *node)
{
    const zfi_node *leaf = node->op == ZF_OP_bucket ? &g->nodes[node->args[0]] : node;
    return leaf->op == ZF_OP_param || zfi_is_held(node);
}

/* The order becomes that of the gathers; all other nodes are forgotten. */
static void zfi_gather_all(zf_graph *g)
{
    int32_t *before = g->order;
    g->order = NULL;
    for (int32_t i = 0; i < zfi_len(before) && !g->memory.failed; i++) {
        if (zfi_is_gathered(g, &g->nodes[before[i]])) zfi_push(&g->memory, g->order, before[i]);
        else zfi_replace(g, before[i], 0);
    }
    for (int32_t i = 0, last = zfi_len(g->order); i < last && !g->error.status; i++)
        if (zfi_is_held(&g->nodes[g->order[i]])) zfi_gather_held(g, g->order[i]);
    zfi_array_free(&g->memory, before);
    g->micro_batches = 1;
    memset(g->had, 0, g->had_count); /* this graph has none of the reader's outputs */
}

static bool zfi_holds_some(const zf_graph *g)
{
    for (int32_t i = 0; i < zfi_len(g->order); i++)
        if (zfi_is_held(&g->nodes[g->order[i]])) return true;
    return false;
}

ZF_API zf_graph *zf_hold_graph(const zf_graph *reader)
{
    zf_graph *g = zf_graph_copy(reader);
    if (!g || zfi_enter(g, "zf_hold_graph", ZFI_STAGE_RANKS, ZFI_STAGE_PLACED)) return g;
    if (!zfi_holds_some(g))
        zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                 "zf_hold_graph: the graph reads no held parameters (zf_zero_desc.hold)");
    else zfi_gather_all(g);
    if (g->memory.failed) zfi_graph_nomem(g);
    if (!g->error.status) zfi_leave(g, 0);
    return g;
}
