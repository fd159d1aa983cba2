/* Rows of tables that are updated alone (zf_param_group.lazy_rows): what moves and what stays,
 * equal bits with the dense update and over ranks, micro-batches and stages, the plan, and what is
 * refused. tests/ops/op_cases.h has the operators. */
#include "../support/test.h"

enum { ROWS = 300, WIDTH = 12, BATCH = 6, RANKS = 4, STEPS = 3, PARTS = 4 };

typedef struct setup {
    int32_t stage, world;
    int64_t micro_batches;
    zf_optimizer optimizer;
    double momentum, decay, clip;
    zf_dtype dtype;
    bool dense, twice, padded, prefetch;
    bool alone; /* there is no weight between, and some ranks add their micro-batches */
    zf_sum_order sum;
} setup;

typedef struct team {
    setup s;
    zf_graph *graphs[RANKS];
    zf_comm comms[RANKS];
    zf_program *programs[RANKS];
} team;

static team teams[2];

static void team_free(void *object)
{
    team *m = object;
    for (int r = 0; r < RANKS; r++) zf_program_free(m->programs[r]);
    for (int r = 0; r < RANKS; r++) zf_graph_free(m->graphs[r]);
    *m = (team){.s = {.stage = 0}};
}

/* Two lookups of a table, a lookup of another, and a weight between. */
static zf_graph *build(const setup *s)
{
    const zf_param_desc normal = {.init = ZF_NORMAL, .std = 0.5};
    zf_graph *g = zf_graph_new(NULL);
    zf_tensor i = zf_input(g, "i", ZF_I32, ZF_SHAPE(BATCH)),
              j = zf_input(g, "j", ZF_I64, ZF_SHAPE(BATCH, 1)),
              y = zf_input(g, "y", ZF_F32, ZF_SHAPE(BATCH, WIDTH)),
              lr = zf_input(g, "lr", ZF_F32, ZF_SCALAR),
              items = zf_param(g, "items", ZF_SHAPE(ROWS, WIDTH), &normal),
              users = zf_param(g, "users", ZF_SHAPE(ROWS / 2, WIDTH), &normal),
              h = zf_embedding_ex(items, i,
                                  &(zf_embedding_desc){.padded = s->padded, .padding = 3});
    if (s->twice) h = zf_add(h, zf_reshape(zf_embedding(items, j), ZF_SHAPE(BATCH, WIDTH)));
    else h = zf_add(h, zf_reshape(zf_embedding(users, j), ZF_SHAPE(BATCH, WIDTH)));
    if (!s->alone) h = zf_matmul(h, zf_param(g, "w", ZF_SHAPE(WIDTH, WIDTH), &normal));
    h = zf_mean(zf_mul(h, y));
    zf_output(h, "loss");
    zf_passes(g, &(zf_training){.loss = h,
                                .lr = lr,
                                .param_groups = s->dense ? NULL
                                                : s->twice ? "items:lazy_rows"
                                                           : "items:lazy_rows;users:lazy_rows",
                                .precision.dtype = s->dtype,
                                .clip = s->clip,
                                .optimizer = s->optimizer,
                                .sgd = {.momentum = s->optimizer == ZF_SGD ? s->momentum : 0,
                                        .weight_decay = s->optimizer == ZF_SGD ? s->decay : 0},
                                .adamw.weight_decay = s->optimizer == ZF_ADAMW ? s->decay : 0,
                                .zero = {.stage = s->stage,
                                         .sum = s->sum,
                                         .world = s->world,
                                         .micro_batches = s->micro_batches},
                                .prefetch.bytes = s->prefetch ? 1 << 20 : 0});
    return g;
}

