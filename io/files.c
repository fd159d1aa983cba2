/* Files that are never seen half-written, and directories that are replaced as a whole.
 *
 * A new file grows next to its place and is renamed over it when every byte is on the disk. A new
 * directory likewise:
 *
 *     begin    PATH: the old one, complete           PATH.zf-new: being filled
 *     commit   every file and the directory are brought to the disk, then
 *              PATH <-> PATH.zf-new                  at once, where the system can (Linux); or
 *              PATH -> PATH.zf-old, PATH.zf-new -> PATH
 *              the parent is brought to the disk, and the old one is removed
 *
 * Whenever the machine stops, PATH or PATH.zf-old is complete: the old directory or the new one.
 * zfi_directory_recover renames PATH.zf-old to PATH where PATH is missing. Only directories without
 * subdirectories that hold a given file (the mark) are replaced or removed, so a wrong path
 * destroys no other directory. PATH.zf-new has the mark from its beginning on, and the mark is what
 * is removed last. PATH.zf-new is locked by the process that fills it; a second process that would
 * write the same directory gets an error.
 *
 * What a stopped writer has left is not known by its name alone: a file that is being written has a
 * mode that no other file has (ZFI_UNFINISHED), a directory has the mark. Anything else of that
 * name is an error, and stays.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/select.h> /* sigset_t */
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/syscall.h>
long syscall(long, ...);
#endif
/* POSIX names that strict C11 hides when a system header was included before this library. */
ssize_t pread(int, void *, size_t, off_t);
ssize_t pwrite(int, const void *, size_t, off_t);
int fsync(int);
char *realpath(const char *, char *);
int pthread_sigmask(int, const sigset_t *, sigset_t *);
int lstat(const char *, struct stat *);
int fchmod(int, mode_t);
int sigpending(sigset_t *);
int sigwait(const sigset_t *, int *);
#ifndef sigemptyset /* a macro on some systems */
int sigemptyset(sigset_t *);
int sigaddset(sigset_t *, int);
int sigismember(const sigset_t *, int);
#endif
#if !defined(SIG_BLOCK) && defined(__linux__)
#define SIG_BLOCK   0
#define SIG_SETMASK 2
#endif

enum {
    ZFI_PATH_MAX = 4096,
    ZFI_ASIDE_MAX = ZFI_PATH_MAX + 16, /* with a suffix */
    ZFI_IO_CHUNK = 1 << 30,            /* Linux moves at most 2^31 - 4096 bytes per call */
    ZFI_UNFINISHED = 01000             /* S_ISVTX: of a file that is not renamed yet */
};

/* The end of a path, short enough to leave room for the rest of a message. */
static const char *zfi_path_tail(const char *path)
{
    size_t length = strlen(path);
    if (length > 200) path += length - 200;
    while (((unsigned char)*path & 0xc0) == 0x80) path++; /* no half characters */
    return path;
}

/* "cannot WHAT PATH: why", from errno. */
ZFI_COLD static zf_status zfi_io_fail(zf_error *error, const char *what, const char *path)
{
    int code = errno;
    if (code == ENOMEM) return zfi_nomem(error);
    return zfi_fail(error, ZF_ERR_IO, "cannot %s %s: %s", what, zfi_path_tail(path),
                    strerror(code));
}

/* Where `path` is: links resolved, no slash at its end. What does not exist yet stays as it is. */
static zf_status zfi_path_resolve(const char *path, char out[ZFI_PATH_MAX], zf_error *error)
{
    size_t length = path ? strlen(path) : 0;
    while (length > 1 && path[length - 1] == '/') length--;
    if (!length) return zfi_fail(error, ZF_ERR_ARGUMENT, "an empty path");
    if (length >= ZFI_PATH_MAX)
        return zfi_fail(error, ZF_ERR_ARGUMENT, "%s: a path of %zu bytes, at most %d are possible",
                        zfi_path_tail(path), length, ZFI_PATH_MAX - 1);
    if (!realpath(path, out)) {
        memcpy(out, path, length);
        out[length] = '\0';
    }
    return ZF_OK;
}

