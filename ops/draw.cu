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

/* The x below which a standard normal number lies with probability p (Wichura, Algorithm AS 241,
 * Applied Statistics 37, 1988). */
__device__ __forceinline__ float zfd_normal_quantile(double p)
{
    const double middle[2][8] = {
        {3.3871328727963666080, 133.14166789178437745, 1971.5909503065514427, 13731.693765509461125,
         45921.953931549871457, 67265.770927008700853, 33430.575583588128105,
         2509.0809287301226727},
        {1.0, 42.313330701600911252, 687.1870074920579083, 5394.1960214247511077,
         21213.794301586595867, 39307.89580009271061, 28729.085735721942674, 5226.495278852545925}};
    const double near_tail[2][8] = {
        {1.42343711074968357734, 4.6303378461565452959, 5.7694972214606914055,
         3.64784832476320460504, 1.27045825245236838258, 0.24178072517745061177,
         0.0227238449892691845833, 7.7454501427834140764e-4},
        {1.0, 2.05319162663775882187, 1.6763848301838038494, 0.68976733498510000455,
         0.14810397642748007459, 0.0151986665636164571966, 5.475938084995344946e-4,
         1.05075007164441684324e-9}};
    const double far_tail[2][8] = {
        {6.6579046435011037772, 5.4637849111641143699, 1.7848265399172913358,
         0.29656057182850489123, 0.026532189526576123093, 0.0012426609473880784386,
         2.71155556874348757815e-5, 2.01033439929228813265e-7},
        {1.0, 0.59983220655588793769, 0.13692988092273580531, 0.0148753612908506148525,
         7.868691311456132591e-4, 1.8463183175100546818e-5, 1.4215117583164458887e-7,
         2.04426310338993978564e-15}};
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
