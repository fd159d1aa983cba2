/* Collectives, in which all ranks of a plan take part; and the marks release and wait.
 *
 *     %9 = all_gather %8 {world=4} : f32[4096]       y = x of rank 0, x of rank 1, ...
 *     %9 = all_gather %8, %7 {world=4} : f32[4096]   the same, written to the bucket %7: y is %7
 *                                                    %7 may be a held cache (cache.c) too
 *     %9 = reduce_scatter %8 {world=4} : f32[1024]   y = this rank's shard of the sum of all x
 *     %9 = reduce_scatter %8, %7 {world=4} : f32[1024]   the same, added to the accumulator %7
 *     %9 = all_reduce %8 {world=4} : f32[4096]       y = the sum of all x; `, %7` likewise
 *     %9 = all_to_all %8 {world=4} : f32[4096]    shard s of y on rank r is shard r of x on rank s
 *     %9 = bcast %8 {world=4 root=1} : f32[4096]     y = x of rank 1
 *     %9 = reduce %8 {world=4 over=context root=1 dim=1} : f32[8,4]   y = the sum of all x on rank 1,
 *                                                                     and -0 on others
 *     %9 = all_gather %8 {world=2 over=local} : f32[2048]   the same of the ranks of one node
 *     %9 = all_gather %8 {world=2 over=node} : f32[2048]    of the ranks at one place of all nodes
 *     %9 = all_reduce %8 {world=2 over=tensor} : f32[4096]  of the ranks along an axis
 *     %9 = send %8 {world=4 over=pipe from=0 to=1} : f32[4096]   y = x of rank 0 on rank 1, and
 *                                                                x on others
 *          release %9      no node below reads %9
 *          wait %9         %9, made on a queue of its own, is complete
 *
 *     %9 = reduce_scatter %8 {world=4 examples=true} : f32[12]   of gradients of examples: the
 *                                                                sum's rows of this rank, its own
 *
 *     %9 = all_gather %8 {world=2 dim=1} : f32[8,6]      of f32[8,3]: side by side along dim 1
 *     %9 = reduce_scatter %8 {world=2 dim=1} : f32[8,3]  of f32[8,6]: the sum's half of dim 1
 *     %9 = all_to_all %8 {world=2 dim=1 from=0} : f32[8,3]   of f32[4,6], a half of dim 0: the
 *                                                            rank's half of dim 1 in all of dim 0
 *     %9 = all_gather %8 {world=4 once=true} : f32[4096]     in the first micro-batch of a step alone:
 *                                                            y stays for the others
 *
 *     %9 = all_gather %8 {world=2 over=context zigzag=true dim=1} : f32[8,8]     of f32[8,4]: each
 *                                                has two quarters, which are put in their order. So
 *                                                do the quarters of a reduce_scatter go to ranks
 *
 *     %9 = all_gather %8 {world=4 over=context dim=1 before=1} : f32[8,8]       of f32[8,2]: what the
 *                                              rank before has, and its own; 0 for what others have
 *     %9 = reduce_scatter %8 {world=4 over=context order=tree dim=1 after=1} : f32[8,2]     the sum of
 *                                                what this rank has for it, and the next one
 *
 * Without dim and from, x is taken flat, which is along dimension 0. Sums add rank 0, 1, 2, ... in
 * this order to the sum of earlier micro-batches in the accumulator. So a step adds the parts of
 * the global batch in their order, and its bits do not depend on how many ranks share them. With
 * order=tree the ranks' values are added by a balanced tree (base/tree.c), and then to the
 * accumulator; with run=R too, those of each R ranks are, in f32 or f64, and these sums in order.
 * In a world of one no communicator is needed. `world` is the number of ranks that take part: those
 * of a group where `over` names an axis (base/mesh.c). */

static zf_status zfi_infer_collective(const zfi_infer *c)
{
    return zfi_infer_parts(c, zfi_node_count(c->args[0]), ZF_INT(c, all_gather, world));
}

/* Checks that operand 1 is an `op` into which the result, c->dtype and c->shape, fits. Instead of
 * an accumulator in host memory it is a copy of that. */
