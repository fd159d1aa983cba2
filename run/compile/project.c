/* Projection: the program of a rank has the nodes of its stage (passes/stages/keep.c). */

static int32_t zfi_rank_along_pipe(const zf_program *p)
{
    return zfi_mesh_place(zfi_mesh_of(p->graph), ZF_OVER_PIPE, p->run.rank);
}

static zf_status zfi_project(zf_program *p)
{
    zf_graph *g = p->graph;
    int32_t rank;
    if (!g->whole && !zfi_has_stages(g)) return g->error.status;
    rank = zfi_rank_along_pipe(p);
    if (g->whole && g->kept != rank)
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        "zf_compile: the graph is of stage %d (zf_keep_stage), and this rank is of "
                        "stage %d",
                        (int)g->kept, (int)rank);
    if (g->whole) return g->error.status;
    if (g->stages & ZFI_STAGE_PLACED)
        return zfi_fail(&g->error, ZF_ERR_STAGE,
                        "zf_compile: the graph has stages and places in memory, which each stage "
                        "has of its own: zf_memory must not be run before");
    zfi_keep_stage(g, rank);
    return g->error.status;
}
