/* Attention by tiles, with products by threads in f32 or by the matrix cores of waves
 * (ops/attention_waves.cu), and wide heads row by row. ops/attention.cu says how the work is
 * split. */

/* ---------------------------------------------------------------------- products by threads
 * 256 threads as 16 x 16: thread (row, column) has `each` rows and `each` neighbouring keys of a
 * tile of scores, and 4 neighbouring columns of every 64 of a tile of y or a gradient. Where
 * neighbouring threads read rows of K or V, row k is stored at k % each * 16 + k / each, so that
 * they read neighbouring rows.
 *
 * zfd_by_waves (ops/attention_waves.cu) has the same functions, by matrix cores. */

template <class T, int D, int TILE> struct zfd_by_threads {
    typedef float held; /* elements of tiles in shared memory */
    static const bool there = true;
    static const int tile = TILE, each = tile / 16, columns = D / 16, width = D;
    static const int line = D + 4, s_line = tile + 4; /* elements from one row to the next */
    static size_t bytes(int tiles)
    {
        return sizeof(float) * (size_t)(tiles * tile * line + tile * s_line);
    }
    static __device__ __forceinline__ int place(int k) { return k % each * 16 + k / each; }

    /* What follows the tiles in shared memory: probabilities, or what the scores' gradient is. */
    float *p;
    __device__ __forceinline__ zfd_by_threads(held *after) : p(after) {}

    /* Products of the thread's rows of x with its keys, rows of a tile that is stored in this
     * order. */
    __device__ __forceinline__ void scores(float (&s)[each][each], const held *x,
                                           const held *keys) const
    {
        x += (int)threadIdx.x / 16 * each * line, keys += (int)threadIdx.x % 16 * line;
#pragma unroll
        for (int r = 0; r < each; r++)
#pragma unroll
            for (int c = 0; c < each; c++) s[r][c] = 0;
#pragma unroll 4
        for (int i = 0; i < D; i += 4) {
            float a[each][4], b[each][4];
#pragma unroll
            for (int r = 0; r < each; r++) {
                zfd_load<float, 4>(a[r], x + r * line + i);
                zfd_load<float, 4>(b[r], keys + r * 16 * line + i);
            }
#pragma unroll
            for (int r = 0; r < each; r++)
#pragma unroll
                for (int c = 0; c < each; c++)
#pragma unroll
                    for (int e = 0; e < 4; e++) s[r][c] = fmaf(a[r][e], b[c][e], s[r][c]);
        }
    }

    /* Puts the thread's part into p. */
    __device__ __forceinline__ void put(const float (&x)[each][each]) const
    {
        float *to = p + (int)threadIdx.x / 16 * each * s_line + (int)threadIdx.x % 16 * each;
#pragma unroll
        for (int r = 0; r < each; r++) zfd_store<float, each>(to + r * s_line, x[r]);
    }
    /* The same where only rows of p that the warp has are read, by `sums::add`. */
    __device__ __forceinline__ void put_rows(const float (&x)[each][each]) const
    {
        zfd_sync_warp();
        put(x);
        zfd_sync_warp();
    }

    /* The thread's rows of a tile of y or a gradient. */
    struct sums {
        float y[each][columns];

        __device__ __forceinline__ void clear()
        {
#pragma unroll
            for (int r = 0; r < each; r++)
#pragma unroll
                for (int c = 0; c < columns; c++) y[r][c] = 0;
        }
        /* Multiplies rows by what the threads that have scores of them give: two calls, with a
         * barrier between them. */
        __device__ __forceinline__ void scale(const float (&by)[each], const zfd_by_threads &)
        {
#pragma unroll
            for (int r = 0; r < each; r++)
#pragma unroll
                for (int c = 0; c < columns; c++) y[r][c] *= by[r];
        }
        __device__ __forceinline__ void scaled(const zfd_by_threads &) {}

        /* += p x or, ACROSS, p^T x: the thread's rows, all of x's. */
        template <bool ACROSS, bool SPREAD>
        __device__ __forceinline__ void add(const zfd_by_threads &way, const held *x)
        {
            const float *s = way.p;
            const int row = (int)threadIdx.x / 16 * each;
            x += (int)threadIdx.x % 16 * 4;
#pragma unroll 4
            for (int k = 0; k < tile; k++) {
                const float *from = x + (SPREAD ? place(k) : k) * line;
                float by[each], v[4];
#pragma unroll
                for (int r = 0; r < each; r++)
                    by[r] = ACROSS ? s[k * s_line + row + r] : s[(row + r) * s_line + k];
#pragma unroll
                for (int c = 0; c < columns; c += 4) {
                    zfd_load<float, 4>(v, from + c * 16);
#pragma unroll
                    for (int r = 0; r < each; r++)
#pragma unroll
                        for (int e = 0; e < 4; e++) y[r][c + e] = fmaf(by[r], v[e], y[r][c + e]);
                }
            }
        }
        /* From and to `tile` rows of D floats that only this block uses, in an order of its own. */
        __device__ __forceinline__ void load(const float *from)
        {
            from += (int)threadIdx.x / 16 * each * D + (int)threadIdx.x % 16 * 4;
#pragma unroll
            for (int r = 0; r < each; r++)
#pragma unroll
                for (int c = 0; c < columns; c += 4) {
                    float x[4];
                    zfd_load<float, 4>(x, from + r * D + c * 16);
#pragma unroll
                    for (int e = 0; e < 4; e++) y[r][c + e] = x[e];
                }
        }
        __device__ __forceinline__ void store(float *to) const
        {
            to += (int)threadIdx.x / 16 * each * D + (int)threadIdx.x % 16 * 4;
#pragma unroll
            for (int r = 0; r < each; r++)
#pragma unroll
                for (int c = 0; c < columns; c += 4) {
                    float x[4] = {y[r][c], y[r][c + 1], y[r][c + 2], y[r][c + 3]};
                    zfd_store<float, 4>(to + r * D + c * 16, x);
                }
        }
        /* Stores the rows times `by`, the first `has` of the tile. */
        template <class U>
        __device__ __forceinline__ void out(U *to, int64_t row, int has, int d, float by,
                                            bool well) const
        {
            const int first = (int)threadIdx.x / 16 * each, column = (int)threadIdx.x % 16 * 4;
#pragma unroll
            for (int r = 0; r < each; r++)
#pragma unroll
                for (int c = 0; c < columns; c += 4) {
                    float x[4];
                    U *at = to + (first + r) * row + column + c * 16;
#pragma unroll
                    for (int e = 0; e < 4; e++) x[e] = y[r][c + e] * by;
                    if (first + r >= has || column + c * 16 >= d) continue;
                    if (well) zfd_store<U, 4>(at, x);
                    else
#pragma unroll
                        for (int e = 0; e < 4; e++)
                            if (column + c * 16 + e < d) at[e] = zfd_from_f32<U>(x[e]);
                }
        }
    };
    /* Waits, where `sums` are scaled, until all have given what by, or have it. */
    static __device__ __forceinline__ void meet() {}
};