static bool team_new(test *t, team *m, const setup *s)
{
    team_free(m);
    m->s = *s;
    if (!m->s.world) m->s.world = 1;
    if (!m->s.micro_batches) m->s.micro_batches = 1;
    for (int32_t r = 0; r < m->s.world; r++) {
        m->graphs[r] = build(s);
        m->comms[r] = (zf_comm){.rank = r, .world = m->s.world};
        m->programs[r] =
            zf_compile(m->graphs[r],
                       &(zf_compile_desc){
                           .seed = 3, .verify = true, .poison = true, .comm = &m->comms[r]});
        if (m->programs[r]) continue;
        test_fail(t, __FILE__, __LINE__, "zf_compile", zf_graph_error(m->graphs[r]));
        return false;
    }
    return true;
}

/* Row n of part `slot` of a step, of the smaller table: some rows come several times, in several
 * parts. */
static int row_of(int step, int64_t slot, int n)
{
    if (!n && slot % 2) return 85;
    return (int)(13 * (n * n + 3 * slot * n + 7 * step + slot) % (ROWS / 2 - 4));
}

/* The same of the larger one; row 170 lies in two shards of four. */
static int item_of(int step, int64_t slot, int n) { return 2 * row_of(step, slot, n); }

static zf_status feed(team *m, int32_t r, int step, int64_t micro)
{
    const int64_t slot = micro * m->s.world + r;
    float y[BATCH * WIDTH], lr = 0.125f;
    int32_t i[BATCH];
    int64_t j[BATCH];
    zf_program *p = m->programs[r];
    zf_graph *g = m->graphs[r];
    for (int n = 0; n < BATCH; n++) i[n] = item_of(step, slot, n), j[n] = row_of(step, slot, n + 2);
    for (int n = 0; n < BATCH * WIDTH; n++)
        y[n] = 1.0f / (float)(n + 3 + 5 * slot) - 0.01f * (float)step;
    return zf_write(p, zf_graph_find(g, "i"), i, sizeof i) ||
                   zf_write(p, zf_graph_find(g, "j"), j, sizeof j) ||
                   zf_write(p, zf_graph_find(g, "y"), y, sizeof y)
               ? ZF_ERR_ARGUMENT
               : zf_write(p, zf_graph_find(g, "lr"), &lr, sizeof lr);
}

/* Steps `begin` to `end`. */
static bool run_from(test *t, team *m, int begin, int end)
{
    const zf_lockstep_desc lockstep = {m->programs, m->s.world, 0};
    zf_error error = {ZF_OK, ""};
    zf_status status = ZF_OK;
    for (int step = begin; step < end && !status; step++)
        for (int64_t micro = 0; micro < m->s.micro_batches && !status; micro++) {
            for (int32_t r = 0; r < m->s.world && !status; r++) status = feed(m, r, step, micro);
            if (!status)
                status = micro + 1 < m->s.micro_batches ? zf_lockstep_micro(&lockstep, &error)
                                                        : zf_lockstep_step(&lockstep, &error);
        }
    if (status) test_fail(t, __FILE__, __LINE__, zf_status_name(status), error.text);
    return !status;
}

static bool run(test *t, team *m, int steps) { return run_from(t, m, 0, steps); }

/* A parameter or state of f32, or of bf16. */
static bool read_all(test *t, team *m, const char *name, void *to, size_t bytes)
{
    const zf_lockstep_desc lockstep = {m->programs, m->s.world, 0};
    zf_error error = {ZF_OK, ""};
    if (!zf_lockstep_read(&lockstep, name, to, bytes, &error)) return true;
    test_fail(t, __FILE__, __LINE__, name, error.text);
    return false;
}

static unsigned char first[ROWS * WIDTH * 4], kept[3][ROWS * WIDTH * 4], now[ROWS * WIDTH * 4];

