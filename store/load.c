/* Loading a checkpoint, whatever the mesh and the stage of the ranks that wrote it, in two phases,
 * each of which all ranks end before any begins the next:
 *
 *     check     manifest and lists, then FILE -> piece for all that this rank needs
 *     write     again FILE -> piece -> device
 *
 * A rank that holds elements [first, first + count) of a tensor reads the pieces where they are:
 *
 *     parts     | rank 0 of 2: piece, piece, ... | rank 1 of 2: piece, piece |
 *     held      | rank 0 of 3        | rank 1 of 3        | rank 2 of 3      |
 */

/* Elements [begin, upto) of a tensor: those of a piece (zf_tile) that the lists have so far. */
typedef struct zfi_extent {
    int64_t begin, upto;
    int32_t next; /* after it, an index into zfi_loading.extents; -1: none */
} zfi_extent;

/* A box of a tensor, of which some rank had elements. */
typedef struct zfi_found_box {
    zfi_rank_box box;
    int32_t rank;  /* whose list had elements of it first */
    int32_t first; /* of its extents */
    int32_t next;  /* box of the tensor, an index into zfi_loading.boxes; -1: none */
} zfi_found_box;

/* What the checkpoint has of a tensor. */
typedef struct zfi_found {
    int32_t first; /* of its boxes; -1: nothing is there */
    /* Of a state of which each rank or node has its own, if the checkpoint is of another number of
     * them: that number; else 0 */
    int64_t rows;
    int32_t master, next_master; /* the tensor's master weights; others of the same parameter; -1 */
} zfi_found;

static const zfi_found zfi_not_found = {.first = -1, .master = -1, .next_master = -1};

/* Elements [first, first + count) of a box of a tensor, some of which this rank needs. */
typedef struct zfi_part {
    int32_t tensor;
    int kind;     /* of the entry: a parameter may take the values of a state */
    int32_t rank; /* whose file; -1: that of what is whole */
    int32_t box;  /* an index into zfi_loading.boxes, of whose elements: */
    int64_t first, count;
    uint64_t at; /* byte of the file */
    size_t sums; /* the checksums of its pieces are zfi_loading.sums[sums], ... */
} zfi_part;

typedef struct zfi_loading {
    zf_store *store;
    const char *path;
    zf_load_desc d;
    bool adds; /* tensors that the store lacks, */
    zfi_role states; /* with params_only: states with this role too */
    bool writes; /* values are being changed */
    zfi_store_mark mark;
    zfi_memory memory;
    zfi_manifest manifest;
    int32_t world; /* ranks that have lists; 0: all is whole */
    /* The list that is being read: of a rank; -1: that in the manifest */
    int32_t rank;
    const zf_json *headers;
    zf_safetensors *files[2]; /* by kind; NULL: not opened */
    int32_t listed[2];        /* tensors, by kind */
    zfi_found *found;         /* by tensor; growing arrays: */
    zfi_found_box *boxes;
    zfi_extent *extents;
    zfi_part *parts;
    uint32_t *sums;
    char *piece;
    size_t piece_bytes; /* of the open file, from piece_at on, that it has with their checksum; 0 */
    uint64_t piece_at;
    uint32_t piece_crc;
    int64_t step;
    const zf_json *steps; /* of trainings with names; NULL: there are none */
    uint64_t seed;
} zfi_loading;

/* One of "tensors". */
typedef struct zfi_entry {
    const zf_json *json;
    const char *name;
    const char *piece; /* of it, that the file has by this name; NULL: it has the tensor */
    int kind;
    zfi_role role;       /* of a state or of a parameter of an adapter; */
    const char *of;      /* of a state of a parameter: the parameter's name; */
    const char *adapter; /* of a parameter of an adapter: the adapter's; else NULL */
    zf_dtype dtype;
    zfi_rank_box box; /* of the tensor */
    int64_t first, count;      /* elements of the box; */
    const zf_json *first_json; /* what says so; NULL: it is all of them */
    const zf_json *sums;
} zfi_entry;

/* --------------------------------------------------------------------------------- entries */

/* "crc32c": one for all, in format 1; else a list, one for each piece. */
static zf_status zfi_entry_sums(const zfi_loading *l, zfi_entry *entry, zf_error *error)
{
    size_t bytes, pieces;
    if (!zfi_mul_size((size_t)entry->count, zf_dtype_size(entry->dtype), &bytes))
        return zf_json_fail(entry->json, error, "has more bytes than 64 bits count");
    if (l->manifest.format == 1) {
        uint32_t crc = 0;
        return zfi_json_to_sum(entry->sums, &crc, error);
    }
    pieces = bytes / ZFI_PIECE + (bytes % ZFI_PIECE != 0);
    if (zf_json_type_of(entry->sums) != ZF_JSON_ARRAY)
        return zf_json_expected(entry->sums, error, "an array of checksums");
    if ((uint64_t)zf_json_length(entry->sums) == pieces) return ZF_OK;
    return zf_json_fail(entry->sums, error, "has %lld checksums; %zu bytes have %zu",
                        (long long)zf_json_length(entry->sums), bytes, pieces);
}

/* A dimension of a box: [from, until], or [from, until, run, stride] of what lies in runs. */
static zf_status zfi_entry_range_of(zfi_rank_box *box, int32_t d, const zf_json *json,
                                    zf_error *error)
{
    const int64_t count = zf_json_type_of(json) == ZF_JSON_ARRAY ? zf_json_length(json) : 0;
    const int64_t all = box->share.whole.dims[d];
    const zf_json *at = zf_json_first(json);
    int64_t until = 0, run = 0, stride = 0;
    if (count != 2 && count != 4)
        return zf_json_expected(json, error, "[from, until] or [from, until, run, stride]");
    if (zf_json_to_int(at, 0, all, &box->share.at[d], error)) return error->status;
    at = zf_json_next(at);
    if (zf_json_to_int(at, box->share.at[d], all, &until, error)) return error->status;
    box->shape.dims[d] = until - box->share.at[d];
    if (count == 2) return ZF_OK;
    at = zf_json_next(at);
    if (zf_json_to_int(at, 1, all, &run, error) ||
        zf_json_to_int(zf_json_next(at), run, all, &stride, error))
        return error->status;
    if (all % stride || stride % run || until - box->share.at[d] != all - stride + run ||
        box->share.at[d] % run)
        return zf_json_expected(json, error, "equal runs, one in each %lld of %lld", (long long)stride,
                                (long long)all);
    box->share.run[d] = run, box->shape.dims[d] = all / stride * run;
    return ZF_OK;
}

