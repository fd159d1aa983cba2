/* The disk engine: moves values between an offload file and memory while the caller continues.
 *
 *     zfi_disk_write     pieces of one block: checksum, request --.         .-- the disk, many at a
 *     zfi_disk_read      pieces of one block: request ------------'- slots -'   time, in any order
 *     zfi_disk_wait      results; data that were read are compared with their checksum
 *
 * A piece in flight has one of `depth` slots. Requests use io_uring where the system grants it,
 * else threads that call pread and pwrite. They bypass the system's cache (O_DIRECT) where the file
 * system allows it. Direct requests need addresses and lengths aligned as the device requires;
 * other pieces go through a staging block.
 *
 * Every block of a value has a CRC-32C in memory, computed when its write starts. Reading a block
 * with another checksum, or a block that was never written, is an error that names the block.
 *
 * Pieces in flight that overlap in the file are all reads: a piece that would break this rule waits
 * first. So a read that is started after a write gets the written data.
 *
 * The disk space has addresses without memory. So places on the disk are passed and offset like
 * those in memory, and using one as memory stops the program at once.
 *
 * One mutex guards the engine. It is released while data are moved, copied, or summed. With a ring,
 * a thread that needs a result collects the results of all: one thread at a time sleeps in the
 * kernel (`reaping`), others wait for `changed`. */
typedef enum zfi_disk_way { ZFI_DISK_ANY, ZFI_DISK_RING, ZFI_DISK_THREADS } zfi_disk_way;

enum {
    ZFI_DISK_ALIGN = ZFI_OFFLOAD_PAGE, /* alignment in the file, and enough for memory */
    ZFI_DISK_BLOCK = 1 << 20,
    ZFI_DISK_MOST_BLOCK = 64 << 20,
    ZFI_DISK_DEPTH = 32,
    ZFI_DISK_MOST_DEPTH = 1024,
    ZFI_DISK_STAGING = 4,
    ZFI_DISK_THREAD_COUNT = 16, /* threads at most */
    ZFI_DISK_TRIES = 1000       /* tries of a request that makes no progress */
};

typedef struct zfi_disk_value {
    const char *name;      /* for messages; must outlive the disk */
    int64_t offset, bytes; /* in the plan's disk space; offset: a multiple of ZFI_DISK_ALIGN */
} zfi_disk_value;

/* 0 in block, depth, staging, way, buffered, host and system is the default. */
typedef struct zfi_disk_desc {
    const char *folder, *run; /* as in zfi_offload_desc */
    int32_t rank, world;
    uint64_t plan;
    int64_t bytes;                /* size of the plan's disk space */
    const zfi_disk_value *values; /* copied; ordered by place; places may be shared */
    int32_t count;
    int64_t block;    /* bytes of a request and of a checksum: a power of two */
    int32_t depth;    /* pieces in flight */
    int32_t staging;  /* blocks of memory for pieces that are not aligned */
    zfi_disk_way way; /* ZFI_DISK_ANY: a ring if possible, else threads */
    bool buffered;    /* uses the system's cache, even where it can be bypassed */
    void *host;       /* zfi_disk_host_bytes, aligned to ZFI_DISK_ALIGN; NULL: allocated */
    const zfi_system *system; /* NULL: the system itself */
} zfi_disk_desc;

/* A transfer that was started. The caller owns it and must not move it until zfi_disk_wait. */
typedef struct zfi_disk_transfer {
    int32_t pending; /* pieces in flight */
    zf_error error;  /* the first error */
} zfi_disk_transfer;

typedef struct zfi_disk_info {
    const char *path;
    bool direct, ring;
    const char *why; /* "", or why requests are not direct, or there is no ring */
    int32_t depth, threads;
    int64_t file_bytes, memory_align;
    int64_t reads, writes, bytes_read, bytes_written; /* so far */
    int64_t staged; /* pieces that went through a staging block */
} zfi_disk_info;

typedef struct zfi_disk_check {
    uint32_t crc;
    bool written;
} zfi_disk_check;

/* A piece in flight. */
typedef struct zfi_disk_slot {
    zfi_disk_transfer *transfer; /* NULL: the slot is free */
    zfi_disk_check *check;
    bool write;
    int32_t value, staging; /* -1: none */
    int32_t tries;
    uint32_t crc;
    int64_t from;       /* of the value */
    int64_t at;         /* in the file */
    int64_t bytes;      /* of the value's block */
    int64_t span, done; /* bytes of the request; bytes moved so far */
    char *data;         /* of the request */
    char *user;         /* of the caller */
    zf_error error;
    int32_t next; /* next in a list; -1: the last */
} zfi_disk_slot;

