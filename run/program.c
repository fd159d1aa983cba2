/* Programs: a placed graph bound to memory, and the step that runs it.
 *
 * Compiling resolves every node to a zf_launch whose pointers are final, so that a step is a loop
 * over launches and allocates nothing. The arena is the only allocation from the backend.
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
    int32_t launch_count, launch_room, arg_count;
    zf_array *args; /* of all launches */
    zf_run run;
    int64_t steps; /* done */
    bool poison;
    zf_error error;
};

ZF_API const char *zf_program_error(const zf_program *p)
{
    return p ? p->error.text : "there is no program";
}
ZF_API int64_t zf_program_step(const zf_program *p) { return p ? p->steps : 0; }

static void zfi_clear_error(zf_program *p) { p->error = (zf_error){ZF_OK, ""}; }

/* --------------------------------------------------------------------------- compiling */

/* Finds a parameter or state of the shared program by name. */
static zf_status zfi_bind_shared(zf_program *p, int32_t id)
{
    zf_graph *g = p->graph;
    const zfi_node *node = &g->nodes[id], *other;
    int32_t there = zfi_map_get(p->share->graph->names, node->name, 0);
    char here[ZFI_TYPE_TEXT], theirs[ZFI_TYPE_TEXT];
    other = &p->share->graph->nodes[there];
    if (!there || other->op != node->op)
        return zfi_fail(&g->error, ZF_ERR_MISMATCH,
                        "zf_compile: the shared program has no %s \"%s\"", g->rows[node->op].name,
                        node->name);
    if (other->dtype != node->dtype || !zfi_same_shape(&other->shape, &node->shape))
        return zfi_fail(&g->error, ZF_ERR_MISMATCH,
                        "zf_compile: \"%s\" is %s here and %s in the shared program", node->name,
                        zfi_type_text(here, node->dtype, &node->shape),
                        zfi_type_text(theirs, other->dtype, &other->shape));
    p->data[id] = p->share->data[there];
    return ZF_OK;
}

/* Where each node's value lies: at its place, in the shared program, or, a view, in its operand. */
static zf_status zfi_bind(zf_program *p)
{
    zf_graph *g = p->graph;
    zf_status status = ZF_OK;
    for (int32_t i = 0; i < zfi_len(g->order) && !status; i++) {
        int32_t id = g->order[i];
        const zfi_node *node = &g->nodes[id];
        int64_t at;
        if (zfi_is_written(node->op) && node->placed == (p->share != NULL))
            return zfi_fail(
                &g->error, ZF_ERR_STAGE, "zf_compile: zf_memory gave %%%d \"%s\" %s", (int)id,
                node->name,
                p->share ? "a place of its own, so it cannot be that of another program "
                           "(zf_memory_desc.share)"
                         : "no place, so it needs a program to share with (zf_compile_desc.share)");
        /* Of 0 bytes */
        if (node->placed) p->data[id] = p->arena ? (char *)p->arena + node->offset : (void *)p;
        else if (zfi_is_written(node->op)) status = zfi_bind_shared(p, id);
        else if (zfi_is_view(g, node, &at)) p->data[id] = (char *)p->data[node->args[0]] + at;
    }
    return status;
}

/* The node has work to do when its turn comes. */
static bool zfi_runs(const zf_graph *g, const zf_program *p, int32_t id)
{
    const zfi_node *node = &g->nodes[id];
    int64_t at;
    if (zfi_is_persistent(node->op) || node->op == ZF_OP_output || node->op == ZF_OP_gradient)
        return false;
    return !(zfi_is_view(g, node, &at) &&
             (char *)p->data[node->args[0]] + at == (char *)p->data[id]);
}

