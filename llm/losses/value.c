/* The loss of a critic: 1/2 max((V - R)^2, (clip(V, old - clip, old + clip) - R)^2). With e = V - R
 * and d = V - old the second is (e + clip(d, -clip, clip) - d)^2, which is the first to the last
 * bit where nothing is clipped. */

ZF_API const zf_option *zf_value_options(void)
{
    static const zf_option rows[] = {
        ZF_OPTION(zf_value_desc, NUMBER, clip, 0.2, "(0,inf)", .flag = "value-clip",
                  .topic = "policy", .traits = ZF_OPTION_CHANGES,
                  .help = "how far a value may move from that of the parameters that sampled"),
        {.name = NULL}};
    return rows;
}

zf_value zf_value_loss(zf_tensor value, zf_tensor old, zf_tensor returns, zf_tensor labels,
                       zf_tensor weight, const zf_value_desc *desc)
{
    static const char who[] = "zf_value_loss";
    zf_value_desc d = desc ? *desc : (zf_value_desc){.clip = 0};
    zf_value p = {.loss = zfl_invalid(value)};
    zf_tensor x, miss, square, by, other;
    zfl_rows r;
    if (!zfl_settle(who, zf_value_options(), &d, value)) return p;
    x = zfl_rows_open(&r, who, value, labels);
    if (!zf_valid(x) || !zfl_fits(who, "returns", returns, r.dtype, r.shape, false, x) ||
        (old.id && !zfl_fits(who, "old", old, r.dtype, r.shape, false, x)) ||
        (weight.id && !zfl_fits(who, "the weight", weight, r.dtype, r.shape, true, x)))
        return p;
    miss = zfl_masked(&r, zf_sub(x, returns));
    p.losses = square = zf_mul(miss, miss);
    if (old.id) {
        by = zfl_masked(&r, zf_sub(x, old));
        other = zf_add(miss, zf_sub(zfl_within(&r, by, d.clip), by));
        p.losses = zf_maximum(square, zf_mul(other, other));
    }
    p.clipped = zf_cast(zf_less(square, p.losses), r.dtype);
    p.losses = zf_scale(p.losses, 0.5);
    p.loss = zfl_token_loss(&r, p.losses, miss, weight);
    return p;
}
