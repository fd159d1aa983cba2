/* Ranks with a GPU each: zf_nccl_comm over NCCL.
 *
 *     cc -c zeroflow_nccl.c       next to zeroflow.h; link zeroflow_cuda.o, -lnccl, -lcudart
 *     cc -D__HIP_PLATFORM_AMD__ -c zeroflow_nccl.c      by RCCL, whose calls are the same; link
 *                                                       zeroflow_cuda.o, -lrccl, -lamdhip64
 *
 * Code shared with other communicators is in comm/; dist/zeroflow_nccl.c (`make dist`) is one file.
 *
 * Collectives that only move data go from buffer to buffer. NCCL's sums promise no order, so here a
 * sum is an exchange of pieces, and an addition on the device in the order of ranks. While the
 * pieces in one half of the staging memory are added, the next arrive in the other:
 *
 *     stream   in ====> half 0 ====> half 1 ====> half 0 (when it is added) ==== the last is added
 *     adding            '- add in order -> out    '- add -> out
 *
 * A rank receives its shard of the sum from all, as many bytes as NCCL's reduce-scatter would move;
 * all_reduce then gathers the sums. Small operands, and those of two ranks, are sent whole and
 * added by each rank. A reduce sends to its root, which adds.
 *
 * The ranks of a group exchange messages on the communicator of all ranks, in its order of calls.
 * Their sums keep the order of ranks, even if sums over all ranks are `fast`.
 *
 * A call on a stream only puts work on that stream: it allocates nothing, waits for nothing, and
 * can be captured. A call without a stream goes in pieces through device memory, after all ranks
 * have compared their calls, so that a difference is an error. (Calls on streams are not compared:
 * there the ranks have compared their plans.)
 *
 * Each channel has an NCCL communicator of its own, so that channels overlap. Their kernels are
 * limited in size, since NCCL promises progress only if all of them can run at once. The
 * communicators do not block: NCCL is queried until the deadline, and then aborted. On a stream,
 * two one-thread kernels tell the host which call the stream is in, so that a device that is busy
 * for long is not taken for one that waits for another rank.
 *
 * Ranks also exchange notes besides NCCL: that they have failed, and (through rank 0) heartbeats
 * while they wait, so that waiting ranks are not taken for the lost one. Only ranks that wait read
 * them.
 *
 * NCCL frees a communicator only when no graph holds calls of it any more, and waits for this, in
 * ncclCommAbort too. So that nothing else has to wait, each channel has a thread that sleeps until
 * its communicator is to be freed or aborted. All channels are aborted at once, their kernels end,
 * and the owners of the graphs can free them. */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif
#include "zeroflow.h"

#include "comm/rendezvous.c"

#ifdef __HIP_PLATFORM_AMD__
#include "cuda/hip/names.h"
#include <rccl/rccl.h>
#define ZFI_NCCL "RCCL" /* in messages */
#else
#include <cuda_runtime_api.h>
#include <nccl.h>
#define ZFI_NCCL "NCCL"
#endif

enum {
    ZFI_NCCL_WORLD = 1 << 14,
    ZFI_NCCL_STAGING = 32 << 20,
    ZFI_NCCL_PASSAGE = 1 << 20, /* bytes of a piece of a call without a stream, in and out */
    ZFI_NCCL_CTAS = 16,
    ZFI_NCCL_LINE = 16 /* pieces and shards of sums are multiples of so many bytes */
};

/* What the thread of a channel does with its NCCL communicator. */
typedef enum zfi_nccl_end { ZFI_NCCL_STAYS, ZFI_NCCL_DESTROY, ZFI_NCCL_ABORT } zfi_nccl_end;

typedef struct zfi_nccl_channel {
    struct zfi_nccl *of;
    ncclComm_t nccl;       /* guarded by the mutex; NULL once it is aborted */
    pthread_t thread;      /* ends `ending`; guarded by the mutex: */
    bool has_thread, over; /* the thread was started; it has finished */
    zfi_nccl_end end;
    ncclComm_t ending;             /* the former `nccl` */
    cudaStream_t stream;           /* of calls without a stream */
    cudaStream_t adding;           /* the stream for sums of pieces */
    cudaEvent_t came[2], added[2]; /* for each half */
    bool left;                     /* the stream had not ended after a call that failed */
    char *staging;                 /* two halves, then pieces of calls without a stream */
    zf_cuda_place *place;          /* how far the stream has come, at the host's address, */
    zf_cuda_place *tell;           /* and at the device's */
    zf_cuda_place seen;            /* as last read, at the time wait.before; */
    zfi_wait wait;                 /* since when it has not changed */
    zfi_call *calls;               /* [world], for calls without a stream: what ranks compare */
} zfi_nccl_channel;

typedef struct zfi_nccl {
    zfi_process p;
    zfi_rendezvous meet; /* with ids of NCCL, one for each channel */
    int device;
    bool fast;
    int ctas;            /* blocks of each channel's kernels */
    size_t half;         /* bytes */
    pthread_cond_t ends; /* some channel must end, or has ended; on the clock of comm/clock.c */
    zfi_nccl_channel channels[ZFI_PROCESS_CHANNELS];
} zfi_nccl;

/* ------------------------------------------------------------------------------------- failing */

/* Makes the threads of all channels end NCCL's communicators. The mutex is held. */
static void zfi_nccl_end_all(zfi_nccl *m, zfi_nccl_end end)
{
    for (int k = 0; k < ZFI_PROCESS_CHANNELS; k++) {
        zfi_nccl_channel *ch = &m->channels[k];
        if (ch->end) continue;
        ch->ending = ch->nccl;
        ch->nccl = NULL;
        ch->end = end;
    }
    pthread_cond_broadcast(&m->ends);
}

/* After this, nothing on a stream waits for other ranks much longer. */
static void zfi_nccl_on_failure(void *self, zf_status status, const char *notice)
{
    zfi_nccl *m = self;
    pthread_mutex_lock(&m->p.mutex);
    if (notice) zfi_meet_tell_failure(&m->meet, status, notice);
    zfi_nccl_end_all(m, ZFI_NCCL_ABORT);
    pthread_mutex_unlock(&m->p.mutex);
}

/* Fails with an error of CUDA. */
static bool zfi_nccl_find_cuda(zfi_nccl *m, const zf_collective *c, const char *what,
                               cudaError_t code)
{
    char name[64];
    (void)cudaGetLastError(); /* so that no later call reports it again */
    return zfi_process_find(
        &m->p, code == cudaErrorMemoryAllocation ? ZF_ERR_NOMEM : ZF_ERR_BACKEND, "%s: %s: %s",
        zfi_process_call(&m->p, name, c), what, cudaGetErrorString(code));
}

