/* swiglu: silu(gate) * up (Shazeer 2020), in one node.
 *
 *     %3 = swiglu %1, %2 : f32[2,8,64]             y = g s(g) u, s = sigmoid
 *     %3 = swiglu %1 : f32[2,8,64]                 the packed form: rows of f32[2,8,128] hold g,
 *                                                  then u
 *     %6 = swiglu_grad %5, %1, %2 : f32[2,8,64]    dg = dy u s (1 + g (1 - s)); du is swiglu %1, %5
 *     %6 = swiglu_grad %5, %1 : f32[2,8,128]       the packed form: dg, then du of each row
 *
 * Saved: the operands. Neither silu(g) nor its gradient is in memory. */

/* A launch taken apart. Element i of y is computed from element zfi_swiglu_at of gate and, up_at
 * further, of up; the gradients have the same places. */
typedef struct zfi_swiglu {
    const zf_array *dy, *gate, *up; /* dy: NULL in the forward pass */
    int64_t n, row, up_at;          /* n: elements of a row of y, `row`: of gate */
    bool packed;
} zfi_swiglu;

static zfi_swiglu zfi_swiglu_of(const zf_launch *l)
{
    int32_t first = l->op == ZF_OP_swiglu_grad;
    zfi_swiglu s = {.dy = first ? &l->args[0] : NULL,
                    .gate = &l->args[first],
                    .up = &l->args[l->arg_count - 1],
                    .packed = l->arg_count == first + 1};
    s.row = s.packed ? zfi_last(&s.gate->shape) : zfi_count(s.gate);
    s.n = s.packed ? s.row / 2 : s.row;
    s.up_at = s.packed ? s.n : 0;
    return s;
}

static int64_t zfi_swiglu_at(const zfi_swiglu *s, int64_t i)
{
    return i / s->n * s->row + i % s->n;
}

/* Checks the operands from number `first` on: gate and up of one shape, or packed. c->shape becomes
 * the shape of y. */
static zf_status zfi_infer_gates(zfi_infer *c, int32_t first)
{
    const zfi_node *gate = c->args[first], *up = c->args[c->arg_count - 1];
    if (!zfi_is_float(gate->dtype) || gate->dtype != up->dtype)
        return zfi_infer_fail(c, ZF_ERR_DTYPE, "the operands must be float, of one dtype");
    c->dtype = gate->dtype, c->shape = gate->shape;
    if (c->arg_count > first + 1)
        return zfi_same_shape(&gate->shape, &up->shape)
                   ? ZF_OK
                   : zfi_infer_fail(c, ZF_ERR_SHAPE, "gate and up must have one shape");
    if (!gate->shape.rank || zfi_last(&gate->shape) % 2)
        return zfi_infer_fail(c, ZF_ERR_SHAPE,
                              "one operand holds gate and up: its last dimension must be even");
    c->shape.dims[c->shape.rank - 1] /= 2;
    return ZF_OK;
}

static zf_status zfi_infer_swiglu(zfi_infer *c) { return zfi_infer_gates(c, 0); }

static zf_status zfi_infer_swiglu_grad(zfi_infer *c)
{
    char type[ZFI_TYPE_TEXT];
    zf_status status = zfi_infer_gates(c, 1);
    if (status) return status;
    if (c->args[0]->dtype != c->dtype || !zfi_same_shape(&c->args[0]->shape, &c->shape))
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "operand 0, dy, must be %s",
                              zfi_type_text(type, c->dtype, &c->shape));
    c->shape = c->args[1]->shape;
    return ZF_OK;
}

static void zfi_grad_swiglu(zf_grad *c)
{
    if (c->count == 1) {
        c->dx[0] = zfi_op(swiglu_grad, NULL, c->dy, c->x[0]);
        return;
    }
    if (c->need[0]) c->dx[0] = zfi_op(swiglu_grad, NULL, c->dy, c->x[0], c->x[1]);
    if (c->need[1]) c->dx[1] = zfi_op(swiglu, NULL, c->x[0], c->dy);
}

static void zfi_swiglu_reference(const zf_launch *l, int64_t first, int64_t last)
{
    zfi_swiglu s = zfi_swiglu_of(l);
    for (int64_t i = first; i < last; i++) {
        int64_t at = zfi_swiglu_at(&s, i);
        double g = zfi_get(s.gate, at), u = zfi_get(s.up, at + s.up_at), by = zfi_sigmoid_f64(g);
        double dy = s.dy ? zfi_get(s.dy, i) : 0;
        if (!s.dy) zfi_set(&l->out, i, g * by * u);
        else zfi_set(&l->out, at, dy * u * zfi_silu_grad_f64(g));
        if (s.dy && s.packed) zfi_set(&l->out, at + s.up_at, dy * g * by);
    }
}

