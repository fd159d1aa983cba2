#define _POSIX_C_SOURCE 200809L
#include "file.h"

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
