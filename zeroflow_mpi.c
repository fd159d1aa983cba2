/* Ranks as processes: zf_mpi_comm over MPI.
 *
 *     mpicc -c zeroflow_mpi.c        next to zeroflow.h; link it with the rest
 *     mpirun -np 4 program
 *
 * Code shared with other communicators is in comm/; dist/zeroflow_mpi.c (`make dist`) is one file.
 *
 * A collective consists of messages between any two ranks. No message is longer than a piece, so
 * MPI limits neither the length of a buffer nor its memory. Messages go through staging memory of a
 * fixed size. Round k sends piece k of each rank's data for each other rank:
 *
 *     in --copy--> staging ====> staging of rank 1 --copy, or add in the order of ranks--> out
 *                          ====> staging of rank 2 --'
 *
 * While the pieces of one round are added, those of the next are in flight. MPI never sees the
 * caller's memory, so after a failure the caller may free it, even if MPI has not finished.
 *
 * The call of a group is the same between its ranks alone. Groups need no communicator of their
 * own, since any two ranks have one order of calls on a channel, over all groups.
 *
 * The head of a message names its call, and in each call every two ranks exchange at least one
 * message, possibly empty: so ranks that make different calls find out. A rank that fails sends the
 * others a notice; ranks that wait check for notices. A rank that has waited for a quarter of the
 * deadline sends a heartbeat, so that waiting ranks are not taken for the lost one.
 *
 * In a reduction each rank receives its shard from all and adds it; all_reduce then gathers the
 * sums. Small operands, and those of two ranks, are sent whole and added by each rank.
 *
 * mpirun ends all ranks when a process dies, unless it was started with --enable-recovery. Then the
 * other ranks get an error. But between hosts, a call to Open MPI 4.1 may not return once a
 * connection has broken, unless OMPI_MCA_btl_tcp_progress_thread=1 is set. After an error, end with
 * MPI_Abort, since MPI_Finalize may wait for lost ranks. */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif
#include "zeroflow.h"

#include "comm/process.c"

#include <mpi.h>
#include <signal.h>

enum {
    /* Rounds in flight: while a link sends one, the next ones already match their receivers, and a
     * message waits after all others on its way */
    ZFI_MPI_DEPTH = 8,
    ZFI_MPI_STAGING = 8 << 20,     /* bytes of a channel's staging; pieces are made to fit */
    ZFI_MPI_LEAST_PIECE = 4 << 10, /* minimum of bytes, for any number of ranks */
    ZFI_MPI_MOST_PIECE = 256 << 10,
    ZFI_MPI_NOTICE = ZFI_PROCESS_CHANNELS /* the tag of notices; that of a message is its channel */
};

/* The first bytes of a message. */
typedef struct zfi_mpi_head {
    zfi_call call;
    int64_t at; /* first element of the piece */
    int32_t phase;
    int32_t unused[3];
} zfi_mpi_head;

enum { ZFI_MPI_HEAD = sizeof(zfi_mpi_head) };

/* A notice to another rank, in memory that MPI reads while it is in flight. */
typedef struct zfi_mpi_notice {
    int32_t channel; /* the channel where the rank waits; -1: it has failed */
    int32_t status;  /* after a failure: its zf_status, */
    char text[500];  /* and the reason */
    int32_t missing; /* of a heartbeat: a rank for which this one waits */
} zfi_mpi_notice;

typedef struct zfi_mpi_mail {
    zfi_mpi_notice notice;
    MPI_Request *requests; /* [world] */
} zfi_mpi_mail;

/* The messages from and to each rank in every round in flight. Requests and slots of staging have
 * the same numbers (zfi_mpi_index). */
typedef struct zfi_mpi_channel {
    bool left; /* MPI still uses the staging of a call that failed */
    char *staging;
    MPI_Request *requests;
    MPI_Status *statuses; /* [world], with indices: results of MPI_Testsome */
    int *indices;
    const void **parts; /* [world], the terms of a sum */
    zfi_mpi_mail mail;
} zfi_mpi_channel;

typedef struct zfi_mpi {
    zfi_process p;
    MPI_Comm mpi;
    size_t piece, slot; /* bytes: maximum payload of a message; the same with its head */
    bool *lost;         /* [world], the ranks that the error names, until they hear */
    zfi_mpi_mail mail;
    zfi_mpi_channel channels[ZFI_PROCESS_CHANNELS];
} zfi_mpi;

/* ------------------------------------------------------------------------------------- failing */

