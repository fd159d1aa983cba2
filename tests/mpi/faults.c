/* Faults of programs over zf_mpi_comm. make test-mpi runs
 *
 *     mpirun -np 4 build/mpi/faults meshes                      ranks that believe in other nodes
 *     mpirun -np 3 build/mpi/faults                             another plan, another seed, a rank
 *                                                               that does not come, fails on its
 *                                                               own, has a NaN, drifts
 *     mpirun --enable-recovery -np 3 build/mpi/faults killed    a rank is killed; of stage 3, or of
 *     mpirun --enable-recovery -np 4 build/mpi/faults killed 3 2     another; in so many nodes
 *
 * The last rank is at fault. Rank 0 prints the last line, "N passed, N failed".
 * tests/ranks/faults.c has the same in one process.
 */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { ROWS = 4, WIDTH = 40, HIDDEN = 70, WORDS = 7, IMAGE = 1 << 17 };

static void pause_for(double seconds)
{
    nanosleep(&(struct timespec){(time_t)seconds, (long)(fmod(seconds, 1) * 1e9)}, NULL);
}

/* -------------------------------------------------------------------------------------- programs
 */

typedef struct setup {
    int32_t stage;
    int64_t micro_batches;
    bool prefetch;
    size_t bucket;
    double deadline;
    uint64_t seed; /* 0: 3 */
    int32_t nodes; /* 0: 1 */
    bool mics;
} setup;

typedef struct runner {
    setup s;
    zf_comm *comm;
    zf_graph *graph;
    zf_program *program;
} runner;

/* Words and numbers through a perceptron; the loss is a mean of squares. */
static runner open_runner(const setup *s)
{
    const zf_param_desc normal = {.init = ZF_NORMAL, .std = 0.3};
    zf_error error = {ZF_OK, ""};
    runner k = {.s = *s};
    zf_graph *g = k.graph = zf_graph_new(NULL);
    zf_tensor words = zf_input(g, "words", ZF_I32, ZF_SHAPE(ROWS)),
              x = zf_input(g, "x", ZF_F32, ZF_SHAPE(ROWS, WIDTH)),
              lr = zf_input(g, "lr", ZF_F32, ZF_SCALAR), h, loss;
    h = zf_embedding(zf_param(g, "table", ZF_SHAPE(WORDS, WIDTH), &normal), words);
    h = zf_matmul(zf_add(h, x), zf_param(g, "first", ZF_SHAPE(WIDTH, HIDDEN), &normal));
    h = zf_matmul(zf_relu(h), zf_param(g, "second", ZF_SHAPE(HIDDEN, 3), &normal));
    loss = zf_scale(zf_mean(zf_mul(h, h)), 1.0 / (double)(world * s->micro_batches));
    zf_output(loss, "loss");
    zf_autograd(g, loss);
    zf_clip(g, 1);
    zf_adamw(g, lr, NULL);
    zf_zero(g, &(zf_zero_desc){.stage = s->stage,
                               .world = world,
                               .micro_batches = s->micro_batches,
                               .nodes = s->nodes,
                               .mics = s->mics,
                               .bucket_bytes = s->bucket ? s->bucket : 4096});
    if (s->prefetch) zf_prefetch(g, &(zf_training){.prefetch = {.bytes = 1 << 20}});
    k.comm = zf_mpi_comm(&(zf_mpi_desc){.deadline_seconds = s->deadline}, &error);
    if (k.comm)
        k.program =
            zf_compile(g, &(zf_compile_desc){.seed = s->seed ? s->seed : 3, .comm = k.comm});
    if (k.program) return k;
    fprintf(stderr, "rank %d: %s%s\n", rank, error.text, zf_graph_error(g));
    MPI_Abort(MPI_COMM_WORLD, 1);
    return k;
}

static void free_runner(runner *k)
{
    zf_program_free(k->program);
    zf_graph_free(k->graph);
    zf_comm_free(k->comm);
}

/* The same once all ranks are through with what has failed. */
static void close_runner(runner *k)
{
    MPI_Barrier(MPI_COMM_WORLD);
    free_runner(k);
}

