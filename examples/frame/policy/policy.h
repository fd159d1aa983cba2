/* Training on rewards of a model's own answers (GRPO and relatives): the objective and its command.
 * The graph is in causal_end (causal.h).
 *
 * An iteration samples --group answers to each prompt over the parameters that are trained, rewards
 * them, and makes steps on them: answers / --batch steps, --epochs times. */
#ifndef POLICY_H
#define POLICY_H

#include "../model/sample.h"

extern const objective policy_objective;

/* The command grpo: the whole command line; an exit status. */
int policy_command(const sample_model *sample, int argc, char **argv);

#endif