static zf_status zfi_infer_into(const zfi_infer *c, zf_op op)
{
    char type[ZFI_TYPE_TEXT];
    const zfi_node *into = c->arg_count < 2             ? NULL
                           : op == ZF_OP_accumulator ? zfi_copied(c->graph, c->args[1])
                                                        : c->args[1];
    if (!into || ((into->op == op || (op == ZF_OP_bucket && zfi_is_held(into))) &&
                  c->args[1]->dtype == c->dtype &&
                  zfi_same_shape(&c->args[1]->shape, &c->shape)))
        return ZF_OK;
    return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "operand 1, the place of the result, must be: %s %s",
                          c->graph->records[op]->name, zfi_type_text(type, c->dtype, &c->shape));
}

/* Checks `dim`, along which `parts` parts are gathered (1), or made; zig-zag, of two halves. */
static zf_status zfi_infer_dim(const zfi_infer *c, int64_t dim, int64_t parts, bool zigzag)
{
    const zf_shape *x = &c->args[0]->shape;
    if (zigzag) parts *= 2;
    if (!dim && !zigzag) return ZF_OK;
    if (dim < 0 || dim >= x->rank)
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "dim %lld of a tensor of rank %d", (long long)dim,
                              (int)x->rank);
    if (c->arg_count > 1)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "operand 1 is flat: what is put there has no dim");
    if (x->dims[dim] % parts)
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "%lld %s do not divide the %lld of dimension %lld",
                              (long long)parts, zigzag ? "halves" : "ranks",
                              (long long)x->dims[dim], (long long)dim);
    return ZF_OK;
}

/* Checks how many ranks before and after a rank it gets from, which are some of the others. */
static zf_status zfi_infer_near(const zfi_infer *c, zf_op op, bool fits)
{
    const int64_t world = ZF_INT(c, all_gather, world);
    int32_t before, after;
    const bool given = zfi_neighbours_of(op, c->attributes, &before, &after);
    if (!given || (fits && before >= 0 && after >= 0 && (int64_t)before + after < world)) return ZF_OK;
    return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                          "before=%d after=%d: ranks get from some of %lld along a dimension, and "
                          "sums are made by a tree",
                          (int)before, (int)after, (long long)world);
}

static zf_status zfi_infer_all_gather(zfi_infer *c)
{
    const int64_t dim = ZF_INT(c, all_gather, dim);
    const bool zigzag = ZF_INT(c, all_gather, zigzag) != 0;
    int64_t count = zfi_node_count(c->args[0]), world = ZF_INT(c, all_gather, world);
    c->dtype = c->args[0]->dtype;
    if (world < 1 || world > INT32_MAX || (count && world > INT64_MAX / 8 / count))
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "world is %lld; it must be 1 or more",
                              (long long)world);
    if (zfi_infer_near(c, ZF_OP_all_gather, dim != 0)) return c->graph->error.status;
    if (dim) {
        c->shape = c->args[0]->shape;
        if (dim > 0 && dim < c->shape.rank) c->shape.dims[dim] *= world;
        return zfi_infer_dim(c, dim, 1, zigzag);
    }
    if (zfi_infer_dim(c, dim, 1, zigzag)) return c->graph->error.status;
    c->shape = ZF_SHAPE(count * world);
    return zfi_infer_into(c, ZF_OP_bucket);
}

/* Checks `run`, the ranks of each tree of a sum. */
static zf_status zfi_infer_run(const zfi_infer *c, int64_t run)
{
    const int64_t world = ZF_INT(c, all_reduce, world);
    const bool wide = c->args[0]->dtype == ZF_F32 || c->args[0]->dtype == ZF_F64;
    if (!run || (run > 0 && wide && ZF_INT(c, all_reduce, order) && world % run == 0)) return ZF_OK;
    return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                          "run=%lld: trees of f32 or f64 (order=tree) are of ranks that divide "
                          "world=%lld",
                          (long long)run, (long long)world);
}

