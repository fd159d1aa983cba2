/* Elementwise over two or three operands, broadcasting: add sub mul div maximum minimum equal less where.
 *
 *     %3 = add %1, %2 : f32[4,8]          out[i] = a[i] + b[i];   da = sum_to(dy), db = sum_to(dy)
 *     %5 = where %c, %a, %b : f32[4,8]    out[i] = c[i] ? a[i] : b[i]
 *
 * Nothing but the operands is saved. Division by zero and NaN follow IEEE 754; maximum and minimum give b where a is
 * NaN, and at a tie the gradient goes to a.
 */

static zf_status zfi_infer_broadcast(zfi_infer *c, int32_t first)
{
    c->shape = c->args[0]->shape;
    c->dtype = c->args[first]->dtype;
    for (int32_t k = first; k < c->arg_count; k++)
        if (c->args[k]->dtype != c->dtype)
            return zfi_infer_fail(c, ZF_ERR_DTYPE, "the operands must have one dtype (zf_cast converts)");
    for (int32_t k = 1; k < c->arg_count; k++) {
        zf_shape both;
        if (!zfi_broadcast_shape(&c->shape, &c->args[k]->shape, &both))
            return zfi_infer_fail(c, ZF_ERR_SHAPE, "the shapes do not broadcast: dimensions, aligned at the last, "
                                                   "must be equal or 1");
        c->shape = both;
    }
    return ZF_OK;
}

static zf_status zfi_infer_arithmetic(zfi_infer *c)
{
    if (c->args[0]->dtype == ZF_U8 || c->args[0]->dtype == ZF_BOOL)
        return zfi_infer_fail(c, ZF_ERR_DTYPE, "the operands must be float or integer");
    return zfi_infer_broadcast(c, 0);
}

#define zfi_infer_add     zfi_infer_arithmetic
#define zfi_infer_sub     zfi_infer_arithmetic
#define zfi_infer_mul     zfi_infer_arithmetic
#define zfi_infer_div     zfi_infer_arithmetic
#define zfi_infer_maximum zfi_infer_arithmetic
#define zfi_infer_minimum zfi_infer_arithmetic

static zf_status zfi_infer_compare(zfi_infer *c)
{
    zf_status status = zfi_infer_broadcast(c, 0);
    c->dtype = ZF_BOOL;
    return status;
}

#define zfi_infer_equal zfi_infer_compare
#define zfi_infer_less  zfi_infer_compare

static zf_status zfi_infer_where(zfi_infer *c)
{
    if (c->args[0]->dtype != ZF_BOOL && c->args[0]->dtype != ZF_U8)
        return zfi_infer_fail(c, ZF_ERR_DTYPE, "the condition must be bool or u8");
    return zfi_infer_broadcast(c, 1);
}

/* --------------------------------------------------------------------------- gradients */

static zf_tensor zfi_sum_like(zf_tensor dy, zf_tensor x) { return zf_sum_to(dy, zf_tensor_shape(x)); }

static void zfi_grad_add(zfi_grad *c)
{
    for (int k = 0; k < 2; k++)
        if (c->need[k]) c->dx[k] = zfi_sum_like(c->dy, c->x[k]);
}

static void zfi_grad_sub(zfi_grad *c)
{
    if (c->need[0]) c->dx[0] = zfi_sum_like(c->dy, c->x[0]);
    if (c->need[1]) c->dx[1] = zf_neg(zfi_sum_like(c->dy, c->x[1]));
}

static void zfi_grad_mul(zfi_grad *c)
{
    for (int k = 0; k < 2; k++)
        if (c->need[k]) c->dx[k] = zfi_sum_like(zf_mul(c->dy, c->x[1 - k]), c->x[k]);
}

/* da = dy / b, db = -dy y / b */
static void zfi_grad_div(zfi_grad *c)
{
    if (c->need[0]) c->dx[0] = zfi_sum_like(zf_div(c->dy, c->x[1]), c->x[0]);
    if (c->need[1]) c->dx[1] = zf_neg(zfi_sum_like(zf_div(zf_mul(c->dy, c->y), c->x[1]), c->x[1]));
}

