/* The BERT tokenizer: text to WordPiece ids, and the training of a vocabulary from a corpus.
 *
 *     text --clean, lower-case, strip accents, split--> words and punctuation --WordPiece--> ids
 *
 *     "Ça va, Straße?"     ca va , straße ?     ca va , st ##ra ##ß ##e ?
 *
 * A vocabulary is a file with one token per line; the id of a token is its line, counted from 0.
 * [PAD], [UNK], [CLS], [SEP] and [MASK] are required. A token that begins with ## continues a word.
 * Of equal lines the last one counts; the ids of the others have no token.
 *
 * A function that fails says why in *error, which may be NULL. A vocabulary never changes, so any
 * number of threads may use it. */

enum {
    ZF_WORDPIECE_WORD_CHARS = 100,  /* a longer word is [UNK] */
    ZF_WORDPIECE_TOKEN_BYTES = 1000 /* a longer line of a vocabulary is an error */
};

/* The tokens that every vocabulary has: zf_wordpiece_id(v,
 * zf_wordpiece_special_token(ZF_WORDPIECE_MASK)). */
enum {
    ZF_WORDPIECE_PAD,
    ZF_WORDPIECE_UNK,
    ZF_WORDPIECE_CLS,
    ZF_WORDPIECE_SEP,
    ZF_WORDPIECE_MASK,
    ZF_WORDPIECE_SPECIAL_COUNT
};
ZF_API const char *zf_wordpiece_special_token(int32_t which);

/* How a text is prepared for WordPiece. Options that are not set have their defaults. The names in
 * brackets are those of tokenizer_config.json. */
typedef enum zf_wordpiece_choice {
    ZF_WORDPIECE_UNSAID,
    ZF_WORDPIECE_NO,
    ZF_WORDPIECE_YES
} zf_wordpiece_choice;

typedef struct zf_wordpiece_options {
    zf_wordpiece_choice lower_case;    /* [do_lower_case] yes by default: an "uncased" model */
    zf_wordpiece_choice strip_accents; /* [strip_accents] by default as lower_case */
    zf_wordpiece_choice chinese_chars; /* [tokenize_chinese_chars] yes: each ideograph is a word */
    zf_wordpiece_choice clean_text;    /* yes: removes control characters */
} zf_wordpiece_options;

/* The options of a cased model; of an uncased one NULL, the defaults. */
ZF_API const zf_wordpiece_options *zf_wordpiece_cased(bool cased);

/* The options with yes or no everywhere; NULL: all defaults. */
ZF_API zf_wordpiece_options zf_wordpiece_resolve(const zf_wordpiece_options *);

typedef struct zf_wordpiece zf_wordpiece;

/* The vocabulary's file as it was read, even if it has changed since. Checkpoints and model folders
 * contain it. */
typedef struct zf_wordpiece_file {
    const char *name; /* its name in a folder: "vocab.txt" or "tokenizer.json" */
    const void *data;
    size_t bytes;
} zf_wordpiece_file;

/* Reads a vocabulary: a file of lines; a tokenizer.json with a WordPiece model (a name that ends in
 * .json); or a folder with one of these, and optionally a tokenizer_config.json and an
 * added_tokens.json, such as Hugging Face's models and these programs' checkpoints. `options` (may
 * be NULL) sets options that no file sets.
 *
 * NULL when a file cannot be read; when a line is too long or not UTF-8; when one of the five
 * tokens is missing; when tokenizer.json needs something that this tokenizer does not support; when
 * the files contradict `options`. */
ZF_API zf_wordpiece *zf_wordpiece_open(const char *path, const zf_wordpiece_options *options,
                                       zf_error *error);

/* The same for the lines of a vocab.txt in memory, which is copied; `name` is the path in
 * messages. */
ZF_API zf_wordpiece *zf_wordpiece_parse(const char *text, size_t bytes, const char *name,
                                        const zf_wordpiece_options *options, zf_error *error);

/* One token, for zf_wordpiece_new. */
typedef struct zf_wordpiece_entry {
    const char *text; /* UTF-8 without a 0 */
    size_t bytes;     /* at most ZF_WORDPIECE_TOKEN_BYTES */
    int32_t id;
    bool added; /* it is a token wherever it occurs in a text, and never part of a word */
} zf_wordpiece_entry;

