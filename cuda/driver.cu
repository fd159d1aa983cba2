/* NVIDIA's driver, and what a device of its must be able to do. */

/* What is to be said of the driver where devices cannot be counted. */
static zf_status zfd_find_driver(cudaError_t code, zf_error *error)
{
    int driver = 0;
    if (code == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver) == cudaSuccess &&
        driver)
        return zfd_cuda_fail(
            error, ZF_ERR_BACKEND,
            "zf_cuda_backend: the NVIDIA driver of this machine is for CUDA %d.%d; "
            "this program needs one for %d.%d or newer",
            driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    if (code == cudaErrorInsufficientDriver)
        return zfd_cuda_fail(error, ZF_ERR_BACKEND,
                             "zf_cuda_backend: this machine has no NVIDIA driver; this program "
                             "needs one for CUDA %d.%d or newer",
                             CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    if (code == cudaErrorStubLibrary)
        return zfd_cuda_fail(error, ZF_ERR_BACKEND,
                             "zf_cuda_backend: libcuda.so.1 is the toolkit's stub; the NVIDIA "
                             "driver's own must be found first");
    return ZF_OK;
}

/* Checks that the device can run the kernels. */
static zf_status zfd_find_architecture(int32_t number, zf_error *error)
{
    const int least_major = 8;
    int major = 0, minor = 0;
    cudaError_t code = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, number);
    if (code == cudaSuccess)
        code = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, number);
    if (code != cudaSuccess) return zfd_cuda_failed(error, "zf_cuda_backend", code);
    if (major < least_major)
        return zfd_cuda_fail(error, ZF_ERR_BACKEND,
                             "zf_cuda_backend: device %d is of compute capability %d.%d; it must "
                             "be %d.0 or newer",
                             (int)number, major, minor, least_major);
    return ZF_OK;
}

static cudaError_t zfd_find_cores(int32_t, zfd_cores *to)
{
    *to = ZFD_CORES;
    return cudaSuccess;
}

/* Checks that the maker's libraries do what is asked for. */
static zf_status zfd_check_settings(const zf_cuda_desc *, zf_error *) { return ZF_OK; }
