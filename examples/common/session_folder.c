/* Models of folders: checkpoints of zf_save, and those of Hugging Face, perhaps with an adapter. */
#include "adapter.h"
#include "fail.h"
#include "folder.h"
#include "session.h"

#include <string.h>

/* Reads a checkpoint, with a program of its own, in f32. */
static bool take_checkpoint(session *s, const char *path, weights_report *report, zf_error *error)
{
    config_any config;
    session_desc d = {.sample = s->sample,
                      .purpose = SAMPLE_EVALUATE,
                      .config = &config,
                      .shape = {1, 1, 1, false, 0},
                      .threads = 1};
    session from;
    bool good;
    if (!config_load(s->sample->config, path, &config, error) || !session_open(&from, &d, error))
        return false;
    good = folder_load(from.program, path, true, false, error) &&
           exchange_copy(&s->sample->exchange, s->program, s->graph, from.program, from.graph, path,
                         report, error);
    session_close(&from);
    return good;
}

bool session_take(session *s, const char *path, weights_report *report, zf_error *error)
{
    if (folder_is_checkpoint(path)) return take_checkpoint(s, path, report, error);
    return exchange_import(&s->sample->exchange, s->program, s->graph, path, report, error);
}

/* What the weights of Hugging Face say; whole: the model is theirs, with the heads that they
 * have. */
static bool fit(const sample_model *sample, void *config, const char *path, bool whole,
                zf_error *error)
{
    weights *w = weights_open(path, error);
    if (!w) return false;
    if (!exchange_is_tied(&sample->exchange, w, error))
        *config_facts_of(sample->config, config).tied = 0;
    if (whole && sample->fit) sample->fit(config, w);
    weights_close(w);
    return !error->status;
}

bool session_config_take(const sample_model *sample, void *config, const char *path,
                         zf_error *error)
{
    config_any own;
    if (!folder_is_checkpoint(path)) return fit(sample, config, path, false, error);
    if (!config_load(sample->config, path, &own, error)) return false;
    *config_facts_of(sample->config, config).tied = *config_facts_of(sample->config, &own).tied;
    return true;
}

bool session_config(const sample_model *sample, const char *path, void *config, zf_error *error)
{
    if (adapter_is_at(path))
        return fail(error, ZF_ERR_MISMATCH,
                    "%s is an adapter, without its base: name the base's folder, and this one with "
                    "--adapter",
                    path);
    return config_load(sample->config, path, config, error) &&
           (folder_is_checkpoint(path) || fit(sample, config, path, true, error));
}

bool session_open_folder(session *s, const char *path, session_desc *d, int64_t dtype,
                         zf_error *error)
{
    bool checkpoint = folder_is_checkpoint(path), good;
    weights_report report;
    zf_dtype saved = checkpoint ? folder_precision(path) : ZF_F32;
    const bool adapts = d->adapter != NULL;
    struct adapter_reader *beside = adapts ? adapter_open(d->adapter, error) : NULL;
    if (adapts && !beside) return false;
    if (beside) d->lora = adapter_desc(beside);
    d->dtype = dtype ? (zf_dtype)(dtype - 1) : saved;
    if (!session_open(s, d, error)) {
        const zf_error why = *error;
        adapter_close(beside);
        if (strncmp(why.text, "zf_lora: ", 9)) return false;
        return fail(error, ZF_ERR_MISMATCH, "%.100s is an adapter of another model: %.370s",
                    d->adapter, why.text);
    }
    s->adapter = beside;
    if (checkpoint && !config_bits(d->sample->config, d->config) &&
        (d->dtype == saved || d->dtype == ZF_F32))
        good = folder_load(s->program, path, d->dtype != saved, adapts, error);
    else good = session_take(s, path, &report, error);
    good = good && (!s->adapter || adapter_take(s->adapter, s->program, s->graph, error));
    if (!good) session_close(s);
    return good;
}
