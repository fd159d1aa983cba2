/* Attention on CUDA (ops/attention.c), in tiles as in FlashAttention-2 (Dao 2023). Scores are
 * computed in registers and never stored in memory.
 *
 *                 keys
 *              +---+---+    Forward: a block of threads has a tile of queries, a warp 16 of them,
 *     queries | S |   |    and loops over the keys, with the maximum and the sum of each row so
 *              +---+---+    far; y is scaled when the maximum grows.
 *             |   |   |    Backward: it has a tile of keys, a warp 16 or 32 of them, and loops
 *             +---+---+    over the queries; dK and dV stay in registers until the tile is done,
 *                           and dQ is added up from one tile of keys to the next.
 *
 * Backward, one block has all tiles of a head and adds to its own dQ. Heads are taken in rounds of as
 * many as the device has blocks. Where those of the last round are too few for it, a tile of keys is
 * one task (dK, dV) and a tile of queries another (dQ), and scores are computed twice. A thread adds
 * only to numbers that it has written itself: there are no atomics, and sums have one order, whichever
 * way a head is taken.
 *
 * 16-bit floats use the tensor cores: mma m16n8k16, whose rows are 16 queries (forward) or keys
 * (backward). The scores of one product are already in the registers of the next one's left
 * operand, so only dS goes through shared memory, for dQ. Columns (forward) and rows (backward) of
 * scores are permuted so that a thread has 4 (or 2) neighbouring keys of a query: one load of bias,
 * and a half (or a quarter) of a block of dropout, which neighbouring threads share. There are
 * separate kernels below for f32, all in f32, and for heads wider than 256, which are not
 * optimised. Heads of 64 elements in 16 bits use ops/attention_sm90.cu and
 * ops/attention_grad_sm90.cu on compute capability 9.0.
 *
 * Heads of q that share a head of k and v read it in place. Backward, each has a dK and dV of its own
 * in scratch, in the result's dtype; zfd_sum_groups adds them in f32, in the order of the heads. A
 * window is a mask: tiles of keys before a window are computed and not used. */

/* ------------------------------------------------------------------------------- operands */

enum {
    ZFD_HEAD_WIDTH = 256, /* maximum width of a head in tiles */
    ZFD_TOKENS = 1 << 30  /* maximum */
};

/* A launch taken apart, for kernels. Head h of token t of example b begins at element (b * tokens +
 * t) * row + h * d of q, and at zfd_key_at of k or v. */
typedef struct zfd_heads {
    const void *q, *k, *v, *bias; /* bias may be NULL */
    int64_t row, kv_row; /* elements from one token to the next: of q; of k and v */
    int64_t bias_step[4];
    int64_t count;      /* heads of all examples */
    int heads, m, n, d; /* m queries, n keys */
    int group, window;  /* heads of q that read one of k and v; 0: no window */
    float scale;        /* the scale times log2 e */
    bool causal, well, bias_well;
    bool steady; /* rows are aligned and whole blocks of dropout, and all queries share one bias */
    zfd_dropout drop;
} zfd_heads;

static const void *zfd_after(const void *data, int64_t count, size_t size)
{
    return data ? static_cast<const char *>(data) + count * (int64_t)size : NULL;
}

/* The operands of a launch from number `first` on; an error where their sizes exceed the kernels'
 * counters. */
static zf_status zfd_heads_of(const zf_launch *l, int first, zfd_heads *a)
{
    const zf_array *x = l->args + first, *bias = NULL;
    const zf_attribute *at = l->attributes;
    int count = l->arg_count - first;
    bool packed = count <= 2;
    size_t size = zf_dtype_size(x->dtype);
    int64_t row = x->shape.dims[2], kv_heads = at[5].i ? at[5].i : at[2].i, step = 1;
    int64_t hidden = packed ? row / (at[2].i + 2 * kv_heads) * at[2].i : row;
    int64_t kv_hidden = packed ? (row - hidden) / 2 : x[1].shape.dims[2];
    int64_t m = x->shape.dims[1], n = packed ? m : x[1].shape.dims[1];
    memset(a, 0, sizeof *a);
    if (m > ZFD_TOKENS || n > ZFD_TOKENS || hidden > ZFD_TOKENS || at[2].i > ZFD_TOKENS ||
        x->shape.dims[0] > ZFD_TOKENS / at[2].i)
        return zfd_cuda_fail(l->error, ZF_ERR_BACKEND,
                             "%s %%%d: on CUDA tokens, heads of all examples and elements of a "
                             "token may be 2^30 each",
                             zf_op_name(l->op), (int)l->node);
    a->heads = (int)at[2].i, a->m = (int)m, a->n = (int)n, a->d = (int)(hidden / a->heads);
    a->count = x->shape.dims[0] * a->heads;
    a->row = row, a->kv_row = packed ? row : kv_hidden;
    a->group = a->heads / (int)kv_heads, a->window = (int)min(at[6].i, n);
    a->q = x->data;
    a->k = packed ? zfd_after(x->data, hidden, size) : x[1].data;
    a->v = packed ? zfd_after(x->data, hidden + kv_hidden, size) : x[2].data;
    a->scale = (float)(at[3].f * 1.4426950408889634);
    a->causal = at[4].i != 0;
    a->well = zfd_lies_well(row, size, a->q, a->k, a->v) && a->kv_row * size % 16 == 0 &&
              a->d * size % 16 == 0;
    a->drop = zfd_dropout_of(l, at[0].f, at[1].i, a->count * m * n);
    a->steady = a->well && n % 8 == 0;
    if (count % 2) return ZF_OK;
    bias = x + count - 1;
    a->bias = bias->data;
    for (int i = 3, from = bias->shape.rank - 1; i >= 0; i--, from--) {
        int64_t dim = from >= 0 ? bias->shape.dims[from] : 1;
        a->bias_step[i] = dim == 1 ? 0 : step;
        step *= dim;
    }
    a->bias_well = a->bias_step[3] == 1 && n % 4 == 0 &&
                   reinterpret_cast<uintptr_t>(a->bias) % (4 * size) == 0;
    a->steady = a->steady && a->bias_step[2] == 0;
    return ZF_OK;
}

/* A head: its number among the heads of all examples, its example, and its number there. */
typedef struct zfd_one_head {
    int number, example, nth;
} zfd_one_head;

__device__ __forceinline__ zfd_one_head zfd_one_head_of(const zfd_heads &a, int number)
{
    zfd_one_head h = {number, number / a.heads, number % a.heads};
    return h;
}

/* The element at which token t of the head begins, with rows of `row` elements. */
__device__ __forceinline__ int64_t zfd_token_at(const zfd_heads &a, const zfd_one_head &head,
                                                int tokens, int t, int64_t row)
{
    return ((int64_t)head.example * tokens + t) * row + (int64_t)head.nth * a.d;
}

/* How many keys query m sees, counted from key 0. m may be beyond the last query. */
__device__ __forceinline__ int zfd_sees(const zfd_heads &a, int m)
{
    int seen = a.causal ? max(0, min(a.n, m + 1 + a.n - a.m)) : a.n;
    return m < a.m ? seen : 0;
}

/* The first key that query m sees. */
__device__ __forceinline__ int zfd_first_seen(const zfd_heads &a, int m)
{
    return a.window ? max(0, zfd_sees(a, m) - a.window) : 0;
}

/* The element of k or v at which its token t begins. */
__device__ __forceinline__ int64_t zfd_key_at(const zfd_heads &a, const zfd_one_head &head, int t)
{
    return ((int64_t)head.example * a.n + t) * a.kv_row + (int64_t)(head.nth / a.group) * a.d;
}

