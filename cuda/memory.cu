/* Memory of a device, host memory that it copies from and to by itself, and copies of other host
 * memory.
 *
 *     host memory  ->  a stage (pinned)  ->  the arena     on a stream of its own, after queue 0
 *     the arena    ->  a stage (pinned)  ->  host memory   on queue 0
 *
 * A copy to the device returns when the last piece of the source is in a stage. Later work on queue
 * 0 waits for the copy; the host does not. Stages are used in turn; each is waited for before it is
 * filled again. */

static void *zfi_cuda_allocate(void *self, size_t bytes, zf_error *error)
{
    zfi_cuda *c = zfi_cuda_of(self);
    void *memory = NULL;
    size_t left = 0, all = 0;
    if (zfi_enter(c, error)) return NULL;
    if (cudaMalloc(&memory, bytes) == cudaSuccess) return memory;
    (void)cudaGetLastError();
    if (cudaMemGetInfo(&left, &all) != cudaSuccess) left = all = 0;
    zfi_cuda_fail(error, ZF_ERR_NOMEM,
                  "out of memory: the arena takes %zu bytes; device %d has %zu left of %zu", bytes,
                  c->device.number, left, all);
    return NULL;
}

static void zfi_cuda_release(void *self, void *memory, size_t bytes)
{
    zfi_cuda *c = zfi_cuda_of(self);
    (void)bytes;
    (void)zfi_enter(c, NULL);
    if (!c->lost) (void)cudaFree(memory); /* cudaFree waits for the device */
}

enum { ZFI_PAGE = 4096 };

/* Whole pages from the allocator, which are then pinned. In front of them is the address of what
 * was allocated. Pages of 2 MiB, which are asked for, make updates in host memory faster. */
static void *zfi_cuda_allocate_host(void *self, size_t bytes, zf_error *error)
{
    zfi_cuda *c = zfi_cuda_of(self);
    const size_t pages = (bytes + ZFI_PAGE - 1) / ZFI_PAGE * ZFI_PAGE;
    const size_t all = pages + ZFI_PAGE + sizeof(char *);
    char *block, *memory;
    cudaError_t code;
    if (zfi_enter(c, error)) return NULL;
    block = pages < bytes || all < pages
                ? NULL
                : static_cast<char *>(zfi_host_memory(&c->allocator, NULL, 0, all));
    if (!block) {
        zfi_cuda_fail(error, ZF_ERR_NOMEM, "out of memory: %zu bytes of host memory", bytes);
        return NULL;
    }
    memory = block + sizeof block;
    memory += (ZFI_PAGE - (uintptr_t)memory % ZFI_PAGE) % ZFI_PAGE;
    memcpy(memory - sizeof block, &block, sizeof block);
#if defined(__linux__)
    (void)madvise(memory, pages, MADV_HUGEPAGE);
#endif
    code = cudaHostRegister(memory, pages, cudaHostRegisterPortable);
    if (code == cudaSuccess) return memory;
    (void)cudaGetLastError();
    zfi_cuda_fail(error, code == cudaErrorMemoryAllocation ? ZF_ERR_NOMEM : ZF_ERR_BACKEND,
                  "%zu bytes of host memory cannot be pinned (cudaHostRegister): %s", bytes,
                  cudaGetErrorString(code));
    (void)zfi_host_memory(&c->allocator, block, all, 0);
    return NULL;
}

static void zfi_cuda_release_host(void *self, void *memory, size_t bytes)
{
    zfi_cuda *c = zfi_cuda_of(self);
    const size_t pages = (bytes + ZFI_PAGE - 1) / ZFI_PAGE * ZFI_PAGE;
    char *block;
    if (!memory) return;
    (void)zfi_enter(c, NULL);
    if (c->lost) return; /* the device may still copy from and to it */
    (void)cudaHostUnregister(memory);
    memcpy(&block, static_cast<char *>(memory) - sizeof block, sizeof block);
    (void)zfi_host_memory(&c->allocator, block, pages + ZFI_PAGE + sizeof block, 0);
}

static cudaStream_t zfi_stream_of(const zfi_cuda *c, int stream)
{
    if (stream == ZFI_HOSTED) return c->hosted;
    return stream == ZFI_COPIES ? c->copies : c->device.streams[stream];
}

