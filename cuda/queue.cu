/* Launches: a stream for each queue, and events between them.
 *
 *     queue 0    ---- A reached --- matmul --- matmul --- wait for B --- reads B
 *                         |                                   |
 *     queue 1             ------ B (a collective) ----- done --
 */

/* --------------------------------------------------------------------- what changes by step */

__global__ void zfi_set_run(zf_run *to, zf_run run) { *to = run; }

static bool zfi_same_run(const zf_run *a, const zf_run *b)
{
    return a->seed == b->seed && a->step == b->step && a->micro == b->micro && a->slot == b->slot &&
           a->rank == b->rank && a->world == b->world && a->evaluate == b->evaluate;
}

/* Sets the values in device.run for later launches on queue 0. They are passed as a kernel's
 * argument, so no host memory must stay unchanged. */
static zf_status zfi_tell_run(zfi_cuda *c, const zf_run *run, zf_error *error)
{
    zf_status status;
    if (c->knows_run && zfi_same_run(&c->run, run)) return ZF_OK;
    ZF_LAUNCH(zfi_set_run, 1, 1, 0, c->device.streams[0], c->device.run, *run);
    status = zfi_cuda_failed(error, "the step's number to the device", cudaGetLastError());
    c->run = *run;
    c->knows_run = !status;
    return status;
}

/* ------------------------------------------------------------------------------- queues */

static zf_status zfi_cuda_queues(void *self, int32_t count, zf_error *error)
{
    zfi_cuda *c = zfi_cuda_of(self);
    int least = 0, first = 0; /* streams that communicate have priority over those that compute */
    zf_status status = zfi_enter(c, error);
    if (!status)
        status = zfi_cuda_failed(error, "cudaDeviceGetStreamPriorityRange",
                                 cudaDeviceGetStreamPriorityRange(&least, &first));
    for (int32_t q = 1; q < count && q < ZFI_QUEUES && !status; q++) {
        zfi_lane *lane = &c->lanes[q];
        for (int i = 0; i < ZFI_MARKS && !status; i++)
            if (!lane->done[i])
                status = zfi_cuda_failed(
                    error, "cudaEventCreate",
                    cudaEventCreateWithFlags(&lane->done[i], cudaEventDisableTiming));
        if (!status && !c->device.streams[q])
            status = zfi_cuda_failed(
                error, "cudaStreamCreate",
                cudaStreamCreateWithPriority(&c->device.streams[q], cudaStreamNonBlocking, first));
    }
    return status;
}

/* The queue of the launch; NULL: queue 0. */
static zfi_lane *zfi_lane_of(zfi_cuda *c, const zf_launch *l)
{
    return l->queue > 0 && l->queue < ZFI_QUEUES && c->device.streams[l->queue]
               ? &c->lanes[l->queue]
               : NULL;
}

static zf_status zfi_no_kernel(const zf_launch *l)
{
    return zfi_cuda_fail(l->error, ZF_ERR_BACKEND,
                         l->own ? "%s %%%d: the operator has no kernel for CUDA (zf_operator.cuda)"
                                : "%s %%%d: there is no such operator on CUDA; the CPU backend has all",
                         zf_launch_name(l), (int)l->node);
}

/* Puts the node's kernels on the stream of its queue. */
static zf_status zfi_put(zfi_cuda *c, const zf_launch *l)
{
    zfi_lane *lane = zfi_lane_of(c, l);
    const zfi_kernel *kernel = zfi_kernel_for(l);
    zf_status status = kernel ? ZF_OK : zfi_no_kernel(l);
    int at = lane ? (int)(lane->count % ZFI_MARKS) : 0;
    if (lane && !status) status = zfi_follow(c, l->queue, 0, l->error);
    if (zfi_is_among_ranks(l)) c->comm = l->comm;
    if (!status) status = kernel->run(l);
    if (!lane || status) return status;
    lane->launches[at] = l;
    lane->count++;
    return zfi_cuda_failed(l->error, "cudaEventRecord",
                           cudaEventRecord(lane->done[at], c->device.streams[l->queue]));
}

/* Makes queue 0 wait for a launch of another queue. If that launch is too old to have an event of
 * its own, waits for the queue's last launch, which is later. */
static zf_status zfi_put_wait(zfi_cuda *c, const zf_launch *l)
{
    zfi_lane *lane = zfi_lane_of(c, l);
    int64_t n = lane ? lane->count : 0, first = n > ZFI_MARKS ? n - ZFI_MARKS : 0;
    if (!n) return ZF_OK; /* joined since then */
    while (n > first && lane->launches[(n - 1) % ZFI_MARKS] != l) n--;
    if (n == first && !first) return ZF_OK;
    if (n == first) n = lane->count;
    return zfi_cuda_failed(
        l->error, "cudaStreamWaitEvent",
        cudaStreamWaitEvent(c->device.streams[0], lane->done[(n - 1) % ZFI_MARKS], 0));
}

/* Makes queue 0 wait for everything that was launched on other queues. */
static zf_status zfi_join(zfi_cuda *c, zf_error *error)
{
    zf_status status = ZF_OK;
    for (int q = 1; q < ZFI_QUEUES && !status; q++) {
        if (!c->lanes[q].count) continue;
        status = zfi_follow(c, 0, q, error);
        c->lanes[q].count = 0;
    }
    return status;
}

static zf_status zfi_cuda_launch(void *self, const zf_launch *l)
{
    zfi_cuda *c = zfi_cuda_of(self);
    zf_status status = zfi_enter(c, l->error);
    if (!status) status = zfi_tell_run(c, l->run, l->error);
    return status ? status : zfi_put(c, l);
}

static zf_status zfi_cuda_wait(void *self, const zf_launch *l)
{
    zfi_cuda *c = zfi_cuda_of(self);
    zf_status status = zfi_enter(c, l->error);
    return status ? status : zfi_put_wait(c, l);
}

static zf_status zfi_cuda_synchronize(void *self, zf_error *error)
{
    zfi_cuda *c = zfi_cuda_of(self);
    zf_error of = {ZF_OK, ""};
    if (!zfi_enter(c, &of) && !zfi_join(c, &of) && !zfi_mark(c, 0, &of) &&
        !zfi_until(c, c->reached[0], &of)) {
        /* A rank may have failed without any wait that showed it. */
        if (c->comm && c->comm->check) (void)c->comm->check(c->comm->self, 0, &of);
        c->comm = NULL;
    }
    (void)zfi_take_fault(c, &of);
    return of.status ? zfi_cuda_fail(error, of.status, "%s", of.text) : ZF_OK;
}
