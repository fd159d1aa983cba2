/* Mixture of experts: a layer of experts, and the losses that spread tokens over them. Parts are
 * public calls, meant to be read and copied.
 *
 *     rows = dispatch(x)              the rows of each expert, as the router has them
 *     y = combine(down(activation(gate(rows)) up(rows)))
 *
 * Sources: Shazeer et al. 2017; Fedus et al. 2021 (balance); Zoph et al. 2022 (z); Rajbhandari et
 * al. 2022 (residual); Jiang et al. 2024 (balance of all layers together). */

static zf_moe_names zfi_moe_names(const zf_moe_names *given)
{
    const zf_moe_names n = given ? *given : (zf_moe_names){.router = NULL};
    return (zf_moe_names){.router = zfi_nn_name(n.router, "gate"),
                          .bias = zfi_nn_name(n.bias, "gate.e_score_correction_bias"),
                          .experts = zfi_nn_name(n.experts, "experts"),
                          .gate = zfi_nn_name(n.gate, "gate_proj"),
                          .up = zfi_nn_name(n.up, "up_proj"),
                          .down = zfi_nn_name(n.down, "down_proj"),
                          .dense = zfi_nn_name(n.dense, "mlp"),
                          .mix = zfi_nn_name(n.mix, "coefficient")};
}

/* The rows of experts of each choice, as many for each as its capacity says. */
static zf_tensor zfi_moe_rows(zf_tensor weights, const zf_moe_desc *d, zf_moe_parts *p)
{
    const zf_shape s = zf_tensor_shape(weights);
    const double each = (double)zf_shape_count(s) / (double)d->experts;
    zf_expert_rows_desc rows = {.experts = d->experts,
                                .rows = d->rows,
                                .bounds = &p->bounds,
                                .slots = &p->slots,
                                .counts = &p->counts};
    if (d->capacity > 0) {
        rows.rows = 0, rows.capacity = (int64_t)ceil(each * d->capacity);
        if (rows.capacity < d->least) rows.capacity = d->least;
        if (rows.capacity > s.dims[0]) rows.capacity = s.dims[0];
        if (d->random) rows.priority = zf_random_uniform(weights, 0, 1);
        p->most = rows.capacity;
    }
    return zf_expert_rows(p->experts, &rows);
}

/* The weights of choices that have a row; what is normalized is so over these. */
static zf_tensor zfi_moe_weights(zf_tensor weights, const zf_moe_desc *d, const zf_moe_parts *p,
                                 zf_tensor rows)
{
    zf_graph *g = weights.graph;
    const zf_dtype dtype = zf_tensor_dtype(weights);
    zf_tensor sum, kept;
    if (!(d->capacity > 0)) return weights;
    kept = zf_less(p->slots, zf_constant(g, ZF_I32, ZF_SCALAR, (double)zf_tensor_shape(rows).dims[0]));
    weights = zf_where(kept, weights, zf_constant(g, dtype, ZF_SCALAR, 0));
    if (!d->normalize) return weights;
    sum = zf_sum_ex(weights, &(zf_reduce_desc){.axis = 1, .keep = true});
    weights = zf_div(weights, zf_maximum(sum, zf_constant(g, dtype, ZF_SCALAR, 1e-20)));
    return d->scale > 0 ? zf_scale(weights, d->scale) : weights;
}

/* What products of experts share. */
typedef struct zfi_moe_products {
    const zf_moe_desc *d;
    zf_tensor bounds;
    bool alone; /* zf_grouped_linear_desc.alone */
} zfi_moe_products;

/* The products of all experts with their rows; a matrix of each is a part of one parameter. */
static zf_tensor zfi_moe_product(zf_tensor x, const char *name, int64_t out,
                                 const zfi_moe_products *p)
{
    const zf_moe_desc *d = p->d;
    zf_param_desc weight = {
        .dtype = zf_tensor_dtype(x), .init = ZF_TRUNCATED_NORMAL, .std = zfi_or(d->std, 0.02)};
    zf_grouped_linear_desc product = {.alone = false};
    const int64_t block = d->quantized.block ? d->quantized.block : 256;
    zf_tensor w;
    if (d->quantized.bits && zf_tensor_shape(x).dims[1] % block == 0)
        weight.quantized = d->quantized, product.alone = p->alone;
    zf_push(x.graph, "%s", name);
    w = zf_param(x.graph, "weight", ZF_SHAPE(d->experts, out, zf_tensor_shape(x).dims[1]), &weight);
    zf_pop(x.graph);
    return zf_grouped_linear_ex(x, w, p->bounds, &product);
}

