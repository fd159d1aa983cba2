/* Stores: parameters and optimizer states in the memory of a backend, apart from the programs that
 * work with them; reading and writing them by name, whole, whatever each rank has of them.
 *
 *     read, of a tensor that is cut      rank 0: |=====|......|    each rank in turn sends its part
 *                                        rank 1: |.....|======|
 *
 * A store is freed when whoever made it and every program over it have given it up.
 */

ZF_API const char *zf_store_error(const zf_store *s)
{
    return s ? s->error.text : "there is no store";
}

ZF_API int64_t zf_store_step(const zf_store *s) { return s ? s->step : 0; }

/* The number of a training with a name; -1: it has done no step here, or has no name. */
static int32_t zfi_training_at(const zf_store *s, const char *name)
{
    for (int32_t k = 0; k < zfi_len(s->trained); k++)
        if (!strcmp(s->trained[k].name, name)) return k;
    return -1;
}

ZF_API int64_t zf_store_step_of(const zf_store *s, const char *training)
{
    int32_t k;
    if (!s || !training || !*training) return zf_store_step(s);
    k = zfi_training_at(s, training);
    return k < 0 ? 0 : s->trained[k].step;
}

/* The number of a training, which is added if the store has none of this name; -1: it has no name,
 * or memory is lacking. */
static int32_t zfi_training_added(zf_store *s, const char *name)
{
    int32_t k = *name ? zfi_training_at(s, name) : -1;
    if (!*name || k >= 0) return k;
    name = zfi_text_copy(&s->memory, &s->text, name, strlen(name));
    if (!name || !zfi_push(&s->memory, s->trained, ((zfi_trained){.name = name}))) return -1;
    return zfi_len(s->trained) - 1;
}

/* What computes in host memory, made where it is asked for first; NULL with *error. */
static zf_backend *zfi_store_host(zf_store *s, zf_error *error)
{
    if (!s->host) s->host = zfi_host_backend(s->backend, NULL);
    if (!s->host)
        s->host = s->own_host =
            zf_cpu_backend(&(zf_cpu_desc){.allocator = s->memory.allocator}, error);
    return s->host;
}

/* An address for memory of a store that plans, unlike all others of it. */
static void *zfi_plan_address(zf_store *s, size_t bytes)
{
    void *address = (void *)(s->next += ZFI_DISK_ALIGN);
    s->next += (bytes + ZFI_DISK_ALIGN - 1) / ZFI_DISK_ALIGN * ZFI_DISK_ALIGN;
    return address;
}

/* Memory of a space; NULL with *error. */
static void *zfi_allocate_in(zf_store *s, zf_space space, size_t bytes, zf_error *error)
{
    zf_backend *host;
    if (s->plans) return zfi_plan_address(s, bytes);
    if (space == ZF_DEVICE) return s->backend->allocate(s->backend->self, bytes, error);
    if (!(host = zfi_store_host(s, error))) return NULL;
    return s->backend->allocate_host ? s->backend->allocate_host(s->backend->self, bytes, error)
                                     : host->allocate(host->self, bytes, error);
}

static void zfi_release_in(zf_store *s, zf_space space, void *memory, size_t bytes)
{
    if (s->plans) return;
    if (space == ZF_DEVICE) s->backend->release(s->backend->self, memory, bytes);
    else if (s->backend->release_host) s->backend->release_host(s->backend->self, memory, bytes);
    else s->host->release(s->host->self, memory, bytes);
}

static void zfi_release_piece(zf_store *s, const zfi_piece *piece)
{
    if (piece->space == ZF_DISK) {
        zfi_disk_close(piece->disk);
        zfi_release_in(s, ZF_HOST, piece->engine, piece->engine_bytes);
    } else zfi_release_in(s, piece->space, piece->data, piece->bytes);
}

/* Counts the store among those that use what it was given, or no more: backends and a communicator
 * are not destroyed before. */