/* bad: added to an input of the last rank in the first micro-batch; word: its third word there. */
static zf_status one_step(runner *k, int64_t step, float bad, int32_t word)
{
    const int64_t parts = k->s.micro_batches;
    zf_status status = ZF_OK;
    for (int64_t micro = 0; micro < parts && !status; micro++) {
        float x[ROWS * WIDTH], lr = 0.01f;
        int32_t words[ROWS];
        for (int i = 0; i < ROWS * WIDTH; i++)
            x[i] = (float)((i * 7 + rank * 11 + (int)(step * 5 + micro * 3)) % 31 - 15) / 16;
        for (int i = 0; i < ROWS; i++) words[i] = (i + rank + (int)step) % WORDS;
        if (rank == last && !micro) x[WIDTH + 3] += bad;
        if (rank == last && !micro && word) words[2] = word;
        status = zf_write(k->program, zf_graph_find(k->graph, "x"), x, sizeof x);
        if (!status)
            status = zf_write(k->program, zf_graph_find(k->graph, "words"), words, sizeof words);
        if (!status) status = zf_write(k->program, zf_graph_find(k->graph, "lr"), &lr, sizeof lr);
        if (!status) status = micro < parts - 1 ? zf_micro(k->program) : zf_step(k->program);
    }
    return status;
}

/* All parameters and states, as bytes; 0 when they cannot be read. */
static size_t image_of(runner *k, unsigned char image[IMAGE])
{
    static const char *const names[] = {
        "table",         "first",          "second",        "adamw.step",    "adamw.m/table",
        "adamw.m/first", "adamw.m/second", "adamw.v/table", "adamw.v/first", "adamw.v/second"};
    size_t at = 0;
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        zf_tensor x = zf_graph_find(k->graph, names[n]);
        size_t bytes = zf_tensor_bytes(x);
        if (at + bytes > IMAGE || zf_read(k->program, x, image + at, bytes)) return 0;
        at += bytes;
    }
    return at;
}

/* The status, and the whole text or, where the wanted one ends with "...", its beginning. */
static void check_text(const runner *k, zf_status status, zf_status wanted, const char *part,
                       const char *name)
{
    const char *text = zf_program_error(k->program);
    size_t length = strlen(part);
    char more[1400];
    bool begins = length > 3 && !strcmp(part + length - 3, "...");
    snprintf(more, sizeof more, "stage %d: '%s' (%s), not '%s' (%s)", (int)k->s.stage, text,
             zf_status_name(status), part, zf_status_name(wanted));
    check(status == wanted && (begins ? !strncmp(text, part, length - 3) : !strcmp(text, part)),
          name, more);
}

/* ---------------------------------------------------------------------------------------- faults
 */

static void another_plan(int32_t stage)
{
    setup s = {.stage = stage, .micro_batches = 1, .bucket = rank == last ? 1 << 20 : 0};
    runner k = open_runner(&s);
    char text[64];
    snprintf(text, sizeof text, "the plans of ranks %d and %d differ (...", rank,
             rank == last ? 0 : last);
    check_text(&k, one_step(&k, 0, 0, 0), ZF_ERR_MISMATCH, text, "another plan");
    close_runner(&k);
}

/* The ranks are in nodes of two, and the last one believes in one node; or, at stages 1 to 3, that
 * each node has all shards. All ranks say so before the first sum. */
static void another_mesh(int32_t stage)
{
    for (int mics = 0; mics < (stage ? 2 : 1); mics++) {
        setup s = {.stage = stage, .micro_batches = 1, .prefetch = stage & 1, .nodes = world / 2};
        const int32_t other = rank == last ? 0 : last;
        runner k;
        char text[120];
        if (rank == last) s.nodes = mics ? world / 2 : 1, s.mics = mics;
        k = open_runner(&s);
        if (mics)
            snprintf(text, sizeof text, "the plans of ranks %d and %d differ (...", rank, other);
        else
            snprintf(text, sizeof text,
                     "rank %d is one of %d in %d nodes, rank %d of as many in %d "
                     "(zf_zero_desc.nodes)",
                     rank, world, (int)s.nodes, other, rank == last ? world / 2 : 1);
        check_text(&k, one_step(&k, 0, 0, 0), ZF_ERR_MISMATCH, text, "another mesh");
        close_runner(&k);
    }
}

