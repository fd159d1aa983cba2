/* Faults of ranks: a rank has another plan or other first values, does not come, dies in the
 * middle, fails alone, or computes a NaN. Each is a clear error on all ranks within a deadline, in
 * threads and in lockstep. After a NaN, the state is that before the step, and training can
 * continue. tests/mpi/faults.c has the same over processes. */
#include "../support/test.h"

#include <pthread.h>
#include <sys/stat.h>

enum { RANKS = 3, ROWS = 4, WIDTH = 40, HIDDEN = 70, WORDS = 7, IMAGE = 1 << 17 };

/* ---------------------------------------------------------------------------------------- a team
 */

typedef struct setup {
    int32_t stage;
    int64_t micro_batches;
    bool prefetch;
    zf_space offload; /* of the optimizer; unless it is the device, gradients are not clipped */
    bool threads; /* else lockstep */
    double deadline;
    int32_t odd_stage;  /* of rank 1, if it is not 0 */
    size_t odd_bucket;  /* of rank 1 */
    uint64_t odd_seed;  /* of rank 1, if it is not 0 */
    bool odd_nan, odd_evaluate;
    float odd_lr;         /* of rank 1, if it is not 0 */
    const char *odd_name; /* what all ranks write before the first step, rank 1 something else */
    zf_backend *device; /* of rank 1; NULL: its own */
    zf_comm *comm;      /* of rank 1; NULL: that of the group */
} setup;

typedef struct team team;

typedef struct member {
    team *team;
    int32_t rank;
    zf_graph *graph;
    zf_program *program;
    pthread_t thread;
    zf_status status; /* of the step that failed */
    unsigned char before[IMAGE], after[IMAGE], end[IMAGE];
    size_t bytes; /* of an image */
} member;

/* The ranks of a program. */
struct team {
    setup s;
    zf_local *group;
    zf_comm comms[RANKS]; /* in lockstep, where they say who is who */
    member *members;
    zf_program *programs[RANKS];
    zf_lockstep_desc lockstep;
    zf_error error; /* in lockstep */
    void (*body)(member *);
    float bad[RANKS];   /* added to the input x of a rank */
    float extra[RANKS]; /* another input, which is summed over the ranks and no more */
    int32_t word;       /* of rank 1 */
};

static void team_free(void *object)
{
    team *m = object;
    for (int r = 0; m->members && r < RANKS; r++) {
        zf_program_free(m->members[r].program);
        zf_graph_free(m->members[r].graph);
    }
    zf_local_free(m->group);
    free(m->members);
    *m = (team){.group = NULL};
}

/* Words and numbers through a perceptron; the loss is a mean of squares. */
static zf_graph *build(const setup *s, int32_t rank)
{
    const zf_param_desc normal = {.init = ZF_NORMAL, .std = 0.3};
    zf_graph *g = zf_graph_new(NULL);
    zf_tensor words = zf_input(g, "words", ZF_I32, ZF_SHAPE(ROWS)),
              x = zf_input(g, "x", ZF_F32, ZF_SHAPE(ROWS, WIDTH)),
              extra = zf_input(g, "extra", ZF_F32, ZF_SHAPE(1)),
              lr = zf_input(g, "lr", ZF_F32, ZF_SCALAR), h, loss;
    h = zf_embedding(zf_param(g, "table", ZF_SHAPE(WORDS, WIDTH), &normal), words);
    h = zf_matmul(zf_add(h, x), zf_param(g, "first", ZF_SHAPE(WIDTH, HIDDEN), &normal));
    h = zf_matmul(zf_relu(h), zf_param(g, "second", ZF_SHAPE(HIDDEN, 3), &normal));
    loss = zf_scale(zf_mean(zf_mul(h, h)), 1.0 / (double)(RANKS * s->micro_batches));
    zf_output(loss, "loss");
    zf_output(zf_sum(zf_scale(extra, 0.5)), "sum");
    zf_passes(g,
              &(zf_training){
                  .loss = loss,
                  .lr = lr,
                  .fuse.without = "all",
                  .clip = s->offload ? 0 : 1,
                  .zero = {.stage = rank == 1 && s->odd_stage ? s->odd_stage : s->stage,
                           .world = RANKS,
                           .micro_batches = s->micro_batches,
                           .bucket_bytes = rank == 1 && s->odd_bucket ? s->odd_bucket : 4096},
                  .offload.optimizer = s->offload,
                  .prefetch.bytes = s->prefetch ? 1 << 20 : 0});
    return g;
}

