/* Rows of n elements, the last dimension, on CUDA: softmax, LayerNorm, RMSNorm (ops/norm.c), and
 * what all kernels of rows share.
 *
 * A row belongs to a team: the threads with one threadIdx.y, in as many warps as hold the row in
 * registers with ZFD_HELD elements per thread. A row of up to 8192 elements is read once. The team
 * of a longer row is a block of 1024 threads, which reads it for each pass (softmax holds up to
 * 32768 elements, four times as many per thread). Kernels that need few registers hold rows of 257
 * to 8192 elements with four times ZFD_HELD per thread, so that a team adds fewer sums. A team of
 * one warp adds without a barrier.
 *
 *     array  ...|  pack  |  pack  |  pack  |  pack  |...       packs: 16 bytes, aligned
 *                  [ row, n long                 ]             thread t: packs t, t + team, ...
 *
 * Where n is no multiple of a pack, the row's first and last pack are incomplete and read element
 * by element; where an array is not aligned, all packs are. Sums are added over a thread's elements
 * in their order, then over the lanes of a warp, then over warps.
 *
 * Operators may run in place: a thread reads its elements of a row for the last time before it
 * writes them, and no other thread reads them. */

enum {
    ZFD_HELD = 8,
    ZFD_TEAM_MOST = 1024,
    ZFD_TEAM_LONG = 256 /* with 4 ZFD_HELD */
};

/* How many packs of T a thread holds, with ZFD_HELD and with four times as many elements. */
template <class T> struct zfd_held {
    static const int packs = ZFD_HELD / zfd_wide<T>::count, many = 4 * packs;
};

/* Threads of a block whose threads hold K packs each. */
template <class T, int K> struct zfd_team_bound {
    static const int threads = K == zfd_held<T>::many ? ZFD_TEAM_LONG : ZFD_TEAM_MOST;
};

/* Counts elements of a row of which a thread holds K packs; 0: a row of any length, of which
 * nothing is held. */
template <int K> struct zfd_row_index {
    typedef int type;
};
template <> struct zfd_row_index<0> {
    typedef int64_t type;
};

typedef struct zfd_row_set {
    int64_t rows, n;
    bool wide; /* packs of the arrays are aligned */
} zfd_row_set;

/* The team of the calling thread, and its row. WHOLE: rows are whole aligned packs
 * (zfd_row_set.wide, and n a multiple of V), so that no other case is compiled. */
template <class T, int K, bool WHOLE = false> struct zfd_team {
    typedef typename zfd_row_index<K>::type index;
    static const int V = zfd_wide<T>::count;
    int64_t row, base; /* base: the row's first element in the array */
    index n, first;    /* n: 0 without a row; first: where the first pack begins, at most 0 */
    bool wide;

    __device__ __forceinline__ explicit zfd_team(const zfd_row_set &s)
    {
        go(s, (int64_t)blockIdx.x * blockDim.y + threadIdx.y);
        wide = WHOLE || s.wide;
    }

    /* Moves the team to another row. */
    __device__ __forceinline__ void go(const zfd_row_set &s, int64_t to)
    {
        row = to;
        n = row < s.rows ? (index)s.n : 0;
        base = row < s.rows ? row * s.n : 0;
        first = WHOLE ? 0 : -(index)(base % V);
    }

    __device__ __forceinline__ bool has(index i) const { return WHOLE || (i >= 0 && i < n); }
    /* Of the pack at i < n: the first of its elements in the row, and how many precede its end. */
    static __device__ __forceinline__ int low(index i) { return i < 0 ? (int)-i : 0; }
    __device__ __forceinline__ int high(index i) const { return n - i < V ? (int)(n - i) : V; }
    __device__ __forceinline__ bool has_pack(index i) const
    {
        return WHOLE || (i >= 0 && i + V <= n);
    }

    /* Calls f(k, i) for each pack of the thread: its k-th, which begins at element i. */
    template <class F> __device__ __forceinline__ void each(F f) const
    {
        index i = (index)threadIdx.x * V + first, step = (index)blockDim.x * V;
        if (K) {
#pragma unroll
            for (int k = 0; k < K; k++, i += step)
                if (i < n) f(k, i);
        } else {
            for (; i < n; i += step) f(0, i);
        }
    }

    /* The pack at i of the array's row; elements outside the row are `other`. */
    template <class A>
    __device__ __forceinline__ void get(float (&x)[V], const A *array, index i,
                                        float other = 0) const
    {
        part(x, array + base, i, wide, other);
    }
    /* The same without conversion, to be unpacked later; elements outside the row are 0. */
    template <class A>
    __device__ __forceinline__ void fetch(uint4 &x, const A *array, index i) const
    {
        const A *from = array + base + i;
        if ((WHOLE || wide) && has_pack(i)) {
            x = *reinterpret_cast<const uint4 *>(from);
        } else {
            zfd_pack<A, V> p;
#pragma unroll
            for (int v = 0; v < V; v++) p.at[v] = has(i + v) ? from[v] : zfd_from_f32<A>(0);
            x = reinterpret_cast<const uint4 &>(p);
        }
    }
    /* As get, for a vector as long as a row. */
    template <class A>
    __device__ __forceinline__ void get_vector(float (&x)[V], const A *vector, index i) const
    {
        part(x, vector, i, WHOLE || (wide && first == 0 && n % V == 0), 0);
    }
    template <class A>
    __device__ __forceinline__ void part(float (&x)[V], const A *from, index i, bool aligned,
                                         float other) const
    {
        if ((WHOLE || aligned) && has_pack(i)) {
            zfd_load(x, from + i);
        } else if (K) {
#pragma unroll
            for (int v = 0; v < V; v++) x[v] = has(i + v) ? zfd_to_f32(from[i + v]) : other;
        } else { /* without branches and by distances from one address, which takes few registers */
            const A *at = from + i;
            const int begin = low(i), end = high(i);
#pragma unroll
            for (int v = 0; v < V; v++) {
                const float y = zfd_to_f32(at[v < begin ? begin : v < end ? v : end - 1]);
                x[v] = v >= begin && v < end ? y : other;
            }
        }
    }

    template <class A>
    __device__ __forceinline__ void put(A *array, index i, const float (&x)[V]) const
    {
        A *to = array + base;
        if ((WHOLE || wide) && has_pack(i)) {
            zfd_store(to + i, x);
        } else if (K) {
#pragma unroll
            for (int v = 0; v < V; v++)
                if (has(i + v)) to[i + v] = zfd_from_f32<A>(x[v]);
        } else {
            A *at = to + i;
            const int begin = low(i), end = high(i);
#pragma unroll
            for (int v = 0; v < V; v++)
                if (v >= begin && v < end) at[v] = zfd_from_f32<A>(x[v]);
        }
    }

    /* Applies dropout to the pack at i of a row whose first element has the number `from`. */
    __device__ __forceinline__ void drop(const zfd_dropper &d, float (&x)[V], index i,
                                         int64_t from) const
    {
        float by[V];
        if (d.off) return;
        zfd_kept_of<V, WHOLE>(d, (uint64_t)(from + i), by);
#pragma unroll
        for (int v = 0; v < V; v++) x[v] = by[v] != 0 ? x[v] * by[v] : 0;
    }
};