typedef struct zfi_disk {
    zfi_memory *memory;
    char *own; /* memory that the disk has allocated; own_bytes bytes */
    size_t own_bytes;
    zfi_offload_file file;
    const zfi_system *system;
    zfi_disk_info info;
    zfi_disk_value *values;
    int64_t *first; /* by value: the index of its first checksum */
    zfi_disk_check *checks;
    zfi_disk_slot *slots;
    char *staging;
    bool *staged; /* by staging block: it is in use */
    char *corner; /* a block for zfi_disk_get and zfi_disk_put; guarded by corner_mutex */
    pthread_mutex_t corner_mutex;
    int32_t count, depth, staging_count;
    int64_t block;
    char *base; /* addresses of the disk space, without memory */
    int64_t bytes;

    pthread_mutex_t mutex;
    pthread_cond_t changed; /* a slot or the ring has become free, or requests were submitted */
    pthread_cond_t work;    /* for threads: there is a request */
    pthread_t threads[ZFI_DISK_THREAD_COUNT];
    int32_t queue, queue_end; /* list of slots for threads; -1: empty */
    bool stop;
    zfi_ring ring;
    bool reaping;      /* a thread waits for results in the kernel */
    int32_t flying;    /* requests in the kernel */
    int32_t finishing; /* slots whose requests are done and are being checked */
    char why[96];
} zfi_disk;

/* ------------------------------------------------------------------------------ memory and file */

static int64_t zfi_disk_up(int64_t bytes, int64_t align)
{
    return (bytes + align - 1) / align * align;
}

/* The size of the file for a plan with so many bytes of disk space. */
static int64_t zfi_disk_file_bytes(int64_t bytes)
{
    return ZFI_OFFLOAD_PAGE + zfi_disk_up(bytes, ZFI_DISK_ALIGN);
}

static zfi_disk_desc zfi_disk_resolved(const zfi_disk_desc *desc)
{
    zfi_disk_desc d = *desc;
    if (!d.block) d.block = ZFI_DISK_BLOCK;
    if (!d.depth) d.depth = ZFI_DISK_DEPTH;
    if (!d.staging) d.staging = ZFI_DISK_STAGING;
    if (!d.world) d.world = 1;
    if (!d.system) d.system = &zfi_system_own;
    return d;
}

static int64_t zfi_disk_blocks(int64_t bytes, int64_t block) { return (bytes + block - 1) / block; }

/* The arrays of a disk in one block of memory. */
typedef struct zfi_disk_parts {
    char *staging, *corner;
    zfi_disk *disk;
    zfi_disk_value *values;
    int64_t *first;
    zfi_disk_check *checks;
    zfi_disk_slot *slots;
    bool *staged;
    size_t bytes;
} zfi_disk_parts;

/* The next array in the memory at `host`; NULL: only counts its bytes. */
static void *zfi_disk_part(char *host, size_t *at, int64_t count, size_t size)
{
    char *part = host ? host + *at : NULL;
    *at += (size_t)zfi_disk_up(count * (int64_t)size, 64);
    return part;
}

/* `checks`: blocks of all values. */
static zfi_disk_parts zfi_disk_lay_out(const zfi_disk_desc *d, int64_t checks, char *host)
{
    zfi_disk_parts p;
    size_t at = 0;
    p.staging = zfi_disk_part(host, &at, d->staging, (size_t)d->block);
    p.corner = zfi_disk_part(host, &at, 1, (size_t)d->block);
    p.disk = zfi_disk_part(host, &at, 1, sizeof *p.disk);
    p.values = zfi_disk_part(host, &at, d->count, sizeof *p.values);
    p.first = zfi_disk_part(host, &at, d->count, sizeof *p.first);
    p.checks = zfi_disk_part(host, &at, checks, sizeof *p.checks);
    p.slots = zfi_disk_part(host, &at, d->depth, sizeof *p.slots);
    p.staged = zfi_disk_part(host, &at, d->staging, sizeof *p.staged);
    p.bytes = (size_t)zfi_disk_up((int64_t)at, ZFI_DISK_ALIGN);
    return p;
}

/* Blocks of all values. */
static int64_t zfi_disk_checks(const zfi_disk_desc *d)
{
    int64_t checks = 0;
    for (int32_t k = 0; k < d->count; k++) checks += zfi_disk_blocks(d->values[k].bytes, d->block);
    return checks;
}

/* Bytes of memory that a disk takes, in one piece; of the values it is enough to know how many
 * there are, and their blocks (zfi_disk_checks). */
static size_t zfi_disk_host_bytes(const zfi_disk_desc *desc, int64_t checks)
{
    const zfi_disk_desc d = zfi_disk_resolved(desc);
    return zfi_disk_lay_out(&d, checks, NULL).bytes;
}

