/* Leaves and marks: input, param, state, constant; output, gradient, advance.
 *
 *     %1 = input "x" : f32[4,8]               written before a step (zf_write)
 *     %2 = param "w" {init=normal b=0.02} : f32[8,8]
 *     %3 = state "adamw.step" : i64[]         changed by steps, saved in checkpoints
 *     %5 = param "w[4:8]" {row=4 rows=8} : f32[4,8]   rows 4 to 8 of "w" (zf_tile)
 *     %6 = param "w" {init=normal b=0.02 frozen=true bits=8 block=64 scale=bf16} : u8[8,132]
 *                                             8 x 128 numbers in records (quantize.c); first values
 *                                             are those of floats, quantised
 *     %7 = param "b" {rate=0.1 decay=0.5 beta1=0.8 beta2=0.99} : f32[4]     what its group gives it;
 *                                             no_decay: a decay of 0; optimizer=sgd: another one;
 *                                             constant: the rate itself, no factor
 *                                             (passes/optimizers/groups.c)
 *     %9 = state %2 "adamw.master/w" : f32[8,8]   starts with the values of the parameter %2
 *     %8 = param "t" {lazy=true} : f32[9,4]   a table of which only rows that are read are updated
 *     %4 = constant {values=[1]} : f32[4]     one value for all elements, or one for each
 *          output %9 "loss"                       %9 can be read after a step
 *          output %9, %8, %7 "loss"               the same; %9 is a ratio of sums over examples, %8
 *                                                 its divisor, and %7 the sum in that
 *          gradient %2, %8                        %8 is the gradient of the loss with respect to %2
 *          gradient %2, %8, %7                    of some rows of the table %2, which have the
 *                                                 numbers %7 (lazy_rows.c); %2 has lazy=true
 *          advance %3                             %3 += 1
 *          advance %3, %8                         the same unless %8 < 0
 */

static zf_status zfi_infer_leaf(zfi_infer *c)
{
    if (zf_dtype_size(c->dtype) == 0)
        return zfi_infer_fail(c, ZF_ERR_DTYPE, "%d is no dtype", (int)c->dtype);
    if (zf_shape_count(c->shape) < 0)
        return zfi_infer_fail(
            c, ZF_ERR_SHAPE,
            "a shape has 0 to %d dimensions, none negative, and fewer than 2^63 elements",
            ZF_MAX_RANK);
    return ZF_OK;
}

/* `value` is a number that the dtype can hold, or the dtype is float. */
static zf_status zfi_infer_value(const zfi_infer *c, double value)
{
    if (zfi_is_float(c->dtype) || isfinite(value)) return ZF_OK;
    return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "the value %g is no %s", value,
                          zf_dtype_name(c->dtype));
}

/* The largest magnitude that first values may have; they are drawn in f32. */
static double zfi_largest_first(zf_dtype dtype, int64_t init)
{
    return dtype == ZF_F16                       ? 65504
           : dtype == ZF_F64 && init == ZF_FILL ? DBL_MAX
           : dtype == ZF_BF16                    ? 0x1.fep127
                                                 : FLT_MAX;
}

/* A piece is rows of its tensor. */
static zf_status zfi_infer_cut(const zfi_infer *c, int64_t row, int64_t rows)
{
    const int64_t count = c->shape.rank ? c->shape.dims[0] : 0;
    if ((!row && !rows) || (count > 0 && row >= 0 && row <= rows - count)) return ZF_OK;
    return zfi_infer_fail(c, ZF_ERR_SHAPE, "%lld rows from %lld on do not lie within %lld rows",
                          (long long)count, (long long)row, (long long)rows);
}

static zf_status zfi_infer_input(zfi_infer *c) { return zfi_infer_leaf(c); }

static zf_status zfi_infer_state(zfi_infer *c)
{
    zf_status status = zfi_infer_leaf(c);
    if (!status) status = zfi_infer_value(c, ZF_FLOAT(c, state, value));
    if (!status) status = zfi_infer_cut(c, ZF_INT(c, state, row), ZF_INT(c, state, rows));
    if (status || !c->arg_count ||
        (c->args[0]->op == ZF_OP_param && zfi_is_float(c->dtype) &&
         zfi_same_shape(&c->args[0]->shape, &c->shape)))
        return status;
    return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                          "it can start as a param of its shape does, and must be float then");
}

