/* Text for training and generation: WordPiece tokens (examples/bert), a [SEP] behind each document.
 */
#ifndef GPT_TEXT_H
#define GPT_TEXT_H

#include "../bert/tokenizer.h"
#include "batch.h"

typedef struct gpt_text {
    bert_vocab *vocab;
    gpt_tokens train, held_out;
    uint64_t digest;     /* of the text's tokens (bert_corpus) */
    double unigram_nats; /* loss of a model that knows how frequent tokens are, and nothing else */
} gpt_text;

/* Reads a text of one sentence a line, with blank lines between documents, of which about 1% are
 * held out. Both parts must have more than `sequence` tokens. vocab: a file or a folder, as
 * folder_vocab takes them; options: those that were asked for, or NULL. */
bool gpt_text_open(gpt_text *t, const char *corpus, const char *vocab,
                   const bert_tokenizer_options *options, int64_t sequence, int64_t threads,
                   zf_error *error);
void gpt_text_close(gpt_text *t);

/* Prints a token as it follows what has been printed: with a space before it, unless it continues a
 * word or ends a clause. */
void gpt_print_token(const bert_vocab *vocab, int32_t id);

#endif
