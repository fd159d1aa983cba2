/* Files that a run writes at its end. Whether they can be written is tried at its beginning. */
#ifndef OUTPUT_H
#define OUTPUT_H

#include "../../../zeroflow.h"

typedef struct output {
    const char *option, *path; /* option: "dump"; path NULL: not asked for */
} output;

/* Makes a file next to each of them, writes a little to it, and removes it. False with *error,
 * which names the option, for the first that cannot be written. */
bool output_try(const output *outputs, int count, zf_error *error);

#endif
