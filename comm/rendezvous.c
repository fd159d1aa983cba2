/* How processes find one another and exchange notes apart from their collectives: by TCP through
 * rank 0, or by files in a folder that all can see. zeroflow_nccl.c includes it.
 *
 * When all ranks have come, rank 0 sends the same bytes to all, the ids. Later, ranks send notes
 * when they fail, and heartbeats while they wait (comm/process.c). Only ranks that wait read
 * notes.
 *
 * A port or a folder is open to others. Each note has a key, which follows from the name of the
 * run. What connects without it, or says nothing, is a stranger: it costs a place among the guests,
 * which are a fixed number, and no time of the ranks. Who has the key is a rank of the run; nothing
 * else proves it. */
#ifndef ZFI_RENDEZVOUS
#define ZFI_RENDEZVOUS

#include "process.c"
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    ZFI_IDS_BYTES = 512,
    ZFI_MEET_GUESTS = 64, /* connections that have not said yet which rank they are */
    ZFI_MEET_NOTES = 64   /* read of one connection at a time */
};

static const double zfi_meet_patience = 5; /* seconds until a guest has said it */

typedef enum zfi_note_kind {
    ZFI_NOTE_HERE = 1, /* to rank 0: this rank has come */
    ZFI_NOTE_IDS,      /* of rank 0 */
    ZFI_NOTE_WAITS,    /* a heartbeat: waits at `channel` */
    ZFI_NOTE_GAVE_UP,  /* failed; status and text: why */
    ZFI_NOTE_REFUSED,  /* of rank 0: the process is not let in; text: why */
    ZFI_NOTE_LEFT      /* freed its communicator */
} zfi_note_kind;

/* A note between ranks, by TCP or in a file. */
typedef struct zfi_note {
    char magic[8];
    uint64_t key; /* of the run */
    int32_t word, rank, world, channel, status, unused;
    uint64_t run; /* in files: the number of the creation of the communicator */
    union {
        char text[512];
        unsigned char ids[ZFI_IDS_BYTES];
        zf_group group; /* a heartbeat: of the call where the rank waits */
    } as;
} zfi_note;

/* A connection, and the part of the next note that has arrived. */
typedef struct zfi_line {
    int socket; /* -1: none */
    size_t have;
    zfi_note note;
} zfi_line;

/* The rendezvous of one process. After creation, guarded by the process's mutex. */
typedef struct zfi_rendezvous {
    zfi_process *p;
    const char *host; /* NULL, or the host where rank 0 listens; until all have come */
    int32_t port;
    uint64_t key;
    double next_look;    /* next time to look for notes */
    zfi_line *lines;     /* NULL, or [world]: rank 0's to each; of others [0], to rank 0 */
    char *file;          /* NULL, or the name of the file, */
    char *names[2];      /* room for names that begin with it, */
    uint64_t run, *runs; /* the number of this creation; rank 0: [world], those of the ranks */
    zfi_note ids;        /* of rank 0 */
    bool published;      /* this rank has written a file by which others find it */
    bool *out;           /* [world], ranks that have not come */
} zfi_rendezvous;

/* Allocates the memory, part of which depends on the world; false: there is none. */
static bool zfi_meet_allocate(zfi_rendezvous *v, const char *file)
{
    const size_t world = (size_t)v->p->comm.world, length = file ? strlen(file) + 1 : 0;
    v->runs = calloc(world, sizeof *v->runs);
    v->out = calloc(world, sizeof *v->out);
    if (!v->runs || !v->out) return false;
    if (!file) return true;
    v->file = malloc(length);
    v->names[0] = malloc(length + 32);
    v->names[1] = malloc(length + 32);
    if (!v->file || !v->names[0] || !v->names[1]) return false;
    memcpy(v->file, file, length);
    return true;
}

static void zfi_meet_free(zfi_rendezvous *v)
{
    free(v->lines);
    free(v->file);
    free(v->names[0]);
    free(v->names[1]);
    free(v->runs);
    free(v->out);
}

/* -------------------------------------------------------------------------------------- by TCP */

static void zfi_meet_note_of(const zfi_rendezvous *v, zfi_note *n, zfi_note_kind word,
                             const char *text)
{
    memset(n, 0, sizeof *n);
    memcpy(n->magic, "zf_meet3", sizeof n->magic);
    n->key = v->key;
    n->word = (int32_t)word;
    n->rank = v->p->comm.rank, n->world = v->p->comm.world;
    n->run = v->run;
    if (text) snprintf(n->as.text, sizeof n->as.text, "%s", text);
}

