/* Stages of a pipeline: parameters, states and losses of any number of ranks along pipe have the
 * bits of one rank; each rank has what its stage needs alone; and what is refused. */
static const char of_another[] = "of the pipeline, and this rank is of stage",
                  of_others[] = "of the pipeline, and rank";
#include "staged.h"

TEST_ONCE(stages_have_the_bits_of_one_rank)
{
    static const char *const ways[] = {"autograd %94; simplify; sgd lr",
                                       "autograd %94; simplify; clip 0.5; adamw lr; fuse",
                                       "precision bf16; autograd %94; simplify; adamw lr"};
    for (int way = 0; way < 3 && !t->failed; way++) {
        static after one, some;
        size_t alone, peaks[TEAM_RANKS];
        made m = {.passes = ways[way], .pipe = 1, .data = 1, .micro = 1};
        if (!run_ranks(t, &m, &one, peaks)) return;
        alone = peaks[0];
        for (m.pipe = 2; m.pipe <= 4 && !t->failed; m.pipe++) {
            m.layers = m.pipe == 2 && way == 1 ? "2,6" : m.pipe == 3 && way == 2 ? "5,2,1" : NULL;
            if (!run_ranks(t, &m, &some, peaks)) return;
            CHECK(t, !memcmp(&one, &some, sizeof one));
            for (int r = 0; r < m.pipe; r++) CHECK(t, peaks[r] < alone);
        }
    }
}

/* Each stage of ZeRO along data, and several micro-batches. */
TEST_ONCE(stages_have_the_bits_of_one_rank_with_zero)
{
    static const char *const zeros[] = {"stage=0 sum=parts", "stage=1 sum=parts",
                                        "stage=2 sum=parts", "stage=3 sum=parts"};
    for (int k = 0; k < 4 * 3 && !t->failed; k++) {
        static after one, some;
        size_t peaks[TEAM_RANKS];
        made m = {.passes = k % 2 ? "precision bf16; autograd %94; simplify; clip 0.5; adamw lr"
                                  : "autograd %94; simplify; clip 0.5; adamw lr",
                  .zero = zeros[k / 3],
                  .then = k % 3 == 2 ? "; prefetch bytes=100000" : NULL,
                  .pipe = 1,
                  .data = k % 3 ? 2 : 1,
                  .micro = k % 3 == 1 ? 1 : 5};
        if (!run_ranks(t, &m, &one, peaks)) return;
        for (m.pipe = 2; m.pipe * m.data <= TEAM_RANKS && m.pipe <= 4; m.pipe += 2) {
            if (!run_ranks(t, &m, &some, peaks)) return;
            CHECK(t, !memcmp(&one, &some, sizeof one));
        }
    }
}

/* A value that only a branch reads is sent, too, in a step that leaves out the branch. */
TEST_ONCE(stages_send_what_a_left_out_branch_reads)
{
    static const char text[] =
        "%1 = input \"x\" : f32[4,8]\n%2 = input \"lr\" : f32[]\n"
        "%3 = param \"h.0.w\" {init=normal b=0.5} : f32[8,8]\n%4 = linear %1, %3 : f32[4,8]\n"
        "%5 = param \"h.1.w\" {init=normal b=0.5} : f32[8,8]\n%6 = linear %4, %5 : f32[4,8]\n"
        "%7 = layer_drop %6 {share=1 theta=1e-09 gamma=1000} : f32[4,8]\n"
        "%8 = param \"h.1.b\" {init=normal b=0.5} : f32[4,8]\n%9 = add %7, %8 : f32[4,8]\n"
        "%10 = mul %9, %9 : f32[4,8]\n%11 = reshape %10 {shape=[32]} : f32[32]\n"
        "%12 = sum %11 : f32[]\noutput %12 \"loss\"\n";
    float losses[2] = {0};
    for (int pipe = 1; pipe <= 2 && !t->failed; pipe++) {
        const made way = {.passes = "autograd %12; simplify; sgd lr", .pipe = pipe, .micro = 1};
        const float lr = 0.05f, x[ROWS * WIDTH] = {1, 2, 3, 4};
        team m;
        making = &way;
        if (team_new(t, &m, text, pipe, false, to_stages)) {
            for (int r = 0; r < pipe; r++) {
                zf_write(m.programs[r], zf_graph_find(m.members[r].graph, "x"), x, sizeof x);
                zf_write(m.programs[r], zf_graph_find(m.members[r].graph, "lr"), &lr, sizeof lr);
            }
            for (int step = 0; step < STEPS && !t->failed; step++) team_step(t, &m);
            zf_read(m.programs[0], zf_graph_find(m.members[0].graph, "loss"), &losses[pipe - 1],
                    sizeof *losses);
        }
        team_end(&m);
    }
    CHECK(t, t->unwound || (losses[0] > 0 && losses[0] == losses[1]));
}

