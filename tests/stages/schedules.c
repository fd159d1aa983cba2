/* Steps of stages that run a schedule: the bits of one rank, the slots that plans give, the text,
 * inputs of micro-batches, ranks that fail, and what is refused. */
static const char of_another[] = "of the pipeline, and this rank is of stage",
                  of_others[] = "of the pipeline, and rank";
#include "staged.h"

static const char *const kinds[] = {"1f1b", "gpipe", "interleaved", "zb-h1", "zb-v"};

/* Each kind on 2 and 4 ranks along pipe, with each stage of ZeRO, in f32 and bf16, with and without
 * prefetch: one in four of these, so that each kind meets each of them. Embedding and head are
 * one. */
TEST_ONCE(schedules_have_the_bits_of_one_rank)
{
    static const char *const zeros[] = {"stage=0 sum=parts", "stage=1 sum=parts",
                                        "stage=2 sum=parts", "stage=3 sum=parts"};
    static after one, some;
    size_t peaks[TEAM_RANKS];
    for (int k = 0; k < 16 && !t->failed; k++) {
        made m = {.passes = k & 4 ? "precision bf16; autograd %94; simplify; clip 0.5; adamw lr"
                                  : "autograd %94; simplify; clip 0.5; adamw lr",
                  .zero = zeros[k % 4],
                  .then = k & 8 ? "; prefetch bytes=100000" : NULL,
                  .pipe = 1,
                  .data = k % 4 ? 2 : 1,
                  .micro = 8};
        if (!run_ranks(t, &m, &one, peaks)) return;
        for (int way = 0; way < 10 && !t->failed; way++) {
            if ((way + k + k / 4) % 4) continue;
            m.schedule = kinds[way / 2], m.pipe = way % 2 ? 4 : 2;
            if (!run_ranks(t, &m, &some, peaks)) {
                test_fail(t, __FILE__, __LINE__, m.schedule, m.zero);
                return;
            }
            CHECK(t, !memcmp(&one, &some, sizeof one));
        }
    }
}

/* Layers that ranks do not divide, with weights of different stages in W. */
TEST_ONCE(schedules_of_uneven_stages)
{
    static after one, some;
    size_t peaks[TEAM_RANKS];
    made m = {.passes = "autograd %94; simplify; clip 0.5; adamw lr; fuse",
              .zero = "stage=0", .pipe = 1, .data = 1, .micro = 7};
    if (!run_ranks(t, &m, &one, peaks)) return;
    m.pipe = 3;
    for (int k = 0; k < 5 && !t->failed; k++) {
        if (k == ZF_PIPE_INTERLEAVED) continue; /* 3 does not divide 7 */
        m.schedule = kinds[k], m.layers = k == ZF_PIPE_ZB_V ? "1,2,1,2,1,1" : "4,1,3";
        if (!run_ranks(t, &m, &some, peaks)) return;
        CHECK(t, !memcmp(&one, &some, sizeof one));
    }
}

TEST_ONCE(schedules_of_seven_layers_on_three_ranks)
{
    static after one, some;
    size_t peaks[TEAM_RANKS];
    made m = {.passes = "autograd %94; simplify; clip 0.5; adamw lr",
              .zero = "stage=1", .pipe = 1, .data = 1, .micro = 6};
    layers_here = 7;
    for (int k = -1; k < 5 && !t->failed && !t->unwound; k++) {
        if (k >= 0) m.schedule = kinds[k], m.pipe = 3;
        if (run_ranks(t, &m, k < 0 ? &one : &some, peaks) && k >= 0)
            CHECK(t, !memcmp(&one, &some, sizeof one));
    }
    layers_here = LAYERS;
}

/* Nothing overlaps: stages compute one after the other, those of a rank in between others. */
TEST_ONCE(schedules_of_one_micro_batch)
{
    static after one, some;
    size_t peaks[TEAM_RANKS];
    made m = {.passes = "autograd %94; simplify; clip 0.5; adamw lr",
              .zero = "stage=2", .pipe = 1, .data = 1, .micro = 1};
    if (!run_ranks(t, &m, &one, peaks)) return;
    for (int k = 0; k < 5 && !t->failed; k++) {
        m.schedule = kinds[k], m.pipe = k % 2 ? 2 : 4;
        if (!run_ranks(t, &m, &some, peaks)) return;
        CHECK(t, !memcmp(&one, &some, sizeof one));
    }
}

