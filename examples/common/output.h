/* Files that a run writes when it ends: whether it can is tried before it begins. */
#ifndef OUTPUT_H
#define OUTPUT_H

#include "../../zeroflow.h"

typedef struct output {
    const char *option, *path; /* "dump"; NULL: not asked for */
} output;

/* Makes a file beside each of them, fills it a little, and removes it. False with *error, which
 * names the option, for the first that will not do. */
bool output_try(const output *outputs, int count, zf_error *error);

#endif
