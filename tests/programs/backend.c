/* What a program asks of its backend: running sections at once, keeping their state, and checking
 * nodes. The backend is the CPU's, which has none of these, wrapped by `watch`; numbers must be the
 * CPU's.
 *
 *     micro    | ...      |   all_reduce of losses ... |     sections begin at such a sum,
 *     update   | ... |                                       and where the update begins
 */
#include "../support/test.h"

#include <pthread.h>

enum { MOST_RANKS = 3, ROWS = 6, WIDTH = 24, HIDDEN = 40, SECTIONS = 8, IMAGE = 1 << 16 };

/* What the watch of one rank has recorded. */
typedef struct watch {
    zf_backend backend, *cpu; /* self is the CPU's, since kernels expect that */
    int64_t runs, launched;   /* by run; the launches in all calls */
    int64_t kept, forgotten;
    zf_section seen[SECTIONS]; /* as they came first */
    int64_t micro[SECTIONS];   /* runs of each in a micro-batch that is not the step's first */
    int sections;
    bool changed;  /* a section had changed, or lost its kept state */
    zf_op refused; /* by check */
    int32_t checked, without_comm;
    int64_t fail_at; /* the number of a run, from 1 on; 0: none fails */
} watch;

static watch watches[MOST_RANKS];

static watch *watch_of(void *self)
{
    watch *w = watches;
    while (w->backend.self != self) w++;
    return w;
}

static zf_status watch_run(void *self, zf_section *s, zf_error *error)
{
    watch *w = watch_of(self);
    zf_status status = ZF_OK;
    int k = 0;
    while (k < w->sections && (w->seen[k].launches != s->launches || w->seen[k].first != s->first))
        k++;
    if (k == w->sections) {
        w->changed |= s->kept || k == SECTIONS;
        s->kept = malloc(1); /* for forget to free; a sanitizer finds it otherwise */
        w->kept++;
        w->seen[w->sections++ % SECTIONS] = *s;
    }
    w->changed |= s->kept != w->seen[k % SECTIONS].kept || s->last != w->seen[k % SECTIONS].last;
    w->micro[k % SECTIONS] += s->launches[s->first].run->micro > 0;
    if (++w->runs == w->fail_at) {
        error->status = ZF_ERR_BACKEND;
        snprintf(error->text, sizeof error->text, "the device is on fire");
        return error->status;
    }
    for (int32_t n = s->first; n < s->last && !status; n++, w->launched++)
        status = s->waits_for[n] >= 0 ? w->cpu->wait(self, &s->launches[s->waits_for[n]])
                                      : w->cpu->launch(self, &s->launches[n]);
    return status;
}

static void watch_forget(void *self, zf_section *s)
{
    watch *w = watch_of(self);
    free(s->kept);
    s->kept = NULL;
    w->forgotten++;
}

static zf_status watch_check(void *self, const zf_launch *l)
{
    watch *w = watch_of(self);
    w->checked++;
    w->without_comm += !l->comm;
    if (l->op != w->refused) return ZF_OK;
    l->error->status = ZF_ERR_BACKEND;
    snprintf(l->error->text, sizeof l->error->text, "%%%d: no such kernel here", (int)l->node);
    return l->error->status;
}

/* The backend of a rank; `plain`: the CPU's own. NULL out of memory. Freed by free_members. */
static zf_backend *watched(test *t, int32_t rank, bool plain)
{
    watch *w = &watches[rank];
    *w = (watch){.cpu = zf_cpu_backend(&(zf_cpu_desc){.allocator = t->allocator}, NULL)};
    if (!w->cpu) return NULL;
    w->backend = *w->cpu;
    w->backend.check = watch_check;
    w->backend.run = watch_run;
    w->backend.forget = watch_forget;
    return plain ? w->cpu : &w->backend;
}

/* --------------------------------------------------------------------------------- programs */

typedef struct setup {
    int32_t world, stage;
    int64_t micro_batches;
    bool prefetch, plain;
} setup;