/* The bias of query m, from key 0 on. */
template <class T>
__device__ __forceinline__ const T *zfd_bias_row(const zfd_heads &a, const zfd_one_head &head,
                                                 int m)
{
    return static_cast<const T *>(a.bias) + head.example * a.bias_step[0] +
           head.nth * a.bias_step[1] + min(m, a.m - 1) * a.bias_step[2];
}

/* The bias of N keys from n on, a multiple of N, times log2 e as scores are. */
template <class T, int N>
__device__ __forceinline__ void zfd_bias_of(const zfd_heads &a, const T *row, int n, float (&y)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) y[i] = 0;
    if (a.bias_well) {
        if (n < a.n) zfd_load<T, N>(y, row + n);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++)
            if (n + i < a.n) y[i] = zfd_to_f32(row[(n + i) * a.bias_step[3]]);
    }
#pragma unroll
    for (int i = 0; i < N; i++) y[i] *= 1.44269504f;
}

/* Which elements dropout keeps: bit 4 i + k is element e[i] + k, N even. The 4 elements from e[i]
 * on are half a block of dropout: the first half in even lanes, where `odd` is 0, the second in
 * lanes ^ PARTNER. Of two blocks each lane draws one. All lanes of the warp must take part. */
template <int PARTNER, int N>
__device__ __forceinline__ uint32_t zfd_kept_bits(const zfd_dropper &d, const uint64_t (&e)[N],
                                                  int odd)
{
    uint64_t block[N / 2];
    uint4 word[N / 2];
    uint32_t bits = 0, other;
#pragma unroll
    for (int i = 0; i < N / 2; i++) block[i] = (d.first + (odd ? e[2 * i + 1] : e[2 * i])) / 8;
    zfd_random_blocks(block, d.stream, d.step, d.seed, word);
#pragma unroll
    for (int i = 0; i < N / 2; i++) bits |= zfd_kept_of_block(word[i], d.threshold) << 8 * i;
    other = zfd_shuffle_xor(bits, PARTNER) >> 4 * odd & 0x0f0f0f0f;
    bits = bits >> 4 * odd & 0x0f0f0f0f;
    return odd ? bits << 4 | other : other << 4 | bits;
}

/* The number, for dropout, of the score of a query and key 0. */
__device__ __forceinline__ uint64_t zfd_score_number(const zfd_heads &a, const zfd_one_head &head,
                                                     int m)
{
    return ((uint64_t)head.number * (uint64_t)a.m + (uint64_t)m) * (uint64_t)a.n;
}

/* ------------------------------------------------------------------------------ instructions
 * The instruction defines which thread of a warp holds which elements; a fragment is 2 elements of
 * a thread. The replacements without tensor cores have the same fragments, exchanged by
 * shuffles. */

#if ZFD_TENSOR_CORES

/* Copies 16 bytes (SIZE 4: 4) to shared memory, zeros where !there. They have arrived after
 * zfd_fetched. */
template <int SIZE>
__device__ __forceinline__ void zfd_fetch(void *to, const void *from, bool there)
{
    int bytes = there ? SIZE : 0;
    if (SIZE == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(zfd_shared_at(to)),
                     "l"(from), "r"(bytes)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(zfd_shared_at(to)),
                     "l"(from), "r"(bytes)
                     : "memory");
}

__device__ __forceinline__ void zfd_fetched() { asm volatile("cp.async.wait_all;" ::: "memory"); }

/* Loads four 8x8 matrices; matrix i from the 8 rows to which lanes 8 i.. point. A lane gets
 * elements lane % 4 * 2 and the next one of row lane / 4; ACROSS: of column lane / 4. */
template <bool ACROSS>
__device__ __forceinline__ void zfd_fragments(uint32_t (&x)[4], const void *row)
{
    if (ACROSS)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(zfd_shared_at(row))
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(zfd_shared_at(row))
                     : "memory");
}

template <class T> struct zfd_tensor_core;

#define ZFD_TENSOR_CORE(T, name)                                                                   \
    template <> struct zfd_tensor_core<T> {                                                        \
        static __device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4],          \
                                                   uint32_t b0, uint32_t b1)                       \
        {                                                                                          \
            asm("mma.sync.aligned.m16n8k16.row.col.f32." name "." name ".f32 "                     \
                "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                  \
                : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                   \
                : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                   \
        }                                                                                          \
        static __device__ __forceinline__ uint32_t pair(float low, float high)                     \
        {                                                                                          \
            uint32_t x;                                                                            \
            asm("cvt.rn." name "x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));              \
            return x;                                                                              \
        }                                                                                          \
    };
ZFD_TENSOR_CORE(zfd_bf16, "bf16")
ZFD_TENSOR_CORE(zfd_f16, "f16")

__device__ __forceinline__ float zfd_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#else

template <int SIZE>
__device__ __forceinline__ void zfd_fetch(void *to, const void *from, bool there)
{
    if (there) memcpy(to, from, SIZE);
    else memset(to, 0, SIZE);
}

__device__ __forceinline__ void zfd_fetched() {}

template <bool ACROSS>
__device__ __forceinline__ void zfd_fragments(uint32_t (&x)[4], const void *row)
{
    int lane = (int)threadIdx.x % ZFD_WARP, g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; i++) {
        uint16_t two[2];
        const char *at = NULL;
        for (int e = 0; e < 2; e++) {
            int from = ACROSS ? 2 * t + e : g, column = ACROSS ? g : 2 * t + e;
            if (ACROSS || e == 0)
                at = zfd_shuffle(static_cast<const char *>(row), 8 * i + from);
            memcpy(&two[e], at + 2 * column, 2);
        }
        memcpy(&x[i], two, 4);
    }
}

template <class T> struct zfd_tensor_core {
    static void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
    {
        int lane = (int)threadIdx.x % ZFD_WARP, g = lane / 4, t = lane % 4;
        uint64_t top = (uint64_t)a[2] << 32 | a[0], low = (uint64_t)a[3] << 32 | a[1];
        uint64_t b = (uint64_t)b1 << 32 | b0;
        for (int i = 0; i < 4; i++) { /* k = 2 i, 2 i + 1, 2 i + 8, 2 i + 9 */
            uint64_t from[4] = {
                zfd_shuffle(top, 4 * g + i), zfd_shuffle(low, 4 * g + i),
                zfd_shuffle(b, 8 * t + i), zfd_shuffle(b, 8 * t + 4 + i)};
            T x[4][4];
            memcpy(x, from, sizeof x);
            for (int k = 0; k < 4; k++)
                for (int j = 0; j < 4; j++)
                    c[j] += zfd_to_f32(x[j / 2][k]) * zfd_to_f32(x[2 + j % 2][k]);
        }
    }
    static uint32_t pair(float low, float high)
    {
        T two[2] = {zfd_from_f32<T>(low), zfd_from_f32<T>(high)};
        uint32_t x;
        memcpy(&x, two, sizeof x);
        return x;
    }
};

__device__ __forceinline__ float zfd_exp2(float x) { return exp2f(x); }

