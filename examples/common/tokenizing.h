/* Options of a command line that say how texts become words. */
#ifndef TOKENIZING_H
#define TOKENIZING_H

#include "../../zeroflow.h"
#include "../bert/tokenizer.h"
#include "options.h"

typedef struct tokenizing {
    bool cased;
    int64_t strip_accents, chinese_chars; /* a bert_choice */
} tokenizing;

#define TOKENIZING_ROWS(to)                                                                        \
    {"cased", OPTION_FLAG, NULL, &(to)->cased, 0, 0, "tell capitals and accents apart"},           \
        {"strip-accents",       OPTION_CHOICE, "auto|no|yes", &(to)->strip_accents, 0, 0,          \
         "auto: unless --cased"},                                                                  \
    {                                                                                              \
        "chinese-chars", OPTION_CHOICE, "auto|no|yes", &(to)->chinese_chars, 0, 0,                 \
            "each ideograph is a word; auto: yes"                                                  \
    }

/* What they say; the rest is unsaid. */
static inline bert_tokenizer_options tokenizing_options(const tokenizing *t)
{
    return (bert_tokenizer_options){.lower_case = t->cased ? BERT_NO : BERT_UNSAID,
                                    .strip_accents = (bert_choice)t->strip_accents,
                                    .chinese_chars = (bert_choice)t->chinese_chars};
}

/* What is kept in a checkpoint of how texts became ids, to be compared when its run goes on: notes
 * behind those of the settings. Older checkpoints lack all but "cased". */
enum { TOKENIZING_NOTES = 5, TOKENIZING_TEXT = 20 };
typedef struct tokenizing_notes {
    zf_note note[TOKENIZING_NOTES];
    char vocab[TOKENIZING_TEXT], corpus[TOKENIZING_TEXT];
} tokenizing_notes;

/* vocab NULL: there is none, nor a corpus. */
void tokenizing_note(tokenizing_notes *, const tokenizing *, const bert_vocab *vocab,
                     uint64_t corpus_digest);

/* Whether the checkpoint `load` has the same; else *error says what is other. The vocabulary and
 * the corpus came from the paths, and init is how to start from the checkpoint's weights. */
bool tokenizing_fits(const tokenizing_notes *, const char *load, const char *vocab_path,
                     const char *corpus_path, const char *init, zf_error *error);

#endif