/* One rank of a run. */
typedef struct member {
    const setup *s;
    int32_t rank;
    zf_graph *graph;
    zf_program *program;
    zf_status status;
    unsigned char image[IMAGE]; /* the loss of each step; parameters at the end */
    size_t bytes;
    pthread_t thread;
} member;

static member members[MOST_RANKS];
static zf_local *group;

static void free_members(void *unused)
{
    (void)unused;
    for (int r = 0; r < MOST_RANKS; r++) {
        zf_program_free(members[r].program);
        zf_backend_free(watches[r].cpu);
        watches[r].cpu = NULL, watches[r].backend.self = NULL;
        zf_graph_free(members[r].graph);
        members[r] = (member){.rank = r};
    }
    zf_local_free(group);
    group = NULL;
}

static zf_graph *build(test *t, const setup *s)
{
    const zf_param_desc normal = {.init = ZF_NORMAL, .std = 0.3};
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    zf_tensor x = zf_input(g, "x", ZF_F32, ZF_SHAPE(ROWS, WIDTH)),
              words = zf_input(g, "words", ZF_I32, ZF_SHAPE(ROWS)), h, loss;
    zf_training training;
    if (!g) return NULL;
    h = zf_add(x, zf_embedding(zf_param(g, "table", ZF_SHAPE(5, WIDTH), &normal), words));
    h = zf_gelu(zf_matmul(h, zf_param(g, "first", ZF_SHAPE(WIDTH, HIDDEN), &normal)));
    h = zf_dropout(zf_matmul(h, zf_param(g, "second", ZF_SHAPE(HIDDEN, 3), &normal)), 0.1);
    loss = zf_mean(zf_mul(h, h));
    zf_output(loss, "loss");
    training = (zf_training){.loss = loss,
                             .lr = zf_constant(g, ZF_F32, ZF_SCALAR, 0.01),
                             .fuse.without = "all",
                             .clip = 1,
                             .prefetch.bytes = s->prefetch ? 1 << 20 : 0};
    if (s->world > 1 || s->micro_batches > 1)
        training.zero = (zf_zero_desc){.stage = s->stage,
                                       .world = s->world,
                                       .micro_batches = s->micro_batches,
                                       .bucket_bytes = 4096};
    zf_passes(g, &training);
    return g;
}

static zf_status feed(member *m, int64_t step, int64_t micro)
{
    float x[ROWS * WIDTH];
    int32_t words[ROWS];
    int64_t slot = micro * m->s->world + m->rank;
    zf_status status;
    for (int i = 0; i < ROWS * WIDTH; i++)
        x[i] = (float)((i * 7 + slot * 11 + step * 5) % 31 - 15) / 16;
    for (int i = 0; i < ROWS; i++) words[i] = (int32_t)((i + slot + step) % 5);
    status = zf_write(m->program, zf_graph_find(m->graph, "x"), x, sizeof x);
    if (!status)
        status = zf_write(m->program, zf_graph_find(m->graph, "words"), words, sizeof words);
    return status;
}

static void keep(member *m, zf_tensor x)
{
    size_t bytes = zf_tensor_bytes(x);
    if (m->status || m->bytes + bytes > IMAGE) return;
    m->status = zf_read(m->program, x, m->image + m->bytes, bytes);
    m->bytes += bytes;
}

/* Runs three steps; keeps their losses, and the parameters. */
static void *train(void *argument)
{
    member *m = argument;
    for (int64_t step = 0; step < 3 && !m->status; step++) {
        for (int64_t micro = 0; micro < m->s->micro_batches && !m->status; micro++) {
            m->status = feed(m, step, micro);
            if (!m->status)
                m->status =
                    micro + 1 < m->s->micro_batches ? zf_micro(m->program) : zf_step(m->program);
        }
        keep(m, zf_graph_find(m->graph, "loss"));
    }
    for (int32_t k = 0; k < zf_param_count(m->graph); k++) keep(m, zf_param_at(m->graph, k));
    return NULL;
}

static void *one_step(void *argument)
{
    member *m = argument;
    m->status = zf_step(m->program);
    return NULL;
}

