/* Saving a checkpoint, in phases, each of which all ranks end before any begins the next:
 *
 *     begin     rank 0 makes PATH.zf-new
 *     write     all: device -> piece -> PATH.zf-new/FILE; then the list of what was written
 *     commit    rank 0: the manifest, and PATH.zf-new becomes PATH
 */

/* What one rank writes: the whole tensors (rank 0 does), or its parts of others. */
typedef struct zfi_list {
    int32_t rank;        /* of the files' names; -1: what is whole */
    bool there[2];       /* by kind: there is such a file */
    uint32_t headers[2]; /* checksums of the headers */
    uint32_t *sums;      /* of every piece, tensor after tensor; a growing array */
} zfi_list;

typedef struct zfi_saving {
    zf_store *store;
    const char *path;
    zf_save_desc d;
    zfi_memory memory;
    char *piece;
    bool *wanted; /* by tensor: the checkpoint has it */
    bool cut;     /* ranks have parts of it */
    zfi_list whole, parts;
    char aside[ZFI_ASIDE_MAX]; /* "": not begun by this rank, or committed */
    int lock;                  /* of aside, by rank 0; -1: none */
} zfi_saving;

static bool zfi_is_utf8(const char *text)
{
    size_t left = strlen(text), bytes;
    for (; left; text += bytes, left -= bytes)
        if (!(bytes = (size_t)zfi_utf8_bytes((const unsigned char *)text, left))) return false;
    return true;
}

static zf_status zfi_check_save(const zf_save_desc *d, zf_error *error)
{
    char quoted[ZFI_QUOTE];
    if (d->note_count < 0 || (d->note_count && !d->notes) || d->attachment_count < 0 ||
        (d->attachment_count && !d->attachments))
        return zfi_fail(error, ZF_ERR_ARGUMENT,
                        "zf_save: %d notes and %d attachments, but not where they are",
                        (int)d->note_count, (int)d->attachment_count);
    for (int32_t i = 0; i < d->note_count; i++) {
        const zf_note *note = &d->notes[i];
        if (!note->key || !note->value)
            return zfi_fail(error, ZF_ERR_ARGUMENT, "zf_save: note %d has no %s", (int)i,
                            note->key ? "value" : "key");
        if (!zfi_is_utf8(note->key) || !zfi_is_utf8(note->value))
            return zfi_fail(error, ZF_ERR_ARGUMENT, "zf_save: note %d, %s, is not UTF-8", (int)i,
                            zfi_quote(quoted, note->key, strlen(note->key)));
        for (int32_t k = 0; k < i; k++)
            if (!strcmp(d->notes[k].key, note->key))
                return zfi_fail(error, ZF_ERR_ARGUMENT, "zf_save: notes %d and %d have one key, %s",
                                (int)k, (int)i, zfi_quote(quoted, note->key, strlen(note->key)));
    }
    for (int32_t i = 0; i < d->attachment_count; i++) {
        const zf_attachment *file = &d->attachments[i];
        if (!file->name || (!file->data && file->bytes))
            return zfi_fail(error, ZF_ERR_ARGUMENT, "zf_save: attachment %d has no %s", (int)i,
                            file->name ? "data" : "name");
        zfi_quote(quoted, file->name, strlen(file->name));
        if (!zfi_is_attachment(file->name))
            return zfi_fail(
                error, ZF_ERR_ARGUMENT,
                "zf_save: no attachment can be named %s: a name has 1 to 200 letters, "
                "digits, '.', '-' and '_', does not begin with '.', and is not %s, %s, %s, rank-*, "
                "%s.rank-*, %s.rank-* or *.zf-new",
                quoted, zfi_manifest_name, zfi_kinds[0].file, zfi_kinds[1].file, zfi_kinds[0].stem,
                zfi_kinds[1].stem);
        for (int32_t k = 0; k < i; k++)
            if (!strcmp(d->attachments[k].name, file->name))
                return zfi_fail(error, ZF_ERR_ARGUMENT,
                                "zf_save: attachments %d and %d have one name, %s", (int)k, (int)i,
                                quoted);
    }
    return ZF_OK;
}