#endif

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
    zfd_attention_forward(const zfd_heads a, T *y, float *lse, bool y_well)
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
    const int end = zfd_sees(a, min(m0 + queries, a.m) - 1);
    const int ends = m < a.m ? zfd_sees(a, min(m + 16, a.m) - 1) : 0, least = zfd_sees(a, m);
    const int sees[2] = {zfd_sees(a, m + g), zfd_sees(a, m + g + 8)};
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
    if (end) {
        zfd_tile_in<D>(q_tile, queries,
                       static_cast<const T *>(a.q) + zfd_token_at(a, head, a.m, m0, a.row), a.row,
                       a.m - m0, a.d, a.well);
        zfd_tile_in<D>(stage, keys, k, a.kv_row, a.n, a.d, a.well);
        zfd_tile_in<D>(stage + keys * D, keys, v, a.kv_row, a.n, a.d, a.well);
        if (bias_row) zfd_bias_in(bias_stage, a, bias_row, 0, keys);
    }
    for (int n = 0, now = 0; n < end; n += keys, now ^= 1) {
        const T *k_tile = stage + now * 2 * keys * D, *v_tile = k_tile + keys * D;
        const T *bias_tile = bias_stage + now * keys + 4 * t;
        zfd_fetched();
        __syncthreads();
        if (n + keys < end) {
            T *next = stage + (now ^ 1) * 2 * keys * D;
            int64_t at = (int64_t)(n + keys) * a.kv_row;
            if (shares) {
                share.bring(next, k + at, a.n - n - keys);
                share.bring(next + keys * D, v + at, a.n - n - keys);
            } else {
                zfd_tile_in<D>(next, keys, k + at, a.kv_row, a.n - n - keys, a.d, a.well);
                zfd_tile_in<D>(next + keys * D, keys, v + at, a.kv_row, a.n - n - keys, a.d,
                               a.well);
            }
            if (bias_row)
                zfd_bias_in(bias_stage + (now ^ 1) * keys, a, bias_row, n + keys, keys);
        }
        if (n >= ends) continue;
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
                    *x = fmaf(*x, a.scale, bias[i]);
                }
            }
        }
        if (a.window) {
#pragma unroll
            for (int c = 0; c < 2 * groups; c++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (n + c / 2 * 16 + 4 * t + c % 2 * 2 + i % 2 < sees[i / 2] - a.window)
                        s[c][i] = -INFINITY;
        }
        if (n + keys > least) {
#pragma unroll
            for (int c = 0; c < 2 * groups; c++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (n + c / 2 * 16 + 4 * t + c % 2 * 2 + i % 2 >= sees[i / 2])
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
    zfd_sync_warp(); /* the warp has read its queries: y replaces them */
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = m + g + 8 * r;
        sum[r] += zfd_shuffle_xor(sum[r], 1);
        sum[r] += zfd_shuffle_xor(sum[r], 2);
        if (lse && t == 0 && row < a.m)
            lse[(int64_t)head.number * a.m + row] = most[r] * 0.693147181f + logf(sum[r]);
        float by = sum[r] == 0 ? 0 : (drop.off ? 1 : drop.scale) / sum[r];
        const int y_at = zfd_chunk_at<D>(16 * warp + g + 8 * r, 0) + 2 * t;
#pragma unroll
        for (int c = 0; c < D / 8; c++)
            zfd_put_pair(q_tile + (y_at ^ c * 8),
                         core::pair(o[c][2 * r] * by, o[c][2 * r + 1] * by));
    }
    zfd_sync_warp();
    int64_t hidden = (int64_t)a.heads * a.d;
    zfd_tile_out<D, D>(y + zfd_token_at(a, head, a.m, m, hidden), hidden, q_tile, 16 * warp, 16,
                       a.m - m, 0, a.d, y_well);
}

/* --------------------------------------------------------------------- backward, in general */

/* delta[head,m] = sum of dy y over the d of a row, divided by dropout's factor where that factor is
 * applied at the end; shift[head,m] = the number subtracted from scores times log2 e: inf for an
 * empty row, whose probabilities become 0. Rows of dy are [b,m,head]. A block has 128 rows, 8
 * threads each; a thread reads 4 elements at a time. Results are stored head by head. */
enum { ZFD_DELTA_ROWS = 128 };

template <class T>
__global__ void __launch_bounds__(ZFD_THREADS)
    zfd_attention_delta(const zfd_heads a, const T *dy, const T *y, const float *lse, float *delta,
                        float *shift, bool well, bool over_scale)
{
    const int wide = zfd_wide<T>::count, some = 4, group = (int)threadIdx.x / 8;
    const int64_t rows = a.count * a.m, first = (int64_t)blockIdx.x * ZFD_DELTA_ROWS;
    ZFD_SHARED(float, sums);
    float sum[some] = {};
    if (well) {
        for (int i = (int)threadIdx.x % 8 * wide; i < a.d; i += 8 * wide) {
            zfd_pack<T, wide> p[some], q[some];
#pragma unroll
            for (int k = 0; k < some; k++) {
                const int64_t at = min(first + group + k * 32, rows - 1) * a.d + i;
                p[k] = *reinterpret_cast<const zfd_pack<T, wide> *>(dy + at);
                q[k] = *reinterpret_cast<const zfd_pack<T, wide> *>(y + at);
            }
#pragma unroll
            for (int k = 0; k < some; k++)
#pragma unroll
                for (int j = 0; j < wide; j++)
                    sum[k] = fmaf(zfd_to_f32(p[k].at[j]), zfd_to_f32(q[k].at[j]), sum[k]);
        }
    } else {
        for (int k = 0; k < some; k++) {
            const int64_t at = min(first + group + k * 32, rows - 1) * a.d;
            for (int i = (int)threadIdx.x % 8; i < a.d; i += 8)
                sum[k] = fmaf(zfd_to_f32(dy[at + i]), zfd_to_f32(y[at + i]), sum[k]);
        }
    }
#pragma unroll
    for (int k = 0; k < some; k++) {
        for (int step = 4; step; step /= 2) sum[k] += zfd_shuffle_xor(sum[k], step);
        if (threadIdx.x % 8 == 0) sums[group + k * 32] = sum[k];
    }
    __syncthreads();
    int nth = (int)threadIdx.x;
    if (nth >= ZFD_DELTA_ROWS) return;
    if (ZFD_DELTA_ROWS % a.heads == 0) { /* neighbours in a result belong to one head */
        const int tokens = ZFD_DELTA_ROWS / a.heads;
        nth = nth % tokens * a.heads + nth / tokens;
    }
    const int64_t row = first + nth, token = row / a.heads;
    if (row >= rows) return;
    const int64_t to = (token / a.m * a.heads + row % a.heads) * a.m + token % a.m;
    const zfd_dropper drop = zfd_dropper_of(a.drop);
    delta[to] = over_scale && !drop.off ? sums[nth] / drop.scale : sums[nth];
    shift[to] = lse[to] == -INFINITY ? INFINITY : lse[to] * 1.44269504f;
}

/* The operands of a gradient, and how its tasks are split. sums: where a block of threads adds up
 * its dQ. */
typedef struct zfd_heads_back {
    const void *dy;
    float *shift, *delta, *sums;
    int64_t sums_size; /* elements of one block's sums */
    void *dq, *dk, *dv;
    void *whole_k, *whole_v; /* of groups: where the sums over heads of q go, */
    int64_t whole_row;       /* and their rows; dk and dv are then each head's own */
    int64_t row, kv_row, hidden; /* elements from one token to the next: of dq; of dk and dv; of dy */
    /* Of the packed form: where the sums of blocks of 16 rows of the result go, [examples, blocks,
     * row]; NULL: they are not needed. Only attention_grad_sm90.cu writes them */
    float *columns;
    int key_tiles, query_tiles;
    int64_t whole, tasks; /* the first `whole` tasks are heads, the others tiles of the heads left */
    bool well, dy_well;
} zfd_heads_back;

/* A task: a range of tiles of a head's scores. */
typedef struct zfd_tiles {
    zfd_one_head head;
    int i0, i1, j0, j1; /* tiles of queries, tiles of keys */
    bool dq, dkv;
} zfd_tiles;

__device__ __forceinline__ zfd_tiles zfd_tiles_of(const zfd_heads &a, const zfd_heads_back &b,
                                                  int64_t task)
{
    const int parts = b.key_tiles + b.query_tiles;
    const bool apart = task >= b.whole;
    const int64_t nth = task - b.whole, head = apart ? b.whole + nth / parts : task;
    const int part = (int)(nth % parts);
    zfd_tiles x = {zfd_one_head_of(a, (int)head), 0, b.query_tiles, 0, b.key_tiles, true, true};
    if (apart && part < b.key_tiles) {
        x.j0 = part, x.j1 = part + 1, x.dq = false;
    } else if (apart) {
        x.i0 = part - b.key_tiles, x.i1 = x.i0 + 1, x.dkv = false;
    }
    return x;
}

/* The first tile of queries for tile j of keys: the first that sees one of these keys. Tile 0 of
 * keys has all tiles of queries, since it initialises every dQ. */
__device__ __forceinline__ int zfd_first_queries(const zfd_heads &a, const zfd_tiles &x, int j,
                                                 int queries, int keys)
{
    if ((x.dq && j == 0) || !a.causal) return x.i0;
    return max(x.i0, max(0, j * keys + a.m - a.n) / queries);
}

/* The last tile of keys that tile i of queries sees. */
__device__ __forceinline__ int zfd_last_keys(const zfd_heads &a, int i, int queries, int keys)
{
    return max(0, zfd_sees(a, min((i + 1) * queries, a.m) - 1) - 1) / keys;
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
            float prob = zfd_exp2(fmaf(*to, a.scale, bias[e] - shift));
            *d = prob * fmaf(*d, by[e], -less);
            *to = prob * by[e];
        }
    }
    if (w.n + w.own + 16 * blocks > zfd_sees(a, m) || m + 16 > a.m || a.window) { /* an edge */
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const int query = m + c / 2 * 8 + 2 * w.t + c % 2;
            const int seen = zfd_sees(a, query), from = zfd_first_seen(a, query);
#pragma unroll
            for (int e = 0; e < 2 * blocks; e++)
                if (mine + e >= seen || mine + e < from)
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

/* dQ of tile i of queries: the sum of earlier tiles of keys, in `sums`, plus this one. A warp has
 * 16 of the queries and some of the columns. q: the memory of the queries' tile, which is no longer
 * needed. */
template <class T, int D>
__device__ __forceinline__ void zfd_back_queries(const zfd_heads &a, const zfd_heads_back &b,
                                                 const zfd_back_warp<T, D> &w, T *q, int i,
                                                 float *sums)
{
    typedef zfd_tensor_core<T> core;
    typedef zfd_back<T, D> cut;
    const int queries = cut::queries, blocks = cut::blocks, span = 16 * blocks;
    const int rows = queries / 16, parts = 4 * cut::parts / rows, warp = (int)threadIdx.x / 32;
    const int width = D / parts, some = width < 64 ? width : 64; /* of a warp; at a time */
    const int own = warp % rows * 16, end = min((i + 1) * queries, a.m);
    const bool first = w.n == 0, last = w.n / cut::keys == zfd_last_keys(a, i, queries, cut::keys);
    const float scale = a.scale * 0.693147181f;
    /* The keys up to the last that one of the queries sees, in whole fragments. */
    const int seen = min(cut::keys, zfd_sees(a, end - 1) - w.n);
    const int steps = (seen + span - 1) / span * blocks;
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
        w.head = x.head;
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
            const int first = zfd_first_queries(a, x, j, queries, keys);
            float dk[blocks][width / 8][4], dv[blocks][width / 8][4], bias[2 * blocks];
            if (first >= x.i1 && !x.dkv) break;
            w.n = j * keys;
            const int64_t at = zfd_key_at(a, w.head, w.n);
            __syncthreads(); /* the tiles before have been read */
            zfd_tile_in<D>(w.k, keys, static_cast<const T *>(a.k) + at, a.kv_row, a.n - w.n, a.d,
                           a.well);
            zfd_tile_in<D>(w.v, keys, static_cast<const T *>(a.v) + at, a.kv_row, a.n - w.n, a.d,
                           a.well);
            if (first < x.i1) queries_in(first, 0);
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

            for (int i = first, now = 0; i < x.i1; i++, now ^= 1) {
                T *q = stage + now * 2 * queries * D;
                const T *dy = q + queries * D;
                zfd_fetched();
                __syncthreads();
                if (i + 1 < x.i1) queries_in(i + 1, now ^ 1);
#pragma unroll 1
                for (int r = 0; r < queries; r += 16) {
                    const int m = i * queries + r;
                    const bool sees = m < a.m && zfd_sees(a, min(m + 16, a.m) - 1) > w.n + w.own;
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
                zfd_back_queries<T, D>(a, b, w, q, i, sums + (int64_t)(i - x.i0) * queries * D);
            }
            zfd_fetched();
            __syncthreads(); /* K and V have been read: dK and dV replace them */
            if (!x.dkv) continue;
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
            const int64_t to = zfd_token_at(a, w.head, a.n, w.n + w.own, b.kv_row);
            const int has = a.n - w.n - w.own;
            zfd_tile_out<D, width>(static_cast<T *>(b.dk) + to, b.kv_row, w.k, w.own, span, has,
                                   w.column, a.d, b.well);
            zfd_tile_out<D, width>(static_cast<T *>(b.dv) + to, b.kv_row, w.v, w.own, span, has,
                                   w.column, a.d, b.well);
        }
    }
}

