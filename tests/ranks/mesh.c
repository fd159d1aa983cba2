/* Ranks with several axes: the text of a mesh, groups along each axis with threads and in lockstep
 * against the definition, steps that are cut over data alone, and what is refused. */
#include "team_passes.h"

enum { DATA = 2, TENSOR = 3, ALL = DATA * TENSOR, PIECE = 2, ROWS = 2 };

/* The ranks of both axes: data is the slower one, or the faster. */
typedef struct order {
    const char *line;
    int data_stride, tensor_stride;
} order;

static const order orders[] = {{"data=2 tensor=3", TENSOR, 1}, {"tensor=3 data=2", 1, DATA}};

/* Element i of x on a rank; small integers, whose sums are exact. */
static float x_at(int rank, int i) { return (float)((rank + 1) * 100 + i); }

static void fill(const member *m)
{
    float x[ROWS * PIECE * TENSOR];
    for (int k = 0; k < 2; k++) {
        const zf_tensor to = zf_graph_find(m->graph, k ? "z" : "x");
        for (int i = 0; i < ROWS * PIECE * TENSOR; i++) x[i] = x_at(m->rank, i);
        zf_write(m->program, to, x, zf_tensor_bytes(to));
    }
}

/* The rank at place `k` along an axis whose ranks are `stride` apart, otherwise like `rank`. */
static int rank_at(int rank, int stride, int ranks, int k)
{
    return rank + (k - rank / stride % ranks) * stride;
}

static void check_rank(test *t, const member *m, const order *o)
{
    static const char *const names[] = {"gathered", "over_data", "back"};
    float got[3][ROWS * PIECE * TENSOR];
    for (int k = 0; k < 3; k++) {
        const zf_tensor of = zf_graph_find(m->graph, names[k]);
        OK(t, zf_read(m->program, of, got[k], zf_tensor_bytes(of)), zf_program_error(m->program));
    }
    for (int i = 0; i < ROWS * PIECE * TENSOR; i++) {
        const int row = i / (PIECE * TENSOR), at = i % (PIECE * TENSOR),
                  from = rank_at(m->rank, o->tensor_stride, TENSOR, at / PIECE);
        CHECK(t, got[0][i] == x_at(from, row * PIECE + at % PIECE));
    }
    for (int i = 0; i < ROWS * PIECE; i++) {
        const int place = m->rank / o->tensor_stride % TENSOR,
                  whole = i / PIECE * PIECE * TENSOR + place * PIECE + i % PIECE;
        float data = 0, mine = 0;
        for (int k = 0; k < DATA; k++) data += x_at(rank_at(m->rank, o->data_stride, DATA, k), i);
        for (int k = 0; k < TENSOR; k++)
            mine += x_at(rank_at(m->rank, o->tensor_stride, TENSOR, k), whole);
        CHECK(t, got[1][i] == data);
        CHECK(t, got[2][i] == mine);
    }
}

/* What was predicted is counted, by axis. Rank 1 along tensor sends what is broadcast to all others,
 * and each but rank 2 sends it the sum. */
static void check_bytes(test *t, const member *m, const order *o)
{
    const zf_program_info info = zf_program_info_of(m->program);
    const zf_traffic *tensor = &info.plan.traffic_over[ZF_OVER_TENSOR],
                     *data = &info.plan.traffic_over[ZF_OVER_DATA];
    const size_t piece = ROWS * PIECE * sizeof(float);
    const int place = m->rank / o->tensor_stride % TENSOR;
    CHECK(t, !memcmp(&info.counted, &info.plan.traffic, sizeof info.counted));
    CHECK(t, !memcmp(info.counted_over, info.plan.traffic_over, sizeof info.counted_over));
    CHECK(t, tensor->all_gather.bytes == (TENSOR - 1) * piece && tensor->all_gather.calls == 1);
    CHECK(t, tensor->reduce_scatter.bytes ==
                 (TENSOR - 1) * piece + (size_t)(place != 2) * TENSOR * piece);
    CHECK(t, tensor->bcast.bytes == (size_t)(place == 1) * (TENSOR - 1) * piece);
    CHECK(t, tensor->reduce_scatter.calls == 2 && tensor->bcast.calls == 1);
    CHECK(t, data->all_reduce.bytes == 2 * (DATA - 1) * piece / DATA && !data->all_gather.calls);
}

