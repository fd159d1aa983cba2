/* A step: micro-batches, then updates. Ranks agree on their plans and first values before the first
 * one; each loss and learning rate is checked to be finite. */

static bool zfi_share_bytes(const zf_array *a, const zf_array *b)
{
    const char *x = a->data, *y = b->data;
    size_t x_bytes = (size_t)zfi_count(a) * zf_dtype_size(a->dtype);
    size_t y_bytes = (size_t)zfi_count(b) * zf_dtype_size(b->dtype);
    return x && y && x < y + y_bytes && y < x + x_bytes;
}

/* The launch writes some of the bytes of `x`. */
static bool zfi_makes(const zf_launch *l, const zf_array *x)
{
    bool makes = zfi_share_bytes(x, &l->out);
    for (int k = 0; l->saved && k < ZF_MAX_SAVED; k++) makes |= zfi_share_bytes(x, &l->saved[k]);
    return makes;
}

/* The bytes of `x` are needed after launch n: by a later launch, before they are written again, or
 * by an output. */
static bool zfi_wanted(const zf_program *p, const zf_array *x, int32_t n)
{
    const zf_graph *g = p->graph;
    if (zfi_makes(&p->launches[n], x)) return true;
    for (int32_t m = 0; m < p->launch_count; m++) /* launches in flight on another queue */
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

/* Fills operands of launch n that are no longer needed with NaN, so that a wrong read changes the
 * numbers. Looks at bytes alone, not at the lifetimes by which they were placed. Takes quadratic
 * time; for tests. */
static void zfi_poison(zf_program *p, int32_t n)
{
    unsigned char nan[4096];
    memset(nan, 0xff, sizeof nan);
    /* A copy on the device may still read host memory. */
    if (!p->backend->host_memory) p->backend->synchronize(p->backend->self, &p->error);
    for (int32_t k = 0; k < p->launches[n].arg_count; k++) {
        const zf_array *x = &p->launches[n].args[k];
        const zfi_node *node = &p->graph->nodes[p->launches[n].node];
        const zf_space space = (zf_space)p->graph->nodes[node->args[k]].space;
        size_t bytes = (size_t)zfi_count(x) * zf_dtype_size(x->dtype);
        if (zfi_wanted(p, x, n)) continue;
        for (size_t at = 0; at < bytes; at += sizeof nan)
            zfi_put_bytes(p->store, space, (char *)x->data + at, nan,
                          bytes - at < sizeof nan ? bytes - at : sizeof nan, NULL);
    }
}

/* The node in which a rank is. */
static int32_t zfi_node_of_rank(const zf_program *p, int64_t rank)
{
    const zfi_mesh m = zfi_mesh_of(p->graph);
    const int32_t ranks = zfi_mesh_stride(m, ZF_OVER_LOCAL) * zfi_mesh_local(m);
    return m.nodes > 1 ? (int32_t)rank / ranks : 0;
}

/* Counts a call of `world` ranks over an axis, as the communicator is asked for it. What a stage
 * receives it does not send. */
static void zfi_count_call(zf_program *p, const zf_collective *c, int64_t world, int64_t over)
{
    const int32_t stride = c->group.stride, here = zfi_node_of_rank(p, p->run.rank);
    const int64_t count = c->op == ZF_OP_send && !c->in ? 0 : c->count;
    int64_t far = 0;
    if (c->op == ZF_OP_send) far = zfi_mesh_far(zfi_mesh_of(p->graph), over);
    else
        for (int64_t k = 0; k < world && world > 1; k++)
            far += zfi_node_of_rank(p, c->group.first + k * (stride ? stride : 1)) != here;
    zfi_count_calls(&p->counted, c->op, c->dtype, count, world, far, 1);
    zfi_count_calls(&p->counted_over[over], c->op, c->dtype, count, world, far, 1);
}

/* Before launch n: counts its traffic; and if it sums losses over the ranks, notes whether this
 * rank's are finite. */
static zf_status zfi_note_launch(zf_program *p, int32_t n)
{
    enum { PIECE = 64 };
    const zf_launch *l = &p->launches[n];
    const zf_array *x = l->args;
    double room[PIECE];
    zf_array piece = {.data = room};
    zf_collective c;
    if (!p->graph->nodes[l->node].recompute && !(l->sums && !l->run->micro))
        p->counted_flops += zf_launch_flops(l);
    if (l->op == ZF_OP_copy && !(l->sums && !l->run->micro))
        zfi_count_copies(&p->counted, p->graph, &p->graph->nodes[l->node], 1);
    if (!(p->graph->records[l->op]->traits & ZF_OP_COLLECTIVE)) return ZF_OK;
    c = zf_collective_of(l);
    zfi_count_call(p, &c, ZF_INT(l, all_gather, world), ZF_INT(l, all_gather, over));
    if (!p->sums_outputs[n]) return ZF_OK;
    piece.dtype = x->dtype;
    for (int64_t at = 0; at < c.count && !p->nonfinite; at += PIECE) {
        int64_t size = (int64_t)zf_dtype_size(x->dtype),
                m = c.count - at < PIECE ? c.count - at : PIECE;
        zf_status status = p->backend->copy(p->backend->self, room, (char *)x->data + at * size,
                                            (size_t)(m * size), ZF_DEVICE_TO_HOST, &p->error);
        if (status) return status;
        for (int64_t i = 0; i < m; i++) p->nonfinite |= !isfinite(zfi_get(&piece, i));
    }
    return ZF_OK;
}

/* Makes the first error of launches in host memory the program's. */
static zf_status zfi_take_host_error(zf_program *p)
{
    if (p->host_error.status) zfi_fail(&p->error, p->host_error.status, "%s", p->host_error.text);
    return p->error.status;
}

/* Waits for everything in flight, on the device and in host memory. */
static zf_status zfi_synchronize(zf_program *p)
{
    zf_backend *host = p->store->host;
    zf_error device = {ZF_OK, ""};
    p->backend->synchronize(p->backend->self, &device);
    if (host && host != p->backend) host->synchronize(host->self, &p->host_error);
    /* An error in host memory may be the cause of one on the device. */
    zfi_take_host_error(p);
    if (device.status) zfi_fail(&p->error, device.status, "%s", device.text);
    return p->error.status;
}

/* Launches on the backend that runs it, or waits there for a launch. Before a launch in host memory
 * with a device, waits for the device. */
static zf_status zfi_launch_there(zf_program *p, const zf_launch *l, bool wait)
{
    zf_backend *runs = zfi_runner(p, l);
    zf_status status = ZF_OK;
    if (runs != p->backend && !p->backend->host_memory && !wait)
        status = p->backend->synchronize(p->backend->self, &p->error);
    if (!status) status = wait ? runs->wait(runs->self, l) : runs->launch(runs->self, l);
    return status ? (zfi_take_host_error(p), status) : ZF_OK;
}

/* Gives launch n a place for its times, where they are asked for. */
static void zfi_want_span(zf_program *p, int32_t n)
{
    zf_launch *l = &p->launches[n];
    if (!p->spans || p->span_count == p->span_room) return;
    l->span = &p->spans[p->span_count++];
    *l->span = (zf_span){.node = l->node, .resource = zfi_resource_of(p->graph, l->node)};
}

/* Launches n, or waits for the launch of a `wait`. */
static zf_status zfi_launch(zf_program *p, int32_t n)
{
    const zf_launch *l = &p->launches[n];
    zf_status status;
    if (zfi_skips_launch(p, n)) return zfi_skip_launch(p, n);
    if (l->op == ZF_OP_wait) {
        n = p->waits_for[n];
        status = zfi_launch_there(p, &p->launches[n], true);
    } else {
        if ((status = zfi_note_launch(p, n))) return status;
        zfi_want_span(p, n);
        status = zfi_launch_there(p, l, false);
        if (l->queue) return status; /* its operands are needed until its wait */
    }
    if (!status && p->poison) zfi_poison(p, n);
    return status;
}

/* Runs launches [first, last): the micro section, or the update section. */
static zf_status zfi_run_launches(zf_program *p, int32_t first, int32_t last)
{
    zf_status status = ZF_OK;
    if (!p->backend->run || p->poison || p->off) {
        for (int32_t n = first; n < last && !status; n++) status = zfi_launch(p, n);
        return status;
    }
    for (int32_t k = 0; k < p->section_count && !status; k++) {
        zf_section *s = &p->sections[k];
        if (s->first < first || s->last > last) continue;
        if (!s->host && zfi_runner(p, &s->launches[s->first]) != p->backend) {
            for (int32_t n = s->first; n < s->last && !status; n++) status = zfi_launch(p, n);
            continue;
        }
        for (int32_t n = s->first; n < s->last && !status; n++) status = zfi_note_launch(p, n);
        if (!status) status = p->backend->run(p->backend->self, s, &p->error);
    }
    return status;
}

static void zfi_begin_micro(zf_program *p)
{
    p->run.seed = p->store->seed ^ p->salt;
    p->run.step = zf_program_step(p) + 1;
    p->run.micro = p->micro;
    p->run.slot = p->micro * p->graph->world +
                  zfi_mesh_place(zfi_mesh_of(p->graph), ZF_OVER_DATA, p->run.rank);
    p->ran = true;
    zfi_toss_coins(p);
    if (p->micro) return;
    p->micro_step = p->store->steps;
    memset(&p->counted, 0, sizeof p->counted);
    p->counted_flops = 0;
    p->nonfinite = false;
    p->span_count = 0;
    memset(p->counted_over, 0, sizeof p->counted_over);
}

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
        if (zfi_get_bytes(p->store, (zf_space)node->space, number, p->data[mark->args[0]],
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
    p->micro = 0;
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
    if (r < p->run.world)
        return zfi_fail(&p->error, ZF_ERR_MISMATCH,
                        "the plans of ranks %d and %d differ (%016llx and %016llx): their "
                        "graphs, or the options of the passes, are not the same",
                        rank, (int)r, (unsigned long long)mine, (unsigned long long)p->hashes[r]);
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
    for (int space = 0; space < ZF_SPACES; space++) {
        zfi_work *work = p->arenas[space].work;
        if (!work) continue;
        zfi_take_work(work, zfi_lender(p));
        work->last = p;
    }
    /* Values of held parameters were compared by zf_hold. */
    if (!status && !p->compared && (!p->held || p->gathers)) status = zfi_compare(p);
    zfi_begin_micro(p);
    return status ? status : zfi_run_launches(p, 0, p->micro_end);
}

/* After zf_load: a step begins anew, and ranks will compare the values with which they begin. */
static void zfi_see_load(zf_program *p)
{
    if (p->loads == p->store->loads) return;
    p->loads = p->store->loads;
    p->micro = 0;
    p->compared = false;
}

/* Counts a finished step. */
static void zfi_count_step(zf_program *p)
{
    zf_store *s = p->store;
    p->micro = 0;
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
