/* ModernBERT (Warner et al. 2024): rope, norms before each half and without biases, a gated MLP,
 * and of three layers two in which a token sees those around it alone.
 *
 *     x = norm(embedding)
 *     x += Wo attend(norm(x))                      the first layer has no norm there
 *     x += Wo (gelu(a) b),  a, b = Wi norm(x)      */
#include "../config.h"
#include "../../frame/options/fail.h"

#include <string.h>

static const char *const keys[] = {"global_attn_every_n_layers",
                                   "layer_types",
                                   "rope_parameters",
                                   "global_rope_theta",
                                   "local_rope_theta",
                                   "classifier_pooling",
                                   "classifier_dropout",
                                   /* how it runs, and how a new model begins */
                                   "deterministic_flash_attn", "reference_compile",
                                   "repad_logits_with_grad", "sparse_prediction",
                                   "sparse_pred_ignore_index", "initializer_cutoff_factor",
                                   "gradient_checkpointing", NULL};

static const char *const elsewhere[] = {"hidden_act",
                                        "hidden_dropout_prob",
                                        "attention_probs_dropout_prob",
                                        "type_vocab_size",
                                        "layer_norm_eps",
                                        "classifier_dropout",
                                        NULL};

#define AT(member) offsetof(bert_config, member)
static const zf_config_row rows[] = {
    {"hidden_activation", ZF_CONFIG_ACTIVATION, .at = AT(activation)},
    {"norm_eps", ZF_CONFIG_NUMBER, .at = AT(eps), .most = 1},
    {"norm_bias", ZF_CONFIG_TRUTH, .at = AT(norm_bias)},
    {"attention_bias", ZF_CONFIG_TRUTH, .at = AT(attention_bias)},
    {"mlp_bias", ZF_CONFIG_TRUTH, .at = AT(mlp_bias)},
    {"decoder_bias", ZF_CONFIG_TRUTH, .at = AT(decoder_bias)},
    {"classifier_bias", ZF_CONFIG_TRUTH, .at = AT(classifier_bias)},
    {"classifier_activation", ZF_CONFIG_ACTIVATION, .at = AT(classifier_activation)},
    {"attention_dropout", ZF_CONFIG_NUMBER, .at = AT(attention_dropout), .most = 0.999},
    {"mlp_dropout", ZF_CONFIG_NUMBER, .at = AT(dropout), .most = 0.999},
    {"embedding_dropout", ZF_CONFIG_NUMBER, .at = AT(embedding_dropout), .most = 0.999},
    {"bos_token_id", ZF_CONFIG_TOKEN, .at = AT(begin)},
    {"eos_token_id", ZF_CONFIG_TOKEN, .at = AT(end)},
    {"cls_token_id", ZF_CONFIG_TOKEN, .at = AT(cls)},
    {"sep_token_id", ZF_CONFIG_TOKEN, .at = AT(sep)},
    {"local_attention", ZF_CONFIG_COUNT, .at = AT(near), .least = 2, .most = 1 << 24},
    {.key = NULL}};

/* ------------------------------------------------------------------------------------ reading */

static bool is_near(const bert_config *c, int64_t layer)
{
    return (uint64_t)c->near_layers[layer / 64] >> layer % 64 & 1;
}

static void mark(bert_config *c, int64_t layer)
{
    c->near_layers[layer / 64] |= (int64_t)((uint64_t)1 << layer % 64);
}

/* layer_types, else one of so many layers sees all tokens. */
static void read_layers(bert_config *c, const zf_json *json, zf_error *error)
{
    const zf_json *types = zf_config_member(json, "layer_types");
    int64_t every = 3, layer = 0;
    zf_json_to_int(zf_config_member(json, "global_attn_every_n_layers"), 1, INT32_MAX, &every, error);
    for (int64_t k = 0; !types && k < c->layers; k++)
        if (k % every) mark(c, k);
    for (const zf_json *v = zf_json_first(types); v && !error->status; v = zf_json_next(v)) {
        const char *text = "";
        const bool room = layer < c->layers;
        zf_json_to_string(v, &text, error);
        if (!error->status && room && !strcmp(text, "sliding_attention")) mark(c, layer);
        else if (!error->status && strcmp(text, "full_attention"))
            zf_json_expected(v, error, "full_attention or sliding_attention");
        layer++;
    }
    if (types && !error->status && layer != c->layers)
        zf_json_expected(types, error, "a list of num_hidden_layers (%lld)", (long long)c->layers);
}

