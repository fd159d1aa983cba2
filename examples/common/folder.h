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

/* What a checkpoint was trained in: f32 where it does not say. */
zf_dtype folder_precision(const char *path);
/* A program takes the parameters of a checkpoint; masters: the master weights of those that were
 * trained in 16 bits. False with *error. */
bool folder_load(zf_program *program, const char *path, bool masters, zf_error *error);

bool folder_has_vocab(const char *path);
bool folder_make(const char *path, zf_error *error); /* where it is not there */

/* The vocabulary of a folder of either kind, or of a file (bert_vocab_load). `options` are those
 * that were asked for, or NULL. NULL with *error. */
bert_vocab *folder_vocab(const char *path, const bert_tokenizer_options *options, zf_error *error);

/* What a tokenizer puts around a text of its own accord. */
typedef enum folder_frame {
    FOLDER_BERT, /* [CLS] A [SEP], [CLS] A [SEP] B [SEP] */
    FOLDER_GPT   /* [SEP] A: [SEP] ends a text, so that it is in front of one as well */
} folder_frame;

/* Writes the files of a tokenizer. longest: tokens of a text, at most. */
bool folder_put_tokenizer(const char *path, const bert_vocab *vocab, folder_frame frame,
                          int64_t longest, zf_error *error);

enum { FOLDER_PATH = 1024 };

/* Begins an export of the model in folder `from` to `to`: a file X.safetensors, or a folder for
 * transformers, which gets its config.json and, where `from` has a vocabulary, the files of a
 * tokenizer. Training on a batch file leaves none. Frees `config`. weights: the file of weights,
 * which the caller writes. */
bool folder_export(const char *to, const char *from, zf_json_writer *config, folder_frame frame,
                   int64_t longest, char weights[FOLDER_PATH], zf_error *error);

/* The files of a tokenizer for a checkpoint: its vocab.txt as it was read, whatever has become of
 * it since, or where there was none, tokenizer.json; and tokenizer_config.json. */
typedef struct folder_tokenizer {
    zf_attachment files[2];
    zf_json_writer *json, *config; /* hold what these refer to */
} folder_tokenizer;
bool folder_tokenizer_open(folder_tokenizer *, const bert_vocab *vocab, folder_frame frame,
                           int64_t longest, zf_error *error);
void folder_tokenizer_close(folder_tokenizer *);

#endif