static zf_status zfi_infer_reduce_scatter(zfi_infer *c)
{
    zf_status status = zfi_infer_collective(c);
    const int64_t dim = ZF_INT(c, reduce_scatter, dim), world = ZF_INT(c, reduce_scatter, world);
    if (!status) status = zfi_infer_dim(c, dim, world, ZF_INT(c, reduce_scatter, zigzag) != 0);
    if (!status && ZF_INT(c, reduce_scatter, examples) &&
        (dim || c->arg_count > 1 || zfi_is_other_axis(ZF_INT(c, reduce_scatter, over))))
        status = zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                                "examples are flat, along data, and nothing accumulates them");
    if (!status) status = zfi_infer_run(c, ZF_INT(c, reduce_scatter, run));
    if (!status)
        status = zfi_infer_near(c, ZF_OP_reduce_scatter, dim && ZF_INT(c, reduce_scatter, order));
    if (status) return status;
    c->dtype = c->args[0]->dtype;
    if (dim) {
        c->shape = c->args[0]->shape;
        c->shape.dims[dim] /= world;
        return ZF_OK;
    }
    c->shape = ZF_SHAPE(zfi_node_count(c->args[0]) / world);
    return zfi_infer_into(c, ZF_OP_accumulator);
}

static zf_status zfi_infer_all_reduce(zfi_infer *c)
{
    if (ZF_INT(c, all_reduce, world) < 1 || ZF_INT(c, all_reduce, world) > INT32_MAX)
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "world is %lld; it must be 1 or more",
                              (long long)ZF_INT(c, all_reduce, world));
    if (zfi_infer_run(c, ZF_INT(c, all_reduce, run))) return c->graph->error.status;
    zfi_infer_like(c, 0);
    return zfi_infer_into(c, ZF_OP_accumulator);
}

/* Checks `dim`, which is cut, and `from`, which is gathered. */
static zf_status zfi_infer_all_to_all(zfi_infer *c)
{
    const int64_t dim = ZF_INT(c, all_to_all, dim), from = ZF_INT(c, all_to_all, from),
                  world = ZF_INT(c, all_to_all, world);
    zf_status status = zfi_infer_collective(c);
    if (!status) status = zfi_infer_like(c, 0);
    if (status || dim == from) return status;
    if (dim < 0 || dim >= c->shape.rank || from < 0 || from >= c->shape.rank)
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "dim %lld and from %lld of a tensor of rank %d",
                              (long long)dim, (long long)from, (int)c->shape.rank);
    if (c->shape.dims[dim] % world)
        return zfi_infer_fail(c, ZF_ERR_SHAPE,
                              "%lld ranks do not divide the %lld of dimension %lld",
                              (long long)world, (long long)c->shape.dims[dim], (long long)dim);
    c->shape.dims[dim] /= world, c->shape.dims[from] *= world;
    return ZF_OK;
}

static zf_status zfi_infer_bcast(zfi_infer *c)
{
    int64_t world = ZF_INT(c, bcast, world), root = ZF_INT(c, bcast, root);
    if (world < 1 || world > INT32_MAX || root < 0 || root >= world)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "root %lld is no rank of a world of %lld",
                              (long long)root, (long long)world);
    return zfi_infer_like(c, 0);
}

static zf_status zfi_infer_reduce_to(zfi_infer *c)
{
    const int64_t world = ZF_INT(c, reduce, world), root = ZF_INT(c, reduce, root),
                  dim = ZF_INT(c, reduce, dim);
    zfi_infer_like(c, 0);
    if (!zfi_is_other_axis(ZF_INT(c, reduce, over)))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "it is over tensor, context, expert or pipe, not over %s",
                              zfi_axis_names[ZF_INT(c, reduce, over)]);
    if (world < 1 || world > INT32_MAX || root < 0 || root >= world)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "root %lld is no rank of a world of %lld",
                              (long long)root, (long long)world);
    if (dim < 0 || dim >= c->shape.rank)
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "dim %lld of a tensor of rank %d", (long long)dim,
                              (int)c->shape.rank);
    if (c->dtype == ZF_F32 || c->dtype == ZF_F64) return ZF_OK;
    return zfi_infer_fail(c, ZF_ERR_DTYPE, "the operand must be f32 or f64");
}

