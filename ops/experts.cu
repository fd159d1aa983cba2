/* expert_rows, dispatch, combine and choice_dots on CUDA (ops/experts.c).
 *
 * In expert_rows a block has an expert: it counts its choices, then gives them rows, ascending. With
 * a capacity, a thread for each choice counts in between those of the same expert that stay before
 * it. */

typedef struct zfd_experts {
    const void *of; /* experts of choices, i64 where `wide` */
    const void *priority;
    zf_dtype priority_dtype;
    int64_t choices, k, experts, rows, capacity;
    int *out, *bounds, *slots, *counts;
    bool wide;
    int32_t op, node;
    zfd_fault *fault;
} zfd_experts;

/* Element i of floats of any dtype. */
__device__ __forceinline__ float zfd_float_at(const void *x, zf_dtype dtype, int64_t i)
{
    if (dtype == ZF_F32) return static_cast<const float *>(x)[i];
    if (dtype == ZF_BF16) return zfd_to_f32(static_cast<const zfd_bf16 *>(x)[i]);
    return zfd_to_f32(static_cast<const zfd_f16 *>(x)[i]);
}

/* The number of threads before this one that are `in`; *all: of all threads. */
__device__ __forceinline__ int zfd_block_before(bool in, int *counts, int *all)
{
    const int warp = (int)threadIdx.x / ZFD_WARP, lane = (int)threadIdx.x % ZFD_WARP;
    const uint32_t mask = zfd_ballot(in);
    int before = __popc(mask & ((1u << lane) - 1));
    *all = 0;
    if (!lane) counts[warp] = __popc(mask);
    __syncthreads();
    for (int w = 0; w < ZFD_THREADS / ZFD_WARP; w++) {
        if (w < warp) before += counts[w];
        *all += counts[w];
    }
    __syncthreads();
    return before;
}

static __global__ void zfd_expert_count_kernel(const zfd_experts x)
{
    ZFD_SHARED(int, counts);
    for (int64_t e = blockIdx.x; e < x.experts; e += gridDim.x) {
        int sum = 0;
        for (int64_t first = 0; first < x.choices; first += ZFD_THREADS) {
            const int64_t i = first + threadIdx.x;
            const int64_t of = i < x.choices ? zfd_index_at(x.of, x.wide, i) : -1;
            int all;
            zfd_block_before(of == e, counts, &all);
            sum += all;
            if (e == 0 && i < x.choices && (of < 0 || of >= x.experts)) {
                zfd_fault what = {ZFD_FAULT_EXPERT, x.op, x.node, i, of, x.experts, 0, 0};
                zfd_report(x.fault, what);
            }
        }
        if (!threadIdx.x) x.counts[e] = sum;
    }
}

/* Choice a stays before b of the same expert. */
__device__ __forceinline__ bool zfd_choice_before(const zfd_experts &x, int64_t a, int64_t b)
{
    if (a % x.k != b % x.k) return a % x.k < b % x.k;
    if (x.priority) {
        const float of_a = zfd_float_at(x.priority, x.priority_dtype, a),
                    of_b = zfd_float_at(x.priority, x.priority_dtype, b);
        if (of_a > of_b || of_a < of_b) return of_a > of_b;
    }
    return a < b;
}

static __global__ void zfd_expert_drop_kernel(const zfd_experts x)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < x.choices;
         i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t e = zfd_index_at(x.of, x.wide, i);
        int64_t before = 0;
        const bool drops = e >= 0 && e < x.experts && x.capacity && x.counts[e] > x.capacity;
        for (int64_t j = 0; j < x.choices && drops; j++)
            before += j != i && zfd_index_at(x.of, x.wide, j) == e && zfd_choice_before(x, j, i);
        x.slots[i] = e < 0 || e >= x.experts || (drops && before >= x.capacity) ? (int)x.rows : 0;
    }
    for (int64_t r = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; r < x.rows;
         r += (int64_t)gridDim.x * blockDim.x)
        x.out[r] = (int)x.choices;
}

static __global__ void zfd_expert_place_kernel(const zfd_experts x)
{
    ZFD_SHARED(int, counts);
    for (int64_t e = blockIdx.x; e < x.experts; e += gridDim.x) {
        int64_t at = x.capacity ? e * x.capacity : 0;
        for (int64_t k = 0; k < e && !x.capacity; k++) at += x.counts[k];
        if (!threadIdx.x) x.bounds[2 * e] = (int)(at < x.rows ? at : x.rows);
        for (int64_t first = 0; first < x.choices; first += ZFD_THREADS) {
            const int64_t i = first + threadIdx.x;
            const bool in = i < x.choices && zfd_index_at(x.of, x.wide, i) == e && !x.slots[i];
            int all;
            const int64_t row = at + zfd_block_before(in, counts, &all);
            if (in) x.slots[i] = (int)(row < x.rows ? row : x.rows);
            if (in && row < x.rows) x.out[row] = (int)i;
            at += all;
        }
        if (threadIdx.x) continue;
        x.bounds[2 * e + 1] = (int)(at < x.rows ? at : x.rows);
        if (at > x.rows && e == x.experts - 1) {
            zfd_fault what = {ZFD_FAULT_ROWS, x.op, x.node, 0, x.choices, x.rows, 0, 0};
            for (int64_t k = 1; k < x.experts; k++)
                if (x.counts[k] > x.counts[what.element]) what.element = k;
            what.ignored = x.counts[what.element];
            zfd_report(x.fault, what);
        }
    }
}