/* --------------------------------------------------------------------------------- tensors */

/* The tensor that is named in files: the whole one of a piece. */
static const zfi_stored *zfi_named_tensor(const zf_store *s, const zfi_stored *t)
{
    return t->whole < 0 ? t : &s->tensors[t->whole];
}

/* Another rank writes what this one has of a tensor, since it has the same: the first along each
 * axis along which they are equal does. */
static bool zfi_another_writes(const zf_store *s, const zfi_stored *t, bool sharded)
{
    const zfi_mesh mesh = zfi_store_mesh(s, zfi_store_nodes(s));
    if (!sharded && zfi_mesh_place(mesh, zfi_stored_over(s, t), s->rank)) return true;
    if (!zfi_is_first_with(s, t, s->rank)) return true;
    return sharded && zfi_is_replica(s, t, s->rank);
}

/* Rank 0 does not have all of it. */
static bool zfi_is_in_parts(const zf_store *s, const zfi_stored *t, bool sharded)
{
    const zfi_rank_box box = zfi_stored_box(s, t);
    return sharded || t->stage > 1 || zfi_box_is_part(&box);
}

/* Elements of what this rank has of a tensor, without padding. */
static int64_t zfi_box_count(const zf_store *s, const zfi_stored *t)
{
    const zfi_rank_box box = zfi_stored_box(s, t);
    return zf_shape_count(box.shape);
}

/* The list has something of tensor k; *portion is what. One in pieces that are whole on each rank
 * is listed itself; of pieces that are sharded, or boxes, each. */
static bool zfi_list_has(const zfi_saving *s, const zfi_list *list, int kind, int32_t k,
                         zfi_portion *portion)
{
    const zf_store *store = s->store;
    const zfi_stored *t = &store->tensors[k];
    const int32_t first = zfi_is_tiled(t) ? t->next : k;
    bool sharded, apart;
    if (zfi_kind_of(t) != kind || zfi_is_away(store, t)) return false;
    *portion = zfi_portion_of(store, first);
    sharded = portion->cut;
    apart = sharded || zfi_is_box_of_whole(store, &store->tensors[first]);
    if (t->whole >= 0 ? !apart : zfi_is_tiled(t) && apart) return false;
    if (zfi_is_tiled(t)) portion->count = zfi_stored_count(t);
    portion->count = zfi_min(portion->count, zfi_max(0, zfi_box_count(store, t) - portion->first));
    portion->first += zfi_stored_from(store, t);
    portion->cut = zfi_is_in_parts(store, t, sharded);
    return portion->cut == (list->rank >= 0) && (portion->count || !portion->cut) &&
           !zfi_another_writes(store, t, sharded) && s->wanted[k];
}

/* Whether all floats in `bytes` bytes are finite: no exponent is all ones. */
static bool zfi_is_finite(zf_dtype dtype, const void *data, size_t bytes)
{
    const size_t size = zf_dtype_size(dtype), count = bytes / size;
    const uint32_t *words = data;
    const uint16_t *halves = data;
    const uint64_t *longs = data;
    const uint16_t ones = dtype == ZF_F16 ? 0x7c00 : 0x7f80;
    bool bad = false;
    if (!zfi_is_float(dtype)) return true;
    for (size_t i = 0; i < count && size == 2; i++) bad |= (halves[i] & ones) == ones;
    for (size_t i = 0; i < count && size == 4; i++) bad |= (words[i] & 0x7f800000) == 0x7f800000;
    for (size_t i = 0; i < count && size == 8; i++)
        bad |= (longs[i] & 0x7ff0000000000000) == 0x7ff0000000000000;
    return !bad;
}

