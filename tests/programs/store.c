/* Stores: several programs over the same parameters and states, at every stage and on any number of
 * ranks: training in turns, evaluation, adapters, two models, layouts that fit or do not. */
#include "../support/test.h"
#include "../ranks/turns.h"

#include <pthread.h>

/* --------------------------------------------------------------------------------------- models */

enum { RANKS = 4, SLOTS = 4, ROWS = 4, IN = 37, HIDDEN = 71, OUT = 5, LOW = 3 };

/* The stores of all ranks. */
typedef struct family {
    int32_t world;
    zf_comm comms[RANKS];
    zf_store *stores[RANKS];
} family;

/* One program on each rank. */
typedef struct crew {
    int32_t world;
    int64_t slots; /* parts of a step's batch */
    zf_graph *graphs[RANKS];
    zf_program *programs[RANKS];
    zf_lockstep_desc lockstep;
} crew;

typedef struct crew_desc {
    int32_t stage;
    int32_t nodes; /* 0: 1 */
    int64_t rows;      /* 0: ROWS */
    bool forward;      /* no optimizer */
    bool lamb;
    bool adapter;      /* the base is frozen, and has a product of low rank added to it */
    const char *scope; /* of the model; NULL: none */
    const char *judge; /* of a second model, frozen, that reads the first one's result; NULL: none */
    bool half;         /* the first layer alone */
    double dropout;
    zf_dtype dtype;
    size_t bucket;
    bool knows_store; /* zf_zero knows it */
    bool plain;       /* without zf_zero; for one rank */
    bool must_exist, evaluate;
} crew_desc;

static void family_free(void *object)
{
    family *f = object;
    for (int r = 0; r < RANKS; r++) zf_store_free(f->stores[r]);
    *f = (family){.world = 0};
}

static void crew_free(void *object)
{
    crew *c = object;
    for (int r = 0; r < RANKS; r++) zf_program_free(c->programs[r]);
    for (int r = 0; r < RANKS; r++) zf_graph_free(c->graphs[r]);
    *c = (crew){.world = 0};
}

static zf_status fails_with(zf_error *error, zf_status status, const char *text)
{
    error->status = status;
    snprintf(error->text, sizeof error->text, "%s", text);
    return status;
}

static zf_status family_new(test *t, family *f, int32_t world, uint64_t seed, zf_error *error)
{
    family_free(f);
    f->world = world;
    for (int32_t r = 0; r < world; r++) {
        f->comms[r] = (zf_comm){.rank = r, .world = world};
        f->stores[r] = zf_store_new(&(zf_store_desc){.comm = world > 1 ? &f->comms[r] : NULL,
                                                     .seed = seed,
                                                     .allocator = t->allocator},
                                    error);
        if (!f->stores[r]) return error->status;
    }
    return ZF_OK;
}

/* x [rows, IN] through one model; `frozen`: its parameters are. */
static zf_tensor layers(zf_tensor x, const crew_desc *d, bool frozen)
{
    zf_graph *g = x.graph;
    const zf_param_desc normal = {.init = ZF_NORMAL, .std = 0.3, .dtype = d->dtype, .frozen = frozen},
                        low = {.init = ZF_NORMAL, .std = 0.2, .dtype = d->dtype},
                        zeros = {.dtype = d->dtype, .frozen = frozen};
    zf_tensor h = zf_matmul(x, zf_param(g, "in.weight", ZF_SHAPE(IN, HIDDEN), &normal));
    if (d->adapter) {
        zf_tensor a = zf_param(g, "in.lora_a", ZF_SHAPE(IN, LOW), &low),
                  b = zf_param(g, "in.lora_b", ZF_SHAPE(LOW, HIDDEN), &low);
        h = zf_add(h, zf_matmul(zf_matmul(x, a), b));
    }
    h = zf_tanh(zf_add(h, zf_param(g, "in.bias", ZF_SHAPE(HIDDEN), &zeros)));
    if (d->half) return h;
    h = zf_dropout(h, d->dropout);
    return zf_matmul(h, zf_param(g, "out.weight", ZF_SHAPE(HIDDEN, OUT), &normal));
}

static void passes(zf_graph *g, const crew_desc *d, int32_t world, const zf_store *store)
{
    zf_training training = {.loss = d->forward ? ZF_NONE : zf_graph_find(g, "error"),
                            .fuse.without = "all",
                            .clip = 0.1,
                            .optimizer = d->lamb ? ZF_LAMB : ZF_ADAMW};
    test_set(&training, "weight-decay", 0.01);
    if (!d->plain)
        training.zero = (zf_zero_desc){.stage = d->stage,
                                       .world = world,
                                       .nodes = d->nodes,
                                       .micro_batches = SLOTS / world,
                                       .bucket_bytes = d->bucket,
                                       .store = d->knows_store ? store : NULL};
    zf_passes(g, &training);
}

static void build(zf_graph *g, const crew_desc *d)
{
    const int64_t rows = d->rows ? d->rows : ROWS;
    zf_tensor x = zf_cast(zf_input(g, "x", ZF_F32, ZF_SHAPE(rows, IN)), d->dtype),
              y = zf_input(g, "y", ZF_F32, ZF_SHAPE(rows, OUT)),
              mask = zf_input(g, "mask", ZF_F32, ZF_SHAPE(rows, 1)), h;
    zf_input(g, "lr", ZF_F32, ZF_SCALAR);
    if (d->scope) zf_push(g, "%s", d->scope);
    h = layers(x, d, d->adapter);
    if (d->scope) zf_pop(g);
    if (d->judge) { /* reads how the first model's result, padded to its input, fares */
        zf_push(g, "%s", d->judge);
        h = layers(zf_pad(h, 1, 0, IN - OUT), d, true);
        zf_pop(g);
    }
    h = zf_cast(h, ZF_F32);
    if (!d->half) h = zf_sub(h, y);
    zf_output_ex(zf_scale(zf_sum(zf_mul(zf_mul(h, h), mask)), 1.0 / SLOTS), "error",
                 &(zf_output_desc){ZF_REDUCTION_SUM});
}

/* Programs over the family's stores. */
static zf_status crew_new(test *t, crew *c, family *f, const crew_desc *d, zf_error *error)
{
    crew_free(c);
    c->world = f->world;
    c->slots = d->plain ? 1 : SLOTS;
    c->lockstep = (zf_lockstep_desc){c->programs, f->world, 0};
    for (int32_t r = 0; r < f->world; r++) {
        zf_graph *g = c->graphs[r] = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
        if (!g) return fails_with(error, ZF_ERR_NOMEM, "out of memory");
        build(g, d);
        passes(g, d, f->world, f->stores[r]);
        c->programs[r] = zf_compile(g, &(zf_compile_desc){.store = f->stores[r],
                                                          .must_exist = d->must_exist,
                                                          .evaluate = d->evaluate,
                                                          .verify = true});
        if (!c->programs[r]) return fails_with(error, zf_graph_status(g), zf_graph_error(g));
    }
    return ZF_OK;
}

