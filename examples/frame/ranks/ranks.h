/* The ranks of a run: threads of this process, or processes that a launcher started.
 *
 *     bert pretrain --ranks 4                 mpirun -np 4 bert pretrain
 *
 *     process   rank 0, 1, 2, 3 (threads)     process 0   rank 0
 *                                             process 1   rank 1   ...
 *
 * Each rank runs one function, with its own communicator. Only rank 0 prints and writes. Ranks on
 * CPUs communicate in memory or by MPI, ranks on GPUs (one each) by NCCL. */
#ifndef RANKS_H
#define RANKS_H

#include "../../../zeroflow.h"

typedef struct rank_group_desc {
    const char *program; /* its name, for messages */
    int64_t count;       /* threads of this process; 0: the processes that a launcher has started,
                          * according to the environment, else one rank */
    double deadline;     /* seconds that ranks wait for one another */
    bool gpus;           /* each has a GPU */
    const char *rendezvous; /* where processes with GPUs find one another, HOST:PORT or a file;
                             * NULL: MASTER_ADDR and MASTER_PORT */
} rank_group_desc;

typedef struct rank_group {
    int32_t world, first, here; /* all ranks; the first of this process, and how many it has */
    int32_t nodes;              /* in which the ranks are, as many in each; 0: not known yet */
    int32_t device;             /* the GPU of the first rank; each further rank has the next */
    double deadline;            /* seconds that ranks wait for one another */
    const char *program;        /* its name, for messages */
    const char *launcher;       /* the launcher, if this process is one of several; else NULL */
    zf_local *group;            /* of threads, or NULL */
    zf_comm *comm;              /* of this process among others, or NULL */
    zf_nccl_desc *nccl;         /* of ranks with GPUs: what they share, or NULL */
} rank_group;

/* The GPU of a rank of this process. */
int32_t ranks_device(const rank_group *ranks, int32_t rank);

/* Worker threads for this process, by default: one for each processor that it may use, less where
 * several processes share these. */
int64_t ranks_processors(const rank_group *ranks);

/* False with *error, and then there is nothing to close. */
bool ranks_open(rank_group *ranks, const rank_group_desc *desc, zf_error *error);

/* Sets ranks->nodes: as asked for by the number of nodes, or of ranks in each; 0 and 0: as the
 * launcher has said, else 1. False with *error where these are not equal nodes. */
bool ranks_set_nodes(rank_group *ranks, int64_t nodes, int64_t each, zf_error *error);

/* error: why the run failed, NULL: it did not. Under MPI a failure ends all processes, here. */
void ranks_close(rank_group *ranks, const zf_error *error);

/* The work of one rank; comm is NULL if there is only one rank. False with *error. */
typedef bool rank_function(void *user, const zf_comm *comm, zf_error *error);

/* Runs it for every rank of this process, on one thread each; the first on the calling thread. If
 * one fails, the others' collectives fail too: false, with *error the first cause. */
bool ranks_run(const rank_group *ranks, rank_function *run, void *user, zf_error *error);

/* Adds a number of each rank; the result is the same on all. All ranks must call it. */
zf_status ranks_sum(const zf_comm *comm, int64_t *number, zf_error *error);

/* The same of `count` floats. */
zf_status ranks_add(const zf_comm *comm, float *numbers, int64_t count, zf_error *error);

/* What a launcher has said to this process. A process that was started alone has no launcher. */
typedef struct rank_launch {
    const char *launcher; /* NULL: this process was not started as one of several */
    int64_t rank, world;  /* then 0 and 1 */
    int64_t local;        /* its number among the processes on its host; -1: not said */
    int64_t here;         /* how many these are; 0: not said */
    const char *unclear;  /* the variable that tells it in a way that is not understood, or NULL */
    char run[256];        /* a name of the run, the same in all its processes; "": not said */
} rank_launch;
rank_launch rank_launch_of(void);

/* Ranks as processes (mpi.c). Open sets world, first, here and comm; false with *error where this
 * program was built without MPI, or where MPI does not know all `expected` processes. */
bool ranks_mpi_open(rank_group *ranks, int64_t expected, zf_error *error);
void ranks_mpi_close(rank_group *ranks, const zf_error *error);

/* Ranks with GPUs (nccl.c), in threads or, by the rendezvous, in processes. Open sets nccl; false
 * with *error where this program was built without NCCL, or where there is no rendezvous. */
bool ranks_nccl_open(rank_group *ranks, const char *rendezvous, zf_error *error);
void ranks_nccl_close(rank_group *ranks);
/* The communicator of one rank of this process, to be freed; all ranks must call. */
zf_comm *ranks_nccl_comm(const rank_group *ranks, int32_t rank, zf_error *error);

#endif
