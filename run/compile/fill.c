/* First values of the tensors that a program adds to its store, made in pieces by all workers. */

/* First values are computed in pieces: at most ZFI_FILL_PIECE elements at a time, ZFI_FILL_TASK of
 * them per task. */
enum { ZFI_FILL_PIECE = 1 << 19, ZFI_FILL_TASK = 1 << 14 };

typedef struct zfi_fill_room {
    float *work;
    double *piece;
    int64_t count; /* elements of each array */
} zfi_fill_room;

/* Elements [first, first + count) of a leaf. A task computes ZFI_FILL_TASK of them. */
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
    zfi_first_values(f->program->graph, f->node, f->program->store->seed, f->program->run.rank,
                     f->first + at, n, f->room->work + at, to);
}

/* Computes elements [first, first + count) of a leaf into the room, on the backend's threads. */
static void zfi_make_piece(const zf_program *p, const zfi_node *node, int64_t first, int64_t count,
                           const zfi_fill_room *room)
{
    zfi_filling f = {p, node, room, first, count};
    int64_t tasks = (count + ZFI_FILL_TASK - 1) / ZFI_FILL_TASK;
    const zf_backend *shares = p->backend->share ? p->backend : p->store->host;
    if (tasks > 1 && shares && shares->share) {
        shares->share(shares->self, tasks, zfi_fill_task, &f);
        return;
    }
    for (int64_t k = 0; k < tasks; k++) zfi_fill_task(&f, k);
}

/* The parameter from which the leaf takes its first values, if they have changed since they were
 * drawn; -1: none. */
static int32_t zfi_source_of(const zf_program *p, int32_t id)
{
    const zf_store *s = p->store;
    int32_t of = p->tensor_of[id] < 0 ? -1 : s->tensors[p->tensor_of[id]].of;
    return of >= 0 && (!s->tensors[of].fresh || zfi_is_loose(s, of)) ? of : -1;
}

/* Copies elements [first, first + count) of master weights into the room, from this rank's part of
 * the parameter. */
static zf_status zfi_make_master(const zf_program *p, int32_t of, zf_dtype dtype, int64_t first,
                                 int64_t count, const zfi_fill_room *room)
{
    const zf_store *s = p->store;
    const zfi_stored *t = &s->tensors[of];
    const zfi_portion have = zfi_portion_of(s, of);
    const size_t size = zf_dtype_size(t->dtype);
    zf_status status;
    if (first < have.first || first + count > have.first + have.count)
        return zfi_fail(&p->graph->error, ZF_ERR_MISMATCH,
                        "zf_compile: master weights of \"%s\" are cut otherwise than the parameter "
                        "in the store",
                        t->name);
    if (zfi_is_loose(s, of)) zfi_loose_get(s, of, first, count, room->work);
    else if ((status = zfi_get_bytes(s, zfi_stored_space(s, t), room->work,
                                     have.data + (size_t)(first - have.first) * size,
                                     (size_t)count * size, &p->graph->error)))
        return status;
    zf_convert(room->piece, dtype, room->work, t->dtype, (size_t)count);
    return ZF_OK;
}

/* Writes the leaf's elements [first, first + count) to memory at `to`, a piece at a time: from host
 * memory, from its parameter, or its first values. */
static zf_status zfi_fill_leaf(zf_program *p, int32_t id, int64_t first, int64_t count, char *to,
                               zfi_fill_room *r)
{
    const zfi_node *node = &p->graph->nodes[id];
    const bool loose = zfi_is_loose(p->store, p->tensor_of[id]);
    int64_t size = (int64_t)zf_dtype_size(node->dtype);
    int32_t source = zfi_source_of(p, id);
    zf_status status = ZF_OK;
    for (int64_t at = 0; at < count && !status; at += r->count) {
        int64_t n = count - at < r->count ? count - at : r->count;
        if (loose) zfi_loose_get(p->store, p->tensor_of[id], first + at, n, r->piece);
        else if (source >= 0) status = zfi_make_master(p, source, node->dtype, first + at, n, r);
        else zfi_make_piece(p, node, first + at, n, r);
        if (!status)
            status = zfi_put_bytes(p->store, (zf_space)node->space, to + at * size, r->piece,
                                   (size_t)(n * size), &p->graph->error);
    }
    return status;
}

