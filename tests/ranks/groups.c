/* Ranks in several nodes: the order of sums, ranks that are threads against lockstep, what hpz and
 * mics take and send, quantised gathers and sums, and what is refused. tests/files/shards.c
 * compares stages and checkpoints, tests/ranks/comm.c the calls of groups, tests/passes the text.
 * */
#include "../support/test.h"

#include <pthread.h>

enum { RANKS = 6, ROWS = 2, WIDTH = 40, LAYERS = 3 };

typedef struct setup {
    int32_t world, nodes, stage;
    int64_t micro_batches;
    bool hpz, mics, prefetch, threads, half, weights, gradients, loco;
    int32_t block;  /* of quantised weights and gradients */
    int32_t bits;   /* of errors */
    size_t bucket;  /* bytes; 0: one layer */
    int32_t odd_nodes; /* of the last rank, if it is not 0 */
} setup;

typedef struct team team;

typedef struct member {
    team *team;
    zf_graph *graph;
    zf_program *program;
    pthread_t thread;
    zf_status status;
    float loss;
} member;

struct team {
    setup s;
    zf_local *group;
    zf_comm comms[RANKS];
    member members[RANKS];
    zf_program *programs[RANKS];
};

static void team_free(void *object)
{
    team *m = object;
    for (int r = 0; r < RANKS; r++) zf_program_free(m->members[r].program);
    for (int r = 0; r < RANKS; r++) zf_graph_free(m->members[r].graph);
    zf_local_free(m->group);
    *m = (team){.group = NULL};
}

/* Layers of one bucket each, whose weights the backward pass reads again; the loss is a sum. */
static zf_graph *build(const setup *s, int32_t nodes)
{
    const zf_param_desc normal = {.init = ZF_NORMAL, .std = 0.2};
    zf_graph *g = zf_graph_new(NULL);
    zf_tensor h = zf_input(g, "x", ZF_F32, ZF_SHAPE(ROWS, WIDTH)),
              lr = zf_input(g, "lr", ZF_F32, ZF_SCALAR), loss;
    for (int k = 0; k < LAYERS; k++) {
        char name[32];
        snprintf(name, sizeof name, "layer.%d.weight", k);
        h = zf_tanh(zf_matmul(h, zf_param(g, name, ZF_SHAPE(WIDTH, WIDTH), &normal)));
    }
    loss = zf_sum(h);
    zf_output(loss, "loss");
    zf_passes(g, &(zf_training){.loss = loss,
                                .lr = lr,
                                .fuse.without = "all",
                                .clip = 1,
                                .precision.dtype = s->half ? ZF_BF16 : ZF_F32,
                                .zero = {.stage = s->stage,
                                         .world = s->world,
                                         .micro_batches = s->micro_batches,
                                         .nodes = nodes,
                                         .hpz = s->hpz,
                                         .mics = s->mics,
                                         .quantized_weights = s->weights,
                                         .quantized_gradients = s->gradients,
                                         .loco = s->loco,
                                         .loco_bits = s->loco ? s->bits : 0,
                                         .quantized_block = s->weights || s->gradients ? s->block : 0,
                                         .bucket_bytes = s->bucket
                                                             ? s->bucket
                                                             : (s->half ? 2 : 4) * WIDTH * WIDTH},
                                .prefetch.bytes = s->prefetch ? 1 << 20 : 0});
    return g;
}

static bool team_new(test *t, team *m, const setup *s)
{
    zf_error error = {ZF_OK, ""};
    team_free(m);
    m->s = *s;
    if (s->threads)
        m->group =
            zf_local_new(&(zf_local_desc){.world = s->world, .deadline_seconds = 30}, &error);
    for (int32_t r = 0; r < s->world; r++) {
        member *k = &m->members[r];
        const bool odd = s->odd_nodes && r == s->world - 1;
        m->comms[r] = (zf_comm){.rank = r, .world = s->world};
        k->team = m;
        k->graph = build(s, odd ? s->odd_nodes : s->nodes);
        k->program = m->programs[r] =
            zf_compile(k->graph, &(zf_compile_desc){.seed = 3,
                                                    .verify = true,
                                                    .comm = s->threads ? zf_local_comm(m->group, r)
                                                                       : &m->comms[r]});
        if (k->program) continue;
        test_fail(t, __FILE__, __LINE__, "zf_compile", zf_graph_error(k->graph));
        return false;
    }
    return true;
}