static void write_text(char text[700], const order *o)
{
    snprintf(text, 700,
             "mesh %s\nzero stage=0 world=2 micro_batches=1\n"
             "%%1 = input \"x\" : f32[2,2@tensor]\n"
             "%%5 = input \"z\" : f32[2,6]+tensor\n"
             "%%2 = all_gather %%1 {world=3 over=tensor dim=1} : f32[2,6]\n"
             "%%3 = all_reduce %%1 {world=2 over=data} : f32[2,2@tensor]\n"
             "%%4 = reduce_scatter %%5 {world=3 over=tensor dim=1} : f32[2,2@tensor]\n"
             "%%6 = bcast %%1 {world=3 over=tensor root=1} : f32[2,2]\n"
             "%%7 = reduce %%5 {world=3 over=tensor root=2} : f32[2@tensor,6]\n"
             "output %%6 \"from_1\"\noutput %%7 \"sum\"\noutput %%2 \"gathered\"\noutput %%3 \"over_data\"\noutput %%4 \"back\"\n",
             o->line);
}

static void run_order(test *t, team *m, const order *o, bool lockstep)
{
    char text[700], again[700];
    write_text(text, o);
    if (!team_new(t, m, text, ALL, lockstep, NULL)) return;
    zf_graph_text(m->members[0].graph, again, sizeof again);
    CHECK(t, !strncmp(again, text, strcspn(text, "%")));
    for (int r = 0; r < ALL; r++) fill(&m->members[r]);
    team_step(t, m);
    for (int r = 0; r < ALL && !t->failed; r++) check_rank(t, &m->members[r], o);
    for (int r = 0; r < ALL && !t->failed; r++) check_bytes(t, &m->members[r], o);
}

TEST_ONCE(mesh_groups_along_each_axis)
{
    uint64_t hashes[2] = {0, 0};
    for (int k = 0; k < 2; k++)
        for (int lockstep = 0; lockstep < 2 && !t->failed; lockstep++) {
            team m;
            run_order(t, &m, &orders[k], lockstep);
            if (m.members[0].graph) hashes[k] = zf_graph_hash(m.members[0].graph);
            team_end(&m);
        }
    CHECK(t, t->failed || hashes[0] != hashes[1]);
}

/* ------------------------------------------------------------------------------ cut over data */

#define MODEL                                                                                      \
    "%1 = input \"x\" : f32[4,24]\n%2 = input \"lr\" : f32[]\n"                                    \
    "%3 = param \"w\" {init=normal b=0.5} : f32[24,64]\n%4 = matmul %1, %3 : f32[4,64]\n"          \
    "%5 = dropout %4 {p=0.25 stream=3} : f32[4,64]\n%6 = tanh %5 : f32[4,64]\n"                    \
    "%7 = param \"v\" {init=normal b=0.5} : f32[64]\n%8 = mul %6, %7 : f32[4,64]\n"                \
    "%9 = reshape %8 {shape=[256]} : f32[256]\n%10 = sum %9 : f32[]\noutput %10 \"loss\"\n"

enum { PARAMETERS = 24 * 64 + 64 };

/* Writes what a rank at a place along data has in a step. */
static void feed(const member *m, int data, int step)
{
    float x[4 * 24], lr = 0.125f;
    for (int i = 0; i < 4 * 24; i++) x[i] = (float)((i * 7 + data * 5 + step) % 11 - 5) / 8;
    zf_write(m->program, zf_graph_find(m->graph, "x"), x, sizeof x);
    zf_write(m->program, zf_graph_find(m->graph, "lr"), &lr, sizeof lr);
}

