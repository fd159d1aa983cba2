/* Elementwise over one operand, or over one and a gradient: neg scale exp log sqrt rsqrt tanh
 * sigmoid relu gelu silu and their gradients, cast and dropout. Values are computed in f32 and
 * rounded once; the error of a function is at most 3 times 2^-24 (1 + |x|). NaN is propagated. */

__device__ __forceinline__ float zfi_sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

/* (1 + erf(x / sqrt 2)) / 2 */
__device__ __forceinline__ float zfi_normal(float x)
{
    return fmaf(0.5f, erff(x * 0.70710678f), 0.5f);
}

/* x clamped to [-most, most], 0 for NaN: for a factor whose product has NaN from the other
 * factor. */
__device__ __forceinline__ float zfi_within(float x, float most)
{
    return fminf(fmaxf(x, -most), most);
}

/* How gelu is computed. */
enum zfi_gelu_way {
    ZFI_GELU_BY_ERF,
    ZFI_GELU_BY_TANH,
    ZFI_GELU_NARROW /* by erf, for results of 16 bits */
};

/* (1 + erf(x / sqrt 2)) / 2 within 1e-7, and the density exp(-x^2 / 2) / sqrt(2 pi), for |x| up to
 * 14.45, with one exponential for both (Abramowitz & Stegun, Handbook of Mathematical Functions,
 * 26.2.17; the error shrinks with the density). */
__device__ __forceinline__ float zfi_normal_narrow(float x, float &density)
{
    const float a = fabsf(x), t = __fdividef(1.0f, fmaf(a, 0.2316419f, 1.0f));
    float tail = fmaf(t, 1.330274429f, -1.821255978f);
    tail = fmaf(tail, t, 1.781477937f);
    tail = fmaf(tail, t, -0.356563782f);
    tail = fmaf(tail, t, 0.319381530f) * t;
    density = 0.39894228f * exp2f(-0.72134752f * a * a);
    tail *= density;
    return x > 0 ? 1.0f - tail : tail;
}

/* y and dy/dx of gelu. The compiler removes what is not used. */
__device__ __forceinline__ void zfi_gelu_both(float x, zfi_gelu_way way, float &y, float &slope)
{
    if (way == ZFI_GELU_NARROW) {
        float c = zfi_within(x, 14.45f), density, s = zfi_normal_narrow(c, density);
        y = x * s;
        slope = x == x ? fmaf(c, density, s) : x; /* c of NaN is 0 */
    } else if (way == ZFI_GELU_BY_TANH) { /* x sigmoid(2 u), u = sqrt(2/pi) (x + 0.044715 x^3) */
        float c = zfi_within(x, 20.0f), b = c * c, s;
        s = zfi_sigmoid(x * fmaf(x * x, 0.07135481f, 1.59576912f));
        y = x * s;
        slope = fmaf(s * (1.0f - s), c * fmaf(b, 3 * 0.07135481f, 1.59576912f), s);
    } else {
        float c = zfi_within(x, 14.45f), s = zfi_normal(x);
        y = x * s;
        slope = fmaf(c * 0.39894228f, expf(-0.5f * c * c), s);
    }
}

__device__ __forceinline__ float zfi_gelu(float x, zfi_gelu_way way)
{
    float y, slope;
    zfi_gelu_both(x, way, y, slope);
    return y;
}

__device__ __forceinline__ void zfi_silu_both(float x, float &y, float &slope)
{
    float s = zfi_sigmoid(x);
    y = x * s;
    slope = s * fmaf(zfi_within(x, 200.0f), 1.0f - s, 1.0f);
}

/* How to compute a node with or without the tanh form, for values of the dtype. */
static zfi_gelu_way zfi_gelu_way_of(bool by_tanh, zf_dtype dtype)
{
    return by_tanh ? ZFI_GELU_BY_TANH : dtype == ZF_F32 ? ZFI_GELU_BY_ERF : ZFI_GELU_NARROW;
}

/* A node of one operand, or a gradient of (dy, v), in f32; also an instruction of a chain. */
typedef struct zfi_unary {
    zf_op op;
    zfi_gelu_way way; /* gelu */
    float by;         /* scale */
} zfi_unary;

/* gelu_grad and silu_grad: y from (dy, x) = (a, b), and z, the activation at b. y and z may be a and
 * b. */
template <int N>
__device__ __forceinline__ void zfi_activation_values(const zfi_unary &u, const float (&a)[N],
                                                      const float (&b)[N], float (&y)[N],
                                                      float (&z)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        float value, slope;
        if (u.op == ZF_OP_gelu_grad) zfi_gelu_both(b[i], u.way, value, slope);
        else zfi_silu_both(b[i], value, slope);
        y[i] = a[i] * slope;
        z[i] = value;
    }
}

