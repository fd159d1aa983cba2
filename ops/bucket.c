/* Buckets: flat storage for parameters that are used together, and for their states (zf_zero). The
 * operators that fill and read it.
 *
 *     %7 = bucket %2, %4 {at=[0,1024] size=4096 world=4} : f32[1024]
 *         storage of the leaves %2 and %4, which have no other: element i of %4 is
 *         element 1024 + i of the bucket; padding is 0. With `world`, each rank holds one of
 *         `world` equal shards, rank r shard r; without it, the whole bucket. Leaves are float, or
 *         of records (leaf.c, quantize.c), whose elements are bytes.
 *     %8 = accumulator : f32[1024]     a sum over the micro-batches of a step; it counts as 0
 *                                      before the first one
 *     %9 = view %7 {at=1024 shape=[8,32]} : f32[8,32]    elements [1024, 1280) of %7, taken flat
 *     %10 = shard %7 {world=4} : f32[256]                 this rank's quarter of %7
 *     %13 = piece %7 {at=1024 size=2048} : f32[2048]     elements [1024, 3072) of %7; an update may
 *                                      write there. Pieces of a value follow each other and are all
 *                                      of it
 *     %11 = pack %5, %6 {at=[0,1024] size=4096} : f32[4096]   y[at[k] + i] = x[k][i], else 0
 *     %12 = norms %3 {blocks=[0,2,2,5]} : f32[2]         y[k] = the norm of x[b], blocks[2k] <= b <
 *                                                        blocks[2k+1], as `total` adds
 *
 *     | %2 ......... pad | %4 .... pad | pad to a multiple of world |
 *     0                 1024          2048                         4096
 *
 * Every leaf starts at a multiple of 1024, and the size of a shard is a multiple of 1024. So the
 * blocks of block_norms are the same for a whole bucket and for its shards, and no block belongs to
 * two leaves. States of records (quantize_feedback) have no such blocks; they lie anywhere. */

/* Checks that at[k] are ascending multiples of `align`, and that the operands at these places do
 * not overlap and end within `size`. */
static zf_status zfi_infer_layout(const zfi_infer *c, int64_t align)
{
    const int64_t *at = ZF_LIST(c, bucket, at).data;
    int64_t size = ZF_INT(c, bucket, size), end = 0;
    if (ZF_LIST(c, bucket, at).count != c->arg_count)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "%lld places for %d operands",
                              (long long)ZF_LIST(c, bucket, at).count, (int)c->arg_count);
    for (int32_t k = 0; k < c->arg_count; k++) {
        int64_t count = zfi_node_count(c->args[k]);
        if (at[k] < end || at[k] % align || at[k] > size - count)
            return zfi_infer_fail(
                c, ZF_ERR_ARGUMENT,
                "operand %d lies at %lld; it must be a multiple of %lld from %lld "
                "on, and %lld elements must fit a size of %lld",
                (int)k, (long long)at[k], (long long)align, (long long)end, (long long)count,
                (long long)size);
        end = at[k] + count;
    }
    return ZF_OK;
}

static zf_status zfi_infer_bucket(zfi_infer *c)
{
    int64_t size = ZF_INT(c, bucket, size), world = ZF_INT(c, bucket, world),
            shards = world > 0 ? world : 1;
    const bool records = c->args[0]->dtype == ZF_U8;
    const int64_t unit = records && c->args[0]->op == ZF_OP_state ? 1 : ZFI_NORM_BLOCK;
    zf_status status = zfi_infer_dtypes(c, !records);
    if (!status) status = zfi_infer_layout(c, unit);
    for (int32_t k = 0; k < c->arg_count && !status; k++)
        if (c->args[k]->op != c->args[0]->op ||
            (c->args[k]->op != ZF_OP_param && c->args[k]->op != ZF_OP_state))
            status = zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                                    "operand %d is the result of %s; a bucket holds params or "
                                    "states", (int)k,
                                    c->graph->records[c->args[k]->op]->name);
    if (status) return status;
    if (world < 0 || size % unit || size / unit % shards)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "size %lld must be a multiple of %lld for each of world %lld ranks",
                              (long long)size, (long long)unit, (long long)world);
    c->dtype = c->args[0]->dtype;
    c->shape = ZF_SHAPE(size / shards);
    return ZF_OK;
}

