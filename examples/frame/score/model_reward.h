/* The reward model:DIR: the score that a reward model gives to a prompt and its answer
 * (scorer.h). */
#ifndef MODEL_REWARD_H
#define MODEL_REWARD_H

#include "../model/sample.h"

/* What is alike for all such rewards of a run. */
typedef struct model_reward_desc {
    const sample_model *sample;
    int64_t vocab, tokens; /* of the policy; of a prompt and its answer, at most */
    const char *folder;    /* of the policy's tokenizer */
    int64_t threads;
    bool standardize; /* the mean of reward.json is taken out, and its deviation divided by */
} model_reward_desc;

/* zf_reward_kind.open, `user` being a desc. False with *error: DIR is no reward model, or one of
 * another vocabulary, or lacks what standardize needs. */
bool model_reward_open(void *user, const char *argument, zf_reward *out, zf_error *error);

#endif
