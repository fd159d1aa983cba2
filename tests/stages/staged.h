/* A small model whose layers are dealt to ranks along pipe, and steps of all ranks. Needs
 * `of_another` and `of_others`, the errors of a parameter that a rank does not have. */
#ifndef STAGED_H
#define STAGED_H
#include "../ranks/team.h"

#include "../../tools/pass.h"

enum { STEPS = 3, ROWS = 4, WIDTH = 8, LAYERS = 8, TEXT = 8000 };

static int layers_here = LAYERS; /* of the model, at most LAYERS */

/* Embedding and head are one parameter; each layer has a residual. */
static void write_model(char text[TEXT])
{
    int at = snprintf(text, TEXT,
                      "%%1 = input \"x\" : f32[4,8]\n%%2 = input \"y\" : f32[4,8]\n"
                      "%%3 = input \"lr\" : f32[]\n"
                      "%%4 = param \"wte\" {init=normal b=0.5} : f32[8,8]\n"
                      "%%5 = linear %%1, %%4 : f32[4,8]\n"),
        id = 6, x = 5;
    for (int l = 0; l < layers_here; l++, x = id - 1)
        at += snprintf(text + at, (size_t)(TEXT - at),
                       "%%%d = param \"h.%d.w\" {init=normal b=0.5} : f32[8,8]\n"
                       "%%%d = param \"h.%d.b\" : f32[8]\n"
                       "%%%d = linear %%%d, %%%d, %%%d : f32[4,8]\n%%%d = tanh %%%d : f32[4,8]\n"
                       "%%%d = dropout %%%d {p=0.25 stream=%d} : f32[4,8]\n"
                       "%%%d = add %%%d, %%%d : f32[4,8]\n",
                       id, l, id + 1, l, id + 2, x, id, id + 1, id + 3, id + 2, id + 4, id + 3,
                       l + 1, id + 5, id + 4, x),
            id += 6;
    snprintf(text + at, (size_t)(TEXT - at),
             "%%90 = linear %%%d, %%4 : f32[4,8]\n%%91 = sub %%90, %%2 : f32[4,8]\n"
             "%%92 = mul %%91, %%91 : f32[4,8]\n%%93 = reshape %%92 {shape=[32]} : f32[32]\n"
             "%%94 = sum %%93 : f32[]\noutput %%94 \"loss\"\n",
             x);
}

/* How a step is made; then come stages, and zero where it has a text. */
typedef struct made {
    const char *passes, *zero, *layers, *then; /* then: after zero */
    const char *schedule;                      /* "zb-v", perhaps " chunks=2"; NULL: 1f1b */
    int pipe, data, micro;                     /* ranks along the axes, micro-batches */
    bool by_parts; /* values are those of the part of the batch, whatever the ranks are */
} made;

static const made *making;

static zf_status to_stages(zf_graph *g)
{
    const made *m = making;
    char passes[300], message[600];
    int at = snprintf(passes, sizeof passes, "%s; stages ranks=%d%s%s%s%s", m->passes, m->pipe,
                      m->layers ? " layers=" : "", m->layers ? m->layers : "",
                      m->schedule ? " schedule=" : "", m->schedule ? m->schedule : "");
    if (m->zero)
        snprintf(passes + at, sizeof passes - (size_t)at, "; zero %s world=%d micro_batches=%d%s",
                 m->zero, m->data, m->micro, m->then ? m->then : "");
    if (pass_run(g, passes, NULL, message, sizeof message) == PASS_DONE) return ZF_OK;
    return zf_graph_status(g) ? zf_graph_status(g) : ZF_ERR_ARGUMENT;
}

typedef struct after {
    float values[1 + 2 * LAYERS][WIDTH * WIDTH], losses[STEPS];
} after;

/* What a rank has after its steps. */
typedef struct rank_after {
    member *m;
    after *a;
    int had; /* parameters */
    char said[300];
} rank_after;

static const char *name_of(char name[32], int k)
{
    if (!k) return "wte";
    snprintf(name, 32, "h.%d.%c", (k - 1) / 2, "wb"[(k - 1) % 2]);
    return name;
}

/* x and y, by the rank's place along data, the faster axis. */
static void values_of(float x[2][ROWS * WIDTH], int rank, int step, int micro)
{
    int data = rank % making->data;
    if (making->by_parts) data = micro * making->data + data, micro = 0;
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < ROWS * WIDTH; i++)
            x[k][i] = (float)((i * 7 + k * 5 + step * 3 + data * 11 + micro * 2) % 19) / 8 - 1;
}

