/* See rccl/rccl.h: the names are those of cuda/hip/names.h. */
