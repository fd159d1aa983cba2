/* The BERT tokenizer: text to WordPiece ids, and the training of a vocabulary from a corpus.
 *
 *     text --clean, lower-case, strip accents, split--> words and punctuation --WordPiece--> ids
 *
 *     "Ça va, Straße?"     ca va , straße ?     ca va , st ##ra ##ß ##e ?
 *
 * A vocabulary is a file with one token per line; the id of a token is its line, counted from 0.
 * [PAD], [UNK], [CLS], [SEP] and [MASK] must be among them; a token that begins with ## continues a
 * word.
 *
 * Nothing here prints or exits. What can fail leaves one line for a person in `err` (terminated, at
 * most err_size bytes; NULL and 0 to do without). A vocabulary never changes, so any number of
 * threads may use one at a time.
 */
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

typedef struct bert_vocab bert_vocab;

/* Reads a vocabulary file. lower_case: texts are lower-cased and lose their accents (an "uncased"
 * model); otherwise they keep both. NULL when the file cannot be read; for the first line that is
 * empty, too long, not UTF-8 or a token already seen; when one of the five tokens is missing. */
bert_vocab *bert_vocab_load(const char *path, bool lower_case, char *err, size_t err_size);

/* The same from memory, which is copied; `name` stands for the path in messages. */
bert_vocab *bert_vocab_parse(const char *text, size_t bytes, const char *name, bool lower_case,
                             char *err, size_t err_size);

void bert_vocab_free(bert_vocab *);

/* The number of tokens. */
int32_t bert_vocab_size(const bert_vocab *);

/* The token of an id, ## included, as long as the vocabulary lives; NULL when there is none. */
const char *bert_vocab_token(const bert_vocab *, int32_t id);

/* The id of a token, ## included; -1 when there is none. */
int32_t bert_vocab_id(const bert_vocab *, const char *token);

/* Whether the token begins a word: false for a continuation, and for an id that is none. */
bool bert_vocab_starts_word(const bert_vocab *, int32_t id);

enum {
    BERT_SPECIAL_TOKENS = 1 /* [PAD] ... [MASK], so written in a text, are themselves, not words */
};

/* Writes the first `cap` ids of the text and returns how many the whole text has. Adds no [CLS] and
 * no [SEP]. Takes any bytes: what is not UTF-8 is passed over, as control characters are. Cannot
 * fail, allocates nothing. */
int64_t bert_encode(const bert_vocab *, const char *text, size_t bytes, unsigned flags,
                    int32_t *ids, int64_t cap);

/* The words and punctuation marks of a text, as they are before WordPiece: calls `emit` for each in
 * order with UTF-8 that lives for the call; with NULL and 0 for a word of more than BERT_WORD_CHARS
 * characters. */
typedef void bert_word(void *user, const char *word, size_t bytes);
void bert_words(const char *text, size_t bytes, bool lower_case, bert_word *emit, void *user);

/* Trains a vocabulary of at most `size` tokens on the text file `corpus` and writes it to `path`
 * (to a file beside it that is then renamed). It holds the special tokens; the 1000 most frequent
 * characters, each as a beginning and, where it occurs so, as a continuation; then, over and over,
 * the two neighbouring tokens that are the most frequent pair in all words become one token, until
 * there are `size` or no pair occurs twice. Of equally frequent pairs the one of older tokens wins
 * (characters are as old as their bytes order them): the same corpus always gives the same file.
 *
 * Returns the number of tokens; -1 when a file cannot be read or written, the corpus has no words,
 * `size` does not even hold the characters, or memory runs out. Needs memory for the distinct
 * words, not for the corpus. */
int32_t bert_vocab_train(const char *corpus, int32_t size, bool lower_case, const char *path,
                         char *err, size_t err_size);

#endif
