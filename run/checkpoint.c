/* Checkpoints: a directory with everything that a bitwise continuation needs.
 *
 *     PATH/params.safetensors   the parameters, under their own names
 *     PATH/state.safetensors    the states; not there when there are none
 *     PATH/manifest.json        what belongs to the checkpoint, and its checksums
 *     PATH/vocab.txt ...        the caller's files
 *
 *     {
 *       "library": "zeroflow", "format": 1, "step": 5, "seed": "1",
 *       "notes": {"position": "1280"},
 *       "attachments": {"vocab.txt": "8a9136aa"},
 *       "headers": {"params.safetensors": "5cc0a2d1"},
 *       "tensors": [{"name": "w", "kind": "param", "dtype": "f32", "shape": [2, 3],
 *                    "file": "params.safetensors", "crc32c": "e3069283"}],
 *       "crc32c": "62a8ab43"
 *     }
 *
 * Every byte is under a CRC-32C: the data of a tensor under that of its entry, what stands in front
 * of the data under "headers", and the manifest under its last member, which covers all that stands
 * before its own value. Tensors are a list, not an object by name, so that a later format can list
 * a tensor in parts.
 *
 *     saving    device -> piece -> PATH.zf-new/FILE for every file, then PATH.zf-new becomes PATH
 *     loading   FILE -> piece for everything, to check it; then again FILE -> piece -> device
 */
enum { ZFI_PIECE = 4 << 20, ZFI_CHECKPOINT_FORMAT = 1 };

static const char zfi_manifest_name[] = "manifest.json";

static const struct {
    const char *name, *file;
} zfi_kinds[2] = {{"param", "params.safetensors"}, {"state", "state.safetensors"}};

/* The kind of a node: an index into zfi_kinds, or -1 when checkpoints do not hold it. */
static int zfi_kind_of(const zfi_node *node)
{
    return node->op == ZF_OP_param ? 0 : node->op == ZF_OP_state ? 1 : -1;
}

/* DIRECTORY/NAME into out. */
static zf_status zfi_file_in(char out[ZFI_ASIDE_MAX], const char *directory, const char *name,
                             zf_error *error)
{
    if (zfi_path_join(out, directory, name)) return ZF_OK;
    return zfi_fail(error, ZF_ERR_ARGUMENT, "%s: too long a path", zfi_path_tail(directory));
}

static const char *zfi_sum_text(char out[12], uint32_t crc)
{
    snprintf(out, 12, "%08x", (unsigned)crc);
    return out;
}

/* The checksum of the first `bytes` of a file, UINT64_MAX: of all of it. piece: ZFI_PIECE bytes. */
static zf_status zfi_file_sum(const char *path, uint64_t bytes, void *piece, uint32_t *crc,
                              zf_error *error)
{
    uint64_t size;
    zf_status status = ZF_OK;
    int file = zfi_file_open(path, &size, error);
    if (file < 0) return error->status;
    if (bytes == UINT64_MAX) bytes = size;
    *crc = 0;
    for (uint64_t at = 0; at < bytes && !status; at += ZFI_PIECE) {
        size_t part = bytes - at < ZFI_PIECE ? (size_t)(bytes - at) : ZFI_PIECE;
        status = zfi_file_read(file, path, at, piece, part, error);
        if (!status) *crc = zfi_crc32c(*crc, piece, part);
    }
    close(file);
    return status;
}

/* May the caller's file have that name? It must be none of the checkpoint's own, none that a file
 * being written has, and must not lead out of the directory. */
static bool zfi_is_attachment(const char *name)
{
    size_t length = strlen(name);
    if (!length || length > 200 || *name == '.') return false;
    for (size_t i = 0; i < length; i++)
        if (!zfi_is_word((unsigned char)name[i]) && name[i] != '.' && name[i] != '-') return false;
    if (length > 7 && !strcmp(name + length - 7, ".zf-new")) return false;
    return strcmp(name, zfi_manifest_name) && strcmp(name, zfi_kinds[0].file) &&
           strcmp(name, zfi_kinds[1].file);
}

/* ---------------------------------------------------------------------------------- saving */