/* ------------------------------------------------------------------------------------ kernels */

template <class WAY, bool SPREAD, class T>
__device__ __forceinline__ void zfd_plain_in(typename WAY::held *tile, const T *from, int64_t row,
                                             int has, int d, bool well)
{
    typedef typename WAY::held held;
    for (int c = (int)threadIdx.x; c < WAY::tile * (WAY::width / 4); c += ZFD_THREADS) {
        int r = c / (WAY::width / 4), i = c % (WAY::width / 4) * 4;
        const T *x = from + r * row + i;
        float y[4] = {0, 0, 0, 0};
        if (r < has && i < d && well) zfd_load<T, 4>(y, x);
        else
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (r < has && i + e < d) y[e] = zfd_to_f32(x[e]);
        zfd_store<held, 4>(tile + (SPREAD ? WAY::place(r) : r) * WAY::line + i, y);
    }
}

/* Stores a tile from element `at` on, in f32 or as T. */
template <class T, class SUMS>
__device__ __forceinline__ void zfd_plain_out(const SUMS &sums, void *to, int64_t at, bool wide,
                                              int64_t row, int has, int d, float by, bool well)
{
    if (wide) sums.out(static_cast<float *>(to) + at, row, has, d, by, well);
    else sums.out(static_cast<T *>(to) + at, row, has, d, by, well);
}

