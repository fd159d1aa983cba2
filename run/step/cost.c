/* Cost tables: measured once, read from a file and saved to one.
 *
 *     {
 *       "flops_per_s": 1e11,
 *       "bytes_per_s": 1e10,
 *       "link_bytes_per_s": 1e9,
 *       ...
 *     }
 *
 * Rates are measured with the operations of real steps: products and memory with small programs on
 * the backend, on all ranks at the same time; the link with collectives; the disk with its engine;
 * what copies take from computing, with products at the same time.
 * Each size runs once to warm up; then the median of several runs counts. If a size takes too
 * little time to measure, a larger one is tried. All ranks use rank 0's values, so that their plans
 * are the same. */

enum {
    ZFI_COST_RUNS = 5,       /* timed runs, at most, */
    ZFI_COST_LEAST_RUNS = 3, /* and at least: one that is disturbed is not the median */
    ZFI_COST_LATENCIES = 15, /* of one element, of small copies and transfers */
    ZFI_COST_WIDTH = 256,    /* width of the first products, of squares */
    ZFI_COST_MOST_WIDTH = 2048,
    ZFI_COST_ELEMENTS = 1 << 18, /* elements of the first sum of two tensors */
    ZFI_COST_MOST_ELEMENTS = 1 << 22,
    ZFI_COST_LINK = 64 << 10, /* bytes of the first all_gather's result */
    ZFI_COST_MOST_LINK = 4 << 20,
    ZFI_COST_COPY = 16 << 20 /* bytes of a large copy or transfer */
};

static const double zfi_cost_enough = 1e-2; /* seconds of a run that is long enough */
static const double zfi_cost_budget = 5e-2; /* seconds of all runs of one size, or the least */
static const double zfi_cost_disk = 0.3;    /* seconds of a round of transfers */

/* --------------------------------------------------------------------------------- measuring */

/* The median of times[0..count), above 0. Sorts the times. */
static double zfi_median(double *times, int count)
{
    for (int i = 1; i < count; i++) { /* insertion sort, for few */
        double t = times[i];
        int k = i;
        for (; k > 0 && times[k - 1] > t; k--) times[k] = times[k - 1];
        times[k] = t;
    }
    return times[count / 2] > 1e-9 ? times[count / 2] : 1e-9;
}

/* Seconds of a step of the graph, which is freed. */
static zf_status zfi_time_graph(zf_graph *g, zf_backend *backend, double *seconds, zf_error *error)
{
    zf_program *p = zf_compile(g, &(zf_compile_desc){.backend = backend});
    zf_status status = p ? zf_step(p) : g ? g->error.status : ZF_ERR_NOMEM;
    double times[ZFI_COST_RUNS], all = 0;
    int count = 0;
    while (!status && count < ZFI_COST_RUNS &&
           (count < ZFI_COST_LEAST_RUNS || all < zfi_cost_budget)) {
        double start = zfi_now();
        status = zf_step(p);
        all += times[count++] = zfi_now() - start;
    }
    if (status)
        zfi_fail(error, status, "%s",
                 p   ? p->error.text
                 : g ? g->error.text
                     : "out of memory");
    else *seconds = zfi_median(times, count);
    zf_program_free(p);
    zf_graph_free(g);
    return status;
}

/* The three products of a layer, Y = X W^T, dX = dY W and dW = dY^T X, of squares; NULL without
 * memory. */
static zf_graph *zfi_layer_graph(int64_t width, zf_dtype dtype)
{
    const zf_param_desc of = {.dtype = dtype};
    zf_graph *g = zf_graph_new(NULL);
    zf_tensor x = zf_param(g, "x", ZF_SHAPE(width, width), &of),
              w = zf_param(g, "w", ZF_SHAPE(width, width), &of),
              dy = zf_param(g, "dy", ZF_SHAPE(width, width), &of);
    zf_output(zf_matmul_ex(x, w, &(zf_matmul_desc){.transpose_b = true}), "y");
    zf_output(zf_matmul(dy, w), "dx");
    zf_output(zf_matmul_ex(dy, x, &(zf_matmul_desc){.transpose_a = true}), "dw");
    return g;
}

