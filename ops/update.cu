/* Optimizers (ops/update.c) on CUDA, in one pass over the weights. The first thread of each block
 * computes, in double, the numbers that all elements share, from lr, the step's number and the
 * gradients' scale in device memory. So a captured launch reads those of its own step.
 *
 * Ranges of blocks, and the gaps between them, are parameters of the kernel, at most
 * ZFD_RANGES_MOST at a time, so that no host memory is read later. They are split into tiles:
 *
 *     range 0         range 1     range 2
 *     | 0 | 1 | 2 |   | 3 |       | 4 | 5 |       tiles of ZFD_TILE elements, shared by blocks
 */

enum { ZFD_TILE = 1024, ZFD_TILE_PACK = 4, ZFD_RANGES_MOST = 88 };

/* Elements [first, first + count) are parameter `index`; -1: a gap. */
typedef struct zfd_update_range {
    int64_t first, count;
    int64_t tiles; /* up to the end of this range */
    float decay;
    int32_t index;
} zfd_update_range;

typedef struct zfd_update_ranges {
    int count;
    zfd_update_range at[ZFD_RANGES_MOST];
} zfd_update_ranges;

/* One float, of any dtype. */
typedef struct zfd_number {
    const void *data;
    zf_dtype dtype;
} zfd_number;

static zfd_number zfd_number_of(const zf_array *a)
{
    zfd_number n = {a->data, a->dtype};
    return n;
}

__device__ __forceinline__ double zfd_number_at(const zfd_number &a, int64_t i)
{
    switch (a.dtype) {
    case ZF_F64: return static_cast<const double *>(a.data)[i];
    case ZF_F32: return static_cast<const float *>(a.data)[i];
    case ZF_BF16: return zfd_to_f32(static_cast<const zfd_bf16 *>(a.data)[i]);
    default: return zfd_to_f32(static_cast<const zfd_f16 *>(a.data)[i]);
    }
}

/* The operands; each kernel uses those that it has. */
typedef struct zfd_update_job {
    void *p;
    const void *g;        /* of p's dtype; lamb_apply: u, f32 */
    float *m, *v;         /* sgd: m is the buffer or NULL */
    float *master;        /* NULL: p itself */
    float *u;             /* of lamb_update; NULL: adamw */
    zfd_number lr, scale; /* scale.data NULL: 1 */
    zfd_number norm_p, norm_u;
    const int64_t *step, *variance_step; /* the second of adam_apply */
    double beta1, beta2;
    float eps; /* sgd: momentum */
    float least, most;
    bool nesterov, wide, uncorrected;
    bool rates; /* lr has a number for each range */
    zfd_fault fault; /* the error to report where the step's number is below 1 */
    zfd_fault *report;
} zfd_update_job;

/* A pack of a tile: elements [at, at + count) of the range. */
typedef struct zfd_update_pack {
    int64_t at;
    int count;
    bool whole;
} zfd_update_pack;

/* Calls update(range, pack) for the packs of the calling thread. */
template <class F>
__device__ __forceinline__ void zfd_each_update(const zfd_update_ranges &r, bool wide, F update)
{
    int k = 0;
    for (int64_t tile = blockIdx.x; tile < r.at[r.count - 1].tiles; tile += gridDim.x) {
        zfd_update_pack p;
        while (tile >= r.at[k].tiles) k++;
        int64_t in = (tile - (k ? r.at[k - 1].tiles : 0)) * ZFD_TILE + threadIdx.x * ZFD_TILE_PACK,
                rest = r.at[k].count - in;
        p.at = r.at[k].first + in;
        p.count = rest < ZFD_TILE_PACK ? (int)rest : ZFD_TILE_PACK;
        p.whole = wide && rest >= ZFD_TILE_PACK && p.at % ZFD_TILE_PACK == 0;
        if (rest > 0) update(r.at[k], p);
    }
}

