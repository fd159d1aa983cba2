/* What a run computes on: --device cpu|cuda. */
#ifndef DEVICE_H
#define DEVICE_H

#include "../../zeroflow.h"

typedef enum device_kind { DEVICE_CPU, DEVICE_CUDA } device_kind;

#define DEVICE_KINDS "cpu|cuda"

typedef struct device_desc {
    int64_t kind;
    int32_t index;      /* which of CUDA's devices */
    const char *tuning; /* of CUDA, as in zf_cuda_desc */
    bool no_graphs;
    int64_t spare; /* of CUDA: zf_cuda_desc.spare_processors */
} device_desc;

/* The backend, of so many threads if it is the CPU's; or NULL with *error, also where the program
 * was built without CUDA. */
zf_backend *device_open(const device_desc *desc, int64_t threads, zf_error *error);

/* Bytes that a plan may take on the device, as far as others leave them; 0: that is not known. */
size_t device_memory(const device_desc *desc);

/* Says on stderr what the backend does in a slow way, if there is anything:
 * zf_program_info.remark. */
void device_print_remark(const char *command, const zf_program *program);

#endif
