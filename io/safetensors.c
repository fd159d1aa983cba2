/* Safetensors: named tensors in one file, little-endian.
 *
 *     | u64: header bytes | header: JSON, padded with spaces | data of the tensors, without gaps |
 *                           {"__metadata__": {"format": "pt"},
 *                            "name": {"dtype": "F32", "shape": [2,3], "data_offsets": [0,24]}, ...}
 *
 * Offsets count from the beginning of the data. Files are read by pread into the caller's memory,
 * not mapped, so a file that is truncated meanwhile gives an error and no signal. */
enum {
    ZFI_HEADER_LIMIT = 100000000,
    ZFI_CHECK_CHUNK = 256 << 10 /* bytes that are summed while in cache */
};

static const struct {
    char name[12];
    int dtype; /* -1: known, but not supported by this library */
    unsigned bits;
} zfi_safetensors_dtypes[] = {
    {"F32", ZF_F32, 32}, {"BF16", ZF_BF16, 16},  {"F16", ZF_F16, 16},    {"F64", ZF_F64, 64},
    {"I32", ZF_I32, 32}, {"I64", ZF_I64, 64},    {"U8", ZF_U8, 8},       {"BOOL", ZF_BOOL, 8},
    {"I8", -1, 8},       {"I16", -1, 16},        {"U16", -1, 16},        {"U32", -1, 32},
    {"U64", -1, 64},     {"C64", -1, 64},        {"F8_E4M3", -1, 8},     {"F8_E5M2", -1, 8},
    {"F8_E8M0", -1, 8},  {"F8_E4M3FNUZ", -1, 8}, {"F8_E5M2FNUZ", -1, 8}, {"F4", -1, 4},
    {"F6_E2M3", -1, 6},  {"F6_E3M2", -1, 6},
};

static const char zfi_safetensors_readable[] = "F32, BF16, F16, F64, I32, I64, U8 and BOOL";

static const char *zfi_safetensors_dtype_name(zf_dtype dtype)
{
    int i = 0;
    while (zfi_safetensors_dtypes[i].dtype != (int)dtype) i++;
    return zfi_safetensors_dtypes[i].name;
}

/* --------------------------------------------------------------------------------- reading */

typedef struct zfi_safetensors_tensor {
    zf_safetensors_entry entry;
    const zf_json *json;
    uint64_t begin;
} zfi_safetensors_tensor;

struct zf_safetensors {
    zfi_memory memory;
    zfi_text text; /* the path */
    const char *path;
    int file;             /* -1: in memory */
    const uint8_t *data;  /* NULL: in a file */
    uint64_t size, start; /* of the file; of its data */
    zf_json *header;
    zfi_safetensors_tensor *tensors; /* by begin */
    int32_t count;
};

ZF_API void zf_safetensors_close(zf_safetensors *file)
{
    zfi_memory memory;
    if (!file) return;
    memory = file->memory;
    if (file->file >= 0) close(file->file);
    zf_json_free(file->header);
    zfi_array_free(&memory, file->tensors);
    zfi_text_free(&memory, &file->text);
    zfi_free(&memory, file, sizeof *file);
}

/* Copies bytes from `offset` of the file, which has them. */
static zf_status zfi_safetensors_copy(const zf_safetensors *file, uint64_t offset, void *out,
                                      size_t bytes, zf_error *error)
{
    if (!file->data) return zfi_file_read(file->file, file->path, offset, out, bytes, error);
    if (bytes) memcpy(out, file->data + offset, bytes);
    return ZF_OK;
}