/* The teams of a test, freed at its end. */
static team teams[2];

static void begin(test *t)
{
    test_defer(t, team_free, &teams[0]);
    test_defer(t, team_free, &teams[1]);
}

/* Teams[n] anew. */
static team *team_new(test *t, int n, const setup *s)
{
    zf_error error = {ZF_OK, ""};
    team *m = &teams[n];
    team_free(m);
    *m = (team){.s = *s, .lockstep = {m->programs, RANKS, 0}};
    m->members = calloc(RANKS, sizeof *m->members);
    if (!m->members) return NULL;
    if (s->threads)
        m->group = zf_local_new(
            &(zf_local_desc){.world = RANKS, .deadline_seconds = s->deadline ? s->deadline : 30},
            &error);
    for (int32_t r = 0; r < RANKS; r++) {
        member *k = &m->members[r];
        zf_compile_desc d = {.seed = 3, .verify = true, .backend = r == 1 ? s->device : NULL};
        if (s->offload) d.offload_dir = test_path("offload"), mkdir(d.offload_dir, 0700);
        m->comms[r] = (zf_comm){.rank = r, .world = RANKS};
        if (r == 1 && s->odd_seed) d.seed = s->odd_seed;
        d.allow_nan = r == 1 && s->odd_nan, d.evaluate = r == 1 && s->odd_evaluate;
        d.comm = !s->threads         ? &m->comms[r]
                 : r == 1 && s->comm ? s->comm
                                     : zf_local_comm(m->group, r);
        k->team = m, k->rank = r;
        k->graph = build(s, r);
        k->program = m->programs[r] = zf_compile(k->graph, &d);
        if (k->program) continue;
        test_fail(t, __FILE__, __LINE__, "zf_compile", zf_graph_error(k->graph));
        return NULL;
    }
    return m;
}

/* The inputs of a rank for micro-batch `micro` of step `step`, the step's fault in the first. */
static zf_status feed(member *k, int64_t step, int64_t micro, bool fault)
{
    const team *m = k->team;
    zf_graph *g = k->graph;
    float x[ROWS * WIDTH], extra = 0;
    float lr = fault && k->rank == 1 && m->s.odd_lr != 0 ? m->s.odd_lr : 0.01f;
    int32_t words[ROWS];
    zf_status status;
    for (int i = 0; i < ROWS * WIDTH; i++)
        x[i] = (float)((i * 7 + k->rank * 11 + (int)(step * 5 + micro * 3)) % 31 - 15) / 16;
    for (int i = 0; i < ROWS; i++) words[i] = (i + k->rank + (int)step) % WORDS;
    if (fault && !micro) {
        x[WIDTH + 3] += m->bad[k->rank];
        extra = m->extra[k->rank];
        if (k->rank == 1 && m->word) words[2] = m->word;
    }
    status = zf_write(k->program, zf_graph_find(g, "x"), x, sizeof x);
    if (!status) status = zf_write(k->program, zf_graph_find(g, "words"), words, sizeof words);
    if (!status) status = zf_write(k->program, zf_graph_find(g, "extra"), &extra, sizeof extra);
    if (!status) status = zf_write(k->program, zf_graph_find(g, "lr"), &lr, sizeof lr);
    return status;
}