/* Fails with an error of NCCL, in the channel's communicator. */
static bool zfi_nccl_find_nccl(zfi_nccl *m, int channel, const zf_collective *c, ncclResult_t code)
{
    char name[64], more[256] = "";
    const char *last = NULL;
    pthread_mutex_lock(&m->p.mutex);
    if (m->channels[channel].nccl) last = ncclGetLastError(m->channels[channel].nccl);
    if (last && *last) snprintf(more, sizeof more, ": %s", last);
    pthread_mutex_unlock(&m->p.mutex);
    return zfi_process_find(&m->p, ZF_ERR_COMM, "%s: " ZFI_NCCL ": %s%s",
                            zfi_process_call(&m->p, name, c), ncclGetErrorString(code), more);
}

static void zfi_nccl_abort(void *self, zf_status status, const char *reason)
{
    zfi_nccl *m = self;
    zf_error error = {ZF_OK, ""};
    int cancel;
    zfi_fail_by_rank(&error, m->p.comm.rank, status, reason);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    zfi_process_fail(&m->p, &error, reason ? reason : "");
    pthread_setcancelstate(cancel, &cancel);
}

/* ------------------------------------------------------------------------------------- waiting */

/* A wait for other ranks, in a call on `channel`. */
typedef struct zfi_nccl_wait {
    zfi_nccl *m;
    int channel;
    const zf_collective *call;
    const char *what; /* what the others have not done */
    zfi_wait wait;
} zfi_nccl_wait;

/* The ranks of a call: all of none. */
static zf_group zfi_nccl_group(const zfi_nccl *m, const zf_collective *c)
{
    return c && c->group.count ? c->group : (zf_group){0, 1, m->p.comm.world};
}

/* The deadline has passed: names the ranks that are late. If rank 0 is one of them, others may have
 * sent their heartbeats in vain. Without connections there are none. */
static bool zfi_nccl_missing(zfi_nccl *m, int channel, const zf_collective *c, const char *what,
                             double since)
{
    const int32_t world = m->p.comm.world;
    const zf_group group = zfi_nccl_group(m, c);
    char name[64], some[64];
    const char *who;
    zfi_rank_list list = {.count = 0}, first = {.count = 0};
    pthread_mutex_lock(&m->p.mutex);
    for (int32_t r = 0; r < world; r++)
        m->p.marks[r] =
            r != m->p.comm.rank && zfi_group_has(&group, r) ? ZFI_LATE_MISSING : 0;
    zfi_process_list_late(&m->p, channel, since, &list);
    if (m->p.marks[0] & ZFI_LATE_NAMED) zfi_list_rank(&first, 0), list = first;
    pthread_mutex_unlock(&m->p.mutex);
    who = zfi_list_end(&list, world);
    snprintf(some, sizeof some, "some rank of %d", (int)world);
    return zfi_process_find(&m->p, ZF_ERR_COMM, "%s: %s %s within %g s",
                            zfi_process_call(&m->p, name, c),
                            m->meet.lines || world == 2 ? who : some, what, m->p.deadline);
}

/* NCCL's state of the channel; ncclInvalidUsage if it is aborted. */
static ncclResult_t zfi_nccl_state(zfi_nccl *m, int channel)
{
    ncclResult_t code, state = ncclInvalidUsage;
    pthread_mutex_lock(&m->p.mutex);
    if (m->channels[channel].nccl) {
        code = ncclCommGetAsyncError(m->channels[channel].nccl, &state);
        if (code) state = code;
    }
    pthread_mutex_unlock(&m->p.mutex);
    return state;
}

/* Waits a little longer; false if the communicator has failed. */
static bool zfi_nccl_go_on(zfi_nccl_wait *w)
{
    zfi_nccl *m = w->m;
    const zfi_patience patience = zfi_wait_more(&w->wait, m->p.deadline);
    if (w->wait.waited > 1e-3) zfi_meet_listen(&m->meet);
    if (atomic_load(&m->p.failed)) return false;
    if (patience == ZFI_HEARTBEAT)
        zfi_meet_tell_waiting(&m->meet, w->channel, zfi_nccl_group(m, w->call));
    if (patience == ZFI_TOO_LONG)
        return zfi_nccl_missing(m, w->channel, w->call, w->what, w->wait.since);
    return true;
}

/* Waits until NCCL has finished what it was asked to do on the channel. */
static bool zfi_nccl_settle(zfi_nccl_wait *w)
{
    for (;;) {
        ncclResult_t state = zfi_nccl_state(w->m, w->channel);
        if (state == ncclSuccess) return true;
        if (atomic_load(&w->m->p.failed)) return false;
        if (state != ncclInProgress) return zfi_nccl_find_nccl(w->m, w->channel, w->call, state);
        if (!zfi_nccl_go_on(w)) return false;
    }
}

/* Waits until the channel's own stream has ended. */
static bool zfi_nccl_drain(zfi_nccl_wait *w)
{
    for (;;) {
        cudaError_t code = cudaStreamQuery(w->m->channels[w->channel].stream);
        ncclResult_t state;
        if (code == cudaSuccess) return true;
        if (code != cudaErrorNotReady)
            return zfi_nccl_find_cuda(w->m, w->call, "cudaStreamQuery", code);
        (void)cudaGetLastError(); /* it is no error */
        state = zfi_nccl_state(w->m, w->channel);
        if (atomic_load(&w->m->p.failed)) return false;
        if (state && state != ncclInProgress)
            return zfi_nccl_find_nccl(w->m, w->channel, w->call, state);
        if (!zfi_nccl_go_on(w)) return false;
    }
}

/* Called by a device that waits for its streams: whether one of them has been in the same call for
 * too long. */
