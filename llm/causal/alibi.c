/* ALiBi (Press et al. 2022): a number for each head and key that is added to scores.
 *
 *     score of key n, head h: q k / sqrt(d) + slope(h) n
 *
 * Of a query m that is slope(h) (n - m), since the same number for all keys changes no softmax. In
 * 16 bits it is rounded to these, as transformers does. */
#include <math.h>
#include <stdlib.h>

/* The number by which ALiBi multiplies the place of a key. */
static double zfl_alibi_slope(zf_causal_alibi kind, int64_t head, int64_t heads)
{
    int64_t whole = 1; /* the largest power of 2 that is no more than `heads` */
    while (2 * whole <= heads) whole *= 2;
    if (kind == ZF_CAUSAL_ALIBI_MPT && whole < heads) /* of twice as many, odd ones first */
        return exp2(-4.0 * (double)(head < whole ? 2 * head + 2 : 2 * (head - whole) + 1) /
                    (double)whole);
    if (head < whole) return exp2(-8.0 * (double)(head + 1) / (double)whole);
    return exp2(-4.0 * (double)(2 * (head - whole) + 1) / (double)whole);
}

/* 0, 1, ..., count - 1. */
static zf_tensor zfl_alibi_places(zf_graph *g, int64_t count)
{
    double *x = malloc((size_t)count * sizeof *x + 1);
    zf_tensor made;
    if (!x) return zf_fail(zf_constant(g, ZF_F32, ZF_SCALAR, 0), "out of memory");
    for (int64_t k = 0; k < count; k++) x[k] = (double)k;
    made = zf_values(g, ZF_F32, ZF_SHAPE(1, 1, 1, count), x);
    free(x);
    return made;
}

static zf_tensor zfl_alibi_slopes(zf_graph *g, zf_causal_alibi kind, int64_t heads)
{
    double *x = malloc((size_t)heads * sizeof *x + 1);
    zf_tensor made;
    if (!x) return zf_fail(zf_constant(g, ZF_F32, ZF_SCALAR, 0), "out of memory");
    for (int64_t k = 0; k < heads; k++) x[k] = zfl_alibi_slope(kind, k, heads);
    made = zf_values(g, ZF_F32, ZF_SHAPE(1, heads, 1, 1), x);
    free(x);
    return made;
}

static zf_tensor zfl_as_bf16(zf_tensor x) { return zf_cast(zf_cast(x, ZF_BF16), ZF_F32); }

/* ALiBi of so many keys, [1 or B, heads, 1, keys]: a mask of zf_attention_desc. mask: [B, keys], of
 * which tokens that are 0 do not count as places; ZF_NONE: all do. */
static zf_tensor zfl_alibi(zf_graph *g, const zf_causal_config *c, int64_t keys, zf_tensor mask)
{
    const zf_causal_alibi kind = (zf_causal_alibi)c->alibi;
    const zf_tensor slopes = zfl_alibi_slopes(g, kind, c->heads);
    zf_tensor places;
    if (zf_valid(mask) && kind != ZF_CAUSAL_ALIBI_MPT) {
        places = zf_cast(zf_cumsum(zf_cast(mask, ZF_I32), 1), ZF_F32);
        places = zf_sub(places, zf_constant(g, ZF_F32, ZF_SCALAR, 1)); /* the first token is 0 */
        places = zf_reshape(places, ZF_SHAPE(-1, 1, 1, keys));
    } else {
        places = zfl_alibi_places(g, keys);
    }
    if (kind != ZF_CAUSAL_ALIBI_FALCON) return zf_mul(slopes, places);
    return zf_scale(zfl_as_bf16(zf_mul(zfl_as_bf16(slopes), zfl_as_bf16(places))),
                    1 / sqrt((double)c->width));
}