static zf_status zfi_make_launches(zf_program *p)
{
    zf_graph *g = p->graph;
    zf_array *args;
    for (int32_t i = 0; i < zfi_len(g->order); i++) p->arg_count += g->nodes[g->order[i]].arg_count;
    p->launch_room = zfi_len(g->order);
    p->launches = zfi_calloc(&p->memory, (size_t)p->launch_room, sizeof *p->launches);
    args = p->args = zfi_calloc(&p->memory, (size_t)p->arg_count, sizeof *p->args);
    if (!p->launches || !args) return zfi_graph_nomem(g);
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        int32_t id = g->order[i];
        zf_launch l;
        size_t scratch;
        if (!zfi_runs(g, p, id)) continue;
        l = zfi_launch_of(g, id, args);
        l.backend = p->backend->self;
        scratch = p->backend->scratch(p->backend->self, &l);
        if (scratch > (size_t)g->nodes[id].scratch_bytes)
            return zfi_fail(&g->error, ZF_ERR_STAGE,
                            "zf_compile: %%%d %s needs %zu bytes of scratch on this backend, and "
                            "zf_memory gave it %lld "
                            "(zf_memory_desc.backend)",
                            (int)id, g->rows[l.op].name, scratch,
                            (long long)g->nodes[id].scratch_bytes);
        for (int32_t k = 0; k < l.arg_count; k++) args[k].data = p->data[g->nodes[id].args[k]];
        args += l.arg_count;
        l.out.data = p->data[id];
        l.scratch =
            g->nodes[id].scratch_bytes ? (char *)p->arena + g->nodes[id].scratch_offset : NULL;
        l.run = &p->run;
        l.error = &p->error;
        p->launches[p->launch_count++] = l;
    }
    return ZF_OK;
}

/* Writes the first values of everything persistent, a piece at a time. */
static zf_status zfi_fill(zf_program *p)
{
    enum { PIECE = 65536 };
    zf_graph *g = p->graph;
    float *work = zfi_calloc(&p->memory, PIECE, sizeof *work);
    double *piece = zfi_calloc(&p->memory, PIECE, sizeof *piece);
    zf_status status = ZF_OK;
    if (!work || !piece) status = zfi_graph_nomem(g);
    for (int32_t i = 0; i < zfi_len(g->order) && !status; i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        int64_t count = zfi_node_count(node), size = (int64_t)zf_dtype_size(node->dtype);
        if (!node->placed || !zfi_is_persistent(node->op)) continue;
        for (int64_t at = 0; at < count && !status; at += PIECE) {
            int64_t n = count - at < PIECE ? count - at : PIECE;
            zfi_first_values(node, p->run.seed, at, n, work, piece);
            status = p->backend->copy(p->backend->self, (char *)p->data[g->order[i]] + at * size,
                                      piece, (size_t)(n * size), ZF_HOST_TO_DEVICE, &g->error);
        }
    }
    zfi_free(&p->memory, work, PIECE * sizeof *work);
    zfi_free(&p->memory, piece, PIECE * sizeof *piece);
    return status;
}

/* What is there at the peak: what lies all the time, and what was made by then and is read there or
 * later. Views are left out: their bytes are those of their operands. */
static void zfi_mark_peak(const zf_graph *g, bool *there)
{
    int32_t end = zfi_len(g->order), peak = end - 1;
    int64_t at;
    for (int32_t i = 0; i < end; i++)
        if (g->order[i] == g->peak_node && !zfi_is_persistent(g->nodes[g->peak_node].op)) peak = i;
    for (int32_t i = 0; i < end; i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        for (int32_t k = 0; k < node->arg_count && (i >= peak || node->op == ZF_OP_output); k++) {
            int32_t x = node->args[k];
            while (zfi_is_view(g, &g->nodes[x], &at)) x = g->nodes[x].args[0];
            there[x] = true;
        }
    }
    there[g->peak_node] = true;
    for (int32_t i = 0; i < end; i++) {
        int32_t id = g->order[i];
        const zfi_node *node = &g->nodes[id];
        there[id] = node->placed && (zfi_is_persistent(node->op) || (there[id] && i <= peak));
    }
}

