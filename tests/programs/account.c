/* Plans: the bytes of each kind computed by hand, sums that must agree, and predictions against the
 * counts of runs, for every stage. */
#include "../support/numbers.h"
#include "../support/test.h"

enum { MOST_RANKS = 4 };

typedef struct ranks {
    int32_t world;
    int64_t micro_batches;
    zf_comm comms[MOST_RANKS];
    zf_graph *graphs[MOST_RANKS];
    zf_program *programs[MOST_RANKS];
} ranks;

static void close_ranks(void *object)
{
    ranks *r = object;
    for (int32_t k = 0; k < MOST_RANKS; k++) zf_program_free(r->programs[k]);
    for (int32_t k = 0; k < MOST_RANKS; k++) zf_graph_free(r->graphs[k]);
    *r = (ranks){0};
}

/* Two layers of 64 with a bias each, 2 * (4096 + 64) parameters, and a loss. */
static zf_tensor two_layers(zf_graph *g)
{
    zf_tensor x = zf_input(g, "x", ZF_F32, ZF_SHAPE(8, 64));
    for (int k = 0; k < 2; k++) {
        zf_push(g, "layer.%d", k);
        x = zf_relu(zf_nn_linear(x, "dense", 64, NULL));
        zf_pop(g);
    }
    return zf_sum(zf_mul(x, x));
}

/* Everything up to zf_memory; zero NULL: without ranks. */
static zf_graph *make_graph(test *t, bool lamb, const zf_zero_desc *zero)
{
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    zf_tensor lr = zf_input(g, "lr", ZF_F32, ZF_SCALAR);
    zf_passes(g, &(zf_training){.loss = two_layers(g),
                                .lr = lr,
                                .fuse.without = "all",
                                .clip = 1,
                                .optimizer = lamb ? ZF_LAMB : ZF_ADAMW,
                                .zero = zero ? *zero : (zf_zero_desc){0}});
    return g;
}

static size_t sum_of(const size_t kinds[ZF_KINDS])
{
    size_t sum = 0;
    for (int k = 0; k < ZF_KINDS; k++) sum += kinds[k];
    return sum;
}

/* Buckets of one layer each: 4096 + 1024 elements, padded to shards of a multiple of 1024. */
TEST(account_knows_every_kind)
{
    for (int32_t stage = 0; stage < 4; stage++) {
        enum { UNIT = 4 * 6144, ALL = 2 * UNIT, CLOCK = 64 };
        zf_plan plan;
        const zf_zero_desc zero = {.stage = stage, .world = 2, .bucket_bytes = 20000};
        zf_graph *g = make_graph(t, false, &zero);
        NEED(t, g, NULL);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        OK(t, zf_memory(g, NULL), zf_graph_error(g));
        OK(t, zf_graph_plan(g, &plan), zf_graph_error(g));
        CHECK(t, plan.parameter_count == 2 * 4160 && plan.padded_count == 2 * 6144);
        CHECK(t, plan.most[ZF_PARAMETERS] == (stage == 3 ? ALL / 2 : ALL));
        CHECK(t, plan.most[ZF_OPTIMIZER] == (stage ? ALL : 2 * ALL) + CLOCK);
        /* At stage 1 the sum of the bucket that is reduced first is live together with all of
         * them. */
        CHECK(t, plan.most[ZF_GRADIENTS] == (stage == 0   ? ALL
                                             : stage == 1 ? ALL + UNIT / 2
                                                          : ALL / 2));
        CHECK(t, plan.traffic.all_reduce.calls == (stage == 0 ? 3 : 1));
        CHECK(t, plan.traffic.all_reduce.bytes == (stage == 0 ? ALL : 0) + 8);
        CHECK(t, plan.traffic.reduce_scatter.calls == (stage ? 2 : 0));
        CHECK(t, plan.traffic.reduce_scatter.bytes == (stage ? ALL / 2 : 0));
        /* The gathers of updated shards; at stage 3 those before uses: of the second layer once, of
         * the first for the forward pass alone. And a rank's three of a bucket's six block norms,
         * for the global norm. */
        CHECK(t, plan.traffic.all_gather.calls == (stage ? 4 : 0));
        CHECK(t, plan.traffic.all_gather.bytes == (stage ? ALL / 2 + 2 * 3 * 4 : 0));
        CHECK(t, plan.flops == 2.0 * 8 * 64 * 64 * 5);
        CHECK(t, sum_of(plan.at_peak) == plan.live_bytes && plan.live_bytes <= plan.peak_bytes);
    }
}

