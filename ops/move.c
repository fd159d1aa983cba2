/* Shape: reshape slice pad transpose concat broadcast, which move elements of any dtype, and
 * stop_gradient, which moves none.
 *
 *     %2 = reshape %1 {shape=[2,16]} : f32[2,16]        the same elements      dx = reshape(dy)
 *     %2 = slice %1 {axis=1 start=2 stop=5} : f32[4,3]  x[:,2..5)              dx = pad(dy), or of
 *                                                       several slices concat(dy, ...)
 *     %2 = pad %1 {axis=1 before=2 after=3} : f32[4,8]  zeros around x         dx = slice(dy)
 *     %2 = transpose %1 {order=[2,0,1]} : f32[8,2,4]    y.dims[i] = x.dims[order[i]]
 *                                                       dx = transpose(dy), the inverse order
 *     %3 = concat %1, %2 {axis=0} : f32[9,8]            x[0], then x[1], ...   dx[k] = slice(dy)
 *     %2 = broadcast %1 {shape=[4,8]} : f32[4,8]        repeats dimensions 1   dx = sum_to(dy)
 *
 * Of a rank's part (graph/spread.c) a reshape says with `cut`, 1 and more than its number, which
 * dimension of one element is cut: {shape=[2,1,8] cut=2} : f32[2,1@tensor,8].
 *
 * Saved: nothing. reshape is a view; so is slice when all dimensions before its axis are 1. Their
 * kernels copy nothing where the plan has placed the result over the operand.
 *
 * All moves are one algorithm: a box of elements is copied from one set of strides to another. */

/* The shape that a list of dimensions gives; false where it is not a valid shape. */
static bool zfi_listed_shape(const zf_attribute *attribute, zf_shape *shape)
{
    int64_t rank = attribute->list.count;
    if (rank < 0 || rank > ZF_MAX_RANK) return false;
    *shape = zf_shape_of((int32_t)rank, attribute->list.data);
    return zf_shape_count(*shape) >= 0;
}

static zf_status zfi_infer_shape(zfi_infer *c)
{
    c->dtype = c->args[0]->dtype;
    if (zfi_listed_shape(&ZF_ATTRIBUTE(c, reshape, shape), &c->shape)) return ZF_OK;
    return zfi_infer_fail(
        c, ZF_ERR_SHAPE,
        "a shape has 0 to %d dimensions, none negative, and fewer than 2^63 elements", ZF_MAX_RANK);
}

static zf_status zfi_infer_axis(const zfi_infer *c, int64_t axis)
{
    int rank = c->args[0]->shape.rank;
    if (axis >= 0 && axis < rank) return ZF_OK;
    if (!rank) return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "a scalar has no axis");
    return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                          "axis %lld of a tensor of rank %d; 0 to %d is possible", (long long)axis,
                          rank, rank - 1);
}

static zf_status zfi_infer_itself(zfi_infer *c) { return zfi_infer_like(c, 0); }

static zf_status zfi_infer_reshape(zfi_infer *c)
{
    zf_status status = zfi_infer_shape(c);
    int64_t from = zfi_node_count(c->args[0]), to = zf_shape_count(c->shape);
    const int64_t cut = ZF_INT(c, reshape, cut);
    char type[ZFI_TYPE_TEXT];
    if (!status && from != to)
        status = zfi_infer_fail(c, ZF_ERR_SHAPE, "%s has %lld elements, the operand %lld",
                                zfi_type_text(type, c->dtype, &c->shape), (long long)to,
                                (long long)from);
    if (!status && cut && (cut < 0 || cut > c->shape.rank || c->shape.dims[cut - 1] != 1))
        status = zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                                "cut is %lld: 1 and more than the number of a dimension of one "
                                "element, or 0",
                                (long long)cut);
    return status;
}

