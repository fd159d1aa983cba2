/* Models of folders: checkpoints of zf_save, and those of Hugging Face. */
#include "../common/folder.h"
#include "commands.h"

#include <string.h>

static bool open_forward(bert_session *s, const bert_config *config, const bert_shape *shape,
                         int64_t threads, zf_dtype dtype, zf_error *error)
{
    bert_session_desc d = {.config = *config, .shape = *shape, .threads = threads, .dtype = dtype};
    return bert_session_open(s, &d, error);
}

static bool is_head(const char *name)
{
    return !strncmp(name, "cls.", 4) || !strncmp(name, "bert.pooler.", 12);
}

/* Of a checkpoint: by a program of its own, in f32. */
static zf_status take_checkpoint(bert_session *s, const char *path, weights_report *report,
                                 zf_error *error)
{
    bert_session from;
    bert_config config;
    zf_status status = ZF_OK;
    if (!bert_config_load(path, &config, error) ||
        !open_forward(&from, &config, &(bert_shape){1, 8, 1}, 1, ZF_F32, error))
        return error->status;
    if (!folder_load(from.program, path, true, error)) status = error->status;
    else
        status = weights_copy(s->program, s->graph, from.program, from.graph, is_head, path, report,
                              error);
    bert_session_close(&from);
    return status;
}

zf_status bert_session_take(bert_session *s, const char *path, weights_report *report,
                            zf_error *error)
{
    if (folder_is_checkpoint(path)) return take_checkpoint(s, path, report, error);
    return bert_import(s->program, s->graph, path, report, error);
}

bool bert_config_take(bert_config *c, const char *path, zf_error *error)
{
    bert_config own;
    if (!folder_is_checkpoint(path)) return bert_config_fit(c, path, NULL, error);
    if (!bert_config_load(path, &own, error)) return false;
    c->tied = own.tied;
    return true;
}

bool bert_folder_config(const char *path, bert_config *c, zf_error *error)
{
    bool has_nsp;
    if (!bert_config_load(path, c, error)) return false;
    if (folder_is_checkpoint(path)) return true;
    if (!bert_config_fit(c, path, &has_nsp, error)) return false;
    c->nsp = has_nsp;
    return true;
}

bool bert_folder_open(bert_session *s, const char *path, const bert_config *config,
                      const bert_shape *shape, int64_t threads, int64_t dtype, zf_error *error)
{
    bool checkpoint = folder_is_checkpoint(path), good;
    zf_dtype saved = checkpoint ? folder_precision(path) : ZF_F32,
             wanted = dtype ? (zf_dtype)(dtype - 1) : saved;
    weights_report report;
    if (!open_forward(s, config, shape, threads, wanted, error)) return false;
    if (checkpoint && (wanted == saved || wanted == ZF_F32))
        good = folder_load(s->program, path, wanted != saved, error);
    else good = !bert_session_take(s, path, &report, error);
    if (!good) bert_session_close(s);
    return good;
}