static zf_status zfi_disk_check_desc(const zfi_disk_desc *d, zf_error *error)
{
    if (d->block < ZFI_DISK_ALIGN || d->block > ZFI_DISK_MOST_BLOCK || (d->block & (d->block - 1)))
        return zfi_fail(error, ZF_ERR_ARGUMENT,
                        "offload: blocks of %lld bytes; a power of two from %d to %d is possible",
                        (long long)d->block, (int)ZFI_DISK_ALIGN, (int)ZFI_DISK_MOST_BLOCK);
    if (d->depth < 1 || d->depth > ZFI_DISK_MOST_DEPTH || d->staging < 1 ||
        d->staging > ZFI_DISK_MOST_DEPTH)
        return zfi_fail(
            error, ZF_ERR_ARGUMENT,
            "offload: %d requests at a time and %d staging blocks; 1 to %d are possible",
            (int)d->depth, (int)d->staging, (int)ZFI_DISK_MOST_DEPTH);
    if (d->bytes < 0 || d->bytes > INT64_MAX / 2)
        return zfi_fail(error, ZF_ERR_ARGUMENT, "offload: a disk space of %lld bytes",
                        (long long)d->bytes);
    for (int32_t k = 0; k < d->count; k++) {
        const zfi_disk_value *v = &d->values[k];
        if (v->bytes < 0 || v->offset < 0 || v->offset % ZFI_DISK_ALIGN || v->bytes > d->bytes ||
            v->offset > d->bytes - v->bytes)
            return zfi_fail(
                error, ZF_ERR_ARGUMENT,
                "offload: %.100s is to have %lld bytes at %lld of a disk space of %lld; "
                "places are multiples of %d",
                v->name, (long long)v->bytes, (long long)v->offset, (long long)d->bytes,
                (int)ZFI_DISK_ALIGN);
    }
    return ZF_OK;
}

#if defined(O_DIRECT)
enum { ZFI_O_DIRECT = O_DIRECT };
#elif defined(__O_DIRECT) /* hidden by strict C11 */
enum { ZFI_O_DIRECT = __O_DIRECT };
#else
enum { ZFI_O_DIRECT = 0 };
#endif

/* The alignment of direct requests: of places and lengths, and of addresses. False: unknown. */
static bool zfi_disk_device_align(int file, int64_t *places, int64_t *memory)
{
#if defined(__linux__) && defined(SYS_statx)
    enum { EMPTY_PATH = 0x1000, DIRECT = 0x2000, MEMORY_AT = 38, PLACES_AT = 39 };
    uint32_t about[64] = {0}; /* struct statx */
    if (zfi_syscall(SYS_statx, file, (long)(intptr_t) "", EMPTY_PATH, DIRECT, (long)(intptr_t)about,
                    0) ||
        !(about[0] & DIRECT) || !about[PLACES_AT])
        return false;
    *places = about[PLACES_AT], *memory = about[MEMORY_AT];
    return true;
#else
    return (void)file, (void)places, (void)memory, false;
#endif
}

/* Makes requests bypass the system's cache, if possible. */
static void zfi_disk_go_direct(zfi_disk *d)
{
    const int file = d->file.file, flags = fcntl(file, F_GETFL);
    int64_t places = ZFI_DISK_ALIGN, memory = ZFI_DISK_ALIGN;
    bool known;
    d->info.memory_align = 1;
    d->info.why = "the file system has no direct requests";
    if (!ZFI_O_DIRECT || flags < 0) return;
    known = zfi_disk_device_align(file, &places, &memory);
    if (known && (places > ZFI_DISK_ALIGN || ZFI_DISK_ALIGN % places || memory > ZFI_DISK_ALIGN)) {
        d->info.why = "direct requests of the device are larger than a page";
        return;
    }
    if (fcntl(file, F_SETFL, flags | ZFI_O_DIRECT)) return;
    /* Some file systems promise direct requests and then refuse them. */
    if (pread(file, d->staging, ZFI_OFFLOAD_PAGE, 0) != ZFI_OFFLOAD_PAGE) {
        fcntl(file, F_SETFL, flags);
        return;
    }
    d->info.direct = true;
    d->info.memory_align = memory > 0 ? memory : 1;
    d->info.why = "";
}

/* ------------------------------------------------------------------------------------- requests */

/* Records the piece's error: what failed, and where. */
static void zfi_disk_fail(const zfi_disk *d, zfi_disk_slot *s, zf_status status, const char *what)
{
    zfi_fail(&s->error, status, "%.100s, byte %lld of %lld (%s, byte %lld): %s",
             d->values[s->value].name, (long long)s->from, (long long)d->values[s->value].bytes,
             zfi_path_tail(d->file.path), (long long)s->at, what);
}

static void zfi_disk_refused(const zfi_disk *d, zfi_disk_slot *s, int code)
{
    char what[160];
    snprintf(what, sizeof what, "cannot %s: %s", s->write ? "write" : "read", strerror(code));
    zfi_disk_fail(d, s, ZF_ERR_IO, what);
}