/* dy to x[k] where `second` is false (k = 0) or true (k = 1). */
static void zfi_grad_choice(zfi_grad *c, zf_tensor second, const int operand[2])
{
    zf_tensor zero = zf_constant(c->graph, zf_tensor_dtype(c->dy), ZF_SCALAR, 0);
    if (c->need[operand[0]])
        c->dx[operand[0]] = zfi_sum_like(zf_where(second, zero, c->dy), c->x[operand[0]]);
    if (c->need[operand[1]])
        c->dx[operand[1]] = zfi_sum_like(zf_where(second, c->dy, zero), c->x[operand[1]]);
}

static void zfi_grad_maximum(zfi_grad *c) { zfi_grad_choice(c, zf_less(c->x[0], c->x[1]), (int[]){0, 1}); }
static void zfi_grad_minimum(zfi_grad *c) { zfi_grad_choice(c, zf_less(c->x[1], c->x[0]), (int[]){0, 1}); }
static void zfi_grad_where(zfi_grad *c) { zfi_grad_choice(c, c->x[0], (int[]){2, 1}); }

#define zfi_grad_equal zfi_grad_none
#define zfi_grad_less  zfi_grad_none

/* ------------------------------------------------------------------------------ kernels */

ZFI_INLINE double zfi_binary_value(zf_op op, double a, double b)
{
    switch (op) {
    case ZF_OP_add: return a + b;
    case ZF_OP_sub: return a - b;
    case ZF_OP_mul: return a * b;
    case ZF_OP_div: return a / b;
    case ZF_OP_maximum: return a > b ? a : b;
    case ZF_OP_minimum: return a < b ? a : b;
    case ZF_OP_equal: return a == b;
    case ZF_OP_less: return a < b;
    default: return 0;
    }
}

/* Integers in int64, where a double would not hold them; x / 0 is 0, overflow wraps. */
static int64_t zfi_binary_integer(zf_op op, int64_t a, int64_t b)
{
    switch (op) {
    case ZF_OP_add: return (int64_t)((uint64_t)a + (uint64_t)b);
    case ZF_OP_sub: return (int64_t)((uint64_t)a - (uint64_t)b);
    case ZF_OP_mul: return (int64_t)((uint64_t)a * (uint64_t)b);
    case ZF_OP_div: return b == 0 ? 0 : b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b;
    case ZF_OP_maximum: return a > b ? a : b;
    case ZF_OP_minimum: return a < b ? a : b;
    case ZF_OP_equal: return a == b;
    case ZF_OP_less: return a < b;
    default: return 0;
    }
}

static void zfi_binary_reference(const zf_launch *l, int64_t first, int64_t last)
{
    const zf_array *x = l->args;
    int64_t strides[3][ZF_MAX_RANK], at[3];
    for (int32_t k = 0; k < l->arg_count; k++) zfi_broadcast_strides(&x[k].shape, &l->out.shape, strides[k]);
    for (int64_t i = first; i < last; i++) {
        for (int32_t k = 0; k < l->arg_count; k++) at[k] = zfi_offset(i, &l->out.shape, strides[k]);
        if (l->op == ZF_OP_where) {
            int k = zfi_get(&x[0], at[0]) != 0.0 ? 1 : 2;
            if (zfi_is_integer(x[k].dtype)) zfi_set_integer(&l->out, i, zfi_get_integer(&x[k], at[k]));
            else zfi_set(&l->out, i, zfi_get(&x[k], at[k]));
        } else if (zfi_is_integer(x[0].dtype)) {
            zfi_set_integer(&l->out, i,
                            zfi_binary_integer(l->op, zfi_get_integer(&x[0], at[0]), zfi_get_integer(&x[1], at[1])));
        } else {
            zfi_set(&l->out, i, zfi_binary_value(l->op, zfi_get(&x[0], at[0]), zfi_get(&x[1], at[1])));
        }
    }
}

/* One run of n elements; an operand with step 0 is one repeated value. */
#define ZFI_RUN(expression)                                                                        \
    if (step_a && step_b) {                                                                        \
        ZFI_VECTOR                                                                                 \
        for (int64_t i = 0; i < n; i++) {                                                          \
            float p = a[i], q = b[i];                                                              \
            y[i] = expression;                                                                     \
        }                                                                                          \
    } else if (step_a) {                                                                           \
        float q = b[0];                                                                            \
        ZFI_VECTOR                                                                                 \
        for (int64_t i = 0; i < n; i++) {                                                          \
            float p = a[i];                                                                        \
            y[i] = expression;                                                                     \
        }                                                                                          \
    } else if (step_b) {                                                                           \
        float p = a[0];                                                                            \
        ZFI_VECTOR                                                                                 \
        for (int64_t i = 0; i < n; i++) {                                                          \
            float q = b[i];                                                                        \
            y[i] = expression;                                                                     \
        }                                                                                          \
    } else {                                                                                       \
        float p = a[0], q = b[0], value = expression;                                              \
        for (int64_t i = 0; i < n; i++) y[i] = value;                                              \
    }                                                                                              \
    break

