/* Programs: a placed graph bound to memory, and the step that runs it.
 *
 * Compiling resolves every node to a zf_launch whose pointers are final, so that a step is a loop
 * over launches and allocates nothing. The arena is the only allocation from the backend.
 *
 *     launches | micro section, once per micro-batch | update section, once per step |
 *              0                                 micro_end                    launch_count
 */

struct zf_program {
    zfi_memory memory;
    zf_graph *graph;
    zf_backend *backend, *own_backend; /* own: made here, freed here */
    zf_program *share;
    void *arena;
    size_t arena_bytes;
    void **data; /* by node */
    size_t nodes;
    zf_launch *launches;
    int32_t *waits_for; /* by launch that is a `wait`: the launch it waits for; else -1 */
    bool *sums_outputs; /* by launch: sums over the ranks what zfi_check_outputs looks at */
    zf_section *sections; /* what a backend runs at once: up to the next such sum, or section */
    int32_t section_count, section_room;
    int32_t launch_count, launch_room, micro_end, arg_count;
    zf_array *args;      /* of all launches */
    const zf_comm *comm; /* NULL: one rank */
    uint64_t *hashes;    /* of the plans, by rank; this rank's first */
    bool agreed;         /* all ranks have the same plan */
    int32_t *unwritten;  /* inputs that are read and have not been written; growing arrays: */
    int32_t *rates;      /* learning rates that are known before the update section */
    zfi_same same;       /* of several ranks */
    bool compared;       /* and have since begun with the same values */
    zf_run run;
    zf_plan plan;
    zf_traffic counted; /* of the step under way */
    int64_t steps;      /* done */
    int64_t micro;      /* micro-batches done of the step under way */
    bool poison, allow_nan;
    bool spoiled; /* of what this rank gave to these sums in this step not all was finite */
    zf_error error;
};

ZF_API const char *zf_program_error(const zf_program *p)
{
    return p ? p->error.text : "there is no program";
}
ZF_API int64_t zf_program_step(const zf_program *p) { return p ? p->steps : 0; }

static void zfi_clear_error(zf_program *p) { p->error = (zf_error){ZF_OK, ""}; }

/* Room for first values, which are made a piece of at most so many elements at a time, and of that
 * so many in one task. */
enum { ZFI_FILL_PIECE = 1 << 19, ZFI_FILL_TASK = 1 << 14 };

typedef struct zfi_fill_room {
    float *work;
    double *piece;
    int64_t count; /* elements of each */
} zfi_fill_room;

/* What this rank has of a leaf: elements [first, first + count), from element `at` of its part of
 * the unit on. */
typedef struct zfi_range_of {
    int64_t first, count, at;
} zfi_range_of;

/* Of operand k of a unit. */
static zfi_range_of zfi_local_range(const zf_program *p, const zfi_node *unit, int32_t k)
{
    int64_t part = zfi_node_count(unit), begin = unit->attributes[2].i > 1 ? part * p->run.rank : 0,
            at = ((const int64_t *)unit->attributes[0].list.data)[k],
            end = at + zfi_node_count(&p->graph->nodes[unit->args[k]]);
    int64_t from = at > begin ? at : begin, until = end < begin + part ? end : begin + part;
    return (zfi_range_of){from - at, until > from ? until - from : 0, from - begin};
}

/* The unit that holds the leaf, and which of its operands that is; NULL: it is not in one. */
static const zfi_node *zfi_unit_of(const zf_graph *g, int32_t leaf, int32_t *operand)
{
    const zfi_node *unit = g->nodes[leaf].held ? &g->nodes[g->nodes[leaf].held] : NULL;
    for (*operand = 0; unit && unit->args[*operand] != leaf; ++*operand)
        ;
    return unit;
}

/* The leaf is cut over the ranks. */
static bool zfi_is_cut(const zf_graph *g, int32_t id)
{
    return g->nodes[id].held && g->nodes[g->nodes[id].held].attributes[2].i > 1;
}

/* --------------------------------------------------------------------------- compiling */

/* A unit of the shared program that holds the same leaves at the same places. */
static zf_status zfi_bind_shared_unit(zf_program *p, int32_t id)
{
    zf_graph *g = p->graph;
    const zf_graph *share = p->share->graph;
    const zfi_node *node = &g->nodes[id], *first = &g->nodes[node->args[0]], *other;
    int32_t leaf = zfi_map_get(share->names, first->name, 0), there = share->nodes[leaf].held;
    bool same;
    other = &share->nodes[there];
    same = there && other->arg_count == node->arg_count && other->dtype == node->dtype &&
           zfi_same_shape(&other->shape, &node->shape) &&
           !memcmp(other->attributes[0].list.data, node->attributes[0].list.data,
                   (size_t)node->arg_count * sizeof(int64_t));
    for (int32_t k = 0; same && k < node->arg_count; k++) {
        const zfi_node *mine = &g->nodes[node->args[k]], *its = &share->nodes[other->args[k]];
        same = !strcmp(mine->name, its->name) && zfi_same_shape(&mine->shape, &its->shape);
    }
    if (!same)
        return zfi_fail(&g->error, ZF_ERR_MISMATCH,
                        "zf_compile: the shared program has no unit like %%%d, with \"%s\" and %d "
                        "others: zf_zero must have been called with the same options",
                        (int)id, first->name, (int)node->arg_count - 1);
    p->data[id] = p->share->data[there];
    return ZF_OK;
}

/* Finds a parameter or state of the shared program by name. */
static zf_status zfi_bind_shared(zf_program *p, int32_t id)
{
    zf_graph *g = p->graph;
    const zfi_node *node = &g->nodes[id], *other;
    int32_t there;
    char here[ZFI_TYPE_TEXT], theirs[ZFI_TYPE_TEXT];
    if (node->op == ZF_OP_unit) return zfi_bind_shared_unit(p, id);
    there = zfi_map_get(p->share->graph->names, node->name, 0);
    other = &p->share->graph->nodes[there];
    if (!there || other->op != node->op)
        return zfi_fail(&g->error, ZF_ERR_MISMATCH,
                        "zf_compile: the shared program has no %s \"%s\"", g->records[node->op]->name,
                        node->name);
    if (other->dtype != node->dtype || !zfi_same_shape(&other->shape, &node->shape))
        return zfi_fail(&g->error, ZF_ERR_MISMATCH,
                        "zf_compile: \"%s\" is %s here and %s in the shared program", node->name,
                        zfi_type_text(here, node->dtype, &node->shape),
                        zfi_type_text(theirs, other->dtype, &other->shape));
    p->data[id] = p->share->data[there];
    return ZF_OK;
}

