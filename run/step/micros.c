/* Micro-batches of a step that runs a schedule: their inputs are written first, each into its slot,
 * then zf_step runs all of them.
 *
 *     zf_write, zf_micro, zf_write, zf_micro, ..., zf_write, zf_step      as any step, or
 *     zf_write_micro of micro-batches 0, 1, ..., then zf_step
 *
 * An input keeps its value until it is written, so what is not written is that of the micro-batch
 * before. */

/* Copies the inputs of a micro-batch to another one. */
static zf_status zfi_copy_micro(zf_program *p, int64_t from, int64_t to)
{
    const zf_graph *g = p->graph;
    zf_status status = ZF_OK;
    for (int32_t i = 0; i < zfi_len(g->order) && !status; i++) {
        const int32_t id = g->order[i];
        const zfi_node *node = &g->nodes[id];
        if (node->op != ZF_OP_input || node->slots < 2) continue;
        status = p->backend->copy(p->backend->self, zfi_slot_address(p, id, to),
                                  zfi_slot_address(p, id, from), zfi_node_bytes(node),
                                  ZF_DEVICE_TO_DEVICE, &p->error);
    }
    return status;
}

/* The inputs that follow are those of the next micro-batch. */
static zf_status zfi_next_micro(zf_program *p)
{
    zf_status status = ZF_OK;
    if (!p->tasks->wrote[p->micro + 1]) status = zfi_copy_micro(p, p->micro, p->micro + 1);
    if (!p->micro) p->micro_step = p->store->steps;
    if (!status) p->micro++;
    return status;
}

/* Where zf_write_micro has written the last micro-batch, all are. */
static zf_status zfi_pass_written(zf_program *p)
{
    const int64_t last = p->graph->micro_batches - 1;
    zf_status status = ZF_OK;
    while (p->tasks && p->tasks->wrote[last] && p->micro < last && !status)
        status = zfi_next_micro(p);
    return status;
}

/* A step begins anew. */
static void zfi_first_micro(zf_program *p)
{
    const int64_t last = p->graph->micro_batches - 1;
    if (p->tasks) {
        memset(p->tasks->wrote, 0, (size_t)last + 1);
        if (p->micro) (void)zfi_copy_micro(p, p->micro, 0);
    }
    p->micro = 0;
}
