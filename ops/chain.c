/* chain: several elementwise nodes, each reading the one before, as one loop. Intermediate results
 * stay in the first-level cache.
 *
 *     %4 = chain %1, %2, %3 {program=[0,0,1, 24,3,0, 0,2,4] values=[0.1,7]} : f32[4,8]
 *
 *     r0 = %1   r1 = %2   r2 = %3     the registers: operands first,
 *     r3 = add r0, r1                 then the result of each instruction (code, a, b);
 *     r4 = dropout r3                 p is values[b], the stream values[b + 1]
 *     y  = add r2, r4                 the last one is the result of the node
 *
 * Codes are those of ZF_OPS. a and b are registers, except that b of scale is the index of
 * its factor in values, and b of an instruction with one operand is 0. Operands are floats of one
 * dtype. The first has the shape of the result; each other one has this shape, or one element, or
 * is [n], n being the last dimension.
 *
 * zf_fuse makes chains (passes/fuse/chain.c), after autograd only: there is no gradient.
 *
 * f32 and f64: the same bits as the nodes one by one, with the same masks of dropout. bf16 and f16:
 * only the result is rounded.
 *
 *     operands (pieces)  ->  instruction  ->  a piece in cache  ->  ...  ->  the result's piece
 */

/* How many registers an instruction reads. */
static int zfi_chain_registers(const zfi_instruction *code)
{
    return code->kind == ZF_CHAIN_BINARY || code->kind == ZF_CHAIN_GRADIENT ? 2 : 1;
}

enum {
    ZFI_CHAIN_OPERANDS = 8,
    ZFI_CHAIN_LONGEST = 16, /* elements; several such pieces fit into that cache */
    ZFI_CHAIN_PIECE = 512   /* elements; so many of several registers fit into the first-level
                             * cache */
};

/* The random stream that an element of values stands for; -1 where it is no stream. */
static int64_t zfi_chain_stream_of(double value)
{
    return value >= 0 && value <= UINT32_MAX && value == nearbyint(value) ? (int64_t)value : -1;
}

/* The last random stream that a chain draws from; -1 if it draws from none. */
static int64_t zfi_chain_stream(const zfi_node *node)
{
    const int64_t *program = ZF_LIST(node, chain, program).data;
    const double *values = ZF_LIST(node, chain, values).data;
    int64_t last = -1;
    for (int64_t k = 0; k < ZF_LIST(node, chain, program).count; k += 3)
        if (zfi_instructions[program[k]].kind == ZF_CHAIN_DROPOUT) {
            int64_t stream = zfi_chain_stream_of(values[program[k + 2] + 1]);
            if (stream > last) last = stream;
        }
    return last;
}

/* Checks instruction `index`; `registers`: the number of registers before it. */
static zf_status zfi_infer_instruction(zfi_infer *c, int64_t index, int64_t registers)
{
    const int64_t *at = (const int64_t *)ZF_LIST(c, chain, program).data + 3 * index;
    const double *values = ZF_LIST(c, chain, values).data;
    int64_t count = ZF_LIST(c, chain, values).count, code = at[0], a = at[1], b = at[2];
    if (code < 0 || code >= ZFI_COUNT(zfi_instructions))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "instruction %lld: there is no code %lld",
                              (long long)index, (long long)code);
    if (a < 0 || a >= registers ||
        (zfi_chain_registers(&zfi_instructions[code]) > 1 && (b < 0 || b >= registers)))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "instruction %lld reads registers %lld and %lld, but there are 0 to "
                              "%lld",
                              (long long)index, (long long)a, (long long)b,
                              (long long)registers - 1);
    switch (zfi_instructions[code].kind) {
    case ZF_CHAIN_SCALE:
        if (b >= 0 && b < count) return ZF_OK;
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "instruction %lld: there is no value %lld",
                              (long long)index, (long long)b);
    case ZF_CHAIN_DROPOUT:
        if (b < 0 || b >= count - 1)
            return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                                  "instruction %lld: p and stream are not values %lld and on",
                                  (long long)index, (long long)b);
        if (!(values[b] >= 0 && values[b] < 1))
            return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                                  "instruction %lld: p = %g must be at least 0 and below 1",
                                  (long long)index, values[b]);
        if (zfi_chain_stream_of(values[b + 1]) >= 0) return ZF_OK;
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "instruction %lld: stream %g must be 0 to 2^32 - 1, and whole",
                              (long long)index, values[b + 1]);
    default:
        if (zfi_chain_registers(&zfi_instructions[code]) > 1 || b == 0) return ZF_OK;
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "instruction %lld: b must be 0, not %lld",
                              (long long)index, (long long)b);
    }
}

/* A chain can read x: x has the shape, or one element, or is [n]. */
static bool zfi_chain_reads(const zf_shape *x, const zf_shape *shape)
{
    return zfi_same_shape(x, shape) || zf_shape_count(*x) == 1 ||
           (x->rank == 1 && shape->rank > 0 && x->dims[0] == zfi_last(shape));
}