/* What a step keeps: of each value for the backward pass a rank has the copies of the table. */

/* The slots of node `line` of a stage's plan; 0: it has none. */
static int slots_in(const char *text, const char *line)
{
    const char *at = strstr(text, line), *end = at ? strchr(at, '\n') : NULL;
    const char *slots = at ? strstr(at, "slots=") : NULL;
    return slots && slots < end ? atoi(slots + 6) : 0;
}

TEST(schedules_keep_what_the_table_says)
{
    /* rank r has layers 2r and 2r+1; the backward pass reads the tanh of the first of them, and its
     * weights' gradient, if that is a task of its own, the dropout */
    static const struct {
        const char *kind;
        int slots[4];
    } cases[] = {{"1f1b", {4, 3, 2, 1}}, {"gpipe", {8, 8, 8, 8}}, {"zb-h1", {4, 4, 4, 4}}};
    static char text[1 << 16];
    for (int k = 0; k < 3; k++)
        for (int rank = 0; rank < 4; rank++) {
            const made way = {.passes = "autograd %94; simplify; sgd lr",
                              .zero = "stage=0",
                              .schedule = cases[k].kind,
                              .pipe = 4,
                              .data = 1,
                              .micro = 8};
            char model[TEXT], line[40];
            zf_error error = {ZF_OK, ""};
            zf_graph *g;
            write_model(model);
            making = &way;
            g = team_parsed(t, model, &error);
            NEED(t, g, &error);
            test_defer(t, (test_cleanup *)zf_graph_free, g);
            OK(t, to_stages(g), zf_graph_error(g));
            OK(t, zf_keep_stage(g, rank), zf_graph_error(g));
            OK(t, zf_memory(g, NULL), zf_graph_error(g));
            zf_graph_text(g, text, sizeof text);
            snprintf(line, sizeof line, "%%%d ", (k == 2 ? 10 : 9) + 12 * rank);
            CHECK(t, slots_in(text, line) == cases[k].slots[rank]);
            CHECK(t, slots_in(text, "= input \"x\"") == (rank ? 0 : 8));
        }
}

/* Norms of gradients that go to a disk are computed in their stage, by its rank. */
TEST(schedules_compute_norms_where_gradients_are)
{
    made way = {.passes = "autograd %94; simplify; clip 0.5; adamw lr",
                .zero = "stage=0", .then = "; offload gradients=disk", .data = 1, .micro = 4};
    char model[TEXT];
    write_model(model);
    for (int k = 0; k < 5 && !t->failed; k++) {
        zf_error error = {ZF_OK, ""};
        zf_graph *g = team_parsed(t, model, &error);
        NEED(t, g, &error);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        way.schedule = kinds[k], way.pipe = 2, making = &way;
        OK(t, to_stages(g), zf_graph_error(g));
    }
}

/* Between the forward and the backward pass of a micro-batch come others, for which what is
 * gathered would have to stay, too. */
TEST(schedules_do_not_keep_what_is_gathered)
{
    const zf_training t3 = {.prefetch = {.bytes = 1000, .keep_gathered = true},
                            .memory_limit = 1 << 20};
    const made way = {.passes = "autograd %94; simplify; sgd lr",
                      .zero = "stage=3", .pipe = 2, .data = 2, .micro = 4};
    char model[TEXT];
    zf_error error = {ZF_OK, ""};
    zf_graph *g;
    write_model(model);
    making = &way;
    g = team_parsed(t, model, &error);
    NEED(t, g, &error);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    OK(t, to_stages(g), zf_graph_error(g));
    GIVES(t, zf_prefetch(g, &t3), ZF_ERR_ARGUMENT, zf_graph_error(g));
    CHECK_TEXT(t, zf_graph_error(g),
               "zf_prefetch: keep_gathered is for steps without a schedule: other micro-batches "
               "come between the forward and the backward pass of one");
}

/* ------------------------------------------------------------------------------------- the text */

static const char in_sections[] =
    "mesh pipe=2\nschedule: zb-h1\nzero stage=0 world=1 micro_batches=2\nforward:\n"
    "%1 = input \"x\" : f32[4,4]\n%2 = param \"a\" : f32[4,4] stage=0\n"
    "%3 = param \"b\" : f32[4,4] stage=1\n%20 = accumulator : f32[16] stage=0\n%4 = matmul %1, %2 : f32[4,4] stage=0\n"
    "%5 = send %4 {world=2 over=pipe to=1} : f32[4,4] stage=1\n"
    "%6 = matmul %5, %3 : f32[4,4] stage=1\n";

