/* Reading and writing tensors of a program. */

/* Another program has run in the memory of this one's values since this one did. */
static bool zfi_was_overrun(const zf_program *p, zf_space space)
{
    const zfi_work *work = p->arenas[space].work;
    return work && work->last && work->last != p;
}

/* The caches that the program uses are temporary, and another program has run in their memory. */
static bool zfi_lost_caches(zf_program *p)
{
    const zf_program *lender = zfi_lender(p);
    const zfi_work *work = lender->arenas[ZF_DEVICE].work;
    return p->has_caches && lender->temporary && work && work->caches != lender;
}

static zf_status zfi_check_kept_caches(zf_program *p, const char *call)
{
    if (p->held && !p->gathers && zfi_check_held(p, call)) return p->error.status;
    if (!zfi_lost_caches(p)) return ZF_OK;
    return zfi_fail(&p->error, ZF_ERR_STAGE,
                    "%s: nothing is in the temporary caches, or another program has run in their "
                    "memory (zf_compile_desc.temporary_caches): after zf_clear_caches each text "
                    "begins with its first token",
                    call);
}

ZF_API bool zf_has_caches(const zf_program *p)
{
    return p && !zfi_lost_caches((zf_program *)(uintptr_t)p);
}

static zf_status zfi_clear_own_caches(const zf_program *p, zf_error *error)
{
    static const char zeros[1 << 14];
    const zf_graph *g = p->graph;
    zf_status status = ZF_OK;
    for (int32_t i = 0; i < zfi_len(g->order) && !status; i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        const size_t bytes = node->op == ZF_OP_cache && node->placed && !zfi_is_held(node)
                                 ? (size_t)node->bytes
                                 : 0;
        for (size_t at = 0, n; at < bytes && !status; at += n) {
            n = bytes - at < sizeof zeros ? bytes - at : sizeof zeros;
            status = zfi_put_bytes(p->store, (zf_space)node->space,
                                   (char *)p->data[g->order[i]] + at, zeros, n, error);
        }
    }
    return status;
}

ZF_API zf_status zf_clear_caches(zf_program *p)
{
    zf_program *lender = p ? zfi_lender(p) : NULL;
    zfi_work *work = p && lender->temporary ? lender->arenas[ZF_DEVICE].work : NULL;
    zf_status status;
    if (!p) return ZF_ERR_ARGUMENT;
    zfi_clear_error(p);
    status = p->backend->synchronize(p->backend->self, &p->error);
    if (work) zfi_take_work(work, lender);
    if (work) work->caches = NULL;
    for (const zf_program *of = p; of && !status; of = of == lender ? NULL : of->caches)
        status = zfi_clear_own_caches(of, &p->error);
    if (work && !status) work->caches = lender;
    return status;
}

/* The shape of what a program reads or writes of a node. */
static zf_shape zfi_access_shape(const zf_program *p, int32_t id)
{
    const zfi_node *node = &p->graph->nodes[id];
    return zfi_stored_shape(node->shape, zfi_copies_of(p, node));
}

/* The node is an input that nothing reads: it has no memory. */
static bool zfi_is_unread(const zf_program *p, int32_t id)
{
    return p->graph->nodes[id].op == ZF_OP_input && !p->data[id];
}

/* The value of an output that was made of node id, or reads it now; 0: there is none. */
static int32_t zfi_shown_as(const zf_graph *g, int32_t id)
{
    const int32_t now = zfi_resolve(g, id);
    int32_t shown = 0;
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const zfi_node *mark = &g->nodes[g->order[i]];
        if (mark->op != ZF_OP_output) continue;
        if (now && mark->args[0] == now) return now;
        if (mark->shown == id || (now && zfi_resolve(g, mark->shown) == now)) shown = mark->args[0];
    }
    return shown;
}