/* activation(gate) up, or without `gated` activation(up). */
static zf_tensor zfi_moe_inner(zf_tensor gate, zf_tensor up, const zf_moe_desc *d)
{
    if (!d->gated) return zf_nn_activation(up, d->activation);
    if (d->activation == ZF_ACTIVATION_SILU) return zf_swiglu(gate, up);
    return zf_mul(zf_nn_activation(gate, d->activation), up);
}

/* What experts make of their rows. */
static zf_tensor zfi_moe_experts(zf_tensor rows, const zfi_moe_products *p, const zf_moe_names *n)
{
    const zf_moe_desc *d = p->d;
    const int64_t hidden = zf_tensor_shape(rows).dims[1];
    zf_tensor gate = ZF_NONE, up;
    zf_push(rows.graph, "%s", n->experts);
    if (d->gated) gate = zfi_moe_product(rows, n->gate, d->intermediate, p);
    up = zfi_moe_product(rows, n->up, d->intermediate, p);
    up = zfi_moe_product(zfi_moe_inner(gate, up, d), n->down, hidden, p);
    zf_pop(rows.graph);
    return up;
}

/* The mean of y and of a layer that is not of experts, weighted as x says. */
static zf_tensor zfi_moe_residual(zf_tensor x, zf_tensor y, const zf_moe_desc *d,
                                  const zf_moe_names *n)
{
    const zf_nn_linear_desc plain = {.std = d->std, .no_bias = true}, mix = {.std = d->std};
    const int64_t hidden = zf_tensor_shape(x).dims[1];
    zf_tensor gate = ZF_NONE, up, by;
    zf_push(x.graph, "%s", n->dense);
    if (d->gated) gate = zf_nn_linear(x, n->gate, d->intermediate, &plain);
    up = zf_nn_linear(x, n->up, d->intermediate, &plain);
    up = zf_nn_linear(zfi_moe_inner(gate, up, d), n->down, hidden, &plain);
    zf_pop(x.graph);
    by = zf_softmax(zf_nn_linear(x, n->mix, 2, &mix));
    return zf_add(zf_mul(up, zf_slice(by, 1, 0, 1)), zf_mul(y, zf_slice(by, 1, 1, 2)));
}

/* The bias for the choice of experts, if there is one. */
static zf_tensor zfi_moe_bias(zf_tensor logits, const zf_moe_desc *d, const zf_moe_names *n)
{
    const bool wide = zf_tensor_dtype(logits) == ZF_F64;
    const zf_param_desc bias = {.dtype = wide ? ZF_F64 : ZF_F32, .frozen = !d->balance};
    if (!d->biased && !d->balance) return ZF_NONE;
    return zf_param(logits.graph, n->bias, ZF_SHAPE(d->experts), &bias);
}

/* Of x [tokens, hidden]; alone: each token is one of a text of its own. */
static zf_tensor zfi_moe(zf_tensor x, const zf_moe_desc *d, const zf_moe_names *n, zf_moe_parts *p,
                         bool alone)
{
    zfi_moe_products products = {.d = d, .alone = alone};
    zf_tensor weights, rows, y;
    const bool drops = d->capacity > 0;
    p->logits = zf_nn_linear(x, n->router, d->experts,
                             &(zf_nn_linear_desc){.std = d->std, .no_bias = true});
    weights = zf_route(p->logits, &(zf_route_desc){.k = d->k,
                                                   .sigmoid = d->sigmoid,
                                                   .normalize = d->normalize && !drops,
                                                   .groups = d->groups,
                                                   .kept = d->kept,
                                                   .scale = drops && d->normalize ? 0 : d->scale,
                                                   .bias = zfi_moe_bias(p->logits, d, n),
                                                   .balance = d->balance,
                                                   .experts = &p->experts,
                                                   .scores = &p->scores});
    rows = zfi_moe_rows(weights, d, p);
    weights = zfi_moe_weights(weights, d, p, rows);
    products.bounds = p->bounds;
    y = zfi_moe_experts(zf_dispatch(x, rows, p->slots), &products, n);
    y = zf_combine(y, rows, p->slots, weights);
    return d->residual ? zfi_moe_residual(x, y, d, n) : y;
}

