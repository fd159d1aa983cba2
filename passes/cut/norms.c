/* Norms: those of all gradients, and those of LAMB, become sums of exact squares (ops/squares.c),
 * in which each element counts once, whatever ranks share. */

/* All operands of a norm are those of blocks, which nothing else reads. */
static bool zfi_is_norm_of_blocks(const zf_graph *g, const zfi_node *norm, const int32_t *uses)
{
    if (norm->op != ZF_OP_norm) return false;
    for (int32_t k = 0; k < norm->arg_count; k++)
        if (g->nodes[norm->args[k]].op != ZF_OP_block_norms || uses[norm->args[k]] != 1)
            return false;
    return true;
}

static void zfi_norm_by_squares(zf_graph *g, zfi_node *norm)
{
    for (int32_t k = 0; k < norm->arg_count; k++) {
        zfi_node *x = &g->nodes[norm->args[k]];
        x->op = ZF_OP_squares, x->dtype = ZF_F64, x->shape = ZF_SHAPE(ZFI_SQUARES);
    }
    norm->op = ZF_OP_norm_of_squares;
    ZF_INT(norm, norm_of_squares, wide) = norm->dtype == ZF_F64;
}

/* The node is an update of a parameter by norms: LAMB's. */
static bool zfi_applies_norms(const zf_graph *g, int32_t id)
{
    const zfi_node *node = &g->nodes[id];
    for (int32_t k = 0; k < node->arg_count && zfi_has(g, id, ZF_OP_UPDATE); k++)
        if (g->nodes[node->args[k]].op == ZF_OP_norm_of_squares) return true;
    return false;
}

/* Updates by norms follow all of these norms, so that those of a bucket can be one. */
static void zfi_parallel_put_off(zf_graph *g)
{
    int32_t *order = g->order, *applies = NULL, last = -1;
    for (int32_t i = 0; i < zfi_len(order); i++)
        if (zfi_applies_norms(g, order[i])) last = i;
    if (last < 0) return;
    g->order = NULL;
    for (int32_t i = 0; i < zfi_len(order); i++) {
        if (i <= last && zfi_applies_norms(g, order[i])) zfi_push(&g->memory, applies, order[i]);
        else zfi_push(&g->memory, g->order, order[i]);
        for (int32_t k = 0; i == last && k < zfi_len(applies); k++)
            zfi_push(&g->memory, g->order, applies[k]);
    }
    zfi_array_free(&g->memory, applies);
    zfi_array_free(&g->memory, order);
}

/* Norms become such as do not depend on how ranks share what they are of. */
static void zfi_parallel_norms(zf_graph *g)
{
    const size_t count = (size_t)zfi_len(g->nodes);
    int32_t *uses = zfi_calloc(&g->memory, count, sizeof *uses);
    for (int32_t i = 0; i < zfi_len(g->order) && uses; i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        for (int32_t k = 0; k < node->arg_count; k++) uses[node->args[k]]++;
    }
    for (int32_t i = 0; i < zfi_len(g->order) && uses; i++)
        if (zfi_is_norm_of_blocks(g, &g->nodes[g->order[i]], uses))
            zfi_norm_by_squares(g, &g->nodes[g->order[i]]);
    zfi_free(&g->memory, uses, count * sizeof *uses);
    if (uses) zfi_parallel_put_off(g);
}

/* Elements of a value that lie one after the other on any number of ranks: of one section. */
static int64_t zfi_parallel_run_of(zfi_parallel *c, int32_t id)
{
    const zf_shape *shape = &c->graph->nodes[id].shape;
    int64_t run = 0;
    for (int32_t d = 0; d < shape->rank; d++) {
        const int32_t runs = c->at[zfi_class_of(c, id, d)].runs;
        const int64_t size = shape->dims[d], sections = c->d.sections * (int64_t)(runs ? runs : 1);
        run *= size;
        const bool padded = c->at[zfi_class_of(c, id, d)].padded;
        if (zfi_is_chosen(c, id, d))
            run = padded             ? zfi_section_size(size, sections)
                  : size % sections ? 1
                                    : size / sections;
    }
    return run;
}

/* Squares of what is cut are added in runs that are those of any number of ranks. */
static void zfi_parallel_units(zfi_parallel *c)
{
    zf_graph *g = c->graph;
    int64_t unit = ZFI_NORM_BLOCK;
    for (int pass = 0; pass < 2; pass++)
        for (int32_t i = 0; i < zfi_len(g->order); i++) {
            zfi_node *node = &g->nodes[g->order[i]];
            const int64_t run =
                node->op == ZF_OP_squares ? zfi_parallel_run_of(c, node->args[0]) : 0;
            if (!run) continue;
            if (pass) ZF_INT(node, squares, unit) = unit;
            else unit = zfi_gcd(unit, run);
        }
}
