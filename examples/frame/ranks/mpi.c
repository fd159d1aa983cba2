/* Ranks as processes, if the program is built with MPI (-DWITH_MPI). The Makefile does that where
 * there is an mpicc. */
#define _POSIX_C_SOURCE 200809L
#include "ranks.h"

#include <string.h>

/* A batch script has Slurm's variables although it is one process. */
static bool is_slurm(const rank_group *r) { return !strcmp(r->launcher, "Slurm"); }

#ifndef WITH_MPI

bool ranks_mpi_open(rank_group *r, int64_t expected, zf_error *error)
{
    error->status = ZF_ERR_COMM;
    snprintf(error->text, sizeof error->text,
             "%s started %lld processes, and this program was built without MPI: build it where "
             "there is an mpicc (Debian: libopenmpi-dev), or start one process with --ranks %lld%s",
             r->launcher, (long long)expected, (long long)expected,
             is_slurm(r) ? "; --ranks 1 trains in this process alone" : "");
    return false;
}

void ranks_mpi_close(rank_group *r, const zf_error *error) { (void)r, (void)error; }

#else

#include <mpi.h>
#include <time.h>

bool ranks_mpi_open(rank_group *r, int64_t expected, zf_error *error)
{
    int threads, world, rank;
    error->status = ZF_ERR_COMM;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &threads)) {
        snprintf(error->text, sizeof error->text, "MPI does not start");
        return false;
    }
    MPI_Comm_size(MPI_COMM_WORLD, &world);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (threads < MPI_THREAD_MULTIPLE) {
        snprintf(error->text, sizeof error->text,
                 "this MPI is not for threads (MPI_THREAD_MULTIPLE), which is needed");
    } else if (world != expected && is_slurm(r)) {
        snprintf(
            error->text, sizeof error->text,
            "Slurm's variables say %lld processes, and MPI knows %d of them: start them with srun "
            "or mpirun, or train in this process alone with --ranks 1",
            (long long)expected, world);
    } else if (world != expected) {
        snprintf(error->text, sizeof error->text,
                 "%s started %lld processes, and MPI knows %d of them: start them with its mpirun",
                 r->launcher, (long long)expected, world);
    } else {
        error->status = ZF_OK;
        r->world = world, r->first = rank;
        r->comm = zf_mpi_comm(&(zf_mpi_desc){.deadline_seconds = r->deadline}, error);
        if (r->comm) return true;
    }
    MPI_Finalize();
    return false;
}

/* Whether all processes finish within the deadline: MPI_Finalize would wait forever for a lost
 * one. */
static bool all_come(double deadline)
{
    const struct timespec pause = {0, 1000000};
    struct timespec start, t;
    MPI_Request request;
    int come = 0;
    clock_gettime(CLOCK_MONOTONIC, &start);
    if (MPI_Ibarrier(MPI_COMM_WORLD, &request)) return false;
    for (;;) {
        if (MPI_Test(&request, &come, MPI_STATUS_IGNORE)) return false;
        if (come) return true;
        clock_gettime(CLOCK_MONOTONIC, &t);
        if ((double)(t.tv_sec - start.tv_sec) + 1e-9 * (double)(t.tv_nsec - start.tv_nsec) >
            deadline)
            return false;
        nanosleep(&pause, NULL);
    }
}

void ranks_mpi_close(rank_group *r, const zf_error *error)
{
    if (!r->comm) return;
    /* Rank 0 has printed the error and ends all processes; unless it is rank 0 that is lost. */
    if (error && !all_come(r->deadline + (r->first > 0 ? 3 : 0))) {
        if (r->first == 1) fprintf(stderr, "%s: rank 1: %s\n", r->program, error->text);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    zf_comm_free(r->comm);
    MPI_Finalize();
}

#endif
