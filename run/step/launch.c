/* Launches of a step: what they count, and what they leave where `poison` is asked for. */

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
    for (int32_t m = n + 1; p->tasks && n < p->micro_end && m < p->micro_end && !p->begins[m]; m++)
        for (int32_t k = 0; k < p->launches[m].arg_count; k++)
            if (zfi_share_bytes(x, &p->launches[m].args[k])) return true;
    for (int32_t i = 0; n < p->micro_end && i < zfi_len(g->order); i++) { /* the next micro-batch */
        const zfi_node *node = &g->nodes[g->order[i]];
        zf_array sum = {p->data[g->order[i]], node->dtype, node->shape};
        if (node->op == ZF_OP_accumulator && zfi_share_bytes(x, &sum)) return true;
    }
    for (int32_t m = p->tasks && n < p->micro_end ? p->micro_end : n + 1; m < p->launch_count; m++) {
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
        if (p->graph->nodes[node->args[k]].slots || zfi_wanted(p, x, n)) continue;
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

/* Counts the call of a launch, as the communicator is asked for it. What a stage receives it does
 * not send. */
static void zfi_count_call(zf_program *p, const zf_launch *l, const zf_collective *c)
{
    const zfi_mesh m = zfi_mesh_of(p->graph);
    const int64_t world = ZF_INT(l, all_gather, world), over = ZF_INT(l, all_gather, over),
                  others = zfi_ranks_sent_to(l->op, l->attributes, m, p->run.rank);
    const int32_t stride = c->group.stride, here = zfi_node_of_rank(p, p->run.rank);
    int64_t far = 0;
    if (c->op == ZF_OP_send) far = zfi_mesh_far(m, over);
    else
        for (int64_t k = 0; k < world && world > 1; k++)
            far += zfi_node_of_rank(p, c->group.first + k * (stride ? stride : 1)) != here;
    zfi_count_calls(&p->counted, c->op, c->dtype, c->count, world, others, far, 1);
    zfi_count_calls(&p->counted_over[over], c->op, c->dtype, c->count, world, others, far, 1);
}

/* Before a launch: counts its work and its traffic. */
static void zfi_count_launch(zf_program *p, const zf_launch *l)
{
    zf_collective c;
    if (!p->graph->nodes[l->node].recompute && !(l->sums && !l->run->micro))
        p->counted_flops += zf_launch_flops(l);
    if (l->op == ZF_OP_copy && !(l->sums && !l->run->micro)) {
        zf_moved *to = zfi_count_copies(&p->counted, p->graph, &p->graph->nodes[l->node], 1);
        if (l->fetched) to->bytes -= (size_t)zfi_array_bytes(&l->out); /* the copy adds its own */
    }
    if (!(p->graph->records[l->op]->traits & ZF_OP_COLLECTIVE) || zfi_is_left_out(l)) return;
    c = zf_collective_of(l);
    zfi_count_call(p, l, &c);
}

/* The same of launch n; if it sums losses over the ranks, notes whether this rank's are finite. */
static zf_status zfi_note_launch(zf_program *p, int32_t n)
{
    enum { PIECE = 64 };
    const zf_launch *l = &p->launches[n];
    const zf_array *x = l->args;
    double room[PIECE];
    zf_array piece = {.data = room};
    zf_collective c;
    zfi_count_launch(p, l);
    if (!p->sums_outputs[n]) return ZF_OK;
    c = zf_collective_of(l);
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

/* Names the scope of a launch after its operator and node, with which the error begins. */
static void zfi_say_scope(zf_program *p, const zf_launch *l)
{
    const char *scope = p->graph->nodes[l->node].scope;
    zf_error what = {ZF_OK, ""}, whole = {ZF_OK, ""};
    char where[320];
    size_t length;
    zfi_fail(&what, p->error.status, "%s %%%d", zf_launch_name(l), (int)l->node);
    length = strlen(what.text);
    if (!scope || !*scope || strncmp(p->error.text, what.text, length) ||
        p->error.text[length] != ':')
        return;
    zfi_where(where, sizeof where, scope, NULL, 0);
    zfi_fail(&whole, p->error.status, "%s%s%s", what.text, where, p->error.text + length);
    p->error = whole;
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
    if (!status) return ZF_OK;
    (void)zfi_take_host_error(p);
    zfi_say_scope(p, l);
    return status;
}

/* Gives a launch a place for its times, where they are asked for. */
static void zfi_want_span(zf_program *p, zf_launch *l)
{
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
        zfi_want_span(p, &p->launches[n]);
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
    if (!p->backend->run || p->poison || p->one_by_one) {
        for (int32_t n = first; n < last && !status; n++) status = zfi_launch(p, n);
        return status;
    }
    for (int32_t k = 0; k < p->section_count && !status; k++) {
        zf_section *s = &p->sections[k];
        if (s->first < first || s->last > last) continue;
        if ((!s->host && zfi_runner(p, &s->launches[s->first]) != p->backend) ||
            zfi_runs_by_coins(p, s->first)) {
            for (int32_t n = s->first; n < s->last && !status; n++) status = zfi_launch(p, n);
            continue;
        }
        for (int32_t n = s->first; n < s->last && !status; n++) status = zfi_note_launch(p, n);
        if (!status) status = p->backend->run(p->backend->self, s, &p->error);
    }
    return status;
}

/* What launches of a micro-batch see of it. */
static void zfi_set_micro(const zf_program *p, zf_run *run, int64_t micro)
{
    run->micro = micro;
    run->slot = micro * p->graph->world +
                zfi_mesh_place(zfi_mesh_of(p->graph), ZF_OVER_DATA, p->run.rank);
}

static void zfi_begin_micro(zf_program *p)
{
    p->run.seed = p->store->seed ^ p->salt;
    p->run.step = zf_program_step(p) + 1;
    zfi_set_micro(p, &p->run, p->micro);
    p->ran = true;
    zfi_toss_coins(p);
    if (p->micro && !p->tasks) return;
    p->micro_step = p->store->steps;
    memset(&p->counted, 0, sizeof p->counted);
    memset(p->fetched, 0, sizeof p->fetched);
    p->counted_flops = 0;
    p->nonfinite = false;
    p->span_count = 0;
    memset(p->counted_over, 0, sizeof p->counted_over);
}
