/* Held parameters: gathered once, read by many steps (zf_hold). */
#include "../support/numbers.h"

#include <pthread.h>

enum { WORLD = 4, SLOTS = 4, ROWS = 3, IN = 24, MID = 40, OUT = 70, SECONDS = 20 };

typedef struct layout {
    int32_t world, stage, nodes;
    bool hpz, mics, quantized;
    zf_offload_desc offload;
} layout;

static const layout layouts[] = {
    {1, 0, 1, 0, 0, 0, {0}},
    {1, 3, 1, 0, 0, 0, {0}},
    {2, 0, 1, 0, 0, 0, {0}},
    {2, 1, 1, 0, 0, 0, {0}},
    {2, 2, 1, 0, 0, 0, {0}},
    {2, 0, 1, 0, 0, 0, {.parameters = ZF_HOST}},
    {2, 3, 1, 0, 0, 0, {0}},
    {2, 3, 1, 0, 0, 0, {.parameters = ZF_HOST}},
    {4, 3, 1, 0, 0, 0, {0}},
    {4, 3, 2, 0, 0, 0, {0}},
    {4, 3, 2, 1, 0, 0, {0}},
    {4, 3, 2, 0, 1, 0, {0}},
    {2, 3, 1, 0, 0, 1, {0}},
    {4, 3, 2, 1, 0, 1, {0}},
};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

static zf_zero_desc zero_of(const layout *l, const zf_store *store)
{
    return (zf_zero_desc){.stage = l->stage,
                          .world = l->world,
                          .nodes = l->nodes,
                          .hpz = l->hpz,
                          .mics = l->mics,
                          .quantized_weights = l->quantized,
                          .bucket_bytes = 1, /* one for each parameter, and for each bias */
                          .store = store};
}

/* Two layers; `trains` on a squared sum, else y is an output. A store: that of the training. */
static zf_graph *build(test *t, const layout *l, bool trains, bool hold, const zf_store *store)
{
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t ? t->allocator : (zf_allocator){0}});
    zf_tensor x = zf_input(g, "x", ZF_F32, ZF_SHAPE(ROWS, IN));
    zf_tensor y = zf_nn_linear(zf_tanh(zf_nn_linear(x, "a", MID, NULL)), "b", OUT, NULL);
    zf_training d = {.loss = ZF_NONE, .zero = zero_of(l, store), .offload = l->offload};
    if (trains) {
        d.loss = zf_mean(zf_reshape(zf_mul(y, y), ZF_SHAPE(ROWS * OUT)));
        d.zero.micro_batches = SLOTS / l->world;
    } else zf_output(y, "y");
    d.zero.hold = hold;
    zf_passes(g, &d);
    return g;
}

typedef struct programs {
    zf_graph *graphs[4];
    zf_program *train, *plain, *reader, *gather;
} programs;

static void close_programs(void *self)
{
    programs *p = self;
    zf_program_free(p->gather), zf_program_free(p->reader);
    zf_program_free(p->plain), zf_program_free(p->train);
    for (int k = 0; k < 4; k++) zf_graph_free(p->graphs[k]);
    *p = (programs){.train = NULL};
}

/* Closes all. */
static zf_status graph_failed(programs *p, zf_error *error)
{
    for (int k = 0; k < 4; k++) {
        const zf_graph *g = p->graphs[k];
        if (g && !zf_graph_status(g)) continue;
        snprintf(error->text, sizeof error->text, "graph %d: %s", k,
                 g ? zf_graph_error(g) : "out of memory");
        error->status = g ? zf_graph_status(g) : ZF_ERR_NOMEM;
        break;
    }
    if (!error->status) error->status = ZF_ERR_NOMEM;
    close_programs(p);
    return error->status;
}

/* The training, an evaluation as it is, and one that holds parameters, in the training's memory or
 * not. */
