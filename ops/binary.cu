/* Elementwise over two or three operands, broadcasting: add sub mul div maximum minimum pow equal
 * less where. Also positions under broadcasting, which other kernels share.
 *
 * A thread computes 16 bytes of the result at a time, within the last of the merged dimensions.
 * Along this dimension an operand has its own elements or repeats one value. Its position takes one
 * multiplication for each earlier dimension but the first:
 *
 *     [R,N] with [R,N] or []      one dimension, none        a   |========|   |========|
 *     [R,N] with [N] or [R,1]     two dimensions, one        b   |========|   |  same  |
 */

/* Division by a number known on the host: by a multiplication where the dividend is below 2^31
 * (Granlund & Montgomery 1994). */
typedef struct zfd_divisor {
    int64_t by;
    uint32_t factor;
    int32_t shift; /* -1: uses a division */
} zfd_divisor;

/* by > 0; no dividend is larger than `most`. */
static zfd_divisor zfd_divisor_of(int64_t by, int64_t most)
{
    zfd_divisor d = {by, 0, -1};
    if (most > INT32_MAX || by > INT32_MAX) return d;
    for (d.shift = 0; (int64_t)1 << d.shift < by; d.shift++) {
    }
    d.factor = (uint32_t)((((uint64_t)1 << 32) * (((uint64_t)1 << d.shift) - (uint64_t)by)) /
                              (uint64_t)by +
                          1);
    return d;
}

__device__ __forceinline__ int64_t zfd_divide(int64_t x, const zfd_divisor &d)
{
    if (d.shift < 0) return x / d.by;
    return (__umulhi((uint32_t)x, d.factor) + (uint32_t)x) >> d.shift;
}

/* Positions in up to four arrays while an index runs over dims[0..rank) in row-major order. */
enum { ZFD_WALKED = 4 };

typedef struct zfd_walk {
    int rank, arrays;
    int64_t dims[ZF_MAX_RANK], strides[ZFD_WALKED][ZF_MAX_RANK]; /* in elements */
    zfd_divisor by[ZF_MAX_RANK];                                 /* dims, set by zfd_walk_ready */
} zfd_walk;

/* The strides, in elements, of `operand` broadcast to `out`: 0 along a repeated dimension. */
static void zfd_broadcast_strides(const zf_shape *operand, const zf_shape *out,
                                  int64_t strides[ZF_MAX_RANK])
{
    int64_t stride = 1;
    int shift = out->rank - operand->rank;
    for (int axis = out->rank - 1; axis >= 0; axis--) {
        int64_t extent = axis >= shift ? operand->dims[axis - shift] : 1;
        strides[axis] = extent == 1 ? 0 : stride;
        stride *= extent;
    }
}

/* Drops dimensions of size 1, and merges neighbouring dimensions that have one step in all arrays.
 * At least one axis is left. */
static void zfd_walk_merge(zfd_walk *w)
{
    int rank = 0;
    for (int axis = 0; axis < w->rank; axis++) {
        int64_t n = w->dims[axis];
        bool one_step = rank > 0;
        if (n == 1) continue;
        for (int k = 0; k < w->arrays; k++)
            if (rank && w->strides[k][rank - 1] != n * w->strides[k][axis]) one_step = false;
        if (one_step) n *= w->dims[--rank];
        w->dims[rank] = n;
        for (int k = 0; k < w->arrays; k++) w->strides[k][rank] = w->strides[k][axis];
        rank++;
    }
    if (!rank) {
        w->dims[0] = 1, rank = 1;
        for (int k = 0; k < w->arrays; k++) w->strides[k][0] = 1;
    }
    w->rank = rank;
}

/* Must be called before a kernel walks. */
static void zfd_walk_ready(zfd_walk *w)
{
    int64_t count = 1;
    for (int axis = 0; axis < w->rank; axis++) count *= w->dims[axis];
    for (int axis = 0; axis < w->rank; axis++)
        w->by[axis] = zfd_divisor_of(w->dims[axis] > 0 ? w->dims[axis] : 1, count);
}

/* The positions, in all arrays, of number i of the first `rank` dimensions; returns the index along
 * the last of them. */