static zf_status zfi_infer_slice(zfi_infer *c)
{
    int64_t axis = ZF_INT(c, slice, axis), start = ZF_INT(c, slice, start),
            stop = ZF_INT(c, slice, stop);
    zf_status status = zfi_infer_axis(c, axis);
    if (status) return status;
    zfi_infer_like(c, 0);
    if (start < 0 || stop < start || stop > c->shape.dims[axis])
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "start %lld and stop %lld; 0 <= start <= stop <= %lld is possible",
                              (long long)start, (long long)stop, (long long)c->shape.dims[axis]);
    c->shape.dims[axis] = stop - start;
    return ZF_OK;
}

static zf_status zfi_infer_pad(zfi_infer *c)
{
    int64_t axis = ZF_INT(c, pad, axis), before = ZF_INT(c, pad, before),
            after = ZF_INT(c, pad, after);
    zf_status status = zfi_infer_axis(c, axis);
    if (status) return status;
    zfi_infer_like(c, 0);
    if (before < 0 || after < 0 || before > INT64_MAX - c->shape.dims[axis] ||
        after > INT64_MAX - c->shape.dims[axis] - before)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "%lld before and %lld after; neither may be negative, nor their sum "
                              "with %lld over 2^63 - 1",
                              (long long)before, (long long)after, (long long)c->shape.dims[axis]);
    c->shape.dims[axis] += before + after;
    return ZF_OK;
}

static zf_status zfi_infer_transpose(zfi_infer *c)
{
    const zf_shape *from = &c->args[0]->shape;
    const int64_t *order = ZF_LIST(c, transpose, order).data;
    bool seen[ZF_MAX_RANK] = {false};
    if (ZF_LIST(c, transpose, order).count != from->rank)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "the order has %lld entries, the operand %d dimensions",
                              (long long)ZF_LIST(c, transpose, order).count, (int)from->rank);
    zfi_infer_like(c, 0);
    for (int axis = 0; axis < from->rank; axis++) {
        if (order[axis] < 0 || order[axis] >= from->rank || seen[order[axis]])
            return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                                  "the order must name each of the axes 0 to %d once",
                                  (int)from->rank - 1);
        seen[order[axis]] = true;
        c->shape.dims[axis] = from->dims[order[axis]];
    }
    return ZF_OK;
}

static zf_status zfi_infer_concat(zfi_infer *c)
{
    int64_t axis = ZF_INT(c, concat, axis);
    zf_status status = zfi_infer_dtypes(c, false);
    if (!status) status = zfi_infer_axis(c, axis);
    if (status) return status;
    zfi_infer_like(c, 0);
    for (int32_t k = 1; k < c->arg_count; k++) {
        zf_shape other = c->args[k]->shape;
        int64_t more = axis < other.rank ? other.dims[axis] : 0;
        char type[ZFI_TYPE_TEXT];
        if (axis < other.rank) other.dims[axis] = c->shape.dims[axis];
        if (!zfi_same_shape(&other, &c->shape) || more > INT64_MAX - c->shape.dims[axis])
            return zfi_infer_fail(
                c, ZF_ERR_SHAPE,
                "operand %d, %s, must have operand 0's dimensions but for axis %lld", (int)k,
                zfi_type_text(type, c->dtype, &c->args[k]->shape), (long long)axis);
        c->shape.dims[axis] += more;
    }
    return ZF_OK;
}

static zf_status zfi_infer_broadcast(zfi_infer *c)
{
    zf_status status = zfi_infer_shape(c);
    char type[ZFI_TYPE_TEXT];
    if (!status && !zfi_broadcasts_to(&c->args[0]->shape, &c->shape))
        status = zfi_infer_fail(
            c, ZF_ERR_SHAPE,
            "the operand does not broadcast to %s: aligned at the last, each dimension must be "
            "equal or 1",
            zfi_type_text(type, c->dtype, &c->shape));
    return status;
}

/* ------------------------------------------------------------------------------------- cuts */

