/* Lockstep: the ranks of a plan in turns on one thread, for tests. A deadlock is a message.
 *
 *     rank 0   micro ... | all_gather %59 |   ...   | wait %59 | ...
 *     rank 1   micro ... | all_gather %59 |   ...   | wait %59 | ...
 *                        compared          done here, or sooner, if it has a queue of its own
 */

/* A collective or copy that has been launched and not done. */
typedef struct zfi_pending {
    int32_t launch; /* of each program */
    int32_t queue;
} zfi_pending;

typedef struct zfi_lockstep {
    zfi_memory memory;
    zf_program *const *programs;
    int32_t count;
    uint64_t random;      /* 0: collectives of other queues are done as late as can be */
    zf_collective *calls, *members; /* by rank; those of a group */
    const void **parts;
    char *sum;
    size_t sum_bytes;
    zfi_pending pending[ZFI_QUEUE_ROOM];
    int32_t pending_count;
    zf_error *error;
} zfi_lockstep;

/* Every rank's call of the launch, in s->calls, after checking that they are one. */
static zf_status zfi_lockstep_calls(zfi_lockstep *s, int32_t launch)
{
    for (int32_t r = 0; r < s->count; r++) {
        const zf_collective *a = &s->calls[0], *b = &s->calls[r];
        s->calls[r] = zf_collective_of(&s->programs[r]->launches[launch]);
        zfi_collective_before(&s->programs[r]->launches[launch]);
        if (a->op != b->op || a->node != b->node || a->dtype != b->dtype || a->count != b->count ||
            a->root != b->root || a->channel != b->channel ||
            (a->op != ZF_OP_send && a->group.count != b->group.count))
            return zfi_fail(s->error, ZF_ERR_MISMATCH,
                            "rank 0 is at %s %%%d of %lld %s, rank %d at %s %%%d of %lld %s",
                            zfi_records[a->op]->name, (int)a->node, (long long)a->count,
                            zf_dtype_name(a->dtype), (int)r, zfi_records[b->op]->name, (int)b->node,
                            (long long)b->count, zf_dtype_name(b->dtype));
    }
    return ZF_OK;
}

/* Room for `bytes`, and be it none, in s->sum. */
static zf_status zfi_lockstep_room(zfi_lockstep *s, size_t bytes)
{
    char *more;
    if (!bytes) bytes = 1;
    if (bytes <= s->sum_bytes) return ZF_OK;
    more = zfi_realloc(&s->memory, s->sum, s->sum_bytes, bytes);
    if (!more) return zfi_nomem(s->error);
    s->sum = more;
    s->sum_bytes = bytes;
    return ZF_OK;
}

/* Does a copy of all ranks, at once. */
static zf_status zfi_lockstep_copy(zfi_lockstep *s, int32_t launch)
{
    zf_status status = ZF_OK;
    for (int32_t r = 0; r < s->count && !status; r++) {
        zf_program *p = s->programs[r];
        zf_launch l = p->launches[launch];
        l.queue = ZFI_QUEUE_COMPUTE;
        status = p->backend->launch(p->backend->self, &l);
        if (status) zfi_fail(s->error, status, "rank %d: %s", (int)r, p->error.text);
    }
    return status;
}

