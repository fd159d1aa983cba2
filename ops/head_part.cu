/* The head of a language model whose classes ranks share, on CUDA (ops/head_part.c): the tiles of
 * ops/head.cu, of each section by itself.
 *
 *     head_part       z of a tile and section, then a block for each of its rows
 *     head_part_grad  z once more; dz by the row's numbers; dw and db of the section; dx of all
 *                     sections that are here, added in f32 by a balanced tree (base/tree.c)
 *     head_join       a thread for each row, in double; likewise its gradient
 *
 * A section's bits depend on the size of sections alone, so they are the same on any number of
 * ranks. The last one may have fewer classes than the others; rows of w after them are padding.
 * dz in f16 is scaled by the largest number of all sections, which every rank has. */

/* As in ops/head.c. */
enum { ZFD_PART_TOP, ZFD_PART_SUM, ZFD_PART_LABEL, ZFD_PART_BEST, ZFD_PART_SPREAD };

/* Parts [rows, sections, numbers], of one section. */
typedef struct zfd_head_parts {
    float *at;
    int64_t sections, numbers, section;
    __device__ __forceinline__ float *of(int64_t row) const
    {
        return at + (row * sections + section) * numbers;
    }
} zfd_head_parts;

static __global__ void zfd_minus_0(float *out, int64_t count)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * blockDim.x)
        out[i] = -0.0f;
}

/* A block computes the numbers of a row of z[0..rows, 0..ld). Row 0 is row `first` of all. */
template <class T>
static __global__ void zfd_head_part_rows(const float *z, int64_t ld, const T *bias, bool lies,
                                          int64_t rows, int64_t first, zfd_head_labels labels,
                                          float scale, zfd_head_parts to)
{
    ZFD_SHARED(zfd_head_top, warps);
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const float *of = z + row * ld;
        float *out = to.of(first + row);
        const int32_t label = zfd_head_label(labels, first + row);
        const zfd_head_top t = zfd_head_top_of(of, bias, lies, labels.here, scale, warps);
        auto logit = [&](int64_t v) {
            return (of[v] + (bias ? zfd_to_f32(bias[v]) : 0)) * scale;
        };
        if (label < 0) continue;
        if (threadIdx.x == 0) {
            out[ZFD_PART_TOP] = t.most;
            out[ZFD_PART_SUM] = t.most == INFINITY ? NAN : t.sum;
            if (label != ZFD_HEAD_ELSEWHERE) out[ZFD_PART_LABEL] = logit(label);
            out[ZFD_PART_BEST] = (float)(labels.first + t.best);
        }
        if (to.numbers <= ZFD_PART_SPREAD) continue;
        __syncthreads();
        const float base = zfd_head_base(out[ZFD_PART_TOP]);
        const float spread =
            zfd_head_sum(labels.here, reinterpret_cast<float *>(warps), [&](int64_t v) {
                const float d = logit(v) - base, e = expf(d);
                return e > 0 ? e * d : 0;
            });
        if (threadIdx.x == 0) out[ZFD_PART_SPREAD] = spread;
    }
}

/* What dz of a section needs of its rows. */
static __global__ void zfd_head_part_slopes(zfd_head_row *made, int64_t rows, int64_t first,
                                            zfd_head_labels labels, zfd_head_parts slopes,
                                            zfd_head_parts tops)
{
    for (int64_t row = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; row < rows;
         row += (int64_t)gridDim.x * blockDim.x) {
        const float *slope = slopes.of(first + row);
        zfd_head_row r = {zfd_head_base(tops.of(first + row)[ZFD_PART_TOP]), slope[ZFD_PART_SUM],
                          zfd_head_label(labels, first + row), slope[ZFD_PART_LABEL]};
        if (r.over == 0 && r.at == 0) r.label = -1; /* even if z is NaN */
        made[row] = r;
    }
}

/* A launch of head_part or its gradient. */
typedef struct zfd_head_cut {
    zfd_head head;       /* of the first section */
    int64_t count, first; /* sections here, and the number of the first one */
    int64_t size;         /* classes of a section but the last */
    int64_t own, classes; /* classes here, and of all ranks */
    int64_t each;        /* elements of dx of a tile */
    float *sums;         /* open sums of dx of a tile; NULL: there is one section */
    zf_array dw, db;     /* of the section that is taken */
} zfd_head_cut;