static zf_status open_programs(test *t, programs *p, const layout *l, const zf_comm *comm,
                               bool temporary, zf_error *error)
{
    zf_store *store;
    *p = (programs){.graphs = {build(t, l, true, false, NULL)}};
    p->train = zf_compile(p->graphs[0], &(zf_compile_desc){.comm = comm, .seed = 5});
    if (!p->train) return graph_failed(p, error);
    store = zf_program_store(p->train);
    p->graphs[1] = build(t, l, false, false, store), p->graphs[2] = build(t, l, false, true, store);
    p->graphs[3] = zf_hold_graph(p->graphs[2]);
    p->plain = zf_compile(p->graphs[1], &(zf_compile_desc){.store = store, .evaluate = true});
    p->reader = zf_compile(p->graphs[2],
                           &(zf_compile_desc){.store = store,
                                              .shares_memory_with = temporary ? p->train : NULL,
                                              .temporary_caches = temporary,
                                              .evaluate = true,
                                              .verify = true});
    if (p->reader)
        p->gather = zf_compile(p->graphs[3],
                               &(zf_compile_desc){.store = store,
                                                  .shares_memory_with = p->train,
                                                  .caches = p->reader,
                                                  .evaluate = true,
                                                  .verify = true});
    return p->plain && p->gather ? ZF_OK : graph_failed(p, error);
}

static zf_status give_x(zf_program *p, zf_graph *g, int64_t slot)
{
    float x[ROWS * IN];
    for (int i = 0; i < ROWS * IN; i++) x[i] = (float)((i * 7 + slot * 5) % 31 - 15) / 11;
    return zf_write(p, zf_graph_find(g, "x"), x, sizeof x);
}

/* One step of training on all slots of the global batch. */
static zf_status train(programs *p, const layout *l, int32_t rank)
{
    const float lr = 0.05f;
    zf_status status = zf_write(p->train, zf_graph_find(p->graphs[0], "lr"), &lr, sizeof lr);
    for (int64_t slot = rank; slot < SLOTS && !status; slot += l->world) {
        status = give_x(p->train, p->graphs[0], slot);
        if (!status) status = slot + l->world < SLOTS ? zf_micro(p->train) : zf_step(p->train);
    }
    return status;
}

typedef float result[ROWS * OUT];

static zf_status evaluate(zf_program *p, zf_graph *g, result y)
{
    zf_status status = give_x(p, g, 9);
    if (!status) status = zf_step(p);
    return status ? status : zf_read(p, zf_graph_find(g, "y"), y, sizeof(result));
}

/* ------------------------------------------------------------------------------------ the bits */

typedef struct rank {
    const layout *l;
    const zf_comm *comm;
    bool temporary;
    pthread_t thread;
    zf_error error;
    const char *wrong; /* NULL: nothing */
    result y[2];       /* before and after a step of training */
    zf_traffic moved;
    zf_plan plan;
    zf_program_info reader;
} rank;

/* Evaluates by held parameters, as often as this rank likes, and as they are in the store. */
static zf_status try_both(rank *r, programs *p, int k)
{
    result plain;
    zf_status status = zf_hold(p->gather);
    r->moved = zf_program_info_of(p->gather).counted;
    if (!status && !k) status = zf_compare_ranks(p->reader);
    for (int32_t n = 0; n <= r->comm->rank && !status; n++)
        status = evaluate(p->reader, p->graphs[2], r->y[k]);
    if (!status) status = evaluate(p->plain, p->graphs[1], plain);
    if (!status && memcmp(plain, r->y[k], sizeof plain)) r->wrong = "held parameters have other bits";
    return status;
}

