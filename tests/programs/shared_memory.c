/* Programs that run in turns in the same memory (zf_compile_desc.shares_memory_with). */
#include "../support/numbers.h"

/* Two layers over `batch` rows; with a loss they are trained, over two micro-batches. */
static zf_graph *build(test *t, int64_t batch, bool trains)
{
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    zf_tensor x = zf_input(g, "x", ZF_F32, ZF_SHAPE(batch, 24));
    zf_tensor h = zf_tanh(zf_nn_linear(x, "a", 40, NULL));
    zf_tensor y = zf_output(zf_nn_linear(h, "b", 24, NULL), "y");
    zf_tensor loss = zf_mean(zf_reshape(zf_mul(y, y), ZF_SHAPE(batch * 24)));
    if (!trains) zf_output(loss, "loss");
    zf_passes(g, &(zf_training){.loss = trains ? loss : ZF_NONE,
                                .zero = {.micro_batches = trains ? 2 : 1}});
    return g;
}

static void free_graph(void *g) { zf_graph_free(g); }

typedef struct pair {
    zf_graph *graphs[2];
    zf_program *train, *eval;
} pair;

static void close_pair(void *self)
{
    pair *p = self;
    zf_program_free(p->train);
    zf_program_free(p->eval);
    zf_graph_free(p->graphs[0]);
    zf_graph_free(p->graphs[1]);
}

/* A program that trains on 8 rows, and one that evaluates `rows`, in the same memory or not. */
static bool open_reserved(test *t, pair *p, int64_t rows, bool shares, size_t reserve)
{
    *p = (pair){{build(t, 8, true), build(t, rows, false)}, NULL, NULL};
    p->train = zf_compile(p->graphs[0], &(zf_compile_desc){.seed = 4, .reserve = reserve});
    if (p->train)
        p->eval = zf_compile(p->graphs[1],
                             &(zf_compile_desc){.store = zf_program_store(p->train),
                                                .must_exist = true,
                                                .evaluate = true,
                                                .shares_memory_with = shares ? p->train : NULL});
    if (p->eval) return true;
    for (int k = 0; k < 2; k++)
        if (!p->graphs[k] || zf_graph_status(p->graphs[k])) {
            const zf_status status = p->graphs[k] ? zf_graph_status(p->graphs[k]) : ZF_ERR_NOMEM;
            test_unwind(t, __FILE__, __LINE__, "pair", status, zf_status_name(status));
            break;
        }
    close_pair(p);
    return false;
}

static bool open_pair(test *t, pair *p, int64_t rows, bool shares)
{
    return open_reserved(t, p, rows, shares, 0);
}

static zf_status give(zf_program *p, zf_graph *g)
{
    zf_tensor lr = zf_graph_find(g, "lr");
    zf_status status = write_seeded(p, zf_graph_find(g, "x"));
    return status || !zf_valid(lr) ? status : write_seeded(p, lr);
}

/* One step of training between two evaluations; the losses. */
static bool run_pair(test *t, pair *p, float losses[3])
{
    zf_status status = give(p->train, p->graphs[0]);
    if (!status) status = give(p->eval, p->graphs[1]);
    if (!status) status = zf_step(p->eval);
    if (!status)
        status = zf_read(p->eval, zf_graph_find(p->graphs[1], "loss"), losses, sizeof *losses);
    if (!status) status = zf_micro(p->train);
    if (!status) status = zf_step(p->train);
    if (!status)
        status = zf_read(p->train, zf_graph_find(p->graphs[0], "loss"), losses + 1, sizeof *losses);
    if (!status) status = zf_step(p->eval);
    if (!status)
        status = zf_read(p->eval, zf_graph_find(p->graphs[1], "loss"), losses + 2, sizeof *losses);
    if (status)
        test_fail(t, __FILE__, __LINE__, zf_program_error(p->train), zf_program_error(p->eval));
    return !status;
}

