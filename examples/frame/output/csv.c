#define _POSIX_C_SOURCE 200809L
#include "csv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool fail(zf_error *error, const char *path)
{
    error->status = ZF_ERR_IO;
    snprintf(error->text, sizeof error->text, "%.300s: %s", path, strerror(errno));
    return false;
}

static bool is_regular(int file)
{
    struct stat about;
    return !fstat(file, &about) && S_ISREG(about.st_mode);
}

/* Writes all of the text, or none of it if the file is a regular one. */
static bool put(const csv_file *f, const char *text)
{
    size_t length = strlen(text), done = 0;
    off_t end = is_regular(f->file) ? lseek(f->file, 0, SEEK_END) : -1;
    while (done < length) {
        ssize_t n = write(f->file, text + done, length - done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            int why = n ? errno : ENOSPC;
            if (end >= 0 && done && ftruncate(f->file, end)) why = errno;
            errno = why;
            return false;
        }
        done += (size_t)n;
    }
    return true;
}

/* Finds the end of the rows up to that step, 0 where there is no header; false with *error. */
static bool read_rows(const csv_file *f, const char *header, int64_t step, csv_row *row, void *user,
                      off_t *end, zf_error *error)
{
    FILE *in = fopen(f->path, "r");
    char line[1024];
    if (!in) return fail(error, f->path);
    *end = 0;
    if (fgets(line, sizeof line, in)) {
        if (strcmp(line, header)) {
            error->status = ZF_ERR_FORMAT;
            snprintf(error->text, sizeof error->text,
                     "%.200s: a run that goes on adds rows to its log, and the first line of this "
                     "file is not %.*s: name another file",
                     f->path, (int)strcspn(header, "\n"), header);
            fclose(in);
            return false;
        }
        *end = ftello(in);
        while (fgets(line, sizeof line, in) && strchr(line, '\n')) {
            char *number_end;
            long long at = strtoll(line, &number_end, 10);
            if (number_end == line || at < 1 || at > step || (row && !row(user, line))) break;
            *end = ftello(in);
        }
    }
    fclose(in);
    return true;
}

bool csv_open(csv_file *f, const char *path, const char *header, int64_t step, csv_row *row,
              void *user, zf_error *error)
{
    off_t end = 0;
    bool good = true, regular;
    *f = (csv_file){.path = path, .file = -1};
    if (!path) return true;
    f->file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (f->file < 0) return fail(error, path);
    regular = is_regular(f->file);
    if (regular && step > 0) good = read_rows(f, header, step, row, user, &end, error);
    if (good && regular && ftruncate(f->file, end)) good = fail(error, path);
    if (good && !end && !put(f, header)) good = fail(error, path);
    if (good) return true;
    close(f->file);
    f->file = -1;
    return false;
}

bool csv_add(csv_file *f, const char *row)
{
    if (!f->path || f->file < 0 || put(f, row)) return true;
    if (f->lost++) return true;
    return fail(&f->error, f->path);
}

bool csv_close(csv_file *f, zf_error *error)
{
    if (f->path && f->file >= 0 && close(f->file) && !f->lost++) fail(&f->error, f->path);
    f->file = -1;
    if (!f->lost) return true;
    error->status = f->error.status;
    snprintf(error->text, sizeof error->text, "%.400s; %lld rows are not in the log", f->error.text,
             (long long)f->lost);
    f->lost = 0;
    return false;
}
