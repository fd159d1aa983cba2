/* part on CUDA (ops/part.c). */

/* What is dealt zig-zag is refused. */
static zf_status zfd_refuse_zigzag(const zf_launch *l, bool zigzag)
{
    return zigzag ? zfd_cuda_fail(l->error, ZF_ERR_BACKEND,
                                  "%s %%%d: on " ZFD_GPU " nothing is dealt zig-zag",
                                  zf_op_name(l->op), (int)l->node)
                  : ZF_OK;
}

static zf_status zfd_cuda_part(const zf_launch *l)
{
    const zf_shape *y = &l->out.shape;
    const int dim = (int)ZF_INT(l, part, dim);
    const int64_t place = (l->run->rank - l->group.first) / l->group.stride,
                  wide = zfd_span(y, dim, y->rank), width = wide * ZF_INT(l, part, world);
    if (zfd_refuse_zigzag(l, ZF_INT(l, part, zigzag))) return ZF_ERR_BACKEND;
    if (!zfd_count(&l->out)) return ZF_OK;
    zfd_box_copy(l, zfd_box_rows(l, zfd_span(y, 0, dim), wide, l->args[0].data, place * wide, width,
                                 l->out.data, 0, wide),
                 false);
    return zfd_launched(l);
}

ZFD_KERNEL(part, zfd_cuda_part, NULL)
