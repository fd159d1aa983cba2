/* offload: moves what updates read and write to host memory or a disk, and computes updates in host
 * memory.
 *
 * requires: zf_zero
 * ensures:  numbers are unchanged, to the last bit where the device is a CPU. A node whose operands
 *           lie in host memory is computed there; `copy` nodes stand where a value is read in the
 *           other space
 *
 *     optimizer     states lie in host memory; or on the disk, from where they are copied to host
 *                   memory and back. A bucket's gradient is copied to the host when it is summed;
 *                   nodes of the update section that read it are computed there. The update
 *                   writes a copy of the parameters, which is copied back to where they lie
 *     pieces        pieces.c
 *     parameters    parameters.c; of weights of experts, those with rows: experts.c
 *     gradients     gradients.c
 *     activations   activations.c
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
 * With several micro-batches, gradients are copied before the updates, when they are complete.
 * Ranks exchange values on the device, so block norms that were computed in host memory are copied
 * there.
 *
 * Source: Ren et al. 2021, sections 4 and 5. */

/* Puts a node of the micro section: its operands that lie elsewhere are copied before it. */
static void zfi_offload_micro_node(zfi_offloading *o, int32_t position, int32_t *read)
{
    zf_graph *g = o->graph;
    const int32_t id = o->order[position], count = g->nodes[id].arg_count;
    memcpy(read, g->nodes[id].args, (size_t)count * sizeof *read);
    for (int32_t k = 0; k < count && zfi_reads_operands(&g->nodes[id]) && !g->error.status; k++) {
        const int32_t f = (size_t)read[k] < o->nodes ? o->fetched_of[read[k]] : -1;
        if (f < 0 || (o->fetched[f].activation && position <= o->turn)) continue;
        const int32_t shown = zfi_shown(o, read[k]);
        g->nodes[id].args[k] = shown;
    }
    zfi_keep_micro_node(o, id);
}

/* Puts the micro section; returns the position of its end. */
static int32_t zfi_offload_micro(zfi_offloading *o)
{
    zf_graph *g = o->graph;
    int32_t i = 0, use = 0, most = 1, *read;
    for (int32_t k = 0; k < zfi_len(o->order); k++)
        if (g->nodes[o->order[k]].arg_count > most) most = g->nodes[o->order[k]].arg_count;
    if (!(read = zfi_calloc(&g->memory, (size_t)most, sizeof *read))) return 0;
    zfi_keep_sums(o);
    for (; i < zfi_len(o->order) && !g->nodes[o->order[i]].update; i++) {
        const int32_t id = o->order[i], count = g->nodes[id].arg_count;
        if (g->error.status || g->memory.failed) break;
        if (zfi_is_shown_anew(o, i) || zfi_is_sum_on_disk(g, id)) continue;
        g->scope = g->nodes[id].scope;
        zfi_append_for(g, id);
        zfi_fetch_parameters(o, i, use);
        zfi_fetch_activations(o, i);
        zfi_offload_micro_node(o, i, read);
        use = zfi_drop_parameters(o, i, use);
        zfi_drop_activations(o, i, read, count);
        zfi_send_activations(o, i);
        zfi_offload_gradient(o, id);
    }
    g->in_task = ZFI_TASK_F, g->in_stage = 0;
    if (!g->error.status) zfi_store_gradient(o);
    zfi_free(&g->memory, read, (size_t)most * sizeof *read);
    return i;
}

static void zfi_run_offload(zfi_offloading *o)
{
    zf_graph *g = o->graph;
    int32_t end;
    o->order = g->order;
    g->order = NULL;
    zfi_find_parameters(o);
    zfi_find_activations(o);
    zfi_find_states(o);
    zfi_find_counts(o);
    zfi_find_moved(o);
    zfi_find_whole(o);
    if (g->memory.failed) return;
    end = zfi_offload_micro(o);
    g->in_update = end < zfi_len(o->order);
    for (int32_t i = 0; i < zfi_len(o->order) && !g->error.status && !g->memory.failed; i++) {
        const int32_t id = o->order[i];
        if (i < end && !(zfi_is_shown_anew(o, i) && o->late[id])) continue;
        if (o->taken[id]) continue;
        g->nodes[id].update = true;
        if (zfi_has(g, id, ZF_OP_UPDATE) && zfi_is_cut_up(o, id)) zfi_offload_cut(o, i);
        else zfi_offload_update(o, id);
    }
    for (int32_t i = 0; i < end && !g->error.status && !g->memory.failed; i++)
        if (zfi_is_shown_anew(o, i) && !o->late[o->order[i]]) zfi_replace(g, o->order[i], 0);
}

