#include "model.h"
#include "../common/config.h"
#include "../common/fail.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------ configuration */

static const struct {
    const char *name;
    int64_t layers, hidden, heads, vocab;
} sizes[] = {
    {"small", 4, 256, 4, 8192},    {"124m", 12, 768, 12, 50257},   {"355m", 24, 1024, 16, 50257},
    {"774m", 36, 1280, 20, 50257}, {"1558m", 48, 1600, 25, 50257},
};

/* A key of GPT-2's, or the name that other models have for it, which transformers takes as well. */
static const zf_json *either(const zf_json *json, const char *key, const char *other)
{
    const zf_json *v = config_member(json, key);
    return v ? v : config_member(json, other);
}

static void need(const zf_json *json, const char *key, const char *other, int64_t most,
                 int64_t *out, zf_error *error)
{
    const zf_json *v = either(json, key, other);
    zf_json_to_int(v ? v : zf_json_require(json, key, error), 1, most, out, error);
}

/* Refuses what this model computes in another way. */
static void expect_gpt(const zf_json *json, zf_error *error)
{
    config_expect_plain(json, "gpt2", error);
    config_expect_bool(json, "scale_attn_weights", true, error);
    config_expect_bool(json, "add_cross_attention", false, error);
}

bool gpt_config_load(const char *name, gpt_config *c, zf_error *error)
{
    const zf_json *v;
    zf_json *json;
    bool tied = true, inverse_layer = false, upcast = false;
    *c = (gpt_config){.vocab = 50257,
                      .activation = ZF_ACTIVATION_GELU_TANH,
                      .tied = 1,
                      .end = -1,
                      .positions = 1024,
                      .eps = 1e-5,
                      .embedding_dropout = 0.1,
                      .attention_dropout = 0.1,
                      .residual_dropout = 0.1,
                      .std = 0.02};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] && !config_is_path(name); i++)
        if (!strcmp(name, sizes[i].name)) {
            c->layers = sizes[i].layers, c->hidden = sizes[i].hidden, c->heads = sizes[i].heads;
            c->vocab = sizes[i].vocab, c->intermediate = 4 * c->hidden;
            return true;
        }
    if (!config_is_path(name))
        return fail(error, ZF_ERR_ARGUMENT,
                    "model \"%.100s\" is none of small, 124m, 355m, 774m, 1558m, and no "
                    "config.json",
                    name);
    json = config_read(name, error);
    if (!json) return false;
    zf_json_to_int(zf_json_require(json, "vocab_size", error), 8, INT32_MAX, &c->vocab, error);
    v = either(json, "n_positions", "max_position_embeddings");
    zf_json_to_int(v ? v : config_member(json, "n_ctx"), 1, 1 << 24, &c->positions, error);
    need(json, "n_embd", "hidden_size", 1 << 20, &c->hidden, error);
    need(json, "n_layer", "num_hidden_layers", 1 << 16, &c->layers, error);
    need(json, "n_head", "num_attention_heads", 1 << 16, &c->heads, error);
    if (!error->status && c->hidden % c->heads)
        zf_json_expected(either(json, "n_head", "num_attention_heads"), error,
                         "a divisor of n_embd (%lld)", (long long)c->hidden);
    c->intermediate = 4 * c->hidden;
    zf_json_to_int(config_member(json, "n_inner"), 1, 1 << 22, &c->intermediate, error);
    zf_json_to_double(config_member(json, "layer_norm_epsilon"), 0, 1, &c->eps, error);
    zf_json_to_double(config_member(json, "embd_pdrop"), 0, 0.999, &c->embedding_dropout, error);
    zf_json_to_double(config_member(json, "attn_pdrop"), 0, 0.999, &c->attention_dropout, error);
    zf_json_to_double(config_member(json, "resid_pdrop"), 0, 0.999, &c->residual_dropout, error);
    zf_json_to_double(config_member(json, "initializer_range"), 0, 10, &c->std, error);
    config_activation(json, "activation_function", &c->activation, error);
    zf_json_to_bool(config_member(json, "tie_word_embeddings"), &tied, error);
    zf_json_to_bool(config_member(json, "scale_attn_by_inverse_layer_idx"), &inverse_layer, error);
    zf_json_to_bool(config_member(json, "reorder_and_upcast_attn"), &upcast, error);
    c->tied = tied, c->inverse_layer = inverse_layer, c->upcast = upcast;
    v = config_member(json, "eos_token_id");
    if (!error->status) zf_json_to_int(v, 0, c->vocab - 1, &c->end, error);
    expect_gpt(json, error);
    zf_json_free(json);
    return !error->status;
}