/* The number that all elements of x are on a slot: sums of such depend on the order. */
static float slot_value(int64_t slot)
{
    return (float)(slot % 3 + 1) * 1e-3f * (float)(slot * slot + 1);
}

static zf_status feed(member *k, int32_t rank, int64_t micro)
{
    const team *m = k->team;
    float x[ROWS * WIDTH], lr = 0.01f;
    zf_status status;
    for (int i = 0; i < ROWS * WIDTH; i++)
        x[i] = slot_value(micro * m->s.world + rank) + (float)i / 64;
    status = zf_write(k->program, zf_graph_find(k->graph, "x"), x, sizeof x);
    return status ? status : zf_write(k->program, zf_graph_find(k->graph, "lr"), &lr, sizeof lr);
}

enum { STEPS = 3 }; /* what Adam's first update changes hardly depends on sizes of gradients */

static void *member_main(void *object)
{
    member *k = object;
    const team *m = k->team;
    const int32_t rank = (int32_t)(k - m->members);
    for (int step = 0; step < STEPS && !k->status; step++)
        for (int64_t micro = 0; micro < m->s.micro_batches && !k->status; micro++)
            if (!(k->status = feed(k, rank, micro)))
                k->status =
                    micro + 1 < m->s.micro_batches ? zf_micro(k->program) : zf_step(k->program);
    return NULL;
}

/* Steps of all ranks; the first error. */
static zf_status run(team *m, zf_error *error)
{
    const zf_lockstep_desc lockstep = {m->programs, m->s.world, 0};
    zf_status status = ZF_OK;
    if (m->s.threads) {
        for (int r = 0; r < m->s.world; r++)
            if (pthread_create(&m->members[r].thread, NULL, member_main, &m->members[r])) abort();
        for (int r = 0; r < m->s.world; r++) pthread_join(m->members[r].thread, NULL);
        for (int r = 0; r < m->s.world && !status; r++)
            if ((status = m->members[r].status))
                snprintf(error->text, sizeof error->text, "%s", zf_program_error(m->programs[r]));
        return status;
    }
    for (int step = 0; step < STEPS && !status; step++)
        for (int64_t micro = 0; micro < m->s.micro_batches && !status; micro++) {
            for (int32_t r = 0; r < m->s.world && !status; r++)
                status = feed(&m->members[r], r, micro);
            if (!status)
                status = micro + 1 < m->s.micro_batches ? zf_lockstep_micro(&lockstep, error)
                                                        : zf_lockstep_step(&lockstep, error);
        }
    return status;
}

/* The bits of what it has trained, as far as one number tells: the loss of the last step, which is
 * a sum over all parts, of parameters that all gradients have changed. */
static float loss_of(const team *m)
{
    float loss = 0;
    zf_read(m->programs[0], zf_graph_find(m->members[0].graph, "loss"), &loss, sizeof loss);
    return loss;
}

/* ---------------------------------------------------------------------------------------- order */

static team teams[2];

static float part_of(int64_t slot)
{
    return ldexpf(1.0f / (float)(2 * slot + 3), (int)(slot * 7 % 5)) + 0.1f;
}

/* By definition: in each micro-batch the ranks of a node in their order, then the nodes in theirs,
 * onto what the micro-batches before left. */
