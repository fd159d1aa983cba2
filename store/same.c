/* What must be the same on all ranks and is not in the plan: the seed, the step, what the store
 * holds and how it is cut, the values of parameters, states and learning rates. Every rank makes a
 * record of them with one digest for all values; where digests differ, the values are compared one
 * by one.
 *
 *               seed   step   ...   values              w          b          adamw.step
 *     rank 0    1      5            9c1b3d07ae55f210    5cc0a2d1   0a1bd3c2   e3069283
 *     rank 1    1      5            02f8c6be91d47a33    5cc0a2d1   8a9136aa   not reached
 *
 * Of a sharded parameter or state each rank has another shard; its checksum is that of the whole
 * value that was last written.
 */
enum {
    ZFI_SAME_SEED,
    ZFI_SAME_STEP,
    ZFI_SAME_RUNS,
    ZFI_SAME_EVALUATE,
    ZFI_SAME_ALLOW_NAN,
    ZFI_SAME_LAYOUT,
    ZFI_SAME_VALUES,
    ZFI_SAME_FAILED, /* the rank has no digest */
    ZFI_SAME_FIELDS
};

enum { ZFI_SAME_PIECE = 1 << 18 }; /* bytes that are read from the backend at a time, at most */

/* An input that updates read. */
typedef struct zfi_same_input {
    const char *name;
    const void *data;
    size_t bytes;
    int32_t id; /* its node */
    uint32_t sum;
} zfi_same_input;

/* What is compared: all tensors of a store and, of a program, its inputs and options. */
typedef struct zfi_same {
    zf_store *store;
    zfi_same_input *inputs; /* a growing array */
    int64_t runs; /* steps of a program that does not train */
    bool evaluate, allow_nan;
} zfi_same;

static int32_t zfi_same_count(const zfi_same *s)
{
    return zfi_len(s->store->tensors) + zfi_len(s->inputs);
}

/* The checksum of a value; 0 of one of which ranks have parts along an axis. */
static uint32_t zfi_same_sum(const zfi_same *s, int32_t k)
{
    int32_t tensors = zfi_len(s->store->tensors);
    if (k >= tensors) return s->inputs[k - tensors].sum;
    return zfi_spread_cut(&s->store->tensors[k].spread) ? 0 : s->store->tensors[k].sum;
}

/* The checksum of a value that is whole. */
static zf_status zfi_same_read_value(const zf_store *s, const char *name, const char *data,
                                     size_t bytes, zf_space space, uint32_t *sum,
                                     zf_error *error)
{
    size_t n;
    for (size_t at = *sum = 0; at < bytes; at += n) {
        zf_status status = ZF_OK;
        n = bytes - at < ZFI_SAME_PIECE ? bytes - at : ZFI_SAME_PIECE;
        if (space != ZF_HOST) status = zfi_get_bytes(s, space, s->room, data + at, n, error);
        if (status) return zfi_fail(error, status, "\"%s\" cannot be read", name);
        *sum = zfi_crc32c(*sum, space == ZF_HOST ? data + at : s->room, n);
    }
    return ZF_OK;
}

/* Reads the values that are not sharded, for their checksums. */
static zf_status zfi_same_read(zfi_same *s, zf_error *error)
{
    zf_store *store = s->store;
    zf_status status = ZF_OK;
    for (int32_t k = 0; k < zfi_len(store->tensors) && !status; k++) {
        zfi_stored *t = &store->tensors[k];
        const char *data = zfi_stored_data(store, t);
        if (data)
            status = zfi_same_read_value(store, t->name, data, zfi_stored_bytes(t),
                                         zfi_stored_space(store, t), &t->sum, error);
    }
    for (int32_t k = 0; k < zfi_len(s->inputs) && !status; k++) {
        zfi_same_input *x = &s->inputs[k];
        status = zfi_same_read_value(store, x->name, x->data, x->bytes, ZF_DEVICE, &x->sum,
                                     error);
    }
    return status;
}

static uint64_t zfi_same_digest(const zfi_same *s)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (int32_t k = 0; k < zfi_same_count(s); k++) {
        uint32_t sum = zfi_same_sum(s, k);
        hash = zfi_hash_bytes(hash, (const char *)&sum, sizeof sum);
    }
    return hash;
}

