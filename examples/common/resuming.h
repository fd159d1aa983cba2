/* What a checkpoint holds besides its tensors: the settings of its run, the model's configuration
 * and the tokenizer. A run that goes on from it must have the same, for the same bits. */
#ifndef RESUMING_H
#define RESUMING_H

#include "folder.h"
#include "saving.h"
#include "tokenizing.h"

enum { RESUMING_NOTES = 32 };

typedef struct resuming {
    const char *load, *model, *vocab_path, *corpus_path; /* options, or NULL */
    const zf_note *notes; /* at most RESUMING_NOTES: settings, */
    int32_t note_count, equal; /* of which the first `equal` must be the same */
    bool names_options; /* their names are those of options */
    const tokenizing *words;
    const bert_vocab *vocab; /* NULL: there is no text */
    uint64_t digest;         /* of the text */
    folder_frame frame;
    int64_t longest; /* tokens of a text */
    const void *config;
    size_t config_bytes; /* at most 512; it has no pointers */
    bool (*config_load)(const char *name_or_path, void *config, zf_error *error);
} resuming;

/* Saves a checkpoint with all of it (saving_save); frees the writer of config.json. */
bool resuming_save(const resuming *r, const saving *s, bool leads, zf_program *program,
                   zf_json_writer *config, zf_error *error);

/* Whether the run is the one that the checkpoint `load` belongs to; else *error says why not. */
bool resuming_fits(const resuming *r, zf_error *error);

#endif
