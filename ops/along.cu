/* Along an axis: cumsum gather scatter_add top_k; and one_hot, which makes one.
 *
 * A line is the elements that differ along the axis alone. Lines of neighbours (inner = 1) of
 * cumsum and top_k have a block each, other lines a thread each. So sums have the order of the
 * axis, or of the threads of a block, whatever the device. Where lines are few, top_k first finds
 * candidates in pieces of them, and scatter_add sorts by the index; results are the same. */

/* x[o,n,i] */
typedef struct zfd_lines {
    int64_t count, n;
    zfd_divisor inner;
} zfd_lines;

static zfd_lines zfd_lines_of(const zf_shape *x, int64_t axis)
{
    const int64_t inner = zfd_span(x, (int)axis + 1, x->rank),
                  count = zfd_span(x, 0, (int)axis) * inner;
    zfd_lines s = {count, x->dims[axis], zfd_divisor_of(inner ? inner : 1, count)};
    return s;
}

/* The first element of a line. */
__device__ __forceinline__ int64_t zfd_line_start(const zfd_lines &s, int64_t line)
{
    const int64_t outer = zfd_divide(line, s.inner);
    return outer * s.n * s.inner.by + (line - outer * s.inner.by);
}

/* ------------------------------------------------------------------------------ cumsum */

/* S: in which sums are: double, or uint64_t of integers. */
template <class T, class S>
__global__ void zfd_cumsum_lines_kernel(zfd_lines s, bool reverse, T *out, const T *x)
{
    for (int64_t line = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; line < s.count;
         line += (int64_t)gridDim.x * blockDim.x) {
        const int64_t start = zfd_line_start(s, line);
        S sum = 0;
        for (int64_t n = 0; n < s.n; n++) {
            const int64_t e = start + (reverse ? s.n - 1 - n : n) * s.inner.by;
            sum += (S)zfd_widened(x[e]);
            out[e] = zfd_narrowed<T>::of((typename zfd_math<T>::type)sum);
        }
    }
}

template <class T, class S>
__global__ void zfd_cumsum_rows_kernel(int64_t rows, int64_t n, bool reverse, T *out, const T *x)
{
    ZFD_SHARED(S, sums); /* [thread] */
    const int t = (int)threadIdx.x;
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        S before = 0;
        for (int64_t first = 0; first < n; first += ZFD_THREADS) {
            const int64_t i = first + t, e = row * n + (reverse ? n - 1 - i : i);
            sums[t] = i < n ? (S)zfd_widened(x[e]) : (S)0;
            __syncthreads();
            for (int step = 1; step < ZFD_THREADS; step *= 2) {
                const S more = t >= step ? sums[t - step] : (S)0;
                __syncthreads();
                sums[t] += more;
                __syncthreads();
            }
            if (i < n) out[e] = zfd_narrowed<T>::of((typename zfd_math<T>::type)(before + sums[t]));
            before += sums[ZFD_THREADS - 1];
            __syncthreads();
        }
    }
}

template <class T, class S> static void zfd_cumsum_launch(const zf_launch *l)
{
    const zfd_lines s = zfd_lines_of(&l->out.shape, ZF_INT(l, cumsum, axis));
    const bool reverse = ZF_INT(l, cumsum, reverse) != 0;
    T *out = static_cast<T *>(l->out.data);
    const T *x = static_cast<const T *>(l->args[0].data);
    if (!zfd_count(&l->out)) return;
    if (s.inner.by == 1)
        ZFD_LAUNCH((zfd_cumsum_rows_kernel<T, S>), zfd_grid(l, s.count), ZFD_THREADS,
                   ZFD_THREADS * sizeof(S), zfd_stream(l), s.count, s.n, reverse, out, x);
    else
        ZFD_LAUNCH((zfd_cumsum_lines_kernel<T, S>), zfd_grid(l, zfd_div_up(s.count, ZFD_THREADS)),
                   ZFD_THREADS, 0, zfd_stream(l), s, reverse, out, x);
}

