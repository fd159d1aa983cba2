/* Launches: a stream for each queue, and events between them.
 *
 *     queue 0    ---- A reached --- matmul --- matmul --- wait for B --- reads B
 *                         |                                   |
 *     queue 1             ------ B (a collective) ----- done --
 */

/* --------------------------------------------------------------------- what changes by step */

__global__ void zfd_set_run(zf_run *to, zf_run run) { *to = run; }

static bool zfd_same_run(const zf_run *a, const zf_run *b)
{
    return a->seed == b->seed && a->step == b->step && a->micro == b->micro && a->slot == b->slot &&
           a->rank == b->rank && a->world == b->world && a->evaluate == b->evaluate;
}

/* Sets the values in device.run for later launches on queue 0. They are passed as a kernel's
 * argument, so no host memory must stay unchanged. */
static zf_status zfd_tell_run(zfd_cuda *c, const zf_run *run, zf_error *error)
{
    zf_status status;
    if (c->knows_run && zfd_same_run(&c->run, run)) return ZF_OK;
    ZFD_LAUNCH(zfd_set_run, 1, 1, 0, c->device.streams[0], c->device.run, *run);
    status = zfd_cuda_failed(error, "the step's number to the device", cudaGetLastError());
    c->run = *run;
    c->knows_run = !status;
    return status;
}

/* ------------------------------------------------------------------------------- queues */

/* Makes a stream besides that of queue 0, with its events. */
static zf_status zfd_open_lane(zfd_cuda *c, int stream, zf_error *error)
{
    zfd_lane *lane = &c->lanes[stream];
    cudaStream_t *at = stream == ZFD_HOSTED ? &c->hosted : &c->device.streams[stream];
    int least = 0, first = 0; /* it has priority over the stream that computes */
    zf_status status = zfd_enter(c, error);
    if (!status && !*at)
        status = zfd_cuda_failed(error, "cudaDeviceGetStreamPriorityRange",
                                 cudaDeviceGetStreamPriorityRange(&least, &first));
    for (int i = 0; i < ZFD_MARKS && !status; i++)
        if (!lane->done[i])
            status = zfd_cuda_failed(
                error, "cudaEventCreate",
                cudaEventCreateWithFlags(&lane->done[i], cudaEventDisableTiming));
    if (!status && !*at)
        status = zfd_cuda_failed(error, "cudaStreamCreate",
                                 cudaStreamCreateWithPriority(at, cudaStreamNonBlocking, first));
    return status;
}

static zf_status zfd_cuda_queues(void *self, int32_t count, zf_error *error)
{
    zfd_cuda *c = zfd_cuda_of(self);
    zf_status status = ZF_OK;
    for (int32_t q = 1; q < count && q < ZFD_QUEUES && !status; q++)
        status = zfd_open_lane(c, q, error);
    return status;
}

/* Work number n of the lane, from 1 on: one of its last ZFD_MARKS. */
static const void *zfd_at(const zfd_lane *lane, int64_t n) { return lane->work[n % ZFD_MARKS]; }

/* Counts what was just put on the stream, and records the event after it. */
static zf_status zfd_pass(zfd_cuda *c, int stream, const void *work, zf_error *error)
{
    zfd_lane *lane = &c->lanes[stream];
    const int at = (int)(++lane->count % ZFD_MARKS);
    lane->work[at] = work;
    return zfd_cuda_failed(error, "cudaEventRecord",
                           cudaEventRecord(lane->done[at], zfd_stream_of(c, stream)));
}

/* Makes stream `later` wait for work number n of stream `earlier`. */
static zf_status zfd_wait_for(zfd_cuda *c, int later, int earlier, int64_t n, zf_error *error)
{
    return zfd_cuda_failed(error, "cudaStreamWaitEvent",
                           cudaStreamWaitEvent(zfd_stream_of(c, later),
                                               c->lanes[earlier].done[n % ZFD_MARKS], 0));
}