/* The data of slot `slot` in step `step`: rows from `some` on have no weight. */
static zf_status feed(crew *c, int32_t r, int64_t slot, int64_t step, int64_t some)
{
    zf_graph *g = c->graphs[r];
    zf_program *p = c->programs[r];
    zf_tensor x = zf_graph_find(g, "x"), y = zf_graph_find(g, "y"), mask = zf_graph_find(g, "mask");
    const int64_t rows = zf_tensor_shape(mask).dims[0];
    float values[ROWS * IN] = {0}, lr = 0.01f * (float)(step + 1);
    zf_status status;
    for (int64_t i = 0; i < rows * IN; i++)
        values[i] = i / IN < some ? (float)(i * 7 + step * 3 + slot * 5 - 20) / 211 : 0;
    if ((status = zf_write(p, x, values, zf_tensor_bytes(x)))) return status;
    for (int64_t i = 0; i < rows * OUT; i++)
        values[i] = i / OUT < some ? (float)(i + step - slot) / 13 : 0;
    if (zf_valid(y) && (status = zf_write(p, y, values, zf_tensor_bytes(y)))) return status;
    for (int64_t i = 0; i < rows; i++) values[i] = i < some;
    if ((status = zf_write(p, mask, values, zf_tensor_bytes(mask)))) return status;
    return zf_write(p, zf_graph_find(g, "lr"), &lr, sizeof lr);
}

/* One step, on the data of step `step`. */
static zf_status step_on(crew *c, int64_t step, int64_t some, float *loss, zf_error *error)
{
    zf_status status = ZF_OK;
    for (int64_t slot = 0; slot < c->slots && !status; slot++) {
        int32_t r = (int32_t)(slot % c->world);
        zf_program *p = c->programs[0];
        bool last = slot == c->slots - 1;
        if (feed(c, r, slot, step, some)) return fails_with(error, ZF_ERR_NOMEM, "not fed");
        if (r < c->world - 1) continue;
        if (c->world > 1)
            status = last ? zf_lockstep_step(&c->lockstep, error)
                          : zf_lockstep_micro(&c->lockstep, error);
        else if ((status = last ? zf_step(p) : zf_micro(p)))
            fails_with(error, status, zf_program_error(p));
    }
    if (status || !loss) return status;
    return zf_read(c->programs[0], zf_graph_find(c->graphs[0], "error"), loss, sizeof *loss);
}

static zf_status train(crew *c, int64_t steps, zf_error *error)
{
    zf_status status = ZF_OK;
    while (!status && zf_program_step(c->programs[0]) < steps)
        status = step_on(c, zf_program_step(c->programs[0]), ROWS, NULL, error);
    return status;
}

enum { IMAGE = 1 << 17 };

/* The bytes of every tensor of one rank's store whose name contains `with` (NULL: any) and not
 * `without` (NULL: none), in order; returns their number. */
static size_t image_of(const family *f, const char *with, const char *without,
                       unsigned char image[IMAGE])
{
    size_t at = 0;
    for (int32_t k = 0; k < zf_store_count(f->stores[0]); k++) {
        zf_stored about = zf_store_at(f->stores[0], k);
        size_t size = zf_dtype_size(about.dtype), bytes = (size_t)zf_shape_count(about.shape) * size;
        if ((with && !strstr(about.name, with)) || (without && strstr(about.name, without)))
            continue;
        if (at + bytes > IMAGE) return 0;
        if (zf_store_read(f->stores[0], about.name, image + at, bytes)) return 0;
        at += bytes;
    }
    return at;
}

/* The same for tensors that the programs name, which may be sharded, by lockstep; f: whose
 * order. */
static size_t cut_image_of(crew *c, const family *f, const char *without,
                           unsigned char image[IMAGE])
{
    size_t at = 0;
    zf_error error = {ZF_OK, ""};
    for (int32_t k = 0; k < zf_store_count(f->stores[0]); k++) {
        zf_stored about = zf_store_at(f->stores[0], k);
        size_t bytes = (size_t)zf_shape_count(about.shape) * zf_dtype_size(about.dtype);
        if ((without && strstr(about.name, without)) ||
            !zf_valid(zf_graph_find(c->graphs[0], about.name)))
            continue;
        if (at + bytes > IMAGE ||
            zf_lockstep_read(&c->lockstep, about.name, image + at, bytes, &error))
            return 0;
        at += bytes;
    }
    return at;
}

static bool same_cut(crew *a, crew *b, const family *f)
{
    static unsigned char x[IMAGE], y[IMAGE];
    size_t bytes = cut_image_of(a, f, NULL, x);
    return bytes && bytes == cut_image_of(b, f, NULL, y) && !memcmp(x, y, bytes);
}

/* -------------------------------------------------------------------------------- in turns */

static const struct {
    int32_t world, stage;
} ways[] = {{1, 0}, {1, 3}, {2, 0}, {2, 1}, {2, 3}, {4, 2}, {4, 3}};

enum { WAYS = sizeof ways / sizeof *ways };

/* Two programs that train in turns share one count of steps, and so have the random numbers of one
 * program that trains alone; evaluation in between changes nothing. */
TEST_ONCE(store_is_trained_in_turns)
{
    static family one, many;
    static crew alone, first, second, eval;
    test_defer(t, family_free, &one), test_defer(t, family_free, &many);
    test_defer(t, crew_free, &alone), test_defer(t, crew_free, &first);
    test_defer(t, crew_free, &second), test_defer(t, crew_free, &eval);
    for (int w = 0; w < WAYS; w++) {
        const crew_desc d = {.stage = ways[w].stage, .dropout = 0.3, .bucket = 3000},
                        e = {.stage = ways[w].stage,
                             .bucket = 3000,
                             .rows = 2,
                             .forward = true,
                             .must_exist = true,
                             .evaluate = true};
        zf_error error = {ZF_OK, ""};
        float loss = 0;
        OK(t, family_new(t, &one, ways[w].world, 5, &error), error.text);
        OK(t, family_new(t, &many, ways[w].world, 5, &error), error.text);
        OK(t, crew_new(t, &alone, &one, &d, &error), error.text);
        OK(t, train(&alone, 4, &error), error.text);
        OK(t, crew_new(t, &first, &many, &d, &error), error.text);
        OK(t, crew_new(t, &second, &many, &d, &error), error.text);
        OK(t, crew_new(t, &eval, &many, &e, &error), error.text);
        for (int step = 0; step < 4; step++) {
            crew *now = step % 2 ? &second : &first;
            OK(t, step_on(&eval, 9, 2, &loss, &error), error.text);
            OK(t, step_on(now, step, ROWS, NULL, &error), error.text);
        }
        CHECK(t, zf_store_step(many.stores[0]) == 4 && zf_program_step(first.programs[0]) == 4);
        CHECK(t, zf_program_step(eval.programs[0]) == 4);
        CHECK(t, same_cut(&alone, &second, &one));
        CHECK(t, zf_program_info_of(second.programs[0]).store_bytes == 0);
        CHECK(t, zf_program_info_of(second.programs[0]).bound_bytes > 0);
        crew_free(&eval), crew_free(&second), crew_free(&first), crew_free(&alone);
    }
}

