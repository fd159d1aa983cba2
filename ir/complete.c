/* The rule of completeness: a pass loses no gradient, update or output. (verify.c and ranks.c check
 * that there is no second one.)
 *
 * When a pass is entered, it notes by node which parameters have a gradient and an update, and
 * which outputs there are. After zf_zero, gradients and updates are those of buckets. Each
 * parameter of a bucket must then be found in the pack of gradients and among the updated blocks.
 * What was noted before zf_zero is checked after all later passes.
 *
 * What the check at the end of a pass finds is the note of the next pass, unless a node was
 * appended in between. Within a pass nothing is kept, since passes edit nodes directly. */
enum { ZFI_HAS_GRADIENT = 1, ZFI_HAS_UPDATE = 2, ZFI_HAS_OUTPUT = 4 };

/* The pack of which the value has the elements, or sums of them, in their places; 0: none. */
static int32_t zfi_pack_after(const zf_graph *g, int32_t id)
{
    while (id && g->nodes[id].op != ZF_OP_pack) {
        const zfi_node *node = &g->nodes[id];
        int64_t count = zfi_node_count(node);
        if (node->op == ZF_OP_reduce_scatter) count *= ZF_INT(node, reduce_scatter, world);
        if (node->op == ZF_OP_all_gather) count /= ZF_INT(node, all_gather, world);
        id = 0;
        if (zfi_reforms(node->op)) id = node->args[0];
        for (int32_t k = 0; k < node->arg_count && !id; k++)
            if (zfi_node_count(&g->nodes[node->args[k]]) == count) id = node->args[k];
    }
    return id;
}

/* Marks the parameters of a bucket that have a gradient in the value. */
static void zfi_find_gradients_of(const zf_graph *g, int32_t bucket, int32_t value, uint8_t *has)
{
    const zfi_node *node = &g->nodes[bucket];
    const int64_t *at = ZF_LIST(node, bucket, at).data;
    int32_t pack = zfi_pack_after(g, value);
    for (int32_t k = 0; k < node->arg_count && pack; k++) {
        int64_t first = at[k] / ZFI_NORM_BLOCK,
                last = first + zfi_whole_blocks(zfi_node_count(&g->nodes[node->args[k]]));
        const zf_attribute range = zfi_listed(((int64_t[]){first, last}), 2);
        if (zfi_missing_block(g, pack, &range) < 0) has[node->args[k]] |= ZFI_HAS_GRADIENT;
    }
}

/* Marks the parameters of a bucket that lie in the blocks. */
static void zfi_find_updates_of(const zf_graph *g, int32_t bucket, const zf_attribute *blocks,
                                uint8_t *has)
{
    const zfi_node *node = &g->nodes[bucket];
    const int64_t *at = ZF_LIST(node, bucket, at).data, *range = blocks->list.data;
    for (int32_t k = 0; k < node->arg_count; k++)
        for (int64_t b = 0; b < blocks->list.count; b += 2)
            if (range[b] * ZFI_NORM_BLOCK == at[k] &&
                range[b + 1] - range[b] ==
                    zfi_whole_blocks(zfi_node_count(&g->nodes[node->args[k]])))
                has[node->args[k]] |= ZFI_HAS_UPDATE;
}

/* Finds gradients, updates and outputs, by node. */
static void zfi_find_all(const zf_graph *g, uint8_t *has)
{
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        if (node->op == ZF_OP_output) has[g->order[i]] |= ZFI_HAS_OUTPUT;
        if (node->op == ZF_OP_gradient) {
            if (g->nodes[node->args[0]].op != ZF_OP_bucket) has[node->args[0]] |= ZFI_HAS_GRADIENT;
            else if (node->arg_count > 2)
                has[g->nodes[node->args[0]].args[0]] |= ZFI_HAS_GRADIENT; /* it lies there alone */
            else zfi_find_gradients_of(g, node->args[0], node->args[1], has);
        }
        if (zfi_updates_param(g, node)) {
            int32_t leaf = zfi_updated_leaf(g, node->args[0]);
            if (g->nodes[leaf].op != ZF_OP_bucket) has[leaf] |= ZFI_HAS_UPDATE;
            else zfi_find_updates_of(g, leaf, zfi_attribute_of(g, node, "blocks"), has);
        }
    }
}

/* Notes them at the beginning of a pass. */
static zf_status zfi_note_all(zf_graph *g)
{
    const bool noted = g->noted;
    g->noted = false;
    if (noted || g->stages & ZFI_STAGE_RANKS) return ZF_OK;
    zfi_free(&g->memory, g->had, g->had_count);
    g->had_count = (size_t)zfi_len(g->nodes);
    g->had = zfi_calloc(&g->memory, g->had_count, 1);
    if (!g->had) return g->had_count = 0, zfi_graph_nomem(g);
    zfi_find_all(g, g->had);
    return ZF_OK;
}

/* The node had a gradient, an update or an output when the pass was entered. */
static bool zfi_had(const zf_graph *g, int32_t id, uint8_t what)
{
    return (size_t)id < g->had_count && g->had[id] & what;
}

/* Takes what the check has found, count bytes, as the note of the next pass. */
static void zfi_keep_note(zf_graph *g, uint8_t *has, size_t count)
{
    zfi_free(&g->memory, g->had, g->had_count);
    g->had = has, g->had_count = count;
    g->noted = true;
}

/* Checks that all that was noted is still there. The nodes must have been verified. */
static zf_status zfi_verify_complete(zf_graph *g)
{
    size_t count = (size_t)zfi_len(g->nodes);
    uint8_t *has = zfi_calloc(&g->memory, count, 1);
    if (!has) return zfi_graph_nomem(g);
    zfi_find_all(g, has);
    for (size_t n = 0; n < g->had_count && !g->error.status; n++) {
        const char *name = g->nodes[n].name;
        bool moved = g->had[n] & ZFI_HAS_OUTPUT && !has[n]; /* the name has moved to another mark */
        size_t now = moved ? (size_t)zfi_map_get(g->names, name, 0) : n;
        uint8_t lost = g->had[n] & (uint8_t)~has[now];
        if (lost)
            zfi_fail(&g->error, ZF_ERR_VERIFY,
                     "verify: the pass has lost the %s \"%.200s\", which was there before it",
                     lost & ZFI_HAS_OUTPUT     ? "output"
                     : lost & ZFI_HAS_GRADIENT ? "gradient of"
                                               : "update of",
                     name ? name : "");
    }
    if (g->error.status || g->stages & ZFI_STAGE_RANKS) zfi_free(&g->memory, has, count);
    else zfi_keep_note(g, has, count);
    return g->error.status;
}
