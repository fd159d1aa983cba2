#include "ranks.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

__attribute__((format(printf, 3, 4))) static bool fail(zf_error *error, zf_status status,
                                                       const char *format, ...)
{
    va_list args;
    va_start(args, format);
    error->status = status;
    vsnprintf(error->text, sizeof error->text, format, args);
    va_end(args);
    return false;
}

/* A whole number of the environment that is `least` or more; false when there is none. */
static bool number_of(const char *variable, int64_t least, int64_t *number)
{
    const char *text = getenv(variable);
    char *end;
    long long value = text ? strtoll(text, &end, 10) : 0;
    if (!text || end == text || *end || value < least || value > INT32_MAX) return false;
    *number = value;
    return true;
}

const char *bert_launcher(int64_t *rank, int64_t *world)
{
    static const struct {
        const char *name, *rank, *world;
    } launchers[] = {
        {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
        {"mpirun", "PMI_RANK", "PMI_SIZE"},
        {"torchrun", "RANK", "WORLD_SIZE"},
        {"Slurm", "SLURM_PROCID", "SLURM_NTASKS"},
    };
    for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++)
        if (number_of(launchers[i].rank, 0, rank) && number_of(launchers[i].world, 2, world) &&
            *rank < *world)
            return launchers[i].name;
    *rank = 0, *world = 1;
    return NULL;
}

bool bert_ranks_open(bert_ranks *r, int64_t count, double deadline, zf_error *error)
{
    int64_t rank, world;
    const char *launcher = bert_launcher(&rank, &world);
    *r = (bert_ranks){.world = 1, .here = 1, .deadline = deadline};
    if (launcher && count && strcmp(launcher, "Slurm"))
        return fail(error, ZF_ERR_ARGUMENT,
                    "%s started %lld processes, and --ranks %lld makes threads of one: start one "
                    "process, or leave --ranks out",
                    launcher, (long long)world, (long long)count);
    /* A batch script of Slurm has its variables without being started as one of several. */
    if (launcher && !count) return bert_mpi_open(r, launcher, world, error);
    if (count > 1) {
        r->world = r->here = (int32_t)count;
        r->group =
            zf_local_new(&(zf_local_desc){.world = r->world, .deadline_seconds = deadline}, error);
        if (!r->group) return false;
    }
    return true;
}

void bert_ranks_close(bert_ranks *r, const zf_error *error)
{
    zf_local_free(r->group);
    bert_mpi_close(r, error);
    *r = (bert_ranks){.world = 0};
}

/* One rank of this process under way. */
typedef struct rank_thread {
    bert_rank_function *run;
    void *user;
    zf_comm *comm;
    pthread_t thread;
    bool started, good;
    zf_error error;
} rank_thread;

static void *run_rank(void *argument)
{
    rank_thread *t = argument;
    t->good = t->run(t->user, t->comm, &t->error);
    if (!t->good && t->comm) t->comm->abort(t->comm->self, t->error.text);
    return NULL;
}

/* That another rank failed is an echo. */
static bool is_cause(const rank_thread *t) { return !t->good && t->error.status != ZF_ERR_COMM; }

bool bert_ranks_run(const bert_ranks *r, bert_rank_function *run, void *user, zf_error *error)
{
    rank_thread *threads = calloc((size_t)r->here, sizeof *threads);
    const rank_thread *cause = NULL;
    if (!threads) return fail(error, ZF_ERR_NOMEM, "out of memory");
    for (int32_t k = r->here - 1; k >= 0; k--) {
        rank_thread *t = &threads[k];
        *t = (rank_thread){.run = run, .user = user};
        t->comm = r->group ? zf_local_comm(r->group, k) : r->comm;
        if (!k) break;
        t->started = !pthread_create(&t->thread, NULL, run_rank, t);
        if (t->started) continue;
        fail(&t->error, ZF_ERR_NOMEM, "the system gives no thread for rank %d", (int)k);
        t->comm->abort(t->comm->self, t->error.text);
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

zf_status bert_ranks_sum(const zf_comm *comm, int64_t *number, zf_error *error)
{
    zf_collective c = {
        .op = ZF_OP_all_reduce, .dtype = ZF_I64, .count = 1, .in = number, .out = number};
    return comm ? comm->run(comm->self, &c, error) : ZF_OK;
}