/* WAY: how tiles are multiplied. A kernel by instructions that the architecture lacks is empty. */
template <class T, class WAY>
__global__ void __launch_bounds__(ZFD_THREADS)
    zfd_attention_forward_plain(const zfd_heads a, void *y, float *lse, bool y_well)
{
    typedef typename WAY::held held;
    const int tile = WAY::tile, each = WAY::each, line = WAY::line;
    if (!WAY::there) return;
    ZFD_SHARED(held, q_tile);
    held *k_tile = q_tile + tile * line, *v_tile = k_tile + tile * line;
    const WAY way(v_tile + tile * line);
    const int tiles = (a.m + tile - 1) / tile;
    const zfd_one_head head = zfd_one_head_of(a, (int)(blockIdx.x / (unsigned)tiles));
    const int nth = (int)(blockIdx.x % (unsigned)tiles);
    const int m0 = (a.causal ? tiles - 1 - nth : nth) * tile;
    const int m = m0 + (int)threadIdx.x / 16 * each;
    const zfd_range all = zfd_keys_of(a, head, m0, tile);
    const int end = all.end;
    const int64_t keys_at = zfd_key_at(a, head, 0);
    const zfd_dropper drop = zfd_dropper_of(a.drop);
    typename WAY::sums o;
    float s[each][each], fix[each], most[each], sum[each];
#pragma unroll
    for (int r = 0; r < each; r++) most[r] = -INFINITY, sum[r] = 0;
    o.clear();
    zfd_plain_in<WAY, false>(q_tile,
                             static_cast<const T *>(a.q) + zfd_token_at(a, head, a.m, m0, a.row),
                             a.row, a.m - m0, a.d, a.well);
    for (int n0 = zfd_next_keys(a, head, m0, tile, all.first / tile * tile, end, tile); n0 < end;
         n0 = zfd_next_keys(a, head, m0, tile, n0 + tile, end, tile)) {
        const int n = n0 + (int)threadIdx.x % 16 * each;
        const int64_t at = keys_at + n0 * a.kv_row;
        __syncthreads(); /* the keys before have been read */
        zfd_plain_in<WAY, true>(k_tile, static_cast<const T *>(a.k) + at, a.kv_row, a.n - n0, a.d,
                                a.well);
        zfd_plain_in<WAY, false>(v_tile, static_cast<const T *>(a.v) + at, a.kv_row, a.n - n0, a.d,
                                 a.well);
        __syncthreads();
        way.scores(s, q_tile, k_tile);
#pragma unroll
        for (int r = 0; r < each; r++) {
            const bool listed = zfd_keys_listed(a, head, m + r, 1, n / ZFD_UNIT * ZFD_UNIT) & 1;
            const zfd_range sees = zfd_keys_seen(a, head, m + r);
            float bias[each] = {0}, high = most[r], shift;
            uint32_t kept = ~0u;
            if (a.bias) zfd_bias_of<T, each>(a, zfd_bias_row<T>(a, head, m + r), n, bias);
            if (!drop.off)
                kept = zfd_kept_from<each>(drop, zfd_score_number(a, head, m + r) + (unsigned)n);
#pragma unroll
            for (int c = 0; c < each; c++) {
                s[r][c] = listed && n + c < sees.end && n + c >= sees.first
                              ? zfd_score_of(a, s[r][c], bias[c])
                              : -INFINITY;
                high = fmaxf(high, s[r][c]);
            }
#pragma unroll
            for (int step = 8; step; step /= 2)
                high = fmaxf(high, zfd_shuffle_xor(high, step));
            shift = high == -INFINITY ? 0 : high;
            fix[r] = zfd_exp2(most[r] - shift);
            most[r] = high;
            sum[r] *= fix[r];
#pragma unroll
            for (int c = 0; c < each; c++) {
                s[r][c] = zfd_exp2(s[r][c] - shift);
                sum[r] += s[r][c];
                if (!(kept >> c & 1)) s[r][c] = 0;
            }
        }
        o.scale(fix, way);
        way.put_rows(s);
        o.scaled(way);
        o.template add<false, false>(way, v_tile);
    }
#pragma unroll
    for (int r = 0; r < each; r++) {
#pragma unroll
        for (int step = 8; step; step /= 2) sum[r] += zfd_shuffle_xor(sum[r], step);
        if (lse && threadIdx.x % 16 == 0 && m + r < a.m)
            lse[(int64_t)head.number * a.m + m + r] = most[r] * 0.693147181f + logf(sum[r]);
        sum[r] = sum[r] == 0 ? 0 : (drop.off ? 1 : drop.scale) / sum[r];
    }
    const int64_t hidden = (int64_t)a.heads * a.d;
    WAY::meet();
    o.scale(sum, way);
    WAY::meet();
    o.scaled(way);
    zfd_plain_out<T>(o, y, zfd_token_at(a, head, a.m, m0, hidden), a.wide, hidden, a.m - m0, a.d, 1,
                     y_well);
}