/* ------------------------------------------------------------------------------ fast kernels */

ZFI_BODY void zfi_swiglu_run_body(zfi_isa isa, float *y, const float *g, const float *u, int64_t n)
{
    ZFI_VECTOR
    for (int64_t i = 0; i < n; i++) y[i] = zfi_silu1(isa, g[i]) * u[i];
}
ZFI_KERNEL(zfi_swiglu_run, (float *y, const float *g, const float *u, int64_t n), (y, g, u, n))

/* A gradient may lie over an operand. */
ZFI_BODY void zfi_swiglu_back_body(zfi_isa isa, float *dg, float *du, const float *dy,
                                   const float *g, const float *u, int64_t n)
{
    ZFI_VECTOR
    for (int64_t i = 0; i < n; i++) {
        float d = dy[i], gate = g[i], up = u[i], by = zfi_sigmoid1(isa, gate);
        dg[i] = d * up * (by * zfi_fma(isa, gate, 1.0f - by, 1.0f));
        du[i] = d * (gate * by);
    }
}
ZFI_KERNEL(zfi_swiglu_back,
           (float *dg, float *du, const float *dy, const float *g, const float *u, int64_t n),
           (dg, du, dy, g, u, n))

static void zfi_swiglu_fast(const zf_launch *l, int64_t first, int64_t last)
{
    float aside[5][ZFI_CONVERT_RUN];
    zfi_swiglu s = zfi_swiglu_of(l);
    zfi_isa isa = zfi_cpu_of(l)->isa;
    for (int64_t i = first, n; i < last; i += n) {
        int64_t at = zfi_swiglu_at(&s, i), up_at = at + s.up_at;
        const float *g, *u, *dy;
        float *y, *du;
        n = zfi_min(zfi_min(last - i, s.n - i % s.n), ZFI_CONVERT_RUN);
        g = zfi_read_floats(isa, aside[0], s.gate, at, n);
        u = zfi_read_floats(isa, aside[1], s.up, up_at, n);
        if (!s.dy) {
            y = zfi_place_floats(aside[2], &l->out, i);
            zfi_swiglu_run(isa, y, g, u, n);
            zfi_write_floats(isa, &l->out, i, y, n);
            continue;
        }
        dy = zfi_read_floats(isa, aside[2], s.dy, i, n);
        y = zfi_place_floats(aside[3], &l->out, at);
        du = s.packed ? zfi_place_floats(aside[4], &l->out, up_at) : aside[4];
        zfi_swiglu_back(isa, y, du, dy, g, u, n);
        zfi_write_floats(isa, &l->out, at, y, n);
        if (s.packed) zfi_write_floats(isa, &l->out, up_at, du, n);
    }
}

static zf_status zfi_cpu_swiglu(const zf_launch *l)
{
    zfi_split(l, zfi_count(l->op == ZF_OP_swiglu ? &l->out : &l->args[0]), ZFI_GRAIN,
              zfi_fast_or_half(l) ? zfi_swiglu_fast : zfi_swiglu_reference);
    return ZF_OK;
}

/* A sigmoid for each gate. */
static double zfi_functions_swiglu(const zf_launch *l)
{
    return (double)zfi_count(l->op == ZF_OP_swiglu ? &l->out : &l->args[0]);
}

/* ------------------------------------------------------------------------------- records */

ZFI_OPERATOR(swiglu, .infer = zfi_infer_swiglu, .grad = zfi_grad_swiglu, .cpu = zfi_cpu_swiglu,
             .functions = zfi_functions_swiglu,
             .cuts = "... c! -> ... c! | ..., ... -> ...",
             .traits = ZF_OP_INPLACE | ZF_OP_READS_HALF)
ZFI_OPERATOR(swiglu_grad, .infer = zfi_infer_swiglu_grad, .cpu = zfi_cpu_swiglu,
             .functions = zfi_functions_swiglu,
             .cuts = "... c!, ... c! -> ... c! | ..., ..., ... -> ...",
             .linear_in = 1, .traits = ZF_OP_INPLACE | ZF_OP_READS_HALF)