/* The parameters after two steps of ranks in a mesh; those along data are `stride` apart. */
static void train(test *t, team *m, const char *mesh, int world, int stride, float *out)
{
    char text[1200];
    zf_error error = {ZF_OK, ""};
    snprintf(text, sizeof text, "%s%s", mesh, MODEL);
    if (!team_new(t, m, text, world, true, team_change)) return;
    for (int step = 0; step < 2 && !t->failed; step++) {
        for (int r = 0; r < world; r++) feed(&m->members[r], r / stride % DATA, step);
        team_step(t, m);
    }
    for (int k = 0; k < 2 && !t->failed; k++)
        OK(t,
           zf_lockstep_read(&(zf_lockstep_desc){m->programs, m->world, 0}, k ? "v" : "w",
                            out + (k ? 24 * 64 : 0), (k ? 64 : 24 * 64) * sizeof(float), &error),
           error.text);
}

/* What is read of a value that is cut over tensor and sharded over data is rank 0's part. */
TEST_ONCE(mesh_reads_the_part_of_rank_0)
{
    static const char text[] =
        "%1 = input \"x\" : f32[4,8]\n%2 = input \"lr\" : f32[]\n"
        "%3 = param \"up\" {init=normal b=0.5} : f32[16,8]\n%4 = linear %1, %3 : f32[4,16]\n"
        "%5 = tanh %4 : f32[4,16]\n%6 = param \"down\" {init=normal b=0.5} : f32[8,16]\n"
        "%7 = linear %5, %6 : f32[4,8]\n%8 = reshape %7 {shape=[32]} : f32[32]\n"
        "%9 = sum %8 : f32[]\noutput %9 \"loss\"\n";
    static float whole[16 * 8], part[8 * 8];
    for (int k = 0; k < 2 && !t->failed; k++) {
        zf_error error = {ZF_OK, ""};
        team m;
        passes = k ? "autograd loss; sgd lr; cut parts=2; zero stage=3 world=2"
                   : "autograd loss; sgd lr; zero stage=3 world=2";
        if (team_new(t, &m, text, k ? 4 : 2, true, team_change))
            OK(t,
               zf_lockstep_read(&(zf_lockstep_desc){m.programs, m.world, 0}, "up",
                                k ? part : whole, k ? sizeof part : sizeof whole, &error),
               error.text);
        team_end(&m);
    }
    CHECK(t, t->failed || t->unwound || (part[0] != 0 && !memcmp(part, whole, sizeof part)));
}

/* Ranks that are no threads save and load, too. */
static void check_files(test *t, const team *m)
{
    const zf_lockstep_desc all = {(zf_program **)(uintptr_t)m->programs, m->world, 0};
    zf_error error = {ZF_OK, ""};
    OK(t, zf_lockstep_save(&all, test_path("mesh"), NULL, &error), error.text);
    OK(t, zf_lockstep_load(&all, test_path("mesh"), NULL, &error), error.text);
}

/* Ranks along data train as they do alone, at each stage. */
TEST_ONCE(mesh_cuts_steps_over_data_alone)
{
    static float alone[PARAMETERS], meshed[PARAMETERS];
    static const struct {
        const char *line;
        int stride;
    } meshes[] = {{"mesh tensor=3\n", TENSOR}, {"mesh pipe=3\n", 1}};
    char line[100];
    team m;
    for (int stage = 0; stage < 4 && !t->failed; stage++)
        for (size_t k = 0; k <= sizeof meshes / sizeof *meshes && !t->failed; k++) {
            snprintf(line, sizeof line, "autograd loss; sgd lr; zero stage=%d world=2", stage);
            passes = line;
            if (!k) train(t, &m, "", DATA, 1, alone);
            else train(t, &m, meshes[k - 1].line, ALL, meshes[k - 1].stride, meshed);
            if (k && !t->failed) check_files(t, &m);
            team_end(&m);
            if (k && !t->failed) CHECK(t, !memcmp(meshed, alone, sizeof alone));
        }
}

