/* Attention in 16 bits by the tensor cores of a warp: mma m16n8k16 (cuda/cores/mma.cu).
 * ops/attention.cu says how the work is split. */

/* ------------------------------------------------------------------------- tiles of 16 bits
 * Rows of D elements in shared memory, split into chunks of 8 elements, 16 bytes. Chunks of a row
 * are permuted so that the 8 rows of a matrix lie in different banks, the rows being r, ... with a
 * step of 1, 2 or 4, or by twos with a step of 4. If a chunk (0 or 1) begins at x, the chunk 2 i
 * further begins at x ^ 16 i. Rows 32 apart have the same permutation. */

template <int D> __device__ __forceinline__ int zfd_chunk_at(int row, int chunk)
{
    int by = (row & 7) ^ (row >> 3 & 1) * 3 ^ (row >> 4 & 1);
    if (D == 32) by = (row >> 1 & 3) ^ (row >> 3 & 1);
    return row * D + (chunk ^ by) * 8;
}

/* Fetches ROWS rows into a tile; zeros beyond `has` rows and beyond d elements of a row. All
 * threads of the block must take part. The tile is complete after zfd_fetched and a barrier. */
template <int D, class T>
__device__ __forceinline__ void zfd_tile_in(T *tile, int rows, const T *from, int64_t row, int has,
                                            int d, bool well)
{
    const int chunks = D / 8, k = (int)threadIdx.x % chunks, step = (int)blockDim.x / chunks;
    const T *x = from + (int)threadIdx.x / chunks * row + k * 8;
#pragma unroll 1
    for (int r = (int)threadIdx.x / chunks; r < rows; r += step, x += step * row) {
        T *to = tile + zfd_chunk_at<D>(r, k);
        bool there = r < has && k * 8 < d;
        if (well) {
            zfd_fetch<16>(to, there ? x : from, there);
        } else {
#pragma unroll
            for (int i = 0; i < 8; i++) to[i] = there && k * 8 + i < d ? x[i] : zfd_from_f32<T>(0);
        }
    }
}

/* Stores rows first.. of a tile, columns column.., `has` of `rows` rows. One warp. */
template <int D, int COLUMNS, class T>
__device__ __forceinline__ void zfd_tile_out(T *to, int64_t row, const T *tile, int first, int rows,
                                             int has, int column, int d, bool well)
{
    const int chunks = COLUMNS / 8, lane = (int)threadIdx.x % ZFD_WARP;
    const int k = column / 8 + lane % chunks, step = ZFD_WARP / chunks;
    T *y = to + lane / chunks * row + k * 8;
    if (k * 8 >= d) return;
#pragma unroll 1
    for (int r = lane / chunks; r < min(rows, has); r += step, y += step * row) {
        const T *x = tile + zfd_chunk_at<D>(first + r, k);
        if (well)
            *reinterpret_cast<zfd_pack<T, 8> *>(y) = *reinterpret_cast<const zfd_pack<T, 8> *>(x);
        else
            for (int i = 0; i < 8 && k * 8 + i < d; i++) y[i] = x[i];
    }
}

/* The part of each tile of ROWS rows that a thread fetches, 16 bytes at a time where rows are
 * aligned. The addresses are computed once; for blocks of 128 or 256 threads. */
template <int D, int ROWS, class T> struct zfd_tile_share {
    static const int most = ROWS * D / 8 / 128; /* pieces of 16 bytes, with 128 threads */
    int to[most], row, step, count;
    int64_t from, down;
    bool used; /* the columns belong to the head */

    __device__ __forceinline__ zfd_tile_share(int64_t line, int d)
    {
        const int chunks = D / 8, k = (int)threadIdx.x % chunks;
        row = (int)threadIdx.x / chunks, step = (int)blockDim.x / chunks;
        count = blockDim.x == 128 ? most : most / 2;
        from = row * line + k * 8, down = step * line;
        used = k * 8 < d;
#pragma unroll
        for (int i = 0; i < most; i++) to[i] = zfd_chunk_at<D>(row + i * step, k);
    }
    __device__ __forceinline__ void bring(T *tile, const T *x, int has) const
    {
        const T *at = x + from;
#pragma unroll
        for (int i = 0; i < most; i++, at += down) {
            const bool there = used && row + i * step < has;
            if (i < count) zfd_fetch<16>(tile + to[i], there ? at : x, there);
        }
    }
};

/* Fetches the bias of `keys` keys from n on, which all queries share; zeros beyond the last key.
 * All threads of the block must take part. It is complete after zfd_fetched and a barrier. */
template <class T>
__device__ __forceinline__ void zfd_bias_in(T *tile, const zfd_heads &a, const T *row, int n,
                                            int keys)
{
    const int i = (int)threadIdx.x;
    if (a.bias_well && 2 * i < keys) {
        const bool there = n + 2 * i < a.n;
        zfd_fetch<4>(tile + 2 * i, there ? row + n + 2 * i : row, there);
    } else if (!a.bias_well && i < keys) {
        tile[i] = n + i < a.n ? row[(n + i) * a.bias_step[3]] : zfd_from_f32<T>(0);
    }
}