static zf_status zfi_nccl_check(void *self, double seconds, zf_error *error)
{
    zfi_nccl *m = self;
    int cancel;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    zfi_meet_listen(&m->meet);
    for (int k = 0; k < ZFI_PROCESS_CHANNELS && !atomic_load(&m->p.failed); k++) {
        zfi_nccl_channel *ch = &m->channels[k];
        const volatile zf_cuda_place *place = ch->place;
        const double now = zfi_now(), passed = fmin(now - ch->wait.before, seconds);
        ncclResult_t state = zfi_nccl_state(m, k);
        zf_cuda_place seen = {.turn = place->turn, .call = place->call};
        const bool stays = seen.call.op != ZF_OP_none && seen.turn == ch->seen.turn;
        zfi_patience patience = ZFI_GO_ON;
        if (stays) patience = zfi_wait_add(&ch->wait, passed, m->p.deadline);
        else ch->wait = (zfi_wait){.since = 0};
        ch->wait.before = now;
        ch->seen = seen;
        if (state && state != ncclInProgress && !atomic_load(&m->p.failed))
            zfi_nccl_find_nccl(m, k, seen.call.op ? &seen.call : NULL, state);
        else if (patience == ZFI_TOO_LONG)
            zfi_nccl_missing(m, k, &seen.call, "did not come", now - ch->wait.waited);
        else if (patience == ZFI_HEARTBEAT)
            zfi_meet_tell_waiting(&m->meet, k, zfi_nccl_group(m, &seen.call));
    }
    pthread_setcancelstate(cancel, &cancel);
    if (!atomic_load(&m->p.failed)) return ZF_OK;
    return zfi_fail(error, m->p.error.status, "%s", m->p.error.text);
}

/* --------------------------------------------------------------------------------- on a stream */

/* A call on a stream. */
typedef struct zfi_nccl_work {
    zfi_nccl *m;
    const zf_collective *call;
    cudaStream_t stream;
    size_t size;    /* bytes of an element */
    zf_group group; /* its ranks, which the functions below know by their number in it, from 0 on */
    int32_t mine;   /* that of this rank */
} zfi_nccl_work;

static zfi_nccl_work zfi_nccl_work_of(zfi_nccl *m, const zf_collective *c, cudaStream_t stream)
{
    const zf_group group = zf_collective_group(c, &m->p.comm);
    return (zfi_nccl_work){
        m, c, stream, c->op ? zf_dtype_size(c->dtype) : 1, group,
        (m->p.comm.rank - group.first) / group.stride};
}

/* A rank gets from some of the others alone. */
static bool zfi_nccl_near(const zfi_nccl_work *w) { return w->call->before || w->call->after; }

/* A request to NCCL: `count` elements of `type`, as in zf_collective. In an all_to_all, data for
 * rank r are at from + r * apart, and its data go to to + r * to_apart, except this rank's own. */
typedef struct zfi_nccl_move {
    zf_op op;
    const char *from;
    char *to;
    size_t count, apart, to_apart;
    ncclDataType_t type;
} zfi_nccl_move;

static bool zfi_nccl_cuda(const zfi_nccl_work *w, const char *what, cudaError_t code)
{
    return code == cudaSuccess || zfi_nccl_find_cuda(w->m, w->call, what, code);
}

/* Between the ranks of a group any two send and receive, or those that get from one another: NCCL's
 * own calls are of all ranks. */
static ncclResult_t zfi_nccl_ask(const zfi_nccl_work *w, ncclComm_t nccl, const zfi_nccl_move *v)
{
    const int32_t world = w->group.count, rank = w->mine, root = w->call->root;
    const bool spreads = v->op == ZF_OP_all_to_all, one = zfi_is_from_root(v->op),
               to_one = v->op == ZF_OP_reduce;
    const size_t apart = spreads ? v->apart : 0, to_apart = spreads ? v->to_apart
                                                            : one   ? 0
                                                                    : v->count;
    ncclResult_t code, end;
    switch (world == w->m->p.comm.world && !zfi_nccl_near(w) ? v->op : ZF_OP_all_to_all) {
    case ZF_OP_all_gather: return ncclAllGather(v->from, v->to, v->count, v->type, nccl, w->stream);
    case ZF_OP_reduce_scatter:
        return ncclReduceScatter(v->from, v->to, v->count, v->type, ncclSum, nccl, w->stream);
    case ZF_OP_all_reduce:
        return ncclAllReduce(v->from, v->to, v->count, v->type, ncclSum, nccl, w->stream);
    case ZF_OP_bcast:
        return ncclBroadcast(v->from, v->to, v->count, v->type, root, nccl, w->stream);
    default: break; /* all_to_all, and all of a group */
    }
    if ((code = ncclGroupStart())) return code;
    for (int32_t k = 1; k < world && (!code || code == ncclInProgress); k++) {
        const int32_t to = (rank + k) % world, from = (rank - k + world) % world;
        if ((!one || rank == root) && (!to_one || to == root) &&
            zfi_is_neighbour(w->call, to, rank))
            code = ncclSend(v->from + (size_t)to * apart, v->count, v->type,
                            (int)(w->group.first + to * w->group.stride), nccl, w->stream);
        if ((!code || code == ncclInProgress) && (!one || from == root) &&
            (!to_one || rank == root) && zfi_is_neighbour(w->call, rank, from))
            code = ncclRecv(v->to + (size_t)from * to_apart, v->count, v->type,
                            (int)(w->group.first + from * w->group.stride), nccl, w->stream);
    }
    end = ncclGroupEnd();
    return code && code != ncclInProgress ? code : end;
}

/* What a rank of a group gives itself, which NCCL's calls of all ranks see to. */
static bool zfi_nccl_own(const zfi_nccl_work *w, const zfi_nccl_move *v)
{
    const bool one = v->op == ZF_OP_bcast;
    char *to = v->to + (one ? 0 : (size_t)w->mine * v->count);
    cudaError_t code;
    if ((w->group.count == w->m->p.comm.world && !zfi_nccl_near(w)) || v->op == ZF_OP_all_to_all ||
        v->op == ZF_OP_send || v->op == ZF_OP_reduce)
        return true;
    if ((one && w->call->root != w->mine) || to == v->from) return true;
    code = cudaMemcpyAsync(to, v->from, v->count, cudaMemcpyDeviceToDevice, w->stream);
    return code == cudaSuccess || zfi_nccl_find_cuda(w->m, w->call, "cudaMemcpyAsync", code);
}

/* Puts the request on the stream. NCCL may have to connect to ranks first, which must take part. */
static bool zfi_nccl_put(const zfi_nccl_work *w, const zfi_nccl_move *v)
{
    zfi_nccl *m = w->m;
    zfi_nccl_wait wait = {m, w->call->channel, w->call, "did not come", {0, 0, 0, false}};
    ncclResult_t code = ncclInvalidUsage;
    if (!v->count) return true;
    if (!zfi_nccl_own(w, v)) return false;
    if (w->group.count == 1 && w->m->p.comm.world > 1) return true;
    pthread_mutex_lock(&m->p.mutex);
    if (m->channels[w->call->channel].nccl)
        code = zfi_nccl_ask(w, m->channels[w->call->channel].nccl, v);
    pthread_mutex_unlock(&m->p.mutex);
    if (atomic_load(&m->p.failed)) return false;
    if (code && code != ncclInProgress)
        return zfi_nccl_find_nccl(m, w->call->channel, w->call, code);
    return !code || zfi_nccl_settle(&wait);
}