/* "box" of a part, if it has one: [[from, until], ...] */
static zf_status zfi_entry_box(zfi_entry *entry, zf_error *error)
{
    const zf_json *json = zf_json_member(entry->json, "box"), *at = zf_json_first(json);
    if (!json) return ZF_OK;
    if (zf_json_type_of(json) != ZF_JSON_ARRAY ||
        zf_json_length(json) != entry->box.share.whole.rank)
        return zf_json_expected(json, error, "an array of %d ranges, one for each dimension",
                                (int)entry->box.share.whole.rank);
    for (int32_t d = 0; d < entry->box.share.whole.rank; d++, at = zf_json_next(at))
        if (zfi_entry_range_of(&entry->box, d, at, error)) return error->status;
    entry->count = zf_shape_count(entry->box.shape);
    return ZF_OK;
}

/* "first" and "count" of a part. */
static zf_status zfi_entry_range(zfi_entry *entry, zf_error *error)
{
    const zf_json *count;
    zf_status status;
    if (!(entry->first_json = zf_json_require(entry->json, "first", error)) ||
        !(count = zf_json_require(entry->json, "count", error)))
        return ZF_ERR_FORMAT;
    if (!entry->count) return zf_json_fail(entry->json, error, "is a part of no elements");
    status = zf_json_to_int(entry->first_json, 0, entry->count - 1, &entry->first, error);
    return status ? status
                  : zf_json_to_int(count, 1, entry->count - entry->first, &entry->count, error);
}

/* The member that a role requires: text that is a name. */
static zf_status zfi_entry_name(const zfi_entry *entry, const char *member, const char **out,
                                zf_error *error)
{
    const zf_json *value = zf_json_require(entry->json, member, error);
    if (!value || zf_json_to_string(value, out, error)) return error->status;
    if (entry->kind ? zfi_valid_name(*out) : zfi_is_short_name(*out)) return ZF_OK;
    return zf_json_expected(value, error, entry->kind ? "the name of a parameter"
                                                      : "the name of an adapter");
}

/* "piece", the name under which the file has a box that is a piece of the tensor: of rows that have
 * all of the box. */
static zf_status zfi_entry_piece(zfi_entry *entry, zf_error *error)
{
    const zf_json *value = zf_json_member(entry->json, "piece");
    const zfi_rank_box *box = &entry->box;
    const int64_t from = box->share.at[0], until = from + box->shape.dims[0];
    long long first = -1, last = -1;
    char name[ZFI_PIECE_NAME];
    if (!value || zf_json_to_string(value, &entry->piece, error)) return error->status;
    (void)sscanf(entry->piece + zfi_whole_name(entry->piece), "[%18lld:%18lld", &first, &last);
    if (!strcmp(entry->piece, zfi_piece_name(name, entry->name, first, last - first)) &&
        first >= 0 && first <= from && last >= until && last <= box->share.whole.dims[0])
        return ZF_OK;
    return zf_json_expected(value, error,
                            "\"%.255s[FROM:UNTIL]\", FROM from 0 to %lld, UNTIL from %lld to %lld",
                            entry->name, (long long)from, (long long)until,
                            (long long)box->share.whole.dims[0]);
}

/* "role", and "of" or "adapter". Older files have none: there names say the roles of states. */
static zf_status zfi_entry_role(zfi_entry *entry, zf_error *error)
{
    const zf_json *value = zf_json_member(entry->json, "role");
    const char *text = "";
    if (!value && entry->kind) entry->role = zfi_role_in_name(entry->name, &entry->of);
    if (!value || zf_json_type_of(value) == ZF_JSON_NULL) return ZF_OK;
    if (zf_json_to_string(value, &text, error)) return error->status;
    entry->role = zfi_role_called(text, strlen(text));
    if (!entry->role || zfi_op_of_role(entry->role) != (entry->kind ? ZF_OP_state : ZF_OP_param))
        return zf_json_expected(value, error, "the role of a %s, such as \"%s\"",
                                zfi_kinds[entry->kind].name, entry->kind ? "moment" : "adapter");
    if (!entry->kind) return zfi_entry_name(entry, "adapter", &entry->adapter, error);
    return zfi_roles[entry->role].kind == ZFI_OF_STATE
               ? zfi_entry_name(entry, "of", &entry->of, error)
               : ZF_OK;
}

static zf_status zfi_entry_read(const zfi_loading *l, const zf_json *json, zfi_entry *entry,
                                zf_error *error)
{
    static const char *const members[6] = {"name", "kind", "dtype", "file", "shape", "crc32c"};
    const zf_json *values[6];
    const char *text[4] = {"", "", "", ""};
    char file[ZFI_FILE_NAME];
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
    if (zfi_entry_role(entry, error)) return error->status;
    while (zf_dtype_size(entry->dtype) && strcmp(text[2], zf_dtype_name(entry->dtype)))
        entry->dtype = (zf_dtype)(entry->dtype + 1);
    if (!zf_dtype_size(entry->dtype))
        return zf_json_expected(values[2], error, "a dtype such as \"f32\"");
    zfi_tensor_file(file, entry->kind, l->rank, l->world);
    if (strcmp(text[3], file)) return zf_json_expected(values[3], error, "\"%s\"", file);
    if (zfi_safetensors_shape(values[4], &entry->box.share.whole, error)) return error->status;
    entry->box.shape = entry->box.share.whole;
    entry->count = zf_shape_count(entry->box.shape);
    if (l->rank >= 0 && (zfi_entry_box(entry, error) || zfi_entry_range(entry, error) ||
                         zfi_entry_piece(entry, error)))
        return error->status;
    entry->sums = values[5];
    return zfi_entry_sums(l, entry, error);
}

