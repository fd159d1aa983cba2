/* Messages of a training run to its user, for all models. */
#ifndef TRAINING_H
#define TRAINING_H

#include "csv.h"

/* The end of a message about a non-finite loss or gradient. */
#define TRAINING_DIVERGED "the run has diverged (a smaller --lr or a --clip may help)"

typedef struct training {
    int argc; /* the command line */
    char **argv;
    const char *save, *load, *init; /* its options, or NULL */
    int64_t steps;
    const char *launcher; /* the launcher that started this process as one of `world`, or NULL */
    int64_t world;
} training;

/* At the beginning of a run that has had `done` steps: names options without effect. */
void training_tell_beginning(const training *t, int64_t done);

/* After a signal: prints where the checkpoint is, and the command that resumes the run. */
void training_tell_interrupted(const training *t, int64_t done);

/* Adds a row to the log. Reports the first row that cannot be written; the run goes on. */
void training_log(csv_file *log, const char *program, const char *row);

/* For processes of Open MPI's mpirun: if a step takes so long that Ctrl-C may kill them before they
 * have saved, says how to end the run instead. */
void training_tell_grace(const training *t, double step_seconds);

#endif
