/* What a program takes. */

ZF_API zf_program_info zf_program_info_of(const zf_program *p)
{
    zf_program_info info = {.remark = "", .unread = ""};
    const zf_graph *g;
    int64_t persistent = 0, all = 0;
    if (!p) return info;
    g = p->graph;
    if (p->backend->remark) info.remark = p->backend->remark(p->backend->self);
    info.peak_bytes = (size_t)g->peaks[ZF_DEVICE].bytes + p->reserved;
    for (int k = 0; k < ZF_SPACES; k++) {
        const size_t stored = (size_t)(p->arenas[k].stored_end - p->arenas[k].stored_at);
        info.allocated[k] = p->arenas[k].bytes + stored + p->overhead[k];
        info.shared[k] = p->arenas[k].shared;
        all += g->peaks[k].bytes;
        if (k == ZF_DEVICE) info.store_bytes = stored;
    }
    info.bound_bytes = p->bound_bytes;
    info.allocated_bytes = info.allocated[ZF_DEVICE];
    if (p->comm) info.comm_bytes = p->comm->memory;
    info.plan = p->plan;
    info.left_out = g->left_out;
    info.unread = g->unread ? g->unread : "";
    info.counted = p->counted;
    info.counted.upload.bytes += (size_t)p->fetched[0];
    info.counted.read.bytes += (size_t)p->fetched[1];
    info.counted_flops = p->counted_flops;
    memcpy(info.counted_over, p->counted_over, sizeof info.counted_over);
    info.live_bytes = (size_t)g->peaks[ZF_DEVICE].live;
    info.peak_node = g->peaks[ZF_DEVICE].node;
    info.nodes = p->plan.nodes;
    info.flops = p->plan.flops;
    info.param_count = p->plan.parameter_count;
    for (int32_t i = 0; i < info.nodes; i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        size_t bytes = node->placed ? (size_t)zfi_room_of(node->space, node->bytes) : 0;
        const zfi_node *leaf = node->op == ZF_OP_bucket ? &g->nodes[node->args[0]] : node;
        if (leaf->op == ZF_OP_param) info.param_bytes += bytes;
        if (leaf->op == ZF_OP_state) info.state_bytes += bytes;
        if (node->op == ZF_OP_input) info.input_bytes += bytes;
        if (node->op == ZF_OP_cache)
            *(zfi_is_held(node) ? &info.held_bytes : &info.cache_bytes) += bytes;
        if (node->op == ZF_OP_constant) info.constant_bytes += bytes;
        if (zfi_is_persistent(g, node)) persistent += (int64_t)bytes;
    }
    info.work_bytes = (size_t)(all - persistent) + p->reserved;
    return info;
}