/* Opens the file of one kind of tensors, if the list has one, and checks its header. */
static zf_status zfi_load_header(zfi_loading *l, int kind)
{
    zf_error *error = &l->store->error;
    char name[ZFI_FILE_NAME], path[ZFI_ASIDE_MAX], who[ZFI_FILE_NAME];
    const zf_json *sum = zf_json_member(l->headers, zfi_tensor_file(name, kind, l->rank, l->world));
    uint32_t crc = 0, expected = 0;
    zf_status status;
    if (!sum) return ZF_OK;
    if ((status = zfi_json_to_sum(sum, &expected, error))) return status;
    if ((status = zfi_file_in(path, l->path, name, error))) return status;
    l->files[kind] = zf_safetensors_open(path, &l->memory.allocator, error);
    if (!l->files[kind]) return error->status;
    status = zfi_file_sum(path, l->files[kind]->start, l->piece, &crc, error);
    if (status || crc == expected) return status;
    return zfi_sum_fail(error, path, "header", crc,
                        l->rank < 0 ? zfi_the_manifest : zfi_rank_file(who, l->rank, l->world),
                        expected);
}

/* The entry's file has it, as the entry says, from byte *at on. */
static zf_status zfi_load_look(zfi_loading *l, const zfi_entry *entry, uint64_t *at)
{
    zf_error *error = &l->store->error;
    const zf_safetensors *file;
    const zf_safetensors_entry *there;
    int32_t index;
    zf_shape shape = entry->first_json ? ZF_SHAPE(entry->count) : entry->box.share.whole;
    char name[ZFI_PART_NAME], type[ZFI_TYPE_TEXT], other[ZFI_TYPE_TEXT], list[ZFI_FILE_NAME];
    const char *who = l->rank < 0 ? zfi_the_manifest : zfi_rank_file(list, l->rank, l->world);
    if (l->rank >= 0 && !l->files[entry->kind] && zfi_load_header(l, entry->kind))
        return error->status;
    if (!(file = l->files[entry->kind]))
        return zf_json_fail(entry->json, error, "is in %s, which \"headers\" lacks",
                            zfi_tensor_file(name, entry->kind, l->rank, l->world));
    zfi_part_name(name, entry->piece ? entry->piece : entry->name, l->rank, entry->first,
                  entry->count);
    if ((index = zf_safetensors_find(file, name)) < 0)
        return zfi_fail(error, ZF_ERR_FORMAT, "%s: %s is in %s, but not in the file", file->path,
                        name, who);
    there = zf_safetensors_at(file, index);
    *at = file->start + file->tensors[index].begin;
    if (there->readable && there->dtype == entry->dtype && zfi_same_shape(&there->shape, &shape))
        return ZF_OK;
    return zfi_fail(error, ZF_ERR_FORMAT, "%s: %s is %s, %s says %s", file->path, name,
                    there->readable ? zfi_type_text(other, there->dtype, &there->shape)
                                    : there->dtype_name,
                    who, zfi_type_text(type, entry->dtype, &shape));
}

/* The entry's box among those of tensor k, with which no other has an element in common; it is
 * added if it is not there. -1 with the store's error. */
static int32_t zfi_load_box(zfi_loading *l, int32_t k, const zfi_entry *entry)
{
    zf_error *error = &l->store->error;
    int32_t n = l->found[k].first;
    while (n >= 0 && !zfi_same_box(&l->boxes[n].box, &entry->box)) {
        if (zfi_boxes_meet(&l->boxes[n].box, &entry->box)) {
            zf_json_fail(entry->json, error, "has elements of \"%s\" that another box has: they overlap",
                         entry->name);
            return -1;
        }
        n = l->boxes[n].next;
    }
    if (n >= 0) return n;
    if (!zfi_push(&l->memory, l->boxes,
                  ((zfi_found_box){entry->box, l->rank, -1, l->found[k].first}))) {
        zfi_nomem(error);
        return -1;
    }
    return l->found[k].first = zfi_len(l->boxes) - 1;
}

/* The entry's elements follow those of its box that are there. The first rank has the beginnings of
 * all pieces. Values that each rank has of its own come in another order (store/manifest.c). */
static zf_status zfi_load_follows(zfi_loading *l, int32_t k, int32_t box, const zfi_entry *entry)
{
    zf_error *error = &l->store->error;
    zfi_found_box *found = &l->boxes[box];
    const int64_t end = entry->first + entry->count;
    int32_t at = -1, next = found->first;
    int64_t upto, limit;
    if (!entry->first_json && found->first >= 0)
        return zf_json_fail(entry->json, error, "lists \"%s\" again", entry->name);
    while (next >= 0 && l->extents[next].begin <= entry->first)
        at = next, next = l->extents[next].next;
    upto = at < 0 ? 0 : l->extents[at].upto;
    limit = next < 0 ? INT64_MAX : l->extents[next].begin;
    if (entry->first < upto || end > limit)
        return zf_json_fail(entry->first_json, error,
                            "is %lld, but the parts before end at element %lld of \"%s\": they "
                            "overlap",
                            (long long)entry->first, (long long)upto, entry->name);
    if (entry->first > upto && (at < 0 || l->rank != found->rank) &&
        !zfi_is_left(l->store->tensors[k].role))
        return zf_json_fail(entry->first_json, error,
                            "is %lld, but the parts before end at element %lld of \"%s\": what is "
                            "between is missing",
                            (long long)entry->first, (long long)upto, entry->name);
    if (at >= 0 && entry->first == upto) {
        l->extents[at].upto = end;
        return ZF_OK;
    }
    if (!zfi_push(&l->memory, l->extents, ((zfi_extent){entry->first, end, next})))
        return zfi_nomem(error);
    *(at < 0 ? &found->first : &l->extents[at].next) = zfi_len(l->extents) - 1;
    return ZF_OK;
}

/* Notes that this rank needs some of the entry. */
static zf_status zfi_load_later(zfi_loading *l, int32_t tensor, int32_t box,
                                const zfi_entry *entry, uint64_t at)
{
    zf_error *error = &l->store->error;
    zfi_part part = {tensor, entry->kind,  l->rank,      box,
                     entry->first, entry->count, at, stbds_arrlenu(l->sums)};
    const zf_json *sum = l->manifest.format == 1 ? entry->sums : zf_json_first(entry->sums);
    while (sum) {
        uint32_t crc = 0;
        if (zfi_json_to_sum(sum, &crc, error)) return error->status;
        if (!zfi_push(&l->memory, l->sums, crc)) return zfi_nomem(error);
        sum = l->manifest.format == 1 ? NULL : zf_json_next(sum);
    }
    return zfi_push(&l->memory, l->parts, part) ? ZF_OK : zfi_nomem(error);
}

