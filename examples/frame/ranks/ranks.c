#include "../options/fail.h"
#include "../options/processors.h"
#include "ranks.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* An integer in the environment, `least` or more; false when there is none. */
static bool number_of(const char *variable, int64_t least, int64_t *number)
{
    const char *text = getenv(variable);
    char *end;
    long long value = text ? strtoll(text, &end, 10) : 0;
    if (!text || end == text || *end || value < least || value > INT32_MAX) return false;
    *number = value;
    return true;
}

/* Slurm's list of tasks by node, "2(x3)" or "4,2(x2),1": those of each node, if all have as many
 * and they are `world` together; else 0. */
static int64_t tasks_of(const char *text, int64_t world)
{
    int64_t each = 0, all = 0;
    for (char *end;; text = end + 1) {
        int64_t tasks = strtoll(text, &end, 10), nodes = 1;
        if (end == text || tasks < 1 || tasks > world || (each && tasks != each)) return 0;
        if (!strncmp(end, "(x", 2)) {
            text = end + 2;
            nodes = strtoll(text, &end, 10);
            if (end == text || nodes < 1 || nodes > world || *end++ != ')') return 0;
        }
        each = tasks, all += tasks * nodes;
        if (all > world || (*end && *end != ',')) return 0;
        if (!*end) return all == world ? each : 0;
    }
}

/* How many ranks are on each node, from the first of these variables that is there. */
static void find_here(rank_launch *l, const char *here, bool slurm)
{
    static const char *const variables[] = {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE",
                                            "SLURM_STEP_NUM_NODES", "SLURM_NNODES"};
    int64_t nodes;
    for (int i = 0; i < (slurm ? 4 : 1); i++) {
        const char *variable = slurm ? variables[i] : here;
        if (!getenv(variable)) continue;
        if (!slurm && number_of(variable, 1, &l->here)) return;
        if (slurm && i < 2 && (l->here = tasks_of(getenv(variable), l->world))) return;
        if (slurm && i > 1 && number_of(variable, 1, &nodes) && l->world % nodes == 0) {
            l->here = l->world / nodes;
            return;
        }
        l->here = 0, l->unclear = variable;
        return;
    }
}

/* The name of the run: what these variables say, "12.0" of two. */
static void name_run(rank_launch *l, const char *const variables[2])
{
    const char *first = variables[0] ? getenv(variables[0]) : NULL;
    const char *second = variables[1] ? getenv(variables[1]) : NULL;
    snprintf(l->run, sizeof l->run, "%s%s%s", first ? first : "", second ? "." : "",
             second ? second : "");
}

rank_launch rank_launch_of(void)
{
    static const struct {
        const char *name, *rank, *world, *local, *here, *run[2];
    } launchers[] = {
        {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
         "OMPI_COMM_WORLD_LOCAL_SIZE", {"PMIX_NAMESPACE", NULL}},
        {"mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS",
         {"PMI_JOBID", NULL}},
        {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
         {"TORCHELASTIC_RUN_ID", NULL}},
        {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", NULL,
         {"SLURM_JOB_ID", "SLURM_STEP_ID"}},
    };
    for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++) {
        rank_launch l = {.launcher = launchers[i].name};
        if (!number_of(launchers[i].rank, 0, &l.rank) ||
            !number_of(launchers[i].world, 2, &l.world) || l.rank >= l.world)
            continue;
        if (!number_of(launchers[i].local, 0, &l.local)) l.local = -1;
        find_here(&l, launchers[i].here, !launchers[i].here);
        name_run(&l, launchers[i].run);
        return l;
    }
    return (rank_launch){.world = 1, .local = -1};
}

int32_t ranks_device(const rank_group *r, int32_t rank) { return r->device + rank - r->first; }

bool ranks_open(rank_group *r, const rank_group_desc *d, zf_error *error)
{
    rank_launch launch = rank_launch_of();
    *r = (rank_group){.world = 1, .here = 1, .deadline = d->deadline, .program = d->program};
    if (launch.launcher && d->count && strcmp(launch.launcher, "Slurm"))
        return fail(error, ZF_ERR_ARGUMENT,
                    "%s started %lld processes, and --ranks %lld makes threads of one: start one "
                    "process, or leave --ranks out",
                    launch.launcher, (long long)launch.world, (long long)d->count);
    /* A batch script of Slurm has these variables although it is not one of several processes. */
    if (launch.launcher && !d->count) {
        r->launcher = launch.launcher;
        if (!d->gpus) return ranks_mpi_open(r, launch.world, error);
        r->world = (int32_t)launch.world, r->first = (int32_t)launch.rank;
        r->device = launch.local < 0 ? r->first : (int32_t)launch.local;
        return ranks_nccl_open(r, d->rendezvous, error);
    }
    if (d->rendezvous)
        return fail(error, ZF_ERR_ARGUMENT,
                    "--rendezvous %s is for processes, and this one was started alone: start them "
                    "with mpirun, torchrun or srun",
                    d->rendezvous);
    if (d->count <= 1) return true;
    r->world = r->here = (int32_t)d->count;
    if (d->gpus) return ranks_nccl_open(r, NULL, error);
    r->group =
        zf_local_new(&(zf_local_desc){.world = r->world, .deadline_seconds = d->deadline}, error);
    return r->group != NULL;
}

int64_t ranks_processors(const rank_group *r)
{
    const int64_t processors = processors_available();
    const int64_t here = r->launcher ? rank_launch_of().here : 1;
    /* A launcher that binds its processes has divided the processors already. */
    const bool bound = processors < processors_of_machine();
    return here > 1 && !bound ? (processors + here - 1) / here : processors;
}

