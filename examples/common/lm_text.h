/* Text for training and generation: WordPiece tokens (examples/bert), a [SEP] behind each document.
 */
#ifndef LM_TEXT_H
#define LM_TEXT_H

#include "../bert/tokenizer.h"
#include "lm_batch.h"

typedef struct lm_text {
    bert_vocab *vocab;
    lm_tokens train, held_out;
    uint64_t digest;     /* of the text's tokens (bert_corpus) */
    double unigram_nats; /* loss of a model that knows how frequent tokens are, and nothing else */
} lm_text;

/* Reads a text of one sentence a line, with blank lines between documents, of which about 1% are
 * held out. Both parts must have more than `sequence` tokens. vocab: a file or a folder, as
 * folder_vocab takes them; options: those that were asked for, or NULL. */
bool lm_text_open(lm_text *t, const char *corpus, const char *vocab,
                   const bert_tokenizer_options *options, int64_t sequence, int64_t threads,
                   zf_error *error);
void lm_text_close(lm_text *t);

/* Prints a token as it follows what has been printed: with a space before it, unless it continues a
 * word or ends a clause. */
void lm_print_token(const bert_vocab *vocab, int32_t id);

#endif
