/* Examples to fine-tune on: a file of JSON Lines, each a prompt and its response, or a chat.
 *
 *     {"prompt": "a small bird?", "response": "A wren."}
 *     {"messages": [{"role": "user", "content": "a small bird?"},
 *                   {"role": "assistant", "content": "A wren."}]}
 *
 * "weight": 0 and "train": false, of a message or of an example, leave it out of the loss.
 *
 * They become rows of tokens, several examples to a row where they fit. Only the assistant's text
 * is labelled:
 *
 *     ids       <s> a small bird ? A wren . </s>  <s> and a large one ? An ostrich . </s>
 *     labels     -  -   -    -   A wren . </s> -   -   -  -   -    -  An ostrich . </s> -
 *     segments   1  1   1    1   1  1   1   1  1   2   2  2   2    2   2    2    2   2   2
 *     positions  0  1   2    3   4  5   6   7  8   0   1  2   3    4   5    6    7   8   9
 */
#ifndef TUNING_H
#define TUNING_H

#include "causal_batch.h"
#include "examples.h"

typedef struct tuning_rows {
    int64_t *first, *example; /* row r has the examples example[first[r]..first[r + 1]) */
    int64_t count;
} tuning_rows;

typedef struct tuning {
    int32_t *ids;
    bool *labelled; /* by token: it is predicted */
    int64_t *at;    /* example e has the tokens at[e]..at[e + 1] */
    int64_t examples, tokens;
    int64_t cut, left_out; /* truncated examples; those left out, without a label */
    int64_t held_out;      /* examples, in rows of their own */
    int64_t sequence;
    uint64_t digest, begins; /* of all tokens and labels; of where each example begins */
    tuning_rows train, test;
} tuning;

/* False with *error, which names the line, for an invalid example, or fewer than two. Longer ones
 * than desc->sequence are truncated. A twentieth of the examples is held out, at least one, always
 * the same. */
bool tuning_load(tuning *, const char *path, const examples_desc *, zf_error *error);
void tuning_free(tuning *);

/* Reads rows first, first + 1, ... of training: each epoch has all of them, in an order drawn by
 * seed; or of the held-out ones in their order, and then empty ones. The batch is a packed one. */
void tuning_read(const tuning *, causal_batch *b, bool held_out, uint64_t seed, int64_t first);

#endif
