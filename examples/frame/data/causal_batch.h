/* Batches of tokens, each labelled with the next token: from a text, or from a file of batches.
 *
 *     text    the birds live near the banana . [SEP] a genus of ...
 *     ids     birds live near the
 *     labels  live  near the  banana
 */
#ifndef CAUSAL_BATCH_H
#define CAUSAL_BATCH_H

#include "../../../zeroflow_llm.h"

/* A text as one line of tokens. */
typedef struct causal_tokens {
    int32_t *id;
    int64_t count;
    int32_t end; /* the id after which a text ends; rows of a packed batch have texts apart by it */
} causal_tokens;

/* Examples first, first + 1, ...: each begins at a random place that depends on seed and number. */
void causal_batch_draw(zf_causal_batch *b, const causal_tokens *text, uint64_t seed, int64_t first);
/* Examples first, first + 1, ...: consecutive pieces of the text, starting again after its end. */
void causal_batch_read(zf_causal_batch *b, const causal_tokens *text, int64_t first);

/* Batches from a safetensors file, for comparison with other systems: integers (I64, I32, U8, BOOL)
 * input_ids and, optionally, labels (default: the ids) and attention_mask (default: 1), [S,B,T] or
 * [B,T]. As in Hugging Face's files, labels[t] is the expected ids[t], so the label of a token is
 * the next one's; -100: none. Step k uses entry k mod S. */
typedef struct causal_batch_file {
    int64_t entries;
    bool masked;      /* there is an attention_mask */
    zf_causal_batch *batch; /* [S] */
} causal_batch_file;

/* False with *error for a file that is damaged, lacks a tensor or has an unknown one, or whose
 * shapes or values do not fit (ids are below `vocab`). */
bool causal_batch_file_load(causal_batch_file *f, const char *path, int64_t vocab, zf_error *error);
void causal_batch_file_free(causal_batch_file *f);

#endif