/* Programs of two lengths over one store give the parameters of one program in which the additional
 * positions of the longer one have no weight. */
TEST_ONCE(store_is_trained_at_two_lengths)
{
    static family one, two;
    static crew alone, longer, shorter;
    test_defer(t, family_free, &one), test_defer(t, family_free, &two);
    test_defer(t, crew_free, &alone), test_defer(t, crew_free, &longer);
    test_defer(t, crew_free, &shorter);
    for (int w = 0; w < WAYS; w++) {
        const crew_desc lengthy = {.stage = ways[w].stage}, brief = {.stage = ways[w].stage,
                                                                     .rows = 2};
        zf_error error = {ZF_OK, ""};
        OK(t, family_new(t, &one, ways[w].world, 5, &error), error.text);
        OK(t, family_new(t, &two, ways[w].world, 5, &error), error.text);
        OK(t, crew_new(t, &alone, &one, &lengthy, &error), error.text);
        OK(t, crew_new(t, &shorter, &two, &brief, &error), error.text);
        OK(t, crew_new(t, &longer, &two, &lengthy, &error), error.text);
        for (int step = 0; step < 4; step++) {
            OK(t, step_on(&alone, step, step < 2 ? 2 : ROWS, NULL, &error), error.text);
            OK(t, step_on(step < 2 ? &shorter : &longer, step, step < 2 ? 2 : ROWS, NULL, &error),
               error.text);
        }
        CHECK(t, same_cut(&alone, &longer, &one));
        crew_free(&shorter), crew_free(&longer), crew_free(&alone);
    }
}

/* If another program has trained between micro-batches of a step, the step cannot be finished. */
TEST(store_step_is_not_stale)
{
    const crew_desc d = {.stage = 0};
    static family f;
    static crew a, b;
    zf_error error = {ZF_OK, ""};
    test_defer(t, family_free, &f), test_defer(t, crew_free, &a), test_defer(t, crew_free, &b);
    OK(t, family_new(t, &f, 1, 5, &error), error.text);
    OK(t, crew_new(t, &a, &f, &d, &error), error.text);
    OK(t, crew_new(t, &b, &f, &d, &error), error.text);
    OK(t, feed(&a, 0, 0, 0, ROWS), zf_program_error(a.programs[0]));
    OK(t, zf_micro(a.programs[0]), zf_program_error(a.programs[0]));
    OK(t, step_on(&b, 0, ROWS, NULL, &error), error.text);
    CHECK(t, zf_micro(a.programs[0]) == ZF_ERR_STAGE);
    CHECK_TEXT(t, zf_program_error(a.programs[0]),
               "zf_micro: another program has trained the store since the step's first "
               "micro-batch; the step starts anew");
    OK(t, step_on(&a, 1, ROWS, NULL, &error), error.text);
    CHECK(t, zf_store_step(f.stores[0]) == 2);
}

/* -------------------------------------------------------------------------------- adapters */

static bool is_adapter(void *user, const zf_stored *tensor)
{
    (void)user;
    return strstr(tensor->name, "lora") || strstr(tensor->name, ".step");
}

static zf_status save(crew *c, const char *path, const zf_save_desc *d, zf_error *error)
{
    return zf_lockstep_save(&c->lockstep, path, d, error);
}

static zf_status load(crew *c, const char *path, const zf_load_desc *d, zf_error *error)
{
    return zf_lockstep_load(&c->lockstep, path, d, error);
}

/* A base that was trained and saved; an adapter next to it is trained alone, saved alone, and goes
 * on from both checkpoints with the same bits, at another stage and on other ranks too. */
TEST_ONCE(store_of_base_and_adapter)
{
    static unsigned char base[IMAGE], image[IMAGE];
    char of_base[300], of_adapter[300];
    size_t bytes, whole;
    snprintf(of_base, sizeof of_base, "%s", test_path("base"));
    snprintf(of_adapter, sizeof of_adapter, "%s", test_path("adapter"));
    static family f, g;
    static crew trained, tuned, next;
    test_defer(t, family_free, &f), test_defer(t, family_free, &g);
    test_defer(t, crew_free, &trained), test_defer(t, crew_free, &tuned);
    test_defer(t, crew_free, &next);
    for (int w = 0; w < WAYS; w++) {
        const int again = (w + 3) % WAYS;
        const crew_desc d = {.stage = ways[w].stage, .dropout = 0.3},
                        lora = {.stage = ways[w].stage, .adapter = true, .dropout = 0.3},
                        other = {.stage = ways[again].stage, .adapter = true, .dropout = 0.3};
        const zf_load_desc params = {.params_only = true, .merge = true}, merge = {.merge = true};
        const zf_save_desc adapter = {.select = is_adapter};
        zf_error error = {ZF_OK, ""};
        OK(t, family_new(t, &f, ways[w].world, 5, &error), error.text);
        OK(t, crew_new(t, &trained, &f, &d, &error), error.text);
        OK(t, train(&trained, 2, &error), error.text);
        bytes = cut_image_of(&trained, &f, "adamw", base);
        CHECK(t, bytes == (IN * HIDDEN + HIDDEN + HIDDEN * OUT) * 4);
        OK(t, save(&trained, of_base, NULL, &error), error.text);
        crew_free(&trained);
        OK(t, family_new(t, &f, ways[w].world, 6, &error), error.text);
        OK(t, crew_new(t, &tuned, &f, &lora, &error), error.text);
        OK(t, load(&tuned, of_base, &params, &error), error.text);
        CHECK(t, zf_store_step(f.stores[0]) == 0);
        OK(t, train(&tuned, 3, &error), error.text);
        OK(t, save(&tuned, of_adapter, &adapter, &error), error.text);
        OK(t, train(&tuned, 5, &error), error.text);
        OK(t, family_new(t, &g, ways[again].world, 7, &error), error.text);
        OK(t, crew_new(t, &next, &g, &other, &error), error.text);
        CHECK(t, load(&next, of_adapter, NULL, &error) == ZF_ERR_MISMATCH);
        CHECK(t, strstr(error.text, "the checkpoint lacks the param \"in.weight\""));
        error = (zf_error){ZF_OK, ""};
        OK(t, load(&next, of_base, &params, &error), error.text);
        OK(t, load(&next, of_adapter, &merge, &error), error.text);
        CHECK(t, zf_store_step(g.stores[0]) == 3);
        OK(t, train(&next, 5, &error), error.text);
        CHECK(t, same_cut(&tuned, &next, &f));
        whole = cut_image_of(&next, &g, "lora", image); /* the base, and the count of steps */
        CHECK(t, whole == bytes + 8 && !memcmp(image, base, (size_t)IN * HIDDEN * 4));
        crew_free(&next), crew_free(&tuned);
    }
}

/* The same before any program: base and adapter come together in host memory, and what is compiled
 * over them takes them from there. */