typedef struct zfi_saving {
    zf_program *program;
    zfi_memory memory;
    char *piece;
    zf_safetensors_writer *files[2]; /* by kind */
    uint32_t headers[2];             /* their checksums */
    char aside[ZFI_ASIDE_MAX];
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
            return zfi_fail(error, ZF_ERR_ARGUMENT,
                            "zf_save: no attachment can be named %s: a name has 1 to 200 letters, "
                            "digits, '.', '-' and "
                            "'_', does not begin with '.', and is not %s, %s, %s or *.zf-new",
                            quoted, zfi_manifest_name, zfi_kinds[0].file, zfi_kinds[1].file);
        for (int32_t k = 0; k < i; k++)
            if (!strcmp(d->attachments[k].name, file->name))
                return zfi_fail(error, ZF_ERR_ARGUMENT,
                                "zf_save: attachments %d and %d have one name, %s", (int)k, (int)i,
                                quoted);
    }
    return ZF_OK;
}

/* The file of one kind of tensors. Without any, parameters have an empty one and states none. */
static zf_status zfi_save_tensors(zfi_saving *s, int kind)
{
    zf_program *p = s->program;
    const zf_graph *g = p->graph;
    char path[ZFI_ASIDE_MAX];
    zf_safetensors_writer *file;
    zf_status status = ZF_OK;
    int32_t count = 0;
    for (int32_t i = 0; i < zfi_len(g->order); i++)
        count += zfi_kind_of(&g->nodes[g->order[i]]) == kind;
    if (!count && kind) return ZF_OK;
    if (zfi_file_in(path, s->aside, zfi_kinds[kind].file, &p->error)) return p->error.status;
    file = s->files[kind] = zf_safetensors_writer_new(path, &s->memory.allocator, &p->error);
    if (!file) return p->error.status;
    file->checksums = true;
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        if (zfi_kind_of(node) == kind)
            zf_safetensors_declare(file, node->name, node->dtype, node->shape);
    }
    for (int32_t i = 0, n = 0; i < zfi_len(g->order) && !file->error.status; i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        const char *data = p->data[g->order[i]];
        size_t bytes = zfi_node_bytes(node), part;
        if (zfi_kind_of(node) != kind) continue;
        for (size_t at = 0; at < bytes && !file->error.status; at += part) {
            part = bytes - at < ZFI_PIECE ? bytes - at : ZFI_PIECE;
            status = p->backend->copy(p->backend->self, s->piece, data + at, part,
                                      ZF_DEVICE_TO_HOST, &p->error);
            if (status)
                return zfi_fail(&p->error, status, "zf_save: %s cannot be read", node->name);
            zf_safetensors_write(file, n, s->piece, part);
        }
        n++;
    }
    status = zf_safetensors_finish(file, &p->error);
    return status ? status
                  : zfi_file_sum(path, file->start, s->piece, &s->headers[kind], &p->error);
}

static zf_status zfi_save_attachments(zfi_saving *s, const zf_save_desc *d)
{
    zf_error *error = &s->program->error;
    char path[ZFI_ASIDE_MAX];
    for (int32_t i = 0; i < d->attachment_count; i++) {
        const zf_attachment *file = &d->attachments[i];
        if (zfi_file_in(path, s->aside, file->name, error) ||
            zfi_file_save(path, file->data, file->bytes, error))
            return error->status;
    }
    return ZF_OK;
}

static void zfi_put_tensor(zf_json_writer *json, const zfi_safetensors_output *tensor, int kind)
{
    char sum[12];
    zf_json_begin_object(json);
    zf_json_put_key(json, "name");
    zf_json_put_string(json, tensor->name);
    zf_json_put_key(json, "kind");
    zf_json_put_string(json, zfi_kinds[kind].name);
    zf_json_put_key(json, "dtype");
    zf_json_put_string(json, zf_dtype_name(tensor->dtype));
    zf_json_put_key(json, "shape");
    zf_json_begin_array(json);
    for (int axis = 0; axis < tensor->shape.rank; axis++)
        zf_json_put_int(json, tensor->shape.dims[axis]);
    zf_json_end(json);
    zf_json_put_key(json, "file");
    zf_json_put_string(json, zfi_kinds[kind].file);
    zf_json_put_key(json, "crc32c");
    zf_json_put_string(json, zfi_sum_text(sum, tensor->crc));
    zf_json_end(json);
}

