/* Cost tables: measured once, read from a file and saved to one.
 *
 *     {
 *       "flops_per_s": 1e11,
 *       "bytes_per_s": 1e10,
 *       "link_bytes_per_s": 1e9,
 *       "link_latency_s": 2e-05
 *     }
 *
 * What is measured runs as what it stands for would: products and memory as small programs of the
 * backend, on all ranks at the same time, the link as collectives. Each size is tried once to warm
 * up; of the times of the others the median counts. A size that takes too little time to tell gives
 * way to a larger one. Rank 0's values are those of all, so that their plans are the same.
 */

enum {
    ZFI_COST_RUNS = 5,       /* that are timed, at most */
    ZFI_COST_LATENCIES = 15, /* collectives of one element */
    ZFI_COST_WIDTH = 256,    /* of the first product, a square */
    ZFI_COST_MOST_WIDTH = 2048,
    ZFI_COST_ELEMENTS = 1 << 18, /* of the first sum of two tensors */
    ZFI_COST_MOST_ELEMENTS = 1 << 22,
    ZFI_COST_LINK = 64 << 10, /* bytes of what the first all_gather gives */
    ZFI_COST_MOST_LINK = 4 << 20
};

static const double zfi_cost_enough = 2e-3; /* seconds, of one run */
static const double zfi_cost_budget = 2e-2; /* of all runs of one size */
static const double zfi_cost_disk = 0.3;    /* of a round of transfers */

/* The members of a file. */
static const struct {
    const char *name;
    size_t at; /* in zf_cost */
    double least, most;
} zfi_cost_members[4] = {
    {"flops_per_s", offsetof(zf_cost, flops_per_s), 1, 1e24},
    {"bytes_per_s", offsetof(zf_cost, bytes_per_s), 1, 1e24},
    {"link_bytes_per_s", offsetof(zf_cost, link_bytes_per_s), 1, 1e24},
    {"link_latency_s", offsetof(zf_cost, link_latency_s), 0, 1e6},
};

static double *zfi_cost_member(zf_cost *cost, int k)
{
    return (double *)(void *)((char *)cost + zfi_cost_members[k].at);
}

/* --------------------------------------------------------------------------------- measuring */

/* The median of times[0..count), which are sorted; above 0. */
static double zfi_median(double *times, int count)
{
    for (int i = 1; i < count; i++) { /* few: by insertion */
        double t = times[i];
        int k = i;
        for (; k > 0 && times[k - 1] > t; k--) times[k] = times[k - 1];
        times[k] = t;
    }
    return times[count / 2] > 1e-9 ? times[count / 2] : 1e-9;
}

/* Seconds that the graph takes; it is freed. */
static zf_status zfi_time_graph(zf_graph *g, zf_backend *backend, double *seconds, zf_error *error)
{
    zf_program *p = zf_compile(g, &(zf_compile_desc){.backend = backend});
    zf_status status = p ? zf_step(p) : g ? g->error.status : ZF_ERR_NOMEM;
    double times[ZFI_COST_RUNS], all = 0;
    int count = 0;
    while (!status && count < ZFI_COST_RUNS && all < zfi_cost_budget) {
        double start = zfi_now();
        status = zf_step(p);
        all += times[count++] = zfi_now() - start;
    }
    if (status)
        zfi_fail(error, status, "zf_calibrate: %s",
                 p   ? p->error.text
                 : g ? g->error.text
                     : "out of memory");
    else *seconds = zfi_median(times, count);
    zf_program_free(p);
    zf_graph_free(g);
    return status;
}

static zf_status zfi_measure_products(zf_backend *backend, zf_cost *cost, zf_error *error)
{
    zf_status status = ZF_OK;
    double seconds = 0;
    for (int64_t n = ZFI_COST_WIDTH;
         n <= ZFI_COST_MOST_WIDTH && !status && seconds < zfi_cost_enough; n *= 2) {
        zf_graph *g = zf_graph_new(NULL);
        zf_tensor a = zf_param(g, "a", ZF_SHAPE(n, n), NULL),
                  b = zf_param(g, "b", ZF_SHAPE(n, n), NULL);
        zf_output(zf_matmul(a, b), "c");
        status = zfi_time_graph(g, backend, &seconds, error);
        if (!status) cost->flops_per_s = 2.0 * (double)n * (double)n * (double)n / seconds;
    }
    return status;
}

static zf_status zfi_measure_memory(zf_backend *backend, zf_cost *cost, zf_error *error)
{
    zf_status status = ZF_OK;
    double seconds = 0;
    for (int64_t n = ZFI_COST_ELEMENTS;
         n <= ZFI_COST_MOST_ELEMENTS && !status && seconds < zfi_cost_enough; n *= 4) {
        zf_graph *g = zf_graph_new(NULL);
        zf_tensor a = zf_param(g, "a", ZF_SHAPE(n), NULL),
                  b = zf_param(g, "b", ZF_SHAPE(n), NULL);
        zf_output(zf_add(a, b), "c");
        status = zfi_time_graph(g, backend, &seconds, error);
        if (!status) cost->bytes_per_s = 3 * sizeof(float) * (double)n / seconds; /* two are read */
    }
    return status;
}