/* Reads two integers of at least 0. */
static zf_status zfi_safetensors_offsets(const zf_json *offsets, uint64_t *begin, uint64_t *end,
                                         zf_error *error)
{
    int64_t first = 0, second = 0;
    zf_status status;
    if (zf_json_type_of(offsets) != ZF_JSON_ARRAY || zf_json_length(offsets) != 2)
        return zf_json_expected(offsets, error, "an array of two offsets");
    if ((status = zf_json_to_int(zf_json_element(offsets, 0), 0, INT64_MAX, &first, error)))
        return status;
    if ((status = zf_json_to_int(zf_json_element(offsets, 1), 0, INT64_MAX, &second, error)))
        return status;
    if (first > second)
        return zf_json_fail(offsets, error, "ends at %lld, before its begin at %lld",
                            (long long)second, (long long)first);
    *begin = (uint64_t)first;
    *end = (uint64_t)second;
    return ZF_OK;
}

static zf_status zfi_safetensors_shape(const zf_json *dims, zf_shape *shape, zf_error *error)
{
    const zf_json *dim = zf_json_first(dims);
    zf_status status;
    if (zf_json_type_of(dims) != ZF_JSON_ARRAY)
        return zf_json_expected(dims, error, "an array of dimensions");
    if (zf_json_length(dims) > ZF_MAX_RANK)
        return zf_json_fail(dims, error, "has %lld dimensions: at most %d are possible",
                            (long long)zf_json_length(dims), ZF_MAX_RANK);
    for (; dim; dim = zf_json_next(dim))
        if ((status = zf_json_to_int(dim, 0, INT64_MAX, &shape->dims[shape->rank++], error)))
            return status;
    if (zf_shape_count(*shape) < 0)
        return zf_json_fail(dims, error, "has more elements than 64 bits count");
    return ZF_OK;
}

/* Reads one member of the header. */
static zf_status zfi_safetensors_entry(const zf_json *json, zfi_safetensors_tensor *tensor,
                                       zf_error *error)
{
    zf_safetensors_entry *entry = &tensor->entry;
    const zf_json *dtype, *shape, *offsets;
    size_t name_bytes = 0, count, bits = 0;
    uint64_t end = 0;
    zf_status status;
    entry->name = zf_json_key(json, &name_bytes);
    tensor->json = json;
    if (strlen(entry->name) != name_bytes)
        return zf_json_fail(json, error, "has a zero byte in its name");
    if (!(dtype = zf_json_require(json, "dtype", error)) ||
        !(shape = zf_json_require(json, "shape", error)) ||
        !(offsets = zf_json_require(json, "data_offsets", error)))
        return ZF_ERR_FORMAT;
    if ((status = zf_json_to_string(dtype, &entry->dtype_name, error)) ||
        (status = zfi_safetensors_shape(shape, &entry->shape, error)) ||
        (status = zfi_safetensors_offsets(offsets, &tensor->begin, &end, error)))
        return status;
    if (end - tensor->begin > SIZE_MAX)
        return zf_json_fail(json, error, "has %llu bytes, too many for this machine",
                            (unsigned long long)(end - tensor->begin));
    entry->bytes = (size_t)(end - tensor->begin);
    for (int i = 0; i < ZFI_COUNT(zfi_safetensors_dtypes); i++)
        if (!strcmp(entry->dtype_name, zfi_safetensors_dtypes[i].name)) {
            bits = zfi_safetensors_dtypes[i].bits;
            entry->readable = zfi_safetensors_dtypes[i].dtype >= 0;
            if (entry->readable) entry->dtype = (zf_dtype)zfi_safetensors_dtypes[i].dtype;
        }
    count = (size_t)zf_shape_count(entry->shape);
    /* The size of an unknown element type is unknown. */
    if (bits && ((uint64_t)count > UINT64_MAX / bits || count * (uint64_t)bits % 8 ||
                 count * (uint64_t)bits / 8 != entry->bytes))
        return zf_json_fail(json, error,
                            "has %llu elements of %zu bits, but its data_offsets say %zu bytes",
                            (unsigned long long)count, bits, entry->bytes);
    return ZF_OK;
}

static bool zfi_safetensors_before(const zfi_safetensors_tensor *a, const zfi_safetensors_tensor *b)
{
    if (a->begin != b->begin) return a->begin < b->begin;
    if (a->entry.bytes != b->entry.bytes) return a->entry.bytes < b->entry.bytes;
    return a->json->index < b->json->index;
}

