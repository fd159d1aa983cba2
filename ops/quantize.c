/* Numbers in 8 or 4 bits, in blocks that share a scale: what ranks send in place of floats
 * (zf_zero_desc.quantized_weights), and a format of weights.
 *
 *     %8 = quantize %7 {bits=8 block=256} : u8[1040]            of f32[1024]: 4 records
 *     %8 = quantize %7 {bits=8 block=256 once=true} : u8[1040]  in the first micro-batch of a step
 *                                                               alone: it stays for the others
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
 * nothing is lost: x + e_old = s q + e_new, x + e_old being rounded to f32. Errors of u8 are
 * records of 8 bits with scales of f32, in blocks as those of x; e is then rounded to them. Errors
 * of a block with a non-finite number do not change. They count as 0 in the first micro-batch of
 * the steps 1, 1 + reset, 1 + 2 reset, ...; reset=0: in none.
 *
 *     %8 = quantize_feedback %7, %6, %3, %4, %5 {...}        %3 to %5: states of a loss scale
 *
 * With a loss scale S (scaler.c) e is that of gradients without it: h = x + S e, e = beta e + ((1 -
 * beta) / S) r.
 * Errors then count as 0 after a step that was skipped, too. */

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
        status = zfi_infer_fail(c, ZF_ERR_DTYPE, "operand 0 must be float: f32, bf16, f16 or f64");
    if (!status) status = zfi_infer_block(c);
    if (status) return status;
    b = zfi_blocks_of(c->attributes);
    c->dtype = ZF_U8;
    return zfi_infer_records(c, b.block, b.record, "elements of a block");
}

/* The operands of quantize_feedback after the errors: those of a loss scale. */
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
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "operand 1, the errors, must be a state f32 of %lld elements, or one "
                              "u8 of their records, %lld bytes",
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

static void zfi_quantize_records(const zf_launch *l, int64_t first, int64_t last)
{
    const zfi_blocks b = zfi_blocks_of(l->attributes);
    const zfi_isa isa = zfi_cpu_of(l)->isa;
    const zf_array *x = &l->args[0];
    float wide[ZFI_BLOCK_MOST];
    uint8_t *records = (uint8_t *)l->out.data + first * b.record;
    if (zfi_fast_or_half(l) && x->dtype != ZF_F16) {
        zfi_quantize_blocks(isa, &b, records, x->dtype,
                            zfi_element(x->data, x->dtype, first * b.block), last - first);
        return;
    }
    for (int64_t k = first; k < last; k++, records += b.record) {
        if (!zfi_fast_or_half(l)) {
            zfi_quantize_plain(&b, records, x, k * b.block);
            continue;
        }
        zfi_widen(isa, wide, x->dtype, zfi_element(x->data, x->dtype, k * b.block), b.block);
        zfi_quantize_blocks(isa, &b, records, ZF_F32, wide, 1);
    }
}

/* The errors count as 0: after so many steps, or after a step that a loss scale has skipped. */
static bool zfi_begins_errors(const zf_launch *l)
{
    const int64_t reset = ZF_INT(l, quantize_feedback, reset);
    if (l->run->micro) return false;
    if (reset && (l->run->step - 1) % reset == 0) return true;
    return l->arg_count > ZFI_FEEDBACK_SCALE &&
           zfi_wrapped_sum(zfi_get_integer(&l->args[ZFI_FEEDBACK_ITERATION], 0),
                           ~zfi_get_integer(&l->args[ZFI_FEEDBACK_OVERFLOW], 0)) == 0;
}

/* What a run of blocks needs. */
typedef struct zfi_feedback_run {
    const zf_launch *launch;
    zfi_blocks records, kept;      /* kept: those of errors in 8 bits, */
    bool short_errors;             /* which are unpacked to e */
    float loss;                    /* S */
    zfi_feedback of[ZFI_RUN_MOST]; /* by block */
    _Alignas(64) float h[ZFI_BLOCK_MOST];
    _Alignas(64) float e[ZFI_BLOCK_MOST];
} zfi_feedback_run;

