/* reuse, gradients: those for which host memory has room until they are updated do not go to the
 * disk.
 *
 * A gradient's copy in host memory stays there, and what reads it from the disk reads that. At most
 * `bytes` stay at one time. Where updates run during the backward pass (early.c), a gradient is
 * read soon after it was made, so most of them stay; where all gradients must be known first (clip,
 * the loss scale), the first ones stay to the end of the step. Sums over micro-batches do not stay.
 *
 * before:   %40 = copy %31 {to=host}     %41 = copy %40 {to=disk}
 *           %50 = piece %41 {size=1024} : disk     %51 = copy %50 {to=host}     adamw %2, %51 ...
 * after:    %40 = copy %31 {to=host}
 *           %50 = piece %40 {size=1024} : host     adamw %2, %50 ...
 */

/* The gradient, a value of one micro-batch, that the node writes to the disk; 0: none. */
static int32_t zfi_stores_gradient(const zfi_node *node)
{
    return node->op == ZF_OP_copy && node->arg_count == 1 && node->space == ZF_DISK && !node->update
               ? node->args[0]
               : 0;
}

/* Sets by node: of a gradient on the disk, the last position after which the update section reads
 * it; INT32_MAX: the micro section does, as with activations. */
static void zfi_find_last_reads(const zfi_early_updates *b, int32_t *until)
{
    const zf_graph *g = b->graph;
    for (int32_t i = 0; i < b->end; i++) {
        const zfi_node *node = &g->nodes[b->order[i]];
        for (int32_t k = 0; k < node->arg_count; k++)
            if (zfi_stores_gradient(&g->nodes[node->args[k]])) until[node->args[k]] = INT32_MAX;
    }
    for (int32_t n = 0; n < zfi_len(b->due); n++) {
        const int32_t id = b->due[n].node, bytes = zfi_bytes_of(g, id),
                      last = b->until[id] < zfi_len(b->due) ? b->until[id] : n;
        const zfi_node *node = &g->nodes[id];
        const int32_t x = node->op == ZF_OP_copy ? zfi_bytes_of(g, node->args[0]) : 0;
        if (bytes != id || !x || until[x] == INT32_MAX) continue;
        if (zfi_stores_gradient(&g->nodes[x]) && until[x] < b->due[last].after)
            until[x] = b->due[last].after;
    }
}

/* Chooses the gradients that stay; sets `until` of others to 0. */
static bool zfi_choose_staying(const zfi_early_updates *b, int32_t *until, size_t bytes)
{
    zf_graph *g = b->graph;
    int32_t *staying = NULL;
    int64_t all = 0;
    bool some = false;
    for (int32_t i = 0; i < b->end && !g->memory.failed; i++) {
        const int32_t id = b->order[i], from = zfi_stores_gradient(&g->nodes[id]);
        const int64_t size = (int64_t)zfi_node_bytes(&g->nodes[id]);
        int32_t kept = 0;
        if (!from) continue;
        for (int32_t k = 0; k < zfi_len(staying); k++)
            if (until[staying[k]] >= b->after[from]) staying[kept++] = staying[k];
            else all -= (int64_t)zfi_node_bytes(&g->nodes[staying[k]]);
        if (staying) stbds_header(staying)->length = (size_t)kept;
        if (!until[id] || until[id] == INT32_MAX || all + size > (int64_t)bytes) {
            until[id] = 0;
            continue;
        }
        all += size;
        some = true;
        zfi_push(&g->memory, staying, id);
    }
    zfi_array_free(&g->memory, staying);
    return some;
}

/* Puts the order again, without the gradients that stay and copies of these to host memory. */
static void zfi_put_staying(zf_graph *g, const int32_t *until)
{
    int32_t kept = 0;
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const int32_t id = g->order[i];
        zfi_node *node = &g->nodes[id];
        for (int32_t k = 0; k < node->arg_count; k++) node->args[k] = zfi_resolve(g, node->args[k]);
        if (node->op == ZF_OP_piece) node->space = g->nodes[node->args[0]].space;
        if (until[id] || (node->op == ZF_OP_copy && node->space == ZF_HOST &&
                          node->arg_count == 1 && g->nodes[node->args[0]].space == ZF_HOST))
            zfi_replace(g, id, node->args[0]);
        else g->order[kept++] = id;
    }
    if (g->order) stbds_header(g->order)->length = (size_t)kept;
}

static void zfi_keep_gradients(zf_graph *g, size_t bytes)
{
    const size_t nodes = (size_t)zfi_len(g->nodes);
    zfi_early_updates b = {.graph = g};
    int32_t *until;
    bool some = false;
    for (int32_t i = 0; i < zfi_len(g->order) && !some; i++)
        some = zfi_stores_gradient(&g->nodes[g->order[i]]) != 0;
    if (!some || !(until = zfi_calloc(&g->memory, nodes, sizeof *until))) return;
    if (zfi_early_plan(&b, g->order, true)) {
        zfi_find_last_reads(&b, until);
        if (zfi_choose_staying(&b, until, bytes) && !g->memory.failed) zfi_put_staying(g, until);
    }
    zfi_early_free(&b);
    zfi_free(&g->memory, until, nodes * sizeof *until);
    if (g->memory.failed) zfi_graph_nomem(g);
}
