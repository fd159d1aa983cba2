/* Elementwise over one operand, or over one and a gradient: neg scale exp log sqrt rsqrt abs sin
 * cos tanh sigmoid relu gelu silu and their gradients, cast and dropout. Values are computed in f32
 * and rounded once; the error of a function is at most 3 times 2^-24 (1 + |x|). NaN is
 * propagated. */

__device__ __forceinline__ float zfd_sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

/* (1 + erf(x / sqrt 2)) / 2 */
__device__ __forceinline__ float zfd_normal(float x)
{
    return fmaf(0.5f, erff(x * 0.70710678f), 0.5f);
}

/* x clamped to [-most, most], 0 for NaN: for a factor whose product has NaN from the other
 * factor. */
__device__ __forceinline__ float zfd_within(float x, float most)
{
    return fminf(fmaxf(x, -most), most);
}

/* How gelu is computed. */
enum zfd_gelu_way {
    ZFD_GELU_BY_ERF,
    ZFD_GELU_BY_TANH,
    ZFD_GELU_NARROW /* by erf, for results of 16 bits */
};

/* (1 + erf(x / sqrt 2)) / 2 within 1e-7, and the density exp(-x^2 / 2) / sqrt(2 pi), for |x| up to
 * 14.45, with one exponential for both (Abramowitz & Stegun, Handbook of Mathematical Functions,
 * 26.2.17; the error shrinks with the density). */
__device__ __forceinline__ float zfd_normal_narrow(float x, float &density)
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
__device__ __forceinline__ void zfd_gelu_both(float x, zfd_gelu_way way, float &y, float &slope)
{
    if (way == ZFD_GELU_NARROW) {
        float c = zfd_within(x, 14.45f), density, s = zfd_normal_narrow(c, density);
        y = x * s;
        slope = x == x ? fmaf(c, density, s) : x; /* c of NaN is 0 */
    } else if (way == ZFD_GELU_BY_TANH) { /* x sigmoid(2 u), u = sqrt(2/pi) (x + 0.044715 x^3) */
        float c = zfd_within(x, 20.0f), b = c * c, s;
        s = zfd_sigmoid(x * fmaf(x * x, 0.07135481f, 1.59576912f));
        y = x * s;
        slope = fmaf(s * (1.0f - s), c * fmaf(b, 3 * 0.07135481f, 1.59576912f), s);
    } else {
        float c = zfd_within(x, 14.45f), s = zfd_normal(x);
        y = x * s;
        slope = fmaf(c * 0.39894228f, expf(-0.5f * c * c), s);
    }
}

__device__ __forceinline__ float zfd_gelu(float x, zfd_gelu_way way)
{
    float y, slope;
    zfd_gelu_both(x, way, y, slope);
    return y;
}

__device__ __forceinline__ void zfd_silu_both(float x, float &y, float &slope)
{
    float s = zfd_sigmoid(x);
    y = x * s;
    slope = s * fmaf(zfd_within(x, 200.0f), 1.0f - s, 1.0f);
}

/* How to compute a node with or without the tanh form, for values of the dtype. */
static zfd_gelu_way zfd_gelu_way_of(bool by_tanh, zf_dtype dtype)
{
    return by_tanh ? ZFD_GELU_BY_TANH : dtype == ZF_F32 ? ZFD_GELU_BY_ERF : ZFD_GELU_NARROW;
}

/* A node of one operand, or a gradient of (dy, v), in f32; also an instruction of a chain. */
typedef struct zfd_unary {
    zf_op op;
    zfd_gelu_way way; /* gelu */
    float by;         /* scale */
} zfd_unary;

/* gelu_grad and silu_grad: y from (dy, x) = (a, b), and z, the activation at b. y and z may be a
 * and b. */
template <int N>
__device__ __forceinline__ void zfd_activation_values(const zfd_unary &u, const float (&a)[N],
                                                      const float (&b)[N], float (&y)[N],
                                                      float (&z)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        float value, slope;
        if (u.op == ZF_OP_gelu_grad) zfd_gelu_both(b[i], u.way, value, slope);
        else zfd_silu_both(b[i], value, slope);
        y[i] = a[i] * slope;
        z[i] = value;
    }
}