/* A vocabulary of these tokens; of equal ones the last counts. Everything except source->name is
 * copied. NULL when one of the five tokens is missing, or memory runs out. */
ZF_API zf_wordpiece *zf_wordpiece_new(const zf_wordpiece_entry *tokens, size_t count,
                                      const zf_wordpiece_options *options,
                                      const zf_wordpiece_file *source, const char *name,
                                      zf_error *error);
ZF_API void zf_wordpiece_free(zf_wordpiece *);

/* A number that differs, almost surely, for other tokens, ids or options. */
ZF_API uint64_t zf_wordpiece_digest(const zf_wordpiece *);

/* Its options: yes or no, all of them set. */
ZF_API zf_wordpiece_options zf_wordpiece_options_of(const zf_wordpiece *);

/* Its file; the data live as long as the vocabulary. */
ZF_API zf_wordpiece_file zf_wordpiece_source(const zf_wordpiece *);

/* The number of ids: the largest id plus one. */
ZF_API int32_t zf_wordpiece_size(const zf_wordpiece *);

/* The token of an id, with ##, valid as long as the vocabulary; empty for an id without a token;
 * NULL for an id outside. */
ZF_API const char *zf_wordpiece_token(const zf_wordpiece *, int32_t id);

/* The id of a token, with ##; -1 if there is none. */
ZF_API int32_t zf_wordpiece_id(const zf_wordpiece *, const char *token);

/* Whether the token is one of the five special ones. */
ZF_API bool zf_wordpiece_is_special(const zf_wordpiece *, int32_t id);

/* Whether the token is an added one, found wherever it occurs in a text. The five special ones
 * are. */
ZF_API bool zf_wordpiece_is_added(const zf_wordpiece *, int32_t id);

/* Whether the token can be a part of words. An added token is only if it is in the vocabulary
 * too. */
ZF_API bool zf_wordpiece_is_piece(const zf_wordpiece *, int32_t id);

/* Whether the token begins a word: false for a continuation, the empty token, and an id without a
 * token. */
ZF_API bool zf_wordpiece_starts_word(const zf_wordpiece *, int32_t id);

enum {
    ZF_WORDPIECE_SPECIAL = 1 /* [PAD] ... [MASK] in a text are these tokens, not words; other added
                             * tokens always are tokens */
};

/* Writes the first `cap` ids of the text and returns how many the whole text has. Does not add
 * [CLS] and [SEP]. Takes any bytes: invalid UTF-8 and control characters are ignored. Cannot fail,
 * allocates nothing. */
ZF_API int64_t zf_wordpiece_encode(const zf_wordpiece *, const char *text, size_t bytes,
                                   unsigned flags, int32_t *ids, int64_t cap);

/* The words and punctuation marks of a text, as they are before WordPiece: calls `emit` for each
 * in order with UTF-8 that lives for the call; with NULL and 0 for a word of more than
 * ZF_WORDPIECE_WORD_CHARS characters. */
typedef void zf_wordpiece_word(void *user, const char *word, size_t bytes);
ZF_API void zf_wordpiece_words(const char *text, size_t bytes, const zf_wordpiece_options *options,
                               zf_wordpiece_word *emit, void *user);

/* Trains a vocabulary of at most `size` tokens on the text file `corpus` and writes it to `path`
 * (to another file in its folder that is then renamed). It has the special tokens; the 1000 most
 * frequent characters, as beginnings and, where they occur, as continuations; and merged tokens:
 * repeatedly, the most frequent pair of neighbouring tokens in all words becomes one token,
 * until there are `size` tokens or no pair occurs twice. Of equally frequent pairs, the one of
 * older tokens is taken (characters are ordered by their bytes), so the same corpus always gives
 * the same file.
 *
 * Returns the number of tokens; -1 when a file cannot be read or written, the corpus has no words,
 * `size` is too small for the characters, or memory runs out. Needs memory for the distinct words,
 * not for the corpus. */
ZF_API int32_t zf_wordpiece_train(const char *corpus, int32_t size,
                                  const zf_wordpiece_options *options, const char *path,
                                  zf_error *error);
