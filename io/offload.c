/* Offload files: disk space of one rank of one run, as long as the run lasts.
 *
 *     FOLDER/RUN.rank-00001-of-00004.zf-offload
 *     | header, one page: text | bytes 0 .. of the plan's disk space ...
 *
 * The data in such a file do not outlive the run. The run holds a lock on it (flock), which the
 * system releases however the process ends. So a file without a lock was left by a killed run: it
 * is reused if it has the wanted name, and removed otherwise: by its header, not by its name alone.
 * A run may be killed before it has written the header, so a file without a byte that has the whole
 * name of such a file is removed, too. Any other file, and a symbolic link, are not touched.
 *
 * The whole space is allocated when the file is opened, so the disk cannot become full later. */
enum {
    ZFI_OFFLOAD_PAGE = 4096, /* bytes of the header, and alignment of all places */
    ZFI_OFFLOAD_RUN = 128    /* longest name of a run */
};

static const char zfi_offload_suffix[] = ".zf-offload",
                  zfi_offload_magic[] = "zeroflow offload file 1\n";

typedef struct zfi_offload_desc {
    const char *folder, *run; /* run: letters, digits, '.', '-', '_' */
    int32_t rank, world;
    uint64_t plan; /* a hash, for people who read the header */
    int64_t bytes; /* of the file, with the header */
    const zfi_system *system;
} zfi_offload_desc;

typedef struct zfi_offload_file {
    int file; /* -1: none */
    char path[ZFI_ASIDE_MAX];
} zfi_offload_file;

static bool zfi_offload_named(const char *name)
{
    size_t length = strlen(name), suffix = strlen(zfi_offload_suffix);
    return length > suffix && !strcmp(name + length - suffix, zfi_offload_suffix);
}

/* The name is RUN.rank-RANK-of-WORLD.zf-offload, as zfi_offload_open makes it. */
static bool zfi_offload_named_whole(const char *name)
{
    const char *from = name, *next;
    int rank, world, end = 0;
    while ((next = strstr(from + 1, ".rank-"))) from = next;
    if (from == name || sscanf(from, ".rank-%5d-of-%5d%n", &rank, &world, &end) != 2) return false;
    return !strcmp(from + end, zfi_offload_suffix);
}

/* The file begins as an offload file does. empty: one without a byte will do, since a run may be
 * killed before it has written a header. */
static bool zfi_offload_known(int file, bool empty)
{
    char front[sizeof zfi_offload_magic] = "";
    const size_t magic = sizeof front - 1;
    int64_t got = pread(file, front, magic, 0);
    return got ? got == (int64_t)magic && !memcmp(front, zfi_offload_magic, magic) : empty;
}