static const zf_option zfi_offload_options[] = {
#define ZFI_SPACE(member, text)                                                                    \
    ZF_OPTION(zf_offload_desc, CHOICE, member, 0, "device|host|disk", .unit = "host|disk",         \
              .help = text)
    ZFI_SPACE(optimizer, "states and master weights, which the CPU updates"),
    ZFI_SPACE(parameters, "each bucket is copied to the device for its uses"),
    ZFI_SPACE(gradients, "they leave the device when they are summed"),
    ZFI_SPACE(activations, "what the backward pass reads of the forward pass"),
#undef ZFI_SPACE
    ZF_OPTION(zf_offload_desc, BYTES, keep_bytes, 0, NULL, .flag = "keep",
              .with = "parameters|activations",
              .help = "buckets and values of at most so many bytes stay on the device"),
    ZF_OPTION(zf_offload_desc, BYTES, piece_bytes, 0, NULL, .flag = "piece",
              .with = "optimizer|parameters|gradients",
              .help = "maximum of a copy of states while they are updated; of a disk 16M"),
    {.name = NULL}};

static zf_status zfi_check_offload(zf_graph *g, zf_offload_desc *d)
{
    const zf_options one = {.rows = zfi_offload_options, .desc = d};
    const struct {
        const char *name;
        zf_space space;
    } kinds[] = {{"optimizer", d->optimizer},
                 {"parameters", d->parameters},
                 {"gradients", d->gradients},
                 {"activations", d->activations}};
    if (zfi_options_check(&one, 1, false, "zf_offload: ", &g->error)) return g->error.status;
    if ((d->optimizer != ZF_DEVICE || d->parameters != ZF_DEVICE || d->gradients != ZF_DEVICE) &&
        zfi_check_dense(g, "zf_offload", "parameters, gradients and states would be copied whole"))
        return g->error.status;
    for (int k = 0; k < ZFI_COUNT(kinds); k++)
        for (int32_t i = 0; i < zfi_len(g->order) && kinds[k].space != ZF_DEVICE; i++)
            if (g->nodes[g->order[i]].op == ZF_OP_state &&
                ZF_INT(&g->nodes[g->order[i]], state, ranks) &&
                !zfi_is_left((zfi_role)g->nodes[g->order[i]].role))
                return zfi_fail(
                    &g->error, ZF_ERR_ARGUMENT,
                    "zf_offload: with a 1-bit optimizer everything stays on the device; "
                    "%s is %s",
                    kinds[k].name, zf_space_name(kinds[k].space));
    for (int32_t i = 0; i < zfi_len(g->order) && d->parameters != ZF_DEVICE; i++)
        if (zfi_runs_first(&g->nodes[g->order[i]]) && g->nodes[g->order[i]].op == ZF_OP_all_gather)
            return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                            "zf_offload: parameters that are gathered once a step stay on the device "
                            "until it ends (zf_zero_desc.gather)");
    if (d->parameters != ZF_DEVICE && g->world > 1 && (g->zero == 1 || g->zero == 2))
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        "zf_offload: at stage %d each rank gathers all updated parameters on the "
                        "device; they can leave it at stage 3, where each rank brings its shard, "
                        "or at stage 0",
                        (int)g->zero);
    return ZF_OK;
}

ZF_API zf_status zf_offload(zf_graph *g, const zf_offload_desc *desc)
{
    zfi_offloading o = {.graph = g, .left = -1};
    const char *scope;
    size_t nodes;
    zf_status status = zfi_enter(g, "zf_offload", ZFI_STAGE_RANKS,
                                 ZFI_STAGE_OFFLOAD | ZFI_STAGE_OVERLAP | ZFI_STAGE_PLACED);
    if (status) return status;
    if (desc) o.d = *desc;
    if ((status = zfi_check_offload(g, &o.d))) return status;
    scope = g->scope;
    nodes = o.nodes = (size_t)zfi_len(g->nodes);
    o.copy = zfi_calloc(&g->memory, 2 * nodes, sizeof *o.copy);
    o.version = zfi_calloc(&g->memory, 6 * nodes, sizeof *o.version);
    o.moved = zfi_calloc(&g->memory, 4 * nodes, sizeof *o.moved);
    o.bounds = zfi_calloc(&g->memory, nodes, sizeof *o.bounds);
    if (o.copy && o.version && o.moved && o.bounds) {
        o.copied = o.copy + nodes, o.fetched_of = o.version + nodes;
        o.shown_as = o.version + 2 * nodes, o.shown_in = o.version + 3 * nodes;
        o.cut_as = o.version + 4 * nodes, o.norms_of = o.version + 5 * nodes;
        o.late = o.moved + nodes, o.whole = o.moved + 2 * nodes, o.taken = o.moved + 3 * nodes;
        zfi_run_offload(&o);
    }
    zfi_free(&g->memory, o.copy, 2 * nodes * sizeof *o.copy);
    zfi_free(&g->memory, o.version, 6 * nodes * sizeof *o.version);
    zfi_free(&g->memory, o.moved, 4 * nodes * sizeof *o.moved);
    zfi_free(&g->memory, o.bounds, nodes * sizeof *o.bounds);
    zfi_array_free(&g->memory, o.fetched);
    zfi_array_free(&g->memory, o.uses);
    zfi_array_free(&g->memory, o.pieces);
    zfi_array_free(&g->memory, o.order);
    g->scope = scope;
    if (g->memory.failed) return zfi_graph_nomem(g);
    return zfi_leave(g, ZFI_STAGE_OFFLOAD);
}
