/* Rows of a table by index: gather_rows reads them, scatter_rows adds to them.
 *
 * An index outside the table is reported as an error. Its row is read as zeros, and nothing is
 * added for it, nor for the row `padding`. Of a table that has some rows of another one, other rows
 * are read as -0, and are no error.
 *
 * scatter_rows sorts the positions by their index with a stable radix sort (8 bits at a time, tiles
 * of 2048 positions). Then each block adds the rows of one chunk of sorted positions. Where an
 * index continues beyond a chunk, the sums of its chunks are added in a second step:
 *
 *     index       3 1 3 0 3 3 ...       chunk 0        chunk 1
 *     sorted      0 1 3 3 | 3 3 ...     out[0], out[1] are done; for 3:
 *     positions   3 1 0 2 | 4 5 ...     tail[0]        head[1]       out[3] = tail[0] + head[1]
 */

/* Element i of an index of i64 (`wide`) or i32. */
__device__ __forceinline__ int64_t zfd_index_at(const void *index, bool wide, int64_t i)
{
    return wide ? static_cast<const int64_t *>(index)[i] : static_cast<const int32_t *>(index)[i];
}

/* What the check of an index needs. */
typedef struct zfd_index {
    const void *at;
    bool wide;
    int64_t first, rows, of; /* rows from `first` on, of so many */
    int32_t op, node;
    zfd_fault *fault;
    int64_t least; /* a number from here on is no error; 0, or -1 for no row */
} zfd_index;

static zfd_index zfd_index_of(const zf_launch *l, int64_t rows, int64_t first, int64_t of)
{
    zfd_index x = {l->args[1].data, l->args[1].dtype == ZF_I64, first,  rows,
                   of ? of : rows,  l->op,                      l->node, zfd_device_of(l)->fault,
                   0};
    return x;
}

__device__ __forceinline__ bool zfd_index_good(const zfd_index &x, int64_t row)
{
    return row >= x.least && row < x.of;
}

/* The table has the row. */
__device__ __forceinline__ bool zfd_index_here(const zfd_index &x, int64_t row)
{
    return row >= x.first && row < x.first + x.rows;
}

__device__ __forceinline__ void zfd_index_report(const zfd_index &x, int64_t i, int64_t row)
{
    zfd_fault what = {ZFD_FAULT_INDEX, x.op, x.node, i, row, x.of, 0, 0, 0};
    zfd_report(x.fault, what);
}

/* ------------------------------------------------------------------------- gather_rows */

/* T: a piece of a row; a row has pieces.by of them. */
template <class T>
__global__ void zfd_gather_kernel(int64_t count, zfd_divisor pieces, zfd_index index, T *out,
                                  const T *table, T none)
{
    for (int64_t n = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; n < count;
         n += (int64_t)gridDim.x * blockDim.x) {
        int64_t i = zfd_divide(n, pieces), piece = n - i * pieces.by;
        int64_t row = zfd_index_at(index.at, index.wide, i);
        if (!piece && !zfd_index_good(index, row)) zfd_index_report(index, i, row);
        out[n] = zfd_index_here(index, row) ? table[(row - index.first) * pieces.by + piece] : none;
    }
}

template <class T> static void zfd_gather_launch(const zf_launch *l, int64_t bytes)
{
    const uint32_t half = 0x80008000u, one = l->out.dtype == ZF_F32 ? 0x80000000u : half;
    const uint32_t minus_0[4] = {one, one, one, one};
    T none;
    memcpy(&none, minus_0, sizeof none);
    int64_t pieces = bytes / (int64_t)sizeof(T), count = zfd_count(&l->args[1]) * pieces;
    ZFD_LAUNCH(zfd_gather_kernel<T>, zfd_grid(l, zfd_div_up(count, ZFD_THREADS)), ZFD_THREADS, 0,
               zfd_stream(l), count, zfd_divisor_of(pieces, count),
               zfd_index_of(l, l->args[0].shape.dims[0], ZF_INT(l, gather_rows, first),
                            ZF_INT(l, gather_rows, of)),
               static_cast<T *>(l->out.data),
               static_cast<const T *>(l->args[0].data), none);
}

