/* What a layer has: windows, rope, experts. */

static bool zfl_has_bit(const int64_t *bits, int64_t layer)
{
    return layer < ZF_CAUSAL_LAYERS && ((uint64_t)bits[layer / 64] >> layer % 64 & 1);
}

/* Sets the bit of a layer, in full, plain or dense. */
static void zfl_mark_layer(int64_t *bits, int64_t layer)
{
    if (layer < ZF_CAUSAL_LAYERS) bits[layer / 64] |= (int64_t)((uint64_t)1 << layer % 64);
}

/* The layer sees all tokens; has no rope. */
static bool zfl_is_full(const zf_causal_config *c, int64_t layer)
{
    return !c->window || zfl_has_bit(c->full, layer);
}

static bool zfl_is_plain(const zf_causal_config *c, int64_t layer)
{
    return c->alibi || zfl_has_bit(c->plain, layer);
}

/* The layer has experts. */
static bool zfl_is_sparse(const zf_causal_config *c, int64_t layer)
{
    return c->experts && !zfl_has_bit(c->dense, layer);
}