static zf_status open_ranks(test *t, ranks *r, int32_t stage, int32_t world, int64_t micro_batches,
                            bool lamb, bool prefetch, zf_error *error)
{
    r->world = world, r->micro_batches = micro_batches;
    for (int32_t k = 0; k < world; k++) {
        zf_graph *g = r->graphs[k] =
            make_graph(t, lamb,
                       &(zf_zero_desc){.stage = stage,
                                       .world = world,
                                       .micro_batches = micro_batches,
                                       .bucket_bytes = 20000});
        if (!g) return error->status = ZF_ERR_NOMEM;
        if (prefetch) zf_prefetch(g, &(zf_training){.prefetch = {.bytes = 1 << 20}});
        r->comms[k] = (zf_comm){.rank = k, .world = world};
        r->programs[k] = zf_compile(g, &(zf_compile_desc){.comm = world > 1 ? &r->comms[k] : NULL});
        if (r->programs[k] && !write_seeded(r->programs[k], zf_graph_find(g, "x")) &&
            !write_seeded(r->programs[k], zf_graph_find(g, "lr")))
            continue;
        snprintf(error->text, sizeof error->text, "%s", zf_graph_error(g));
        return error->status = zf_graph_status(g);
    }
    return ZF_OK;
}

static zf_status step_ranks(ranks *r, zf_error *error)
{
    const zf_lockstep_desc lockstep = {r->programs, r->world, 0};
    for (int64_t m = 0; m + 1 < r->micro_batches; m++)
        if (zf_lockstep_micro(&lockstep, error)) return error->status;
    return zf_lockstep_step(&lockstep, error);
}

/* Of every rank, step after step. */
TEST_ONCE(account_predicts_what_is_counted)
{
    for (int32_t n = 0; n < 4 * 3 * 2 * 2 * 2; n++) {
        static ranks r;
        zf_error error = {ZF_OK, ""};
        int32_t world = 1 << n / 4 % 3;
        test_defer(t, close_ranks, &r);
        OK(t, open_ranks(t, &r, n % 4, world, 1 + n / 12 % 2 * 2, n / 24 % 2, n >= 48, &error),
           error.text);
        for (int step = 0; step < 2; step++) {
            OK(t, step_ranks(&r, &error), error.text);
            for (int32_t k = 0; k < world; k++) {
                zf_program_info info = zf_program_info_of(r.programs[k]);
                CHECK(t, !memcmp(&info.counted, &info.plan.traffic, sizeof info.counted));
                CHECK(t, (info.counted.all_reduce.bytes > 0) == (world > 1));
                CHECK(t, sum_of(info.plan.at_peak) == info.live_bytes);
                CHECK(t, info.plan.live_bytes == info.live_bytes);
                CHECK(t, info.plan.peak_bytes == info.allocated_bytes);
            }
        }
        close_ranks(&r);
        t->deferred_count--;
    }
}

/* The plan of a graph is that of its text. */
TEST(account_reads_a_parsed_plan)
{
    zf_plan plan, again;
    zf_error error = {ZF_OK, ""};
    const zf_zero_desc zero = {.stage = 3, .world = 4, .micro_batches = 2, .bucket_bytes = 20000};
    zf_graph *g = make_graph(t, false, &zero), *h;
    size_t bytes;
    char *text;
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    OK(t, zf_memory(g, NULL), zf_graph_error(g));
    OK(t, zf_graph_plan(g, &plan), zf_graph_error(g));
    bytes = zf_graph_text(g, NULL, 0);
    text = malloc(bytes + 1);
    test_defer(t, free, text);
    CHECK(t, text);
    zf_graph_text(g, text, bytes + 1);
    h = zf_graph_parse(text, bytes, &(zf_graph_desc){.allocator = t->allocator}, &error);
    NEED(t, h, &error);
    test_defer(t, (test_cleanup *)zf_graph_free, h);
    OK(t, zf_graph_plan(h, &again), zf_graph_error(h));
    CHECK_TEXT(t, again.peak_op, plan.peak_op);
    plan.peak_op = again.peak_op, plan.peak_scope = again.peak_scope; /* text has no scopes */
    for (int k = 0; k < ZF_SPACES; k++) {
        CHECK_TEXT(t, again.spaces[k].peak_op, plan.spaces[k].peak_op);
        plan.spaces[k].peak_op = again.spaces[k].peak_op;
        plan.spaces[k].peak_scope = again.spaces[k].peak_scope;
    }
    CHECK(t, !memcmp(&plan, &again, sizeof plan));
}

