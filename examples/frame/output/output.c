#define _XOPEN_SOURCE 700
#include "output.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char zeros[4096];

static bool fail(zf_error *error, const output *o, const char *why)
{
    error->status = ZF_ERR_IO;
    snprintf(error->text, sizeof error->text, "--%s %.300s: %s", o->option, o->path, why);
    return false;
}

/* A run that was killed while it tried has left the file: there is nothing but zeros in it. */
static bool is_left(const char *aside)
{
    char found[sizeof zeros + 1];
    const int file = open(aside, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    const ssize_t got = file < 0 ? -1 : read(file, found, sizeof found);
    if (file >= 0) close(file);
    return got >= 0 && (size_t)got <= sizeof zeros && !memcmp(found, zeros, (size_t)got);
}

static bool try_one(const output *o, zf_error *error)
{
    char place[PATH_MAX], aside[PATH_MAX + 16];
    struct stat about;
    ssize_t written;
    int file;
    if (!stat(o->path, &about)) {
        if (!S_ISREG(about.st_mode))
            return fail(error, o,
                        S_ISDIR(about.st_mode) ? "it is a directory" : "it is not a regular file");
        if (access(o->path, W_OK)) return fail(error, o, strerror(errno));
    }
    if (!realpath(o->path, place)) {
        if (strlen(o->path) >= sizeof place) return fail(error, o, strerror(ENAMETOOLONG));
        strcpy(place, o->path);
    }
    if (!*place || place[strlen(place) - 1] == '/') return fail(error, o, "it names no file");
    snprintf(aside, sizeof aside, "%s.zf-try", place);
    if (is_left(aside)) unlink(aside);
    file = open(aside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file < 0) return fail(error, o, strerror(errno));
    written = write(file, zeros, sizeof zeros);
    if (written < 0) fail(error, o, strerror(errno));
    else if ((size_t)written < sizeof zeros) fail(error, o, strerror(ENOSPC));
    close(file);
    unlink(aside);
    return !error->status;
}

bool output_try(const output *outputs, int count, zf_error *error)
{
    for (int i = 0; i < count; i++)
        if (outputs[i].path && !try_one(&outputs[i], error)) return false;
    return true;
}