template <class A>
__device__ __forceinline__ void zfd_update_get(float (&x)[ZFD_TILE_PACK], const A *a,
                                               const zfd_update_pack &p)
{
    if (p.whole) {
        zfd_load(x, a + p.at);
    } else {
#pragma unroll
        for (int i = 0; i < ZFD_TILE_PACK; i++)
            x[i] = i < p.count ? zfd_to_f32(a[p.at + i]) : 0;
    }
}

template <class A>
__device__ __forceinline__ void zfd_update_put(A *a, const zfd_update_pack &p,
                                               const float (&x)[ZFD_TILE_PACK])
{
    if (p.whole) {
        zfd_store(a + p.at, x);
    } else {
#pragma unroll
        for (int i = 0; i < ZFD_TILE_PACK; i++)
            if (i < p.count) a[p.at + i] = zfd_from_f32<A>(x[i]);
    }
}

/* The weights to update: p, or its master weights, of which p is then the rounding. */
template <class T>
__device__ __forceinline__ void zfd_get_weights(float (&x)[ZFD_TILE_PACK], const zfd_update_job &j,
                                                const zfd_update_pack &p)
{
    if (j.master) zfd_update_get(x, j.master, p);
    else zfd_update_get(x, static_cast<const T *>(j.p), p);
}

template <class T>
__device__ __forceinline__ void zfd_put_weights(const zfd_update_job &j, const zfd_update_pack &p,
                                                const float (&x)[ZFD_TILE_PACK])
{
    if (j.master) zfd_update_put(j.master, p, x);
    zfd_update_put(static_cast<T *>(j.p), p, x);
}

/* --------------------------------------------------------------------------------- sgd */

typedef struct zfd_sgd {
    float scale, lr;
    bool skips;
} zfd_sgd;

__device__ __forceinline__ zfd_sgd zfd_sgd_of(const zfd_update_job &j)
{
    const double c = j.scale.data ? zfd_number_at(j.scale, 0) : 1;
    const zfd_sgd a = {(float)c, (float)zfd_number_at(j.lr, 0), c < 0};
    return a;
}

template <class T>
__device__ __forceinline__ void zfd_sgd_pack(const zfd_update_job &j, const zfd_sgd &a, float decay,
                                             const zfd_update_pack &pack)
{
    const float momentum = j.eps;
    float p[ZFD_TILE_PACK], g[ZFD_TILE_PACK], buf[ZFD_TILE_PACK];
    zfd_get_weights<T>(p, j, pack);
    zfd_update_get(g, static_cast<const T *>(j.g), pack);
    if (j.m) zfd_update_get(buf, j.m, pack);
#pragma unroll
    for (int i = 0; i < ZFD_TILE_PACK; i++) {
        float d = fmaf(decay, p[i], a.scale * g[i]);
        if (j.m) {
            buf[i] = fmaf(momentum, buf[i], d);
            d = j.nesterov ? fmaf(momentum, buf[i], d) : buf[i];
        }
        p[i] = fmaf(-a.lr, d, p[i]);
    }
    if (j.m) zfd_update_put(j.m, pack, buf);
    zfd_put_weights<T>(j, pack, p);
}

template <class T>
__global__ void __launch_bounds__(ZFD_THREADS)
    zfd_sgd_kernel(const zfd_update_job j, const zfd_update_ranges r)
{
    const zfd_sgd a = zfd_sgd_of(j);
    if (a.skips) return;
    zfd_each_update(r, j.wide, [&](const zfd_update_range &range, const zfd_update_pack &pack) {
        if (range.index >= 0) zfd_sgd_pack<T>(j, a, range.decay, pack);
    });
}

/* -------------------------------------------------------------------- adamw, lamb_update */

typedef struct zfd_adam {
    double lr;
    float scale, of_root, rate; /* rate: lr, or 1, times the correction of m^ */
    int state;                  /* 0: the step is skipped; -1: it is an error */
} zfd_adam;