static void zfi_meet_failure_of(const zfi_rendezvous *v, zfi_note *n, zf_status status,
                                const char *why)
{
    zfi_meet_note_of(v, n, ZFI_NOTE_GAVE_UP, why);
    n->status = (int32_t)status;
}

/* A note of any run. */
static bool zfi_meet_is_any(const zfi_note *n)
{
    return !memcmp(n->magic, "zf_meet3", sizeof n->magic);
}

/* A note of this run; its world may be another. */
static bool zfi_meet_is_note(const zfi_rendezvous *v, zfi_note *n)
{
    if (n->word != ZFI_NOTE_IDS) n->as.text[sizeof n->as.text - 1] = 0;
    return zfi_meet_is_any(n) && n->key == v->key;
}

/* The key of a run of this name: its digest (FNV-1a, 64 bits). NULL: "" */
static uint64_t zfi_meet_key(const char *name)
{
    uint64_t key = 0xcbf29ce484222325u;
    for (; name && *name; name++) key = (key ^ (unsigned char)*name) * 0x100000001b3u;
    return key;
}

static void zfi_meet_hang_up(zfi_line *line)
{
    if (line->socket >= 0) close(line->socket);
    line->socket = -1;
    line->have = 0;
}

/* Sends the note. If that takes more than a second, the connection is closed. */
static void zfi_meet_send(zfi_line *line, const zfi_note *note)
{
    const double until = zfi_now() + 1;
    const char *at = (const char *)note;
    size_t left = sizeof *note;
    while (left && line->socket >= 0) {
        ssize_t n = send(line->socket, at, left, MSG_NOSIGNAL);
        if (n >= 0) {
            at += n, left -= (size_t)n;
        } else if (errno == EAGAIN && zfi_now() < until) {
            poll(&(struct pollfd){.fd = line->socket, .events = POLLOUT}, 1, 100);
        } else if (errno != EINTR) {
            zfi_meet_hang_up(line);
        }
    }
}

/* Receives: 1, a note is complete; 0, it is not; -1, the other end is gone or is none of the
 * run. */
static int zfi_meet_receive(const zfi_rendezvous *v, zfi_line *line)
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
    return zfi_meet_is_note(v, &line->note) ? 1 : -1;
}

/* The number of this rank's connections: to each other rank, or to rank 0. */
static int32_t zfi_meet_lines(const zfi_rendezvous *v)
{
    return !v->lines ? 0 : v->p->comm.rank ? 1 : v->p->comm.world;
}

/* Sends to all other ranks except `but`: from rank 0, or through it. The mutex is held. */
static void zfi_meet_send_all(zfi_rendezvous *v, const zfi_note *note, int32_t but)
{
    for (int32_t r = 0; r < zfi_meet_lines(v); r++)
        if (r != but) zfi_meet_send(&v->lines[r], note);
}

/* The note may come by connection `r`: of that rank, or of any through rank 0. */
static bool zfi_meet_may_say(const zfi_rendezvous *v, const zfi_note *n, int32_t r)
{
    const zf_comm *comm = &v->p->comm;
    return n->world == comm->world && n->rank >= 0 && n->rank < comm->world &&
           (comm->rank || n->rank == r);
}

/* Reads notes of connection `r`, as zfi_meet_hear. */
static bool zfi_meet_hear_line(zfi_rendezvous *v, int32_t r, zf_error *error, bool *known)
{
    const zf_comm *comm = &v->p->comm;
    zfi_line *line = &v->lines[r];
    for (int k = 0; k < ZFI_MEET_NOTES && line->socket >= 0; k++) {
        const zfi_note *n = &line->note;
        const int got = zfi_meet_receive(v, line);
        if (!got) break;
        if (got < 0 || !zfi_meet_may_say(v, n, r)) {
            zfi_meet_hang_up(line);
            *known = comm->rank != 0;
            zfi_fail(error, ZF_ERR_COMM, "rank %d of %d has ended", (int)r, (int)comm->world);
            return true;
        }
        if (n->word == ZFI_NOTE_LEFT) zfi_meet_hang_up(line);
        if (!comm->rank && n->word != ZFI_NOTE_LEFT) zfi_meet_send_all(v, n, r);
        if (n->word == ZFI_NOTE_WAITS) zfi_process_heard(v->p, n->channel, n->rank, n->as.group);
        if (n->word != ZFI_NOTE_GAVE_UP) continue;
        *known = true;
        zfi_fail_by_rank(error, n->rank, (zf_status)n->status, n->as.text);
        return true;
    }
    return false;
}