/* A step of one rank. */
static zf_status one_step(member *k, int64_t step, bool fault)
{
    const int64_t micro_batches = k->team->s.micro_batches;
    zf_status status = ZF_OK;
    for (int64_t micro = 0; micro < micro_batches && !status; micro++) {
        status = feed(k, step, micro, fault);
        if (!status)
            status = micro < micro_batches - 1 ? zf_micro(k->program) : zf_step(k->program);
    }
    return status;
}

/* A step of all ranks in lockstep. */
static zf_status all_step(team *m, int64_t step, bool fault)
{
    zf_status status = ZF_OK;
    m->error = (zf_error){ZF_OK, ""};
    for (int64_t micro = 0; micro < m->s.micro_batches && !status; micro++) {
        for (int r = 0; r < RANKS && !status; r++)
            status = feed(&m->members[r], step, micro, fault);
        if (!status)
            status = micro < m->s.micro_batches - 1 ? zf_lockstep_micro(&m->lockstep, &m->error)
                                                    : zf_lockstep_step(&m->lockstep, &m->error);
    }
    return status;
}

/* All parameters and states, as bytes. */
static bool image_of(member *k, unsigned char image[IMAGE])
{
    static const char *const names[] = {
        "table",         "first",          "second",        "adamw.step",    "adamw.m/table",
        "adamw.m/first", "adamw.m/second", "adamw.v/table", "adamw.v/first", "adamw.v/second"};
    team *m = k->team;
    k->bytes = 0;
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        zf_tensor x = zf_graph_find(k->graph, names[n]);
        size_t bytes = zf_tensor_bytes(x);
        unsigned char *to = image + k->bytes;
        if (!bytes || k->bytes + bytes > IMAGE) return false;
        if (m->s.threads ? zf_read(k->program, x, to, bytes)
                         : zf_lockstep_read(&m->lockstep, names[n], to, bytes, &m->error))
            return false;
        k->bytes += bytes;
    }
    return true;
}

static void *member_main(void *object)
{
    member *k = object;
    k->team->body(k);
    return NULL;
}

/* Runs `body` for every rank, each on a thread. */
static bool run_team(team *m, void (*body)(member *))
{
    int started = 0;
    m->body = body;
    while (started < RANKS &&
           !pthread_create(&m->members[started].thread, NULL, member_main, &m->members[started]))
        started++;
    for (int r = 0; r < started; r++) pthread_join(m->members[r].thread, NULL);
    return started == RANKS;
}

static const char *error_of(const team *m, int r)
{
    return zf_program_error(m->members[r].program);
}

/* "OP %N: MORE", where %N is a node of the plan and made by OP. */
static bool names_node(const team *m, const char *error, const char *more)
{
    size_t room = zf_graph_text(m->members[0].graph, NULL, 0) + 1;
    char *text = malloc(room), op[64], line[96];
    int node, length = 0;
    bool good = false;
    if (text && sscanf(error, "%63s %%%d: %n", op, &node, &length) == 2 && length) {
        zf_graph_text(m->members[0].graph, text, room);
        snprintf(line, sizeof line, "%%%d = %s ", node, op);
        for (char *at = text; !good && (at = strstr(at, "%")); at++) { /* without the padding */
            char found[96];
            int n;
            good = sscanf(at, "%%%d = %63s", &n, op) == 2;
            snprintf(found, sizeof found, "%%%d = %s ", n, op);
            good = good && !strcmp(found, line);
        }
        good = good && !strcmp(error + length, more);
    }
    free(text);
    return good;
}

/* --------------------------------------------------------------------------------- another plan */

static void step_body(member *k) { k->status = one_step(k, 0, true); }