/* Does a collective of the first `ranks` of s->members, by its definition. */
static zf_status zfi_lockstep_group(zfi_lockstep *s, int32_t ranks)
{
    zf_collective *const calls = s->members;
    const zf_collective *c = calls;
    size_t size = zf_dtype_size(c->dtype), part = (size_t)c->count * size, world = (size_t)ranks;
    zf_status status = zfi_lockstep_room(s, part * world);
    if (status) return status;
    switch (c->op) {
    case ZF_OP_all_gather:
        for (size_t r = 0; r < world; r++) memcpy(s->sum + r * part, calls[r].in, part);
        for (size_t r = 0; r < world; r++) memcpy(calls[r].out, s->sum, part * world);
        break;
    case ZF_OP_reduce_scatter: /* each rank's sum lands where no other reads */
        for (size_t r = 0; r < world; r++) {
            for (size_t from = 0; from < world; from++)
                s->parts[from] = zfi_is_neighbour(c, (int32_t)r, (int32_t)from)
                                     ? (const char *)calls[from].in + r * part
                                     : NULL;
            memcpy(s->sum + r * part, calls[r].out, part);
            zfi_collective_add(c, s->sum + r * part, s->parts, ranks, c->count);
        }
        for (size_t r = 0; r < world; r++) memcpy(calls[r].out, s->sum + r * part, part);
        break;
    case ZF_OP_all_reduce:
        for (size_t from = 0; from < world; from++) s->parts[from] = calls[from].in;
        for (size_t r = 0; r < world; r++) {
            memcpy(s->sum + r * part, calls[r].out, part);
            zfi_collective_add(c, s->sum + r * part, s->parts, ranks, c->count);
        }
        for (size_t r = 0; r < world; r++) memcpy(calls[r].out, s->sum + r * part, part);
        break;
    case ZF_OP_all_to_all:
        if ((status = zfi_lockstep_room(s, part * world * world))) return status;
        for (size_t r = 0; r < world; r++)
            for (size_t from = 0; from < world; from++)
                memcpy(s->sum + (r * world + from) * part,
                       (const char *)calls[from].in + r * part, part);
        for (size_t r = 0; r < world; r++)
            memcpy(calls[r].out, s->sum + r * world * part, part * world);
        break;
    case ZF_OP_reduce:
        for (size_t from = 0; from < world; from++) s->parts[from] = calls[from].in;
        zfi_collective_add(c, s->sum, s->parts, ranks, c->count);
        memcpy(calls[c->root].out, s->sum, part);
        break;
    case ZF_OP_send: /* of others, where it is alone */
        for (size_t r = 0; r < world; r++)
            if (world > 1 && r != (size_t)c->root) memcpy(calls[r].out, calls[c->root].in, part);
        for (size_t r = 0; r < world; r++)
            if (world < 2 || r == (size_t)c->root) memmove(calls[r].out, calls[r].in, part);
        break;
    default: /* bcast */
        memcpy(s->sum, calls[c->root].in, part);
        for (size_t r = 0; r < world; r++) memcpy(calls[r].out, s->sum, part);
    }
    return ZF_OK;
}

/* Does a collective for all ranks, group by group. */
static zf_status zfi_lockstep_exchange(zfi_lockstep *s, int32_t launch)
{
    zf_status status = zfi_lockstep_calls(s, launch);
    for (int32_t r = 0; r < s->count && !status; r++) {
        const zf_group group = zf_collective_group(&s->calls[r], s->programs[r]->comm);
        if (group.first != r) continue;
        for (int32_t k = 0; k < group.count; k++)
            s->members[k] = s->calls[group.first + k * group.stride];
        status = zfi_lockstep_group(s, group.count);
    }
    for (int32_t r = 0; r < s->count && !status; r++)
        zfi_collective_after(&s->programs[r]->launches[launch]);
    return status;
}

static zf_status zfi_lockstep_do(zfi_lockstep *s, int32_t launch)
{
    return s->programs[0]->launches[launch].op == ZF_OP_copy ? zfi_lockstep_copy(s, launch)
                                                             : zfi_lockstep_exchange(s, launch);
}

/* Does the oldest pending collective of the queue. */
static zf_status zfi_lockstep_oldest(zfi_lockstep *s, int32_t queue)
{
    for (int32_t k = 0; k < s->pending_count; k++) {
        zfi_pending p = s->pending[k];
        if (p.queue != queue) continue;
        memmove(s->pending + k, s->pending + k + 1,
                (size_t)(--s->pending_count - k) * sizeof *s->pending);
        return zfi_lockstep_do(s, p.launch);
    }
    return ZF_OK;
}

static bool zfi_lockstep_is_pending(const zfi_lockstep *s, int32_t launch)
{
    for (int32_t k = 0; k < s->pending_count; k++)
        if (s->pending[k].launch == launch) return true;
    return false;
}

