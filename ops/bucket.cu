/* Buckets: view, shard, piece and pack, which move bytes; and norms, which adds the squares of each
 * range in the order of `total` (reduce.cu). bucket and accumulator are memory and have no kernel. */

/* view and piece */
static zf_status zfi_cuda_view(const zf_launch *l)
{
    const char *from = static_cast<const char *>(l->args[0].data);
    int64_t at = ZF_INT(l, view, at) * (int64_t)zf_dtype_size(l->out.dtype);
    return zfi_move_bytes(l, l->out.data, from + at, (int64_t)zfi_bytes(&l->out));
}

static zf_status zfi_cuda_shard(const zf_launch *l)
{
    const char *from = static_cast<const char *>(l->args[0].data);
    int64_t bytes = (int64_t)zfi_bytes(&l->out);
    return zfi_move_bytes(l, l->out.data, from + l->run->shard * bytes, bytes);
}

/* Copies nothing for an operand that the plan has placed inside the result. Gaps become 0. */
static zf_status zfi_cuda_pack(const zf_launch *l)
{
    const int64_t *at = static_cast<const int64_t *>(ZF_LIST(l, pack, at).data);
    int64_t size = (int64_t)zf_dtype_size(l->out.dtype), end = 0, all = (int64_t)zfi_bytes(&l->out);
    char *out = static_cast<char *>(l->out.data);
    zfi_moves m;
    m.count = 0;
    for (int32_t k = 0; k < l->arg_count; k++) {
        int64_t bytes = (int64_t)zfi_bytes(&l->args[k]);
        zfi_moves_add(l, &m, out + end, NULL, at[k] * size - end);
        zfi_moves_add(l, &m, out + at[k] * size, l->args[k].data, bytes);
        end = at[k] * size + bytes;
    }
    zfi_moves_add(l, &m, out + end, NULL, all - end);
    zfi_moves_run(l, &m);
    return zfi_launched(l);
}

/* The ranges of a launch; their norms are elements first, first + 1, ... */
typedef struct zfi_ranges {
    int64_t first;
    int64_t at[ZFI_TOTALLED][2];
} zfi_ranges;

/* A block adds one range: thread t has the sums of pieces t, t + 256, ..., as in the second step of
 * total. */
template <class T>
__global__ void zfi_norms_kernel(zfi_ranges ranges, void *out, zf_dtype to, const T *x)
{
    ZF_SHARED(double, shared);
    int64_t at = ranges.at[blockIdx.x][0], end = ranges.at[blockIdx.x][1];
    double kept = 0;
    for (int64_t piece = 0; at < end; piece++, at += ZFI_TOTAL_PIECE) {
        double sum = zfi_piece_total<true>(x, at, end, shared);
        if (piece % ZFI_THREADS == threadIdx.x) kept += sum;
    }
    kept = zfi_block_total(kept, shared);
    if (threadIdx.x == 0)
        zfi_put_float(out, to, ranges.first + blockIdx.x, zfi_total_of<true>(kept));
}

/* A kernel whose block b has range b of x. */
template <class T>
using zfi_ranges_kernel = void(zfi_ranges ranges, void *out, zf_dtype to, const T *x);

/* Launches the kernel over the ranges of operand 0 that `at` lists by begin and end, one for each
 * element of the result, as many at a time as fit into a launch. */
template <class T>
static void zfi_over_ranges(const zf_launch *l, const int64_t *at, zfi_ranges_kernel<T> *kernel,
                            size_t shared)
{
    const int64_t count = zfi_count(&l->out), most = ZFI_TOTALLED;
    zfi_ranges ranges;
    for (int64_t k = 0, n; k < count; k += n) {
        n = count - k < most ? count - k : most;
        ranges.first = k;
        memcpy(ranges.at, at + 2 * k, (size_t)n * sizeof ranges.at[0]);
        ZF_LAUNCH(kernel, (unsigned)n, ZFI_THREADS, shared, zfi_stream(l), ranges, l->out.data,
                  l->out.dtype, static_cast<const T *>(l->args[0].data));
    }
}

static zf_status zfi_cuda_norms(const zf_launch *l)
{
    const int64_t *at = static_cast<const int64_t *>(ZF_LIST(l, norms, blocks).data);
    ZFI_FLOATS(l, l->out.dtype, T,
               zfi_over_ranges<T>(l, at, zfi_norms_kernel<T>, ZFI_THREADS * sizeof(double));)
    return zfi_launched(l);
}

/* delay (ops/delay.c) */
static zf_status zfi_cuda_delay(const zf_launch *l)
{
    return zfi_move_bytes(l, l->args[0].data, l->args[1].data, (int64_t)zfi_bytes(&l->args[1]));
}

ZFI_KERNEL(view, zfi_cuda_view, NULL)
ZFI_KERNEL(shard, zfi_cuda_shard, NULL)
ZFI_KERNEL(delay, zfi_cuda_delay, NULL)
ZFI_KERNEL(piece, zfi_cuda_view, NULL)
ZFI_KERNEL(pack, zfi_cuda_pack, NULL)
ZFI_KERNEL(norms, zfi_cuda_norms, NULL)
