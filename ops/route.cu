/* route on CUDA (ops/route.c). A warp has a token: scores first, then the groups, then the experts
 * one after the other. Scores are in global memory, where each thread writes some and, after the
 * others, reads all. */

typedef struct zfd_route {
    int64_t rows, n, k, groups, kept;
    bool sigmoid, normalize;
    float scale;
    const float *bias; /* or NULL */
    float *scores, *out;
    int *experts; /* or NULL */
    int32_t op, node;
    zfd_fault *fault;
} zfd_route;

template <class T>
__device__ __forceinline__ void zfd_route_score(const zfd_route &r, float *s, const T *x)
{
    const int lane = (int)threadIdx.x;
    float most = -INFINITY, sum = 0;
    for (int64_t i = lane; i < r.n && r.sigmoid; i += ZFD_WARP)
        s[i] = 1 / (1 + expf(-zfd_to_f32(x[i])));
    if (r.sigmoid) return;
    for (int64_t i = lane; i < r.n; i += ZFD_WARP) most = fmaxf(most, zfd_to_f32(x[i]));
#pragma unroll
    for (int step = ZFD_WARP / 2; step; step /= 2) most = fmaxf(most, zfd_shuffle_xor(most, step));
    if (most == -INFINITY) most = 0;
    for (int64_t i = lane; i < r.n; i += ZFD_WARP) {
        s[i] = expf(zfd_to_f32(x[i]) - most);
        sum += s[i];
    }
    sum = zfd_warp_sum(sum);
    sum = sum == 0 ? 0 : 1 / sum;
    for (int64_t i = lane; i < r.n; i += ZFD_WARP) s[i] *= sum;
}

__device__ __forceinline__ float zfd_route_value(const zfd_route &r, const float *s, int64_t e)
{
    return r.bias ? s[e] + r.bias[e] : s[e];
}

/* The sum of the two largest of a group; lane g % 32 asks for group g. */
__device__ __forceinline__ float zfd_route_group(const zfd_route &r, const float *s, int64_t group)
{
    const int64_t n = r.n / r.groups;
    zfd_most best[2] = {{-INFINITY, INT32_MAX}, {-INFINITY, INT32_MAX}};
    for (int64_t e = group * n; e < (group + 1) * n; e++) {
        const zfd_most next = {zfd_route_value(r, s, e), (int)e};
        if (zfd_larger(next, best[0]).at == next.at) best[1] = best[0], best[0] = next;
        else best[1] = zfd_larger(best[1], next);
    }
    return best[0].x + best[1].x;
}

/* The groups that are chosen from, as a mask. */
__device__ __forceinline__ uint64_t zfd_route_groups(const zfd_route &r, const float *s)
{
    const int lane = (int)threadIdx.x;
    float sums[2] = {-INFINITY, -INFINITY};
    uint64_t kept = 0;
    if (!r.groups) return ~(uint64_t)0;
    for (int i = 0; i < 2; i++)
        if (lane + i * ZFD_WARP < r.groups) sums[i] = zfd_route_group(r, s, lane + i * ZFD_WARP);
    for (int64_t k = 0; k < r.kept; k++) {
        zfd_most most = {-INFINITY, INT32_MAX};
        for (int i = 0; i < 2; i++) {
            const int group = lane + i * ZFD_WARP;
            const zfd_most next = {sums[i], group};
            if (group < r.groups && !(kept >> group & 1)) most = zfd_larger(most, next);
        }
        kept |= (uint64_t)1 << zfd_warp_most(most).at;
    }
    return kept;
}

template <class T> __global__ void zfd_route_kernel(const zfd_route r, const T *x)
{
    const int lane = (int)threadIdx.x;
    for (int64_t row = blockIdx.x; row < r.rows; row += gridDim.x) {
        float *s = r.scores + row * r.n, sum = 0, mine[2] = {0, 0};
        zfd_most before = {0, -1};
        uint64_t groups;
        zfd_route_score(r, s, x + row * r.n);
        __syncthreads();
        groups = zfd_route_groups(r, s);
        for (int64_t j = 0; j < r.k; j++) {
            zfd_most most = {-INFINITY, INT32_MAX};
            for (int64_t e = lane; e < r.n; e += ZFD_WARP) {
                const zfd_most next = {zfd_route_value(r, s, e), (int)e};
                if (r.groups && !(groups >> e / (r.n / r.groups) & 1)) continue;
                if (j && (next.at == before.at || zfd_larger(before, next).at != before.at))
                    continue;
                most = zfd_larger(most, next);
            }
            before = zfd_warp_most(most);
            if (j % ZFD_WARP == lane) mine[j / ZFD_WARP] = s[before.at];
            sum += s[before.at];
            if (lane == 0 && r.experts) r.experts[row * r.k + j] = before.at;
        }
        sum = r.normalize ? r.scale / (sum + 1e-20f) : r.scale;
        for (int64_t j = lane; j < r.k; j += ZFD_WARP) {
            const float weight = mine[j / ZFD_WARP] * sum;
            zfd_fault what = {ZFD_FAULT_ROUTE, r.op, r.node, row, 0, 0, 0, 0, 0};
            r.out[row * r.k + j] = weight;
            if (weight != weight) zfd_report(r.fault, what);
        }
        __syncthreads();
    }
}

static size_t zfd_cuda_scratch_route(const zf_launch *l)
{
    return (size_t)zfd_count(&l->args[0]) * sizeof(float);
}

static zf_status zfd_cuda_route(const zf_launch *l)
{
    const zf_array *experts = zfd_saved_out(l, 0), *scores = zfd_saved_out(l, 1);
    const double scale = ZF_FLOAT(l, route, scale);
    zfd_route r;
    memset(&r, 0, sizeof r);
    r.rows = l->args[0].shape.dims[0], r.n = l->args[0].shape.dims[1], r.k = ZF_INT(l, route, k);
    r.groups = ZF_INT(l, route, groups), r.kept = ZF_INT(l, route, kept);
    r.sigmoid = ZF_INT(l, route, form) != 0, r.normalize = ZF_INT(l, route, normalize) != 0;
    r.scale = scale > 0 ? (float)scale : 1;
    if (l->arg_count > 1) r.bias = static_cast<const float *>(l->args[1].data);
    r.scores = static_cast<float *>(scores ? scores->data : l->scratch);
    r.out = static_cast<float *>(l->out.data);
    if (experts) r.experts = static_cast<int *>(experts->data);
    r.op = l->op, r.node = l->node, r.fault = zfd_device_of(l)->fault;
    if (!r.rows) return ZF_OK;
    ZFD_FLOATS(l, l->args[0].dtype, T,
               ZFD_LAUNCH(zfd_route_kernel<T>, zfd_grid(l, r.rows), ZFD_WARP, 0, zfd_stream(l), r,
                          static_cast<const T *>(l->args[0].data));)
    return zfd_launched(l);
}

ZFD_KERNEL(route, zfd_cuda_route, zfd_cuda_scratch_route)