/* The open file has this name and is a regular file. */
static bool zfi_offload_is(int file, const char *path)
{
    struct stat opened, named;
    return fstat(file, &opened) == 0 && lstat(path, &named) == 0 && S_ISREG(opened.st_mode) &&
           opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

/* Removes the file if a killed run has left it. One that another process has created, and is about
 * to lock, may seem to be left: that process makes a new one. */
static void zfi_offload_clear(const char *path, const char *name)
{
    int file = open(path, O_RDWR | O_NONBLOCK);
    if (file < 0) return;
    fcntl(file, F_SETFD, FD_CLOEXEC);
    if (flock(file, LOCK_EX | LOCK_NB) == 0 && zfi_offload_is(file, path) &&
        zfi_offload_known(file, zfi_offload_named_whole(name)))
        unlink(path);
    close(file);
}

/* Removes files of killed runs in the folder, except the file `own`. */
static zf_status zfi_offload_clean(const char *folder, const char *own, zf_error *error)
{
    char path[ZFI_ASIDE_MAX];
    const char *name;
    DIR *directory = opendir(folder);
    if (!directory) return zfi_io_fail(error, "open", folder);
    while ((name = zfi_directory_next(directory)))
        if (zfi_offload_named(name) && zfi_path_join(path, folder, name) && strcmp(path, own))
            zfi_offload_clear(path, name);
    closedir(directory);
    return ZF_OK;
}

/* Opens and locks the file of this name, a new one or one of a killed run. If a process was killed
 * with requests in the kernel, its lock is released a little later than it ends; so this waits up
 * to a second. */
static zf_status zfi_offload_take(zfi_offload_file *f, zf_error *error)
{
    const struct timespec moment = {0, 10000000};
    for (int tries = 0; tries < 100; tries++) {
        struct stat about;
        bool locked, named;
        if (!lstat(f->path, &about) && !S_ISREG(about.st_mode))
            return zfi_fail(error, ZF_ERR_IO,
                            "%s is there, and it is not a regular file: remove it, or offload to "
                            "another folder",
                            zfi_path_tail(f->path));
        f->file = open(f->path, O_RDWR | O_CREAT | O_NONBLOCK, 0600);
        if (f->file < 0) return zfi_io_fail(error, "create", f->path);
        fcntl(f->file, F_SETFD, FD_CLOEXEC);
        locked = flock(f->file, LOCK_EX | LOCK_NB) == 0;
        if (!locked && errno != EWOULDBLOCK && errno != EINTR)
            return zfi_io_fail(error, "lock", f->path);
        named = zfi_offload_is(f->file, f->path);
        if (locked && named && zfi_offload_known(f->file, true)) return ZF_OK;
        if (locked && named)
            return zfi_fail(error, ZF_ERR_IO,
                            "%s is there, and it is not an offload file: remove it, or offload to "
                            "another folder",
                            zfi_path_tail(f->path));
        close(f->file); /* locked, but just removed by another process: try a new one */
        f->file = -1;
        if (!locked) nanosleep(&moment, NULL);
    }
    return zfi_fail(error, ZF_ERR_IO,
                    "%s belongs to another run that is alive: give one of them another folder for "
                    "offload",
                    zfi_path_tail(f->path));
}

/* Writes all of `data`; false with errno. */
static bool zfi_offload_put(const zfi_system *system, int file, int64_t offset, const char *data,
                            size_t bytes)
{
    while (bytes) {
        int64_t put = system->write(system->user, file, data, bytes, offset);
        if (put < 0 && errno == EINTR) continue;
        if (put == 0) errno = ENOSPC;
        if (put <= 0) return false;
        data += put, offset += put, bytes -= (size_t)put;
    }
    return true;
}

/* Writes every byte after the header, for file systems that cannot allocate; false with errno. The
 * data cannot be compressed or deduplicated, so that a file system that saves space allocates all
 * of it. */
static bool zfi_offload_fill(const zfi_offload_desc *desc, int file)
{
    uint64_t noise[ZFI_OFFLOAD_PAGE / 8], state = 0x9e3779b97f4a7c15u;
    for (int64_t at = ZFI_OFFLOAD_PAGE; at < desc->bytes; at += ZFI_OFFLOAD_PAGE) {
        for (int i = 0; i < ZFI_COUNT(noise); i++) {
            state ^= state << 13, state ^= state >> 7, state ^= state << 17;
            noise[i] = state;
        }
        if (!zfi_offload_put(desc->system, file, at, (const char *)noise, sizeof noise))
            return false;
    }
    return true;
}

/* Sets the file's size and allocates its space; false with errno. */
static bool zfi_offload_allocate(const zfi_offload_desc *desc, int file)
{
    struct rlimit most;
    struct stat about;
    int refused;
    /* A write beyond this limit would kill the process. */
    if (getrlimit(RLIMIT_FSIZE, &most) == 0 && most.rlim_cur != RLIM_INFINITY &&
        (uint64_t)most.rlim_cur < (uint64_t)desc->bytes) {
        errno = EFBIG;
        return false;
    }
    if (fstat(file, &about)) return false;
    if (about.st_size > desc->bytes && ftruncate(file, (off_t)desc->bytes)) return false;
    do refused = desc->system->allocate(desc->system->user, file, desc->bytes);
    while (refused && errno == EINTR);
    if (refused && (errno == ENOSYS || errno == EOPNOTSUPP)) return zfi_offload_fill(desc, file);
    return !refused;
}

/* Writes the header and allocates the space. */
static zf_status zfi_offload_make(const zfi_offload_desc *desc, const zfi_offload_file *f,
                                  zf_error *error)
{
    char header[ZFI_OFFLOAD_PAGE] = "", room[64] = "";
    struct statvfs about;
    int code;
    snprintf(
        header, sizeof header,
        "%srun %s\nrank %d of %d\nplan %016llx\nbytes %lld\nprocess %ld\n\nThis file is of use "
        "to that process alone. When it has ended, the file can be removed.\n",
        zfi_offload_magic, desc->run, (int)desc->rank, (int)desc->world,
        (unsigned long long)desc->plan, (long long)desc->bytes, (long)getpid());
    if (zfi_offload_put(desc->system, f->file, 0, header, sizeof header) &&
        zfi_offload_allocate(desc, f->file))
        return ZF_OK;
    code = errno;
    if (code != ENOSPC && code != EDQUOT && code != EFBIG)
        return zfi_io_fail(error, "allocate", f->path);
    if (code != EFBIG && fstatvfs(f->file, &about) == 0)
        snprintf(room, sizeof room, "; %.4g GiB are free",
                 (double)about.f_bavail * (double)about.f_frsize / (1 << 30));
    return zfi_fail(error, ZF_ERR_LIMIT, "%s needs %lld bytes of disk space: %s%s",
                    zfi_path_tail(f->path), (long long)desc->bytes, strerror(code), room);
}

/* Removes the file, then releases its lock, so that no other run can take it in between. */
static void zfi_offload_close(zfi_offload_file *f)
{
    if (f->file < 0) return;
    unlink(f->path);
    close(f->file);
    f->file = -1;
}

/* Opens a file with all of its space, locked. On failure there is nothing to close. */
static zf_status zfi_offload_open(zfi_offload_file *f, const zfi_offload_desc *desc,
                                  zf_error *error)
{
    char folder[ZFI_PATH_MAX], name[ZFI_OFFLOAD_RUN + 64];
    const char *allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";
    size_t length = desc->run ? strlen(desc->run) : 0;
    zf_status status;
    f->file = -1;
    if (!length || length > ZFI_OFFLOAD_RUN || strspn(desc->run, allowed) != length ||
        desc->run[0] == '.')
        return zfi_fail(
            error, ZF_ERR_ARGUMENT,
            "the run's name must have 1 to %d letters, digits, '.', '-' or '_', and no "
            "'.' at its beginning",
            (int)ZFI_OFFLOAD_RUN);
    if ((status = zfi_path_resolve(desc->folder, folder, error))) return status;
    snprintf(name, sizeof name, "%s.rank-%05d-of-%05d%s", desc->run, (int)desc->rank,
             (int)desc->world, zfi_offload_suffix);
    if (!zfi_path_join(f->path, folder, name))
        return zfi_fail(error, ZF_ERR_ARGUMENT, "%s: the path is too long", zfi_path_tail(folder));
    if ((status = zfi_offload_clean(folder, f->path, error))) return status;
    if ((status = zfi_offload_take(f, error))) {
        if (f->file >= 0) close(f->file);
        f->file = -1;
        return status;
    }
    if ((status = zfi_offload_make(desc, f, error))) zfi_offload_close(f);
    return status;
}
