/* What communicators on streams need from a device: sums over ranks, and a report of how far a
 * stream has come.
 *
 *     parts   rank 0's   rank 1's   own   rank 3's
 *                 |          |       |        |
 *     out = add ? out + ---- + ----- + ------ + --->  rounded once
 *
 * The same bits as zf_add_ranks: a thread adds 16 bytes of elements, rank by rank. Likewise those
 * of zf_add_ranks_by_tree, an element at a time. */

/* The types in which a sum of T is added and returned. Integers wrap, except u8, which saturates at
 * 255. */
template <class T> struct zfd_sum {
    typedef float type;
    static __device__ __forceinline__ float in(T x) { return zfd_to_f32(x); }
    static __device__ __forceinline__ T out(float x) { return zfd_from_f32<T>(x); }
};

template <class T, class S> struct zfd_sum_as {
    typedef S type;
    static __device__ __forceinline__ S in(T x) { return (S)x; }
    static __device__ __forceinline__ T out(S x) { return (T)x; }
};
template <> struct zfd_sum<double> : zfd_sum_as<double, double> {};
template <> struct zfd_sum<int32_t> : zfd_sum_as<int32_t, uint32_t> {};
template <> struct zfd_sum<long long> : zfd_sum_as<long long, unsigned long long> {};
template <> struct zfd_sum<uint8_t> : zfd_sum_as<uint8_t, uint32_t> {
    static __device__ __forceinline__ uint8_t out(uint32_t x) { return x < 255 ? (uint8_t)x : 255; }
};
template <> struct zfd_sum<bool> : zfd_sum_as<bool, uint32_t> {
    static __device__ __forceinline__ bool out(uint32_t x) { return x != 0; }
};

/* Rank r's part. */
template <class T> __device__ __forceinline__ const T *zfd_part(const zf_cuda_sum &s, int32_t r)
{
    const char *part = r == s.rank && s.own ? static_cast<const char *>(s.own)
                                            : static_cast<const char *>(s.parts) + r * s.stride;
    return reinterpret_cast<const T *>(part);
}

/* Elements [i, i + N) of rank r's part. */
template <class T, int N>
__device__ __forceinline__ zfd_pack<T, N> zfd_part_at(const zf_cuda_sum &s, int32_t r, int64_t i)
{
    return *reinterpret_cast<const zfd_pack<T, N> *>(zfd_part<T>(s, r) + i);
}

/* Elements [i, i + N) of the sum. */
template <class T, int N>
__device__ __forceinline__ void zfd_sum_at(const zf_cuda_sum &s, int64_t i)
{
    typename zfd_sum<T>::type sum[N];
    zfd_pack<T, N> *out = reinterpret_cast<zfd_pack<T, N> *>(static_cast<T *>(s.out) + i);
    zfd_pack<T, N> p = s.add ? *out : zfd_part_at<T, N>(s, 0, i);
#pragma unroll
    for (int k = 0; k < N; k++) sum[k] = zfd_sum<T>::in(p.at[k]);
#pragma unroll 4
    for (int32_t r = s.add ? 0 : 1; r < s.world; r++) {
        p = zfd_part_at<T, N>(s, r, i);
#pragma unroll
        for (int k = 0; k < N; k++) sum[k] += zfd_sum<T>::in(p.at[k]);
    }
#pragma unroll
    for (int k = 0; k < N; k++) p.at[k] = zfd_sum<T>::out(sum[k]);
    *out = p;
}

/* The same by a balanced tree (base/tree.c), with the open sums at sums, sums + ZFD_THREADS, ... */
template <class T>
__device__ __forceinline__ void zfd_tree_at(const zf_cuda_sum &s, int64_t i,
                                            typename zfd_sum<T>::type *sums)
{
    T *out = static_cast<T *>(s.out) + i;
    int depth = 0;
    for (int32_t r = 0; r < s.world; r++) {
        sums[depth++ * ZFD_THREADS] = zfd_sum<T>::in(zfd_part<T>(s, r)[i]);
        for (int32_t k = r; depth > 1 && (k & 1 || r == s.world - 1); k >>= 1, depth--)
            sums[(depth - 2) * ZFD_THREADS] += sums[(depth - 1) * ZFD_THREADS];
    }
    if (s.add) sums[0] += zfd_sum<T>::in(*out);
    *out = zfd_sum<T>::out(sums[0]);
}

