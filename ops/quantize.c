/* Numbers in 8 or 4 bits, in blocks that share a scale: what ranks send in place of floats
 * (zf_zero_desc.quantized_weights), and a format of weights.
 *
 *     %8 = quantize %7 {bits=8 block=256} : u8[1040]            of f32[1024]: 4 records
 *     %9 = dequantize %8 {bits=8 block=256} : f32[1024]
 *     %9 = dequantize %8 {bits=8 block=256 to=bf16} : bf16[1024]
 *     %9 = dequantize_sum %8 {bits=8 block=256 parts=4} : f32[256]    the sum of 4 parts of %8
 *     %9 = dequantize_sum %8, %7 {bits=8 block=256 parts=4} : f32[256]    added to the accumulator
 *     %8 = quantize_feedback %7, %6 {bits=4 block=256 beta=0.8 reset=1024} : u8[528]
 *
 * Along the last dimension, each `block` elements x become one record: their scale s, in f32 or
 * with scale=bf16 in bf16, then integers q of 8 or 4 bits in two's complement. A record means the
 * same at any place, so records can be gathered, cut and exchanged as bytes.
 *
 *     bits=8   s  q[0] q[1] q[2] ...                  most = 127
 *     bits=4   s  q[0] + 16 q[h] , q[1] + 16 q[h + 1] ...     h = block / 2     most = 7
 *
 *     s = max |x| / most      q = x (1 / s) to the nearest integer, ties to even, within -most
 *                             .. most; 0 where s is 0
 *     y = s q                 of parts: y = ((s q of part 0) + (s q of part 1)) + ..., in f32
 *
 * A block in which a number is infinite or NaN has the scale NaN, and all of it becomes NaN.
 *
 * Error: s is max |x| / most, rounded by at most 2^-8 of it, so |x / s| rounds to no more than
 * `most`. q is x times 1 / s, so it differs from x / s by 1/2 and two roundings, which are together
 * below 2^-16; s q is rounded by less than 2^-17 s. A subnormal scale is rounded by up to u / 2,
 * where u is the smallest number of its dtype (f32 2^-149, bf16 2^-133), and q is then clamped.
 * Hence, in f32,
 *
 *     |y - x| <= s (1/2 + 2^-15) + most u / 2
 *
 * (Symmetric quantisation in blocks: Dettmers et al. 2022; as ranks use it: Wang et al. 2023.)
 *
 * quantize_feedback adds the errors e, a state, to x, and keeps in e what the records do not say
 * (LoCo, Xie et al. 2024):
 *
 *     h = x + e      records of h      r = h - s q      e = beta e + (1 - beta) r
 *
 * r is exact: where q is not 0, s q is within a factor of 2 of h. So with errors of f32 and beta=0
 * nothing is lost: x + e_old = s q + e_new, x + e_old being rounded to f32. Errors of u8 are records
 * of 8 bits with scales of f32, in blocks as those of x; e is then rounded to them. Errors of a block
 * with a non-finite number do not change. They count as 0 in the first micro-batch of the steps 1, 1
 * + reset, 1 + 2 reset, ...; reset=0: in none.
 *
 *     %8 = quantize_feedback %7, %6, %3, %4, %5 {...}        %3 to %5: states of a loss scale
 *
 * With a loss scale S (scaler.c) e is that of gradients without it: h = x + S e, r = (h - s q) / S.
 * Errors then count as 0 behind a step that was skipped, too. */

/* Of the attributes of quantize, dequantize and dequantize_sum. */
static zfi_blocks zfi_blocks_of(const zf_attribute *attributes)
{
    return zfi_blocks_by(attributes[ZF_AT_quantize_bits].i, attributes[ZF_AT_quantize_block].i,
                         attributes[ZF_AT_quantize_scale].i);
}

static zf_status zfi_infer_block(const zfi_infer *c)
{
    return zfi_infer_quantized(c, ZF_INT(c, quantize, bits), ZF_INT(c, quantize, block),
                               ZF_INT(c, quantize, scale));
}

/* The operator makes records: quantize, with or without errors. */
static bool zfi_quantizes(zf_op op)
{
    return op == ZF_OP_quantize || op == ZF_OP_quantize_feedback;
}

/* The operator's result says what its operand says, or the sum of its parts, in another form. */
static bool zfi_reforms(zf_op op)
{
    return zfi_quantizes(op) || op == ZF_OP_dequantize || op == ZF_OP_dequantize_sum;
}

/* The result has `to` elements along the last dimension for each `from` of the operand. */
static zf_status zfi_infer_records(zfi_infer *c, int64_t from, int64_t to, const char *unit)
{
    const zf_shape *x = &c->args[0]->shape;
    const int64_t last = x->rank ? x->dims[x->rank - 1] : 1;
    if (last % from)
        return zfi_infer_fail(c, ZF_ERR_SHAPE,
                              "the last dimension of the operand is %lld; it must be a multiple of "
                              "%lld, the %s",
                              (long long)last, (long long)from, unit);
    if (last > INT64_MAX / 4 / to)
        return zfi_infer_fail(c, ZF_ERR_LIMIT, "the result has too many elements");
    c->shape = *x;
    c->shape.dims[x->rank - 1] = last / from * to;
    return ZF_OK;
}

