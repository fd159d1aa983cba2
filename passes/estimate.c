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
 * within its section, so each run of the micro section takes as long as the first. */

typedef struct zfi_simulation {
    const zf_graph *graph;
    zf_cost cost;
    zf_estimate *estimate;
    double *done; /* by node on a queue: the time at which it is done */
    double now;   /* the time on queue compute */
    double free[ZF_RESOURCES];
    double times; /* number of runs of the section */
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
    return (double)(moved->bytes - moved->between) / cost->link_bytes_per_s +
           (double)moved->between / cost->between_bytes_per_s;
}

/* Seconds of any node, on the resource that runs it. */
static double zfi_seconds_of(const zf_graph *g, const zf_cost *cost, int32_t id)
{
    const zfi_node *node = &g->nodes[id];
    zf_traffic traffic = {.all_gather = {0}};
    const zf_moved *moved = zfi_count_node(&traffic, g, id, 1);
    if (!moved) return zfi_node_seconds(g, cost, id);
    if (node->op == ZF_OP_copy)
        return zfi_copy_seconds(cost, zfi_queue_of_copy(g, node), (int64_t)moved->bytes);
    if (ZF_INT(node, all_gather, world) <= 1) return 0;
    return (moved->between ? cost->between_latency_s : cost->link_latency_s) +
           zfi_link_seconds(cost, moved);
}

/* Moves queue compute to the time `end`; until then it waits for the resource. */
static void zfi_expose(zfi_simulation *s, zf_resource resource, double end)
{
    if (end <= s->now) return;
    s->estimate->exposed[resource] += s->times * (end - s->now);
    s->now = end;
}

static void zfi_play_seconds(zfi_simulation *s, int32_t id)
{
    const zfi_node *node = &s->graph->nodes[id];
    zf_resource resource = zfi_resource_of(s->graph, id);
    double seconds, end;
    if (node->op == ZF_OP_wait) {
        zfi_expose(s, zfi_resource_of(s->graph, node->args[0]), s->done[node->args[0]]);
        return;
    }
    if ((seconds = zfi_seconds_of(s->graph, &s->cost, id)) <= 0) return;
    end = (s->free[resource] > s->now ? s->free[resource] : s->now) + seconds;
    s->estimate->busy[resource] += s->times * seconds;
    s->free[resource] = end;
    if (node->queue) s->done[id] = end;
    else zfi_expose(s, resource, end);
}

/* Adds the time that hidden copies take from computing. */
static void zfi_add_loads(zf_estimate *e, const zf_cost *cost)
{
    for (int k = ZF_RESOURCE_DOWNLOAD; k <= ZF_RESOURCE_WRITE; k++)
        e->exposed[k] += (e->busy[k] - e->exposed[k]) *
                         (k < ZF_RESOURCE_READ ? cost->copy_load : cost->disk_load);
}

/* The estimate of a graph, with a table that has been checked. */
static zf_status zfi_estimate(zf_graph *g, const zf_cost *cost, zf_estimate *e)
{
    const size_t nodes = (size_t)zfi_len(g->nodes);
    zfi_simulation s = {.graph = g, .cost = zfi_cost_resolved(cost), .estimate = e};
    bool update = false;
    *e = (zf_estimate){0};
    if (!(s.done = zfi_calloc(&g->memory, nodes, sizeof *s.done))) return zfi_graph_nomem(g);
    s.times = (double)g->micro_batches;
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        if (g->nodes[g->order[i]].update && !update) update = true, s.times = 1;
        zfi_play_seconds(&s, g->order[i]);
    }
    zfi_add_loads(e, &s.cost);
    for (int k = 0; k < ZF_RESOURCES; k++) e->seconds += e->exposed[k];
    zfi_free(&g->memory, s.done, nodes * sizeof *s.done);
    return ZF_OK;
}

ZF_API zf_status zf_graph_estimate(zf_graph *g, const zf_cost *cost, zf_estimate *estimate)
{
    if (!g || !estimate) return ZF_ERR_ARGUMENT;
    *estimate = (zf_estimate){0};
    if (g->error.status || zfi_check_cost(g, "zf_graph_estimate", cost)) return g->error.status;
    return zfi_estimate(g, cost, estimate);
}
