/* The system calls of the disk engine, as a table. A test replaces them by calls that fail, answer
 * late, or change data.
 *
 * All of them return what the system call returns: -1 with errno, or its result. */
#include <sys/mman.h>
#include <sys/statvfs.h>
/* Hidden by strict C11. */
int ftruncate(int, off_t);
int nanosleep(const struct timespec *, struct timespec *);

typedef struct zfi_system {
    void *user;
    /* Allocates disk space for the file's first `bytes`; ENOSYS or EOPNOTSUPP: the file system
     * cannot */
    int (*allocate)(void *user, int file, int64_t bytes);
    int64_t (*read)(void *user, int file, void *data, size_t bytes, int64_t offset);
    int64_t (*write)(void *user, int file, const void *data, size_t bytes, int64_t offset);
    /* io_uring: makes a ring, submits requests and waits for results, maps and unmaps its memory
     * (NULL: not supported) */
    int (*ring_setup)(void *user, unsigned entries, void *params);
    int (*ring_enter)(void *user, int ring, unsigned submit, unsigned wait);
    void *(*ring_map)(void *user, int ring, size_t bytes, int64_t offset);
    void (*ring_unmap)(void *user, void *at, size_t bytes);
} zfi_system;

#if defined(__linux__)
static long zfi_syscall(long number, long a, long b, long c, long d, long e, long f)
{
    return syscall(number, a, b, c, d, e, f);
}
#endif

static int zfi_system_allocate(void *user, int file, int64_t bytes)
{
    (void)user, (void)file, (void)bytes;
#if defined(__linux__) && defined(SYS_fallocate)
    if (sizeof(long) == 8) return (int)zfi_syscall(SYS_fallocate, file, 0, 0, (long)bytes, 0, 0);
#endif
    errno = ENOSYS;
    return -1;
}

static int64_t zfi_system_read(void *user, int file, void *data, size_t bytes, int64_t offset)
{
    (void)user;
    return pread(file, data, bytes, (off_t)offset);
}

static int64_t zfi_system_write(void *user, int file, const void *data, size_t bytes,
                                int64_t offset)
{
    (void)user;
    return zfi_pwrite(file, data, bytes, offset);
}

#if defined(__linux__) && defined(__GNUC__)
/* These numbers are the same on all supported architectures. */
enum { ZFI_SYS_RING_SETUP = 425, ZFI_SYS_RING_ENTER = 426, ZFI_RING_GETEVENTS = 1 };

static int zfi_system_ring_setup(void *user, unsigned entries, void *params)
{
    (void)user;
    return (int)zfi_syscall(ZFI_SYS_RING_SETUP, (long)entries, (long)(intptr_t)params, 0, 0, 0, 0);
}

static int zfi_system_ring_enter(void *user, int ring, unsigned submit, unsigned wait)
{
    (void)user;
    return (int)zfi_syscall(ZFI_SYS_RING_ENTER, ring, (long)submit, (long)wait,
                            wait ? ZFI_RING_GETEVENTS : 0, 0, 0);
}
#else
static int zfi_system_ring_setup(void *user, unsigned entries, void *params)
{
    (void)user, (void)entries, (void)params;
    errno = ENOSYS;
    return -1;
}

static int zfi_system_ring_enter(void *user, int ring, unsigned submit, unsigned wait)
{
    (void)user, (void)ring, (void)submit, (void)wait;
    errno = ENOSYS;
    return -1;
}
#endif

/* Reserves so many addresses that cannot be read or written; NULL: not possible. munmap releases
 * them. */
static void *zfi_addresses(size_t bytes)
{
#if defined(MAP_ANONYMOUS)
    const int anonymous = MAP_ANONYMOUS;
#else /* hidden by strict C11 */
    const int anonymous = 0x20;
#endif
    void *at = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | anonymous, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

static void *zfi_system_ring_map(void *user, int ring, size_t bytes, int64_t offset)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ring, (off_t)offset);
    (void)user;
    return at == MAP_FAILED ? NULL : at;
}

static void zfi_system_ring_unmap(void *user, void *at, size_t bytes)
{
    (void)user;
    munmap(at, bytes);
}

static const zfi_system zfi_system_own = {
    NULL,
    zfi_system_allocate,
    zfi_system_read,
    zfi_system_write,
    zfi_system_ring_setup,
    zfi_system_ring_enter,
    zfi_system_ring_map,
    zfi_system_ring_unmap,
};
