/* Shape: reshape slice pad transpose concat broadcast, which move elements as bits, and sum_to,
 * which adds them. (bucket.cu has view and shard.)
 *
 * Contiguous runs move 16 bytes at a time where both ends are aligned. A box with strides moves the
 * widest piece of its last dimension of which all steps are multiples. Where the last dimensions of
 * both ends differ, tiles of 32 by 32 go through shared memory, so that reads and writes use whole
 * cache lines:
 *
 *     from  | a b c |    tile  | a b c |    to  | a d |
 *           | d e f |          | d e f |        | b e |      reads rows of `from`, writes
 *                                               | c f |      columns of the tile
 *
 * The order of additions (sum_to, and sum in reduce.cu) depends on shapes and dtype alone. Columns
 * are summed by eight warps, each of which has every eighth row of a chunk. Rows are summed by the
 * threads of a warp or a block, 16 bytes at a time each. The same kernel then adds the sums of
 * chunks. */

/* ------------------------------------------------------------------------ runs of bytes */

enum { ZFD_MOVES = 64 };

/* Runs that are moved in one launch: to[0..bytes) = from[0..bytes), or zeros where from is NULL. */
typedef struct zfd_moves {
    int count;
    struct zfd_moved_run {
        const char *from;
        char *to;
        int64_t bytes;
    } at[ZFD_MOVES];
} zfd_moves;

template <class T>
__device__ __forceinline__ void zfd_move_as(char *to, const char *from, int64_t bytes)
{
    int64_t count = bytes / (int64_t)sizeof(T), start = count * (int64_t)sizeof(T);
    int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x,
            step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = first; i < count; i += step)
        reinterpret_cast<T *>(to)[i] = from ? reinterpret_cast<const T *>(from)[i] : T();
    for (int64_t i = start + first; i < bytes; i += step) to[i] = from ? from[i] : 0;
}

/* Block row y moves run y. */
static __global__ void zfd_moves_kernel(zfd_moves m)
{
    const zfd_moves::zfd_moved_run r = m.at[blockIdx.y];
    uintptr_t lies = reinterpret_cast<uintptr_t>(r.from) | reinterpret_cast<uintptr_t>(r.to);
    if (lies % 16 == 0) zfd_move_as<uint4>(r.to, r.from, r.bytes);
    else if (lies % 4 == 0) zfd_move_as<uint32_t>(r.to, r.from, r.bytes);
    else if (lies % 2 == 0) zfd_move_as<uint16_t>(r.to, r.from, r.bytes);
    else zfd_move_as<uint8_t>(r.to, r.from, r.bytes);
}

/* Launches the runs added so far. */
static void zfd_moves_run(const zf_launch *l, zfd_moves *m)
{
    int64_t most = 0;
    for (int k = 0; k < m->count; k++)
        if (m->at[k].bytes > most) most = m->at[k].bytes;
    if (m->count)
        ZFD_LAUNCH(zfd_moves_kernel,
                   dim3(zfd_grid(l, zfd_div_up(most, 16 * ZFD_THREADS)), (unsigned)m->count),
                   ZFD_THREADS, 0, zfd_stream(l), *m);
    m->count = 0;
}

/* Adds a run; nothing where both addresses are equal. */
static void zfd_moves_add(const zf_launch *l, zfd_moves *m, void *to, const void *from,
                          int64_t bytes)
{
    zfd_moves::zfd_moved_run r = {static_cast<const char *>(from), static_cast<char *>(to), bytes};
    if (to == from || bytes <= 0) return;
    if (m->count == ZFD_MOVES) zfd_moves_run(l, m);
    m->at[m->count++] = r;
}

/* to[0..bytes) = from[0..bytes), or zeros where from is NULL. */
static zf_status zfd_move_bytes(const zf_launch *l, void *to, const void *from, int64_t bytes)
{
    zfd_moves m;
    m.count = 0;
    zfd_moves_add(l, &m, to, from, bytes);
    zfd_moves_run(l, &m);
    return zfd_launched(l);
}

/* ------------------------------------------------------------------------------- boxes */

/* Elements to copy. walk.strides[0] are the steps in `from`, walk.strides[1] those in `to`.
 * Elements outside [low, high) of the last dimension become 0 and are not in `from`. */
typedef struct zfd_box {
    zfd_walk walk;
    const char *from;
    char *to;
    int64_t size; /* bytes of an element */
    int64_t count, low, high;
} zfd_box;

