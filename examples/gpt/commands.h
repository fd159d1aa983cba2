/* The commands of the program. */
#ifndef GPT_COMMANDS_H
#define GPT_COMMANDS_H

#include "../common/command.h"
#include "session.h"
#include "text.h"

int gpt_command_pretrain(int argc, char **argv);
int gpt_command_generate(int argc, char **argv);
int gpt_command_export(int argc, char **argv);

#endif
