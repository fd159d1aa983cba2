/* What readers of examples share: lines of JSON, their texts as tokens, and orders of examples. */

/* How examples are read. */
typedef struct zf_examples_desc {
    const zf_tokenizer *tokens;
    /* A WordPiece vocabulary instead, or NULL: `end`, the prompt, the response and `end` */
    const struct zf_wordpiece *words;
    /* The format of chats. NULL: a prompt is followed by its response, with the special tokens of a
     * text around both, and then `end`; chats are an error. */
    const zf_chat *chat;
    int32_t end; /* -1: none */
    int64_t vocab;    /* ids of the model; an example with another one is an error; 0: not known */
    int64_t sequence; /* tokens of a row, at most */
    bool alone;       /* each example has a row of its own */
    bool evaluates;   /* all examples are held out */
} zf_examples_desc;

/* Takes the object of one line; a conversation in another form has become messages
 * (zf_chat_convert). False with *error. */
typedef bool zf_examples_line(void *user, const zf_json *object, zf_error *error);

/* Calls `take` for each line of a file of JSON Lines that is not blank. False with *error, which
 * names the file and the line. */
ZF_API bool zf_examples_read(const char *path, zf_examples_line *take, void *user,
                             zf_error *error);

/* A text, its tokens, and room for what is computed from them. */
typedef struct zf_examples_text {
    const zf_examples_desc *desc;
    zf_text text;
    zf_ids ids;
    zf_ids part;
    zf_text decoded;
} zf_examples_text;
ZF_API void zf_examples_text_free(zf_examples_text *);

/* Sets the ids to those of the text. flags: of zf_tokenizer_encode. False with *error. */
ZF_API bool zf_examples_encode(zf_examples_text *, unsigned flags, zf_error *error);

/* How many ids come before byte `at`; `across`: with one that has bytes on both sides. The text
 * before `at` may be cut into other tokens at its end. False with *error. */
ZF_API bool zf_examples_ids_before(zf_examples_text *, size_t at, unsigned flags, bool across,
                                   size_t *count, zf_error *error);

/* All ids are the model's; else false with *error. */
ZF_API bool zf_examples_ids_fit(const zf_examples_text *, zf_error *error);

/* The numbers 0..count - 1 in an order that is independent of that of the examples, to be freed;
 * NULL with *error. The first *held_out of them are held out: a twentieth and at least one, or with
 * `evaluates` all. */
ZF_API int64_t *zf_examples_order(const zf_examples_desc *, int64_t count, int64_t *held_out,
                                  zf_error *error);

/* The place of `at` in an order of 0..count - 1 that is drawn by the key. */
ZF_API int64_t zf_examples_shuffled(int64_t at, int64_t count, uint64_t key);
/* The same of step `at` of training, counted in examples: each epoch has all, in another order. */
ZF_API int64_t zf_examples_drawn(int64_t at, int64_t count, uint64_t seed);