/* N sums, or maxima, over a team; every thread gets all. `shared` has N * ZFD_WARP floats for each
 * team, which nothing else uses until the block has passed another barrier. All threads of the
 * block must take part. */
template <int N, bool MOST = false>
__device__ __forceinline__ void zfd_team_sums(float (&x)[N], float *shared)
{
    int warp = (int)threadIdx.x / ZFD_WARP, warps = (int)blockDim.x / ZFD_WARP;
#pragma unroll
    for (int k = 0; k < N; k++) x[k] = MOST ? zfd_warp_max(x[k]) : zfd_warp_sum(x[k]);
    if (warps == 1) return;
    shared += threadIdx.y * ZFD_WARP * N;
    if (threadIdx.x % ZFD_WARP == 0)
#pragma unroll
        for (int k = 0; k < N; k++) shared[warp * N + k] = x[k];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < N; k++) x[k] = shared[k];
    for (int w = 1; w < warps; w++)
#pragma unroll
        for (int k = 0; k < N; k++)
            x[k] = MOST ? fmaxf(x[k], shared[w * N + k]) : x[k] + shared[w * N + k];
}

__device__ __forceinline__ float zfd_team_sum(float x, float *shared)
{
    float one[1] = {x};
    zfd_team_sums(one, shared);
    return one[0];
}

__device__ __forceinline__ float zfd_team_max(float x, float *shared)
{
    float one[1] = {x};
    zfd_team_sums<1, true>(one, shared);
    return one[0];
}

/* The shared memory for the k-th sum of a kernel that adds one at a time. */
__device__ __forceinline__ float *zfd_sum_room(float *shared, int k)
{
    return shared + (unsigned)k * ZFD_WARP * blockDim.y;
}

/* The launch of a kernel of rows. */
typedef struct zfd_teams {
    zfd_row_set set;
    bool held, many; /* many: four times ZFD_HELD elements per thread */
    dim3 grid, block;
    size_t shared; /* bytes, for `sums` sums */
} zfd_teams;

static int64_t zfd_row_length(const zf_array *x) { return x->shape.dims[x->shape.rank - 1]; }

static int64_t zfd_row_count(const zf_array *x)
{
    int64_t rows = 1;
    for (int32_t k = 0; k + 1 < x->shape.rank; k++) rows *= x->shape.dims[k];
    return rows;
}

/* The number of threads that hold a row of n elements with `each` per thread, a multiple of a
 * warp. */
static int64_t zfd_row_threads(int64_t n, int64_t each)
{
    if (n % each) n += 2 * each; /* incomplete packs */
    return zfd_div_up(n > 0 ? n : 1, each * ZFD_WARP) * ZFD_WARP;
}