/* Stores two neighbours. */
template <class T> __device__ __forceinline__ void zfd_put_pair(T *to, uint32_t pair)
{
    zfd_pack<T, 2> p;
    memcpy(&p, &pair, sizeof p);
    *reinterpret_cast<zfd_pack<T, 2> *>(to) = p;
}
/* ---------------------------------------------------------------------- forward, 16 bits */

template <int D> struct zfd_front {
    static const int keys = D <= 64 ? 64 : 32;
    static size_t bytes(int queries) { return 2 * (D * (size_t)(queries + 4 * keys) + 2 * keys); }
};

/* A warp has 16 queries. K and V of the next keys (and STEADY: their bias) are fetched while the
 * current ones are used. STEADY: zfd_heads.steady. */
template <class T, int D, bool STEADY>
__global__ void __launch_bounds__(256, D <= 128 ? 2 : 1)
    zfd_attention_forward(const zfd_heads a, void *y, float *lse, bool y_well)
{
    typedef zfd_tensor_core<T> core;
    const int keys = zfd_front<D>::keys, groups = keys / 16, steps = D / 16;
    ZFD_SHARED(T, q_tile);
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int g = lane / 4, t = lane % 4;
    const int queries = (int)blockDim.x / 2, tiles = (a.m + queries - 1) / queries;
    const zfd_one_head head = zfd_one_head_of(a, (int)(blockIdx.x / (unsigned)tiles));
    int tile = (int)(blockIdx.x % (unsigned)tiles);
    if (a.causal) tile = tiles - 1 - tile; /* the longest rows first */
    const int m0 = tile * queries, m = m0 + 16 * warp;
    /* The keys of the tile, of the warp, of its first and its last query, and of the thread's. */
    zfd_range all = {0, zfd_sees(a, min(m0 + queries, a.m) - 1)}, some = {0, 0};
    zfd_range sees[2] = {{0, zfd_sees(a, m + g)}, {0, zfd_sees(a, m + g + 8)}};
    int least = zfd_sees(a, m), latest = 0;
    if (m < a.m) some.end = zfd_sees(a, min(m + 16, a.m) - 1);
    if (!STEADY) {
        all = zfd_keys_of(a, head, m0, queries);
        if (m < a.m) some = zfd_keys_of(a, head, m, 16);
        sees[0] = zfd_keys_seen(a, head, m + g), sees[1] = zfd_keys_seen(a, head, m + g + 8);
        least = zfd_keys_seen(a, head, m).end;
        latest = zfd_keys_seen(a, head, min(m + 16, a.m) - 1).first;
    }
    const int end = all.end;
    const int first =
        STEADY ? 0
               : zfd_next_keys(a, head, m0, queries, all.first / keys * keys, end, keys);
    /* Where fragments begin: of q, and of k and v in the first 16 keys and the next. */
    const int pair = lane % 8 / 2 * 4 + lane % 2; /* one of 16 keys: columns are permuted */
    const int q_at = zfd_chunk_at<D>(16 * warp + lane % 16, lane / 16);
    const int k_at[2] = {zfd_chunk_at<D>(pair + lane / 16 * 2, lane / 8 % 2),
                         zfd_chunk_at<D>(16 + pair + lane / 16 * 2, lane / 8 % 2) - 16 * D};
    const int v_at[2] = {zfd_chunk_at<D>(pair + lane / 8 % 2 * 2, lane / 16),
                         zfd_chunk_at<D>(16 + pair + lane / 8 % 2 * 2, lane / 16) - 16 * D};
    const T *k = static_cast<const T *>(a.k) + zfd_key_at(a, head, 0);
    const T *v = static_cast<const T *>(a.v) + zfd_key_at(a, head, 0);
    const zfd_dropper drop = zfd_dropper_of(a.drop);
    T *stage = q_tile + queries * D, *bias_stage = stage + 4 * keys * D;
    const T *bias_row = STEADY && a.bias ? zfd_bias_row<T>(a, head, 0) : NULL;
    const uint64_t drawn_at[2] = {zfd_score_number(a, head, m + g) + 4 * t,
                                  zfd_score_number(a, head, m + g + 8) + 4 * t};
    float o[D / 8][4], most[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
#pragma unroll
    for (int c = 0; c < D / 8; c++)
#pragma unroll
        for (int i = 0; i < 4; i++) o[c][i] = 0;
    const bool shares = STEADY && (blockDim.x == 128 || blockDim.x == 256);
    const zfd_tile_share<D, keys, T> share(a.kv_row, a.d);
    if (first < end) {
        const int64_t at = (int64_t)first * a.kv_row;
        zfd_tile_in<D>(q_tile, queries,
                       static_cast<const T *>(a.q) + zfd_token_at(a, head, a.m, m0, a.row), a.row,
                       a.m - m0, a.d, a.well);
        zfd_tile_in<D>(stage, keys, k + at, a.kv_row, a.n - first, a.d, a.well);
        zfd_tile_in<D>(stage + keys * D, keys, v + at, a.kv_row, a.n - first, a.d, a.well);
        if (bias_row) zfd_bias_in(bias_stage, a, bias_row, 0, keys);
    }
    for (int n = first, now = 0, after; n < end; n = after, now ^= 1) {
        const T *k_tile = stage + now * 2 * keys * D, *v_tile = k_tile + keys * D;
        const T *bias_tile = bias_stage + now * keys + 4 * t;
        zfd_fetched();
        __syncthreads();
        after = n + keys;
        if (!STEADY) after = zfd_next_keys(a, head, m0, queries, after, end, keys);
        if (after < end) {
            T *next = stage + (now ^ 1) * 2 * keys * D;
            int64_t at = (int64_t)after * a.kv_row;
            if (shares) {
                share.bring(next, k + at, a.n - after);
                share.bring(next + keys * D, v + at, a.n - after);
            } else {
                zfd_tile_in<D>(next, keys, k + at, a.kv_row, a.n - after, a.d, a.well);
                zfd_tile_in<D>(next + keys * D, keys, v + at, a.kv_row, a.n - after, a.d, a.well);
            }
            if (bias_row) zfd_bias_in(bias_stage + (now ^ 1) * keys, a, bias_row, after, keys);
        }
        if (n >= some.end || n + keys <= some.first) continue;
        const uint32_t listed = STEADY ? ~0u : zfd_keys_listed(a, head, m, 16, n);
        if (!(listed & ((1u << groups) - 1))) continue;
        float s[2 * groups][4], shift[2], fix[2], high[2] = {most[0], most[1]};
        uint32_t kept[2] = {~0u, ~0u}; /* STEADY: bit 4 c + i of row r is key i of group c */
        if (STEADY && !drop.off) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                uint64_t e[groups];
#pragma unroll
                for (int c = 0; c < groups; c++) e[c] = drawn_at[r] + (unsigned)(n + 16 * c);
                kept[r] = zfd_kept_bits<1>(drop, e, t % 2);
            }
        }
#pragma unroll
        for (int c = 0; c < 2 * groups; c++)
#pragma unroll
            for (int i = 0; i < 4; i++) s[c][i] = 0;
#pragma unroll
        for (int step = 0; step < steps; step++) {
            uint32_t q[4];
            zfd_fragments<false>(q, q_tile + (q_at ^ step * 16));
#pragma unroll
            for (int c = 0; c < groups; c++) {
                uint32_t b[4];
                zfd_fragments<false>(b, k_tile + 16 * c * D + (k_at[c % 2] ^ step * 16));
                core::mma(s[2 * c], q, b[0], b[1]);
                core::mma(s[2 * c + 1], q, b[2], b[3]);
            }
        }
#pragma unroll
        for (int c = 0; c < groups; c++) { /* keys from `at` on, of rows g and g + 8 */
            int at = n + 16 * c + 4 * t;
            float bias[4] = {0, 0, 0, 0};
            if (bias_row) {
                zfd_load<T, 4>(bias, bias_tile + 16 * c);
#pragma unroll
                for (int i = 0; i < 4; i++) bias[i] *= 1.44269504f;
            }
#pragma unroll
            for (int r = 0; r < 2; r++) {
                if (!STEADY && a.bias && (r == 0 || a.bias_step[2]))
                    zfd_bias_of<T, 4>(a, zfd_bias_row<T>(a, head, m + g + 8 * r), at, bias);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float *x = &s[2 * c + i / 2][2 * r + i % 2];
                    *x = zfd_score_of(a, *x, bias[i]);
                }
            }
        }
        if (!STEADY && (n < latest || listed != ~0u)) {
            const uint32_t own[2] = {zfd_keys_listed(a, head, m + g, 1, n),
                                     zfd_keys_listed(a, head, m + g + 8, 1, n)};
#pragma unroll
            for (int c = 0; c < 2 * groups; c++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (n + c / 2 * 16 + 4 * t + c % 2 * 2 + i % 2 < sees[i / 2].first ||
                        !(own[i / 2] >> c / 2 & 1))
                        s[c][i] = -INFINITY;
        }
        if (n + keys > least) {
#pragma unroll
            for (int c = 0; c < 2 * groups; c++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (n + c / 2 * 16 + 4 * t + c % 2 * 2 + i % 2 >= sees[i / 2].end)
                        s[c][i] = -INFINITY;
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
#pragma unroll
            for (int c = 0; c < 2 * groups; c++)
                high[r] = fmaxf(high[r], fmaxf(s[c][2 * r], s[c][2 * r + 1]));
            high[r] = fmaxf(high[r], zfd_shuffle_xor(high[r], 1));
            high[r] = fmaxf(high[r], zfd_shuffle_xor(high[r], 2));
            shift[r] = high[r] == -INFINITY ? 0 : high[r];
            fix[r] = zfd_exp2(most[r] - shift[r]);
            most[r] = high[r];
            sum[r] *= fix[r];
        }
#pragma unroll
        for (int c = 0; c < D / 8; c++)
#pragma unroll
            for (int i = 0; i < 4; i++) o[c][i] *= fix[i / 2];
#pragma unroll
        for (int c = 0; c < groups; c++) {
            uint32_t p[4];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float e[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    e[i] = zfd_exp2(s[2 * c + i / 2][2 * r + i % 2] - shift[r]);
                    sum[r] += e[i];
                }
                if (STEADY) {
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        if (!(kept[r] >> (4 * c + i) & 1)) e[i] = 0;
                } else if (!drop.off) {
                    const uint32_t bits =
                        zfd_kept_from<4>(drop, drawn_at[r] + (unsigned)(n + 16 * c));
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        if (!(bits >> i & 1)) e[i] = 0;
                }
                p[r] = core::pair(e[0], e[1]);
                p[2 + r] = core::pair(e[2], e[3]);
            }
#pragma unroll
            for (int i = 0; i < D / 16; i++) {
                uint32_t b[4];
                zfd_fragments<true>(b, v_tile + 16 * c * D + (v_at[c % 2] ^ i * 16));
                core::mma(o[2 * i], p, b[0], b[1]);
                core::mma(o[2 * i + 1], p, b[2], b[3]);
            }
        }
    }
    if (m >= a.m) return;
    const int64_t hidden = (int64_t)a.heads * a.d;
    zfd_sync_warp(); /* the warp has read its queries: y replaces them */
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = m + g + 8 * r;
        sum[r] += zfd_shuffle_xor(sum[r], 1);
        sum[r] += zfd_shuffle_xor(sum[r], 2);
        if (lse && t == 0 && row < a.m)
            lse[(int64_t)head.number * a.m + row] = most[r] * 0.693147181f + logf(sum[r]);
        float by = sum[r] == 0 ? 0 : (drop.off ? 1 : drop.scale) / sum[r];
        if (a.wide && row < a.m) {
            float *to = static_cast<float *>(y) + zfd_token_at(a, head, a.m, row, hidden);
#pragma unroll
            for (int c = 0; c < D / 8; c++)
                zfd_put_floats(to, c * 8 + 2 * t, a.d, y_well, o[c][2 * r] * by,
                               o[c][2 * r + 1] * by);
        }
        if (a.wide) continue;
        const int y_at = zfd_chunk_at<D>(16 * warp + g + 8 * r, 0) + 2 * t;