TEST_ONCE(groups_sums_have_their_order)
{
    static const struct {
        int32_t world, nodes;
        int64_t micro_batches;
    } rows[] = {{4, 2, 1}, {4, 2, 3}, {6, 3, 2}, {6, 2, 1}, {6, 1, 2}, {6, 6, 2}};
    team *m = &teams[0];
    int others = 0;
    test_defer(t, team_free, m);
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
        const int32_t world = rows[n].world, nodes = rows[n].nodes,
                      local = nodes == 1 || nodes == world ? 1 : world / nodes;
        const zf_lockstep_desc lockstep = {m->programs, world, 0};
        zf_error error = {ZF_OK, ""};
        float want = 0, flat = 0, got = 0;
        team_free(m);
        for (int32_t r = 0; r < world; r++) {
            zf_graph *g = m->members[r].graph = zf_graph_new(NULL);
            zf_output(zf_scale(zf_sum(zf_input(g, "x", ZF_F32, ZF_SHAPE(2))), 1), "sum");
            zf_zero(g, &(zf_zero_desc){.world = world,
                                       .nodes = nodes,
                                       .micro_batches = rows[n].micro_batches});
            m->comms[r] = (zf_comm){.rank = r, .world = world};
            m->programs[r] = zf_compile(g, &(zf_compile_desc){.comm = &m->comms[r]});
            m->members[r].program = m->programs[r];
            OK(t, zf_graph_status(g), zf_graph_error(g));
        }
        for (int64_t micro = 0; micro < rows[n].micro_batches; micro++) {
            for (int32_t r = 0; r < world; r++) {
                const float x[2] = {part_of(micro * world + r), 0};
                zf_tensor to = zf_graph_find(m->members[r].graph, "x");
                OK(t, zf_write(m->programs[r], to, x, sizeof x), zf_program_error(m->programs[r]));
                flat += x[0];
            }
            for (int32_t node = 0; node < world / local; node++) {
                float sum = part_of(micro * world + node * local);
                for (int32_t k = 1; k < local; k++)
                    sum += part_of(micro * world + node * local + k);
                want = micro || node ? want + sum : sum;
            }
            OK(t,
               micro + 1 < rows[n].micro_batches ? zf_lockstep_micro(&lockstep, &error)
                                                 : zf_lockstep_step(&lockstep, &error),
               error.text);
        }
        OK(t,
           zf_read(m->programs[0], zf_graph_find(m->members[0].graph, "sum"), &got, sizeof got),
           zf_program_error(m->programs[0]));
        CHECK(t, got == want);
        CHECK(t, local > 1 || want == flat);
        others += want != flat;
    }
    CHECK(t, others > 0);
}

/* Without several nodes of several ranks the text is what it is without nodes. */
TEST_ONCE(groups_of_one_node_are_none)
{
    for (int32_t stage = 0; stage < 4; stage++) {
        const setup s = {.world = 4, .stage = stage, .micro_batches = 2};
        zf_graph *plain = build(&s, 0), *one = build(&s, 1), *all = build(&s, 4),
                 *two = build(&s, 2);
        CHECK(t, zf_graph_hash(plain) == zf_graph_hash(one));
        CHECK(t, zf_graph_hash(plain) == zf_graph_hash(all));
        CHECK(t, zf_graph_hash(plain) != zf_graph_hash(two));
        zf_graph_free(plain), zf_graph_free(one), zf_graph_free(all), zf_graph_free(two);
    }
}

/* -------------------------------------------------------------------------------------- threads */

/* Ranks that are threads have the bits of lockstep, with several queues too. */
TEST_ONCE(groups_of_threads)
{
    static const setup rows[] = {
        {.world = 4, .nodes = 2, .stage = 0, .micro_batches = 2, .prefetch = true},
        {.world = 6, .nodes = 3, .stage = 2, .micro_batches = 1, .prefetch = true},
        {.world = 4, .nodes = 2, .stage = 3, .micro_batches = 2, .prefetch = true},
        {.world = 4, .nodes = 2, .stage = 3, .micro_batches = 2, .hpz = true, .prefetch = true},
        {.world = 6, .nodes = 2, .stage = 3, .micro_batches = 1, .mics = true, .prefetch = true},
        {.world = 6, .nodes = 3, .stage = 1, .micro_batches = 2, .mics = true}};
    test_defer(t, team_free, &teams[0]);
    test_defer(t, team_free, &teams[1]);
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
        setup s = rows[n];
        zf_error error = {ZF_OK, ""};
        if (!team_new(t, &teams[0], &s)) return;
        OK(t, run(&teams[0], &error), error.text);
        s.threads = true;
        s.prefetch = n % 2;
        if (!team_new(t, &teams[1], &s)) return;
        OK(t, run(&teams[1], &error), error.text);
        CHECK(t, loss_of(&teams[0]) == loss_of(&teams[1]));
    }
}

/* ----------------------------------------------------------------------------------- quantised */

/* Threads, queues, the cut of buckets, hpz and mics change no bit of quantised steps either, and
 * forward and backward pass read the same values, with hpz or kept gathered. */