static zfd_teams zfd_teams_for(const zf_array *x, bool wide, int sums, bool many)
{
    zfd_teams t;
    t.set.rows = zfd_row_count(x), t.set.n = zfd_row_length(x), t.set.wide = wide;
    int64_t threads = zfd_row_threads(t.set.n, 4 * ZFD_HELD);
    t.many = many && t.set.n > ZFD_HELD * ZFD_WARP && threads <= ZFD_TEAM_LONG;
    if (!t.many) threads = zfd_row_threads(t.set.n, ZFD_HELD);
    t.held = threads <= ZFD_TEAM_MOST;
    if (!t.held) threads = ZFD_TEAM_MOST;
    t.block = dim3((unsigned)threads, (unsigned)(threads < 128 ? 128 / threads : 1));
    t.grid = dim3((unsigned)zfd_div_up(t.set.rows, t.block.y));
    t.shared = (size_t)sums * ZFD_WARP * t.block.y * sizeof(float);
    return t;
}

/* The teams for rows like those of x, for ZFD_LAUNCH_ROWS and for ZFD_LAUNCH_LONG_ROWS. */
static zfd_teams zfd_teams_of(const zf_array *x, bool wide, int sums)
{
    return zfd_teams_for(x, wide, sums, false);
}
static zfd_teams zfd_long_teams_of(const zf_array *x, bool wide, int sums)
{
    return zfd_teams_for(x, wide, sums, true);
}

/* Launches kernel<T, K> over the teams t. */
#define ZFD_LAUNCH_ROWS(kernel, T, t, l, ...)                                                      \
    if ((t).held)                                                                                  \
        ZFD_LAUNCH((kernel<T, zfd_held<T>::packs>), (t).grid, (t).block, (t).shared, zfd_stream(l),\
                   __VA_ARGS__);                                                                   \
    else                                                                                           \
        ZFD_LAUNCH((kernel<T, 0>), (t).grid, (t).block, (t).shared, zfd_stream(l), __VA_ARGS__)

/* The same for a kernel that also exists with zfd_held<T>::many packs. */
#define ZFD_LAUNCH_LONG_ROWS(kernel, T, t, l, ...)                                                 \
    if ((t).many)                                                                                  \
        ZFD_LAUNCH((kernel<T, zfd_held<T>::many>), (t).grid, (t).block, (t).shared, zfd_stream(l), \
                   __VA_ARGS__);                                                                   \
    else ZFD_LAUNCH_ROWS(kernel, T, t, l, __VA_ARGS__)

/* The dropout of a value of the result's shape, from attributes 0 and 1. */
static zfd_dropout zfd_dropout_attributes(const zf_launch *l)
{
    return zfd_dropout_of(l, ZF_FLOAT(l, dropout, p), ZF_INT(l, dropout, stream),
                          zfd_drawn(l, zfd_count(&l->out)));
}

/* ----------------------------------------------------------------------------- softmax */

/* The dropout of softmax(scale x + bias). */
typedef struct zfd_softmax_job {
    zfd_row_set set;
    const void *x;
    void *y, *p;      /* p: before dropout; may be NULL */
    const void *bias; /* may be NULL */
    zfd_walk rows; /* where the bias of a row begins */
    bool step;     /* the bias has an element for each of the row's; else one */
    float scale;
    zfd_dropout drop;
    zfd_share share;
} zfd_softmax_job;

/* The number that is subtracted before exp from a row with this maximum. */
__device__ __forceinline__ float zfd_shift(float most) { return isinf(most) ? 0 : most; }

/* Adds a pack to the maximum so far and to the sum of exp(x - zfd_shift(most)). Elements outside
 * the row are -inf. */
template <int V>
__device__ __forceinline__ void zfd_online(float &most, float &sum, const float (&x)[V])
{
    float next = most, pack = 0;
#pragma unroll
    for (int v = 0; v < V; v++) next = fmaxf(next, x[v]);
#pragma unroll
    for (int v = 0; v < V; v++) pack += expf(x[v] - zfd_shift(next));
    sum = (next == most ? sum : sum * expf(most - zfd_shift(next))) + pack;
    most = next;
}

/* Joins these over the threads of a team; every thread gets the result. */
__device__ __forceinline__ void zfd_online_team(float &most, float &sum, float *shared)
{
    float own = most;
    most = zfd_team_max(own, zfd_sum_room(shared, 0));
    sum = zfd_team_sum(own == -INFINITY ? sum : sum * expf(own - zfd_shift(most)),
                       zfd_sum_room(shared, 1));
}

