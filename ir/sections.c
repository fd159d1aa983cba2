/* Sections of the micro section of a step of stages: what a task of the schedule runs is one piece.
 *
 *     forward:      leaves; then the nodes of tasks F: those of all stages, of stage 0, of stage 1, ...
 *     backward:     of tasks B: those of all stages, of the last stage, ..., of stage 0
 *     weights:      of tasks W, likewise
 *     outputs:      of all stages: what is left to be made equal on all ranks, and outputs
 *
 * A send is with what makes its operand. Sections depend on those above them alone, and so do the
 * stages in one; so sorting, which keeps the order within a stage, changes no number. */

/* Where a node of the micro section belongs: nodes are in the order of this number. */
static int32_t zfi_section_key(const zf_graph *g, int32_t id)
{
    enum { STAGES = 1 << 15 };
    const zfi_node *node = &g->nodes[id];
    const int32_t stage =
        node->op == ZF_OP_send && node->arg_count ? g->nodes[node->args[0]].stage : node->stage;
    if (zfi_runs_once(node)) return ZFI_SECTIONS * STAGES;
    if (zfi_has(g, id, ZF_OP_LEAF)) return -1;
    return node->task * STAGES +
           (!stage || node->task == ZFI_TASK_F || node->task == ZFI_TASK_OUTPUTS ? stage
                                                                                 : STAGES - stage);
}

typedef struct zfi_section_place {
    int32_t key, at, id;
} zfi_section_place;

static int zfi_by_section(const void *left, const void *right)
{
    const zfi_section_place *a = left, *b = right;
    if (a->key != b->key) return a->key < b->key ? -1 : 1;
    return a->at < b->at ? -1 : 1;
}

static bool zfi_is_in_sections(const zf_graph *g)
{
    for (int32_t i = 1; i < zfi_len(g->order); i++)
        if (zfi_section_key(g, g->order[i]) < zfi_section_key(g, g->order[i - 1])) return false;
    return true;
}

/* Puts the nodes of the micro section into their sections. */
static void zfi_sort_sections(zf_graph *g)
{
    const int32_t count = zfi_len(g->order);
    zfi_section_place *places;
    if (zfi_is_in_sections(g)) return;
    places = zfi_calloc(&g->memory, (size_t)count, sizeof *places);
    if (!places) return;
    for (int32_t i = 0; i < count; i++)
        places[i] = (zfi_section_place){zfi_section_key(g, g->order[i]), i, g->order[i]};
    qsort(places, (size_t)count, sizeof *places, zfi_by_section);
    for (int32_t i = 0; i < count; i++) g->order[i] = places[i].id;
    zfi_free(&g->memory, places, (size_t)count * sizeof *places);
}

/* Checks that the nodes are in their sections. */
static zf_status zfi_verify_sections(zf_graph *g)
{
    for (int32_t i = 1; i < zfi_len(g->order) && g->schedule && !g->error.status; i++) {
        const int32_t id = g->order[i], before = g->order[i - 1];
        const zfi_node *node = &g->nodes[id];
        if (zfi_section_key(g, id) >= zfi_section_key(g, before)) continue;
        if (zfi_has(g, id, ZF_OP_LEAF)) zfi_verify_fail(g, id, "leaves are the first of forward:");
        else
            zfi_verify_fail(g, id,
                            "it is of stage %d, below %%%d of stage %d: %s: has the %s stage first",
                            node->stage - 1, (int)before, g->nodes[before].stage - 1,
                            zfi_section_names[node->task],
                            node->task == ZFI_TASK_F ? "first" : "last");
    }
    return g->error.status;
}
