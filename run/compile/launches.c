/* The launches of a step, with final pointers, in sections that a backend runs at once. */

/* A program that evaluates assigns nothing to the user's states. */
static bool zfi_leaves_state(const zf_program *p, const zfi_node *node)
{
    return node->op == ZF_OP_assign && !zfi_is_held(&p->graph->nodes[node->args[0]]) &&
           p->run.evaluate && !(p->graph->stages & ZFI_STAGE_UPDATES);
}

/* The node has a launch of its own. */
static bool zfi_runs(const zf_graph *g, const zf_program *p, int32_t id)
{
    const zfi_node *node = &g->nodes[id];
    int64_t at;
    int32_t k;
    if (!zfi_record_of(g, id)->cpu || zfi_is_joined(g, node)) return false;
    if (zfi_leaves_state(p, node)) return false;
    k = zfi_viewed(g, node, &at);
    if (k < 0 || zfi_has(g, id, ZF_OP_COLLECTIVE) || zfi_writes_into(g, id, k)) return true;
    if (at < 0)
        at = (int64_t)zfi_node_bytes(node) * zfi_shard_here(&p->run, ZF_INT(node, shard, world));
    return (char *)p->data[node->args[k]] + at != (char *)p->data[id];
}

/* Finds the launches that sum losses over the ranks. */
static void zfi_mark_sums(zf_program *p, const int32_t *launch_of)
{
    const zf_graph *g = p->graph;
    if (p->allow_nan || !(g->stages & ZFI_STAGE_UPDATES) || g->world < 2) return;
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const zfi_node *mark = &g->nodes[g->order[i]];
        int32_t sum = zfi_marks_number(g, mark) ? zfi_sum_after(g, mark->args[0]) : 0;
        if (sum) p->sums_outputs[launch_of[sum]] = true;
    }
}

/* The backend that runs a launch: the one that computes in the space of its operands; for copies
 * the device, or with a device with memory of its own the host, if they are from or to a disk. */
static zf_backend *zfi_runner(const zf_program *p, const zf_launch *l)
{
    const bool host =
        l->op == ZF_OP_copy ? l->disk && !p->backend->host_memory : l->space == ZF_HOST;
    return host ? p->store->host : p->backend;
}

/* The device runs sections with launches in host memory. */
static bool zfi_runs_mixed(const zf_program *p)
{
    return p->backend->run && p->backend->allocate_host;
}

/* The node by whose coins a step leaves out launch n: that of a wait is the one waited for. */
static int32_t zfi_region_of(const zf_program *p, int32_t n)
{
    return p->launches[p->waits_for[n] < 0 ? n : p->waits_for[n]].node;
}

/* The launches are left out by the same steps, or by none; a layer_drop is by itself, since its
 * factor is the step's. */
static bool zfi_same_region(const zf_program *p, int32_t a, int32_t b)
{
    const zfi_regions *r = &p->regions;
    const size_t x = (size_t)zfi_region_of(p, a), y = (size_t)zfi_region_of(p, b);
    if (p->launches[a].op == ZF_OP_layer_drop || p->launches[b].op == ZF_OP_layer_drop)
        return false;
    if (r->how[x] == ZFI_RUNS || r->how[y] == ZFI_RUNS) return r->how[x] == r->how[y];
    return !memcmp(r->sets + x * r->words, r->sets + y * r->words, r->words * sizeof *r->sets);
}

/* The launch ends a section, which a backend runs at once. */
static bool zfi_ends_section(const zf_program *p, int32_t n)
{
    return n == p->micro_end || p->sums_outputs[n] || p->begins[n] ||
           (p->off && !zfi_same_region(p, n - 1, n)) ||
           (!zfi_runs_mixed(p) &&
            zfi_runner(p, &p->launches[n]) != zfi_runner(p, &p->launches[n - 1]));
}

