/* Buckets: view, shard, piece and pack, which move bytes; and norms, which adds the squares of each
 * range in the order of `total` (reduce.cu). bucket and accumulator are memory and have no
 * kernel. */

/* view and piece */
static zf_status zfd_cuda_view(const zf_launch *l)
{
    const char *from = static_cast<const char *>(l->args[0].data);
    int64_t at = ZF_INT(l, view, at) * (int64_t)zf_dtype_size(l->out.dtype);
    return zfd_move_bytes(l, l->out.data, from + at, (int64_t)zfd_bytes(&l->out));
}

static zf_status zfd_cuda_shard(const zf_launch *l)
{
    const char *from = static_cast<const char *>(l->args[0].data);
    int64_t bytes = (int64_t)zfd_bytes(&l->out);
    return zfd_move_bytes(l, l->out.data, from + zfd_shard_here(l->run, ZF_INT(l, shard, world)) * bytes, bytes);
}

/* Copies nothing for an operand that the plan has placed inside the result. Gaps become 0. */
static zf_status zfd_cuda_pack(const zf_launch *l)
{
    const int64_t *at = static_cast<const int64_t *>(ZF_LIST(l, pack, at).data);
    int64_t size = (int64_t)zf_dtype_size(l->out.dtype), end = 0, all = (int64_t)zfd_bytes(&l->out);
    char *out = static_cast<char *>(l->out.data);
    zfd_moves m;
    m.count = 0;
    for (int32_t k = 0; k < l->arg_count; k++) {
        int64_t bytes = (int64_t)zfd_bytes(&l->args[k]);
        zfd_moves_add(l, &m, out + end, NULL, at[k] * size - end);
        zfd_moves_add(l, &m, out + at[k] * size, l->args[k].data, bytes);
        end = at[k] * size + bytes;
    }
    zfd_moves_add(l, &m, out + end, NULL, all - end);
    zfd_moves_run(l, &m);
    return zfd_launched(l);
}

/* The ranges of a launch; their norms are elements first, first + 1, ... */
typedef struct zfd_ranges {
    int64_t first;
    int64_t at[ZFD_TOTALLED][2];
} zfd_ranges;

/* A block adds one range: thread t has the sums of pieces t, t + 256, ..., as in the second step of
 * total. */
template <class T>
__global__ void zfd_norms_kernel(zfd_ranges ranges, void *out, zf_dtype to, const T *x)
{
    ZFD_SHARED(double, shared);
    int64_t at = ranges.at[blockIdx.x][0], end = ranges.at[blockIdx.x][1];
    double kept = 0;
    for (int64_t piece = 0; at < end; piece++, at += ZFD_TOTAL_PIECE) {
        double sum = zfd_piece_total<true>(x, at, end, shared);
        if (piece % ZFD_THREADS == threadIdx.x) kept += sum;
    }
    kept = zfd_block_total(kept, shared);
    if (threadIdx.x == 0)
        zfd_put_float(out, to, ranges.first + blockIdx.x, zfd_total_of<true>(kept));
}

/* A kernel whose block b has range b of x. */
template <class T>
using zfd_ranges_kernel = void(zfd_ranges ranges, void *out, zf_dtype to, const T *x);

/* Launches the kernel over the ranges of operand 0 that `at` lists by begin and end, one for each
 * element of the result, as many at a time as fit into a launch. */
template <class T>
static void zfd_over_ranges(const zf_launch *l, const int64_t *at, zfd_ranges_kernel<T> *kernel,
                            size_t shared)
{
    const int64_t count = zfd_count(&l->out), most = ZFD_TOTALLED;
    zfd_ranges ranges;
    for (int64_t k = 0, n; k < count; k += n) {
        n = count - k < most ? count - k : most;
        ranges.first = k;
        memcpy(ranges.at, at + 2 * k, (size_t)n * sizeof ranges.at[0]);
        ZFD_LAUNCH(kernel, (unsigned)n, ZFD_THREADS, shared, zfd_stream(l), ranges, l->out.data,
                   l->out.dtype, static_cast<const T *>(l->args[0].data));
    }
}

static zf_status zfd_cuda_norms(const zf_launch *l)
{
    const int64_t *at = static_cast<const int64_t *>(ZF_LIST(l, norms, blocks).data);
    ZFD_FLOATS(l, l->out.dtype, T,
               zfd_over_ranges<T>(l, at, zfd_norms_kernel<T>, ZFD_THREADS * sizeof(double));)
    return zfd_launched(l);
}

/* delay (ops/delay.c) */
static zf_status zfd_cuda_delay(const zf_launch *l)
{
    return zfd_move_bytes(l, l->args[0].data, l->args[1].data, (int64_t)zfd_bytes(&l->args[1]));
}

ZFD_KERNEL(view, zfd_cuda_view, NULL)
ZFD_KERNEL(shard, zfd_cuda_shard, NULL)
ZFD_KERNEL(delay, zfd_cuda_delay, NULL)
ZFD_KERNEL(piece, zfd_cuda_view, NULL)
ZFD_KERNEL(pack, zfd_cuda_pack, NULL)
ZFD_KERNEL(norms, zfd_cuda_norms, NULL)