static zf_status zfd_cuda_gather_rows(const zf_launch *l)
{
    const zf_shape *table = &l->args[0].shape;
    int64_t bytes = zfd_span(table, 1, table->rank) * (int64_t)zf_dtype_size(l->out.dtype);
    uintptr_t lies = reinterpret_cast<uintptr_t>(l->out.data) |
                     reinterpret_cast<uintptr_t>(l->args[0].data) | (uintptr_t)bytes;
    if (l->out.dtype == ZF_F64) return zfd_no_dtype(l, ZF_F64);
    if (!zfd_count(&l->out)) return ZF_OK;
    if (lies % 16 == 0) zfd_gather_launch<uint4>(l, bytes);
    else if (lies % 4 == 0) zfd_gather_launch<uint32_t>(l, bytes);
    else zfd_gather_launch<uint16_t>(l, bytes);
    return zfd_launched(l);
}

/* ---------------------------------------------------------------- sorting by the index */

enum {
    ZFD_SORT_BITS = 8,
    ZFD_SORT_DIGITS = 1 << ZFD_SORT_BITS, /* one for each thread of a block */
    ZFD_SORT_WARPS = ZFD_THREADS / ZFD_WARP,
    ZFD_SORT_TILE = 2048,
    ZFD_SORT_RUN = ZFD_SORT_TILE / ZFD_SORT_WARPS, /* positions of a warp */
    ZFD_SCAN_THREADS = 1024
};

/* One pass of the sort, by the digit of the keys at `shift`. keys_in NULL: the keys are the index,
 * or index.rows where that is out of range, and the positions are 0, 1, ... */
typedef struct zfd_sort {
    zfd_index index;
    const uint32_t *keys_in, *positions_in;
    uint32_t *keys, *positions;
    uint32_t *starts; /* [digit][tile]: counts, then the places where they begin */
    int64_t padding;  /* nothing is added to it: its keys are index.rows; -1: none */
    int count, tiles, shift;
} zfd_sort;

__device__ __forceinline__ uint32_t zfd_sort_key(const zfd_sort &s, int i, bool report)
{
    int64_t row;
    if (s.keys_in) return s.keys_in[i];
    row = zfd_index_at(s.index.at, s.index.wide, i);
    if (report && !zfd_index_good(s.index, row)) zfd_index_report(s.index, i, row);
    if (!zfd_index_here(s.index, row) || row - s.index.first == s.padding)
        return (uint32_t)s.index.rows;
    return (uint32_t)(row - s.index.first);
}

__device__ __forceinline__ int zfd_sort_digit(const zfd_sort &s, uint32_t key)
{
    return (int)(key >> s.shift & (ZFD_SORT_DIGITS - 1));
}

/* starts[digit][tile] = the number of the tile's keys with the digit. A block has one tile. */
static __global__ void zfd_sort_count_kernel(zfd_sort s)
{
    ZFD_SHARED(uint32_t, counts); /* [digit] */
    int tile = (int)blockIdx.x, first = tile * ZFD_SORT_TILE;
    counts[threadIdx.x] = 0;
    __syncthreads();
    for (int i = first + (int)threadIdx.x; i < s.count && i - first < ZFD_SORT_TILE;
         i += ZFD_THREADS)
        atomicAdd(&counts[zfd_sort_digit(s, zfd_sort_key(s, i, true))], 1u);
    __syncthreads();
    s.starts[(int64_t)threadIdx.x * s.tiles + tile] = counts[threadIdx.x];
}

/* values[i] = the sum of all values before it. One block. */
static __global__ void zfd_sort_scan_kernel(uint32_t *values, int64_t count)
{
    ZFD_SHARED(uint32_t, sums); /* [thread] */
    int t = (int)threadIdx.x;
    int64_t run = (count + ZFD_SCAN_THREADS - 1) / ZFD_SCAN_THREADS, first = t * run;
    int64_t last = count - first < run ? count : first + run;
    uint32_t sum = 0;
    for (int64_t i = first; i < last; i++) sum += values[i];
    sums[t] = sum;
    __syncthreads();
    for (int step = 1; step < ZFD_SCAN_THREADS; step *= 2) {
        uint32_t before = t >= step ? sums[t - step] : 0;
        __syncthreads();
        sums[t] += before;
        __syncthreads();
    }
    sum = t ? sums[t - 1] : 0;
    for (int64_t i = first; i < last; i++) {
        uint32_t value = values[i];
        values[i] = sum;
        sum += value;
    }
}

