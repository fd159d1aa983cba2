/* The graph of a step of generation: its inputs, the caches of a layer, the head. */

zf_decode_inputs zf_decode_begin(zf_graph *g, const zf_decode_shape *s)
{
    zf_decode_inputs in = {.shape = *s};
    in.input_ids = zf_input(g, "input_ids", ZF_I32, ZF_SHAPE(s->texts, s->tokens));
    in.last = zf_input(g, "last", ZF_I32, ZF_SHAPE(s->texts));
    in.positions = zf_input(g, "positions", ZF_I32, ZF_SHAPE(s->texts, s->tokens));
    in.past = zf_input(g, "past", ZF_I32, ZF_SHAPE(s->texts));
    in.count = zf_input(g, "count", ZF_I32, ZF_SHAPE(s->texts));
    return in;
}

int64_t zf_decode_ring(int64_t window, int64_t context, int64_t chunk)
{
    const int64_t rows = (window - 1 + chunk + 63) / 64 * 64;
    return window && rows < context ? rows : 0;
}

void zf_decode_caches(zf_attention_desc *attention, const zf_decode_inputs *in, int64_t width)
{
    const zf_decode_shape *s = &in->shape;
    const int64_t window = zf_valid(attention->blocks) ? 0 : attention->window;
    const int64_t ring = zf_decode_ring(window, s->context, s->chunk);
    const zf_shape shape = ZF_SHAPE(s->texts, ring ? ring : s->context, width);
    attention->ring = ring > 0;
    attention->k_cache = zf_cache(in->past.graph, "k_cache", ZF_F32, shape);
    attention->v_cache = zf_cache(in->past.graph, "v_cache", ZF_F32, shape);
    attention->past = in->past, attention->count = in->count;
    attention->dropout = 0;
}

zf_tensor zf_decode_end(zf_tensor x, zf_tensor words, const zf_decode_inputs *in)
{
    const zf_quantize_desc blocks = zf_param_blocks(words);
    const int64_t texts = in->shape.texts;
    zf_tensor last = zf_gather_rows(x, in->last), y;
    if (!blocks.bits)
        return zf_output(zf_matmul_ex(last, words, &(zf_matmul_desc){.transpose_b = true}), "logits");
    /* as matrices of one row, each of which is computed as one alone */
    last = zf_reshape(last, ZF_SHAPE(texts, 1, zf_tensor_shape(last).dims[1]));
    y = zf_quantized_linear(last, words, ZF_NONE, &blocks);
    return zf_output(zf_reshape(y, ZF_SHAPE(texts, zf_tensor_shape(y).dims[2])), "logits");
}
