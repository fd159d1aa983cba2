#include "classify.h"
#include "../../frame/options/fail.h"

#include <stdlib.h>

bool classify_batch_new(classify_batch *b, int64_t rows, int64_t sequence, int64_t padding,
                        zf_error *error)
{
    const size_t n = (size_t)rows, cells = n * (size_t)sequence;
    *b = (classify_batch){.rows = rows, .sequence = sequence, .padding = (int32_t)padding};
    b->ids = calloc(cells, sizeof *b->ids), b->types = calloc(cells, sizeof *b->types);
    b->label = calloc(n, sizeof *b->label), b->mask = calloc(cells, 1);
    b->number = calloc(n, sizeof *b->number), b->there = calloc(n, sizeof *b->there);
    if (b->ids && b->types && b->label && b->mask && b->number && b->there) return true;
    classify_batch_free(b);
    return fail(error, ZF_ERR_NOMEM, "out of memory");
}

void classify_batch_free(classify_batch *b)
{
    free(b->ids), free(b->types), free(b->label), free(b->mask), free(b->number), free(b->there);
    *b = (classify_batch){.rows = 0};
}

void classify_batch_put(classify_batch *b, const texts *t, int64_t row, int64_t text)
{
    const int64_t at = row * b->sequence, from = text < 0 ? 0 : t->at[text],
                  count = text < 0 ? 0 : t->at[text + 1] - from;
    for (int64_t i = 0; i < b->sequence; i++) {
        b->ids[at + i] = i < count ? t->ids[from + i] : b->padding;
        b->types[at + i] = i < count && from + i >= t->second[text];
        b->mask[at + i] = i < count;
    }
    /* A row that is no text sees a token, so that its softmax is one. */
    if (text < 0) b->mask[at] = 1;
    b->label[row] = text < 0 ? -100 : t->label ? t->label[text] : 0;
    b->number[row] = text < 0 || !t->number ? 0 : t->number[text];
    b->there[row] = text >= 0;
    b->filled += text >= 0;
}

zf_status classify_feed(session *s, const classify_batch *b, int64_t first, int64_t count,
                        float weight)
{
    const struct {
        const char *name;
        const void *data;
        size_t bytes;
    } inputs[] = {
        {"input_ids", b->ids + first * b->sequence, (size_t)(count * b->sequence) * 4},
        {"token_type_ids", b->types + first * b->sequence, (size_t)(count * b->sequence) * 4},
        {"attention_mask", b->mask + first * b->sequence, (size_t)(count * b->sequence)},
        {"text_there", b->there + first, (size_t)count * 4},
        {"text_weight", &weight, sizeof weight}};
    const zf_tensor labels = zf_graph_find(s->graph, "text_labels");
    zf_status status = ZF_OK;
    for (size_t k = 0; k < sizeof inputs / sizeof *inputs && !status; k++)
        status = session_write(s, inputs[k].name, inputs[k].data, inputs[k].bytes);
    if (status || !zf_valid(labels)) return status;
    return zf_tensor_dtype(labels) == ZF_F32
               ? session_write(s, "text_labels", b->number + first, (size_t)count * 4)
               : session_write(s, "text_labels", b->label + first, (size_t)count * 4);
}