template <int arrays>
__device__ __forceinline__ int64_t zfd_walk_along(const zfd_walk &w, int rank, int64_t i,
                                                  int64_t (&at)[arrays])
{
    int64_t last = 0;
#pragma unroll
    for (int k = 0; k < arrays; k++) at[k] = 0;
    for (int axis = rank - 1; axis >= 0; axis--) {
        int64_t next = axis ? zfd_divide(i, w.by[axis]) : 0, index = i - next * w.dims[axis];
        if (axis == rank - 1) last = index;
#pragma unroll
        for (int k = 0; k < arrays; k++) at[k] += index * w.strides[k][axis];
        i = next;
    }
    return last;
}

template <int arrays>
__device__ __forceinline__ int64_t zfd_walk_to(const zfd_walk &w, int64_t i, int64_t (&at)[arrays])
{
    return zfd_walk_along(w, w.rank, i, at);
}

/* The type in which elements of a dtype are computed: f32 for floats, the dtype itself for
 * integers. */
template <class T> struct zfd_math {
    typedef T type;
    typedef T bits; /* adds and multiplies with wrapping */
};
template <> struct zfd_math<zfd_bf16> {
    typedef float type, bits;
};
template <> struct zfd_math<zfd_f16> {
    typedef float type, bits;
};
template <> struct zfd_math<int32_t> {
    typedef int32_t type;
    typedef uint32_t bits;
};
template <> struct zfd_math<int64_t> {
    typedef int64_t type;
    typedef uint64_t bits;
};

template <class T> __device__ __forceinline__ T zfd_widened(T x) { return x; }
__device__ __forceinline__ float zfd_widened(zfd_bf16 x) { return zfd_to_f32(x); }
__device__ __forceinline__ float zfd_widened(zfd_f16 x) { return zfd_to_f32(x); }

template <class T> struct zfd_narrowed {
    static __device__ __forceinline__ T of(T x) { return x; }
};
template <> struct zfd_narrowed<zfd_bf16> {
    static __device__ __forceinline__ zfd_bf16 of(float x) { return zfd_from_f32<zfd_bf16>(x); }
};
template <> struct zfd_narrowed<zfd_f16> {
    static __device__ __forceinline__ zfd_f16 of(float x) { return zfd_from_f32<zfd_f16>(x); }
};

/* N elements from `from` on; or, with step 0, the first one N times. */
template <int N, class T, class C>
__device__ __forceinline__ void zfd_fetch(C (&x)[N], const T *from, bool step)
{
    if (step) {
        const zfd_pack<T, N> p = *reinterpret_cast<const zfd_pack<T, N> *>(from);
#pragma unroll
        for (int i = 0; i < N; i++) x[i] = zfd_widened(p.at[i]);
    } else {
        const C one = zfd_widened(*from);
#pragma unroll
        for (int i = 0; i < N; i++) x[i] = one;
    }
}

template <int N, class T, class C>
__device__ __forceinline__ void zfd_put_pack(T *to, const C (&x)[N])
{
    zfd_pack<T, N> p;
#pragma unroll
    for (int i = 0; i < N; i++) p.at[i] = zfd_narrowed<T>::of(x[i]);
    *reinterpret_cast<zfd_pack<T, N> *>(to) = p;
}

/* Integers: x / 0 is 0, and the minimum divided by -1 is the minimum. */
__device__ __forceinline__ float zfd_quotient(float a, float b) { return a / b; }
template <class C> __device__ __forceinline__ C zfd_quotient(C a, C b)
{
    typedef typename zfd_math<C>::bits U;
    return b == 0 ? 0 : b == (C)-1 ? (C)((U)0 - (U)a) : (C)(a / b);
}

/* Of floats alone. */
__device__ __forceinline__ float zfd_power(float a, float b) { return powf(a, b); }
template <class C> __device__ __forceinline__ C zfd_power(C, C) { return 0; }

/* y[i] = the expression, with p = a[i] and q = b[i]; then leaves the switch. */
#define ZFD_EACH(expression)                                                                       \
    _Pragma("unroll") for (int i = 0; i < N; i++)                                                  \
    {                                                                                              \
        const C p = a[i], q = b[i];                                                                \
        (void)q;                                                                                   \
        y[i] = (C)(expression);                                                                    \
    }                                                                                              \
    break

