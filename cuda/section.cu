/* Sections of a program: the launches between two checks by the host, as one CUDA graph.
 *
 *     first time    launch by launch: kernels are loaded, libraries and communicators set up
 *     second time   the same launches, captured; the graph is kept
 *     later         the graph
 *
 * Where the capture fails, the section stays launch by launch, and the remark says so.
 *
 * After capture, a launcher's host code does not run again. Only one thing that it reads changes:
 * whether a collective adds to an accumulator, which differs between the first micro-batch and the
 * others. So there is a graph for each. Everything else that changes is in device.run. */

enum { ZFD_STATES = 2 };

typedef struct zfd_replay {
    cudaGraphExec_t graphs[ZFD_STATES];
    bool ran[ZFD_STATES], plain[ZFD_STATES]; /* plain: it cannot be captured */
    const zf_comm *comm; /* of the section's collectives; NULL: it has none */
    zfd_hosted *hosted;  /* what the host does of it; NULL: nothing */
    int32_t hosted_count;
} zfd_replay;

/* The number of launches from n on that are of one operator, on queue 0, and without a wait before
 * them. */
static int zfd_alike(const zf_section *s, int32_t n)
{
    int count = 0;
    for (int32_t i = n; i < s->last && s->waits_for[i] < 0 && s->launches[i].queue == 0 &&
                        s->launches[i].op == s->launches[n].op && !zfd_is_hosted(s, i);
         i++)
        count++;
    return count;
}

/* Puts launch n, or waits for one, in a section that has host functions if `hosted`. */
static zf_status zfd_put_next(zfd_cuda *c, const zf_section *s, int32_t n, bool hosted)
{
    const zf_launch *l = &s->launches[n];
    const bool copies = hosted && l->op == ZF_OP_copy;
    zf_status status = ZF_OK;
    if (s->waits_for[n] >= 0) return zfd_put_wait(c, &s->launches[s->waits_for[n]], hosted);
    if (copies) status = zfd_follow_hosted(c, l);
    if (!status) status = zfd_put(c, l);
    return copies && !l->queue && !status ? zfd_follow(c, ZFD_HOSTED, 0, l->error) : status;
}

static zf_status zfd_put_section(zfd_cuda *c, const zf_section *s, const zfd_replay *kept,
                                 zf_error *error)
{
    zfd_hosted *next = kept->hosted;
    zf_status status = next ? zfd_follow(c, ZFD_HOSTED, 0, error) : ZF_OK;
    for (int32_t n = s->first, taken; n < s->last && !status; n += taken ? taken : 1) {
        const zf_launch *l = &s->launches[n];
        const bool hosted = zfd_is_hosted(s, n);
        const zfd_kernel *kernel = hosted || s->waits_for[n] >= 0 ? NULL : zfd_kernel_for(l);
        const int count = kernel && kernel->together ? zfd_alike(s, n) : 0;
        taken = 0;
        if (hosted) {
            taken = next->more + 1;
            status = zfd_put_hosted(c, next, error);
            next += taken;
        }
        if (count > 1) status = kernel->together(l, count, &taken);
        if (!taken && !status) status = zfd_put_next(c, s, n, next != NULL);
    }
    return status;
}

/* Captures the section as a graph; NULL, and a remark, on failure. Streams of other queues fork
 * from queue 0's inside the capture and join it again; nothing launched before is waited for
 * inside. */
static cudaGraphExec_t zfd_capture(zfd_cuda *c, const zf_section *s, const zfd_replay *replay)
{
    cudaStream_t stream = c->device.streams[0];
    cudaGraph_t graph = NULL;
    cudaGraphExec_t kept = NULL;
    zf_error of = {ZF_OK, ""};
    /* Relaxed: launchers may set attributes of kernels, and other threads may allocate */
    cudaError_t code = cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed);
    if (code == cudaSuccess) {
        if (!(of.status = zfd_put_section(c, s, replay, &of))) (void)zfd_join(c, &of);
        for (int q = 1; q < ZFD_STREAMS; q++) c->lanes[q].count = 0;
        code = cudaStreamEndCapture(stream, &graph);
    }
    if (!of.status && code == cudaSuccess) code = cudaGraphInstantiate(&kept, graph, 0);
    if (graph) (void)cudaGraphDestroy(graph);
    if (!of.status && code == cudaSuccess) return kept;
    (void)cudaGetLastError();
    snprintf(c->uncaptured, sizeof c->uncaptured,
             "launches %%%d %.40s to %%%d %.40s run one by one, since they cannot be captured as a "
             ZFD_GPU " graph: %.100s",
             (int)s->launches[s->first].node, zf_launch_name(&s->launches[s->first]),
             (int)s->launches[s->last - 1].node, zf_launch_name(&s->launches[s->last - 1]),
             of.text[0] ? of.text : cudaGetErrorString(code));
    return NULL;
}