/* Trainings and their steps; names, types and buckets. */
static uint64_t zfi_same_layout(const zf_store *s)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (int32_t k = 0; k < zfi_len(s->trained); k++) {
        hash = zfi_hash_bytes(hash, s->trained[k].name, strlen(s->trained[k].name) + 1);
        hash = zfi_hash_bytes(hash, (const char *)&s->trained[k].step, sizeof s->trained[k].step);
    }
    for (int32_t k = 0; k < zfi_len(s->tensors); k++) {
        const zfi_stored *t = &s->tensors[k];
        const zfi_stored_bucket *b = t->bucket < 0 ? NULL : &s->buckets[t->bucket];
        int64_t numbers[7 + ZF_MAX_RANK] = {
            t->op, t->dtype,     b ? b->world : 0, b ? b->nodes : 0, b ? b->size : 0,
            t->at, t->shape.rank};
        for (int axis = 0; axis < t->shape.rank; axis++) numbers[7 + axis] = t->shape.dims[axis];
        hash = zfi_hash_bytes(hash, t->name, strlen(t->name) + 1);
        hash = zfi_hash_bytes(hash, (const char *)numbers, sizeof numbers);
    }
    return hash;
}

/* The first rank whose number differs from rank 0's; numbers are `stride` apart; 0: none. */
static int32_t zfi_same_other(const int64_t *numbers, int32_t stride, int32_t world)
{
    for (int32_t r = 1; r < world; r++)
        if (numbers[r * stride] != numbers[0]) return r;
    return 0;
}

/* The first rank that has the same tensors as this one: of its stage, where ranks have stages. */
static int32_t zfi_same_first(const zf_store *s, int32_t rank)
{
    const zfi_mesh mesh = zfi_store_mesh(s, 1);
    int32_t first = 0;
    if (zfi_axis_at(&s->axes, ZF_OVER_PIPE) < 0) return 0;
    while (zfi_mesh_place(mesh, ZF_OVER_PIPE, first) != zfi_mesh_place(mesh, ZF_OVER_PIPE, rank))
        first++;
    return first;
}

/* The first rank whose field differs from that of the first rank with the same tensors, or, of what
 * all ranks have, from rank 0's; 0: none. */
static int32_t zfi_same_unlike(const zf_store *s, const int64_t *records, int32_t field)
{
    for (int32_t r = 1; r < s->world; r++) {
        const bool staged = field == ZFI_SAME_LAYOUT || field == ZFI_SAME_VALUES;
        const int32_t first = staged ? zfi_same_first(s, r) : 0;
        if (records[r * ZFI_SAME_FIELDS + field] != records[first * ZFI_SAME_FIELDS + field])
            return r;
    }
    return 0;
}

/* All records agree but for their values; all ranks find the same error. */
static zf_status zfi_same_records(const zf_store *s, const int64_t *records, zf_error *error)
{
    static const char *const names[ZFI_SAME_VALUES] = {
        "the seed (zf_compile_desc.seed)", "the step that they are at", "the step that they are at",
        "zf_compile_desc.evaluate", "zf_compile_desc.allow_nan",
        "what their stores hold, how it is cut, or the steps of trainings with names (a digest)"};
    for (int k = 0; k < ZFI_SAME_VALUES; k++) {
        const int32_t r = zfi_same_unlike(s, records, k),
                      first = k == ZFI_SAME_LAYOUT ? zfi_same_first(s, r) : 0;
        if (r)
            return zfi_fail(error, ZF_ERR_MISMATCH,
                            "ranks %d and %d differ in %s: %llu and %llu; it must be the same on "
                            "all ranks",
                            (int)first, (int)r, names[k],
                            (unsigned long long)records[first * ZFI_SAME_FIELDS + k],
                            (unsigned long long)records[r * ZFI_SAME_FIELDS + k]);
    }
    return ZF_OK;
}

