/* Ranks with a GPU each: zf_nccl_comm over NCCL.
 *
 *     cc -c zeroflow_nccl.c       beside zeroflow.h; link it with zeroflow_cuda.o, -lnccl, -lcudart
 *
 * What only moves goes from buffer to buffer. NCCL's sums promise no order, so that here a sum is
 * an exchange of messages, in pieces, and an addition on the device, in the order of ranks; while
 * the pieces of one half of the staging memory are added, the next come into the other:
 *
 *     stream   in ====> half 0 ====> half 1 ====> half 0 (when it is added) ==== the last is added
 *     adding            '- add in order -> out    '- add -> out
 *
 * A rank receives its part of the sum from all, as many bytes as NCCL's reduce-scatter would move;
 * all_reduce then gathers the sums. What is small, or is shared by two, is sent whole and added by
 * each.
 *
 * A call on a stream is work on that stream, whatever becomes of it: no memory is asked for,
 * nothing is waited for, and it may be captured. A call on no stream goes in pieces through memory
 * of the device, after all ranks have compared what they call: those who differ find out. (On a
 * stream they do not: there the ranks have compared their plans.)
 *
 * Each channel has a communicator of NCCL's, so that channels overlap; their kernels are bounded, for
 * NCCL promises that none waits for ever only where all can run at once. They do not block: whatever
 * NCCL waits for, it is asked for it until the deadline, and then aborted. On a stream, two kernels
 * of one thread tell the host which call it is in; so a device that waits for long is not taken for
 * one that waits for another rank.
 *
 * Beside NCCL, ranks tell one another when they give up, and (through rank 0) that they wait as
 * well, so that those that wait in vain are not taken for the one that is lost. Nobody listens but
 * who waits.
 *
 * NCCL frees a communicator when there is no graph any more that holds calls of it, and waits until
 * then, also in ncclCommAbort. So that nothing else waits for that, each channel has a thread that
 * sleeps until its communicator is to be freed or aborted: all channels are aborted at once, their
 * kernels end, and the graphs can be freed by whoever holds them.
 */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif
#include "zeroflow.h"

#include <cuda_runtime_api.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <nccl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    ZFI_NCCL_CHANNELS = 3,
    ZFI_NCCL_WORLD = 1 << 14,
    ZFI_NCCL_STAGING = 32 << 20,
    ZFI_NCCL_PASSAGE = 1 << 20, /* bytes of a call on no stream at a time, in and out */
    ZFI_NCCL_CTAS = 16,
    ZFI_NCCL_SMALL = 16 << 10, /* bytes up to which all_reduce sends its operand whole */
    ZFI_NCCL_LINE = 16         /* bytes that pieces and parts of sums are multiples of */
};

/* What ranks compare before a call on no stream. */
typedef struct zfi_nccl_head {
    int64_t count;
    int32_t op, node, dtype, root, add;
    int32_t unused;
} zfi_nccl_head;

typedef enum zfi_nccl_word {
    ZFI_NCCL_HERE = 1, /* to rank 0: this rank has come */
    ZFI_NCCL_IDS,      /* of rank 0 */
    ZFI_NCCL_WAITS,    /* at `channel`, like others */
    ZFI_NCCL_GAVE_UP,  /* text: why */
    ZFI_NCCL_LEFT      /* freed its communicator */
} zfi_nccl_word;

/* What ranks tell one another, by TCP or in files. */
typedef struct zfi_nccl_note {
    char magic[8];
    int32_t word, rank, world, channel;
    uint64_t run; /* in files: which creation of a communicator it belongs to */
    union {
        char text[512];
        unsigned char ids[ZF_NCCL_ID_BYTES];
    } as;
} zfi_nccl_note;

/* A connection, and as much of the next note as has come. */
typedef struct zfi_nccl_line {
    int socket; /* -1: none */
    size_t have;
    zfi_nccl_note note;
} zfi_nccl_line;

/* What the thread of a channel does with NCCL's communicator. */
typedef enum zfi_nccl_end { ZFI_NCCL_STAYS, ZFI_NCCL_DESTROY, ZFI_NCCL_ABORT } zfi_nccl_end;

typedef struct zfi_nccl_channel {
    struct zfi_nccl *of;
    atomic_bool busy;      /* a call is under way */
    ncclComm_t nccl;       /* by the mutex; NULL once it is aborted */
    pthread_t thread;      /* which ends `ending`; by the mutex: */
    bool has_thread, over; /* it was started; it has done its work */
    zfi_nccl_end end;
    ncclComm_t ending;             /* what was `nccl` */
    cudaStream_t stream;           /* of calls on no stream */
    cudaStream_t adding;           /* sums of pieces */
    cudaEvent_t came[2], added[2]; /* of either half */
    bool left;                     /* the stream has not come to its end after a call that failed */
    char *staging;                 /* two halves, then the passage in and the passage out */
    zf_cuda_place *place;          /* where the stream is, as the host sees it, */
    zf_cuda_place *tell;           /* and as the device does */
    zf_cuda_place seen;            /* at the last look, */
    double looked, waited;         /* which was then; since when it is so */
    bool told;                     /* that this rank waits */
    double *alive;        /* [world], when each last told that it waits here; by the mutex */
    zfi_nccl_head *heads; /* [world], of a call on no stream */
} zfi_nccl_channel;

typedef struct zfi_nccl {
    zf_comm comm;
    int device;
    double deadline;
    bool fast;
    int ctas;    /* of each channel */
    size_t half; /* bytes */
    pthread_mutex_t mutex;
    pthread_cond_t ends; /* some channel is to end, or is over; its clock is the monotonic one */
    atomic_bool failed;
    zf_error error; /* the first; it does not change once `failed` is set */
    zfi_nccl_channel channels[ZFI_NCCL_CHANNELS];
    /* How ranks talk: by the mutex. */
    double next_look;
    zfi_nccl_line *lines; /* NULL, or [world]: of rank 0 to each, of others [0] to rank 0 */
    char *file;           /* NULL, or its name, */
    char *names[2];       /* room for names that begin with it, */
    uint64_t run, *runs;  /* this creation; of rank 0: [world], those that ranks have come for */
    zfi_nccl_note ids;    /* of rank 0 */
    bool published;       /* this rank has written a file for the others to find it */
    bool *out;            /* [world], some ranks, for a while */
} zfi_nccl;

#if defined(__GNUC__)
#define ZFI_NCCL_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define ZFI_NCCL_PRINTF(text, first)
#endif

/* -------------------------------------------------------------------------------------- texts */

static double zfi_nccl_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Records the error unless there is one; returns status. `error` may be NULL. */
ZFI_NCCL_PRINTF(3, 4)
static zf_status zfi_nccl_error(zf_error *error, zf_status status, const char *format, ...)
{
    if (error && !error->status) {
        va_list args;
        va_start(args, format);
        error->status = status;
        vsnprintf(error->text, sizeof error->text, format, args);
        va_end(args);
    }
    return status;
}

/* "all_gather %59"; of none, what makes the communicator. */
static const char *zfi_nccl_call_name(char text[64], const zf_collective *c)
{
    return c && c->op ? zf_collective_name(text, c) : "zf_nccl_comm";
}

/* "bcast %59 of 1024 f32 from rank 1" */
static const char *zfi_nccl_call_text(char text[128], const zfi_nccl_head *h)
{
    return zf_collective_text(text, &(zf_collective){.op = (zf_op)h->op,
                                                     .node = h->node,
                                                     .dtype = (zf_dtype)h->dtype,
                                                     .count = h->count,
                                                     .add = h->add,
                                                     .root = h->root});
}

/* "ranks 1, 2 of 4": those that are `out`, and which of them. */
static const char *zfi_nccl_ranks(char text[256], const zfi_nccl *m, const bool *out)
{
    enum { MOST = 16 };
    char list[MOST * 8 + 32] = "";
    size_t at = 0;
    int32_t n = 0;
    for (int32_t r = 0; r < m->comm.world; r++)
        if (out[r] && n++ < MOST)
            at += (size_t)snprintf(list + at, sizeof list - at, "%s%d", n > 1 ? ", " : "", (int)r);
    if (n > MOST) snprintf(list + at, sizeof list - at, " and %d more", (int)n - MOST);
    snprintf(text, 256, "rank%s %s of %d", n > 1 ? "s" : "", list, (int)m->comm.world);
    return text;
}

/* -------------------------------------------------------------------------------------- by TCP */

static void zfi_nccl_note_of(const zfi_nccl *m, zfi_nccl_note *n, zfi_nccl_word word,
                             const char *text)
{
    memset(n, 0, sizeof *n);
    memcpy(n->magic, "zf_nccl1", sizeof n->magic);
    n->word = (int32_t)word;
    n->rank = m->comm.rank, n->world = m->comm.world;
    n->run = m->run;
    if (text) snprintf(n->as.text, sizeof n->as.text, "%s", text);
}

