/* Micro-batches of a step that runs a schedule: their inputs are written first, each into its slot,
 * then zf_step runs all of them.
 *
 *     zf_write, zf_micro, zf_write, zf_micro, ..., zf_write, zf_step      as any step, or
 *     zf_write_micro of micro-batches 0, 1, ..., then zf_step
 *
 * An input keeps its value until it is written, so what is not written is that of the micro-batch
 * before. */

/* Where it says whether an input of a micro-batch was written; `id` 0: of its first input. */
static bool *zfi_wrote_input(const zf_program *p, int64_t micro, int32_t id)
{
    const zf_graph *g = p->graph;
    bool *wrote = p->tasks->wrote + micro * p->tasks->input_count;
    for (int32_t i = 0; id && i < zfi_len(g->order) && g->order[i] != id; i++)
        wrote += g->nodes[g->order[i]].op == ZF_OP_input;
    return wrote;
}

/* Copies the inputs of a micro-batch to another one, except those that were written there. */
static zf_status zfi_copy_micro(zf_program *p, int64_t from, int64_t to)
{
    const zf_graph *g = p->graph;
    const bool *wrote = zfi_wrote_input(p, to, 0);
    zf_status status = ZF_OK;
    for (int32_t i = 0; i < zfi_len(g->order) && !status; i++) {
        const int32_t id = g->order[i];
        const zfi_node *node = &g->nodes[id];
        if (node->op != ZF_OP_input || *wrote++ || node->slots < 2) continue;
        status = p->backend->copy(p->backend->self, zfi_slot_address(p, id, to),
                                  zfi_slot_address(p, id, from), zfi_node_bytes(node),
                                  ZF_DEVICE_TO_DEVICE, &p->error);
    }
    return status;
}

/* The inputs that follow are those of the next micro-batch. */
static zf_status zfi_next_micro(zf_program *p)
{
    const zf_status status = zfi_copy_micro(p, p->micro, p->micro + 1);
    if (!p->micro) p->micro_step = p->store->steps, zfi_take_memory(p);
    if (!status) p->micro++;
    return status;
}

/* Where zf_write_micro has written the last micro-batch, all are. */
static zf_status zfi_pass_written(zf_program *p)
{
    const int64_t last = p->graph->micro_batches - 1;
    zf_status status = ZF_OK;
    bool written = false;
    if (zfi_len(p->unwritten)) return ZF_OK; /* which is an error of the step */
    for (int32_t k = 0; p->tasks && k < p->tasks->input_count; k++)
        written |= zfi_wrote_input(p, last, 0)[k];
    while (written && p->micro < last && !status) status = zfi_next_micro(p);
    return status;
}

/* A step begins anew. */
static void zfi_first_micro(zf_program *p)
{
    if (p->tasks) {
        memset(p->tasks->wrote, 0, zfi_wrote_bytes(p));
        if (p->micro) (void)zfi_copy_micro(p, p->micro, 0);
    }
    p->micro = 0;
}
