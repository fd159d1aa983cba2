/* The operator send: what each rank along pipe has, with threads and in lockstep; its text and
 * hash; its bytes; and what is refused. */
#include "team.h"

enum { WIDTH = 300, MOST = 8 };

typedef struct ranks_of {
    const char *mesh, *zero;
    int world, pipe, stride; /* of the axis */
} ranks_of;

static const ranks_of all_ranks[] = {
    {"pipe=4", "", 4, 4, 1},
    {"pipe=3 data=2", "zero stage=0 world=2 micro_batches=1\n", 6, 3, 2},
    {"tensor=2 pipe=4", "", 8, 4, 1}};

/* %2 is sent downwards from the last rank, %3 from there on. */
static void write_sends(char text[1000], const ranks_of *r, int from, int to)
{
    snprintf(text, 1000,
             "mesh %s\n%s%%1 = input \"x\" : f32[%d]~pipe\n"
             "%%2 = scale %%1 {by=2} : f32[%d]~pipe\n"
             "%%3 = send %%2 {world=%d over=pipe from=%d to=%d} : f32[%d]~pipe\n"
             "%%4 = add %%3, %%1 : f32[%d]~pipe\n"
             "%%5 = send %%4 {world=%d over=pipe from=%d to=%d} : f32[%d]~pipe\n"
             "output %%3 \"one\"\noutput %%5 \"two\"\n",
             r->mesh, r->zero, WIDTH, WIDTH, r->pipe, from, to, WIDTH, WIDTH, r->pipe, to, from,
             WIDTH);
}

static float x_at(int rank, int i) { return (float)(rank * 1000 + i); }

/* The rank at a place along pipe, otherwise as `rank`. */
static int rank_at(const ranks_of *r, int rank, int place)
{
    return rank + (place - rank / r->stride % r->pipe) * r->stride;
}

static float one_at(const ranks_of *r, int rank, int from, int to, int i)
{
    const int place = rank / r->stride % r->pipe;
    return 2 * x_at(place == to ? rank_at(r, rank, from) : rank, i);
}

static void check_rank(test *t, const member *m, const ranks_of *r, int from, int to)
{
    const int place = m->rank / r->stride % r->pipe;
    const int source = place == from ? rank_at(r, m->rank, to) : m->rank;
    const zf_program_info info = zf_program_info_of(m->program);
    const zf_moved *moved = &info.plan.traffic_over[ZF_OVER_PIPE].send;
    float one[WIDTH], two[WIDTH];
    OK(t, zf_read(m->program, zf_graph_find(m->graph, "one"), one, sizeof one),
       zf_program_error(m->program));
    OK(t, zf_read(m->program, zf_graph_find(m->graph, "two"), two, sizeof two),
       zf_program_error(m->program));
    for (int i = 0; i < WIDTH; i++) {
        CHECK(t, one[i] == one_at(r, m->rank, from, to, i));
        CHECK(t, two[i] == one_at(r, source, from, to, i) + x_at(source, i));
    }
    CHECK(t, moved->calls == 2);
    CHECK(t, moved->bytes == (size_t)((place == from) + (place == to)) * sizeof one);
    CHECK(t, !memcmp(info.counted_over, info.plan.traffic_over, sizeof info.counted_over));
}

static void run_sends(test *t, const ranks_of *r, int from, int to, bool lockstep)
{
    char text[1000], again[1000];
    float x[WIDTH];
    team m;
    write_sends(text, r, from, to);
    if (team_new(t, &m, text, r->world, lockstep, NULL)) {
        zf_graph_text(m.members[0].graph, again, sizeof again);
        CHECK(t, strstr(again, from ? "over=pipe from=" : "over=pipe to="));
        for (int k = 0; k < r->world; k++) {
            for (int i = 0; i < WIDTH; i++) x[i] = x_at(k, i);
            zf_write(m.programs[k], zf_graph_find(m.members[k].graph, "x"), x, sizeof x);
        }
        team_step(t, &m);
        for (int k = 0; k < r->world && !t->failed; k++) check_rank(t, &m.members[k], r, from, to);
    }
    team_end(&m);
}

TEST_ONCE(send_moves_a_value_from_rank_to_rank)
{
    for (int lockstep = 0; lockstep < 2; lockstep++)
        for (int k = 0; k < 3; k++)
            for (int from = 0; from < 3; from++)
                for (int to = 0; to < 3 && !t->failed; to++)
                    if (from != to) run_sends(t, &all_ranks[k], from, to, lockstep);
}

