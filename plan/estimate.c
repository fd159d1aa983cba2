/* Estimates the time of a step: simulates the plan's queues with a cost table.
 *
 *     compute   | matmul      | matmul   |::::| adamw |::| copy |
 *     download      | copy          |..........^ wait
 *     read      | copy | copy |                         ^
 *
 *     ::::  exposed: queue compute waits for another resource. The time of queue compute itself
 *           counts as exposed too, so that all exposed times add up to the time of the step. So
 *           does the part of hidden copies that slows computation down
 *
 * A resource does one thing at a time, in the order in which nodes are issued: gathers and
 * reductions share one link, though they have two queues. Everything on a queue is waited for
 * within its section, so each run of the micro section takes as long as the first.
 *
 * Where host memory has processors of its own (zf_cost.host.apart), what is computed there runs
 * concurrently with queue compute, in order, as cuda/hosted.cu says: it begins when what it waits
 * for is done, and queue compute waits for it only where it waits for a copy of its result, and at
 * the end of a section. A wait for a copy from or to a disk is then one of the host.
 *
 *     compute   | backward | backward | backward |::::::::|
 *     download      | copy |                             ^ end of the section
 *     host                 |  adamw   |    adamw     |
 */

/* Until `end`, the host computes or waits for a disk. */
typedef struct zfi_busy_host {
    zf_resource resource;
    double end;
} zfi_busy_host;

typedef struct zfi_simulation {
    zf_graph *graph;
    zf_cost cost;
    zf_estimate *estimate;
    double *done;   /* by node on a queue: the time at which it is done */
    double *hosted; /* by owner of bytes in host memory: when the host is done with them; */
    double now;   /* the time on queue compute */
    double after; /* and the time after which the host may go on */
    double free[ZF_RESOURCES];
    zfi_busy_host *spans; /* what the host does, in its order; growing array */
    int32_t span;         /* the first that ends after `now` */
    double times; /* number of runs of the section */
    zf_span *shown; /* for zf_graph_timeline, `room` of them; NULL: not asked for */
    int32_t shown_count, room;
} zfi_simulation;

ZF_API const char *zf_resource_name(zf_resource resource)
{
    static const char *const names[ZF_RESOURCES] = {"compute", "host", "link", "download",
                                                    "upload",  "read", "write"};
    return (unsigned)resource < ZF_RESOURCES ? names[resource] : NULL;
}

static zf_resource zfi_resource_of(const zf_graph *g, int32_t id)
{
    static const zf_resource of_copies[] = {ZF_RESOURCE_DOWNLOAD, ZF_RESOURCE_UPLOAD,
                                            ZF_RESOURCE_READ, ZF_RESOURCE_WRITE};
    const zfi_node *node = &g->nodes[id];
    if (node->op == ZF_OP_copy) return of_copies[zfi_queue_of_copy(g, node) - ZFI_QUEUE_DOWNLOAD];
    if (zfi_has(g, id, ZF_OP_COLLECTIVE)) return ZF_RESOURCE_LINK;
    return node->space == ZF_HOST ? ZF_RESOURCE_HOST : ZF_RESOURCE_COMPUTE;
}

/* Seconds for the bytes of a collective alone. */
static double zfi_link_seconds(const zf_cost *cost, const zf_moved *moved)
{
    return (double)(moved->bytes - moved->between) / cost->link.bytes_per_s +
           (double)moved->between / cost->between.bytes_per_s;
}

/* Seconds of any node, on the resource that runs it. */
static double zfi_seconds_of(const zf_graph *g, const zf_cost *cost, int32_t id)
{
    const zfi_node *node = &g->nodes[id];
    zf_traffic traffic = {.all_gather = {0}};
    const zf_moved *moved = zfi_count_node(&traffic, g, id, 1, -1);
    if (!moved) return zfi_node_seconds(g, cost, id);
    if (node->op == ZF_OP_copy)
        return zfi_copy_seconds(cost, zfi_queue_of_copy(g, node), (int64_t)moved->bytes);
    if (ZF_INT(node, all_gather, world) <= 1) return 0;
    return (moved->between ? cost->between.latency_s : cost->link.latency_s) +
           zfi_link_seconds(cost, moved);
}

/* Moves queue compute to the time `end`; until then it waits for the resource. */
static void zfi_expose(zfi_simulation *s, zf_resource resource, double end)
{
    if (end <= s->now) return;
    s->estimate->exposed[resource] += s->times * (end - s->now);
    s->now = end;
}

