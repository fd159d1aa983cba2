#if defined(__linux__)
#define _GNU_SOURCE
#else
#define _DARWIN_C_SOURCE
#endif
#include "disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif

bool disk_cannot_exchange;
void (*disk_opens)(const char *path);

/* -------------------------------------------------------------------------------- what is noted */

typedef enum call_kind { OPEN, CREATE, WRITE, SYNC, RENAME, EXCHANGE, REMOVE, MAKE } call_kind;

enum { PATH = 400, CALLS = 4096, FILES = 1024 };

typedef struct call {
    call_kind kind;
    char path[PATH], other[PATH]; /* relative to the folder */
    int file;                     /* descriptor */
    size_t offset, bytes;
    char *data;
} call;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static bool recording;
static char recorded[PATH]; /* the folder */
static call calls[CALLS];
static int call_count;

/* Notes a call; paths are NULL or those that were given. */
static void note(call_kind kind, const char *path, const char *other, int file, const void *data,
                 size_t bytes, off_t offset)
{
    size_t length = strlen(recorded);
    pthread_mutex_lock(&mutex);
    if (recording && (!path || !strncmp(path, recorded, length))) {
        call *c = &calls[call_count++];
        if (call_count == CALLS) abort();
        *c = (call){.kind = kind, .file = file, .offset = (size_t)offset, .bytes = bytes};
        if (path) snprintf(c->path, PATH, "%s", path + length + (path[length] == '/'));
        if (other) snprintf(c->other, PATH, "%s", other + length + (other[length] == '/'));
        if (data && (c->data = malloc(bytes + 1))) memcpy(c->data, data, bytes);
    }
    pthread_mutex_unlock(&mutex);
}

int disk_open(const char *path, int flags, ...)
{
    mode_t mode = 0;
    int file;
    if (flags & O_CREAT) {
        va_list rest;
        va_start(rest, flags);
        mode = (mode_t)va_arg(rest, int);
        va_end(rest);
    }
    if (disk_opens) disk_opens(path);
    file = open(path, flags, mode);
    if (file >= 0) note(flags & O_CREAT ? CREATE : OPEN, path, NULL, file, NULL, 0, 0);
    return file;
}

_Atomic long disk_bytes_read;
bool disk_interrupts;

/* How much of so many bytes a call moves; 0: it is interrupted. */
static size_t moved(size_t bytes)
{
    static _Atomic unsigned turn;
    if (!disk_interrupts) return bytes;
    if (turn++ % 2 == 0) return errno = EINTR, 0;
    return bytes < 1000 ? bytes : 1000;
}

ssize_t disk_pread(int file, void *data, size_t bytes, off_t offset)
{
    if (bytes && !(bytes = moved(bytes))) return -1;
    disk_bytes_read += (long)bytes;
    return pread(file, data, bytes, offset);
}

ssize_t disk_pwrite(int file, const void *data, size_t bytes, off_t offset)
{
    ssize_t put;
    if (bytes && !(bytes = moved(bytes))) return -1;
    put = pwrite(file, data, bytes, offset);
    if (put > 0) note(WRITE, NULL, NULL, file, data, (size_t)put, offset);
    return put;
}

int disk_fsync(int file)
{
    int result = fsync(file);
    if (!result) note(SYNC, NULL, NULL, file, NULL, 0, 0);
    return result;
}

int disk_rename(const char *from, const char *to)
{
    int result = rename(from, to);
    if (!result) note(RENAME, from, to, 0, NULL, 0, 0);
    return result;
}

int disk_unlink(const char *path)
{
    int result = unlink(path);
    if (!result) note(REMOVE, path, NULL, 0, NULL, 0, 0);
    return result;
}

int disk_mkdir(const char *path, mode_t mode)
{
    int result = mkdir(path, mode);
    if (!result) note(MAKE, path, NULL, 0, NULL, 0, 0);
    return result;
}

int disk_rmdir(const char *path)
{
    int result = rmdir(path);
    if (!result) note(REMOVE, path, NULL, 0, NULL, 0, 0);
    return result;
}

/* Exchanges two names. All else that the library asks of the system in this way has six arguments
 * (zfi_syscall), and changes nothing that is noted. */
