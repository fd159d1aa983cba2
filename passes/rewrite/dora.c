/* dora: the weights of zf_lora with lengths of their own (Liu et al. 2024). Row r of the weight
 * W + scale B A of a product becomes
 *
 *     magnitude[r] / |row r|  row r
 *
 * so the product is multiplied by the ratio. Lengths have no gradient, as the authors propose. They
 * are computed without a matrix of the size of W but for its squares:
 *
 *     |row|^2 = |W row|^2 + 2 scale (B row) . (A W^T column) + scale^2 (B row) A A^T (B row)^T */

/* A pair of low rank, and its weight. */
typedef struct zfi_dora {
    zf_tensor weight, a, b, magnitude;
    zf_dtype dtype; /* of the product */
    double scale;
    bool turned; /* the weight is [in, out] */
    bool table;  /* A is [in, rank] */
} zfi_dora;

/* A W^T [rank, out]. */
static zf_tensor zfi_dora_across(const zfi_dora *d)
{
    const zf_quantize_desc blocks = zf_param_blocks(d->weight);
    if (blocks.bits) return zf_quantized_linear(d->a, d->weight, ZF_NONE, &blocks);
    return zf_matmul_ex(d->a, d->weight,
                        &(zf_matmul_desc){.transpose_a = d->table, .transpose_b = !d->turned});
}

/* The squares of the lengths of W [out]. */
static zf_tensor zfi_dora_own(const zfi_dora *d, int64_t out)
{
    const zf_quantize_desc blocks = zf_param_blocks(d->weight);
    const zf_tensor w = blocks.bits ? zf_dequantize(d->weight, d->dtype, &blocks) : d->weight,
                    squares = zf_mul(w, w);
    if (d->turned) return zf_sum_to(squares, ZF_SHAPE(out));
    return zf_reshape(zf_sum_to(squares, ZF_SHAPE(out, 1)), ZF_SHAPE(out));
}

/* By what the results of the product are multiplied [out]. */
static zf_tensor zfi_dora_ratio(const zfi_dora *d)
{
    const int64_t out = zf_tensor_shape(d->b).dims[0];
    const zf_tensor b = zf_transpose(d->b, 0, 1),
                    among = zf_matmul_ex(
                        d->a, d->a,
                        &(zf_matmul_desc){.transpose_a = d->table, .transpose_b = !d->table}),
                    both = zf_add(zf_scale(zfi_dora_across(d), 2 * d->scale),
                                  zf_scale(zf_matmul(among, b), d->scale * d->scale)),
                    more = zf_sum_to(zf_mul(b, both), ZF_SHAPE(out));
    return zf_div(d->magnitude, zf_stop_gradient(zf_sqrt(zf_add(zfi_dora_own(d, out), more))));
}