/* The tensor that takes the entry's values: that of its name, or of master weights, where these are
 * wanted, the parameter of their dtype; -1: none. */
static int32_t zfi_load_tensor(const zfi_loading *l, const zfi_entry *entry)
{
    const zf_store *s = l->store;
    int32_t k = zfi_store_find(s, entry->name);
    if (k >= 0 && s->tensors[k].whole >= 0) return -1; /* files name whole tensors */
    if (!l->d.masters) return k;
    if (!entry->kind)
        return k >= 0 && zfi_is_half(entry->dtype) && s->tensors[k].dtype == ZF_F32 ? -1 : k;
    k = entry->role == ZFI_ROLE_MASTER ? zfi_store_find(s, entry->of) : -1;
    return k >= 0 && s->tensors[k].dtype == entry->dtype ? k : -1;
}

/* A copy in the store; NULL of NULL. */
static const char *zfi_load_text(zf_store *s, const char *text)
{
    return text ? zfi_text_copy(&s->memory, &s->text, text, strlen(text)) : NULL;
}

/* Adds the entry's tensor to the store, loose, and without memory until it is known that the files
 * have all of it. */
static int32_t zfi_load_add(zfi_loading *l, const zfi_entry *entry)
{
    zf_store *s = l->store;
    int32_t k = zfi_store_add(s, (zfi_stored){.name = entry->name,
                                              .op = entry->kind ? ZF_OP_state : ZF_OP_param,
                                              .role = entry->role,
                                              .param = zfi_load_text(s, entry->of),
                                              .adapter = zfi_load_text(s, entry->adapter),
                                              .dtype = entry->dtype,
                                              .shape = entry->box.share.whole,
                                              .of = -1,
                                              .bucket = -1});
    if (k >= 0 && !s->memory.failed && zfi_push(&l->memory, l->found, zfi_not_found)) return k;
    s->memory.failed = false;
    zfi_nomem(&s->error);
    return -1;
}

/* The store takes the entry if it lacks it. */
static bool zfi_load_adds(const zfi_loading *l, const zfi_entry *entry)
{
    return l->adds && zfi_store_find(l->store, entry->name) < 0 &&
           (!entry->kind || !l->d.params_only || (l->states && entry->role == l->states));
}

/* Each rank (or node) has its own values of the tensor, and the checkpoint is of another number of
 * them. Each begins with the mean of the old values, which keeps the mean over ranks. What
 * quantised gradients have left to send is a sum: each begins with an equal part of it. */
static bool zfi_load_means(const zf_store *s, const zfi_stored *t, const zfi_entry *entry)
{
    return t->bucket >= 0 && s->buckets[t->bucket].each && t->dtype == ZF_F32 &&
           entry->dtype == ZF_F32 && entry->box.share.whole.rank == 2 && entry->box.share.whole.dims[0] > 0 &&
           entry->box.share.whole.dims[0] != t->shape.dims[0] &&
           entry->box.share.whole.dims[1] == t->shape.dims[1];
}

/* Records of what quantised gradients have left to send, here or in the file, which are not those
 * of the other: the store's begin with 0. */
static bool zfi_load_drops(const zfi_stored *t, const zfi_entry *entry)
{
    return t->bucket >= 0 && zfi_is_left(t->role) &&
           (t->dtype == ZF_U8 || entry->dtype == ZF_U8) &&
           (t->dtype != entry->dtype || !zfi_same_shape(&t->shape, &entry->box.share.whole));
}

/* Some of the entry's elements may be among those that this rank holds of tensor k; `whole`: of
 * which k is a piece, or k. */
static bool zfi_load_needs(const zfi_loading *l, int32_t k, int32_t whole, const zfi_entry *entry)
{
    const zf_store *s = l->store;
    const zfi_portion has = zfi_portion_of(s, k);
    const zfi_stored *t = &s->tensors[k];
    const zfi_rank_box box = zfi_stored_box(s, zfi_is_box_of_whole(s, t) ? t : &s->tensors[whole]);
    int64_t first = zfi_stored_from(s, t) + has.first, last = first + has.count - 1, from, until,
            run;
    if (zfi_is_away(s, t) || !has.count || !entry->count) return false;
    if (l->found[whole].rows) return true;
    if (!zfi_boxes_meet(&box, &entry->box)) return false;
    from = zfi_box_to_whole(&entry->box, entry->first, &run);
    until = zfi_box_to_whole(&entry->box, entry->first + entry->count - 1, &run);
    first = zfi_box_to_whole(&box, first, &run), last = zfi_box_to_whole(&box, last, &run);
    return first <= until && from <= last;
}

