/* The rules of stages: a rank along pipe has the nodes of its stage, and those of all.
 *
 *     %3 = linear %1, %2 : f32[4,16] stage=0
 *     %4 = send %3 {world=2 over=pipe to=1} : f32[4,16] stage=1
 *     %6 = linear %4, %5 : f32[4,8] stage=1
 *     %7 = bcast %6 {world=2 over=pipe root=1} : f32[4,8]
 *          output %7 "y"
 *
 *   - a stage is the number of a rank along pipe; with a line "schedule: zb-v chunks=2" a rank has
 *     several stages (base/tasks.c)
 *   - a node of a stage reads what is of its rank, or of all; what is of another is sent before
 *   - a node of all stages reads what is of all; what is of one has a bcast over pipe before
 *   - a send is from the stage of its operand, and its result is of that to which it goes; a bcast
 *     over pipe is from the stage of its operand, and is of all stages, which take part in it
 *   - a value of one stage has no type along pipe: the ranks there do not have it
 *
 * Both ends of a send are one node of one list, of which each rank runs a part. So no ranks wait
 * for one another (ir/ranks.c has the argument). */

static bool zfi_is_over_pipe(const zf_graph *g, int32_t id)
{
    return zfi_has(g, id, ZF_OP_COLLECTIVE) &&
           ZF_INT(&g->nodes[id], all_gather, over) == ZF_OVER_PIPE;
}

static void zfi_check_stage_of_arg(zf_graph *g, int32_t id, int32_t k)
{
    const zfi_node *node = &g->nodes[id];
    const int32_t arg = node->args[k];
    const int here = node->stage - 1, there = g->nodes[arg].stage - 1;
    const int32_t from = there < 0 ? -1 : zfi_rank_of_stage(g, there),
                  to = here < 0 ? -1 : zfi_rank_of_stage(g, here);
    const bool over = zfi_is_over_pipe(g, id);
    if (over && node->op == ZF_OP_send && node->stage &&
        (from != ZF_INT(node, send, from) || to != ZF_INT(node, send, to)))
        zfi_verify_fail(g, id,
                        "it sends from=%lld to=%lld, and %%%d is of stage %d, the result of %d",
                        (long long)ZF_INT(node, send, from), (long long)ZF_INT(node, send, to),
                        (int)arg, there, here);
    else if (over && node->op == ZF_OP_bcast && there >= 0 && from != ZF_INT(node, bcast, root))
        zfi_verify_fail(g, id, "root=%lld, and %%%d is of stage %d",
                        (long long)ZF_INT(node, bcast, root), (int)arg, there);
    else if (there >= 0 && from != to && !over && here >= 0)
        zfi_verify_fail(g, id, "it is of stage %d and reads %%%d of stage %d, which must be sent",
                        here, (int)arg, there);
    else if (there >= 0 && here < 0 && !(over && node->op == ZF_OP_bcast))
        zfi_verify_fail(g, id,
                        "it is of all stages and reads %%%d of stage %d, which a bcast over pipe "
                        "must bring",
                        (int)arg, there);
}

/* Checks a graph whose ranks have been verified. */
static zf_status zfi_verify_stages(zf_graph *g)
{
    const int32_t stages = zfi_pipe_stages(zfi_pipe_of(g));
    const uint8_t pipe = zfi_axis_bit(ZF_OVER_PIPE);
    for (int32_t i = 0; i < zfi_len(g->order) && !g->error.status; i++) {
        const int32_t id = g->order[i];
        const zfi_node *node = &g->nodes[id];
        const zfi_spread *type = &node->spread;
        if (node->stage > stages)
            zfi_verify_fail(g, id,
                            g->chunks > 1 ? "stage=%d, and there are %d stages of ranks along pipe"
                                          : "stage=%d, and there are %d ranks along pipe",
                            node->stage - 1, (int)stages);
        else if (node->stage && (zfi_spread_cut(type) | type->sum | type->differs) & pipe)
            zfi_verify_fail(g, id, "it is of stage %d alone, and so has no type along pipe",
                            node->stage - 1);
        else if (node->stage && node->op != ZF_OP_send && zfi_is_over_pipe(g, id))
            zfi_verify_fail(g, id, "it is of stage %d alone, and all stages take part in it",
                            node->stage - 1);
        for (int32_t k = 0; k < node->arg_count && !g->error.status; k++)
            zfi_check_stage_of_arg(g, id, k);
    }
    return g->error.status;
}
