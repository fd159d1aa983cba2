#define _POSIX_C_SOURCE 200809L
#include "device.h"

#include <unistd.h>

#ifdef WITH_HIP
#include "../../../cuda/hip/names.h"
#elif defined WITH_CUDA
#include <cuda_runtime_api.h>
#endif

/* Which kind of GPU this program was built for. */
#ifdef WITH_HIP
static const device_kind built_for = DEVICE_HIP;
#elif defined WITH_CUDA
static const device_kind built_for = DEVICE_CUDA;
#else
static const device_kind built_for = DEVICE_CPU;
#endif

enum { SPARE = 1 << 30 }; /* bytes left for what is not in the plan: graphs, libraries */

size_t device_memory(const device_desc *d)
{
#ifdef WITH_CUDA
    size_t left = 0, all = 0;
    if (d->kind == built_for && !cudaSetDevice(d->index) && !cudaMemGetInfo(&left, &all))
        return left > SPARE ? left - SPARE : 1;
#endif
    (void)d;
    return 0;
}

size_t device_host_memory(void)
{
#ifdef _SC_PHYS_PAGES
    const long pages = sysconf(_SC_PHYS_PAGES), bytes = sysconf(_SC_PAGESIZE);
    if (pages > 0 && bytes > 0) return (size_t)pages * (size_t)bytes;
#endif
    return 0;
}

void device_print_remark(const char *command, const zf_program *program)
{
    const char *remark = zf_program_info_of(program).remark;
    if (*remark) fprintf(stderr, "%s: %s\n", command, remark);
}

zf_backend *device_open(const device_desc *d, int64_t threads, zf_error *error)
{
    if (d->kind == DEVICE_CPU)
        return zf_cpu_backend(&(zf_cpu_desc){.threads = (int32_t)threads}, error);
    if (d->kind != built_for) {
        static const char *const names[] = {"", "CUDA", "HIP"};
        static const char *const folders[] = {"", "cuda", "hip"};
        error->status = ZF_ERR_BACKEND;
        snprintf(error->text, sizeof error->text,
                 "this program was built without %s; make %s=1 builds those with it, in build/%s",
                 names[d->kind], names[d->kind], folders[d->kind]);
        return NULL;
    }
#ifdef WITH_CUDA
    return zf_cuda_backend(&(zf_cuda_desc){.device = d->index,
                                           .tuning = d->tuning,
                                           .no_graphs = d->no_graphs,
                                           .spare_processors = (int32_t)d->spare},
                           error);
#else
    return NULL;
#endif
}
