/* Fine-tuning on texts with labels, or numbers: a model of a folder gets a head for them. */
#ifndef BERT_CLASSIFY_H
#define BERT_CLASSIFY_H

#include "../../frame/model/session.h"
#include "../../frame/model/settings.h"
#include "texts.h"

extern const objective classify_objective;

/* settings.own of finetune; NULL: as if all were 0. */
typedef struct classify_options {
    int64_t task; /* a bert_task, less 1 */
    const char *text, *pair, *label;
} classify_options;

/* Loads the texts of --data with the tokenizer of o; the desc's examples are set here. */
bool classify_load(dataset *d, texts *t, const settings *o, const zf_config_facts *facts,
                   const texts_desc *desc, zf_error *error);

/* Rows of texts: `rows` from number `first` of `order` on (NULL: in their order), those that there are. */
typedef struct classify_batch {
    int64_t rows, sequence, filled;
    int32_t *ids, *types, *label; /* [rows, sequence], [rows]; a row that is no text has -100 */
    uint8_t *mask;
    float *number, *there;
    int32_t padding;
} classify_batch;
bool classify_batch_new(classify_batch *b, int64_t rows, int64_t sequence, int64_t padding,
                        zf_error *error);
void classify_batch_free(classify_batch *b);
/* text -1: the row is none. */
void classify_batch_put(classify_batch *b, const texts *t, int64_t row, int64_t text);
/* Writes `count` rows from `first` on. */
zf_status classify_feed(session *s, const classify_batch *b, int64_t first, int64_t count,
                        float weight);

#endif
