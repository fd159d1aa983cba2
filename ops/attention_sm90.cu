/* The forward pass of attention for compute capability 9.0: heads of 64 elements in 16 bits, with
 * the products of a warpgroup (cuda/cores/wgmma.cu). The rest is in ops/attention.cu.
 *
 * A block is one warpgroup and has 64 queries, a warp 16, a thread 2 (g and g + 8 of these) with a
 * quarter of the keys each. It loops over the keys in tiles of 64. A multiprocessor has four
 * blocks: the tensor cores work for one while others compute exponentials. In a block,
 *
 *     S = Q K^T of tile j and O += P V of tile j - 1 begin, in this order
 *     S is done: bias, mask, maxima of the rows, while P V continues
 *     O is done: scaled where a maximum has grown; P, which stays in registers as left operand
 *
 * Rows of K and V in shared memory are permuted so that a thread's columns of S are 8 neighbours of
 * every 32 keys: they share one block of random words and 16 bytes of bias. Row 8 c + 2 t + i has
 * key 8 t + 2 c + i, and lanes with this t have column 8 c + 2 t + i of S.
 *
 * A maximum may be too small by up to 8, a factor of 256 in P: O and the sum are scaled only where
 * a row of the warp has grown by more. Numbers stay far below the largest of 16 bits, and P has the
 * same relative precision.
 *
 * K and V of a tile use one of 3 places in shared memory. At the barrier of tile j, all threads'
 * parts of it have arrived, and the thread that fetched a part has made it visible to the tensor
 * cores. Tile j + 1 is fetched after that barrier, to the place of tile j - 2. The last reader of
 * that tile was P V, for which every thread waited in the step of tile j - 1. Only S reads the
 * queries: after all warps have waited for the last S, y uses their memory before it is stored.
 * Keeping the queries in registers would save reads, but ptxas of CUDA 13.0 gives these registers
 * to P. */

enum { ZFD_SM90_QUERIES = 64, ZFD_SM90_KEYS = 64, ZFD_SM90_PLACES = 3, ZFD_SM90_WIDTH = 64 };

/* The bias of a query: none, one for all queries, or its own. */
enum { ZFD_NO_BIAS, ZFD_ONE_BIAS, ZFD_BIAS_OF_ROW };

static const size_t zfd_sm90_bytes =
    2 * ZFD_SM90_WIDTH * (ZFD_SM90_QUERIES + 2 * ZFD_SM90_PLACES * ZFD_SM90_KEYS);

__device__ __forceinline__ uint32_t zfd_word_of(const uint4 &x, int i)
{
    return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
}

/* Elements 0 and 1 of a pair. */
__device__ __forceinline__ float zfd_low_of(zfd_bf16, uint32_t x)
{
    return __uint_as_float(x << 16);
}
__device__ __forceinline__ float zfd_high_of(zfd_bf16, uint32_t x)
{
    return __uint_as_float(x & 0xffff0000u);
}
__device__ __forceinline__ float zfd_low_of(zfd_f16, uint32_t x)
{
    return __half2float(__ushort_as_half((unsigned short)x));
}
__device__ __forceinline__ float zfd_high_of(zfd_f16, uint32_t x)
{
    return __half2float(__ushort_as_half((unsigned short)(x >> 16)));
}

