/* The table of kernels, one for each row of ZF_OPS. */
static constexpr zfd_kernel zfd_kernels[] = {
    {NULL, NULL, NULL},
#define ZFD_ROW(name, least, most, attributes) zfd_kernel_of<ZF_OP_##name>::get(),
#define ZFD_NOTHING(...)
    ZF_OPS(ZFD_ROW, ZFD_NOTHING, ZFD_NOTHING, ZFD_NOTHING)
#undef ZFD_ROW
#undef ZFD_NOTHING
};

/* The kernel and the scratch of a program's own operator. */
static zf_status zfd_cuda_own(const zf_launch *l)
{
    zf_status status = l->own->cuda(l, zfd_stream(l));
    if (status)
        return zfd_cuda_fail(l->error, status, "%s %%%d: its " ZFD_GPU " kernel returned \"%s\"",
                             l->own->name, (int)l->node, zf_status_name(status));
    return zfd_launched(l);
}

static size_t zfd_cuda_own_scratch(const zf_launch *l)
{
    return l->own->cuda_scratch ? l->own->cuda_scratch(l) : 0;
}

static constexpr zfd_kernel zfd_own_kernel = {zfd_cuda_own, zfd_cuda_own_scratch, NULL};

/* The kernel of a launch; NULL: there is none. */
static const zfd_kernel *zfd_kernel_for(const zf_launch *l)
{
    if (l->own) return l->own->cuda ? &zfd_own_kernel : NULL;
    return l->op < ZF_OP_COUNT && zfd_kernels[l->op].run ? &zfd_kernels[l->op] : NULL;
}
