/* What communicators between processes share. zeroflow_mpi.c and zeroflow_nccl.c include it after
 * the public header.
 *
 * The first failure of a process is the error of all its later calls, and the communicator tells
 * the other ranks. Who waits does so with backoff, and listens to the others meanwhile:
 *
 *     waited   0 ........ deadline/4 .................... deadline
 *                         heartbeat: "I wait for ..."  the ranks that wait for nobody are named
 *
 * Heartbeats go to ranks of other groups too. So ranks that wait in vain are not taken for the one
 * that is lost. */
#ifndef ZFI_PROCESS
#define ZFI_PROCESS

#include "../base/error.c"
#include "clock.c"
#include "ranks.c"
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

enum {
    ZFI_PROCESS_CHANNELS = 4, /* queues of transfers, as many as ranks that are threads have */
    ZFI_SMALL_SUM = 16 << 10 /* bytes up to which all_reduce sends its operand whole */
};

/* What ranks compare of a call, byte by byte: it has no padding. */
typedef struct zfi_call {
    int64_t count;
    int32_t op, node, dtype, root;
    int32_t sum; /* bits: 1 added to out, 2 by tree; 4 times the ranks of each tree */
    zf_group group;
} zfi_call;
_Static_assert(sizeof(zfi_call) == 8 + 5 * 4 + sizeof(zf_group), "padding in zfi_call");

static zfi_call zfi_call_of(const zf_collective *c)
{
    return (zfi_call){.count = c->count,
                      .op = (int32_t)c->op,
                      .node = c->node,
                      .dtype = (int32_t)c->dtype,
                      .root = zfi_has_root(c->op) ? c->root : 0,
                      .sum = (int32_t)(c->add | c->tree << 1 | (uint32_t)c->run << 2),
                      .group = c->group};
}

/* "bcast %59 of 1024 f32 from rank 1" */
static const char *zfi_call_text(char text[128], const zfi_call *call)
{
    return zf_collective_text(text, &(zf_collective){.op = (zf_op)call->op,
                                                     .node = call->node,
                                                     .dtype = (zf_dtype)call->dtype,
                                                     .count = call->count,
                                                     .add = call->sum & 1,
                                                     .tree = call->sum >> 1 & 1,
                                                     .run = call->sum >> 2,
                                                     .root = call->root,
                                                     .group = call->group});
}

/* When a rank last said that it waits at a channel, and for which ranks. */
typedef struct zfi_heartbeat {
    double time;
    zf_group group;
} zfi_heartbeat;

/* One rank. The struct of a communicator begins with this one. */
typedef struct zfi_process {
    zf_comm comm;
    const char *maker; /* the function that made it, for messages */
    double deadline;
    pthread_mutex_t mutex;
    atomic_bool failed;
    zf_error error;                  /* the first; it does not change once `failed` is set */
    atomic_bool busy[ZFI_PROCESS_CHANNELS];         /* a call is under way */
    zfi_heartbeat *heartbeat[ZFI_PROCESS_CHANNELS]; /* [world], the last of each; by the mutex, */
    unsigned char *marks;                           /* and [world], of zfi_late */
    /* After the first failure, which has this status: tells the other ranks the status and `notice`
     * if that is not NULL. */
    void (*on_failure)(void *self, zf_status status, const char *notice);
} zfi_process;

/* Fills in all but comm, which is the caller's. */
static void zfi_process_init(zfi_process *p, const char *maker, double deadline,
                             void (*on_failure)(void *self, zf_status status, const char *notice))
{
    p->maker = maker;
    p->deadline = deadline;
    p->on_failure = on_failure;
    pthread_mutex_init(&p->mutex, NULL);
    atomic_init(&p->failed, false);
    for (int k = 0; k < ZFI_PROCESS_CHANNELS; k++) atomic_init(&p->busy[k], false);
}

/* The memory that depends on the world; false: there is none. */
static bool zfi_process_allocate(zfi_process *p)
{
    for (int k = 0; k < ZFI_PROCESS_CHANNELS; k++) {
        p->heartbeat[k] = calloc((size_t)p->comm.world, sizeof *p->heartbeat[k]);
        if (!p->heartbeat[k]) return false;
    }
    p->marks = calloc((size_t)p->comm.world, sizeof *p->marks);
    return p->marks != NULL;
}

static void zfi_process_free(zfi_process *p)
{
    for (int k = 0; k < ZFI_PROCESS_CHANNELS; k++) free(p->heartbeat[k]);
    free(p->marks);
    pthread_mutex_destroy(&p->mutex);
}

/* ------------------------------------------------------------------------------------- failing */

/* "all_gather %59"; of none, the function that makes the communicator. */
static const char *zfi_process_call(const zfi_process *p, char text[64], const zf_collective *c)
{
    return c && c->op ? zf_collective_name(text, c) : p->maker;
}

/* From here on every call fails with this error, unless with an earlier one. The others hear
 * its status and `notice` if that is not NULL. Returns false. */
static bool zfi_process_fail(zfi_process *p, const zf_error *error, const char *notice)
{
    bool first;
    pthread_mutex_lock(&p->mutex);
    first = !p->error.status;
    if (first) p->error = *error;
    atomic_store(&p->failed, true);
    pthread_mutex_unlock(&p->mutex);
    if (first) p->on_failure(p->comm.self, error->status, notice);
    return false;
}

