/* Products on CUDA: matmul (ops/matmul.c), and the products of linear and head_loss.
 *
 *     c[m,n] = (added ? added[m,n] : 0) + alpha (sum over k of a[m,k] b[k,n]) + bias[n]
 *
 * They are computed by the maker's library (cuda/products.cu).
 *
 * Sums are in f32 and rounded once; where k is split, partial sums in the workspace are f32 too.
 * Products of f32 use TF32 only where the backend was asked for it. Bits depend on the shape, the
 * alignment of operands and the version of the library; after a search also on the file of its
 * results.
 *
 * A plan holds the descriptors and the algorithm for a shape. It is made when the scratch of a
 * product is asked for, and kept as long as the device. A kernel of our own computes products for
 * which the library has no algorithm. */

enum {
    ZFD_GEMM_FIELDS = sizeof(zfd_gemm) / sizeof(int64_t),
    ZFD_PLANS = 512, /* plans kept; for shapes beyond these, a plan is made at each launch */
    ZFD_CANDIDATES = 16,
    ZFD_SEARCH_ROUNDS = 4,
    ZFD_SEARCH_RUNS = 4,
    ZFD_WORKSPACE = 32 << 20,                 /* bytes for one product, at most */
    ZFD_WORK_LIES = 256,                      /* alignment for the library; scratch has 64 */
    ZFD_TILE_ROWS = ZFD_SMALL_TILES ? 4 : 128 /* zfd_tile_rows returns multiples of this */
};

typedef struct zfd_plan {
    zfd_gemm gemm;
    zfd_algo algo;
    bool able;      /* the library has an algorithm; else the plain kernel is used */
    bool searched;  /* the algorithm is the result of a search */
    bool described; /* the following are set */
    zfd_descriptors descriptors;
} zfd_plan;

typedef struct zfd_products {
    bool tf32;
    int target;         /* multiprocessors for products; 0: all */
    const char *file;   /* of searched algorithms; NULL: no search */
    const char *device; /* its name: results of a search hold for this device, */
    unsigned long long version; /* and this version of the library */
    bool fresh;         /* there are results that the file lacks */
    int plain;          /* shapes without an algorithm, computed by the plain kernel */
    char first[128];    /* the first of them */
    char remark[320];   /* zf_program_info.remark */
    int count;
    zfd_plan plans[ZFD_PLANS];
} zfd_products;

/* ---------------------------------------------------------------------------- the file of a search
 *
 *     zeroflow-products 1 130000 NVIDIA H200       (" on 120": products may take 120 of its
 *                                                  multiprocessors)
 *     M N K BATCH ... LIES WORKSPACE ALGORITHM     17 numbers of zfd_gemm, bytes, 8 words (hex)
 *
 * A file of another version or device is ignored and replaced. */

static void zfd_products_head(const zfd_products *p, char *text, size_t size)
{
    char on[32] = "";
    if (p->target) snprintf(on, sizeof on, " on %d", p->target);
    snprintf(text, size, "zeroflow-products 1 %llu %.200s%s\n",
             p->version, p->device, on);
}

/* Reads one plan of the file; false at its end, or where the line is not a plan. */
static bool zfd_plan_read(zfd_plan *plan, FILE *file)
{
    int64_t fields[ZFD_GEMM_FIELDS];
    long long value;
    unsigned long long word;
    memset(plan, 0, sizeof *plan);
    for (int i = 0; i < ZFD_GEMM_FIELDS; i++) {
        if (fscanf(file, "%lld", &value) != 1) return false;
        fields[i] = value;
    }
    memcpy(&plan->gemm, fields, sizeof fields);
    if (fscanf(file, "%llu", &word) != 1 || word > ZFD_WORKSPACE) return false;
    plan->algo.workspace = word;
    for (int i = 0; i < ZFD_ALGO_WORDS; i++) {
        if (fscanf(file, "%llx", &word) != 1) return false;
        plan->algo.words[i] = word;
    }
    plan->able = plan->searched = true;
    return true;
}

static void zfd_plan_write(const zfd_plan *plan, FILE *file)
{
    int64_t fields[ZFD_GEMM_FIELDS];
    memcpy(fields, &plan->gemm, sizeof fields);
    for (int i = 0; i < ZFD_GEMM_FIELDS; i++) fprintf(file, "%lld ", (long long)fields[i]);
    fprintf(file, "%llu", (unsigned long long)plan->algo.workspace);
    for (int i = 0; i < ZFD_ALGO_WORDS; i++)
        fprintf(file, " %llx", (unsigned long long)plan->algo.words[i]);
    fprintf(file, "\n");
}

/* Reads the file. The settings in *p must be set, all else 0. `file` (which may be NULL) and
 * `device` must live as long as *p. */