/* Compiles the ranks and trains each on a thread of its own; false: the test ends. */
static bool run(test *t, const setup *s)
{
    zf_error error = {ZF_OK, ""};
    free_members(NULL);
    if (s->world > 1) {
        group =
            zf_local_new(&(zf_local_desc){.world = s->world, .allocator = t->allocator}, &error);
        if (!group) return test_unwind(t, __FILE__, __LINE__, "group", error.status, error.text), 0;
    }
    for (int32_t r = 0; r < s->world; r++) {
        member *m = &members[r];
        zf_compile_desc d = {.seed = 4, .verify = true, .backend = watched(t, r, s->plain)};
        m->s = s;
        m->graph = d.backend ? build(t, s) : NULL;
        d.comm = group ? zf_local_comm(group, r) : NULL;
        m->program = m->graph ? zf_compile(m->graph, &d) : NULL;
        if (m->program) continue;
        test_unwind(t, __FILE__, __LINE__, "zf_compile",
                    m->graph ? zf_graph_status(m->graph) : ZF_ERR_NOMEM,
                    m->graph ? zf_graph_error(m->graph) : "");
        return false;
    }
    if (s->world == 1) train(&members[0]);
    for (int32_t r = 0; r < s->world && s->world > 1; r++)
        if (pthread_create(&members[r].thread, NULL, train, &members[r])) abort();
    for (int32_t r = 0; r < s->world && s->world > 1; r++) pthread_join(members[r].thread, NULL);
    for (int32_t r = 0; r < s->world; r++)
        if (members[r].status) {
            test_unwind(t, __FILE__, __LINE__, "train", members[r].status,
                        zf_program_error(members[r].program));
            return false;
        }
    return true;
}

/* A hash of what all ranks have. */
static uint64_t bits(int32_t world)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (int32_t r = 0; r < world; r++)
        for (size_t i = 0; i < members[r].bytes; i++)
            hash = (hash ^ members[r].image[i]) * 0x100000001b3u;
    return hash;
}

/* ------------------------------------------------------------------------------------- tests */

/* One rank: each section is one piece, of all launches, and comes back as it was. */
TEST_ONCE(backend_runs_sections)
{
    const setup of[] = {{1, 0, 1, false, false}, {1, 1, 3, false, false}, {1, 2, 2, true, false}};
    test_defer(t, free_members, NULL);
    for (int k = 0; k < 3; k++) {
        setup s = of[k];
        uint64_t expected;
        watch *w = &watches[0];
        s.plain = true;
        if (!run(t, &s)) return;
        CHECK(t, members[0].bytes > 3 * sizeof(float) && !w->runs);
        expected = bits(1);
        s.plain = false;
        if (!run(t, &s)) return;
        CHECK(t, bits(1) == expected);
        CHECK(t, w->sections == 2 && w->runs == 3 * (s.micro_batches + 1) && !w->changed);
        CHECK(t, w->seen[0].first == 0 && w->seen[0].last == w->seen[1].first);
        CHECK(t, w->micro[0] == 3 * (s.micro_batches - 1));
        CHECK(t, w->launched ==
                     3 * (s.micro_batches * w->seen[0].last + w->seen[1].last - w->seen[1].first));
        CHECK(t, w->kept == 2 && !w->forgotten);
        free_members(NULL);
        CHECK(t, w->forgotten == 2);
    }
}

/* Several ranks: a section ends before losses are summed, since the program checks them first. */
TEST_ONCE(backend_sections_of_ranks)
{
    test_defer(t, free_members, NULL);
    for (int k = 0; k < 8; k++) {
        setup s = {1 + k % 2 + 1, k % 4, 1 + k / 4, k % 3 == 1, true};
        uint64_t expected;
        if (!run(t, &s)) return;
        expected = bits(s.world);
        s.plain = false;
        if (!run(t, &s)) return;
        CHECK(t, bits(s.world) == expected);
        for (int32_t r = 0; r < s.world; r++) {
            const watch *w = &watches[r];
            const zf_launch *sum = &w->seen[1].launches[w->seen[1].first];
            CHECK(t, w->sections == 3 && w->runs == 3 * (2 * s.micro_batches + 1) && !w->changed);
            CHECK(t, sum->op == ZF_OP_all_reduce && sum->args[0].dtype == ZF_F32);
            CHECK(t, w->seen[0].first == 0 && w->seen[0].last == w->seen[1].first &&
                         w->seen[1].last == w->seen[2].first);
            CHECK(t, w->checked > 0 && !w->without_comm);
        }
        free_members(NULL);
        for (int32_t r = 0; r < s.world; r++)
            CHECK(t, watches[r].kept == 3 && watches[r].forgotten == 3);
    }
}