static void *run_rank(void *self)
{
    rank *r = self;
    programs p;
    result none;
    zf_status status = open_programs(NULL, &p, r->l, r->comm, r->temporary, &r->error);
    if (!status) {
        r->plan = zf_program_info_of(p.gather).plan, r->reader = zf_program_info_of(p.reader);
        status = try_both(r, &p, 0);
        if (!status) status = train(&p, r->l, r->comm->rank);
        if (!status && evaluate(p.reader, p.graphs[2], none) != ZF_ERR_STAGE)
            r->wrong = "parameters of before the step are read";
        if (!status) status = try_both(r, &p, 1);
    }
    if (status && !*r->error.text)
        snprintf(r->error.text, sizeof r->error.text, "%s%s%s", zf_program_error(p.train),
                 zf_program_error(p.gather), zf_program_error(p.reader));
    if (status && r->comm->abort) r->comm->abort(r->comm->self, status, r->error.text);
    r->error.status = status;
    close_programs(&p);
    return NULL;
}

/* Bytes that a rank sends so that all ranks have all parameters once. */
static size_t one_copy(const rank *r)
{
    const layout *l = r->l;
    const size_t all = r->reader.held_bytes, local = (size_t)(l->world / l->nodes);
    if (l->stage < 3) return 0;
    if (l->mics) return all / local * (local - 1);
    return all / (size_t)l->world * (size_t)(l->nodes - 1) + all / local * (local - 1);
}

static void check_moved(test *t, const rank *r)
{
    const zf_moved *m = &r->moved.all_gather;
    const bool mesh = r->l->nodes > 1 && !r->l->mics;
    CHECK(t, !memcmp(&r->moved, &r->plan.traffic, sizeof r->moved));
    CHECK(t, m->calls == (r->l->stage < 3 || r->l->world == 1 ? 0 : mesh ? 8 : 4));
    if (r->l->quantized) CHECK(t, m->bytes * 3 < one_copy(r) && m->bytes * 5 > one_copy(r));
    else CHECK(t, m->bytes == (r->l->world == 1 ? 0 : one_copy(r)));
    CHECK(t, (r->moved.upload.calls > 0) == (r->l->offload.parameters == ZF_HOST));
}

static void run_layout(test *t, rank ranks[WORLD], const layout *l, bool temporary)
{
    zf_local *group = zf_local_new(&(zf_local_desc){.world = l->world, .deadline_seconds = SECONDS},
                                   NULL);
    CHECK(t, group != NULL);
    for (int32_t k = 0; k < l->world; k++) {
        ranks[k] = (rank){.l = l, .comm = zf_local_comm(group, k), .temporary = temporary};
        if (pthread_create(&ranks[k].thread, NULL, run_rank, &ranks[k])) abort();
    }
    for (int32_t k = 0; k < l->world; k++) pthread_join(ranks[k].thread, NULL);
    zf_local_free(group);
    for (int32_t k = 0; k < l->world && !t->failed; k++) {
        OK(t, ranks[k].error.status, ranks[k].error.text);
        CHECK_TEXT(t, ranks[k].wrong ? ranks[k].wrong : "", "");
        CHECK(t, !memcmp(ranks[k].y, ranks[0].y, sizeof ranks[0].y));
        check_moved(t, &ranks[k]);
    }
}

/* Sums over nodes add in another order. */
TEST_ONCE(hold_has_the_bits_of_the_store)
{
    static rank ranks[WORLD];
    static result first[2][2]; /* by whether there are several nodes */
    bool known[2] = {false, false};
    for (int k = 0; k < 2 * LAYOUTS && !t->failed; k++) {
        const layout *l = &layouts[k / 2];
        const bool nodes = l->nodes > 1;
        run_layout(t, ranks, l, k % 2);
        if (t->failed) fprintf(stderr, "layout %d, %s\n", k / 2, k % 2 ? "temporary" : "apart");
        if (l->quantized) continue;
        if (!known[nodes]) memcpy(first[nodes], ranks[0].y, sizeof *first), known[nodes] = true;
        CHECK(t, !memcmp(first[nodes], ranks[0].y, sizeof *first));
    }
    CHECK(t, !memcmp(first[0][0], first[1][0], sizeof(result)));
    CHECK(t, memcmp(first[0][0], first[0][1], sizeof(result)));
}

