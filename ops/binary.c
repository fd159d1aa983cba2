/* Elementwise over two or three operands, broadcasting: add sub mul div maximum minimum pow equal
 * less where.
 *
 *     %3 = add %1, %2 : f32[4,8]          out[i] = a[i] + b[i];   da = sum_to(dy), db = sum_to(dy)
 *     %3 = pow %1, %2 : f32[4,8]          out[i] = a[i]^b[i];     da = dy b a^(b - 1), db = dy y ln a
 *     %3 = equal %1, %2 {negated=true} : bool[4,8]                a[i] != b[i]
 *     %3 = less %1, %2 {or_equal=true} : bool[4,8]                a[i] <= b[i]
 *     %5 = where %c, %a, %b : f32[4,8]    out[i] = c[i] ? a[i] : b[i]
 *
 * Saved: the operands, of pow also the result. maximum and minimum of bool are "or" and "and". pow is
 * computed in double and rounded once. Division by zero and NaN follow IEEE 754; maximum and minimum give b where a
 * is NaN, and at a tie the gradient goes to a. */

static zf_status zfi_infer_elementwise(zfi_infer *c, int32_t first)
{
    c->shape = c->args[0]->shape;
    c->dtype = c->args[first]->dtype;
    for (int32_t k = first; k < c->arg_count; k++)
        if (c->args[k]->dtype != c->dtype)
            return zfi_infer_fail(c, ZF_ERR_DTYPE,
                                  "the operands must have one dtype (zf_cast converts)");
    for (int32_t k = 1; k < c->arg_count; k++) {
        zf_shape both;
        if (!zfi_broadcast_shape(&c->shape, &c->args[k]->shape, &both))
            return zfi_infer_fail(c, ZF_ERR_SHAPE,
                                  "the shapes do not broadcast: dimensions, aligned at the last, "
                                  "must be equal or 1");
        c->shape = both;
    }
    return ZF_OK;
}

static zf_status zfi_infer_arithmetic(zfi_infer *c)
{
    if (c->args[0]->dtype == ZF_U8 || c->args[0]->dtype == ZF_BOOL)
        return zfi_infer_fail(c, ZF_ERR_DTYPE, "the operands must be float or integer");
    return zfi_infer_elementwise(c, 0);
}

static zf_status zfi_infer_pow(zfi_infer *c)
{
    const zf_status status = zfi_infer_dtypes(c, true);
    return status ? status : zfi_infer_elementwise(c, 0);
}

static zf_status zfi_infer_bounds(zfi_infer *c) { return zfi_infer_elementwise(c, 0); }

static zf_status zfi_infer_compare(zfi_infer *c)
{
    zf_status status = zfi_infer_elementwise(c, 0);
    c->dtype = ZF_BOOL;
    return status;
}

static zf_status zfi_infer_where(zfi_infer *c)
{
    if (c->args[0]->dtype != ZF_BOOL && c->args[0]->dtype != ZF_U8)
        return zfi_infer_fail(c, ZF_ERR_DTYPE, "the condition must be bool or u8");
    return zfi_infer_elementwise(c, 1);
}

/* --------------------------------------------------------------------------- gradients */

static zf_tensor zfi_sum_like(zf_tensor dy, zf_tensor x)
{
    return zf_sum_to(dy, zf_tensor_shape(x));
}

static void zfi_grad_add(zf_grad *c)
{
    for (int k = 0; k < 2; k++)
        if (c->need[k]) c->dx[k] = zfi_sum_like(c->dy, c->x[k]);
}

static void zfi_grad_sub(zf_grad *c)
{
    if (c->need[0]) c->dx[0] = zfi_sum_like(c->dy, c->x[0]);
    if (c->need[1]) c->dx[1] = zf_neg(zfi_sum_like(c->dy, c->x[1]));
}

static void zfi_grad_mul(zf_grad *c)
{
    for (int k = 0; k < 2; k++)
        if (c->need[k]) c->dx[k] = zfi_sum_like(zf_mul(c->dy, c->x[1 - k]), c->x[k]);
}

/* da = dy / b, db = -dy y / b */
static void zfi_grad_div(zf_grad *c)
{
    if (c->need[0]) c->dx[0] = zfi_sum_like(zf_div(c->dy, c->x[1]), c->x[0]);
    if (c->need[1]) c->dx[1] = zf_neg(zfi_sum_like(zf_div(zf_mul(c->dy, c->y), c->x[1]), c->x[1]));
}