TEST_ONCE(groups_quantized_bits)
{
    static const setup rows[] = {
        {.world = 4, .stage = 3, .micro_batches = 2, .weights = true},
        {.world = 4, .nodes = 2, .stage = 3, .micro_batches = 1, .weights = true,
         .gradients = true},
        {.world = 6, .nodes = 3, .stage = 3, .micro_batches = 2, .hpz = true, .weights = true,
         .gradients = true, .block = 192},
        {.world = 4, .nodes = 2, .stage = 3, .micro_batches = 1, .mics = true, .weights = true,
         .block = 2048},
        {.world = 3, .stage = 2, .micro_batches = 2, .gradients = true, .block = 2048},
        {.world = 4, .nodes = 2, .stage = 1, .micro_batches = 1, .gradients = true, .half = true},
        {.world = 4, .nodes = 2, .stage = 3, .micro_batches = 2, .weights = true, .gradients = true,
         .half = true},
        {.world = 4, .nodes = 2, .stage = 3, .micro_batches = 1, .gradients = true, .loco = true,
         .half = true},
        {.world = 6, .nodes = 3, .stage = 2, .micro_batches = 2, .gradients = true, .loco = true,
         .block = 192, .bits = 8},
        {.world = 3, .stage = 1, .micro_batches = 2, .gradients = true, .loco = true},
        {.world = 6, .nodes = 3, .stage = 3, .micro_batches = 2, .mics = true, .weights = true,
         .gradients = true, .loco = true, .bits = 8}};
    test_defer(t, team_free, &teams[0]);
    test_defer(t, team_free, &teams[1]);
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
        setup s = rows[n];
        zf_error error = {ZF_OK, ""};
        float plain;
        if (!team_new(t, &teams[0], &s)) return;
        OK(t, run(&teams[0], &error), error.text);
        s.threads = true, s.prefetch = true;
        s.mics = s.nodes && !s.mics && !s.hpz;
        if (s.stage == 3 && !s.mics) s.hpz = s.nodes && !s.hpz;
        s.bucket = n % 2 ? 1 : 9 * WIDTH * WIDTH;
        if (!team_new(t, &teams[1], &s)) return;
        OK(t, run(&teams[1], &error), error.text);
        CHECK(t, loss_of(&teams[0]) == loss_of(&teams[1]));
        plain = loss_of(&teams[0]);
        s = rows[n], s.weights = s.gradients = s.loco = false;
        if (!team_new(t, &teams[1], &s)) return;
        OK(t, run(&teams[1], &error), error.text);
        CHECK(t, loss_of(&teams[1]) != plain &&
                     fabsf(loss_of(&teams[1]) - plain) < 0.05f * fabsf(plain));
    }
}

/* ------------------------------------------------------------------------------ bytes and links */

static size_t bytes_of(const zf_traffic *t)
{
    return t->all_gather.bytes + t->reduce_scatter.bytes + t->all_reduce.bytes +
           t->all_to_all.bytes + t->bcast.bytes;
}

static size_t between(const zf_traffic *t)
{
    return t->all_gather.between + t->reduce_scatter.between + t->all_reduce.between +
           t->all_to_all.between + t->bcast.between;
}

/* Runs steps; on each rank what was predicted is counted. *plan is that of all ranks. */
static bool predicted(test *t, const setup *s, zf_plan *plan)
{
    zf_error error = {ZF_OK, ""};
    bool same = true;
    if (!team_new(t, &teams[0], s)) return false;
    if (run(&teams[0], &error)) {
        test_fail(t, __FILE__, __LINE__, "run", error.text);
        return false;
    }
    for (int r = 0; r < s->world; r++) {
        const zf_program_info info = zf_program_info_of(teams[0].programs[r]);
        same = same && info.plan.peak_bytes == info.allocated_bytes &&
               !memcmp(&info.counted, &info.plan.traffic, sizeof info.counted) &&
               !memcmp(info.counted_over, info.plan.traffic_over, sizeof info.counted_over);
        if (!r) *plan = info.plan;
    }
    if (!same) test_fail(t, __FILE__, __LINE__, "what was predicted is counted", "");
    return same;
}

/* By hand, of a rank in 2 nodes of 2: buckets of 1600 elements, padded to 4096, in shards of b = 4
 * KiB. Norms of blocks: 1 of a shard; the loss: 1. */