/* Rows that no step reads keep their bits, with weight decay too; those that one reads change. */
TEST_ONCE(lazy_rows_stay_where_nothing_is_read)
{
    const setup s = {.optimizer = ZF_ADAMW, .decay = 0.5, .clip = 1, .micro_batches = 2};
    const size_t row = WIDTH * 4;
    static const char *const names[] = {"items", "adamw.m/items", "adamw.v/items"};
    bool moved[3] = {false, false, false};
    test_defer(t, team_free, &teams[0]);
    CHECK(t, team_new(t, &teams[0], &s));
    for (int k = 0; k < 3; k++) CHECK(t, read_all(t, &teams[0], names[k], kept[k], sizeof first));
    CHECK(t, run(t, &teams[0], STEPS));
    for (int k = 0; k < 3; k++) {
        CHECK(t, read_all(t, &teams[0], names[k], now, sizeof now));
        for (int r = 0; r < ROWS; r++) {
            bool read = false;
            for (int n = 0; n < STEPS * 2 * BATCH; n++)
                read |= item_of(n / (2 * BATCH), n / BATCH % 2, n % BATCH) == r;
            if (read == !memcmp(kept[k] + (size_t)r * row, now + (size_t)r * row, row))
                test_fail(t, __FILE__, __LINE__, names[k], read ? "a row stayed" : "a row moved");
            moved[k] |= read;
        }
    }
    CHECK(t, moved[0] && moved[1] && moved[2]);
}

/* Without momentum, decay and clipping the update of a row that is not read is nothing, so bits are
 * those of the dense update; with padding too, and in bf16. */
TEST_ONCE(lazy_rows_have_the_bits_of_dense_sgd)
{
    static const setup cases[] = {{.optimizer = ZF_SGD},
                                  {.optimizer = ZF_SGD, .padded = true, .dtype = ZF_BF16},
                                  {.optimizer = ZF_SGD, .micro_batches = 2, .world = 2},
                                  {.optimizer = ZF_SGD, .dtype = ZF_F16, .world = 2, .stage = 1}};
    static const char *const names[] = {"items", "users", "w"};
    for (int k = 0; k < 2; k++) test_defer(t, team_free, &teams[k]);
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        setup dense = cases[n];
        const size_t size = cases[n].dtype == ZF_F32 ? 4 : 2;
        dense.dense = true;
        CHECK(t, team_new(t, &teams[0], &cases[n]) && team_new(t, &teams[1], &dense));
        CHECK(t, read_all(t, &teams[0], "items", first, ROWS * WIDTH * size));
        CHECK(t, run(t, &teams[0], STEPS) && run(t, &teams[1], STEPS));
        for (int k = 0; k < 3; k++) {
            const size_t bytes = size * (size_t)(k == 0 ? ROWS : k == 1 ? ROWS / 2 : WIDTH) * WIDTH;
            CHECK(t, read_all(t, &teams[0], names[k], kept[0], bytes));
            CHECK(t, read_all(t, &teams[1], names[k], now, bytes));
            CHECK(t, !memcmp(kept[0], now, bytes));
            if (k == 0) CHECK(t, memcmp(first, now, bytes));
        }
    }
}

/* Adam's first step has no past: it is the dense one where a row is read, and nothing elsewhere. */
TEST_ONCE(lazy_adam_begins_as_dense_adam)
{
    const setup s = {.optimizer = ZF_ADAMW};
    setup dense = s;
    dense.dense = true;
    for (int k = 0; k < 2; k++) test_defer(t, team_free, &teams[k]);
    CHECK(t, team_new(t, &teams[0], &s) && team_new(t, &teams[1], &dense));
    CHECK(t, run(t, &teams[0], 1) && run(t, &teams[1], 1));
    CHECK(t, read_all(t, &teams[0], "items", kept[0], sizeof first));
    CHECK(t, read_all(t, &teams[1], "items", now, sizeof now));
    CHECK(t, !memcmp(kept[0], now, sizeof now));
    CHECK(t, run(t, &teams[0], STEPS) && run(t, &teams[1], STEPS));
    CHECK(t, read_all(t, &teams[0], "items", kept[0], sizeof first));
    CHECK(t, read_all(t, &teams[1], "items", now, sizeof now));
    CHECK(t, memcmp(kept[0], now, sizeof now)); /* moments of dense rows go on moving them */
}

/* The parts of the batch have one order, whoever runs them: equal bits for one rank and four, at
 * each stage. */
