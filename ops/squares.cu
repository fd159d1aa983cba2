/* squares and norm_of_squares on CUDA (ops/squares.c), with the bits of the CPU: eight lanes add a
 * run as eight sums are added there, and counts are integers, which atomics add in any order. */

enum { ZFD_SQUARE_BITS = 20, ZFD_SQUARE_LOWEST = 340, ZFD_SQUARE_OTHER = 33, ZFD_SQUARES = 34 };

typedef unsigned long long zfd_square_count; /* of a signed number */

/* Adds a sum of squares exactly. */
__device__ __forceinline__ void zfd_put_squares(zfd_square_count *counts, double sum)
{
    const uint64_t mask = (1 << ZFD_SQUARE_BITS) - 1;
    int exponent;
    uint64_t bits;
    if (!(sum < 0x1p300)) {
        atomicAdd(&counts[ZFD_SQUARE_OTHER], (zfd_square_count)1);
        return;
    }
    bits = (uint64_t)ldexp(frexp(sum, &exponent), 53);
    exponent += ZFD_SQUARE_LOWEST - 53;
    if (exponent < 0) bits = exponent > -64 ? bits >> -exponent : 0, exponent = 0;
    for (counts += exponent / ZFD_SQUARE_BITS; bits; bits >>= ZFD_SQUARE_BITS, counts++) {
        const uint64_t part = (bits & mask) << exponent % ZFD_SQUARE_BITS;
        atomicAdd(&counts[0], (zfd_square_count)(part & mask));
        atomicAdd(&counts[1], (zfd_square_count)(part >> ZFD_SQUARE_BITS));
    }
}

/* Adds runs of `unit` of x[0..n) to counts; those of a block first to its own. */
template <class T>
__global__ void zfd_squares_kernel(const T *x, int64_t n, int64_t unit, zfd_square_count *counts)
{
    ZFD_SHARED(zfd_square_count, own);
    const int lanes = 8, lane = (int)threadIdx.x % lanes;
    const int64_t runs = (n + unit - 1) / unit, each = ZFD_WARP / lanes,
                  step = (int64_t)gridDim.x * (blockDim.x / lanes);
    for (int j = (int)threadIdx.x; j < ZFD_SQUARES; j += (int)blockDim.x) own[j] = 0;
    __syncthreads();
    /* Of a warp, all threads take part in the sums */
    for (int64_t first = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / ZFD_WARP * each;
         first < runs; first += step) {
        const int64_t run = first + (int)threadIdx.x % ZFD_WARP / lanes,
                      end = n - run * unit < unit ? n : (run + 1) * unit;
        double sum = 0;
        for (int64_t i = run * unit + lane; i < end; i += lanes) {
            const double y = zfd_to_f32(x[i]);
            sum += y * y;
        }
        for (int by = 1; by < lanes; by *= 2) sum += zfd_shuffle_xor(sum, by);
        if (!lane && run < runs) zfd_put_squares(own, sum);
    }
    __syncthreads();
    for (int j = (int)threadIdx.x; j < ZFD_SQUARES; j += (int)blockDim.x)
        if (own[j]) atomicAdd(&counts[j], own[j]);
}

static __global__ void zfd_squares_end_kernel(double *out, const zfd_square_count *counts)
{
    if (threadIdx.x < ZFD_SQUARES) out[threadIdx.x] = (double)(long long)counts[threadIdx.x];
}

static size_t zfd_cuda_scratch_squares(const zf_launch *)
{
    return ZFD_SQUARES * sizeof(zfd_square_count);
}

/* The runs of the blocks [first, last) that x has. */
template <class T> static void zfd_squares_launch(const zf_launch *l, int64_t first, int64_t last)
{
    const int64_t given = ZF_INT(l, squares, unit),
                  unit = given > 0 ? given : (int64_t)ZFD_NORM_BLOCK,
                  at = first * ZFD_NORM_BLOCK, all = zfd_count(&l->args[0]),
                  end = last * ZFD_NORM_BLOCK < all ? last * ZFD_NORM_BLOCK : all;
    if (at >= end) return;
    ZFD_LAUNCH(zfd_squares_kernel<T>,
               zfd_grid(l, zfd_div_up(zfd_div_up(end - at, unit), ZFD_THREADS / 8)), ZFD_THREADS,
               ZFD_SQUARES * sizeof(zfd_square_count), zfd_stream(l),
               static_cast<const T *>(l->args[0].data) + at, end - at, unit,
               static_cast<zfd_square_count *>(l->scratch));
}

