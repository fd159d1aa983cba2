/* Files that a tool writes: nothing that it reads, and whole or not at all. */
#ifndef WRITTEN_H
#define WRITTEN_H

#include "../zeroflow.h"

/* What is written to `file` becomes the file at `path` when it is closed. It stays where it is
 * opened. */
typedef struct written {
    const char *path;
    FILE *file; /* NULL: memory is lacking */
    char *text;
    size_t bytes;
} written;

void written_open(written *w, const char *path);
/* good: false where the text is not to be written. Returns false with *error. */
bool written_close(written *w, bool good, zf_error *error);

#endif
