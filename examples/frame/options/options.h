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
    OPTION_CHOICE,
    OPTION_TEXTS /* may be given several times */
} option_kind;

/* The values of an option that may be given several times. */
enum { OPTION_TIMES = 16 };
typedef struct option_texts {
    const char *at[OPTION_TIMES];
    int32_t count;
} option_texts;

/* What a run of training does with an option, combined with its kind by |. */
enum {
    OPTION_KIND = 7,   /* the mask of the kind */
    OPTION_NOTED = 8,  /* it is noted in checkpoints: a resumed run must have the same */
    OPTION_OWN = 16,   /* each rank may have its own */
    OPTION_NAMES = 32, /* it names an output, or a file whose digest ranks compare: ranks only
                        * compare whether it is given */
};

typedef struct option_row {
    const char *name; /* without dashes */
    int kind;         /* an option_kind, and what a run does with it */
    const char *value; /* the value's name in --help; for a choice: "a|b|c" */
    /* const char *, int64_t, double, bool, option_texts; for a choice int64_t, the index */
    void *to;
    double least, most;
    const char *help;
} option_row;

static inline option_kind option_kind_of(const option_row *row)
{
    return (option_kind)(row->kind & OPTION_KIND);
}

/* The option's value as text, numbers with as few digits as read back the same; returns text. */
enum { OPTION_VALUE = 72 };
const char *option_text(char text[OPTION_VALUE], const option_row *row);

/* The result of reading a command line. */
typedef enum options_result { OPTIONS_GOOD, OPTIONS_HELP, OPTIONS_BAD } options_result;

/* Reads argv[1..] by `rows` (the last has name NULL). Arguments without dashes go to
 * rest[0..*rest_count), at most `room` of them. After OPTIONS_BAD, `error` has one line. */
options_result options_parse(int argc, char **argv, const option_row *rows, const char **rest,
                             int room, int *rest_count, char *error, int error_size);

/* Prints the table, values that are set as defaults. */
void options_print(FILE *out, const option_row *rows);

#endif
