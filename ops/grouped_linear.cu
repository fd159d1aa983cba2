/* grouped_linear and grouped_outer on CUDA (ops/grouped_linear.c). A block computes a tile of the
 * product of one expert, of which it learns the rows from the bounds, in device memory: tiles are
 * dealt as if each expert ended with a part of one. Rows of several ranks are groups of their own:
 * those of all experts of the first rank, then of the next. Numbers of records become floats where a
 * tile of them is read. Sections, and the ranks of grouped_outer, are products of their own, whose
 * sums are added in scratch. */

#if ZFD_HAS_MMA
/* By the tensor cores of warps, 64 x 64 of c: a warp has 16 rows and 32 columns. */
template <class T> struct zfd_gemm_by_warps {
    typedef T held;
    static const bool there = true;
    static const int tile = 64, deep = 32, pitch = deep + 8, columns = 4;
    float sum[columns][4];

    static __device__ __forceinline__ int place_b(int k, int n) { return n * pitch + k; }
    static __device__ __forceinline__ int row() { return (int)threadIdx.x / ZFD_WARP % 4 * 16; }
    static __device__ __forceinline__ int column() { return (int)threadIdx.x / ZFD_WARP / 4 * 32; }
    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int c = 0; c < columns; c++)
#pragma unroll
            for (int i = 0; i < 4; i++) sum[c][i] = 0;
    }
    __device__ __forceinline__ void add(const held *a, const held *b)
    {
        const int lane = (int)threadIdx.x % ZFD_WARP;
        for (int k = 0; k < deep; k += 16) {
            uint32_t x[4], y[4];
            zfd_fragments<false>(x, a + (row() + lane % 16) * pitch + k + lane / 16 * 8);
#pragma unroll
            for (int c = 0; c < columns; c += 2) {
                const int n = column() + c * 8 + lane % 8 + lane / 16 * 8;
                zfd_fragments<false>(y, b + n * pitch + k + lane / 8 % 2 * 8);
                zfd_tensor_core<T>::mma(sum[c], x, y[0], y[1]);
                zfd_tensor_core<T>::mma(sum[c + 1], x, y[2], y[3]);
            }
        }
    }
    template <class F> __device__ __forceinline__ void each(F f) const
    {
        const int lane = (int)threadIdx.x % ZFD_WARP;
#pragma unroll
        for (int c = 0; c < columns; c++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                f(row() + lane / 4 + i / 2 * 8, column() + c * 8 + lane % 4 * 2 + i % 2, sum[c][i]);
    }
};


/* In 16 bits by tensor cores, else by threads. */
template <class T>
using zfd_gemm_by_cores = typename std::conditional<sizeof(T) == 2, zfd_gemm_by_warps<T>,
                                                    zfd_gemm_by_threads<T>>::type;
#endif

typedef struct zfd_grouped {
    zfd_gemm gemm; /* of one expert; its rows are m, or k where `outer` */
    const int *bounds;
    int64_t experts, groups, run; /* groups of rows, an expert each; run: rows of a rank's part */
    int64_t rows, a_row, b_row, b_step, c_step;
    bool outer;
    int32_t op, node;
    zfd_fault *fault;
    zfd_blocks blocks; /* of records; bits 0: matrices are floats, */
    zfd_divisor block; /* and their numbers */
} zfd_grouped;

/* Matrices of records: numbers as they are where dequantised in T. */
template <class T> struct zfd_records_of {
    const unsigned char *from;
    int64_t line; /* bytes */
    zfd_blocks b;
    zfd_divisor block;
    __device__ __forceinline__ float operator()(int64_t row, int64_t at) const
    {
        const int64_t nth = zfd_divide(at, block);
        const unsigned char *record = from + row * line + nth * b.record;
        const int i = (int)(at - nth * b.block), half = b.block / 2;
        const bool high = b.bits == 4 && i >= half;
        const int byte = record[b.head + (high ? i - half : i)];
        const int q = zfd_integer_of(byte, b.bits, high);
        return zfd_to_f32(
            zfd_from_f32<T>(__fmul_rn((float)q, zfd_get_scale(record, b.head))));
    }
};