static zfd_head_values zfd_parts_values(const zf_launch *l)
{
    const bool grad = l->op == ZF_OP_head_part_grad;
    zfd_head_values v = {};
    v.scale = (float)(1 / ZF_FLOAT(l, head_part, temperature)), v.factor = v.scale;
    v.bias = l->arg_count > (grad ? 5 : 3) ? l->args[grad ? 5 : 3].data : NULL;
    if (!grad) return v;
    v.dx = &l->out;
    v.dw = zfd_saved_out(l, ZFD_LOGP_DW), v.db = zfd_saved_out(l, ZFD_LOGP_DB);
    return v;
}

static zfd_head_cut zfd_head_cut_of(const zf_launch *l)
{
    const zfd_head_values of = zfd_parts_values(l);
    const int64_t rows = l->args[1].shape.dims[0], all = ZF_INT(l, head_part, of);
    zfd_head_cut p;
    int64_t depths = 1;
    memset(&p, 0, sizeof p);
    p.classes = all ? all : rows;
    p.size = zfd_div_up(p.classes, ZF_INT(l, head_part, sections));
    p.own = min(rows, p.classes - ZF_INT(l, head_part, first));
    p.count = zfd_div_up(p.own, p.size), p.first = ZF_INT(l, head_part, first) / p.size;
    p.head = zfd_head_with(l, &of, p.size);
    p.each = p.head.tile * p.head.width;
    for (int64_t left = p.count; left > 1; left = zfd_div_up(left, 2)) depths++;
    if (p.count > 1 && of.dx)
        p.sums = static_cast<float *>(zfd_head_take(&p.head, l, depths * p.each, sizeof(float)));
    p.head.work = zfd_head_take(&p.head, l, 0, 1);
    return p;
}

/* Rows of an array from `first` on. */
static zf_array zfd_rows_from(const zf_array *a, int64_t first, int64_t count)
{
    zf_array rows = *a;
    const int64_t each = zfd_span(&a->shape, 1, a->shape.rank);
    rows.shape.dims[0] = count;
    rows.data = static_cast<char *>(a->data) + (size_t)(first * each) * zf_dtype_size(a->dtype);
    return rows;
}

/* The head of section `section` of those that are here. */
static zfd_head zfd_parts_take(const zf_launch *l, zfd_head_cut *p, int64_t section)
{
    zfd_head h = p->head;
    const int64_t first = section * p->size;
    zfd_head_set_classes(&h, min(p->size, p->own - first));
    h.w = static_cast<const char *>(h.w) + (size_t)(first * h.width) * h.size;
    if (h.of.bias)
        h.of.bias = static_cast<const char *>(h.of.bias) +
                    (size_t)first * zf_dtype_size(l->args[0].dtype);
    if (h.of.dw) p->dw = zfd_rows_from(h.of.dw, first, h.classes), h.of.dw = &p->dw;
    if (h.of.db) p->db = zfd_rows_from(h.of.db, first, h.classes), h.of.db = &p->db;
    return h;
}

/* With the workspace of the first section's products and the last one's. */
static size_t zfd_cuda_scratch_parts(const zf_launch *l)
{
    zfd_head_cut p = zfd_head_cut_of(l);
    const zfd_head first = zfd_parts_take(l, &p, 0), last = zfd_parts_take(l, &p, p.count - 1);
    return max(zfd_head_scratch(l, &first), zfd_head_scratch(l, &last));
}

static zfd_head_parts zfd_parts_at(const zfd_head_cut *p, const zf_array *parts, int64_t section)
{
    const zfd_head_parts at = {static_cast<float *>(parts->data), parts->shape.dims[1],
                               parts->shape.dims[2], p->first + section};
    return at;
}