#pragma unroll
        for (int c = 0; c < D / 8; c++)
            zfd_put_pair(q_tile + (y_at ^ c * 8),
                         core::pair(o[c][2 * r] * by, o[c][2 * r + 1] * by));
    }
    if (a.wide) return;
    zfd_sync_warp();
    zfd_tile_out<D, D>(static_cast<T *>(y) + zfd_token_at(a, head, a.m, m, hidden), hidden, q_tile,
                       16 * warp, 16, a.m - m, 0, a.d, y_well);
}
/* --------------------------------------------------------------------- backward, 16 bits */

/* 4 warps in the direction of keys; for heads wider than 128, twice as many, which share the
 * columns of dK and dV. */
template <class T, int D> struct zfd_back {
    static const int blocks = D <= 64 ? 2 : 1; /* blocks of 16 keys of a warp */
    static const int parts = D <= 128 ? 1 : D / 128;
    static const int keys = 64 * blocks, queries = D <= 128 ? 64 : 32, threads = 128 * parts;
    static const int per_processor = D <= 128 ? 2 : 1;
    static const size_t bytes =
        sizeof(T) * (2 * keys * D + 4 * queries * D + keys * queries) + sizeof(float) * 4 * queries;
};

/* A warp's place in a tile of keys. Shared memory: k, v, dS [keys, queries]. Row (block, half, g)
 * of a fragment is key g * 2 * blocks + 2 * block + half of the warp, so that a thread has
 * neighbouring keys. */
