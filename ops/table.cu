/* The kernels of every row of ZF_OPS. */
static constexpr zfi_kernel zfi_kernels[] = {
    {NULL, NULL, NULL},
#define ZFI_ROW(name, least, most, attributes) zfi_kernel_of<ZF_OP_##name>::get(),
#define ZFI_ATTRIBUTE(op, name, kind)
    ZF_OPS(ZFI_ROW, ZFI_ATTRIBUTE)
#undef ZFI_ROW
#undef ZFI_ATTRIBUTE
};

/* What runs the launch; NULL: there is nothing. */
static const zfi_kernel *zfi_kernel_for(const zf_launch *l)
{
    return l->op < ZF_OP_COUNT && zfi_kernels[l->op].run ? &zfi_kernels[l->op] : NULL;
}
