/* The graph of a model: its layers, between ids and what the head is given. */
#include <math.h>
#include <string.h>

static const char *zfl_name_or(const char *own, const char *usual) { return own ? own : usual; }

static zf_tensor zfl_norm_vector(zf_graph *g, const char *name, const char *part, int64_t count,
                                 zf_init init)
{
    zf_tensor x;
    zf_push(g, "%s", name);
    x = zf_param(g, part, ZF_SHAPE(count), &(zf_param_desc){.init = init});
    zf_pop(g);
    return x;
}

/* The bias of a layer norm; a constant where the family has none. */
static zf_tensor zfl_norm_bias(zf_graph *g, const char *name, int64_t count,
                               const zf_causal_config *c)
{
    return zfl_causal_of(c)->no_norm_bias ? zf_constant(g, ZF_F32, ZF_SHAPE(count), 0)
                                          : zfl_norm_vector(g, name, "bias", count, ZF_ZEROS);
}

/* Layer norm, or RMS norm by weight or 1 + weight, of the last axis. */
static zf_tensor zfl_norm_of(zf_tensor x, const char *name, const zf_causal_config *c)
{
    zf_graph *g = x.graph;
    const zf_shape s = zf_tensor_shape(x);
    zf_tensor gamma;
    if (zfl_causal_of(c)->layer_norm) {
        gamma = zfl_norm_vector(g, name, "weight", s.dims[s.rank - 1], ZF_ONES);
        return zf_layer_norm(x, gamma, zfl_norm_bias(g, name, s.dims[s.rank - 1], c), c->eps);
    }
    if (!zfl_causal_of(c)->one_more) return zf_nn_rms_norm(x, name, c->eps);
    gamma = zfl_norm_vector(g, name, "weight", s.dims[s.rank - 1], ZF_ZEROS);
    return zf_rms_norm(x, zf_add(gamma, zf_constant(g, ZF_F32, ZF_SCALAR, 1)), c->eps);
}

/* Adds y, if there is one, to the residual *x, then applies the norm `name`; NULL: none. */
static zf_tensor zfl_add_norm(zf_tensor *x, zf_tensor y, const char *name,
                              const zf_causal_config *c)
{
    const zf_residual_desc d = {.eps = ZF_GIVEN(c->eps), .sum = x};
    const zfl_family_desc *family = zfl_causal_of(c);
    const bool adds = zf_valid(y);
    zf_tensor gamma;
    if (adds && c->residual > 0) y = zf_scale(y, c->residual);
    if (adds && name && !family->one_more) {
        gamma = zfl_norm_vector(y.graph, name, "weight", c->hidden, ZF_ONES);
        return family->layer_norm
                   ? zf_residual_layer_norm(y, *x, gamma,
                                            zfl_norm_bias(y.graph, name, c->hidden, c), &d)
                   : zf_residual_rms_norm(y, *x, gamma, &d);
    }
    if (adds) *x = zf_add(*x, y);
    return name ? zfl_norm_of(*x, name, c) : *x;
}

/* The norm of q or k [B, T, heads width]. */
static zf_tensor zfl_norm_queries(zf_tensor x, const char *name, const zf_causal_config *c)
{
    const zf_shape s = zf_tensor_shape(x);
    const zfl_query_norm kind = zfl_causal_of(c)->queries;
    if (kind != ZFL_NORM_OF_HEADS) return kind ? zfl_norm_of(x, name, c) : x;
    x = zf_reshape(x, ZF_SHAPE(s.dims[0], s.dims[1], s.dims[2] / c->width, c->width));
    return zf_reshape(zfl_norm_of(x, name, c), s);
}

/* What layers share: the mask, of longrope the cosines and sines, and their routers. */
typedef struct zfl_shared {
    zf_tensor mask, cosine, sine;
    zfl_routers *routers;
} zfl_shared;

