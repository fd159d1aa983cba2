#define _XOPEN_SOURCE 700
#include "saving.h"
#include "../options/fail.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static const char manifest[] = "manifest.json";

enum { ROOM = 1400 }; /* of saving.path with an ending, and a file in it */

/* The path of the n-th checkpoint before the newest. */
static void previous(char out[ROOM], const saving *s, int64_t n)
{
    snprintf(out, ROOM, "%s.previous-%lld", s->path, (long long)n);
}

/* A path that exists only while a checkpoint is saved. */
static void sibling(char out[ROOM], const saving *s, const char *what)
{
    snprintf(out, ROOM, "%s.zf-%s", s->path, what);
}

static bool exists(const char *path)
{
    struct stat about;
    return !stat(path, &about);
}

/* It holds a manifest, of which an interrupted run may have left an empty one. */
static bool is_checkpoint(const char *path)
{
    char text[ROOM + 32];
    snprintf(text, sizeof text, "%s/%s", path, manifest);
    return exists(text);
}

static bool is_same(const char *a, const char *b)
{
    struct stat x, y;
    return !stat(a, &x) && !stat(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* The next file of a directory, or NULL. */
static const char *next_name(DIR *directory)
{
    struct dirent *entry;
    while ((entry = readdir(directory)))
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..")) return entry->d_name;
    return NULL;
}

/* Removes a checkpoint, if it exists, and its manifest last: what is left of it, when this run is
 * killed, is known by it. */
static void remove_flat(const char *path)
{
    char inside[ROOM + 300];
    const char *name;
    bool removed = true;
    DIR *directory = opendir(path);
    while (directory && removed) { /* removing an entry may hide the next one: try again */
        removed = false;
        rewinddir(directory);
        while ((name = next_name(directory))) {
            snprintf(inside, sizeof inside, "%s/%s", path, name);
            removed |= strcmp(name, manifest) && !unlink(inside);
        }
    }
    if (directory) closedir(directory);
    snprintf(inside, sizeof inside, "%s/%s", path, manifest);
    unlink(inside);
    rmdir(path);
}

/* ---------------------------------------------------------------------------- before the run */

/* "--save PATH: why" */
static bool refuse(zf_error *error, const saving_desc *d, const char *why)
{
    return fail(error, ZF_ERR_IO, "--save %.200s: %.280s", d->path, why);
}

/* zf_save replaces nothing, an empty directory, or a checkpoint: a directory of files with a
 * manifest. */
static bool try_place(const saving *s, const saving_desc *d, zf_error *error)
{
    char other[64] = "", inside[ROOM + 300];
    const char *name;
    struct stat about;
    DIR *directory = opendir(s->path);
    bool nested = false;
    if (!directory && errno == ENOENT) return true;
    if (!directory) return refuse(error, d, strerror(errno));
    while (!nested && (name = next_name(directory))) {
        snprintf(inside, sizeof inside, "%s/%s", s->path, name);
        nested = !stat(inside, &about) && S_ISDIR(about.st_mode);
        snprintf(other, sizeof other, "%.60s", name);
    }
    closedir(directory);
    if (!*other || (!nested && is_checkpoint(s->path))) return true;
    return fail(error, ZF_ERR_IO,
                "--save %.200s: it holds %s and is no checkpoint; name another place", d->path,
                other);
}

/* Earlier checkpoints must have free places too. */
static bool try_previous(const saving *s, const saving_desc *d, zf_error *error)
{
    char older[ROOM];
    for (int64_t n = 1; n < s->keep; n++) {
        previous(older, s, n);
        if (exists(older) && !is_checkpoint(older))
            return fail(error, ZF_ERR_IO,
                        "--save %.150s: the checkpoint before it would become %.150s, which is "
                        "there and is none; name another place, or --keep %lld",
                        d->path, older, (long long)n);
    }
    return true;
}

bool saving_resumes(const saving *s, const char *load)
{
    char older[ROOM];
    if (load && is_same(load, s->path)) return true;
    for (int64_t n = 1; load && n < s->keep; n++) {
        previous(older, s, n);
        if (is_same(load, older)) return true;
    }
    return false;
}

/* An existing checkpoint belongs to this run, or may be replaced. */
static bool may_replace(const saving *s, const saving_desc *d, zf_error *error)
{
    if (!is_checkpoint(s->path) || d->overwrite || saving_resumes(s, d->load)) return true;
    return fail(error, ZF_ERR_IO,
                "--save %.150s: it holds the checkpoint of another run: go on with --load %.150s, "
                "replace it with --overwrite, or name another place",
                d->path, d->path);
}

/* Locks the place as long as this process lives, with a file next to it. On a file system without
 * locks it goes on without. */
static bool lock(saving *s, const saving_desc *d, zf_error *error)
{
    char path[ROOM];
    struct stat named, opened;
    bool taken, again, strange;
    sibling(path, s, "lock");
    do {
        s->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (s->lock < 0) return refuse(error, d, strerror(errno));
        taken = flock(s->lock, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK;
        /* The process that had it may have removed the file between the two calls. */
        again = !taken && (stat(path, &named) || fstat(s->lock, &opened) ||
                           named.st_ino != opened.st_ino || named.st_dev != opened.st_dev);
        strange = !taken && !again && (!S_ISREG(opened.st_mode) || opened.st_size);
        if (taken || again || strange) close(s->lock);
    } while (again);
    if (strange) {
        s->lock = -1;
        return fail(error, ZF_ERR_IO,
                    "--save %.200s: %.200s is there, and is no lock: move it, or name another place",
                    d->path, path);
    }
    if (!taken) return true;
    s->lock = -1;
    return refuse(error, d, "another process saves there; name another place");
}

/* Removes what a killed run has left next to the place: an empty directory or a checkpoint. */
static bool clear_aside(const saving *s, const saving_desc *d, zf_error *error)
{
    static const char *const names[] = {"kept", "gone"};
    char path[ROOM];
    struct stat about;
    for (int k = 0; k < 2; k++) {
        sibling(path, s, names[k]);
        if (lstat(path, &about) || !rmdir(path)) continue;
        if (!S_ISDIR(about.st_mode) || !is_checkpoint(path))
            return fail(error, ZF_ERR_IO,
                        "--save %.200s: %.200s is there, and no run that saved has left it: move "
                        "it, or name another place",
                        d->path, path);
        remove_flat(path);
    }
    return true;
}

bool saving_open(saving *s, const saving_desc *d, zf_error *error)
{
    char place[PATH_MAX], note[2];
    zf_error none;
    size_t length;
    *s = (saving){.keep = d->keep > 0 ? d->keep : 1, .lock = -1};
    if (!*d->path) return refuse(error, d, "an empty path");
    if (d->follows) {
        snprintf(s->path, sizeof s->path, "%s", d->path);
        return strlen(d->path) < sizeof s->path || refuse(error, d, strerror(ENAMETOOLONG));
    }
    /* Reading a checkpoint restores files that a killed commit left under another name. */
    if (!exists(d->path)) (void)zf_checkpoint_note(d->path, "", note, sizeof note, &none);
    if (!realpath(d->path, place)) snprintf(place, sizeof place, "%s", d->path);
    length = strlen(place);
    while (length > 1 && place[length - 1] == '/') place[--length] = '\0';
    if (length >= sizeof s->path) return refuse(error, d, strerror(ENAMETOOLONG));
    memcpy(s->path, place, length + 1);
    /* This is checked while the lock is held, since another process may be about to end. */
    if (try_place(s, d, error) && try_previous(s, d, error) && lock(s, d, error) &&
        may_replace(s, d, error) && clear_aside(s, d, error))
        return true;
    saving_close(s);
    return false;
}

void saving_close(saving *s)
{
    char path[ROOM];
    if (*s->path && s->lock >= 0) {
        sibling(path, s, "lock");
        unlink(path);
        close(s->lock);
    }
    *s = (saving){.lock = -1};
}

/* ---------------------------------------------------------------------------------- one of them */

static bool copy_file(const char *from, const char *to, zf_error *error)
{
    static const size_t room = 1 << 20;
    char *piece = malloc(room);
    int in = open(from, O_RDONLY | O_CLOEXEC);
    int out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    ssize_t n = piece && in >= 0 && out >= 0 ? 1 : -1;
    while (n > 0) {
        n = read(in, piece, room);
        for (ssize_t at = 0, put; n > 0 && at < n; at += put) {
            put = write(out, piece + at, (size_t)(n - at));
            if (put < 0) n = put;
        }
    }
    if (n == 0 && fsync(out)) n = -1;
    if (n < 0) fail(error, ZF_ERR_IO, "%.400s: %s", to, strerror(errno));
    if (in >= 0) close(in);
    if (out >= 0) close(out);
    free(piece);
    return n == 0;
}

/* Removes a checkpoint. It is renamed first, so that a run killed here leaves no half of it. */
static void drop(const saving *s, const char *checkpoint)
{
    char gone[ROOM];
    sibling(gone, s, "gone");
    if (!rename(checkpoint, gone)) remove_flat(gone);
}

/* Makes another directory with the same files, the manifest first: as hard links, or copies where
 * the file system has no links. */
static bool duplicate(const char *path, const char *to, zf_error *error)
{
    char from[ROOM + 300], name_there[ROOM + 300];
    const char *name;
    DIR *directory;
    bool good = true;
    int made;
    if (mkdir(to, 0777)) return fail(error, ZF_ERR_IO, "%.400s: %s", to, strerror(errno));
    if (!(directory = opendir(path)))
        return fail(error, ZF_ERR_IO, "%.400s: %s", path, strerror(errno));
    for (name = manifest; good && name; name = next_name(directory)) {
        if (name != manifest && !strcmp(name, manifest)) continue; /* it was the first */
        snprintf(from, sizeof from, "%s/%s", path, name);
        snprintf(name_there, sizeof name_there, "%s/%s", to, name);
        good = !link(from, name_there) || copy_file(from, name_there, error);
    }
    closedir(directory);
    if (good && (made = open(to, O_RDONLY | O_CLOEXEC)) >= 0) {
        fsync(made);
        close(made);
    }
    return good;
}

/* The newest becomes the one before, and so on; the oldest is removed if there are too many. */
static bool move_back(const saving *s, const char *was_newest, zf_error *error)
{
    char older[ROOM], old[ROOM];
    for (int64_t n = s->keep - 1; n > 0; n--) {
        previous(older, s, n);
        if (n == s->keep - 1) drop(s, older);
        if (n == 1) snprintf(old, sizeof old, "%s", was_newest);
        else previous(old, s, n - 1);
        if (rename(old, older) && errno != ENOENT)
            return fail(error, ZF_ERR_IO, "%.300s: %s", older, strerror(errno));
    }
    for (int64_t n = s->keep;; n++) { /* also those of a run that kept more */
        previous(older, s, n);
        if (!is_checkpoint(older)) return true;
        drop(s, older);
    }
}

bool saving_save(const saving *s, bool leads, zf_program *program, const zf_save_desc *desc,
                 zf_error *error)
{
    char kept[ROOM];
    zf_save_desc d = *desc;
    zf_status status;
    bool keeps = leads && s->keep > 1 && is_checkpoint(s->path);
    sibling(kept, s, "kept");
    if (keeps && !duplicate(s->path, kept, error)) {
        remove_flat(kept);
        return false;
    }
    d.finite = true;
    status = zf_save(zf_program_store(program), s->path, &d);
    if (status) {
        fail(error, ZF_ERR_IO, "%s", zf_store_error(zf_program_store(program)));
        error->status = status;
        if (keeps) remove_flat(kept);
        return false;
    }
    return !leads || move_back(s, keeps ? kept : "", error);
}
