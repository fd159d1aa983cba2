/* AMD's driver, and what a device of its must be able to do. */

/* What is to be said of the driver where devices cannot be counted. */
static zf_status zfd_find_driver(cudaError_t code, zf_error *error)
{
    if (code != hipErrorNoDevice && code != hipErrorInsufficientDriver) return ZF_OK;
    return zfd_cuda_fail(error, ZF_ERR_BACKEND,
                         "zf_cuda_backend: HIP sees no AMD device: it needs the driver amdgpu with "
                         "the right to use /dev/kfd (HIP_VISIBLE_DEVICES hides some devices); this "
                         "program was built for ROCm %d.%d",
                         HIP_VERSION_MAJOR, HIP_VERSION_MINOR);
}

/* Checks that the device can run the kernels: blocks have up to 64 KiB of local memory. */
static zf_status zfd_find_architecture(int32_t number, zf_error *error)
{
    const size_t least = 64 << 10;
    hipDeviceProp_t has;
    const hipError_t code = hipGetDeviceProperties(&has, number);
    if (code != hipSuccess) return zfd_cuda_failed(error, "zf_cuda_backend", code);
    if (has.sharedMemPerBlock >= least) return ZF_OK;
    return zfd_cuda_fail(error, ZF_ERR_BACKEND,
                         "zf_cuda_backend: device %d (%.60s) has %zu bytes of local memory for a "
                         "block; it must have %zu",
                         (int)number, has.gcnArchName, has.sharedMemPerBlock, least);
}

/* Which instructions for products kernels use: those that the architecture has. */
static hipError_t zfd_find_cores(int32_t number, zfd_cores *to)
{
    hipDeviceProp_t has;
    const hipError_t code = hipGetDeviceProperties(&has, number);
    if (code == hipSuccess)
        *to = ZFD_USES_CORES ? zfd_cores_of_architecture(has.gcnArchName) : ZFD_NO_CORES;
    return code;
}

/* Checks that the maker's libraries do what is asked for. */
static zf_status zfd_check_settings(const zf_cuda_desc *desc, zf_error *error)
{
    if (desc->tf32)
        return zfd_cuda_fail(error, ZF_ERR_ARGUMENT,
                             "zf_cuda_backend: there is no tf32 on HIP; products of f32 are "
                             "computed in f32");
    if (desc->spare_processors)
        return zfd_cuda_fail(error, ZF_ERR_ARGUMENT,
                             "zf_cuda_backend: spare_processors is %d; on HIP products take all "
                             "processors, so it must be 0",
                             (int)desc->spare_processors);
    return ZF_OK;
}
