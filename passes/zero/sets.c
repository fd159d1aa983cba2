/* zero, states that a step sets (zf_assign): a value that is computed from a part of the batch is
 * reduced over the ranks and micro-batches; the update section assigns it.
 *
 *     set %3, %9 {parts=mean}      %20 = pack %9     %21 = all_reduce %20     %22 = view %21
 *                                  update:
 *                                  %23 = scale %22 {by=0.25}     %24 = assign %3, %23
 */

/* The value of the mark depends on a part of the batch, or on dropout. */
static bool zfi_is_of_part(const zfi_zero *z, int32_t id, bool *of_part)
{
    const zf_graph *g = z->graph;
    for (int32_t i = 0; i < zfi_len(z->order) && z->order[i] != id; i++) {
        const int32_t at = z->order[i];
        const zfi_node *node = &g->nodes[at];
        of_part[at] = zfi_draws(g, at) ||
                      (zfi_record_of(g, at)->ranks == ZFI_RANKS_BATCH && zfi_node_count(node) != 1);
        for (int32_t k = 0; k < node->arg_count; k++) of_part[at] |= of_part[node->args[k]];
    }
    return of_part[g->nodes[id].args[1]];
}

/* The sum of a value over ranks and micro-batches. */
static int32_t zfi_sum_value(zfi_zero *z, int32_t value)
{
    zf_graph *g = z->graph;
    const int64_t none = 0, count = zfi_node_count(&g->nodes[value]);
    const zf_shape shape = g->nodes[value].shape;
    int32_t x =
        zfi_append_op(g, ZF_OP_pack, &value, 1, zfi_with(zfi_listed(&none, 1), {.i = count}));
    if (x) x = zfi_reduce_ranks(z, x, false);
    return x ? zfi_view_node(g, x, 0, shape) : 0;
}

/* At the end of the micro section: sums. */
static void zfi_sum_sets(zfi_zero *z)
{
    zf_graph *g = z->graph;
    const bool several = z->d.world * z->d.micro_batches > 1;
    bool *of_part = several && zfi_len(z->sets)
                        ? zfi_calloc(&g->memory, (size_t)zfi_len(g->nodes), sizeof *of_part)
                        : NULL;
    const size_t room = (size_t)zfi_len(g->nodes);
    for (int32_t k = 0; of_part && k + 2 < zfi_len(z->sets) && !g->error.status; k += 3) {
        const int32_t id = z->sets[k];
        if (!zfi_is_of_part(z, id, of_part)) {
            z->sets[k] = 0;
            continue;
        }
        if (ZF_INT(&g->nodes[id], set, parts) == ZFI_SET_ONE)
            zfi_zero_fail(
                z, id,
                "its value is computed from a part of the batch, of which there are "
                "several: zf_assign_desc.parts says whether the state takes their mean or "
                "their sum");
        else z->sets[k + 2] = zfi_sum_value(z, z->sets[k + 2]);
    }
    if (of_part) zfi_free(&g->memory, of_part, room * sizeof *of_part);
}

/* In the update section: the states take their values. */
static void zfi_assign_sets(zfi_zero *z)
{
    zf_graph *g = z->graph;
    const double parts = (double)z->d.world * (double)z->d.micro_batches;
    for (int32_t k = 0; k + 2 < zfi_len(z->sets) && !g->error.status; k += 3) {
        int32_t x = z->sets[k + 2];
        if (z->sets[k] && parts > 1 && ZF_INT(&g->nodes[z->sets[k]], set, parts) == ZFI_SET_MEAN)
            x = zfi_append_nodes(g, scale, zfi_with({.f = 1 / parts}), x);
        if (x) zfi_append_nodes(g, assign, NULL, z->sets[k + 1], x);
    }
}