/* Measures products of values of this dtype. They take the time for their values or bytes and,
 * which is at least half, that for their FLOPs. Requires: half_values_per_s, bytes_per_s. */
static zf_status zfi_measure_products(zf_backend *backend, zf_dtype dtype, const zf_cost *cost,
                                      double *flops_per_s, zf_error *error)
{
    const bool half = zf_dtype_size(dtype) == 2;
    zf_status status = ZF_OK;
    double seconds = 0;
    for (int64_t n = ZFI_COST_WIDTH;
         n <= ZFI_COST_MOST_WIDTH && !status && seconds < zfi_cost_enough; n *= 2) {
        const double size = (double)n * (double)n, flops = 3 * 2 * size * (double)n,
                     values = 3 * 3 * size;
        double moving = values * (double)zf_dtype_size(dtype) / cost->device.bytes_per_s;
        if (half) moving = fmax(moving, values / cost->device.half_values_per_s);
        status = zfi_time_graph(zfi_layer_graph(n, dtype), backend, &seconds, error);
        if (!status) *flops_per_s = flops / fmax(seconds - moving, seconds / 2);
    }
    return status;
}

/* Measures sums of two tensors, of as many bytes for each dtype: values read and written. */
static zf_status zfi_measure_sums(zf_backend *backend, zf_dtype dtype, double *values_per_s,
                                  zf_error *error)
{
    const zf_param_desc of = {.dtype = dtype};
    zf_status status = ZF_OK;
    double seconds = 0;
    for (int64_t at = ZFI_COST_ELEMENTS;
         at <= ZFI_COST_MOST_ELEMENTS && !status && seconds < zfi_cost_enough; at *= 4) {
        const int64_t n = at * (int64_t)(sizeof(float) / zf_dtype_size(dtype));
        zf_graph *g = zf_graph_new(NULL);
        zf_tensor a = zf_param(g, "a", ZF_SHAPE(n), &of), b = zf_param(g, "b", ZF_SHAPE(n), &of);
        zf_output(zf_add(a, b), "c");
        status = zfi_time_graph(g, backend, &seconds, error);
        if (!status) *values_per_s = 3 * (double)n / seconds; /* 2 read, 1 written */
    }
    return status;
}

static zf_status zfi_measure_memory(zf_backend *backend, zf_cost *cost, zf_error *error)
{
    double floats = 0;
    zf_status status = zfi_measure_sums(backend, ZF_F32, &floats, error);
    if (!status)
        status = zfi_measure_sums(backend, ZF_BF16, &cost->device.half_values_per_s, error);
    if (!status) cost->device.bytes_per_s = sizeof(float) * floats;
    return status;
}

/* Measures gelu. What it takes besides reading and writing, but at least a sixteenth of its time,
 * is that of two functions. Requires: bytes_per_s. */
static zf_status zfi_measure_functions(zf_backend *backend, zf_cost *cost, zf_error *error)
{
    zf_status status = ZF_OK;
    double seconds = 0;
    for (int64_t n = ZFI_COST_ELEMENTS;
         n <= ZFI_COST_MOST_ELEMENTS && !status && seconds < zfi_cost_enough; n *= 4) {
        zf_graph *g = zf_graph_new(NULL);
        zf_output(zf_gelu(zf_param(g, "a", ZF_SHAPE(n), NULL)), "b");
        status = zfi_time_graph(g, backend, &seconds, error);
        if (!status)
            cost->device.functions_per_s =
                2 * (double)n /
                fmax(seconds - 2 * sizeof(float) * (double)n / cost->device.bytes_per_s,
                     seconds / 16);
    }
    return status;
}

/* Seconds of an all_gather of `count` elements per rank in each group, measured by rank 0 and equal
 * on all ranks. */