/* y from x = a or, for gradients, from (dy, v) = (a, b). z: the activation at b, for gelu_grad and
 * silu_grad. y and z may be a and b. */
template <int N>
__device__ __forceinline__ void zfi_unary_values(const zfi_unary &u, const float (&a)[N],
                                                 const float (&b)[N], float (&y)[N], float (&z)[N])
{
    typedef float C;
    switch (u.op) {
    case ZF_OP_neg: ZFI_EACH(-p);
    case ZF_OP_scale: ZFI_EACH(p * u.by);
    case ZF_OP_exp: ZFI_EACH(expf(p));
    case ZF_OP_log: ZFI_EACH(logf(p));
    case ZF_OP_sqrt: ZFI_EACH(sqrtf(p));
    case ZF_OP_rsqrt: ZFI_EACH(1.0f / sqrtf(p));
    case ZF_OP_tanh: ZFI_EACH(tanhf(p));
    case ZF_OP_tanh_grad: ZFI_EACH(p * ((1.0f - q) * (1.0f + q)));
    case ZF_OP_sigmoid: ZFI_EACH(zfi_sigmoid(p));
    case ZF_OP_sigmoid_grad: ZFI_EACH(p * (q * (1.0f - q)));
    case ZF_OP_relu: ZFI_EACH(p <= 0 ? 0 : p);
    case ZF_OP_relu_grad: ZFI_EACH(q <= 0 ? 0 : p);
    case ZF_OP_gelu: ZFI_EACH(zfi_gelu(p, u.way));
    case ZF_OP_silu: ZFI_EACH(p * zfi_sigmoid(p));
    default: zfi_activation_values(u, a, b, y, z);
    }
}

static zfi_unary zfi_unary_of(const zf_launch *l)
{
    zfi_unary u = {l->op, ZFI_GELU_BY_ERF, 0};
    if (l->op == ZF_OP_scale) u.by = (float)ZF_FLOAT(l, scale, by);
    if (l->op == ZF_OP_gelu || l->op == ZF_OP_gelu_grad)
        u.way = zfi_gelu_way_of(ZF_INT(l, gelu, form) != 0, l->out.dtype);
    return u;
}

/* Computes the packs of N elements from `first` on within `count`. */
template <class T, int N>
__global__ void zfi_unary_kernel(int64_t first, int64_t count, zfi_unary u, T *out, const T *x,
                                 const T *v, T *made)
{
    for (int64_t i = first + ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N; i < count;
         i += (int64_t)gridDim.x * blockDim.x * N) {
        float a[N], b[N], y[N], z[N] = {0};
        zfi_fetch(a, x + i, true);
        if (v) zfi_fetch(b, v + i, true);
        else zfi_fetch(b, x + i, true);
        zfi_unary_values(u, a, b, y, z);
        zfi_put_pack(out + i, y);
        if (made) zfi_put_pack(made + i, z);
    }
}

/* Launches wide(0, whole) for as many elements as can be taken `n` at a time, and plain(whole,
 * count) for the rest. */
#define ZFI_FLAT(l, n, count, lies, wide, plain, ...)                                              \
    {                                                                                              \
        int64_t all = (count), whole = (lies) ? all / (n) * (n) : 0;                               \
        if (whole)                                                                                 \
            ZF_LAUNCH(wide, zfi_grid(l, zfi_div_up(whole / (n), ZFI_THREADS)), ZFI_THREADS, 0,     \
                      zfi_stream(l), (int64_t)0, whole, __VA_ARGS__);                              \
        if (whole < all)                                                                           \
            ZF_LAUNCH(plain, zfi_grid(l, zfi_div_up(all - whole, ZFI_THREADS)), ZFI_THREADS, 0,    \
                      zfi_stream(l), whole, all, __VA_ARGS__);                                     \
    }

template <class T> static void zfi_unary_launch(const zf_launch *l)
{
    const int n = zfi_wide<T>::count;
    zfi_unary u = zfi_unary_of(l);
    T *out = static_cast<T *>(l->out.data), *made = NULL;
    const T *x = static_cast<const T *>(l->args[0].data), *v = NULL;
    if (l->arg_count > 1) v = static_cast<const T *>(l->args[1].data);
    if (zfi_saved_out(l, 0)) made = static_cast<T *>(zfi_saved_out(l, 0)->data);
    ZFI_FLAT(l, n, zfi_count(&l->out), zfi_lies_well(0, 1, out, x, v, made),
             (zfi_unary_kernel<T, n>), (zfi_unary_kernel<T, 1>), u, out, x, v, made)
}