/* Splits the launches into sections. */
static zf_status zfi_make_sections(zf_program *p)
{
    p->section_room = 1, p->one_by_one = false;
    for (int32_t n = 0; n < p->launch_count && p->off; n++)
        p->one_by_one |= p->launches[n].queue != 0;
    for (int32_t n = 1; n < p->launch_count; n++) p->section_room += zfi_ends_section(p, n);
    p->sections = zfi_calloc(&p->memory, (size_t)p->section_room, sizeof *p->sections);
    if (!p->sections) return zfi_graph_nomem(p->graph);
    for (int32_t n = 0; n < p->launch_count; n++) {
        if (!n || zfi_ends_section(p, n))
            p->sections[p->section_count++] =
                (zf_section){.launches = p->launches,
                             .waits_for = p->waits_for,
                             .first = n,
                             .host = zfi_runs_mixed(p) ? p->store->host : NULL};
        p->sections[p->section_count - 1].last = n + 1;
    }
    return ZF_OK;
}

/* The value on the disk that a copy reads or writes, or of which it does so with a piece. Those of
 * a step may share their places. */
static int32_t zfi_disk_value_of(const zf_program *p, const zfi_disk *disk, int32_t copy)
{
    const zf_graph *g = p->graph;
    const zfi_node *node = &g->nodes[copy];
    const int32_t x = zfi_bytes_of(g, node->space == ZF_DISK ? copy : node->args[0]);
    return zfi_disk_find(disk, p->data[x], (int64_t)zfi_node_bytes(&g->nodes[x]));
}

/* The ranks along the axis of an operator, who take part in a collective; the two of a send, or
 * this one alone where a send is between others. */
static zf_group zfi_group_of_launch(const zf_program *p, const zf_launch *l, int64_t over)
{
    const zfi_mesh mesh = zfi_mesh_of(p->graph);
    const zf_group all = zfi_mesh_group(mesh, over, p->run.rank);
    const int32_t place = zfi_mesh_place(mesh, over, p->run.rank);
    int32_t from, to;
    if (l->op != ZF_OP_send) return all;
    from = (int32_t)ZF_INT(l, send, from), to = (int32_t)ZF_INT(l, send, to);
    if (place != from && place != to) return (zf_group){p->run.rank, 1, 1};
    return (zf_group){all.first + (from < to ? from : to) * all.stride,
                      (from < to ? to - from : from - to) * all.stride, 2};
}

/* The address of a node's value, in the slot of a micro-batch. */
static void *zfi_slot_address(const zf_program *p, int32_t id, int64_t micro)
{
    const zfi_node *node = &p->graph->nodes[id];
    char *const data = p->data[id];
    return data && node->slots > 1 ? data + micro % node->slots * node->apart : data;
}

/* Sets where a launch reads and writes in the slots of a micro-batch; `args` has room for its
 * operands and saved values. */
static void zfi_aim_launch(const zf_program *p, zf_launch *l, zf_array *args, int64_t micro)
{
    const zfi_node *node = &p->graph->nodes[l->node];
    for (int32_t k = 0; k < l->arg_count; k++)
        args[k].data = zfi_slot_address(p, node->args[k], micro);
    l->out.data = zfi_slot_address(p, l->node, micro);
    for (int k = 0; l->saved && k < ZF_MAX_SAVED; k++)
        if (node->saved[k])
            args[l->arg_count + k].data = zfi_slot_address(p, node->saved[k], micro);
    l->scratch = node->scratch_bytes ? zfi_address(p, node->space, node->scratch_offset) : NULL;
}

/* The launch of a node, in the slots of a micro-batch, with its operands at *args, which moves
 * on. */