static zf_status zfi_infer_quantize(zfi_infer *c)
{
    zfi_blocks b;
    zf_status status = ZF_OK;
    if (!zfi_is_float(c->args[0]->dtype))
        status =
            zfi_infer_fail(c, ZF_ERR_DTYPE, "operand 0 must be float: f32, bf16, f16 or f64");
    if (!status) status = zfi_infer_block(c);
    if (status) return status;
    b = zfi_blocks_of(c->attributes);
    c->dtype = ZF_U8;
    return zfi_infer_records(c, b.block, b.record, "elements of a block");
}

/* The operands of quantize_feedback behind the errors: those of a loss scale. */
enum { ZFI_FEEDBACK_SCALE = 2, ZFI_FEEDBACK_ITERATION, ZFI_FEEDBACK_OVERFLOW, ZFI_FEEDBACK_ALL };

/* The elements of the errors of so many numbers, which are f32, or bytes of records. */
static int64_t zfi_errors_count(zf_dtype dtype, int64_t count, int64_t block)
{
    return dtype == ZF_U8 ? count / block * zfi_blocks_by(8, block, ZF_F32).record : count;
}

/* Checks the errors and what is known of a loss scale. */
static zf_status zfi_infer_feedback(const zfi_infer *c)
{
    const zf_op errors = c->args[1]->op;
    const zf_dtype dtype = c->args[1]->dtype;
    const int64_t count = zfi_node_count(c->args[0]), block = ZF_INT(c, quantize_feedback, block);
    if ((dtype != ZF_F32 && dtype != ZF_U8) || (errors != ZF_OP_state && errors != ZF_OP_bucket) ||
        zfi_node_count(c->args[1]) != zfi_errors_count(dtype, count, block))
        return zfi_infer_fail(
            c, ZF_ERR_ARGUMENT,
            "operand 1, the errors, must be a state f32 of %lld elements, or one u8 of their records, "
            "%lld bytes",
            (long long)count, (long long)zfi_errors_count(ZF_U8, count, block));
    if (c->arg_count == 2) return ZF_OK;
    for (int32_t k = ZFI_FEEDBACK_SCALE; k < ZFI_FEEDBACK_ALL; k++)
        if (c->arg_count != ZFI_FEEDBACK_ALL || c->args[k]->op != ZF_OP_state ||
            c->args[k]->shape.rank ||
            c->args[k]->dtype != (k == ZFI_FEEDBACK_SCALE ? ZF_F32 : ZF_I64))
            return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                                  "operands 2 to 4, of a loss scale, must be its states: the scale "
                                  "f32[], the iteration and the last overflow, i64[]");
    return ZF_OK;
}

static zf_status zfi_infer_quantize_feedback(zfi_infer *c)
{
    const double beta = ZF_FLOAT(c, quantize_feedback, beta);
    zf_status status = zfi_infer_block(c);
    if (status || (status = zfi_infer_feedback(c))) return status;
    if (!(beta >= 0 && beta < 1))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "beta is %g; it must be in [0, 1)", beta);
    if (ZF_INT(c, quantize_feedback, reset) < 0)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "reset is %lld; it must be 0 or more",
                              (long long)ZF_INT(c, quantize_feedback, reset));
    return zfi_infer_quantize(c);
}

static zf_status zfi_infer_dequantize(zfi_infer *c)
{
    const int64_t to = ZF_INT(c, dequantize, to);
    zfi_blocks b;
    zf_status status = zfi_infer_block(c);
    if (status) return status;
    b = zfi_blocks_of(c->attributes);
    if (c->args[0]->dtype != ZF_U8)
        return zfi_infer_fail(c, ZF_ERR_DTYPE, "operand 0 must be u8, the result of a quantize");
    if (to < 0 || to > INT_MAX || !zfi_is_float((zf_dtype)to))
        return zfi_infer_fail(c, ZF_ERR_DTYPE, "to must be f32, bf16, f16 or f64");
    c->dtype = (zf_dtype)to;
    return zfi_infer_records(c, b.record, b.block, "bytes of a record");
}

static zf_status zfi_infer_dequantize_sum(zfi_infer *c)
{
    const int64_t parts = ZF_INT(c, dequantize_sum, parts);
    int64_t count, records;
    zf_status status = zfi_infer_dequantize(c);
    if (status) return status;
    count = zf_shape_count(c->shape), records = count / ZF_INT(c, quantize, block);
    if (parts < 1 || parts > INT32_MAX || records % parts)
        return zfi_infer_fail(c, ZF_ERR_SHAPE,
                              "parts is %lld; it must be 1 or more and divide the %lld records",
                              (long long)parts, (long long)records);
    c->shape = ZF_SHAPE(count / parts);
    return zfi_infer_into(c, ZF_OP_accumulator);
}

/* ------------------------------------------------------------------------------ kernels */

/* x up by, rounded to an integer within -most .. most, as the bits of a float: the integer is added
 * to 1.5 * 2^23, where floats are integers. */