static void another_seed(int32_t stage)
{
    setup s = {.stage = stage, .micro_batches = 1, .seed = rank == last ? 7 : 0};
    runner k = open_runner(&s);
    char text[80];
    snprintf(text, sizeof text,
             "ranks 0 and %d differ in the seed (zf_compile_desc.seed): 3 and 7...", last);
    check_text(&k, one_step(&k, 0, 0, 0), ZF_ERR_MISMATCH, text, "another seed");
    close_runner(&k);
}

/* A parameter, or what is written to it, changes on the last rank. */
static void drift(int32_t stage)
{
    static float values[WIDTH * HIDDEN];
    const setup s = {.stage = stage, .micro_batches = 1};
    runner k = open_runner(&s);
    char text[96];
    zf_status status = one_step(&k, 0, 0, 0);
    check(!status && !zf_compare_ranks(k.program), "equal ranks", zf_program_error(k.program));
    values[7] = rank == last;
    status = zf_write(k.program, zf_graph_find(k.graph, "first"), values, sizeof values);
    check(!status, "a write", zf_program_error(k.program));
    snprintf(text, sizeof text, "ranks 0 and %d differ in %s the param \"first\" (checksums ...",
             last, stage < 3 ? "the value of" : "what was written to");
    check_text(&k, zf_compare_ranks(k.program), ZF_ERR_MISMATCH, text, "a rank that drifts");
    close_runner(&k);
}

/* The last rank makes one step, the others want two. */
static void missing_rank(int32_t stage)
{
    const setup s = {.stage = stage, .micro_batches = 1, .prefetch = stage & 1, .deadline = 0.5};
    runner k = open_runner(&s);
    char part[64];
    zf_status status = one_step(&k, 0, 0, 0);
    check(!status, "a step in which all come", zf_program_error(k.program));
    if (rank != last) status = one_step(&k, 1, 0, 0);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == last) status = one_step(&k, 1, 0, 0);
    snprintf(part, sizeof part, ": rank %d of %d did not come within 0.5 s", last, world);
    check(status == ZF_ERR_COMM && strchr(zf_program_error(k.program), '%') &&
              strstr(zf_program_error(k.program), part),
          "a rank that does not come", zf_program_error(k.program));
    close_runner(&k);
}

static void bad_index(int32_t stage)
{
    const setup s = {.stage = stage, .micro_batches = 1 + stage % 2, .prefetch = stage & 2};
    runner k = open_runner(&s);
    char theirs[64];
    snprintf(theirs, sizeof theirs, "rank %d gave up: gather_rows %%...", last);
    check_text(&k, one_step(&k, 0, 0, 99), rank == last ? ZF_ERR_ARGUMENT : ZF_ERR_COMM,
               rank == last ? "gather_rows %..." : theirs, "an index out of range");
    check(strstr(zf_program_error(k.program), "element 2 of the index is 99; it must be") != NULL,
          "its reason", zf_program_error(k.program));
    close_runner(&k);
}

/* A good step, one with a NaN or none, two good ones; what there is after each. */
static void nan_of_a_rank(int32_t stage)
{
    static unsigned char before[IMAGE], after[IMAGE], end[IMAGE], right[IMAGE];
    const setup s = {.stage = stage, .micro_batches = 1 + stage / 2, .prefetch = stage & 1};
    runner good = open_runner(&s), k = open_runner(&s);
    char text[300];
    size_t bytes = 0;
    bool fine = true;
    for (int64_t step = 0; step < 3; step++) fine = fine && !one_step(&good, step, 0, 0);
    bytes = image_of(&good, right);
    fine = fine && !one_step(&k, 0, 0, 0) && image_of(&k, before) == bytes && bytes;
    check(fine, "steps without a NaN", zf_program_error(k.program));
    snprintf(text, sizeof text,
             "rank %d: step 2: the output \"loss\" is not a finite number; parameters and states "
             "are as they were before the step (zf_compile_desc.allow_nan)",
             last);
    check_text(&k, one_step(&k, 1, NAN, 0), ZF_ERR_NAN, text, "a NaN");
    fine = image_of(&k, after) == bytes && !memcmp(before, after, bytes);
    check(fine, "a NaN changes nothing", zf_program_error(k.program));
    fine = !one_step(&k, 1, 0, 0) && !one_step(&k, 2, 0, 0) && image_of(&k, end) == bytes;
    check(fine && !memcmp(end, right, bytes), "it goes on after a NaN",
          zf_program_error(k.program));
    close_runner(&k);
    close_runner(&good);
}