/* Copies each element N times; steps in `to` are in units of N elements. */
template <class T, int N> __global__ void zfd_box_kernel(zfd_box b)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < b.count;
         i += (int64_t)gridDim.x * blockDim.x) {
        int64_t at[2], last = zfd_walk_to(b.walk, i, at);
        zfd_pack<T, N> y;
        T x = T();
        if (last >= b.low && last < b.high) x = reinterpret_cast<const T *>(b.from)[at[0] - b.low];
#pragma unroll
        for (int k = 0; k < N; k++) y.at[k] = x;
        reinterpret_cast<zfd_pack<T, N> *>(b.to)[at[1]] = y;
    }
}

/* Whether all pieces of `bytes` bytes of the last dimension are aligned in `to`, and with `both` in
 * `from` too. */
static bool zfd_box_fits(const zfd_box *b, int64_t bytes, bool both)
{
    const zfd_walk *w = &b->walk;
    int last = w->rank - 1;
    uint64_t all = reinterpret_cast<uintptr_t>(b->to) | (uint64_t)(w->dims[last] * b->size);
    if (both)
        all |= reinterpret_cast<uintptr_t>(b->from) | (uint64_t)(b->low * b->size) |
               (uint64_t)(b->high * b->size);
    for (int axis = 0; axis < last; axis++) {
        all |= (uint64_t)(w->strides[1][axis] * b->size);
        if (both) all |= (uint64_t)(w->strides[0][axis] * b->size);
    }
    return all % (uint64_t)bytes == 0;
}

/* Counts the last dimension, and the steps in `to` or with `both` in both arrays, in pieces of n
 * elements. */
static void zfd_box_gather(zfd_box *b, int64_t n, bool both)
{
    zfd_walk *w = &b->walk;
    int last = w->rank - 1;
    w->dims[last] /= n;
    for (int axis = 0; axis < last; axis++) {
        w->strides[1][axis] /= n;
        if (both) w->strides[0][axis] /= n;
    }
    b->high /= n;
    if (both) b->low /= n, b->size *= n;
}

enum { ZFD_BOX_TILE = 32, ZFD_BOX_ROWS = 8 };

/* The last axis has step 1 in `to`, the one before it step 1 in `from`. A block moves one tile
 * after the other. */
template <class T> __global__ void zfd_tile_kernel(zfd_box b, zfd_divisor across, zfd_divisor down)
{
    ZFD_SHARED(T, tile); /* [32][33]: columns are in different banks */
    const T *from = reinterpret_cast<const T *>(b.from);
    T *to = reinterpret_cast<T *>(b.to);
    int row = b.walk.rank - 2, column = b.walk.rank - 1;
    int64_t rows = b.walk.dims[row], columns = b.walk.dims[column];
    int64_t from_step = b.walk.strides[0][column], to_step = b.walk.strides[1][row];
    int x = (int)threadIdx.x % ZFD_BOX_TILE, y = (int)threadIdx.x / ZFD_BOX_TILE;
    for (int64_t n = blockIdx.x; n < b.count; n += gridDim.x) {
        int64_t band = zfd_divide(n, across), box = zfd_divide(band, down), at[2];
        int64_t c = (n - band * across.by) * ZFD_BOX_TILE,
                r = (band - box * down.by) * ZFD_BOX_TILE;
        zfd_walk_along(b.walk, row, box, at);
        for (int k = y; k < ZFD_BOX_TILE; k += ZFD_BOX_ROWS)
            if (c + k < columns && r + x < rows)
                tile[k * (ZFD_BOX_TILE + 1) + x] = from[at[0] + (c + k) * from_step + r + x];
        __syncthreads();
        for (int k = y; k < ZFD_BOX_TILE; k += ZFD_BOX_ROWS)
            if (r + k < rows && c + x < columns)
                to[at[1] + (r + k) * to_step + c + x] = tile[x * (ZFD_BOX_TILE + 1) + k];
        __syncthreads();
    }
}

/* Moves the axis with step 1 in `from` to the last place but one; false when there is none, or when
 * it is the last already. */
