/* Pretraining batches: masked words and next-sentence pairs from a corpus.
 *
 *     [CLS] a genus of [MASK] birds . [SEP] they live near the banana . [SEP] [PAD] [PAD]
 *       0   0   0    0    0     0   0   0    1    1    1    1    1   1   1     0     0     types
 *                         ^ "singing"                         ^ "sea"                    labels
 *
 * A batch is a pure function of the corpus, the seed and the number of its first example. So a run
 * can be resumed from a step number alone, and examples do not depend on how many ranks share a
 * global batch, or on threads.
 *
 * No function prints or exits. One that fails writes one line of text to `err` (terminated, at most
 * err_size bytes; may be NULL and 0). */
#ifndef BERT_BATCH_H
#define BERT_BATCH_H

#include "../../frame/data/corpus.h"

typedef struct bert_examples_desc {
    const bert_corpus *corpus; /* must live longer than the examples */
    bool held_out;             /* from the held-out split; the seed is then ignored, so that every
                                * run is evaluated on the same examples */
    uint64_t seed;
    bool single;             /* one segment, [CLS] A [SEP], without next-sentence labels */
    bool pack; /* with `single`: an example has several documents, [CLS] A [SEP] [CLS] B [SEP], each
                * a run of whole sentences. An epoch has each sentence once */
    int32_t sequence;        /* T with [CLS] and both [SEP]: 8 to 65536 */
    int32_t masked_percent;  /* of the words, 1 to 100; 0: 15 */
    int32_t max_predictions; /* maximum labels of an example; 0: masked_percent of T - 3 */
    int32_t pad, unk, cls, sep, mask; /* ids; never used as a mask's random word */
    zf_allocator allocator;           /* {0}: the C library's; also for the feeder's batches */
} bert_examples_desc;

/* An endless sequence of examples 0, 1, 2, ...: one for each window of the split, in a new order
 * for each epoch. Read-only, so any number of threads may use it. */
typedef struct bert_examples bert_examples;

/* NULL for a value out of range or a split with fewer than two documents, or out of memory. */
bert_examples *bert_examples_new(const bert_examples_desc *, char *err, size_t err_size);
void bert_examples_free(bert_examples *);

/* The number of examples in an epoch. */
int64_t bert_examples_epoch(const bert_examples *);

/* Arrays of B examples of T tokens. Labelled positions come first, ascending; the rest of the P = B
 * * max_predictions entries have position 0 and label -100. */
typedef struct bert_batch {
    int64_t first;                           /* number of the first example */
    int32_t examples, sequence, predictions; /* B, T, P */
    int32_t labelled, tokens;                /* entries with a label; tokens without padding */
    int32_t pairs;                           /* examples with a next-sentence label */
    int32_t *input_ids;                      /* [B, T] */
    int32_t *token_type_ids;                 /* [B, T] 0: [CLS] A [SEP], padding; 1: B [SEP] */
    uint8_t *attention_mask;                 /* [B, T] 1: a token, 0: padding */
    int32_t *segments; /* [B, T] number of the document in the row, of padding one more. NULL
                        * without `pack` */
    int32_t *places;   /* [B, T] place in the document. NULL without `pack` */
    int32_t *positions;                      /* [P] b * T + t */
    int32_t *labels;                         /* [P] the original token */
    int32_t *next_sentence_label;            /* [B] 0: B follows A, 1: not, -100: no label */
    zf_allocator allocator;
} bert_batch;

/* Allocates a batch of `examples` examples, at least 1; NULL when that is too large or memory runs
 * out. */
bert_batch *bert_batch_new(const bert_examples *, int32_t examples, char *err, size_t err_size);
void bert_batch_free(bert_batch *);

/* Fills in the examples first, first + 1, ... (first >= 0). Cannot fail, allocates nothing. */
void bert_batch_fill(bert_batch *, const bert_examples *, int64_t first);

/* Part `part` of `parts` equal parts of a batch; `parts` must divide its examples. Tokens are
 * shared with `whole` and not counted. Positions and labels are copied to arrays of `predictions`,
 * which must be enough for the part's labels. */
bert_batch bert_batch_part(const bert_batch *whole, int64_t part, int64_t parts, int32_t *positions,
                           int32_t *labels, int32_t predictions);

/* A thread that makes batches before they are used: batch k = 0, 1, ... begins with example first +
 * k * stride. */
typedef struct bert_feeder_desc {
    const bert_examples *examples; /* must live longer than the feeder */
    int32_t batch;                 /* examples of a batch */
    int64_t first, stride;         /* stride 0: batch */
    int ahead;                     /* batches kept ready, 1 to 64; 0: 2 */
} bert_feeder_desc;

typedef struct bert_feeder bert_feeder;

/* NULL for a value out of range, without a thread, or out of memory. */
bert_feeder *bert_feeder_start(const bert_feeder_desc *, char *err, size_t err_size);

/* The next batch, which stays valid and unchanged until the next call or the stop. Only one thread
 * at a time may call it. */
const bert_batch *bert_feeder_next(bert_feeder *);

/* How often bert_feeder_next had to wait for a batch; usually once, at the first call. */
int64_t bert_feeder_waits(bert_feeder *);

/* Ends the thread at once and frees everything. NULL: nothing. */
void bert_feeder_stop(bert_feeder *);

#endif
