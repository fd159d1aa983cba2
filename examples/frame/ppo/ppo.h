/* PPO (Schulman et al. 2017) with a critic, as DeepSpeed-Chat's third step. */
#ifndef PPO_H
#define PPO_H

#include "../policy/policy.h"

extern const policy_kind ppo_kind;

/* The command ppo: the whole command line; an exit status. */
int ppo_command(const sample_model *sample, int argc, char **argv);

#endif
