/* Memory of a device, host memory that it copies from and to by itself, and copies of other host
 * memory.
 *
 *     host memory  ->  a stage (pinned)  ->  the arena     on a stream of its own, after queue 0
 *     the arena    ->  a stage (pinned)  ->  host memory   on queue 0
 *
 * A copy to the device returns when the last piece of the source is in a stage. Later work on queue
 * 0 waits for the copy; the host does not. Stages are used in turn; each is waited for before it is
 * filled again. */

static void *zfd_cuda_allocate(void *self, size_t bytes, zf_error *error)
{
    zfd_cuda *c = zfd_cuda_of(self);
    void *memory = NULL;
    size_t left = 0, all = 0;
    if (zfd_enter(c, error)) return NULL;
    if (cudaMalloc(&memory, bytes) == cudaSuccess) return memory;
    (void)cudaGetLastError();
    if (cudaMemGetInfo(&left, &all) != cudaSuccess) left = all = 0;
    zfd_cuda_fail(error, ZF_ERR_NOMEM,
                  "out of memory: the arena takes %zu bytes; device %d has %zu left of %zu", bytes,
                  c->device.number, left, all);
    return NULL;
}

static void zfd_cuda_release(void *self, void *memory, size_t bytes)
{
    zfd_cuda *c = zfd_cuda_of(self);
    (void)bytes;
    (void)zfd_enter(c, NULL);
    if (!c->lost) (void)cudaFree(memory); /* cudaFree waits for the device */
}

enum { ZFD_PAGE = 4096 };

/* Whole pages from the allocator, which are then pinned. In front of them is the address of what
 * was allocated. Pages of 2 MiB, which are asked for, make updates in host memory faster. */
static void *zfd_cuda_allocate_host(void *self, size_t bytes, zf_error *error)
{
    zfd_cuda *c = zfd_cuda_of(self);
    const size_t pages = (bytes + ZFD_PAGE - 1) / ZFD_PAGE * ZFD_PAGE;
    const size_t all = pages + ZFD_PAGE + sizeof(char *);
    char *block, *memory;
    cudaError_t code;
    if (zfd_enter(c, error)) return NULL;
    block = pages < bytes || all < pages
                ? NULL
                : static_cast<char *>(zfd_host_memory(&c->allocator, NULL, 0, all));
    if (!block) {
        zfd_cuda_fail(error, ZF_ERR_NOMEM, "out of memory: %zu bytes of host memory", bytes);
        return NULL;
    }
    memory = block + sizeof block;
    memory += (ZFD_PAGE - (uintptr_t)memory % ZFD_PAGE) % ZFD_PAGE;
    memcpy(memory - sizeof block, &block, sizeof block);
#if defined(__linux__)
    (void)madvise(memory, pages, MADV_HUGEPAGE);
#endif
    code = cudaHostRegister(memory, pages, cudaHostRegisterPortable | cudaHostRegisterMapped);
    if (code == cudaSuccess) return memory;
    (void)cudaGetLastError();
    zfd_cuda_fail(error, code == cudaErrorMemoryAllocation ? ZF_ERR_NOMEM : ZF_ERR_BACKEND,
                  "%zu bytes of host memory cannot be pinned (cudaHostRegister): %s", bytes,
                  cudaGetErrorString(code));
    (void)zfd_host_memory(&c->allocator, block, all, 0);
    return NULL;
}

static void zfd_cuda_release_host(void *self, void *memory, size_t bytes)
{
    zfd_cuda *c = zfd_cuda_of(self);
    const size_t pages = (bytes + ZFD_PAGE - 1) / ZFD_PAGE * ZFD_PAGE;
    char *block;
    if (!memory) return;
    (void)zfd_enter(c, NULL);
    if (c->lost) return; /* the device may still copy from and to it */
    (void)cudaHostUnregister(memory);
    memcpy(&block, static_cast<char *>(memory) - sizeof block, sizeof block);
    (void)zfd_host_memory(&c->allocator, block, pages + ZFD_PAGE + sizeof block, 0);
}

static cudaStream_t zfd_stream_of(const zfd_cuda *c, int stream)
{
    if (stream == ZFD_HOSTED) return c->hosted;
    return stream == ZFD_COPIES ? c->copies : c->device.streams[stream];
}