static zf_status zfd_cuda_cumsum(const zf_launch *l)
{
    switch (l->out.dtype) {
    case ZF_I32: zfd_cumsum_launch<int32_t, uint64_t>(l); break;
    case ZF_I64: zfd_cumsum_launch<int64_t, uint64_t>(l); break;
    default: ZFD_FLOATS(l, l->out.dtype, T, (zfd_cumsum_launch<T, double>(l));)
    }
    return zfd_launched(l);
}

/* ------------------------------------------------------------------ gather, scatter_add */

/* T: an unsigned type of the size of an element. */
template <class T>
__global__ void zfd_gather_along_kernel(int64_t count, zfd_divisor inner, zfd_divisor width,
                                        zfd_index index, T *out, const T *x)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t row = zfd_index_at(index.at, index.wide, i), outer = zfd_divide(i, width);
        const int64_t column = i - zfd_divide(i, inner) * inner.by;
        const bool good = zfd_index_good(index, row);
        if (!good) zfd_index_report(index, i, row);
        out[i] = good ? x[(outer * index.rows + row) * inner.by + column] : T();
    }
}

template <class T> static void zfd_gather_along(const zf_launch *l)
{
    const int64_t axis = ZF_INT(l, gather, axis), count = zfd_count(&l->out);
    const int64_t inner = zfd_span(&l->out.shape, (int)axis + 1, l->out.shape.rank);
    ZFD_LAUNCH(zfd_gather_along_kernel<T>, zfd_grid(l, zfd_div_up(count, ZFD_THREADS)), ZFD_THREADS,
               0, zfd_stream(l), count, zfd_divisor_of(inner, count),
               zfd_divisor_of(inner * l->out.shape.dims[axis], count),
               zfd_index_of(l, l->args[0].shape.dims[axis], 0, 0), static_cast<T *>(l->out.data),
               static_cast<const T *>(l->args[0].data));
}

static zf_status zfd_cuda_gather(const zf_launch *l)
{
    if (l->out.dtype == ZF_F64) return zfd_no_dtype(l, ZF_F64);
    if (!zfd_count(&l->out)) return ZF_OK;
    switch (zf_dtype_size(l->out.dtype)) {
    case 1: zfd_gather_along<uint8_t>(l); break;
    case 2: zfd_gather_along<uint16_t>(l); break;
    case 4: zfd_gather_along<uint32_t>(l); break;
    default: zfd_gather_along<uint64_t>(l); break;
    }
    return zfd_launched(l);
}

/* A thread adds what belongs to a line of the result, in f32: there, or of 16 bits in `sums`. */
template <class T>
__global__ void zfd_scatter_add_kernel(zfd_lines from, zfd_lines to, zfd_index index, T *out,
                                       float *sums, const T *x)
{
    for (int64_t line = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; line < to.count;
         line += (int64_t)gridDim.x * blockDim.x) {
        const int64_t a = zfd_line_start(from, line), b = zfd_line_start(to, line),
                      step = to.inner.by;
        for (int64_t r = 0; r < to.n; r++) sums[b + r * step] = 0;
        for (int64_t n = 0; n < from.n; n++) {
            const int64_t e = a + n * step, row = zfd_index_at(index.at, index.wide, e);
            if (zfd_index_good(index, row)) sums[b + row * step] += zfd_to_f32(x[e]);
            else zfd_index_report(index, e, row);
        }
        for (int64_t r = 0; r < to.n && sizeof(T) < sizeof(float); r++)
            out[b + r * step] = zfd_narrowed<T>::of(sums[b + r * step]);
    }
}

/* Few long lines. Elements are sorted by where they go, and a thread adds what goes to one place,
 * in the order of the axis, as above. */
typedef struct zfd_scatter_sorted {
    zfd_lines from, to;
    uint32_t *keys[2], *positions[2], *starts;
    int64_t count;
    int tiles;
    size_t bytes; /* 0: lines have a thread each */
} zfd_scatter_sorted;

