/* attention_join: attention to some keys and to others becomes attention to all of them.
 *
 *     %5 = attention_join %1, %2, %3, %4 {heads=4} : f32[16,128,256]
 *
 *          %1, %3: attention of the same queries to two sets of keys, f32 or f64 [B,M,H]
 *          %2, %4: their saved log-sum-exp, [B,heads,M]
 *          l = log(exp(%2) + exp(%4))      y = exp(%2 - l) %1 + exp(%4 - l) %3
 *
 *     %6 = saved %5 {index=0} : f32[16,4,128]      l
 *
 * A row that sees no key has -inf, and adds nothing. No gradient: zf_context appends it after
 * zf_autograd. Sources: Milakov & Gimelshein 2018; Liu et al. 2023 (Ring Attention). */

static zf_status zfi_infer_attention_join(zfi_infer *c)
{
    const zf_shape *x = &c->args[0]->shape;
    const int64_t heads = ZF_INT(c, attention_join, heads);
    char type[ZFI_TYPE_TEXT];
    zf_shape lse;
    zfi_infer_like(c, 0);
    if (c->dtype != ZF_F32 && c->dtype != ZF_F64)
        return zfi_infer_fail(c, ZF_ERR_DTYPE, "operand 0 must be f32 or f64");
    if (heads < 1 || x->rank != 3 || zfi_last(x) % heads)
        return zfi_infer_fail(c, ZF_ERR_SHAPE,
                              "operand 0 must be [batch, tokens, hidden], hidden a multiple of the "
                              "%lld heads",
                              (long long)heads);
    lse = (zf_shape){3, {x->dims[0], heads, x->dims[1]}};
    for (int32_t k = 1; k < 4; k++) {
        const zf_shape *want = k == 2 ? x : &lse;
        if (c->args[k]->dtype != c->dtype || !zfi_same_shape(&c->args[k]->shape, want))
            return zfi_infer_fail(c, ZF_ERR_SHAPE, "operand %d must be %s", (int)k,
                                  zfi_type_text(type, c->dtype, want));
    }
    return ZF_OK;
}

static bool zfi_saved_attention_join(const zf_graph *g, const zfi_node *node, int64_t index,
                                     zf_dtype *dtype, zf_shape *shape)
{
    *dtype = node->dtype, *shape = g->nodes[node->args[1]].shape;
    return index == 0;
}

/* y = p a + q b of n numbers, in double and rounded once. */
ZFI_BODY void zfi_join_head_body(zfi_isa isa, float *y, const float *a, const float *b, double p,
                                double q, int64_t n)
{
    (void)isa;
    ZFI_VECTOR
    for (int64_t i = 0; i < n; i++) y[i] = (float)(p * (double)a[i] + q * (double)b[i]);
}
ZFI_KERNEL(zfi_join_head, (float *y, const float *a, const float *b, double p, double q, int64_t n),
           (y, a, b, p, q, n))

/* Rows [first, last) of tokens of all examples. */
static void zfi_join_range(const zf_launch *l, int64_t first, int64_t last)
{
    const zf_array *x = l->args, *lse = zfi_saved_out(l, 0);
    const int64_t heads = ZF_INT(l, attention_join, heads), tokens = l->out.shape.dims[1],
                  d = zfi_last(&l->out.shape) / heads;
    const bool wide = l->out.dtype == ZF_F64;
    for (int64_t row = first; row < last; row++)
        for (int64_t h = 0; h < heads; h++) {
            const int64_t of = (row / tokens * heads + h) * tokens + row % tokens,
                          at = (row * heads + h) * d;
            const double a = zfi_get(&x[1], of), b = zfi_get(&x[3], of), most = a > b ? a : b,
                         least = most == -INFINITY ? 0 : most;
            const double p = exp(a - least), q = exp(b - least), sum = p + q;
            const double by = sum == 0 ? 0 : p / sum, other = sum == 0 ? 0 : q / sum;
            if (lse) zfi_set(lse, of, most + log(sum));
            for (int64_t i = at; i < at + d && wide; i++)
                zfi_set(&l->out, i, by * zfi_get(&x[0], i) + other * zfi_get(&x[2], i));
            if (!wide)
                zfi_join_head(zfi_cpu_of(l)->isa, (float *)l->out.data + at,
                             (const float *)x[0].data + at, (const float *)x[2].data + at, by,
                             other, d);
        }
}

static zf_status zfi_cpu_attention_join(const zf_launch *l)
{
    const int64_t rows = l->out.shape.dims[0] * l->out.shape.dims[1];
    if (zfi_count(&l->out))
        zfi_split(l, rows, zfi_row_grain(zfi_last(&l->out.shape)), zfi_join_range);
    return ZF_OK;
}

ZFI_OPERATOR(attention_join, .infer = zfi_infer_attention_join,
             .cpu = zfi_cpu_attention_join, .saved = zfi_saved_attention_join,
             .cuts = "b q h, b h q, b q h, b h q -> b q h; b h q {heads/h}")