/* h = x + S e of block k, the n-th of the run, and the scale of h. */
static void zfi_feedback_begin(zfi_feedback_run *r, int64_t n, int64_t k, uint8_t *errors)
{
    const zf_array *x = &r->launch->args[0];
    const zfi_isa isa = zfi_cpu_of(r->launch)->isa;
    const int64_t block = r->records.block;
    const void *from = zfi_element(x->data, x->dtype, k * block);
    const bool half = x->dtype == ZF_BF16;
    const uint8_t *q;
    float *h = r->h + n * block, *e = r->e + n * block, kept;
    int32_t largest;
    if (x->dtype == ZF_F64)
        for (int64_t i = 0; i < block; i++) h[i] = (float)zfi_get(x, k * block + i);
    else if (x->dtype == ZF_F16) zfi_widen(isa, h, x->dtype, from, block);
    if (!half && x->dtype != ZF_F32) from = h;
    if (r->short_errors) {
        kept = zfi_get_scale(&r->kept, errors, &q);
        largest =
            zfi_feedback_sum8(isa, half ? ZF_BF16 : ZF_F32, h, e, from, q, kept, r->loss, block);
    } else {
        e = (float *)(void *)errors;
        largest = half ? zfi_feedback_sum_bf16(isa, h, from, e, r->loss, block)
                       : zfi_feedback_sum_f32(isa, h, from, e, r->loss, block);
    }
    r->of[n].scale = zfi_block_scale(&r->records, zfi_float_of(largest));
}

/* The record of h of the n-th block, and its errors as floats; the bits of the largest of these. */
static int32_t zfi_feedback_end(zfi_feedback_run *r, int64_t n, uint8_t *record, float *e)
{
    const zfi_isa isa = zfi_cpu_of(r->launch)->isa;
    const zfi_blocks *b = &r->records;
    const bool reference = zfi_cpu_of(r->launch)->reference;
    const float *h = r->h + n * b->block;
    zfi_feedback *f = &r->of[n];
    f->by = f->scale > 0 ? 1 / f->scale : 0;
    if (reference || isnan(f->scale) || (f->scale > 0 && f->scale < FLT_MIN)) {
        const zf_array all = {r->h + n * b->block, ZF_F32, ZF_SHAPE(b->block)};
        float y[ZFI_BLOCK_MOST];
        if (reference) zfi_quantize_plain(b, record, &all, 0);
        else zfi_put_record(isa, b, record, ZF_F32, h, f->scale);
        if (isnan(f->scale)) return 0;
        zfi_dequantize_block(isa, b, ZF_F32, y, record, false);
        zfi_feedback_error(isa, e, h, y, f, b->block);
        return zfi_largest_f32(isa, e, b->block);
    }
    zfi_put_scale(b, record, f->scale);
    return zfi_put_feedback(isa, b, record + zf_dtype_size(b->scale), e, h, f);
}

/* Brings what zfi_feedback_begin reads of block k to the caches (always inline:
 * zfi_prefetch_bytes). */
ZFI_INLINE void zfi_prefetch_block(const zfi_feedback_run *r, int64_t k, const uint8_t *errors)
{
    const zf_array *x = &r->launch->args[0];
    const int64_t block = r->records.block, size = (int64_t)zf_dtype_size(x->dtype);
    zfi_prefetch_bytes(zfi_element(x->data, x->dtype, k * block), block * size);
    zfi_prefetch_bytes(errors, r->short_errors ? r->kept.record : block * (int64_t)sizeof(float));
}