/* Takes a request's result: bytes, or an error as a negative number. True when the piece is done or
 * has failed; else its rest must be requested. */
static bool zfi_disk_result(const zfi_disk *d, zfi_disk_slot *s, int64_t result)
{
    const int64_t left = s->span - s->done;
    struct stat about;
    if (result < 0) {
        const bool again = result == -EINTR || result == -EAGAIN || result == -ECANCELED;
        if (again && s->tries++ < ZFI_DISK_TRIES) return false;
        zfi_disk_refused(d, s, (int)-result);
        return true;
    }
    if (result >= left) {
        s->done = s->span;
        return true;
    }
    /* A direct request must continue at an aligned place. */
    if (d->info.direct) result = result / ZFI_DISK_ALIGN * ZFI_DISK_ALIGN;
    s->done += result;
    if (result) {
        s->tries = 0;
    } else if (!s->write && fstat(d->file.file, &about) == 0 && about.st_size < s->at + s->span) {
        char what[128];
        snprintf(what, sizeof what, "the file ends: it has %lld bytes, and it was made with %lld",
                 (long long)about.st_size, (long long)d->info.file_bytes);
        zfi_disk_fail(d, s, ZF_ERR_FORMAT, what);
        return true;
    } else if (s->tries++ >= ZFI_DISK_TRIES) {
        zfi_disk_fail(d, s, ZF_ERR_IO, "the system moves no bytes");
        return true;
    }
    return false;
}

/* Checks the data that have arrived and copies them to their place. Called without the mutex. */
static void zfi_disk_finish(const zfi_disk *d, zfi_disk_slot *s)
{
    char what[96];
    uint32_t crc;
    if (s->write || s->error.status) return;
    crc = zfi_crc32c(0, s->data, (size_t)s->bytes);
    if (crc != s->crc) {
        snprintf(what, sizeof what,
                 "the disk gives back other bytes: checksum %08x, %08x was written", (unsigned)crc,
                 (unsigned)s->crc);
        zfi_disk_fail(d, s, ZF_ERR_FORMAT, what);
    } else if (s->staging >= 0) {
        memcpy(s->user, s->data, (size_t)s->bytes);
    }
}

/* Frees the slot of a piece that is done. */
static void zfi_disk_retire(zfi_disk *d, zfi_disk_slot *s)
{
    if (s->error.status) {
        if (s->write) s->check->written = false;
        if (!s->transfer->error.status) s->transfer->error = s->error;
    }
    if (s->staging >= 0) d->staged[s->staging] = false;
    s->transfer->pending--;
    s->transfer = NULL;
    pthread_cond_broadcast(&d->changed);
}

/* -------------------------------------------------------------------------------------- threads */

static void *zfi_disk_thread(void *argument)
{
    zfi_disk *d = argument;
    pthread_mutex_lock(&d->mutex);
    while (!d->stop) {
        zfi_disk_slot *s;
        int64_t result;
        if (d->queue < 0) {
            pthread_cond_wait(&d->work, &d->mutex);
            continue;
        }
        s = &d->slots[d->queue];
        d->queue = s->next;
        pthread_mutex_unlock(&d->mutex);
        do {
            const size_t left = (size_t)(s->span - s->done);
            char *data = s->data + s->done;
            const int64_t at = s->at + s->done;
            errno = 0;
            result = s->write ? d->system->write(d->system->user, d->file.file, data, left, at)
                              : d->system->read(d->system->user, d->file.file, data, left, at);
            if (result < 0) result = -(int64_t)errno;
        } while (!zfi_disk_result(d, s, result));
        zfi_disk_finish(d, s);
        pthread_mutex_lock(&d->mutex);
        zfi_disk_retire(d, s);
    }
    pthread_mutex_unlock(&d->mutex);
    return NULL;
}

/* ----------------------------------------------------------------------------------------- ring */

static void zfi_disk_nap(void)
{
    struct timespec moment = {0, 100000};
    nanosleep(&moment, NULL);
}

static void zfi_disk_push(zfi_disk *d, zfi_disk_slot *s)
{
    const int32_t index = (int32_t)(s - d->slots);
    if (d->info.ring) {
        zfi_ring_push(&d->ring,
                      (zfi_ring_entry){.operation = s->write ? ZFI_RING_WRITE : ZFI_RING_READ,
                                       .file = d->file.file,
                                       .offset = (uint64_t)(s->at + s->done),
                                       .address = (uint64_t)(uintptr_t)(s->data + s->done),
                                       .bytes = (uint32_t)(s->span - s->done),
                                       .user = (uint64_t)index});
        return;
    }
    s->next = -1;
    if (d->queue < 0) d->queue = index;
    else d->slots[d->queue_end].next = index;
    d->queue_end = index;
    pthread_cond_signal(&d->work);
}