/* Reads notes of other ranks; rank 0 passes them on. True if a rank has failed: `error`, and
 * whether the others know it already. The mutex is held. */
static bool zfi_meet_hear(zfi_rendezvous *v, zf_error *error, bool *known)
{
    for (int32_t r = 0; r < zfi_meet_lines(v); r++)
        if (zfi_meet_hear_line(v, r, error, known)) return true;
    return false;
}

/* ------------------------------------------------------------------------------------ by files
 *
 *     FILE.2    by rank 2: it has come, with a number of its own
 *     FILE      by rank 0, when all have come: their numbers, and the ids
 *
 * A rank accepts the FILE that contains its number. Files of an earlier run contain other numbers.
 * Rank 0 may take an old FILE.2 for a new one, but it keeps checking, and writes FILE again when a
 * FILE.2 has changed. */

/* The file's name with a suffix, ".2" for rank 2. */
static const char *zfi_meet_name(zfi_rendezvous *v, int which, const char *format, int32_t rank)
{
    size_t length = strlen(v->file);
    memcpy(v->names[which], v->file, length);
    snprintf(v->names[which] + length, 32, format, (int)rank);
    return v->names[which];
}

/* The file may be replaced: it is not there, is empty, or begins as notes do, of any version. */
static bool zfi_meet_may_replace(const char *name)
{
    char found[7] = "";
    struct stat about;
    const int file = open(name, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    bool good = file < 0 && errno == ENOENT;
    if (file >= 0 && !fstat(file, &about) && S_ISREG(about.st_mode))
        good = !about.st_size ||
               (read(file, found, sizeof found) == sizeof found && !memcmp(found, "zf_meet", 7));
    if (file >= 0) close(file);
    if (!good) errno = EEXIST;
    return good;
}

/* Writes a file that appears complete under names[0]: the note and `more`. A file of something else
 * with this name is not replaced. */
static bool zfi_meet_write_file(zfi_rendezvous *v, const zfi_note *note, const void *more,
                                size_t bytes)
{
    const char *part = zfi_meet_name(v, 1, ".%d.part", v->p->comm.rank);
    const bool good_names = zfi_meet_may_replace(v->names[0]) && zfi_meet_may_replace(part);
    const int file =
        good_names ? open(part, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666) : -1;
    FILE *f = file < 0 ? NULL : fdopen(file, "wb");
    bool good = f && fwrite(note, sizeof *note, 1, f) == 1 && fwrite(more, 1, bytes, f) == bytes;
    if (f && fclose(f)) good = false;
    if (file >= 0 && !f) close(file);
    if (good && !rename(part, v->names[0])) return true;
    if (f) remove(part);
    return false;
}

/* The error of a file that could not be written under names[0]. */
static zf_status zfi_meet_unwritten(const zfi_rendezvous *v, zf_error *error)
{
    return zfi_fail(error, ZF_ERR_IO, "%s: %s cannot be written: %s", v->p->maker, v->names[0],
                    errno == EEXIST ? "that file, or the one of its name and .part, is no file of "
                                      "a rendezvous: name another one"
                                    : strerror(errno));
}

/* Reads the file names[0] and checks that it is for this number of ranks. Something else of that
 * name does not stop it. */
static bool zfi_meet_read_file(const zfi_rendezvous *v, zfi_note *note, void *more, size_t bytes)
{
    const int file = open(v->names[0], O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    FILE *f = file < 0 ? NULL : fdopen(file, "rb");
    bool good = f && fread(note, sizeof *note, 1, f) == 1 && fread(more, 1, bytes, f) == bytes &&
                zfi_meet_is_note(v, note) && note->world == v->p->comm.world;
    if (f) fclose(f);
    else if (file >= 0) close(file);
    return good;
}

/* Rank 0: checks which ranks have come, and writes FILE when all have, and each time that changes;
 * false, with v->out, while some are missing. */
static bool zfi_meet_publish(zfi_rendezvous *v, zf_error *error)
{
    const size_t bytes = (size_t)v->p->comm.world * sizeof *v->runs;
    bool all = true, changed = !v->published;
    for (int32_t r = 1; r < v->p->comm.world; r++) {
        zfi_note note;
        char none;
        zfi_meet_name(v, 0, ".%d", r);
        if (zfi_meet_read_file(v, &note, &none, 0) && note.rank == r && v->runs[r] != note.run) {
            v->runs[r] = note.run;
            changed = true;
        }
        v->out[r] = !v->runs[r];
        all = all && !v->out[r];
    }
    if (!all || !changed) return all;
    zfi_meet_name(v, 0, "", 0);
    v->published = zfi_meet_write_file(v, &v->ids, v->runs, bytes);
    if (!v->published) zfi_meet_unwritten(v, error);
    return v->published;
}

/* Reads FILE.failed, in which a rank has written why it failed. The mutex is held. */
static bool zfi_meet_read_failure(zfi_rendezvous *v, zf_error *error)
{
    zfi_note note;
    char none;
    zfi_meet_name(v, 0, ".failed", 0);
    if (!zfi_meet_read_file(v, &note, &none, 0) || note.run != v->run) return false;
    if (note.rank < 0 || note.rank >= note.world) return false;
    zfi_fail_by_rank(error, note.rank, (zf_status)note.status, note.as.text);
    return true;
}

/* Removes a file with a note, and no other one. */
static void zfi_meet_remove(const char *name)
{
    if (zfi_meet_may_replace(name)) remove(name);
}

/* Removes the files by which others find this rank. */
static void zfi_meet_unpublish(zfi_rendezvous *v)
{
    if (!v->file || !v->published) return;
    zfi_meet_remove(zfi_meet_name(v, 0, v->p->comm.rank ? ".%d" : "", v->p->comm.rank));
    v->published = false;
}

/* ------------------------------------------------------------------------------ finding others */

/* The search for other ranks, until all have come or the deadline has passed. */
typedef struct zfi_meet_search {
    zfi_rendezvous *v;
    double until;
    zf_error *error;
    char why[200]; /* " (why the last was not let in)"; "": none was refused */
} zfi_meet_search;

static double zfi_meet_left(const zfi_meet_search *s) { return s->until - zfi_now(); }

/* The time in milliseconds, at most `most`. */
static int zfi_meet_milliseconds(double seconds, int most)
{
    return seconds <= 0 ? 0 : seconds * 1000 < most ? (int)(seconds * 1000) + 1 : most;
}

/* Names the ranks that have not come; if all have, those that did not stay. */
static zf_status zfi_meet_absent(const zfi_meet_search *s, const char *more)
{
    const zfi_rendezvous *v = s->v;
    const int32_t world = v->p->comm.world;
    zfi_rank_list list = {.count = 0};
    bool all = true;
    for (int32_t r = 0; r < world; r++) all = all && !v->out[r];
    for (int32_t r = 0; r < world; r++)
        if (all ? r && v->lines && v->lines[r].socket < 0 : v->out[r]) zfi_list_rank(&list, r);
    return zfi_fail(s->error, ZF_ERR_COMM, "%s: %s did not %s within %g s%s", v->p->maker,
                    zfi_list_end(&list, world), all ? "stay until all came" : "come",
                    v->p->deadline, more);
}

/* The next note of the connection within the time; else closes it. */
static bool zfi_meet_next_note(const zfi_rendezvous *v, zfi_line *line, double seconds)
{
    const double until = zfi_now() + seconds;
    int got;
    while (!(got = zfi_meet_receive(v, line)) && zfi_now() < until)
        poll(&(struct pollfd){.fd = line->socket, .events = POLLIN}, 1,
             zfi_meet_milliseconds(until - zfi_now(), 1000));
    if (got <= 0) zfi_meet_hang_up(line);
    return got > 0;
}

/* Prepares a socket that does not block and sends at once. */
static int zfi_meet_prepare(int s)
{
    const int yes = 1;
    if (s < 0) return s;
    fcntl(s, F_SETFD, FD_CLOEXEC);
    fcntl(s, F_SETFL, fcntl(s, F_GETFL) | O_NONBLOCK);
    setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    return s;
}

/* The addresses of host:port; NULL with the error. */
static struct addrinfo *zfi_meet_resolve(const zfi_rendezvous *v, zf_error *error)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    char port[16];
    int code;
    snprintf(port, sizeof port, "%d", (int)v->port);
    if ((code = getaddrinfo(v->host, port, &hints, &list)))
        zfi_fail(error, ZF_ERR_COMM, "%s: the host '%s' is not found: %s", v->p->maker, v->host,
                 gai_strerror(code));
    return code ? NULL : list;
}

/* Listens at the address alone; -1 with errno. */
static int zfi_meet_listen_at(const struct addrinfo *a)
{
    const int yes = 1, s = zfi_meet_prepare(socket(a->ai_family, SOCK_STREAM, 0));
    int code;
    if (s < 0) return s;
    setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (!bind(s, a->ai_addr, a->ai_addrlen) && !listen(s, SOMAXCONN)) return s;
    code = errno;
    close(s);
    errno = code;
    return -1;
}

/* The first of the addresses that this machine has, where rank 0 listens; -1 with the error. */
static int zfi_meet_listen_at_one(const zfi_meet_search *s, const struct addrinfo *list)
{
    int listening = -1;
    for (const struct addrinfo *a = list; a && listening < 0; a = a->ai_next) {
        listening = zfi_meet_listen_at(a);
        if (listening < 0 && errno != EADDRNOTAVAIL && errno != EAFNOSUPPORT) break;
    }
    if (listening < 0)
        zfi_fail(s->error, ZF_ERR_COMM, "%s: rank 0 cannot listen at %s:%d: %s%s", s->v->p->maker,
                 s->v->host, (int)s->v->port, strerror(errno),
                 errno == EADDRNOTAVAIL ? "; it must be an address of its own machine" : "");
    return listening;
}

/* What rank 0 waits for: a socket that listens, guests, and the ranks that have come. */
typedef struct zfi_meet_hall {
    zfi_meet_search *s;
    int listening;
    int32_t missing;
    zfi_line guests[ZFI_MEET_GUESTS];
    double came[ZFI_MEET_GUESTS];
    struct pollfd *polls; /* [1 + ZFI_MEET_GUESTS + world], in this order */
} zfi_meet_hall;

/* The number of the guest that has been there for longest; -1: there is none. */
static int zfi_meet_oldest(const zfi_meet_hall *h)
{
    int oldest = -1;
    for (int k = 0; k < ZFI_MEET_GUESTS; k++)
        if (h->guests[k].socket >= 0 && (oldest < 0 || h->came[k] < h->came[oldest])) oldest = k;
    return oldest;
}

/* A place for a guest; where there is none, the oldest one has to leave. */
static int zfi_meet_place(zfi_meet_hall *h)
{
    int place = 0;
    while (place < ZFI_MEET_GUESTS && h->guests[place].socket >= 0) place++;
    if (place == ZFI_MEET_GUESTS) zfi_meet_hang_up(&h->guests[place = zfi_meet_oldest(h)]);
    return place;
}

/* Why the rank that sent the note is not let in; "": it is. */
static const char *zfi_meet_refusal(const zfi_rendezvous *v, const zfi_note *n, char text[160])
{
    const int32_t world = v->p->comm.world, r = n->rank;
    *text = '\0';
    if (n->key != v->key) snprintf(text, 160, "a rank of another run came");
    else if (n->world != world)
        snprintf(text, 160, "rank %d came from a world of %d; rank 0 is in one of %d", (int)r,
                 (int)n->world, (int)world);
    else if (r < 1 || r >= world)
        snprintf(text, 160, "a process says it is rank %d of %d", (int)r, (int)world);
    else if (v->lines[r].socket >= 0)
        snprintf(text, 160, "two processes say they are rank %d", (int)r);
    return text;
}

/* Gives the guest's connection to the rank that it is, or refuses it and says why. */
static void zfi_meet_seat(zfi_meet_hall *h, zfi_line *guest)
{
    zfi_rendezvous *v = h->s->v;
    zfi_note no;
    char text[160];
    if (*zfi_meet_refusal(v, &guest->note, text)) {
        snprintf(h->s->why, sizeof h->s->why, " (%s)", text);
        zfi_meet_note_of(v, &no, ZFI_NOTE_REFUSED, text);
        (void)!send(guest->socket, &no, sizeof no, MSG_NOSIGNAL | MSG_DONTWAIT);
        zfi_meet_hang_up(guest);
        return;
    }
    v->lines[guest->note.rank] = *guest;
    v->out[guest->note.rank] = false;
    h->missing--;
    guest->socket = -1;
}

/* Reads what a guest says. */
static void zfi_meet_attend(zfi_meet_hall *h, zfi_line *guest)
{
    const int got = guest->socket < 0 ? 0 : zfi_meet_receive(h->s->v, guest);
    const bool is_rank = got && zfi_meet_is_any(&guest->note) && guest->note.word == ZFI_NOTE_HERE;
    if (is_rank) zfi_meet_seat(h, guest);
    else if (got) zfi_meet_hang_up(guest);
}

/* Takes the connections that are waiting; false with the error if there can be none. */
static bool zfi_meet_admit(zfi_meet_hall *h)
{
    for (int k = 0; k < ZFI_MEET_GUESTS; k++) {
        const int s = zfi_meet_prepare(accept(h->listening, NULL, NULL));
        const bool full = s < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS);
        const int oldest = full ? zfi_meet_oldest(h) : -1;
        zfi_line *guest;
        if (s < 0 && !full) break;
        if (full && oldest < 0) {
            zfi_fail(h->s->error, ZF_ERR_COMM,
                     "%s: rank 0 cannot take a connection of each rank: %s", h->s->v->p->maker,
                     strerror(errno));
            return false;
        }
        if (full) {
            zfi_meet_hang_up(&h->guests[oldest]);
            continue;
        }
        guest = &h->guests[zfi_meet_place(h)];
        *guest = (zfi_line){.socket = s};
        h->came[guest - h->guests] = zfi_now();
        zfi_meet_attend(h, guest);
    }
    return true;
}