static void read_theta(const zf_json *json, const char *object, const char *key, double *theta,
                       zf_error *error)
{
    zf_rope_desc rope = {.theta = 0};
    const zf_json *v = zf_config_member(zf_config_member(json, "rope_parameters"), object);
    if (!zf_config_read_rope_object(v, zf_config_member(json, key), *theta, INT32_MAX, &rope, error))
        return;
    if (rope.scaling || rope.factor != 0) zf_json_fail(v, error, "is scaled, which is not read");
    *theta = rope.theta;
}

static void read(bert_config *c, const zf_json *json, zf_error *error)
{
    const zf_json *pooling = zf_config_member(json, "classifier_pooling");
    const char *text = "cls";
    if (c->layers > BERT_LAYERS) {
        zf_json_expected(zf_json_member(json, "num_hidden_layers"), error,
                         "at most %d in this family", (int)BERT_LAYERS);
        return;
    }
    read_layers(c, json, error);
    if (!error->status) read_theta(json, "full_attention", "global_rope_theta", &c->theta, error);
    if (!error->status)
        read_theta(json, "sliding_attention", "local_rope_theta", &c->near_theta, error);
    if (!zf_json_to_string(pooling, &text, error) && strcmp(text, "cls") && strcmp(text, "mean"))
        zf_json_expected(pooling, error, "cls or mean");
    c->mean = !strcmp(text, "mean");
}

static void write(const bert_config *c, zf_json_writer *w)
{
    zf_json_put_double_member(w, "global_rope_theta", c->theta);
    zf_json_put_double_member(w, "local_rope_theta", c->near_theta);
    zf_json_put_text_member(w, "classifier_pooling", c->mean ? "mean" : "cls");
    zf_json_put_key(w, "layer_types");
    zf_json_begin_array(w);
    for (int64_t k = 0; k < c->layers; k++)
        zf_json_put_string(w, is_near(c, k) ? "sliding_attention" : "full_attention");
    zf_json_end(w);
}

/* -------------------------------------------------------------------------------------- graph */

static zf_tensor norm(zf_tensor x, const char *name, const bert_config *c)
{
    zf_graph *g = x.graph;
    zf_tensor gamma;
    if (c->norm_bias) return zf_nn_layer_norm(x, name, c->eps);
    zf_push(g, "%s", name);
    gamma = zf_param(g, "weight", ZF_SHAPE(c->hidden), &(zf_param_desc){.init = ZF_ONES});
    zf_pop(g);
    return zf_layer_norm(x, gamma, zf_constant(g, ZF_F32, ZF_SHAPE(c->hidden), 0), c->eps);
}

static zf_tensor linear(zf_tensor x, const char *name, int64_t out, bool bias, const bert_config *c)
{
    return zf_nn_linear(x, name, out,
                        &(zf_nn_linear_desc){.std = ZF_GIVEN(c->std), .no_bias = !bias});
}

static zf_tensor attend(zf_tensor x, const bert_config *c, zf_attention_desc d, int64_t layer)
{
    const bool near = is_near(c, layer), bias = c->attention_bias != 0;
    const zf_rope_desc rope = {.heads = c->heads, .theta = near ? c->near_theta : c->theta};
    const int64_t h = c->hidden;
    const zf_tensor all = linear(x, "attn.Wqkv", 3 * h, bias, c);
    if (near) d.window = c->near / 2 + 1;
    x = zf_attention(zf_rope(zf_slice(all, 2, 0, h), &rope),
                     zf_rope(zf_slice(all, 2, h, 2 * h), &rope), zf_slice(all, 2, 2 * h, 3 * h),
                     &d);
    return zf_dropout(linear(x, "attn.Wo", h, bias, c), c->attention_dropout);
}

