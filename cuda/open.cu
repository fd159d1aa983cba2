/* Finding a device, and opening and closing a backend. */

/* Checks that device `number` exists and can run the kernels of this file. */
static zf_status zfd_find_device(int32_t number, zf_error *error)
{
    const int least_major = 8;
    int count = 0, driver = 0, major = 0, minor = 0;
    cudaError_t code = cudaGetDeviceCount(&count);
    if (code != cudaSuccess) {
        count = 0; /* a failed call may have set it to anything */
        (void)cudaGetLastError();
    }
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
    if (code != cudaSuccess && code != cudaErrorNoDevice)
        return zfd_cuda_fail(error, ZF_ERR_BACKEND, "zf_cuda_backend: CUDA cannot start: %s",
                             cudaGetErrorString(code));
    if (count < 1)
        return zfd_cuda_fail(error, ZF_ERR_BACKEND,
                             "zf_cuda_backend: CUDA sees no device (CUDA_VISIBLE_DEVICES hides "
                             "some)");
    if (number < 0 || number >= count)
        return zfd_cuda_fail(error, ZF_ERR_BACKEND,
                             "zf_cuda_backend: device is %d; CUDA sees %d, so it must be 0 to %d",
                             (int)number, count, count - 1);
    code = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, number);
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

/* A call among the many of zfd_open. */
#define ZFD_TRY(call)                                                                              \
    do {                                                                                           \
        zf_status status_ = zfd_cuda_failed(error, "zf_cuda_backend: " #call, call);               \
        if (status_) return status_;                                                               \
    } while (0)

/* Sets the device's name, and reads the search results for products on it. */
static zf_status zfd_open_products(zfd_cuda *c, const zf_cuda_desc *desc, zf_error *error)
{
    size_t length = desc->tuning ? strlen(desc->tuning) + 1 : 0;
    cudaDeviceProp properties;
    cublasStatus_t made = cublasLtCreate(&c->device.blas);
    if (made != CUBLAS_STATUS_SUCCESS) {
        c->device.blas = NULL;
        return zfd_cuda_fail(error, ZF_ERR_BACKEND, "zf_cuda_backend: cublasLtCreate: %s",
                             cublasLtGetStatusString(made));
    }
    ZFD_TRY(cudaGetDeviceProperties(&properties, c->device.number));
    snprintf(c->name, sizeof c->name, "%.127s", properties.name);
    c->device.memory = (int64_t)properties.totalGlobalMem;
    if (length) {
        c->tuning = static_cast<char *>(zfd_host_memory(&c->allocator, NULL, 0, length));
        if (!c->tuning) return zfd_cuda_fail(error, ZF_ERR_NOMEM, "out of memory");
        memcpy(c->tuning, desc->tuning, length);
    }
    c->products.tf32 = desc->tf32, c->products.file = c->tuning, c->products.device = c->name;
    if (desc->spare_processors) c->products.target = c->device.processors - desc->spare_processors;
    zfd_products_open(&c->products);
    c->device.products = &c->products;
    return ZF_OK;
}

/* Makes everything that the backend uses. After a failure, zfd_cuda_destroy frees what was made. */
static zf_status zfd_open(zfd_cuda *c, const zf_cuda_desc *desc, zf_error *error)
{
    zfd_device *d = &c->device;
    const zf_run none = {0, 0, 0, 0, 0, 1, 1, 0, false};
    zf_status status = zfd_enter(c, error);
    if (status) return status;
    ZFD_TRY(cudaDeviceGetAttribute(&d->processors, cudaDevAttrMultiProcessorCount, d->number));
    ZFD_TRY(cudaDeviceGetAttribute(&d->shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, d->number));
    ZFD_TRY(zfd_find_wgmma(&d->wgmma));
    if (desc->spare_processors < 0 || desc->spare_processors >= d->processors)
        return zfd_cuda_fail(error, ZF_ERR_ARGUMENT,
                             "zf_cuda_backend: spare_processors is %d; device %d has %d "
                             "multiprocessors, so it must be 0 to %d",
                             (int)desc->spare_processors, d->number, d->processors,
                             d->processors - 1);
    ZFD_TRY(cudaStreamCreateWithFlags(&d->streams[0], cudaStreamNonBlocking));
    ZFD_TRY(cudaStreamCreateWithFlags(&c->copies, cudaStreamNonBlocking));
    for (int q = 0; q < ZFD_STREAMS; q++)
        ZFD_TRY(cudaEventCreateWithFlags(&c->reached[q], cudaEventDisableTiming));
    for (int i = 0; i < ZFD_STAGES; i++) {
        ZFD_TRY(cudaEventCreateWithFlags(&c->stages[i].left, cudaEventDisableTiming));
        ZFD_TRY(cudaHostAlloc(reinterpret_cast<void **>(&c->stages[i].memory), ZFD_STAGE,
                              cudaHostAllocDefault));
    }
    ZFD_TRY(
        cudaHostAlloc(reinterpret_cast<void **>(&c->fault), sizeof *c->fault, cudaHostAllocMapped));
    memset(c->fault, 0, sizeof *c->fault);
    ZFD_TRY(cudaHostGetDevicePointer(reinterpret_cast<void **>(&d->fault), c->fault, 0));
    ZFD_TRY(cudaMalloc(reinterpret_cast<void **>(&d->run), sizeof *d->run));
    /* The first kernel shows whether there is code for this device. */
    if ((status = zfd_tell_run(c, &none, error))) return status;
    ZFD_TRY(cudaStreamSynchronize(d->streams[0]));
    return zfd_open_products(c, desc, error);
}

static void zfd_cuda_destroy(void *self)
{
    zfd_cuda *c = zfd_cuda_of(self);
    zf_allocator allocator = c->allocator;
    zfd_device *d = &c->device;
    const bool lost = c->lost; /* freeing would wait for the device */
    (void)zfd_enter(c, NULL);
    for (int q = 0; q < ZFD_STREAMS; q++) {
        for (int i = 0; i < ZFD_MARKS; i++)
            if (c->lanes[q].done[i]) (void)cudaEventDestroy(c->lanes[q].done[i]);
        if (zfd_stream_of(c, q)) (void)cudaStreamDestroy(zfd_stream_of(c, q));
        if (c->reached[q]) (void)cudaEventDestroy(c->reached[q]);
    }
    for (int i = 0; i < ZFD_STAGES; i++) {
        if (c->stages[i].left) (void)cudaEventDestroy(c->stages[i].left);
        if (c->stages[i].memory && !lost) (void)cudaFreeHost(c->stages[i].memory);
    }
    if (c->fault && !lost) (void)cudaFreeHost(c->fault);
    if (d->run && !lost) (void)cudaFree(d->run);
    if (d->blas && !lost) (void)cublasLtDestroy(d->blas);
    if (c->tuning) (void)zfd_host_memory(&allocator, c->tuning, strlen(c->tuning) + 1, 0);
    (void)zfd_host_memory(&allocator, c, sizeof *c, 0);
}
