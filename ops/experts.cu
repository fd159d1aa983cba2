/* expert_rows, dispatch, combine and choice_dots on CUDA (ops/experts.c).
 *
 * expert_rows sorts choices by their expert, stably (rows.cu). With a capacity, it first sorts them
 * by expert, place among the token's choices, priority and token: those beyond the capacity of
 * their expert are dropped.
 *
 *     choices     2 0 2 1 0 2      sorted   0 0 | 1 | 2 2 2      capacity 2, priority
 *                                  choice   1 4 | 3 | 0 2 5      by it: 5 0 2 of expert 2
 *                                  row      0 1 | 2 | 4 - 5      2 is dropped */

typedef struct zfd_experts {
    const void *of; /* experts of choices, i64 where `wide` */
    const void *priority;
    zf_dtype priority_dtype;
    int64_t choices, k, experts, rows, capacity; /* experts: of all parts */
    int64_t each, room; /* experts, and rows, of a block */
    int64_t parts, run; /* of the tokens, and tokens of a sequence */
    bool zigzag, none;  /* none: a choice may have no row */
    int *out, *bounds, *slots, *counts;
    uint32_t *keys[2], *positions[2], *sorts; /* of the sorts */
    uint32_t *kept; /* in sorted order, whether a choice stays; then how many did before */
    int *starts;    /* of each expert, its first sorted choice; then of none */
    int tiles;
    size_t bytes; /* of scratch */
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

/* The expert of choice i, in its part; x.experts: there is none. */
__device__ __forceinline__ int64_t zfd_expert_of(const zfd_experts &x, int64_t i)
{
    const int64_t e = zfd_index_at(x.of, x.wide, i);
    if (e < 0 || e >= x.experts / x.parts) return x.experts;
    if (x.parts < 2) return e;
    int64_t part = i / x.k % x.run / (x.run / x.parts);
    if (x.zigzag) part = 2 * part < x.parts ? 2 * part : 2 * (x.parts - 1 - part) + 1;
    return (e / x.each * x.parts + part) * x.each + e % x.each;
}

/* keys[i] = the expert of choice i. */
static __global__ void zfd_expert_keys_kernel(const zfd_experts x, uint32_t *keys)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < x.choices;
         i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t e = zfd_expert_of(x, i);
        zfd_fault what = {ZFD_FAULT_EXPERT, x.op, x.node, i, 0, x.experts / x.parts, 0, 0, 0};
        what.value = zfd_index_at(x.of, x.wide, i);
        if (e == x.experts && !(x.none && what.value == x.experts / x.parts))
            zfd_report(x.fault, what);
        keys[i] = (uint32_t)e;
    }
}

/* keys[i] ascends where the priority of choice i falls. */
static __global__ void zfd_expert_priority_kernel(const zfd_experts x, uint32_t *keys)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < x.choices;
         i += (int64_t)gridDim.x * blockDim.x) {
        const float f = zfd_float_at(x.priority, x.priority_dtype, i);
        const uint32_t bits = f == 0 ? 0 : __float_as_uint(f);
        keys[i] = bits >> 31 ? bits : ~(bits | 0x80000000u);
    }
}

/* keys[p] = the expert and the place of the choice at p; without positions that is p. */
static __global__ void zfd_expert_places_kernel(const zfd_experts x, uint32_t *keys,
                                                const uint32_t *positions)
{
    for (int64_t p = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; p < x.choices;
         p += (int64_t)gridDim.x * blockDim.x) {
        const int64_t i = positions ? positions[p] : p;
        keys[p] = (uint32_t)(zfd_expert_of(x, i) * x.k + i % x.k);
    }
}

/* starts[e] = the number of sorted keys below e * step. */
static __global__ void zfd_expert_starts_kernel(const zfd_experts x, const uint32_t *keys,
                                                int64_t step)
{
    for (int64_t e = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; e <= x.experts;
         e += (int64_t)gridDim.x * blockDim.x)
        x.starts[e] = zfd_sort_below(keys, (int)x.choices, (uint64_t)(e * step));
}

/* Of choices sorted by expert, place and priority, the first x.capacity of each expert stay. */
static __global__ void zfd_expert_drop_kernel(const zfd_experts x, const uint32_t *keys,
                                              const uint32_t *positions)
{
    for (int64_t p = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; p < x.choices;
         p += (int64_t)gridDim.x * blockDim.x) {
        const int64_t e = keys[p] / x.k;
        x.slots[positions[p]] = e < x.experts && p - x.starts[e] < x.capacity;
    }
}

/* kept[p] = whether the choice at p of those sorted by expert stays. */
static __global__ void zfd_expert_kept_kernel(const zfd_experts x, const uint32_t *positions)
{
    for (int64_t p = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; p < x.choices;
         p += (int64_t)gridDim.x * blockDim.x)
        x.kept[p] = (uint32_t)x.slots[positions[p]];
}