/* Has the system bring a file or directory to the disk. */
static zf_status zfi_path_sync(const char *path, zf_error *error)
{
    zf_status status = ZF_OK;
    int file = open(path, O_RDONLY | O_NONBLOCK);
    if (file < 0) return zfi_io_fail(error, "open", path);
    /* Some file systems sync no directories: they say EINVAL. */
    if (fsync(file) && errno != EINVAL) status = zfi_io_fail(error, "sync", path);
    close(file);
    return status;
}

static zf_status zfi_parent_sync(const char *path, zf_error *error)
{
    char parent[ZFI_ASIDE_MAX];
    const char *slash = strrchr(path, '/');
    size_t length = slash ? (size_t)(slash - path) : 0;
    snprintf(parent, sizeof parent, "%.*s", (int)length, path);
    return zfi_path_sync(length ? parent : slash ? "/" : ".", error);
}

/* ------------------------------------------------------------------------------------- reading */

/* Opens a regular file for reading; *bytes is its size. A descriptor, or -1 with *error. */
static int zfi_file_open(const char *path, uint64_t *bytes, zf_error *error)
{
    struct stat about;
    int file;
    if (!path || !*path) {
        zfi_fail(error, ZF_ERR_ARGUMENT, "an empty path");
        return -1;
    }
    file = open(path, O_RDONLY | O_NONBLOCK); /* a FIFO without a writer would block */
    if (file < 0) {
        zfi_io_fail(error, "open", path);
        return -1;
    }
    fcntl(file, F_SETFD, FD_CLOEXEC);
    if (fstat(file, &about) == 0 && S_ISREG(about.st_mode)) {
        *bytes = (uint64_t)about.st_size;
        return file;
    }
    zfi_fail(error, ZF_ERR_IO, "cannot read %s: it is not a regular file", zfi_path_tail(path));
    close(file);
    return -1;
}