zf_json_writer *gpt_config_json(const gpt_config *c)
{
    zf_json_writer *w = zf_json_writer_new(2, NULL);
    zf_json_begin_object(w);
    zf_json_put_key(w, "architectures");
    zf_json_begin_array(w);
    zf_json_put_string(w, "GPT2LMHeadModel");
    zf_json_end(w);
    zf_json_put_key(w, "model_type"), zf_json_put_string(w, "gpt2");
    zf_json_put_key(w, "vocab_size"), zf_json_put_int(w, c->vocab);
    zf_json_put_key(w, "n_positions"), zf_json_put_int(w, c->positions);
    zf_json_put_key(w, "n_embd"), zf_json_put_int(w, c->hidden);
    zf_json_put_key(w, "n_layer"), zf_json_put_int(w, c->layers);
    zf_json_put_key(w, "n_head"), zf_json_put_int(w, c->heads);
    zf_json_put_key(w, "n_inner"), zf_json_put_int(w, c->intermediate);
    zf_json_put_key(w, "activation_function");
    zf_json_put_string(w, config_activation_name(c->activation));
    zf_json_put_key(w, "layer_norm_epsilon"), zf_json_put_double(w, c->eps);
    zf_json_put_key(w, "embd_pdrop"), zf_json_put_double(w, c->embedding_dropout);
    zf_json_put_key(w, "attn_pdrop"), zf_json_put_double(w, c->attention_dropout);
    zf_json_put_key(w, "resid_pdrop"), zf_json_put_double(w, c->residual_dropout);
    zf_json_put_key(w, "initializer_range"), zf_json_put_double(w, c->std);
    zf_json_put_key(w, "tie_word_embeddings"), zf_json_put_bool(w, c->tied);
    if (c->inverse_layer)
        zf_json_put_key(w, "scale_attn_by_inverse_layer_idx"), zf_json_put_bool(w, true);
    if (c->upcast) zf_json_put_key(w, "reorder_and_upcast_attn"), zf_json_put_bool(w, true);
    for (int k = 0; k < 2; k++) {
        zf_json_put_key(w, k ? "eos_token_id" : "bos_token_id");
        if (c->end < 0) zf_json_put_null(w);
        else zf_json_put_int(w, c->end);
    }
    zf_json_end(w);
    return w;
}

/* -------------------------------------------------------------------------------------- graph */

/* Added to the scores: 0 where the key s is not behind the query t, else -inf: [T, T]. */
static zf_tensor causal_mask(zf_graph *g, int64_t tokens)
{
    double *numbers = malloc((size_t)tokens * sizeof *numbers);
    zf_tensor s, t, seen, hidden;
    for (int64_t i = 0; i < tokens && numbers; i++) numbers[i] = (double)i;
    s = zf_values(g, ZF_I32, ZF_SHAPE(tokens), numbers);
    t = zf_reshape(s, ZF_SHAPE(tokens, 1));
    free(numbers);
    seen = zf_constant(g, ZF_F32, ZF_SCALAR, 0);
    hidden = zf_constant(g, ZF_F32, ZF_SCALAR, -INFINITY);
    return zf_where(zf_less(t, s), hidden, seen);
}

/* The same where some keys are padding, so far below the others that their softmax is 0, though not
 * where all are padding: [B, 1, T, T]. */
static zf_tensor padding_mask(zf_tensor causal, zf_tensor attention_mask, const sample_shape *s)
{
    zf_graph *g = causal.graph;
    zf_tensor keys = zf_reshape(attention_mask, ZF_SHAPE(s->batch, 1, 1, s->sequence));
    return zf_add(causal, zf_where(keys, zf_constant(g, ZF_F32, ZF_SCALAR, 0),
                                   zf_constant(g, ZF_F32, ZF_SCALAR, -1e9)));
}

/* A third of x [B, T, 3 H] cut into heads: [B, heads, T, H / heads]. */
static zf_tensor heads(zf_tensor x, int third, const gpt_config *c)
{
    zf_shape s = zf_tensor_shape(x);
    x = zf_slice(x, 2, third * c->hidden, (third + 1) * c->hidden);
    x = zf_reshape(x, ZF_SHAPE(s.dims[0], s.dims[1], c->heads, c->hidden / c->heads));
    return zf_transpose(x, 1, 2);
}

/* x [B, T, H] -> the same, of layer `number`, from 1 on. What is added to x begins the smaller the
 * more layers add to it. */