enum { ZFI_INTEGER_0 = 0x4b400000 };

ZFI_BODY int32_t zfi_nearest_bits(float x, float up, float by, int32_t most)
{
    int32_t bits = zfi_bits_of(x * up * by + 0x1.8p23f);
    bits = bits > ZFI_INTEGER_0 + most ? ZFI_INTEGER_0 + most : bits;
    return bits < ZFI_INTEGER_0 - most ? ZFI_INTEGER_0 - most : bits;
}

/* The integer of these bits. */
ZFI_BODY float zfi_integer_of(int32_t bits) { return zfi_float_of(bits) - 0x1.8p23f; }

/* Two integers of 4 bits in a byte. */
ZFI_BODY uint8_t zfi_pair_of(int32_t low, int32_t high)
{
    return (uint8_t)((low & 15) | (int32_t)((uint32_t)high << 4));
}

/* Of f32 or bf16:
 * zfi_largest: the bits of the largest |x|; those of infinity and NaN have the largest exponent
 * zfi_quantize8, zfi_quantize4: q = x * up * by to the nearest integer */
#define ZFI_QUANTIZE(suffix, type, integer, without_sign, widen)                                   \
    ZFI_BODY int32_t zfi_largest_##suffix##_body(zfi_isa isa, const type *x, int64_t n)            \
    {                                                                                              \
        integer most = 0;                                                                          \
        (void)isa;                                                                                 \
        ZFI_VECTOR                                                                                 \
        for (int64_t i = 0; i < n; i++) {                                                          \
            integer bits = without_sign;                                                           \
            most = bits > most ? bits : most;                                                      \
        }                                                                                          \
        return most;                                                                               \
    }                                                                                              \
    ZFI_KERNEL_OF(int32_t, zfi_largest_##suffix, (const type *x, int64_t n), (x, n))               \
    ZFI_BODY void zfi_quantize8_##suffix##_body(zfi_isa isa, uint8_t *q, const type *x, float up,  \
                                                float by, int64_t n)                               \
    {                                                                                              \
        (void)isa;                                                                                 \
        ZFI_VECTOR                                                                                 \
        for (int64_t i = 0; i < n; i++)                                                            \
            q[i] = (uint8_t)zfi_nearest_bits(widen(x[i]), up, by, 127);                            \
    }                                                                                              \
    ZFI_KERNEL(zfi_quantize8_##suffix,                                                             \
               (uint8_t * q, const type *x, float up, float by, int64_t n), (q, x, up, by, n))     \
    ZFI_BODY void zfi_quantize4_##suffix##_body(zfi_isa isa, uint8_t *q, const type *x, float up,  \
                                                float by, int64_t n)                               \
    {                                                                                              \
        const type *high = x + n / 2;                                                              \
        (void)isa;                                                                                 \
        ZFI_VECTOR                                                                                 \
        for (int64_t i = 0; i < n / 2; i++)                                                        \
            q[i] = zfi_pair_of(zfi_nearest_bits(widen(x[i]), up, by, 7),                           \
                               zfi_nearest_bits(widen(high[i]), up, by, 7));                       \
    }                                                                                              \
    ZFI_KERNEL(zfi_quantize4_##suffix,                                                             \
               (uint8_t * q, const type *x, float up, float by, int64_t n), (q, x, up, by, n))

ZFI_QUANTIZE(f32, float, int32_t, zfi_bits_of(x[i]) & INT32_MAX, )
ZFI_QUANTIZE(bf16, uint16_t, int16_t, (int16_t)(x[i] & INT16_MAX), zfi_bf16_to_f32)

/* The integer in the lowest 4 bits. */
ZFI_BODY int32_t zfi_low_integer(int32_t q) { return ((q & 15) ^ 8) - 8; }

#define ZFI_DEQUANTIZE(suffix, type, assign, narrow)                                               \
    ZFI_BODY void zfi_dequantize8_##suffix##_body(zfi_isa isa, type *y, const uint8_t *q,          \
                                                  float scale, int64_t n)                          \
    {                                                                                              \
        (void)isa;                                                                                 \
        ZFI_VECTOR                                                                                 \
        for (int64_t i = 0; i < n; i++) y[i] assign narrow((float)(int8_t)q[i] * scale);           \
    }                                                                                              \
    ZFI_KERNEL(zfi_dequantize8_##suffix, (type * y, const uint8_t *q, float scale, int64_t n),     \
               (y, q, scale, n))                                                                   \
    ZFI_BODY void zfi_dequantize4_##suffix##_body(zfi_isa isa, type *y, const uint8_t *q,          \
                                                  float scale, int64_t n)                          \
    {                                                                                              \
        type *high = y + n / 2;                                                                    \
        (void)isa;                                                                                 \
        ZFI_VECTOR                                                                                 \
        for (int64_t i = 0; i < n / 2; i++) {                                                      \
            y[i] assign narrow((float)zfi_low_integer(q[i]) * scale);                              \
            high[i] assign narrow((float)zfi_low_integer(q[i] >> 4) * scale);                      \
        }                                                                                          \
    }                                                                                              \
    ZFI_KERNEL(zfi_dequantize4_##suffix, (type * y, const uint8_t *q, float scale, int64_t n),     \
               (y, q, scale, n))