/* With a seed, does pending collectives now and then before they are waited for. */
static zf_status zfi_lockstep_some(zfi_lockstep *s)
{
    zf_status status = ZF_OK;
    while (s->random && s->pending_count && !status) {
        s->random = s->random * 6364136223846793005u + 1442695040888963407u;
        if (s->random >> 62) break;
        status = zfi_lockstep_oldest(
            s, s->pending[(s->random >> 32) % (uint64_t)s->pending_count].queue);
    }
    return status;
}

/* One launch of all programs. */
static zf_status zfi_lockstep_launch(zfi_lockstep *s, int32_t n)
{
    const zf_launch *l = &s->programs[0]->launches[n];
    zf_status status = zfi_lockstep_some(s);
    if (status) return status;
    if (zfi_skips_launch(s->programs[0], n)) {
        for (int32_t r = 0; r < s->count && !status; r++) status = zfi_launch(s->programs[r], n);
        return status;
    }
    if (l->op == ZF_OP_wait) {
        int32_t of = s->programs[0]->waits_for[n];
        while (!status && zfi_lockstep_is_pending(s, of))
            status = zfi_lockstep_oldest(s, s->programs[0]->launches[of].queue);
        for (int32_t r = 0; r < s->count && !status; r++)
            if (s->programs[r]->poison) zfi_poison(s->programs[r], of);
        return status;
    }
    if (zfi_is_left_out(l)) return ZF_OK;
    if (zfi_record_for(l)->traits & ZF_OP_COLLECTIVE && ZF_INT(l, all_gather, world) > 1) {
        if ((status = zfi_lockstep_calls(s, n))) return status;
        for (int32_t r = 0; r < s->count && !status; r++)
            if ((status = zfi_note_launch(s->programs[r], n)))
                zfi_fail(s->error, status, "rank %d: %s", (int)r, s->programs[r]->error.text);
        if (status) return status;
        if (l->queue && s->pending_count < ZFI_QUEUE_ROOM) {
            s->pending[s->pending_count++] = (zfi_pending){n, l->queue};
            return ZF_OK;
        }
        status = zfi_lockstep_do(s, n);
        for (int32_t r = 0; r < s->count && !status; r++)
            if (s->programs[r]->poison) zfi_poison(s->programs[r], n);
        return status;
    }
    if (l->op == ZF_OP_copy && l->queue && s->pending_count < ZFI_QUEUE_ROOM) {
        s->pending[s->pending_count++] = (zfi_pending){n, l->queue};
        return ZF_OK;
    }
    for (int32_t r = 0; r < s->count && !status; r++) {
        zf_program *p = s->programs[r];
        status = zfi_launch(p, n);
        if (status) zfi_fail(s->error, status, "rank %d: %s", (int)r, p->error.text);
    }
    return status;
}

static zf_status zfi_lockstep_range(zfi_lockstep *s, int32_t from, int32_t until)
{
    zf_status status = ZF_OK;
    for (int32_t n = from; n < until && !status; n++) status = zfi_lockstep_launch(s, n);
    while (s->pending_count && !status) status = zfi_lockstep_oldest(s, s->pending[0].queue);
    return status;
}

/* The programs are the ranks of one plan, in order. */
static zf_status zfi_lockstep_check(const zf_lockstep_desc *d, zf_error *error)
{
    if (!d || !d->programs || d->count < 1)
        return zfi_fail(error, ZF_ERR_ARGUMENT, "lockstep: no programs");
    for (int32_t r = 0; r < d->count; r++) {
        zf_program *p = d->programs[r];
        if (!p) return zfi_fail(error, ZF_ERR_ARGUMENT, "lockstep: program %d is NULL", (int)r);
        if (p->graph->whole)
            return zfi_fail(error, ZF_ERR_ARGUMENT,
                            "lockstep: ranks of stages do not run one list of launches; threads "
                            "run them (zf_local_new)");
        if (p->run.world != d->count || p->run.rank != r)
            return zfi_fail(error, ZF_ERR_ARGUMENT,
                            "lockstep: program %d is rank %d of %d; it must be rank %d of %d",
                            (int)r, (int)p->run.rank, (int)p->run.world, (int)r, (int)d->count);
        if (p->run.nodes != d->programs[0]->run.nodes)
            return zfi_fail(error, ZF_ERR_MISMATCH,
                            "rank 0 is one of %d in %d nodes, rank %d of as many in %d "
                            "(zf_zero_desc.nodes)",
                            (int)d->count, (int)d->programs[0]->run.nodes, (int)r,
                            (int)p->run.nodes);
        if (p->hashes && p->hashes[r] != d->programs[0]->hashes[0]) {
            char texts[2][ZFI_PLAN_TEXT];
            zfi_plan_text(d->programs[0]->graph, texts[0]), zfi_plan_text(p->graph, texts[1]);
            return zfi_fail_plans(error, (int32_t[]){0, r},
                                  (uint64_t[]){d->programs[0]->hashes[0], p->hashes[r]}, texts[0],
                                  texts[1]);
        }
        zfi_see_load(p);
        if (p->micro != d->programs[0]->micro ||
            zf_program_step(p) != zf_program_step(d->programs[0]))
            return zfi_fail(error, ZF_ERR_STAGE,
                            "lockstep: rank %d is at step %lld, micro-batch %lld, rank 0 at %lld, "
                            "%lld",
                            (int)r, (long long)zf_program_step(p), (long long)p->micro,
                            (long long)zf_program_step(d->programs[0]),
                            (long long)d->programs[0]->micro);
    }
    return ZF_OK;
}

