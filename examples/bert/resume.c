/* Checkpoints of a run: what a run must have in common with the one that it continues. */
#define _POSIX_C_SOURCE 200809L
#include "../common/folder.h"
#include "run.h"

#include <stdlib.h>
#include <string.h>

enum { SETTINGS = 21, NOTES = SETTINGS + 2, SETTING_TEXT = 64 };

/* The settings that must be equal for a run to go on with the same bits, as notes of its
 * checkpoint; behind them how many parts a global batch has, and the steps in all, which may
 * change. `text` holds the values. */
static void setting_notes(const bert_run *r, zf_note notes[NOTES], char text[NOTES][SETTING_TEXT])
{
    const bert_job *job = r->job;
    const bert_settings *o = &job->o;
    const struct {
        const char *name, *text; /* text NULL: the number */
        double number;
    } all[NOTES] = {
        {"seq", NULL, (double)o->seq},
        {"masked", NULL, (double)o->masked},
        {"batch", NULL, (double)o->batch},
        {"optimizer", zf_optimizer_name((zf_optimizer)o->optimizer), 0},
        {"schedule", zf_schedule_name((zf_schedule_kind)o->schedule), 0},
        {"warmup", NULL, (double)o->warmup},
        {"seed", NULL, (double)o->seed},
        {"lr", NULL, o->lr},
        {"end-lr", NULL, o->end_lr},
        {"weight-decay", NULL, o->weight_decay},
        {"clip", NULL, o->clip},
        {"dropout", NULL, job->config.dropout},
        {"beta1", NULL, o->beta1},
        {"beta2", NULL, o->beta2},
        {"eps", NULL, o->eps},
        {"momentum", NULL, o->momentum},
        {"min-ratio", NULL, o->min_coeff},
        {"max-ratio", NULL, o->max_coeff},
        {"first-rate", NULL, (double)o->first_rate},
        {"precision", zf_dtype_name((zf_dtype)o->precision), 0},
        {"corpus", job->text.corpus ? NULL : "none",
         job->text.corpus ? (double)job->text.corpus->tokens : 0},
        {"parts", NULL, (double)bert_job_parts(job)},
        {"steps", NULL, (double)o->steps},
    };
    for (int i = 0; i < NOTES; i++) {
        int digits = 6; /* as few as read back the same */
        do snprintf(text[i], SETTING_TEXT, "%.*g", digits, all[i].number);
        while (strtod(text[i], NULL) != all[i].number && ++digits <= 17);
        if (all[i].text) snprintf(text[i], SETTING_TEXT, "%s", all[i].text);
        notes[i] = (zf_note){all[i].name, text[i]};
    }
}

static void word_notes(const bert_run *r, tokenizing_notes *words)
{
    const bert_text *text = &r->job->text;
    tokenizing_note(words, &r->job->o.words, text->vocab, text->corpus ? text->corpus->digest : 0);
}

bool bert_run_save(bert_run *r)
{
    const bert_vocab *vocab = r->job->text.vocab;
    char text[NOTES][SETTING_TEXT];
    zf_note notes[NOTES + TOKENIZING_NOTES];
    tokenizing_notes words;
    zf_attachment attachments[3] = {{"config.json", NULL, 0}};
    zf_json_writer *config = bert_config_json(&r->job->config);
    folder_tokenizer tokenizer = {.json = NULL};
    zf_save_desc d = {.notes = notes,
                      .note_count = NOTES + TOKENIZING_NOTES,
                      .attachments = attachments,
                      .attachment_count = vocab ? 3 : 1};
    setting_notes(r, notes, text);
    word_notes(r, &words);
    memcpy(notes + NOTES, words.note, sizeof words.note);
    attachments[0].data = zf_json_text(config, &attachments[0].bytes, &r->error);
    if (vocab &&
        folder_tokenizer_open(&tokenizer, vocab, FOLDER_BERT, r->job->config.positions, &r->error))
        memcpy(attachments + 1, tokenizer.files, sizeof tokenizer.files);
    if (!r->error.status) saving_save(&r->job->saving, r->leads, r->session.program, &d, &r->error);
    folder_tokenizer_close(&tokenizer);
    zf_json_writer_free(config);
    return !r->error.status;
}

/* Another number of parts goes on as well, but not with the same bits: sums are cut elsewhere. */
static void compare_parts(const bert_run *r, const zf_note *parts)
{
    char saved[SETTING_TEXT] = "1";
    zf_error none;
    (void)zf_checkpoint_note(r->job->o.load, parts->key, saved, sizeof saved, &none);
    if (r->leads && strcmp(saved, parts->value))
        printf("%s was trained on batches in %s part%s (ranks times micro-batches), not %s: it "
               "goes on, with other bits\n",
               r->job->o.load, saved, strcmp(saved, "1") ? "s" : "", parts->value);
}

/* A setting of the checkpoint is another. */
static bool refuse(bert_run *r, const zf_note *wanted, const char *saved)
{
    const char *load = r->job->o.load;
    return bert_run_fail(r, ZF_ERR_MISMATCH,
                         "%s was trained with %s = %s%s, not %s: give the same --%s, or start anew "
                         "from its weights with --init %s",
                         load, wanted->key, saved, strcmp(wanted->key, "corpus") ? "" : " tokens",
                         wanted->value, wanted->key, load);
}

/* Whether this run is the one that the checkpoint belongs to. */
static bool fits(bert_run *r, const zf_note notes[NOTES])
{
    const bert_settings *o = &r->job->o;
    char saved[SETTING_TEXT], path[1024], init[1100];
    tokenizing_notes words;
    bert_config config;
    snprintf(init, sizeof init, "--init %s", o->load);
    word_notes(r, &words);
    if (!tokenizing_fits(&words, o->load, o->vocab, o->corpus, init, &r->error)) return false;
    for (int i = 0; i < SETTINGS; i++) {
        if (!strcmp(notes[i].key, "precision"))
            snprintf(saved, sizeof saved, "%s", zf_dtype_name(bert_checkpoint_precision(o->load)));
        else if (zf_checkpoint_note(o->load, notes[i].key, saved, sizeof saved, &r->error))
            return false;
        if (strcmp(saved, notes[i].value)) return refuse(r, &notes[i], saved);
    }
    snprintf(path, sizeof path, "%s/config.json", o->load);
    if (!bert_config_load(path, &config, &r->error)) return false;
    if (memcmp(&config, &r->job->config, sizeof config))
        return bert_run_fail(r, ZF_ERR_MISMATCH,
                             "%s was trained with another model than --model %s: give the same",
                             o->load, o->model);
    return true;
}

bool bert_run_resume(bert_run *r)
{
    const bert_settings *o = &r->job->o;
    char text[NOTES][SETTING_TEXT];
    zf_note notes[NOTES];
    zf_store *store = zf_program_store(r->session.program);
    zf_status status;
    setting_notes(r, notes, text);
    (void)fits(r, notes);
    if (!bert_run_agree(r)) return false;
    compare_parts(r, &notes[SETTINGS]);
    if (!(status = zf_load(store, o->load, NULL))) return true;
    return bert_run_fail(r, status, "%s", zf_store_error(store));
}