/* A float, which is no NaN but that of IEEE operations, rounded to bf16. */
ZFI_BODY uint16_t zfi_near_bf16(float x)
{
    const uint32_t bits = (uint32_t)zfi_bits_of(x);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

ZFI_DEQUANTIZE(f32, float, =, )
ZFI_DEQUANTIZE(add, float, +=, )
ZFI_DEQUANTIZE(bf16, uint16_t, =, zfi_near_bf16)

/* Of f32 or bf16: h = x + S e; the bits of the largest |h|. */
#define ZFI_FEEDBACK_SUM(suffix, type, widen)                                                      \
    ZFI_BODY int32_t zfi_feedback_sum_##suffix##_body(zfi_isa isa, float *h, const type *x,        \
                                                      const float *e, float scale, int64_t n)      \
    {                                                                                              \
        int32_t most = 0;                                                                          \
        (void)isa;                                                                                 \
        ZFI_VECTOR                                                                                 \
        for (int64_t i = 0; i < n; i++) {                                                          \
            const float more = scale * e[i], sum = widen(x[i]) + more;                             \
            const int32_t bits = zfi_bits_of(sum) & INT32_MAX;                                     \
            h[i] = sum;                                                                            \
            most = bits > most ? bits : most;                                                      \
        }                                                                                          \
        return most;                                                                               \
    }                                                                                              \
    ZFI_KERNEL_OF(int32_t, zfi_feedback_sum_##suffix,                                              \
                  (float *h, const type *x, const float *e, float scale, int64_t n),               \
                  (h, x, e, scale, n))

ZFI_FEEDBACK_SUM(f32, float, )
ZFI_FEEDBACK_SUM(bf16, uint16_t, zfi_bf16_to_f32)

/* Numbers that all elements of a block share. */
typedef struct zfi_feedback {
    float up, by, scale;       /* as for zfi_quantize_block */
    float beta, rest, inverse; /* 1 - beta, 1 / S */
} zfi_feedback;

/* e = beta e + rest (h - y) / S. Not by zfi_fma, which rounds otherwise on some sets. */
ZFI_BODY float zfi_kept_error(const zfi_feedback *f, float e, float h, float y)
{
    const float r = h - y, kept = f->beta * e, more = f->rest * (r * f->inverse);
    return kept + more;
}

/* q, and the errors that are kept, in one pass. */
ZFI_BODY void zfi_feedback8_body(zfi_isa isa, uint8_t *q, float *e, const float *h,
                                 const zfi_feedback *of, int64_t n)
{
    const zfi_feedback f = *of;
    (void)isa;
    ZFI_VECTOR
    for (int64_t i = 0; i < n; i++) {
        const int32_t bits = zfi_nearest_bits(h[i], f.up, f.by, 127);
        q[i] = (uint8_t)bits;
        e[i] = zfi_kept_error(&f, e[i], h[i], zfi_integer_of(bits) * f.scale);
    }
}
ZFI_KERNEL(zfi_feedback8, (uint8_t * q, float *e, const float *h, const zfi_feedback *of, int64_t n),
           (q, e, h, of, n))

ZFI_BODY void zfi_feedback4_body(zfi_isa isa, uint8_t *q, float *e, const float *h,
                                 const zfi_feedback *of, int64_t n)
{
    const zfi_feedback f = *of;
    const float *high = h + n / 2;
    float *above = e + n / 2;
    (void)isa;
    ZFI_VECTOR
    for (int64_t i = 0; i < n / 2; i++) {
        const int32_t a = zfi_nearest_bits(h[i], f.up, f.by, 7),
                      b = zfi_nearest_bits(high[i], f.up, f.by, 7);
        q[i] = zfi_pair_of(a, b);
        e[i] = zfi_kept_error(&f, e[i], h[i], zfi_integer_of(a) * f.scale);
        above[i] = zfi_kept_error(&f, above[i], high[i], zfi_integer_of(b) * f.scale);
    }
}
ZFI_KERNEL(zfi_feedback4, (uint8_t * q, float *e, const float *h, const zfi_feedback *of, int64_t n),
           (q, e, h, of, n))

/* The same errors, of what the records are known to say. */
ZFI_BODY void zfi_feedback_error_body(zfi_isa isa, float *e, const float *h, const float *y,
                                      const zfi_feedback *of, int64_t n)
{
    const zfi_feedback f = *of;
    (void)isa;
    ZFI_VECTOR
    for (int64_t i = 0; i < n; i++) e[i] = zfi_kept_error(&f, e[i], h[i], y[i]);
}
ZFI_KERNEL(zfi_feedback_error,
           (float *e, const float *h, const float *y, const zfi_feedback *of, int64_t n),
           (e, h, y, of, n))

#if ZFI_X86
/* zfi_dequantize4_bf16 and _f32 with AVX-512: an integer of 4 bits is looked up among the 16 numbers
 * that a block has; of bf16 by the lowest 5 bits of a word, the highest of which means nothing. */
#define ZFI_INTEGERS_OF_4 _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1)