template <class T, int K>
__global__ void __launch_bounds__(ZFD_TEAM_MOST) zfd_softmax_kernel(const zfd_softmax_job j)
{
    ZFD_SHARED(float, shared);
    const zfd_team<T, K> t(j.set);
    typedef typename zfd_team<T, K>::index index;
    const int V = zfd_team<T, K>::V;
    const zfd_dropper drop = zfd_dropper_of(j.drop);
    const T *bias = static_cast<const T *>(j.bias);
    const int64_t drawn = zfd_number_of(j.share, t.base);
    float held[K ? K : 1][V], most = -INFINITY, sum = 0;
    bool bias_wide = false;
    if (bias) {
        int64_t at[1];
        zfd_walk_to(j.rows, t.row < j.set.rows ? t.row : 0, at);
        bias += at[0];
        bias_wide = reinterpret_cast<uintptr_t>(bias + t.first) % 16 == 0;
    }
    auto look = [&](float(&x)[V], index i) {
        t.get(x, static_cast<const T *>(j.x), i, -INFINITY);
        if (!bias && j.scale == 1) return;
        float b[V];
        if (bias && j.step) {
            t.part(b, bias, i, bias_wide, 0);
        } else {
#pragma unroll
            for (int v = 0; v < V; v++) b[v] = bias ? zfd_to_f32(*bias) : 0;
        }
#pragma unroll
        for (int v = 0; v < V; v++) x[v] = t.has(i + v) ? x[v] * j.scale + b[v] : -INFINITY;
    };
    if (K) {
        t.each([&](int k, index i) {
            look(held[k], i);
#pragma unroll
            for (int v = 0; v < V; v++) most = fmaxf(most, held[k][v]);
        });
        most = zfd_team_max(most, zfd_sum_room(shared, 0));
        t.each([&](int k, index) {
#pragma unroll
            for (int v = 0; v < V; v++) {
                held[k][v] = expf(held[k][v] - zfd_shift(most));
                sum += held[k][v];
            }
        });
        sum = zfd_team_sum(sum, zfd_sum_room(shared, 1));
    } else {
        t.each([&](int, index i) {
            look(held[0], i);
            zfd_online(most, sum, held[0]);
        });
        zfd_online_team(most, sum, shared);
    }
    sum = most == INFINITY ? NAN : sum == 0 ? 0 : 1 / sum;
    t.each([&](int k, index i) {
        float(&y)[V] = held[k];
        if (!K) look(y, i);
#pragma unroll
        for (int v = 0; v < V; v++) y[v] = (K ? y[v] : expf(y[v] - zfd_shift(most))) * sum;
        if (j.p) t.put(static_cast<T *>(j.p), i, y);
        t.drop(drop, y, i, drawn);
        t.put(static_cast<T *>(j.y), i, y);
    });
}

/* Sets rows, x and y, and runs the job. */
static zf_status zfd_softmax_launch(const zf_launch *l, zfd_softmax_job *j)
{
    if (!zfd_count(&l->out)) return ZF_OK;
    zfd_teams t = zfd_teams_of(
        &l->out, zfd_lies_well(0, 1, l->args[0].data, l->out.data, j->p), 2);
    j->set = t.set;
    j->x = l->args[0].data, j->y = l->out.data;
    ZFD_FLOATS(l, l->out.dtype, T, {
        if (!t.held && zfd_row_threads(t.set.n, 4 * ZFD_HELD) <= ZFD_TEAM_MOST)
            ZFD_LAUNCH((zfd_softmax_kernel<T, 4 * zfd_held<T>::packs>), t.grid, t.block, t.shared,
                       zfd_stream(l), *j);
        else ZFD_LAUNCH_ROWS(zfd_softmax_kernel, T, t, l, *j);
    })
    return zfd_launched(l);
}

static zf_status zfd_cuda_softmax(const zf_launch *l)
{
    zfd_softmax_job j = {};
    j.scale = 1;
    j.drop = zfd_dropout_of(l, 0, 0, 0);
    return zfd_softmax_launch(l, &j);
}

/* dx = scale P (g - sum g P), g = dropout(dy) */
typedef struct zfd_softmax_grad_job {
    zfd_row_set set;
    const void *dy, *p;
    void *dx;
    float scale;
    zfd_dropout drop;
    zfd_share share;
} zfd_softmax_grad_job;

template <class T, int K>
__global__ void __launch_bounds__(ZFD_TEAM_MOST)
    zfd_softmax_grad_kernel(const zfd_softmax_grad_job j)
{
    ZFD_SHARED(float, shared);
    const zfd_team<T, K> t(j.set);
    typedef typename zfd_team<T, K>::index index;
    const int V = zfd_team<T, K>::V;
    const zfd_dropper drop = zfd_dropper_of(j.drop);
    const int64_t drawn = zfd_number_of(j.share, t.base);
    float g[K ? K : 1][V], p[K ? K : 1][V], dot = 0;
    auto look = [&](int k, index i) {
        t.get(g[k], static_cast<const T *>(j.dy), i);
        t.get(p[k], static_cast<const T *>(j.p), i);
        t.drop(drop, g[k], i, drawn);
    };
    t.each([&](int k, index i) {
        look(k, i);
#pragma unroll
        for (int v = 0; v < V; v++) dot += g[k][v] * p[k][v];
    });
    dot = zfd_team_sum(dot, shared);
    t.each([&](int k, index i) {
        if (!K) look(k, i);
#pragma unroll
        for (int v = 0; v < V; v++) g[k][v] = p[k][v] * (g[k][v] - dot) * j.scale;
        t.put(static_cast<T *>(j.dx), i, g[k]);
    });
}