/* Where each node's value lies: at its place, in the shared program, in its operand if it is a
 * view, in its unit if that is not cut; a leaf of a unit that is cut lies nowhere as a whole. */
static zf_status zfi_bind(zf_program *p)
{
    zf_graph *g = p->graph;
    zf_status status = ZF_OK;
    for (int32_t i = 0; i < zfi_len(g->order) && !status; i++) {
        int32_t id = g->order[i], k;
        const zfi_node *node = &g->nodes[id];
        bool outlives = zfi_is_persistent(g, node) && zfi_is_written(g, node->op);
        int64_t at;
        if (outlives && node->placed == (p->share != NULL))
            return zfi_fail(
                &g->error, ZF_ERR_STAGE, "zf_compile: zf_memory gave %%%d \"%s\" %s", (int)id,
                node->name ? node->name : "unit",
                p->share ? "a place of its own, so it cannot be that of another program "
                           "(zf_memory_desc.share)"
                         : "no place, so it needs a program to share with (zf_compile_desc.share)");
        /* Of 0 bytes */
        if (node->placed) p->data[id] = p->arena ? (char *)p->arena + node->offset : (void *)p;
        else if (outlives) status = zfi_bind_shared(p, id);
        else if ((k = zfi_viewed(g, node, &at)) >= 0)
            p->data[id] = (char *)p->data[node->args[k]] +
                          (at < 0 ? (int64_t)zfi_node_bytes(node) * p->run.rank : at);
        for (k = 0; node->op == ZF_OP_unit && node->attributes[2].i <= 1 && k < node->arg_count;
             k++)
            p->data[node->args[k]] =
                (char *)p->data[id] + ((const int64_t *)node->attributes[0].list.data)[k] *
                                          (int64_t)zf_dtype_size(node->dtype);
    }
    return status;
}

/* The node has work to do when its turn comes. */
static bool zfi_runs(const zf_graph *g, const zf_program *p, int32_t id)
{
    const zfi_node *node = &g->nodes[id];
    int64_t at;
    int32_t k;
    if (!zfi_record_of(g, id)->cpu || zfi_is_joined(g, node)) return false;
    if (zfi_has(g, id, ZF_OP_COLLECTIVE)) return true;
    k = zfi_viewed(g, node, &at);
    if (k < 0) return true;
    if (at < 0) at = (int64_t)zfi_node_bytes(node) * p->run.rank;
    return (char *)p->data[node->args[k]] + at != (char *)p->data[id];
}

/* The mark keeps a scalar float of the micro section. */
static bool zfi_marks_loss(const zf_graph *g, const zfi_node *mark)
{
    const zfi_node *node = &g->nodes[mark->op == ZF_OP_output ? mark->args[0] : 0];
    return mark->op == ZF_OP_output && !mark->update && zfi_is_float(node->dtype) &&
           zfi_node_count(node) == 1;
}

/* The all_reduce whose sums the value is one of, seen through views and casts; 0: none. */
static int32_t zfi_sum_behind(const zf_graph *g, int32_t id)
{
    while (g->nodes[id].op != ZF_OP_all_reduce) {
        const zfi_node *node = &g->nodes[id];
        int64_t at;
        int32_t k = node->op == ZF_OP_cast ? 0 : zfi_viewed(g, node, &at);
        if (k < 0) return 0;
        id = node->args[k];
    }
    return id;
}

/* Finds the launches that sum losses over the ranks. */
static void zfi_mark_sums(zf_program *p, const int32_t *launch_of)
{
    const zf_graph *g = p->graph;
    if (p->allow_nan || !(g->stages & ZFI_STAGE_UPDATES) || g->world < 2) return;
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const zfi_node *mark = &g->nodes[g->order[i]];
        int32_t sum = zfi_marks_loss(g, mark) ? zfi_sum_behind(g, mark->args[0]) : 0;
        if (sum) p->sums_outputs[launch_of[sum]] = true;
    }
}

/* Cuts the launches into sections. */
static zf_status zfi_make_sections(zf_program *p)
{
    p->section_room = 2;
    for (int32_t n = 0; n < p->launch_count; n++) p->section_room += p->sums_outputs[n];
    p->sections = zfi_calloc(&p->memory, (size_t)p->section_room, sizeof *p->sections);
    if (!p->sections) return zfi_graph_nomem(p->graph);
    for (int32_t n = 0; n < p->launch_count; n++) {
        if (!n || n == p->micro_end || p->sums_outputs[n])
            p->sections[p->section_count++] = (zf_section){p->launches, p->waits_for, n, n, NULL};
        p->sections[p->section_count - 1].last = n + 1;
    }
    return ZF_OK;
}

static zf_status zfi_make_launches(zf_program *p, int32_t *launch_of)
{
    zf_graph *g = p->graph;
    zf_array *args;
    for (int32_t i = 0; i < zfi_len(g->order); i++)
        p->arg_count += g->nodes[g->order[i]].arg_count +
                        (zfi_saves(&g->nodes[g->order[i]]) ? ZF_MAX_SAVED : 0);
    p->launch_room = zfi_len(g->order);
    p->launches = zfi_calloc(&p->memory, (size_t)p->launch_room, sizeof *p->launches);
    p->waits_for = zfi_calloc(&p->memory, (size_t)p->launch_room, sizeof *p->waits_for);
    p->sums_outputs = zfi_calloc(&p->memory, (size_t)p->launch_room, sizeof *p->sums_outputs);
    args = p->args = zfi_calloc(&p->memory, (size_t)p->arg_count, sizeof *p->args);
    if (!p->launches || !args || !p->waits_for || !p->sums_outputs) return zfi_graph_nomem(g);
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        int32_t id = g->order[i];
        zf_launch l;
        size_t scratch;
        if (!zfi_runs(g, p, id)) continue;
        l = zfi_launch_of(g, id, args);
        l.backend = p->backend->self;
        l.error = &g->error;
        l.comm = p->comm;
        if (p->backend->check && p->backend->check(p->backend->self, &l)) return g->error.status;
        scratch = p->backend->scratch(p->backend->self, &l);
        if (scratch > (size_t)g->nodes[id].scratch_bytes)
            return zfi_fail(&g->error, ZF_ERR_STAGE,
                            "zf_compile: %%%d %s needs %zu bytes of scratch on this backend, and "
                            "zf_memory gave it %lld "
                            "(zf_memory_desc.backend)",
                            (int)id, g->records[l.op]->name, scratch,
                            (long long)g->nodes[id].scratch_bytes);
        for (int32_t k = 0; k < l.arg_count; k++) args[k].data = p->data[g->nodes[id].args[k]];
        args += l.arg_count;
        l.out.data = p->data[id];
        for (int k = 0; l.saved && k < ZF_MAX_SAVED; k++, args++)
            if (g->nodes[id].saved[k]) args->data = p->data[g->nodes[id].saved[k]];
        l.scratch =
            g->nodes[id].scratch_bytes ? (char *)p->arena + g->nodes[id].scratch_offset : NULL;
        l.run = &p->run;
        l.error = &p->error;
        l.queue = g->nodes[id].queue;
        p->waits_for[p->launch_count] = l.op == ZF_OP_wait ? launch_of[g->nodes[id].args[0]] : -1;
        launch_of[id] = p->launch_count;
        if (!g->nodes[id].update) p->micro_end = p->launch_count + 1;
        p->launches[p->launch_count++] = l;
    }
    zfi_mark_sums(p, launch_of);
    return zfi_make_sections(p);
}

