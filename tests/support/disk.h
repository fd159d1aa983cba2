/* A disk that forgets what was not synced.
 *
 * The calls by which the library changes files are these (tests/inside/unit.c sees to it). Between
 * disk_record and disk_stop they are noted, while they do what they always do. disk_after then lays
 * out what is on the disk when the machine stops after the first so many of them:
 *
 *     bytes of a file         those that it had when it was last synced
 *     names in a directory    those that it had when it was last synced, or all of them: systems
 *                             write names as they like, so every case must be good
 */
#ifndef DISK_H
#define DISK_H

#include <stdbool.h>
#include <sys/stat.h>
#include <sys/types.h>

/* Which names are on the disk though their directory was not synced. */
typedef enum disk_kept { DISK_NONE, DISK_ALL, DISK_INNER /* in directories of `folder` */ } disk_kept;

/* What is in `folder`, files and directories of files, is on the disk. False when it cannot be
 * read, or is too much. */
bool disk_record(const char *folder);
/* How many calls were noted; what is noted stays until disk_record is called again. */
int disk_stop(void);
/* Fills `folder`, a new one or one that was filled before, with what is left. False when that
 * cannot be done. */
bool disk_after(int calls, disk_kept kept, const char *folder);
/* Whether the call before that can have changed what is left. */
bool disk_differs(int calls);
/* Removes a folder with its files and directories of files. */
void disk_remove(const char *folder);

/* While set, names cannot be exchanged, as on systems without that call. */
extern bool disk_cannot_exchange;

/* While set, is called before a file is opened: what somebody else does meanwhile. */
extern void (*disk_opens)(const char *path);

/* While set, every second read and write is interrupted, and the others move 1000 bytes at most. */
extern bool disk_interrupts;

/* The bytes that have been read, of any file. */
extern _Atomic long disk_bytes_read;

int disk_open(const char *path, int flags, ...);
ssize_t disk_pread(int file, void *data, size_t bytes, off_t offset);
ssize_t disk_pwrite(int file, const void *data, size_t bytes, off_t offset);
int disk_fsync(int file);
int disk_rename(const char *from, const char *to);
int disk_unlink(const char *path);
int disk_mkdir(const char *path, mode_t mode);
int disk_rmdir(const char *path);
long disk_syscall(long number, ...);

#endif