/* y from x = a or, for gradients, from (dy, v) = (a, b). z: the activation at b, for gelu_grad and
 * silu_grad. y and z may be a and b. */
template <int N>
__device__ __forceinline__ void zfd_unary_values(const zfd_unary &u, const float (&a)[N],
                                                 const float (&b)[N], float (&y)[N], float (&z)[N])
{
    typedef float C;
    switch (u.op) {
    case ZF_OP_neg: ZFD_EACH(-p);
    case ZF_OP_scale: ZFD_EACH(p * u.by);
    case ZF_OP_exp: ZFD_EACH(expf(p));
    case ZF_OP_log: ZFD_EACH(logf(p));
    case ZF_OP_sqrt: ZFD_EACH(sqrtf(p));
    case ZF_OP_rsqrt: ZFD_EACH(1.0f / sqrtf(p));
    case ZF_OP_abs: ZFD_EACH(fabsf(p));
    case ZF_OP_sin: ZFD_EACH(sinf(p));
    case ZF_OP_cos: ZFD_EACH(cosf(p));
    case ZF_OP_tanh: ZFD_EACH(tanhf(p));
    case ZF_OP_tanh_grad: ZFD_EACH(p * ((1.0f - q) * (1.0f + q)));
    case ZF_OP_sigmoid: ZFD_EACH(zfd_sigmoid(p));
    case ZF_OP_sigmoid_grad: ZFD_EACH(p * (q * (1.0f - q)));
    case ZF_OP_relu: ZFD_EACH(p <= 0 ? 0 : p);
    case ZF_OP_relu_grad: ZFD_EACH(q <= 0 ? 0 : p);
    case ZF_OP_gelu: ZFD_EACH(zfd_gelu(p, u.way));
    case ZF_OP_silu: ZFD_EACH(p * zfd_sigmoid(p));
    default: zfd_activation_values(u, a, b, y, z);
    }
}

static zfd_unary zfd_unary_of(const zf_launch *l)
{
    zfd_unary u = {l->op, ZFD_GELU_BY_ERF, 0};
    if (l->op == ZF_OP_scale) u.by = (float)ZF_FLOAT(l, scale, by);
    if (l->op == ZF_OP_gelu || l->op == ZF_OP_gelu_grad)
        u.way = zfd_gelu_way_of(ZF_INT(l, gelu, form) != 0, l->out.dtype);
    return u;
}

/* Computes the packs of N elements from `first` on within `count`. */
template <class T, int N>
__global__ void zfd_unary_kernel(int64_t first, int64_t count, zfd_unary u, T *out, const T *x,
                                 const T *v, T *made)
{
    for (int64_t i = first + ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N; i < count;
         i += (int64_t)gridDim.x * blockDim.x * N) {
        float a[N], b[N], y[N], z[N] = {0};
        zfd_fetch(a, x + i, true);
        if (v) zfd_fetch(b, v + i, true);
        else zfd_fetch(b, x + i, true);
        zfd_unary_values(u, a, b, y, z);
        zfd_put_pack(out + i, y);
        if (made) zfd_put_pack(made + i, z);
    }
}

/* Launches wide(0, whole) for as many elements as can be taken `n` at a time, and plain(whole,
 * count) for the rest. */
#define ZFD_FLAT(l, n, count, lies, wide, plain, ...)                                              \
    {                                                                                              \
        int64_t all = (count), whole = (lies) ? all / (n) * (n) : 0;                               \
        if (whole)                                                                                 \
            ZFD_LAUNCH(wide, zfd_grid(l, zfd_div_up(whole / (n), ZFD_THREADS)), ZFD_THREADS, 0,    \
                       zfd_stream(l), (int64_t)0, whole, __VA_ARGS__);                             \
        if (whole < all)                                                                           \
            ZFD_LAUNCH(plain, zfd_grid(l, zfd_div_up(all - whole, ZFD_THREADS)), ZFD_THREADS, 0,   \
                       zfd_stream(l), whole, all, __VA_ARGS__);                                    \
    }