static void zfd_products_open(zfd_products *p)
{
    char head[256], line[256];
    FILE *from = p->file ? fopen(p->file, "r") : NULL;
    if (!from) return;
    zfd_products_head(p, head, sizeof head);
    if (fgets(line, sizeof line, from) && !strcmp(line, head))
        while (p->count < ZFD_PLANS && zfd_plan_read(&p->plans[p->count], from)) p->count++;
    fclose(from);
}

/* Writes the results of searches that the file lacks. The file appears when it is complete. If
 * several processes write it, the last one's remains. */
static zf_status zfd_products_save(zfd_products *p, zf_error *error)
{
    char head[256], part[1024];
    FILE *to = NULL;
    bool bad;
    if (!p->file || !p->fresh) return ZF_OK;
    for (int n = 0; n < 1000 && !to; n++) { /* a name that no file has yet */
        if (snprintf(part, sizeof part, "%s.part%d", p->file, n) >= (int)sizeof part) break;
        to = fopen(part, "wx");
    }
    bad = !to;
    if (to) {
        zfd_products_head(p, head, sizeof head);
        fputs(head, to);
        for (int i = 0; i < p->count; i++)
            if (p->plans[i].searched) zfd_plan_write(&p->plans[i], to);
        bad = ferror(to) != 0;
        bad |= fclose(to) != 0;
        bad = bad || rename(part, p->file) != 0;
        if (bad) remove(part);
    }
    p->fresh = bad;
    if (!bad) return ZF_OK;
    return zfd_cuda_fail(error, ZF_ERR_IO,
                         "%.400s: the algorithms found for products cannot be written there",
                         p->file);
}

/* ------------------------------------------------------------------------------------- plans */

static size_t zfd_gemm_bytes(int64_t rows, int64_t row, int64_t batch, int64_t step, int64_t dtype)
{
    return (size_t)(rows * row + (batch - 1) * step) * zf_dtype_size((zf_dtype)dtype);
}

/* Fills memory with bits that are small numbers in every float dtype. */
static __global__ void zfd_search_fill(uint32_t *to, size_t words)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < words;
         i += (size_t)gridDim.x * blockDim.x)
        to[i] = zfd_random_word(i, 0, 0, 0) & 0xbfffbfffu;
}

/* The number of the fastest candidate by trial, in memory allocated for it; -1 where there is not
 * enough memory. */
static int zfd_plan_trial(const zfd_device *d, zfd_plan *p, const zfd_algo *results, int count)
{
    const zfd_gemm *g = &p->gemm;
    size_t a = zfd_gemm_bytes(g->turn_a ? g->k : g->m, g->a_row, g->batch, g->a_batch, g->from);
    size_t b = zfd_gemm_bytes(g->turn_b ? g->n : g->k, g->b_row, g->batch, g->b_batch, g->from);
    size_t c = zfd_gemm_bytes(g->m, g->c_row, g->batch, g->c_batch, g->to);
    size_t bias = (size_t)g->n * sizeof(float), part[4], all = 0;
    size_t sizes[4] = {a, b, c, bias};
    cudaStream_t stream = d->streams[0];
    cudaEvent_t begin = NULL, end = NULL;
    unsigned char *memory = NULL, *work;
    float least = INFINITY, time;
    int best = -1;
    for (int i = 0; i < 4; i++) part[i] = all, all += (sizes[i] + 255) / 256 * 256;
    if (cudaMalloc(reinterpret_cast<void **>(&memory), all + ZFD_WORKSPACE) ||
        cudaEventCreate(&begin) || cudaEventCreate(&end))
        goto done;
    work = memory + all;
    ZFD_LAUNCH(zfd_search_fill, (unsigned)d->processors * 8, ZFD_THREADS, 0, stream,
               reinterpret_cast<uint32_t *>(memory), all / 4);
    for (int round = 0; round < ZFD_SEARCH_ROUNDS; round++) /* in turns: clocks change */
        for (int i = 0; i < count; i++) {
            bool good = !cudaEventRecord(begin, stream);
            for (int run = 0; run < ZFD_SEARCH_RUNS && good; run++)
                good = !zfd_blas.multiply(d, stream, g, &p->descriptors, &results[i],
                                          memory + part[0], memory + part[1], memory + part[2],
                                          NULL, g->bias ? memory + part[3] : NULL, 1, work,
                                          results[i].workspace);
            if (good && !cudaEventRecord(end, stream) && !cudaEventSynchronize(end) &&
                !cudaEventElapsedTime(&time, begin, end) && time < least)
                least = time, best = i;
        }
done:
    if (begin) (void)cudaEventDestroy(begin);
    if (end) (void)cudaEventDestroy(end);
    if (memory) (void)cudaFree(memory);
    (void)cudaGetLastError(); /* errors of candidates are not errors of a launch */
    return best;
}