/* Checks how numbers are quantised. */
static zf_status zfi_infer_quantized(const zfi_infer *c, int64_t bits, int64_t block, int64_t scale)
{
    if (zfi_are_blocks(bits, block, scale)) return ZF_OK;
    if (bits != 8 && bits != 4)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "bits is %lld; it must be 8 or 4",
                              (long long)bits);
    if (scale != ZF_F32 && scale != ZF_BF16)
        return zfi_infer_fail(c, ZF_ERR_DTYPE, "scale must be f32 or bf16");
    return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                          "block is %lld; it must be a multiple of %d, at most %d",
                          (long long)block, ZFI_BLOCK_LEAST, ZFI_BLOCK_MOST);
}

/* A parameter of records is frozen and whole. */
static zf_status zfi_infer_records_of(const zfi_infer *c)
{
    const int64_t bits = ZF_INT(c, param, bits), block = ZF_INT(c, param, block),
                  scale = ZF_INT(c, param, scale);
    const int64_t last = c->shape.rank > 0 ? c->shape.dims[c->shape.rank - 1] : 1;
    zf_status status = zfi_infer_quantized(c, bits, block, scale);
    if (status) return status;
    if (last % zfi_blocks_by(bits, block, scale).record)
        return zfi_infer_fail(c, ZF_ERR_SHAPE,
                              "the last dimension must be whole blocks of %lld numbers",
                              (long long)block);
    if (!ZF_INT(c, param, frozen) || ZF_INT(c, param, rows))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "a parameter of %lld bits is frozen, and no piece of another",
                              (long long)bits);
    return ZF_OK;
}

static zf_status zfi_infer_param(zfi_infer *c)
{
    int64_t init = ZF_INT(c, param, init);
    double a = ZF_FLOAT(c, param, a), b = ZF_FLOAT(c, param, b), most;
    const bool records = ZF_INT(c, param, bits) != 0;
    zf_status status = zfi_infer_leaf(c);
    if (!status && records) status = zfi_infer_records_of(c);
    if (status) return status;
    if (records ? c->dtype != ZF_U8 : !zfi_is_float(c->dtype))
        return zfi_infer_fail(c, ZF_ERR_DTYPE,
                              "a parameter is f32, bf16, f16 or f64, or with bits u8, not %s",
                              zf_dtype_name(c->dtype));
    if (init < ZF_ZEROS || init > ZF_UNIFORM)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "init %lld is none of zf_init", (long long)init);
    most = init > ZF_ONES ? zfi_largest_first(records ? ZF_F32 : c->dtype, init) : DBL_MAX;
    if (!(fabs(a) <= most) || !(fabs(b) <= most) ||
        ((init == ZF_NORMAL || init == ZF_TRUNCATED_NORMAL) && b < 0) ||
        (init == ZF_UNIFORM && a > b))
        return zfi_infer_fail(
            c, ZF_ERR_ARGUMENT,
            "init needs finite values (of %s at most %g), std >= 0 and low <= high",
            zf_dtype_name(c->dtype), most);
    if (!(ZF_FLOAT(c, param, rate) >= 0 && ZF_FLOAT(c, param, rate) < INFINITY) ||
        !(ZF_FLOAT(c, param, decay) >= 0 && ZF_FLOAT(c, param, decay) < INFINITY) ||
        !(ZF_FLOAT(c, param, beta1) >= 0 && ZF_FLOAT(c, param, beta1) < 1) ||
        !(ZF_FLOAT(c, param, beta2) >= 0 && ZF_FLOAT(c, param, beta2) < 1))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "rate and decay are 0 or above and finite, betas from 0 to below 1");
    return zfi_infer_cut(c, ZF_INT(c, param, row), ZF_INT(c, param, rows));
}

static zf_status zfi_infer_constant(zfi_infer *c)
{
    int64_t given = ZF_LIST(c, constant, values).count;
    zf_status status = zfi_infer_leaf(c);
    if (status) return status;
    if (given != 1 && given != zf_shape_count(c->shape))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "takes 1 value or as many as elements, %lld, not %lld",
                              (long long)zf_shape_count(c->shape), (long long)given);
    for (int64_t i = 0; i < given && !status; i++)
        status = zfi_infer_value(c, ((const double *)ZF_LIST(c, constant, values).data)[i]);
    return status;
}

/* Operands 1 and 2: of a ratio, the divisor and the sum in it (graph/parts.c). */
static zf_status zfi_infer_output(zfi_infer *c)
{
    for (int32_t k = 1; k < c->arg_count; k++)
        if (!zfi_is_number(c->args[k]) || !zfi_is_number(c->args[0]))
            return zfi_infer_fail(c, ZF_ERR_SHAPE,
                                  "a ratio, its divisor and the sum in it are one float each");
    return zfi_infer_like(c, 0);
}

/* Checks that operand k is the numbers of rows of a table, and operand 1 these rows' gradients: as
 * many rows of the table, unless that is a bucket. */