/* Fills this rank's shard of a bucket: zeros, then the values of the leaves at their places. */
static zf_status zfi_fill_bucket(zf_program *p, int32_t id, zfi_fill_room *room)
{
    const zfi_node *node = &p->graph->nodes[id];
    size_t bytes = zfi_node_bytes(node), n;
    const size_t most = (size_t)room->count * sizeof *room->piece;
    char *to = p->data[id];
    zf_status status = ZF_OK;
    memset(room->piece, 0, most);
    for (size_t at = 0; at < bytes && !status; at += n) {
        n = bytes - at < most ? bytes - at : most;
        status = zfi_put_bytes(p->store, (zf_space)node->space, to + at, room->piece, n,
                               &p->graph->error);
    }
    for (int32_t k = 0; k < node->arg_count && !status; k++) {
        zfi_portion has = zfi_portion_of(p->store, p->tensor_of[node->args[k]]);
        if (has.count > 0)
            status = zfi_fill_leaf(p, node->args[k], has.first, has.count, has.data, room);
    }
    return status;
}

/* The node has new memory that outlives a step. Temporary caches are cleared by zf_clear_caches. */
static bool zfi_has_first_values(const zf_program *p, const zfi_node *node)
{
    return node->placed && zfi_is_persistent(p->graph, node) &&
           !(p->temporary && node->op == ZF_OP_cache);
}

/* Fills leaves that were added to a bucket of the store. */
static zf_status zfi_fill_added(zf_program *p, int32_t id, zfi_fill_room *room)
{
    const zfi_node *node = &p->graph->nodes[id];
    zf_status status = ZF_OK;
    for (int32_t k = 0; k < node->arg_count && !status; k++) {
        int32_t index = p->tensor_of[node->args[k]];
        zfi_portion has = zfi_portion_of(p->store, index);
        if (has.count > 0 && (index >= p->first_added || zfi_is_loose(p->store, index)))
            status = zfi_fill_leaf(p, node->args[k], has.first, has.count, has.data, room);
    }
    return status;
}

/* Fills all persistent memory that was not in the store. */
static zf_status zfi_fill(zf_program *p)
{
    zf_graph *g = p->graph;
    zfi_fill_room room = {.count = 1};
    zf_status status = ZF_OK;
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        if (zfi_has_first_values(p, node) || node->op == ZF_OP_bucket)
            room.count = zfi_max(room.count, zfi_node_count(node));
    }
    room.count = zfi_min(room.count, ZFI_FILL_PIECE);
    room.work = zfi_calloc(&p->memory, (size_t)room.count, sizeof *room.work);
    room.piece = zfi_calloc(&p->memory, (size_t)room.count, sizeof *room.piece);
    if (!room.work || !room.piece) status = zfi_graph_nomem(g);
    for (int32_t i = 0; i < zfi_len(g->order) && !status; i++) {
        int32_t id = g->order[i];
        const zfi_node *node = &g->nodes[id];
        if (node->op == ZF_OP_bucket && !node->placed) status = zfi_fill_added(p, id, &room);
        if (!zfi_has_first_values(p, node)) continue;
        if (node->op == ZF_OP_bucket) status = zfi_fill_bucket(p, id, &room);
        else status = zfi_fill_leaf(p, id, 0, zfi_node_count(node), p->data[id], &room);
    }
    zfi_free(&p->memory, room.work, (size_t)room.count * sizeof *room.work);
    zfi_free(&p->memory, room.piece, (size_t)room.count * sizeof *room.piece);
    return status;
}