static bool zfi_nccl_is_note(zfi_nccl_note *n)
{
    if (n->word != ZFI_NCCL_IDS) n->as.text[sizeof n->as.text - 1] = 0;
    return !memcmp(n->magic, "zf_nccl1", sizeof n->magic);
}

static void zfi_nccl_hang_up(zfi_nccl_line *line)
{
    if (line->socket >= 0) close(line->socket);
    line->socket = -1;
    line->have = 0;
}

/* Sends the note, unless it cannot be sent within a second: then the line is given up. */
static void zfi_nccl_send(zfi_nccl_line *line, const zfi_nccl_note *note)
{
    const double until = zfi_nccl_now() + 1;
    const char *at = (const char *)note;
    size_t left = sizeof *note;
    while (left && line->socket >= 0) {
        ssize_t n = send(line->socket, at, left, MSG_NOSIGNAL);
        if (n >= 0) {
            at += n, left -= (size_t)n;
        } else if (errno == EAGAIN && zfi_nccl_now() < until) {
            poll(&(struct pollfd){.fd = line->socket, .events = POLLOUT}, 1, 100);
        } else if (errno != EINTR) {
            zfi_nccl_hang_up(line);
        }
    }
}

/* What has come: 1, a note; 0, no whole one; -1, the other end is gone, or is something else. */
static int zfi_nccl_receive(zfi_nccl_line *line)
{
    while (line->have < sizeof line->note) {
        ssize_t n = recv(line->socket, (char *)&line->note + line->have,
                         sizeof line->note - line->have, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return 0;
        if (n <= 0) return -1;
        line->have += (size_t)n;
    }
    line->have = 0;
    return zfi_nccl_is_note(&line->note) ? 1 : -1;
}

/* Lines that this rank has: to each other rank, or to rank 0. */
static int32_t zfi_nccl_lines(const zfi_nccl *m)
{
    return !m->lines ? 0 : m->comm.rank ? 1 : m->comm.world;
}

/* To all other ranks but `but`: from rank 0, or through it. The mutex is held. */
static void zfi_nccl_send_all(zfi_nccl *m, const zfi_nccl_note *note, int32_t but)
{
    for (int32_t r = 0; r < zfi_nccl_lines(m); r++)
        if (r != but) zfi_nccl_send(&m->lines[r], note);
}

/* Notes of other ranks, which rank 0 passes on. True when there is cause to give up: `error`, and
 * whether the others know already. The mutex is held. */
static bool zfi_nccl_hear(zfi_nccl *m, zf_error *error, bool *known)
{
    const int32_t world = m->comm.world;
    for (int32_t r = 0; r < zfi_nccl_lines(m); r++) {
        zfi_nccl_line *line = &m->lines[r];
        while (line->socket >= 0) {
            const zfi_nccl_note *n = &line->note;
            int got = zfi_nccl_receive(line);
            if (!got) break;
            if (got < 0 || n->rank < 0 || n->rank >= world) {
                zfi_nccl_hang_up(line);
                *known = m->comm.rank != 0;
                zfi_nccl_error(error, ZF_ERR_COMM, "rank %d of %d has ended", (int)r, (int)world);
                return true;
            }
            if (n->word == ZFI_NCCL_LEFT) zfi_nccl_hang_up(line);
            if (!m->comm.rank && n->word != ZFI_NCCL_LEFT) zfi_nccl_send_all(m, n, r);
            if (n->word == ZFI_NCCL_WAITS && n->channel >= 0 && n->channel < ZFI_NCCL_CHANNELS)
                m->channels[n->channel].alive[n->rank] = zfi_nccl_now();
            if (n->word != ZFI_NCCL_GAVE_UP) continue;
            *known = true;
            zfi_nccl_error(error, ZF_ERR_COMM, "rank %d gave up%s%s", (int)n->rank,
                           n->as.text[0] ? ": " : "", n->as.text);
            return true;
        }
    }
    return false;
}

/* ------------------------------------------------------------------------------------ by files
 *
 *     FILE.2    of rank 2: it has come, with a number of its own
 *     FILE      of rank 0, when all have come: their numbers, and the ids
 *
 * A rank takes what bears its number. What an earlier run has left bears others: rank 0 may take an
 * old FILE.2 for a new one, but looks on, and writes FILE again when it has changed. */

/* The file's name with a suffix, ".2" of rank 2. */
static const char *zfi_nccl_name(zfi_nccl *m, int which, const char *format, int32_t rank)
{
    size_t length = strlen(m->file);
    memcpy(m->names[which], m->file, length);
    snprintf(m->names[which] + length, 32, format, (int)rank);
    return m->names[which];
}

/* Writes what appears under names[0] at once: the note and `more`. */
static bool zfi_nccl_write_file(zfi_nccl *m, const zfi_nccl_note *note, const void *more,
                                size_t bytes)
{
    const char *part = zfi_nccl_name(m, 1, ".%d.part", m->comm.rank);
    FILE *f = fopen(part, "wb");
    bool good = f && fwrite(note, sizeof *note, 1, f) == 1 && fwrite(more, 1, bytes, f) == bytes;
    if (f && fclose(f)) good = false;
    if (good && !rename(part, m->names[0])) return true;
    if (f) remove(part);
    return false;
}

/* Reads what is under names[0], and is about as many ranks as there are. */
static bool zfi_nccl_read_file(const zfi_nccl *m, zfi_nccl_note *note, void *more, size_t bytes)
{
    FILE *f = fopen(m->names[0], "rb");
    bool good = f && fread(note, sizeof *note, 1, f) == 1 && fread(more, 1, bytes, f) == bytes &&
                zfi_nccl_is_note(note) && note->world == m->comm.world;
    if (f) fclose(f);
    return good;
}

/* Of rank 0: looks who has come, and writes FILE when all have, and each time that changes; false,
 * with `out`, while some are missing. */
static bool zfi_nccl_publish(zfi_nccl *m, bool *out, zf_error *error)
{
    const size_t bytes = (size_t)m->comm.world * sizeof *m->runs;
    bool all = true, changed = !m->published;
    for (int32_t r = 1; r < m->comm.world; r++) {
        zfi_nccl_note note;
        char none;
        zfi_nccl_name(m, 0, ".%d", r);
        if (zfi_nccl_read_file(m, &note, &none, 0) && note.rank == r && m->runs[r] != note.run) {
            m->runs[r] = note.run;
            changed = true;
        }
        out[r] = !m->runs[r];
        all = all && !out[r];
    }
    if (!all || !changed) return all;
    zfi_nccl_name(m, 0, "", 0);
    m->published = zfi_nccl_write_file(m, &m->ids, m->runs, bytes);
    if (!m->published)
        zfi_nccl_error(error, ZF_ERR_IO, "zf_nccl_comm: %s cannot be written: %s", m->names[0],
                       strerror(errno));
    return m->published;
}

/* A rank has said in FILE.failed why it gives up. The mutex is held. */
static bool zfi_nccl_read_failure(zfi_nccl *m, zf_error *error)
{
    zfi_nccl_note note;
    char none;
    zfi_nccl_name(m, 0, ".failed", 0);
    if (!zfi_nccl_read_file(m, &note, &none, 0) || note.run != m->run) return false;
    zfi_nccl_error(error, ZF_ERR_COMM, "rank %d gave up%s%s", (int)note.rank,
                   note.as.text[0] ? ": " : "", note.as.text);
    return true;
}

/* Removes the files that this rank has made for the others to find it. */
static void zfi_nccl_unpublish(zfi_nccl *m)
{
    if (!m->file || !m->published) return;
    remove(zfi_nccl_name(m, 0, m->comm.rank ? ".%d" : "", m->comm.rank));
    m->published = false;
}

/* ------------------------------------------------------------------------------------- failing */

/* The threads of all channels end NCCL's communicators. The mutex is held. */
static void zfi_nccl_end_all(zfi_nccl *m, zfi_nccl_end end)
{
    for (int k = 0; k < ZFI_NCCL_CHANNELS; k++) {
        zfi_nccl_channel *ch = &m->channels[k];
        if (ch->end) continue;
        ch->ending = ch->nccl;
        ch->nccl = NULL;
        ch->end = end;
    }
    pthread_cond_broadcast(&m->ends);
}

/* From here on every call fails with this error, unless with an earlier one, and soon nothing on a
 * stream waits for other ranks. Those are told `notice` if it is not NULL. Returns false. */
static bool zfi_nccl_fail(zfi_nccl *m, const zf_error *error, const char *notice)
{
    pthread_mutex_lock(&m->mutex);
    if (!m->error.status) {
        zfi_nccl_note note;
        m->error = *error;
        atomic_store(&m->failed, true);
        zfi_nccl_note_of(m, &note, ZFI_NCCL_GAVE_UP, notice);
        if (notice) zfi_nccl_send_all(m, &note, -1);
        if (notice && m->file && m->run) {
            zfi_nccl_name(m, 0, ".failed", 0);
            zfi_nccl_write_file(m, &note, "", 0);
        }
        zfi_nccl_end_all(m, ZFI_NCCL_ABORT);
    }
    pthread_mutex_unlock(&m->mutex);
    return false;
}

/* Fails for a reason that this rank found out, and tells it. */
ZFI_NCCL_PRINTF(3, 4)
static bool zfi_nccl_find(zfi_nccl *m, zf_status status, const char *format, ...)
{
    zf_error error = {status, ""};
    va_list args;
    va_start(args, format);
    vsnprintf(error.text, sizeof error.text, format, args);
    va_end(args);
    return zfi_nccl_fail(m, &error, error.text);
}

/* The same for an error of CUDA's. */
static bool zfi_nccl_find_cuda(zfi_nccl *m, const zf_collective *c, const char *what,
                               cudaError_t code)
{
    char name[64];
    (void)cudaGetLastError(); /* it is told here, and by no later call */
    return zfi_nccl_find(m, code == cudaErrorMemoryAllocation ? ZF_ERR_NOMEM : ZF_ERR_BACKEND,
                         "%s: %s: %s", zfi_nccl_call_name(name, c), what, cudaGetErrorString(code));
}

/* The same for an error of NCCL's, of the channel's communicator. */
static bool zfi_nccl_find_nccl(zfi_nccl *m, int channel, const zf_collective *c, ncclResult_t code)
{
    char name[64], more[256] = "";
    const char *last = NULL;
    pthread_mutex_lock(&m->mutex);
    if (m->channels[channel].nccl) last = ncclGetLastError(m->channels[channel].nccl);
    if (last && *last) snprintf(more, sizeof more, ": %s", last);
    pthread_mutex_unlock(&m->mutex);
    return zfi_nccl_find(m, ZF_ERR_COMM, "%s: NCCL: %s%s", zfi_nccl_call_name(name, c),
                         ncclGetErrorString(code), more);
}

static void zfi_nccl_abort(void *self, const char *reason)
{
    zfi_nccl *m = self;
    zf_error error = {ZF_OK, ""};
    int cancel;
    if (!reason) reason = "";
    zfi_nccl_error(&error, ZF_ERR_COMM, "rank %d gave up%s%s", (int)m->comm.rank,
                   *reason ? ": " : "", reason);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    zfi_nccl_fail(m, &error, reason);
    pthread_setcancelstate(cancel, &cancel);
}

/* ------------------------------------------------------------------------------------- waiting */

/* A wait for other ranks, in a call on `channel`. It is over after the deadline without a
 * change. */
typedef struct zfi_nccl_wait {
    zfi_nccl *m;
    int channel;
    const zf_collective *call;
    const char *what; /* the others have not done */
    double since, before, waited, listened;
    bool told;
} zfi_nccl_wait;

/* Takes the notices of other ranks, if there are any. */
static void zfi_nccl_listen(zfi_nccl *m)
{
    zf_error error = {ZF_OK, ""};
    double now = zfi_nccl_now();
    bool known = true, out = false;
    pthread_mutex_lock(&m->mutex);
    if (now >= m->next_look && !m->error.status) {
        m->next_look = now + (m->file ? 0.05 : 1e-3);
        if (m->lines) out = zfi_nccl_hear(m, &error, &known);
        else if (m->file && m->run) out = zfi_nccl_read_failure(m, &error);
        if (m->published && !m->comm.rank) zfi_nccl_publish(m, m->out, &error);
    }
    pthread_mutex_unlock(&m->mutex);
    if (out) zfi_nccl_fail(m, &error, known ? NULL : error.text);
}

/* Tells that this rank waits. */
static void zfi_nccl_tell_waiting(zfi_nccl *m, int channel)
{
    zfi_nccl_note note;
    zfi_nccl_note_of(m, &note, ZFI_NCCL_WAITS, NULL);
    note.channel = channel;
    pthread_mutex_lock(&m->mutex);
    zfi_nccl_send_all(m, &note, -1);
    pthread_mutex_unlock(&m->mutex);
}

/* The deadline has passed: names the ranks that have not told since then that they wait as well. If
 * rank 0 is one of them, others may have told it in vain. */
static bool zfi_nccl_missing(zfi_nccl *m, int channel, const zf_collective *c, const char *what,
                             double since)
{
    const int32_t world = m->comm.world, rank = m->comm.rank;
    const double *alive = m->channels[channel].alive;
    char name[64], list[256];
    bool known = m->lines || world == 2;
    pthread_mutex_lock(&m->mutex);
    for (int32_t r = 0; r < world; r++) m->out[r] = r != rank && alive[r] < since;
    for (int32_t r = 1; r < world && m->out[0]; r++) m->out[r] = false;
    zfi_nccl_ranks(list, m, m->out);
    pthread_mutex_unlock(&m->mutex);
    if (!known) snprintf(list, sizeof list, "some rank of %d", (int)world);
    return zfi_nccl_find(m, ZF_ERR_COMM, "%s: %s %s within %g s", zfi_nccl_call_name(name, c), list,
                         what, m->deadline);
}

/* What NCCL says of the channel; ncclInvalidUsage when it is aborted. */
static ncclResult_t zfi_nccl_state(zfi_nccl *m, int channel)
{
    ncclResult_t code, state = ncclInvalidUsage;
    pthread_mutex_lock(&m->mutex);
    if (m->channels[channel].nccl) {
        code = ncclCommGetAsyncError(m->channels[channel].nccl, &state);
        if (code) state = code;
    }
    pthread_mutex_unlock(&m->mutex);
    return state;
}

/* A breath of who has waited for that long: none at first, then others may run, then a sleep that
 * grows with the wait to half a millisecond. */
static void zfi_nccl_breathe(double waited)
{
    double sleep = waited / 8;
    if (waited < 10e-6) return;
    if (waited < 200e-6) {
        sched_yield();
    } else {
        if (sleep > 500e-6) sleep = 500e-6;
        nanosleep(&(struct timespec){0, (long)(sleep * 1e9)}, NULL);
    }
}

/* Waits a little longer; false if there is nothing left to wait for: it has failed. Time in which
 * this process itself was stopped hardly counts. */
static bool zfi_nccl_go_on(zfi_nccl_wait *w)
{
    zfi_nccl *m = w->m;
    double now = zfi_nccl_now();
    if (w->since == 0) w->since = w->before = now;
    w->waited += fmin(now - w->before, m->deadline / 8);
    w->before = now;
    zfi_nccl_breathe(w->waited);
    if (w->waited > 1e-3) zfi_nccl_listen(m);
    if (atomic_load(&m->failed)) return false;
    if (!w->told && w->waited > m->deadline / 2) {
        w->told = true;
        zfi_nccl_tell_waiting(m, w->channel);
    }
    if (w->waited > m->deadline) return zfi_nccl_missing(m, w->channel, w->call, w->what, w->since);
    return true;
}

/* Until NCCL is through with what it was asked to do on the channel. */
static bool zfi_nccl_settle(zfi_nccl_wait *w)
{
    for (;;) {
        ncclResult_t state = zfi_nccl_state(w->m, w->channel);
        if (state == ncclSuccess) return true;
        if (atomic_load(&w->m->failed)) return false;
        if (state != ncclInProgress) return zfi_nccl_find_nccl(w->m, w->channel, w->call, state);
        if (!zfi_nccl_go_on(w)) return false;
    }
}

/* Until the channel's own stream is through. */
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
        if (atomic_load(&w->m->failed)) return false;
        if (state && state != ncclInProgress)
            return zfi_nccl_find_nccl(w->m, w->channel, w->call, state);
        if (!zfi_nccl_go_on(w)) return false;
    }
}