/* ---------------------------------------------------------------------------------- the memory */

static const layout alone = {1, 3, 1, 0, 0, 0, {0}};

/* Held parameters lie where the training's values lie; all turns together take what is planned. */
TEST(hold_lies_in_the_memory_of_the_training)
{
    static programs p;
    zf_error error = {ZF_OK, ""};
    zf_together all;
    zf_turn turns[3] = {{.store = 0}, {.temporary_caches = true}, {.caches = 2}};
    zf_program_info train, reader, gather;
    OK(t, open_programs(t, &p, &alone, NULL, true, &error), error.text);
    test_defer(t, close_programs, &p);
    train = zf_program_info_of(p.train), reader = zf_program_info_of(p.reader);
    gather = zf_program_info_of(p.gather);
    CHECK(t, reader.held_bytes == 6 * 4096 && !gather.held_bytes && !reader.cache_bytes);
    CHECK(t, reader.shared[ZF_DEVICE] >= reader.held_bytes);
    CHECK(t, reader.shared[ZF_DEVICE] + reader.allocated_bytes == reader.peak_bytes);
    CHECK(t, reader.allocated_bytes == reader.input_bytes + reader.constant_bytes);
    CHECK(t, !gather.allocated_bytes && gather.shared[ZF_DEVICE] == reader.held_bytes);
    CHECK(t, train.allocated_bytes == train.peak_bytes);
    CHECK(t, reader.plan.most[ZF_COMMUNICATION] == reader.held_bytes);
    for (int k = 0; k < 3; k++) {
        zf_graph *g = k == 2 ? zf_hold_graph(turns[1].graph) : build(t, &alone, !k, k, NULL);
        NEED(t, g, NULL);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        turns[k].graph = g;
    }
    OK(t, zf_plan_together(turns, 3, NULL, &all, &error), error.text);
    CHECK(t, all.first == 0 && all.bytes[ZF_DEVICE] == train.allocated_bytes +
                                                           reader.allocated_bytes +
                                                           gather.allocated_bytes);
}

/* ----------------------------------------------------------------------------------- refusals */

static void refused(test *t, zf_status status, zf_status wanted, const char *error, const char *text)
{
    GIVES(t, status, wanted, error);
    CHECK_TEXT(t, error, text);
}

#define NOT_HELD "zf_step: no parameters are held; zf_hold gathers them"
#define CHANGED                                                                                    \
    "zf_step: parameters or states have changed since zf_hold, which gathers them again"

static void check_reader(test *t, programs *p, const char *text)
{
    result y;
    const zf_status status = evaluate(p->reader, p->graphs[2], y);
    refused(t, status, *text ? ZF_ERR_STAGE : ZF_OK, zf_program_error(p->reader), text);
}

static void hold(test *t, programs *p)
{
    OK(t, zf_hold(p->gather), zf_program_error(p->gather));
}

/* Nothing is read that zf_hold has not gathered, or that is no longer so. */
TEST(hold_says_what_is_not_held)
{
    static programs p;
    zf_error error = {ZF_OK, ""};
    const float bias[MID] = {1};
    float held[1024];
    for (int temporary = 0; temporary < 2 && !t->failed; temporary++) {
        OK(t, open_programs(t, &p, &alone, NULL, temporary, &error), error.text);
        test_defer(t, close_programs, &p);
        check_reader(t, &p, NOT_HELD);
        hold(t, &p), check_reader(t, &p, ""), check_reader(t, &p, "");
        OK(t, zf_release(p.reader), NULL);
        check_reader(t, &p, NOT_HELD);
        hold(t, &p), check_reader(t, &p, "");
        OK(t, zf_store_write(STORE(p.train), "a.bias", bias, sizeof bias), STORE_ERROR(p.train));
        check_reader(t, &p, CHANGED);
        hold(t, &p), check_reader(t, &p, "");
        OK(t, zf_read(p.reader, zf_graph_find(p.graphs[2], "held/a.bias"), held, sizeof held),
           zf_program_error(p.reader));
        CHECK(t, held[0] == 1 && held[1] == 0);
        refused(t,
                zf_write(p.reader, zf_graph_find(p.graphs[2], "held/a.bias"), held, sizeof held),
                ZF_ERR_ARGUMENT, zf_program_error(p.reader),
                "zf_write: \"held/a.bias\" is held parameters, which zf_hold writes");
        OK(t, train(&p, &alone, 0), zf_program_error(p.train));
        check_reader(t, &p,
                     temporary ? "zf_step: another program has run in the memory of the held "
                                 "parameters; zf_hold gathers them again"
                               : CHANGED);
        hold(t, &p), check_reader(t, &p, "");
        close_programs(&p);
    }
}

