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
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
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
static zf_tensor padding_mask(zf_tensor causal, zf_tensor attention_mask, const lm_shape *s)
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
static zf_tensor body(zf_graph *g, const gpt_config *c, const lm_shape *s, const lm_model *m,
                      zf_tensor *words)
{
    zf_nn_embedding_desc table = {.std = c->std};
    zf_tensor positions, mask, x;
    zf_push(g, "transformer");
    *words = zf_nn_embedding_table(g, "wte", c->vocab, c->hidden, &table);
    positions = zf_nn_embedding_table(g, "wpe", c->positions, c->hidden, &table);
    x = zf_embedding(*words, m->input_ids);
    x = zf_dropout(zf_add(x, zf_slice(positions, 0, 0, s->sequence)), c->embedding_dropout);
    mask = causal_mask(g, s->sequence);
    if (s->masked) mask = padding_mask(mask, m->attention_mask, s);
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

static zf_tensor head(zf_tensor x, zf_tensor words)
{
    return zf_matmul_ex(x, words, &(zf_matmul_desc){.transpose_b = true});
}

lm_model gpt_build(zf_graph *g, const gpt_config *c, const lm_shape *s)
{
    lm_model m = {.input_ids = zf_input(g, "input_ids", ZF_I32, ZF_SHAPE(s->batch, s->sequence)),
                  .labels = zf_input(g, "labels", ZF_I32, ZF_SHAPE(s->batch, s->sequence)),
                  .loss_weight = zf_input(g, "loss_weight", ZF_F32, ZF_SCALAR),
                  .lr = zf_input(g, "lr", ZF_F32, ZF_SCALAR),
                  .attention_mask = {g, 0}};
    zf_tensor words, x;
    if (s->masked)
        m.attention_mask = zf_input(g, "attention_mask", ZF_U8, ZF_SHAPE(s->batch, s->sequence));
    x = body(g, c, s, &m, &words);
    m.loss = zf_cross_entropy(head(x, words), zf_reshape(m.labels, ZF_SHAPE(-1)), m.loss_weight);
    zf_output(m.loss, "loss");
    return m;
}

lm_model gpt_build_next(zf_graph *g, const gpt_config *c, const lm_shape *s)
{
    lm_model m = {.input_ids = zf_input(g, "input_ids", ZF_I32, ZF_SHAPE(s->batch, s->sequence)),
                  .last = zf_input(g, "last", ZF_I32, ZF_SHAPE(s->batch))};
    zf_tensor words, x = body(g, c, s, &m, &words);
    m.logits = zf_output(head(zf_gather_rows(x, m.last), words), "logits");
    return m;
}

/* ----------------------------------------------------------------------- Hugging Face weights */

static const char prefix[] = "transformer.";

/* A name without the prefix. */
static const char *bare(const char *name)
{
    return strncmp(name, prefix, sizeof prefix - 1) ? name : name + sizeof prefix - 1;
}

static bool ends_in(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);
    return n >= m && !strcmp(name + n - m, end);
}

/* A weight that files hold the other way round. */
static bool is_turned(zf_tensor param)
{
    return zf_tensor_shape(param).rank == 2 && strstr(zf_tensor_name(param), ".c_");
}

/* A tensor's shape in files. */
static zf_shape file_shape(zf_tensor param)
{
    zf_shape s = zf_tensor_shape(param);
    return is_turned(param) ? ZF_SHAPE(s.dims[1], s.dims[0]) : s;
}

/* to[column,row] = from[row,column], elements of `size` bytes. */
static void turn(char *to, const char *from, zf_shape shape, size_t size)
{
    size_t rows = (size_t)shape.dims[0], columns = (size_t)shape.dims[1];
    for (size_t row = 0; row < rows; row++)
        for (size_t column = 0; column < columns; column++)
            memcpy(to + (column * rows + row) * size, from + (row * columns + column) * size, size);
}

static const char head_name[] = "lm_head.weight", words[] = "wte.weight";