/* The queue of the launch; NULL: queue 0. */
static zfd_lane *zfd_lane_of(zfd_cuda *c, const zf_launch *l)
{
    return l->queue > 0 && l->queue < ZFD_QUEUES && c->device.streams[l->queue]
               ? &c->lanes[l->queue]
               : NULL;
}

static zf_status zfd_no_kernel(const zf_launch *l)
{
    return zfd_cuda_fail(l->error, ZF_ERR_BACKEND,
                         l->own ? "%s %%%d: the operator has no kernel for " ZFD_GPU
                                  " (zf_operator.cuda)"
                                : "%s %%%d: there is no such operator on " ZFD_GPU
                                  "; the CPU backend has all",
                         zf_launch_name(l), (int)l->node);
}

/* Puts the node's kernels on the stream of its queue. */
static zf_status zfd_put(zfd_cuda *c, const zf_launch *l)
{
    const zfd_lane *lane = zfd_lane_of(c, l);
    const zfd_kernel *kernel = zfd_kernel_for(l);
    zf_status status = kernel ? ZF_OK : zfd_no_kernel(l);
    if (lane && !status) status = zfd_follow(c, l->queue, 0, l->error);
    if (zfd_is_among_ranks(l)) c->comm = l->comm;
    if (!status) status = kernel->run(l);
    return lane && !status ? zfd_pass(c, l->queue, l, l->error) : status;
}

/* Makes queue 0 wait for a launch of another queue; `hosted`: host functions too. If that launch is
 * too old to have an event of its own, waits for the queue's last launch, which is later. */
static zf_status zfd_put_wait(zfd_cuda *c, const zf_launch *l, bool hosted)
{
    const zfd_lane *lane = zfd_lane_of(c, l);
    int64_t n = lane ? lane->count : 0, first = n > ZFD_MARKS ? n - ZFD_MARKS : 0;
    zf_status status;
    if (!n) return ZF_OK; /* joined since then */
    while (n > first && zfd_at(lane, n) != l) n--;
    if (n == first && !first) return ZF_OK;
    if (n == first) n = lane->count;
    status = zfd_wait_for(c, 0, l->queue, n, l->error);
    return hosted && !status ? zfd_wait_for(c, ZFD_HOSTED, l->queue, n, l->error) : status;
}

/* Makes queue 0 wait for everything that was put on other streams. */
static zf_status zfd_join(zfd_cuda *c, zf_error *error)
{
    zf_status status = ZF_OK;
    for (int q = 1; q < ZFD_STREAMS && !status; q++) {
        if (!c->lanes[q].count) continue;
        status = zfd_follow(c, 0, q, error);
        c->lanes[q].count = 0;
    }
    return status;
}

static zf_status zfd_cuda_launch(void *self, const zf_launch *l)
{
    zfd_cuda *c = zfd_cuda_of(self);
    zf_status status = zfd_enter(c, l->error);
    if (!status) status = zfd_tell_run(c, l->run, l->error);
    return status ? status : zfd_put(c, l);
}

static zf_status zfd_cuda_wait(void *self, const zf_launch *l)
{
    zfd_cuda *c = zfd_cuda_of(self);
    zf_status status = zfd_enter(c, l->error);
    return status ? status : zfd_put_wait(c, l, false);
}

static zf_status zfd_cuda_synchronize(void *self, zf_error *error)
{
    zfd_cuda *c = zfd_cuda_of(self);
    zf_error of = {ZF_OK, ""};
    if (!zfd_enter(c, &of) && !zfd_join(c, &of) && !zfd_mark(c, 0, &of) &&
        !zfd_until(c, c->reached[0], &of)) {
        /* A rank may have failed without any wait that showed it. */
        if (c->comm && c->comm->check) (void)c->comm->check(c->comm->self, 0, &of);
        c->comm = NULL;
    }
    (void)zfd_take_fault(c, &of);
    return of.status ? zfd_cuda_fail(error, of.status, "%s", of.text) : ZF_OK;
}