/* The error that value k has another checksum on rank `other` than on rank 0. */
static zf_status zfi_same_fail(const zfi_same *s, int32_t k, int32_t other, const uint32_t sums[2],
                               zf_error *error)
{
    const int32_t tensors = zfi_len(s->store->tensors);
    const zfi_stored *t = k < tensors ? &s->store->tensors[k] : NULL;
    bool cut = t && zfi_stored_count(t) && !zfi_stored_data(s->store, t);
    return zfi_fail(error, ZF_ERR_MISMATCH,
                    "ranks 0 and %d differ in %s the %s \"%.200s\" (checksums %08x and %08x); it "
                    "must be the same on all ranks",
                    (int)other, cut ? "what was written to" : "the value of",
                    t ? zfi_stored_kind(t) : "input", t ? t->name : s->inputs[k - tensors].name,
                    (unsigned)sums[0], (unsigned)sums[1]);
}

/* This rank's record of what must be the same, into record[0..ZFI_SAME_FIELDS). */
static zf_status zfi_same_record(zfi_same *s, int64_t *record, zf_error *error)
{
    zf_backend *backend = s->store->backend;
    zf_status status = backend->synchronize(backend->self, error);
    if (!status) status = zfi_same_read(s, error);
    record[ZFI_SAME_SEED] = (int64_t)s->store->seed;
    record[ZFI_SAME_STEP] = s->store->step;
    record[ZFI_SAME_RUNS] = s->runs;
    record[ZFI_SAME_EVALUATE] = s->evaluate;
    record[ZFI_SAME_ALLOW_NAN] = s->allow_nan;
    record[ZFI_SAME_LAYOUT] = (int64_t)zfi_same_layout(s->store);
    record[ZFI_SAME_VALUES] = (int64_t)zfi_same_digest(s);
    record[ZFI_SAME_FAILED] = status != ZF_OK;
    return status;
}

/* A rank's digest of all values differs from rank 0's: finds the first value that differs. */
static zf_status zfi_same_find(const zfi_same *s, zf_error *error)
{
    const zf_store *store = s->store;
    if (zfi_axis_at(&store->axes, ZF_OVER_PIPE) >= 0) /* their numbers of values differ */
        return zfi_fail(error, ZF_ERR_MISMATCH,
                        "ranks of one stage differ in a value; each must be the same on all of "
                        "them");
    for (int32_t k = 0; k < zfi_same_count(s); k++) {
        int64_t mine = zfi_same_sum(s, k);
        const zf_collective c = {.op = ZF_OP_all_gather,
                                 .dtype = ZF_I64,
                                 .count = 1,
                                 .in = &mine,
                                 .out = store->records};
        int32_t r;
        if (store->comm->run(store->comm->self, &c, error)) return error->status;
        if ((r = zfi_same_other(store->records, 1, store->world)))
            return zfi_same_fail(
                s, k, r, (uint32_t[]){(uint32_t)store->records[0], (uint32_t)store->records[r]},
                error);
    }
    return ZF_OK;
}

/* Collective. Compares what must be the same on all ranks; a difference is an error on all of
 * them. One rank has nothing to compare. */
static zf_status zfi_same_compare(zfi_same *s, zf_error *error)
{
    zf_store *store = s->store;
    int64_t *records = store->records;
    zf_collective c = {
        .op = ZF_OP_all_gather, .dtype = ZF_I64, .count = ZFI_SAME_FIELDS, .out = records};
    zf_status status = ZF_OK;
    if (!records) return ZF_OK;
    if (!store->comm->run)
        return zfi_fail(error, ZF_ERR_ARGUMENT,
                        "the communicator cannot run anything (zf_comm.run is NULL); programs of "
                        "such ranks run by zf_lockstep_step");
    c.in = records + (ptrdiff_t)store->rank * ZFI_SAME_FIELDS;
    (void)zfi_same_record(s, records + (ptrdiff_t)store->rank * ZFI_SAME_FIELDS, error);
    if (store->comm->run(store->comm->self, &c, error)) return error->status;
    for (int32_t r = 0; r < store->world; r++)
        if (records[r * ZFI_SAME_FIELDS + ZFI_SAME_FAILED])
            return zfi_comm_agree(store->comm, error);
    status = zfi_same_records(store, records, error);
    if (!status && zfi_same_unlike(store, records, ZFI_SAME_VALUES))
        status = zfi_same_find(s, error);
    return status;
}