static int32_t find_name(const weights *w, const char *name)
{
    int32_t at = weights_find(w, name);
    return at < 0 ? weights_find(w, bare(name)) : at;
}

static int32_t find_words(const weights *w) { return find_name(w, "transformer.wte.weight"); }

/* The tensor that is parameter `name`; -1. Of a tied head, files have one or both. */
static int32_t find_param(weights *w, const char *name, bool tied, zf_error *error)
{
    int32_t at = find_name(w, name), other = -1;
    if (tied && !strcmp(bare(name), words)) other = weights_find(w, head_name);
    if (at < 0) return other;
    if (other >= 0 && weights_equal(w, at, other, error)) weights_pass(w, other);
    return at;
}

bool gpt_config_fit(gpt_config *c, const char *path, zf_error *error)
{
    weights *w = weights_open(path, error);
    if (!w) return false;
    if (!weights_equal(w, find_words(w), weights_find(w, head_name), error)) c->tied = 0;
    weights_close(w);
    return !error->status;
}

static bool import_param(zf_program *p, weights *w, int32_t at, zf_tensor param, zf_error *error)
{
    zf_shape shape = file_shape(param);
    float *values = weights_take(w, at, shape, error), *turned = NULL;
    size_t bytes = (size_t)zf_shape_count(shape) * sizeof *values;
    bool good = values != NULL;
    if (good && is_turned(param)) {
        good = (turned = malloc(bytes + 1)) != NULL;
        if (good) turn((char *)turned, (const char *)values, shape, sizeof *values);
        else fail(error, ZF_ERR_NOMEM, "out of memory");
    }
    good = good && !weights_put(p, param, turned ? turned : values, error);
    free(values);
    free(turned);
    return good;
}

/* Tensors of the transformer must all be the model's, so that a larger one is not taken for it;
 * heads may be of other tasks. Masks, which old files have as buffers, say nothing. */
static bool check_unused(const weights *w, weights_report *report, const char *path,
                         zf_error *error)
{
    static const char *const parts[] = {"h.", "wte.", "wpe.", "ln_f."};
    for (int32_t i = 0; i < weights_count(w); i++) {
        const char *name = weights_name(w, i);
        bool inside = false;
        if (weights_taken(w, i) || ends_in(name, ".attn.bias") ||
            ends_in(name, ".attn.masked_bias"))
            continue;
        for (int k = 0; k < 4; k++) inside |= !strncmp(bare(name), parts[k], strlen(parts[k]));
        if (inside)
            return fail(error, ZF_ERR_MISMATCH,
                        "%s: the model has no tensor %.200s; do the sizes of --model fit?", path,
                        name);
        if (!strcmp(name, head_name))
            return fail(error, ZF_ERR_MISMATCH,
                        "%s: %s differs from the word embedding, to which the model ties it: "
                        "its config.json must have \"tie_word_embeddings\": false",
                        path, name);
        weights_unused(report, name);
    }
    return true;
}

bool gpt_import(zf_program *p, zf_graph *g, const char *path, weights_report *report,
                zf_error *error)
{
    weights *w = weights_open(path, error);
    bool tied = !zf_valid(zf_graph_find(g, head_name)), good = w != NULL;
    *report = (weights_report){.fresh = 0};
    for (int32_t i = 0; i < zf_param_count(g) && good; i++) {
        zf_tensor param = zf_param_at(g, i);
        const char *name = zf_tensor_name(param);
        int32_t at = find_param(w, name, tied, error);
        if (error->status) good = false;
        else if (at >= 0) good = import_param(p, w, at, param, error);
        else if (!strcmp(name, head_name)) weights_fresh(report, name);
        else good = fail(error, ZF_ERR_MISMATCH, "%s: there is no tensor %s", path, name);
    }
    good = good && check_unused(w, report, path, error);
    weights_close(w);
    return good;
}