/* Starts sending the notice to another rank. */
static void zfi_mpi_post(zfi_mpi *m, zfi_mpi_mail *mail, int32_t rank)
{
    MPI_Request *request = &mail->requests[rank];
    if (rank != m->p.comm.rank && MPI_Isend(&mail->notice, sizeof mail->notice, MPI_BYTE, rank,
                                            ZFI_MPI_NOTICE, m->mpi, request))
        *request = MPI_REQUEST_NULL;
}

/* Ends `count` requests; receives are cancelled. True if MPI has not finished with some. */
static bool zfi_mpi_drop(MPI_Request *requests, size_t count, bool receive)
{
    bool left = false;
    for (size_t k = 0; k < count; k++) {
        int done = 0;
        if (requests[k] == MPI_REQUEST_NULL) continue;
        if (receive) MPI_Cancel(&requests[k]);
        MPI_Test(&requests[k], &done, MPI_STATUS_IGNORE);
        if (requests[k] == MPI_REQUEST_NULL) continue;
        MPI_Request_free(&requests[k]);
        left = true;
    }
    return left;
}

/* Tells the other ranks, except the lost ones, why this rank fails. Notices that cannot be sent
 * within a second are left to MPI. */
static void zfi_mpi_on_failure(void *self, zf_status status, const char *notice)
{
    zfi_mpi *m = self;
    double start = zfi_now(), waited = 0, patience = m->p.deadline < 1 ? m->p.deadline : 1;
    int all = 0;
    if (!notice) return;
    m->mail.notice.channel = -1;
    m->mail.notice.status = (int32_t)status;
    snprintf(m->mail.notice.text, sizeof m->mail.notice.text, "%s", notice);
    for (int32_t r = 0; r < m->p.comm.world; r++)
        if (!m->lost[r]) zfi_mpi_post(m, &m->mail, r);
    while (!MPI_Testall(m->p.comm.world, m->mail.requests, &all, MPI_STATUSES_IGNORE) && !all &&
           waited < patience) {
        zfi_back_off(waited);
        waited = zfi_now() - start;
    }
}

/* Also tells the lost ranks, which may only be late. Open MPI may not return from sending to a
 * process that is gone, when it tries to connect again: so this is done last, and its result is not
 * checked. */
static void zfi_mpi_tell_lost(zfi_mpi *m)
{
    pthread_mutex_lock(&m->p.mutex);
    for (int32_t r = 0; r < m->p.comm.world; r++)
        if (m->lost[r]) zfi_mpi_post(m, &m->mail, r);
    memset(m->lost, 0, (size_t)m->p.comm.world * sizeof *m->lost);
    pthread_mutex_unlock(&m->p.mutex);
}

/* Fails with an error of MPI, in a message from or to a rank; -1: in any. */
static bool zfi_mpi_find_code(zfi_mpi *m, const zf_collective *c, int32_t rank, int code)
{
    char name[64], who[64] = "", text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, text, &length);
    if (rank >= 0) snprintf(who, sizeof who, "rank %d of %d: ", (int)rank, (int)m->p.comm.world);
    return zfi_process_find(&m->p, ZF_ERR_COMM, "%s: %s%s", zfi_process_call(&m->p, name, c), who,
                            text);
}

static void zfi_mpi_give_up(zfi_mpi *m, int32_t rank, zf_status status, const char *reason,
                            const char *notice)
{
    zf_error error = {ZF_OK, ""};
    zfi_fail_by_rank(&error, rank, status, reason);
    zfi_process_fail(&m->p, &error, notice);
}

/* Blocks SIGPIPE for this thread: MPI writes to sockets whose other end may be gone, and the signal
 * would end the process. True if it was not blocked before. */
static bool zfi_mpi_block_pipe(sigset_t *pipe)
{
    sigset_t before;
    sigemptyset(pipe);
    sigaddset(pipe, SIGPIPE);
    return !pthread_sigmask(SIG_BLOCK, pipe, &before) && !sigismember(&before, SIGPIPE);
}

/* Undoes zfi_mpi_block_pipe, and removes a pending signal. */
static void zfi_mpi_unblock_pipe(const sigset_t *pipe)
{
    sigtimedwait(pipe, NULL, &(struct timespec){0, 0});
    pthread_sigmask(SIG_UNBLOCK, pipe, NULL);
}

