/* A pipeline over zf_mpi_comm, of which a rank is killed in a send:
 *
 *     mpirun --enable-recovery -np 4 build/mpi/stages RANK SEND SCHEDULE
 *
 * RANK is killed in its send number SEND, 0 the first, by the schedule of this number
 * (zf_pipe_kind). All others end with an error that names it, and the task in which they waited.
 * Rank 0 prints the last line, "N passed, N failed"; where it is the one that is killed, rank 1.
 * tests/stages/stage_faults.c has the same in one process. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { ROWS = 4, WIDTH = 8, LAYERS = 8, MICRO = 8 };

static const zf_comm *mpi;
static int sends_left; /* of the rank that is killed, before it is */

static zf_status run_or_die(void *self, const zf_collective *c, zf_error *error)
{
    if (c->op == ZF_OP_send && sends_left-- == 0) raise(SIGKILL);
    return mpi->run(self, c, error);
}

/* Layers with residuals; a loss that is a mean of squares. */
static zf_tensor build(zf_graph *g)
{
    const zf_param_desc normal = {.init = ZF_NORMAL, .std = 0.3};
    zf_tensor x = zf_input(g, "x", ZF_F32, ZF_SHAPE(ROWS, WIDTH));
    for (int l = 0; l < LAYERS; l++) {
        char name[16];
        snprintf(name, sizeof name, "h.%d.w", l);
        x = zf_add(x, zf_tanh(zf_matmul(x, zf_param(g, name, ZF_SHAPE(WIDTH, WIDTH), &normal))));
    }
    return zf_output(zf_mean(zf_mul(x, x)), "loss");
}

static zf_program *compile(zf_graph *g, zf_pipe_kind kind, zf_comm *comm)
{
    zf_training t = {.loss = build(g),
                     .optimizer = ZF_SGD,
                     .stages = {.ranks = world, .schedule.kind = kind},
                     .zero = {.world = 1, .micro_batches = MICRO}};
    zf_program *p =
        zf_passes(g, &t) ? NULL : zf_compile(g, &(zf_compile_desc){.comm = comm, .seed = 3});
    if (p) return p;
    fprintf(stderr, "rank %d: %s\n", rank, zf_graph_error(g));
    MPI_Abort(MPI_COMM_WORLD, 1);
    return NULL;
}

static zf_status one_step(zf_graph *g, zf_program *p)
{
    float x[ROWS * WIDTH], lr = 0.01f;
    zf_status status = zf_write(p, zf_graph_find(g, "lr"), &lr, sizeof lr);
    for (int k = 0; k < MICRO && !status; k++) {
        for (int i = 0; i < ROWS * WIDTH; i++) x[i] = (float)((i * 7 + k) % 31 - 15) / 16;
        status = zf_write(p, zf_graph_find(g, "x"), x, sizeof x);
        if (!status) status = k + 1 < MICRO ? zf_micro(p) : zf_step(p);
    }
    return status;
}

/* How ranks fare, in memory that all see: 1 well, 2 not, 0 it is not known yet. */
static _Atomic int *open_fares(void)
{
    _Atomic int *fares;
    MPI_Win window;
    MPI_Aint bytes;
    int unit;
    MPI_Win_allocate_shared(rank ? 0 : world * (MPI_Aint)sizeof *fares, sizeof *fares,
                            MPI_INFO_NULL, MPI_COMM_WORLD, &fares, &window);
    MPI_Win_shared_query(window, 0, &bytes, &unit, &fares);
    atomic_store(&fares[rank], 0);
    MPI_Barrier(MPI_COMM_WORLD);
    return fares;
}

int main(int argc, char **argv)
{
    const int dies = argc > 1 ? atoi(argv[1]) : 0, at = argc > 2 ? atoi(argv[2]) : 0,
              kind = argc > 3 ? atoi(argv[3]) : 0;
    zf_error error = {ZF_OK, ""};
    zf_comm *comm, wrapped;
    _Atomic int *fares;
    const char *text;
    char part[64];
    int threads;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &threads);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world);
    last = world - 1;
    fares = open_fares();
    mpi = comm = zf_mpi_comm(&(zf_mpi_desc){.deadline_seconds = 4}, &error);
    if (!comm) MPI_Abort(MPI_COMM_WORLD, 1);
    wrapped = *comm, wrapped.run = run_or_die, wrapped.destroy = NULL;
    sends_left = rank == dies ? at : -1;
    zf_graph *g = zf_graph_new(NULL);
    zf_program *p = compile(g, (zf_pipe_kind)kind, &wrapped);
    const zf_status status = one_step(g, p);
    text = zf_program_error(p);
    snprintf(part, sizeof part, "rank %d of %d ", dies, world);
    if (status == ZF_ERR_COMM && strstr(text, "send %") && strstr(text, part) &&
        strstr(text, "; task ") && strstr(text, " of stage "))
        atomic_store(&fares[rank], 1);
    else {
        fprintf(stderr, "FAILED on rank %d: '%s'\n", rank, text);
        atomic_store(&fares[rank], 2);
    }
    if (rank != (dies ? 0 : 1)) _exit(0);
    rank = 0; /* it prints */
    for (int r = 0; r < world; r++) {
        for (int turn = 0; turn < 8000 && r != dies && !atomic_load(&fares[r]); turn++)
            nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        broken += r != dies && atomic_load(&fares[r]) != 1;
    }
    snprintf(part, sizeof part, "stage %d is killed in its send %d", dies, at);
    ends(part);
    _exit(total()); /* MPI_Finalize may wait for who is gone */
}