/* The error that the program has no such tensor. */
static zf_status zfi_not_there(zf_program *p, zf_tensor x, const char *call)
{
    const bool once = x.graph == p->graph;
    char missed[256];
    return zfi_fail(&p->error, ZF_ERR_ARGUMENT,
                    once && x.id > 0 && x.id < zfi_len(p->graph->nodes)
                        ? "%s: the tensor was left out, since nothing needs it; zf_output keeps "
                          "a value%s"
                        : "%s: the tensor is not one of the program's graph%s",
                    call, zfi_missed(once ? x : ZF_NONE, missed));
}

/* The node of `x`, after checking that a program may read or write it. */
static int32_t zfi_access_node(zf_program *p, zf_tensor x, const char *call, bool writing)
{
    zf_graph *g = p->graph;
    int32_t id = x.graph == g ? zfi_resolve(g, x.id) : 0;
    /* a leaf is read itself, also where an output is made of it */
    const bool computed = x.graph == g && !(id && zfi_has(g, id, ZF_OP_LEAF));
    const int32_t shown = computed && !writing ? zfi_shown_as(g, x.id) : 0;
    const zfi_node *node = &g->nodes[id];
    bool known;
    zfi_clear_error(p);
    if (shown) return shown;
    if (!id) return zfi_not_there(p, x, call), 0;
    if (g->whole && node->stage && !zfi_is_of_rank(g, id, zfi_rank_along_pipe(p)))
        return zfi_fail(&p->error, ZF_ERR_ARGUMENT,
                        g->chunks > 1 ? "%s: %%%d is of stage %d of the pipeline, and rank %d "
                                        "along pipe has others"
                                      : "%s: %%%d is of stage %d of the pipeline, and this rank is "
                                        "of stage %d",
                        call, (int)id, node->stage - 1, (int)zfi_rank_along_pipe(p)),
               0;
    known = (zfi_is_persistent(g, node) || node->held) && node->op != ZF_OP_bucket &&
            (writing ? node->op != ZF_OP_constant : !zfi_is_unread(p, id));
    if (!known)
        return zfi_fail(&p->error, ZF_ERR_ARGUMENT,
                        writing ? "%s: %%%d %s is no input, param, state or cache"
                                : "%s: %%%d %s is not kept; zf_output keeps a value",
                        call, (int)id, g->records[node->op]->name),
               0;
    return id;
}

/* The same, and that it has so many bytes. */
static int32_t zfi_accessible(zf_program *p, zf_tensor x, size_t bytes, const char *call,
                              bool writing)
{
    const zf_graph *g = p->graph;
    const int32_t id = zfi_access_node(p, x, call, writing);
    const zfi_node *node = &g->nodes[id];
    char type[ZFI_TYPE_TEXT];
    zf_shape shape;
    size_t all;
    if (!id) return 0;
    shape = zfi_access_shape(p, id);
    all = (size_t)zf_shape_count(shape) * zf_dtype_size(node->dtype);
    if (bytes != all)
        return zfi_fail(&p->error, ZF_ERR_ARGUMENT, "%s: %%%d %s is %s, %zu bytes, not %zu", call,
                        (int)id, node->name ? node->name : g->records[node->op]->name,
                        zfi_type_text(type, node->dtype, &shape), all, bytes),
               0;
    return id;
}

/* Writes the value of a node, of a micro-batch where it has slots. */
static zf_status zfi_write_node(zf_program *p, int32_t id, int64_t micro, const void *data,
                                size_t bytes)
{
    zf_status status;
    if (p->tensor_of[id] >= 0)
        return zfi_refuse_pieces(p->store, p->tensor_of[id], "zf_write", "write", &p->error)
                   ? p->error.status
                   : zfi_store_put(p->store, p->tensor_of[id], data, &p->error);
    if (zfi_is_unread(p, id)) return ZF_OK;
    if (zfi_is_held(&p->graph->nodes[id]))
        return zfi_fail(&p->error, ZF_ERR_ARGUMENT,
                        "zf_write: \"%.200s\" is held parameters, which zf_hold writes",
                        p->graph->nodes[id].name);
    if (p->graph->nodes[id].op == ZF_OP_cache && zfi_check_kept_caches(p, "zf_write"))
        return p->error.status;
    status = zfi_put_bytes(p->store, (zf_space)p->graph->nodes[id].space,
                           zfi_slot_address(p, id, micro), data, bytes, &p->error);
    /* An earlier micro-batch has no value yet where this one is the first that is written. */
    for (int32_t k = 0; k < zfi_len(p->unwritten) && micro <= p->micro && !status; k++)
        if (p->unwritten[k] == id) {
            p->unwritten[k] = stbds_arrlast(p->unwritten);
            stbds_header(p->unwritten)->length--;
        }
    return status;
}

