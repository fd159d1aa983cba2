/* ALiBi (Press et al. 2022): a number for each head and key that is added to scores.
 *
 *     score of key n, head h: q k / sqrt(d) + slope(h) n
 *
 * Of a query m that is slope(h) (n - m), since the same number for all keys changes no softmax. In
 * 16 bits it is rounded to these, as transformers does. */
#include <math.h>
#include <stdlib.h>

/* The number by which ALiBi multiplies the place of a key. */
static double zfl_alibi_slope(int64_t head, int64_t heads)
{
    int64_t whole = 1; /* the largest power of 2 that is no more than `heads` */
    while (2 * whole <= heads) whole *= 2;
    if (head < whole) return exp2(-8.0 * (double)(head + 1) / (double)whole);
    return exp2(-4.0 * (double)(2 * (head - whole) + 1) / (double)whole);
}

/* 0, 1, ..., count - 1, or the slopes of so many heads. */
static zf_tensor zfl_alibi_numbers(zf_graph *g, int64_t count, bool slopes)
{
    double *x = malloc((size_t)count * sizeof *x + 1);
    const zf_shape shape = slopes ? ZF_SHAPE(1, count, 1, 1) : ZF_SHAPE(1, 1, 1, count);
    zf_tensor made;
    if (!x) return zf_fail(zf_constant(g, ZF_F32, ZF_SCALAR, 0), "out of memory");
    for (int64_t k = 0; k < count; k++) x[k] = slopes ? zfl_alibi_slope(k, count) : (double)k;
    made = zf_values(g, ZF_F32, shape, x);
    free(x);
    return made;
}

/* ALiBi of so many keys, [1 or B, heads, 1, keys]: a mask of zf_attention_desc. mask: [B, keys], of
 * which tokens that are 0 do not count as places; ZF_NONE: all do. */
static zf_tensor zfl_alibi(zf_graph *g, int64_t heads, int64_t keys, zf_tensor mask)
{
    zf_tensor places;
    if (zf_valid(mask)) {
        places = zf_cast(zf_cumsum(zf_cast(mask, ZF_I32), 1), ZF_F32);
        places = zf_sub(places, zf_constant(g, ZF_F32, ZF_SCALAR, 1)); /* the first token is 0 */
        places = zf_reshape(places, ZF_SHAPE(-1, 1, 1, keys));
    } else {
        places = zfl_alibi_numbers(g, keys, false);
    }
    return zf_mul(zfl_alibi_numbers(g, heads, true), places);
}
