/* Gradients with respect to values that are no trained parameters: zf_output_gradient. */
#include "../support/test.h"

enum { N = 3 };

/* loss = sum (tanh(x w) f)^2, of an input x, a trained w and a frozen f. */
static zf_tensor build(zf_graph *g, zf_tensor *middle)
{
    zf_tensor x = zf_input(g, "x", ZF_F32, ZF_SHAPE(N));
    zf_tensor w = zf_param(g, "w", ZF_SHAPE(N), &(zf_param_desc){.init = ZF_FILL, .value = 0.5});
    zf_tensor f = zf_param(g, "f", ZF_SHAPE(N),
                           &(zf_param_desc){.init = ZF_FILL, .value = 2, .frozen = true});
    zf_tensor y = *middle = zf_tanh(zf_mul(x, w)), z = zf_mul(y, f);
    return zf_sum(zf_mul(z, z));
}

/* One step of SGD at rate 1/8. */
static zf_program *run(test *t, zf_graph *g, zf_tensor loss)
{
    static const float x[N] = {-1, 0.25f, 2}, lr = 0.125f;
    zf_tensor rate = zf_input(g, "lr", ZF_F32, ZF_SCALAR);
    zf_program *p;
    zf_passes(g, &(zf_training){.loss = loss, .lr = rate, .optimizer = ZF_SGD});
    p = zf_compile(g, &(zf_compile_desc){.poison = true});
    if (p) test_defer(t, (test_cleanup *)zf_program_free, p);
    if (p) zf_write(p, zf_graph_find(g, "x"), x, sizeof x);
    if (p) zf_write(p, rate, &lr, sizeof lr);
    return p;
}

/* Each equals its formula; the frozen parameter stays, the trained one moves as without them. */
TEST(gradients_of_any_value)
{
    static const double x[N] = {-1, 0.25, 2};
    float dx[N], dy[N], df[N], w[N], f[N];
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    zf_tensor middle, loss;
    zf_program *p;
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    loss = build(g, &middle);
    zf_output_gradient(zf_graph_find(g, "x"), "dx");
    zf_output_gradient(middle, "dy");
    zf_output_gradient(zf_graph_find(g, "f"), "df");
    p = run(t, g, loss);
    OK(t, zf_graph_status(g), zf_graph_error(g));
    OK(t, zf_step(p), zf_program_error(p));
    OK(t, zf_read(p, zf_graph_find(g, "dx"), dx, sizeof dx), "dx");
    OK(t, zf_read(p, zf_graph_find(g, "dy"), dy, sizeof dy), "dy");
    OK(t, zf_read(p, zf_graph_find(g, "df"), df, sizeof df), "df");
    OK(t, zf_read(p, zf_graph_find(g, "w"), w, sizeof w), "w");
    OK(t, zf_read(p, zf_graph_find(g, "f"), f, sizeof f), "f");
    for (int k = 0; k < N; k++) {
        const double y = tanh(0.5 * x[k]), slope = 1 - y * y;
        CHECK_NEAR(t, dy[k], 8 * y, 1e-5);
        CHECK_NEAR(t, dx[k], 8 * y * slope * 0.5, 1e-5);
        CHECK_NEAR(t, df[k], 4 * y * y, 1e-5);
        CHECK_NEAR(t, w[k], 0.5 - 0.125 * 8 * y * slope * x[k], 1e-5);
        CHECK(t, f[k] == 2);
    }
}

/* The text of a graph keeps what is wanted. */
TEST(gradients_in_text)
{
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator}), *again;
    zf_error error = {ZF_OK, ""};
    char text[2000];
    zf_tensor middle;
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    zf_output(build(g, &middle), "loss");
    zf_output_gradient(middle, "dy");
    OK(t, zf_graph_status(g), zf_graph_error(g));
    CHECK(t, zf_graph_text(g, text, sizeof text) < sizeof text);
    CHECK(t, strstr(text, "\"dy\" role=wanted_gradient"));
    again = zf_graph_parse(text, strlen(text), &(zf_graph_desc){.allocator = t->allocator}, &error);
    NEED(t, again, &error);
    test_defer(t, (test_cleanup *)zf_graph_free, again);
    OK(t, zf_autograd(again, zf_graph_find(again, "loss")), zf_graph_error(again));
    CHECK(t, zf_graph_text(again, text, sizeof text) < sizeof text && !strstr(text, "wanted"));
}

TEST(gradients_that_cannot_be)
{
    static const char *const errors[] = {
        "zf_autograd: the loss does not depend on %",
        "output_gradient (gradients.c:",
        "it must come before zf_autograd",
        "whose",
    };
    for (int k = 0; k < 4; k++) {
        zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
        zf_tensor middle, loss, labels;
        NEED(t, g, NULL);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        loss = build(g, &middle), labels = zf_input(g, "labels", ZF_I32, ZF_SHAPE(N));
        if (k == 0) zf_output_gradient(zf_input(g, "other", ZF_F32, ZF_SHAPE(N)), "d");
        if (k == 1) zf_output_gradient(labels, "d");
        if (k == 3) zf_output_gradient(middle, "d");
        if (k < 3) zf_autograd(g, loss);
        if (k == 2) zf_output_gradient(middle, "d");
        if (k == 3) zf_memory(g, NULL);
        GIVES(t, zf_graph_status(g),
              k == 0   ? ZF_ERR_ARGUMENT
              : k == 1 ? ZF_ERR_DTYPE
                       : ZF_ERR_STAGE,
              zf_graph_error(g));
        if (k < 3) CHECK(t, strstr(zf_graph_error(g), errors[k]));
        else
            CHECK(t,
                  strstr(zf_graph_error(g), "the output \"d\" is the gradient of %") &&
                      strstr(zf_graph_error(g), ", which zf_autograd makes; it has not been run"));
    }
}

