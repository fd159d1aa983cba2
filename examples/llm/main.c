/* llm: trains a Llama or one of its relatives on a text or on examples, continues sentences,
 * exports weights. */
#include "../frame/options/command.h"
#include "../frame/commands/frame.h"
#include "../frame/policy/policy.h"
#include "../frame/ppo/ppo.h"
#include "../frame/rlhf/rlhf.h"
#include "../frame/score/reward.h"
#include "../frame/preference/preference.h"
#include "model.h"
#include "options.h"

static int pretrain(int argc, char **argv)
{
    return causal_pretrain_with(&llm_sample, llm_options(), argc, argv);
}
static int finetune(int argc, char **argv)
{
    return causal_finetune_with(&llm_sample, llm_options(), argc, argv);
}
static int reward(int argc, char **argv) { return reward_command(&llm_sample, argc, argv); }
static int score(int argc, char **argv) { return score_command(&llm_sample, argc, argv); }
static int grpo(int argc, char **argv) { return grpo_command(&llm_sample, argc, argv); }
static int ppo(int argc, char **argv) { return ppo_command(&llm_sample, argc, argv); }
static int rlhf(int argc, char **argv) { return rlhf_command(&llm_sample, argc, argv); }
static int dpo(int argc, char **argv) { return preference_command(&llm_sample, argc, argv); }
static int eval(int argc, char **argv) { return evaluate_command(&llm_sample, argc, argv); }
static int generate(int argc, char **argv) { return causal_generate(&llm_sample, argc, argv); }
static int chat(int argc, char **argv) { return causal_chat(&llm_sample, argc, argv); }
static int selftest(int argc, char **argv) { return causal_selftest(&llm_sample, argc, argv); }
static int merge(int argc, char **argv) { return merge_command(&llm_sample, argc, argv); }
static int export(int argc, char **argv) { return export_command(&llm_sample, argc, argv); }

static const command commands[] = {
    {"pretrain", "train on the next token", pretrain},
    {"finetune", "fine-tune --model DIR on --data FILE, or an adapter of it (--lora)", finetune},
    {"reward", "train a model that scores answers on pairs of them (--data FILE)", reward},
    {"score", "print the scores that such a model gives to answers (--data FILE)", score},
    {"grpo", "train --model DIR on rewards (--reward) of its answers to prompts (--data FILE)",
     grpo},
    {"ppo", "the same with a critic, which gives values to tokens (PPO)", ppo},
    {"rlhf", "fine-tune, train a reward model, and ppo, from one file of pairs (--data FILE)",
     rlhf},
    {"dpo", "train --model DIR on pairs of answers (--data FILE), or an adapter of it (--lora)",
     dpo},
    {"eval", "the loss of a checkpoint on a text, on examples or on batches", eval},
    {"generate", "continue a text", generate},
    {"chat", "answer messages", chat},
    {"selftest", "how well and how fast it predicts a text, and its memory", selftest},
    {"merge", "export the weights with an adapter added to them", merge},
    {"export", "write a checkpoint's weights as Hugging Face's files have them", export},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return command_main(&(command_program){"llm", commands}, argc, argv);
}
