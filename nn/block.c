/* Transformer blocks: attention to x itself, to a memory, and two products, each with a norm and added
 * to x. Parts are public calls, meant to be read and copied. */

/* What the parts of a block share. */
typedef struct zfi_nn_block {
    zf_nn_block_desc d;
    zf_nn_block_names names;
    zf_nn_linear_desc linear;
    int64_t hidden, width;
} zfi_nn_block;

static const char *zfi_nn_name(const char *given, const char *usual)
{
    return given ? given : usual;
}

static zf_nn_block_names zfi_nn_names(const zf_nn_block_names *given)
{
    const zf_nn_block_names n = given ? *given : (zf_nn_block_names){.norm = NULL};
    return (zf_nn_block_names){.norm = zfi_nn_name(n.norm, "self.norm"),
                               .q = zfi_nn_name(n.q, "self.q"),
                               .k = zfi_nn_name(n.k, "self.k"),
                               .v = zfi_nn_name(n.v, "self.v"),
                               .out = zfi_nn_name(n.out, "self.out"),
                               .cross_norm = zfi_nn_name(n.cross_norm, "cross.norm"),
                               .cross_q = zfi_nn_name(n.cross_q, "cross.q"),
                               .cross_k = zfi_nn_name(n.cross_k, "cross.k"),
                               .cross_v = zfi_nn_name(n.cross_v, "cross.v"),
                               .cross_out = zfi_nn_name(n.cross_out, "cross.out"),
                               .feed_norm = zfi_nn_name(n.feed_norm, "mlp.norm"),
                               .up = zfi_nn_name(n.up, "mlp.up"),
                               .gate = zfi_nn_name(n.gate, "mlp.gate"),
                               .down = zfi_nn_name(n.down, "mlp.down")};
}

static zf_tensor zfi_nn_norm(zf_tensor x, const char *name, const zfi_nn_block *b)
{
    const double eps = zfi_or(b->d.eps, 1e-5);
    return b->d.rms_norm ? zf_nn_rms_norm(x, name, eps) : zf_nn_layer_norm(x, name, eps);
}

/* What a part reads of x, and x after it has made y: with the norm before it or after it. */
static zf_tensor zfi_nn_before(zf_tensor x, const char *norm, const zfi_nn_block *b)
{
    return b->d.post_norm ? x : zfi_nn_norm(x, norm, b);
}

static zf_tensor zfi_nn_after(zf_tensor x, zf_tensor y, const char *norm, int64_t half,
                              const zfi_nn_block *b)
{
    zf_layer_drop_desc drop = b->d.layer_drop;
    drop.half = half;
    y = zf_add(x, zf_dropout(zf_layer_drop(y, &drop), b->d.dropout));
    return b->d.post_norm ? zfi_nn_norm(y, norm, b) : y;
}

static zf_tensor zfi_nn_rotate(zf_tensor x, const zf_rope_desc *rope, int64_t heads)
{
    zf_rope_desc d;
    if (!rope) return x;
    d = *rope, d.heads = heads;
    return zf_rope(x, &d);
}

static zf_tensor zfi_nn_attend_self(zf_tensor x, const zfi_nn_block *b)
{
    const zf_attention_desc *a = &b->d.attention;
    const zf_nn_block_names *n = &b->names;
    const int64_t of_q = a->heads * b->width, of_k = a->kv_heads * b->width;
    const zf_tensor in = zfi_nn_before(x, n->norm, b);
    const zf_tensor q = zf_nn_linear(in, n->q, of_q, &b->linear),
                    k = zf_nn_linear(in, n->k, of_k, &b->linear),
                    v = zf_nn_linear(in, n->v, of_k, &b->linear);
    const zf_tensor y = zf_attention(zfi_nn_rotate(q, b->d.rope, a->heads),
                                     zfi_nn_rotate(k, b->d.rope, a->kv_heads), v, a);
    return zfi_nn_after(x, zf_nn_linear(y, n->out, b->hidden, &b->linear), n->norm, 0, b);
}

