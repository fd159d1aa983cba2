#include "score_batch.h"
#include "../options/fail.h"

#include <stdlib.h>

bool score_batch_new(score_batch *b, int64_t count, int64_t sequence, bool positions,
                     zf_error *error)
{
    const size_t p = (size_t)count, cells = p * (size_t)sequence;
    *b = (score_batch){.padding = 0};
    if (!pairs_batch_new(&b->pairs, count, sequence, error)) return false;
    b->margin = calloc(p, sizeof *b->margin);
    b->mean = malloc(p * sizeof *b->mean);
    b->sum = malloc(p * sizeof *b->sum);
    if (positions) {
        b->mask = malloc(2 * cells);
        b->mean_places = malloc(cells * sizeof *b->mean_places);
        b->sum_places = malloc(cells * sizeof *b->sum_places);
    }
    if (b->margin && b->mean && b->sum &&
        (!positions || (b->mask && b->mean_places && b->sum_places)))
        return true;
    score_batch_free(b);
    return fail(error, ZF_ERR_NOMEM, "out of memory");
}

void score_batch_free(score_batch *b)
{
    pairs_batch_free(&b->pairs);
    free(b->margin), free(b->mean), free(b->sum);
    free(b->mask), free(b->mean_places), free(b->sum_places);
    *b = (score_batch){.padding = 0};
}

static void pad_row(score_batch *b, int64_t row)
{
    const int64_t tokens = b->pairs.sequence, at = row * tokens;
    for (int64_t i = 0; i < tokens; i++) {
        const bool is_token = i < b->pairs.lengths[row];
        if (!is_token) b->pairs.ids[at + i] = b->padding;
        if (b->mask) b->mask[at + i] = is_token;
    }
}

/* The weights of the positions of a pair. */
static void weigh_places(score_batch *b, int64_t p)
{
    const int64_t tokens = b->pairs.sequence;
    const int32_t *chosen = b->pairs.ids + 2 * p * tokens, *lengths = b->pairs.lengths + 2 * p;
    float *places = b->sum_places + p * tokens;
    for (int64_t i = 0; i < tokens; i++) places[i] = 0;
    if (b->sum[p] > 0)
        zf_pair_positions(chosen, lengths[0], chosen + tokens, lengths[1], tokens, 1, places);
}

void score_batch_finish(score_batch *b)
{
    const int64_t count = b->pairs.pairs, cells = count * b->pairs.sequence;
    const float each = 1 / (float)(b->pairs.filled ? b->pairs.filled : 1);
    for (int64_t row = 0; row < 2 * count; row++) pad_row(b, row);
    for (int64_t p = 0; p < count; p++) {
        b->sum[p] = b->pairs.lengths[2 * p] > 0, b->mean[p] = each * b->sum[p];
        if (b->mask) weigh_places(b, p);
    }
    for (int64_t i = 0; b->mask && i < cells; i++) b->mean_places[i] = each * b->sum_places[i];
}