/* ---------------------------------------------------------------------------------------- killed
 */

static void *killer(void *argument)
{
    (void)argument;
    pause_for(0.05);
    raise(SIGKILL);
    return NULL;
}

/* The last rank is killed while all run steps. The others can no longer agree through MPI, and
 * report to rank 0 in shared memory; it waits for at most twenty times the deadline. A rank that
 * still waits for the last one in an earlier call may be named too. In nodes, a rank that waits for
 * one that waits for the last one in another group may name that one alone (3), but not all do. */
static void killed(int32_t stage, int32_t nodes)
{
    const setup s = {
        .stage = stage, .micro_batches = 1, .prefetch = true, .deadline = 6, .nodes = nodes};
    runner k = open_runner(&s);
    MPI_Win window;
    MPI_Aint bytes;
    _Atomic int *fares; /* by rank: 1 and 3 well, 2 not; 0: it is not known yet */
    const char *text;
    char part[64];
    int unit, named = 0;
    pthread_t thread;
    zf_status status = ZF_OK;
    MPI_Win_allocate_shared(rank ? 0 : world * (MPI_Aint)sizeof *fares, sizeof *fares,
                            MPI_INFO_NULL, MPI_COMM_WORLD, &fares, &window);
    MPI_Win_shared_query(window, 0, &bytes, &unit, &fares);
    atomic_store(&fares[rank], 0);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == last && pthread_create(&thread, NULL, killer, NULL)) MPI_Abort(MPI_COMM_WORLD, 1);
    for (int64_t step = 0; !status; step++) status = one_step(&k, step, 0, 0);
    text = zf_program_error(k.program);
    snprintf(part, sizeof part, " %d of %d ", last, world);
    if (status == ZF_ERR_COMM && strchr(text, '%') && strstr(text, part)) {
        atomic_store(&fares[rank], 1);
    } else if (nodes > 1 && status == ZF_ERR_COMM && strstr(text, " over ranks ")) {
        atomic_store(&fares[rank], 3);
    } else {
        fprintf(stderr, "FAILED on rank %d: killed: '%s'\n", rank, text);
        atomic_store(&fares[rank], 2);
    }
    free_runner(&k);
    for (int r = 0; !rank && r < last; r++) {
        for (int turn = 0; turn < 2000 && !atomic_load(&fares[r]); turn++) pause_for(0.01);
        broken += atomic_load(&fares[r]) % 2 == 0;
        named += atomic_load(&fares[r]) == 1;
    }
    broken += !rank && !named;
}

int main(int argc, char **argv)
{
    int threads;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &threads);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world);
    last = world - 1;
    if (argc > 1 && !strcmp(argv[1], "killed")) {
        killed(argc > 2 ? atoi(argv[2]) : 3, argc > 3 ? atoi(argv[3]) : 1);
        ends("a rank is killed");
        _exit(total()); /* MPI_Finalize may wait for who is gone */
    }
    if (world > 2 && world % 2 == 0) {
        for (int32_t stage = 0; stage < 4; stage++) another_mesh(stage);
        ends("another mesh");
    }
    if (argc > 1 && !strcmp(argv[1], "meshes")) {
        MPI_Finalize();
        return total();
    }
    for (int32_t stage = 0; stage < 4; stage++) another_plan(stage);
    ends("another plan");
    for (int32_t stage = 0; stage < 4; stage++) another_seed(stage);
    ends("another seed");
    for (int32_t stage = 0; stage < 4; stage++) missing_rank(stage);
    ends("a missing rank");
    for (int32_t stage = 0; stage < 4; stage++) bad_index(stage);
    ends("an index out of range");
    for (int32_t stage = 0; stage < 4; stage++) nan_of_a_rank(stage);
    ends("a NaN of a rank");
    for (int32_t stage = 0; stage < 4; stage++) drift(stage);
    ends("a rank that drifts");
    MPI_Finalize();
    return total();
}