/* Submits the pushed requests to the kernel. Those that it cannot take now are submitted after the
 * next result; if no result is to come, the call fails after some time. */
static void zfi_disk_submit(zfi_disk *d)
{
    bool some = false;
    int tries = 0;
    while (d->ring.waiting) {
        int taken = zfi_ring_submit(&d->ring), code = errno;
        if (taken > 0) {
            d->flying += taken;
            some = true;
        } else if (taken < 0 && (code == EAGAIN || code == EBUSY || code == EINTR) &&
                   tries++ < ZFI_DISK_TRIES) {
            if (d->flying && code != EINTR) break;
            zfi_disk_nap();
        } else {
            zfi_disk_slot *s = &d->slots[zfi_ring_pop(&d->ring)];
            zfi_disk_refused(d, s, taken < 0 ? code : EIO);
            zfi_disk_retire(d, s);
        }
    }
    if (some) pthread_cond_broadcast(&d->changed);
}

/* Takes the results that have arrived. */
static void zfi_disk_collect(zfi_disk *d)
{
    int32_t done = -1;
    uint64_t index;
    int64_t result;
    while (zfi_ring_next(&d->ring, &index, &result)) {
        zfi_disk_slot *s = &d->slots[index];
        d->flying--;
        if (!zfi_disk_result(d, s, result)) {
            zfi_disk_push(d, s);
            continue;
        }
        s->next = done;
        done = (int32_t)index;
        d->finishing++;
    }
    zfi_disk_submit(d);
    while (done >= 0) {
        zfi_disk_slot *s = &d->slots[done];
        done = s->next;
        pthread_mutex_unlock(&d->mutex);
        zfi_disk_finish(d, s);
        pthread_mutex_lock(&d->mutex);
        d->finishing--;
        zfi_disk_retire(d, s);
    }
}

/* Waits until something has changed. Called with the mutex, which is released while it waits. */
static void zfi_disk_pass(zfi_disk *d)
{
    if (d->info.ring) zfi_disk_submit(d);
    if (!d->info.ring || !d->flying || d->reaping || d->finishing) {
        pthread_cond_wait(&d->changed, &d->mutex);
        return;
    }
    d->reaping = true;
    pthread_mutex_unlock(&d->mutex);
    /* After any error, the kernel may use the buffers until their results have arrived. */
    if (zfi_ring_wait(&d->ring) < 0 && errno != EINTR) zfi_disk_nap();
    pthread_mutex_lock(&d->mutex);
    d->reaping = false;
    pthread_cond_broadcast(&d->changed);
    zfi_disk_collect(d);
}

/* ------------------------------------------------------------------------------------ transfers */

/* A free slot for a piece at [at, at + span) of the file, if no piece in flight overlaps it in a
 * forbidden way; with a staging block, if `staged`. */
static zfi_disk_slot *zfi_disk_take(zfi_disk *d, bool write, int64_t at, int64_t span, bool staged)
{
    for (;;) {
        zfi_disk_slot *found = NULL;
        bool wait = false;
        int32_t block = -1;
        for (int32_t k = 0; k < d->depth; k++) {
            zfi_disk_slot *s = &d->slots[k];
            if (!s->transfer) found = s;
            else if ((write || s->write) && s->at < at + span && at < s->at + s->span) wait = true;
        }
        for (int32_t k = 0; staged && k < d->staging_count && block < 0; k++)
            if (!d->staged[k]) block = k;
        if (found && !wait && (!staged || block >= 0)) {
            *found = (zfi_disk_slot){.write = write, .staging = block, .at = at, .span = span};
            if (staged) d->staged[block] = true, d->info.staged++;
            return found;
        }
        zfi_disk_pass(d);
    }
}

/* Starts the piece [from, from + bytes) of a value. Called with the mutex. */
static void zfi_disk_start_piece(zfi_disk *d, bool write, int32_t value, int64_t from, char *user,
                                 int64_t bytes, zfi_disk_transfer *transfer)
{
    zfi_disk_check *check = &d->checks[d->first[value] + from / d->block];
    const bool staged = d->info.direct && ((uintptr_t)user % (uintptr_t)d->info.memory_align ||
                                           bytes % ZFI_DISK_ALIGN);
    const int64_t span = d->info.direct ? zfi_disk_up(bytes, ZFI_DISK_ALIGN) : bytes;
    zfi_disk_slot *s =
        zfi_disk_take(d, write, ZFI_OFFLOAD_PAGE + d->values[value].offset + from, span, staged);
    s->transfer = transfer;
    s->check = check;
    s->value = value, s->from = from, s->bytes = bytes;
    s->user = user;
    s->data = staged ? d->staging + s->staging * d->block : user;
    s->crc = check->crc;
    transfer->pending++;
    if (write) {
        pthread_mutex_unlock(&d->mutex);
        s->crc = zfi_crc32c(0, user, (size_t)bytes);
        if (staged) {
            memcpy(s->data, user, (size_t)bytes);
            memset(s->data + bytes, 0, (size_t)(span - bytes));
        }
        pthread_mutex_lock(&d->mutex);
        *check = (zfi_disk_check){s->crc, true};
    } else if (!check->written) {
        zfi_disk_fail(d, s, ZF_ERR_STAGE, "nothing was written there that could be read");
        zfi_disk_retire(d, s);
        return;
    }
    zfi_disk_push(d, s);
    if (write && d->info.ring) zfi_disk_submit(d); /* it runs while the next one is checksummed */
}

