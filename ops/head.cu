/* The head of a language model on CUDA: head_loss, head_logp and its gradient (ops/head.c,
 * ops/logp.c). Those of classes that ranks share are in head_part.cu.
 *
 *     x tile [T,K]  w [V,K]                     1. z = x w^T, f32                    cuBLASLt
 *          \        /                           2. of each row of z + b: the largest, the sum of
 *        z tile [T,V] --> rows [T], loss [P]       exponentials, the loss
 *             |                                 3. dz, in the dtype of products (f32: in place of
 *        dz tile [T,V] --> pieces [T/32,V]         z); its columns' sums by 32 rows
 *          /        \            |              4. db += pieces, in their order
 *     dx tile      dw +=        db +=           5. dx = dz w, dw += dz^T x             cuBLASLt
 *
 * Each tile of T rows reads and writes all of dw once, 8 bytes an element for 6 T operations: at
 * 8192 rows that is 3% of the time that they take at the rates of an H200. z may take a 64th of the
 * device's memory, up to so many rows. A weight of records is dequantised into scratch, as a whole
 * and once, in x's dtype, and has no gradient. dz in f16 is 2^14 (exp(z - lse) - (v = label)),
 * times a row's weight by the largest weight, which its range can hold; the largest weight is
 * multiplied last. Rows without a label are computed too: how many there are is not known before
 * the launch. */

enum {
    ZFD_HEAD_ONE_TILE = 160, /* rows: with at most so many, bf16 has gradients in bf16 */
    ZFD_HEAD_MOST = 8192,    /* rows of a tile */
    ZFD_HEAD_PIECE = 32,     /* rows of a column that one thread adds */
    ZFD_HEAD_PACK = 4,       /* columns of a thread */
    ZFD_HEAD_ELSEWHERE = INT32_MAX
};
/* Saved values, as in ops/head.c. */
enum { ZFD_HEAD_DX, ZFD_HEAD_DW, ZFD_HEAD_DB, ZFD_HEAD_BEST };
enum { ZFD_LOGP_ENTROPY, ZFD_LOGP_BEST };
enum { ZFD_LOGP_DW, ZFD_LOGP_DB };

static const float zfd_head_f16 = 16384;

/* A row, as dz needs it: exp(z - base) over, which is the probability, and `at` more at the label.
 * label: -1 where the row adds nothing, ZFD_HEAD_ELSEWHERE where these classes do not have it. */
typedef struct alignas(16) zfd_head_row {
    float base, over;
    int32_t label;
    float at;
} zfd_head_row;

/* The maximum of some numbers, NaN being the largest; the first index at which it is; and the sum
 * of exponentials relative to it. */
typedef struct zfd_head_top {
    float most, sum;
    int best;
} zfd_head_top;

/* The number that is subtracted before exp. */
__device__ __forceinline__ float zfd_head_base(float most) { return isinf(most) ? 0 : most; }

/* The sum, relative to another base. */
__device__ __forceinline__ float zfd_head_moved(const zfd_head_top &t, float most)
{
    if (t.most == -INFINITY || t.most == most) return t.sum;
    return t.sum * expf(zfd_head_base(t.most) - zfd_head_base(most));
}

__device__ __forceinline__ void zfd_head_add(zfd_head_top &t, float x, int at)
{
    if (!(x <= t.most) && !isnan(t.most)) {
        t.sum = zfd_head_moved(t, x);
        t.most = x, t.best = at;
    }
    t.sum += expf(x - zfd_head_base(t.most));
}

/* The exponential for operands of type T. */
template <class T> __device__ __forceinline__ float zfd_head_exp(float x)
{
    return sizeof(T) == 4 ? expf(x) : exp2f(x * 1.44269504f);
}

/* Neighbours from class `at` on; -inf beyond the last class. */
template <class T>
__device__ __forceinline__ void zfd_head_add_pack(zfd_head_top &t, const float (&x)[ZFD_HEAD_PACK],
                                                  int at)
{
    const float top = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));
    const float all = (x[0] + x[1]) + (x[2] + x[3]);
    if (isnan(all)) { /* NaN, or infinities of both signs */
#pragma unroll
        for (int i = 0; i < ZFD_HEAD_PACK; i++) zfd_head_add(t, x[i], at + i);
        return;
    }
    if (top > t.most) {
        t.sum = zfd_head_moved(t, top);
        t.most = top;
        t.best = at + (x[0] == top ? 0 : x[1] == top ? 1 : x[2] == top ? 2 : 3);
    }
    const float base = zfd_head_base(t.most);
    t.sum += (zfd_head_exp<T>(x[0] - base) + zfd_head_exp<T>(x[1] - base)) +
             (zfd_head_exp<T>(x[2] - base) + zfd_head_exp<T>(x[3] - base));
}