long disk_syscall(long number, ...)
{
    long result = -1;
    va_list rest;
    errno = ENOSYS;
#if defined(__linux__) && defined(SYS_renameat2)
    if (number == SYS_renameat2 && !disk_cannot_exchange) {
        const char *from, *to;
        int here, there;
        va_start(rest, number);
        here = va_arg(rest, int), from = va_arg(rest, const char *);
        there = va_arg(rest, int), to = va_arg(rest, const char *);
        result = syscall(number, here, from, there, to, va_arg(rest, int));
        va_end(rest);
        if (!result) note(EXCHANGE, from, to, 0, NULL, 0, 0);
    }
    if (number != SYS_renameat2) {
        long a[6];
        va_start(rest, number);
        for (int k = 0; k < 6; k++) a[k] = va_arg(rest, long);
        va_end(rest);
        result = syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    }
#else
    (void)number, (void)rest;
#endif
    return result;
}

/* ------------------------------------------------------------------------- what is on the disk */

enum { NODES = 512, NAMES = 32, NAME = 80 };

typedef struct contents {
    char *data;
    size_t bytes;
    struct {
        char name[NAME];
        int node;
    } names[NAMES]; /* of a directory; node 0: a free place */
} contents;

typedef struct node {
    bool directory;
    contents seen, synced; /* what programs see, and what is on the disk */
} node;

static node nodes[NODES], first[NODES]; /* 1: the folder; first: as it was when recording began */
static int node_count, first_count;
static int opened[FILES]; /* by descriptor */

static void copy_contents(contents *to, const contents *from)
{
    free(to->data);
    *to = *from;
    to->data = from->data ? malloc(from->bytes + 1) : NULL;
    if (to->data) memcpy(to->data, from->data, from->bytes);
}

static int new_node(bool directory)
{
    if (++node_count == NODES) abort();
    free(nodes[node_count].seen.data), free(nodes[node_count].synced.data);
    nodes[node_count] = (node){.directory = directory};
    return node_count;
}

/* The place of a name in a directory; of none: a free one, or NULL without `make`. */
static int *entry(contents *directory, const char *name, bool make)
{
    for (int k = 0; k < NAMES; k++)
        if (directory->names[k].node && !strcmp(directory->names[k].name, name))
            return &directory->names[k].node;
    for (int k = 0; make && k < NAMES; k++)
        if (!directory->names[k].node) {
            snprintf(directory->names[k].name, NAME, "%s", name);
            return &directory->names[k].node;
        }
    if (make) abort();
    return NULL;
}

/* The place where programs see the path's last name; NULL when there is none. */
static int *place(const char *path, bool make)
{
    const char *slash = strchr(path, '/');
    char name[NAME];
    int *at;
    if (!slash) return entry(&nodes[1].seen, path, make);
    snprintf(name, sizeof name, "%.*s", (int)(slash - path), path);
    at = entry(&nodes[1].seen, name, false);
    return at ? entry(&nodes[*at].seen, slash + 1, make) : NULL;
}

static void write_to(contents *c, size_t offset, const char *data, size_t bytes)
{
    if (offset + bytes > c->bytes) {
        c->data = realloc(c->data, offset + bytes + 1);
        if (!c->data) abort();
        memset(c->data + c->bytes, 0, offset + bytes - c->bytes);
        c->bytes = offset + bytes;
    }
    memcpy(c->data + offset, data, bytes);
}

static void perform(const call *c)
{
    int *at, *to, moved;
    switch (c->kind) {
    case OPEN:
    case CREATE:
        at = *c->path ? place(c->path, c->kind == CREATE) : NULL;
        if (at && !*at) *at = new_node(false);
        opened[c->file % FILES] = at ? *at : *c->path ? 0 : 1;
        break;
    case WRITE:
        if (opened[c->file % FILES])
            write_to(&nodes[opened[c->file % FILES]].seen, c->offset, c->data, c->bytes);
        break;
    case SYNC: {
        node *n = &nodes[opened[c->file % FILES]];
        copy_contents(&n->synced, &n->seen);
        break;
    }
    case RENAME:
    case EXCHANGE:
        at = place(c->path, false), to = place(c->other, true);
        if (!at) abort();
        moved = *to, *to = *at, *at = c->kind == EXCHANGE ? moved : 0;
        break;
    case REMOVE:
        at = place(c->path, false);
        if (at) *at = 0;
        break;
    case MAKE: *place(c->path, true) = new_node(true); break;
    }
}