/* Rope over the first c->rotated numbers of each head. */
static zf_tensor zfl_rotate(zf_tensor x, zf_rope_desc *rope, const zfl_shared *all, int64_t heads,
                            const zf_causal_config *c)
{
    const zf_shape s = zf_tensor_shape(x);
    zf_tensor parts[2];
    rope->heads = heads;
    if (c->factors) return zfl_rotate_by(x, all->cosine, all->sine, heads, c);
    if (!c->rotated || c->rotated == c->width) return zf_rope(x, rope);
    x = zf_reshape(x, ZF_SHAPE(s.dims[0], s.dims[1], heads, c->width));
    parts[0] = zf_reshape(zf_slice(x, 3, 0, c->rotated),
                          ZF_SHAPE(s.dims[0], s.dims[1], heads * c->rotated));
    parts[0] =
        zf_reshape(zf_rope(parts[0], rope), ZF_SHAPE(s.dims[0], s.dims[1], heads, c->rotated));
    parts[1] = zf_slice(x, 3, c->rotated, c->width);
    return zf_reshape(zf_concat(parts, 2, 3), s);
}

static zf_rope_desc zfl_layer_rope(const zf_causal_config *c, const zf_causal_inputs *in,
                                   int64_t layer)
{
    const bool near = c->near_theta > 0 && !zfl_is_full(c, layer);
    return (zf_rope_desc){.theta = near ? c->near_theta : c->theta,
                          .scaling = near ? ZF_ROPE_PLAIN : (zf_rope_scaling)c->scaling,
                          .factor = c->factor,
                          .low_factor = c->low,
                          .high_factor = c->high,
                          .original = c->original,
                          .unrounded = c->unrounded != 0,
                          .attention = c->attention,
                          .positions = zf_valid(in->positions) ? in->positions : ZF_NONE};
}

/* q, k and v, of a product that has them by groups of heads. */
static void zfl_take_groups(zf_tensor x, const zf_causal_config *c, zf_tensor *q, zf_tensor *k,
                            zf_tensor *v)
{
    const int64_t each = c->heads / c->kv_heads, of_k = c->kv_heads * c->width;
    const zf_shape s = zf_tensor_shape(x), keys = ZF_SHAPE(s.dims[0], s.dims[1], of_k);
    x = zf_reshape(x, ZF_SHAPE(s.dims[0], s.dims[1], c->kv_heads, each + 2, c->width));
    *q = zf_reshape(zf_slice(x, 3, 0, each), ZF_SHAPE(s.dims[0], s.dims[1], each * of_k));
    *k = zf_reshape(zf_slice(x, 3, each, each + 1), keys);
    *v = zf_reshape(zf_slice(x, 3, each + 1, each + 2), keys);
}

/* x, whose numbers are at most `most` from 0. */
static zf_tensor zfl_clip(zf_tensor x, double most)
{
    const zf_tensor least = zf_constant(x.graph, ZF_F32, ZF_SCALAR, -most);
    return zf_maximum(zf_minimum(x, zf_constant(x.graph, ZF_F32, ZF_SCALAR, most)), least);
}

/* q, k and v of x [B, T, H], before norms and rope. */
static void zfl_project(zf_tensor x, const zf_causal_config *c, zf_tensor *q, zf_tensor *k,
                        zf_tensor *v)
{
    const zfl_family_desc *family = zfl_causal_of(c);
    const zf_nn_linear_desc d = {.std = ZF_GIVEN(c->std),
                                 .no_bias = !c->attention_bias && !family->qkv_bias};
    const int64_t of_q = c->heads * c->width, of_k = c->kv_heads * c->width;
    const char *joined = family->grouped ? family->grouped : family->names.joined;
    zf_tensor all;
    if (!family->joined && !family->grouped) {
        *q = zf_causal_linear(x, "q_proj", of_q, &d, c->bits);
        *k = zf_causal_linear(x, "k_proj", of_k, &d, c->bits);
        *v = zf_causal_linear(x, "v_proj", of_k, &d, c->bits);
        return;
    }
    all = zf_causal_linear(x, zfl_name_or(joined, "qkv_proj"), of_q + 2 * of_k, &d, c->bits);
    if (c->clip > 0) all = zfl_clip(all, c->clip);
    if (family->grouped && c->kv_heads > 1) {
        zfl_take_groups(all, c, q, k, v);
        return;
    }
    *q = zf_slice(all, 2, 0, of_q);
    *k = zf_slice(all, 2, of_q, of_q + of_k);
    *v = zf_slice(all, 2, of_q + of_k, of_q + 2 * of_k);
}