/* The store has the tensor, with that dtype and shape, and so has the file. */
static zf_status zfi_load_entry(zfi_loading *l, const zfi_entry *entry)
{
    zf_store *s = l->store;
    int32_t k = zfi_load_tensor(l, entry);
    const zfi_stored *t;
    zf_shape whole;
    char type[ZFI_TYPE_TEXT], other[ZFI_TYPE_TEXT], path[ZFI_ASIDE_MAX], name[ZFI_FILE_NAME];
    uint64_t at = 0;
    int32_t box;
    zf_status status = ZF_OK;
    if (l->rank < 0 && (status = zfi_load_look(l, entry, &at))) return status;
    if ((status = zfi_file_in(path, l->path, zfi_tensor_file(name, entry->kind, l->rank, l->world),
                              &s->error)))
        return status;
    if (zfi_load_adds(l, entry) && (k = zfi_load_add(l, entry)) < 0) return s->error.status;
    if (k < 0 || (zfi_kind_of(&s->tensors[k]) != entry->kind && !l->d.masters)) {
        if (l->d.params_only ||
            zfi_is_left(entry->role))
            return ZF_OK;
        return zfi_fail(&s->error, ZF_ERR_MISMATCH,
                        "%s: the store has no %s \"%s\": the checkpoint is of another model%s",
                        zfi_path_tail(path), zfi_kinds[entry->kind].name, entry->name,
                        entry->kind ? " or optimizer" : "");
    }
    t = &s->tensors[k];
    if (t->role && entry->role && t->role != entry->role && zfi_kind_of(t) == entry->kind)
        return zfi_fail(&s->error, ZF_ERR_MISMATCH, "%s: %s has the role %s, but %s in the store",
                        zfi_path_tail(path), entry->name, zfi_roles[entry->role].text,
                        zfi_roles[t->role].text);
    if (zfi_load_drops(t, entry)) return ZF_OK;
    whole = zfi_whole_shape(s, t);
    if (zfi_load_means(s, t, entry)) l->found[k].rows = entry->box.share.whole.dims[0];
    else if (t->dtype != entry->dtype || !zfi_same_shape(&whole, &entry->box.share.whole))
        return zfi_fail(&s->error, ZF_ERR_MISMATCH, "%s: %s is %s, but %s in the store",
                        zfi_path_tail(path), entry->name,
                        zfi_type_text(type, entry->dtype, &entry->box.share.whole),
                        zfi_type_text(other, t->dtype, &whole));
    if ((box = zfi_load_box(l, k, entry)) < 0) return s->error.status;
    if ((status = zfi_load_follows(l, k, box, entry))) return status;
    for (int32_t n = zfi_is_tiled(t) ? t->next : k, looked = l->rank < 0; n >= 0 && !status;
         n = s->tensors[n].next) {
        if (!zfi_load_needs(l, n, k, entry)) continue;
        if (!looked && (status = zfi_load_look(l, entry, &at))) return status;
        looked = true;
        status = zfi_load_later(l, n, box, entry, at);
    }
    return status;
}

/* ----------------------------------------------------------------------------------- lists */

/* Some states are read. */
static bool zfi_load_has_states(const zfi_loading *l)
{
    return !l->d.params_only || l->d.masters || l->states;
}

/* The list in `json`, that of l->rank: its entries, and that its files have nothing else. */
static zf_status zfi_load_entries(zfi_loading *l, const zf_json *json)
{
    zf_error *error = &l->store->error;
    const zf_json *tensors = zf_json_require(json, "tensors", error), *at;
    zf_status status = ZF_OK;
    if (!tensors) return error->status;
    if (!(l->headers = zf_json_require(json, "headers", error))) return error->status;
    if (l->rank < 0 && !l->world && !zf_json_require(l->headers, zfi_kinds[0].file, error))
        return error->status;
    if (zf_json_type_of(l->headers) != ZF_JSON_OBJECT)
        return zf_json_expected(l->headers, error, "an object");
    for (int kind = 0; kind < 2 && !status && l->rank < 0; kind++)
        if (!kind || zfi_load_has_states(l)) status = zfi_load_header(l, kind);
    if (status) return status;
    if (zf_json_type_of(tensors) != ZF_JSON_ARRAY)
        return zf_json_expected(tensors, error, "an array");
    l->listed[0] = l->listed[1] = 0;
    for (at = zf_json_first(tensors); at && !status; at = zf_json_next(at)) {
        zfi_entry entry;
        if ((status = zfi_entry_read(l, at, &entry, error))) return status;
        if (entry.kind && !zfi_load_has_states(l)) continue;
        l->listed[entry.kind]++;
        status = zfi_load_entry(l, &entry);
    }
    for (int kind = 0; kind < 2 && !status; kind++)
        if (l->files[kind] && l->files[kind]->count != l->listed[kind]) {
            char name[ZFI_FILE_NAME];
            status =
                zfi_fail(error, ZF_ERR_FORMAT, "%s: %d tensors, %s says %d", l->files[kind]->path,
                         (int)l->files[kind]->count,
                         l->rank < 0 ? zfi_the_manifest : zfi_rank_file(name, l->rank, l->world),
                         (int)l->listed[kind]);
        }
    return status;
}

static zf_status zfi_load_list(zfi_loading *l, const zf_json *json)
{
    zf_status status = zfi_load_entries(l, json);
    for (int kind = 0; kind < 2; kind++) {
        zf_safetensors_close(l->files[kind]);
        l->files[kind] = NULL;
    }
    return status;
}

/* A rank's list, under its checksum. */
static zf_status zfi_load_rank(zfi_loading *l, const char *name, const zf_json *sum)
{
    zf_error *error = &l->store->error;
    char path[ZFI_ASIDE_MAX];
    uint32_t crc, expected = 0;
    size_t bytes = 0;
    zf_json *json = NULL;
    char *text;
    zf_status status;
    if ((status = zfi_json_to_sum(sum, &expected, error))) return status;
    if ((status = zfi_file_in(path, l->path, name, error))) return status;
    text = zfi_file_load(&l->memory, path, ZFI_JSON_FILE_LIMIT, &bytes, error);
    if (!text) return error->status;
    crc = zfi_crc32c(0, text, bytes);
    if (crc != expected) zfi_sum_fail(error, path, "", crc, zfi_the_manifest, expected);
    else json = zfi_json_parse(text, bytes, zfi_path_tail(path), &l->memory.allocator, error);
    zfi_free(&l->memory, text, bytes + 1);
    status = json ? zfi_load_list(l, json) : error->status;
    zf_json_free(json);
    return status;
}

/* The lists of the ranks, in their order. */
static zf_status zfi_load_ranks(zfi_loading *l)
{
    zf_error *error = &l->store->error;
    const zf_json *sum = l->world ? zf_json_first(zf_json_member(l->manifest.json, "ranks")) : NULL;
    zf_status status = ZF_OK;
    for (l->rank = 0; sum && !status; l->rank++, sum = zf_json_next(sum)) {
        char name[ZFI_FILE_NAME];
        if (strcmp(zf_json_key(sum, NULL), zfi_rank_file(name, l->rank, l->world)))
            return zf_json_fail(sum, error, "is not %s: rank %d of %d", name, (int)l->rank,
                                (int)l->world);
        status = zfi_load_rank(l, name, sum);
    }
    return status;
}

