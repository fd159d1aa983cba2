// A C++17 program that calls the library, which a C file implements.
#include <zeroflow.h>

#include <cstdio>

int main()
{
    const float xs[2] = {0, 1}, ys[2] = {1, 3};
    float slope = 0;
    zf_adamw_desc desc = {};
    zf_graph *g = zf_graph_new(nullptr);
    zf_tensor x = zf_input(g, "x", ZF_F32, ZF_SHAPE(2));
    zf_tensor y = zf_input(g, "y", ZF_F32, ZF_SHAPE(2));
    zf_tensor a = zf_param(g, "a", ZF_SCALAR, nullptr);
    zf_tensor b = zf_param(g, "b", zf_shape_of(0, nullptr), nullptr);
    zf_tensor none = ZF_NONE, miss = zf_sub(zf_add(zf_mul(a, x), b), y);
    desc.beta2 = 0.99;
    if (none.graph || ZF_SHAPE(4, 8, 2u).rank != 3) return 1;
    zf_autograd(g, zf_mean(zf_mul(miss, miss)));
    zf_adamw(g, zf_constant(g, ZF_F32, zf_shape_of(0, nullptr), 0.05), &desc);
    zf_program *p = zf_compile(g, nullptr);
    bool good = p && !zf_write(p, x, xs, sizeof xs) && !zf_write(p, y, ys, sizeof ys);
    for (int step = 0; good && step < 1000; step++) good = !zf_step(p);
    good = good && !zf_read(p, a, &slope, sizeof slope);
    std::printf("slope %.2f\n", static_cast<double>(slope));
    zf_program_free(p);
    zf_graph_free(g);
    return !(good && slope > 1.99f && slope < 2.01f);
}