/* The matrix of expert e, from element (or row, where the product is not turned) `at` on. */
template <class T>
__device__ __forceinline__ zfd_floats_of<T> zfd_grouped_matrix(const zfd_grouped &g, const T *b,
                                                               int64_t first, int64_t e)
{
    return {b + first * g.b_row + e * g.b_step, g.gemm.b_row};
}
template <class T>
__device__ __forceinline__ zfd_records_of<T> zfd_grouped_matrix(const zfd_grouped &g,
                                                                const unsigned char *b, int64_t,
                                                                int64_t e)
{
    return {b + e * g.b_step, g.b_row, g.blocks, g.block};
}

/* The first row of a group, or (1) its end. */
__device__ __forceinline__ int64_t zfd_grouped_bound(const zfd_grouped &g, int64_t group, int end)
{
    return group / g.experts * g.run + g.bounds[2 * group + end];
}

/* The group of tile number *down of rows, which becomes that of the group's; -1: there is none. */
__device__ __forceinline__ int64_t zfd_grouped_of_tile(const zfd_grouped &g, int tile,
                                                       int64_t *down)
{
    for (int64_t e = 0; e < g.groups; e++) {
        const int64_t tiles = (g.bounds[2 * e + 1] - g.bounds[2 * e] + tile - 1) / tile;
        if (*down < tiles) return e;
        *down -= tiles;
    }
    return -1;
}

/* B: T, or bytes of records. */
template <class T, class B, class U, class WAY>
static __global__ void __launch_bounds__(ZFD_THREADS)
    zfd_grouped_kernel(const zfd_grouped g, const T *a, const B *b, U *out)
{
    const int tile = WAY::tile;
    if (!WAY::there) return;
    ZFD_SHARED(typename WAY::held, part);
    const int64_t right = (g.gemm.n + tile - 1) / tile;
    const int64_t down = g.outer ? (g.gemm.m + tile - 1) / tile * g.experts
                                 : (g.rows + tile - 1) / tile + g.groups;
    for (int64_t task = blockIdx.x; task < down * right; task += gridDim.x) {
        int64_t m = task / right, e = 0;
        zfd_gemm one = g.gemm;
        WAY way;
        if (g.outer) e = m % g.experts, m /= g.experts;
        else e = zfd_grouped_of_tile(g, tile, &m);
        if (e < 0) continue;
        const int64_t first = zfd_grouped_bound(g, e, 0), count = zfd_grouped_bound(g, e, 1) - first;
        e %= g.experts;
        if (g.outer) one.k = count;
        else one.m = count;
        m *= tile;
        way.clear();
        zfd_gemm_sum(way, one, a + first * g.a_row, zfd_grouped_matrix<T>(g, b, first, e), m,
                     task % right * tile, part);
        U *to = out + (g.outer ? 0 : first * one.c_row) + e * g.c_step;
        way.each([&](int at_m, int at_n, float sum) {
            const int64_t row = m + at_m, col = task % right * tile + at_n;
            if (row < one.m && col < one.n)
                to[row * one.c_row + col] = zfd_from_f32<U>(sum);
        });
    }
}

/* Bounds that do not ascend are reported; the step fails. */
static __global__ void zfd_grouped_check_kernel(const zfd_grouped g)
{
    for (int64_t e = threadIdx.x; e < g.groups; e += blockDim.x) {
        const int64_t before = e ? zfd_grouped_bound(g, e - 1, 1) : 0;
        zfd_fault what = {ZFD_FAULT_BOUNDS, g.op, g.node, e, zfd_grouped_bound(g, e, 0), g.rows, 0,
                          zfd_grouped_bound(g, e, 1), 0};
        if (what.value < before || what.ignored < what.value || what.ignored > g.rows)
            zfd_report(g.fault, what);
    }
}