static void has_another_plan(test *t, const setup *s)
{
    team *m = team_new(t, 0, s);
    if (!m) return;
    if (s->threads) CHECK(t, run_team(m, step_body));
    else CHECK(t, all_step(m, 0, false) == ZF_ERR_MISMATCH);
    for (int r = 0; r < RANKS; r++) {
        const char *text = s->threads ? error_of(m, r) : m->error.text, *end = strchr(text, ')');
        const bool odd = s->threads && r == 1;
        char before[64], after[160] = "): their graphs, or the options of the passes, are not the same";
        if (s->odd_stage)
            snprintf(after, sizeof after,
                     "): mesh data=3, ZeRO stage %d, 1 micro-batch, and mesh data=3, ZeRO stage %d, 1 "
                     "micro-batch",
                     odd ? 2 : 3, odd ? 3 : 2);
        snprintf(before, sizeof before, "the plans of ranks %d and %d differ (", s->threads ? r : 0,
                 odd ? 0 : 1);
        CHECK(t, !s->threads || m->members[r].status == ZF_ERR_MISMATCH);
        CHECK(t, !strncmp(text, before, strlen(before)));
        CHECK_TEXT(t, end ? end : text, after);
    }
}

TEST_ONCE(faults_another_plan)
{
    begin(t);
    for (int k = 0; k < 4; k++) {
        setup s = {.stage = 3, .micro_batches = 1, .threads = k < 2};
        if (k % 2) s.odd_stage = 2;
        else s.odd_bucket = 1 << 20;
        has_another_plan(t, &s);
    }
}

/* ------------------------------------------------------------------------ who begins differently
 */

/* Writes s.odd_name; with `odd`, rank 1 writes another last element than the others; of a mean of
 * Adam's, which is written in two ranges, another first one. */
static void write_odd(member *k, bool odd)
{
    static float values[RANKS][WIDTH * HIDDEN];
    const char *name = k->team->s.odd_name;
    zf_tensor x = zf_graph_find(k->graph, name ? name : "");
    size_t bytes = zf_tensor_bytes(x), count = bytes / sizeof(float);
    float *mine = values[k->rank];
    const bool ranges = name && !strncmp(name, "adamw.m", 7);
    const size_t part = count / 2 * sizeof(float);
    for (size_t i = 0; i < count; i++) mine[i] = (float)(i % 5) / 8;
    if (count) mine[ranges ? 0 : count - 1] += odd && k->rank == 1;
    k->status = ZF_OK;
    if (ranges) {
        k->status = zf_write_range(k->program, x, 0, mine, part);
        if (!k->status)
            k->status = zf_write_range(k->program, x, part, (char *)mine + part, bytes - part);
    } else if (count) k->status = zf_write(k->program, x, mine, bytes);
}

/* A first step that fails, what it says, and the same step after that without the fault. */
static void odd_body(member *k)
{
    write_odd(k, true);
    if (k->status) return;
    k->status = one_step(k, 0, true);
    snprintf((char *)k->before, IMAGE, "%s", zf_program_error(k->program));
    if (k->status != ZF_ERR_MISMATCH) return;
    write_odd(k, false);
    if (!k->status) k->status = one_step(k, 0, false);
    if (!k->status) k->status = zf_compare_ranks(k->program);
}

/* The same of all ranks in lockstep. */
static zf_status odd_lockstep(team *m)
{
    for (int r = 0; r < RANKS; r++) write_odd(&m->members[r], true);
    if (all_step(m, 0, true) != ZF_ERR_MISMATCH) return ZF_ERR_ARGUMENT;
    for (int r = 0; r < RANKS; r++)
        snprintf((char *)m->members[r].before, IMAGE, "%s", m->error.text);
    for (int r = 0; r < RANKS; r++) write_odd(&m->members[r], false);
    if (all_step(m, 0, false)) return m->error.status;
    return zf_lockstep_compare(&m->lockstep, &m->error);
}

/* The difference of ranks 0 and 1, as the error on all ranks states it; and whether they can
 * continue. */