/* Waits until something is to be done. */
static void zfi_meet_poll(zfi_meet_hall *h)
{
    const int32_t world = h->s->v->p->comm.world;
    struct pollfd *at = h->polls;
    *at++ = (struct pollfd){.fd = h->listening, .events = POLLIN};
    for (int k = 0; k < ZFI_MEET_GUESTS; k++)
        *at++ = (struct pollfd){.fd = h->guests[k].socket, .events = POLLIN};
    for (int32_t r = 0; r < world; r++)
        *at++ = (struct pollfd){.fd = h->s->v->lines[r].socket, .events = POLLIN};
    poll(h->polls, (nfds_t)(at - h->polls), zfi_meet_milliseconds(zfi_meet_left(h->s), 1000));
}

/* Frees the place of a rank whose connection has ended, so that it can come again. */
static void zfi_meet_check_seats(zfi_meet_hall *h)
{
    zfi_rendezvous *v = h->s->v;
    for (int32_t r = 1; r < v->p->comm.world; r++) {
        if (!h->polls[1 + ZFI_MEET_GUESTS + r].revents || v->lines[r].socket < 0) continue;
        if (!zfi_meet_receive(v, &v->lines[r])) continue;
        zfi_meet_hang_up(&v->lines[r]);
        h->missing++;
    }
}