static void zfi_store_borrow(zf_store *s, int32_t more)
{
    zf_comm *comm = s->given_comm;
    for (int k = 0; k < ZFI_COUNT(s->given); k++) {
        zf_backend *b = s->given[k];
        if (b && !(b->stores += more) && b->freed) b->destroy(b->self);
    }
    if (comm && !(comm->stores += more) && comm->freed) comm->destroy(comm->self);
}

static void zfi_store_destroy(zf_store *s)
{
    zfi_memory memory = s->memory;
    for (int32_t k = 0; k < zfi_len(s->pieces); k++)
        zfi_release_piece(s, &s->pieces[k]);
    for (int32_t k = 0; k < zfi_len(s->tensors); k++)
        zfi_free(&memory, s->tensors[k].host, zfi_whole_bytes(s, &s->tensors[k]));
    zfi_array_free(&memory, s->tensors);
    zfi_array_free(&memory, s->buckets);
    zfi_array_free(&memory, s->pieces);
    zfi_array_free(&memory, s->trained);
    zfi_map_free(&memory, s->names);
    zfi_text_free(&memory, &s->text);
    zfi_free(&memory, s->room, ZFI_SAME_PIECE);
    if (s->records)
        zfi_free(&memory, s->records, (size_t)s->world * ZFI_SAME_FIELDS * sizeof *s->records);
    zf_backend_free(s->own_host);
    zf_backend_free(s->own_backend);
    zfi_store_borrow(s, -1);
    zfi_free(&memory, s, sizeof *s);
}

/* Whoever made the store, or a program over it, needs it no more. */
static void zfi_store_give_up(zf_store *s)
{
    if (s && --s->owners == 0) zfi_store_destroy(s);
}

ZF_API void zf_store_free(zf_store *s)
{
    if (!s || !s->made) return;
    s->made = false;
    zfi_store_give_up(s);
}

/* What a store needs besides its tensors. */
static zf_status zfi_store_open(zf_store *s, const zf_store_desc *d, zf_error *error)
{
    s->world = d->comm ? d->comm->world : 1;
    s->rank = d->comm ? d->comm->rank : 0;
    if (s->world < 1 || s->rank < 0 || s->rank >= s->world) {
        int32_t world = s->world;
        s->world = 1;
        return zfi_fail(error, ZF_ERR_ARGUMENT, "zf_store_new: rank %d of a world of %d",
                        (int)s->rank, (int)world);
    }
    if (!d->backend) {
        s->own_backend = zf_cpu_backend(&(zf_cpu_desc){.allocator = s->memory.allocator}, error);
        if (!s->own_backend) return error->status;
    }
    s->backend = d->backend ? d->backend : s->own_backend;
    s->host = d->host;
    if (d->offload_dir) {
        s->offload_dir =
            zfi_text_copy(&s->memory, &s->text, d->offload_dir, strlen(d->offload_dir));
        if (!s->offload_dir) return zfi_nomem(error);
    }
    if (s->host && !s->host->host_memory)
        return zfi_fail(error, ZF_ERR_ARGUMENT,
                        "zf_store_new: host must be a backend that computes in host memory, and %s "
                        "does not",
                        s->host->name);
    if (s->world < 2) return ZF_OK;
    s->room = zfi_realloc(&s->memory, NULL, 0, ZFI_SAME_PIECE);
    s->records = zfi_calloc(&s->memory, (size_t)s->world * ZFI_SAME_FIELDS, sizeof *s->records);
    return s->memory.failed ? zfi_nomem(error) : ZF_OK;
}

