/* repeat and repeat_grad on CUDA (ops/repeat.c). A thread adds the copies of an element, with the
 * open sums of the tree in shared memory. */

static zf_status zfd_cuda_repeat(const zf_launch *l)
{
    const zf_shape *x = &l->args[0].shape;
    const int64_t copies = ZF_INT(l, repeat, copies), count = zfd_count(&l->args[0]),
                  wide = x->dims[x->rank - 1] / ZF_INT(l, repeat, heads);
    zfd_box b;
    if (!count) return ZF_OK;
    memset(&b, 0, sizeof b);
    b.walk.rank = 3;
    const int64_t dims[3] = {count / wide, copies, wide}, from[3] = {wide, 0, 1},
                  to[3] = {copies * wide, wide, 1};
    for (int k = 0; k < 3; k++) {
        b.walk.dims[k] = dims[k];
        b.walk.strides[0][k] = from[k], b.walk.strides[1][k] = to[k];
    }
    b.from = static_cast<const char *>(l->args[0].data);
    b.to = static_cast<char *>(l->out.data);
    zfd_box_copy(l, b, false);
    return zfd_launched(l);
}

template <class T>
__global__ void __launch_bounds__(ZFD_THREADS)
    zfd_repeat_grad_kernel(int64_t count, zfd_divisor wide, int64_t copies, float *out, const T *dy)
{
    ZFD_SHARED(float, open);
    float *sums = open + threadIdx.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t head = zfd_divide(i, wide);
        const T *from = dy + (head * (copies - 1) * wide.by + i);
        int depth = 0;
        for (int64_t c = 0; c < copies; c++) {
            sums[depth++ * ZFD_THREADS] = zfd_to_f32(from[c * wide.by]);
            for (int64_t k = c; depth > 1 && (k & 1 || c == copies - 1); k >>= 1, depth--)
                sums[(depth - 2) * ZFD_THREADS] += sums[(depth - 1) * ZFD_THREADS];
        }
        out[i] = sums[0];
    }
}

static zf_status zfd_cuda_repeat_grad(const zf_launch *l)
{
    const int64_t copies = ZF_INT(l, repeat_grad, copies), count = zfd_count(&l->out),
                  wide = l->out.shape.dims[l->out.shape.rank - 1] / ZF_INT(l, repeat_grad, heads);
    size_t open = 1; /* sums that are open at most */
    if (!count) return ZF_OK;
    for (int64_t left = copies; left > 1; left = zfd_div_up(left, 2)) open++;
    ZFD_FLOATS(l, l->args[0].dtype, T,
               ZFD_LAUNCH(zfd_repeat_grad_kernel<T>, zfd_grid(l, zfd_div_up(count, ZFD_THREADS)),
                          ZFD_THREADS, open * ZFD_THREADS * sizeof(float), zfd_stream(l), count,
                          zfd_divisor_of(wide, count), copies, static_cast<float *>(l->out.data),
                          static_cast<const T *>(l->args[0].data));)
    return zfd_launched(l);
}

ZFD_KERNEL(repeat, zfd_cuda_repeat, NULL)
ZFD_KERNEL(repeat_grad, zfd_cuda_repeat_grad, NULL)