ZFI_BODY void zfi_binary_run_body(zfi_isa isa, zf_op op, float *y, const float *a, const float *b, bool step_a,
                                  bool step_b, int64_t n)
{
    (void)isa;
    switch (op) {
    case ZF_OP_add: ZFI_RUN(p + q);
    case ZF_OP_sub: ZFI_RUN(p - q);
    case ZF_OP_mul: ZFI_RUN(p * q);
    case ZF_OP_div: ZFI_RUN(p / q);
    case ZF_OP_maximum: ZFI_RUN(p > q ? p : q);
    default: ZFI_RUN(p < q ? p : q);
    }
}
ZFI_KERNEL(zfi_binary_run,
           (zf_op op, float *y, const float *a, const float *b, bool step_a, bool step_b, int64_t n),
           (op, y, a, b, step_a, step_b, n))

/* The trailing dimensions over which each operand is either whole or one value: a run. Runs are split over threads. */
typedef struct zfi_runs {
    int64_t length, strides[2][ZF_MAX_RANK];
    zf_shape outer; /* the dimensions in front of a run */
    bool step[2];
} zfi_runs;

static zfi_runs zfi_runs_of(const zf_launch *l)
{
    zfi_runs r = {.length = 1, .outer = l->out.shape, .step = {true, true}};
    bool decided[2] = {false, false};
    for (int k = 0; k < 2; k++) zfi_broadcast_strides(&l->args[k].shape, &l->out.shape, r.strides[k]);
    while (r.outer.rank > 0) {
        int axis = r.outer.rank - 1;
        bool fits = true;
        if (r.outer.dims[axis] != 1) {
            for (int k = 0; k < 2; k++)
                if (decided[k] && r.step[k] != (r.strides[k][axis] != 0)) fits = false;
            if (!fits) break;
            for (int k = 0; k < 2; k++) r.step[k] = r.strides[k][axis] != 0, decided[k] = true;
        }
        r.length *= r.outer.dims[axis];
        r.outer.rank--;
    }
    return r;
}

/* Elements [first, last) of the output, cut at the ends of runs. */
static void zfi_binary_fast(const zf_launch *l, int64_t first, int64_t last)
{
    zfi_runs r = zfi_runs_of(l);
    const float *a = l->args[0].data, *b = l->args[1].data;
    float *y = l->out.data;
    while (first < last) {
        int64_t run = first / r.length, inside = first % r.length;
        int64_t n = r.length - inside < last - first ? r.length - inside : last - first;
        int64_t at_a = zfi_offset(run, &r.outer, r.strides[0]), at_b = zfi_offset(run, &r.outer, r.strides[1]);
        zfi_binary_run(zfi_cpu_of(l)->isa, l->op, y + first, a + at_a + (r.step[0] ? inside : 0),
                       b + at_b + (r.step[1] ? inside : 0), r.step[0], r.step[1], n);
        first += n;
    }
}

static zf_status zfi_cpu_arithmetic(const zf_launch *l)
{
    bool fast = zfi_fast(l) && l->out.dtype == ZF_F32;
    zfi_split(l, zfi_count(&l->out), ZFI_GRAIN, fast ? zfi_binary_fast : zfi_binary_reference);
    return ZF_OK;
}

static zf_status zfi_cpu_plain_binary(const zf_launch *l)
{
    zfi_split(l, zfi_count(&l->out), ZFI_GRAIN, zfi_binary_reference);
    return ZF_OK;
}

#define zfi_cpu_add     zfi_cpu_arithmetic
#define zfi_cpu_sub     zfi_cpu_arithmetic
#define zfi_cpu_mul     zfi_cpu_arithmetic
#define zfi_cpu_div     zfi_cpu_arithmetic
#define zfi_cpu_maximum zfi_cpu_arithmetic
#define zfi_cpu_minimum zfi_cpu_arithmetic
#define zfi_cpu_equal   zfi_cpu_plain_binary
#define zfi_cpu_less    zfi_cpu_plain_binary
#define zfi_cpu_where   zfi_cpu_plain_binary
