/* quantize, quantize_feedback, dequantize and dequantize_sum on CUDA (ops/quantize.c), with the
 * bits of the CPU's kernels; a NaN may be another one. A warp does one record: each lane four
 * integers of 8 bits at a time, or eight of 4 bits, so that it moves 4 bytes of the record. */

typedef struct zfd_blocks {
    int bits, block, record, head; /* head: bytes of a scale */
    float most;
} zfd_blocks;

static zfd_blocks zfd_blocks_by(int64_t bits, int64_t block, int64_t scale)
{
    zfd_blocks b;
    b.bits = (int)bits, b.block = (int)block;
    b.head = (int)zf_dtype_size((zf_dtype)scale);
    b.record = b.head + b.block * b.bits / 8;
    b.most = b.bits == 8 ? 127.0f : 7.0f;
    return b;
}

static zfd_blocks zfd_blocks_of(const zf_launch *l)
{
    return zfd_blocks_by(ZF_INT(l, quantize, bits), ZF_INT(l, quantize, block),
                         ZF_INT(l, quantize, scale));
}

/* 4 bytes of a record, at any address. */
__device__ __forceinline__ void zfd_put_word(unsigned char *to, uint32_t word)
{
    if (reinterpret_cast<uintptr_t>(to) % 4 == 0) {
        *reinterpret_cast<uint32_t *>(to) = word;
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) to[i] = (unsigned char)(word >> (8 * i));
}

__device__ __forceinline__ uint32_t zfd_get_word(const unsigned char *from)
{
    if (reinterpret_cast<uintptr_t>(from) % 4 == 0)
        return *reinterpret_cast<const uint32_t *>(from);
    return from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16 | (uint32_t)from[3] << 24;
}

/* The scale of a record, f32 or bf16. */
__device__ __forceinline__ float zfd_get_scale(const unsigned char *record, int head)
{
    if (head == 4) return __uint_as_float(zfd_get_word(record));
    return __uint_as_float((uint32_t)record[0] << 16 | (uint32_t)record[1] << 24);
}

/* 4 floats, which only need the alignment of one. */
template <class T>
__device__ __forceinline__ void zfd_get_four(float (&y)[4], const T *x)
{
    if (reinterpret_cast<uintptr_t>(x) % (4 * sizeof(T)) == 0) {
        zfd_load(y, x);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) y[i] = zfd_to_f32(x[i]);
}

template <class T>
__device__ __forceinline__ void zfd_put_four(T *y, const float (&x)[4])
{
    if (reinterpret_cast<uintptr_t>(y) % (4 * sizeof(T)) == 0) {
        zfd_store(y, x);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) y[i] = zfd_from_f32<T>(x[i]);
}

__device__ __forceinline__ uint32_t zfd_integer_of(float x, float up, float by, float most)
{
    const float q = __fmul_rn(__fmul_rn(x, up), by);
    return (uint32_t)(int)rintf(fminf(fmaxf(q, -most), most));
}

/* What quantize_feedback adds, and keeps what the records do not say in: the errors of a block are
 * `each` bytes, floats or a record of 8 bits; NULL: quantize. */
typedef struct zfd_feedback {
    unsigned char *errors;
    int64_t each, reset;
    bool records;
    float beta, rest;
    const float *scale; /* of the loss, with its counts; NULL: there is none */
    const int64_t *iteration, *overflow;
    const zf_run *run; /* in device memory */
} zfd_feedback;

/* The errors count as 0. */
__device__ __forceinline__ bool zfd_begins_errors(const zfd_feedback &f)
{
    if (!f.errors || f.run->micro) return false;
    return (f.reset && (f.run->step - 1) % f.reset == 0) ||
           (f.scale && (uint64_t)*f.iteration == (uint64_t)*f.overflow + 1);
}

/* The integer of a byte of a record: all of it, or of 4 bits its low or its high half. */
__device__ __forceinline__ int zfd_integer_of(int byte, int bits, bool high)
{
    return bits == 8 ? (byte ^ 128) - 128 : ((high ? byte >> 4 : byte & 15) ^ 8) - 8;
}

