/* Collectives on CUDA (ops/collective.c). With several ranks, the communicator puts them on the
 * stream of their queue, with what is along a dimension turned in scratch before or after the call.
 * In a world of one they are a copy, or an addition to the accumulator. */

/* The launch is a collective of more than one rank. */
static bool zfd_is_among_ranks(const zf_launch *l)
{
    return zf_op_traits_of(l->op) & ZF_OP_COLLECTIVE && ZF_INT(l, all_gather, world) > 1;
}

template <class T> __device__ __forceinline__ T zfd_plus(T a, T b)
{
    return zfd_from_f32<T>(zfd_to_f32(a) + zfd_to_f32(b));
}
template <> __device__ __forceinline__ int32_t zfd_plus(int32_t a, int32_t b)
{
    return (int32_t)((uint32_t)a + (uint32_t)b);
}
template <> __device__ __forceinline__ long long zfd_plus(long long a, long long b)
{
    return (long long)((unsigned long long)a + (unsigned long long)b);
}

/* sum[i] += part[i], N at a time. */
template <class T, int N> __global__ void zfd_add_alone(T *sum, const T *part, int64_t packs)
{
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t p = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; p < packs; p += step) {
        zfd_pack<T, N> a = reinterpret_cast<zfd_pack<T, N> *>(sum)[p];
        const zfd_pack<T, N> b = reinterpret_cast<const zfd_pack<T, N> *>(part)[p];
#pragma unroll
        for (int i = 0; i < N; i++) a.at[i] = zfd_plus(a.at[i], b.at[i]);
        reinterpret_cast<zfd_pack<T, N> *>(sum)[p] = a;
    }
}

template <class T> static zf_status zfd_add_on(const zf_launch *l, int64_t count)
{
    const int wide = zfd_wide<T>::count;
    T *sum = static_cast<T *>(l->out.data);
    const T *part = static_cast<const T *>(l->args[0].data);
    if (zfd_lies_well(count, sizeof(T), sum, part))
        ZFD_LAUNCH((zfd_add_alone<T, wide>), zfd_grid(l, zfd_div_up(count / wide, ZFD_THREADS)),
                   ZFD_THREADS, 0, zfd_stream(l), sum, part, count / wide);
    else
        ZFD_LAUNCH((zfd_add_alone<T, 1>), zfd_grid(l, zfd_div_up(count, ZFD_THREADS)), ZFD_THREADS,
                   0, zfd_stream(l), sum, part, count);
    return zfd_launched(l);
}

static zf_status zfd_ask_ranks(const zf_launch *l, zf_collective *c)
{
    if (!l->comm)
        return zfd_cuda_fail(l->error, ZF_ERR_COMM,
                             "%%%d: a plan for %lld ranks needs a communicator "
                             "(zf_compile_desc.comm)",
                             (int)l->node, (long long)ZF_INT(l, all_gather, world));
    c->stream = zfd_stream(l);
    return l->comm->run(l->comm->self, c, l->error);
}

/* The dimension of an operand that a collective cuts, or of a result that it gathers. */
static int zfd_cut_dim(const zf_launch *l)
{
    return (int)(l->op == ZF_OP_all_to_all       ? ZF_INT(l, all_to_all, dim)
                 : l->op == ZF_OP_reduce_scatter ? ZF_INT(l, reduce_scatter, dim)
                                                 : 0);
}

static int zfd_gathered_dim(const zf_launch *l)
{
    return (int)(l->op == ZF_OP_all_to_all   ? ZF_INT(l, all_to_all, from)
                 : l->op == ZF_OP_all_gather ? ZF_INT(l, all_gather, dim)
                                             : 0);
}

/* Each rank has two halves, of which the second comes from the other end. */
static bool zfd_goes_zigzag(const zf_launch *l)
{
    return l->op == ZF_OP_all_gather       ? ZF_INT(l, all_gather, zigzag)
           : l->op == ZF_OP_reduce_scatter ? ZF_INT(l, reduce_scatter, zigzag)
                                           : 0;
}

/* What lies in scratch before the call, and after it, of a collective along dimensions
 * (ops/collective.c). */
static size_t zfd_cuda_scratch_collective(const zf_launch *l)
{
    if (!zfd_is_among_ranks(l) ||
        (zfd_cut_dim(l) == zfd_gathered_dim(l) && !zfd_goes_zigzag(l)))
        return 0;
    return zfd_bytes(l->op == ZF_OP_all_gather ? &l->out : &l->args[0]);
}

/* Moves the pieces of `count` ranks from rank `first` on, which lie side by side along dimension
 * `dim` of `whole`, to where they lie one after the other in scratch; or `back`. */