static void zfi_put_manifest(const zfi_saving *s, const zf_save_desc *d, zf_json_writer *json)
{
    char text[32], sum[12];
    zf_json_begin_object(json);
    zf_json_put_key(json, "library");
    zf_json_put_string(json, "zeroflow");
    zf_json_put_key(json, "format");
    zf_json_put_int(json, ZFI_CHECKPOINT_FORMAT);
    zf_json_put_key(json, "step");
    zf_json_put_int(json, s->program->steps);
    zf_json_put_key(
        json, "seed"); /* 64 bits without a sign are more than JSON's readers promise to keep */
    snprintf(text, sizeof text, "%llu", (unsigned long long)s->program->run.seed);
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
    for (int32_t i = 0; i < d->attachment_count; i++) {
        zf_json_put_key(json, d->attachments[i].name);
        zf_json_put_string(json, zfi_sum_text(sum, zfi_crc32c(0, d->attachments[i].data,
                                                              d->attachments[i].bytes)));
    }
    zf_json_end(json);
    zf_json_put_key(json, "headers");
    zf_json_begin_object(json);
    for (int kind = 0; kind < 2; kind++) {
        if (!s->files[kind]) continue;
        zf_json_put_key(json, zfi_kinds[kind].file);
        zf_json_put_string(json, zfi_sum_text(sum, s->headers[kind]));
    }
    zf_json_end(json);
    zf_json_put_key(json, "tensors");
    zf_json_begin_array(json);
    for (int kind = 0; kind < 2; kind++)
        for (int32_t i = 0; s->files[kind] && i < zfi_len(s->files[kind]->tensors); i++)
            zfi_put_tensor(json, &s->files[kind]->tensors[i], kind);
    zf_json_end(json);
    zf_json_put_key(json, "crc32c");
}

static zf_status zfi_save_manifest(zfi_saving *s, const zf_save_desc *d)
{
    zf_json_writer *json = zf_json_writer_new(2, &s->memory.allocator);
    zf_error *error = &s->program->error;
    char path[ZFI_ASIDE_MAX], sum[12];
    zf_status status;
    if (!json) return zfi_nomem(error);
    zfi_put_manifest(s, d, json);
    if (!json->error.status)
        zf_json_put_string(json,
                           zfi_sum_text(sum, zfi_crc32c(0, json->text, stbds_arrlenu(json->text))));
    zf_json_end(json);
    if (stbds_arrlenu(json->text) >= ZFI_JSON_FILE_LIMIT)
        status =
            zfi_fail(error, ZF_ERR_LIMIT,
                     "zf_save: notes and names make a manifest of %zu bytes; it must be under %d",
                     stbds_arrlenu(json->text), ZFI_JSON_FILE_LIMIT);
    else if (!(status = zfi_file_in(path, s->aside, zfi_manifest_name, error)))
        status = zf_json_save(json, path, error);
    zf_json_writer_free(json);
    return status;
}

ZF_API zf_status zf_save(zf_program *p, const char *path, const zf_save_desc *desc)
{
    zf_save_desc d = desc ? *desc : (zf_save_desc){.notes = NULL};
    zfi_saving s = {.program = p};
    zf_status status;
    if (!p) return ZF_ERR_ARGUMENT;
    zfi_clear_error(p);
    if (!path) return zfi_fail(&p->error, ZF_ERR_ARGUMENT, "zf_save: no path");
    if (p->share)
        return zfi_fail(
            &p->error, ZF_ERR_STAGE,
            "zf_save: the parameters are those of the program that this one shares: save that one");
    if ((status = zfi_check_save(&d, &p->error))) return status;
    status = p->backend->synchronize(p->backend->self, &p->error);
    if (status) return zfi_fail(&p->error, status, "zf_save: the backend failed");
    s.memory = zfi_memory_of(&p->memory.allocator);
    s.piece = zfi_realloc(&s.memory, NULL, 0, ZFI_PIECE);
    if (!s.piece) return zfi_nomem(&p->error);
    status = zfi_directory_begin(path, zfi_manifest_name, s.aside, &p->error);
    if (!status) {
        status = zfi_save_tensors(&s, 0);
        if (!status) status = zfi_save_tensors(&s, 1);
        if (!status) status = zfi_save_attachments(&s, &d);
        if (!status) status = zfi_save_manifest(&s, &d);
        zf_safetensors_writer_free(s.files[0]);
        zf_safetensors_writer_free(s.files[1]);
        if (status) zfi_directory_abandon(s.aside);
        else status = zfi_directory_commit(s.aside, &p->error);
    }
    zfi_free(&s.memory, s.piece, ZFI_PIECE);
    return status;
}

