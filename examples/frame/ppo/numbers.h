/* Numbers of an iteration of PPO that concern all answers, in f64. */
#ifndef PPO_NUMBERS_H
#define PPO_NUMBERS_H

#include "../../../zeroflow_llm.h"

/* How much of the returns the values explain: 1 - variance of (R - V) / variance of R, over the
 * tokens of answers; NaN where all returns are equal. */
double ppo_explained(const zf_answers *a, const double *value, const double *returns);

/* The mean of log p - reference over the tokens of answers; 0 without any. */
double ppo_kl(const zf_answers *a, const double *logp, const double *reference);

/* The factor of the KL divergence after an iteration of so many answers (Ziegler et al. 2019):
 * beta (1 + (kl / target - 1 within +-0.2) answers / horizon). target 0: beta. */
double ppo_beta(double beta, double kl, double target, int64_t answers, int64_t horizon);

#endif