static void zfd_turn_some(const zf_launch *l, const zf_array *whole, int dim, bool back,
                          int64_t first, int64_t count)
{
    const int halves = zfd_goes_zigzag(l) ? 2 : 1;
    const int64_t world = ZF_INT(l, all_gather, world), rows = zfd_span(&whole->shape, 0, dim),
                  row = zfd_span(&whole->shape, dim, whole->shape.rank) / world / halves;
    const int64_t dims[3] = {count, rows, row}, apart[3] = {halves * rows * row, halves * row, 1},
                  size = (int64_t)zf_dtype_size(whole->dtype);
    for (int h = 0; h < halves; h++) {
        const int64_t side[3] = {h ? -row : row, halves * world * row, 1};
        const int64_t at_side = (h ? 2 * world - 1 - first : first) * row,
                      at_apart = first * apart[0] + h * row;
        zfd_box b;
        memset(&b, 0, sizeof b);
        b.walk.rank = 3;
        for (int k = 0; k < 3; k++) {
            b.walk.dims[k] = dims[k];
            b.walk.strides[back][k] = side[k], b.walk.strides[!back][k] = apart[k];
        }
        b.from = static_cast<const char *>(back ? l->scratch : whole->data) +
                 (back ? at_apart : at_side) * size;
        b.to = static_cast<char *>(back ? whole->data : l->scratch) +
               (back ? at_side : at_apart) * size;
        zfd_box_copy(l, b, false);
    }
}

/* The same of all ranks; back, of those that this one gets from, and 0 for others. */
static void zfd_turn_pieces(const zf_launch *l, const zf_collective *c, const zf_array *whole,
                            int dim, bool back)
{
    const int64_t world = ZF_INT(l, all_gather, world), own = zfd_place_in_group(l);
    int64_t first = 0, last = world - 1;
    if (back && (c->before || c->after)) {
        first = max(first, own - c->before), last = min(last, own + c->after);
        (void)zfd_move_bytes(l, whole->data, NULL, (int64_t)zfd_bytes(whole));
    }
    zfd_turn_some(l, whole, dim, back, first, last - first + 1);
}

/* -0, to which any sum may be added. */
static __global__ void __launch_bounds__(ZFD_THREADS) zfd_put_nothing(float *x, int64_t count)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * blockDim.x)
        x[i] = -0.0f;
}

static zf_status zfd_copy_own(const zf_launch *l, const zf_collective *c)
{
    if (c->in == c->out || !zfd_count(&l->out)) return ZF_OK;
    return zfd_cuda_failed(l->error, "cudaMemcpyAsync",
                           cudaMemcpyAsync(c->out, c->in, zfd_bytes(&l->out),
                                           cudaMemcpyDeviceToDevice, zfd_stream(l)));
}

/* The operand is the result on ranks to which nothing is sent. */
static zf_status zfd_cuda_send(const zf_launch *l)
{
    if (l->run->micro > 0 && ZF_INT(l, send, once)) return ZF_OK;
    zf_collective c = zf_collective_of(l);
    const bool elsewhere = c.group.count == 1;
    const zf_status status = elsewhere ? ZF_OK : zfd_ask_ranks(l, &c);
    if (status) return status;
    return elsewhere || (l->comm->rank - c.group.first) / c.group.stride == c.root
               ? zfd_copy_own(l, &c)
               : ZF_OK;
}

static zf_status zfd_cuda_collective(const zf_launch *l)
{
    if (l->op == ZF_OP_all_gather && l->run->micro > 0 && ZF_INT(l, all_gather, once)) return ZF_OK;
    zf_collective c = zf_collective_of(l);
    int64_t count = zfd_count(&l->out);
    if (zfd_is_among_ranks(l)) {
        const bool along = zfd_cuda_scratch_collective(l) > 0;
        zf_status status;
        if (along && l->op != ZF_OP_all_gather)
            zfd_turn_pieces(l, &c, &l->args[0], zfd_cut_dim(l), false);
        status = zfd_ask_ranks(l, &c);
        if (along && l->op != ZF_OP_reduce_scatter && !status)
            zfd_turn_pieces(l, &c, &l->out, zfd_gathered_dim(l), true);
        if (l->op == ZF_OP_reduce && zfd_place_in_group(l) != c.root && count && !status)
            ZFD_LAUNCH(zfd_put_nothing, zfd_grid(l, zfd_div_up(count, ZFD_THREADS)), ZFD_THREADS, 0,
                       zfd_stream(l), static_cast<float *>(l->out.data), count);
        return status ? status : zfd_launched(l);
    }
    if (!count) return ZF_OK;
    if (!c.add) return zfd_copy_own(l, &c);
    switch (l->out.dtype) {
    case ZF_F32: return zfd_add_on<float>(l, count);
    case ZF_BF16: return zfd_add_on<zfd_bf16>(l, count);
    case ZF_F16: return zfd_add_on<zfd_f16>(l, count);
    case ZF_I32: return zfd_add_on<int32_t>(l, count);
    case ZF_I64: return zfd_add_on<long long>(l, count);
    default: return zfd_no_dtype(l, l->out.dtype);
    }
}

ZFD_KERNEL(all_gather, zfd_cuda_collective, zfd_cuda_scratch_collective)
ZFD_KERNEL(reduce_scatter, zfd_cuda_collective, zfd_cuda_scratch_collective)
ZFD_KERNEL(all_reduce, zfd_cuda_collective, NULL)
ZFD_KERNEL(all_to_all, zfd_cuda_collective, zfd_cuda_scratch_collective)
ZFD_KERNEL(bcast, zfd_cuda_collective, NULL)
ZFD_KERNEL(reduce, zfd_cuda_collective, NULL)
ZFD_KERNEL(send, zfd_cuda_send, NULL)