static void zfi_disk_start(zfi_disk *d, bool write, int32_t value, int64_t from, char *data,
                           int64_t bytes, zfi_disk_transfer *transfer)
{
    const int64_t all = value >= 0 && value < d->count ? d->values[value].bytes : -1;
    transfer->pending = 0;
    transfer->error = (zf_error){ZF_OK, ""};
    if (all < 0 || from < 0 || bytes < 0 || from > all || bytes > all - from || from % d->block ||
        (bytes % d->block && from + bytes != all)) {
        zfi_fail(&transfer->error, ZF_ERR_ARGUMENT,
                 "offload: bytes %lld to %lld of value %d, which has %lld; requests are of whole "
                 "blocks of %lld",
                 (long long)from, (long long)(from + bytes), (int)value, (long long)all,
                 (long long)d->block);
        return;
    }
    pthread_mutex_lock(&d->mutex);
    for (int64_t end = from + bytes; from < end && !transfer->error.status;) {
        const int64_t piece = end - from < d->block ? end - from : d->block;
        zfi_disk_start_piece(d, write, value, from, data, piece, transfer);
        from += piece, data += piece;
        write ? (d->info.writes++, d->info.bytes_written += piece)
              : (d->info.reads++, d->info.bytes_read += piece);
    }
    if (d->info.ring) zfi_disk_submit(d);
    pthread_mutex_unlock(&d->mutex);
}

/* Starts writing `bytes` of the value from byte `from` on: whole blocks, or to its end. `data` must
 * not change until zfi_disk_wait. */
ZFI_UNUSED static void zfi_disk_write(zfi_disk *d, int32_t value, int64_t from, const void *data,
                                      int64_t bytes, zfi_disk_transfer *transfer)
{
    zfi_disk_start(d, true, value, from, (char *)(uintptr_t)data, bytes, transfer);
}

/* Starts reading. `data` are undefined until zfi_disk_wait, and also if that fails. */
ZFI_UNUSED static void zfi_disk_read(zfi_disk *d, int32_t value, int64_t from, void *data,
                                     int64_t bytes, zfi_disk_transfer *transfer)
{
    zfi_disk_start(d, false, value, from, data, bytes, transfer);
}

/* Waits until the transfer is done; returns its first error. */
static zf_status zfi_disk_wait(zfi_disk *d, zfi_disk_transfer *transfer, zf_error *error)
{
    pthread_mutex_lock(&d->mutex);
    while (transfer->pending) zfi_disk_pass(d);
    pthread_mutex_unlock(&d->mutex);
    if (!transfer->error.status) return ZF_OK;
    return zfi_fail(error, transfer->error.status, "%s", transfer->error.text);
}

/* Waits until nothing is in flight. Transfers keep their errors. */
static void zfi_disk_drain(zfi_disk *d)
{
    pthread_mutex_lock(&d->mutex);
    for (int32_t k = 0; k < d->depth; k++)
        while (d->slots[k].transfer) zfi_disk_pass(d);
    pthread_mutex_unlock(&d->mutex);
}

/* Reads or writes a part of one block. */
static void zfi_disk_corner(zfi_disk *d, bool put, int32_t value, int64_t at, char *data,
                                   int64_t bytes, zfi_disk_transfer *transfer)
{
    const int64_t from = at / d->block * d->block, rest = d->values[value].bytes - from,
                  all = rest < d->block ? rest : d->block;
    const zfi_disk_check *check = &d->checks[d->first[value] + from / d->block];
    char *here = d->corner + (at - from);
    bool fresh;
    pthread_mutex_lock(&d->mutex);
    fresh = put && !check->written;
    pthread_mutex_unlock(&d->mutex);
    pthread_mutex_lock(&d->corner_mutex);
    transfer->error.status = ZF_OK;
    if (fresh) {
        memset(d->corner, 0, (size_t)all);
    } else {
        zfi_disk_read(d, value, from, d->corner, all, transfer);
        zfi_disk_wait(d, transfer, NULL);
    }
    if (!transfer->error.status && put) {
        memcpy(here, data, (size_t)bytes);
        zfi_disk_write(d, value, from, d->corner, all, transfer);
        zfi_disk_wait(d, transfer, NULL);
    } else if (!transfer->error.status) {
        memcpy(data, here, (size_t)bytes);
    }
    pthread_mutex_unlock(&d->corner_mutex);
}