static zf_status zfi_load_seed(zfi_loading *l)
{
    zf_error *error = &l->store->error;
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

/* The boxes of tensor k have all of its elements. */
static zf_status zfi_load_boxes_complete(const zfi_loading *l, int32_t k)
{
    zf_store *s = l->store;
    const zfi_stored *t = &s->tensors[k];
    const zfi_found *found = &l->found[k];
    int64_t left = zf_shape_count(zfi_whole_shape(s, t));
    for (int32_t n = found->first; n >= 0; n = l->boxes[n].next) {
        const zfi_found_box *b = &l->boxes[n];
        int64_t upto = 0;
        const int64_t all = found->rows ? found->rows * t->shape.dims[1]
                                        : zf_shape_count(b->box.shape);
        for (int32_t at = b->first; at >= 0 && l->extents[at].begin == upto;)
            upto = l->extents[at].upto, at = l->extents[at].next;
        if (upto < all)
            return zfi_fail(&s->error, ZF_ERR_FORMAT,
                            "%s: the ranks' parts of \"%s\" end at element %lld of %lld",
                            zfi_path_tail(l->path), t->name, (long long)upto, (long long)all);
        left -= zf_shape_count(b->box.shape);
    }
    if (left <= 0 || found->rows) return ZF_OK;
    return zfi_fail(&s->error, ZF_ERR_FORMAT,
                    "%s: the boxes of \"%s\" leave a gap of %lld of its elements",
                    zfi_path_tail(l->path), t->name, (long long)left);
}

/* Everything that the store has is there, and all of it. */
static zf_status zfi_load_complete(const zfi_loading *l)
{
    zf_store *s = l->store;
    for (int32_t k = 0; k < zfi_len(s->tensors); k++) {
        const zfi_stored *t = &s->tensors[k];
        const zfi_found *found = &l->found[k];
        const int kind = zfi_kind_of(t);
        zf_status status;
        if ((kind && l->d.params_only && k < l->mark.tensors) || t->whole >= 0) continue;
        if (found->first < 0 && (l->d.merge || zfi_is_left(t->role))) continue;
        if (found->first < 0)
            return zfi_fail(&s->error, ZF_ERR_MISMATCH,
                            "%s: the checkpoint lacks the %s \"%s\": it is of another model%s",
                            zfi_path_tail(l->path), zfi_kinds[kind].name, t->name,
                            kind ? " or optimizer" : "");
        if ((status = zfi_load_boxes_complete(l, k))) return status;
    }
    return ZF_OK;
}

/* Half of the range leaves room to go on counting. */
static zf_status zfi_load_count(const zf_json *json, int64_t *count, zf_error *error)
{
    zf_status status = zf_json_to_int(json, 0, INT64_MAX / 2, count, error);
    return status ? status : error->status;
}

/* Steps of trainings with names. The store has all of these names afterwards. */
static zf_status zfi_load_steps(zfi_loading *l)
{
    zf_store *s = l->store;
    zf_status status = zfi_load_count(zf_json_require(l->manifest.json, "step", &s->error),
                                      &l->step, &s->error);
    l->steps = zf_json_member(l->manifest.json, "steps");
    if (status || !l->steps) return status;
    if (zf_json_type_of(l->steps) != ZF_JSON_OBJECT)
        return zf_json_expected(l->steps, &s->error, "an object");
    for (const zf_json *at = zf_json_first(l->steps); at && !status; at = zf_json_next(at)) {
        size_t bytes = 0;
        const char *name = zf_json_key(at, &bytes);
        int64_t steps;
        if (!bytes || strlen(name) != bytes || !zfi_is_short_name(name))
            return zf_json_fail(at, &s->error, "is not the name of a training");
        status = zfi_load_count(at, &steps, &s->error);
        if (!status && zfi_training_added(s, name) < 0) return zfi_nomem(&s->error);
    }
    return status;
}

/* Takes over the steps of all trainings. */
static void zfi_load_take_steps(const zfi_loading *l)
{
    zf_store *s = l->store;
    s->step = l->step;
    for (int32_t k = 0; k < zfi_len(s->trained); k++) s->trained[k].step = 0;
    for (const zf_json *at = zf_json_first(l->steps); at; at = zf_json_next(at))
        (void)zf_json_to_int(at, 0, INT64_MAX / 2,
                             &s->trained[zfi_training_at(s, zf_json_key(at, NULL))].step, NULL);
}

/* Manifest, lists, files and store agree about step, seed and every tensor. */
static zf_status zfi_load_manifest(zfi_loading *l)
{
    zf_error *error = &l->store->error;
    const zf_json *ranks =
        l->manifest.format == 1 ? NULL : zf_json_member(l->manifest.json, "ranks");
    zf_status status;
    if (!(status = zfi_load_steps(l))) status = zfi_load_seed(l);
    if (status) return status;
    if (ranks && zf_json_type_of(ranks) != ZF_JSON_OBJECT)
        return zf_json_expected(ranks, error, "an object");
    l->world = (int32_t)zf_json_length(ranks);
    l->rank = -1;
    if ((status = zfi_load_list(l, l->manifest.json)) || (status = zfi_load_ranks(l)))
        return status;
    return zfi_load_complete(l);
}

static zf_status zfi_load_attachments(zfi_loading *l)
{
    zf_error *error = &l->store->error;
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
        if (crc != expected) return zfi_sum_fail(error, path, "", crc, zfi_the_manifest, expected);
    }
    return ZF_OK;
}

/* ------------------------------------------------------------------------------------ data */

/* Elements [from, until), at `data`, into what this rank holds, which has them all. */
static zf_status zfi_load_put(zfi_loading *l, int32_t k, const zfi_portion *portion, int64_t from,
                              int64_t until, const char *data)
{
    zf_store *s = l->store;
    zfi_stored *t = &s->tensors[k];
    size_t size = zf_dtype_size(t->dtype);
    zf_status status;
    if (from >= until) return ZF_OK;
    t->fresh = false;
    status = zfi_stored_put(s, t, portion->data + (size_t)(from - portion->first) * size, data,
                            (size_t)(until - from) * size, &s->error);
    for (int32_t m = l->found[k].master; m >= 0 && !status; m = l->found[m].next_master)
        if (l->found[s->tensors[m].whole < 0 ? m : s->tensors[m].whole].first < 0)
            status = zfi_store_put_master(s, m, from, until, data, &s->error); /* they start anew */
    return status ? zfi_fail(&s->error, status, "zf_load: %s cannot be written", t->name) : ZF_OK;
}

