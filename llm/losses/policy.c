/* Losses of actors. Of a token, with ratio rho = exp(log p - old) and advantage A:
 *
 *     u = rho A, v = clip(rho, 1 - low, 1 + high) A
 *     loss = -min(u, v), where A < 0 at most -dual_clip A
 *     gspo: rho = exp(mean over the answer of (log p - old)); cispo: -stop(min(rho, cap)) A log p
 *     loss = correction loss + kl_beta kl(log p - reference) */

enum { ZFL_LOG_RATIO = 20 }; /* log ratios are taken within +- this */

ZF_API const zf_option *zf_policy_options(void)
{
    static const zf_option rows[] = {
        ZF_OPTION(zf_policy_desc, CHOICE, loss, ZF_POLICY_GRPO, "grpo|bnpo|dapo|dr_grpo|gspo|cispo",
                  .topic = "policy", .traits = ZF_OPTION_CHANGES | ZF_OPTION_BASIC,
                  .help = "how losses of tokens make one"),
        ZF_OPTION(zf_policy_desc, NUMBER, clip_low, 0.2, "[0,1]",
                  .with = "loss=grpo|bnpo|dapo|dr_grpo|gspo", .traits = ZF_OPTION_CHANGES,
                  .help =
                      "ratios below 1 by more have no gradient where the advantage is negative"),
        ZF_OPTION(zf_policy_desc, NUMBER, clip_high, 0, "[0,inf)",
                  .with = "loss=grpo|bnpo|dapo|dr_grpo|gspo", .traits = ZF_OPTION_CHANGES,
                  .help = "ratios above 1 by more have no gradient where the advantage is "
                          "positive; 0: as --clip-low"),
        ZF_OPTION(zf_policy_desc, NUMBER, dual_clip, 0, "[0,inf)",
                  .with = "loss=grpo|bnpo|dapo|dr_grpo|gspo", .traits = ZF_OPTION_CHANGES,
                  .help = "the ratio counts at most so much where the advantage is negative"),
        ZF_OPTION(zf_policy_desc, NUMBER, cap, 5, "(0,inf)", .flag = "ratio-cap",
                  .with = "loss=cispo", .traits = ZF_OPTION_CHANGES,
                  .help = "the ratio counts at most so much"),
        ZF_OPTION(zf_policy_desc, NUMBER, kl_beta, 0, "[0,inf)",
                  .traits = ZF_OPTION_CHANGES | ZF_OPTION_BASIC,
                  .help = "how much the KL divergence to the reference counts"),
        ZF_OPTION(zf_policy_desc, CHOICE, kl, ZF_KL_K3, "k3|k2|k1", .with = "kl_beta",
                  .traits = ZF_OPTION_CHANGES, .help = "how the KL divergence is estimated"),
        {.name = NULL}};
    return rows;
}

/* Whether operands have their shapes; else the graph's error of x. */
static bool zfl_policy_fits(const zfl_rows *r, const zf_policy_rows *in, const zf_policy_desc *d,
                            zf_tensor x)
{
    const struct {
        const char *name;
        zf_tensor x;
        bool needed, broad;
    } operands[] = {{"the advantage", in->advantage, true, true},
                    {"old", in->old, false, false},
                    {"the reference", in->reference, d->kl_beta > 0, false},
                    {"the correction", in->correction, false, true},
                    {"the weight", in->weight, false, true}};
    for (size_t k = 0; k < sizeof operands / sizeof *operands; k++)
        if ((operands[k].needed || operands[k].x.id) &&
            !zfl_fits(r->who, operands[k].name, operands[k].x, r->dtype, r->shape,
                      operands[k].broad, x))
            return false;
    return true;
}

/* exp(log p - old), of a token or, of gspo, of an answer. */
static zf_tensor zfl_ratio(const zfl_rows *r, zf_policy_kind loss, zf_tensor by)
{
    const zf_shape column = ZF_SHAPE(r->shape.dims[0], 1);
    if (loss == ZF_POLICY_GSPO)
        by = zfl_masked(r, zf_broadcast(zf_reshape(zfl_text_mean(r, by), column), r->shape));
    return zf_exp(zfl_within(r, by, ZFL_LOG_RATIO));
}

