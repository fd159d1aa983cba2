/* Folders with a model, as Hugging Face's transformers and tokenizers have them.
 *
 *     config.json  model.safetensors  vocab.txt  tokenizer.json  tokenizer_config.json
 *     special_tokens_map.json
 *
 * A checkpoint of zf_save is another kind: its weights are params.safetensors or the files of
 * ranks, and manifest.json says so.
 */
#ifndef FOLDER_H
#define FOLDER_H

#include "../bert/tokenizer.h"
#include "../../zeroflow.h"

bool folder_is(const char *path); /* a folder, of any kind */
bool folder_is_checkpoint(const char *path);

bool folder_has_vocab(const char *path);
/* Whether a path is that of a file of weights to write, and not of a folder. */
bool folder_names_weights(const char *path);

/* The vocabulary of a folder of either kind, or of a file (bert_vocab_load). `options` are those that
 * were asked for, or NULL. NULL with *error. */
bert_vocab *folder_vocab(const char *path, const bert_tokenizer_options *options, zf_error *error);

/* Makes the folder, where it is not there; false with *error. */
bool folder_make(const char *path, zf_error *error);
/* Saves what a writer of JSON holds as a file of the folder, and frees the writer. */
bool folder_put_json(const char *path, const char *name, zf_json_writer *json, zf_error *error);

/* What a tokenizer puts around a text of its own accord. */
typedef enum folder_frame {
    FOLDER_BERT, /* [CLS] A [SEP], [CLS] A [SEP] B [SEP] */
    FOLDER_GPT   /* [SEP] A: [SEP] ends a text, so that it is in front of one as well */
} folder_frame;

/* Writes the files of a tokenizer. longest: tokens of a text, at most. */
bool folder_put_tokenizer(const char *path, const bert_vocab *vocab, folder_frame frame,
                          int64_t longest, zf_error *error);

/* The same for a checkpoint: its vocab.txt as it was read, whatever has become of it since, or where
 * there was none, tokenizer.json; and tokenizer_config.json. */
typedef struct folder_tokenizer {
    zf_attachment files[2];
    zf_json_writer *json, *config; /* hold what these refer to */
} folder_tokenizer;
bool folder_tokenizer_open(folder_tokenizer *, const bert_vocab *vocab, folder_frame frame,
                           int64_t longest, zf_error *error);
void folder_tokenizer_close(folder_tokenizer *);

#endif