/* db of a^b is 0 where a is 0, also where a^b is infinite. */
TEST(gradients_of_powers_of_zero)
{
    static const double a[N] = {0, 2, 0}, b[N] = {-1, 3, 2};
    double db[N];
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    zf_tensor exponent, loss;
    zf_program *p;
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    exponent = zf_param(g, "b", ZF_SHAPE(N), &(zf_param_desc){.dtype = ZF_F64});
    loss = zf_pow(zf_values(g, ZF_F64, ZF_SHAPE(N), a), exponent);
    loss = zf_sum(zf_minimum(loss, zf_constant(g, ZF_F64, ZF_SCALAR, 10)));
    zf_output_gradient(exponent, "db");
    zf_autograd(g, loss);
    p = zf_compile(g, NULL);
    if (!p) OK(t, zf_graph_status(g), zf_graph_error(g));
    test_defer(t, (test_cleanup *)zf_program_free, p);
    OK(t, zf_write(p, zf_graph_find(g, "b"), b, sizeof b), zf_program_error(p));
    OK(t, zf_step(p), zf_program_error(p));
    OK(t, zf_read(p, zf_graph_find(g, "db"), db, sizeof db), "db");
    CHECK(t, db[0] == 0 && db[2] == 0);
    CHECK_NEAR(t, db[1], 8 * log(2), 1e-12);
}

/* What the gradient of an unrolled recurrent network of so many steps is made of. */
typedef struct made_of {
    int64_t nodes, elements, pads, concats;
} made_of;

static made_of unrolled(test *t, int64_t steps)
{
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    zf_tensor *x = calloc((size_t)steps, sizeof *x), h, w;
    made_of m = {0, 0, 0, 0};
    zf_node node;
    if (!g || !x) return zf_graph_free(g), free(x), m;
    w = zf_param(g, "w", ZF_SHAPE(4, 4), NULL);
    zf_unstack(zf_scale(zf_param(g, "x", ZF_SHAPE(2, steps, 4), NULL), 2), 1, (int32_t)steps, x);
    h = x[0];
    for (int64_t k = 1; k < steps; k++) x[k] = h = zf_tanh(zf_add(zf_matmul(h, w), x[k]));
    h = zf_stack(x, (int32_t)steps, 1);
    zf_autograd(g, zf_sum(zf_mul(h, h)));
    for (; zf_graph_node(g, (int32_t)m.nodes, &node); m.nodes++) {
        m.elements += node.effect ? 0 : zf_shape_count(node.shape);
        m.pads += node.op == ZF_OP_pad, m.concats += node.op == ZF_OP_concat;
    }
    if (zf_graph_status(g)) m.nodes = 0;
    zf_graph_free(g), free(x);
    return m;
}

/* The work of the gradient of slices grows with their number, not with its square. */
TEST(gradients_of_an_unrolled_network_are_linear)
{
    const made_of some = unrolled(t, 256), more = unrolled(t, 1024);
    if (!t->refused) CHECK(t, some.nodes && more.nodes);
    if (!some.nodes || !more.nodes) return;
    CHECK(t, !more.pads && more.concats == 2);
    CHECK(t, more.nodes > 4 * some.nodes - 100 && more.nodes < 4 * some.nodes + 100);
    CHECK(t, more.elements < 4 * some.elements + 1000);
}

/* Of slices that overlap, leave gaps, are equal, empty or of another axis: that of each element is
 * the number of times that it is read, with its weights. */
TEST(gradients_of_slices_that_overlap)
{
    static const struct {
        int axis, start, stop;
        double by;
    } slices[] = {{0, 0, 2, 1}, {0, 1, 4, 10},   {0, 5, 6, 100},     {0, 1, 4, 1000},
                  {1, 1, 2, 0.5}, {1, 2, 2, 1e4}, {0, 4, 5, 10000}, {1, 0, 1, 0.25}};
    enum { ROWS = 7, COLUMNS = 2, SLICES = sizeof slices / sizeof *slices };
    double expected[ROWS][COLUMNS] = {{0}}, got[ROWS][COLUMNS];
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    zf_tensor x, loss;
    zf_program *p;
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    x = zf_param(g, "x", ZF_SHAPE(ROWS, COLUMNS), &(zf_param_desc){.dtype = ZF_F64});
    loss = zf_scale(zf_sum(x), 0.125);
    for (int k = 0; k < SLICES; k++) {
        zf_tensor part = zf_slice(x, slices[k].axis, slices[k].start, slices[k].stop);
        loss = zf_add(loss, zf_scale(zf_sum(part), slices[k].by));
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < COLUMNS; j++) {
                const int at = slices[k].axis ? j : i;
                if (at >= slices[k].start && at < slices[k].stop) expected[i][j] += slices[k].by;
            }
    }
    OK(t, zf_autograd(g, loss), zf_graph_error(g));
    zf_output(zf_gradient(g, x), "dx");
    p = zf_compile(g, &(zf_compile_desc){.poison = true});
    NEED(t, p, NULL);
    test_defer(t, (test_cleanup *)zf_program_free, p);
    OK(t, zf_step(p), zf_program_error(p));
    OK(t, zf_read(p, zf_graph_find(g, "dx"), got, sizeof got), "dx");
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++) CHECK_NEAR(t, got[i][j], expected[i][j] + 0.125, 1e-9);
}
