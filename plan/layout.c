/* What a store holds: named tensors, their buckets, and which elements of them are this rank's.
 * Passes read from it how the parameters that it holds are sharded.
 *
 *     tensors   "w"   "b"   "adamw.m/w" ...          name, dtype, shape; from element `at` on
 *                |     |         |
 *     buckets   | w .... | b . pad |   | adamw.m/w .. |    whole on each rank, or sharded equally
 *                                                          over the ranks
 *     pieces    | bucket, bucket, ... | bucket, ... |      one allocation for each zf_compile that
 *                                                          added tensors
 *
 * A tensor that was loaded before any program named it is loose: it lies in host memory, whole on
 * each rank, and in no bucket until a program is compiled that names it.
 *
 * A tensor that zf_tile has cut is listed, and so is each of its pieces, which alone have values:
 *
 *     "w"  -->  "w[0:1024]"  -->  "w[1024:2048]"      by `next`; "w" is in no bucket
 */

typedef struct zfi_stored_bucket {
    char *data; /* what this rank has of it; NULL: another stage has it */
    zf_dtype dtype;
    int64_t size;  /* elements of all shards, with padding */
    int32_t world; /* shards; 1: it is whole on each rank */
    int32_t nodes; /* in which the ranks are (base/mesh.c); which have all shards each, if those
                    * are fewer than the ranks */
    bool flat;     /* it was made by zf_zero; else it holds exactly one tensor */
    /* Every rank has values of its own, or every `world` ranks that share them: a tensor of n
     * elements is one of [ranks / world, n] */
    bool each;
    zf_space space;
} zfi_stored_bucket;

typedef struct zfi_stored {
    const char *name;
    zf_op op; /* param or state */
    zfi_role role; /* in the programs that named it, or in the checkpoint that it is from */
    const char *param; /* of a state of a parameter with a role: the parameter's name; NULL: none */
    const char *adapter; /* of a parameter with the role adapter: its adapter's name */
    zf_dtype dtype;
    zf_shape shape;
    zfi_spread spread; /* over the ranks of a mesh */
    int32_t stage;     /* of a pipeline, counted from 1, whose ranks have it; 0: all have */
    int32_t of;     /* the parameter whose master weights or average these are; -1: none */
    int32_t follower;      /* of a parameter: the first tensor of which it is that one; -1: none */
    int32_t next_follower; /* the next one of the same parameter; -1: none */
    int32_t bucket; /* -1: it is loose */
    int64_t at;     /* its first element in the bucket */
    char *host;     /* the values of a loose tensor, all of them */
    bool fresh;     /* its first values have not been changed */
    int32_t whole;  /* a piece: the tensor of which it is one; -1: it is none */
    int64_t from;   /* and its first element there */
    int32_t next;   /* of a tensor in pieces: the first; of a piece: the next; -1: none */
    int32_t linked; /* of a tensor in pieces: the piece that was added last; -1: none */
    uint32_t sum;   /* a checksum for zf_compare_ranks (same.c) */
} zfi_stored;

/* Memory of a space. */
typedef struct zfi_piece {
    char *data;
    size_t bytes;
    zf_space space;
    zfi_disk *disk; /* of ZF_DISK: whose addresses `data` are, */
    char *engine;   /* and its host memory */
    size_t engine_bytes;
} zfi_piece;

/* A training that has a name. */
typedef struct zfi_trained {
    const char *name;
    int64_t step; /* steps done */
} zfi_trained;

struct zf_store {
    zfi_memory memory;
    zfi_text text; /* names */
    zf_error error;
    zf_backend *backend, *own_backend; /* own: made here, freed here */
    zf_backend *host, *own_host;       /* what computes in host memory; NULL: nothing does yet */
    const char *offload_dir;           /* NULL: none */
    const zfi_system *system;          /* of its disks; NULL: the system's own calls */
    const zf_comm *comm;               /* NULL: one rank */
    zf_backend
        *given[2]; /* backends that it was given, and a communicator that can be freed, which */
    zf_comm *given_comm;  /* count the store; NULL: none */
    int32_t rank, world;
    zfi_other_axes axes; /* of the ranks, besides data: those of the graphs of its programs */
    uint64_t seed;
    int64_t step;         /* done by the training without a name */
    zfi_trained *trained; /* those with names, a growing array */
    int64_t steps; /* of all trainings, since the store was made: a program sees that another ran */
    int64_t puts;  /* how many writes of tensors there were, and */
    int64_t loads; /* how many zf_load there were: a program then begins its step anew */
    bool plans;     /* zf_store_desc.plan_only; */
    uintptr_t next; /* then the next address that it gives out, at which nothing is */
    bool undefined; /* an update or a load has failed half way: the values belong to no step */
    int32_t owners; /* references: that of the maker, and of programs */
    bool made;      /* by zf_store_new, and not freed since */
    zfi_stored *tensors; /* growing arrays */
    zfi_stored_bucket *buckets;
    zfi_piece *pieces;
    zfi_name *names; /* index + 1; may name a tensor that was removed */
    size_t bytes[ZF_SPACES];         /* of the pieces */
    size_t program_bytes[ZF_SPACES]; /* of the programs */
    size_t memory_limit;             /* of the device, of both; 0: none */
    char *room;           /* ZFI_SAME_PIECE bytes, and records of all ranks; NULL: one rank */
    int64_t *records;
};