ZFI_TARGET_AVX512 ZFI_OPTIMIZE static void zfi_look_up4_f32(float *y, const uint8_t *q,
                                                            float scale, int64_t n)
{
    const __m512 numbers = _mm512_mul_ps(ZFI_INTEGERS_OF_4, _mm512_set1_ps(scale));
    for (int64_t i = 0; i < n / 2; i += 16) {
        const __m512i both =
            _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(q + i)));
        _mm512_storeu_ps(y + i, _mm512_permutexvar_ps(both, numbers));
        _mm512_storeu_ps(y + n / 2 + i,
                         _mm512_permutexvar_ps(_mm512_srli_epi32(both, 4), numbers));
    }
}

ZFI_TARGET_AVX512 ZFI_OPTIMIZE static void zfi_look_up4_bf16(uint16_t *y, const uint8_t *q,
                                                             float scale, int64_t n)
{
    const __m512 numbers = _mm512_mul_ps(ZFI_INTEGERS_OF_4, _mm512_set1_ps(scale));
    const __m512i bits = _mm512_castps_si512(numbers), one = _mm512_set1_epi32(1),
                  odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), one),
                  near = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __m512i table = _mm512_broadcast_i64x4(_mm512_cvtepi32_epi16(_mm512_srli_epi32(
        isnan(scale) ? _mm512_set1_epi32(0x7fc00000) : near, 16)));
    for (int64_t i = 0; i < n / 2; i += 32) {
        const __m512i both =
            _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)(q + i)));
        _mm512_storeu_si512(y + i, _mm512_permutexvar_epi16(both, table));
        _mm512_storeu_si512(y + n / 2 + i,
                            _mm512_permutexvar_epi16(_mm512_srli_epi16(both, 4), table));
    }
}
#endif

/* The scale of a block by the largest |x| of it; NaN where that is no number. */
static float zfi_block_scale(const zfi_blocks *b, float largest)
{
    float scale = isfinite(largest) ? largest / b->most : NAN;
    if (b->scale == ZF_BF16 && isfinite(largest)) scale = zfi_bf16_to_f32(zfi_f32_to_bf16(scale));
    return scale;
}

static void zfi_put_scale(const zfi_blocks *b, uint8_t *record, float scale)
{
    const uint16_t half = isnan(scale) ? 0x7fc0 : zfi_f32_to_bf16(scale);
    const uint32_t nan = 0x7fc00000;
    if (b->scale == ZF_BF16) memcpy(record, &half, sizeof half);
    else if (isnan(scale)) memcpy(record, &nan, sizeof nan);
    else memcpy(record, &scale, sizeof scale);
}

/* The scale of a record, one NaN where it is any; *q: its integers. */
static float zfi_get_scale(const zfi_blocks *b, const uint8_t *record, const uint8_t **q)
{
    uint16_t half;
    float scale;
    *q = record + zf_dtype_size(b->scale);
    if (b->scale == ZF_F32) {
        memcpy(&scale, record, sizeof scale);
    } else {
        memcpy(&half, record, sizeof half);
        scale = zfi_bf16_to_f32(half);
    }
    return isnan(scale) ? zfi_float_of(0x7fc00000) : scale;
}

/* q = x * up * by, where up is a power of 2 with which 1 / scale does not overflow. */
static float zfi_inverse_scale(float scale, float *up)
{
    *up = scale < 0x1p-126f ? 0x1p64f : 1;
    return 1 / (scale * *up);
}

/* One record of f32 or bf16. */
static void zfi_quantize_block(zfi_isa isa, const zfi_blocks *b, uint8_t *record, zf_dtype dtype,
                               const void *x)
{
    const bool half = dtype == ZF_BF16;
    uint8_t *q = record + zf_dtype_size(b->scale);
    const int32_t largest = half ? zfi_largest_bf16(isa, x, b->block) * 65536
                                 : zfi_largest_f32(isa, x, b->block);
    const float scale = zfi_block_scale(b, zfi_float_of(largest));
    float up, by;
    zfi_put_scale(b, record, scale);
    if (!(scale > 0)) {
        memset(q, 0, (size_t)(b->block * b->bits / 8));
        return;
    }
    by = zfi_inverse_scale(scale, &up);
    if (half && b->bits == 8) zfi_quantize8_bf16(isa, q, x, up, by, b->block);
    else if (half) zfi_quantize4_bf16(isa, q, x, up, by, b->block);
    else if (b->bits == 8) zfi_quantize8_f32(isa, q, x, up, by, b->block);
    else zfi_quantize4_f32(isa, q, x, up, by, b->block);
}

