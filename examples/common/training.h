/* What a run of training tells its user, whatever the model is. */
#ifndef TRAINING_H
#define TRAINING_H

#include "csv.h"

/* The rest of a message about a loss or a gradient that is not finite. */
#define TRAINING_DIVERGED "the run has diverged (a smaller --lr or a --clip may help)"

typedef struct training {
    int argc; /* the command line */
    char **argv;
    const char *save, *load, *init; /* its options, or NULL */
    int64_t steps;
    const char *launcher; /* that started this process as one of `world`, or NULL */
    int64_t world;
} training;

/* "adamw|lamb|...", the names of zf_optimizer in their order. */
const char *training_optimizers(void);

/* At the beginning, of a run that has had `done` steps: what of its options is without effect. */
void training_tell_beginning(const training *t, int64_t done);

/* At its end by a signal: where it is, and the command that goes on. */
void training_tell_interrupted(const training *t, int64_t done);

/* Adds a row to the log. Of the first one that cannot be written it says so; the run goes on. */
void training_log(csv_file *log, const char *program, const char *row);

/* Of processes that Open MPI's mpirun started: where a step takes so long that Ctrl-C may kill them
 * before they have saved, says how to end the run instead. */
void training_tell_grace(const training *t, double step_seconds);

#endif