ZF_API zf_tensor zf_moe(zf_tensor x, const zf_moe_desc *desc)
{
    zf_moe_desc d = desc ? *desc : (zf_moe_desc){.experts = 0};
    const zf_moe_names names = zfi_moe_names(d.names);
    const zf_shape s = zf_tensor_shape(x);
    zf_moe_parts parts = {.sigmoid = d.sigmoid};
    const int64_t width = s.rank > 1 ? s.dims[s.rank - 1] : 0,
                  tokens = width ? zf_shape_count(s) / width : 0;
    double rows;
    zf_tensor y;
    if (!zf_valid(x) || s.rank < 2) return zf_fail(x, "zf_moe: x must be [..., hidden]");
    if (d.experts < 1) return zf_fail(x, "zf_moe: experts = %lld must be 1 or more", (long long)d.experts);
    if (!(d.capacity >= 0) || d.capacity > (double)d.experts || (d.capacity > 0 && d.rows))
        return zf_fail(x, "zf_moe: capacity = %g must be 0 to the number of experts, and has no rows",
                       d.capacity);
    if (!d.k) d.k = 2;
    rows = (double)tokens * (double)d.k / (double)d.experts;
    if (d.capacity > 0 && !d.least && d.capacity * rows < 1)
        return zf_fail(x,
                       "zf_moe: capacity = %g is below one row: %lld tokens with %lld of %lld experts "
                       "each make %g rows of an expert on average; %g is the least, or say how many "
                       "rows an expert has at least",
                       d.capacity, (long long)tokens, (long long)d.k, (long long)d.experts, rows,
                       1 / rows);
    if (!(d.capacity > 0) && (d.random || d.least))
        return zf_fail(x, "zf_moe: %s is of a capacity, and there is none: nothing is dropped",
                       d.random ? "random" : "least");
    if (!d.intermediate) d.intermediate = 4 * s.dims[s.rank - 1];
    y = zfi_moe(zf_reshape(x, ZF_SHAPE(-1, s.dims[s.rank - 1])), &d, &names, &parts,
                s.rank == 3 && s.dims[1] == 1);
    if (d.parts) *d.parts = parts;
    return zf_reshape(y, s);
}

/* ------------------------------------------------------------------------------------ losses */

/* The sum of x [tokens, n] over tokens of the mask [tokens]: [n]. */
static zf_tensor zfi_moe_sum(zf_tensor x, zf_tensor mask)
{
    return zf_sum_ex(zf_mul(x, zf_reshape(mask, ZF_SHAPE(-1, 1))), &(zf_reduce_desc){.axis = 0});
}

/* The mean of x [tokens, n] over tokens, or over those of the mask [tokens]: [n]. */
static zf_tensor zfi_moe_mean(zf_tensor x, zf_tensor mask)
{
    if (!zfi_is_operand(mask)) return zf_mean_ex(x, &(zf_reduce_desc){.axis = 0});
    /* A part of a batch may have no token. */
    return zf_div(zfi_moe_sum(x, mask),
                  zf_maximum(zf_sum(mask), zf_constant(x.graph, zf_tensor_dtype(x), ZF_SCALAR, 1)));
}

/* Which experts each token chooses, [tokens, experts] of 1 and 0. */
static zf_tensor zfi_moe_chosen(const zf_moe_parts *p, zf_dtype dtype)
{
    const int64_t experts = zf_tensor_shape(p->scores).dims[1];
    return zf_sum_ex(zf_one_hot(p->experts, experts, dtype), &(zf_reduce_desc){.axis = 1});
}

/* The share of tokens that choose each expert, [experts]; they add up to k. */
static zf_tensor zfi_moe_shares(const zf_moe_parts *p, zf_tensor mask)
{
    return zfi_moe_mean(zfi_moe_chosen(p, zf_tensor_dtype(p->scores)), mask);
}

/* The mean probability of each expert, [experts]. */
static zf_tensor zfi_moe_probability(const zf_moe_parts *p, zf_tensor mask)
{
    const zf_reduce_desc experts = {.axis = 1, .keep = true};
    zf_tensor scores = p->scores;
    if (p->sigmoid) scores = zf_div(scores, zf_sum_ex(scores, &experts));
    return zfi_moe_mean(scores, mask);
}