/* A plan over the limit: says by how much, at which node, and which tensors make the peak. */
static zf_status zfi_check_limit(zf_graph *g, size_t limit)
{
    char largest[256] = "", where[64] = "";
    size_t count = (size_t)zfi_len(g->nodes), at = 0;
    bool *there;
    if (!limit || (uint64_t)g->peak <= limit) return ZF_OK;
    if (!(there = zfi_calloc(&g->memory, count, sizeof *there))) return zfi_graph_nomem(g);
    zfi_mark_peak(g, there);
    for (int n = 0; n < 3; n++) {
        int32_t best = 0;
        for (int32_t i = 0; i < zfi_len(g->order); i++)
            if (there[g->order[i]] && (!best || g->nodes[g->order[i]].bytes > g->nodes[best].bytes))
                best = g->order[i];
        if (!best) break;
        there[best] = false;
        at += (size_t)snprintf(
            largest + at, sizeof largest - at, "%s%%%d %.40s with %lld", n ? ", " : "", (int)best,
            g->nodes[best].name ? g->nodes[best].name : g->rows[g->nodes[best].op].name,
            (long long)g->nodes[best].bytes);
    }
    if (g->peak_node)
        snprintf(where, sizeof where, "; most is alive at %%%d %s", (int)g->peak_node,
                 g->rows[g->nodes[g->peak_node].op].name);
    zfi_free(&g->memory, there, count * sizeof *there);
    return zfi_fail(&g->error, ZF_ERR_LIMIT,
                    "zf_compile: the plan takes %lld bytes, %lld more than the limit of %zu%s; the "
                    "largest there are %s",
                    (long long)g->peak, (long long)(g->peak - (int64_t)limit), limit, where,
                    largest);
}

static zf_status zfi_compile(zf_program *p, const zf_compile_desc *d)
{
    zf_graph *g = p->graph;
    zf_status status = ZF_OK;
    if (!d->backend) {
        p->own_backend =
            zf_cpu_backend(&(zf_cpu_desc){.allocator = g->memory.allocator}, &g->error);
        if (!p->own_backend) return g->error.status;
    }
    p->backend = d->backend ? d->backend : p->own_backend;
    if (!(g->stages & ZFI_STAGE_PLACED))
        status = zf_memory(g, &(zf_memory_desc){p->backend, d->no_reuse, d->share != NULL});
    if (status || (status = zfi_check_limit(g, d->memory_limit))) return status;
    p->arena_bytes = (size_t)g->peak;
    if (p->arena_bytes) {
        p->arena = p->backend->allocate(p->backend->self, p->arena_bytes, &g->error);
        if (!p->arena) return g->error.status;
    }
    p->nodes = (size_t)zfi_len(g->nodes);
    p->data = zfi_calloc(&p->memory, p->nodes, sizeof *p->data);
    if (!p->data) return zfi_graph_nomem(g);
    if ((status = zfi_bind(p)) || (status = zfi_make_launches(p))) return status;
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
    if (p->arena) p->backend->release(p->backend->self, p->arena, p->arena_bytes);
    zfi_free(&memory, p->data, p->nodes * sizeof *p->data);
    zfi_free(&memory, p->launches, (size_t)p->launch_room * sizeof *p->launches);
    zfi_free(&memory, p->args, (size_t)p->arg_count * sizeof *p->args);
    zf_backend_free(p->own_backend);
    zfi_free(&memory, p, sizeof *p);
}

/* ----------------------------------------------------------------------------- running */

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
    known = zfi_is_persistent(node->op) && !(writing && node->op == ZF_OP_constant);
    for (int32_t i = 0; i < zfi_len(g->order) && !known && !writing; i++)
        known = g->nodes[g->order[i]].op == ZF_OP_output && g->nodes[g->order[i]].args[0] == id;
    if (!known)
        return zfi_fail(&p->error, ZF_ERR_ARGUMENT,
                        writing ? "%s: %%%d %s is no input, param or state"
                                : "%s: %%%d %s is not kept; zf_output keeps a value",
                        call, (int)id, g->rows[node->op].name),
               0;
    if (bytes != zfi_node_bytes(node))
        return zfi_fail(&p->error, ZF_ERR_ARGUMENT, "%s: %%%d %s is %s, %zu bytes, not %zu", call,
                        (int)id, node->name ? node->name : g->rows[node->op].name,
                        zfi_type_text(type, node->dtype, &node->shape), zfi_node_bytes(node),
                        bytes),
               0;
    return id;
}