static zfd_grouped zfd_grouped_of(const zf_launch *l)
{
    const int64_t rows = l->args[0].shape.dims[0], k = l->args[0].shape.dims[1];
    const bool outer = l->op == ZF_OP_grouped_outer;
    const int64_t sources = max((int64_t)1, outer ? ZF_INT(l, grouped_outer, sources)
                                                  : ZF_INT(l, grouped_linear, sources)) *
                            max((int64_t)1, outer ? ZF_INT(l, grouped_outer, parts)
                                                  : ZF_INT(l, grouped_linear, parts));
    zfd_grouped g;
    memset(&g, 0, sizeof g);
    g.outer = outer;
    g.bounds = static_cast<const int *>(l->args[2].data);
    g.groups = l->args[2].shape.dims[0], g.experts = g.groups / sources;
    g.rows = rows, g.run = rows / sources;
    g.op = l->op, g.node = l->node, g.fault = zfd_device_of(l)->fault;
    g.a_row = k;
    if (g.outer) {
        const int64_t n = l->args[1].shape.dims[1];
        g.gemm = zfd_gemm_of(l, k, n, rows, true, false);
        g.b_row = n, g.c_step = k * n;
    } else {
        const int64_t n = l->out.shape.dims[1];
        g.gemm = zfd_gemm_of(l, rows, n, k, false, !ZF_INT(l, grouped_linear, transpose));
        g.b_step = n * k;
        if (ZF_INT(l, grouped_linear, bits)) {
            g.blocks = zfd_blocks_by(ZF_INT(l, grouped_linear, bits),
                                     ZF_INT(l, grouped_linear, block),
                                     ZF_INT(l, grouped_linear, scale));
            g.block = zfd_divisor_of(g.blocks.block, max(n, k));
            g.b_row = l->args[1].shape.dims[2], g.b_step = l->args[1].shape.dims[1] * g.b_row;
        }
    }
    return g;
}

static zfd_sections zfd_grouped_sections(const zf_launch *l)
{
    return zfd_sections_of(zfd_grouped_of(l).gemm, ZF_INT(l, grouped_linear, sections), 1);
}

/* The sums of sections. */
static size_t zfd_cuda_scratch_grouped_linear(const zf_launch *l)
{
    if (!zfd_count(&l->out)) return 0;
    return ZF_INT(l, grouped_linear, sections) > 1 ? zfd_grouped_sections(l).sums : 0;
}

/* How many sums the result has, one after the other: with `apart` that of each rank. */
static int64_t zfd_outer_apart(const zf_launch *l)
{
    const int64_t sources = max((int64_t)1, ZF_INT(l, grouped_outer, sources));
    return ZF_INT(l, grouped_outer, apart) ? sources : 1;
}

/* The ranks and parts that are added. */
static int64_t zfd_outer_terms(const zf_launch *l)
{
    const int64_t sources = max((int64_t)1, ZF_INT(l, grouped_outer, sources)),
                  parts = max((int64_t)1, ZF_INT(l, grouped_outer, parts));
    return sources * parts / zfd_outer_apart(l);
}

/* Those of ranks and parts, of all matrices. */
static zfd_sections zfd_outer_sections(const zf_launch *l)
{
    zfd_gemm g;
    memset(&g, 0, sizeof g);
    g.m = zfd_count(&l->out) / zfd_outer_apart(l), g.n = g.batch = 1;
    return zfd_sections_of(g, zfd_outer_terms(l), 1);
}

static size_t zfd_cuda_scratch_grouped_outer(const zf_launch *l)
{
    const bool several = zfd_outer_terms(l) > 1 && zfd_count(&l->out);
    return several ? zfd_outer_sections(l).sums : 0;
}

/* The product, or that of a section of k, of which a and b are the first elements. */
template <class T, class B, class U, class WAY>
static void zfd_grouped_launch(const zf_launch *l, const zfd_grouped &g, const T *a, const B *b,
                               U *out)
{
    const size_t shared = 2 * WAY::tile * WAY::pitch * sizeof(typename WAY::held);
    const int64_t down = g.outer ? zfd_div_up(g.gemm.m, WAY::tile) * g.experts
                                 : zfd_div_up(g.rows, WAY::tile) + g.groups;
    ZFD_LAUNCH((zfd_grouped_kernel<T, B, U, WAY>),
               zfd_grid(l, down * zfd_div_up(g.gemm.n, WAY::tile)), ZFD_THREADS, shared,
               zfd_stream(l), g, a, b, out);
}

template <class T, class B, class U>
static void zfd_grouped_by(const zf_launch *l, const zfd_grouped &g, const T *a, const B *b, U *out)
{
    auto launch = zfd_grouped_launch<T, B, U, zfd_gemm_by_threads<T>>;
    const zfd_cores cores = zfd_device_of(l)->cores;
    (void)cores;
#if ZFD_HAS_MMA
    if (cores == ZFD_MMA) launch = zfd_grouped_launch<T, B, U, zfd_gemm_by_cores<T>>;
#endif
#if ZFD_HAS_PLAIN
    if (cores == ZFD_MFMA) launch = zfd_grouped_launch<T, B, U, zfd_gemm_by<zfd_mfma, T>>;
    if (cores == ZFD_WMMA) launch = zfd_grouped_launch<T, B, U, zfd_gemm_by<zfd_wmma, T>>;
#endif
    launch(l, g, a, b, out);
}

