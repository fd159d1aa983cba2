/* part on CUDA (ops/part.c). */

static zf_status zfd_cuda_part(const zf_launch *l)
{
    const int64_t world = ZF_INT(l, part, world),
                  place = (l->run->rank - l->group.first) / l->group.stride;
    size_t rows = 1, bytes;
    if (!zfd_count(&l->out)) return ZF_OK;
    for (int64_t d = 0; d < ZF_INT(l, part, dim); d++)
        rows *= static_cast<size_t>(l->out.shape.dims[d]);
    bytes = zfd_bytes(&l->out) / rows;
    return zfd_cuda_failed(
        l->error, "cudaMemcpy2DAsync",
        cudaMemcpy2DAsync(l->out.data, bytes,
                          static_cast<const char *>(l->args[0].data) +
                              static_cast<size_t>(place) * bytes,
                          bytes * static_cast<size_t>(world), bytes, rows,
                          cudaMemcpyDeviceToDevice, zfd_stream(l)));
}

ZFD_KERNEL(part, zfd_cuda_part, NULL)
