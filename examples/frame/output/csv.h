/* The log of a run: a CSV file with one row for each step, whose first column is the step. Each row
 * is written at once. A resumed run appends to the file, after dropping rows later than the step
 * from which it resumes:
 *
 *     step,loss,lr            step,loss,lr
 *     1,5.2,0.001             1,5.2,0.001
 *     2,5.1,0.001             2,5.1,0.001
 *     3,5.0,0.001             3,5.0,0.001    <- the first row of a run resumed from step 2
 *     4,4.                    an incomplete row is dropped too
 */
#ifndef CSV_H
#define CSV_H

#include "../../../zeroflow.h"

typedef struct csv_file {
    const char *path; /* NULL: no file, and nothing to do */
    int file;
    int64_t lost;   /* rows that could not be written */
    zf_error error; /* why the first of them could not */
} csv_file;

/* Takes a row that is kept; false: it is not a row. */
typedef bool csv_row(void *user, const char *line);

/* Opens the file of a run that resumes from this step; 0: a new run, and the file is emptied.
 * `header` is the first line; `row` may be NULL. False with *error, also where a resumed run finds
 * another header. */
bool csv_open(csv_file *f, const char *path, const char *header, int64_t step, csv_row *row,
              void *user, zf_error *error);

/* Adds a row, which includes its newline. A row that cannot be written is lost as a whole. False at
 * the first lost row, with the reason in f->error. */
bool csv_add(csv_file *f, const char *row);

/* False with *error where rows were lost. */
bool csv_close(csv_file *f, zf_error *error);

#endif