/* ----------------------------------------------------------------------------- real directories */

static void join(char out[PATH], const char *folder, const char *name)
{
    snprintf(out, PATH, "%.*s/%.*s", PATH - NAME - 2, folder, NAME, name);
}

/* Reads a directory into node `n`. */
static bool read_directory(const char *path, int n)
{
    char inner[PATH];
    struct dirent *found;
    bool good = true;
    DIR *directory = opendir(path);
    while (directory && good && (found = readdir(directory))) {
        struct stat about;
        int made;
        if (!strcmp(found->d_name, ".") || !strcmp(found->d_name, "..")) continue;
        join(inner, path, found->d_name);
        good = stat(inner, &about) == 0 && strlen(found->d_name) < NAME;
        made = new_node(good && S_ISDIR(about.st_mode));
        *entry(&nodes[n].seen, found->d_name, true) = made;
        if (nodes[made].directory) {
            good = good && read_directory(inner, made);
        } else if (good) {
            FILE *file = fopen(inner, "rb");
            contents *c = &nodes[made].seen;
            c->bytes = (size_t)about.st_size;
            c->data = malloc(c->bytes + 1);
            good = file && c->data && fread(c->data, 1, c->bytes, file) == c->bytes;
            if (file) fclose(file);
        }
    }
    if (directory) closedir(directory);
    copy_contents(&nodes[n].synced, &nodes[n].seen);
    for (int k = 0; k < NAMES; k++) {
        int inside = nodes[n].seen.names[k].node;
        if (inside) copy_contents(&nodes[inside].synced, &nodes[inside].seen);
    }
    return directory && good;
}

static void copy_nodes(node *to, int *to_count, const node *from, int count)
{
    for (int n = 1; n <= count; n++) {
        to[n].directory = from[n].directory;
        copy_contents(&to[n].seen, &from[n].seen);
        copy_contents(&to[n].synced, &from[n].synced);
    }
    *to_count = count;
}

bool disk_record(const char *folder)
{
    for (int k = 0; k < call_count; k++) free(calls[k].data);
    call_count = node_count = 0;
    snprintf(recorded, PATH, "%s", folder);
    if (!read_directory(folder, new_node(true))) return false;
    copy_nodes(first, &first_count, nodes, node_count);
    recording = true;
    return true;
}

int disk_stop(void)
{
    recording = false;
    return call_count;
}

bool disk_differs(int count)
{
    return !count || (calls[count - 1].kind != WRITE && calls[count - 1].kind != OPEN);
}

static bool lay_out(const char *path, int n, disk_kept kept)
{
    const contents *c = &nodes[n].synced;
    char inner[PATH];
    bool good = true;
    if (!nodes[n].directory) {
        FILE *file = fopen(path, "wb");
        good = file && fwrite(c->data ? c->data : "", 1, c->bytes, file) == c->bytes;
        return file && fclose(file) == 0 && good;
    }
    if (kept == DISK_ALL || (kept == DISK_INNER && n != 1)) c = &nodes[n].seen;
    if (mkdir(path, 0700)) return false;
    for (int k = 0; k < NAMES && good; k++) {
        if (!c->names[k].node) continue;
        join(inner, path, c->names[k].name);
        good = lay_out(inner, c->names[k].node, kept);
    }
    return good;
}

bool disk_after(int count, disk_kept kept, const char *folder)
{
    copy_nodes(nodes, &node_count, first, first_count);
    memset(opened, 0, sizeof opened);
    for (int k = 0; k < count; k++) perform(&calls[k]);
    disk_remove(folder);
    return lay_out(folder, 1, kept);
}

void disk_remove(const char *folder)
{
    char inner[PATH];
    struct dirent *found;
    DIR *directory = opendir(folder);
    if (!directory) return;
    while ((found = readdir(directory))) {
        if (!strcmp(found->d_name, ".") || !strcmp(found->d_name, "..")) continue;
        join(inner, folder, found->d_name);
        if (unlink(inner)) disk_remove(inner);
    }
    closedir(directory);
    rmdir(folder);
}
