/* gpt: trains a GPT-2 on a text, continues sentences, exports its weights. */
#include "../common/command.h"
#include "model.h"

static int pretrain(int argc, char **argv) { return lm_pretrain(&gpt_kind, argc, argv); }
static int generate(int argc, char **argv) { return lm_generate(&gpt_kind, argc, argv); }
static int export(int argc, char **argv) { return lm_export(&gpt_kind, argc, argv); }

static const command commands[] = {
    {"pretrain", "train on the next token", pretrain},
    {"generate", "continue a text", generate},
    {"export", "write a checkpoint's weights as GPT-2's files have them", export},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return command_main(&(command_program){"gpt", commands}, argc, argv);
}
