/* What runs an operator on CUDA. */

typedef struct zfi_row {
    zf_op op;
    zf_status (*run)(const zf_launch *l);
    size_t (*scratch)(const zf_launch *l); /* bytes; NULL: none */
    /* Runs the first of `count` launches of the row that follow each other at once, to the same
     * bits; *taken: how many, 0: the first is to be run alone. NULL: each is run alone */
    zf_status (*together)(const zf_launch *l, int count, int *taken);
} zfi_row;

#define ZFI_ROW(name)          {ZF_OP_##name, zfi_cuda_##name, NULL, NULL},
#define ZFI_ROW_SCRATCH(name)  {ZF_OP_##name, zfi_cuda_##name, zfi_cuda_scratch_##name, NULL},
#define ZFI_ROW_TOGETHER(name) {ZF_OP_##name, zfi_cuda_##name, NULL, zfi_cuda_together_##name},

static const zfi_row zfi_rows[] = {
    /* binary */
    ZFI_ROW(add) ZFI_ROW(sub) ZFI_ROW(mul) ZFI_ROW(div) ZFI_ROW(maximum) ZFI_ROW(minimum)
    ZFI_ROW(equal) ZFI_ROW(less) ZFI_ROW(where)

    /* unary */
    ZFI_ROW(neg) ZFI_ROW(scale) ZFI_ROW(exp) ZFI_ROW(log) ZFI_ROW(sqrt) ZFI_ROW(rsqrt) ZFI_ROW(tanh)
    ZFI_ROW(tanh_grad) ZFI_ROW(sigmoid) ZFI_ROW(sigmoid_grad) ZFI_ROW(relu) ZFI_ROW(relu_grad)
    ZFI_ROW(gelu) ZFI_ROW(gelu_grad) ZFI_ROW(silu) ZFI_ROW(silu_grad) ZFI_ROW(cast) ZFI_ROW(dropout)

    /* move */
    ZFI_ROW(reshape) ZFI_ROW(slice) ZFI_ROW(pad) ZFI_ROW(transpose) ZFI_ROW(concat)
    ZFI_ROW(broadcast) ZFI_ROW_SCRATCH(sum_to)

    /* reduce */
    ZFI_ROW_SCRATCH(sum) ZFI_ROW(max) ZFI_ROW(argmax)
    ZFI_ROW_TOGETHER(block_norms) ZFI_ROW_SCRATCH(total) ZFI_ROW_SCRATCH(norm)

    /* rows */
    ZFI_ROW(gather_rows) ZFI_ROW_SCRATCH(scatter_rows)

    /* norm */
    ZFI_ROW(softmax) ZFI_ROW(softmax_grad) ZFI_ROW(moments) ZFI_ROW(rms) ZFI_ROW(layer_norm)
    ZFI_ROW(layer_norm_grad) ZFI_ROW(rms_norm) ZFI_ROW(rms_norm_grad)
    ZFI_ROW_SCRATCH(norm_gamma_grad)

    /* loss */
    ZFI_ROW(logsumexp) ZFI_ROW(cross_entropy) ZFI_ROW(cross_entropy_grad)

    /* unit */
    ZFI_ROW(view) ZFI_ROW(part) ZFI_ROW(pack) ZFI_ROW(norms)

    /* collective */
    ZFI_ROW(all_gather)
    ZFI_ROW(reduce_scatter)
    ZFI_ROW(all_reduce)
    ZFI_ROW(all_to_all)
    ZFI_ROW(bcast)

    /* scaler */
    ZFI_ROW(advance) ZFI_ROW(loss_scale_update)

    /* update */
    ZFI_ROW(sgd) ZFI_ROW_TOGETHER(adamw) ZFI_ROW(lamb_update) ZFI_ROW(lamb_apply)

    /* matmul */
    ZFI_ROW_SCRATCH(matmul)

    /* linear */
    ZFI_ROW_SCRATCH(linear)

    /* head */
    ZFI_ROW_SCRATCH(head_loss)

    /* fused_norm */
    ZFI_ROW(residual_norm) ZFI_ROW(embed_norm) ZFI_ROW_SCRATCH(residual_norm_grad) ZFI_ROW(affine)

    /* fused_softmax */
    ZFI_ROW(masked_softmax) ZFI_ROW(masked_softmax_grad)

    /* attention */
    ZFI_ROW(attention)
    ZFI_ROW_SCRATCH(attention_grad)

    /* chain */
    ZFI_ROW(chain)

    {ZF_OP_none, NULL, NULL, NULL}};
