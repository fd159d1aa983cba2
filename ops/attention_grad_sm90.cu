/* The gradient of attention on compute capability 9.0, for heads of 64 elements in 16 bits.
 *
 * A block of two warpgroups has one head. It loops over tiles of 128 keys, and for each over tiles
 * of 128 queries. For one tile of scores:
 *
 *                     128 queries
 *                 +----------------+     S = K Q^T   dP = V dy^T     64 keys a warpgroup: rows
 *      warpgroup 0|  S, dP, P, dS  |     P = exp2(S - shift)         in registers, where they are
 *      64 keys    +----------------+     dS = P (dP - delta)         left operands of
 *      warpgroup 1|  S, dP, P, dS  |     dV += P dy    dK += dS Q
 *      64 keys    +-------+--------+     dQ += dS^T K                64 queries a warpgroup, of all
 *                  group 0 group 1                                   keys: dS crosses shared memory
 *
 * dK and dV stay in registers until the tile of keys is done. dQ of all queries is added up in f32
 * in global memory of the block's own. Each element is added by one thread in the order of the
 * keys, so every run has the same bits. Where one tile holds all keys, dQ is written at once.
 *
 * Q and dy of the next tile, and K and V where they change, are fetched during the current tile.
 *
 * Rows of K, V and dS are permuted within every 16 keys, so that a thread has the neighbours 2 x
 * and 2 x + 1, and 4 lanes have the 8 keys of a query that share one block of random words. Each of
 * these lanes computes the words of every fourth of their queries. They exchange one bit for each
 * dropped score by shuffles.
 *
 * Synchronisation within a tile:
 *
 *     barrier 1: the tile has arrived, and all products of the tile before are done
 *     S and dP begin; the next tile is requested, into memory whose last readers were products
 *     before barrier 1; P and dS of half of the queries, whose part of dV and dK begins; the other
 *     half; dS is stored: its last readers were products before barrier 1
 *     barrier 2: dS is complete
 *     dQ begins; random bits of the next tile; waits for the next tile, then for all products;
 *     dQ is added up
 *
 * A thread makes what it has stored or fetched visible to the products by zfd_shared_to_products,
 * before the barrier. All threads of a block run the same steps, so both barriers are
 * __syncthreads. */

/* The operand `by` elements further. */
__device__ __forceinline__ uint64_t zfd_operand_at(uint64_t operand, int by)
{
    return (operand & 0xffffffff00000000u) | (uint32_t)((uint32_t)operand + (uint32_t)by);
}

typedef struct zfd_grad90 {
    static const int width = 64, keys = 128, queries = 128, threads = 256, warps = 8;
    static const int tile = 128 * width; /* elements */
    static const int stage = 16 * width; /* of a warp, before its rows are stored */
} zfd_grad90;

template <class T> static size_t zfd_grad90_bytes()
{
    typedef zfd_grad90 cut;
    return sizeof(T) * (10 * cut::tile + cut::warps * cut::stage) +
           sizeof(float) * 4 * cut::queries;
}

/* The row in which key k of 16 is stored: keys 2 x and 2 x + 1 are in rows x and x + 8, x
 * continuing with 4 after the first 8 keys. And the inverse: the key that is stored in row r. */
__device__ __forceinline__ int zfd_row_of_key(int k)
{
    return (k & ~15) | (k & 1) << 3 | (k >> 1 & 7);
}
__device__ __forceinline__ int zfd_key_of_row(int r)
{
    return (r & ~15) | (r & 7) << 1 | (r >> 3 & 1);
}

/* A tile of scores. The next tile has the same keys, or is the first tile of queries for the next
 * keys, or belongs to the next head. */
typedef struct zfd_grad_place {
    zfd_one_head head;
    int j, i; /* j: tile of keys, i: tile of queries */
} zfd_grad_place;

__device__ __forceinline__ zfd_grad_place zfd_place_after(const zfd_heads &a,
                                                           const zfd_heads_back &b,
                                                           zfd_grad_place x)
{
    typedef zfd_grad90 cut;
    if (++x.i < b.query_tiles) return x;
    if (++x.j < b.key_tiles) {
        x.i = a.causal ? max(0, x.j * cut::keys + a.m - a.n) / cut::queries : 0;
        return x;
    }
    x.head = zfd_one_head_of(a, x.head.number + (int)gridDim.x);
    x.j = x.i = 0;
    return x;
}

