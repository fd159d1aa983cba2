/* RCCL's calls are NCCL's with the types of HIP: where there is no rccl.h, a check compiles with
 * nccl.h. The other headers in this folder stand for those that it includes. */
#include <nccl.h>
