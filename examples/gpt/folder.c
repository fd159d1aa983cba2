/* Models of folders: checkpoints of zf_save, and those of Hugging Face. */
#include "../common/folder.h"
#include "session.h"

#include <string.h>

/* Loads a checkpoint's parameters, or where they were trained in 16 bits their master weights. */
static bool load(gpt_session *s, const char *path, bool masters, zf_error *error)
{
    zf_store *store = zf_program_store(s->program);
    zf_status status =
        zf_load(store, path, &(zf_load_desc){.params_only = true, .masters = masters});
    return !status || gpt_fail(error, status, "%s", zf_store_error(store));
}

static bool is_head(const char *name) { return !strcmp(name, "lm_head.weight"); }

/* Of a checkpoint: by a program of its own, in f32. */
static bool take_checkpoint(gpt_session *s, const char *path, weights_report *report,
                            zf_error *error)
{
    gpt_session_desc d = {.purpose = GPT_GENERATE, .shape = {1, 1, false}, .threads = 1};
    gpt_session from;
    bool good;
    if (!gpt_config_load(path, &d.config, error) || !gpt_session_open(&from, &d, error))
        return false;
    good =
        load(&from, path, true, error) &&
        !weights_copy(s->program, s->graph, from.program, from.graph, is_head, path, report, error);
    gpt_session_close(&from);
    return good;
}

bool gpt_session_take(gpt_session *s, const char *path, weights_report *report, zf_error *error)
{
    if (folder_is_checkpoint(path)) return take_checkpoint(s, path, report, error);
    return gpt_import(s->program, s->graph, path, report, error);
}

bool gpt_config_take(gpt_config *c, const char *path, zf_error *error)
{
    gpt_config own;
    if (!folder_is_checkpoint(path)) return gpt_config_fit(c, path, error);
    if (!gpt_config_load(path, &own, error)) return false;
    c->tied = own.tied;
    return true;
}

bool gpt_folder_config(const char *path, gpt_config *c, zf_error *error)
{
    return gpt_config_load(path, c, error) &&
           (folder_is_checkpoint(path) || gpt_config_fit(c, path, error));
}

bool gpt_folder_open(gpt_session *s, const char *path, gpt_session_desc *d, int64_t dtype,
                     zf_error *error)
{
    bool checkpoint = folder_is_checkpoint(path), good;
    char note[8] = "f32";
    weights_report report;
    zf_dtype saved;
    if (checkpoint && zf_checkpoint_note(path, "precision", note, sizeof note, error)) return false;
    saved = !strcmp(note, "bf16") ? ZF_BF16 : !strcmp(note, "f16") ? ZF_F16 : ZF_F32;
    d->dtype = dtype ? (zf_dtype)(dtype - 1) : saved;
    if (!gpt_session_open(s, d, error)) return false;
    if (checkpoint && (d->dtype == saved || d->dtype == ZF_F32))
        good = load(s, path, d->dtype != saved, error);
    else good = gpt_session_take(s, path, &report, error);
    if (!good) gpt_session_close(s);
    return good;
}
