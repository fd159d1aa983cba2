/* swiglu and swiglu_grad on CUDA (ops/swiglu.c). */

/* A launch taken apart: element i of y is computed from element i / n * row + i % n of gate and of
 * up, which is i + i / n * gap. */
template <class T> struct zfd_gates {
    const T *dy, *gate, *up; /* dy: NULL in the forward pass */
    T *out, *du;             /* out: y or dg; du: NULL: not needed */
    zfd_divisor n;
    int64_t gap;
};

template <class T, int N>
__global__ void zfd_swiglu_kernel(int64_t first, int64_t count, const zfd_gates<T> a)
{
    for (int64_t i = first + ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N; i < count;
         i += (int64_t)gridDim.x * blockDim.x * N) {
        const int64_t at = a.gap ? i + zfd_divide(i, a.n) * a.gap : i;
        float g[N], u[N], dy[N], y[N], du[N];
        zfd_fetch(g, a.gate + at, true);
        zfd_fetch(u, a.up + at, true);
        if (a.dy) zfd_fetch(dy, a.dy + i, true);
#pragma unroll
        for (int k = 0; k < N; k++) {
            const float by = 1 / (1 + expf(-g[k]));
            y[k] = a.dy ? dy[k] * u[k] * (by * fmaf(g[k], 1 - by, 1.0f)) : g[k] * by * u[k];
            du[k] = a.dy ? dy[k] * (g[k] * by) : 0;
        }
        zfd_put_pack(a.out + (a.dy ? at : i), y);
        if (a.du) zfd_put_pack(a.du + at, du);
    }
}

template <class T> static void zfd_swiglu_launch(const zf_launch *l)
{
    const int n = zfd_wide<T>::count, first = l->op == ZF_OP_swiglu_grad;
    const bool packed = l->arg_count == first + 1;
    const zf_array *gate = &l->args[first];
    const int64_t count = zfd_count(first ? &l->args[0] : &l->out);
    const int64_t width = packed ? gate->shape.dims[gate->shape.rank - 1] / 2 : 0;
    zfd_gates<T> a;
    memset(&a, 0, sizeof a);
    a.n = zfd_divisor_of(width ? width : 1, count), a.gap = width;
    a.gate = static_cast<const T *>(gate->data);
    a.up = packed ? a.gate + width : static_cast<const T *>(l->args[l->arg_count - 1].data);
    a.out = static_cast<T *>(l->out.data);
    if (first) a.dy = static_cast<const T *>(l->args[0].data);
    if (first && packed) a.du = a.out + width;
    ZFD_FLAT(l, n, count,
             zfd_lies_well(0, 1, a.gate, a.up, a.dy, a.out) && width % n == 0,
             (zfd_swiglu_kernel<T, n>), (zfd_swiglu_kernel<T, 1>), a)
}

static zf_status zfd_cuda_swiglu(const zf_launch *l)
{
    ZFD_FLOATS(l, l->out.dtype, T, zfd_swiglu_launch<T>(l);)
    return zfd_launched(l);
}

ZFD_KERNEL(swiglu, zfd_cuda_swiglu, NULL)
ZFD_KERNEL(swiglu_grad, zfd_cuda_swiglu, NULL)