/* What this rank has of a tensor, of a piece as a box of its whole. */
static zfi_rank_box zfi_load_ours(const zf_store *s, const zfi_stored *t)
{
    zfi_rank_box box = zfi_stored_box(s, t);
    if (t->whole >= 0 && !zfi_is_box_of_whole(s, t)) zfi_box_within(s, t, &box);
    return box;
}

/* Elements [from, until) of a box, at `data`: those that this rank has of the tensor. */
static zf_status zfi_load_put_box(zfi_loading *l, int32_t k, const zfi_rank_box *box, int64_t from,
                                  int64_t until, const char *data)
{
    const zfi_stored *t = &l->store->tensors[k];
    const zfi_rank_box ours = zfi_load_ours(l->store, t);
    const zfi_portion mine = zfi_portion_of(l->store, k);
    zf_status status = ZF_OK;
    for (int64_t at = from, n; at < until && !status; at += n) {
        const int64_t whole = zfi_box_to_whole(box, at, &n);
        int64_t run, to = zfi_box_of_whole(&ours, whole, &run), first, end;
        n = zfi_min(zfi_min(n, run), until - at);
        if (to < 0) continue;
        first = to > mine.first ? to : mine.first;
        end = zfi_min(to + n, mine.first + mine.count);
        if (first < end)
            status =
                zfi_load_put(l, k, &mine, first, end,
                             data + (size_t)(at - from + first - to) * zf_dtype_size(t->dtype));
    }
    return status;
}

/* Adds those of elements [from, until) of [ranks, n], at `data`, that this rank holds, in the order
 * of ranks; the last rank's are followed by the division. */
static zf_status zfi_load_add_rows(zfi_loading *l, int32_t k, int64_t from, int64_t until,
                                   const char *data)
{
    enum { ROOM = 4096 };
    float sum[ROOM], more[ROOM];
    zf_store *s = l->store;
    zfi_stored *t = &s->tensors[k];
    const zfi_portion mine = zfi_portion_of(s, k);
    const int64_t count = t->shape.dims[1], rows = l->found[k].rows,
                  parts = zfi_is_left(t->role) ? t->shape.dims[0] : rows,
                  first = mine.first % count, last = first + mine.count;
    zf_status status = ZF_OK;
    t->fresh = false;
    for (int64_t at = from, n; at < until && !status; at += n) {
        const int64_t row = at / count, i = at % count;
        char *to = mine.data + (size_t)(i - first) * sizeof *sum;
        n = zfi_min(zfi_min(until - at, count - i), ROOM);
        if (i < first) n = zfi_min(n, first - i);
        else if (i < last) n = zfi_min(n, last - i);
        if (i < first || i >= last) continue; /* another rank's */
        memcpy(more, data + (size_t)(at - from) * sizeof *more, (size_t)n * sizeof *more);
        memset(sum, 0, sizeof sum);
        if (row) status = zfi_stored_get(s, t, sum, to, (size_t)n * sizeof *sum, &s->error);
        for (int64_t j = 0; j < n; j++) {
            sum[j] += more[j];
            if (row == rows - 1) sum[j] /= (float)parts;
        }
        if (!status) status = zfi_stored_put(s, t, to, sum, (size_t)n * sizeof *sum, &s->error);
    }
    return status ? zfi_fail(&s->error, status, "zf_load: %s cannot be written", t->name) : ZF_OK;
}

/* Reads and checks the pieces of a part that this rank needs; writes them into the store or not.
 * Allocates nothing. */
static zf_status zfi_load_part(zfi_loading *l, const zfi_part *part, int file, const char *path,
                               bool write)
{
    zf_error *error = &l->store->error;
    const zfi_stored *t = &l->store->tensors[part->tensor];
    const zfi_portion portion = zfi_portion_of(l->store, part->tensor);
    const zfi_rank_box *const box = &l->boxes[part->box].box, ours = zfi_load_ours(l->store, t);
    const bool follows = t->whole >= 0 && !zfi_is_box_of_whole(l->store, t); /* other elements */
    const bool boxed = follows ? zfi_box_is_part(box) : !zfi_same_box(box, &ours);
    const bool means = l->found[part->tensor].rows > 0; /* of all ranks' parts */
    const int64_t size = (int64_t)zf_dtype_size(t->dtype),
                  begin = means || boxed ? part->first : portion.first,
                  end = means || boxed ? part->first + part->count : begin + portion.count,
                  part_first = part->first - (follows && !boxed ? t->from : 0); /* may be below 0 */
    /* Bytes of the part: all, those under one checksum, the first and the last that are needed */
    const size_t bytes = (size_t)(part->count * size),
                 span = l->manifest.format == 1 ? bytes : ZFI_PIECE,
                 from = begin > part_first ? (size_t)((begin - part_first) * size) : 0,
                 until =
                     end < part_first + part->count ? (size_t)((end - part_first) * size) : bytes;
    char name[ZFI_PART_NAME], list[ZFI_FILE_NAME];
    const char *who = part->rank < 0 ? zfi_the_manifest : zfi_rank_file(list, part->rank, l->world);
    uint32_t crc = 0;
    size_t n;
    zfi_part_name(name, zfi_named_tensor(l->store, t)->name, part->rank, part->first, part->count);
    for (size_t at = from / span * span; at < until || (at < bytes && at % span); at += n) {
        const uint32_t expected = l->sums[part->sums + at / span];
        int64_t low = part_first + (int64_t)at / size, high;
        n = bytes - at < ZFI_PIECE ? bytes - at : ZFI_PIECE;
        high = low + (int64_t)n / size;
        if (at % span == 0) crc = 0;
        if (at % span == 0 && n == l->piece_bytes && part->at + at == l->piece_at)
            crc = l->piece_crc;
        else if (zfi_file_piece(file, path, part->at + at, l->piece, n, &crc, error))
            return error->status;
        l->piece_bytes = at % span == 0 ? n : 0, l->piece_at = part->at + at, l->piece_crc = crc;
        if (write) {
            int64_t first = low > begin ? low : begin, last = high < end ? high : end;
            const char *data = l->piece + (first - low) * size;
            zf_status status = means   ? zfi_load_add_rows(l, part->tensor, first, last, data)
                               : boxed ? zfi_load_put_box(l, part->tensor, box, first, last, data)
                                       : zfi_load_put(l, part->tensor, &portion, first, last, data);
            if (status) return status;
        }
        if (crc == expected || (at + n < bytes && (at + n) % span)) continue;
        return write ? zfi_fail(error, ZF_ERR_FORMAT, "%s: %s changed while it was loaded",
                                zfi_path_tail(path), name)
                     : zfi_sum_fail(error, path, name, crc, who, expected);
    }
    return ZF_OK;
}