/* The mesh of the store's ranks, of which those along data are in so many nodes. */
static zfi_mesh zfi_store_mesh(const zf_store *s, int32_t nodes)
{
    return (zfi_mesh){s->world / zfi_axes_product(&s->axes, 0, s->axes.count), nodes, s->axes};
}

/* The stage of this rank, counted from 1; 1 where there are no stages. */
static int32_t zfi_store_stage(const zf_store *s)
{
    return zfi_axis_at(&s->axes, ZF_OVER_PIPE) < 0
               ? 1
               : zfi_mesh_place(zfi_store_mesh(s, 1), ZF_OVER_PIPE, s->rank) + 1;
}

/* Ranks of another stage have the tensor, and this one knows its name and type alone. */
static bool zfi_is_away(const zf_store *s, const zfi_stored *t)
{
    return t->stage && t->stage != zfi_store_stage(s);
}

/* The ranks along data that have the same of a tensor, or shards of that. */
static int64_t zfi_stored_over(const zf_store *s, const zfi_stored *t)
{
    return zfi_spread_cut(&t->spread) & zfi_axis_bit(ZF_OVER_EXPERT)
               ? ZF_OVER_OWNERS
               : zfi_mesh_data(zfi_store_mesh(s, 1));
}

/* The tensor is a piece of another one of which ranks along axes may have parts: a box of it. Of
 * other pieces the elements follow one another. */
static bool zfi_is_box_of_whole(const zf_store *s, const zfi_stored *t)
{
    return t->whole >= 0 && s->axes.count > 0;
}

/* The box of a piece becomes one of its whole. */
static void zfi_box_within(const zf_store *s, const zfi_stored *piece, zfi_rank_box *box)
{
    box->share.at[0] += piece->from / zfi_span(&piece->shape, 1, piece->shape.rank);
    box->share.whole.dims[0] = s->tensors[piece->whole].shape.dims[0];
}

/* The element of the whole at which a piece begins, unless it is a box of it. */
static int64_t zfi_stored_from(const zf_store *s, const zfi_stored *t)
{
    return zfi_is_box_of_whole(s, t) ? 0 : t->from;
}

/* What a rank has of a tensor, besides shards. */
static zfi_rank_box zfi_stored_box_of(const zf_store *s, const zfi_stored *t, int32_t rank)
{
    zfi_rank_box box = zfi_box_of(zfi_store_mesh(s, 1), &t->shape, &t->spread, rank);
    if (zfi_is_box_of_whole(s, t)) zfi_box_within(s, t, &box);
    return box;
}

/* The same of this one. */
static zfi_rank_box zfi_stored_box(const zf_store *s, const zfi_stored *t)
{
    return zfi_stored_box_of(s, t, s->rank);
}

/* Ranks along the axis have the same of a tensor, and `rank` is not the first of them. */
static bool zfi_another_along(const zf_store *s, const zfi_stored *t, int64_t over, int32_t rank)
{
    const uint8_t cut = zfi_spread_cut(&t->spread);
    if (over == ZF_OVER_TENSOR && cut & zfi_axis_bit(ZF_OVER_GROUP)) over = ZF_OVER_COPIES;
    return zfi_is_other_axis(over) && !(cut & zfi_axis_bit(over)) &&
           !(over == ZF_OVER_PIPE && t->stage) &&
           zfi_mesh_place(zfi_store_mesh(s, 1), over, rank);
}

/* Of the ranks that have the same of a tensor, but for shards, this one is the first along each
 * axis besides data. */
static bool zfi_is_first_with(const zf_store *s, const zfi_stored *t, int32_t rank)
{
    for (int32_t k = 0; k < s->axes.count; k++)
        if (zfi_another_along(s, t, s->axes.axis[k].over, rank)) return false;
    return true;
}

/* The shape of the whole tensor. */
static zf_shape zfi_whole_shape(const zf_store *s, const zfi_stored *t)
{
    return zfi_stored_box(s, t).share.whole;
}

/* Bytes of the whole tensor; a loose one has all of them. */
static size_t zfi_whole_bytes(const zf_store *s, const zfi_stored *t)
{
    return (size_t)zf_shape_count(zfi_whole_shape(s, t)) * zf_dtype_size(t->dtype);
}

