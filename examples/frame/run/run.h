/* A run of training: what its ranks share, and what each rank has. */
#ifndef RUN_H
#define RUN_H

#include "../../../zeroflow_llm.h"
#include "../ranks/alike.h"
#include "../model/dataset.h"
#include "../ranks/ranks.h"
#include "../output/saving.h"
#include "../model/session.h"
#include "../output/step_log.h"
#include "../output/training.h"
#include "../model/settings.h"

/* Shared by the ranks of this process, which only read it while they run. */
typedef struct run_job {
    const sample_model *sample;
    settings o;
    settings_tables tables; /* of the options, over `o` */
    rank_group ranks;
    zf_config_any config;
    sample_shape shape;                /* of one part of a global batch; with phases, of the last */
    shape_phases phases;               /* of --phase and --curriculum */
    sample_shape shapes[SHAPE_PHASES]; /* of one part, of each of their shapes */
    dataset data;
    char *keep; /* of --lora, for a model of texts */
    /* Where there is --save or --load, and the first weights are needed later (--lora,
     * objective.joins, dataset.first): their digest */
    uint64_t base;
    zf_cost cost;  /* of --cost FILE */
    saving saving; /* in the process of rank 0 */
    saving best;   /* with --eval-every: the checkpoint with the lowest held-out loss */
    bool resumes;  /* --save is the place of --load, and so is that of the best one */
    training report;
    alike alike;      /* what must be equal in other processes */
    zf_error error;   /* of this process, before its ranks begin */
    bool interrupted; /* at its end */
    bool agreed;      /* all processes have the same error */
} run_job;

/* Of --trace: the file, and the first and last step; first 0: not given. */
typedef struct run_traced {
    char path[1024];
    int64_t first, last;
    bool planned; /* what is planned has been added */
} run_traced;

/* What experts have had since a run began or went on (experts.c), by layer, as zf_moe_load says it. */
typedef struct run_experts {
    int64_t layers, experts;
    int64_t *number; /* of each layer */
    float *room;         /* [experts + 2] */
    double *last, *sums; /* [layers, experts + 2], of a step, and of all */
    double rows, last_rows; /* of a layer: how many there was room for */
} run_experts;

/* The run of one rank. Only rank 0 prints and writes (leads). */
typedef struct run {
    const run_job *job;
    const zf_comm *comm; /* NULL: one rank */
    bool leads;
    session session;
    session judge; /* evaluates over its parameters, from the first evaluation on */
    double best;   /* the lowest loss of run_judge, and after which step of this part of the run */
    int64_t best_step, judged; /* judged: after which step `score` was computed; 0: not yet */
    float *reference; /* of objective.refer; NULL: none */
    void *reader;
    const shape_phase *phase; /* that the reader is for; NULL: there are none */
    int64_t waits;            /* of readers before it */
    zf_nn_train_desc *train;  /* while it trains */
    step_log log; /* of rank 0 */
    zf_metrics metrics; /* of rank 0: its log, and what else is written of the run */
    zf_metrics live;    /* its live line, while it trains */
    zf_report *page;    /* of --report-html, of rank 0; NULL: none */
    zf_trace *trace;    /* of --trace, of rank 0; NULL: none */
    run_traced traced;
    zf_status measure; /* of run_before_step, for the feed of that step */
    bool metrics_lost;  /* a message has said that some could not be written */
    zf_error error;
    const void *batch; /* the global batch of the current step */
    int64_t first_step;
    double last_step;
    double clock; /* seconds from run_now's zero to 1970's */
    bool terminal, interrupted, agreed;
    sample_score score;
    run_experts experts; /* of rank 0; layers 0: there are none */
} run;

/* The number of parts of a global batch: ranks times micro-batches. */
/* Ranks that share the batch: those along data. */
int32_t run_data_ranks(const run_job *job);
int64_t run_parts(const run_job *job);
/* The number of micro-batches whose gradients a rank adds before the ranks do (ZF_SUM_MICRO); 1:
 * their order is that of the parts. */