__device__ __forceinline__ void zfd_adam_of(const zfd_update_job &j, zfd_adam *a)
{
    double c = j.scale.data ? zfd_number_at(j.scale, 0) : 1;
    long long t = *j.step;
    a->state = c < 0 ? 0 : t < 1 ? -1 : 1;
    if (a->state < 0) {
        zfd_fault fault = j.fault;
        fault.value = t;
        zfd_report(j.report, fault);
    }
    a->lr = j.u ? 1 : zfd_number_at(j.lr, 0);
    a->scale = (float)c;
    a->of_root = j.uncorrected ? 1 : (float)(1 / sqrt(1 - pow(j.beta2, (double)t)));
    a->rate = (float)(j.uncorrected ? a->lr : a->lr / (1 - pow(j.beta1, (double)t)));
}

template <class T>
__device__ __forceinline__ void zfd_adam_pack(const zfd_update_job &j, const zfd_adam &a,
                                              float decay, const zfd_update_pack &pack)
{
    const float beta1 = (float)j.beta1, rest1 = (float)(1 - j.beta1), beta2 = (float)j.beta2,
                rest2 = (float)(1 - j.beta2);
    const float keep = j.u ? decay : (float)(1 - a.lr * (double)decay);
    float p[ZFD_TILE_PACK], g[ZFD_TILE_PACK], m[ZFD_TILE_PACK], v[ZFD_TILE_PACK];
    zfd_get_weights<T>(p, j, pack);
    zfd_update_get(g, static_cast<const T *>(j.g), pack);
    zfd_update_get(m, j.m, pack);
    zfd_update_get(v, j.v, pack);
#pragma unroll
    for (int i = 0; i < ZFD_TILE_PACK; i++) {
        float d = a.scale * g[i], by;
        m[i] = fmaf(beta1, m[i], rest1 * d);
        v[i] = fmaf(beta2, v[i], rest2 * d * d);
        by = a.rate * (m[i] / fmaf(sqrtf(v[i]), a.of_root, j.eps));
        p[i] = fmaf(keep, p[i], j.u ? by : -by);
    }
    zfd_update_put(j.m, pack, m);
    zfd_update_put(j.v, pack, v);
    if (j.u) zfd_update_put(j.u, pack, p);
    else zfd_put_weights<T>(j, pack, p);
}

template <class T>
__global__ void __launch_bounds__(ZFD_THREADS)
    zfd_adam_kernel(const zfd_update_job j, const zfd_update_ranges r)
{
    ZFD_SHARED(zfd_adam, shared);
    if (threadIdx.x == 0) zfd_adam_of(j, shared);
    __syncthreads();
    const zfd_adam a = *shared;
    if (a.state < 0 || (a.state == 0 && !j.u)) return;
    zfd_each_update(r, j.wide, [&](const zfd_update_range &range, const zfd_update_pack &pack) {
        const float none[ZFD_TILE_PACK] = {};
        if (range.index >= 0 && a.state) zfd_adam_pack<T>(j, a, range.decay, pack);
        else if (j.u) zfd_update_put(j.u, pack, none);
    });
}

/* -------------------------------------------------------------------------------- lazy updates */

/* Rows of a table, of which a rank may have a shard. */
typedef struct zfd_lazy {
    const void *rows; /* their numbers, i64 if `wide`, else i32; -1: none */
    bool wide;
    int64_t count, width, packs; /* packs: of a row */
    int64_t first, elements;     /* the table begins at element `first` of so many here */
    float decay;
} zfd_lazy;

