/* gelu_grad and silu_grad. Without column sums they are elementwise (unary.cu); with them, blocks
 * have strips of columns, as in sum_to (move.cu), and write each term before they add it. */

enum { ZFD_BIAS_SUMS = 1 }; /* saved value */

/* The rows of dx, as terms of a sum: computed and written where they are added. Element for
 * element, out may be dy or x. */
template <class T> struct zfd_activation_rows {
    typedef T element;
    template <int N> struct held {
        zfd_pack<T, N> dy, x;
    };
    zfd_unary u;
    T *out, *made; /* made: the activation, may be NULL */
    const T *dy, *x;

    template <int N> __device__ __forceinline__ void fetch(held<N> &h, int64_t at) const
    {
        h.dy = *reinterpret_cast<const zfd_pack<T, N> *>(dy + at);
        h.x = *reinterpret_cast<const zfd_pack<T, N> *>(x + at);
    }
    template <int N>
    __device__ __forceinline__ void terms(float (&y)[N], const held<N> &h, int64_t at) const
    {
        zfd_pack<T, N> rounded;
        float a[N], b[N], z[N];
        zfd_unpack(a, h.dy), zfd_unpack(b, h.x);
        zfd_activation_values(u, a, b, y, z);
#pragma unroll
        for (int i = 0; i < N; i++) rounded.at[i] = zfd_from_f32<T>(y[i]);
        *reinterpret_cast<zfd_pack<T, N> *>(out + at) = rounded;
        if (made) zfd_store(made + at, z);
        zfd_unpack(y, rounded);
    }
};

static int64_t zfd_activation_columns(const zf_launch *l)
{
    return l->out.shape.rank ? l->out.shape.dims[l->out.shape.rank - 1] : 1;
}

/* The plan of the sums; the result has elements. */
static zfd_sums zfd_activation_sums(const zf_launch *l)
{
    const int64_t n = zfd_activation_columns(l);
    return zfd_sums_over_rows(zfd_count(&l->out) / n, n, l->out.dtype);
}

static size_t zfd_cuda_scratch_activation_grad(const zf_launch *l)
{
    if (!l->saved || !l->saved[ZFD_BIAS_SUMS].shape.rank || !zfd_count(&l->out)) return 0;
    zfd_sums s = zfd_activation_sums(l);
    return zfd_sums_bytes(&s);
}

template <class T> static void zfd_activation_grad_launch(const zf_launch *l, const zf_array *sums)
{
    const zf_array *made = zfd_saved_out(l, 0);
    zfd_sums s = zfd_activation_sums(l);
    const zfd_activation_rows<T> rows = {
        zfd_unary_of(l), static_cast<T *>(l->out.data), made ? static_cast<T *>(made->data) : NULL,
        static_cast<const T *>(l->args[0].data), static_cast<const T *>(l->args[1].data)};
    s.wide = zfd_lies_well(s.columns, sizeof(T), rows.out, rows.made, rows.dy, rows.x);
    if (s.chunks.by > 1) zfd_sum_columns_launch(l, &s, l->scratch, ZF_F32, rows);
    else zfd_sum_columns_launch(l, &s, sums->data, sums->dtype, rows);
    zfd_sums_end(l, &s, sums->data, sums->dtype);
}

static zf_status zfd_cuda_activation_grad(const zf_launch *l)
{
    const zf_array *sums = zfd_saved_out(l, ZFD_BIAS_SUMS);
    if (!sums) return zfd_cuda_unary(l);
    if (!zfd_count(&l->out)) return zfd_move_bytes(l, sums->data, NULL, (int64_t)zfd_bytes(sums));
    ZFD_FLOATS(l, l->out.dtype, T, zfd_activation_grad_launch<T>(l, sums);)
    return zfd_launched(l);
}

ZFD_KERNEL(gelu_grad, zfd_cuda_activation_grad, zfd_cuda_scratch_activation_grad)
ZFD_KERNEL(silu_grad, zfd_cuda_activation_grad, zfd_cuda_scratch_activation_grad)