/* Records c->reached[stream] at the current end of the stream. */
static zf_status zfd_mark(zfd_cuda *c, int stream, zf_error *error)
{
    return zfd_cuda_failed(error, "cudaEventRecord",
                           cudaEventRecord(c->reached[stream], zfd_stream_of(c, stream)));
}

/* Makes stream `later` wait for what stream `earlier` has been given so far. */
static zf_status zfd_follow(zfd_cuda *c, int later, int earlier, zf_error *error)
{
    zf_status status = zfd_mark(c, earlier, error);
    if (status) return status;
    return zfd_cuda_failed(error, "cudaStreamWaitEvent",
                           cudaStreamWaitEvent(zfd_stream_of(c, later), c->reached[earlier], 0));
}

/* Starts copying a piece of at most ZFD_STAGE bytes from or to the stage, on `stream`. */
static zf_status zfd_start_piece(zfd_stage *s, void *to, const void *from, size_t bytes,
                                 cudaMemcpyKind kind, cudaStream_t stream, zf_error *error)
{
    zf_status status =
        zfd_cuda_failed(error, "cudaMemcpyAsync", cudaMemcpyAsync(to, from, bytes, kind, stream));
    if (status) return status;
    return zfd_cuda_failed(error, "cudaEventRecord", cudaEventRecord(s->left, stream));
}

static zf_status zfd_copy_in(zfd_cuda *c, char *to, const char *from, size_t bytes, zf_error *error)
{
    zf_status status = zfd_follow(c, ZFD_COPIES, 0, error);
    for (size_t at = 0; at < bytes && !status; at += ZFD_STAGE) {
        zfd_stage *s = &c->stages[c->staged++ % ZFD_STAGES];
        size_t n = bytes - at < ZFD_STAGE ? bytes - at : (size_t)ZFD_STAGE;
        if ((status = zfd_until(c, s->left, error))) break;
        memcpy(s->memory, from + at, n);
        status =
            zfd_start_piece(s, to + at, s->memory, n, cudaMemcpyHostToDevice, c->copies, error);
    }
    return status ? status : zfd_follow(c, 0, ZFD_COPIES, error);
}

/* As many pieces as there are stages are in flight, while the piece before them is copied out. */
static zf_status zfd_copy_out(zfd_cuda *c, char *to, const char *from, size_t bytes,
                              zf_error *error)
{
    const size_t ahead = (ZFD_STAGES - 1) * (size_t)ZFD_STAGE;
    const int64_t first = c->staged;
    zf_status status = ZF_OK;
    for (size_t at = 0; at < bytes + ahead && !status; at += ZFD_STAGE) {
        if (at < bytes) {
            zfd_stage *s = &c->stages[c->staged++ % ZFD_STAGES];
            size_t n = bytes - at < ZFD_STAGE ? bytes - at : (size_t)ZFD_STAGE;
            if ((status = zfd_until(c, s->left, error))) break;
            status = zfd_start_piece(s, s->memory, from + at, n, cudaMemcpyDeviceToHost,
                                     c->device.streams[0], error);
        }
        if (!status && at >= ahead) {
            size_t out = at - ahead, n = bytes - out < ZFD_STAGE ? bytes - out : (size_t)ZFD_STAGE;
            zfd_stage *s = &c->stages[(first + (int64_t)(out / ZFD_STAGE)) % ZFD_STAGES];
            if (!(status = zfd_until(c, s->left, error))) memcpy(to + out, s->memory, n);
        }
    }
    return status;
}

static zf_status zfd_cuda_copy(void *self, void *to, const void *from, size_t bytes, zf_copy kind,
                               zf_error *error)
{
    zfd_cuda *c = zfd_cuda_of(self);
    zf_status status = bytes ? zfd_enter(c, error) : ZF_OK;
    if (!bytes || status) return status;
    if (kind == ZF_HOST_TO_DEVICE)
        return zfd_copy_in(c, static_cast<char *>(to), static_cast<const char *>(from), bytes,
                           error);
    if (kind == ZF_DEVICE_TO_HOST)
        return zfd_copy_out(c, static_cast<char *>(to), static_cast<const char *>(from), bytes,
                            error);
    return zfd_cuda_failed(
        error, "cudaMemcpyAsync",
        cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, c->device.streams[0]));
}
