/* Tests that processes run together. Each process is a rank; a check holds when it holds on all of
 * them, and a test passes when all its checks do. Rank 0 prints what failed and the last line. */
#ifndef CHECK_H
#define CHECK_H

#include "../../zeroflow.h"

#include <mpi.h>

static int rank, world, last;
static long passed, failed, broken;

/* A check, by all ranks. `more`: details, if it does not hold on this rank. */
static inline void check(bool holds, const char *name, const char *more)
{
    int mine = holds, all = 0;
    if (!holds) fprintf(stderr, "FAILED on rank %d of %d: %s: %s\n", rank, world, name, more);
    MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    broken += !all;
}

/* Ends a test; the next one begins. */
static inline void ends(const char *name)
{
    if (!rank) printf("%s %s\n", broken ? "FAILED" : "ok", name);
    broken ? failed++ : passed++;
    broken = 0;
}

/* The program's exit status. */
static inline int total(void)
{
    if (!rank) printf("%ld passed, %ld failed\n", passed, failed);
    fflush(stdout);
    return !rank && failed != 0;
}

#endif