/* ------------------------------------------------------------------------------ what is refused */

TEST(mesh_texts_are_checked)
{
    static const char *const wrong[][2] = {
        {"mesh data=2 tensors=2\n",
         "'tensors' is none of the axes data, tensor, context, expert, pipe"},
        {"mesh tensor=2 tensor=2\n", "the axis tensor is given twice"},
        {"mesh data=2 tensor=2 data=2\n", "the axis data is given twice"},
        {"mesh tensor=1\n", "an axis has 2 ranks or more, and a mesh at most 2147483647"},
        {"mesh tensor=65536 pipe=65536\n", "an axis has 2 ranks or more"},
        {"mesh tensor=2x1\n", "a group has 2 ranks or more, and a mesh at most 2147483647"},
        {"mesh tensor=65536x65536\n", "a group has 2 ranks or more"},
        {"mesh tensor=2\n%1 = param \"x\" : f32[4@tensor<8]\n",
         "2 ranks with 4 elements each do not have 8 in all"},
        {"mesh tensor=2\n%1 = param \"x\" : f32[4@tensor<7]\n"
         "%2 = all_gather %1 {world=2 over=tensor} : f32[8]\n",
         "dimension 0 of %1 has padding at its end"},
        {"mesh tensor=2\n%1 = param \"x\" : f32[4@tensor<7,2]\n%2 = input \"i\" : i32[3]\n"
         "%3 = gather_rows %1, %2 {of=8} : f32[3,2]+tensor\n",
         "its rows are cut over tensor: first must be 0, and of"},
        {"mesh group=2\n", "'group' is none of the axes data, tensor, context, expert, pipe"},
        {"mesh tensor=4\n%1 = input \"x\" : f32[4@group]\n",
         "the ranks have no axis group: the line mesh must name it"},
        {"mesh tensor=2x2\n%1 = input \"x\" : f32[4@group,4@tensor]\n",
         "the type has the axis tensor twice"},
        {"mesh tensor=2x2\n%1 = input \"x\" : f32[4@tensor]\n"
         "%2 = part %1 {world=2 over=group} : f32[2@group]\n",
         "%1 is not equal along group: a rank has a part of it already"},
        {"mesh tensor=2x2\n%1 = input \"x\" : f32[4@tensor]\n"
         "%2 = repeat %1 {heads=1 copies=1 over=copies} : f32[4@tensor]\n",
         "the heads of %1 are not cut as those of copies over copies are"},
        {"mesh data=2\n", "ranks along data alone have no line mesh"},
        {"mesh tensor=2\nmesh pipe=2\n", "the first line may be: mesh data=2.. tensor=2.."},
        {"mesh data=2 tensor=2\n%1 = input \"x\" : f32[4,4]\n",
         "the mesh has 2 ranks along data, and the line zero is missing"},
        {"mesh data=2 tensor=2\nzero stage=0 world=4 micro_batches=1\n",
         "world is that of the axis data of the mesh, 2"},
        {"mesh tensor=2\nzero stage=0 world=4 micro_batches=1\n",
         "world is that of the axis data of the mesh, 1"},
        {"%1 = input \"x\" : f32[4,4]\n%2 = all_reduce %1 {world=2 over=tensor} : f32[4,4]\n",
         "the ranks have no axis tensor: the line mesh must name it"},
        {"mesh tensor=2\n%1 = input \"x\" : f32[4,4]+tensor\n"
         "%2 = all_reduce %1 {world=4 over=tensor} : f32[4,4]\n",
         "it is for 4 ranks, and a group has 2"},
        {"zero stage=0 world=2 micro_batches=1\n%1 = input \"x\" : f32[4,4]\n"
         "%2 = all_reduce %1 {world=2 over=data} : f32[4,4]\n",
         "ranks have the axis data alone: over=data must not be given"},
        {"mesh data=2 tensor=2\nzero stage=0 world=2 micro_batches=1\n"
         "%1 = input \"x\" : f32[4,4]\n%2 = all_reduce %1 {world=2} : f32[4,4]\n",
         "the ranks have several axes: over must name one of them"},
        {"mesh tensor=2\n%1 = input \"x\" : f32[4,4]+tensor\n%2 = accumulator : f32[4,4]\n"
         "%3 = all_reduce %1, %2 {world=2 over=tensor} : f32[4,4]\n",
         "over tensor nothing accumulates, and nothing is gathered into a bucket"},
    };
    for (size_t k = 0; k < sizeof wrong / sizeof wrong[0]; k++) {
        zf_error error = {ZF_OK, ""};
        zf_graph *g = team_parsed(t, wrong[k][0], &error);
        if (g) zf_graph_free(g);
        if (error.status == ZF_ERR_NOMEM) NEED(t, g, &error);
        if (!*error.text || !strstr(error.text, wrong[k][1]))
            test_fail(t, __FILE__, __LINE__, wrong[k][1], error.text);
    }
}