/* Along an axis, which is not to be cut: of slice, pad and concat. */
static void zfi_cut_along(const zf_graph *g, const zfi_node *node, zfi_cut_text *t)
{
    const int32_t axis = (int32_t)zfi_attribute_of(g, node, "axis")->i;
    zfi_cut_put_dims(t, zfi_cut_order, node->shape.rank, '!', 1u << axis, 0);
    zfi_cut_put(t, "* -> ");
    zfi_cut_put_dims(t, zfi_cut_order, node->shape.rank, '!', 1u << axis, 0);
}

static void zfi_cut_transpose(const zf_graph *g, const zfi_node *node, zfi_cut_text *t)
{
    int32_t order[ZF_MAX_RANK];
    (void)g;
    for (int32_t k = 0; k < node->shape.rank; k++)
        order[k] = (int32_t)((const int64_t *)ZF_LIST(node, transpose, order).data)[k];
    zfi_cut_put_dims(t, zfi_cut_order, node->shape.rank, '!', 0, 0);
    zfi_cut_put(t, "-> ");
    zfi_cut_put_dims(t, order, node->shape.rank, '!', 0, 0);
}

/* Puts the dimensions of `small`, which broadcasts to `large`, by the letters of that, with a
 * mark; `parts`: those that are cut, and have one element on a rank, as those of `large`. */
static void zfi_cut_put_small(zfi_cut_text *t, const zf_shape *small, const zf_shape *large,
                              char mark, uint32_t parts)
{
    uint32_t ones = 0;
    for (int32_t d = 0; d < small->rank; d++) ones |= (uint32_t)(small->dims[d] == 1) << d;
    ones &= ~parts;
    zfi_cut_put_dims(t, zfi_cut_order + (large->rank - small->rank), small->rank, mark, ~0u, ones);
}

static void zfi_cut_broadcast(const zf_graph *g, const zfi_node *node, zfi_cut_text *t)
{
    const zfi_node *x = &g->nodes[node->args[0]];
    const int32_t more = node->shape.rank - x->shape.rank;
    uint32_t parts = 0;
    for (int32_t d = 0; d < x->shape.rank; d++)
        parts |= (uint32_t)(x->spread.at[d] && node->shape.dims[more + d] == 1) << d;
    zfi_cut_put_small(t, &x->shape, &node->shape, ' ', parts);
    zfi_cut_put(t, "-> ");
    zfi_cut_put_dims(t, zfi_cut_order, node->shape.rank, '!', 0, 0);
    zfi_cut_put(t, "{shape}");
}

/* Puts dimensions [first, last) of a shape: the first of several elements can be cut. */
static void zfi_cut_put_group(zfi_cut_text *t, const zf_shape *s, int32_t first, int32_t last,
                              char letter, char *next)
{
    bool cut = false;
    for (int32_t d = first; d < last; d++) {
        char item[] = {letter, ' ', 0, 0};
        if (s->dims[d] == 1) item[0] = '1';
        else if (cut) item[0] = (*next)++, item[1] = '!', item[2] = ' ';
        else cut = true;
        zfi_cut_put(t, item);
    }
}

/* Neighbouring dimensions that become neighbouring ones with as many elements are a group. Each is
 * cut at its first dimension. */
static void zfi_cut_reshape(const zf_graph *g, const zfi_node *node, zfi_cut_text *t)
{
    const zf_shape *shapes[] = {&g->nodes[node->args[0]].shape, &node->shape};
    char inner = 'a' + ZF_MAX_RANK + 1;
    if (!zfi_node_count(node)) return;
    for (int side = 0; side < 2; side++) {
        int32_t end[2] = {0, 0};
        for (char letter = 'a'; end[0] < shapes[0]->rank || end[1] < shapes[1]->rank; letter++) {
            const int32_t first = end[side];
            int64_t count[2] = {1, 1};
            do {
                const int less = end[1] == shapes[1]->rank ||
                                         (count[0] <= count[1] && end[0] < shapes[0]->rank)
                                     ? 0
                                     : 1;
                count[less] *= shapes[less]->dims[end[less]++];
            } while (count[0] != count[1]);
            zfi_cut_put_group(t, shapes[side], first, end[side], letter, &inner);
        }
        zfi_cut_put(t, side ? "{shape}" : "-> ");
    }
}