static zf_tensor block(zf_tensor x, zf_tensor mask, const gpt_config *c, int64_t number)
{
    zf_nn_linear_desc in = {.std = c->std}, out = {.std = c->std / sqrt(2.0 * (double)c->layers)};
    zf_tensor y, q, k, v;
    y = zf_nn_linear(zf_nn_layer_norm(x, "ln_1", c->eps), "attn.c_attn", 3 * c->hidden, &in);
    q = heads(y, 0, c), k = heads(y, 1, c), v = heads(y, 2, c);
    if (c->inverse_layer && number > 1) q = zf_scale(q, 1 / (double)number);
    y = zf_nn_attention(q, k, v, mask, c->attention_dropout);
    y = zf_reshape(zf_transpose(y, 1, 2), zf_tensor_shape(x));
    y = zf_nn_linear(y, "attn.c_proj", c->hidden, &out);
    x = zf_add(x, zf_dropout(y, c->residual_dropout));

    y = zf_nn_linear(zf_nn_layer_norm(x, "ln_2", c->eps), "mlp.c_fc", c->intermediate, &in);
    y = zf_nn_linear(zf_nn_activation(y, (zf_activation)c->activation), "mlp.c_proj", c->hidden,
                     &out);
    return zf_add(x, zf_dropout(y, c->residual_dropout));
}

/* What the head is given, [B T, H]; *words, its weight: the embedding, if they are tied. */
static zf_tensor body(zf_graph *g, const gpt_config *c, const sample_shape *s,
                      const causal_inputs *in, zf_tensor *words)
{
    zf_nn_embedding_desc table = {.std = c->std};
    zf_tensor positions, mask, x;
    zf_push(g, "transformer");
    *words = zf_nn_embedding_table(g, "wte", c->vocab, c->hidden, &table);
    positions = zf_nn_embedding_table(g, "wpe", c->positions, c->hidden, &table);
    x = zf_embedding(*words, in->input_ids);
    x = zf_dropout(zf_add(x, zf_slice(positions, 0, 0, s->sequence)), c->embedding_dropout);
    mask = causal_mask(g, s->sequence);
    if (s->masked) mask = padding_mask(mask, in->attention_mask, s);
    for (int64_t i = 0; i < c->layers; i++) {
        zf_push(g, "h.%lld", (long long)i);
        x = block(x, mask, c, i + 1);
        zf_pop(g);
    }
    x = zf_nn_layer_norm(x, "ln_f", c->eps);
    zf_pop(g);
    if (!c->tied) *words = zf_nn_embedding_table(g, "lm_head", c->vocab, c->hidden, &table);
    return zf_reshape(x, ZF_SHAPE(s->batch * s->sequence, c->hidden));
}

zf_tensor gpt_build(zf_graph *g, const gpt_config *c, const sample_shape *s, sample_purpose purpose)
{
    causal_inputs in = causal_begin(g, s, purpose);
    zf_tensor words, x = body(g, c, s, &in, &words);
    return causal_end(x, words, &in);
}

/* -------------------------------------------------------------------------------- to the frame */

/* A weight of GPT-2's Conv1D. */
static bool is_turned(zf_tensor param)
{
    return zf_tensor_shape(param).rank == 2 && strstr(zf_tensor_name(param), ".c_");
}

static bool load(const char *name, void *config, zf_error *error)
{
    return gpt_config_load(name, config, error);
}

static zf_json_writer *json_of(const void *config) { return gpt_config_json(config); }

static sample_facts facts(void *config)
{
    gpt_config *c = config;
    return (sample_facts){
        .vocab = &c->vocab,
        .positions = &c->positions,
        .tied = &c->tied,
        .end = &c->end,
        .dropouts = {&c->residual_dropout, &c->embedding_dropout, &c->attention_dropout}};
}

static void build(zf_graph *g, const void *config, const sample_shape *shape,
                  sample_purpose purpose)
{
    gpt_build(g, config, shape, purpose);
}

const sample_model gpt_sample = {
    .program = "gpt",
    .title = "GPT-2",
    .models = "small 124m 355m 774m 1558m, or a config.json, perhaps of a folder; else that of\n"
              "                                    --load or --init, else small",
    .otherwise = "small",
    .config_bytes = sizeof(gpt_config),
    .load = load,
    .json = json_of,
    .facts = facts,
    .build = build,
    .exchange = {.prefix = "transformer.",
                 .words = "transformer.wte.weight",
                 .head = "lm_head.weight",
                 .inside = {"h.", "wte.", "wpe.", "ln_f."},
                 .heads = {"lm_head."},
                 .buffers = {".attn.bias", ".attn.masked_bias"},
                 .turned = is_turned},
    .objective = &causal_objective,
};
