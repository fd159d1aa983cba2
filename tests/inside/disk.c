/* The disk engine: written data are read back, by io_uring, by an emulated ring and by threads,
 * direct and buffered, whatever faults the system has; or there is an error that says where. */
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
int kill(pid_t, int); /* hidden by strict C11 */

/* ------------------------------------------------------------------------------ a bad system */

enum { FAKE_DEPTH = 64 };

/* System calls with faults, and a ring that performs requests in any order. */
typedef struct fake {
    zfi_system system;
    pthread_mutex_t mutex;
    pthread_cond_t some; /* requests to do, or results */
    uint64_t state;      /* of the dice */
    /* One request in this number (0: none) is incomplete, must be repeated, or takes a while */
    uint32_t cut, again, slow;
    bool nothing;               /* requests move nothing */
    int64_t moved;              /* requests so far */
    int64_t fail_from, fail_to; /* these fail ... */
    bool fail_reads, fail_writes;
    int fail_with;          /* ... with this */
    int64_t flip;           /* that request reads a flipped bit; 0: none */
    int allocate_with;      /* allocation fails with this */
    int64_t space;          /* bytes that can be written before the disk is full; 0: any */
    int setup_with, map_at; /* the ring is refused with this; its map number n fails */
    int maps, open_maps;
    int submit_with, wait_with; /* submitting and waiting fail with this, so many times: */
    int submit_fails, wait_fails;
    bool direct;

    struct {
        uint32_t head, tail, mask, indices[FAKE_DEPTH];
        uint32_t result_head, result_tail, result_mask;
        zfi_ring_result results[2 * FAKE_DEPTH];
    } ring;
    zfi_ring_entry entries[FAKE_DEPTH], pending[FAKE_DEPTH];
    int pending_count;
} fake;

static uint32_t fake_dice(fake *f, uint32_t sides)
{
    f->state ^= f->state << 13, f->state ^= f->state >> 7, f->state ^= f->state << 17;
    return sides ? (uint32_t)(f->state >> 33) % sides : 1;
}

/* Reads or writes with the planned faults. */
static int64_t fake_move(fake *f, bool write, int file, char *data, size_t bytes, int64_t offset)
{
    static const int codes[3] = {EINTR, EAGAIN, ECANCELED};
    int64_t number, result;
    bool again, cut, slow;
    size_t most = bytes;
    pthread_mutex_lock(&f->mutex);
    number = ++f->moved;
    again = !fake_dice(f, f->again), cut = !fake_dice(f, f->cut), slow = !fake_dice(f, f->slow);
    if (cut) most = fake_dice(f, (uint32_t)bytes) + 1;
    errno = codes[fake_dice(f, 3)];
    if (number >= f->fail_from && number < f->fail_to && (write ? f->fail_writes : f->fail_reads))
        again = true, errno = f->fail_with;
    if (write && f->space && offset + (int64_t)bytes > f->space) again = true, errno = ENOSPC;
    pthread_mutex_unlock(&f->mutex);
    if (slow) {
        const struct timespec moment = {0, 300000};
        int code = errno;
        nanosleep(&moment, NULL);
        errno = code;
    }
    if (again) return -1;
    if (f->nothing) return 0;
    if (write) {
        size_t whole = most == bytes ? bytes : f->direct ? most / 4096 * 4096 : most;
        result = whole ? pwrite(file, data, whole, offset) : 0;
        return result < (int64_t)whole ? result : (int64_t)most;
    }
    result = pread(file, data, bytes, offset);
    if (result > (int64_t)most) {
        memset(data + most, 0xee, (size_t)result - most);
        result = (int64_t)most;
    }
    if (number == f->flip && result > 5) data[5] ^= 4;
    return result;
}

static int64_t fake_read(void *user, int file, void *data, size_t bytes, int64_t offset)
{
    return fake_move(user, false, file, data, bytes, offset);
}

static int64_t fake_write(void *user, int file, const void *data, size_t bytes, int64_t offset)
{
    return fake_move(user, true, file, (char *)(uintptr_t)data, bytes, offset);
}

static int fake_allocate(void *user, int file, int64_t bytes)
{
    fake *f = user;
    if (!f->allocate_with) return zfi_system_allocate(NULL, file, bytes);
    errno = f->allocate_with;
    return -1;
}

static int fake_setup(void *user, unsigned entries, void *params)
{
    fake *f = user;
    zfi_ring_params *p = params;
    if (f->setup_with || entries > FAKE_DEPTH) {
        errno = f->setup_with ? f->setup_with : EINVAL;
        return -1;
    }
    f->ring.mask = FAKE_DEPTH - 1, f->ring.result_mask = 2 * FAKE_DEPTH - 1;
    p->requests = FAKE_DEPTH, p->results = 2 * FAKE_DEPTH, p->features = 0xff;
#define AT(member) (uint32_t)((char *)&f->ring.member - (char *)&f->ring)
    p->request = (zfi_ring_places){
        .head = AT(head), .tail = AT(tail), .mask = AT(mask), .array = AT(indices)};
    p->result = (zfi_ring_places){.head = AT(result_head),
                                  .tail = AT(result_tail),
                                  .mask = AT(result_mask),
                                  .more = {0, AT(results)}};
#undef AT
    return open("/dev/null", O_RDONLY);
}

static void *fake_map(void *user, int ring, size_t bytes, int64_t offset)
{
    fake *f = user;
    (void)ring;
    if (++f->maps == f->map_at) return errno = ENOMEM, NULL;
    f->open_maps++;
    if (offset) return bytes <= sizeof f->entries ? (void *)f->entries : NULL;
    return bytes <= sizeof f->ring ? (void *)&f->ring : NULL;
}

static void fake_unmap(void *user, void *at, size_t bytes)
{
    (void)at, (void)bytes;
    ((fake *)user)->open_maps--;
}

/* Does one of the pending requests; called with the mutex, which is open meanwhile. */
static void fake_do_one(fake *f)
{
    int k = (int)fake_dice(f, (uint32_t)f->pending_count);
    zfi_ring_entry e = f->pending[k];
    uint32_t tail;
    int64_t result;
    f->pending[k] = f->pending[--f->pending_count];
    pthread_mutex_unlock(&f->mutex);
    errno = 0;
    result = fake_move(f, e.operation == ZFI_RING_WRITE, e.file, (char *)(uintptr_t)e.address,
                       e.bytes, (int64_t)e.offset);
    if (result < 0) result = -errno;
    pthread_mutex_lock(&f->mutex);
    tail = f->ring.result_tail;
    f->ring.results[tail & f->ring.result_mask] = (zfi_ring_result){e.user, (int32_t)result, 0};
    ZFI_RELEASE(&f->ring.result_tail, tail + 1);
    pthread_cond_broadcast(&f->some);
}

static int fake_enter(void *user, int ring, unsigned submit, unsigned wait)
{
    fake *f = user;
    int taken = 0;
    (void)ring;
    pthread_mutex_lock(&f->mutex);
    if (submit && f->submit_fails) {
        f->submit_fails--;
        errno = f->submit_with;
        taken = -1;
    } else if (wait && f->wait_fails) {
        f->wait_fails--;
        while (f->pending_count) fake_do_one(f);
        errno = f->wait_with;
        taken = -1;
    }
    while (taken >= 0 && submit && f->ring.head != ZFI_ACQUIRE(&f->ring.tail)) {
        f->pending[f->pending_count++] = f->entries[f->ring.indices[f->ring.head & f->ring.mask]];
        f->ring.head++;
        submit--, taken++;
        pthread_cond_broadcast(&f->some);
    }
    while (taken >= 0 && wait && f->ring.result_tail == ZFI_ACQUIRE(&f->ring.result_head)) {
        if (f->pending_count) fake_do_one(f);
        else pthread_cond_wait(&f->some, &f->mutex);
    }
    while (taken >= 0 && f->pending_count && !fake_dice(f, 3)) fake_do_one(f);
    pthread_mutex_unlock(&f->mutex);
    return taken;
}