/* Comparisons give 1 or 0; other: != and <= instead of == and <. */
template <class C, int N>
__device__ __forceinline__ void zfd_binary_values(zf_op op, const C (&a)[N], const C (&b)[N],
                                                  C (&y)[N], bool other = false)
{
    typedef typename zfd_math<C>::bits U;
    switch (op) {
    case ZF_OP_add: ZFD_EACH((U)p + (U)q);
    case ZF_OP_sub: ZFD_EACH((U)p - (U)q);
    case ZF_OP_mul: ZFD_EACH((U)p * (U)q);
    case ZF_OP_div: ZFD_EACH(zfd_quotient(p, q));
    case ZF_OP_maximum: ZFD_EACH(p > q ? p : q);
    case ZF_OP_minimum: ZFD_EACH(p < q ? p : q);
    case ZF_OP_pow: ZFD_EACH(zfd_power(p, q));
    case ZF_OP_equal: ZFD_EACH((p == q) != other);
    default: ZFD_EACH(p < q || (other && p == q));
    }
}

/* An elementwise node, in packs of N elements. Array k of the walk is operand k. */
typedef struct zfd_elementwise {
    zfd_walk walk;
    int64_t first, count; /* elements */
    bool step[ZFD_WALKED];
} zfd_elementwise;

static zfd_elementwise zfd_elementwise_of(const zf_launch *l)
{
    zfd_elementwise e;
    memset(&e, 0, sizeof e);
    e.walk.rank = l->out.shape.rank, e.walk.arrays = l->arg_count;
    memcpy(e.walk.dims, l->out.shape.dims, sizeof e.walk.dims);
    for (int k = 0; k < e.walk.arrays; k++)
        zfd_broadcast_strides(&l->args[k].shape, &l->out.shape, e.walk.strides[k]);
    e.count = zfd_count(&l->out);
    if (!e.count) return e;
    zfd_walk_merge(&e.walk);
    zfd_walk_ready(&e.walk);
    for (int k = 0; k < e.walk.arrays; k++) e.step[k] = e.walk.strides[k][e.walk.rank - 1] != 0;
    return e;
}

/* The number of elements, from the first on, that can be moved n at a time: all, or none, or with
 * one dimension all but the last few. */
static int64_t zfd_in_packs(const zf_launch *l, const zfd_elementwise *e, int n)
{
    int64_t last = e->walk.dims[e->walk.rank - 1];
    uintptr_t out = (uintptr_t)n * zf_dtype_size(l->out.dtype);
    if (reinterpret_cast<uintptr_t>(l->out.data) % out) return 0;
    for (int k = 0; k < e->walk.arrays; k++) {
        uintptr_t bytes = (uintptr_t)n * zf_dtype_size(l->args[k].dtype);
        if (e->step[k] && reinterpret_cast<uintptr_t>(l->args[k].data) % bytes) return 0;
    }
    return last % n == 0 ? e->count : e->walk.rank == 1 ? e->count / n * n : 0;
}

/* Launches wide(packs) for the elements that can be moved `n` at a time, and plain for the rest. */
#define ZFD_ELEMENTWISE(l, e, n, wide, plain, ...)                                                 \
    {                                                                                              \
        int64_t whole = zfd_in_packs(l, &e, n), all = e.count;                                     \
        e.first = 0, e.count = whole;                                                              \
        if (whole)                                                                                 \
            ZFD_LAUNCH(wide, zfd_grid(l, zfd_div_up(whole / n, ZFD_THREADS)), ZFD_THREADS, 0,      \
                       zfd_stream(l), e, __VA_ARGS__);                                             \
        e.first = whole, e.count = all;                                                            \
        if (whole < all)                                                                           \
            ZFD_LAUNCH(plain, zfd_grid(l, zfd_div_up(all - whole, ZFD_THREADS)), ZFD_THREADS, 0,   \
                       zfd_stream(l), e, __VA_ARGS__);                                             \
    }

/* Loops over elements [first, count) of e, `N` at a time; i is the first one's number. */
#define ZFD_EACH_PACK(e, N)                                                                        \
    for (int64_t i = (e).first + ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * (N);           \
         i < (e).count; i += (int64_t)gridDim.x * blockDim.x * (N))