template <class T> static void zfd_unary_launch(const zf_launch *l)
{
    const int n = zfd_wide<T>::count;
    zfd_unary u = zfd_unary_of(l);
    T *out = static_cast<T *>(l->out.data), *made = NULL;
    const T *x = static_cast<const T *>(l->args[0].data), *v = NULL;
    if (l->arg_count > 1) v = static_cast<const T *>(l->args[1].data);
    if (zfd_saved_out(l, 0)) made = static_cast<T *>(zfd_saved_out(l, 0)->data);
    ZFD_FLAT(l, n, zfd_count(&l->out), zfd_lies_well(0, 1, out, x, v, made),
             (zfd_unary_kernel<T, n>), (zfd_unary_kernel<T, 1>), u, out, x, v, made)
}

static zf_status zfd_cuda_unary(const zf_launch *l)
{
    ZFD_FLOATS(l, l->out.dtype, T, zfd_unary_launch<T>(l);)
    return zfd_launched(l);
}

/* ------------------------------------------------------------------------------- cast */

/* x may be out if both dtypes have one size: each element is read and written by one thread. */
template <class T, class X, int N>
__global__ void zfd_cast_kernel(int64_t first, int64_t count, T *out, const X *x)
{
    for (int64_t i = first + ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N; i < count;
         i += (int64_t)gridDim.x * blockDim.x * N) {
        float y[N];
        zfd_fetch(y, x + i, true);
        zfd_put_pack(out + i, y);
    }
}

template <class T, class X> static void zfd_cast_launch(const zf_launch *l)
{
    const int n = sizeof(T) > sizeof(X) ? zfd_wide<T>::count : zfd_wide<X>::count;
    T *out = static_cast<T *>(l->out.data);
    const X *x = static_cast<const X *>(l->args[0].data);
    ZFD_FLAT(l, n, zfd_count(&l->out), zfd_lies_well(0, 1, out, x), (zfd_cast_kernel<T, X, n>),
             (zfd_cast_kernel<T, X, 1>), out, x)
}

/* An integer as an f32 that rounds to narrower floats as the integer itself would: if it does not
 * fit 24 bits, the lowest bit is set (rounding to odd). */
__device__ __forceinline__ float zfd_sticky_f32(int64_t x)
{
    uint64_t magnitude = x < 0 ? 0 - (uint64_t)x : (uint64_t)x;
    int bits = 64 - __clzll((long long)magnitude) - 24;
    if (bits > 0)
        magnitude = (magnitude >> bits | ((magnitude & (((uint64_t)1 << bits) - 1)) != 0)) << bits;
    return x < 0 ? -(float)magnitude : (float)magnitude;
}

/* x truncated towards zero and clamped to [low, high]; NaN gives 0. */
__device__ __forceinline__ int64_t zfd_truncated(float x, int64_t low, int64_t high)
{
    if (x != x) return 0;
    return x <= (float)low ? low : x >= (float)high ? high : (int64_t)x;
}

__device__ __forceinline__ int64_t zfd_clamped(int64_t x, int64_t low, int64_t high)
{
    return x < low ? low : x > high ? high : x;
}

/* Reads an element of any dtype but f64, into `integer` or into `real`; returns which. */
__device__ __forceinline__ bool zfd_read_any(const void *x, zf_dtype dtype, int64_t i,
                                             int64_t &integer, float &real)
{
    switch (dtype) {
    case ZF_F32: real = static_cast<const float *>(x)[i]; return false;
    case ZF_BF16: real = zfd_to_f32(static_cast<const zfd_bf16 *>(x)[i]); return false;
    case ZF_F16: real = zfd_to_f32(static_cast<const zfd_f16 *>(x)[i]); return false;
    case ZF_I32: integer = static_cast<const int32_t *>(x)[i]; return true;
    case ZF_I64: integer = static_cast<const int64_t *>(x)[i]; return true;
    default: integer = static_cast<const uint8_t *>(x)[i]; return true;
    }
}