/* ------------------------------------------------------------------------------ rules, refusals */

static const char two[] = "mesh pipe=2\n"
                          "%1 = input \"x\" : f32[4]\n"
                          "%2 = param \"a\" : f32[4] stage=0\n"
                          "%3 = param \"b\" : f32[4] stage=1\n"
                          "%4 = mul %1, %2 : f32[4] stage=0\n";

TEST(stages_are_verified)
{
    static const char *const wrong[][2] = {
        {"%5 = mul %4, %3 : f32[4] stage=1\n",
         "it is of stage 1 and reads %4 of stage 0, which must be sent"},
        {"output %4 \"y\"\n",
         "it is of all stages and reads %4 of stage 0, which a bcast over pipe must bring"},
        {"%5 = send %4 {world=2 over=pipe from=1} : f32[4] stage=0\n",
         "it sends from=1 to=0, and %4 is of stage 0, the result of 0"},
        {"%5 = send %4 {world=2 over=pipe to=1} : f32[4] stage=0\n",
         "it sends from=0 to=1, and %4 is of stage 0, the result of 0"},
        {"%5 = send %1 {world=2 over=pipe to=1} : f32[4] stage=1\n",
         "it sends from=0 to=1, and %1 is of stage -1, the result of 1"},
        {"%5 = send %4 {world=2 over=pipe to=1} : f32[4]\n",
         "it is of all stages and reads %4 of stage 0, which a bcast over pipe must bring"},
        {"%5 = bcast %4 {world=2 over=pipe root=1} : f32[4]\n", "root=1, and %4 is of stage 0"},
        {"%5 = bcast %4 {world=2 over=pipe} : f32[4] stage=1\n",
         "it is of stage 1 alone, and all stages take part in it"},
        {"%5 = neg %1 : f32[4] stage=2\n", "stage=2, and there are 2 ranks along pipe"},
        {"%5 = input \"z\" : f32[4]~pipe stage=1\n",
         "it is of stage 1 alone, and so has no type along pipe"},
        {"%5 = neg %1 : f32[4] stage=-1\n", "a stage is 0 to 32766"},
        {"%6 = mul %5, %3 : f32[4] stage=1\n%5 = send %4 {world=2 over=pipe to=1} : f32[4] "
         "stage=1\n",
         "%5 is not defined above"}};
    for (size_t k = 0; k < sizeof wrong / sizeof wrong[0]; k++) {
        char text[1000];
        zf_error error = {ZF_OK, ""};
        zf_graph *g;
        snprintf(text, sizeof text, "%s%s", two, wrong[k][0]);
        g = team_parsed(t, text, &error);
        if (g) zf_graph_free(g);
        if (error.status == ZF_ERR_NOMEM) OK(t, error.status, error.text);
        CHECK(t, !g);
        if (!strstr(error.text, wrong[k][1]))
            test_fail(t, __FILE__, __LINE__, wrong[k][1], error.text);
    }
}

/* Marks are in the text, which reads back, and in the hash. */
TEST(stages_are_in_the_text)
{
    uint64_t hashes[2];
    for (int k = 0; k < 2; k++) {
        char text[1000], again[1000];
        zf_error error = {ZF_OK, ""};
        zf_graph *g;
        snprintf(text, sizeof text, "%s%%5 = neg %%1 : f32[4] stage=%d\n", two, k);
        g = team_parsed(t, text, &error);
        NEED(t, g, &error);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        zf_graph_text(g, again, sizeof again);
        CHECK_TEXT(t, again, text);
        hashes[k] = zf_graph_hash(g);
    }
    CHECK(t, hashes[0] != hashes[1]);
}

