/* What launchers tell of nodes (examples/frame/ranks/ranks.c). */
#define _POSIX_C_SOURCE 200809L
#include "../../examples/frame/ranks/ranks.h"
#include "../support/test.h"

#include <stdlib.h>

static const char *const known[] = {
    "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS",
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS",
    "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_STEP_NUM_NODES",
    "SLURM_NNODES", "PMIX_NAMESPACE", "PMI_JOBID", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID",
    "SLURM_STEP_ID"};

static void forget(void *unused)
{
    (void)unused;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) unsetenv(known[i]);
}

/* Sets NAME=VALUE. */
static void set(test *t, const char *text)
{
    char name[64];
    const char *equals = strchr(text, '=');
    snprintf(name, sizeof name, "%.*s", (int)(equals - text), text);
    CHECK(t, !setenv(name, equals + 1, 1));
}

#define MPI     "OMPI_COMM_WORLD_RANK=4", "OMPI_COMM_WORLD_SIZE=6"
#define TORCH   "RANK=4", "WORLD_SIZE=6", "LOCAL_RANK=0"
#define SLURM   "SLURM_PROCID=4", "SLURM_NTASKS=6", "SLURM_LOCALID=0"
#define UNCLEAR "from which no equal nodes of the 6 ranks follow"

TEST_ONCE(launchers_tell_the_nodes)
{
    static const struct {
        const char *set[6];
        int nodes; /* 0: an error, that says */
        const char *says;
    } rows[] = {
        {{MPI, "OMPI_COMM_WORLD_LOCAL_RANK=0", "OMPI_COMM_WORLD_LOCAL_SIZE=2"}, 3, ""},
        {{MPI}, 1, ""},
        {{MPI, "OMPI_COMM_WORLD_LOCAL_SIZE=two"}, 0, "OMPI_COMM_WORLD_LOCAL_SIZE to 'two', " UNCLEAR},
        {{MPI, "OMPI_COMM_WORLD_LOCAL_SIZE=4"}, 0, "mpirun has 4 of the 6 ranks on this host"},
        {{"PMI_RANK=1", "PMI_SIZE=6", "MPI_LOCALRANKID=1", "MPI_LOCALNRANKS=3"}, 2, ""},
        {{"PMI_RANK=1", "PMI_SIZE=6", "MPI_LOCALNRANKS=-3"}, 0, "MPI_LOCALNRANKS to '-3', " UNCLEAR},
        {{TORCH, "LOCAL_WORLD_SIZE=2"}, 3, ""},
        {{TORCH, "LOCAL_WORLD_SIZE=6x"}, 0, "torchrun has set LOCAL_WORLD_SIZE to '6x', " UNCLEAR},
        {{TORCH, "LOCAL_WORLD_SIZE=3"}, 0, "and rank 4 as number 0 of them"},
        {{SLURM, "SLURM_STEP_TASKS_PER_NODE=2(x3)", "SLURM_TASKS_PER_NODE=6"}, 3, ""},
        {{SLURM, "SLURM_TASKS_PER_NODE=2,2(x2)"}, 3, ""},
        {{SLURM, "SLURM_TASKS_PER_NODE=6"}, 1, ""},
        {{SLURM, "SLURM_TASKS_PER_NODE=4,2"}, 0, "SLURM_TASKS_PER_NODE to '4,2', " UNCLEAR},
        {{SLURM, "SLURM_TASKS_PER_NODE=2(x2)"}, 0, "to '2(x2)', " UNCLEAR},
        {{SLURM, "SLURM_TASKS_PER_NODE=2(x3"}, 0, "to '2(x3', " UNCLEAR},
        {{SLURM, "SLURM_TASKS_PER_NODE=2(x99999999999999999999)"}, 0, UNCLEAR},
        {{SLURM, "SLURM_TASKS_PER_NODE=2,"}, 0, "to '2,', " UNCLEAR},
        {{SLURM, "SLURM_TASKS_PER_NODE="}, 0, "to '', " UNCLEAR},
        {{SLURM, "SLURM_STEP_NUM_NODES=3", "SLURM_NNODES=6"}, 3, ""},
        {{SLURM, "SLURM_NNODES=3"}, 3, ""},
        {{SLURM, "SLURM_NNODES=4"}, 0, "SLURM_NNODES to '4', " UNCLEAR},
        {{SLURM}, 1, ""},
    };
    test_defer(t, forget, (void *)(uintptr_t)known);
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
        rank_group r = {.world = 6};
        zf_error error = {ZF_OK, ""};
        bool good;
        forget(NULL);
        for (int i = 0; i < 6 && rows[n].set[i]; i++) set(t, rows[n].set[i]);
        r.launcher = rank_launch_of().launcher;
        CHECK(t, r.launcher);
        good = ranks_set_nodes(&r, 0, 0, &error);
        if (good ? r.nodes != rows[n].nodes : rows[n].nodes || !strstr(error.text, rows[n].says))
            test_fail(t, __FILE__, __LINE__, rows[n].says, error.text);
        CHECK(t, ranks_set_nodes(&r, 3, 0, &error) && r.nodes == 3); /* what is asked for counts */
    }
}

/* Processes of one run have one name of it, by which they know one another. */
TEST_ONCE(launchers_name_the_run)
{
    static const struct {
        const char *set[6], *run;
    } rows[] = {
        {{MPI}, ""},
        {{MPI, "PMIX_NAMESPACE=1073.1", "SLURM_JOB_ID=7"}, "1073.1"},
        {{"PMI_RANK=1", "PMI_SIZE=6", "PMI_JOBID=kvs_12"}, "kvs_12"},
        {{TORCH, "TORCHELASTIC_RUN_ID=a 1", "SLURM_JOB_ID=7"}, "a 1"},
        {{SLURM, "SLURM_JOB_ID=7"}, "7"},
        {{SLURM, "SLURM_JOB_ID=7", "SLURM_STEP_ID=0"}, "7.0"},
    };
    test_defer(t, forget, (void *)(uintptr_t)known);
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
        forget(NULL);
        for (int i = 0; i < 6 && rows[n].set[i]; i++) set(t, rows[n].set[i]);
        CHECK_TEXT(t, rank_launch_of().run, rows[n].run);
    }
}