/* Sorts by begin: a heap sort, in place, n log n steps in any order. Most files are in order
 * already. */
static void zfi_safetensors_sort(zfi_safetensors_tensor *tensors, int32_t count)
{
    int32_t sorted = 1;
    while (sorted < count && zfi_safetensors_before(&tensors[sorted - 1], &tensors[sorted]))
        sorted++;
    if (sorted >= count) return;
    for (int32_t root = count / 2 - 1, end = count; end > 1;) {
        zfi_safetensors_tensor sinking = tensors[root < 0 ? end - 1 : root];
        int32_t at = root < 0 ? 0 : root, child;
        if (root < 0) tensors[--end] = tensors[0]; /* the largest goes to the end */
        else root--;
        for (; (child = 2 * at + 1) < end; at = child) {
            if (child + 1 < end && zfi_safetensors_before(&tensors[child], &tensors[child + 1]))
                child++;
            if (!zfi_safetensors_before(&sinking, &tensors[child])) break;
            tensors[at] = tensors[child];
        }
        tensors[at] = sinking;
    }
}

/* Reads the tensors from the header. */
static zf_status zfi_safetensors_index(zf_safetensors *file, zf_error *error)
{
    zf_json *nodes = zfi_json_document_of(file->header)->nodes;
    const zf_json *notes = zf_safetensors_metadata(file);
    uint64_t end = 0, have = file->size - file->start;
    zf_status status;
    for (const zf_json *json = zf_json_first(file->header); json; json = zf_json_next(json)) {
        zfi_safetensors_tensor tensor = {.json = json};
        if (json == notes) {
            if (json->type != ZF_JSON_OBJECT) return zf_json_expected(json, error, "an object");
            for (const zf_json *note = zf_json_first(json); note; note = zf_json_next(note))
                if (note->type != ZF_JSON_STRING) return zf_json_expected(note, error, "a string");
            continue;
        }
        if ((status = zfi_safetensors_entry(json, &tensor, error))) return status;
        if (!zfi_push(&file->memory, file->tensors, tensor)) return zfi_nomem(error);
    }
    file->count = zfi_len(file->tensors);
    zfi_safetensors_sort(file->tensors, file->count);
    for (int32_t i = 0; i < file->count; i++) {
        const zfi_safetensors_tensor *tensor = &file->tensors[i];
        char quoted[ZFI_QUOTE] = "";
        if (tensor->begin != end && i)
            zfi_quote(quoted, tensor[-1].entry.name, strlen(tensor[-1].entry.name));
        if (tensor->begin < end)
            return zf_json_fail(tensor->json, error,
                                "begins at %llu, but %s ends at %llu: they overlap",
                                (unsigned long long)tensor->begin, quoted, (unsigned long long)end);
        if (tensor->begin > end)
            return zf_json_fail(tensor->json, error,
                                "begins at %llu, but %s%s %llu: no tensor has the bytes between",
                                (unsigned long long)tensor->begin, quoted,
                                i ? " ends at" : "the data at", (unsigned long long)end);
        end = tensor->begin + tensor->entry.bytes;
        nodes[tensor->json->index].start = (uint32_t)i;
    }
    if (end > have)
        return zfi_fail(error, ZF_ERR_FORMAT,
                        "%s: the tensors have %llu bytes, but only %llu are there: it is cut short",
                        file->path, (unsigned long long)end, (unsigned long long)have);
    if (end < have)
        return zfi_fail(error, ZF_ERR_FORMAT, "%s: %llu bytes after the last tensor", file->path,
                        (unsigned long long)(have - end));
    return ZF_OK;
}

