/* layer_drop on CUDA (ops/layer_drop.c). A step that keeps the branch multiplies; the factor comes
 * from the host, which launches steps with such nodes one by one (run/step/regions.c). */

template <class T, int N>
__global__ void zfd_layer_drop_kernel(int64_t first, int64_t count, T *out, const T *in, float by)
{
    for (int64_t i = first + ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N; i < count;
         i += (int64_t)gridDim.x * blockDim.x * N) {
        float x[N];
        zfd_fetch(x, in + i, true);
#pragma unroll
        for (int k = 0; k < N; k++) x[k] *= by;
        zfd_put_pack(out + i, x);
    }
}

template <class T> static void zfd_layer_drop_launch(const zf_launch *l, float by)
{
    const int n = zfd_wide<T>::count;
    T *out = static_cast<T *>(l->out.data);
    const T *x = static_cast<const T *>(l->args[0].data);
    ZFD_FLAT(l, n, zfd_count(&l->out), zfd_lies_well(0, 1, out, x), (zfd_layer_drop_kernel<T, n>),
             (zfd_layer_drop_kernel<T, 1>), out, x, by)
}

static zf_status zfd_cuda_layer_drop(const zf_launch *l)
{
    const double by = zf_layer_drop_factor(l);
    if (by == 0) return zfd_move_bytes(l, l->out.data, NULL, (int64_t)zfd_bytes(&l->out));
    ZFD_FLOATS(l, l->out.dtype, T, zfd_layer_drop_launch<T>(l, (float)by);)
    return zfd_launched(l);
}

ZFD_KERNEL(layer_drop, zfd_cuda_layer_drop, NULL)