/* --------------------------------------------------------------------------------- loading */

typedef struct zfi_manifest {
    zfi_memory memory;
    char path[ZFI_ASIDE_MAX];
    char *text; /* as it is in the file */
    size_t bytes;
    zf_json *json;
} zfi_manifest;

static zf_status zfi_json_to_sum(const zf_json *value, uint32_t *out, zf_error *error)
{
    size_t bytes = 0;
    const char *text = zf_json_string(value, &bytes);
    uint32_t crc = 0;
    if (!value) return ZF_OK;
    for (size_t i = 0; i < bytes && i < 8; i++) {
        int digit = text[i] >= '0' && text[i] <= '9'   ? text[i] - '0'
                    : text[i] >= 'a' && text[i] <= 'f' ? text[i] - 'a' + 10
                                                       : -1;
        if (digit < 0) bytes = 0;
        crc = crc << 4 | (uint32_t)(digit & 15);
    }
    if (bytes != 8)
        return zf_json_expected(value, error, "a checksum: eight of the digits 0-9 and a-f");
    *out = crc;
    return ZF_OK;
}

static zf_status zfi_sum_fail(zf_error *error, const char *file, const char *what, uint32_t crc,
                              uint32_t expected)
{
    return zfi_fail(
        error, ZF_ERR_FORMAT, "%s: %s%schecksum %08x, the manifest says %08x; the file is damaged",
        zfi_path_tail(file), what, *what ? ": " : "", (unsigned)crc, (unsigned)expected);
}

/* Puts back what a stopped commit left aside. Nothing is asked of the file system when there is
 * nothing, so that a checkpoint may lie where nobody can write. */
static zf_status zfi_checkpoint_recover(const char *path, zf_error *error)
{
    char place[ZFI_PATH_MAX], old[ZFI_ASIDE_MAX];
    struct stat about;
    zf_status status = zfi_path_resolve(path, place, error);
    if (status) return status;
    snprintf(old, sizeof old, "%s.zf-old", place);
    return stat(old, &about) ? ZF_OK : zfi_directory_recover(path, error);
}

static zf_status zfi_manifest_find(const char *path, char out[ZFI_ASIDE_MAX], zf_error *error)
{
    struct stat about;
    bool missing;
    zf_status status;
    if (!path || !*path) return zfi_fail(error, ZF_ERR_ARGUMENT, "an empty path");
    if ((status = zfi_file_in(out, path, zfi_manifest_name, error))) return status;
    missing = stat(out, &about) && errno == ENOENT;
    if (missing && (status = zfi_checkpoint_recover(path, error))) return status;
    if (stat(out, &about) == 0) return ZF_OK;
    if (stat(path, &about)) return zfi_io_fail(error, "open", path);
    if (!S_ISDIR(about.st_mode))
        return zfi_fail(error, ZF_ERR_FORMAT, "%s is no checkpoint: it is not a directory",
                        zfi_path_tail(path));
    if (missing)
        return zfi_fail(error, ZF_ERR_FORMAT, "%s is no checkpoint: it has no %s",
                        zfi_path_tail(path), zfi_manifest_name);
    return ZF_OK; /* opening it will tell */
}