static void begins_differently(test *t, setup s, const char *what, bool goes_on)
{
    for (int k = 0; k < 4 && !t->failed; k++) {
        team *m;
        zf_status status = ZF_OK;
        s.threads = k < 2, s.micro_batches = 1 + k % 2;
        if (!(m = team_new(t, 0, &s))) return;
        if (s.threads) CHECK(t, run_team(m, odd_body));
        else status = odd_lockstep(m);
        for (int r = 0; r < RANKS; r++) {
            const char *text = (const char *)m->members[r].before;
            if (s.threads) status = m->members[r].status;
            CHECK(t, status == (goes_on ? ZF_OK : ZF_ERR_MISMATCH));
            if (strncmp(text, "ranks 0 and 1 differ in ", 24)) CHECK_TEXT(t, text, what);
            CHECK(t, !strncmp(text + 24, what, strlen(what)));
            CHECK(t, strstr(text, "; it must be the same on all ranks"));
        }
    }
}

TEST_ONCE(faults_another_seed)
{
    begin(t);
    for (int32_t stage = 0; stage < 4; stage++) {
        begins_differently(t, (setup){.stage = stage, .odd_seed = UINT64_MAX},
                           "the seed (zf_compile_desc.seed): 3 and 18446744073709551615;", false);
        begins_differently(t, (setup){.stage = stage, .odd_nan = true},
                           "zf_compile_desc.allow_nan: 0 and 1;", false);
        begins_differently(t, (setup){.stage = stage, .odd_evaluate = true},
                           "zf_compile_desc.evaluate: 0 and 1;", false);
    }
}

TEST_ONCE(faults_other_values)
{
    static const char *const names[] = {"table", "second", "adamw.m/first", "adamw.v/second"};
    begin(t);
    for (int32_t stage = 0; stage < 4; stage++) {
        begins_differently(t, (setup){.stage = stage, .odd_lr = 0.02f},
                           "the value of the input \"lr\" (checksums ", true);
        for (int n = 0; n < 4; n++) {
            bool state = n > 1, cut = stage == 3 || (state && stage);
            char what[96];
            snprintf(what, sizeof what, "%s the %s \"%s\" (checksums ",
                     cut ? "what was written to" : "the value of", state ? "state" : "param",
                     names[n]);
            begins_differently(t, (setup){.stage = stage, .odd_name = names[n]}, what, true);
        }
    }
}

/* After good steps the memory of one rank changes. */
static void drift_body(member *k)
{
    k->status = one_step(k, 0, false);
    if (!k->status) k->status = zf_compare_ranks(k->program);
    if (!k->status) write_odd(k, true);
    if (!k->status) k->status = one_step(k, 1, false); /* no one looks */
    if (!k->status) k->status = zf_compare_ranks(k->program);
}

TEST_ONCE(faults_ranks_that_drift)
{
    static const char text[] =
        "ranks 0 and 1 differ in the value of the param \"first\" (checksums ",
                      end[] = "); it must be the same on all ranks";
    setup s = {.threads = true, .micro_batches = 1, .odd_name = "first"};
    team *m;
    begin(t);
    if (!(m = team_new(t, 0, &s))) return;
    CHECK(t, run_team(m, drift_body));
    for (int r = 0; r < RANKS; r++) {
        CHECK(t, m->members[r].status == ZF_ERR_MISMATCH);
        CHECK(t, !strncmp(error_of(m, r), text, strlen(text)) && strstr(error_of(m, r), end));
        CHECK_TEXT(t, error_of(m, r), error_of(m, 0));
    }
    s.threads = false;
    if (!(m = team_new(t, 0, &s))) return;
    CHECK(t, !all_step(m, 0, false) && !zf_lockstep_compare(&m->lockstep, NULL));
    for (int r = 0; r < RANKS; r++) write_odd(&m->members[r], true);
    CHECK(t, !all_step(m, 1, false));
    CHECK(t, zf_lockstep_compare(&m->lockstep, &m->error) == ZF_ERR_MISMATCH);
    CHECK(t, !strncmp(m->error.text, text, strlen(text)));
    CHECK(t, zf_lockstep_save(&m->lockstep, test_path("drift"), NULL, NULL) == ZF_ERR_MISMATCH);
    CHECK(t, zf_compare_ranks(NULL) == ZF_ERR_ARGUMENT);
}

