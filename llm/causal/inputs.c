/* What models do with their inputs, and products that may be quantized. */

zf_causal_inputs zf_causal_of_decode(const zf_decode_inputs *decode)
{
    return (zf_causal_inputs){
        .input_ids = decode->input_ids, .positions = decode->positions, .decode = *decode};
}

void zf_causal_blocks(zf_causal_inputs *in, const char *layout, int64_t heads)
{
    const int64_t tokens = zf_valid(in->decode.past) ? in->decode.shape.context
                                                     : zf_tensor_shape(in->input_ids).dims[1];
    if (*layout) in->blocks = zf_nn_blocks(in->input_ids.graph, layout, tokens, heads, true);
}

void zf_causal_masks(zf_attention_desc *attention, const zf_causal_inputs *in, int64_t width)
{
    if (zf_valid(in->documents)) attention->documents = in->documents;
    if (zf_valid(in->blocks)) attention->blocks = in->blocks;
    if (zf_valid(in->decode.past)) zf_decode_caches(attention, &in->decode, width);
}

zf_tensor zf_causal_padding(const zf_causal_inputs *in)
{
    zf_graph *g = in->input_ids.graph;
    zf_shape s;
    zf_tensor keys;
    if (!zf_valid(in->attention_mask)) return ZF_NONE;
    s = zf_tensor_shape(in->attention_mask);
    keys = zf_reshape(in->attention_mask, ZF_SHAPE(s.dims[0], 1, 1, s.dims[1]));
    return zf_where(keys, zf_constant(g, ZF_F32, ZF_SCALAR, 0),
                    zf_constant(g, ZF_F32, ZF_SCALAR, -1e9));
}

zf_tensor zf_causal_branch(zf_tensor y, const zf_causal_inputs *in, int64_t layer, int64_t layers,
                           int64_t half)
{
    zf_layer_drop_desc d = in->layer_drop;
    d.layer = layer, d.layers = layers, d.half = half;
    return zf_layer_drop(y, &d);
}

zf_tensor zf_causal_weight(zf_graph *g, const char *name, int64_t out, int64_t in, double std,
                           int64_t bits)
{
    const zf_param_desc d = {.init = ZF_TRUNCATED_NORMAL,
                             .std = std == 0         ? 0.02
                                    : std == ZF_ZERO ? 0
                                                     : std,
                             .quantized = {.bits = (int32_t)bits, .block = 64, .scale = ZF_BF16}};
    return bits && in % d.quantized.block == 0 ? zf_param(g, name, ZF_SHAPE(out, in), &d)
                                               : (zf_tensor){g, 0};
}

/* x weight^T + bias, of such a weight. */
static zf_tensor zfl_quantized_linear(zf_tensor x, zf_tensor weight, zf_tensor bias)
{
    const zf_quantize_desc blocks = zf_param_blocks(weight);
    return zf_quantized_linear(x, weight, bias, &blocks);
}

zf_tensor zf_causal_linear(zf_tensor x, const char *name, int64_t out,
                           const zf_nn_linear_desc *desc, int64_t bits)
{
    const zf_shape shape = zf_tensor_shape(x);
    const int64_t in = shape.rank > 0 ? shape.dims[shape.rank - 1] : 1;
    zf_tensor weight, bias = ZF_NONE, y;
    if (!zf_valid(x) || !bits || in % 64) return zf_nn_linear(x, name, out, desc);
    zf_push(x.graph, "%s", name);
    weight = zf_causal_weight(x.graph, "weight", out, in, desc ? desc->std : 0, bits);
    if (!desc || !desc->no_bias) bias = zf_param(x.graph, "bias", ZF_SHAPE(out), NULL);
    y = zfl_quantized_linear(x, weight, bias);
    zf_pop(x.graph);
    return y;
}

zf_tensor zf_causal_logits(zf_tensor x, zf_tensor words, double cap)
{
    const zf_tensor logits = zf_param_blocks(words).bits
                                 ? zfl_quantized_linear(x, words, ZF_NONE)
                                 : zf_matmul_ex(x, words, &(zf_matmul_desc){.transpose_b = true});
    return cap > 0 ? zf_scale(zf_tanh(zf_scale(logits, 1 / cap)), cap) : logits;
}

/* The share of these labels in the global batch. */
static zf_tensor zfl_label_share(zf_tensor labels, zf_tensor weight)
{
    zf_graph *g = labels.graph;
    const zf_tensor none = zf_constant(g, ZF_I32, ZF_SCALAR, -100),
                    one = zf_constant(g, ZF_F32, ZF_SCALAR, 1),
                    zero = zf_constant(g, ZF_F32, ZF_SCALAR, 0);
    return zf_mul(zf_sum(zf_where(zf_equal(labels, none), zero, one)), weight);
}

zf_tensor zf_causal_loss(const zf_causal_outputs *out, zf_tensor labels, zf_tensor weight,
                         double cap)
{
    zf_tensor penalty = out->penalty, loss;
    if (zf_valid(penalty)) penalty = zf_mul(penalty, zfl_label_share(labels, weight));
    loss = zf_cross_entropy(zf_causal_logits(out->x, out->words, cap),
                            zf_reshape(labels, ZF_SHAPE(-1)), weight);
    return zf_valid(penalty) ? zf_add(loss, penalty) : loss;
}
