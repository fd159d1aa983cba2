/* quantized_linear on CUDA (ops/quantized_linear.c). A warp computes one element of y along a row of the
 * weight; transposed, a thread one along a column. In f32. */

typedef struct zfi_quantized {
    zfi_blocks b;
    const void *x, *bias; /* bias may be NULL */
    const unsigned char *w;
    void *y;
    int64_t count; /* of y */
    int64_t n, k, bytes;
} zfi_quantized;

__device__ __forceinline__ float zfi_low_integer(int byte) { return (float)(((byte & 15) ^ 8) - 8); }

template <class T>
__global__ void __launch_bounds__(ZFI_THREADS) zfi_quantized_kernel(const zfi_quantized q)
{
    const int lane = (int)threadIdx.x % ZFI_WARP, half = q.b.block / 2;
    const int64_t step = (int64_t)gridDim.x * blockDim.x / ZFI_WARP;
    for (int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / ZFI_WARP; i < q.count;
         i += step) {
        const int64_t m = i / q.n, n = i % q.n;
        const T *x = static_cast<const T *>(q.x) + m * q.k;
        float sum = 0;
        for (int64_t r = 0; r < q.k / q.b.block; r++, x += q.b.block) {
            const unsigned char *record = q.w + n * q.bytes + r * q.b.record;
            const float scale = zfi_get_scale(record, q.b.head);
            float part = 0;
            for (int at = lane * 4; at < q.b.block * q.b.bits / 8; at += ZFI_WARP * 4) {
                const uint32_t word = zfi_get_word(record + q.b.head + at);
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const int byte = (int)(word >> (8 * e) & 255);
                    const float a = zfi_to_f32(x[at + e]);
                    if (q.b.bits == 8) {
                        part = fmaf((float)((byte ^ 128) - 128), a, part);
                    } else {
                        part = fmaf(zfi_low_integer(byte), a, part);
                        part = fmaf(zfi_low_integer(byte >> 4), zfi_to_f32(x[half + at + e]), part);
                    }
                }
            }
            sum = fmaf(scale, part, sum);
        }
        sum = zfi_warp_sum(sum);
        if (q.bias) sum += zfi_to_f32(static_cast<const T *>(q.bias)[n]);
        if (lane == 0) static_cast<T *>(q.y)[i] = zfi_from_f32<T>(sum);
    }
}

template <class T>
__global__ void __launch_bounds__(ZFI_THREADS) zfi_quantized_turned_kernel(const zfi_quantized q)
{
    const int half = q.b.block / 2;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < q.count;
         i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t m = i / q.k, k = i % q.k;
        const int at = (int)(k % q.b.block);
        const T *x = static_cast<const T *>(q.x) + m * q.n;
        float sum = 0;
        for (int64_t n = 0; n < q.n; n++) {
            const unsigned char *record = q.w + n * q.bytes + k / q.b.block * q.b.record;
            const unsigned char *byte = record + q.b.head + (q.b.bits == 8 ? at : at % half);
            const float value = q.b.bits == 8 ? (float)(((int)*byte ^ 128) - 128)
                                              : zfi_low_integer(*byte >> (at < half ? 0 : 4));
            sum = fmaf(zfi_to_f32(x[n]), zfi_get_scale(record, q.b.head) * value, sum);
        }
        static_cast<T *>(q.y)[i] = zfi_from_f32<T>(sum);
    }
}

static zf_status zfi_cuda_quantized_linear(const zf_launch *l)
{
    const bool transposed = ZF_INT(l, quantized_linear, transposed) != 0;
    zfi_quantized q = {};
    q.b = zfi_blocks_of(l);
    q.x = l->args[0].data, q.w = static_cast<const unsigned char *>(l->args[1].data);
    q.bias = l->arg_count > 2 ? l->args[2].data : NULL;
    q.y = l->out.data, q.count = zfi_count(&l->out);
    q.n = l->args[1].shape.dims[0], q.bytes = l->args[1].shape.dims[1];
    q.k = q.bytes / q.b.record * q.b.block;
    if (!q.count) return ZF_OK;
    ZFI_FLOATS(l, l->out.dtype, T, {
        if (transposed)
            ZF_LAUNCH(zfi_quantized_turned_kernel<T>,
                      zfi_grid(l, zfi_div_up(q.count, ZFI_THREADS)), ZFI_THREADS, 0, zfi_stream(l),
                      q);
        else
            ZF_LAUNCH(zfi_quantized_kernel<T>, zfi_record_grid(l, q.count), ZFI_THREADS, 0,
                      zfi_stream(l), q);
    })
    return zfi_launched(l);
}

ZFI_KERNEL(quantized_linear, zfi_cuda_quantized_linear, NULL)