/* Joins two; the order of the operands does not change the bits. */
__device__ __forceinline__ zfd_head_top zfd_head_join(const zfd_head_top &a, const zfd_head_top &b)
{
    const bool same = a.most == b.most || (isnan(a.most) && isnan(b.most));
    const bool second = same ? b.best < a.best : !(b.most <= a.most) && !isnan(a.most);
    zfd_head_top t = second ? b : a;
    t.sum = zfd_head_moved(a, t.most) + zfd_head_moved(b, t.most);
    return t;
}

__device__ __forceinline__ zfd_head_top zfd_head_warp(zfd_head_top t)
{
#pragma unroll
    for (int step = ZFD_WARP / 2; step; step /= 2) {
        zfd_head_top other;
        other.most = zfd_shuffle_xor(t.most, step);
        other.sum = zfd_shuffle_xor(t.sum, step);
        other.best = zfd_shuffle_xor(t.best, step);
        t = zfd_head_join(t, other);
    }
    return t;
}

/* b = bias[col ...], 0 without bias. */
template <class T>
__device__ __forceinline__ void zfd_head_bias(float (&b)[ZFD_HEAD_PACK], const T *bias, bool lies,
                                              int64_t col, int64_t classes)
{
    if (bias && lies && col + ZFD_HEAD_PACK <= classes) {
        zfd_load(b, bias + col);
        return;
    }
#pragma unroll
    for (int i = 0; i < ZFD_HEAD_PACK; i++)
        b[i] = bias && col + i < classes ? zfd_to_f32(bias[col + i]) : 0;
}

/* The labels, and what their check needs. Logits are those of `here` classes from `first` on. */
typedef struct zfd_head_labels {
    const void *data;
    bool wide; /* labels are i64 */
    int64_t ignored, classes, first, here;
    zfd_fault *fault;
    int32_t op, node;
} zfd_head_labels;

/* As in zfd_head_row. */
__device__ __forceinline__ int32_t zfd_head_label(const zfd_head_labels &l, int64_t row)
{
    const int64_t label = l.wide ? static_cast<const int64_t *>(l.data)[row]
                                 : static_cast<const int32_t *>(l.data)[row];
    if (label == l.ignored) return -1;
    if (label >= l.first && label < l.first + l.here) return (int32_t)(label - l.first);
    if (label >= 0 && label < l.classes) return ZFD_HEAD_ELSEWHERE;
    zfd_fault what = {ZFD_FAULT_LABEL, l.op, l.node, row, label, l.classes, 0, l.ignored, 0};
    zfd_report(l.fault, what);
    return -1;
}

/* What rows of logits are made into; NULL: not asked for. */
typedef struct zfd_head_scores {
    float *loss, *logp, *entropy;
    int32_t *best;
    float scale;   /* of logits */
    bool labelled; /* rows without a label have no best class */
} zfd_head_scores;

/* The sum of add(v) over the classes, by all threads of the block; valid in thread 0. */
template <class F>
__device__ __forceinline__ float zfd_head_sum(int64_t classes, float *parts, F add)
{
    float part = 0, all = 0;
    for (int64_t v = threadIdx.x; v < classes; v += blockDim.x) part += add(v);
    for (int step = ZFD_WARP / 2; step; step /= 2) part += zfd_shuffle_xor(part, step);
    __syncthreads();
    if (threadIdx.x % ZFD_WARP == 0) parts[threadIdx.x / ZFD_WARP] = part;
    __syncthreads();
    for (unsigned k = 0; k < blockDim.x / ZFD_WARP; k++) all += parts[k];
    return all;
}

