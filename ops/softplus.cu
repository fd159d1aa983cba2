/* softplus on CUDA (ops/softplus.c). */

template <class T, int N>
__global__ void zfd_softplus_kernel(int64_t first, int64_t count, T *out, const T *in)
{
    for (int64_t i = first + ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N; i < count;
         i += (int64_t)gridDim.x * blockDim.x * N) {
        float x[N];
        zfd_fetch(x, in + i, true);
#pragma unroll
        for (int k = 0; k < N; k++) x[k] = (x[k] <= 0 ? 0 : x[k]) + log1pf(expf(-fabsf(x[k])));
        zfd_put_pack(out + i, x);
    }
}

template <class T> static void zfd_softplus_launch(const zf_launch *l)
{
    const int n = zfd_wide<T>::count;
    T *out = static_cast<T *>(l->out.data);
    const T *x = static_cast<const T *>(l->args[0].data);
    ZFD_FLAT(l, n, zfd_count(&l->out), zfd_lies_well(0, 1, out, x), (zfd_softplus_kernel<T, n>),
             (zfd_softplus_kernel<T, 1>), out, x)
}

static zf_status zfd_cuda_softplus(const zf_launch *l)
{
    ZFD_FLOATS(l, l->out.dtype, T, zfd_softplus_launch<T>(l);)
    return zfd_launched(l);
}

ZFD_KERNEL(softplus, zfd_cuda_softplus, NULL)