ZF_API zf_store *zf_store_new(const zf_store_desc *desc, zf_error *error)
{
    zf_store_desc d = desc ? *desc : (zf_store_desc){.seed = 0};
    zf_error failed = {ZF_OK, ""};
    zfi_memory memory = zfi_memory_of(&d.allocator);
    zf_store *s = zfi_calloc(&memory, 1, sizeof *s);
    if (!s) {
        zfi_nomem(error);
        return NULL;
    }
    s->memory = memory;
    s->comm = d.comm;
    s->seed = d.seed;
    s->memory_limit = d.memory_limit;
    s->plans = d.plan_only;
    s->owners = 1, s->made = true;
    if (!zfi_store_open(s, &d, &failed)) {
        s->given[0] = d.backend, s->given[1] = d.host == d.backend ? NULL : d.host;
        s->given_comm = d.comm && d.comm->destroy ? (zf_comm *)d.comm : NULL;
        zfi_store_borrow(s, 1);
        return s;
    }
    zfi_store_destroy(s);
    zfi_fail(error, failed.status, "%s", failed.text);
    return NULL;
}

/* ----------------------------------------------------------------------------------- asking */

ZF_API int32_t zf_store_count(const zf_store *s) { return s ? zfi_len(s->tensors) : 0; }

ZF_API int32_t zf_store_find(const zf_store *s, const char *name)
{
    return zfi_store_find(s, name);
}

ZF_API zf_stored zf_store_at(const zf_store *s, int32_t index)
{
    zf_stored out = {.bucket = -1};
    const zfi_stored *t;
    const zfi_stored_bucket *b;
    zfi_portion portion;
    if (index < 0 || index >= zf_store_count(s)) return out;
    t = &s->tensors[index];
    b = t->bucket < 0 ? NULL : &s->buckets[t->bucket];
    portion = zfi_portion_of(s, index);
    out = (zf_stored){.name = t->name,
                      .state = t->op == ZF_OP_state,
                      .adapter = t->adapter,
                      .dtype = t->dtype,
                      .shape = t->shape,
                      .master_of = t->of < 0 || t->role != ZFI_ROLE_MASTER ? NULL
                                                                           : s->tensors[t->of].name,
                      .bucket = t->bucket,
                      .at = t->at,
                      .bucket_size = b ? b->size : zfi_stored_count(t),
                      .world = b ? b->world : 1,
                      .first = portion.first,
                      .count = portion.count,
                      .piece_of = t->whole < 0 ? NULL : s->tensors[t->whole].name,
                      .from = t->from};
    return out;
}

ZF_API zf_store_info zf_store_info_of(const zf_store *s)
{
    zf_store_info info = {0};
    if (!s) return info;
    info.bytes = s->bytes[ZF_DEVICE];
    info.program_bytes = s->program_bytes[ZF_DEVICE];
    info.offloaded_bytes = s->bytes[ZF_HOST];
    info.host_program_bytes = s->program_bytes[ZF_HOST];
    info.disk_bytes = s->bytes[ZF_DISK];
    for (int32_t k = 0; k < zfi_len(s->tensors); k++) {
        const zfi_stored *t = &s->tensors[k];
        if (zfi_is_tiled(t) || zfi_is_away(s, t)) continue;
        if (t->bucket < 0) info.host_bytes += zfi_stored_bytes(t);
        *(t->op == ZF_OP_param ? &info.param_count : &info.state_count) += zfi_stored_count(t);
    }
    return info;
}

/* ----------------------------------------------------------------------------------- adding */

/* How far a store was filled, to go back there. */
typedef struct zfi_store_mark {
    int32_t tensors, buckets, pieces;
} zfi_store_mark;

static zfi_store_mark zfi_store_mark_of(const zf_store *s)
{
    return (zfi_store_mark){zfi_len(s->tensors), zfi_len(s->buckets), zfi_len(s->pieces)};
}

