/* A program that uses the library as installed: draws a line through two points. Exit status 0: it
 * learned to. run.sh builds it in every way that the manual promises. */
#include <zeroflow.h>

int main(void)
{
    const float xs[2] = {0, 1}, ys[2] = {1, 3};
    float slope = 0, height = 0;
    bool good;
    zf_graph *g = zf_graph_new(NULL);
    zf_tensor x = zf_input(g, "x", ZF_F32, ZF_SHAPE(2));
    zf_tensor y = zf_input(g, "y", ZF_F32, ZF_SHAPE(2));
    zf_tensor a = zf_param(g, "a", ZF_SCALAR, NULL), b = zf_param(g, "b", ZF_SCALAR, NULL);
    zf_tensor miss = zf_sub(zf_add(zf_mul(a, x), b), y);
    zf_program *p;
    zf_autograd(g, zf_mean(zf_mul(miss, miss)));
    zf_sgd(g, zf_constant(g, ZF_F32, ZF_SCALAR, 0.3), NULL);
    p = zf_compile(g, NULL);
    good = p && !zf_write(p, x, xs, sizeof xs) && !zf_write(p, y, ys, sizeof ys);
    for (int step = 0; good && step < 500; step++) good = !zf_step(p);
    good = good && !zf_read(p, a, &slope, sizeof slope) && !zf_read(p, b, &height, sizeof height);
    if (!p) fprintf(stderr, "%s\n", zf_graph_error(g));
    printf("y = %.2f x + %.2f\n", slope, height);
    zf_program_free(p);
    zf_graph_free(g);
    return !(good && slope > 1.99f && slope < 2.01f && height > 0.99f && height < 1.01f);
}