static zf_status zfd_cuda_head_part(const zf_launch *l)
{
    zfd_head_cut p = zfd_head_cut_of(l);
    zf_status status = ZF_OK;
    if (zfd_count(&l->out))
        ZFD_LAUNCH(zfd_minus_0, zfd_grid(l, zfd_div_up(zfd_count(&l->out), ZFD_THREADS)),
                   ZFD_THREADS, 0, zfd_stream(l), static_cast<float *>(l->out.data),
                   zfd_count(&l->out));
    if (p.head.blocks.bits && p.head.width)
        ZFD_FLOATS(l, l->args[0].dtype, T, { zfd_head_dequantize<T>(l, &p.head); })
    for (int64_t first = 0; first < p.head.rows; first += p.head.tile)
        for (int64_t s = 0; s < p.count && !status; s++) {
            const zfd_head h = zfd_parts_take(l, &p, s);
            const int64_t rows = first + h.tile < h.rows ? h.tile : h.rest;
            status = zfd_head_multiply(l, &h, ZFD_HEAD_LOGITS, first, rows, 1, NULL);
            if (status) return status;
            ZFD_FLOATS(l, l->args[0].dtype, T, {
                const T *bias = static_cast<const T *>(h.of.bias);
                ZFD_LAUNCH(zfd_head_part_rows<T>, zfd_grid(l, rows), zfd_head_threads(&h),
                           ZFD_WARP * sizeof(zfd_head_top), zfd_stream(l), h.z, h.ld, bias,
                           zfd_lies_well(0, 0, bias), rows, first,
                           zfd_head_labels_of(l, &h, (p.first + s) * p.size, p.classes),
                           h.of.scale, zfd_parts_at(&p, &l->out, s));
            })
        }
    return zfd_launched(l);
}

/* The gradients of section `s` from the rows of a tile; dx of these goes to `dx`. */
static zf_status zfd_parts_back(const zf_launch *l, zfd_head_cut *p, int64_t s, int64_t first,
                                int64_t rows, float *dx)
{
    const zfd_head h = zfd_parts_take(l, p, s);
    const bool f16 = l->args[0].dtype == ZF_F16;
    const float alpha = f16 ? 1 / zfd_head_f16 : 1;
    const zfd_head_weights weights = {NULL, false, h.of.factor, f16 ? h.most : NULL};
    zf_status status = zfd_head_multiply(l, &h, ZFD_HEAD_LOGITS, first, rows, 1, NULL);
    if (status) return status;
    ZFD_LAUNCH(zfd_head_part_slopes, zfd_grid(l, zfd_div_up(rows, ZFD_THREADS)), ZFD_THREADS, 0,
               zfd_stream(l), h.of_rows, rows, first,
               zfd_head_labels_of(l, &h, (p->first + s) * p->size, p->classes),
               zfd_parts_at(p, &l->args[3], s), zfd_parts_at(p, &l->args[4], s));
    ZFD_FLOATS(l, l->args[0].dtype, T, { zfd_head_backward<T>(l, &h, first, rows, weights); })
    status = zfd_head_multiply(l, &h, ZFD_HEAD_TO_X, first, rows, alpha, dx);
    if (h.of.dw && !status)
        status = zfd_head_multiply(l, &h, ZFD_HEAD_TO_W, first, rows, alpha, NULL);
    return status;
}

/* A tile with all sections: dx by a tree. */
static zf_status zfd_parts_tile(const zf_launch *l, zfd_head_cut *p, int64_t first, int64_t rows)
{
    float *dx = static_cast<float *>(l->out.data) + first * p->head.width, *sum = p->sums;
    const int64_t each = rows * p->head.width;
    const unsigned grid = zfd_grid(l, zfd_div_up(each, ZFD_THREADS));
    int open = 0;
    if (p->count == 1) return zfd_parts_back(l, p, 0, first, rows, dx);
    for (int64_t s = 0; s < p->count; s++, sum += p->each) {
        const zf_status status = zfd_parts_back(l, p, s, first, rows, sum);
        if (status) return status;
        open++;
        for (int64_t k = s; open > 1 && (k & 1 || s == p->count - 1); k >>= 1, open--) {
            sum -= p->each;
            ZFD_LAUNCH(zfd_add_sums, grid, ZFD_THREADS, 0, zfd_stream(l), sum, sum + p->each, each);
        }
    }
    return zfd_move_bytes(l, dx, p->sums, each * (int64_t)sizeof(float));
}

