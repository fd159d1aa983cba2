/* draw: random numbers by counters, equal to those of the CPU but for the roundings of a logarithm
 * in the tails of normal numbers. */

/* numerator(x) / denominator(x), eight coefficients each, that of x^0 first. */
__device__ __forceinline__ double zfd_ratio(double x, const double (&top)[8],
                                            const double (&bottom)[8])
{
    double a = top[7], b = bottom[7];
#pragma unroll
    for (int i = 6; i >= 0; i--) a = a * x + top[i], b = b * x + bottom[i];
    return a / b;
}

/* The x below which a standard normal number lies with probability p (cpu/normal.c). */
__device__ __forceinline__ float zfd_normal_quantile(double p)
{
    const double middle[2][8] = ZFI_NORMAL_MIDDLE, near_tail[2][8] = ZFI_NORMAL_NEAR_TAIL,
                 far_tail[2][8] = ZFI_NORMAL_FAR_TAIL;
    const double q = p - 0.5;
    if (fabs(q) <= 0.425) return (float)(q * zfd_ratio(0.180625 - q * q, middle[0], middle[1]));
    const double r = sqrt(-log(q < 0 ? p : 1.0 - p));
    const double x = r <= 5 ? zfd_ratio(r - 1.6, near_tail[0], near_tail[1])
                            : zfd_ratio(r - 5, far_tail[0], far_tail[1]);
    return (float)(q < 0 ? -x : x);
}

template <class T>
__global__ void zfd_draw_kernel(int64_t count, int64_t drawn, zfd_share share, const zf_run *run,
                                uint32_t stream, bool normal, T *out)
{
    const uint64_t start = (uint64_t)run->slot * (uint64_t)drawn;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * blockDim.x) {
        const uint32_t word = zfd_random_word(start + (uint64_t)zfd_number_of(share, i), stream,
                                              (uint32_t)run->step, run->seed);
        out[i] = zfd_narrowed<T>::of(normal ? zfd_normal_quantile((word + 0.5) * 0x1p-32)
                                            : (float)(int32_t)(word >> 8) * 0x1p-24f);
    }
}

static zf_status zfd_cuda_draw(const zf_launch *l)
{
    const int64_t count = zfd_count(&l->out);
    if (!count) return ZF_OK;
    ZFD_FLOATS(l, l->out.dtype, T,
               ZFD_LAUNCH(zfd_draw_kernel<T>, zfd_grid(l, zfd_div_up(count, ZFD_THREADS)),
                          ZFD_THREADS, 0, zfd_stream(l), count, zfd_drawn(l, count),
                          zfd_share_of(l, &l->out.shape), zfd_device_of(l)->run,
                          (uint32_t)ZF_INT(l, draw, stream), ZF_INT(l, draw, form) != 0,
                          static_cast<T *>(l->out.data));)
    return zfd_launched(l);
}

ZFD_KERNEL(draw, zfd_cuda_draw, NULL)
