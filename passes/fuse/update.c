/* fuse, updates: where a gradient is multiplied by one number only for its update, the update
 * multiplies it while reading it, so that clipping needs no pass over memory of its own. The number
 * must never be negative (as the divisor of zf_clip), since a negative scale tells an update to
 * skip the step.
 *
 * bits: equal in f32 and f64. In bf16 and f16 neither the factor nor the product is rounded to 16
 *       bits any more
 *
 *   before:  %28 = mul %9, %27   gradient %2, %28
 *            adamw %2, %28, %31, %32, %7, %30 {...}
 *   after:   gradient %2, %9
 *            adamw %2, %9, %31, %32, %7, %30, %27 {... scaled=true}
 */

/* For each node: */
typedef struct zfi_scaling {
    int32_t uses, marks, lost; /* uses as an operand, in gradient marks, in removed nodes */
    int32_t update; /* an update, or a momentum, that has it as its gradient, unscaled; 0: none */
    int32_t value; /* of a product that the update now computes: its other operand; 0: none */
} zfi_scaling;

/* The node is a constant above 0. */
static bool zfi_is_above_0(const zf_graph *g, int32_t id)
{
    double value;
    return zfi_splat(&g->nodes[id], &value) && value > 0;
}

/* The node is a / max(b, c) of constants a and c above 0, which is never negative. */
static bool zfi_is_divisor(const zf_graph *g, int32_t id)
{
    const zfi_node *node = &g->nodes[id], *most;
    if (node->op != ZF_OP_div || zfi_node_count(node) != 1 || !zfi_is_above_0(g, node->args[0]))
        return false;
    most = &g->nodes[node->args[1]];
    return most->op == ZF_OP_maximum &&
           (zfi_is_above_0(g, most->args[0]) || zfi_is_above_0(g, most->args[1]));
}

/* The operand of a product that is such a number, seen through a cast; 0: neither is. *value is the
 * other operand. */
static int32_t zfi_factor_of(const zf_graph *g, int32_t id, int32_t *value)
{
    const zfi_node *node = &g->nodes[id];
    if (node->op != ZF_OP_mul) return 0;
    for (int k = 0; k < 2; k++) {
        int32_t factor = node->args[1 - k];
        *value = node->args[k];
        if (g->nodes[factor].op == ZF_OP_cast) factor = g->nodes[factor].args[0];
        if (zfi_is_divisor(g, factor) && !zfi_is_written(g, g->nodes[*value].op) &&
            zfi_same_shape(&g->nodes[*value].shape, &node->shape))
            return factor;
    }
    return 0;
}

/* Finds the readers of each node. */
static void zfi_find_scalings(const zf_graph *g, zfi_scaling *of)
{
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        int32_t id = g->order[i];
        const zfi_node *node = &g->nodes[id];
        const zf_attribute *scaled = node->update ? zfi_attribute_of(g, node, "scaled") : NULL;
        for (int32_t k = 0; k < node->arg_count; k++) {
            zfi_scaling *x = &of[node->args[k]];
            x->uses++;
            x->marks += node->op == ZF_OP_gradient && k == 1;
            if (k == 1 && scaled && !scaled->i) x->update = id;
        }
    }
}

/* Moves the factor of product `id` into the update, if the update is its only reader and can take
 * it. */
static void zfi_move_factor(zf_graph *g, int32_t id, zfi_scaling *of)
{
    int32_t value;
    const int32_t factor = zfi_factor_of(g, id, &value);
    if (factor && !zfi_scale_update(g, of->update, value, factor)) of->value = value;
}

/* Removes products whose factor has moved, and nodes that only they read. */
static void zfi_drop_products(zf_graph *g, zfi_scaling *of)
{
    int32_t kept = 0;
    for (int32_t i = zfi_len(g->order); zfi_down(i);) { /* readers before their operands */
        int32_t id = g->order[i];
        zfi_node *node = &g->nodes[id];
        if (node->op == ZF_OP_gradient && of[node->args[1]].value)
            node->args[1] = of[node->args[1]].value;
        if (!of[id].value && (node->op != ZF_OP_cast || !of[id].lost || of[id].lost < of[id].uses))
            continue;
        for (int32_t k = 0; k < node->arg_count; k++) of[node->args[k]].lost++;
        zfi_replace(g, id, 0);
    }
    for (int32_t i = 0; i < zfi_len(g->order); i++)
        if (g->nodes[g->order[i]].op != ZF_OP_none) g->order[kept++] = g->order[i];
    if (g->order) stbds_header(g->order)->length = (size_t)kept;
}

/* Rewrites all updates where this is possible. */
ZFI_UNUSED static void zfi_fuse_updates(zf_graph *g)
{
    size_t known = (size_t)zfi_len(g->nodes);
    zfi_scaling *of = zfi_calloc(&g->memory, known, sizeof *of);
    bool moved = false;
    if (!of) return;
    zfi_find_scalings(g, of);
    for (size_t id = 1; id < known && !g->memory.failed; id++) {
        if (!of[id].update || of[id].uses - of[id].marks != 1) continue;
        zfi_move_factor(g, (int32_t)id, &of[id]);
        moved |= of[id].value != 0;
    }
    if (moved) zfi_drop_products(g, of);
    zfi_free(&g->memory, of, known * sizeof *of);
}