static zf_status zfi_infer_chain(zfi_infer *c)
{
    zf_status status = zfi_infer_dtypes(c, true);
    int64_t count = ZF_LIST(c, chain, program).count;
    if (status) return status;
    zfi_infer_like(c, 0);
    for (int32_t k = 1; k < c->arg_count; k++)
        if (!zfi_chain_reads(&c->args[k]->shape, &c->shape))
            return zfi_infer_fail(c, ZF_ERR_SHAPE,
                                  "operand %d must have the shape of operand 0, one element, or "
                                  "be a vector over the last dimension",
                                  (int)k);
    if (count < 3 || count % 3 || count > 3 * ZFI_CHAIN_LONGEST)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "a program is 1 to %d times 3 numbers (code, a, b), not %lld",
                              ZFI_CHAIN_LONGEST, (long long)count);
    for (int64_t k = 0; k < count / 3 && !status; k++)
        status = zfi_infer_instruction(c, k, c->arg_count + k);
    return status;
}

/* ------------------------------------------------------------------------------ kernels */

/* An instruction as a launch of its operator. */
typedef struct zfi_chain_step {
    zf_launch launch;
    zf_attribute attributes[2];
    zf_array args[2];
    zfi_drop drop; /* of an instruction dropout */
    zf_chain_kind kind;
    int32_t a, b;
    int32_t slot; /* the piece in cache that takes the result */
} zfi_chain_step;

typedef struct zfi_chain {
    int32_t operands, count;
    int64_t period[ZFI_CHAIN_OPERANDS]; /* element i of the result reads element i % period */
    zfi_chain_step steps[ZFI_CHAIN_LONGEST];
} zfi_chain;

/* Gives every result a slot. The slot of a register is free from its last reader on, whose own
 * result can take it. */
static void zfi_chain_slots(zfi_chain *c)
{
    int32_t last[ZFI_CHAIN_OPERANDS + ZFI_CHAIN_LONGEST] = {0};
    uint32_t taken = 0;
    for (int32_t k = 0; k < c->count; k++)
        last[c->steps[k].a] = last[c->steps[k].b] = last[c->operands + k] = k;
    for (int32_t k = 0; k < c->count; k++) {
        for (int32_t r = 0; r < k; r++)
            if (last[c->operands + r] == k) taken &= ~(1u << c->steps[r].slot);
        while (taken >> c->steps[k].slot & 1) c->steps[k].slot++;
        if (last[c->operands + k] > k) taken |= 1u << c->steps[k].slot;
    }
}

static void zfi_chain_of(const zf_launch *l, zfi_chain *c)
{
    const int64_t *program = ZF_LIST(l, chain, program).data;
    const double *values = ZF_LIST(l, chain, values).data;
    c->operands = l->arg_count, c->count = (int32_t)(ZF_LIST(l, chain, program).count / 3);
    for (int32_t k = 0; k < c->operands; k++) c->period[k] = zfi_count(&l->args[k]);
    for (int32_t k = 0; k < c->count; k++, program += 3) {
        zfi_chain_step *s = &c->steps[k];
        const zfi_instruction *code = &zfi_instructions[program[0]];
        *s = (zfi_chain_step){.a = (int32_t)program[1]};
        s->kind = code->kind;
        s->b = zfi_chain_registers(code) > 1 ? (int32_t)program[2] : s->a;
        s->launch = (zf_launch){.op = code->op,
                                .arg_count = zfi_chain_registers(code),
                                .args = s->args,
                                .out = l->out,
                                .attributes = s->attributes,
                                .run = l->run,
                                .backend = l->backend};
        s->attributes[0].i = code->form;
        if (code->kind == ZF_CHAIN_SCALE) ZF_FLOAT(s, scale, by) = values[program[2]];
        if (code->kind != ZF_CHAIN_DROPOUT) continue;
        ZF_FLOAT(s, dropout, p) = values[program[2]];
        ZF_INT(s, dropout, stream) = zfi_chain_stream_of(values[program[2] + 1]);
        s->drop = zfi_drop_of(&s->launch);
    }
    zfi_chain_slots(c);
}

static double zfi_chain_value(const zfi_chain_step *s, int64_t i, double a, double b)
{
    if (s->kind != ZF_CHAIN_DROPOUT) return zfi_records[s->launch.op]->value(&s->launch, a, b);
    return s->launch.run->evaluate ? a : zfi_drop_value(&s->drop, i, a);
}

static void zfi_chain_reference(const zf_launch *l, int64_t first, int64_t last)
{
    double r[ZFI_CHAIN_OPERANDS + ZFI_CHAIN_LONGEST];
    zfi_chain c;
    zfi_chain_of(l, &c);
    for (int64_t i = first; i < last; i++) { /* out[i] */
        for (int32_t k = 0; k < c.operands; k++) r[k] = zfi_get(&l->args[k], i % c.period[k]);
        for (int32_t k = 0; k < c.count; k++)
            r[c.operands + k] = zfi_chain_value(&c.steps[k], i, r[c.steps[k].a], r[c.steps[k].b]);
        zfi_set(&l->out, i, r[c.operands + c.count - 1]);
    }
}