/* Gives dy to x[0] where `second` is false, to x[1] where it is true. */
static void zfi_grad_choice(zf_grad *c, zf_tensor second, const int operand[2])
{
    zf_tensor zero = zf_constant(c->graph, zf_tensor_dtype(c->dy), ZF_SCALAR, 0);
    if (c->need[operand[0]])
        c->dx[operand[0]] = zfi_sum_like(zf_where(second, zero, c->dy), c->x[operand[0]]);
    if (c->need[operand[1]])
        c->dx[operand[1]] = zfi_sum_like(zf_where(second, c->dy, zero), c->x[operand[1]]);
}

static void zfi_grad_maximum(zf_grad *c)
{
    zfi_grad_choice(c, zf_less(c->x[0], c->x[1]), (int[]){0, 1});
}
static void zfi_grad_minimum(zf_grad *c)
{
    zfi_grad_choice(c, zf_less(c->x[1], c->x[0]), (int[]){0, 1});
}

/* Neither gradient has the NaN of 0 times infinity: they are 0 where b, or a, is 0. */
static void zfi_grad_pow(zf_grad *c)
{
    const zf_dtype dtype = zf_tensor_dtype(c->y);
    const zf_tensor a = c->x[0], b = c->x[1], zero = zf_constant(c->graph, dtype, ZF_SCALAR, 0),
                    one = zf_constant(c->graph, dtype, ZF_SCALAR, 1);
    if (c->need[0]) {
        const zf_tensor slope = zf_mul(b, zf_pow(a, zf_sub(b, one)));
        c->dx[0] = zfi_sum_like(zf_mul(c->dy, zf_where(zf_not(b), zero, slope)), a);
    }
    if (c->need[1]) {
        const zf_tensor none = zf_not(a), slope = zf_mul(c->y, zf_log(zf_where(none, one, a)));
        c->dx[1] = zfi_sum_like(zf_mul(c->dy, zf_where(none, zero, slope)), b);
    }
}

static void zfi_grad_where(zf_grad *c) { zfi_grad_choice(c, c->x[0], (int[]){2, 1}); }

/* ------------------------------------------------------------------------------ kernels */

/* The attribute of equal and less, which is the first. */
static bool zfi_compares_other(const zf_launch *l)
{
    return l->out.dtype == ZF_BOOL && ZF_INT(l, equal, negated) != 0;
}

ZFI_INLINE double zfi_binary_value(zf_op op, double a, double b, bool other)
{
    switch (op) {
    case ZF_OP_add: return a + b;
    case ZF_OP_sub: return a - b;
    case ZF_OP_mul: return a * b;
    case ZF_OP_div: return a / b;
    case ZF_OP_maximum: return a > b ? a : b;
    case ZF_OP_minimum: return a < b ? a : b;
    case ZF_OP_pow: return pow(a, b);
    case ZF_OP_equal: return (a == b) != other;
    case ZF_OP_less: return other ? a <= b : a < b;
    default: return 0;
    }
}

/* Integers are computed in int64, since a double does not hold all of them. x / 0 is 0; overflow
 * wraps. */
static int64_t zfi_binary_integer(zf_op op, int64_t a, int64_t b, bool other)
{
    switch (op) {
    case ZF_OP_add: return (int64_t)((uint64_t)a + (uint64_t)b);
    case ZF_OP_sub: return (int64_t)((uint64_t)a - (uint64_t)b);
    case ZF_OP_mul: return (int64_t)((uint64_t)a * (uint64_t)b);
    case ZF_OP_div: return b == 0 ? 0 : b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b;
    case ZF_OP_maximum: return a > b ? a : b;
    case ZF_OP_minimum: return a < b ? a : b;
    case ZF_OP_equal: return (a == b) != other;
    case ZF_OP_less: return other ? a <= b : a < b;
    default: return 0;
    }
}

static void zfi_binary_reference(const zf_launch *l, int64_t first, int64_t last)
{
    const zf_array *x = l->args;
    const bool other = l->op != ZF_OP_where && zfi_compares_other(l);
    int64_t strides[3][ZF_MAX_RANK], at[3];
    for (int32_t k = 0; k < l->arg_count; k++)
        zfi_broadcast_strides(&x[k].shape, &l->out.shape, strides[k]);
    for (int64_t i = first; i < last; i++) {
        for (int32_t k = 0; k < l->arg_count; k++) at[k] = zfi_offset(i, &l->out.shape, strides[k]);
        if (l->op == ZF_OP_where) {
            int k = zfi_get(&x[0], at[0]) != 0.0 ? 1 : 2;
            if (zfi_is_integer(x[k].dtype))
                zfi_set_integer(&l->out, i, zfi_get_integer(&x[k], at[k]));
            else zfi_set(&l->out, i, zfi_get(&x[k], at[k]));
        } else if (zfi_is_integer(x[0].dtype)) {
            zfi_set_integer(&l->out, i,
                            zfi_binary_integer(l->op, zfi_get_integer(&x[0], at[0]),
                                               zfi_get_integer(&x[1], at[1]), other));
        } else {
            zfi_set(&l->out, i,
                    zfi_binary_value(l->op, zfi_get(&x[0], at[0]), zfi_get(&x[1], at[1]), other));
        }
    }
}

