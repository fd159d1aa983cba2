/* Models of folders: checkpoints of zf_save, and those of Hugging Face. */
#include "folder.h"
#include "lm_session.h"

/* Of a checkpoint: by a program of its own, in f32. */
static bool take_checkpoint(lm_session *s, const char *path, weights_report *report,
                            zf_error *error)
{
    lm_config config;
    lm_session_desc d = {.kind = s->kind,
                         .purpose = LM_GENERATE,
                         .config = &config,
                         .shape = {1, 1, false},
                         .threads = 1};
    lm_session from;
    bool good;
    if (!s->kind->load(path, &config, error) || !lm_session_open(&from, &d, error)) return false;
    good = folder_load(from.program, path, true, error) &&
           !weights_copy(s->program, s->graph, from.program, from.graph, s->kind->is_head, path,
                         report, error);
    lm_session_close(&from);
    return good;
}

bool lm_session_take(lm_session *s, const char *path, weights_report *report, zf_error *error)
{
    if (folder_is_checkpoint(path)) return take_checkpoint(s, path, report, error);
    return s->kind->import(s->program, s->graph, path, report, error);
}

bool lm_config_take(const lm_kind *kind, void *config, const char *path, zf_error *error)
{
    lm_config own;
    if (!folder_is_checkpoint(path)) return kind->fit(config, path, error);
    if (!kind->load(path, &own, error)) return false;
    *kind->facts(config).tied = *kind->facts(&own).tied;
    return true;
}

bool lm_folder_config(const lm_kind *kind, const char *path, void *config, zf_error *error)
{
    return kind->load(path, config, error) &&
           (folder_is_checkpoint(path) || kind->fit(config, path, error));
}

bool lm_folder_open(lm_session *s, const char *path, lm_session_desc *d, int64_t dtype,
                    zf_error *error)
{
    bool checkpoint = folder_is_checkpoint(path), good;
    weights_report report;
    zf_dtype saved = checkpoint ? folder_precision(path) : ZF_F32;
    d->dtype = dtype ? (zf_dtype)(dtype - 1) : saved;
    if (!lm_session_open(s, d, error)) return false;
    if (checkpoint && (d->dtype == saved || d->dtype == ZF_F32))
        good = folder_load(s->program, path, d->dtype != saved, error);
    else good = lm_session_take(s, path, &report, error);
    if (!good) lm_session_close(s);
    return good;
}