/* Makes the plain kernel compute the plan's product. The remark counts a kept shape once. */
static void zfd_plan_is_plain(const zf_launch *l, zfd_products *kept, zfd_plan *p)
{
    const zfd_gemm *g = &p->gemm;
    const bool is_kept = p >= kept->plans && p < kept->plans + ZFD_PLANS;
    const char *general = zfd_blas.remark(zfd_device_of(l));
    p->able = false;
    if (!zfd_device_of(l)->blas || (!is_kept && kept->plain)) return; /* no library: that is said */
    if (!kept->plain++)
        snprintf(kept->first, sizeof kept->first, "%s %%%d [%lld,%lld] x [%lld,%lld] %s",
                 zf_op_name(l->op), (int)l->node, (long long)g->m, (long long)g->k,
                 (long long)g->k, (long long)g->n, zf_dtype_name((zf_dtype)g->from));
    snprintf(kept->remark, sizeof kept->remark,
             "products of %d shape%s run by a plain kernel, which is slow: %s has none for "
             "%s%s%s%s",
             kept->plain, kept->plain > 1 ? "s" : "", zfd_blas.name, kept->first,
             kept->plain > 1 ? " and others" : "", *general ? "; " : "", general);
}

static bool zfd_plan_describe(const zfd_products *kept, zfd_plan *p)
{
    return p->described = zfd_blas.describe(&p->gemm, kept->target, &p->descriptors);
}

/* The plan of g: a kept one, or a new one, which is kept where there is room; else it is in *aside.
 * Searches only if the backend was asked to and `search` is true. */
static const zfd_plan *zfd_plan_of(const zf_launch *l, const zfd_gemm *g, uint64_t workspace,
                                   bool search, zfd_plan *aside)
{
    const zfd_device *d = zfd_device_of(l);
    zfd_products *kept = d->products;
    zfd_algo results[ZFD_CANDIDATES];
    zfd_plan *p = aside;
    int found = 0, best = -1;
    for (int i = 0; i < kept->count; i++)
        if (!memcmp(&kept->plans[i].gemm, g, sizeof *g)) {
            p = &kept->plans[i];
            if (p->able && !p->described && !zfd_plan_describe(kept, p))
                zfd_plan_is_plain(l, kept, p);
            return p;
        }
    if (kept->count < ZFD_PLANS) p = &kept->plans[kept->count];
    search = search && kept->file && p != aside;
    memset(p, 0, sizeof *p);
    p->gemm = *g;
    if (zfd_plan_describe(kept, p))
        found = zfd_blas.recommend(d, g, &p->descriptors, workspace, results,
                                   search ? ZFD_CANDIDATES : 1);
    if (search && found > 0) best = found > 1 ? zfd_plan_trial(d, p, results, found) : 0;
    p->able = found > 0;
    p->searched = best >= 0;
    if (best < 0) best = 0; /* no trial: the recommended one */
    if (p->able) p->algo = results[best];
    else zfd_plan_is_plain(l, kept, p);
    kept->fresh |= p->searched;
    if (p != aside) kept->count++;
    return p;
}

/* ------------------------------------------------------------------------------- the plain kernel
 *
 * A block computes a tile of c, with k ascending, `deep` of k at a time in shared memory:
 *
 *     a [tile,deep]   b [deep,tile]
 *
 * By threads, 32 x 32 of c: a thread has column x and rows y, y + 8, y + 16, y + 24. */

template <class T> struct zfd_gemm_by_threads {
    typedef float held; /* elements in shared memory */
    static const bool there = true;
    static const int tile = 32, deep = 32, pitch = deep + 1, rows = ZFD_THREADS / tile;
    float sum[tile / rows];

    static __device__ __forceinline__ int place_b(int k, int n) { return k * pitch + n; }
    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int r = 0; r < tile / rows; r++) sum[r] = 0;
    }
    __device__ __forceinline__ void add(const held *a, const held *b)
    {
        const int x = (int)threadIdx.x % tile, y = (int)threadIdx.x / tile;
        for (int i = 0; i < deep; i++) {
            const float of = b[i * pitch + x];
#pragma unroll
            for (int r = 0; r < tile / rows; r++)
                sum[r] = fmaf(a[(y + r * rows) * pitch + i], of, sum[r]);
        }
    }
    /* Calls f(row, column, sum) for each of the thread's elements of the tile. */
    template <class F> __device__ __forceinline__ void each(F f) const
    {
#pragma unroll
        for (int r = 0; r < tile / rows; r++)
            f((int)threadIdx.x / tile + r * rows, (int)threadIdx.x % tile, sum[r]);
    }
};