/* The manifest is this library's, of this format, and as it was written. */
static zf_status zfi_manifest_check(const zfi_manifest *m, zf_error *error)
{
    static const char end[] = "\"\n}\n"; /* what is behind the checksum's digits */
    const char *library = zf_json_string(zf_json_member(m->json, "library"), NULL);
    const zf_json *format, *sum;
    int64_t version = 0;
    uint32_t expected = 0, crc;
    size_t at;
    if (!library || strcmp(library, "zeroflow"))
        return zfi_fail(error, ZF_ERR_FORMAT, "%s is not the manifest of a zeroflow checkpoint",
                        zfi_path_tail(m->path));
    format = zf_json_require(m->json, "format", error);
    if (!format || zf_json_to_int(format, 1, INT64_MAX, &version, error)) return ZF_ERR_FORMAT;
    if (version != ZFI_CHECKPOINT_FORMAT)
        return zf_json_expected(format, error, "%d, the format that this version of zeroflow reads",
                                ZFI_CHECKPOINT_FORMAT);
    sum = zf_json_require(m->json, "crc32c", error);
    if (!sum || zfi_json_to_sum(sum, &expected, error)) return ZF_ERR_FORMAT;
    at = sum->start; /* of the digits; the quote in front is not under the checksum */
    crc = zfi_crc32c(0, m->text, at - 1);
    if (crc != expected) return zfi_sum_fail(error, m->path, "", crc, expected);
    if (m->bytes != at + 8 + strlen(end) || memcmp(m->text + at + 8, end, strlen(end)))
        return zf_json_fail(sum, error, "is not the end of the manifest; the file is damaged");
    return ZF_OK;
}

static void zfi_manifest_free(zfi_manifest *m)
{
    zf_json_free(m->json);
    zfi_free(&m->memory, m->text, m->bytes + 1);
}

/* On failure there is nothing to free. */
static zf_status zfi_manifest_read(zfi_manifest *m, const char *path, const zf_allocator *allocator,
                                   zf_error *error)
{
    zf_error failed = {ZF_OK, ""};
    *m = (zfi_manifest){.memory = zfi_memory_of(allocator)};
    if (!zfi_manifest_find(path, m->path, &failed) &&
        (m->text = zfi_file_load(&m->memory, m->path, ZFI_JSON_FILE_LIMIT, &m->bytes, &failed)) &&
        (m->json = zfi_json_parse(m->text, m->bytes, zfi_path_tail(m->path), allocator, &failed)) &&
        !zfi_manifest_check(m, &failed))
        return ZF_OK;
    zfi_manifest_free(m);
    return zfi_fail(error, failed.status, "%s", failed.text);
}

/* What the checkpoint holds for a node. */
typedef struct zfi_stored {
    bool there;
    int32_t index; /* in the file */
    uint32_t crc;
} zfi_stored;

typedef struct zfi_loading {
    zf_program *program;
    const char *path;
    bool params_only;
    zfi_memory memory;
    zfi_manifest manifest;
    zf_safetensors *files[2]; /* by kind; NULL: not there */
    int32_t listed[2];        /* tensors in the manifest, by kind */
    zfi_stored *stored;       /* by node */
    char *piece;
    int64_t step;
    uint64_t seed;
} zfi_loading;

/* Opens the file of a kind of tensors, if there is one, and checks what stands in front of their
 * data. */
static zf_status zfi_load_header(zfi_loading *l, int kind)
{
    zf_error *error = &l->program->error;
    const zf_json *headers = zf_json_require(l->manifest.json, "headers", error), *sum;
    char path[ZFI_ASIDE_MAX];
    uint32_t crc = 0, expected = 0;
    zf_status status;
    if (!headers) return error->status;
    sum = kind ? zf_json_member(headers, zfi_kinds[kind].file)
               : zf_json_require(headers, zfi_kinds[kind].file, error);
    if (!sum || zfi_json_to_sum(sum, &expected, error)) return error->status;
    if ((status = zfi_file_in(path, l->path, zfi_kinds[kind].file, error))) return status;
    l->files[kind] = zf_safetensors_open(path, &l->memory.allocator, error);
    if (!l->files[kind]) return error->status;
    status = zfi_file_sum(path, l->files[kind]->start, l->piece, &crc, error);
    if (!status && crc != expected) return zfi_sum_fail(error, path, "header", crc, expected);
    return status;
}

static zf_status zfi_load_seed(zfi_loading *l)
{
    zf_error *error = &l->program->error;
    const zf_json *value = zf_json_require(l->manifest.json, "seed", error);
    const char *text = NULL;
    uint64_t seed = 0;
    if (!value || zf_json_to_string(value, &text, error)) return error->status;
    for (const char *at = text; *at; at++) {
        uint64_t digit = (uint64_t)(*at - '0');
        if (*at < '0' || *at > '9' || seed > (UINT64_MAX - digit) / 10)
            return zf_json_expected(value, error, "an integer from 0 to 2^64 - 1 in quotes");
        seed = seed * 10 + digit;
    }
    if (!*text) return zf_json_expected(value, error, "an integer from 0 to 2^64 - 1 in quotes");
    l->seed = seed;
    return ZF_OK;
}

