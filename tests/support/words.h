/* Command lines of a sample, as a shell would split them at spaces. */
#ifndef WORDS_H
#define WORDS_H

#include "../../examples/frame/options/command.h"

#include <stdio.h>
#include <string.h>

/* Runs a line of words between spaces, of which the first names one of the commands; the status. */
static int run_words(const command *commands, const char *line)
{
    char copy[1200], *argv[60] = {(char *)"llm"};
    int argc = 1;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *word = strtok(copy, " "); word && argc < 59; word = strtok(NULL, " "))
        argv[argc++] = word;
    return command_main(&(command_program){"llm", commands}, argc, argv);
}

#endif
