/* cached_attention on CUDA (ops/cache.c): a kernel that writes the new rows into the caches, then
 * one that attends. A block has one query of one head; its warps take the keys in turns, each with
 * its own maximum, sum and y, which are added in the order of the warps.
 *
 *     keys    0 1 2 3 4 5 6 7 ...     shared    q [d] | y of warp 0 [d] | ... | maxima and sums
 *     warp    0 1 2 3 0 1 2 3 ...
 *
 * With a block mask they take the keys of the blocks that the row of the query's place lists. */

enum { ZFD_CACHED_WARPS = 4, ZFD_CACHED_STATIC = 48 << 10 /* bytes of shared memory at most */ };

typedef struct zfd_cached {
    const void *q, *k, *v, *past, *count;
    void *caches[2], *y;
    bool past_wide, count_wide; /* they are i64 */
    int64_t m, n, most;         /* tokens of q; rows of a cache; tokens of a text, at most */
    int64_t heads, group, d, window;
    int64_t row, kv_row; /* elements of a token: of q; of k and v */
    int64_t rows;        /* elements of k */
    const void *bias;    /* of y's dtype [heads or 1, rows of a cache], or NULL */
    int64_t bias_row;    /* elements from one head's to the next: 0 of one for all */
    const int *lists;    /* of a block mask over the rows of a cache, or NULL */
    int block, layouts;
    float scale, cap;    /* cap 0: none */
    int32_t op, node;
    zfd_fault *fault;
} zfd_cached;

/* Tokens of example b in the caches, and new ones: none where they do not fit. */
__device__ __forceinline__ bool zfd_cached_range(const zfd_cached &c, int64_t b, int64_t *past,
                                                 int64_t *count)
{
    *past = zfd_index_at(c.past, c.past_wide, b), *count = zfd_index_at(c.count, c.count_wide, b);
    return *past >= 0 && *count >= 0 && *count <= c.m && *past <= c.most &&
           *count <= c.most - *past;
}

template <class T> __global__ void zfd_cached_store_kernel(const zfd_cached c)
{
    for (int64_t n = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; n < c.rows;
         n += (int64_t)gridDim.x * blockDim.x) {
        const int64_t token = n / c.kv_row, b = token / c.m, t = token % c.m;
        int64_t past, count;
        if (!zfd_cached_range(c, b, &past, &count)) {
            zfd_fault what = {ZFD_FAULT_CACHE, c.op, c.node, b, past, c.most, (double)c.m, count, 0};
            if (n == token * c.kv_row && t == 0) zfd_report(c.fault, what);
        } else if (t < count) {
            const int64_t to = (b * c.n + (past + t) % c.n) * c.kv_row + n % c.kv_row;
            static_cast<T *>(c.caches[0])[to] = static_cast<const T *>(c.k)[n];
            static_cast<T *>(c.caches[1])[to] = static_cast<const T *>(c.v)[n];
        }
    }
}

/* A list of blocks of keys, or all keys from `first` to `end`. */
typedef struct zfd_cached_keys {
    const int *at;
    int64_t first, end, count; /* count: keys to go through */
} zfd_cached_keys;

__device__ __forceinline__ zfd_cached_keys zfd_cached_keys_of(const zfd_cached &c, int64_t head,
                                                              int64_t place)
{
    zfd_cached_keys keys = {NULL, place + 1 > c.window ? place + 1 - c.window : 0, place + 1, 0};
    keys.count = keys.end - keys.first;
    if (c.lists) {
        const int64_t blocks = (c.n + c.block - 1) / c.block;
        const int *begin = c.lists + 2 + head % c.layouts * (blocks + 1) + place / c.block;
        keys.at = c.lists + 2 + 2 * c.layouts * (blocks + 1) + begin[0];
        keys.count = (int64_t)(begin[1] - begin[0]) * c.block;
    }
    return keys;
}

/* Key number i of them; -1: it is not seen. */
__device__ __forceinline__ int64_t zfd_cached_key(const zfd_cached &c, const zfd_cached_keys &keys,
                                                  int64_t i)
{
    int64_t n;
    if (!keys.at) return keys.first + i;
    n = (int64_t)keys.at[i / c.block] * c.block + i % c.block;
    return n >= keys.first && n < keys.end ? n : -1;
}