static zf_status zfi_infer_send(zfi_infer *c)
{
    const int64_t world = ZF_INT(c, send, world), from = ZF_INT(c, send, from),
                  to = ZF_INT(c, send, to);
    if (ZF_INT(c, send, over) != ZF_OVER_PIPE)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "a send is over=pipe, not over=%s",
                              zfi_axis_names[ZF_INT(c, send, over)]);
    if (world < 2 || world > INT32_MAX || from < 0 || from >= world || to < 0 || to >= world ||
        from == to)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "from=%lld to=%lld are no two ranks of %lld along pipe",
                              (long long)from, (long long)to, (long long)world);
    return zfi_infer_like(c, 0);
}

static zf_status zfi_infer_release(zfi_infer *c) { return zfi_infer_like(c, 0); }

static zf_status zfi_infer_wait(zfi_infer *c)
{
    if (c->graph->records[c->args[0]->op]->traits & ZF_OP_COLLECTIVE ||
        c->args[0]->op == ZF_OP_copy)
        return zfi_infer_like(c, 0);
    return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                          "operand 0 must be a collective or a copy, not the result of %s",
                          c->graph->records[c->args[0]->op]->name);
}

/* ------------------------------------------------------------------------------ kernels */

#define ZFI_ADD_PART(name, from, expression)                                                       \
    ZFI_BODY void name##_body(zfi_isa isa, float *sum, const from *part, int64_t n)                \
    {                                                                                              \
        (void)isa;                                                                                 \
        ZFI_VECTOR                                                                                 \
        for (int64_t i = 0; i < n; i++) sum[i] += expression;                                      \
    }                                                                                              \
    ZFI_KERNEL(name, (float *sum, const from *part, int64_t n), (sum, part, n))

ZFI_ADD_PART(zfi_add_f32, float, part[i])
ZFI_ADD_PART(zfi_add_bf16, uint16_t, zfi_bf16_to_f32(part[i]))
ZFI_ADD_PART(zfi_add_f16, uint16_t, zfi_f16_to_f32(part[i]))

enum { ZFI_ADD_TILE = 1024 }; /* elements; their sums stay in the first-level cache */

/* f32, bf16 or f16: adds in f32, rounds once. */
static void zfi_add_floats(void *out, const void *const *parts, int32_t world, int64_t count,
                           zf_dtype dtype, bool add)
{
    zfi_isa isa = zfi_isa_best();
    float sum[ZFI_ADD_TILE];
    for (int64_t i = 0; i < count; i += ZFI_ADD_TILE) {
        int64_t n = count - i < ZFI_ADD_TILE ? count - i : ZFI_ADD_TILE;
        zfi_widen(isa, sum, dtype, zfi_element(add ? out : parts[0], dtype, i), n);
        for (int32_t r = !add; r < world; r++) {
            const void *part = zfi_element(parts[r], dtype, i);
            if (dtype == ZF_BF16) zfi_add_bf16(isa, sum, part, n);
            else if (dtype == ZF_F16) zfi_add_f16(isa, sum, part, n);
            else zfi_add_f32(isa, sum, part, n);
        }
        zfi_narrow(isa, zfi_element_of(out, dtype, i), dtype, sum, n);
    }
}

ZF_API void zf_add_ranks(void *out, const void *const *parts, int32_t world, int64_t count,
                         zf_dtype dtype, bool add)
{
    zf_array to = {out, dtype, {0, {0}}};
    if (!out || !parts || world < 1 || count < 1 || !zf_dtype_size(dtype)) return;
    if (dtype == ZF_F32 || zfi_is_half(dtype)) {
        zfi_add_floats(out, parts, world, count, dtype, add);
        return;
    }
    for (int64_t i = 0; i < count; i++)
        if (dtype == ZF_F64) {
            double sum = add ? ((double *)out)[i] : ((const double *)parts[0])[i];
            for (int32_t r = !add; r < world; r++) sum += ((const double *)parts[r])[i];
            ((double *)out)[i] = sum;
        } else {
            uint64_t sum = add ? (uint64_t)zfi_get_integer(&to, i) : 0;
            for (int32_t r = 0; r < world; r++) {
                zf_array part = {(void *)(uintptr_t)parts[r], dtype, {0, {0}}};
                sum += (uint64_t)zfi_get_integer(&part, i);
            }
            zfi_set_integer(&to, i, (int64_t)sum);
        }
}

