/* Two spirals told apart by a small multilayer perceptron: layers, minibatches, AdamW with a
 * schedule, and a second graph that evaluates with the same parameters.
 *
 *     cc -O2 -I. examples/mlp.c -o mlp -lm -lpthread && ./mlp
 *
 * Two graphs are built by one function, because a graph is for one shape of input:
 *
 *     training    64 points a step -> loss, gradients, update
 *     evaluation  many points      -> class of each             (parameters: those of training)
 */
#define ZEROFLOW_IMPLEMENTATION
#include "zeroflow.h"

#include <math.h>
#include <stdlib.h>

enum {
    BATCH = 64,
    STEPS = 1500,
    TRAIN = 2000, /* points to learn from */
    TEST = 500,   /* points never trained on */
    WIDE = 64,    /* of the picture, in characters */
    HIGH = 30
};

typedef struct point {
    float at[2];
    int32_t arm; /* which spiral: 0 or 1 */
} point;

/* ------------------------------------------------------------------------------------ the data */

/* A number in [0, 1) and the next state (xorshift): the same points on every machine. */
static double uniform(uint32_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state / 4294967296.0;
}

/* A point of one of the arms, which turn one and a half times, half a turn apart. */
static point spiral(uint32_t *state)
{
    const double pi = 3.14159265358979323846;
    double turn = sqrt(uniform(state)), radius = turn + 0.15 * (uniform(state) - 0.5);
    int32_t arm = uniform(state) < 0.5;
    double angle = 3 * pi * turn + pi * arm;
    return (point){{(float)(radius * cos(angle)), (float)(radius * sin(angle))}, arm};
}

/* ----------------------------------------------------------------------------------- the model */

/* [n, 2] -> [n, 2]: a score for each arm. Parameters are named hidden.0.fc.weight, ... */
static zf_tensor mlp(zf_tensor x)
{
    const zf_nn_linear_desc wide = {.std = 0.3}; /* near sqrt(2 / 32): relu keeps the scale */
    for (int i = 0; i < 3; i++) {
        zf_push(x.graph, "hidden.%d", i);
        x = zf_relu(zf_nn_linear(x, "fc", 32, &wide));
        zf_pop(x.graph);
    }
    return zf_nn_linear(x, "scores", 2, NULL);
}

/* Prints the message of whatever failed; for main to end with. */
static int failed(const char *message)
{
    fprintf(stderr, "mlp: %s\n", message);
    return EXIT_FAILURE;
}

/* Compiles a graph of n points over the store's parameters and asks it for their classes. */
static int classify(zf_store *trained, const float (*points)[2], int64_t n, int32_t *arms)
{
    zf_graph *g = zf_graph_new(NULL);
    zf_tensor x = zf_input(g, "points", ZF_F32, ZF_SHAPE(n, 2));
    zf_tensor best = zf_output(zf_argmax_ex(mlp(x), &(zf_reduce_desc){.axis = -1}), "arm");
    zf_program *p = zf_compile(
        g, &(zf_compile_desc){.store = trained, .bound = true, .evaluate = true});
    int status = EXIT_SUCCESS;
    if (!p) status = failed(g ? zf_graph_error(g) : "out of memory");
    else if (zf_write(p, x, points, (size_t)n * sizeof *points) || zf_step(p) ||
             zf_read(p, best, arms, (size_t)n * sizeof *arms))
        status = failed(zf_program_error(p));
    zf_program_free(p); /* in reverse order of making; NULL is nothing */
    zf_graph_free(g);
    return status;
}

/* --------------------------------------------------------------------------------- the training */