/* What is exported of the parameter: it, or the output that keeps its gradient, if any. */
static zf_tensor exported(zf_graph *g, zf_tensor param, bool gradients)
{
    char name[300];
    snprintf(name, sizeof name, "gradient/%s", zf_tensor_name(param));
    return gradients ? zf_graph_find(g, name) : param;
}

static bool export_tensor(zf_program *p, zf_safetensors_writer *w, int32_t index, zf_tensor param,
                          zf_tensor from, zf_dtype dtype, zf_error *error)
{
    size_t count = (size_t)zf_shape_count(zf_tensor_shape(param)), size = zf_dtype_size(dtype);
    float *values = malloc(count * sizeof *values + 1);
    char *data = malloc(count * sizeof(double) + 1), *turned = malloc(count * size + 1);
    zf_status status = ZF_OK;
    if (!values || !data || !turned) {
        status = ZF_ERR_NOMEM;
        fail(error, status, "out of memory");
    } else if (from.id != param.id) { /* a gradient */
        status = zf_read(p, from, data, count * size);
        if (status) fail(error, status, "%s", zf_program_error(p));
    } else if (!(status = weights_get(p, param, values, error))) {
        zf_convert(data, dtype, values, ZF_F32, count);
    }
    if (!status) {
        if (is_turned(param)) turn(turned, data, zf_tensor_shape(param), size);
        status = zf_safetensors_write(w, index, is_turned(param) ? turned : data, count * size);
    }
    free(values);
    free(data);
    free(turned);
    return !status;
}

bool gpt_export(zf_program *p, zf_graph *g, const char *path, bool gradients, zf_dtype dtype,
                zf_error *error)
{
    zf_safetensors_writer *w = zf_safetensors_writer_new(path, NULL, error);
    bool good = w != NULL;
    int32_t written = 0;
    for (int writing = 0; writing < 2; writing++)
        for (int32_t i = 0; i < zf_param_count(g) && good; i++) {
            zf_tensor t = zf_param_at(g, i), from = exported(g, t, gradients);
            zf_dtype type = gradients && zf_valid(from) ? zf_tensor_dtype(from) : dtype;
            if (!zf_valid(from)) continue;
            if (writing) good = export_tensor(p, w, written++, t, from, type, error);
            else zf_safetensors_declare(w, zf_tensor_name(t), type, file_shape(t));
        }
    /* The writer's own error is told by its end. */
    if (w && (good || !error->status)) good = !zf_safetensors_finish(w, error);
    zf_safetensors_writer_free(w);
    return good;
}

/* -------------------------------------------------------------------------------- to the frame */

static bool load(const char *name, void *config, zf_error *error)
{
    return gpt_config_load(name, config, error);
}

static bool fit(void *config, const char *path, zf_error *error)
{
    return gpt_config_fit(config, path, error);
}

static zf_json_writer *json_of(const void *config) { return gpt_config_json(config); }

static lm_facts facts(void *config)
{
    gpt_config *c = config;
    return (lm_facts){
        .vocab = &c->vocab,
        .positions = &c->positions,
        .tied = &c->tied,
        .end = &c->end,
        .dropouts = {&c->residual_dropout, &c->embedding_dropout, &c->attention_dropout}};
}

static lm_model build(zf_graph *g, const void *config, const lm_shape *shape, bool next)
{
    return next ? gpt_build_next(g, config, shape) : gpt_build(g, config, shape);
}

static bool is_head(const char *param) { return !strcmp(param, "lm_head.weight"); }

const lm_kind gpt_kind = {
    .program = "gpt",
    .title = "GPT-2",
    .models = "small 124m 355m 774m 1558m, or a config.json, perhaps of a folder; else that of\n"
              "                                    --load or --init, else small",
    .otherwise = "small",
    .config_bytes = sizeof(gpt_config),
    .load = load,
    .fit = fit,
    .json = json_of,
    .facts = facts,
    .build = build,
    .import = gpt_import,
    .export = gpt_export,
    .is_head = is_head,
};
