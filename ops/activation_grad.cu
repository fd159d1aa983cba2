/* gelu_grad and silu_grad. Without column sums they are elementwise (unary.cu); with them, blocks
 * have strips of columns, as in sum_to (move.cu), and write each term before they add it. */

enum { ZFI_BIAS_SUMS = 1 }; /* saved value */

/* The rows of dx, as terms of a sum: computed and written where they are added. Element for element,
 * out may be dy or x. */
template <class T> struct zfi_activation_rows {
    typedef T element;
    template <int N> struct held {
        zfi_pack<T, N> dy, x;
    };
    zfi_unary u;
    T *out, *made; /* made: the activation, may be NULL */
    const T *dy, *x;

    template <int N> __device__ __forceinline__ void fetch(held<N> &h, int64_t at) const
    {
        h.dy = *reinterpret_cast<const zfi_pack<T, N> *>(dy + at);
        h.x = *reinterpret_cast<const zfi_pack<T, N> *>(x + at);
    }
    template <int N>
    __device__ __forceinline__ void terms(float (&y)[N], const held<N> &h, int64_t at) const
    {
        zfi_pack<T, N> rounded;
        float a[N], b[N], z[N];
        zfi_unpack(a, h.dy), zfi_unpack(b, h.x);
        zfi_activation_values(u, a, b, y, z);
#pragma unroll
        for (int i = 0; i < N; i++) rounded.at[i] = zfi_from_f32<T>(y[i]);
        *reinterpret_cast<zfi_pack<T, N> *>(out + at) = rounded;
        if (made) zfi_store(made + at, z);
        zfi_unpack(y, rounded);
    }
};

static int64_t zfi_activation_columns(const zf_launch *l)
{
    return l->out.shape.rank ? l->out.shape.dims[l->out.shape.rank - 1] : 1;
}

/* The plan of the sums; the result has elements. */
static zfi_sums zfi_activation_sums(const zf_launch *l)
{
    const int64_t n = zfi_activation_columns(l);
    return zfi_sums_over_rows(zfi_count(&l->out) / n, n, l->out.dtype);
}

static size_t zfi_cuda_scratch_activation_grad(const zf_launch *l)
{
    if (!l->saved || !l->saved[ZFI_BIAS_SUMS].shape.rank || !zfi_count(&l->out)) return 0;
    zfi_sums s = zfi_activation_sums(l);
    return zfi_sums_bytes(&s);
}

template <class T> static void zfi_activation_grad_launch(const zf_launch *l, const zf_array *sums)
{
    const zf_array *made = zfi_saved_out(l, 0);
    zfi_sums s = zfi_activation_sums(l);
    const zfi_activation_rows<T> rows = {
        zfi_unary_of(l), static_cast<T *>(l->out.data), made ? static_cast<T *>(made->data) : NULL,
        static_cast<const T *>(l->args[0].data), static_cast<const T *>(l->args[1].data)};
    s.wide = zfi_lies_well(s.columns, sizeof(T), rows.out, rows.made, rows.dy, rows.x);
    if (s.chunks.by > 1) zfi_sum_columns_launch(l, &s, l->scratch, ZF_F32, rows);
    else zfi_sum_columns_launch(l, &s, sums->data, sums->dtype, rows);
    zfi_sums_end(l, &s, sums->data, sums->dtype);
}

static zf_status zfi_cuda_activation_grad(const zf_launch *l)
{
    const zf_array *sums = zfi_saved_out(l, ZFI_BIAS_SUMS);
    if (!sums) return zfi_cuda_unary(l);
    if (!zfi_count(&l->out)) return zfi_move_bytes(l, sums->data, NULL, (int64_t)zfi_bytes(sums));
    ZFI_FLOATS(l, l->out.dtype, T, zfi_activation_grad_launch<T>(l, sums);)
    return zfi_launched(l);
}

ZFI_KERNEL(gelu_grad, zfi_cuda_activation_grad, zfi_cuda_scratch_activation_grad)
ZFI_KERNEL(silu_grad, zfi_cuda_activation_grad, zfi_cuda_scratch_activation_grad)
