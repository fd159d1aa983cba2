/* The device that a run computes on: --device cpu|cuda|hip. */
#ifndef DEVICE_H
#define DEVICE_H

#include "../../../zeroflow.h"

typedef enum device_kind { DEVICE_CPU, DEVICE_CUDA, DEVICE_HIP } device_kind;

#define DEVICE_KINDS "cpu|cuda|hip"

typedef struct device_desc {
    int64_t kind;
    int32_t index;      /* the number of the device of CUDA or HIP */
    const char *tuning; /* of these, as in zf_cuda_desc */
    bool no_graphs;
    int64_t spare; /* of these: zf_cuda_desc.spare_processors */
} device_desc;

/* The backend; `threads` is for the CPU's. NULL with *error, also if the program was built without
 * CUDA or HIP. */
zf_backend *device_open(const device_desc *desc, int64_t threads, zf_error *error);

/* Free bytes of the device for a plan; 0: not known. */
size_t device_memory(const device_desc *desc);

/* Bytes of the machine's memory; 0: not known. */
size_t device_host_memory(void);

/* Prints zf_program_info.remark, if there is one, to stderr: what the backend does slowly. */
void device_print_remark(const char *command, const zf_program *program);

#endif
