/* The reward model:DIR: the score that a reward model gives to a prompt and its answer (scorer.h).
 *
 * One that is an adapter of the weights of which the policy is another adapter is computed over
 * these, in the memory and the dtype of the session that trains. model_rewards notes those of a
 * run, and joined_rewards are the sessions of a rank for them. */
#ifndef MODEL_REWARD_H
#define MODEL_REWARD_H

#include "scorer.h"

enum { MODEL_REWARDS = 8 };

/* Reward models over the base of the policy; all ranks of a process have the same. */
typedef struct model_rewards {
    struct model_reward *at[MODEL_REWARDS];
    int count;
} model_rewards;

/* What is alike for all such rewards of a run. */
typedef struct model_reward_desc {
    const sample_model *sample;
    const settings *run;
    const void *config;    /* of the policy */
    /* Gets those over its base; it and what this desc points to outlive them */
    model_rewards *over;
    int64_t vocab, tokens; /* of the policy; of a prompt and its answer, at most */
    const char *folder;    /* of the policy's tokenizer; NULL: it is not compared */
    int64_t threads;
    bool standardize; /* the mean of reward.json is taken out, and its deviation divided by */
    bool plan_only;   /* as scorer_desc.plan_only */
} model_reward_desc;

/* zf_reward_kind.open, `user` being a desc. False with *error: DIR is no reward model, or one of
 * another vocabulary, or lacks what standardize needs. */
bool model_reward_open(void *user, const char *argument, zf_reward *out, zf_error *error);
/* The session of zf_reward.user that has weights of its own; NULL: it has not. */
const session *model_reward_session(const void *user);

typedef struct joined_rewards {
    const model_rewards *of;
    scorer *at; /* [of->count] */
} joined_rewards;

/* Opens those of `of`, which may be NULL, over a session that trains. All ranks must call it. False
 * with *error, and then there is nothing to close. */
bool joined_rewards_open(joined_rewards *j, const model_rewards *of, session *with,
                         zf_error *error);
void joined_rewards_close(joined_rewards *j); /* all zero: nothing */
/* Scores these answers, of which rank 0 is to ask for rewards next. All ranks must call it. False
 * with *error. */
bool joined_rewards_run(joined_rewards *j, const zf_rollouts *r, zf_error *error);
#endif
