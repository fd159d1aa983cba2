/* Training on rewards of a model's own answers (GRPO and relatives): the objective and its command.
 * The graph is in causal_end (causal.h).
 *
 * An iteration samples --group answers to each prompt over the parameters that are trained, rewards
 * them, and makes steps on them: answers / --batch steps, --epochs times. */
#ifndef POLICY_H
#define POLICY_H

#include "../model/sample.h"

/* The options of the command, besides those of a run. */
typedef struct policy_options {
    zf_option_texts reward, stop;
    int64_t group, tokens, answers, epochs;
    double reward_deadline;
    zf_sampling how;
    bool off_policy;
    zf_policy_desc loss;
    zf_advantage_desc advantage; /* advantage, correction and its limits */
} policy_options;

extern const objective policy_objective;

/* The command grpo: the whole command line; an exit status. */
int policy_command(const sample_model *sample, int argc, char **argv);

#endif
