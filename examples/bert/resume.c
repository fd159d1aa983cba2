/* Checkpoints of a run: what a run must have in common with the one that it continues. */
#define _POSIX_C_SOURCE 200809L
#include "../common/resuming.h"
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

static bool load_config(const char *path, void *config, zf_error *error)
{
    return bert_config_load(path, config, error);
}

static resuming identity(const bert_run *r, const zf_note notes[NOTES])
{
    const bert_job *job = r->job;
    return (resuming){.load = job->o.load,
                      .model = job->o.model,
                      .vocab_path = job->o.vocab,
                      .corpus_path = job->o.corpus,
                      .notes = notes,
                      .note_count = NOTES,
                      .equal = SETTINGS,
                      .names_options = true,
                      .words = &job->o.words,
                      .vocab = job->text.vocab,
                      .digest = job->text.corpus ? job->text.corpus->digest : 0,
                      .frame = FOLDER_BERT,
                      .longest = job->config.positions,
                      .config = &job->config,
                      .config_bytes = sizeof job->config,
                      .config_load = load_config};
}

bool bert_run_save(bert_run *r)
{
    char text[NOTES][SETTING_TEXT];
    zf_note notes[NOTES];
    resuming all;
    setting_notes(r, notes, text);
    all = identity(r, notes);
    return resuming_save(&all, &r->job->saving, r->leads, r->session.program,
                         bert_config_json(&r->job->config), &r->error);
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

bool bert_run_resume(bert_run *r)
{
    const bert_settings *o = &r->job->o;
    char text[NOTES][SETTING_TEXT];
    zf_note notes[NOTES];
    zf_store *store = zf_program_store(r->session.program);
    zf_status status;
    resuming all;
    setting_notes(r, notes, text);
    all = identity(r, notes);
    (void)resuming_fits(&all, &r->error);
    if (!bert_run_agree(r)) return false;
    compare_parts(r, &notes[SETTINGS]);
    if (!(status = zf_load(store, o->load, NULL))) return true;
    return bert_run_fail(r, status, "%s", zf_store_error(store));
}