static zf_status zfi_cuda_unary(const zf_launch *l)
{
    ZFI_FLOATS(l, l->out.dtype, T, zfi_unary_launch<T>(l);)
    return zfi_launched(l);
}

/* ------------------------------------------------------------------------------- cast */

/* x may be out if both dtypes have one size: each element is read and written by one thread. */
template <class T, class X, int N>
__global__ void zfi_cast_kernel(int64_t first, int64_t count, T *out, const X *x)
{
    for (int64_t i = first + ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N; i < count;
         i += (int64_t)gridDim.x * blockDim.x * N) {
        float y[N];
        zfi_fetch(y, x + i, true);
        zfi_put_pack(out + i, y);
    }
}

template <class T, class X> static void zfi_cast_launch(const zf_launch *l)
{
    const int n = sizeof(T) > sizeof(X) ? zfi_wide<T>::count : zfi_wide<X>::count;
    T *out = static_cast<T *>(l->out.data);
    const X *x = static_cast<const X *>(l->args[0].data);
    ZFI_FLAT(l, n, zfi_count(&l->out), zfi_lies_well(0, 1, out, x), (zfi_cast_kernel<T, X, n>),
             (zfi_cast_kernel<T, X, 1>), out, x)
}

/* An integer as an f32 that rounds to narrower floats as the integer itself would: if it does not
 * fit 24 bits, the lowest bit is set (rounding to odd). */
__device__ __forceinline__ float zfi_sticky_f32(int64_t x)
{
    uint64_t magnitude = x < 0 ? 0 - (uint64_t)x : (uint64_t)x;
    int bits = 64 - __clzll((long long)magnitude) - 24;
    if (bits > 0)
        magnitude = (magnitude >> bits | ((magnitude & (((uint64_t)1 << bits) - 1)) != 0)) << bits;
    return x < 0 ? -(float)magnitude : (float)magnitude;
}

/* x truncated towards zero and clamped to [low, high]; NaN gives 0. */
__device__ __forceinline__ int64_t zfi_truncated(float x, int64_t low, int64_t high)
{
    if (x != x) return 0;
    return x <= (float)low ? low : x >= (float)high ? high : (int64_t)x;
}

__device__ __forceinline__ int64_t zfi_clamped(int64_t x, int64_t low, int64_t high)
{
    return x < low ? low : x > high ? high : x;
}

/* Reads an element of any dtype but f64, into `integer` or into `real`; returns which. */
__device__ __forceinline__ bool zfi_read_any(const void *x, zf_dtype dtype, int64_t i,
                                             int64_t &integer, float &real)
{
    switch (dtype) {
    case ZF_F32: real = static_cast<const float *>(x)[i]; return false;
    case ZF_BF16: real = zfi_to_f32(static_cast<const zfi_bf16 *>(x)[i]); return false;
    case ZF_F16: real = zfi_to_f32(static_cast<const zfi_f16 *>(x)[i]); return false;
    case ZF_I32: integer = static_cast<const int32_t *>(x)[i]; return true;
    case ZF_I64: integer = static_cast<const int64_t *>(x)[i]; return true;
    default: integer = static_cast<const uint8_t *>(x)[i]; return true;
    }
}

static __global__ void zfi_cast_any_kernel(int64_t count, void *out, zf_dtype to, const void *x,
                                           zf_dtype from)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * blockDim.x) {
        int64_t n = 0;
        float f = 0;
        bool whole = zfi_read_any(x, from, i, n, f);
        switch (to) {
        case ZF_F32: static_cast<float *>(out)[i] = whole ? (float)n : f; break;
        case ZF_BF16:
            static_cast<zfi_bf16 *>(out)[i] = zfi_from_f32<zfi_bf16>(whole ? zfi_sticky_f32(n) : f);
            break;
        case ZF_F16:
            static_cast<zfi_f16 *>(out)[i] = zfi_from_f32<zfi_f16>(whole ? zfi_sticky_f32(n) : f);
            break;
        case ZF_I32:
            static_cast<int32_t *>(out)[i] =
                (int32_t)(whole ? zfi_clamped(n, INT32_MIN, INT32_MAX)
                                : zfi_truncated(f, INT32_MIN, INT32_MAX));
            break;
        case ZF_I64:
            static_cast<int64_t *>(out)[i] = whole ? n : zfi_truncated(f, INT64_MIN, INT64_MAX);
            break;
        case ZF_U8:
            static_cast<uint8_t *>(out)[i] =
                (uint8_t)(whole ? zfi_clamped(n, 0, 255) : zfi_truncated(f, 0, 255));
            break;
        default: static_cast<uint8_t *>(out)[i] = whole ? n != 0 : f != 0; break;
        }
    }
}

