/* io_uring without liburing: two rings in memory that the kernel and this process share.
 *
 *     requests    push: entry at tail, tail + 1      submit: the kernel takes head .. tail
 *     results     the kernel: result at tail         next:   result at head, head + 1
 *
 * The layout of this memory is a stable interface of the kernel. A ring has no lock: only one
 * thread at a time may push, submit, or take results. Another may wait meanwhile
 * (zfi_ring_wait). */
typedef struct zfi_ring_entry {
    uint8_t operation, flags;
    uint16_t priority;
    int32_t file;
    uint64_t offset, address;
    uint32_t bytes, how;
    uint64_t user; /* returned with the result */
    uint64_t rest[3];
} zfi_ring_entry;

typedef struct zfi_ring_result {
    uint64_t user;
    int32_t result; /* bytes, or an error as a negative number */
    uint32_t flags;
} zfi_ring_result;

/* Offsets in the memory of a ring. */
typedef struct zfi_ring_places {
    uint32_t head, tail, mask, entries;
    uint32_t more[2]; /* of requests: flags, dropped; of results: overflow, results */
    uint32_t array;   /* of requests: indices of entries; of results: flags */
    uint32_t unused[3];
} zfi_ring_places;

typedef struct zfi_ring_params {
    uint32_t requests, results, flags, cpu, idle, features, workers, unused[3];
    zfi_ring_places request, result;
} zfi_ring_params;

enum {
    ZFI_RING_READ = 22,
    ZFI_RING_WRITE = 23,
    ZFI_RING_SINGLE_MAP = 1, /* features: both rings are one piece of memory */
    ZFI_RING_NODROP = 2,     /* results are never lost */
    ZFI_RING_READ_WRITE = 8, /* in the same kernels as the operations READ and WRITE */
    ZFI_RING_ENTRIES_AT = 0x10000000
};

typedef struct zfi_ring {
    const zfi_system *system;
    int file; /* -1: none */
    char *rings;
    zfi_ring_entry *entries;
    size_t rings_bytes, entries_bytes;
    uint32_t *request_head, *request_tail, *indices, request_mask;
    uint32_t *result_head, *result_tail, result_mask;
    zfi_ring_result *results;
    uint32_t waiting; /* requests pushed but not submitted */
} zfi_ring;

#if defined(__GNUC__)
#define ZFI_ACQUIRE(at)        __atomic_load_n((at), __ATOMIC_ACQUIRE)
#define ZFI_RELEASE(at, value) __atomic_store_n((at), (value), __ATOMIC_RELEASE)
#else /* without these calls there is no ring */
#define ZFI_ACQUIRE(at)        (*(at))
#define ZFI_RELEASE(at, value) (*(at) = (value))
#endif

static void zfi_ring_close(zfi_ring *r)
{
    if (r->entries) r->system->ring_unmap(r->system->user, r->entries, r->entries_bytes);
    if (r->rings) r->system->ring_unmap(r->system->user, r->rings, r->rings_bytes);
    if (r->file >= 0) close(r->file);
    *r = (zfi_ring){.file = -1};
}

/* Opens a ring for so many requests at a time; false with errno where the system has none or
 * refuses. */
static bool zfi_ring_open(zfi_ring *r, const zfi_system *system, uint32_t requests)
{
    const uint32_t needed = ZFI_RING_SINGLE_MAP | ZFI_RING_NODROP | ZFI_RING_READ_WRITE;
    zfi_ring_params p = {0};
    size_t end;
    *r = (zfi_ring){.system = system, .file = -1};
    r->file = system->ring_setup(system->user, requests, &p);
    if (r->file < 0) return false;
    fcntl(r->file, F_SETFD, FD_CLOEXEC);
    r->rings_bytes = p.request.array + p.requests * sizeof(uint32_t);
    end = p.result.more[1] + p.results * sizeof(zfi_ring_result);
    if (end > r->rings_bytes) r->rings_bytes = end;
    r->entries_bytes = p.requests * sizeof *r->entries;
    if ((p.features & needed) != needed) errno = ENOSYS;
    else r->rings = system->ring_map(system->user, r->file, r->rings_bytes, 0);
    if (r->rings)
        r->entries = system->ring_map(system->user, r->file, r->entries_bytes, ZFI_RING_ENTRIES_AT);
    if (!r->entries) {
        int code = errno;
        zfi_ring_close(r);
        errno = code;
        return false;
    }
    r->request_head = (uint32_t *)(void *)(r->rings + p.request.head);
    r->request_tail = (uint32_t *)(void *)(r->rings + p.request.tail);
    r->request_mask = *(uint32_t *)(void *)(r->rings + p.request.mask);
    r->indices = (uint32_t *)(void *)(r->rings + p.request.array);
    r->result_head = (uint32_t *)(void *)(r->rings + p.result.head);
    r->result_tail = (uint32_t *)(void *)(r->rings + p.result.tail);
    r->result_mask = *(uint32_t *)(void *)(r->rings + p.result.mask);
    r->results = (zfi_ring_result *)(void *)(r->rings + p.result.more[1]);
    return true;
}

/* Pushes a request; there must be room. */
static void zfi_ring_push(zfi_ring *r, zfi_ring_entry entry)
{
    uint32_t tail = *r->request_tail, at = tail & r->request_mask;
    r->entries[at] = entry;
    r->indices[at] = at;
    ZFI_RELEASE(r->request_tail, tail + 1);
    r->waiting++;
}

/* Takes back the last request that was not submitted; returns its `user`. */
static uint64_t zfi_ring_pop(zfi_ring *r)
{
    uint32_t tail = *r->request_tail - 1;
    ZFI_RELEASE(r->request_tail, tail);
    r->waiting--;
    return r->entries[tail & r->request_mask].user;
}

/* Submits requests to the kernel; returns how many it took, or -1 with errno. */
static int zfi_ring_submit(zfi_ring *r)
{
    int taken = r->system->ring_enter(r->system->user, r->file, r->waiting, 0);
    if (taken > 0) r->waiting -= (uint32_t)taken;
    return taken;
}

/* Waits until there is a result; -1 with errno. */
static int zfi_ring_wait(const zfi_ring *r)
{
    return r->system->ring_enter(r->system->user, r->file, 0, 1);
}

/* Takes a result; false if there is none. */
static bool zfi_ring_next(zfi_ring *r, uint64_t *user, int64_t *result)
{
    uint32_t head = *r->result_head;
    if (head == ZFI_ACQUIRE(r->result_tail)) return false;
    *user = r->results[head & r->result_mask].user;
    *result = r->results[head & r->result_mask].result;
    ZFI_RELEASE(r->result_head, head + 1);
    return true;
}
