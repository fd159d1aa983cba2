/* The programs of examples/models against PyTorch (tests/golden/models/make.py): losses of four
 * steps and the parameters after them, and the same bits on one rank and on four at stage 3. */
#define MODEL_WITHOUT_MAIN
#include "../../examples/models/autoencoder.c"
#include "../../examples/models/clip.c"
#include "../../examples/models/cnn.c"
#include "../../examples/models/diffusion.c"
#include "../../examples/models/encoder_decoder.c"
#include "../../examples/models/gru.c"
#include "../../examples/models/two_towers.c"
#include "../../examples/models/vit.c"

#include "../support/golden.h"

enum { STEPS = 4, PARTS = 4, MOST_VALUES = 1 << 12 };

/* A model on ranks that run in turns; world * micro is PARTS, or 1. */
typedef struct session {
    const model *model;
    zf_safetensors *golden;
    int32_t world, stage;
    int64_t micro;
    zf_comm comms[PARTS];
    zf_graph *graphs[PARTS];
    zf_program *programs[PARTS];
    zf_error error;
} session;

static void close_session(void *object)
{
    session *s = object;
    for (int k = PARTS; k-- > 0;) zf_program_free(s->programs[k]);
    for (int k = PARTS; k-- > 0;) zf_graph_free(s->graphs[k]);
    memset(s, 0, sizeof *s);
}

/* Writes elements of a golden tensor, from `part` of so many parts. */
static zf_status write_part(session *s, int32_t rank, zf_tensor to, const char *name, int64_t part,
                            int64_t parts)
{
    const size_t count = (size_t)zf_shape_count(zf_tensor_shape(to));
    double raw[MOST_VALUES], *x;
    int64_t golden = 0;
    zf_status status = ZF_ERR_SHAPE;
    x = values_of(s->golden, name, &golden);
    if (x && count <= MOST_VALUES && golden == (int64_t)count * parts) {
        zf_convert(raw, zf_tensor_dtype(to), x + (int64_t)count * part, ZF_F64, count);
        status = zf_write(s->programs[rank], to, raw, zf_tensor_bytes(to));
    } else {
        snprintf(s->error.text, sizeof s->error.text, "%.200s has %d values, not %d times %d", name,
                 (int)golden, (int)count, (int)parts);
    }
    free(x);
    return status;
}

/* Writes the first parameters, or the inputs of a part of the batch. */
static zf_status write_all(session *s, int32_t rank, bool inputs, int64_t part)
{
    zf_graph *g = s->graphs[rank];
    const float lr = 0.01f;
    zf_status status = zf_write(s->programs[rank], zf_graph_find(g, "lr"), &lr, sizeof lr);
    zf_node node;
    for (int32_t k = 0; !inputs && k < zf_param_count(g) && !status; k++) {
        const zf_tensor param = zf_param_at(g, k);
        status = write_part(s, rank, param, zf_tensor_name(param), 0, 1);
    }
    for (int32_t i = 0; inputs && !status && zf_graph_node(g, i, &node); i++) {
        char name[80];
        snprintf(name, sizeof name, "input.%.60s", node.name);
        if (node.op == ZF_OP_input && strcmp(node.name, "lr"))
            status =
                write_part(s, rank, zf_graph_find(g, node.name), name, part, s->world * s->micro);
    }
    return status;
}

static zf_status open_rank(session *s, int32_t rank)
{
    zf_graph *g = s->graphs[rank] = zf_graph_new(NULL);
    const zf_tensor loss = s->model->loss(g, s->model->batch / (s->world * s->micro));
    s->comms[rank] = (zf_comm){.rank = rank, .world = s->world};
    zf_passes(g, &(zf_training){
                     .loss = loss,
                     .adamw.eps = 1e-3,
                     .zero = {.stage = s->stage, .world = s->world, .micro_batches = s->micro}});
    s->programs[rank] = zf_compile(
        g, &(zf_compile_desc){.comm = s->world > 1 ? &s->comms[rank] : NULL, .verify = true});
    if (s->programs[rank]) return write_all(s, rank, false, 0);
    snprintf(s->error.text, sizeof s->error.text, "%s", zf_graph_error(g));
    return zf_graph_status(g);
}

/* Trains STEPS steps; losses: of each. */
static zf_status train(session *s, float losses[STEPS])
{
    const zf_lockstep_desc d = {s->programs, s->world, 0};
    zf_status status = ZF_OK;
    for (int32_t rank = 0; rank < s->world && !status; rank++) status = open_rank(s, rank);
    for (int step = 0; step < STEPS && !status; step++) {
        for (int64_t micro = 0; micro < s->micro && !status; micro++) {
            for (int32_t rank = 0; rank < s->world && !status; rank++)
                status = write_all(s, rank, true, micro * s->world + rank);
            if (status) break;
            status = micro + 1 < s->micro ? zf_lockstep_micro(&d, &s->error)
                                          : zf_lockstep_step(&d, &s->error);
        }
        if (!status)
            status = zf_read(s->programs[0], zf_graph_find(s->graphs[0], "loss"), &losses[step],
                             sizeof *losses);
    }
    return status;
}