static zf_status zfi_infer_accumulator(zfi_infer *c) { return zfi_infer_leaf(c); }

static zf_status zfi_infer_view(zfi_infer *c)
{
    int64_t at = ZF_INT(c, view, at), all = zfi_node_count(c->args[0]), count;
    c->dtype = c->args[0]->dtype;
    if (!zfi_listed_shape(&ZF_ATTRIBUTE(c, view, shape), &c->shape))
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "a shape has 0 to %d dimensions, none negative",
                              ZF_MAX_RANK);
    count = zf_shape_count(c->shape);
    if (at >= 0 && count <= all && at <= all - count) return ZF_OK;
    return zfi_infer_fail(c, ZF_ERR_SHAPE, "%lld elements from %lld on are not in %lld",
                          (long long)count, (long long)at, (long long)all);
}

/* Checks that `count` elements divide into `world` equal shards. */
static zf_status zfi_infer_parts(const zfi_infer *c, int64_t count, int64_t world)
{
    if (world >= 1 && world <= INT32_MAX && count % world == 0) return ZF_OK;
    return zfi_infer_fail(c, ZF_ERR_SHAPE,
                          "world is %lld; it must be 1 or more and divide the %lld elements",
                          (long long)world, (long long)count);
}

static zf_status zfi_infer_shard(zfi_infer *c)
{
    int64_t count = zfi_node_count(c->args[0]), world = ZF_INT(c, shard, world);
    zf_status status = zfi_infer_parts(c, count, world);
    c->dtype = c->args[0]->dtype;
    if (!status) c->shape = ZF_SHAPE(count / world);
    return status;
}

static zf_status zfi_infer_piece(zfi_infer *c)
{
    const int64_t at = ZF_INT(c, piece, at), size = ZF_INT(c, piece, size),
                  all = zfi_node_count(c->args[0]);
    c->dtype = c->args[0]->dtype;
    c->shape = ZF_SHAPE(size);
    if (at >= 0 && size > 0 && at % ZFI_NORM_BLOCK == 0 && size <= all && at <= all - size)
        return ZF_OK;
    return zfi_infer_fail(c, ZF_ERR_SHAPE,
                          "%lld elements from %lld on are no piece of %lld; pieces begin at "
                          "multiples of %d",
                          (long long)size, (long long)at, (long long)all, ZFI_NORM_BLOCK);
}

static zf_status zfi_infer_pack(zfi_infer *c)
{
    zf_status status = zfi_infer_dtypes(c, true);
    if (!status) status = zfi_infer_layout(c, 1);
    c->dtype = c->args[0]->dtype;
    c->shape = ZF_SHAPE(ZF_INT(c, pack, size));
    return status;
}

/* Checks a list of block ranges: begin, end, begin, end, ..., ascending within [0, most). */
static zf_status zfi_infer_blocks(const zfi_infer *c, const zf_attribute *blocks, int64_t most)
{
    const int64_t *at = blocks->list.data;
    int64_t end = 0;
    bool good = blocks->list.count % 2 == 0;
    for (int64_t k = 0; good && k < blocks->list.count; k += 2) {
        good = at[k] >= end && at[k + 1] >= at[k] && at[k + 1] <= most;
        end = at[k + 1];
    }
    if (good) return ZF_OK;
    return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                          "blocks lists where ranges begin and end, ascending, within "
                          "the %lld blocks",
                          (long long)most);
}

static zf_status zfi_infer_norms(zfi_infer *c)
{
    zf_status status = zfi_infer_dtypes(c, true);
    if (!status)
        status = zfi_infer_blocks(c, &ZF_ATTRIBUTE(c, norms, blocks), zfi_node_count(c->args[0]));
    c->dtype = c->args[0]->dtype;
    c->shape = ZF_SHAPE(ZF_LIST(c, norms, blocks).count / 2);
    return status;
}