TEST_ONCE(groups_bytes_by_link)
{
    enum { B = 4096, L = LAYERS };
    static const struct {
        int32_t stage;
        bool hpz, mics;
        size_t gather_near, gather_far, reduce_near, reduce_far;
    } rows[] = {
        /* the parts of shards, then the whole, of updated parameters: b far, 2 b near */
        {1, false, false, 2 * B * L, B * L, 2 * B * L, B * L},
        {2, false, false, 2 * B * L, B * L, 2 * B * L, B * L},
        /* forward: 3 layers, backward: 1 again (the first needs no dx, the last is one run) */
        {3, false, false, 2 * B * (L + 1), B * (L + 1), 2 * B * L, B * L},
        {3, true, false, 2 * B * (L + 1), B * L, 2 * B * L, B * L},
        /* two shards, so 2048 elements: of each b near, and far an all_reduce of b over two */
        {3, false, true, B * (L + 1), 0, B * L, B * L},
    };
    test_defer(t, team_free, &teams[0]);
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
        const setup s = {.world = 4,
                         .nodes = 2,
                         .stage = rows[n].stage,
                         .micro_batches = 1,
                         .hpz = rows[n].hpz,
                         .mics = rows[n].mics};
        const size_t norms_near = (rows[n].mics ? 4 : 8) * L, norms_far = rows[n].mics ? 0 : 4 * L;
        zf_plan plan;
        const zf_traffic *node = &plan.traffic_over[ZF_OVER_NODE],
                         *local = &plan.traffic_over[ZF_OVER_LOCAL];
        if (!predicted(t, &s, &plan)) return;
        CHECK(t, local->all_gather.bytes == rows[n].gather_near + norms_near);
        CHECK(t, node->all_gather.bytes == rows[n].gather_far + norms_far);
        CHECK(t, local->reduce_scatter.bytes == rows[n].reduce_near);
        CHECK(t, node->reduce_scatter.bytes + node->all_reduce.bytes == rows[n].reduce_far + 8);
        CHECK(t, local->all_reduce.bytes == 8);
        CHECK(t, bytes_of(&plan.traffic) == bytes_of(node) + bytes_of(local));
        CHECK(t, between(&plan.traffic) == bytes_of(node) && !between(local));
        CHECK(t, !plan.scales.bytes);
    }
}

/* Plain stage 3 sends a bucket's 16 bits between nodes for the forward pass, for the backward pass,
 * and its gradient: 3 M. With hpz and both quantised it is 8 bits once and 4 bits: 0.75 M, and a
 * scale for each block. Error feedback sends nothing more: it has two states, of f32 or of records
 * of 8 bits, of all elements of a bucket, and of a node's sum that is sharded over its ranks. Of 2
 * nodes of 2; shards of B elements; the gradient of one layer of three needs its weights again. */
TEST_ONCE(groups_bytes_of_quantized)
{
    enum { B = 1024, L = LAYERS, BLOCK = 256, SCALES = B / BLOCK * 4, OTHERS = 4 * L + 8 };
    size_t states = 0;
    test_defer(t, team_free, &teams[0]);
    for (int way = 0; way < 4; way++) {
        const bool quantized = way > 0;
        const setup s = {.world = 4,
                         .nodes = 2,
                         .stage = 3,
                         .micro_batches = 1,
                         .half = true,
                         .hpz = quantized,
                         .weights = quantized,
                         .gradients = quantized,
                         .loco = way > 1,
                         .bits = way == 3 ? 8 : 0};
        const size_t gathers = quantized ? L * (B + SCALES) : (L + 1) * 2 * B,
                     sums = quantized ? L * (B / 2 + SCALES) : L * 2 * B,
                     again = quantized ? (L + 1) * 2 * (B + SCALES) : (L + 1) * 4 * B,
                     scales = quantized ? 2 * L * SCALES : 0;
        zf_plan plan;
        const zf_traffic *node = &plan.traffic_over[ZF_OVER_NODE],
                         *local = &plan.traffic_over[ZF_OVER_LOCAL];
        if (!predicted(t, &s, &plan)) return;
        CHECK(t, between(&plan.traffic) == gathers + sums + OTHERS);
        CHECK(t, node->all_to_all.bytes == (quantized ? sums : 0));
        CHECK(t, local->all_to_all.bytes == (quantized ? 2 * sums : 0));
        CHECK(t, local->all_gather.bytes == again + 8 * L);
        CHECK(t, plan.scales.between == scales);
        /* 1600 of 4096 elements are a layer's */
        CHECK_NEAR(t, (double)plan.padding.between,
                   (double)(gathers + sums - scales) * (1 - 1600.0 / 4096), 2 * L);
        CHECK(t, plan.loco_bytes == (size_t)L * (4 + 2) *
                                        (way < 2    ? 0
                                         : way == 2 ? B * sizeof(float)
                                                    : B / BLOCK * (BLOCK + 4)));
        /* 2080 bytes of records have a place of 2112 */
        CHECK(t, plan.most[ZF_OPTIMIZER] ==
                     (way < 2 ? plan.most[ZF_OPTIMIZER]
                              : states + plan.loco_bytes + (way == 3 ? L * 32 : 0)));
        if (way < 2) states = plan.most[ZF_OPTIMIZER];
    }
}