/* Rows of an array from `first` on become 0; NULL: there is none. */
static void zfd_parts_clear(const zf_launch *l, const zf_array *a, int64_t first)
{
    if (!a || first == a->shape.dims[0]) return;
    const zf_array rest = zfd_rows_from(a, first, a->shape.dims[0] - first);
    (void)cudaMemsetAsync(rest.data, 0, zfd_bytes(&rest), zfd_stream(l));
}

static zf_status zfd_cuda_head_part_grad(const zf_launch *l)
{
    zfd_head_cut p = zfd_head_cut_of(l);
    const zfd_head *h = &p.head;
    const bool f16 = l->args[0].dtype == ZF_F16;
    const zf_array *slopes = &l->args[3];
    zf_status status = ZF_OK;
    zfd_parts_clear(l, h->of.dw, h->rows ? p.own : 0);
    zfd_parts_clear(l, h->of.db, h->rows ? p.own : 0);
    if (h->blocks.bits && h->width)
        ZFD_FLOATS(l, l->args[0].dtype, T, { zfd_head_dequantize<T>(l, h); })
    if (f16)
        ZFD_LAUNCH(zfd_head_largest, 1, 4 * ZFD_THREADS, ZFD_WARP * sizeof(float), zfd_stream(l),
                   h->most, static_cast<const float *>(slopes->data) + ZFD_PART_SUM,
                   2 * h->rows * slopes->shape.dims[1], 2, (int)slopes->shape.dims[2],
                   h->of.factor);
    for (int64_t first = 0; first < h->rows && !status; first += h->tile)
        status = zfd_parts_tile(l, &p, first, first + h->tile < h->rows ? h->tile : h->rest);
    if (status) return status;
    if (f16) zfd_head_weigh_all(l, h);
    return zfd_launched(l);
}

/* ------------------------------------------------------------------------------------ join */

enum { ZFD_JOIN_THREADS = 64 };

typedef struct zfd_join_job {
    const float *parts, *dy;
    int64_t rows, sections, numbers, ignored;
    const void *labels;
    bool wide; /* labels are i64 */
    float *out, *entropy; /* out: parts in the gradient; entropy may be NULL */
    int32_t *best;        /* or NULL */
} zfd_join_job;

/* What the sections of a row are together. */
typedef struct zfd_joined {
    double top, sum, label, spread, best; /* sum and spread: of e^(z - top) */
} zfd_joined;

/* e^(top of a section - top); 1 where both are infinite. */
__device__ __forceinline__ double zfd_join_factor(double top, double most)
{
    return top == most ? 1 : top == -INFINITY ? 0 : exp(top - most);
}

__device__ __forceinline__ bool zfd_join_counts(const zfd_join_job &j, int64_t row)
{
    return zfd_index_at(j.labels, j.wide, row) != j.ignored;
}

/* Open sums of the thread are at sums, sums + 2 ZFD_JOIN_THREADS, ... */
__device__ __forceinline__ zfd_joined zfd_join_row(const zfd_join_job &j, int64_t row, double *sums)
{
    const float *parts = j.parts + row * j.sections * j.numbers;
    const int step = 2 * ZFD_JOIN_THREADS;
    const bool spreads = j.numbers > ZFD_PART_SPREAD;
    zfd_joined of = {-INFINITY, 0, -0.0, 0, 0};
    int depth = 0;
    for (int64_t s = 0; s < j.sections; s++) {
        const double top = parts[s * j.numbers + ZFD_PART_TOP];
        if (!s || top > of.top || (isnan(top) && !isnan(of.top)))
            of.top = top, of.best = parts[s * j.numbers + ZFD_PART_BEST];
        of.label += parts[s * j.numbers + ZFD_PART_LABEL];
    }
    for (int64_t s = 0; s < j.sections; s++) {
        const float *at = parts + s * j.numbers;
        const double e = zfd_join_factor(at[ZFD_PART_TOP], of.top), sum = at[ZFD_PART_SUM];
        double *open = sums + depth++ * step;
        open[0] = e * sum;
        open[1] = 0;
        if (spreads && e != 0)
            open[1] = e * (at[ZFD_PART_SPREAD] + (at[ZFD_PART_TOP] - of.top) * sum);
        for (int64_t k = s; depth > 1 && (k & 1 || s == j.sections - 1); k >>= 1, depth--) {
            double *to = sums + (depth - 2) * step;
            to[0] += to[step], to[1] += to[step + 1];
        }
    }
    of.sum = sums[0], of.spread = sums[1];
    return of;
}