static void fill(const member *m, int step, int micro)
{
    float x[2][ROWS * WIDTH];
    const float lr = 0.05f;
    values_of(x, m->rank, step, micro);
    zf_write(m->program, zf_graph_find(m->graph, "x"), x[0], sizeof x[0]);
    zf_write(m->program, zf_graph_find(m->graph, "y"), x[1], sizeof x[1]);
    zf_write(m->program, zf_graph_find(m->graph, "lr"), &lr, sizeof lr);
}

/* Reads what the rank has; what it does not have is an error that names the stages. */
static void read_rank(rank_after *r, after *a)
{
    for (int k = 0; k < 1 + 2 * layers_here; k++) {
        char name[32];
        const zf_tensor x = zf_graph_find(r->m->graph, name_of(name, k));
        const bool has = !zf_read(r->m->program, x, a->values[k], zf_tensor_bytes(x));
        const char *why = zf_program_error(r->m->program);
        r->had += has;
        if (!has && !strstr(why, of_another) && !strstr(why, of_others))
            snprintf(r->said, sizeof r->said, "%s: %.200s", name_of(name, k), why);
    }
}

static void *steps_of_rank(void *object)
{
    rank_after *r = object;
    zf_status status = ZF_OK;
    for (int step = 0; step < STEPS && !status; step++) {
        for (int k = 0; k < making->micro && !status; k++) {
            fill(r->m, step, k);
            status = k + 1 < making->micro ? zf_micro(r->m->program) : zf_step(r->m->program);
        }
        if (!status)
            status = zf_read(r->m->program, zf_graph_find(r->m->graph, "loss"), &r->a->losses[step],
                             sizeof(float));
    }
    if (status) snprintf(r->said, sizeof r->said, "%.250s", zf_program_error(r->m->program));
    else read_rank(r, r->a);
    return NULL;
}

/* Each parameter is on one stage, on all of its ranks; losses are the same on all ranks; bytes are
 * those that were planned. */
static void check_ranks(test *t, const rank_after *ranks, after *all)
{
    const int world = making->pipe * making->data;
    int had = 0;
    *all = *ranks[0].a;
    for (int r = 0; r < world; r++) {
        const zf_program_info info = zf_program_info_of(ranks[r].m->program);
        CHECK_TEXT(t, ranks[r].said, "");
        CHECK(t, info.allocated[ZF_DEVICE] + info.shared[ZF_DEVICE] ==
                     info.plan.spaces[ZF_DEVICE].peak_bytes);
        had += ranks[r].had;
        CHECK(t, !memcmp(ranks[r].a->losses, ranks[0].a->losses, sizeof all->losses));
        CHECK(t, !memcmp(info.counted_over, info.plan.traffic_over, sizeof info.counted_over));
        for (int k = 0; k < 1 + 2 * layers_here; k++)
            if (*ranks[r].a->values[k] != 0)
                memcpy(all->values[k], ranks[r].a->values[k], sizeof all->values[k]);
    }
    CHECK(t, had == making->data * (1 + 2 * layers_here));
}

/* Steps of all ranks; true where all went well. `peaks`: the bytes of each. */
static inline bool run_ranks(test *t, const made *way, after *all, size_t peaks[TEAM_RANKS])
{
    static after each[TEAM_RANKS];
    rank_after ranks[TEAM_RANKS];
    const int world = way->pipe * way->data;
    char text[TEXT];
    team m;
    write_model(text);
    making = way;
    memset(each, 0, sizeof each);
    if (team_new(t, &m, text, world, false, to_stages)) {
        for (int r = 0; r < world; r++) {
            ranks[r] = (rank_after){.m = &m.members[r], .a = &each[r]};
            peaks[r] = zf_program_info_of(m.programs[r]).plan.spaces[ZF_DEVICE].peak_bytes;
            if (pthread_create(&m.members[r].thread, NULL, steps_of_rank, &ranks[r])) abort();
        }
        for (int r = 0; r < world; r++) pthread_join(m.members[r].thread, NULL);
        check_ranks(t, ranks, all);
    }
    team_end(&m);
    return !t->failed && !t->unwound;
}
#endif
