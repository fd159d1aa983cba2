/* Checkpoints: a directory with everything that a bitwise continuation needs.
 *
 *     PATH/params.safetensors   the parameters, under their own names
 *     PATH/state.safetensors    the states; not there when there are none
 *     PATH/manifest.json        what belongs to the checkpoint, and its checksums
 *     PATH/vocab.txt ...        the caller's files
 *
 *     {
 *       "library": "zeroflow", "format": 2, "step": 5, "seed": "1",
 *       "notes": {"position": "1280"},
 *       "attachments": {"vocab.txt": "8a9136aa"},
 *       "headers": {"params.safetensors": "5cc0a2d1"},
 *       "tensors": [{"name": "w", "kind": "param", "dtype": "f32", "shape": [2, 3],
 *                    "file": "params.safetensors", "crc32c": ["e3069283"]},
 *                   {"name": "adamw.m/w", "kind": "state", "role": "moment", "of": "w", ...},
 *                   {"name": "adamw.step", "kind": "state", "role": "count", ...}, ...],
 *       "crc32c": "62a8ab43"
 *     }
 *
 * Sharded tensors are not gathered: each rank writes its elements into files of its own, as tensors
 * of one dimension with their range in the name, and lists them. Rank 1 of 4:
 *
 *     PATH/params.rank-00001-of-00004.safetensors    "w[1024:2048]", ...
 *     PATH/state.rank-00001-of-00004.safetensors     "adamw.m/w[1024:2048]", ...
 *     PATH/rank-00001-of-00004.json
 *
 *     {
 *       "headers": {"params.rank-00001-of-00004.safetensors": "0a1bd3c2", ...},
 *       "tensors": [{"name": "w", "kind": "param", "dtype": "f32", "shape": [64, 64],
 *                    "first": 1024, "count": 1024,
 *                    "file": "params.rank-00001-of-00004.safetensors", "crc32c": ["91f3a7b0"]},
 *                   ...]
 *     }
 *
 * The ranges of a tensor follow each other in the order of the ranks, without gap or overlap. So do
 * those of each piece of a tensor that zf_tile has cut; a rank then has a range of each. Where
 * ranks are in several nodes, their files have the order of their shards (base/mesh.c), and what
 * each rank or node has of its own is in the tensor in the order of ranks or nodes. Tensors
 * that are whole on all ranks are written by rank 0, as above. The manifest then has a member
 * "ranks": {"rank-00000-of-00004.json": "3c9d0e55", ...}. Where no tensor is sharded there are no
 * files of ranks, however many ranks there were.
 *
 * Ranks of a mesh have boxes of tensors (format 3). Each writes elements of its box, in which
 * "first" counts; without the member the box is the tensor. Boxes of a tensor have all of its
 * elements once. Of ranks that have the same, the first along each axis writes it:
 *
 *     {"name": "w", "shape": [64, 64], "box": [[0, 64], [32, 64]], "first": 0, "count": 1024, ...}
 *
 * A dimension that is cut in runs has [from, until, run, stride]: [8, 48, 8, 16] is 8 to 15, 24 to
 * 31 and 40 to 47.
 *
 * Of a tensor that is in pieces there (zf_tile, zf_divide) each is a box: its "piece" is the name
 * under which the file has it, such as "w[16:24]".
 *
 * Each state has a "role" (graph/role.c), null where it is the program's own, and "of" with the
 * parameter's name where the role is that of a state of one parameter. Parameters of an adapter
 * have "role": "adapter" and the adapter's name in "adapter". Files of older versions have no
 * roles: there names of states say them.
 *
 * Steps of trainings with names follow "step": "steps": {"critic": 15}. They are left out where
 * there are none.
 *
 * A CRC-32C covers every byte: each 4 MiB of a tensor's (or range's) data have one, so that a rank
 * of another world reads little more than it needs; "headers" has those of the files' headers;
 * "ranks" those of the ranks' lists; the manifest's last member covers everything before its own
 * value. Format 1, which is read as well, has one checksum for a whole tensor, and no ranks.
 */
enum {
    ZFI_PIECE = 4 << 20, /* bytes that are moved at a time, and under one checksum */
    ZFI_CHECKPOINT_FORMAT = 3,
    ZFI_FORMAT_WITHOUT_BOXES = 2,
    ZFI_FILE_NAME = 64
};

static const char zfi_manifest_name[] = "manifest.json";

static const struct {
    const char *name, *stem, *file;
} zfi_kinds[2] = {{"param", "params", "params.safetensors"},
                  {"state", "state", "state.safetensors"}};

/* The kind of a tensor: an index into zfi_kinds. */
static int zfi_kind_of(const zfi_stored *t) { return t->op == ZF_OP_param ? 0 : 1; }

/* The file of the whole tensors (rank -1), or of a rank's ranges of the sharded ones. */
static const char *zfi_tensor_file(char out[ZFI_FILE_NAME], int kind, int32_t rank, int32_t world)
{
    if (rank < 0) snprintf(out, ZFI_FILE_NAME, "%s", zfi_kinds[kind].file);
    else
        snprintf(out, ZFI_FILE_NAME, "%s.rank-%05d-of-%05d.safetensors", zfi_kinds[kind].stem,
                 (int)rank, (int)world);
    return out;
}

/* The file of a rank's list. */
static const char *zfi_rank_file(char out[ZFI_FILE_NAME], int32_t rank, int32_t world)
{
    snprintf(out, ZFI_FILE_NAME, "rank-%05d-of-%05d.json", (int)rank, (int)world);
    return out;
}

enum { ZFI_PART_NAME = 320 }; /* a name has at most 255 characters */