/* The errors of one block. */
typedef struct zfd_errors {
    unsigned char *at; /* NULL: there are none */
    bool records, begin;
    float scale; /* of their record, before it changes */
} zfd_errors;

__device__ __forceinline__ zfd_errors zfd_errors_of(const zfd_feedback &f, int64_t k, bool begins)
{
    zfd_errors e = {f.errors ? f.errors + k * f.each : NULL, f.records, begins, 0};
    if (e.at && e.records) e.scale = zfd_get_scale(e.at, 4);
    return e;
}

/* Errors i to i + 3 of the block. */
__device__ __forceinline__ void zfd_get_errors(float (&e)[4], const zfd_errors &of, int i)
{
#pragma unroll
    for (int n = 0; n < 4; n++) e[n] = 0;
    if (of.begin) return;
    if (!of.records) {
        zfd_get_four(e, reinterpret_cast<const float *>(of.at) + i);
        return;
    }
    const uint32_t word = zfd_get_word(of.at + 4 + i);
#pragma unroll
    for (int n = 0; n < 4; n++)
        e[n] = __fmul_rn((float)zfd_integer_of((int)(word >> (8 * n) & 255), 8, false), of.scale);
}

/* What remains of h = x + S e after its integers in the low or high half of the bytes of `word`;
 * rest: (1 - beta) / S. */
__device__ __forceinline__ void zfd_kept_errors(float (&kept)[4], float beta, float rest,
                                                const float (&e)[4],
                                                const float (&h)[4], uint32_t word, int bits,
                                                bool high, float scale)
{
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const int q = zfd_integer_of((int)(word >> (8 * n) & 255), bits, high);
        const float r = __fsub_rn(h[n], __fmul_rn((float)q, scale));
        kept[n] = __fadd_rn(__fmul_rn(beta, e[n]), __fmul_rn(rest, r));
    }
}

/* 4 elements h = x + S e; e: the errors. */
template <class T>
__device__ __forceinline__ void zfd_get_sums(float (&h)[4], float (&e)[4], const T *x, int i,
                                             const zfd_errors &errors, float by)
{
    zfd_get_four(h, x + i);
    if (!errors.at) return;
    zfd_get_errors(e, errors, i);
#pragma unroll
    for (int n = 0; n < 4; n++) h[n] = __fadd_rn(h[n], __fmul_rn(by, e[n]));
}

/* The factor 1 / (scale up), where `up` keeps it from overflow. */
__device__ __forceinline__ float zfd_inverse_scale(float scale, float *up)
{
    *up = scale < 0x1p-126f ? 0x1p64f : 1;
    return __fdiv_rn(1, scale * *up);
}

/* Puts the errors of a block into their record: those kept of its elements, whose integers are in
 * the bytes q. All lanes of a warp call it; `most`: the largest that this lane has. */
template <class T>
__device__ __forceinline__ void zfd_put_errors(const zfd_feedback &f, const zfd_errors &errors,
                                               const T *x, const zfd_blocks &b,
                                               const unsigned char *q, float scale, float by,
                                               float rest, float most)
{
    const int lane = (int)threadIdx.x % ZFD_WARP, half = b.block / 2;
    const float own = __fdiv_rn(zfd_warp_max(most), 127.0f);
    float up, inverse = zfd_inverse_scale(own, &up);
    if (lane == 0) zfd_put_word(errors.at, __float_as_uint(own));
    for (int i = lane * 4; i < b.block * b.bits / 8; i += ZFD_WARP * 4)
        for (int high = 0; high <= (b.bits == 4); high++) {
            const int at = i + (high ? half : 0);
            float h[4], e[4] = {}, kept[4];
            uint32_t word = 0;
            zfd_get_sums(h, e, x, at, errors, by);
            zfd_kept_errors(kept, f.beta, rest, e, h, zfd_get_word(q + i), b.bits, high, scale);
#pragma unroll
            for (int n = 0; n < 4; n++)
                if (own > 0)
                    word |= (zfd_integer_of(kept[n], up, inverse, 127.0f) & 255) << (8 * n);
            zfd_put_word(errors.at + 4 + at, word);
        }
}