/* ------------------------------------------------------------------------------ kernels */

/* Copies bytes [first, last) of a contiguous move. Does not use l->scratch. */
typedef struct zfi_bytes_move {
    char *to;
    const char *from;
    int64_t bytes;
} zfi_bytes_move;

enum { ZFI_MOVE_GRAIN = 1 << 18 };

static void zfi_move_piece(void *context, int64_t index, int worker)
{
    const zfi_bytes_move *m = context;
    int64_t at = index * ZFI_MOVE_GRAIN,
            n = m->bytes - at < ZFI_MOVE_GRAIN ? m->bytes - at : ZFI_MOVE_GRAIN;
    (void)worker;
    memcpy(m->to + at, m->from + at, (size_t)n);
}

/* to[0..bytes) = from[0..bytes), on all workers; nothing where they are the same address. */
static void zfi_move_bytes(const zf_launch *l, void *to, const void *from, int64_t bytes)
{
    zfi_bytes_move m = {to, from, bytes};
    if (to == from || bytes <= 0) return;
    zfi_pool_run(zfi_cpu_of(l)->pool, (bytes + ZFI_MOVE_GRAIN - 1) / ZFI_MOVE_GRAIN, zfi_move_piece,
                 &m);
}

#if ZFI_X86
/* Stores whole lines past the caches; `to` is at a multiple of the vectors' size. */
#define ZFI_PAST_CACHES(name, target, vector, store)                                               \
    target ZFI_OPTIMIZE static void name(char *to, const char *from, int64_t bytes)                \
    {                                                                                              \
        for (int64_t k = 0; k < bytes; k += 64) {                                                  \
            vector part[64 / sizeof(vector)];                                                      \
            memcpy(part, from + k, sizeof part);                                                   \
            ZFI_UNROLL                                                                             \
            for (int n = 0; n < ZFI_COUNT(part); n++)                                              \
                store((vector *)(void *)(to + k) + n, part[n]);                                    \
        }                                                                                          \
    }

ZFI_PAST_CACHES(zfi_past_caches_16, , __m128i, _mm_stream_si128)
ZFI_PAST_CACHES(zfi_past_caches_64, ZFI_TARGET_AVX512, __m512i, _mm512_stream_si512)
#endif

/* to[0..bytes) = from[0..bytes); where possible past the caches, so that these keep what they have,
 * and do not read what is overwritten. zfi_end_past_caches comes after the last. */
static void zfi_copy_past_caches(zfi_isa isa, void *to, const void *from, int64_t bytes)
{
    int64_t whole = 0;
    (void)isa;
#if ZFI_X86
    if ((uintptr_t)to % 16 == 0) whole = bytes / 64 * 64;
    if (isa >= ZFI_ISA_AVX512 && (uintptr_t)to % 64 == 0) zfi_past_caches_64(to, from, whole);
    else zfi_past_caches_16(to, from, whole);
#endif
    memcpy((char *)to + whole, (const char *)from + whole, (size_t)(bytes - whole));
}

/* What was copied is visible to others who see what is written next. */
static void zfi_end_past_caches(void)
{
#if ZFI_X86
    _mm_sfence();
#endif
}

/* view and piece */
static zf_status zfi_cpu_view(const zf_launch *l)
{
    const char *from = l->args[0].data;
    int64_t at = ZF_INT(l, view, at) * (int64_t)zf_dtype_size(l->out.dtype);
    zfi_move_bytes(l, l->out.data, from + at, zfi_array_bytes(&l->out));
    return ZF_OK;
}

/* The number of this rank's shard of a value that has so many. */
static int64_t zfi_shard_here(const zf_run *run, int64_t shards)
{
    return run->shards > shards && shards > 0 ? run->shard / (run->shards / shards) : run->shard;
}

