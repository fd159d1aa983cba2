/* Batches from a safetensors file, for comparison with other systems: int64 input_ids,
 * token_type_ids, attention_mask and labels (-100: none), each [S,B,T] or [B,T], and
 * next_sentence_label [S,B] or [B]. Step k takes entry k mod S. */
#ifndef BERT_BATCHFILE_H
#define BERT_BATCHFILE_H

#include "batch.h"

typedef struct bert_batch_file {
    int64_t entries, examples, sequence, predictions; /* S, B, T; the most labels of an entry */
    bert_batch *batch;                                /* [S] */
} bert_batch_file;

/* NULL with *error for a file that is damaged, lacks a tensor, or whose shapes or values do not
 * fit. ids are checked against `vocab` and `types`. */
bert_batch_file *bert_batch_file_load(const char *path, int64_t vocab, int64_t types,
                                      zf_error *error);
/* The most labels that a part of an entry has, 1 at least, when entries are cut into `parts` equal
 * ones (bert_batch_part). */
int64_t bert_batch_file_predictions(const bert_batch_file *file, int64_t parts);
void bert_batch_file_free(bert_batch_file *file);

#endif