TEST(store_loads_before_it_is_compiled)
{
    const crew_desc d = {.plain = true, .rows = 3}, lora = {.adapter = true, .must_exist = true},
                    wide = {.adapter = true};
    char of_base[300], of_adapter[300];
    static family f, g;
    static crew base, tuned, next;
    static unsigned char a[IMAGE];
    zf_error error = {ZF_OK, ""};
    zf_store_info info;
    size_t bytes;
    snprintf(of_base, sizeof of_base, "%s", test_path("early-base"));
    snprintf(of_adapter, sizeof of_adapter, "%s", test_path("early-adapter"));
    test_defer(t, family_free, &f), test_defer(t, family_free, &g);
    test_defer(t, crew_free, &base), test_defer(t, crew_free, &tuned);
    test_defer(t, crew_free, &next);
    OK(t, family_new(t, &f, 1, 5, &error), error.text);
    OK(t, crew_new(t, &base, &f, &d, &error), error.text);
    OK(t, zf_save(f.stores[0], of_base, NULL), zf_store_error(f.stores[0]));
    crew_free(&base);
    OK(t, family_new(t, &f, 1, 6, &error), error.text);
    OK(t, crew_new(t, &tuned, &f, &wide, &error), error.text);
    OK(t, zf_load(f.stores[0], of_base, &(zf_load_desc){.params_only = true, .merge = true}),
       zf_store_error(f.stores[0]));
    OK(t, train(&tuned, 2, &error), error.text);
    OK(t, zf_save(f.stores[0], of_adapter, &(zf_save_desc){.select = is_adapter}),
       zf_store_error(f.stores[0]));
    OK(t, family_new(t, &g, 1, 0, &error), error.text);
    OK(t, zf_load(g.stores[0], of_base, &(zf_load_desc){.params_only = true}),
       zf_store_error(g.stores[0]));
    CHECK(t, zf_store_count(g.stores[0]) == 3 && zf_store_step(g.stores[0]) == 0);
    OK(t, zf_load(g.stores[0], of_adapter, &(zf_load_desc){.merge = true}),
       zf_store_error(g.stores[0]));
    CHECK(t, zf_store_count(g.stores[0]) == 10 && zf_store_step(g.stores[0]) == 2);
    CHECK(t, zf_store_at(g.stores[0], 0).bucket == -1);
    info = zf_store_info_of(g.stores[0]);
    CHECK(t, info.bytes == 0 && info.host_bytes > 0);
    bytes = image_of(&f, NULL, NULL, a);
    CHECK(t, bytes && info.host_bytes == bytes);
    OK(t, crew_new(t, &next, &g, &lora, &error), error.text);
    info = zf_store_info_of(g.stores[0]);
    CHECK(t, info.bytes > 0 && info.host_bytes == 0);
    CHECK(t, zf_store_at(g.stores[0], 0).bucket >= 0);
    OK(t, train(&tuned, 4, &error), error.text);
    OK(t, train(&next, 4, &error), error.text);
    CHECK(t, same_cut(&tuned, &next, &f));
}

/* ------------------------------------------------------------------------------- two models */

/* Each is trained by a program of its own, one of which reads the other model, frozen. */
TEST_ONCE(store_of_two_models)
{
    static family f;
    static crew policy, reward;
    test_defer(t, family_free, &f), test_defer(t, crew_free, &policy);
    test_defer(t, crew_free, &reward);
    for (int w = 0; w < WAYS; w++) {
        const crew_desc d = {.stage = ways[w].stage, .scope = "policy", .judge = "reward"},
                        r = {.stage = ways[w].stage, .scope = "reward", .knows_store = true};
        static unsigned char before[IMAGE], after[IMAGE];
        zf_error error = {ZF_OK, ""};
        size_t bytes;
        float first = 0, last = 0;
        OK(t, family_new(t, &f, ways[w].world, 5, &error), error.text);
        OK(t, crew_new(t, &policy, &f, &d, &error), error.text);
        OK(t, crew_new(t, &reward, &f, &r, &error), error.text);
        CHECK(t, zf_store_count(f.stores[0]) == 6 + 6 + 6 + 1);
        bytes = cut_image_of(&reward, &f, NULL, before);
        OK(t, step_on(&policy, 0, ROWS, &first, &error), error.text);
        CHECK(t, cut_image_of(&reward, &f, "adamw", after) && !memcmp(before, after, IN * HIDDEN));
        OK(t, step_on(&reward, 1, ROWS, NULL, &error), error.text);
        CHECK(t, cut_image_of(&reward, &f, NULL, after) == bytes && memcmp(before, after, bytes));
        OK(t, step_on(&policy, 0, ROWS, &last, &error), error.text);
        CHECK(t, first != last && zf_store_step(f.stores[0]) == 3);
        crew_free(&policy), crew_free(&reward);
    }
}

/* ---------------------------------------------------------------------------------- layouts */

/* On every rank, a layout that differs is an error that names both, and the store does not change;
 * a program that knows the store fits it, also with a part of the parameters. */
TEST(store_refuses_another_layout)
{
    static const struct {
        crew_desc first, second;
        int32_t world;
        const char *text;
    } cases[] = {
        {{.stage = 3},
         {.stage = 0, .forward = true},
         2,
         "zf_compile: \"in.weight\" is to be element 0 of a bucket of 6144, whole on each rank, "
         "and "
         "in the store it is element 0 of a bucket of 6144, sharded over 2 ranks: give zf_zero the "
         "same "
         "stage, world and nodes, and the store (zf_zero_desc.store), or zf_store_copy the values "
         "to a store of another layout"},
        {{.stage = 3},
         {.stage = 3, .forward = true, .half = true},
         2,
         "zf_compile: \"in.weight\" is to be element 0 of a bucket of 4096, sharded over 2 ranks, "
         "and "
         "in the store it is element 0 of a bucket of 6144, sharded over 2 ranks: give zf_zero the "
         "same "
         "stage, world and nodes, and the store (zf_zero_desc.store), or zf_store_copy the values "
         "to a store of another layout"},
        {{.plain = true},
         {.stage = 0, .forward = true},
         1,
         "zf_compile: \"in.weight\" is to be element 0 of a bucket of 5120, whole on each rank, "
         "and in the store it is apart, whole on each rank: give zf_zero the same stage, world and "
         "nodes, and "
         "the store (zf_zero_desc.store), or zf_store_copy the values to a store of another "
         "layout"},
        {{.stage = 3}, /* the same shards of other ranks */
         {.stage = 3, .nodes = 2, .forward = true},
         4,
         "zf_compile: \"in.weight\" is to be element 0 of a bucket of 8192, sharded over 4 ranks of "
         "2 nodes, and in the store it is element 0 of a bucket of 8192, sharded over 4 ranks: give "
         "zf_zero the same stage, world and nodes, and the store (zf_zero_desc.store), or "
         "zf_store_copy the values to a store of another layout"},
        {{.stage = 3}, /* shards of other parameters */
         {.stage = 3, .nodes = 2, .forward = true, .scope = "other"},
         4,
         "zf_compile: shards in the store are those of ranks in 1 nodes; give zf_zero as many, and not "
         "2 (zf_zero_desc.nodes)"},
        {{.stage = 0}, {.plain = true, .forward = true}, 1, NULL},
        {{.stage = 3}, {.stage = 3, .forward = true, .half = true, .knows_store = true}, 2, NULL},
        {{.stage = 3, .half = true}, {.stage = 3, .knows_store = true, .bucket = 1}, 2, NULL},
        {{.stage = 2, .bucket = 1}, {.stage = 1, .knows_store = true}, 2, NULL},
    };
    static family f;
    static crew a, b;
    test_defer(t, family_free, &f), test_defer(t, crew_free, &a), test_defer(t, crew_free, &b);
    for (int k = 0; k < (int)(sizeof cases / sizeof *cases); k++) {
        zf_error error = {ZF_OK, ""};
        int32_t count;
        size_t bytes;
        OK(t, family_new(t, &f, cases[k].world, 5, &error), error.text);
        OK(t, crew_new(t, &a, &f, &cases[k].first, &error), error.text);
        count = zf_store_count(f.stores[0]);
        bytes = zf_store_info_of(f.stores[0]).bytes;
        if (!cases[k].text) {
            float loss = 0;
            OK(t, crew_new(t, &b, &f, &cases[k].second, &error), error.text);
            OK(t, step_on(&b, 0, ROWS, &loss, &error), error.text);
        } else {
            for (int32_t r = 0; r < cases[k].world; r++) {
                zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
                zf_program *p;
                NEED(t, g, NULL);
                test_defer(t, (test_cleanup *)zf_graph_free, g);
                build(g, &cases[k].second);
                passes(g, &cases[k].second, cases[k].world, f.stores[r]);
                p = zf_compile(g, &(zf_compile_desc){.store = f.stores[r]});
                zf_program_free(p);
                CHECK(t, !p);
                CHECK_TEXT(t, zf_graph_error(g), cases[k].text);
                CHECK(t, zf_graph_status(g) == ZF_ERR_MISMATCH);
                CHECK(t, zf_store_count(f.stores[r]) == count &&
                             zf_store_info_of(f.stores[r]).bytes == bytes);
            }
        }
        crew_free(&b), crew_free(&a);
    }
}