static zf_status zfi_cpu_shard(const zf_launch *l)
{
    const char *from = l->args[0].data;
    int64_t bytes = zfi_array_bytes(&l->out);
    zfi_move_bytes(l, l->out.data, from + zfi_shard_here(l->run, ZF_INT(l, shard, world)) * bytes,
                   bytes);
    return ZF_OK;
}

/* Copies nothing for an operand that the plan has placed inside the result. */
static zf_status zfi_cpu_pack(const zf_launch *l)
{
    const int64_t *at = ZF_LIST(l, pack, at).data;
    int64_t size = (int64_t)zf_dtype_size(l->out.dtype), end = 0, all = zfi_array_bytes(&l->out);
    char *out = l->out.data;
    for (int32_t k = 0; k <= l->arg_count; k++) {
        int64_t next = k < l->arg_count ? at[k] * size : all;
        memset(out + end, 0, (size_t)(next - end));
        if (k == l->arg_count) break;
        zfi_move_bytes(l, out + next, l->args[k].data, zfi_array_bytes(&l->args[k]));
        end = next + zfi_array_bytes(&l->args[k]);
    }
    return ZF_OK;
}

static zf_status zfi_cpu_norms(const zf_launch *l)
{
    const int64_t *at = ZF_LIST(l, norms, blocks).data;
    for (int64_t k = 0; k < zfi_count(&l->out); k++)
        zfi_set(&l->out, k, zfi_norm_of(&l->args[0], 1, at[2 * k], at[2 * k + 1]));
    return ZF_OK;
}

/* -------------------------------------------------------------------------------- views */

/* view and piece */
static int32_t zfi_views_view(const zf_graph *g, const zfi_node *node, int64_t *at)
{
    (void)g;
    *at = ZF_INT(node, view, at) * (int64_t)zf_dtype_size(node->dtype);
    return 0;
}

static int32_t zfi_views_shard(const zf_graph *g, const zfi_node *node, int64_t *at)
{
    (void)g;
    *at = ZF_INT(node, shard, world) > 1 ? -1 : 0;
    return 0;
}

/* ------------------------------------------------------------------------------- records */

ZFI_SAME_ATTRIBUTE(pack, bucket, at)
ZFI_SAME_ATTRIBUTE(pack, bucket, size)
ZFI_SAME_ATTRIBUTE(piece, view, at)
ZFI_OPERATOR(bucket, .infer = zfi_infer_bucket, .grad = zfi_grad_none,
             .place = ZFI_PLACE_OF_BUCKETS, .ranks = ZFI_RANKS_BUCKET,
             .traits = ZF_OP_LEAF | ZF_OP_WRITABLE)
ZFI_OPERATOR(accumulator, .infer = zfi_infer_accumulator, .grad = zfi_grad_none,
             .holds = ZF_COMMUNICATION, .ranks = ZFI_RANKS_ALIKE,
             .traits = ZF_OP_LEAF | ZF_OP_WRITABLE)
ZFI_OPERATOR(view, .infer = zfi_infer_view, .cpu = zfi_cpu_view, .views = zfi_views_view,
             .ranks = ZFI_RANKS_VIEW, .linear_in = 1, .traits = ZF_OP_VIEW)
ZFI_OPERATOR(shard, .infer = zfi_infer_shard, .cpu = zfi_cpu_shard, .views = zfi_views_shard,
             .ranks = ZFI_RANKS_SHARD, .linear_in = 1, .traits = ZF_OP_VIEW)
ZFI_OPERATOR(piece, .infer = zfi_infer_piece, .cpu = zfi_cpu_view, .views = zfi_views_view,
             .ranks = ZFI_RANKS_PIECE, .linear_in = 1, .traits = ZF_OP_VIEW | ZF_OP_ANYWHERE)
ZFI_OPERATOR(pack, .infer = zfi_infer_pack, .cpu = zfi_cpu_pack, .ranks = ZFI_RANKS_PACK,
             .linear_in = UINT32_MAX, .traits = ZF_OP_READS_HALF)
ZFI_OPERATOR(norms, .infer = zfi_infer_norms, .cpu = zfi_cpu_norms, .traits = ZF_OP_READS_HALF)
