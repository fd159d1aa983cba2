/* What 1-bit LAMB needs beside 1-bit Adam, on CUDA (ops/variance.c): variance_ratio, maxima.
 *
 * As in sign_compress (sign.cu) a warp has a block of 1024 elements. */

typedef struct zfi_variances {
    float *f;
    const float *m, *x, *v;
    const int64_t *step, *variance_step;
    double beta1, beta2;
    float eps;
} zfi_variances;

/* What all elements share: sqrt(f^) = sqrt(f) of_f, sqrt(v^) = sqrt(v) of_v */
typedef struct zfi_variance_corrections {
    float of_f, of_v;
    bool first; /* f begins as v */
} zfi_variance_corrections;

__global__ void __launch_bounds__(ZFI_THREADS)
    zfi_variance_ratio_kernel(const zfi_sign_parts parts, const zfi_variances a,
                              const zfi_update_job counts, float *out)
{
    ZF_SHARED(zfi_variance_corrections, shared);
    const int lane = (int)threadIdx.x % ZFI_WARP;
    const float beta1 = (float)a.beta1, of_g = (float)(1 / (1 - a.beta1)), beta2 = (float)a.beta2,
                rest2 = (float)(1 - a.beta2);
    int part = 0;
    if (!zfi_has_counted(counts, a.step, 4) || !zfi_has_counted(counts, a.variance_step, 5)) return;
    if (threadIdx.x == 0) {
        shared->of_f = (float)(1 / sqrt(1 - pow(a.beta2, (double)*a.step)));
        shared->of_v = (float)(1 / sqrt(1 - pow(a.beta2, (double)*a.variance_step)));
        shared->first = *a.step == *a.variance_step + 1;
    }
    __syncthreads();
    const zfi_variance_corrections by = *shared;
    for (int64_t b = parts.first + (int64_t)blockIdx.x * ZFI_SUM_WARPS + (int)threadIdx.x / ZFI_WARP;
         b < parts.at[parts.count - 1].blocks; b += (int64_t)gridDim.x * ZFI_SUM_WARPS) {
        const int n = zfi_sign_elements(parts, b, &part);
        zfi_most most = {n ? -INFINITY : 0, INT32_MAX};
        for (int k = lane; k < n; k += ZFI_WARP) {
            const int64_t i = b * ZFI_NORM_BLOCK + k;
            const float v = a.v[i], g = of_g * fmaf(-beta1, a.m[i], a.x[i]),
                        f = fmaf(beta2, by.first ? v : a.f[i], rest2 * g * g);
            zfi_most next = {v == 0 ? 0
                                    : fmaf(sqrtf(v), by.of_v, a.eps) /
                                          fmaf(sqrtf(f), by.of_f, a.eps),
                             k};
            a.f[i] = f;
            most = zfi_larger(most, next);
        }
        most = zfi_warp_most(most);
        if (lane == 0) out[b] = most.x;
    }
}

static zf_status zfi_cuda_variance_ratio(const zf_launch *l)
{
    zfi_sign_walk walk =
        zfi_sign_walk_over(l, &ZF_ATTRIBUTE(l, variance_ratio, at), zfi_count(&l->args[0]));
    zfi_sign_parts parts;
    zfi_variances a = {};
    zfi_update_job counts = {};
    a.f = zfi_floats(&l->args[0]), a.m = zfi_floats(&l->args[1]);
    a.x = zfi_floats(&l->args[2]), a.v = zfi_floats(&l->args[3]);
    a.step = static_cast<const int64_t *>(l->args[4].data);
    a.variance_step = static_cast<const int64_t *>(l->args[5].data);
    a.beta1 = ZF_FLOAT(l, variance_ratio, beta1), a.beta2 = ZF_FLOAT(l, variance_ratio, beta2);
    a.eps = (float)ZF_FLOAT(l, variance_ratio, eps);
    counts.report = zfi_device_of(l)->fault;
    counts.fault.kind = ZFI_FAULT_COUNT, counts.fault.op = l->op, counts.fault.node = l->node;
    while (zfi_next_signs(&walk, &parts))
        ZF_LAUNCH(zfi_variance_ratio_kernel, zfi_sign_grid(l, &parts), ZFI_THREADS,
                  sizeof(zfi_variance_corrections), zfi_stream(l), parts, a, counts,
                  zfi_floats(&l->out));
    return zfi_launched(l);
}

/* ------------------------------------------------------------------------------- maxima */

/* A block has a range. */
template <class T>
__global__ void __launch_bounds__(ZFI_THREADS)
    zfi_maxima_kernel(zfi_ranges ranges, void *out, zf_dtype to, const T *x)
{
    ZF_SHARED(zfi_most, shared);
    const int lane = (int)threadIdx.x % ZFI_WARP, warp = (int)threadIdx.x / ZFI_WARP;
    const int64_t first = ranges.at[blockIdx.x][0], end = ranges.at[blockIdx.x][1];
    zfi_most most = {-INFINITY, INT32_MAX};
    for (int64_t i = first + threadIdx.x; i < end; i += ZFI_THREADS) {
        zfi_most next = {zfi_to_f32(x[i]), (int)(i - first)};
        most = zfi_larger(most, next);
    }
    most = zfi_warp_most(most);
    if (lane == 0) shared[warp] = most;
    __syncthreads();
    most = shared[lane % ZFI_SUM_WARPS];
    most = zfi_warp_most(most);
    if (threadIdx.x == 0) zfi_put_float(out, to, ranges.first + blockIdx.x, most.x);
}

static zf_status zfi_cuda_maxima(const zf_launch *l)
{
    const int64_t *at = static_cast<const int64_t *>(ZF_LIST(l, maxima, blocks).data);
    ZFI_FLOATS(l, l->out.dtype, T,
               zfi_over_ranges<T>(l, at, zfi_maxima_kernel<T>, ZFI_SUM_WARPS * sizeof(zfi_most));)
    return zfi_launched(l);
}

ZFI_KERNEL(variance_ratio, zfi_cuda_variance_ratio, NULL)
ZFI_KERNEL(maxima, zfi_cuda_maxima, NULL)