/* A rank with a non-finite loss is named: the loss is checked before it is summed. */
TEST_ONCE(backend_sections_and_nan)
{
    const setup s = {2, 1, 1, false, false};
    float x[ROWS * WIDTH] = {0};
    test_defer(t, free_members, NULL);
    if (!run(t, &s)) return;
    x[5] = INFINITY;
    OK(t, zf_write(members[1].program, zf_graph_find(members[1].graph, "x"), x, sizeof x), NULL);
    for (int r = 0; r < 2; r++)
        if (pthread_create(&members[r].thread, NULL, one_step, &members[r])) abort();
    for (int r = 0; r < 2; r++) pthread_join(members[r].thread, NULL);
    for (int r = 0; r < 2; r++) {
        CHECK(t, members[r].status == ZF_ERR_NAN);
        CHECK(t, strstr(zf_program_error(members[r].program), "rank 1") != NULL);
        /* The losses are there, the update has not run */
        CHECK(t, watches[r].runs == 3 * 3 + 2);
    }
}

/* With poison every launch runs alone. */
TEST(backend_poison_runs_no_sections)
{
    const setup s = {1, 0, 1, false, false};
    zf_backend *b = watched(t, 0, false);
    test_defer(t, free_members, NULL);
    NEED(t, b, NULL);
    members[0].s = &s;
    NEED(t, members[0].graph = build(t, &s), NULL);
    members[0].program =
        zf_compile(members[0].graph, &(zf_compile_desc){.backend = b, .poison = true});
    OK(t, zf_graph_status(members[0].graph), zf_graph_error(members[0].graph));
    train(&members[0]);
    OK(t, members[0].status, zf_program_error(members[0].program));
    CHECK(t, !watches[0].runs && !watches[0].kept);
}

/* A section that fails is the step's error. The next step is a step again, but after the section
 * of the updates, of which some may have been made. */
TEST(backend_section_fails)
{
    const setup s = {1, 0, 1, false, false};
    member *m = &members[0];
    test_defer(t, free_members, NULL);
    if (!run(t, &s)) return;
    for (int section = 1; section <= 2; section++) {
        watches[0].fail_at = watches[0].runs + section;
        CHECK(t, zf_step(m->program) == ZF_ERR_BACKEND);
        CHECK_TEXT(t, zf_program_error(m->program), "the device is on fire");
        CHECK(t, zf_program_step(m->program) == 2 + section);
        if (section == 1) OK(t, zf_step(m->program), zf_program_error(m->program));
    }
    CHECK(t, zf_step(m->program) == ZF_ERR_STAGE);
    CHECK(t, zf_program_step(m->program) == 4);
}

/* What the backend cannot run is the graph's error, with its name for the node. */
TEST(backend_check_refuses)
{
    const setup s = {1, 0, 1, false, false};
    zf_backend *b = watched(t, 0, false);
    zf_program *p;
    test_defer(t, free_members, NULL);
    NEED(t, b, NULL);
    watches[0].refused = ZF_OP_gelu;
    NEED(t, members[0].graph = build(t, &s), NULL);
    OK(t, zf_graph_status(members[0].graph), zf_graph_error(members[0].graph));
    p = zf_compile(members[0].graph, &(zf_compile_desc){.backend = b});
    zf_program_free(p);
    if (t->refused) OK(t, zf_graph_status(members[0].graph), zf_graph_error(members[0].graph));
    CHECK(t, !p && zf_graph_status(members[0].graph) == ZF_ERR_BACKEND);
    CHECK_TEXT(t, zf_graph_error(members[0].graph), "%8: no such kernel here");
    CHECK(t, !watches[0].runs && watches[0].checked > 1);
}