/* Stores a warp's 16 rows of a product times `by`, by way of shared memory: row r of the product is
 * row r of the result or, TURNED, zfd_key_of_row(r). The result has `has` of them. columns: where
 * the sums of these rows go, as they are stored; may be NULL. */
template <class T, bool TURNED>
__device__ __forceinline__ void zfd_grad_out(T *stages, const float (&x)[32], float by, T *to,
                                             int64_t row, int has, float *columns)
{
    typedef zfd_tensor_core<T> core;
    const int self = zfd_anew((int)threadIdx.x), lane = self % ZFD_WARP, r = lane % 16;
    T *const stage = stages + self / ZFD_WARP * zfd_grad90::stage;
    const int at = TURNED ? zfd_key_of_row(r) : r, turn = TURNED ? at >> 1 & 7 : at & 7;
    const int first = at * 64 + (lane / 16 ^ turn) * 8;
#pragma unroll
    for (int c = 0; c < 8; c += 2) {
        const uint32_t four[4] = {core::pair(x[4 * c] * by, x[4 * c + 1] * by),
                                  core::pair(x[4 * c + 2] * by, x[4 * c + 3] * by),
                                  core::pair(x[4 * c + 4] * by, x[4 * c + 5] * by),
                                  core::pair(x[4 * c + 6] * by, x[4 * c + 7] * by)};
        zfd_put_fragments(stage + (first ^ c * 8), four);
    }
    zfd_sync_warp();
    to += lane / 8 * row + lane % 8 * 8;
    auto row_of = [&](int i) {
        const T *y = stage + i * 64 + (lane % 8 ^ (TURNED ? i >> 1 & 7 : i & 7)) * 8;
        return *reinterpret_cast<const zfd_pack<T, 8> *>(y);
    };
#pragma unroll
    for (int i = 0; i < 16; i += 4, to += 4 * row)
        if (i + lane / 8 < has) *reinterpret_cast<zfd_pack<T, 8> *>(to) = row_of(i + lane / 8);
    if (columns && has > 0) { /* 4 rows, 4 apart, and then the 4 lanes with these columns */
        float sum[8] = {};
#pragma unroll
        for (int i = 0; i < 16; i += 4) {
            float y[8];
            zfd_unpack(y, row_of(i + lane / 8));
#pragma unroll
            for (int k = 0; k < 8; k++) sum[k] += i + lane / 8 < has ? y[k] : 0;
        }
#pragma unroll
        for (int k = 0; k < 8; k++) {
            sum[k] += zfd_shuffle_xor(sum[k], 8);
            sum[k] += zfd_shuffle_xor(sum[k], 16);
        }
        if (lane < 8) zfd_store(columns + lane * 8, sum);
    }
    zfd_sync_warp();
}

/* Which of a thread's scores with 32 queries, 8 j + 2 t + e for j < 16, are dropped. Key 2 x + h of
 * its two keys is bit 4 (j / 4 % 2 * 2 + e) + j % 4 + 16 h of word j / 8. first: the number of the
 * score of query 0 and the first of the 8 keys of 4 lanes; it and n are multiples of 8. */
__device__ __forceinline__ void zfd_dropped_bits(const zfd_dropper &d, uint64_t first, int n,
                                                 uint32_t (&bits)[2])
{
    const int lane = zfd_anew((int)threadIdx.x) % ZFD_WARP, t = lane % 4, x = lane / 4 % 4;
    const uint64_t block = (d.first + first) / 8;
    const uint32_t mask = 0x11111111u, less = d.off ? ~0u : (d.threshold - 1) * 0x10001u;
    const unsigned step = (unsigned)n / 8;
    uint64_t at[8];
    uint4 word[8];
#pragma unroll
    for (int k = 0; k < 8; k++)
        at[k] = block + (uint64_t)(unsigned)(8 * (k / 2 * 4 + x) + 2 * t + k % 2) * step;
    zfd_random_blocks(at, d.stream, d.step, d.seed, word);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t made = 0, all;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const uint4 w = word[4 * half + k];
            made |= (zfd_drops_two(w.x, less) | zfd_drops_two(w.y, less) << 1 |
                     zfd_drops_two(w.z, less) << 2 | zfd_drops_two(w.w, less) << 3)
                    << 4 * k;
        }
        all = made & mask << x;
#pragma unroll
        for (int other = 1; other < 4; other++) { /* bits computed by lane x ^ other */
            const uint32_t has = zfd_shuffle_xor(made, 4 * other) >> x & mask;
            all |= has << (x ^ other);
        }
        bits[half] = all;
    }
}

