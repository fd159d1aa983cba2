/* Files that are read and written as a whole. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
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

size_t zf_text_mark(const char *at, size_t bytes)
{
    return bytes >= 3 && !memcmp(at, "\xEF\xBB\xBF", 3) ? 3 : 0;
}

const char *zf_text_wrong(const char *at, size_t bytes, bool begins, size_t *line)
{
    const char *nul = bytes ? memchr(at, 0, bytes) : NULL, *end = nul ? nul : at + bytes;
    if (begins && bytes > 1 && (!memcmp(at, "\xFF\xFE", 2) || !memcmp(at, "\xFE\xFF", 2)))
        return "this is UTF-16 or UTF-32, by its byte order mark; iconv -t UTF-8 converts it";
    for (const char *c = at; c < end && (c = memchr(c, '\n', (size_t)(end - c))); c++) ++*line;
    return nul ? "a NUL byte, so this is no text" : NULL;
}

bool zf_text_read_plain(const char *path, zf_text *out, zf_error *error)
{
    const size_t before = out->count;
    size_t line = 1, bytes, mark;
    const char *why;
    if (!zf_text_read(path, out, error)) return false;
    bytes = out->count - before;
    if ((why = zf_text_wrong(out->at + before, bytes, true, &line)))
        return zfl_fail(error, ZF_ERR_FORMAT, "%.300s: line %zu: %s", path, line, why);
    mark = zf_text_mark(out->at + before, bytes);
    memmove(out->at + before, out->at + before + mark, bytes - mark + 1);
    out->count -= mark;
    return true;
}

/* ---------------------------------------------------------------------------------- writing */

static bool zfl_fail_io(zf_error *error, const char *what, const char *path)
{
    return zfl_fail(error, ZF_ERR_IO, "cannot %s %.400s: %s", what, path, strerror(errno));
}

/* What is no file, or a link to a folder or a device, is not replaced. */
static bool zfl_may_replace(const char *path, zf_error *error)
{
    struct stat about;
    return stat(path, &about) || S_ISREG(about.st_mode) ||
           zfl_fail(error, ZF_ERR_IO, "cannot replace %.400s: it is not a regular file", path);
}

static bool zfl_is_link(const char *path)
{
    struct stat about;
    return !lstat(path, &about) && S_ISLNK(about.st_mode);
}

/* Brings the folder of a path to the disk. Some file systems sync no folders: they say EINVAL. */
static bool zfl_sync_folder(const char *path, zf_error *error)
{
    const char *slash = strrchr(path, '/');
    const size_t length = slash ? (size_t)(slash - path) : 0;
    char *folder = malloc(length + 2);
    int number;
    bool good;
    if (!folder) return zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    memcpy(folder, path, length);
    memcpy(folder + length, length ? "" : slash ? "/" : ".", 1);
    folder[length + !length] = '\0';
    number = open(folder, O_RDONLY | O_NONBLOCK);
    good = number >= 0 && (!fsync(number) || errno == EINVAL);
    if (!good) zfl_fail_io(error, "sync the folder of", path);
    if (number >= 0) close(number);
    free(folder);
    return good;
}

/* Renames a file that is on the disk over a path, where it replaces a link too. */
static bool zfl_file_rename(const char *from, const char *path, zf_error *error)
{
    if (!rename(from, path)) return zfl_sync_folder(path, error);
    zfl_fail_io(error, "replace", path);
    unlink(from);
    return false;
}

/* A path next to another one, to be freed; NULL with *error. */
static char *zfl_path_with(const char *path, const char *end, zf_error *error)
{
    const size_t room = strlen(path) + strlen(end) + 1;
    char *made = malloc(room);
    if (made) snprintf(made, room, "%s%s", path, end);
    else zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    return made;
}

/* Where a file is made that will replace a link, to be freed; NULL with *error, also where
 * something is there. */
static char *zfl_path_aside(const char *path, zf_error *error)
{
    struct stat about;
    char *made = zfl_path_with(path, ".zf-link", error);
    if (!made || lstat(made, &about)) return made;
    zfl_fail(error, ZF_ERR_IO, "%.300s is there: move it, or name another place", made);
    free(made);
    return NULL;
}

bool zf_file_save(const char *path, const void *data, size_t bytes, zf_error *error)
{
    char *made;
    bool good;
    if (!zfl_may_replace(path, error)) return false;
    if (!zfl_is_link(path)) return !zf_file_replace(path, data, bytes, error);
    if (!(made = zfl_path_aside(path, error))) return false;
    good = !zf_file_replace(made, data, bytes, error) && zfl_file_rename(made, path, error);
    free(made);
    return good;
}
