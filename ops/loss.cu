/* Losses over rows of logits (ops/loss.c) on CUDA. logsumexp reads a row once, by a team as in
 * ops/norm.cu: each thread has a maximum and the sum of exp(x - maximum); then these are joined. */

typedef struct zfd_logsumexp_job {
    zfd_row_set set;
    const void *x;
    void *y;
} zfd_logsumexp_job;

template <class T>
__global__ void __launch_bounds__(ZFD_TEAM_MOST) zfd_logsumexp_kernel(const zfd_logsumexp_job j)
{
    ZFD_SHARED(float, shared);
    const zfd_team<T, 0> t(j.set);
    const int V = zfd_team<T, 0>::V;
    float most = -INFINITY, sum = 0;
    t.each([&](int, int64_t i) {
        float x[V];
        t.get(x, static_cast<const T *>(j.x), i, -INFINITY);
        zfd_online(most, sum, x);
    });
    zfd_online_team(most, sum, shared);
    if (threadIdx.x == 0 && t.row < j.set.rows)
        static_cast<T *>(j.y)[t.row] = zfd_from_f32<T>(zfd_shift(most) + logf(sum));
}

static zf_status zfd_cuda_logsumexp(const zf_launch *l)
{
    const zf_array *x = &l->args[0];
    if (!zfd_count(&l->out)) return ZF_OK;
    zfd_teams t = zfd_teams_of(x, zfd_lies_well(0, 1, x->data), 2);
    zfd_logsumexp_job j = {t.set, x->data, l->out.data};
    ZFD_FLOATS(l, x->dtype, T,
               ZFD_LAUNCH(zfd_logsumexp_kernel<T>, t.grid, t.block, t.shared, zfd_stream(l), j);)
    return zfd_launched(l);
}

/* ----------------------------------------------------------------------- cross-entropy */

/* Integers of i32 or i64. */
typedef struct zfd_integers {
    const void *data;
    bool narrow; /* i32 */
} zfd_integers;

static zfd_integers zfd_integers_of(const zf_array *a)
{
    zfd_integers n = {a->data, a->dtype == ZF_I32};
    return n;
}

__device__ __forceinline__ int64_t zfd_integer_at(const zfd_integers &a, int64_t i)
{
    return a.narrow ? static_cast<const int32_t *>(a.data)[i]
                    : static_cast<const int64_t *>(a.data)[i];
}

/* y: the result, [rows] of cross_entropy, [rows,n] of its gradient, for which dy is not NULL. */
typedef struct zfd_cross_entropy_job {
    zfd_row_set set;
    const void *dy, *x, *lse;
    void *y;
    zfd_integers labels;
    int64_t ignored;
    zfd_fault fault; /* the error to report, without row and label */
    zfd_fault *report;
} zfd_cross_entropy_job;

/* The label of a row. -1: it is ignored, or is no class, which thread `reporter` reports. */
__device__ __forceinline__ int64_t zfd_label(const zfd_cross_entropy_job &j, int64_t row,
                                             bool reporter)
{
    int64_t label = zfd_integer_at(j.labels, row);
    if (label == j.ignored) return -1;
    if (label >= 0 && label < j.set.n) return label;
    if (reporter) {
        zfd_fault fault = j.fault;
        fault.element = row, fault.value = label;
        zfd_report(j.report, fault);
    }
    return -1;
}

template <class T> __global__ void zfd_cross_entropy_kernel(const zfd_cross_entropy_job j)
{
    int64_t row = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, label;
    float y = 0;
    if (row >= j.set.rows) return;
    label = zfd_label(j, row, true);
    if (label >= 0)
        y = zfd_to_f32(static_cast<const T *>(j.lse)[row]) -
            zfd_to_f32(static_cast<const T *>(j.x)[row * j.set.n + label]);
    static_cast<T *>(j.y)[row] = zfd_from_f32<T>(y);
}

template <class T>
__global__ void __launch_bounds__(ZFD_TEAM_MOST)
    zfd_cross_entropy_grad_kernel(const zfd_cross_entropy_job j)
{
    const zfd_team<T, 0> t(j.set);
    const int V = zfd_team<T, 0>::V;
    if (t.row >= j.set.rows) return;
    int64_t label = zfd_label(j, t.row, threadIdx.x == 0);
    float lse = zfd_to_f32(static_cast<const T *>(j.lse)[t.row]),
          dy = zfd_to_f32(static_cast<const T *>(j.dy)[t.row]);
    t.each([&](int, int64_t i) {
        float x[V] = {};
        if (label >= 0) {
            t.get(x, static_cast<const T *>(j.x), i);
#pragma unroll
            for (int v = 0; v < V; v++) x[v] = dy * (expf(x[v] - lse) - (i + v == label ? 1 : 0));
        }
        t.put(static_cast<T *>(j.y), i, x);
    });
}

/* x: the number of the operand that is the logits. */
static zf_status zfd_cross_entropy_launch(const zf_launch *l, const zf_array *x)
{
    const zf_array *labels = &l->args[l->arg_count - 1];
    bool grad = l->op == ZF_OP_cross_entropy_grad;
    if (!zfd_count(labels)) return ZF_OK;
    zfd_teams t = zfd_teams_of(x, zfd_lies_well(0, 1, x->data, l->out.data), 0);
    zfd_cross_entropy_job j = {};
    j.set = t.set;
    j.dy = l->args[0].data, j.x = x->data, j.lse = x[1].data, j.y = l->out.data;
    j.labels = zfd_integers_of(labels), j.ignored = ZF_INT(l, cross_entropy, ignore);
    j.fault.kind = ZFD_FAULT_LABEL, j.fault.op = l->op, j.fault.node = l->node;
    j.fault.limit = t.set.n, j.fault.ignored = j.ignored;
    j.report = zfd_device_of(l)->fault;
    ZFD_FLOATS(l, x->dtype, T, {
        if (grad)
            ZFD_LAUNCH(zfd_cross_entropy_grad_kernel<T>, t.grid, t.block, 0, zfd_stream(l), j);
        else
            ZFD_LAUNCH(zfd_cross_entropy_kernel<T>,
                       dim3((unsigned)zfd_div_up(t.set.rows, ZFD_WARP * 2)), dim3(ZFD_WARP * 2), 0,
                       zfd_stream(l), j);
    })
    return zfd_launched(l);
}

static zf_status zfd_cuda_cross_entropy(const zf_launch *l)
{
    return zfd_cross_entropy_launch(l, &l->args[0]);
}

static zf_status zfd_cuda_cross_entropy_grad(const zf_launch *l)
{
    return zfd_cross_entropy_launch(l, &l->args[1]);
}

ZFD_KERNEL(logsumexp, zfd_cuda_logsumexp, NULL)
ZFD_KERNEL(cross_entropy, zfd_cuda_cross_entropy, NULL)
ZFD_KERNEL(cross_entropy_grad, zfd_cuda_cross_entropy_grad, NULL)
