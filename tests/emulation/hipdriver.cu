/* What cuda/hip/driver.cu says of AMD's driver, of a device that is too small, and of settings. */
#include "planted.h"
#include "zeroflow.h"

#include <stdarg.h>

#include "cuda/gpu.cu"
#include "cuda/launch.cu"
#include "cuda/element.cu"
#include "cuda/cores/waves.cu"

/* What it uses of HIP. */
typedef cudaError_t hipError_t;
typedef struct hipDeviceProp_t {
    char gcnArchName[64];
    size_t sharedMemPerBlock;
} hipDeviceProp_t;
enum { HIP_VERSION_MAJOR = 6, HIP_VERSION_MINOR = 2 };
static const hipError_t hipSuccess = cudaSuccess, hipErrorNoDevice = cudaErrorNoDevice,
                        hipErrorInsufficientDriver = cudaErrorInsufficientDriver;

static size_t local_bytes;

static hipError_t hipGetDeviceProperties(hipDeviceProp_t *to, int)
{
    *to = {"gfx906", local_bytes};
    return cudaSuccess;
}

#define ZFD_USES_CORES true
#include "cuda/hip/driver.cu"

extern "C" const char *planted_hip_driver(void)
{
    zf_cuda_desc desc[2] = {};
    zf_error error[5] = {};
    zfd_cores cores = ZFD_CORES;
    desc[0].tf32 = true, desc[1].spare_processors = 3;
    if (zfd_find_driver(cudaErrorInvalidValue, &error[0]))
        return "another error is none of the driver";
    (void)zfd_find_driver(hipErrorNoDevice, &error[0]);
    if (strcmp(
            error[0].text,
            "zf_cuda_backend: HIP sees no AMD device: it needs the driver amdgpu with the right to "
            "use /dev/kfd (HIP_VISIBLE_DEVICES hides some devices); this program was built for "
            "ROCm 6.2"))
        return "a machine without a device";
    local_bytes = 32 << 10;
    (void)zfd_find_architecture(1, &error[1]);
    if (strcmp(error[1].text,
               "zf_cuda_backend: device 1 (gfx906) has 32768 bytes of local memory for a "
               "block; it must have 65536"))
        return "a device with little local memory";
    local_bytes = 64 << 10;
    if (zfd_find_architecture(1, &error[2]) || zfd_find_cores(1, &cores) || cores != ZFD_NO_CORES)
        return "a device that can run kernels";
    (void)zfd_check_settings(&desc[0], &error[3]);
    if (strcmp(error[3].text,
               "zf_cuda_backend: there is no tf32 on HIP; products of f32 are computed in "
               "f32"))
        return "tf32";
    (void)zfd_check_settings(&desc[1], &error[4]);
    if (strcmp(error[4].text, "zf_cuda_backend: spare_processors is 3; on HIP products take all "
                              "processors, so it must be 0"))
        return "spare processors";
    return "";
}