/* What z + bias of a row is, times `scale`, by all threads of the block; valid in warp 0. */
template <class T>
__device__ __forceinline__ zfd_head_top zfd_head_top_of(const float *of, const T *bias, bool lies,
                                                        int64_t classes, float scale,
                                                        zfd_head_top *warps)
{
    const int lane = (int)threadIdx.x % ZFD_WARP, warp = (int)threadIdx.x / ZFD_WARP;
    zfd_head_top t = {-INFINITY, 0, INT32_MAX};
    int64_t col = threadIdx.x * (int64_t)ZFD_HEAD_PACK;
    if (col < classes) t.best = (int)col;
    for (; col < classes; col += blockDim.x * (int64_t)ZFD_HEAD_PACK) {
        float x[ZFD_HEAD_PACK], b[ZFD_HEAD_PACK];
        zfd_load(x, of + col);
        zfd_head_bias(b, bias, lies, col, classes);
#pragma unroll
        for (int i = 0; i < ZFD_HEAD_PACK; i++)
            x[i] = col + i < classes ? (x[i] + b[i]) * scale : -INFINITY;
        zfd_head_add_pack<T>(t, x, (int)col);
    }
    t = zfd_head_warp(t);
    __syncthreads(); /* warps[] may still be in use for the row before */
    if (lane == 0) warps[warp] = t;
    __syncthreads();
    if (warp == 0) {
        zfd_head_top none = {-INFINITY, 0, INT32_MAX};
        t = zfd_head_warp(lane < (int)blockDim.x / ZFD_WARP ? warps[lane] : none);
    }
    return t;
}

/* A block computes a row of z[0..rows, 0..ld). Row 0 is row `first` of labels and scores. */
template <class T>
static __global__ void zfd_head_rows(const float *z, int64_t ld, const T *bias, bool lies,
                                     int64_t rows, int64_t first, zfd_head_labels labels,
                                     zfd_head_row *made, zfd_head_scores to)
{
    ZFD_SHARED(zfd_head_top, warps);
    const int64_t classes = labels.here;
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const float *of = z + row * ld;
        const zfd_head_top t = zfd_head_top_of(of, bias, lies, classes, to.scale, warps);
        if (threadIdx.x == 0) {
            const int32_t label = zfd_head_label(labels, first + row);
            zfd_head_row r = {zfd_head_base(t.most), 1 / t.sum, label, -1};
            float at = label >= 0 ? of[label] : 0;
            if (label >= 0 && bias) at += zfd_to_f32(bias[label]);
            const float loss = label >= 0 ? r.base - at * to.scale + logf(t.sum) : 0;
            made[row] = r;
            if (to.loss) to.loss[first + row] = loss;
            if (to.logp) to.logp[first + row] = -loss;
            if (to.best) to.best[first + row] = to.labelled && label < 0 ? -1 : t.best;
        }
        if (!to.entropy) continue;
        __syncthreads();
        const zfd_head_row r = made[row];
        const float lse = r.base - logf(r.over);
        const float entropy =
            zfd_head_sum(classes, reinterpret_cast<float *>(warps), [&](int64_t v) {
                const float x = (of[v] + (bias ? zfd_to_f32(bias[v]) : 0)) * to.scale;
                const float p = expf(x - r.base) * r.over;
                return p > 0 ? p * (lse - x) : 0;
            });
        if (threadIdx.x == 0) to.entropy[first + row] = r.label >= 0 ? entropy : 0;
    }
}

/* The weights of rows' losses: one number, or one of each row of the tile. */
typedef struct zfd_head_weights {
    const float *at; /* NULL: 1 */
    bool by_row;
    float factor;      /* of dz */
    const float *most; /* f16: the largest weight, by which dz is divided; else NULL */
} zfd_head_weights;

/* dz of ZFD_HEAD_PIECE rows and a block's packs of columns; dz may be z. pieces: the sum of each
 * column times the weight. */