/* Refuses a call that needs the values of the store, while they are undefined. */
static zf_status zfi_check_defined(const zf_store *s, const char *call, zf_error *error)
{
    if (!s->undefined) return ZF_OK;
    return zfi_fail(error, ZF_ERR_STAGE,
                    "%s: parameters and states are undefined, since an update or zf_load has "
                    "failed half way; zf_load restores them from a checkpoint",
                    call);
}

static int64_t zfi_stored_count(const zfi_stored *t) { return zf_shape_count(t->shape); }

static size_t zfi_stored_bytes(const zfi_stored *t)
{
    return (size_t)zfi_stored_count(t) * zf_dtype_size(t->dtype);
}

/* "param" or "state" */
static const char *zfi_stored_kind(const zfi_stored *t)
{
    return t->op == ZF_OP_param ? "param" : "state";
}

/* The index of the tensor of that name, or -1. */
static int32_t zfi_store_find(const zf_store *s, const char *name)
{
    int32_t k = s && name ? zfi_map_get(s->names, name, 0) - 1 : -1;
    return k >= 0 && k < zfi_len(s->tensors) && !strcmp(s->tensors[k].name, name) ? k : -1;
}

/* The tensor is in pieces. */
static bool zfi_is_tiled(const zfi_stored *t) { return t->whole < 0 && t->next >= 0; }

/* The tensor is in pieces of which ranks along axes have parts (zf_divide). */
static bool zfi_has_cut_pieces(const zf_store *s, const zfi_stored *t)
{
    bool cut = false;
    for (int32_t k = zfi_is_tiled(t) ? t->next : -1; k >= 0; k = s->tensors[k].next)
        cut |= zfi_spread_cut(&s->tensors[k].spread) != 0;
    return cut;
}

/* A copy between stores takes the tensor by itself: a piece only where ranks have parts of it. */
static bool zfi_is_copied(const zf_store *s, const zfi_stored *t)
{
    return zfi_has_cut_pieces(s, t->whole < 0 ? t : &s->tensors[t->whole]) == (t->whole >= 0);
}

/* The same for a tensor in a bucket. */
static int32_t zfi_store_placed(const zf_store *s, const char *name)
{
    int32_t k = zfi_store_find(s, name);
    return k >= 0 && s->tensors[k].bucket >= 0 ? k : -1;
}

/* The shape under which the store has a state of `shape`, of which there are so many copies, each
 * with values of its own; 0: it is one for all. */
static zf_shape zfi_stored_shape(zf_shape shape, int32_t copies)
{
    return copies ? ZF_SHAPE(copies, zf_shape_count(shape)) : shape;
}

/* The elements of a tensor in its bucket, of all shards. */
static int64_t zfi_stored_room(const zf_store *s, const zfi_stored *t)
{
    const bool each = t->bucket >= 0 && s->buckets[t->bucket].each;
    return each ? t->shape.dims[1] : zfi_stored_count(t);
}

/* Where the whole tensor begins; NULL: ranks have parts of it, or another stage has it. */
static char *zfi_stored_data(const zf_store *s, const zfi_stored *t)
{
    const zfi_stored_bucket *b = t->bucket < 0 ? NULL : &s->buckets[t->bucket];
    if (!b) return t->host;
    if (b->world > 1 || (b->each && s->world > 1) || !b->data) return NULL;
    return b->data + (size_t)t->at * zf_dtype_size(t->dtype);
}

/* Tensor k is loose, or a piece of one that is. */
static bool zfi_is_loose(const zf_store *s, int32_t k)
{
    const zfi_stored *t = k < 0 ? NULL : &s->tensors[k];
    return t && (t->whole < 0 ? t : &s->tensors[t->whole])->host;
}

/* Elements [first, first + count) of what this rank has of tensor k, which is loose. */
static void zfi_loose_get(const zf_store *s, int32_t k, int64_t first, int64_t count, void *out)
{
    const zfi_stored *t = &s->tensors[k];
    const char *from = (t->whole < 0 ? t : &s->tensors[t->whole])->host;
    const size_t size = zf_dtype_size(t->dtype);
    const zfi_rank_box box = zfi_stored_box(s, t);
    const int64_t there = zfi_min(count, zfi_max(0, zf_shape_count(box.shape) - first));
    memset((char *)out + (size_t)there * size, 0, (size_t)(count - there) * size); /* padding */
    for (int64_t at = 0, n; at < there; at += n) {
        const int64_t whole = zfi_box_to_whole(&box, first + at, &n);
        n = zfi_min(n, there - at);
        memcpy((char *)out + (size_t)at * size,
               from + (size_t)(zfi_stored_from(s, t) + whole) * size, (size_t)n * size);
    }
}

