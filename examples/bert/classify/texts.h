/* Texts with labels: a file with a header line (NAME.csv, or NAME.tsv with tabs), or JSON Lines.
 *
 *     text,label                                  {"text": "a fine film", "label": "good"}
 *     "a fine film, really",good
 *
 * They become rows of tokens, [CLS] text [SEP], or of two texts [CLS] text [SEP] pair [SEP]. */
#ifndef BERT_TEXTS_H
#define BERT_TEXTS_H

#include "../../../zeroflow_llm.h"
#include "../model.h"

typedef struct texts_desc {
    const char *text, *pair, *label; /* names of columns, or of members; NULL: there is none */
    const zf_examples_desc *examples;   /* the tokenizer; sequence, at which texts are cut */
    bool two_separators;             /* between two texts */
} texts_desc;

typedef struct texts {
    int32_t *ids;
    int64_t *at, *second; /* row k has the tokens at[k]..at[k + 1] - 1, from second[k] of the pair */
    char **said;          /* [count]: what a line says its label is */
    int32_t *label;       /* [count], numbers of labels; or */
    float *number;        /* [count] */
    int64_t *order;       /* the first held_out are held out */
    int64_t count, held_out, longest, cut;
    uint64_t digest, begins; /* of tokens and labels; of where texts begin */
    size_t token_room, room;
} texts;

/* False with *error, which names the file and the line: a column is missing, a text is empty, a
 * line has other columns than the first; there are fewer than two texts (of which one is held out),
 * or none. A pair is cut token by token from the end of the longer text, as by transformers. */
bool texts_load(texts *, const char *path, const texts_desc *, zf_error *error);
void texts_free(texts *);

/* Sets what labels are in numbers: those that the model has, or of one that predicts words, all that
 * are said, in their order, which become the model's. regresses: they are numbers. False with
 * *error: a label is none of the model's, or no number; all texts have the same one. */
bool texts_take_labels(texts *, bert_config *config, bool regresses, const char *path,
                       zf_error *error);

/* Name number `label` of the model: `bytes` of it. */
const char *texts_name(const bert_config *config, int64_t label, int *bytes);

#endif