/* The number of elements from each rank for which half of the staging has room. */
static int64_t zfi_nccl_cut(const zfi_nccl_work *w)
{
    const size_t each = w->m->half / (size_t)w->group.count;
    return (int64_t)((each & ~(size_t)(ZFI_NCCL_LINE - 1)) / w->size);
}

static int64_t zfi_nccl_least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Adds the ranks' elements [at, at + n), which are in the half: those of each run by a tree. Where
 * there are several runs, the own ones go there first, since `out` may be their place. */
static bool zfi_nccl_add_piece(const zfi_nccl_work *w, cudaStream_t stream, char *out, char *half,
                               size_t stride, const char *own, int64_t n)
{
    zf_error error = {ZF_OK, ""};
    char name[64];
    const int32_t ranks = w->call->run ? w->call->run : w->group.count;
    if (own && ranks < w->group.count) {
        if (!zfi_nccl_cuda(w, "cudaMemcpyAsync",
                           cudaMemcpyAsync(half + (size_t)w->mine * stride, own,
                                           (size_t)n * w->size, cudaMemcpyDeviceToDevice, stream)))
            return false;
        own = NULL;
    }
    for (int32_t r = 0; r < w->group.count && !error.status; r += ranks) {
        const zf_cuda_sum sum = {out, half + (size_t)r * stride, stride, own, w->mine - r, ranks, n,
                                 w->call->dtype, w->call->add || r, w->call->tree};
        zf_cuda_add_ranks(&sum, stream, &error);
    }
    if (!error.status) return true;
    return zfi_process_find(&w->m->p, error.status, "%s: %s",
                            zfi_process_call(&w->m->p, name, w->call), error.text);
}

/* Of ranks from which this one gets nothing, 0 is added. */
static bool zfi_nccl_clear_far(const zfi_nccl_work *w, char *half, size_t stride, size_t bytes)
{
    for (int32_t r = 0; r < w->group.count; r++)
        if (!zfi_is_neighbour(w->call, w->mine, r) &&
            !zfi_nccl_cuda(w, "cudaMemsetAsync",
                           cudaMemsetAsync(half + (size_t)r * stride, 0, bytes, w->stream)))
            return false;
    return true;
}

/* out[0..count): the sums of the ranks' in[0..count), of a reduce on its root alone. If `apart` is
 * not 0: rank r gets the sums of the data at in + r * apart. */
static bool zfi_nccl_sum(const zfi_nccl_work *w, const char *in, char *out, int64_t count,
                         size_t apart)
{
    zfi_nccl_channel *ch = &w->m->channels[w->call->channel];
    const int64_t cut = zfi_nccl_cut(w);
    const bool one = count <= cut; /* one piece, so no addition overlaps */
    const bool reduces = w->call->op == ZF_OP_reduce, adds = !reduces || w->call->root == w->mine;
    const char *own = apart ? in + (size_t)w->mine * apart : reduces ? in : NULL;
    int last = 0;
    for (int64_t at = 0; at < count; at += cut, last = !last) {
        const int64_t n = zfi_nccl_least(cut, count - at);
        const size_t skip = (size_t)at * w->size, bytes = (size_t)n * w->size,
                     stride = apart ? (size_t)cut * w->size : bytes;
        char *half = ch->staging + (last ? w->m->half : 0);
        const zfi_nccl_move move = {apart     ? ZF_OP_all_to_all
                                    : reduces ? ZF_OP_reduce
                                              : ZF_OP_all_gather,
                                    in + skip,
                                    half,
                                    bytes,
                                    apart,
                                    stride,
                                    ncclUint8};
        if (at >= 2 * cut && adds && !zfi_nccl_cuda(w, "cudaStreamWaitEvent",
                                            cudaStreamWaitEvent(w->stream, ch->added[last], 0)))
            return false;
        if (!zfi_nccl_clear_far(w, half, stride, bytes) || !zfi_nccl_put(w, &move)) return false;
        if (!adds) continue;
        if (!one &&
            (!zfi_nccl_cuda(w, "cudaEventRecord", cudaEventRecord(ch->came[last], w->stream)) ||
             !zfi_nccl_cuda(w, "cudaStreamWaitEvent",
                            cudaStreamWaitEvent(ch->adding, ch->came[last], 0))))
            return false;
        if (!zfi_nccl_add_piece(w, one ? w->stream : ch->adding, out + skip, half, stride,
                                own ? own + skip : NULL, n))
            return false;
        if (!one &&
            !zfi_nccl_cuda(w, "cudaEventRecord", cudaEventRecord(ch->added[last], ch->adding)))
            return false;
    }
    return one || !adds || zfi_nccl_cuda(w, "cudaStreamWaitEvent",
                                cudaStreamWaitEvent(w->stream, ch->added[!last], 0));
}

/* Each rank sums one shard of `out`; then all gather them. A remainder, or a small operand, is
 * summed by all. */
static bool zfi_nccl_all_reduce(const zfi_nccl_work *w)
{
    const int64_t world = w->group.count, line = (int64_t)(ZFI_NCCL_LINE / w->size);
    const int64_t count = w->call->count, part = count / world / line * line;
    const size_t bytes = (size_t)part * w->size, mine = bytes * (size_t)w->mine;
    const char *in = w->call->in;
    char *out = w->call->out;
    const zfi_nccl_move gather = {ZF_OP_all_gather, out + mine, out, bytes, 0, 0, ncclUint8};
    if (world < 3 || (size_t)count * w->size <= ZFI_SMALL_SUM)
        return zfi_nccl_sum(w, in, out, count, 0);
    return zfi_nccl_sum(w, in, out + mine, part, bytes) && zfi_nccl_put(w, &gather) &&
           zfi_nccl_sum(w, in + bytes * (size_t)world, out + bytes * (size_t)world,
                        count - part * world, 0);
}