/* A leaf that the store lacks is added in a bucket of it where no other one lies. */
TEST(store_adds_no_leaf_over_another)
{
#define BUCKET(second, at)                                                                         \
    "zero stage=0 world=1 micro_batches=1\n%1 = param \"a\" : f32[1024]\n%2 = param \"" second     \
    "\" : f32[1024]\n%3 = bucket %1, %2 {at=[0," at                                                \
    "] size=3072} : f32[3072]\n%4 = sum %3 : f32[]\n"                                              \
    "     output %4 \"y\"\n"
    static const char *const texts[] = {BUCKET("b", "1024"), BUCKET("c", "1024"),
                                        BUCKET("c", "2048")};
#undef BUCKET
    static family f;
    zf_error error = {ZF_OK, ""};
    test_defer(t, family_free, &f);
    OK(t, family_new(t, &f, 1, 5, &error), error.text);
    for (int k = 0; k < 3; k++) {
        zf_graph *g = zf_graph_parse(texts[k], strlen(texts[k]), NULL, &error);
        zf_program *p;
        NEED(t, g, &error);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        p = zf_compile(g, &(zf_compile_desc){.store = f.stores[0]});
        if (p) test_defer(t, (test_cleanup *)zf_program_free, p);
        if (k != 1) {
            OK(t, zf_graph_status(g), zf_graph_error(g));
            continue;
        }
        GIVES(t, zf_graph_status(g), ZF_ERR_MISMATCH, zf_graph_error(g));
        CHECK(t, strstr(zf_graph_error(g),
                        "zf_compile: \"c\" is to be element 1024 of a bucket of 3072, "
                        "whole on each rank, and in the store it is not there"));
    }
}

/* Values go from one layout to another, and training goes on with the same bits. */
TEST_ONCE(store_copies_to_another_layout)
{
    static family f, g;
    static crew a, b;
    test_defer(t, family_free, &f), test_defer(t, family_free, &g);
    test_defer(t, crew_free, &a), test_defer(t, crew_free, &b);
    for (int stage = 0; stage < 4; stage++) {
        const zf_dtype dtype = stage % 2 ? ZF_BF16 : ZF_F32;
        const crew_desc d = {.plain = true, .dtype = dtype}, z = {.stage = stage, .dtype = dtype};
        zf_error error = {ZF_OK, ""};
        const crew_desc one = {.stage = 0, .bucket = 1, .dtype = dtype};
        OK(t, family_new(t, &f, 1, 5, &error), error.text);
        OK(t, family_new(t, &g, 1, 9, &error), error.text);
        OK(t, crew_new(t, &a, &f, &one, &error), error.text);
        OK(t, train(&a, 2, &error), error.text);
        OK(t, crew_new(t, &b, &g, stage ? &z : &d, &error), error.text);
        OK(t, zf_store_copy(g.stores[0], f.stores[0]), zf_store_error(g.stores[0]));
        CHECK(t, same_cut(&a, &b, &f));
        CHECK(t, zf_store_step(g.stores[0]) == 0); /* what is copied are values */
        crew_free(&a), crew_free(&b);
    }
}

/* ------------------------------------------------------------------------------ first values */

/* Master weights start as the parameters before they are rounded, whichever program names them
 * first; and as what parameters have become, where these have been changed. */
TEST(store_master_weights)
{
    const crew_desc d = {.dtype = ZF_BF16, .stage = 0}, e = {.dtype = ZF_BF16, .forward = true};
    static family one, two;
    static crew alone, eval, late;
    static unsigned char a[IMAGE], b[IMAGE];
    static uint16_t narrow[IN * HIDDEN];
    static float wide[IN * HIDDEN];
    zf_error error = {ZF_OK, ""};
    size_t bytes;
    int32_t k, rounded = 0;
    test_defer(t, family_free, &one), test_defer(t, family_free, &two);
    test_defer(t, crew_free, &alone), test_defer(t, crew_free, &eval);
    test_defer(t, crew_free, &late);
    OK(t, family_new(t, &one, 1, 5, &error), error.text);
    OK(t, family_new(t, &two, 1, 5, &error), error.text);
    OK(t, crew_new(t, &alone, &one, &d, &error), error.text);
    OK(t, crew_new(t, &eval, &two, &e, &error), error.text);
    OK(t, step_on(&eval, 0, ROWS, NULL, &error), error.text);
    OK(t, crew_new(t, &late, &two, &d, &error), error.text);
    k = zf_store_find(two.stores[0], "adamw.master/in.weight");
    CHECK(t, k >= 0 && !strcmp(zf_store_at(two.stores[0], k).master_of, "in.weight"));
    OK(t, zf_store_read(two.stores[0], "adamw.master/in.weight", wide, sizeof wide),
       zf_store_error(two.stores[0]));
    for (int i = 0; i < IN * HIDDEN; i++) {
        uint32_t bits;
        memcpy(&bits, &wide[i], sizeof bits);
        rounded += (bits & 0xffff) == 0;
    }
    CHECK(t, rounded < IN * HIDDEN / 100);
    bytes = image_of(&one, "in.weight", NULL, a);
    CHECK(t, bytes && image_of(&two, "in.weight", NULL, b) == bytes && !memcmp(a, b, bytes));
    crew_free(&late);
    crew_free(&eval);
    OK(t, family_new(t, &two, 1, 5, &error), error.text);
    OK(t, crew_new(t, &eval, &two, &e, &error), error.text);
    for (int i = 0; i < IN * HIDDEN; i++) narrow[i] = (uint16_t)(0x3f00 + i % 128);
    OK(t, zf_store_write(two.stores[0], "in.weight", narrow, sizeof narrow),
       zf_store_error(two.stores[0]));
    OK(t, crew_new(t, &late, &two, &d, &error), error.text);
    OK(t, zf_store_read(two.stores[0], "adamw.master/in.weight", wide, sizeof wide),
       zf_store_error(two.stores[0]));
    for (int i = 0; i < IN * HIDDEN; i++) {
        uint32_t bits;
        memcpy(&bits, &wide[i], sizeof bits);
        CHECK(t, bits == (uint32_t)narrow[i] << 16);
    }
}

