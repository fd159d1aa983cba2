/* Command line options for tokenization. */
#ifndef TOKENIZING_H
#define TOKENIZING_H

#include "../../../zeroflow_llm.h"

typedef struct tokenizing {
    bool cased;
    int64_t strip_accents, chinese_chars; /* a zf_wordpiece_choice */
} tokenizing;

extern const zf_option tokenizing_rows[];

/* The options; others are not set. */
static inline zf_wordpiece_options tokenizing_options(const tokenizing *t)
{
    return (zf_wordpiece_options){.lower_case = t->cased ? ZF_WORDPIECE_NO : ZF_WORDPIECE_UNSAID,
                                  .strip_accents = (zf_wordpiece_choice)t->strip_accents,
                                  .chinese_chars = (zf_wordpiece_choice)t->chinese_chars};
}

/* What a checkpoint keeps about its tokenization, compared when its run is resumed: notes after
 * those of the settings. Older checkpoints only have "cased". */
enum { TOKENIZING_NOTES = 6, TOKENIZING_TEXT = 20 };
typedef struct tokenizing_notes {
    zf_note note[TOKENIZING_NOTES];
    char vocab[TOKENIZING_TEXT], corpus[TOKENIZING_TEXT], begins[TOKENIZING_TEXT];
} tokenizing_notes;

/* vocab NULL: there is none. corpus, begins: digests of what is trained on, and of where its
 * examples begin; 0: none. */
void tokenizing_note(tokenizing_notes *, const tokenizing *, const zf_wordpiece *vocab,
                     uint64_t corpus, uint64_t begins);

/* Whether the checkpoint `load` has the same; else *error names the difference. The paths are those
 * of the vocabulary and the corpus; `init` is the option for starting from the checkpoint's
 * weights. */
bool tokenizing_fits(const tokenizing_notes *, const char *load, const char *vocab_path,
                     const char *corpus_path, const char *init, zf_error *error);

#endif