/* Positions in up to three arrays while an index runs over dims[0..rank) in row-major order.
 * Strides are in elements. */
typedef struct zfi_walk {
    int rank, arrays;
    int64_t dims[ZF_MAX_RANK], strides[3][ZF_MAX_RANK];
    int64_t index[ZF_MAX_RANK], at[3];
} zfi_walk;

/* Goes to position number `position`. All dims must be positive. */
static void zfi_walk_seek(zfi_walk *w, int64_t position)
{
    for (int k = 0; k < w->arrays; k++) w->at[k] = 0;
    for (int axis = w->rank - 1; axis >= 0; axis--) {
        w->index[axis] = position % w->dims[axis];
        position /= w->dims[axis];
        for (int k = 0; k < w->arrays; k++) w->at[k] += w->index[axis] * w->strides[k][axis];
    }
}

/* Goes to the next position; from the last one to the first. */
static void zfi_walk_next(zfi_walk *w)
{
    for (int axis = w->rank - 1; axis >= 0; axis--) {
        bool carry = ++w->index[axis] == w->dims[axis];
        for (int k = 0; k < w->arrays; k++)
            w->at[k] += w->strides[k][axis] - (carry ? w->dims[axis] * w->strides[k][axis] : 0);
        if (!carry) return;
        w->index[axis] = 0;
    }
}

/* One run of n elements. p and q are the steps of a and b: 1, or 0 for one repeated value. */
#define ZFI_RUN(expression)                                                                        \
    {                                                                                              \
        if (step_a && step_b) {                                                                    \
            ZFI_VECTOR                                                                             \
            for (int64_t i = 0; i < n; i++) {                                                      \
                float p = a[i], q = b[i];                                                          \
                y[i] = expression;                                                                 \
            }                                                                                      \
        } else if (step_a) {                                                                       \
            float q = b[0];                                                                        \
            ZFI_VECTOR                                                                             \
            for (int64_t i = 0; i < n; i++) {                                                      \
                float p = a[i];                                                                    \
                y[i] = expression;                                                                 \
            }                                                                                      \
        } else if (step_b) {                                                                       \
            float p = a[0];                                                                        \
            ZFI_VECTOR                                                                             \
            for (int64_t i = 0; i < n; i++) {                                                      \
                float q = b[i];                                                                    \
                y[i] = expression;                                                                 \
            }                                                                                      \
        } else {                                                                                   \
            float p = a[0], q = b[0];                                                              \
            ZFI_VECTOR                                                                             \
            for (int64_t i = 0; i < n; i++) y[i] = expression;                                     \
        }                                                                                          \
    }

ZFI_BODY void zfi_binary_run_body(zfi_isa isa, zf_op op, float *y, const float *a, const float *b,
                                  bool step_a, bool step_b, int64_t n)
{
    (void)isa;
    if (op == ZF_OP_add) ZFI_RUN(p + q)
    else if (op == ZF_OP_sub) ZFI_RUN(p - q)
    else if (op == ZF_OP_mul) ZFI_RUN(p * q)
    else if (op == ZF_OP_div) ZFI_RUN(p / q)
    else if (op == ZF_OP_maximum) ZFI_RUN(p > q ? p : q)
    else if (op == ZF_OP_pow) ZFI_RUN((float)pow(p, q))
    else ZFI_RUN(p < q ? p : q)
}
ZFI_KERNEL(zfi_binary_run,
           (zf_op op, float *y, const float *a, const float *b, bool step_a, bool step_b,
            int64_t n),
           (op, y, a, b, step_a, step_b, n))

/* other: != and <= instead of == and <. */
ZFI_BODY void zfi_compare_run_body(zfi_isa isa, zf_op op, bool other, uint8_t *y, const float *a,
                                   const float *b, bool step_a, bool step_b, int64_t n)
{
    (void)isa;
    if (op == ZF_OP_equal) ZFI_RUN((p == q) != other)
    else if (other) ZFI_RUN(p <= q)
    else ZFI_RUN(p < q)
}
ZFI_KERNEL(zfi_compare_run,
           (zf_op op, bool other, uint8_t *y, const float *a, const float *b, bool step_a,
            bool step_b, int64_t n),
           (op, other, y, a, b, step_a, step_b, n))

