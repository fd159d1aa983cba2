/* Reductions: sum max argmax over one axis; total; block_norms and norm.
 *
 * sum adds as sum_to does (move.cu). In block_norms a warp has a block of 1024 elements, a lane 16
 * bytes of it at a time, with any alignment. So the norms do not change when a tensor is split at a
 * multiple of 1024. total and norm, and norms (bucket.cu) for each range, add in double:
 *
 *     pieces of 4096 elements    thread t adds elements t, t + 256, ...; then threads as a tree
 *     their sums                 added in the same way, and rounded once
 */

/* ------------------------------------------------------------------------- max, argmax */

/* The largest number so far and its first index; NaN is larger than every number. */
typedef struct zfd_most {
    float x;
    int at;
} zfd_most;

__device__ __forceinline__ zfd_most zfd_larger(zfd_most a, zfd_most b)
{
    bool a_none = a.x != a.x, b_none = b.x != b.x;
    if (a_none != b_none) return a_none ? a : b;
    if (a.x > b.x) return a;
    if (b.x > a.x) return b;
    return a.at < b.at ? a : b;
}

__device__ __forceinline__ zfd_most zfd_warp_most(zfd_most a)
{
#pragma unroll
    for (int step = ZFD_WARP / 2; step; step /= 2) {
        zfd_most b;
        b.x = zfd_shuffle_xor(a.x, step);
        b.at = zfd_shuffle_xor(a.at, step);
        a = zfd_larger(a, b);
    }
    return a;
}

/* out[row] over n neighbours, by `lanes` threads each: a warp or a block. to i32: the index, else
 * the maximum. */
template <class T>
__global__ void zfd_most_rows_kernel(int64_t rows, int64_t n, int lanes, void *out, zf_dtype to,
                                     const T *x)
{
    ZFD_SHARED(zfd_most, shared);
    int lane = (int)threadIdx.x % lanes, in_block = (int)blockDim.x / lanes;
    for (int64_t row = (int64_t)blockIdx.x * in_block + (int)threadIdx.x / lanes; row < rows;
         row += (int64_t)gridDim.x * in_block) {
        zfd_most most = {-INFINITY, INT32_MAX};
        for (int64_t i = lane; i < n; i += lanes) {
            zfd_most next = {zfd_to_f32(x[row * n + i]), (int)i};
            most = zfd_larger(most, next);
        }
        most = zfd_warp_most(most);
        if (lanes > ZFD_WARP) {
            __syncthreads();
            if (lane % ZFD_WARP == 0) shared[lane / ZFD_WARP] = most;
            __syncthreads();
            most = shared[lane % ZFD_SUM_WARPS];
            most = zfd_warp_most(most);
        }
        if (lane == 0 && to == ZF_I32) static_cast<int32_t *>(out)[row] = most.at;
        else if (lane == 0) zfd_put_float(out, to, row, most.x);
    }
}

/* out[o,i] over x[o,n,i], a thread each. */
template <class T>
__global__ void zfd_most_columns_kernel(int64_t count, int64_t n, zfd_divisor inner, void *out,
                                        zf_dtype to, const T *x)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * blockDim.x) {
        int64_t outer = zfd_divide(i, inner);
        const T *from = x + outer * n * inner.by + (i - outer * inner.by);
        zfd_most most = {-INFINITY, INT32_MAX};
        for (int64_t k = 0; k < n; k++) {
            zfd_most next = {zfd_to_f32(from[k * inner.by]), (int)k};
            most = zfd_larger(most, next);
        }
        if (to == ZF_I32) static_cast<int32_t *>(out)[i] = most.at;
        else zfd_put_float(out, to, i, most.x);
    }
}

