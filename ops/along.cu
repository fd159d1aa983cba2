/* Along an axis: cumsum gather scatter_add top_k; and one_hot, which makes one.
 *
 * A line is the elements that differ along the axis alone. Lines of neighbours (inner = 1) of
 * cumsum and top_k have a block each, other lines a thread each. So sums have the order of the
 * axis, or of the threads of a block, whatever the device. */

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

static size_t zfd_cuda_scratch_scatter_add(const zf_launch *l)
{
    return l->out.dtype == ZF_F32 ? 0 : (size_t)zfd_count(&l->out) * sizeof(float);
}

static zf_status zfd_cuda_scatter_add(const zf_launch *l)
{
    const int64_t axis = ZF_INT(l, scatter_add, axis);
    const zfd_lines from = zfd_lines_of(&l->args[0].shape, axis),
                    to = zfd_lines_of(&l->out.shape, axis);
    void *sums = l->out.dtype == ZF_F32 ? l->out.data : l->scratch;
    if (!to.count) return ZF_OK;
    ZFD_FLOATS(l, l->out.dtype, T,
               ZFD_LAUNCH(zfd_scatter_add_kernel<T>, zfd_grid(l, zfd_div_up(to.count, ZFD_THREADS)),
                          ZFD_THREADS, 0, zfd_stream(l), from, to, zfd_index_of(l, to.n, 0, 0),
                          static_cast<T *>(l->out.data), static_cast<float *>(sums),
                          static_cast<const T *>(l->args[0].data));)
    return zfd_launched(l);
}

/* ------------------------------------------------------------------------------- top_k */

/* A block finds the k largest of its row one after the other. */
template <class T>
__global__ void zfd_top_k_kernel(int64_t rows, int64_t n, int64_t k, int32_t *out, const T *x)
{
    ZFD_SHARED(zfd_most, shared);
    const int t = (int)threadIdx.x;
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        zfd_most before = {0, -1};
        for (int64_t place = 0; place < k; place++) {
            zfd_most most = {-INFINITY, INT32_MAX};
            for (int64_t i = t; i < n; i += ZFD_THREADS) {
                const zfd_most next = {zfd_to_f32(x[row * n + i]), (int)i};
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
            if (t == 0) out[row * k + place] = before.at;
        }
    }
}

static zf_status zfd_cuda_top_k(const zf_launch *l)
{
    const zf_shape *x = &l->args[0].shape;
    const int64_t n = x->dims[x->rank - 1], rows = zfd_span(x, 0, x->rank - 1);
    if (!rows) return ZF_OK;
    ZFD_FLOATS(l, l->args[0].dtype, T,
               ZFD_LAUNCH(zfd_top_k_kernel<T>, zfd_grid(l, rows), ZFD_THREADS,
                          ZFD_SUM_WARPS * sizeof(zfd_most), zfd_stream(l), rows, n,
                          ZF_INT(l, top_k, k), static_cast<int32_t *>(l->out.data),
                          static_cast<const T *>(l->args[0].data));)
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
ZFD_KERNEL(top_k, zfd_cuda_top_k, NULL)
ZFD_KERNEL(one_hot, zfd_cuda_one_hot, NULL)