/* ------------------------------------------------------------------------------------- f32
 * 256 threads as 16 x 16: thread (row, column) has `each` rows and `each` neighbouring keys of a
 * tile of scores, and 4 neighbouring columns of every 64 of a tile of y or a gradient. Where
 * neighbouring threads read rows of K or V, row k is stored at k % each * 16 + k / each, so that
 * they read neighbouring rows. */

template <int D> struct zfd_plain {
    static const int tile = D <= 128 ? 64 : 32, each = tile / 16, columns = D / 16;
    static const int line = D + 4, s_line = tile + 4; /* elements from one row to the next */
    static size_t bytes(int tiles)
    {
        return sizeof(float) * (size_t)(tiles * tile * line + tile * s_line);
    }
    static __device__ __forceinline__ int place(int k) { return k % each * 16 + k / each; }
};

template <int D, bool SPREAD>
__device__ __forceinline__ void zfd_plain_in(float *tile, const float *from, int64_t row, int has,
                                             int d, bool well)
{
    typedef zfd_plain<D> cut;
    for (int c = (int)threadIdx.x; c < cut::tile * (D / 4); c += ZFD_THREADS) {
        int r = c / (D / 4), i = c % (D / 4) * 4;
        const float *x = from + r * row + i;
        float y[4] = {0, 0, 0, 0};
        if (r < has && i < d && well) zfd_load<float, 4>(y, x);
        else
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (r < has && i + e < d) y[e] = x[e];
        zfd_store<float, 4>(tile + (SPREAD ? cut::place(r) : r) * cut::line + i, y);
    }
}