static __global__ void zfd_cast_any_kernel(int64_t count, void *out, zf_dtype to, const void *x,
                                           zf_dtype from)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * blockDim.x) {
        int64_t n = 0;
        float f = 0;
        bool whole = zfd_read_any(x, from, i, n, f);
        switch (to) {
        case ZF_F32: static_cast<float *>(out)[i] = whole ? (float)n : f; break;
        case ZF_BF16:
            static_cast<zfd_bf16 *>(out)[i] = zfd_from_f32<zfd_bf16>(whole ? zfd_sticky_f32(n) : f);
            break;
        case ZF_F16:
            static_cast<zfd_f16 *>(out)[i] = zfd_from_f32<zfd_f16>(whole ? zfd_sticky_f32(n) : f);
            break;
        case ZF_I32:
            static_cast<int32_t *>(out)[i] =
                (int32_t)(whole ? zfd_clamped(n, INT32_MIN, INT32_MAX)
                                : zfd_truncated(f, INT32_MIN, INT32_MAX));
            break;
        case ZF_I64:
            static_cast<int64_t *>(out)[i] = whole ? n : zfd_truncated(f, INT64_MIN, INT64_MAX);
            break;
        case ZF_U8:
            static_cast<uint8_t *>(out)[i] =
                (uint8_t)(whole ? zfd_clamped(n, 0, 255) : zfd_truncated(f, 0, 255));
            break;
        default: static_cast<uint8_t *>(out)[i] = whole ? n != 0 : f != 0; break;
        }
    }
}

/* i32, i64, u8 or bool */
static bool zfd_is_whole(zf_dtype dtype) { return dtype >= ZF_I32; }

static zf_status zfd_cuda_cast(const zf_launch *l)
{
    zf_dtype from = l->args[0].dtype, to = l->out.dtype;
    int64_t count = zfd_count(&l->out);
    if (from == ZF_F64 || to == ZF_F64) return zfd_no_dtype(l, ZF_F64);
    if (zfd_is_whole(from) || zfd_is_whole(to)) {
        if (count)
            ZFD_LAUNCH(zfd_cast_any_kernel, zfd_grid(l, zfd_div_up(count, ZFD_THREADS)),
                       ZFD_THREADS, 0, zfd_stream(l), count, l->out.data, to, l->args[0].data,
                       from);
    } else {
        ZFD_FLOATS(l, from, X, ZFD_FLOATS(l, to, T, zfd_cast_launch<T, X>(l);))
    }
    return zfd_launched(l);
}

/* ------------------------------------------------------------------------------ a share */

/* By which number an element of a value that ranks share is drawn: that in the whole one. */
typedef struct zfd_share {
    int rank; /* 0: the value is whole */
    int64_t at, dims[3 * ZF_MAX_RANK], steps[3 * ZF_MAX_RANK];
    zfd_divisor by[3 * ZF_MAX_RANK]; /* dims */
} zfd_share;

/* Adds dimensions in front of those that are there, of which `n` elements are `step` apart. */
static void zfd_share_put(zfd_share *s, int64_t n, int64_t step)
{
    const int last = s->rank - 1;
    if (n == 1) return;
    if (s->rank && step == s->dims[last] * s->steps[last]) s->dims[last] *= n;
    else s->dims[s->rank] = n, s->steps[s->rank++] = step;
}

/* The share of a launch of a value of this shape. */
static zfd_share zfd_share_of(const zf_launch *l, const zf_shape *shape)
{
    int64_t step = 1, count = 1;
    zfd_share s;
    memset(&s, 0, sizeof s);
    if (!l->share) return s;
    for (int d = shape->rank - 1; d >= 0; d--) {
        const int64_t n = shape->dims[d], run = l->share->run[d] ? l->share->run[d] : n,
                      fold = l->share->fold[d], half = fold ? run / 2 : run;
        if (!n) return s;
        s.at += l->share->at[d] * step;
        zfd_share_put(&s, half, step);
        if (fold) zfd_share_put(&s, 2, step * (half + fold));
        zfd_share_put(&s, n / run, step * run * (l->share->whole.dims[d] / n));
        step *= l->share->whole.dims[d], count *= n;
    }
    if (!s.rank) s.dims[0] = s.steps[0] = s.rank = 1;
    for (int k = 0; k < s.rank; k++) s.by[k] = zfd_divisor_of(s.dims[k], count);
    return s;
}

/* How many elements of the whole value there are. */
static int64_t zfd_drawn(const zf_launch *l, int64_t count)
{
    return l->share ? zf_shape_count(l->share->whole) : count;
}

