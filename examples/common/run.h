/* A run of training: what its ranks share, and what each has. */
#ifndef RUN_H
#define RUN_H

#include "alike.h"
#include "dataset.h"
#include "ranks.h"
#include "saving.h"
#include "session.h"
#include "step_log.h"
#include "training.h"

/* The ranks of this process only read it while they run. */
typedef struct run_job {
    const sample_model *sample;
    settings o;
    const option_row *rows; /* of the options */
    rank_group ranks;
    config_any config;
    sample_shape shape; /* of one part of a global batch */
    dataset data;
    zf_cost cost;  /* of --cost FILE */
    saving saving; /* in the process of rank 0 */
    training told;
    alike alike;      /* what other processes must have as well */
    zf_error error;   /* of this process, before its ranks begin */
    bool interrupted; /* at its end */
    bool agreed;      /* all processes have the same error */
} run_job;

/* One rank's run under way. What is printed or written is rank 0's business (leads). */
typedef struct run {
    const run_job *job;
    const zf_comm *comm; /* NULL: one rank */
    bool leads;
    session session;
    void *reader;
    step_log log; /* of rank 0 */
    zf_error error;
    const void *batch; /* the global one of the step under way */
    int64_t first_step;
    double started, last_step, last_line;
    double shown_loss, shown_hits, shown_labelled; /* sums since the last line */
    int64_t shown_steps;
    bool terminal, interrupted, agreed;
    sample_score score;
} run;

/* How many parts the ranks and their micro-batches make of a global batch. */
int64_t run_parts(const run_job *job);

/* The session of one rank that trains; its communicator is still to be set. */
session_desc run_session(const run_job *job);

/* Measures a step and lowers --steps to what fits into --seconds, but not below 200; prints the
 * choice. For one rank. False with *error. */
bool run_pace(run_job *job, zf_error *error);
/* How many steps that is, of `most` at most. */
int64_t run_steps_within(double seconds, double step_seconds, int64_t most);

/* All that follows is for all ranks to call, and gives false with r->error. */

/* What has failed on one rank fails on all (alike_good). */
bool run_agree(run *r);

/* Trains to the last step, or until a signal ends it on all ranks after the same step
 * (r->interrupted). Leaves a live line and the log. */
bool run_train(run *r);
/* Tokens per second of the median step of this part of the run; 0 without a step. */
double run_speed(const run *r);
double run_peak_mib(void); /* of memory that the process has used */
double run_now(void);      /* seconds of a clock */

/* Writes a checkpoint to --save. */
bool run_save(run *r);
/* Restores that of --load, after checking that this run is the one it belongs to. */
bool run_resume(run *r);

#endif
