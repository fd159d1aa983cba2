/* Ranks of a pipeline that are late, with the bits of others. One that stalls within a step: all
 * others end with an error that names it, and says in which task of which stage they waited. Ranks
 * that disagree about mesh or schedule say what each has. */
#define _POSIX_C_SOURCE 200809L
static const char of_another[] = "of the pipeline, and this rank is of stage",
                  of_others[] = "of the pipeline, and rank";
#include "staged.h"

#include <stdatomic.h>
#include <time.h>

enum { PIPE = 4, MICRO = 6 };

/* The communicator of a rank that stalls in a send, until all others have ended. */
typedef struct stalling {
    zf_comm comm;
    const zf_comm *of;
    int sends, at; /* made so far; the one in which it stalls, -1: in none */
    unsigned seed; /* of the times by which sends are late; 0: they are not */
} stalling;

static atomic_int ended; /* ranks that do not stall */

static zf_status stall_run(void *self, const zf_collective *c, zf_error *error)
{
    stalling *s = self;
    const bool stalls = c->op == ZF_OP_send && s->sends++ == s->at;
    if (s->seed) {
        s->seed = s->seed * 1103515245 + 12345;
        nanosleep(&(struct timespec){.tv_nsec = s->seed >> 16 & 0x7ffff}, NULL);
    }
    while (stalls && atomic_load(&ended) < PIPE - 1)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return s->of->run(s->of->self, c, error);
}

static void stall_abort(void *self, zf_status status, const char *reason)
{
    const stalling *s = self;
    s->of->abort(s->of->self, status, reason);
}

typedef struct stalled {
    const member *m;
    bool stalls;
    zf_status status;
    char said[600];
} stalled;

static void *step_of_rank(void *object)
{
    stalled *r = object;
    for (int k = 0; k < MICRO && !r->status; k++) {
        fill(r->m, 0, k);
        r->status = k + 1 < MICRO ? zf_micro(r->m->program) : zf_step(r->m->program);
    }
    snprintf(r->said, sizeof r->said, "%s", zf_program_error(r->m->program));
    if (!r->stalls) atomic_fetch_add(&ended, 1);
    return NULL;
}

static void has(test *t, const stalled *r, const char *part)
{
    if (!strstr(r->said, part)) test_fail(t, __FILE__, __LINE__, part, r->said);
}

/* The ranks of a way, with communicators of their own; false: they are not complete. */
static bool open_ranks(test *t, team *m, const made *way, double deadline, stalling comms[PIPE],
                       stalled ranks[PIPE])
{
    const zf_local_desc d = {.world = PIPE, .deadline_seconds = deadline};
    char text[TEXT];
    *m = (team){.world = PIPE};
    write_model(text);
    making = way;
    if (!(m->local = zf_local_new(&d, NULL))) abort();
    for (int r = 0; r < PIPE; r++) {
        const zf_comm *of = zf_local_comm(m->local, r);
        stalling *s = &comms[r];
        *s = (stalling){.comm = *of, .of = of, .at = -1};
        s->comm.self = s, s->comm.run = stall_run, s->comm.abort = stall_abort;
        m->members[r] = (member){.rank = r};
        if (!team_compile(t, &m->members[r], &s->comm, text, to_stages)) return false;
        ranks[r] = (stalled){.m = &m->members[r]};
    }
    return true;
}

static void run_threads(team *m, stalled *ranks, void *(*body)(void *))
{
    for (int r = 0; r < m->world; r++)
        if (pthread_create(&m->members[r].thread, NULL, body, &ranks[r])) abort();
    for (int r = 0; r < m->world; r++) pthread_join(m->members[r].thread, NULL);
}

/* Rank `which` stalls in its send number `at`. */
static void stall(test *t, const made *way, int which, int at)
{
    static stalling comms[PIPE];
    static stalled ranks[PIPE];
    char late[80];
    team m;
    atomic_store(&ended, 0);
    snprintf(late, sizeof late, ": rank %d of %d did not come within 0.3 s; task ", which, PIPE);
    if (open_ranks(t, &m, way, 0.3, comms, ranks)) {
        comms[which].at = at, ranks[which].stalls = true;
        run_threads(&m, ranks, step_of_rank);
    }
    for (int r = 0; r < PIPE && !t->failed && !t->unwound; r++) {
        CHECK(t, ranks[r].status == ZF_ERR_COMM);
        has(t, &ranks[r], "send %"), has(t, &ranks[r], late), has(t, &ranks[r], " of stage ");
    }
    if (!which && !at && !t->failed) has(t, &ranks[1], "; task F 0 0 of stage 0");
    team_end(&m);
}

/* A rank of each stage, in its first send or within the step. */
TEST_ONCE(stage_faults_name_rank_and_task)
{
    static const char *const kinds[] = {"1f1b", "zb-v"};
    for (int k = 0; k < 2; k++)
        for (int which = 0; which < PIPE && !t->failed; which++) {
            const made way = {.passes = "autograd %94; simplify; sgd lr",
                              .zero = "stage=0",
                              .schedule = kinds[k],
                              .pipe = PIPE,
                              .data = 1,
                              .micro = MICRO};
            stall(t, &way, which, k == which % 2 ? 0 : 5);
        }
}

/* ----------------------------------------------------------------------------- ranks that are late */

/* A step of all ranks, whose sends come late by times that follow from a seed; 0: they do not. out:
 * the loss, and a parameter of the last layer. */