/* ---------------------------------------------------------------------------- who does not come */

/* Two steps, of which rank 1 makes as many as `word` says. */
static void late_body(member *k)
{
    int32_t steps = k->rank == 1 ? k->team->word : 2;
    for (int64_t step = 0; step < steps && !k->status; step++) k->status = one_step(k, step, false);
}

TEST_ONCE(faults_a_rank_that_does_not_come)
{
    begin(t);
    for (int k = 0; k < 8; k++) {
        const setup s = {.stage = k / 2 * 3 % 4,
                         .micro_batches = 1,
                         .prefetch = k > 3,
                         .threads = true,
                         .deadline = 0.5};
        team *m = team_new(t, 0, &s);
        if (!m) return;
        m->word = k % 2; /* it comes to the first step, or to none */
        CHECK(t, run_team(m, late_body));
        CHECK(t, !m->members[1].status);
        for (int r = 0; r < RANKS; r += 2) {
            static const char more[] = "rank 1 of 3 did not come within 0.5 s";
            CHECK(t, m->members[r].status == ZF_ERR_COMM);
            if (k % 2) CHECK(t, names_node(m, error_of(m, r), more));
            else
                CHECK_TEXT(t, error_of(m, r),
                           "all_gather %0: rank 1 of 3 did not come within 0.5 s");
            CHECK_TEXT(t, error_of(m, r), error_of(m, 0));
        }
        CHECK(t, one_step(&m->members[1], 1, false) == ZF_ERR_COMM);
        CHECK_TEXT(t, error_of(m, 1), error_of(m, 0));
    }
}

TEST_ONCE(faults_a_rank_that_lockstep_lacks)
{
    const setup s = {.stage = 3, .micro_batches = 1};
    zf_program *programs[RANKS];
    zf_error error = {ZF_OK, ""};
    team *m;
    begin(t);
    if (!(m = team_new(t, 0, &s))) return;
    memcpy(programs, m->programs, sizeof programs);
    CHECK(t, zf_lockstep_step(&(zf_lockstep_desc){programs, 2, 0}, &error) == ZF_ERR_ARGUMENT);
    CHECK_TEXT(t, error.text, "lockstep: program 0 is rank 0 of 3; it must be rank 0 of 2");
    error.status = ZF_OK;
    CHECK(t, zf_lockstep_step(&(zf_lockstep_desc){programs, 0, 0}, &error) == ZF_ERR_ARGUMENT);
    CHECK_TEXT(t, error.text, "lockstep: no programs");
    error.status = ZF_OK;
    CHECK(t, zf_lockstep_read(&(zf_lockstep_desc){programs, RANKS, 0}, "first", NULL, 4, &error) ==
                 ZF_ERR_ARGUMENT);
    programs[1] = NULL;
    error.status = ZF_OK;
    CHECK(t, zf_lockstep_step(&(zf_lockstep_desc){programs, RANKS, 0}, &error) == ZF_ERR_ARGUMENT);
    CHECK_TEXT(t, error.text, "lockstep: program 1 is NULL");
}

/* ------------------------------------------------------------------------- who dies in the middle
 */

/* A communicator whose thread ends at one of its calls. */
static struct {
    zf_comm comm;
    const zf_comm *inner;
    int calls; /* that it makes */
} mortal;

static zf_status mortal_run(void *self, const zf_collective *c, zf_error *error)
{
    (void)self;
    if (!mortal.calls--) pthread_exit(NULL);
    return mortal.inner->run(mortal.inner->self, c, error);
}

static void mortal_abort(void *self, zf_status status, const char *reason)
{
    (void)self;
    mortal.inner->abort(mortal.inner->self, status, reason);
}