/* Moves keys and positions to their places. A warp takes its part of the tile in order. */
static __global__ void zfd_sort_place_kernel(zfd_sort s)
{
    ZFD_SHARED(uint32_t, starts); /* [warp][digit] */
    int lane = (int)threadIdx.x % ZFD_WARP, warp = (int)threadIdx.x / ZFD_WARP;
    int tile = (int)blockIdx.x, first = tile * ZFD_SORT_TILE + warp * ZFD_SORT_RUN;
    uint32_t *own = starts + warp * ZFD_SORT_DIGITS, start;
    for (int w = 0; w < ZFD_SORT_WARPS; w++) starts[w * ZFD_SORT_DIGITS + (int)threadIdx.x] = 0;
    __syncthreads();
    for (int i = first + lane; i < s.count && i - first < ZFD_SORT_RUN; i += ZFD_WARP)
        atomicAdd(&own[zfd_sort_digit(s, zfd_sort_key(s, i, false))], 1u);
    __syncthreads();
    start = s.starts[(int64_t)threadIdx.x * s.tiles + tile];
    for (int w = 0; w < ZFD_SORT_WARPS; w++) {
        uint32_t *at = &starts[w * ZFD_SORT_DIGITS + (int)threadIdx.x], count = *at;
        *at = start;
        start += count;
    }
    __syncthreads();
    for (int group = first; group < first + ZFD_SORT_RUN; group += ZFD_WARP) {
        int i = group + lane, digit;
        bool there = i < s.count;
        uint32_t key = there ? zfd_sort_key(s, i, false) : 0, at;
        uint32_t same = zfd_ballot(there); /* lanes with the same digit */
        digit = zfd_sort_digit(s, key);
#pragma unroll
        for (int bit = 0; bit < ZFD_SORT_BITS; bit++) {
            uint32_t set = zfd_ballot(digit >> bit & 1);
            same &= digit >> bit & 1 ? set : ~set;
        }
        at = own[digit] + (uint32_t)__popc(same & ((1u << lane) - 1));
        zfd_sync_warp();
        if (there && (same >> lane) == 1) own[digit] = at + 1; /* the last of these lanes */
        zfd_sync_warp();
        if (there) {
            s.keys[at] = key;
            s.positions[at] = s.positions_in ? s.positions_in[i] : (uint32_t)i;
        }
    }
}

/* Sorts by keys that are at most `last`. Keys that are there already, with positions or without,
 * are in one of the two arrays. Returns in which the result is. */
static int zfd_sort_run(const zf_launch *l, zfd_sort pass, uint32_t *const (&keys)[2],
                        uint32_t *const (&positions)[2], uint64_t last)
{
    int to = pass.keys_in == keys[0];
    for (pass.shift = 0; pass.shift == 0 || last >> pass.shift; pass.shift += ZFD_SORT_BITS) {
        pass.keys = keys[to], pass.positions = positions[to];
        ZFD_LAUNCH(zfd_sort_count_kernel, (unsigned)pass.tiles, ZFD_THREADS,
                   ZFD_SORT_DIGITS * sizeof(uint32_t), zfd_stream(l), pass);
        ZFD_LAUNCH(zfd_sort_scan_kernel, 1, ZFD_SCAN_THREADS, ZFD_SCAN_THREADS * sizeof(uint32_t),
                   zfd_stream(l), pass.starts, (int64_t)pass.tiles * ZFD_SORT_DIGITS);
        ZFD_LAUNCH(zfd_sort_place_kernel, (unsigned)pass.tiles, ZFD_THREADS,
                   ZFD_SORT_WARPS * ZFD_SORT_DIGITS * sizeof(uint32_t), zfd_stream(l), pass);
        pass.keys_in = pass.keys, pass.positions_in = pass.positions;
        to = !to;
    }
    return !to;
}