/* One of "tensors". */
typedef struct zfi_entry {
    const zf_json *json;
    const char *name;
    int kind;
    zf_dtype dtype;
    zf_shape shape;
    uint32_t crc;
} zfi_entry;

static zf_status zfi_entry_read(const zf_json *json, zfi_entry *entry, zf_error *error)
{
    static const char *const members[6] = {"name", "kind", "dtype", "file", "shape", "crc32c"};
    const zf_json *values[6];
    const char *text[4] = {"", "", "", ""};
    *entry = (zfi_entry){.json = json};
    for (int i = 0; i < 6; i++)
        if (!(values[i] = zf_json_require(json, members[i], error))) return error->status;
    for (int i = 0; i < 4; i++)
        if (zf_json_to_string(values[i], &text[i], error)) return error->status;
    entry->name = text[0];
    if (!zfi_valid_name(entry->name))
        return zf_json_expected(values[0], error,
                                "1 to 255 characters, none of them \", \\ or a control character");
    while (entry->kind < 2 && strcmp(text[1], zfi_kinds[entry->kind].name)) entry->kind++;
    if (entry->kind == 2) return zf_json_expected(values[1], error, "\"param\" or \"state\"");
    while (zf_dtype_size(entry->dtype) && strcmp(text[2], zf_dtype_name(entry->dtype)))
        entry->dtype = (zf_dtype)(entry->dtype + 1);
    if (!zf_dtype_size(entry->dtype))
        return zf_json_expected(values[2], error, "a dtype such as \"f32\"");
    if (strcmp(text[3], zfi_kinds[entry->kind].file))
        return zf_json_expected(values[3], error, "\"%s\"", zfi_kinds[entry->kind].file);
    if (zfi_safetensors_shape(values[4], &entry->shape, error)) return error->status;
    return zfi_json_to_sum(values[5], &entry->crc, error);
}

/* The file has the tensor, and so has the program, each with that dtype and shape. */
static zf_status zfi_load_entry(zfi_loading *l, const zfi_entry *entry)
{
    zf_program *p = l->program;
    const zf_safetensors *file = l->files[entry->kind];
    const char *name = entry->name;
    int32_t index = zf_safetensors_find(file, name);
    const zf_safetensors_entry *there = zf_safetensors_at(file, index);
    int32_t id = zfi_map_get(p->graph->names, name, 0);
    const zfi_node *node = &p->graph->nodes[id];
    char type[ZFI_TYPE_TEXT], other[ZFI_TYPE_TEXT];
    zfi_type_text(type, entry->dtype, &entry->shape);
    if (!file)
        return zf_json_fail(entry->json, &p->error, "is in %s, which \"headers\" lacks",
                            zfi_kinds[entry->kind].file);
    if (!there)
        return zfi_fail(&p->error, ZF_ERR_FORMAT, "%s: %s is in the manifest, but not in the file",
                        file->path, name);
    if (!there->readable || there->dtype != entry->dtype ||
        !zfi_same_shape(&there->shape, &entry->shape))
        return zfi_fail(
            &p->error, ZF_ERR_FORMAT, "%s: %s is %s, the manifest says %s", file->path, name,
            there->readable ? zfi_type_text(other, there->dtype, &there->shape) : there->dtype_name,
            type);
    if (!id || zfi_kind_of(node) != entry->kind || !p->data[id]) {
        if (l->params_only) return ZF_OK;
        return zfi_fail(&p->error, ZF_ERR_MISMATCH,
                        "%s: the program has no %s \"%s\": the checkpoint is of another model%s",
                        file->path, zfi_kinds[entry->kind].name, name,
                        entry->kind ? " or optimizer" : "");
    }
    if (node->dtype != entry->dtype || !zfi_same_shape(&node->shape, &entry->shape))
        return zfi_fail(&p->error, ZF_ERR_MISMATCH, "%s: %s is %s, but %s in the program",
                        file->path, name, type, zfi_type_text(other, node->dtype, &node->shape));
    if (l->stored[id].there)
        return zf_json_fail(entry->json, &p->error, "lists \"%s\" again", name);
    l->stored[id] = (zfi_stored){true, index, entry->crc};
    return ZF_OK;
}