/* The kept state of the section; made at its first run, when the search for algorithms is over and
 * its results are saved. */
static zfd_replay *zfd_keep(zfd_cuda *c, zf_section *s, zf_error *error)
{
    zfd_replay *kept = static_cast<zfd_replay *>(s->kept);
    int32_t count;
    if (kept || zfd_products_save(&c->products, error)) return kept;
    count = zfd_count_hosted(s);
    if (count && zfd_open_lane(c, ZFD_HOSTED, error)) return NULL;
    kept = static_cast<zfd_replay *>(zfd_host_memory(&c->allocator, NULL, 0, sizeof *kept));
    if (kept) memset(kept, 0, sizeof *kept);
    if (kept && count)
        kept->hosted = static_cast<zfd_hosted *>(
            zfd_host_memory(&c->allocator, NULL, 0, (size_t)count * sizeof *kept->hosted));
    if (!kept || (count && !kept->hosted)) {
        if (kept) (void)zfd_host_memory(&c->allocator, kept, sizeof *kept, 0);
        zfd_cuda_fail(error, ZF_ERR_NOMEM, "out of memory");
        return NULL;
    }
    kept->hosted_count = count;
    zfd_list_hosted(s, kept->hosted, count);
    for (int32_t n = s->first; n < s->last; n++)
        if (zfd_is_among_ranks(&s->launches[n])) kept->comm = s->launches[n].comm;
    s->kept = kept;
    return kept;
}

static zf_status zfd_cuda_run(void *self, zf_section *s, zf_error *error)
{
    zfd_cuda *c = zfd_cuda_of(self);
    zfd_replay *kept = zfd_keep(c, s, error);
    const zf_run *run = s->launches[s->first].run;
    int state = run->micro > 0;
    zf_status status = kept ? zfd_enter(c, error) : ZF_ERR_BACKEND;
    /* A graph contains calls of the communicator, which must not run once it has failed. */
    if (!status && kept->comm) status = kept->comm->check(kept->comm->self, 0, error);
    if (!status) status = zfd_tell_run(c, run, error);
    if (!status) status = zfd_join(c, error); /* within a section nothing before it is waited for */
    if (status) return status;
    if (kept->comm) c->comm = kept->comm;
    if (kept->ran[state] && !c->no_graphs && !kept->graphs[state] && !kept->plain[state]) {
        kept->graphs[state] = zfd_capture(c, s, kept);
        kept->plain[state] = !kept->graphs[state];
    }
    if (!kept->graphs[state]) {
        status = zfd_put_section(c, s, kept, error);
        kept->ran[state] = !status;
        return status;
    }
    return zfd_cuda_failed(error, "cudaGraphLaunch",
                           cudaGraphLaunch(kept->graphs[state], c->device.streams[0]));
}

static void zfd_cuda_forget(void *self, zf_section *s)
{
    zfd_cuda *c = zfd_cuda_of(self);
    zfd_replay *kept = static_cast<zfd_replay *>(s->kept);
    (void)zfd_cuda_synchronize(self, NULL);
    for (int i = 0; i < ZFD_STATES; i++)
        if (kept->graphs[i]) (void)cudaGraphExecDestroy(kept->graphs[i]);
    if (c->lost) { /* the list stays, for host functions that may still come */
        for (int32_t k = 0; k < kept->hosted_count; k++)
            __atomic_store_n(&kept->hosted[k].off, true, __ATOMIC_RELAXED);
    } else if (kept->hosted) {
        (void)zfd_host_memory(&c->allocator, kept->hosted,
                              (size_t)kept->hosted_count * sizeof *kept->hosted, 0);
    }
    (void)zfd_host_memory(&c->allocator, kept, sizeof *kept, 0);
    s->kept = NULL;
}