/* The first row of the block of an expert, and of the expert. */
__device__ __forceinline__ int64_t zfd_expert_block(const zfd_experts &x, int64_t e)
{
    return e / x.each * x.room;
}
__device__ __forceinline__ int64_t zfd_expert_first(const zfd_experts &x, int64_t e)
{
    if (x.capacity) return e * x.capacity;
    return zfd_expert_block(x, e) + x.starts[e] - x.starts[e / x.each * x.each];
}

/* The error that the block of expert e has more choices than rows. */
__device__ __forceinline__ zfd_fault zfd_expert_overflow(const zfd_experts &x, int64_t e)
{
    const int64_t first = e / x.each * x.each, end = first + x.each;
    const bool blocks = x.each < x.experts;
    const int64_t named = first / x.each / x.parts * x.each; /* of experts, whatever the part */
    zfd_fault what = {blocks ? ZFD_FAULT_BLOCK : ZFD_FAULT_ROWS, x.op, x.node, named, 0, x.room, 0,
                      0, x.each};
    what.value = x.starts[end] - x.starts[first];
    what.least = (double)x.choices * (double)x.each / (double)x.experts;
    for (int64_t k = first; k < end; k++) {
        const int64_t n = x.starts[k + 1] - x.starts[k];
        if (n > what.ignored) what.element = named + k - first, what.ignored = n;
    }
    return what;
}

/* Counts and bounds of experts, and rows without a choice. */
static __global__ void zfd_expert_bounds_kernel(const zfd_experts x)
{
    const int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x,
                  step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t r = first; r < x.rows; r += step) x.out[r] = (int)x.choices;
    for (int64_t e = first; e < x.experts; e += step) {
        const int64_t count = x.starts[e + 1] - x.starts[e],
                      at = zfd_expert_first(x, e) - zfd_expert_block(x, e),
                      end = at + (x.capacity && count > x.capacity ? x.capacity : count);
        x.counts[e] = (int)count;
        x.bounds[2 * e] = (int)(at < x.room ? at : x.room);
        x.bounds[2 * e + 1] = (int)(end < x.room ? end : x.room);
        if (end > x.room && e % x.each == x.each - 1) zfd_report(x.fault, zfd_expert_overflow(x, e));
    }
}

/* Gives rows to choices that are sorted by expert. */
static __global__ void zfd_expert_place_kernel(const zfd_experts x, const uint32_t *keys,
                                               const uint32_t *positions)
{
    for (int64_t p = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; p < x.choices;
         p += (int64_t)gridDim.x * blockDim.x) {
        const int64_t e = keys[p];
        const uint32_t i = positions[p];
        int64_t row = x.rows;
        if (e < x.experts && !x.capacity) {
            row = zfd_expert_first(x, e) + p - x.starts[e];
            if (row >= zfd_expert_block(x, e) + x.room) row = x.rows; /* reported */
        }
        if (e < x.experts && x.capacity && x.slots[i])
            row = e * x.capacity + x.kept[p] - x.kept[x.starts[e]];
        x.slots[i] = (int)(row < x.rows ? row : x.rows);
        if (row < x.rows) x.out[row] = (int)i;
    }
}

/* Saved value `index`, or so many numbers of scratch. */
static int *zfd_expert_part(const zf_launch *l, zfd_experts *x, int index, int64_t count)
{
    const zf_array *saved = index < 0 ? NULL : zfd_saved_out(l, index);
    char *at = static_cast<char *>(l->scratch);
    if (at) at += x->bytes;
    x->bytes += ((size_t)count * sizeof(int) + 15) / 16 * 16;
    return saved ? static_cast<int *>(saved->data) : reinterpret_cast<int *>(at);
}

static zfd_experts zfd_experts_of(const zf_launch *l)
{
    zfd_experts x;
    memset(&x, 0, sizeof x);
    x.of = l->args[0].data, x.wide = l->args[0].dtype == ZF_I64;
    if (l->arg_count > 1) x.priority = l->args[1].data, x.priority_dtype = l->args[1].dtype;
    x.choices = zfd_count(&l->args[0]), x.k = l->args[0].shape.dims[1];
    x.none = ZF_INT(l, expert_rows, parts) != 0, x.zigzag = ZF_INT(l, expert_rows, zigzag) != 0;
    x.parts = max((int64_t)1, ZF_INT(l, expert_rows, parts));
    x.run = l->args[0].shape.dims[0] / max((int64_t)1, ZF_INT(l, expert_rows, runs));
    x.experts = ZF_INT(l, expert_rows, experts) * x.parts, x.rows = ZF_INT(l, expert_rows, rows);
    x.capacity = ZF_INT(l, expert_rows, capacity);
    const int64_t blocks = max((int64_t)1, ZF_INT(l, expert_rows, blocks)) * x.parts;
    x.each = x.experts / blocks, x.room = x.rows / blocks;
    x.out = static_cast<int *>(l->out.data);
    x.op = l->op, x.node = l->node, x.fault = zfd_device_of(l)->fault;
    x.tiles = (int)zfd_div_up(x.choices, ZFD_SORT_TILE);
    x.bounds = zfd_expert_part(l, &x, 0, 2 * x.experts);
    x.slots = zfd_expert_part(l, &x, 1, x.choices);
    x.counts = zfd_expert_part(l, &x, 2, x.experts);
    x.starts = zfd_expert_part(l, &x, -1, x.experts + 1);
    uint32_t **const parts[] = {&x.keys[0], &x.keys[1], &x.positions[0], &x.positions[1], &x.kept};
    for (uint32_t **part : parts)
        *part = reinterpret_cast<uint32_t *>(zfd_expert_part(l, &x, -1, x.choices));
    x.sorts = reinterpret_cast<uint32_t *>(
        zfd_expert_part(l, &x, -1, (int64_t)x.tiles * ZFD_SORT_DIGITS));
    return x;
}