/* Rank 0: waits until all have connected, then sends them the ids. */
static zf_status zfi_meet_receive_all(zfi_meet_hall *h)
{
    while (h->missing > 0) {
        const double now = zfi_now();
        if (zfi_meet_left(h->s) <= 0) return zfi_meet_absent(h->s, h->s->why);
        zfi_meet_poll(h);
        zfi_meet_check_seats(h);
        for (int k = 0; k < ZFI_MEET_GUESTS; k++) {
            zfi_meet_attend(h, &h->guests[k]);
            if (now - h->came[k] > zfi_meet_patience) zfi_meet_hang_up(&h->guests[k]);
        }
        if (!zfi_meet_admit(h)) return h->s->error->status;
    }
    zfi_meet_send_all(h->s->v, &h->s->v->ids, -1);
    return ZF_OK;
}

/* Rank 0: opens the hall, and closes it when all have come. */
static zf_status zfi_meet_host(zfi_meet_search *s, const struct addrinfo *list)
{
    const int32_t world = s->v->p->comm.world;
    zfi_meet_hall *h = calloc(1, sizeof *h);
    zf_status status;
    if (h) h->polls = calloc(1 + ZFI_MEET_GUESTS + (size_t)world, sizeof *h->polls);
    if (!h || !h->polls) {
        free(h);
        return zfi_nomem(s->error);
    }
    h->s = s, h->missing = world - 1;
    for (int k = 0; k < ZFI_MEET_GUESTS; k++) h->guests[k].socket = -1;
    h->listening = zfi_meet_listen_at_one(s, list);
    status = h->listening < 0 ? s->error->status : zfi_meet_receive_all(h);
    for (int k = 0; k < ZFI_MEET_GUESTS; k++) zfi_meet_hang_up(&h->guests[k]);
    if (h->listening >= 0) close(h->listening);
    free(h->polls);
    free(h);
    return status;
}