/* DROPS: with dropout, unless the run evaluates; BIASED: with a bias, shared by all queries. */
template <class T, bool DROPS, bool BIASED>
__global__ void __launch_bounds__(256, 1)
    zfd_attention_backward_sm90(const zfd_heads a, const zfd_heads_back b)
{
#if ZFD_HAS_WGMMA
    typedef zfd_grad90 cut;
    typedef zfd_tensor_core<T> core;
    typedef zfd_wgmma<T, 64> product;
    typedef zfd_wgmma<T, 128> wide;
    const int step = zfd_wgmma_step<false>::of, across = zfd_wgmma_step<true>::of;
    ZFD_SHARED(T, shared); /* 2 stages of k and v, 2 of q and dy, dS in two halves */
    T *const ds = shared + 8 * cut::tile;
    T *const stage = ds + 2 * cut::tile;
    float *const stats = reinterpret_cast<float *>(ds + 2 * cut::tile + cut::warps * cut::stage);
    const int lane = (int)threadIdx.x % ZFD_WARP, g = lane / 4, t = lane % 4;
    const int group = zfd_shuffle((int)threadIdx.x / ZFD_WARPGROUP, 0);
    const int own = (int)threadIdx.x / ZFD_WARP * 16; /* the warp's first row, of keys or queries */
    const zfd_dropper drop = zfd_dropper_of(a.drop);
    const float keep = DROPS && !drop.off ? drop.scale : 1;
    const float scale = a.scale * 0.693147181f * keep;
    const int64_t hidden = (int64_t)a.heads * a.d;
    /* A thread fetches 16 bytes of rows r, r + 32 ... */
    auto tile_in = [&](T *tile, int r, int chunk, const T *from, int64_t row, int has) {
        const T *x = from + r * row + chunk * 8;
#pragma unroll
        for (int i = 0; i < 4; i++, x += 32 * row) {
            const bool there = r + 32 * i < has;
            zfd_fetch<16>(tile + i * 32 * 64, x, there);
        }
    };
    T some[2] = {}; /* the bias of the thread's keys in the next tile of keys */
    auto bring = [&](const zfd_grad_place &x, bool all, int k_half, int q_half) {
        const zfd_one_head &head = x.head;
        const int m = x.i * cut::queries, n = x.j * cut::keys;
        T *q = shared + (4 + 2 * q_half) * cut::tile, *k = shared + 2 * k_half * cut::tile;
        const int self = zfd_anew((int)threadIdx.x), of = self % 128, r = self / 8,
                  chunk = self % 8;
        const int to = zfd_swizzled(r, chunk), to_key = zfd_swizzled(zfd_row_of_key(r), chunk);
        const float *from = (self < 128 ? b.shift : b.delta) + (int64_t)head.number * a.m + m;
        tile_in(q + to, r, chunk,
                static_cast<const T *>(a.q) + zfd_token_at(a, head, a.m, m, a.row), a.row, a.m - m);
        tile_in(q + cut::tile + to, r, chunk,
                static_cast<const T *>(b.dy) + zfd_token_at(a, head, a.m, m, hidden), hidden,
                a.m - m);
        zfd_fetch<4>(stats + q_half * 256 + self, from + of, m + of < a.m);
        if (!all) return;
        const int64_t at = zfd_key_at(a, head, n);
        tile_in(k + to_key, r, chunk, static_cast<const T *>(a.k) + at, a.kv_row, a.n - n);
        tile_in(k + cut::tile + to_key, r, chunk, static_cast<const T *>(a.v) + at, a.kv_row, a.n - n);
        if (BIASED) {
            const T *bias = zfd_bias_row<T>(a, head, 0);
#pragma unroll
            for (int h = 0; h < 2; h++)
                some[h] =
                    bias[min(n + self / 32 * 16 + self % 32 / 4 * 2 + h, a.n - 1) * a.bias_step[3]];
        }
    };
    /* The dropped scores of the thread at x; none in evaluation. */
    auto dropped_at = [&](const zfd_grad_place &x, uint32_t(&bits)[2]) {
        zfd_dropped_bits(drop,
                         zfd_score_number<true>(a, x.head, x.i * cut::queries) +
                             (unsigned)(x.j * cut::keys + own + g / 4 * 8),
                         a.n, bits);
    };
    /* Where the sums of 16 rows go: of part 0 to 2 (q, k, v) of the result, from `token` on. */
    auto columns_of = [&](const zfd_one_head &head, int part, int token) {
        const int64_t at = zfd_token_at(a, head, (a.n + 15) / 16, token / 16, b.row);
        return b.columns ? b.columns + part * hidden + at : NULL;
    };
    float dk[32] = {}, dv[32] = {};
    zfd_grad_place x = {zfd_one_head_of(a, (int)blockIdx.x), 0, 0};
    float bias[2] = {0, 0};
    uint32_t dropped[2] = {0, 0};
    bool fresh = true; /* the first tile of queries of a tile of keys */
    int k_half = 0, q_half = 0;
    bring(x, true, 0, 0);
    if (DROPS) dropped_at(x, dropped);
    zfd_fetched();
    zfd_shared_to_products();
#pragma unroll 1
    while (x.head.number < a.count) {
        const zfd_grad_place next = zfd_place_after(a, b, x);
        const bool ends = next.head.number != x.head.number || next.j != x.j;
        const int m0 = x.i * cut::queries, n0 = x.j * cut::keys;
        T *const k = shared + 2 * k_half * cut::tile, *const v = k + cut::tile;
        T *const q = shared + (4 + 2 * q_half) * cut::tile, *const dy = q + cut::tile;
        const float *const shift = stats + q_half * 256 + 2 * t, *const delta = shift + 128;
        const uint64_t k_rows = zfd_wgmma_operand(k) + (unsigned)(group * ZFD_WGMMA_ROWS);
        const uint64_t v_rows = zfd_wgmma_operand(v) + (unsigned)(group * ZFD_WGMMA_ROWS);
        const uint64_t q_rows = zfd_wgmma_operand(q), dy_rows = zfd_wgmma_operand(dy);
        float s[64], dp[64];
        uint32_t p_rows[8][4], ds_rows[8][4], coming[2] = {0, 0};
        __syncthreads();
        zfd_wgmma_begin();
#pragma unroll
        for (int i = 0; i < 4; i++)
            wide::template both<false, false>(s, zfd_operand_at(k_rows, i * step),
                                              zfd_operand_at(q_rows, i * step), i > 0);
        zfd_wgmma_commit();
#pragma unroll
        for (int i = 0; i < 4; i++)
            wide::template both<false, false>(dp, zfd_operand_at(v_rows, i * step),
                                              zfd_operand_at(dy_rows, i * step), i > 0);
        zfd_wgmma_commit();
        if (BIASED && fresh) {
#pragma unroll
            for (int h = 0; h < 2; h++) bias[h] = zfd_to_f32(some[h]) * 1.44269504f;
        }
        if (next.head.number < a.count) bring(next, ends, k_half ^ (int)ends, q_half ^ 1);
        auto probability = [&](int j) {
            const float2 less = *reinterpret_cast<const float2 *>(shift + 8 * j);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float *y = &s[4 * j + 2 * h];
                y[0] = zfd_exp2(fmaf(y[0], a.scale, BIASED ? bias[h] - less.x : -less.x));
                y[1] = zfd_exp2(fmaf(y[1], a.scale, BIASED ? bias[h] - less.y : -less.y));
            }
        };
        const bool edge = n0 + group * 64 + 64 > zfd_sees(a, m0) || m0 + cut::queries > a.m;
        const int self = zfd_anew((int)threadIdx.x);
        const int ds_to = zfd_swizzled(self / 32 * 16 + self % 16, self % 32 / 16);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (half == 0) {
                zfd_wgmma_wait<1>();
                zfd_wgmma_settle(s);
#pragma unroll
                for (int j = 0; j < 8; j++) probability(j);
                zfd_wgmma_wait<0>();
                zfd_wgmma_settle(dp);
            }
            /* Register 4 j + 2 h + e is query 8 j + 2 t + e and key 2 g + h of the warp. */
#pragma unroll
            for (int j = 0; j < 8; j++) {
                const float2 mean = *reinterpret_cast<const float2 *>(delta + 64 * half + 8 * j);
                if (half == 0) probability(j + 8);
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    float p[2], d[2];
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        const float has = s[32 * half + 4 * j + 2 * h + e];
                        const int bit = 4 * (j / 4 % 2 * 2 + e) + j % 4 + 16 * h;
                        p[e] = DROPS && (dropped[half] >> bit & 1) ? 0 : has;
                        d[e] = fmaf(p[e], dp[32 * half + 4 * j + 2 * h + e],
                                    -has * (e ? mean.y : mean.x));
                    }
                    p_rows[4 * half + j / 2][j % 2 * 2 + h] = core::pair(p[0], p[1]);
                    ds_rows[4 * half + j / 2][j % 2 * 2 + h] = core::pair(d[0], d[1]);
                }
            }
            if (edge) {
                const int key = n0 + own + 2 * g;
#pragma unroll
                for (int j = 8 * half; j < 8 * half + 8; j++) {
                    const int sees = zfd_sees(a, m0 + 8 * j + 2 * t);
                    const int more = zfd_sees(a, m0 + 8 * j + 2 * t + 1);
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        const uint32_t seen =
                            (key + h < sees ? 0xffffu : 0) | (key + h < more ? 0xffff0000u : 0);
                        p_rows[j / 2][j % 2 * 2 + h] &= seen;
                        ds_rows[j / 2][j % 2 * 2 + h] &= seen;
                    }
                }
            }
            if (half == 0) {
                zfd_wgmma_settle(dv);
                zfd_wgmma_settle(dk);
            }
            zfd_wgmma_begin();