static zfd_scatter_sorted zfd_scatter_sorted_of(const zf_launch *l)
{
    const int64_t axis = ZF_INT(l, scatter_add, axis), few = ZFD_SMALL_TILES ? 8 : 8192,
                  many = ZFD_SMALL_TILES ? 16 : 256;
    char *at = static_cast<char *>(l->scratch);
    zfd_scatter_sorted s;
    memset(&s, 0, sizeof s);
    s.from = zfd_lines_of(&l->args[0].shape, axis), s.to = zfd_lines_of(&l->out.shape, axis);
    s.count = zfd_count(&l->args[0]), s.tiles = (int)zfd_div_up(s.count, ZFD_SORT_TILE);
    if (s.to.count > few || s.from.n < many || zfd_count(&l->out) >= UINT32_MAX ||
        s.count > INT32_MAX - ZFD_SORT_TILE)
        return s;
    for (int k = 0; k < 5; k++) {
        uint32_t **const parts[] = {&s.keys[0], &s.keys[1], &s.positions[0], &s.positions[1],
                                    &s.starts};
        const int64_t n = k < 4 ? s.count : (int64_t)s.tiles * ZFD_SORT_DIGITS;
        if (at) *parts[k] = reinterpret_cast<uint32_t *>(at + s.bytes);
        s.bytes += (size_t)zfd_div_up(n, 4) * 16;
    }
    return s;
}

/* keys[p] = where element positions[p] = p goes, counted line by line; the number of all places: it
 * has a bad index. */
static __global__ void zfd_scatter_keys_kernel(zfd_scatter_sorted s, zfd_index index)
{
    for (int64_t p = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; p < s.count;
         p += (int64_t)gridDim.x * blockDim.x) {
        const int64_t line = p / s.from.n,
                      e = zfd_line_start(s.from, line) + p % s.from.n * s.from.inner.by,
                      row = zfd_index_at(index.at, index.wide, e);
        const bool good = zfd_index_good(index, row);
        if (!good) zfd_index_report(index, e, row);
        s.keys[0][p] = (uint32_t)(good ? line * s.to.n + row : s.to.count * s.to.n);
    }
}

template <class T>
__global__ void zfd_scatter_sorted_kernel(zfd_scatter_sorted s, const uint32_t *keys,
                                          const uint32_t *positions, T *out, const T *x)
{
    for (int64_t place = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
         place < s.to.count * s.to.n; place += (int64_t)gridDim.x * blockDim.x) {
        const int64_t line = place / s.to.n, from = zfd_line_start(s.from, line);
        float sum = 0;
        for (int p = zfd_sort_below(keys, (int)s.count, (uint64_t)place);
             p < s.count && keys[p] == place; p++)
            sum += zfd_to_f32(x[from + positions[p] % s.from.n * s.from.inner.by]);
        out[zfd_line_start(s.to, line) + place % s.to.n * s.to.inner.by] =
            zfd_narrowed<T>::of(sum);
    }
}

template <class T>
static void zfd_scatter_sorted_launch(const zf_launch *l, const zfd_scatter_sorted *s)
{
    zfd_sort pass;
    memset(&pass, 0, sizeof pass);
    pass.starts = s->starts, pass.count = (int)s->count, pass.tiles = s->tiles;
    pass.keys_in = s->keys[0];
    ZFD_LAUNCH(zfd_scatter_keys_kernel, zfd_grid(l, zfd_div_up(s->count, ZFD_THREADS)), ZFD_THREADS,
               0, zfd_stream(l), *s, zfd_index_of(l, s->to.n, 0, 0));
    const int at = zfd_sort_run(l, pass, s->keys, s->positions, (uint64_t)zfd_count(&l->out));
    ZFD_LAUNCH(zfd_scatter_sorted_kernel<T>,
               zfd_grid(l, zfd_div_up(zfd_count(&l->out), ZFD_THREADS)), ZFD_THREADS, 0, zfd_stream(l), *s, s->keys[at], s->positions[at],
               static_cast<T *>(l->out.data), static_cast<const T *>(l->args[0].data));
}