static void fake_new(fake *f)
{
    *f = (fake){.state = 88172645463325252u};
    f->system = (zfi_system){f,          fake_allocate, fake_read, fake_write,
                             fake_setup, fake_enter,    fake_map,  fake_unmap};
    pthread_mutex_init(&f->mutex, NULL);
    pthread_cond_init(&f->some, NULL);
}

/* ----------------------------------------------------------------------------------- the tests' */

enum { BLOCK = 8192, SPACE = 40 * 4096 };

/* Values whose last blocks are whole, short, and tiny; "again" lies where "large" lies. */
static const zfi_disk_value values[] = {{"large", 0, 9 * BLOCK},
                                        {"odd", 18 * 4096, 3 * BLOCK + 5000},
                                        {"small", 26 * 4096, 7},
                                        {"none", 27 * 4096, 0},
                                        {"again", 4096, 4 * BLOCK}};
enum { LARGE, ODD, SMALL, NONE, AGAIN, VALUES };

/* A test's folder, its disk in there, and the system beneath. */
typedef struct setup {
    char folder[512];
    fake f;
    zfi_memory memory;
    zfi_disk_desc desc;
    zfi_disk *d;
    zf_error error;
    unsigned char data[9 * BLOCK], back[9 * BLOCK];
} setup;

static void setup_close(setup *s)
{
    zfi_disk_close(s->d);
    s->d = NULL;
}

static void close_setup(void *object) { setup_close(object); }

static void setup_free(void *object)
{
    setup *s = object;
    setup_close(s);
    disk_remove(s->folder);
    pthread_cond_destroy(&s->f.some);
    pthread_mutex_destroy(&s->f.mutex);
}

/* Opens the disk anew. */
static zfi_disk *setup_open(setup *s)
{
    setup_close(s);
    s->error = (zf_error){ZF_OK, ""};
    s->f.ring.head = s->f.ring.tail = s->f.ring.result_head = s->f.ring.result_tail = 0;
    s->f.moved = s->f.maps = 0;
    s->d = zfi_disk_open(&s->memory, &s->desc, &s->error);
    return s->d;
}

static void fill(unsigned char *data, size_t bytes, unsigned seed)
{
    for (size_t i = 0; i < bytes; i++)
        data[i] = (unsigned char)((seed = seed * 1664525u + 1013904223u) >> 24);
}

static void setup_new(test *t, setup *s)
{
    memset(s, 0, sizeof *s);
    snprintf(s->folder, sizeof s->folder, "%s", test_path("offload"));
    disk_remove(s->folder);
    mkdir(s->folder, 0700);
    fake_new(&s->f);
    s->memory = zfi_memory_of(&t->allocator);
    s->desc = (zfi_disk_desc){.folder = s->folder,
                              .run = "test",
                              .rank = 1,
                              .world = 4,
                              .bytes = SPACE,
                              .values = values,
                              .count = VALUES,
                              .block = BLOCK,
                              .depth = 5,
                              .staging = 2};
    fill(s->data, sizeof s->data, 3);
    test_defer(t, setup_free, s);
}

/* True when no disk can be opened, with this status and text. */
static bool setup_refused(setup *s, zf_status status, const char *text)
{
    bool refused = !setup_open(s) && s->error.status == status && strstr(s->error.text, text);
    if (!refused) printf("    %s\n", s->error.text);
    return refused;
}

/* The file is made by writes and allocations that are interrupted or do a part of what they are asked
 * for; its space too, where the file system cannot allocate any. */
TEST_ONCE(disk_makes_its_file_by_parts)
{
    for (int fills = 0; fills < 2; fills++) {
        static setup s;
        const zfi_offload_desc d = {s.folder, "parts", 0, 1, 7, 5 * 4096, &s.f.system};
        zfi_offload_file file;
        zf_error error = {ZF_OK, ""};
        char header[4096] = "", page[4096];
        setup_new(t, &s);
        s.f.cut = 2, s.f.fail_writes = true;
        s.f.fail_from = 1, s.f.fail_to = 3, s.f.fail_with = EINTR;
        s.f.allocate_with = fills ? EOPNOTSUPP : 0;
        OK(t, zfi_offload_open(&file, &d, &error), error.text);
        CHECK(t, pread(file.file, header, sizeof header, 0) == (ssize_t)sizeof header);
        CHECK(t, !strncmp(header, zfi_offload_magic, strlen(zfi_offload_magic)));
        CHECK(t, strstr(header, "run parts\nrank 0 of 1\n") && strstr(header, "can be removed.\n"));
        CHECK(t, pread(file.file, page, sizeof page, 4 * 4096) == (ssize_t)sizeof page);
        CHECK(t, s.f.moved > (fills ? 6 : 2));
        zfi_offload_close(&file);
        t->deferred_count--, setup_free(&s);
    }
}

static zf_status write_all(zfi_disk *d, int32_t value, const void *data, zf_error *error)
{
    zfi_disk_transfer transfer;
    zfi_disk_write(d, value, 0, data, values[value].bytes, &transfer);
    return zfi_disk_wait(d, &transfer, error);
}

static zf_status read_all(zfi_disk *d, int32_t value, void *data, zf_error *error)
{
    zfi_disk_transfer transfer;
    zfi_disk_read(d, value, 0, data, values[value].bytes, &transfer);
    return zfi_disk_wait(d, &transfer, error);
}

/* Files in a folder. */
static int files_in(const char *folder)
{
    int count = 0;
    DIR *directory = opendir(folder);
    while (directory && zfi_directory_next(directory)) count++;
    if (directory) closedir(directory);
    return count;
}

/* The next way of a disk that a test goes through; false after the last. A machine may have no
 * ring. */
static bool setup_case(test *t, setup *s, int k)
{
    static const zfi_disk_way way[] = {ZFI_DISK_RING, ZFI_DISK_RING, ZFI_DISK_THREADS};
    zfi_ring ring;
    if (k == 6) return false;
    s->desc.way = way[k / 2];
    s->desc.buffered = k % 2;
    s->f.direct = !s->desc.buffered;
    s->desc.system = k / 2 ? &s->f.system : NULL;
    if (k / 2) return true;
    if (zfi_ring_open(&ring, &zfi_system_own, 4)) return zfi_ring_close(&ring), true;
    test_skip(t, "io_uring");
    s->desc.way = ZFI_DISK_THREADS;
    return true;
}

/* --------------------------------------------------------------------------------- what is read */

TEST(disk_gives_back_what_was_written)
{
    enum { EDGE = 64 };
    static unsigned char back[4096 + EDGE + 9 * BLOCK + EDGE], data[sizeof back];
    static setup s;
    setup_new(t, &s);
    fill(data, sizeof data, 1);
    for (int k = 0; setup_case(t, &s, k); k++)
        for (int shift = 0; shift < 2; shift++) { /* aligned, and not */
            unsigned char *from = data + (4096 - (uintptr_t)data % 4096) + shift,
                          *to = back + (4096 - (uintptr_t)back % 4096) + shift;
            zfi_disk_transfer transfer, nothing;
            zfi_disk_info info;
            struct stat about;
            NEED(t, setup_open(&s), &s.error);
            info = zfi_disk_info_of(s.d);
            CHECK(t, info.ring == (s.desc.way == ZFI_DISK_RING) && info.ring != (info.threads > 0));
            CHECK(t, !s.desc.buffered || !info.direct);
            CHECK(t, stat(info.path, &about) == 0 && about.st_size == info.file_bytes);
            CHECK(t, info.file_bytes == zfi_disk_file_bytes(SPACE));
            CHECK(t, (int64_t)about.st_blocks * 512 >= info.file_bytes);
            for (int32_t v = LARGE; v <= NONE; v++) {
                memset(back, 0x55, sizeof back);
                OK(t, write_all(s.d, v, from, &s.error), s.error.text);
                OK(t, read_all(s.d, v, to, &s.error), s.error.text);
                CHECK(t, !memcmp(to, from, (size_t)values[v].bytes));
                CHECK(t, to[values[v].bytes] == 0x55 && (!shift || to[-1] == 0x55));
            }
            /* two blocks in the middle, and nothing */
            zfi_disk_write(s.d, LARGE, 3 * BLOCK, s.data, 2 * BLOCK, &transfer);
            zfi_disk_write(s.d, LARGE, 0, from, 0, &nothing);
            OK(t, zfi_disk_wait(s.d, &nothing, &s.error), s.error.text);
            OK(t, zfi_disk_wait(s.d, &transfer, &s.error), s.error.text);
            OK(t, read_all(s.d, LARGE, to, &s.error), s.error.text);
            CHECK(t, !memcmp(to, from, 3 * BLOCK));
            CHECK(t, !memcmp(to + 3 * BLOCK, s.data, 2 * BLOCK));
            CHECK(t, !memcmp(to + 5 * BLOCK, from + 5 * BLOCK, 4 * BLOCK));
            setup_close(&s);
            CHECK(t, files_in(s.folder) == 0);
        }
}

