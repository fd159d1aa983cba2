/* Files that a program reads as a whole. They must be regular files, so that reading ends and never
 * blocks. */
#ifndef FILE_H
#define FILE_H

#include "buffer.h"
#include "../../zeroflow.h"

#include <stddef.h>
#include <stdio.h>

/* Opens a regular file and tells its size, which may change while it is read. NULL, and *why is
 * what is wrong, when it cannot be opened or is another kind of file (a folder, a pipe, a
 * device). */
FILE *file_open(const char *path, size_t *bytes, const char **why);

/* Appends the whole of such a file. False with *error. */
bool file_read(const char *path, buffer *out, zf_error *error);

#endif