/* Each part goes to its place; if that is `in`, after its data have been sent. */
static bool zfi_nccl_all_to_all(const zfi_nccl_work *w)
{
    const int64_t count = w->call->count, cut = zfi_nccl_cut(w);
    const size_t bytes = (size_t)count * w->size, stride = (size_t)cut * w->size;
    const int32_t world = w->group.count, rank = w->mine;
    const char *in = w->call->in;
    char *out = w->call->out, *staging = w->m->channels[w->call->channel].staging;
    if (in != out) {
        const zfi_nccl_move move = {ZF_OP_all_to_all, in, out, bytes, bytes, bytes, ncclUint8};
        return zfi_nccl_cuda(w, "cudaMemcpyAsync",
                             cudaMemcpyAsync(out + bytes * (size_t)rank, in + bytes * (size_t)rank,
                                             bytes, cudaMemcpyDeviceToDevice, w->stream)) &&
               zfi_nccl_put(w, &move);
    }
    for (int64_t at = 0; at < count; at += cut) {
        const size_t skip = (size_t)at * w->size,
                     n = (size_t)zfi_nccl_least(cut, count - at) * w->size;
        const zfi_nccl_move move = {ZF_OP_all_to_all, in + skip, staging, n, bytes,
                                    stride,           ncclUint8};
        if (!zfi_nccl_put(w, &move)) return false;
        for (int32_t r = 0; r < world; r++)
            if (r != rank && !zfi_nccl_cuda(w, "cudaMemcpyAsync",
                                            cudaMemcpyAsync(out + (size_t)r * bytes + skip,
                                                            staging + (size_t)r * stride, n,
                                                            cudaMemcpyDeviceToDevice, w->stream)))
                return false;
    }
    return true;
}

/* The type in which NCCL's sums differ from ours only in order; false: there is none. */
static bool zfi_nccl_type(zf_dtype dtype, ncclDataType_t *type)
{
    switch (dtype) {
    case ZF_F32: *type = ncclFloat32; return true;
    case ZF_F64: *type = ncclFloat64; return true;
    case ZF_BF16: *type = ncclBfloat16; return true;
    case ZF_F16: *type = ncclFloat16; return true;
    case ZF_I32: *type = ncclInt32; return true;
    case ZF_I64: *type = ncclInt64; return true;
    default: return false;
    }
}

static bool zfi_nccl_start(const zfi_nccl_work *w)
{
    const zf_collective *c = w->call;
    const size_t bytes = (size_t)c->count * w->size;
    zfi_nccl_move move = {c->op, c->in, c->out, bytes, 0, 0, ncclUint8};
    switch (c->op) {
    case ZF_OP_all_to_all: return zfi_nccl_all_to_all(w);
    case ZF_OP_reduce_scatter:
    case ZF_OP_all_reduce:
        if (w->m->fast && !c->add && !c->tree && w->group.count == w->m->p.comm.world &&
            zfi_nccl_type(c->dtype, &move.type)) {
            move.count = (size_t)c->count;
            return zfi_nccl_put(w, &move);
        }
        if (c->op == ZF_OP_all_reduce) return zfi_nccl_all_reduce(w);
        return zfi_nccl_sum(w, c->in, c->out, c->count, bytes);
    case ZF_OP_reduce: return zfi_nccl_sum(w, c->in, c->out, c->count, 0);
    case ZF_OP_bcast:
    case ZF_OP_send:
        if (c->root != w->mine) move.from = move.to; /* it is not looked at */
        return zfi_nccl_put(w, &move);
    default: return zfi_nccl_put(w, &move); /* all_gather */
    }
}

/* The call on its stream, which reports to the host when it reaches the call and when it leaves
 * it. */
static bool zfi_nccl_on_stream(zfi_nccl *m, const zf_collective *c)
{
    const zfi_nccl_work w = zfi_nccl_work_of(m, c, c->stream);
    zf_cuda_place *place = m->channels[c->channel].tell;
    zf_error error = {ZF_OK, ""};
    if (!c->count) return true;
    if (!zf_cuda_tell(place, c, c->stream, &error) && zfi_nccl_start(&w))
        zf_cuda_tell(place, NULL, c->stream, &error);
    if (error.status) zfi_process_fail(&m->p, &error, error.text);
    return !atomic_load(&m->p.failed);
}

/* -------------------------------------------------------------------------------- on no stream */

/* Checks that all ranks have come to the channel with `head`; false if one has come with another
 * call, or not at all. */
static bool zfi_nccl_meet(zfi_nccl *m, const zf_collective *c, zfi_call head)
{
    zfi_nccl_channel *ch = &m->channels[c->channel];
    char *to = ch->staging + 2 * m->half, *from = to + ZFI_NCCL_PASSAGE;
    const zfi_nccl_work w = zfi_nccl_work_of(m, c, ch->stream);
    const int32_t world = w.group.count;
    const zfi_nccl_move move = {ZF_OP_all_gather, to, from, sizeof head, 0, 0, ncclUint8};
    zfi_nccl_wait wait = {m, c->channel, c, "did not come", {0, 0, 0, false}};
    char low[128], high[128];
    if (!zfi_nccl_cuda(&w, "cudaMemcpyAsync",
                       cudaMemcpyAsync(to, &head, sizeof head, cudaMemcpyDefault, ch->stream)) ||
        !zfi_nccl_put(&w, &move) || !zfi_nccl_drain(&wait) ||
        !zfi_nccl_cuda(&w, "cudaMemcpyAsync",
                       cudaMemcpyAsync(ch->calls, from, (size_t)world * sizeof head,
                                       cudaMemcpyDefault, ch->stream)) ||
        !zfi_nccl_cuda(&w, "cudaStreamSynchronize", cudaStreamSynchronize(ch->stream)))
        return false;
    for (int32_t r = 1; r < world; r++) {
        const zfi_call *first = &ch->calls[0], *other = &ch->calls[r];
        if (!memcmp(first, other, sizeof *first)) continue;
        if (!first->op)
            return zfi_process_find(
                &m->p, ZF_ERR_ARGUMENT,
                "zf_nccl_comm: fast, staging_bytes or ctas of ranks 0 and %d are "
                "not the same",
                (int)r);
        return zfi_process_find(&m->p, ZF_ERR_COMM, "rank %d is at %s, rank %d at %s",
                                (int)w.group.first, zfi_call_text(low, first),
                                (int)(w.group.first + r * w.group.stride),
                                zfi_call_text(high, other));
    }
    return true;
}

/* Copies elements [at, at + n) of each of `parts` parts, to the device or from it, where they are
 * one after the other. */
static bool zfi_nccl_pass(const zfi_nccl_work *w, bool in, int32_t parts, char *host, int64_t at,
                          char *device, int64_t n)
{
    const size_t bytes = (size_t)n * w->size, part = (size_t)w->call->count * w->size;
    for (int32_t r = 0; r < parts; r++) {
        char *there = host + (size_t)r * part + (size_t)at * w->size,
             *here = device + (size_t)r * bytes;
        if (!zfi_nccl_cuda(w, "cudaMemcpyAsync",
                           cudaMemcpyAsync(in ? here : there, in ? there : here, bytes,
                                           cudaMemcpyDefault, w->stream)))
            return false;
    }
    return true;
}