static zf_status zfi_infer_lazy(const zfi_infer *c, int32_t k)
{
    const zf_shape *rows = &c->args[k]->shape, *g = &c->args[1]->shape;
    zf_shape table = c->args[0]->shape;
    const bool flat = c->args[0]->op != ZF_OP_param;
    bool fits = zfi_is_integer(c->args[k]->dtype) && rows->rank == 1 && g->rank >= 1 &&
                g->dims[0] == rows->dims[0];
    if (fits && !flat && table.rank) table.dims[0] = rows->dims[0];
    if (fits && (flat || zfi_same_shape(&table, g)) && c->args[1]->dtype == c->args[0]->dtype)
        return ZF_OK;
    return zfi_infer_fail(c, ZF_ERR_SHAPE,
                          "operand %d must be the numbers of rows, i32 or i64 [n], and operand 1 n "
                          "rows of the table, of its dtype",
                          (int)k);
}

static zf_status zfi_infer_gradient(zfi_infer *c)
{
    if (c->arg_count > 2 && (c->args[0]->op == ZF_OP_bucket || c->args[0]->op == ZF_OP_param))
        return zfi_infer_lazy(c, 2);
    if (c->args[0]->op == ZF_OP_bucket) return zfi_infer_dtypes(c, true);
    if (c->args[0]->op != ZF_OP_param)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "operand 0 must be a param or a bucket");
    return zfi_infer_alike(c);
}

static zf_status zfi_infer_advance(zfi_infer *c)
{
    if (c->args[0]->op != ZF_OP_state || !zfi_is_integer(c->args[0]->dtype) ||
        c->args[0]->shape.rank)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "operand 0 must be a state i64[] or i32[]");
    if (c->arg_count > 1 && (!zfi_is_float(c->args[1]->dtype) || zfi_node_count(c->args[1]) != 1))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "operand 1 must be one float");
    return zfi_infer_like(c, 0);
}

/* Marks compute nothing. */
static zf_status zfi_cpu_nothing(const zf_launch *l)
{
    (void)l;
    return ZF_OK;
}

static zf_status zfi_cpu_advance(const zf_launch *l)
{
    if (l->arg_count > 1 && zfi_get(&l->args[1], 0) < 0) return ZF_OK;
    zfi_set(&l->args[0], 0, zfi_get(&l->args[0], 0) + 1);
    return ZF_OK;
}

static uint32_t zfi_writes_first(const zfi_node *node)
{
    (void)node;
    return 1;
}

/* ------------------------------------------------------------------------------- records */

ZFI_OPERATOR(input, .infer = zfi_infer_input, .grad = zfi_grad_none, .holds = ZF_INPUTS,
             .place = ZFI_PLACE_OF_INPUTS, .ranks = ZFI_RANKS_BATCH,
             .traits = ZF_OP_LEAF | ZF_OP_NAMED)
ZFI_OPERATOR(param, .infer = zfi_infer_param, .grad = zfi_grad_none, .holds = ZF_PARAMETERS,
             .place = ZFI_PLACE_OF_PARAMS, .ranks = ZFI_RANKS_ALIKE,
             .traits = ZF_OP_LEAF | ZF_OP_NAMED | ZF_OP_WRITABLE)
ZFI_OPERATOR(state, .infer = zfi_infer_state, .grad = zfi_grad_none, .holds = ZF_OPTIMIZER,
             .place = ZFI_PLACE_OF_STATES, .ranks = ZFI_RANKS_ALIKE,
             .traits = ZF_OP_LEAF | ZF_OP_NAMED | ZF_OP_WRITABLE | ZF_OP_ANYWHERE)
ZFI_OPERATOR(constant, .infer = zfi_infer_constant, .grad = zfi_grad_none, .holds = ZF_INPUTS,
             .place = ZFI_PLACE_OF_CONSTANTS, .ranks = ZFI_RANKS_KNOWN, .traits = ZF_OP_LEAF)
ZFI_OPERATOR(output, .infer = zfi_infer_output, .grad = zfi_grad_none,
             .traits = ZF_OP_EFFECT | ZF_OP_NAMED)
ZFI_OPERATOR(gradient, .infer = zfi_infer_gradient, .grad = zfi_grad_none,
             .traits = ZF_OP_EFFECT | ZF_OP_ANYWHERE)
ZFI_OPERATOR(advance, .infer = zfi_infer_advance, .grad = zfi_grad_none, .cpu = zfi_cpu_advance,
             .writes = zfi_writes_first, .traits = ZF_OP_EFFECT | ZF_OP_MUTATES)