static size_t zfd_cuda_scratch_expert_rows(const zf_launch *l) { return zfd_experts_of(l).bytes; }

/* Decides which choices stay. */
static void zfd_expert_drop(const zf_launch *l, const zfd_experts *x, zfd_sort pass)
{
    const unsigned flat = zfd_grid(l, zfd_div_up(x->choices, ZFD_THREADS));
    int at = 0;
    pass.keys_in = x->keys[0];
    if (x->priority) {
        ZFD_LAUNCH(zfd_expert_priority_kernel, flat, ZFD_THREADS, 0, zfd_stream(l), *x, x->keys[0]);
        at = zfd_sort_run(l, pass, x->keys, x->positions, UINT32_MAX);
        pass.keys_in = x->keys[at], pass.positions_in = x->positions[at];
    }
    ZFD_LAUNCH(zfd_expert_places_kernel, flat, ZFD_THREADS, 0, zfd_stream(l), *x, x->keys[at],
               pass.positions_in);
    at = zfd_sort_run(l, pass, x->keys, x->positions, (uint64_t)((x->experts + 1) * x->k));
    ZFD_LAUNCH(zfd_expert_starts_kernel, zfd_grid(l, zfd_div_up(x->experts + 1, ZFD_THREADS)),
               ZFD_THREADS, 0, zfd_stream(l), *x, x->keys[at], x->k);
    ZFD_LAUNCH(zfd_expert_drop_kernel, flat, ZFD_THREADS, 0, zfd_stream(l), *x, x->keys[at],
               x->positions[at]);
}

static void zfd_expert_place(const zf_launch *l, const zfd_experts *x)
{
    const unsigned flat = zfd_grid(l, zfd_div_up(x->choices, ZFD_THREADS));
    const int64_t most = x->rows > x->experts ? x->rows : x->experts;
    zfd_sort pass;
    int at = 0;
    memset(&pass, 0, sizeof pass);
    pass.starts = x->sorts, pass.count = (int)x->choices, pass.tiles = x->tiles;
    if (x->capacity && x->choices) zfd_expert_drop(l, x, pass);
    if (x->choices) {
        ZFD_LAUNCH(zfd_expert_keys_kernel, flat, ZFD_THREADS, 0, zfd_stream(l), *x, x->keys[0]);
        pass.keys_in = x->keys[0];
        at = zfd_sort_run(l, pass, x->keys, x->positions, (uint64_t)x->experts);
    }
    ZFD_LAUNCH(zfd_expert_starts_kernel, zfd_grid(l, zfd_div_up(x->experts + 1, ZFD_THREADS)),
               ZFD_THREADS, 0, zfd_stream(l), *x, x->keys[at], (int64_t)1);
    ZFD_LAUNCH(zfd_expert_bounds_kernel, zfd_grid(l, zfd_div_up(most, ZFD_THREADS)), ZFD_THREADS, 0,
               zfd_stream(l), *x);
    if (!x->choices) return;
    if (x->capacity) {
        ZFD_LAUNCH(zfd_expert_kept_kernel, flat, ZFD_THREADS, 0, zfd_stream(l), *x,
                   x->positions[at]);
        ZFD_LAUNCH(zfd_sort_scan_kernel, 1, ZFD_SCAN_THREADS, ZFD_SCAN_THREADS * sizeof(uint32_t),
                   zfd_stream(l), x->kept, x->choices);
    }
    ZFD_LAUNCH(zfd_expert_place_kernel, flat, ZFD_THREADS, 0, zfd_stream(l), *x, x->keys[at],
               x->positions[at]);
}

static zf_status zfd_cuda_expert_rows(const zf_launch *l)
{
    const zfd_experts x = zfd_experts_of(l);
    zfd_expert_place(l, &x);
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
    zfd_fault what = {ZFD_FAULT_INDEX, c.op, c.node, at, i, none + 1, 0, 0, 0};
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