TEST_ONCE(disk_moves_any_bytes)
{
    static setup s;
    static const int64_t pieces[][2] = {{0, 100},           {BLOCK - 3, 7},
                                        {2 * BLOCK, BLOCK}, {4 * BLOCK + 1, 3 * BLOCK},
                                        {9 * BLOCK - 1, 1}, {50, 0}};
    unsigned seed = 5;
    setup_new(t, &s);
    NEED(t, setup_open(&s), &s.error);
    /* the missing part of a block is 0, and a missing block does not exist */
    for (int k = 0; k < ZFI_COUNT(pieces); k++)
        OK(t, zfi_disk_put(s.d, LARGE, pieces[k][0], s.data + pieces[k][0], pieces[k][1], &s.error),
           s.error.text);
    GIVES(t, read_all(s.d, LARGE, s.back, &s.error), ZF_ERR_STAGE, s.error.text);
    CHECK(t, strstr(s.error.text, "large, byte 24576 of "));
    s.error.status = ZF_OK;
    OK(t, zfi_disk_get(s.d, LARGE, 0, s.back, 2 * BLOCK, &s.error), s.error.text);
    for (int i = 0; i < 2 * BLOCK; i++)
        CHECK(t, s.back[i] == (i < 100 || (i >= BLOCK - 3 && i < BLOCK + 4) ? s.data[i] : 0));
    OK(t, write_all(s.d, LARGE, s.data, &s.error), s.error.text);
    for (int k = 0; k < 200; k++) {
        int64_t at = (seed = seed * 1664525u + 1013904223u) % sizeof s.data,
                bytes = (seed = seed * 1664525u + 1013904223u) % (sizeof s.data + 1 - (size_t)at);
        if (k % 2) fill(s.data + at, (size_t)bytes, seed);
        if (k % 2) OK(t, zfi_disk_put(s.d, LARGE, at, s.data + at, bytes, &s.error), s.error.text);
        else OK(t, zfi_disk_get(s.d, LARGE, at, s.back, bytes, &s.error), s.error.text);
        CHECK(t, k % 2 || !memcmp(s.back, s.data + at, (size_t)bytes));
    }
    OK(t, read_all(s.d, LARGE, s.back, &s.error), s.error.text);
    CHECK(t, !memcmp(s.back, s.data, sizeof s.data));
    GIVES(t, zfi_disk_get(s.d, LARGE, 1, s.back, 9 * BLOCK, &s.error), ZF_ERR_ARGUMENT,
          s.error.text);
    s.error.status = ZF_OK;
    GIVES(t, zfi_disk_put(s.d, VALUES, 0, s.back, 1, &s.error), ZF_ERR_ARGUMENT, s.error.text);
}

/* Of values that begin at one place, a copy is of the one of its size, whose checksums it uses. */
TEST_ONCE(disk_copies_at_shared_places)
{
    static const zfi_disk_value sharing[] = {{"before", 0, 4096},
                                             {"small", 4096, 100},
                                             {"all", 4096, 3 * BLOCK},
                                             {"some", 4096, BLOCK + 700},
                                             {"after", 4096 + 3 * BLOCK, 4096}};
    static setup s;
    setup_new(t, &s);
    s.desc.values = sharing, s.desc.count = ZFI_COUNT(sharing);
    NEED(t, setup_open(&s), &s.error);
    OK(t, zfi_disk_copy(s.d, -1, s.d->base, s.data, 4096, &s.error), s.error.text);
    for (int k = 1; k < 4; k++) {
        char *at = s.d->base + sharing[k].offset;
        const size_t bytes = (size_t)sharing[k].bytes;
        OK(t, zfi_disk_copy(s.d, -1, at, s.data + k, bytes, &s.error), s.error.text);
        memset(s.back, 0, sizeof s.back);
        OK(t, zfi_disk_copy(s.d, -1, s.back, at, bytes, &s.error), s.error.text);
        CHECK(t, !memcmp(s.data + k, s.back, bytes));
        for (int n = 1; n < ZFI_COUNT(sharing); n++)
            CHECK(t, s.d->checks[s.d->first[n]].written == (n <= k));
    }
    OK(t, zfi_disk_copy(s.d, -1, s.back, s.d->base, 4096, &s.error), s.error.text);
    CHECK(t, !memcmp(s.data, s.back, 4096));
    /* a part of one of them, which is named */
    CHECK(t, zfi_disk_find(s.d, s.d->base + 4096, 3 * BLOCK) == 2);
    OK(t, zfi_disk_copy(s.d, 2, s.d->base + 4096, s.data, 3 * BLOCK, &s.error), s.error.text);
    OK(t, zfi_disk_copy(s.d, 2, s.back, s.d->base + 4096 + BLOCK, 100, &s.error), s.error.text);
    CHECK(t, !memcmp(s.data + BLOCK, s.back, 100));
}

/* The disk allocates nothing besides the memory that it was given. */
TEST_ONCE(disk_in_given_memory)
{
    static setup s;
    char *host;
    size_t bytes;
    setup_new(t, &s);
    bytes = zfi_disk_host_bytes(&s.desc, zfi_disk_checks(&s.desc));
    CHECK(t, bytes % 4096 == 0);
    host = aligned_alloc(4096, bytes + 4096);
    NEED(t, host, NULL);
    test_defer(t, free, host);
    test_defer(t, close_setup, &s);
    memset(host + bytes, 0x77, 4096);
    s.desc.host = host;
    NEED(t, setup_open(&s), &s.error);
    OK(t, write_all(s.d, ODD, s.data, &s.error), s.error.text);
    OK(t, read_all(s.d, ODD, s.back, &s.error), s.error.text);
    CHECK(t, !memcmp(s.data, s.back, (size_t)values[ODD].bytes) && t->allocations == 0);
    for (int i = 0; i < 4096; i++) CHECK(t, host[bytes + (size_t)i] == 0x77);
}

/* ------------------------------------------------------------------------------------ at random */

enum { IN_FLIGHT = 6, ROOM = 9 * BLOCK + 64 };

typedef struct worker {
    zfi_disk *disk;
    int32_t value;
    unsigned seed;
    int rounds;
    const char *bad;
    zf_error error;
    unsigned char is[9 * BLOCK]; /* the value */
    unsigned char data[IN_FLIGHT][ROOM], expected[IN_FLIGHT][ROOM];
} worker;

/* Writes and reads runs of blocks of one value, several at a time; a write may be followed by a
 * read of the same bytes without a wait between. */
static void *work_at_random(void *argument)
{
    worker *w = argument;
    zfi_disk_transfer transfers[IN_FLIGHT];
    struct {
        int64_t from, bytes;
        bool some, read;
    } asked[IN_FLIGHT] = {{0, 0, false, false}};
    const int64_t all = values[w->value].bytes, blocks = (all + BLOCK - 1) / BLOCK;
    for (int round = 0; round < w->rounds + IN_FLIGHT && !w->bad; round++) {
        const int k = round % IN_FLIGHT;
        const unsigned dice = w->seed = w->seed * 1664525u + 1013904223u;
        const int64_t first = (dice >> 8) % blocks,
                      last = first + 1 + (dice >> 16) % (blocks - first);
        unsigned char *data = w->data[k] + k; /* of all alignments */
        if (asked[k].some) {
            if (zfi_disk_wait(w->disk, &transfers[k], &w->error)) w->bad = w->error.text;
            else if (asked[k].read && memcmp(data, w->expected[k], (size_t)asked[k].bytes))
                w->bad = "other bytes";
        }
        asked[k].some = round < w->rounds;
        if (!asked[k].some) continue;
        asked[k].from = first * BLOCK;
        asked[k].bytes = (last * BLOCK < all ? last * BLOCK : all) - asked[k].from;
        asked[k].read = dice >> 31;
        if (asked[k].read) {
            memcpy(w->expected[k], w->is + asked[k].from, (size_t)asked[k].bytes);
            zfi_disk_read(w->disk, w->value, asked[k].from, data, asked[k].bytes, &transfers[k]);
        } else {
            fill(data, (size_t)asked[k].bytes, dice);
            memcpy(w->is + asked[k].from, data, (size_t)asked[k].bytes);
            zfi_disk_write(w->disk, w->value, asked[k].from, data, asked[k].bytes, &transfers[k]);
        }
    }
    if (w->bad) zfi_disk_drain(w->disk); /* it has this function's memory */
    return NULL;
}