/* Quantised gradients with mics: each rank sends an exchange of its node 1 / 4 of the bytes of 16
 * bits; then of its shard, of 2 B elements, half to the other node, in 4 bits in each micro-batch,
 * and once what it has summed, in 16. */
TEST_ONCE(groups_bytes_of_quantized_mics)
{
    enum { B = 1024, L = LAYERS, BLOCK = 256, SCALES = B / BLOCK * 4, MICRO = 2 };
    const setup s = {.world = 4,
                     .nodes = 2,
                     .stage = 2,
                     .micro_batches = MICRO,
                     .half = true,
                     .mics = true,
                     .gradients = true};
    zf_plan plan;
    const zf_traffic *node = &plan.traffic_over[ZF_OVER_NODE],
                     *local = &plan.traffic_over[ZF_OVER_LOCAL];
    test_defer(t, team_free, &teams[0]);
    if (!predicted(t, &s, &plan)) return;
    CHECK(t, local->all_to_all.bytes == MICRO * L * 2 * (B / 2 + SCALES));
    CHECK(t, node->all_to_all.bytes == MICRO * L * (B / 2 + SCALES));
    CHECK(t, node->all_gather.bytes == L * 2 * B);
    CHECK(t, node->reduce_scatter.bytes == 0 && node->all_reduce.bytes == MICRO * 8);
    CHECK(t, plan.scales.between == MICRO * L * SCALES);
}

/* -------------------------------------------------------------------------------- combinations */

/* The way in which a setup has no meaning, as the error says it; NULL: it has one. */
static const char *no_meaning(const setup *s)
{
    const bool mesh = s->nodes > 1 && s->nodes < s->world;
    if (s->hpz && s->stage < 3) return "hpz requires zero.stage=3";
    if (s->hpz && s->mics) return "hpz and zero.mics exclude each other";
    if (s->mics && !s->stage) return "mics requires zero.stage=1, 2 or 3";
    if (s->weights && s->stage < 3) return "quantized_weights requires zero.stage=3";
    if (s->gradients && !s->stage) return "quantized_gradients requires zero.stage=1, 2 or 3";
    if (s->loco && !s->gradients) return "loco requires zero.quantized_gradients";
    if ((s->hpz || s->mics) && !mesh) return "needs several nodes of several ranks each";
    return (s->weights || s->gradients) && s->world < 2 ? "needs several ranks" : NULL;
}

/* All combinations of stages, meshes, hpz, mics and quantisation: each is a graph whose rules hold,
 * or an error that says why it has no meaning. A sample of them runs: neither hpz nor mics nor the
 * stage changes a bit, quantised or not. */