static zf_tensor zfl_attend(zf_tensor x, const zfl_shared *all, const zf_causal_inputs *in,
                            const zf_causal_config *c, int64_t layer)
{
    const zf_nn_linear_desc out = {.std = ZF_GIVEN(c->std), .no_bias = !c->attention_bias};
    zf_rope_desc rope = zfl_layer_rope(c, in, layer);
    zf_attention_desc attention = {.heads = c->heads,
                                   .kv_heads = c->kv_heads,
                                   .scale = c->query ? 1 / sqrt((double)c->query) : c->score,
                                   .cap = c->cap,
                                   .dropout = c->attention_dropout,
                                   .causal = true,
                                   .window = zfl_is_full(c, layer) ? 0 : c->window,
                                   .mask = all->mask};
    zf_tensor q, k, v;
    zfl_project(x, c, &q, &k, &v);
    zf_causal_masks(&attention, in, c->kv_heads * c->width);
    q = zfl_norm_queries(q, "q_norm", c), k = zfl_norm_queries(k, "k_norm", c);
    if (!zfl_is_plain(c, layer))
        q = zfl_rotate(q, &rope, all, c->heads, c), k = zfl_rotate(k, &rope, all, c->kv_heads, c);
    return zf_causal_linear(zf_attention(q, k, v, &attention),
                            zfl_name_or(zfl_causal_of(c)->names.out, "o_proj"), c->hidden, &out,
                            c->bits);
}

static zf_tensor zfl_feed_forward(zf_tensor x, const zf_causal_config *c)
{
    const zf_nn_linear_desc linear = {.std = ZF_GIVEN(c->std), .no_bias = !c->mlp_bias};
    const int64_t n = c->intermediate;
    const zfl_family_desc *family = zfl_causal_of(c);
    zf_tensor gate, up;
    if (family->mlp[0]) {
        up = zf_causal_linear(x, family->mlp[0], n, &linear, c->bits);
        up = zf_nn_activation(up, (zf_activation)c->activation);
        return zf_causal_linear(up, family->mlp[1], c->hidden, &linear, c->bits);
    }
    if (family->joined) {
        up = zf_causal_linear(x, "gate_up_proj", 2 * n, &linear, c->bits);
        gate = zf_slice(up, 2, 0, n), up = zf_slice(up, 2, n, 2 * n);
    } else {
        gate = zf_causal_linear(x, "gate_proj", n, &linear, c->bits);
        up = zf_causal_linear(x, "up_proj", n, &linear, c->bits);
    }
    if (c->activation == ZF_ACTIVATION_SILU) gate = zf_swiglu(gate, up);
    else gate = zf_mul(zf_nn_activation(gate, (zf_activation)c->activation), up);
    return zf_causal_linear(gate, "down_proj", c->hidden, &linear, c->bits);
}

static zf_tensor zfl_drop_part(zf_tensor x, double p, const zf_causal_config *c)
{
    return zfl_causal_of(c)->dropouts ? zf_dropout(x, p) : x;
}

static const zfl_norms *zfl_norms_of(const zf_causal_config *c)
{
    const zfl_family_desc *f = zfl_causal_of(c);
    return c->parallel == ZF_CAUSAL_PARALLEL && f->parallel_norms.before_mlp ? &f->parallel_norms
                                                                             : &f->norms;
}

/* The scope of what is after the attention of layer i. */
static const char *zfl_scope_of(const zf_causal_config *c, int64_t i)
{
    const zfl_family_desc *family = zfl_causal_of(c);
    return zfl_name_or(zfl_is_sparse(c, i) ? family->expert_scope : family->names.mlp, "mlp");
}

/* Layer i over the residual *x; y: what is to be added to it, and the same of this layer. */
static zf_tensor zfl_add_layer(zf_tensor *x, zf_tensor y, const zfl_shared *all,
                               const zf_causal_inputs *in, const zf_causal_config *c, int64_t i)
{
    const double p = zfl_causal_of(c)->same_dropout ? c->attention_dropout : c->dropout;
    const zfl_names *names = &zfl_causal_of(c)->names;
    const zfl_norms *norms = zfl_norms_of(c);
    zf_graph *g = x->graph;
    zf_tensor normed, first;
    zf_push(g, "%s.%lld", zfl_name_or(names->layers, "layers"), (long long)i);
    normed = zfl_add_norm(x, y, norms->before_attention, c);
    zf_push(g, "%s", zfl_name_or(names->attention, "self_attn"));
    y = zfl_attend(normed, all, in, c, i);
    zf_pop(g);
    if (norms->after_attention) y = zfl_norm_of(y, norms->after_attention, c);
    first = y = zfl_drop_part(zf_causal_branch(y, in, i, c->layers, 0), p, c);
    if (c->parallel == ZF_CAUSAL_PARALLEL) normed = zfl_norm_of(*x, norms->before_mlp, c);
    else if (!c->parallel) normed = zfl_add_norm(x, y, norms->before_mlp, c);
    zf_push(g, "%s", zfl_scope_of(c, i));
    y = zfl_is_sparse(c, i) ? zfl_experts(normed, c, all->routers) : zfl_feed_forward(normed, c);
    zf_pop(g);
    if (norms->after_mlp) y = zfl_norm_of(y, norms->after_mlp, c);
    zf_pop(g);
    y = zfl_drop_part(zf_causal_branch(y, in, i, c->layers, 1), p, c);
    return c->parallel ? zf_add(first, y) : y;
}

