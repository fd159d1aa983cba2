/* Products with bias and activation (ops/linear.c) on CUDA.
 *
 *     f32, no activation   y = product + bias, by cuBLASLt
 *     f32, activation      the product to u (or y), then a kernel for bias, u and activation
 *     bf16, f16            u = product + bias by cuBLASLt, which rounds it once; then a kernel
 *                          computes y from the rounded u. Without u, it is y's memory
 *     sections             their sum in f32 (ops/matmul.cu), and the kernel of f32 with activation
 *     the same, n or k not a multiple of 8     the product is f32, in tiles of rows in scratch,
 *                          and a kernel does the rest: cuBLASLt may round before the bias there
 *
 *         x rows  -->  product f32 [tile,n] in scratch  -->  u rows, y rows
 *
 * cuBLASLt's own GELU is not used: it has the tanh form. Nor is its ReLU, which turns NaN into
 * 0. */

/* Bytes of a tile of f32, which stays in the second-level cache; few in the emulation, so that its
 * tests have several tiles. */
enum { ZFD_LINEAR_BYTES = ZFD_SMALL_TILES ? 2 << 10 : 16 << 20 };

/* ZFD_AS_gelu_1 is the activation that gelu with form 1 is. */
#define ZFD_NOTHING(...)
#define ZFD_ROW(name, least, most, attributes)     attributes
#define ZFD_CODE(op, code, kind, form, activation) ZFD_AS_##op##_##form = activation,
enum { ZF_OPS(ZFD_ROW, ZFD_NOTHING, ZFD_NOTHING, ZFD_CODE) ZFD_AS_NONE = 0 };
#undef ZFD_NOTHING
#undef ZFD_ROW
#undef ZFD_CODE

/* In place, for results of type T. */
template <class T, int N>
__device__ __forceinline__ void zfd_activate(int activation, float (&y)[N])
{
    const zfd_gelu_way by_erf = sizeof(T) == 4 ? ZFD_GELU_BY_ERF : ZFD_GELU_NARROW;
    typedef float C;
    const float(&a)[N] = y, (&b)[N] = y;
    switch (activation) {
    case ZFD_AS_gelu_0: ZFD_EACH(zfd_gelu(p, by_erf));
    case ZFD_AS_gelu_1: ZFD_EACH(zfd_gelu(p, ZFD_GELU_BY_TANH));
    case ZFD_AS_relu_0: ZFD_EACH(p <= 0 ? 0 : p);
    case ZFD_AS_silu_0: ZFD_EACH(p * zfd_sigmoid(p));
    case ZFD_AS_tanh_0: ZFD_EACH(tanhf(p));
    case ZFD_AS_sigmoid_0: ZFD_EACH(zfd_sigmoid(p));
    default: break;
    }
}

/* u[row,col] = product[row,col] + bias[col] + added[row,col], y[row,col] = activation(u[row,col]).
 * bias, added and u may be NULL; product may be u or y. A thread has N columns and loops over the
 * rows; `width` threads are side by side. */
template <class T, int N>
static __global__ void zfd_linear_finish(const float *product, const T *bias, const T *added, T *u,
                                         T *y, int64_t rows, int64_t cols, int activation,
                                         int width)
{
    const int64_t first = blockIdx.x * (int64_t)(blockDim.x / width) + threadIdx.x / width;
    const int64_t down = gridDim.x * (int64_t)(blockDim.x / width);
    for (int64_t pack = blockIdx.y * (int64_t)width + threadIdx.x % width; pack * N < cols;
         pack += gridDim.y * (int64_t)width) {
        float b[N] = {0}, x[N];
        if (bias) zfd_load(b, bias + pack * N);
        for (int64_t row = first; row < rows; row += down) {
            const int64_t at = row * cols + pack * N;
            zfd_load(x, product + at);
            if (bias)
#pragma unroll
                for (int i = 0; i < N; i++) x[i] += b[i];
            if (added) {
                float more[N];
                zfd_load(more, added + at);
#pragma unroll
                for (int i = 0; i < N; i++) x[i] += more[i];
            }
            if (u) zfd_store(u + at, x);
            zfd_activate<T>(activation, x);
            zfd_store(y + at, x);
        }
    }
}

/* y = activation(u), for the packs of N elements from `first` on within `count`. y may be u. */
template <class T, int N>
static __global__ void zfd_linear_activate(int64_t first, int64_t count, const T *u, T *y,
                                           int activation)
{
    for (int64_t i = first + ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N; i < count;
         i += (int64_t)gridDim.x * blockDim.x * N) {
        float x[N];
        zfd_load(x, u + i);
        zfd_activate<T>(activation, x);
        zfd_store(y + i, x);
    }
}

template <class T, int N>
static void zfd_linear_launch(const zf_launch *l, const float *product, const T *bias,
                              const T *added, T *u, T *y, int64_t rows, int64_t cols)
{
    int width = ZFD_WARP;
    unsigned across, down;
    while (width < ZFD_THREADS && (int64_t)width * N < cols) width *= 2;
    across = (unsigned)zfd_div_up(cols, (int64_t)width * N);
    if (across > 65535) across = 65535;
    down = zfd_grid(l, zfd_div_up(rows, ZFD_THREADS / width));
    down = (unsigned)zfd_div_up(down, across < 16 ? across : 16); /* rows share a bias */
    ZFD_LAUNCH((zfd_linear_finish<T, N>), dim3(down, across), ZFD_THREADS, 0, zfd_stream(l),
               product, bias, added, u, y, rows, cols, (int)ZF_INT(l, linear, activation), width);
}