/* Asked by a device that waits for its streams: whether one of them has been in the same call for
 * too long. */
static zf_status zfi_nccl_check(void *self, double seconds, zf_error *error)
{
    zfi_nccl *m = self;
    int cancel;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    zfi_nccl_listen(m);
    for (int k = 0; k < ZFI_NCCL_CHANNELS && !atomic_load(&m->failed); k++) {
        zfi_nccl_channel *ch = &m->channels[k];
        const volatile zf_cuda_place *place = ch->place;
        const double now = zfi_nccl_now(), passed = fmin(now - ch->looked, seconds);
        ncclResult_t state = zfi_nccl_state(m, k);
        zf_cuda_place seen = {.turn = place->turn, .call = place->call};
        const bool stays = seen.call.op != ZF_OP_none && seen.turn == ch->seen.turn;
        ch->looked = now;
        ch->seen = seen;
        ch->told = ch->told && stays;
        ch->waited = stays ? ch->waited + fmin(passed, m->deadline / 8) : 0;
        if (state && state != ncclInProgress && !atomic_load(&m->failed))
            zfi_nccl_find_nccl(m, k, seen.call.op ? &seen.call : NULL, state);
        else if (ch->waited > m->deadline)
            zfi_nccl_missing(m, k, &seen.call, "did not come", now - ch->waited);
        else if (!ch->told && ch->waited > m->deadline / 2) {
            ch->told = true;
            zfi_nccl_tell_waiting(m, k);
        }
    }
    pthread_setcancelstate(cancel, &cancel);
    if (!atomic_load(&m->failed)) return ZF_OK;
    return zfi_nccl_error(error, m->error.status, "%s", m->error.text);
}