/* The same bits as apart; what is predicted is what is allocated, or shared. */
TEST(shared_memory_holds_the_values_of_a_step)
{
    static pair with, without; /* they outlive the body */
    float a[3] = {0}, b[3] = {0};
    zf_program_info train, eval;
    zf_store_info store;
    if (!open_pair(t, &without, 4, false)) return;
    test_defer(t, close_pair, &without);
    if (!open_pair(t, &with, 4, true)) return;
    test_defer(t, close_pair, &with);
    if (!run_pair(t, &without, a) || !run_pair(t, &with, b)) return;
    CHECK(t, !memcmp(a, b, sizeof a) && a[0] != a[2]);
    train = zf_program_info_of(with.train), eval = zf_program_info_of(with.eval);
    store = zf_store_info_of(zf_program_store(with.train));
    CHECK(t, !train.shared[ZF_DEVICE] && train.allocated_bytes == train.peak_bytes);
    CHECK(t, eval.shared[ZF_DEVICE] == eval.work_bytes && eval.work_bytes);
    CHECK(t, eval.allocated_bytes + eval.shared[ZF_DEVICE] == eval.peak_bytes);
    CHECK(t, eval.allocated_bytes == eval.input_bytes + eval.constant_bytes);
    CHECK(t, store.program_bytes + store.bytes == train.allocated_bytes + eval.allocated_bytes);
    CHECK(t, zf_program_info_of(without.eval).allocated_bytes ==
                 eval.allocated_bytes + eval.shared[ZF_DEVICE]);
}

/* A program whose values need more has memory of its own; the first may be freed before it. */
TEST(shared_memory_has_room)
{
    static pair p;
    float losses[3];
    zf_program_info eval;
    if (!open_pair(t, &p, 4000, true)) return;
    test_defer(t, close_pair, &p);
    eval = zf_program_info_of(p.eval);
    CHECK(t, !eval.shared[ZF_DEVICE] && eval.allocated_bytes == eval.peak_bytes);
    CHECK(t, run_pair(t, &p, losses));
}

/* The first has room for a larger one if it is asked to; that is predicted, allocated and limited. */
TEST(shared_memory_is_reserved)
{
    static pair own, with, small;
    float a[3] = {0}, b[3] = {0};
    zf_program_info train, eval;
    zf_store_info store;
    size_t least;
    if (!open_pair(t, &own, 500, true)) return;
    test_defer(t, close_pair, &own);
    least = zf_program_info_of(own.eval).work_bytes;
    if (!open_reserved(t, &with, 500, true, least)) return;
    test_defer(t, close_pair, &with);
    train = zf_program_info_of(with.train), eval = zf_program_info_of(with.eval);
    store = zf_store_info_of(zf_program_store(with.train));
    CHECK(t, train.work_bytes == least && train.allocated_bytes == train.peak_bytes);
    CHECK(t, eval.shared[ZF_DEVICE] == least && eval.work_bytes == least);
    CHECK(t, eval.allocated_bytes + eval.shared[ZF_DEVICE] == eval.peak_bytes);
    CHECK(t, store.program_bytes + store.bytes == train.allocated_bytes + eval.allocated_bytes);
    CHECK(t, run_pair(t, &own, a) && run_pair(t, &with, b) && !memcmp(a, b, sizeof a));
    if (!open_reserved(t, &small, 4, true, 1)) return; /* it has more already */
    test_defer(t, close_pair, &small);
    CHECK(t, zf_program_info_of(small.train).work_bytes < least);
    CHECK(t, zf_program_info_of(small.eval).shared[ZF_DEVICE] > 0);
}

/* Below the limit without the reserve. */
TEST(shared_memory_reserve_is_limited)
{
    zf_graph *g = build(t, 8, true);
    zf_program *p;
    NEED(t, g, NULL);
    test_defer(t, free_graph, g);
    p = zf_compile(g, &(zf_compile_desc){.reserve = 1 << 20, .memory_limit = 1 << 20});
    CHECK(t, !p);
    if (zf_graph_status(g) == ZF_ERR_NOMEM) OK(t, zf_graph_status(g), zf_graph_error(g));
    CHECK(t, zf_graph_status(g) == ZF_ERR_LIMIT && strstr(zf_graph_error(g), "added by reserve"));
}

TEST(shared_memory_outlives_the_first)
{
    static pair p;
    float losses[3], again;
    if (!open_pair(t, &p, 4, true)) return;
    test_defer(t, close_pair, &p);
    CHECK(t, run_pair(t, &p, losses));
    zf_program_free(p.train);
    p.train = NULL;
    CHECK(t, !zf_step(p.eval));
    CHECK(t, !zf_read(p.eval, zf_graph_find(p.graphs[1], "loss"), &again, sizeof again));
    CHECK(t, again == losses[2]);
}

