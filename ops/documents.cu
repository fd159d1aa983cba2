/* documents on CUDA (ops/documents.c). A thread has a token; that of the first token of a document
 * finds its end and writes both for all its tokens. */

template <class T>
__global__ void zfd_documents_kernel(int64_t count, int64_t tokens, int *out, const T *segments)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t row = i / tokens * tokens, first = i - row;
        int64_t end = first + 1;
        if (first && segments[i - 1] == segments[i]) continue;
        while (end < tokens && segments[row + end] == segments[i]) end++;
        for (int64_t t = row + first; t < row + end; t++)
            out[2 * t] = (int)first, out[2 * t + 1] = (int)end;
    }
}

static zf_status zfd_cuda_documents(const zf_launch *l)
{
    const zf_array *x = &l->args[0];
    const int64_t count = zfd_count(x), tokens = x->shape.dims[1];
    int *out = static_cast<int *>(l->out.data);
    if (count && x->dtype == ZF_I64)
        ZFD_LAUNCH(zfd_documents_kernel<int64_t>, zfd_grid(l, zfd_div_up(count, ZFD_THREADS)),
                   ZFD_THREADS, 0, zfd_stream(l), count, tokens, out,
                   static_cast<const int64_t *>(x->data));
    else if (count)
        ZFD_LAUNCH(zfd_documents_kernel<int32_t>, zfd_grid(l, zfd_div_up(count, ZFD_THREADS)),
                   ZFD_THREADS, 0, zfd_stream(l), count, tokens, out,
                   static_cast<const int32_t *>(x->data));
    return zfd_launched(l);
}

ZFD_KERNEL(documents, zfd_cuda_documents, NULL)