/* Projections that one program has made neighbours are so for the next. */
TEST(store_keeps_neighbours)
{
    zf_store *store = zf_store_new(&(zf_store_desc){.allocator = t->allocator}, NULL);
    char text[2048];
    NEED(t, store, NULL);
    test_defer(t, (test_cleanup *)zf_store_free, store);
    for (int k = 0; k < 3; k++) {
        const zf_param_desc normal = {.init = ZF_NORMAL, .std = 1};
        zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
        zf_program *p;
        zf_tensor x, w[2];
        float ones[4 * 16], y[4 * 32];
        NEED(t, g, NULL);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        x = zf_input(g, "x", ZF_F32, ZF_SHAPE(4, 16));
        w[k == 2] = zf_param(g, "a", ZF_SHAPE(16, 16), &normal);
        w[k != 2] = zf_param(g, "b", ZF_SHAPE(16, 16), &normal);
        x = zf_matmul_ex(x, zf_concat(w, 2, 0), &(zf_matmul_desc){.transpose_b = true});
        zf_output(x, "y");
        p = zf_compile(g, &(zf_compile_desc){.store = store, .verify = true});
        if (!p) OK(t, zf_graph_status(g), zf_graph_error(g));
        test_defer(t, (test_cleanup *)zf_program_free, p);
        zf_graph_text(g, text, sizeof text);
        /* A view of the store; in the other order, a copy of the program's */
        CHECK(t, k != 1 || strstr(text, "concat %2, %3 : f32[32,16]\n"));
        CHECK(t, k != 2 || strstr(text, "concat %3, %2 : f32[32,16] @") ||
                     strstr(text, "concat %2, %3 : f32[32,16] @"));
        for (int i = 0; i < 64; i++) ones[i] = (float)i;
        OK(t, zf_write(p, zf_graph_find(g, "x"), ones, sizeof ones), zf_program_error(p));
        OK(t, zf_step(p), zf_program_error(p));
        OK(t, zf_read(p, x, y, sizeof y), zf_program_error(p));
        {
            static float first[4 * 32];
            if (!k) memcpy(first, y, sizeof y);
            if (k == 1) CHECK(t, !memcmp(first, y, sizeof y));
            for (int i = 0; i < 4 * 32 && k == 2; i++)
                CHECK(t, y[i] == first[i / 32 * 32 + (i + 16) % 32]);
        }
    }
}

/* ------------------------------------------------------------------------------------ memory */

/* A CPU backend that counts. */
static struct {
    zf_backend backend;
    size_t bytes, least;
} counted;

static void *(*allocate_of_cpu)(void *, size_t, zf_error *);
static void (*release_of_cpu)(void *, void *, size_t);

static void *count_allocation(void *self, size_t bytes, zf_error *error)
{
    void *memory = allocate_of_cpu(self, bytes, error);
    if (memory) counted.bytes += bytes;
    return memory;
}

static void count_release(void *self, void *memory, size_t bytes)
{
    counted.bytes -= bytes;
    release_of_cpu(self, memory, bytes);
}

static zf_backend *counted_over(const zf_backend *cpu)
{
    counted.backend = *cpu;
    counted.backend.allocate = count_allocation, counted.backend.release = count_release;
    allocate_of_cpu = cpu->allocate, release_of_cpu = cpu->release;
    counted.bytes = 0;
    return &counted.backend;
}

typedef struct four {
    zf_store *store;
    zf_graph *graphs[4];
    zf_program *programs[4];
} four;

static void four_free(void *object)
{
    four *f = object;
    for (int k = 0; k < 4; k++) zf_program_free(f->programs[k]);
    for (int k = 0; k < 4; k++) zf_graph_free(f->graphs[k]);
    zf_store_free(f->store);
    *f = (four){.store = NULL};
}

/* The bytes that each program adds are known before they are allocated, and the store's memory is
 * freed with its last user. */
TEST(store_memory_is_known)
{
    static four f;
    zf_error error = {ZF_OK, ""};
    zf_backend *cpu = zf_cpu_backend(&(zf_cpu_desc){.allocator = t->allocator}, &error);
    zf_store *store;
    size_t stored = 0, sum = 0;
    NEED(t, cpu, &error);
    test_defer(t, (test_cleanup *)zf_backend_free, cpu);
    store = zf_store_new(&(zf_store_desc){.backend = counted_over(cpu), .allocator = t->allocator},
                         &error);
    NEED(t, store, &error);
    f.store = store;
    test_defer(t, four_free, &f);
    for (int k = 0; k < 4; k++) {
        const crew_desc d = {.plain = true, .forward = k == 1, .adapter = k == 2, .lamb = k == 3};
        zf_graph *g = f.graphs[k] = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
        zf_plan plan = {0};
        zf_program_info info;
        if (k == 3) zf_store_free(store), f.store = NULL; /* the programs hold it still */
        NEED(t, g, NULL);
        build(g, &d);
        passes(g, &d, 1, store);
        zf_memory(g, &(zf_memory_desc){.backend = &counted.backend, .store = store});
        OK(t, zf_graph_plan(g, &plan), zf_graph_error(g));
        f.programs[k] = zf_compile(g, &(zf_compile_desc){.store = store});
        if (!f.programs[k]) OK(t, zf_graph_status(g), zf_graph_error(g));
        info = zf_program_info_of(f.programs[k]);
        sum += plan.peak_bytes, stored += info.store_bytes;
        CHECK(t, counted.bytes == sum && info.peak_bytes == plan.peak_bytes);
        CHECK(t, info.allocated_bytes == plan.peak_bytes);
        CHECK(t, (k == 1) == (info.store_bytes == 0) && (k == 0) == (info.bound_bytes == 0));
        CHECK(t, zf_store_info_of(store).bytes == stored);
        CHECK(t, zf_store_info_of(store).program_bytes == sum - stored);
    }
    for (int k = 0; k < 3; k++) zf_program_free(f.programs[k]), f.programs[k] = NULL;
    CHECK(t, zf_store_info_of(store).bytes == stored && zf_store_count(store) > 8);
    four_free(&f);
    CHECK(t, counted.bytes == 0);
}

