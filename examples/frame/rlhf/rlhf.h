/* The three steps of DeepSpeed-Chat as one command: fine-tuning on the chosen answers of pairs, a
 * reward model of pairs, PPO on prompts. */
#ifndef RLHF_H
#define RLHF_H

#include "../model/sample.h"

/* The command rlhf: the whole command line; an exit status. */
int rlhf_command(const sample_model *sample, int argc, char **argv);

#endif