/* Takes away what was added since. What was loose is so again. */
static void zfi_store_go_back(zf_store *s, zfi_store_mark mark)
{
    for (int32_t k = 0; k < mark.tensors; k++) {
        zfi_stored *t = &s->tensors[k];
        while (t->next >= mark.tensors) t->next = s->tensors[t->next].next;
        while (t->follower >= mark.tensors) t->follower = s->tensors[t->follower].next_follower;
    }
    while (zfi_len(s->tensors) > mark.tensors) {
        zfi_stored *t = &stbds_arrlast(s->tensors);
        zfi_free(&s->memory, t->host, zfi_whole_bytes(s, t));
        stbds_header(s->tensors)->length--;
    }
    for (int32_t k = 0; k < zfi_len(s->tensors); k++) {
        zfi_stored *t = &s->tensors[k];
        if (t->host) {
            t->shape = zfi_whole_shape(s, t), t->spread = (zfi_spread){.sum = 0};
            t->bucket = -1, t->at = 0, t->stage = 0;
        }
        if (t->of >= mark.tensors) t->of = t->next_follower = -1;
    }
    if (s->buckets) stbds_header(s->buckets)->length = (size_t)mark.buckets;
    while (zfi_len(s->pieces) > mark.pieces) {
        zfi_piece piece = stbds_arrlast(s->pieces);
        zfi_release_piece(s, &piece);
        s->bytes[piece.space] -= piece.bytes;
        s->bytes[ZF_HOST] -= piece.engine_bytes;
        stbds_header(s->pieces)->length--;
    }
    s->memory.failed = false;
}

/* Adds a tensor, whose name is copied; its index, or -1 for lack of memory. */
static int32_t zfi_store_add(zf_store *s, zfi_stored t)
{
    int32_t index = zfi_len(s->tensors);
    t.name = zfi_text_copy(&s->memory, &s->text, t.name, strlen(t.name));
    t.whole = t.next = t.linked = t.follower = t.next_follower = -1;
    if (!t.name) return -1;
    s->names = zfi_map_put(&s->memory, s->names, t.name, index + 1);
    if (s->memory.failed || !zfi_push(&s->memory, s->tensors, t)) return -1;
    return index;
}

/* Makes tensor k one that begins with the values of the parameter `of`. */
static void zfi_store_follow(zf_store *s, int32_t k, int32_t of)
{
    zfi_stored *t = &s->tensors[k];
    int32_t *at = t->of < 0 ? NULL : &s->tensors[t->of].follower;
    if (t->of == of) return;
    while (at && *at >= 0 && *at != k) at = &s->tensors[*at].next_follower;
    if (at && *at == k) *at = t->next_follower;
    t->of = of, t->next_follower = s->tensors[of].follower, s->tensors[of].follower = k;
}

/* Makes a tensor a piece of another, which has no values of its own then. */
static void zfi_store_link(zf_store *s, int32_t whole, int32_t piece, int64_t from)
{
    const int32_t last = s->tensors[whole].linked;
    const bool after = last >= 0 && last < zfi_len(s->tensors) && s->tensors[last].whole == whole &&
                       s->tensors[last].from < from;
    int32_t *at = &s->tensors[after ? last : whole].next;
    while (*at >= 0 && s->tensors[*at].from < from) at = &s->tensors[*at].next;
    s->tensors[piece].whole = whole, s->tensors[piece].from = from;
    s->tensors[piece].next = *at;
    *at = s->tensors[whole].linked = piece;
}

/* The first page that begins in memory. */
static char *zfi_page_at(char *memory)
{
    return memory + (ZFI_DISK_ALIGN - (uintptr_t)memory % ZFI_DISK_ALIGN) % ZFI_DISK_ALIGN;
}

/* Makes a file for tensors on the disk, which are `values`, and take so many bytes of it; what
 * reads and writes them lies in `engine_bytes` of host memory. Their addresses, or NULL with
 * *error. */