static zfd_lazy zfd_lazy_of(const zf_launch *l, int at, double decay)
{
    const zf_attribute *world = l->attributes + at, *blocks = world + 1, *decays = blocks + 1;
    const zf_array *rows = &l->args[l->arg_count - 1], *g = &l->args[1];
    zfd_lazy z = {};
    z.rows = rows->data, z.wide = rows->dtype == ZF_I64, z.count = zfd_count(rows);
    z.width = zfd_span(&g->shape, 1, g->shape.rank);
    z.packs = zfd_div_up(z.width, ZFD_TILE_PACK);
    z.elements = zfd_count(&l->args[0]);
    if (blocks->list.count)
        z.first = static_cast<const int64_t *>(blocks->list.data)[0] * ZFD_TILE;
    if (world->i > 1) z.first -= zfd_shard_here(l->run, world->i) * z.elements;
    z.decay = (float)(decays->list.count ? static_cast<const double *>(decays->list.data)[0]
                                         : decay);
    return z;
}

/* The job for pack n of the rows, and *pack; false: this rank has none of it. */
template <class T>
__device__ __forceinline__ bool zfd_lazy_pack(const zfd_lazy &z, int64_t n, zfd_update_job *j,
                                              zfd_update_pack *pack)
{
    const int64_t k = n / z.packs, c = (n - k * z.packs) * ZFD_TILE_PACK,
                  row = zfd_index_at(z.rows, z.wide, k), at = z.first + row * z.width + c;
    int64_t count = z.width - c;
    if (count > ZFD_TILE_PACK) count = ZFD_TILE_PACK;
    if (row < 0 || at + count <= 0 || at >= z.elements) return false;
    const int64_t skip = at < 0 ? -at : 0,
                  end = at + count > z.elements ? z.elements - at : count;
    j->p = static_cast<T *>(j->p) + at + skip;
    j->g = static_cast<const T *>(j->g) + k * z.width + c + skip;
    if (j->m) j->m += at + skip;
    if (j->v) j->v += at + skip;
    if (j->master) j->master += at + skip;
    pack->at = 0, pack->count = (int)(end - skip), pack->whole = false;
    return true;
}

/* Calls work(job, pack) for the packs of the rows that this rank has. */
template <class T, class Work>
__device__ __forceinline__ void zfd_each_lazy(const zfd_lazy &z, const zfd_update_job &j, Work work)
{
    for (int64_t n = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; n < z.count * z.packs;
         n += (int64_t)gridDim.x * blockDim.x) {
        zfd_update_job own = j;
        zfd_update_pack pack;
        if (zfd_lazy_pack<T>(z, n, &own, &pack)) work(own, pack);
    }
}

template <class T>
__global__ void __launch_bounds__(ZFD_THREADS)
    zfd_adam_lazy_kernel(const zfd_update_job j, const zfd_lazy z)
{
    ZFD_SHARED(zfd_adam, shared);
    if (threadIdx.x == 0) zfd_adam_of(j, shared);
    __syncthreads();
    const zfd_adam a = *shared;
    if (a.state <= 0) return;
    zfd_each_lazy<T>(z, j, [&](const zfd_update_job &own, const zfd_update_pack &pack) {
        zfd_adam_pack<T>(own, a, z.decay, pack);
    });
}

template <class T>
__global__ void __launch_bounds__(ZFD_THREADS)
    zfd_sgd_lazy_kernel(const zfd_update_job j, const zfd_lazy z)
{
    const zfd_sgd a = zfd_sgd_of(j);
    if (a.skips) return;
    zfd_each_lazy<T>(z, j, [&](const zfd_update_job &own, const zfd_update_pack &pack) {
        zfd_sgd_pack<T>(own, a, z.decay, pack);
    });
}

/* Whole tensors with the same update. Tiles are numbered through all of them. */
typedef struct zfd_updated {
    void *p;
    const void *g;
    float *m, *v, *master;
    int64_t count, tiles; /* count: elements; tiles: up to the end of this tensor */
    float decay;
} zfd_updated;

enum { ZFD_UPDATED = ZFD_SMALL_TILES ? 3 : 56 };

typedef struct zfd_updated_list {
    int count;
    zfd_updated at[ZFD_UPDATED];
} zfd_updated_list;

