/* Products with what follows them on CUDA: ops/linear.c.
 *
 *     none          y = product + bias, by cuBLASLt, which adds the bias before it rounds
 *     f32           product to u (or y), then a kernel that adds, stores u, activates, stores y
 *     bf16, f16     the same, but that the product is f32, in tiles of rows that the kernel takes
 *                   from the second-level cache: u and y are both made of what was not rounded
 *
 *         x rows  -->  product f32 [tile,n] in scratch  -->  u rows, y rows
 *
 * cuBLASLt has a GELU too, but of the tanh form, and with a bias and u its y is that of bits that
 * were rounded. Its ReLU makes 0 of NaN.
 */

/* A tile of f32, to stay in the second-level cache; small in the emulation, for its tests to have
 * several. */
enum { ZFI_LINEAR_BYTES = ZF_TENSOR_CORES ? 16 << 20 : 2 << 10 };

/* As ops/linear.c counts them. */
typedef enum zfi_activation {
    ZFI_NO_ACTIVATION,
    ZFI_GELU,
    ZFI_GELU_TANH,
    ZFI_RELU,
    ZFI_SILU,
    ZFI_TANH,
    ZFI_SIGMOID
} zfi_activation;

template <int N> __device__ __forceinline__ void zfi_activate(int activation, float (&y)[N])
{
    typedef float C;
    const float(&a)[N] = y, (&b)[N] = y;
    switch (activation) {
    case ZFI_GELU: ZFI_EACH(zfi_gelu(p, false));
    case ZFI_GELU_TANH: ZFI_EACH(zfi_gelu(p, true));
    case ZFI_RELU: ZFI_EACH(p <= 0 ? 0 : p);
    case ZFI_SILU: ZFI_EACH(p * zfi_sigmoid(p));
    case ZFI_TANH: ZFI_EACH(tanhf(p));
    case ZFI_SIGMOID: ZFI_EACH(zfi_sigmoid(p));
    default: break;
    }
}

/* u[row,col] = product[row,col] + bias[col], y[row,col] = activation(u[row,col]); bias and u: or
 * NULL; product may be u or y. A thread stays in N columns and goes down the rows; `width` threads
 * stand side by side. */
template <class T, int N>
static __global__ void zfi_linear_finish(const float *product, const T *bias, T *u, T *y,
                                         int64_t rows, int64_t cols, int activation, int width)
{
    const int64_t first = blockIdx.x * (int64_t)(blockDim.x / width) + threadIdx.x / width;
    const int64_t down = gridDim.x * (int64_t)(blockDim.x / width);
    for (int64_t pack = blockIdx.y * (int64_t)width + threadIdx.x % width; pack * N < cols;
         pack += gridDim.y * (int64_t)width) {
        float b[N] = {0}, x[N];
        if (bias) zfi_load(b, bias + pack * N);
        for (int64_t row = first; row < rows; row += down) {
            const int64_t at = row * cols + pack * N;
            zfi_load(x, product + at);
            if (bias)
#pragma unroll
                for (int i = 0; i < N; i++) x[i] += b[i];
            if (u) zfi_store(u + at, x);
            zfi_activate(activation, x);
            zfi_store(y + at, x);
        }
    }
}

template <class T, int N>
static void zfi_linear_launch(const zf_launch *l, const float *product, const T *bias, T *u, T *y,
                              int64_t rows, int64_t cols)
{
    int width = ZFI_WARP;
    unsigned across, down;
    while (width < ZFI_THREADS && (int64_t)width * N < cols) width *= 2;
    across = (unsigned)zfi_div_up(cols, (int64_t)width * N);
    if (across > 65535) across = 65535;
    down = zfi_grid(l, zfi_div_up(rows, ZFI_THREADS / width));
    down = (unsigned)zfi_div_up(down, across < 16 ? across : 16); /* some rows for one bias */
    ZF_LAUNCH((zfi_linear_finish<T, N>), dim3(down, across), ZFI_THREADS, 0, zfi_stream(l),
              product, bias, u, y, rows, cols, (int)l->attributes[0].i, width);
}

