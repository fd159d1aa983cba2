#include "model.h"
#include "experts.h"
#include "../frame/score/score.h"
#include "../../zeroflow_llm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool llm_config_load(const char *name, llm_config *c, zf_error *error)
{
    return zf_config_load(&llm_members, name, c, error);
}

/* -------------------------------------------------------------------------------------- graph */

static const char *name_of(const char *own, const char *usual) { return own ? own : usual; }

static zf_tensor vector(zf_graph *g, const char *name, const char *part, int64_t count,
                        zf_init init)
{
    zf_tensor x;
    zf_push(g, "%s", name);
    x = zf_param(g, part, ZF_SHAPE(count), &(zf_param_desc){.init = init});
    zf_pop(g);
    return x;
}

/* Layer norm, or RMS norm by weight or 1 + weight, of the last axis. */
static zf_tensor norm(zf_tensor x, const char *name, const llm_config *c)
{
    zf_graph *g = x.graph;
    const zf_shape s = zf_tensor_shape(x);
    zf_tensor gamma;
    if (llm_family_of(c)->layer_norm) return zf_nn_layer_norm(x, name, c->eps);
    if (!llm_family_of(c)->one_more) return zf_nn_rms_norm(x, name, c->eps);
    gamma = vector(g, name, "weight", s.dims[s.rank - 1], ZF_ZEROS);
    return zf_rms_norm(x, zf_add(gamma, zf_constant(g, ZF_F32, ZF_SCALAR, 1)), c->eps);
}

/* Adds y, if there is one, to the residual *x, then applies the norm `name`; NULL: none. */
static zf_tensor add_norm(zf_tensor *x, zf_tensor y, const char *name, const llm_config *c)
{
    const zf_residual_desc d = {.eps = ZF_GIVEN(c->eps), .sum = x};
    const llm_family_desc *family = llm_family_of(c);
    const bool adds = zf_valid(y);
    zf_tensor gamma;
    if (adds && c->residual > 0) y = zf_scale(y, c->residual);
    if (adds && name && !family->one_more) {
        gamma = vector(y.graph, name, "weight", c->hidden, ZF_ONES);
        return family->layer_norm
                   ? zf_residual_layer_norm(y, *x, gamma,
                                            vector(y.graph, name, "bias", c->hidden, ZF_ZEROS), &d)
                   : zf_residual_rms_norm(y, *x, gamma, &d);
    }
    if (adds) *x = zf_add(*x, y);
    return name ? norm(*x, name, c) : *x;
}

/* The norm of q or k [B, T, heads width]. */
static zf_tensor query_norm(zf_tensor x, const char *name, const llm_config *c)
{
    const zf_shape s = zf_tensor_shape(x);
    const llm_query_norm kind = llm_family_of(c)->queries;
    if (kind != LLM_NORM_OF_HEADS) return kind ? norm(x, name, c) : x;
    x = zf_reshape(x, ZF_SHAPE(s.dims[0], s.dims[1], s.dims[2] / c->width, c->width));
    return zf_reshape(norm(x, name, c), s);
}

/* What layers share: the mask, of longrope the cosines and sines, and their routers. */
typedef struct shared {
    zf_tensor mask, cosine, sine;
    llm_routers *routers;
} shared;

/* Rope over the first c->rotated numbers of each head. */
static zf_tensor rotate(zf_tensor x, zf_rope_desc *rope, const shared *all, int64_t heads,
                        const llm_config *c)
{
    const zf_shape s = zf_tensor_shape(x);
    zf_tensor parts[2];
    rope->heads = heads;
    if (c->factors) return llm_rotate_by(x, all->cosine, all->sine, heads, c);
    if (!c->rotated || c->rotated == c->width) return zf_rope(x, rope);
    x = zf_reshape(x, ZF_SHAPE(s.dims[0], s.dims[1], heads, c->width));
    parts[0] = zf_reshape(zf_slice(x, 3, 0, c->rotated),
                          ZF_SHAPE(s.dims[0], s.dims[1], heads * c->rotated));
    parts[0] =
        zf_reshape(zf_rope(parts[0], rope), ZF_SHAPE(s.dims[0], s.dims[1], heads, c->rotated));
    parts[1] = zf_slice(x, 3, c->rotated, c->width);
    return zf_reshape(zf_concat(parts, 2, 3), s);
}

