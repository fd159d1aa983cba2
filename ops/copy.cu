/* copy between the device and host memory, on CUDA (ops/copy.c): by the copy engines, on the stream
 * of its queue. Copies from and to a disk are the host's (cuda/hosted.cu). Experts with rows are
 * copied by a kernel, which reads bounds on the device and then the experts from host memory, that
 * the device sees; so a CUDA graph contains it. */

/* This rank's `count` words of experts of `each`, from word `here` of all on. */
typedef struct zfd_experts_copy {
    const int *bounds;
    int64_t groups, experts, each, here, count;
} zfd_experts_copy;

template <class W>
static __global__ void zfd_experts_kernel(const zfd_experts_copy f, const W *from, W *to)
{
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t e = 0; e < f.experts; e++) {
        const int64_t end = (e + 1) * f.each - f.here;
        int64_t i = e * f.each - f.here;
        bool rows = false;
        for (int64_t g = e; g < f.groups; g += f.experts)
            rows |= f.bounds[2 * g + 1] > f.bounds[2 * g];
        if (!rows) continue;
        if (i < 0) i = 0;
        for (i += (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < end && i < f.count; i += step)
            to[i] = from[i];
    }
}

template <class W> static zf_status zfd_experts_words(const zf_launch *l, zfd_experts_copy f)
{
    const int64_t words = (int64_t)(sizeof(W) / zf_dtype_size(l->out.dtype));
    f.each /= words, f.here /= words, f.count /= words;
    ZFD_LAUNCH(zfd_experts_kernel<W>, zfd_grid(l, zfd_div_up(f.count, ZFD_THREADS)), ZFD_THREADS, 0,
               zfd_stream(l), f, static_cast<const W *>(l->args[0].data),
               static_cast<W *>(l->out.data));
    return zfd_launched(l);
}

static zf_status zfd_cuda_copy_experts(const zf_launch *l)
{
    const int64_t size = (int64_t)zf_dtype_size(l->out.dtype), world = ZF_INT(l, copy, world);
    zfd_experts_copy f = {static_cast<const int *>(l->args[1].data), zfd_count(&l->args[1]) / 2,
                   ZF_INT(l, copy, experts), ZF_INT(l, copy, each), 0, zfd_count(&l->out)};
    if (world > 1) f.here = zfd_shard_here(l->run, world) * f.count;
    if (f.each * size % 16 == 0 && f.count * size % 16 == 0) return zfd_experts_words<uint4>(l, f);
    return size == 8   ? zfd_experts_words<uint64_t>(l, f)
           : size == 4 ? zfd_experts_words<uint32_t>(l, f)
                       : zfd_experts_words<uint16_t>(l, f);
}

static zf_status zfd_cuda_copy_space(const zf_launch *l)
{
    const size_t bytes = zfd_bytes(&l->out);
    const bool up = l->space == ZF_DEVICE;
    char what[40];
    if (!bytes) return ZF_OK;
    if (l->arg_count > 1 && ZF_INT(l, copy, experts)) return zfd_cuda_copy_experts(l);
    snprintf(what, sizeof what, "copy %%%d", (int)l->node);
    return zfd_cuda_failed(l->error, what,
                           cudaMemcpyAsync(l->out.data, l->args[0].data, bytes,
                                           up ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost,
                                           zfd_stream(l)));
}

ZFD_KERNEL(copy, zfd_cuda_copy_space, NULL)