template <class T, class WAY>
__global__ void __launch_bounds__(ZFD_THREADS)
    zfd_attention_backward_plain(const zfd_heads a, const zfd_heads_back b)
{
    typedef typename WAY::held held;
    const int tile = WAY::tile, each = WAY::each, line = WAY::line;
    if (!WAY::there) return;
    ZFD_SHARED(held, k_tile);
    held *v_tile = k_tile + tile * line, *q_tile = v_tile + tile * line;
    held *g_tile = q_tile + tile * line;
    const WAY way(g_tile + tile * line);
    const int row = (int)threadIdx.x / 16 * each, column = (int)threadIdx.x % 16;
    const zfd_dropper drop = zfd_dropper_of(a.drop);
    const float keep = drop.off ? 1 : drop.scale, scale = a.scale * 0.693147181f;
    float *sums = b.sums + blockIdx.x * b.sums_size;

    for (int64_t task = blockIdx.x; task < b.tasks; task += gridDim.x) {
        const zfd_tiles x = zfd_tiles_of(a, b, task);
        const zfd_one_head head = x.head;
        if (a.narrow && x.dq) zfd_clear_sums(sums, (int64_t)(x.i1 - x.i0) * tile * WAY::width);
        for (int j = x.j0; j < x.j1; j++) {
            const int n0 = j * tile, n = n0 + column * each;
            const zfd_range of = zfd_query_tiles(a, x, j, tile, tile);
            const int first = zfd_next_queries(a, x, j, of.first, of.end, tile, tile);
            const int64_t at = zfd_key_at(a, head, n0);
            const int64_t to = zfd_token_at(a, head, a.n, n0, b.kv_row);
            typename WAY::sums dk, dv;
            if (first >= of.end && !x.dkv) continue;
            __syncthreads(); /* the tiles before have been read */
            zfd_plain_in<WAY, true>(k_tile, static_cast<const T *>(a.k) + at, a.kv_row, a.n - n0,
                                    a.d, a.well);
            zfd_plain_in<WAY, true>(v_tile, static_cast<const T *>(a.v) + at, a.kv_row, a.n - n0,
                                    a.d, a.well);
            dk.clear(), dv.clear();
            for (int i = first; i < of.end;
                 i = zfd_next_queries(a, x, j, i + 1, of.end, tile, tile)) {
                const int m0 = i * tile, m = m0 + row;
                const int64_t g_at = zfd_token_at(a, head, a.m, m0, b.hidden);
                float s[each][each], dp[each][each];
                __syncthreads();
                zfd_plain_in<WAY, false>(
                    q_tile, static_cast<const T *>(a.q) + zfd_token_at(a, head, a.m, m0, a.row),
                    a.row, a.m - m0, a.d, a.well);
                zfd_plain_in<WAY, false>(g_tile, static_cast<const T *>(b.dy) + g_at, b.hidden,
                                         a.m - m0, a.d, b.dy_well);
                __syncthreads();
                way.scores(s, q_tile, k_tile);
                way.scores(dp, g_tile, v_tile);
#pragma unroll
                for (int r = 0; r < each; r++) {
                    const bool listed =
                        zfd_keys_listed(a, head, m + r, 1, n / ZFD_UNIT * ZFD_UNIT) & 1;
                    const zfd_range sees = zfd_keys_seen(a, head, m + r);
                    const int64_t of_row = (int64_t)head.number * a.m + min(m + r, a.m - 1);
                    const float shift = b.shift[of_row], less = b.delta[of_row];
                    float bias[each] = {0};
                    uint32_t kept = ~0u;
                    if (a.bias)
                        zfd_bias_of<T, each>(a, zfd_bias_row<T>(a, head, m + r), n, bias);
                    if (!drop.off)
                        kept = zfd_kept_from<each>(
                            drop, zfd_score_number(a, head, m + r) + (unsigned)n);
#pragma unroll
                    for (int c = 0; c < each; c++) {
                        float by = kept >> c & 1 ? keep : 0, slope = 1;
                        float prob = zfd_exp2(zfd_score_of(a, s[r][c], bias[c] - shift));
                        bool there = listed && n + c < sees.end && n + c >= sees.first;
                        if (a.cap > 0) slope = zfd_score_slope(a, s[r][c]);
                        dp[r][c] = there ? prob * fmaf(dp[r][c], by, -less) * slope : 0;
                        s[r][c] = there ? prob * by : 0;
                    }
                }
                if (x.dkv) {
                    way.put(s);
                    __syncthreads();
                    dv.template add<true, false>(way, g_tile);
                    __syncthreads();
                }
                way.put(dp);
                __syncthreads();
                if (x.dkv) dk.template add<true, false>(way, q_tile);
                if (x.dq) {
                    typename WAY::sums dq;
                    float *sum = sums + (int64_t)(i - x.i0) * tile * WAY::width;
                    if (j > 0 || a.narrow) dq.load(sum);
                    else dq.clear();
                    dq.template add<false, true>(way, k_tile);
                    if (!a.narrow && j == zfd_last_keys(a, i, tile, tile))
                        zfd_plain_out<T>(dq, b.dq, zfd_token_at(a, head, a.m, m0, b.row), a.wide,
                                         b.row, a.m - m0, a.d, scale, b.well);
                    else dq.store(sum);
                }
            }
            if (x.dkv && b.dk)
                zfd_plain_out<T>(dk, b.dk, to, b.wide, b.kv_row, a.n - n0, a.d, scale, b.well);
            if (x.dkv && b.dv)
                zfd_plain_out<T>(dv, b.dv, to, b.wide, b.kv_row, a.n - n0, a.d, 1, b.well);
        }
        if (!a.narrow || !x.dq) continue;
        __syncthreads();
        for (int i = x.i0; i < x.i1; i++) {
            typename WAY::sums dq;
            dq.load(sums + (int64_t)(i - x.i0) * tile * WAY::width);
            zfd_plain_out<T>(dq, b.dq, zfd_token_at(a, head, a.m, i * tile, b.row), a.wide, b.row,
                             a.m - i * tile, a.d, scale, b.well);
        }
        __syncthreads(); /* the sums have been read: the next task clears them */
    }
}
/* ------------------------------------------------------------------------------ wide heads
 * A block of threads computes one row of y (and lse), of dQ, or of dK and dV. For every 256 columns
 * of the row it loops over the row's keys or queries, 64 at a time. A warp computes the scores of
 * every eighth; a thread adds up one column. */