/* Elements [first, last) of a sum over a world of one. */
static void zfi_add_alone(const zf_launch *l, int64_t first, int64_t last)
{
    size_t size = zf_dtype_size(l->out.dtype);
    const void *part = (const char *)l->args[0].data + (size_t)first * size;
    zf_add_ranks((char *)l->out.data + (size_t)first * size, &part, 1, last - first, l->out.dtype,
                 true);
}

/* As zfi_add_floats, by trees of `run` ranks; sums of subtrees that are complete stay open after
 * the sum of the trees before. */
static void zfi_add_floats_by_trees(void *out, const void *const *parts, int32_t world, int32_t run,
                                    int64_t count, zf_dtype dtype, bool add)
{
    enum { TILE = 256, DEPTHS = 34 };
    zfi_isa isa = zfi_isa_best();
    float sums[DEPTHS][TILE];
    for (int64_t i = 0; i < count; i += TILE) {
        int64_t n = count - i < TILE ? count - i : TILE;
        if (add) zfi_widen(isa, sums[0], dtype, zfi_element(out, dtype, i), n);
        for (int32_t r = 0; r < world; r++) {
            const bool onto = add || r >= run;
            int depth = zfi_tree_depth(r % run) + onto;
            if (parts[r]) zfi_widen(isa, sums[depth], dtype, zfi_element(parts[r], dtype, i), n);
            else memset(sums[depth], 0, (size_t)n * sizeof *sums[depth]);
            for (int k = zfi_tree_merges(r % run, run); k > 0; k--, depth--)
                zfi_add_run(isa, sums[depth - 1], sums[depth], n);
            if (onto && r % run == run - 1) zfi_add_run(isa, sums[0], sums[1], n);
        }
        zfi_narrow(isa, zfi_element_of(out, dtype, i), dtype, sums[0], n);
    }
}

static void zfi_add_doubles_by_trees(double *out, const void *const *parts, int32_t world,
                                     int32_t run, int64_t count, bool add)
{
    for (int64_t i = 0; i < count; i++) {
        double sum = add ? out[i] : 0;
        for (int32_t first = 0; first < world; first += run) {
            zfi_tree tree = {.sections = run};
            for (int32_t r = first; r < first + run; r++)
                zfi_tree_put(&tree, parts[r] ? ((const double *)parts[r])[i] : 0);
            sum = add || first ? tree.sums[0] + sum : tree.sums[0];
        }
        out[i] = sum;
    }
}

ZF_API void zf_add_ranks_by_tree(void *out, const void *const *parts, int32_t world, int64_t count,
                                 zf_dtype dtype, bool add)
{
    zf_add_ranks_by_trees(out, parts, world, world, count, dtype, add);
}

ZF_API void zf_add_ranks_by_trees(void *out, const void *const *parts, int32_t world, int32_t run,
                                  int64_t count, zf_dtype dtype, bool add)
{
    if (!out || !parts || world < 1 || count < 1) return;
    if (run < 1 || world % run) run = world;
    if (dtype == ZF_F32 || zfi_is_half(dtype))
        zfi_add_floats_by_trees(out, parts, world, run, count, dtype, add);
    else if (dtype == ZF_F64) zfi_add_doubles_by_trees(out, parts, world, run, count, add);
    else zf_add_ranks(out, parts, world, count, dtype, add); /* integers, in any order */
}

/* ------------------------------------------------------------------------- along a dimension
 *
 * A call is flat: the pieces of ranks lie one after the other. Along dimension d they are rows of
 * the dimensions before d, next to those of other ranks:
 *
 *     rank 0   a b      flat   a b c d e f g h      dim=1   a b e f
 *              c d                                          c d g h
 *     rank 1   e f
 *              g h
 */

/* The number of a rank in a group, which may be of all ranks. */
static int32_t zfi_number_in(const zf_group *group, int32_t rank)
{
    return group->count ? (rank - group->first) / group->stride : rank;
}