template <class T, int BIAS, bool DROP>
__global__ void __launch_bounds__(ZFD_WARPGROUP, 4)
    zfd_attention_sm90(const zfd_heads a, T *y, float *lse)
{
#if ZFD_HAS_WGMMA
    typedef zfd_tensor_core<T> core;
    typedef zfd_wgmma<T, ZFD_SM90_KEYS> product;
    const int keys = ZFD_SM90_KEYS, queries = ZFD_SM90_QUERIES, D = ZFD_SM90_WIDTH;
    const int tile = keys * D, place = 2 * tile;
    ZFD_SHARED(T, q_tile);
    T *const places = q_tile + queries * D;
    /* All lanes have the same value; the compiler knows it of the result of a shuffle. */
    const int warp = zfd_shuffle((int)threadIdx.x / 32, 0);
    const int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const zfd_one_head head = {(int)(blockIdx.z * gridDim.y + blockIdx.y), (int)blockIdx.z,
                               (int)blockIdx.y};
    const int nth = (int)(a.causal ? gridDim.x - 1 - blockIdx.x : blockIdx.x); /* longest first */
    const int m0 = nth * queries, m = m0 + 16 * warp;
    /* The numbers of keys that the block sees, that all of a warp's queries see, and that each of
     * this thread's queries sees. */
    const int end = zfd_sees(a, min(m0 + queries, a.m) - 1);
    const int least = zfd_sees(a, m), sees[2] = {zfd_sees(a, m + g), zfd_sees(a, m + g + 8)};
    /* What this thread fetches of each tile: chunk tid % 8 of the key in row tid / 8, and of the
     * rows 16, 32 and 48 further, which are keys 4, 32 and 36 further. */
    const int row = (int)threadIdx.x / 8, chunk = (int)threadIdx.x % 8;
    const int first_key = row % 8 / 2 * 8 + row / 8 * 2 + row % 2;
    const int to = zfd_swizzled(row, chunk);
    const int64_t of_head = zfd_key_at(a, head, 0);
    const char *k = reinterpret_cast<const char *>(static_cast<const T *>(a.k) + of_head);
    const char *v = reinterpret_cast<const char *>(static_cast<const T *>(a.v) + of_head);
    const uint32_t line = (uint32_t)a.kv_row * 2, from = (uint32_t)first_key * line + 16 * chunk;
    /* Must be called for the tiles in order. */
    auto bring = [&](int n, T *at) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int below = i / 2 * 32 + i % 2 * 4;
            const bool there = n + first_key + below < a.n;
            const uint32_t down = there ? from + below * line : 0;
            zfd_fetch<16>(at + to + 16 * i * D, k + down, there);
            zfd_fetch<16>(at + to + 16 * i * D + tile, v + down, there);
        }
        k += keys * line, v += keys * line;
    };
    const zfd_dropper drop = zfd_dropper_of(a.drop);
    const uint32_t kept = drop.off ? UINT32_MAX : (drop.threshold << 16) - 1; /* at most */
    const uint64_t block_at = (drop.first + zfd_score_number(a, head, m + g)) / 8 + (unsigned)t;
    /* A score is x = s * times + bias; its exponential is exp2(x * by). */
    const float times = a.scale * 0.693147181f, by = BIAS ? 1.44269504f : a.scale, slack = 8 / by;
    const T *bias[2] = {NULL, NULL};
    if (BIAS)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            bias[r] = zfd_bias_row<T>(a, head, m + g + 8 * r) + 8 * t;
            zfd_keep(bias[r]);
        }
    float o[32], s[32], most[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
    uint32_t p[4][4];
#pragma unroll
    for (int i = 0; i < 32; i++) o[i] = 0;
#pragma unroll
    for (int i = 0; i < 16; i++) p[i / 4][i % 4] = 0;
    const char *q = reinterpret_cast<const char *>(static_cast<const T *>(a.q) +
                                                   zfd_token_at(a, head, a.m, m0, a.row));
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const bool there = m0 + row + 16 * i < a.m;
        const uint32_t down = there ? (row + 16 * i) * (uint32_t)a.row * 2 + 16 * chunk : 0;
        zfd_fetch<16>(q_tile + to + 16 * i * D, q + down, there);
    }
    bring(0, places);
    zfd_fetch_commit();
    const uint64_t of_q = zfd_wgmma_operand(q_tile), of_places = zfd_wgmma_operand(places);
    uint64_t of_v = of_places + (unsigned)(tile * 2 / 16); /* of the tile before; P is 0 at first */
    for (int n = 0, now = 0; n < end; n += keys) {
        zfd_fetch_wait<0>();
        zfd_shared_to_products();
        __syncthreads();
        const int next = now == ZFD_SM90_PLACES - 1 ? 0 : now + 1;
        if (n + keys < end) bring(n + keys, places + next * place);
        zfd_fetch_commit();
        const uint64_t of_k = of_places + (unsigned)(now * (place * 2 / 16));
        zfd_wgmma_begin();
#pragma unroll
        for (int i = 0; i < 4; i++)
            product::template both<false, false>(
                s, of_q + (unsigned)(i * zfd_wgmma_step<false>::of),
                of_k + (unsigned)(i * zfd_wgmma_step<false>::of), i > 0);
        zfd_wgmma_commit();
#pragma unroll
        for (int i = 0; i < 4; i++)
            product::template rows<true>(o, p[i],
                                         of_v + (unsigned)(i * zfd_wgmma_step<true>::of), true);
        zfd_wgmma_commit();
        of_v = of_k + (unsigned)(tile * 2 / 16);
        now = next;
        uint4 raw[2][2];
        if (BIAS)
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int r = 0; r < (BIAS == ZFD_ONE_BIAS ? 1 : 2); r++) {
                    raw[i][r] = make_uint4(0, 0, 0, 0);
                    if (n + 32 * i + 8 * t < a.n)
                        raw[i][r] = __ldg(reinterpret_cast<const uint4 *>(bias[r] + n + 32 * i));
                }
        zfd_wgmma_wait<1>();
        zfd_wgmma_settle(s);
        if (BIAS)