/* A rank's part of a tensor: elements [first, first + count), at `data`; all of it, those in the
 * rank's shard, or the rank's own. */
typedef struct zfi_portion {
    int64_t first, count;
    bool cut;
    char *data; /* where the rank is the store's */
} zfi_portion;

static zfi_portion zfi_portion_of_rank(const zf_store *s, const zfi_stored *t, int32_t rank)
{
    zfi_portion all = {.count = zfi_stored_count(t), .data = zfi_stored_data(s, t)}, mine;
    const zfi_stored_bucket *b = t->bucket < 0 ? NULL : &s->buckets[t->bucket];
    int64_t part, begin, from, until, room;
    if (zfi_is_tiled(t) || zfi_is_away(s, t)) return (zfi_portion){0};
    if (!all.count || !b || (b->world < 2 && (!b->each || s->world < 2))) return all;
    room = zfi_stored_room(s, t);
    part = b->size / b->world;
    begin = b->world < 2
                ? 0
                : part * zfi_mesh_shard(zfi_store_mesh(s, b->nodes), b->world, rank);
    from = t->at > begin ? t->at : begin;
    until = t->at + room < begin + part ? t->at + room : begin + part;
    mine = (zfi_portion){.cut = true};
    if (until <= from) return mine;
    mine.first = from - t->at + (b->each ? rank / b->world * room : 0);
    mine.count = until - from;
    mine.data = b->data + (size_t)(from - begin) * zf_dtype_size(t->dtype);
    return mine;
}

/* In how many nodes the ranks are that share buckets; 1: in one, or they share none. */
static int32_t zfi_store_nodes(const zf_store *s)
{
    for (int32_t k = 0; k < zfi_len(s->buckets); k++)
        if (s->buckets[k].world > 1) return s->buckets[k].nodes;
    return 1;
}

/* What the rank has of the tensor another one has as well, of a node before its own. */
static bool zfi_is_replica(const zf_store *s, const zfi_stored *t, int32_t rank)
{
    const zfi_stored_bucket *b = t->bucket < 0 ? NULL : &s->buckets[t->bucket];
    return b && !b->each && b->world > 1 && zfi_mesh_experts(zfi_store_mesh(s, 1)) < 2 &&
           zfi_mesh_place(zfi_store_mesh(s, b->nodes), ZF_OVER_DATA, rank) >= b->world;
}

static zfi_portion zfi_portion_of(const zf_store *s, int32_t k)
{
    return zfi_portion_of_rank(s, &s->tensors[k], s->rank);
}

/* Tensor b begins directly after tensor a; both are whole. */
static bool zfi_store_follows(const zf_store *s, int32_t a, int32_t b)
{
    const char *first = zfi_stored_data(s, &s->tensors[a]);
    return first && first + zfi_stored_bytes(&s->tensors[a]) == zfi_stored_data(s, &s->tensors[b]);
}

/* The space of a tensor. */
static zf_space zfi_stored_space(const zf_store *s, const zfi_stored *t)
{
    return t->bucket < 0 ? ZF_HOST : s->buckets[t->bucket].space;
}

/* The disk that has the address; NULL: none. */
static zfi_disk *zfi_store_disk(const zf_store *s, const void *at)
{
    for (int32_t k = 0; k < zfi_len(s->pieces); k++)
        if (s->pieces[k].disk && zfi_disk_has(s->pieces[k].disk, at)) return s->pieces[k].disk;
    return NULL;
}

/* Copies between the program's memory and a space: to the space, if `how` is ZF_HOST_TO_DEVICE, or
 * from it. */
static zf_status zfi_copy_stored(const zf_store *s, zf_space space, zf_copy how, void *to,
                                 const void *from, size_t bytes, zf_error *error)
{
    if (s->plans)
        return zfi_fail(error, ZF_ERR_STAGE,
                        "the store plans, and holds no values (zf_store_desc.plan_only)");
    if (space == ZF_DEVICE) return s->backend->copy(s->backend->self, to, from, bytes, how, error);
    if (bytes && space == ZF_DISK)
        return zfi_disk_copy(zfi_store_disk(s, how == ZF_HOST_TO_DEVICE ? to : from), -1, to, from,
                             bytes, error);
    if (bytes) memmove(to, from, bytes);
    return ZF_OK;
}

static zf_status zfi_put_bytes(const zf_store *s, zf_space space, void *to, const void *from,
                               size_t bytes, zf_error *error)
{
    return zfi_copy_stored(s, space, ZF_HOST_TO_DEVICE, to, from, bytes, error);
}

static zf_status zfi_get_bytes(const zf_store *s, zf_space space, void *to, const void *from,
                               size_t bytes, zf_error *error)
{
    return zfi_copy_stored(s, space, ZF_DEVICE_TO_HOST, to, from, bytes, error);
}
