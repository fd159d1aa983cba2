/* Losses of policies that learn from scores of their own answers: GRPO and its relatives, PPO's
 * actor and critic. As in losses.h, rows are positions, labels say which tokens are answers, and
 * weights are counts of the global batch. Numbers that need the whole batch come from advantage.h.
 *
 *     zf_policy_rows rows = {.logp = logp, .labels = labels,
 *                            .advantage = zf_input(g, "advantage", ZF_F32, ZF_SHAPE(texts, 1)),
 *                            .weight = zf_input(g, "weight", ZF_F32, ZF_SHAPE(texts, 1))};
 *     zf_policy p = zf_policy_loss(&rows, &(zf_policy_desc){.loss = ZF_POLICY_DAPO});
 * / */

/* --------------------------------------------------------------------------------------- actors */

/* The ratio of a token is rho = exp(log p - old), its loss -min(rho A, clip(rho, 1 - low, 1 + high)
 * A) (Schulman et al. 2017). They differ in what is averaged, which zf_policy_weights says. */
typedef enum zf_policy_kind {
    ZF_POLICY_GRPO,    /* Shao et al. 2024: the mean over answers of means over tokens */
    ZF_POLICY_BNPO,    /* the mean over all tokens; PPO's actor too */
    ZF_POLICY_DAPO,    /* Yu et al. 2025; the same */
    ZF_POLICY_DR_GRPO, /* Liu et al. 2025: the sum over tokens / (answers x longest answer) */
    ZF_POLICY_GSPO,    /* Zheng et al. 2025: rho of an answer, exp of the mean of log p - old */
    ZF_POLICY_CISPO    /* MiniMax 2025: -min(rho, cap) A log p, min a constant; as DAPO */
} zf_policy_kind;

/* Estimators of the KL divergence to the reference by q = log p - reference (Schulman 2020). As a
 * loss, K2 has the gradient of the KL on samples of the policy; that of K3 is biased; the
 * expectation of that of K1 is 0, so that K1 belongs into rewards (zf_token_rewards). */
typedef enum zf_kl_kind {
    ZF_KL_K3, /* exp(-q) - 1 + q */
    ZF_KL_K2, /* q^2 / 2 */
    ZF_KL_K1  /* q */
} zf_kl_kind;

typedef struct zf_policy_desc {
    zf_policy_kind loss;
    double clip_low;  /* 0: 0.2 */
    double clip_high; /* 0: clip_low; of DAPO 0.28 */
    double dual_clip; /* loss at most -dual_clip A where A < 0 (Ye et al. 2020); 0: any */
    double cap;       /* CISPO: of the ratio; 0: 5 */
    double kl_beta;   /* times the KL divergence is added to a token's loss; 0: not */
    zf_kl_kind kl;
} zf_policy_desc;

/* The table of zf_policy_desc: --loss, --clip-low, --clip-high, --dual-clip, --ratio-cap,
 * --kl-beta, --kl. */
ZF_API const zf_option *zf_policy_options(void);

/* Operands, [texts, tokens] unless something else is said; ZF_NONE where they are optional. */
typedef struct zf_policy_rows {
    zf_tensor logp;      /* or flat */
    zf_tensor labels;    /* i32 or i64 */
    zf_tensor advantage; /* or [texts, 1] */
    /* log p by the parameters that sampled, from a forward pass of the same shape. ZF_NONE: those
     * of this step: the ratio is 1, and the gradient that of -A log p */
    zf_tensor old;
    zf_tensor reference;  /* log p under the reference, for kl_beta and zf_policy.kl */
    zf_tensor correction; /* factor of the loss without the KL part (zf_sampler_weights) */
    zf_tensor weight;     /* or [texts, 1], of each token; ZF_NONE: 1 / all tokens of answers */
} zf_policy_rows;

typedef struct zf_policy {
    zf_tensor loss;    /* a scalar */
    zf_tensor losses;  /* of each token, [texts, tokens], 0 outside of answers; as what follows */
    zf_tensor ratio;   /* rho; 1 outside of answers */
    zf_tensor clipped; /* 1 where the gradient of rho is cut, else 0 */
    zf_tensor kl;      /* by desc.kl, where there is a reference; else ZF_NONE */
} zf_policy;

/* log p - old and log p - reference are taken within +-20. */
ZF_API zf_policy zf_policy_loss(const zf_policy_rows *rows, const zf_policy_desc *desc);

/* -------------------------------------------------------------------------------------- critics */

typedef struct zf_value_desc {
    double clip; /* values may move so far from the old ones; 0: 0.2 */
} zf_value_desc;

/* The table of zf_value_desc: --value-clip. */
ZF_API const zf_option *zf_value_options(void);

typedef struct zf_value {
    zf_tensor loss;    /* a scalar */
    zf_tensor losses;  /* [texts, tokens], 0 outside of answers; as what follows */
    zf_tensor clipped; /* 1 where the loss is that of the clipped value, else 0 */
} zf_value;

/* 1/2 max((V - R)^2, (clip(V, old - clip, old + clip) - R)^2) (Schulman et al. 2017). value:
 * [texts, tokens], flat, or with a last dimension 1: at each label, the value of the text before
 * it. old: the values by the parameters that sampled; ZF_NONE: nothing is clipped. returns: R
 * (zf_returns). labels and weight: as in zf_policy_rows. */
ZF_API zf_value zf_value_loss(zf_tensor value, zf_tensor old, zf_tensor returns, zf_tensor labels,
                              zf_tensor weight, const zf_value_desc *desc);