/* Seconds that an all_gather of `count` elements of each rank takes, as rank 0 sees it: the same on
 * all ranks. */
static zf_status zfi_time_gather(const zf_comm *comm, const void *in, void *out, int64_t count,
                                 int runs, double *seconds, zf_error *error)
{
    const zf_collective gather = {
        .op = ZF_OP_all_gather, .dtype = ZF_F32, .count = count, .in = in, .out = out};
    const zf_collective tell = {
        .op = ZF_OP_bcast, .dtype = ZF_F64, .count = 1, .in = seconds, .out = seconds};
    double times[ZFI_COST_LATENCIES];
    zf_status status = comm->run(comm->self, &gather, error);
    for (int k = 0; k < runs && !status; k++) {
        double start = zfi_now();
        status = comm->run(comm->self, &gather, error);
        times[k] = zfi_now() - start;
    }
    if (status) return status;
    *seconds = zfi_median(times, runs);
    return comm->run(comm->self, &tell, error);
}

/* in, out: memory of the backend for the largest all_gather. */
static zf_status zfi_measure_link(const zf_comm *comm, const void *in, void *out, zf_cost *cost,
                                  zf_error *error)
{
    double seconds = 0, latency = 0, moving;
    zf_status status = zfi_time_gather(comm, in, out, 1, ZFI_COST_LATENCIES, &latency, error);
    for (int64_t bytes = ZFI_COST_LINK;
         bytes <= ZFI_COST_MOST_LINK && !status && seconds < zfi_cost_enough; bytes *= 4) {
        int64_t count = bytes / (int64_t)sizeof(float) / comm->world + 1;
        status = zfi_time_gather(comm, in, out, count, 3, &seconds, error);
        /* Where latency is nearly all of it, it is not known what is left. */
        moving = seconds > 2 * latency ? seconds - latency : seconds;
        cost->link_bytes_per_s = (double)count * sizeof(float) * (double)(comm->world - 1) / moving;
    }
    cost->link_latency_s = latency;
    return status;
}

/* Bytes per second that a rank's offload file in `folder` takes and gives, by the disk engine, in
 * large blocks. The file, of some hundred MB, is removed. It is written once before: what is
 * written for the first time may take longer, and a step writes the same places again and again. */
ZFI_UNUSED static zf_status zfi_measure_disk(const char *folder, int32_t rank, int32_t world,
                                             double *writes, double *reads, zf_error *error)
{
    enum { CHUNKS = 16, CHUNK = 16 << 20, BUFFERS = 2 };
    const zfi_disk_value value = {"the measured file", 0, (int64_t)CHUNKS * CHUNK};
    zfi_memory memory = zfi_memory_of(NULL);
    zfi_disk_transfer transfers[BUFFERS];
    zfi_disk *disk;
    char run[32], *room, *data;
    int written = CHUNKS;
    zf_error mine = {ZF_OK, ""};
    snprintf(run, sizeof run, "measure-%ld", (long)getpid());
    room = zfi_calloc(&memory, BUFFERS * CHUNK + ZFI_DISK_ALIGN, 1);
    if (!room) return zfi_nomem(error);
    data = room + (ZFI_DISK_ALIGN - (uintptr_t)room % ZFI_DISK_ALIGN) % ZFI_DISK_ALIGN;
    disk = zfi_disk_open(&memory,
                         &(zfi_disk_desc){.folder = folder,
                                          .run = run,
                                          .rank = rank,
                                          .world = world,
                                          .bytes = value.bytes,
                                          .values = &value,
                                          .count = 1},
                         &mine);
    for (int round = 0; round < 3 && !mine.status; round++) { /* written, written again, read */
        const double start = zfi_now();
        int k = 0;
        for (; k < written && !mine.status && zfi_now() - start < zfi_cost_disk; k++) {
            zfi_disk_transfer *transfer = &transfers[k % BUFFERS];
            char *at = data + k % BUFFERS * CHUNK;
            if (k >= BUFFERS) zfi_disk_wait(disk, transfer, &mine);
            if (round < 2) zfi_disk_write(disk, 0, (int64_t)k * CHUNK, at, CHUNK, transfer);
            else zfi_disk_read(disk, 0, (int64_t)k * CHUNK, at, CHUNK, transfer);
        }
        for (int i = 0; i < BUFFERS && i < k; i++) zfi_disk_wait(disk, &transfers[i], &mine);
        if (round) *(round == 1 ? writes : reads) = (double)k * CHUNK / (zfi_now() - start);
        if (!round) written = k;
    }
    zfi_disk_close(disk);
    zfi_free(&memory, room, BUFFERS * CHUNK + ZFI_DISK_ALIGN);
    return mine.status ? zfi_fail(error, mine.status, "zf_calibrate: %s", mine.text) : ZF_OK;
}

