/* What must be equal on all ranks of a run: values of options, and digests of the files that they
 * name. It is compared before the first step. Threads share these; processes may have been started
 * with others, or see other files. */
#ifndef ALIKE_H
#define ALIKE_H

#include "../../../zeroflow.h"

enum { ALIKE_MOST = 128, ALIKE_NAME = 40, ALIKE_VALUE = 72 };

typedef struct alike {
    int32_t count;
    struct {
        char name[ALIKE_NAME], value[ALIKE_VALUE];
    } item[ALIKE_MOST];
} alike;

/* Adds a value under a name, which a message shows: "--seed", "the corpus". */
__attribute__((format(printf, 3, 4))) void alike_add(alike *a, const char *name, const char *format,
                                                     ...);
/* Adds the digest of a file or directory; path NULL: none. False with *error. */
bool alike_add_file(alike *a, const char *name, const char *path, zf_error *error);

/* Adds all options that have an effect, except those that each rank may have for itself
 * (ZF_OPTION_LOCAL). Of paths (ZF_OPTION_PATH), adds whether they are given. */
void alike_add_options(alike *a, const zf_options *all, int32_t count);

/* All ranks must call it. False with *error, the same on all: it names the first value that
 * differs, and the ranks that differ from rank 0. comm NULL: there is one rank. */
bool alike_compare(const alike *a, const zf_comm *comm, zf_error *error);

/* Makes a failure on one rank a failure on all. All ranks must call it, each with its own error or
 * none. False if any has one: *error is that of the lowest such rank, and begins with "rank N: "
 * unless all have the same. comm NULL: there is one rank. */
bool alike_good(const zf_comm *comm, zf_error *error);

#endif