/* The update of all tensors of a list. The job has what they share. */
template <class T>
__global__ void __launch_bounds__(ZFD_THREADS)
    zfd_adam_together_kernel(const zfd_update_job j, const zfd_updated_list list)
{
    ZFD_SHARED(zfd_adam, shared);
    if (threadIdx.x == 0) zfd_adam_of(j, shared);
    __syncthreads();
    const zfd_adam a = *shared;
    int k = 0;
    if (a.state <= 0) return;
    for (int64_t tile = blockIdx.x; tile < list.at[list.count - 1].tiles; tile += gridDim.x) {
        zfd_update_job own = j;
        zfd_update_pack pack;
        while (tile >= list.at[k].tiles) k++;
        const zfd_updated &of = list.at[k];
        own.p = of.p, own.g = of.g, own.m = of.m, own.v = of.v, own.master = of.master;
        pack.at = (tile - (k ? list.at[k - 1].tiles : 0)) * ZFD_TILE + threadIdx.x * ZFD_TILE_PACK;
        const int64_t rest = of.count - pack.at;
        pack.count = rest < ZFD_TILE_PACK ? (int)rest : ZFD_TILE_PACK;
        pack.whole = j.wide && rest >= ZFD_TILE_PACK;
        if (rest > 0) zfd_adam_pack<T>(own, a, of.decay, pack);
    }
}

/* -------------------------------------------------------------------------- lamb_apply */

template <class T>
__global__ void __launch_bounds__(ZFD_THREADS)
    zfd_lamb_apply_kernel(const zfd_update_job j, const zfd_update_ranges r)
{
    float lr = (float)zfd_number_at(j.lr, 0), rate = 0;
    int32_t of = -1; /* the parameter to which `rate` belongs */
    zfd_each_update(r, j.wide, [&](const zfd_update_range &range, const zfd_update_pack &pack) {
        float p[ZFD_TILE_PACK], u[ZFD_TILE_PACK];
        if (range.index < 0) return;
        zfd_get_weights<T>(p, j, pack);
        zfd_update_get(u, static_cast<const float *>(j.g), pack);
        if (range.index != of) {
            float of_p = (float)zfd_number_at(j.norm_p, range.index),
                  of_u = (float)zfd_number_at(j.norm_u, range.index), ratio = of_p / of_u;
            if (ratio < j.least) ratio = j.least; /* NaN stays NaN */
            if (ratio > j.most) ratio = j.most;
            if (of_p == 0 || of_u == 0) ratio = 1;
            rate = lr * ratio, of = range.index;
        }
#pragma unroll
        for (int i = 0; i < ZFD_TILE_PACK; i++) p[i] = fmaf(-rate, u[i], p[i]);
        zfd_put_weights<T>(j, pack, p);
    });
}

/* ---------------------------------------------------------------------------- launchers */

/* Goes through the ranges that the attributes from `at` on list (world, blocks and, except for
 * lamb_apply, decays). `decay`: that of a whole tensor. */
typedef struct zfd_update_list {
    const zf_launch *l;
    int at;
    double decay;
    int64_t next, end; /* next: the next range; end: after the last element done */
} zfd_update_list;