#if ZFD_HAS_PLAIN
/* By the matrix cores of waves, 64 x 64 of c (cuda/cores/waves.cu). */
template <class CORE, class T> struct zfd_gemm_by_waves {
    typedef T held;
    static const bool there = CORE::there;
    static const int tile = 64, deep = 32, pitch = deep + 8;
    typedef zfd_wave_sums<CORE, T, tile, tile, ZFD_THREADS / CORE::lanes> share;
    share sums;

    static __device__ __forceinline__ int place_b(int k, int n) { return n * pitch + k; }
    __device__ __forceinline__ void clear() { sums.clear(); }
    __device__ __forceinline__ void add(const held *a, const held *b)
    {
        sums.template add<deep, false, false>(a, pitch, b, pitch);
    }
    template <class F> __device__ __forceinline__ void each(F f) const
    {
#pragma unroll
        for (int k = 0; k < share::most; k++)
#pragma unroll
            for (int i = 0; i < CORE::sums; i++) f(share::row(i), share::column(k), sums.at[k][i]);
    }
};

/* In 16 bits by CORE, else by threads. */
template <class CORE, class T>
using zfd_gemm_by = typename std::conditional<sizeof(T) == 2, zfd_gemm_by_waves<CORE, T>,
                                              zfd_gemm_by_threads<T>>::type;
#endif

/* A matrix in memory, of rows of so many elements. */
template <class T> struct zfd_floats_of {
    const T *from;
    int64_t line;
    __device__ __forceinline__ float operator()(int64_t row, int64_t at) const
    {
        return zfd_to_f32(from[row * line + at]);
    }
};

/* Adds the tile of a product that begins at row m and column n; b(row, at) is an element of a row
 * of b as it is stored; `part`: shared memory of the block. */
template <class T, class B, class WAY>
__device__ __forceinline__ void zfd_gemm_sum(WAY &way, const zfd_gemm &g, const T *a, const B &b,
                                             int64_t m, int64_t n, typename WAY::held *part)
{
    const int tile = WAY::tile, deep = WAY::deep;
    typename WAY::held *part_b = part + tile * WAY::pitch;
    for (int64_t k = 0; k < g.k; k += deep) {
        for (int i = (int)threadIdx.x; i < tile * deep; i += ZFD_THREADS) { /* by neighbours */
            const int at_m = g.turn_a ? i % tile : i / deep;
            const int a_k = g.turn_a ? i / tile : i % deep;
            const int at_n = g.turn_b ? i / deep : i % tile;
            const int b_k = g.turn_b ? i % deep : i / tile;
            const int64_t row_a = m + at_m, col_b = n + at_n;
            float of = 0;
            if (row_a < g.m && k + a_k < g.k)
                of = zfd_to_f32(
                    a[g.turn_a ? (k + a_k) * g.a_row + row_a : row_a * g.a_row + k + a_k]);
            part[at_m * WAY::pitch + a_k] = zfd_from_f32<typename WAY::held>(of);
            of = 0;
            if (col_b < g.n && k + b_k < g.k)
                of = g.turn_b ? b(col_b, k + b_k) : b(k + b_k, col_b);
            part_b[WAY::place_b(b_k, at_n)] = zfd_from_f32<typename WAY::held>(of);
        }
        __syncthreads();
        way.add(part, part_b);
        __syncthreads();
    }
}

template <class T, class U, class WAY>
static __global__ void __launch_bounds__(ZFD_THREADS)
    zfd_gemm_plain(zfd_gemm g, const T *a, const T *b, U *c, const U *added, const T *bias,
                   float alpha)
{
    const int tile = WAY::tile;
    if (!WAY::there) return;
    ZFD_SHARED(typename WAY::held, part);
    const int64_t down = (g.m + tile - 1) / tile, right = (g.n + tile - 1) / tile;
    for (int64_t task = blockIdx.x; task < down * right * g.batch; task += gridDim.x) {
        const int64_t batch = task / (down * right);
        const int64_t m = task / right % down * tile, n = task % right * tile;
        WAY way;
        way.clear();
        const zfd_floats_of<T> of_b = {b + batch * g.b_batch, g.b_row};
        zfd_gemm_sum(way, g, a + batch * g.a_batch, of_b, m, n, part);
        way.each([&](int at_m, int at_n, float sum) {
            const int64_t row = m + at_m, col = n + at_n;
            if (row >= g.m || col >= g.n) return;
            const int64_t at = batch * g.c_batch + row * g.c_row + col;
            float value = alpha * sum;
            if (bias) value += zfd_to_f32(bias[col]);
            if (added) value += zfd_to_f32(added[at]);
            c[at] = zfd_from_f32<U>(value);
        });
    }
}