template <class T>
__global__ void __launch_bounds__(ZFD_THREADS)
    zfd_quantize_kernel(unsigned char *out, const T *in, int64_t records, const zfd_blocks b,
                        const zfd_feedback f)
{
    const int lane = (int)threadIdx.x % ZFD_WARP, half = b.block / 2;
    const bool begins = zfd_begins_errors(f);
    const float by_loss = f.scale ? *f.scale : 1, rest = __fmul_rn(f.rest, __fdiv_rn(1, by_loss));
    const int64_t step = (int64_t)gridDim.x * blockDim.x / ZFD_WARP;
    for (int64_t k = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / ZFD_WARP; k < records;
         k += step) {
        const T *x = in + k * b.block;
        const zfd_errors errors = zfd_errors_of(f, k, begins);
        unsigned char *record = out + k * b.record, *q = record + b.head;
        float largest = 0, nan = 0, most = 0, scale, up, by;
        for (int i = lane * 4; i < b.block; i += ZFD_WARP * 4) {
            float at[4], e[4] = {};
            zfd_get_sums(at, e, x, i, errors, by_loss);
#pragma unroll
            for (int n = 0; n < 4; n++) {
                largest = fmaxf(largest, fabsf(at[n]));
                nan = fabsf(at[n]) < INFINITY ? nan : 1;
            }
        }
        largest = zfd_warp_max(largest);
        scale = zfd_warp_max(nan) > 0 ? NAN : __fdiv_rn(largest, b.most);
        if (b.head == 2) scale = __bfloat162float(__float2bfloat16_rn(scale));
        by = zfd_inverse_scale(scale, &up);
        if (lane == 0) {
            const uint32_t bits = scale != scale ? 0x7fc00000u : __float_as_uint(scale);
            if (b.head == 4) zfd_put_word(record, bits);
            else record[0] = (unsigned char)(bits >> 16), record[1] = (unsigned char)(bits >> 24);
        }
        for (int i = lane * 4; i < b.block * b.bits / 8; i += ZFD_WARP * 4) {
            uint32_t word = 0;
            float x_of[2][4] = {}, e_of[2][4] = {};
#pragma unroll
            for (int high = 0; high < 2; high++)
                if ((scale > 0 || errors.at) && high <= (b.bits == 4))
                    zfd_get_sums(x_of[high], e_of[high], x, i + (high ? half : 0), errors, by_loss);
            if (scale > 0) {
#pragma unroll
                for (int n = 0; n < 4; n++) {
                    uint32_t byte = zfd_integer_of(x_of[0][n], up, by, b.most);
                    if (b.bits == 4)
                        byte = (byte & 15) | zfd_integer_of(x_of[1][n], up, by, b.most) << 4;
                    word |= (byte & 255) << (8 * n);
                }
            }
            zfd_put_word(q + i, word);
#pragma unroll
            for (int high = 0; high < 2; high++) {
                /* Errors of a block with a non-finite number do not change, unless they begin. */
                float kept[4] = {};
                if (!errors.at || (scale != scale && !begins) || high > (b.bits == 4)) continue;
                if (scale == scale)
                    zfd_kept_errors(kept, f.beta, rest, e_of[high], x_of[high], word, b.bits, high,
                                    scale);
#pragma unroll
                for (int n = 0; n < 4; n++) most = fmaxf(most, fabsf(kept[n]));
                if (!errors.records)
                    zfd_put_four(reinterpret_cast<float *>(errors.at) + i + (high ? half : 0),
                                 kept);
            }
        }
        if (errors.at && errors.records && (scale == scale || begins))
            zfd_put_errors(f, errors, x, b, q, scale, by_loss, rest, most);
    }
}

/* y[i] = s q of `parts` records that are `apart` bytes apart, added in their order; onto what y is,
 * with `add`. */