template <class T, int D> struct zfd_back_warp {
    T *k, *v, *ds;
    zfd_one_head head;
    int n, own, column; /* first: key of the tile; key, and column of dK and dV, of the warp */
    int own_at[2];      /* where blocks of the warp's keys begin, as left operands */
    int lane, g, t;
    zfd_dropper drop;
    float keep;
};

/* P after dropout, and dS / scale, as left operands, for the warp's keys and queries m.. to m + 15,
 * rows r.. of their tile. bias: of the thread's keys, where all queries share it. */
template <class T, int D, bool STEADY>
__device__ __forceinline__ void
zfd_back_scores(const zfd_heads &a, const zfd_back_warp<T, D> &w, const T *q, const T *dy,
                const float *stat, int m, int r, float (&bias)[2 * zfd_back<T, D>::blocks],
                uint32_t (&p)[zfd_back<T, D>::blocks][4], uint32_t (&ds)[zfd_back<T, D>::blocks][4])
{
    typedef zfd_tensor_core<T> core;
    const int blocks = zfd_back<T, D>::blocks, queries = zfd_back<T, D>::queries;
    const int mine = w.n + w.own + w.g * 2 * blocks; /* the first of the thread's keys */
    const int right_at = zfd_chunk_at<D>(r + w.lane % 8 + w.lane / 16 * 8, w.lane / 8 % 2);
    float s[blocks][2][4], dp[blocks][2][4];
    unsigned kept = 0; /* bit 4 c + e: query c, key e of the thread */
    if (STEADY && !w.drop.off && blocks == 2) {
        uint64_t e[4];
#pragma unroll
        for (int c = 0; c < 4; c++)
            e[c] = zfd_score_number(a, w.head, m + c / 2 * 8 + 2 * w.t + c % 2) + (unsigned)mine;
        kept = zfd_kept_bits<4>(w.drop, e, w.g % 2);
    }
#pragma unroll
    for (int k = 0; k < blocks; k++)
#pragma unroll
        for (int c = 0; c < 8; c++) s[k][c / 4][c % 4] = dp[k][c / 4][c % 4] = 0;
#pragma unroll
    for (int step = 0; step < D / 16; step++) {
        uint32_t left[4], right[4];
        zfd_fragments<false>(right, q + (right_at ^ step * 16));
#pragma unroll
        for (int k = 0; k < blocks; k++) {
            zfd_fragments<false>(left, w.k + (w.own_at[k] ^ step * 16));
            core::mma(s[k][0], left, right[0], right[1]);
            core::mma(s[k][1], left, right[2], right[3]);
        }
        zfd_fragments<false>(right, dy + (right_at ^ step * 16));
#pragma unroll
        for (int k = 0; k < blocks; k++) {
            zfd_fragments<false>(left, w.v + (w.own_at[k] ^ step * 16));
            core::mma(dp[k][0], left, right[0], right[1]);
            core::mma(dp[k][1], left, right[2], right[3]);
        }
    }
    if (!w.drop.off && blocks == 1) {
        /* Four lanes with neighbouring g have 2 keys each of the same 8. Each lane draws for one of
         * their queries; all lanes get byte c for query c. */
        const int of = w.g % 4, query = of / 2 * 8 + 2 * w.t + of % 2;
        unsigned all = zfd_kept_from<8>(w.drop, zfd_score_number(a, w.head, m + query) +
                                                    (unsigned)(mine & ~7))
                       << 8 * of;
        all |= zfd_shuffle_xor(all, 4);
        all |= zfd_shuffle_xor(all, 8);
#pragma unroll
        for (int c = 0; c < 4; c++) kept |= (all >> (8 * c + 2 * of) & 3) << 4 * c;
    }
#pragma unroll
    for (int c = 0; c < 4; c++) { /* query c % 2 of n-block c / 2 */
        const int query = c / 2 * 8 + 2 * w.t + c % 2;
        const float shift = stat[r + query], less = stat[queries + r + query];
        float by[4] = {w.keep, w.keep, w.keep, w.keep};
        if (!STEADY && !w.drop.off && blocks == 2) {
            const uint32_t bits = zfd_kept_from<4>(
                w.drop, zfd_score_number(a, w.head, m + query) + (unsigned)mine);
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (!(bits >> e & 1)) by[e] = 0;
        } else if (!w.drop.off) {
#pragma unroll
            for (int e = 0; e < 2 * blocks; e++)
                if (!(kept >> (4 * c + e) & 1)) by[e] = 0;
        }
        if (!STEADY && a.bias && a.bias_step[2])
            zfd_bias_of<T, 2 * blocks>(a, zfd_bias_row<T>(a, w.head, m + query), mine, bias);
#pragma unroll
        for (int e = 0; e < 2 * blocks; e++) {
            float *to = &s[e / 2][c / 2][e % 2 * 2 + c % 2];
            float *d = &dp[e / 2][c / 2][e % 2 * 2 + c % 2];
            float prob = zfd_exp2(zfd_score_of(a, *to, bias[e] - shift));
            *d = prob * fmaf(*d, by[e], -less);
            if (a.cap > 0) *d *= zfd_score_slope(a, *to);
            *to = prob * by[e];
        }
    }
    if (w.n + w.own + 16 * blocks > zfd_sees(a, m) || m + 16 > a.m ||
        (!STEADY && a.narrow)) { /* an edge */
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const int query = m + c / 2 * 8 + 2 * w.t + c % 2;
            const bool listed = STEADY || (zfd_keys_listed(a, w.head, query, 1, w.n + w.own) >>
                                               (blocks == 2 ? w.g / 4 : 0) &
                                           1);
            zfd_range seen = {0, zfd_sees(a, query)};
            if (!STEADY) seen = zfd_keys_seen(a, w.head, query);
#pragma unroll
            for (int e = 0; e < 2 * blocks; e++)
                if (mine + e >= seen.end || mine + e < seen.first || !listed)
                    s[e / 2][c / 2][e % 2 * 2 + c % 2] = dp[e / 2][c / 2][e % 2 * 2 + c % 2] = 0;
        }
    }
