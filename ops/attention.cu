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
 * Backward, one block has all tiles of a head and adds to its own dQ. Heads are taken in rounds of
 * as many as the device has blocks. Where those of the last round are too few for it, a tile of
 * keys is one task (dK, dV) and a tile of queries another (dQ), and scores are computed twice. A
 * thread adds only to numbers that it has written itself: there are no atomics, and sums have one
 * order, whichever way a head is taken.
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
 * Heads of q that share a head of k and v read it in place. Backward, each has a dK and dV of its
 * own in scratch, in the result's dtype; zfd_sum_groups adds them in f32, in the order of the
 * heads.
 *
 * Some of the queries, or of the keys (`of`, `keys`): query m is at place m + past among the keys
 * that are there, below 0 where all of these come after it. What is still to be joined or added to
 * others is stored in f32, from registers: four threads have 32 bytes of a row.
 *
 * Windows, documents and block masks: tiles that no query of a tile sees are skipped. A tile's
 * range is known from its first and its last query (windows and documents never go back), what
 * is listed from bits (ops/block_mask.cu). Backward, dQ then begins with zeros in memory and is
 * stored after the last tile of keys, whichever tiles there are. The kernels that are not steady
 * and those for wide heads know of them. */

/* ------------------------------------------------------------------------------- operands */

__device__ __forceinline__ float zfd_exp2(float x)
{
#if defined(__CUDA_ARCH__)
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#elif defined(__HIP_DEVICE_COMPILE__)
    return __builtin_amdgcn_exp2f(x);
#else
    return exp2f(x);
#endif
}

enum {
    ZFD_HEAD_WIDTH = 256, /* maximum width of a head in tiles */
    ZFD_TOKENS = 1 << 30  /* maximum */
};

/* By which rows of scores dropout counts those of a value that ranks share: index i of a dimension
 * is number at + i / run * step + i % run of the whole one. */
typedef struct zfd_scores_share {
    bool cut;                   /* false: the value is whole */
    int64_t heads, rows;        /* of the whole one */
    int at[3], run[3], step[3]; /* of examples, heads, queries */
} zfd_scores_share;

/* A launch taken apart, for kernels. Head h of token t of example b begins at element (b * tokens +
 * t) * row + h * d of q, and at zfd_key_at of k or v. */
typedef struct zfd_heads {
    const void *q, *k, *v, *bias; /* bias may be NULL */
    int64_t row, kv_row; /* elements from one token to the next: of q; of k and v */
    int64_t bias_step[4];
    int64_t count;      /* heads of all examples */
    int heads, m, n, d; /* m queries, n keys */
    int past;           /* the place of query 0 among the keys */
    int all, key;       /* how many keys there are in all, of which these are from `key` on */
    int group, window;  /* heads of q that read one of k and v; 0: no window */
    int ahead;          /* keys after its own that a query sees, with `causal`: of such a window */
    const int *documents; /* [examples, m, 2], of all keys, or NULL */
    zfd_listed blocks;
    float scale;        /* the scale times log2 e */
    float cap;          /* that of scaled scores, times log2 e; 0: none */
    bool causal, well, bias_well;
    bool part;   /* these are some of the queries */
    bool wide;   /* y is f32, whatever q is */
    bool narrow; /* there is a window, are documents or blocks */
    bool steady; /* not narrow; rows are aligned and whole blocks of dropout, and all queries share
                    one bias */
    zfd_dropout drop;
    zfd_scores_share share;
} zfd_heads;

/* A product of q and k as a score times log2 e, with `more` added. */
__device__ __forceinline__ float zfd_score_of(const zfd_heads &a, float product, float more)
{
    if (!(a.cap > 0)) return fmaf(product, a.scale, more);
    return fmaf(a.cap, tanhf(product * a.scale / a.cap), more);
}

/* The derivative of the score by the scaled product. */
__device__ __forceinline__ float zfd_score_slope(const zfd_heads &a, float product)
{
    const float t = a.cap > 0 ? tanhf(product * a.scale / a.cap) : 0;
    return fmaf(-t, t, 1);
}

static const void *zfd_after(const void *data, int64_t count, size_t size)
{
    return data ? static_cast<const char *>(data) + count * (int64_t)size : NULL;
}