/* All ranks take rank 0's table. */
static zf_status zfi_share_cost(const zf_comm *comm, zf_cost *cost, zf_error *error)
{
    double rates[4];
    const zf_collective tell = {
        .op = ZF_OP_bcast, .dtype = ZF_F64, .count = 4, .in = rates, .out = rates};
    zf_status status;
    for (int k = 0; k < 4; k++) rates[k] = *zfi_cost_member(cost, k);
    status = comm->run(comm->self, &tell, error);
    for (int k = 0; k < 4 && !status; k++) *zfi_cost_member(cost, k) = rates[k];
    return status;
}

ZF_API zf_status zf_calibrate(zf_backend *backend, const zf_comm *comm, zf_cost *cost,
                              zf_error *error)
{
    const size_t bytes = ZFI_COST_MOST_LINK + sizeof(float) * (comm ? (size_t)comm->world : 1);
    zf_error mine = {ZF_OK, ""};
    zf_backend *own = backend ? NULL : zf_cpu_backend(NULL, &mine);
    zf_cost measured = zf_cost_default();
    void *out = NULL, *in = NULL;
    if (comm && comm->world < 2) comm = NULL;
    if (!backend) backend = own;
    if (!cost) zfi_fail(&mine, ZF_ERR_ARGUMENT, "zf_calibrate: cost is NULL");
    if (!mine.status && comm) {
        out = backend->allocate(backend->self, bytes, &mine);
        if (out) in = backend->allocate(backend->self, bytes, &mine);
    }
    /* Ranks measure at the same time, as they will run. What fails on one fails on all. */
    zfi_comm_agree(comm, &mine);
    if (!mine.status) {
        if (!zfi_measure_products(backend, &measured, &mine))
            zfi_measure_memory(backend, &measured, &mine);
        zfi_comm_agree(comm, &mine);
    }
    if (!mine.status && comm) zfi_measure_link(comm, in, out, &measured, &mine);
    if (!mine.status && comm) zfi_share_cost(comm, &measured, &mine);
    if (in) backend->release(backend->self, in, bytes);
    if (out) backend->release(backend->self, out, bytes);
    zf_backend_free(own);
    if (mine.status) return zfi_fail(error, mine.status, "%s", mine.text);
    *cost = measured;
    return ZF_OK;
}

/* ------------------------------------------------------------------------------------- files */

ZF_API zf_status zf_cost_read(const char *path, zf_cost *cost, const zf_allocator *allocator,
                              zf_error *error)
{
    zf_error mine = {ZF_OK, ""};
    zf_json *file = path && cost ? zf_json_read(path, allocator, &mine) : NULL;
    zf_cost read = {0};
    if (!path || !cost)
        return zfi_fail(error, ZF_ERR_ARGUMENT, "zf_cost_read: %s is NULL", path ? "cost" : "path");
    if (file && zf_json_type_of(file) != ZF_JSON_OBJECT)
        zf_json_expected(file, &mine, "an object of rates");
    for (const zf_json *v = zf_json_first(file); v && !mine.status; v = zf_json_next(v)) {
        int k = 0;
        while (k < 4 && strcmp(zf_json_key(v, NULL), zfi_cost_members[k].name)) k++;
        if (k == 4)
            zf_json_fail(v, &mine,
                         "is no rate; there are flops_per_s, bytes_per_s, link_bytes_per_s and "
                         "link_latency_s");
    }
    for (int k = 0; k < 4 && !mine.status; k++)
        zf_json_to_double(zf_json_require(file, zfi_cost_members[k].name, &mine),
                          zfi_cost_members[k].least, zfi_cost_members[k].most,
                          zfi_cost_member(&read, k), &mine);
    zf_json_free(file);
    if (mine.status) return zfi_fail(error, mine.status, "%s", mine.text);
    *cost = read;
    return ZF_OK;
}

ZF_API zf_status zf_cost_save(const zf_cost *cost, const char *path, const zf_allocator *allocator,
                              zf_error *error)
{
    zf_error mine = {ZF_OK, ""};
    zf_json_writer *w;
    zf_cost copy;
    if (!path || !cost)
        return zfi_fail(error, ZF_ERR_ARGUMENT, "zf_cost_save: %s is NULL", path ? "cost" : "path");
    copy = *cost;
    for (int k = 0; k < 4; k++) {
        double x = *zfi_cost_member(&copy, k);
        if (!(x >= zfi_cost_members[k].least && x <= zfi_cost_members[k].most))
            return zfi_fail(
                error, ZF_ERR_ARGUMENT, "zf_cost_save: %s is %g; it must be from %g to %g",
                zfi_cost_members[k].name, x, zfi_cost_members[k].least, zfi_cost_members[k].most);
    }
    w = zf_json_writer_new(2, allocator);
    zf_json_begin_object(w);
    for (int k = 0; k < 4; k++) {
        zf_json_put_key(w, zfi_cost_members[k].name);
        zf_json_put_double(w, *zfi_cost_member(&copy, k));
    }
    zf_json_end(w);
    zf_json_save(w, path, &mine);
    zf_json_writer_free(w);
    return mine.status ? zfi_fail(error, mine.status, "%s", mine.text) : ZF_OK;
}