/* Records c->reached[stream] at the current end of the stream. */
static zf_status zfi_mark(zfi_cuda *c, int stream, zf_error *error)
{
    return zfi_cuda_failed(error, "cudaEventRecord",
                           cudaEventRecord(c->reached[stream], zfi_stream_of(c, stream)));
}

/* Makes stream `later` wait for what stream `earlier` has been given so far. */
static zf_status zfi_follow(zfi_cuda *c, int later, int earlier, zf_error *error)
{
    zf_status status = zfi_mark(c, earlier, error);
    if (status) return status;
    return zfi_cuda_failed(error, "cudaStreamWaitEvent",
                           cudaStreamWaitEvent(zfi_stream_of(c, later), c->reached[earlier], 0));
}

/* Starts copying a piece of at most ZFI_STAGE bytes from or to the stage, on `stream`. */
static zf_status zfi_start_piece(zfi_stage *s, void *to, const void *from, size_t bytes,
                                 cudaMemcpyKind kind, cudaStream_t stream, zf_error *error)
{
    zf_status status =
        zfi_cuda_failed(error, "cudaMemcpyAsync", cudaMemcpyAsync(to, from, bytes, kind, stream));
    if (status) return status;
    return zfi_cuda_failed(error, "cudaEventRecord", cudaEventRecord(s->left, stream));
}

static zf_status zfi_copy_in(zfi_cuda *c, char *to, const char *from, size_t bytes, zf_error *error)
{
    zf_status status = zfi_follow(c, ZFI_COPIES, 0, error);
    for (size_t at = 0; at < bytes && !status; at += ZFI_STAGE) {
        zfi_stage *s = &c->stages[c->staged++ % ZFI_STAGES];
        size_t n = bytes - at < ZFI_STAGE ? bytes - at : (size_t)ZFI_STAGE;
        if ((status = zfi_until(c, s->left, error))) break;
        memcpy(s->memory, from + at, n);
        status =
            zfi_start_piece(s, to + at, s->memory, n, cudaMemcpyHostToDevice, c->copies, error);
    }
    return status ? status : zfi_follow(c, 0, ZFI_COPIES, error);
}

/* As many pieces as there are stages are in flight, while the piece before them is copied out. */
static zf_status zfi_copy_out(zfi_cuda *c, char *to, const char *from, size_t bytes,
                              zf_error *error)
{
    const size_t ahead = (ZFI_STAGES - 1) * (size_t)ZFI_STAGE;
    const int64_t first = c->staged;
    zf_status status = ZF_OK;
    for (size_t at = 0; at < bytes + ahead && !status; at += ZFI_STAGE) {
        if (at < bytes) {
            zfi_stage *s = &c->stages[c->staged++ % ZFI_STAGES];
            size_t n = bytes - at < ZFI_STAGE ? bytes - at : (size_t)ZFI_STAGE;
            if ((status = zfi_until(c, s->left, error))) break;
            status = zfi_start_piece(s, s->memory, from + at, n, cudaMemcpyDeviceToHost,
                                     c->device.streams[0], error);
        }
        if (!status && at >= ahead) {
            size_t out = at - ahead, n = bytes - out < ZFI_STAGE ? bytes - out : (size_t)ZFI_STAGE;
            zfi_stage *s = &c->stages[(first + (int64_t)(out / ZFI_STAGE)) % ZFI_STAGES];
            if (!(status = zfi_until(c, s->left, error))) memcpy(to + out, s->memory, n);
        }
    }
    return status;
}

static zf_status zfi_cuda_copy(void *self, void *to, const void *from, size_t bytes, zf_copy kind,
                               zf_error *error)
{
    zfi_cuda *c = zfi_cuda_of(self);
    zf_status status = bytes ? zfi_enter(c, error) : ZF_OK;
    if (!bytes || status) return status;
    if (kind == ZF_HOST_TO_DEVICE)
        return zfi_copy_in(c, static_cast<char *>(to), static_cast<const char *>(from), bytes,
                           error);
    if (kind == ZF_DEVICE_TO_HOST)
        return zfi_copy_out(c, static_cast<char *>(to), static_cast<const char *>(from), bytes,
                            error);
    return zfi_cuda_failed(
        error, "cudaMemcpyAsync",
        cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, c->device.streams[0]));
}
