/* Ranks that run one text, as threads or in lockstep. */
#ifndef TEAM_H
#define TEAM_H
#include "../support/test.h"

#include <pthread.h>

enum { TEAM_RANKS = 8 };

typedef struct member {
    int rank;
    pthread_t thread;
    zf_graph *graph;
    zf_program *program;
    zf_comm counted; /* of a lockstep */
} member;

typedef struct team {
    int world;
    bool lockstep;
    zf_local *local;
    member members[TEAM_RANKS];
    zf_program *programs[TEAM_RANKS];
} team;

static void team_end(void *object)
{
    team *m = object;
    for (int r = 0; r < m->world; r++) zf_program_free(m->members[r].program);
    for (int r = 0; r < m->world; r++) zf_graph_free(m->members[r].graph);
    zf_local_free(m->local);
    *m = (team){.local = NULL};
}

static zf_graph *team_parsed(test *t, const char *text, zf_error *error)
{
    return zf_graph_parse(text, strlen(text), &(zf_graph_desc){.allocator = t->allocator}, error);
}

/* The text is refused with an error that has this text. */
static inline void check_parsed(test *t, const char *text, const char *expected)
{
    zf_error error = {ZF_OK, ""};
    zf_graph *g = team_parsed(t, text, &error);
    zf_graph_free(g);
    GIVES(t, error.status, ZF_ERR_PARSE, error.text);
    if (!strstr(error.text, expected)) test_fail(t, __FILE__, __LINE__, expected, error.text);
}

static zf_graph *(*team_builds)(void); /* makes the graphs of ranks in place of a text; NULL: none */

/* The rank's graph of the text, and its program; false: it has none. `change`, if there is one,
 * rewrites the graph before. */
static bool team_compile(test *t, member *m, const zf_comm *comm, const char *text,
                         zf_status (*change)(zf_graph *))
{
    zf_error error = {ZF_OK, ""};
    m->graph = team_builds ? team_builds() : team_parsed(t, text, &error);
    if (m->graph && (!change || !change(m->graph)))
        m->program = zf_compile(
            m->graph, &(zf_compile_desc){.comm = (zf_comm *)(uintptr_t)comm, .seed = 7});
    if (m->program) return true;
    test_unwind(t, __FILE__, __LINE__, "a rank of a team",
                m->graph ? zf_graph_status(m->graph) : error.status,
                m->graph ? zf_graph_error(m->graph) : error.text);
    return false;
}

/* A team whose ranks have the text; false: it is not complete. */
static bool team_new(test *t, team *m, const char *text, int world, bool lockstep,
                     zf_status (*change)(zf_graph *))
{
    zf_error error = {ZF_OK, ""};
    *m = (team){.world = world, .lockstep = lockstep};
    if (!lockstep)
        m->local =
            zf_local_new(&(zf_local_desc){.world = world, .allocator = t->allocator}, &error);
    if (!lockstep && !m->local) {
        test_unwind(t, __FILE__, __LINE__, "zf_local_new", error.status, error.text);
        return false;
    }
    for (int r = 0; r < world; r++) {
        member *one = &m->members[r];
        *one = (member){.rank = r, .counted = {.rank = r, .world = world}};
        if (!team_compile(t, one, lockstep ? &one->counted : zf_local_comm(m->local, r), text,
                          change))
            return false;
        m->programs[r] = one->program;
    }
    return true;
}

static void *team_main(void *object)
{
    member *m = object;
    zf_step(m->program);
    return NULL;
}

/* A step of all ranks. */
static inline void team_step(test *t, team *m)
{
    zf_error error = {ZF_OK, ""};
    if (m->lockstep)
        OK(t, zf_lockstep_step(&(zf_lockstep_desc){m->programs, m->world, 0}, &error), error.text);
    for (int r = 0; r < m->world && !m->lockstep; r++)
        if (pthread_create(&m->members[r].thread, NULL, team_main, &m->members[r])) abort();
    for (int r = 0; r < m->world && !m->lockstep; r++) pthread_join(m->members[r].thread, NULL);
    for (int r = 0; r < m->world; r++) CHECK_TEXT(t, zf_program_error(m->programs[r]), "");
}
#endif
