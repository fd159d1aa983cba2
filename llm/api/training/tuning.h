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
typedef struct zf_tuning_rows {
    int64_t *first, *example; /* row r has the examples example[first[r]..first[r + 1]) */
    int64_t count;
} zf_tuning_rows;

typedef struct zf_tuning {
    int32_t *ids;
    bool *labelled; /* by token: it is predicted */
    int64_t *at;    /* example e has the tokens at[e]..at[e + 1] */
    int64_t examples, tokens;
    int64_t cut, left_out; /* truncated examples; those left out, without a label */
    int64_t held_out;      /* examples, in rows of their own */
    int64_t sequence;
    uint64_t digest, begins; /* of all tokens and labels; of where each example begins */
    zf_tuning_rows train, test;
} zf_tuning;

/* Rows of a step, each labelled with the next token. */
typedef struct zf_causal_batch {
    int64_t examples, sequence; /* B, T */
    int64_t labelled;           /* labels that are not -100 */
    int32_t *ids, *labels;      /* [B, T] */
    uint8_t *mask;              /* [B, T], 1: a token, 0: padding; NULL: all are tokens */
    /* [B, T]: which of several texts in a row a token is of, from 1 on, 0: padding; and its
     * place in that text. NULL: a row is one text */
    int32_t *segments, *positions;
} zf_causal_batch;

/* Room for a batch, of rows of several texts if it is packed; false out of memory. */
ZF_API bool zf_causal_batch_new(zf_causal_batch *b, int64_t examples, int64_t sequence, bool packed,
                                zf_error *error);
ZF_API void zf_causal_batch_free(zf_causal_batch *b);

/* False with *error, which names the line, for an invalid example, or fewer than two. Longer ones
 * than desc->sequence are truncated. A twentieth of the examples is held out, at least one, always
 * the same. */
ZF_API bool zf_tuning_load(zf_tuning *, const char *path, const zf_examples_desc *,
                           zf_error *error);
ZF_API void zf_tuning_free(zf_tuning *);

/* Reads rows first, first + 1, ... of training: each epoch has all of them, in an order drawn by
 * seed; or of the held-out ones in their order, and then empty ones. The batch is a packed one. */
ZF_API void zf_tuning_read(const zf_tuning *, zf_causal_batch *b, bool held_out, uint64_t seed,
                           int64_t first);