/* Bytes [at, at + bytes) of the portion, to s->piece. */
static zf_status zfi_save_get(zfi_saving *s, const zfi_stored *t, const zfi_portion *portion,
                              size_t at, size_t bytes)
{
    const zf_store *store = s->store;
    const size_t size = zf_dtype_size(t->dtype);
    zf_status status = ZF_OK;
    if (!zfi_is_tiled(t))
        return zfi_stored_get(store, t, s->piece, portion->data + at, bytes, &s->store->error);
    for (int32_t k = t->next; k >= 0 && !status; k = store->tensors[k].next) {
        const zfi_stored *piece = &store->tensors[k];
        const size_t begin = (size_t)piece->from * size, end = begin + zfi_stored_bytes(piece);
        const size_t from = at > begin ? at : begin, until = end < at + bytes ? end : at + bytes;
        if (begin >= at + bytes) break;
        if (from < until)
            status = zfi_stored_get(store, piece, s->piece + (from - at),
                                    zfi_stored_data(store, piece) + (from - begin), until - from,
                                    &s->store->error);
    }
    return status;
}

static zf_status zfi_save_tensor(zfi_saving *s, zfi_list *list, zf_safetensors_writer *file,
                                 int32_t index, const zfi_stored *t, const zfi_portion *portion)
{
    zf_error *error = &s->store->error;
    size_t bytes = (size_t)portion->count * zf_dtype_size(t->dtype), n;
    zf_status status = ZF_OK;
    for (size_t at = 0; at < bytes && !status; at += n) {
        n = bytes - at < ZFI_PIECE ? bytes - at : ZFI_PIECE;
        status = zfi_save_get(s, t, portion, at, n);
        if (status) return zfi_fail(error, status, "zf_save: %s cannot be read", t->name);
        if (s->d.finite && !zfi_is_finite(t->dtype, s->piece, n))
            return zfi_fail(error, ZF_ERR_NAN,
                            "zf_save: step %lld: %s is not finite, so nothing is saved: %s stays "
                            "as it was",
                            (long long)s->store->step, t->name, zfi_path_tail(s->path));
        if (zf_safetensors_write(file, index, s->piece, n)) return ZF_OK; /* finishing will tell */
        if (!zfi_push(&s->memory, list->sums, file->tensors[index].crc)) return zfi_nomem(error);
        file->tensors[index].crc = 0; /* the next piece has its own */
    }
    return status;
}

/* The file of one kind of tensors, if it has any. A checkpoint without parameters has an empty file
 * of them. */
static zf_status zfi_save_file(zfi_saving *s, zfi_list *list, int kind)
{
    zf_store *store = s->store;
    char name[ZFI_FILE_NAME], path[ZFI_ASIDE_MAX], part[ZFI_PART_NAME];
    zf_safetensors_writer *file;
    zfi_portion portion;
    zf_status status = ZF_OK;
    int32_t count = 0, n = 0;
    for (int32_t i = 0; i < zfi_len(store->tensors); i++)
        count += zfi_list_has(s, list, kind, i, &portion);
    if (!count && (kind || s->cut)) return ZF_OK;
    zfi_tensor_file(name, kind, list->rank, store->world);
    if (zfi_file_in(path, s->aside, name, &store->error)) return store->error.status;
    file = zf_safetensors_writer_new(path, &s->memory.allocator, &store->error);
    if (!file) return store->error.status;
    file->checksums = true;
    list->there[kind] = true;
    for (int32_t i = 0; i < zfi_len(store->tensors); i++) {
        const zfi_stored *t = &store->tensors[i];
        if (!zfi_list_has(s, list, kind, i, &portion)) continue;
        zfi_part_name(part, (zfi_is_box_of_whole(store, t) ? t : zfi_named_tensor(store, t))->name,
                      list->rank, portion.first, portion.count);
        zf_safetensors_declare(file, part, t->dtype,
                               portion.cut ? ZF_SHAPE(portion.count) : t->shape);
    }
    for (int32_t i = 0; i < zfi_len(store->tensors) && !status && !file->error.status; i++)
        if (zfi_list_has(s, list, kind, i, &portion))
            status = zfi_save_tensor(s, list, file, n++, &store->tensors[i], &portion);
    if (!status) status = zf_safetensors_finish(file, &store->error);
    if (!status)
        status = zfi_file_sum(path, file->start, s->piece, &list->headers[kind], &store->error);
    zf_safetensors_writer_free(file);
    return status;
}