static zf_status zfd_cuda_squares(const zf_launch *l)
{
    const int64_t blocks = zfd_div_up(zfd_count(&l->args[0]), ZFD_NORM_BLOCK),
                  before = ZF_INT(l, squares, world) > 1
                               ? zfd_shard_here(l->run, ZF_INT(l, squares, world)) * blocks
                               : 0,
                  count = ZF_LIST(l, squares, blocks).count;
    const int64_t all[2] = {before, before + blocks},
                  *ends = count ? static_cast<const int64_t *>(ZF_LIST(l, squares, blocks).data)
                                : all;
    const zf_status status =
        zfd_move_bytes(l, l->scratch, NULL, (int64_t)zfd_cuda_scratch_squares(l));
    if (status) return status;
    for (int64_t k = 0; k < (count ? count : 2); k += 2) {
        const int64_t first = max(ends[k] - before, (int64_t)0),
                      last = min(ends[k + 1] - before, blocks);
        ZFD_FLOATS(l, l->args[0].dtype, T, zfd_squares_launch<T>(l, first, last);)
    }
    ZFD_LAUNCH(zfd_squares_end_kernel, 1, 2 * ZFD_WARP, 0, zfd_stream(l),
               static_cast<double *>(l->out.data), static_cast<zfd_square_count *>(l->scratch));
    return zfd_launched(l);
}

/* ----------------------------------------------------------------------- norm_of_squares */

enum { ZFD_COUNTED = ZFD_SMALL_TILES ? 2 : 64 };

/* Operands of a launch. */
typedef struct zfd_counted_list {
    int count;
    struct zfd_counted {
        const double *at;
        int64_t numbers;
    } of[ZFD_COUNTED];
} zfd_counted_list;

/* A thread adds the numbers of one place of all operands. */
static __global__ void zfd_add_counts_kernel(zfd_counted_list list, long long *counts)
{
    const int j = (int)threadIdx.x;
    long long sum = 0, other = 0;
    if (j >= ZFD_SQUARES) return;
    for (int k = 0; k < list.count; k++)
        for (int64_t i = j; i < list.of[k].numbers; i += ZFD_SQUARES) {
            const double count = list.of[k].at[i];
            if (fabs(count) < 0x1p53) sum += (long long)count;
            else other++; /* squares has not made it */
        }
    atomicAdd(reinterpret_cast<zfd_square_count *>(&counts[j]), (zfd_square_count)sum);
    if (other)
        atomicAdd(reinterpret_cast<zfd_square_count *>(&counts[ZFD_SQUARE_OTHER]),
                  (zfd_square_count)other);
}

template <class T> __global__ void zfd_norm_of_counts_kernel(T *out, long long *counts)
{
    const long long mask = (1 << ZFD_SQUARE_BITS) - 1;
    double sum = 0;
    for (int j = 0; j + 1 < ZFD_SQUARE_OTHER; j++) {
        counts[j + 1] += counts[j] >> ZFD_SQUARE_BITS;
        counts[j] &= mask;
    }
    for (int j = ZFD_SQUARE_OTHER - 1; j >= 0; j--)
        sum += ldexp((double)counts[j], ZFD_SQUARE_BITS * j - ZFD_SQUARE_LOWEST);
    out[0] = (T)(counts[ZFD_SQUARE_OTHER] ? INFINITY : sqrt(sum));
}

static zf_status zfd_cuda_norm_of_squares(const zf_launch *l)
{
    long long *counts = static_cast<long long *>(l->scratch);
    zf_status status =
        zfd_move_bytes(l, l->scratch, NULL, (int64_t)zfd_cuda_scratch_squares(l));
    zfd_counted_list list;
    list.count = 0;
    for (int32_t k = 0; k < l->arg_count && !status; k++) {
        list.of[list.count].at = static_cast<const double *>(l->args[k].data);
        list.of[list.count++].numbers = zfd_count(&l->args[k]);
        if (list.count < ZFD_COUNTED && k + 1 < l->arg_count) continue;
        ZFD_LAUNCH(zfd_add_counts_kernel, 1, 2 * ZFD_WARP, 0, zfd_stream(l), list, counts);
        list.count = 0;
    }
    if (status) return status;
    if (l->out.dtype == ZF_F64)
        ZFD_LAUNCH(zfd_norm_of_counts_kernel<double>, 1, 1, 0, zfd_stream(l),
                   static_cast<double *>(l->out.data), counts);
    else
        ZFD_LAUNCH(zfd_norm_of_counts_kernel<float>, 1, 1, 0, zfd_stream(l),
                   static_cast<float *>(l->out.data), counts);
    return zfd_launched(l);
}

ZFD_KERNEL(squares, zfd_cuda_squares, zfd_cuda_scratch_squares)
ZFD_KERNEL(norm_of_squares, zfd_cuda_norm_of_squares, zfd_cuda_scratch_squares)