/* Elements [at, at + n) of an operand that repeats with `period`: in place, or copied. */
static const float *zfi_chain_read(const zf_launch *l, const zf_array *x, int64_t period,
                                   int64_t at, int64_t n, float *copy)
{
    at %= period;
    if (x->dtype == ZF_F32 && at + n <= period) return (const float *)x->data + at;
    for (int64_t done = 0, m; done < n; done += m, at = 0) {
        m = period - at < n - done ? period - at : n - done;
        zfi_widen(zfi_cpu_of(l)->isa, copy + done, x->dtype, zfi_element(x->data, x->dtype, at), m);
    }
    return copy;
}

/* A piece filled with the only element of an operand. */
static const float *zfi_chain_repeat(const zf_launch *l, const zf_array *x, float *copy)
{
    zfi_widen(zfi_cpu_of(l)->isa, copy, x->dtype, x->data, 1);
    for (int k = 1; k < ZFI_CHAIN_PIECE; k++) copy[k] = copy[0];
    return copy;
}

/* y = the instruction, for elements [at, at + n). y may be one of its operands. */
static void zfi_chain_run(zfi_chain_step *s, float *y, const float *const *r, int64_t at, int64_t n)
{
    const zfi_drop *d = &s->drop;
    const float *a = r[s->a], *b = r[s->b];
    if (s->kind != ZF_CHAIN_DROPOUT) {
        s->args[0].data = (void *)(uintptr_t)a, s->args[1].data = (void *)(uintptr_t)b;
        s->launch.out.data = y;
        zfi_records[s->launch.op]->piece(&s->launch, 0, n);
    } else if (!s->launch.run->evaluate)
        zfi_dropout(zfi_cpu_of(&s->launch)->isa, y, a, d->element + (uint64_t)at, n, d->threshold,
                    (float)d->scale, d->stream, d->step, d->seed);
    else if (y != a) memcpy(y, a, (size_t)n * sizeof *y);
}

/* Reads operands before it writes the result's piece, which may be the piece of an operand. */
static void zfi_chain_fast(const zf_launch *l, int64_t first, int64_t last)
{
    _Alignas(64) float copies[ZFI_CHAIN_OPERANDS][ZFI_CHAIN_PIECE];
    _Alignas(64) float slots[ZFI_CHAIN_LONGEST][ZFI_CHAIN_PIECE];
    const float *r[ZFI_CHAIN_OPERANDS + ZFI_CHAIN_LONGEST];
    bool wide = l->out.dtype == ZF_F32;
    zfi_chain c;
    zfi_chain_of(l, &c);
    for (int64_t at = first, n; at < last; at += n) {
        n = last - at < ZFI_CHAIN_PIECE ? last - at : ZFI_CHAIN_PIECE;
        for (int32_t k = 0; k < c.operands; k++)
            if (c.period[k] > 1)
                r[k] = zfi_chain_read(l, &l->args[k], c.period[k], at, n, copies[k]);
            else if (at == first) r[k] = zfi_chain_repeat(l, &l->args[k], copies[k]);
        for (int32_t k = 0; k < c.count; k++) {
            float *y = slots[c.steps[k].slot];
            if (wide && k == c.count - 1) y = (float *)l->out.data + at;
            zfi_chain_run(&c.steps[k], y, r, at, n);
            r[c.operands + k] = y;
        }
        if (!wide)
            zfi_narrow(zfi_cpu_of(l)->isa, zfi_element_of(l->out.data, l->out.dtype, at),
                       l->out.dtype, r[c.operands + c.count - 1], n);
    }
}

static zf_status zfi_cpu_chain(const zf_launch *l)
{
    zfi_split(l, zfi_count(&l->out), ZFI_GRAIN,
              zfi_fast_or_half(l) ? zfi_chain_fast : zfi_chain_reference);
    return ZF_OK;
}

/* Those of its instructions, each by the record of its operator. */
static double zfi_functions_chain(const zf_launch *l)
{
    const int64_t *program = ZF_LIST(l, chain, program).data;
    const double *values = ZF_LIST(l, chain, values).data;
    double all = 0;
    for (int64_t k = 0; k < ZF_LIST(l, chain, program).count; k += 3) {
        const zfi_instruction *code = &zfi_instructions[program[k]];
        zfi_chain_step s = {.launch = {.op = code->op, .out = l->out}};
        s.launch.attributes = s.attributes;
        s.attributes[0].i = code->form;
        if (code->kind == ZF_CHAIN_DROPOUT) ZF_FLOAT(&s, dropout, p) = values[program[k + 2]];
        all += zf_launch_functions(&s.launch);
    }
    return all;
}

/* ------------------------------------------------------------------------------- records */

ZFI_OPERATOR(chain, .infer = zfi_infer_chain, .cpu = zfi_cpu_chain, .stream = zfi_chain_stream,
             .functions = zfi_functions_chain,
             .traits = ZF_OP_INPLACE | ZF_OP_ELEMENTWISE | ZF_OP_RANDOM | ZF_OP_READS_HALF)
