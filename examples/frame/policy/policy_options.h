/* The options of grpo, besides those of a run. */
#ifndef POLICY_OPTIONS_H
#define POLICY_OPTIONS_H

#include "../model/sample.h"

typedef struct policy_options {
    zf_option_texts reward, stop;
    int64_t group, tokens, answers, epochs;
    double reward_deadline;
    zf_sampling how;
    bool off_policy, reward_standardize;
    const sample_model *sample; /* no option */
    zf_policy_desc loss;
    zf_advantage_desc advantage; /* advantage, correction and its limits */
} policy_options;

#endif
