/* A model in nested expressions, whose arguments compilers evaluate in different orders: its
 * losses, and a checkpoint in the folder that is named. */
#include "zeroflow.h"

static zf_tensor linear(zf_tensor x, const char *name) { return zf_nn_linear(x, name, 24, NULL); }

static zf_tensor block(zf_tensor x, const char *a, const char *b)
{
    return zf_tanh(zf_add(zf_sub(zf_dropout(linear(x, a), 0.1), zf_dropout(x, 0.2)),
                          zf_mul(zf_dropout(linear(x, b), 0.3), zf_dropout(x, 0.2))));
}

int main(int argc, char **argv)
{
    zf_graph *g = zf_graph_new(NULL);
    zf_tensor x = zf_input(g, "x", ZF_F32, ZF_SHAPE(8, 24)),
              lr = zf_input(g, "lr", ZF_F32, ZF_SCALAR);
    zf_tensor y = zf_add(block(zf_add(linear(x, "c"), linear(x, "d")), "a", "b"), linear(x, "e"));
    zf_tensor loss =
        zf_output(zf_mean(zf_mul(zf_sub(y, block(linear(y, "f"), "g", "h")), y)), "error");
    zf_program *p;
    float values[8 * 24], rate = 0.01f, error;
    zf_fuse(g, NULL);
    zf_autograd(g, loss);
    zf_clip(g, 0.5);
    zf_adamw(g, lr, NULL);
    p = zf_compile(g, &(zf_compile_desc){.seed = 7});
    if (!p || argc != 2) {
        fprintf(stderr, "nested: %s\n", p ? "one folder is needed" : zf_graph_error(g));
        return 1;
    }
    printf("hash %016llx\n", (unsigned long long)zf_graph_hash(g));
    for (int step = 0; step < 4; step++) {
        for (int i = 0; i < 8 * 24; i++) values[i] = (float)((i * 5 + step) % 17 - 8) / 8;
        if (zf_write(p, x, values, sizeof values) || zf_write(p, lr, &rate, sizeof rate) ||
            zf_step(p) || zf_read(p, zf_graph_find(g, "error"), &error, sizeof error)) {
            fprintf(stderr, "nested: %s\n", zf_program_error(p));
            return 1;
        }
        printf("%a\n", (double)error);
    }
    if (zf_save(zf_program_store(p), argv[1], NULL)) {
        fprintf(stderr, "nested: %s\n", zf_store_error(zf_program_store(p)));
        return 1;
    }
    zf_program_free(p);
    zf_graph_free(g);
    return 0;
}
