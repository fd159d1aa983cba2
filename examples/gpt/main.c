/* gpt: trains a GPT-2 on a text, continues sentences, exports its weights. */
#include "commands.h"

static const command commands[] = {
    {"pretrain", "train on the next token", gpt_command_pretrain},
    {"generate", "continue a text", gpt_command_generate},
    {"export", "write a checkpoint's weights as GPT-2's files have them", gpt_command_export},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return command_main(&(command_program){"gpt", commands}, argc, argv);
}