TEST_ONCE(lazy_rows_have_the_same_bits_for_all_ranks)
{
    static const setup kinds[] = {
        {.optimizer = ZF_ADAMW, .decay = 0.1, .clip = 0.01, .dtype = ZF_BF16},
        {.optimizer = ZF_ADAMW, .twice = true, .clip = 1, .dtype = ZF_F16},
        {.optimizer = ZF_SGD,
         .momentum = 0.9,
         .twice = true,
         .padded = true,
         .clip = 0.01,
         .alone = true}};
    for (int k = 0; k < 2; k++) test_defer(t, team_free, &teams[k]);
    for (size_t n = 0; n < sizeof kinds / sizeof *kinds; n++) {
        const char *state = kinds[n].optimizer == ZF_SGD ? "sgd.momentum/items" : "adamw.v/items";
        const size_t bytes = ROWS * WIDTH * (size_t)(kinds[n].dtype == ZF_F32 ? 4 : 2);
        setup s = kinds[n];
        s.world = 1, s.micro_batches = PARTS;
        CHECK(t, team_new(t, &teams[0], &s) && run(t, &teams[0], STEPS));
        CHECK(t, read_all(t, &teams[0], "items", kept[0], bytes));
        CHECK(t, read_all(t, &teams[0], state, kept[1], sizeof first));
        for (int c = 0; c < 8; c++) {
            s.world = c < 4 ? 4 : 2, s.micro_batches = PARTS / s.world, s.stage = c % 4;
            s.prefetch = c % 3 == 1;
            if (s.alone && c > 3) s.sum = ZF_SUM_MICRO; /* lists have the order of parts */
            CHECK(t, team_new(t, &teams[1], &s) && run(t, &teams[1], STEPS));
            CHECK(t, read_all(t, &teams[1], "items", now, bytes));
            CHECK(t, !memcmp(kept[0], now, bytes));
            CHECK(t, read_all(t, &teams[1], state, now, sizeof now));
            CHECK(t, !memcmp(kept[1], now, sizeof now));
        }
    }
}

/* A checkpoint of some ranks and a stage goes on with others, and the dense update's states are the
 * same ones: bits are those of a run that was not interrupted. */
TEST_ONCE(lazy_rows_go_on_from_a_checkpoint)
{
    setup s = {.optimizer = ZF_ADAMW, .decay = 0.1, .clip = 0.01, .micro_batches = PARTS};
    const char *path = test_path("lazy-rows");
    static const char *const names[] = {"items", "users", "adamw.m/items", "adamw.v/items"};
    for (int k = 0; k < 2; k++) test_defer(t, team_free, &teams[k]);
    CHECK(t, team_new(t, &teams[0], &s) && run(t, &teams[0], 2 * STEPS));
    for (int32_t stage = 0; stage < 4; stage++) {
        zf_error error = {ZF_OK, ""};
        s.stage = stage, s.world = 2, s.micro_batches = PARTS / 2;
        CHECK(t, team_new(t, &teams[1], &s) && run(t, &teams[1], STEPS));
        OK(t,
           zf_lockstep_save(&(zf_lockstep_desc){teams[1].programs, 2, 0}, path, NULL, &error),
           error.text);
        s.stage = 3 - stage, s.world = RANKS, s.micro_batches = PARTS / RANKS;
        CHECK(t, team_new(t, &teams[1], &s));
        OK(t,
           zf_lockstep_load(&(zf_lockstep_desc){teams[1].programs, RANKS, 0}, path, NULL, &error),
           error.text);
        CHECK(t, run_from(t, &teams[1], STEPS, 2 * STEPS));
        for (int k = 0; k < 4; k++) {
            const size_t bytes = (size_t)(k == 1 ? ROWS / 2 : ROWS) * WIDTH * 4;
            CHECK(t, read_all(t, &teams[0], names[k], kept[0], bytes));
            CHECK(t, read_all(t, &teams[1], names[k], now, bytes));
            CHECK(t, !memcmp(kept[0], now, bytes));
        }
    }
}

