/* Steps of stages that run a schedule: the bits of one rank, the slots that plans give, the text,
 * inputs of micro-batches, ranks that fail, and what is refused. */
#include "staged.h"

static const char *const kinds[] = {"1f1b", "gpipe", "interleaved", "zb-h1", "zb-v"};

/* Each kind on 2 and 4 ranks along pipe, with each stage of ZeRO, in f32 and bf16, with and without
 * prefetch: one in four of these, so that each kind meets each of them. Embedding and head are
 * one. */
TEST_ONCE(schedules_have_the_bits_of_one_rank)
{
    static const char *const zeros[] = {"stage=0", "stage=1", "stage=2", "stage=3"};
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

/* ------------------------------------------------------------------------------------- the text */

static const char in_sections[] =
    "mesh pipe=2\nschedule: zb-h1\nzero stage=0 world=1 micro_batches=2\nforward:\n"
    "%1 = input \"x\" : f32[4,4]\n%2 = param \"a\" : f32[4,4] stage=0\n"
    "%3 = param \"b\" : f32[4,4] stage=1\n%4 = matmul %1, %2 : f32[4,4] stage=0\n"
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