/* y[0..block), of f32 or bf16, = what the record says; with `add`, for f32 alone, += it. */
static void zfi_dequantize_block(zfi_isa isa, const zfi_blocks *b, zf_dtype dtype, void *y,
                                 const uint8_t *record, bool add)
{
    const uint8_t *q;
    const float scale = zfi_get_scale(b, record, &q);
#if ZFI_X86
    if (isa == ZFI_ISA_AVX512 && b->bits == 4 && !add) {
        if (dtype == ZF_BF16) zfi_look_up4_bf16(y, q, scale, b->block);
        else zfi_look_up4_f32(y, q, scale, b->block);
        return;
    }
#endif
    if (add && b->bits == 8) zfi_dequantize8_add(isa, y, q, scale, b->block);
    else if (add) zfi_dequantize4_add(isa, y, q, scale, b->block);
    else if (dtype == ZF_BF16 && b->bits == 8) zfi_dequantize8_bf16(isa, y, q, scale, b->block);
    else if (dtype == ZF_BF16) zfi_dequantize4_bf16(isa, y, q, scale, b->block);
    else if (b->bits == 8) zfi_dequantize8_f32(isa, y, q, scale, b->block);
    else zfi_dequantize4_f32(isa, y, q, scale, b->block);
}

/* The same as zfi_quantize_block, an element at a time, of any dtype. */
static void zfi_quantize_plain(const zfi_blocks *b, uint8_t *record, const zf_array *x,
                               int64_t first)
{
    const int64_t half = b->block / 2;
    uint8_t *q = record + zf_dtype_size(b->scale);
    double largest = 0;
    float scale, up, factor;
    for (int64_t i = first; i < first + b->block; i++) {
        const double size = fabs(zfi_get(x, i));
        if (size > largest || isnan(size)) largest = size;
    }
    scale = zfi_block_scale(b, (float)largest);
    zfi_put_scale(b, record, scale);
    memset(q, 0, (size_t)(b->block * b->bits / 8));
    factor = zfi_inverse_scale(scale, &up);
    for (int64_t i = 0; i < b->block && scale > 0; i++) {
        const float by = (float)(zfi_get(x, first + i) * (double)up * (double)factor);
        const int value = (int)nearbyintf(by < -b->most ? -b->most : by > b->most ? b->most : by);
        if (b->bits == 8) q[i] = (uint8_t)value;
        else q[i % half] |= (uint8_t)((value & 15) << (i < half ? 0 : 4));
    }
}

/* Element i of a record. */
static double zfi_dequantize_plain(const zfi_blocks *b, const uint8_t *record, int64_t i)
{
    const int64_t half = b->block / 2;
    const uint8_t *q;
    const double scale = (double)zfi_get_scale(b, record, &q);
    if (b->bits == 8) return scale * (int8_t)q[i];
    return scale * zfi_low_integer(q[i % half] >> (i < half ? 0 : 4));
}

static void zfi_quantize_records(const zf_launch *l, int64_t first, int64_t last)
{
    const zfi_blocks b = zfi_blocks_of(l->attributes);
    const zfi_isa isa = zfi_cpu_of(l)->isa;
    const zf_array *x = &l->args[0];
    float wide[ZFI_BLOCK_MOST];
    for (int64_t k = first; k < last; k++) {
        uint8_t *record = (uint8_t *)l->out.data + k * b.record;
        const void *from;
        if (!zfi_fast_or_half(l)) {
            zfi_quantize_plain(&b, record, x, k * b.block);
            continue;
        }
        from = zfi_element(x->data, x->dtype, k * b.block);
        if (x->dtype == ZF_F16) zfi_widen(isa, wide, x->dtype, from, b.block);
        if (x->dtype == ZF_F16) zfi_quantize_block(isa, &b, record, ZF_F32, wide);
        else zfi_quantize_block(isa, &b, record, x->dtype, from);
    }
}

/* The errors count as 0: after so many steps, or behind a step that a loss scale has skipped. */
static bool zfi_begins_errors(const zf_launch *l)
{
    const int64_t reset = ZF_INT(l, quantize_feedback, reset);
    if (l->run->micro) return false;
    if (reset && (l->run->step - 1) % reset == 0) return true;
    return l->arg_count > ZFI_FEEDBACK_SCALE &&
           zfi_wrapped_sum(zfi_get_integer(&l->args[ZFI_FEEDBACK_ITERATION], 0),
                           ~zfi_get_integer(&l->args[ZFI_FEEDBACK_OVERFLOW], 0)) == 0;
}

/* The record of h, and e; largest: the bits of the largest |h|. */
static void zfi_feedback_block(const zf_launch *l, const zfi_blocks *b, uint8_t *record, float *e,
                               const float *h, int32_t largest, zfi_feedback *f)
{
    const zfi_isa isa = zfi_cpu_of(l)->isa;
    const zf_array all = {(void *)(uintptr_t)h, ZF_F32, ZF_SHAPE(b->block)};
    uint8_t *q = record + zf_dtype_size(b->scale);
    f->scale = zfi_block_scale(b, zfi_float_of(largest));
    f->up = 1, f->by = 0;
    if (f->scale > 0) f->by = zfi_inverse_scale(f->scale, &f->up);
    if (isnan(f->scale) || zfi_cpu_of(l)->reference) {
        zfi_quantize_plain(b, record, &all, 0);
    } else {
        zfi_put_scale(b, record, f->scale);
        if (b->bits == 8) zfi_feedback8(isa, q, e, h, f, b->block);
        else zfi_feedback4(isa, q, e, h, f, b->block);
    }
    if (!isnan(f->scale) && zfi_cpu_of(l)->reference) {
        float y[ZFI_BLOCK_MOST];
        zfi_dequantize_block(isa, b, ZF_F32, y, record, false);
        zfi_feedback_error(isa, e, h, y, f, b->block);
    }
}