/* Connects to the address within the time; -1 on failure. */
static int zfi_meet_connect(const struct addrinfo *a, double seconds)
{
    const int s = zfi_meet_prepare(socket(a->ai_family, SOCK_STREAM, 0));
    int code = 0;
    socklen_t size = sizeof code;
    if (s < 0) return s;
    if (!connect(s, a->ai_addr, a->ai_addrlen)) return s;
    if (errno == EINPROGRESS &&
        poll(&(struct pollfd){.fd = s, .events = POLLOUT}, 1,
             zfi_meet_milliseconds(seconds, 5000)) == 1 &&
        !getsockopt(s, SOL_SOCKET, SO_ERROR, &code, &size) && !code)
        return s;
    close(s);
    return -1;
}

/* The answer of rank 0, if there is one: the ids, or why it gives up or refuses this rank. */
static bool zfi_meet_answer(zfi_meet_search *s, zfi_line *line)
{
    zfi_note *n = &line->note;
    char text[sizeof n->as.text];
    if (line->socket < 0) return false;
    if (!zfi_meet_next_note(s->v, line, zfi_meet_left(s))) {
        if (zfi_meet_is_any(n))
            snprintf(s->why, sizeof s->why, " (rank 0 of another run answers there)");
        return false;
    }
    if (n->rank) return false;
    if (n->word == ZFI_NOTE_GAVE_UP)
        return zfi_fail_by_rank(s->error, 0, (zf_status)n->status, n->as.text);
    if (n->word == ZFI_NOTE_REFUSED)
        return zfi_fail(s->error, ZF_ERR_COMM, "%s: rank 0 refuses rank %d: %s", s->v->p->maker,
                        (int)s->v->p->comm.rank, zfi_printable(text, sizeof text, n->as.text));
    if (n->word != ZFI_NOTE_IDS || n->world != s->v->p->comm.world) return false;
    s->v->ids = *n;
    return true;
}