static char *zfi_store_add_disk(zf_store *s, zfi_disk_value *values, int32_t count, size_t bytes,
                                size_t engine_bytes, zf_error *error)
{
    zfi_piece piece = {.bytes = (size_t)zfi_disk_file_bytes((int64_t)bytes),
                       .space = ZF_DISK,
                       .engine_bytes = engine_bytes};
    char run[64]; /* no other store that lives has this name */
    if (s->plans) {
        if (!zfi_push(&s->memory, s->pieces, piece)) return zfi_nomem(error), NULL;
        s->bytes[ZF_DISK] += piece.bytes, s->bytes[ZF_HOST] += engine_bytes;
        return stbds_arrlast(s->pieces).data = zfi_plan_address(s, bytes);
    }
    if (!s->offload_dir)
        return zfi_fail(
                   error, ZF_ERR_ARGUMENT,
                   "zf_compile: the plan takes %zu bytes of a disk, and the store has no folder "
                   "for them (zf_store_desc.offload_dir)",
                   bytes),
               NULL;
    for (int32_t k = 0; k < count; k++) {
        values[k].name =
            zfi_text_copy(&s->memory, &s->text, values[k].name, strlen(values[k].name));
        if (!values[k].name) return zfi_nomem(error), NULL;
    }
    snprintf(run, sizeof run, "zeroflow-%ld-%zx-%d", (long)getpid(), (size_t)(uintptr_t)s,
             (int)zfi_len(s->pieces));
    piece.engine = zfi_allocate_in(s, ZF_HOST, engine_bytes, error);
    if (!piece.engine) return NULL;
    piece.disk = zfi_disk_open(&s->memory,
                               &(zfi_disk_desc){.folder = s->offload_dir,
                                                .run = run,
                                                .rank = s->rank,
                                                .world = s->world,
                                                .bytes = (int64_t)bytes,
                                                .values = values,
                                                .count = count,
                                                .host = zfi_page_at(piece.engine),
                                                .system = s->system},
                               error);
    if (piece.disk) piece.data = piece.disk->base;
    if (piece.disk && zfi_push(&s->memory, s->pieces, piece)) {
        s->bytes[ZF_DISK] += piece.bytes;
        s->bytes[ZF_HOST] += engine_bytes;
        return piece.data;
    }
    if (piece.disk) zfi_nomem(error);
    zfi_release_piece(s, &piece);
    return NULL;
}

/* Allocates memory of a space for tensors; NULL with *error. */
static char *zfi_store_add_piece(zf_store *s, zf_space space, size_t bytes, zf_error *error)
{
    zfi_piece piece = {.bytes = bytes, .space = space};
    piece.data = zfi_allocate_in(s, space, bytes, error);
    if (!piece.data) return NULL;
    if (zfi_push(&s->memory, s->pieces, piece)) {
        s->bytes[space] += bytes;
        return piece.data;
    }
    zfi_release_in(s, space, piece.data, bytes);
    zfi_nomem(error);
    return NULL;
}

/* -------------------------------------------------------------------------- reading, writing */

/* Copies between host memory and what this rank has of a tensor, `at` being in there. */
static zf_status zfi_stored_get(const zf_store *s, const zfi_stored *t, void *out, const char *at,
                                size_t bytes, zf_error *error)
{
    return zfi_get_bytes(s, zfi_stored_space(s, t), out, at, bytes, error);
}

static zf_status zfi_stored_put(const zf_store *s, const zfi_stored *t, char *at, const void *from,
                                size_t bytes, zf_error *error)
{
    return zfi_put_bytes(s, zfi_stored_space(s, t), at, from, bytes, error);
}

/* Refuses a call for all of a tensor in pieces of which this rank has parts; `does`: what the call
 * for the whole does. */
static zf_status zfi_refuse_pieces(const zf_store *s, int32_t k, const char *call, const char *does,
                                  zf_error *error)
{
    if (!zfi_has_cut_pieces(s, &s->tensors[k])) return ZF_OK;
    return zfi_fail(error, ZF_ERR_ARGUMENT,
                    "%s: \"%.255s\" is in pieces of which ranks have parts: zf_%s_whole %ss all "
                    "of it",
                    call, s->tensors[k].name, does, does);
}

