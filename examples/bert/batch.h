/* Pretraining batches: masked words and next-sentence pairs from a corpus.
 *
 *     [CLS] a genus of [MASK] birds . [SEP] they live near the banana . [SEP] [PAD] [PAD]
 *       0   0   0    0    0     0   0   0    1    1    1    1    1   1   1     0     0     types
 *                         ^ "singing"                         ^ "sea"                    labels
 *
 * A batch is a pure function of the corpus, the seed and the number of its first example, so that a
 * run goes on from a step number alone, and the same examples come however many ranks share a
 * global batch and whatever thread assembles them.
 *
 * Nothing here prints or exits. What can fail leaves one line for a person in `err` (terminated, at
 * most err_size bytes; NULL and 0 to do without).
 */
#ifndef BERT_BATCH_H
#define BERT_BATCH_H

#include "corpus.h"

typedef struct bert_examples_desc {
    const bert_corpus *corpus; /* must outlive the examples */
    bool held_out;             /* from the held-out split; the seed is then ignored, so that every
                                * run is judged by the same examples */
    uint64_t seed;
    bool single;             /* no pairs: one segment, [CLS] A [SEP], and no next-sentence label */
    int32_t sequence;        /* T, [CLS] and both [SEP] included: 8 to 65536 */
    int32_t masked_percent;  /* of the words, 1 to 100; 0: 15 */
    int32_t max_predictions; /* labels of one example at most; 0: all: masked_percent of T - 3 */
    int32_t pad, unk, cls, sep, mask; /* ids; the masks' random words are none of them */
    zf_allocator allocator;           /* {0}: the C library's; for the feeder's batches as well */
} bert_examples_desc;

/* Examples 0, 1, 2, ... without end: one for each window of the split, in an order that is new for
 * each epoch. Read-only, so any number of threads may use it. */
typedef struct bert_examples bert_examples;

/* NULL for a value out of range or a split with fewer than two documents, or out of memory. */
bert_examples *bert_examples_new(const bert_examples_desc *, char *err, size_t err_size);
void bert_examples_free(bert_examples *);

/* The number of examples in an epoch. */
int64_t bert_examples_epoch(const bert_examples *);

/* Arrays of B examples of T tokens. Labelled positions come first, ascending; the rest of the P =
 * B * max_predictions entries has position 0 and label -100. */
typedef struct bert_batch {
    int64_t first;                           /* number of the first example */
    int32_t examples, sequence, predictions; /* B, T, P */
    int32_t labelled, tokens;                /* entries with a label; tokens that are no padding */
    int32_t pairs;                           /* examples with a next-sentence label */
    int32_t *input_ids;                      /* [B, T] */
    int32_t *token_type_ids;                 /* [B, T] 0: [CLS] A [SEP], padding; 1: B [SEP] */
    uint8_t *attention_mask;                 /* [B, T] 1: a token, 0: padding */
    int32_t *positions;                      /* [P] b * T + t */
    int32_t *labels;                         /* [P] the token that was there */
    int32_t *next_sentence_label;            /* [B] 0: B follows A, 1: B is from elsewhere, -100: no label */
    zf_allocator allocator;
} bert_batch;

/* Room for `examples` (1 and more) of them; NULL when that is too large or memory runs out. */
bert_batch *bert_batch_new(const bert_examples *, int32_t examples, char *err, size_t err_size);
void bert_batch_free(bert_batch *);

/* Makes the examples first, first + 1, ... (first >= 0). Cannot fail, allocates nothing. */
void bert_batch_fill(bert_batch *, const bert_examples *, int64_t first);

/* Part `part` of `parts` equal ones of a batch, whose examples they must divide. Its tokens are
 * those of `whole`, not counted; positions and labels are copied, to arrays of `predictions`, which
 * must not be fewer than the part has labels. */
bert_batch bert_batch_part(const bert_batch *whole, int64_t part, int64_t parts, int32_t *positions,
                           int32_t *labels, int32_t predictions);

/* A thread that makes batches ahead of their use: batch k = 0, 1, ... begins with example
 * first + k * stride. */
typedef struct bert_feeder_desc {
    const bert_examples *examples; /* must outlive the feeder */
    int32_t batch;                 /* examples of a batch */
    int64_t first, stride;         /* stride 0: batch */
    int ahead;                     /* batches kept ready, 1 to 64; 0: 2 */
} bert_feeder_desc;

typedef struct bert_feeder bert_feeder;

/* NULL for a value out of range, when no thread can be had, or out of memory. */
bert_feeder *bert_feeder_start(const bert_feeder_desc *, char *err, size_t err_size);

/* The next batch, which stays valid and unchanged until the next call or the stop. For one thread
 * at a time. */
const bert_batch *bert_feeder_next(bert_feeder *);

/* How often bert_feeder_next found no batch ready and waited; the first time is usual. */
int64_t bert_feeder_waits(bert_feeder *);

/* Ends the thread, whatever it is at, and frees everything. NULL is nothing. */
void bert_feeder_stop(bert_feeder *);

#endif