/* What another program has overwritten cannot be read, nor can a step go on from it. */
TEST(shared_memory_tells_what_is_gone)
{
    static pair p;
    float loss;
    zf_graph *other;
    if (!open_pair(t, &p, 4, true)) return;
    test_defer(t, close_pair, &p);
    CHECK(t, !give(p.train, p.graphs[0]) && !give(p.eval, p.graphs[1]));
    CHECK(t, !zf_micro(p.train) && !zf_step(p.eval));
    CHECK(t, zf_step(p.train) == ZF_ERR_STAGE);
    CHECK(t, strstr(zf_program_error(p.train),
                    "zf_step: another program has run in the same memory "
                    "(zf_compile_desc.shares_memory_with) since the step's first "
                    "micro-batch; the step starts anew"));
    CHECK(t, !zf_micro(p.train) && !zf_step(p.train) && !zf_step(p.eval));
    CHECK(t, zf_read(p.train, zf_graph_find(p.graphs[0], "loss"), &loss, sizeof loss) ==
                 ZF_ERR_STAGE);
    CHECK(t, strstr(zf_program_error(p.train),
                    "was overwritten by another program, which has run in the same "
                    "memory since (zf_compile_desc.shares_memory_with)"));
    CHECK(t, !zf_read(p.train, zf_graph_find(p.graphs[0], "lr"), &loss, sizeof loss));
    zf_program_free(p.eval);
    p.eval = NULL;
    CHECK(t, zf_read(p.train, zf_graph_find(p.graphs[0], "loss"), &loss, sizeof loss) ==
                 ZF_ERR_STAGE);
    NEED(t, other = build(t, 4, false), NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, other);
    zf_program_free(zf_compile(other, &(zf_compile_desc){.shares_memory_with = p.train}));
    GIVES(t, zf_graph_status(other), ZF_ERR_ARGUMENT, zf_graph_error(other));
    CHECK(t, strstr(zf_graph_error(other), "zf_compile: shares_memory_with is a program on another "
                                           "backend"));
}

/* Programs over two stores of one backend share memory, which outlives the program and the store
 * that have asked for it. */
TEST(shared_memory_of_two_stores)
{
    zf_backend *cpu = zf_cpu_backend(&(zf_cpu_desc){.allocator = t->allocator}, NULL);
    zf_graph *g[2];
    zf_program *p[2] = {NULL};
    NEED(t, cpu, NULL);
    test_defer(t, (test_cleanup *)zf_backend_free, cpu);
    for (int k = 0; k < 2; k++) {
        zf_tensor x;
        g[k] = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
        if (!g[k]) zf_program_free(p[0]);
        NEED(t, g[k], NULL);
        test_defer(t, (test_cleanup *)zf_graph_free, g[k]);
        x = zf_param(g[k], "w", ZF_SHAPE(k ? 8 : 64), &(zf_param_desc){.init = ZF_ONES});
        zf_output(zf_sum(zf_exp(zf_neg(x))), "y");
        p[k] = zf_compile(g[k], &(zf_compile_desc){.backend = cpu, .shares_memory_with = p[0]});
        if (!p[k] && k) zf_program_free(p[0]);
        if (!p[k]) OK(t, zf_graph_status(g[k]), zf_graph_error(g[k]));
    }
    zf_status status = zf_step(p[0]);
    const bool shares = zf_program_info_of(p[1]).shared[ZF_DEVICE] > 0;
    float y = 0;
    zf_program_free(p[0]);
    if (!status) status = zf_step(p[1]);
    if (!status) status = zf_read(p[1], zf_graph_find(g[1], "y"), &y, sizeof y);
    zf_program_free(p[1]);
    OK(t, status, NULL);
    CHECK(t, shares && fabs(y - 8 * exp(-1)) < 1e-5);
}

static zf_status status_of(const zf_graph *g) { return g ? zf_graph_status(g) : ZF_ERR_NOMEM; }