static zf_graph *with_sections(test *t, const char *end, zf_error *error)
{
    char text[1600];
    snprintf(text, sizeof text, "%s%s", in_sections, end);
    return team_parsed(t, text, error);
}

TEST(schedules_are_in_the_text)
{
    static const char end[] = "backward:\n%7 = neg %6 : f32[4,4] stage=1\n"
                              "%8 = send %7 {world=2 over=pipe from=1} : f32[4,4] stage=0\n"
                              "%9 = neg %8 : f32[4,4] stage=0\n"
                              "weights:\n%10 = neg %5 : f32[4,4] stage=1\n"
                              "outputs:\n%11 = bcast %10 {world=2 over=pipe root=1} : f32[4,4]\n"
                              "     output %11 \"y\"\n";
    char again[1600], wide[1600];
    zf_error error = {ZF_OK, ""};
    zf_graph *g = with_sections(t, end, &error), *other;
    NEED(t, g, &error);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    zf_graph_text(g, again, sizeof again);
    CHECK(t, strstr(again, "schedule: zb-h1\nzero stage=0") && strstr(again, "\nbackward:\n") &&
                 strstr(again, "\nweights:\n") && strstr(again, "\noutputs:\n"));
    other = team_parsed(t, again, &error);
    NEED(t, other, &error);
    test_defer(t, (test_cleanup *)zf_graph_free, other);
    zf_graph_text(other, wide, sizeof wide);
    CHECK_TEXT(t, wide, again);
    CHECK(t, zf_graph_hash(g) == zf_graph_hash(other));
    memcpy(strstr(again, "zb-h1"), "gpipe", 5);
    other = team_parsed(t, again, &error);
    NEED(t, other, &error);
    test_defer(t, (test_cleanup *)zf_graph_free, other);
    CHECK(t, zf_graph_hash(g) != zf_graph_hash(other));
}

TEST(schedules_have_rules)
{
    static const char *const wrong[][2] = {
        {"%7 = neg %4 : f32[4,4] stage=0\n",
         "it is of stage 0, below %6 of stage 1: forward: has the first stage first"},
        {"backward:\n%7 = neg %4 : f32[4,4] stage=0\n%8 = neg %6 : f32[4,4] stage=1\n",
         "it is of stage 1, below %7 of stage 0: backward: has the last stage first"},
        {"%7 = input \"z\" : f32[4]\n", "leaves are the first of forward:"},
        {"backward:\nforward:\n", "'forward' is no operator"},
        {"schedule: gpipe\n", "a line before all nodes may be: schedule: 1f1b"},
        {"backward:\n%7 = send %8 {world=2 over=pipe from=1} : f32[4,4] stage=0\n"
         "%8 = neg %6 : f32[4,4] stage=1\n",
         "%8 is not defined above"}};
    static const char *const lines[][2] = {
        {"mesh pipe=2\nschedule: zigzag\n",
         "'zigzag' is none of 1f1b, gpipe, interleaved, zb-h1, zb-v"},
        {"mesh pipe=2\nschedule: zb-v chunks=3\n",
         "schedule zb-v: 3 chunks of a rank; it has 2"},
        {"mesh pipe=2\nschedule: interleaved\n",
         "schedule interleaved: 1 chunks of a rank; 2 or more are interleaved"},
        {"mesh pipe=2\nschedule: zb-v chunks=2\n%1 = input \"x\" : f32[4]\n"
         "%2 = neg %1 : f32[4] stage=4\n",
         "stage=4, and there are 4 stages of ranks along pipe"},
        {"%1 = input \"x\" : f32[4] @0+16 slots=2 apart=64\n"
         "%2 = neg %1 : f32[4] @128+16 slots=2 apart=64\n%3 = neg %2 : f32[4] @192+16\n"
         "%4 = add %2, %3 : f32[4] @256+16\noutput %4 \"y\"\npeak 320 %1\n",
         "it overlaps %2, which other micro-batches still need"},
        {"%1 = input \"x\" : f32[4] @0+16 slots=2 apart=64\n"
         "%2 = neg %1 : f32[4] @128+16 slots=2 apart=64\n"
         "%3 = neg %2 : f32[4] @192+16 slots=1 apart=64\n"
         "%4 = add %2, %3 : f32[4] @256+16\noutput %4 \"y\"\npeak 320 %1\n",
         "its slots overlap %2"},
        {"%1 = input \"x\" : f32[4] @0+16 slots=0 apart=64\npeak 64 %1\n",
         "a value has a slot or more, within 2^63 bytes"}};
    for (size_t k = 0; k < sizeof wrong / sizeof wrong[0] + sizeof lines / sizeof lines[0]; k++) {
        const size_t n = sizeof wrong / sizeof wrong[0];
        zf_error error = {ZF_OK, ""};
        zf_graph *g = k < n ? with_sections(t, wrong[k][0], &error)
                            : team_parsed(t, lines[k - n][0], &error);
        const char *const said = k < n ? wrong[k][1] : lines[k - n][1];
        if (g) zf_graph_free(g);
        if (error.status == ZF_ERR_NOMEM) OK(t, error.status, error.text);
        CHECK(t, !g);
        if (!strstr(error.text, said)) test_fail(t, __FILE__, __LINE__, said, error.text);
    }
}

