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
 * No function prints or exits. One that fails writes one line of text to `err` (terminated, at most
 * err_size bytes; may be NULL and 0). A vocabulary never changes, so any number of threads may use
 * it. */
#ifndef BERT_TOKENIZER_H
#define BERT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    BERT_WORD_CHARS = 100,  /* a longer word is [UNK] */
    BERT_TOKEN_BYTES = 1000 /* a longer line of a vocabulary is an error */
};

/* The tokens that every vocabulary has: bert_vocab_id(v, bert_special_tokens[BERT_MASK]). */
enum { BERT_PAD, BERT_UNK, BERT_CLS, BERT_SEP, BERT_MASK, BERT_SPECIAL_COUNT };
extern const char *const bert_special_tokens[BERT_SPECIAL_COUNT];

/* How a text is prepared for WordPiece. Options that are not set have their defaults. The names in
 * brackets are those of tokenizer_config.json. */
typedef enum bert_choice { BERT_UNSAID, BERT_NO, BERT_YES } bert_choice;
typedef struct bert_tokenizer_options {
    bert_choice lower_case;    /* [do_lower_case] yes by default: an "uncased" model */
    bert_choice strip_accents; /* [strip_accents] by default as lower_case */
    bert_choice chinese_chars; /* [tokenize_chinese_chars] yes: each ideograph is a word */
    bert_choice clean_text;    /* yes: removes control characters */
} bert_tokenizer_options;

/* The defaults of a cased model, and of an uncased one (NULL). */
extern const bert_tokenizer_options bert_cased_options;
static inline const bert_tokenizer_options *bert_cased(bool cased)
{
    return cased ? &bert_cased_options : NULL;
}

/* The options with yes or no everywhere; NULL: all defaults. */
bert_tokenizer_options bert_tokenizer_resolve(const bert_tokenizer_options *);

typedef struct bert_vocab bert_vocab;

/* The vocabulary's file as it was read, even if it has changed since. Checkpoints and model folders
 * contain it. */
typedef struct bert_vocab_file {
    const char *name; /* its name in a folder: "vocab.txt" or "tokenizer.json" */
    const void *data;
    size_t bytes;
} bert_vocab_file;

/* Reads a vocabulary: a file of lines; a tokenizer.json with a WordPiece model (a name that ends in
 * .json); or a folder with one of these, and optionally a tokenizer_config.json and an
 * added_tokens.json, such as Hugging Face's models and these programs' checkpoints. `options` (may
 * be NULL) sets options that no file sets.
 *
 * NULL when a file cannot be read; when a line is too long or not UTF-8; when one of the five
 * tokens is missing; when tokenizer.json needs something that this tokenizer does not support; when
 * the files contradict `options`. */
bert_vocab *bert_vocab_load(const char *path, const bert_tokenizer_options *options, char *err,
                            size_t err_size);

/* The same for the lines of a vocab.txt in memory, which is copied; `name` is the path in
 * messages. */
bert_vocab *bert_vocab_parse(const char *text, size_t bytes, const char *name,
                             const bert_tokenizer_options *options, char *err, size_t err_size);

/* One token, for bert_vocab_new. */
typedef struct bert_token {
    const char *text; /* UTF-8 without a 0 */
    size_t bytes;     /* at most BERT_TOKEN_BYTES */
    int32_t id;
    bool added; /* it is a token wherever it occurs in a text, and never part of a word */
} bert_token;

/* A vocabulary of these tokens; of equal ones the last counts. Everything except source->name is
 * copied. NULL when one of the five tokens is missing, or memory runs out. */
bert_vocab *bert_vocab_new(const bert_token *tokens, size_t count,
                           const bert_tokenizer_options *options, const bert_vocab_file *source,
                           const char *name, char *err, size_t err_size);

void bert_vocab_free(bert_vocab *);

/* A number that differs, almost surely, for other tokens, ids or options. */
uint64_t bert_vocab_digest(const bert_vocab *);

/* Its options: yes or no, all of them set. */
bert_tokenizer_options bert_vocab_options(const bert_vocab *);

/* Its file; the data live as long as the vocabulary. */
bert_vocab_file bert_vocab_source(const bert_vocab *);

/* The number of ids: the largest id plus one. */
int32_t bert_vocab_size(const bert_vocab *);

/* The token of an id, with ##, valid as long as the vocabulary; empty for an id without a token;
 * NULL for an id outside. */
const char *bert_vocab_token(const bert_vocab *, int32_t id);

/* The id of a token, with ##; -1 if there is none. */
int32_t bert_vocab_id(const bert_vocab *, const char *token);

/* Whether the token is one of the five special ones. */
bool bert_vocab_is_special(const bert_vocab *, int32_t id);

/* Whether the token is an added one, found wherever it occurs in a text. The five special ones
 * are. */
bool bert_vocab_is_added(const bert_vocab *, int32_t id);

/* Whether the token can be a part of words. An added token is only if it is in the vocabulary
 * too. */
bool bert_vocab_is_piece(const bert_vocab *, int32_t id);

/* Whether the token begins a word: false for a continuation, the empty token, and an id without a
 * token. */
bool bert_vocab_starts_word(const bert_vocab *, int32_t id);

enum {
    BERT_SPECIAL_TOKENS = 1 /* [PAD] ... [MASK] in a text are these tokens, not words; other added
                             * tokens always are tokens */
};

/* Writes the first `cap` ids of the text and returns how many the whole text has. Does not add
 * [CLS] and [SEP]. Takes any bytes: invalid UTF-8 and control characters are ignored. Cannot fail,
 * allocates nothing. */
int64_t bert_encode(const bert_vocab *, const char *text, size_t bytes, unsigned flags,
                    int32_t *ids, int64_t cap);

/* The words and punctuation marks of a text, as they are before WordPiece: calls `emit` for each in
 * order with UTF-8 that lives for the call; with NULL and 0 for a word of more than BERT_WORD_CHARS
 * characters. */
typedef void bert_word(void *user, const char *word, size_t bytes);
void bert_words(const char *text, size_t bytes, const bert_tokenizer_options *options,
                bert_word *emit, void *user);

/* Trains a vocabulary of at most `size` tokens on the text file `corpus` and writes it to `path`
 * (to a file beside it that is then renamed). It has the special tokens; the 1000 most frequent
 * characters, as beginnings and, where they occur, as continuations; and merged tokens: repeatedly,
 * the most frequent pair of neighbouring tokens in all words becomes one token, until there are
 * `size` tokens or no pair occurs twice. Of equally frequent pairs, the one of older tokens is
 * taken (characters are ordered by their bytes), so the same corpus always gives the same file.
 *
 * Returns the number of tokens; -1 when a file cannot be read or written, the corpus has no words,
 * `size` is too small for the characters, or memory runs out. Needs memory for the distinct words,
 * not for the corpus. */
int32_t bert_vocab_train(const char *corpus, int32_t size, const bert_tokenizer_options *options,
                         const char *path, char *err, size_t err_size);

/* The length of the UTF-8 sequence at p, and its character in *c; 0 if the n > 0 bytes begin with
 * none (incomplete, overlong, a surrogate, beyond U+10FFFF). */
int bert_decode(const unsigned char *p, size_t n, uint32_t *c);

/* Whether Unicode has it as a space (White_Space). */
bool bert_is_space(uint32_t c);

#endif