/* The next ranges; false after the last. */
static bool zfd_next_ranges(zfd_update_list *s, zfd_update_ranges *r)
{
    const zf_launch *l = s->l;
    const zf_attribute *world = l->attributes + s->at, *blocks = world + 1, *decays = blocks + 1;
    const int64_t *ends = static_cast<const int64_t *>(blocks->list.data);
    const double *decay = NULL;
    int64_t count = zfd_count(&l->args[0]), ranges = blocks->list.count / 2,
            size = count, base = 0, tiles = 0;
    if (ranges && l->op != ZF_OP_lamb_apply)
        decay = static_cast<const double *>(decays->list.data);
    if ((world - 1)->list.count) { /* the operands are a piece */
        const int64_t *piece = static_cast<const int64_t *>((world - 1)->list.data);
        base = piece[0], size = piece[1];
    }
    if (world->i > 1) base += zfd_shard_here(l->run, world->i) * size;
    r->count = 0;
    while (s->end < count && r->count + 2 <= ZFD_RANGES_MOST) {
        zfd_update_range own = {0, count, 0, (float)s->decay, 0};
        if (ranges && s->next < ranges) {
            int64_t k = s->next++, first = ends[2 * k] * ZFD_TILE - base,
                    last = ends[2 * k + 1] * ZFD_TILE - base;
            own.first = first > s->end ? first : s->end;
            own.count = (last < count ? last : count) - own.first;
            own.decay = decay ? (float)decay[k] : 0;
            own.index = (int32_t)k;
            if (own.count <= 0) continue; /* empty, or of another rank */
        } else if (ranges) {
            own.first = count, own.count = 0; /* after the last one */
        }
        if (own.first > s->end) {
            zfd_update_range *gap = &r->at[r->count++];
            gap->first = s->end, gap->count = own.first - s->end;
            gap->decay = 0, gap->index = -1;
            gap->tiles = tiles += zfd_div_up(gap->count, ZFD_TILE);
        }
        s->end = own.first + own.count;
        if (!own.count) break;
        own.tiles = tiles += zfd_div_up(own.count, ZFD_TILE);
        r->at[r->count++] = own;
    }
    return r->count > 0;
}

/* A job with the first two operands and, where attribute `scaled` (-1: there is none) is true, the
 * scale, which is the last operand. *end: the number of operands before the scale. */
static zfd_update_job zfd_update_job_of(const zf_launch *l, int scaled, int32_t *end)
{
    zfd_update_job j = {};
    *end = l->arg_count;
    if (scaled >= 0 && (l->attributes + scaled)->i)
        j.scale = zfd_number_of(&l->args[--*end]);
    j.p = l->args[0].data, j.g = l->args[1].data;
    j.report = zfd_device_of(l)->fault;
    return j;
}

static float *zfd_floats(const zf_array *a) { return static_cast<float *>(a->data); }

/* Runs the kernel over all ranges; `at`, `decay`: as in zfd_update_list. */
static zf_status zfd_update_launch(const zf_launch *l,
                                   void (*kernel)(const zfd_update_job, const zfd_update_ranges),
                                   int at, double decay, zfd_update_job *j)
{
    zfd_update_list list = {l, at, decay, 0, 0};
    zfd_update_ranges r;
    j->wide = zfd_lies_well(0, 1, j->p, j->g, j->m, j->v) && zfd_lies_well(0, 1, j->master, j->u);
    while (zfd_next_ranges(&list, &r))
        ZFD_LAUNCH(kernel, dim3(zfd_grid(l, r.at[r.count - 1].tiles)),
                   dim3(ZFD_TILE / ZFD_TILE_PACK), sizeof(zfd_adam), zfd_stream(l), *j, r);
    return zfd_launched(l);
}

/* Runs the kernel of a lazy update; `at`, `decay`: as in zfd_update_list. */
static zf_status zfd_lazy_launch(const zf_launch *l,
                                 void (*kernel)(const zfd_update_job, const zfd_lazy), int at,
                                 double decay, const zfd_update_job *j)
{
    const zfd_lazy z = zfd_lazy_of(l, at, decay);
    if (!z.count || !z.packs) return ZF_OK;
    ZFD_LAUNCH(kernel, zfd_grid(l, zfd_div_up(z.count * z.packs, ZFD_THREADS)), ZFD_THREADS,
               sizeof(zfd_adam), zfd_stream(l), *j, z);
    return zfd_launched(l);
}

