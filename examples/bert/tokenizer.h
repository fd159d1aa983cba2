/* The BERT tokenizer: text to WordPiece ids, and the training of a vocabulary from a corpus.
 *
 *     text --clean, lower-case, strip accents, split--> words and punctuation --WordPiece--> ids
 *
 *     "Ça va, Straße?"     ca va , straße ?     ca va , st ##ra ##ß ##e ?
 *
 * A vocabulary is a file with one token per line; the id of a token is its line, counted from 0.
 * [PAD], [UNK], [CLS], [SEP] and [MASK] must be among them; a token that begins with ## continues a
 * word. Of equal lines the last one is the token, and the ids of the others have none.
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

/* What becomes of a text before WordPiece. An option that nobody has said something about has its
 * default. The names in brackets are those of tokenizer_config.json. */
typedef enum bert_choice { BERT_UNSAID, BERT_NO, BERT_YES } bert_choice;
typedef struct bert_tokenizer_options {
    bert_choice lower_case;    /* [do_lower_case] yes by default: an "uncased" model */
    bert_choice strip_accents; /* [strip_accents] by default as lower_case */
    bert_choice chinese_chars; /* [tokenize_chinese_chars] yes: each ideograph is a word */
    bert_choice clean_text;    /* yes: without control characters */
} bert_tokenizer_options;

/* The defaults of a model that tells capitals and accents apart, or not (NULL). */
extern const bert_tokenizer_options bert_cased_options;
static inline const bert_tokenizer_options *bert_cased(bool cased)
{
    return cased ? &bert_cased_options : NULL;
}

/* The same with yes or no everywhere; NULL: all defaults. */
bert_tokenizer_options bert_tokenizer_resolve(const bert_tokenizer_options *);

typedef struct bert_vocab bert_vocab;

/* The file as it was read, whatever has become of it since: what a checkpoint or a model folder
 * holds of a vocabulary. */
typedef struct bert_vocab_file {
    const char *name; /* that it has in a folder: "vocab.txt" or "tokenizer.json" */
    const void *data;
    size_t bytes;
} bert_vocab_file;

/* Reads a vocabulary: a file of lines; a tokenizer.json with a WordPiece model (a name that ends in
 * .json); or a folder with one of these, and perhaps a tokenizer_config.json and an
 * added_tokens.json, as Hugging Face's models and the checkpoints of these programs are. Of what no
 * file says something about, `options` tells; NULL: nothing.
 *
 * NULL when a file cannot be read; for the first line that is too long or not UTF-8; when one of
 * the five tokens is missing; when tokenizer.json asks for what this tokenizer does not do; when
 * the files say other than `options`. */
bert_vocab *bert_vocab_load(const char *path, const bert_tokenizer_options *options, char *err,
                            size_t err_size);

/* The same of the lines of a vocab.txt in memory, which is copied; `name` stands for the path in
 * messages. */
bert_vocab *bert_vocab_parse(const char *text, size_t bytes, const char *name,
                             const bert_tokenizer_options *options, char *err, size_t err_size);

/* One token, for bert_vocab_new. */
typedef struct bert_token {
    const char *text; /* UTF-8 without a 0 */
    size_t bytes;     /* at most BERT_TOKEN_BYTES */
    int32_t id;
    bool added; /* wherever it stands in a text, it is a token and not part of a word */
} bert_token;

/* A vocabulary of these tokens; of equal ones the last. All is copied but source->name. NULL when
 * one of the five tokens is missing, or memory runs out. */
bert_vocab *bert_vocab_new(const bert_token *tokens, size_t count,
                           const bert_tokenizer_options *options, const bert_vocab_file *source,
                           const char *name, char *err, size_t err_size);

void bert_vocab_free(bert_vocab *);

/* A number that is another one, almost surely, when tokens, ids or options are others. */
uint64_t bert_vocab_digest(const bert_vocab *);

/* Its options: yes or no, never unsaid. */
bert_tokenizer_options bert_vocab_options(const bert_vocab *);

/* Its file; the data live as long as the vocabulary. */
bert_vocab_file bert_vocab_source(const bert_vocab *);

/* The number of ids: the largest one and one. */
int32_t bert_vocab_size(const bert_vocab *);

/* The token of an id, ## included, as long as the vocabulary lives; empty for an id below the size
 * that no token has; NULL for other numbers. */
const char *bert_vocab_token(const bert_vocab *, int32_t id);

/* The id of a token, ## included; -1 when there is none. */
int32_t bert_vocab_id(const bert_vocab *, const char *token);

/* Whether the token is one of the five. */
bool bert_vocab_is_special(const bert_vocab *, int32_t id);

/* Whether the token is an added one: it is found wherever it stands in a text. The five are. */
bool bert_vocab_is_added(const bert_vocab *, int32_t id);

/* Whether words may have it in them. An added token is such a piece only if it is in the vocabulary
 * as well. */
bool bert_vocab_is_piece(const bert_vocab *, int32_t id);

/* Whether the token begins a word: false for a continuation, for the empty token, and for an id
 * that no token has. */
bool bert_vocab_starts_word(const bert_vocab *, int32_t id);

enum {
    BERT_SPECIAL_TOKENS = 1 /* [PAD] ... [MASK], so written in a text, are themselves, not words;
                             * other added tokens always are */
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
void bert_words(const char *text, size_t bytes, const bert_tokenizer_options *options,
                bert_word *emit, void *user);

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
int32_t bert_vocab_train(const char *corpus, int32_t size, const bert_tokenizer_options *options,
                         const char *path, char *err, size_t err_size);

/* The length of the UTF-8 sequence at p, whose character goes to *c; 0 when the n > 0 bytes begin
 * with none (stray, cut or overlong, a surrogate, beyond U+10FFFF). */
int bert_decode(const unsigned char *p, size_t n, uint32_t *c);

/* Whether Unicode counts it among the spaces (White_Space). */
bool bert_is_space(uint32_t c);

#endif
