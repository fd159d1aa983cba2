/* Where the documents of packed rows begin and end.
 *
 *     %2 = documents %1 : i32[2,5,2]          of segments i32[2,5] or i64
 *
 *     segments   7 7 7 9 9    ->   [0,3] [0,3] [0,3] [3,5] [3,5]
 *
 * Equal numbers that follow one another are one document. Attention (attention.c) looks at nothing
 * outside. No gradient. */

static zf_status zfi_infer_documents(zfi_infer *c)
{
    const zfi_node *x = c->args[0];
    if (!zfi_is_integer(x->dtype) || x->shape.rank != 2)
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "operand 0 must be i32 or i64 [batch, tokens]");
    if (x->shape.dims[1] > INT32_MAX)
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "a row has 2^31 tokens or more");
    c->dtype = ZF_I32;
    c->shape = ZF_SHAPE(x->shape.dims[0], x->shape.dims[1], 2);
    return ZF_OK;
}

static void zfi_documents_row(void *context, int64_t row, int worker)
{
    const zf_launch *l = context;
    const zf_array *x = &l->args[0];
    const int64_t tokens = x->shape.dims[1], at = row * tokens;
    int32_t *to = (int32_t *)l->out.data + 2 * at;
    int64_t first = 0;
    (void)worker;
    for (int64_t end = 1; end <= tokens; end++) {
        if (end < tokens && zfi_get_integer(x, at + end) == zfi_get_integer(x, at + first))
            continue;
        for (int64_t t = first; t < end; t++)
            to[2 * t] = (int32_t)first, to[2 * t + 1] = (int32_t)end;
        first = end;
    }
}

static zf_status zfi_cpu_documents(const zf_launch *l)
{
    zf_launch launch = *l;
    zfi_pool_run(zfi_cpu_of(l)->pool, l->out.shape.dims[0], zfi_documents_row, &launch);
    return ZF_OK;
}

ZFI_OPERATOR(documents, .infer = zfi_infer_documents, .grad = zfi_grad_none,
             .cpu = zfi_cpu_documents,
             .cuts = "b t! -> b t! d!")
