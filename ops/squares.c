/* squares, norm_of_squares: a norm that does not depend on how ranks share the elements.
 *
 *     %2 = squares %1 {unit=16} : f64[34]       the sum of x[i]^2, x taken flat, as an exact number
 *     %3 = norm_of_squares %2, %4 : f32[]       sqrt of the sum of all operands' numbers
 *
 * Elements are added in f64 in runs of `unit`, a power of two up to 1024, the default. Each
 * of these sums is cut to a multiple of 2^-340 and is then added exactly: element j of the result
 * counts multiples of 2^(20 j - 340), element 33 the runs of which the sum is 2^300 or more, or not
 * finite. So any cut into runs has the same result, and results may be added in any order, by
 * ranks too. The norm is infinite where a run is counted in element 33. Of vectors of 34 an operand
 * of norm_of_squares may have several, one after the other.
 *
 * For a bucket, or a shard of one of `world`, blocks lists ranges of blocks of 1024 elements of the
 * whole bucket; others are left out. wide: the norm is f64. */

enum {
    ZFI_SQUARE_BITS = 20,    /* that an element counts */
    ZFI_SQUARE_LOWEST = 340, /* element 0 counts multiples of 2^-340 */
    ZFI_SQUARE_OTHER = 33,   /* the element that counts runs that are not finite */
    ZFI_SQUARES = 34,
    ZFI_SQUARE_CHUNKS = 256 /* at most, which are computed apart */
};

static zf_status zfi_infer_squares(zfi_infer *c)
{
    const int64_t unit = ZF_INT(c, squares, unit), world = ZF_INT(c, squares, world),
                  shard = zfi_whole_blocks(zfi_node_count(c->args[0]));
    const zf_attribute *blocks = &ZF_ATTRIBUTE(c, squares, blocks);
    zf_status status = zfi_infer_dtypes(c, true);
    if (!status && (unit < 0 || unit > ZFI_NORM_BLOCK || (unit & (unit - 1))))
        status =
            zfi_infer_fail(c, ZF_ERR_ARGUMENT, "unit is %lld: a power of two up to %d is needed",
                           (long long)unit, ZFI_NORM_BLOCK);
    if (!status && world > 1 && shard > INT64_MAX / world)
        status =
            zfi_infer_fail(c, ZF_ERR_ARGUMENT, "world is %lld: a bucket of 2^63 blocks or more",
                           (long long)world);
    if (!status) status = zfi_infer_blocks(c, blocks, shard * (world > 1 ? world : 1));
    c->dtype = ZF_F64;
    c->shape = ZF_SHAPE(ZFI_SQUARES);
    return status;
}

static zf_status zfi_infer_norm_of_squares(zfi_infer *c)
{
    for (int32_t k = 0; k < c->arg_count; k++)
        if (c->args[k]->dtype != ZF_F64 || zfi_node_count(c->args[k]) % ZFI_SQUARES)
            return zfi_infer_fail(c, ZF_ERR_SHAPE, "operand %d is no result of squares", (int)k);
    c->dtype = ZF_INT(c, norm_of_squares, wide) ? ZF_F64 : ZF_F32;
    c->shape = ZF_SCALAR;
    return ZF_OK;
}

/* ------------------------------------------------------------------------------ kernels */

/* Adds a sum of squares exactly. */
static void zfi_put_squares(int64_t *counts, double sum)
{
    const int64_t mask = (1 << ZFI_SQUARE_BITS) - 1;
    int exponent;
    uint64_t bits;
    if (!(sum < 0x1p300)) {
        counts[ZFI_SQUARE_OTHER]++;
        return;
    }
    bits = (uint64_t)ldexp(frexp(sum, &exponent), 53);
    exponent += ZFI_SQUARE_LOWEST - 53;
    if (exponent < 0) bits = exponent > -64 ? bits >> -exponent : 0, exponent = 0;
    counts += exponent / ZFI_SQUARE_BITS;
    for (; bits; bits >>= ZFI_SQUARE_BITS, counts++) {
        const int64_t part = (int64_t)(bits & (uint64_t)mask) << exponent % ZFI_SQUARE_BITS;
        counts[0] += part & mask, counts[1] += part >> ZFI_SQUARE_BITS;
    }
}

/* The sum of x[i]^2, 0 <= i < n, in f64. */
static double zfi_sum_of_squares(const float *x, int64_t n)
{
    double sum[8] = {0};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int k = 0; k < 8; k++) sum[k] += (double)x[i + k] * (double)x[i + k];
    for (int k = 0; i < n; i++, k++) sum[k] += (double)x[i] * (double)x[i];
    return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

/* The same of elements [i, i + n) of an array of f64. */
static double zfi_sum_of_wide_squares(const zf_array *x, int64_t i, int64_t n)
{
    double sum = 0;
    for (int64_t k = i; k < i + n; k++) sum += zfi_get(x, k) * zfi_get(x, k);
    return sum;
}