static zf_tensor zfi_nn_attend_cross(zf_tensor x, const zfi_nn_block *b)
{
    const zf_attention_desc *a = &b->d.cross;
    const zf_nn_block_names *n = &b->names;
    const int64_t of_q = a->heads * b->width, of_k = a->kv_heads * b->width;
    const zf_tensor q =
        zf_nn_linear(zfi_nn_before(x, n->cross_norm, b), n->cross_q, of_q, &b->linear);
    const zf_tensor k = zf_nn_linear(b->d.memory, n->cross_k, of_k, &b->linear),
                    v = zf_nn_linear(b->d.memory, n->cross_v, of_k, &b->linear);
    const zf_tensor y = zf_nn_linear(zf_attention(q, k, v, a), n->cross_out, b->hidden, &b->linear);
    return zfi_nn_after(x, y, n->cross_norm, 0, b);
}

static zf_tensor zfi_nn_feed(zf_tensor x, const zfi_nn_block *b)
{
    const int64_t middle = b->d.intermediate ? b->d.intermediate : 4 * b->hidden;
    const zf_nn_block_names *n = &b->names;
    const zf_tensor in = zfi_nn_before(x, n->feed_norm, b);
    zf_tensor y = zf_nn_linear(in, n->up, middle, &b->linear), gate;
    if (b->d.gated) {
        gate = zf_nn_linear(in, n->gate, middle, &b->linear);
        y = b->d.activation == ZF_ACTIVATION_SILU
                ? zf_swiglu(gate, y)
                : zf_mul(zf_nn_activation(gate, b->d.activation), y);
    } else {
        y = zf_nn_activation(y, b->d.activation);
    }
    return zfi_nn_after(x, zf_nn_linear(y, n->down, b->hidden, &b->linear), n->feed_norm, 1, b);
}

/* Fills in heads. False: they do not fit. */
static bool zfi_nn_fill_heads(zf_attention_desc *a, int64_t heads)
{
    if (!a->heads) a->heads = heads;
    if (!a->kv_heads) a->kv_heads = a->heads;
    return a->heads > 0 && a->kv_heads > 0 && a->heads % a->kv_heads == 0;
}

ZF_API zf_tensor zf_nn_block(zf_tensor x, const zf_nn_block_desc *desc)
{
    const zf_shape s = zf_tensor_shape(x);
    zfi_nn_block b = {.d = desc ? *desc : (zf_nn_block_desc){.width = 0}};
    if (!zf_valid(x)) return zf_fail(x, "zf_nn_block: x is no tensor");
    if (s.rank != 3)
        return zf_fail(x, "zf_nn_block: x must be [batch, tokens, hidden], and its rank is %d",
                       (int)s.rank);
    b.hidden = s.dims[2];
    if (!zfi_nn_fill_heads(&b.d.attention, (b.hidden + 63) / 64) ||
        (!b.d.width && b.hidden % b.d.attention.heads))
        return zf_fail(x,
                       "zf_nn_block: the %lld heads must be a multiple of the %lld of k and v, and "
                       "of hidden (%lld) a divisor, unless `width` is given",
                       (long long)b.d.attention.heads, (long long)b.d.attention.kv_heads,
                       (long long)b.hidden);
    if (!zfi_nn_fill_heads(&b.d.cross, b.d.attention.heads))
        return zf_fail(
            x, "zf_nn_block: the %lld heads of cross must be a multiple of its %lld of k and v",
            (long long)b.d.cross.heads, (long long)b.d.cross.kv_heads);
    b.width = b.d.width ? b.d.width : b.hidden / b.d.attention.heads;
    b.names = zfi_nn_names(b.d.names);
    b.linear = (zf_nn_linear_desc){.std = b.d.std, .no_bias = b.d.no_bias};
    x = zfi_nn_attend_self(x, &b);
    if (b.d.memory.graph || b.d.memory.id) x = zfi_nn_attend_cross(x, &b);
    return zfi_nn_feed(x, &b);
}
