/* Ranks as processes, where the program is built with MPI (-DBERT_MPI): the Makefile links it into
 * build/bert where there is an mpicc. */
#define _POSIX_C_SOURCE 200809L
#include "ranks.h"

#ifndef BERT_MPI

bool bert_mpi_open(bert_ranks *r, const char *launcher, int64_t expected, zf_error *error)
{
    (void)r;
    error->status = ZF_ERR_COMM;
    snprintf(error->text, sizeof error->text,
             "%s started %lld processes, and this program was built without MPI: build it where "
             "there is an mpicc (Debian: libopenmpi-dev), or start one process with --ranks %lld",
             launcher, (long long)expected, (long long)expected);
    return false;
}

void bert_mpi_close(bert_ranks *r, const zf_error *error) { (void)r, (void)error; }

#else

#include <mpi.h>
#include <time.h>

bool bert_mpi_open(bert_ranks *r, const char *launcher, int64_t expected, zf_error *error)
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
    } else if (world != expected) {
        snprintf(error->text, sizeof error->text,
                 "%s started %lld processes, and MPI knows %d of them: start them with its mpirun",
                 launcher, (long long)expected, world);
    } else {
        error->status = ZF_OK;
        r->world = world, r->first = rank;
        r->comm = zf_mpi_comm(&(zf_mpi_desc){.deadline_seconds = r->deadline}, error);
        if (r->comm) return true;
    }
    MPI_Finalize();
    return false;
}

/* Where ranks are lost MPI_Finalize would wait for them: rank 0, which has said why, ends all. The
 * others give it the time to, and do it when it does not come. */
void bert_mpi_close(bert_ranks *r, const zf_error *error)
{
    struct timespec patience = {(time_t)r->deadline + 1, 0};
    if (!r->comm) return;
    if (error && r->first > 0) {
        nanosleep(&patience, NULL);
        fprintf(stderr, "bert: rank %d: %s\n", (int)r->first, error->text);
    }
    if (error) MPI_Abort(MPI_COMM_WORLD, 1);
    zf_comm_free(r->comm);
    MPI_Finalize();
}

#endif