static zf_tensor zfl_head_weight(zf_graph *g, const char *name, const zf_causal_config *c)
{
    const zf_nn_embedding_desc table = {.std = ZF_GIVEN(c->std)};
    zf_tensor words;
    zf_push(g, "%s", name);
    words = zf_causal_weight(g, "weight", c->vocab, c->hidden, ZF_GIVEN(c->std), c->bits);
    zf_pop(g);
    return zf_valid(words) ? words : zf_nn_embedding_table(g, name, c->vocab, c->hidden, &table);
}

/* ALiBi of the keys of a row, or in generation of those that caches have room for, with the padding
 * of rows. */
static void zfl_add_alibi(zf_tensor *mask, const zf_causal_config *c, const zf_causal_inputs *in)
{
    const bool decodes = zf_valid(in->decode.past);
    const int64_t tokens = zf_tensor_shape(in->input_ids).dims[1];
    const zf_tensor alibi =
        zfl_alibi(in->input_ids.graph, c, decodes ? in->decode.shape.context : tokens,
                  decodes ? ZF_NONE : in->attention_mask);
    *mask = zf_valid(*mask) ? zf_add(alibi, *mask) : alibi;
}

/* What the first layer is given; *words: the embedding. */
static zf_tensor zfl_embed(const zf_causal_config *c, const zf_causal_inputs *in, zf_tensor *words)
{
    const zf_nn_embedding_desc table = {.std = ZF_GIVEN(c->std)};
    const zfl_family_desc *family = zfl_causal_of(c);
    zf_tensor x;
    *words = zf_nn_embedding_table(in->input_ids.graph,
                                   zfl_name_or(family->names.embedding, "embed_tokens"), c->vocab,
                                   c->hidden, &table);
    x = zf_embedding_ex(*words, in->input_ids,
                        &(zf_embedding_desc){.padded = c->pad >= 0, .padding = c->pad});
    if (c->embedding > 0) x = zf_scale(x, (float)c->embedding);
    if (family->names.embedding_norm) x = zfl_norm_of(x, family->names.embedding_norm, c);
    return zfl_drop_part(x, family->one_dropout ? c->dropout : c->embedding_dropout, c);
}

/* What the head is given, [B T, H]; *words, its weight: the embedding, if they are tied or there is
 * no head. */
static zf_tensor zfl_layers(const zf_causal_config *c, const zf_causal_inputs *in,
                            zfl_routers *routers, zf_tensor *words)
{
    zf_graph *g = in->input_ids.graph;
    const zfl_names names = zfl_causal_of(c)->names;
    zfl_shared all = {.mask = zf_causal_padding(in), .routers = routers};
    zf_tensor x, y = ZF_NONE;
    if (c->alibi) zfl_add_alibi(&all.mask, c, in);
    if (c->factors) zfl_longrope_table(c, in, &all.cosine, &all.sine);
    zf_push(g, "%s", zfl_name_or(names.model, "model"));
    x = zfl_embed(c, in, words);
    for (int64_t i = 0; i < c->layers; i++) y = zfl_add_layer(&x, y, &all, in, c, i);
    x = zfl_add_norm(&x, y, zfl_name_or(names.last_norm, "norm"), c);
    if (c->logits > 0) x = zf_scale(x, 1 / c->logits);
    zf_pop(g);
    if (!c->tied && !c->scores) *words = zfl_head_weight(g, zfl_name_or(names.head, "lm_head"), c);
    return zf_reshape(x, ZF_SHAPE(-1, c->hidden));
}