/* The error of the lowest rank that has one is that of all, and of the call. */
static zf_status zfi_lockstep_agree(const zf_lockstep_desc *d, zf_error *error)
{
    zf_error first = {ZF_OK, ""};
    for (int32_t r = d->count; r-- > 0;)
        if (d->programs[r]->error.status) {
            if (d->count > 1) zfi_rank_error(&first, r, &d->programs[r]->error);
            else first = d->programs[r]->error;
        }
    if (!first.status) return ZF_OK;
    for (int32_t r = 0; r < d->count; r++) d->programs[r]->error = first;
    return zfi_fail(error, first.status, "%s", first.text);
}

/* All ranks have what must be the same on all of them: of the programs, or of their stores. */
static zf_status zfi_lockstep_compare(const zf_lockstep_desc *d, bool stores, zf_error *error)
{
    zf_program *const first = d->programs[0];
    int64_t *records = first->store->records;
    zf_status status;
    int32_t other, k = 0;
    if (!records) return ZF_OK;
    for (int32_t r = 0; r < d->count; r++) {
        zf_program *p = d->programs[r];
        zfi_same store = {.store = p->store};
        zfi_clear_error(p);
        p->same.runs = p->runs;
        if (!stores) p->compared = false;
        (void)zfi_same_record(stores ? &store : &p->same, records + (ptrdiff_t)r * ZFI_SAME_FIELDS,
                              &p->error);
    }
    if ((status = zfi_lockstep_agree(d, error))) return status;
    if ((status = zfi_same_records(first->store, records, error))) return status;
    other = zfi_same_other(records + ZFI_SAME_VALUES, ZFI_SAME_FIELDS, d->count);
    if (other) {
        const zfi_same *its = &d->programs[other]->same, *own = &first->same;
        while (zfi_same_sum(own, k) == zfi_same_sum(its, k)) k++;
        return zfi_same_fail(own, k, other,
                             (uint32_t[]){zfi_same_sum(own, k), zfi_same_sum(its, k)}, error);
    }
    for (int32_t r = 0; r < d->count && !stores; r++) d->programs[r]->compared = true;
    return ZF_OK;
}

ZF_API zf_status zf_lockstep_compare(const zf_lockstep_desc *desc, zf_error *error)
{
    zf_status status = zfi_lockstep_check(desc, error);
    return status ? status : zfi_lockstep_compare(desc, false, error);
}