/* Elements [first, first + count) of a leaf, of which a task makes ZFI_FILL_TASK. */
typedef struct zfi_filling {
    const zf_program *program;
    const zfi_node *node;
    const zfi_fill_room *room;
    int64_t first, count;
} zfi_filling;

static void zfi_fill_task(void *context, int64_t index)
{
    const zfi_filling *f = context;
    int64_t at = index * ZFI_FILL_TASK, n = zfi_min(f->count - at, ZFI_FILL_TASK);
    char *to = (char *)f->room->piece + at * (int64_t)zf_dtype_size(f->node->dtype);
    zfi_first_values(f->program->graph, f->node, f->program->run.seed, f->first + at, n,
                     f->room->work + at, to);
}

/* Makes elements [first, first + count) of a leaf in the room, on the backend's threads. */
static void zfi_make_piece(const zf_program *p, const zfi_node *node, int64_t first, int64_t count,
                           const zfi_fill_room *room)
{
    zfi_filling f = {p, node, room, first, count};
    int64_t tasks = (count + ZFI_FILL_TASK - 1) / ZFI_FILL_TASK;
    if (tasks > 1 && p->backend->share) {
        p->backend->share(p->backend->self, tasks, zfi_fill_task, &f);
        return;
    }
    for (int64_t k = 0; k < tasks; k++) zfi_fill_task(&f, k);
}

/* The leaf's elements [first, first + count) into memory at `to`, a piece at a time. */
static zf_status zfi_fill_leaf(zf_program *p, int32_t id, int64_t first, int64_t count, char *to,
                               zfi_fill_room *r)
{
    const zfi_node *node = &p->graph->nodes[id];
    int64_t size = (int64_t)zf_dtype_size(node->dtype);
    zf_status status = ZF_OK;
    for (int64_t at = 0; at < count && !status; at += r->count) {
        int64_t n = count - at < r->count ? count - at : r->count;
        zfi_make_piece(p, node, first + at, n, r);
        status = p->backend->copy(p->backend->self, to + at * size, r->piece, (size_t)(n * size),
                                  ZF_HOST_TO_DEVICE, &p->graph->error);
    }
    return status;
}

/* This rank's part of a unit: zeros, and the leaves' values where they are. */
static zf_status zfi_fill_unit(zf_program *p, int32_t id, zfi_fill_room *room)
{
    const zfi_node *node = &p->graph->nodes[id];
    size_t bytes = zfi_node_bytes(node), size = zf_dtype_size(node->dtype), n;
    const size_t most = (size_t)room->count * sizeof *room->piece;
    char *to = p->data[id];
    zf_status status = ZF_OK;
    memset(room->piece, 0, most);
    for (size_t at = 0; at < bytes && !status; at += n) {
        n = bytes - at < most ? bytes - at : most;
        status = p->backend->copy(p->backend->self, to + at, room->piece, n, ZF_HOST_TO_DEVICE,
                                  &p->graph->error);
    }
    for (int32_t k = 0; k < node->arg_count && !status; k++) {
        zfi_range_of r = zfi_local_range(p, node, k);
        if (r.count > 0)
            status = zfi_fill_leaf(p, node->args[k], r.first, r.count, to + (size_t)r.at * size,
                                   room);
    }
    return status;
}

/* Whether the node has memory that outlives a step, and so first values. */
static bool zfi_has_first_values(const zf_graph *g, const zfi_node *node)
{
    return node->placed && zfi_is_persistent(g, node);
}

/* Writes the first values of everything persistent. */
static zf_status zfi_fill(zf_program *p)
{
    zf_graph *g = p->graph;
    zfi_fill_room room = {.count = 1};
    zf_status status = ZF_OK;
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        if (zfi_has_first_values(g, node)) room.count = zfi_max(room.count, zfi_node_count(node));
    }
    room.count = zfi_min(room.count, ZFI_FILL_PIECE);
    room.work = zfi_calloc(&p->memory, (size_t)room.count, sizeof *room.work);
    room.piece = zfi_calloc(&p->memory, (size_t)room.count, sizeof *room.piece);
    if (!room.work || !room.piece) status = zfi_graph_nomem(g);
    for (int32_t i = 0; i < zfi_len(g->order) && !status; i++) {
        int32_t id = g->order[i];
        const zfi_node *node = &g->nodes[id];
        if (!zfi_has_first_values(g, node)) continue;
        if (node->op == ZF_OP_unit) status = zfi_fill_unit(p, id, &room);
        else status = zfi_fill_leaf(p, id, 0, zfi_node_count(node), p->data[id], &room);
    }
    zfi_free(&p->memory, room.work, (size_t)room.count * sizeof *room.work);
    zfi_free(&p->memory, room.piece, (size_t)room.count * sizeof *room.piece);
    return status;
}

/* An input that updates read: a learning rate. */
static bool zfi_is_for_updates(const zf_graph *g, int32_t id)
{
    if (g->nodes[id].op != ZF_OP_input) return false;
    for (int32_t i = zfi_len(g->order); i-- > 0 && g->nodes[g->order[i]].update;)
        for (int32_t k = 0; k < g->nodes[g->order[i]].arg_count; k++)
            if (g->nodes[g->order[i]].args[k] == id) return true;
    return false;
}