/* --------------------------------------------------------------------------------- on a stream */

/* A call on a stream. */
typedef struct zfi_nccl_work {
    zfi_nccl *m;
    const zf_collective *call;
    cudaStream_t stream;
    size_t size; /* bytes of an element */
} zfi_nccl_work;

/* What NCCL is asked to do: `count` elements of `type`, as of zf_collective. Of an all_to_all, what
 * is for rank r lies at from + r * apart, and what it sends goes to to + r * beside, but for this
 * rank's own. */
typedef struct zfi_nccl_move {
    zf_op op;
    const char *from;
    char *to;
    size_t count, apart, beside;
    ncclDataType_t type;
} zfi_nccl_move;

static bool zfi_nccl_cuda(const zfi_nccl_work *w, const char *what, cudaError_t code)
{
    return code == cudaSuccess || zfi_nccl_find_cuda(w->m, w->call, what, code);
}

static ncclResult_t zfi_nccl_ask(const zfi_nccl_work *w, ncclComm_t nccl, const zfi_nccl_move *v)
{
    const int32_t world = w->m->comm.world, rank = w->m->comm.rank;
    ncclResult_t code, end;
    switch (v->op) {
    case ZF_OP_all_gather: return ncclAllGather(v->from, v->to, v->count, v->type, nccl, w->stream);
    case ZF_OP_reduce_scatter:
        return ncclReduceScatter(v->from, v->to, v->count, v->type, ncclSum, nccl, w->stream);
    case ZF_OP_all_reduce:
        return ncclAllReduce(v->from, v->to, v->count, v->type, ncclSum, nccl, w->stream);
    case ZF_OP_bcast:
        return ncclBroadcast(v->from, v->to, v->count, v->type, w->call->root, nccl, w->stream);
    default: break; /* all_to_all */
    }
    if ((code = ncclGroupStart())) return code;
    for (int32_t k = 1; k < world && (!code || code == ncclInProgress); k++) {
        const size_t to = (size_t)((rank + k) % world), from = (size_t)((rank - k + world) % world);
        code = ncclSend(v->from + to * v->apart, v->count, v->type, (int)to, nccl, w->stream);
        if (!code || code == ncclInProgress)
            code =
                ncclRecv(v->to + from * v->beside, v->count, v->type, (int)from, nccl, w->stream);
    }
    end = ncclGroupEnd();
    return code && code != ncclInProgress ? code : end;
}

/* Puts the move on the stream; NCCL may first have to connect to ranks, which must come for that.
 */
static bool zfi_nccl_put(const zfi_nccl_work *w, const zfi_nccl_move *v)
{
    zfi_nccl *m = w->m;
    zfi_nccl_wait wait = {m, w->call->channel, w->call, "did not come", 0, 0, 0, 0, false};
    ncclResult_t code = ncclInvalidUsage;
    if (!v->count) return true;
    pthread_mutex_lock(&m->mutex);
    if (m->channels[w->call->channel].nccl)
        code = zfi_nccl_ask(w, m->channels[w->call->channel].nccl, v);
    pthread_mutex_unlock(&m->mutex);
    if (atomic_load(&m->failed)) return false;
    if (code && code != ncclInProgress)
        return zfi_nccl_find_nccl(m, w->call->channel, w->call, code);
    return !code || zfi_nccl_settle(&wait);
}

/* Elements that a half of the staging has room for from each rank. */
static int64_t zfi_nccl_cut(const zfi_nccl_work *w)
{
    const size_t each = w->m->half / (size_t)w->m->comm.world;
    return (int64_t)((each & ~(size_t)(ZFI_NCCL_LINE - 1)) / w->size);
}

static int64_t zfi_nccl_least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Adds up the ranks' elements [at, at + n), which are in the half. */
static bool zfi_nccl_add_piece(const zfi_nccl_work *w, cudaStream_t stream, char *out,
                               const char *half, size_t stride, const char *own, int64_t n)
{
    zf_error error = {ZF_OK, ""};
    char name[64];
    const zf_cuda_sum sum = {
        out, half, stride, own, w->m->comm.rank, w->m->comm.world, n, w->call->dtype, w->call->add};
    if (!zf_cuda_add_ranks(&sum, stream, &error)) return true;
    return zfi_nccl_find(w->m, error.status, "%s: %s", zfi_nccl_call_name(name, w->call),
                         error.text);
}

/* out[0..count) from the ranks' sums of in[0..count); where `apart` is not 0, of what lies that
 * many bytes on for each rank: rank r gets the sum of what is at in + r * apart. */
static bool zfi_nccl_sum(const zfi_nccl_work *w, const char *in, char *out, int64_t count,
                         size_t apart)
{
    zfi_nccl_channel *ch = &w->m->channels[w->call->channel];
    const int64_t cut = zfi_nccl_cut(w);
    const bool one = count <= cut; /* piece: none to add beside */
    const char *own = apart ? in + (size_t)w->m->comm.rank * apart : NULL;
    int last = 0;
    for (int64_t at = 0; at < count; at += cut, last = !last) {
        const int64_t n = zfi_nccl_least(cut, count - at);
        const size_t skip = (size_t)at * w->size, bytes = (size_t)n * w->size,
                     stride = apart ? (size_t)cut * w->size : bytes;
        char *half = ch->staging + (last ? w->m->half : 0);
        const zfi_nccl_move move = {apart ? ZF_OP_all_to_all : ZF_OP_all_gather,
                                    in + skip,
                                    half,
                                    bytes,
                                    apart,
                                    stride,
                                    ncclUint8};
        if (at >= 2 * cut && !zfi_nccl_cuda(w, "cudaStreamWaitEvent",
                                            cudaStreamWaitEvent(w->stream, ch->added[last], 0)))
            return false;
        if (!zfi_nccl_put(w, &move)) return false;
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
    return one || zfi_nccl_cuda(w, "cudaStreamWaitEvent",
                                cudaStreamWaitEvent(w->stream, ch->added[!last], 0));
}

/* The sums of parts of `out`, each in one rank; then all gather them. What is left over, and what
 * is small, all sum up. */
static bool zfi_nccl_all_reduce(const zfi_nccl_work *w)
{
    const int64_t world = w->m->comm.world, line = (int64_t)(ZFI_NCCL_LINE / w->size);
    const int64_t count = w->call->count, part = count / world / line * line;
    const size_t bytes = (size_t)part * w->size, mine = bytes * (size_t)w->m->comm.rank;
    const char *in = w->call->in;
    char *out = w->call->out;
    const zfi_nccl_move gather = {ZF_OP_all_gather, out + mine, out, bytes, 0, 0, ncclUint8};
    if (world < 3 || (size_t)count * w->size <= ZFI_NCCL_SMALL)
        return zfi_nccl_sum(w, in, out, count, 0);
    return zfi_nccl_sum(w, in, out + mine, part, bytes) && zfi_nccl_put(w, &gather) &&
           zfi_nccl_sum(w, in + bytes * (size_t)world, out + bytes * (size_t)world,
                        count - part * world, 0);
}

/* Each in its place; over `in`, when what was there has been sent. */
static bool zfi_nccl_all_to_all(const zfi_nccl_work *w)
{
    const int64_t count = w->call->count, cut = zfi_nccl_cut(w);
    const size_t bytes = (size_t)count * w->size, stride = (size_t)cut * w->size;
    const int32_t world = w->m->comm.world, rank = w->m->comm.rank;
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

/* The type in which NCCL adds to the same sums but for the order; false: there is none. */
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
        if (w->m->fast && !c->add && zfi_nccl_type(c->dtype, &move.type)) {
            move.count = (size_t)c->count;
            return zfi_nccl_put(w, &move);
        }
        if (c->op == ZF_OP_all_reduce) return zfi_nccl_all_reduce(w);
        return zfi_nccl_sum(w, c->in, c->out, c->count, bytes);
    case ZF_OP_bcast:
        if (c->root != w->m->comm.rank) move.from = move.to; /* it is not looked at */
        return zfi_nccl_put(w, &move);
    default: return zfi_nccl_put(w, &move); /* all_gather */
    }
}