/* A layer's loss: experts f P / k, summed over experts. */
static zf_tensor zfi_moe_balance_of(const zf_moe_parts *layer, zf_tensor f, zf_tensor p)
{
    const double experts = (double)zf_tensor_shape(layer->scores).dims[1],
                 k = (double)zf_tensor_shape(layer->experts).dims[1];
    return zf_scale(zf_sum(zf_mul(f, p)), experts / k);
}

ZF_API zf_tensor zf_moe_balance_loss(const zf_moe_parts *layers, int64_t count, zf_tensor mask,
                                     zf_moe_balance form)
{
    zf_tensor shares = ZF_NONE, probability = ZF_NONE, sum = ZF_NONE;
    int64_t experts;
    if (!layers || count < 1 || !zf_valid(layers[0].scores))
        return zf_fail(layers ? layers[0].scores : ZF_NONE, "zf_moe_balance_loss: there is no layer");
    experts = zf_tensor_shape(layers[0].scores).dims[1];
    for (int64_t i = 0; i < count; i++) {
        const int64_t its = zf_tensor_shape(layers[i].scores).dims[1];
        zf_tensor f, p;
        if (form == ZF_BALANCE_POOLED && its != experts)
            return zf_fail(layers[i].scores,
                           "zf_moe_balance_loss: layer %lld has %lld experts and layer 0 has %lld: "
                           "only layers with as many are pooled",
                           (long long)i, (long long)its, (long long)experts);
        f = zfi_moe_shares(&layers[i], mask), p = zfi_moe_probability(&layers[i], mask);
        if (form == ZF_BALANCE_LAYERS) {
            const zf_tensor one = zfi_moe_balance_of(&layers[i], f, p);
            sum = i ? zf_add(sum, one) : one;
        } else {
            shares = i ? zf_add(shares, f) : f;
            probability = i ? zf_add(probability, p) : p;
        }
    }
    if (form == ZF_BALANCE_LAYERS) return sum;
    return zf_scale(zf_sum(zf_mul(shares, probability)), (double)experts / (double)(count * count));
}

ZF_API zf_tensor zf_moe_z_loss(const zf_moe_parts *layers, int64_t count, zf_tensor mask)
{
    zf_tensor sum = ZF_NONE;
    if (!layers || count < 1 || !zf_valid(layers[0].logits))
        return zf_fail(layers ? layers[0].logits : ZF_NONE, "zf_moe_z_loss: there is no layer");
    for (int64_t i = 0; i < count; i++) {
        const zf_tensor z = zf_reshape(zf_logsumexp(layers[i].logits), ZF_SHAPE(-1, 1)),
                        one = zf_sum(zfi_moe_mean(zf_mul(z, z), mask));
        sum = i ? zf_add(sum, one) : one;
    }
    return sum;
}

/* ------------------------------------------------------------------------------------- load */

ZF_API zf_tensor zf_moe_load(const zf_moe_parts *layer, zf_tensor mask)
{
    const zf_reduce_desc first = {.axis = 0};
    zf_tensor parts[3], all, over;
    zf_graph *g;
    if (!layer || !zf_valid(layer->counts))
        return zf_fail(layer ? layer->counts : ZF_NONE, "zf_moe_load: there is no layer");
    g = layer->counts.graph;
    /* A sum, since these stay in f32 where others are in 16 bits. */
    all = zf_sum_ex(zf_cast(zf_reshape(layer->counts, ZF_SHAPE(1, -1)), ZF_F32), &first);
    over = zf_sub(all, zf_constant(g, ZF_F32, ZF_SCALAR, (double)layer->most));
    over = zf_sum(zf_maximum(over, zf_constant(g, ZF_F32, ZF_SCALAR, 0)));
    if (!layer->most) over = zf_scale(over, 0);
    parts[0] = zfi_is_operand(mask)
                   ? zfi_moe_sum(zfi_moe_chosen(layer, ZF_F32), zf_cast(mask, ZF_F32))
                   : all;
    parts[1] = zf_reshape(over, ZF_SHAPE(1));
    parts[2] = zf_reshape(zf_sub(zf_sum(all), over), ZF_SHAPE(1));
    return zf_concat(parts, 3, 0);
}