/* How the work is split: one product, or tiles in f32 in scratch. */
typedef struct zfd_linear {
    bool direct;                    /* cuBLASLt computes y or u */
    bool activate;                  /* a kernel computes y from u */
    int64_t rows, cols, tile, rest; /* tile, rest: rows of a tile, and of the last */
    zfd_gemm gemm;                  /* the product of a tile */
    size_t product;                 /* bytes of the f32 tile, which the workspace follows */
    bool cut;                       /* the product has sections, whose sums are in scratch */
} zfd_linear;

static zfd_linear zfd_linear_of(const zf_launch *l)
{
    const int64_t n = l->args[1].shape.dims[0], k = l->args[1].shape.dims[1];
    zfd_linear p;
    const bool plain = ZF_INT(l, linear, activation) == ZFD_AS_NONE;
    p.cut = ZF_INT(l, linear, sections) > 1 && k;
    if (p.cut) p.direct = false;
    else if (l->out.dtype == ZF_F32) p.direct = plain;
    else p.direct = (n % 8 == 0 && k % 8 == 0) || (plain && l->arg_count < 3);
    p.activate = p.direct && !plain;
    p.rows = zfd_count(&l->out) / n, p.cols = n;
    p.tile = p.rows;
    if (!p.direct && (p.cut || l->out.dtype != ZF_F32))
        p.tile = zfd_tile_rows(p.rows, n, ZFD_LINEAR_BYTES);
    p.rest = p.rows - (p.rows - 1) / p.tile * p.tile;
    p.gemm = zfd_gemm_of(l, p.tile, n, k, false, true);
    p.gemm.bias = p.direct && l->arg_count > 2;
    p.product = 0;
    if (l->out.dtype == ZF_F32) p.gemm.to = ZF_F32;
    if (!p.direct && !p.cut && l->out.dtype != ZF_F32) {
        p.gemm.to = ZF_F32;
        p.product = ((size_t)(p.tile * n) * sizeof(float) + 63) / 64 * 64;
    }
    return p;
}

/* Bytes of scratch for the product of a tile. */
static size_t zfd_linear_work(const zf_launch *l, bool cut, zfd_gemm g)
{
    zfd_sections s;
    if (!cut) return zfd_gemm_scratch(l, g);
    s = zfd_sections_of(g, ZF_INT(l, linear, sections), 1);
    return zfd_sections_scratch(l, &s);
}

static size_t zfd_cuda_scratch_linear(const zf_launch *l)
{
    zfd_linear p;
    size_t work, rest;
    if (!zfd_count(&l->out)) return 0;
    p = zfd_linear_of(l);
    work = zfd_linear_work(l, p.cut, p.gemm);
    p.gemm.m = p.rest;
    rest = zfd_linear_work(l, p.cut, p.gemm);
    return p.product + (work > rest ? work : rest);
}

static zf_status zfd_cuda_linear(const zf_launch *l)
{
    const zf_array *saved = zfd_saved_out(l, 0);
    const void *bias = l->arg_count > 2 ? l->args[2].data : NULL;
    const void *added = l->arg_count > 3 ? l->args[3].data : NULL;
    zfd_linear p;
    unsigned char *product = static_cast<unsigned char *>(l->scratch);
    zf_status status = ZF_OK;
    if (!zfd_count(&l->out)) return ZF_OK;
    p = zfd_linear_of(l);
    if (p.direct) {
        void *to = p.activate && saved ? saved->data : l->out.data;
        status = zfd_gemm_run(l, p.gemm, l->args[0].data, l->args[1].data, to, added, bias, 1,
                              l->scratch);
        if (status || !p.activate) return status;
        ZFD_FLOATS(l, l->out.dtype, T, {
            const int n = zfd_wide<T>::count;
            T *u = static_cast<T *>(to), *y = static_cast<T *>(l->out.data);
            ZFD_FLAT(l, n, zfd_count(&l->out), zfd_lies_well(0, 1, u, y),
                     (zfd_linear_activate<T, n>), (zfd_linear_activate<T, 1>), u, y,
                     (int)ZF_INT(l, linear, activation))
        })
        return zfd_launched(l);
    }
    for (int64_t row = 0; row < p.rows && !status; row += p.tile) {
        p.gemm.m = row + p.tile < p.rows ? p.tile : p.rest;
        ZFD_FLOATS(l, l->out.dtype, T, {
            const char *x = static_cast<const char *>(l->args[0].data) +
                            (size_t)(row * p.gemm.k) * zf_dtype_size(l->args[0].dtype);
            const T *b = static_cast<const T *>(bias);
            const T *more = added ? static_cast<const T *>(added) + row * p.cols : NULL;
            T *y = static_cast<T *>(l->out.data) + row * p.cols, *u = NULL;
            void *to = product;
            if (saved) u = static_cast<T *>(saved->data) + row * p.cols;
            if (!p.product && !p.cut) to = u ? u : y;
            if (p.cut) {
                const zfd_sections s = zfd_sections_of(p.gemm, ZF_INT(l, linear, sections), 1);
                status = zfd_sections_run(l, &s, x, l->args[1].data, product);
            } else {
                status = zfd_gemm_run(l, p.gemm, x, l->args[1].data, to, NULL, NULL, 1,
                                      product + p.product);
            }
            if (status) return status;
            if (zfd_lies_well(p.cols, sizeof(T), y, u, b) && zfd_lies_well(0, 1, more))
                zfd_linear_launch<T, zfd_wide<T>::count>(l, static_cast<float *>(to), b, more, u, y,
                                                         p.gemm.m, p.cols);
            else
                zfd_linear_launch<T, 1>(l, static_cast<float *>(to), b, more, u, y, p.gemm.m,
                                        p.cols);
        })
        status = zfd_launched(l);
    }
    return status;
}

ZFD_KERNEL(linear, zfd_cuda_linear, zfd_cuda_scratch_linear)