/* The call on its stream, which tells the host when it comes to it and when it leaves it. */
static bool zfi_nccl_on_stream(zfi_nccl *m, const zf_collective *c)
{
    const zfi_nccl_work w = {m, c, c->stream, zf_dtype_size(c->dtype)};
    zf_cuda_place *place = m->channels[c->channel].tell;
    zf_error error = {ZF_OK, ""};
    if (!c->count) return true;
    if (!zf_cuda_tell(place, c, c->stream, &error) && zfi_nccl_start(&w))
        zf_cuda_tell(place, NULL, c->stream, &error);
    if (error.status) zfi_nccl_fail(m, &error, error.text);
    return !atomic_load(&m->failed);
}

/* -------------------------------------------------------------------------------- on no stream */

/* All ranks have come to the channel with `head`; false if one has come with another, or none. */
static bool zfi_nccl_meet(zfi_nccl *m, const zf_collective *c, zfi_nccl_head head)
{
    const int32_t world = m->comm.world;
    zfi_nccl_channel *ch = &m->channels[c->channel];
    char *to = ch->staging + 2 * m->half, *from = to + ZFI_NCCL_PASSAGE;
    const zfi_nccl_work w = {m, c, ch->stream, 1};
    const zfi_nccl_move move = {ZF_OP_all_gather, to, from, sizeof head, 0, 0, ncclUint8};
    zfi_nccl_wait wait = {m, c->channel, c, "did not come", 0, 0, 0, 0, false};
    char low[128], high[128];
    if (!zfi_nccl_cuda(&w, "cudaMemcpyAsync",
                       cudaMemcpyAsync(to, &head, sizeof head, cudaMemcpyDefault, ch->stream)) ||
        !zfi_nccl_put(&w, &move) || !zfi_nccl_drain(&wait) ||
        !zfi_nccl_cuda(&w, "cudaMemcpyAsync",
                       cudaMemcpyAsync(ch->heads, from, (size_t)world * sizeof head,
                                       cudaMemcpyDefault, ch->stream)) ||
        !zfi_nccl_cuda(&w, "cudaStreamSynchronize", cudaStreamSynchronize(ch->stream)))
        return false;
    for (int32_t r = 1; r < world; r++) {
        const zfi_nccl_head *first = &ch->heads[0], *other = &ch->heads[r];
        if (!memcmp(first, other, sizeof *first)) continue;
        if (!first->op)
            return zfi_nccl_find(m, ZF_ERR_ARGUMENT,
                                 "zf_nccl_comm: fast, staging_bytes or ctas of ranks 0 and %d are "
                                 "not the same",
                                 (int)r);
        return zfi_nccl_find(m, ZF_ERR_COMM, "rank 0 is at %s, rank %d at %s",
                             zfi_nccl_call_text(low, first), (int)r,
                             zfi_nccl_call_text(high, other));
    }
    return true;
}

/* Of `parts` parts, elements [at, at + n) of each, to the device or from it, where they lie one
 * behind the other. */
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

/* The call in pieces, each of which is one on the channel's own stream. */
static bool zfi_nccl_through(zfi_nccl *m, const zf_collective *c)
{
    const int32_t world = m->comm.world;
    const bool spreads = c->op == ZF_OP_reduce_scatter || c->op == ZF_OP_all_to_all,
               gathers = c->op == ZF_OP_all_gather || c->op == ZF_OP_all_to_all,
               reads = c->op != ZF_OP_bcast || c->root == m->comm.rank;
    zfi_nccl_channel *ch = &m->channels[c->channel];
    zf_collective piece = *c;
    const zfi_nccl_work w = {m, c, ch->stream, zf_dtype_size(c->dtype)},
                        of = {m, &piece, ch->stream, w.size};
    char *in = ch->staging + 2 * m->half, *out = in + ZFI_NCCL_PASSAGE;
    const int64_t cut = (int64_t)(ZFI_NCCL_PASSAGE / w.size) / world;
    piece.in = in, piece.out = out;
    for (int64_t at = 0; at < c->count; at += cut) {
        zfi_nccl_wait wait = {m, c->channel, c, "sent nothing more", 0, 0, 0, 0, false};
        piece.count = zfi_nccl_least(cut, c->count - at);
        if ((reads && !zfi_nccl_pass(&w, true, spreads ? world : 1, (char *)(uintptr_t)c->in, at,
                                     in, piece.count)) ||
            (c->add && !zfi_nccl_pass(&w, true, 1, c->out, at, out, piece.count)) ||
            !zfi_nccl_start(&of) || !zfi_nccl_drain(&wait) ||
            !zfi_nccl_pass(&w, false, gathers ? world : 1, c->out, at, out, piece.count) ||
            !zfi_nccl_cuda(&w, "cudaStreamSynchronize", cudaStreamSynchronize(ch->stream)))
            return false;
    }
    return true;
}

static bool zfi_nccl_off_stream(zfi_nccl *m, const zf_collective *c)
{
    const zfi_nccl_head head = {.count = c->count,
                                .op = (int32_t)c->op,
                                .node = c->node,
                                .dtype = (int32_t)c->dtype,
                                .root = c->op == ZF_OP_bcast ? c->root : 0,
                                .add = c->add};
    zfi_nccl_channel *ch = &m->channels[c->channel];
    double until;
    if (zfi_nccl_meet(m, c, head) && zfi_nccl_through(m, c)) return true;
    /* Nothing waits now: copies from the caller's memory end. */
    until = zfi_nccl_now() + 10;
    while (cudaStreamQuery(ch->stream) == cudaErrorNotReady && zfi_nccl_now() < until)
        zfi_nccl_breathe(1);
    ch->left = zfi_nccl_now() >= until;
    (void)cudaGetLastError();
    return false;
}

static zf_status zfi_nccl_run(void *self, const zf_collective *c, zf_error *error)
{
    zfi_nccl *m = self;
    zf_error wrong = {ZF_OK, ""};
    cudaError_t code;
    char name[64];
    bool done = false;
    int cancel;
    if (atomic_load(&m->failed)) return zfi_nccl_error(error, m->error.status, "%s", m->error.text);
    if (!zf_collective_check(c, &m->comm, ZFI_NCCL_CHANNELS, &wrong) &&
        atomic_exchange(&m->channels[c->channel].busy, true))
        zfi_nccl_error(&wrong, ZF_ERR_ARGUMENT, "%s: another thread of rank %d is using channel %d",
                       zfi_nccl_call_name(name, c), (int)m->comm.rank, (int)c->channel);
    if (wrong.status) {
        zfi_nccl_abort(m, wrong.text);
        return zfi_nccl_error(error, wrong.status, "%s", wrong.text);
    }
    /* A thread that is cancelled inside of CUDA would leave its locks behind. */
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    zfi_nccl_listen(m);
    if (!atomic_load(&m->failed)) {
        code = cudaSetDevice(m->device);
        if (code) done = zfi_nccl_find_cuda(m, c, "cudaSetDevice", code);
        else done = c->stream ? zfi_nccl_on_stream(m, c) : zfi_nccl_off_stream(m, c);
    }
    atomic_store(&m->channels[c->channel].busy, false);
    pthread_setcancelstate(cancel, &cancel);
    return done ? ZF_OK : zfi_nccl_error(error, m->error.status, "%s", m->error.text);
}

/* ------------------------------------------------------------------------------ finding others */

/* What waits for the others, until all have come or the deadline has passed. */
typedef struct zfi_nccl_search {
    zfi_nccl *m;
    double until;
    bool *out; /* [world], those who have not come */
    zf_error *error;
} zfi_nccl_search;

static double zfi_nccl_left(const zfi_nccl_search *s) { return s->until - zfi_nccl_now(); }

/* As many milliseconds, at most `most`. */
static int zfi_nccl_milliseconds(double seconds, int most)
{
    return seconds <= 0 ? 0 : seconds * 1000 < most ? (int)(seconds * 1000) + 1 : most;
}

static zf_status zfi_nccl_absent(const zfi_nccl_search *s, const char *more)
{
    char list[256];
    return zfi_nccl_error(s->error, ZF_ERR_COMM, "zf_nccl_comm: %s did not come within %g s%s",
                          zfi_nccl_ranks(list, s->m, s->out), s->m->deadline, more);
}

/* The next note of the line, within the time; else hangs up. */
static bool zfi_nccl_next_note(zfi_nccl_line *line, double seconds)
{
    const double until = zfi_nccl_now() + seconds;
    int got;
    while (!(got = zfi_nccl_receive(line)) && zfi_nccl_now() < until)
        poll(&(struct pollfd){.fd = line->socket, .events = POLLIN}, 1,
             zfi_nccl_milliseconds(until - zfi_nccl_now(), 1000));
    if (got <= 0) zfi_nccl_hang_up(line);
    return got > 0;
}

