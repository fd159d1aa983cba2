#define _POSIX_C_SOURCE 200809L
#include "files.h"
#include "../../../zeroflow_llm.h"
#include "fail.h"

#include <string.h>
#include <sys/stat.h>

void files_add(named_files *f, const char *option, const char *path, bool writes)
{
    named_file *file = &f->at[f->count];
    if (!path || !*path || f->count == NAMED_FILES) return;
    *file = (named_file){.path = path, .writes = writes};
    snprintf(file->option, sizeof file->option, "%s", option);
    f->count++;
}

/* Whether the value is a word among "FILE|measure", "NAME|DIR", "STYLE|FILE", and no path. */
static bool is_word(const zf_option *row, const char *value)
{
    const char *end = strrchr(value, '.');
    const char *found = row->unit ? strstr(row->unit, value) : NULL;
    const size_t length = strlen(value);
    if (row->unit && !strncmp(row->unit, "NAME|", 5)) return !zf_config_is_path(value);
    if (row->unit && !strncmp(row->unit, "STYLE|", 6)) /* as zf_chat_open tells them apart */
        return !strchr(value, '/') && (!end || strcmp(end, ".jinja"));
    return found && found > row->unit && found[-1] == '|' && strchr("|", found[length]);
}

static void add_option(void *user, const zf_option_value *v)
{
    const uint32_t both = ZF_OPTION_READS | ZF_OPTION_WRITES;
    if (v->row->kind == ZF_OPTION_TEXT && v->row->traits & both && v->given && v->flag &&
        !is_word(v->row, v->text))
        files_add(user, v->flag, v->text, v->row->traits & ZF_OPTION_WRITES);
}

void files_add_options(named_files *f, const zf_options *all, int32_t count)
{
    zf_options_each(all, count, add_option, f);
}

/* ------------------------------------------------------------------------------------- places */

/* Where a path is. */
typedef struct place {
    struct stat about, folder; /* of the file and of the folder that it lies in */
    bool exists, is_folder, has_folder;
    char name[256]; /* in the folder */
} place;

static place place_of(const char *path)
{
    place p = {.exists = false};
    char folder[4096];
    size_t end = strlen(path), at;
    while (end > 1 && path[end - 1] == '/') end--;
    for (at = end; at > 0 && path[at - 1] != '/';) at--;
    p.exists = !stat(path, &p.about);
    p.is_folder = p.exists && S_ISDIR(p.about.st_mode);
    snprintf(p.name, sizeof p.name, "%.*s", (int)(end - at), path + at);
    snprintf(folder, sizeof folder, "%.*s", at ? (int)at : 1, at ? path : ".");
    p.has_folder = !stat(folder, &p.folder);
    return p;
}

static bool is_same(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* Both paths are one file or folder. Devices and pipes are none. */
static bool meet(const place *a, const place *b)
{
    if (a->exists && !a->is_folder && !S_ISREG(a->about.st_mode)) return false;
    if (a->exists && b->exists) return is_same(&a->about, &b->about);
    return !a->exists && !b->exists && a->has_folder && b->has_folder &&
           is_same(&a->folder, &b->folder) && !strcmp(a->name, b->name);
}

static bool lies_in(const place *p, const place *folder)
{
    return p->has_folder && !p->is_folder && folder->is_folder &&
           is_same(&p->folder, &folder->about);
}

/* The name is one of those by which a model, its tokenizer or a checkpoint is read from a
 * folder. */
static bool is_of_model(const char *name)
{
    static const char *const names[] = {
        "config.json", "vocab.txt",    "vocab.json",           "merges.txt",
        "manifest.json", "tokenizer.json", "adapter_config.json", "model.safetensors.index.json"};
    const char *end = strrchr(name, '.');
    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++)
        if (!strcmp(name, names[k])) return true;
    for (int k = 0; k < ZF_FOLDER_FILES; k++)
        if (!strcmp(name, zf_folder_file(k))) return true;
    return end && !strcmp(end, ".safetensors");
}

/* Whether a path lies next to a manifest.json. */
static bool is_in_checkpoint(const char *path)
{
    const char *slash = strrchr(path, '/');
    const int length = slash ? (int)(slash - path) : 1;
    char manifest[4200];
    struct stat about;
    snprintf(manifest, sizeof manifest, "%.*s/manifest.json", length, slash ? path : ".");
    return !stat(manifest, &about);
}

/* ------------------------------------------------------------------------------------- the rule */

static bool refuse(const named_file *w, const char *why, const named_file *of, zf_error *error)
{
    const char *dashes = *w->option ? "--" : "", *space = *w->option ? " " : "";
    return fail(error, ZF_ERR_ARGUMENT, "%s%s%s%.200s: %s%s%.200s; name another place", dashes,
                w->option, space, w->path, why, of && *of->option ? "--" : "",
                !of          ? ""
                : *of->option ? of->option
                              : of->path);
}

/* A folder that is replaced as a whole. */
static bool replaces(const named_file *f) { return !strcmp(f->option, "save"); }

/* A writer of the list, and another file; resumes: the writer replaces the checkpoint of --load. */
static bool pair_apart(const named_file *w, const place *to, const named_file *other,
                       const place *at, bool resumes, zf_error *error)
{
    if (meet(to, at) && !resumes)
        return refuse(w, at->is_folder ? "it is the folder of " : "it is the file of ", other,
                      error);
    if (replaces(other) && lies_in(to, at))
        return refuse(w, "it lies in the folder that is written by ", other, error);
    if (!other->writes && to->exists && lies_in(to, at) && is_of_model(to->name))
        return refuse(w, "it is a file in the folder of ", other, error);
    if (replaces(w) && lies_in(at, to) && !is_of_model(at->name))
        return refuse(w, "this folder is replaced, and it holds the file of ", other, error);
    return true;
}

/* Whether the writer replaces the checkpoint that the run is resumed from. */
static bool resumes(const named_files *f, const place *at, int32_t w)
{
    for (int32_t k = 0; k < f->count && replaces(&f->at[w]); k++)
        if (!strcmp(f->at[k].option, "load") && meet(&at[w], &at[k])) return true;
    return false;
}

bool files_apart(const named_files *f, zf_error *error)
{
    place at[NAMED_FILES];
    for (int32_t k = 0; k < f->count; k++) at[k] = place_of(f->at[k].path);
    for (int32_t w = 0; w < f->count; w++) {
        const bool again = resumes(f, at, w);
        if (!f->at[w].writes) continue;
        if (at[w].exists && !at[w].is_folder && is_of_model(at[w].name) &&
            is_in_checkpoint(f->at[w].path))
            return refuse(&f->at[w], "it is a file of a checkpoint", NULL, error);
        for (int32_t k = 0; k < f->count; k++)
            if (k != w &&
                !pair_apart(&f->at[w], &at[w], &f->at[k], &at[k], again && !f->at[k].writes, error))
                return false;
    }
    return true;
}
