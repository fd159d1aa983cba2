/* Fuzzes what processes read from connections: of guests that want to be a rank, and of ranks that
 * have come (comm/rendezvous.c). Any bytes are notes, or end their connection; no text that is
 * printed has a control character; nothing that a guest sends ends the run.
 *
 *     byte 0    bit 0: from a guest, else from a rank; bit 1: to rank 0, else to rank 1;
 *               bit 2: each note gets the magic and the key of the run; bits 3 to 5: of its world
 *     the rest  the bytes that are sent
 *
 *     clang -g -O1 -fsanitize=fuzzer,address,undefined tests/fuzz/notes.c IMPLEMENTATION.o -lm \
 *         -o build/fuzz-notes && build/fuzz-notes -runs=1000000 CORPUS tests/fuzz/seeds/notes
 */
#define _POSIX_C_SOURCE 200809L
#include "../../zeroflow.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function" /* what belongs to calls */
#include "../../comm/rendezvous.c"
#pragma GCC diagnostic pop

static void insist(bool condition)
{
    if (!condition) abort();
}

enum { WORLD = 3 };

static void on_failure(void *self, zf_status status, const char *notice)
{
    (void)self, (void)status, (void)notice;
}

static void printable(const char *text)
{
    for (; *text; text++) insist((unsigned char)*text >= 0x20 && *text != 0x7f);
}

/* What rank 0 makes of a guest. */
static void guest(zfi_meet_hall *h, int other)
{
    zfi_rendezvous *v = h->s->v;
    zfi_line *g = &h->guests[0];
    for (int k = 0; k < 8 && g->socket >= 0; k++) zfi_meet_attend(h, g);
    insist(h->missing >= WORLD - 2 && !h->s->error->status);
    insist((h->missing == WORLD - 2) == (v->lines[1].socket >= 0 || v->lines[2].socket >= 0));
    insist(v->lines[0].socket < 0);
    printable(h->s->why);
    zfi_meet_hang_up(g);
    close(other);
}

/* What a rank makes of another one. */
static void hear(zfi_rendezvous *v, int line, int other)
{
    zf_error error = {ZF_OK, ""};
    bool known = false, failed = false;
    for (int k = 0; k < 8 && !failed; k++) failed = zfi_meet_hear(v, &error, &known);
    insist(failed == (error.status != ZF_OK));
    insist(error.status == ZF_OK || error.status == ZF_ERR_COMM || error.status == ZF_ERR_IO);
    printable(error.text);
    zfi_meet_hang_up(&v->lines[line]);
    close(other);
}

/* Sends the bytes, as notes if they are to be. */
static void send_notes(const zfi_rendezvous *v, int to, const uint8_t *data, size_t size)
{
    const bool notes = data[0] & 4;
    const int32_t world = data[0] >> 3 & 7;
    for (size_t at = 1; at < size; at += sizeof(zfi_note)) {
        const size_t bytes = size - at < sizeof(zfi_note) ? size - at : sizeof(zfi_note);
        zfi_note n = {.rank = 1};
        memcpy(&n, data + at, bytes);
        if (notes) memcpy(n.magic, "zf_meet3", sizeof n.magic), n.key = v->key;
        if (notes && world) n.world = world;
        if (send(to, &n, notes ? sizeof n : bytes, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    zfi_process p = {.comm = {.world = WORLD}};
    zfi_line lines[WORLD];
    bool out[WORLD] = {false, true, true};
    zf_error error = {ZF_OK, ""};
    zfi_rendezvous v = {.p = &p, .lines = lines, .out = out, .key = zfi_meet_key("run")};
    zfi_meet_search s = {.v = &v, .error = &error};
    static zfi_meet_hall h;
    int pair[2], line = 0;
    if (size < 1) return 0;
    p.comm.self = &p, p.comm.rank = data[0] & 2 ? 0 : 1;
    if (!p.comm.rank) line = 1;
    zfi_process_init(&p, "zf_fuzz", 1, on_failure);
    insist(zfi_process_allocate(&p));
    insist(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    for (int k = 0; k < WORLD; k++) lines[k] = (zfi_line){.socket = -1};
    send_notes(&v, pair[1], data, size);
    shutdown(pair[1], SHUT_WR);
    zfi_meet_prepare(pair[0]);
    if (data[0] & 1) {
        p.comm.rank = 0;
        h = (zfi_meet_hall){.s = &s, .missing = WORLD - 1};
        h.guests[0] = (zfi_line){.socket = pair[0]};
        guest(&h, pair[1]);
    } else {
        lines[line].socket = pair[0];
        hear(&v, line, pair[1]);
    }
    for (int k = 0; k < WORLD; k++) zfi_meet_hang_up(&lines[k]);
    zfi_process_free(&p);
    return 0;
}
