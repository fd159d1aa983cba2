/* The log of a run: the CSV of its steps, the curve as SVG, and the live line. */
#ifndef STEP_LOG_H
#define STEP_LOG_H

#include "../model/sample.h"
#include "csv.h"

enum { STEP_LOSSES = SAMPLE_LOSSES };
typedef struct step_log_row {
    int64_t step;
    double losses[STEP_LOSSES]; /* as many as the log has names */
    double lr, grad_norm, tokens_per_s;
} step_log_row;

typedef struct step_log {
    csv_file file;
    csv_file held_out;    /* of LOG.eval.csv; opened with its first row */
    char held_out_path[1024];
    int64_t resumed;      /* the step from which the run goes on */
    step_log_row *rows;
    int64_t count, room;
    const char *program;       /* its name, for messages */
    const char *const *losses; /* names, NULL after the last, at most STEP_LOSSES */
    bool lacks_memory;
} step_log;

/* Opens the CSV, whose columns are step, the losses, lr, grad_norm and tokens_per_s. A run resumed
 * after `step` steps keeps the rows up to that step and drops later ones. */
bool step_log_open(step_log *log, const char *path, const char *program, const char *const *losses,
                   int64_t step, zf_error *error);
/* Adds a row. If it cannot be written, step_log_close reports it; false: out of memory. */
bool step_log_add(step_log *log, const step_log_row *row, zf_error *error);
/* The log as a sink: "loss" and the other losses, learning_rate, grad_norm and
 * train_tokens_per_second are a row; what begins with "eval_" is a row of the file of held-out
 * values, whose columns are those of its first row. To be closed by step_log_close. */
zf_sink step_log_sink(step_log *log);
bool step_log_close(step_log *log, zf_error *error); /* also frees the rows */

/* Draws one of the losses by step, and smoothed; with a title, a level for comparison (0: none),
 * and the loss of held-out batches (0: not known). */
bool step_log_plot(const step_log *log, const char *path, int32_t loss, const char *title,
                   double level, const char *level_name, double held_out, zf_error *error);

#endif