template <class T> static void zfd_most_launch(const zf_launch *l)
{
    const zf_shape *x = &l->args[0].shape;
    int axis = (int)ZF_INT(l, max, axis);
    int64_t n = x->dims[axis], inner = zfd_span(x, axis + 1, x->rank), count = zfd_count(&l->out);
    int lanes = n <= ZFD_SUM_BY_WARP ? ZFD_WARP : ZFD_THREADS;
    const T *from = static_cast<const T *>(l->args[0].data);
    if (!count) return;
    if (inner == 1)
        ZFD_LAUNCH(zfd_most_rows_kernel<T>, zfd_grid(l, zfd_div_up(count * lanes, ZFD_THREADS)),
                   ZFD_THREADS, ZFD_SUM_WARPS * sizeof(zfd_most), zfd_stream(l), count, n, lanes,
                   l->out.data, l->out.dtype, from);
    else
        ZFD_LAUNCH(zfd_most_columns_kernel<T>, zfd_grid(l, zfd_div_up(count, ZFD_THREADS)),
                   ZFD_THREADS, 0, zfd_stream(l), count, n, zfd_divisor_of(inner, count),
                   l->out.data, l->out.dtype, from);
}

static zf_status zfd_cuda_max(const zf_launch *l)
{
    ZFD_FLOATS(l, l->args[0].dtype, T, zfd_most_launch<T>(l);)
    return zfd_launched(l);
}

/* ------------------------------------------------------------------------- block_norms */

enum { ZFD_NORM_BLOCK = 1024 };

/* The sum of squares has neither underflowed nor overflowed in f32; a NaN is one, too. */
__device__ __forceinline__ bool zfd_is_sum_of_squares(float sum)
{
    return (sum >= 0x1p-80f && sum < INFINITY) || sum != sum;
}

/* sqrt(sum of x[i]^2), 0 <= i < n, for a block of one warp whose squares underflow or overflow in
 * f32: computed from x times a power of two. */
template <class T> __device__ float zfd_scaled_norm(const T *x, int n)
{
    int lane = (int)threadIdx.x % ZFD_WARP, exponent;
    float most = 0, sum = 0, by;
    for (int i = lane; i < n; i += ZFD_WARP) most = fmaxf(most, fabsf(zfd_to_f32(x[i])));
    most = zfd_warp_max(most);
    if (most == 0 || isinf(most)) return most;
    (void)frexpf(most, &exponent);
    by = ldexpf(1, exponent < -100 ? 100 : exponent > 100 ? -100 : -exponent);
    for (int i = lane; i < n; i += ZFD_WARP) {
        float y = by * zfd_to_f32(x[i]);
        sum = fmaf(y, y, sum);
    }
    return sqrtf(zfd_warp_sum(sum)) / by;
}

/* The norms of x, computed in one launch with those of other tensors. Blocks are numbered through
 * all of them. */
typedef struct zfd_normed {
    const void *x;
    float *out;
    int64_t count, blocks; /* count: elements; blocks: up to the end of this tensor */
} zfd_normed;

enum { ZFD_NORMED = ZFD_SMALL_TILES ? 3 : 96 };

typedef struct zfd_normed_list {
    int count;
    zfd_normed at[ZFD_NORMED];
} zfd_normed_list;

template <class T> __global__ void zfd_block_norms_kernel(const zfd_normed_list list)
{
    const int N = zfd_wide<T>::count, n = ZFD_NORM_BLOCK, lane = (int)threadIdx.x % ZFD_WARP;
    const int64_t blocks = list.at[list.count - 1].blocks;
    int of = 0;
    for (int64_t block = (int64_t)blockIdx.x * ZFD_SUM_WARPS + (int)threadIdx.x / ZFD_WARP;
         block < blocks; block += (int64_t)gridDim.x * ZFD_SUM_WARPS) {
        while (block >= list.at[of].blocks) of++;
        const int64_t own = block - (of ? list.at[of - 1].blocks : 0), at = own * n;
        const int64_t rest = list.at[of].count - at;
        const T *x = static_cast<const T *>(list.at[of].x) + at;
        float sum = 0;
        if (rest >= n && reinterpret_cast<uintptr_t>(x) % 16 == 0) {
#pragma unroll
            for (int i = lane * N; i < n; i += ZFD_WARP * N) {
                float y[N];
                zfd_fetch(y, x + i, true);
#pragma unroll
                for (int k = 0; k < N; k++) sum = fmaf(y[k], y[k], sum);
            }
        } else {
            for (int i = lane * N; i < n; i += ZFD_WARP * N)
                for (int k = 0; k < N && i + k < rest; k++) {
                    float y = zfd_to_f32(x[i + k]);
                    sum = fmaf(y, y, sum);
                }
        }
        sum = zfd_warp_sum(sum);
        if (zfd_is_sum_of_squares(sum)) sum = sqrtf(sum);
        else sum = zfd_scaled_norm(x, rest < n ? (int)rest : n);
        if (lane == 0) list.at[of].out[own] = sum;
    }
}