/* The launch of a lazy update without its rows, which are the last operand. */
static zf_launch zfd_without_rows(const zf_launch *l, bool lazy)
{
    zf_launch own = *l;
    own.arg_count -= lazy;
    return own;
}

static zf_status zfd_cuda_sgd(const zf_launch *l)
{
    const bool lazy = ZF_INT(l, sgd, lazy) != 0;
    const zf_launch dense = zfd_without_rows(l, lazy);
    int32_t end;
    zfd_update_job j = zfd_update_job_of(&dense, ZF_AT_sgd_scaled, &end);
    j.lr = zfd_number_of(&l->args[2]);
    int32_t master =
        ZF_FLOAT(l, sgd, momentum) != 0 ? 4 : 3; /* after the buffer, if there is one */
    if (master > 3) j.m = zfd_floats(&l->args[3]);
    if (end > master) j.master = zfd_floats(&l->args[master]);
    j.eps = (float)ZF_FLOAT(l, sgd, momentum), j.nesterov = ZF_INT(l, sgd, nesterov) != 0;
    if (lazy)
        ZFD_FLOATS(l, l->args[0].dtype, T,
                   return zfd_lazy_launch(l, zfd_sgd_lazy_kernel<T>, ZF_AT_sgd_world,
                                          ZF_FLOAT(l, sgd, weight_decay), &j);)
    ZFD_FLOATS(l, l->args[0].dtype, T,
               return zfd_update_launch(l, zfd_sgd_kernel<T>, ZF_AT_sgd_world,
                                        ZF_FLOAT(l, sgd, weight_decay), &j);)
}

static zfd_update_job zfd_adam_job_of(const zf_launch *l)
{
    int32_t end, step = l->op == ZF_OP_adamw ? 5 : 4;
    zfd_update_job j = zfd_update_job_of(l, ZF_AT_adamw_scaled, &end);
    j.m = zfd_floats(&l->args[2]), j.v = zfd_floats(&l->args[3]);
    if (l->op == ZF_OP_adamw) j.lr = zfd_number_of(&l->args[4]);
    else j.u = zfd_floats(&l->out);
    j.step = static_cast<const int64_t *>(l->args[step].data);
    if (end > step + 1) j.master = zfd_floats(&l->args[step + 1]);
    j.beta1 = ZF_FLOAT(l, adamw, beta1), j.beta2 = ZF_FLOAT(l, adamw, beta2);
    j.eps = (float)ZF_FLOAT(l, adamw, eps), j.uncorrected = ZF_INT(l, adamw, uncorrected) != 0;
    j.fault.kind = ZFD_FAULT_COUNT, j.fault.op = l->op, j.fault.node = l->node;
    j.fault.element = step;
    return j;
}

static zf_status zfd_cuda_adamw(const zf_launch *l)
{
    const bool lazy = l->op == ZF_OP_adamw && ZF_INT(l, adamw, lazy);
    const zf_launch dense = zfd_without_rows(l, lazy);
    zfd_update_job j = zfd_adam_job_of(&dense);
    if (lazy)
        ZFD_FLOATS(l, l->args[0].dtype, T,
                   return zfd_lazy_launch(l, zfd_adam_lazy_kernel<T>, ZF_AT_adamw_world,
                                          ZF_FLOAT(l, adamw, weight_decay), &j);)
    ZFD_FLOATS(l, l->args[0].dtype, T,
               return zfd_update_launch(l, zfd_adam_kernel<T>, ZF_AT_adamw_world,
                                        ZF_FLOAT(l, adamw, weight_decay), &j);)
}

