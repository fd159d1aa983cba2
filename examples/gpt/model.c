#include "model.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

bool gpt_fail(zf_error *error, zf_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    error->status = status;
    vsnprintf(error->text, sizeof error->text, format, args);
    va_end(args);
    return false;
}

/* ------------------------------------------------------------------------------ configuration */

static const struct {
    const char *name;
    int64_t layers, hidden, heads, vocab;
} sizes[] = {
    {"small", 4, 256, 4, 8192},    {"124m", 12, 768, 12, 50257},   {"355m", 24, 1024, 16, 50257},
    {"774m", 36, 1280, 20, 50257}, {"1558m", 48, 1600, 25, 50257},
};

static void expect(const zf_json *json, const char *key, const char *wanted, zf_error *error)
{
    const zf_json *v = zf_json_member(json, key);
    const char *text = NULL;
    zf_json_to_string(v, &text, error);
    if (!error->status && text && strcmp(text, wanted))
        zf_json_expected(v, error, "\"%s\"", wanted);
}

static void expect_bool(const zf_json *json, const char *key, bool wanted, zf_error *error)
{
    const zf_json *v = zf_json_member(json, key);
    bool is = wanted;
    zf_json_to_bool(v, &is, error);
    if (!error->status && is != wanted) zf_json_expected(v, error, wanted ? "true" : "false");
}