ZF_API zf_status zf_write(zf_program *p, zf_tensor x, const void *data, size_t bytes)
{
    int32_t id;
    if (!p) return ZF_ERR_ARGUMENT;
    id = zfi_accessible(p, x, bytes, "zf_write", true);
    if (!id) return p->error.status;
    if (!data && bytes) return zfi_fail(&p->error, ZF_ERR_ARGUMENT, "zf_write: data is NULL");
    return zfi_write_node(p, id, p->micro, data, bytes);
}

ZF_API zf_status zf_write_micro(zf_program *p, zf_tensor x, int64_t micro, const void *data,
                                size_t bytes)
{
    const zfi_node *node;
    zf_status status;
    int32_t id;
    if (!p) return ZF_ERR_ARGUMENT;
    id = zfi_accessible(p, x, bytes, "zf_write_micro", true);
    if (!id) return p->error.status;
    node = &p->graph->nodes[id];
    if (!data && bytes) return zfi_fail(&p->error, ZF_ERR_ARGUMENT, "zf_write_micro: data is NULL");
    if (micro < 0 || micro >= p->graph->micro_batches)
        return zfi_fail(&p->error, ZF_ERR_ARGUMENT,
                        "zf_write_micro: there is no micro-batch %lld; the step has %lld",
                        (long long)micro, (long long)p->graph->micro_batches);
    if (node->op != ZF_OP_input || (p->tasks && !node->slots && !zfi_is_unread(p, id)))
        return zfi_fail(&p->error, ZF_ERR_ARGUMENT,
                        "zf_write_micro: %%%d %s has one value for all micro-batches of a step; "
                        "zf_write writes it",
                        (int)id, node->name ? node->name : p->graph->records[node->op]->name);
    if (!p->tasks && micro != p->micro)
        return zfi_fail(&p->error, ZF_ERR_ARGUMENT,
                        "zf_write_micro: micro-batch %lld is next, not %lld: this step runs one "
                        "after the other",
                        (long long)p->micro, (long long)micro);
    status = zfi_write_node(p, id, micro, data, bytes);
    if (!status && p->tasks) *zfi_wrote_input(p, micro, id) = true;
    return status;
}

/* Elements [*first, *until) are those of `bytes` bytes from byte `offset` on of a node, of which
 * there is a value of this shape. */
static zf_status zfi_access_range(zf_program *p, int32_t id, zf_shape shape, size_t offset,
                                  size_t bytes, const char *call, int64_t *first, int64_t *until)
{
    const zfi_node *node = &p->graph->nodes[id];
    const int64_t count = zf_shape_count(shape), size = (int64_t)zf_dtype_size(node->dtype);
    char type[ZFI_TYPE_TEXT];
    *first = (int64_t)(offset / (size_t)size), *until = *first + (int64_t)(bytes / (size_t)size);
    if (offset % (size_t)size || bytes % (size_t)size || *first > count || *until > count ||
        *until < *first)
        return zfi_fail(&p->error, ZF_ERR_ARGUMENT,
                        "%s: %zu bytes from byte %zu of %%%d %s, which is %s, %lld bytes: they must "
                        "be whole elements within it",
                        call, bytes, offset, (int)id, node->name ? node->name : "",
                        zfi_type_text(type, node->dtype, &shape), (long long)(count * size));
    return ZF_OK;
}