/* Operands from number `first` on in front of documents and lists: q, k, v and the bias. */
static int zfd_float_operands(const zf_launch *l, int first)
{
    return l->arg_count - first - (ZF_INT(l, attention, documents) != 0) -
           (ZF_INT(l, attention, block) != 0);
}

/* The share of scores that belongs to that of y, whose heads have a->d elements; *count: how many
 * scores there are in all. */
static zfd_scores_share zfd_scores_share_of(const zf_launch *l, const zfd_heads *a, int64_t *count)
{
    const int dims[3] = {(int)(a->count / a->heads), a->heads, a->m}, of_y[3] = {0, 2, 1};
    zfd_scores_share s;
    memset(&s, 0, sizeof s);
    s.cut = l->share || a->part;
    *count = a->all;
    for (int k = 0; k < 3; k++) {
        const int d = of_y[k], width = d == 2 ? a->d : 1;
        int64_t whole = dims[k], run = 0;
        if (k == 2 && a->part) {
            whole = ZF_INT(l, attention, of), s.at[k] = (int)ZF_INT(l, attention, first);
        } else if (l->share && width) {
            whole = l->share->whole.dims[d] / width, run = l->share->run[d] / width;
            s.at[k] = (int)(l->share->at[d] / width);
        }
        s.run[k] = run ? (int)run : max(dims[k], 1);
        s.step[k] = dims[k] ? (int)(whole / dims[k] * s.run[k]) : 0;
        *count *= whole;
        if (k == 1) s.heads = whole;
        if (k == 2) s.rows = whole;
    }
    return s;
}

/* The operands of a launch from number `first` on, without bits; an error where their sizes exceed
 * the kernels' counters. */