TEST_ONCE(disk_at_random)
{
    enum { WORKERS = 3 };
    static const int32_t value[WORKERS] = {LARGE, ODD, SMALL};
    static worker workers[WORKERS];
    static setup s;
    setup_new(t, &s);
    for (int k = 0; setup_case(t, &s, k); k++) {
        pthread_t threads[WORKERS];
        s.f.cut = s.f.again = s.f.slow = 0;
        NEED(t, setup_open(&s), &s.error);
        s.f.cut = 4, s.f.again = 5, s.f.slow = 40;
        s.f.submit_fails = 20, s.f.submit_with = EAGAIN, s.f.wait_fails = 20, s.f.wait_with = EBADF;
        for (int i = 0; i < WORKERS; i++) {
            worker *w = &workers[i];
            w->disk = s.d, w->value = value[i], w->seed = (unsigned)(i + 10 * k), w->rounds = 150;
            fill(w->is, sizeof w->is, (unsigned)(i + k));
            OK(t, write_all(s.d, value[i], w->is, &s.error), s.error.text);
        }
        for (int i = 0; i < WORKERS; i++)
            CHECK(t, !pthread_create(&threads[i], NULL, work_at_random, &workers[i]));
        for (int i = 0; i < WORKERS; i++) pthread_join(threads[i], NULL);
        for (int i = 0; i < WORKERS; i++) {
            if (workers[i].bad) printf("    way %d, value %d: %s\n", k, i, workers[i].bad);
            CHECK(t, !workers[i].bad);
        }
        CHECK(t, !s.desc.system || s.f.moved > 400);
        setup_close(&s);
        CHECK(t, s.f.open_maps == 0);
    }
}

/* --------------------------------------------------------------------------------------- faults */

TEST_ONCE(disk_damage_is_found)
{
    static setup s;
    char expected[700];
    setup_new(t, &s);
    for (int k = 0; setup_case(t, &s, k); k++) {
        unsigned char byte;
        zfi_disk_transfer transfer;
        int file;
        NEED(t, setup_open(&s), &s.error);
        OK(t, write_all(s.d, LARGE, s.data, &s.error), s.error.text);
        /* one bit */
        file = open(zfi_disk_info_of(s.d).path, O_RDWR);
        byte = s.data[5 * BLOCK + 77] ^ 0x10;
        CHECK(t, file >= 0 && pwrite(file, &byte, 1, 4096 + 5 * BLOCK + 77) == 1 && !fsync(file));
        GIVES(t, read_all(s.d, LARGE, s.back, &s.error), ZF_ERR_FORMAT, s.error.text);
        snprintf(expected, sizeof expected,
                 "large, byte %d of %d (%s/test.rank-00001-of-00004.zf-offload, byte %d): the disk "
                 "gives back other bytes: checksum ",
                 5 * BLOCK, 9 * BLOCK, s.folder, 4096 + 5 * BLOCK);
        CHECK(t, !strncmp(s.error.text, expected, strlen(expected)));
        s.error.status = ZF_OK;
        zfi_disk_read(s.d, LARGE, 0, s.back, 5 * BLOCK, &transfer); /* the rest is good */
        OK(t, zfi_disk_wait(s.d, &transfer, &s.error), s.error.text);
        OK(t, write_all(s.d, LARGE, s.data, &s.error), s.error.text); /* mended by a write */
        OK(t, read_all(s.d, LARGE, s.back, &s.error), s.error.text);
        CHECK(t, !memcmp(s.data, s.back, sizeof s.back));
        /* two blocks exchanged: each is whole, and wrong */
        CHECK(t, pwrite(file, s.data, BLOCK, 4096 + BLOCK) == BLOCK &&
                     pwrite(file, s.data + BLOCK, BLOCK, 4096) == BLOCK && !fsync(file));
        GIVES(t, read_all(s.d, LARGE, s.back, &s.error), ZF_ERR_FORMAT, s.error.text);
        /* another value where this one lay */
        s.error.status = ZF_OK;
        OK(t, write_all(s.d, LARGE, s.data, &s.error), s.error.text);
        OK(t, write_all(s.d, AGAIN, s.data, &s.error), s.error.text);
        GIVES(t, read_all(s.d, LARGE, s.back, &s.error), ZF_ERR_FORMAT, s.error.text);
        s.error.status = ZF_OK;
        OK(t, read_all(s.d, AGAIN, s.back, &s.error), s.error.text);
        OK(t, write_all(s.d, LARGE, s.data, &s.error), s.error.text);
        /* a file that ends within a block, and before one */
        for (int cut = 0; cut < 2; cut++) {
            s.error.status = ZF_OK;
            CHECK(t, ftruncate(file, 4096 + 8 * BLOCK + (cut ? 0 : 1000)) == 0);
            GIVES(t, read_all(s.d, LARGE, s.back, &s.error), ZF_ERR_FORMAT, s.error.text);
            snprintf(expected, sizeof expected,
                     "the file ends: it has %d bytes, and it was made with "
                     "167936",
                     4096 + 8 * BLOCK + (cut ? 0 : 1000));
            CHECK(t, strstr(s.error.text, "large, byte 65536 of 73728 (") &&
                         strstr(s.error.text, expected));
        }
        close(file);
    }
}