static size_t zfd_cuda_scratch_scatter_add(const zf_launch *l)
{
    const zfd_scatter_sorted s = zfd_scatter_sorted_of(l);
    if (s.bytes) return s.bytes;
    return l->out.dtype == ZF_F32 ? 0 : (size_t)zfd_count(&l->out) * sizeof(float);
}

static zf_status zfd_cuda_scatter_add(const zf_launch *l)
{
    const zfd_scatter_sorted s = zfd_scatter_sorted_of(l);
    const zfd_lines from = s.from, to = s.to;
    void *sums = l->out.dtype == ZF_F32 ? l->out.data : l->scratch;
    if (!to.count) return ZF_OK;
    if (s.bytes) {
        ZFD_FLOATS(l, l->out.dtype, T, zfd_scatter_sorted_launch<T>(l, &s);)
        return zfd_launched(l);
    }
    ZFD_FLOATS(l, l->out.dtype, T,
               ZFD_LAUNCH(zfd_scatter_add_kernel<T>, zfd_grid(l, zfd_div_up(to.count, ZFD_THREADS)),
                          ZFD_THREADS, 0, zfd_stream(l), from, to, zfd_index_of(l, to.n, 0, 0),
                          static_cast<T *>(l->out.data), static_cast<float *>(sums),
                          static_cast<const T *>(l->args[0].data));)
    return zfd_launched(l);
}

/* ------------------------------------------------------------------------------- top_k */

/* A block finds the k largest of a piece of a row one after the other. `within` NULL: of x, in
 * pieces of `piece` of its n elements; else of the candidates that `within` has of a row. */
template <class T>
__global__ void zfd_top_k_kernel(int64_t tasks, int64_t n, int64_t piece, int64_t pieces, int64_t k,
                                 int32_t *out, const T *x, const int32_t *within, int64_t width)
{
    ZFD_SHARED(zfd_most, shared);
    const int t = (int)threadIdx.x;
    for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
        const int64_t row = task / pieces, first = task % pieces * piece,
                      end = n - first < piece ? n : first + piece;
        zfd_most before = {0, -1};
        for (int64_t place = 0; place < k; place++) {
            zfd_most most = {-INFINITY, INT32_MAX};
            for (int64_t i = first + t; i < end; i += ZFD_THREADS) {
                const int32_t at = within ? within[row * n + i] : (int32_t)i;
                if (at == INT32_MAX) continue;
                const zfd_most next = {zfd_to_f32(x[row * width + at]), at};
                if (place && (next.at == before.at || zfd_larger(before, next).at != before.at))
                    continue;
                most = zfd_larger(most, next);
            }
            most = zfd_warp_most(most);
            __syncthreads();
            if (t % ZFD_WARP == 0) shared[t / ZFD_WARP] = most;
            __syncthreads();
            most = shared[t % ZFD_SUM_WARPS];
            before = zfd_warp_most(most);
            if (t == 0) out[task * k + place] = before.at;
            if (before.at != INT32_MAX) continue;
            for (int64_t rest = place + 1 + t; rest < k; rest += ZFD_THREADS)
                out[task * k + rest] = INT32_MAX; /* the piece is shorter than k */
            break;
        }
    }
}

/* The number of pieces of a row, where rows are too few for the device; 1: it is whole. */
static int64_t zfd_top_k_pieces(const zf_launch *l)
{
    const zf_shape *x = &l->args[0].shape;
    const int64_t n = x->dims[x->rank - 1], rows = zfd_span(x, 0, x->rank - 1),
                  k = ZF_INT(l, top_k, k), least = ZFD_SMALL_TILES ? 8 : 2048,
                  most = rows ? 1024 / rows : 1; /* blocks */
    const int64_t piece = least > 4 * k ? least : 4 * k, pieces = zfd_div_up(n, piece);
    return most < 2 || pieces < 2 ? 1 : pieces < most ? pieces : most;
}

static size_t zfd_cuda_scratch_top_k(const zf_launch *l)
{
    const int64_t pieces = zfd_top_k_pieces(l);
    return pieces > 1 ? (size_t)(pieces * zfd_count(&l->out)) * sizeof(int32_t) : 0;
}