template <class T, class U, class WAY>
static void zfd_gemm_launch(const zf_launch *l, const zfd_gemm &g, const T *a, const T *b, U *c,
                            const U *added, const T *bias, float alpha)
{
    const size_t shared = 2 * WAY::tile * WAY::pitch * sizeof(typename WAY::held);
    const unsigned grid =
        zfd_grid(l, zfd_div_up(g.m, WAY::tile) * zfd_div_up(g.n, WAY::tile) * g.batch);
    ZFD_LAUNCH((zfd_gemm_plain<T, U, WAY>), grid, ZFD_THREADS, shared, zfd_stream(l), g, a, b, c,
               added, bias, alpha);
}

template <class T, class U>
static void zfd_gemm_on(const zf_launch *l, const zfd_gemm &g, const void *a, const void *b,
                        void *c, const void *added, const void *bias, float alpha)
{
    const T *of_a = static_cast<const T *>(a), *of_b = static_cast<const T *>(b);
    const T *of_bias = static_cast<const T *>(bias);
    U *to = static_cast<U *>(c);
    const U *more = static_cast<const U *>(added);
    auto launch = zfd_gemm_launch<T, U, zfd_gemm_by_threads<T>>;
#if ZFD_HAS_PLAIN
    const zfd_cores cores = zfd_device_of(l)->cores;
    if (cores == ZFD_MFMA) launch = zfd_gemm_launch<T, U, zfd_gemm_by<zfd_mfma, T>>;
    if (cores == ZFD_WMMA) launch = zfd_gemm_launch<T, U, zfd_gemm_by<zfd_wmma, T>>;
#endif
    launch(l, g, of_a, of_b, to, more, of_bias, alpha);
}

/* ---------------------------------------------------------------------------------- products */

/* A product of contiguous matrices, a [m,k] or [k,m], b [k,n] or [n,k]. */
static zfd_gemm zfd_gemm_of(const zf_launch *l, int64_t m, int64_t n, int64_t k, bool turn_a,
                            bool turn_b)
{
    zfd_gemm g;
    memset(&g, 0, sizeof g);
    g.m = m, g.n = n, g.k = k, g.batch = 1;
    g.a_row = turn_a ? m : k, g.b_row = turn_b ? k : n, g.c_row = n;
    g.turn_a = turn_a, g.turn_b = turn_b;
    g.from = g.to = l->args[0].dtype;
    return g;
}

/* The product as the key of its plan. `lies`: the or of all operands' addresses, for their
 * alignment. TF32 is a setting of the device. */
static void zfd_gemm_settle(const zf_launch *l, zfd_gemm *g, uintptr_t addresses)
{
    const uint64_t all = addresses | 16 |
                         (uint64_t)(g->a_batch | g->b_batch) * zf_dtype_size((zf_dtype)g->from) |
                         (uint64_t)g->c_batch * zf_dtype_size((zf_dtype)g->to);
    g->tf32 = g->from == ZF_F32 && zfd_device_of(l)->products->tf32;
    g->lies = (int64_t)(all & (0 - all));
}

/* There is nothing to add, or no result. */
static bool zfd_gemm_empty(const zfd_gemm *g) { return !g->m || !g->n || !g->k || !g->batch; }

/* The bytes of scratch of the product: its workspace, with any alignment of scratch. Chooses the
 * algorithm. */
static size_t zfd_gemm_scratch(const zf_launch *l, zfd_gemm g)
{
    zfd_plan aside;
    size_t bytes;
    if (zfd_gemm_empty(&g)) return 0;
    zfd_gemm_settle(l, &g, 0);
    bytes = zfd_plan_of(l, &g, ZFD_WORKSPACE, true, &aside)->algo.workspace;
    return bytes ? bytes + ZFD_WORK_LIES : 0;
}

/* Where the workspace begins in scratch. */
static void *zfd_work_in(void *scratch)
{
    const uintptr_t lies = ZFD_WORK_LIES, at = reinterpret_cast<uintptr_t>(scratch);
    return reinterpret_cast<void *>((at + lies - 1) / lies * lies);
}

/* The product by the plain kernel. */
static zf_status zfd_gemm_by_hand(const zf_launch *l, const zfd_gemm *g, const void *a,
                                  const void *b, void *c, const void *added, const void *bias,
                                  float alpha)
{
    ZFD_FLOATS(l, (zf_dtype)g->from, T, {
        if (g->to == g->from) zfd_gemm_on<T, T>(l, *g, a, b, c, added, bias, alpha);
        else zfd_gemm_on<T, float>(l, *g, a, b, c, added, bias, alpha);
    })
    return zfd_launched(l);
}

/* Rows of a tile of f32 results of `cols` columns and about `bytes`. All tiles have about the same
 * size. */
