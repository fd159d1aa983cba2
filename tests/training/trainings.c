#define _POSIX_C_SOURCE 200809L
/* Trainings with names: several over one store have their own steps, states and random numbers, as
 * optimizers of PyTorch have (tests/golden/trainings/make.py), to the same bits at every stage. */
#include "../support/golden.h"

#include <sys/stat.h>

enum { STEPS = 10, ROWS = 8, PARTS = 4, MOST_RANKS = 4, IMAGE = 1 << 14 };

/* ----------------------------------------------------------------------------------- two models */

/* A model that two trainings share. */
typedef struct pair {
    const char *name;
    const char *trainings[2], *groups[2];
    zf_adamw_desc adamw[2];
    float lr[2];
    double momentum, clip; /* momentum: of the groups with SGD */
    /* The loss of a training over this graph, for so many rows of ROWS */
    zf_tensor (*build)(zf_graph *g, int training, int64_t rows, zf_dtype dtype);
    struct {
        const char *name;
        int k;
        zf_shape shape;
    } params[6]; /* up to the first without a name */
} pair;

static zf_tensor param_of(zf_graph *g, const char *name, zf_shape shape, zf_dtype dtype,
                          bool frozen)
{
    return zf_param(g, name, shape, &(zf_param_desc){.dtype = dtype, .frozen = frozen});
}

static zf_tensor input_of(zf_graph *g, const char *name, int64_t rows, int64_t width,
                          zf_dtype dtype)
{
    return zf_cast(zf_input(g, name, ZF_F32, ZF_SHAPE(rows, width)), dtype);
}

static zf_tensor perceptron(zf_tensor x, const char *name, int64_t in, int64_t out, bool frozen)
{
    zf_graph *g = x.graph;
    const zf_dtype dtype = zf_tensor_dtype(x);
    zf_push(g, "%s", name);
    x = zf_matmul(x, param_of(g, "w0", ZF_SHAPE(in, 6), dtype, frozen));
    x = zf_tanh(zf_add(x, param_of(g, "b0", ZF_SHAPE(6), dtype, frozen)));
    x = zf_matmul(x, param_of(g, "w1", ZF_SHAPE(6, out), dtype, frozen));
    zf_pop(g);
    return x;
}

/* The critic is trained on what a stopped generator makes, the generator through a frozen critic. */
static zf_tensor build_gan(zf_graph *g, int training, int64_t rows, zf_dtype dtype)
{
    zf_tensor made = perceptron(input_of(g, "z", rows, 4, dtype), "gen", 4, 3, false), loss;
    if (training)
        return zf_scale(zf_sum(zf_softplus(zf_neg(perceptron(made, "critic", 3, 1, true)))),
                        1.0 / ROWS);
    loss = zf_sum(zf_softplus(
        zf_neg(perceptron(input_of(g, "real", rows, 3, dtype), "critic", 3, 1, false))));
    made = zf_matmul(zf_stop_gradient(made), zf_graph_find(g, "critic.w0"));
    made = zf_tanh(zf_add(made, zf_graph_find(g, "critic.b0")));
    made = zf_softplus(zf_matmul(made, zf_graph_find(g, "critic.w1")));
    return zf_scale(zf_add(loss, zf_sum(made)), 1.0 / ROWS);
}

/* Both train the trunk. */
static zf_tensor build_actor(zf_graph *g, int training, int64_t rows, zf_dtype dtype)
{
    zf_tensor h = input_of(g, "s", rows, 4, dtype), reward = input_of(g, "reward", rows, 1, dtype),
              miss, odds;
    h = zf_matmul(h, param_of(g, "trunk.w", ZF_SHAPE(4, 6), dtype, false));
    h = zf_tanh(zf_add(h, param_of(g, "trunk.b", ZF_SHAPE(6), dtype, false)));
    miss = zf_sub(reward, zf_matmul(h, param_of(g, "value.w", ZF_SHAPE(6, 1), dtype, false)));
    if (!training) return zf_scale(zf_sum(zf_mul(miss, miss)), 1.0 / ROWS);
    odds = zf_log_softmax(zf_matmul(h, param_of(g, "policy.w", ZF_SHAPE(6, 3), dtype, false)));
    odds = zf_mul(odds, zf_mul(input_of(g, "taken", rows, 3, dtype), zf_stop_gradient(miss)));
    return zf_scale(zf_sum(odds), -1.0 / ROWS);
}

static const pair pairs[] = {
    {"gan",
     {"critic", ""},
     {NULL},
     {{.beta1 = 0.5, .beta2 = 0.9375}, {.beta1 = 0.5, .beta2 = 0.9375}},
     {0.015625f, 0.0078125f},
     0,
     0,
     build_gan,
     {{"gen.w0", 0, {2, {4, 6}}},
      {"gen.b0", 1, {1, {6}}},
      {"gen.w1", 2, {2, {6, 3}}},
      {"critic.w0", 3, {2, {3, 6}}},
      {"critic.b0", 4, {1, {6}}},
      {"critic.w1", 5, {2, {6, 1}}}}},
    {"actor",
     {"critic", "policy"},
     {NULL},
     {{.beta1 = 0.75, .beta2 = 0.9375}, {.beta1 = 0.875, .beta2 = 0.96875, .weight_decay = 0.0625}},
     {0.015625f, 0.0078125f},
     0,
     0,
     build_actor,
     {{"trunk.w", 6, {2, {4, 6}}},
      {"trunk.b", 7, {1, {6}}},
      {"policy.w", 8, {2, {6, 3}}},
      {"value.w", 9, {2, {6, 1}}}}},
    {"grouped",
     {"critic", "policy"},
     {"trunk.*:rate=0.5,beta1=0.5;*.b:weight_decay=0.125,rate=2",
      "trunk.w:no_decay,beta2=0.5;policy.?:rate=0.25;trunk.b:frozen"},
     {{.beta1 = 0.75, .beta2 = 0.9375, .weight_decay = 0.0625},
      {.beta1 = 0.875, .beta2 = 0.96875, .weight_decay = 0.0625}},
     {0.015625f, 0.0078125f},
     0,
     0,
     build_actor,
     {{"trunk.w", 6, {2, {4, 6}}},
      {"trunk.b", 7, {1, {6}}},
      {"policy.w", 8, {2, {6, 3}}},
      {"value.w", 9, {2, {6, 1}}}}},
    {"mixed",
     {"critic", ""},
     {"trunk.w:rate=0.5;value.*:optimizer=sgd,weight_decay=0.125",
      "trunk.w:rate=0.5,optimizer=sgd,no_decay"},
     {{.beta1 = 0.75, .beta2 = 0.9375}, {.beta1 = 0.875, .beta2 = 0.96875, .weight_decay = 0.0625}},
     {0.015625f, 0.0078125f},
     0.75,
     0.5,
     build_actor,
     {{"trunk.w", 6, {2, {4, 6}}},
      {"trunk.b", 7, {1, {6}}},
      {"policy.w", 8, {2, {6, 3}}},
      {"value.w", 9, {2, {6, 1}}}}}};

/* Row i of the global batch of an input. */
static void row_of(const char *input, int64_t step, int64_t row, int64_t width, float *out)
{
    static const char *const names[] = {"z", "real", "s", "reward"};
    int64_t which = 0;
    if (!strcmp(input, "taken")) {
        for (int64_t i = 0; i < width; i++) out[i] = i == (row * 5 + step) % 3;
        return;
    }
    while (strcmp(names[which], input)) which++;
    for (int64_t i = 0; i < width; i++)
        out[i] = (float)(((row * width + i) * 37 + step * 11 + which * 5) % 29 - 14) / 16;
}