/* Elements [from, until) of a parameter, at `data`, into its master weights, tensor k. */
static zf_status zfi_store_put_master(zf_store *s, int32_t k, int64_t from, int64_t until,
                                      const char *data, zf_error *error)
{
    enum { ROOM = 4096 };
    double room[ROOM];
    zfi_stored *t = &s->tensors[k];
    const zf_dtype narrow = s->tensors[t->of].dtype;
    const zfi_portion portion = zfi_portion_of(s, k);
    int64_t at = from > portion.first ? from : portion.first,
            end = until < portion.first + portion.count ? until : portion.first + portion.count, n;
    zf_status status = ZF_OK;
    t->fresh = false;
    for (; at < end && !status; at += n) {
        n = end - at < ROOM ? end - at : ROOM;
        zf_convert(room, t->dtype, data + (size_t)(at - from) * zf_dtype_size(narrow), narrow,
                   (size_t)n);
        status = zfi_stored_put(
            s, t, portion.data + (size_t)(at - portion.first) * zf_dtype_size(t->dtype), room,
            (size_t)n * zf_dtype_size(t->dtype), error);
    }
    return status;
}

/* All of a tensor into what this rank has of it, and into its master weights. */
static zf_status zfi_store_put_range(zf_store *s, int32_t index, int64_t first, int64_t until,
                                     const char *from, zf_error *error)
{
    zfi_stored *t = &s->tensors[index];
    const zfi_portion portion = zfi_portion_of(s, index);
    const size_t size = zf_dtype_size(t->dtype);
    int64_t at = first > portion.first ? first : portion.first,
            end = until < portion.first + portion.count ? until : portion.first + portion.count;
    zf_status status = ZF_OK;
    s->puts++;
    if (zfi_is_away(s, t)) return ZF_OK;
    for (int32_t k = zfi_is_tiled(t) ? t->next : -1; k >= 0 && !status; k = s->tensors[k].next) {
        const int64_t begin = s->tensors[k].from, stop = begin + zfi_stored_count(&s->tensors[k]);
        const int64_t a = first > begin ? first : begin, b = until < stop ? until : stop;
        if (a < b)
            status = zfi_store_put_range(s, k, a - begin, b - begin,
                                         from + (size_t)(a - first) * size, error);
    }
    if (zfi_is_tiled(t)) return status;
    if (at < end)
        status =
            zfi_stored_put(s, t, portion.data + (size_t)(at - portion.first) * size,
                           from + (size_t)(at - first) * size, (size_t)(end - at) * size, error);
    t->fresh = false;
    if (portion.cut)
        t->sum = zfi_crc32c(first ? t->sum : 0, from, (size_t)(until - first) * size);
    for (int32_t k = t->follower; k >= 0 && !status; k = s->tensors[k].next_follower)
        status = zfi_store_put_master(s, k, first, until, from, error);
    return status;
}

/* All elements. */
static zf_status zfi_store_put(zf_store *s, int32_t index, const char *from, zf_error *error)
{
    return zfi_store_put_range(s, index, 0, zfi_stored_count(&s->tensors[index]), from, error);
}