/* One micro-batch, and if it is the step's last, the update. */
static zf_status zfi_lockstep_run(const zf_lockstep_desc *d, const char *call, bool last,
                                  zf_error *error)
{
    zf_error ignored = {ZF_OK, ""};
    zf_status status = zfi_lockstep_check(d, error ? error : (error = &ignored));
    zfi_lockstep s = {.error = error};
    zf_program *first;
    size_t world;
    if (status) return status;
    first = d->programs[0];
    if (!first->compared && (status = zfi_lockstep_compare(d, false, error))) return status;
    world = (size_t)d->count;
    s.memory = zfi_memory_of(&first->memory.allocator);
    s.programs = d->programs, s.count = d->count;
    s.random = d->seed;
    for (int32_t r = 0; r < d->count && !status; r++)
        if ((status = zfi_check_micro(d->programs[r], call, last, false)))
            zfi_fail(error, status, "rank %d: %s", (int)r, d->programs[r]->error.text);
    if (status) return status;
    s.calls = zfi_calloc(&s.memory, 2 * world, sizeof *s.calls);
    s.parts = zfi_calloc(&s.memory, world, sizeof *s.parts);
    if (!s.calls || !s.parts) status = zfi_nomem(error);
    else s.members = s.calls + world;
    for (int32_t r = 0; r < d->count; r++) zfi_begin_micro(d->programs[r]);
    if (!status) status = zfi_lockstep_range(&s, 0, first->micro_end);
    for (int32_t r = 1; r < d->count && last && !status; r++)
        if ((status = zfi_check_rates(d->programs[r])))
            zfi_fail(error, status, "rank %d: %s", (int)r, d->programs[r]->error.text);
    if (last && !status && (status = zfi_check_outputs(first))) {
        for (int32_t r = d->count - 1; status == ZF_ERR_NAN && r >= 0; r--)
            if (d->programs[r]->nonfinite) zfi_rank_error(error, r, &first->error);
        zfi_fail(error, status, "%s", first->error.text);
        first->error = *error;
    }
    for (int32_t r = 0; r < d->count && last && !status; r++) zfi_mark_changed(d->programs[r]);
    if (last && !status) status = zfi_lockstep_range(&s, first->micro_end, first->launch_count);
    for (int32_t r = 0; r < d->count; r++) {
        zf_program *p = d->programs[r];
        p->micro = last ? 0 : p->micro + 1;
        if (!status && last) zfi_count_step(p);
        if (status) zfi_forget_micro(p), zfi_fail(&p->error, status, "%s", error->text);
    }
    zfi_free(&s.memory, s.sum, s.sum_bytes);
    zfi_free(&s.memory, s.calls, 2 * world * sizeof *s.calls);
    zfi_free(&s.memory, s.parts, world * sizeof *s.parts);
    return status;
}

ZF_API zf_status zf_lockstep_step(const zf_lockstep_desc *desc, zf_error *error)
{
    return zfi_lockstep_run(desc, "zf_lockstep_step", true, error);
}

ZF_API zf_status zf_lockstep_micro(const zf_lockstep_desc *desc, zf_error *error)
{
    return zfi_lockstep_run(desc, "zf_lockstep_micro", false, error);
}

/* What a rank has of a tensor, or of its pieces, to its place in `data`. */
static zf_status zfi_lockstep_get(const zf_program *p, int32_t k, char *data, zf_error *error)
{
    const zf_store *s = p->store;
    const zfi_stored *t = &s->tensors[k];
    const zfi_portion has = zfi_portion_of(s, k);
    const size_t size = zf_dtype_size(t->dtype);
    zf_status status = ZF_OK;
    if (!zfi_is_tiled(t) && !has.cut && s->rank) return ZF_OK; /* rank 0 has it */
    if (!zfi_is_tiled(t))
        return zfi_stored_get(s, t, data + (size_t)has.first * size, has.data,
                              (size_t)has.count * size, error);
    for (k = t->next; k >= 0 && !status; k = s->tensors[k].next)
        status = zfi_lockstep_get(p, k, data + (size_t)s->tensors[k].from * size, error);
    return status;
}