template <class T> __global__ void zfd_cached_kernel(const zfd_cached c)
{
    ZFD_SHARED(float, shared);
    const int64_t token = blockIdx.x / c.heads, head = blockIdx.x % c.heads;
    const int64_t b = token / c.m, t = token % c.m, warp = threadIdx.x / ZFD_WARP,
                  lane = threadIdx.x % ZFD_WARP;
    const T *q = static_cast<const T *>(c.q) + token * c.row + head * c.d;
    T *out = static_cast<T *>(c.y) + token * c.row + head * c.d;
    const int64_t at = b * c.n * c.kv_row + head / c.group * c.d;
    const T *keys = static_cast<const T *>(c.caches[0]) + at,
            *values = static_cast<const T *>(c.caches[1]) + at;
    float *y = shared + (1 + warp) * c.d, *most_of = shared + (1 + ZFD_CACHED_WARPS) * c.d,
          *sum_of = most_of + ZFD_CACHED_WARPS;
    float most = -INFINITY, sum = 0;
    zfd_cached_keys seen;
    int64_t past, count;
    if (!zfd_cached_range(c, b, &past, &count) || t >= count) {
        for (int64_t i = threadIdx.x; i < c.d; i += blockDim.x) out[i] = zfd_from_f32<T>(0);
        return;
    }
    seen = zfd_cached_keys_of(c, head, past + t);
    for (int64_t i = threadIdx.x; i < c.d; i += blockDim.x) shared[i] = zfd_to_f32(q[i]);
    for (int64_t i = lane; i < c.d; i += ZFD_WARP) y[i] = 0;
    __syncthreads();
    for (int64_t k = warp; k < seen.count; k += ZFD_CACHED_WARPS) {
        const int64_t n = zfd_cached_key(c, seen, k), from = n % c.n * c.kv_row;
        if (n < 0) continue;
        float score = 0, before = most, base, fix, p;
        for (int64_t i = lane; i < c.d; i += ZFD_WARP)
            score = fmaf(shared[i], zfd_to_f32(keys[from + i]), score);
        score = c.scale * zfd_warp_sum(score);
        if (c.cap > 0) score = c.cap * tanhf(score / c.cap);
        if (c.bias) score += zfd_to_f32(static_cast<const T *>(c.bias)[head * c.bias_row + n]);
        most = fmaxf(most, score);
        base = most == -INFINITY ? 0 : most;
        fix = expf(before - base), p = expf(score - base);
        sum = fmaf(sum, fix, p);
        for (int64_t i = lane; i < c.d; i += ZFD_WARP)
            y[i] = fmaf(p, zfd_to_f32(values[from + i]), y[i] * fix);
    }
    if (lane == 0) most_of[warp] = most, sum_of[warp] = sum;
    __syncthreads();
    most = -INFINITY, sum = 0;
    for (int w = 0; w < ZFD_CACHED_WARPS; w++) most = fmaxf(most, most_of[w]);
    if (most == -INFINITY) most = 0;
    for (int w = 0; w < ZFD_CACHED_WARPS; w++) sum += sum_of[w] * expf(most_of[w] - most);
    for (int64_t i = threadIdx.x; i < c.d; i += blockDim.x) {
        float all = 0;
        for (int w = 0; w < ZFD_CACHED_WARPS; w++)
            all += shared[(1 + w) * c.d + i] * expf(most_of[w] - most);
        out[i] = zfd_from_f32<T>(sum == 0 ? 0 : all / sum);
    }
}

static zf_status zfd_cuda_cached_attention(const zf_launch *l)
{
    const zf_array *x = l->args;
    const int64_t window = ZF_INT(l, cached_attention, window),
                  kv_heads = ZF_INT(l, cached_attention, kv_heads);
    zfd_cached c = {};
    size_t shared;
    c.q = x[0].data, c.k = x[1].data, c.v = x[2].data, c.past = x[3].data, c.count = x[4].data;
    c.caches[0] = x[5].data, c.caches[1] = x[6].data, c.y = l->out.data;
    c.past_wide = x[3].dtype == ZF_I64, c.count_wide = x[4].dtype == ZF_I64;
    c.m = x[0].shape.dims[1], c.n = x[5].shape.dims[1];
    c.heads = ZF_INT(l, cached_attention, heads), c.group = kv_heads ? c.heads / kv_heads : 1;
    c.row = x[0].shape.dims[2], c.kv_row = x[1].shape.dims[2], c.d = c.row / c.heads;
    c.most = ZF_INT(l, cached_attention, ring) ? (int64_t)1 << 40 : c.n;
    c.window = window ? window : c.n, c.rows = zfd_count(&x[1]);
    c.block = (int)ZF_INT(l, cached_attention, block);
    c.layouts = (int)ZF_INT(l, cached_attention, layouts);
    if (c.block) c.lists = static_cast<const int *>(x[7].data);
    if (ZF_INT(l, cached_attention, biased)) {
        const zf_array *bias = &x[l->arg_count - 1];
        c.bias = bias->data, c.bias_row = bias->shape.dims[1] > 1 ? c.n : 0;
    }
    c.scale = (float)ZF_FLOAT(l, cached_attention, scale);
    c.cap = (float)ZF_FLOAT(l, cached_attention, cap);
    c.op = l->op, c.node = l->node, c.fault = zfd_device_of(l)->fault;
    shared = (size_t)((1 + ZFD_CACHED_WARPS) * c.d + 2 * ZFD_CACHED_WARPS) * sizeof(float);
    if (!zfd_count(&l->out)) return ZF_OK;
    if (shared > ZFD_CACHED_STATIC || zfd_count(&l->out) / c.d > INT32_MAX)
        return zfd_cuda_fail(l->error, ZF_ERR_BACKEND,
                             "cached_attention %%%d: on " ZFD_GPU " heads are at most %d wide, and there "
                             "are 2^31 queries at most",
                             (int)l->node,
                             (int)((ZFD_CACHED_STATIC / 4 - 2 * ZFD_CACHED_WARPS) /
                                   (1 + ZFD_CACHED_WARPS)));
    ZFD_FLOATS(l, l->out.dtype, T, {
        ZFD_LAUNCH(zfd_cached_store_kernel<T>, zfd_grid(l, zfd_div_up(c.rows, ZFD_THREADS)),
                   ZFD_THREADS, 0, zfd_stream(l), c);
        ZFD_LAUNCH(zfd_cached_kernel<T>, (unsigned)(zfd_count(&l->out) / c.d),
                   ZFD_CACHED_WARPS * ZFD_WARP, shared, zfd_stream(l), c);
    })
    return zfd_launched(l);
}

ZFD_KERNEL(cached_attention, zfd_cuda_cached_attention, NULL)
