/* Teams of ranks in layouts, which train a small model, save it and load it. */
#ifndef LAYOUTS_H
#define LAYOUTS_H
#include "checkpoint_files.h"
#include "../cut/small_models.h"
#include "../ranks/team.h"

#include "../../examples/llm/model.h"

enum { MOST = 1 << 15 };

/* How ranks share a run; `pipe` is the slowest axis, and tensor the fastest, after context. `expert`
 * of the ranks along data share experts; 0: none do, and `context` ranks share sequences; 0: 1. */
typedef struct layout {
    int pipe, data, tensor, stage, expert, context;
} layout;

static const layout *now; /* of change */
static zf_training how;   /* of it, besides */
static int parts_of_step; /* a multiple of ranks along data */
static zf_space stages_in; /* where ranks along pipe have their parameters */

static zf_status change(zf_graph *g)
{
    zf_training t = how;
    t.loss = zf_graph_find(g, "loss"), t.lr = zf_graph_find(g, "lr");
    t.tensor = now->tensor, t.stages.ranks = now->pipe, t.expert = now->expert;
    t.context = now->context;
    t.zero.world = now->data, t.zero.stage = now->stage;
    if (now->pipe > 1) t.offload.parameters = stages_in;
    t.zero.micro_batches = parts_of_step / now->data, t.zero.sum = ZF_SUM_PARTS;
    return zf_passes(g, &t);
}

/* The text of a model; the caller frees it. */
static inline char *text_of(const zf_causal_config *c)
{
    zf_graph *g = zf_graph_new(NULL);
    char *text;
    size_t size;
    if (!g) abort();
    llm_build(g, c, &(sample_shape){.batch = 1, .sequence = TOKENS}, SAMPLE_TRAIN);
    size = zf_graph_text(g, NULL, 0) + 1;
    if (!(text = malloc(size))) abort();
    zf_graph_text(g, text, size);
    zf_graph_free(g);
    return text;
}

static struct {
    const char *load, *save; /* NULL: not */
    int first, count;        /* steps */
} task;                      /* of each rank */

/* Ranks that have the same part of the batch, at one stage. */
static int ranks_of_part(const layout *l) { return l->tensor * (l->context ? l->context : 1); }

static void *run_rank(void *object)
{
    member *m = object;
    zf_store *store = zf_program_store(m->program);
    const int parts = parts_of_step / now->data, data = m->rank / ranks_of_part(now) % now->data;
    if (task.load && zf_load(store, task.load, NULL)) return NULL;
    for (int step = task.first; step < task.first + task.count; step++)
        for (int k = 0; k < parts; k++) {
            feed(m->graph, m->program, k * now->data + data, step);
            if (k + 1 < parts ? zf_micro(m->program) : zf_step(m->program)) return NULL;
        }
    if (task.save) zf_save(store, task.save, NULL);
    return NULL;
}

/* A team of threads, whose allocator is not the one of the test, which one thread may call. */
static void gather(test *t, team *m, const char *text, int world, zf_status (*pass)(zf_graph *))
{
    const zf_allocator counts = t->allocator;
    t->allocator = (zf_allocator){.user = NULL};
    team_new(t, m, text, world, false, pass);
    t->allocator = counts;
}

/* What a rank has sent over each axis is what its plan says. */
static void check_sent(test *t, const zf_program *p)
{
    const zf_program_info info = zf_program_info_of(p);
    CHECK(t, !task.count ||
                 !memcmp(info.counted_over, info.plan.traffic_over, sizeof info.counted_over));
}

/* What ranks in this layout do. The team remains. */
static void run(test *t, team *m, const char *text, const layout *l)
{
    now = l;
    gather(t, m, text, l->pipe * l->data * ranks_of_part(l), change);
    for (int r = 0; r < m->world && !t->failed; r++)
        if (pthread_create(&m->members[r].thread, NULL, run_rank, &m->members[r])) abort();
    for (int r = 0; r < m->world && !t->failed; r++) pthread_join(m->members[r].thread, NULL);
    for (int r = 0; r < m->world && !t->failed; r++) {
        CHECK_TEXT(t, zf_program_error(m->programs[r]), "");
        CHECK_TEXT(t, zf_store_error(zf_program_store(m->programs[r])), "");
        check_sent(t, m->programs[r]);
    }
}

/* Compares all parameters and states of two stores of one rank. */
static inline void compare(test *t, zf_store *a, zf_store *b)
{
    static char x[8 * MOST], y[8 * MOST];
    CHECK(t, zf_store_count(a) == zf_store_count(b) && zf_store_count(a) > 20);
    for (int32_t k = 0; k < zf_store_count(a) && !t->failed; k++) {
        const zf_stored s = zf_store_at(a, k);
        const size_t bytes = (size_t)zf_shape_count(s.shape) * zf_dtype_size(s.dtype);
        CHECK(t, bytes <= sizeof x);
        OK(t, zf_store_read(a, s.name, x, bytes), zf_store_error(a));
        OK(t, zf_store_read(b, s.name, y, bytes), zf_store_error(b));
        if (memcmp(x, y, bytes)) test_fail(t, __FILE__, __LINE__, s.name, "other bits");
    }
}

/* Ranks in each layout load what those in the one before have saved, take a step and save; ranks in
 * the layout `one`, each of which has all values, have the bits of a run that was never
 * interrupted. */
static inline void check_chain(test *t, const char *text, const layout *chain, int count,
                               const layout *one)
{
    static char at[2][300];
    static team whole, some, last;
    test_defer(t, team_end, &whole);
    test_defer(t, team_end, &last);
    for (int k = 0; k < count && !t->failed; k++) {
        snprintf(at[k % 2], sizeof at[0], "%s", test_path(k % 2 ? "layouts-1" : "layouts-0"));
        task.load = k ? at[(k + 1) % 2] : NULL, task.save = at[k % 2];
        task.first = k, task.count = 1;
        run(t, &some, text, &chain[k]);
        team_end(&some);
    }
    task.load = at[(count + 1) % 2], task.save = NULL, task.count = 0;
    if (!t->failed) run(t, &last, text, one);
    task.load = NULL, task.first = 0, task.count = count;
    if (!t->failed) run(t, &whole, text, one);
    if (t->failed) return;
    compare(t, zf_program_store(whole.programs[0]), zf_program_store(last.programs[0]));
    team_end(&last);
    team_end(&whole);
}

#endif