static zf_status zfi_disk_any(zfi_disk *d, bool put, int32_t value, int64_t at, char *data,
                              int64_t bytes, zf_error *error)
{
    const int64_t all = value >= 0 && value < d->count ? d->values[value].bytes : -1;
    if (all < 0 || at < 0 || bytes < 0 || at > all || bytes > all - at)
        return zfi_fail(error, ZF_ERR_ARGUMENT, "offload: %lld bytes at %lld of value %d of %lld",
                        (long long)bytes, (long long)at, (int)value, (long long)all);
    while (bytes) {
        const int64_t rest = d->block - at % d->block, ends = at + bytes == all;
        int64_t piece = bytes < rest ? bytes : rest;
        zfi_disk_transfer transfer;
        if (rest == d->block && (ends || bytes >= d->block)) {
            piece = ends ? bytes : bytes / d->block * d->block;
            zfi_disk_start(d, put, value, at, data, piece, &transfer);
            zfi_disk_wait(d, &transfer, NULL);
        } else {
            zfi_disk_corner(d, put, value, at, data, piece, &transfer);
        }
        if (transfer.error.status)
            return zfi_fail(error, transfer.error.status, "%s", transfer.error.text);
        at += piece, data += piece, bytes -= piece;
    }
    return ZF_OK;
}

/* Reads any bytes of a value and waits. For rare use. */
ZFI_UNUSED static zf_status zfi_disk_get(zfi_disk *d, int32_t value, int64_t at, void *data,
                                         int64_t bytes, zf_error *error)
{
    return zfi_disk_any(d, false, value, at, data, bytes, error);
}

/* Writes any bytes of a value and waits. In a block that was never written, the rest becomes 0. */
ZFI_UNUSED static zf_status zfi_disk_put(zfi_disk *d, int32_t value, int64_t at, const void *data,
                                         int64_t bytes, zf_error *error)
{
    return zfi_disk_any(d, true, value, at, (char *)(uintptr_t)data, bytes, error);
}

/* The address is in the disk space. */
static bool zfi_disk_has(const zfi_disk *d, const void *at)
{
    const uintptr_t base = (uintptr_t)d->base, here = (uintptr_t)at;
    return d->base && here >= base && here - base < (uintptr_t)d->bytes;
}

/* The value that holds the address; of those that begin at it, the one of this size if there is
 * one. -1: none begins at or before it. */
static int32_t zfi_disk_find(const zfi_disk *d, const void *address, int64_t bytes)
{
    const int64_t at = (const char *)address - d->base;
    int32_t low = 0, high = d->count;
    while (high - low > 1) { /* the last value that begins at or before it */
        const int32_t middle = low + (high - low) / 2;
        if (d->values[middle].offset <= at) low = middle;
        else high = middle;
    }
    while (low > 0 && d->values[low].bytes != bytes &&
           d->values[low - 1].offset == d->values[low].offset)
        low--;
    return low < d->count ? low : -1;
}

/* Copies between memory and the disk: either `to` or `from` is an address in the disk space, in
 * this value; -1: in the one that zfi_disk_find finds. Waits; other threads can copy at the same
 * time. */
static zf_status zfi_disk_copy(zfi_disk *d, int32_t value, void *to, const void *from, size_t bytes,
                               zf_error *error)
{
    const bool put = zfi_disk_has(d, to);
    const char *here = put ? to : from;
    if (!bytes) return ZF_OK;
    if (value < 0) value = zfi_disk_find(d, here, (int64_t)bytes);
    if (value < 0 || (!put && !zfi_disk_has(d, from)))
        return zfi_fail(error, ZF_ERR_ARGUMENT, "offload: a copy of what does not lie on the disk");
    return zfi_disk_any(d, put, value, here - d->base - d->values[value].offset,
                        (char *)(uintptr_t)(put ? from : to), (int64_t)bytes, error);
}

ZFI_UNUSED static zfi_disk_info zfi_disk_info_of(zfi_disk *d)
{
    zfi_disk_info info;
    pthread_mutex_lock(&d->mutex);
    info = d->info;
    pthread_mutex_unlock(&d->mutex);
    return info;
}

/* ------------------------------------------------------------------------------- open and close */