static __global__ void zfd_head_join_kernel(zfd_join_job j)
{
    ZFD_SHARED(double, sums);
    for (int64_t row = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; row < j.rows;
         row += (int64_t)gridDim.x * blockDim.x) {
        const bool counts = zfd_join_counts(j, row);
        const zfd_joined of = zfd_join_row(j, row, sums + 2 * threadIdx.x);
        const double lse = of.top - of.top == 0 ? of.top + log(of.sum) : of.top;
        j.out[row] = counts ? (float)(of.label - lse) : 0;
        if (j.best) j.best[row] = counts ? (int32_t)of.best : -1;
        if (j.entropy) j.entropy[row] = counts ? (float)(log(of.sum) - of.spread / of.sum) : 0;
    }
}

static __global__ void zfd_head_join_grad_kernel(zfd_join_job j)
{
    ZFD_SHARED(double, sums);
    for (int64_t row = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; row < j.rows;
         row += (int64_t)gridDim.x * blockDim.x) {
        const zfd_joined of = zfd_join_row(j, row, sums + 2 * threadIdx.x);
        const double dy = zfd_join_counts(j, row) ? (double)j.dy[row] : 0,
                     by = of.top - of.top == 0 ? 1 / of.sum : 1;
        for (int64_t s = 0; s < j.sections; s++) {
            const int64_t at = (row * j.sections + s) * j.numbers;
            const double e = zfd_join_factor(j.parts[at + ZFD_PART_TOP], of.top);
            for (int64_t k = 0; k < j.numbers; k++) j.out[at + k] = 0;
            if (dy != 0) j.out[at + ZFD_PART_SUM] = (float)(-dy * e * by);
            j.out[at + ZFD_PART_LABEL] = (float)dy;
        }
    }
}

static zf_status zfd_cuda_head_join(const zf_launch *l)
{
    const bool grad = l->op == ZF_OP_head_join_grad;
    const zf_array *parts = &l->args[grad], *labels = &l->args[grad + 1];
    size_t open = 1; /* sums that are open at most */
    zfd_join_job j;
    memset(&j, 0, sizeof j);
    j.parts = static_cast<const float *>(parts->data);
    j.rows = parts->shape.dims[0], j.sections = parts->shape.dims[1];
    j.numbers = parts->shape.dims[2], j.ignored = ZF_INT(l, head_join, ignore);
    j.labels = labels->data, j.wide = labels->dtype == ZF_I64;
    j.out = static_cast<float *>(l->out.data);
    if (grad) j.dy = static_cast<const float *>(l->args[0].data);
    else {
        j.entropy = static_cast<float *>(zfd_head_data(zfd_saved_out(l, ZFD_LOGP_ENTROPY)));
        j.best = static_cast<int32_t *>(zfd_head_data(zfd_saved_out(l, ZFD_LOGP_BEST)));
    }
    if (!j.rows) return ZF_OK;
    for (int64_t left = j.sections; left > 1; left = zfd_div_up(left, 2)) open++;
    open *= 2 * ZFD_JOIN_THREADS * sizeof(double);
    auto kernel = grad ? zfd_head_join_grad_kernel : zfd_head_join_kernel;
    ZFD_LAUNCH(kernel, zfd_grid(l, zfd_div_up(j.rows, ZFD_JOIN_THREADS)), ZFD_JOIN_THREADS, open,
               zfd_stream(l), j);
    return zfd_launched(l);
}

ZFD_KERNEL(head_part, zfd_cuda_head_part, zfd_cuda_scratch_parts)
ZFD_KERNEL(head_part_grad, zfd_cuda_head_part_grad, zfd_cuda_scratch_parts)
ZFD_KERNEL(head_join, zfd_cuda_head_join, NULL)
ZFD_KERNEL(head_join_grad, zfd_cuda_head_join, NULL)
