/* The log of a run: a CSV file with one row for each step, whose first column is the step. Each row
 * is in the file as soon as it is added. A run that goes on appends to it, and drops the rows
 * behind the step that it goes on from, which will come again:
 *
 *     step,loss,lr            step,loss,lr
 *     1,5.2,0.001             1,5.2,0.001
 *     2,5.1,0.001             2,5.1,0.001
 *     3,5.0,0.001             3,5.0,0.001    <- the first row of a run that goes on from step 2
 *     4,4.                    a row that was cut off goes as well
 */
#ifndef CSV_H
#define CSV_H

#include "../../zeroflow.h"

typedef struct csv_file {
    const char *path; /* NULL: no file, and nothing to do */
    int file;
    int64_t lost;   /* rows that could not be written */
    zf_error error; /* why the first of them was not */
} csv_file;

/* Takes a row that stays; false: it is none. */
typedef bool csv_row(void *user, const char *line);

/* Opens the file of a run that goes on from that step, 0: from the beginning, and then what the
 * file held goes. `header` is its first line; `row` may be NULL. False with *error, also where a
 * run would go on in a file with another header. */
bool csv_open(csv_file *f, const char *path, const char *header, int64_t step, csv_row *row,
              void *user, zf_error *error);

/* Adds a row, its newline included. A row that cannot be written is lost as a whole: false where it
 * is the first, with the reason in f->error. */
bool csv_add(csv_file *f, const char *row);

/* False with *error where rows were lost. */
bool csv_close(csv_file *f, zf_error *error);

#endif