static zf_status zfd_softmax_grad_launch(const zf_launch *l, float scale, const zfd_dropout *drop)
{
    const void *dy = l->args[0].data, *p = l->args[1].data;
    if (!zfd_count(&l->out)) return ZF_OK;
    zfd_teams t = zfd_teams_of(&l->out, zfd_lies_well(0, 1, dy, p, l->out.data), 1);
    zfd_softmax_grad_job j = {t.set, dy,    p, l->out.data,
                              scale, *drop, zfd_share_of(l, &l->out.shape)};
    ZFD_FLOATS(l, l->out.dtype, T, ZFD_LAUNCH_ROWS(zfd_softmax_grad_kernel, T, t, l, j);)
    return zfd_launched(l);
}

static zf_status zfd_cuda_softmax_grad(const zf_launch *l)
{
    zfd_dropout none = zfd_dropout_of(l, 0, 0, 0);
    return zfd_softmax_grad_launch(l, 1, &none);
}

/* ----------------------------------------------------------------------------- moments
 *
 * In two passes: the mean first, then the squares of the differences. */

typedef struct zfd_moments_job {
    zfd_row_set set;
    const void *x;
    float *moments;
    float eps;
    bool centred; /* moments; else rms, with the mean 0 */
} zfd_moments_job;

/* rstd of the sum of squares of n elements. */
__device__ __forceinline__ float zfd_rstd(float squares, int64_t n, float eps)
{
    return 1 / sqrtf(squares / (n ? (float)n : 1) + eps);
}

template <class T, int K>
__global__ void __launch_bounds__((zfd_team_bound<T, K>::threads))
    zfd_moments_kernel(const zfd_moments_job j)
{
    ZFD_SHARED(float, shared);
    const zfd_team<T, K> t(j.set);
    typedef typename zfd_team<T, K>::index index;
    const int V = zfd_team<T, K>::V;
    const T *x = static_cast<const T *>(j.x);
    float held[K ? K : 1][V], mean = 0, squares = 0;
    if (K || j.centred)
        t.each([&](int k, index i) {
            t.get(held[k], x, i);
#pragma unroll
            for (int v = 0; v < V; v++) mean += held[k][v];
        });
    mean = j.centred ? zfd_team_sum(mean, shared) / (j.set.n ? (float)j.set.n : 1) : 0;
    t.each([&](int k, index i) {
        if (!K) t.get(held[k], x, i);
#pragma unroll
        for (int v = 0; v < V; v++)
            if (t.has(i + v)) squares += (held[k][v] - mean) * (held[k][v] - mean);
    });
    squares = zfd_team_sum(squares, zfd_sum_room(shared, 1));
    if (threadIdx.x == 0 && t.row < j.set.rows) {
        j.moments[2 * t.row] = mean;
        j.moments[2 * t.row + 1] = zfd_rstd(squares, j.set.n, j.eps);
    }
}

static zf_status zfd_cuda_moments(const zf_launch *l)
{
    const zf_array *x = &l->args[0];
    if (!zfd_count(&l->out)) return ZF_OK;
    zfd_teams t = zfd_long_teams_of(x, zfd_lies_well(0, 1, x->data), 2);
    zfd_moments_job j = {t.set, x->data, static_cast<float *>(l->out.data),
                         (float)ZF_FLOAT(l, moments, eps), l->op == ZF_OP_moments};
    ZFD_FLOATS(l, x->dtype, T, ZFD_LAUNCH_LONG_ROWS(zfd_moments_kernel, T, t, l, j);)
    return zfd_launched(l);
}

/* ------------------------------------------------------------------------------- norms */

/* y = gamma (x - mean) rstd + beta; beta may be NULL. moments NULL: mean 0 and rstd 1. */
typedef struct zfd_norm_job {
    zfd_row_set set;
    const void *x, *gamma, *beta;
    const float *moments;
    void *y;
} zfd_norm_job;

template <class T, int K>
__global__ void __launch_bounds__((zfd_team_bound<T, K>::threads))
    zfd_norm_kernel(const zfd_norm_job j)
{
    const zfd_team<T, K> t(j.set);
    typedef typename zfd_team<T, K>::index index;
    const int V = zfd_team<T, K>::V;
    if (t.row >= j.set.rows) return;
    float mean = j.moments ? j.moments[2 * t.row] : 0,
          rstd = j.moments ? j.moments[2 * t.row + 1] : 1, x[K ? K : 1][V];
    if (K) /* all reads begin before the first write */
        t.each([&](int k, index i) { t.get(x[k], static_cast<const T *>(j.x), i); });
    t.each([&](int k, index i) {
        float gamma[V], beta[V] = {};
        if (!K) t.get(x[k], static_cast<const T *>(j.x), i);
        t.get_vector(gamma, static_cast<const T *>(j.gamma), i);
        if (j.beta) t.get_vector(beta, static_cast<const T *>(j.beta), i);
#pragma unroll
        for (int v = 0; v < V; v++) x[k][v] = fmaf((x[k][v] - mean) * rstd, gamma[v], beta[v]);
        t.put(static_cast<T *>(j.y), i, x[k]);
    });
}

