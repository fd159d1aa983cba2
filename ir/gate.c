/* The gate of passes: a pass enters if the stages before it are reached, and leaves a graph that
 * keeps every rule. Names that a pass gives to the graph. */

/* Checks the whole graph; the first broken rule becomes the graph's error. */
static zf_status zfi_verify(zf_graph *g)
{
    zf_status status = g->error.status;
    if (!status) status = zfi_verify_nodes(g);
    if (!status) status = zfi_verify_queues(g);
    if (!status) status = zfi_verify_fetched(g);
    if (!status) status = zfi_verify_neighbours(g);
    if (!status) status = zfi_verify_ranks(g);
    if (!status) status = zfi_verify_stages(g);
    if (!status) status = zfi_verify_sections(g);
    return status ? status : zfi_verify_complete(g);
}

static const char *zfi_stage_advice(uint32_t stage)
{
    switch (stage) {
    case ZFI_STAGE_GRADIENTS: return "zf_autograd";
    case ZFI_STAGE_UPDATES: return "an optimizer (zf_adamw or another)";
    case ZFI_STAGE_CLIPPED: return "zf_clip";
    case ZFI_STAGE_RECOMPUTE: return "zf_recompute";
    case ZFI_STAGE_RANKS: return "zf_zero";
    case ZFI_STAGE_OFFLOAD: return "zf_offload";
    case ZFI_STAGE_OVERLAP: return "zf_prefetch";
    default: return "zf_memory";
    }
}

/* A scope that is open names all that is built after it. */
static zf_status zfi_open_scope_fail(zf_graph *g, const char *name)
{
    const zfi_scope *last = &stbds_arrlast(g->scopes);
    char where[320];
    zfi_where(where, sizeof where, "", last->file, last->line);
    return zfi_fail(&g->error, ZF_ERR_STAGE,
                    "%s: the scope \"%s\", opened by zf_push%s, is still open (zf_pop closes it)",
                    name, g->scope, where);
}

/* Enters pass `name`: an error unless every stage of `needs` has been reached and none of
 * `forbids`, and where another pass runs, as when an operator's gradient calls one. Some parameters
 * may still lack their optimizer. */
static zf_status zfi_enter_early(zf_graph *g, const char *name, uint32_t needs, uint32_t forbids)
{
    if (!g) return ZF_ERR_ARGUMENT;
    if (g->error.status) return g->error.status;
    if (g->pass)
        return zfi_fail(&g->error, ZF_ERR_STAGE,
                        "%s: called while %s rewrites the graph: an operator's functions append "
                        "nodes, and call no pass",
                        name, g->pass);
    if (zfi_len(g->scopes)) return zfi_open_scope_fail(g, name);
    g->file = NULL;
    if (g->whole && strcmp(name, "zf_memory"))
        return zfi_fail(&g->error, ZF_ERR_STAGE,
                        "%s: the graph is of one stage (zf_keep_stage): only zf_memory may follow",
                        name);
    for (uint32_t stage = 1; stage <= ZFI_STAGE_PLACED; stage <<= 1) {
        if ((needs & stage) && !(g->stages & stage))
            return zfi_fail(&g->error, ZF_ERR_STAGE, "%s: needs %s before it", name,
                            zfi_stage_advice(stage));
        if ((forbids & stage) && (g->stages & stage))
            return zfi_fail(&g->error, ZF_ERR_STAGE,
                            strstr(zfi_stage_advice(stage), name)
                                ? "%s: %s has been run already"
                                : "%s: must come before %s, which has been run",
                            name, zfi_stage_advice(stage));
    }
    return zfi_note_all(g);
}

/* Where there are updates, each parameter with a gradient whose group has an optimizer has one. */
static zf_status zfi_check_trained(zf_graph *g, const char *name)
{
    for (int32_t k = 0; k < zfi_len(g->params) && g->stages & ZFI_STAGE_UPDATES; k++) {
        const zfi_node *param = &g->nodes[g->params[k]];
        if (!ZF_INT(param, param, optimizer) || zfi_had(g, g->params[k], ZFI_HAS_UPDATE) ||
            !zfi_had(g, g->params[k], ZFI_HAS_GRADIENT))
            continue;
        return zfi_fail(&g->error, ZF_ERR_STAGE,
                        "%s: the optimizer of the group of \"%.200s\" has not been run", name,
                        param->name);
    }
    return ZF_OK;
}

/* The same of a pass that comes after all optimizers, or before all. */
static zf_status zfi_enter(zf_graph *g, const char *name, uint32_t needs, uint32_t forbids)
{
    const zf_status status = zfi_enter_early(g, name, needs, forbids);
    return status ? status : zfi_check_trained(g, name);
}

/* Sets the saved nodes of every node. Where two were merged, the remaining one counts. */
static void zfi_link_saved(zf_graph *g)
{
    for (int32_t i = 0; i < zfi_len(g->order); i++)
        memset(g->nodes[g->order[i]].saved, 0, sizeof g->nodes->saved);
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        int32_t *link = node->op == ZF_OP_saved
                            ? &g->nodes[node->args[0]].saved[ZF_INT(node, saved, index)]
                            : NULL;
        if (link && !*link) *link = g->order[i];
    }
}

/* Leaves a pass that ensures `stages`. Trial copies are not verified. */
static zf_status zfi_leave(zf_graph *g, uint32_t stages)
{
    g->in_update = false, g->in_task = ZFI_TASK_F, g->in_stage = 0;
    g->file = NULL;
    g->stages |= stages;
    if (g->schedule && !g->whole) zfi_sort_sections(g);
    zfi_link_saved(g);
    for (int32_t i = 0; i < zfi_len(g->order); i++) g->nodes[g->order[i]].number = i + 1;
    return g->trial || g->whole ? g->error.status : zfi_verify(g);
}

/* The name, of a training or of an adapter, becomes *out. */
static zf_status zfi_take_name(zf_graph *g, const char *pass, const char *name, const char **out)
{
    char quoted[ZFI_QUOTE];
    const char *copy;
    if (!zfi_is_short_name(name))
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        "%s: %s: a name has at most %d letters, digits and underscores", pass,
                        zfi_quote(quoted, name, strlen(name)), (int)ZFI_SHORT_NAME);
    copy = zfi_text_copy(&g->memory, &g->text, name, strlen(name));
    if (!copy) return zfi_graph_nomem(g);
    *out = copy;
    return ZF_OK;
}