/* Both kernels, the reference too, compute in f32: what is kept is exactly what was not sent. */
static void zfi_feedback_records(const zf_launch *l, int64_t first, int64_t last)
{
    const zfi_blocks b = zfi_blocks_of(l->attributes), kept = zfi_blocks_by(8, b.block, ZF_F32);
    const zfi_isa isa = zfi_cpu_of(l)->isa;
    const zf_array *x = &l->args[0];
    const bool short_errors = l->args[1].dtype == ZF_U8, begins = zfi_begins_errors(l);
    const int64_t each = short_errors ? kept.record : b.block * (int64_t)sizeof(float);
    const double beta = ZF_FLOAT(l, quantize_feedback, beta);
    const float scale = l->arg_count > ZFI_FEEDBACK_SCALE
                            ? (float)zfi_get(&l->args[ZFI_FEEDBACK_SCALE], 0)
                            : 1;
    zfi_feedback f = {.beta = (float)beta, .rest = (float)(1 - beta), .inverse = 1 / scale};
    float h[ZFI_BLOCK_MOST], wide[ZFI_BLOCK_MOST];
    for (int64_t k = first; k < last; k++) {
        uint8_t *record = (uint8_t *)l->out.data + k * b.record,
                *errors = (uint8_t *)l->args[1].data + k * each;
        float *e = short_errors ? wide : (float *)(void *)errors;
        const void *from = zfi_element(x->data, x->dtype, k * b.block);
        int32_t largest;
        if (begins) memset(errors, 0, (size_t)each);
        if (short_errors) zfi_dequantize_block(isa, &kept, ZF_F32, e, errors, false);
        if (x->dtype == ZF_F64)
            for (int64_t i = 0; i < b.block; i++) h[i] = (float)zfi_get(x, k * b.block + i);
        else if (x->dtype == ZF_F16) zfi_widen(isa, h, x->dtype, from, b.block);
        largest = x->dtype == ZF_BF16 ? zfi_feedback_sum_bf16(isa, h, from, e, scale, b.block)
                                      : zfi_feedback_sum_f32(isa, h, x->dtype == ZF_F32 ? from : h,
                                                             e, scale, b.block);
        zfi_feedback_block(l, &b, record, e, h, largest, &f);
        if (short_errors && !isnan(f.scale)) zfi_quantize_block(isa, &kept, errors, ZF_F32, e);
    }
}

/* The number of parts that are added. */
static int64_t zfi_parts_of(const zf_launch *l)
{
    return l->op == ZF_OP_dequantize_sum ? ZF_INT(l, dequantize_sum, parts) : 1;
}

/* Element i of record k of the result, by the reference. */
static void zfi_dequantize_element(const zf_launch *l, const zfi_blocks *b, int64_t k, int64_t i,
                                   bool add)
{
    const int64_t parts = zfi_parts_of(l), at = k * b->block + i,
                  each = zfi_count(&l->out) / b->block;
    double sum = add ? zfi_get(&l->out, at) : 0;
    for (int64_t p = 0; p < parts; p++) {
        const uint8_t *record = (const uint8_t *)l->args[0].data + (p * each + k) * b->record;
        const double y = zfi_dequantize_plain(b, record, i);
        if (l->out.dtype == ZF_F64) sum += y;
        else sum = add || p ? (float)sum + (float)y : (float)y;
    }
    zfi_set(&l->out, at, sum);
}

static void zfi_dequantize_records(const zf_launch *l, int64_t first, int64_t last)
{
    const zfi_blocks b = zfi_blocks_of(l->attributes);
    const zfi_isa isa = zfi_cpu_of(l)->isa;
    const bool add = l->arg_count > 1 && l->run->micro > 0;
    const int64_t parts = zfi_parts_of(l), each = zfi_count(&l->out) / b.block;
    /* Where the result is f32, or is written at once. */
    const bool direct =
        l->out.dtype == ZF_F32 || (l->out.dtype == ZF_BF16 && parts == 1 && !add);
    float wide[ZFI_BLOCK_MOST];
    for (int64_t k = first; k < last; k++) {
        void *to = zfi_element_of(l->out.data, l->out.dtype, k * b.block);
        if (!zfi_fast_or_half(l)) {
            for (int64_t i = 0; i < b.block; i++) zfi_dequantize_element(l, &b, k, i, add);
            continue;
        }
        if (add && !direct) zfi_widen(isa, wide, l->out.dtype, to, b.block);
        for (int64_t p = 0; p < parts; p++)
            zfi_dequantize_block(isa, &b, direct ? l->out.dtype : ZF_F32, direct ? to : wide,
                                 (const uint8_t *)l->args[0].data + (p * each + k) * b.record,
                                 add || p);
        if (!direct) zfi_narrow(isa, to, l->out.dtype, wide, b.block);
    }
}