TEST_ONCE(groups_combinations)
{
    static const struct {
        int32_t world, nodes;
    } meshes[] = {{4, 2}, {1, 1}, {3, 1}, {6, 3}, {4, 4}, {6, 2}};
    int made = 0, ran = 0, refused = 0;
    test_defer(t, team_free, &teams[0]);
    test_defer(t, team_free, &teams[1]);
    for (int n = 0; n < 4 * 6 * 32; n++) {
        const int ways = n / 24;
        setup s = {.stage = n % 4,
                   .world = meshes[n / 4 % 6].world,
                   .nodes = meshes[n / 4 % 6].nodes,
                   .micro_batches = 1 + n % 5 / 4,
                   .hpz = ways & 1,
                   .mics = ways & 2,
                   .weights = ways & 4,
                   .gradients = ways & 8,
                   .half = n / 8 % 3 == 1,
                   .loco = ways & 16};
        const char *why = no_meaning(&s);
        zf_graph *g = build(&s, s.nodes);
        zf_error error = {ZF_OK, ""};
        if (why ? !strstr(zf_graph_error(g), why) : zf_graph_status(g))
            test_fail(t, __FILE__, __LINE__, why ? why : "it has a meaning", zf_graph_error(g));
        zf_graph_free(g);
        if (t->failed) return;
        made += !why, refused += why != NULL;
        if (why || s.world == 1 || made % 9) continue;
        if (!team_new(t, &teams[0], &s)) return;
        OK(t, run(&teams[0], &error), error.text);
        s.hpz = s.stage == 3 && s.nodes > 1 && s.nodes < s.world && !s.hpz && !s.mics;
        s.mics = s.stage && s.nodes > 1 && s.nodes < s.world && !s.mics && !s.hpz;
        if (!s.weights) s.stage = s.hpz ? 3 : 1 + s.stage % 3;
        s.bucket = 1;
        if (!team_new(t, &teams[1], &s)) return;
        OK(t, run(&teams[1], &error), error.text);
        CHECK(t, loss_of(&teams[0]) == loss_of(&teams[1]));
        ran++;
    }
    CHECK(t, made > 100 && refused > 300 && ran > 10);
}

/* hpz keeps half of each layer that the backward pass gathers again, and no more. */
TEST_ONCE(groups_hpz_in_the_plan)
{
    size_t peaks[2], most[2];
    for (int hpz = 0; hpz < 2; hpz++) {
        const setup s = {.world = 4, .nodes = 2, .stage = 3, .micro_batches = 1, .hpz = hpz};
        zf_graph *g = build(&s, 2);
        zf_plan plan;
        zf_memory(g, NULL);
        OK(t, zf_graph_plan(g, &plan), zf_graph_error(g));
        peaks[hpz] = plan.live_bytes, most[hpz] = plan.most[ZF_COMMUNICATION];
        zf_graph_free(g);
    }
    CHECK(t, most[1] > most[0] && most[1] <= most[0] + 8192);
    CHECK(t, peaks[1] >= peaks[0] && peaks[1] <= peaks[0] + 8192);
}

/* --------------------------------------------------------------------------------------- faults */

/* The last rank believes in another mesh: an error on all ranks, which says so. */
TEST_ONCE(groups_of_other_meshes)
{
    test_defer(t, team_free, &teams[0]);
    for (int threads = 0; threads < 2; threads++) {
        const setup s = {.world = 6,
                         .nodes = 3,
                         .stage = 2,
                         .micro_batches = 1,
                         .threads = threads,
                         .odd_nodes = 2};
        zf_error error = {ZF_OK, ""};
        if (!team_new(t, &teams[0], &s)) return;
        CHECK(t, run(&teams[0], &error) == ZF_ERR_MISMATCH);
        CHECK_TEXT(t, error.text,
                   "rank 0 is one of 6 in 3 nodes, rank 5 of as many in 2 (zf_zero_desc.nodes)");
        for (int r = 0; r < 6 && threads; r++)
            CHECK(t, teams[0].members[r].status == ZF_ERR_MISMATCH);
    }
}

/* A communicator that knows no groups is not called with one. */
TEST_ONCE(groups_need_a_communicator_that_has_them)
{
    zf_error error = {ZF_OK, ""};
    zf_local *group = zf_local_new(&(zf_local_desc){.world = 4}, &error);
    const setup s = {.world = 4, .nodes = 2, .micro_batches = 1};
    zf_graph *g = build(&s, 2);
    zf_comm plain;
    NEED(t, group, &error);
    plain = *zf_local_comm(group, 0);
    plain.groups = false;
    CHECK(t, !zf_compile(g, &(zf_compile_desc){.comm = &plain}));
    CHECK_TEXT(t, zf_graph_error(g),
               "zf_compile: the graph is for 2 nodes (zf_zero_desc.nodes), and the communicator "
               "cannot do calls of groups of ranks (zf_comm.groups)");
    zf_graph_free(g);
    zf_local_free(group);
}