template <class T> static void zfd_top_k_launch(const zf_launch *l, int64_t rows, int64_t n)
{
    const int64_t k = ZF_INT(l, top_k, k), pieces = zfd_top_k_pieces(l);
    const T *x = static_cast<const T *>(l->args[0].data);
    const size_t shared = ZFD_SUM_WARPS * sizeof(zfd_most);
    int32_t *out = static_cast<int32_t *>(l->out.data),
            *some = pieces > 1 ? static_cast<int32_t *>(l->scratch) : NULL;
    if (some)
        ZFD_LAUNCH(zfd_top_k_kernel<T>, zfd_grid(l, rows * pieces), ZFD_THREADS, shared,
                   zfd_stream(l), rows * pieces, n, zfd_div_up(n, pieces), pieces, k, some, x,
                   static_cast<const int32_t *>(NULL), n);
    ZFD_LAUNCH(zfd_top_k_kernel<T>, zfd_grid(l, rows), ZFD_THREADS, shared, zfd_stream(l), rows,
               some ? pieces * k : n, some ? pieces * k : n, (int64_t)1, k, out, x,
               static_cast<const int32_t *>(some), n);
}

static zf_status zfd_cuda_top_k(const zf_launch *l)
{
    const zf_shape *x = &l->args[0].shape;
    const int64_t n = x->dims[x->rank - 1], rows = zfd_span(x, 0, x->rank - 1);
    if (!rows) return ZF_OK;
    ZFD_FLOATS(l, l->args[0].dtype, T, zfd_top_k_launch<T>(l, rows, n);)
    return zfd_launched(l);
}

/* ----------------------------------------------------------------------------- one_hot */

/* T: an unsigned type of the size of an element; one: the bits of 1. */
template <class T>
__global__ void zfd_one_hot_kernel(int64_t count, zfd_divisor classes, T one, T *out,
                                   const void *index, bool wide)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t row = zfd_divide(i, classes);
        out[i] = zfd_index_at(index, wide, row) == i - row * classes.by ? one : (T)0;
    }
}

template <class T> static void zfd_one_hot(const zf_launch *l, T one)
{
    const int64_t count = zfd_count(&l->out);
    ZFD_LAUNCH(zfd_one_hot_kernel<T>, zfd_grid(l, zfd_div_up(count, ZFD_THREADS)), ZFD_THREADS, 0,
               zfd_stream(l), count, zfd_divisor_of(ZF_INT(l, one_hot, classes), count), one,
               static_cast<T *>(l->out.data), l->args[0].data, l->args[0].dtype == ZF_I64);
}

static zf_status zfd_cuda_one_hot(const zf_launch *l)
{
    if (l->out.dtype == ZF_F64) return zfd_no_dtype(l, ZF_F64);
    if (!zfd_count(&l->out)) return ZF_OK;
    switch (l->out.dtype) {
    case ZF_F32: zfd_one_hot<uint32_t>(l, 0x3f800000u); break;
    case ZF_BF16: zfd_one_hot<uint16_t>(l, 0x3f80); break;
    case ZF_F16: zfd_one_hot<uint16_t>(l, 0x3c00); break;
    case ZF_I32: zfd_one_hot<uint32_t>(l, 1); break;
    case ZF_I64: zfd_one_hot<uint64_t>(l, 1); break;
    default: zfd_one_hot<uint8_t>(l, 1); break;
    }
    return zfd_launched(l);
}

ZFD_KERNEL(cumsum, zfd_cuda_cumsum, NULL)
ZFD_KERNEL(gather, zfd_cuda_gather, NULL)
ZFD_KERNEL(scatter_add, zfd_cuda_scatter_add, zfd_cuda_scratch_scatter_add)
ZFD_KERNEL(top_k, zfd_cuda_top_k, zfd_cuda_scratch_top_k)
ZFD_KERNEL(one_hot, zfd_cuda_one_hot, NULL)
