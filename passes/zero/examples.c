/* zero, examples: what gathers the examples of all ranks becomes collectives along data.
 *
 * before:   %9 = gather_examples %8 {ranks=4} : f32[8,6]
 *           %20 = scatter_examples %19 {ranks=4} : f32[2,6]
 * after:    %30 = all_gather %8 {world=4} : f32[48]     %31 = reshape %30 {shape=[8,6]} : f32[8,6]
 *           %32 = reduce_scatter %19 {world=4 examples=true} : f32[12]     %33 = reshape %32 ...
 *
 * The gradient of a gathered row is the sum of those by the losses of all ranks. It is this rank's
 * alone, as those of its other activations; with them it makes gradients of parameters, which are
 * summed over ranks and divided once, at the end. */

static int32_t zfi_examples_node(zfi_zero *z, const zfi_node *node)
{
    zf_graph *g = z->graph;
    const int64_t over = zfi_mesh_data(zfi_zero_mesh(z));
    const int32_t x = node->op == ZF_OP_gather_examples
                          ? zfi_together(z, ZF_OP_all_gather, over, node->args[0], 0)
                          : zfi_append_nodes(g, reduce_scatter,
                                             zfi_with({.i = z->d.world}, {.i = over}, {.i = 0},
                                                      {.i = 0}, {.i = 1}),
                                             node->args[0]);
    if (!x) return 0;
    return zfi_append_nodes(g, reshape, zfi_with(zfi_listed(node->shape.dims, node->shape.rank)),
                            x);
}

/* Checks that examples are gathered of as many ranks as there are. */
static bool zfi_check_examples(zfi_zero *z, int32_t id)
{
    const int64_t ranks = ZF_INT(&z->graph->nodes[id], gather_examples, ranks);
    char why[200];
    if (ranks == z->d.world && !z->mesh) return true;
    if (ranks != z->d.world)
        snprintf(why, sizeof why, "it gathers the examples of %lld ranks, and world is %d",
                 (long long)ranks, (int)z->d.world);
    else
        snprintf(why, sizeof why,
                 "examples are gathered of ranks that are no mesh of nodes; nodes "
                 "must be 1, not %d",
                 (int)z->d.nodes);
    zfi_zero_fail(z, id, why);
    return false;
}

static void zfi_gather_all_examples(zfi_zero *z)
{
    zf_graph *g = z->graph;
    int32_t *order = g->order;
    g->order = NULL;
    for (int32_t i = 0; i < zfi_len(order) && !g->memory.failed; i++) {
        const int32_t id = order[i];
        const zfi_node node = g->nodes[id];
        for (int32_t k = 0; k < node.arg_count; k++) node.args[k] = zfi_resolve(g, node.args[k]);
        if (!zfi_is_of_examples(&node) || g->error.status || !zfi_check_examples(z, id) ||
            z->d.world == 1) {
            zfi_push(&g->memory, g->order, id);
            continue;
        }
        g->scope = node.scope;
        zfi_append_for(g, id);
        zfi_replace(g, id, zfi_examples_node(z, &node));
    }
    zfi_array_free(&g->memory, order);
    g->scope = "", g->in_task = ZFI_TASK_F, g->in_stage = 0;
}