/* --------------------------------------------------------------------------- gradients */

static void zfi_grad_reshape(zf_grad *c)
{
    c->dx[0] = zf_reshape(c->dy, zf_tensor_shape(c->x[0]));
}
static void zfi_grad_broadcast(zf_grad *c)
{
    c->dx[0] = zf_sum_to(c->dy, zf_tensor_shape(c->x[0]));
}
static void zfi_grad_slice(zf_grad *c)
{
    c->dx[0] = c->dy, c->part = true;
    c->axis = (int32_t)ZF_INT(c, slice, axis), c->start = ZF_INT(c, slice, start);
}

static void zfi_grad_pad(zf_grad *c)
{
    int64_t axis = ZF_INT(c, pad, axis), before = ZF_INT(c, pad, before);
    c->dx[0] = zf_slice(c->dy, (int32_t)axis, before, before + zf_tensor_shape(c->x[0]).dims[axis]);
}

static void zfi_grad_transpose(zf_grad *c)
{
    const int64_t *order = ZF_LIST(c, transpose, order).data;
    int32_t inverse[ZF_MAX_RANK];
    for (int32_t axis = 0; axis < zf_tensor_shape(c->y).rank; axis++) inverse[order[axis]] = axis;
    c->dx[0] = zf_permute(c->dy, inverse);
}

static void zfi_grad_concat(zf_grad *c)
{
    int64_t axis = ZF_INT(c, concat, axis), start = 0;
    for (int32_t k = 0; k < c->count; k++) {
        int64_t stop = start + zf_tensor_shape(c->x[k]).dims[axis];
        if (c->need[k]) c->dx[k] = zf_slice(c->dy, (int32_t)axis, start, stop);
        start = stop;
    }
}

/* ------------------------------------------------------------------------ moving a box */

/* Elements to copy. walk.strides[0] are the steps in `from`, walk.strides[1] those in `to`. */
typedef struct zfi_box {
    zfi_walk walk;
    const char *from;
    char *to;
    size_t size;          /* bytes of an element: 1, 2, 4 or 8 */
    int64_t count, grain; /* elements, or bands of tiles: of the box, and of a task */
} zfi_box;

/* The definition: one element at a time. */
static void zfi_box_plain(const zfi_box *b)
{
    zfi_walk w = b->walk;
    zfi_walk_seek(&w, 0);
    for (int64_t i = 0; i < b->count; i++, zfi_walk_next(&w))
        memcpy(b->to + w.at[1] * (int64_t)b->size, b->from + w.at[0] * (int64_t)b->size, b->size);
}

/* Copies n elements of a fixed size, with given steps in bytes. */
ZFI_INLINE void zfi_copy_steps_of(char *to, int64_t to_step, const char *from, int64_t from_step,
                                  int64_t n, const int64_t size)
{
    for (int64_t i = 0; i < n; i++)
        memcpy(to + i * to_step * size, from + i * from_step * size, (size_t)size);
}

/* Copies n elements of 1, 2, 4 or 8 bytes. */
static void zfi_copy_steps(char *to, int64_t to_step, const char *from, int64_t from_step,
                           int64_t n, int64_t size)
{
    int64_t filled = n < 64 ? n : 64;
    if (to_step == 1 && from_step == 1) {
        memcpy(to, from, (size_t)(n * size));
        return;
    }
    if (to_step != 1 || from_step != 0) filled = n;
    if (size == 4) zfi_copy_steps_of(to, to_step, from, from_step, filled, 4);
    else if (size == 8) zfi_copy_steps_of(to, to_step, from, from_step, filled, 8);
    else if (size == 2) zfi_copy_steps_of(to, to_step, from, from_step, filled, 2);
    else zfi_copy_steps_of(to, to_step, from, from_step, filled, 1);
    /* One value, repeated: copies the filled part after itself, doubling it each time. */
    for (int64_t more; filled < n; filled += more) {
        more = filled < n - filled ? filled : n - filled;
        memcpy(to + filled * size, to, (size_t)(more * size));
    }
}