static zf_status zfd_norm_launch(const zf_launch *l, const void *moments, const void *gamma,
                                 const void *beta)
{
    const void *x = l->args[0].data;
    if (!zfd_count(&l->out)) return ZF_OK;
    bool wide = zfd_lies_well(0, 1, x, l->out.data, gamma, beta);
    zfd_teams t = zfd_long_teams_of(&l->out, wide, 0);
    zfd_norm_job j = {t.set, x, gamma, beta, static_cast<const float *>(moments), l->out.data};
    ZFD_FLOATS(l, l->out.dtype, T, ZFD_LAUNCH_LONG_ROWS(zfd_norm_kernel, T, t, l, j);)
    return zfd_launched(l);
}

static zf_status zfd_cuda_layer_norm(const zf_launch *l)
{
    return zfd_norm_launch(l, l->args[1].data, l->args[2].data,
                           l->arg_count > 3 ? l->args[3].data : NULL);
}

/* dx = rstd (g - mean g - xhat mean(g xhat)), g = dy gamma; without mean g where not centred.
 * rstds, if not NULL: x is xhat, and these are the rows' rstd. more: added to dx; dropped: gets
 * dropout(dx); both may be NULL. */
typedef struct zfd_norm_grad_job {
    zfd_row_set set;
    const void *dy, *x, *gamma, *more;
    const float *moments, *rstds;
    void *dx, *dropped;
    bool centred;
    zfd_dropout drop;
    zfd_share share;
} zfd_norm_grad_job;

template <class T, int K>
__global__ void __launch_bounds__(ZFD_TEAM_MOST) zfd_norm_grad_kernel(const zfd_norm_grad_job j)
{
    ZFD_SHARED(float, shared);
    const zfd_team<T, K> t(j.set);
    typedef typename zfd_team<T, K>::index index;
    const int V = zfd_team<T, K>::V;
    const zfd_dropper drop = zfd_dropper_of(j.drop);
    const int64_t drawn = zfd_number_of(j.share, t.base);
    float g[K ? K : 1][V], xhat[K ? K : 1][V], sums[2] = {0, 0}, mean = 0, rstd = 0;
    if (t.n) {
        if (j.moments) mean = j.moments[2 * t.row];
        rstd = j.moments ? j.moments[2 * t.row + 1] : j.rstds[t.row];
    }
    auto look = [&](int k, index i) {
        float gamma[V];
        t.get(g[k], static_cast<const T *>(j.dy), i);
        t.get(xhat[k], static_cast<const T *>(j.x), i);
        t.get_vector(gamma, static_cast<const T *>(j.gamma), i);
#pragma unroll
        for (int v = 0; v < V; v++) {
            g[k][v] *= gamma[v];
            if (j.moments) xhat[k][v] = (xhat[k][v] - mean) * rstd;
        }
    };
    t.each([&](int k, index i) {
        look(k, i);
#pragma unroll
        for (int v = 0; v < V; v++) { /* g is 0 outside the row */
            sums[0] += g[k][v];
            if (t.has(i + v)) sums[1] = fmaf(g[k][v], xhat[k][v], sums[1]);
        }
    });
    zfd_team_sums(sums, shared);
    sums[0] = j.centred ? sums[0] / (float)j.set.n : 0;
    sums[1] /= (float)j.set.n;
    t.each([&](int k, index i) {
        if (!K) look(k, i);
#pragma unroll
        for (int v = 0; v < V; v++)
            g[k][v] = rstd * (g[k][v] - fmaf(xhat[k][v], sums[1], sums[0]));
        if (j.more) {
            t.get(xhat[k], static_cast<const T *>(j.more), i);
#pragma unroll
            for (int v = 0; v < V; v++) g[k][v] += xhat[k][v];
        }
        t.put(static_cast<T *>(j.dx), i, g[k]);
        if (!j.dropped) return;
        t.drop(drop, g[k], i, drawn);
        t.put(static_cast<T *>(j.dropped), i, g[k]);
    });
}

/* Launches the job; sets its rows. */
static zf_status zfd_norm_grad_launch(const zf_launch *l, zfd_norm_grad_job *j)
{
    if (!zfd_count(&l->out)) return ZF_OK;
    bool wide = zfd_lies_well(0, 1, j->dy, j->x, j->dx, j->dropped) &&
                zfd_lies_well(0, 1, j->gamma, j->more);
    zfd_teams t = zfd_teams_of(&l->out, wide, 2);
    j->set = t.set;
    ZFD_FLOATS(l, l->out.dtype, T, ZFD_LAUNCH_ROWS(zfd_norm_grad_kernel, T, t, l, *j);)
    return zfd_launched(l);
}

static zf_status zfd_cuda_layer_norm_grad(const zf_launch *l)
{
    zfd_norm_grad_job j = {};
    j.dy = l->args[0].data, j.x = l->args[1].data, j.gamma = l->args[3].data;
    j.moments = static_cast<const float *>(l->args[2].data);
    j.dx = l->out.data;
    if (l->arg_count > 4) j.more = l->args[4].data;
    j.centred = l->op == ZF_OP_layer_norm_grad;
    j.drop = zfd_dropout_of(l, 0, 0, 0);
    return zfd_norm_grad_launch(l, &j);
}