ZFI_BODY void zfi_where_run_body(zfi_isa isa, float *y, const uint8_t *c, const float *a,
                                 const float *b, bool step_c, bool step_a, bool step_b, int64_t n)
{
    bool all = c[0] != 0;
    (void)isa;
    if (step_c) ZFI_RUN(c[i] ? p : q)
    else ZFI_RUN(all ? p : q)
}
ZFI_KERNEL(zfi_where_run,
           (float *y, const uint8_t *c, const float *a, const float *b, bool step_c, bool step_a,
            bool step_b, int64_t n),
           (y, c, a, b, step_c, step_a, step_b, n))

/* The trailing dimensions in which every operand is either whole or one repeated value form a run.
 * `outer` walks over the runs. */
typedef struct zfi_elementwise {
    int64_t length;
    zfi_walk outer;
    bool step[3];
} zfi_elementwise;

static zfi_elementwise zfi_elementwise_of(const zf_launch *l)
{
    zfi_elementwise r = {.length = 1, .outer = {.rank = l->out.shape.rank, .arrays = l->arg_count}};
    zfi_walk *w = &r.outer;
    bool decided = false;
    memcpy(w->dims, l->out.shape.dims, sizeof w->dims);
    for (int k = 0; k < w->arrays; k++)
        zfi_broadcast_strides(&l->args[k].shape, &l->out.shape, w->strides[k]);
    for (; w->rank > 0; w->rank--) {
        int axis = w->rank - 1;
        bool fits = true;
        if (w->dims[axis] == 1) continue;
        for (int k = 0; k < w->arrays; k++) {
            bool steps = w->strides[k][axis] != 0;
            if (decided && steps != r.step[k]) fits = false;
            else r.step[k] = steps;
        }
        if (!fits) break;
        decided = true;
        r.length *= w->dims[axis];
    }
    return r;
}

/* Elements [first, last) of the output, run by run. */
static void zfi_binary_fast(const zf_launch *l, int64_t first, int64_t last)
{
    zfi_isa isa = zfi_cpu_of(l)->isa;
    zfi_elementwise r = zfi_elementwise_of(l);
    bool choose = l->op == ZF_OP_where;
    const float *a = l->args[choose].data, *b = l->args[1 + choose].data;
    int64_t inside = first % r.length;
    zfi_walk_seek(&r.outer, first / r.length);
    for (; first < last; inside = 0, zfi_walk_next(&r.outer)) {
        int64_t n = r.length - inside < last - first ? r.length - inside : last - first, at[3];
        for (int k = 0; k < r.outer.arrays; k++) at[k] = r.outer.at[k] + (r.step[k] ? inside : 0);
        if (choose)
            zfi_where_run(isa, (float *)l->out.data + first,
                          (const uint8_t *)l->args[0].data + at[0], a + at[1], b + at[2], r.step[0],
                          r.step[1], r.step[2], n);
        else if (l->out.dtype == ZF_BOOL)
            zfi_compare_run(isa, l->op, zfi_compares_other(l), (uint8_t *)l->out.data + first,
                            a + at[0], b + at[1], r.step[0], r.step[1], n);
        else
            zfi_binary_run(isa, l->op, (float *)l->out.data + first, a + at[0], b + at[1],
                           r.step[0], r.step[1], n);
        first += n;
    }
}

/* As instructions of a chain. */
static double zfi_value_binary(const zf_launch *l, double a, double b)
{
    return zfi_binary_value(l->op, a, b, false);
}

static void zfi_piece_binary(const zf_launch *l, int64_t first, int64_t last)
{
    zfi_binary_run(zfi_cpu_of(l)->isa, l->op, (float *)l->out.data + first,
                   (const float *)l->args[0].data + first, (const float *)l->args[1].data + first,
                   true, true, last - first);
}

static zf_status zfi_cpu_binary(const zf_launch *l)
{
    bool fast = zfi_fast(l) && l->args[l->arg_count - 1].dtype == ZF_F32;
    zfi_split(l, zfi_count(&l->out), ZFI_GRAIN, fast ? zfi_binary_fast : zfi_binary_reference);
    return ZF_OK;
}

/* ----------------------------------------------------------------------------- simplify */

/* x * 1 is x. */
static int32_t zfi_same_mul(zf_graph *g, int32_t id, bool written)
{
    const zfi_node *node = &g->nodes[id];
    double value;
    (void)written;
    for (int k = 0; k < 2; k++)
        if (zfi_uniform(g, node->args[1 - k], &value) && value == 1 &&
            zfi_same_shape(&g->nodes[node->args[k]].shape, &node->shape))
            return node->args[k];
    return id;
}