/* ----------------------------------------------------------------------------------- lists */

static void zfi_put_sum(zf_json_writer *json, const char *key, uint32_t crc)
{
    char sum[12];
    zf_json_put_key(json, key);
    zf_json_put_string(json, zfi_sum_text(sum, crc));
}

/* text NULL: null */
static void zfi_put_text(zf_json_writer *json, const char *key, const char *text)
{
    zf_json_put_key(json, key);
    zf_json_put_string(json, text);
}

/* The role of a state, and its parameter; of a parameter of an adapter, the adapter. */
static void zfi_put_role(zf_json_writer *json, const zfi_stored *t)
{
    if (t->op == ZF_OP_state)
        zfi_put_text(json, "role", t->role ? zfi_roles[t->role].text : NULL);
    if (t->op == ZF_OP_state && zfi_roles[t->role].kind == ZFI_OF_STATE)
        zfi_put_text(json, "of", t->param);
    if (t->op == ZF_OP_param && t->adapter) {
        zfi_put_text(json, "role", zfi_roles[ZFI_ROLE_ADAPTER].text);
        zfi_put_text(json, "adapter", t->adapter);
    }
}

/* The member "box" of what ranks have boxes of: [from, until) along each dimension, and its
 * runs. */
static void zfi_put_box(zf_json_writer *json, const zfi_rank_box *box)
{
    if (!zfi_box_is_part(box)) return;
    zf_json_put_key(json, "box");
    zf_json_begin_array(json);
    for (int axis = 0; axis < box->shape.rank; axis++) {
        int64_t stride;
        const int64_t at = box->share.at[axis], run = zfi_box_run(box, axis, &stride);
        zf_json_begin_array(json);
        zf_json_put_int(json, at);
        if (box->share.run[axis]) {
            zf_json_put_int(json, at + (box->shape.dims[axis] / run - 1) * stride + run);
            zf_json_put_int(json, run);
            zf_json_put_int(json, stride);
        } else zf_json_put_int(json, at + run);
        zf_json_end(json);
    }
    zf_json_end(json);
}

/* One of "tensors"; returns how many of the sums it has. piece: that of t which it is; NULL. */
static size_t zfi_put_tensor(zf_json_writer *json, const zfi_stored *t, const char *piece,
                             const zfi_rank_box *box,
                             const zfi_portion *portion, int kind, const char *file,
                             const uint32_t *sums)
{
    size_t bytes = (size_t)portion->count * zf_dtype_size(t->dtype),
           count = bytes / ZFI_PIECE + (bytes % ZFI_PIECE != 0);
    char sum[12];
    zf_json_begin_object(json);
    zfi_put_text(json, "name", t->name);
    zfi_put_text(json, "kind", zfi_kinds[kind].name);
    zfi_put_role(json, t);
    zfi_put_text(json, "dtype", zf_dtype_name(t->dtype));
    zf_json_put_key(json, "shape");
    zf_json_begin_array(json);
    for (int axis = 0; axis < box->share.whole.rank; axis++)
        zf_json_put_int(json, box->share.whole.dims[axis]);
    zf_json_end(json);
    if (piece) zfi_put_text(json, "piece", piece);
    if (portion->cut) {
        zfi_put_box(json, box);
        zf_json_put_key(json, "first");
        zf_json_put_int(json, portion->first);
        zf_json_put_key(json, "count");
        zf_json_put_int(json, portion->count);
    }
    zfi_put_text(json, "file", file);
    zf_json_put_key(json, "crc32c");
    zf_json_begin_array(json);
    for (size_t i = 0; i < count; i++) zf_json_put_string(json, zfi_sum_text(sum, sums[i]));
    zf_json_end(json);
    zf_json_end(json);
    return count;
}

