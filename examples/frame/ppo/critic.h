/* The critic of PPO: values of tokens, by a model that scores (score.h), which is trained next to
 * the policy in the store of the policy.
 *
 * Where the policy is an adapter, the critic is another one over the same base, with a head of its
 * own. Else, or where it comes from a model with other weights, it has parameters of its own
 * ("critic."). Its training has the name "critic". */
#ifndef CRITIC_H
#define CRITIC_H

#include "../experience/experience.h"

typedef struct critic {
    sample_model sample; /* of the policy, with the objective of values */
    zf_config_any config;
    struct zf_adapter *adapter; /* from which it begins; NULL: none */
    zf_lora_desc lora;
    char *keep; /* of lora */
    session train, evaluate;
    double loss, clipped; /* of the step; NaN: the critic made none */
} critic;

/* Over the parameters of a session that trains. The critic begins as the model of `folder`, a
 * reward model or any other; NULL: as the policy. A value that is not there has a random one; all
 * that a checkpoint has brought to the store stays. All ranks must call it. False with *error, and
 * then there is nothing to close. */
bool critic_open(critic *c, const experience *e, session *policy, const char *folder,
                 zf_error *error);
void critic_close(critic *c);

/* A step on batch number `batch` of the answers, toward `returns`; old: the values before the first
 * step on these answers; both [answers, sequence]. False with *error. */
bool critic_step(critic *c, const experience *e, int64_t batch, const float *old,
                 const float *returns, double lr, zf_error *error);

#endif