/* A chain of products; that of layer l has rows[l] columns. */
static zf_graph *chain_of(test *t, const int *rows, int count)
{
    char text[TEXT];
    zf_error error = {ZF_OK, ""};
    int at = snprintf(text, TEXT, "%%1 = input \"x\" : f32[4,8]\n"), id = 2, x = 1, width = 8;
    for (int l = 0; l < count; l++, x = id - 1) {
        at +=
            snprintf(text + at, (size_t)(TEXT - at),
                     "%%%d = param \"h.%d.w\" : f32[%d,%d]\n%%%d = linear %%%d, %%%d : f32[4,%d]\n",
                     id, l, rows[l], width, id + 1, x, id, rows[l]);
        id += 2, width = rows[l];
    }
    snprintf(text + at, (size_t)(TEXT - at), "output %%%d \"y\"\n", x);
    return team_parsed(t, text, &error);
}

/* The stages of its parameters, "0 0 1". */
static const char *stages_of(const zf_graph *g, char stages[64])
{
    static char text[2 * TEXT];
    char *out = stages;
    zf_graph_text(g, text, sizeof text);
    for (const char *at = text; (at = strstr(at, "= param")); at++) {
        const char *mark = strstr(at, "stage="), *end = strchr(at, '\n');
        out += sprintf(out, "%s%c", out == stages ? "" : " ", mark && mark < end ? mark[6] : '-');
    }
    return stages;
}

TEST(stages_get_layers_by_flops_or_numbers)
{
    static const int even[] = {8, 8, 8, 8, 8, 8, 8}, last[] = {8, 8, 8, 8, 8, 8, 4000},
                     first[] = {4000, 8, 8, 8, 8, 8, 8};
    static const struct {
        const int *rows;
        int32_t ranks;
        const char *layers, *stages;
    } cases[] = {{even, 3, NULL, "0 0 1 1 2 2 2"},  {even, 7, NULL, "0 1 2 3 4 5 6"},
                 {even, 1, NULL, "- - - - - - -"},  {last, 2, NULL, "0 0 0 0 0 0 1"},
                 {first, 2, NULL, "0 1 1 1 1 1 1"}, {even, 3, "3,3,1", "0 0 0 1 1 1 2"},
                 {last, 2, "1,6", "0 1 1 1 1 1 1"}};
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        char stages[64];
        zf_graph *g = chain_of(t, cases[k].rows, 7);
        NEED(t, g, NULL);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        OK(t, zf_stages(g, &(zf_stages_desc){.ranks = cases[k].ranks, .layers = cases[k].layers}),
           zf_graph_error(g));
        CHECK_TEXT(t, stages_of(g, stages), cases[k].stages);
    }
}

/* A step of layers with a large table at the first one; their number by FLOPs is the same for each
 * stage. */
static zf_graph *step_with_table(test *t, const zf_training *how)
{
    char text[TEXT];
    zf_error error = {ZF_OK, ""};
    zf_training d = *how;
    zf_graph *g;
    int at = snprintf(text, TEXT, "%%1 = input \"x\" : i32[4]\n%%2 = input \"lr\" : f32[]\n"
                                  "%%3 = param \"wte\" : f32[512,32]\n"
                                  "%%4 = gather_rows %%3, %%1 : f32[4,32]\n");
    for (int l = 0; l < LAYERS; l++)
        at += snprintf(text + at, (size_t)(TEXT - at),
                       "%%%d = param \"h.%d.w\" : f32[32,32]\n"
                       "%%%d = linear %%%d, %%%d : f32[4,32]\n",
                       5 + 2 * l, l, 6 + 2 * l, 4 + 2 * l, 5 + 2 * l);
    snprintf(text + at, (size_t)(TEXT - at),
             "%%90 = reshape %%%d {shape=[128]} : f32[128]\n%%91 = sum %%90 : f32[]\n"
             "output %%91 \"loss\"\n", 4 + 2 * LAYERS);
    if (!(g = team_parsed(t, text, &error))) return NULL;
    d.loss = zf_graph_find(g, "loss"), d.zero.world = 1, d.zero.micro_batches = 4;
    zf_passes(g, &d);
    return g;
}

