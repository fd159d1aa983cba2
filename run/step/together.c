/* Plans of several graphs whose programs run in turns: they are compiled over stores that allocate
 * nothing (zf_store_desc.plan_only), first each by itself, to find the one whose values of a step
 * take most memory, then in the memory of that one. */

typedef struct zfi_turns {
    const zf_turn *turns;
    int32_t count, first;
    const zf_together_desc *d;
    zfi_memory memory;
    zf_graph **graphs;     /* copies; three lists of `count` */
    zf_program **programs;
    zf_store **stores;     /* by zf_turn.store */
    zf_error error;
} zfi_turns;

static void zfi_close_turns(zfi_turns *t)
{
    for (int32_t k = t->count; k-- > 0;) zf_program_free(t->programs[k]), t->programs[k] = NULL;
    for (int32_t k = t->count; k-- > 0;) {
        zf_graph_free(t->graphs[k]), zf_store_free(t->stores[k]);
        t->graphs[k] = NULL, t->stores[k] = NULL;
    }
}

static zf_status zfi_compile_turn(zfi_turns *t, int32_t k, bool share)
{
    const zf_turn *turn = &t->turns[k];
    zf_store **store = &t->stores[turn->store];
    zf_program *caches = turn->caches ? t->programs[turn->caches - 1] : NULL;
    if (t->programs[k]) return ZF_OK;
    if (!(t->graphs[k] = zf_graph_copy(turn->graph))) return zfi_nomem(&t->error);
    if (!*store)
        *store = zf_store_new(&(zf_store_desc){.backend = t->d->backend,
                                               .host = t->d->host,
                                               .comm = t->d->comm,
                                               .allocator = t->memory.allocator,
                                               .plan_only = true},
                              &t->error);
    if (!*store) return t->error.status;
    t->programs[k] = zf_compile(
        t->graphs[k],
        &(zf_compile_desc){.store = *store,
                           .caches = caches,
                           .shares_memory_with = !share || k == t->first ? NULL
                                                 : caches                ? caches
                                                          : t->programs[t->first],
                           .temporary_caches = share && turn->temporary_caches});
    return t->programs[k] ? ZF_OK
                          : zfi_fail(&t->error, zf_graph_status(t->graphs[k]),
                                     "zf_plan_together: turn %d: %.400s", (int)k + 1,
                                     zf_graph_error(t->graphs[k]));
}

/* Compiles all, the first one before the others. */
static zf_status zfi_compile_turns(zfi_turns *t, bool share)
{
    zf_status status = zfi_compile_turn(t, t->first, share);
    for (int32_t k = 0; k < t->count && !status; k++) status = zfi_compile_turn(t, k, share);
    return status;
}

/* The turn whose values of a step, with its temporary caches, take most memory of the device; one
 * that lends caches comes before those that read them. */
static int32_t zfi_largest_turn(const zfi_turns *t)
{
    size_t most = 0, bytes;
    int32_t largest = 0;
    for (int32_t k = 0; k < t->count; k++) {
        if (t->turns[k].caches) continue;
        bytes = zfi_work_bytes(t->programs[k], ZF_DEVICE);
        if (t->turns[k].temporary_caches) {
            const zf_program_info info = zf_program_info_of(t->programs[k]);
            bytes += info.cache_bytes + info.held_bytes;
        }
        if (bytes > most) most = bytes, largest = k;
    }
    return largest;
}

static zf_status zfi_check_turns(zfi_turns *t)
{
    for (int32_t k = 0; k < t->count; k++) {
        const zf_turn *turn = &t->turns[k];
        if (!turn->graph || turn->store < 0 || turn->store >= t->count || turn->caches < 0 ||
            turn->caches > k)
            return zfi_fail(&t->error, ZF_ERR_ARGUMENT,
                            "zf_plan_together: turn %d needs a graph, a store from 0 to %d, and in "
                            "caches 0 or the number of an earlier turn",
                            (int)k + 1, (int)t->count - 1);
        if (turn->graph->error.status)
            return zfi_fail(&t->error, turn->graph->error.status,
                            "zf_plan_together: turn %d: %.400s", (int)k + 1,
                            turn->graph->error.text);
        if (turn->graph->stages & ZFI_STAGE_PLACED)
            return zfi_fail(&t->error, ZF_ERR_STAGE,
                            "zf_plan_together: turn %d: its plan is made already (zf_memory)",
                            (int)k + 1);
    }
    return ZF_OK;
}

static void zfi_sum_turns(const zfi_turns *t, zf_together *out)
{
    out->first = t->first;
    for (int space = 0; space < ZF_SPACES; space++) {
        const zfi_work *work = t->programs[t->first]->arenas[space].work;
        out->shared[space] = work ? work->bytes : 0;
        for (int32_t k = 0; k < t->count; k++) {
            const zf_store *s = t->stores[k];
            if (s) out->bytes[space] += s->bytes[space] + s->program_bytes[space];
        }
    }
}

ZF_API zf_status zf_plan_together(const zf_turn *turns, int32_t count, const zf_together_desc *desc,
                                  zf_together *out, zf_error *error)
{
    zf_together_desc d = desc ? *desc : (zf_together_desc){.backend = NULL};
    zf_backend *own = NULL; /* of all stores */
    zfi_turns t = {.turns = turns, .count = count, .d = &d, .memory = zfi_memory_of(&d.allocator)};
    if (out) *out = (zf_together){.first = 0};
    if (!turns || count < 1 || !out)
        return zfi_fail(error, ZF_ERR_ARGUMENT,
                        "zf_plan_together: it needs one turn or more, and room for the result");
    if (zfi_check_turns(&t)) return zfi_fail(error, t.error.status, "%s", t.error.text);
    if (!d.backend)
        d.backend = own = zf_cpu_backend(&(zf_cpu_desc){.allocator = d.allocator}, &t.error);
    t.graphs = zfi_calloc(&t.memory, (size_t)count, sizeof *t.graphs);
    t.programs = zfi_calloc(&t.memory, (size_t)count, sizeof *t.programs);
    t.stores = zfi_calloc(&t.memory, (size_t)count, sizeof *t.stores);
    if (!t.graphs || !t.programs || !t.stores) zfi_nomem(&t.error);
    if (!t.error.status && !zfi_compile_turns(&t, false)) {
        t.first = zfi_largest_turn(&t);
        zfi_close_turns(&t);
        if (!zfi_compile_turns(&t, true)) zfi_sum_turns(&t, out);
    }
    if (t.graphs && t.programs && t.stores) zfi_close_turns(&t);
    zfi_free(&t.memory, t.graphs, (size_t)count * sizeof *t.graphs);
    zfi_free(&t.memory, t.programs, (size_t)count * sizeof *t.programs);
    zfi_free(&t.memory, t.stores, (size_t)count * sizeof *t.stores);
    zf_backend_free(own);
    if (!t.error.status && d.memory_limit && out->bytes[ZF_DEVICE] > d.memory_limit)
        zfi_fail(&t.error, ZF_ERR_LIMIT,
                 "zf_plan_together: the turns take %zu bytes of the device together, %zu more than "
                 "the limit of %zu",
                 out->bytes[ZF_DEVICE], out->bytes[ZF_DEVICE] - d.memory_limit, d.memory_limit);
    return t.error.status ? zfi_fail(error, t.error.status, "%s", t.error.text) : ZF_OK;
}