TEST(schedules_refuse_what_cannot_run)
{
    static const struct {
        made way;
        const char *error;
    } cases[] = {
        {{.zero = "stage=0", .schedule = "1f1b", .pipe = 4, .micro = 3},
         "zf_zero: schedule 1f1b: 3 micro-batches are fewer than the 4 ranks along pipe; 4 or more "
         "keep each of them busy"},
        {{.zero = "stage=0", .schedule = "interleaved", .pipe = 2, .micro = 5},
         "zf_zero: schedule interleaved: 5 micro-batches are no multiple of the 2 ranks along pipe"},
        {{.schedule = "interleaved chunks=5", .pipe = 2},
         "zf_stages: 10 chunks of the ranks along pipe, and the graph has 8 layers; each chunk has "
         "one or more"},
        {{.schedule = "zb-v", .layers = "4,4", .pipe = 2},
         "zf_stages: layers is \"4,4\", of 2 stages, and the ranks along pipe have 4"},
        {{.schedule = "zb-h1 chunks=2", .pipe = 2},
         "zf_stages: schedule zb-h1: 2 chunks of a rank; it has 1"},
        {{.schedule = "interleaved chunks=20", .pipe = 32766},
         "zf_stages: 32766 ranks of 20 chunks; there are at most 32766 chunks of all ranks"},
        {{.schedule = "interleaved chunks=21", .pipe = 2}, "chunks"}};
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        made way = cases[k].way;
        char text[TEXT];
        zf_error error = {ZF_OK, ""};
        zf_graph *g;
        write_model(text);
        way.passes = "autograd %94; simplify; sgd lr", way.data = 1, making = &way;
        g = team_parsed(t, text, &error);
        NEED(t, g, &error);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        GIVES(t, to_stages(g), ZF_ERR_ARGUMENT, zf_graph_error(g));
        if (!strstr(zf_graph_error(g), cases[k].error))
            test_fail(t, __FILE__, __LINE__, cases[k].error, zf_graph_error(g));
    }
}

/* --------------------------------------------------------------------------------- running ranks */

static const made by_two = {
    .passes = "autograd %94; simplify; sgd lr", .zero = "stage=0", .pipe = 2, .data = 1, .micro = 4};

/* Ranks of by_two, whose communicator has this deadline; false: they are not complete. */
static bool two_ranks(test *t, team *m, double deadline)
{
    char text[TEXT];
    write_model(text);
    making = &by_two;
    *m = (team){.world = 2};
    m->local = zf_local_new(&(zf_local_desc){.world = 2, .deadline_seconds = deadline}, NULL);
    if (!m->local) abort();
    for (int r = 0; r < 2; r++) {
        m->members[r] = (member){.rank = r};
        if (!team_compile(t, &m->members[r], zf_local_comm(m->local, r), text, to_stages))
            return false;
        m->programs[r] = m->members[r].program;
    }
    return true;
}