#pragma unroll
    for (int k = 0; k < blocks; k++)
#pragma unroll
        for (int c = 0; c < 4; c++) { /* n-block c / 2, half c % 2 */
            int e = c % 2 * 2;
            p[k][c] = core::pair(s[k][c / 2][e], s[k][c / 2][e + 1]);
            ds[k][c] = core::pair(dp[k][c / 2][e], dp[k][c / 2][e + 1]);
        }
}

/* dQ of tile i of queries: the sum of earlier tiles of keys, in `sums`, plus the first `seen` keys
 * of this one; the first sets the sum, the last stores the gradient. A warp has 16 of the queries
 * and some of the columns. q: the memory of the queries' tile, which is no longer needed. */
template <class T, int D>
__device__ __forceinline__ void zfd_back_queries(const zfd_heads &a, const zfd_heads_back &b,
                                                 const zfd_back_warp<T, D> &w, T *q, int i,
                                                 float *sums, int seen, bool first, bool last)
{
    typedef zfd_tensor_core<T> core;
    typedef zfd_back<T, D> cut;
    const int queries = cut::queries, blocks = cut::blocks, span = 16 * blocks;
    const int rows = queries / 16, parts = 4 * cut::parts / rows, warp = (int)threadIdx.x / 32;
    const int width = D / parts, some = width < 64 ? width : 64; /* of a warp; at a time */
    const int own = warp % rows * 16;
    const float scale = a.scale * 0.693147181f;
    const int steps = (seen + span - 1) / span * blocks; /* whole fragments of keys */
#pragma unroll 1
    for (int from = warp / rows * width, to = from + width; from < to; from += some) {
        float dq[some / 8][4];
        float *sum = sums + own * D + from * 16 + 4 * w.lane; /* in the order of registers */
#pragma unroll
        for (int c = 0; c < some / 8; c++) {
            if (first) dq[c][0] = dq[c][1] = dq[c][2] = dq[c][3] = 0;
            else zfd_load<float, 4>(dq[c], sum + c * 128);
        }
#pragma unroll 2
        for (int k = 0; k < steps; k++) {
            uint32_t left[4];
            int row = k / blocks * span + w.lane % 8 * 2 * blocks + k % blocks * 2 + w.lane / 8 % 2;
            int right_at = zfd_chunk_at<D>(row, from / 8 + w.lane / 16);
            zfd_fragments<true>(left,
                                w.ds + zfd_chunk_at<queries>(16 * k + w.lane / 16 * 8 + w.lane % 8,
                                                             own / 8 + w.lane / 8 % 2));
#pragma unroll
            for (int c = 0; c < some / 16; c++) {
                uint32_t right[4];
                zfd_fragments<true>(right, w.k + (right_at ^ c * 16));
                core::mma(dq[2 * c], left, right[0], right[1]);
                core::mma(dq[2 * c + 1], left, right[2], right[3]);
            }
        }
        if (!last) {
#pragma unroll
            for (int c = 0; c < some / 8; c++) zfd_store<float, 4>(sum + c * 128, dq[c]);
            continue;
        }
        if (a.wide) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int row = i * queries + own + w.g + 8 * half;
                if (row >= a.m) continue;
                float *to = static_cast<float *>(b.dq) + zfd_token_at(a, w.head, a.m, row, b.row);
#pragma unroll
                for (int c = 0; c < some / 8; c++)
                    zfd_put_floats(to, from + c * 8 + 2 * w.t, a.d, b.well,
                                   dq[c][2 * half] * scale, dq[c][2 * half + 1] * scale);
            }
            continue;
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int at = zfd_chunk_at<D>(own + w.g + 8 * half, from / 8) + 2 * w.t;
#pragma unroll
            for (int c = 0; c < some / 8; c++)
                zfd_put_pair(q + (at ^ c * 8),
                             core::pair(dq[c][2 * half] * scale, dq[c][2 * half + 1] * scale));
        }
        zfd_sync_warp();
        zfd_tile_out<D, some>(static_cast<T *>(b.dq) +
                                  zfd_token_at(a, w.head, a.m, i * queries + own, b.row),
                              b.row, q, own, 16, a.m - i * queries - own, from, a.d, b.well);
    }
}