/* Products of the thread's rows of x with its keys, rows of a tile that is stored in this order. */
template <int D>
__device__ __forceinline__ void zfd_plain_scores(float (&s)[zfd_plain<D>::each][zfd_plain<D>::each],
                                                 const float *x, const float *keys)
{
    typedef zfd_plain<D> cut;
    const int each = cut::each;
    x += (int)threadIdx.x / 16 * each * cut::line, keys += (int)threadIdx.x % 16 * cut::line;
#pragma unroll
    for (int r = 0; r < each; r++)
#pragma unroll
        for (int c = 0; c < each; c++) s[r][c] = 0;
#pragma unroll 4
    for (int i = 0; i < D; i += 4) {
        float p[each][4], q[each][4];
#pragma unroll
        for (int r = 0; r < each; r++) {
            zfd_load<float, 4>(p[r], x + r * cut::line + i);
            zfd_load<float, 4>(q[r], keys + r * 16 * cut::line + i);
        }
#pragma unroll
        for (int r = 0; r < each; r++)
#pragma unroll
            for (int c = 0; c < each; c++)
#pragma unroll
                for (int e = 0; e < 4; e++) s[r][c] = fmaf(p[r][e], q[c][e], s[r][c]);
    }
}

/* y += s x or, ACROSS, s^T x: the thread's rows, all of x's. */
template <int D, bool ACROSS, bool SPREAD>
__device__ __forceinline__ void zfd_plain_add(float (&y)[zfd_plain<D>::each][zfd_plain<D>::columns],
                                              const float *s, const float *x)
{
    typedef zfd_plain<D> cut;
    const int each = cut::each, row = (int)threadIdx.x / 16 * each;
    x += (int)threadIdx.x % 16 * 4;
#pragma unroll 4
    for (int k = 0; k < cut::tile; k++) {
        const float *from = x + (SPREAD ? cut::place(k) : k) * cut::line;
        float by[each], v[4];
#pragma unroll
        for (int r = 0; r < each; r++)
            by[r] = ACROSS ? s[k * cut::s_line + row + r] : s[(row + r) * cut::s_line + k];
#pragma unroll
        for (int c = 0; c < cut::columns; c += 4) {
            zfd_load<float, 4>(v, from + c * 16);
#pragma unroll
            for (int r = 0; r < each; r++)
#pragma unroll
                for (int e = 0; e < 4; e++) y[r][c + e] = fmaf(by[r], v[e], y[r][c + e]);
        }
    }
}

/* Stores the thread's rows times `by`, the first `has` of the tile. */
template <int D>
__device__ __forceinline__ void
zfd_plain_out(float *to, int64_t row, const float (&y)[zfd_plain<D>::each][zfd_plain<D>::columns],
              int has, int d, const float (&by)[zfd_plain<D>::each], bool well)
{
    typedef zfd_plain<D> cut;
    int first = (int)threadIdx.x / 16 * cut::each, column = (int)threadIdx.x % 16 * 4;
#pragma unroll
    for (int r = 0; r < cut::each; r++)
#pragma unroll
        for (int c = 0; c < cut::columns; c += 4) {
            float x[4], *at = to + (first + r) * row + column + c * 16;
#pragma unroll
            for (int e = 0; e < 4; e++) x[e] = y[r][c + e] * by[r];
            if (first + r >= has || column + c * 16 >= d) continue;
            if (well) zfd_store<float, 4>(at, x);
            else
#pragma unroll
                for (int e = 0; e < 4; e++)
                    if (column + c * 16 + e < d) at[e] = x[e];
        }
}

template <int N>
__device__ __forceinline__ void zfd_plain_put(float *s, const float (&x)[N][N], int line)
{
    s += (int)threadIdx.x / 16 * N * line + (int)threadIdx.x % 16 * N;
#pragma unroll
    for (int r = 0; r < N; r++) zfd_store<float, N>(s + r * line, x[r]);
}