/* Micro-batches in any order, and one that is as the one before. */
TEST_ONCE(schedules_take_inputs_of_micro_batches)
{
    static const int order[] = {2, 0, 1, 3};
    float losses[2] = {0};
    for (int way = 0; way < 2 && !t->failed; way++) {
        team m;
        if (two_ranks(t, &m, 60)) {
            for (int r = 0; r < 2; r++) {
                const member *one = &m.members[r];
                zf_program *p = one->program;
                const float lr = 0.05f;
                float x[2][ROWS * WIDTH];
                zf_write(p, zf_graph_find(one->graph, "lr"), &lr, sizeof lr);
                for (int k = 0; k < 4; k++) {
                    const int micro = way ? order[k] : k;
                    values_of(x, r, 0, micro);
                    for (int of = 0; of < 2; of++) {
                        const zf_tensor input = zf_graph_find(one->graph, of ? "y" : "x");
                        OK(t, way ? zf_write_micro(p, input, micro, x[of], sizeof x[of])
                                  : zf_write(p, input, x[of], sizeof x[of]),
                           zf_program_error(p));
                    }
                    if (!way && k < 3) OK(t, zf_micro(p), zf_program_error(p));
                }
            }
            team_step(t, &m);
            zf_read(m.programs[0], zf_graph_find(m.members[0].graph, "loss"), &losses[way],
                    sizeof losses[way]);
        }
        team_end(&m);
    }
    CHECK(t, t->unwound || (losses[0] > 0 && losses[0] == losses[1]));
}

/* What is not written is that of the micro-batch before, also where another input is written. */
TEST_ONCE(schedules_keep_an_input_that_is_not_written)
{
    float losses[2][2] = {{0}};
    for (int way = 0; way < 2 && !t->failed; way++) {
        team m;
        if (two_ranks(t, &m, 60)) {
            for (int step = 0; step < 2; step++) {
                for (int r = 0; r < 2; r++) {
                    const member *one = &m.members[r];
                    zf_program *p = one->program;
                    const zf_tensor y = zf_graph_find(one->graph, "y");
                    float x[2][ROWS * WIDTH];
                    fill(one, step, 0);
                    for (int k = 0; k < 4; k++) {
                        values_of(x, r, step, k);
                        OK(t, zf_write_micro(p, zf_graph_find(one->graph, "x"), k, x[0],
                                             sizeof x[0]),
                           zf_program_error(p));
                        values_of(x, r, step, 0);
                        if (way) OK(t, zf_write_micro(p, y, k, x[1], sizeof x[1]),
                                    zf_program_error(p));
                    }
                }
                team_step(t, &m);
                zf_read(m.programs[0], zf_graph_find(m.members[0].graph, "loss"),
                        &losses[way][step], sizeof(float));
            }
        }
        team_end(&m);
    }
    CHECK(t, t->unwound || (losses[0][0] > 0 && !memcmp(losses[0], losses[1], sizeof losses[0])));
}

/* The first step has no micro-batch before the one that is written. */
TEST_ONCE(schedules_require_the_first_micro_batch)
{
    team m;
    if (two_ranks(t, &m, 60)) {
        const member *one = &m.members[0];
        const float lr = 0.05f;
        float x[2][ROWS * WIDTH];
        zf_write(one->program, zf_graph_find(one->graph, "lr"), &lr, sizeof lr);
        values_of(x, 0, 0, 3);
        for (int of = 0; of < 2; of++)
            OK(t, zf_write_micro(one->program, zf_graph_find(one->graph, of ? "y" : "x"), 3, x[of],
                                 sizeof x[of]),
               zf_program_error(one->program));
        GIVES(t, zf_step(one->program), ZF_ERR_STAGE, zf_program_error(one->program));
        CHECK(t, strstr(zf_program_error(one->program), "\"x\" has not been written") != NULL);
    }
    team_end(&m);
}

/* Only the gradient of h.1.b, on the last rank, leaves the range of f16: it is `by` times that of
 * the sum. */
static void write_steep(char text[TEXT], int by)
{
    snprintf(text, TEXT,
             "%%1 = input \"x\" : f32[4,8]\n%%2 = input \"y\" : f32[4,8]\n"
             "%%3 = input \"lr\" : f32[]\n"
             "%%4 = param \"h.0.w\" {init=normal b=0.5} : f32[8,8]\n"
             "%%5 = linear %%1, %%4 : f32[4,8]\n"
             "%%6 = param \"h.1.w\" {init=normal b=0.5} : f32[8,8]\n"
             "%%7 = linear %%5, %%6 : f32[4,8]\n%%8 = param \"h.1.b\" : f32[4,8]\n"
             "%%9 = scale %%2 {by=%d} : f32[4,8]\n%%10 = mul %%9, %%8 : f32[4,8]\n"
             "%%11 = add %%7, %%10 : f32[4,8]\n%%12 = mul %%11, %%11 : f32[4,8]\n"
             "%%13 = reshape %%12 {shape=[32]} : f32[32]\n%%14 = sum %%13 : f32[]\n"
             "output %%14 \"loss\"\n",
             by);
}

