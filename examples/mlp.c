/* Classifies points of two spirals with a small multilayer perceptron: layers, a fit to arrays, and
 * a second program that classifies points with the trained parameters.
 *
 *     cc -O2 -I. examples/mlp.c -o mlp -lm -lpthread && ./mlp
 */
#define ZEROFLOW_IMPLEMENTATION
#include "zeroflow.h"

#include <math.h>
#include <stdlib.h>

enum {
    POINTS = 2500,
    HELD_OUT = 500, /* points that are never trained on */
    EPOCHS = 48,
    WIDE = 64, /* size of the printed map, in characters */
    HIGH = 30
};

/* ------------------------------------------------------------------------------------ the data */

static float points[POINTS][2];
static int32_t arms[POINTS]; /* which spiral: 0 or 1 */

/* A number in [0, 1) and the next state (xorshift): the same points on every machine. */
static double uniform(uint32_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state / 4294967296.0;
}

/* Draws points of two arms, which turn one and a half times and are half a turn apart. */
static void draw_points(void)
{
    const double pi = 3.14159265358979323846;
    uint32_t state = 2463534242u;
    for (int i = 0; i < POINTS; i++) {
        double turn = sqrt(uniform(&state)), radius = turn + 0.15 * (uniform(&state) - 0.5), angle;
        arms[i] = uniform(&state) < 0.5;
        angle = 3 * pi * turn + pi * arms[i];
        points[i][0] = (float)(radius * cos(angle)), points[i][1] = (float)(radius * sin(angle));
    }
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

/* The loss of n points. */
static zf_tensor build(void *user, zf_graph *g, int64_t n)
{
    (void)user;
    return zf_cross_entropy(mlp(zf_input(g, "points", ZF_F32, ZF_SHAPE(n, 2))),
                            zf_input(g, "arms", ZF_I32, ZF_SHAPE(n)), ZF_NONE);
}

/* Classifies n points. A graph has a fixed number of points; the parameters are in the store. */
static zf_status classify(zf_store *store, const float (*at)[2], int64_t n, int32_t *arm,
                          zf_error *error)
{
    zf_graph *g = zf_graph_new(NULL);
    zf_tensor x = zf_input(g, "points", ZF_F32, ZF_SHAPE(n, 2));
    zf_tensor best = zf_output(zf_argmax_ex(mlp(x), &(zf_reduce_desc){.axis = -1}), "arm");
    zf_program *p =
        zf_compile(g, &(zf_compile_desc){.store = store, .must_exist = true, .evaluate = true});
    error->status = p ? ZF_OK : zf_graph_status(g);
    if (p && !(error->status = zf_write(p, x, at, (size_t)n * sizeof *at)) &&
        !(error->status = zf_step(p)))
        error->status = zf_read(p, best, arm, (size_t)n * sizeof *arm);
    snprintf(error->text, sizeof error->text, "%s", p ? zf_program_error(p) : zf_graph_error(g));
    zf_program_free(p); /* in reverse order of making; NULL is allowed */
    zf_graph_free(g);
    return error->status;
}

static bool report(void *user, zf_store *store, const zf_nn_progress *now)
{
    (void)user, (void)store;
    if (now->epoch_done && now->epoch % 8 == 0)
        printf("epoch %2d  loss %.4f  held out %.4f\n", (int)now->epoch, now->epoch_loss,
               now->held_out);
    return true; /* continue */
}

/* Prints a map of the predictions, and the share of held-out points that are classified
 * correctly. */
static zf_status show(zf_store *store, zf_error *error)
{
    static float cells[HIGH * WIDE][2];
    static int32_t arm[HIGH * WIDE];
    const float(*unseen)[2] = (const float(*)[2])points + POINTS - HELD_OUT;
    int right = 0;
    for (int i = 0; i < HIGH * WIDE; i++) {
        cells[i][0] = (float)(i % WIDE) * 2.2f / WIDE - 1.1f;
        cells[i][1] = 1.1f - (float)(i / WIDE) * 2.2f / HIGH;
    }
    if (classify(store, (const float(*)[2])cells, HIGH * WIDE, arm, error)) return error->status;
    for (int row = 0; row < HIGH; row++, putchar('\n'))
        for (int column = 0; column < WIDE; column++) putchar(arm[row * WIDE + column] ? '#' : '.');
    if (classify(store, unseen, HELD_OUT, arm, error)) return error->status;
    for (int i = 0; i < HELD_OUT; i++) right += arm[i] == arms[POINTS - HELD_OUT + i];
    printf("%.1f%% of %d unseen points are classified right\n", 100.0 * right / HELD_OUT, HELD_OUT);
    return ZF_OK;
}

/* ------------------------------------------------------------------------------------- the fit */

int main(void)
{
    zf_error error = {ZF_OK, ""};
    draw_points();
    zf_backend *cpu = zf_cpu_backend(&(zf_cpu_desc){.threads = 2}, &error);
    zf_store *store = zf_store_new(&(zf_store_desc){.backend = cpu, .seed = 1}, &error);
    if (cpu && store)
        zf_nn_fit(store,
                  &(zf_nn_fit_desc){.build = build,
                                    .fields = {{"points", points}, {"arms", arms}},
                                    .examples = POINTS,
                                    .held_out = HELD_OUT,
                                    .batch = 64,
                                    .epochs = EPOCHS,
                                    .schedule = {ZF_COSINE, .peak = 1e-2, .warmup = 50},
                                    .training = {.clip = 1, .adamw.weight_decay = 1e-4},
                                    .report = report},
                  &error);
    if (!error.status) show(store, &error);
    if (error.status) fprintf(stderr, "mlp: %s\n", error.text);
    zf_store_free(store);
    zf_backend_free(cpu);
    return error.status ? EXIT_FAILURE : EXIT_SUCCESS;
}