/* Task: elements [index * grain, ...), one run along the last axis at a time. */
static void zfi_box_runs(void *context, int64_t index, int worker)
{
    const zfi_box *b = context;
    zfi_walk w = b->walk;
    int64_t size = (int64_t)b->size, first = index * b->grain, length = w.dims[--w.rank],
            inside = first % length;
    int64_t last = b->count - first > b->grain ? first + b->grain : b->count;
    int64_t from_step = w.strides[0][w.rank], to_step = w.strides[1][w.rank];
    (void)worker;
    zfi_walk_seek(&w, first / length);
    for (; first < last; inside = 0, zfi_walk_next(&w)) {
        int64_t n = length - inside < last - first ? length - inside : last - first;
        zfi_copy_steps(b->to + (w.at[1] + inside * to_step) * size, to_step,
                       b->from + (w.at[0] + inside * from_step) * size, from_step, n, size);
        first += n;
    }
}

enum { ZFI_TILE = 32 };

/* One tile, to[r,c] = from[c,r], through a buffer, so that reads and writes use whole cache
 * lines. */
ZFI_INLINE void zfi_box_tile(char *to, int64_t to_row, const char *from, int64_t from_row,
                             int64_t rows, int64_t columns, const int64_t size)
{
    char tile[ZFI_TILE][(ZFI_TILE + 1) * 8];
    for (int64_t c = 0; c < columns; c++)
        memcpy(tile[c], from + c * from_row * size, (size_t)(rows * size));
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++)
            memcpy(to + (r * to_row + c) * size, tile[c] + r * size, (size_t)size);
}

/* Task: tiles of the bands [index * grain, ...). A band is ZFI_TILE rows. The last axis has step 1
 * in `to`, the one before it step 1 in `from`. */
static void zfi_box_tiles(void *context, int64_t index, int worker)
{
    const zfi_box *b = context;
    zfi_walk w = b->walk;
    int64_t size = (int64_t)b->size, columns = w.dims[w.rank - 1], rows = w.dims[w.rank - 2];
    int64_t from_row = w.strides[0][w.rank - 1], to_row = w.strides[1][w.rank - 2];
    int64_t bands = (rows + ZFI_TILE - 1) / ZFI_TILE, first = index * b->grain;
    int64_t last = b->count - first > b->grain ? first + b->grain : b->count,
            r = first % bands * ZFI_TILE;
    (void)worker;
    w.rank -= 2;
    zfi_walk_seek(&w, first / bands);
    for (; first < last; first++, r += ZFI_TILE) {
        int64_t high;
        if (r >= rows) r = 0, zfi_walk_next(&w);
        high = rows - r < ZFI_TILE ? rows - r : ZFI_TILE;
        for (int64_t c = 0; c < columns; c += ZFI_TILE) {
            char *to = b->to + (w.at[1] + r * to_row + c) * size;
            const char *from = b->from + (w.at[0] + c * from_row + r) * size;
            int64_t wide = columns - c < ZFI_TILE ? columns - c : ZFI_TILE;
            if (size == 4) zfi_box_tile(to, to_row, from, from_row, high, wide, 4);
            else if (size == 8) zfi_box_tile(to, to_row, from, from_row, high, wide, 8);
            else if (size == 2) zfi_box_tile(to, to_row, from, from_row, high, wide, 2);
            else zfi_box_tile(to, to_row, from, from_row, high, wide, 1);
        }
    }
}

/* Drops dimensions of size 1, and merges neighbouring dimensions that have one step in both arrays.
 * At least one axis is left. */