static zf_status zfi_time_gather(const zf_comm *comm, zf_group group, const void *in, void *out,
                                 int64_t count, int runs, double *seconds, zf_error *error)
{
    const zf_collective gather = {.op = ZF_OP_all_gather,
                                  .dtype = ZF_F32,
                                  .count = count,
                                  .in = in,
                                  .out = out,
                                  .group = group};
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

/* Measures the link of groups that call at the same time. in, out: memory of the backend for the
 * largest all_gather. */
static zf_status zfi_measure_groups(const zf_comm *comm, zf_group group, const void *in, void *out,
                                    double *bytes_per_s, double *latency, zf_error *error)
{
    const int32_t ranks = group.count ? group.count : comm->world;
    double seconds = 0, moving;
    zf_status status =
        zfi_time_gather(comm, group, in, out, 1, ZFI_COST_LATENCIES, latency, error);
    for (int64_t bytes = ZFI_COST_LINK;
         bytes <= ZFI_COST_MOST_LINK && !status && seconds < zfi_cost_enough; bytes *= 4) {
        int64_t count = bytes / (int64_t)sizeof(float) / ranks + 1;
        status = zfi_time_gather(comm, group, in, out, count, 3, &seconds, error);
        /* If most of the time is latency, the rest cannot be measured. */
        moving = seconds > 2 * *latency ? seconds - *latency : seconds;
        *bytes_per_s = (double)count * sizeof(float) * (double)(ranks - 1) / moving;
    }
    return status;
}

/* The link inside nodes and the one between them; in one node, or nodes of one rank, they are the
 * same. */
static zf_status zfi_measure_link(const zf_comm *comm, zfi_mesh mesh, const void *in, void *out,
                                  zf_cost *cost, zf_error *error)
{
    const bool is_mesh = zfi_is_mesh(mesh);
    const zf_group near =
        zfi_mesh_group(mesh, is_mesh ? ZF_OVER_LOCAL : ZF_OVER_ALL, comm->rank);
    zf_status status = zfi_measure_groups(comm, near, in, out, &cost->link.bytes_per_s,
                                          &cost->link.latency_s, error);
    cost->between = cost->link;
    if (status || !is_mesh) return status;
    return zfi_measure_groups(comm, zfi_mesh_group(mesh, ZF_OVER_NODE, comm->rank), in, out,
                              &cost->between.bytes_per_s, &cost->between.latency_s, error);
}

/* A copy, launched as in a step. */
typedef struct zfi_copying {
    zf_run run;
    zf_array from, to;
    zf_launch launch;
} zfi_copying;

/* disk: NULL, or that of one of the two addresses. */
static void zfi_make_copy(zfi_copying *c, const zf_backend *backend, void *to, void *from,
                          size_t bytes, uint8_t queue, void *disk, zf_error *error)
{
    const zf_shape shape = {1, {(int64_t)bytes}};
    *c = (zfi_copying){.run = {.world = 1, .nodes = 1},
                       .from = {from, ZF_U8, shape},
                       .to = {to, ZF_U8, shape}};
    c->launch = (zf_launch){.op = ZF_OP_copy,
                            .arg_count = 1,
                            .args = &c->from,
                            .out = c->to,
                            .disk = disk,
                            .space = queue == ZFI_QUEUE_UPLOAD ? ZF_DEVICE : ZF_HOST,
                            .run = &c->run,
                            .backend = backend->self,
                            .queue = queue,
                            .error = error};
}

/* Seconds of running the launches of a program on the CPU so many times. */
static double zfi_time_launches(const zf_program *p, int times)
{
    const double start = zfi_now();
    for (int k = 0; k < times; k++)
        for (int32_t n = 0; n < p->launch_count; n++)
            if (p->backend->launch(p->backend->self, &p->launches[n])) return 0;
    return zfi_now() - start;
}

/* The part of computing that is lost while a copy runs: products take longer then. A
 * device with memory of its own loses nothing. */
static zf_status zfi_measure_load(zf_backend *backend, const zf_launch *copy, double *load,
                                  zf_error *error)
{
    enum { PRODUCTS = 3, COPIES = 8, WIDTH = 2 * ZFI_COST_WIDTH };
    zf_graph *g;
    zf_program *p;
    zf_status status = ZF_OK;
    double times[ZFI_COST_RUNS];
    if (!backend->host_memory) return ZF_OK;
    if (!(g = zfi_layer_graph(WIDTH, ZF_F32))) return zfi_nomem(error);
    p = zf_compile(g, &(zf_compile_desc){.backend = backend});
    if (!p) status = zfi_fail(error, zf_graph_status(g), "%s", zf_graph_error(g));
    for (int run = 0; run < ZFI_COST_RUNS && !status; run++) {
        const double alone = zfi_time_launches(p, PRODUCTS);
        double both;
        for (int k = 0; k < COPIES && !status; k++) status = backend->launch(backend->self, copy);
        both = zfi_time_launches(p, PRODUCTS);
        if (!status) status = backend->wait(backend->self, copy);
        times[run] = both > alone ? 1 - alone / both : 0;
    }
    if (!status) *load = zfi_median(times, ZFI_COST_RUNS);
    zf_program_free(p);
    zf_graph_free(g);
    return status;
}

/* Seconds of a copy from the device to host memory, or back. */
static zf_status zfi_time_copies(zf_backend *backend, void *device, void *host, bool up,
                                 size_t bytes, int runs, double *seconds, zf_error *error)
{
    double times[ZFI_COST_LATENCIES + 1];
    zf_status status = ZF_OK;
    zfi_copying copy;
    zfi_make_copy(&copy, backend, up ? device : host, up ? host : device, bytes,
                  up ? ZFI_QUEUE_UPLOAD : ZFI_QUEUE_DOWNLOAD, NULL, error);
    for (int k = 0; k <= runs && !status; k++) { /* the first one warms up */
        const double start = zfi_now();
        status = backend->launch(backend->self, &copy.launch);
        if (!status) status = backend->wait(backend->self, &copy.launch);
        if (!status) status = backend->synchronize(backend->self, error);
        times[k] = zfi_now() - start;
    }
    if (!status) *seconds = zfi_median(times + 1, runs);
    return status;
}

/* Measures copies between the backend's memory and that of the host, pinned where it has such. */
static zf_status zfi_measure_copies(zf_backend *backend, zf_cost *cost, zf_error *error)
{
    zfi_memory memory = zfi_memory_of(NULL);
    const bool pinned = backend->allocate_host != NULL;
    void *host = pinned ? backend->allocate_host(backend->self, ZFI_COST_COPY, error)
                        : zfi_calloc(&memory, ZFI_COST_COPY, 1);
    void *device = host ? backend->allocate(backend->self, ZFI_COST_COPY, error) : NULL;
    zf_status status = backend->queues(backend->self, ZFI_QUEUES, error);
    for (int up = 0; up < 2 && device && !status; up++) {
        double large = 0, small = 0;
        status = zfi_time_copies(backend, device, host, up, ZFI_COST_COPY, ZFI_COST_RUNS, &large,
                                 error);
        if (!status)
            status = zfi_time_copies(backend, device, host, up, sizeof(float), ZFI_COST_LATENCIES,
                                     &small, error);
        *(up ? &cost->upload : &cost->download) =
            (zf_cost_link){ZFI_COST_COPY / (large > 2 * small ? large - small : large), small};
    }
    if (device && !status) {
        zfi_copying copy;
        zfi_make_copy(&copy, backend, device, host, ZFI_COST_COPY, ZFI_QUEUE_UPLOAD, NULL, error);
        status = zfi_measure_load(backend, &copy.launch, &cost->copy_load, error);
    }
    if (!host && !pinned) zfi_nomem(error);
    if (!host || !device) status = error->status;
    if (device) backend->release(backend->self, device, ZFI_COST_COPY);
    if (host && pinned) backend->release_host(backend->self, host, ZFI_COST_COPY);
    else zfi_free(&memory, host, ZFI_COST_COPY);
    return status;
}

/* Seconds of the update of a program that has run a step, and the bytes that it moves. */
static zf_status zfi_time_update(const zf_program *p, double *seconds, double *bytes)
{
    double times[ZFI_COST_RUNS] = {0};
    zf_status status = ZF_OK;
    *bytes = 0;
    for (int k = 0; k < ZFI_COST_RUNS; k++)
        for (int32_t n = p->micro_end; n < p->launch_count && !status; n++) {
            const zf_launch *l = &p->launches[n];
            const double start = zfi_now();
            if (!(p->graph->records[l->op]->traits & ZF_OP_UPDATE)) continue;
            status = p->backend->launch(p->backend->self, l);
            if (!status) status = p->backend->synchronize(p->backend->self, l->error);
            times[k] += zfi_now() - start;
            if (!k) *bytes += zf_launch_bytes(l);
        }
    *seconds = zfi_median(times, ZFI_COST_RUNS);
    return status;
}

/* Measures AdamW in f32 on the backend that computes in host memory. */
static zf_status zfi_measure_updates(zf_backend *host, zf_cost *cost, zf_error *error)
{
    zf_status status = ZF_OK;
    double seconds = 0, bytes = 0;
    for (int64_t n = ZFI_COST_ELEMENTS;
         n <= ZFI_COST_MOST_ELEMENTS && !status && seconds < zfi_cost_enough; n *= 4) {
        zf_graph *g = zf_graph_new(NULL);
        zf_tensor a = zf_param(g, "a", ZF_SHAPE(n), NULL);
        zf_program *p = NULL;
        zf_autograd(g, zf_sum(zf_mul(a, a)));
        zf_adamw(g, zf_constant(g, ZF_F32, ZF_SCALAR, 0.01), NULL);
        if (g) p = zf_compile(g, &(zf_compile_desc){.backend = host});
        if (!p) status = zfi_fail(error, zf_graph_status(g), "%s", zf_graph_error(g));
        if (p && ((status = zf_step(p)) || (status = zfi_time_update(p, &seconds, &bytes))))
            zfi_fail(error, status, "%s", p->error.text);
        if (!status) cost->host.bytes_per_s = bytes / seconds;
        zf_program_free(p);
        zf_graph_free(g);
    }
    return status;
}

/* A file of the disk engine for measuring: large chunks, then a page. */
typedef struct zfi_disk_trial {
    zfi_disk *disk;
    char *data;  /* two chunks */
    int written; /* chunks */
} zfi_disk_trial;

enum { ZFI_DISK_CHUNKS = 16 };

/* Seconds of a chunk that is read and one that is written at the same time. */
static double zfi_time_both(const zfi_disk_trial *t, zf_error *error)
{
    const double start = zfi_now();
    int k = 0;
    for (; k < t->written / 2 && !error->status && zfi_now() - start < zfi_cost_disk; k++) {
        zfi_disk_transfer write, read;
        zfi_disk_write(t->disk, 0, (int64_t)k * ZFI_COST_COPY, t->data, ZFI_COST_COPY, &write);
        zfi_disk_read(t->disk, 0, (int64_t)(t->written - 1 - k) * ZFI_COST_COPY,
                      t->data + ZFI_COST_COPY, ZFI_COST_COPY, &read);
        zfi_disk_wait(t->disk, &write, error);
        zfi_disk_wait(t->disk, &read, error);
    }
    return (zfi_now() - start) / (k ? k : 1);
}

/* Seconds of a chunk, over as many as there is time for, two of them in flight. */
static double zfi_time_chunks(zfi_disk_trial *t, bool write, zf_error *error)
{
    zfi_disk_transfer transfers[2];
    const double start = zfi_now();
    int k = 0;
    for (; k < t->written && !error->status && zfi_now() - start < zfi_cost_disk; k++) {
        zfi_disk_transfer *transfer = &transfers[k % 2];
        const int64_t at = (int64_t)k * ZFI_COST_COPY;
        char *data = t->data + (size_t)(k % 2) * ZFI_COST_COPY;
        if (k >= 2) zfi_disk_wait(t->disk, transfer, error);
        if (write) zfi_disk_write(t->disk, 0, at, data, ZFI_COST_COPY, transfer);
        else zfi_disk_read(t->disk, 0, at, data, ZFI_COST_COPY, transfer);
    }
    for (int i = 0; i < 2 && i < k; i++) zfi_disk_wait(t->disk, &transfers[i], error);
    t->written = k;
    return (zfi_now() - start) / (k ? k : 1);
}

/* Seconds of a page. */
static double zfi_time_pages(const zfi_disk_trial *t, bool write, zf_error *error)
{
    double times[ZFI_COST_LATENCIES];
    for (int k = 0; k < ZFI_COST_LATENCIES; k++) {
        zfi_disk_transfer transfer;
        const double start = zfi_now();
        if (write) zfi_disk_write(t->disk, 1, 0, t->data, ZFI_DISK_ALIGN, &transfer);
        else zfi_disk_read(t->disk, 1, 0, t->data, ZFI_DISK_ALIGN, &transfer);
        zfi_disk_wait(t->disk, &transfer, error);
        times[k] = zfi_now() - start;
    }
    return zfi_median(times, ZFI_COST_LATENCIES);
}

/* How much reads and writes of a disk wait for one another, from the seconds of a chunk that is
 * read, of one that is written, and of both at the same time: 0 where both take as long as the
 * longer one, 1 where they take their sum. */
static double zfi_disk_shared(double read, double write, double both)
{
    const double x = (both - fmax(read, write)) / fmin(read, write);
    return x > 0 ? x < 1 ? x : 1 : 0;
}

/* Measures a rank's offload file in `folder`, which is removed afterwards. It is written once
 * before, since the first write may take longer, and a step writes the same places again and
 * again. */
static zf_status zfi_measure_disk(zf_backend *backend, const char *folder, int32_t rank,
                                  int32_t world, zf_cost *cost, zf_error *error)
{
    const int64_t all = (int64_t)ZFI_DISK_CHUNKS * ZFI_COST_COPY;
    const size_t room = 2 * ZFI_COST_COPY + ZFI_DISK_ALIGN;
    const zfi_disk_value values[] = {{"the measured file", 0, all},
                                     {"its last page", all, ZFI_DISK_ALIGN}};
    zfi_memory memory = zfi_memory_of(NULL);
    zfi_disk_trial t = {.written = ZFI_DISK_CHUNKS};
    char run[32], *memory_at = zfi_calloc(&memory, room, 1);
    double write, read, both;
    snprintf(run, sizeof run, "measure-%ld", (long)getpid());
    if (!memory_at) return zfi_nomem(error);
    t.data = memory_at + (ZFI_DISK_ALIGN - (uintptr_t)memory_at % ZFI_DISK_ALIGN) % ZFI_DISK_ALIGN;
    t.disk = zfi_disk_open(&memory,
                           &(zfi_disk_desc){.folder = folder,
                                            .run = run,
                                            .rank = rank,
                                            .world = world,
                                            .bytes = all + ZFI_DISK_ALIGN,
                                            .values = values,
                                            .count = ZFI_COUNT(values)},
                           error);
    if (t.disk) {
        (void)zfi_time_chunks(&t, true, error);
        write = zfi_time_chunks(&t, true, error);
        read = zfi_time_chunks(&t, false, error);
        cost->write.bytes_per_s = ZFI_COST_COPY / write;
        cost->read.bytes_per_s = ZFI_COST_COPY / read;
        both = zfi_time_both(&t, error);
        cost->disk.shared = zfi_disk_shared(read, write, both);
        cost->write.latency_s = zfi_time_pages(&t, true, error);
        cost->read.latency_s = zfi_time_pages(&t, false, error);
    }
    if (t.disk && !error->status) {
        zfi_copying copy;
        zfi_make_copy(&copy, backend, t.data, t.disk->base, ZFI_COST_COPY, ZFI_QUEUE_READ, t.disk,
                      error);
        zfi_measure_load(backend, &copy.launch, &cost->disk.load, error);
    }
    zfi_disk_close(t.disk);
    zfi_free(&memory, memory_at, room);
    return error->status;
}

/* Rates and latencies for estimates of a step with zf_offload. */
static zf_status zfi_measure_spaces(const zf_calibrate_desc *d, zf_backend *backend, zf_cost *cost,
                                    zf_error *error)
{
    zf_backend *host = zfi_host_backend(backend, d->host), *own = NULL;
    if (!host) host = own = zf_cpu_backend(NULL, error);
    if (host && !zfi_measure_copies(backend, cost, error) &&
        !zfi_measure_updates(host, cost, error) && d->offload_dir)
        zfi_measure_disk(backend, d->offload_dir, d->comm ? d->comm->rank : 0,
                         d->comm ? d->comm->world : 1, cost, error);
    zf_backend_free(own);
    return error->status;
}

/* Gives rank 0's table to all ranks. */
static zf_status zfi_share_cost(const zf_comm *comm, zf_cost *cost, zf_error *error)
{
    double rates[ZFI_COST_MEMBERS];
    const zf_collective tell = {
        .op = ZF_OP_bcast, .dtype = ZF_F64, .count = ZFI_COST_MEMBERS, .in = rates, .out = rates};
    zf_status status;
    for (int k = 0; k < ZFI_COST_MEMBERS; k++) rates[k] = *zfi_cost_member(cost, k);
    status = comm->run(comm->self, &tell, error);
    for (int k = 0; k < ZFI_COST_MEMBERS && !status; k++) *zfi_cost_member(cost, k) = rates[k];
    return status;
}

/* Measures the rates of this rank alone. */
static zf_status zfi_measure_rank(const zf_calibrate_desc *d, zf_backend *backend, zf_cost *cost,
                                  zf_error *error)
{
    zf_error mine = {ZF_OK, ""};
    zf_status status = zfi_measure_memory(backend, cost, &mine);
    if (!status)
        status = zfi_measure_products(backend, ZF_F32, cost, &cost->device.flops_per_s, &mine);
    if (!status)
        status =
            zfi_measure_products(backend, ZF_BF16, cost, &cost->device.half_flops_per_s, &mine);
    if (!status) status = zfi_measure_functions(backend, cost, &mine);
    if (!status) status = zfi_measure_spaces(d, backend, cost, &mine);
    return status ? zfi_fail(error, status, "zf_calibrate: %s", mine.text) : ZF_OK;
}

ZF_API zf_status zf_calibrate(const zf_calibrate_desc *desc, zf_cost *cost, zf_error *error)
{
    zf_calibrate_desc d = desc ? *desc : (zf_calibrate_desc){.backend = NULL};
    const size_t bytes = ZFI_COST_MOST_LINK + sizeof(float) * (d.comm ? (size_t)d.comm->world : 1);
    zf_error mine = {ZF_OK, ""};
    zf_backend *own = d.backend ? NULL : zf_cpu_backend(NULL, &mine);
    zf_backend *backend = d.backend ? d.backend : own;
    zf_cost measured = zf_cost_default();
    void *out = NULL, *in = NULL;
    measured.host.apart = backend && !backend->host_memory;
    if (d.comm && d.comm->world < 2) d.comm = NULL;
    if (!d.nodes) d.nodes = 1;
    if (d.nodes < 1 || (d.comm && d.comm->world % d.nodes))
        zfi_fail(&mine, ZF_ERR_ARGUMENT,
                 "zf_calibrate: nodes is %d; it must divide the world of %d", (int)d.nodes,
                 d.comm ? (int)d.comm->world : 1);
    if (!cost) zfi_fail(&mine, ZF_ERR_ARGUMENT, "zf_calibrate: cost is NULL");
    if (!mine.status && d.comm) {
        out = backend->allocate(backend->self, bytes, &mine);
        if (out) in = backend->allocate(backend->self, bytes, &mine);
    }
    /* Ranks measure at the same time, as they will run. A failure on one is a failure on all. */
    zfi_comm_agree(d.comm, &mine);
    if (!mine.status) {
        zfi_measure_rank(&d, backend, &measured, &mine);
        zfi_comm_agree(d.comm, &mine);
    }
    if (!mine.status && d.comm)
        zfi_measure_link(d.comm, zfi_mesh_along_data(d.comm->world, d.nodes), in, out, &measured,
                         &mine);
    if (!mine.status && d.comm) zfi_share_cost(d.comm, &measured, &mine);
    if (in) backend->release(backend->self, in, bytes);
    if (out) backend->release(backend->self, out, bytes);
    zf_backend_free(own);
    if (mine.status) return zfi_fail(error, mine.status, "%s", mine.text);
    *cost = measured;
    return ZF_OK;
}

/* ------------------------------------------------------------------------------------- files */

/* The error for an unknown member: lists the members that a table has. */
static void zfi_no_such_rate(const zf_json *member, zf_error *error)
{
    char names[400] = "";
    size_t at = 0;
    for (int k = 0; k < ZFI_COST_MEMBERS; k++)
        at += (size_t)snprintf(names + at, sizeof names - at, "%s%s",
                               !k                         ? ""
                               : k < ZFI_COST_MEMBERS - 1 ? ", "
                                                          : " and ",
                               zfi_cost_members[k].name);
    zf_json_fail(member, error, "is no rate; there are %s", names);
}

ZF_API zf_status zf_cost_read(const char *path, zf_cost *cost, const zf_allocator *allocator,
                              zf_error *error)
{
    zf_error mine = {ZF_OK, ""};
    zf_json *file = path && cost ? zf_json_read(path, allocator, &mine) : NULL;
    zf_cost read = zf_cost_default();
    /* then they are others of the table */
    read.device.half_flops_per_s = read.device.half_values_per_s = read.device.functions_per_s = 0;
    read.between.bytes_per_s = 0;
    if (!path || !cost)
        return zfi_fail(error, ZF_ERR_ARGUMENT, "zf_cost_read: %s is NULL", path ? "cost" : "path");
    if (file && zf_json_type_of(file) != ZF_JSON_OBJECT)
        zf_json_expected(file, &mine, "an object of rates");
    for (const zf_json *v = zf_json_first(file); v && !mine.status; v = zf_json_next(v)) {
        int k = 0;
        while (k < ZFI_COST_MEMBERS && strcmp(zf_json_key(v, NULL), zfi_cost_members[k].name)) k++;
        if (k == ZFI_COST_MEMBERS) zfi_no_such_rate(v, &mine);
    }
    for (int k = 0; k < ZFI_COST_MEMBERS && !mine.status; k++) {
        const char *name = zfi_cost_members[k].name;
        if (zfi_cost_members[k].optional && !zf_json_member(file, name)) continue;
        zf_json_to_double(zf_json_require(file, name, &mine), zfi_cost_members[k].least,
                          zfi_cost_members[k].most, zfi_cost_member(&read, k), &mine);
    }
    zf_json_free(file);
    if (mine.status) return zfi_fail(error, mine.status, "%s", mine.text);
    *cost = zfi_cost_resolved(&read);
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
    copy = zfi_cost_resolved(cost);
    for (int k = 0; k < ZFI_COST_MEMBERS; k++) {
        double x = *zfi_cost_member(&copy, k);
        if (!(x >= zfi_cost_members[k].least && x <= zfi_cost_members[k].most))
            return zfi_fail(
                error, ZF_ERR_ARGUMENT, "zf_cost_save: %s is %g; it must be from %g to %g",
                zfi_cost_members[k].name, x, zfi_cost_members[k].least, zfi_cost_members[k].most);
    }
    w = zf_json_writer_new(2, allocator);
    zf_json_begin_object(w);
    for (int k = 0; k < ZFI_COST_MEMBERS; k++) {
        zf_json_put_key(w, zfi_cost_members[k].name);
        zf_json_put_double(w, *zfi_cost_member(&copy, k));
    }
    zf_json_end(w);
    zf_json_save(w, path, &mine);
    zf_json_writer_free(w);
    return mine.status ? zfi_fail(error, mine.status, "%s", mine.text) : ZF_OK;
}