/* The call in pieces; each piece is a call on the channel's own stream. */
static bool zfi_nccl_through(zfi_nccl *m, const zf_collective *c)
{
    zfi_nccl_channel *ch = &m->channels[c->channel];
    zf_collective piece = *c;
    const zfi_nccl_work w = zfi_nccl_work_of(m, c, ch->stream),
                        of = zfi_nccl_work_of(m, &piece, ch->stream);
    const int32_t world = w.group.count;
    const bool spreads = c->op == ZF_OP_reduce_scatter || c->op == ZF_OP_all_to_all,
               gathers = c->op == ZF_OP_all_gather || c->op == ZF_OP_all_to_all,
               reads = !zfi_is_from_root(c->op) || c->root == w.mine,
               writes = c->op == ZF_OP_reduce ? c->root == w.mine : c->op != ZF_OP_send || !reads;
    char *in = ch->staging + 2 * m->half, *out = in + ZFI_NCCL_PASSAGE;
    const int64_t cut = (int64_t)(ZFI_NCCL_PASSAGE / w.size) / world;
    piece.in = in, piece.out = out;
    for (int64_t at = 0; at < c->count; at += cut) {
        zfi_nccl_wait wait = {m, c->channel, c, "sent nothing more", {0, 0, 0, false}};
        piece.count = zfi_nccl_least(cut, c->count - at);
        if ((reads && !zfi_nccl_pass(&w, true, spreads ? world : 1, (char *)(uintptr_t)c->in, at,
                                     in, piece.count)) ||
            (c->add && !zfi_nccl_pass(&w, true, 1, c->out, at, out, piece.count)) ||
            !zfi_nccl_start(&of) || !zfi_nccl_drain(&wait) ||
            (writes &&
             !zfi_nccl_pass(&w, false, gathers ? world : 1, c->out, at, out, piece.count)) ||
            !zfi_nccl_cuda(&w, "cudaStreamSynchronize", cudaStreamSynchronize(ch->stream)))
            return false;
    }
    return true;
}

static bool zfi_nccl_off_stream(zfi_nccl *m, const zf_collective *c)
{
    const zfi_call head = zfi_call_of(c);
    zfi_nccl_channel *ch = &m->channels[c->channel];
    double until;
    if (zfi_nccl_meet(m, c, head) && zfi_nccl_through(m, c)) return true;
    /* Nothing waits now, so copies from the caller's memory will end. */
    until = zfi_now() + 10;
    while (cudaStreamQuery(ch->stream) == cudaErrorNotReady && zfi_now() < until) zfi_back_off(1);
    ch->left = zfi_now() >= until;
    (void)cudaGetLastError();
    return false;
}

static zf_status zfi_nccl_run(void *self, const zf_collective *c, zf_error *error)
{
    zfi_nccl *m = self;
    cudaError_t code;
    zf_status status;
    bool done = false;
    int cancel;
    if ((status = zfi_process_begin(&m->p, c, true, &cancel, error))) return status;
    zfi_meet_listen(&m->meet);
    if (!atomic_load(&m->p.failed)) {
        code = cudaSetDevice(m->device);
        if (code) done = zfi_nccl_find_cuda(m, c, "cudaSetDevice", code);
        else done = c->stream ? zfi_nccl_on_stream(m, c) : zfi_nccl_off_stream(m, c);
    }
    return zfi_process_end(&m->p, c, done, cancel, error);
}

/* ---------------------------------------------------------------------------- the communicator */

/* Waits until all ranks have the ids, or soon will: m->meet.ids. */
static zf_status zfi_nccl_find_others(zfi_nccl *m, const void *id, double start, zf_error *error)
{
    zfi_note *ids = &m->meet.ids;
    _Static_assert(sizeof ids->as.ids == ZF_NCCL_ID_BYTES, "they are what rank 0 gives");
    zfi_meet_note_of(&m->meet, ids, ZFI_NOTE_IDS, NULL);
    if (id) memcpy(ids->as.ids, id, sizeof ids->as.ids);
    else if (!m->p.comm.rank && zf_nccl_id(ids->as.ids, error)) return error->status;
    return id || m->p.comm.world == 1 ? ZF_OK : zfi_meet_all(&m->meet, start, error);
}

/* The thread of a channel. NCCL may wait in it as long as graphs hold its calls. */
static void *zfi_nccl_thread(void *channel)
{
    zfi_nccl_channel *ch = channel;
    zfi_nccl *m = ch->of;
    pthread_mutex_lock(&m->p.mutex);
    while (!ch->end) pthread_cond_wait(&m->ends, &m->p.mutex);
    pthread_mutex_unlock(&m->p.mutex);
    (void)cudaSetDevice(m->device);
    if (ch->end == ZFI_NCCL_ABORT) (void)ncclCommAbort(ch->ending);
    else (void)ncclCommDestroy(ch->ending);
    pthread_mutex_lock(&m->p.mutex);
    ch->over = true;
    pthread_cond_broadcast(&m->ends);
    pthread_mutex_unlock(&m->p.mutex);
    return NULL;
}

/* Waits until the threads of all channels have ended; false if they have not within so many
 * seconds. */
static bool zfi_nccl_join(zfi_nccl *m, double seconds)
{
    const struct timespec until = zfi_time_in(seconds);
    bool over = true;
    pthread_mutex_lock(&m->p.mutex);
    for (int k = 0; k < ZFI_PROCESS_CHANNELS && over; k++)
        while (m->channels[k].has_thread && !m->channels[k].over && over)
            over = !pthread_cond_timedwait(&m->ends, &m->p.mutex, &until);
    pthread_mutex_unlock(&m->p.mutex);
    for (int k = 0; k < ZFI_PROCESS_CHANNELS; k++) {
        if (!m->channels[k].has_thread) continue;
        if (over) pthread_join(m->channels[k].thread, NULL);
        else pthread_detach(m->channels[k].thread);
    }
    return over;
}

/* Frees it. NCCL finishes sending, for which this waits not much longer than the deadline; memory
 * that is then still in use stays until the process ends. */
