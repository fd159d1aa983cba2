/* Tests of private functions: one translation unit with the implementation. Its calls that change
 * files are those of disk.h, so that a test can see what a disk would hold. Its default allocator
 * and messages go through main.c, as those of the samples do. */
#define open    disk_open
#define pread   disk_pread
#define pwrite  disk_pwrite
#define fsync   disk_fsync
#define rename  disk_rename
#define unlink  disk_unlink
#define mkdir   disk_mkdir
#define rmdir   disk_rmdir
#define syscall disk_syscall

#define realloc   test_realloc
#define snprintf  test_snprintf
#define vsnprintf test_vsnprintf

/* How often a length of an array has been asked for on this thread. */
static _Thread_local long visits;
static void visit_one(void) { visits++; }
#define zfi_len(array) (visit_one(), (int32_t)stbds_arrlen(array))
#define zfi_down(i)    (visit_one(), (i)-- > 0)

#define ZEROFLOW_IMPLEMENTATION
#include "../support/test.h"

#include "../support/disk.h"

#include "writer.c"
#include "threads.c"
#include "matmul.c"
#include "files.c"
#include "disk.c"
#include "copy.c"
#include "vmath.c"
#include "quantized.c"
#include "random.c"
#include "fuse_update.c"
#include "verify.c"
#include "complete.c"
#include "settle.c"
#include "records.c"
#include "rows.c"
#include "tasks.c"
#include "visits.c"
#include "fetched.c"
#include "slow.c"
#include "zigzag.c"
