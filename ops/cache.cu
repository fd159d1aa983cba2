/* cached_attention on CUDA (ops/cache.c): a kernel that writes the new rows into the caches, then one
 * that attends. A block has one query of one head; its warps take the keys in turns, each with its
 * own maximum, sum and y, which are added in the order of the warps.
 *
 *     keys    0 1 2 3 4 5 6 7 ...     shared    q [d] | y of warp 0 [d] | ... | maxima and sums
 *     warp    0 1 2 3 0 1 2 3 ...
 */

enum { ZFI_CACHED_WARPS = 4, ZFI_CACHED_STATIC = 48 << 10 /* bytes of shared memory at most */ };

typedef struct zfi_cached {
    const void *q, *k, *v, *past, *count;
    void *caches[2], *y;
    bool past_wide, count_wide; /* they are i64 */
    int64_t m, n, most;         /* tokens of q; rows of a cache; tokens of a text, at most */
    int64_t heads, group, d, window;
    int64_t row, kv_row; /* elements of a token: of q; of k and v */
    int64_t rows;        /* elements of k */
    float scale;
    int32_t op, node;
    zfi_fault *fault;
} zfi_cached;

/* Tokens of example b in the caches, and new ones: none where they do not fit. */
__device__ __forceinline__ bool zfi_cached_range(const zfi_cached &c, int64_t b, int64_t *past,
                                                 int64_t *count)
{
    *past = zfi_index_at(c.past, c.past_wide, b), *count = zfi_index_at(c.count, c.count_wide, b);
    return *past >= 0 && *count >= 0 && *count <= c.m && *past <= c.most &&
           *count <= c.most - *past;
}

template <class T> __global__ void zfi_cached_store_kernel(const zfi_cached c)
{
    for (int64_t n = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; n < c.rows;
         n += (int64_t)gridDim.x * blockDim.x) {
        const int64_t token = n / c.kv_row, b = token / c.m, t = token % c.m;
        int64_t past, count;
        if (!zfi_cached_range(c, b, &past, &count)) {
            zfi_fault what = {ZFI_FAULT_CACHE, c.op, c.node, b, past, c.most, (double)c.m, count};
            if (n == token * c.kv_row && t == 0) zfi_report(c.fault, what);
        } else if (t < count) {
            const int64_t to = (b * c.n + (past + t) % c.n) * c.kv_row + n % c.kv_row;
            static_cast<T *>(c.caches[0])[to] = static_cast<const T *>(c.k)[n];
            static_cast<T *>(c.caches[1])[to] = static_cast<const T *>(c.v)[n];
        }
    }
}

template <class T> __global__ void zfi_cached_kernel(const zfi_cached c)
{
    ZF_SHARED(float, shared);
    const int64_t token = blockIdx.x / c.heads, head = blockIdx.x % c.heads;
    const int64_t b = token / c.m, t = token % c.m, warp = threadIdx.x / ZFI_WARP,
                  lane = threadIdx.x % ZFI_WARP;
    const T *q = static_cast<const T *>(c.q) + token * c.row + head * c.d;
    T *out = static_cast<T *>(c.y) + token * c.row + head * c.d;
    const int64_t at = b * c.n * c.kv_row + head / c.group * c.d;
    const T *keys = static_cast<const T *>(c.caches[0]) + at,
            *values = static_cast<const T *>(c.caches[1]) + at;
    float *y = shared + (1 + warp) * c.d, *most_of = shared + (1 + ZFI_CACHED_WARPS) * c.d,
          *sum_of = most_of + ZFI_CACHED_WARPS;
    float most = -INFINITY, sum = 0;
    int64_t past, count, seen, first;
    if (!zfi_cached_range(c, b, &past, &count) || t >= count) {
        for (int64_t i = threadIdx.x; i < c.d; i += blockDim.x) out[i] = zfi_from_f32<T>(0);
        return;
    }
    seen = past + t + 1, first = seen > c.window ? seen - c.window : 0;
    for (int64_t i = threadIdx.x; i < c.d; i += blockDim.x) shared[i] = zfi_to_f32(q[i]);
    for (int64_t i = lane; i < c.d; i += ZFI_WARP) y[i] = 0;
    __syncthreads();
    for (int64_t n = first + warp; n < seen; n += ZFI_CACHED_WARPS) {
        const int64_t from = n % c.n * c.kv_row;
        float score = 0, before = most, base, fix, p;
        for (int64_t i = lane; i < c.d; i += ZFI_WARP)
            score = fmaf(shared[i], zfi_to_f32(keys[from + i]), score);
        score = c.scale * zfi_warp_sum(score);
        most = fmaxf(most, score);
        base = most == -INFINITY ? 0 : most;
        fix = expf(before - base), p = expf(score - base);
        sum = fmaf(sum, fix, p);
        for (int64_t i = lane; i < c.d; i += ZFI_WARP)
            y[i] = fmaf(p, zfi_to_f32(values[from + i]), y[i] * fix);
    }
    if (lane == 0) most_of[warp] = most, sum_of[warp] = sum;
    __syncthreads();
    most = -INFINITY, sum = 0;
    for (int w = 0; w < ZFI_CACHED_WARPS; w++) most = fmaxf(most, most_of[w]);
    if (most == -INFINITY) most = 0;
    for (int w = 0; w < ZFI_CACHED_WARPS; w++) sum += sum_of[w] * expf(most_of[w] - most);
    for (int64_t i = threadIdx.x; i < c.d; i += blockDim.x) {
        float all = 0;
        for (int w = 0; w < ZFI_CACHED_WARPS; w++)
            all += shared[(1 + w) * c.d + i] * expf(most_of[w] - most);
        out[i] = zfi_from_f32<T>(sum == 0 ? 0 : all / sum);
    }
}