static void zfi_box_merge(zfi_walk *w)
{
    int rank = 0;
    for (int axis = 0; axis < w->rank; axis++) {
        int64_t n = w->dims[axis], from = w->strides[0][axis], to = w->strides[1][axis];
        if (n == 1) continue;
        if (rank && w->strides[0][rank - 1] == n * from && w->strides[1][rank - 1] == n * to)
            n *= w->dims[--rank];
        w->dims[rank] = n, w->strides[0][rank] = from, w->strides[1][rank] = to;
        rank++;
    }
    if (!rank) w->dims[0] = w->strides[0][0] = w->strides[1][0] = 1, rank = 1;
    w->rank = rank;
}

/* Moves the axis with step 1 in `from` to the last place but one; false when there is none, or when
 * it is the last already. */
static bool zfi_box_turn(zfi_walk *w)
{
    int last = w->rank - 1, axis = last - 1;
    zfi_walk old = *w;
    if (w->strides[1][last] != 1 || w->strides[0][last] <= 1) return false;
    while (axis >= 0 && w->strides[0][axis] != 1) axis--;
    if (axis < 0) return false;
    for (int to = axis; to < last; to++) {
        int from = to < last - 1 ? to + 1 : axis;
        w->dims[to] = old.dims[from];
        for (int k = 0; k < 2; k++) w->strides[k][to] = old.strides[k][from];
    }
    return true;
}

/* Copies the box, on all workers. */
static void zfi_box_copy(const zf_launch *l, zfi_box b)
{
    const zfi_cpu *cpu = zfi_cpu_of(l);
    zfi_walk *w = &b.walk;
    zfi_task *task = zfi_box_runs;
    w->arrays = 2;
    b.count = 1;
    for (int axis = 0; axis < w->rank; axis++) b.count *= w->dims[axis];
    b.size = zf_dtype_size(l->out.dtype);
    if (!b.count) return;
    if (cpu->reference) {
        zfi_box_plain(&b);
        return;
    }
    zfi_box_merge(w);
    b.grain = ZFI_GRAIN;
    if (zfi_box_turn(w)) {
        int64_t rows = w->dims[w->rank - 2], columns = w->dims[w->rank - 1];
        b.count = b.count / (rows * columns) * ((rows + ZFI_TILE - 1) / ZFI_TILE);
        b.grain = zfi_row_grain(columns * (rows < ZFI_TILE ? rows : ZFI_TILE));
        task = zfi_box_tiles;
    }
    zfi_pool_run(cpu->pool, (b.count + b.grain - 1) / b.grain, task, &b);
}

/* The strides of a row-major array of this shape. */
static void zfi_strides_of(const zf_shape *shape, int64_t strides[ZF_MAX_RANK])
{
    int64_t step = 1;
    for (int axis = shape->rank - 1; axis >= 0; step *= shape->dims[axis--]) strides[axis] = step;
}

/* The box that moves x, from x_axis = x_start on, to out, from axis = start on. `shape`: of the
 * box. */
static zfi_box zfi_box_at(const zf_launch *l, const zf_array *x, zf_shape shape, int axis,
                          int64_t x_start, int64_t start)
{
    zfi_box b = {.walk = {.rank = shape.rank}};
    int64_t size = (int64_t)zf_dtype_size(l->out.dtype);
    memcpy(b.walk.dims, shape.dims, sizeof b.walk.dims);
    zfi_strides_of(&x->shape, b.walk.strides[0]);
    zfi_strides_of(&l->out.shape, b.walk.strides[1]);
    if (!zf_shape_count(shape)) return b;
    b.from = (const char *)x->data + x_start * b.walk.strides[0][axis] * size;
    b.to = (char *)l->out.data + start * b.walk.strides[1][axis] * size;
    return b;
}

static zf_status zfi_cpu_reshape(const zf_launch *l)
{
    size_t bytes = (size_t)zfi_count(&l->out) * zf_dtype_size(l->out.dtype);
    if (bytes && l->out.data != l->args[0].data) memcpy(l->out.data, l->args[0].data, bytes);
    return ZF_OK;
}