ZF_API zf_status zf_write(zf_program *p, zf_tensor x, const void *data, size_t bytes)
{
    int32_t id;
    if (!p) return ZF_ERR_ARGUMENT;
    id = zfi_accessible(p, x, bytes, "zf_write", true);
    if (!id) return p->error.status;
    if (!data && bytes) return zfi_fail(&p->error, ZF_ERR_ARGUMENT, "zf_write: data is NULL");
    return p->backend->copy(p->backend->self, p->data[id], data, bytes, ZF_HOST_TO_DEVICE,
                            &p->error);
}

ZF_API zf_status zf_read(zf_program *p, zf_tensor x, void *data, size_t bytes)
{
    int32_t id;
    if (!p) return ZF_ERR_ARGUMENT;
    id = zfi_accessible(p, x, bytes, "zf_read", false);
    if (!id) return p->error.status;
    if (!data && bytes) return zfi_fail(&p->error, ZF_ERR_ARGUMENT, "zf_read: data is NULL");
    if (p->backend->synchronize(p->backend->self, &p->error)) return p->error.status;
    return p->backend->copy(p->backend->self, data, p->data[id], bytes, ZF_DEVICE_TO_HOST,
                            &p->error);
}

static bool zfi_share_bytes(const zf_array *a, const zf_array *b)
{
    const char *x = a->data, *y = b->data;
    size_t x_bytes = (size_t)zfi_count(a) * zf_dtype_size(a->dtype);
    size_t y_bytes = (size_t)zfi_count(b) * zf_dtype_size(b->dtype);
    return x && y && x < y + y_bytes && y < x + x_bytes;
}

/* Something still wants the bytes of `x` after launch n: a later launch, before they are written
 * again, or an output. */
static bool zfi_wanted(const zf_program *p, const zf_array *x, int32_t n)
{
    const zf_graph *g = p->graph;
    if (zfi_share_bytes(x, &p->launches[n].out)) return true;
    for (int32_t m = n + 1; m < p->launch_count; m++) {
        for (int32_t k = 0; k < p->launches[m].arg_count; k++)
            if (zfi_share_bytes(x, &p->launches[m].args[k])) return true;
        if (zfi_share_bytes(x, &p->launches[m].out)) return false;
    }
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        zf_array value;
        if (node->op != ZF_OP_output && !zfi_is_persistent(node->op)) continue;
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

ZF_API zf_status zf_step(zf_program *p)
{
    zf_status status = ZF_OK;
    if (!p) return ZF_ERR_ARGUMENT;
    zfi_clear_error(p);
    p->run.step = p->steps + 1;
    for (int32_t n = 0; n < p->launch_count; n++) {
        status = p->backend->launch(p->backend->self, &p->launches[n]);
        if (status) break;
        if (p->poison) zfi_poison(p, n);
    }
    if (!status) status = p->backend->synchronize(p->backend->self, &p->error);
    if (status) return zfi_fail(&p->error, status, "the step failed");
    p->steps++;
    return ZF_OK;
}

ZF_API zf_program_info zf_program_info_of(const zf_program *p)
{
    zf_program_info info = {0};
    const zf_graph *g;
    int64_t persistent = 0;
    if (!p) return info;
    g = p->graph;
    info.peak_bytes = (size_t)g->peak;
    info.allocated_bytes = p->arena_bytes;
    info.live_bytes = (size_t)g->live;
    info.peak_node = g->peak_node;
    info.nodes = zfi_len(g->order);
    for (int32_t i = 0; i < info.nodes; i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        size_t bytes = node->placed ? (size_t)zfi_aligned(node->bytes) : 0;
        if (node->op == ZF_OP_param)
            info.param_bytes += bytes, info.param_count += zfi_node_count(node);
        if (node->op == ZF_OP_state) info.state_bytes += bytes;
        if (node->op == ZF_OP_input) info.input_bytes += bytes;
        if (node->op == ZF_OP_constant) info.constant_bytes += bytes;
        if (zfi_is_persistent(node->op)) persistent += (int64_t)bytes;
        if (node->op == ZF_OP_matmul) {
            const zfi_node *a = &g->nodes[node->args[0]];
            double k = (double)a->shape.dims[a->shape.rank - (node->attributes[0].i ? 2 : 1)];
            info.flops += 2.0 * (double)zfi_node_count(node) * k;
        }
    }
    info.work_bytes = (size_t)(g->peak - persistent);
    return info;
}