/* All of a tensor. Collective where it is cut; node: its id, for messages of the communicator. */
static zf_status zfi_store_get(const zf_store *s, int32_t index, char *out, int32_t node,
                               const char *call, zf_error *error)
{
    const zfi_stored *t = &s->tensors[index];
    const zfi_mesh mesh = zfi_store_mesh(s, 1);
    const int64_t over = zfi_stored_over(s, t);
    const zf_group group = zfi_mesh_group(mesh, over, s->rank);
    zfi_portion mine = zfi_portion_of(s, index);
    zf_status status = ZF_OK;
    if (zfi_is_away(s, t))
        return zfi_fail(error, ZF_ERR_ARGUMENT,
                        "%s: \"%s\" is of stage %d of the pipeline, and this rank is of stage %d",
                        call, t->name, (int)t->stage - 1, (int)zfi_store_stage(s) - 1);
    if ((status = zfi_refuse_pieces(s, index, call, "read", error))) return status;
    for (int32_t k = zfi_is_tiled(t) ? t->next : -1; k >= 0 && !status; k = s->tensors[k].next)
        status = zfi_store_get(s, k, out + (size_t)s->tensors[k].from * zf_dtype_size(t->dtype),
                               node, call, error);
    if (zfi_is_tiled(t)) return status;
    if (!mine.cut) return zfi_stored_get(s, t, out, mine.data, zfi_stored_bytes(t), error);
    if (!s->comm->run)
        return zfi_fail(error, ZF_ERR_ARGUMENT,
                        "%s: \"%s\" is cut over the ranks, which the communicator cannot ask "
                        "(zf_comm.run is NULL); zf_lockstep_read can",
                        call, t->name);
    for (int32_t k = 0; k < zfi_mesh_size(mesh, over); k++) { /* of this rank's group */
        const int32_t r = group.count ? group.first + k * group.stride : k;
        zfi_portion portion = zfi_portion_of_rank(s, t, r);
        zf_collective c = {.op = ZF_OP_bcast,
                           .node = node,
                           .dtype = t->dtype,
                           .count = portion.count,
                           .root = k,
                           .group = group};
        if (zfi_is_replica(s, t, r)) continue;
        c.out = out + (size_t)portion.first * zf_dtype_size(t->dtype);
        c.in = r == s->rank ? portion.data : c.out;
        if (r == s->rank && zfi_stored_space(s, t) != ZF_DEVICE) { /* ranks exchange memory alone */
            c.in = c.out;
            if (zfi_stored_get(s, t, c.out, portion.data,
                               (size_t)portion.count * zf_dtype_size(t->dtype), error)) {
                if (s->comm->abort) s->comm->abort(s->comm->self, error->status, error->text);
                return error->status;
            }
        }
        if (c.count && s->comm->run(s->comm->self, &c, error)) return error->status;
    }
    return ZF_OK;
}

/* The index of a tensor of so many bytes, or -1 with the store's error. */
static int32_t zfi_store_named(zf_store *s, const char *name, size_t bytes, const char *call)
{
    int32_t index = zfi_store_find(s, name);
    char quoted[ZFI_QUOTE], type[ZFI_TYPE_TEXT];
    s->error = (zf_error){ZF_OK, ""};
    if (index < 0) {
        zfi_fail(&s->error, ZF_ERR_ARGUMENT, "%s: the store has no tensor %s", call,
                 name ? zfi_quote(quoted, name, strlen(name)) : "NULL");
        return -1;
    }
    if (bytes == zfi_stored_bytes(&s->tensors[index])) return index;
    zfi_fail(&s->error, ZF_ERR_ARGUMENT, "%s: \"%s\" is %s, %zu bytes, not %zu", call, name,
             zfi_type_text(type, s->tensors[index].dtype, &s->tensors[index].shape),
             zfi_stored_bytes(&s->tensors[index]), bytes);
    return -1;
}

ZF_API zf_status zf_store_read(zf_store *s, const char *name, void *data, size_t bytes)
{
    int32_t index;
    if (!s) return ZF_ERR_ARGUMENT;
    if ((index = zfi_store_named(s, name, bytes, "zf_store_read")) < 0) return s->error.status;
    if (!data && bytes)
        return zfi_fail(&s->error, ZF_ERR_ARGUMENT, "zf_store_read: data is NULL");
    if (s->backend->synchronize(s->backend->self, &s->error)) return s->error.status;
    return zfi_store_get(s, index, data, 0, "zf_store_read", &s->error);
}

ZF_API zf_status zf_store_write(zf_store *s, const char *name, const void *data, size_t bytes)
{
    int32_t index;
    if (!s) return ZF_ERR_ARGUMENT;
    if ((index = zfi_store_named(s, name, bytes, "zf_store_write")) < 0) return s->error.status;
    if (!data && bytes)
        return zfi_fail(&s->error, ZF_ERR_ARGUMENT, "zf_store_write: data is NULL");
    if (zfi_refuse_pieces(s, index, "zf_store_write", "write", &s->error)) return s->error.status;
    return zfi_store_put(s, index, data, &s->error);
}

