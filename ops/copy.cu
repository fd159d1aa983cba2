/* copy between the device and host memory, on CUDA (ops/copy.c): by the copy engines, on the stream
 * of its queue. Copies from and to a disk are the host's (cuda/hosted.cu). */

static zf_status zfd_cuda_copy_space(const zf_launch *l)
{
    const size_t bytes = zfd_bytes(&l->out);
    const bool up = l->space == ZF_DEVICE;
    char what[40];
    if (!bytes) return ZF_OK;
    snprintf(what, sizeof what, "copy %%%d", (int)l->node);
    return zfd_cuda_failed(l->error, what,
                           cudaMemcpyAsync(l->out.data, l->args[0].data, bytes,
                                           up ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost,
                                           zfd_stream(l)));
}

ZFD_KERNEL(copy, zfd_cuda_copy_space, NULL)