static void zfi_raise_to(double *time, double least)
{
    if (*time < least) *time = least;
}

/* Moves queue compute to the time `end`; until then it waits for the host. */
static void zfi_expose_host(zfi_simulation *s, double end)
{
    for (; s->span < zfi_len(s->spans); s->span++) {
        const zfi_busy_host *at = &s->spans[s->span];
        zfi_expose(s, at->resource, at->end < end ? at->end : end);
        if (at->end > end) return;
    }
    zfi_expose(s, ZF_RESOURCE_HOST, end);
}

/* The host is busy until `end` with work of the resource. */
static void zfi_keep_host(zfi_simulation *s, zf_resource resource, double end)
{
    if (end <= s->free[ZF_RESOURCE_HOST]) return;
    zfi_push(&s->graph->memory, s->spans, ((zfi_busy_host){resource, end}));
    s->free[ZF_RESOURCE_HOST] = end;
}

/* When the host is done with the bytes of a value in host memory. */
static double *zfi_hosted_at(zfi_simulation *s, int32_t id)
{
    return &s->hosted[zfi_bytes_of(s->graph, id)];
}

/* The host is done with the value, and with what the node reads of host memory, at this time. */
static void zfi_note_hosted(zfi_simulation *s, int32_t id, double end)
{
    const zfi_node *node = &s->graph->nodes[id];
    zfi_raise_to(zfi_hosted_at(s, id), end);
    for (int32_t k = 0; k < node->arg_count; k++)
        zfi_raise_to(zfi_hosted_at(s, node->args[k]), end);
}

/* The end of work of the resource that begins at `start`. Reads and writes of a disk that run at
 * the same time slow each other down, as far as they share it. */
static double zfi_end_of(zfi_simulation *s, zf_resource resource, double start, double seconds)
{
    const zf_resource other = resource == ZF_RESOURCE_READ ? ZF_RESOURCE_WRITE : ZF_RESOURCE_READ;
    double both;
    if (resource < ZF_RESOURCE_READ || s->free[other] <= start) return start + seconds;
    both = s->free[other] - start < seconds ? s->free[other] - start : seconds;
    s->free[other] += s->cost.disk.shared * both;
    return start + seconds + s->cost.disk.shared * both;
}

/* The node takes this time of the resource. */
static void zfi_show_span(zfi_simulation *s, int32_t id, zf_resource resource, double from,
                          double to)
{
    const int32_t n = s->shown_count++;
    if (n < s->room) s->shown[n] = (zf_span){id, resource, from, to};
}

/* A node that the host computes concurrently with the device, or a copy from or to a disk. */
static void zfi_play_host(zfi_simulation *s, int32_t id, zf_resource resource, double seconds)
{
    double begin = s->free[ZF_RESOURCE_HOST], end;
    zfi_raise_to(&begin, s->after);
    zfi_raise_to(&begin, s->free[resource]);
    end = zfi_end_of(s, resource, begin, seconds);
    zfi_show_span(s, id, resource, begin, end);
    s->estimate->busy[resource] += s->times * seconds;
    if (s->graph->nodes[id].queue) {
        s->done[id] = s->free[resource] = end;
        return;
    }
    zfi_keep_host(s, resource, end);
    s->free[resource] = end;
    zfi_note_hosted(s, id, end);
}

/* The value in host memory of a copy between it and the device. */
static int32_t zfi_host_side(const zf_graph *g, int32_t id)
{
    return g->nodes[id].space == ZF_DEVICE ? g->nodes[id].args[0] : id;
}

/* A wait on queue compute; for a copy from or to a disk, on the host that runs concurrently. */
static void zfi_play_wait(zfi_simulation *s, int32_t id)
{
    const zf_resource resource = zfi_resource_of(s->graph, id);
    const bool copies = s->cost.host.apart > 0 && s->graph->nodes[id].op == ZF_OP_copy;
    if (copies && resource >= ZF_RESOURCE_READ) {
        zfi_keep_host(s, resource, s->done[id]);
        zfi_note_hosted(s, id, s->free[ZF_RESOURCE_HOST]);
        return;
    }
    if (copies) zfi_expose_host(s, *zfi_hosted_at(s, zfi_host_side(s->graph, id)));
    zfi_expose(s, resource, s->done[id]);
    zfi_raise_to(&s->after, s->now);
}