ZF_API zf_status zf_lockstep_read(const zf_lockstep_desc *desc, const char *name, void *data,
                                  size_t bytes, zf_error *error)
{
    zf_status status = zfi_lockstep_check(desc, error);
    zf_program *first;
    zfi_mesh mesh;
    zf_group data_ranks;
    int32_t id;
    if (status) return status;
    first = desc->programs[0];
    id = name ? zfi_map_get(first->graph->names, name, 0) : 0;
    id = zfi_accessible(first, (zf_tensor){first->graph, id}, bytes, "zf_lockstep_read", false);
    if (!id) return zfi_fail(error, first->error.status, "%s", first->error.text);
    if (!data && bytes) return zfi_fail(error, ZF_ERR_ARGUMENT, "zf_lockstep_read: data is NULL");
    if (first->tensor_of[id] >= 0 &&
        zfi_refuse_pieces(first->store, first->tensor_of[id], "zf_lockstep_read", "read", error))
        return error->status;
    if (first->tensor_of[id] < 0)
        return zfi_get_bytes(first->store, (zf_space)first->graph->nodes[id].space, data,
                             first->data[id], bytes, error);
    mesh = zfi_mesh_of(first->graph);
    data_ranks = zfi_mesh_group(
        mesh,
        zfi_stored_over(first->store, &first->store->tensors[first->tensor_of[id]]), 0);
    for (int32_t r = 0; r < desc->count && !status; r++)
        if (!data_ranks.count || zfi_group_has(&data_ranks, r))
            status =
                zfi_lockstep_get(desc->programs[r], desc->programs[r]->tensor_of[id], data, error);
    return status;
}

/* The same of the stores' errors. */
static zf_status zfi_lockstep_agree_stores(const zf_lockstep_desc *d, zf_error *error)
{
    for (int32_t r = 0; r < d->count; r++) d->programs[r]->error = d->programs[r]->store->error;
    return zfi_lockstep_agree(d, error);
}

ZF_API zf_status zf_lockstep_save(const zf_lockstep_desc *desc, const char *path,
                                  const zf_save_desc *save, zf_error *error)
{
    zf_status status = zfi_lockstep_check(desc, error);
    zfi_memory memory;
    zfi_saving *all;
    if (!status) status = zfi_lockstep_compare(desc, true, error);
    if (status) return status;
    memory = zfi_memory_of(&desc->programs[0]->memory.allocator);
    all = zfi_calloc(&memory, (size_t)desc->count, sizeof *all);
    if (!all) return zfi_nomem(error);
    for (int32_t r = 0; r < desc->count; r++) {
        all[r] = (zfi_saving){.store = desc->programs[r]->store, .path = path, .lock = -1};
        if (save) all[r].d = *save;
        all[r].store->error = (zf_error){ZF_OK, ""};
    }
    for (int k = 0; k < ZFI_COUNT(zfi_save_phases) && !status; k++) {
        for (int32_t r = 0; r < desc->count; r++) (void)zfi_save_phases[k](&all[r]);
        status = zfi_lockstep_agree_stores(desc, error);
    }
    for (int32_t r = 0; r < desc->count; r++) zfi_save_end(&all[r]);
    zfi_free(&memory, all, (size_t)desc->count * sizeof *all);
    return status;
}

ZF_API zf_status zf_lockstep_load(const zf_lockstep_desc *desc, const char *path,
                                  const zf_load_desc *load, zf_error *error)
{
    zf_status status = zfi_lockstep_check(desc, error);
    int64_t *sums;
    zfi_memory memory;
    zfi_loading *all;
    if (status) return status;
    sums = desc->programs[0]->store->records;
    memory = zfi_memory_of(&desc->programs[0]->memory.allocator);
    all = zfi_calloc(&memory, (size_t)desc->count, sizeof *all);
    if (!all) return zfi_nomem(error);
    for (int32_t r = 0; r < desc->count; r++) {
        all[r] = zfi_load_of(desc->programs[r]->store, path, load);
        all[r].store->error = (zf_error){ZF_OK, ""};
    }
    for (int k = 0; k < ZFI_COUNT(zfi_load_phases) && !status; k++) {
        for (int32_t r = 0; r < desc->count; r++) (void)zfi_load_phases[k](&all[r]);
        status = zfi_lockstep_agree_stores(desc, error);
        for (int32_t r = 0; r < desc->count && sums && !k && !status; r++)
            sums[r] = zfi_manifest_sum(&all[r]);
        if (sums && !k && !status) status = zfi_same_manifests(sums, desc->count, error);
    }
    for (int32_t r = 0; r < desc->count; r++) zfi_load_end(&all[r], status);
    zfi_free(&memory, all, (size_t)desc->count * sizeof *all);
    return status;
}