/* ------------------------------------------------------------------------ sums over rows
 *
 * In two stages: each part of the rows gives a row of sums; then these are added.
 *
 *     a, b [rows,n] -> parts [parts,ZFD_SUMS,n] f32 -> out [n] each
 *
 * A block has 32 packs of columns and ZFD_SUM_ROWS rows at a time, and adds in the order of the
 * rows. Sum 0 is of a b, where b is normalised first if there are moments; sum 1 is of a; sum 2 is
 * of dropout(a). */

enum { ZFD_SUMS = 3, ZFD_SUM_ROWS = 8 };

typedef struct zfd_columns_job {
    const void *a, *b;
    const float *moments;
    float *parts;
    int64_t rows, n, chunk; /* chunk: rows of a part */
    bool wide, asked[ZFD_SUMS];
    zfd_dropout drop;
    zfd_share share;
} zfd_columns_job;

template <class T>
__global__ void __launch_bounds__(ZFD_WARP *ZFD_SUM_ROWS)
    zfd_columns_kernel(const zfd_columns_job j)
{
    const int V = zfd_wide<T>::count, columns = ZFD_WARP * V;
    ZFD_SHARED(float, shared); /* [ZFD_SUM_ROWS][columns] */
    const zfd_dropper drop = zfd_dropper_of(j.drop);
    const T *a = static_cast<const T *>(j.a), *b = static_cast<const T *>(j.b);
    int64_t first = (int64_t)blockIdx.x * columns, i = first + (int)threadIdx.x * V;
    int64_t begin = (int64_t)blockIdx.y * j.chunk,
            end = begin + j.chunk < j.rows ? begin + j.chunk : j.rows;
    bool whole = j.wide && i + V <= j.n;
    float sum[ZFD_SUMS][V] = {};
    auto look = [&](float(&x)[V], const T *from) {
        if (whole) {
            zfd_load(x, from);
        } else {
#pragma unroll
            for (int v = 0; v < V; v++) x[v] = i + v < j.n ? zfd_to_f32(from[v]) : 0;
        }
    };
#pragma unroll 4
    for (int64_t r = begin + threadIdx.y; r < end; r += ZFD_SUM_ROWS) {
        float x[V], y[V];
        float mean = j.moments ? j.moments[2 * r] : 0, rstd = j.moments ? j.moments[2 * r + 1] : 1;
        look(x, a + r * j.n + i);
        if (j.asked[0]) look(y, b + r * j.n + i);
#pragma unroll
        for (int v = 0; v < V; v++) {
            if (j.asked[0]) sum[0][v] = fmaf(x[v], (y[v] - mean) * rstd, sum[0][v]);
            sum[1][v] += x[v];
        }
        if (j.asked[2] && !drop.off) {
            float by[V];
            zfd_kept_of(drop, (uint64_t)(zfd_number_of(j.share, r * j.n) + i), by);
#pragma unroll
            for (int v = 0; v < V; v++) sum[2][v] += by[v] != 0 ? x[v] * by[v] : 0;
        }
    }
#pragma unroll
    for (int k = 0; k < ZFD_SUMS; k++) {
        if (!j.asked[k]) continue;
        __syncthreads();
#pragma unroll
        for (int v = 0; v < V; v++)
            shared[(threadIdx.y * ZFD_WARP + threadIdx.x) * V + v] =
                k == 2 && drop.off ? sum[1][v] : sum[k][v];
        __syncthreads();
        for (int c = (int)(threadIdx.y * ZFD_WARP + threadIdx.x); c < columns;
             c += ZFD_WARP * ZFD_SUM_ROWS) {
            float all = 0;
            for (int r = 0; r < ZFD_SUM_ROWS; r++) all += shared[r * columns + c];
            if (first + c < j.n)
                j.parts[((int64_t)blockIdx.y * ZFD_SUMS + k) * j.n + first + c] = all;
        }
    }
}

/* Where to write the sums; NULL: a sum is not needed. */
typedef struct zfd_columns_out {
    const float *parts;
    int64_t count, n; /* number of parts, and columns */
    void *out[ZFD_SUMS];
} zfd_columns_out;

enum { ZFD_PART_ROWS = 32 }; /* threads that share the parts of a column */

/* Sum blockIdx.y of 32 columns. Each thread adds every ZFD_PART_ROWS-th part; one thread adds their
 * sums. */
template <class T>
__global__ void __launch_bounds__(ZFD_WARP *ZFD_PART_ROWS)
    zfd_columns_end_kernel(const zfd_columns_out j)
{
    ZFD_SHARED(float, shared);
    T *out = static_cast<T *>(blockIdx.y == 0 ? j.out[0] : blockIdx.y == 1 ? j.out[1] : j.out[2]);
    int64_t c = (int64_t)blockIdx.x * ZFD_WARP + threadIdx.x;
    float sum = 0;
    if (!out) return;
    if (c < j.n)
#pragma unroll 4
        for (int64_t part = threadIdx.y; part < j.count; part += ZFD_PART_ROWS)
            sum += j.parts[(part * ZFD_SUMS + blockIdx.y) * j.n + c];
    shared[threadIdx.y * ZFD_WARP + threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y || c >= j.n) return;
    for (int k = 1; k < ZFD_PART_ROWS; k++) sum += shared[k * ZFD_WARP + threadIdx.x];
    out[c] = zfd_from_f32<T>(sum);
}

