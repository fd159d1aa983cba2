/* Training on rewards of a model's own answers: the objective and its commands. The graph is in
 * causal_end (causal.h).
 *
 * An iteration samples --group answers to each prompt over the parameters that are trained, rewards
 * them, and makes steps on them: answers / --batch steps, --epochs times. */
#ifndef POLICY_H
#define POLICY_H

#include "../experience/policy_options.h"

/* The command of a kind; grpo: GRPO and relatives. The whole command line; an exit status. */
int policy_command(const sample_model *sample, const policy_kind *kind, int argc, char **argv);
int grpo_command(const sample_model *sample, int argc, char **argv);

#endif