/* The sums of all sections of k, or of all ranks. Rows of no expert are 0 in scratch before anything
 * is put there. */
template <class T>
static zf_status zfd_grouped_sums(const zf_launch *l, zfd_grouped g, const T *a, const T *b)
{
    const zfd_sections s = g.outer ? zfd_outer_sections(l) : zfd_grouped_sections(l);
    const int64_t step = g.gemm.turn_b ? 1 : g.gemm.b_row;
    zf_status status = ZF_OK;
    if (!g.outer) {
        g.gemm = s.gemm;
        status = zfd_move_bytes(l, l->scratch, NULL, (int64_t)s.sums);
    }
    g.groups = g.outer ? g.experts : g.groups;
    return status ? status : zfd_sections_add(l, &s, l->scratch, [&](int64_t i, float *sum) {
        zfd_grouped one = g;
        if (!g.outer) {
            zfd_grouped_by<T, T, float>(l, one, a + i * s.length, b + i * s.length * step, sum);
        } else {
            one.bounds += 2 * i * g.experts;
            zfd_grouped_by<T, T, float>(l, one, a + i * g.run * g.a_row, b + i * g.run * g.b_row,
                                        sum);
        }
        return zfd_launched(l);
    });
}

/* Of operands and groups that begin at a, b and g.bounds. Rows of no expert are 0 in `out`. */
template <class T, class U>
static zf_status zfd_grouped_from(const zf_launch *l, const zfd_grouped &g, const T *a, const T *b,
                                  U *out, int64_t count)
{
    const bool sums = g.outer ? zfd_outer_terms(l) > 1
                              : ZF_INT(l, grouped_linear, sections) > 1 && g.gemm.k;
    zf_status status;
    if (!sums) {
        if (g.blocks.bits)
            zfd_grouped_by<T, unsigned char, U>(
                l, g, a, static_cast<const unsigned char *>(l->args[1].data), out);
        else zfd_grouped_by<T, T, U>(l, g, a, b, out);
        return zfd_launched(l);
    }
    status = zfd_grouped_sums<T>(l, g, a, b);
    if (status) return status;
    ZFD_LAUNCH(zfd_finish_sums<U>, zfd_grid(l, zfd_div_up(count, ZFD_THREADS)), ZFD_THREADS, 0,
               zfd_stream(l), out, static_cast<const U *>(NULL), static_cast<float *>(l->scratch),
               count);
    return zfd_launched(l);
}

template <class T, class U> static zf_status zfd_grouped_on(const zf_launch *l, U *out)
{
    const zfd_grouped g = zfd_grouped_of(l);
    const T *a = static_cast<const T *>(l->args[0].data),
            *b = static_cast<const T *>(l->args[1].data);
    const int64_t apart = g.outer ? zfd_outer_apart(l) : 1, count = zfd_count(&l->out) / apart,
                  rows = g.rows / apart;
    zf_status status = ZF_OK;
    ZFD_LAUNCH(zfd_grouped_check_kernel, 1, ZFD_THREADS, 0, zfd_stream(l), g);
    for (int64_t s = 0; s < apart && !status; s++) {
        zfd_grouped one = g;
        one.bounds += s * (g.groups / apart) * 2;
        status = zfd_grouped_from(l, one, a + s * rows * g.a_row, b + s * rows * g.b_row,
                                  out + s * count, count);
    }
    return status;
}

static zf_status zfd_cuda_grouped(const zf_launch *l)
{
    zf_status status;
    if (!zfd_count(&l->out)) return ZF_OK;
    status = zfd_move_bytes(l, l->out.data, NULL, (int64_t)zfd_bytes(&l->out));
    if (status) return status;
    ZFD_FLOATS(l, l->args[0].dtype, T, {
        if (l->out.dtype == ZF_F32)
            status = zfd_grouped_on<T, float>(l, static_cast<float *>(l->out.data));
        else status = zfd_grouped_on<T, T>(l, static_cast<T *>(l->out.data));
    })
    return status;
}

ZFD_KERNEL(grouped_linear, zfd_cuda_grouped, zfd_cuda_scratch_grouped_linear)
ZFD_KERNEL(grouped_outer, zfd_cuda_grouped, zfd_cuda_scratch_grouped_outer)
