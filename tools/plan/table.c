/* The plan of a step, and those of stages, as tables. */
#include "plan.h"
#include "../../examples/frame/plan/human.h"

#include <stdlib.h>

static const char *precision(const options *o) { return zf_dtype_name(o->t.precision.dtype); }

/* Prints the bytes of a rank in a space. */
static void print_space(const options *o, zf_space space, const zf_space_plan *plan)
{
    char title[32], most[32], then[32];
    if (space != ZF_DEVICE && !plan->peak_bytes) return;
    snprintf(title, sizeof title, "%sbytes of %s", space == ZF_DEVICE ? "" : "\n",
             space == ZF_DEVICE ? "a rank" : zf_space_name(space));
    printf("%-*s%14s%14s\n", space == ZF_DEVICE ? 16 : 17, title, "at most", "at the peak");
    for (int k = 0; k < ZF_KINDS; k++)
        if (space == ZF_DEVICE || plan->most[k])
            printf("%-16s%14s%14s\n", zf_kind_name((zf_kind)k), human(most, (double)plan->most[k]),
                   human(then, (double)plan->at_peak[k]));
    printf("%-16s%14s%14s", "peak", human(most, (double)plan->peak_bytes),
           human(then, (double)plan->live_bytes));
    if (*plan->peak_op) printf("   at %%%d %s", (int)plan->peak_node, plan->peak_op);
    printf("%s%s\n", *plan->peak_scope ? " in " : "", plan->peak_scope);
    if (o->world > 1 && space == ZF_DEVICE)
        printf("%-16s%14s                 NCCL's own buffers, where ranks are GPUs\n",
               "not in the plan", human(most, plan_nccl_bytes(o)));
}

static void print_estimate(const options *o, const result *r)
{
    const zf_estimate *e = &r->estimate;
    printf("\n%-16s%14s%14s   by %s%s\n", "seconds", "busy", "exposed",
           o->cost_file ? o->cost_file : "the default cost table",
           o->cost_file ? "" : " (--cost FILE)");
    for (int k = 0; k < ZF_RESOURCES; k++)
        if (e->busy[k] > 0)
            printf("%-16s%14.4g%14.4g\n", zf_resource_name((zf_resource)k), e->busy[k],
                   e->exposed[k]);
    printf("%-16s%14s%14.4g\n", "a step", "", e->seconds);
    if (r->plain_seconds > 0)
        printf("%-16s%14s%14.4g   without hpz, mics and quantisation; %.4g s (%.1f%%) are saved\n",
               "plain ZeRO", "", r->plain_seconds, r->plain_seconds - e->seconds,
               100 * (1 - e->seconds / r->plain_seconds));
}

/* Prints what of the bytes to other ranks is no number of a parameter or gradient. */
static void print_overhead(const options *o, const char *name, const zf_moved *of)
{
    char text[32];
    if (!of->bytes) return;
    printf("%-16s%14s%14s", name, "", human(text, (double)of->bytes));
    if (o->nodes > 1) {
        printf("%14s", human(text, (double)(of->bytes - of->between)));
        printf("%14s", human(text, (double)of->between));
    }
    printf("\n");
}

void plan_print_head(const options *o)
{
    printf("%s: %lld layers of %lld, %lld heads, vocabulary %lld, ", plan_model_name(o),
           (long long)o->layers, (long long)o->hidden, (long long)o->heads, (long long)o->vocab);
    if (!o->search && !plan_changes(o)) printf("%lld x ", (long long)o->batch);
    if (!plan_changes(o)) printf("%lld tokens, ", (long long)o->seq);
    printf("%s, %s\n", precision(o), zf_optimizer_name(o->t.optimizer));
}

void plan_print_ranks(const options *o)
{
    printf("stage %lld, %lld ranks", (long long)o->t.zero.stage, (long long)o->world);
    if (o->nodes > 1) printf(" in %lld nodes", (long long)o->nodes);
    if (o->data < o->world)
        printf(" (pipe %lld, data %lld, context %lld, tensor %lld)", (long long)o->pipe,
               (long long)o->data, (long long)o->context, (long long)o->tensor);
    printf(", %lld micro-batches", (long long)o->t.zero.micro_batches);
    if (plan_adds_first(o)) printf(", which each rank adds first (--sum micro)");
    printf("\n\n");
}

/* What ranks along tensor do not share of the layers. */
static void print_whole(int32_t weights, size_t bytes)
{
    char text[32];
    if (weights)
        printf("%d weights of %s are whole on each rank along tensor\n", (int)weights,
               human(text, (double)bytes));
}

/* Bytes along each axis, where there are several. */
static void print_axes(const options *o, const zf_plan *plan)
{
    char text[32];
    for (int a = 0; a < PLAN_AXES && o->data < o->world; a++)
        if (plan_sent(plan, (plan_axis)a))
            printf("along %-10s%14s%14s\n", plan_axis_name((plan_axis)a), "",
                   human(text, (double)plan_sent(plan, (plan_axis)a)));
}