/* The calls are for programs that hold something. */
TEST(hold_is_for_programs_of_its_graph)
{
    static programs p;
    zf_error error = {ZF_OK, ""};
    zf_graph *g;
    CHECK(t, zf_hold(NULL) == ZF_ERR_ARGUMENT && zf_release(NULL) == ZF_ERR_ARGUMENT);
    CHECK(t, !zf_hold_graph(NULL));
    OK(t, open_programs(t, &p, &alone, NULL, true, &error), error.text);
    test_defer(t, close_programs, &p);
    refused(t, zf_hold(p.reader), ZF_ERR_ARGUMENT, zf_program_error(p.reader),
            "zf_hold: the program gathers no parameters: its graph must be one of zf_hold_graph");
    refused(t, zf_step(p.gather), ZF_ERR_STAGE, zf_program_error(p.gather),
            "zf_step: the program gathers parameters that others read: zf_hold runs it");
    refused(t, zf_release(p.train), ZF_ERR_ARGUMENT, zf_program_error(p.train),
            "zf_release: the program has no held parameters (zf_zero_desc.hold)");
    NEED(t, g = zf_hold_graph(p.graphs[2]), NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    CHECK_TEXT(t, zf_graph_error(g), "zf_hold_graph: must come before zf_memory, which has been run");
    NEED(t, g = build(t, &alone, false, false, NULL), NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    OK(t, zf_graph_status(g), zf_graph_error(g));
    NEED(t, g = zf_hold_graph(g), NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    CHECK_TEXT(t, zf_graph_error(g),
               "zf_hold_graph: the graph reads no held parameters (zf_zero_desc.hold)");
    NEED(t, g = build(t, &alone, true, true, NULL), NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    CHECK_TEXT(t, zf_graph_error(g),
               "zf_zero: hold is for steps that only evaluate: one that trains would go on with the "
               "parameters of zf_hold");
}

/* All is read from one program's memory, and is of its store. */
TEST(hold_is_of_one_program_and_store)
{
    static programs p;
    zf_error error = {ZF_OK, ""};
    zf_graph *g;
    zf_program *q;
    OK(t, open_programs(t, &p, &alone, NULL, true, &error), error.text);
    test_defer(t, close_programs, &p);
    NEED(t, g = build(t, &alone, false, true, NULL), NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    q = zf_compile(g, &(zf_compile_desc){.backend = NULL, .caches = p.reader, .evaluate = true});
    CHECK(t, !q);
    CHECK_TEXT(t, zf_graph_error(g),
               "zf_compile: caches is a program on another backend; it must be one of the same "
               "store");
    NEED(t, g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator}), NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    zf_output(zf_exp(zf_param(g, "a.bias", ZF_SHAPE(MID), NULL)), "y");
    zf_output(zf_exp(zf_param(g, "c", ZF_SHAPE(MID), NULL)), "z");
    zf_passes(g, &(zf_training){.zero = {.stage = 3,
                                         .bucket_bytes = 1,
                                         .store = STORE(p.train),
                                         .hold = true}});
    q = zf_compile(g, &(zf_compile_desc){
                          .store = STORE(p.train), .caches = p.reader, .evaluate = true});
    CHECK(t, !q);
    CHECK_TEXT(t, zf_graph_error(g),
               "zf_compile: the program in caches holds \"held/a.bias\" and not \"held/c\": a "
               "program reads all parameters from the memory of one");
}

TEST(hold_is_of_one_store)
{
    zf_error error = {ZF_OK, ""};
    zf_backend *cpu = zf_cpu_backend(&(zf_cpu_desc){.allocator = t->allocator}, &error);
    zf_program *p = NULL;
    NEED(t, cpu, &error);
    test_defer(t, (test_cleanup *)zf_backend_free, cpu);
    for (int k = 0; k < 2; k++) {
        zf_graph *g = build(t, &alone, false, true, NULL);
        NEED(t, g, NULL);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        p = zf_compile(g, &(zf_compile_desc){.backend = cpu, .caches = p, .evaluate = true});
        if (p) test_defer(t, (test_cleanup *)zf_program_free, p);
        GIVES(t, zf_graph_status(g), k ? ZF_ERR_ARGUMENT : ZF_OK, zf_graph_error(g));
        CHECK_TEXT(t, zf_graph_error(g),
                   k ? "zf_compile: the program in caches holds parameters of another store" : "");
    }
}

/* ------------------------------------------------------------------------- ranks that disagree */

typedef struct odd_rank {
    const zf_comm *comm;
    bool value; /* ranks differ in a value, else in what they gather */
    zf_error error;
} odd_rank;

static void *run_odd_rank(void *self)
{
    static const layout as_sent = {2, 3, 1, 0, 0, 0, {0}}, rounded = {2, 3, 1, 0, 0, 1, {0}},
                        whole = {2, 0, 1, 0, 0, 0, {0}};
    odd_rank *r = self;
    programs p;
    const bool odd = r->comm->rank == 1;
    const layout *l = r->value ? &whole : odd ? &rounded : &as_sent;
    const float bias[MID] = {odd};
    zf_status status = open_programs(NULL, &p, l, r->comm, true, &r->error);
    if (!status && r->value) status = zf_store_write(STORE(p.train), "a.bias", bias, sizeof bias);
    if (!status) status = zf_hold(p.gather);
    if (!*r->error.text)
        snprintf(r->error.text, sizeof r->error.text, "%s", zf_program_error(p.gather));
    r->error.status = status;
    close_programs(&p);
    return NULL;
}

static void check_odd(test *t, bool value, const char *text)
{
    static odd_rank ranks[2];
    pthread_t threads[2];
    zf_error error = {0};
    zf_local *group =
        zf_local_new(&(zf_local_desc){.world = 2, .deadline_seconds = SECONDS}, &error);
    NEED(t, group, &error);
    for (int32_t k = 0; k < 2; k++) {
        ranks[k] = (odd_rank){zf_local_comm(group, k), value, {ZF_OK, ""}};
        if (pthread_create(&threads[k], NULL, run_odd_rank, &ranks[k])) abort();
    }
    for (int32_t k = 0; k < 2; k++) pthread_join(threads[k], NULL);
    zf_local_free(group);
    for (int32_t k = 0; k < 2; k++)
        if (ranks[k].error.status == ZF_ERR_NOMEM) OK(t, ZF_ERR_NOMEM, ranks[k].error.text);
    for (int32_t k = 0; k < 2; k++) {
        CHECK(t, ranks[k].error.status == ZF_ERR_MISMATCH);
        if (!strstr(ranks[k].error.text, text)) test_fail(t, __FILE__, __LINE__, text, ranks[k].error.text);
    }
}

/* A difference is an error on all ranks. */
TEST_ONCE(hold_needs_ranks_that_agree)
{
    check_odd(t, false, "the plans of ranks ");
    check_odd(t, true, "ranks 0 and 1 differ in the value of the param \"a.bias\"");
}