/* Lists the inputs that somebody reads, and the learning rates. */
static zf_status zfi_list_inputs(zf_program *p)
{
    enum { READ = 1, RATE = 2 };
    zf_graph *g = p->graph;
    uint8_t *seen = zfi_calloc(&p->memory, p->nodes, sizeof *seen);
    if (!seen) return zfi_graph_nomem(g);
    for (int32_t i = 0; i < zfi_len(g->order) && !p->memory.failed; i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        for (int32_t k = 0; k < node->arg_count && !p->memory.failed; k++) {
            int32_t id = node->args[k];
            seen[id] |= READ;
            if (!k || k != g->records[node->op]->rate || g->nodes[id].update || seen[id] & RATE)
                continue;
            zfi_push(&p->memory, p->rates, id);
            seen[id] |= RATE;
        }
    }
    for (int32_t i = 0; i < zfi_len(g->order) && !p->memory.failed; i++)
        if (seen[g->order[i]] && g->nodes[g->order[i]].op == ZF_OP_input &&
            zfi_node_bytes(&g->nodes[g->order[i]]))
            zfi_push(&p->memory, p->unwritten, g->order[i]);
    zfi_free(&p->memory, seen, p->nodes * sizeof *seen);
    return p->memory.failed ? zfi_graph_nomem(g) : ZF_OK;
}

/* Lists what ranks compare, and makes room for it. */
static zf_status zfi_list_same(zf_program *p)
{
    const zf_graph *g = p->graph;
    zfi_same *s = &p->same;
    for (int32_t i = 0; i < zfi_len(g->order) && !p->memory.failed; i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        if (node->op != ZF_OP_param && node->op != ZF_OP_state && !zfi_is_for_updates(g, g->order[i]))
            continue;
        zfi_push(&p->memory, s->values,
                 ((zfi_same_leaf){node, g->order[i],
                                   zfi_is_cut(g, g->order[i]) ? NULL : p->data[g->order[i]], 0}));
        if (zfi_node_bytes(node) > s->piece_bytes) s->piece_bytes = zfi_node_bytes(node);
    }
    if (s->piece_bytes > ZFI_SAME_PIECE) s->piece_bytes = ZFI_SAME_PIECE;
    s->piece = zfi_calloc(&p->memory, s->piece_bytes, 1);
    s->records = zfi_calloc(&p->memory, (size_t)g->world * ZFI_SAME_FIELDS, sizeof *s->records);
    return p->memory.failed ? zfi_graph_nomem(p->graph) : ZF_OK;
}

/* The communicator is one of as many ranks as the graph was cut for. */
static zf_status zfi_check_comm(zf_graph *g, const zf_comm *comm)
{
    int32_t world = comm ? comm->world : 1;
    if (comm && (comm->rank < 0 || comm->rank >= world))
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT, "zf_compile: rank %d of a world of %d",
                        (int)comm->rank, (int)world);
    if (world == g->world) return ZF_OK;
    return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                    "zf_compile: the graph is for %d ranks (zf_zero_desc.world), the communicator "
                    "(zf_compile_desc.comm) has %d",
                    (int)g->world, (int)world);
}

static zf_status zfi_compile(zf_program *p, const zf_compile_desc *d)
{
    zf_graph *g = p->graph;
    zf_status status = zfi_check_comm(g, d->comm);
    int32_t *launch_of;
    if (status) return status;
    if (!d->backend) {
        p->own_backend =
            zf_cpu_backend(&(zf_cpu_desc){.allocator = g->memory.allocator}, &g->error);
        if (!p->own_backend) return g->error.status;
    }
    p->backend = d->backend ? d->backend : p->own_backend;
    if (!(g->stages & ZFI_STAGE_PLACED))
        status = zf_memory(g, &(zf_memory_desc){p->backend, d->no_reuse, d->share != NULL});
    if (!status && d->verify && !(status = zfi_verify(g))) status = zfi_verify_plan(g);
    if (status || (status = zfi_check_limit(g, "zf_compile", d->memory_limit))) return status;
    if ((status = zf_graph_plan(g, &p->plan))) return status;
    p->arena_bytes = (size_t)g->peak;
    if (p->arena_bytes) {
        p->arena = p->backend->allocate(p->backend->self, p->arena_bytes, &g->error);
        if (!p->arena) return g->error.status;
    }
    if (g->stages & ZFI_STAGE_OVERLAP &&
        (status = p->backend->queues(p->backend->self, ZFI_QUEUES, &g->error)))
        return status;
    p->nodes = (size_t)zfi_len(g->nodes);
    p->data = zfi_calloc(&p->memory, p->nodes, sizeof *p->data);
    if (!p->data) return zfi_graph_nomem(g);
    if ((status = zfi_bind(p))) return status;
    launch_of = zfi_calloc(&p->memory, p->nodes, sizeof *launch_of);
    if (!launch_of) return zfi_graph_nomem(g);
    status = zfi_make_launches(p, launch_of);
    zfi_free(&p->memory, launch_of, p->nodes * sizeof *launch_of);
    if (status) return status;
    if (p->comm) {
        p->hashes = zfi_calloc(&p->memory, (size_t)g->world, sizeof *p->hashes);
        if (!p->hashes) return zfi_graph_nomem(g);
        p->hashes[p->run.rank] = zf_graph_hash(g);
    }
    if ((status = zfi_list_inputs(p))) return status;
    if (p->comm && g->world > 1 && (status = zfi_list_same(p))) return status;
    p->poison = d->poison;
    return zfi_fill(p);
}

ZF_API zf_program *zf_compile(zf_graph *g, const zf_compile_desc *desc)
{
    zf_compile_desc d = desc ? *desc : (zf_compile_desc){.seed = 0};
    zf_program *p;
    if (!g || g->error.status) return NULL;
    p = zfi_calloc(&g->memory, 1, sizeof *p);
    if (!p) return zfi_graph_nomem(g), NULL;
    p->memory = zfi_memory_of(&g->memory.allocator);
    p->graph = g;
    p->share = d.share;
    p->run.seed = d.seed;
    p->run.evaluate = d.evaluate;
    p->run.world = g->world;
    p->comm = d.comm;
    p->run.rank = d.comm ? d.comm->rank : 0;
    p->allow_nan = d.allow_nan;
    if (zfi_compile(p, &d)) {
        zf_program_free(p);
        return NULL;
    }
    return p;
}