TEST_ONCE(disk_refusals_are_errors)
{
    static setup s;
    fake *f = &s.f;
    setup_new(t, &s);
    for (int k = 2; setup_case(t, &s, k); k++) {
        zfi_disk_transfer good, bad;
        NEED(t, setup_open(&s), &s.error);
        OK(t, write_all(s.d, LARGE, s.data, &s.error), s.error.text);
        /* never written */
        GIVES(t, read_all(s.d, SMALL, s.back, &s.error), ZF_ERR_STAGE, s.error.text);
        CHECK(t, strstr(s.error.text, "small, byte 0 of 7 (") &&
                     strstr(s.error.text, "nothing was written there that could be read"));
        /* one read of several */
        f->fail_with = EIO, f->fail_reads = true;
        f->fail_from = f->moved + 4, f->fail_to = f->moved + 5;
        s.error.status = ZF_OK;
        GIVES(t, read_all(s.d, LARGE, s.back, &s.error), ZF_ERR_IO, s.error.text);
        CHECK(t, strstr(s.error.text, "large, byte ") && strstr(s.error.text, "cannot read: ") &&
                     strstr(s.error.text, strerror(EIO)));
        f->fail_reads = false, s.error.status = ZF_OK;
        OK(t, read_all(s.d, LARGE, s.back, &s.error), s.error.text);
        CHECK(t, !memcmp(s.data, s.back, sizeof s.back));
        /* a write fails: the old data are gone, and are not read as if they were there */
        f->fail_writes = true, f->fail_from = 0, f->fail_to = INT64_MAX;
        GIVES(t, write_all(s.d, SMALL, s.data, &s.error), ZF_ERR_IO, s.error.text);
        CHECK(t, strstr(s.error.text, "cannot write: "));
        zfi_disk_write(s.d, LARGE, 2 * BLOCK, s.data, BLOCK, &bad);
        zfi_disk_read(s.d, LARGE, 0, s.back, 2 * BLOCK, &good);
        s.error.status = ZF_OK;
        GIVES(t, zfi_disk_wait(s.d, &bad, &s.error), ZF_ERR_IO, s.error.text);
        s.error.status = ZF_OK;
        OK(t, zfi_disk_wait(s.d, &good, &s.error), s.error.text);
        GIVES(t, read_all(s.d, LARGE, s.back, &s.error), ZF_ERR_STAGE, s.error.text);
        CHECK(t, strstr(s.error.text, "large, byte 16384 of "));
        f->fail_writes = false, s.error.status = ZF_OK;
        /* data that are right on the disk and arrive changed */
        OK(t, write_all(s.d, SMALL, s.data, &s.error), s.error.text);
        f->flip = f->moved + 1;
        GIVES(t, read_all(s.d, SMALL, s.back, &s.error), ZF_ERR_FORMAT, s.error.text);
        s.error.status = ZF_OK;
        OK(t, read_all(s.d, SMALL, s.back, &s.error), s.error.text);
        /* a file system that takes space for what is written again */
        f->space = 4096;
        GIVES(t, write_all(s.d, SMALL, s.data, &s.error), ZF_ERR_IO, s.error.text);
        CHECK(t, strstr(s.error.text, strerror(ENOSPC)));
        f->space = 0, s.error.status = ZF_OK;
        /* a request that gets nowhere */
        OK(t, write_all(s.d, SMALL, s.data, &s.error), s.error.text);
        f->fail_with = EAGAIN, f->fail_reads = true;
        GIVES(t, read_all(s.d, SMALL, s.back, &s.error), ZF_ERR_IO, s.error.text);
        f->fail_reads = false, s.error.status = ZF_OK;
        f->nothing = true;
        GIVES(t, read_all(s.d, SMALL, s.back, &s.error), ZF_ERR_IO, s.error.text);
        CHECK(t, strstr(s.error.text, "the system moves no bytes"));
        f->nothing = false, s.error.status = ZF_OK;
        /* a ring that takes nothing */
        f->submit_with = EBADF, f->submit_fails = 1;
        if (s.desc.way == ZFI_DISK_RING) {
            GIVES(t, read_all(s.d, SMALL, s.back, &s.error), ZF_ERR_IO, s.error.text);
            CHECK(t, strstr(s.error.text, strerror(EBADF)));
            s.error.status = ZF_OK;
        }
        f->submit_fails = 0;
        OK(t, read_all(s.d, SMALL, s.back, &s.error), s.error.text);
        /* closed with slow requests in flight: afterwards their memory belongs to the caller */
        f->slow = 1;
        zfi_disk_write(s.d, LARGE, 0, s.data, sizeof s.data, &good);
        zfi_disk_read(s.d, LARGE, 0, s.back, sizeof s.back, &bad);
        setup_close(&s);
        f->slow = 0, f->flip = 0;
        CHECK(t, !good.pending && !good.error.status && !bad.pending && !bad.error.status);
        CHECK(t, !memcmp(s.data, s.back, sizeof s.back));
    }
}

TEST_ONCE(disk_without_a_ring)
{
    static setup s;
    setup_new(t, &s);
    s.desc.system = &s.f.system;
    for (int k = 0; k < 3; k++) {
        s.f.setup_with = k == 0 ? EPERM : 0, s.f.map_at = k;
        s.desc.way = ZFI_DISK_ANY;
        NEED(t, setup_open(&s), &s.error);
        CHECK(t, !zfi_disk_info_of(s.d).ring && zfi_disk_info_of(s.d).threads > 0);
        CHECK(t, strstr(zfi_disk_info_of(s.d).why, "io_uring: "));
        OK(t, write_all(s.d, SMALL, s.data, &s.error), s.error.text);
        OK(t, read_all(s.d, SMALL, s.back, &s.error), s.error.text);
        setup_close(&s);
        CHECK(t, s.f.open_maps == 0);
        s.desc.way = ZFI_DISK_RING;
        CHECK(t, setup_refused(&s, ZF_ERR_IO, "offload: the system grants no io_uring: "));
        CHECK(t, files_in(s.folder) == 0 && s.f.open_maps == 0);
    }
}

/* ---------------------------------------------------------------------------------------- files */

TEST_ONCE(disk_full_is_found_when_it_is_opened)
{
    static setup s;
    struct stat about;
    setup_new(t, &s);
    s.desc.system = &s.f.system;
    s.f.allocate_with = ENOSPC;
    CHECK(t, setup_refused(&s, ZF_ERR_LIMIT,
                           "test.rank-00001-of-00004.zf-offload needs 167936 bytes "
                           "of disk space: "));
    CHECK(t, strstr(s.error.text, " GiB are free") && files_in(s.folder) == 0);
    s.f.allocate_with = EDQUOT;
    CHECK(t, setup_refused(&s, ZF_ERR_LIMIT, strerror(EDQUOT)) && files_in(s.folder) == 0);
    /* a file system that cannot allocate: it is written, and full */
    s.f.allocate_with = EOPNOTSUPP, s.f.space = SPACE / 2;
    CHECK(t, setup_refused(&s, ZF_ERR_LIMIT, " bytes of disk space: "));
    CHECK(t, files_in(s.folder) == 0 && s.f.moved > 10);
    s.f.space = 1; /* no room for a header */
    CHECK(t, setup_refused(&s, ZF_ERR_LIMIT, " bytes of disk space: "));
    /* an error that is no lack of space */
    s.f.space = 0, s.f.allocate_with = EIO;
    CHECK(t, setup_refused(&s, ZF_ERR_IO, "cannot allocate "));
    CHECK(t, files_in(s.folder) == 0);
    /* it is written, and has room */
    s.f.allocate_with = EOPNOTSUPP, s.f.cut = 3;
    NEED(t, setup_open(&s), &s.error);
    CHECK(t, stat(zfi_disk_info_of(s.d).path, &about) == 0 && about.st_size == SPACE + 4096);
    CHECK(t, (int64_t)about.st_blocks * 512 >= about.st_size && s.f.moved > 40);
}

/* A file of that text, with zeros up to byte `end`. */
int symlink(const char *, const char *); /* hidden by strict C11 */
static bool zf_json_put_text_member(const char *path, const char *text, long end)
{
    FILE *file = fopen(path, "w");
    bool good = file && fputs(text, file) >= 0;
    if (good && end) good = fseek(file, end - 1, SEEK_SET) == 0 && fputc(0, file) == 0;
    return file && fclose(file) == 0 && good;
}

/* The beginning of a file. */
static const char *front_of(const char *path)
{
    static char text[128];
    FILE *file = fopen(path, "r");
    memset(text, 0, sizeof text);
    if (file && fread(text, 1, sizeof text - 1, file) == 0) *text = '\0';
    if (file) fclose(file);
    return text;
}

