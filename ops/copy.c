/* copy: a value in another space.
 *
 *     %9 = copy %8 {to=host} : f32[1024] host     y = x
 *     %9 = copy %8, %7 : f32[1024]                the same into %7, a leaf or a shard; y is %7 then
 *     %9 = copy %8, %5 {to=host experts=4 each=256} : f32[1024] host
 *                                                 y = x, of experts with rows
 *
 * Values lie on the device, in host memory or on a disk. Operators compute on the device and in
 * host memory. Copies go between device and host, and between host and disk. An update may write to
 * a copy of a parameter or state; a copy back must follow. In the first micro-batch of a step a sum
 * over micro-batches is not read from a disk: what is added first does not read the copy.
 *
 * With `experts`, x is flat: of each expert, one after the other, `each` elements, then padding; or
 * with `world`, this rank's shard of that. Operand 1 has the bounds of rows, i32 [parts experts,
 * 2], as grouped_linear (grouped_linear.c) reads them, in the space of the result; expert e has
 * rows where one of the groups e, e + experts, ... is not empty. Only experts with rows are copied.
 * What lies in the place of others has no meaning, and nothing may read it (ir/fetched.c). */

static zf_space zfi_space_of_copy(const zf_attribute *attributes)
{
    return (zf_space)attributes[ZF_AT_copy_to].i;
}

/* Checks a copy of the experts with rows. */
static zf_status zfi_infer_fetch(zfi_infer *c)
{
    const int64_t experts = ZF_INT(c, copy, experts), each = ZF_INT(c, copy, each),
                  world = ZF_INT(c, copy, world), shards = zfi_max(world, 1),
                  count = zfi_node_count(c->args[0]);
    const zfi_node *bounds = c->arg_count > 1 ? c->args[1] : NULL;
    if (!experts && !each && !world) return ZF_OK;
    if (experts < 1 || each < 1 || world < 0 || c->args[0]->shape.rank != 1 ||
        count > INT64_MAX / shards || each > count * shards / experts)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "%lld experts of %lld elements each are no shard of %lld elements, "
                              "one of %lld",
                              (long long)experts, (long long)each, (long long)count,
                              (long long)shards);
    if (!bounds || bounds->dtype != ZF_I32 ||
        (bounds->shape.rank != 1 && (bounds->shape.rank != 2 || bounds->shape.dims[1] != 2)) ||
        zfi_node_count(bounds) < 1 || zfi_node_count(bounds) % (2 * experts))
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "the bounds of rows must be i32 [parts %lld, 2]",
                              (long long)experts);
    if ((zf_space)c->args[0]->space == ZF_DEVICE || zfi_space_of_copy(c->attributes) == ZF_DISK)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "experts with rows are copied from a disk to host memory, and from "
                              "there to the device");
    if ((zf_space)bounds->space != zfi_space_of_copy(c->attributes))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "the bounds of rows lie in the space %s, and the result in %s",
                              zf_space_name((zf_space)bounds->space),
                              zf_space_name(zfi_space_of_copy(c->attributes)));
    return ZF_OK;
}

static zf_status zfi_infer_copy(zfi_infer *c)
{
    const bool fetches =
        ZF_INT(c, copy, experts) || ZF_INT(c, copy, each) || ZF_INT(c, copy, world);
    const zfi_node *into = c->arg_count > 1 && !fetches ? c->args[1] : NULL;
    const zf_space to = zfi_space_of_copy(c->attributes), from = (zf_space)c->args[0]->space;
    char type[ZFI_TYPE_TEXT];
    if (to == from)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "operand 0 lies in the space %s already",
                              zf_space_name(to));
    if (to != ZF_HOST && from != ZF_HOST)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "values go between device and disk by way of host memory");
    if (into && (zf_space)into->space != to)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "operand 1 lies in the space %s, not %s",
                              zf_space_name((zf_space)into->space), zf_space_name(to));
    zfi_infer_like(c, 0);
    if (into && (into->dtype != c->dtype || !zfi_same_shape(&into->shape, &c->shape)))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "operand 1 must be of type %s",
                              zfi_type_text(type, c->dtype, &c->shape));
    return fetches ? zfi_infer_fetch(c) : ZF_OK;
}

/* Expert e has rows. */
static bool zfi_expert_has_rows(const zf_launch *l, int64_t e)
{
    const int32_t *bounds = l->args[1].data;
    const int64_t groups = zfi_count(&l->args[1]) / 2;
    for (int64_t g = e; g < groups; g += ZF_INT(l, copy, experts))
        if (bounds[2 * g + 1] > bounds[2 * g]) return true;
    return false;
}

/* The elements of experts [first, end) that are in this rank's shard; *at: the first of them, from
 * the shard's. */
