/* Pairs of answers to one prompt, of which one is preferred: a file of JSON Lines.
 *
 *     {"prompt": "a small bird?", "chosen": " A wren.", "rejected": " A whale."}
 *     {"prompt": [{"role": "user", "content": "a small bird?"}],
 *      "chosen": [{"role": "assistant", "content": "A wren."}],
 *      "rejected": [{"role": "assistant", "content": "A whale."}]}
 *
 * "margin" is a number, for a reward model. Without "prompt", the prompt is the common beginning of
 * both answers: of strings, in bytes, without a space at its end; of lists, in messages. After the
 * prompt comes one answer. A prompt and an answer that are strings are messages where examples have
 * a template, as in tuning.h; the two strings of a line without a prompt are texts as they are.
 *
 * Prompt and answer become tokens together. The answer begins with the first token that has bytes
 * of it, and ends with its end token, which is appended where the template does not write one. What
 * a template writes after that is left out. Which tokens are predicted follows from these lengths,
 * never from the ids of tokens:
 *
 *     ids     <s> a small bird ? A wren . </s>  0  0
 *     labels   -  -   -    -   A wren . </s> -  -  -
 */
#ifndef PAIRS_H
#define PAIRS_H

#include "../../../zeroflow_llm.h"

typedef struct pairs {
    int32_t *ids;
    int64_t *at;     /* text k has the tokens at[k]..at[k + 1] - 1; pair p has the texts 2 p, the
                      * chosen one, and 2 p + 1 */
    int64_t *before; /* tokens of text k before its answer, at least 1 */
    double *margin;  /* by which the chosen answer of pair p is better; 0: the line has none */
    int64_t *order;  /* of pairs; the first held_out of them are held out */
    int64_t count, held_out; /* pairs */
    int64_t tokens, longest; /* tokens of all texts; of the longest one */
    uint64_t digest, begins; /* of all tokens; of where each text and each answer begins */
    size_t token_room, room;
} pairs;

/* False with *error, which names the file and the line:
 *
 *   - a member is missing or has the wrong type; there is more than one answer;
 *   - there is no prompt, and no common beginning;
 *   - an answer is empty or has only an end token; both are the same;
 *   - a text is longer than desc->sequence, or has a token that is not the model's.
 *
 * And for fewer than two pairs, or with desc->evaluates, none. */
bool pairs_load(pairs *, const char *path, const zf_examples_desc *, zf_error *error);
/* The same of lines with one answer, "response" or "completion", or with "messages", of which the
 * last is the answer. Text k, with its prompt, is that of line k; there is no order. */
bool pairs_load_texts(pairs *, const char *path, const zf_examples_desc *, zf_error *error);
void pairs_free(pairs *);

/* Texts of a batch, one in each row: row 2 k is the chosen one of pair k, row 2 k + 1 the rejected
 * one. */
typedef struct pairs_batch {
    int64_t pairs, sequence;
    int64_t filled;     /* pairs that are not empty */
    int32_t *ids;       /* [2 pairs, sequence]; 0 after the end of a text */
    int32_t *labels; /* [2 pairs, sequence]: the next token, where it is of the answer; else -100 */
    int32_t *lengths;   /* [2 pairs]: tokens of a text; 0: the row is empty */
    int32_t *predicted; /* [2 pairs]: tokens of its answer */
    int64_t *text;      /* [2 pairs]: its number in `pairs`; -1: the row is empty */
} pairs_batch;

/* False with *error. */
bool pairs_batch_new(pairs_batch *, int64_t count, int64_t sequence, zf_error *error);
void pairs_batch_free(pairs_batch *);

/* The text that pair 0 <= k < count of the order has as its chosen one. */
int64_t pairs_text(const pairs *, int64_t k);
/* Reads pairs first, first + 1, ... of training: each epoch has all of them, in an order drawn by
 * seed; or of the held-out ones in their order, and then empty ones. */
void pairs_read(const pairs *, pairs_batch *, bool held_out, uint64_t seed, int64_t first);
/* Reads pairs first, first + 1, ... of the file, and then empty ones. */
void pairs_read_file(const pairs *, pairs_batch *, int64_t first);

#endif