TEST_ONCE(disk_files_of_others)
{
    static const char novel[] = "It was a dark and stormy night";
    static setup s, second;
    struct stat about;
    char alive[600], gone[600], foreign[600], own[600], nothing[600], zeros[600];
    char early[600];
    setup_new(t, &s);
    s.desc.plan = 0xabc;
    setup_new(t, &second);
    second.desc = s.desc;
    snprintf(alive, sizeof alive, "%s/test.rank-00001-of-00004.zf-offload", s.folder);
    snprintf(own, sizeof own, "%s/test.rank-00002-of-00004.zf-offload", s.folder);
    snprintf(gone, sizeof gone, "%s/gone.rank-00000-of-00001.zf-offload", s.folder);
    snprintf(foreign, sizeof foreign, "%s/novel.zf-offload", s.folder);
    NEED(t, setup_open(&s), &s.error);
    /* people can see whose it is */
    CHECK(t, strstr(front_of(alive),
                    "zeroflow offload file 1\nrun test\nrank 1 of 4\n"
                    "plan 0000000000000abc\nbytes 167936\nprocess ") == front_of(alive));
    /* a run that is alive */
    CHECK(t, setup_refused(&second, ZF_ERR_IO,
                           "-offload belongs to another run that is alive: give one of "
                           "them another folder for offload"));
    /* files left under other names are removed; files of live runs, and other files, are not */
    CHECK(t, zf_json_put_text_member(gone, zfi_offload_magic, 0) &&
                 zf_json_put_text_member(foreign, novel, 0));
    second.desc.rank = 2;
    NEED(t, setup_open(&second), &second.error);
    CHECK(t, files_in(s.folder) == 3 && access(gone, F_OK) != 0);
    setup_close(&second);
    CHECK(t, access(alive, F_OK) == 0 && access(foreign, F_OK) == 0 && files_in(s.folder) == 2);
    /* files without a header may be somebody's: empty ones of another name, zeros, links */
    snprintf(nothing, sizeof nothing, "%s/nothing.rank-0-of-1x.zf-offload", s.folder);
    snprintf(zeros, sizeof zeros, "%s/zeros.rank-00000-of-00001.zf-offload", s.folder);
    CHECK(t, zf_json_put_text_member(nothing, "", 0) && zf_json_put_text_member(zeros, "", 4096));
    CHECK(t, symlink(foreign, own) == 0);
    CHECK(t, setup_refused(&second, ZF_ERR_IO,
                           "is there, and it is not a regular file: remove it, or "
                           "offload to another folder"));
    CHECK(t, access(nothing, F_OK) == 0 && access(zeros, F_OK) == 0 && !unlink(own));
    CHECK(t, zf_json_put_text_member(own, "", 4096));
    CHECK(t, setup_refused(&second, ZF_ERR_IO,
                           "is there, and it is not an offload file: remove it, or "
                           "offload to another folder"));
    CHECK_TEXT(t, front_of(foreign), novel);
    CHECK(t, !unlink(nothing) && !unlink(zeros) && !unlink(own));
    /* what a run has left that was killed before it wrote a header, by its name or another */
    snprintf(early, sizeof early, "%s/a.rank-7.rank-00003-of-00004.zf-offload", s.folder);
    CHECK(t, zf_json_put_text_member(own, "", 0) && zf_json_put_text_member(early, "", 0));
    NEED(t, setup_open(&second), &second.error);
    CHECK(t, access(early, F_OK) != 0);
    setup_close(&second);
    CHECK(t, access(own, F_OK) != 0);
    /* something else under its name */
    CHECK(t, zf_json_put_text_member(own, novel, 0));
    CHECK(t, setup_refused(&second, ZF_ERR_IO, "it is not an offload file"));
    CHECK_TEXT(t, front_of(own), novel);
    /* what was left under its name, and is longer */
    CHECK(t, zf_json_put_text_member(own, zfi_offload_magic, 1 << 20));
    NEED(t, setup_open(&second), &second.error);
    CHECK(t, stat(own, &about) == 0 && about.st_size == SPACE + 4096);
    CHECK(t, files_in(s.folder) == 3);
    /* no folder; a name that would lead elsewhere */
    second.desc.folder = foreign;
    CHECK(t, setup_refused(&second, ZF_ERR_IO, "novel.zf-offload"));
    second.desc.folder = "";
    CHECK(t, setup_refused(&second, ZF_ERR_ARGUMENT, "an empty path"));
    second.desc.folder = s.folder, second.desc.run = "../x";
    CHECK(t, setup_refused(&second, ZF_ERR_ARGUMENT,
                           "the run's name must have 1 to 128 letters, digits, '.', "
                           "'-' or '_', and no '.' at its beginning"));
}

TEST_ONCE(disk_misuse)
{
    static const char *const says[] = {
        "to have 8 bytes at 8 of a disk space of 163840; places are multiples of 4096",
        "to have 4097 bytes at 159744 of a disk space of 163840; places are multiples of 4096",
        "offload: blocks of 2048 bytes; a power of two from 4096 to ",
        "offload: blocks of 12288 bytes; a power of two from 4096 to ",
        "offload: blocks of 1099511627776 bytes; a power of two from 4096 to ",
        "offload: -1 requests at a time and 2 staging blocks; 1 to ",
        "offload: 5 requests at a time and 100000 staging blocks; 1 to ",
        "offload: a disk space of -1 bytes"};
    static const zfi_disk_value askew = {"askew", 8, 8}, beyond = {"beyond", SPACE - 4096, 4097};
    static const int64_t requests[][3] = {{-1, 0, 1},    {VALUES, 0, 1},        {LARGE, 1, BLOCK},
                                          {LARGE, 0, 7}, {LARGE, -BLOCK, 7},    {ODD, 0, -1},
                                          {SMALL, 0, 8}, {LARGE, 10 * BLOCK, 0}};
    static setup s;
    static char deep[4200], run[128];
    zfi_disk_desc good;
    zfi_disk_transfer transfer;
    setup_new(t, &s);
    good = s.desc;
    for (int k = 0; k < 8; k++) {
        s.desc = good;
        if (k < 2) s.desc.values = k ? &beyond : &askew, s.desc.count = 1;
        else if (k < 5) s.desc.block = k == 2 ? 2048 : k == 3 ? 12288 : (int64_t)1 << 40;
        else if (k == 5) s.desc.depth = -1;
        else if (k == 6) s.desc.staging = 100000;
        else s.desc.bytes = -1;
        CHECK(t, setup_refused(&s, ZF_ERR_ARGUMENT, says[k]));
    }
    CHECK(t, files_in(s.folder) == 0);
    s.desc = good;
    snprintf(deep, sizeof deep, "%s", s.folder);
    while (strlen(deep) + 230 < 4080) {
        snprintf(deep + strlen(deep), sizeof deep - strlen(deep), "/%0220d", 0);
        CHECK(t, !mkdir(deep, 0700));
    }
    s.desc.folder = deep, good.run = s.desc.run;
    memset(run, 'r', 120), s.desc.run = run;
    CHECK(t, setup_refused(&s, ZF_ERR_ARGUMENT, ": the path is too long"));
    for (; strlen(deep) > strlen(s.folder); *strrchr(deep, '/') = 0) CHECK(t, !rmdir(deep));
    s.desc = good;
    NEED(t, setup_open(&s), &s.error);
    GIVES(t, zfi_disk_copy(s.d, -1, s.back, s.data, 8, &s.error), ZF_ERR_ARGUMENT, s.error.text);
    CHECK_TEXT(t, s.error.text, "offload: a copy of what does not lie on the disk");
    for (int k = 0; k < ZFI_COUNT(requests); k++) {
        s.error.status = ZF_OK;
        zfi_disk_read(s.d, (int32_t)requests[k][0], requests[k][1], s.back, requests[k][2],
                      &transfer);
        GIVES(t, zfi_disk_wait(s.d, &transfer, &s.error), ZF_ERR_ARGUMENT, s.error.text);
        CHECK(t, strstr(s.error.text, "; requests are of whole blocks of 8192"));
    }
}

/* A run that is killed at any moment leaves files that the next run recognises: space under its own
 * name is reused, another name is removed. */
TEST_ONCE(disk_survives_kill)
{
    static setup s;
    int left = 0;
    setup_new(t, &s);
    s.memory = zfi_memory_of(NULL);
    for (int k = 0; k < 40; k++) {
        const struct timespec moment = {0, 60000L * k};
        int state;
        pid_t child;
        s.desc.rank = 1;
        setup_close(&s);
        child = fork();
        CHECK(t, child >= 0);
        while (!child)
            if (!setup_open(&s) || write_all(s.d, LARGE, s.data, NULL) ||
                read_all(s.d, LARGE, s.back, NULL))
                _exit(1);
        nanosleep(&moment, NULL);
        kill(child, SIGKILL);
        CHECK(t, waitpid(child, &state, 0) == child && WIFSIGNALED(state));
        left += files_in(s.folder);
        CHECK(t, files_in(s.folder) <= 1);
        s.desc.rank = 1 + k % 2;
        for (int tries = 0; tries < 200; tries++) { /* its lock may go a little later than it */
            NEED(t, setup_open(&s), &s.error);
            if (k % 2 == 0 || files_in(s.folder) == 1) break;
            setup_close(&s);
            nanosleep(&(struct timespec){0, 1000000}, NULL);
        }
        CHECK(t, files_in(s.folder) == 1);
        GIVES(t, read_all(s.d, LARGE, s.back, &s.error), ZF_ERR_STAGE, s.error.text);
        s.error.status = ZF_OK;
        OK(t, write_all(s.d, LARGE, s.data, &s.error), s.error.text);
        OK(t, read_all(s.d, LARGE, s.back, &s.error), s.error.text);
        CHECK(t, !memcmp(s.data, s.back, sizeof s.back));
    }
    CHECK(t, left > 5);
}

