/* A line through four points, and all of zeroflow on one page: build, rewrite, train, print.
 *
 *     cc -I. examples/hello.c -o hello -lm -lpthread
 */
#define ZEROFLOW_IMPLEMENTATION /* in one file of a program */
#include "zeroflow.h"

int main(void)
{
    const float xs[] = {0, 1, 2, 3}, ys[] = {1, 3, 5, 7}; /* y = 2x + 1 */
    float loss = 0, slope = 0, height = 0;

    /* Build: nothing is computed here. */
    zf_graph *g = zf_graph_new(NULL);
    zf_tensor x = zf_input(g, "x", ZF_F32, ZF_SHAPE(4));
    zf_tensor y = zf_input(g, "y", ZF_F32, ZF_SHAPE(4));
    zf_tensor a = zf_param(g, "slope", ZF_SCALAR, NULL);
    zf_tensor b = zf_param(g, "height", ZF_SCALAR, NULL);
    zf_tensor miss = zf_sub(zf_add(zf_mul(a, x), b), y);
    zf_tensor mean = zf_mean(zf_mul(miss, miss));

    /* Rewrite: gradients and updates become nodes too. The graph is printed after each pass. */
    zf_passes(g, &(zf_training){.loss = mean,
                                .lr = zf_constant(g, ZF_F32, ZF_SCALAR, 0.1),
                                .optimizer = ZF_SGD,
                                .print = stdout});

    /* Compile: places every value. If anything failed above, the graph has the error. */
    zf_program *p = zf_compile(g, NULL);
    if (!p) {
        fprintf(stderr, "hello: %s\n", g ? zf_graph_error(g) : "out of memory");
        return 1;
    }

    /* Run. */
    zf_write(p, x, xs, sizeof xs);
    zf_write(p, y, ys, sizeof ys);
    for (int step = 0; step < 200; step++) zf_step(p);
    zf_read(p, mean, &loss, sizeof loss);
    zf_read(p, a, &slope, sizeof slope);
    zf_read(p, b, &height, sizeof height);

    printf("y = %.3f x + %.3f, mean squared error %.1e\n", slope, height, loss);
    zf_program_free(p);
    zf_graph_free(g);
    return 0;
}
