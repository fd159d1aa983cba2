/* What runs an operator on CUDA. */

typedef struct zfi_row {
    zf_op op;
    zf_status (*run)(const zf_launch *l);
    size_t (*scratch)(const zf_launch *l); /* bytes; NULL: none */
} zfi_row;

#define ZFI_ROW(name)         {ZF_OP_##name, zfi_cuda_##name, NULL},
#define ZFI_ROW_SCRATCH(name) {ZF_OP_##name, zfi_cuda_##name, zfi_cuda_scratch_##name},

static const zfi_row zfi_rows[] = {
    /* binary */

    /* unary */

    /* move */

    /* reduce */

    /* rows */

    /* norm */

    /* loss */

    /* unit */

    /* collective */

    /* scaler */

    /* update */

    /* matmul */
    ZFI_ROW_SCRATCH(matmul)

    /* linear */

    /* head */

    /* fused_norm */

    /* fused_softmax */

    /* attention */

    /* chain */

    {ZF_OP_none, NULL, NULL}};
