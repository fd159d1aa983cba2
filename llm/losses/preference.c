/* Losses over pairs of answers: DPO and its relatives. Below: log p of chosen and rejected answers
 * is c and r, less that of the reference where the loss has one; sums over the tokens of the
 * answer, or, of ipo, norm, orpo and simpo, means; L(x) = -log sigmoid(x); s is the share of
 * swapped pairs.
 *
 *     sigmoid, norm   (1 - s) L(beta (c - r)) + s L(-beta (c - r))
 *     robust          ((1 - s) L(beta (c - r)) - s L(-beta (c - r))) / (1 - 2 s)
 *     hinge           max(0, 1 - beta (c - r))
 *     ipo             (c - r - 1 / (2 beta))^2
 *     orpo            -c + beta L(o(c) - o(r)), o(x) = x - log(1 - e^x)
 *     simpo           (1 - s) L(beta (c - r) - gamma) + s L(gamma - beta (c - r)) */

ZF_API const zf_option *zf_preference_options(void)
{
    static const zf_option rows[] = {
        ZF_OPTION(zf_preference_desc, CHOICE, loss, ZF_PREFERENCE_SIGMOID,
                  "sigmoid|ipo|hinge|robust|norm|orpo|simpo", .topic = "preferences",
                  .traits = ZF_OPTION_CHANGES | ZF_OPTION_BASIC,
                  .help = "how a pair is judged: DPO's, or a relative of it"),
        ZF_OPTION(zf_preference_desc, NUMBER, beta, 0.1, "(0,inf)",
                  .traits = ZF_OPTION_CHANGES | ZF_OPTION_BASIC,
                  .help = "how much a difference of log p counts"),
        ZF_OPTION(zf_preference_desc, NUMBER, smoothing, 0, "[0,0.5)", .flag = "label-smoothing",
                  .with = "loss=sigmoid|robust|norm|simpo", .traits = ZF_OPTION_CHANGES,
                  .help = "the share of pairs whose answers are swapped by mistake"),
        ZF_OPTION(zf_preference_desc, NUMBER, gamma, 0.5, "[0,inf)", .with = "loss=simpo",
                  .traits = ZF_OPTION_CHANGES,
                  .help = "what the difference of rewards should exceed"),
        {.name = NULL}};
    return rows;
}

bool zf_preference_needs_reference(const zf_preference_desc *desc)
{
    const zf_preference_kind loss = desc ? desc->loss : ZF_PREFERENCE_SIGMOID;
    return loss != ZF_PREFERENCE_ORPO && loss != ZF_PREFERENCE_SIMPO;
}

/* -log sigmoid(x), the other way round for a share of swapped pairs. */
static zf_tensor zfl_sigmoid_loss(zf_tensor x, double swapped)
{
    const zf_tensor loss = zf_softplus(zf_neg(x));
    if (swapped <= 0) return loss;
    return zf_add(zf_scale(loss, 1 - swapped), zf_scale(zf_softplus(x), swapped));
}

/* log(1 - p) of log p <= 0: 1 - e^x = tanh(-x / 2) (1 + e^x). p is at most 1 - 2^-30. */
static zf_tensor zfl_log_of_rest(zf_tensor logp, zf_tensor most)
{
    const zf_tensor x = zf_minimum(logp, most);
    return zf_add(zf_log(zf_tanh(zf_scale(x, -0.5))), zf_softplus(x));
}

static zf_tensor zfl_log_odds(const zfl_rows *r, zf_tensor logp)
{
    return zf_sub(logp, zfl_log_of_rest(logp, zfl_number(r, -0x1p-30)));
}

/* Losses [pairs] of what is compared, [pairs] each. */
static zf_tensor zfl_preference_losses(const zfl_rows *r, const zf_preference_desc *d,
                                       zf_tensor chosen, zf_tensor rejected)
{
    const zf_tensor by = zf_sub(chosen, rejected), scaled = zf_scale(by, d->beta),
                    one = zfl_number(r, 1);
    zf_tensor miss;
    switch (d->loss) {
    case ZF_PREFERENCE_IPO:
        miss = zf_sub(by, zfl_number(r, 1 / (2 * d->beta)));
        return zf_mul(miss, miss);
    case ZF_PREFERENCE_HINGE: return zf_relu(zf_sub(one, scaled));
    case ZF_PREFERENCE_ROBUST:
        return zf_scale(zf_sub(zf_scale(zf_softplus(zf_neg(scaled)), 1 - d->smoothing),
                               zf_scale(zf_softplus(scaled), d->smoothing)),
                        1 / (1 - 2 * d->smoothing));
    case ZF_PREFERENCE_ORPO:
        miss = zf_softplus(zf_sub(zfl_log_odds(r, rejected), zfl_log_odds(r, chosen)));
        return zf_sub(zf_scale(miss, d->beta), chosen);
    case ZF_PREFERENCE_SIMPO:
        return zfl_sigmoid_loss(zf_sub(scaled, zfl_number(r, d->gamma)), d->smoothing);
    default: return zfl_sigmoid_loss(scaled, d->smoothing);
    }
}

/* Whether the loss compares means over tokens, not sums. */
static bool zfl_compares_means(zf_preference_kind loss)
{
    return loss == ZF_PREFERENCE_IPO || loss == ZF_PREFERENCE_NORM || loss == ZF_PREFERENCE_ORPO ||
           loss == ZF_PREFERENCE_SIMPO;
}

/* What texts are compared by, [texts]: the sum or the mean of log p - reference over the answer;
 * invalid with the graph's error. */
static zf_tensor zfl_preference_scores(zfl_rows *r, zf_tensor logp, zf_tensor reference,
                                       zf_tensor labels, const zf_preference_desc *d)
{
    zf_tensor x = zfl_rows_open(r, "zf_preference_loss", logp, labels);
    const bool needs = zf_preference_needs_reference(d);
    if (!zf_valid(x) || !zfl_are_pairs(r->who, x, r->shape.dims[0])) return zfl_invalid(x);
    if (!needs && reference.id) return zf_fail(reference, "%s: this loss has no reference", r->who);
    if (needs && !zfl_fits(r->who, "the reference", reference, r->dtype, r->shape, false, x))
        return zfl_invalid(x);
    x = zfl_masked(r, needs ? zf_sub(x, reference) : x);
    return zfl_compares_means(d->loss) ? zfl_text_mean(r, x) : zfl_text_sum(x);
}

zf_preference zf_preference_loss(zf_tensor logp, zf_tensor reference, zf_tensor labels,
                                 zf_tensor weight, const zf_preference_desc *desc)
{
    zf_preference_desc d = desc ? *desc : (zf_preference_desc){.beta = 0};
    zf_preference p = {.loss = zfl_invalid(logp)};
    zf_tensor scores, chosen, rejected;
    zfl_rows r;
    if (!zfl_settle("zf_preference_loss", zf_preference_options(), &d, logp)) return p;
    scores = zfl_preference_scores(&r, logp, reference, labels, &d);
    chosen = zfl_answers(scores, 0), rejected = zfl_answers(scores, 1);
    if (weight.id &&
        !zfl_fits(r.who, "the weight", weight, r.dtype, zf_tensor_shape(chosen), false, chosen))
        return p;
    p.losses = zfl_preference_losses(&r, &d, chosen, rejected);
    p.chosen = zf_scale(chosen, d.beta), p.rejected = zf_scale(rejected, d.beta);
    p.loss = zfl_weighted(p.losses, weight);
    return p;
}