/* How the work is cut: one piece, or tiles by way of f32 in scratch. */
typedef struct zfi_linear {
    bool direct; /* cuBLASLt does all of it */
    int64_t rows, cols, tile, rest; /* rows of each tile and of the last */
    zfi_gemm gemm;                  /* of a tile */
    size_t product;                 /* bytes of the f32 tile, in front of the workspace */
} zfi_linear;

static zfi_linear zfi_linear_of(const zf_launch *l)
{
    const int64_t n = l->args[1].shape.dims[0], k = l->args[1].shape.dims[1];
    zfi_linear p;
    p.direct = l->attributes[0].i == ZFI_NO_ACTIVATION;
    p.rows = zfi_count(&l->out) / n, p.cols = n;
    p.tile = p.rows;
    if (!p.direct && l->out.dtype != ZF_F32) p.tile = zfi_tile_rows(p.rows, n, ZFI_LINEAR_BYTES);
    p.rest = p.rows - (p.rows - 1) / p.tile * p.tile;
    p.gemm = zfi_gemm_of(l, p.tile, n, k, false, true);
    p.gemm.bias = p.direct && l->arg_count > 2;
    p.product = 0;
    if (!p.direct && l->out.dtype != ZF_F32) {
        p.gemm.to = ZF_F32;
        p.product = ((size_t)(p.tile * n) * sizeof(float) + 63) / 64 * 64;
    }
    return p;
}

static size_t zfi_cuda_scratch_linear(const zf_launch *l)
{
    zfi_linear p;
    size_t work, rest;
    if (!zfi_count(&l->out)) return 0;
    p = zfi_linear_of(l);
    work = zfi_gemm_scratch(l, p.gemm);
    p.gemm.m = p.rest;
    rest = zfi_gemm_scratch(l, p.gemm);
    return p.product + (work > rest ? work : rest);
}

static zf_status zfi_cuda_linear(const zf_launch *l)
{
    const zf_array *saved = zfi_saved_out(l, 0);
    const void *bias = l->arg_count > 2 ? l->args[2].data : NULL;
    zfi_linear p;
    unsigned char *product = static_cast<unsigned char *>(l->scratch);
    zf_status status = ZF_OK;
    if (!zfi_count(&l->out)) return ZF_OK;
    p = zfi_linear_of(l);
    if (p.direct)
        return zfi_gemm_run(l, p.gemm, l->args[0].data, l->args[1].data, l->out.data, bias, 1,
                            false, l->scratch);
    for (int64_t row = 0; row < p.rows && !status; row += p.tile) {
        p.gemm.m = row + p.tile < p.rows ? p.tile : p.rest;
        ZFI_FLOATS(l, l->out.dtype, T, {
            const T *x = static_cast<const T *>(l->args[0].data) + row * p.gemm.k;
            const T *b = static_cast<const T *>(bias);
            T *y = static_cast<T *>(l->out.data) + row * p.cols, *u = NULL;
            void *to = product;
            if (saved) u = static_cast<T *>(saved->data) + row * p.cols;
            if (!p.product) to = u ? u : y;
            status = zfi_gemm_run(l, p.gemm, x, l->args[1].data, to, NULL, 1, false,
                                  product + p.product);
            if (status) return status;
            if (zfi_lies_well(p.cols, sizeof(T), y, u, b))
                zfi_linear_launch<T, zfi_wide<T>::count>(l, static_cast<float *>(to), b, u, y,
                                                         p.gemm.m, p.cols);
            else
                zfi_linear_launch<T, 1>(l, static_cast<float *>(to), b, u, y, p.gemm.m, p.cols);
        })
        status = zfi_launched(l);
    }
    return status;
}