static bool zfd_box_turn(zfd_walk *w)
{
    int last = w->rank - 1, axis = last - 1;
    zfd_walk old = *w;
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

template <class T, int N> static void zfd_box_launch(const zf_launch *l, zfd_box *b)
{
    b->count = 1;
    for (int axis = 0; axis < b->walk.rank; axis++) b->count *= b->walk.dims[axis];
    zfd_walk_ready(&b->walk);
    ZFD_LAUNCH((zfd_box_kernel<T, N>), zfd_grid(l, zfd_div_up(b->count, ZFD_THREADS)), ZFD_THREADS,
               0, zfd_stream(l), *b);
}

template <class T> static void zfd_tile_launch(const zf_launch *l, zfd_box *b)
{
    const zfd_walk *w = &b->walk;
    int64_t across = zfd_div_up(w->dims[w->rank - 1], ZFD_BOX_TILE),
            down = zfd_div_up(w->dims[w->rank - 2], ZFD_BOX_TILE), boxes = 1;
    for (int axis = 0; axis < w->rank - 2; axis++) boxes *= w->dims[axis];
    b->count = boxes * down * across;
    zfd_walk_ready(&b->walk);
    ZFD_LAUNCH(zfd_tile_kernel<T>, zfd_grid(l, b->count), ZFD_BOX_TILE * ZFD_BOX_ROWS,
               ZFD_BOX_TILE * (ZFD_BOX_TILE + 1) * sizeof(T), zfd_stream(l), *b,
               zfd_divisor_of(across, b->count), zfd_divisor_of(down, b->count));
}

/* Copies the box. `window`: low and high are set. */
static void zfd_box_copy(const zf_launch *l, zfd_box b, bool window)
{
    zfd_walk *w = &b.walk;
    int64_t unit = 16, count = 1;
    int last;
    w->arrays = 2;
    b.size = (int64_t)zf_dtype_size(l->out.dtype);
    for (int axis = 0; axis < w->rank; axis++) count *= w->dims[axis];
    if (!count) return;
    if (!window) zfd_walk_merge(w);
    last = w->rank - 1;
    if (!window) b.low = 0, b.high = w->dims[last];
    if (w->strides[0][last] == 1 && w->strides[1][last] == 1) {
        if (last == 0 && !window) {
            zfd_move_bytes(l, b.to, b.from, count * b.size);
            return;
        }
        while (unit > b.size && !zfd_box_fits(&b, unit, true)) unit /= 2;
        zfd_box_gather(&b, unit / b.size, true);
    } else if (w->strides[0][last] == 0 && w->strides[1][last] == 1 &&
               zfd_box_fits(&b, 16, false)) {
        zfd_box_gather(&b, 16 / b.size, false);
        switch (b.size) {
        case 1: zfd_box_launch<uint8_t, 16>(l, &b); return;
        case 2: zfd_box_launch<uint16_t, 8>(l, &b); return;
        case 4: zfd_box_launch<uint32_t, 4>(l, &b); return;
        default: zfd_box_launch<uint64_t, 2>(l, &b); return;
        }
    } else if (zfd_box_turn(w)) {
        switch (b.size) {
        case 1: zfd_tile_launch<uint8_t>(l, &b); return;
        case 2: zfd_tile_launch<uint16_t>(l, &b); return;
        case 4: zfd_tile_launch<uint32_t>(l, &b); return;
        default: zfd_tile_launch<uint64_t>(l, &b); return;
        }
    }
    switch (b.size) {
    case 1: zfd_box_launch<uint8_t, 1>(l, &b); break;
    case 2: zfd_box_launch<uint16_t, 1>(l, &b); break;
    case 4: zfd_box_launch<uint32_t, 1>(l, &b); break;
    case 8: zfd_box_launch<uint64_t, 1>(l, &b); break;
    default: zfd_box_launch<uint4, 1>(l, &b); break;
    }
}

/* The product of dims[from..to). */
static int64_t zfd_span(const zf_shape *shape, int from, int to)
{
    int64_t count = 1;
    for (int axis = from; axis < to; axis++) count *= shape->dims[axis];
    return count;
}

/* The strides of a row-major array of this shape. */
static void zfd_strides_of(const zf_shape *shape, int64_t strides[ZF_MAX_RANK])
{
    int64_t step = 1;
    for (int axis = shape->rank - 1; axis >= 0; step *= shape->dims[axis--]) strides[axis] = step;
}

/* A box of `rows` rows of `width` elements, which are from_step and to_step elements apart. */
static zfd_box zfd_box_rows(const zf_launch *l, int64_t rows, int64_t width, const void *from,
                            int64_t from_at, int64_t from_step, void *to, int64_t to_at,
                            int64_t to_step)
{
    int64_t size = (int64_t)zf_dtype_size(l->out.dtype);
    zfd_box b;
    memset(&b, 0, sizeof b);
    b.walk.rank = 2;
    b.walk.dims[0] = rows, b.walk.strides[0][0] = from_step, b.walk.strides[1][0] = to_step;
    b.walk.dims[1] = width, b.walk.strides[0][1] = b.walk.strides[1][1] = 1;
    b.from = static_cast<const char *>(from) + from_at * size;
    b.to = static_cast<char *>(to) + to_at * size;
    return b;
}

static zf_status zfd_cuda_reshape(const zf_launch *l)
{
    return zfd_move_bytes(l, l->out.data, l->args[0].data, (int64_t)zfd_bytes(&l->out));
}

/* The following kernels take x[outer..., axis, inner...] as rows of axis times inner. */
static zf_status zfd_cuda_slice(const zf_launch *l)
{
    const zf_shape *x = &l->args[0].shape;
    int axis = (int)ZF_INT(l, slice, axis);
    int64_t inner = zfd_span(x, axis + 1, x->rank), width = x->dims[axis] * inner,
            start = ZF_INT(l, slice, start) * inner, wide = l->out.shape.dims[axis] * inner;
    zfd_box b;
    if (!zfd_count(&l->out)) return ZF_OK;
    b = zfd_box_rows(l, zfd_span(x, 0, axis), wide, l->args[0].data, start, width, l->out.data, 0,
                     wide);
    if (b.from != b.to) zfd_box_copy(l, b, false); /* equal where the plan made it a view */
    return zfd_launched(l);
}

static zf_status zfd_cuda_pad(const zf_launch *l)
{
    const zf_shape *x = &l->args[0].shape;
    int axis = (int)ZF_INT(l, pad, axis);
    int64_t inner = zfd_span(x, axis + 1, x->rank), width = x->dims[axis] * inner,
            wide = l->out.shape.dims[axis] * inner;
    zfd_box b = zfd_box_rows(l, zfd_span(x, 0, axis), wide, l->args[0].data, 0, width, l->out.data,
                             0, wide);
    b.low = ZF_INT(l, pad, before) * inner, b.high = b.low + width;
    zfd_box_copy(l, b, true);
    return zfd_launched(l);
}

static zf_status zfd_cuda_transpose(const zf_launch *l)
{
    const int64_t *order = static_cast<const int64_t *>(ZF_LIST(l, transpose, order).data);
    int64_t steps[ZF_MAX_RANK];
    zfd_box b;
    memset(&b, 0, sizeof b);
    b.walk.rank = l->out.shape.rank;
    b.from = static_cast<const char *>(l->args[0].data), b.to = static_cast<char *>(l->out.data);
    memcpy(b.walk.dims, l->out.shape.dims, sizeof b.walk.dims);
    zfd_strides_of(&l->args[0].shape, steps);
    zfd_strides_of(&l->out.shape, b.walk.strides[1]);
    for (int axis = 0; axis < b.walk.rank; axis++) b.walk.strides[0][axis] = steps[order[axis]];
    zfd_box_copy(l, b, false);
    return zfd_launched(l);
}

static zf_status zfd_cuda_concat(const zf_launch *l)
{
    const zf_shape *out = &l->out.shape;
    int axis = (int)ZF_INT(l, concat, axis);
    int64_t inner = zfd_span(out, axis + 1, out->rank), wide = out->dims[axis] * inner, start = 0;
    int64_t rows = zfd_span(out, 0, axis), size = (int64_t)zf_dtype_size(l->out.dtype);
    zfd_moves m;
    m.count = 0;
    for (int32_t k = 0; k < l->arg_count; k++) {
        int64_t width = l->args[k].shape.dims[axis] * inner;
        if (rows == 1)
            zfd_moves_add(l, &m, static_cast<char *>(l->out.data) + start * size, l->args[k].data,
                          width * size);
        else
            zfd_box_copy(
                l,
                zfd_box_rows(l, rows, width, l->args[k].data, 0, width, l->out.data, start, wide),
                false);
        start += width;
    }
    zfd_moves_run(l, &m);
    return zfd_launched(l);
}

static zf_status zfd_cuda_broadcast(const zf_launch *l)
{
    zfd_box b;
    memset(&b, 0, sizeof b);
    b.walk.rank = l->out.shape.rank;
    b.from = static_cast<const char *>(l->args[0].data), b.to = static_cast<char *>(l->out.data);
    memcpy(b.walk.dims, l->out.shape.dims, sizeof b.walk.dims);
    zfd_broadcast_strides(&l->args[0].shape, &l->out.shape, b.walk.strides[0]);
    zfd_strides_of(&l->out.shape, b.walk.strides[1]);
    zfd_box_copy(l, b, false);
    return zfd_launched(l);
}

/* -------------------------------------------------------------------------------- sums */

/* A sum_to or sum. Each dimension of x is kept or summed, in any order:
 *
 *     out[kept...,c] = sum over terms... of x[kept...,terms...,c]
 *
 * `columns` is the number of c: neighbours both in x and in out; 1 where x's last dimension is
 * summed. Terms are split into chunks. The sums of several chunks are first stored one after the
 * other. */
typedef struct zfd_sums {
    zfd_walk kept, terms; /* steps in x */
    int64_t kept_count, term_count, columns;
    int64_t chunk; /* terms of a chunk */
    int64_t strips;
    zfd_divisor chunks, by_strips;
    bool rows; /* x's last dimension is summed */
    bool wide; /* 16 bytes of it, or of columns, can be read at once */
} zfd_sums;

enum {
    ZFD_SUM_WARPS = ZFD_THREADS / ZFD_WARP,
    ZFD_SUM_TASKS = 1024, /* blocks to aim for, where there is enough work */
    ZFD_SUM_AHEAD = 4,    /* rows that a thread reads at once */
    ZFD_SUM_LEAST = 64,   /* terms of a chunk of columns */
    ZFD_SUM_ROW = 4096,   /* terms of a chunk of rows */
    ZFD_SUM_BY_WARP = 2048
};

/* Puts a dimension before those that a walk has. */
static void zfd_walk_push(zfd_walk *w, int64_t *count, int64_t n, int64_t step)
{
    for (int axis = w->rank++; axis > 0; axis--) {
        w->dims[axis] = w->dims[axis - 1];
        w->strides[0][axis] = w->strides[0][axis - 1];
    }
    w->dims[0] = n, w->strides[0][0] = step;
    *count *= n;
}

/* Splits the terms into chunks; `pack` elements are 16 bytes. */
static void zfd_sums_cut(zfd_sums *s, int pack)
{
    int64_t tasks, most, chunks;
    s->strips = s->rows ? 1 : zfd_div_up(s->columns, ZFD_WARP * pack);
    tasks = s->kept_count * s->strips;
    most = tasks < ZFD_SUM_TASKS ? ZFD_SUM_TASKS / (tasks ? tasks : 1) : 1;
    chunks = zfd_div_up(s->term_count, s->rows ? ZFD_SUM_ROW : ZFD_SUM_LEAST);
    if (chunks > most) chunks = most;
    if (chunks < 1) chunks = 1;
    s->chunk = zfd_div_up(zfd_div_up(s->term_count, chunks), pack) * pack;
    if (s->chunk < pack) s->chunk = pack;
    chunks = s->term_count ? zfd_div_up(s->term_count, s->chunk) : 1;
    s->chunks = zfd_divisor_of(chunks, tasks * chunks);
    s->by_strips = zfd_divisor_of(s->strips ? s->strips : 1, tasks * chunks);
    zfd_walk_ready(&s->kept);
    zfd_walk_ready(&s->terms);
}

static zfd_sums zfd_sums_of(const zf_launch *l)
{
    const zf_shape *x = &l->args[0].shape, *out = &l->out.shape;
    int64_t step = 1;
    bool inner = true;
    zfd_sums s;
    memset(&s, 0, sizeof s);
    s.kept_count = s.term_count = s.columns = 1;
    for (int axis = x->rank - 1; axis >= 0;) {
        int64_t n = 1, from = step;
        bool keep = false, group = true;
        /* The next group of dimensions: n elements, `from` apart. */
        for (; axis >= 0; axis--) {
            bool kept = l->op == ZF_OP_sum ? axis != ZF_INT(l, sum, axis)
                                           : axis >= x->rank - out->rank &&
                                                 out->dims[axis - x->rank + out->rank] != 1;
            if (x->dims[axis] == 1) continue;
            if (!group && kept != keep) break;
            group = false, keep = kept;
            n *= x->dims[axis], step *= x->dims[axis];
        }
        if (group) break;
        if (keep && inner) s.columns = n;
        else if (keep) zfd_walk_push(&s.kept, &s.kept_count, n, from);
        else zfd_walk_push(&s.terms, &s.term_count, n, from);
        if (inner) s.rows = !keep;
        inner = false;
    }
    if (!s.kept.rank) s.kept.rank = 1, s.kept.dims[0] = 1;
    if (!s.terms.rank) s.terms.rank = 1, s.terms.dims[0] = 1;
    if (zf_dtype_size(l->args[0].dtype))
        zfd_sums_cut(&s, 16 / (int)zf_dtype_size(l->args[0].dtype));
    return s;
}

/* The sums of x [rows, n] over its rows, as sum_to makes them. */
static zfd_sums zfd_sums_over_rows(int64_t rows, int64_t n, zf_dtype dtype)
{
    zfd_sums s;
    memset(&s, 0, sizeof s);
    s.kept_count = 1, s.term_count = rows, s.columns = n;
    s.kept.rank = s.terms.rank = 1;
    s.kept.dims[0] = 1, s.terms.dims[0] = rows, s.terms.strides[0][0] = n;
    zfd_sums_cut(&s, 16 / (int)zf_dtype_size(dtype));
    return s;
}

/* A second sum, which adds the sums of the chunks: rows of rows, or columns of columns. */
static zfd_sums zfd_sums_of_chunks(const zfd_sums *of)
{
    int64_t chunks = of->chunks.by, outer = of->kept_count;
    zfd_sums s;
    memset(&s, 0, sizeof s);
    s.rows = of->rows;
    s.kept.rank = s.terms.rank = 1;
    s.term_count = s.terms.dims[0] = chunks;
    s.kept_count = s.kept.dims[0] = of->rows ? outer : 1;
    s.columns = of->rows ? 1 : outer * of->columns;
    s.kept.strides[0][0] = of->rows ? chunks : 0;
    s.terms.strides[0][0] = of->rows ? 1 : s.columns;
    zfd_sums_cut(&s, 4);
    /* the few chunks are one chunk */
    s.chunk = zfd_div_up(chunks, 4) * 4, s.chunks = zfd_divisor_of(1, 1);
    return s;
}

/* Sets element i of an array of floats. */
__device__ __forceinline__ void zfd_put_float(void *out, zf_dtype dtype, int64_t i, float x)
{
    if (dtype == ZF_F32) static_cast<float *>(out)[i] = x;
    else if (dtype == ZF_BF16) static_cast<zfd_bf16 *>(out)[i] = zfd_from_f32<zfd_bf16>(x);
    else static_cast<zfd_f16 *>(out)[i] = zfd_from_f32<zfd_f16>(x);
}

/* out[kept,chunk] by `lanes` threads each: a warp or a block. */
template <class T>
__global__ void zfd_sum_rows_kernel(zfd_sums s, int lanes, void *out, zf_dtype to, const T *x)
{
    const int N = zfd_wide<T>::count;
    ZFD_SHARED(float, shared);
    int lane = (int)threadIdx.x % lanes, in_block = (int)blockDim.x / lanes;
    for (int64_t task = (int64_t)blockIdx.x * in_block + (int)threadIdx.x / lanes;
         task < s.kept_count * s.chunks.by; task += (int64_t)gridDim.x * in_block) {
        int64_t kept = zfd_divide(task, s.chunks), first = (task - kept * s.chunks.by) * s.chunk;
        int64_t last = s.term_count - first < s.chunk ? s.term_count : first + s.chunk, row[1];
        float sum = 0;
        zfd_walk_to(s.kept, kept, row);
        for (int64_t t = first + lane * N; t < last; t += lanes * N) {
            int64_t at[1];
            if (s.wide) {
                float y[N];
                zfd_walk_to(s.terms, t, at);
                zfd_fetch(y, x + row[0] + at[0], true);
#pragma unroll
                for (int k = 0; k < N; k++) sum += y[k];
            } else {
                for (int k = 0; k < N && t + k < last; k++) {
                    zfd_walk_to(s.terms, t + k, at);
                    sum += zfd_to_f32(x[row[0] + at[0]]);
                }
            }
        }
        sum = lanes == ZFD_WARP ? zfd_warp_sum(sum) : zfd_block_sum(sum, shared);
        if (lane == 0) zfd_put_float(out, to, task, sum);
    }
}

/* Where a sum over rows has its terms from. `held` is what it has read of N of them. */
template <class T> struct zfd_sum_array {
    typedef T element;
    template <int N> using held = zfd_pack<T, N>;
    const T *x;

    template <int N> __device__ __forceinline__ void fetch(held<N> &h, int64_t at) const
    {
        h = *reinterpret_cast<const held<N> *>(x + at);
    }
    template <int N>
    __device__ __forceinline__ void terms(float (&y)[N], const held<N> &h, int64_t) const
    {
        zfd_unpack(y, h);
    }
};

/* Not contracted with a product of which a term consists: sums are of rounded terms. */
template <int N, class S>
__device__ __forceinline__ void zfd_sum_more(float (&sum)[N], const S &from,
                                             const typename S::template held<N> &h, int64_t at)
{
    float y[N];
    from.template terms<N>(y, h, at);
#pragma unroll
    for (int k = 0; k < N; k++) sum[k] = __fadd_rn(sum[k], y[k]);
}

/* out[chunk,kept,c]; each block has a strip of 32 N columns. A thread reads ZFD_SUM_AHEAD rows
 * before it adds them. */
template <class S>
__global__ void __launch_bounds__(ZFD_THREADS)
    zfd_sum_columns_kernel(zfd_sums s, void *out, zf_dtype to, const S source)
{
    const int N = zfd_wide<typename S::element>::count;
    ZFD_SHARED(float, shared); /* [warp][32 N] */
    int lane = (int)threadIdx.x % ZFD_WARP, warp = (int)threadIdx.x / ZFD_WARP;
    for (int64_t task = blockIdx.x; task < s.kept_count * s.strips * s.chunks.by;
         task += gridDim.x) {
        int64_t piece = zfd_divide(task, s.by_strips), kept = zfd_divide(piece, s.chunks);
        int64_t chunk = piece - kept * s.chunks.by,
                column = (task - piece * s.strips) * (ZFD_WARP * N);
        int64_t first = chunk * s.chunk, base[1], at[1];
        int64_t last = s.term_count - first < s.chunk ? s.term_count : first + s.chunk;
        float sum[N] = {0};
        zfd_walk_to(s.kept, kept, base);
        base[0] += column;
        if (s.wide && column + lane * N < s.columns) {
            int64_t t = first + warp, step = s.terms.strides[0][0], from = base[0] + lane * N;
            typename S::template held<N> h[ZFD_SUM_AHEAD];
            for (; s.terms.rank == 1 && t + (ZFD_SUM_AHEAD - 1) * ZFD_SUM_WARPS < last;
                 t += ZFD_SUM_AHEAD * ZFD_SUM_WARPS) {
#pragma unroll
                for (int k = 0; k < ZFD_SUM_AHEAD; k++)
                    source.template fetch<N>(h[k], from + (t + k * ZFD_SUM_WARPS) * step);
#pragma unroll
                for (int k = 0; k < ZFD_SUM_AHEAD; k++)
                    zfd_sum_more<N>(sum, source, h[k], from + (t + k * ZFD_SUM_WARPS) * step);
            }
            for (; t < last; t += ZFD_SUM_WARPS) {
                zfd_walk_to(s.terms, t, at);
                source.template fetch<N>(h[0], from + at[0]);
                zfd_sum_more<N>(sum, source, h[0], from + at[0]);
            }
        }
        for (int64_t t = first + warp; !s.wide && t < last; t += ZFD_SUM_WARPS) {
            zfd_walk_to(s.terms, t, at);
#pragma unroll
            for (int k = 0; k < N; k++)
                if (column + lane + k * ZFD_WARP < s.columns) {
                    const int64_t from = base[0] + at[0] + lane + k * ZFD_WARP;
                    typename S::template held<1> h;
                    float one[1] = {sum[k]};
                    source.template fetch<1>(h, from);
                    zfd_sum_more<1>(one, source, h, from);
                    sum[k] = one[0];
                }
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < N; k++)
            shared[warp * ZFD_WARP * N + (s.wide ? lane * N + k : lane + k * ZFD_WARP)] = sum[k];
        __syncthreads();
        for (int c = (int)threadIdx.x; c < ZFD_WARP * N && column + c < s.columns;
             c += (int)blockDim.x) {
            float all = 0;
#pragma unroll
            for (int w = 0; w < ZFD_SUM_WARPS; w++) all += shared[w * ZFD_WARP * N + c];
            zfd_put_float(out, to, (chunk * s.kept_count + kept) * s.columns + column + c, all);
        }
    }
}

/* s->wide says whether the source can read 16 bytes at once. */
template <class S>
static void zfd_sum_columns_launch(const zf_launch *l, const zfd_sums *s, void *out, zf_dtype to,
                                   const S &source)
{
    const int n = zfd_wide<typename S::element>::count;
    ZFD_LAUNCH(zfd_sum_columns_kernel<S>, zfd_grid(l, s->kept_count * s->strips * s->chunks.by),
               ZFD_THREADS, ZFD_THREADS * n * sizeof(float), zfd_stream(l), *s, out, to, source);
}

template <class T>
static void zfd_sums_launch(const zf_launch *l, zfd_sums *s, void *out, zf_dtype to, const T *x)
{
    const zfd_sum_array<T> source = {x};
    int64_t tasks = s->kept_count * s->strips * s->chunks.by;
    int lanes = s->chunk <= ZFD_SUM_BY_WARP ? ZFD_WARP : ZFD_THREADS;
    /* Every other step is a multiple of the last dimension, so if one row is aligned, all are. */
    s->wide = zfd_lies_well(s->rows ? s->terms.dims[s->terms.rank - 1] : s->columns, sizeof(T), x);
    if (s->rows)
        ZFD_LAUNCH(zfd_sum_rows_kernel<T>, zfd_grid(l, zfd_div_up(tasks * lanes, ZFD_THREADS)),
                   ZFD_THREADS, ZFD_WARP * sizeof(float), zfd_stream(l), *s, lanes, out, to, x);
    else zfd_sum_columns_launch(l, s, out, to, source);
}

/* The bytes of scratch for the sums of chunks. */
static size_t zfd_sums_bytes(const zfd_sums *s)
{
    const int64_t sums = s->chunks.by * s->kept_count * s->columns;
    return s->chunks.by > 1 ? (size_t)sums * sizeof(float) : 0;
}

/* Adds the sums of chunks, where there are several, which are in scratch. */
static void zfd_sums_end(const zf_launch *l, const zfd_sums *s, void *out, zf_dtype to)
{
    if (s->chunks.by <= 1) return;
    zfd_sums again = zfd_sums_of_chunks(s);
    zfd_sums_launch(l, &again, out, to, static_cast<const float *>(l->scratch));
}

/* sums = those of x [rows, n] over its rows, as sum_to makes them. */
template <class T>
static void zfd_sum_rows(const zf_launch *l, const zf_array *sums, const T *x, zf_dtype dtype,
                         int64_t rows)
{
    zfd_sums s = zfd_sums_over_rows(rows, zfd_count(sums), dtype);
    if (s.chunks.by == 1) zfd_sums_launch(l, &s, sums->data, sums->dtype, x);
    else zfd_sums_launch(l, &s, l->scratch, ZF_F32, x);
    zfd_sums_end(l, &s, sums->data, sums->dtype);
}

static size_t zfd_cuda_scratch_sum_to(const zf_launch *l)
{
    zfd_sums s = zfd_sums_of(l);
    return zfd_sums_bytes(&s);
}

/* Of integers; a thread adds the terms of one element. */
template <class T> __global__ void zfd_sum_integers_kernel(zfd_sums s, T *out, const T *x)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < s.kept_count * s.columns;
         i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t kept = i / s.columns;
        int64_t from[1], at[1];
        uint64_t sum = 0;
        zfd_walk_to(s.kept, kept, from);
        for (int64_t t = 0; t < s.term_count; t++) {
            zfd_walk_to(s.terms, t, at);
            sum += (uint64_t)x[from[0] + i - kept * s.columns + at[0]];
        }
        out[i] = (T)sum;
    }
}