/* What lies there in scratch before the call, and after it: whole, with pieces of all ranks. */
static size_t zfi_scratch_collective(const zf_launch *l)
{
    if (!zfi_is_along(l->op, l->attributes) || ZF_INT(l, all_gather, world) < 2) return 0;
    return (size_t)zfi_array_bytes(l->op == ZF_OP_all_gather ? &l->out : &l->args[0]);
}

/* Moves rows [first, last) of all ranks' pieces, those of dimensions before `dim`, to where they
 * lie in scratch, or from there: as a whole, or by halves that are dealt zig-zag. */
static void zfi_turn_rows(const zf_launch *l, const zf_array *whole, int dim, bool back,
                          int64_t first, int64_t last)
{
    const int64_t world = ZF_INT(l, all_gather, world), rows = zfi_span(&whole->shape, 0, dim),
                  halves = zfi_goes_zigzag(l->op, l->attributes) ? 2 : 1;
    const size_t row = zf_dtype_size(whole->dtype) *
                       (size_t)(zfi_span(&whole->shape, dim, whole->shape.rank) / world / halves);
    const int32_t own = zfi_number_in(&l->group, l->run->rank);
    int32_t before, after;
    const bool some = zfi_neighbours_of(l->op, l->attributes, &before, &after);
    for (int64_t i = first; i < last; i++)
        for (int64_t r = 0; r < world * halves; r++) {
            const int64_t rank = r / halves, half = r % halves,
                          place = halves > 1 ? zfi_zigzag_half(rank, world, half) : rank;
            char *side = (char *)whole->data + (size_t)(i * world * halves + place) * row;
            char *apart = (char *)l->scratch + (size_t)((rank * rows + i) * halves + half) * row;
            if (back && some && (rank < own - before || rank > own + after)) memset(side, 0, row);
            else memcpy(back ? side : apart, back ? apart : side, row);
        }
}

static void zfi_put_apart(const zf_launch *l, int64_t first, int64_t last)
{
    zfi_turn_rows(l, &l->args[0], (int)zfi_cut_dim(l->op, l->attributes), false, first, last);
}

static void zfi_put_side(const zf_launch *l, int64_t first, int64_t last)
{
    zfi_turn_rows(l, &l->out, (int)zfi_gathered_dim(l->op, l->attributes), true, first, last);
}

/* Before the call of a scatter or an exchange along a dimension. */
static void zfi_collective_before(const zf_launch *l)
{
    const int64_t rows = zfi_span(&l->args[0].shape, 0, (int)zfi_cut_dim(l->op, l->attributes));
    if (zfi_scratch_collective(l) && l->op != ZF_OP_all_gather)
        zfi_split(l, rows, 1 + ZFI_GRAIN * rows / zfi_count(&l->args[0]), zfi_put_apart);
}

/* Elements [first, last) of the result become -0, to which any sum may be added. */
static void zfi_put_nothing(const zf_launch *l, int64_t first, int64_t last)
{
    for (int64_t i = first; i < last; i++) zfi_set(&l->out, i, -0.0);
}

/* After that of a gather or an exchange, or a sum that another rank has. */
static void zfi_collective_after(const zf_launch *l)
{
    const int64_t rows = zfi_span(&l->out.shape, 0, (int)zfi_gathered_dim(l->op, l->attributes));
    if (l->op == ZF_OP_reduce && zfi_number_in(&l->group, l->run->rank) != ZF_INT(l, reduce, root))
        zfi_split(l, zfi_count(&l->out), ZFI_GRAIN, zfi_put_nothing);
    if (zfi_scratch_collective(l) && l->op != ZF_OP_reduce_scatter)
        zfi_split(l, rows, 1 + ZFI_GRAIN * rows / zfi_count(&l->out), zfi_put_side);
}