/* The plan has no value of a table's size besides the table and its states. */
TEST(lazy_rows_take_the_memory_of_rows)
{
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    const int64_t rows = 100000, width = 8;
    zf_tensor i, table, loss;
    zf_plan plan;
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    i = zf_input(g, "i", ZF_I32, ZF_SHAPE(16));
    table = zf_param(g, "items", ZF_SHAPE(rows, width), &(zf_param_desc){.init = ZF_ONES});
    loss = zf_mean(zf_embedding(table, i));
    OK(t,
       zf_passes(g, &(zf_training){.loss = loss,
                                   .param_groups = "items:lazy_rows",
                                   .clip = 1,
                                   .zero.micro_batches = 2}),
       zf_graph_error(g));
    OK(t, zf_memory(g, NULL), zf_graph_error(g));
    OK(t, zf_graph_plan(g, &plan), zf_graph_error(g));
    CHECK(t, plan.peak_bytes < (size_t)(3 * rows * width) * 4 + 100000);
}


/* What needs gradients of all rows says so. */
TEST_ONCE(lazy_rows_are_refused)
{
    static const char *const expected[] = {
        "%7 = mul reads the table \"items\", of which only the rows that are read are to "
        "be updated (zf_param_group.lazy_rows): here its gradient is one of all rows",
        "zf_lion: of the table \"items\" only the rows that are read are to be updated "
        "(zf_param_group.lazy_rows), which adamw and sgd can: its group can have one of these as "
        "its optimizer",
        "zf_ema: of the table \"items\" only the rows that are read are updated "
        "(zf_param_group.lazy_rows), and an average of it moves in each step",
        "zf_delay: of the table \"items\" only the rows",
        "zf_tile: of the table \"items\" only the rows",
        "zf_cut: of the table \"items\" only the rows",
        "zf_context: of the table \"items\" only the rows",
        "zf_experts: of the table \"items\" only the rows",
        "zf_offload: of the table \"items\" only the rows",
        "and their gradients are gathered from all ranks alike: nodes must be 1",
        "and their gradients are sent as they are, not as integers (quantized_gradients)",
        "zf_passes: keep_gradients: of the table \"items\" only the rows",
        "zf_stages: of the table \"items\" only the rows",
        "zf_autograd: the output \"g\" is to have the gradient of the table \"items\", which is "
        "one of the rows that are read (zf_param_group.lazy_rows)",
        "it is the gradient of the rows that this rank and micro-batch have read "
        "(zf_param_group.lazy_rows), not of all parts"};
    enum { KINDS = sizeof expected / sizeof *expected };
    for (int k = 0; k < KINDS; k++) {
        zf_graph *g = zf_graph_new(NULL);
        zf_tensor i = zf_input(g, "i", ZF_I32, ZF_SHAPE(4, 8)),
                  table = zf_param(g, "items", ZF_SHAPE(k == 4 ? 4096 : ROWS, WIDTH), NULL),
                  h = zf_embedding(table, i), loss;
        if (k == 12)
            for (int n = 0; n < 2; n++) {
                char name[32];
                snprintf(name, sizeof name, "layer.%d.w", n);
                h = zf_matmul(h, zf_param(g, name, ZF_SHAPE(WIDTH, WIDTH), NULL));
            }
        loss = zf_mean(h);
        if (k == 0) loss = zf_add(loss, zf_sum(zf_mul(table, table)));
        if (k == 13) zf_output_gradient(table, "g");
        if (k == 14) {
            zf_param_groups(g, &(zf_param_group){.params = "items", .lazy_rows = true}, 1);
            zf_autograd(g, loss), zf_output(zf_gradient(g, table), "g");
            zf_sgd(g, zf_input(g, "lr", ZF_F32, ZF_SCALAR), NULL);
            zf_zero(g, &(zf_zero_desc){.world = 2});
        } else {
            zf_passes(g, &(zf_training){.loss = loss,
                                        .param_groups = "items:lazy_rows",
                                        .optimizer = k == 1 ? ZF_LION : ZF_ADAMW,
                                        .ema.decay = k == 2 ? 0.9 : 0,
                                        .delay = k == 3,
                                        .tile.bytes = k == 4 ? 64 : 0,
                                        .tensor = k == 5 ? 2 : 0,
                                        .context = k == 6 ? 2 : 0,
                                        .expert = k == 7 ? 2 : 0,
                                        .offload.optimizer = k == 8 ? ZF_HOST : ZF_DEVICE,
                                        .zero = {.stage = 1,
                                                 .world = k == 9 ? 4 : 2,
                                                 .nodes = k == 9 ? 2 : 1,
                                                 .quantized_gradients = k == 10},
                                        .keep_gradients = k == 11,
                                        .stages.ranks = k == 12 ? 2 : 0});
        }
        if (!strstr(zf_graph_error(g), expected[k]))
            test_fail(t, __FILE__, __LINE__, expected[k], zf_graph_error(g));
        zf_graph_free(g);
    }
}

