/* BERT's weights from Hugging Face's files and back. */
#include "../common/fail.h"
#include "model.h"

#include <stdlib.h>
#include <string.h>

static const char words[] = "bert.embeddings.word_embeddings.weight",
                  decoder[] = "cls.predictions.decoder.weight", bias[] = "cls.predictions.bias",
                  decoder_bias[] = "cls.predictions.decoder.bias";

static bool begins(const char *text, const char *with)
{
    return !strncmp(text, with, strlen(with));
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

/* The tensor of that name, with "bert." or without, with LayerNorm's names or older ones; -1. */
static int32_t find_name(const weights *w, const char *name)
{
    char old[300];
    const char *bare = begins(name, "bert.") ? name + 5 : NULL;
    int32_t at = weights_find(w, name);
    if (at < 0 && bare) at = weights_find(w, bare);
    if (at < 0 && old_name(name, old, sizeof old)) at = weights_find(w, old);
    if (at < 0 && bare && old_name(bare, old, sizeof old)) at = weights_find(w, old);
    return at;
}

/* The tensor that is parameter `name`. Where two are tied, files have one or both of them; of two
 * biases that differ transformers adds the decoder's. */
static int32_t find_param(weights *w, const char *name, bool tied, zf_error *error)
{
    int32_t at = find_name(w, name), other = -1;
    if (!strcmp(name, bias)) other = at, at = weights_find(w, decoder_bias);
    if (tied && !strcmp(name, words)) other = weights_find(w, decoder);
    if (at < 0) return other;
    if (other >= 0 && weights_equal(w, at, other, error)) weights_pass(w, other);
    return at;
}

bool bert_config_fit(bert_config *c, const char *path, bool *has_nsp, zf_error *error)
{
    weights *w = weights_open(path, error);
    if (!w) return false;
    if (!weights_equal(w, find_name(w, words), weights_find(w, decoder), error)) c->tied = 0;
    if (has_nsp) *has_nsp = weights_find(w, "cls.seq_relationship.weight") >= 0;
    weights_close(w);
    return !error->status;
}

/* Buffers that old files have: they are what they are in every model. */
static bool is_buffer(const char *name)
{
    if (begins(name, "bert.")) name += 5;
    return !strcmp(name, "embeddings.position_ids") || !strcmp(name, "embeddings.token_type_ids");
}

/* A tensor that nothing has taken: the embeddings and layers of the file must all be the model's,
 * heads may be of other tasks. */
static zf_status check_unused(const weights *w, const char *name, weights_report *report,
                              const char *path, zf_error *error)
{
    const char *bare = begins(name, "bert.") ? name + 5 : name;
    if (is_buffer(name)) return ZF_OK;
    if (begins(bare, "embeddings.") || begins(bare, "encoder."))
        return fail_with(error, ZF_ERR_MISMATCH,
                         "%s: the model has no tensor %.200s; do the sizes of --model fit?", path,
                         name);
    if (!strcmp(name, decoder) && weights_find(w, decoder) >= 0)
        return fail_with(error, ZF_ERR_MISMATCH,
                         "%s: %s differs from the word embedding, to which the model ties it: its "
                         "config.json must have \"tie_word_embeddings\": false",
                         path, decoder);
    weights_unused(report, name);
    return ZF_OK;
}

static zf_status import_param(zf_program *p, weights *w, int32_t at, zf_tensor param,
                              zf_error *error)
{
    float *values = weights_take(w, at, zf_tensor_shape(param), error);
    zf_status status = values ? weights_put(p, param, values, error) : error->status;
    free(values);
    return status;
}

zf_status bert_import(zf_program *p, zf_graph *g, const char *path, weights_report *report,
                      zf_error *error)
{
    weights *w = weights_open(path, error);
    bool tied = !zf_valid(zf_graph_find(g, decoder));
    zf_status status = ZF_OK;
    *report = (weights_report){.fresh = 0};
    if (!w) return error->status;
    for (int32_t i = 0; i < zf_param_count(g) && !status; i++) {
        zf_tensor param = zf_param_at(g, i);
        const char *name = zf_tensor_name(param);
        int32_t at = find_param(w, name, tied, error);
        if (error->status) status = error->status;
        else if (at >= 0) status = import_param(p, w, at, param, error);
        else if (begins(name, "cls.") || begins(name, "bert.pooler.")) weights_fresh(report, name);
        else status = fail_with(error, ZF_ERR_MISMATCH, "%s: there is no tensor %s", path, name);
    }
    for (int32_t i = 0; i < weights_count(w) && !status; i++)
        if (!weights_taken(w, i)) status = check_unused(w, weights_name(w, i), report, path, error);
    weights_close(w);
    return status;
}

/* What is exported of the parameter: it, or the output that keeps its gradient, if any. */
static zf_tensor exported(zf_graph *g, zf_tensor param, bool gradients)
{
    char name[300];
    snprintf(name, sizeof name, "gradient/%s", zf_tensor_name(param));
    return gradients ? zf_graph_find(g, name) : param;
}

/* Declares the tensors of the file: an untied decoder's bias under both of its names. */
static void declare(zf_safetensors_writer *w, zf_graph *g, bool gradients, zf_dtype dtype)
{
    for (int32_t i = 0; i < zf_param_count(g); i++) {
        zf_tensor t = zf_param_at(g, i), from = exported(g, t, gradients);
        if (!zf_valid(from)) continue;
        zf_safetensors_declare(w, zf_tensor_name(t), gradients ? zf_tensor_dtype(from) : dtype,
                               zf_tensor_shape(t));
        if (!strcmp(zf_tensor_name(t), bias) && !gradients && zf_valid(zf_graph_find(g, decoder)))
            zf_safetensors_declare(w, decoder_bias, dtype, zf_tensor_shape(t));
    }
}

/* Writes one of them, which another rank may do, as number *index. */
static zf_status export_tensor(zf_program *p, zf_safetensors_writer *w, int32_t *index,
                               zf_tensor param, zf_tensor from, zf_dtype dtype, zf_error *error)
{
    bool gradient = from.id != param.id, twice = !gradient &&
                                                 !strcmp(zf_tensor_name(param), bias) &&
                                                 zf_valid(zf_graph_find(param.graph, decoder));
    size_t count = (size_t)zf_shape_count(zf_tensor_shape(param)),
           bytes = count * zf_dtype_size(gradient ? zf_tensor_dtype(from) : dtype);
    float *values = malloc(count * sizeof *values + 1);
    void *data = malloc(count * sizeof(double) + 1);
    zf_status status = values && data ? ZF_OK : fail_with(error, ZF_ERR_NOMEM, "out of memory");
    if (!status && gradient) {
        status = zf_read(p, from, data, bytes);
        if (status) fail_with(error, status, "%s", zf_program_error(p));
    } else if (!status && !(status = weights_get(p, param, values, error)))
        zf_convert(data, dtype, values, ZF_F32, count);
    for (int copy = 0; copy < 1 + twice && !status && w; copy++)
        status = zf_safetensors_write(w, (*index)++, data, bytes);
    free(values);
    free(data);
    return status;
}

zf_status bert_export(zf_program *p, zf_graph *g, const char *path, bool gradients, zf_dtype dtype,
                      zf_error *error)
{
    zf_safetensors_writer *w = path ? zf_safetensors_writer_new(path, NULL, error) : NULL;
    zf_status status = ZF_OK;
    int32_t written = 0;
    if (path && !w) return error->status;
    if (w) declare(w, g, gradients, dtype);
    for (int32_t i = 0; i < zf_param_count(g) && !status; i++) {
        zf_tensor t = zf_param_at(g, i), from = exported(g, t, gradients);
        if (zf_valid(from)) status = export_tensor(p, w, &written, t, from, dtype, error);
    }
    if (w && (!status || !error->status)) status = zf_safetensors_finish(w, error);
    zf_safetensors_writer_free(w);
    return status;
}