/* ------------------------------------------------------------------------------------ the ranks */

typedef struct setting {
    const pair *pair;
    zf_dtype dtype; /* of parameters */
    int32_t world;
    int64_t micro;        /* batches of a step */
    zf_training training; /* without loss, name, rate and optimizer */
    const char *offload_dir;
} setting;

/* The programs of both trainings on all ranks. */
typedef struct ranks {
    setting s;
    zf_comm comms[MOST_RANKS];
    zf_store *stores[MOST_RANKS];
    zf_graph *graphs[2][MOST_RANKS];
    zf_program *programs[2][MOST_RANKS];
    zf_error error;
} ranks;

static void close_ranks(void *object)
{
    ranks *r = object;
    for (int k = 2 * MOST_RANKS; k-- > 0;)
        zf_program_free(r->programs[k / MOST_RANKS][k % MOST_RANKS]);
    for (int k = 2 * MOST_RANKS; k-- > 0;)
        zf_graph_free(r->graphs[k / MOST_RANKS][k % MOST_RANKS]);
    for (int k = MOST_RANKS; k-- > 0;) zf_store_free(r->stores[k]);
    memset(r, 0, sizeof *r);
}

static bool open_program(ranks *r, int k, int32_t rank)
{
    const setting *s = &r->s;
    const int64_t rows = ROWS / (s->world * s->micro);
    zf_graph *g = r->graphs[k][rank] = zf_graph_new(NULL);
    zf_training t = s->training;
    t.name = s->pair->trainings[k], t.param_groups = s->pair->groups[k];
    t.loss = zf_output_ex(s->pair->build(g, k, rows, s->dtype), "total",
                          &(zf_output_desc){.reduction = ZF_REDUCTION_SUM});
    t.zero.world = s->world, t.zero.micro_batches = s->micro, t.zero.store = r->stores[rank];
    t.adamw = s->pair->adamw[k], t.sgd.momentum = s->pair->momentum, t.clip = s->pair->clip;
    zf_passes(g, &t);
    r->programs[k][rank] =
        zf_compile(g, &(zf_compile_desc){.store = r->stores[rank], .verify = true});
    if (!r->programs[k][rank])
        snprintf(r->error.text, sizeof r->error.text, "%s", zf_graph_error(g));
    return r->programs[k][rank] != NULL;
}

/* Opens programs over stores with the first values of the parameters. */
static bool open_ranks(ranks *r, const setting *s)
{
    *r = (ranks){.s = *s};
    for (int32_t rank = 0; rank < s->world; rank++) {
        r->comms[rank] = (zf_comm){.rank = rank, .world = s->world};
        r->stores[rank] =
            zf_store_new(&(zf_store_desc){.comm = s->world > 1 ? &r->comms[rank] : NULL,
                                          .seed = 3,
                                          .offload_dir = s->offload_dir},
                         &r->error);
        for (int k = 0; k < 2; k++)
            if (!r->stores[rank] || !open_program(r, k, rank)) return false;
        for (int n = 0; n < 6 && s->pair->params[n].name; n++) {
            const char *name = s->pair->params[n].name;
            const zf_stored about =
                zf_store_at(r->stores[rank], zf_store_find(r->stores[rank], name));
            const int64_t count = zf_shape_count(s->pair->params[n].shape);
            double wide[64], values[64];
            for (int64_t i = 0; i < count; i++)
                wide[i] = (double)((i * 17 + s->pair->params[n].k * 7) % 23 - 11) / 32;
            zf_convert(values, about.dtype, wide, ZF_F64, (size_t)count);
            if (zf_store_write(r->stores[rank], name, values,
                               (size_t)count * zf_dtype_size(about.dtype)))
                return false;
        }
    }
    return true;
}

/* Writes what rank `rank` is trained on in micro-batch `micro`. */
static zf_status feed(ranks *r, int k, int32_t rank, int64_t micro, int64_t step)
{
    static const char *const inputs[] = {"z", "real", "s", "reward", "taken"};
    zf_graph *g = r->graphs[k][rank];
    const int64_t rows = ROWS / (r->s.world * r->s.micro), slot = micro * r->s.world + rank;
    const float lr = r->s.pair->lr[k];
    zf_status status = zf_write(r->programs[k][rank], zf_graph_find(g, "lr"), &lr, sizeof lr);
    for (int n = 0; n < 5 && !status; n++) {
        const zf_tensor x = zf_graph_find(g, inputs[n]);
        const int64_t width = zf_valid(x) ? zf_tensor_shape(x).dims[1] : 0;
        float values[ROWS * 4];
        for (int64_t i = 0; i < rows && width; i++)
            row_of(inputs[n], step, slot * rows + i, width, values + i * width);
        if (width) status = zf_write(r->programs[k][rank], x, values, (size_t)(rows * width) * 4);
    }
    return status;
}

/* A step of training k. */
static zf_status step_of(ranks *r, int k, int64_t step)
{
    const zf_lockstep_desc d = {r->programs[k], r->s.world, 0};
    zf_status status = ZF_OK;
    for (int64_t micro = 0; micro < r->s.micro && !status; micro++) {
        for (int32_t rank = 0; rank < r->s.world && !status; rank++)
            status = feed(r, k, rank, micro, step);
        if (!status)
            status = micro + 1 < r->s.micro ? zf_lockstep_micro(&d, &r->error)
                                            : zf_lockstep_step(&d, &r->error);
    }
    return status;
}

/* Both trainings in turns, from step `from` on; losses may be NULL. */
static zf_status train(ranks *r, int64_t from, int64_t until, double (*losses)[2])
{
    zf_status status = ZF_OK;
    for (int64_t step = from; step < until && !status; step++)
        for (int k = 0; k < 2 && !status; k++) {
            zf_tensor loss = zf_graph_find(r->graphs[k][0], "total");
            float narrow = 0;
            status = step_of(r, k, step);
            if (status || !losses) continue;
            if (r->s.dtype == ZF_F64)
                status = zf_read(r->programs[k][0], loss, &losses[step][k], sizeof(double));
            else status = zf_read(r->programs[k][0], loss, &narrow, sizeof narrow);
            if (r->s.dtype != ZF_F64) losses[step][k] = narrow;
        }
    return status;
}

