/* A step: micro-batches, then updates. Ranks agree on their plans and first values before the first
 * one; each loss and learning rate is checked to be finite. */

/* The first scalar output of the micro section that is non-finite; NULL: none. */
static const zfi_node *zfi_bad_output(zf_program *p)
{
    const zf_graph *g = p->graph;
    for (int32_t i = 0; i < zfi_len(g->order) && !g->nodes[g->order[i]].update; i++) {
        const zfi_node *mark = &g->nodes[g->order[i]], *node;
        double number[1] = {0};
        zf_array value = {number, ZF_F64, ZF_SCALAR};
        if (!zfi_marks_number(g, mark)) continue;
        node = &g->nodes[mark->args[0]];
        value.dtype = node->dtype;
        if (zfi_get_bytes(p->store, (zf_space)node->space, number,
                          zfi_slot_address(p, mark->args[0], g->micro_batches - 1),
                          zf_dtype_size(node->dtype), &p->error) ||
            !isfinite(zfi_get(&value, 0)))
            return mark;
    }
    return NULL;
}

/* Before the update section: checks that the learning rates are finite. */
static zf_status zfi_check_rates(zf_program *p)
{
    for (int32_t k = 0; k < zfi_len(p->rates); k++) {
        const zfi_node *node = &p->graph->nodes[p->rates[k]];
        double number[1] = {0};
        zf_array value = {number, node->dtype, ZF_SCALAR};
        zf_status status =
            zfi_get_bytes(p->store, (zf_space)node->space, number, p->data[p->rates[k]],
                          zf_dtype_size(node->dtype), &p->error);
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

/* Between the sections: checks that the losses are finite. All ranks see the same losses. */
static zf_status zfi_check_outputs(zf_program *p)
{
    const zfi_node *bad;
    zf_status status;
    if (!(p->graph->stages & ZFI_STAGE_UPDATES)) return ZF_OK;
    if ((status = zfi_synchronize(p)) || (status = zfi_check_rates(p))) return status;
    if (p->allow_nan) return ZF_OK;
    bad = zfi_bad_output(p);
    if (!bad || p->error.status) return p->error.status;
    return zfi_fail(&p->error, ZF_ERR_NAN,
                    "step %lld: the output \"%s\" is not a finite number; parameters and states "
                    "are as they were before the step (zf_compile_desc.allow_nan)",
                    (long long)p->run.step, bad->name);
}

/* After a non-finite sum on all ranks: names the first rank whose own loss was non-finite. If there
 * is none, the sum has overflowed. */
static zf_status zfi_name_nonfinite_rank(zf_program *p)
{
    zf_error mine = p->nonfinite ? p->error : (zf_error){ZF_OK, ""};
    if (zfi_comm_agree(p->comm, &mine)) p->error = mine;
    return p->error.status;
}

/* The step is not completed: states that its micro-batches have changed, which are what quantised
 * gradients have left to send, are 0 again. Errors of the backend come again in the next step. */
static void zfi_forget_micro(zf_program *p)
{
    static const char zeros[1 << 14];
    const zf_graph *g = p->graph;
    zf_error error = {ZF_OK, ""};
    zfi_first_micro(p);
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const zfi_node *node = &g->nodes[g->order[i]], *e;
        if (node->op != ZF_OP_quantize_feedback) continue;
        e = &g->nodes[node->args[1]];
        for (size_t at = 0, bytes = zfi_node_bytes(e); at < bytes; at += sizeof zeros)
            if (zfi_put_bytes(p->store, (zf_space)e->space, (char *)p->data[node->args[1]] + at,
                              zeros, bytes - at < sizeof zeros ? bytes - at : sizeof zeros, &error))
                return;
    }
}

/* Tells the other ranks that the step failed on this one, unless they know, so that it fails on
 * all. (An I/O error may be theirs: then abort does nothing.) */
static zf_status zfi_step_failed(zf_program *p, zf_status status)
{
    zfi_fail(&p->error, status, "the step failed");
    if (p->comm && p->comm->abort && status != ZF_ERR_NAN && status != ZF_ERR_COMM &&
        status != ZF_ERR_MISMATCH)
        p->comm->abort(p->comm->self, p->error.status, p->error.text);
    /* Ends what is in flight on other queues, so that its memory can be freed. */
    zfi_synchronize(p);
    zfi_forget_micro(p);
    return p->error.status;
}

/* Collective: p->hashes become the numbers of all ranks, this rank's being `mine`. *other is the
 * first rank with another one; world: there is none. */
static zf_status zfi_gather_numbers(zf_program *p, uint64_t mine, int32_t *other)
{
    const zf_collective c = {.op = ZF_OP_all_gather,
                             .dtype = ZF_I64,
                             .count = 1,
                             .in = &p->hashes[p->run.rank],
                             .out = p->hashes};
    p->hashes[p->run.rank] = mine;
    if (p->comm->run(p->comm->self, &c, &p->error)) return p->error.status;
    for (*other = 0; *other < p->run.world && p->hashes[*other] == mine;) ++*other;
    return ZF_OK;
}

enum { ZFI_PLAN_TEXT = 160 };

/* How the plan shares its work: "mesh pipe=2 data=2, schedule zb-v, sections of 4, ZeRO stage 2, 8
 * micro-batches". */
static void zfi_plan_text(const zf_graph *g, char text[ZFI_PLAN_TEXT])
{
    char mesh[ZFI_MESH_TEXT];
    int64_t sections = 1;
    int at = snprintf(text, ZFI_PLAN_TEXT, "mesh %s", zfi_mesh_text(mesh, zfi_mesh_of(g)));
    for (int32_t id = 1; id < zfi_len(g->nodes); id++) {
        const zfi_node *node = &g->nodes[id];
        const zf_attribute *of = node->op ? zfi_attribute_of(g, node, "sections") : NULL;
        if (of && of->i > sections) sections = of->i;
    }
    if (g->schedule)
        at += snprintf(text + at, (size_t)(ZFI_PLAN_TEXT - at), ", schedule %s",
                       zf_pipe_kind_name((zf_pipe_kind)(g->schedule - 1)));
    if (sections > 1)
        at += snprintf(text + at, (size_t)(ZFI_PLAN_TEXT - at), ", sections of %d", (int)sections);
    snprintf(text + at, (size_t)(ZFI_PLAN_TEXT - at), ", ZeRO stage %d, %lld micro-batch%s",
             (int)g->zero, (long long)g->micro_batches, g->micro_batches > 1 ? "es" : "");
}

/* The error that two ranks have other plans. */
static zf_status zfi_fail_plans(zf_error *error, const int32_t ranks[2], const uint64_t hashes[2],
                                const char *own, const char *its)
{
    const bool alike = !strcmp(own, its);
    return zfi_fail(error, ZF_ERR_MISMATCH,
                    "the plans of ranks %d and %d differ (%016llx and %016llx): %s%s%s", (int)ranks[0],
                    (int)ranks[1], (unsigned long long)hashes[0], (unsigned long long)hashes[1],
                    alike ? "their graphs, or the options of the passes, are not the same" : own,
                    alike ? "" : ", and ", alike ? "" : its);
}

/* Collective: the text of a rank goes to all. */
static zf_status zfi_share_text(zf_program *p, int32_t rank, char text[ZFI_PLAN_TEXT])
{
    const zf_collective c = {.op = ZF_OP_bcast,
                             .dtype = ZF_U8,
                             .count = ZFI_PLAN_TEXT,
                             .in = text,
                             .out = text,
                             .root = rank};
    return p->comm->run(p->comm->self, &c, &p->error);
}

/* Collective: the error that ranks have other plans. This one and `other`, which is rank 0 or the
 * first that differs from it, say how they share their work. */
static zf_status zfi_plans_differ(zf_program *p, int32_t other)
{
    const uint64_t mine = p->hashes[p->run.rank], its = p->hashes[other];
    char texts[2][ZFI_PLAN_TEXT] = {"", ""}, own[ZFI_PLAN_TEXT] = "";
    int32_t odd = 1;
    while (p->hashes[odd] == p->hashes[0]) odd++;
    zfi_plan_text(p->graph, own);
    for (int k = 0; k < 2; k++) {
        const int32_t from = k ? odd : 0;
        if (from == p->run.rank) memcpy(texts[k], own, sizeof own);
        if (zfi_share_text(p, from, texts[k])) return p->error.status;
    }
    return zfi_fail_plans(&p->error, (int32_t[]){p->run.rank, other}, (uint64_t[]){mine, its}, own,
                          texts[other > 0]);
}

/* Checks that all ranks have the same plan. A difference is an error on each of them, and not a
 * hang. */
static zf_status zfi_agree(zf_program *p)
{
    const int rank = (int)p->run.rank;
    uint64_t mine;
    int32_t r;
    if (!p->comm || p->agreed) return ZF_OK;
    if (!p->comm->run)
        return zfi_fail(&p->error, ZF_ERR_ARGUMENT,
                        "the communicator cannot run anything (zf_comm.run is NULL); programs of "
                        "such ranks run by zf_lockstep_step");
    mine = p->hashes[rank];
    if (zfi_gather_numbers(p, (uint64_t)p->run.nodes, &r)) return p->error.status;
    if (r < p->run.world)
        zfi_fail(&p->error, ZF_ERR_MISMATCH,
                 "rank %d is one of %d in %d nodes, rank %d of as many in %d (zf_zero_desc.nodes)",
                 rank, (int)p->run.world, (int)p->run.nodes, (int)r, (int)p->hashes[r]);
    p->hashes[rank] = mine;
    if (p->error.status || zfi_gather_numbers(p, mine, &r)) return p->error.status;
    if (r < p->run.world) return zfi_plans_differ(p, r);
    p->agreed = true;
    return ZF_OK;
}

/* Compares what must be equal on all ranks. A difference is an error on all. */
static zf_status zfi_compare(zf_program *p)
{
    zf_status status;
    p->compared = false;
    p->same.runs = p->runs;
    status = zfi_same_compare(&p->same, &p->error);
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
    zfi_take_memory(p);
    /* Values of held parameters were compared by zf_hold. */
    if (!status && !p->compared && (!p->held || p->gathers)) status = zfi_compare(p);
    zfi_begin_micro(p);
    if (status) return status;
    return p->tasks ? zfi_run_tasks(p) : zfi_run_launches(p, 0, p->micro_end);
}

/* After zf_load: a step begins anew, and ranks will compare the values with which they begin. */
static void zfi_see_load(zf_program *p)
{
    if (p->loads == p->store->loads) return;
    p->loads = p->store->loads;
    zfi_first_micro(p);
    p->compared = false;
}

/* Counts a finished step. */
static void zfi_count_step(zf_program *p)
{
    zf_store *s = p->store;
    zfi_first_micro(p);
    s->undefined = false;
    s->steps += p->writes;
    *zfi_steps_of(p) += 1;
}

/* Notes that the update section will change what the program writes. */
static void zfi_mark_changed(zf_program *p)
{
    const zf_graph *g = p->graph;
    for (int32_t i = zfi_len(g->order); zfi_down(i) && !p->changed;) {
        const zfi_node *node = &g->nodes[g->order[i]];
        for (int32_t k = 0; k < node->arg_count && k < 31; k++) {
            const zfi_node *leaf;
            int32_t id;
            if (!(zfi_written_args(g, node) >> k & 1)) continue;
            id = zfi_written_leaf(g, node->args[k]);
            leaf = &g->nodes[id];
            for (int32_t n = 0; leaf->op == ZF_OP_bucket && n < leaf->arg_count; n++)
                p->store->tensors[p->tensor_of[leaf->args[n]]].fresh = false;
            if (p->tensor_of[id] >= 0) p->store->tensors[p->tensor_of[id]].fresh = false;
        }
    }
    p->changed = true;
    p->store->undefined = p->writes; /* until the step has ended */
}

/* Checks that `call` may run a micro-batch, the last one or another; `holds`: it is zf_hold. */
static zf_status zfi_check_micro(zf_program *p, const char *call, bool last, bool holds)
{
    int64_t all = p->graph->micro_batches;
    zf_status status;
    zfi_clear_error(p);
    zfi_see_load(p);
    if (p->store->plans)
        return zfi_fail(&p->error, ZF_ERR_STAGE,
                        "%s: the store plans, and holds no values (zf_store_desc.plan_only)", call);
    if ((status = zfi_check_defined(p->store, call, &p->error))) return status;
    if (p->gathers != holds)
        return zfi_fail(&p->error, p->gathers ? ZF_ERR_STAGE : ZF_ERR_ARGUMENT,
                        p->gathers
                            ? "%s: the program gathers parameters that others read: zf_hold runs it"
                            : "%s: the program gathers no parameters: its graph must be one of "
                              "zf_hold_graph",
                        call);
    if (p->micro && p->micro_step != p->store->steps) {
        zfi_forget_micro(p);
        return zfi_fail(&p->error, ZF_ERR_STAGE,
                        "%s: another program has trained the store since the step's first "
                        "micro-batch; the step starts anew",
                        call);
    }
    for (int space = 0; space < ZF_SPACES && p->micro; space++)
        if (zfi_was_overrun(p, (zf_space)space)) {
            zfi_forget_micro(p);
            return zfi_fail(&p->error, ZF_ERR_STAGE,
                            "%s: another program has run in the same memory "
                            "(zf_compile_desc.shares_memory_with) since the step's first "
                            "micro-batch; the step starts anew",
                            call);
        }
    if ((status = zfi_check_kept_caches(p, call))) return status;
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
    if ((status = zfi_check_micro(p, "zf_micro", false, false))) return status;
    if (p->tasks) return zfi_next_micro(p);
    status = zfi_run_micro(p);
    if (!status) status = zfi_synchronize(p);
    if (status) return zfi_step_failed(p, status);
    p->micro++;
    return ZF_OK;
}

/* Runs the last micro-batch, and the updates. */
static zf_status zfi_end_step(zf_program *p)
{
    zf_status status = zfi_run_micro(p);
    if (!status && (status = zfi_check_outputs(p)) == ZF_ERR_NAN)
        status = zfi_name_nonfinite_rank(p);
    if (!status) zfi_mark_changed(p);
    if (!status) status = zfi_run_launches(p, p->micro_end, p->launch_count);
    if (!status) status = zfi_synchronize(p);
    if (status == ZF_ERR_NAN)
        p->store->undefined = false; /* the loss scale's: nothing is updated */
    if (status) return zfi_step_failed(p, status);
    zfi_count_step(p);
    return ZF_OK;
}

ZF_API zf_status zf_step(zf_program *p)
{
    zf_status status;
    if (!p) return ZF_ERR_ARGUMENT;
    if ((status = zfi_pass_written(p))) return status;
    status = zfi_check_micro(p, "zf_step", true, false);
    return status ? status : zfi_end_step(p);
}

ZF_API zf_status zf_hold(zf_program *p)
{
    zf_program *holder;
    zf_status status;
    if (!p) return ZF_ERR_ARGUMENT;
    if ((status = zfi_check_micro(p, "zf_hold", true, true))) return status;
    holder = zfi_holder(p);
    zfi_let_go(holder);
    if ((status = zfi_end_step(p))) return status;
    holder->holds = true, holder->held_at = zfi_changes_of(p->store);
    if (zfi_held_work(holder)) zfi_held_work(holder)->held = holder;
    return ZF_OK;
}