template <class T>
static __global__ void zfd_head_slopes(const float *z, T *dz, int64_t ld, const T *bias, bool lies,
                                       int64_t rows, int64_t classes, const zfd_head_row *made,
                                       zfd_head_weights weights, float scale, float *pieces)
{
    const int64_t col = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) * ZFD_HEAD_PACK;
    const float most = weights.most ? *weights.most : 0;
    float b[ZFD_HEAD_PACK];
    if (col >= ld) return;
    zfd_head_bias(b, bias, lies, col, classes);
    for (int64_t piece = blockIdx.y; piece * ZFD_HEAD_PIECE < rows; piece += gridDim.y) {
        const int64_t end = min((piece + 1) * ZFD_HEAD_PIECE, rows);
        float sum[ZFD_HEAD_PACK] = {0};
        for (int64_t row = piece * ZFD_HEAD_PIECE; row < end; row++) {
            const zfd_head_row r = made[row];
            const float by =
                weights.at ? weights.factor * weights.at[weights.by_row ? row : 0] : weights.factor;
            const float of_dz = !weights.most ? by : most != 0 ? by / most * zfd_head_f16 : 0;
            float x[ZFD_HEAD_PACK];
            zfd_load(x, z + row * ld + col);
#pragma unroll
            for (int i = 0; i < ZFD_HEAD_PACK; i++) {
                float slope = zfd_head_exp<T>((x[i] + b[i]) * scale - r.base) * r.over +
                              (col + i == r.label ? r.at : 0);
                if (r.label < 0 || col + i >= classes) slope = 0; /* even if z is NaN */
                else sum[i] += by * slope;
                x[i] = r.label < 0 ? 0 : of_dz * slope;
            }
            zfd_store(dz + row * ld + col, x);
        }
        zfd_store(pieces + piece * ld + col, sum);
    }
}

/* db[v] = (add ? db[v] : 0) + pieces[0,v] + pieces[1,v] + ... */
template <class T>
static __global__ void zfd_head_pieces(T *db, const float *pieces, int64_t count, int64_t ld,
                                       int64_t classes, bool add)
{
    for (int64_t v = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; v < classes;
         v += gridDim.x * (int64_t)blockDim.x) {
        float sum = 0;
        for (int64_t piece = 0; piece < count; piece++) sum += pieces[piece * ld + v];
        if (add) sum += zfd_to_f32(db[v]);
        db[v] = zfd_from_f32<T>(sum);
    }
}

/* The largest magnitude of factor times `each` numbers of every `step`, `count` in all, by one
 * block. */
static __global__ void zfd_head_largest(float *most, const float *of, int64_t count, int each,
                                        int step, float factor)
{
    ZFD_SHARED(float, warps);
    float top = 0;
    for (int64_t i = threadIdx.x; i < count; i += blockDim.x)
        top = fmaxf(top, fabsf(factor * of[i / each * step + i % each]));
    for (int step = ZFD_WARP / 2; step; step /= 2)
        top = fmaxf(top, zfd_shuffle_xor(top, step));
    if (threadIdx.x % ZFD_WARP == 0) warps[threadIdx.x / ZFD_WARP] = top;
    __syncthreads();
    if (threadIdx.x) return;
    for (unsigned warp = 0; warp < blockDim.x / ZFD_WARP; warp++) top = fmaxf(top, warps[warp]);
    *most = top;
}

static __global__ void zfd_head_weigh(float *x, int64_t count, const float *weight)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < count;
         i += gridDim.x * (int64_t)blockDim.x)
        x[i] *= *weight;
}

/* out = the sum of losses times their weights, by one block: thread t adds t, t + blockDim, ...;
 * then each warp, then their sums. */
static __global__ void zfd_head_total(float *out, const float *loss, int64_t rows,
                                      const float *weight, bool by_row)
{
    ZFD_SHARED(double, warps);
    double sum = 0;
    for (int64_t row = threadIdx.x; row < rows; row += blockDim.x) sum += by_row ? (double)weight[row] * loss[row] : loss[row];
    for (int step = ZFD_WARP / 2; step; step /= 2) sum += zfd_shuffle_xor(sum, step);
    if (threadIdx.x % ZFD_WARP == 0) warps[threadIdx.x / ZFD_WARP] = sum;
    __syncthreads();
    if (threadIdx.x) return;
    sum = 0;
    for (unsigned warp = 0; warp < blockDim.x / ZFD_WARP; warp++) sum += warps[warp];
    *out = (float)(by_row ? sum : *weight * sum);
}

/* The operands and results of a launch; NULL: there is none. */
typedef struct zfd_head_values {
    const void *bias;
    const zf_array *weight;
    float factor, scale; /* of the weight in dz; of logits */
    const zf_array *dx, *dw, *db;
    zfd_head_scores scores;
} zfd_head_values;

static void *zfd_head_data(const zf_array *of) { return of ? of->data : NULL; }