template <int D>
__global__ void __launch_bounds__(ZFD_THREADS)
    zfd_attention_forward_f32(const zfd_heads a, float *y, float *lse, bool y_well)
{
    typedef zfd_plain<D> cut;
    const int tile = cut::tile, each = cut::each, line = cut::line;
    ZFD_SHARED(float, q_tile);
    float *k_tile = q_tile + tile * line, *v_tile = k_tile + tile * line, *p = v_tile + tile * line;
    const int tiles = (a.m + tile - 1) / tile;
    const zfd_one_head head = zfd_one_head_of(a, (int)(blockIdx.x / (unsigned)tiles));
    const int nth = (int)(blockIdx.x % (unsigned)tiles);
    const int m0 = (a.causal ? tiles - 1 - nth : nth) * tile;
    const int end = zfd_sees(a, min(m0 + tile, a.m) - 1), m = m0 + (int)threadIdx.x / 16 * each;
    const int64_t keys_at = zfd_key_at(a, head, 0);
    const zfd_dropper drop = zfd_dropper_of(a.drop);
    float s[each][each], o[each][cut::columns], most[each], sum[each];
#pragma unroll
    for (int r = 0; r < each; r++) {
        most[r] = -INFINITY, sum[r] = 0;
#pragma unroll
        for (int c = 0; c < cut::columns; c++) o[r][c] = 0;
    }
    zfd_plain_in<D, false>(q_tile,
                           static_cast<const float *>(a.q) + zfd_token_at(a, head, a.m, m0, a.row),
                           a.row, a.m - m0, a.d, a.well);
    for (int n0 = 0; n0 < end; n0 += tile) {
        const int n = n0 + (int)threadIdx.x % 16 * each;
        const int64_t at = keys_at + n0 * a.kv_row;
        __syncthreads(); /* the keys before have been read */
        zfd_plain_in<D, true>(k_tile, static_cast<const float *>(a.k) + at, a.kv_row, a.n - n0,
                              a.d, a.well);
        zfd_plain_in<D, false>(v_tile, static_cast<const float *>(a.v) + at, a.kv_row, a.n - n0,
                               a.d, a.well);
        __syncthreads();
        zfd_plain_scores<D>(s, q_tile, k_tile);
#pragma unroll
        for (int r = 0; r < each; r++) {
            const int sees = zfd_sees(a, m + r), from = zfd_first_seen(a, m + r);
            float bias[each] = {0}, high = most[r], shift, fix;
            uint32_t kept = ~0u;
            if (a.bias) zfd_bias_of<float, each>(a, zfd_bias_row<float>(a, head, m + r), n, bias);
            if (!drop.off)
                kept = zfd_kept_from<each>(drop, zfd_score_number(a, head, m + r) + (unsigned)n);
#pragma unroll
            for (int c = 0; c < each; c++) {
                s[r][c] = n + c < sees && n + c >= from ? fmaf(s[r][c], a.scale, bias[c])
                                                        : -INFINITY;
                high = fmaxf(high, s[r][c]);
            }
#pragma unroll
            for (int step = 8; step; step /= 2)
                high = fmaxf(high, zfd_shuffle_xor(high, step));
            shift = high == -INFINITY ? 0 : high;
            fix = zfd_exp2(most[r] - shift);
            most[r] = high;
            sum[r] *= fix;
#pragma unroll
            for (int c = 0; c < cut::columns; c++) o[r][c] *= fix;
#pragma unroll
            for (int c = 0; c < each; c++) {
                s[r][c] = zfd_exp2(s[r][c] - shift);
                sum[r] += s[r][c];
                if (!(kept >> c & 1)) s[r][c] = 0;
            }
        }
        zfd_sync_warp(); /* each warp reads only its own rows of p */
        zfd_plain_put<each>(p, s, cut::s_line);
        zfd_sync_warp();
        zfd_plain_add<D, false, false>(o, p, v_tile);
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
    zfd_plain_out<D>(y + zfd_token_at(a, head, a.m, m0, hidden), hidden, o, a.m - m0, a.d, sum,
                     y_well);
}

template <int D>
__global__ void __launch_bounds__(ZFD_THREADS)
    zfd_attention_backward_f32(const zfd_heads a, const zfd_heads_back b)
{
    typedef zfd_plain<D> cut;
    const int tile = cut::tile, each = cut::each, line = cut::line, columns = cut::columns;
    ZFD_SHARED(float, k_tile);
    float *v_tile = k_tile + tile * line, *q_tile = v_tile + tile * line;
    float *g_tile = q_tile + tile * line, *s_tile = g_tile + tile * line;
    const int row = (int)threadIdx.x / 16 * each, column = (int)threadIdx.x % 16;
    const zfd_dropper drop = zfd_dropper_of(a.drop);
    const float keep = drop.off ? 1 : drop.scale;
    float *sums = b.sums + blockIdx.x * b.sums_size, one[each], scale[each];
#pragma unroll
    for (int r = 0; r < each; r++) one[r] = 1, scale[r] = a.scale * 0.693147181f;

    for (int64_t task = blockIdx.x; task < b.tasks; task += gridDim.x) {
        const zfd_tiles x = zfd_tiles_of(a, b, task);
        const zfd_one_head head = x.head;
        for (int j = x.j0; j < x.j1; j++) {
            const int n0 = j * tile, n = n0 + column * each;
            const int first = zfd_first_queries(a, x, j, tile, tile);
            const int64_t at = zfd_key_at(a, head, n0);
            const int64_t to = zfd_token_at(a, head, a.n, n0, b.kv_row);
            float dk[each][columns], dv[each][columns];
            if (first >= x.i1 && !x.dkv) break;
            __syncthreads(); /* the tiles before have been read */
            zfd_plain_in<D, true>(k_tile, static_cast<const float *>(a.k) + at, a.kv_row, a.n - n0,
                                  a.d, a.well);
            zfd_plain_in<D, true>(v_tile, static_cast<const float *>(a.v) + at, a.kv_row, a.n - n0,
                                  a.d, a.well);
#pragma unroll
            for (int r = 0; r < each; r++)
#pragma unroll
                for (int c = 0; c < columns; c++) dk[r][c] = dv[r][c] = 0;
            for (int i = first; i < x.i1; i++) {
                const int m0 = i * tile, m = m0 + row;
                const int64_t g_at = zfd_token_at(a, head, a.m, m0, b.hidden);
                float s[each][each], dp[each][each];
                __syncthreads();
                zfd_plain_in<D, false>(
                    q_tile, static_cast<const float *>(a.q) + zfd_token_at(a, head, a.m, m0, a.row),
                    a.row, a.m - m0, a.d, a.well);
                zfd_plain_in<D, false>(g_tile, static_cast<const float *>(b.dy) + g_at, b.hidden,
                                       a.m - m0, a.d, b.dy_well);
                __syncthreads();
                zfd_plain_scores<D>(s, q_tile, k_tile);
                zfd_plain_scores<D>(dp, g_tile, v_tile);
#pragma unroll
                for (int r = 0; r < each; r++) {
                    const int sees = zfd_sees(a, m + r), from = zfd_first_seen(a, m + r);
                    const int64_t of_row = (int64_t)head.number * a.m + min(m + r, a.m - 1);
                    const float shift = b.shift[of_row], less = b.delta[of_row];
                    float bias[each] = {0};
                    uint32_t kept = ~0u;
                    if (a.bias)
                        zfd_bias_of<float, each>(a, zfd_bias_row<float>(a, head, m + r), n, bias);
                    if (!drop.off)
                        kept = zfd_kept_from<each>(
                            drop, zfd_score_number(a, head, m + r) + (unsigned)n);
#pragma unroll
                    for (int c = 0; c < each; c++) {
                        float by = kept >> c & 1 ? keep : 0;
                        float prob = zfd_exp2(fmaf(s[r][c], a.scale, bias[c] - shift));
                        bool there = n + c < sees && n + c >= from;
                        dp[r][c] = there ? prob * fmaf(dp[r][c], by, -less) : 0;
                        s[r][c] = there ? prob * by : 0;
                    }
                }
                if (x.dkv) {
                    zfd_plain_put<each>(s_tile, s, cut::s_line);
                    __syncthreads();
                    zfd_plain_add<D, true, false>(dv, s_tile, g_tile);
                    __syncthreads();
                }
                zfd_plain_put<each>(s_tile, dp, cut::s_line);
                __syncthreads();
                if (x.dkv) zfd_plain_add<D, true, false>(dk, s_tile, q_tile);
                if (!x.dq) continue;
                float dq[each][columns];
                float *sum = sums + ((int64_t)(i - x.i0) * tile + row) * D + 4 * column;
#pragma unroll
                for (int r = 0; r < each; r++)
#pragma unroll
                    for (int c = 0; c < columns; c += 4) {
                        float before[4] = {0, 0, 0, 0};
                        if (j > 0) zfd_load<float, 4>(before, sum + r * D + c * 16);
#pragma unroll
                        for (int e = 0; e < 4; e++) dq[r][c + e] = before[e];
                    }
                zfd_plain_add<D, false, true>(dq, s_tile, k_tile);
                if (j == zfd_last_keys(a, i, tile, tile))
                    zfd_plain_out<D>(static_cast<float *>(b.dq) +
                                         zfd_token_at(a, head, a.m, m0, b.row),
                                     b.row, dq, a.m - m0, a.d, scale, b.well);
                else
#pragma unroll
                    for (int r = 0; r < each; r++)
#pragma unroll
                        for (int c = 0; c < columns; c += 4) {
                            float after[4] = {dq[r][c], dq[r][c + 1], dq[r][c + 2], dq[r][c + 3]};
                            zfd_store<float, 4>(sum + r * D + c * 16, after);
                        }
            }
            if (!x.dkv) continue;
            zfd_plain_out<D>(static_cast<float *>(b.dk) + to, b.kv_row, dk, a.n - n0, a.d, scale,
                             b.well);
            zfd_plain_out<D>(static_cast<float *>(b.dv) + to, b.kv_row, dv, a.n - n0, a.d, one,
                             b.well);
        }
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

template <class T>
__global__ void __launch_bounds__(ZFD_THREADS)
    zfd_attention_wide(const zfd_heads a, const zfd_heads_back b, T *y, float *lse, int what)
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
        const int meets = what == ZFD_ROW_OF_DKV ? a.m : zfd_sees(a, row);
        /* The score of query m and key n, times log2 e; -inf where the query does not see the
         * key. */
        auto score = [&](int m, int n) {
            float bias[1] = {0};
            if (n >= zfd_sees(a, m) || n < zfd_first_seen(a, m)) return -INFINITY;
            if (a.bias) zfd_bias_of<T, 1>(a, zfd_bias_row<T>(a, head, m), n, bias);
            return fmaf(zfd_wide_dot(q + m * a.row, k + n * a.kv_row, a.d), a.scale, bias[0]);
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
                    if (lane) continue;
                    prob = zfd_exp2(x - b.shift[of_row]);
                    const bool seen = n < zfd_sees(a, m) && n >= zfd_first_seen(a, m);
                    p[i] = kept && seen ? prob * keep : 0;
                    ds[i] = seen ? prob * fmaf(dp, kept ? keep : 0, -b.delta[of_row]) : 0;
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
                y[zfd_token_at(a, head, a.m, row, hidden) + column] = zfd_from_f32<T>(one * by);
            } else if (what == ZFD_ROW_OF_DQ) {
                static_cast<T *>(b.dq)[zfd_token_at(a, head, a.m, row, b.row) + column] =
                    zfd_from_f32<T>(one * scale);
            } else {
                int64_t to = zfd_token_at(a, head, a.n, row, b.kv_row) + column;
                static_cast<T *>(b.dk)[to] = zfd_from_f32<T>(two * scale);
                static_cast<T *>(b.dv)[to] = zfd_from_f32<T>(one);
            }
        }
    }
}

