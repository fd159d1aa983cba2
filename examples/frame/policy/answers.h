/* The answers of an iteration, and their rewards; and those to prompts that are held out. */
#ifndef ANSWERS_H
#define ANSWERS_H

#include "experience.h"

/* Writes the answers of an iteration, and sets experience.reward. Groups with equal rewards are replaced
 * by answers to other prompts, at most policy_options.redraws times; log.redrawn is set. All ranks must
 * call it, with the parameters held (decoder_hold). False with *error; else r is to be freed. */
bool answers_sample(experience *e, session *s, int64_t iteration, zf_rollouts *r, zf_error *error);

/* Answers the held-out prompts with the most likely tokens: log.held_out is the mean of their rewards,
 * and the first ten are added to the file of policy_options.samples. Called likewise. */
bool answers_evaluate(experience *e, session *s, int64_t iteration, zf_error *error);

#endif