/* Both kernels, the reference too, compute in f32: what is kept is exactly what was not sent. */
static void zfi_feedback_records(const zf_launch *l, int64_t first, int64_t last)
{
    const zfi_blocks b = zfi_blocks_of(l->attributes);
    const double beta = ZF_FLOAT(l, quantize_feedback, beta);
    const bool begins = zfi_begins_errors(l);
    const zfi_isa isa = zfi_cpu_of(l)->isa;
    zfi_feedback_run r;
    int32_t largest[ZFI_RUN_MOST];
    int64_t each;
    r.launch = l, r.records = b, r.kept = zfi_blocks_by(8, b.block, ZF_F32);
    r.short_errors = l->args[1].dtype == ZF_U8;
    r.loss =
        l->arg_count > ZFI_FEEDBACK_SCALE ? (float)zfi_get(&l->args[ZFI_FEEDBACK_SCALE], 0) : 1;
    each = r.short_errors ? r.kept.record : b.block * (int64_t)sizeof(float);
    for (int64_t n = 0; n < zfi_run_of(&b, last - first); n++)
        r.of[n] = (zfi_feedback){.beta = (float)beta, .rest = (float)(1 - beta) * (1 / r.loss)};
    for (int64_t run; first < last; first += run) {
        uint8_t *errors = (uint8_t *)l->args[1].data + first * each,
                *records = (uint8_t *)l->out.data + first * b.record;
        run = zfi_run_of(&b, last - first);
        if (begins) memset(errors, 0, (size_t)(run * each));
        for (int64_t n = 0; n < run; n++) zfi_feedback_begin(&r, n, first + n, errors + n * each);
        for (int64_t n = 0; n < run; n++) {
            if (last - first - run > n)
                zfi_prefetch_block(&r, first + run + n, errors + (run + n) * each);
            largest[n] = zfi_feedback_end(&r, n, records + n * b.record,
                                          r.short_errors ? r.e + n * b.block
                                                         : (float *)(void *)(errors + n * each));
        }
        for (int64_t n = 0; n < run && r.short_errors; n++)
            if (!isnan(r.of[n].scale))
                zfi_put_record(isa, &r.kept, errors + n * each, ZF_F32, r.e + n * b.block,
                               zfi_block_scale(&r.kept, zfi_float_of(largest[n])));
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

/* The result is larger than caches: what is written at its beginning is gone from them before its
 * end is. */
static bool zfi_passes_caches(const zf_array *out)
{
    enum { LEAST = 16 << 20 };
    return ZFI_X86 && zfi_array_bytes(out) >= LEAST;
}

static void zfi_dequantize_records(const zf_launch *l, int64_t first, int64_t last)
{
    const zfi_blocks b = zfi_blocks_of(l->attributes);
    const zfi_isa isa = zfi_cpu_of(l)->isa;
    const bool add = l->arg_count > 1 && l->run->micro > 0;
    const int64_t parts = zfi_parts_of(l), each = zfi_count(&l->out) / b.block;
    const bool past = !add && zfi_passes_caches(&l->out);
    const int64_t bytes = b.block * (int64_t)zf_dtype_size(l->out.dtype);
    _Alignas(64) float wide[ZFI_BLOCK_MOST];
    _Alignas(64) float aside[ZFI_BLOCK_MOST];
    for (int64_t k = first; k < last; k++) {
        const uint8_t *from = (const uint8_t *)l->args[0].data + k * b.record;
        void *out = zfi_element_of(l->out.data, l->out.dtype, k * b.block),
             *to = past ? aside : out;
        float *sum = l->out.dtype == ZF_F32 ? to : wide;
        if (!zfi_fast_or_half(l)) {
            for (int64_t i = 0; i < b.block; i++) zfi_dequantize_element(l, &b, k, i, add);
            continue;
        }
        if (l->out.dtype == ZF_BF16 && parts == 1 && !add) {
            zfi_dequantize_block(isa, &b, ZF_BF16, to, from, false);
        } else {
            if (add && sum == wide) zfi_widen(isa, wide, l->out.dtype, to, b.block);
            zfi_dequantize_parts(isa, &b, sum, from, each * b.record, parts, add);
            if (sum == wide) zfi_narrow(isa, to, l->out.dtype, wide, b.block);
        }
        if (past) zfi_copy_past_caches(isa, out, aside, bytes);
    }
    if (past) zfi_end_past_caches();
}

static zf_status zfi_cpu_quantize(const zf_launch *l)
{
    const int64_t block = ZF_INT(l, quantize, block);
    if (ZF_INT(l, quantize, once) && l->run->micro > 0) return ZF_OK;
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
    if (n < 0 || (n && (!records || !values))) return ZF_ERR_ARGUMENT;
    zfi_quantize_blocks(zfi_isa_best(), &b, records, ZF_F32, values, n);
    return ZF_OK;
}

ZF_API zf_status zf_dequantize_values(float *values, const void *records, size_t count,
                                      const zf_quantize_desc *desc)
{
    zfi_blocks b;
    const int64_t n = zfi_records_of(desc, count, &b);
    if (n < 0 || (n && (!records || !values))) return ZF_ERR_ARGUMENT;
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
             .holds = ZF_COMMUNICATION, .ranks = ZFI_RANKS_FORM,
             .cuts = "... k! -> ... r!",
             .traits = ZF_OP_READS_HALF)
ZFI_OPERATOR(quantize_feedback, .infer = zfi_infer_quantize_feedback, .grad = zfi_grad_none,
             .cpu = zfi_cpu_quantize_feedback, .writes = zfi_writes_errors,
             .bytes = zfi_bytes_with_errors, .holds = ZF_COMMUNICATION, .ranks = ZFI_RANKS_FORM,
             .traits = ZF_OP_MUTATES | ZF_OP_READS_HALF)
ZFI_OPERATOR(dequantize, .infer = zfi_infer_dequantize, .grad = zfi_grad_none,
             .cpu = zfi_cpu_dequantize, .holds = ZF_COMMUNICATION, .ranks = ZFI_RANKS_FORM,
             .cuts = "... r! -> ... k!",
             .traits = ZF_OP_READS_HALF)
ZFI_OPERATOR(dequantize_sum, .infer = zfi_infer_dequantize_sum, .grad = zfi_grad_none,
             .cpu = zfi_cpu_dequantize, .views = zfi_views_into, .writes = zfi_writes_into_1,
             .holds = ZF_COMMUNICATION, .ranks = ZFI_RANKS_SUM,
             .traits = ZF_OP_MUTATES | ZF_OP_READS_HALF)