static zf_graph *parsed(test *t, const char *line, zf_error *error)
{
    char text[1000];
    snprintf(
        text, sizeof text,
        "mesh pipe=2 tensor=2\n%%1 = input \"x\" : f32[4]~pipe\n%%2 = input \"y\" : f32[4@pipe]\n"
        "%%3 = input \"z\" : f32[4]+pipe\n%%4 = input \"e\" : f32[4@tensor]\n%s",
        line);
    return team_parsed(t, text, error);
}

/* What is equal on all ranks stays so, and what is cut over another axis; the ends are in the
 * hash. */
TEST(send_has_the_type_of_its_operand)
{
    static const char *const lines[] = {"%5 = send %4 {world=2 over=pipe to=1} : f32[4@tensor]\n",
                                        "%5 = send %1 {world=2 over=pipe to=1} : f32[4]~pipe\n",
                                        "%5 = send %1 {world=2 over=pipe from=1} : f32[4]~pipe\n"};
    uint64_t hashes[3];
    for (int k = 0; k < 3; k++) {
        zf_error error = {ZF_OK, ""};
        char again[1000];
        zf_graph *g = parsed(t, lines[k], &error);
        NEED(t, g, &error);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        zf_graph_text(g, again, sizeof again);
        CHECK(t, strstr(again, lines[k]));
        hashes[k] = zf_graph_hash(g);
    }
    CHECK(t, hashes[1] != hashes[2]);
}

TEST(send_is_refused_where_it_has_no_meaning)
{
    static const char *const wrong[][2] = {
        {"%5 = send %1 {world=2 over=tensor to=1} : f32[4]~pipe\n",
         "a send is over=pipe, not over=tensor"},
        {"%5 = send %1 {world=2 to=1} : f32[4]~pipe\n", "a send is over=pipe, not over=all"},
        {"%5 = send %1 {world=2 over=pipe from=1 to=1} : f32[4]~pipe\n",
         "from=1 to=1 are no two ranks of 2 along pipe"},
        {"%5 = send %1 {world=2 over=pipe to=2} : f32[4]~pipe\n",
         "from=0 to=2 are no two ranks of 2 along pipe"},
        {"%5 = send %1 {world=2 over=pipe from=-1 to=1} : f32[4]~pipe\n",
         "from=-1 to=1 are no two ranks of 2 along pipe"},
        {"%5 = send %1 {world=3 over=pipe to=1} : f32[4]~pipe\n",
         "it is for 3 ranks, and a group has 2"},
        {"%5 = send %1 {world=2 over=pipe to=1} : f32[4]\n",
         "the operands of send give f32[4]~pipe"},
        {"%5 = send %2 {world=2 over=pipe to=1} : f32[4@pipe]\n",
         "%2 is cut over pipe: a rank has a part of it, and none to send"},
        {"%5 = send %3 {world=2 over=pipe to=1} : f32[4]+pipe\n", "over pipe"},
        {"%6 = send %5 {world=2 over=pipe to=1} : f32[4]~pipe\n%5 = neg %1 : f32[4]~pipe\n",
         "%5 is not defined above"},
        {"%5 = send %1 {world=2 over=pipe to=1} : f32[4]~pipe\ngradient %1, %5\n", ""}};
    for (size_t k = 0; k < sizeof wrong / sizeof wrong[0]; k++) {
        zf_error error = {ZF_OK, ""};
        zf_graph *g = parsed(t, wrong[k][0], &error);
        if (g) zf_graph_free(g);
        if (error.status == ZF_ERR_NOMEM) OK(t, error.status, error.text);
        CHECK(t, !g);
        if (!strstr(error.text, wrong[k][1]))
            test_fail(t, __FILE__, __LINE__, wrong[k][1], error.text);
    }
}

/* Without a mesh there is no pipe, and without a communicator no other rank. */
TEST(send_needs_the_ranks_that_it_names)
{
    static const char *const text = "%1 = input \"x\" : f32[4]\n"
                                    "%2 = send %1 {world=2 over=pipe to=1} : f32[4]\n";
    zf_error error = {ZF_OK, ""};
    zf_graph *g = team_parsed(t, text, &error);
    if (error.status == ZF_ERR_NOMEM) OK(t, error.status, error.text);
    CHECK(t, !g && strstr(error.text, "the ranks have no axis pipe: the line mesh must name it"));
}
