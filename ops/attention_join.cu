/* attention_join on CUDA (ops/attention_join.c): a thread has N neighbours of a head, 16 bytes of
 * them where rows are aligned; threads with neighbouring elements read the same two sums. */

typedef struct zfd_two_heads {
    const float *x[2], *lse[2];
    float *y, *sum; /* sum: NULL where it is not saved */
    zfd_divisor pieces, heads, tokens; /* pieces: of N elements of a head */
    int64_t count;                     /* pieces of all heads of all tokens */
} zfd_two_heads;

template <int N> static __global__ void __launch_bounds__(ZFD_THREADS) zfd_two_heads_kernel(zfd_two_heads j)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < j.count;
         i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t token_head = zfd_divide(i, j.pieces), row = zfd_divide(token_head, j.heads),
                      example = zfd_divide(row, j.tokens);
        const int64_t of = (example * j.heads.by + token_head - row * j.heads.by) * j.tokens.by +
                           row - example * j.tokens.by;
        const float a = j.lse[0][of], b = j.lse[1][of], most = fmaxf(a, b);
        const float least = most == -INFINITY ? 0 : most, p = expf(a - least), q = expf(b - least);
        const float all = p + q, by = all == 0 ? 0 : p / all, other = all == 0 ? 0 : q / all;
        float x[N], y[N];
        zfd_load<float, N>(x, j.x[0] + i * N);
        zfd_load<float, N>(y, j.x[1] + i * N);
#pragma unroll
        for (int k = 0; k < N; k++) x[k] = fmaf(by, x[k], other * y[k]);
        zfd_store<float, N>(j.y + i * N, x);
        if (j.sum && i == token_head * j.pieces.by) j.sum[of] = most + logf(all);
    }
}

template <int N> static void zfd_two_heads_launch(const zf_launch *l, zfd_two_heads j, int64_t heads)
{
    const zf_shape *y = &l->out.shape;
    const int64_t pieces = y->dims[2] / heads / N;
    j.count = zfd_count(&l->out) / N;
    j.pieces = zfd_divisor_of(pieces, j.count);
    j.heads = zfd_divisor_of(heads, j.count), j.tokens = zfd_divisor_of(y->dims[1], j.count);
    ZFD_LAUNCH(zfd_two_heads_kernel<N>, zfd_grid(l, zfd_div_up(j.count, ZFD_THREADS)), ZFD_THREADS, 0,
               zfd_stream(l), j);
}

static zf_status zfd_cuda_attention_join(const zf_launch *l)
{
    const int64_t heads = ZF_INT(l, attention_join, heads);
    const zf_array *x = l->args, *saved = zfd_saved_out(l, 0);
    zfd_two_heads j;
    memset(&j, 0, sizeof j);
    if (!zfd_count(&l->out)) return ZF_OK;
    for (int k = 0; k < 2; k++) {
        j.x[k] = static_cast<const float *>(x[2 * k].data);
        j.lse[k] = static_cast<const float *>(x[2 * k + 1].data);
    }
    j.y = static_cast<float *>(l->out.data);
    j.sum = saved ? static_cast<float *>(saved->data) : NULL;
    if (zfd_lies_well(l->out.shape.dims[2] / heads, sizeof(float), j.x[0], j.x[1], j.y))
        zfd_two_heads_launch<4>(l, j, heads);
    else zfd_two_heads_launch<1>(l, j, heads);
    return zfd_launched(l);
}

ZFD_KERNEL(attention_join, zfd_cuda_attention_join, NULL)
