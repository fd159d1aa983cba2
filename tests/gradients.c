/* Gradients with respect to values that are no trained parameters: zf_output_gradient. */
#include "test.h"

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
