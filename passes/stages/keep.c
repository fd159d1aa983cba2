/* The stages of a rank along pipe, mostly one: their nodes, and those of all (ir/stages.c).
 *
 *     all      %3 = linear ... stage=0     %4 = send %3 {from=0 to=1} stage=1    %6 = ... stage=1
 *     stage 0  %3 = linear ...             %4 = send %3 : f32[0]
 *     stage 1                              %4 = send                             %6 = ...
 *
 * The sender has no result, and the receiver no operand. So a rank's plan and its store have what
 * its stage needs alone. Such a graph is a part: it is not verified, and its text does not read
 * back. */

/* The node is of a stage that this rank along pipe has. */
static bool zfi_is_of_rank(const zf_graph *g, int32_t id, int32_t rank)
{
    const int16_t stage = g->nodes[id].stage;
    return stage && zfi_rank_of_stage(g, stage - 1) == rank;
}

/* The part of a node that brings a value from another stage, or takes it there. */
static void zfi_keep_end(zf_graph *g, int32_t id, int32_t rank)
{
    zfi_node *node = &g->nodes[id];
    const zfi_node *x = &g->nodes[node->args[0]];
    const bool sends = node->op == ZF_OP_send;
    if (!x->stage || (!sends && (node->op != ZF_OP_bcast || node->stage))) return;
    if (zfi_rank_of_stage(g, x->stage - 1) != rank) node->arg_count = 0;
    else if (sends) node->shape = ZF_SHAPE(0);
}

static bool zfi_has_stages(const zf_graph *g)
{
    for (int32_t i = 0; i < zfi_len(g->order); i++)
        if (g->nodes[g->order[i]].stage) return true;
    return false;
}

/* Leaves out what other stages have. The hash of the whole remains, by which ranks compare. */
static void zfi_keep_stage(zf_graph *g, int32_t rank)
{
    int32_t kept = 0, all;
    zfi_leave_out(g);
    g->whole = g->trial ? 1 : zf_graph_hash(g); /* a trial is never run */
    g->kept = rank, all = zfi_len(g->order);
    for (int32_t i = 0; i < all; i++) {
        const int32_t id = g->order[i];
        const zfi_node *node = &g->nodes[id];
        const bool sends = node->op == ZF_OP_send && zfi_is_of_rank(g, node->args[0], rank);
        if (node->stage && !zfi_is_of_rank(g, id, rank) && !sends) {
            if (node->op == ZF_OP_param || node->op == ZF_OP_state || node->op == ZF_OP_bucket)
                zfi_push(&g->memory, g->away, id);
            continue;
        }
        if (zfi_has(g, id, ZF_OP_COLLECTIVE)) zfi_keep_end(g, id, rank);
        g->order[kept++] = id;
    }
    if (g->order) stbds_header(g->order)->length = (size_t)kept;
    if (g->memory.failed) zfi_graph_nomem(g);
}

ZF_API zf_status zf_keep_stage(zf_graph *g, int32_t stage)
{
    zf_status status = zfi_enter(g, "zf_keep_stage", 0, ZFI_STAGE_PLACED);
    const int32_t stages = status ? 0 : zfi_mesh_size(zfi_mesh_of(g), ZF_OVER_PIPE);
    if (status) return status;
    if (!zfi_has_stages(g))
        return zfi_fail(&g->error, ZF_ERR_STAGE,
                        "zf_keep_stage: the graph has no stages: zf_stages must come before");
    if (stage < 0 || stage >= stages)
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        "zf_keep_stage: stage %d; the graph has stages 0 to %d", (int)stage,
                        (int)stages - 1);
    zfi_keep_stage(g, stage);
    return zfi_leave(g, 0);
}