template <class T> static zf_status zfd_sum_integers(const zf_launch *l, const zfd_sums *s)
{
    ZFD_LAUNCH(zfd_sum_integers_kernel<T>,
               zfd_grid(l, zfd_div_up(zfd_count(&l->out), ZFD_THREADS)), ZFD_THREADS, 0,
               zfd_stream(l), *s, static_cast<T *>(l->out.data),
               static_cast<const T *>(l->args[0].data));
    return zfd_launched(l);
}

static zf_status zfd_cuda_sum_to(const zf_launch *l)
{
    zfd_sums s = zfd_sums_of(l);
    if (!zfd_count(&l->out)) return ZF_OK;
    if (l->out.dtype == ZF_I32) return zfd_sum_integers<int32_t>(l, &s);
    if (l->out.dtype == ZF_I64) return zfd_sum_integers<int64_t>(l, &s);
    if (!s.term_count) return zfd_move_bytes(l, l->out.data, NULL, (int64_t)zfd_bytes(&l->out));
    ZFD_FLOATS(l, l->args[0].dtype, T, {
        const T *x = static_cast<const T *>(l->args[0].data);
        if (s.chunks.by == 1) zfd_sums_launch(l, &s, l->out.data, l->out.dtype, x);
        else zfd_sums_launch(l, &s, l->scratch, ZF_F32, x);
    })
    zfd_sums_end(l, &s, l->out.data, l->out.dtype);
    return zfd_launched(l);
}

ZFD_KERNEL(reshape, zfd_cuda_reshape, NULL)
ZFD_KERNEL(stop_gradient, zfd_cuda_reshape, NULL)
ZFD_KERNEL(gather_examples, zfd_cuda_reshape, NULL)
ZFD_KERNEL(scatter_examples, zfd_cuda_reshape, NULL)
ZFD_KERNEL(slice, zfd_cuda_slice, NULL)
ZFD_KERNEL(pad, zfd_cuda_pad, NULL)
ZFD_KERNEL(transpose, zfd_cuda_transpose, NULL)
ZFD_KERNEL(concat, zfd_cuda_concat, NULL)
ZFD_KERNEL(broadcast, zfd_cuda_broadcast, NULL)
ZFD_KERNEL(sum_to, zfd_cuda_sum_to, zfd_cuda_scratch_sum_to)
