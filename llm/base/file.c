#define _POSIX_C_SOURCE 200809L
#include "file.h"
#include "fail.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

FILE *file_open(const char *path, size_t *bytes, const char **why)
{
    struct stat about;
    FILE *file = NULL;
    int number = open(path, O_RDONLY | O_NONBLOCK); /* does not block at a pipe */
    *why = NULL;
    if (number < 0 || fstat(number, &about)) *why = strerror(errno);
    else if (S_ISDIR(about.st_mode)) *why = strerror(EISDIR);
    else if (!S_ISREG(about.st_mode)) *why = "a pipe or a device; a regular file is needed";
    else if (!(file = fdopen(number, "rb"))) *why = strerror(errno);
    if (!file && number >= 0) close(number);
    if (file) *bytes = (size_t)about.st_size;
    return file;
}

bool file_read(const char *path, buffer *out, zf_error *error)
{
    char part[1 << 14];
    const char *why;
    size_t bytes, n;
    FILE *file = file_open(path, &bytes, &why);
    if (!file) return fail(error, ZF_ERR_IO, "%s: %s", path, why);
    buffer_add(out, "", 0);
    while ((n = fread(part, 1, sizeof part, file))) buffer_add(out, part, n);
    if (ferror(file)) fail(error, ZF_ERR_IO, "%s: %s", path, strerror(errno));
    else if (out->failed) fail(error, ZF_ERR_NOMEM, "out of memory");
    fclose(file);
    return !error->status;
}