static zfd_head_values zfd_head_values_of(const zf_launch *l)
{
    const bool logp = l->op == ZF_OP_head_logp, grad = l->op == ZF_OP_head_logp_grad;
    zfd_head_values v = {};
    v.factor = v.scale = 1;
    if (logp) v.scale = (float)(1 / ZF_FLOAT(l, head_logp, temperature));
    if (grad) v.scale = (float)(1 / ZF_FLOAT(l, head_logp_grad, temperature));
    v.bias = l->arg_count > (logp ? 3 : 4) ? l->args[logp ? 3 : 4].data : NULL;
    v.weight = logp ? NULL : &l->args[3];
    v.scores.scale = v.scale, v.scores.labelled = logp;
    if (logp) {
        v.scores.logp = static_cast<float *>(l->out.data);
        v.scores.entropy =
            static_cast<float *>(zfd_head_data(zfd_saved_out(l, ZFD_LOGP_ENTROPY)));
        v.scores.best = static_cast<int32_t *>(zfd_head_data(zfd_saved_out(l, ZFD_LOGP_BEST)));
    } else if (grad) {
        v.factor = -v.scale;
        v.dx = &l->out;
        v.dw = zfd_saved_out(l, ZFD_LOGP_DW), v.db = zfd_saved_out(l, ZFD_LOGP_DB);
    } else {
        v.dx = zfd_saved_out(l, ZFD_HEAD_DX), v.dw = zfd_saved_out(l, ZFD_HEAD_DW);
        v.db = zfd_saved_out(l, ZFD_HEAD_DB);
        v.scores.best = static_cast<int32_t *>(zfd_head_data(zfd_saved_out(l, ZFD_HEAD_BEST)));
    }
    return v;
}

/* How the work is split, and the parts of scratch. */
typedef struct zfd_head {
    zfd_head_values of;
    int64_t rows, width, classes;
    int64_t tile, rest; /* rows of a tile, and of the last one */
    int64_t whole;      /* classes of the first of two products; all classes where there is one */
    int64_t ld;         /* elements from one row of z or dz to the next */
    size_t size, bytes; /* size: of an element of x; bytes: scratch without the workspace */
    zf_dtype made;      /* the dtype of gradients */
    zfd_blocks blocks;  /* of w; bits 0: it is floats */
    const void *w;      /* as floats */
    float *z, *loss, *pieces;
    float *most; /* the largest weight */
    void *dz;
    zfd_head_row *of_rows;
    void *work;
} zfd_head;

static void *zfd_head_take(zfd_head *h, const zf_launch *l, int64_t count, size_t size)
{
    unsigned char *at = static_cast<unsigned char *>(l->scratch);
    if (at) at += h->bytes;
    h->bytes += ((size_t)count * size + 63) / 64 * 64;
    return at;
}

/* Bytes of a tile of z; few in the emulation, so that its tests have several tiles. */
static int64_t zfd_head_bytes(const zf_launch *l, int64_t ld)
{
    const int64_t least = (int64_t)64 << 20, share = zfd_device_of(l)->memory / 64,
                  most = ZFD_HEAD_MOST * ld * (int64_t)sizeof(float);
    if (ZFD_SMALL_TILES) return 4 << 10;
    return max(least, min(share, most));
}

/* Logits are those of `classes` classes, no more than those for which the head was made. */
static void zfd_head_set_classes(zfd_head *h, int64_t classes)
{
    h->classes = classes;
    h->whole = h->size == 2 && h->made == ZF_F32 ? classes / 8 * 8 : 0;
    if (!h->whole) h->whole = classes;
}

