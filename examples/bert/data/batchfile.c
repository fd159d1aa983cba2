#include "batchfile.h"
#include "../../../zeroflow_llm.h"
#include "../../frame/data/integers.h"
#include "../../frame/options/fail.h"

#include <stdlib.h>
#include <string.h>

enum { IDS, TYPES, MASK, LABELS, NEXT, TENSORS };

/* Fills entry `s` from the file's arrays; its label arrays have room for file->predictions. */
static void fill(bert_batch_file *f, int64_t s, int64_t *const data[TENSORS])
{
    bert_batch *b = &f->batch[s];
    int64_t tokens = f->examples * f->sequence;
    b->examples = (int32_t)f->examples, b->sequence = (int32_t)f->sequence;
    b->predictions = (int32_t)f->predictions;
    for (int64_t i = 0; i < tokens; i++) {
        int64_t label = data[LABELS][s * tokens + i];
        b->input_ids[i] = (int32_t)data[IDS][s * tokens + i];
        b->token_type_ids[i] = data[TYPES] ? (int32_t)data[TYPES][s * tokens + i] : 0;
        b->attention_mask[i] = data[MASK] ? (uint8_t)data[MASK][s * tokens + i] : 1;
        b->tokens += b->attention_mask[i];
        if (label == -100) continue;
        b->positions[b->labelled] = (int32_t)i;
        b->labels[b->labelled++] = (int32_t)label;
    }
    for (int64_t p = b->labelled; p < f->predictions; p++) b->positions[p] = 0, b->labels[p] = -100;
    for (int64_t e = 0; e < f->examples; e++) {
        b->next_sentence_label[e] = data[NEXT] ? (int32_t)data[NEXT][s * f->examples + e] : -100;
        b->pairs += b->next_sentence_label[e] != -100;
    }
}

static bool allocate(bert_batch_file *f)
{
    size_t tokens = (size_t)(f->examples * f->sequence), rows = (size_t)f->predictions;
    f->batch = calloc((size_t)f->entries, sizeof *f->batch);
    for (int64_t s = 0; s < f->entries && f->batch; s++) {
        bert_batch *b = &f->batch[s];
        b->input_ids = calloc(tokens, sizeof *b->input_ids);
        b->token_type_ids = calloc(tokens, sizeof *b->token_type_ids);
        b->attention_mask = calloc(tokens, sizeof *b->attention_mask);
        b->positions = calloc(rows, sizeof *b->positions);
        b->labels = calloc(rows, sizeof *b->labels);
        b->next_sentence_label = calloc((size_t)f->examples, sizeof *b->next_sentence_label);
        if (!b->input_ids || !b->token_type_ids || !b->attention_mask || !b->positions ||
            !b->labels || !b->next_sentence_label)
            return false;
    }
    return f->batch != NULL;
}

/* Reads the sizes from shapes, which must agree; false with *error. */
static bool measure(bert_batch_file *f, const char *path, const integers_rule rules[TENSORS],
                    const zf_shape shape[TENSORS], int64_t *const data[TENSORS], zf_error *error)
{
    const int64_t *labels = data[LABELS];
    f->entries = shape[IDS].dims[0], f->examples = shape[IDS].dims[1],
    f->sequence = shape[IDS].dims[2];
    for (int which = 0; which < TENSORS; which++)
        for (int axis = 0; data[which] && axis < shape[which].rank; axis++)
            if (shape[which].dims[axis] != shape[IDS].dims[axis] || shape[which].dims[axis] < 1) {
                char own[ZF_SHAPE_TEXT], other[ZF_SHAPE_TEXT];
                bool empty = shape[which].dims[axis] < 1;
                error->status = ZF_ERR_FORMAT;
                snprintf(error->text, sizeof error->text, "%s: %s is %s, which %s%s", path,
                         rules[which].name, zf_shape_text(own, shape[which]),
                         empty ? "is empty" : "does not fit input_ids ",
                         empty ? "" : zf_shape_text(other, shape[IDS]));
                return false;
            }
    f->predictions = 1;
    for (int64_t s = 0, tokens = f->examples * f->sequence; s < f->entries; s++) {
        int64_t labelled = 0;
        for (int64_t i = 0; i < tokens; i++) labelled += labels[s * tokens + i] != -100;
        if (labelled > f->predictions) f->predictions = labelled;
    }
    return true;
}

/* Each batch has a label, of a word or of a pair. */
static bool has_labels(const bert_batch_file *f, const char *path, zf_error *error)
{
    for (int64_t s = 0; s < f->entries; s++)
        if (!f->batch[s].labelled && !f->batch[s].pairs)
            return fail(error, ZF_ERR_FORMAT,
                        "%s: batch %lld has no label but -100: there is nothing to learn", path,
                        (long long)s);
    return true;
}

bert_batch_file *bert_batch_file_load(const char *path, int64_t vocab, int64_t types,
                                      zf_error *error)
{
    const integers_rule rules[TENSORS] = {
        {"input_ids", 2, vocab, false, false},     {"token_type_ids", 2, types, false, true},
        {"attention_mask", 2, 2, false, true},     {"labels", 2, vocab, true, false},
        {"next_sentence_label", 1, 2, true, true},
    };
    zf_safetensors *file = zf_safetensors_open(path, NULL, error);
    int64_t *data[TENSORS] = {NULL};
    zf_shape shape[TENSORS];
    bert_batch_file *f = NULL;
    bool good = file != NULL;
    if (good) error->status = ZF_OK;
    for (int which = 0; which < TENSORS && good; which++) {
        data[which] = integers_load(file, path, &rules[which], &shape[which], error);
        good = !error->status;
    }
    good = good && integers_all_known(file, path, rules, TENSORS, error);
    if (good && (f = calloc(1, sizeof *f))) {
        good = measure(f, path, rules, shape, data, error) && allocate(f);
        f->next_sentences = data[NEXT] != NULL;
        for (int64_t s = 0; good && s < f->entries; s++) fill(f, s, data);
        good = good && has_labels(f, path, error);
    }
    if (!good || !f) {
        if (!error->status) {
            error->status = ZF_ERR_NOMEM;
            snprintf(error->text, sizeof error->text, "out of memory");
        }
        bert_batch_file_free(f);
        f = NULL;
    }
    for (int which = 0; which < TENSORS; which++) free(data[which]);
    zf_safetensors_close(file);
    return f;
}

int64_t bert_batch_file_predictions(const bert_batch_file *f, int64_t parts)
{
    int64_t tokens = f->examples / parts * f->sequence, most = 1;
    for (int64_t s = 0; s < f->entries; s++) {
        const bert_batch *b = &f->batch[s];
        for (int32_t first = 0, end; first < b->labelled; first = end) {
            for (end = first; end < b->labelled; end++)
                if (b->positions[end] / tokens != b->positions[first] / tokens) break;
            if (end - first > most) most = end - first;
        }
    }
    return most;
}

void bert_batch_file_free(bert_batch_file *f)
{
    if (!f) return;
    for (int64_t s = 0; s < f->entries && f->batch; s++) {
        free(f->batch[s].input_ids);
        free(f->batch[s].token_type_ids);
        free(f->batch[s].attention_mask);
        free(f->batch[s].positions);
        free(f->batch[s].labels);
        free(f->batch[s].next_sentence_label);
    }
    free(f->batch);
    free(f);
}
