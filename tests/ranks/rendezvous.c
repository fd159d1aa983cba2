/* How processes find one another (comm/rendezvous.c), while others connect to the port or write
 * files of the same names: they cost the ranks neither time nor the run. Ranks are threads here, and
 * strangers are sockets. */
#define _POSIX_C_SOURCE 200809L
#include "../support/test.h"

#include <errno.h>
#include <sys/socket.h>

/* The process has no room for another open file. */
static atomic_bool no_files;
static int accept_or_refuse(int s, struct sockaddr *from, socklen_t *bytes)
{
    if (!no_files) return accept(s, from, bytes);
    errno = EMFILE;
    return -1;
}
#define accept accept_or_refuse

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function" /* what belongs to calls */
#include "../../comm/rendezvous.c"
#pragma GCC diagnostic pop

#include <arpa/inet.h>
#include <sys/stat.h>

enum { WORLD = 3, MOST = WORLD + 1 };

typedef struct rank {
    zfi_process p;
    zfi_rendezvous v;
    zf_error error;
    double late, took;
    bool absent;
    pthread_t thread;
} rank;

static void on_failure(void *self, zf_status status, const char *notice)
{
    rank *r = self;
    pthread_mutex_lock(&r->p.mutex);
    if (notice) zfi_meet_tell_failure(&r->v, status, notice);
    pthread_mutex_unlock(&r->p.mutex);
}

/* A port that was free a moment ago. */
static int free_port(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    const int s = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(s, (struct sockaddr *)&at, sizeof at) ||
        getsockname(s, (struct sockaddr *)&at, &size))
        at.sin_port = 0;
    close(s);
    return ntohs(at.sin_port);
}

/* Ranks of a run called "run", by the port or, where there is one, the file. */
static void ranks_new(test *t, rank ranks[MOST], int count, int port, const char *file)
{
    memset(ranks, 0, MOST * sizeof *ranks);
    for (int k = 0; k < count; k++) {
        rank *r = &ranks[k];
        r->p.comm = (zf_comm){.self = r, .rank = k < WORLD ? k : 1, .world = WORLD};
        zfi_process_init(&r->p, "zf_test_comm", 20, on_failure);
        r->v = (zfi_rendezvous){
            .p = &r->p, .host = file ? NULL : "127.0.0.1", .port = port, .key = zfi_meet_key("run")};
        CHECK(t, zfi_process_allocate(&r->p) && zfi_meet_allocate(&r->v, file));
        zfi_meet_note_of(&r->v, &r->v.ids, ZFI_NOTE_IDS, NULL);
        if (!k) memset(r->v.ids.as.ids, 'K', sizeof r->v.ids.as.ids);
    }
}

static void *rank_main(void *object)
{
    rank *r = object;
    const double start = zfi_now();
    nanosleep(&(struct timespec){0, (long)(r->late * 1e9)}, NULL);
    if (zfi_meet_all(&r->v, zfi_now(), &r->error)) zfi_process_fail(&r->p, &r->error, r->error.text);
    r->took = zfi_now() - start;
    return NULL;
}

static void ranks_start(rank *ranks, int count)
{
    for (int k = 0; k < count; k++)
        if (!ranks[k].absent) pthread_create(&ranks[k].thread, NULL, rank_main, &ranks[k]);
}

static void ranks_join(rank *ranks, int count)
{
    for (int k = 0; k < count; k++)
        if (!ranks[k].absent) pthread_join(ranks[k].thread, NULL);
}

static void ranks_free(rank *ranks, int count)
{
    for (int k = 0; k < count; k++) {
        pthread_mutex_lock(&ranks[k].p.mutex);
        zfi_meet_leave(&ranks[k].v);
        pthread_mutex_unlock(&ranks[k].p.mutex);
        zfi_meet_free(&ranks[k].v);
        zfi_process_free(&ranks[k].p);
    }
}

