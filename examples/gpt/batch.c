#include "batch.h"
#include "../bert/corpus.h"
#include "model.h"

#include <stdlib.h>
#include <string.h>

bool gpt_batch_new(gpt_batch *b, int64_t examples, int64_t sequence, zf_error *error)
{
    size_t count = (size_t)(examples * sequence);
    *b = (gpt_batch){.examples = examples, .sequence = sequence};
    b->ids = malloc(count * sizeof *b->ids);
    b->labels = malloc(count * sizeof *b->labels);
    if (b->ids && b->labels) return true;
    gpt_batch_free(b);
    return gpt_fail(error, ZF_ERR_NOMEM, "out of memory");
}

void gpt_batch_free(gpt_batch *b)
{
    free(b->ids);
    free(b->labels);
    *b = (gpt_batch){.ids = NULL};
}

/* Example `row` of the batch: the tokens from `at` on. */
static void copy(gpt_batch *b, int64_t row, const gpt_tokens *text, int64_t at)
{
    size_t bytes = (size_t)b->sequence * sizeof *b->ids;
    memcpy(b->ids + row * b->sequence, text->id + at, bytes);
    memcpy(b->labels + row * b->sequence, text->id + at + 1, bytes);
    b->labelled = b->examples * b->sequence;
}

void gpt_batch_draw(gpt_batch *b, const gpt_tokens *text, uint64_t seed, int64_t first)
{
    uint64_t places = (uint64_t)(text->count - b->sequence), stream = bert_mix(seed + 1);
    for (int64_t row = 0; row < b->examples; row++)
        copy(b, row, text, (int64_t)(bert_mix(stream + (uint64_t)(first + row)) % places));
}

void gpt_batch_read(gpt_batch *b, const gpt_tokens *text, int64_t first)
{
    int64_t windows = (text->count - 1) / b->sequence;
    for (int64_t row = 0; row < b->examples; row++)
        copy(b, row, text, (first + row) % windows * b->sequence);
}

/* ------------------------------------------------------------------------------------- files */

enum { IDS, LABELS, TENSORS };
static const char *const names[TENSORS] = {"input_ids", "labels"};

/* The tensor's values, to be freed, and its shape as [S,B,T]; NULL with *error. */
static int64_t *load(zf_safetensors *file, const char *path, int which, int64_t vocab,
                     zf_shape *shape, zf_error *error)
{
    int32_t at = zf_safetensors_find(file, names[which]);
    const zf_safetensors_entry *e = zf_safetensors_at(file, at);
    bool fits = e && e->readable && e->dtype == ZF_I64 && zf_shape_count(e->shape) > 0 &&
                (e->shape.rank == 2 || e->shape.rank == 3);
    int64_t *values = fits ? malloc(e->bytes) : NULL;
    if (!fits)
        gpt_fail(error, ZF_ERR_FORMAT, "%s: %s must be an I64 tensor [S,B,T] or [B,T]%s", path,
                 names[which], e ? "" : ", and is missing");
    else if (!values) gpt_fail(error, ZF_ERR_NOMEM, "out of memory");
    else if (zf_safetensors_read(file, at, values, e->bytes, error)) {
        free(values);
        return NULL;
    }
    if (!values) return NULL;
    *shape = e->shape.rank == 3 ? e->shape : ZF_SHAPE(1, e->shape.dims[0], e->shape.dims[1]);
    for (int64_t i = 0; i < zf_shape_count(*shape); i++) {
        if ((values[i] >= 0 && values[i] < vocab) || (which == LABELS && values[i] == -100))
            continue;
        gpt_fail(error, ZF_ERR_FORMAT, "%s: %s: element %lld is %lld; it must be in [0, %lld)%s",
                 path, names[which], (long long)i, (long long)values[i], (long long)vocab,
                 which == LABELS ? ", or -100" : "");
        free(values);
        return NULL;
    }
    return values;
}

/* Entry `s` of the file's arrays. */
static void fill(gpt_batch *b, int64_t s, const int64_t *ids, const int64_t *labels)
{
    int64_t count = b->examples * b->sequence;
    for (int64_t i = 0; i < count; i++) {
        bool last = i % b->sequence == b->sequence - 1;
        b->ids[i] = (int32_t)ids[s * count + i];
        b->labels[i] = last ? -100 : (int32_t)labels[s * count + i + 1];
        b->labelled += b->labels[i] != -100;
    }
}

bool gpt_batch_file_load(gpt_batch_file *f, const char *path, int64_t vocab, zf_error *error)
{
    zf_safetensors *file = zf_safetensors_open(path, NULL, error);
    zf_shape shape, other;
    int64_t *ids = file ? load(file, path, IDS, vocab, &shape, error) : NULL, *labels = ids;
    bool good = ids != NULL;
    *f = (gpt_batch_file){.entries = 0};
    if (good && zf_safetensors_find(file, names[LABELS]) >= 0) {
        labels = load(file, path, LABELS, vocab, &other, error);
        good = labels != NULL;
        if (good && memcmp(&shape, &other, sizeof shape))
            good = gpt_fail(error, ZF_ERR_FORMAT, "%s: labels and input_ids differ in shape", path);
    }
    if (good && !(f->batch = calloc((size_t)shape.dims[0], sizeof *f->batch)))
        good = gpt_fail(error, ZF_ERR_NOMEM, "out of memory");
    for (int64_t s = 0; good && s < shape.dims[0]; s++) {
        gpt_batch *b = &f->batch[f->entries];
        good = gpt_batch_new(b, shape.dims[1], shape.dims[2], error);
        if (!good) break;
        f->entries++;
        fill(b, s, ids, labels);
    }
    if (!good) gpt_batch_file_free(f);
    if (labels != ids) free(labels);
    free(ids);
    zf_safetensors_close(file);
    return good;
}

void gpt_batch_file_free(gpt_batch_file *f)
{
    for (int64_t s = 0; s < f->entries; s++) gpt_batch_free(&f->batch[s]);
    free(f->batch);
    *f = (gpt_batch_file){.batch = NULL};
}