#pragma unroll
            for (int c = 0; c < 8; c++)
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const uint32_t two =
                        zfd_word_of(raw[c / 4][BIAS == ZFD_ONE_BIAS ? 0 : r], c % 4);
                    float *x = s + 4 * c + 2 * r;
                    x[0] = fmaf(x[0], times, zfd_low_of(T(), two));
                    x[1] = fmaf(x[1], times, zfd_high_of(T(), two));
                }
        if (n + keys > least) {
#pragma unroll
            for (int i = 0; i < 32; i++)
                if (n + i / 16 * 32 + 8 * t + i / 4 % 4 * 2 + i % 2 >= sees[i / 2 % 2])
                    s[i] = -INFINITY;
        }
        float high[2], shift[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            high[r] = fmaxf(s[2 * r], s[2 * r + 1]);
#pragma unroll
            for (int c = 1; c < 8; c++)
                high[r] = fmaxf(high[r], fmaxf(s[4 * c + 2 * r], s[4 * c + 2 * r + 1]));
            high[r] = fmaxf(high[r], zfd_shuffle_xor(high[r], 1));
            high[r] = fmaxf(high[r], zfd_shuffle_xor(high[r], 2));
        }
        zfd_wgmma_wait<0>();
        zfd_wgmma_settle(o);
        if (zfd_any(high[0] > most[0] + slack || high[1] > most[1] + slack)) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const float now = fmaxf(high[r], most[r]);
                const float fix = now == most[r] ? 1 : zfd_exp2((most[r] - now) * by);
                most[r] = now;
                sum[r] *= fix;
#pragma unroll
                for (int c = 0; c < 8; c++) o[4 * c + 2 * r] *= fix, o[4 * c + 2 * r + 1] *= fix;
            }
        }
#pragma unroll
        for (int r = 0; r < 2; r++) shift[r] = most[r] == -INFINITY ? 0 : most[r] * by;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint4 word[2];
            if (DROP) {
                const uint64_t first = block_at + (unsigned)(n / 8 + 4 * half);
                const uint64_t block[2] = {first, first + (unsigned)a.all};
                zfd_random_blocks(block, drop.stream, drop.step, drop.seed, word);
            }
#pragma unroll
            for (int c = 0; c < 4; c++)
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const float *x = s + 4 * (4 * half + c) + 2 * r;
                    float e[2] = {zfd_exp2(fmaf(x[0], by, -shift[r])),
                                  zfd_exp2(fmaf(x[1], by, -shift[r]))};
                    sum[r] += e[0] + e[1];
                    if (DROP) {
                        const uint32_t w = zfd_word_of(word[r], c);
                        if (w << 16 > kept) e[0] = 0;
                        if (w > kept) e[1] = 0;
                    }
                    p[2 * half + c / 2][c % 2 * 2 + r] = core::pair(e[0], e[1]);
                }
        }
    }
    zfd_wgmma_begin();
#pragma unroll
    for (int i = 0; i < 4; i++)
        product::template rows<true>(o, p[i],
                                     of_v + (unsigned)(i * zfd_wgmma_step<true>::of), true);
    zfd_wgmma_commit();
    zfd_wgmma_wait<0>();
    zfd_wgmma_settle(o);
    __syncthreads();
    if (m >= a.m) return;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int query = m + g + 8 * r;
        sum[r] += zfd_shuffle_xor(sum[r], 1);
        sum[r] += zfd_shuffle_xor(sum[r], 2);
        if (lse && t == 0 && query < a.m)
            lse[(int64_t)head.number * a.m + query] =
                (most[r] * by + __log2f(sum[r])) * 0.693147181f;
        const float of_sum = sum[r] == 0 ? 0 : __fdividef(drop.off ? 1 : drop.scale, sum[r]);