/* A socket that does not block, and sends at once. */
static int zfi_nccl_prepare(int s)
{
    const int yes = 1;
    if (s < 0) return s;
    fcntl(s, F_SETFD, FD_CLOEXEC);
    fcntl(s, F_SETFL, fcntl(s, F_GETFL) | O_NONBLOCK);
    setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    return s;
}

/* The addresses of host:port, or NULL with the error. */
static struct addrinfo *zfi_nccl_resolve(const zf_nccl_desc *d, zf_error *error)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    char port[16];
    int code;
    snprintf(port, sizeof port, "%d", (int)d->port);
    if ((code = getaddrinfo(d->host, port, &hints, &list)))
        zfi_nccl_error(error, ZF_ERR_COMM, "zf_nccl_comm: the host '%s' is not found: %s", d->host,
                       gai_strerror(code));
    return code ? NULL : list;
}

/* Listens at the address or, where this machine does not know it as its own, at all that it has; -1
 * with errno. */
static int zfi_nccl_listen_at(const struct addrinfo *a, int32_t port)
{
    const struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    const int yes = 1, s = zfi_nccl_prepare(socket(a->ai_family, SOCK_STREAM, 0));
    int code, bound;
    if (s < 0) return s;
    setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    bound = !bind(s, a->ai_addr, a->ai_addrlen);
    if (!bound && errno == EADDRNOTAVAIL && a->ai_family == AF_INET)
        bound = !bind(s, (const struct sockaddr *)&any, sizeof any);
    if (bound && !listen(s, SOMAXCONN)) return s;
    code = errno;
    close(s);
    errno = code;
    return -1;
}

/* The rank that has connected takes its place, if it is one that is missing. */
static zf_status zfi_nccl_seat(const zfi_nccl_search *s, const zfi_nccl_line *line)
{
    const zfi_nccl_note *n = &line->note;
    const int32_t world = s->m->comm.world;
    if (n->world != world)
        return zfi_nccl_error(
            s->error, ZF_ERR_COMM,
            "zf_nccl_comm: rank %d came from a world of %d; rank 0 is in one of %d", (int)n->rank,
            (int)n->world, (int)world);
    if (n->rank < 1 || n->rank >= world || !s->out[n->rank])
        return zfi_nccl_error(s->error, ZF_ERR_COMM,
                              "zf_nccl_comm: two processes say they are rank %d", (int)n->rank);
    s->m->lines[n->rank] = *line;
    s->out[n->rank] = false;
    return ZF_OK;
}

/* Of rank 0: until all have connected, who then are told the ids. */
static zf_status zfi_nccl_receive_all(const zfi_nccl_search *s, int listening)
{
    for (int32_t missing = s->m->comm.world - 1; missing > 0;) {
        const double left = zfi_nccl_left(s);
        zfi_nccl_line line = {.socket = -1};
        if (left <= 0) return zfi_nccl_absent(s, "");
        poll(&(struct pollfd){.fd = listening, .events = POLLIN}, 1,
             zfi_nccl_milliseconds(left, 1000));
        line.socket = zfi_nccl_prepare(accept(listening, NULL, NULL));
        if (line.socket < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS))
            return zfi_nccl_error(s->error, ZF_ERR_COMM,
                                  "zf_nccl_comm: rank 0 cannot take a connection of each rank: %s",
                                  strerror(errno));
        if (line.socket < 0) continue;
        if (!zfi_nccl_next_note(&line, fmin(left, 5))) continue;
        if (line.note.word != ZFI_NCCL_HERE) {
            zfi_nccl_hang_up(&line);
        } else if (zfi_nccl_seat(s, &line)) {
            zfi_nccl_note no;
            zfi_nccl_note_of(s->m, &no, ZFI_NCCL_GAVE_UP, s->error->text);
            zfi_nccl_send(&line, &no);
            zfi_nccl_hang_up(&line);
            return s->error->status;
        } else {
            missing--;
        }
    }
    zfi_nccl_send_all(s->m, &s->m->ids, -1);
    return ZF_OK;
}

/* Connects to the address within the time; -1 if that fails. */
static int zfi_nccl_connect(const struct addrinfo *a, double seconds)
{
    const int s = zfi_nccl_prepare(socket(a->ai_family, SOCK_STREAM, 0));
    int code = 0;
    socklen_t size = sizeof code;
    if (s < 0) return s;
    if (!connect(s, a->ai_addr, a->ai_addrlen)) return s;
    if (errno == EINPROGRESS &&
        poll(&(struct pollfd){.fd = s, .events = POLLOUT}, 1,
             zfi_nccl_milliseconds(seconds, 5000)) == 1 &&
        !getsockopt(s, SOL_SOCKET, SO_ERROR, &code, &size) && !code)
        return s;
    close(s);
    return -1;
}

/* Of other ranks: until rank 0 has told the ids. What does not answer as rank 0 does may become it
 * yet. */
static zf_status zfi_nccl_ask_rank_0(const zfi_nccl_search *s, const struct addrinfo *list,
                                     const zf_nccl_desc *d)
{
    zfi_nccl_line *line = &s->m->lines[0];
    zfi_nccl_note here;
    char more[300];
    zfi_nccl_note_of(s->m, &here, ZFI_NCCL_HERE, NULL);
    for (const struct addrinfo *a = list; zfi_nccl_left(s) > 0;
         a = a->ai_next ? a->ai_next : list) {
        line->socket = zfi_nccl_connect(a, zfi_nccl_left(s));
        zfi_nccl_send(line, &here);
        if (line->socket >= 0 && zfi_nccl_next_note(line, zfi_nccl_left(s))) {
            if (line->note.word == ZFI_NCCL_IDS) {
                s->m->ids = line->note;
                return ZF_OK;
            }
            if (line->note.word == ZFI_NCCL_GAVE_UP)
                return zfi_nccl_error(s->error, ZF_ERR_COMM, "rank 0 gave up: %.480s",
                                      line->note.as.text);
        }
        zfi_nccl_hang_up(line);
        nanosleep(&(struct timespec){0, 50000000}, NULL);
    }
    snprintf(more, sizeof more, ": it is expected at %.200s:%d", d->host, (int)d->port);
    return zfi_nccl_absent(s, more);
}

static zf_status zfi_nccl_search_tcp(const zfi_nccl_search *s, const zf_nccl_desc *d)
{
    zfi_nccl *m = s->m;
    struct addrinfo *list = zfi_nccl_resolve(d, s->error);
    zf_status status = ZF_OK;
    int listening = -1;
    if (!list) return s->error->status;
    if (!(m->lines = calloc(m->comm.rank ? 1 : (size_t)m->comm.world, sizeof *m->lines)))
        status = zfi_nccl_error(s->error, ZF_ERR_NOMEM, "out of memory");
    for (int32_t r = 0; r < zfi_nccl_lines(m); r++) m->lines[r].socket = -1;
    if (m->comm.rank && !status) {
        status = zfi_nccl_ask_rank_0(s, list, d);
    } else if (!status) {
        for (const struct addrinfo *a = list; a && listening < 0; a = a->ai_next)
            listening = zfi_nccl_listen_at(a, d->port);
        if (listening >= 0) status = zfi_nccl_receive_all(s, listening);
        else
            status = zfi_nccl_error(s->error, ZF_ERR_COMM,
                                    "zf_nccl_comm: rank 0 cannot listen at %s:%d: %s", d->host,
                                    (int)d->port, strerror(errno));
        if (listening >= 0) close(listening);
    }
    freeaddrinfo(list);
    return status;
}

/* A number that no other creation has. */
static uint64_t zfi_nccl_number(const zfi_nccl *m)
{
    struct timespec t;
    uint64_t x;
    clock_gettime(CLOCK_REALTIME, &t);
    x = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    x ^= (uint64_t)getpid() << 40 ^ (uint64_t)(uintptr_t)m << 16;
    x = (x ^ x >> 31) * 0x9e3779b97f4a7c15u;
    return (x ^ x >> 29) | 1;
}