/* The members "headers" and "tensors". */
static void zfi_put_list(const zfi_saving *s, const zfi_list *list, zf_json_writer *json)
{
    const zf_store *store = s->store;
    const uint32_t *sums = list->sums;
    char file[ZFI_FILE_NAME];
    zfi_portion portion;
    zf_json_put_key(json, "headers");
    zf_json_begin_object(json);
    for (int kind = 0; kind < 2; kind++)
        if (list->there[kind])
            zfi_put_sum(json, zfi_tensor_file(file, kind, list->rank, s->store->world),
                        list->headers[kind]);
    zf_json_end(json);
    zf_json_put_key(json, "tensors");
    zf_json_begin_array(json);
    for (int kind = 0; kind < 2; kind++) {
        zfi_tensor_file(file, kind, list->rank, s->store->world);
        for (int32_t i = 0; i < zfi_len(store->tensors); i++) {
            const zfi_stored *has = &store->tensors[i], *t = zfi_named_tensor(store, has);
            const bool boxed = zfi_is_box_of_whole(store, has);
            const zfi_rank_box box = zfi_stored_box(store, boxed ? has : t);
            if (zfi_list_has(s, list, kind, i, &portion))
                sums += zfi_put_tensor(json, t, boxed ? has->name : NULL, &box, &portion, kind,
                                       file, sums);
        }
    }
    zf_json_end(json);
}

/* Writes the text to a file of the checkpoint, and frees it. */
static zf_status zfi_save_json(zfi_saving *s, zf_json_writer *json, const char *name)
{
    zf_error *error = &s->store->error;
    char path[ZFI_ASIDE_MAX];
    if (!json) return zfi_nomem(error);
    if (stbds_arrlenu(json->text) >= ZFI_JSON_FILE_LIMIT)
        zfi_fail(error, ZF_ERR_LIMIT,
                 "zf_save: notes and names make a %s of %zu bytes; it must be under %d",
                 strcmp(name, zfi_manifest_name) ? name : "manifest", stbds_arrlenu(json->text),
                 ZFI_JSON_FILE_LIMIT);
    else if (!zfi_file_in(path, s->aside, name, error)) zf_json_save(json, path, error);
    zf_json_writer_free(json);
    return error->status;
}

/* The list of this rank's parts. */
static zf_status zfi_save_parts(zfi_saving *s)
{
    char name[ZFI_FILE_NAME];
    zf_json_writer *json = zf_json_writer_new(2, &s->memory.allocator);
    zf_json_begin_object(json);
    if (json) zfi_put_list(s, &s->parts, json);
    zf_json_end(json);
    return zfi_save_json(s, json, zfi_rank_file(name, s->parts.rank, s->store->world));
}

/* The member "ranks": the checksums of all ranks' lists, which are there. */
static zf_status zfi_put_ranks(zfi_saving *s, zf_json_writer *json)
{
    zf_error *error = &s->store->error;
    char name[ZFI_FILE_NAME], path[ZFI_ASIDE_MAX];
    uint32_t crc = 0;
    zf_json_put_key(json, "ranks");
    zf_json_begin_object(json);
    for (int32_t r = 0; r < s->store->world; r++) {
        zfi_rank_file(name, r, s->store->world);
        if (zfi_file_in(path, s->aside, name, error) ||
            zfi_file_sum(path, UINT64_MAX, s->piece, &crc, error))
            return error->status;
        zfi_put_sum(json, name, crc);
    }
    zf_json_end(json);
    return ZF_OK;
}