/* Logits are those of `classes` of the rows of w. */
static zfd_head zfd_head_with(const zf_launch *l, const zfd_head_values *of, int64_t classes)
{
    zfd_head h;
    const zf_dtype dtype = l->args[0].dtype;
    h.of = *of;
    h.rows = l->args[0].shape.dims[0], h.width = l->args[0].shape.dims[1];
    h.classes = classes;
    h.ld = zfd_div_up(h.classes, 16) * 16;
    h.size = zf_dtype_size(dtype), h.bytes = 0;
    h.made = dtype == ZF_BF16 && h.rows <= ZFD_HEAD_ONE_TILE && l->op == ZF_OP_head_loss ? ZF_BF16
                                                                                        : ZF_F32;
    h.tile = h.made == ZF_F32 ? zfd_tile_rows(h.rows, h.ld, zfd_head_bytes(l, h.ld)) : h.rows;
    h.rest = h.rows ? h.rows - (h.rows - 1) / h.tile * h.tile : 0;
    zfd_head_set_classes(&h, classes);
    h.of_rows = static_cast<zfd_head_row *>(zfd_head_take(&h, l, h.tile, sizeof *h.of_rows));
    h.loss = static_cast<float *>(zfd_head_take(&h, l, h.rows, sizeof(float)));
    h.pieces = static_cast<float *>(
        zfd_head_take(&h, l, zfd_div_up(h.tile, ZFD_HEAD_PIECE) * h.ld, sizeof(float)));
    h.z = static_cast<float *>(zfd_head_take(&h, l, h.tile * h.ld, sizeof(float)));
    h.dz = dtype == ZF_F32 ? h.z : zfd_head_take(&h, l, h.tile * h.ld, h.size);
    h.blocks = zfd_blocks_by(ZF_INT(l, head_loss, bits), ZF_INT(l, head_loss, block),
                             ZF_INT(l, head_loss, scale));
    h.w = l->args[1].data;
    if (h.blocks.bits)
        h.w = zfd_head_take(&h, l, l->args[1].shape.dims[0] * h.width, h.size);
    h.most = static_cast<float *>(zfd_head_take(&h, l, 1, sizeof(float)));
    h.work = zfd_head_take(&h, l, 0, 1);
    return h;
}

static zfd_head zfd_head_of(const zf_launch *l)
{
    const zfd_head_values of = zfd_head_values_of(l);
    return zfd_head_with(l, &of, l->args[1].shape.dims[0]);
}

enum { ZFD_HEAD_LOGITS, ZFD_HEAD_TO_X, ZFD_HEAD_TO_W, ZFD_HEAD_PRODUCTS };

/* The product of a tile of `rows` rows with `classes` classes. */
static zfd_gemm zfd_head_product(const zf_launch *l, const zfd_head *h, int which, int64_t rows,
                                 int64_t classes)
{
    zfd_gemm g;
    switch (which) {
    case ZFD_HEAD_LOGITS: /* z[t,v] = sum over i of x[t,i] w[v,i] */
        g = zfd_gemm_of(l, rows, classes, h->width, false, true);
        g.c_row = h->ld, g.to = ZF_F32;
        return g;
    case ZFD_HEAD_TO_X: /* dx[t,i] = sum over v of dz[t,v] w[v,i] */
        g = zfd_gemm_of(l, rows, h->width, classes, false, false);
        break;
    default: /* dw[v,i] = sum over t of dz[t,v] x[t,i] */
        g = zfd_gemm_of(l, classes, h->width, rows, true, false);
        break;
    }
    g.a_row = h->ld, g.to = h->made;
    return g;
}

/* Scratch, with the workspace of all products. */
static size_t zfd_head_scratch(const zf_launch *l, const zfd_head *h)
{
    size_t work = 0;
    for (int i = 0; i < 4 * ZFD_HEAD_PRODUCTS; i++) {
        const int64_t classes = i & 2 ? h->classes - h->whole : h->whole;
        size_t bytes =
            zfd_gemm_scratch(l, zfd_head_product(l, h, i / 4, i & 1 ? h->rest : h->tile, classes));
        if (bytes > work) work = bytes;
    }
    return h->bytes + work;
}

static size_t zfd_cuda_scratch_head(const zf_launch *l)
{
    const zfd_head h = zfd_head_of(l);
    return zfd_head_scratch(l, &h);
}

/* The product of a tile of `rows` rows from `first` on, dx of these being at `dx`: for the first
 * h.whole classes, then for the rest. cuBLASLt's fast kernels need the classes as a multiple of 16
 * bytes, and a vocabulary may have any size. */
