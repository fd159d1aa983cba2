#define _POSIX_C_SOURCE 200809L
#include "written.h"
#include "../zeroflow_llm.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

void written_open(written *w, const char *path)
{
    *w = (written){.path = path};
    w->file = open_memstream(&w->text, &w->bytes);
}

/* Pipes and devices have no place that could be replaced. */
static bool write_plain(const written *w, zf_error *error)
{
    FILE *file = fopen(w->path, "w");
    bool good = file && fwrite(w->text, 1, w->bytes, file) == w->bytes;
    if (file && fclose(file)) good = false;
    if (!good)
        snprintf(error->text, sizeof error->text, "cannot write %.300s: %s", w->path,
                 strerror(errno));
    return good;
}

bool written_close(written *w, bool good, zf_error *error)
{
    struct stat about;
    const bool made = w->file && !ferror(w->file) && !fclose(w->file);
    *error = (zf_error){ZF_OK, ""};
    if (good && !made) snprintf(error->text, sizeof error->text, "out of memory");
    else if (good && !stat(w->path, &about) && !S_ISREG(about.st_mode))
        good = write_plain(w, error);
    else if (good) good = zf_file_save(w->path, w->text, w->bytes, error);
    free(w->text);
    *w = (written){.file = NULL};
    return good && made;
}
