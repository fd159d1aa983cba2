/* Numbers of a whole batch of answers, which losses of policy.h take as inputs: advantages,
 * returns, weights, corrections. They are computed in f64 by the program's own processor, in the
 * order of the table. Ranks that call a function with the same table get the same bits, so each
 * rank computes them for all answers of the global batch and writes those of its own.
 *
 * Values of tokens are double [texts, tokens], with the text's labels as in losses.h: only
 * positions whose label is not -100 are read; results are 0 at the others. */

typedef struct zf_answers {
    int64_t texts, tokens;
    const int32_t *labels; /* [texts, tokens]; -100: not a token of the answer */
} zf_answers;

/* Leaves texts whose reward is NaN (it could not be scored) out of the batch: all of their labels
 * become -100. Returns the number of texts with an answer. reward [texts]. */
ZF_API int64_t zf_answers_leave_out(int32_t *labels, int64_t texts, int64_t tokens,
                                    const double *reward);

/* ---------------------------------------------------------------------------------- advantages */

typedef enum zf_advantage_kind {
    ZF_ADVANTAGE_GROUP, /* (R - mean) / (std + 1e-4), std with count - 1 (GRPO, Shao et al. 2024) */
    ZF_ADVANTAGE_MEAN,  /* R - mean (Dr. GRPO, Liu et al. 2025) */
    ZF_ADVANTAGE_RLOO,  /* R - mean of the others (Kool et al. 2019; Ahmadian et al. 2024) */
    ZF_ADVANTAGE_REWARD /* R (PPO; REINFORCE++) */
} zf_advantage_kind;

typedef enum zf_correction_kind {
    ZF_CORRECTION_NONE,
    ZF_CORRECTION_TRUNCATE, /* of a token, w within [low, high] (Yao et al. 2025) */
    ZF_CORRECTION_MASK,     /* w, or 0 where it is outside (IcePop) */
    ZF_CORRECTION_SEQUENCE  /* of an answer, the product of its w, or 0 where that is outside */
} zf_correction_kind;

typedef struct zf_advantage_desc {
    zf_advantage_kind advantage;
    bool whiten;        /* whether the program calls zf_whiten */
    double kl_reward;   /* times K1 is taken from the reward of each token; 0: not */
    double reward_clip; /* scores within +- this; 0: as they are */
    /* The score is the reward of an action after the last token, which is not trained
     * (DeepSpeed-Chat); its value is read after the last token, and it has no KL divergence. In a
     * row that the answer fills, the score is at the last token */
    bool score_after;
    double gamma;       /* discount of a token; 0: 1 */
    double lambda;      /* of GAE; 0: 0.95; ZF_ZERO: 0 */
    zf_correction_kind correction;
    double correction_low, correction_high; /* 0: 0 and 2 */
} zf_advantage_desc;

/* The table of zf_advantage_desc: --advantage, --whiten, --kl-reward, --reward-clip,
 * --score-after, --gamma, --lambda, --correction, --correction-low, --correction-high. */
ZF_API const zf_option *zf_advantage_options(void);

/* The advantage of each answer within its group: the answers with the same number in
 * group[0..count), in any order. NaN rewards are not counted, and get 0, as does an answer that is
 * alone in its group. In a group of equal rewards all are exactly 0. reward and advantage
 * [count]. */
ZF_API void zf_group_advantages(const double *reward, const int32_t *group, int64_t count,
                                zf_advantage_kind kind, double *advantage);

/* The standard deviation of the rewards of one group, with count - 1: by what zf_group_advantages
 * divides. NaN rewards are not counted. Exactly 0 where all are equal, or there is at most one. */
ZF_API double zf_group_deviation(const double *reward, const int32_t *group, int64_t count,
                                 int32_t id);

/* Rewards of tokens: -kl_reward (log p - reference), and at the last token of the answer the score,
 * within reward_clip, is added (with score_after, one place later). logp and reference may be NULL
 * where kl_reward is 0. score [texts]. desc NULL: the defaults. */
ZF_API void zf_token_rewards(const zf_answers *a, const double *score, const double *logp,
                             const double *reference, const zf_advantage_desc *desc,
                             double *reward);

/* GAE (Schulman et al. 2016): delta_t = r_t + gamma V_t+1 - V_t, A_t = delta_t + gamma lambda
 * A_t+1, R_t = A_t + V_t; V and A after the last token are 0. Positions that are not of the answer
 * are skipped. value: V, [texts, tokens]; NULL: 0, so that with lambda 1 A is the sum of later
 * rewards (REINFORCE++). returns may be NULL. */
ZF_API void zf_returns(const zf_answers *a, const double *reward, const double *value,
                       const zf_advantage_desc *desc, double *advantage, double *returns);

/* x = (x - mean) / sqrt(variance + 1e-8) over all tokens of answers, variance with count - 1. With
 * fewer than two tokens x stays. */
ZF_API void zf_whiten(const zf_answers *a, double *x);

/* What is added to the reward of an answer of `length` tokens of at most `most`: 0 up to most -
 * buffer, from there falling to -1 at `most` (DAPO, Yu et al. 2025). buffer 0: 0. */
ZF_API double zf_overlong_penalty(int64_t length, int64_t most, int64_t buffer);

/* ------------------------------------------------------------------------------------- weights */

/* Weights of the tokens of each text, [texts], for zf_policy_rows.weight as [texts, 1]; 0 for a
 * text without an answer, which no count includes. With N texts that have one, of n tokens:
 *
 *     grpo, gspo          1 / (N n)
 *     bnpo, dapo, cispo   1 / (sum of n)
 *     dr_grpo             1 / (N longest)         longest: tokens that an answer may have */
ZF_API void zf_policy_weights(const zf_answers *a, zf_policy_kind kind, int64_t longest,
                              double *weight);

/* Factors that correct a sampler that has other log-probabilities than the trainer: w = exp(old -
 * sampled), as desc.correction says; 1 where `sampled` is NaN (not known), and without a
 * correction. They are constants of the gradient. */
ZF_API void zf_sampler_weights(const zf_answers *a, const double *old, const double *sampled,
                               const zf_advantage_desc *desc, double *weight);
