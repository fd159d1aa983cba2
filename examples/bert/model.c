#include "model.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------ configuration */

static const struct {
    const char *name;
    int64_t layers, hidden, heads;
} sizes[] = {
    {"tiny", 2, 128, 2},   {"mini", 4, 256, 4},   {"small", 4, 512, 8},
    {"medium", 8, 512, 8}, {"base", 12, 768, 12}, {"large", 24, 1024, 16},
};

bool bert_config_load(const char *name, bert_config *c, zf_error *error)
{
    const zf_json *v;
    zf_json *json;
    const char *act = NULL, *position = NULL;
    *c = (bert_config){.vocab = 30522,
                       .positions = 512,
                       .types = 2,
                       .eps = 1e-12,
                       .dropout = 0.1,
                       .attention_dropout = 0.1,
                       .std = 0.02};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        if (!strcmp(name, sizes[i].name)) {
            c->layers = sizes[i].layers, c->hidden = sizes[i].hidden, c->heads = sizes[i].heads;
            c->intermediate = 4 * c->hidden;
            return true;
        }
    if (!strchr(name, '.') && !strchr(name, '/')) {
        error->status = ZF_ERR_ARGUMENT;
        snprintf(error->text, sizeof error->text,
                 "model \"%.100s\" is none of tiny, mini, small, medium, base, large, and no "
                 "config.json",
                 name);
        return false;
    }
    json = zf_json_read(name, NULL, error);
    if (!json) return false;
    zf_json_to_int(zf_json_require(json, "vocab_size", error), 8, INT32_MAX, &c->vocab, error);
    zf_json_to_int(zf_json_require(json, "hidden_size", error), 1, 1 << 20, &c->hidden, error);
    zf_json_to_int(zf_json_require(json, "num_hidden_layers", error), 1, 1 << 16, &c->layers,
                   error);
    v = zf_json_require(json, "num_attention_heads", error);
    zf_json_to_int(v, 1, 1 << 16, &c->heads, error);
    if (!error->status && c->hidden % c->heads)
        zf_json_expected(v, error, "a divisor of hidden_size (%lld)", (long long)c->hidden);
    zf_json_to_int(zf_json_require(json, "intermediate_size", error), 1, 1 << 22, &c->intermediate,
                   error);
    zf_json_to_int(zf_json_member(json, "max_position_embeddings"), 8, 1 << 24, &c->positions,
                   error);
    zf_json_to_int(zf_json_member(json, "type_vocab_size"), 2, 1 << 16, &c->types, error);
    zf_json_to_double(zf_json_member(json, "layer_norm_eps"), 0, 1, &c->eps, error);
    zf_json_to_double(zf_json_member(json, "hidden_dropout_prob"), 0, 0.999, &c->dropout, error);
    zf_json_to_double(zf_json_member(json, "attention_probs_dropout_prob"), 0, 0.999,
                      &c->attention_dropout, error);
    zf_json_to_double(zf_json_member(json, "initializer_range"), 0, 10, &c->std, error);
    v = zf_json_member(json, "hidden_act");
    zf_json_to_string(v, &act, error);
    if (!error->status && act && strcmp(act, "gelu")) zf_json_expected(v, error, "\"gelu\"");
    v = zf_json_member(json, "position_embedding_type");
    zf_json_to_string(v, &position, error);
    if (!error->status && position && strcmp(position, "absolute"))
        zf_json_expected(v, error, "\"absolute\"");
    zf_json_free(json);
    return !error->status;
}

zf_json_writer *bert_config_json(const bert_config *c)
{
    zf_json_writer *w = zf_json_writer_new(2, NULL);
    zf_json_begin_object(w);
    zf_json_put_key(w, "architectures");
    zf_json_begin_array(w);
    zf_json_put_string(w, "BertForPreTraining");
    zf_json_end(w);
    zf_json_put_key(w, "model_type"), zf_json_put_string(w, "bert");
    zf_json_put_key(w, "vocab_size"), zf_json_put_int(w, c->vocab);
    zf_json_put_key(w, "hidden_size"), zf_json_put_int(w, c->hidden);
    zf_json_put_key(w, "num_hidden_layers"), zf_json_put_int(w, c->layers);
    zf_json_put_key(w, "num_attention_heads"), zf_json_put_int(w, c->heads);
    zf_json_put_key(w, "intermediate_size"), zf_json_put_int(w, c->intermediate);
    zf_json_put_key(w, "max_position_embeddings"), zf_json_put_int(w, c->positions);
    zf_json_put_key(w, "type_vocab_size"), zf_json_put_int(w, c->types);
    zf_json_put_key(w, "layer_norm_eps"), zf_json_put_double(w, c->eps);
    zf_json_put_key(w, "hidden_act"), zf_json_put_string(w, "gelu");
    zf_json_put_key(w, "hidden_dropout_prob"), zf_json_put_double(w, c->dropout);
    zf_json_put_key(w, "attention_probs_dropout_prob"), zf_json_put_double(w, c->attention_dropout);
    zf_json_put_key(w, "initializer_range"), zf_json_put_double(w, c->std);
    zf_json_end(w);
    return w;
}