static void zfi_mpi_abort(void *self, zf_status status, const char *reason)
{
    zfi_mpi *m = self;
    sigset_t pipe;
    bool unblock = zfi_mpi_block_pipe(&pipe);
    if (!reason) reason = "";
    zfi_mpi_give_up(m, m->p.comm.rank, status, reason, reason);
    if (unblock) zfi_mpi_unblock_pipe(&pipe);
}

/* Receives notices of other ranks, if there are any. */
static void zfi_mpi_listen(zfi_mpi *m)
{
    while (!atomic_load(&m->p.failed)) {
        MPI_Message message;
        MPI_Status status;
        zfi_mpi_notice notice = {.channel = -1};
        int there = 0;
        if (MPI_Improbe(MPI_ANY_SOURCE, ZFI_MPI_NOTICE, m->mpi, &there, &message, &status) ||
            !there)
            return;
        MPI_Mrecv(&notice, sizeof notice, MPI_BYTE, &message, &status);
        notice.text[sizeof notice.text - 1] = 0;
        if (notice.channel < 0 || notice.channel >= ZFI_PROCESS_CHANNELS) {
            zfi_mpi_give_up(m, status.MPI_SOURCE, (zf_status)notice.status, notice.text, NULL);
            return;
        }
        pthread_mutex_lock(&m->p.mutex);
        zfi_process_heard(&m->p, notice.channel, status.MPI_SOURCE,
                          (zf_group){notice.missing, 1, 1});
        pthread_mutex_unlock(&m->p.mutex);
    }
}

/* -------------------------------------------------------------------------------------- rounds */

/* What each rank sends to each other: one segment of `total` elements, or all of them; and what is
 * done with it. Segment r is the elements [r * segment, (r + 1) * segment), as far as they
 * exist. */
typedef struct zfi_mpi_phase {
    zfi_mpi *m;
    zfi_mpi_channel *channel;
    const zf_collective *call;
    zf_group group; /* its ranks, which the functions below know by their number in it, from 0 on */
    int32_t mine;   /* that of this rank */
    size_t size;    /* bytes of an element */
    const char *in;
    char *out;
    int64_t total, segment;
    bool by_target; /* segment r of in is for rank r; else all ranks get the data at `in` */
    bool by_source; /* rank r's data go to segment r of out; else to `out` */
    bool sum;       /* the ranks' data are added; else they are copied */
    int32_t root;   /* the only rank that sends data, others only heads; -1: all do */
    int32_t to;     /* the only rank that gets data; -1: all do */
    int32_t number; /* number of the phase */
} zfi_mpi_phase;

static int32_t zfi_mpi_rank(const zfi_mpi_phase *p, int32_t number)
{
    return p->group.first + number * p->group.stride;
}

static int64_t zfi_mpi_clamp(int64_t x, int64_t least, int64_t most)
{
    return x < least ? least : x > most ? most : x;
}

/* The number of elements that rank `from` has for rank `to` */
static int64_t zfi_mpi_elements(const zfi_mpi_phase *p, int32_t from, int32_t to)
{
    int64_t r = p->by_target ? to : from;
    if ((p->root >= 0 && from != p->root) || (p->to >= 0 && to != p->to) ||
        !zfi_is_neighbour(p->call, to, from))
        return 0;
    if (!p->by_target && !p->by_source) return p->total;
    return zfi_mpi_clamp(p->total - r * p->segment, 0, p->segment);
}

/* The maximum of elements in a piece, and where the piece of a round begins. */
static int64_t zfi_mpi_cut(const zfi_mpi_phase *p) { return (int64_t)(p->m->piece / p->size); }
static int64_t zfi_mpi_at(const zfi_mpi_phase *p, int64_t round) { return round * zfi_mpi_cut(p); }

/* The number of elements from rank to rank in a round; -1: there is no message. */
static int64_t zfi_mpi_piece(const zfi_mpi_phase *p, int32_t from, int32_t to, int64_t round)
{
    int64_t left = zfi_mpi_elements(p, from, to) - zfi_mpi_at(p, round);
    if (left <= 0 && round) return -1;
    return zfi_mpi_clamp(left, 0, zfi_mpi_cut(p));
}

static int64_t zfi_mpi_rounds(const zfi_mpi_phase *p)
{
    int64_t most = p->by_target || p->by_source ? p->segment : p->total, cut = zfi_mpi_cut(p);
    return most > cut ? (most - 1) / cut + 1 : 1;
}

