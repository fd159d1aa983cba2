/* The options of commands that train on rewards, besides those of a run; and what differs between
 * them. */
#ifndef POLICY_OPTIONS_H
#define POLICY_OPTIONS_H

#include "../model/settings.h"
#include "../model/sample.h"

struct experience;
struct policy_options;

/* A command. */
typedef struct policy_kind {
    const char *usage;
    const settings_default *defaults;
    const zf_option *rows; /* its own, over policy_options */
    const char *(*wrong)(const struct policy_options *own, const settings *o); /* as sample_model.wrong */
    const objective *objective;
    /* Sets the advantage of each token by rewards and scores. False with *error. */
    bool (*advantages)(struct experience *e, zf_error *error);
} policy_kind;

typedef struct policy_options {
    zf_option_texts reward, stop;
    int64_t group, tokens, answers, epochs;
    double reward_deadline;
    zf_sampling how;
    bool off_policy, reward_standardize;
    zf_policy_desc loss;
    zf_advantage_desc advantage;
    const policy_kind *kind; /* no options */
    const sample_model *sample;
} policy_options;

#endif
