/* Tensors that ranks along tensor, context and pipe share, as one rank would have them.
 *
 *     write    each rank takes what it has of the elements
 *     read     |====|....|    each part goes from one rank that has it to all ranks, also to those
 *              |....|====|    of other stages
 */

/* Tensor k is in pieces that are boxes of it. */
static bool zfi_is_in_boxes(const zf_store *s, int32_t k)
{
    return zfi_is_tiled(&s->tensors[k]) && zfi_is_box_of_whole(s, &s->tensors[s->tensors[k].next]);
}

/* Elements [first, until) of the whole tensor, at `from`: those that this rank has of them. */
static zf_status zfi_store_put_whole(zf_store *s, int32_t k, int64_t first, int64_t until,
                                     const char *from, zf_error *error)
{
    const zfi_rank_box box = zfi_stored_box(s, &s->tensors[k]);
    const size_t size = zf_dtype_size(s->tensors[k].dtype);
    zf_status status = ZF_OK;
    if (zfi_is_in_boxes(s, k)) {
        for (k = s->tensors[k].next; k >= 0 && !status; k = s->tensors[k].next)
            status = zfi_store_put_whole(s, k, first, until, from, error);
        return status;
    }
    if (!zfi_box_is_part(&box)) return zfi_store_put_range(s, k, first, until, from, error);
    for (int64_t at = first, run; at < until && !status; at += run) {
        const int64_t to = zfi_box_of_whole(&box, at, &run);
        run = zfi_min(run, until - at);
        if (to < 0) continue;
        status = zfi_store_put_range(s, k, to, to + run, from + (size_t)(at - first) * size, error);
    }
    return status;
}

/* A read of a whole tensor. */
typedef struct zfi_whole_read {
    zf_store *store;
    const zfi_stored *tensor; /* one of the store, or the type of an output */
    zf_program *program;      /* NULL: the tensor is the store's */
    zf_tensor output;         /* of the program */
    int32_t node;
    char *out, *own, *others; /* the whole; this rank's part, and that of another */
} zfi_whole_read;

/* Reads this rank's part. */
static zf_status zfi_get_own_part(const zfi_whole_read *r, const char *call, zf_error *error)
{
    if (r->program) return zf_read(r->program, r->output, r->own, zfi_stored_bytes(r->tensor));
    return zfi_store_get(r->store, (int32_t)(r->tensor - r->store->tensors), r->own, r->node, call,
                         error);
}

/* The part of a rank goes to all, into its place. Collective. */
static zf_status zfi_share_part(const zfi_whole_read *r, int32_t rank, zf_error *error)
{
    const zf_store *s = r->store;
    const zfi_stored *t = r->tensor;
    const zfi_rank_box box = zfi_stored_box_of(s, t, rank);
    char *part = rank == s->rank ? r->own : r->others;
    const size_t size = zf_dtype_size(t->dtype);
    const int64_t there = zf_shape_count(box.shape); /* without padding */
    const zf_collective c = {.op = ZF_OP_bcast,
                             .node = r->node,
                             .dtype = t->dtype,
                             .count = zfi_stored_count(t),
                             .in = part,
                             .out = part,
                             .root = rank};
    if (!c.count) return ZF_OK;
    if (s->comm->run(s->comm->self, &c, error)) return error->status;
    for (int64_t at = 0, n; at < there && part != r->out; at += n) {
        const int64_t whole = zfi_box_to_whole(&box, at, &n);
        n = zfi_min(n, there - at);
        memcpy(r->out + (size_t)whole * size, part + (size_t)at * size, (size_t)n * size);
    }
    return ZF_OK;
}

/* The same of each rank that is the first with its part. */
static zf_status zfi_share_parts(const zfi_whole_read *r, const char *call, zf_error *error)
{
    zf_store *s = r->store;
    const zfi_stored *t = r->tensor;
    const zfi_mesh mesh = zfi_store_mesh(s, 1);
    zf_status status = ZF_OK;
    if (!zfi_is_away(s, t)) status = zfi_get_own_part(r, call, error);
    for (int32_t rank = 0; rank < s->world && !status; rank++) {
        const bool has = !t->stage || zfi_mesh_place(mesh, ZF_OVER_PIPE, rank) + 1 == t->stage;
        if (has && !zfi_mesh_place(mesh, zfi_stored_over(s, t), rank) &&
            zfi_is_first_with(s, t, rank))
            status = zfi_share_part(r, rank, error);
    }
    return status;
}

/* All of a tensor as one rank would have it. Collective where ranks share it. */
static zf_status zfi_get_whole(zfi_whole_read *r, const char *call, zf_error *error)
{
    zf_store *s = r->store;
    const zfi_rank_box box = zfi_stored_box(s, r->tensor);
    const size_t bytes = zfi_box_is_part(&box) ? zfi_stored_bytes(r->tensor) : 0;
    char *room = NULL;
    zf_status status;
    r->own = r->others = r->out;
    if (!s->comm || !s->comm->run || (!bytes && !r->tensor->stage))
        return zfi_get_own_part(r, call, error);
    if (bytes && !(room = zfi_realloc(&s->memory, NULL, 0, 2 * bytes))) {
        s->memory.failed = false;
        status = zfi_nomem(error);
        if (s->comm->abort) s->comm->abort(s->comm->self, status, error->text);
        return status;
    }
    if (room) r->own = room, r->others = room + bytes;
    status = zfi_share_parts(r, call, error);
    zfi_free(&s->memory, room, 2 * bytes);
    return status;
}

/* The same of tensor k. */
static zf_status zfi_store_get_whole(zf_store *s, int32_t k, char *out, int32_t node,
                                     const char *call, zf_error *error)
{
    const bool boxes = zfi_is_in_boxes(s, k);
    zf_status status = ZF_OK;
    for (k = boxes ? s->tensors[k].next : k; k >= 0 && !status;
         k = boxes ? s->tensors[k].next : -1) {
        zfi_whole_read r = {.store = s, .tensor = &s->tensors[k], .node = node, .out = out};
        status = zfi_get_whole(&r, call, error);
    }
    return status;
}