enum zfd_wide_row { ZFD_ROW_OF_Y, ZFD_ROW_OF_DQ, ZFD_ROW_OF_DKV };
enum { ZFD_MEETS = 64 };

/* The dot product of x and y, by one warp. */
template <class T> __device__ __forceinline__ float zfd_wide_dot(const T *x, const T *y, int d)
{
    float sum = 0;
    for (int i = (int)threadIdx.x % ZFD_WARP; i < d; i += ZFD_WARP)
        sum = fmaf(zfd_to_f32(x[i]), zfd_to_f32(y[i]), sum);
    return zfd_warp_sum(sum);
}

/* Stores element `at`, in f32 or as T. */
template <class T>
__device__ __forceinline__ void zfd_wide_out(void *to, int64_t at, bool wide, float x)
{
    if (wide) static_cast<float *>(to)[at] = x;
    else static_cast<T *>(to)[at] = zfd_from_f32<T>(x);
}

template <class T>
__global__ void __launch_bounds__(ZFD_THREADS)
    zfd_attention_wide(const zfd_heads a, const zfd_heads_back b, void *y, float *lse, int what)
{
    const int warp = (int)threadIdx.x / ZFD_WARP, lane = (int)threadIdx.x % ZFD_WARP;
    const int warps = ZFD_THREADS / ZFD_WARP, rows = what == ZFD_ROW_OF_DKV ? a.n : a.m;
    const zfd_dropper drop = zfd_dropper_of(a.drop);
    const float keep = drop.off ? 1 : drop.scale, scale = a.scale * 0.693147181f;
    ZFD_SHARED(float, p);
    float *ds = p + ZFD_MEETS, *most_of = ds + ZFD_MEETS, *sum_of = most_of + warps;
    for (int64_t task = blockIdx.x; task < a.count * rows; task += gridDim.x) {
        const zfd_one_head head = zfd_one_head_of(a, (int)(task / rows));
        const int row = (int)(task % rows);
        const int64_t q_at = zfd_token_at(a, head, a.m, 0, a.row);
        const int64_t k_at = zfd_key_at(a, head, 0);
        const T *q = static_cast<const T *>(a.q) + q_at, *k = static_cast<const T *>(a.k) + k_at;
        const T *v = static_cast<const T *>(a.v) + k_at, *dy = static_cast<const T *>(b.dy);
        if (dy) dy += zfd_token_at(a, head, a.m, 0, b.hidden);
        const int meets = what == ZFD_ROW_OF_DKV ? a.m : zfd_keys_seen(a, head, row).end;
        auto sees = [&](int m, int n) {
            const zfd_range of = zfd_keys_seen(a, head, m);
            return n < of.end && n >= of.first &&
                   (zfd_keys_listed(a, head, m, 1, n / ZFD_UNIT * ZFD_UNIT) & 1);
        };
        /* The score of query m and key n, times log2 e; -inf where the query does not see the
         * key. */
        auto score = [&](int m, int n) {
            float bias[1] = {0};
            if (!sees(m, n)) return -INFINITY;
            if (a.bias) zfd_bias_of<T, 1>(a, zfd_bias_row<T>(a, head, m), n, bias);
            return zfd_score_of(a, zfd_wide_dot(q + m * a.row, k + n * a.kv_row, a.d), bias[0]);
        };
        auto slope = [&](int m, int n) {
            if (!(a.cap > 0)) return 1.0f;
            return zfd_score_slope(a, zfd_wide_dot(q + m * a.row, k + n * a.kv_row, a.d));
        };
        float shift = 0, by = 0;
        if (what == ZFD_ROW_OF_Y) { /* the row's maximum and sum: of each warp, then of all warps */
            float most = -INFINITY, sum = 0, high;
            for (int n = warp; n < meets; n += warps) {
                float x = score(row, n);
                high = fmaxf(most, x);
                shift = high == -INFINITY ? 0 : high;
                sum = sum * zfd_exp2(most - shift) + zfd_exp2(x - shift);
                most = high;
            }
            __syncthreads();
            if (lane == 0) most_of[warp] = most, sum_of[warp] = sum;
            __syncthreads();
            high = -INFINITY, sum = 0;
            for (int w = 0; w < warps; w++) high = fmaxf(high, most_of[w]);
            shift = high == -INFINITY ? 0 : high;
            for (int w = 0; w < warps; w++) sum += sum_of[w] * zfd_exp2(most_of[w] - shift);
            by = sum == 0 ? 0 : keep / sum;
            if (lse && threadIdx.x == 0)
                lse[(int64_t)head.number * a.m + row] = high * 0.693147181f + logf(sum);
        }
        for (int from = 0; from < a.d; from += ZFD_THREADS) {
            const int column = from + (int)threadIdx.x;
            float one = 0, two = 0; /* y, dQ or dV; dK */
            for (int first = 0; first < meets; first += ZFD_MEETS) {
                const int count = min(ZFD_MEETS, meets - first);
                __syncthreads();
                for (int i = warp; i < count; i += warps) {
                    const int m = what == ZFD_ROW_OF_DKV ? first + i : row;
                    const int n = what == ZFD_ROW_OF_DKV ? row : first + i;
                    const int64_t of_row = (int64_t)head.number * a.m + m;
                    const float x = score(m, n);
                    const uint64_t e = zfd_score_number(a, head, m) + (unsigned)n;
                    const bool kept = zfd_kept(drop, e) != 0;
                    float prob, dp;
                    if (what == ZFD_ROW_OF_Y) {
                        if (lane == 0) p[i] = kept ? zfd_exp2(x - shift) : 0;
                        continue;
                    }
                    dp = zfd_wide_dot(dy + m * b.hidden, v + n * a.kv_row, a.d);
                    const float by_slope = slope(m, n);
                    if (lane) continue;
                    prob = zfd_exp2(x - b.shift[of_row]);
                    const bool seen = sees(m, n);
                    p[i] = kept && seen ? prob * keep : 0;
                    ds[i] = seen ? prob * fmaf(dp, kept ? keep : 0, -b.delta[of_row]) * by_slope : 0;
                }
                __syncthreads();
                for (int i = 0; i < count && column < a.d; i++) {
                    const int64_t at = (first + i) * a.kv_row + column;
                    if (what == ZFD_ROW_OF_Y) one = fmaf(p[i], zfd_to_f32(v[at]), one);
                    if (what == ZFD_ROW_OF_DQ) one = fmaf(ds[i], zfd_to_f32(k[at]), one);
                    if (what != ZFD_ROW_OF_DKV) continue;
                    one = fmaf(p[i], zfd_to_f32(dy[(first + i) * b.hidden + column]), one);
                    two = fmaf(ds[i], zfd_to_f32(q[(first + i) * a.row + column]), two);
                }
            }
            if (column >= a.d) continue;
            if (what == ZFD_ROW_OF_Y) {
                int64_t hidden = (int64_t)a.heads * a.d;
                zfd_wide_out<T>(y, zfd_token_at(a, head, a.m, row, hidden) + column, a.wide,
                                one * by);
            } else if (what == ZFD_ROW_OF_DQ) {
                zfd_wide_out<T>(b.dq, zfd_token_at(a, head, a.m, row, b.row) + column, a.wide,
                                one * scale);
            } else {
                int64_t to = zfd_token_at(a, head, a.n, row, b.kv_row) + column;
                if (b.dk) zfd_wide_out<T>(b.dk, to, b.wide, two * scale);
                if (b.dv) zfd_wide_out<T>(b.dv, to, b.wide, one);
            }
        }
    }
}