/* Computes as many launches of one dtype as one launch can take. */
static zf_status zfd_cuda_together_block_norms(const zf_launch *l, int count, int *taken)
{
    const zf_dtype dtype = l->args[0].dtype;
    zfd_normed_list list;
    int64_t blocks = 0;
    list.count = 0;
    for (*taken = 0; *taken < count && list.count < ZFD_NORMED; ++*taken) {
        const zf_array *x = &l[*taken].args[0];
        zfd_normed *of = &list.at[list.count];
        if (x->dtype != dtype) break;
        if (!zfd_count(x)) continue;
        of->x = x->data, of->out = static_cast<float *>(l[*taken].out.data);
        of->count = zfd_count(x), of->blocks = blocks += zfd_count(&l[*taken].out);
        list.count++;
    }
    if (!blocks) return ZF_OK;
    ZFD_FLOATS(l, dtype, T,
               ZFD_LAUNCH(zfd_block_norms_kernel<T>, zfd_grid(l, zfd_div_up(blocks, ZFD_SUM_WARPS)),
                          ZFD_THREADS, 0, zfd_stream(l), list);)
    return zfd_launched(l);
}

static zf_status zfd_cuda_block_norms(const zf_launch *l)
{
    int taken;
    return zfd_cuda_together_block_norms(l, 1, &taken);
}

/* ------------------------------------------------------------------------- total, norm */

enum { ZFD_TOTAL_PIECE = 4096, ZFD_TOTALLED = 128 };

/* The sum over a block's threads; every thread gets it. shared has room for one double per
 * thread. */
__device__ __forceinline__ double zfd_block_total(double x, double *shared)
{
    int t = (int)threadIdx.x;
    __syncthreads();
    shared[t] = x;
    for (int step = ZFD_THREADS / 2; step; step /= 2) {
        __syncthreads();
        if (t < step) shared[t] += shared[t + step];
    }
    __syncthreads();
    return shared[0];
}

/* The result of a sum: its root if it is a sum of squares. */
template <bool SQUARES> __device__ __forceinline__ float zfd_total_of(double sum)
{
    return (float)(SQUARES ? sqrt(sum) : sum);
}

/* The sum of the piece of x, or of its squares, that begins at `first`, within [0, end). */
template <bool SQUARES, class T>
__device__ __forceinline__ double zfd_piece_total(const T *x, int64_t first, int64_t end,
                                                  double *shared)
{
    int64_t last = first + ZFD_TOTAL_PIECE;
    double sum = 0;
    if (last > end) last = end;
#pragma unroll 4
    for (int64_t i = first + threadIdx.x; i < last; i += ZFD_THREADS) {
        double y = (double)zfd_to_f32(x[i]);
        sum += SQUARES ? y * y : y;
    }
    return zfd_block_total(sum, shared);
}

/* The operands of a launch: count elements each. The sums of an operand's pieces start at
 * `first`. */
typedef struct zfd_totalled {
    struct zfd_totalled_operand {
        const void *x;
        int64_t count, first;
    } at[ZFD_TOTALLED];
} zfd_totalled;