static zf_status zfd_head_multiply(const zf_launch *l, const zfd_head *h, int which, int64_t first,
                                   int64_t rows, float alpha, void *dx)
{
    const size_t made = zf_dtype_size(h->made);
    const char *x = static_cast<const char *>(l->args[0].data) +
                    (size_t)(first * h->width) * h->size;
    zf_status status = ZF_OK;
    for (int64_t from = 0; from < h->classes && !status; from = from ? h->classes : h->whole) {
        const int64_t count = from ? h->classes - h->whole : h->whole;
        const zfd_gemm g = zfd_head_product(l, h, which, rows, count);
        const char *w = static_cast<const char *>(h->w) + (size_t)(from * h->width) * h->size;
        const char *dz = static_cast<const char *>(h->dz) + (size_t)from * h->size;
        char *dw = static_cast<char *>(zfd_head_data(h->of.dw)) +
                   (size_t)(from * h->width) * made;
        if (which == ZFD_HEAD_LOGITS)
            status = zfd_gemm_run(l, g, x, w, h->z + from, NULL, NULL, 1, h->work);
        else if (which == ZFD_HEAD_TO_X)
            status = zfd_gemm_run(l, g, dz, w, dx, from > 0 ? dx : NULL, NULL, alpha, h->work);
        else
            status = zfd_gemm_run(l, g, dz, x, dw, first > 0 ? dw : NULL, NULL, alpha, h->work);
    }
    return status;
}

/* The weights of the rows from `first` on. */
static zfd_head_weights zfd_head_weights_of(const zf_launch *l, const zfd_head *h, int64_t first)
{
    zfd_head_weights w;
    w.by_row = h->of.weight->shape.rank > 0;
    w.at = static_cast<const float *>(h->of.weight->data) + (w.by_row ? first : 0);
    w.factor = h->of.factor;
    w.most = l->args[0].dtype == ZF_F16 ? h->most : NULL;
    return w;
}

/* The labels of logits of the classes from `first` on, of `classes`. */
static zfd_head_labels zfd_head_labels_of(const zf_launch *l, const zfd_head *h, int64_t first,
                                          int64_t classes)
{
    const zfd_head_labels labels = {l->args[2].data,
                                    l->args[2].dtype == ZF_I64,
                                    ZF_INT(l, head_loss, ignore),
                                    classes,
                                    first,
                                    h->classes,
                                    zfd_device_of(l)->fault,
                                    (int32_t)l->op,
                                    l->node};
    return labels;
}

/* Threads of a block that has a row. */
static int zfd_head_threads(const zfd_head *h)
{
    return h->classes < 4096 ? ZFD_THREADS : 2 * ZFD_THREADS;
}

/* Steps 3 and 4 of a tile, after h->of_rows. */
template <class T>
static void zfd_head_backward(const zf_launch *l, const zfd_head *h, int64_t first, int64_t rows,
                              const zfd_head_weights &weights)
{
    const T *bias = static_cast<const T *>(h->of.bias);
    const bool lies = zfd_lies_well(0, 0, bias);
    const unsigned across = (unsigned)zfd_div_up(h->ld, ZFD_THREADS * ZFD_HEAD_PACK);
    const int64_t pieces = zfd_div_up(rows, ZFD_HEAD_PIECE);
    void *db = zfd_head_data(h->of.db);
    ZFD_LAUNCH(zfd_head_slopes<T>, dim3(across, pieces < 65535 ? (unsigned)pieces : 65535u),
               ZFD_THREADS, 0, zfd_stream(l), h->z, static_cast<T *>(h->dz), h->ld, bias, lies,
               rows, h->classes, h->of_rows, weights, h->of.scale, h->pieces);
    if (db && h->made == ZF_F32)
        ZFD_LAUNCH(zfd_head_pieces<float>, zfd_grid(l, zfd_div_up(h->classes, ZFD_THREADS)),
                   ZFD_THREADS, 0, zfd_stream(l), static_cast<float *>(db), h->pieces, pieces,
                   h->ld, h->classes, first > 0);
    else if (db)
        ZFD_LAUNCH(zfd_head_pieces<T>, zfd_grid(l, zfd_div_up(h->classes, ZFD_THREADS)),
                   ZFD_THREADS, 0, zfd_stream(l), static_cast<T *>(db), h->pieces, pieces, h->ld,
                   h->classes, first > 0);
}

/* Steps 2 to 4 of a tile, after its z. */
template <class T>
static void zfd_head_middle(const zf_launch *l, const zfd_head *h, int64_t first, int64_t rows,
                            bool slopes)
{
    const T *bias = static_cast<const T *>(h->of.bias);
    zfd_head_scores scores = h->of.scores;
    if (l->op == ZF_OP_head_loss) scores.loss = h->loss;
    ZFD_LAUNCH(zfd_head_rows<T>, zfd_grid(l, rows), zfd_head_threads(h),
               ZFD_WARP * sizeof(zfd_head_top), zfd_stream(l), h->z, h->ld, bias,
               zfd_lies_well(0, 0, bias), rows, first, zfd_head_labels_of(l, h, 0, h->classes),
               h->of_rows, scores);
    if (slopes) zfd_head_backward<T>(l, h, first, rows, zfd_head_weights_of(l, h, first));
}