TEST_ONCE(faults_a_rank_that_dies)
{
    begin(t);
    for (int32_t stage = 0; stage < 4; stage++) {
        setup s = {.stage = stage, .micro_batches = 2, .threads = true, .deadline = 0.5};
        team *m;
        mortal.comm = (zf_comm){
            .rank = 1, .world = RANKS, .run = mortal_run, .abort = mortal_abort, .groups = true};
        mortal.calls = 3 + stage; /* that the meshes and plans agree, and some */
        s.comm = &mortal.comm;
        if (!(m = team_new(t, 0, &s))) return;
        mortal.inner = zf_local_comm(m->group, 1);
        CHECK(t, run_team(m, step_body));
        for (int r = 0; r < RANKS; r += 2) {
            CHECK(t, m->members[r].status == ZF_ERR_COMM);
            CHECK(t, names_node(m, error_of(m, r), "rank 1 of 3 did not come within 0.5 s"));
        }
    }
}

/* A device that is lost after some launches. */
static struct {
    zf_backend *inner, wrapped;
    int launches;
} device;

static zf_status device_launch(void *self, const zf_launch *l)
{
    if (device.launches-- > 0) return device.inner->launch(self, l);
    snprintf(l->error->text, sizeof l->error->text, "the device is gone");
    return l->error->status = ZF_ERR_BACKEND;
}

TEST_ONCE(faults_a_device_that_is_lost)
{
    zf_error error = {ZF_OK, ""};
    device.inner = zf_cpu_backend(NULL, &error);
    NEED(t, device.inner, &error);
    test_defer(t, (test_cleanup *)zf_backend_free, device.inner);
    begin(t);
    device.wrapped = *device.inner;
    device.wrapped.launch = device_launch;
    for (int k = 0; k < 16; k++) {
        const setup s = {.stage = k % 4,
                         .micro_batches = 1,
                         .prefetch = k & 4,
                         .threads = k < 8,
                         .device = &device.wrapped};
        team *m;
        device.launches = 3 + 5 * (k % 4);
        if (!(m = team_new(t, 0, &s))) return;
        if (!s.threads) {
            CHECK(t, all_step(m, 0, false) == ZF_ERR_BACKEND);
            CHECK_TEXT(t, m->error.text, "rank 1: the device is gone");
        } else {
            CHECK(t, run_team(m, step_body));
            for (int r = 0; r < RANKS; r++) {
                CHECK(t, m->members[r].status == (r == 1 ? ZF_ERR_BACKEND : ZF_ERR_COMM));
                CHECK_TEXT(t, error_of(m, r),
                           r == 1 ? "the device is gone" : "rank 1 gave up: the device is gone");
            }
        }
    }
}

/* ------------------------------------------------------------------------- who fails on its own */

static const char bad_word[] =
    "element 2 of the index is 99; it must be at least 0 and less than 7, the number of rows";

TEST_ONCE(faults_an_index_out_of_range)
{
    begin(t);
    for (int k = 0; k < 8; k++) {
        const setup s = {
            .stage = k % 4, .micro_batches = 1 + k % 2, .prefetch = k & 4, .threads = true};
        team *m = team_new(t, 0, &s);
        if (!m) return;
        m->word = 99;
        CHECK(t, run_team(m, step_body));
        CHECK(t, m->members[1].status == ZF_ERR_ARGUMENT);
        CHECK(t, names_node(m, error_of(m, 1), bad_word));
        for (int r = 0; r < RANKS; r += 2) {
            char text[512];
            snprintf(text, sizeof text, "rank 1 gave up: %.480s", error_of(m, 1));
            CHECK(t, m->members[r].status == ZF_ERR_COMM);
            CHECK_TEXT(t, error_of(m, r), text);
        }
    }
}

/* ---------------------------------------------------------------------------------------- a NaN */