ZF_API void zf_program_free(zf_program *p)
{
    zfi_memory memory;
    if (!p) return;
    memory = p->memory;
    for (int32_t k = 0; k < p->section_count; k++)
        if (p->sections[k].kept) p->backend->forget(p->backend->self, &p->sections[k]);
    if (p->arena) p->backend->release(p->backend->self, p->arena, p->arena_bytes);
    zfi_free(&memory, p->sections, (size_t)p->section_room * sizeof *p->sections);
    zfi_free(&memory, p->data, p->nodes * sizeof *p->data);
    zfi_free(&memory, p->launches, (size_t)p->launch_room * sizeof *p->launches);
    zfi_free(&memory, p->waits_for, (size_t)p->launch_room * sizeof *p->waits_for);
    zfi_free(&memory, p->sums_outputs, (size_t)p->launch_room * sizeof *p->sums_outputs);
    if (p->hashes) zfi_free(&memory, p->hashes, (size_t)p->run.world * sizeof *p->hashes);
    zfi_array_free(&memory, p->unwritten);
    zfi_array_free(&memory, p->rates);
    zfi_same_free(&p->same, &memory, p->run.world);
    zfi_free(&memory, p->args, (size_t)p->arg_count * sizeof *p->args);
    zf_backend_free(p->own_backend);
    zfi_free(&memory, p, sizeof *p);
}

/* --------------------------------------------------------------------- reading, writing */

/* The node that `x` names, after checking that the program can hand out or take its bytes. */
static int32_t zfi_accessible(zf_program *p, zf_tensor x, size_t bytes, const char *call,
                              bool writing)
{
    zf_graph *g = p->graph;
    int32_t id = x.graph == g ? zfi_resolve(g, x.id) : 0;
    const zfi_node *node = &g->nodes[id];
    char type[ZFI_TYPE_TEXT];
    bool known;
    zfi_clear_error(p);
    if (!id)
        return zfi_fail(&p->error, ZF_ERR_ARGUMENT,
                        "%s: the tensor is not one of the program's graph", call),
               0;
    known = (zfi_is_persistent(g, node) || node->held) && node->op != ZF_OP_unit &&
            !(writing && node->op == ZF_OP_constant);
    for (int32_t i = 0; i < zfi_len(g->order) && !known && !writing; i++)
        known = g->nodes[g->order[i]].op == ZF_OP_output && g->nodes[g->order[i]].args[0] == id;
    if (!known)
        return zfi_fail(&p->error, ZF_ERR_ARGUMENT,
                        writing ? "%s: %%%d %s is no input, param or state"
                                : "%s: %%%d %s is not kept; zf_output keeps a value",
                        call, (int)id, g->records[node->op]->name),
               0;
    if (bytes != zfi_node_bytes(node))
        return zfi_fail(&p->error, ZF_ERR_ARGUMENT, "%s: %%%d %s is %s, %zu bytes, not %zu", call,
                        (int)id, node->name ? node->name : g->records[node->op]->name,
                        zfi_type_text(type, node->dtype, &node->shape), zfi_node_bytes(node),
                        bytes),
               0;
    return id;
}

/* All of the tensor into what this rank has of it. */
static zf_status zfi_write_node(zf_program *p, int32_t id, const char *from)
{
    const zfi_node *unit;
    int32_t k;
    int64_t size = (int64_t)zf_dtype_size(p->graph->nodes[id].dtype);
    zfi_range_of r;
    if (!zfi_is_cut(p->graph, id))
        return p->backend->copy(p->backend->self, p->data[id], from,
                                zfi_node_bytes(&p->graph->nodes[id]), ZF_HOST_TO_DEVICE, &p->error);
    unit = zfi_unit_of(p->graph, id, &k);
    r = zfi_local_range(p, unit, k);
    return p->backend->copy(
        p->backend->self, (char *)p->data[p->graph->nodes[id].held] + r.at * size,
        from + r.first * size, (size_t)(r.count * size), ZF_HOST_TO_DEVICE, &p->error);
}

/* The states that start as the parameter does start anew as `from`. */
static zf_status zfi_write_masters(zf_program *p, int32_t param, const void *from)
{
    const zf_graph *g = p->graph;
    zf_status status = ZF_OK;
    for (int32_t i = 0; i < zfi_len(g->order) && !status; i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        size_t count = (size_t)zfi_node_count(node), size = zf_dtype_size(node->dtype);
        void *wide;
        if (node->op != ZF_OP_state || !node->arg_count || node->args[0] != param) continue;
        if (!(wide = zfi_calloc(&p->memory, count, size))) return zfi_nomem(&p->error);
        zf_convert(wide, node->dtype, from, g->nodes[param].dtype, count);
        status = zfi_write_node(p, g->order[i], wide);
        zfi_free(&p->memory, wide, count * size);
    }
    return status;
}

ZF_API zf_status zf_write(zf_program *p, zf_tensor x, const void *data, size_t bytes)
{
    int32_t id;
    zf_status status;
    if (!p) return ZF_ERR_ARGUMENT;
    id = zfi_accessible(p, x, bytes, "zf_write", true);
    if (!id) return p->error.status;
    if (!data && bytes) return zfi_fail(&p->error, ZF_ERR_ARGUMENT, "zf_write: data is NULL");
    status = zfi_write_node(p, id, data);
    if (!status && p->graph->nodes[id].op == ZF_OP_param) status = zfi_write_masters(p, id, data);
    for (int32_t k = 0; k < zfi_len(p->unwritten) && !status; k++)
        if (p->unwritten[k] == id) {
            p->unwritten[k] = stbds_arrlast(p->unwritten);
            stbds_header(p->unwritten)->length--;
        }
    for (int32_t k = 0; k < zfi_len(p->same.values) && !status; k++)
        if (p->same.values[k].id == id) p->same.values[k].sum = zfi_crc32c(0, data, bytes);
    return status;
}

/* A leaf that is cut: each rank in turn sends what it has of it. */
static zf_status zfi_read_cut(zf_program *p, int32_t id, char *data)
{
    int32_t k;
    const zfi_node *unit = zfi_unit_of(p->graph, id, &k);
    int64_t size = (int64_t)zf_dtype_size(unit->dtype);
    zf_program other = *p;
    for (int32_t r = 0; r < p->run.world; r++) {
        zfi_range_of range;
        zf_collective c = {.op = ZF_OP_bcast, .node = id, .dtype = unit->dtype, .root = r};
        other.run.rank = r;
        range = zfi_local_range(&other, unit, k);
        if (!range.count) continue;
        c.count = range.count;
        c.out = data + range.first * size;
        c.in =
            r == p->run.rank ? (char *)p->data[p->graph->nodes[id].held] + range.at * size : c.out;
        if (p->comm->run(p->comm->self, &c, &p->error)) return p->error.status;
    }
    return ZF_OK;
}

