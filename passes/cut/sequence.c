/* sequence: between two layers that ranks along tensor share, each has its part of the tokens
 * (Korthikanti et al. 2022, sequence parallelism). The last part of zf_cut.
 *
 * before:   %3 = linear %1, %2 {sections=1 wide=true} : f32[2,8,16]+tensor
 *           %4 = all_reduce %3 {world=2 over=tensor order=tree} : f32[2,8,16]
 *           %5 = silu %4 : f32[2,8,16]
 *           %7 = linear %5, %6 : f32[2,8,24@tensor]
 * after:    %8 = reduce_scatter %3 {world=2 over=tensor order=tree dim=1} : f32[2,4@tensor,16]
 *           %5 = silu %8 : f32[2,4@tensor,16]
 *           %9 = all_gather %5 {world=2 over=tensor dim=1} : f32[2,8,16]
 *           %7 = linear %9, %6 : f32[2,8,24@tensor]
 *
 * How nodes are cut is found as for zf_context (tokens.c), which sums over tokens likewise: of
 * equal sections, by a balanced tree. Nodes of layers that are shared take whole sequences. So does
 * what sums to more than it reads, as the gradient of a whole table of words. What is made of
 * inputs alone, as masks are, is whole on each rank. The backward pass gathers again. */

/* The node has a dimension that zf_cut has cut, or sums over one. */
static bool zfi_is_of_layer(zfi_parallel *p, int32_t id)
{
    const zf_graph *g = p->graph;
    if (p->sums[id] || zfi_is_flat_and_cut(p, id)) return true;
    for (int32_t v = 0; v < ZFI_CUT_VALUES; v++) {
        const int32_t value = zfi_parallel_value(g, id, v);
        for (int32_t d = 0; value && value < p->count && d < g->nodes[value].shape.rank; d++)
            if (zfi_is_chosen(p, value, d)) return true;
    }
    return false;
}

/* The node completes a sum: on one rank it is the sum itself. Copies of heads are another matter:
 * how many ranks have them decides whether they are added. */
static bool zfi_sequence_completes(const zfi_parallel *p, int32_t id)
{
    const zf_graph *g = p->graph;
    const zfi_node *node = &g->nodes[id];
    const bool old = id < p->count;
    if (p->d.parts < 2) return old && p->sums[id];
    return !old && node->op == ZF_OP_all_reduce &&
           !g->records[g->nodes[node->args[0]].op]->copies;
}

/* Notes which nodes are of layers, and what completes sums. */
static void zfi_sequence_note(zfi_parallel *p)
{
    zf_graph *g = p->graph;
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const int32_t id = g->order[i];
        g->nodes[id].layer |= id < p->count && zfi_is_of_layer(p, id);
        g->nodes[id].completes = zfi_sequence_completes(p, id);
    }
}

/* Marks what the loss depends on. */
static void zfi_sequence_mark(zfi_dealing *c)
{
    const zf_graph *g = c->graph;
    for (int32_t i = zfi_len(g->order); zfi_down(i);) {
        const zfi_node *node = &g->nodes[g->order[i]];
        bool *forward = &c->forward[g->order[i]];
        *forward |= node->role == ZFI_ROLE_LOSS && !node->update;
        for (int32_t k = 0; k < node->arg_count && *forward; k++)
            c->forward[node->args[k]] = true;
    }
}

/* Removes reshapes that nothing reads any more. */
static void zfi_sequence_drop(zf_graph *g)
{
    const size_t count = (size_t)zfi_len(g->nodes);
    int32_t *uses = zfi_calloc(&g->memory, count, sizeof *uses), kept = zfi_len(g->order);
    if (!uses) return;
    zfi_count_uses(g, uses);
    for (int32_t i = kept; zfi_down(i);) {
        const int32_t id = g->order[i];
        if (g->nodes[id].op == ZF_OP_reshape && !uses[id]) uses[g->nodes[id].args[0]]--;
        else g->order[--kept] = id;
    }
    for (int32_t i = kept, n = zfi_len(g->order); i < n; i++) g->order[i - kept] = g->order[i];
    stbds_header(g->order)->length -= (size_t)kept;
    zfi_free(&g->memory, uses, count * sizeof *uses);
}

/* Deals the tokens that ranks have between layers. `dealt`: zf_context has dealt them to ranks along
 * context, which have `pieces` sections, of each of which several are made here. */
static void zfi_sequence(zf_graph *g, int32_t pieces, bool dealt)
{
    const int32_t ranks = zfi_mesh_size(zfi_mesh_of(g), ZF_OVER_TENSOR), parts = ranks ? ranks : 1;
    zfi_dealing c = {.graph = g, .over = ZF_OVER_TENSOR, .between = true, .shares = dealt,
                     .sequence = zfi_context_tokens(g)};
    c.d = (zf_context_desc){.parts = parts, .sections = g->shares * parts * pieces};
    c.count = zfi_len(g->nodes);
    g->shares_tokens = true;
    c.at = zfi_calloc(&g->memory, (size_t)c.count, sizeof *c.at);
    c.forward = zfi_calloc(&g->memory, (size_t)c.count, sizeof *c.forward);
    if (c.at && c.forward) {
        zfi_sequence_mark(&c);
        zfi_context_run(&c);
        if (!g->memory.failed) zfi_sequence_drop(g);
    }
    zfi_free(&g->memory, c.forward, (size_t)c.count * sizeof *c.forward);
    zfi_free(&g->memory, c.at, (size_t)c.count * sizeof *c.at);
    zfi_array_free(&g->memory, c.wants);
    zfi_array_free(&g->memory, c.pieces);
}
