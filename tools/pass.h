/* Passes by name, as zf-opt and the tests of passes run them: "autograd %8; clip 1; memory
 * no_reuse". */
#ifndef PASS_H
#define PASS_H

#include "../zeroflow.h"

typedef enum pass_result {
    PASS_DONE,
    PASS_FAILED, /* the graph or the pass is bad */
    PASS_MISUSED /* the line is: an unknown pass, a bad argument */
} pass_result;

/* Runs the passes of `line` in order. What a pass has to say (hash) goes to `out`; when the result
 * is not PASS_DONE, why is in message[0..size), one line. */
pass_result pass_run(zf_graph *graph, const char *line, FILE *out, char *message, size_t size);

/* Lists all passes with their arguments. */
void pass_list(FILE *out);

#endif
