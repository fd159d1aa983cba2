/* Tests of private functions: one translation unit with the implementation. */
#define ZEROFLOW_IMPLEMENTATION
#include "test.h"

#include "inside/threads.c"
#include "inside/matmul.c"
#include "inside/files.c"
#include "inside/vmath.c"
#include "inside/random.c"
#include "inside/fuse_update.c"
#include "inside/verify.c"
