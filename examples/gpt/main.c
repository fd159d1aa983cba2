/* gpt: trains a GPT-2 on a text, continues sentences, exports its weights. */
#include "../frame/options/command.h"
#include "../frame/commands/frame.h"
#include "../frame/score/reward.h"
#include "model.h"

static int pretrain(int argc, char **argv) { return causal_pretrain(&gpt_sample, argc, argv); }
static int reward(int argc, char **argv) { return reward_command(&gpt_sample, argc, argv); }
static int score(int argc, char **argv) { return score_command(&gpt_sample, argc, argv); }
static int eval(int argc, char **argv) { return evaluate_command(&gpt_sample, argc, argv); }
static int generate(int argc, char **argv) { return causal_generate(&gpt_sample, argc, argv); }
static int chat(int argc, char **argv) { return causal_chat(&gpt_sample, argc, argv); }
static int selftest(int argc, char **argv) { return causal_selftest(&gpt_sample, argc, argv); }
static int merge(int argc, char **argv) { return merge_command(&gpt_sample, argc, argv); }
static int export(int argc, char **argv) { return export_command(&gpt_sample, argc, argv); }

static int elsewhere(int argc, char **argv)
{
    (void)argc;
    command_error("%s is a command of llm and opt, for the models that these know", argv[1]);
    return EXIT_USAGE;
}

static const command commands[] = {
    {"pretrain", "train on the next token", pretrain},
    {"reward", "train a model that scores answers on pairs of them (--data FILE)", reward},
    {"score", "print the scores that such a model gives to answers (--data FILE)", score},
    {"eval", "the loss of a checkpoint on the held-out part of a text", eval},
    {"generate", "continue a text", generate},
    {"chat", "answer messages", chat},
    {"selftest", "how well and how fast it predicts a text, and its memory", selftest},
    {"merge", "export the weights with an adapter added to them", merge},
    {"export", "write a checkpoint's weights as GPT-2's files have them", export},
    {"finetune", NULL, elsewhere},
    {"dpo", NULL, elsewhere},
    {"grpo", NULL, elsewhere},
    {"ppo", NULL, elsewhere},
    {"rlhf", NULL, elsewhere},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return command_main(&(command_program){"gpt", commands}, argc, argv);
}
