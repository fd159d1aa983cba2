/* Programs with commands, such as `bert pretrain`. Each command gets the whole command line, reads
 * its own options and returns an exit status. */
#ifndef COMMAND_H
#define COMMAND_H

#include "../../../zeroflow.h"

enum { EXIT_GOOD, EXIT_FAILED, EXIT_USAGE };

typedef struct command {
    const char *name, *summary; /* summary NULL: the list of commands leaves it out */
    int (*run)(int argc, char **argv);
} command;

typedef struct command_program {
    const char *name;
    const command *commands; /* the last has name NULL */
} command_program;

/* The return value of main: the command's status, or EXIT_FAILED if output could not be written. */
int command_main(const command_program *program, int argc, char **argv);

/* Where --help or -h is in a command line; argc: there is none. */
int command_asks(int argc, char **argv);
/* Where --help is asked for, perhaps with a topic: prints it, and is true with *status. without:
 * the topic that is shown where none is named; NULL: the basic options. */
bool command_help(int argc, char **argv, const zf_options *all, int32_t count, const char *usage,
                  const char *without, int *status);

/* The tables of a command's options. */
enum { COMMAND_TABLES = 8 };
typedef struct command_tables {
    zf_options all[COMMAND_TABLES];
    int32_t count;
    bool open; /* the caller sets defaults of its own, and resolves the tables */
} command_tables;
/* Adds a table; rows NULL: nothing. */
void command_add(command_tables *t, const zf_option *rows, void *desc);

/* Reads a command's options; then the descs have the defaults of what was not given, unless the
 * tables are open. False: the
 * program ends with *status. *rest is the one argument that is no option, or NULL; rest NULL: none
 * is allowed. */
bool command_options(int argc, char **argv, const char *usage, const command_tables *tables,
                     const char **rest, int *status);

/* Prints what is wrong with a command line; returns EXIT_USAGE. */
int command_usage_error(char **argv, const char *text);

/* Prints "PROGRAM: ..." to the standard error; returns EXIT_FAILED. */
__attribute__((format(printf, 1, 2))) int command_error(const char *format, ...);

#endif
