/* part on CUDA (ops/part.c). */

/* The number of this rank among those of the group. */
static int64_t zfd_place_in_group(const zf_launch *l)
{
    return l->group.count ? (l->run->rank - l->group.first) / l->group.stride : l->run->rank;
}

static zf_status zfd_cuda_part(const zf_launch *l)
{
    const zf_shape *y = &l->out.shape;
    const int dim = (int)ZF_INT(l, part, dim), halves = ZF_INT(l, part, zigzag) ? 2 : 1;
    const int64_t place = zfd_place_in_group(l), world = ZF_INT(l, part, world),
                  all = zfd_span(y, dim, y->rank), wide = all / halves, width = all * world;
    if (!zfd_count(&l->out)) return ZF_OK;
    for (int h = 0; h < halves; h++) { /* zig-zag, the second half comes from the other end */
        const int64_t from = h ? 2 * world - 1 - place : place;
        zfd_box_copy(l, zfd_box_rows(l, zfd_span(y, 0, dim), wide, l->args[0].data, from * wide,
                                     width, l->out.data, h * wide, all),
                     false);
    }
    return zfd_launched(l);
}

ZFD_KERNEL(part, zfd_cuda_part, NULL)