/* A store's limit holds for what is shared once. */
TEST(shared_memory_is_within_the_limit)
{
    zf_error error = {ZF_OK, ""};
    zf_graph *g = build(t, 8, true), *h = build(t, 4, false), *again = build(t, 4, false);
    zf_program *probe = zf_compile(g, &(zf_compile_desc){.seed = 4}), *p = NULL, *q = NULL;
    zf_store *store = NULL;
    size_t peak = zf_program_info_of(probe).peak_bytes;
    if (!probe) {
        test_unwind(t, __FILE__, __LINE__, "alone", status_of(g),
                    zf_graph_error(g));
        zf_graph_free(g);
        zf_graph_free(h);
        zf_graph_free(again);
        return;
    }
    zf_program_free(probe);
    zf_graph_free(g);
    g = build(t, 8, true);
    store = zf_store_new(&(zf_store_desc){.seed = 4, .memory_limit = peak + 4 * 24 * 4 + 1024,
                                          .allocator = t->allocator},
                         &error);
    if (store) p = zf_compile(g, &(zf_compile_desc){.store = store});
    if (p) q = zf_compile(h, &(zf_compile_desc){.store = store, .evaluate = true});
    if (p && (q || status_of(h) != ZF_ERR_LIMIT))
        test_unwind(t, __FILE__, __LINE__, "apart", status_of(h), zf_graph_error(h));
    zf_program_free(q);
    q = p ? zf_compile(
                again,
                &(zf_compile_desc){.store = store, .evaluate = true, .shares_memory_with = p})
          : NULL;
    if (!q)
        test_unwind(t, __FILE__, __LINE__, "shared",
                    p ? status_of(again) : store ? status_of(g) : error.status,
                    p ? zf_graph_error(again) : store ? zf_graph_error(g) : error.text);
    zf_program_free(q);
    zf_program_free(p);
    zf_store_free(store);
    zf_graph_free(g);
    zf_graph_free(h);
    zf_graph_free(again);
}

/* ---------------------------------------------------------------------------------- plans of all */

enum { TURNS = 4, RANKS = 2 };

/* A step over two layers with shards on a rank of two; `trains` 2: its states lie in host memory. */
static zf_graph *build_shards(test *t, int64_t batch, int trains, const zf_store *store)
{
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    zf_tensor x = zf_input(g, "x", ZF_F32, ZF_SHAPE(batch, 24));
    zf_tensor h = zf_tanh(zf_nn_linear(x, "a", 40, NULL));
    zf_tensor loss = zf_mean(zf_nn_linear(h, "b", 24, NULL));
    zf_output(loss, "loss");
    zf_passes(g, &(zf_training){.loss = trains ? loss : ZF_NONE,
                                .zero = {.stage = 3, .world = RANKS, .store = store},
                                .offload.optimizer = trains == 2 ? ZF_HOST : ZF_DEVICE});
    return g;
}

static void free_graphs(void *graphs)
{
    for (int k = 0; k < TURNS; k++) zf_graph_free(((zf_graph **)graphs)[k]);
    memset(graphs, 0, TURNS * sizeof(zf_graph *));
}