/* ------------------------------------------------------------------------------- launchers */

/* Allows a block of the kernel `bytes` of shared memory, or up to `most` if the device has as much.
 * The allowance never shrinks from one launch to the next, since an earlier launch may be in a
 * captured graph. */
template <class K>
static cudaError_t zfd_allow_shared(const zf_launch *l, K *kernel, size_t bytes, size_t most)
{
    const size_t has = (size_t)zfd_device_of(l)->shared;
    if (bytes > has) {
        zfd_cuda_fail(l->error, ZF_ERR_BACKEND,
                      "%s %%%d: heads so wide take %zu bytes of shared memory for each block, of "
                      "which this device has %zu; narrower heads take less",
                      zf_op_name(l->op), (int)l->node, bytes, has);
        return cudaErrorInvalidValue;
    }
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                (int)(most < has ? most : has));
}

/* Launches the kernels for heads of type T, at most D wide. */
template <class T, int D> struct zfd_attention_of {
    typedef zfd_back<T, D> back;
    static const int keys = back::keys, queries = back::queries, width = D;

    /* Tiles are halved where whole ones would not occupy all processors; the bits of rows do not
     * change. */
    static cudaError_t forward(const zf_launch *l, const zfd_heads &a, T *y, float *lse, bool well)
    {
        int warps = (int)zfd_div_up(min(a.m, 128), 16), processors = zfd_device_of(l)->processors;
        size_t most = zfd_front<D>::bytes(128), bytes;
        if (warps > 4 && (a.count * zfd_div_up(a.m, 128) < processors ||
                          most > (size_t)zfd_device_of(l)->shared))
            warps = 4;
        bytes = zfd_front<D>::bytes(16 * warps);
        auto kernel = a.steady ? zfd_attention_forward<T, D, true>
                               : zfd_attention_forward<T, D, false>;
        cudaError_t code = zfd_allow_shared(l, kernel, bytes, most);
        if (code != cudaSuccess) return code;
        ZFD_LAUNCH(kernel, (unsigned)(a.count * zfd_div_up(a.m, 16 * warps)), 32 * warps, bytes,
                   zfd_stream(l), a, y, lse, well);
        return cudaSuccess;
    }
    static cudaError_t backward(const zf_launch *l, const zfd_heads &a, const zfd_heads_back &b,
                                unsigned grid)
    {
        size_t bytes = back::bytes;
        auto kernel = a.steady ? zfd_attention_backward<T, D, true>
                               : zfd_attention_backward<T, D, false>;
        cudaError_t code = zfd_allow_shared(l, kernel, bytes, bytes);
        if (code == cudaSuccess)
            ZFD_LAUNCH(kernel, grid, back::threads, bytes, zfd_stream(l), a, b);
        return code;
    }
};

template <int W> struct zfd_attention_of<float, W> {
    static const int D = W < 64 ? 64 : W, width = D;
    typedef zfd_plain<D> cut;
    static const int keys = cut::tile, queries = cut::tile;

    static cudaError_t forward(const zf_launch *l, const zfd_heads &a, float *y, float *lse,
                               bool well)
    {
        size_t bytes = cut::bytes(3);
        cudaError_t code = zfd_allow_shared(l, zfd_attention_forward_f32<D>, bytes, bytes);
        if (code == cudaSuccess)
            ZFD_LAUNCH(zfd_attention_forward_f32<D>,
                       (unsigned)(a.count * zfd_div_up(a.m, cut::tile)), ZFD_THREADS, bytes,
                       zfd_stream(l), a, y, lse, well);
        return code;
    }
    static cudaError_t backward(const zf_launch *l, const zfd_heads &a, const zfd_heads_back &b,
                                unsigned grid)
    {
        size_t bytes = cut::bytes(4);
        cudaError_t code = zfd_allow_shared(l, zfd_attention_backward_f32<D>, bytes, bytes);
        if (code == cudaSuccess)
            ZFD_LAUNCH(zfd_attention_backward_f32<D>, grid, ZFD_THREADS, bytes, zfd_stream(l), a,
                       b);
        return code;
    }
};

/* The same for wider heads. */
template <class T> struct zfd_attention_of_wide {
    static const int keys = 1 << 30, queries = 1, width = 1;

    static cudaError_t launch(const zf_launch *l, const zfd_heads &a, const zfd_heads_back &b, T *y,
                              float *lse, int what)
    {
        int64_t rows = a.count * (what == ZFD_ROW_OF_DKV ? a.n : a.m);
        size_t bytes = sizeof(float) * (2 * ZFD_MEETS + 2 * ZFD_THREADS / ZFD_WARP);
        if (rows)
            ZFD_LAUNCH(zfd_attention_wide<T>, zfd_grid(l, rows), ZFD_THREADS, bytes, zfd_stream(l),
                       a, b, y, lse, what);
        return cudaSuccess;
    }
    static cudaError_t forward(const zf_launch *l, const zfd_heads &a, T *y, float *lse, bool)
    {
        zfd_heads_back none;
        memset(&none, 0, sizeof none);
        return launch(l, a, none, y, lse, ZFD_ROW_OF_Y);
    }
    static cudaError_t backward(const zf_launch *l, const zfd_heads &a, const zfd_heads_back &b,
                                unsigned)
    {
        launch(l, a, b, NULL, NULL, ZFD_ROW_OF_DQ);
        return launch(l, a, b, NULL, NULL, ZFD_ROW_OF_DKV);
    }
};

/* Runs the code with `of` the class that launches heads `d` wide. */
#define ZFD_HEAD_WIDTHS(T, d, of, ...)                                                             \
    if ((d) <= 32) {                                                                               \
        typedef zfd_attention_of<T, 32> of;                                                        \
        __VA_ARGS__                                                                                \
    } else if ((d) <= 64) {                                                                        \
        typedef zfd_attention_of<T, 64> of;                                                        \
        __VA_ARGS__                                                                                \
    } else if ((d) <= 128) {                                                                       \
        typedef zfd_attention_of<T, 128> of;                                                       \
        __VA_ARGS__                                                                                \
    } else if ((d) <= ZFD_HEAD_WIDTH) {                                                            \
        typedef zfd_attention_of<T, ZFD_HEAD_WIDTH> of;                                            \
        __VA_ARGS__                                                                                \
    } else {                                                                                       \
        typedef zfd_attention_of_wide<T> of;                                                       \
        __VA_ARGS__                                                                                \
    }