/* Of other ranks: tells rank 0 that they have come, and waits for the file that is for them. */
static zf_status zfi_nccl_read_ids(const zfi_nccl_search *s)
{
    zfi_nccl *m = s->m;
    const size_t bytes = (size_t)m->comm.world * sizeof *m->runs;
    zfi_nccl_note here, ids;
    bool other = false;
    char more[300];
    zfi_nccl_note_of(m, &here, ZFI_NCCL_HERE, NULL);
    here.run = zfi_nccl_number(m);
    zfi_nccl_name(m, 0, ".%d", m->comm.rank);
    if (!zfi_nccl_write_file(m, &here, "", 0))
        return zfi_nccl_error(s->error, ZF_ERR_IO, "zf_nccl_comm: %s cannot be written: %s",
                              m->names[0], strerror(errno));
    m->published = true;
    zfi_nccl_name(m, 0, "", 0);
    for (; zfi_nccl_left(s) > 0; nanosleep(&(struct timespec){0, 10000000}, NULL)) {
        if (!zfi_nccl_read_file(m, &ids, m->runs, bytes) || ids.word != ZFI_NCCL_IDS) continue;
        other = m->runs[m->comm.rank] != here.run;
        if (other) continue;
        m->ids = ids;
        m->run = ids.run;
        return ZF_OK;
    }
    if (other) snprintf(more, sizeof more, " (%.200s is of an earlier run)", m->file);
    return zfi_nccl_absent(s, other ? more : "");
}

static zf_status zfi_nccl_search_file(const zfi_nccl_search *s)
{
    zfi_nccl *m = s->m;
    if (m->comm.rank) return zfi_nccl_read_ids(s);
    m->run = m->ids.run = zfi_nccl_number(m);
    remove(zfi_nccl_name(m, 0, ".failed", 0));
    while (!zfi_nccl_publish(m, s->out, s->error)) {
        if (s->error->status) return s->error->status;
        if (zfi_nccl_left(s) <= 0) return zfi_nccl_absent(s, "");
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    }
    return ZF_OK;
}

/* All ranks have the ids, or soon will: m->ids. */
static zf_status zfi_nccl_search_for(zfi_nccl *m, const zf_nccl_desc *d, double start,
                                     zf_error *error)
{
    const zfi_nccl_search s = {m, start + m->deadline, m->out, error};
    for (int32_t r = 0; r < m->comm.world; r++) m->out[r] = m->comm.rank ? r == 0 : r > 0;
    zfi_nccl_note_of(m, &m->ids, ZFI_NCCL_IDS, NULL);
    if (d->id) memcpy(m->ids.as.ids, d->id, sizeof m->ids.as.ids);
    else if (!m->comm.rank && zf_nccl_id(m->ids.as.ids, error)) return error->status;
    if (m->comm.world == 1 || d->id) return ZF_OK;
    return d->host ? zfi_nccl_search_tcp(&s, d) : zfi_nccl_search_file(&s);
}

/* ---------------------------------------------------------------------------- the communicator */

/* What the thread of a channel runs. NCCL may wait in it, for as long as graphs hold its calls. */
static void *zfi_nccl_thread(void *channel)
{
    zfi_nccl_channel *ch = channel;
    zfi_nccl *m = ch->of;
    pthread_mutex_lock(&m->mutex);
    while (!ch->end) pthread_cond_wait(&m->ends, &m->mutex);
    pthread_mutex_unlock(&m->mutex);
    (void)cudaSetDevice(m->device);
    if (ch->end == ZFI_NCCL_ABORT) (void)ncclCommAbort(ch->ending);
    else (void)ncclCommDestroy(ch->ending);
    pthread_mutex_lock(&m->mutex);
    ch->over = true;
    pthread_cond_broadcast(&m->ends);
    pthread_mutex_unlock(&m->mutex);
    return NULL;
}

/* Until the threads of all channels are over; false if they are not within so many seconds. */
static bool zfi_nccl_join(zfi_nccl *m, double seconds)
{
    struct timespec until;
    bool over = true;
    clock_gettime(CLOCK_MONOTONIC, &until);
    seconds += (double)until.tv_nsec * 1e-9;
    until.tv_sec += (time_t)seconds;
    until.tv_nsec = (long)(fmod(seconds, 1) * 1e9);
    pthread_mutex_lock(&m->mutex);
    for (int k = 0; k < ZFI_NCCL_CHANNELS && over; k++)
        while (m->channels[k].has_thread && !m->channels[k].over && over)
            over = !pthread_cond_timedwait(&m->ends, &m->mutex, &until);
    pthread_mutex_unlock(&m->mutex);
    for (int k = 0; k < ZFI_NCCL_CHANNELS; k++) {
        if (!m->channels[k].has_thread) continue;
        if (over) pthread_join(m->channels[k].thread, NULL);
        else pthread_detach(m->channels[k].thread);
    }
    return over;
}

/* Frees it. NCCL ends what it still sends, and is not waited for much longer than the deadline: what
 * it still uses then stays where it is until the process ends. */
static void zfi_nccl_destroy(void *self)
{
    zfi_nccl *m = self;
    zfi_nccl_note note;
    (void)cudaSetDevice(m->device);
    for (int k = 0; k < ZFI_NCCL_CHANNELS; k++)
        if (m->channels[k].nccl) (void)ncclCommFinalize(m->channels[k].nccl);
    for (int k = 0; k < ZFI_NCCL_CHANNELS; k++) {
        zfi_nccl_wait wait = {m, k, NULL, "did not free theirs", 0, 0, 0, 0, false};
        if (m->channels[k].nccl) (void)zfi_nccl_settle(&wait);
    }
    pthread_mutex_lock(&m->mutex);
    zfi_nccl_end_all(m, ZFI_NCCL_DESTROY);
    zfi_nccl_note_of(m, &note, ZFI_NCCL_LEFT, NULL);
    if (!m->error.status) zfi_nccl_send_all(m, &note, -1);
    for (int32_t r = 0; r < zfi_nccl_lines(m); r++) zfi_nccl_hang_up(&m->lines[r]);
    zfi_nccl_unpublish(m);
    pthread_mutex_unlock(&m->mutex);
    if (!zfi_nccl_join(m, m->deadline + 10)) return;
    for (int k = 0; k < ZFI_NCCL_CHANNELS; k++) {
        zfi_nccl_channel *ch = &m->channels[k];
        for (int i = 0; i < 2; i++) {
            if (ch->came[i]) (void)cudaEventDestroy(ch->came[i]);
            if (ch->added[i]) (void)cudaEventDestroy(ch->added[i]);
        }
        if (ch->stream) (void)cudaStreamDestroy(ch->stream);
        if (ch->adding) (void)cudaStreamDestroy(ch->adding);
        if (ch->staging && !ch->left) (void)cudaFree(ch->staging);
        if (ch->place) (void)cudaFreeHost(ch->place);
        free(ch->alive);
        free(ch->heads);
    }
    free(m->lines);
    free(m->file);
    free(m->names[0]);
    free(m->names[1]);
    free(m->runs);
    free(m->out);
    pthread_cond_destroy(&m->ends);
    pthread_mutex_destroy(&m->mutex);
    free(m);
}

/* The memory of the host. */
static bool zfi_nccl_allocate(zfi_nccl *m, const char *file)
{
    const size_t world = (size_t)m->comm.world, length = file ? strlen(file) + 1 : 0;
    m->runs = calloc(world, sizeof *m->runs);
    m->out = calloc(world, sizeof *m->out);
    if (!m->runs || !m->out) return false;
    for (int k = 0; k < ZFI_NCCL_CHANNELS; k++) {
        zfi_nccl_channel *ch = &m->channels[k];
        ch->alive = calloc(world, sizeof *ch->alive);
        ch->heads = calloc(world, sizeof *ch->heads);
        if (!ch->alive || !ch->heads) return false;
    }
    if (!file) return true;
    m->file = malloc(length);
    m->names[0] = malloc(length + 32);
    m->names[1] = malloc(length + 32);
    if (!m->file || !m->names[0] || !m->names[1]) return false;
    memcpy(m->file, file, length);
    return true;
}

/* Blocks of a channel's kernels: those of all channels take half of the multiprocessors at most. */
static int zfi_nccl_ctas(int processors)
{
    int ctas = ZFI_NCCL_CTAS;
    while (ctas > 1 && 2 * ZFI_NCCL_CHANNELS * ctas > processors) ctas /= 2;
    return ctas;
}

/* Free memory of the device; 0 where that is not known. */
static size_t zfi_nccl_free_bytes(void)
{
    size_t left = 0, all = 0;
    if (!cudaMemGetInfo(&left, &all)) return left;
    (void)cudaGetLastError();
    return 0;
}

/* The first calls of the channel, by which ranks compare what they are, and for which NCCL connects
 * them: its buffers are there then, and no step waits for that. */
static bool zfi_nccl_connect_all(zfi_nccl *m, int channel)
{
    const zf_collective first = {.op = ZF_OP_none, .channel = channel};
    const zfi_nccl_head head = {.count = (int64_t)m->half, .root = m->ctas, .add = m->fast};
    zfi_nccl_channel *ch = &m->channels[channel];
    zfi_nccl_wait wait = {m, channel, NULL, "did not come", 0, 0, 0, 0, false};
    const zfi_nccl_work w = {m, &first, ch->stream, 1};
    const zfi_nccl_move move = {ZF_OP_all_to_all, ch->staging, ch->staging + m->half,
                                ZFI_NCCL_LINE,    0,           ZFI_NCCL_LINE,
                                ncclUint8};
    return zfi_nccl_meet(m, &first, head) && zfi_nccl_put(&w, &move) && zfi_nccl_drain(&wait);
}