/* The number of the message from rank 0 in this round; the one to rank 0 is `world` further. */
static size_t zfi_mpi_index(const zfi_mpi_phase *p, int64_t round)
{
    return (size_t)(round % ZFI_MPI_DEPTH) * 2 * (size_t)p->m->p.comm.world;
}

static char *zfi_mpi_slot(const zfi_mpi_phase *p, size_t index)
{
    return p->channel->staging + index * p->m->slot;
}

static zfi_mpi_head zfi_mpi_head_of(const zfi_mpi_phase *p, int64_t round)
{
    return (zfi_mpi_head){
        .call = zfi_call_of(p->call), .at = zfi_mpi_at(p, round), .phase = p->number};
}

/* The address of this rank's piece for `to`. */
static const char *zfi_mpi_source(const zfi_mpi_phase *p, int32_t to, int64_t round)
{
    int64_t first = zfi_mpi_at(p, round) + (p->by_target ? to * p->segment : 0);
    return p->in + (size_t)first * p->size;
}

/* Starts the messages of a round. */
static bool zfi_mpi_begin(const zfi_mpi_phase *p, int64_t round)
{
    const int32_t world = p->group.count, rank = p->mine;
    const size_t from = zfi_mpi_index(p, round), to = from + (size_t)p->m->p.comm.world;
    MPI_Request *requests = p->channel->requests;
    const int tag = p->call->channel;
    const zfi_mpi_head head = zfi_mpi_head_of(p, round);
    bool headed = false, filled = false; /* the slot that is sent to all ranks */
    int code;
    for (int32_t r = 0; r < world; r++) {
        if (r == rank || zfi_mpi_piece(p, r, rank, round) < 0) continue;
        code = MPI_Irecv(zfi_mpi_slot(p, from + (size_t)r), (int)p->m->slot, MPI_BYTE,
                         zfi_mpi_rank(p, r), tag, p->m->mpi, &requests[from + (size_t)r]);
        if (code) return zfi_mpi_find_code(p->m, p->call, zfi_mpi_rank(p, r), code);
    }
    for (int32_t k = 1; k < world; k++) {
        const int32_t r = (int32_t)(((int64_t)rank + k) % world); /* not all to one rank */
        const int64_t count = zfi_mpi_piece(p, rank, r, round);
        char *slot = zfi_mpi_slot(p, to + (size_t)(p->by_target ? r : rank));
        if (count < 0) continue;
        if (!headed) memcpy(slot, &head, sizeof head);
        headed = !p->by_target;
        if (count && !filled) { /* after messages without data, perhaps */
            memcpy(slot + sizeof head, zfi_mpi_source(p, r, round), (size_t)count * p->size);
            filled = !p->by_target;
        }
        code = MPI_Isend(slot, (int)(ZFI_MPI_HEAD + (size_t)count * p->size), MPI_BYTE,
                         zfi_mpi_rank(p, r), tag, p->m->mpi, &requests[to + (size_t)r]);
        if (code) return zfi_mpi_find_code(p->m, p->call, zfi_mpi_rank(p, r), code);
    }
    return true;
}

/* Checks a message from a rank: fails if it belongs to another call than this one. */
static bool zfi_mpi_check_message(const zfi_mpi_phase *p, int64_t round, int32_t from,
                                  const MPI_Status *status)
{
    const int32_t rank = p->m->p.comm.rank, other = zfi_mpi_rank(p, from),
                  first = rank < other ? rank : other, second = rank < other ? other : rank;
    const int64_t count = zfi_mpi_piece(p, from, p->mine, round);
    zfi_mpi_head ours = zfi_mpi_head_of(p, round), theirs = {.at = 0};
    char low[128], high[128];
    int bytes = 0;
    MPI_Get_count(status, MPI_BYTE, &bytes);
    if (bytes >= ZFI_MPI_HEAD)
        memcpy(&theirs, zfi_mpi_slot(p, zfi_mpi_index(p, round) + (size_t)from), sizeof theirs);
    if (!memcmp(&ours, &theirs, sizeof ours) &&
        (size_t)bytes == ZFI_MPI_HEAD + (size_t)count * p->size)
        return true;
    zfi_call_text(first == rank ? low : high, &ours.call);
    zfi_call_text(first == rank ? high : low, &theirs.call);
    if (!strcmp(low, high))
        return zfi_process_find(
            &p->m->p, ZF_ERR_COMM,
            "%s: ranks %d and %d do not cut it into the same pieces; they must run "
            "the same version of zeroflow",
            low, (int)first, (int)second);
    return zfi_process_find(&p->m->p, ZF_ERR_COMM, "rank %d is at %s, rank %d at %s", (int)first,
                            low, (int)second, high);
}