static void late_step(test *t, const made *way, int seed, float out[2][WIDTH * WIDTH])
{
    static stalling comms[PIPE];
    static stalled ranks[PIPE];
    team m;
    if (open_ranks(t, &m, way, 60, comms, ranks)) {
        for (int r = 0; r < PIPE; r++) comms[r].seed = (unsigned)(seed * (r + 1));
        run_threads(&m, ranks, step_of_rank);
    }
    for (int r = 0; r < m.world && !t->failed && !t->unwound; r++) {
        const member *x = &m.members[r];
        CHECK_TEXT(t, ranks[r].said, "");
        zf_read(x->program, zf_graph_find(x->graph, "loss"), out[0], sizeof(float));
        zf_read(x->program, zf_graph_find(x->graph, "h.7.w"), out[1], sizeof out[1]);
    }
    team_end(&m);
}

/* Threads meet in another order each time, and the bits are the same. */
TEST_ONCE(stage_faults_of_ranks_that_are_late)
{
    static const char *const kinds[] = {"1f1b", "zb-h1", "zb-v"};
    static float first[2][WIDTH * WIDTH], late[2][WIDTH * WIDTH];
    for (int k = 0; k < 3 && !t->failed; k++) {
        const made way = {.passes = "autograd %94; simplify; sgd lr",
                          .zero = "stage=0",
                          .schedule = kinds[k],
                          .pipe = PIPE,
                          .data = 1,
                          .micro = MICRO};
        late_step(t, &way, 0, first);
        CHECK(t, first[0][0] > 0 && first[1][0] != 0);
        for (int seed = 1; seed < 4 && !t->failed; seed++) {
            late_step(t, &way, seed, late);
            CHECK(t, !memcmp(first, late, sizeof first));
        }
    }
}

/* ---------------------------------------------------------------------------- ranks that disagree */

static void *try_step(void *object)
{
    stalled *r = object;
    r->status = zf_step(r->m->program);
    snprintf(r->said, sizeof r->said, "%s", zf_program_error(r->m->program));
    return NULL;
}

/* All ranks have the first way and text, but the last one, which has the second. Each names
 * both. */
static void disagree(test *t, int world, const made ways[2], const char *const texts[2],
                     const char *const says[2])
{
    static stalled ranks[PIPE];
    team m = {.world = world};
    int count = 0;
    if (!(m.local = zf_local_new(&(zf_local_desc){.world = world}, NULL))) abort();
    for (; count < world; count++) {
        const int way = count == world - 1;
        making = &ways[way];
        m.members[count] = (member){.rank = count};
        if (!team_compile(t, &m.members[count], zf_local_comm(m.local, count), texts[way],
                          making->passes ? to_stages : NULL))
            break;
        ranks[count] = (stalled){.m = &m.members[count]};
        for (int k = 0; k < making->micro; k++) {
            fill(&m.members[count], 0, k);
            if (k + 1 < making->micro) zf_micro(m.members[count].program);
        }
    }
    if (count == world) run_threads(&m, ranks, try_step);
    for (int r = 0; r < world && count == world; r++) {
        const int own = r == world - 1;
        char both[300];
        snprintf(both, sizeof both, "): %s, and %s", says[own], says[!own]);
        CHECK(t, ranks[r].status == ZF_ERR_MISMATCH);
        has(t, &ranks[r], both);
    }
    team_end(&m);
}

TEST_ONCE(stage_faults_of_ranks_that_disagree)
{
    static const char passes[] = "autograd %94; simplify; sgd lr",
                      f1b[] = "mesh pipe=2 data=2, schedule 1f1b, ZeRO stage 0, 4 micro-batches",
                      gpipe[] = "mesh pipe=2 data=2, schedule gpipe, ZeRO stage 0, 4 micro-batches",
                      four[] = "mesh pipe=4, schedule 1f1b, ZeRO stage 0, 4 micro-batches";
    const made two = {.passes = passes, .zero = "stage=0", .pipe = 2, .data = 2, .micro = 4};
    made ways[2] = {two, two};
    char text[TEXT];
    write_model(text);
    ways[1].schedule = "gpipe";
    disagree(t, 4, ways, (const char *const[]){text, text}, (const char *const[]){f1b, gpipe});
    ways[1] = two, ways[1].pipe = 4, ways[1].data = 1;
    disagree(t, 4, ways, (const char *const[]){text, text}, (const char *const[]){f1b, four});
}

TEST_ONCE(stage_faults_of_ranks_with_other_sections)
{
    static const char format[] =
        "mesh tensor=2\n%%1 = input \"x\" : f32[4,8@tensor]\n"
        "%%2 = param \"w\" {init=normal b=0.5} : f32[8,8@tensor]\n"
        "%%3 = linear %%1, %%2 {sections=%d wide=true} : f32[4,8]+tensor\n"
        "%%4 = all_reduce %%3 {world=2 over=tensor order=tree} : f32[4,8]\noutput %%4 \"y\"\n";
    const made none[2] = {{.data = 1, .micro = 1}, {.data = 1, .micro = 1}};
    char texts[2][400];
    for (int k = 0; k < 2; k++) snprintf(texts[k], sizeof texts[k], format, k ? 4 : 2);
    disagree(t, 2, none, (const char *const[]){texts[0], texts[1]},
             (const char *const[]){"mesh tensor=2, sections of 2, ZeRO stage 0, 1 micro-batch",
                                   "mesh tensor=2, sections of 4, ZeRO stage 0, 1 micro-batch"});
}
