/* Steps that leave out layers on a device: bits are the same launch by launch, as graphs and where
 * copies have queues, and numbers are near the CPU's. */
#include "../support/test.h"

#include <cuda_runtime_api.h>

#ifdef EMULATION
#include "../emulation/emulation.h"
#else
#define emulation_seed(seed) ((void)(seed))
#define emulation_report()   ""
#endif

enum { LAYERS = 3, ROWS = 2, TOKENS = 4, HIDDEN = 8, STEPS = 7, ROOM = 1 << 12 };

typedef struct kept {
    float values[ROOM];
    size_t count;
} kept;

static zf_graph *model(bool offload)
{
    zf_graph *g = zf_graph_new(NULL);
    zf_nn_encoder_desc d = {
        .heads = 2,
        .intermediate = 12,
        .dropout = 0.1,
        .pre_norm = true,
        .layer_drop = {.theta = 0.4, .gamma = 0.2, .halves = true, .layers = LAYERS}};
    zf_tensor x = zf_input(g, "x", ZF_F32, ZF_SHAPE(ROWS, TOKENS, HIDDEN));
    for (int64_t i = 0; i < LAYERS; i++) {
        zf_push(g, "layer.%d", (int)i);
        d.layer_drop.layer = i;
        x = zf_nn_encoder_block(x, ZF_NONE, &d);
        zf_pop(g);
    }
    x = zf_nn_linear(x, "out", 3, NULL);
    x = zf_mean(zf_mul(x, x));
    zf_output(x, "loss");
    zf_fuse(g, NULL);
    zf_autograd(g, x);
    zf_adamw(g, zf_constant(g, ZF_F32, ZF_SCALAR, 0.01), NULL);
    zf_fuse(g, NULL);
    zf_zero(g, &(zf_zero_desc){.world = 1, .micro_batches = 2});
    if (offload) zf_offload(g, &(zf_offload_desc){.optimizer = ZF_HOST});
    if (offload) zf_prefetch(g, &(zf_training){.prefetch = {.bytes = 1 << 20}});
    return g;
}

static zf_status part(zf_graph *g, zf_program *p, int n)
{
    static float x[ROWS * TOKENS * HIDDEN];
    zf_status status;
    for (int i = 0; i < ROWS * TOKENS * HIDDEN; i++)
        x[i] = (float)((i * 7 + n * 5) % 13) / 8 - 0.75f;
    status = zf_write(p, zf_graph_find(g, "x"), x, sizeof x);
    if (status) return status;
    return n % 2 ? zf_step(p) : zf_micro(p);
}

/* Losses of the steps, then parameters. */
static zf_status train(zf_graph *g, zf_program *p, kept *k)
{
    zf_status status = ZF_OK;
    k->count = STEPS;
    for (int n = 0; n < 2 * STEPS && !status; n++) {
        status = part(g, p, n);
        if (n % 2 && !status)
            status = zf_read(p, zf_graph_find(g, "loss"), &k->values[n / 2], sizeof(float));
    }
    for (int32_t i = 0; i < zf_param_count(g) && !status; i++) {
        const zf_tensor w = zf_param_at(g, i);
        if (k->count + zf_tensor_bytes(w) / sizeof(float) > ROOM) return ZF_ERR_LIMIT;
        status = zf_read(p, w, &k->values[k->count], zf_tensor_bytes(w));
        k->count += zf_tensor_bytes(w) / sizeof(float);
    }
    return status;
}

/* Trains on the backend. `captured`: then a step must not do without graphs. */
static bool run_on(test *t, zf_backend *backend, bool offload, bool captured, kept *k)
{
    zf_graph *g = model(offload);
    zf_program *p =
        zf_compile(g, &(zf_compile_desc){.backend = backend, .seed = 5, .verify = true});
    if (!p) test_fail(t, __FILE__, __LINE__, "compile", zf_graph_error(g));
    else if (train(g, p, k)) test_fail(t, __FILE__, __LINE__, "train", zf_program_error(p));
    else if (*emulation_report()) test_fail(t, __FILE__, __LINE__, "report", emulation_report());
#ifdef EMULATION
    if (p && captured) {
        emulation_refuse("cudaGraphLaunch", 0, cudaErrorInvalidValue);
        if (part(g, p, 0) != ZF_ERR_BACKEND || !strstr(zf_program_error(p), "cudaGraphLaunch"))
            test_fail(t, __FILE__, __LINE__, "no graph is launched", zf_program_error(p));
        emulation_refuse(NULL, 0, 0);
    }
#else
    (void)captured;
#endif
    zf_program_free(p);
    zf_graph_free(g);
    return !t->failed;
}

TEST_ONCE(cuda_left_out_layers_have_the_same_bits_as_graphs)
{
    static kept first, got, cpu;
    for (int way = 0; way < 4; way++) {
        zf_error error = {ZF_OK, ""};
        zf_backend *cuda = zf_cuda_backend(&(zf_cuda_desc){.no_graphs = way == 0}, &error);
        NEED(t, cuda, &error);
        emulation_seed((uint64_t)way);
        run_on(t, cuda, way == 3, way == 1 || way == 2, way ? &got : &first);
        zf_backend_free(cuda);
        if (t->failed) return;
        if (!way) continue;
        CHECK(t, got.count == first.count && got.count > 1000);
        CHECK(t, !memcmp(got.values, first.values, got.count * sizeof *got.values));
    }
    if (!run_on(t, NULL, false, false, &cpu)) return;
    CHECK(t, first.values[0] != first.values[STEPS - 1]);
    for (int step = 0; step < STEPS; step++)
        CHECK_NEAR(t, first.values[step], cpu.values[step], 1e-4 * cpu.values[step]);
}