TEST(store_limit_counts_all)
{
    zf_error error = {ZF_OK, ""};
    size_t peak = 0;
    for (int run = 0; run < 2; run++) {
        zf_store *store = zf_store_new(
            &(zf_store_desc){.memory_limit = peak, .allocator = t->allocator}, &error);
        NEED(t, store, &error);
        test_defer(t, (test_cleanup *)zf_store_free, store);
        for (int k = 0; k <= run; k++) {
            const crew_desc d = {.plain = true, .rows = 2 + k, .forward = k > 0};
            zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
            zf_program *p;
            char text[300];
            NEED(t, g, NULL);
            test_defer(t, (test_cleanup *)zf_graph_free, g);
            build(g, &d);
            passes(g, &d, 1, store);
            p = zf_compile(g, &(zf_compile_desc){.store = store});
            if (p) test_defer(t, (test_cleanup *)zf_program_free, p);
            if (!k && !p) OK(t, zf_graph_status(g), zf_graph_error(g));
            if (!k) peak = zf_program_info_of(p).allocated_bytes;
            if (!k) continue;
            if (t->refused) OK(t, zf_graph_status(g), zf_graph_error(g));
            CHECK(t, !p && zf_graph_status(g) == ZF_ERR_LIMIT);
            snprintf(text, sizeof text, "zf_compile: the plan takes ");
            CHECK(t, !strncmp(zf_graph_error(g), text, strlen(text)));
            CHECK(t, strstr(zf_graph_error(g), "more than the store's limit of "));
        }
    }
}

/* ------------------------------------------------------------------------------------ asking */

TEST(store_answers)
{
    zf_store *store = zf_store_new(&(zf_store_desc){.allocator = t->allocator}, NULL);
    static family f;
    static crew c;
    const crew_desc d = {.stage = 3};
    zf_error error = {ZF_OK, ""};
    float number = 0;
    static float room[IN * HIDDEN];
    zf_stored about;
    NEED(t, store, NULL);
    test_defer(t, (test_cleanup *)zf_store_free, store);
    zf_store_free(NULL);
    CHECK(t, zf_store_count(NULL) == 0 && zf_store_find(NULL, "w") == -1 && !zf_store_step(NULL));
    CHECK(t, !zf_store_at(NULL, 0).name && !zf_store_at(store, 0).name);
    CHECK(t, zf_store_find(store, NULL) == -1 && !zf_program_store(NULL));
    CHECK(t, zf_store_info_of(NULL).bytes == 0);
    CHECK_TEXT(t, zf_store_error(NULL), "there is no store");
    CHECK(t, zf_store_read(NULL, "w", &number, 4) == ZF_ERR_ARGUMENT);
    CHECK(t, zf_store_write(NULL, "w", &number, 4) == ZF_ERR_ARGUMENT);
    CHECK(t, zf_store_copy(NULL, store) == ZF_ERR_ARGUMENT);
    CHECK(t, zf_store_copy(store, NULL) == ZF_ERR_ARGUMENT);
    CHECK_TEXT(t, zf_store_error(store), "zf_store_copy: no store to copy from");
    CHECK(t, zf_ema_copy(store, NULL, NULL) == ZF_ERR_ARGUMENT);
    CHECK_TEXT(t, zf_store_error(store), "zf_ema_copy: no store to copy from");
    CHECK(t, zf_save(NULL, "x", NULL) == ZF_ERR_ARGUMENT);
    CHECK(t, zf_load(NULL, "x", NULL) == ZF_ERR_ARGUMENT);
    CHECK(t, zf_store_read(store, "w", &number, 4) == ZF_ERR_ARGUMENT);
    CHECK_TEXT(t, zf_store_error(store), "zf_store_read: the store has no tensor \"w\"");
    CHECK(t, zf_store_write(store, NULL, &number, 4) == ZF_ERR_ARGUMENT);
    CHECK_TEXT(t, zf_store_error(store), "zf_store_write: the store has no tensor NULL");
    test_defer(t, family_free, &f), test_defer(t, crew_free, &c);
    OK(t, family_new(t, &f, 2, 5, &error), error.text);
    OK(t, crew_new(t, &c, &f, &d, &error), error.text);
    about = zf_store_at(f.stores[1], zf_store_find(f.stores[1], "in.weight"));
    CHECK(t, about.name && !about.state && about.dtype == ZF_F32 && about.shape.dims[1] == HIDDEN);
    CHECK(t, about.bucket == 0 && about.at == 0 && about.world == 2 && about.bucket_size == 6144);
    /* The parts of 3072 elements: rank 0 has the first, rank 1 none of these 2627 */
    CHECK(t, about.first == 0 && about.count == 0);
    about = zf_store_at(f.stores[0], zf_store_find(f.stores[0], "in.weight"));
    CHECK(t, about.first == 0 && about.count == IN * HIDDEN);
    about = zf_store_at(f.stores[0], zf_store_find(f.stores[0], "adamw.m/in.weight"));
    CHECK(t, about.state && !about.master_of && about.bucket > 0);
    CHECK(t, zf_store_read(f.stores[0], "in.bias", NULL, 284) == ZF_ERR_ARGUMENT);
    CHECK_TEXT(t, zf_store_error(f.stores[0]), "zf_store_read: data is NULL");
    CHECK(t, zf_store_write(f.stores[0], "in.bias", NULL, 284) == ZF_ERR_ARGUMENT);
    CHECK_TEXT(t, zf_store_error(f.stores[0]), "zf_store_write: data is NULL");
    CHECK(t, zf_store_read(f.stores[0], "in.weight", room, sizeof room) == ZF_ERR_ARGUMENT);
    CHECK_TEXT(
        t, zf_store_error(f.stores[0]),
        "zf_store_read: \"in.weight\" is cut over the ranks, which the communicator cannot ask "
        "(zf_comm.run is NULL); zf_lockstep_read can");
    CHECK(t, zf_store_read(f.stores[0], "in.bias", &number, 4) == ZF_ERR_ARGUMENT);
    CHECK_TEXT(t, zf_store_error(f.stores[0]),
               "zf_store_read: \"in.bias\" is f32[71], 284 bytes, not 4");
    CHECK(t, !zf_store_new(&(zf_store_desc){.comm = &(zf_comm){.rank = 3, .world = 2},
                                            .allocator = t->allocator},
                           &error));
    CHECK_TEXT(t, error.text, t->refused ? error.text : "zf_store_new: rank 3 of a world of 2");
}

/* Adds what the text names to a store. */
static zf_store *store_with(test *t, const char *text)
{
    zf_error error = {ZF_OK, ""};
    zf_store *store = zf_store_new(&(zf_store_desc){.allocator = t->allocator}, &error);
    zf_graph *g = store ? zf_graph_parse(text, strlen(text), NULL, &error) : NULL;
    zf_program *p = g ? zf_compile(g, &(zf_compile_desc){.store = store}) : NULL;
    if (store) test_defer(t, (test_cleanup *)zf_store_free, store);
    if (g && !p) error = (zf_error){zf_graph_status(g), ""};
    if (!p) test_unwind(t, __FILE__, __LINE__, "store_with", error.status, error.text);
    zf_program_free(p);
    zf_graph_free(g);
    return p ? store : NULL;
}