/* ------------------------------------------------------------------------------- in a step */

/* A program whose states lie on a disk of the fake system. */
typedef struct trained {
    zf_store *store;
    zf_graph *graph;
    zf_program *program;
    float image[8 * 4000]; /* parameters and states */
} trained;

static const char *const trained_names[] = {"first",        "second",         "adamw.m/first",
                                            "adamw.m/second", "adamw.v/first", "adamw.v/second"};

static zf_graph *trained_graph(const zf_offload_desc *offload, const zf_zero_desc *zero)
{
    const zf_param_desc normal = {.init = ZF_NORMAL, .std = 0.3};
    zf_graph *g = zf_graph_new(NULL);
    zf_tensor x = zf_input(g, "x", ZF_F32, ZF_SHAPE(4, 40)),
              lr = zf_input(g, "lr", ZF_F32, ZF_SCALAR),
              h = zf_relu(zf_matmul(x, zf_param(g, "first", ZF_SHAPE(40, 70), &normal))), loss;
    h = zf_matmul(h, zf_param(g, "second", ZF_SHAPE(70, 3), &normal));
    loss = zf_output(zf_mean(zf_mul(h, h)), "loss");
    zf_autograd(g, loss);
    zf_adamw(g, lr, NULL);
    zf_zero(g, zero);
    zf_offload(g, offload);
    zf_prefetch(g, &(zf_training){.prefetch = {.bytes = 1 << 20}});
    return g;
}

static void trained_free(void *object)
{
    trained *r = object;
    zf_program_free(r->program);
    zf_graph_free(r->graph);
    zf_store_free(r->store);
    r->program = NULL, r->graph = NULL, r->store = NULL;
}

/* A rank of a stage; comm NULL: there is one. Its disk is of the fake system, of several ranks only
 * that of rank 1. */
static bool trained_by(trained *r, setup *s, zf_offload_desc offload, zf_zero_desc zero,
                       const zf_comm *comm)
{
    const float lr = 0.01f;
    float x[4 * 40];
    for (int i = 0; i < 160; i++) x[i] = (float)(i * 7 % 31 - 15) / 16;
    zero.world = comm ? comm->world : 1, zero.bucket_bytes = 4096;
    r->graph = trained_graph(&offload, &zero);
    r->store = zf_store_new(
        &(zf_store_desc){.offload_dir = s->folder, .seed = 3, .comm = comm}, &s->error);
    if (!r->store) return false;
    if (!comm || comm->rank) r->store->system = &s->f.system;
    r->program = zf_compile(r->graph, &(zf_compile_desc){.store = r->store, .verify = true});
    if (!r->program) zfi_fail(&s->error, ZF_ERR_ARGUMENT, "%s", zf_graph_error(r->graph));
    if (!r->program) return false;
    return !zf_write(r->program, zf_graph_find(r->graph, "x"), x, sizeof x) &&
           !zf_write(r->program, zf_graph_find(r->graph, "lr"), &lr, sizeof lr);
}

static bool trained_new(trained *r, setup *s, zf_space space)
{
    return trained_by(r, s, (zf_offload_desc){.optimizer = space}, (zf_zero_desc){0}, NULL);
}

/* Takes what there is. */
static bool trained_look(trained *r)
{
    size_t at = 0;
    for (int k = 0; k < ZFI_COUNT(trained_names); k++) {
        const size_t count = k % 2 ? 210 : 2800;
        if (zf_store_read(r->store, trained_names[k], r->image + at, count * sizeof(float)))
            return false;
        at += count;
    }
    return true;
}

/* A step's plan and memory are aligned so that the disk moves its values without staging. */
TEST_ONCE(disk_needs_no_staging_in_a_step)
{
    static trained r;
    static setup s;
    zfi_disk *disk = NULL;
    zfi_disk_info before, after;
    setup_new(t, &s);
    setup_close(&s);
    test_defer(t, trained_free, &r);
    NEED(t, trained_new(&r, &s, ZF_DISK), &s.error);
    for (int n = 0; n < zfi_len(r.store->pieces); n++)
        if (r.store->pieces[n].disk) disk = r.store->pieces[n].disk;
    before = zfi_disk_info_of(disk);
    OK(t, zf_step(r.program), zf_program_error(r.program));
    after = zfi_disk_info_of(disk);
    CHECK(t, after.reads == before.reads + 4 && after.writes == before.writes + 4);
    CHECK(t, after.staged == before.staged);
}

/* Requests are cut short, delayed and refused for a moment: the same bits. The disk fails in a
 * step: ZF_ERR_IO, which names the state, its byte, and the file; after zf_load the same program
 * goes on with the same bits. */
TEST_ONCE(disk_fails_in_a_step)
{
    static trained plain, r;
    static setup s;
    char saved[512];
    setup_new(t, &s);
    setup_close(&s);
    snprintf(saved, sizeof saved, "%s", test_path("saved"));
    test_defer(t, trained_free, &plain);
    test_defer(t, trained_free, &r);
    CHECK(t, trained_new(&plain, &s, ZF_DEVICE));
    for (int n = 0; n < 3; n++) OK(t, zf_step(plain.program), zf_program_error(plain.program));
    CHECK(t, trained_look(&plain));
    for (int k = 0; k < 12; k++) {
        const bool writes = k / 2 % 2;
        const int64_t late = k / 4; /* requests of the step before, of which there are 8 */
        s.f.setup_with = k % 2 ? EPERM : 0; /* threads, or a ring */
        s.f.fail_from = s.f.fail_to = 0;
        s.f.fail_with = EIO, s.f.fail_reads = !writes, s.f.fail_writes = writes;
        NEED(t, trained_new(&r, &s, ZF_DISK), &s.error);
        for (int n = 0; n < zfi_len(r.store->pieces); n++)
            if (r.store->pieces[n].disk)
                s.f.direct = zfi_disk_info_of(r.store->pieces[n].disk).direct;
        s.f.cut = 3, s.f.again = 5, s.f.slow = 4;
        OK(t, zf_step(r.program), zf_program_error(r.program));
        OK(t, zf_save(r.store, saved, NULL), zf_store_error(r.store));
        s.f.cut = s.f.again = s.f.slow = 0;
        s.f.fail_from = s.f.moved + 1 + late, s.f.fail_to = INT64_MAX;
        GIVES(t, zf_step(r.program), ZF_ERR_IO, zf_program_error(r.program));
        CHECK(t, strstr(zf_program_error(r.program), writes ? "cannot write: " : "cannot read: "));
        CHECK(t, strstr(zf_program_error(r.program), "adamw.") &&
                     strstr(zf_program_error(r.program), ", byte 0 of ") &&
                     strstr(zf_program_error(r.program), ".zf-offload, byte "));
        /* the disk is well again, but some updates have been made and others have not */
        s.f.fail_to = 0;
        GIVES(t, zf_step(r.program), ZF_ERR_STAGE, zf_program_error(r.program));
        GIVES(t, zf_save(r.store, saved, NULL), ZF_ERR_STAGE, zf_store_error(r.store));
        GIVES(t, zf_store_copy(plain.store, r.store), ZF_ERR_STAGE, zf_store_error(plain.store));
        CHECK(t, strstr(zf_program_error(r.program), "parameters and states are undefined"));
        OK(t, zf_load(r.store, saved, NULL), zf_store_error(r.store));
        for (int n = 0; n < 2; n++) OK(t, zf_step(r.program), zf_program_error(r.program));
        CHECK(t, trained_look(&r) && !memcmp(r.image, plain.image, sizeof r.image));
        trained_free(&r);
        CHECK(t, files_in(s.folder) == 0);
    }
    disk_remove(saved);
}

/* Sums of gradients lie on the disk. The first micro-batch writes and does not read. The disk fails
 * where it reads or writes one: ZF_ERR_IO, which names its scope, byte and file. In the micro section
 * nothing has been updated then, and the step can be made again; in the update section training goes
 * on from a checkpoint. The bits are the same. */