#pragma unroll
            for (int i = 4 * half; i < 4 * half + 4; i++)
                product::template rows<true>(dv, p_rows[i], zfd_operand_at(dy_rows, i * across),
                                             i > 0 || !fresh);
#pragma unroll
            for (int i = 4 * half; i < 4 * half + 4; i++)
                product::template rows<true>(dk, ds_rows[i], zfd_operand_at(q_rows, i * across),
                                             i > 0 || !fresh);
            zfd_wgmma_commit();
            /* dS: a row of keys, in each half of the queries. */
#pragma unroll
            for (int i = 0; i < 4; i++)
                zfd_put_fragments(ds + half * cut::tile + (ds_to ^ i * 16), ds_rows[4 * half + i]);
        }
        zfd_shared_to_products();
        __syncthreads();
        float dq[32];
        const uint64_t ds_at = zfd_wgmma_operand(ds + group * cut::tile);
        const uint64_t k_at = zfd_wgmma_operand(k);
        zfd_wgmma_begin();
#pragma unroll
        for (int i = 0; i < 8; i++)
            product::template both<true, true>(dq, zfd_operand_at(ds_at, i * across),
                                               zfd_operand_at(k_at, i * across), i > 0);
        zfd_wgmma_commit();
        if (DROPS) dropped_at(next, coming);
        zfd_fetched();
        zfd_shared_to_products(); /* the next tile */
        /* dQ of 16 queries, in the register order of the sums. */
        const int end = min(m0 + cut::queries, a.m);
        const bool last = x.j == max(0, zfd_sees(a, end - 1) - 1) / cut::keys;
        float *sum = b.sums + blockIdx.x * b.sums_size +
                     (int64_t)x.i * (cut::queries * cut::width) + 4 * zfd_anew((int)threadIdx.x);
        zfd_wgmma_wait<0>();
        zfd_wgmma_settle(dq);
        zfd_wgmma_settle(dv);
        zfd_wgmma_settle(dk);
        if (last) {
            if (x.j > 0) {
#pragma unroll
                for (int c = 0; c < 32; c += 4) {
                    const float4 had =
                        __ldcg(reinterpret_cast<const float4 *>(sum + c * cut::threads));
                    dq[c] += had.x, dq[c + 1] += had.y, dq[c + 2] += had.z, dq[c + 3] += had.w;
                }
            }
            zfd_grad_out<T, false>(stage, dq, scale,
                                   static_cast<T *>(b.dq) +
                                       zfd_token_at(a, x.head, a.m, m0 + own, b.row),
                                   b.row, a.m - m0 - own, columns_of(x.head, 0, m0 + own));
        } else if (x.j == 0) {
#pragma unroll
            for (int c = 0; c < 32; c += 4)
                __stcg(reinterpret_cast<float4 *>(sum + c * cut::threads),
                       make_float4(dq[c], dq[c + 1], dq[c + 2], dq[c + 3]));
        } else {
#pragma unroll
            for (int c = 0; c < 32; c += 4) zfd_add_there(sum + c * cut::threads, &dq[c]);
        }
        if (ends) {
            const int64_t at = zfd_token_at(a, x.head, a.n, n0 + own, b.kv_row);
            zfd_grad_out<T, true>(stage, dv, keep, static_cast<T *>(b.dv) + at, b.kv_row,
                                  a.n - n0 - own, columns_of(x.head, 2, n0 + own));
            zfd_grad_out<T, true>(stage, dk, scale, static_cast<T *>(b.dk) + at, b.kv_row,
                                  a.n - n0 - own, columns_of(x.head, 1, n0 + own));
        }
        dropped[0] = coming[0], dropped[1] = coming[1];
        fresh = ends, k_half ^= (int)ends, q_half ^= 1;
        x = next;
    }