/* What is planned before anything is compiled is what programs of the graphs then allocate. */
TEST(shared_memory_is_planned_together)
{
    static zf_graph *graphs[TURNS];
    static const int32_t stores[TURNS] = {0, 0, 1, 1};
    const zf_comm comm = {.rank = 1, .world = RANKS};
    zf_store *plan[2] = {NULL}, *real[2] = {NULL};
    zf_program *programs[TURNS] = {NULL};
    zf_turn turns[TURNS];
    zf_together all;
    zf_error error = {ZF_OK, ""};
    size_t bytes[ZF_SPACES] = {0};
    zf_backend *cpu = zf_cpu_backend(&(zf_cpu_desc){.allocator = t->allocator}, &error);
    NEED(t, cpu, &error);
    test_defer(t, (test_cleanup *)zf_backend_free, cpu);
    test_defer(t, free_graphs, graphs);
    for (int k = 0; k < 2; k++) {
        plan[k] = zf_store_new(
            &(zf_store_desc){.comm = &comm, .plan_only = true, .allocator = t->allocator}, &error);
        NEED(t, plan[k], &error);
        test_defer(t, (test_cleanup *)zf_store_free, plan[k]);
        real[k] = zf_store_new(
            &(zf_store_desc){.comm = &comm, .backend = cpu, .allocator = t->allocator}, &error);
        NEED(t, real[k], &error);
        test_defer(t, (test_cleanup *)zf_store_free, real[k]);
    }
    for (int k = 0; k < TURNS; k++) {
        static const int trains[TURNS] = {1, 0, 2, 0};
        static const float values[90 * 24];
        static const int64_t rows[TURNS] = {4, 6, 90, 5};
        graphs[k] = build_shards(t, rows[k], trains[k], plan[stores[k]]);
        NEED(t, graphs[k], NULL);
        OK(t, zf_graph_status(graphs[k]), zf_graph_error(graphs[k]));
        turns[k] = (zf_turn){.graph = graphs[k], .store = stores[k]};
        if (trains[k]) { /* the layout for the next one */
            zf_graph *copy = zf_graph_copy(graphs[k]);
            zf_program *p;
            NEED(t, copy, NULL);
            test_defer(t, (test_cleanup *)zf_graph_free, copy);
            p = zf_compile(copy, &(zf_compile_desc){.store = plan[stores[k]]});
            OK(t, zf_graph_status(copy), zf_graph_error(copy));
            GIVES(t, zf_step(p), ZF_ERR_STAGE, zf_program_error(p));
            CHECK(t, zf_write(p, zf_graph_find(copy, "x"), values, (size_t)rows[k] * 96) ==
                         ZF_ERR_STAGE);
            GIVES(t, zf_step(p), ZF_ERR_STAGE, zf_program_error(p));
            CHECK_TEXT(t, zf_program_error(p),
                       "zf_step: the store plans, and holds no values "
                       "(zf_store_desc.plan_only)");
            zf_program_free(p);
        }
    }
    OK(t,
       zf_plan_together(turns, TURNS, &(zf_together_desc){.comm = &comm, .allocator = t->allocator},
                        &all, &error),
       error.text);
    CHECK(t, all.first == 2);
    for (int n = 0; n < TURNS; n++) {
        const int k = n == 0 ? 2 : n <= 2 ? n - 1 : n;
        programs[k] = zf_compile(graphs[k], &(zf_compile_desc){.store = real[stores[k]],
                                                               .shares_memory_with = programs[2]});
        OK(t, zf_graph_status(graphs[k]), zf_graph_error(graphs[k]));
        test_defer(t, (test_cleanup *)zf_program_free, programs[k]);
    }
    for (int k = 0; k < 2; k++) {
        const zf_store_info info = zf_store_info_of(real[k]);
        bytes[ZF_DEVICE] += info.bytes + info.program_bytes;
        bytes[ZF_HOST] += info.offloaded_bytes + info.host_program_bytes;
    }
    CHECK(t, bytes[ZF_DEVICE] == all.bytes[ZF_DEVICE] && bytes[ZF_HOST] == all.bytes[ZF_HOST]);
    CHECK(t, all.bytes[ZF_HOST] && !all.bytes[ZF_DISK] && all.shared[ZF_DEVICE]);
}

TEST(shared_memory_plans_refuse)
{
    static zf_graph *graphs[TURNS];
    zf_error error = {ZF_OK, ""};
    zf_together all;
    zf_turn turns[2];
    test_defer(t, free_graphs, graphs);
    for (int k = 0; k < 2; k++) {
        graphs[k] = build(t, 8, !k);
        NEED(t, graphs[k], NULL);
        OK(t, zf_graph_status(graphs[k]), zf_graph_error(graphs[k]));
        turns[k] = (zf_turn){.graph = graphs[k]};
    }
    GIVES(t,
          zf_plan_together(turns, 2,
                           &(zf_together_desc){.memory_limit = 1000, .allocator = t->allocator},
                           &all, &error),
          ZF_ERR_LIMIT, error.text);
    CHECK(t,
          all.bytes[ZF_DEVICE] > 1000 && strstr(error.text, "zf_plan_together: the turns take "));
    for (int k = 0; k < 7; k++) {
        static const char needs[] =
            "zf_plan_together: it needs one turn or more, and room for the result";
        static const char *const says[] = {
            needs,
            needs,
            "turn 2 needs a graph",
            "turn 2 needs a graph",
            ", and in caches 0 or the number of an earlier turn",
            "turn 2 needs a graph",
            "zf_plan_together: turn 2: its plan is made already (zf_memory)"};
        zf_turn wrong[2] = {turns[0], turns[1]};
        if (k == 2) wrong[1].graph = NULL;
        if (k == 3) wrong[1].store = 2;
        if (k == 4) wrong[1].caches = 2;
        if (k == 5) wrong[1].store = -1;
        if (k == 6) OK(t, zf_memory(graphs[1], NULL), zf_graph_error(graphs[1]));
        error = (zf_error){ZF_OK, ""};
        GIVES(t, zf_plan_together(wrong, k == 0 ? 0 : 2, NULL, k == 1 ? NULL : &all, &error),
              k == 6 ? ZF_ERR_STAGE : ZF_ERR_ARGUMENT, error.text);
        if (!strstr(error.text, says[k])) test_fail(t, __FILE__, __LINE__, says[k], error.text);
    }
}
