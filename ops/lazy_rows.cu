/* distinct_rows, sum_rows and collect (lazy_rows.c) on CUDA.
 *
 * Both operators sort positions (rows.cu): distinct_rows by the numbers of the index, of which it
 * then keeps the first of each run; sum_rows by the place that a position's row has in the list.
 * Each thread then adds the positions of one row, in their order, in one column. */

/* The parts of scratch. */
typedef struct zfd_sorted {
    uint32_t *keys[2], *positions[2], *starts;
    /* distinct_rows: 1 at the first key of a run, then the number of those before */
    uint32_t *firsts;
    int count, tiles;
    size_t bytes;
} zfd_sorted;

static zfd_sorted zfd_sorted_of(const zf_launch *l, int64_t count)
{
    zfd_sorted s;
    char *at = static_cast<char *>(l->scratch);
    const size_t row = ((size_t)count + 3) / 4 * 16;
    memset(&s, 0, sizeof s);
    s.count = count > INT32_MAX - ZFD_SORT_TILE ? -1 : (int)count;
    s.tiles = (int)zfd_div_up(count, ZFD_SORT_TILE);
    s.bytes = 5 * row + (size_t)s.tiles * ZFD_SORT_DIGITS * sizeof(uint32_t);
    if (!at) return s;
    for (int k = 0; k < 2; k++, at += row) s.keys[k] = reinterpret_cast<uint32_t *>(at);
    for (int k = 0; k < 2; k++, at += row) s.positions[k] = reinterpret_cast<uint32_t *>(at);
    s.firsts = reinterpret_cast<uint32_t *>(at);
    s.starts = reinterpret_cast<uint32_t *>(at + row);
    return s;
}

static zf_status zfd_sort_fail(const zf_launch *l, int64_t count, int64_t rows)
{
    return zfd_cuda_fail(l->error, ZF_ERR_BACKEND,
                         "%s %%%d: %lld numbers of %lld rows; fewer than 2^31 - 2048 and 2^32 - 1 "
                         "are possible on " ZFD_GPU,
                         zf_op_name(l->op), (int)l->node, (long long)count, (long long)rows);
}

/* ----------------------------------------------------------------------- distinct_rows */

static size_t zfd_cuda_scratch_distinct_rows(const zf_launch *l)
{
    return zfd_sorted_of(l, zfd_count(&l->args[0])).bytes;
}

static __global__ void zfd_firsts_kernel(int count, const uint32_t *keys, uint32_t none,
                                         uint32_t *firsts)
{
    for (int i = (int)(blockIdx.x * blockDim.x + threadIdx.x); i < count;
         i += (int)(gridDim.x * blockDim.x))
        firsts[i] = keys[i] != none && (!i || keys[i] != keys[i - 1]);
}

/* T: int32_t or int64_t. The result is -1 everywhere before. */
template <class T>
__global__ void zfd_distinct_kernel(int count, const uint32_t *keys, uint32_t none,
                                    const uint32_t *firsts, T *out)
{
    for (int i = (int)(blockIdx.x * blockDim.x + threadIdx.x); i < count;
         i += (int)(gridDim.x * blockDim.x))
        if (keys[i] != none && (!i || keys[i] != keys[i - 1])) out[firsts[i]] = (T)keys[i];
}

template <class T> __global__ void zfd_no_rows_kernel(int count, T *out)
{
    for (int i = (int)(blockIdx.x * blockDim.x + threadIdx.x); i < count;
         i += (int)(gridDim.x * blockDim.x))
        out[i] = -1;
}

template <class T>
static void zfd_distinct_launch(const zf_launch *l, const zfd_sorted *s, const uint32_t *keys)
{
    const uint32_t none = (uint32_t)ZF_INT(l, distinct_rows, rows);
    const dim3 grid(zfd_grid(l, zfd_div_up(s->count, ZFD_THREADS)));
    T *out = static_cast<T *>(l->out.data);
    ZFD_LAUNCH(zfd_no_rows_kernel<T>, grid, ZFD_THREADS, 0, zfd_stream(l), s->count, out);
    ZFD_LAUNCH(zfd_firsts_kernel, grid, ZFD_THREADS, 0, zfd_stream(l), s->count, keys, none,
               s->firsts);
    ZFD_LAUNCH(zfd_sort_scan_kernel, 1, ZFD_SCAN_THREADS, ZFD_SCAN_THREADS * sizeof(uint32_t),
               zfd_stream(l), s->firsts, (int64_t)s->count);
    ZFD_LAUNCH(zfd_distinct_kernel<T>, grid, ZFD_THREADS, 0, zfd_stream(l), s->count, keys, none,
               s->firsts, out);
}

static zf_status zfd_cuda_distinct_rows(const zf_launch *l)
{
    const int64_t count = zfd_count(&l->args[0]), rows = ZF_INT(l, distinct_rows, rows);
    const zfd_sorted s = zfd_sorted_of(l, count);
    zfd_sort pass;
    int at;
    if (s.count < 0 || rows >= UINT32_MAX) return zfd_sort_fail(l, count, rows);
    if (!count) return ZF_OK;
    memset(&pass, 0, sizeof pass);
    pass.index.at = l->args[0].data, pass.index.wide = l->args[0].dtype == ZF_I64;
    pass.index.rows = pass.index.of = rows, pass.index.least = -1;
    pass.index.op = l->op, pass.index.node = l->node, pass.index.fault = zfd_device_of(l)->fault;
    pass.padding = ZF_INT(l, distinct_rows, padded) ? ZF_INT(l, distinct_rows, padding) : -1;
    pass.starts = s.starts, pass.count = s.count, pass.tiles = s.tiles;
    at = zfd_sort_run(l, pass, s.keys, s.positions, (uint64_t)rows);
    if (l->out.dtype == ZF_I64) zfd_distinct_launch<int64_t>(l, &s, s.keys[at]);
    else zfd_distinct_launch<int32_t>(l, &s, s.keys[at]);
    return zfd_launched(l);
}

