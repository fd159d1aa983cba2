#include "causal_batch.h"
#include "corpus.h"
#include "../options/fail.h"
#include "integers.h"

#include <stdlib.h>
#include <string.h>

/* Keeps the texts of a row apart: the token after an end is of the next one, and no label. */
static void split(zf_causal_batch *b, int64_t row, int32_t end)
{
    int32_t segment = 1, position = 0;
    for (int64_t i = row * b->sequence; i < (row + 1) * b->sequence; i++) {
        b->segments[i] = segment, b->positions[i] = position++;
        if (b->ids[i] != end) continue;
        b->labels[i] = -100, b->labelled--;
        segment++, position = 0;
    }
}

/* Example `row` of the batch: tokens from `at` on. */
static void copy(zf_causal_batch *b, int64_t row, const causal_tokens *text, int64_t at)
{
    size_t bytes = (size_t)b->sequence * sizeof *b->ids;
    memcpy(b->ids + row * b->sequence, text->id + at, bytes);
    memcpy(b->labels + row * b->sequence, text->id + at + 1, bytes);
    b->labelled += b->sequence;
    if (b->segments) split(b, row, text->end);
}

void causal_batch_draw(zf_causal_batch *b, const causal_tokens *text, uint64_t seed, int64_t first)
{
    uint64_t places = (uint64_t)(text->count - b->sequence), stream = bert_mix(seed + 1);
    b->labelled = 0;
    for (int64_t row = 0; row < b->examples; row++)
        copy(b, row, text, (int64_t)(bert_mix(stream + (uint64_t)(first + row)) % places));
}

void causal_batch_read(zf_causal_batch *b, const causal_tokens *text, int64_t first)
{
    int64_t windows = (text->count - 1) / b->sequence;
    b->labelled = 0;
    for (int64_t row = 0; row < b->examples; row++)
        copy(b, row, text, (first + row) % windows * b->sequence);
}

/* ------------------------------------------------------------------------------------- files */

enum { IDS, LABELS, MASK, TENSORS };

/* Reads entry `s` of the file's arrays; false out of memory. */
static bool fill(zf_causal_batch *b, int64_t s, int64_t *const data[TENSORS])
{
    int64_t count = b->examples * b->sequence;
    const int64_t *labels = data[LABELS] ? data[LABELS] : data[IDS];
    if (data[MASK] && !(b->mask = malloc((size_t)count))) return false;
    for (int64_t i = 0; i < count; i++) {
        bool last = i % b->sequence == b->sequence - 1;
        b->ids[i] = (int32_t)data[IDS][s * count + i];
        b->labels[i] = last ? -100 : (int32_t)labels[s * count + i + 1];
        b->labelled += b->labels[i] != -100;
        if (data[MASK]) b->mask[i] = (uint8_t)data[MASK][s * count + i];
    }
    return true;
}

bool causal_batch_file_load(causal_batch_file *f, const char *path, int64_t vocab, zf_error *error)
{
    const integers_rule rules[TENSORS] = {{"input_ids", 2, vocab, false, false},
                                          {"labels", 2, vocab, true, true},
                                          {"attention_mask", 2, 2, false, true}};
    zf_safetensors *file = zf_safetensors_open(path, NULL, error);
    int64_t *data[TENSORS] = {NULL};
    zf_shape shape[TENSORS];
    bool good = file != NULL;
    *f = (causal_batch_file){.entries = 0};
    if (good) error->status = ZF_OK;
    for (int k = 0; k < TENSORS && good; k++) {
        data[k] = integers_load(file, path, &rules[k], &shape[k], error);
        good = !error->status;
        if (good && data[k] && memcmp(&shape[k], &shape[IDS], sizeof shape[k]))
            good = fail(error, ZF_ERR_FORMAT, "%s: %s and input_ids differ in shape", path,
                            rules[k].name);
    }
    good = good && integers_all_known(file, path, rules, TENSORS, error);
    if (good && zf_shape_count(shape[IDS]) < 1)
        good = fail(error, ZF_ERR_FORMAT, "%s: input_ids is empty", path);
    if (good && !(f->batch = calloc((size_t)shape[IDS].dims[0], sizeof *f->batch)))
        good = fail(error, ZF_ERR_NOMEM, "out of memory");
    f->masked = data[MASK] != NULL;
    for (int64_t s = 0; good && s < shape[IDS].dims[0]; s++) {
        zf_causal_batch *b = &f->batch[s];
        good = zf_causal_batch_new(b, shape[IDS].dims[1], shape[IDS].dims[2], false, error);
        f->entries += good;
        if (good && !fill(b, s, data)) good = fail(error, ZF_ERR_NOMEM, "out of memory");
        if (good && !b->labelled)
            good = fail(error, ZF_ERR_FORMAT,
                        "%s: batch %lld has no label but -100: there is nothing to learn", path,
                        (long long)s);
    }
    if (!good) causal_batch_file_free(f);
    for (int k = 0; k < TENSORS; k++) free(data[k]);
    zf_safetensors_close(file);
    return good;
}

void causal_batch_file_free(causal_batch_file *f)
{
    for (int64_t s = 0; s < f->entries; s++) zf_causal_batch_free(&f->batch[s]);
    free(f->batch);
    *f = (causal_batch_file){.batch = NULL};
}