template <class T, int D, bool STEADY>
__global__ void __launch_bounds__(zfd_back<T, D>::threads, zfd_back<T, D>::per_processor)
    zfd_attention_backward(const zfd_heads a, const zfd_heads_back b)
{
    typedef zfd_tensor_core<T> core;
    typedef zfd_back<T, D> cut;
    const int keys = cut::keys, queries = cut::queries, blocks = cut::blocks, span = 16 * blocks;
    const int width = D / cut::parts; /* columns of dK and dV of a warp */
    const int warp = (int)threadIdx.x / 32;
    const float scale = a.scale * 0.693147181f;
    float *sums = b.sums + blockIdx.x * b.sums_size;
    ZFD_SHARED(T, shared);
    T *stage = shared + 2 * keys * D; /* two stages of q and dy */
    zfd_back_warp<T, D> w;
    w.k = shared, w.v = w.k + keys * D, w.ds = stage + 4 * queries * D;
    float *stats = reinterpret_cast<float *>(w.ds + keys * queries);
    w.lane = (int)threadIdx.x % 32, w.g = w.lane / 4, w.t = w.lane % 4;
    w.own = warp % 4 * span, w.column = warp / 4 * width;
    const int own_row = w.own + w.lane % 8 * 2 * blocks + w.lane / 8 % 2;
    w.own_at[0] = zfd_chunk_at<D>(own_row, w.lane / 16);
    w.own_at[1] = zfd_chunk_at<D>(own_row + 2, w.lane / 16);
    w.drop = zfd_dropper_of(a.drop), w.keep = w.drop.off ? 1 : w.drop.scale;

    for (int64_t task = blockIdx.x; task < b.tasks; task += gridDim.x) {
        const zfd_tiles x = zfd_tiles_of(a, b, task);
        const bool narrow = !STEADY && a.narrow;
        w.head = x.head;
        if (narrow && x.dq) zfd_clear_sums(sums, (int64_t)(x.i1 - x.i0) * queries * D);
        /* Fetches tile i of queries, with their rows' sums, into stage `to`. */
        auto queries_in = [&](int i, int to) {
            int m = i * queries, has = a.m - m;
            T *tile = stage + to * 2 * queries * D;
            float *stat = stats + to * 2 * queries;
            zfd_tile_in<D>(tile, queries,
                           static_cast<const T *>(a.q) + zfd_token_at(a, w.head, a.m, m, a.row),
                           a.row, has, a.d, a.well);
            zfd_tile_in<D>(tile + queries * D, queries,
                           static_cast<const T *>(b.dy) + zfd_token_at(a, w.head, a.m, m, b.hidden),
                           b.hidden, has, a.d, b.dy_well);
            for (int r = (int)threadIdx.x; r < 2 * queries; r += cut::threads) {
                const float *from =
                    (r < queries ? b.shift : b.delta) + (int64_t)w.head.number * a.m + m;
                bool there = r % queries < has;
                zfd_fetch<4>(stat + r, there ? from + r % queries : from, there);
            }
        };
        for (int j = x.j0; j < x.j1; j++) {
            const zfd_range of = zfd_query_tiles(a, x, j, queries, keys);
            const int first =
                STEADY ? of.first : zfd_next_queries(a, x, j, of.first, of.end, queries, keys);
            float dk[blocks][width / 8][4], dv[blocks][width / 8][4], bias[2 * blocks];
            if (first >= of.end && !x.dkv) continue;
            w.n = j * keys;
            const int64_t at = zfd_key_at(a, w.head, w.n);
            __syncthreads(); /* the tiles before have been read */
            zfd_tile_in<D>(w.k, keys, static_cast<const T *>(a.k) + at, a.kv_row, a.n - w.n, a.d,
                           a.well);
            zfd_tile_in<D>(w.v, keys, static_cast<const T *>(a.v) + at, a.kv_row, a.n - w.n, a.d,
                           a.well);
            if (first < of.end) queries_in(first, 0);
#pragma unroll
            for (int k = 0; k < blocks; k++)
#pragma unroll
                for (int c = 0; c < width / 8; c++)
#pragma unroll
                    for (int i = 0; i < 4; i++) dk[k][c][i] = dv[k][c][i] = 0;
#pragma unroll
            for (int i = 0; i < 2 * blocks; i++) bias[i] = 0;
            if (a.bias && a.m)
                zfd_bias_of<T, 2 * blocks>(a, zfd_bias_row<T>(a, w.head, 0),
                                           w.n + w.own + w.g * 2 * blocks, bias);

            for (int i = first, now = 0, next; i < of.end; i = next, now ^= 1) {
                T *q = stage + now * 2 * queries * D;
                const T *dy = q + queries * D;
                zfd_fetched();
                __syncthreads();
                next = i + 1;
                if (!STEADY) next = zfd_next_queries(a, x, j, next, of.end, queries, keys);
                if (next < of.end) queries_in(next, now ^ 1);
#pragma unroll 1
                for (int r = 0; r < queries; r += 16) {
                    const int m = i * queries + r;
                    bool sees = m < a.m && zfd_sees(a, min(m + 16, a.m) - 1) > w.n + w.own;
                    if (narrow && sees) {
                        const zfd_range seen = zfd_keys_of(a, w.head, m, 16);
                        sees = seen.end > w.n + w.own && seen.first < w.n + w.own + span &&
                               (zfd_keys_listed(a, w.head, m, 16, w.n + w.own) & (2 * blocks - 1));
                    }
                    uint32_t p[blocks][4] = {}, ds[blocks][4] = {};
                    if (sees)
                        zfd_back_scores<T, D, STEADY>(a, w, q, dy, stats + now * 2 * queries, m, r,
                                                      bias, p, ds);
                    if (x.dq && w.column == 0) {
#pragma unroll
                        for (int k = 0; k < 2 * blocks; k++) { /* half k % 2 of block k / 2 */
                            int to = zfd_chunk_at<queries>(w.own + 8 * k + w.g, r / 8) + 2 * w.t;
                            zfd_put_pair(w.ds + to, ds[k / 2][k % 2]);
                            zfd_put_pair(w.ds + (to ^ 8), ds[k / 2][2 + k % 2]);
                        }
                    }
                    if (!x.dkv || !sees) continue;
                    const int right_at =
                        zfd_chunk_at<D>(r + w.lane % 16, w.column / 8 + w.lane / 16);
#pragma unroll
                    for (int c = 0; c < width / 16; c++) {
                        uint32_t right[4];
                        zfd_fragments<true>(right, dy + (right_at ^ c * 16));
#pragma unroll
                        for (int k = 0; k < blocks; k++) {
                            core::mma(dv[k][2 * c], p[k], right[0], right[1]);
                            core::mma(dv[k][2 * c + 1], p[k], right[2], right[3]);
                        }
                        zfd_fragments<true>(right, q + (right_at ^ c * 16));
#pragma unroll
                        for (int k = 0; k < blocks; k++) {
                            core::mma(dk[k][2 * c], ds[k], right[0], right[1]);
                            core::mma(dk[k][2 * c + 1], ds[k], right[2], right[3]);
                        }
                    }
                }
                if (!x.dq) continue;
                __syncthreads(); /* dS is complete, and the queries have been read */
                zfd_back_queries<T, D>(
                    a, b, w, q, i, sums + (int64_t)(i - x.i0) * queries * D,
                    min(keys, zfd_sees(a, min((i + 1) * queries, a.m) - 1) - w.n),
                    !narrow && j == 0, !narrow && j == zfd_last_keys(a, i, queries, keys));
            }
            zfd_fetched();
            __syncthreads(); /* K and V have been read: dK and dV replace them */
            if (!x.dkv) continue;
            const int64_t to = zfd_token_at(a, w.head, a.n, w.n + w.own, b.kv_row);
            const int has = a.n - w.n - w.own;
            if (b.wide) {
                float *to_k = static_cast<float *>(b.dk), *to_v = static_cast<float *>(b.dv);
#pragma unroll
                for (int k = 0; k < 2 * blocks; k++) {
                    const int row = w.g * 2 * blocks + k;
                    const int64_t begin = to + row * b.kv_row;
                    if (row >= has) continue;
#pragma unroll
                    for (int c = 0; c < width / 8; c++) {
                        const float *u = &dk[k / 2][c][k % 2 * 2], *v = &dv[k / 2][c][k % 2 * 2];
                        const int at = w.column + c * 8 + 2 * w.t;
                        if (to_k)
                            zfd_put_floats(to_k + begin, at, a.d, b.well, u[0] * scale,
                                           u[1] * scale);
                        if (to_v) zfd_put_floats(to_v + begin, at, a.d, b.well, v[0], v[1]);
                    }
                }
                continue;
            }
#pragma unroll
            for (int k = 0; k < 2 * blocks; k++) {
                int to = zfd_chunk_at<D>(w.own + w.g * 2 * blocks + k, w.column / 8) + 2 * w.t;
#pragma unroll
                for (int c = 0; c < width / 8; c++) {
                    const float *u = &dk[k / 2][c][k % 2 * 2], *v = &dv[k / 2][c][k % 2 * 2];
                    zfd_put_pair(w.k + (to ^ c * 8), core::pair(u[0] * scale, u[1] * scale));
                    zfd_put_pair(w.v + (to ^ c * 8), core::pair(v[0], v[1]));
                }
            }
            zfd_sync_warp();
            zfd_tile_out<D, width>(static_cast<T *>(b.dk) + to, b.kv_row, w.k, w.own, span, has,
                                   w.column, a.d, b.well);
            zfd_tile_out<D, width>(static_cast<T *>(b.dv) + to, b.kv_row, w.v, w.own, span, has,
                                   w.column, a.d, b.well);
        }
        if (narrow && x.dq) {
            for (int i = x.i0; i < x.i1; i++) {
                __syncthreads();
                zfd_back_queries<T, D>(a, b, w, stage, i,
                                       sums + (int64_t)(i - x.i0) * queries * D, 0, false, true);
            }
            __syncthreads(); /* the sums have been read: the next task clears them */
        }
    }
}