static int64_t zfd_tile_rows(int64_t rows, int64_t cols, int64_t bytes)
{
    int64_t most = bytes / (int64_t)sizeof(float) / cols / ZFD_TILE_ROWS * ZFD_TILE_ROWS;
    if (most < ZFD_TILE_ROWS) most = ZFD_TILE_ROWS;
    if (rows <= most) return rows;
    rows = zfd_div_up(rows, zfd_div_up(rows, most));
    return zfd_div_up(rows, ZFD_TILE_ROWS) * ZFD_TILE_ROWS;
}

/* Puts the product on the launch's stream. added: an addend, which may be c, or NULL. bias: NULL,
 * unless g.bias. c has the dtype g.to: that of a and b, or f32. scratch has zfd_gemm_scratch
 * bytes. */
static zf_status zfd_gemm_run(const zf_launch *l, zfd_gemm g, const void *a, const void *b, void *c,
                              const void *added, const void *bias, float alpha, void *scratch)
{
    const uintptr_t all = reinterpret_cast<uintptr_t>(a) | reinterpret_cast<uintptr_t>(b) |
                          reinterpret_cast<uintptr_t>(c) | reinterpret_cast<uintptr_t>(added) |
                          reinterpret_cast<uintptr_t>(bias);
    const zfd_plan *p;
    zfd_plan aside, other;
    const char *failed = zfd_unable;
    if (!g.m || !g.n || !g.batch) return ZF_OK;
    if (g.from != ZF_F32 && g.from != ZF_BF16 && g.from != ZF_F16)
        return zfd_no_dtype(l, (zf_dtype)g.from);
    if (!g.k) return zfd_gemm_by_hand(l, &g, a, b, c, added, bias, alpha);
    zfd_gemm_settle(l, &g, 0);
    p = zfd_plan_of(l, &g, ZFD_WORKSPACE, false, &aside);
    if (all % (uintptr_t)g.lies) {
        zfd_gemm_settle(l, &g, all);
        p = zfd_plan_of(l, &g, p->algo.workspace, false, &other);
    }
    if (p->able) /* the library takes pointers without const to descriptors */
        failed = zfd_blas.multiply(zfd_device_of(l), zfd_stream(l), &p->gemm,
                                   &const_cast<zfd_plan *>(p)->descriptors, &p->algo, a, b, c,
                                   added, bias, alpha, zfd_work_in(scratch), p->algo.workspace);
    if (!failed) return ZF_OK;
    if (failed == zfd_unable) {
        if (p->able) zfd_plan_is_plain(l, zfd_device_of(l)->products, const_cast<zfd_plan *>(p));
        return zfd_gemm_by_hand(l, &g, a, b, c, added, bias, alpha);
    }
    return zfd_cuda_fail(l->error, ZF_ERR_BACKEND, "%s %%%d: %s: %s", zf_op_name(l->op),
                         (int)l->node, zfd_blas.name, failed);
}

/* ---------------------------------------------------------------------------------- sections */

/* Sums over sections of k by a balanced tree (base/tree.c): a product for each section, to the next
 * of the open sums in scratch, [depths][batch][m][n] of f32; then sums that are complete are added.
 * Each product has the bits of one of its length. */
typedef struct zfd_sections {
    int64_t count, length; /* of sections; of k in each, */
    int64_t runs, apart;   /* in so many runs; from one of these to the next */
    int64_t each;          /* elements of a sum */
    size_t sums;           /* bytes of all sums, which the workspace follows */
    zfd_gemm gemm;         /* of a section */
} zfd_sections;

static zfd_sections zfd_sections_of(zfd_gemm g, int64_t sections, int64_t runs)
{
    zfd_sections s;
    int64_t depths = runs > 1 ? 2 : 1;
    for (int64_t left = sections; left > 1; left = zfd_div_up(left, 2)) depths++;
    s.count = sections > 1 ? sections : 1, s.runs = runs > 1 ? runs : 1;
    s.apart = g.k / s.runs, s.length = s.apart / s.count;
    s.each = g.m * g.n * g.batch;
    s.sums = ((size_t)(depths * s.each) * sizeof(float) + 63) / 64 * 64;
    g.k = s.length, g.to = ZF_F32, g.bias = 0;
    g.c_row = g.n, g.c_batch = g.m * g.n;
    s.gemm = g;
    return s;
}

static __global__ void zfd_add_sums(float *to, const float *from, int64_t count)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * blockDim.x)
        to[i] += from[i];
}

/* out = added (or 0) + sum */
template <class T>
static __global__ void zfd_finish_sums(T *out, const T *added, const float *sum, int64_t count)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * blockDim.x)
        out[i] = zfd_from_f32<T>(added ? zfd_to_f32(added[i]) + sum[i] : sum[i]);
}