ZF_API zf_collective zf_collective_of(const zf_launch *l)
{
    zf_collective c = {.op = ZF_OP_none};
    int64_t world, count;
    if (!l || !l->args || !l->run || !(zf_op_traits_of(l->op) & ZF_OP_COLLECTIVE)) return c;
    world = ZF_INT(l, all_gather, world);
    count = zfi_count(l->arg_count ? &l->args[0] : &l->out); /* without: another rank has it */
    c = (zf_collective){.op = l->op,
                        .node = l->node,
                        .channel = l->queue,
                        .dtype = l->out.dtype,
                        .count = count,
                        .in = l->arg_count ? l->args[0].data : NULL,
                        .out = l->out.data};
    if (l->op == ZF_OP_reduce_scatter || l->op == ZF_OP_all_to_all) c.count = count / world;
    if (l->op == ZF_OP_reduce_scatter || l->op == ZF_OP_all_reduce)
        c.add = l->arg_count > 1 && l->run->micro > 0, c.tree = ZF_INT(l, all_reduce, order) != 0,
        c.run = (int32_t)(l->op == ZF_OP_all_reduce ? ZF_INT(l, all_reduce, run)
                                                    : ZF_INT(l, reduce_scatter, run));
    zfi_neighbours_of(l->op, l->attributes, &c.before, &c.after);
    if (zfi_is_along(l->op, l->attributes) && world > 1) {
        if (l->op != ZF_OP_reduce_scatter) c.out = l->scratch;
        if (l->op != ZF_OP_all_gather) c.in = l->scratch;
    }
    if (l->op == ZF_OP_send) c.root = ZF_INT(l, send, from) > ZF_INT(l, send, to);
    if (l->op == ZF_OP_bcast) c.root = (int32_t)ZF_INT(l, bcast, root);
    if (l->op == ZF_OP_reduce)
        c.root = (int32_t)ZF_INT(l, reduce, root), c.tree = ZF_INT(l, reduce, order) != 0;
    c.group = l->group;
    return c;
}

static zf_status zfi_no_comm(const zf_launch *l)
{
    return zfi_fail(l->error, ZF_ERR_COMM,
                    "%%%d: a plan for %lld ranks needs a communicator (zf_compile_desc.comm)",
                    (int)l->node, (long long)ZF_INT(l, all_gather, world));
}

/* It is a send between other ranks. */
static bool zfi_is_elsewhere(const zf_launch *l)
{
    return l->op == ZF_OP_send && l->group.count == 1;
}

/* Runs a call. An error of a step that runs a schedule says of which task. */
static zf_status zfi_call_ranks(const zf_launch *l, const zf_collective *c)
{
    const zf_status status = l->comm->run(l->comm->self, c, l->error);
    char text[sizeof l->error->text];
    if (!status || !l->run->task || !l->error) return status;
    snprintf(text, sizeof text, "%s", l->error->text);
    snprintf(l->error->text, sizeof text, "%.420s; task %.60s", text, l->run->task);
    return status;
}

/* The launch is left out of this micro-batch: the first one has the value of all. */
static bool zfi_is_left_out(const zf_launch *l)
{
    const bool once = (l->op == ZF_OP_all_gather && ZF_INT(l, all_gather, once)) ||
                      (l->op == ZF_OP_send && ZF_INT(l, send, once));
    return once && l->run->micro > 0;
}

/* The operand is the result on ranks to which nothing is sent. */
static zf_status zfi_cpu_send(const zf_launch *l)
{
    zf_collective c;
    zf_status status;
    if (zfi_is_left_out(l)) return ZF_OK;
    if (!l->comm) return zfi_no_comm(l);
    c = zf_collective_of(l);
    if (!zfi_is_elsewhere(l) && (status = zfi_call_ranks(l, &c))) return status;
    if (c.out != c.in && (zfi_is_elsewhere(l) || zfi_number_in(&c.group, l->comm->rank) == c.root))
        zfi_move_bytes(l, c.out, c.in, zfi_array_bytes(&l->out));
    return ZF_OK;
}

static zf_status zfi_cpu_collective(const zf_launch *l)
{
    zf_collective c;
    if (zfi_is_left_out(l)) return ZF_OK;
    if (ZF_INT(l, all_gather, world) > 1 && !l->comm) return zfi_no_comm(l);
    c = zf_collective_of(l);
    if (ZF_INT(l, all_gather, world) > 1) {
        zf_status status;
        zfi_collective_before(l);
        status = zfi_call_ranks(l, &c);
        if (!status) zfi_collective_after(l);
        return status;
    }
    if (c.add) zfi_split(l, zfi_count(&l->out), ZFI_GRAIN, zfi_add_alone);
    else zfi_move_bytes(l, l->out.data, l->args[0].data, zfi_array_bytes(&l->out));
    return ZF_OK;
}