/* x / 1 and x - 0 are x. */
static int32_t zfi_same_div(zf_graph *g, int32_t id, bool written)
{
    const zfi_node *node = &g->nodes[id];
    double value, neutral = node->op == ZF_OP_div;
    (void)written;
    return zfi_same_type(g, node->args[0], id) && zfi_uniform(g, node->args[1], &value) &&
                   value == neutral && !signbit(value)
               ? node->args[0]
               : id;
}

/* ------------------------------------------------------------------------------- records */

ZFI_OPERATOR(add, .infer = zfi_infer_arithmetic, .grad = zfi_grad_add, .cpu = zfi_cpu_binary,
             .value = zfi_value_binary, .piece = zfi_piece_binary, .functions = zfi_functions_none,
             .parts = ZFI_PARTS_ADDED, .traits = ZF_OP_INPLACE | ZF_OP_ELEMENTWISE | ZF_OP_FOLDABLE)
ZFI_OPERATOR(sub, .infer = zfi_infer_arithmetic, .grad = zfi_grad_sub, .cpu = zfi_cpu_binary,
             .value = zfi_value_binary, .piece = zfi_piece_binary, .same = zfi_same_div,
             .functions = zfi_functions_none,
             .parts = ZFI_PARTS_ADDED, .traits = ZF_OP_INPLACE | ZF_OP_ELEMENTWISE | ZF_OP_FOLDABLE)
ZFI_OPERATOR(mul, .infer = zfi_infer_arithmetic, .grad = zfi_grad_mul, .cpu = zfi_cpu_binary,
             .value = zfi_value_binary, .piece = zfi_piece_binary, .same = zfi_same_mul,
             .functions = zfi_functions_none, .parts = ZFI_PARTS_MULTIPLIED,
             .traits = ZF_OP_INPLACE | ZF_OP_ELEMENTWISE | ZF_OP_FOLDABLE)
ZFI_OPERATOR(div, .infer = zfi_infer_arithmetic, .grad = zfi_grad_div, .cpu = zfi_cpu_binary,
             .value = zfi_value_binary, .piece = zfi_piece_binary, .same = zfi_same_div,
             .functions = zfi_functions_none, .parts = ZFI_PARTS_DIVIDED,
             .traits = ZF_OP_INPLACE | ZF_OP_ELEMENTWISE | ZF_OP_FOLDABLE)
ZFI_OPERATOR(maximum, .infer = zfi_infer_bounds, .grad = zfi_grad_maximum,
             .cpu = zfi_cpu_binary, .value = zfi_value_binary, .piece = zfi_piece_binary,
             .functions = zfi_functions_none, .parts = ZFI_PARTS_BOUNDED,
             .traits = ZF_OP_INPLACE | ZF_OP_ELEMENTWISE | ZF_OP_FOLDABLE)
ZFI_OPERATOR(minimum, .infer = zfi_infer_bounds, .grad = zfi_grad_minimum,
             .cpu = zfi_cpu_binary, .value = zfi_value_binary, .piece = zfi_piece_binary,
             .functions = zfi_functions_none,
             .traits = ZF_OP_INPLACE | ZF_OP_ELEMENTWISE | ZF_OP_FOLDABLE)
ZFI_OPERATOR(pow, .infer = zfi_infer_pow, .grad = zfi_grad_pow, .cpu = zfi_cpu_binary,
             .functions = zfi_functions_each,
             .traits = ZF_OP_INPLACE | ZF_OP_ELEMENTWISE | ZF_OP_WANTS_F32)
_Static_assert((int)ZF_AT_less_or_equal == (int)ZF_AT_equal_negated, "they are read as one");
ZFI_OPERATOR(equal, .infer = zfi_infer_compare, .grad = zfi_grad_none, .cpu = zfi_cpu_binary,
             .functions = zfi_functions_none, .traits = ZF_OP_ELEMENTWISE | ZF_OP_COMPARES)
ZFI_OPERATOR(less, .infer = zfi_infer_compare, .grad = zfi_grad_none, .cpu = zfi_cpu_binary,
             .functions = zfi_functions_none, .traits = ZF_OP_ELEMENTWISE | ZF_OP_COMPARES)
ZFI_OPERATOR(where, .infer = zfi_infer_where, .grad = zfi_grad_where, .cpu = zfi_cpu_binary,
             .functions = zfi_functions_none, .traits = ZF_OP_INPLACE | ZF_OP_ELEMENTWISE)