/* Reads the first eight bytes and the header. */
static zf_status zfi_safetensors_header(zf_safetensors *file, zf_error *error)
{
    char name[ZFI_JSON_PATH + 32];
    uint8_t front[8];
    uint64_t bytes = 0;
    char *text;
    zf_status status;
    if (file->size < 8)
        return zfi_fail(error, ZF_ERR_FORMAT, "%s: %llu bytes, too short for a safetensors file",
                        file->path, (unsigned long long)file->size);
    if ((status = zfi_safetensors_copy(file, 0, front, 8, error))) return status;
    for (int i = 7; i >= 0; i--) bytes = bytes << 8 | front[i];
    if (bytes > ZFI_HEADER_LIMIT)
        return zfi_fail(
            error, ZF_ERR_FORMAT,
            "%s: a header of %llu bytes (at most %d are allowed): this is no safetensors file",
            file->path, (unsigned long long)bytes, ZFI_HEADER_LIMIT);
    if (bytes > file->size - 8)
        return zfi_fail(error, ZF_ERR_FORMAT,
                        "%s: a header of %llu bytes, but only %llu follow: it is cut short",
                        file->path, (unsigned long long)bytes,
                        (unsigned long long)(file->size - 8));
    file->start = 8 + bytes;
    text = zfi_realloc(&file->memory, NULL, 0, (size_t)bytes + 1);
    if (!text) return zfi_nomem(error);
    status = zfi_safetensors_copy(file, 8, text, (size_t)bytes, error);
    if (!status && (!bytes || text[0] != '{'))
        status =
            zfi_fail(error, ZF_ERR_FORMAT, "%s: the header does not begin with '{'", file->path);
    snprintf(name, sizeof name, "%s (header)", file->path);
    if (!status &&
        !(file->header = zfi_json_parse(text, (size_t)bytes, name, &file->memory.allocator, error)))
        status = error ? error->status : ZF_ERR_FORMAT;
    zfi_free(&file->memory, text, (size_t)bytes + 1);
    return status;
}

static zf_safetensors *zfi_safetensors_open(const char *path, const void *data, size_t bytes,
                                            const zf_allocator *allocator, zf_error *error)
{
    zfi_memory memory = zfi_memory_of(allocator);
    const char *name = zfi_path_tail(path);
    zf_safetensors *file = zfi_calloc(&memory, 1, sizeof *file);
    if (!file) return zfi_nomem(error), NULL;
    file->memory = memory;
    file->data = data;
    file->size = bytes;
    file->file = -1;
    file->path = zfi_text_copy(&file->memory, &file->text, name, strlen(name));
    if (!file->path) zfi_nomem(error);
    else if (!data && (file->file = zfi_file_open(path, &file->size, error)) < 0) file->path = NULL;
    if (!file->path || zfi_safetensors_header(file, error) || zfi_safetensors_index(file, error)) {
        zf_safetensors_close(file);
        return NULL;
    }
    return file;
}

ZF_API zf_safetensors *zf_safetensors_open(const char *path, const zf_allocator *allocator,
                                           zf_error *error)
{
    return zfi_safetensors_open(path ? path : "", NULL, 0, allocator, error);
}

ZF_API zf_safetensors *zf_safetensors_parse(const void *data, size_t bytes,
                                            const zf_allocator *allocator, zf_error *error)
{
    return zfi_safetensors_open("safetensors", data ? data : "", data ? bytes : 0, allocator,
                                error);
}

ZF_API int32_t zf_safetensors_count(const zf_safetensors *file) { return file ? file->count : 0; }

ZF_API const zf_safetensors_entry *zf_safetensors_at(const zf_safetensors *file, int32_t index)
{
    return file && index >= 0 && index < file->count ? &file->tensors[index].entry : NULL;
}

ZF_API const zf_json *zf_safetensors_metadata(const zf_safetensors *file)
{
    return file ? zf_json_member(file->header, "__metadata__") : NULL;
}

ZF_API int32_t zf_safetensors_find(const zf_safetensors *file, const char *name)
{
    const zf_json *json = file ? zf_json_member(file->header, name) : NULL;
    return json && json != zf_safetensors_metadata(file) ? (int32_t)json->start : -1;
}