/* The largest bytes of the ranks along pipe, and the stages of parameters. */
static void plan_stages(test *t, const zf_training *how, size_t *most, char stages[64])
{
    zf_graph *g = step_with_table(t, how);
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    OK(t, zf_graph_status(g), zf_graph_error(g));
    *most = 0;
    for (int rank = 0; rank < how->stages.ranks; rank++) {
        zf_graph *one = zf_graph_copy(g);
        zf_plan plan;
        NEED(t, one, NULL);
        test_defer(t, (test_cleanup *)zf_graph_free, one);
        OK(t, zf_keep_stage(one, rank), zf_graph_error(one));
        OK(t, zf_memory(one, NULL), zf_graph_error(one));
        OK(t, zf_graph_plan(one, &plan), zf_graph_error(one));
        if (plan.peak_bytes > *most) *most = plan.peak_bytes;
    }
    stages_of(g, stages);
}

/* The rank with the table gives layers to the others, as many as the limit requires. */
TEST_ONCE(stages_get_layers_by_bytes)
{
    static const struct {
        zf_pipe_schedule schedule;
        zf_recompute_mode mode;
        const char *even, *uneven;
    } cases[] = {{{ZF_PIPE_1F1B, 0}, ZF_RECOMPUTE_OFF, "4,4", "2,6"},
                 {{ZF_PIPE_1F1B, 0}, ZF_RECOMPUTE_AS_NEEDED, "4,4", "2,6"},
                 {{ZF_PIPE_INTERLEAVED, 2}, ZF_RECOMPUTE_OFF, "2,2,2,2", "1,3,2,2"}};
    for (size_t k = 0; k < sizeof cases / sizeof cases[0] && !t->failed; k++) {
        char even[64], uneven[64], got[64];
        zf_training how = {.stages = {.ranks = 2, .schedule = cases[k].schedule}};
        size_t limits[2], most;
        how.stages.layers = cases[k].even, plan_stages(t, &how, &limits[0], even);
        how.stages.layers = cases[k].uneven, plan_stages(t, &how, &limits[1], uneven);
        CHECK(t, !t->failed && limits[1] < limits[0]);
        how.stages.layers = NULL, how.recompute.mode = cases[k].mode;
        for (int n = 0; n < 2 && !t->failed; n++) {
            how.memory_limit = limits[n];
            plan_stages(t, &how, &most, got);
            CHECK_TEXT(t, got, n ? uneven : even);
            CHECK(t, most <= limits[n]);
        }
    }
}

/* Nothing fits: layers are those by FLOPs, and the error is of the rank that has too much. */
TEST(stages_do_not_fit_any_layers)
{
    for (int k = 0; k < 2; k++) {
        char stages[64];
        zf_training how = {.stages.ranks = 2, .memory_limit = 5000};
        zf_graph *g;
        if (k) how.recompute.mode = ZF_RECOMPUTE_AS_NEEDED;
        g = step_with_table(t, &how);
        NEED(t, g, NULL);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        if (!k) {
            OK(t, zf_graph_status(g), zf_graph_error(g));
            CHECK_TEXT(t, stages_of(g, stages), "0 0 0 0 0 1 1 1 1");
        } else GIVES(t, zf_graph_status(g), ZF_ERR_LIMIT, zf_graph_error(g));
        if (k && !strstr(zf_graph_error(g), "rank 0 along pipe: parameters, gradients"))
            test_fail(t, __FILE__, __LINE__, "rank 0", zf_graph_error(g));
    }
}

/* Each rank along pipe fits: the choice is of the one that takes most, which the error names. */
TEST_ONCE(stages_fit_each_rank)
{
    zf_choice choice;
    zf_training how = {.stages = {.ranks = 2, .layers = "4,4"}};
    size_t plain, most;
    char stages[64];
    zf_graph *g;
    plan_stages(t, &how, &plain, stages);
    how.fit = (zf_fit_desc){.device = plain, .host = 1 << 30, .choice = &choice};
    plan_stages(t, &how, &most, stages);
    CHECK(t, !t->failed && most == plain && choice.tried == 1 && choice.bytes[ZF_DEVICE] == plain);
    how.fit.device = plain - 1;
    plan_stages(t, &how, &most, stages);
    CHECK(t, !t->failed && most < plain && choice.tried > 1 && choice.bytes[ZF_DEVICE] == most);
    how.fit = (zf_fit_desc){.memory = 5000};
    g = step_with_table(t, &how);
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    GIVES(t, zf_graph_status(g), ZF_ERR_LIMIT, zf_graph_error(g));
    CHECK(t, strstr(zf_graph_error(g), "zf_passes: nothing fits rank 0 along pipe; what comes nearest ("));
}

