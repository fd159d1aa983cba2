/* part: what a rank along an axis has of a value that is equal on all of them.
 *
 *     %9 = part %8 {world=4 over=context dim=1} : i32[2,32@context]    of i32[2,128]: rank r has
 *                                                                      the r-th quarter of dim 1
 *
 *     %9 = part %8 {world=4 over=context dim=1 zigzag=true} : ...     eighths r and 7 - r
 *
 * Its gradient is not there: zf_context appends it after zf_autograd. */

static zf_status zfi_infer_own_part(zfi_infer *c)
{
    const int64_t world = ZF_INT(c, part, world), dim = ZF_INT(c, part, dim);
    const bool zigzag = ZF_INT(c, part, zigzag) != 0;
    zfi_infer_like(c, 0);
    if (!zfi_is_other_axis(ZF_INT(c, part, over)))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "a part is over tensor, context, expert or pipe, "
                                                  "not over %s",
                              zfi_axis_names[ZF_INT(c, part, over)]);
    if (dim < 0 || dim >= c->shape.rank)
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "dim %lld of a tensor of rank %d", (long long)dim,
                              (int)c->shape.rank);
    if (world < 1 || world > INT32_MAX || c->shape.dims[dim] % (zigzag ? 2 * world : world))
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "%lld %s do not divide the %lld of dimension %lld",
                              (long long)(zigzag ? 2 * world : world), zigzag ? "halves" : "ranks",
                              (long long)c->shape.dims[dim], (long long)dim);
    c->shape.dims[dim] /= world;
    return ZF_OK;
}

static zf_status zfi_cpu_part(const zf_launch *l)
{
    const int dim = (int)ZF_INT(l, part, dim);
    const bool zigzag = ZF_INT(l, part, zigzag) != 0;
    const int64_t world = ZF_INT(l, part, world), rows = zfi_span(&l->out.shape, 0, dim),
                  halves = zigzag ? 2 : 1, own = zfi_number_in(&l->group, l->run->rank),
                  bytes = rows ? zfi_array_bytes(&l->out) / rows / halves : 0;
    for (int64_t i = 0; i < rows * halves; i++) {
        const int64_t place = zigzag ? zfi_zigzag_half(own, world, i % 2) : own;
        memcpy((char *)l->out.data + i * bytes,
               (const char *)l->args[0].data + (i / halves * world * halves + place) * bytes,
               (size_t)bytes);
    }
    return ZF_OK;
}

/* ------------------------------------------------------------------------------- records */

ZFI_SAME_ATTRIBUTE(part, all_gather, world)
ZFI_SAME_ATTRIBUTE(part, all_gather, over)
ZFI_OPERATOR(part, .infer = zfi_infer_own_part, .grad = zfi_grad_none, .cpu = zfi_cpu_part,
             .linear_in = 1, .traits = ZF_OP_READS_HALF)