/* Manifest, files and program agree about step, seed and every tensor. */
static zf_status zfi_load_manifest(zfi_loading *l)
{
    zf_program *p = l->program;
    const zf_graph *g = p->graph;
    zf_error *error = &p->error;
    const zf_json *tensors = zf_json_require(l->manifest.json, "tensors", error);
    zf_status status;
    if (!tensors) return error->status;
    /* Half of the range leaves room to go on counting. */
    status = zf_json_to_int(zf_json_require(l->manifest.json, "step", error), 0, INT64_MAX / 2,
                            &l->step, error);
    if (!status) status = error->status;
    if (!status) status = zfi_load_seed(l);
    if (!status) status = zfi_load_header(l, 0);
    if (!status && !l->params_only) status = zfi_load_header(l, 1);
    if (status) return status;
    if (zf_json_type_of(tensors) != ZF_JSON_ARRAY)
        return zf_json_expected(tensors, error, "an array");
    for (const zf_json *json = zf_json_first(tensors); json; json = zf_json_next(json)) {
        zfi_entry entry;
        if ((status = zfi_entry_read(json, &entry, error))) return status;
        if (entry.kind && l->params_only) continue;
        l->listed[entry.kind]++;
        if ((status = zfi_load_entry(l, &entry))) return status;
    }
    for (int kind = 0; kind < 2; kind++)
        if (l->files[kind] && l->files[kind]->count != l->listed[kind])
            return zfi_fail(error, ZF_ERR_FORMAT, "%s: %d tensors, the manifest says %d",
                            l->files[kind]->path, (int)l->files[kind]->count, (int)l->listed[kind]);
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        int kind = zfi_kind_of(node);
        if (kind < 0 || (kind && l->params_only) || l->stored[g->order[i]].there) continue;
        return zfi_fail(error, ZF_ERR_MISMATCH,
                        "%s: the checkpoint lacks the %s \"%s\": it is of another model%s",
                        zfi_path_tail(l->path), zfi_kinds[kind].name, node->name,
                        kind ? " or optimizer" : "");
    }
    return ZF_OK;
}

static zf_status zfi_load_attachments(zfi_loading *l)
{
    zf_error *error = &l->program->error;
    const zf_json *files = zf_json_require(l->manifest.json, "attachments", error);
    char path[ZFI_ASIDE_MAX];
    if (!files) return error->status;
    if (zf_json_type_of(files) != ZF_JSON_OBJECT)
        return zf_json_expected(files, error, "an object");
    for (const zf_json *sum = zf_json_first(files); sum; sum = zf_json_next(sum)) {
        size_t bytes = 0;
        const char *name = zf_json_key(sum, &bytes);
        uint32_t crc = 0, expected = 0;
        if (strlen(name) != bytes || !zfi_is_attachment(name))
            return zf_json_fail(sum, error, "is not the name of a file in a checkpoint");
        if (zfi_json_to_sum(sum, &expected, error) || zfi_file_in(path, l->path, name, error) ||
            zfi_file_sum(path, UINT64_MAX, l->piece, &crc, error))
            return error->status;
        if (crc != expected) return zfi_sum_fail(error, path, "", crc, expected);
    }
    return ZF_OK;
}

/* Reads and checks every tensor, and writes it into the program or not. */
static zf_status zfi_load_tensors(zfi_loading *l, bool write)
{
    zf_program *p = l->program;
    const zf_graph *g = p->graph;
    zf_status status = ZF_OK;
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        const zfi_stored *stored = &l->stored[g->order[i]];
        size_t bytes = zfi_node_bytes(node), part;
        char *data = p->data[g->order[i]];
        uint32_t crc = 0;
        const zf_safetensors *file;
        if (!stored->there) continue;
        file = l->files[zfi_kind_of(node)];
        for (size_t at = 0; at < bytes; at += part) {
            part = bytes - at < ZFI_PIECE ? bytes - at : ZFI_PIECE;
            status =
                zfi_safetensors_fetch(file, stored->index, at, l->piece, part, &crc, &p->error);
            if (!status && write)
                status = p->backend->copy(p->backend->self, data + at, l->piece, part,
                                          ZF_HOST_TO_DEVICE, &p->error);
            if (status)
                return zfi_fail(&p->error, status, "zf_load: %s cannot be written", node->name);
        }
        if (crc != stored->crc && write)
            return zfi_fail(&p->error, ZF_ERR_FORMAT, "%s: %s changed while it was loaded",
                            file->path, node->name);
        if (crc != stored->crc)
            return zfi_sum_fail(&p->error, file->path, node->name, crc, stored->crc);
    }
    return write ? p->backend->synchronize(p->backend->self, &p->error) : ZF_OK;
}

