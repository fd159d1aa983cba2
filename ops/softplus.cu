/* softplus on CUDA (ops/softplus.c). */

template <class T, int N>
__global__ void zfi_softplus_kernel(int64_t first, int64_t count, T *out, const T *in)
{
    for (int64_t i = first + ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N; i < count;
         i += (int64_t)gridDim.x * blockDim.x * N) {
        float x[N];
        zfi_fetch(x, in + i, true);
#pragma unroll
        for (int k = 0; k < N; k++) x[k] = (x[k] <= 0 ? 0 : x[k]) + log1pf(expf(-fabsf(x[k])));
        zfi_put_pack(out + i, x);
    }
}

template <class T> static void zfi_softplus_launch(const zf_launch *l)
{
    const int n = zfi_wide<T>::count;
    T *out = static_cast<T *>(l->out.data);
    const T *x = static_cast<const T *>(l->args[0].data);
    ZFI_FLAT(l, n, zfi_count(&l->out), zfi_lies_well(0, 1, out, x), (zfi_softplus_kernel<T, n>),
             (zfi_softplus_kernel<T, 1>), out, x)
}

static zf_status zfi_cuda_softplus(const zf_launch *l)
{
    ZFI_FLOATS(l, l->out.dtype, T, zfi_softplus_launch<T>(l);)
    return zfi_launched(l);
}

ZFI_KERNEL(softplus, zfi_cuda_softplus, NULL)
