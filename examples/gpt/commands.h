/* The commands of the program: each takes the whole command line, reads its own options and returns
 * an exit status: 0 good, 1 failed, 2 bad usage. */
#ifndef GPT_COMMANDS_H
#define GPT_COMMANDS_H

#include "../common/options.h"
#include "session.h"
#include "text.h"

enum { EXIT_GOOD, EXIT_FAILED, EXIT_USAGE };

int gpt_command_pretrain(int argc, char **argv);
int gpt_command_generate(int argc, char **argv);
int gpt_command_export(int argc, char **argv);

/* Reads a command's options; true when it may go on, else *status is what to return. *rest is the
 * one argument that is no option, or NULL; rest NULL: there must be none. */
bool gpt_options(int argc, char **argv, const char *usage, const option_row *rows,
                 const char **rest, int *status);
/* Prints what is wrong with a command line; returns EXIT_USAGE. */
int gpt_usage_error(char **argv, const char *text);
/* Prints "gpt: ..." to the standard error; returns EXIT_FAILED. */
__attribute__((format(printf, 1, 2))) int gpt_error(const char *format, ...);

#endif
