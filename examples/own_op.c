/* Two operators of the program's own, and a net that learns a sine with them.
 *
 *     cc -I. examples/own_op.c -o own_op -lm -lpthread
 *
 * snake is x + sin(x a)^2 / a, elementwise, for periodic functions (Ziyin et al. 2020). The library
 * has no sine, so its gradient is an operator too. unit_rows divides each row by its length; its
 * gradient uses the library's builders. */
#define ZEROFLOW_IMPLEMENTATION /* in one file of a program */
#include "zeroflow.h"

#include <math.h>

/* -------------------------------------------------------------------------------------- snake */

/* Elements [first, last): one piece of the work, on one of the backend's threads. */
static void snake_piece(const zf_launch *l, int64_t first, int64_t last)
{
    const float *x = l->args[0].data;
    float *y = l->out.data, a = (float)l->attributes[0].f;
    for (int64_t i = first; i < last; i++) {
        float s = sinf(a * x[i]);
        y[i] = x[i] + s * s / a;
    }
}

/* dx = dy (1 + sin(2 a x)) */
static void snake_grad_piece(const zf_launch *l, int64_t first, int64_t last)
{
    const float *dy = l->args[0].data, *x = l->args[1].data;
    float *dx = l->out.data, a = (float)l->attributes[0].f;
    for (int64_t i = first; i < last; i++) dx[i] = dy[i] * (1 + sinf(2 * a * x[i]));
}

static zf_status snake_run(const zf_launch *l)
{
    zf_launch_split(l, zf_shape_count(l->out.shape), 4096, snake_piece);
    return ZF_OK;
}

static zf_status snake_grad_run(const zf_launch *l)
{
    zf_launch_split(l, zf_shape_count(l->out.shape), 4096, snake_grad_piece);
    return ZF_OK;
}

static void snake_gradient(zf_grad *c)
{
    c->dx[0] = zf_apply(c->graph, "snake_grad", 2, (zf_tensor[]){c->dy, c->x[0]}, c->attributes);
}

/* The builder. */
static zf_tensor snake(zf_tensor x, double a)
{
    return zf_apply(x.graph, "snake", 1, &x, &(zf_attribute){.f = a});
}

/* ---------------------------------------------------------------------------------- unit_rows */

/* The operand has at least one dimension. This also checks what the library checks where infer is
 * NULL. */
static zf_status unit_rows_infer(zf_infer *c)
{
    if (c->dtype != ZF_F32 && c->dtype != ZF_BF16 && c->dtype != ZF_F16)
        return zf_infer_fail(c, ZF_ERR_DTYPE, "the operand must be f32, bf16 or f16");
    if (c->shape.rank < 1) return zf_infer_fail(c, ZF_ERR_SHAPE, "a scalar has no rows");
    return ZF_OK; /* c->dtype and c->shape are those of operand 0 */
}

static zf_status unit_rows_run(const zf_launch *l)
{
    const zf_shape shape = l->out.shape;
    const int64_t n = shape.dims[shape.rank - 1], count = zf_shape_count(shape);
    const float *x = l->args[0].data;
    float *y = l->out.data;
    for (int64_t row = 0; row < count; row += n) {
        double sum = 1e-12;
        for (int64_t i = row; i < row + n; i++) sum += (double)x[i] * x[i];
        for (int64_t i = row; i < row + n; i++) y[i] = (float)(x[i] / sqrt(sum));
    }
    return ZF_OK;
}

/* dx = (dy - y sum(dy y)) / |x| */
static void unit_rows_gradient(zf_grad *c)
{
    const zf_reduce_desc rows = {.axis = -1, .keep = true};
    zf_tensor x = c->x[0];
    zf_tensor across = zf_sub(c->dy, zf_mul(c->y, zf_sum_ex(zf_mul(c->dy, c->y), &rows)));
    zf_tensor squares = zf_sum_ex(zf_mul(x, x), &rows);
    zf_tensor least = zf_constant(c->graph, zf_tensor_dtype(x), ZF_SCALAR, 1e-12);
    c->dx[0] = zf_mul(across, zf_rsqrt(zf_add(squares, least)));
}

static zf_tensor unit_rows(zf_tensor x) { return zf_apply(x.graph, "unit_rows", 1, &x, NULL); }

/* ------------------------------------------------------------------------------------ program */

static const zf_operator operators[] = {
    {.name = "snake",
     .attributes = "a:f",
     .traits = ZF_OP_ELEMENTWISE | ZF_OP_INPLACE,
     .grad = snake_gradient,
     .cpu = snake_run},
    {.name = "snake_grad",
     .least = 2,
     .attributes = "a:f",
     .traits = ZF_OP_ELEMENTWISE | ZF_OP_INPLACE,
     .cpu = snake_grad_run},
    {.name = "unit_rows",
     .traits = ZF_OP_BY_ROWS | ZF_OP_INPLACE,
     .infer = unit_rows_infer,
     .grad = unit_rows_gradient,
     .cpu = unit_rows_run},
};

enum { EXAMPLES = 256, STEPS = 400 };

int main(void)
{
    static float xs[EXAMPLES], ys[EXAMPLES];
    float first = 0, last = 0;
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.operators = operators, .operator_count = 3});
    zf_tensor x = zf_input(g, "x", ZF_F32, ZF_SHAPE(EXAMPLES, 1));
    zf_tensor y = zf_input(g, "y", ZF_F32, ZF_SHAPE(EXAMPLES, 1));
    zf_tensor h = snake(zf_nn_linear(x, "in", 32, &(zf_nn_linear_desc){.std = 1}), 1.5);
    zf_tensor miss = zf_sub(zf_nn_linear(unit_rows(h), "out", 1, NULL), y);
    zf_tensor loss = zf_mean(zf_mul(miss, miss));
    zf_passes(g, &(zf_training){.loss = loss, .lr = zf_constant(g, ZF_F32, ZF_SCALAR, 0.02)});
    zf_graph_print(g, stdout);

    zf_program *p = zf_compile(g, NULL);
    if (!p) {
        fprintf(stderr, "own_op: %s\n", g ? zf_graph_error(g) : "out of memory");
        return 1;
    }
    for (int i = 0; i < EXAMPLES; i++) {
        xs[i] = 6.0f * (float)i / EXAMPLES - 3;
        ys[i] = sinf(2 * xs[i]);
    }
    zf_write(p, x, xs, sizeof xs);
    zf_write(p, y, ys, sizeof ys);
    for (int step = 0; step < STEPS; step++) {
        zf_step(p);
        zf_read(p, loss, step ? &last : &first, sizeof last);
    }
    if (*zf_program_error(p)) fprintf(stderr, "own_op: %s\n", zf_program_error(p));
    printf("mean squared error of the first step %.3f, of step %d %.5f\n", first, STEPS, last);
    zf_program_free(p);
    zf_graph_free(g);
    return 0;
}