/* All parts, or those of one tensor, with one file open at a time. tensor -1: all. */
static zf_status zfi_load_parts(zfi_loading *l, int32_t tensor, bool write)
{
    zf_store *s = l->store;
    zf_status status = ZF_OK;
    int32_t rank = 0;
    int kind = -1, file = -1;
    char path[ZFI_ASIDE_MAX];
    for (size_t i = 0; i < stbds_arrlenu(l->parts) && !status; i++) {
        const zfi_part *part = &l->parts[i];
        if (tensor >= 0 && part->tensor != tensor) continue;
        if (part->kind != kind || part->rank != rank) {
            char name[ZFI_FILE_NAME];
            uint64_t bytes;
            kind = part->kind, rank = part->rank;
            if (file >= 0) close(file);
            file = -1, l->piece_bytes = 0;
            status =
                zfi_file_in(path, l->path, zfi_tensor_file(name, kind, rank, l->world), &s->error);
            if (!status && (file = zfi_file_open(path, &bytes, &s->error)) < 0)
                status = s->error.status;
        }
        if (!status) status = zfi_load_part(l, part, file, path, write);
    }
    if (file >= 0) close(file);
    return status;
}

/* ---------------------------------------------------------------------------------- phases */

/* Reads the lists, and checks all that this rank needs. */
static zf_status zfi_load_look_through(zfi_loading *l)
{
    zf_store *s = l->store;
    zf_status status;
    l->adds = l->d.merge || !zfi_len(s->tensors);
    status = s->backend->synchronize(s->backend->self, &s->error);
    if (status) return zfi_fail(&s->error, status, "zf_load: the backend failed");
    status = zfi_manifest_read(&l->manifest, l->path, &l->memory.allocator, &s->error);
    if (status) return status;
    l->piece = zfi_realloc(&l->memory, NULL, 0, ZFI_PIECE);
    for (int32_t k = 0; k < zfi_len(s->tensors) && !l->memory.failed; k++)
        zfi_push(&l->memory, l->found, zfi_not_found);
    if (l->memory.failed) return zfi_nomem(&s->error);
    for (int32_t k = zfi_len(s->tensors); zfi_down(k);) {
        const int32_t of = s->tensors[k].of;
        if (of >= 0) l->found[k].next_master = l->found[of].master, l->found[of].master = k;
    }
    if ((status = zfi_load_manifest(l))) return status;
    if (!s->rank && (status = zfi_load_attachments(l))) return status;
    return zfi_load_parts(l, -1, false);
}

static zf_status zfi_load_check(zfi_loading *l)
{
    zf_store *s = l->store;
    zf_status status = zfi_load_look_through(l);
    for (int32_t k = l->mark.tensors; k < zfi_len(s->tensors) && !status; k++) {
        zfi_stored *t = &s->tensors[k];
        if (!(t->host = zfi_calloc(&s->memory, zfi_whole_bytes(s, t), 1)))
            status = zfi_nomem(&s->error);
    }
    return status;
}

/* What quantised gradients have left to send is 0 where the checkpoint says nothing of it. */
static zf_status zfi_load_nothing_left(zfi_loading *l)
{
    zf_store *s = l->store;
    zf_status status = ZF_OK;
    memset(l->piece, 0, ZFI_PIECE);
    if (l->d.params_only || l->d.merge) return ZF_OK;
    for (int32_t k = 0; k < zfi_len(s->tensors) && !status; k++) {
        const zfi_stored *t = &s->tensors[k];
        const zfi_portion mine = zfi_portion_of(s, k);
        const size_t bytes = (size_t)mine.count * zf_dtype_size(t->dtype);
        if (l->found[k].first >= 0 || !zfi_is_left(t->role)) continue;
        for (size_t at = 0; at < bytes && !status; at += ZFI_PIECE)
            status = zfi_stored_put(s, t, mine.data + at, l->piece,
                                    bytes - at < ZFI_PIECE ? bytes - at : ZFI_PIECE, &s->error);
    }
    return status;
}

static zf_status zfi_load_write(zfi_loading *l)
{
    zf_store *s = l->store;
    zf_status status;
    l->writes = true;
    status = zfi_load_parts(l, -1, true);
    if (!status) status = zfi_load_nothing_left(l);
    if (!status) status = s->backend->synchronize(s->backend->self, &s->error);
    if (!status) return ZF_OK;
    zfi_fail(&s->error, status, "zf_load: the backend failed");
    snprintf(s->error.text + strlen(s->error.text), sizeof s->error.text - strlen(s->error.text),
             "; parameters and states are now undefined");
    return status;
}

static void zfi_load_free(zfi_loading *l)
{
    zfi_array_free(&l->memory, l->found);
    zfi_array_free(&l->memory, l->boxes);
    zfi_array_free(&l->memory, l->extents);
    zfi_free(&l->memory, l->piece, ZFI_PIECE);
    zfi_array_free(&l->memory, l->parts);
    zfi_array_free(&l->memory, l->sums);
    zfi_manifest_free(&l->manifest);
}

/* Takes step and seed over, when all ranks have been written. */
static void zfi_load_end(zfi_loading *l, zf_status status)
{
    zf_store *s = l->store;
    if (status) zfi_store_go_back(s, l->mark);
    if (status) s->undefined |= l->writes;
    else if (!l->d.params_only && !l->d.merge) s->undefined = false;
    for (int32_t k = 0; k < zfi_len(s->tensors) && !status; k++)
        s->tensors[k].sum = 0; /* of what is cut, and has not been written since */
    if (!status) s->loads++;
    if (!status && !l->d.params_only) {
        zfi_load_take_steps(l);
        s->seed = l->seed;
    }
    zfi_load_free(l);
}

static zf_status (*const zfi_load_phases[])(zfi_loading *) = {zfi_load_check, zfi_load_write};