/* Exactly `bytes` from `offset`; any thread may read at the same time. */
static zf_status zfi_file_read(int file, const char *path, uint64_t offset, void *out, size_t bytes,
                               zf_error *error)
{
    while (bytes) {
        ssize_t got = pread(file, out, bytes < ZFI_IO_CHUNK ? bytes : ZFI_IO_CHUNK, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return zfi_io_fail(error, "read", path);
        if (got == 0)
            return zfi_fail(error, ZF_ERR_IO,
                            "%s ends at byte %llu, though it was longer when it was opened",
                            zfi_path_tail(path), (unsigned long long)offset);
        out = (char *)out + got;
        offset += (uint64_t)got;
        bytes -= (size_t)got;
    }
    return ZF_OK;
}

/* A whole file of at most `limit` bytes, terminated by a zero that *bytes does not count. NULL with
 * *error on failure. Free with zfi_free(memory, text, *bytes + 1). */
static char *zfi_file_load(zfi_memory *memory, const char *path, size_t limit, size_t *bytes,
                           zf_error *error)
{
    uint64_t size;
    char *text = NULL;
    int file = zfi_file_open(path, &size, error);
    if (file < 0) return NULL;
    if (size > limit) {
        zfi_fail(error, ZF_ERR_LIMIT, "%s has %llu bytes, but such a file may have at most %zu",
                 zfi_path_tail(path), (unsigned long long)size, limit);
    } else if (!(text = zfi_realloc(memory, NULL, 0, (size_t)size + 1))) {
        zfi_nomem(error);
    } else if (zfi_file_read(file, path, 0, text, (size_t)size, error)) {
        zfi_free(memory, text, (size_t)size + 1);
        text = NULL;
    } else {
        text[size] = '\0';
        *bytes = (size_t)size;
    }
    close(file);
    return text;
}

/* ------------------------------------------------------------------------------------- writing */

/* Whether SIGXFSZ waits to be delivered. */
static bool zfi_size_signal_waits(void)
{
    sigset_t waiting;
    sigemptyset(&waiting);
    return !sigpending(&waiting) && sigismember(&waiting, SIGXFSZ) == 1;
}

/* pwrite, or with an offset below 0 write. */
static ssize_t zfi_write_once(int file, const void *data, size_t bytes, int64_t offset)
{
    return offset < 0 ? write(file, data, bytes) : pwrite(file, data, bytes, (off_t)offset);
}

/* The same, for which the limit of a file's size (ulimit -f) is the error EFBIG. The system's
 * signal about it, which ends a process, is blocked in this thread meanwhile, and taken back. */
static ssize_t zfi_pwrite(int file, const void *data, size_t bytes, int64_t offset)
{
    struct rlimit limit;
    sigset_t size, before;
    ssize_t put;
    bool waited;
    int code, number;
    if (getrlimit(RLIMIT_FSIZE, &limit) || limit.rlim_cur == RLIM_INFINITY)
        return zfi_write_once(file, data, bytes, offset);
    sigemptyset(&size);
    sigaddset(&size, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &size, &before);
    waited = zfi_size_signal_waits();
    put = zfi_write_once(file, data, bytes, offset);
    code = errno;
    if (!waited && zfi_size_signal_waits()) sigwait(&size, &number);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = code;
    return put;
}

typedef struct zfi_new_file {
    int file; /* -1: none */
    char path[ZFI_PATH_MAX], aside[ZFI_ASIDE_MAX];
} zfi_new_file;

/* Removes what an interrupted run has left in place of the new file. */
static zf_status zfi_new_file_clear(const char *aside, zf_error *error)
{
    struct stat about;
    if (lstat(aside, &about)) return ZF_OK;
    if (S_ISREG(about.st_mode) && (about.st_mode & ZFI_UNFINISHED || !about.st_size))
        return unlink(aside) ? zfi_io_fail(error, "remove", aside) : ZF_OK;
    return zfi_fail(error, ZF_ERR_IO,
                    "%s is there, and no interrupted run has left it: move it, or name another place",
                    zfi_path_tail(aside));
}

/* Starts a file that will replace `path`, which does not exist or is a regular file, whose mode it
 * gets. On failure there is nothing to abandon. */
static zf_status zfi_new_file_begin(zfi_new_file *new_file, const char *path, zf_error *error)
{
    struct stat about;
    mode_t mode = 0666;
    zf_status status;
    new_file->file = -1;
    status = zfi_path_resolve(path, new_file->path, error);
    if (status) return status;
    if (path[strlen(path) - 1] == '/')
        return zfi_fail(error, ZF_ERR_ARGUMENT, "cannot create %s: it names no file",
                        zfi_path_tail(path));
    if (stat(new_file->path, &about) == 0) {
        if (!S_ISREG(about.st_mode))
            return zfi_fail(error, ZF_ERR_IO, "cannot replace %s: it is not a regular file",
                            zfi_path_tail(new_file->path));
        mode = about.st_mode & 0777;
    }
    snprintf(new_file->aside, sizeof new_file->aside, "%s.zf-new", new_file->path);
    if ((status = zfi_new_file_clear(new_file->aside, error))) return status;
    new_file->file = open(new_file->aside, O_WRONLY | O_CREAT | O_EXCL, mode | ZFI_UNFINISHED);
    if (new_file->file < 0) return zfi_io_fail(error, "create", new_file->aside);
    fcntl(new_file->file, F_SETFD, FD_CLOEXEC);
    return ZF_OK;
}

static zf_status zfi_new_file_write(const zfi_new_file *new_file, uint64_t offset, const void *data,
                                    size_t bytes, zf_error *error)
{
    while (bytes) {
        ssize_t put = zfi_pwrite(new_file->file, data, bytes < ZFI_IO_CHUNK ? bytes : ZFI_IO_CHUNK,
                                 (int64_t)offset);
        if (put < 0 && errno == EINTR) continue;
        if (put == 0) errno = ENOSPC;
        if (put <= 0) return zfi_io_fail(error, "write", new_file->aside);
        data = (const char *)data + put;
        offset += (uint64_t)put;
        bytes -= (size_t)put;
    }
    return ZF_OK;
}

/* Removes what was written; `path` stays unchanged. */
static void zfi_new_file_abandon(zfi_new_file *new_file)
{
    if (new_file->file < 0) return;
    close(new_file->file);
    new_file->file = -1;
    unlink(new_file->aside);
}

/* Whether the temporary file still has its name; not when another process began to write `path`. */
static bool zfi_new_file_is_ours(const zfi_new_file *new_file)
{
    struct stat opened, named;
    return fstat(new_file->file, &opened) == 0 && stat(new_file->aside, &named) == 0 &&
           opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

/* Brings the file to the disk and to its name. On failure it is abandoned. */
static zf_status zfi_new_file_commit(zfi_new_file *new_file, zf_error *error)
{
    struct stat about;
    zf_status status = ZF_OK;
    if (fsync(new_file->file)) {
        status = zfi_io_fail(error, "sync", new_file->aside);
    } else if (!zfi_new_file_is_ours(new_file)) {
        status = zfi_fail(error, ZF_ERR_IO, "cannot replace %s: somebody else is writing it too",
                          zfi_path_tail(new_file->path));
        close(new_file->file);
        new_file->file = -1;
    } else if (rename(new_file->aside, new_file->path)) {
        status = zfi_io_fail(error, "replace", new_file->path);
    }
    if (status) {
        zfi_new_file_abandon(new_file);
        return status;
    }
    if (fstat(new_file->file, &about) == 0) fchmod(new_file->file, about.st_mode & 0777);
    close(new_file->file);
    new_file->file = -1;
    return zfi_parent_sync(new_file->path, error);
}

/* A whole file at once. */
static zf_status zfi_file_save(const char *path, const void *data, size_t bytes, zf_error *error)
{
    zfi_new_file new_file;
    zf_status status = zfi_new_file_begin(&new_file, path, error);
    if (status) return status;
    status = zfi_new_file_write(&new_file, 0, data, bytes, error);
    if (status) zfi_new_file_abandon(&new_file);
    return status ? status : zfi_new_file_commit(&new_file, error);
}

ZF_API zf_status zf_file_replace(const char *path, const void *data, size_t bytes, zf_error *error)
{
    zf_error none = {ZF_OK, ""};
    if (!error) error = &none;
    if (!path || !*path || (bytes && !data))
        return zfi_fail(error, ZF_ERR_ARGUMENT, "zf_file_replace: a path and data are needed");
    return zfi_file_save(path, data, bytes, error);
}

/* --------------------------------------------------------------------------------- directories */

/* PATH/NAME into out; false when it is too long. */
static bool zfi_path_join(char out[ZFI_ASIDE_MAX], const char *path, const char *name)
{
    int length = snprintf(out, ZFI_ASIDE_MAX, "%s/%s", path, name);
    return length > 0 && length < ZFI_ASIDE_MAX;
}

/* The next entry that is neither "." nor "..", or NULL. */
static const char *zfi_directory_next(DIR *directory)
{
    struct dirent *entry;
    while ((entry = readdir(directory)))
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..")) return entry->d_name;
    return NULL;
}

/* Removes a flat directory, the mark last. One that does not exist is no error. */
static zf_status zfi_directory_remove(const char *path, const char *mark, zf_error *error)
{
    char entry[ZFI_ASIDE_MAX];
    const char *name;
    bool removed = true;
    DIR *directory = opendir(path);
    if (!directory) return errno == ENOENT ? ZF_OK : zfi_io_fail(error, "open", path);
    while (removed) { /* readdir may skip an entry while others are removed */
        removed = false;
        rewinddir(directory);
        while ((name = zfi_directory_next(directory)))
            if (strcmp(name, mark) && zfi_path_join(entry, path, name) && unlink(entry) == 0)
                removed = true;
    }
    closedir(directory);
    if (zfi_path_join(entry, path, mark) && !zfi_path_sync(path, NULL)) unlink(entry);
    return rmdir(path) ? zfi_io_fail(error, "remove", path) : ZF_OK;
}

/* ZF_OK when `path` does not exist, is empty, or holds files only, the mark among them. */
static zf_status zfi_directory_check(const char *path, const char *mark, zf_error *error)
{
    char entry[ZFI_ASIDE_MAX], other[64] = "";
    const char *name, *tail = zfi_path_tail(path);
    struct stat about;
    bool marked = false, nested = false;
    DIR *directory = opendir(path);
    if (!directory) {
        if (errno == ENOENT) return ZF_OK;
        if (errno == ENOTDIR)
            return zfi_fail(error, ZF_ERR_IO, "%s exists and is not a directory", tail);
        return zfi_io_fail(error, "open", path);
    }
    while (!nested && (name = zfi_directory_next(directory))) {
        if (!strcmp(name, mark)) {
            marked = true;
            continue;
        }
        snprintf(other, sizeof other, "%.60s", name);
        nested = !zfi_path_join(entry, path, name) ||
                 (stat(entry, &about) == 0 && S_ISDIR(about.st_mode));
    }
    closedir(directory);
    if (nested)
        return zfi_fail(error, ZF_ERR_IO,
                        "%s is not replaced: it holds a directory (%s); name another place", tail,
                        other);
    if (*other && !marked)
        return zfi_fail(error, ZF_ERR_IO,
                        "%s is not replaced: it holds files (%s) but no %s; name another place",
                        tail, other, mark);
    return ZF_OK;
}

/* Renames the directory that an interrupted commit left as PATH.zf-old to PATH. Call it before
 * reading `path`. Another directory of that name stays. */
ZFI_UNUSED static zf_status zfi_directory_recover(const char *path, const char *mark,
                                                  zf_error *error)
{
    char place[ZFI_PATH_MAX], old[ZFI_ASIDE_MAX];
    struct stat about;
    zf_status status = zfi_path_resolve(path, place, error);
    if (status) return status;
    snprintf(old, sizeof old, "%s.zf-old", place);
    if (lstat(old, &about) || !S_ISDIR(about.st_mode) || zfi_directory_check(old, mark, NULL))
        return ZF_OK;
    if (rename(old, place) == 0) return zfi_parent_sync(place, error);
    /* The system refuses when there is nothing to put back, or when PATH is not empty. */
    if (errno == ENOENT || errno == ENOTEMPTY || errno == EEXIST || errno == ENOTDIR) return ZF_OK;
    return zfi_io_fail(error, "restore", place);
}

/* Whether the open directory is the one of that name. */
static bool zfi_directory_is(int directory, const char *name)
{
    struct stat opened, named;
    return fstat(directory, &opened) == 0 && stat(name, &named) == 0 &&
           opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

/* Locks the directory aside until the descriptor is closed, or the process ends. -1 with *error
 * when somebody else has it. Where the file system has no locks, the descriptor is all. */
static int zfi_directory_lock(const char *aside, zf_error *error)
{
    int directory = open(aside, O_RDONLY | O_NONBLOCK);
    bool taken;
    if (directory < 0) {
        zfi_io_fail(error, "open", aside);
        return -1;
    }
    fcntl(directory, F_SETFD, FD_CLOEXEC);
    taken = flock(directory, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK;
    if (!taken && zfi_directory_is(directory, aside)) return directory;
    close(directory);
    zfi_fail(error, ZF_ERR_IO, "cannot write %s: somebody else is writing it too",
             zfi_path_tail(aside));
    return -1;
}

/* Removes what an interrupted run left in PATH.zf-new or PATH.zf-old, unless a process has locked
 * it. */
static zf_status zfi_directory_clear(const char *aside, const char *mark, zf_error *error)
{
    struct stat about;
    zf_status status;
    int lock;
    if (lstat(aside, &about)) return ZF_OK;
    if (!S_ISDIR(about.st_mode))
        return zfi_fail(error, ZF_ERR_IO, "%s exists and is not a directory", zfi_path_tail(aside));
    if ((status = zfi_directory_check(aside, mark, error))) return status;
    if ((lock = zfi_directory_lock(aside, error)) < 0) return ZF_ERR_IO;
    status = zfi_directory_remove(aside, mark, error);
    close(lock);
    return status;
}

static void zfi_directory_abandon(const char *aside, const char *mark)
{
    zfi_directory_remove(aside, mark, NULL);
}

/* Puts an empty mark into an empty directory, until the one that belongs there is written. */
static zf_status zfi_directory_mark(const char *aside, const char *mark, zf_error *error)
{
    char path[ZFI_ASIDE_MAX];
    int file;
    if (!zfi_path_join(path, aside, mark))
        return zfi_fail(error, ZF_ERR_ARGUMENT, "%s: too long a path", zfi_path_tail(aside));
    file = open(path, O_WRONLY | O_CREAT | O_EXCL, 0666);
    if (file < 0) return zfi_io_fail(error, "create", path);
    close(file);
    return zfi_path_sync(aside, error);
}

/* Makes a directory next to `path`, with its name in aside, which holds a preliminary mark: lock
 * it, fill it with files, `mark` among them, then commit or abandon it. */
ZFI_UNUSED static zf_status zfi_directory_begin(const char *path, const char *mark,
                                                char aside[ZFI_ASIDE_MAX], zf_error *error)
{
    char place[ZFI_PATH_MAX];
    zf_status status;
    if ((status = zfi_path_resolve(path, place, error))) return status;
    snprintf(aside, ZFI_ASIDE_MAX, "%s.zf-new", place);
    if ((status = zfi_directory_clear(aside, mark, error))) return status;
    if ((status = zfi_directory_recover(path, mark, error))) return status;
    if ((status = zfi_path_resolve(path, place, error))) return status;
    if ((status = zfi_directory_check(place, mark, error))) return status;
    snprintf(aside, ZFI_ASIDE_MAX, "%s.zf-old", place);
    if ((status = zfi_directory_clear(aside, mark, error))) return status;
    snprintf(aside, ZFI_ASIDE_MAX, "%s.zf-new", place);
    if (mkdir(aside, 0777)) return zfi_io_fail(error, "create", aside);
    if ((status = zfi_directory_mark(aside, mark, error))) zfi_directory_abandon(aside, mark);
    return status;
}

/* Exchanges two names at once; false where the system or the file system cannot. */
static bool zfi_path_exchange(const char *a, const char *b)
{
#if defined(__linux__) && defined(SYS_renameat2)
    enum { HERE = -100, EXCHANGE = 2 }; /* AT_FDCWD, RENAME_EXCHANGE */
    return syscall(SYS_renameat2, HERE, a, HERE, b, EXCHANGE) == 0;
#else
    return (void)a, (void)b, false;
#endif
}

/* Gives `aside` the name `path`. What had that name has the one in `old` then ("": nothing had). */
static zf_status zfi_directory_swap(const char *aside, const char *path, bool exchange,
                                    char old[ZFI_ASIDE_MAX], zf_error *error)
{
    zf_status status;
    *old = '\0';
    if (rename(aside, path) == 0) return ZF_OK; /* there was none, or an empty one */
    if (errno != ENOTEMPTY && errno != EEXIST) return zfi_io_fail(error, "replace", path);
    if (exchange && zfi_path_exchange(aside, path)) {
        snprintf(old, ZFI_ASIDE_MAX, "%s", aside);
        return ZF_OK;
    }
    snprintf(old, ZFI_ASIDE_MAX, "%s.zf-old", path);
    if (rename(path, old)) return zfi_io_fail(error, "replace", path);
    if (rename(aside, path) == 0) return ZF_OK;
    status = zfi_io_fail(error, "replace", path);
    rename(old, path);
    return status;
}

/* Puts `aside` into its place. On failure it is abandoned and the old one stays where it was. */
ZFI_UNUSED static zf_status zfi_directory_commit(const char *aside, const char *mark,
                                                 zf_error *error)
{
    char entry[ZFI_ASIDE_MAX], path[ZFI_PATH_MAX], old[ZFI_ASIDE_MAX];
    const char *name;
    zf_status status = ZF_OK;
    DIR *directory = opendir(aside);
    if (!directory) return zfi_io_fail(error, "open", aside);
    while (!status && (name = zfi_directory_next(directory)))
        if (zfi_path_join(entry, aside, name)) status = zfi_path_sync(entry, error);
    closedir(directory);
    if (!status) status = zfi_path_sync(aside, error);
    snprintf(path, sizeof path, "%.*s", (int)(strlen(aside) - strlen(".zf-new")), aside);
    if (!status) status = zfi_directory_swap(aside, path, true, old, error);
    if (status) {
        zfi_directory_abandon(aside, mark);
        return status;
    }
    status = zfi_parent_sync(path, error);
    /* The old one may go when the new name is on the disk; where it cannot, the next begin tries.
     */
    if (!status && *old) zfi_directory_clear(old, mark, NULL);
    return status;
}
