/* The ranks of a run: threads of this process, or processes that mpirun started.
 *
 *     bert pretrain --ranks 4                 mpirun -np 4 bert pretrain
 *
 *     process   rank 0, 1, 2, 3 (threads)     process 0   rank 0
 *                                             process 1   rank 1   ...
 *
 * Each rank runs one function, with the communicator of that rank. Rank 0 alone speaks and writes.
 */
#ifndef BERT_RANKS_H
#define BERT_RANKS_H

#include "../../zeroflow.h"

typedef struct bert_ranks {
    int32_t world, first, here; /* ranks in all; of this process, from which on and how many */
    double deadline;            /* seconds that they wait for one another */
    zf_local *group;            /* of threads, or NULL */
    zf_comm *comm;              /* of this process among others, or NULL */
} bert_ranks;

/* ranks: as threads of this process; 0: the processes that a launcher has started, by what it left
 * in the environment, else one rank. False with *error, and then there is nothing to close. */
bool bert_ranks_open(bert_ranks *ranks, int64_t count, double deadline, zf_error *error);

/* error: why the run failed, NULL: it did not. Under MPI a failure ends all processes, here. */
void bert_ranks_close(bert_ranks *ranks, const zf_error *error);

/* What one rank does; comm is NULL where there is only one in all. False with *error. */
typedef bool bert_rank_function(void *user, const zf_comm *comm, zf_error *error);

/* Runs it for every rank of this process, each on a thread of its own but for the first. Where one
 * fails the others' collectives fail as well; false, with *error the cause and not its echoes. */
bool bert_ranks_run(const bert_ranks *ranks, bert_rank_function *run, void *user, zf_error *error);

/* A number of each rank, added: the same on all. All ranks must call. */
zf_status bert_ranks_sum(const zf_comm *comm, int64_t *number, zf_error *error);

/* The launcher that started this process as one of several, or NULL; *rank is which. */
const char *bert_launcher(int64_t *rank, int64_t *world);

/* Ranks as processes (mpi.c). Open sets world, first, here and comm; false with *error where this
 * program was built without MPI, or where MPI does not know all `expected` processes. */
bool bert_mpi_open(bert_ranks *ranks, const char *launcher, int64_t expected, zf_error *error);
void bert_mpi_close(bert_ranks *ranks, const zf_error *error);

#endif