ZF_API zf_status zf_safetensors_read_range(zf_safetensors *file, int32_t index, size_t offset,
                                           void *out, size_t bytes, zf_error *error)
{
    const zf_safetensors_entry *entry = zf_safetensors_at(file, index);
    char quoted[ZFI_QUOTE];
    if (!file) return zfi_fail(error, ZF_ERR_ARGUMENT, "no safetensors file to read from");
    if (!entry)
        return zfi_fail(error, ZF_ERR_ARGUMENT, "%s: no tensor %d, there are %d", file->path,
                        (int)index, (int)file->count);
    if (!entry->readable)
        return zfi_fail(error, ZF_ERR_DTYPE, "%s: the tensor %s is %.40s; only %s can be read",
                        file->path, zfi_quote(quoted, entry->name, strlen(entry->name)),
                        entry->dtype_name, zfi_safetensors_readable);
    if (!out && bytes)
        return zfi_fail(error, ZF_ERR_ARGUMENT, "%s: there is no room to read %zu bytes into",
                        file->path, bytes);
    if (offset > entry->bytes || bytes > entry->bytes - offset)
        return zfi_fail(error, ZF_ERR_ARGUMENT,
                        "%s: %zu bytes from %zu of the tensor %s, which has %zu", file->path, bytes,
                        offset, zfi_quote(quoted, entry->name, strlen(entry->name)), entry->bytes);
    return zfi_safetensors_copy(file, file->start + file->tensors[index].begin + offset, out, bytes,
                                error);
}

ZF_API zf_status zf_safetensors_read(zf_safetensors *file, int32_t index, void *out, size_t bytes,
                                     zf_error *error)
{
    const zf_safetensors_entry *entry = zf_safetensors_at(file, index);
    char quoted[ZFI_QUOTE];
    if (entry && entry->bytes != bytes)
        return zfi_fail(error, ZF_ERR_ARGUMENT, "%s: the tensor %s has %zu bytes, not %zu",
                        file->path, zfi_quote(quoted, entry->name, strlen(entry->name)),
                        entry->bytes, bytes);
    return zf_safetensors_read_range(file, index, 0, out, bytes, error);
}

/* --------------------------------------------------------------------------------- writing */

typedef struct zfi_safetensors_output {
    const char *name;
    zf_dtype dtype;
    zf_shape shape;
    size_t bytes, done; /* bytes: its size; done: bytes written */
    uint64_t begin;
    uint32_t crc; /* checksum of what is written */
} zfi_safetensors_output;

typedef struct zfi_safetensors_note {
    const char *key, *value;
} zfi_safetensors_note;

struct zf_safetensors_writer {
    zfi_memory memory;
    zfi_text text; /* names, metadata */
    zf_error error;
    zfi_new_file file;
    const char *path; /* for messages */
    zfi_safetensors_output *tensors;
    zfi_safetensors_note *notes;
    zfi_name *names;
    uint64_t start; /* of the data; 0: still declaring */
    bool checksums; /* keep a CRC-32C of every tensor */
    bool finished;
};

/* The end of every call: after an error, removes the unfinished file. */
static zf_status zfi_safetensors_done(zf_safetensors_writer *writer)
{
    if (writer->memory.failed) zfi_nomem(&writer->error);
    if (writer->error.status) zfi_new_file_abandon(&writer->file);
    return writer->error.status;
}

ZF_API void zf_safetensors_writer_free(zf_safetensors_writer *writer)
{
    zfi_memory memory;
    if (!writer) return;
    memory = writer->memory;
    zfi_new_file_abandon(&writer->file);
    zfi_array_free(&memory, writer->tensors);
    zfi_array_free(&memory, writer->notes);
    zfi_map_free(&memory, writer->names);
    zfi_text_free(&memory, &writer->text);
    zfi_free(&memory, writer, sizeof *writer);
}

