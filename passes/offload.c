/* offload: what an update reads and writes lies in host memory, where it is computed.
 *
 * requires: zf_zero
 * ensures:  numbers are unchanged, to the last bit where the device is a CPU. A node whose operands
 *           lie in host memory is computed there; `copy` nodes stand where a value is read in the
 *           other space
 *
 *     optimizer   states lie in host memory; or on the disk, from where they are copied to host
 *                 memory and back. A bucket's gradient goes to the host when it is summed, and all
 *                 that the update section computes of its elements is computed there. Parameters
 *                 stay on the device: the update writes a copy, which is copied back
 *
 * before:   %31 = reduce_scatter %30 {world=4} : f32[1024]
 *           update:
 *           %32 = bucket %12 {at=[0] size=4096 world=4} : f32[1024]
 *           sgd %20, %31, %3, %32 {momentum=0.9 world=4 blocks=[0,1] decays=[0]}
 * after:    %31 = reduce_scatter %30 {world=4} : f32[1024]
 *           %40 = copy %31 {to=host} : f32[1024] host
 *           update:
 *           %32 = bucket %12 {at=[0] size=4096 world=4} : f32[1024] host
 *           %41 = copy %20 {to=host} : f32[1024] host     %42 = copy %3 {to=host} : f32[] host
 *           sgd %41, %40, %42, %32 {momentum=0.9 world=4 blocks=[0,1] decays=[0]}
 *           %43 = copy %41, %20 : f32[1024]
 *
 * With several micro-batches, gradients go in front of the updates: only then are they complete.
 * What ranks exchange lies on the device: norms of blocks that were made in host memory are copied.
 *
 * Source: Ren et al. 2021, sections 4 and 5.
 */

static void zfi_run_offload(zfi_offloading *o)
{
    zf_graph *g = o->graph;
    o->order = g->order;
    g->order = NULL;
    zfi_find_states(o);
    zfi_find_counts(o);
    zfi_find_moved(o);
    for (int32_t i = 0; i < zfi_len(o->order) && !g->error.status && !g->memory.failed; i++) {
        int32_t id = o->order[i];
        if (g->nodes[id].update) {
            g->in_update = true;
            zfi_offload_update(o, id);
            continue;
        }
        zfi_keep_node(o, id);
        zfi_offload_gradient(o, id);
    }
    zfi_array_free(&g->memory, o->order);
}

ZF_API zf_status zf_offload(zf_graph *g, const zf_offload_desc *desc)
{
    zfi_offloading o = {.graph = g};
    const char *scope;
    zf_status status = zfi_enter(g, "zf_offload", ZFI_STAGE_RANKS,
                                 ZFI_STAGE_OFFLOAD | ZFI_STAGE_OVERLAP | ZFI_STAGE_PLACED);
    if (status) return status;
    if (desc) o.d = *desc;
    if ((unsigned)o.d.optimizer >= ZF_SPACES)
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        "zf_offload: optimizer is %d; it must be ZF_DEVICE, ZF_HOST or ZF_DISK",
                        (int)o.d.optimizer);
    if (o.d.optimizer == ZF_DEVICE) return zfi_leave(g, ZFI_STAGE_OFFLOAD);
    scope = g->scope;
    o.nodes = (size_t)zfi_len(g->nodes);
    o.copy = zfi_calloc(&g->memory, 3 * o.nodes, sizeof *o.copy);
    o.moved = zfi_calloc(&g->memory, o.nodes, sizeof *o.moved);
    if (o.copy && o.moved) {
        o.version = o.copy + o.nodes, o.copied = o.copy + 2 * o.nodes;
        zfi_run_offload(&o);
    }
    zfi_free(&g->memory, o.copy, 3 * o.nodes * sizeof *o.copy);
    zfi_free(&g->memory, o.moved, o.nodes * sizeof *o.moved);
    g->scope = scope;
    if (g->memory.failed) return zfi_graph_nomem(g);
    return zfi_leave(g, ZFI_STAGE_OFFLOAD);
}