static void zfi_nccl_destroy(void *self)
{
    zfi_nccl *m = self;
    (void)cudaSetDevice(m->device);
    for (int k = 0; k < ZFI_PROCESS_CHANNELS; k++)
        if (m->channels[k].nccl) (void)ncclCommFinalize(m->channels[k].nccl);
    for (int k = 0; k < ZFI_PROCESS_CHANNELS; k++) {
        zfi_nccl_wait wait = {m, k, NULL, "did not free theirs", {0, 0, 0, false}};
        if (m->channels[k].nccl) (void)zfi_nccl_settle(&wait);
    }
    pthread_mutex_lock(&m->p.mutex);
    zfi_nccl_end_all(m, ZFI_NCCL_DESTROY);
    zfi_meet_leave(&m->meet);
    pthread_mutex_unlock(&m->p.mutex);
    if (!zfi_nccl_join(m, m->p.deadline + 10)) return;
    for (int k = 0; k < ZFI_PROCESS_CHANNELS; k++) {
        zfi_nccl_channel *ch = &m->channels[k];
        for (int i = 0; i < 2; i++) {
            if (ch->came[i]) (void)cudaEventDestroy(ch->came[i]);
            if (ch->added[i]) (void)cudaEventDestroy(ch->added[i]);
        }
        if (ch->stream) (void)cudaStreamDestroy(ch->stream);
        if (ch->adding) (void)cudaStreamDestroy(ch->adding);
        if (ch->staging && !ch->left) (void)cudaFree(ch->staging);
        if (ch->place) (void)cudaFreeHost(ch->place);
        free(ch->calls);
    }
    zfi_meet_free(&m->meet);
    pthread_cond_destroy(&m->ends);
    zfi_process_free(&m->p);
    free(m);
}

/* Allocates host memory. */
static bool zfi_nccl_allocate(zfi_nccl *m, const char *file)
{
    if (!zfi_process_allocate(&m->p) || !zfi_meet_allocate(&m->meet, file)) return false;
    for (int k = 0; k < ZFI_PROCESS_CHANNELS; k++) {
        zfi_nccl_channel *ch = &m->channels[k];
        ch->calls = calloc((size_t)m->p.comm.world, sizeof *ch->calls);
        if (!ch->calls) return false;
    }
    return true;
}

/* Blocks of a channel's kernels: those of all channels take at most half of the multiprocessors. */
static int zfi_nccl_ctas(int processors)
{
    int ctas = ZFI_NCCL_CTAS;
    while (ctas > 1 && 2 * ZFI_PROCESS_CHANNELS * ctas > processors) ctas /= 2;
    return ctas;
}

/* Free device memory; 0 where that is not known. */
static size_t zfi_nccl_free_bytes(void)
{
    size_t left = 0, all = 0;
    if (!cudaMemGetInfo(&left, &all)) return left;
    (void)cudaGetLastError();
    return 0;
}

/* The first calls of the channel, in which ranks compare their settings and NCCL connects them: so
 * its buffers exist, and no step waits for that. */
static bool zfi_nccl_connect_all(zfi_nccl *m, int channel)
{
    const zf_collective first = {.op = ZF_OP_none, .channel = channel};
    const zfi_call head = {.count = (int64_t)m->half, .root = m->ctas, .sum = m->fast};
    zfi_nccl_channel *ch = &m->channels[channel];
    zfi_nccl_wait wait = {m, channel, NULL, "did not come", {0, 0, 0, false}};
    const zfi_nccl_work w = zfi_nccl_work_of(m, &first, ch->stream);
    const zfi_nccl_move move = {ZF_OP_all_to_all, ch->staging, ch->staging + m->half,
                                ZFI_NCCL_LINE,    0,           ZFI_NCCL_LINE,
                                ncclUint8};
    return zfi_nccl_meet(m, &first, head) && zfi_nccl_put(&w, &move) && zfi_nccl_drain(&wait);
}

/* Makes a channel's streams, events and memory on the device. */
static cudaError_t zfi_nccl_open_channel(const zfi_nccl *m, zfi_nccl_channel *ch)
{
    const size_t bytes = 2 * m->half + 2 * ZFI_NCCL_PASSAGE;
    int least = 0, first = 0; /* streams that communicate have priority over those that compute */
    cudaError_t code = cudaDeviceGetStreamPriorityRange(&least, &first);
    if (!code) code = cudaStreamCreateWithPriority(&ch->stream, cudaStreamNonBlocking, first);
    if (!code) code = cudaStreamCreateWithPriority(&ch->adding, cudaStreamNonBlocking, first);
    for (int i = 0; i < 2 && !code; i++) {
        code = cudaEventCreateWithFlags(&ch->came[i], cudaEventDisableTiming);
        if (!code) code = cudaEventCreateWithFlags(&ch->added[i], cudaEventDisableTiming);
    }
    if (!code) code = cudaMalloc((void **)&ch->staging, bytes);
    if (!code) code = cudaHostAlloc((void **)&ch->place, sizeof *ch->place, cudaHostAllocMapped);
    if (code) return code;
    memset(ch->place, 0, sizeof *ch->place);
    return cudaHostGetDevicePointer((void **)&ch->tell, ch->place, 0);
}

/* Makes the channels, after the ranks have found one another. */
static bool zfi_nccl_open(zfi_nccl *m, double start)
{
    cudaError_t code = cudaSetDevice(m->device);
    int processors = 0;
    size_t before, after;
    if (!code)
        code = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, m->device);
    for (int k = 0; k < ZFI_PROCESS_CHANNELS && !code; k++) {
        zfi_nccl_channel *ch = &m->channels[k];
        ch->has_thread = !pthread_create(&ch->thread, NULL, zfi_nccl_thread, ch);
        if (!ch->has_thread)
            return zfi_process_find(&m->p, ZF_ERR_NOMEM, "zf_nccl_comm: no thread can be started");
    }
    if (code) {
        (void)cudaGetLastError();
        return zfi_process_find(&m->p, ZF_ERR_BACKEND, "zf_nccl_comm: device %d: %s", m->device,
                                cudaGetErrorString(code));
    }
    if (m->ctas > 1 && ZFI_PROCESS_CHANNELS * m->ctas > processors)
        return zfi_process_find(&m->p, ZF_ERR_ARGUMENT,
                                "zf_nccl_comm: ctas is %d; those of %d channels must fit on the %d "
                                "multiprocessors of device %d together",
                                m->ctas, ZFI_PROCESS_CHANNELS, processors, m->device);
    if (!m->ctas) m->ctas = zfi_nccl_ctas(processors);
    before = zfi_nccl_free_bytes();
    for (int k = 0; k < ZFI_PROCESS_CHANNELS; k++)
        if ((code = zfi_nccl_open_channel(m, &m->channels[k])))
            return zfi_nccl_find_cuda(m, NULL, "memory and streams of the device", code);
    for (int k = 0; k < ZFI_PROCESS_CHANNELS; k++) {
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        zfi_nccl_wait wait = {m, k, NULL, "did not come", {0, 0, zfi_now() - start, false}};
        ncclResult_t made;
        ncclUniqueId id;
        memcpy(&id, m->meet.ids.as.ids + (size_t)k * sizeof id, sizeof id);
        config.blocking = 0;
        config.maxCTAs = m->ctas;
        pthread_mutex_lock(&m->p.mutex);
        made = ncclCommInitRankConfig(&m->channels[k].nccl, m->p.comm.world, id, m->p.comm.rank,
                                      &config);
        pthread_mutex_unlock(&m->p.mutex);
        if (made && made != ncclInProgress) return zfi_nccl_find_nccl(m, k, NULL, made);
        if (!zfi_nccl_settle(&wait)) return false;
    }
    for (int k = 0; k < ZFI_PROCESS_CHANNELS; k++)
        if (!zfi_nccl_connect_all(m, k)) return false;
    after = zfi_nccl_free_bytes();
    m->p.comm.memory = before > after ? before - after : 0;
    return true;
}