/* Fails for a reason that this rank found out, and tells it. */
ZFI_PRINTF(3, 4)
static bool zfi_process_find(zfi_process *p, zf_status status, const char *format, ...)
{
    zf_error error = {status, ""};
    va_list args;
    va_start(args, format);
    vsnprintf(error.text, sizeof error.text, format, args);
    va_end(args);
    return zfi_process_fail(p, &error, error.text);
}

/* The error of the process as that of a call. */
static zf_status zfi_process_error(const zfi_process *p, zf_error *error)
{
    return zfi_fail(error, p->error.status, "%s", p->error.text);
}

/* ------------------------------------------------------------------------------------- waiting */

static const double zfi_spinning = 10e-6, zfi_yielding = 200e-6; /* seconds, without a sleep */

/* Backoff of who has waited for that long: nothing at first, then others may run, then a sleep that
 * grows with the wait to half a millisecond. */
static void zfi_back_off(double waited)
{
    const double sleep = fmin(waited / 8, 500e-6);
    if (waited < zfi_spinning) return;
    if (waited < zfi_yielding) sched_yield();
    else nanosleep(&(struct timespec){0, (long)(sleep * 1e9)}, NULL);
}

/* A wait for other ranks. {0} has not begun. */
typedef struct zfi_wait {
    double since, before; /* its begin and the last look; 0: none yet */
    double waited;
    bool said; /* the heartbeat is sent */
} zfi_wait;

typedef enum zfi_patience { ZFI_GO_ON, ZFI_HEARTBEAT, ZFI_TOO_LONG } zfi_patience;

/* Adds time to the wait. Much time at once is mostly such in which this process itself was stopped,
 * and hardly counts. */
static zfi_patience zfi_wait_add(zfi_wait *w, double seconds, double deadline)
{
    w->waited += fmin(seconds, deadline / 8);
    if (!w->said && w->waited > deadline / 4) {
        w->said = true;
        return ZFI_HEARTBEAT;
    }
    return w->waited > deadline ? ZFI_TOO_LONG : ZFI_GO_ON;
}

/* Waits a little longer. */
static zfi_patience zfi_wait_more(zfi_wait *w, double deadline)
{
    const double now = zfi_now();
    zfi_patience patience;
    if (w->since == 0) w->since = w->before = now;
    patience = zfi_wait_add(w, now - w->before, deadline);
    w->before = now;
    zfi_back_off(w->waited);
    return patience;
}

/* A rank has said that it waits at the channel for ranks of the group. The mutex is held. */
static void zfi_process_heard(zfi_process *p, int32_t channel, int32_t rank, zf_group group)
{
    if (channel >= 0 && channel < ZFI_PROCESS_CHANNELS && rank >= 0 && rank < p->comm.world)
        p->heartbeat[channel][rank] = (zfi_heartbeat){zfi_now(), group};
}

/* For zfi_late: this rank, or one that has said so since. */
static bool zfi_process_waits(zfi_late *l, int32_t rank, int32_t channel)
{
    const zfi_process *p = l->self;
    bool waits = rank == p->comm.rank;
    for (int32_t k = 0; k < ZFI_PROCESS_CHANNELS; k++) {
        const zfi_heartbeat *heartbeat = &p->heartbeat[k][rank];
        if ((channel >= 0 && channel != k) || heartbeat->time < l->since) continue;
        waits = true;
        for (int32_t r = 0; r < l->world; r++)
            if (zfi_group_has(&heartbeat->group, r)) zfi_late_next(l, r);
    }
    return waits;
}

/* Lists the ranks that are late for a call since that time, of which those that are missing there
 * are marked. The mutex is held. */
static void zfi_process_list_late(zfi_process *p, int32_t channel, double since,
                                  zfi_rank_list *list)
{
    zfi_late late = {p, p->comm.world, since, p->marks, zfi_process_waits};
    zfi_list_late(&late, channel, list);
}

/* ---------------------------------------------------------------------------------- one call */

/* Begins a call, unless it is one that cannot be done. After ZF_OK the channel is this call's, and
 * the thread is not cancelled until zfi_process_end, which is given `cancel`: it would leave locks
 * of the library below. */
static zf_status zfi_process_begin(zfi_process *p, const zf_collective *c, bool streams,
                                   int *cancel, zf_error *error)
{
    zf_error wrong = {ZF_OK, ""};
    char name[64];
    if (atomic_load(&p->failed)) return zfi_process_error(p, error);
    if (!zf_collective_check(c, &p->comm, ZFI_PROCESS_CHANNELS, &wrong)) {
        if (c->stream && !streams)
            zfi_fail(&wrong, ZF_ERR_ARGUMENT,
                     "%s: this communicator has no streams; stream must be NULL",
                     zf_collective_name(name, c));
        else if (atomic_exchange(&p->busy[c->channel], true))
            zfi_fail_busy(&wrong, c, p->comm.rank);
    }
    if (wrong.status) {
        p->comm.abort(p->comm.self, wrong.status, wrong.text);
        return zfi_fail(error, wrong.status, "%s", wrong.text);
    }
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, cancel);
    return ZF_OK;
}

static zf_status zfi_process_end(zfi_process *p, const zf_collective *c, bool done, int cancel,
                                 zf_error *error)
{
    atomic_store(&p->busy[c->channel], false);
    pthread_setcancelstate(cancel, &cancel);
    return done ? ZF_OK : zfi_process_error(p, error);
}

#endif
