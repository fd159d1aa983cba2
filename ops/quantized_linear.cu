/* quantized_linear on CUDA (ops/quantized_linear.c). A product with few rows of x is bound by
 * reading the weight: a warp computes one element of y of several rows of x, and reads a row of the
 * weight once. A lane has 4 bytes of a record at a time, so that a short record is one for some of
 * the lanes:
 *
 *     lanes     0 ... 15        16 ... 31        integers of 8 bits, blocks of 64
 *     records   scale q q ...   scale q q ...
 *
 * With more rows, and for the transposed product, the weight is dequantised into scratch, in x's
 * dtype, and cuBLASLt multiplies by it. */

enum { ZFD_QUANTIZED_FEW = 16 /* rows of an x [rows, k]; 1 of more dimensions */ };

typedef struct zfd_quantized {
    zfd_blocks b;
    const void *x, *bias; /* bias may be NULL */
    const unsigned char *w;
    void *y;
    int64_t m, n, k, bytes; /* rows of x; w is [n,k], in rows of so many bytes */
} zfd_quantized;

/* The integers of 4 bytes of a record: of 8 bits, or the low ones of 4 and the high ones. */
__device__ __forceinline__ void zfd_integers_of(uint32_t word, int bits, float (&low)[4],
                                                float (&high)[4])
{
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const int byte = (int)(word >> (8 * e) & 255);
        low[e] = (float)zfd_integer_of(byte, bits, false);
        high[e] = (float)zfd_integer_of(byte, 4, true);
    }
}

/* Rows of x are taken ROWS at a time. */
template <class T, int ROWS>
__global__ void __launch_bounds__(ZFD_THREADS) zfd_quantized_kernel(const zfd_quantized q)
{
    const int lane = (int)threadIdx.x % ZFD_WARP, half = q.b.block / 2;
    const int bytes = q.b.record - q.b.head;
    const int64_t step = (int64_t)gridDim.x * blockDim.x / ZFD_WARP, records = q.k / q.b.block;
    for (int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / ZFD_WARP;
         i < q.n * ((q.m + ROWS - 1) / ROWS); i += step) {
        const int64_t n = i % q.n, first = i / q.n * ROWS;
        const int rows = q.m - first < ROWS ? (int)(q.m - first) : ROWS;
        const T *x = static_cast<const T *>(q.x) + first * q.k;
        const unsigned char *record = q.w + n * q.bytes;
        float sum[ROWS] = {};
        int in = lane * 4;
        for (int64_t r = 0;; in += ZFD_WARP * 4) {
            float low[4], high[4], scale;
            for (; in >= bytes; in -= bytes, r++) record += q.b.record, x += q.b.block;
            if (r >= records) break;
            scale = zfd_get_scale(record, q.b.head);
            zfd_integers_of(zfd_get_word(record + q.b.head + in), q.b.bits, low, high);
#pragma unroll
            for (int row = 0; row < ROWS; row++) {
                float a[4], part = 0;
                if (row >= rows) break;
                zfd_get_four(a, x + row * q.k + in);
#pragma unroll
                for (int e = 0; e < 4; e++) part = fmaf(low[e], a[e], part);
                if (q.b.bits == 4) {
                    zfd_get_four(a, x + row * q.k + half + in);
#pragma unroll
                    for (int e = 0; e < 4; e++) part = fmaf(high[e], a[e], part);
                }
                sum[row] = fmaf(scale, part, sum[row]);
            }
        }
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            float y = zfd_warp_sum(sum[row]);
            if (q.bias) y += zfd_to_f32(static_cast<const T *>(q.bias)[n]);
            if (lane == 0 && row < rows)
                static_cast<T *>(q.y)[(first + row) * q.n + n] = zfd_from_f32<T>(y);
        }
    }
}

