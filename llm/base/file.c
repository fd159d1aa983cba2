/* Files that are read as a whole. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

FILE *zf_file_open(const char *path, size_t *bytes, const char **why)
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

bool zf_text_read(const char *path, zf_text *out, zf_error *error)
{
    char part[1 << 14];
    const char *why;
    size_t bytes, n;
    FILE *file = zf_file_open(path, &bytes, &why);
    if (!file) return zfl_fail(error, ZF_ERR_IO, "%s: %s", path, why);
    zf_text_add(out, "", 0);
    while ((n = fread(part, 1, sizeof part, file))) zf_text_add(out, part, n);
    if (ferror(file)) zfl_fail(error, ZF_ERR_IO, "%s: %s", path, strerror(errno));
    else if (out->failed) zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    fclose(file);
    return !error->status;
}