static void zfi_put_block(const zf_launch *l, int64_t block, int64_t *counts)
{
    const zf_array *x = &l->args[0];
    const int64_t first = block * ZFI_NORM_BLOCK, n = zfi_min(zfi_count(x) - first, ZFI_NORM_BLOCK),
                  given = ZF_INT(l, squares, unit), unit = given ? given : ZFI_NORM_BLOCK;
    const bool wide = x->dtype == ZF_F64;
    const float *from = wide ? NULL : zfi_element(x->data, x->dtype, first);
    float aside[ZFI_NORM_BLOCK];
    if (!wide && x->dtype != ZF_F32)
        zfi_widen(zfi_cpu_of(l)->isa, aside, x->dtype, from, n), from = aside;
    for (int64_t i = 0; i < n; i += unit) {
        const int64_t count = zfi_min(unit, n - i);
        zfi_put_squares(counts, wide ? zfi_sum_of_wide_squares(x, first + i, count)
                                     : zfi_sum_of_squares(from + i, count));
    }
}

/* The block of the whole bucket is one of those that are listed. */
static bool zfi_is_listed_block(const zf_launch *l, int64_t block)
{
    const int64_t *ends = ZF_LIST(l, squares, blocks).data,
                  count = ZF_LIST(l, squares, blocks).count;
    int64_t k = 0;
    while (k < count && ends[k + 1] <= block) k += 2;
    return !count || (k < count && ends[k] <= block);
}

static int64_t zfi_square_chunk(const zf_launch *l)
{
    const int64_t blocks = zfi_whole_blocks(zfi_count(&l->args[0]));
    return blocks / ZFI_SQUARE_CHUNKS + 1;
}

/* Chunks [first, last): each has counts of its own. */
static void zfi_squares_of_chunks(const zf_launch *l, int64_t first, int64_t last)
{
    const int64_t blocks = zfi_whole_blocks(zfi_count(&l->args[0])), each = zfi_square_chunk(l),
                  before = ZF_INT(l, squares, world) > 1
                               ? zfi_shard_here(l->run, ZF_INT(l, squares, world)) * blocks
                               : 0;
    for (int64_t chunk = first; chunk < last; chunk++) {
        int64_t *counts = (int64_t *)l->scratch + chunk * ZFI_SQUARES;
        memset(counts, 0, ZFI_SQUARES * sizeof *counts);
        for (int64_t b = chunk * each; b < blocks && b < (chunk + 1) * each; b++)
            if (zfi_is_listed_block(l, before + b)) zfi_put_block(l, b, counts);
    }
}

static size_t zfi_scratch_squares(const zf_launch *l)
{
    (void)l;
    return (size_t)ZFI_SQUARE_CHUNKS * ZFI_SQUARES * sizeof(int64_t);
}

static zf_status zfi_cpu_squares(const zf_launch *l)
{
    const int64_t chunks =
        zfi_div_up(zfi_whole_blocks(zfi_count(&l->args[0])), zfi_square_chunk(l));
    zfi_split(l, chunks, 1, zfi_squares_of_chunks);
    for (int64_t j = 0; j < ZFI_SQUARES; j++) {
        int64_t sum = 0;
        for (int64_t c = 0; c < chunks; c++) sum += ((int64_t *)l->scratch)[c * ZFI_SQUARES + j];
        zfi_set(&l->out, j, (double)sum);
    }
    return ZF_OK;
}

/* Adds a count, which is no whole number of these only in what squares has not made. */
static void zfi_put_count(int64_t *counts, int64_t place, double count)
{
    if (fabs(count) < 0x1p53) counts[place] += (int64_t)count;
    else counts[ZFI_SQUARE_OTHER]++;
}

static zf_status zfi_cpu_norm_of_squares(const zf_launch *l)
{
    const int64_t mask = (1 << ZFI_SQUARE_BITS) - 1;
    int64_t counts[ZFI_SQUARES] = {0};
    double sum = 0;
    for (int32_t k = 0; k < l->arg_count; k++)
        for (int64_t i = 0; i < zfi_count(&l->args[k]); i++)
            zfi_put_count(counts, i % ZFI_SQUARES, zfi_get(&l->args[k], i));
    for (int j = 0; j + 1 < ZFI_SQUARE_OTHER; j++)
        counts[j + 1] += counts[j] >> ZFI_SQUARE_BITS, counts[j] &= mask;
    for (int j = ZFI_SQUARE_OTHER - 1; j >= 0; j--)
        sum += ldexp((double)counts[j], ZFI_SQUARE_BITS * j - ZFI_SQUARE_LOWEST);
    zfi_set(&l->out, 0, counts[ZFI_SQUARE_OTHER] ? INFINITY : sqrt(sum));
    return ZF_OK;
}

/* ------------------------------------------------------------------------------- records */

ZFI_OPERATOR(squares, .infer = zfi_infer_squares, .cpu = zfi_cpu_squares,
             .scratch = zfi_scratch_squares, .ranks = ZFI_RANKS_BLOCKS, .cuts = "... -> l!",
             .traits = ZF_OP_READS_HALF)
ZFI_OPERATOR(norm_of_squares, .infer = zfi_infer_norm_of_squares, .cpu = zfi_cpu_norm_of_squares)