/* Refuses a copy where one store has a tensor in pieces of which ranks have parts, and the other
 * has it whole or in other pieces. */
static zf_status zfi_check_same_pieces(zf_store *to, const zfi_stored *t, const zf_store *from,
                                       const char *call)
{
    const int32_t same = zfi_store_find(from, t->name),
                  whole = t->whole < 0 ? -1 : zfi_store_find(from, to->tensors[t->whole].name);
    if (same < 0 ? whole < 0 : zfi_is_copied(from, &from->tensors[same])) return ZF_OK;
    return zfi_fail(&to->error, ZF_ERR_MISMATCH,
                    "%s: \"%.300s\" is in pieces in one store, and whole or in other pieces in the "
                    "other: give zf_divide the same sections for both",
                    call, t->name);
}

/* Tensors that both stores have are of one kind, dtype and shape. */
static zf_status zfi_store_check_copy(zf_store *to, const zf_store *from, size_t *most)
{
    char here[ZFI_TYPE_TEXT], there[ZFI_TYPE_TEXT];
    for (int32_t k = 0; k < zfi_len(to->tensors); k++) {
        const zfi_stored *t = &to->tensors[k], *x;
        int32_t other = zfi_store_find(from, t->name);
        if (!zfi_is_copied(to, t) || zfi_is_away(to, t)) continue;
        if (zfi_check_same_pieces(to, t, from, "zf_store_copy")) return to->error.status;
        if (other < 0) continue;
        x = &from->tensors[other];
        if (t->op != x->op || t->dtype != x->dtype || !zfi_same_shape(&t->shape, &x->shape))
            return zfi_fail(&to->error, ZF_ERR_MISMATCH,
                            "zf_store_copy: \"%s\" is a %s %s here and a %s %s there", t->name,
                            zfi_stored_kind(t), zfi_type_text(here, t->dtype, &t->shape),
                            zfi_stored_kind(x), zfi_type_text(there, x->dtype, &x->shape));
        if (zfi_stored_bytes(t) > *most) *most = zfi_stored_bytes(t);
    }
    return ZF_OK;
}

ZF_API zf_status zf_store_copy(zf_store *to, zf_store *from)
{
    /* Parameters first: with them go master weights */
    static const zf_op kinds[] = {ZF_OP_param, ZF_OP_state};
    size_t most = 1;
    zf_status status;
    char *room;
    bool all = true; /* of the tensors are copied */
    if (!to) return ZF_ERR_ARGUMENT;
    to->error = (zf_error){ZF_OK, ""};
    if (!from) return zfi_fail(&to->error, ZF_ERR_ARGUMENT, "zf_store_copy: no store to copy from");
    if ((status = zfi_check_defined(from, "zf_store_copy", &to->error))) return status;
    if ((status = zfi_store_check_copy(to, from, &most))) return status;
    if ((status = to->backend->synchronize(to->backend->self, &to->error))) return status;
    if ((status = from->backend->synchronize(from->backend->self, &to->error))) return status;
    if (!(room = zfi_realloc(&to->memory, NULL, 0, most))) {
        to->memory.failed = false;
        return zfi_nomem(&to->error);
    }
    for (int n = 0; n < 2; n++)
        for (int32_t k = 0; k < zfi_len(to->tensors) && !status; k++) {
            int32_t other = zfi_store_find(from, to->tensors[k].name);
            const zfi_stored *t = &to->tensors[k];
            if (!zfi_is_copied(to, t)) continue;
            all &= other >= 0;
            if (other < 0 || t->op != kinds[n] || zfi_is_away(to, t)) continue;
            status = zfi_store_get(from, other, room, 0, "zf_store_copy", &to->error);
            if (!status) status = zfi_store_put(to, k, room, &to->error);
        }
    zfi_free(&to->memory, room, most);
    to->undefined = status || (to->undefined && !all);
    return status;
}
