/* stages, tasks: the section of each node of the micro section (ir/sections.c).
 *
 *     forward    what the loss depends on, and what reads only that
 *     backward   what gradients depend on
 *     weights    where the schedule has W: nodes of the backward pass that gradients of parameters
 *                alone read, and that read no parameter: %dw = matmul %dy, %x is one, and
 *                %dx = matmul %dy, %w is none
 *     outputs    outputs, and what they read of other stages */

typedef struct zfi_tasker {
    zf_graph *graph;
    const zfi_layers *layers;
    bool *wanted;  /* by node: a gradient depends on it */
    bool *kept;    /* by node: it is a parameter, or made of parameters alone */
    bool *shared;  /* by node: something reads it that is not for the gradient of a parameter */
} zfi_tasker;

/* The node was there before zf_stages, and the loss depends on it. */
static bool zfi_is_forward(const zfi_tasker *t, int32_t id)
{
    return id < t->layers->nodes && t->layers->forward[id];
}

/* Marks what gradients and updates depend on, and values of parameters. */
static void zfi_mark_wanted(zfi_tasker *t)
{
    const zf_graph *g = t->graph;
    for (int32_t i = zfi_len(g->order); i-- > 0;) {
        const zfi_node *node = &g->nodes[g->order[i]];
        const bool marks = node->update || node->op == ZF_OP_gradient;
        for (int32_t k = 0; k < node->arg_count; k++)
            t->wanted[node->args[k]] |= marks || t->wanted[g->order[i]];
    }
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        bool kept = node->op == ZF_OP_param || (node->arg_count && !node->update);
        for (int32_t k = 0; k < node->arg_count; k++) kept = kept && t->kept[node->args[k]];
        t->kept[g->order[i]] = kept;
    }
}

static uint8_t zfi_task_of(const zfi_tasker *t, int32_t id)
{
    const zf_graph *g = t->graph;
    const zfi_node *node = &g->nodes[id];
    const bool brings = node->op == ZF_OP_bcast && zfi_is_over_pipe(g, id);
    uint8_t task = ZFI_TASK_F;
    if (node->op == ZF_OP_output || brings) return ZFI_TASK_OUTPUTS;
    if (zfi_has(g, id, ZF_OP_LEAF) || zfi_is_forward(t, id)) return ZFI_TASK_F;
    if (id < t->layers->nodes && t->wanted[id] && node->op != ZF_OP_saved && !t->kept[id])
        task = ZFI_TASK_B; /* what zf_stages has made is of the task of what it reads */
    for (int32_t k = 0; k < node->arg_count; k++)
        if (g->nodes[node->args[k]].task > task) task = g->nodes[node->args[k]].task;
    return task;
}

/* A node of the backward pass that can wait for W: readers come before it. */
static bool zfi_is_for_weights(const zfi_tasker *t, int32_t id)
{
    const zf_graph *g = t->graph;
    const zfi_node *node = &g->nodes[id];
    if (node->task != ZFI_TASK_B || t->shared[id] || zfi_has(g, id, ZF_OP_COLLECTIVE)) return false;
    for (int32_t k = 0; k < node->arg_count; k++)
        if (t->kept[node->args[k]] && node->op != ZF_OP_gradient) return false;
    return node->op != ZF_OP_saved;
}

/* Moves them to `weights:`. */
static void zfi_move_weights(zfi_tasker *t)
{
    zf_graph *g = t->graph;
    for (int32_t i = zfi_len(g->order); i-- > 0;) {
        zfi_node *node = &g->nodes[g->order[i]];
        if (node->update) continue;
        if (zfi_is_for_weights(t, g->order[i])) node->task = ZFI_TASK_W;
        for (int32_t k = 0; k < node->arg_count && node->task != ZFI_TASK_W; k++)
            t->shared[node->args[k]] = true;
    }
}

/* Gives each node its section. */
static void zfi_set_tasks(zf_graph *g, const zfi_layers *layers)
{
    const size_t count = (size_t)zfi_len(g->nodes);
    zfi_tasker t = {.graph = g, .layers = layers};
    bool *room = zfi_calloc(&g->memory, 3 * count, sizeof *room);
    if (!room) return;
    t.wanted = room, t.kept = room + count, t.shared = room + 2 * count;
    zfi_mark_wanted(&t);
    for (int32_t i = 0; i < zfi_len(g->order); i++)
        if (!g->nodes[g->order[i]].update)
            g->nodes[g->order[i]].task = zfi_task_of(&t, g->order[i]);
    if (zfi_pipe_has_weights(zfi_pipe_of(g))) zfi_move_weights(&t);
    zfi_free(&g->memory, room, 3 * count * sizeof *room);
}