TEST(account_before_memory)
{
    zf_plan plan;
    zf_graph *g = make_graph(t, false, NULL);
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    OK(t, zf_graph_plan(g, &plan), zf_graph_error(g));
    CHECK(t, plan.peak_bytes == 0 && plan.live_bytes == 0 && plan.parameter_count == 2 * 4160 &&
                 plan.padded_count == 2 * 4160 && plan.traffic.all_reduce.calls == 0);
    CHECK(t, zf_graph_plan(NULL, &plan) == ZF_ERR_ARGUMENT);
    CHECK(t, zf_graph_plan(g, NULL) == ZF_ERR_ARGUMENT);
    CHECK(t, zf_plan_fits(g, 1) == ZF_ERR_STAGE);
    CHECK_TEXT(t, zf_graph_error(g), "zf_plan_fits: needs zf_memory before it");
}

TEST(account_says_what_does_not_fit)
{
    zf_plan plan;
    char text[64];
    zf_graph *g = make_graph(t, false, NULL);
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    OK(t, zf_memory(g, NULL), zf_graph_error(g));
    OK(t, zf_graph_plan(g, &plan), zf_graph_error(g));
    OK(t, zf_plan_fits(g, 0), zf_graph_error(g));
    OK(t, zf_plan_fits(g, plan.peak_bytes), zf_graph_error(g));
    GIVES(t, zf_plan_fits(g, plan.peak_bytes - 1), ZF_ERR_LIMIT, zf_graph_error(g));
    snprintf(text, sizeof text, "the plan takes %zu bytes, 1 more than", plan.peak_bytes);
    CHECK(t, strstr(zf_graph_error(g), text) && strstr(zf_graph_error(g), "layer.0.dense.weight"));
}

/* A product of [8,64] by [64,64], the gradient of its weight and an update, by hand; views and
 * leaves do nothing. */
TEST(account_counts_work)
{
    const double x = 8 * 64, w = 64 * 64, f = sizeof(float);
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    zf_work all, work;
    zf_tensor in, loss;
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    in = zf_input(g, "x", ZF_F32, ZF_SHAPE(4, 2, 64));
    in = zf_matmul(zf_reshape(in, ZF_SHAPE(8, 64)), zf_param(g, "w", ZF_SHAPE(64, 64), NULL));
    loss = zf_sum(zf_mul(in, in));
    zf_autograd(g, loss);
    zf_adamw(g, zf_input(g, "lr", ZF_F32, ZF_SCALAR), NULL);
    GIVES(t, zf_graph_work(g, ZF_OP_none, &all), ZF_OK, zf_graph_error(g));
    GIVES(t, zf_graph_work(g, ZF_OP_matmul, &work), ZF_OK, zf_graph_error(g));
    CHECK(t, work.launches == 2); /* it, and the gradient of w */
    CHECK(t, work.flops == 2 * 2 * x * 64 && all.flops == work.flops);
    CHECK(t, work.bytes == f * (x + w + x) + f * (x + x + w));
    GIVES(t, zf_graph_work(g, ZF_OP_adamw, &work), ZF_OK, zf_graph_error(g));
    CHECK(t, work.launches == 1 && work.flops == 0);
    CHECK(t, work.bytes == f * (2 * w + w + 2 * w + 2 * w) + f + 8); /* p, g, m, v; lr, step */
    GIVES(t, zf_graph_work(g, ZF_OP_reshape, &work), ZF_OK, zf_graph_error(g));
    CHECK(t, work.launches == 0 && work.bytes == 0);
    GIVES(t, zf_graph_work(g, ZF_OP_param, &work), ZF_OK, zf_graph_error(g));
    CHECK(t, work.launches == 0 && work.bytes == 0);
    CHECK(t, zf_graph_work(NULL, ZF_OP_none, &work) == ZF_ERR_ARGUMENT);
}