static zf_tensor feed_forward(zf_tensor x, const bert_config *c)
{
    const int64_t n = c->intermediate;
    const zf_tensor both = linear(x, "mlp.Wi", 2 * n, c->mlp_bias, c);
    x = zf_nn_activation(zf_slice(both, 2, 0, n), (zf_activation)c->activation);
    x = zf_dropout(zf_mul(x, zf_slice(both, 2, n, 2 * n)), c->dropout);
    return linear(x, "mlp.Wo", c->hidden, c->mlp_bias, c);
}

static zf_tensor body(zf_graph *g, const bert_config *c, const sample_shape *s, const bert_model *m,
                      zf_tensor *words)
{
    const zf_attention_desc attention = {
        .heads = c->heads,
        .dropout = c->attention_dropout,
        .mask = bert_seen(m),
        .blocks = zf_nn_blocks(g, c->layout, s->sequence, c->heads, false)};
    zf_layer_drop_desc drop = s->layer_drop;
    zf_tensor x, y;
    zf_push(g, "model");
    zf_push(g, "embeddings");
    *words = bert_words(g, "tok_embeddings", c);
    x = zf_embedding_ex(*words, m->input_ids,
                        &(zf_embedding_desc){.padded = c->pad >= 0, .padding = c->pad});
    x = zf_dropout(norm(x, "norm", c), c->embedding_dropout);
    zf_pop(g);
    drop.layers = c->layers;
    for (int64_t i = 0; i < c->layers; i++) {
        zf_push(g, "layers.%lld", (long long)i);
        drop.layer = i;
        drop.half = 0, y = attend(i ? norm(x, "attn_norm", c) : x, c, attention, i);
        x = zf_add(x, zf_layer_drop(y, &drop));
        drop.half = 1, y = feed_forward(norm(x, "mlp_norm", c), c);
        x = zf_add(x, zf_layer_drop(y, &drop));
        zf_pop(g);
    }
    x = norm(x, "final_norm", c);
    zf_pop(g);
    return x;
}

static zf_tensor transform(zf_tensor x, const bert_config *c)
{
    x = linear(x, "head.dense", c->hidden, c->classifier_bias, c);
    return norm(zf_nn_activation(x, (zf_activation)c->classifier_activation), "head.norm", c);
}

/* The mean over the tokens of each text. */
static zf_tensor mean_of(zf_tensor x, const bert_model *m)
{
    const zf_shape s = zf_tensor_shape(m->attention_mask);
    const zf_tensor seen =
        zf_reshape(zf_cast(m->attention_mask, ZF_F32), ZF_SHAPE(s.dims[0], s.dims[1], 1));
    const zf_reduce_desc of_tokens = {.axis = 1};
    /* A row that is not there has none. */
    const zf_tensor one = zf_constant(x.graph, ZF_F32, ZF_SCALAR, 1);
    return zf_div(zf_sum_ex(zf_mul(x, seen), &of_tokens),
                  zf_maximum(zf_sum_ex(seen, &of_tokens), one));
}

static zf_tensor classify(zf_tensor x, const bert_config *c, const bert_model *m)
{
    x = transform(c->mean ? mean_of(x, m) : bert_first(x), c);
    return linear(zf_dropout(x, c->classifier_dropout), "classifier", c->labels, true, c);
}

const bert_family_desc bert_modernbert = {
    .class = "ModernBert",
    .masked = "ModernBertForMaskedLM",
    .classifier = "ModernBertForSequenceClassification",
    .config = {.rows = rows,
               .keys = keys,
               .optional = elsewhere,
               .unwritten = elsewhere,
               .defaults = &(const bert_config){.vocab = 50368,
                                                .positions = 8192,
                                                .types = 1,
                                                .eps = 1e-5,
                                                .std = 0.02,
                                                .pad = 50283,
                                                .begin = 50281,
                                                .end = 50282,
                                                .cls = 50281,
                                                .sep = 50282,
                                                .tied = 1,
                                                .theta = 160000,
                                                .near_theta = 10000,
                                                .near = 128,
                                                .decoder_bias = 1}},
    .read = read,
    .write = write,
    .dropout = "classifier_dropout",
    .body = body,
    .head = {.decoder = "decoder", .bias = "decoder.bias"},
    .transform = transform,
    .classify = classify,
    .labels = "head.dense,head.norm,classifier",
};