static zf_status zfi_cpu_quantize(const zf_launch *l)
{
    const int64_t block = ZF_INT(l, quantize, block);
    zfi_split(l, zfi_count(&l->args[0]) / block, zfi_row_grain(block), zfi_quantize_records);
    return ZF_OK;
}

static zf_status zfi_cpu_quantize_feedback(const zf_launch *l)
{
    const int64_t block = ZF_INT(l, quantize, block);
    zfi_split(l, zfi_count(&l->args[0]) / block, zfi_row_grain(block), zfi_feedback_records);
    return ZF_OK;
}

/* Of x, records, and errors that it reads and writes. */
static double zfi_bytes_with_errors(const zf_launch *l)
{
    return (double)zfi_array_bytes(&l->args[0]) + 2 * (double)zfi_array_bytes(&l->args[1]) +
           (double)zfi_array_bytes(&l->out);
}

static uint32_t zfi_writes_errors(const zfi_node *node)
{
    (void)node;
    return 2;
}

static zf_status zfi_cpu_dequantize(const zf_launch *l)
{
    const int64_t block = ZF_INT(l, quantize, block);
    zfi_split(l, zfi_count(&l->out) / block, zfi_row_grain(block), zfi_dequantize_records);
    return ZF_OK;
}

/* --------------------------------------------------------------------- without a graph */

/* The number of records of `count` numbers; -1: they are no whole blocks. */
static int64_t zfi_records_of(const zf_quantize_desc *desc, size_t count, zfi_blocks *b)
{
    const zf_quantize_desc d = zfi_quantize_resolved(desc);
    if (!zfi_are_blocks(d.bits, d.block, d.scale) || count % (size_t)d.block) return -1;
    *b = zfi_blocks_by(d.bits, d.block, d.scale);
    return (int64_t)(count / (size_t)d.block);
}

ZF_API zf_status zf_quantize_values(void *records, const float *values, size_t count,
                                    const zf_quantize_desc *desc)
{
    zfi_blocks b;
    const int64_t n = zfi_records_of(desc, count, &b);
    if (n < 0) return ZF_ERR_ARGUMENT;
    for (int64_t k = 0; k < n; k++)
        zfi_quantize_block(zfi_isa_best(), &b, (uint8_t *)records + k * b.record, ZF_F32,
                           values + k * b.block);
    return ZF_OK;
}

ZF_API zf_status zf_dequantize_values(float *values, const void *records, size_t count,
                                      const zf_quantize_desc *desc)
{
    zfi_blocks b;
    const int64_t n = zfi_records_of(desc, count, &b);
    if (n < 0) return ZF_ERR_ARGUMENT;
    for (int64_t k = 0; k < n; k++)
        zfi_dequantize_block(zfi_isa_best(), &b, ZF_F32, values + k * b.block,
                             (const uint8_t *)records + k * b.record, false);
    return ZF_OK;
}

/* ------------------------------------------------------------------------------- records */

ZFI_SAME_ATTRIBUTE(quantize_feedback, quantize, bits)
ZFI_SAME_ATTRIBUTE(quantize_feedback, quantize, block)
ZFI_SAME_ATTRIBUTE(quantize_feedback, quantize, scale)
ZFI_SAME_ATTRIBUTE(dequantize, quantize, bits)
ZFI_SAME_ATTRIBUTE(dequantize, quantize, block)
ZFI_SAME_ATTRIBUTE(dequantize, quantize, scale)
ZFI_SAME_ATTRIBUTE(dequantize_sum, quantize, bits)
ZFI_SAME_ATTRIBUTE(dequantize_sum, quantize, block)
ZFI_SAME_ATTRIBUTE(dequantize_sum, quantize, scale)
ZFI_SAME_ATTRIBUTE(dequantize_sum, dequantize, to)
ZFI_OPERATOR(quantize, .infer = zfi_infer_quantize, .grad = zfi_grad_none, .cpu = zfi_cpu_quantize,
             .holds = ZF_COMMUNICATION, .ranks = ZFI_RANKS_FORM, .traits = ZF_OP_READS_HALF)
ZFI_OPERATOR(quantize_feedback, .infer = zfi_infer_quantize_feedback, .grad = zfi_grad_none,
             .cpu = zfi_cpu_quantize_feedback, .writes = zfi_writes_errors,
             .bytes = zfi_bytes_with_errors, .holds = ZF_COMMUNICATION,
             .ranks = ZFI_RANKS_FORM, .traits = ZF_OP_MUTATES | ZF_OP_READS_HALF)
ZFI_OPERATOR(dequantize, .infer = zfi_infer_dequantize, .grad = zfi_grad_none,
             .cpu = zfi_cpu_dequantize, .holds = ZF_COMMUNICATION, .ranks = ZFI_RANKS_FORM,
             .traits = ZF_OP_READS_HALF)
ZFI_OPERATOR(dequantize_sum, .infer = zfi_infer_dequantize_sum, .grad = zfi_grad_none,
             .cpu = zfi_cpu_dequantize, .views = zfi_views_into, .writes = zfi_writes_into_1,
             .holds = ZF_COMMUNICATION, .ranks = ZFI_RANKS_SUM,
             .traits = ZF_OP_MUTATES | ZF_OP_READS_HALF)