TEST_ONCE(account_names_kinds)
{
    CHECK_TEXT(t, zf_kind_name(ZF_PARAMETERS), "parameters");
    CHECK_TEXT(t, zf_kind_name(ZF_INPUTS), "inputs");
    CHECK(t, !zf_kind_name(ZF_KINDS));
}

/* Rows of zf_graph_alive have the sums of the plan, and a place for every node of the text. */
TEST(account_of_every_place)
{
    zf_graph *g = make_graph(t, false, &(zf_zero_desc){.stage = 1, .world = 2});
    static size_t bytes[512][ZF_KINDS];
    size_t most[ZF_KINDS] = {0}, live = 0;
    zf_node node;
    zf_plan plan;
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    OK(t, zf_memory(g, NULL), zf_graph_error(g));
    OK(t, zf_graph_plan(g, &plan), zf_graph_error(g));
    OK(t, zf_graph_alive(g, ZF_DEVICE, bytes), zf_graph_error(g));
    CHECK(t, plan.nodes < 512 && zf_graph_node(g, plan.nodes - 1, &node));
    CHECK(t, !zf_graph_node(g, plan.nodes, &node) && !zf_graph_node(g, -1, &node));
    for (int32_t i = 0; i < plan.nodes; i++) {
        CHECK(t, zf_graph_node(g, i, &node) && !strcmp(node.op_name, zf_op_name(node.op)));
        if (sum_of(bytes[i]) > live) live = sum_of(bytes[i]);
        for (int k = 0; k < ZF_KINDS; k++)
            if (bytes[i][k] > most[k]) most[k] = bytes[i][k];
    }
    CHECK(t, live == plan.live_bytes && !memcmp(most, plan.most, sizeof most));
    GIVES(t, zf_graph_alive(g, ZF_SPACES, bytes), ZF_ERR_ARGUMENT, "");
}

TEST(account_of_lives_needs_places)
{
    zf_graph *g = make_graph(t, false, &(zf_zero_desc){.stage = 1, .world = 2});
    static size_t bytes[512][ZF_KINDS];
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    GIVES(t, zf_graph_alive(g, ZF_DEVICE, bytes), ZF_ERR_STAGE, zf_graph_error(g));
    CHECK(t, strstr(zf_graph_error(g), "zf_graph_alive: needs zf_memory"));
}

TEST(account_of_places_before_memory)
{
    zf_graph *g = make_graph(t, false, NULL);
    size_t bytes[1][ZF_KINDS];
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    GIVES(t, zf_graph_alive(g, ZF_DEVICE, bytes), ZF_ERR_STAGE, zf_graph_error(g));
    CHECK(t, strstr(zf_graph_error(g), "zf_memory") != NULL);
}

/* Spans of zf_graph_timeline add up to the estimate, and none begins before the last one of its
 * resource has ended. */
TEST(account_of_time)
{
    zf_graph *g = make_graph(t, false, &(zf_zero_desc){.stage = 1, .world = 2});
    static zf_span spans[512];
    double busy[ZF_RESOURCES] = {0}, last[ZF_RESOURCES] = {0};
    int32_t count = 0, room = 3;
    zf_estimate e;
    memset(spans, 0, sizeof spans);
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    OK(t, zf_graph_estimate(g, NULL, &e), zf_graph_error(g));
    OK(t, zf_graph_timeline(g, NULL, NULL, &count), zf_graph_error(g));
    CHECK(t, count > 3 && count < 512);
    OK(t, zf_graph_timeline(g, NULL, spans, &room), zf_graph_error(g));
    CHECK(t, room == count && spans[2].node && !spans[3].node);
    OK(t, zf_graph_timeline(g, NULL, spans, &room), zf_graph_error(g));
    for (int32_t k = 0; k < count; k++) {
        CHECK(t, spans[k].from >= last[spans[k].resource] && spans[k].to > spans[k].from);
        last[spans[k].resource] = spans[k].to;
        busy[spans[k].resource] += spans[k].to - spans[k].from;
    }
    for (int k = 0; k < ZF_RESOURCES; k++) CHECK_NEAR(t, busy[k], e.busy[k], 1e-9);
    CHECK_NEAR(t, fmax(last[ZF_RESOURCE_COMPUTE], last[ZF_RESOURCE_LINK]), e.seconds, 1e-9);
    room = -1;
    GIVES(t, zf_graph_timeline(g, NULL, spans, &room), ZF_ERR_ARGUMENT, "");
}
