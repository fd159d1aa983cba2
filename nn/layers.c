/* Layers: a few public calls each, meant to be read and copied. Parameters have PyTorch's names and
 * shapes. */

/* A distribution of mean 0, whose variance is the numerator by a number of terms. */
typedef struct zfi_named_init {
    const char *name;
    zf_init init;
    double numerator;
    bool both; /* the variance is divided by in + out, else by in */
} zfi_named_init;

static const zfi_named_init zfi_named_inits[] = {
    {"xavier_uniform", ZF_UNIFORM, 2, true},
    {"xavier_normal", ZF_NORMAL, 2, true},
    {"kaiming_uniform", ZF_UNIFORM, 2, false},
    {"kaiming_normal", ZF_NORMAL, 2, false},
    {"linear", ZF_UNIFORM, 1.0 / 3, false},
    {"truncated_normal", ZF_TRUNCATED_NORMAL, 0, false},
    {"zeros", ZF_ZEROS, 0, false},
    {"ones", ZF_ONES, 0, false},
};

ZF_API bool zf_nn_init(const char *name, zf_shape shape, zf_param_desc *desc)
{
    const int64_t count = zf_shape_count(shape);
    double in, out, deviation;
    size_t k = 0;
    if (!name || !desc || shape.rank < 2 || count < 1) return false;
    while (k < sizeof zfi_named_inits / sizeof *zfi_named_inits &&
           strcmp(zfi_named_inits[k].name, name))
        k++;
    if (k == sizeof zfi_named_inits / sizeof *zfi_named_inits) return false;
    in = (double)(count / shape.dims[0]), out = (double)(count / shape.dims[1]);
    deviation = sqrt(zfi_named_inits[k].numerator / (zfi_named_inits[k].both ? in + out : in));
    if (zfi_named_inits[k].init == ZF_TRUNCATED_NORMAL) deviation = 0.02;
    desc->init = zfi_named_inits[k].init;
    desc->mean = 0, desc->std = deviation, desc->value = 0;
    desc->high = sqrt(3) * deviation, desc->low = -desc->high;
    return true;
}

ZF_API zf_tensor zf_nn_linear(zf_tensor x, const char *name, int64_t out,
                              const zf_nn_linear_desc *desc)
{
    zf_nn_linear_desc d = desc ? *desc : (zf_nn_linear_desc){.std = 0};
    zf_graph *g = x.graph;
    zf_shape shape = zf_tensor_shape(x);
    zf_param_desc weight = {
        .dtype = zf_tensor_dtype(x), .init = ZF_TRUNCATED_NORMAL, .std = zfi_or(d.std, 0.02)};
    zf_tensor w, y;
    if (!zf_valid(x)) return zf_fail(x, "zf_nn_linear: x is no tensor");
    zf_push(g, "%s", name ? name : "");
    w = zf_param(g, "weight", ZF_SHAPE(out, shape.rank ? shape.dims[shape.rank - 1] : 1), &weight);
    if (d.no_bias) {
        y = zf_linear(x, w, ZF_NONE);
    } else {
        y = zf_matmul_ex(x, w, &(zf_matmul_desc){.transpose_b = true});
        y = zf_add(y, zf_param(g, "bias", ZF_SHAPE(out), &(zf_param_desc){.dtype = weight.dtype}));
    }
    zf_pop(g);
    return y;
}

ZF_API zf_tensor zf_nn_rms_norm(zf_tensor x, const char *name, double eps)
{
    zf_graph *g = x.graph;
    zf_shape shape = zf_tensor_shape(x);
    zf_param_desc ones = {.dtype = zf_tensor_dtype(x), .init = ZF_ONES};
    zf_tensor gamma;
    if (!zf_valid(x)) return zf_fail(x, "zf_nn_rms_norm: x is no tensor");
    zf_push(g, "%s", name ? name : "");
    gamma = zf_param(g, "weight", ZF_SHAPE(shape.rank ? shape.dims[shape.rank - 1] : 1), &ones);
    zf_pop(g);
    return zf_rms_norm(x, gamma, eps);
}

ZF_API zf_tensor zf_nn_layer_norm(zf_tensor x, const char *name, double eps)
{
    zf_graph *g = x.graph;
    zf_shape shape = zf_tensor_shape(x);
    zf_param_desc ones = {.dtype = zf_tensor_dtype(x), .init = ZF_ONES},
                  zeros = {.dtype = zf_tensor_dtype(x)};
    zf_tensor gamma, beta;
    if (!zf_valid(x)) return zf_fail(x, "zf_nn_layer_norm: x is no tensor");
    zf_push(g, "%s", name ? name : "");
    gamma = zf_param(g, "weight", ZF_SHAPE(shape.rank ? shape.dims[shape.rank - 1] : 1), &ones);
    beta = zf_param(g, "bias", ZF_SHAPE(shape.rank ? shape.dims[shape.rank - 1] : 1), &zeros);
    zf_pop(g);
    return zf_layer_norm(x, gamma, beta, eps);
}