/* After the deadline: the error names the ranks that are late, of which those with unfinished
 * requests are missing here. */
static bool zfi_mpi_missing(const zfi_mpi_phase *p, const MPI_Request *requests, const char *what,
                            double since)
{
    zfi_mpi *m = p->m;
    zfi_rank_list list = {.count = 0};
    char name[64];
    pthread_mutex_lock(&m->p.mutex);
    memset(m->p.marks, 0, (size_t)m->p.comm.world);
    for (int32_t k = 0; k < p->group.count; k++)
        if (requests[k] != MPI_REQUEST_NULL) m->p.marks[zfi_mpi_rank(p, k)] = ZFI_LATE_MISSING;
    zfi_process_list_late(&m->p, p->call->channel, since, &list);
    for (int32_t r = 0; r < m->p.comm.world && !m->p.error.status; r++)
        if (m->p.marks[r] & ZFI_LATE_NAMED) m->lost[r] = true;
    pthread_mutex_unlock(&m->p.mutex);
    return zfi_process_find(&m->p, ZF_ERR_COMM, "%s: %s %s within %g s",
                            zfi_process_call(&p->m->p, name, p->call),
                            zfi_list_end(&list, m->p.comm.world), what, m->p.deadline);
}

/* All messages that rank `from` had to send so far have arrived. */
static bool zfi_mpi_is_ahead(const zfi_mpi_phase *p, int32_t from)
{
    for (int64_t k = 0; k < ZFI_MPI_DEPTH; k++) {
        MPI_Request request = p->channel->requests[zfi_mpi_index(p, k) + (size_t)from];
        int done = 1;
        if (request == MPI_REQUEST_NULL) continue;
        if (MPI_Request_get_status(request, &done, MPI_STATUS_IGNORE) || !done) return false;
    }
    return true;
}

/* Sends a heartbeat, unless the one before is still in flight. Ranks of the call that have sent
 * everything that this rank can receive wait for it and hear of it; others of the call may be gone
 * and are not. Ranks outside the group may wait for one that waits for this one. */
static void zfi_mpi_tell_waiting(const zfi_mpi_phase *p, const MPI_Request *requests)
{
    zfi_mpi_mail *mail = &p->channel->mail;
    const int32_t world = p->m->p.comm.world;
    int32_t missing = 0;
    int all = 0;
    if (MPI_Testall(world, mail->requests, &all, MPI_STATUSES_IGNORE) || !all) return;
    while (missing < p->group.count && requests[missing] == MPI_REQUEST_NULL) missing++;
    mail->notice.channel = p->call->channel;
    mail->notice.missing = zfi_mpi_rank(p, missing);
    for (int32_t r = 0; r < world; r++)
        if (!zfi_group_has(&p->group, r) ||
            zfi_mpi_is_ahead(p, (r - p->group.first) / p->group.stride))
            zfi_mpi_post(p->m, mail, r);
}

/* Waits until all messages of the round have arrived, or have been sent. The deadline is for each
 * message, so a slow rank that makes progress is waited for. Time in which this process itself was
 * stopped hardly counts, since messages that arrived meanwhile are handled first. */
static bool zfi_mpi_wait(const zfi_mpi_phase *p, int64_t round, bool sent)
{
    zfi_mpi *m = p->m;
    zfi_mpi_channel *ch = p->channel;
    MPI_Request *requests =
        ch->requests + zfi_mpi_index(p, round) + (size_t)(sent ? m->p.comm.world : 0);
    zfi_wait wait = {0, 0, 0, false};
    for (;;) {
        int done = 0;
        zfi_patience patience;
        int code = MPI_Testsome(m->p.comm.world, requests, &done, ch->indices, ch->statuses);
        if (code && code != MPI_ERR_IN_STATUS) return zfi_mpi_find_code(m, p->call, -1, code);
        if (done == MPI_UNDEFINED) return true;
        for (int i = 0; i < done; i++) {
            const MPI_Status *status = &ch->statuses[i];
            if (code && status->MPI_ERROR && status->MPI_ERROR != MPI_ERR_PENDING)
                return zfi_mpi_find_code(m, p->call, zfi_mpi_rank(p, ch->indices[i]),
                                         status->MPI_ERROR);
            if (!sent && !zfi_mpi_check_message(p, round, ch->indices[i], status)) return false;
        }
        if (done) {
            wait = (zfi_wait){0, 0, 0, false};
            continue;
        }
        patience = zfi_wait_more(&wait, m->p.deadline);
        if (wait.waited >= zfi_spinning) zfi_mpi_listen(m);
        if (atomic_load(&m->p.failed)) return false;
        if (patience == ZFI_HEARTBEAT) zfi_mpi_tell_waiting(p, requests);
        if (patience == ZFI_TOO_LONG)
            return zfi_mpi_missing(p, requests,
                                   sent                ? "took nothing more"
                                   : p->number + round ? "sent nothing more"
                                                       : "did not come",
                                   wait.since);
    }
}