/* Other ranks: wait until rank 0 has sent the ids. If something else answers at its address, they
 * try again. */
static zf_status zfi_meet_ask_rank_0(zfi_meet_search *s, const struct addrinfo *list)
{
    zfi_line *line = &s->v->lines[0];
    zfi_note here;
    char more[500];
    zfi_meet_note_of(s->v, &here, ZFI_NOTE_HERE, NULL);
    for (const struct addrinfo *a = list; zfi_meet_left(s) > 0;
         a = a->ai_next ? a->ai_next : list) {
        *line = (zfi_line){.socket = zfi_meet_connect(a, zfi_meet_left(s))};
        zfi_meet_send(line, &here);
        if (zfi_meet_answer(s, line)) return s->error->status;
        zfi_meet_hang_up(line);
        nanosleep(&(struct timespec){0, 50000000}, NULL);
    }
    snprintf(more, sizeof more, ": it is expected at %.200s:%d%s", s->v->host, (int)s->v->port,
             s->why);
    return zfi_meet_absent(s, more);
}

static zf_status zfi_meet_search_tcp(zfi_meet_search *s)
{
    zfi_rendezvous *v = s->v;
    struct addrinfo *list = zfi_meet_resolve(v, s->error);
    zf_status status;
    if (!list) return s->error->status;
    if (!(v->lines = calloc(v->p->comm.rank ? 1 : (size_t)v->p->comm.world, sizeof *v->lines))) {
        freeaddrinfo(list);
        return zfi_nomem(s->error);
    }
    for (int32_t r = 0; r < zfi_meet_lines(v); r++) v->lines[r].socket = -1;
    status = v->p->comm.rank ? zfi_meet_ask_rank_0(s, list) : zfi_meet_host(s, list);
    freeaddrinfo(list);
    return status;
}

/* A number that no other creation has. */
static uint64_t zfi_meet_number(const zfi_rendezvous *v)
{
    struct timespec t;
    uint64_t x;
    clock_gettime(CLOCK_REALTIME, &t);
    x = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    x ^= (uint64_t)getpid() << 40 ^ (uint64_t)(uintptr_t)v << 16;
    x = (x ^ x >> 31) * 0x9e3779b97f4a7c15u;
    return (x ^ x >> 29) | 1;
}

