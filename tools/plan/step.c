/* The plan of a step: its graph, its passes, its memory, its time. */
#define _GNU_SOURCE /* clock_gettime */
#include "plan.h"

#include <stdlib.h>
#include <time.h>

static void *metered(void *user, void *ptr, size_t old_size, size_t new_size)
{
    meter *m = user;
    void *block = NULL;
    if (!new_size) free(ptr);
    else if (!(block = realloc(ptr, new_size))) return NULL;
    m->bytes += new_size - old_size;
    if (m->bytes > m->peak) m->peak = m->bytes;
    return block;
}

zf_graph *plan_graph(result *r)
{
    *r = (result){.plan_ms = 0};
    return zf_graph_new(&(zf_graph_desc){.allocator = {metered, &r->meter}});
}

double plan_now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

/* The nodes over which the ranks along data are. Neighbours share layers, so a node has whole
 * groups along tensor, or a part of one. */
static int32_t plan_data_nodes(const options *o)
{
    const int64_t each =
        o->world / o->nodes / (o->tensor * o->context); /* ranks along data in a node */
    if (o->nodes == 1 || each >= o->data) return 1;
    return (int32_t)(each ? o->data / each : o->data);
}

bool plan_adds_first(const options *o)
{
    const zf_training t = {.stages.ranks = (int32_t)o->pipe, .zero.sum = o->t.zero.sum};
    return o->data > 1 && o->t.zero.micro_batches > 1 &&
           zf_training_resolved(&t).zero.sum == ZF_SUM_MICRO;
}

zf_status plan_rewrite(zf_graph *g, zf_tensor loss, const options *o)
{
    zf_training t = o->t;
    t.loss = loss;
    t.zero.world = (int32_t)o->data, t.zero.nodes = plan_data_nodes(o);
    t.zero.mics = o->mics != 0;
    t.stages = (zf_stages_desc){.ranks = 0};
    if (o->pipe > 1)
        t.stages = (zf_stages_desc){.ranks = (int32_t)o->pipe,
                                    .layers = o->t.stages.layers,
                                    .schedule = {o->schedule.kind, o->schedule.chunks}};
    t.prefetch.keep_gathered =
        t.prefetch.bytes > 0 && o->pipe == 1; /* a schedule has no use for it */
    t.memory_limit = (size_t)o->memory;
    t.cost = o->cost_file ? &o->cost : NULL;
    return zf_passes(g, &t);
}

zf_status plan_passes(zf_graph *g, zf_tensor loss, const options *o, result *r)
{
    const double start = plan_now_ms();
    plan_rewrite(g, loss, o);
    zf_memory(g, NULL);
    r->plan_ms = plan_now_ms() - start;
    if (zf_graph_work(g, ZF_OP_none, &r->work) || zf_graph_estimate(g, &o->cost, &r->estimate))
        return zf_graph_status(g);
    return zf_graph_plan(g, &r->plan);
}

bool plan_of(const options *o, result *r, char error[512])
{
    zf_graph *g = plan_graph(r);
    const bool good = g && !plan_passes(g, plan_model(g, o), o, r);
    snprintf(error, 512, "%s", g ? zf_graph_error(g) : "out of memory");
    zf_graph_free(g);
    /* Names of a graph that is freed */
    for (int k = 0; k < ZF_SPACES; k++)
        r->plan.spaces[k].peak_op = r->plan.spaces[k].peak_scope = "";
    return good;
}

bool plan_plain(const options *o, options *plain)
{
    const zf_zero_desc *zero = &o->t.zero;
    *plain = *o;
    plain->mics = 0;
    plain->t.zero = (zf_zero_desc){.stage = zero->stage,
                                   .micro_batches = zero->micro_batches,
                                   .sum = zero->sum,
                                   .bucket_bytes = zero->bucket_bytes};
    return o->mics || zero->hpz || zero->quantized_weights || zero->quantized_gradients;
}

/* -------------------------------------------------------------------------- what a step moves */

static const struct {
    const char *name;
    size_t at; /* in zf_traffic */
} movements[PLAN_MOVEMENTS] = {
    {"all_gather", offsetof(zf_traffic, all_gather)},
    {"reduce_scatter", offsetof(zf_traffic, reduce_scatter)},
    {"all_reduce", offsetof(zf_traffic, all_reduce)},
    {"all_to_all", offsetof(zf_traffic, all_to_all)},
    {"broadcast", offsetof(zf_traffic, bcast)},
    {"send", offsetof(zf_traffic, send)},
    {"download", offsetof(zf_traffic, download)},
    {"upload", offsetof(zf_traffic, upload)},
    {"read", offsetof(zf_traffic, read)},
    {"write", offsetof(zf_traffic, write)},
};

const char *plan_movement(int k) { return movements[k].name; }

zf_moved plan_moved(const zf_plan *plan, int k)
{
    return *(const zf_moved *)(const void *)((const char *)&plan->traffic + movements[k].at);
}

double plan_nccl_bytes(const options *o)
{
    const double mib = 1 << 20;
    return o->world < 2 ? 0 : 3 * (32 + 2) * mib + 3.0 * 16 * (double)o->world * 12 * mib;
}