/* -------------------------------------------------------------------------------------- graph */

/* Word, position and type embeddings, normalised: [B, T, H]. */
static zf_tensor embed(zf_graph *g, const bert_config *c, const bert_shape *s, const bert_model *m,
                       zf_tensor words)
{
    zf_nn_embedding_desc table = {.std = c->std};
    zf_tensor positions, types, x;
    zf_push(g, "embeddings");
    positions = zf_nn_embedding_table(g, "position_embeddings", c->positions, c->hidden, &table);
    types = zf_nn_embedding_table(g, "token_type_embeddings", c->types, c->hidden, &table);
    x = zf_add(zf_embedding(words, m->input_ids), zf_embedding(types, m->token_type_ids));
    x = zf_add(x, zf_slice(positions, 0, 0, s->sequence));
    x = zf_dropout(zf_nn_layer_norm(x, "LayerNorm", c->eps), c->dropout);
    zf_pop(g);
    return x;
}

/* Added to the scores: 0 where there is a token, so far below where there is none that its softmax
 * is 0: [B, 1, 1, T]. */
static zf_tensor mask_bias(zf_graph *g, const bert_shape *s, const bert_model *m)
{
    zf_tensor mask = zf_reshape(m->attention_mask, ZF_SHAPE(s->batch, 1, 1, s->sequence));
    return zf_where(mask, zf_constant(g, ZF_F32, ZF_SCALAR, 0),
                    zf_constant(g, ZF_F32, ZF_SCALAR, -1e9));
}

/* The masked-language head over the labelled positions: logits [P, vocab] by the tied word
 * embedding. */
static zf_tensor predict(zf_graph *g, const bert_config *c, const bert_shape *s,
                         const bert_model *m, zf_tensor words, zf_tensor x)
{
    zf_nn_linear_desc linear = {.std = c->std};
    zf_push(g, "cls.predictions");
    x = zf_gather_rows(zf_reshape(x, ZF_SHAPE(s->batch * s->sequence, c->hidden)), m->positions);
    x = zf_nn_layer_norm(zf_gelu(zf_nn_linear(x, "transform.dense", c->hidden, &linear)),
                         "transform.LayerNorm", c->eps);
    x = zf_matmul_ex(x, words, &(zf_matmul_desc){.transpose_b = true});
    x = zf_add(x, zf_param(g, "bias", ZF_SHAPE(c->vocab), NULL));
    zf_pop(g);
    return x;
}

/* Labelled positions whose best guess is the label. Ignored ones have the label -100, which no
 * guess is. */
static zf_tensor count_correct(zf_graph *g, zf_tensor logits, zf_tensor labels)
{
    zf_tensor hit = zf_equal(zf_argmax_ex(logits, &(zf_reduce_desc){.axis = -1}), labels);
    return zf_sum(
        zf_where(hit, zf_constant(g, ZF_F32, ZF_SCALAR, 1), zf_constant(g, ZF_F32, ZF_SCALAR, 0)));
}

