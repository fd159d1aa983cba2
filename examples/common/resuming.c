#include "resuming.h"
#include "fail.h"

#include <string.h>

bool resuming_save(const resuming *r, const saving *s, bool leads, zf_program *program,
                   zf_json_writer *config, zf_error *error)
{
    zf_note notes[RESUMING_NOTES + TOKENIZING_NOTES];
    zf_attachment attachments[3] = {{"config.json", NULL, 0}};
    folder_tokenizer tokenizer = {.json = NULL};
    tokenizing_notes words;
    zf_save_desc d = {.notes = notes,
                      .note_count = r->note_count + TOKENIZING_NOTES,
                      .attachments = attachments,
                      .attachment_count = r->vocab ? 3 : 1};
    tokenizing_note(&words, r->words, r->vocab, r->digest);
    memcpy(notes, r->notes, (size_t)r->note_count * sizeof *notes);
    memcpy(notes + r->note_count, words.note, sizeof words.note);
    attachments[0].data = zf_json_text(config, &attachments[0].bytes, error);
    if (r->vocab && folder_tokenizer_open(&tokenizer, r->vocab, r->frame, r->longest, error))
        memcpy(attachments + 1, tokenizer.files, sizeof tokenizer.files);
    if (!error->status) saving_save(s, leads, program, &d, error);
    folder_tokenizer_close(&tokenizer);
    zf_json_writer_free(config);
    return !error->status;
}

/* A setting of the checkpoint is another. */
static bool refuse(const resuming *r, const zf_note *wanted, const char *saved, zf_error *error)
{
    return fail(error, ZF_ERR_MISMATCH,
                "%s was trained with %s = %s%s, not %s: give the same%s%s, or start anew from its "
                "weights with --init %s",
                r->load, wanted->key, saved, strcmp(wanted->key, "corpus") ? "" : " tokens",
                wanted->value, r->names_options ? " --" : "", r->names_options ? wanted->key : "",
                r->load);
}

bool resuming_fits(const resuming *r, zf_error *error)
{
    char saved[64], path[1024], init[1100];
    union {
        char bytes[512];
        double aligned;
    } config;
    tokenizing_notes words;
    snprintf(init, sizeof init, "--init %s", r->load);
    tokenizing_note(&words, r->words, r->vocab, r->digest);
    if (!tokenizing_fits(&words, r->load, r->vocab_path, r->corpus_path, init, error)) return false;
    for (int i = 0; i < r->equal; i++) {
        const zf_note *wanted = &r->notes[i];
        if (!strcmp(wanted->key, "precision"))
            snprintf(saved, sizeof saved, "%s", zf_dtype_name(folder_precision(r->load)));
        else if (zf_checkpoint_note(r->load, wanted->key, saved, sizeof saved, error)) return false;
        if (strcmp(saved, wanted->value)) return refuse(r, wanted, saved, error);
    }
    snprintf(path, sizeof path, "%s/config.json", r->load);
    if (!r->config_load(path, &config, error)) return false;
    return !memcmp(&config, r->config, r->config_bytes) ||
           fail(error, ZF_ERR_MISMATCH,
                "%s was trained with another model than --model %s: give the same", r->load,
                r->model);
}