/* The number of keys below `key`, of sorted ones. */
__device__ __forceinline__ int zfd_sort_below(const uint32_t *keys, int count, uint64_t key)
{
    int low = 0;
    for (int high = count; low < high;) {
        const int middle = low + (high - low) / 2;
        if (keys[middle] < key) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* ------------------------------------------------------------------------ scatter_rows */

enum { ZFD_SCATTER_CHUNKS = 512, ZFD_SCATTER_LEAST = 32, ZFD_SCATTER_AHEAD = 4 };

/* The parts of scratch of scatter_rows, and how it splits its work. */
typedef struct zfd_scatter {
    uint32_t *keys[2], *positions[2], *starts;
    float *sums; /* [chunk][head, tail][width] */
    int64_t width, rows;
    int count, tiles, chunk, chunks;
    size_t bytes;
} zfd_scatter;

static zfd_scatter zfd_scatter_of(const zf_launch *l)
{
    zfd_scatter s;
    int64_t count = zfd_count(&l->args[1]), chunk = zfd_div_up(count, ZFD_SCATTER_CHUNKS);
    char *at = static_cast<char *>(l->scratch);
    size_t sizes[6], starts;
    chunk = zfd_div_up(chunk, ZFD_SCATTER_AHEAD) * ZFD_SCATTER_AHEAD;
    memset(&s, 0, sizeof s);
    s.rows = ZF_INT(l, scatter_rows, rows), s.width = zfd_span(&l->out.shape, 1, l->out.shape.rank);
    s.count = count > INT32_MAX - ZFD_SORT_TILE ? -1 : (int)count;
    s.tiles = (int)zfd_div_up(count, ZFD_SORT_TILE);
    if (chunk < ZFD_SCATTER_LEAST) chunk = ZFD_SCATTER_LEAST;
    s.chunk = (int)chunk;
    s.chunks = (int)zfd_div_up(count, s.chunk);
    starts = (size_t)s.tiles * ZFD_SORT_DIGITS;
    for (int k = 0; k < 4; k++) sizes[k] = ((size_t)count + 3) / 4 * 16;
    sizes[4] = starts * sizeof(uint32_t);
    sizes[5] = (size_t)s.chunks * 2 * (size_t)s.width * sizeof(float);
    for (int k = 0; k < 6; k++) s.bytes += sizes[k];
    if (!at) return s;
    for (int k = 0; k < 2; k++, at += sizes[k]) s.keys[k] = reinterpret_cast<uint32_t *>(at);
    for (int k = 0; k < 2; k++, at += sizes[k]) s.positions[k] = reinterpret_cast<uint32_t *>(at);
    s.starts = reinterpret_cast<uint32_t *>(at);
    s.sums = reinterpret_cast<float *>(at + sizes[4]);
    return s;
}

static size_t zfd_cuda_scratch_scatter_rows(const zf_launch *l)
{
    zfd_scatter s = zfd_scatter_of(l);
    return zfd_count(&l->out) && zfd_count(&l->args[1]) ? s.bytes : 0;
}

/* Stores N numbers; N is 1 or a multiple of 4. */
template <int N> __device__ __forceinline__ void zfd_put_sums(float *to, const float (&sum)[N])
{
    const int some = N < 4 ? N : 4;
#pragma unroll
    for (int k = 0; k < N; k += some) {
        float part[some];
#pragma unroll
        for (int i = 0; i < some; i++) part[i] = sum[k + i];
        zfd_put_pack(to + k, part);
    }
}

/* Chunk y, columns c to c + N: writes the sums of complete indices to out, those of an incomplete
 * first and last index to the chunk's head and tail. */
template <class T, int N>
__global__ void zfd_scatter_kernel(zfd_scatter s, const uint32_t *keys, const uint32_t *positions,
                                   T *out, const T *dy)
{
    int first = (int)blockIdx.y * s.chunk;
    int last = s.count - first < s.chunk ? s.count : first + s.chunk;
    int64_t c = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N;
    bool begun = first == 0 || keys[first - 1] != keys[first]; /* the index begins in this chunk */
    float sum[N] = {0};
    if (c >= s.width) return;
    for (int e = first; e < last; e += ZFD_SCATTER_AHEAD) {
        float ahead[ZFD_SCATTER_AHEAD][N];
#pragma unroll
        for (int k = 0; k < ZFD_SCATTER_AHEAD; k++)
            if (e + k < last)
                zfd_fetch(ahead[k], dy + (int64_t)positions[e + k] * s.width + c, true);
#pragma unroll
        for (int k = 0; k < ZFD_SCATTER_AHEAD; k++) {
            uint32_t key;
            bool ends;
            if (e + k >= last) break;
            key = keys[e + k];
            ends = e + k + 1 == s.count || keys[e + k + 1] != key;
#pragma unroll
            for (int i = 0; i < N; i++) sum[i] += ahead[k][i];
            if (!ends && e + k + 1 < last) continue;
            if (!begun || !ends)
                zfd_put_sums(s.sums + ((int64_t)blockIdx.y * 2 + begun) * s.width + c, sum);
            else if (key < s.rows) zfd_put_pack(out + (int64_t)key * s.width + c, sum);
            begun = true;
#pragma unroll
            for (int i = 0; i < N; i++) sum[i] = 0;
        }
    }
}

/* Adds an index that begins in chunk y and continues beyond it. */
template <class T>
__global__ void zfd_scatter_last_kernel(zfd_scatter s, const uint32_t *keys, T *out)
{
    int chunk = (int)blockIdx.y, first = chunk * s.chunk, end = first + s.chunk, low;
    uint32_t key;
    if (end >= s.count) return;
    key = keys[end - 1];
    if (keys[end] != key || key >= s.rows) return;
    if (first > 0 && keys[first] == key && keys[first - 1] == key) return;
    low = zfd_sort_below(keys, s.count, (uint64_t)key + 1); /* where the index ends */
    for (int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; c < s.width;
         c += (int64_t)gridDim.x * blockDim.x) {
        const float *heads = s.sums + c;
        float sum = heads[((int64_t)chunk * 2 + 1) * s.width];
#pragma unroll 8
        for (int k = chunk + 1; k <= (low - 1) / s.chunk; k++)
            sum += heads[(int64_t)k * 2 * s.width];
        out[(int64_t)key * s.width + c] = zfd_from_f32<T>(sum);
    }
}

/* Sorts. Returns which of the two arrays of keys and positions holds the result. */
static int zfd_scatter_sort(const zf_launch *l, const zfd_scatter *s)
{
    zfd_sort pass;
    memset(&pass, 0, sizeof pass);
    pass.index = zfd_index_of(l, s->rows, ZF_INT(l, scatter_rows, first),
                              ZF_INT(l, scatter_rows, of));
    pass.padding = ZF_INT(l, scatter_rows, padded)
                       ? ZF_INT(l, scatter_rows, padding) - ZF_INT(l, scatter_rows, first)
                       : -1;
    pass.starts = s->starts, pass.count = s->count, pass.tiles = s->tiles;
    return zfd_sort_run(l, pass, s->keys, s->positions, (uint64_t)s->rows);
}

template <class T> static void zfd_scatter_launch(const zf_launch *l, const zfd_scatter *s)
{
    const int n = zfd_wide<T>::count;
    T *out = static_cast<T *>(l->out.data);
    const T *dy = static_cast<const T *>(l->args[0].data);
    bool well = zfd_lies_well(s->width, sizeof(T), out, dy);
    int64_t threads = zfd_div_up(s->width, well ? n : 1);
    unsigned block = (unsigned)zfd_div_up(threads, ZFD_WARP) * ZFD_WARP;
    int at = zfd_scatter_sort(l, s);
    dim3 grid;
    if (threads > ZFD_THREADS) block = ZFD_THREADS;
    grid = dim3((unsigned)zfd_div_up(threads, block), (unsigned)s->chunks);
    if (well)
        ZFD_LAUNCH((zfd_scatter_kernel<T, n>), grid, block, 0, zfd_stream(l), *s, s->keys[at],
                   s->positions[at], out, dy);
    else
        ZFD_LAUNCH((zfd_scatter_kernel<T, 1>), grid, block, 0, zfd_stream(l), *s, s->keys[at],
                   s->positions[at], out, dy);
    if (s->chunks > 1)
        ZFD_LAUNCH(zfd_scatter_last_kernel<T>,
                   dim3((unsigned)zfd_div_up(s->width, ZFD_THREADS), (unsigned)s->chunks),
                   ZFD_THREADS, 0, zfd_stream(l), *s, s->keys[at], out);
}

static zf_status zfd_cuda_scatter_rows(const zf_launch *l)
{
    zfd_scatter s = zfd_scatter_of(l);
    zf_status status;
    if (l->out.dtype == ZF_F64) return zfd_no_dtype(l, ZF_F64);
    if (s.count < 0 || s.rows >= UINT32_MAX)
        return zfd_cuda_fail(l->error, ZF_ERR_BACKEND,
                             "scatter_rows %%%d: %lld indices into %lld rows; fewer than 2^31 - "
                             "2048 and 2^32 - 1 are possible on " ZFD_GPU,
                             (int)l->node, (long long)zfd_count(&l->args[1]), (long long)s.rows);
    if (!zfd_count(&l->out)) return ZF_OK;
    status = zfd_move_bytes(l, l->out.data, NULL, (int64_t)zfd_bytes(&l->out));
    if (status || !s.count) return status;
    ZFD_FLOATS(l, l->out.dtype, T, zfd_scatter_launch<T>(l, &s);)
    return zfd_launched(l);
}

ZFD_KERNEL(gather_rows, zfd_cuda_gather_rows, NULL)
ZFD_KERNEL(scatter_rows, zfd_cuda_scatter_rows, zfd_cuda_scratch_scatter_rows)