static zf_status no_call(void *self, const zf_collective *call, zf_error *error)
{
    (void)self, (void)call, (void)error;
    return ZF_ERR_COMM;
}

#define W "%1 = param \"w\" : f32[4]\noutput %1 \"y\"\n"

/* A program needs a communicator of all ranks, which does calls of groups, and a store of its mesh.
 */
TEST(mesh_needs_a_communicator_of_groups)
{
    const char *text = "mesh tensor=2\n%1 = input \"x\" : f32[4,4]\noutput %1 \"y\"\n";
    zf_error error = {ZF_OK, ""};
    zf_graph *g = team_parsed(t, text, &error);
    zf_comm comm = {.world = 3, .run = no_call};
    zf_store *store;
    zf_program *p;
    NEED(t, g, &error);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    CHECK(t, !zf_compile(g, &(zf_compile_desc){.comm = &comm}));
    if (zf_graph_status(g) == ZF_ERR_NOMEM) OK(t, zf_graph_status(g), zf_graph_error(g));
    CHECK_TEXT(t, zf_graph_error(g),
               "zf_compile: the graph is for a mesh of 2 ranks (tensor=2), the communicator "
               "(zf_compile_desc.comm) has 3");
    g = team_parsed(t, text, &error);
    NEED(t, g, &error);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    comm.world = 2;
    CHECK(t, !zf_compile(g, &(zf_compile_desc){.comm = &comm}));
    CHECK_TEXT(t, zf_graph_error(g),
               "zf_compile: the ranks are a mesh (tensor=2), and the communicator cannot do calls "
               "of groups of ranks (zf_comm.groups)");
    comm.groups = true;
    NEED(t, store = zf_store_new(&(zf_store_desc){.allocator = t->allocator, .comm = &comm}, &error),
         &error);
    test_defer(t, (test_cleanup *)zf_store_free, store);
    for (int k = 0; k < 2; k++) {
        g = team_parsed(t, k ? "mesh tensor=2\n" W : "zero stage=0 world=2 micro_batches=1\n" W, &error);
        NEED(t, g, &error);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        p = zf_compile(g, &(zf_compile_desc){.store = store});
        if (p) test_defer(t, (test_cleanup *)zf_program_free, p);
        GIVES(t, zf_graph_status(g), k ? ZF_ERR_ARGUMENT : ZF_OK, zf_graph_error(g));
    }
    CHECK_TEXT(t, zf_graph_error(g),
               "zf_compile: the ranks are a mesh of tensor=2, and those of the store one of data=2");
}
