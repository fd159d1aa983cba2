/* Around the parts of programs that docs/ shows (tests/docs/run.sh): a small classifier, and names
 * that the parts may use. PART is where their statements go. */
#define ZEROFLOW_IMPLEMENTATION
#include "zeroflow.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { EXAMPLES = 32, FEATURES = 4, CLASSES = 3, STEPS = 20 };

static float xs[EXAMPLES * FEATURES];
static int32_t ys[EXAMPLES];

/* The model of n examples: inputs "x" and "y"; the result is the loss. */
static zf_tensor build(zf_graph *g, int64_t n)
{
    zf_tensor x = zf_input(g, "x", ZF_F32, ZF_SHAPE(n, FEATURES));
    zf_tensor y = zf_input(g, "y", ZF_I32, ZF_SHAPE(n));
    zf_tensor h = zf_relu(zf_nn_linear(x, "hidden", 16, NULL));
    return zf_cross_entropy(zf_nn_linear(h, "out", CLASSES, NULL), y, ZF_NONE);
}

/* The same for zf_nn_fit. */
static zf_tensor build_of(void *user, zf_graph *g, int64_t n)
{
    (void)user;
    return build(g, n);
}

/* A line of zf_nn_fit. */
static void print_line(void *user, const char *text)
{
    (void)user;
    puts(text);
}

/* Writes the inputs of a program, and the learning rate where it has one. */
static void feed(zf_program *p, zf_graph *g)
{
    const float rate = 0.01f;
    zf_write(p, zf_graph_find(g, "x"), xs, sizeof xs);
    zf_write(p, zf_graph_find(g, "y"), ys, sizeof ys);
    if (zf_valid(zf_graph_find(g, "lr"))) zf_write(p, zf_graph_find(g, "lr"), &rate, sizeof rate);
}

static int part(zf_graph *g)
{
    zf_error error = {0};
    PART
    if (zf_graph_status(g)) fprintf(stderr, "%s\n", zf_graph_error(g));
    if (error.status) fprintf(stderr, "%s\n", error.text);
    return zf_graph_status(g) || error.status;
}

int main(void)
{
    for (int i = 0; i < EXAMPLES; i++) {
        ys[i] = i % CLASSES;
        for (int j = 0; j < FEATURES; j++)
            xs[i * FEATURES + j] = (float)((i * 7 + j * 3) % 5) * 0.2f + (j == ys[i]);
    }
    zf_graph *g = zf_graph_new(NULL);
    int status = part(g);
    (void)build_of, (void)feed, (void)print_line;
    return status;
}