ZF_API zf_status zf_write_range(zf_program *p, zf_tensor x, size_t offset, const void *data,
                                size_t bytes)
{
    const zfi_node *node;
    int64_t first, until;
    int32_t id;
    if (!p) return ZF_ERR_ARGUMENT;
    id = zfi_access_node(p, x, "zf_write_range", true);
    if (!id) return p->error.status;
    node = &p->graph->nodes[id];
    if (p->tensor_of[id] < 0)
        return zfi_fail(&p->error, ZF_ERR_ARGUMENT,
                        "zf_write_range: %%%d %s is no param or state; zf_write writes it", (int)id,
                        node->name ? node->name : p->graph->records[node->op]->name);
    if (!data && bytes) return zfi_fail(&p->error, ZF_ERR_ARGUMENT, "zf_write_range: data is NULL");
    if (zfi_access_range(p, id, zfi_access_shape(p, id), offset, bytes, "zf_write_range", &first,
                         &until) ||
        zfi_refuse_pieces(p->store, p->tensor_of[id], "zf_write_range", "write", &p->error))
        return p->error.status;
    return zfi_store_put_range(p->store, p->tensor_of[id], first, until, data, &p->error);
}

/* A param or state as one rank would have it. */
typedef struct zfi_whole_access {
    int32_t id, tensor; /* of the graph, and of the store */
    zf_shape shape;
    int64_t first, until; /* elements of it */
} zfi_whole_access;

/* That of `bytes` bytes at `data`, from byte `offset` on; false with the program's error. */
static bool zfi_access_whole(zf_program *p, zf_tensor x, size_t offset, const void *data,
                             size_t bytes, const char *call, zfi_whole_access *a)
{
    zf_graph *g = p->graph;
    a->id = x.graph == g ? zfi_resolve(g, x.id) : 0;
    const zfi_node *node = &g->nodes[a->id];
    zfi_clear_error(p);
    if (!a->id) return zfi_not_there(p, x, call), false;
    if (node->op != ZF_OP_param && node->op != ZF_OP_state)
        return zfi_fail(&p->error, ZF_ERR_ARGUMENT, "%s: %%%d %s is no param or state", call,
                        (int)a->id, node->name ? node->name : g->records[node->op]->name),
               false;
    /* a store has no pieces (zf_tile) of parameters of other stages */
    if ((a->tensor = zfi_store_find(p->store, node->name)) < 0)
        return zfi_not_there(p, x, call), false;
    if (!data && bytes)
        return zfi_fail(&p->error, ZF_ERR_ARGUMENT, "%s: data is NULL", call), false;
    a->shape = zfi_whole_shape(p->store, &p->store->tensors[a->tensor]);
    return !zfi_access_range(p, a->id, a->shape, offset, bytes, call, &a->first, &a->until);
}

ZF_API zf_status zf_write_whole(zf_program *p, zf_tensor x, size_t offset, const void *data,
                                size_t bytes)
{
    zfi_whole_access a;
    if (!p) return ZF_ERR_ARGUMENT;
    if (!zfi_access_whole(p, x, offset, data, bytes, "zf_write_whole", &a)) return p->error.status;
    return zfi_store_put_whole(p->store, a.tensor, a.first, a.until, data, &p->error);
}

/* Copies an output out as one rank would have it. */
static zf_status zfi_read_whole_output(zf_program *p, zf_tensor x, void *data, size_t bytes)
{
    const int32_t id = zfi_access_node(p, x, "zf_read_whole", false);
    const zfi_node *node = &p->graph->nodes[id];
    const zfi_stored type = {
        .dtype = node->dtype, .shape = node->shape, .spread = node->spread, .whole = -1};
    zfi_whole_read r = {
        .store = p->store, .tensor = &type, .program = p, .output = x, .node = id, .out = data};
    if (!id) return p->error.status;
    if (node->spread.differs)
        return zfi_fail(&p->error, ZF_ERR_ARGUMENT,
                        "zf_read_whole: %%%d differs on ranks along %s, which have no parts of one "
                        "value of it",
                        (int)id, zfi_axis_in(node->spread.differs));
    if (bytes != zfi_whole_bytes(p->store, &type))
        return zfi_fail(&p->error, ZF_ERR_ARGUMENT,
                        "zf_read_whole: %zu bytes are not all of the output %%%d", bytes, (int)id);
    return zfi_get_whole(&r, "zf_read_whole", &p->error);
}