/* The steps of trainings with names, if any has done one. */
static void zfi_put_trainings(const zf_store *s, zf_json_writer *json)
{
    bool some = false;
    for (int32_t k = 0; k < zfi_len(s->trained); k++) {
        if (!s->trained[k].step) continue;
        if (!some) zf_json_put_key(json, "steps"), zf_json_begin_object(json);
        some = true;
        zf_json_put_key(json, s->trained[k].name);
        zf_json_put_int(json, s->trained[k].step);
    }
    if (some) zf_json_end(json);
}

static zf_status zfi_put_manifest(zfi_saving *s, zf_json_writer *json)
{
    const zf_save_desc *d = &s->d;
    char text[32];
    zf_json_begin_object(json);
    zf_json_put_key(json, "library");
    zf_json_put_string(json, "zeroflow");
    zf_json_put_key(json, "format");
    zf_json_put_int(json, s->store->axes.count ? ZFI_CHECKPOINT_FORMAT : ZFI_FORMAT_WITHOUT_BOXES);
    zf_json_put_key(json, "step");
    zf_json_put_int(json, s->store->step);
    zfi_put_trainings(s->store, json);
    zf_json_put_key(json, "seed");
    /* 64 bits without a sign are more than JSON's readers promise to keep */
    snprintf(text, sizeof text, "%llu", (unsigned long long)s->store->seed);
    zf_json_put_string(json, text);
    zf_json_put_key(json, "notes");
    zf_json_begin_object(json);
    for (int32_t i = 0; i < d->note_count; i++) {
        zf_json_put_key(json, d->notes[i].key);
        zf_json_put_string(json, d->notes[i].value);
    }
    zf_json_end(json);
    zf_json_put_key(json, "attachments");
    zf_json_begin_object(json);
    for (int32_t i = 0; i < d->attachment_count; i++)
        zfi_put_sum(json, d->attachments[i].name,
                    zfi_crc32c(0, d->attachments[i].data, d->attachments[i].bytes));
    zf_json_end(json);
    if (s->cut && zfi_put_ranks(s, json)) return s->store->error.status;
    zfi_put_list(s, &s->whole, json);
    zf_json_put_key(json, "crc32c");
    if (!json->error.status)
        zf_json_put_string(
            json, zfi_sum_text(text, zfi_crc32c(0, json->text, stbds_arrlenu(json->text))));
    zf_json_end(json);
    return ZF_OK;
}

static zf_status zfi_save_manifest(zfi_saving *s)
{
    zf_json_writer *json = zf_json_writer_new(2, &s->memory.allocator);
    if (!json) return zfi_nomem(&s->store->error);
    if (!zfi_put_manifest(s, json)) return zfi_save_json(s, json, zfi_manifest_name);
    zf_json_writer_free(json);
    return s->store->error.status;
}

static zf_status zfi_save_attachments(zfi_saving *s)
{
    zf_error *error = &s->store->error;
    char path[ZFI_ASIDE_MAX];
    for (int32_t i = 0; i < s->d.attachment_count; i++) {
        const zf_attachment *file = &s->d.attachments[i];
        if (zfi_file_in(path, s->aside, file->name, error) ||
            zfi_file_save(path, file->data, file->bytes, error))
            return error->status;
    }
    return ZF_OK;
}

/* ---------------------------------------------------------------------------------- phases */

/* The number of a rank's files: those of ranks along data have the order of their shards. */
static int32_t zfi_file_rank(const zf_store *s)
{
    const zfi_mesh mesh = zfi_store_mesh(s, zfi_store_nodes(s));
    const int32_t place = zfi_mesh_place(mesh, ZF_OVER_DATA, s->rank);
    return s->rank + (zfi_mesh_shard(mesh, mesh.world, s->rank) - place) *
                         zfi_mesh_stride(mesh, ZF_OVER_DATA);
}

