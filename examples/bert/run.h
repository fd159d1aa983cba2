/* A run of bert pretrain: what its ranks share, and what each has. */
#ifndef BERT_RUN_H
#define BERT_RUN_H

#include "../common/alike.h"
#include "../common/saving.h"
#include "../common/settings.h"
#include "../common/tokenizing.h"
#include "../common/training.h"
#include "batchfile.h"
#include "commands.h"
#include "log.h"
#include "ranks.h"

typedef struct bert_settings {
    union {
        settings common;
        struct {
            SETTINGS_MEMBERS
        };
    };
    const char *svg, *cost, *save_cost, *recompute, *rendezvous;
    int64_t masked, optimizer, compare_every;
    int64_t ranks, zero, micro_batches, bucket, prefetch;
    double seconds, deadline, momentum, min_coeff, max_coeff;
    int64_t sinusoids, unigrams; /* 1: first values of the position embedding, of the bias */
    bool no_nsp;
} bert_settings;

/* The ranks of this process only read it while they run. */
typedef struct bert_job {
    bert_settings o;
    bert_ranks ranks;
    bert_config config;
    bert_shape shape;         /* of one part of a global batch */
    bert_text text;           /* unless there is a batch file */
    bert_batch_file *batches; /* or NULL */
    zf_cost cost;             /* of --cost FILE */
    saving saving;            /* in the process of rank 0 */
    training told;
    alike alike;      /* what other processes must have as well */
    zf_error error;   /* of this process, before its ranks begin */
    bool interrupted; /* at its end */
    bool agreed;      /* all processes have the same error */
} bert_job;

/* One rank's run under way. What is printed or written is rank 0's business (leads). */
typedef struct bert_run {
    const bert_job *job;
    const zf_comm *comm; /* NULL: one rank */
    bool leads;
    bert_session session;
    bert_feeder *feeder;
    bert_log log; /* of rank 0 */
    zf_error error;
    const bert_batch *batch; /* the global one of the step under way */
    int64_t first_step;
    double started, last_step, last_line;
    double shown_loss, shown_correct, shown_labelled; /* sums since the last line */
    int64_t shown_steps;
    bool terminal, interrupted, agreed;
    bert_score score;
} bert_run;

/* Sets r->error; returns false. */
__attribute__((format(printf, 3, 4))) bool bert_run_fail(bert_run *r, zf_status status,
                                                         const char *format, ...);

/* How many parts the ranks and their micro-batches make of a global batch. */
int64_t bert_job_parts(const bert_job *job);

/* The session of one rank that trains; its communicator is still to be set. */
bert_session_desc bert_job_session(const bert_job *job);

/* Measures a step and lowers --steps to what fits into --seconds, but not below 200; prints the
 * choice. For one rank. False with *error. */
bool bert_job_pace(bert_job *job, zf_error *error);
/* How many steps that is, of `most` at most. */
int64_t bert_steps_within(double seconds, double step_seconds, int64_t most);

/* All that follows is for all ranks to call, and gives false with r->error. */

/* What has failed on one rank fails on all (alike_good). */
bool bert_run_agree(bert_run *r);

/* Trains to the last step, or until a signal ends it on all ranks after the same step
 * (r->interrupted). Leaves a live line and the log. */
bool bert_run_train(bert_run *r);
/* Tokens per second of the median step of this part of the run; 0 without a step. */
double bert_run_speed(const bert_run *r);
double bert_peak_mib(void); /* of memory that the process has used */

/* Gives parameters the first values that --first-positions and --first-bias ask for. */
bool bert_run_first_values(bert_run *r);
/* rows x width: sin and cos of t / 10000^(i / width), with a mean square of std^2. */
void bert_sinusoids(float *table, int64_t rows, int64_t width, double std);

/* Writes a checkpoint to --save. */
bool bert_run_save(bert_run *r);
/* Restores that of --load, after checking that this run is the one it belongs to. */
bool bert_run_resume(bert_run *r);

#endif