static zf_status zfi_cpu_slice(const zf_launch *l)
{
    zfi_box b = zfi_box_at(l, &l->args[0], l->out.shape, (int)ZF_INT(l, slice, axis),
                           ZF_INT(l, slice, start), 0);
    if (b.from != b.to) zfi_box_copy(l, b); /* equal where the plan made it a view */
    return ZF_OK;
}

static zf_status zfi_cpu_pad(const zf_launch *l)
{
    static const char zero[8];
    int axis = (int)ZF_INT(l, pad, axis);
    int64_t before = ZF_INT(l, pad, before), after = ZF_INT(l, pad, after),
            n = l->args[0].shape.dims[axis];
    zf_shape edge = l->out.shape;
    zfi_box_copy(l, zfi_box_at(l, &l->args[0], l->args[0].shape, axis, 0, before));
    for (int side = 0; side < 2; side++) {
        zfi_box b;
        edge.dims[axis] = side ? after : before;
        b = zfi_box_at(l, &l->args[0], edge, axis, 0, side ? before + n : 0);
        b.from = zero;
        memset(b.walk.strides[0], 0, sizeof b.walk.strides[0]);
        zfi_box_copy(l, b);
    }
    return ZF_OK;
}

static zf_status zfi_cpu_transpose(const zf_launch *l)
{
    const int64_t *order = ZF_LIST(l, transpose, order).data;
    int64_t steps[ZF_MAX_RANK];
    zfi_box b = {.walk = {.rank = l->out.shape.rank}, .from = l->args[0].data, .to = l->out.data};
    memcpy(b.walk.dims, l->out.shape.dims, sizeof b.walk.dims);
    zfi_strides_of(&l->args[0].shape, steps);
    zfi_strides_of(&l->out.shape, b.walk.strides[1]);
    for (int axis = 0; axis < b.walk.rank; axis++) b.walk.strides[0][axis] = steps[order[axis]];
    zfi_box_copy(l, b);
    return ZF_OK;
}

static zf_status zfi_cpu_concat(const zf_launch *l)
{
    int axis = (int)ZF_INT(l, concat, axis);
    int64_t start = 0;
    for (int32_t k = 0; k < l->arg_count; k++) {
        zfi_box_copy(l, zfi_box_at(l, &l->args[k], l->args[k].shape, axis, 0, start));
        start += l->args[k].shape.dims[axis];
    }
    return ZF_OK;
}

static zf_status zfi_cpu_broadcast(const zf_launch *l)
{
    zfi_box b = {.walk = {.rank = l->out.shape.rank}, .from = l->args[0].data, .to = l->out.data};
    memcpy(b.walk.dims, l->out.shape.dims, sizeof b.walk.dims);
    zfi_broadcast_strides(&l->args[0].shape, &l->out.shape, b.walk.strides[0]);
    zfi_strides_of(&l->out.shape, b.walk.strides[1]);
    zfi_box_copy(l, b);
    return ZF_OK;
}

/* ----------------------------------------------------------------------------- simplify */

/* A reshape of a reshape is one reshape; a reshape to its operand's shape is its operand. */
static int32_t zfi_same_reshape(zf_graph *g, int32_t id, bool written)
{
    zfi_node *node = &g->nodes[id];
    const zfi_node *x = &g->nodes[node->args[0]];
    if (x->op == ZF_OP_reshape && !(written && zfi_has(g, x->args[0], ZF_OP_WRITABLE)))
        node->args[0] = x->args[0], x = &g->nodes[node->args[0]];
    return zfi_same_shape(&x->shape, &node->shape) && zfi_same_spread(&x->spread, &node->spread)
               ? node->args[0]
               : id;
}

/* Once gradients are there, it is its operand. */
static int32_t zfi_same_stop_gradient(zf_graph *g, int32_t id, bool written)
{
    const int32_t x = g->nodes[id].args[0];
    if (!(g->stages & ZFI_STAGE_GRADIENTS) || (written && zfi_has(g, x, ZF_OP_WRITABLE))) return id;
    return x;
}

