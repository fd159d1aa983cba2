/* The loss of a reward model: pairs of scores, one for each text or one at each position. */

ZF_API const zf_option *zf_pair_options(void)
{
    static const zf_option rows[] = {
        ZF_OPTION(zf_pair_desc, NUMBER, center, 0, "[0,inf)", .topic = "rewards",
                  .traits = ZF_OPTION_CHANGES,
                  .help = "a loss of this times (chosen + rejected)^2 keeps scores around 0"),
        {.name = NULL}};
    return rows;
}

/* Scores in f32, [texts] or [texts, tokens]; invalid with the graph's error. */
static zf_tensor zfl_scores(const char *who, zf_tensor score)
{
    zf_shape shape = zf_tensor_shape(score);
    if (!zf_valid(score)) return score;
    if (shape.rank == 2 && shape.dims[1] == 1) shape.rank = 1;
    if (!zfl_is_float(zf_tensor_dtype(score)) || shape.rank < 1 || shape.rank > 2)
        return zf_fail(score, "%s: the scores must be floats [texts] or [texts, tokens]", who);
    return zfl_are_pairs(who, score, shape.dims[0]) ? zfl_wide(score, shape) : zfl_invalid(score);
}

zf_pair zf_pair_loss(zf_tensor score, zf_tensor margin, zf_tensor weight, const zf_pair_desc *desc)
{
    static const char who[] = "zf_pair_loss";
    zf_pair_desc d = desc ? *desc : (zf_pair_desc){.center = 0};
    zf_pair p = {.loss = zfl_invalid(score)};
    zf_tensor all, by, sum;
    zf_shape shape;
    if (!zfl_settle(who, zf_pair_options(), &d, score)) return p;
    all = zfl_scores(who, score);
    p.chosen = zfl_answers(all, 0), p.rejected = zfl_answers(all, 1);
    by = zf_sub(p.chosen, p.rejected), sum = zf_add(p.chosen, p.rejected);
    shape = zf_tensor_shape(by);
    if ((margin.id && !zfl_fits(who, "the margin", margin, zf_tensor_dtype(by), shape, true, by)) ||
        (weight.id && !zfl_fits(who, "the weight", weight, zf_tensor_dtype(by), shape, false, by)))
        return p;
    p.losses = zf_softplus(zf_neg(margin.id ? zf_sub(by, margin) : by));
    if (d.center > 0) p.losses = zf_add(p.losses, zf_scale(zf_mul(sum, sum), d.center));
    p.loss = zfl_weighted(p.losses, weight);
    return p;
}

void zf_pair_positions(const int32_t *chosen, int64_t chosen_count, const int32_t *rejected,
                       int64_t rejected_count, int64_t tokens, int64_t pairs, float *weight)
{
    const int64_t least = chosen_count < rejected_count ? chosen_count : rejected_count,
                  end = chosen_count + rejected_count - least;
    int64_t first = 0;
    while (first < least && chosen[first] == rejected[first]) first++;
    if (first == end) first = end - 1;
    for (int64_t i = 0; i < tokens; i++)
        weight[i] = i < first || i >= end ? 0 : (float)(1 / (double)(end - first) / (double)pairs);
}
