/* Projection: a rank of a pipeline keeps the nodes of its stage, and those of all (ir/stages.c).
 *
 *     all ranks  %3 = linear ... stage=0     %4 = send %3 {from=0 to=1} stage=1    %6 = ... stage=1
 *     rank 0     %3 = linear ...             %4 = send %3 : f32[0]
 *     rank 1                                 %4 = send                             %6 = ...
 *
 * The sender has no result, and the receiver no operand. So a rank's plan and its store have what
 * its stage needs alone. Ranks compare the hash of the graph of all stages. */

static int32_t zfi_stage_of_rank(const zf_program *p)
{
    return zfi_mesh_place(zfi_mesh_of(p->graph), ZF_OVER_PIPE, p->run.rank);
}

/* The part of a node that brings a value from another stage, or takes it there. */
static void zfi_project_end(zf_graph *g, int32_t id, int32_t stage)
{
    zfi_node *node = &g->nodes[id];
    const zfi_node *x = &g->nodes[node->args[0]];
    const bool sends = node->op == ZF_OP_send;
    if (!x->stage || (!sends && (node->op != ZF_OP_bcast || node->stage))) return;
    if (x->stage - 1 != stage) node->arg_count = 0;
    else if (sends) node->shape = ZF_SHAPE(0);
}

static bool zfi_has_stages(const zf_graph *g)
{
    for (int32_t i = 0; i < zfi_len(g->order); i++)
        if (g->nodes[g->order[i]].stage) return true;
    return false;
}

/* Leaves out what other stages have. */
static zf_status zfi_project(zf_program *p)
{
    zf_graph *g = p->graph;
    int32_t kept = 0, all, stage;
    if (g->whole || !zfi_has_stages(g)) return g->error.status;
    if (g->stages & ZFI_STAGE_PLACED)
        return zfi_fail(&g->error, ZF_ERR_STAGE,
                        "zf_compile: the graph has stages and places in memory, which each stage "
                        "has of its own: zf_memory must not be run before");
    zfi_leave_out(g);
    g->whole = zf_graph_hash(g), all = zfi_len(g->order);
    stage = zfi_stage_of_rank(p);
    for (int32_t i = 0; i < all; i++) {
        const int32_t id = g->order[i];
        const zfi_node *node = &g->nodes[id];
        const bool sends = node->op == ZF_OP_send && g->nodes[node->args[0]].stage - 1 == stage;
        if (node->stage && node->stage - 1 != stage && !sends) continue;
        if (zfi_has(g, id, ZF_OP_COLLECTIVE)) zfi_project_end(g, id, stage);
        g->order[kept++] = id;
    }
    if (g->order) stbds_header(g->order)->length = (size_t)kept;
    return g->error.status;
}
