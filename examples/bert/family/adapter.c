/* The labels of a model with an adapter. */
#include "../config.h"
#include "../../frame/options/fail.h"

#include <string.h>
#include <unistd.h>

/* The rows of the weight that labels are computed by, in PEFT's files; 0: they have none, -1 with
 * *error. */
static int64_t head_rows(const char *adapter, zf_error *error)
{
    static const char *const heads[] = {"base_model.model.classifier.weight",
                                        "base_model.model.classifier.out_proj.weight"};
    char path[ZF_FOLDER_PATH];
    zf_safetensors *f;
    int64_t rows = 0;
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", adapter);
    if (!(f = zf_safetensors_open(path, NULL, error))) return -1;
    for (int k = 0; k < 2; k++) {
        const zf_safetensors_entry *head = zf_safetensors_at(f, zf_safetensors_find(f, heads[k]));
        if (head && head->shape.rank == 2) rows = head->shape.dims[0];
    }
    zf_safetensors_close(f);
    return rows;
}

/* The labels of config.json next to the adapter; without one, or of one that says nothing of them,
 * those of the base, or as many as the head has. */
static bool take_labels(bert_config *c, const char *adapter, int64_t rows, zf_error *error)
{
    static bert_config own;
    char path[ZF_FOLDER_PATH];
    size_t at = 0;
    snprintf(path, sizeof path, "%s/config.json", adapter);
    own.task = BERT_PREDICTS;
    if (!access(path, F_OK) && !bert_config_load(path, &own, error)) return false;
    if (own.task) {
        c->task = own.task, c->labels = own.labels;
        memcpy(c->names, own.names, sizeof c->names);
    } else if (!c->task && rows <= (int64_t)sizeof c->names / 16) {
        for (int64_t k = 0; k < rows; k++)
            at += (size_t)snprintf(c->names + at, sizeof c->names - at, "LABEL_%lld\n", (long long)k);
        c->labels = rows, c->task = rows == 1 ? BERT_REGRESSES : BERT_CLASSIFIES;
    }
    c->nsp = 0;
    return c->labels == rows ||
           fail(error, ZF_ERR_MISMATCH,
                "%.300s is an adapter with a head of %lld labels, and the model has %lld", adapter,
                (long long)rows, (long long)c->labels);
}

bool bert_adapt(void *config, const char *adapter, zf_error *error)
{
    bert_config *c = config;
    const int64_t rows = zf_adapter_is_at(adapter) ? head_rows(adapter, error) : 0;
    if (!zf_adapter_is_at(adapter)) return true; /* opening it says so */
    if (rows < 0) return false;
    if (rows) return take_labels(c, adapter, rows, error);
    return !c->task || fail(error, ZF_ERR_MISMATCH,
                            "%.300s is an adapter of a model that predicts words: it has no head for "
                            "the labels of the model",
                            adapter);
}