bool gpt_config_load(const char *name, gpt_config *c, zf_error *error)
{
    const zf_json *v;
    zf_json *json;
    *c = (gpt_config){.vocab = 50257,
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
    if (!strchr(name, '.') && !strchr(name, '/'))
        return gpt_fail(error, ZF_ERR_ARGUMENT,
                        "model \"%.100s\" is none of small, 124m, 355m, 774m, 1558m, and no "
                        "config.json",
                        name);
    json = zf_json_read(name, NULL, error);
    if (!json) return false;
    zf_json_to_int(zf_json_require(json, "vocab_size", error), 8, INT32_MAX, &c->vocab, error);
    zf_json_to_int(zf_json_member(json, "n_positions"), 1, 1 << 24, &c->positions, error);
    zf_json_to_int(zf_json_require(json, "n_embd", error), 1, 1 << 20, &c->hidden, error);
    zf_json_to_int(zf_json_require(json, "n_layer", error), 1, 1 << 16, &c->layers, error);
    v = zf_json_require(json, "n_head", error);
    zf_json_to_int(v, 1, 1 << 16, &c->heads, error);
    if (!error->status && c->hidden % c->heads)
        zf_json_expected(v, error, "a divisor of n_embd (%lld)", (long long)c->hidden);
    c->intermediate = 4 * c->hidden;
    v = zf_json_member(json, "n_inner");
    if (zf_json_type_of(v) != ZF_JSON_NULL) zf_json_to_int(v, 1, 1 << 22, &c->intermediate, error);
    zf_json_to_double(zf_json_member(json, "layer_norm_epsilon"), 0, 1, &c->eps, error);
    zf_json_to_double(zf_json_member(json, "embd_pdrop"), 0, 0.999, &c->embedding_dropout, error);
    zf_json_to_double(zf_json_member(json, "attn_pdrop"), 0, 0.999, &c->attention_dropout, error);
    zf_json_to_double(zf_json_member(json, "resid_pdrop"), 0, 0.999, &c->residual_dropout, error);
    zf_json_to_double(zf_json_member(json, "initializer_range"), 0, 10, &c->std, error);
    expect(json, "activation_function", "gelu_new", error);
    expect_bool(json, "tie_word_embeddings", true, error);
    expect_bool(json, "scale_attn_weights", true, error);
    expect_bool(json, "scale_attn_by_inverse_layer_idx", false, error);
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
    zf_json_put_key(w, "activation_function"), zf_json_put_string(w, "gelu_new");
    zf_json_put_key(w, "layer_norm_epsilon"), zf_json_put_double(w, c->eps);
    zf_json_put_key(w, "embd_pdrop"), zf_json_put_double(w, c->embedding_dropout);
    zf_json_put_key(w, "attn_pdrop"), zf_json_put_double(w, c->attention_dropout);
    zf_json_put_key(w, "resid_pdrop"), zf_json_put_double(w, c->residual_dropout);
    zf_json_put_key(w, "initializer_range"), zf_json_put_double(w, c->std);
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

/* A third of x [B, T, 3 H] cut into heads: [B, heads, T, H / heads]. */
static zf_tensor heads(zf_tensor x, int third, const gpt_config *c)
{
    zf_shape s = zf_tensor_shape(x);
    x = zf_slice(x, 2, third * c->hidden, (third + 1) * c->hidden);
    x = zf_reshape(x, ZF_SHAPE(s.dims[0], s.dims[1], c->heads, c->hidden / c->heads));
    return zf_transpose(x, 1, 2);
}

/* x [B, T, H] -> the same. What is added to x begins the smaller the more layers add to it. */
static zf_tensor block(zf_tensor x, zf_tensor mask, const gpt_config *c)
{
    zf_nn_linear_desc in = {.std = c->std}, out = {.std = c->std / sqrt(2.0 * (double)c->layers)};
    zf_tensor y, q, k, v;
    y = zf_nn_linear(zf_nn_layer_norm(x, "ln_1", c->eps), "attn.c_attn", 3 * c->hidden, &in);
    q = heads(y, 0, c), k = heads(y, 1, c), v = heads(y, 2, c);
    y = zf_nn_attention(q, k, v, mask, c->attention_dropout);
    y = zf_reshape(zf_transpose(y, 1, 2), zf_tensor_shape(x));
    y = zf_nn_linear(y, "attn.c_proj", c->hidden, &out);
    x = zf_add(x, zf_dropout(y, c->residual_dropout));

    y = zf_nn_linear(zf_nn_layer_norm(x, "ln_2", c->eps), "mlp.c_fc", c->intermediate, &in);
    y = zf_nn_linear(zf_gelu_tanh(y), "mlp.c_proj", c->hidden, &out);
    return zf_add(x, zf_dropout(y, c->residual_dropout));
}

/* What the head is given, [B T, H]; *words, the embedding that it shares. */
static zf_tensor body(zf_graph *g, const gpt_config *c, const gpt_shape *s, zf_tensor input_ids,
                      zf_tensor *words)
{
    zf_nn_embedding_desc table = {.std = c->std};
    zf_tensor positions, mask, x;
    zf_push(g, "transformer");
    *words = zf_nn_embedding_table(g, "wte", c->vocab, c->hidden, &table);
    positions = zf_nn_embedding_table(g, "wpe", c->positions, c->hidden, &table);
    x = zf_embedding(*words, input_ids);
    x = zf_dropout(zf_add(x, zf_slice(positions, 0, 0, s->sequence)), c->embedding_dropout);
    mask = causal_mask(g, s->sequence);
    for (int64_t i = 0; i < c->layers; i++) {
        zf_push(g, "h.%lld", (long long)i);
        x = block(x, mask, c);
        zf_pop(g);
    }
    x = zf_nn_layer_norm(x, "ln_f", c->eps);
    zf_pop(g);
    return zf_reshape(x, ZF_SHAPE(s->batch * s->sequence, c->hidden));
}

static zf_tensor head(zf_tensor x, zf_tensor words)
{
    return zf_matmul_ex(x, words, &(zf_matmul_desc){.transpose_b = true});
}

gpt_model gpt_build(zf_graph *g, const gpt_config *c, const gpt_shape *s)
{
    gpt_model m = {.input_ids = zf_input(g, "input_ids", ZF_I32, ZF_SHAPE(s->batch, s->sequence)),
                   .labels = zf_input(g, "labels", ZF_I32, ZF_SHAPE(s->batch, s->sequence)),
                   .loss_weight = zf_input(g, "loss_weight", ZF_F32, ZF_SCALAR),
                   .lr = zf_input(g, "lr", ZF_F32, ZF_SCALAR)};
    zf_tensor words, x = body(g, c, s, m.input_ids, &words);
    m.loss = zf_cross_entropy(head(x, words), zf_reshape(m.labels, ZF_SHAPE(-1)), m.loss_weight);
    zf_output(m.loss, "loss");
    return m;
}

gpt_model gpt_build_next(zf_graph *g, const gpt_config *c, const gpt_shape *s)
{
    gpt_model m = {.input_ids = zf_input(g, "input_ids", ZF_I32, ZF_SHAPE(s->batch, s->sequence)),
                   .last = zf_input(g, "last", ZF_I32, ZF_SHAPE(s->batch))};
    zf_tensor words, x = body(g, c, s, m.input_ids, &words);
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

enum { SHAPE_TEXT = 21 * ZF_MAX_RANK + 2 };

static const char *shape_text(char text[SHAPE_TEXT], zf_shape shape)
{
    int at = snprintf(text, SHAPE_TEXT, "[");
    for (int axis = 0; axis < shape.rank; axis++)
        at += snprintf(text + at, (size_t)(SHAPE_TEXT - at), "%s%lld", axis ? "," : "",
                       (long long)shape.dims[axis]);
    snprintf(text + at, (size_t)(SHAPE_TEXT - at), "]");
    return text;
}

/* The tensor that is parameter `name`, by any of the names it goes by; -1. */
static int32_t find_tensor(zf_safetensors *file, const char *name)
{
    int32_t at = zf_safetensors_find(file, name);
    if (at < 0) at = zf_safetensors_find(file, bare(name));
    if (at < 0 && !strcmp(bare(name), "wte.weight"))
        at = zf_safetensors_find(file, "lm_head.weight");
    return at;
}

/* Writes f32 values, rounded to the dtype of the parameter; its master weights, which it has where
 * it is trained in another precision, are not rounded. */
static zf_status write_values(zf_program *p, zf_tensor param, const float *values)
{
    void *rounded = malloc(zf_tensor_bytes(param));
    char name[300];
    zf_tensor master;
    zf_status status = rounded ? ZF_OK : ZF_ERR_NOMEM;
    snprintf(name, sizeof name, "adamw.master/%s", zf_tensor_name(param));
    master = zf_graph_find(param.graph, name);
    if (rounded)
        zf_convert(rounded, zf_tensor_dtype(param), values, ZF_F32,
                   (size_t)zf_shape_count(zf_tensor_shape(param)));
    if (!status) status = zf_write(p, param, rounded, zf_tensor_bytes(param));
    if (!status && zf_valid(master)) status = zf_write(p, master, values, zf_tensor_bytes(master));
    free(rounded);
    return status;
}

static bool import_tensor(zf_program *p, zf_safetensors *file, int32_t at, zf_tensor param,
                          const char *path, zf_error *error)
{
    const zf_safetensors_entry *e = zf_safetensors_at(file, at);
    zf_shape want = file_shape(param);
    size_t count = (size_t)zf_shape_count(want);
    char here[SHAPE_TEXT], wanted[SHAPE_TEXT];
    void *data, *values, *turned;
    zf_status status;
    if (strcmp(shape_text(here, e->shape), shape_text(wanted, want)))
        return gpt_fail(error, ZF_ERR_MISMATCH,
                        "%s: %s is %s, the model's is %s; do the sizes of --model fit?", path,
                        e->name, here, wanted);
    if (!e->readable || e->dtype > ZF_F64)
        return gpt_fail(error, ZF_ERR_DTYPE, "%s: %s is %s; F32, F64, BF16 or F16 is needed", path,
                        e->name, e->dtype_name);
    data = malloc(e->bytes);
    values = malloc(count * sizeof(float)), turned = malloc(count * sizeof(float));
    if (!data || !values || !turned)
        status = ZF_ERR_NOMEM, gpt_fail(error, status, "out of memory");
    else status = zf_safetensors_read(file, at, data, e->bytes, error);
    if (!status) {
        zf_convert(values, ZF_F32, data, e->dtype, count);
        if (is_turned(param)) turn(turned, values, want, sizeof(float));
        status = write_values(p, param, is_turned(param) ? turned : values);
        if (status) gpt_fail(error, status, "%s", zf_program_error(p));
    }
    free(data);
    free(values);
    free(turned);
    return !status;
}

/* Every tensor of the file belongs to the model, so that a larger one is not taken for it. */
static bool all_known(zf_safetensors *file, zf_graph *g, const char *path, zf_error *error)
{
    for (int32_t i = 0; i < zf_safetensors_count(file); i++) {
        const char *name = zf_safetensors_at(file, i)->name;
        char full[300];
        if (ends_in(name, ".attn.bias") || ends_in(name, ".attn.masked_bias") ||
            !strcmp(name, "lm_head.weight"))
            continue;
        snprintf(full, sizeof full, "%s%s", prefix, bare(name));
        if (!zf_valid(zf_graph_find(g, full)))
            return gpt_fail(error, ZF_ERR_MISMATCH,
                            "%s: the model has no tensor %.200s; do the sizes of --model fit?",
                            path, name);
    }
    return true;
}

bool gpt_import(zf_program *p, zf_graph *g, const char *path, zf_error *error)
{
    zf_safetensors *file = zf_safetensors_open(path, NULL, error);
    bool good = file && all_known(file, g, path, error);
    for (int32_t i = 0; i < zf_param_count(g) && good; i++) {
        zf_tensor param = zf_param_at(g, i);
        int32_t at = find_tensor(file, zf_tensor_name(param));
        if (at >= 0) good = import_tensor(p, file, at, param, path, error);
        else
            good = gpt_fail(error, ZF_ERR_MISMATCH, "%s: there is no tensor %s", path,
                            zf_tensor_name(param));
    }
    zf_safetensors_close(file);
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
                          zf_tensor values, zf_error *error)
{
    size_t bytes = zf_tensor_bytes(values);
    char *data = malloc(bytes + 1), *turned = malloc(bytes + 1);
    zf_status status = ZF_ERR_NOMEM;
    if (!data || !turned) gpt_fail(error, status, "out of memory");
    else if ((status = zf_read(p, values, data, bytes)))
        gpt_fail(error, status, "%s", zf_program_error(p));
    if (!status) {
        if (is_turned(param))
            turn(turned, data, zf_tensor_shape(param), zf_dtype_size(zf_tensor_dtype(values)));
        status = zf_safetensors_write(w, index, is_turned(param) ? turned : data, bytes);
    }
    free(data);
    free(turned);
    return !status;
}

bool gpt_export(zf_program *p, zf_graph *g, const char *path, bool gradients, zf_error *error)
{
    zf_safetensors_writer *w = zf_safetensors_writer_new(path, NULL, error);
    bool good = w != NULL;
    int32_t written = 0;
    for (int32_t i = 0; i < zf_param_count(g) && good; i++) {
        zf_tensor t = zf_param_at(g, i), values = exported(g, t, gradients);
        if (zf_valid(values))
            zf_safetensors_declare(w, zf_tensor_name(t), zf_tensor_dtype(values), file_shape(t));
    }
    for (int32_t i = 0; i < zf_param_count(g) && good; i++) {
        zf_tensor t = zf_param_at(g, i), values = exported(g, t, gradients);
        if (zf_valid(values)) good = export_tensor(p, w, written++, t, values, error);
    }
    /* The writer's own error is told by its end. */
    if (w && (good || !error->status)) good = !zf_safetensors_finish(w, error);
    zf_safetensors_writer_free(w);
    return good;
}
