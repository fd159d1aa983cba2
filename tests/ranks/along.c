/* Collectives along dimensions: with threads and in lockstep, against the definition; and the rules
 * about them, each with a graph that breaks it. */
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

/* ------------------------------------------------------------------------------------ exchanges */

enum { SENT = 4 * MOST_RANKS }; /* elements of the dimension that is cut */

/* Rows of ROWS dimensions of PART of each rank; then as many columns, and back. */
static void write_exchange(char text[700], int world, bool rows_first)
{
    const int all = PART * world, part = SENT / world;
    if (rows_first)
        snprintf(text, 700,
                 "mesh context=%d\n%%1 = input \"x\" : f32[%d,%d@context,%d]\n"
                 "%%2 = all_to_all %%1 {world=%d over=context dim=2 from=1} : f32[%d,%d,%d@context]\n"
                 "%%3 = scale %%2 {by=2} : f32[%d,%d,%d@context]\n"
                 "%%4 = all_to_all %%3 {world=%d over=context dim=1 from=2} : f32[%d,%d@context,%d]\n"
                 "output %%2 \"there\"\noutput %%4 \"back\"\n",
                 world, ROWS, PART, SENT, world, ROWS, all, part, ROWS, all, part, world, ROWS,
                 PART, SENT);
    else
        snprintf(text, 700,
                 "mesh context=%d\n%%1 = input \"x\" : f32[%d,%d,%d@context]\n"
                 "%%2 = all_to_all %%1 {world=%d over=context dim=0 from=2} : f32[%d@context,%d,%d]\n"
                 "%%3 = scale %%2 {by=2} : f32[%d@context,%d,%d]\n"
                 "%%4 = all_to_all %%3 {world=%d over=context dim=2 from=0} : f32[%d,%d,%d@context]\n"
                 "output %%2 \"there\"\noutput %%4 \"back\"\n",
                 world, SENT, ROWS, PART, world, part, ROWS, all, part, ROWS, all, world, SENT,
                 ROWS, PART);
}

/* Element i of a rank's part of the whole of `dims`, which is cut along a dimension: the number of
 * the element in the whole. */
static int in_whole(int i, const int dims[3], int cut, int world, int rank)
{
    int at[3], mine[3] = {dims[0], dims[1], dims[2]};
    mine[cut] /= world;
    for (int d = 3; d-- > 0; i /= mine[d]) at[d] = i % mine[d];
    at[cut] += rank * mine[cut];
    return (at[0] * dims[1] + at[1]) * dims[2] + at[2];
}

static void run_exchange(test *t, team *m, int world, bool lockstep, bool rows_first)
{
    const int rows[3] = {ROWS, PART * world, SENT}, first[3] = {SENT, ROWS, PART * world};
    const int *dims = rows_first ? rows : first, from = rows_first ? 1 : 2, to = rows_first ? 2 : 0,
              count = ROWS * PART * SENT;
    float x[ROWS * PART * SENT], got[2][ROWS * PART * SENT];
    char text[700];
    write_exchange(text, world, rows_first);
    if (!team_new(t, m, text, world, lockstep, NULL)) return;
    for (int r = 0; r < world; r++) {
        for (int i = 0; i < count; i++) x[i] = (float)in_whole(i, dims, from, world, r);
        OK(t,
           zf_write(m->programs[r], zf_graph_find(m->members[r].graph, "x"), x, sizeof x),
           zf_program_error(m->programs[r]));
    }
    team_step(t, m);
    for (int r = 0; r < world && !t->failed; r++) {
        for (int k = 0; k < 2; k++)
            OK(t,
               zf_read(m->programs[r], zf_graph_find(m->members[r].graph, k ? "back" : "there"),
                       got[k], sizeof got[k]),
               zf_program_error(m->programs[r]));
        for (int i = 0; i < count; i++) {
            CHECK(t, got[0][i] == (float)in_whole(i, dims, to, world, r));
            CHECK(t, got[1][i] == 2 * (float)in_whole(i, dims, from, world, r));
        }
    }
}

TEST_ONCE(exchanges_along_two_dimensions)
{
    for (int world = 2; world <= MOST_RANKS; world += 2)
        for (int way = 0; way < 4 && !t->failed; way++) {
            team m;
            run_exchange(t, &m, world, way & 1, way & 2);
            team_end(&m);
        }
}

TEST(exchanges_along_two_dimensions_are_checked)
{
    static const char *const wrong[][2] = {
        {"%2 = all_to_all %1 {world=2 over=context dim=3 from=0} : f32[4,8]",
         "dim 3 and from 0 of a tensor of rank 2"},
        {"%2 = all_to_all %1 {world=2 over=context from=-1} : f32[4,8]",
         "dim 0 and from -1 of a tensor of rank 2"},
        {"%2 = input \"y\" : f32[4@context,3]\n"
         "%3 = all_to_all %2 {world=2 over=context dim=1} : f32[8,1]",
         "2 ranks do not divide the 3 of dimension 1"},
        {"%2 = all_to_all %1 {world=2 over=context from=1} : f32[2@context,16]",
         "at dimension 1 of %1 the innermost axis is not context"},
        {"%2 = input \"y\" : f32[4,8]\n"
         "%3 = all_to_all %2 {world=2 over=context dim=1} : f32[8,4@context]",
         "%2 is equal on all ranks along context: there is nothing to gather"},
        {"%2 = all_to_all %1 {world=2 over=context dim=1} : f32[8@context,4]",
         "f32[8,4@context]"},
        {"%2 = all_to_all %1 {world=2 over=context dim=1} : f32[8,4@context] queue=gather\n"
         "wait %2\noutput %2 \"y\"",
         "along a dimension it runs on the queue compute, not on gather"},
        {"%2 = all_to_all %1 {world=2 over=data dim=1} : f32[8@context,4]\noutput %2 \"y\"",
         "over data the parts are flat: dim and from must not be given"},
    };
    for (size_t k = 0; k < sizeof wrong / sizeof wrong[0]; k++) {
        char text[500];
        zf_error error = {ZF_OK, ""};
        zf_graph *g;
        snprintf(text, sizeof text,
                 "mesh data=2 context=2\nzero stage=0 world=2 micro_batches=1\n"
                 "%%1 = input \"x\" : f32[4@context,8]\n%s\n",
                 wrong[k][0]);
        g = team_parsed(t, text, &error);
        if (g) zf_graph_free(g);
        if (error.status == ZF_ERR_NOMEM) NEED(t, g, &error);
        if (!strstr(error.text, wrong[k][1]) || !*error.text)
            test_fail(t, __FILE__, __LINE__, wrong[k][1], error.text);
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