/* Packs of n elements, from each multiple of n on, have neighbours' numbers. */
static bool zfd_share_fits(const zfd_share &s, int64_t n)
{
    return !s.rank || (s.steps[0] == 1 && s.dims[0] % n == 0);
}

/* The number of element i. */
__device__ __forceinline__ int64_t zfd_number_of(const zfd_share &s, int64_t i)
{
    int64_t at = s.at;
    if (!s.rank) return i;
    for (int k = 0; k < s.rank; k++) {
        const int64_t next = k + 1 < s.rank ? zfd_divide(i, s.by[k]) : 0;
        at += (i - next * s.dims[k]) * s.steps[k];
        i = next;
    }
    return at;
}

/* ---------------------------------------------------------------------------- dropout */

/* y = dropout of x, elements i to i + N. A dropped element is 0 even if x is NaN. y may be x. */
template <int N>
__device__ __forceinline__ void zfd_dropped(const zfd_dropper &d, int64_t i, const float (&x)[N],
                                            float (&y)[N])
{
    float by[N];
    zfd_kept_of(d, (uint64_t)i, by);
#pragma unroll
    for (int k = 0; k < N; k++) y[k] = by[k] == 0 ? 0 : x[k] * by[k];
}

template <class T, int N>
__global__ void zfd_dropout_kernel(int64_t first, int64_t count, zfd_dropout d, zfd_share share,
                                   T *out, const T *x)
{
    zfd_dropper r = zfd_dropper_of(d);
    for (int64_t i = first + ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N; i < count;
         i += (int64_t)gridDim.x * blockDim.x * N) {
        float y[N];
        zfd_fetch(y, x + i, true);
        zfd_dropped(r, zfd_number_of(share, i), y, y);
        zfd_put_pack(out + i, y);
    }
}

template <class T> static void zfd_dropout_launch(const zf_launch *l)
{
    const int n = zfd_wide<T>::count;
    const zfd_dropout d = zfd_dropout_of(l, ZF_FLOAT(l, dropout, p), ZF_INT(l, dropout, stream),
                                         zfd_drawn(l, zfd_count(&l->out)));
    const zfd_share share = zfd_share_of(l, &l->out.shape);
    T *out = static_cast<T *>(l->out.data);
    const T *x = static_cast<const T *>(l->args[0].data);
    ZFD_FLAT(l, n, zfd_count(&l->out), zfd_lies_well(0, 1, out, x) && zfd_share_fits(share, n),
             (zfd_dropout_kernel<T, n>), (zfd_dropout_kernel<T, 1>), d, share, out, x)
}

static zf_status zfd_cuda_dropout(const zf_launch *l)
{
    ZFD_FLOATS(l, l->out.dtype, T, zfd_dropout_launch<T>(l);)
    return zfd_launched(l);
}

ZFD_KERNEL(neg, zfd_cuda_unary, NULL)
ZFD_KERNEL(scale, zfd_cuda_unary, NULL)
ZFD_KERNEL(exp, zfd_cuda_unary, NULL)
ZFD_KERNEL(log, zfd_cuda_unary, NULL)
ZFD_KERNEL(sqrt, zfd_cuda_unary, NULL)
ZFD_KERNEL(rsqrt, zfd_cuda_unary, NULL)
ZFD_KERNEL(abs, zfd_cuda_unary, NULL)
ZFD_KERNEL(sin, zfd_cuda_unary, NULL)
ZFD_KERNEL(cos, zfd_cuda_unary, NULL)
ZFD_KERNEL(tanh, zfd_cuda_unary, NULL)
ZFD_KERNEL(tanh_grad, zfd_cuda_unary, NULL)
ZFD_KERNEL(sigmoid, zfd_cuda_unary, NULL)
ZFD_KERNEL(sigmoid_grad, zfd_cuda_unary, NULL)
ZFD_KERNEL(relu, zfd_cuda_unary, NULL)
ZFD_KERNEL(relu_grad, zfd_cuda_unary, NULL)
ZFD_KERNEL(gelu, zfd_cuda_unary, NULL)
ZFD_KERNEL(silu, zfd_cuda_unary, NULL)
ZFD_KERNEL(cast, zfd_cuda_cast, NULL)
ZFD_KERNEL(dropout, zfd_cuda_dropout, NULL)