TEST_ONCE(disk_fails_in_a_sum)
{
    static trained plain, r;
    static setup s;
    const zf_zero_desc zero = {.micro_batches = 2};
    char saved[512];
    setup_new(t, &s);
    setup_close(&s);
    snprintf(saved, sizeof saved, "%s", test_path("saved"));
    test_defer(t, trained_free, &plain);
    test_defer(t, trained_free, &r);
    CHECK(t, trained_by(&plain, &s, (zf_offload_desc){.piece_bytes = 0}, zero, NULL));
    for (int n = 0; n < 2; n++) {
        OK(t, zf_micro(plain.program), zf_program_error(plain.program));
        OK(t, zf_step(plain.program), zf_program_error(plain.program));
    }
    CHECK(t, trained_look(&plain));
    for (int k = 0; k < 8; k++) {
        const int way = k / 2; /* the first write, one of the second micro-batch, a read of the same,
                                * a read of the update */
        zf_status status;
        int64_t before;
        s.f.setup_with = k % 2 ? EPERM : 0; /* threads, or a ring */
        s.f.fail_from = s.f.fail_to = 0;
        s.f.fail_with = EIO, s.f.fail_reads = way > 1, s.f.fail_writes = way <= 1;
        NEED(t, trained_by(&r, &s, (zf_offload_desc){.gradients = ZF_DISK}, zero, NULL), &s.error);
        for (int n = 0; n < zfi_len(r.store->pieces); n++)
            if (r.store->pieces[n].disk)
                s.f.direct = zfi_disk_info_of(r.store->pieces[n].disk).direct;
        before = s.f.moved;
        OK(t, zf_micro(r.program), zf_program_error(r.program));
        CHECK(t, s.f.moved == before + 2); /* two buckets are written */
        OK(t, zf_step(r.program), zf_program_error(r.program));
        CHECK(t, s.f.moved == before + 8); /* read, written, and read by the update */
        OK(t, zf_save(r.store, saved, NULL), zf_store_error(r.store));
        s.f.fail_from = s.f.moved + (way ? 3 : 1) + (way == 3 ? 4 : 0), s.f.fail_to = INT64_MAX;
        status = zf_micro(r.program);
        if (way) {
            OK(t, status, zf_program_error(r.program));
            status = zf_step(r.program);
        }
        GIVES(t, status, ZF_ERR_IO, zf_program_error(r.program));
        CHECK(t, strstr(zf_program_error(r.program), way > 1 ? "cannot read: " : "cannot write: "));
        CHECK(t, strstr(zf_program_error(r.program), "a value of the step, byte 0 of ") &&
                     strstr(zf_program_error(r.program), ".zf-offload, byte "));
        s.f.fail_to = 0;
        if (way == 3) {
            GIVES(t, zf_micro(r.program), ZF_ERR_STAGE, zf_program_error(r.program));
            OK(t, zf_load(r.store, saved, NULL), zf_store_error(r.store));
        }
        OK(t, zf_micro(r.program), zf_program_error(r.program));
        OK(t, zf_step(r.program), zf_program_error(r.program));
        CHECK(t, trained_look(&r) && !memcmp(r.image, plain.image, sizeof r.image));
        trained_free(&r);
        CHECK(t, files_in(s.folder) == 0);
    }
    disk_remove(saved);
}

/* The disk is full when a program is compiled: the error says how much it needs, no file stays, and
 * the store takes the next program. */
TEST_ONCE(disk_is_full_for_a_program)
{
    static trained r;
    static setup s;
    zf_graph *g;
    setup_new(t, &s);
    test_defer(t, trained_free, &r);
    s.f.allocate_with = ENOSPC;
    CHECK(t, !trained_new(&r, &s, ZF_DISK) && r.store && s.error.status == ZF_ERR_ARGUMENT);
    CHECK(t, zf_graph_status(r.graph) == ZF_ERR_LIMIT);
    CHECK(t, strstr(s.error.text, " bytes of disk space: ") && strstr(s.error.text, " are free"));
    CHECK(t, files_in(s.folder) == 0 && !zf_store_count(r.store));
    CHECK(t, !zf_store_info_of(r.store).disk_bytes && !zf_store_info_of(r.store).offloaded_bytes);
    s.f.allocate_with = 0;
    NEED(t,
         g = trained_graph(&(zf_offload_desc){.optimizer = ZF_DISK},
                           &(zf_zero_desc){.bucket_bytes = 4096}),
         NULL);
    zf_graph_free(r.graph);
    r.graph = g;
    CHECK(t, r.program = zf_compile(g, &(zf_compile_desc){.store = r.store}));
    CHECK(t, files_in(s.folder) == 1 && zf_store_count(r.store) > 4);
}

/* One of two ranks, as a thread. */
typedef struct trained_rank {
    trained r;
    int steps; /* at most */
    zf_status status;
} trained_rank;

static void *trained_run(void *argument)
{
    trained_rank *k = argument;
    for (int n = 0; n < k->steps && !k->status; n++) k->status = zf_step(k->r.program);
    return NULL;
}

/* Steps of both ranks until one fails. */
static bool trained_together(trained_rank ranks[2], int steps)
{
    pthread_t threads[2];
    int begun = 0;
    for (; begun < 2; begun++) {
        ranks[begun].steps = steps;
        if (pthread_create(&threads[begun], NULL, trained_run, &ranks[begun])) break;
    }
    for (int k = 0; k < begun; k++) pthread_join(threads[k], NULL);
    return begun == 2;
}

/* The disk of one rank fails in a step: it is ZF_ERR_IO on all ranks, with a text that names this
 * one; no rank hangs. One whose last collective is after it learns of it in the next step. */
TEST_ONCE(disk_of_one_rank_fails)
{
    static trained_rank ranks[2];
    static setup s;
    setup_new(t, &s);
    for (int k = 0; k < 2; k++) test_defer(t, trained_free, &ranks[k].r);
    for (int32_t stage = 0; stage < 4; stage++) {
        zf_local *group =
            zf_local_new(&(zf_local_desc){.world = 2, .deadline_seconds = 30}, &s.error);
        char text[600];
        NEED(t, group, &s.error);
        s.f.fail_from = s.f.fail_to = 0, s.f.setup_with = stage % 2 ? EPERM : 0;
        for (int32_t k = 0; k < 2; k++) {
            ranks[k].status = ZF_OK;
            NEED(t,
                 trained_by(&ranks[k].r, &s, (zf_offload_desc){.optimizer = ZF_DISK},
                            (zf_zero_desc){.stage = stage}, zf_local_comm(group, k)),
                 &s.error);
        }
        CHECK(t, trained_together(ranks, 1) && !ranks[0].status && !ranks[1].status);
        s.f.fail_with = EIO, s.f.fail_reads = stage < 2, s.f.fail_writes = stage >= 2;
        s.f.fail_from = s.f.moved + 1, s.f.fail_to = INT64_MAX;
        CHECK(t, trained_together(ranks, 2));
        CHECK(t, ranks[1].status == ZF_ERR_IO && ranks[0].status == ZF_ERR_IO);
        CHECK(t, strstr(zf_program_error(ranks[1].r.program), strerror(EIO)));
        snprintf(text, sizeof text, "rank 1 gave up: %s", zf_program_error(ranks[1].r.program));
        CHECK_TEXT(t, zf_program_error(ranks[0].r.program), text);
        for (int k = 0; k < 2; k++) trained_free(&ranks[k].r);
        zf_local_free(group);
        CHECK(t, files_in(s.folder) == 0);
    }
}

/* Of reads of 2 s and writes of 4 s for a chunk. */
TEST(disk_of_two_directions_is_shared)
{
    static const double cases[][2] = {{3, 0}, {4, 0}, {4.5, 0.25}, {5, 0.5}, {6, 1}, {9, 1}};
    for (int k = 0; k < ZFI_COUNT(cases); k++) {
        CHECK(t, zfi_disk_shared(2, 4, cases[k][0]) == cases[k][1]);
        CHECK(t, zfi_disk_shared(4, 2, cases[k][0]) == cases[k][1]);
    }
}