TEST(stages_refuse_what_cannot_be_dealt)
{
    static const int rows[] = {8, 8, 8};
    static const struct {
        zf_stages_desc desc;
        const char *error;
    } cases[] = {
        {{.ranks = 4},
         "zf_stages: 4 ranks along pipe, and the graph has 3 layers; each rank has one or more"},
        {{.ranks = 2, .layers = "2,2"}, "zf_stages: layers is \"2,2\", 4 in all, and the graph has 3 layers"},
        {{.ranks = 2, .layers = "1,1,1"},
         "zf_stages: layers is \"1,1,1\", of 3 stages, and there are 2 ranks along pipe"},
        {{.ranks = 2, .layers = "3,0"}, "zf_stages: layers is \"3,0\"; it must be numbers of layers, as 3,3,2"},
        {{.ranks = 2, .layers = "2,"}, "zf_stages: layers is \"2,\"; it must be numbers of layers, as 3,3,2"},
        {{.ranks = 2, .layers = "2;1"}, "zf_stages: layers is \"2;1\"; it must be numbers of layers, as 3,3,2"},
        {{.ranks = -1}, "ranks"}};
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        zf_graph *g = chain_of(t, rows, 3);
        NEED(t, g, NULL);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        GIVES(t, zf_stages(g, &cases[k].desc), ZF_ERR_ARGUMENT, zf_graph_error(g));
        if (!strstr(zf_graph_error(g), cases[k].error))
            test_fail(t, __FILE__, __LINE__, cases[k].error, zf_graph_error(g));
    }
    for (int k = 0; k < 2; k++) {
        zf_graph *g = chain_of(t, rows, k ? 3 : 0);
        NEED(t, g, NULL);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        if (k) OK(t, zf_stages(g, &(zf_stages_desc){.ranks = 2}), zf_graph_error(g));
        GIVES(t, zf_stages(g, &(zf_stages_desc){.ranks = 2}), k ? ZF_ERR_STAGE : ZF_ERR_ARGUMENT,
              zf_graph_error(g));
        CHECK(t,
              strstr(zf_graph_error(g), k ? "zf_stages: the ranks have an axis pipe already"
                                          : "zf_stages: there are no layers: no scope and no "
                                            "parameter's name has a number, as \"layer.7\" has"));
    }
}

/* Ranks that run parts of a graph are threads. */
TEST_ONCE(stages_run_as_threads_alone)
{
    static const int rows[] = {8, 8};
    zf_comm comms[2] = {{.rank = 0, .world = 2, .groups = true}, {.rank = 1, .world = 2}};
    zf_program *programs[2];
    zf_error error = {ZF_OK, ""};
    for (int r = 0; r < 2; r++) {
        zf_graph *g = chain_of(t, rows, 2);
        NEED(t, g, NULL);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        OK(t, zf_stages(g, &(zf_stages_desc){.ranks = 2}), zf_graph_error(g));
        programs[r] = zf_compile(g, &(zf_compile_desc){.comm = &comms[r]});
        error.status = zf_graph_status(g);
        NEED(t, programs[r], &error);
        test_defer(t, (test_cleanup *)zf_program_free, programs[r]);
    }
    CHECK(t, zf_lockstep_step(&(zf_lockstep_desc){programs, 2, 0}, &error));
    CHECK(t, strstr(error.text, "lockstep: ranks of stages do not run one list of launches; "
                                "threads run them (zf_local_new)"));
}