/* The tensor's name in its file: of a rank's, "w[1024:2048]". */
static const char *zfi_part_name(char out[ZFI_PART_NAME], const char *name, int32_t rank,
                                 int64_t first, int64_t count)
{
    if (rank < 0) snprintf(out, ZFI_PART_NAME, "%s", name);
    else
        snprintf(out, ZFI_PART_NAME, "%s[%lld:%lld]", name, (long long)first,
                 (long long)(first + count));
    return out;
}

/* DIRECTORY/NAME into out. */
static zf_status zfi_file_in(char out[ZFI_ASIDE_MAX], const char *directory, const char *name,
                             zf_error *error)
{
    if (zfi_path_join(out, directory, name)) return ZF_OK;
    return zfi_fail(error, ZF_ERR_ARGUMENT, "%s: too long a path", zfi_path_tail(directory));
}

/* Whether the caller's file may have that name: it is no name of the checkpoint's own files or of
 * temporary files, and does not lead out of the directory. */
static bool zfi_is_attachment(const char *name)
{
    size_t length = strlen(name);
    if (!length || length > 200 || *name == '.') return false;
    for (size_t i = 0; i < length; i++)
        if (!zfi_is_word((unsigned char)name[i]) && name[i] != '.' && name[i] != '-') return false;
    if (length > 7 && !strcmp(name + length - 7, ".zf-new")) return false;
    if (!strncmp(name, "rank-", 5)) return false;
    for (int kind = 0; kind < 2; kind++) {
        size_t stem = strlen(zfi_kinds[kind].stem);
        if (!strcmp(name, zfi_kinds[kind].file) ||
            (!strncmp(name, zfi_kinds[kind].stem, stem) && !strncmp(name + stem, ".rank-", 6)))
            return false;
    }
    return strcmp(name, zfi_manifest_name) != 0;
}

/* -------------------------------------------------------------------------------- checksums */

static const char *zfi_sum_text(char out[12], uint32_t crc)
{
    snprintf(out, 12, "%08x", (unsigned)crc);
    return out;
}

/* Reads `bytes` at `offset` and adds them to the checksum, while they are in cache. */
static zf_status zfi_file_piece(int file, const char *path, uint64_t offset, char *out,
                                size_t bytes, uint32_t *crc, zf_error *error)
{
    zf_status status = ZF_OK;
    for (size_t at = 0, n; at < bytes && !status; at += n) {
        n = bytes - at < ZFI_CHECK_CHUNK ? bytes - at : ZFI_CHECK_CHUNK;
        status = zfi_file_read(file, path, offset + at, out + at, n, error);
        if (!status) *crc = zfi_crc32c(*crc, out + at, n);
    }
    return status;
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
        status = zfi_file_piece(file, path, at, piece, part, crc, error);
    }
    close(file);
    return status;
}

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

/* who: which file says what the checksum must be. */
static zf_status zfi_sum_fail(zf_error *error, const char *file, const char *what, uint32_t crc,
                              const char *who, uint32_t expected)
{
    return zfi_fail(error, ZF_ERR_FORMAT,
                    "%s: %s%schecksum %08x, %s says %08x; the file is damaged", zfi_path_tail(file),
                    what, *what ? ": " : "", (unsigned)crc, who, (unsigned)expected);
}

static const char zfi_the_manifest[] = "the manifest";

/* --------------------------------------------------------------------------------- reading */

typedef struct zfi_manifest {
    zfi_memory memory;
    char path[ZFI_ASIDE_MAX];
    char *text; /* as it is in the file */
    size_t bytes;
    zf_json *json;
    int64_t format;
} zfi_manifest;

/* Completes an interrupted commit. Writes nothing where there was none, so a checkpoint may lie on
 * a read-only file system. */
static zf_status zfi_checkpoint_recover(const char *path, zf_error *error)
{
    char place[ZFI_PATH_MAX], old[ZFI_ASIDE_MAX];
    struct stat about;
    zf_status status = zfi_path_resolve(path, place, error);
    if (status) return status;
    snprintf(old, sizeof old, "%s.zf-old", place);
    return stat(old, &about) ? ZF_OK : zfi_directory_recover(path, zfi_manifest_name, error);
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

/* The manifest is this library's, of a format that is read here, and as it was written. */
static zf_status zfi_manifest_check(zfi_manifest *m, zf_error *error)
{
    static const char end[] = "\"\n}\n"; /* what follows the checksum's digits */
    const char *library = zf_json_string(zf_json_member(m->json, "library"), NULL);
    const zf_json *format, *sum;
    uint32_t expected = 0, crc;
    size_t at;
    if (!library || strcmp(library, "zeroflow"))
        return zfi_fail(error, ZF_ERR_FORMAT, "%s is not the manifest of a zeroflow checkpoint",
                        zfi_path_tail(m->path));
    format = zf_json_require(m->json, "format", error);
    if (!format || zf_json_to_int(format, 1, INT64_MAX, &m->format, error)) return ZF_ERR_FORMAT;
    if (m->format > ZFI_CHECKPOINT_FORMAT)
        return zf_json_expected(format, error,
                                "1 to %d, the formats that this version of zeroflow reads",
                                ZFI_CHECKPOINT_FORMAT);
    sum = zf_json_require(m->json, "crc32c", error);
    if (!sum || zfi_json_to_sum(sum, &expected, error)) return ZF_ERR_FORMAT;
    at = sum->start; /* of the digits; the quote in front is not under the checksum */
    crc = zfi_crc32c(0, m->text, at - 1);
    if (crc != expected) return zfi_sum_fail(error, m->path, "", crc, zfi_the_manifest, expected);
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
    *m = (zfi_manifest){.text = NULL};
    return zfi_fail(error, failed.status, "%s", failed.text);
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