static zfd_quantized zfd_quantized_of(const zf_launch *l)
{
    zfd_quantized q = {};
    q.b = zfd_blocks_of(l);
    q.x = l->args[0].data, q.w = static_cast<const unsigned char *>(l->args[1].data);
    q.bias = l->arg_count > 2 ? l->args[2].data : NULL;
    q.y = l->out.data;
    q.n = l->args[1].shape.dims[0], q.bytes = l->args[1].shape.dims[1];
    q.k = q.bytes / q.b.record * q.b.block;
    q.m = zfd_row_count(&l->args[0]);
    return q;
}

/* The product with the dequantised weight. *multiplies: false if the kernel above computes it.
 * cuBLASLt may round before the bias if n is no multiple of 8. */
static zfd_gemm zfd_quantized_product(const zf_launch *l, const zfd_quantized *q, bool *multiplies)
{
    const bool transposed = ZF_INT(l, quantized_linear, transposed) != 0,
               bias = l->arg_count > 2;
    const zf_shape *x = &l->args[0].shape;
    bool few;
    zfd_gemm g = transposed ? zfd_gemm_of(l, q->m, q->k, q->n, false, false)
                            : zfd_gemm_of(l, q->m, q->n, q->k, false, true);
    g.bias = bias;
    few = x->rank > 2 ? x->dims[x->rank - 2] == 1 : q->m <= ZFD_QUANTIZED_FEW;
    *multiplies = transposed || (!few && (!bias || q->n % 8 == 0));
    return g;
}

/* Bytes of the dequantised weight, which the workspace of the product follows. */
static size_t zfd_quantized_weight(const zf_launch *l, const zfd_quantized *q)
{
    const size_t bytes = (size_t)(q->n * q->k) * zf_dtype_size(l->out.dtype);
    return (bytes + ZFD_WORK_LIES - 1) / ZFD_WORK_LIES * ZFD_WORK_LIES;
}

static size_t zfd_cuda_scratch_quantized_linear(const zf_launch *l)
{
    bool multiplies;
    const zfd_quantized q = zfd_quantized_of(l);
    const zfd_gemm g = zfd_quantized_product(l, &q, &multiplies);
    if (!zfd_count(&l->out) || !multiplies) return 0;
    return zfd_quantized_weight(l, &q) + zfd_gemm_scratch(l, g);
}

template <class T, int ROWS>
static void zfd_quantized_launch(const zf_launch *l, const zfd_quantized &q)
{
    ZFD_LAUNCH((zfd_quantized_kernel<T, ROWS>), zfd_record_grid(l, q.n * zfd_div_up(q.m, ROWS)),
               ZFD_THREADS, 0, zfd_stream(l), q);
}

static zf_status zfd_cuda_quantized_linear(const zf_launch *l)
{
    bool multiplies;
    const zfd_quantized q = zfd_quantized_of(l);
    const zfd_gemm g = zfd_quantized_product(l, &q, &multiplies);
    unsigned char *scratch = static_cast<unsigned char *>(l->scratch);
    zf_status status;
    if (!zfd_count(&l->out)) return ZF_OK;
    ZFD_FLOATS(l, l->out.dtype, T, {
        const int64_t records = q.n * (q.k / q.b.block);
        if (multiplies)
            ZFD_LAUNCH(zfd_dequantize_kernel<T>, zfd_record_grid(l, records), ZFD_THREADS, 0,
                       zfd_stream(l), reinterpret_cast<T *>(scratch), q.w, records, q.b, 1, false);
        else if (q.m == 1) zfd_quantized_launch<T, 1>(l, q);
        else if (q.m <= 4) zfd_quantized_launch<T, 4>(l, q);
        else zfd_quantized_launch<T, 8>(l, q);
    })
    if ((status = zfd_launched(l)) || !multiplies) return status;
    return zfd_gemm_run(l, g, q.x, scratch, q.y, NULL, q.bias, 1,
                        scratch + zfd_quantized_weight(l, &q));
}

ZFD_KERNEL(quantized_linear, zfd_cuda_quantized_linear, zfd_cuda_scratch_quantized_linear)