/* A transpose that undoes another one is the operand of that. */
static int32_t zfi_same_transpose(zf_graph *g, int32_t id, bool written)
{
    const zfi_node *node = &g->nodes[id], *x = &g->nodes[node->args[0]];
    const int64_t *outer = ZF_LIST(node, transpose, order).data, *inner;
    (void)written;
    if (x->op != ZF_OP_transpose) return id;
    inner = ZF_LIST(x, transpose, order).data;
    for (int32_t axis = 0; axis < node->shape.rank; axis++)
        if (inner[outer[axis]] != axis) return id;
    return x->args[0];
}

/* -------------------------------------------------------------------------------- views */

static int32_t zfi_views_reshape(const zf_graph *g, const zfi_node *node, int64_t *at)
{
    (void)g, (void)node, (void)at;
    return 0;
}

/* A slice of the first dimension that is not 1 is a view. */
static int32_t zfi_views_slice(const zf_graph *g, const zfi_node *node, int64_t *at)
{
    const zfi_node *x = &g->nodes[node->args[0]];
    int axis = (int)ZF_INT(node, slice, axis);
    if (zfi_span(&x->shape, 0, axis) != 1) return -1;
    *at = ZF_INT(node, slice, start) * zfi_span(&x->shape, axis + 1, x->shape.rank) *
          (int64_t)zf_dtype_size(x->dtype);
    return 0;
}

/* ------------------------------------------------------------------------------- records */

ZFI_SAME_ATTRIBUTE(broadcast, reshape, shape)
ZFI_OPERATOR(reshape, .infer = zfi_infer_reshape, .grad = zfi_grad_reshape, .cpu = zfi_cpu_reshape,
             .views = zfi_views_reshape, .same = zfi_same_reshape, .cut = zfi_cut_reshape, .ranks = ZFI_RANKS_VIEW,
             .parts = ZFI_PARTS_MOVED, .traits = ZF_OP_VIEW)
ZFI_OPERATOR(stop_gradient, .infer = zfi_infer_itself, .grad = zfi_grad_none,
             .cpu = zfi_cpu_reshape, .views = zfi_views_reshape, .same = zfi_same_stop_gradient, .cuts = "... -> ...",
             .ranks = ZFI_RANKS_VIEW, .parts = ZFI_PARTS_MOVED, .traits = ZF_OP_VIEW)
ZFI_OPERATOR(slice, .infer = zfi_infer_slice, .grad = zfi_grad_slice, .cpu = zfi_cpu_slice,
             .views = zfi_views_slice, .cut = zfi_cut_along, .linear = ZFI_LINEAR_TOGETHER,
             .traits = ZF_OP_VIEW)
ZFI_OPERATOR(pad, .infer = zfi_infer_pad, .grad = zfi_grad_pad, .cpu = zfi_cpu_pad,
             .cut = zfi_cut_along, .linear = ZFI_LINEAR_TOGETHER, .traits = ZF_OP_READS_HALF)
ZFI_OPERATOR(transpose, .infer = zfi_infer_transpose, .grad = zfi_grad_transpose,
             .cpu = zfi_cpu_transpose, .same = zfi_same_transpose, .cut = zfi_cut_transpose,
             .parts = ZFI_PARTS_MOVED, .traits = ZF_OP_READS_HALF)
ZFI_OPERATOR(concat, .infer = zfi_infer_concat, .grad = zfi_grad_concat, .cpu = zfi_cpu_concat,
             .cut = zfi_cut_along, .linear = ZFI_LINEAR_TOGETHER, .traits = ZF_OP_READS_HALF)
ZFI_OPERATOR(broadcast, .infer = zfi_infer_broadcast, .grad = zfi_grad_broadcast,
             .cpu = zfi_cpu_broadcast, .cut = zfi_cut_broadcast,
             .parts = ZFI_PARTS_MOVED, .traits = ZF_OP_READS_HALF)
