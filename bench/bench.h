/* What benchmarks of training steps share: made-up batches. */
#ifndef BENCH_H
#define BENCH_H

#include "../examples/bert/masked.h"
#include "../examples/bert/model.h"
#include "figures.h"

#include <string.h>
#include <sys/resource.h>

/* Bytes that the process had in memory at most. */
static inline double bench_most_resident(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) ? 0 : 1024.0 * (double)usage.ru_maxrss;
}

/* Labelled positions of a batch: 15 in a hundred of its tokens but [CLS] and two [SEP]. */
static inline int64_t bench_predictions(int64_t batch, int64_t sequence)
{
    return batch * (int64_t)(0.15 * (double)(sequence - 3) + 0.5);
}

/* A batch of tokens drawn by `seed`, labelled at even distances; NULL out of memory. It lives as
 * long as the program. */
static inline bert_batch *bench_batch(const sample_shape *s, int64_t vocab, uint64_t seed)
{
    bert_batch *b = calloc(1, sizeof *b);
    size_t tokens = (size_t)(s->batch * s->sequence);
    uint64_t state = seed << 32;
    if (!b) return NULL;
    b->input_ids = calloc(tokens, 4), b->token_type_ids = calloc(tokens, 4);
    b->attention_mask = malloc(tokens), b->next_sentence_label = calloc((size_t)s->batch, 4);
    b->positions = calloc((size_t)s->predictions, 4), b->labels = calloc((size_t)s->predictions, 4);
    b->labelled = (int32_t)s->predictions;
    if (!b->input_ids || !b->token_type_ids || !b->attention_mask || !b->next_sentence_label ||
        !b->positions || !b->labels)
        return NULL;
    for (size_t i = 0; i < tokens; i++)
        b->input_ids[i] = (int32_t)(bert_mix(state++) % (uint64_t)vocab);
    memset(b->attention_mask, 1, tokens);
    for (int64_t p = 0; p < s->predictions; p++) {
        int64_t each = s->predictions / s->batch;
        b->positions[p] = (int32_t)(p / each * s->sequence + p % each * s->sequence / each);
        b->labels[p] = (int32_t)(bert_mix(state++) % (uint64_t)vocab);
    }
    return b;
}

#endif