void plan_print_table(const options *o, const result *r)
{
    const zf_plan *plan = &r->plan;
    char most[32];
    plan_print_head(o);
    printf("%lld parameters, %lld with padding; ", (long long)plan->parameter_count,
           (long long)plan->padded_count);
    plan_print_ranks(o);
    for (int space = 0; space < ZF_SPACES; space++)
        print_space(o, (zf_space)space, &plan->spaces[space]);
    if (plan->loco_bytes)
        printf("%-16s%14s                 of optimizer: errors of quantised gradients\n", "loco",
               human(most, (double)plan->loco_bytes));
    printf("\n%-16s%14s%14s%s\n", "moved in a step", "calls", "bytes",
           o->nodes > 1 ? "  inside nodes between nodes" : "");
    for (int k = 0; k < PLAN_MOVEMENTS; k++) {
        zf_moved m = plan_moved(plan, k);
        if (!m.calls) continue;
        printf("%-16s%14lld%14s", plan_movement(k), (long long)m.calls,
               human(most, (double)m.bytes));
        if (o->nodes > 1) {
            printf("%14s", human(most, (double)(m.bytes - m.between)));
            printf("%14s", human(most, (double)m.between));
        }
        printf("\n");
    }
    print_axes(o, plan);
    print_whole(plan->whole_weights, plan->whole_bytes);
    print_overhead(o, "of it scales", &plan->scales);
    print_overhead(o, "of it padding", &plan->padding);
    print_estimate(o, r);
    printf("\n%s read and written in a step, by %lld launches; %.4g FLOPs",
           human(most, r->work.bytes), (long long)r->work.launches, plan->flops);
    if (o->t.recompute.mode || o->t.recompute.bytes)
        printf(" and %.4g more (%.1f%%) recomputed", plan->recomputed_flops,
               100 * plan->recomputed_flops / plan->flops);
    printf(", %d nodes, planned in %.1f ms and %s\n", (int)plan->nodes, r->plan_ms,
           human(most, (double)r->meter.peak));
}

/* -------------------------------------------------------------------------------------- stages */

enum { PICTURE_WIDTH = 100 }; /* characters of a schedule that is drawn without being asked for */

static void print_stages(const stages_plan *p)
{
    int32_t weights = 0;
    size_t bytes = 0;
    printf("%-6s%7s%12s%12s%12s%12s%4s%12s%12s\n", "stage", "layers", "parameters", "gradients",
           "optimizer", "activations", "x", "peak", "seconds");
    for (int64_t k = 0; k < p->count; k++) {
        const stage_plan *s = &p->stages[k];
        char parameters[32], gradients[32], optimizer[32], activations[32], peak[32];
        printf("%-6lld%7d%12s%12s%12s%12s%4lld%12s%12.4g\n", (long long)k, (int)s->layers,
               human(parameters, (double)s->plan.most[ZF_PARAMETERS]),
               human(gradients, (double)s->plan.most[ZF_GRADIENTS]),
               human(optimizer, (double)s->plan.most[ZF_OPTIMIZER]), human(activations, (double)s->plan.most[ZF_ACTIVATIONS]),
               (long long)s->slots, human(peak, (double)s->peak), s->estimate.seconds);
        weights += s->plan.whole_weights, bytes += s->plan.whole_bytes;
    }
    print_whole(weights, bytes);
}

/* The bytes that a rank of each stage sends in a step. */
static void print_sent(const stages_plan *p)
{
    printf("\n%-6s", "sent");
    for (int a = 0; a < PLAN_AXES; a++) printf("%14s", plan_axis_name((plan_axis)a));
    printf("\n");
    for (int64_t k = 0; k < p->count; k++) {
        char text[32];
        printf("%-6lld", (long long)k);
        for (int a = 0; a < PLAN_AXES; a++)
            printf("%14s", human(text, (double)plan_sent(&p->stages[k].plan, (plan_axis)a)));
        printf("\n");
    }
}

/* The schedule, unless it is wide and not asked for. */
static void print_picture(const options *o)
{
    const size_t length = zf_pipe_picture(&o->schedule, NULL, 0, NULL);
    char *text = malloc(length + 1);
    if (text && (o->picture || length / (size_t)o->pipe <= PICTURE_WIDTH)) {
        zf_pipe_picture(&o->schedule, text, length + 1, NULL);
        printf("\n%s", text);
    }
    free(text);
}

void plan_print_stages(const options *o, const stages_plan *p)
{
    const double share = 100 * p->idle / (1 + p->idle);
    char bytes[32];
    plan_print_head(o), plan_print_ranks(o);
    print_stages(p);
    print_sent(p);
    print_picture(o);
    printf("\n%s: a rank is idle %.1f%% of a step; the step takes %.4g s, by stage %lld, the "
           "slowest, and %s\n",
           zf_pipe_kind_name(o->schedule.kind), share, p->seconds, (long long)p->slowest,
           o->cost_file ? o->cost_file : "the default cost table (--cost FILE)");
    printf("planned in %.1f ms and %s\n", p->plan_ms, human(bytes, (double)p->plan_peak_bytes));
}
