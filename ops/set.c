/* set: a mark that a state takes a value at the end of the step (zf_assign).
 *
 *          set %3, %9                the state %3 = %9, a value of the micro section
 *          set %3, %9 {parts=mean}   of several parts of the batch, its mean over them; or its sum
 *
 * Nothing runs for it. zf_zero, or zf_memory without it, puts an `assign` into the update section,
 * so that the micro section reads the state of the step before, and a step that fails before its
 * updates changes nothing (passes/zero/sets.c). */

enum { ZFI_SET_ONE, ZFI_SET_MEAN, ZFI_SET_SUM };

static zf_status zfi_infer_set(zfi_infer *c)
{
    char type[ZFI_TYPE_TEXT];
    if (c->args[0]->op != ZF_OP_state)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "operand 0 must be a state, not the result of %s",
                              c->graph->records[c->args[0]->op]->name);
    if (c->args[1]->dtype != c->args[0]->dtype ||
        !zfi_same_shape(&c->args[1]->shape, &c->args[0]->shape))
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "operand 1 must be %s as the state is",
                              zfi_type_text(type, c->args[0]->dtype, &c->args[0]->shape));
    if (ZF_INT(c, set, parts) && !zfi_is_float(c->args[0]->dtype))
        return zfi_infer_fail(c, ZF_ERR_DTYPE, "a mean or sum over the parts of a batch is float");
    return zfi_infer_like(c, 0);
}

ZFI_OPERATOR(set, .infer = zfi_infer_set, .grad = zfi_grad_none, .traits = ZF_OP_EFFECT)

/* The value of a mark, as the update section may read it: where it shows a leaf, which the section
 * may write, a copy. */
static int32_t zfi_set_value(zf_graph *g, int32_t value)
{
    if (!zfi_has(g, zfi_bytes_of(g, value), ZF_OP_WRITABLE)) return value;
    return zfi_append_nodes(g, scale, zfi_with({.f = 1}), value);
}

/* Without ranks: the marks become assignments of the update section. */
static zf_status zfi_settle_sets(zf_graph *g)
{
    int32_t *sets = NULL, kept = 0, last = 0; /* last: the first node of the update section */
    int32_t *update = NULL;
    for (int32_t i = 0; i < zfi_len(g->order) && !g->memory.failed; i++)
        if (g->nodes[g->order[i]].op == ZF_OP_set) zfi_push(&g->memory, sets, g->order[i]);
    if (!sets) return g->memory.failed ? zfi_graph_nomem(g) : ZF_OK;
    for (; last < zfi_len(g->order) && !zfi_runs_once(&g->nodes[g->order[last]]); last++)
        if (g->nodes[g->order[last]].op != ZF_OP_set) g->order[kept++] = g->order[last];
    for (int32_t i = last; i < zfi_len(g->order) && !g->memory.failed; i++)
        zfi_push(&g->memory, update, g->order[i]);
    stbds_header(g->order)->length = (size_t)kept;
    for (int32_t k = 0; k < zfi_len(sets) && !g->error.status; k++) {
        const int32_t value = zfi_set_value(g, g->nodes[sets[k]].args[1]);
        g->nodes[sets[k]].args[1] = value;
    }
    for (int32_t i = 0; i < zfi_len(update) && !g->memory.failed; i++)
        zfi_push(&g->memory, g->order, update[i]);
    g->in_update = true;
    for (int32_t k = 0; k < zfi_len(sets) && !g->error.status && !g->memory.failed; k++) {
        const int32_t *args = g->nodes[sets[k]].args;
        zfi_append_nodes(g, assign, NULL, args[0], args[1]);
        zfi_replace(g, sets[k], 0);
    }
    g->in_update = false;
    zfi_array_free(&g->memory, sets);
    zfi_array_free(&g->memory, update);
    return g->memory.failed ? zfi_graph_nomem(g) : g->error.status;
}