/* The result lies in operand 1, if there is one. */
static int32_t zfi_views_into(const zf_graph *g, const zfi_node *node, int64_t *at)
{
    (void)g, (void)at;
    return node->arg_count > 1 ? 1 : -1;
}

static uint32_t zfi_writes_into_1(const zfi_node *node) { return node->arg_count > 1 ? 2 : 0; }

/* ------------------------------------------------------------------------------- records */

ZFI_SAME_ATTRIBUTE(reduce_scatter, all_gather, world)
ZFI_SAME_ATTRIBUTE(reduce_scatter, all_gather, over)
ZFI_SAME_ATTRIBUTE(all_reduce, all_gather, world)
ZFI_SAME_ATTRIBUTE(all_reduce, all_gather, over)
ZFI_SAME_ATTRIBUTE(reduce_scatter, all_reduce, order)
ZFI_SAME_ATTRIBUTE(all_to_all, all_gather, world)
ZFI_SAME_ATTRIBUTE(all_to_all, all_gather, over)
ZFI_SAME_ATTRIBUTE(bcast, all_gather, world)
ZFI_SAME_ATTRIBUTE(bcast, all_gather, over)
ZFI_OPERATOR(all_gather, .infer = zfi_infer_all_gather, .cpu = zfi_cpu_collective,
             .scratch = zfi_scratch_collective, .views = zfi_views_into,
             .writes = zfi_writes_into_1, .traits = ZF_OP_MUTATES | ZF_OP_COLLECTIVE)
ZFI_OPERATOR(reduce_scatter, .infer = zfi_infer_reduce_scatter, .cpu = zfi_cpu_collective,
             .scratch = zfi_scratch_collective, .views = zfi_views_into,
             .writes = zfi_writes_into_1, .linear_in = 1,
             .traits = ZF_OP_MUTATES | ZF_OP_COLLECTIVE)
ZFI_OPERATOR(all_reduce, .infer = zfi_infer_all_reduce, .cpu = zfi_cpu_collective,
             .cuts = "... -> ...",
             .views = zfi_views_into, .writes = zfi_writes_into_1,
             .linear_in = 1, .traits = ZF_OP_MUTATES | ZF_OP_COLLECTIVE | ZF_OP_INPLACE)
ZFI_OPERATOR(all_to_all, .infer = zfi_infer_all_to_all, .cpu = zfi_cpu_collective,
             .scratch = zfi_scratch_collective, .linear_in = 1, .traits = ZF_OP_COLLECTIVE)
ZFI_OPERATOR(bcast, .infer = zfi_infer_bcast, .cpu = zfi_cpu_collective,
             .traits = ZF_OP_COLLECTIVE)
ZFI_SAME_ATTRIBUTE(reduce, all_gather, world)
ZFI_SAME_ATTRIBUTE(reduce, all_gather, over)
ZFI_OPERATOR(reduce, .infer = zfi_infer_reduce_to, .cpu = zfi_cpu_collective,
             .linear_in = 1, .traits = ZF_OP_COLLECTIVE)
ZFI_SAME_ATTRIBUTE(send, all_gather, world)
ZFI_SAME_ATTRIBUTE(send, all_gather, over)
ZFI_OPERATOR(send, .infer = zfi_infer_send, .cpu = zfi_cpu_send,
             .traits = ZF_OP_COLLECTIVE | ZF_OP_INPLACE)
ZFI_OPERATOR(release, .infer = zfi_infer_release, .grad = zfi_grad_none,
             .traits = ZF_OP_EFFECT | ZF_OP_ANYWHERE)
/* It is the program that waits. */
ZFI_OPERATOR(wait, .infer = zfi_infer_wait, .grad = zfi_grad_none, .cpu = zfi_cpu_nothing,
             .traits = ZF_OP_EFFECT | ZF_OP_ANYWHERE)
