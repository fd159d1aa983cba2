/* Collectives along a dimension: with threads and in lockstep, against the definition; and the
 * rules about their shards, each with a graph that breaks it. */
#include "team.h"

enum { MOST_RANKS = 4, ROWS = 3, PART = 2, INNER = 2, MOST = ROWS * PART * MOST_RANKS * INNER };

/* Element i of x on a rank; small integers, whose sums are exact. */
static float x_at(int rank, int i) { return (float)((rank + 1) * 100 + i); }

static void write_text(char text[700], int world)
{
    const int all = PART * world;
    snprintf(text, 700,
             "zero stage=0 world=%d micro_batches=1\n"
             "%%1 = input \"x\" : f32[%d,%d,%d]\n"
             "%%2 = input \"y\" : f32[%d,%d,%d]\n"
             "%%3 = all_gather %%1 {world=%d dim=1} : f32[%d,%d,%d]\n"
             "%%4 = reduce_scatter %%2 {world=%d dim=1} : f32[%d,%d,%d]\n"
             "%%5 = scale %%4 {by=2} : f32[%d,%d,%d]\n"
             "%%6 = all_gather %%5 {world=%d dim=1} : f32[%d,%d,%d]\n"
             "output %%3 \"gathered\"\noutput %%6 \"sum\"\n",
             world, ROWS, PART, INNER, ROWS, all, INNER, world, ROWS, all, INNER, world, ROWS,
             PART, INNER, ROWS, PART, INNER, world, ROWS, all, INNER);
}

static void fill(const member *m)
{
    float x[MOST];
    for (int k = 0; k < 2; k++) {
        const zf_tensor to = zf_graph_find(m->graph, k ? "y" : "x");
        for (int i = 0; i < MOST; i++) x[i] = x_at(m->rank, i);
        zf_write(m->program, to, x, zf_tensor_bytes(to));
    }
}

/* Both results of a rank are what the definition says. */
static void check_results(test *t, const member *m, int world)
{
    const int all = PART * world;
    float got[2][MOST];
    for (int k = 0; k < 2; k++) {
        const zf_tensor of = zf_graph_find(m->graph, k ? "sum" : "gathered");
        OK(t, zf_read(m->program, of, got[k], zf_tensor_bytes(of)), zf_program_error(m->program));
    }
    for (int i = 0; i < ROWS * all * INNER; i++) {
        const int row = i / (all * INNER), at = i / INNER % all, inner = i % INNER;
        float sum = 0;
        for (int r = 0; r < world; r++) sum += x_at(r, i);
        CHECK(t, got[0][i] == x_at(at / PART, (row * PART + at % PART) * INNER + inner));
        CHECK(t, got[1][i] == 2 * sum);
    }
}

static void run_team(test *t, team *m, int world, bool lockstep)
{
    char text[700];
    write_text(text, world);
    if (!team_new(t, m, text, world, lockstep, NULL)) return;
    for (int r = 0; r < world; r++) fill(&m->members[r]);
    team_step(t, m);
    for (int r = 0; r < world && !t->failed; r++) check_results(t, &m->members[r], world);
}

TEST_ONCE(collectives_along_a_dimension)
{
    for (int world = 2; world <= MOST_RANKS; world++)
        for (int lockstep = 0; lockstep < 2 && !t->failed; lockstep++) {
            team m;
            run_team(t, &m, world, lockstep);
            team_end(&m);
        }
}

TEST(collectives_along_a_dimension_are_checked)
{
    static const char *const wrong[][2] = {
        {"%2 = all_gather %1 {world=2 dim=2} : f32[4,8]", "dim 2 of a tensor of rank 2"},
        {"%2 = all_gather %1 {world=2 dim=-1} : f32[4,8]", "dim -1 of a tensor of rank 2"},
        {"%2 = reduce_scatter %1 {world=2 dim=3} : f32[4,4]", "dim 3 of a tensor of rank 2"},
        {"%2 = accumulator : f32[4,4]\n%3 = reduce_scatter %1, %2 {world=2 dim=1} : f32[4,4]",
         "operand 1 is flat: what is put there has no dim"},
        {"%2 = input \"y\" : f32[4,3]\n%3 = reduce_scatter %2 {world=2 dim=1} : f32[4,1]",
         "2 ranks do not divide the 3 of dimension 1"},
        {"%2 = all_gather %1 {world=2 dim=1} : f32[4,16] queue=gather\nwait %2\n"
         "output %2 \"y\"",
         "along a dimension it runs on the queue compute, not on gather"},
        {"%2 = reduce_scatter %1 {world=2 dim=1} : f32[4,4]\n"
         "%3 = all_gather %2 {world=2} : f32[32]\noutput %3 \"y\"",
         "%2 is a shard along dimension 1: pieces of it must be along that"},
        {"%2 = reduce_scatter %1 {world=2} : f32[16]\n"
         "%3 = reshape %2 {shape=[4,4]} : f32[4,4]\n"
         "%4 = all_gather %3 {world=2 dim=1} : f32[4,8]\noutput %4 \"y\"",
         "%3 is a shard along dimension 0: pieces of it must be along that"},
        {"%2 = reduce_scatter %1 {world=2 dim=1} : f32[4,4]\noutput %2 \"y\"",
         "%2 is this rank's shard alone"},
        {"%2 = state \"s\" : f32[4,4]\n%3 = reduce_scatter %1 {world=2 dim=1} : f32[4,4]\nupdate:\n"
         "%4 = assign %2, %3 : f32[4,4]",
         "%3 is a shard along a dimension, and what is written is flat"},
    };
    for (size_t k = 0; k < sizeof wrong / sizeof wrong[0]; k++) {
        char text[500];
        zf_error error = {ZF_OK, ""};
        zf_graph *g;
        snprintf(text, sizeof text,
                 "zero stage=0 world=2 micro_batches=1\n%%1 = input \"x\" : f32[4,8]\n%s\n",
                 wrong[k][0]);
        g = team_parsed(t, text, &error);
        if (g) zf_graph_free(g);
        if (error.status == ZF_ERR_NOMEM) NEED(t, g, &error);
        if (!strstr(error.text, wrong[k][1]) || !*error.text)
            test_fail(t, __FILE__, __LINE__, wrong[k][1], error.text);
    }
}