static zf_status zfi_cuda_cached_attention(const zf_launch *l)
{
    const zf_array *x = l->args;
    const int64_t window = ZF_INT(l, cached_attention, window),
                  kv_heads = ZF_INT(l, cached_attention, kv_heads);
    zfi_cached c = {};
    size_t shared;
    c.q = x[0].data, c.k = x[1].data, c.v = x[2].data, c.past = x[3].data, c.count = x[4].data;
    c.caches[0] = x[5].data, c.caches[1] = x[6].data, c.y = l->out.data;
    c.past_wide = x[3].dtype == ZF_I64, c.count_wide = x[4].dtype == ZF_I64;
    c.m = x[0].shape.dims[1], c.n = x[5].shape.dims[1];
    c.heads = ZF_INT(l, cached_attention, heads), c.group = kv_heads ? c.heads / kv_heads : 1;
    c.row = x[0].shape.dims[2], c.kv_row = x[1].shape.dims[2], c.d = c.row / c.heads;
    c.most = ZF_INT(l, cached_attention, ring) ? (int64_t)1 << 40 : c.n;
    c.window = window ? window : c.n, c.rows = zfi_count(&x[1]);
    c.scale = (float)ZF_FLOAT(l, cached_attention, scale);
    c.op = l->op, c.node = l->node, c.fault = zfi_device_of(l)->fault;
    shared = (size_t)((1 + ZFI_CACHED_WARPS) * c.d + 2 * ZFI_CACHED_WARPS) * sizeof(float);
    if (!zfi_count(&l->out)) return ZF_OK;
    if (shared > ZFI_CACHED_STATIC || zfi_count(&l->out) / c.d > INT32_MAX)
        return zfi_cuda_fail(l->error, ZF_ERR_BACKEND,
                             "cached_attention %%%d: on CUDA heads are at most %d wide, and there are "
                             "2^31 queries at most",
                             (int)l->node,
                             (int)((ZFI_CACHED_STATIC / 4 - 2 * ZFI_CACHED_WARPS) /
                                   (1 + ZFI_CACHED_WARPS)));
    ZFI_FLOATS(l, l->out.dtype, T, {
        ZF_LAUNCH(zfi_cached_store_kernel<T>, zfi_grid(l, zfi_div_up(c.rows, ZFI_THREADS)),
                  ZFI_THREADS, 0, zfi_stream(l), c);
        ZF_LAUNCH(zfi_cached_kernel<T>, (unsigned)(zfi_count(&l->out) / c.d),
                  ZFI_CACHED_WARPS * ZFI_WARP, shared, zfi_stream(l), c);
    })
    return zfi_launched(l);
}

ZFI_KERNEL(cached_attention, zfi_cuda_cached_attention, NULL)