typedef struct steep {
    uint16_t first[WIDTH * WIDTH], w[2][WIDTH * WIDTH]; /* h.0.w after a step; both, after all */
    int64_t skipped[2];                                 /* after a step, after all */
} steep;

static void run_steep(test *t, int pipe, const char *schedule, int by, steep *s)
{
    const made way = {.passes = "precision f16 scale=64 hysteresis=1; autograd %14; simplify; "
                                "adamw lr",
                      .zero = "stage=0", .pipe = pipe, .data = 1, .micro = 4, .schedule = schedule};
    const float lr = 1e-4f;
    char text[TEXT];
    team m;
    write_steep(text, by);
    making = &way;
    if (team_new(t, &m, text, pipe, false, to_stages))
        for (int step = 0; step < 12 && !t->failed; step++) {
            for (int r = 0; r < pipe; r++)
                for (int k = 0; k < 4; k++) {
                    fill(&m.members[r], 0, k);
                    zf_write(m.programs[r], zf_graph_find(m.members[r].graph, "lr"), &lr,
                             sizeof lr);
                    if (k < 3) zf_micro(m.programs[r]);
                }
            team_step(t, &m);
            for (int r = 0; r < pipe; r++) {
                int64_t skipped = -1;
                zf_read(m.programs[r], zf_graph_find(m.members[r].graph, "skipped_steps"),
                        &skipped, sizeof skipped);
                CHECK(t, !r || skipped == s->skipped[step > 0]);
                s->skipped[step > 0] = skipped;
            }
            for (int k = 0; k < 2; k++) {
                const int r = k * (pipe - 1);
                const zf_tensor w =
                    zf_graph_find(m.members[r].graph, k ? "h.1.w" : "h.0.w");
                OK(t, zf_read(m.programs[r], w, s->w[k], zf_tensor_bytes(w)),
                   zf_program_error(m.programs[r]));
            }
            if (!step) memcpy(s->first, s->w[0], sizeof s->first);
        }
    team_end(&m);
}

/* All ranks skip a step in which gradients of the last one overflow. */
TEST_ONCE(schedules_skip_on_all_ranks)
{
    static steep one, some, flat;
    run_steep(t, 1, NULL, 2000, &one);
    run_steep(t, 2, NULL, 1, &flat);
    CHECK(t, t->unwound || (one.skipped[0] == 1 && one.skipped[1] < 12 && !flat.skipped[1]));
    for (int k = 0; k < 4 && !t->failed && !t->unwound; k++) {
        if (k == ZF_PIPE_INTERLEAVED) continue; /* there are two layers */
        run_steep(t, 2, kinds[k], 2000, &some);
        CHECK(t, !memcmp(one.first, some.first, sizeof one.first));
        CHECK(t, memcmp(flat.first, some.first, sizeof one.first));
        CHECK(t, !memcmp(one.w, some.w, sizeof one.w));
        CHECK(t, !memcmp(one.skipped, some.skipped, sizeof one.skipped));
    }
}

TEST_ONCE(schedules_refuse_wrong_micro_batches)
{
    team m;
    if (two_ranks(t, &m, 60)) {
        zf_program *p = m.programs[0];
        zf_graph *g = m.members[0].graph;
        float x[ROWS * WIDTH] = {0};
        zf_write_micro(p, zf_graph_find(g, "x"), 4, x, sizeof x);
        CHECK_TEXT(t, zf_program_error(p),
                   "zf_write_micro: there is no micro-batch 4; the step has 4");
        zf_write_micro(p, zf_graph_find(g, "lr"), 0, x, sizeof *x);
        CHECK(t, strstr(zf_program_error(p),
                        "has one value for all micro-batches of a step; zf_write writes it"));
        zf_write_micro(p, zf_graph_find(g, "x"), 0, NULL, sizeof x);
        CHECK_TEXT(t, zf_program_error(p), "zf_write_micro: data is NULL");
        for (int r = 0; r < 2; r++)
            for (int k = 0; k < 4; k++) {
                fill(&m.members[r], 0, k);
                if (k < 3) zf_micro(m.programs[r]);
            }
        team_step(t, &m);
        OK(t, zf_micro(p), zf_program_error(p));
        zf_read(p, zf_graph_find(g, "loss"), x, sizeof *x);
        CHECK(t, strstr(zf_program_error(p),
                        "has no value between micro-batches: zf_step runs all of them together"));
    }
    team_end(&m);
}