/* The plan of a stage is that of its program, to the byte. */
TEST_ONCE(stages_are_planned_apart)
{
    const made way = {.passes = "autograd %94; simplify; clip 0.5; adamw lr",
                      .zero = "stage=2",
                      .pipe = 3,
                      .data = 2,
                      .micro = 3};
    /* to two others: the norm, and the losses of three micro-batches */
    static const size_t broadcast[] = {2 * 4, 0, 2 * 3 * 4};
    static after all;
    size_t peaks[TEAM_RANKS];
    char text[TEXT];
    zf_backend *cpu;
    if (!run_ranks(t, &way, &all, peaks)) return;
    NEED(t, cpu = zf_cpu_backend(NULL, NULL), NULL);
    test_defer(t, (test_cleanup *)zf_backend_free, cpu);
    write_model(text);
    for (int stage = 0; stage < way.pipe; stage++) {
        zf_error error = {ZF_OK, ""};
        zf_plan plan;
        zf_graph *g = team_parsed(t, text, &error);
        NEED(t, g, &error);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        OK(t, to_stages(g), zf_graph_error(g));
        OK(t, zf_keep_stage(g, stage), zf_graph_error(g));
        OK(t, zf_memory(g, &(zf_memory_desc){.backend = cpu}), zf_graph_error(g));
        OK(t, zf_graph_plan(g, &plan), zf_graph_error(g));
        for (int data = 0; data < way.data; data++)
            CHECK(t, plan.spaces[ZF_DEVICE].peak_bytes == peaks[stage * way.data + data]);
        CHECK(t, plan.traffic.bcast.bytes == broadcast[stage]);
    }
}

TEST(stages_are_kept_by_number)
{
    static const int rows[] = {8, 8};
    static const char *const errors[] = {
        "zf_keep_stage: the graph has no stages: zf_stages must come before",
        "zf_keep_stage: stage 2; the graph has stages 0 to 1",
        "zf_keep_stage: the graph is of one stage (zf_keep_stage): only zf_memory may follow"};
    for (int k = 0; k < 3; k++) {
        zf_graph *g = chain_of(t, rows, 2);
        NEED(t, g, NULL);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        if (k) OK(t, zf_stages(g, &(zf_stages_desc){.ranks = 2}), zf_graph_error(g));
        if (k == 2) OK(t, zf_keep_stage(g, 1), zf_graph_error(g));
        GIVES(t, zf_keep_stage(g, k == 1 ? 2 : 0), k == 1 ? ZF_ERR_ARGUMENT : ZF_ERR_STAGE,
              zf_graph_error(g));
        CHECK_TEXT(t, zf_graph_error(g), errors[k]);
    }
}

TEST(stages_are_those_of_nodes)
{
    static const int rows[] = {8, 8};
    zf_graph *g = chain_of(t, rows, 2);
    zf_node node;
    int sends = 0, params = 0;
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    for (int32_t k = 0; zf_graph_node(g, k, &node); k++) CHECK(t, node.stage == -1);
    OK(t, zf_stages(g, &(zf_stages_desc){.ranks = 2}), zf_graph_error(g));
    for (int32_t k = 0; zf_graph_node(g, k, &node); k++) {
        if (node.op == ZF_OP_param) CHECK(t, node.stage == params++);
        if (node.op == ZF_OP_send) CHECK(t, node.stage == 1 && sends++ == 0);
        if (node.op == ZF_OP_input || node.op == ZF_OP_output) CHECK(t, node.stage == -1);
    }
    CHECK(t, sends == 1 && params == 2);
}

/* Places are those of one stage. */
TEST(stages_come_before_places)
{
    static const int rows[] = {8, 8};
    zf_comm comm = {.rank = 0, .world = 2, .groups = true};
    zf_graph *g = chain_of(t, rows, 2);
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    OK(t, zf_stages(g, &(zf_stages_desc){.ranks = 2}), zf_graph_error(g));
    OK(t, zf_memory(g, NULL), zf_graph_error(g));
    CHECK(t, !zf_compile(g, &(zf_compile_desc){.comm = &comm}));
    GIVES(t, zf_graph_status(g), ZF_ERR_STAGE, zf_graph_error(g));
    CHECK(t,
          strstr(zf_graph_error(g),
                 "zf_compile: the graph has stages and places in memory, which each stage has of "
                 "its own: zf_memory must not be run before"));
}