/* The sum of section i, in f32: of its part of each run. */
static zf_status zfd_section_run(const zf_launch *l, const zfd_sections *s, int64_t i,
                                 const char *a, size_t a_step, const char *b, size_t b_step,
                                 float *sum, void *work)
{
    const unsigned grid = zfd_grid(l, zfd_div_up(s->each, ZFD_THREADS));
    for (int64_t r = 0; r < s->runs; r++) {
        const size_t at = (size_t)(r * s->apart + i * s->length);
        const zf_status status = zfd_gemm_run(l, s->gemm, a + at * a_step, b + at * b_step,
                                              r ? sum + s->each : sum, NULL, NULL, 1, work);
        if (status) return status;
        if (r)
            ZFD_LAUNCH(zfd_add_sums, grid, ZFD_THREADS, 0, zfd_stream(l), sum, sum + s->each,
                       s->each);
    }
    return ZF_OK;
}

/* The sum of all sections, in f32, at the beginning of scratch; put(i, sum) makes that of one. */
template <class F>
static zf_status zfd_sections_add(const zf_launch *l, const zfd_sections *s, void *scratch, F put)
{
    const unsigned grid = zfd_grid(l, zfd_div_up(s->each, ZFD_THREADS));
    float *sum = static_cast<float *>(scratch);
    int open = 0;
    for (int64_t i = 0; i < s->count; i++, sum += s->each) {
        const zf_status status = put(i, sum);
        if (status) return status;
        open++;
        for (int64_t k = i; open > 1 && (k & 1 || i == s->count - 1); k >>= 1, open--) {
            sum -= s->each;
            ZFD_LAUNCH(zfd_add_sums, grid, ZFD_THREADS, 0, zfd_stream(l), sum, sum + s->each,
                       s->each);
        }
    }
    return zfd_launched(l);
}

static zf_status zfd_sections_run(const zf_launch *l, const zfd_sections *s, const void *a,
                                  const void *b, void *scratch)
{
    const size_t size = zf_dtype_size((zf_dtype)s->gemm.from);
    const size_t a_step = size * (size_t)(s->gemm.turn_a ? s->gemm.a_row : 1),
                 b_step = size * (size_t)(s->gemm.turn_b ? 1 : s->gemm.b_row);
    return zfd_sections_add(l, s, scratch, [&](int64_t i, float *sum) {
        return zfd_section_run(l, s, i, static_cast<const char *>(a), a_step,
                               static_cast<const char *>(b), b_step, sum,
                               static_cast<char *>(scratch) + s->sums);
    });
}

static size_t zfd_sections_scratch(const zf_launch *l, const zfd_sections *s)
{
    return s->sums + zfd_gemm_scratch(l, s->gemm);
}

/* ------------------------------------------------------------------------------------ matmul */

/* The launch as a loop over products, with the distances between them. */
typedef struct zfd_product {
    zfd_gemm gemm;
    int rank; /* leading dimensions that are not in gemm.batch */
    int64_t dims[ZF_MAX_RANK], step_a[ZF_MAX_RANK], step_b[ZF_MAX_RANK], step_c[ZF_MAX_RANK];
} zfd_product;

/* Size of leading dimension `axis` of out in x: 1 where x is repeated along it. */
static int64_t zfd_lead(const zf_shape *x, const zf_shape *out, int axis)
{
    int at = axis - (out->rank - x->rank);
    return at >= 0 ? x->dims[at] : 1;
}