static size_t zfd_cuda_scratch_expert_rows(const zf_launch *l)
{
    return ((size_t)zfd_count(&l->args[0]) + 3 * (size_t)ZF_INT(l, expert_rows, experts)) *
           sizeof(int);
}

/* Saved value `index`, or so many numbers of scratch. */
static int *zfd_expert_part(const zf_launch *l, int index, int64_t count, int **free)
{
    const zf_array *saved = zfd_saved_out(l, index);
    int *at = saved ? static_cast<int *>(saved->data) : *free;
    if (!saved) *free += count;
    return at;
}

static zf_status zfd_cuda_expert_rows(const zf_launch *l)
{
    int *free = static_cast<int *>(l->scratch);
    unsigned grid, flat;
    zfd_experts x;
    memset(&x, 0, sizeof x);
    x.of = l->args[0].data, x.wide = l->args[0].dtype == ZF_I64;
    if (l->arg_count > 1) x.priority = l->args[1].data, x.priority_dtype = l->args[1].dtype;
    x.choices = zfd_count(&l->args[0]), x.k = l->args[0].shape.dims[1];
    x.experts = ZF_INT(l, expert_rows, experts), x.rows = ZF_INT(l, expert_rows, rows);
    x.capacity = ZF_INT(l, expert_rows, capacity);
    x.out = static_cast<int *>(l->out.data);
    x.bounds = zfd_expert_part(l, 0, 2 * x.experts, &free);
    x.slots = zfd_expert_part(l, 1, x.choices, &free);
    x.counts = zfd_expert_part(l, 2, x.experts, &free);
    x.op = l->op, x.node = l->node, x.fault = zfd_device_of(l)->fault;
    grid = zfd_grid(l, x.experts);
    flat = zfd_grid(l, zfd_div_up((x.choices > x.rows ? x.choices : x.rows) + 1, ZFD_THREADS));
    ZFD_LAUNCH(zfd_expert_count_kernel, grid, ZFD_THREADS, ZFD_THREADS, zfd_stream(l), x);
    ZFD_LAUNCH(zfd_expert_drop_kernel, flat, ZFD_THREADS, 0, zfd_stream(l), x);
    ZFD_LAUNCH(zfd_expert_place_kernel, grid, ZFD_THREADS, ZFD_THREADS, zfd_stream(l), x);
    return zfd_launched(l);
}

/* ---------------------------------------------------------------- dispatch and combine */

typedef struct zfd_choices {
    const int *rows, *slots;
    const void *weights; /* or NULL */
    zf_dtype dtype;      /* theirs */
    int64_t count, tokens, k, width;
    int32_t op, node;
    zfd_fault *fault;
} zfd_choices;

static zfd_choices zfd_choices_of(const zf_launch *l, int at)
{
    zfd_choices c;
    memset(&c, 0, sizeof c);
    c.rows = static_cast<const int *>(l->args[at].data);
    c.slots = static_cast<const int *>(l->args[at + 1].data);
    if (l->arg_count > at + 2) c.weights = l->args[at + 2].data, c.dtype = l->args[at + 2].dtype;
    c.count = l->args[at].shape.dims[0];
    c.tokens = l->args[at + 1].shape.dims[0], c.k = l->args[at + 1].shape.dims[1];
    c.width = l->args[0].shape.dims[1];
    c.op = l->op, c.node = l->node, c.fault = zfd_device_of(l)->fault;
    return c;
}

/* i, where it is one of 0 to `none`; else it is reported, and is `none`. */
__device__ __forceinline__ int64_t zfd_choice_checked(const zfd_choices &c, int64_t i, int64_t at,
                                                      int64_t none)
{
    zfd_fault what = {ZFD_FAULT_INDEX, c.op, c.node, at, i, none + 1, 0, 0};
    if (i >= 0 && i <= none) return i;
    zfd_report(c.fault, what);
    return none;
}

/* A thread has N elements of a row. */
template <class T, int N>
__global__ void zfd_dispatch_kernel(const zfd_choices c, zfd_divisor pieces, T *out, const T *x)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < c.count * pieces.by;
         i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t row = zfd_divide(i, pieces), at = (i - row * pieces.by) * N;
        const int64_t choice = zfd_choice_checked(c, c.rows[row], row, c.tokens * c.k);
        const bool there = choice < c.tokens * c.k;
        float y[N] = {0};
        if (there) zfd_fetch(y, x + choice / c.k * c.width + at, true);
        if (there && c.weights) {
            const float weight = zfd_float_at(c.weights, c.dtype, choice);
#pragma unroll
            for (int n = 0; n < N; n++) y[n] *= weight;
        }
        zfd_put_pack(out + row * c.width + at, y);
    }
}

