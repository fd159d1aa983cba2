/* What a run leaves behind: the CSV of its steps, the curve as SVG, and the live line. */
#ifndef BERT_LOG_H
#define BERT_LOG_H

#include "../common/csv.h"

typedef struct bert_log_row {
    int64_t step;
    double loss, mlm_loss, nsp_loss, lr, grad_norm, tokens_per_s;
} bert_log_row;

typedef struct bert_log {
    csv_file file;
    bert_log_row *rows;
    int64_t count, room;
    bool lacks_memory;
} bert_log;

/* Opens the CSV. A run that continues after `step` steps keeps the rows up to that step, and drops
 * what came later. */
bool bert_log_open(bert_log *log, const char *path, int64_t step, zf_error *error);
/* A row that cannot be written is lost for the file, which its closing tells; false: no memory. */
bool bert_log_add(bert_log *log, const bert_log_row *row, zf_error *error);
bool bert_log_close(bert_log *log, zf_error *error); /* frees the rows, too */

/* The loss curve: masked-language loss by step, smoothed over it, and a level to compare with (0:
 * none). */
bool bert_log_plot(const bert_log *log, const char *path, double level, const char *level_name,
                   double held_out, zf_error *error);

#endif
