/* The table of kernels, one for each row of ZF_OPS. */
static constexpr zfi_kernel zfi_kernels[] = {
    {NULL, NULL, NULL},
#define ZFI_ROW(name, least, most, attributes) zfi_kernel_of<ZF_OP_##name>::get(),
#define ZFI_ATTRIBUTE(op, name, kind)
    ZF_OPS(ZFI_ROW, ZFI_ATTRIBUTE)
#undef ZFI_ROW
#undef ZFI_ATTRIBUTE
};

/* The kernel and the scratch of a program's own operator. */
static zf_status zfi_cuda_own(const zf_launch *l)
{
    zf_status status = l->own->cuda(l, zfi_stream(l));
    if (status)
        return zfi_cuda_fail(l->error, status, "%s %%%d: its CUDA kernel returned \"%s\"",
                             l->own->name, (int)l->node, zf_status_name(status));
    return zfi_launched(l);
}

static size_t zfi_cuda_own_scratch(const zf_launch *l)
{
    return l->own->cuda_scratch ? l->own->cuda_scratch(l) : 0;
}

static constexpr zfi_kernel zfi_own_kernel = {zfi_cuda_own, zfi_cuda_own_scratch, NULL};

/* The kernel of a launch; NULL: there is none. */
static const zfi_kernel *zfi_kernel_for(const zf_launch *l)
{
    if (l->own) return l->own->cuda ? &zfi_own_kernel : NULL;
    return l->op < ZF_OP_COUNT && zfi_kernels[l->op].run ? &zfi_kernels[l->op] : NULL;
}