bool ranks_set_nodes(rank_group *r, int64_t nodes, int64_t each, zf_error *error)
{
    const rank_launch launch = r->launcher ? rank_launch_of() : (rank_launch){.here = 0};
    if (nodes && each && nodes * each != r->world)
        return fail(error, ZF_ERR_ARGUMENT,
                    "--nodes %lld of --ranks-per-node %lld are not the %d ranks there are",
                    (long long)nodes, (long long)each, (int)r->world);
    if ((nodes && r->world % nodes) || (each && r->world % each))
        return fail(error, ZF_ERR_ARGUMENT, "--%s %lld does not divide the %d ranks",
                    nodes ? "nodes" : "ranks-per-node", (long long)(nodes ? nodes : each),
                    (int)r->world);
    r->nodes = (int32_t)(nodes ? nodes : each ? r->world / each : 1);
    if (nodes || each) return true;
    if (launch.unclear)
        return fail(
            error, ZF_ERR_ARGUMENT,
            "%s has set %s to '%s', from which no equal nodes of the %d ranks follow: --nodes "
            "or --ranks-per-node says them; --nodes 1 takes all ranks as one node",
            launch.launcher, launch.unclear, getenv(launch.unclear), (int)r->world);
    if (!launch.here || launch.here == r->world) return true;
    if (r->world % launch.here || (launch.local >= 0 && launch.rank % launch.here != launch.local))
        return fail(error, ZF_ERR_ARGUMENT,
                    "%s has %lld of the %d ranks on this host, and rank %lld as number %lld of "
                    "them: these are no equal nodes of consecutive ranks. --nodes 1 takes all "
                    "ranks as one node",
                    launch.launcher, (long long)launch.here, (int)r->world,
                    (long long)launch.rank, (long long)launch.local);
    r->nodes = (int32_t)(r->world / launch.here);
    return true;
}

void ranks_close(rank_group *r, const zf_error *error)
{
    zf_local_free(r->group);
    ranks_nccl_close(r);
    ranks_mpi_close(r, error);
    *r = (rank_group){.world = 0};
}

/* A running rank of this process. */
typedef struct rank_thread {
    const rank_group *ranks;
    int32_t rank;
    rank_function *run;
    void *user;
    pthread_t thread;
    bool started, good;
    zf_error error;
} rank_thread;

static void *run_rank(void *argument)
{
    rank_thread *t = argument;
    const rank_group *r = t->ranks;
    zf_comm *comm = r->group ? zf_local_comm(r->group, t->rank) : r->comm;
    if (r->nccl && !(comm = ranks_nccl_comm(r, t->rank, &t->error))) return NULL;
    t->good = t->run(t->user, comm, &t->error);
    if (!t->good && comm) comm->abort(comm->self, t->error.status, t->error.text);
    if (r->nccl) zf_comm_free(comm);
    return NULL;
}

/* The error is not the consequence of another rank's failure (zf_comm.abort). */
static bool is_cause(const rank_thread *t)
{
    return !t->good && t->error.status != ZF_ERR_COMM && !strstr(t->error.text, " gave up: ");
}

bool ranks_run(const rank_group *r, rank_function *run, void *user, zf_error *error)
{
    rank_thread *threads = calloc((size_t)r->here, sizeof *threads);
    const rank_thread *cause = NULL;
    if (!threads) return fail(error, ZF_ERR_NOMEM, "out of memory");
    for (int32_t k = r->here - 1; k >= 0; k--) {
        rank_thread *t = &threads[k];
        *t = (rank_thread){.ranks = r, .rank = r->first + k, .run = run, .user = user};
        if (!k) break;
        t->started = !pthread_create(&t->thread, NULL, run_rank, t);
        if (t->started) continue;
        fail(&t->error, ZF_ERR_NOMEM, "the system gives no thread for rank %d", (int)k);
        if (r->group) {
            zf_comm *comm = zf_local_comm(r->group, k);
            comm->abort(comm->self, t->error.status, t->error.text);
        }
    }
    run_rank(&threads[0]);
    for (int32_t k = 1; k < r->here; k++)
        if (threads[k].started) pthread_join(threads[k].thread, NULL);
    for (int32_t k = 0; k < r->here; k++)
        if (!threads[k].good && (!cause || (is_cause(&threads[k]) && !is_cause(cause))))
            cause = &threads[k];
    if (cause) *error = cause->error;
    if (cause && cause != threads)
        fail(error, cause->error.status, "rank %d: %.480s", (int)(cause - threads),
             cause->error.text);
    free(threads);
    return !cause;
}

zf_status ranks_sum(const zf_comm *comm, int64_t *number, zf_error *error)
{
    zf_collective c = {
        .op = ZF_OP_all_reduce, .dtype = ZF_I64, .count = 1, .in = number, .out = number};
    return comm ? comm->run(comm->self, &c, error) : ZF_OK;
}

zf_status ranks_add(const zf_comm *comm, float *numbers, int64_t count, zf_error *error)
{
    enum { PIECE = 1 << 16 };
    zf_status status = ZF_OK;
    for (int64_t k = 0; comm && k < count && !status; k += PIECE) {
        zf_collective c = {.op = ZF_OP_all_reduce,
                           .dtype = ZF_F32,
                           .count = count - k < PIECE ? count - k : PIECE,
                           .in = numbers + k,
                           .out = numbers + k};
        status = comm->run(comm->self, &c, error);
    }
    return status;
}