int main(void)
{
    static point points[TRAIN + TEST];
    static float test[TEST][2], cells[HIGH * WIDE][2];
    static int32_t test_arms[TEST], cell_arms[HIGH * WIDE];
    uint32_t state = 2463534242u;
    int right = 0, status = EXIT_FAILURE;
    zf_error error = {ZF_OK, ""};
    for (int i = 0; i < TRAIN + TEST; i++) points[i] = spiral(&state);

    /* One backend, with its threads, serves every program. */
    zf_backend *cpu = zf_cpu_backend(&(zf_cpu_desc){.threads = 2}, &error);
    if (!cpu) return failed(error.text);

    /* Build: nothing is computed here. */
    zf_graph *g = zf_graph_new(NULL);
    zf_tensor x = zf_input(g, "points", ZF_F32, ZF_SHAPE(BATCH, 2));
    zf_tensor labels = zf_input(g, "arms", ZF_I32, ZF_SHAPE(BATCH));
    zf_tensor lr = zf_input(g, "lr", ZF_F32, ZF_SCALAR);
    zf_tensor loss = zf_cross_entropy(mlp(x), labels, ZF_NONE);

    /* Rewrite: append the gradient, bound its norm, append the update. Nobody asks these whether
     * they went well: the first mistake stays with the graph, and zf_compile returns NULL. */
    zf_autograd(g, loss);
    zf_clip(g, 1.0);
    zf_adamw(g, lr, &(zf_adamw_desc){.weight_decay = 1e-4});
    zf_program *p = zf_compile(g, &(zf_compile_desc){.backend = cpu, .seed = 1});
    if (!p) {
        failed(g ? zf_graph_error(g) : "out of memory");
        goto end;
    }
    zf_program_info info = zf_program_info_of(p);
    printf("%d parameters, %zu bytes for everything\n", (int)info.param_count, info.peak_bytes);

    /* Run. */
    const zf_schedule schedule = {.kind = ZF_COSINE, .peak = 1e-2, .warmup = 50, .steps = STEPS};
    for (int step = 0; step < STEPS; step++) {
        float batch[BATCH][2], rate = (float)zf_schedule_at(&schedule, step + 1), value;
        int32_t arms[BATCH];
        for (int b = 0; b < BATCH; b++) {
            const point *drawn = &points[(int)(TRAIN * uniform(&state))];
            batch[b][0] = drawn->at[0];
            batch[b][1] = drawn->at[1];
            arms[b] = drawn->arm;
        }
        if (zf_write(p, x, batch, sizeof batch) || zf_write(p, labels, arms, sizeof arms) ||
            zf_write(p, lr, &rate, sizeof rate) || zf_step(p) ||
            zf_read(p, loss, &value, sizeof value)) {
            failed(zf_program_error(p));
            goto end;
        }
        if ((step + 1) % 250 == 0) printf("step %4d  loss %.4f\n", step + 1, value);
    }

    /* What was learned: the class of each cell of a map, and of points that were never seen. */
    for (int i = 0; i < HIGH * WIDE; i++) {
        cells[i][0] = (float)(i % WIDE) * 2.2f / WIDE - 1.1f;
        cells[i][1] = 1.1f - (float)(i / WIDE) * 2.2f / HIGH;
    }
    for (int i = 0; i < TEST; i++)
        for (int axis = 0; axis < 2; axis++) test[i][axis] = points[TRAIN + i].at[axis];
    status = classify(zf_program_store(p), (const float(*)[2])cells, HIGH * WIDE, cell_arms);
    if (!status) status = classify(zf_program_store(p), (const float(*)[2])test, TEST, test_arms);
    if (status) goto end;
    for (int row = 0; row < HIGH; row++) {
        for (int column = 0; column < WIDE; column++)
            putchar(cell_arms[row * WIDE + column] ? '#' : '.');
        putchar('\n');
    }
    for (int i = 0; i < TEST; i++) right += test_arms[i] == points[TRAIN + i].arm;
    printf("%.1f%% of %d unseen points are told apart\n", 100.0 * right / TEST, TEST);

end:
    zf_program_free(p);
    zf_graph_free(g);
    zf_backend_free(cpu);
    return status;
}