/* The first `packs` packs of 16 bytes, then the rest. */
template <class T> __global__ void zfd_sum_ranks(zf_cuda_sum s, int64_t packs)
{
    const int wide = zfd_wide<T>::count;
    const int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x,
                  step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t p = first; p < packs; p += step) zfd_sum_at<T, wide>(s, p * wide);
    for (int64_t i = packs * wide + first; i < s.count; i += step) zfd_sum_at<T, 1>(s, i);
}

/* Shared memory: of each thread the open sums. */
template <class T>
__global__ void __launch_bounds__(ZFD_THREADS) zfd_sum_ranks_by_tree(zf_cuda_sum s)
{
    ZFD_SHARED(typename zfd_sum<T>::type, sums);
    const int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x,
                  step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = first; i < s.count; i += step)
        zfd_tree_at<T>(s, i, sums + threadIdx.x);
}

template <class T> static void zfd_put_sum(const zf_cuda_sum *s, cudaStream_t stream)
{
    const int64_t most = 1024; /* maximum of blocks */
    const bool well = zfd_lies_well(0, 0, s->out, s->parts, s->own) && s->stride % 16 == 0;
    const int64_t packs = well ? s->count / zfd_wide<T>::count : 0,
                  wanted = zfd_div_up(well && !s->tree ? packs : s->count, ZFD_THREADS);
    const unsigned blocks = (unsigned)(wanted < 1 ? 1 : wanted < most ? wanted : most);
    size_t open = 1; /* sums of a tree that are open at most */
    for (int32_t k = s->world - 1; k > 0; k >>= 1) open++;
    open *= sizeof(typename zfd_sum<T>::type) * ZFD_THREADS;
    if (s->tree) ZFD_LAUNCH((zfd_sum_ranks_by_tree<T>), blocks, ZFD_THREADS, open, stream, *s);
    else ZFD_LAUNCH((zfd_sum_ranks<T>), blocks, ZFD_THREADS, 0, stream, *s, packs);
}

ZF_API zf_status zf_cuda_add_ranks(const zf_cuda_sum *s, void *stream, zf_error *error)
{
    cudaStream_t on = static_cast<cudaStream_t>(stream);
    if (s->count < 1) return ZF_OK;
    switch (s->dtype) {
    case ZF_F32: zfd_put_sum<float>(s, on); break;
    case ZF_F64: zfd_put_sum<double>(s, on); break;
    case ZF_BF16: zfd_put_sum<zfd_bf16>(s, on); break;
    case ZF_F16: zfd_put_sum<zfd_f16>(s, on); break;
    case ZF_I32: zfd_put_sum<int32_t>(s, on); break;
    case ZF_I64: zfd_put_sum<long long>(s, on); break;
    case ZF_U8: zfd_put_sum<uint8_t>(s, on); break;
    case ZF_BOOL: zfd_put_sum<bool>(s, on); break;
    default:
        return zfd_cuda_fail(error, ZF_ERR_ARGUMENT, "zf_cuda_add_ranks: %d is no dtype",
                             (int)s->dtype);
    }
    return zfd_cuda_failed(error, "zf_cuda_add_ranks", cudaGetLastError());
}

/* Writes to host memory, to which other kernels write too, in order. The host reads `turn`
 * first. */
__global__ void zfd_tell_place(zf_cuda_place *place, zf_collective call)
{
    const int64_t turn = *const_cast<volatile int64_t *>(&place->turn);
    place->call = call;
    __threadfence_system();
    place->turn = turn + 1;
}

ZF_API zf_status zf_cuda_tell(zf_cuda_place *place, const zf_collective *call, void *stream,
                              zf_error *error)
{
    zf_collective what;
    memset(&what, 0, sizeof what);
    if (call) what = *call;
    ZFD_LAUNCH(zfd_tell_place, 1, 1, 0, static_cast<cudaStream_t>(stream), place, what);
    return zfd_cuda_failed(error, "zf_cuda_tell", cudaGetLastError());
}