ZF_API zf_status zf_read(zf_program *p, zf_tensor x, void *data, size_t bytes)
{
    int32_t id;
    if (!p) return ZF_ERR_ARGUMENT;
    id = zfi_accessible(p, x, bytes, "zf_read", false);
    if (!id) return p->error.status;
    if (!data && bytes) return zfi_fail(&p->error, ZF_ERR_ARGUMENT, "zf_read: data is NULL");
    if (p->backend->synchronize(p->backend->self, &p->error)) return p->error.status;
    if (zfi_is_cut(p->graph, id) && !p->comm->run)
        return zfi_fail(&p->error, ZF_ERR_ARGUMENT,
                        "zf_read: %%%d is cut over the ranks, which the communicator cannot ask "
                        "(zf_comm.run is NULL); zf_lockstep_read can",
                        (int)id);
    if (zfi_is_cut(p->graph, id)) return zfi_read_cut(p, id, data);
    return p->backend->copy(p->backend->self, data, p->data[id], bytes, ZF_DEVICE_TO_HOST,
                            &p->error);
}

/* ------------------------------------------------------------------------------ running */

static bool zfi_share_bytes(const zf_array *a, const zf_array *b)
{
    const char *x = a->data, *y = b->data;
    size_t x_bytes = (size_t)zfi_count(a) * zf_dtype_size(a->dtype);
    size_t y_bytes = (size_t)zfi_count(b) * zf_dtype_size(b->dtype);
    return x && y && x < y + y_bytes && y < x + x_bytes;
}

/* The launch makes some of the bytes of `x`. */
static bool zfi_makes(const zf_launch *l, const zf_array *x)
{
    bool makes = zfi_share_bytes(x, &l->out);
    for (int k = 0; l->saved && k < ZF_MAX_SAVED; k++) makes |= zfi_share_bytes(x, &l->saved[k]);
    return makes;
}

/* Something still wants the bytes of `x` after launch n: a later launch, before they are written
 * again, or an output. */
static bool zfi_wanted(const zf_program *p, const zf_array *x, int32_t n)
{
    const zf_graph *g = p->graph;
    if (zfi_makes(&p->launches[n], x)) return true;
    for (int32_t m = 0; m < p->launch_count; m++) /* what is under way on another queue */
        if (p->waits_for[m] >= 0 && p->waits_for[m] < n && m > n) {
            const zf_launch *l = &p->launches[p->waits_for[m]];
            if (zfi_share_bytes(x, &l->out)) return true;
            for (int32_t k = 0; k < l->arg_count; k++)
                if (zfi_share_bytes(x, &l->args[k])) return true;
        }
    for (int32_t i = 0; n < p->micro_end && i < zfi_len(g->order); i++) { /* the next micro-batch */
        const zfi_node *node = &g->nodes[g->order[i]];
        zf_array sum = {p->data[g->order[i]], node->dtype, node->shape};
        if (node->op == ZF_OP_accumulator && zfi_share_bytes(x, &sum)) return true;
    }
    for (int32_t m = n + 1; m < p->launch_count; m++) {
        for (int32_t k = 0; k < p->launches[m].arg_count; k++)
            if (zfi_share_bytes(x, &p->launches[m].args[k])) return true;
        if (zfi_makes(&p->launches[m], x)) return false;
    }
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        zf_array value;
        if (node->op != ZF_OP_output && !zfi_is_persistent(g, node)) continue;
        if (node->op == ZF_OP_output) node = &g->nodes[node->args[0]];
        value = (zf_array){p->data[node - g->nodes], node->dtype, node->shape};
        if (zfi_share_bytes(x, &value)) return true;
    }
    return false;
}

/* Fills the operands of launch n that nothing wants any more with NaN, so that a read of the dead
 * shows in the numbers. Looks at bytes alone, not at the lives that placed them. Quadratic: for
 * tests. */
static void zfi_poison(zf_program *p, int32_t n)
{
    unsigned char nan[4096];
    memset(nan, 0xff, sizeof nan);
    for (int32_t k = 0; k < p->launches[n].arg_count; k++) {
        const zf_array *x = &p->launches[n].args[k];
        size_t bytes = (size_t)zfi_count(x) * zf_dtype_size(x->dtype);
        if (zfi_wanted(p, x, n)) continue;
        for (size_t at = 0; at < bytes; at += sizeof nan)
            p->backend->copy(p->backend->self, (char *)x->data + at, nan,
                             bytes - at < sizeof nan ? bytes - at : sizeof nan, ZF_HOST_TO_DEVICE,
                             NULL);
    }
}

/* Before launch n: counts what it moves if it is a collective, and if it sums losses over the
 * ranks, notes whether those of this rank are numbers. */
static zf_status zfi_note_launch(zf_program *p, int32_t n)
{
    enum { PIECE = 64 };
    const zf_launch *l = &p->launches[n];
    const zf_array *x = l->args;
    double room[PIECE];
    zf_array piece = {.data = room};
    zf_collective c;
    if (!(p->graph->records[l->op]->traits & ZF_OP_COLLECTIVE)) return ZF_OK;
    c = zf_collective_of(l);
    zfi_count_calls(&p->counted, c.op, c.dtype, c.count, l->attributes[0].i, 1);
    if (!p->sums_outputs[n]) return ZF_OK;
    piece.dtype = x->dtype;
    for (int64_t at = 0; at < c.count && !p->spoiled; at += PIECE) {
        int64_t size = (int64_t)zf_dtype_size(x->dtype),
                m = c.count - at < PIECE ? c.count - at : PIECE;
        zf_status status = p->backend->copy(p->backend->self, room, (char *)x->data + at * size,
                                            (size_t)(m * size), ZF_DEVICE_TO_HOST, &p->error);
        if (status) return status;
        for (int64_t i = 0; i < m; i++) p->spoiled |= !isfinite(zfi_get(&piece, i));
    }
    return ZF_OK;
}

/* Launches n, or waits for the one that it waits for. */
static zf_status zfi_launch(zf_program *p, int32_t n)
{
    const zf_launch *l = &p->launches[n];
    zf_status status;
    if (l->op == ZF_OP_wait) {
        n = p->waits_for[n];
        status = p->backend->wait(p->backend->self, &p->launches[n]);
    } else {
        if ((status = zfi_note_launch(p, n))) return status;
        status = p->backend->launch(p->backend->self, l);
        if (l->queue) return status; /* what it reads is wanted until it has been waited for */
    }
    if (!status && p->poison) zfi_poison(p, n);
    return status;
}