/* Other ranks: write that they have come, and wait for the file with the ids. */
static zf_status zfi_meet_read_ids(const zfi_meet_search *s)
{
    zfi_rendezvous *v = s->v;
    const size_t bytes = (size_t)v->p->comm.world * sizeof *v->runs;
    zfi_note here, ids;
    bool other = false;
    char more[300];
    zfi_meet_note_of(v, &here, ZFI_NOTE_HERE, NULL);
    here.run = zfi_meet_number(v);
    zfi_meet_name(v, 0, ".%d", v->p->comm.rank);
    if (!zfi_meet_write_file(v, &here, "", 0)) return zfi_meet_unwritten(v, s->error);
    v->published = true;
    zfi_meet_name(v, 0, "", 0);
    for (; zfi_meet_left(s) > 0; nanosleep(&(struct timespec){0, 10000000}, NULL)) {
        if (!zfi_meet_read_file(v, &ids, v->runs, bytes) || ids.word != ZFI_NOTE_IDS) continue;
        other = v->runs[v->p->comm.rank] != here.run;
        if (other) continue;
        v->ids = ids;
        v->run = ids.run;
        return ZF_OK;
    }
    if (other) snprintf(more, sizeof more, " (%.200s is of an earlier run)", v->file);
    return zfi_meet_absent(s, other ? more : "");
}

static zf_status zfi_meet_search_file(const zfi_meet_search *s)
{
    zfi_rendezvous *v = s->v;
    if (v->p->comm.rank) return zfi_meet_read_ids(s);
    v->run = v->ids.run = zfi_meet_number(v);
    zfi_meet_remove(zfi_meet_name(v, 0, ".failed", 0));
    while (!zfi_meet_publish(v, s->error)) {
        if (s->error->status) return s->error->status;
        if (zfi_meet_left(s) <= 0) return zfi_meet_absent(s, "");
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    }
    return ZF_OK;
}

/* Waits until all ranks have rank 0's ids, or soon will: v->ids, which rank 0 sets. The deadline
 * began at `start`. */
static zf_status zfi_meet_all(zfi_rendezvous *v, double start, zf_error *error)
{
    zfi_meet_search s = {v, start + v->p->deadline, error, ""};
    for (int32_t r = 0; r < v->p->comm.world; r++) v->out[r] = v->p->comm.rank ? r == 0 : r > 0;
    return v->host ? zfi_meet_search_tcp(&s) : zfi_meet_search_file(&s);
}

/* ---------------------------------------------------------------------------------- afterwards */

/* Reads notes of other ranks, if there are any. */
static void zfi_meet_listen(zfi_rendezvous *v)
{
    zf_error error = {ZF_OK, ""};
    double now = zfi_now();
    bool known = true, out = false;
    pthread_mutex_lock(&v->p->mutex);
    if (now >= v->next_look && !v->p->error.status) {
        v->next_look = now + (v->file ? 0.05 : 1e-3);
        if (v->lines) out = zfi_meet_hear(v, &error, &known);
        else if (v->file && v->run) out = zfi_meet_read_failure(v, &error);
        if (v->published && !v->p->comm.rank) zfi_meet_publish(v, &error);
    }
    pthread_mutex_unlock(&v->p->mutex);
    if (out) zfi_process_fail(v->p, &error, known ? NULL : error.text);
}

/* Sends a heartbeat of this rank, which waits at the channel for ranks of the group. */
static void zfi_meet_tell_waiting(zfi_rendezvous *v, int channel, zf_group group)
{
    zfi_note note;
    zfi_meet_note_of(v, &note, ZFI_NOTE_WAITS, NULL);
    note.channel = channel;
    note.as.group = group;
    pthread_mutex_lock(&v->p->mutex);
    zfi_meet_send_all(v, &note, -1);
    pthread_mutex_unlock(&v->p->mutex);
}

/* Sends that this rank has failed, and why. The mutex is held. */
static void zfi_meet_tell_failure(zfi_rendezvous *v, zf_status status, const char *why)
{
    zfi_note note;
    zfi_meet_failure_of(v, &note, status, why);
    zfi_meet_send_all(v, &note, -1);
    if (!v->file || !v->run) return;
    zfi_meet_name(v, 0, ".failed", 0);
    zfi_meet_write_file(v, &note, "", 0);
}

/* Closes the connections and removes the files; unless it has failed, says goodbye first. The mutex
 * is held. */
static void zfi_meet_leave(zfi_rendezvous *v)
{
    zfi_note note;
    zfi_meet_note_of(v, &note, ZFI_NOTE_LEFT, NULL);
    if (!v->p->error.status) zfi_meet_send_all(v, &note, -1);
    for (int32_t r = 0; r < zfi_meet_lines(v); r++) zfi_meet_hang_up(&v->lines[r]);
    zfi_meet_unpublish(v);
}

#endif