/* ---------------------------------------------------------------------------- sum_rows */

static size_t zfd_cuda_scratch_sum_rows(const zf_launch *l)
{
    return zfd_sorted_of(l, zfd_count(&l->args[1])).bytes;
}

/* A list of rows, ascending, then -1. */
typedef struct zfd_row_list {
    const void *at;
    bool wide;
    int count;
} zfd_row_list;

/* keys[i] = the place in the list of the row of position i; list.count: it is not there. */
static __global__ void zfd_places_kernel(int count, zfd_index index, zfd_row_list list,
                                         uint32_t *keys)
{
    for (int i = (int)(blockIdx.x * blockDim.x + threadIdx.x); i < count;
         i += (int)(gridDim.x * blockDim.x)) {
        const int64_t row = zfd_index_at(index.at, index.wide, i);
        int low = 0;
        for (int high = list.count; low < high;) {
            const int middle = low + (high - low) / 2;
            const int64_t other = zfd_index_at(list.at, list.wide, middle);
            if ((uint64_t)other < (uint64_t)row) low = middle + 1;
            else high = middle;
        }
        keys[i] = (uint32_t)(row >= 0 && low < list.count &&
                                     zfd_index_at(list.at, list.wide, low) == row
                                 ? low
                                 : list.count);
    }
}

template <class T>
__global__ void zfd_sum_places_kernel(int64_t elements, zfd_divisor width, int count,
                                    const uint32_t *keys, const uint32_t *positions, T *out,
                                    const T *x)
{
    for (int64_t n = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; n < elements;
         n += (int64_t)gridDim.x * blockDim.x) {
        const int64_t k = zfd_divide(n, width), c = n - k * width.by;
        float sum = 0;
        for (int i = zfd_sort_below(keys, count, (uint64_t)k); i < count && keys[i] == k; i++)
            sum += zfd_to_f32(x[(int64_t)positions[i] * width.by + c]);
        out[n] = zfd_from_f32<T>(sum);
    }
}

static zf_status zfd_cuda_sum_rows(const zf_launch *l)
{
    const int64_t count = zfd_count(&l->args[1]), rows = zfd_count(&l->args[2]),
                  elements = zfd_count(&l->out),
                  width = zfd_span(&l->out.shape, 1, l->out.shape.rank);
    const zfd_sorted s = zfd_sorted_of(l, count);
    zfd_row_list list = {l->args[2].data, l->args[2].dtype == ZF_I64, (int)rows};
    zfd_sort pass;
    int at;
    if (l->out.dtype == ZF_F64) return zfd_no_dtype(l, ZF_F64);
    if (s.count < 0 || rows > INT32_MAX) return zfd_sort_fail(l, count, rows);
    if (!elements) return ZF_OK;
    if (!count) return zfd_move_bytes(l, l->out.data, NULL, (int64_t)zfd_bytes(&l->out));
    memset(&pass, 0, sizeof pass);
    pass.index = zfd_index_of(l, rows, 0, 0), pass.padding = -1;
    pass.keys_in = s.keys[0];
    pass.starts = s.starts, pass.count = s.count, pass.tiles = s.tiles;
    ZFD_LAUNCH(zfd_places_kernel, zfd_grid(l, zfd_div_up(count, ZFD_THREADS)), ZFD_THREADS, 0,
               zfd_stream(l), s.count, pass.index, list, s.keys[0]);
    at = zfd_sort_run(l, pass, s.keys, s.positions, (uint64_t)rows);
    ZFD_FLOATS(l, l->out.dtype, T,
               ZFD_LAUNCH(zfd_sum_places_kernel<T>, zfd_grid(l, zfd_div_up(elements, ZFD_THREADS)),
                          ZFD_THREADS, 0, zfd_stream(l), elements,
                          zfd_divisor_of(width, elements), s.count, s.keys[at], s.positions[at],
                          static_cast<T *>(l->out.data),
                          static_cast<const T *>(l->args[0].data));)
    return zfd_launched(l);
}

/* ----------------------------------------------------------------------------- collect */

static __global__ void zfd_collect_kernel(int64_t bytes, const zf_run *run, char *out,
                                          const char *x)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < bytes;
         i += (int64_t)gridDim.x * blockDim.x)
        out[run->micro * bytes + i] = x[i];
}

static zf_status zfd_cuda_collect(const zf_launch *l)
{
    const int64_t bytes = (int64_t)zfd_bytes(&l->args[0]);
    if (!bytes) return ZF_OK;
    ZFD_LAUNCH(zfd_collect_kernel, zfd_grid(l, zfd_div_up(bytes, ZFD_THREADS)), ZFD_THREADS, 0,
               zfd_stream(l), bytes, zfd_device_of(l)->run, static_cast<char *>(l->out.data),
               static_cast<const char *>(l->args[0].data));
    return zfd_launched(l);
}

ZFD_KERNEL(distinct_rows, zfd_cuda_distinct_rows, zfd_cuda_scratch_distinct_rows)
ZFD_KERNEL(sum_rows, zfd_cuda_sum_rows, zfd_cuda_scratch_sum_rows)
ZFD_KERNEL(collect, zfd_cuda_collect, NULL)