/* Lists of rows of two ranks and two micro-batches, and an update by them. */
static const char lists[] = "zero stage=0 world=2 micro_batches=2\n"
                            "%1 = input \"i\" : i32[3]\n"
                            "%2 = param \"t\" {lazy=true} : f32[300,4]\n"
                            "%3 = bucket %2 {at=[0] size=2048} : f32[2048]\n"
                            "%4 = input \"lr\" : f32[]\n"
                            "%5 = input \"g\" : f32[3,4]\n"
                            "%6 = distinct_rows %1 {rows=300} : i32[3]\n"
                            "%7 = sum_rows %5, %1, %6 : f32[3,4]\n"
                            "%8 = all_gather %6 {world=2} : i32[6]\n"
                            "%9 = accumulator : i32[12]\n"
                            "%10 = collect %8, %9 {parts=2} : i32[12]\n"
                            "%11 = all_gather %7 {world=2} : f32[24]\n"
                            "%12 = accumulator : f32[48]\n"
                            "%13 = collect %11, %12 {parts=2} : f32[48]\n"
                            "update:\n"
                            "%14 = distinct_rows %10 {rows=300} : i32[12]\n"
                            "%15 = view %13 {shape=[12,4]} : f32[12,4]\n"
                            "%16 = sum_rows %15, %10, %14 : f32[12,4]\n"
                            "      gradient %3, %16, %14\n"
                            "      sgd %3, %16, %4, %14 {blocks=[0,2] decays=[0] lazy=true}\n";

/* The verifier says what is missing between a rank's rows and an update by those of all. */
TEST_ONCE(lazy_rows_of_all_ranks_are_verified)
{
    static const struct {
        const char *was, *is, *expected;
    } edits[] = {
        {"zero", "zero", ""},
        {"sgd %3, %16, %4, %14", "sgd %3, %7, %4, %6",
         "%7 has the rows of this rank, or of one micro-batch, alone: those of all must be "
         "gathered above"},
        {"gradient %3, %16, %14", "gradient %3, %7, %6", "%7 has the rows of this rank"},
        {"micro_batches=2", "micro_batches=3",
         "it collects 2 parts, and a step has 3 micro-batches"},
        {"update:\n", "%20 = collect %8, %9 {parts=2} : i32[12]\nupdate:\n",
         "%9 accumulates %10 already"},
        {"update:\n",
         "%20 = accumulator : i32[12]\nupdate:\n%21 = collect %8, %20 {parts=2} : i32[12]\n",
         "the update section runs once, so nothing is collected there"},
        {"%14 = distinct_rows %10", "%14 = distinct_rows %9", "%9 is an accumulator"}};
    for (size_t k = 0; k < sizeof edits / sizeof *edits; k++) {
        char text[2000];
        const char *at = strstr(lists, edits[k].was);
        zf_error error = {ZF_OK, ""};
        zf_graph *g;
        CHECK(t, at);
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - lists), lists, edits[k].is,
                 at + strlen(edits[k].was));
        g = zf_graph_parse(text, strlen(text), NULL, &error);
        if (!*edits[k].expected ? !g : !strstr(error.text, edits[k].expected))
            test_fail(t, __FILE__, __LINE__, edits[k].expected, error.text);
        zf_graph_free(g);
    }
}