/* Losses of tokens by the ratio, and where its gradient is cut. */
static zf_tensor zfl_clipped_losses(const zfl_rows *r, const zf_policy_desc *d, zf_tensor ratio,
                                    zf_tensor advantage, zf_tensor *cut)
{
    const zf_tensor high = zfl_number(r, 1 + (d->clip_high > 0 ? d->clip_high : d->clip_low)),
                    low = zfl_number(r, 1 - d->clip_low), zero = zfl_number(r, 0),
                    u = zf_mul(ratio, advantage),
                    v = zf_mul(zf_maximum(zf_minimum(ratio, high), low), advantage);
    zf_tensor gain = zf_minimum(u, v), least;
    if (d->dual_clip > 0) {
        least = zf_scale(advantage, d->dual_clip);
        gain = zf_where(zf_less(advantage, zero), zf_maximum(gain, least), gain);
    }
    *cut = zf_sub(zfl_number(r, 1), zf_cast(zf_equal(gain, u), r->dtype));
    return zf_neg(gain);
}

static zf_tensor zfl_cispo_losses(const zfl_rows *r, const zf_policy_desc *d, zf_tensor ratio,
                                  zf_tensor advantage, zf_tensor logp, zf_tensor *cut)
{
    const zf_tensor cap = zfl_number(r, d->cap), by = zf_stop_gradient(zf_minimum(ratio, cap));
    *cut = zf_cast(zf_less(cap, ratio), r->dtype);
    return zf_neg(zf_mul(zf_mul(by, advantage), zfl_masked(r, logp)));
}

/* By q = log p - reference. */
static zf_tensor zfl_kl(const zfl_rows *r, zf_kl_kind kl, zf_tensor q)
{
    q = zfl_within(r, q, ZFL_LOG_RATIO);
    if (kl == ZF_KL_K1) return q;
    if (kl == ZF_KL_K2) return zf_scale(zf_mul(q, q), 0.5);
    return zf_add(zf_sub(zf_exp(zf_neg(q)), zfl_number(r, 1)), q);
}

zf_policy zf_policy_loss(const zf_policy_rows *rows, const zf_policy_desc *desc)
{
    static const char who[] = "zf_policy_loss";
    zf_policy_desc d = desc ? *desc : (zf_policy_desc){.clip_low = 0};
    zf_policy p = {.loss = zfl_invalid(rows->logp)};
    zf_tensor x, by, advantage;
    zfl_rows r;
    if (!zfl_settle(who, zf_policy_options(), &d, rows->logp)) return p;
    x = zfl_rows_open(&r, who, rows->logp, rows->labels);
    if (!zf_valid(x) || !zfl_policy_fits(&r, rows, &d, x)) return p;
    by = zfl_masked(&r, zf_sub(x, rows->old.id ? rows->old : zf_stop_gradient(x)));
    advantage = zfl_written(&r, by, rows->advantage);
    p.ratio = zfl_ratio(&r, d.loss, by);
    p.losses = d.loss == ZF_POLICY_CISPO
                   ? zfl_cispo_losses(&r, &d, p.ratio, advantage, x, &p.clipped)
                   : zfl_clipped_losses(&r, &d, p.ratio, advantage, &p.clipped);
    if (rows->correction.id) p.losses = zf_mul(p.losses, zfl_written(&r, by, rows->correction));
    if (rows->reference.id) p.kl = zfl_kl(&r, d.kl, zfl_masked(&r, zf_sub(x, rows->reference)));
    if (d.kl_beta > 0) p.losses = zf_add(p.losses, zf_scale(p.kl, d.kl_beta));
    p.loss = zfl_token_loss(&r, p.losses, by, rows->weight);
    return p;
}