#endif
}

/* ------------------------------------------------------------------------------- launchers */

/* Whether the kernel above takes these operands: all queries and keys, rows aligned to 16 bytes, a
 * bias that all queries share, and with dropout, a number of keys that is a multiple of a block of
 * random words. One block has a whole head. With too few heads to occupy the device, separate tasks
 * for tiles of keys and of queries are faster, though they compute the scores twice. */
static bool zfd_grad90_takes(const zf_launch *l, const zfd_heads &a, const zfd_heads_back &b)
{
    const zfd_device *device = zfd_device_of(l);
    return device->wgmma && (size_t)device->shared >= zfd_grad90_bytes<zfd_bf16>() &&
           l->op == ZF_OP_attention_grad && !a.part && l->out.dtype != ZF_F32 &&
           a.d == zfd_grad90::width && a.n && a.m && a.well && b.well && b.dy_well &&
           a.bias_step[2] == 0 && (a.drop.none || a.n % 8 == 0) && zfd_rows_follow(a.share, a.m) &&
           !a.narrow && !(a.cap > 0) &&
           (a.n <= zfd_grad90::keys || 6 * a.count >= device->processors);
}

static unsigned zfd_grad90_cut(const zf_launch *l, const zfd_heads &a, zfd_heads_back *b)
{
    typedef zfd_grad90 cut;
    b->key_tiles = (int)zfd_div_up(a.n, cut::keys);
    b->query_tiles = (int)zfd_div_up(a.m, cut::queries);
    b->sums_size = b->key_tiles > 1 ? (int64_t)b->query_tiles * cut::queries * cut::width : 0;
    return (unsigned)min(a.count, (int64_t)zfd_device_of(l)->processors);
}