#pragma unroll
        for (int c = 0; c < 8; c++)
            zfd_put_pair(q_tile + zfd_swizzled(16 * warp + g + 8 * r, c) + 2 * t,
                         core::pair(o[4 * c + 2 * r] * of_sum, o[4 * c + 2 * r + 1] * of_sum));
    }
    zfd_sync_warp();
    const int hidden = a.heads * D;
    T *out = y + zfd_token_at(a, head, a.m, m, hidden) + lane / 8 * hidden + lane % 8 * 8;
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (m + lane / 8 + 4 * i < a.m)
            *reinterpret_cast<uint4 *>(out + 4 * i * hidden) =
                *reinterpret_cast<const uint4 *>(
                    q_tile + zfd_swizzled(16 * warp + lane / 8 + 4 * i, lane % 8));
#else
    (void)a, (void)y, (void)lse;
#endif
}

/* Queries that follow each other have scores that do, for dropout. */
static bool zfd_rows_follow(const zfd_scores_share &s, int m)
{
    return !s.cut || s.run[2] >= m;
}

/* Whether the kernel takes these operands: rows aligned to 16 bytes; every query sees a key; and
 * no cap; with dropout or a bias, keys in whole groups of 8, each with its bias aligned to 16
 * bytes. */
static bool zfd_sm90_takes(const zf_launch *l, const zfd_heads &a, bool y_well)
{
    const int most = 1 << 16; /* maximum of a grid's dimensions other than x */
    const bool eights = a.n % 8 == 0 && a.bias_step[0] % 8 == 0 && a.bias_step[1] % 8 == 0 &&
                        a.bias_step[2] % 8 == 0;
    if (a.bias && !(eights && a.bias_step[3] == 1 && zfd_lies_well(8, 2, a.bias))) return false;
    return zfd_device_of(l)->wgmma && (size_t)zfd_device_of(l)->shared >= zfd_sm90_bytes &&
           zf_dtype_size(l->out.dtype) == 2 && a.d == ZFD_SM90_WIDTH && a.well && y_well &&
           a.scale > 0 && (a.drop.none || a.n % 8 == 0) && a.n > 0 && (!a.causal || a.past >= 0) &&
           zfd_rows_follow(a.share, a.m) && !a.narrow && !(a.cap > 0) && a.row < 1 << 23 &&
           a.heads < most && a.count / a.heads < most;
}

template <class T, int BIAS>
static cudaError_t zfd_sm90_forward_with(const zf_launch *l, const zfd_heads &a, T *y, float *lse)
{
    auto kernel = a.drop.none ? zfd_attention_sm90<T, BIAS, false>
                              : zfd_attention_sm90<T, BIAS, true>;
    const dim3 grid((unsigned)zfd_div_up(a.m, ZFD_SM90_QUERIES), (unsigned)a.heads,
                    (unsigned)(a.count / a.heads));
    cudaError_t code = zfd_allow_shared(l, kernel, zfd_sm90_bytes, zfd_sm90_bytes);
    if (code == cudaSuccess)
        ZFD_LAUNCH(kernel, grid, ZFD_WARPGROUP, zfd_sm90_bytes, zfd_stream(l), a, y, lse);
    return code;
}

template <class T>
static cudaError_t zfd_sm90_forward(const zf_launch *l, const zfd_heads &a, float *lse)
{
    T *y = static_cast<T *>(l->out.data);
    if (!a.bias) return zfd_sm90_forward_with<T, ZFD_NO_BIAS>(l, a, y, lse);
    if (a.bias_step[2] == 0) return zfd_sm90_forward_with<T, ZFD_ONE_BIAS>(l, a, y, lse);
    return zfd_sm90_forward_with<T, ZFD_BIAS_OF_ROW>(l, a, y, lse);
}

static zf_status zfd_sm90_attention(const zf_launch *l, const zfd_heads &a, float *lse)
{
    return zfd_cuda_failed(l->error, "attention",
                           l->out.dtype == ZF_F16 ? zfd_sm90_forward<zfd_f16>(l, a, lse)
                                                  : zfd_sm90_forward<zfd_bf16>(l, a, lse));
}