/* Launches [first, last): the micro section, or the update section. */
static zf_status zfi_run_launches(zf_program *p, int32_t first, int32_t last)
{
    zf_status status = ZF_OK;
    if (!p->backend->run || p->poison) {
        for (int32_t n = first; n < last && !status; n++) status = zfi_launch(p, n);
        return status;
    }
    for (int32_t k = 0; k < p->section_count && !status; k++) {
        zf_section *s = &p->sections[k];
        if (s->first < first || s->last > last) continue;
        for (int32_t n = s->first; n < s->last && !status; n++) status = zfi_note_launch(p, n);
        if (!status) status = p->backend->run(p->backend->self, s, &p->error);
    }
    return status;
}

static void zfi_begin_micro(zf_program *p)
{
    p->run.step = p->steps + 1;
    p->run.micro = p->micro;
    p->run.slot = p->micro * p->run.world + p->run.rank;
    if (p->micro) return;
    memset(&p->counted, 0, sizeof p->counted);
    p->spoiled = false;
}

/* The first scalar output of the micro section that is not finite; NULL. */
static const zfi_node *zfi_bad_output(zf_program *p)
{
    const zf_graph *g = p->graph;
    for (int32_t i = 0; i < zfi_len(g->order) && !g->nodes[g->order[i]].update; i++) {
        const zfi_node *mark = &g->nodes[g->order[i]], *node;
        double number[1] = {0};
        zf_array value = {number, ZF_F64, ZF_SCALAR};
        if (!zfi_marks_loss(g, mark)) continue;
        node = &g->nodes[mark->args[0]];
        value.dtype = node->dtype;
        if (p->backend->copy(p->backend->self, number, p->data[mark->args[0]],
                             zf_dtype_size(node->dtype), ZF_DEVICE_TO_HOST, &p->error) ||
            !isfinite(zfi_get(&value, 0)))
            return mark;
    }
    return NULL;
}

/* Before the update section: the learning rates are numbers. */
static zf_status zfi_check_rates(zf_program *p)
{
    for (int32_t k = 0; k < zfi_len(p->rates); k++) {
        const zfi_node *node = &p->graph->nodes[p->rates[k]];
        double number[1] = {0};
        zf_array value = {number, node->dtype, ZF_SCALAR};
        zf_status status =
            p->backend->copy(p->backend->self, number, p->data[p->rates[k]],
                             zf_dtype_size(node->dtype), ZF_DEVICE_TO_HOST, &p->error);
        if (status) return status;
        if (!isfinite(zfi_get(&value, 0)))
            return zfi_fail(&p->error, ZF_ERR_ARGUMENT,
                            "step %lld: the learning rate %%%d %.200s is %g; it must be finite; "
                            "parameters and states are as they were before the step",
                            (long long)p->run.step, (int)p->rates[k],
                            node->name ? node->name : p->graph->records[node->op]->name,
                            zfi_get(&value, 0));
    }
    return ZF_OK;
}

/* Between the sections: the micro section went well, and the losses are numbers. All ranks see the
 * same. */
static zf_status zfi_check_outputs(zf_program *p)
{
    const zfi_node *bad;
    zf_status status;
    if (!(p->graph->stages & ZFI_STAGE_UPDATES)) return ZF_OK;
    if (p->backend->synchronize(p->backend->self, &p->error)) return p->error.status;
    if ((status = zfi_check_rates(p))) return status;
    if (p->allow_nan) return ZF_OK;
    bad = zfi_bad_output(p);
    if (!bad || p->error.status) return p->error.status;
    return zfi_fail(&p->error, ZF_ERR_NAN,
                    "step %lld: the output \"%s\" is not a finite number; parameters and states "
                    "are as they were before the step (zf_compile_desc.allow_nan)",
                    (long long)p->run.step, bad->name);
}

/* All ranks have found a loss that is no number: names the first one whose own was none. Where
 * there is no such rank, their sum has overflowed. */
static zf_status zfi_name_spoiler(zf_program *p)
{
    zf_error mine = p->spoiled ? p->error : (zf_error){ZF_OK, ""};
    if (zfi_comm_agree(p->comm, &mine)) p->error = mine;
    return p->error.status;
}

/* A step that failed on this rank fails on all: unless they know, they are told. */
static zf_status zfi_step_failed(zf_program *p, zf_status status)
{
    p->micro = 0;
    zfi_fail(&p->error, status, "the step failed");
    if (p->comm && p->comm->abort && status != ZF_ERR_NAN && status != ZF_ERR_COMM && status != ZF_ERR_MISMATCH)
        p->comm->abort(p->comm->self, p->error.text);
    /* What is under way on other queues ends now: its memory is free to go. */
    p->backend->synchronize(p->backend->self, NULL);
    return p->error.status;
}

/* All ranks have the same plan: a difference is an error on each of them, and not a hang. */
static zf_status zfi_agree(zf_program *p)
{
    zf_collective c = {.op = ZF_OP_all_gather, .dtype = ZF_I64, .count = 1, .out = p->hashes};
    if (!p->comm || p->agreed) return ZF_OK;
    if (!p->comm->run)
        return zfi_fail(&p->error, ZF_ERR_ARGUMENT,
                        "the communicator cannot run anything (zf_comm.run is NULL); programs of "
                        "such ranks run by zf_lockstep_step");
    c.in = &p->hashes[p->run.rank];
    if (p->comm->run(p->comm->self, &c, &p->error)) return p->error.status;
    for (int32_t r = 0; r < p->run.world; r++)
        if (p->hashes[r] != p->hashes[p->run.rank])
            return zfi_fail(&p->error, ZF_ERR_MISMATCH,
                            "the plans of ranks %d and %d differ (%016llx and %016llx): their "
                            "graphs, or the options of the passes, are not the same",
                            (int)p->run.rank, (int)r, (unsigned long long)p->hashes[p->run.rank],
                            (unsigned long long)p->hashes[r]);
    p->agreed = true;
    return ZF_OK;
}

/* This rank's record of what must be the same, into record[0..ZFI_SAME_FIELDS). */
static zf_status zfi_make_record(zf_program *p, int64_t *record)
{
    zf_status status = p->backend->synchronize(p->backend->self, &p->error);
    if (!status) status = zfi_same_read(&p->same, p->backend, &p->error);
    record[ZFI_SAME_SEED] = (int64_t)p->run.seed;
    record[ZFI_SAME_STEP] = p->steps;
    record[ZFI_SAME_EVALUATE] = p->run.evaluate;
    record[ZFI_SAME_ALLOW_NAN] = p->allow_nan;
    record[ZFI_SAME_VALUES] = (int64_t)zfi_same_digest(&p->same);
    record[ZFI_SAME_FAILED] = status != ZF_OK;
    return status;
}