/* Adds or copies the data that have arrived in a round, and this rank's own piece. */
static void zfi_mpi_finish(const zfi_mpi_phase *p, int64_t round)
{
    const int32_t world = p->group.count, rank = p->mine;
    const size_t index = zfi_mpi_index(p, round);
    const int64_t at = zfi_mpi_at(p, round), own = zfi_mpi_piece(p, rank, rank, round);
    const void **parts = p->channel->parts;
    for (int32_t r = 0; r < world; r++) {
        const int64_t count = zfi_mpi_piece(p, r, rank, round);
        char *to = p->out;
        parts[r] = NULL;
        if (count <= 0 || (r == rank && p->call->op == ZF_OP_send)) continue;
        parts[r] = r == rank ? zfi_mpi_source(p, rank, round)
                             : zfi_mpi_slot(p, index + (size_t)r) + ZFI_MPI_HEAD;
        to += (size_t)(at + (p->by_source ? r * p->segment : 0)) * p->size;
        if (!p->sum && to != parts[r]) memcpy(to, parts[r], (size_t)count * p->size);
    }
    if (p->sum && own > 0)
        zfi_collective_add(p->call, p->out + (size_t)at * p->size, parts, world, own);
}

/* After a failure: cancels what is in flight. */
static void zfi_mpi_cancel(zfi_mpi *m, zfi_mpi_channel *ch)
{
    const size_t world = (size_t)m->p.comm.world;
    for (size_t k = 0; k < 2 * ZFI_MPI_DEPTH; k++)
        if (zfi_mpi_drop(ch->requests + k * world, world, k % 2 == 0)) ch->left = true;
}

static bool zfi_mpi_run_phase(const zfi_mpi_phase *p)
{
    const int64_t rounds = zfi_mpi_rounds(p);
    for (int64_t k = 0; k < rounds && k < ZFI_MPI_DEPTH; k++)
        if (!zfi_mpi_begin(p, k)) return false;
    for (int64_t k = 0; k < rounds; k++) {
        if (!zfi_mpi_wait(p, k, false)) return false;
        zfi_mpi_finish(p, k);
        if (!zfi_mpi_wait(p, k, true)) return false;
        if (k + ZFI_MPI_DEPTH < rounds && !zfi_mpi_begin(p, k + ZFI_MPI_DEPTH)) return false;
    }
    return true;
}

/* --------------------------------------------------------------------------------- collectives */

/* Each rank adds its shard of the sum to `out` (with `add`, whose contents are then the same on all
 * ranks); then all gather the shards. */
static bool zfi_mpi_all_reduce(zfi_mpi_phase *p)
{
    const int64_t world = p->group.count;
    size_t mine;
    p->sum = true;
    if (world < 3 || (size_t)p->total * p->size <= ZFI_SMALL_SUM) return zfi_mpi_run_phase(p);
    p->segment = (p->total - 1) / world + 1;
    mine = (size_t)zfi_mpi_clamp(p->mine * p->segment, 0, p->total) * p->size;
    p->by_target = true;
    p->out += mine;
    if (!zfi_mpi_run_phase(p)) return false;
    p->in = p->out, p->out -= mine;
    p->by_target = p->sum = false, p->by_source = true;
    p->number = 1;
    return zfi_mpi_run_phase(p);
}