/* A parameter after the steps, as all ranks have it. */
static zf_status read_param(session *s, const char *name, float *x, size_t bytes)
{
    const zf_lockstep_desc d = {s->programs, s->world, 0};
    return zf_lockstep_read(&d, name, x, bytes, &s->error);
}

static double miss_of(const float *got, const double *golden, int64_t count)
{
    double most = 0, largest = 0;
    for (int64_t i = 0; i < count; i++) {
        most = fmax(most, fabs(got[i] - golden[i]));
        largest = fmax(largest, fabs(golden[i]));
    }
    return most / largest;
}

/* The parameters are those of PyTorch; or, with `same`, have the bits of another session. */
static void check_params(test *t, session *s, session *same)
{
    static float x[MOST_VALUES], other[MOST_VALUES];
    for (int32_t k = 0; k < zf_param_count(s->graphs[0]); k++) {
        const char *name = zf_tensor_name(zf_param_at(s->graphs[0], k));
        char after[300];
        int64_t count = 0;
        double *golden;
        snprintf(after, sizeof after, "after.%.200s", name);
        golden = values_of(s->golden, after, &count);
        CHECK(t, golden && count <= MOST_VALUES);
        OK(t, read_param(s, name, x, (size_t)count * sizeof *x), s->error.text);
        if (!same && golden && miss_of(x, golden, count) > 2e-5)
            test_fail(t, __FILE__, __LINE__, "a parameter is not PyTorch's", name);
        free(golden);
        if (!same) continue;
        OK(t, read_param(same, name, other, (size_t)count * sizeof *x), same->error.text);
        if (memcmp(x, other, (size_t)count * sizeof *x))
            test_fail(t, __FILE__, __LINE__, "a parameter has other bits", name);
    }
}

/* The model on one rank, on four at stage 3, and in parts, whose bits are those of the four: as
 * micro-batches of one rank; or, where a loss is of the examples of all ranks, on four at stage
 * 0. */
static void check_model_in(test *t, const model *m, session parted)
{
    static session whole, parts, ranks;
    float losses[3][STEPS];
    char path[100];
    int64_t count = 0;
    zf_safetensors *golden;
    double *expected;
    snprintf(path, sizeof path, "tests/golden/models/%s.safetensors", m->name);
    golden = open_file(t, path);
    if (!golden) return;
    whole = (session){.model = m, .golden = golden, .world = 1, .micro = 1};
    parts = parted, parts.model = m, parts.golden = golden;
    ranks = (session){.model = m, .golden = golden, .world = PARTS, .micro = 1, .stage = 3};
    test_defer(t, close_session, &whole);
    test_defer(t, close_session, &parts);
    test_defer(t, close_session, &ranks);
    OK(t, train(&whole, losses[0]), whole.error.text);
    OK(t, train(&parts, losses[1]), parts.error.text);
    OK(t, train(&ranks, losses[2]), ranks.error.text);
    expected = values_of(golden, "losses", &count);
    CHECK(t, expected && count == STEPS);
    for (int k = 0; k < STEPS; k++)
        for (int way = 0; way < 3; way++)
            CHECK_NEAR(t, losses[way][k], expected[k], 2e-6 * expected[k]);
    free(expected);
    CHECK(t, !memcmp(losses[1], losses[2], sizeof losses[1]));
    check_params(t, &whole, NULL);
    check_params(t, &ranks, &parts);
}

static void check_model(test *t, const model *m)
{
    check_model_in(t, m, (session){.world = 1, .micro = PARTS});
}

TEST_ONCE(models_gru_is_that_of_pytorch) { check_model(t, &gru); }
TEST_ONCE(models_cnn_is_that_of_pytorch) { check_model(t, &cnn); }
TEST_ONCE(models_vit_is_that_of_pytorch) { check_model(t, &vit); }
TEST_ONCE(models_autoencoder_is_that_of_pytorch) { check_model(t, &autoencoder); }
TEST_ONCE(models_encoder_decoder_is_that_of_pytorch) { check_model(t, &encoder_decoder); }
TEST_ONCE(models_two_towers_is_that_of_pytorch) { check_model(t, &two_towers); }
TEST_ONCE(models_diffusion_is_that_of_pytorch) { check_model(t, &diffusion); }
TEST_ONCE(models_clip_is_that_of_pytorch)
{
    check_model_in(t, &clip, (session){.world = PARTS, .micro = 1});
}
