/* Room for a batch. */
#include <stdlib.h>

bool zf_causal_batch_new(zf_causal_batch *b, int64_t examples, int64_t sequence, bool packed,
                         zf_error *error)
{
    size_t count = (size_t)(examples * sequence);
    *b = (zf_causal_batch){.examples = examples, .sequence = sequence};
    b->ids = malloc(count * sizeof *b->ids);
    b->labels = malloc(count * sizeof *b->labels);
    b->segments = packed ? malloc(count * sizeof *b->segments) : NULL;
    b->positions = packed ? malloc(count * sizeof *b->positions) : NULL;
    if (b->ids && b->labels && (!packed || (b->segments && b->positions))) return true;
    zf_causal_batch_free(b);
    return zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
}

void zf_causal_batch_free(zf_causal_batch *b)
{
    free(b->ids);
    free(b->labels);
    free(b->mask);
    free(b->segments);
    free(b->positions);
    *b = (zf_causal_batch){.ids = NULL};
}