static zf_status zfi_save_begin(zfi_saving *s)
{
    zf_store *store = s->store;
    zf_status status;
    if (!s->path) return zfi_fail(&store->error, ZF_ERR_ARGUMENT, "zf_save: no path");
    if (!*s->path) return zfi_fail(&store->error, ZF_ERR_ARGUMENT, "an empty path");
    if ((status = zfi_check_defined(store, "zf_save", &store->error))) return status;
    if ((status = zfi_check_save(&s->d, &store->error))) return status;
    status = store->backend->synchronize(store->backend->self, &store->error);
    if (status) return zfi_fail(&store->error, status, "zf_save: the backend failed");
    s->whole.rank = -1;
    s->parts.rank = zfi_file_rank(store);
    s->cut = store->axes.count > 0;
    s->memory = zfi_memory_of(&store->memory.allocator);
    s->piece = zfi_realloc(&s->memory, NULL, 0, ZFI_PIECE);
    s->wanted = zfi_calloc(&s->memory, (size_t)zfi_len(store->tensors), sizeof *s->wanted);
    if (!s->piece || !s->wanted) return zfi_nomem(&store->error);
    for (int32_t k = 0; k < zfi_len(store->tensors); k++) {
        zf_stored about = zf_store_at(
            store, (int32_t)(zfi_named_tensor(store, &store->tensors[k]) - store->tensors));
        s->wanted[k] = !s->d.select || s->d.select(s->d.user, &about);
        s->cut |= s->wanted[k] && zfi_portion_of(store, k).cut;
    }
    if (store->rank) return ZF_OK;
    status = zfi_directory_begin(s->path, zfi_manifest_name, s->aside, &store->error);
    if (!status && (s->lock = zfi_directory_lock(s->aside, &store->error)) < 0) status = ZF_ERR_IO;
    if (status) *s->aside = '\0';
    return status;
}

static zf_status zfi_save_write(zfi_saving *s)
{
    zf_store *store = s->store;
    zf_status status = ZF_OK;
    if (store->rank) { /* where rank 0 has begun */
        char place[ZFI_PATH_MAX];
        if (!s->cut) return ZF_OK;
        if ((status = zfi_path_resolve(s->path, place, &store->error))) return status;
        snprintf(s->aside, sizeof s->aside, "%s.zf-new", place);
    }
    for (int kind = 0; kind < 2 && !status && !store->rank; kind++)
        status = zfi_save_file(s, &s->whole, kind);
    for (int kind = 0; kind < 2 && !status && s->cut; kind++)
        status = zfi_save_file(s, &s->parts, kind);
    if (!status && s->cut) status = zfi_save_parts(s);
    if (!status && !store->rank) status = zfi_save_attachments(s);
    return status;
}

static zf_status zfi_save_commit(zfi_saving *s)
{
    zf_status status;
    if (s->store->rank) return ZF_OK;
    if ((status = zfi_save_manifest(s))) return status;
    if (!zfi_directory_is(s->lock, s->aside)) {
        status = zfi_fail(&s->store->error, ZF_ERR_IO,
                          "cannot write %s: somebody else is "
                          "writing it too",
                          zfi_path_tail(s->aside));
        *s->aside = '\0'; /* it is theirs */
        return status;
    }
    status = zfi_directory_commit(s->aside, zfi_manifest_name, &s->store->error);
    *s->aside = '\0';
    return status;
}

/* Removes what was not committed. */
static void zfi_save_end(zfi_saving *s)
{
    if (*s->aside && !s->store->rank) zfi_directory_abandon(s->aside, zfi_manifest_name);
    if (s->lock >= 0) close(s->lock);
    zfi_array_free(&s->memory, s->whole.sums);
    zfi_array_free(&s->memory, s->parts.sums);
    zfi_free(&s->memory, s->piece, ZFI_PIECE);
    zfi_free(&s->memory, s->wanted, (size_t)zfi_len(s->store->tensors) * sizeof *s->wanted);
}

static zf_status (*const zfi_save_phases[])(zfi_saving *) = {zfi_save_begin, zfi_save_write,
                                                             zfi_save_commit};