/* Other steps run a micro-batch when it is written. */
TEST(schedules_are_for_stages)
{
    static const char text[] = "zero stage=0 world=1 micro_batches=2\n%1 = input \"x\" : f32[4]\n"
                               "%2 = neg %1 : f32[4]\noutput %2 \"y\"\n";
    const float x[4] = {1, 2, 3, 4};
    zf_error error = {ZF_OK, ""};
    zf_graph *g = team_parsed(t, text, &error);
    zf_program *p;
    NEED(t, g, &error);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    p = zf_compile(g, NULL);
    error.status = zf_graph_status(g);
    NEED(t, p, &error);
    test_defer(t, (test_cleanup *)zf_program_free, p);
    CHECK(t, zf_write_micro(p, zf_graph_find(g, "x"), 1, x, sizeof x));
    CHECK_TEXT(t, zf_program_error(p), "zf_write_micro: micro-batch 0 is next, not 1: this step "
                                       "runs one after the other");
    OK(t, zf_write_micro(p, zf_graph_find(g, "x"), 0, x, sizeof x), zf_program_error(p));
}

/* A value that the schedule makes too late for its reader: W of stage 1 comes after that of 0. */
TEST(schedules_refuse_what_comes_too_late)
{
    static const char late[] = "weights:\n%7 = neg %6 : f32[4,4] stage=1\n"
                               "%8 = send %7 {world=2 over=pipe from=1} : f32[4,4] stage=0\n"
                               "%9 = neg %8 : f32[4,4] stage=0\n"
                               "%10 = pack %9 {at=[0] size=16} : f32[16] stage=0\n"
                               "%11 = all_reduce %10, %20 {world=1 over=data} : f32[16] stage=0\n"
                               "%12 = view %11 {shape=[4,4]} : f32[4,4] stage=0\n"
                               "update:\n     gradient %2, %12 stage=0\n";
    zf_comm comm = {.rank = 0, .world = 2, .groups = true};
    zf_error error = {ZF_OK, ""};
    zf_graph *g = with_sections(t, late, &error);
    zf_program *p;
    NEED(t, g, &error);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    p = zf_compile(g, &(zf_compile_desc){.comm = &comm});
    if (p) zf_program_free(p);
    GIVES(t, zf_graph_status(g), ZF_ERR_VERIFY, zf_graph_error(g));
    if (!strstr(zf_graph_error(g), "zf_compile: schedule: %9 reads %8 of micro-batch"))
        test_fail(t, __FILE__, __LINE__, "zf_compile: schedule:", zf_graph_error(g));
}

/* One rank does not come to a step: the other one says where it was. */
TEST_ONCE(schedules_name_the_task_of_a_rank_that_waits)
{
    for (int away = 0; away < 2 && !t->failed; away++) {
        team m;
        if (two_ranks(t, &m, 0.3)) {
            zf_program *p = m.programs[1 - away];
            for (int step = 0; step < 2; step++) {
                for (int r = 0; r < 2; r++)
                    for (int k = 0; k < 4; k++) {
                        fill(&m.members[r], step, k);
                        if (k < 3) zf_micro(m.programs[r]);
                    }
                if (!step) team_step(t, &m);
            }
            if (zf_step(p) != ZF_ERR_COMM || !strstr(zf_program_error(p), "send %") ||
                !strstr(zf_program_error(p), away ? "rank 1 of 2 did not come within 0.3 s"
                                                  : "rank 0 of 2 did not come within 0.3 s"))
                test_fail(t, __FILE__, __LINE__, "the rank", zf_program_error(p));
            if (!strstr(zf_program_error(p), "; task F 0 0 of stage 0"))
                test_fail(t, __FILE__, __LINE__, "the task", zf_program_error(p));
            if (zf_step(m.programs[away]) != ZF_ERR_COMM)
                test_fail(t, __FILE__, __LINE__, "fails too", zf_program_error(m.programs[away]));
        }
        team_end(&m);
    }
}
