/* What 1-bit LAMB needs besides 1-bit Adam, on CUDA (ops/variance.c): variance_ratio, maxima.
 *
 * As in sign_compress (sign.cu) a warp has a block of 1024 elements. */

typedef struct zfd_variances {
    float *f;
    const float *m, *x, *v;
    const int64_t *step, *variance_step;
    double beta1, beta2;
    float eps;
} zfd_variances;

/* What all elements share: sqrt(f^) = sqrt(f) of_f, sqrt(v^) = sqrt(v) of_v */
typedef struct zfd_variance_corrections {
    float of_f, of_v;
    bool first; /* f begins as v */
} zfd_variance_corrections;

__global__ void __launch_bounds__(ZFD_THREADS)
    zfd_variance_ratio_kernel(const zfd_sign_parts parts, const zfd_variances a,
                              const zfd_update_job counts, float *out)
{
    ZFD_SHARED(zfd_variance_corrections, shared);
    const int lane = (int)threadIdx.x % ZFD_WARP;
    const float beta1 = (float)a.beta1, of_g = (float)(1 / (1 - a.beta1)), beta2 = (float)a.beta2,
                rest2 = (float)(1 - a.beta2);
    int part = 0;
    if (!zfd_has_counted(counts, a.step, 4) || !zfd_has_counted(counts, a.variance_step, 5)) return;
    if (threadIdx.x == 0) {
        shared->of_f = (float)(1 / sqrt(1 - pow(a.beta2, (double)*a.step)));
        shared->of_v = (float)(1 / sqrt(1 - pow(a.beta2, (double)*a.variance_step)));
        shared->first = *a.step == *a.variance_step + 1;
    }
    __syncthreads();
    const zfd_variance_corrections by = *shared;
    for (int64_t b = parts.first + (int64_t)blockIdx.x * ZFD_SUM_WARPS + (int)threadIdx.x / ZFD_WARP;
         b < parts.at[parts.count - 1].blocks; b += (int64_t)gridDim.x * ZFD_SUM_WARPS) {
        const int n = zfd_sign_elements(parts, b, &part);
        zfd_most most = {n ? -INFINITY : 0, INT32_MAX};
        for (int k = lane; k < n; k += ZFD_WARP) {
            const int64_t i = b * ZFD_NORM_BLOCK + k;
            const float v = a.v[i], g = of_g * fmaf(-beta1, a.m[i], a.x[i]),
                        f = fmaf(beta2, by.first ? v : a.f[i], rest2 * g * g);
            zfd_most next = {v == 0 ? 0
                                    : fmaf(sqrtf(v), by.of_v, a.eps) /
                                          fmaf(sqrtf(f), by.of_f, a.eps),
                             k};
            a.f[i] = f;
            most = zfd_larger(most, next);
        }
        most = zfd_warp_most(most);
        if (lane == 0) out[b] = most.x;
    }
}

static zf_status zfd_cuda_variance_ratio(const zf_launch *l)
{
    zfd_sign_walk walk =
        zfd_sign_walk_over(l, &ZF_ATTRIBUTE(l, variance_ratio, at), zfd_count(&l->args[0]));
    zfd_sign_parts parts;
    zfd_variances a = {};
    zfd_update_job counts = {};
    a.f = zfd_floats(&l->args[0]), a.m = zfd_floats(&l->args[1]);
    a.x = zfd_floats(&l->args[2]), a.v = zfd_floats(&l->args[3]);
    a.step = static_cast<const int64_t *>(l->args[4].data);
    a.variance_step = static_cast<const int64_t *>(l->args[5].data);
    a.beta1 = ZF_FLOAT(l, variance_ratio, beta1), a.beta2 = ZF_FLOAT(l, variance_ratio, beta2);
    a.eps = (float)ZF_FLOAT(l, variance_ratio, eps);
    counts.report = zfd_device_of(l)->fault;
    counts.fault.kind = ZFD_FAULT_COUNT, counts.fault.op = l->op, counts.fault.node = l->node;
    while (zfd_next_signs(&walk, &parts))
        ZFD_LAUNCH(zfd_variance_ratio_kernel, zfd_sign_grid(l, &parts), ZFD_THREADS,
                   sizeof(zfd_variance_corrections), zfd_stream(l), parts, a, counts,
                   zfd_floats(&l->out));
    return zfd_launched(l);
}

/* ------------------------------------------------------------------------------- maxima */

/* A block has a range. */
template <class T>
__global__ void __launch_bounds__(ZFD_THREADS)
    zfd_maxima_kernel(zfd_ranges ranges, void *out, zf_dtype to, const T *x)
{
    ZFD_SHARED(zfd_most, shared);
    const int lane = (int)threadIdx.x % ZFD_WARP, warp = (int)threadIdx.x / ZFD_WARP;
    const int64_t first = ranges.at[blockIdx.x][0], end = ranges.at[blockIdx.x][1];
    zfd_most most = {-INFINITY, INT32_MAX};
    for (int64_t i = first + threadIdx.x; i < end; i += ZFD_THREADS) {
        zfd_most next = {zfd_to_f32(x[i]), (int)(i - first)};
        most = zfd_larger(most, next);
    }
    most = zfd_warp_most(most);
    if (lane == 0) shared[warp] = most;
    __syncthreads();
    most = shared[lane % ZFD_SUM_WARPS];
    most = zfd_warp_most(most);
    if (threadIdx.x == 0) zfd_put_float(out, to, ranges.first + blockIdx.x, most.x);
}

static zf_status zfd_cuda_maxima(const zf_launch *l)
{
    const int64_t *at = static_cast<const int64_t *>(ZF_LIST(l, maxima, blocks).data);
    ZFD_FLOATS(l, l->out.dtype, T,
               zfd_over_ranges<T>(l, at, zfd_maxima_kernel<T>, ZFD_SUM_WARPS * sizeof(zfd_most));)
    return zfd_launched(l);
}

ZFD_KERNEL(variance_ratio, zfd_cuda_variance_ratio, NULL)
ZFD_KERNEL(maxima, zfd_cuda_maxima, NULL)