static zf_status zfd_heads_of(const zf_launch *l, int first, zfd_heads *a)
{
    const zf_array *x = l->args + first, *bias = NULL;
    const zf_attribute *at = l->attributes;
    int count = zfd_float_operands(l, first);
    bool packed = count <= 2;
    size_t size = zf_dtype_size(x->dtype);
    int64_t row = x->shape.dims[2], kv_heads = at[5].i ? at[5].i : at[2].i, step = 1;
    int64_t hidden = packed ? row / (at[2].i + 2 * kv_heads) * at[2].i : row;
    int64_t kv_hidden = packed ? (row - hidden) / 2 : x[1].shape.dims[2];
    int64_t m = x->shape.dims[1], n = packed ? m : x[1].shape.dims[1], scores;
    const int64_t of = ZF_INT(l, attention, of), queries = of ? of : m,
                  keys = ZF_INT(l, attention, keys) ? ZF_INT(l, attention, keys) : n;
    memset(a, 0, sizeof *a);
    if (queries > ZFD_TOKENS || keys > ZFD_TOKENS || hidden > ZFD_TOKENS || at[2].i > ZFD_TOKENS ||
        x->shape.dims[0] > ZFD_TOKENS / at[2].i)
        return zfd_cuda_fail(l->error, ZF_ERR_BACKEND,
                             "%s %%%d: on " ZFD_GPU " tokens, heads of all examples and elements "
                             "of a token may be 2^30 each",
                             zf_op_name(l->op), (int)l->node);
    a->heads = (int)at[2].i, a->m = (int)m, a->n = (int)n, a->d = (int)(hidden / a->heads);
    a->count = x->shape.dims[0] * a->heads;
    a->row = row, a->kv_row = packed ? row : kv_hidden;
    a->all = (int)keys, a->key = (int)ZF_INT(l, attention, key), a->part = of != 0;
    a->past = (int)(keys - queries - a->key + (of ? ZF_INT(l, attention, first) : 0));
    a->wide = ZF_INT(l, attention, keys) != 0;
    a->group = a->heads / (int)kv_heads;
    a->window = at[6].i < (at[4].i || keys > queries ? keys : queries) ? (int)at[6].i : 0;
    if (ZF_INT(l, attention, documents)) a->documents = static_cast<const int *>(x[count].data);
    a->blocks = zfd_listed_of(ZF_INT(l, attention, block), ZF_INT(l, attention, layouts), n);
    a->narrow = a->window || ZF_INT(l, attention, documents) || a->blocks.layouts;
    a->q = x->data;
    a->k = packed ? zfd_after(x->data, hidden, size) : x[1].data;
    a->v = packed ? zfd_after(x->data, hidden + kv_hidden, size) : x[2].data;
    a->scale = (float)(at[3].f * 1.4426950408889634);
    a->cap = (float)(ZF_FLOAT(l, attention, cap) * 1.4426950408889634);
    a->causal = at[4].i != 0 || a->window;
    a->ahead = a->causal && !at[4].i ? a->window - 1 : 0;
    a->window += a->ahead;
    a->well = zfd_lies_well(row, size, a->q, a->k, a->v) && a->kv_row * size % 16 == 0 &&
              a->d * size % 16 == 0;
    a->share = zfd_scores_share_of(l, a, &scores);
    a->drop = zfd_dropout_of(l, at[0].f, at[1].i, scores);
    a->steady = a->well && n % 8 == 0 && keys % 8 == 0 && a->key % 8 == 0 && !a->narrow;
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

/* How many keys query m sees, counted from key 0, but for documents. m may be beyond the last
 * query. */
__device__ __forceinline__ int zfd_sees(const zfd_heads &a, int m)
{
    int seen = a.causal ? max(0, min(a.n, m + 1 + a.past + a.ahead)) : a.n;
    return m < a.m ? seen : 0;
}

/* Tokens first..end-1. */
typedef struct zfd_range {
    int first, end;
} zfd_range;

/* The keys that query m sees, but for blocks. m may be beyond the last query. */
__device__ __forceinline__ zfd_range zfd_keys_seen(const zfd_heads &a, const zfd_one_head &head,
                                                   int m)
{
    zfd_range x = {0, zfd_sees(a, m)};
    if (a.window && m < a.m) x.first = max(0, m + 1 + a.past + a.ahead - a.window);
    if (a.documents && m < a.m) {
        const int *of = a.documents + 2 * ((int64_t)head.example * a.m + m);
        x.first = max(x.first, of[0] - a.key), x.end = max(0, min(x.end, of[1] - a.key));
    }
    return x;
}

/* The keys that any of `count` queries from m on sees, which is no later than the last one. */
__device__ __forceinline__ zfd_range zfd_keys_of(const zfd_heads &a, const zfd_one_head &head, int m,
                                                 int count)
{
    const zfd_range first = zfd_keys_seen(a, head, m),
                    last = zfd_keys_seen(a, head, min(m + count, a.m) - 1);
    zfd_range x = {first.first, last.end};
    return x;
}

/* The first of `count` queries whose document begins (of: their pairs), or ends (of: those plus 1),
 * after key n. */
__device__ __forceinline__ int zfd_first_after(const int *of, int count, int n)
{
    int low = 0;
    while (low < count) {
        const int middle = low + (count - low) / 2;
        if (of[2 * middle] <= n) low = middle + 1;
        else count = middle;
    }
    return low;
}

/* The queries that see any of `count` keys from n on, of those at from..end-1. */
__device__ __forceinline__ zfd_range zfd_queries_of(const zfd_heads &a, const zfd_one_head &head,
                                                    int n, int count)
{
    const int last = min(n + count, a.n) - 1;
    zfd_range x = {a.causal ? max(0, n - a.past - a.ahead) : 0, a.m};
    if (a.window) x.end = max(0, min(x.end, last + a.window - a.past - a.ahead));
    if (a.documents && last >= 0) {
        const int *of = a.documents + 2 * (int64_t)head.example * a.m;
        if (a.part) {
            x.first = max(x.first, zfd_first_after(of + 1, a.m, n + a.key));
            x.end = min(x.end, zfd_first_after(of, a.m, last + a.key));
        } else x.first = max(x.first, of[2 * n]), x.end = min(x.end, of[2 * last + 1]);
    }
    return x;
}

/* Bit i: the block mask lists key n + 16 i for one of `count` queries from m on. n is a multiple of
 * 16, and all bits are of one word. */
__device__ __forceinline__ uint32_t zfd_keys_listed(const zfd_heads &a, const zfd_one_head &head,
                                                    int m, int count, int n)
{
    const int first = min(m, a.m - 1), end = min(m + count, a.m);
    if (!a.blocks.layouts) return ~0u;
    return zfd_seen_from(a.blocks, a.blocks.rows, head.nth % a.blocks.layouts, a.past + first,
                         a.past + max(end, first + 1), n);
}

/* The first tile of keys from n on that any of `queries` queries from m on sees; `end` or more:
 * there is none in front of `end`. */
__device__ __forceinline__ int zfd_next_keys(const zfd_heads &a, const zfd_one_head &head, int m,
                                             int queries, int n, int end, int keys)
{
    if (!a.blocks.layouts) return n;
    return zfd_next_seen(a.blocks, a.blocks.rows, head.nth % a.blocks.layouts, a.past + m,
                         a.past + m + queries, n, end, keys);
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

__device__ __forceinline__ int64_t zfd_index_drawn(const zfd_scores_share &s, int k, int i)
{
    return s.at[k] + (int64_t)(i / s.run[k]) * s.step[k] + i % s.run[k];
}

/* The number, for dropout, of the score of a query and key 0. ALL: there are all keys. */
template <bool ALL = false>
__device__ __forceinline__ uint64_t zfd_score_number(const zfd_heads &a, const zfd_one_head &head,
                                                     int m)
{
    if (a.share.cut)
        return (uint64_t)(((zfd_index_drawn(a.share, 0, head.example) * a.share.heads +
                            zfd_index_drawn(a.share, 1, head.nth)) *
                               a.share.rows +
                           zfd_index_drawn(a.share, 2, m)) *
                              (ALL ? a.n : a.all) +
                          (ALL ? 0 : a.key));
    return ((uint64_t)head.number * (uint64_t)a.m + (uint64_t)m) * (uint64_t)a.n;
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
    bool wide; /* dk and dv are f32, as addends of other queries' are; dq: zfd_heads.wide */
} zfd_heads_back;

/* Stores two neighbours of a row of f32, columns `at` and at + 1 of d. well: the row is aligned to
 * 16 bytes. */
__device__ __forceinline__ void zfd_put_floats(float *row, int at, int d, bool well, float x,
                                               float y)
{
    const float both[2] = {x, y};
    if (well && at + 1 < d) {
        zfd_store<float, 2>(row + at, both);
    } else {
        if (at < d) row[at] = x;
        if (at + 1 < d) row[at + 1] = y;
    }
}

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

/* The tiles of queries first..end-1 for tile j of keys: from the first that sees one of these keys
 * on. Tile 0 of keys has all tiles of queries, since it initialises every dQ, unless this is
 * narrow. */
__device__ __forceinline__ zfd_range zfd_query_tiles(const zfd_heads &a, const zfd_tiles &x, int j,
                                                     int queries, int keys)
{
    zfd_range of = {x.i0, x.i1};
    if (a.narrow) {
        const zfd_range seen = zfd_queries_of(a, x.head, j * keys, keys);
        of.first = max(of.first, seen.first / queries);
        of.end = min(of.end, (seen.end + queries - 1) / queries);
    } else if (!(x.dq && j == 0) && a.causal) {
        of.first = max(x.i0, max(0, j * keys - a.past) / queries);
    }
    return of;
}

/* The first of these tiles of queries from i on that sees one of the keys of tile j; `end` or more:
 * none. */
__device__ __forceinline__ int zfd_next_queries(const zfd_heads &a, const zfd_tiles &x, int j, int i,
                                                int end, int queries, int keys)
{
    const int from = a.past + i * queries, to = a.past + end * queries;
    if (!a.blocks.layouts) return i;
    return max(i, (zfd_next_seen(a.blocks, a.blocks.columns, x.head.nth % a.blocks.layouts,
                                 j * keys, (j + 1) * keys, from / ZFD_UNIT * ZFD_UNIT, to,
                                 ZFD_UNIT) -
                   a.past) /
                      queries);
}

/* The last tile of keys that tile i of queries sees, not narrow. */
__device__ __forceinline__ int zfd_last_keys(const zfd_heads &a, int i, int queries, int keys)
{
    return max(0, zfd_sees(a, min((i + 1) * queries, a.m) - 1) - 1) / keys;
}

/* Sets a block's sums to 0. A barrier of the block must follow. */
__device__ __forceinline__ void zfd_clear_sums(float *sums, int64_t count)
{
    for (int64_t i = threadIdx.x; i < count; i += blockDim.x) sums[i] = 0;
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

/* The size of delta and of shift in scratch. The blocks' sums of dQ follow them. */
static size_t zfd_delta_size(const zfd_heads *a)
{
    return (size_t)zfd_div_up(a->count * a->m, 16) * 16;
}

/* The bytes of an element of dK and dV: of attention_backward f32. */
static size_t zfd_size_of_dkv(const zf_launch *l)
{
    return l->op == ZF_OP_attention_backward ? sizeof(float) : zf_dtype_size(l->out.dtype);
}

/* The floats of scratch in which each head of q has a dK and dV of its own, in the dtype of dK,
 * where several read one head of k and v. */
static size_t zfd_parts_size(const zf_launch *l, const zfd_heads *a)
{
    const int64_t rows = a->count / a->heads * a->n;
    const size_t bytes = 2 * (size_t)(rows * a->heads * a->d) * zfd_size_of_dkv(l);
    return a->group > 1 ? (bytes + 63) / 64 * 16 : 0;
}

/* dK and dV that attention_backward leaves; NULL: they are not asked for. */
static void *zfd_left_of(const zf_launch *l, int index)
{
    const zf_array *saved = zfd_saved_out(l, index);
    return saved ? saved->data : NULL;
}

/* The operands, results and scratch of a gradient, without the split into tasks. */
static zfd_heads_back zfd_heads_back_of(const zf_launch *l, const zfd_heads *a)
{
    zfd_heads_back b;
    const size_t size = zf_dtype_size(l->out.dtype), kv_size = zfd_size_of_dkv(l);
    const bool packed = zfd_float_operands(l, 3) <= 2, apart = l->op == ZF_OP_attention_backward;
    const int64_t hidden = (int64_t)a->heads * a->d, rows = a->count / a->heads;
    const int64_t of_q = packed ? hidden : rows * a->m * hidden;
    const int64_t of_k = packed ? hidden / a->group : rows * a->n * (hidden / a->group);
    char *out = static_cast<char *>(l->out.data);
    float *scratch = static_cast<float *>(l->scratch);
    memset(&b, 0, sizeof b);
    b.dy = l->args[0].data;
    b.delta = scratch, b.shift = scratch + zfd_delta_size(a);
    b.sums = scratch + 2 * zfd_delta_size(a) + zfd_parts_size(l, a);
    b.dq = out, b.wide = apart;
    b.dk = apart ? zfd_left_of(l, 0) : out + of_q * (int64_t)size;
    b.dv = apart ? zfd_left_of(l, 1) : out + (of_q + of_k) * (int64_t)size;
    b.row = b.kv_row = packed ? a->row : hidden, b.hidden = hidden;
    if (a->group > 1) {
        b.whole_k = b.dk, b.whole_v = b.dv, b.whole_row = packed ? a->row : hidden / a->group;
        b.dk = scratch + 2 * zfd_delta_size(a), b.kv_row = hidden;
        b.dv = static_cast<char *>(b.dk) + rows * a->n * hidden * (int64_t)kv_size;
    }
    b.well = zfd_lies_well(b.row, size, b.dq, b.dk, b.dv) && b.kv_row * kv_size % 16 == 0 &&
             a->d * size % 16 == 0;
    b.dy_well = zfd_lies_well(a->d, zf_dtype_size(l->args[0].dtype), b.dy);
    return b;
}

/* whole[token, kv, i] = the sum of part[token, kv, g, i] over g: `token` of all examples, heads of
 * k and v, heads of q that read one, its elements. */
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
    void *const whole[2] = {b.whole_k, b.whole_v};
    const void *const parts[2] = {b.dk, b.dv};
    for (int k = 0; k < 2 && count; k++)
        if (whole[k])
            ZFD_LAUNCH(zfd_sum_groups<T>, zfd_grid(l, zfd_div_up(count, ZFD_THREADS)), ZFD_THREADS,
                       0, zfd_stream(l), count, static_cast<T *>(whole[k]),
                       static_cast<const T *>(parts[k]), b.whole_row, a.d, heads, a.group);
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
    if (b->key_tiles > 1 || a->narrow)
        b->sums_size = (int64_t)(b->whole ? b->query_tiles : 1) * queries * width;
    return (unsigned)min(b->tasks, most);
}