static zf_status zfi_make_launch(zf_program *p, int32_t id, int64_t micro, zf_array **args,
                                 zf_launch *out)
{
    zf_graph *g = p->graph;
    const zf_backend *runs;
    const zf_attribute *over;
    zf_launch l = zfi_launch_of(g, id, *args);
    size_t scratch;
    l.space = (zf_space)g->nodes[id].space;
    if (l.op == ZF_OP_copy && !(l.disk = zfi_store_disk(p->store, p->data[id])))
        l.disk = zfi_store_disk(p->store, p->data[g->nodes[id].args[0]]);
    l.disk_value = l.disk ? 1 + zfi_disk_value_of(p, l.disk, id) : 0;
    l.sums = zfi_reads_sum(g, &g->nodes[id]);
    runs = zfi_runner(p, &l);
    l.backend = runs->self;
    if (zfi_fetches_experts(&g->nodes[id]) && runs->host_memory)
        l.fetched = &p->fetched[l.space == ZF_HOST];
    l.error = &g->error;
    l.comm = p->comm;
    if (p->own_used < p->own_count) p->own_used += zfi_set_own(p, id, &l, &p->own[p->own_used]);
    if ((over = zfi_attribute_of(g, &g->nodes[id], "over")))
        l.group = zfi_group_of_launch(p, &l, over->i);
    if (runs->check && runs->check(runs->self, &l)) return g->error.status;
    scratch = runs->scratch(runs->self, &l);
    if (scratch > (size_t)g->nodes[id].scratch_bytes)
        return zfi_fail(&g->error, ZF_ERR_STAGE,
                        "zf_compile: %%%d %s needs %zu bytes of scratch on this backend, and "
                        "zf_memory gave it %lld "
                        "(zf_memory_desc.backend)",
                        (int)id, g->records[l.op]->name, scratch,
                        (long long)g->nodes[id].scratch_bytes);
    zfi_aim_launch(p, &l, *args, micro);
    *args += l.arg_count + (l.saved ? ZF_MAX_SAVED : 0);
    l.run = &p->run;
    l.error = runs == p->backend ? &p->error : &p->host_error;
    l.queue = g->nodes[id].queue;
    *out = l;
    return ZF_OK;
}

/* Adds the launch of a node, where it has one. */
static zf_status zfi_add_launch(zf_program *p, int32_t id, int64_t micro, zf_array **args,
                                int32_t *launch_of)
{
    const int32_t n = p->launch_count;
    zf_launch *l = &p->launches[n];
    zf_status status;
    if (!zfi_runs(p->graph, p, id)) return ZF_OK;
    if ((status = zfi_make_launch(p, id, micro, args, l))) return status;
    p->waits_for[n] = l->op == ZF_OP_wait ? launch_of[p->graph->nodes[id].args[0]] : -1;
    launch_of[id] = n;
    p->launch_count++;
    if (!zfi_runs_once(&p->graph->nodes[id])) p->micro_end = p->launch_count;
    return ZF_OK;
}

/* Room for the launches of a step whose micro section is there `copies` times. */
static zf_status zfi_open_launches(zf_program *p, int32_t copies)
{
    const zf_graph *g = p->graph;
    int64_t launches = 0, args = 0;
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        const int32_t times = zfi_runs_once(node) ? 1 : copies;
        launches += times;
        args += (int64_t)times * (node->arg_count + (zfi_saves(node) ? ZF_MAX_SAVED : 0));
    }
    if (launches > INT32_MAX / 2 || args > INT32_MAX / 2) return zfi_graph_nomem(p->graph);
    p->launch_room = (int32_t)launches, p->arg_count = (int32_t)args;
    p->launches = zfi_calloc(&p->memory, (size_t)p->launch_room, sizeof *p->launches);
    p->waits_for = zfi_calloc(&p->memory, (size_t)p->launch_room, sizeof *p->waits_for);
    p->sums_outputs = zfi_calloc(&p->memory, (size_t)p->launch_room, sizeof *p->sums_outputs);
    p->begins = zfi_calloc(&p->memory, (size_t)p->launch_room + 1, sizeof *p->begins);
    p->args = zfi_calloc(&p->memory, (size_t)p->arg_count, sizeof *p->args);
    if (p->memory.failed) return zfi_graph_nomem(p->graph);
    return zfi_make_own(p, copies);
}