static void zfi_play_seconds(zfi_simulation *s, int32_t id)
{
    const zfi_node *node = &s->graph->nodes[id];
    const zf_resource resource = zfi_resource_of(s->graph, id);
    const bool apart = s->cost.host.apart > 0,
               crosses = apart && node->op == ZF_OP_copy && resource < ZF_RESOURCE_READ;
    double seconds, begin, end;
    if (node->op == ZF_OP_wait) {
        zfi_play_wait(s, node->args[0]);
        return;
    }
    if ((seconds = zfi_seconds_of(s->graph, &s->cost, id)) <= 0) return;
    if (apart && (resource == ZF_RESOURCE_HOST || resource >= ZF_RESOURCE_READ)) {
        zfi_play_host(s, id, resource, seconds);
        return;
    }
    if (zfi_runs_first(node)) seconds /= s->times;
    begin = crosses ? *zfi_hosted_at(s, zfi_host_side(s->graph, id)) : 0;
    if (crosses && !node->queue) zfi_expose_host(s, begin);
    zfi_raise_to(&begin, s->now);
    zfi_raise_to(&begin, s->free[resource]);
    end = zfi_end_of(s, resource, begin, seconds);
    zfi_show_span(s, id, resource, begin, end);
    s->estimate->busy[resource] += s->times * seconds;
    s->free[resource] = end;
    if (node->queue) s->done[id] = end;
    else zfi_expose(s, resource, end);
    if (crosses && !node->queue) zfi_raise_to(&s->after, s->now);
}

/* Adds the time that hidden copies take from computing. */
static void zfi_add_loads(zf_estimate *e, const zf_cost *cost)
{
    for (int k = ZF_RESOURCE_DOWNLOAD; k <= ZF_RESOURCE_WRITE; k++)
        e->exposed[k] += (e->busy[k] - e->exposed[k]) *
                         (k < ZF_RESOURCE_READ ? cost->copy_load : cost->disk.load);
}

/* The estimate of a graph, with a table that has been checked. *count: spans[0..*count) may be
 * written; then how many there are. */
static zf_status zfi_simulate(zf_graph *g, const zf_cost *cost, zf_estimate *e, zf_span *spans,
                          int32_t *count)
{
    const size_t nodes = (size_t)zfi_len(g->nodes);
    zfi_simulation s = {.graph = g,
                        .cost = zfi_cost_resolved(cost),
                        .estimate = e,
                        .shown = spans,
                        .room = spans ? *count : 0};
    bool update = false;
    *e = (zf_estimate){0};
    if (!(s.done = zfi_calloc(&g->memory, 2 * nodes, sizeof *s.done))) return zfi_graph_nomem(g);
    s.hosted = s.done + nodes;
    s.times = (double)g->micro_batches;
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        if (g->nodes[g->order[i]].update && !update) {
            zfi_expose_host(&s, s.free[ZF_RESOURCE_HOST]); /* losses are checked between sections */
            update = true, s.times = 1;
        }
        zfi_play_seconds(&s, g->order[i]);
    }
    zfi_expose_host(&s, s.free[ZF_RESOURCE_HOST]);
    zfi_add_loads(e, &s.cost);
    for (int k = 0; k < ZF_RESOURCES; k++) e->seconds += e->exposed[k];
    zfi_free(&g->memory, s.done, 2 * nodes * sizeof *s.done);
    zfi_array_free(&g->memory, s.spans);
    *count = s.shown_count;
    return g->memory.failed ? zfi_graph_nomem(g) : ZF_OK;
}

static zf_status zfi_estimate(zf_graph *g, const zf_cost *cost, zf_estimate *e)
{
    int32_t count = 0;
    return zfi_simulate(g, cost, e, NULL, &count);
}

ZF_API zf_status zf_graph_estimate(zf_graph *g, const zf_cost *cost, zf_estimate *estimate)
{
    if (!g || !estimate) return ZF_ERR_ARGUMENT;
    *estimate = (zf_estimate){0};
    if (g->error.status || zfi_check_cost(g, "zf_graph_estimate", cost)) return g->error.status;
    return zfi_estimate(g, cost, estimate);
}

ZF_API zf_status zf_graph_timeline(zf_graph *g, const zf_cost *cost, zf_span *spans, int32_t *count)
{
    zf_estimate estimate;
    if (!g || !count || *count < 0) return ZF_ERR_ARGUMENT;
    if (g->error.status || zfi_check_cost(g, "zf_graph_timeline", cost)) return g->error.status;
    return zfi_simulate(g, cost, &estimate, spans, count);
}