/* Somebody's digest of values is not rank 0's: finds the first value of which that is so. */
static zf_status zfi_find_difference(zf_program *p)
{
    const zfi_same *s = &p->same;
    for (int32_t k = 0; k < zfi_len(s->values); k++) {
        int64_t mine = s->values[k].sum;
        const zf_collective c = {.op = ZF_OP_all_gather,
                                 .dtype = ZF_I64,
                                 .count = 1,
                                 .in = &mine,
                                 .out = s->records};
        int32_t r;
        if (p->comm->run(p->comm->self, &c, &p->error)) return p->error.status;
        if ((r = zfi_same_other(s->records, 1, p->run.world)))
            return zfi_same_fail(&s->values[k], r, (int64_t[]){s->records[0], s->records[r]},
                                 &p->error);
    }
    return ZF_OK;
}

/* All ranks have what must be the same on all of them; a difference is an error of all. */
static zf_status zfi_compare(zf_program *p)
{
    int64_t *records = p->same.records;
    zf_collective c = {
        .op = ZF_OP_all_gather, .dtype = ZF_I64, .count = ZFI_SAME_FIELDS, .out = records};
    zf_status status = ZF_OK;
    if (!records) return ZF_OK;
    p->compared = false;
    c.in = records + (ptrdiff_t)p->run.rank * ZFI_SAME_FIELDS;
    (void)zfi_make_record(p, records + (ptrdiff_t)p->run.rank * ZFI_SAME_FIELDS);
    if (p->comm->run(p->comm->self, &c, &p->error)) return p->error.status;
    for (int32_t r = 0; r < p->run.world; r++)
        if (records[r * ZFI_SAME_FIELDS + ZFI_SAME_FAILED])
            return zfi_comm_agree(p->comm, &p->error);
    status = zfi_same_records(records, p->run.world, &p->error);
    if (!status && zfi_same_other(records + ZFI_SAME_VALUES, ZFI_SAME_FIELDS, p->run.world))
        status = zfi_find_difference(p);
    p->compared = !status;
    return status;
}

ZF_API zf_status zf_compare_ranks(zf_program *p)
{
    zf_status status;
    if (!p) return ZF_ERR_ARGUMENT;
    zfi_clear_error(p);
    status = zfi_agree(p);
    return status ? status : zfi_compare(p);
}

/* Runs the micro section. */
static zf_status zfi_run_micro(zf_program *p)
{
    zf_status status = zfi_agree(p);
    if (!status && !p->compared) status = zfi_compare(p);
    zfi_begin_micro(p);
    return status ? status : zfi_run_launches(p, 0, p->micro_end);
}

static zf_status zfi_check_micro(zf_program *p, const char *call, bool last)
{
    int64_t all = p->graph->micro_batches;
    zfi_clear_error(p);
    if (zfi_len(p->unwritten))
        return zfi_fail(&p->error, ZF_ERR_STAGE,
                        "%s: the input \"%.200s\" has not been written (zf_write)%s", call,
                        p->graph->nodes[p->unwritten[0]].name,
                        zfi_len(p->unwritten) > 1 ? ", nor have others" : "");
    if (last == (p->micro == all - 1)) return ZF_OK;
    return zfi_fail(&p->error, ZF_ERR_STAGE,
                    last ? "%s: %lld of the step's %lld micro-batches have been run; zf_micro runs "
                           "each but the last"
                         : "%s: %lld of the step's %lld micro-batches have been run; zf_step runs "
                           "the last one and the update",
                    call, (long long)p->micro, (long long)all);
}

ZF_API zf_status zf_micro(zf_program *p)
{
    zf_status status;
    if (!p) return ZF_ERR_ARGUMENT;
    if ((status = zfi_check_micro(p, "zf_micro", false))) return status;
    status = zfi_run_micro(p);
    if (!status) status = p->backend->synchronize(p->backend->self, &p->error);
    if (status) return zfi_step_failed(p, status);
    p->micro++;
    return ZF_OK;
}

ZF_API zf_status zf_step(zf_program *p)
{
    zf_status status;
    if (!p) return ZF_ERR_ARGUMENT;
    if ((status = zfi_check_micro(p, "zf_step", true))) return status;
    status = zfi_run_micro(p);
    if (!status && (status = zfi_check_outputs(p)) == ZF_ERR_NAN) status = zfi_name_spoiler(p);
    if (!status) status = zfi_run_launches(p, p->micro_end, p->launch_count);
    if (!status) status = p->backend->synchronize(p->backend->self, &p->error);
    if (status) return zfi_step_failed(p, status);
    p->steps++;
    p->micro = 0;
    return ZF_OK;
}

ZF_API zf_program_info zf_program_info_of(const zf_program *p)
{
    zf_program_info info = {.remark = ""};
    const zf_graph *g;
    int64_t persistent = 0;
    if (!p) return info;
    g = p->graph;
    if (p->backend->remark) info.remark = p->backend->remark(p->backend->self);
    info.peak_bytes = (size_t)g->peak;
    info.allocated_bytes = p->arena_bytes;
    if (p->comm) info.comm_bytes = p->comm->memory;
    info.plan = p->plan;
    info.counted = p->counted;
    info.live_bytes = (size_t)g->live;
    info.peak_node = g->peak_node;
    info.nodes = p->plan.nodes;
    info.flops = p->plan.flops;
    info.param_count = p->plan.parameter_count;
    for (int32_t i = 0; i < info.nodes; i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        size_t bytes = node->placed ? (size_t)zfi_aligned(node->bytes) : 0;
        const zfi_node *leaf = node->op == ZF_OP_unit ? &g->nodes[node->args[0]] : node;
        if (leaf->op == ZF_OP_param) info.param_bytes += bytes;
        if (leaf->op == ZF_OP_state) info.state_bytes += bytes;
        if (node->op == ZF_OP_input) info.input_bytes += bytes;
        if (node->op == ZF_OP_constant) info.constant_bytes += bytes;
        if (zfi_is_persistent(g, node)) persistent += (int64_t)bytes;
    }
    info.work_bytes = (size_t)(g->peak - persistent);
    return info;
}