#define PARAM(name, shape) "%1 = param \"" name "\" : f32" shape "\noutput %1 \"y\"\n"

TEST(store_of_what_does_not_fit)
{
    static const char disk[] = "%1 = input \"x\" : f32[1024]\n"
                               "%2 = state \"s\" : f32[1024] disk\n"
                               "%3 = copy %2 {to=host} : f32[1024] host\n"
                               "%4 = copy %3 : f32[1024]\n%5 = add %1, %4 : f32[1024]\n"
                               "%6 = sum %5 : f32[]\noutput %6 \"y\"\n";
    zf_store *store = store_with(t, PARAM("a.lora_A.weight", "[2,4]")), *other;
    zf_error error = {ZF_OK, ""};
    zf_backend *cpu, away;
    zf_graph *g;
    if (!store) return;
    GIVES(t, zf_lora_merge(store, NULL), ZF_ERR_MISMATCH, zf_store_error(store));
    CHECK_TEXT(t, zf_store_error(store),
               "zf_lora_merge: \"a.lora_A.weight\" is of \"a\", which the store does not have");
    store = store_with(t, "%2 = param \"a.weight\" : f32[4,4]\noutput %2 \"z\"\n" PARAM(
                              "a.lora_A.weight", "[2,4]"));
    if (!store) return;
    GIVES(t, zf_lora_merge(store, NULL), ZF_ERR_MISMATCH, zf_store_error(store));
    CHECK_TEXT(t, zf_store_error(store),
               "zf_lora_merge: there is \"a.lora_A.weight\", and no \"a.lora_B.weight\"");
    store = store_with(t, "%2 = param \"a.weight\" : f32[7,4]\noutput %2 \"z\"\n"
                          "%3 = param \"a.lora_embedding_B.weight\" : f32[4,2]\noutput %3 \"w\"\n" PARAM(
                              "a.lora_embedding_A.weight", "[2,7]"));
    if (!store) return;
    GIVES(t, zf_lora_merge(store, NULL), ZF_ERR_MISMATCH, zf_store_error(store));
    CHECK_TEXT(t, zf_store_error(store),
               "zf_lora_merge: a.weight is f32[7,4], A f32[2,7] and B f32[4,2]; they must be "
               "[rows, width], [rows, rank] and [width, rank]");
    store = store_with(t, "%2 = param \"a.weight\" : f32[7,4]\noutput %2 \"z\"\n"
                          "%3 = param \"a.lora_B.weight\" : f32[7,2]\noutput %3 \"w\"\n"
                          "%4 = param \"a.lora_magnitude_vector.weight\" : f32[4]\noutput %4 \"v\"\n" PARAM(
                              "a.lora_A.weight", "[2,4]"));
    if (!store) return;
    GIVES(t, zf_lora_merge(store, NULL), ZF_ERR_MISMATCH, zf_store_error(store));
    CHECK_TEXT(t, zf_store_error(store),
               "zf_lora_merge: a.weight is f32[7,4], A f32[2,4] and B f32[7,2]; they must be "
               "[out, in], [rank, in] and [out, rank], with a magnitude for each result");
    store = store_with(t, PARAM("a.weight", "[4,4]"));
    if (!store) return;
    if (!(other = store_with(t, PARAM("a.weight", "[4,5]")))) return;
    GIVES(t, zf_store_copy(other, store), ZF_ERR_MISMATCH, zf_store_error(other));
    CHECK_TEXT(t, zf_store_error(other),
               "zf_store_copy: \"a.weight\" is a param f32[4,5] here and a param f32[4,4] there");
    GIVES(t, zf_ema_copy(other, store, NULL), ZF_ERR_MISMATCH, zf_store_error(other));
    CHECK(t,
          strstr(zf_store_error(other), "zf_ema_copy: \"a.weight\" has another shape in the other "
                                        "store"));
    g = zf_graph_parse(disk, strlen(disk), NULL, &error);
    NEED(t, g, &error);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    CHECK(t, !zf_compile(g, &(zf_compile_desc){.store = store}));
    GIVES(t, zf_graph_status(g), ZF_ERR_ARGUMENT, zf_graph_error(g));
    CHECK(t, strstr(zf_graph_error(g), "bytes of a disk, and the store has no folder for them "
                                       "(zf_store_desc.offload_dir)"));
    cpu = zf_cpu_backend(&(zf_cpu_desc){.allocator = t->allocator}, &error);
    NEED(t, cpu, &error);
    test_defer(t, (test_cleanup *)zf_backend_free, cpu);
    away = *cpu, away.host_memory = false;
    CHECK(t,
          !zf_store_new(&(zf_store_desc){.backend = cpu, .host = &away, .allocator = t->allocator},
                        &error));
    if (error.status == ZF_ERR_NOMEM) OK(t, error.status, error.text);
    CHECK_TEXT(t, error.text,
               "zf_store_new: host must be a backend that computes in host memory, and "
               "cpu does not");
}

/* ----------------------------------------------------------------------------------- threads */

typedef struct turner {
    const zf_comm *comm;
    int32_t stage;
    char path[300];
    zf_status status;
    zf_error error;
    unsigned char images[3][TURNS_IMAGE];
} turner;

static void *turn(void *argument)
{
    turner *self = argument;
    self->status = turns_run(self->comm, self->stage, self->path, self->images, &self->error);
    return NULL;
}

/* Ranks as threads, each with stores of its own: the bits of one rank, whatever stage and world. */
TEST_ONCE(store_of_threads)
{
    static turner turners[RANKS];
    static unsigned char expected[TURNS_IMAGE], copied[TURNS_IMAGE];
    for (int32_t world = 1; world <= 4; world++)
        for (int32_t stage = 0; stage < 4; stage++) {
            pthread_t threads[RANKS];
            zf_error error = {ZF_OK, ""};
            zf_local *group = zf_local_new(&(zf_local_desc){.world = world}, &error);
            NEED(t, group, &error);
            for (int32_t r = 0; r < world; r++) {
                turners[r] = (turner){.comm = zf_local_comm(group, r), .stage = stage};
                snprintf(turners[r].path, sizeof turners[r].path, "%s", test_path("turns"));
                if (pthread_create(&threads[r], NULL, turn, &turners[r])) abort();
            }
            for (int32_t r = 0; r < world; r++) pthread_join(threads[r], NULL);
            zf_local_free(group);
            for (int32_t r = 0; r < world; r++) OK(t, turners[r].status, turners[r].error.text);
            if (world == 1 && !stage) memcpy(expected, turners[0].images[0], TURNS_IMAGE);
            if (world == 1 && !stage) memcpy(copied, turners[0].images[2], TURNS_IMAGE);
            CHECK(t, memcmp(expected, copied, TURNS_IMAGE));
            for (int32_t r = 0; r < world; r++) {
                CHECK(t, !memcmp(expected, turners[r].images[0], TURNS_IMAGE));
                CHECK(t, !memcmp(expected, turners[r].images[1], TURNS_IMAGE));
                CHECK(t, !memcmp(copied, turners[r].images[2], TURNS_IMAGE));
            }
        }
}