static int64_t zfi_fetched_elements(const zf_launch *l, int64_t first, int64_t end, int64_t *at)
{
    const int64_t count = zfi_count(&l->out), world = ZF_INT(l, copy, world),
                  each = ZF_INT(l, copy, each),
                  here = world > 1 ? zfi_shard_here(l->run, world) * count : 0;
    *at = zfi_max(first * each - here, 0);
    return zfi_max(zfi_min(end * each - here, count) - *at, 0);
}

/* Copies these elements. */
static zf_status zfi_fetch_range(const zf_launch *l, int64_t first, int64_t end, zf_error *error)
{
    const size_t size = zf_dtype_size(l->out.dtype);
    int64_t at;
    const size_t bytes = (size_t)zfi_fetched_elements(l, first, end, &at) * size;
    char *to = (char *)l->out.data + (size_t)at * size;
    const char *from = (const char *)l->args[0].data + (size_t)at * size;
    if (!bytes) return ZF_OK;
    if (l->disk)
        return zfi_disk_copy(l->disk, l->disk_value - 1, to, from, bytes, error);
    memcpy(to, from, bytes);
    return ZF_OK;
}

/* Names the expert of [first, end) that cannot be read. */
static zf_status zfi_fetch_failed(const zf_launch *l, int64_t first, int64_t end)
{
    zf_error error = {ZF_OK, ""};
    while (first < end && !zfi_fetch_range(l, first, first + 1, &error)) first++;
    if (first == end) return ZF_OK; /* this time all could */
    return zfi_fail(l->error, error.status, "copy %%%d: expert %lld of %s", (int)l->node,
                    (long long)first, error.text);
}

/* Copies experts with rows; neighbours together. */
static zf_status zfi_run_fetch(const zf_launch *l)
{
    const int64_t experts = ZF_INT(l, copy, experts);
    int64_t copied = 0, at;
    for (int64_t e = 0, end; e < experts; e = end) {
        zf_error error = {ZF_OK, ""};
        for (end = e; end < experts && zfi_expert_has_rows(l, end); end++) {
        }
        copied += zfi_fetched_elements(l, e, end, &at);
        if (end > e && zfi_fetch_range(l, e, end, &error) && zfi_fetch_failed(l, e, end))
            return l->error->status;
        if (end == e) end++;
    }
    if (l->fetched)
        __atomic_fetch_add(l->fetched, copied * (int64_t)zf_dtype_size(l->out.dtype),
                           __ATOMIC_RELAXED);
    return ZF_OK;
}

enum { ZFI_LARGE_COPY = 1 << 20 }; /* bytes; smaller ones may be read from the caches */

/* Copies between device and host: on the CPU backend both are memory. A copy on a queue of its own
 * does not use the workers, which then compute. Copies from and to a disk are split into requests
 * that run at the same time (io/disk.c). */
static zf_status zfi_run_copy(const zf_launch *l)
{
    const int64_t bytes = zfi_array_bytes(&l->out);
    if (l->sums && !l->run->micro) return ZF_OK; /* nothing has been written there */
    if (l->arg_count > 1 && ZF_INT(l, copy, experts)) return zfi_run_fetch(l);
    if (l->disk)
        return zfi_disk_copy(l->disk, l->disk_value - 1, l->out.data, l->args[0].data,
                             (size_t)bytes, l->error);
    if (!l->queue) zfi_move_bytes(l, l->out.data, l->args[0].data, bytes);
    else if (bytes < ZFI_LARGE_COPY) memcpy(l->out.data, l->args[0].data, (size_t)bytes);
    else {
        zfi_copy_past_caches(zfi_cpu_of(l)->isa, l->out.data, l->args[0].data, bytes);
        zfi_end_past_caches();
    }
    return ZF_OK;
}

/* The result lies in the operand into which it is copied, if there is one. */
static int32_t zfi_views_of_copy(const zf_graph *g, const zfi_node *node, int64_t *at)
{
    return zfi_fetches_experts(node) ? -1 : zfi_views_into(g, node, at);
}

static uint32_t zfi_writes_of_copy(const zfi_node *node)
{
    return zfi_fetches_experts(node) ? 0 : zfi_writes_into_1(node);
}

static double zfi_bytes_of_copy(const zf_launch *l) { return 2 * (double)zfi_array_bytes(&l->out); }

/* ------------------------------------------------------------------------------- records */

ZFI_OPERATOR(copy, .infer = zfi_infer_copy, .cpu = zfi_run_copy, .bytes = zfi_bytes_of_copy,
             .space = zfi_space_of_copy, .views = zfi_views_of_copy, .writes = zfi_writes_of_copy,
             .ranks = ZFI_RANKS_VIEW, .linear_in = 1,
             .traits = ZF_OP_MUTATES | ZF_OP_ANYWHERE | ZF_OP_READS_HALF)