static bool zfi_mpi_collective(zfi_mpi *m, const zf_collective *c)
{
    const zf_group group = zf_collective_group(c, &m->p.comm);
    zfi_mpi_phase p = {.m = m,
                       .channel = &m->channels[c->channel],
                       .call = c,
                       .group = group,
                       .mine = (m->p.comm.rank - group.first) / group.stride,
                       .size = zf_dtype_size(c->dtype),
                       .in = c->in,
                       .out = c->out,
                       .total = c->count * group.count,
                       .segment = c->count,
                       .root = -1,
                       .to = -1};
    switch (c->op) {
    case ZF_OP_all_gather: p.by_source = true; break;
    case ZF_OP_reduce_scatter: p.by_target = p.sum = true; break;
    case ZF_OP_all_to_all: p.by_target = p.by_source = true; break;
    case ZF_OP_all_reduce: p.total = c->count; return zfi_mpi_all_reduce(&p);
    case ZF_OP_reduce: p.total = c->count, p.sum = true, p.to = c->root; break;
    default: /* bcast, send */ p.total = c->count; p.root = c->root;
    }
    return zfi_mpi_run_phase(&p);
}

static zf_status zfi_mpi_run(void *self, const zf_collective *c, zf_error *error)
{
    zfi_mpi *m = self;
    sigset_t pipe;
    zf_status status;
    bool done, unblock;
    int cancel;
    if ((status = zfi_process_begin(&m->p, c, false, &cancel, error))) return status;
    unblock = zfi_mpi_block_pipe(&pipe);
    zfi_mpi_listen(m);
    done = !atomic_load(&m->p.failed) && zfi_mpi_collective(m, c);
    if (!done) {
        zfi_mpi_cancel(m, &m->channels[c->channel]);
        zfi_mpi_tell_lost(m);
    }
    if (unblock) zfi_mpi_unblock_pipe(&pipe);
    return zfi_process_end(&m->p, c, done, cancel, error);
}

/* ---------------------------------------------------------------------------- the communicator */

/* Frees it. After a failure MPI is not called again, since it might wait for lost ranks: the
 * communicator, the notices and staging in use stay. */
static void zfi_mpi_destroy(void *self)
{
    zfi_mpi *m = self;
    bool failed = atomic_load(&m->p.failed);
    int ended = 0;
    for (int k = 0; k < ZFI_PROCESS_CHANNELS; k++) {
        zfi_mpi_channel *ch = &m->channels[k];
        if (ch->mail.requests && !failed &&
            zfi_mpi_drop(ch->mail.requests, (size_t)m->p.comm.world, false))
            failed = true;
        if (!ch->left) free(ch->staging);
        free(ch->requests);
        free(ch->statuses);
        free(ch->indices);
        free(ch->parts);
        free(ch->mail.requests);
    }
    free(m->mail.requests);
    free(m->lost);
    zfi_process_free(&m->p);
    if (failed) return;
    MPI_Finalized(&ended);
    if (!ended && m->mpi != MPI_COMM_NULL) MPI_Comm_free(&m->mpi);
    free(m);
}

/* Duplicates the communicator with all ranks that come within the deadline. If some do not, MPI
 * still has the request and its memory: then `m->p.failed` is set. */
static zf_status zfi_mpi_duplicate(zfi_mpi *m, MPI_Comm parent, zf_error *error)
{
    MPI_Request request;
    double start = zfi_now(), waited = 0;
    int done = 0, rank, world, code = MPI_Comm_idup(parent, &m->mpi, &request);
    while (!code && !(code = MPI_Test(&request, &done, MPI_STATUS_IGNORE)) && !done) {
        if (waited > m->p.deadline) {
            atomic_store(&m->p.failed, true);
            return zfi_fail(error, ZF_ERR_COMM, "zf_mpi_comm: not all ranks came within %g s",
                            m->p.deadline);
        }
        zfi_back_off(waited);
        waited = zfi_now() - start;
    }
    if (!code) code = MPI_Comm_set_errhandler(m->mpi, MPI_ERRORS_RETURN);
    if (!code) code = MPI_Comm_rank(m->mpi, &rank);
    if (!code) code = MPI_Comm_size(m->mpi, &world);
    if (code) {
        char text[MPI_MAX_ERROR_STRING] = "";
        int length = 0;
        MPI_Error_string(code, text, &length);
        return zfi_fail(error, ZF_ERR_COMM, "zf_mpi_comm: %s", text);
    }
    m->p.comm = (zf_comm){.self = m,
                          .rank = rank,
                          .world = world,
                          .run = zfi_mpi_run,
                          .abort = zfi_mpi_abort,
                          .destroy = zfi_mpi_destroy,
                          .groups = true};
    return ZF_OK;
}

static MPI_Request *zfi_mpi_requests(size_t count)
{
    MPI_Request *requests = calloc(count, sizeof *requests);
    for (size_t k = 0; requests && k < count; k++) requests[k] = MPI_REQUEST_NULL;
    return requests;
}