/* A thread adds N elements of a token. */
template <class T, int N>
__global__ void zfd_combine_kernel(const zfd_choices c, zfd_divisor pieces, T *out, const T *x)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < c.tokens * pieces.by;
         i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t token = zfd_divide(i, pieces), at = (i - token * pieces.by) * N;
        const int *slots = c.slots + token * c.k;
        float sum[N] = {0}, y[N];
        for (int64_t before = -1, row;; before = row) {
            int64_t best = -1;
            row = c.count;
            for (int64_t j = 0; j < c.k; j++) {
                const int64_t slot = zfd_choice_checked(c, slots[j], token * c.k + j, c.count);
                if (slot > before && slot < row) row = slot, best = j;
            }
            if (best < 0) break;
            const float weight =
                c.weights ? zfd_float_at(c.weights, c.dtype, token * c.k + best) : 1;
            zfd_fetch(y, x + row * c.width + at, true);
#pragma unroll
            for (int n = 0; n < N; n++) sum[n] += weight * y[n];
        }
        zfd_put_pack(out + token * c.width + at, sum);
    }
}

/* A warp has a choice. */
template <class T>
__global__ void zfd_choice_dots_kernel(const zfd_choices c, float *out, const T *x, const T *z)
{
    const int lane = (int)threadIdx.x % ZFD_WARP, warps = (int)blockDim.x / ZFD_WARP;
    for (int64_t i = (int64_t)blockIdx.x * warps + (int)threadIdx.x / ZFD_WARP; i < c.tokens * c.k;
         i += (int64_t)gridDim.x * warps) {
        const int64_t row = zfd_choice_checked(c, c.slots[i], i, c.count);
        float sum = 0;
        for (int64_t n = lane; n < c.width && row < c.count; n += ZFD_WARP)
            sum += zfd_to_f32(x[row * c.width + n]) * zfd_to_f32(z[i / c.k * c.width + n]);
        sum = zfd_warp_sum(sum);
        if (!lane) out[i] = sum;
    }
}

template <class T> static void zfd_choices_launch(const zf_launch *l, const zfd_choices *c)
{
    const int n = zfd_wide<T>::count;
    T *out = static_cast<T *>(l->out.data);
    const T *x = static_cast<const T *>(l->args[0].data);
    const bool well = zfd_lies_well(c->width, sizeof(T), out, x), out_of = l->op == ZF_OP_combine;
    const int64_t pieces = c->width / (well ? n : 1), rows = out_of ? c->tokens : c->count;
    const unsigned grid = zfd_grid(l, zfd_div_up(rows * pieces, ZFD_THREADS));
    auto kernel = out_of ? zfd_combine_kernel<T, 1> : zfd_dispatch_kernel<T, 1>;
    if (well) kernel = out_of ? zfd_combine_kernel<T, n> : zfd_dispatch_kernel<T, n>;
    ZFD_LAUNCH(kernel, grid, ZFD_THREADS, 0, zfd_stream(l), *c, zfd_divisor_of(pieces, rows * pieces),
               out, x);
}

static zf_status zfd_cuda_by_choices(const zf_launch *l)
{
    const zfd_choices c = zfd_choices_of(l, 1);
    if (!zfd_count(&l->out)) return ZF_OK;
    ZFD_FLOATS(l, l->out.dtype, T, zfd_choices_launch<T>(l, &c);)
    return zfd_launched(l);
}

static zf_status zfd_cuda_choice_dots(const zf_launch *l)
{
    const zfd_choices c = zfd_choices_of(l, 2);
    if (!zfd_count(&l->out)) return ZF_OK;
    ZFD_FLOATS(l, l->args[0].dtype, T,
               ZFD_LAUNCH(zfd_choice_dots_kernel<T>,
                          zfd_grid(l, zfd_div_up(c.tokens * c.k, ZFD_THREADS / ZFD_WARP)),
                          ZFD_THREADS, 0, zfd_stream(l), c, static_cast<float *>(l->out.data),
                          static_cast<const T *>(l->args[0].data),
                          static_cast<const T *>(l->args[1].data));)
    return zfd_launched(l);
}

ZFD_KERNEL(expert_rows, zfd_cuda_expert_rows, zfd_cuda_scratch_expert_rows)
ZFD_KERNEL(dispatch, zfd_cuda_by_choices, NULL)
ZFD_KERNEL(combine, zfd_cuda_by_choices, NULL)
ZFD_KERNEL(choice_dots, zfd_cuda_choice_dots, NULL)