static zf_rope_desc rope_of(const llm_config *c, const causal_inputs *in, int64_t layer)
{
    const bool near = c->near_theta > 0 && !llm_is_full(c, layer);
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
static void project_groups(zf_tensor x, const zf_nn_linear_desc *d, const llm_config *c,
                           zf_tensor *q, zf_tensor *k, zf_tensor *v)
{
    const int64_t each = c->heads / c->kv_heads, of_k = c->kv_heads * c->width;
    const zf_shape s = zf_tensor_shape(x), keys = ZF_SHAPE(s.dims[0], s.dims[1], of_k);
    x = causal_linear(x, llm_family_of(c)->grouped, c->heads * c->width + 2 * of_k, d, c->bits);
    x = zf_reshape(x, ZF_SHAPE(s.dims[0], s.dims[1], c->kv_heads, each + 2, c->width));
    *q = zf_reshape(zf_slice(x, 3, 0, each), ZF_SHAPE(s.dims[0], s.dims[1], each * of_k));
    *k = zf_reshape(zf_slice(x, 3, each, each + 1), keys);
    *v = zf_reshape(zf_slice(x, 3, each + 1, each + 2), keys);
}

/* q, k and v of x [B, T, H], before norms and rope. */
static void project(zf_tensor x, const llm_config *c, zf_tensor *q, zf_tensor *k, zf_tensor *v)
{
    const llm_family_desc *family = llm_family_of(c);
    const zf_nn_linear_desc d = {.std = ZF_GIVEN(c->std),
                                 .no_bias = !c->attention_bias && !family->qkv_bias};
    const int64_t of_q = c->heads * c->width, of_k = c->kv_heads * c->width;
    zf_tensor all;
    if (family->grouped) {
        project_groups(x, &d, c, q, k, v);
        return;
    }
    if (!family->joined) {
        *q = causal_linear(x, "q_proj", of_q, &d, c->bits);
        *k = causal_linear(x, "k_proj", of_k, &d, c->bits);
        *v = causal_linear(x, "v_proj", of_k, &d, c->bits);
        return;
    }
    all = causal_linear(x, "qkv_proj", of_q + 2 * of_k, &d, c->bits);
    *q = zf_slice(all, 2, 0, of_q);
    *k = zf_slice(all, 2, of_q, of_q + of_k);
    *v = zf_slice(all, 2, of_q + of_k, of_q + 2 * of_k);
}

static zf_tensor attend(zf_tensor x, const shared *all, const causal_inputs *in,
                        const llm_config *c, int64_t layer)
{
    const zf_nn_linear_desc out = {.std = ZF_GIVEN(c->std), .no_bias = !c->attention_bias};
    zf_rope_desc rope = rope_of(c, in, layer);
    zf_attention_desc attention = {.heads = c->heads,
                                   .kv_heads = c->kv_heads,
                                   .scale = c->query ? 1 / sqrt((double)c->query) : c->score,
                                   .cap = c->cap,
                                   .dropout = c->attention_dropout,
                                   .causal = true,
                                   .window = llm_is_full(c, layer) ? 0 : c->window,
                                   .mask = all->mask};
    zf_tensor q, k, v;
    project(x, c, &q, &k, &v);
    causal_masks(&attention, in);
    causal_caches(&attention, in, c->kv_heads * c->width);
    q = query_norm(q, "q_norm", c), k = query_norm(k, "k_norm", c);
    if (!llm_is_plain(c, layer))
        q = rotate(q, &rope, all, c->heads, c), k = rotate(k, &rope, all, c->kv_heads, c);
    return causal_linear(zf_attention(q, k, v, &attention),
                         name_of(llm_family_of(c)->names.out, "o_proj"), c->hidden, &out, c->bits);
}

static zf_tensor feed_forward(zf_tensor x, const llm_config *c)
{
    const zf_nn_linear_desc linear = {.std = ZF_GIVEN(c->std), .no_bias = !c->mlp_bias};
    const int64_t n = c->intermediate;
    const llm_family_desc *family = llm_family_of(c);
    zf_tensor gate, up;
    if (family->mlp[0]) {
        up = causal_linear(x, family->mlp[0], n, &linear, c->bits);
        up = zf_nn_activation(up, (zf_activation)c->activation);
        return causal_linear(up, family->mlp[1], c->hidden, &linear, c->bits);
    }
    if (family->joined) {
        up = causal_linear(x, "gate_up_proj", 2 * n, &linear, c->bits);
        gate = zf_slice(up, 2, 0, n), up = zf_slice(up, 2, n, 2 * n);
    } else {
        gate = causal_linear(x, "gate_proj", n, &linear, c->bits);
        up = causal_linear(x, "up_proj", n, &linear, c->bits);
    }
    if (c->activation == ZF_ACTIVATION_SILU) gate = zf_swiglu(gate, up);
    else gate = zf_mul(zf_nn_activation(gate, (zf_activation)c->activation), up);
    return causal_linear(gate, "down_proj", c->hidden, &linear, c->bits);
}

static zf_tensor drop(zf_tensor x, double p, const llm_config *c)
{
    return llm_family_of(c)->dropouts ? zf_dropout(x, p) : x;
}

static const llm_norms *norms_of(const llm_config *c)
{
    const llm_family_desc *f = llm_family_of(c);
    return c->parallel == LLM_PARALLEL && f->parallel_norms.before_mlp ? &f->parallel_norms
                                                                       : &f->norms;
}

/* Layer i over the residual *x; y: what is to be added to it, and the same of this layer. */
static zf_tensor layer(zf_tensor *x, zf_tensor y, const shared *all, const causal_inputs *in,
                       const llm_config *c, int64_t i)
{
    const llm_names *names = &llm_family_of(c)->names;
    const llm_norms *norms = norms_of(c);
    zf_graph *g = x->graph;
    zf_tensor normed, first;
    zf_push(g, "%s.%lld", name_of(names->layers, "layers"), (long long)i);
    normed = add_norm(x, y, norms->before_attention, c);
    zf_push(g, "%s", name_of(names->attention, "self_attn"));
    y = attend(normed, all, in, c, i);
    zf_pop(g);
    if (norms->after_attention) y = norm(y, norms->after_attention, c);
    first = y = drop(causal_branch(y, in, i, c->layers, 0), c->dropout, c);
    if (c->parallel == LLM_PARALLEL) normed = norm(*x, norms->before_mlp, c);
    else if (!c->parallel) normed = add_norm(x, y, norms->before_mlp, c);
    zf_push(g, "%s", llm_is_sparse(c, i) ? name_of(llm_family_of(c)->expert_scope, "mlp") : "mlp");
    y = llm_is_sparse(c, i) ? llm_experts(normed, c, all->routers) : feed_forward(normed, c);
    zf_pop(g);
    if (norms->after_mlp) y = norm(y, norms->after_mlp, c);
    zf_pop(g);
    y = drop(causal_branch(y, in, i, c->layers, 1), c->dropout, c);
    return c->parallel ? zf_add(first, y) : y;
}

static zf_tensor head(zf_graph *g, const char *name, const llm_config *c)
{
    const zf_nn_embedding_desc table = {.std = ZF_GIVEN(c->std)};
    zf_tensor words;
    zf_push(g, "%s", name);
    words = causal_weight(g, "weight", c->vocab, c->hidden, ZF_GIVEN(c->std), c->bits);
    zf_pop(g);
    return zf_valid(words) ? words : zf_nn_embedding_table(g, name, c->vocab, c->hidden, &table);
}

/* ALiBi of the keys of a row, or in generation of those that caches have room for, with the padding
 * of rows. */
static void add_alibi(zf_graph *g, zf_tensor *mask, const llm_config *c, const sample_shape *s,
                      const causal_inputs *in)
{
    const zf_tensor alibi =
        llm_alibi(g, c->heads, zf_valid(in->past) ? in->decode.shape.context : s->sequence,
                  zf_valid(in->past) ? ZF_NONE : in->attention_mask);
    *mask = zf_valid(*mask) ? zf_add(alibi, *mask) : alibi;
}

/* What the head is given, [B T, H]; *words, its weight: the embedding, if they are tied or there is
 * no head. */
static zf_tensor body(zf_graph *g, const llm_config *c, const sample_shape *s,
                      const causal_inputs *in, llm_routers *routers, zf_tensor *words)
{
    zf_nn_embedding_desc table = {.std = ZF_GIVEN(c->std)};
    const llm_names names = llm_family_of(c)->names;
    shared all = {.mask = causal_padding(in, s), .routers = routers};
    zf_tensor x, y = ZF_NONE;
    if (c->alibi) add_alibi(g, &all.mask, c, s, in);
    if (c->factors) llm_longrope_table(g, c, s, in, &all.cosine, &all.sine);
    zf_push(g, "%s", name_of(names.model, "model"));
    *words = zf_nn_embedding_table(g, name_of(names.embedding, "embed_tokens"), c->vocab, c->hidden,
                                   &table);
    x = zf_embedding_ex(*words, in->input_ids,
                        &(zf_embedding_desc){.padded = c->pad >= 0, .padding = c->pad});
    if (c->embedding > 0) x = zf_scale(x, (float)c->embedding);
    if (names.embedding_norm) x = norm(x, names.embedding_norm, c);
    x = drop(x, llm_family_of(c)->one_dropout ? c->dropout : c->embedding_dropout, c);
    for (int64_t i = 0; i < c->layers; i++) y = layer(&x, y, &all, in, c, i);
    x = add_norm(&x, y, name_of(names.last_norm, "norm"), c);
    if (c->logits > 0) x = zf_scale(x, 1 / c->logits);
    zf_pop(g);
    if (!c->tied && !c->scores) *words = head(g, name_of(names.head, "lm_head"), c);
    return zf_reshape(x, ZF_SHAPE(s->batch * s->sequence, c->hidden));
}

zf_tensor llm_build(zf_graph *g, const llm_config *c, const sample_shape *s, sample_purpose purpose)
{
    sample_shape rows = *s;
    causal_inputs in = c->scores ? score_begin(g, &rows, purpose) : causal_begin(g, &rows, purpose);
    llm_routers routers = {.trains = purpose == SAMPLE_TRAIN};
    zf_tensor words, x;
    causal_blocks(&in, &rows, c->layout, c->heads);
    in.cap = c->last_cap, in.moved = c->experts > 0;
    if (routers.trains && c->experts)
        routers.layer = calloc((size_t)c->layers, sizeof *routers.layer);
    x = body(g, c, &rows, &in, &routers, &words);
    if (routers.layer && zf_valid(in.loss_weight)) in.penalty = llm_penalty(&routers, c, &in);
    x = llm_check_routers(x, &routers, c);
    free(routers.layer);
    return c->scores ? score_end(x, &rows, purpose) : causal_end(x, words, &in);
}

/* -------------------------------------------------------------------------------- to the frame */

/* Bloom's files may lack the prefix. */
static bool older_name(const char *name, char *older, size_t size)
{
    static const char prefix[] = "transformer.";
    if (strncmp(name, prefix, sizeof prefix - 1)) return false;
    snprintf(older, size, "%s", name + sizeof prefix - 1);
    return true;
}

static void build(zf_graph *g, const void *config, const sample_shape *shape,
                  sample_purpose purpose)
{
    llm_build(g, config, shape, purpose);
}

const sample_model llm_sample = {
    .program = "llm",
    .title = "Llama",
    .models = "15m 110m 160m moe-15m, or a config.json, perhaps of a folder; else that of\n"
              "                                    --load or --init, else 15m",
    .otherwise = "15m",
    .config = &llm_members,
    .build = build,
    .configure = llm_configure,
    .wrong = llm_wrong,
    .exchange = {.prefix = "model.",
                 .parts = ".experts.",
                 .older = older_name,
                 .within = "language_model.",
                 .others = {"vision_tower.", "multi_modal_projector.", "visual."},
                 .words = "model.embed_tokens.weight",
                 .other_words = "transformer.word_embeddings.weight",
                 .head = "lm_head.weight",
                 .score = "score.weight",
                 .inside = {"layers.", "embed_tokens.", "norm.", "gpt_neox.", "transformer."},
                 .heads = {"lm_head.", "embed_out.", "score."},
                 .buffers = {".rotary_emb.inv_freq", ".attention.bias", ".attention.masked_bias"}},
    .objective = &causal_objective,
};