bert_model bert_build(zf_graph *g, const bert_config *c, const bert_shape *s, bool keep_logits)
{
    zf_nn_encoder_desc block = {.heads = c->heads,
                                .intermediate = c->intermediate,
                                .dropout = c->dropout,
                                .attention_dropout = c->attention_dropout,
                                .eps = c->eps,
                                .std = c->std};
    zf_nn_linear_desc linear = {.std = c->std};
    bert_model m = {
        .input_ids = zf_input(g, "input_ids", ZF_I32, ZF_SHAPE(s->batch, s->sequence)),
        .token_type_ids = zf_input(g, "token_type_ids", ZF_I32, ZF_SHAPE(s->batch, s->sequence)),
        .attention_mask = zf_input(g, "attention_mask", ZF_U8, ZF_SHAPE(s->batch, s->sequence)),
        .positions = zf_input(g, "positions", ZF_I32, ZF_SHAPE(s->predictions)),
        .labels = zf_input(g, "labels", ZF_I32, ZF_SHAPE(s->predictions)),
        .next_sentence_label = zf_input(g, "next_sentence_label", ZF_I32, ZF_SHAPE(s->batch)),
        .mlm_weight = zf_input(g, "mlm_weight", ZF_F32, ZF_SCALAR),
        .nsp_weight = zf_input(g, "nsp_weight", ZF_F32, ZF_SCALAR),
        .lr = zf_input(g, "lr", ZF_F32, ZF_SCALAR),
    };
    zf_tensor words, x, bias, first, nsp_logits;

    zf_push(g, "bert");
    zf_push(g, "embeddings");
    words = zf_nn_embedding_table(g, "word_embeddings", c->vocab, c->hidden,
                                  &(zf_nn_embedding_desc){.std = c->std});
    zf_pop(g);
    x = embed(g, c, s, &m, words);
    bias = mask_bias(g, s, &m);
    for (int64_t i = 0; i < c->layers; i++) {
        zf_push(g, "encoder.layer.%lld", (long long)i);
        x = zf_nn_encoder_block(x, bias, &block);
        zf_pop(g);
    }
    first = zf_reshape(zf_slice(x, 1, 0, 1), ZF_SHAPE(s->batch, c->hidden));
    first = zf_tanh(zf_nn_linear(first, "pooler.dense", c->hidden, &linear));
    zf_pop(g);

    m.mlm_logits = predict(g, c, s, &m, words, x);
    nsp_logits = zf_nn_linear(first, "cls.seq_relationship", 2, &linear);
    m.mlm_loss = zf_output(zf_cross_entropy(m.mlm_logits, m.labels, m.mlm_weight), "mlm_loss");
    m.nsp_loss =
        zf_output(zf_cross_entropy(nsp_logits, m.next_sentence_label, m.nsp_weight), "nsp_loss");
    m.loss = zf_output(zf_add(m.mlm_loss, m.nsp_loss), "loss");
    m.mlm_correct = zf_output(count_correct(g, m.mlm_logits, m.labels), "mlm_correct");
    if (keep_logits) zf_output(m.mlm_logits, "mlm_logits");
    return m;
}

/* ----------------------------------------------------------------------- Hugging Face weights */

__attribute__((format(printf, 3, 4))) static zf_status fail(zf_error *error, zf_status status,
                                                            const char *format, ...)
{
    va_list args;
    va_start(args, format);
    error->status = status;
    vsnprintf(error->text, sizeof error->text, format, args);
    va_end(args);
    return status;
}

/* `name` with its last word replaced: x.LayerNorm.weight -> x.LayerNorm.gamma. False when it has
 * none of LayerNorm's. */
static bool old_name(const char *name, char *old, size_t size)
{
    const char *norm = strstr(name, "LayerNorm.");
    if (!norm) return false;
    snprintf(old, size, "%.*s%s", (int)(norm - name) + 10, name,
             strcmp(norm + 10, "weight") ? "beta" : "gamma");
    return true;
}

/* The tensor that is parameter `name`, by any of the names it goes by; -1. */
static int32_t find_tensor(zf_safetensors *file, const char *name)
{
    char old[300];
    const char *bare = strncmp(name, "bert.", 5) ? NULL : name + 5;
    int32_t at = zf_safetensors_find(file, name);
    if (at < 0 && bare) at = zf_safetensors_find(file, bare);
    if (at < 0 && old_name(name, old, sizeof old)) at = zf_safetensors_find(file, old);
    if (at < 0 && bare && old_name(bare, old, sizeof old)) at = zf_safetensors_find(file, old);
    if (at < 0 && !strcmp(name, "cls.predictions.bias"))
        at = zf_safetensors_find(file, "cls.predictions.decoder.bias");
    if (at < 0 && !strcmp(name, "bert.embeddings.word_embeddings.weight"))
        at = zf_safetensors_find(file, "cls.predictions.decoder.weight");
    return at;
}

const char *bert_shape_text(char text[BERT_SHAPE_TEXT], zf_shape shape)
{
    int at = snprintf(text, BERT_SHAPE_TEXT, "[");
    for (int axis = 0; axis < shape.rank; axis++)
        at += snprintf(text + at, (size_t)(BERT_SHAPE_TEXT - at), "%s%lld", axis ? "," : "",
                       (long long)shape.dims[axis]);
    snprintf(text + at, (size_t)(BERT_SHAPE_TEXT - at), "]");
    return text;
}

/* The master weights of a parameter, the invalid tensor where it has none. */
static zf_tensor master_of(zf_tensor param)
{
    static const char *const kinds[] = {"adamw.master", "lamb.master"};
    zf_tensor master = {param.graph, 0};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds && !zf_valid(master); k++) {
        char name[400];
        snprintf(name, sizeof name, "%s/%s", kinds[k], zf_tensor_name(param));
        master = zf_graph_find(param.graph, name);
    }
    return master;
}

