/* The commands of the program. */
#ifndef BERT_COMMANDS_H
#define BERT_COMMANDS_H

#include "../frame/options/command.h"

int bert_command_pretrain(int argc, char **argv);
int bert_command_vocab(int argc, char **argv);
int bert_command_finetune(int argc, char **argv);
int bert_command_classify(int argc, char **argv);
int bert_command_eval(int argc, char **argv);
int bert_command_fill(int argc, char **argv);
int bert_command_tokenize(int argc, char **argv);
int bert_command_export(int argc, char **argv);
int bert_command_merge(int argc, char **argv);

#endif