template <class T, int N>
__global__ void zfd_binary_kernel(zfd_elementwise e, zf_op op, bool other, void *out, const T *a,
                                  const T *b)
{
    typedef typename zfd_math<T>::type C;
    ZFD_EACH_PACK(e, N)
    {
        int64_t at[2];
        C x[N], v[N], y[N];
        zfd_walk_to(e.walk, i, at);
        zfd_fetch(x, a + at[0], e.step[0]);
        zfd_fetch(v, b + at[1], e.step[1]);
        zfd_binary_values(op, x, v, y, other);
        if (op == ZF_OP_equal || op == ZF_OP_less) {
            uint8_t truth[N];
#pragma unroll
            for (int k = 0; k < N; k++) truth[k] = y[k] != (C)0;
            zfd_put_pack((uint8_t *)out + i, truth);
        } else {
            zfd_put_pack((T *)out + i, y);
        }
    }
}

template <class T> static void zfd_binary_launch(const zf_launch *l)
{
    const int n = zfd_wide<T>::count;
    const bool other = l->out.dtype == ZF_BOOL && ZF_INT(l, equal, negated) != 0; /* and or_equal */
    zfd_elementwise e = zfd_elementwise_of(l);
    const T *a = static_cast<const T *>(l->args[0].data),
            *b = static_cast<const T *>(l->args[1].data);
    if (e.count)
        ZFD_ELEMENTWISE(l, e, n, (zfd_binary_kernel<T, n>), (zfd_binary_kernel<T, 1>), l->op, other,
                        l->out.data, a, b)
}

static zf_status zfd_cuda_binary(const zf_launch *l)
{
    switch (l->args[0].dtype) {
    case ZF_I32: zfd_binary_launch<int32_t>(l); break;
    case ZF_I64: zfd_binary_launch<int64_t>(l); break;
    case ZF_U8:
    case ZF_BOOL: zfd_binary_launch<uint8_t>(l); break;
    default: ZFD_FLOATS(l, l->args[0].dtype, T, zfd_binary_launch<T>(l);)
    }
    return zfd_launched(l);
}

/* T: an unsigned type of the size of an element. */
template <class T, int N>
__global__ void zfd_where_kernel(zfd_elementwise e, T *out, const uint8_t *c, const T *a,
                                 const T *b)
{
    ZFD_EACH_PACK(e, N)
    {
        int64_t at[3];
        uint8_t first[N];
        T x[N], v[N];
        zfd_walk_to(e.walk, i, at);
        zfd_fetch(first, c + at[0], e.step[0]);
        zfd_fetch(x, a + at[1], e.step[1]);
        zfd_fetch(v, b + at[2], e.step[2]);
#pragma unroll
        for (int k = 0; k < N; k++) x[k] = first[k] ? x[k] : v[k];
        zfd_put_pack(out + i, x);
    }
}

template <class T> static void zfd_where_launch(const zf_launch *l)
{
    const int n = zfd_wide<T>::count;
    zfd_elementwise e = zfd_elementwise_of(l);
    T *out = static_cast<T *>(l->out.data);
    const uint8_t *c = static_cast<const uint8_t *>(l->args[0].data);
    const T *a = static_cast<const T *>(l->args[1].data),
            *b = static_cast<const T *>(l->args[2].data);
    if (e.count)
        ZFD_ELEMENTWISE(l, e, n, (zfd_where_kernel<T, n>), (zfd_where_kernel<T, 1>), out, c, a, b)
}

static zf_status zfd_cuda_where(const zf_launch *l)
{
    if (l->out.dtype == ZF_F64) return zfd_no_dtype(l, l->out.dtype);
    switch (zf_dtype_size(l->out.dtype)) {
    case 1: zfd_where_launch<uint8_t>(l); break;
    case 2: zfd_where_launch<uint16_t>(l); break;
    case 4: zfd_where_launch<uint32_t>(l); break;
    default: zfd_where_launch<uint64_t>(l); break;
    }
    return zfd_launched(l);
}

ZFD_KERNEL(add, zfd_cuda_binary, NULL)
ZFD_KERNEL(sub, zfd_cuda_binary, NULL)
ZFD_KERNEL(mul, zfd_cuda_binary, NULL)
ZFD_KERNEL(div, zfd_cuda_binary, NULL)
ZFD_KERNEL(maximum, zfd_cuda_binary, NULL)
ZFD_KERNEL(minimum, zfd_cuda_binary, NULL)
ZFD_KERNEL(pow, zfd_cuda_binary, NULL)
ZFD_KERNEL(equal, zfd_cuda_binary, NULL)
ZFD_KERNEL(less, zfd_cuda_binary, NULL)
ZFD_KERNEL(where, zfd_cuda_where, NULL)