/* Launches a and b do the same update, for different whole tensors. */
static bool zfd_updates_alike(const zf_launch *a, const zf_launch *b)
{
    bool alike = a->args[0].dtype == b->args[0].dtype && a->arg_count == b->arg_count &&
                 !ZF_LIST(a, adamw, blocks).count && !ZF_LIST(b, adamw, blocks).count &&
                 !ZF_INT(a, adamw, lazy) && !ZF_INT(b, adamw, lazy) &&
                 ZF_FLOAT(a, adamw, beta1) == ZF_FLOAT(b, adamw, beta1) &&
                 ZF_FLOAT(a, adamw, beta2) == ZF_FLOAT(b, adamw, beta2) &&
                 ZF_FLOAT(a, adamw, eps) == ZF_FLOAT(b, adamw, eps) &&
                 ZF_INT(a, adamw, scaled) == ZF_INT(b, adamw, scaled) &&
                 ZF_INT(a, adamw, uncorrected) == ZF_INT(b, adamw, uncorrected);
    for (int32_t k = 4; k < a->arg_count && alike; k++) /* not the master weights */
        if (k != 6 || (a->arg_count == 7 && ZF_INT(a, adamw, scaled)))
            alike = a->args[k].data == b->args[k].data;
    return alike && (a == b || a->args[0].data != b->args[0].data);
}

static zf_status zfd_cuda_together_adamw(const zf_launch *l, int count, int *taken)
{
    zfd_update_job j = zfd_adam_job_of(l);
    zfd_updated_list list;
    int64_t tiles = 0;
    list.count = 0, j.wide = true;
    if (ZF_INT(l, adamw, lazy)) return *taken = 1, zfd_cuda_adamw(l);
    for (*taken = 0; *taken < count && list.count < ZFD_UPDATED; ++*taken) {
        const zf_launch *next = &l[*taken];
        zfd_updated *of = &list.at[list.count];
        bool alike = zfd_updates_alike(l, next);
        for (int k = 0; k < list.count && alike; k++) alike = list.at[k].p != next->args[0].data;
        if (!alike) break;
        if (!zfd_count(&next->args[0])) continue;
        const zfd_update_job own = zfd_adam_job_of(next);
        of->p = own.p, of->g = own.g, of->m = own.m, of->v = own.v, of->master = own.master;
        of->count = zfd_count(&next->args[0]);
        of->tiles = tiles += zfd_div_up(of->count, ZFD_TILE);
        of->decay = (float)ZF_FLOAT(next, adamw, weight_decay);
        j.wide &= zfd_lies_well(0, 1, of->p, of->g, of->m, of->v) &&
                  zfd_lies_well(0, 1, of->master);
        list.count++;
    }
    if (!tiles) return ZF_OK;
    ZFD_FLOATS(l, l->args[0].dtype, T,
               ZFD_LAUNCH(zfd_adam_together_kernel<T>, dim3(zfd_grid(l, tiles)),
                          dim3(ZFD_TILE / ZFD_TILE_PACK), sizeof(zfd_adam), zfd_stream(l), j,
                          list);)
    return zfd_launched(l);
}

static zf_status zfd_cuda_lamb_apply(const zf_launch *l)
{
    int32_t end;
    zfd_update_job j = zfd_update_job_of(l, -1, &end);
    j.lr = zfd_number_of(&l->args[2]);
    j.norm_p = zfd_number_of(&l->args[3]), j.norm_u = zfd_number_of(&l->args[4]);
    if (end > 5) j.master = zfd_floats(&l->args[5]);
    j.least = (float)ZF_FLOAT(l, lamb_apply, least), j.most = (float)ZF_FLOAT(l, lamb_apply, most);
    ZFD_FLOATS(
        l, l->args[0].dtype, T,
        return zfd_update_launch(l, zfd_lamb_apply_kernel<T>, ZF_AT_lamb_apply_world, 0, &j);)
}

ZFD_KERNEL(sgd, zfd_cuda_sgd, NULL)
ZFD_KERNEL_TOGETHER(adamw, zfd_cuda_adamw, NULL, zfd_cuda_together_adamw)
ZFD_KERNEL(lamb_update, zfd_cuda_adamw, NULL)
ZFD_KERNEL(lamb_apply, zfd_cuda_lamb_apply, NULL)