/* Dequantises w into scratch. */
template <class T> static void zfd_head_dequantize(const zf_launch *l, const zfd_head *h)
{
    const int64_t records = l->args[1].shape.dims[0] * (h->width / h->blocks.block);
    ZFD_LAUNCH(zfd_dequantize_kernel<T>, zfd_record_grid(l, records), ZFD_THREADS, 0, zfd_stream(l),
               static_cast<T *>(const_cast<void *>(h->w)),
               static_cast<const unsigned char *>(l->args[1].data), records, h->blocks, 1, false);
}

/* f16: multiplies gradients by the largest weight, by which dz was divided. */
static void zfd_head_weigh_all(const zf_launch *l, const zfd_head *h)
{
    const zf_array *const made[] = {h->of.dx, h->of.dw};
    for (int k = 0; k < 2; k++)
        if (made[k] && zfd_count(made[k]))
            ZFD_LAUNCH(zfd_head_weigh, zfd_grid(l, zfd_div_up(zfd_count(made[k]), ZFD_THREADS)),
                       ZFD_THREADS, 0, zfd_stream(l), static_cast<float *>(made[k]->data),
                       zfd_count(made[k]), h->most);
}

static zf_status zfd_cuda_head(const zf_launch *l)
{
    const zfd_head h = zfd_head_of(l);
    const bool f16 = l->args[0].dtype == ZF_F16;
    const zf_array *weight = h.of.weight;
    const float alpha = f16 ? 1 / zfd_head_f16 : 1;
    void *dx = zfd_head_data(h.of.dx), *dw = zfd_head_data(h.of.dw), *db = zfd_head_data(h.of.db);
    zf_status status = ZF_OK;
    if (!h.rows && dw) (void)cudaMemsetAsync(dw, 0, zfd_bytes(h.of.dw), zfd_stream(l));
    if (!h.rows && db) (void)cudaMemsetAsync(db, 0, zfd_bytes(h.of.db), zfd_stream(l));
    if (h.blocks.bits && h.width)
        ZFD_FLOATS(l, l->args[0].dtype, T, { zfd_head_dequantize<T>(l, &h); })
    if (f16 && weight)
        ZFD_LAUNCH(zfd_head_largest, 1, 4 * ZFD_THREADS, ZFD_WARP * sizeof(float), zfd_stream(l),
                   h.most, static_cast<const float *>(weight->data),
                   weight->shape.rank ? h.rows : 1, 1, 1, h.of.factor);
    for (int64_t first = 0; first < h.rows && !status; first += h.tile) {
        const int64_t rows = first + h.tile < h.rows ? h.tile : h.rest;
        status = zfd_head_multiply(l, &h, ZFD_HEAD_LOGITS, first, rows, 1, NULL);
        if (status) return status;
        ZFD_FLOATS(l, l->args[0].dtype, T, {
            zfd_head_middle<T>(l, &h, first, rows, dx || dw || db);
        })
        if (dx)
            status = zfd_head_multiply(l, &h, ZFD_HEAD_TO_X, first, rows, alpha,
                                       static_cast<char *>(dx) +
                                           (size_t)(first * h.width) * zf_dtype_size(h.made));
        if (dw && !status)
            status = zfd_head_multiply(l, &h, ZFD_HEAD_TO_W, first, rows, alpha, NULL);
    }
    if (status) return status;
    if (f16) zfd_head_weigh_all(l, &h);
    if (l->op == ZF_OP_head_loss)
        ZFD_LAUNCH(zfd_head_total, 1, 4 * ZFD_THREADS, ZFD_WARP * sizeof(double), zfd_stream(l),
                   static_cast<float *>(l->out.data), h.loss, h.rows,
                   static_cast<const float *>(weight->data), weight->shape.rank > 0);
    return zfd_launched(l);
}

ZFD_KERNEL(head_loss, zfd_cuda_head, zfd_cuda_scratch_head)
ZFD_KERNEL(head_logp, zfd_cuda_head, zfd_cuda_scratch_head)
ZFD_KERNEL(head_logp_grad, zfd_cuda_head, zfd_cuda_scratch_head)