ZF_API zf_safetensors_writer *
zf_safetensors_writer_new(const char *path, const zf_allocator *allocator, zf_error *error)
{
    zfi_memory memory = zfi_memory_of(allocator);
    zf_safetensors_writer *writer = zfi_calloc(&memory, 1, sizeof *writer);
    if (!writer) return zfi_nomem(error), NULL;
    writer->memory = memory;
    if (zfi_new_file_begin(&writer->file, path, error)) {
        zf_safetensors_writer_free(writer);
        return NULL;
    }
    path = zfi_path_tail(path);
    writer->path = zfi_text_copy(&writer->memory, &writer->text, path, strlen(path));
    if (!writer->path || zf_safetensors_put_metadata(writer, "format", "pt")) {
        zf_safetensors_writer_free(writer);
        return zfi_nomem(error), NULL;
    }
    return writer;
}

/* Checks that declarations are still possible. */
static bool zfi_safetensors_declaring(zf_safetensors_writer *writer)
{
    if (!writer || writer->error.status) return false;
    if (writer->start)
        zfi_fail(&writer->error, ZF_ERR_STAGE, "%s: a declaration after the first data",
                 writer->path);
    return !writer->error.status;
}

/* The status of calls without a writer, whose creation has failed and reported why. */
static zf_status zfi_safetensors_status(const zf_safetensors_writer *writer)
{
    return writer ? writer->error.status : ZF_ERR_ARGUMENT;
}

static bool zfi_safetensors_utf8(zf_safetensors_writer *writer, const char *string)
{
    const unsigned char *s = (const unsigned char *)string;
    char quoted[ZFI_QUOTE];
    if (!string) {
        zfi_fail(&writer->error, ZF_ERR_ARGUMENT, "%s: a name, key or value is NULL", writer->path);
        return false;
    }
    for (size_t left = strlen(string), bytes; left; s += bytes, left -= bytes)
        if (!(bytes = (size_t)zfi_utf8_bytes(s, left))) {
            zfi_fail(&writer->error, ZF_ERR_ARGUMENT, "%s: %s is not UTF-8", writer->path,
                     zfi_quote(quoted, string, strlen(string)));
            return false;
        }
    return true;
}

ZF_API zf_status zf_safetensors_put_metadata(zf_safetensors_writer *writer, const char *key,
                                             const char *value)
{
    zfi_safetensors_note note;
    if (!zfi_safetensors_declaring(writer)) return zfi_safetensors_status(writer);
    if (!zfi_safetensors_utf8(writer, key) || !zfi_safetensors_utf8(writer, value))
        return zfi_safetensors_done(writer);
    note.key = zfi_text_copy(&writer->memory, &writer->text, key, strlen(key));
    note.value = zfi_text_copy(&writer->memory, &writer->text, value, strlen(value));
    if (writer->memory.failed) return zfi_safetensors_done(writer);
    for (int32_t i = 0; i < zfi_len(writer->notes); i++)
        if (!strcmp(writer->notes[i].key, key)) { /* a key given twice: replaces the value */
            writer->notes[i].value = note.value;
            return ZF_OK;
        }
    zfi_push(&writer->memory, writer->notes, note);
    return zfi_safetensors_done(writer);
}

