/* What must be the same on all ranks and is not in the plan: the seed, the step, and the values of
 * parameters, states and learning rates. Every rank makes a record of them with one digest for all
 * values; where digests differ, the values are compared one by one.
 *
 *               seed   step   ...   values              w          b          adamw.step
 *     rank 0    1      5            9c1b3d07ae55f210    5cc0a2d1   0a1bd3c2   e3069283
 *     rank 1    1      5            02f8c6be91d47a33    5cc0a2d1   8a9136aa   not reached
 *
 * Of a parameter or state that is cut, each rank has another part, and the checksum is that of the
 * whole value which the program has written last.
 */
enum {
    ZFI_SAME_SEED,
    ZFI_SAME_STEP,
    ZFI_SAME_EVALUATE,
    ZFI_SAME_ALLOW_NAN,
    ZFI_SAME_VALUES,
    ZFI_SAME_FAILED, /* the rank has no digest */
    ZFI_SAME_FIELDS
};

enum { ZFI_SAME_PIECE = 1 << 18 }; /* bytes that are read from the backend at a time, at most */

typedef struct zfi_same_leaf {
    const zfi_node *leaf;
    int32_t id;
    const void *data; /* NULL: it is cut */
    uint32_t sum;
} zfi_same_leaf;

typedef struct zfi_same {
    zfi_same_leaf *values; /* growing */
    char *piece;
    size_t piece_bytes;
    int64_t *records; /* of all ranks, ZFI_SAME_FIELDS of each */
} zfi_same;

static void zfi_same_free(zfi_same *s, zfi_memory *memory, int32_t world)
{
    zfi_array_free(memory, s->values);
    zfi_free(memory, s->piece, s->piece_bytes);
    if (s->records)
        zfi_free(memory, s->records, (size_t)world * ZFI_SAME_FIELDS * sizeof *s->records);
}

/* Reads the values that are not cut, for their checksums. */
static zf_status zfi_same_read(zfi_same *s, const zf_backend *backend, zf_error *error)
{
    for (int32_t k = 0; k < zfi_len(s->values); k++) {
        zfi_same_leaf *v = &s->values[k];
        size_t bytes = v->data ? zfi_node_bytes(v->leaf) : 0, n;
        if (v->data) v->sum = 0;
        for (size_t at = 0; at < bytes; at += n) {
            zf_status status;
            n = bytes - at < s->piece_bytes ? bytes - at : s->piece_bytes;
            status = backend->copy(backend->self, s->piece, (const char *)v->data + at, n,
                                   ZF_DEVICE_TO_HOST, error);
            if (status) return zfi_fail(error, status, "\"%s\" cannot be read", v->leaf->name);
            v->sum = zfi_crc32c(v->sum, s->piece, n);
        }
    }
    return ZF_OK;
}

static uint64_t zfi_same_digest(const zfi_same *s)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (int32_t k = 0; k < zfi_len(s->values); k++)
        hash = zfi_hash_bytes(hash, (const char *)&s->values[k].sum, sizeof s->values[k].sum);
    return hash;
}

/* The first rank whose number is not that of rank 0, `stride` being from rank to rank; 0: none. */
static int32_t zfi_same_other(const int64_t *numbers, int32_t stride, int32_t world)
{
    for (int32_t r = 1; r < world; r++)
        if (numbers[r * stride] != numbers[0]) return r;
    return 0;
}

/* All records agree but for their values; all ranks find the same error. */
static zf_status zfi_same_records(const int64_t *records, int32_t world, zf_error *error)
{
    static const char *const names[ZFI_SAME_VALUES] = {
        "the seed (zf_compile_desc.seed)", "the step that they are at", "zf_compile_desc.evaluate",
        "zf_compile_desc.allow_nan"};
    for (int k = 0; k < ZFI_SAME_VALUES; k++) {
        int32_t r = zfi_same_other(records + k, ZFI_SAME_FIELDS, world);
        if (r)
            return zfi_fail(error, ZF_ERR_MISMATCH,
                            "ranks 0 and %d differ in %s: %llu and %llu; it must be the same on "
                            "all ranks",
                            (int)r, names[k], (unsigned long long)records[k],
                            (unsigned long long)records[r * ZFI_SAME_FIELDS + k]);
    }
    return ZF_OK;
}

/* What rank `other` has of the value has another checksum than what rank 0 has. */
static zf_status zfi_same_fail(const zfi_same_leaf *v, int32_t other, const int64_t sums[2],
                               zf_error *error)
{
    const char *kind = zfi_records[v->leaf->op]->name;
    return zfi_fail(error, ZF_ERR_MISMATCH,
                    "ranks 0 and %d differ in %s the %s \"%.200s\" (checksums %08x and %08x); it "
                    "must be the same on all ranks",
                    (int)other, v->data ? "the value of" : "what was written to", kind,
                    v->leaf->name, (unsigned)sums[0], (unsigned)sums[1]);
}