static zf_status zfi_load(zfi_loading *l)
{
    zf_program *p = l->program;
    zf_status status = zfi_manifest_read(&l->manifest, l->path, &l->memory.allocator, &p->error);
    if (status) return status;
    l->piece = zfi_realloc(&l->memory, NULL, 0, ZFI_PIECE);
    l->stored = zfi_calloc(&l->memory, p->nodes, sizeof *l->stored);
    status = l->memory.failed ? zfi_nomem(&p->error) : zfi_load_manifest(l);
    if (!status) status = zfi_load_attachments(l);
    if (!status) status = zfi_load_tensors(l, false);
    if (!status && (status = zfi_load_tensors(l, true))) {
        size_t length = strlen(p->error.text);
        snprintf(p->error.text + length, sizeof p->error.text - length,
                 "; parameters and states are now undefined");
    }
    zf_safetensors_close(l->files[0]);
    zf_safetensors_close(l->files[1]);
    zfi_free(&l->memory, l->stored, p->nodes * sizeof *l->stored);
    zfi_free(&l->memory, l->piece, ZFI_PIECE);
    zfi_manifest_free(&l->manifest);
    return status;
}

ZF_API zf_status zf_load(zf_program *p, const char *path, const zf_load_desc *desc)
{
    zfi_loading l = {.program = p, .path = path, .params_only = desc && desc->params_only};
    zf_status status;
    if (!p) return ZF_ERR_ARGUMENT;
    zfi_clear_error(p);
    if (p->share)
        return zfi_fail(&p->error, ZF_ERR_STAGE,
                        "zf_load: the parameters are those of the program that this one shares: "
                        "load into that one");
    l.memory = zfi_memory_of(&p->memory.allocator);
    status = p->backend->synchronize(p->backend->self, &p->error);
    if (status) return zfi_fail(&p->error, status, "zf_load: the backend failed");
    if ((status = zfi_load(&l))) return status;
    if (!l.params_only) {
        p->steps = l.step;
        p->run.seed = l.seed;
    }
    return ZF_OK;
}

ZF_API zf_status zf_checkpoint_note(const char *path, const char *key, char *value, size_t size,
                                    zf_error *error)
{
    zf_error failed = {ZF_OK, ""};
    char quoted[ZFI_QUOTE];
    zfi_manifest m;
    const zf_json *note;
    const char *text = NULL;
    if (!key || !value)
        return zfi_fail(error, ZF_ERR_ARGUMENT, "zf_checkpoint_note: no %s", key ? "value" : "key");
    if (zfi_manifest_read(&m, path, NULL, &failed))
        return zfi_fail(error, failed.status, "%s", failed.text);
    zfi_quote(quoted, key, strlen(key));
    note = zf_json_member(zf_json_require(m.json, "notes", &failed), key);
    if (!failed.status && !note)
        zfi_fail(&failed, ZF_ERR_ARGUMENT, "%s has no note %s", zfi_path_tail(m.path), quoted);
    zf_json_to_string(note, &text, &failed);
    if (text && strlen(text) >= size)
        zfi_fail(&failed, ZF_ERR_ARGUMENT,
                 "%s: the note %s takes %zu bytes, but there is room for %zu",
                 zfi_path_tail(m.path), quoted, strlen(text) + 1, size);
    if (!failed.status) memcpy(value, text, strlen(text) + 1);
    zfi_manifest_free(&m);
    return failed.status ? zfi_fail(error, failed.status, "%s", failed.text) : ZF_OK;
}