/* What a channel has of the device. */
static cudaError_t zfi_nccl_open_channel(const zfi_nccl *m, zfi_nccl_channel *ch)
{
    const size_t bytes = 2 * m->half + 2 * ZFI_NCCL_PASSAGE;
    int least = 0, first = 0; /* priorities: what communicates goes before what computes */
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

/* Makes the channels; the ranks have found one another. */
static bool zfi_nccl_open(zfi_nccl *m, double start)
{
    cudaError_t code = cudaSetDevice(m->device);
    int processors = 0;
    size_t before, after;
    if (!code)
        code = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, m->device);
    for (int k = 0; k < ZFI_NCCL_CHANNELS && !code; k++) {
        zfi_nccl_channel *ch = &m->channels[k];
        ch->has_thread = !pthread_create(&ch->thread, NULL, zfi_nccl_thread, ch);
        if (!ch->has_thread)
            return zfi_nccl_find(m, ZF_ERR_NOMEM, "zf_nccl_comm: no thread can be started");
    }
    if (code) {
        (void)cudaGetLastError();
        return zfi_nccl_find(m, ZF_ERR_BACKEND, "zf_nccl_comm: device %d: %s", m->device,
                             cudaGetErrorString(code));
    }
    if (m->ctas > 1 && ZFI_NCCL_CHANNELS * m->ctas > processors)
        return zfi_nccl_find(m, ZF_ERR_ARGUMENT,
                             "zf_nccl_comm: ctas is %d; those of %d channels must fit on the %d "
                             "multiprocessors of device %d together",
                             m->ctas, ZFI_NCCL_CHANNELS, processors, m->device);
    if (!m->ctas) m->ctas = zfi_nccl_ctas(processors);
    before = zfi_nccl_free_bytes();
    for (int k = 0; k < ZFI_NCCL_CHANNELS; k++)
        if ((code = zfi_nccl_open_channel(m, &m->channels[k])))
            return zfi_nccl_find_cuda(m, NULL, "memory and streams of the device", code);
    for (int k = 0; k < ZFI_NCCL_CHANNELS; k++) {
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        zfi_nccl_wait wait = {m, k, NULL, "did not come", 0, 0, zfi_nccl_now() - start, 0, false};
        ncclResult_t made;
        ncclUniqueId id;
        memcpy(&id, m->ids.as.ids + (size_t)k * sizeof id, sizeof id);
        config.blocking = 0;
        config.maxCTAs = m->ctas;
        pthread_mutex_lock(&m->mutex);
        made =
            ncclCommInitRankConfig(&m->channels[k].nccl, m->comm.world, id, m->comm.rank, &config);
        pthread_mutex_unlock(&m->mutex);
        if (made && made != ncclInProgress) return zfi_nccl_find_nccl(m, k, NULL, made);
        if (!zfi_nccl_settle(&wait)) return false;
    }
    for (int k = 0; k < ZFI_NCCL_CHANNELS; k++)
        if (!zfi_nccl_connect_all(m, k)) return false;
    after = zfi_nccl_free_bytes();
    m->comm.memory = before > after ? before - after : 0;
    return true;
}

static zf_status zfi_nccl_check_desc(const zf_nccl_desc *d, zf_error *error)
{
    const int ways = (d->host != NULL) + (d->file != NULL) + (d->id != NULL);
    const size_t least = 2 * ZFI_NCCL_LINE * (size_t)(d->world > 0 ? d->world : 1);
    if (d->world < 1 || d->world > ZFI_NCCL_WORLD)
        return zfi_nccl_error(error, ZF_ERR_ARGUMENT,
                              "zf_nccl_comm: world is %d; it must be 1 to %d", (int)d->world,
                              ZFI_NCCL_WORLD);
    if (d->rank < 0 || d->rank >= d->world)
        return zfi_nccl_error(error, ZF_ERR_ARGUMENT,
                              "zf_nccl_comm: rank is %d; in a world of %d it must be 0 to %d",
                              (int)d->rank, (int)d->world, (int)d->world - 1);
    if (!(d->deadline_seconds > 0) || !isfinite(d->deadline_seconds))
        return zfi_nccl_error(error, ZF_ERR_ARGUMENT,
                              "zf_nccl_comm: deadline_seconds is %g; it must be positive and "
                              "finite, or 0 for 60",
                              d->deadline_seconds);
    if (d->staging_bytes < least || d->staging_bytes > (size_t)1 << 40)
        return zfi_nccl_error(
            error, ZF_ERR_ARGUMENT,
            "zf_nccl_comm: staging_bytes is %zu; for a world of %d it must be %zu "
            "to 2^40, or 0 for 32 MiB",
            d->staging_bytes, (int)d->world, least);
    if (d->ctas < 0 || d->ctas > 32 || (d->ctas & (d->ctas - 1)))
        return zfi_nccl_error(error, ZF_ERR_ARGUMENT,
                              "zf_nccl_comm: ctas is %d; it must be 1, 2, 4, 8, 16 or 32, or 0 for "
                              "what fits the device",
                              (int)d->ctas);
    if (ways > 1 || (!ways && d->world > 1))
        return zfi_nccl_error(error, ZF_ERR_ARGUMENT,
                              "zf_nccl_comm: %d of host, file and id are given; it must be one, by "
                              "which the ranks find one another",
                              ways);
    if (d->host && (d->port < 1 || d->port > 65535))
        return zfi_nccl_error(error, ZF_ERR_ARGUMENT,
                              "zf_nccl_comm: port is %d; it must be 1 to 65535", (int)d->port);
    if ((d->host && !*d->host) || (d->file && !*d->file))
        return zfi_nccl_error(error, ZF_ERR_ARGUMENT, "zf_nccl_comm: %s is empty",
                              d->host ? "host" : "file");
    return ZF_OK;
}

ZF_API zf_status zf_nccl_id(void *id, zf_error *error)
{
    _Static_assert(ZFI_NCCL_CHANNELS * sizeof(ncclUniqueId) == ZF_NCCL_ID_BYTES, "an id each");
    for (int k = 0; k < ZFI_NCCL_CHANNELS; k++) {
        ncclUniqueId one;
        ncclResult_t code = ncclGetUniqueId(&one);
        if (code)
            return zfi_nccl_error(error, ZF_ERR_COMM, "zf_nccl_id: NCCL: %s",
                                  ncclGetErrorString(code));
        memcpy((char *)id + (size_t)k * sizeof one, &one, sizeof one);
    }
    return ZF_OK;
}

ZF_API zf_comm *zf_nccl_comm(const zf_nccl_desc *desc, zf_error *error)
{
    const double start = zfi_nccl_now();
    zf_nccl_desc d = desc ? *desc : (zf_nccl_desc){.world = 1};
    zf_error why = {ZF_OK, ""};
    pthread_condattr_t clock;
    zfi_nccl *m;
    if (!d.world) d.world = 1;
    if (d.deadline_seconds == 0) d.deadline_seconds = 60;
    if (!d.staging_bytes) d.staging_bytes = ZFI_NCCL_STAGING;
    if (zfi_nccl_check_desc(&d, error)) return NULL;
    if (!(m = calloc(1, sizeof *m))) {
        zfi_nccl_error(error, ZF_ERR_NOMEM, "out of memory");
        return NULL;
    }
    m->comm = (zf_comm){
        m, d.rank, d.world, zfi_nccl_run, zfi_nccl_abort, zfi_nccl_destroy, zfi_nccl_check, 0};
    m->device = d.device;
    m->deadline = d.deadline_seconds;
    m->fast = d.fast;
    m->ctas = d.ctas;
    m->half = d.staging_bytes / 2 & ~(size_t)(ZFI_NCCL_LINE - 1);
    atomic_init(&m->failed, false);
    for (int k = 0; k < ZFI_NCCL_CHANNELS; k++) {
        m->channels[k].of = m;
        atomic_init(&m->channels[k].busy, false);
    }
    pthread_mutex_init(&m->mutex, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&m->ends, &clock);
    pthread_condattr_destroy(&clock);
    if (!zfi_nccl_allocate(m, d.file)) zfi_nccl_error(&why, ZF_ERR_NOMEM, "out of memory");
    else zfi_nccl_search_for(m, &d, start, &why);
    if (why.status) zfi_nccl_fail(m, &why, why.text);
    else if (zfi_nccl_open(m, start)) zfi_nccl_unpublish(m);
    if (!m->error.status) return &m->comm;
    zfi_nccl_error(error, m->error.status, "%s", m->error.text);
    zfi_nccl_destroy(m);
    return NULL;
}