/* Allocates the memory for all calls, by the size of the world. */
static bool zfi_mpi_allocate(zfi_mpi *m)
{
    const size_t world = (size_t)m->p.comm.world, slots = 2 * ZFI_MPI_DEPTH * world;
    m->piece = (size_t)zfi_mpi_clamp((int64_t)(ZFI_MPI_STAGING / slots), ZFI_MPI_LEAST_PIECE,
                                     ZFI_MPI_MOST_PIECE) &
               ~(size_t)63;
    m->slot = ZFI_MPI_HEAD + m->piece;
    m->mail.requests = zfi_mpi_requests(world);
    m->lost = calloc(world, sizeof *m->lost);
    if (!m->mail.requests || !m->lost || !zfi_process_allocate(&m->p)) return false;
    if (slots > SIZE_MAX / m->slot) return false;
    for (int k = 0; k < ZFI_PROCESS_CHANNELS; k++) {
        zfi_mpi_channel *ch = &m->channels[k];
        ch->staging = aligned_alloc(64, slots * m->slot);
        ch->requests = zfi_mpi_requests(slots);
        ch->statuses = calloc(world, sizeof *ch->statuses);
        ch->indices = calloc(world, sizeof *ch->indices);
        ch->parts = calloc(world, sizeof *ch->parts);
        ch->mail.requests = zfi_mpi_requests(world);
        if (!ch->staging || !ch->requests || !ch->statuses || !ch->indices || !ch->parts ||
            !ch->mail.requests)
            return false;
    }
    return true;
}

/* Checks that MPI runs and allows several threads, and that the communicator is an
 * intracommunicator. */
static zf_status zfi_mpi_check_desc(const zf_mpi_desc *d, zf_error *error)
{
    int started = 0, ended = 0, threads = MPI_THREAD_SINGLE, inter = 0;
    MPI_Comm mpi = d->comm ? *(const MPI_Comm *)d->comm : MPI_COMM_WORLD;
    if (zfi_check_deadline("zf_mpi_comm", d->deadline_seconds, error)) return ZF_ERR_ARGUMENT;
    MPI_Initialized(&started);
    if (started) MPI_Finalized(&ended);
    if (!started || ended)
        return zfi_fail(error, ZF_ERR_COMM, "zf_mpi_comm: MPI %s; call it %s",
                        ended ? "has been finalized" : "has not been initialised",
                        ended ? "before MPI_Finalize" : "after MPI_Init_thread");
    MPI_Query_thread(&threads);
    if (threads < MPI_THREAD_MULTIPLE)
        return zfi_fail(error, ZF_ERR_COMM,
                        "zf_mpi_comm: MPI was not initialised for several threads; call "
                        "MPI_Init_thread with MPI_THREAD_MULTIPLE, and see what it provides");
    if (mpi == MPI_COMM_NULL || MPI_Comm_test_inter(mpi, &inter) || inter)
        return zfi_fail(error, ZF_ERR_ARGUMENT, "zf_mpi_comm: comm is %s; it must be an %s",
                        inter ? "an intercommunicator" : "MPI_COMM_NULL",
                        "intracommunicator, or NULL for MPI_COMM_WORLD");
    return ZF_OK;
}

ZF_API zf_comm *zf_mpi_comm(const zf_mpi_desc *desc, zf_error *error)
{
    zf_mpi_desc d = desc ? *desc : (zf_mpi_desc){.deadline_seconds = 0};
    zfi_mpi *m;
    if (d.deadline_seconds == 0) d.deadline_seconds = 60;
    if (zfi_mpi_check_desc(&d, error)) return NULL;
    if (!(m = calloc(1, sizeof *m))) {
        zfi_nomem(error);
        return NULL;
    }
    m->mpi = MPI_COMM_NULL;
    zfi_process_init(&m->p, "zf_mpi_comm", d.deadline_seconds, zfi_mpi_on_failure);
    if (zfi_mpi_duplicate(m, d.comm ? *(const MPI_Comm *)d.comm : MPI_COMM_WORLD, error)) {
        zfi_mpi_destroy(m);
        return NULL;
    }
    if (!zfi_mpi_allocate(m)) {
        zfi_nomem(error);
        if (m->mail.requests && m->lost) zfi_mpi_abort(m, ZF_ERR_NOMEM, "out of memory");
        zfi_mpi_destroy(m);
        return NULL;
    }
    return &m->p.comm;
}
