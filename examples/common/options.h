/* Command lines from a table: GNU long options, --help, and errors that say what would be right. */
#ifndef OPTIONS_H
#define OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef enum option_kind {
    OPTION_TEXT,
    OPTION_COUNT,
    OPTION_NUMBER,
    OPTION_FLAG,
    OPTION_CHOICE
} option_kind;

typedef struct option_row {
    const char *name; /* without the dashes */
    option_kind kind;
    const char *value; /* what stands for the value in --help; of a choice: "a|b|c" */
    void *to;          /* const char *, int64_t, double, bool; of a choice int64_t, the index */
    double least, most;
    const char *help;
} option_row;

/* What was asked for. */
typedef enum options_result { OPTIONS_GOOD, OPTIONS_HELP, OPTIONS_BAD } options_result;

/* Reads argv[1..] by `rows` (the last has name NULL). Arguments without dashes go to
 * rest[0..*rest_count), at most `room` of them. After OPTIONS_BAD, `error` has one line. */
options_result options_parse(int argc, char **argv, const option_row *rows, const char **rest,
                             int room, int *rest_count, char *error, int error_size);

/* Prints the table, values that are set as defaults. */
void options_print(FILE *out, const option_row *rows);

#endif