ZF_API zf_status zf_safetensors_declare(zf_safetensors_writer *writer, const char *name,
                                        zf_dtype dtype, zf_shape shape)
{
    zfi_safetensors_output tensor = {.dtype = dtype, .shape = shape};
    char quoted[ZFI_QUOTE];
    int64_t count = zf_shape_count(shape);
    if (!zfi_safetensors_declaring(writer)) return zfi_safetensors_status(writer);
    if (!zfi_safetensors_utf8(writer, name)) return zfi_safetensors_done(writer);
    zfi_quote(quoted, name, strlen(name));
    if (!strcmp(name, "__metadata__"))
        zfi_fail(&writer->error, ZF_ERR_ARGUMENT, "%s: no tensor can be named %s", writer->path,
                 quoted);
    else if (zfi_map_get(writer->names, name, -1) >= 0)
        zfi_fail(&writer->error, ZF_ERR_ARGUMENT, "%s: two tensors are named %s", writer->path,
                 quoted);
    else if (!zf_dtype_size(dtype))
        zfi_fail(&writer->error, ZF_ERR_DTYPE, "%s: the tensor %s has no dtype (%d)", writer->path,
                 quoted, (int)dtype);
    else if (count < 0 || !zfi_mul_size((size_t)count, zf_dtype_size(dtype), &tensor.bytes) ||
             tensor.bytes > INT64_MAX / 2)
        zfi_fail(&writer->error, ZF_ERR_SHAPE,
                 "%s: the shape of the tensor %s has a negative dimension, a wrong rank or too "
                 "many elements",
                 writer->path, quoted);
    if (writer->error.status) return zfi_safetensors_done(writer);
    tensor.name = zfi_text_copy(&writer->memory, &writer->text, name, strlen(name));
    if (tensor.name && zfi_push(&writer->memory, writer->tensors, tensor))
        writer->names =
            zfi_map_put(&writer->memory, writer->names, tensor.name, zfi_len(writer->tensors) - 1);
    return zfi_safetensors_done(writer);
}

static void zfi_safetensors_describe(zf_json_writer *json, const zfi_safetensors_output *tensor)
{
    zf_json_put_key(json, tensor->name);
    zf_json_begin_object(json);
    zf_json_put_key(json, "dtype");
    zf_json_put_string(json, zfi_safetensors_dtype_name(tensor->dtype));
    zf_json_put_key(json, "shape");
    zf_json_begin_array(json);
    for (int axis = 0; axis < tensor->shape.rank; axis++)
        zf_json_put_int(json, tensor->shape.dims[axis]);
    zf_json_end(json);
    zf_json_put_key(json, "data_offsets");
    zf_json_begin_array(json);
    zf_json_put_int(json, (int64_t)tensor->begin);
    zf_json_put_int(json, (int64_t)(tensor->begin + tensor->bytes));
    zf_json_end(json);
    zf_json_end(json);
}

/* Assigns places to the tensors, and writes what comes before their data. */
static zf_status zfi_safetensors_begin(zf_safetensors_writer *writer)
{
    static const char spaces[] = "        ";
    zf_error *error = &writer->error;
    zf_json_writer *json = zf_json_writer_new(0, &writer->memory.allocator);
    uint64_t end = 0;
    size_t bytes = 0, padded;
    uint8_t front[8];
    const char *text;
    zf_json_begin_object(json);
    zf_json_put_key(json, "__metadata__");
    zf_json_begin_object(json);
    for (int32_t i = 0; i < zfi_len(writer->notes); i++) {
        zf_json_put_key(json, writer->notes[i].key);
        zf_json_put_string(json, writer->notes[i].value);
    }
    zf_json_end(json);
    for (size_t element = 8; element && !error->status; element /= 2)
        for (int32_t i = 0; i < zfi_len(writer->tensors) && !error->status; i++) {
            zfi_safetensors_output *tensor = &writer->tensors[i];
            if (zf_dtype_size(tensor->dtype) != element) continue;
            tensor->begin = end;
            end += tensor->bytes;
            if (end > INT64_MAX / 2)
                zfi_fail(error, ZF_ERR_SHAPE, "%s: the tensors together have too many bytes",
                         writer->path);
            zfi_safetensors_describe(json, tensor);
        }
    zf_json_end(json);
    text = zf_json_text(json, &bytes, error);
    padded = (bytes + 7) / 8 * 8;
    if (text && padded > ZFI_HEADER_LIMIT)
        zfi_fail(error, ZF_ERR_LIMIT,
                 "%s: names and shapes make a header of %zu bytes, at most %d are allowed",
                 writer->path, padded, ZFI_HEADER_LIMIT);
    for (int i = 0; i < 8; i++) front[i] = (uint8_t)((uint64_t)padded >> 8 * i);
    if (!error->status && !zfi_new_file_write(&writer->file, 0, front, 8, error) &&
        !zfi_new_file_write(&writer->file, 8, text, bytes, error))
        zfi_new_file_write(&writer->file, 8 + bytes, spaces, padded - bytes, error);
    writer->start = 8 + padded;
    zf_json_writer_free(json);
    return error->status;
}