static zf_status zfi_nccl_check_desc(const zf_nccl_desc *d, zf_error *error)
{
    const int ways = (d->host != NULL) + (d->file != NULL) + (d->id != NULL);
    const size_t least = 2 * ZFI_NCCL_LINE * (size_t)(d->world > 0 ? d->world : 1);
    if (d->world < 1 || d->world > ZFI_NCCL_WORLD)
        return zfi_fail(error, ZF_ERR_ARGUMENT, "zf_nccl_comm: world is %d; it must be 1 to %d",
                        (int)d->world, ZFI_NCCL_WORLD);
    if (d->rank < 0 || d->rank >= d->world)
        return zfi_fail(error, ZF_ERR_ARGUMENT,
                        "zf_nccl_comm: rank is %d; in a world of %d it must be 0 to %d",
                        (int)d->rank, (int)d->world, (int)d->world - 1);
    if (zfi_check_deadline("zf_nccl_comm", d->deadline_seconds, error)) return ZF_ERR_ARGUMENT;
    if (d->staging_bytes < least || d->staging_bytes > (size_t)1 << 40)
        return zfi_fail(error, ZF_ERR_ARGUMENT,
                        "zf_nccl_comm: staging_bytes is %zu; for a world of %d it must be %zu "
                        "to 2^40, or 0 for 32 MiB",
                        d->staging_bytes, (int)d->world, least);
    if (d->ctas < 0 || d->ctas > 32 || (d->ctas & (d->ctas - 1)))
        return zfi_fail(error, ZF_ERR_ARGUMENT,
                        "zf_nccl_comm: ctas is %d; it must be 1, 2, 4, 8, 16 or 32, or 0 for "
                        "what fits the device",
                        (int)d->ctas);
    if (ways > 1 || (!ways && d->world > 1))
        return zfi_fail(error, ZF_ERR_ARGUMENT,
                        "zf_nccl_comm: %d of host, file and id are given; it must be one, by "
                        "which the ranks find one another",
                        ways);
    if (d->host && (d->port < 1 || d->port > 65535))
        return zfi_fail(error, ZF_ERR_ARGUMENT, "zf_nccl_comm: port is %d; it must be 1 to 65535",
                        (int)d->port);
    if ((d->host && !*d->host) || (d->file && !*d->file))
        return zfi_fail(error, ZF_ERR_ARGUMENT, "zf_nccl_comm: %s is empty",
                        d->host ? "host" : "file");
    return ZF_OK;
}

ZF_API zf_status zf_nccl_id(void *id, zf_error *error)
{
    _Static_assert(ZFI_PROCESS_CHANNELS * sizeof(ncclUniqueId) == ZF_NCCL_ID_BYTES, "an id each");
    for (int k = 0; k < ZFI_PROCESS_CHANNELS; k++) {
        ncclUniqueId one;
        ncclResult_t code = ncclGetUniqueId(&one);
        if (code)
            return zfi_fail(error, ZF_ERR_COMM, "zf_nccl_id: " ZFI_NCCL ": %s",
                            ncclGetErrorString(code));
        memcpy((char *)id + (size_t)k * sizeof one, &one, sizeof one);
    }
    return ZF_OK;
}

ZF_API zf_comm *zf_nccl_comm(const zf_nccl_desc *desc, zf_error *error)
{
    const double start = zfi_now();
    zf_nccl_desc d = desc ? *desc : (zf_nccl_desc){.world = 1};
    zf_error why = {ZF_OK, ""};
    zfi_nccl *m;
    if (!d.world) d.world = 1;
    if (d.deadline_seconds == 0) d.deadline_seconds = 60;
    if (!d.staging_bytes) d.staging_bytes = ZFI_NCCL_STAGING;
    if (zfi_nccl_check_desc(&d, error)) return NULL;
    if (!(m = calloc(1, sizeof *m))) {
        zfi_nomem(error);
        return NULL;
    }
    m->p.comm = (zf_comm){.self = m,
                          .rank = d.rank,
                          .world = d.world,
                          .run = zfi_nccl_run,
                          .abort = zfi_nccl_abort,
                          .destroy = zfi_nccl_destroy,
                          .check = zfi_nccl_check,
                          .groups = true};
    zfi_process_init(&m->p, "zf_nccl_comm", d.deadline_seconds, zfi_nccl_on_failure);
    m->meet.p = &m->p;
    m->meet.host = d.host, m->meet.port = d.port;
    m->meet.key = zfi_meet_key(d.run);
    m->device = d.device;
    m->fast = d.fast;
    m->ctas = d.ctas;
    m->half = d.staging_bytes / 2 & ~(size_t)(ZFI_NCCL_LINE - 1);
    for (int k = 0; k < ZFI_PROCESS_CHANNELS; k++) m->channels[k].of = m;
    zfi_condition_init(&m->ends);
    if (!zfi_nccl_allocate(m, d.file)) zfi_nomem(&why);
    else zfi_nccl_find_others(m, d.id, start, &why);
    if (why.status) zfi_process_fail(&m->p, &why, why.text);
    else if (zfi_nccl_open(m, start)) zfi_meet_unpublish(&m->meet);
    if (!m->p.error.status) return &m->p.comm;
    zfi_fail(error, m->p.error.status, "%s", m->p.error.text);
    zfi_nccl_destroy(m);
    return NULL;
}