ZF_API zf_tensor zf_nn_embedding_table(zf_graph *g, const char *name, int64_t rows, int64_t width,
                                       const zf_nn_embedding_desc *desc)
{
    zf_nn_embedding_desc d = desc ? *desc : (zf_nn_embedding_desc){.std = 0};
    zf_tensor table;
    zf_push(g, "%s", name ? name : "");
    table = zf_param(g, "weight", ZF_SHAPE(rows, width),
                     &(zf_param_desc){.dtype = d.dtype,
                                      .init = ZF_TRUNCATED_NORMAL,
                                      .std = zfi_or(d.std, 0.02)});
    zf_pop(g);
    return table;
}

ZF_API zf_tensor zf_nn_attention(zf_tensor q, zf_tensor k, zf_tensor v, zf_tensor bias,
                                 double dropout)
{
    zf_shape shape = zf_tensor_shape(q);
    zf_tensor scores;
    if (!zf_valid(q)) return zf_fail(k, "zf_nn_attention: q is no tensor");
    q = zf_scale(q, 1 / sqrt(shape.rank ? (double)shape.dims[shape.rank - 1] : 1));
    scores = zf_matmul_ex(q, k, &(zf_matmul_desc){.transpose_b = true});
    if (bias.graph || bias.id) scores = zf_add(scores, bias);
    return zf_matmul(zf_dropout(zf_softmax(scores), dropout), v);
}

ZF_API zf_tensor zf_nn_activation(zf_tensor x, zf_activation activation)
{
    switch (activation) {
    case ZF_ACTIVATION_GELU: return zf_gelu(x);
    case ZF_ACTIVATION_GELU_TANH: return zf_gelu_tanh(x);
    case ZF_ACTIVATION_RELU: return zf_relu(x);
    case ZF_ACTIVATION_SILU: return zf_silu(x);
    }
    return zf_fail(x, "zf_nn_activation: %d is no activation", (int)activation);
}

/* The projection of x [batch, tokens, hidden], by heads: [batch, heads, tokens, hidden / heads]. */
static zf_tensor zfi_nn_heads(zf_tensor x, const char *name, int64_t heads,
                              const zf_nn_linear_desc *linear)
{
    zf_shape s = zf_tensor_shape(x);
    zf_tensor y = zf_nn_linear(x, name, s.dims[2], linear);
    return zf_transpose(zf_reshape(y, ZF_SHAPE(s.dims[0], s.dims[1], heads, s.dims[2] / heads)), 1,
                        2);
}

ZF_API zf_tensor zf_nn_blocks(zf_graph *g, const char *layout, int64_t tokens, int64_t heads,
                              bool causal)
{
    zf_block_mask_desc d = {.tokens = tokens, .heads = heads, .causal = causal};
    char text[1024];
    zf_error error;
    zf_block_mask *mask;
    zf_tensor lists;
    if (!layout || !*layout) return ZF_NONE;
    if (strlen(layout) >= sizeof text)
        return zf_fail(((zf_tensor){g, 0}), "zf_nn_blocks: the layout has more than %d characters",
                       (int)sizeof text - 1);
    memcpy(text, layout, strlen(layout) + 1);
    if (zf_block_mask_parse(text, &d, &error))
        return zf_fail(((zf_tensor){g, 0}), "%s", error.text);
    if ((int32_t)d.layout <= ZF_LAYOUT_ALL) return ZF_NONE; /* a 0 that was given is negative */
    mask = zf_block_mask_new(&d, &error);
    if (!mask) return zf_fail(((zf_tensor){g, 0}), "%s", error.text);
    lists = zf_block_mask_lists(g, mask);
    zf_block_mask_free(mask);
    return lists;
}