ZF_API zf_status zf_safetensors_write(zf_safetensors_writer *writer, int32_t index,
                                      const void *data, size_t bytes)
{
    zfi_safetensors_output *tensor;
    char quoted[ZFI_QUOTE], type[ZFI_TYPE_TEXT];
    if (!writer || writer->error.status) return zfi_safetensors_status(writer);
    if (writer->finished)
        return zfi_fail(&writer->error, ZF_ERR_STAGE, "%s: data after the end", writer->path);
    if (index < 0 || index >= zfi_len(writer->tensors)) {
        zfi_fail(&writer->error, ZF_ERR_ARGUMENT, "%s: data of tensor %d, but %d are declared",
                 writer->path, (int)index, (int)zfi_len(writer->tensors));
        return zfi_safetensors_done(writer);
    }
    if (!data && bytes) {
        zfi_fail(&writer->error, ZF_ERR_ARGUMENT, "%s: the data of tensor %d are NULL",
                 writer->path, (int)index);
        return zfi_safetensors_done(writer);
    }
    if (!writer->start && zfi_safetensors_begin(writer)) return zfi_safetensors_done(writer);
    tensor = &writer->tensors[index];
    if (bytes > tensor->bytes - tensor->done) {
        zfi_fail(&writer->error, ZF_ERR_ARGUMENT,
                 "%s: %zu bytes after the first %zu of the tensor %s, but %s has %zu",
                 writer->path, bytes, tensor->done,
                 zfi_quote(quoted, tensor->name, strlen(tensor->name)),
                 zfi_type_text(type, tensor->dtype, &tensor->shape), tensor->bytes);
        return zfi_safetensors_done(writer);
    }
    while (bytes && !writer->error.status) {
        size_t part = writer->checksums && bytes > ZFI_CHECK_CHUNK ? ZFI_CHECK_CHUNK : bytes;
        if (writer->checksums) tensor->crc = zfi_crc32c(tensor->crc, data, part);
        zfi_new_file_write(&writer->file, writer->start + tensor->begin + tensor->done, data, part,
                           &writer->error);
        tensor->done += part;
        data = (const char *)data + part;
        bytes -= part;
    }
    return zfi_safetensors_done(writer);
}

ZF_API zf_status zf_safetensors_finish(zf_safetensors_writer *writer, zf_error *error)
{
    char quoted[ZFI_QUOTE];
    if (!writer) return zfi_fail(error, ZF_ERR_ARGUMENT, "no safetensors file to write to");
    for (int32_t i = 0; i < zfi_len(writer->tensors) && !writer->error.status; i++) {
        const zfi_safetensors_output *tensor = &writer->tensors[i];
        if (tensor->done < tensor->bytes)
            zfi_fail(&writer->error, ZF_ERR_STAGE,
                     "%s: only %zu of %zu bytes of the tensor %s were written", writer->path,
                     tensor->done, tensor->bytes,
                     zfi_quote(quoted, tensor->name, strlen(tensor->name)));
    }
    if (!writer->error.status && !writer->start) zfi_safetensors_begin(writer);
    if (!writer->error.status && !writer->finished)
        zfi_new_file_commit(&writer->file, &writer->error);
    writer->finished = true;
    zfi_safetensors_done(writer);
    return writer->error.status ? zfi_fail(error, writer->error.status, "%s", writer->error.text)
                                : ZF_OK;
}