template <class T>
__global__ void __launch_bounds__(ZFD_THREADS)
    zfd_dequantize_kernel(T *out, const unsigned char *in, int64_t records, const zfd_blocks b,
                          int parts, bool add)
{
    const int lane = (int)threadIdx.x % ZFD_WARP, half = b.block / 2;
    const int64_t step = (int64_t)gridDim.x * blockDim.x / ZFD_WARP, apart = records * b.record;
    for (int64_t k = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / ZFD_WARP; k < records;
         k += step) {
        T *y = out + k * b.block;
        for (int i = lane * 4; i < b.block * b.bits / 8; i += ZFD_WARP * 4) {
            float low[4] = {0, 0, 0, 0}, high[4] = {0, 0, 0, 0};
            if (add) zfd_get_four(low, y + i);
            if (add && b.bits == 4) zfd_get_four(high, y + half + i);
            for (int p = 0; p < parts; p++) {
                const unsigned char *record = in + p * apart + k * b.record;
                const uint32_t word = zfd_get_word(record + b.head + i);
                const float scale = zfd_get_scale(record, b.head);
#pragma unroll
                for (int n = 0; n < 4; n++) {
                    const int byte = (int)(word >> (8 * n) & 255);
                    const int q = zfd_integer_of(byte, b.bits, false);
                    low[n] = __fadd_rn(low[n], __fmul_rn((float)q, scale));
                    high[n] = __fadd_rn(high[n],
                                        __fmul_rn((float)zfd_integer_of(byte, 4, true), scale));
                }
            }
            zfd_put_four(y + i, low);
            if (b.bits == 4) zfd_put_four(y + half + i, high);
        }
    }
}

static unsigned zfd_record_grid(const zf_launch *l, int64_t records)
{
    return zfd_grid(l, zfd_div_up(records, ZFD_THREADS / ZFD_WARP));
}

/* quantize and quantize_feedback */
static zf_status zfd_cuda_quantize(const zf_launch *l)
{
    const zfd_blocks b = zfd_blocks_of(l);
    zfd_feedback f = {};
    const int64_t records = zfd_count(&l->args[0]) / b.block;
    if (!records) return ZF_OK;
    if (l->op == ZF_OP_quantize && ZF_INT(l, quantize, once) && l->run->micro > 0) return ZF_OK;
    f.run = zfd_device_of(l)->run;
    if (l->op == ZF_OP_quantize_feedback) {
        const double beta = ZF_FLOAT(l, quantize_feedback, beta);
        f.errors = static_cast<unsigned char *>(l->args[1].data);
        f.records = l->args[1].dtype == ZF_U8;
        f.each = f.records ? 4 + b.block : b.block * (int64_t)sizeof(float);
        f.beta = (float)beta, f.rest = (float)(1 - beta);
        f.reset = ZF_INT(l, quantize_feedback, reset);
        if (l->arg_count > 2) {
            f.scale = static_cast<const float *>(l->args[2].data);
            f.iteration = static_cast<const int64_t *>(l->args[3].data);
            f.overflow = static_cast<const int64_t *>(l->args[4].data);
        }
    }
    ZFD_FLOATS(l, l->args[0].dtype, T,
               ZFD_LAUNCH(zfd_quantize_kernel<T>, zfd_record_grid(l, records), ZFD_THREADS, 0,
                          zfd_stream(l), static_cast<unsigned char *>(l->out.data),
                          static_cast<const T *>(l->args[0].data), records, b, f);)
    return zfd_launched(l);
}

static zf_status zfd_cuda_dequantize(const zf_launch *l)
{
    const zfd_blocks b = zfd_blocks_of(l);
    const bool sum = l->op == ZF_OP_dequantize_sum;
    const int64_t records = zfd_count(&l->out) / b.block;
    const int parts = sum ? (int)ZF_INT(l, dequantize_sum, parts) : 1;
    if (!records) return ZF_OK;
    ZFD_FLOATS(l, l->out.dtype, T,
               ZFD_LAUNCH(zfd_dequantize_kernel<T>, zfd_record_grid(l, records), ZFD_THREADS, 0,
                          zfd_stream(l), static_cast<T *>(l->out.data),
                          static_cast<const unsigned char *>(l->args[0].data), records, b, parts,
                          sum && l->arg_count > 1 && l->run->micro > 0);)
    return zfd_launched(l);
}

ZFD_KERNEL(quantize, zfd_cuda_quantize, NULL)
ZFD_KERNEL(quantize_feedback, zfd_cuda_quantize, NULL)
ZFD_KERNEL(dequantize, zfd_cuda_dequantize, NULL)
ZFD_KERNEL(dequantize_sum, zfd_cuda_dequantize, NULL)
