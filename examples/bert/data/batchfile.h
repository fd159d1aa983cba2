/* Batches from a safetensors file, for comparison with other systems: integers (I64, I32, U8, BOOL)
 * input_ids, labels (-100: none) and, optionally, token_type_ids (default 0) and attention_mask
 * (default 1), each [S,B,T] or [B,T], and next_sentence_label [S,B] or [B] (-100: none). Step k
 * uses entry k mod S. */
#ifndef BERT_BATCHFILE_H
#define BERT_BATCHFILE_H

#include "batch.h"

typedef struct bert_batch_file {
    int64_t entries, examples, sequence, predictions; /* S, B, T; maximum labels of an entry */
    bool next_sentences;                              /* there are next-sentence labels */
    bert_batch *batch;                                /* [S] */
} bert_batch_file;

/* NULL with *error for a file that is damaged, lacks a tensor or has an unknown one, or whose
 * shapes or values do not fit. ids are checked against `vocab` and `types`. */
bert_batch_file *bert_batch_file_load(const char *path, int64_t vocab, int64_t types,
                                      zf_error *error);
/* The maximum number of labels in a part of an entry, at least 1, when entries are split into
 * `parts` equal parts (bert_batch_part). */
int64_t bert_batch_file_predictions(const bert_batch_file *file, int64_t parts);
void bert_batch_file_free(bert_batch_file *file);

#endif
