/* The plan of each rank of a pipeline, which has a stage, or several chunks, and of the ranks'
 * axes. The seconds of a step are those of the slowest rank, and its idle time by the schedule. */
#include "plan.h"

#include <stdlib.h>
#include <string.h>

/* The number in a parameter's name, "h.3.w"; -1: there is none. */
static int64_t layer_of(const char *name)
{
    for (const char *at = name; (at = strchr(at, '.')); at++)
        if (at[1] >= '0' && at[1] <= '9') return strtoll(at + 1, NULL, 10);
    return -1;
}

static int32_t count_layers(const zf_graph *g)
{
    int32_t count = 0;
    int64_t last = -1;
    zf_node node;
    for (int32_t at = 0; zf_graph_node(g, at, &node); at++) {
        const int64_t layer = node.op == ZF_OP_param ? layer_of(node.name) : -1;
        if (layer > last) last = layer, count++;
    }
    return count;
}

int64_t plan_slots(zf_pipe p, int64_t rank)
{
    const int64_t later = p.ranks - 1 - rank, chunks = p.chunks, all = p.micro_batches * chunks,
                  kept = p.kind == ZF_PIPE_GPIPE         ? all
                         : p.kind == ZF_PIPE_1F1B        ? later + 1
                         : p.kind == ZF_PIPE_INTERLEAVED ? 2 * later + (chunks - 1) * p.ranks + 1
                                                         : p.ranks * chunks;
    return kept < all ? kept : all;
}

/* What is sent along pipe goes between nodes where a node has no more than one stage. */
static void count_nodes(const options *o, stage_plan *s)
{
    const zf_cost *c = &o->cost;
    const int64_t node = o->world / o->nodes;
    double more;
    if (o->nodes < 2 || node > o->tensor * o->context * o->data || c->between.bytes_per_s <= 0)
        return;
    more = (double)plan_sent(&s->plan, PLAN_PIPE) *
           (1 / c->between.bytes_per_s - 1 / c->link.bytes_per_s);
    s->estimate.seconds += more, s->estimate.exposed[ZF_RESOURCE_LINK] += more;
}

static bool plan_stage(const zf_graph *whole, const options *o, int32_t k, stage_plan *s,
                       char error[512])
{
    zf_graph *g = zf_graph_copy(whole);
    const bool good = g && !zf_keep_stage(g, k) && !zf_memory(g, NULL) &&
                      !zf_graph_plan(g, &s->plan) && !zf_graph_estimate(g, &o->cost, &s->estimate);
    if (!good)
        snprintf(error, 512, "%s", g && zf_graph_status(g) ? zf_graph_error(g) : "out of memory");
    if (good) s->layers = count_layers(g), count_nodes(o, s);
    zf_graph_free(g);
    for (int space = 0; space < ZF_SPACES; space++) /* names of a graph that is freed */
        s->plan.spaces[space].peak_op = s->plan.spaces[space].peak_scope = "";
    return good;
}

/* Idle time of the schedule as a part of the time in which a rank computes, where the backward pass
 * takes twice the forward pass and what it recomputes; the most of any rank. */
static bool find_idle(const options *o, stages_plan *p, char error[512])
{
    const zf_plan *first = &p->stages[0].plan;
    const double again = first->flops > 0 ? 3 * first->recomputed_flops / first->flops : 0;
    const zf_pipe_times times = {100, 100 + (int64_t)(100 * again), 100};
    const double work = (double)(times.forward + times.backward + times.weights) *
                        (double)o->schedule.micro_batches * (double)o->schedule.chunks;
    int64_t *idle = calloc((size_t)o->pipe, sizeof *idle), most = 0;
    zf_error said = {ZF_OK, "out of memory"};
    const bool good = idle && !zf_pipe_idle(&o->schedule, &times, idle, &said);
    for (int64_t r = 0; r < o->pipe && good; r++)
        if (idle[r] > most) most = idle[r];
    if (!good) snprintf(error, 512, "%s", said.text);
    p->idle = (double)most / work;
    free(idle);
    return good;
}

static void find_most(stages_plan *p)
{
    for (int64_t k = 0; k < p->count; k++) {
        if (p->stages[k].peak > p->stages[p->largest].peak) p->largest = k;
        if (p->stages[k].estimate.seconds > p->stages[p->slowest].estimate.seconds) p->slowest = k;
    }
    p->seconds = p->stages[p->slowest].estimate.seconds * (1 + p->idle);
}

/* Plans each rank; for a search one of each kind: the first, which has most micro-batches in
 * flight. */
static bool plan_each(const zf_graph *g, const options *o, stages_plan *p, char error[512])
{
    int32_t *const kind = calloc((size_t)o->pipe, sizeof *kind);
    bool good = kind && p->stages && plan_kinds(g, &o->schedule, kind);
    snprintf(error, 512, "out of memory");
    for (int32_t k = 0; k < (int32_t)o->pipe && good; k++) {
        stage_plan *const s = &p->stages[k];
        const int64_t slots = plan_slots(o->schedule, k);
        if (kind[k] == k || (!o->search && p->stages[kind[k]].slots != slots))
            good = plan_stage(g, o, k, s, error);
        else *s = p->stages[kind[k]];
        s->slots = slots, s->peak = s->plan.peak_bytes;
    }
    free(kind);
    return good && find_idle(o, p, error);
}

bool plan_stages(const options *o, stages_plan *p, char error[512])
{
    result r;
    zf_graph *g = plan_graph(&r);
    const double start = plan_now_ms();
    bool good = g && !plan_rewrite(g, plan_model(g, o), o);
    *p = (stages_plan){.count = o->pipe, .stages = calloc((size_t)o->pipe, sizeof *p->stages)};
    if (!good) snprintf(error, 512, "%s", g ? zf_graph_error(g) : "out of memory");
    good = good && plan_each(g, o, p, error);
    zf_graph_free(g);
    if (good) find_most(p);
    p->plan_ms = plan_now_ms() - start, p->plan_peak_bytes = r.meter.peak;
    if (!good) plan_stages_free(p);
    return good;
}

void plan_stages_free(stages_plan *p)
{
    free(p->stages);
    *p = (stages_plan){.count = 0};
}

size_t plan_sent(const zf_plan *plan, plan_axis axis)
{
    static const zf_over overs[PLAN_AXES][6] = {
        {ZF_OVER_ALL, ZF_OVER_NODE, ZF_OVER_LOCAL, ZF_OVER_DATA, ZF_OVER_EXPERT, ZF_OVER_OWNERS},
        {ZF_OVER_CONTEXT},
        {ZF_OVER_TENSOR, ZF_OVER_GROUP, ZF_OVER_COPIES},
        {ZF_OVER_PIPE}};
    static const int kinds[PLAN_AXES] = {6, 1, 3, 1};
    size_t bytes = 0;
    for (int k = 0; k < kinds[axis]; k++) {
        const zf_traffic *t = &plan->traffic_over[overs[axis][k]];
        bytes += t->all_gather.bytes + t->reduce_scatter.bytes + t->all_reduce.bytes +
                 t->all_to_all.bytes + t->bcast.bytes + t->send.bytes;
    }
    return bytes;
}

const char *plan_axis_name(plan_axis axis)
{
    static const char *const names[PLAN_AXES] = {"data", "context", "tensor", "pipe"};
    return names[axis];
}