/* The number of parts of `rows` rows, at least `least` rows each, that occupies the device if a
 * part has `blocks` blocks. */
static int64_t zfd_parts(const zf_launch *l, int64_t rows, int64_t least, int64_t blocks)
{
    int64_t most = zfd_div_up((int64_t)zfd_device_of(l)->processors * 4, blocks > 1 ? blocks : 1),
            parts = zfd_div_up(rows, least);
    return parts < 1 ? 1 : parts < most ? parts : most;
}

/* The number of parts for zfd_columns over an array of this type. */
static int64_t zfd_column_parts(const zf_launch *l, const zf_array *a)
{
    int64_t columns = ZFD_WARP * 16 / (int64_t)zf_dtype_size(a->dtype);
    return zfd_parts(l, zfd_row_count(a), 4 * ZFD_SUM_ROWS,
                     zfd_div_up(zfd_row_length(a), columns));
}

/* The bytes of so many parts; SIZE_MAX, which fits no plan, where their number overflows. */
static size_t zfd_parts_bytes(int64_t parts, int64_t n)
{
    size_t each = (size_t)parts * ZFD_SUMS * sizeof(float);
    return n && each > SIZE_MAX / (size_t)n ? SIZE_MAX : each * (size_t)n;
}

static zf_status zfd_columns_end(const zf_launch *l, zf_dtype dtype, const zfd_columns_out &j)
{
    dim3 grid((unsigned)zfd_div_up(j.n, ZFD_WARP), ZFD_SUMS), block(ZFD_WARP, ZFD_PART_ROWS);
    size_t shared = ZFD_WARP * ZFD_PART_ROWS * sizeof(float);
    if (j.n)
        ZFD_FLOATS(l, dtype, T, ZFD_LAUNCH(zfd_columns_end_kernel<T>, grid, block, shared,
                                           zfd_stream(l), j);)
    return zfd_launched(l);
}

/* Computes the sums whose `out` is not NULL; with dropout, a has the result's shape. The parts are in
 * scratch. */
static zf_status zfd_columns(const zf_launch *l, const zf_array *a, const void *b,
                             const float *moments, const zfd_dropout &drop,
                             void *const out[ZFD_SUMS])
{
    zfd_columns_job j = {};
    zfd_columns_out o = {};
    if (out[2]) j.share = zfd_share_of(l, &a->shape);
    int64_t parts = zfd_column_parts(l, a);
    j.a = a->data, j.b = b, j.moments = moments;
    o.parts = j.parts = static_cast<float *>(l->scratch);
    j.rows = zfd_row_count(a), o.n = j.n = zfd_row_length(a);
    j.chunk = zfd_div_up(j.rows, parts), o.count = parts;
    j.wide = zfd_lies_well(j.n, zf_dtype_size(a->dtype), a->data, b);
    j.drop = drop;
    for (int k = 0; k < ZFD_SUMS; k++) o.out[k] = out[k], j.asked[k] = out[k] != NULL;
    if (!j.n) return ZF_OK;
    ZFD_FLOATS(l, a->dtype, T, {
        const int columns = ZFD_WARP * zfd_wide<T>::count;
        ZFD_LAUNCH(zfd_columns_kernel<T>,
                   dim3((unsigned)zfd_div_up(j.n, columns), (unsigned)parts),
                   dim3(ZFD_WARP, ZFD_SUM_ROWS), columns * ZFD_SUM_ROWS * sizeof(float),
                   zfd_stream(l), j);
    })
    return zfd_columns_end(l, a->dtype, o);
}

static size_t zfd_cuda_scratch_norm_gamma_grad(const zf_launch *l)
{
    return zfd_parts_bytes(zfd_column_parts(l, &l->args[0]), zfd_row_length(&l->args[0]));
}

static zf_status zfd_cuda_norm_gamma_grad(const zf_launch *l)
{
    void *out[ZFD_SUMS] = {l->out.data, NULL, NULL};
    return zfd_columns(l, &l->args[0], l->args[1].data,
                       static_cast<const float *>(l->args[2].data), zfd_dropout_of(l, 0, 0, 0),
                       out);
}

ZFD_KERNEL(softmax, zfd_cuda_softmax, NULL)
ZFD_KERNEL(softmax_grad, zfd_cuda_softmax_grad, NULL)
ZFD_KERNEL(moments, zfd_cuda_moments, NULL)
ZFD_KERNEL(rms, zfd_cuda_moments, NULL)
ZFD_KERNEL(layer_norm, zfd_cuda_layer_norm, NULL)
ZFD_KERNEL(layer_norm_grad, zfd_cuda_layer_norm_grad, NULL)
ZFD_KERNEL(rms_norm, zfd_cuda_layer_norm, NULL)
ZFD_KERNEL(rms_norm_grad, zfd_cuda_layer_norm_grad, NULL)
ZFD_KERNEL(norm_gamma_grad, zfd_cuda_norm_gamma_grad, zfd_cuda_scratch_norm_gamma_grad)