/* A parameter or state of either program; returns its bytes, 0 where it cannot be read. */
static size_t value_of(ranks *r, const char *name, void *out, size_t room)
{
    const zf_stored about = zf_store_at(r->stores[0], zf_store_find(r->stores[0], name));
    const size_t bytes = (size_t)zf_shape_count(about.shape) * zf_dtype_size(about.dtype);
    for (int k = 0; k < 2; k++) {
        const zf_lockstep_desc d = {r->programs[k], r->s.world, 0};
        zf_error ignored;
        if (about.name && bytes <= room && !zf_lockstep_read(&d, name, out, bytes, &ignored))
            return bytes;
    }
    return 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* All parameters and states by name; their bytes. */
static size_t image_of(ranks *r, unsigned char image[IMAGE])
{
    const char *names[100];
    const int32_t count = zf_store_count(r->stores[0]);
    size_t at = 0, bytes;
    for (int32_t k = 0; k < count && k < 100; k++) names[k] = zf_store_at(r->stores[0], k).name;
    qsort(names, (size_t)count, sizeof *names, by_name);
    for (int32_t k = 0; k < count; k++, at += bytes)
        if (!(bytes = value_of(r, names[k], image + at, IMAGE - at))) return 0;
    return at;
}

/* --------------------------------------------------------------------------------------- PyTorch */

/* How far numbers are from the golden ones, as a part of the largest. */
static double miss_of(const double *got, const double *golden, int64_t count)
{
    double most = 0, largest = 1e-3;
    for (int64_t i = 0; i < count; i++) {
        most = fmax(most, fabs(got[i] - golden[i]));
        largest = fmax(largest, fabs(golden[i]));
    }
    return most / largest;
}

static void check_pytorch(test *t, const pair *p)
{
    static ranks r;
    const setting s = {.pair = p,
                       .dtype = ZF_F64,
                       .world = 1,
                       .micro = 1,
                       .training.fuse.without = "all",
                       .training.ema.decay = 0.875};
    zf_safetensors *file = open_file(t, "tests/golden/trainings/trainings.safetensors");
    double losses[STEPS][2], *golden, values[64];
    int64_t count = 0;
    char name[64];
    CHECK(t, file != NULL);
    test_defer(t, close_ranks, &r);
    if (!open_ranks(&r, &s)) test_fail(t, __FILE__, __LINE__, "open_ranks", r.error.text);
    OK(t, train(&r, 0, STEPS, losses), r.error.text);
    snprintf(name, sizeof name, "%s.losses", p->name);
    golden = values_of(file, name, &count);
    CHECK(t, golden && count == 2 * STEPS && miss_of(losses[0], golden, count) < 1e-12);
    free(golden);
    for (int n = 0; n < 6 && p->params[n].name; n++) {
        snprintf(name, sizeof name, "%s.p.%s", p->name, p->params[n].name);
        golden = values_of(file, name, &count);
        CHECK(t, golden && value_of(&r, p->params[n].name, values, sizeof values) ==
                               (size_t)count * sizeof *values);
        CHECK(t, miss_of(values, golden, count) < 1e-12);
        free(golden);
    }
    for (int n = 0; n < 6 && p == &pairs[0]; n++) {
        const char *param = p->params[n].name;
        char state[64];
        snprintf(name, sizeof name, "gan.e.%s", param);
        snprintf(state, sizeof state, "%sema.average/%s", *param == 'c' ? "critic:" : "", param);
        golden = values_of(file, name, &count);
        CHECK(t, golden &&
                     value_of(&r, state, values, sizeof values) == (size_t)count * sizeof *values);
        CHECK(t, miss_of(values, golden, count) < 1e-12);
        free(golden);
    }
    for (int k = 0; k < 2; k++) CHECK(t, zf_store_step_of(r.stores[0], p->trainings[k]) == STEPS);
}

TEST_ONCE(trainings_of_a_gan_are_pytorchs) { check_pytorch(t, &pairs[0]); }

TEST_ONCE(trainings_of_an_actor_and_a_critic_are_pytorchs) { check_pytorch(t, &pairs[1]); }

TEST_ONCE(trainings_of_groups_are_pytorchs) { check_pytorch(t, &pairs[2]); }

TEST_ONCE(trainings_of_two_optimizers_are_pytorchs) { check_pytorch(t, &pairs[3]); }

/* ------------------------------------------------------------------------------------------ bits */

/* The image after some steps; 0 bytes after reporting a failure. */
static size_t image_after(test *t, const setting *s, int64_t steps, unsigned char image[IMAGE])
{
    static ranks r;
    size_t bytes = 0;
    if (!open_ranks(&r, s) || train(&r, 0, steps, NULL) || !(bytes = image_of(&r, image)))
        test_fail(t, __FILE__, __LINE__, "training", r.error.text);
    close_ranks(&r);
    return bytes;
}

/* Every stage on 1, 2 and 4 ranks that share four parts of the batch, with states in host memory and
 * buckets of one parameter and of all. */
TEST_ONCE(trainings_have_equal_bits)
{
    static unsigned char one[IMAGE], other[IMAGE];
    for (int p = 0; p < 4; p++) {
        setting s = {.pair = &pairs[p],
                     .dtype = ZF_F32,
                     .world = 1,
                     .micro = PARTS,
                     .training.ema.decay = 0.875};
        const size_t bytes = image_after(t, &s, 4, one);
        CHECK(t, bytes > 0);
        for (int n = 0; n < 24; n++) {
            s.world = 1 << n % 3, s.micro = PARTS / s.world;
            s.training = (zf_training){.ema.decay = 0.875,
                                       .zero.stage = n / 3 % 4,
                                       .zero.bucket_bytes = n % 2,
                                       .prefetch.bytes = n % 5 == 1 ? 1 << 16 : 0,
                                       .offload.optimizer = n >= 12 ? ZF_HOST : ZF_DEVICE};
            CHECK(t, image_after(t, &s, 4, other) == bytes && !memcmp(one, other, bytes));
        }
    }
}

/* ------------------------------------------------------------------------------------ checkpoints */

/* A checkpoint holds the steps of all trainings: a run goes on from it with the same bits, also in
 * stores that load it before they have a program. */
static void check_resumes(test *t, const pair *p)
{
    static unsigned char whole[IMAGE], resumed[IMAGE];
    static ranks r;
    const char *path = test_path("trainings");
    setting s = {.pair = p, .dtype = ZF_F32, .world = 2, .micro = 2, .training.zero.stage = 3};
    const size_t bytes = image_after(t, &s, 6, whole);
    CHECK(t, bytes > 0);
    test_defer(t, close_ranks, &r);
    for (int k = 0; k < 2; k++) {
        const zf_lockstep_desc d = {r.programs[0], 2, 0};
        CHECK(t, open_ranks(&r, &s));
        if (!k) {
            OK(t, train(&r, 0, 3, NULL), r.error.text);
            OK(t, step_of(&r, 0, 3), r.error.text); /* the critic alone */
            OK(t, zf_lockstep_save(&d, path, NULL, &r.error), r.error.text);
        }
        if (k) OK(t, zf_lockstep_load(&d, path, NULL, &r.error), r.error.text);
        CHECK(t, zf_store_step_of(r.stores[1], "critic") == 4 && zf_store_step(r.stores[1]) == 3);
        CHECK(t, zf_program_step(r.programs[0][0]) == 4 && zf_program_step(r.programs[1][0]) == 3);
        if (k) {
            OK(t, step_of(&r, 1, 3), r.error.text);
            OK(t, train(&r, 4, 6, NULL), r.error.text);
            CHECK(t, image_of(&r, resumed) == bytes && !memcmp(whole, resumed, bytes));
        }
        close_ranks(&r);
    }
}

TEST_ONCE(trainings_resume_with_their_own_steps)
{
    check_resumes(t, &pairs[0]);
    check_resumes(t, &pairs[3]);
}

/* Steps of a checkpoint replace those of the store, also where it has none of a name. */
TEST_ONCE(trainings_take_the_steps_of_a_checkpoint)
{
    static ranks r;
    static zf_store *fresh;
    const char *path = test_path("trainings-steps");
    const setting s = {.pair = &pairs[1], .dtype = ZF_F32, .world = 1, .micro = 1};
    const zf_lockstep_desc d = {r.programs[0], 1, 0};
    test_defer(t, close_ranks, &r);
    CHECK(t, open_ranks(&r, &s));
    OK(t, zf_lockstep_save(&d, path, NULL, &r.error), r.error.text);
    OK(t, train(&r, 0, 2, NULL), r.error.text);
    CHECK(t, zf_store_step_of(r.stores[0], "policy") == 2 && zf_store_step(r.stores[0]) == 0);
    OK(t, zf_lockstep_load(&d, path, NULL, &r.error), r.error.text);
    CHECK(t,
          zf_store_step_of(r.stores[0], "policy") == 0 && zf_program_step(r.programs[0][0]) == 0);
    OK(t, train(&r, 0, 1, NULL), r.error.text);
    OK(t, zf_lockstep_save(&d, path, NULL, &r.error), r.error.text);
    fresh = zf_store_new(NULL, &r.error);
    NEED(t, fresh, &r.error);
    test_defer(t, (test_cleanup *)zf_store_free, fresh);
    OK(t, zf_load(fresh, path, NULL), zf_store_error(fresh));
    CHECK(t, zf_store_step_of(fresh, "policy") == 1 && zf_store_step_of(fresh, "critic") == 1);
    CHECK(t, zf_store_step_of(fresh, "other") == 0 && zf_store_step_of(NULL, "critic") == 0);
}

/* ----------------------------------------------------------------------------------- loss scale */

static int64_t count_of(ranks *r, const char *name)
{
    int64_t count = -1;
    return value_of(r, name, &count, sizeof count) == sizeof count ? count : -1;
}

/* A step that one training skips is a step of the other. In f16 both round one set of master
 * weights. */
TEST_ONCE(trainings_skip_steps_of_their_own)
{
    static ranks r;
    const setting s = {.pair = &pairs[1],
                       .dtype = ZF_F32,
                       .world = 1,
                       .micro = 1,
                       .training.precision = {.dtype = ZF_F16, .scale = 1024, .hysteresis = 1},
                       .training.ema.decay = 0.5};
    float first[6], average[6], moved[18], before[18];
    const float large = 0x1p30f;
    float scale[2] = {0, 0};
    test_defer(t, close_ranks, &r);
    CHECK(t, open_ranks(&r, &s));
    OK(t, zf_store_write(r.stores[0], "critic:scaler.scale", &large, 4),
       zf_store_error(r.stores[0]));
    CHECK(t, value_of(&r, "adamw.master/value.w", first, sizeof first) == sizeof first);
    CHECK(t, value_of(&r, "adamw.master/policy.w", before, sizeof before) == sizeof before);
    OK(t, train(&r, 0, 1, NULL), r.error.text);
    CHECK(t, value_of(&r, "critic:ema.average/value.w", average, sizeof average) == sizeof average);
    CHECK(t, !memcmp(first, average, sizeof first));
    CHECK(t, value_of(&r, "policy:ema.average/policy.w", moved, sizeof moved) == sizeof moved);
    CHECK(t, memcmp(before, moved, sizeof moved));
    CHECK(t, value_of(&r, "critic:scaler.scale", &scale[0], 4) && scale[0] == large / 2);
    CHECK(t, value_of(&r, "policy:scaler.scale", &scale[1], 4) && scale[1] == 1024);
    CHECK(t, count_of(&r, "critic:adamw.step") == 0 && count_of(&r, "policy:adamw.step") == 1);
    CHECK(t,
          count_of(&r, "critic:scaler.skipped") == 1 && count_of(&r, "policy:scaler.skipped") == 0);
    CHECK(t, zf_store_step_of(r.stores[0], "critic") == 1);
    CHECK(t, zf_store_find(r.stores[0], "adamw.master/trunk.w") >= 0 &&
                 zf_store_find(r.stores[0], "critic:adamw.master/trunk.w") < 0);
}

/* ------------------------------------------------------------------------- one name next to another */

/* What a training with dropout makes of a parameter in three steps. */
static bool dropped(test *t, const char *name, const zf_training *training, float w[64])
{
    zf_graph *g = zf_graph_new(NULL);
    zf_training d = *training;
    zf_program *p = NULL;
    const float rate = 0.125f;
    bool good = true;
    zf_tensor v = zf_param(g, "w", ZF_SHAPE(64), &(zf_param_desc){.init = ZF_ONES});
    d.name = name;
    d.loss = zf_sum(zf_dropout(v, 0.5));
    for (d.variant = 0; d.variant < 1; d.variant++)
        if (!zf_passes(g, &d)) p = zf_compile(g, &(zf_compile_desc){.seed = 5});
    for (int step = 0; step < 3 && p; step++) {
        good = good && !zf_write(p, zf_graph_find(g, "lr"), &rate, sizeof rate) && !zf_step(p);
        good = good && zf_program_step(p) == step + 1;
    }
    good = p && good && !zf_read(p, v, w, 64 * sizeof *w);
    if (!good)
        test_fail(t, __FILE__, __LINE__, "dropped", p ? zf_program_error(p) : zf_graph_error(g));
    zf_program_free(p);
    zf_graph_free(g);
    return good;
}

/* Dropout of two trainings differs, and the name changes nothing else. */
TEST_ONCE(trainings_draw_numbers_of_their_own)
{
    const zf_training sgd = {.optimizer = ZF_SGD};
    float a[64], b[64], c[64];
    CHECK(t, dropped(t, NULL, &sgd, a) && dropped(t, "", &sgd, b) && !memcmp(a, b, sizeof a));
    CHECK(t, dropped(t, "one", &sgd, b) && dropped(t, "two", &sgd, c));
    CHECK(t, memcmp(a, b, sizeof a) && memcmp(b, c, sizeof b));
    CHECK(t, dropped(t, "one", &sgd, c) && !memcmp(b, c, sizeof b));
}

/* Optimizers that look for their own states find those of the training. */
TEST_ONCE(trainings_of_every_optimizer)
{
    for (int k = 0; zf_optimizer_name((zf_optimizer)k); k++) {
        const zf_training plain = {.optimizer = (zf_optimizer)k};
        float w[64];
        CHECK(t, dropped(t, "one", &plain, w) && w[0] != 1);
    }
}

/* --------------------------------------------------------------------------------------- averages
 */

/* Averages of master weights have equal bits at every stage, in host memory and on a disk, by pieces
 * too. */
TEST_ONCE(averages_of_master_weights)
{
    static unsigned char one[IMAGE], other[IMAGE];
    setting s = {.pair = &pairs[1],
                 .dtype = ZF_F32,
                 .world = 1,
                 .micro = PARTS,
                 .training.precision.dtype = ZF_BF16,
                 .training.ema.decay = 0.75};
    const size_t bytes = image_after(t, &s, 3, one);
    CHECK(t, bytes > 0);
    s.offload_dir = test_path("averages");
    mkdir(s.offload_dir, 0700);
    for (int n = 0; n < 12; n++) {
        s.world = 1 << n % 3, s.micro = PARTS / s.world;
        s.training.zero.stage = n % 4;
        s.training.offload.optimizer = n / 4 == 0 ? ZF_DEVICE : n / 4 == 1 ? ZF_HOST : ZF_DISK;
        s.training.offload.piece_bytes = n % 2 && n / 4 ? 4096 : 0;
        s.training.prefetch.bytes = n % 5 == 1 ? 1 << 16 : 0;
        CHECK(t, image_after(t, &s, 3, other) == bytes && !memcmp(one, other, bytes));
    }
}

/* After 50 steps in bf16 averages are those of the master weights in f64, at every stage. In bf16
 * they would hardly move: a step of them is less than half a rounding. */
TEST_ONCE(averages_are_those_of_float64)
{
    enum { LONG = 50, COUNT = 18 };
    static const char average[] = "critic:ema.average/critic.w0",
                      weights[] = "adamw.master/critic.w0";
    static ranks r;
    float master[COUNT], got[COUNT], first[COUNT];
    double exact[COUNT];
    const size_t bytes = sizeof got;
    test_defer(t, close_ranks, &r);
    for (int32_t stage = 0; stage < 4; stage++) {
        const setting s = {.pair = &pairs[0],
                           .dtype = ZF_F32,
                           .world = stage ? 2 : 1,
                           .micro = stage ? 1 : 2,
                           .training = {.precision.dtype = ZF_BF16,
                                        .zero.stage = stage,
                                        .ema.decay = 0.992}};
        CHECK(t, open_ranks(&r, &s));
        CHECK(t, value_of(&r, weights, first, bytes) == bytes);
        for (int i = 0; i < COUNT; i++) exact[i] = first[i];
        for (int64_t step = 0; step < LONG; step++) {
            OK(t, train(&r, step, step + 1, NULL), r.error.text);
            CHECK(t, value_of(&r, weights, master, bytes) == bytes);
            for (int i = 0; i < COUNT; i++) exact[i] += (1 - 0.992) * (master[i] - exact[i]);
        }
        CHECK(t, value_of(&r, average, got, bytes) == bytes);
        for (int i = 0; i < COUNT; i++) {
            CHECK_NEAR(t, got[i], exact[i], 1e-5 * (0.01 + fabs(exact[i])));
            CHECK(t, fabs((double)got[i] - (double)first[i]) > 1e-3 &&
                         fabs((double)got[i] - (double)master[i]) > 1e-3);
        }
        close_ranks(&r);
    }
}

/* A store takes the averages of another one as parameters, which then differ from what is
 * trained. */
TEST_ONCE(averages_become_parameters)
{
    static ranks r, eval;
    const setting s = {.pair = &pairs[0],
                       .dtype = ZF_F32,
                       .world = 1,
                       .micro = 1,
                       .training.ema.decay = 0.5},
                  plain = {.pair = &pairs[0], .dtype = ZF_F32, .world = 1, .micro = 1};
    float trained[18], average[18], taken[18];
    const size_t bytes = sizeof trained;
    test_defer(t, close_ranks, &r);
    test_defer(t, close_ranks, &eval);
    CHECK(t, open_ranks(&r, &s) && open_ranks(&eval, &plain));
    OK(t, train(&r, 0, 3, NULL), r.error.text);
    OK(t, zf_ema_copy(eval.stores[0], r.stores[0], "critic"), zf_store_error(eval.stores[0]));
    CHECK(t, value_of(&r, "critic.w0", trained, bytes) == bytes);
    CHECK(t, value_of(&r, "critic:ema.average/critic.w0", average, bytes) == bytes);
    CHECK(t, value_of(&eval, "critic.w0", taken, bytes) == bytes);
    CHECK(t, !memcmp(average, taken, bytes) && memcmp(average, trained, bytes));
    CHECK(t, value_of(&r, "gen.w1", trained, bytes) == bytes);
    CHECK(t, value_of(&eval, "gen.w1", taken, bytes) == bytes && !memcmp(trained, taken, bytes));
    OK(t, zf_ema_copy(eval.stores[0], r.stores[0], NULL), zf_store_error(eval.stores[0]));
    CHECK(t, value_of(&r, "ema.average/gen.w1", average, bytes) == bytes);
    CHECK(t, value_of(&eval, "gen.w1", taken, bytes) == bytes && !memcmp(average, taken, bytes));
    CHECK(t, !zf_store_at(r.stores[0], zf_store_find(r.stores[0], "ema.average/gen.w1")).master_of);
    CHECK(t, zf_ema_copy(eval.stores[0], eval.stores[0], "") == ZF_ERR_ARGUMENT);
    CHECK_TEXT(t, zf_store_error(eval.stores[0]),
               "zf_ema_copy: the store has no averages of the training \"\" (zf_ema)");
    CHECK(t, zf_ema_copy(NULL, eval.stores[0], NULL) == ZF_ERR_ARGUMENT &&
                 zf_ema_copy(eval.stores[0], NULL, NULL) == ZF_ERR_ARGUMENT);
}

TEST(averages_need_updates)
{
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    GIVES(t, zf_ema(g, NULL), ZF_ERR_STAGE, zf_graph_error(g));
    CHECK(t, zf_ema(NULL, NULL) == ZF_ERR_ARGUMENT);
}

/* ----------------------------------------------------------------------------------------- groups */

/* What four steps make of a parameter; of an optimizer with variants, two of each. */
static bool stepped(test *t, const zf_training *training, const char *groups, float rate,
                    float w[6])
{
    zf_training d = *training;
    zf_program *p[3] = {NULL};
    zf_graph *g[3] = {NULL};
    zf_store *store = zf_store_new(&(zf_store_desc){.seed = 5}, NULL);
    const int32_t variants =
        zf_variant_count(&(zf_training){.loss = {NULL, 1}, .optimizer = d.optimizer});
    bool good = store != NULL;
    d.param_groups = groups;
    for (d.variant = 0; d.variant < variants && good; d.variant++) {
        zf_graph *of = g[d.variant] = zf_graph_new(NULL);
        zf_tensor v =
            zf_param(of, "w", ZF_SHAPE(2, 3), &(zf_param_desc){.init = ZF_NORMAL, .std = 1});
        d.loss = zf_sum(zf_mul(v, v));
        good = !zf_passes(of, &d);
        p[d.variant] = good ? zf_compile(of, &(zf_compile_desc){.store = store}) : NULL;
        good = p[d.variant] != NULL;
        if (!good) test_fail(t, __FILE__, __LINE__, "stepped", zf_graph_error(of));
    }
    for (int step = 0; step < 4 && good; step++) {
        const int k = variants > 1 ? step / 2 : 0;
        good = !zf_write(p[k], zf_graph_find(g[k], "lr"), &rate, sizeof rate) && !zf_step(p[k]);
        if (!good) test_fail(t, __FILE__, __LINE__, "stepped", zf_program_error(p[k]));
    }
    good = good && !zf_store_read(store, "w", w, 6 * sizeof *w);
    for (int k = 3; k-- > 0;) zf_program_free(p[k]), zf_graph_free(g[k]);
    zf_store_free(store);
    return good;
}

/* A group's rate is that of a training with this rate, its weight decay and betas those of a desc,
 * for every optimizer. */
TEST_ONCE(groups_are_as_descs)
{
    for (int k = 0; zf_optimizer_name((zf_optimizer)k); k++) {
        const bool betas = k != ZF_SGD && k != ZF_ZERO_ONE_ADAM;
        zf_training plain = {.optimizer = (zf_optimizer)k}, set = plain;
        float a[6], b[6], c[6];
        test_set(&set, "weight-decay", 0.25);
        if (betas) test_set(&set, "beta1", 0.5), test_set(&set, "beta2", 0.75);
        CHECK(t, stepped(t, &set, NULL, 0.125f, a) && stepped(t, &plain, NULL, 0.125f, c));
        CHECK(t, memcmp(a, c, sizeof a));
        CHECK(t, stepped(t, &plain,
                         betas ? "*:weight_decay=0.25,beta1=0.5,beta2=0.75" : "w:weight_decay=0.25",
                         0.125f, b));
        if (memcmp(a, b, sizeof a))
            test_fail(t, __FILE__, __LINE__, zf_optimizer_name((zf_optimizer)k), "");
        CHECK(t, stepped(t, &set, "w:no_decay", 0.125f, b));
        CHECK(t, memcmp(a, b, sizeof a));
        if (k == ZF_ZERO_ONE_ADAM) continue;
        CHECK(t, stepped(t, &set, "?:rate=0.5", 0.25f, b));
        if (memcmp(a, b, sizeof a))
            test_fail(t, __FILE__, __LINE__, zf_optimizer_name((zf_optimizer)k), "");
        if (k == ZF_ONEBIT_ADAM || k == ZF_ONEBIT_LAMB) continue;
        CHECK(t, stepped(t, &set, "?:rate=0.125,constant", 0.5f, b));
        if (memcmp(a, b, sizeof a))
            test_fail(t, __FILE__, __LINE__, zf_optimizer_name((zf_optimizer)k), "constant");
    }
}

typedef struct mistake {
    zf_optimizer optimizer;
    const char *groups, *error;
} mistake;

/* A model of which "frozen" is frozen. */
static zf_status train_grouped(zf_graph *g, const mistake *m)
{
    const zf_param_desc frozen = {.frozen = true};
    zf_tensor w = zf_param(g, "a.w", ZF_SHAPE(2), NULL),
              v = zf_param(g, "frozen", ZF_SHAPE(2), &frozen);
    return zf_passes(g, &(zf_training){.loss = zf_sum(zf_mul(w, v)),
                                       .optimizer = m->optimizer,
                                       .param_groups = m->groups});
}

TEST(groups_mistakes)
{
    static const mistake mistakes[] = {
        {ZF_ADAMW, "a.w:rate=0.5;;*:beta2=0.5", NULL},
        {ZF_ADAMW, "b.*|a.w:rate=0.5",
         "zf_param_groups: the pattern 'b.*' matches no parameter of this graph"},
        {ZF_ADAMW, "a:rate=0.5",
         "zf_param_groups: the pattern 'a' matches no parameter of this graph"},
        {ZF_ADAMW, "a.w",
         "param_groups: 'a.w' has no ':' between a pattern and what it gives, as in "
         "'head.*:rate=0.1'"},
        {ZF_ADAMW, "a.w:",
         "zf_param_groups: the group of 'a.w' gives nothing: rate, weight_decay, no_decay, beta1, "
         "beta2, optimizer, frozen or lazy_rows"},
        {ZF_ADAMW, ":rate=2", "zf_param_groups: a group needs a pattern or tensors"},
        {ZF_ADAMW, "frozen:rate=2",
         "zf_param_groups: all parameters of the group of 'frozen' are frozen, so it changes "
         "nothing"},
        {ZF_ADAMW, "a.w:no_decay,weight_decay=1",
         "zf_param_groups: no_decay and weight_decay exclude each other"},
        {ZF_ADAMW, "a.w:constant", "zf_param_groups: constant requires rate"},
        {ZF_ONEBIT_ADAM, "a.w:rate=0.5,constant",
         "zf_onebit_adam: the group of \"a.w\" gives it a constant rate, and those of this optimizer "
         "follow the learning rate"},
        {ZF_ADAMW, "a.w:optimizer=rmsprop",
         "zf_param_groups: 'rmsprop' is no optimizer that a group can have; there are adamw,"},
        {ZF_ADAMW, "a.w:optimizer=sgd,beta1=0.5",
         "zf_adamw: the groups of all trained parameters have other optimizers"},
        {ZF_ONEBIT_ADAM, "a.w:optimizer=sgd",
         "zf_onebit_adam: the group of \"a.w\" has the optimizer sgd; this optimizer is that of all "
         "parameters"},
        {ZF_SGD, "*:beta1=0.5",
         "zf_sgd: the group of \"a.w\" gives it a beta1, which this optimizer does not have"},
        {ZF_ZERO_ONE_ADAM, "*:rate=0.5",
         "zf_zero_one_adam: the group of \"a.w\" gives it a rate; this optimizer has one for all "
         "parameters"},
    };
    for (size_t k = 0; k < sizeof mistakes / sizeof *mistakes; k++) {
        zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
        char text[600];
        zf_status status;
        NEED(t, g, NULL);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        status = train_grouped(g, &mistakes[k]);
        if (!mistakes[k].error) OK(t, status, zf_graph_error(g));
        snprintf(text, sizeof text, "%s", zf_graph_error(g));
        if (mistakes[k].error && strchr(mistakes[k].error, '\0')[-1] == ',')
            text[strlen(mistakes[k].error)] = '\0'; /* a list that may grow */
        CHECK_TEXT(t, text, mistakes[k].error ? mistakes[k].error : "");
    }
}

/* By tensors; values out of range, and calls that are too late. */
TEST(groups_of_tensors)
{
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    zf_tensor w, x;
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    w = zf_param(g, "w", ZF_SHAPE(2), NULL), x = zf_input(g, "x", ZF_F32, ZF_SHAPE(2));
    OK(t,
       zf_param_groups(g, &(zf_param_group){.tensors = &w, .tensor_count = 1, .frozen = true}, 1),
       zf_graph_error(g));
    CHECK(t, zf_param_groups(NULL, NULL, 0) == ZF_ERR_ARGUMENT);
    GIVES(t, zf_autograd(g, zf_sum(zf_mul(w, x))), ZF_ERR_ARGUMENT, zf_graph_error(g));
}

/* Each call of an optimizer is of the parameters that are its own: none is left out, and none has
 * two. */
TEST(groups_of_optimizers)
{
    static const struct {
        const char *calls, *error;
    } cases[] = {
        {"as", NULL},
        {"a", "zf_zero: the optimizer of the group of \"b\" has not been run"},
        {"ae", "zf_ema: the optimizer of the group of \"b\" has not been run"},
        {"asa", "zf_adamw: an optimizer (zf_adamw or another) has been run already"},
        {"al", "zf_lion: must come before an optimizer (zf_adamw or another), which has been run"},
        {"asz", NULL},
        {"aszs", "zf_sgd: must come before zf_zero, which has been run"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
        zf_tensor a, b, lr;
        NEED(t, g, NULL);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        a = zf_param(g, "a", ZF_SHAPE(2), NULL), b = zf_param(g, "b", ZF_SHAPE(2), NULL);
        lr = zf_input(g, "lr", ZF_F32, ZF_SCALAR);
        zf_param_groups(g, &(zf_param_group){.params = "b", .optimizer = "sgd"}, 1);
        zf_autograd(g, zf_sum(zf_mul(a, b)));
        for (const char *call = cases[k].calls; *call; call++)
            if (*call == 'a') zf_adamw(g, lr, NULL);
            else if (*call == 's') zf_sgd(g, lr, NULL);
            else if (*call == 'l') zf_lion(g, lr, NULL);
            else if (*call == 'e') zf_ema(g, NULL);
            else zf_zero(g, &(zf_zero_desc){.world = 1});
        if (cases[k].error && !cases[k].calls[1]) zf_zero(g, &(zf_zero_desc){.world = 1});
        if (!cases[k].error) OK(t, zf_graph_status(g), zf_graph_error(g));
        CHECK_TEXT(t, zf_graph_error(g), cases[k].error ? cases[k].error : "");
    }
}

/* The options of the optimizer of a group have an effect; a flag that several optimizers have is
 * that of the graph's. */
TEST_ONCE(groups_have_the_options_of_their_optimizer)
{
    for (int k = 0; k < 3; k++) {
        zf_training d = {.optimizer = ZF_SGD};
        const zf_options one = {.rows = zf_training_options(), .desc = &d};
        char text[5][40] = {"test", "--weight-decay=0.5", "--param-groups=b:optimizer=adamw",
                            "--weight-decay=0.25", "--beta1=0.5"};
        char *argv[5] = {text[0], text[1], text[2], text[3], text[4]};
        int argc = k == 2 ? 2 : 5;
        zf_error error;
        if (k == 1) memcpy(text[2], "--param-groups=b:rate=0.5", 26);
        OK(t, zf_options_take(&one, 1, &argc, argv, &error), error.text);
        CHECK(t, d.sgd.weight_decay == (k < 2 ? 0.25 : 0.5) && d.adamw.weight_decay == 0);
        CHECK(t, k || d.adamw.beta1 == 0.5);
        CHECK(t, zf_options_check(&one, 1, true, &error) == (k == 1 ? ZF_ERR_ARGUMENT : ZF_OK));
        CHECK(t, k != 1 || strstr(error.text, "--beta1 requires --optimizer adamw"));
    }
}

/* A program that evaluates has other buckets where it is compiled first without the groups. */
TEST_ONCE(groups_and_a_store_without_them)
{
    static const char *const groups[2][3] = {{NULL, "a:rate=0.5", "a:rate=0.5"},
                                             {NULL, "a:optimizer=lion", "a:optimizer=lion"}};
    for (int n = 0; n < 4; n++) {
        const int same = n % 2;
        zf_store *store = zf_store_new(NULL, NULL);
        zf_graph *g[2];
        zf_program *p = NULL;
        for (int k = 0; k < 2; k++) {
            g[k] = zf_graph_new(NULL);
            zf_tensor a = zf_param(g[k], "a", ZF_SHAPE(2), NULL),
                      b = zf_param(g[k], "b", ZF_SHAPE(2), NULL);
            zf_tensor y = zf_output(zf_sum(zf_mul(a, b)), "y");
            zf_passes(g[k], &(zf_training){.loss = k ? y : ZF_NONE,
                                           .param_groups = groups[n / 2][k + same],
                                           .zero = {.world = 1, .store = store}});
            if (!k) p = zf_compile(g[0], &(zf_compile_desc){.store = store});
        }
        CHECK(t, p != NULL);
        CHECK(t, (zf_graph_status(g[1]) == ZF_OK) == same);
        CHECK(t, same || strstr(zf_graph_error(g[1]), "have other rates, betas or optimizers here: "
                                                      "compile the program that trains them first"));
        zf_program_free(p);
        for (int k = 0; k < 2; k++) zf_graph_free(g[k]);
        zf_store_free(store);
    }
}

/* --------------------------------------------------------------------------------------- mistakes */

TEST(trainings_names)
{
    static const struct {
        const char *name, *error;
    } cases[] = {
        {"critic_2", NULL},
        {"", NULL},
        {"a.b", "zf_name_training: \"a.b\": a name has at most 63 letters, digits and underscores"},
        {"a:b", "zf_name_training: \"a:b\": a name has at most 63 letters, digits and underscores"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
        NEED(t, g, NULL);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        if (cases[k].error) CHECK(t, zf_name_training(g, cases[k].name));
        else OK(t, zf_name_training(g, cases[k].name), zf_graph_error(g));
        CHECK_TEXT(t, zf_graph_error(g), cases[k].error ? cases[k].error : "");
    }
    CHECK(t, zf_name_training(NULL, "a") == ZF_ERR_ARGUMENT);
}

TEST(trainings_are_named_first)
{
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    zf_tensor w;
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    w = zf_param(g, "w", ZF_SCALAR, NULL);
    OK(t, zf_precision(g, &(zf_precision_desc){.dtype = ZF_F16}), zf_graph_error(g));
    (void)w;
    GIVES(t, zf_name_training(g, "late"), ZF_ERR_STAGE, zf_graph_error(g));
    CHECK_TEXT(t, zf_graph_error(g),
               "zf_name_training: must come before zf_precision, whose loss "
               "scale belongs to the training");
}

/* Two optimizers of one parameter in 16 bits would round two sets of master weights to it. */
TEST(trainings_share_master_weights)
{
    zf_program *p[2] = {NULL};
    zf_graph *g[2];
    for (int k = 0; k < 2; k++) {
        g[k] = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
        NEED(t, g[k], NULL);
        test_defer(t, (test_cleanup *)zf_graph_free, g[k]);
        zf_tensor w = zf_param(g[k], "w", ZF_SHAPE(2), &(zf_param_desc){.dtype = ZF_BF16});
        OK(t,
           zf_passes(g[k], &(zf_training){.name = k ? "b" : "a",
                                          .loss = zf_sum(zf_cast(w, ZF_F32)),
                                          .optimizer = k ? ZF_LION : ZF_ADAMW}),
           zf_graph_error(g[k]));
        p[k] = zf_compile(g[k], &(zf_compile_desc){.store = zf_program_store(p[0])});
        if (!k) NEED(t, p[k], NULL);
        if (!k) test_defer(t, (test_cleanup *)zf_program_free, p[k]);
    }
    CHECK(t, !p[1]);
    CHECK_TEXT(
        t, zf_graph_error(g[1]),
        "zf_compile: the master weights of \"w\" are \"lion.master/w\" here and "
        "\"adamw.master/w\" in the store: trainings of one parameter in 16 bits need the same "
        "optimizer");
}

/* ---------------------------------------------------------------------------------------- states */

/* A step of running statistics, a counter and a queue over x; with a loss, also a training. */
static zf_status build_states(zf_graph *g, int64_t rows, zf_parts parts, bool trains,
                              const zf_training *training)
{
    const zf_assign_desc of_parts = {.parts = parts};
    zf_tensor x = zf_input(g, "x", ZF_F32, ZF_SHAPE(rows, 3)),
              w = zf_param(g, "w", ZF_SHAPE(3), NULL);
    zf_tensor mean = zf_state(g, "mean", ZF_F32, ZF_SHAPE(3), 1), count, target, y;
    zf_training t = *training;
    y = zf_mean_ex(x, &(zf_reduce_desc){.axis = 0});
    zf_assign_ex(mean, zf_add(zf_scale(mean, 0.5), zf_scale(y, 0.5)), &of_parts);
    count = zf_state(g, "count", ZF_I64, ZF_SCALAR, 7);
    zf_assign(count, zf_add(count, zf_constant(g, ZF_I64, ZF_SCALAR, 1)));
    target = zf_state(g, "target", ZF_F32, ZF_SHAPE(3), 0);
    zf_assign_ex(target, w, &of_parts); /* as it was before the step; all parts have it */
    zf_output(mean, "before");
    y = zf_scale(zf_sum(zf_mul(zf_sub(x, mean), w)), 1.0 / 8);
    t.loss = trains ? y : ZF_NONE;
    zf_output_ex(y, "total", &(zf_output_desc){.reduction = ZF_REDUCTION_SUM});
    return zf_passes(g, &t);
}

typedef struct states {
    float mean[3], target[3], w[3];
    int64_t count;
} states;

/* Three steps on so many ranks. */
static bool run_states(test *t, int32_t world, zf_training *training, bool trains, bool evaluate,
                       states *out)
{
    const int64_t micro = training->zero.micro_batches ? training->zero.micro_batches : 1;
    const int64_t rows = 8 / (world * micro);
    zf_graph *g[MOST_RANKS] = {NULL};
    zf_program *p[MOST_RANKS] = {NULL};
    zf_comm comms[MOST_RANKS];
    const zf_lockstep_desc d = {p, world, 0};
    zf_error error = {ZF_OK, ""};
    bool good = true;
    const float lr = 0.25f;
    if (world > 1 || training->zero.micro_batches) training->zero.world = world;
    memset(out, 0, sizeof *out);
    for (int32_t r = 0; r < world && good; r++) {
        comms[r] = (zf_comm){.rank = r, .world = world};
        g[r] = zf_graph_new(NULL);
        good = !build_states(g[r], rows, ZF_PARTS_MEAN, trains, training);
        p[r] = !good ? NULL
                     : zf_compile(g[r], &(zf_compile_desc){.comm = world > 1 ? &comms[r] : NULL,
                                                           .evaluate = evaluate,
                                                           .verify = true});
        good = p[r] != NULL;
        if (!good) test_fail(t, __FILE__, __LINE__, "states", zf_graph_error(g[r]));
    }
    for (int64_t step = 0; step < 3 && good; step++)
        for (int64_t m = 0; m < micro && good; m++) {
            for (int32_t r = 0; r < world; r++) {
                float x[24];
                const int64_t first = (m * world + r) * rows;
                for (int64_t i = 0; i < rows * 3; i++)
                    x[i] = (float)((first * 3 + i) * 5 % 17 + step) / 16;
                zf_write(p[r], zf_graph_find(g[r], "x"), x, (size_t)rows * 12);
                if (trains) zf_write(p[r], zf_graph_find(g[r], "lr"), &lr, sizeof lr);
            }
            good = !(m + 1 < micro ? zf_lockstep_micro(&d, &error) : zf_lockstep_step(&d, &error));
            if (!good) test_fail(t, __FILE__, __LINE__, "states", error.text);
        }
    good = good && !zf_lockstep_read(&d, "mean", out->mean, 12, &error) &&
           !zf_lockstep_read(&d, "target", out->target, 12, &error) &&
           (training->precision.dtype || !zf_lockstep_read(&d, "w", out->w, 12, &error)) &&
           !zf_lockstep_read(&d, "count", &out->count, 8, &error);
    good = good && zf_store_step(zf_program_store(p[0])) == (trains ? 3 : 0);
    good = good && zf_program_step(p[0]) == 3;
    for (int r = 0; r < MOST_RANKS; r++) zf_program_free(p[r]), zf_graph_free(g[r]);
    return good;
}

/* Means over the parts have equal bits for any split into four, at every stage, trained and not;
 * target networks have the values of before the step. */
TEST_ONCE(states_are_assigned_once_a_step)
{
    for (int trains = 0; trains < 2; trains++) {
        zf_training plain = {.optimizer = ZF_SGD}, one = plain;
        states whole, parts, other;
        float w[3] = {0, 0, 0}, mean[3] = {1, 1, 1};
        if (!trains) plain = one = (zf_training){.loss = ZF_NONE};
        CHECK(t, run_states(t, 1, &plain, trains, false, &whole) && whole.count == 10);
        for (int step = 0; step < 3; step++)
            for (int i = 0; i < 3; i++) {
                float y = 0;
                for (int row = 0; row < 8; row++) y += (float)((row * 3 + i) * 5 % 17 + step) / 16;
                CHECK(t, trains || !memcmp(whole.target, w, sizeof w));
                mean[i] = 0.5f * mean[i] + 0.5f * (y / 8);
            }
        for (int i = 0; i < 3; i++) CHECK_NEAR(t, whole.mean[i], mean[i], 1e-6);
        CHECK(t, !trains || memcmp(whole.target, whole.w, sizeof w));
        one.zero.micro_batches = 4;
        CHECK(t, run_states(t, 1, &one, trains, false, &parts) && parts.count == 10);
        for (int i = 0; i < 3; i++) CHECK_NEAR(t, parts.mean[i], mean[i], 1e-6);
        for (int i = 0; i < 3; i++) CHECK_NEAR(t, parts.target[i], whole.target[i], 1e-6);
        for (int n = 0; n < 12; n++) {
            const int32_t world = 1 << n % 3;
            zf_training z = plain;
            z.zero.stage = n / 3, z.zero.micro_batches = PARTS / world;
            if (trains && n % 2) z.offload.optimizer = ZF_HOST;
            z.prefetch.bytes = n % 2 ? 1 << 16 : 0;
            CHECK(t, run_states(t, world, &z, trains, false, &other));
            CHECK(t, !memcmp(&parts, &other, sizeof parts));
        }
    }
}

/* In 16 bits states stay f32; what evaluates assigns nothing. */
TEST_ONCE(states_of_programs_that_evaluate)
{
    zf_training half = {.precision.dtype = ZF_BF16, .optimizer = ZF_SGD}, none = {.loss = ZF_NONE};
    states s;
    CHECK(t, run_states(t, 2, &half, true, false, &s) && s.count == 10 && s.mean[0] != 1);
    CHECK(t, run_states(t, 1, &none, false, true, &s) && s.count == 7 && s.mean[0] == 1);
    none.zero.stage = 3;
    CHECK(t, run_states(t, 2, &none, false, true, &s) && s.count == 7 && s.mean[0] == 1);
}

TEST(states_mistakes)
{
    static const char *const errors[] = {
        ("its value is computed from a part of the batch, of which there are several: "
         "zf_assign_desc.parts says whether the state takes their mean or their sum"),
        "is assigned already, by %",
        "operand 0 must be a state, not the result of param",
        "operand 1 must be f32[3] as the state is",
        "a mean or sum over the parts of a batch is float",
        "it must come before the optimizer"};
    for (int k = 0; k < 6; k++) {
        zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
        zf_tensor s, x, n;
        NEED(t, g, NULL);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        x = zf_param(g, "w", ZF_SHAPE(3), NULL), s = zf_state(g, "s", ZF_F32, ZF_SHAPE(3), 0);
        n = zf_state(g, "n", ZF_I64, ZF_SCALAR, 0);
        if (k == 0) {
            zf_assign(s, zf_input(g, "x", ZF_F32, ZF_SHAPE(3)));
            zf_zero(g, &(zf_zero_desc){.world = 2});
        }
        if (k == 1) zf_assign(s, x), zf_assign(s, x);
        if (k == 2) zf_assign(x, s);
        if (k == 3) zf_assign(s, zf_sum(x));
        if (k == 4) zf_assign_ex(n, n, &(zf_assign_desc){.parts = ZF_PARTS_SUM});
        if (k == 5)
            zf_autograd(g, zf_sum(x)), zf_sgd(g, zf_constant(g, ZF_F32, ZF_SCALAR, 1), NULL),
                zf_assign(s, x);
        CHECK(t, zf_graph_status(g));
        if (!strstr(zf_graph_error(g), errors[k]))
            test_unwind(t, __FILE__, __LINE__, errors[k], test_status_of(zf_graph_error(g)),
                        zf_graph_error(g));
    }
}