/* A rank runs its own stage, and its store has the same layers for all programs. */
TEST(stages_are_those_of_the_rank)
{
    static const int rows[] = {8, 8, 8};
    zf_comm comm = {.rank = 0, .world = 2, .groups = true};
    zf_backend *cpu;
    zf_store *store;
    NEED(t, cpu = zf_cpu_backend(NULL, NULL), NULL);
    test_defer(t, (test_cleanup *)zf_backend_free, cpu);
    NEED(t, store = zf_store_new(&(zf_store_desc){.backend = cpu, .comm = &comm}, NULL), NULL);
    test_defer(t, (test_cleanup *)zf_store_free, store);
    for (int k = 0; k < 4; k++) {
        static const char *const errors[] = {
            "", "",
            ("zf_compile: the store has \"h.1.w\" at stage 0, and it is of stage 1 here; programs of "
             "one store give each stage the same layers (zf_stages_desc.layers)"),
            "zf_compile: the graph is of stage 1 (zf_keep_stage), and this rank is of stage 0"};
        zf_graph *g = chain_of(t, rows, 3);
        zf_program *p;
        NEED(t, g, NULL);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        OK(t, zf_stages(g, &(zf_stages_desc){.ranks = 2, .layers = k == 2 ? "1,2" : "2,1"}), zf_graph_error(g));
        if (k == 1) OK(t, zf_keep_stage(g, 0), zf_graph_error(g));
        if (k == 3) OK(t, zf_keep_stage(g, 1), zf_graph_error(g));
        p = zf_compile(g, &(zf_compile_desc){.store = store});
        if (p) test_defer(t, (test_cleanup *)zf_program_free, p);
        GIVES(t, zf_graph_status(g), k < 2 ? ZF_OK : ZF_ERR_ARGUMENT, zf_graph_error(g));
        CHECK(t, (p != NULL) == (k < 2) && strstr(zf_graph_error(g), errors[k]));
    }
}

/* Only zf_memory may follow: other passes need what the part has lost. */
TEST(stages_that_are_kept_are_not_rewritten)
{
    static const int rows[] = {8, 8};
    for (int k = 0; k < 3; k++) {
        zf_graph *g = chain_of(t, rows, 2);
        NEED(t, g, NULL);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        OK(t, zf_stages(g, &(zf_stages_desc){.ranks = 2}), zf_graph_error(g));
        OK(t, zf_keep_stage(g, 1), zf_graph_error(g));
        if (k == 0) zf_precision(g, &(zf_precision_desc){.dtype = ZF_BF16});
        if (k == 1) zf_zero(g, &(zf_zero_desc){.world = 2});
        if (k == 2) zf_simplify(g);
        GIVES(t, zf_graph_status(g), ZF_ERR_STAGE, zf_graph_error(g));
        CHECK(t, strstr(zf_graph_error(g), "the graph is of one stage (zf_keep_stage)"));
    }
}

/* Ranks of one stage, which differ along data, have the same parameters. */
TEST_ONCE(stages_compare_their_ranks)
{
    static const char text[] =
        "mesh pipe=2 data=2\nzero stage=0 world=2 micro_batches=1\n"
        "%1 = input \"x\" : f32[4]\n%2 = param \"a\" : f32[4] stage=0\n"
        "%3 = param \"b\" : f32[4] stage=1\n%4 = mul %1, %2 : f32[4] stage=0\n"
        "%5 = send %4 {world=2 over=pipe to=1} : f32[4] stage=1\n"
        "%6 = mul %5, %3 : f32[4] stage=1\n"
        "%7 = bcast %6 {world=2 over=pipe root=1} : f32[4]\noutput %7 \"y\"\n";
    for (int other = 0; other < 2 && !t->failed; other++) {
        const float x[4] = {1, 2, 3, 4};
        float y[4];
        team m;
        if (team_new(t, &m, text, 4, false, NULL)) {
            for (int r = 0; r < 4; r++) {
                const float value = r < 2 ? 2 : 3 + (float)(other && r == 3);
                const float values[4] = {value, value, value, value};
                zf_write(m.programs[r], zf_graph_find(m.members[r].graph, "x"), x, sizeof x);
                zf_write(m.programs[r], zf_graph_find(m.members[r].graph, r < 2 ? "a" : "b"),
                         values, sizeof values);
            }
            for (int r = 0; r < 4; r++)
                if (pthread_create(&m.members[r].thread, NULL, team_main, &m.members[r])) abort();
            for (int r = 0; r < 4; r++) pthread_join(m.members[r].thread, NULL);
            for (int r = 0; r < 4; r++) {
                CHECK_TEXT(t, zf_program_error(m.programs[r]),
                           other ? "ranks of one stage differ in a value; each must be the same on "
                                   "all of them"
                                 : "");
                zf_read(m.programs[r], zf_graph_find(m.members[r].graph, "y"), y, sizeof y);
                for (int i = 0; i < 4 && !other; i++) CHECK(t, y[i] == 6 * x[i]);
            }
        }
        team_end(&m);
    }
}