static zfd_product zfd_product_of(const zf_launch *l)
{
    const zf_shape *a = &l->args[0].shape, *b = &l->args[1].shape, *out = &l->out.shape;
    const bool turn_a = ZF_INT(l, matmul, transpose_a) != 0,
               turn_b = ZF_INT(l, matmul, transpose_b) != 0;
    int64_t size_a = a->dims[a->rank - 2] * a->dims[a->rank - 1], rows = 1, axes[ZF_MAX_RANK];
    int64_t size_b = b->dims[b->rank - 2] * b->dims[b->rank - 1], size_c, b_count = 1;
    int64_t step_a[ZF_MAX_RANK], step_b[ZF_MAX_RANK], step_c[ZF_MAX_RANK];
    zfd_product p;
    zfd_gemm *g = &p.gemm;
    p.rank = 0;
    *g = zfd_gemm_of(l, out->dims[out->rank - 2], out->dims[out->rank - 1],
                     a->dims[a->rank - (turn_a ? 2 : 1)], turn_a, turn_b);
    size_c = g->m * g->n;
    for (int axis = out->rank - 3; axis >= 0; axis--) {
        int64_t of_a = zfd_lead(a, out, axis), of_b = zfd_lead(b, out, axis);
        axes[axis] = out->dims[axis];
        step_a[axis] = of_a == 1 ? 0 : size_a, step_b[axis] = of_b == 1 ? 0 : size_b;
        step_c[axis] = size_c;
        size_a *= of_a, size_b *= of_b, size_c *= out->dims[axis];
        rows *= out->dims[axis], b_count *= of_b;
    }
    for (int axis = 0; axis < out->rank - 2; axis++) /* dimensions of size 1 need no loop */
        if (axes[axis] != 1) {
            p.dims[p.rank] = axes[axis], p.step_a[p.rank] = step_a[axis];
            p.step_b[p.rank] = step_b[axis], p.step_c[p.rank++] = step_c[axis];
        }
    /* One b for every a: the batch becomes rows. */
    if (!turn_a && b_count == 1) g->m *= rows, p.rank = 0;
    /* The innermost leading dimensions become one batch where they are evenly spaced in all
     * three. */
    for (int axis = p.rank - 1; axis >= 0; axis--, p.rank--) {
        if (g->batch > 1 && (p.step_a[axis] != g->a_batch * g->batch ||
                             p.step_b[axis] != g->b_batch * g->batch ||
                             p.step_c[axis] != g->c_batch * g->batch))
            break;
        if (g->batch == 1)
            g->a_batch = p.step_a[axis], g->b_batch = p.step_b[axis], g->c_batch = p.step_c[axis];
        g->batch *= p.dims[axis];
    }
    g->to = l->out.dtype;
    return p;
}

/* The product of matrices that begin at these elements. */
static zf_status zfd_matmul_at(const zf_launch *l, const zfd_gemm *g, int64_t at_a, int64_t at_b,
                               int64_t at_c)
{
    const size_t size = zf_dtype_size(l->args[0].dtype), to = zf_dtype_size(l->out.dtype);
    const char *a = static_cast<const char *>(l->args[0].data) + (size_t)at_a * size,
               *b = static_cast<const char *>(l->args[1].data) + (size_t)at_b * size,
               *added = l->arg_count > 2
                            ? static_cast<const char *>(l->args[2].data) + (size_t)at_c * size
                            : NULL;
    char *c = static_cast<char *>(l->out.data) + (size_t)at_c * to;
    const int64_t sections = ZF_INT(l, matmul, sections), runs = ZF_INT(l, matmul, runs);
    zfd_sections s;
    zf_status status;
    if ((sections <= 1 && runs <= 1) || !g->k) return zfd_gemm_run(l, *g, a, b, c, added, NULL, 1, l->scratch);
    s = zfd_sections_of(*g, sections, runs);
    if ((status = zfd_sections_run(l, &s, a, b, l->scratch)) != ZF_OK) return status;
    ZFD_FLOATS(l, l->out.dtype, T, {
        ZFD_LAUNCH(zfd_finish_sums<T>, zfd_grid(l, zfd_div_up(s.each, ZFD_THREADS)), ZFD_THREADS, 0,
                   zfd_stream(l), reinterpret_cast<T *>(c), reinterpret_cast<const T *>(added),
                   static_cast<const float *>(l->scratch), s.each);
    })
    return zfd_launched(l);
}

static size_t zfd_cuda_scratch_matmul(const zf_launch *l)
{
    const int64_t sections = ZF_INT(l, matmul, sections), runs = ZF_INT(l, matmul, runs);
    zfd_product p;
    zfd_sections s;
    if (!zfd_count(&l->out)) return 0;
    p = zfd_product_of(l);
    if ((sections <= 1 && runs <= 1) || !p.gemm.k) return zfd_gemm_scratch(l, p.gemm);
    s = zfd_sections_of(p.gemm, sections, runs);
    return zfd_sections_scratch(l, &s);
}

static zf_status zfd_cuda_matmul(const zf_launch *l)
{
    int64_t count = 1;
    zfd_product p;
    if (!zfd_count(&l->out)) return ZF_OK;
    p = zfd_product_of(l);
    for (int axis = 0; axis < p.rank; axis++) count *= p.dims[axis];
    for (int64_t outer = 0; outer < count; outer++) {
        int64_t at_a = 0, at_b = 0, at_c = 0, rest = outer;
        zf_status status;
        for (int axis = p.rank - 1; axis >= 0; rest /= p.dims[axis--]) {
            int64_t i = rest % p.dims[axis];
            at_a += i * p.step_a[axis], at_b += i * p.step_b[axis], at_c += i * p.step_c[axis];
        }
        status = zfd_matmul_at(l, &p.gemm, at_a, at_b, at_c);
        if (status) return status;
    }
    return ZF_OK;
}

ZFD_KERNEL(matmul, zfd_cuda_matmul, zfd_cuda_scratch_matmul)