/* The forward pass by the kernels above. `well`: y and its heads are aligned to 16 bytes. */
static zf_status zfd_general_attention(const zf_launch *l, const zfd_heads &a, float *lse, bool well)
{
    cudaError_t code = cudaSuccess;
    ZFD_FLOATS(l, l->out.dtype, T, {ZFD_HEAD_WIDTHS(T, a.d, of, {
                   code = of::forward(l, a, static_cast<T *>(l->out.data), lse, well);
               })})
    return zfd_cuda_failed(l->error, "attention", code);
}

/* The size of delta and of shift in scratch. The blocks' sums of dQ follow them. */
static size_t zfd_delta_size(const zfd_heads *a)
{
    return (size_t)zfd_div_up(a->count * a->m, 16) * 16;
}

/* The floats of scratch in which each head of q has a dK and dV of its own, in the result's dtype,
 * where several read one head of k and v. */
static size_t zfd_parts_size(const zf_launch *l, const zfd_heads *a)
{
    const int64_t rows = a->count / a->heads * a->n;
    const size_t bytes = 2 * (size_t)(rows * a->heads * a->d) * zf_dtype_size(l->out.dtype);
    return a->group > 1 ? (bytes + 63) / 64 * 16 : 0;
}

/* The operands, results and scratch of a gradient, without the split into tasks. */
static zfd_heads_back zfd_heads_back_of(const zf_launch *l, const zfd_heads *a)
{
    zfd_heads_back b;
    const size_t size = zf_dtype_size(l->out.dtype);
    const bool packed = l->arg_count <= 5;
    const int64_t hidden = (int64_t)a->heads * a->d, rows = a->count / a->heads;
    const int64_t of_q = packed ? hidden : rows * a->m * hidden;
    const int64_t of_k = packed ? hidden / a->group : rows * a->n * (hidden / a->group);
    char *out = static_cast<char *>(l->out.data);
    float *scratch = static_cast<float *>(l->scratch);
    memset(&b, 0, sizeof b);
    b.dy = l->args[0].data;
    b.delta = scratch, b.shift = scratch + zfd_delta_size(a);
    b.sums = scratch + 2 * zfd_delta_size(a) + zfd_parts_size(l, a);
    b.dq = out, b.dk = out + of_q * (int64_t)size, b.dv = out + (of_q + of_k) * (int64_t)size;
    b.row = b.kv_row = packed ? a->row : hidden, b.hidden = hidden;
    if (a->group > 1) {
        b.whole_k = b.dk, b.whole_v = b.dv, b.whole_row = packed ? a->row : hidden / a->group;
        b.dk = scratch + 2 * zfd_delta_size(a), b.kv_row = hidden;
        b.dv = static_cast<char *>(b.dk) + rows * a->n * hidden * (int64_t)size;
    }
    b.well = zfd_lies_well(b.row, size, b.dq, b.dk, b.dv) && b.kv_row * size % 16 == 0 &&
             a->d * size % 16 == 0;
    b.dy_well = zfd_lies_well(a->d, size, b.dy);
    return b;
}

/* whole[token, kv, i] = the sum of part[token, kv, g, i] over g: `token` of all examples, heads of k
 * and v, heads of q that read one, its elements. */
template <class T>
__global__ void zfd_sum_groups(int64_t count, T *whole, const T *part, int64_t row, int d, int heads,
                               int group)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t token = i / ((int64_t)heads * d);
        const int head = (int)(i / d % heads), at = (int)(i % d);
        const T *x = part + (token * heads + head) * group * d + at;
        float sum = 0;
        for (int g = 0; g < group; g++) sum += zfd_to_f32(x[(int64_t)g * d]);
        whole[token * row + (int64_t)head * d + at] = zfd_from_f32<T>(sum);
    }
}

/* dK and dV of heads that several heads of q read. */
template <class T> static void zfd_add_groups(const zf_launch *l, const zfd_heads &a,
                                              const zfd_heads_back &b)
{
    const int heads = a.heads / a.group;
    const int64_t count = a.count / a.heads * a.n * heads * a.d;
    if (!count) return;
    ZFD_LAUNCH(zfd_sum_groups<T>, zfd_grid(l, zfd_div_up(count, ZFD_THREADS)), ZFD_THREADS, 0,
               zfd_stream(l), count, static_cast<T *>(b.whole_k), static_cast<const T *>(b.dk),
               b.whole_row, a.d, heads, a.group);
    ZFD_LAUNCH(zfd_sum_groups<T>, zfd_grid(l, zfd_div_up(count, ZFD_THREADS)), ZFD_THREADS, 0,
               zfd_stream(l), count, static_cast<T *>(b.whole_v), static_cast<const T *>(b.dv),
               b.whole_row, a.d, heads, a.group);
}

/* delta and shift of all rows. */
template <class T>
static void zfd_make_delta(const zf_launch *l, const zfd_heads &a, const zfd_heads_back &b,
                           bool over_scale)
{
    const T *dy = static_cast<const T *>(b.dy), *y = static_cast<const T *>(l->args[1].data);
    ZFD_LAUNCH(zfd_attention_delta<T>, (unsigned)zfd_div_up(a.count * a.m, ZFD_DELTA_ROWS),
               ZFD_THREADS, sizeof(float) * ZFD_DELTA_ROWS, zfd_stream(l), a, dy, y,
               static_cast<const float *>(l->args[2].data), b.delta, b.shift,
               zfd_lies_well(a.d, sizeof(T), dy, y), over_scale);
}

/* Splits a gradient into tasks: heads, and tiles of those in the last round. A head apart takes 7
 * products of tiles instead of 5 (S and dP twice), so that this is faster for at most 5/7 of a
 * round. */
static unsigned zfd_cut_gradient(const zf_launch *l, const zfd_heads *a, int keys, int queries,
                                 int width, zfd_heads_back *b)
{
    const int64_t most = 2 * zfd_device_of(l)->processors, last = a->count % most;
    b->key_tiles = (int)max((int64_t)1, zfd_div_up(a->n, keys));
    b->query_tiles = (int)zfd_div_up(a->m, queries);
    b->whole = b->key_tiles > 1 && 7 * last <= 5 * most ? a->count - last : a->count;
    b->tasks = b->whole + (a->count - b->whole) * (b->key_tiles + b->query_tiles);
    if (b->key_tiles > 1) b->sums_size = (int64_t)(b->whole ? b->query_tiles : 1) * queries * width;
    return (unsigned)min(b->tasks, most);
}

/* The scratch of a gradient by the kernels above, in floats. */
static size_t zfd_scratch_of_gradient(const zf_launch *l, const zfd_heads *a)
{
    zfd_heads_back b;
    unsigned grid = 0;
    memset(&b, 0, sizeof b);
    ZFD_FLOATS(l, l->out.dtype, T, {ZFD_HEAD_WIDTHS(T, a->d, of, {
        grid = zfd_cut_gradient(l, a, of::keys, of::queries, of::width, &b);
    })})
    return 2 * zfd_delta_size(a) + zfd_parts_size(l, a) + grid * (size_t)b.sums_size;
}

static zf_status zfd_general_attention_grad(const zf_launch *l, const zfd_heads &a)
{
    zfd_heads_back b = zfd_heads_back_of(l, &a);
    unsigned grid;
    cudaError_t code = cudaSuccess;
    ZFD_FLOATS(l, l->out.dtype, T, {
        if (a.m) zfd_make_delta<T>(l, a, b, false);
        ZFD_HEAD_WIDTHS(T, a.d, of, {
            grid = zfd_cut_gradient(l, &a, of::keys, of::queries, of::width, &b);
            code = of::backward(l, a, b, grid);
        })
    })
    return zfd_cuda_failed(l->error, "attention_grad", code);
}