ZF_API zf_status zf_read_whole(zf_program *p, zf_tensor x, void *data, size_t bytes)
{
    zfi_whole_access a;
    if (!p) return ZF_ERR_ARGUMENT;
    if (data && x.graph == p->graph && zfi_shown_as(p->graph, x.id) &&
        !zfi_has(p->graph, zfi_resolve(p->graph, x.id), ZF_OP_LEAF))
        return zfi_read_whole_output(p, x, data, bytes);
    if (!zfi_access_whole(p, x, 0, data, bytes, "zf_read_whole", &a)) return p->error.status;
    if (a.until < zf_shape_count(a.shape))
        return zfi_fail(&p->error, ZF_ERR_ARGUMENT,
                        "zf_read_whole: %zu bytes are not all of \"%.200s\"", bytes,
                        p->graph->nodes[a.id].name);
    if (p->backend->synchronize(p->backend->self, &p->error)) return p->error.status;
    return zfi_store_get_whole(p->store, a.tensor, data, a.id, "zf_read_whole", &p->error);
}

ZF_API zf_status zf_read(zf_program *p, zf_tensor x, void *data, size_t bytes)
{
    int64_t micro;
    int32_t id;
    if (!p) return ZF_ERR_ARGUMENT;
    id = zfi_accessible(p, x, bytes, "zf_read", false);
    if (!id) return p->error.status;
    if (!data && bytes) return zfi_fail(&p->error, ZF_ERR_ARGUMENT, "zf_read: data is NULL");
    if (p->backend->synchronize(p->backend->self, &p->error)) return p->error.status;
    micro = p->graph->nodes[id].op == ZF_OP_input ? p->micro : p->graph->micro_batches - 1;
    if (p->tensor_of[id] >= 0)
        return zfi_store_get(p->store, p->tensor_of[id], data, id, "zf_read", &p->error);
    if (p->graph->nodes[id].op == ZF_OP_cache && zfi_check_kept_caches(p, "zf_read"))
        return p->error.status;
    if (!zfi_is_persistent(p->graph, &p->graph->nodes[id]) && !p->ran)
        return zfi_fail(&p->error, ZF_ERR_STAGE,
                        "zf_read: %%%d %s has no value yet: no step has run (zf_step, zf_micro)",
                        (int)id, p->graph->records[p->graph->nodes[id].op]->name);
    if (!zfi_is_persistent(p->graph, &p->graph->nodes[id]) && p->tasks && p->micro)
        return zfi_fail(&p->error, ZF_ERR_STAGE,
                        "zf_read: %%%d %s has no value between micro-batches: zf_step runs all of "
                        "them together",
                        (int)id, p->graph->records[p->graph->nodes[id].op]->name);
    for (int32_t k = 0; k < zfi_len(p->unwritten); k++)
        if (p->unwritten[k] == id)
            return zfi_fail(&p->error, ZF_ERR_STAGE,
                            "zf_read: the input \"%s\" has no value yet: zf_write gives it one",
                            p->graph->nodes[id].name);
    if (!zfi_is_persistent(p->graph, &p->graph->nodes[id]) &&
        zfi_was_overrun(p, (zf_space)p->graph->nodes[id].space))
        return zfi_fail(&p->error, ZF_ERR_STAGE,
                        "zf_read: %%%d was overwritten by another program, which has run in the "
                        "same memory since (zf_compile_desc.shares_memory_with)",
                        (int)id);
    return zfi_get_bytes(p->store, (zf_space)p->graph->nodes[id].space, data,
                         zfi_slot_address(p, id, micro), bytes, &p->error);
}