/* i32, i64, u8 or bool */
static bool zfi_is_whole(zf_dtype dtype) { return dtype >= ZF_I32; }

static zf_status zfi_cuda_cast(const zf_launch *l)
{
    zf_dtype from = l->args[0].dtype, to = l->out.dtype;
    int64_t count = zfi_count(&l->out);
    if (from == ZF_F64 || to == ZF_F64) return zfi_no_dtype(l, ZF_F64);
    if (zfi_is_whole(from) || zfi_is_whole(to)) {
        if (count)
            ZF_LAUNCH(zfi_cast_any_kernel, zfi_grid(l, zfi_div_up(count, ZFI_THREADS)), ZFI_THREADS,
                      0, zfi_stream(l), count, l->out.data, to, l->args[0].data, from);
    } else {
        ZFI_FLOATS(l, from, X, ZFI_FLOATS(l, to, T, zfi_cast_launch<T, X>(l);))
    }
    return zfi_launched(l);
}

/* ---------------------------------------------------------------------------- dropout */

/* y = dropout of x, elements i to i + N. A dropped element is 0 even if x is NaN. y may be x. */
template <int N>
__device__ __forceinline__ void zfi_dropped(const zfi_dropper &d, int64_t i, const float (&x)[N],
                                            float (&y)[N])
{
    float by[N];
    zfi_kept_of(d, (uint64_t)i, by);
#pragma unroll
    for (int k = 0; k < N; k++) y[k] = by[k] == 0 ? 0 : x[k] * by[k];
}

template <class T, int N>
__global__ void zfi_dropout_kernel(int64_t first, int64_t count, zfi_dropout d, T *out, const T *x)
{
    zfi_dropper r = zfi_dropper_of(d);
    for (int64_t i = first + ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N; i < count;
         i += (int64_t)gridDim.x * blockDim.x * N) {
        float y[N];
        zfi_fetch(y, x + i, true);
        zfi_dropped(r, i, y, y);
        zfi_put_pack(out + i, y);
    }
}

template <class T> static void zfi_dropout_launch(const zf_launch *l)
{
    const int n = zfi_wide<T>::count;
    zfi_dropout d =
        zfi_dropout_of(l, ZF_FLOAT(l, dropout, p), ZF_INT(l, dropout, stream), zfi_count(&l->out));
    T *out = static_cast<T *>(l->out.data);
    const T *x = static_cast<const T *>(l->args[0].data);
    ZFI_FLAT(l, n, zfi_count(&l->out), zfi_lies_well(0, 1, out, x), (zfi_dropout_kernel<T, n>),
             (zfi_dropout_kernel<T, 1>), d, out, x)
}

static zf_status zfi_cuda_dropout(const zf_launch *l)
{
    ZFI_FLOATS(l, l->out.dtype, T, zfi_dropout_launch<T>(l);)
    return zfi_launched(l);
}

ZFI_KERNEL(neg, zfi_cuda_unary, NULL)
ZFI_KERNEL(scale, zfi_cuda_unary, NULL)
ZFI_KERNEL(exp, zfi_cuda_unary, NULL)
ZFI_KERNEL(log, zfi_cuda_unary, NULL)
ZFI_KERNEL(sqrt, zfi_cuda_unary, NULL)
ZFI_KERNEL(rsqrt, zfi_cuda_unary, NULL)
ZFI_KERNEL(tanh, zfi_cuda_unary, NULL)
ZFI_KERNEL(tanh_grad, zfi_cuda_unary, NULL)
ZFI_KERNEL(sigmoid, zfi_cuda_unary, NULL)
ZFI_KERNEL(sigmoid_grad, zfi_cuda_unary, NULL)
ZFI_KERNEL(relu, zfi_cuda_unary, NULL)
ZFI_KERNEL(relu_grad, zfi_cuda_unary, NULL)
ZFI_KERNEL(gelu, zfi_cuda_unary, NULL)
ZFI_KERNEL(silu, zfi_cuda_unary, NULL)
ZFI_KERNEL(cast, zfi_cuda_cast, NULL)
ZFI_KERNEL(dropout, zfi_cuda_dropout, NULL)