int64_t run_added_first(const run_job *job);

/* The tokens of a global batch, padding included; of the first `done` steps. */
int64_t run_tokens(const run_job *job);
int64_t run_tokens_until(const run_job *job, int64_t done);

/* The desc of one rank's session for training; its communicator is still to be set. */
session_desc run_session(const run_job *job);

/* Measures a step and sets --steps to the number that fits into --seconds, at least 200; prints it.
 * For one rank. False with *error. */
bool run_pace(run_job *job, zf_error *error);
/* The number of steps that fit, at most `most`. */
int64_t run_steps_within(double seconds, double step_seconds, int64_t most);

/* All of the following must be called by all ranks, and return false with r->error. */

/* What has failed on one rank fails on all (alike_good). */
bool run_agree(run *r);

/* Trains to the last step, or until a signal ends it on all ranks after the same step
 * (r->interrupted). Prints the live line and writes the log. */
bool run_train(run *r);
/* Tokens per second of the median step of this part of the run; 0 without a step. */
double run_speed(const run *r);
double run_peak_mib(void); /* of memory that the process has used */
double run_now(void);      /* seconds of a clock */

/* The numbers of a run, of rank 0 (metrics.c). Opens what is written next to its log
 * (--tensorboard), after the session; and the log and the live line, before the first step. */
bool run_open_metrics(run *r);
bool run_open_live(run *r);
/* Puts the numbers of step row->step, or those of held-out batches, into all of them. False where
 * memory is out; what cannot be written is reported once, and the run goes on. */
bool run_put_step(run *r, const step_log_row *row);
bool run_put_score(run *r);
/* Closes them; false with *error where numbers are missing in what was written. */
bool run_close_metrics(run *r, zf_error *error);
/* One of the objective's `losses`, after a step. */
double run_number(run *r, const char *name);
/* There is a loss scale, so a non-finite gradient means a skipped step. */
bool run_scaled(const run *r);

/* The experts of a run (experts.c), of which nothing is done where there are none: opened after the
 * session; read after a step; printed at the end, a line for each layer, and on the page; in the
 * report. */
bool run_open_experts(run *r);
void run_take_experts(run *r, int64_t done);
/* Of the last step: the largest share of an expert times their number; shares of dropped choices, and
 * of rows without a choice. */
typedef struct run_load {
    double most, dropped, padding;
} run_load;
run_load run_load_of(const run *r);
void run_tell_experts(const run *r);
void run_put_experts(const run *r, zf_json_writer *w);
void run_close_experts(run *r);

/* The page and the trace of a run (reports.c), of which nothing is done where they are not asked
 * for. What is read of --trace; what is opened after the session; rows of the log for the page;
 * what is measured before and after a step, by all ranks. */
bool run_trace_steps(const char *text, run_traced *out, zf_error *error);
bool run_open_page(run *r);
bool run_open_trace(run *r);
bool run_page_takes_log(run *r);
zf_status run_before_step(run *r, int64_t done);
bool run_after_step(run *r, int64_t done);
void run_close_reports(run *r); /* after the metrics */

/* Writes a checkpoint to --save; to another place, with the loss that the note "held-out" says. */
bool run_save(run *r);
bool run_save_to(run *r, const saving *where, const char *held_out);
/* Losses without dropout and updates, in r->score: of held-out batches, or, printed, of the batch
 * that would come next in a file. */
bool run_evaluate(run *r);
/* The same during a run, printed; saves the checkpoint if it is the best so far. */
bool run_judge(run *r);
/* Finds out what was the best before, in a run that is resumed; opens what evaluates where it may
 * not be there. */
bool run_judge_begin(run *r);
/* Sets r->reference: computes it by the parameters before the first step, or in a run that is
 * resumed reads it from the checkpoint, which has this file. */
bool run_refer(run *r);
extern const char run_reference_file[];
size_t run_reference_bytes(const run_job *job); /* 0: the objective needs none */
/* Restores the checkpoint of --load, after checking that it belongs to this run. */
bool run_resume(run *r);

#endif