/* Writes f32 values, rounded to the dtype of the parameter; its master weights are not rounded. */
static zf_status write_values(zf_program *p, zf_tensor param, const float *values, void *room)
{
    zf_tensor master = master_of(param);
    zf_status status;
    zf_convert(room, zf_tensor_dtype(param), values, ZF_F32,
               (size_t)zf_shape_count(zf_tensor_shape(param)));
    status = zf_write(p, param, room, zf_tensor_bytes(param));
    if (!status && zf_valid(master)) status = zf_write(p, master, values, zf_tensor_bytes(master));
    return status;
}

static zf_status import_tensor(zf_program *p, zf_safetensors *file, int32_t at, zf_tensor param,
                               const char *path, zf_error *error)
{
    const zf_safetensors_entry *e = zf_safetensors_at(file, at);
    zf_shape want = zf_tensor_shape(param);
    size_t count = (size_t)zf_shape_count(want);
    void *data;
    float *values;
    zf_status status;
    char here[BERT_SHAPE_TEXT], wanted[BERT_SHAPE_TEXT];
    if (strcmp(bert_shape_text(here, e->shape), bert_shape_text(wanted, want)))
        return fail(error, ZF_ERR_MISMATCH,
                    "%s: %s is %s, the model's is %s; do the sizes of --model fit?", path, e->name,
                    here, wanted);
    if (!e->readable || e->dtype > ZF_F64)
        return fail(error, ZF_ERR_DTYPE, "%s: %s is %s; F32, F64, BF16 or F16 is needed", path,
                    e->name, e->dtype_name);
    data = malloc((e->bytes > zf_tensor_bytes(param) ? e->bytes : zf_tensor_bytes(param)) + 1);
    values = malloc((count + 1) * sizeof *values);
    status = data && values ? zf_safetensors_read(file, at, data, e->bytes, error)
                            : fail(error, ZF_ERR_NOMEM, "out of memory");
    if (!status) zf_convert(values, ZF_F32, data, e->dtype, count);
    if (!status && (status = write_values(p, param, values, data)))
        fail(error, status, "%s", zf_program_error(p));
    free(data);
    free(values);
    return status;
}

zf_status bert_import(zf_program *p, zf_graph *g, const char *path, int *fresh, zf_error *error)
{
    zf_safetensors *file = zf_safetensors_open(path, NULL, error);
    zf_status status = ZF_OK;
    *fresh = 0;
    if (!file) return error->status;
    for (int32_t i = 0; i < zf_param_count(g) && !status; i++) {
        zf_tensor param = zf_param_at(g, i);
        const char *name = zf_tensor_name(param);
        int32_t at = find_tensor(file, name);
        if (at >= 0) status = import_tensor(p, file, at, param, path, error);
        else if (!strncmp(name, "cls.", 4) || !strncmp(name, "bert.pooler.", 12)) ++*fresh;
        else status = fail(error, ZF_ERR_MISMATCH, "%s: there is no tensor %s", path, name);
    }
    zf_safetensors_close(file);
    return status;
}

/* What is exported of the parameter: it, or the output that keeps its gradient, if any. */
static zf_tensor exported(zf_graph *g, zf_tensor param, bool gradients)
{
    char name[300];
    snprintf(name, sizeof name, "gradient/%s", zf_tensor_name(param));
    return gradients ? zf_graph_find(g, name) : param;
}

zf_status bert_export(zf_program *p, zf_graph *g, const char *path, bool gradients, zf_error *error)
{
    zf_safetensors_writer *w = path ? zf_safetensors_writer_new(path, NULL, error) : NULL;
    zf_status status = ZF_OK;
    int32_t written = 0;
    if (path && !w) return error->status;
    for (int32_t i = 0; i < zf_param_count(g) && w; i++) {
        zf_tensor t = zf_param_at(g, i);
        if (zf_valid(exported(g, t, gradients)))
            zf_safetensors_declare(w, zf_tensor_name(t), zf_tensor_dtype(t), zf_tensor_shape(t));
    }
    for (int32_t i = 0; i < zf_param_count(g) && !status; i++) {
        zf_tensor t = exported(g, zf_param_at(g, i), gradients);
        size_t bytes = zf_tensor_bytes(t);
        void *data;
        if (!zf_valid(t)) continue;
        data = malloc(bytes + 1);
        if (!data) status = fail(error, ZF_ERR_NOMEM, "out of memory");
        else if ((status = zf_read(p, t, data, bytes)))
            fail(error, status, "%s", zf_program_error(p));
        else if (w) status = zf_safetensors_write(w, written++, data, bytes);
        free(data);
    }
    if (w && (!status || !error->status)) status = zf_safetensors_finish(w, error);
    zf_safetensors_writer_free(w);
    return status;
}
