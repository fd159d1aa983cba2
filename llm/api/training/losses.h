/* Losses over judgements: pairs of answers, scores of answers. Each is a small graph over
 * log-probabilities (zf_head_logp) or scores, and over numbers that the program writes.
 * docs/preferences.md has the formulas and their sources.
 *
 *     zf_tensor labels = zf_input(g, "labels", ZF_I32, ZF_SHAPE(texts, tokens));
 *     zf_tensor flat = zf_reshape(labels, ZF_SHAPE(-1));
 *     zf_tensor reference = zf_input(g, "reference", ZF_F32, ZF_SHAPE(texts, tokens));
 *     zf_tensor logp = zf_head_logp(hidden, words, ZF_NONE, flat, NULL);
 *     zf_preference p = zf_preference_loss(logp, reference, labels, ZF_NONE, NULL);
 *     zf_passes(g, &(zf_training){.loss = zf_output(p.loss, "loss")});
 *
 * Each row is a position that predicts the next token. Labels are i32 or i64 [texts, tokens]: the
 * next token where it belongs to the answer, -100 elsewhere. What any operand has at a label -100
 * changes no bit. log p and values may also be flat, [texts * tokens]. Other operands have the
 * shapes named below, since zf_precision rounds what is reshaped. Losses are computed in f32, or in
 * f64 where log p is f64.
 *
 * Weights are numbers of the program, made of counts of the global batch, so that they are known
 * before the first micro-batch: the loss is the sum of weight times loss, and that of several ranks
 * and micro-batches (zf_zero) is the sum of theirs. A weight of 0 leaves a pair or a token out.
 *
 * A mistake is the graph's error, and the tensors are invalid. A desc that is NULL means the
 * defaults; a member that is 0 has the default of its table (api/options.h), ZF_ZERO is 0. */

/* ---------------------------------------------------------------------------------- preferences */

typedef enum zf_preference_kind {
    ZF_PREFERENCE_SIGMOID, /* DPO (Rafailov et al. 2023); with smoothing, conservative DPO */
    ZF_PREFERENCE_IPO,     /* Azar et al. 2023, of means over tokens */
    ZF_PREFERENCE_HINGE,   /* SLiC (Zhao et al. 2023) */
    ZF_PREFERENCE_ROBUST,  /* robust DPO (Chowdhury et al. 2024) */
    ZF_PREFERENCE_NORM,    /* SIGMOID of means over tokens */
    ZF_PREFERENCE_ORPO,    /* Hong et al. 2024; without a reference */
    ZF_PREFERENCE_SIMPO    /* Meng et al. 2024; without a reference */
} zf_preference_kind;

typedef struct zf_preference_desc {
    zf_preference_kind loss;
    double beta;      /* 0: 0.1. ORPO: the weight of the odds */
    double smoothing; /* share of pairs whose answers are swapped; not of IPO, HINGE, ORPO */
    double gamma;     /* SIMPO: what beta times the difference should exceed; 0: 0.5 */
} zf_preference_desc;

/* The table of zf_preference_desc: --loss, --beta, --label-smoothing, --gamma. */
ZF_API const zf_option *zf_preference_options(void);
/* Whether the loss compares with a reference. */
ZF_API bool zf_preference_needs_reference(const zf_preference_desc *desc);

typedef struct zf_preference {
    zf_tensor loss;             /* a scalar */
    zf_tensor losses;           /* of each pair, [pairs] */
    zf_tensor chosen, rejected; /* rewards, [pairs]: beta times what the loss compares */
} zf_preference;

/* Text 2k is the chosen answer of pair k, text 2k + 1 the rejected one. reference [texts, tokens]:
 * log p of the same labels under the reference; ZF_NONE where the loss has none. weight [pairs]: 1
 * / (pairs of the global batch), 0 for a pair that is only there to fill it; ZF_NONE: the mean over
 * all pairs. */
ZF_API zf_preference zf_preference_loss(zf_tensor logp, zf_tensor reference, zf_tensor labels,
                                        zf_tensor weight, const zf_preference_desc *desc);

/* -------------------------------------------------------------------------------------- rewards */

typedef struct zf_pair_desc {
    /* Times the mean of (chosen + rejected)^2, so that scores stay around 0 (Eisenstein et al.
     * 2023); 0: none */
    double center;
} zf_pair_desc;

/* The table of zf_pair_desc: --center. */
ZF_API const zf_option *zf_pair_options(void);

typedef struct zf_pair {
    zf_tensor loss;             /* a scalar */
    zf_tensor losses;           /* of each pair, of the shape of the weight */
    zf_tensor chosen, rejected; /* scores, in f32 */
} zf_pair;

/* -log sigmoid(chosen - rejected - margin) of pairs of scores (Bradley & Terry 1952). score [2
 * pairs] or [2 pairs, 1], chosen and rejected in turns, each at the last token of its text; weight
 * [pairs], as in zf_preference_loss. Or a score at each position, [2 pairs, tokens], with weight
 * [pairs, tokens], which zf_pair_positions makes. margin: of the shape of the weight, or [pairs,
 * 1]; ZF_NONE: 0. */
ZF_API zf_pair zf_pair_loss(zf_tensor score, zf_tensor margin, zf_tensor weight,
                            const zf_pair_desc *desc);

/* The weights of DeepSpeed-Chat's loss of a pair of texts, in which the mean is taken over the
 * positions from the first token in which they differ to the end of the longer one; of equal texts,
 * their last position. Scores of the shorter text after its end are part of it: their positions
 * must have scores, which depend on what fills the row. Sets weight[0..tokens): 1 / positions /
 * pairs, else 0. The sum of weights is 1 / pairs. Texts have at least one token and at most
 * `tokens`. */
ZF_API void zf_pair_positions(const int32_t *chosen, int64_t chosen_count, const int32_t *rejected,
                              int64_t rejected_count, int64_t tokens, int64_t pairs,
                              float *weight);
