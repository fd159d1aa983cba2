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

typedef struct zfi_offloading {
    zf_graph *graph;
    zf_offload_desc d;
    int32_t *order;   /* as it was */
    size_t nodes;     /* there were; by node: */
    int32_t *copy;    /* its copy in the other space; 0: none */
    int32_t *version; /* how often its bytes have been written; */
    int32_t *copied;  /* and had been when the copy was made */
    bool *moved;      /* a gradient: read in host memory */
} zfi_offloading;

/* The leaf lies in the space from now on; of a bucket all that lie in it. */
static void zfi_set_home(zf_graph *g, int32_t id, zf_space space)
{
    zfi_node *node = &g->nodes[id];
    node->space = (uint8_t)space;
    for (int32_t k = 0; node->op == ZF_OP_bucket && k < node->arg_count; k++)
        g->nodes[node->args[k]].space = (uint8_t)space;
}

/* States of updates, and gradients that they read. */
static void zfi_find_offloaded(zfi_offloading *o)
{
    zf_graph *g = o->graph;
    for (int32_t i = 0; i < zfi_len(o->order); i++) {
        const zfi_node *node = &g->nodes[o->order[i]];
        int32_t gradient;
        if (!zfi_has(g, o->order[i], ZF_OP_UPDATE)) continue;
        for (int32_t k = 1; k < node->arg_count; k++)
            if ((zfi_written_args(g, node) >> (k < 31 ? k : 31) & 1) ||
                k == zfi_master_arg(g, node))
                zfi_set_home(g, node->args[k], o->d.optimizer);
        gradient = zfi_raw_gradient(g, node->args[1]);
        if (!zfi_has(g, gradient, ZF_OP_LEAF)) o->moved[gradient] = true;
    }
}

/* A state that updates read and nothing else, but for what moves it on: their count. */
static void zfi_find_counts(zfi_offloading *o)
{
    enum { BY_UPDATE = 1, ELSEWHERE = 2 };
    zf_graph *g = o->graph;
    uint8_t *read = zfi_calloc(&g->memory, o->nodes, sizeof *read);
    for (int32_t i = 0; i < zfi_len(o->order) && read; i++) {
        const zfi_node *node = &g->nodes[o->order[i]];
        for (int32_t k = 0; k < node->arg_count; k++)
            if (zfi_has(g, o->order[i], ZF_OP_UPDATE)) read[node->args[k]] |= BY_UPDATE;
            else if (!(zfi_written_args(g, node) >> (k < 31 ? k : 31) & 1))
                read[node->args[k]] |= ELSEWHERE;
    }
    for (int32_t i = 0; i < zfi_len(o->order) && read; i++)
        if (g->nodes[o->order[i]].op == ZF_OP_state && read[o->order[i]] == BY_UPDATE)
            zfi_set_home(g, o->order[i], ZF_HOST);
    zfi_free(&g->memory, read, o->nodes * sizeof *read);
}

/* Puts a node of before into the new order. */
static void zfi_keep_node(zfi_offloading *o, int32_t id)
{
    if (!o->graph->memory.failed) zfi_push(&o->graph->memory, o->graph->order, id);
}

static bool zfi_has_copy(const zfi_offloading *o, int32_t id)
{
    return o->copy[id] && o->copied[id] == o->version[zfi_bytes_of(o->graph, id)];
}

/* The value in that space: itself, or its copy, which is made unless it is there. */
static int32_t zfi_value_in(zfi_offloading *o, int32_t id, zf_space space)
{
    zf_graph *g = o->graph;
    if ((zf_space)g->nodes[id].space == space) return id;
    if (!zfi_has_copy(o, id)) {
        int32_t made = zfi_append_nodes(g, copy, zfi_with({.i = space}), id);
        o->copy[id] = made;
        o->copied[id] = o->version[zfi_bytes_of(g, id)];
    }
    return o->copy[id];
}

/* Where a node of the update section is computed. */
static zf_space zfi_space_of_update(const zfi_offloading *o, int32_t id)
{
    const zf_graph *g = o->graph;
    const zfi_node *node = &g->nodes[id];
    const uint32_t written = zfi_written_args(g, node);
    zf_space space = ZF_DEVICE;
    if (zfi_has(g, id, ZF_OP_UPDATE)) return ZF_HOST;
    if (zfi_has(g, id, ZF_OP_COLLECTIVE)) return ZF_DEVICE;
    for (int32_t k = 0; k < node->arg_count && k < 31; k++)
        if (written >> k & 1)
            return g->nodes[node->args[k]].space == ZF_DEVICE ? ZF_DEVICE : ZF_HOST;
    for (int32_t k = 0; k < node->arg_count; k++)
        if (g->nodes[node->args[k]].space != ZF_DEVICE || o->moved[node->args[k]]) space = ZF_HOST;
    return space;
}

/* What the node has written to copies goes back. */
static void zfi_copy_back(zfi_offloading *o, int32_t id, const int32_t *before)
{
    zf_graph *g = o->graph;
    const uint32_t written = zfi_written_args(g, &g->nodes[id]);
    const int32_t count = g->nodes[id].arg_count;
    for (int32_t k = 0; k < count && k < 31 && !g->error.status; k++) {
        const int32_t x = before[k], copy = g->nodes[id].args[k];
        if (!(written >> k & 1)) continue;
        o->version[zfi_bytes_of(g, x)]++;
        if (copy == x) continue;
        o->copied[x] = o->version[zfi_bytes_of(g, x)];
        zfi_append_nodes(g, copy, zfi_with({.i = g->nodes[x].space}), copy, x);
    }
}

static void zfi_offload_node(zfi_offloading *o, int32_t id)
{
    zf_graph *g = o->graph;
    zf_space space;
    int32_t before[31] = {0};
    const int32_t count = g->nodes[id].arg_count;
    if (!zfi_record_of(g, id)->cpu) { /* leaves and marks */
        if (zfi_has(g, id, ZF_OP_EFFECT)) g->nodes[id].space = g->nodes[g->nodes[id].args[0]].space;
        if (g->nodes[id].op == ZF_OP_gradient && o->moved[g->nodes[id].args[1]]) {
            const int32_t there = zfi_value_in(o, g->nodes[id].args[1], ZF_HOST);
            g->nodes[id].args[1] = there;
        }
        zfi_keep_node(o, id);
        return;
    }
    space = zfi_space_of_update(o, id);
    g->scope = g->nodes[id].scope;
    for (int32_t k = 0; k < count && !g->error.status; k++) {
        const int32_t x = g->nodes[id].args[k], there = zfi_value_in(o, x, space);
        if (k < ZFI_COUNT(before)) before[k] = x;
        g->nodes[id].args[k] = there;
    }
    g->nodes[id].space = (uint8_t)space;
    zfi_keep_node(o, id);
    zfi_copy_back(o, id, before);
}

static void zfi_run_offload(zfi_offloading *o)
{
    zf_graph *g = o->graph;
    const bool once = g->micro_batches == 1;
    o->order = g->order;
    g->order = NULL;
    zfi_find_offloaded(o);
    zfi_find_counts(o);
    for (int32_t i = 0; i < zfi_len(o->order) && !g->error.status && !g->memory.failed; i++) {
        int32_t id = o->order[i];
        if (g->nodes[id].update) {
            g->in_update = true;
            zfi_offload_node(o, id);
            continue;
        }
        zfi_keep_node(o, id);
        if (!o->moved[id] || !once) continue;
        g->scope = g->nodes[id].scope;
        (void)zfi_value_in(o, id, ZF_HOST);
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