/* All of them have met, in little time, and have rank 0's ids. */
static void met(test *t, const rank *ranks)
{
    for (int k = 0; k < WORLD; k++) {
        OK(t, ranks[k].error.status, ranks[k].error.text);
        CHECK(t, ranks[k].v.ids.as.ids[0] == 'K' && ranks[k].v.ids.rank == 0);
        CHECK(t, ranks[k].took < 4);
    }
}

/* A connection to the address, when somebody listens there. */
static int connected(const char *host, int port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    const double until = zfi_now() + 10;
    inet_pton(AF_INET, host, &at.sin_addr);
    while (zfi_now() < until) {
        const int s = socket(AF_INET, SOCK_STREAM, 0);
        if (!connect(s, (struct sockaddr *)&at, sizeof at)) return s;
        close(s);
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    return -1;
}

/* The note of a rank of a run of three. */
static zfi_note note_of(const char *run, int32_t number, int32_t world, zfi_note_kind word)
{
    zfi_process p = {.comm = {.rank = number, .world = world}};
    const zfi_rendezvous v = {.p = &p, .key = zfi_meet_key(run)};
    zfi_note n;
    zfi_meet_note_of(&v, &n, word, "");
    return n;
}

/* More connections than there is room for say nothing. */
TEST_ONCE(rendezvous_silent_strangers)
{
    enum { SILENT = ZFI_MEET_GUESTS + 8 };
    const int port = free_port();
    rank ranks[MOST];
    int strangers[SILENT];
    ranks_new(t, ranks, WORLD, port, NULL);
    for (int k = 1; k < WORLD; k++) ranks[k].late = 0.5;
    ranks_start(ranks, WORLD);
    for (int k = 0; k < SILENT; k++) strangers[k] = connected("127.0.0.1", port);
    ranks_join(ranks, WORLD);
    for (int k = 0; k < SILENT; k++) close(strangers[k]);
    met(t, ranks);
    ranks_free(ranks, WORLD);
}

/* What is no note, notes of other runs and worlds, and numbers that are no rank. None takes the place
 * of a rank, though all come before it. */
TEST_ONCE(rendezvous_notes_of_strangers)
{
    const zfi_note notes[] = {
        note_of("other", 1, WORLD, ZFI_NOTE_HERE), note_of("", 1, WORLD, ZFI_NOTE_HERE),
        note_of("run", 1, 2, ZFI_NOTE_HERE),       note_of("run", 0, WORLD, ZFI_NOTE_HERE),
        note_of("run", -1, WORLD, ZFI_NOTE_HERE),  note_of("run", INT32_MAX, WORLD, ZFI_NOTE_HERE),
        note_of("run", 1, WORLD, ZFI_NOTE_LEFT),   note_of("run", 1, WORLD, (zfi_note_kind)99),
        note_of("other", 1, 2, ZFI_NOTE_GAVE_UP)};
    enum { NOTES = sizeof notes / sizeof notes[0] };
    static const char http[sizeof(zfi_note) + 100] = "GET / HTTP/1.1\r\n";
    const int port = free_port();
    int strangers[NOTES + 2];
    rank ranks[MOST];
    ranks_new(t, ranks, WORLD, port, NULL);
    for (int k = 1; k < WORLD; k++) ranks[k].late = 0.3;
    ranks_start(ranks, WORLD);
    for (int k = 0; k < NOTES + 2; k++) {
        const bool is_note = k < NOTES;
        strangers[k] = connected("127.0.0.1", port);
        (void)!send(strangers[k], is_note ? (const void *)&notes[k] : http,
                    is_note       ? sizeof notes[k]
                    : k == NOTES ? sizeof http
                                  : 20,
                    MSG_NOSIGNAL);
    }
    ranks_join(ranks, WORLD);
    for (int k = 0; k < NOTES + 2; k++) close(strangers[k]);
    met(t, ranks);
    ranks_free(ranks, WORLD);
}

/* A process that says it is a rank that has come already is refused; the run goes on. */
TEST_ONCE(rendezvous_two_of_one_rank)
{
    rank ranks[MOST];
    ranks_new(t, ranks, MOST, free_port(), NULL);
    ranks[2].late = 0.4, ranks[WORLD].late = 0.2;
    ranks_start(ranks, MOST);
    ranks_join(ranks, MOST);
    met(t, ranks);
    CHECK(t, ranks[WORLD].error.status == ZF_ERR_COMM);
    CHECK_TEXT(t, ranks[WORLD].error.text,
               "zf_test_comm: rank 0 refuses rank 1: two processes say they are rank 1");
    ranks_free(ranks, MOST);
}

/* A rank whose connection has ended can come again. */
TEST_ONCE(rendezvous_comes_again)
{
    const zfi_note here = note_of("run", 1, WORLD, ZFI_NOTE_HERE);
    const int port = free_port();
    rank ranks[MOST];
    int first;
    ranks_new(t, ranks, WORLD, port, NULL);
    ranks[1].late = 0.3, ranks[2].late = 0.6;
    ranks_start(ranks, WORLD);
    first = connected("127.0.0.1", port);
    (void)!send(first, &here, sizeof here, MSG_NOSIGNAL);
    nanosleep(&(struct timespec){0, 100000000}, NULL);
    close(first);
    ranks_join(ranks, WORLD);
    met(t, ranks);
    ranks_free(ranks, WORLD);
}

/* The error of a rank that waits in vain says what came instead. */
TEST_ONCE(rendezvous_says_who_came)
{
    const int port = free_port();
    rank ranks[MOST];
    ranks_new(t, ranks, WORLD, port, NULL);
    for (int k = 0; k < WORLD; k++) ranks[k].p.deadline = 2;
    ranks[2].v.key = zfi_meet_key("other");
    ranks_start(ranks, WORLD);
    ranks_join(ranks, WORLD);
    CHECK_TEXT(t, ranks[0].error.text,
               "zf_test_comm: rank 2 of 3 did not come within 2 s (a rank of another run came)");
    CHECK(t, strstr(ranks[2].error.text, "rank 0 of 3 did not come within 2 s: it is expected at "
                                         "127.0.0.1:"));
    CHECK(t, strstr(ranks[2].error.text, " (rank 0 of another run answers there)"));
    ranks_free(ranks, WORLD);
}

/* A rank that came and did not wait for the others is named when all others have come. */
TEST_ONCE(rendezvous_says_who_left)
{
    const zfi_note here = note_of("run", 1, WORLD, ZFI_NOTE_HERE);
    const int port = free_port();
    rank ranks[MOST];
    int s;
    ranks_new(t, ranks, WORLD, port, NULL);
    for (int k = 0; k < WORLD; k++) ranks[k].p.deadline = 2;
    ranks[1].absent = true, ranks[2].late = 0.3;
    ranks_start(ranks, WORLD);
    s = connected("127.0.0.1", port);
    (void)!send(s, &here, sizeof here, MSG_NOSIGNAL);
    nanosleep(&(struct timespec){0, 100000000}, NULL);
    close(s);
    ranks_join(ranks, WORLD);
    CHECK_TEXT(t, ranks[0].error.text,
               "zf_test_comm: rank 1 of 3 did not stay until all came within 2 s");
    ranks_free(ranks, WORLD);
}

/* A host that is none, and a process that can open no more files. */
TEST_ONCE(rendezvous_says_what_the_system_lacks)
{
    static const char *const errors[] = {
        "zf_test_comm: the host 'no..where' is not found: ",
        "zf_test_comm: rank 0 cannot take a connection of each rank: "};
    for (int k = 0; k < 2; k++) {
        rank ranks[MOST];
        ranks_new(t, ranks, WORLD, free_port(), NULL);
        for (int r = 0; r < WORLD; r++) {
            ranks[r].p.deadline = 2, ranks[r].absent = r > 0;
            if (!k) ranks[r].v.host = "no..where";
        }
        no_files = k > 0;
        ranks_start(ranks, WORLD);
        ranks_join(ranks, WORLD);
        no_files = false;
        CHECK(t, !strncmp(ranks[0].error.text, errors[k], strlen(errors[k])));
        ranks_free(ranks, WORLD);
    }
}

/* Rank 0 listens at the address that it was given, and at no other. */
TEST_ONCE(rendezvous_listens_at_one_address)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    const int port = free_port();
    int first, s = socket(AF_INET, SOCK_STREAM, 0);
    rank ranks[MOST];
    ranks_new(t, ranks, WORLD, port, NULL);
    ranks[1].late = ranks[2].late = 0.2;
    ranks_start(ranks, WORLD);
    first = connected("127.0.0.1", port);
    at.sin_port = htons((uint16_t)port);
    inet_pton(AF_INET, "127.0.0.2", &at.sin_addr);
    CHECK(t, connect(s, (struct sockaddr *)&at, sizeof at) && errno == ECONNREFUSED);
    close(s), close(first);
    ranks_join(ranks, WORLD);
    met(t, ranks);
    ranks_free(ranks, WORLD);
    ranks_new(t, ranks, 1, port, NULL);
    ranks[0].v.host = "192.0.2.1"; /* of documentation: no machine has it */
    ranks_start(ranks, 1);
    ranks_join(ranks, 1);
    CHECK(t, strstr(ranks[0].error.text, "zf_test_comm: rank 0 cannot listen at 192.0.2.1:"));
    CHECK(t, strstr(ranks[0].error.text, "; it must be an address of its own machine"));
    ranks_free(ranks, 1);
}