template <class T, bool DROPS, bool BIASED>
static cudaError_t zfd_grad90_run(const zf_launch *l, const zfd_heads &a, const zfd_heads_back &b,
                                  unsigned grid)
{
    const size_t bytes = zfd_grad90_bytes<T>();
    auto kernel = zfd_attention_backward_sm90<T, DROPS, BIASED>;
    cudaError_t code = zfd_allow_shared(l, kernel, bytes, bytes);
    if (code == cudaSuccess)
        ZFD_LAUNCH(kernel, grid, zfd_grad90::threads, bytes, zfd_stream(l), a, b);
    return code;
}

template <class T>
static zf_status zfd_grad90_launch(const zf_launch *l, const zfd_heads &a, zfd_heads_back b)
{
    const unsigned grid = zfd_grad90_cut(l, a, &b);
    cudaError_t code;
    zfd_make_delta<T>(l, a, b, true);
    if (a.drop.none && !a.bias) code = zfd_grad90_run<T, false, false>(l, a, b, grid);
    else if (a.drop.none) code = zfd_grad90_run<T, false, true>(l, a, b, grid);
    else if (!a.bias) code = zfd_grad90_run<T, true, false>(l, a, b, grid);
    else code = zfd_grad90_run<T, true, true>(l, a, b, grid);
    return zfd_cuda_failed(l->error, "attention_grad", code);
}

/* Whether a gradient of these heads may be taken, once it is known how operands lie. */
static bool zfd_grad90_may(const zf_launch *l, const zfd_heads &a)
{
    return l->op == ZF_OP_attention_grad && !a.part && a.d == zfd_grad90::width &&
           zfd_device_of(l)->wgmma && !a.narrow && !(a.cap > 0);
}

/* The floats of scratch of such a gradient. */
static size_t zfd_grad90_scratch(const zf_launch *l, const zfd_heads &a)
{
    zfd_heads_back b;
    memset(&b, 0, sizeof b);
    const unsigned grid = zfd_grad90_cut(l, a, &b);
    return 2 * zfd_delta_size(&a) + zfd_parts_size(l, &a) + grid * (size_t)b.sums_size;
}

static zf_status zfd_grad90_attention(const zf_launch *l, const zfd_heads &a,
                                      const zfd_heads_back &b)
{
    return l->out.dtype == ZF_BF16 ? zfd_grad90_launch<zfd_bf16>(l, a, b)
                                   : zfd_grad90_launch<zfd_f16>(l, a, b);
}