/* Writes sums[first + piece] of operand y, or out where there is only one piece. */
template <bool SQUARES, class T>
__global__ void zfd_total_kernel(zfd_totalled operands, double *sums, void *out, zf_dtype to)
{
    ZFD_SHARED(double, shared);
    const zfd_totalled::zfd_totalled_operand o = operands.at[blockIdx.y];
    const T *x = static_cast<const T *>(o.x);
    for (int64_t at = (int64_t)blockIdx.x * ZFD_TOTAL_PIECE, piece = blockIdx.x; at < o.count;
         at += (int64_t)gridDim.x * ZFD_TOTAL_PIECE, piece += gridDim.x) {
        double sum = zfd_piece_total<SQUARES>(x, at, o.count, shared);
        if (threadIdx.x) continue;
        if (out) zfd_put_float(out, to, 0, zfd_total_of<SQUARES>(sum));
        else sums[o.first + piece] = sum;
    }
}

template <bool SQUARES>
__global__ void zfd_total_last_kernel(int64_t pieces, const double *sums, void *out, zf_dtype to)
{
    ZFD_SHARED(double, shared);
    double sum = 0;
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < pieces; i += ZFD_THREADS) sum += sums[i];
    sum = zfd_block_total(sum, shared);
    if (threadIdx.x == 0) zfd_put_float(out, to, 0, zfd_total_of<SQUARES>(sum));
}

static int64_t zfd_total_pieces(const zf_launch *l)
{
    int64_t pieces = 0;
    for (int32_t k = 0; k < l->arg_count; k++)
        pieces += zfd_div_up(zfd_count(&l->args[k]), ZFD_TOTAL_PIECE);
    return pieces;
}

static size_t zfd_cuda_scratch_total(const zf_launch *l)
{
    int64_t pieces = zfd_total_pieces(l);
    return pieces > 1 ? (size_t)pieces * sizeof(double) : 0;
}

template <bool SQUARES> static zf_status zfd_total_launch(const zf_launch *l)
{
    int64_t pieces = zfd_total_pieces(l), first = 0;
    double *sums = static_cast<double *>(l->scratch);
    void *alone = pieces == 1 ? l->out.data : NULL;
    if (!pieces) return zfd_move_bytes(l, l->out.data, NULL, (int64_t)zfd_bytes(&l->out));
    for (int32_t k = 0; k < l->arg_count;) {
        zfd_totalled o;
        int count = 0;
        int64_t most = 0;
        for (; k < l->arg_count && count < ZFD_TOTALLED; k++) {
            int64_t n = zfd_count(&l->args[k]), its = zfd_div_up(n, ZFD_TOTAL_PIECE);
            if (!n) continue;
            o.at[count].x = l->args[k].data, o.at[count].count = n, o.at[count].first = first;
            count++, first += its;
            if (its > most) most = its;
        }
        if (!count) continue;
        ZFD_FLOATS(l, l->args[0].dtype, T,
                   ZFD_LAUNCH((zfd_total_kernel<SQUARES, T>),
                              dim3(zfd_grid(l, most), (unsigned)count), ZFD_THREADS,
                              ZFD_THREADS * sizeof(double), zfd_stream(l), o, sums, alone,
                              l->out.dtype);)
    }
    if (pieces > 1)
        ZFD_LAUNCH(zfd_total_last_kernel<SQUARES>, 1, ZFD_THREADS, ZFD_THREADS * sizeof(double),
                   zfd_stream(l), pieces, sums, l->out.data, l->out.dtype);
    return zfd_launched(l);
}

static zf_status zfd_cuda_total(const zf_launch *l) { return zfd_total_launch<false>(l); }

static zf_status zfd_cuda_norm(const zf_launch *l) { return zfd_total_launch<true>(l); }

ZFD_KERNEL(sum, zfd_cuda_sum_to, zfd_cuda_scratch_sum_to)
ZFD_KERNEL(max, zfd_cuda_max, NULL)
ZFD_KERNEL(argmax, zfd_cuda_max, NULL)
ZFD_KERNEL_TOGETHER(block_norms, zfd_cuda_block_norms, NULL, zfd_cuda_together_block_norms)
ZFD_KERNEL(total, zfd_cuda_total, zfd_cuda_scratch_total)
ZFD_KERNEL(norm, zfd_cuda_norm, zfd_cuda_scratch_total)
