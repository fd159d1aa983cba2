/* Finding a device, and opening and closing a backend. */

/* Checks that device `number` exists and can run the kernels of this file. */
static zf_status zfd_find_device(int32_t number, zf_error *error)
{
    int count = 0;
    zf_status status;
    cudaError_t code = cudaGetDeviceCount(&count);
    if (code != cudaSuccess) {
        count = 0; /* a failed call may have set it to anything */
        (void)cudaGetLastError();
    }
    status = zfd_find_driver(code, error);
    if (status) return status;
    if (code != cudaSuccess && code != cudaErrorNoDevice)
        return zfd_cuda_fail(error, ZF_ERR_BACKEND, "zf_cuda_backend: " ZFD_GPU " cannot start: %s",
                             cudaGetErrorString(code));
    if (count < 1)
        return zfd_cuda_fail(error, ZF_ERR_BACKEND,
                             "zf_cuda_backend: " ZFD_GPU " sees no device (" ZFD_GPU
                             "_VISIBLE_DEVICES hides some)");
    if (number < 0 || number >= count)
        return zfd_cuda_fail(error, ZF_ERR_BACKEND,
                             "zf_cuda_backend: device is %d; " ZFD_GPU
                             " sees %d, so it must be 0 to %d",
                             (int)number, count, count - 1);
    return zfd_find_architecture(number, error);
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
    const zf_status status = zfd_blas.open(&c->device, error);
    if (status) return status;
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
    c->products.version = zfd_blas.version(&c->device);
    snprintf(c->products.remark, sizeof c->products.remark, "%s", zfd_blas.remark(&c->device));
    zfd_products_open(&c->products);
    c->device.products = &c->products;
    return ZF_OK;
}

/* Makes everything that the backend uses. After a failure, zfd_cuda_destroy frees what was made. */
static zf_status zfd_open(zfd_cuda *c, const zf_cuda_desc *desc, zf_error *error)
{
    zfd_device *d = &c->device;
    const zf_run none = {0, 0, 0, 0, 0, 1, 1, 0, false, NULL, 1};
    zf_status status = zfd_enter(c, error);
    if (status) return status;
    ZFD_TRY(cudaDeviceGetAttribute(&d->processors, cudaDevAttrMultiProcessorCount, d->number));
    ZFD_TRY(cudaDeviceGetAttribute(&d->shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, d->number));
    ZFD_TRY(zfd_find_cores(d->number, &d->cores));
#if ZFD_HAS_MMA
    ZFD_TRY(zfd_find_wgmma(&d->wgmma));
#endif
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
    if (d->blas && !lost) zfd_blas.close(d);
    if (c->tuning) (void)zfd_host_memory(&allocator, c->tuning, strlen(c->tuning) + 1, 0);
    (void)zfd_host_memory(&allocator, c, sizeof *c, 0);
}