/* Waits for what is in flight, removes the file, and frees the disk. NULL: nothing. */
static void zfi_disk_close(zfi_disk *d)
{
    if (!d) return;
    zfi_disk_drain(d);
    pthread_mutex_lock(&d->mutex);
    d->stop = true;
    pthread_cond_broadcast(&d->work);
    pthread_mutex_unlock(&d->mutex);
    for (int32_t k = 0; k < d->info.threads; k++) pthread_join(d->threads[k], NULL);
    zfi_ring_close(&d->ring);
    zfi_offload_close(&d->file);
    if (d->base) munmap(d->base, (size_t)d->bytes);
    pthread_cond_destroy(&d->work);
    pthread_cond_destroy(&d->changed);
    pthread_mutex_destroy(&d->corner_mutex);
    pthread_mutex_destroy(&d->mutex);
    if (d->own) zfi_free(d->memory, d->own, d->own_bytes);
}

/* Starts the ring or the threads. */
static zf_status zfi_disk_start_way(zfi_disk *d, zfi_disk_way way, zf_error *error)
{
    const int32_t threads = d->depth < ZFI_DISK_THREAD_COUNT ? d->depth : ZFI_DISK_THREAD_COUNT;
    if (way != ZFI_DISK_THREADS) {
        d->info.ring = zfi_ring_open(&d->ring, d->system, (uint32_t)d->depth);
        if (d->info.ring) return ZF_OK;
        snprintf(d->why, sizeof d->why, "io_uring: %s", strerror(errno));
        if (way == ZFI_DISK_RING)
            return zfi_fail(error, ZF_ERR_IO, "offload: the system grants no %s", d->why);
        if (d->info.direct) d->info.why = d->why;
    }
    while (d->info.threads < threads) {
        if (pthread_create(&d->threads[d->info.threads], NULL, zfi_disk_thread, d)) {
            if (d->info.threads) break; /* fewer threads are enough */
            return zfi_fail(error, ZF_ERR_IO, "offload: the system refused a thread");
        }
        d->info.threads++;
    }
    return ZF_OK;
}

/* Opens a disk with an empty file whose space is allocated. NULL with *error on failure;
 * ZF_ERR_LIMIT where the disk is full. */
static zfi_disk *zfi_disk_open(zfi_memory *memory, const zfi_disk_desc *desc,
                                          zf_error *error)
{
    const zfi_disk_desc want = zfi_disk_resolved(desc);
    zfi_disk_parts parts;
    zfi_disk *d;
    char *own = NULL, *host = want.host;
    size_t bytes;
    int64_t checks;
    zf_status status;
    if (zfi_disk_check_desc(&want, error)) return NULL;
    checks = zfi_disk_checks(&want);
    bytes = zfi_disk_lay_out(&want, checks, NULL).bytes;
    if (!host) {
        own = zfi_realloc(memory, NULL, 0, bytes + ZFI_DISK_ALIGN);
        if (!own) return zfi_nomem(error), NULL;
        host = own + (ZFI_DISK_ALIGN - (uintptr_t)own % ZFI_DISK_ALIGN) % ZFI_DISK_ALIGN;
    }
    parts = zfi_disk_lay_out(&want, checks, host);
    checks = 0;
    memset(host, 0, bytes);
    d = parts.disk;
    d->memory = memory;
    d->own = own;
    d->own_bytes = bytes + ZFI_DISK_ALIGN;
    d->system = want.system;
    d->values = parts.values, d->first = parts.first, d->checks = parts.checks;
    d->slots = parts.slots;
    d->staging = parts.staging, d->staged = parts.staged, d->corner = parts.corner;
    d->count = want.count, d->depth = want.depth, d->staging_count = want.staging;
    d->block = want.block;
    d->bytes = want.bytes;
    d->queue = -1;
    d->ring.file = -1;
    for (int32_t k = 0; k < want.count; k++) {
        d->values[k] = want.values[k];
        d->first[k] = checks;
        checks += zfi_disk_blocks(want.values[k].bytes, want.block);
    }
    pthread_mutex_init(&d->mutex, NULL);
    pthread_mutex_init(&d->corner_mutex, NULL);
    pthread_cond_init(&d->changed, NULL);
    pthread_cond_init(&d->work, NULL);
    d->info = (zfi_disk_info){.path = d->file.path,
                              .why = "it was asked for",
                              .depth = want.depth,
                              .memory_align = 1,
                              .file_bytes = zfi_disk_file_bytes(want.bytes)};
    status = zfi_offload_open(&d->file,
                              &(zfi_offload_desc){.folder = want.folder,
                                                  .run = want.run,
                                                  .rank = want.rank,
                                                  .world = want.world,
                                                  .plan = want.plan,
                                                  .bytes = d->info.file_bytes,
                                                  .system = want.system},
                              error);
    if (!status && want.bytes && !(d->base = zfi_addresses((size_t)want.bytes)))
        status = zfi_fail(error, ZF_ERR_LIMIT, "offload: the system has no room for %lld addresses",
                          (long long)want.bytes);
    if (!status && !want.buffered) zfi_disk_go_direct(d);
    if (!status) status = zfi_disk_start_way(d, want.way, error);
    if (!status) return d;
    zfi_disk_close(d);
    return NULL;
}