/* The attention of a block over x: by heads, or where it sees blocks of keys, as one node. */
static zf_tensor zfi_nn_attend(zf_tensor x, zf_tensor bias, int64_t heads,
                               const zf_nn_encoder_desc *d)
{
    zf_shape s = zf_tensor_shape(x);
    zf_nn_linear_desc linear = {.std = d->std};
    zf_tensor q, k, v;
    if (d->blocks.graph || d->blocks.id || d->documents.graph || d->documents.id) {
        const zf_attention_desc attention = {.heads = heads,
                                             .dropout = d->attention_dropout,
                                             .mask = bias,
                                             .blocks = d->blocks,
                                             .documents = d->documents};
        q = zf_nn_linear(x, "query", s.dims[2], &linear);
        k = zf_nn_linear(x, "key", s.dims[2], &linear);
        v = zf_nn_linear(x, "value", s.dims[2], &linear);
        return zf_attention(q, k, v, &attention);
    }
    q = zfi_nn_heads(x, "query", heads, &linear);
    k = zfi_nn_heads(x, "key", heads, &linear);
    v = zfi_nn_heads(x, "value", heads, &linear);
    return zf_reshape(
        zf_transpose(zf_nn_attention(q, k, v, bias, d->attention_dropout), 1, 2), s);
}

ZF_API zf_tensor zf_nn_encoder_block(zf_tensor x, zf_tensor bias, const zf_nn_encoder_desc *desc)
{
    zf_nn_encoder_desc d = desc ? *desc : (zf_nn_encoder_desc){.heads = 0};
    zf_graph *g = x.graph;
    zf_shape s = zf_tensor_shape(x);
    zf_nn_linear_desc linear = {.std = d.std};
    zf_tensor in, y;
    double eps = zfi_or(d.eps, 1e-12);
    int64_t heads;
    if (!zf_valid(x)) return zf_fail(x, "zf_nn_encoder_block: x is no tensor");
    heads = d.heads ? d.heads : s.rank == 3 ? (s.dims[2] + 63) / 64 : 1;
    if (s.rank != 3 || heads < 1 || s.dims[2] % heads)
        return zf_fail(x,
                       "zf_nn_encoder_block: x must be [batch, tokens, hidden], hidden a multiple "
                       "of the %lld heads",
                       (long long)heads);

    in = d.pre_norm ? zf_nn_layer_norm(x, "attention.output.LayerNorm", eps) : x;
    zf_push(g, "attention.self");
    y = zfi_nn_attend(in, bias, heads, &d);
    zf_pop(g);
    y = zf_nn_linear(y, "attention.output.dense", s.dims[2], &linear);
    y = zf_add(x, zf_dropout(zf_layer_drop(y, &d.layer_drop), d.dropout));
    if (!d.pre_norm) y = zf_nn_layer_norm(y, "attention.output.LayerNorm", eps);

    in = d.pre_norm ? zf_nn_layer_norm(y, "output.LayerNorm", eps) : y;
    if (d.experts) {
        in = zf_moe(in, d.experts);
    } else {
        in = zf_nn_linear(in, "intermediate.dense", d.intermediate ? d.intermediate : 4 * s.dims[2],
                          &linear);
        in = zf_nn_activation(in, d.activation);
        in = zf_nn_linear(in, "output.dense", s.dims[2], &linear);
    }
    d.layer_drop.half = 1;
    y = zf_add(y, zf_dropout(zf_layer_drop(in, &d.layer_drop), d.dropout));
    return d.pre_norm ? y : zf_nn_layer_norm(y, "output.LayerNorm", eps);
}

ZF_API zf_tensor zf_nn_accuracy(zf_tensor logits, zf_tensor labels)
{
    zf_graph *g = logits.graph;
    zf_tensor best = zf_argmax_ex(logits, &(zf_reduce_desc){.axis = -1}), right, labelled, none;
    const zf_shape rows = zf_tensor_shape(best), of = zf_tensor_shape(labels);
    bool same = rows.rank == of.rank;
    if (!zf_valid(best) || !zf_valid(labels)) return zf_valid(best) ? labels : best;
    for (int32_t d = 0; d < rows.rank && same; d++) same = rows.dims[d] == of.dims[d];
    if (!same)
        return zf_fail(labels,
                       "zf_nn_accuracy: %%%d must be the labels of the rows of %%%d, one of "
                       "each: its shape without classes",
                       (int)labels.id, (int)logits.id);
    best = zf_cast(best, zf_tensor_dtype(labels));
    none = zf_constant(g, zf_tensor_dtype(labels), ZF_SCALAR, -100);
    right = zf_sum(zf_cast(zf_equal(best, labels), ZF_F32));
    labelled = zf_sum(zf_cast(zf_not_equal(labels, none), ZF_F32));
    return zf_div(right, zf_maximum(labelled, zf_constant(g, ZF_F32, ZF_SCALAR, 1)));
}
