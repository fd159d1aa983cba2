/* Softmax with scale, bias and dropout (ops/fused_softmax.c) on CUDA: the kernels of softmax and
 * softmax_grad (ops/norm.cu) include them. */

static zf_status zfd_cuda_masked_softmax(const zf_launch *l)
{
    const zf_array *p = zfd_saved_out(l, 0);
    zfd_softmax_job j = {};
    j.p = p ? p->data : NULL;
    j.scale = (float)ZF_FLOAT(l, masked_softmax, scale);
    j.drop = zfd_dropout_attributes(l);
    j.share = zfd_share_of(l, &l->out.shape);
    if (l->arg_count > 1) {
        zfd_walk *w = &j.rows;
        j.bias = l->args[1].data;
        zfd_broadcast_strides(&l->args[1].shape, &l->out.shape, w->strides[0]);
        w->rank = l->out.shape.rank - 1, w->arrays = 1;
        j.step = w->strides[0][w->rank] != 0;
        for (int d = 0; d < w->rank; d++) w->dims[d] = l->out.shape.dims[d];
        zfd_walk_merge(w);
        zfd_walk_ready(w);
    }
    return zfd_softmax_launch(l, &j);
}

static zf_status zfd_cuda_masked_softmax_grad(const zf_launch *l)
{
    zfd_dropout drop = zfd_dropout_attributes(l);
    return zfd_softmax_grad_launch(l, (float)ZF_FLOAT(l, masked_softmax_grad, scale), &drop);
}

ZFD_KERNEL(masked_softmax, zfd_cuda_masked_softmax, NULL)
ZFD_KERNEL(masked_softmax_grad, zfd_cuda_masked_softmax_grad, NULL)