/* A good step, one with the fault, two good ones; keeps the state after each. */
static void nan_body(member *k)
{
    if (one_step(k, 0, false) || !image_of(k, k->before)) return;
    k->status = one_step(k, 1, true);
    if (k->status != ZF_ERR_NAN && k->status != ZF_OK) return;
    snprintf((char *)k->end, IMAGE, "%s", zf_program_error(k->program));
    if (!image_of(k, k->after)) return;
    memmove(k->after + k->bytes, k->end, 512);
    if (k->status && one_step(k, 1, false)) return;
    if (one_step(k, 2, false)) return;
    image_of(k, k->end);
}

/* The same for all ranks in lockstep, kept by rank 0. */
static zf_status nan_lockstep(team *m)
{
    member *k = m->members;
    if (all_step(m, 0, false) || !image_of(k, k->before)) return m->error.status;
    k->status = all_step(m, 1, true);
    snprintf((char *)k->after + k->bytes, 512, "%s", m->error.text);
    if (k->status && strcmp(m->error.text, error_of(m, 0))) return ZF_ERR_MISMATCH;
    m->error.status = ZF_OK;
    if (!image_of(k, k->after)) return m->error.status;
    if (k->status && all_step(m, 1, false)) return m->error.status;
    if (all_step(m, 2, false)) return m->error.status;
    return image_of(k, k->end) ? ZF_OK : m->error.status;
}

typedef struct spoiled {
    float bad[RANKS], extra[RANKS];
    const char *rank, *output; /* that are named */
} spoiled;

static void has_nan(test *t, const setup *s, const spoiled *fault)
{
    team *good = team_new(t, 0, s), *m = team_new(t, 1, s);
    char text[512];
    if (!good || !m) return;
    memcpy(m->bad, fault->bad, sizeof m->bad);
    memcpy(m->extra, fault->extra, sizeof m->extra);
    if (s->threads) CHECK(t, run_team(good, nan_body) && run_team(m, nan_body));
    else CHECK(t, !nan_lockstep(good) && !nan_lockstep(m));
    snprintf(text, sizeof text,
             "%sstep 2: the output \"%s\" is not a finite number; parameters and states are as "
             "they were before the step (zf_compile_desc.allow_nan)",
             fault->rank, fault->output);
    for (int r = 0; r < (s->threads ? RANKS : 1); r++) {
        const member *k = &m->members[r], *right = &good->members[r];
        CHECK(t, !right->status && k->status == ZF_ERR_NAN);
        CHECK_TEXT(t, (const char *)k->after + k->bytes, text);
        CHECK(t, k->bytes == right->bytes && k->bytes > 3 * 4 * WIDTH * HIDDEN);
        CHECK(t, !memcmp(k->before, k->after, k->bytes));
        CHECK(t, memcmp(k->before, k->end, k->bytes));
        CHECK(t, !memcmp(k->end, right->end, k->bytes));
        CHECK(t, zf_program_step(k->program) == 3);
    }
}

static void has_nans(test *t, bool threads)
{
    static const spoiled faults[] = {
        {{0, 0, NAN}, {0}, "rank 2: ", "loss"},
        {{INFINITY, 0, 0}, {0}, "rank 0: ", "loss"},
        {{0, 1e30f, NAN}, {0}, "rank 1: ", "loss"}, /* its square is not finite */
        {{0}, {0, NAN, 0}, "rank 1: ", "sum"},
        {{0}, {3e38f, 3e38f, 3e38f}, "", "sum"}, /* their sum is not finite */
    };
    enum { FAULTS = sizeof faults / sizeof *faults };
    for (int k = 0; k < 4 * FAULTS && !t->failed; k++) {
        const setup s = {.stage = k % 4,
                         .micro_batches = 1 + k / 2 % 2,
                         .prefetch = k % 3,
                         .offload = (zf_space)(k / 3 % ZF_SPACES),
                         .threads = threads};
        has_nan(t, &s, &faults[k % FAULTS]);
    }
}

TEST_ONCE(faults_nan_threads)
{
    begin(t);
    has_nans(t, true);
}

TEST_ONCE(faults_nan_lockstep)
{
    begin(t);
    has_nans(t, false);
}