/* A text of another machine commands no terminal. */
TEST_ONCE(rendezvous_prints_texts_escaped)
{
    rank ranks[MOST];
    zfi_note gone;
    char text[9];
    CHECK_TEXT(t, zfi_printable(text, sizeof text, "a\n\xc3\xa4"), "a\\x0a");
    CHECK_TEXT(t, zfi_printable(text, sizeof text, "\xc3\xa4\xff"), "\xc3\xa4\\xff");
    CHECK_TEXT(t, zfi_printable(text, sizeof text, "\xc2\x9b."), "\\xc2\\x9b");
    ranks_new(t, ranks, WORLD, free_port(), NULL);
    ranks_start(ranks, WORLD);
    ranks_join(ranks, WORLD);
    met(t, ranks);
    zfi_meet_failure_of(&ranks[1].v, &gone, ZF_OK, "\x1b[2J \xc2\x9b" "2J\n lost");
    zfi_meet_send_all(&ranks[1].v, &gone, -1);
    for (int k = 0; k < 2000 && !atomic_load(&ranks[2].p.failed); k++) {
        zfi_meet_listen(&ranks[0].v), zfi_meet_listen(&ranks[2].v);
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    for (int k = 0; k < WORLD; k += 2) {
        CHECK_TEXT(t, ranks[k].p.error.text,
                   "rank 1 gave up: \\x1b[2J \\xc2\\x9b2J\\x0a lost");
        CHECK(t, ranks[k].p.error.status == ZF_ERR_COMM);
    }
    ranks_free(ranks, WORLD);
}

/* A rank speaks for itself alone. A place that it names is one of a channel. */
TEST_ONCE(rendezvous_speaks_for_itself)
{
    rank ranks[MOST];
    zfi_note n;
    ranks_new(t, ranks, WORLD, free_port(), NULL);
    ranks_start(ranks, WORLD);
    ranks_join(ranks, WORLD);
    met(t, ranks);
    for (int k = 0; k < 3; k++) {
        zfi_meet_note_of(&ranks[1].v, &n, k < 2 ? ZFI_NOTE_WAITS : (zfi_note_kind)-5, "");
        n.channel = k ? INT32_MIN : INT32_MAX;
        zfi_meet_send_all(&ranks[1].v, &n, -1);
    }
    n.rank = 2, n.word = ZFI_NOTE_GAVE_UP;
    zfi_meet_send_all(&ranks[1].v, &n, -1);
    for (int k = 0; k < 2000 && !atomic_load(&ranks[0].p.failed); k++) {
        zfi_meet_listen(&ranks[0].v);
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    CHECK_TEXT(t, ranks[0].p.error.text, "rank 1 of 3 has ended");
    ranks_free(ranks, WORLD);
}

/* Files of the same names: those of other kinds are neither written over nor removed. */
TEST_ONCE(rendezvous_files_that_are_no_notes)
{
    static const char *const names[] = {"", ".1", ".1.part", ".failed"};
    char file[300], taken[330], line[8];
    for (int k = 0; k < 5; k++) {
        rank ranks[MOST];
        FILE *f;
        const bool pipe = k == 4;
        snprintf(file, sizeof file, "%s%d", test_path("foreign"), k);
        snprintf(taken, sizeof taken, "%s%s", file, names[pipe ? 1 : k]);
        if (pipe) CHECK(t, !mkfifo(taken, 0600));
        else CHECK(t, (f = fopen(taken, "w")) && fputs("kept", f) >= 0 && !fclose(f));
        ranks_new(t, ranks, WORLD, 0, file);
        for (int r = 0; r < WORLD; r++) ranks[r].p.deadline = k == 3 ? 30 : 0.3;
        ranks_start(ranks, WORLD);
        ranks_join(ranks, WORLD);
        if (k == 3) met(t, ranks);
        else
            CHECK(t, strstr(ranks[k != 0].error.text,
                            " cannot be written: that file, or the one of its name and .part, is "
                            "no file of a rendezvous: name another one"));
        ranks_free(ranks, WORLD);
        if (pipe) continue;
        CHECK(t, (f = fopen(taken, "r")) && fgets(line, sizeof line, f) && !fclose(f));
        CHECK_TEXT(t, line, "kept");
    }
}

/* Files of the same names: a note of another run, a link. */
TEST_ONCE(rendezvous_files_of_strangers)
{
    char file[300], one[320], part[340], kept[320], line[8] = "";
    const zfi_note other = note_of("other", 2, WORLD, ZFI_NOTE_HERE);
    rank ranks[MOST];
    FILE *f;
    snprintf(file, sizeof file, "%s", test_path("meet"));
    snprintf(part, sizeof part, "%s.2.part", file);
    snprintf(kept, sizeof kept, "%s.kept", file);
    CHECK(t, (f = fopen(kept, "w")) && fputs("kept", f) >= 0 && !fclose(f));
    ranks_new(t, ranks, WORLD, 0, file);
    ranks[1].late = ranks[2].late = 0.1;
    ranks_start(ranks, WORLD);
    ranks_join(ranks, WORLD);
    met(t, ranks);
    ranks_free(ranks, WORLD);
    CHECK(t, !symlink(kept, part));
    ranks_new(t, ranks, WORLD, 0, file);
    for (int k = 0; k < WORLD; k++) ranks[k].p.deadline = 0.5;
    ranks_start(ranks, WORLD);
    ranks_join(ranks, WORLD);
    CHECK(t, ranks[2].error.status == ZF_ERR_IO && strstr(ranks[2].error.text, ".2 cannot be"));
    ranks_free(ranks, WORLD);
    CHECK(t, (f = fopen(kept, "r")) && fgets(line, sizeof line, f) && !fclose(f));
    CHECK_TEXT(t, line, "kept");
    snprintf(one, sizeof one, "%s.2", file);
    CHECK(t, (f = fopen(one, "wb")) && fwrite(&other, sizeof other, 1, f) == 1 && !fclose(f));
    ranks_new(t, ranks, WORLD, 0, file);
    for (int k = 0; k < WORLD; k++) ranks[k].p.deadline = 1.5;
    ranks[2].absent = true;
    ranks_start(ranks, WORLD);
    ranks_join(ranks, WORLD);
    CHECK_TEXT(t, ranks[0].error.text, "zf_test_comm: rank 2 of 3 did not come within 1.5 s");
    ranks_free(ranks, WORLD);
}
