/* The plan of a step as JSON. */
#include "plan.h"

static const char *precision(const options *o) { return zf_dtype_name(o->t.precision.dtype); }

int plan_end_json(zf_json_writer *w)
{
    zf_error error = {ZF_OK, ""};
    const char *text = zf_json_text(w, NULL, &error);
    if (text) puts(text);
    else fprintf(stderr, "zf-plan: %s\n", error.text);
    zf_json_writer_free(w);
    return text ? 0 : 1;
}

void plan_put_bytes(zf_json_writer *w, const char *key, size_t bytes)
{
    zf_json_put_key(w, key);
    zf_json_put_int(w, (int64_t)bytes);
}

/* Writes the work of each operator that has any; their sum is under "work". */
static void put_work(zf_json_writer *w, zf_graph *g, const zf_work *all)
{
    for (int op = -1; op < (int)ZF_OP_COUNT; op++) {
        zf_work of = *all;
        if (op == 0) zf_json_put_key(w, "operators"), zf_json_begin_object(w);
        if (op >= 0 && (op == ZF_OP_none || zf_graph_work(g, (zf_op)op, &of) || !of.launches))
            continue;
        zf_json_put_key(w, op < 0 ? "work" : zf_op_name((zf_op)op));
        zf_json_begin_object(w);
        zf_json_put_key(w, "launches"), zf_json_put_int(w, of.launches);
        zf_json_put_key(w, "bytes"), zf_json_put_double(w, of.bytes);
        zf_json_put_key(w, "flops"), zf_json_put_double(w, of.flops);
        zf_json_end(w);
    }
    zf_json_end(w);
}

void plan_put_options(zf_json_writer *w, const options *o)
{
    const struct {
        const char *key;
        int64_t value;
    } rows[] = {{"layers", o->layers},     {"hidden", o->hidden},
                {"heads", o->heads},       {"vocab", o->vocab},
                {"seq", o->seq},           {"batch", o->batch},
                {"world", o->world},       {"data", o->data},
                {"context", o->context}, {"tensor", o->tensor},     {"pipe", o->pipe},
                {"zero", o->t.zero.stage}, {"micro_batches", o->t.zero.micro_batches}};
    zf_json_put_key(w, "model"), zf_json_put_string(w, o->config ? plan_model_name(o)
                                                       : o->gpt  ? "gpt"
                                                                 : "bert");
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++)
        zf_json_put_key(w, rows[k].key), zf_json_put_int(w, rows[k].value);
    zf_json_put_key(w, "sum"), zf_json_put_string(w, plan_adds_first(o) ? "micro" : "parts");
    zf_json_put_key(w, "precision"), zf_json_put_string(w, precision(o));
    zf_json_put_key(w, "optimizer"), zf_json_put_string(w, zf_optimizer_name(o->t.optimizer));
    if (o->variants > 1) {
        const zf_training t = plan_varying(o);
        zf_json_put_key(w, "variant"), zf_json_put_string(w, zf_variant_name(&t, o->t.variant));
    }
}

/* The bytes at the peak of a space, and where it is. */
static void put_peak(zf_json_writer *w, const zf_space_plan *plan)
{
    zf_json_put_key(w, "at_peak");
    zf_json_begin_object(w);
    for (int k = 0; k < ZF_KINDS; k++)
        plan_put_bytes(w, zf_kind_name((zf_kind)k), plan->at_peak[k]);
    zf_json_put_key(w, "node"), zf_json_put_int(w, plan->peak_node);
    zf_json_put_key(w, "operator"), zf_json_put_string(w, plan->peak_op);
    zf_json_put_key(w, "scope"), zf_json_put_string(w, plan->peak_scope);
    zf_json_end(w);
}

static void put_spaces(zf_json_writer *w, const zf_plan *plan)
{
    zf_json_put_key(w, "spaces");
    zf_json_begin_object(w);
    for (int space = 0; space < ZF_SPACES; space++) {
        const zf_space_plan *s = &plan->spaces[space];
        zf_json_put_key(w, zf_space_name((zf_space)space));
        zf_json_begin_object(w);
        for (int k = 0; k < ZF_KINDS; k++) plan_put_bytes(w, zf_kind_name((zf_kind)k), s->most[k]);
        plan_put_bytes(w, "peak", s->peak_bytes);
        plan_put_bytes(w, "live", s->live_bytes);
        put_peak(w, s);
        zf_json_end(w);
    }
    zf_json_end(w);
}

static void put_estimate(zf_json_writer *w, const zf_estimate *e)
{
    zf_json_put_key(w, "estimate");
    zf_json_begin_object(w);
    zf_json_put_key(w, "seconds"), zf_json_put_double(w, e->seconds);
    for (int exposed = 0; exposed < 2; exposed++) {
        zf_json_put_key(w, exposed ? "exposed" : "busy");
        zf_json_begin_object(w);
        for (int k = 0; k < ZF_RESOURCES; k++) {
            zf_json_put_key(w, zf_resource_name((zf_resource)k));
            zf_json_put_double(w, exposed ? e->exposed[k] : e->busy[k]);
        }
        zf_json_end(w);
    }
    zf_json_end(w);
}

/* Bytes that a rank sends along each axis. */
static void put_sent(zf_json_writer *w, const zf_plan *plan)
{
    zf_json_put_key(w, "sent"), zf_json_begin_object(w);
    for (int a = 0; a < PLAN_AXES; a++)
        plan_put_bytes(w, plan_axis_name((plan_axis)a), plan_sent(plan, (plan_axis)a));
    zf_json_end(w);
}

static void put_traffic(zf_json_writer *w, const options *o, const zf_plan *plan)
{
    static const char *const keys[] = {"traffic", "calls", "between_nodes"};
    for (int n = 0; n < (o->nodes > 1 ? 3 : 2); n++) {
        zf_json_put_key(w, keys[n]), zf_json_begin_object(w);
        for (int k = 0; k < PLAN_MOVEMENTS; k++) {
            const zf_moved m = plan_moved(plan, k);
            plan_put_bytes(w, plan_movement(k),
                           n == 0   ? m.bytes
                           : n == 1 ? (size_t)m.calls
                                    : m.between);
        }
        zf_json_end(w);
    }
    plan_put_bytes(w, "scales", plan->scales.bytes);
    plan_put_bytes(w, "padding", plan->padding.bytes);
    plan_put_bytes(w, "scales_between_nodes", plan->scales.between);
    plan_put_bytes(w, "padding_between_nodes", plan->padding.between);
}

int plan_print_json(const options *o, zf_graph *g, const result *r)
{
    const zf_plan *plan = &r->plan;
    zf_json_writer *w = zf_json_writer_new(2, NULL);
    zf_json_begin_object(w);
    plan_put_options(w, o);
    for (int k = 0; k < ZF_KINDS; k++) plan_put_bytes(w, zf_kind_name((zf_kind)k), plan->most[k]);
    plan_put_bytes(w, "peak", plan->peak_bytes);
    plan_put_bytes(w, "live", plan->live_bytes);
    plan_put_bytes(w, "nccl_at_most", (size_t)plan_nccl_bytes(o));
    put_peak(w, &plan->spaces[ZF_DEVICE]);
    put_spaces(w, plan);
    put_traffic(w, o, plan);
    plan_put_bytes(w, "loco", plan->loco_bytes);
    put_work(w, g, &r->work);
    zf_json_put_key(w, "flops"), zf_json_put_double(w, plan->flops);
    zf_json_put_key(w, "recomputed_flops"), zf_json_put_double(w, plan->recomputed_flops);
    put_sent(w, plan);
    put_estimate(w, &r->estimate);
    if (r->plain_seconds > 0)
        zf_json_put_key(w, "plain_seconds"), zf_json_put_double(w, r->plain_seconds);
    zf_json_put_key(w, "parameter_count"), zf_json_put_int(w, plan->parameter_count);
    zf_json_put_key(w, "padded_count"), zf_json_put_int(w, plan->padded_count);
    plan_put_bytes(w, "whole_weights", (size_t)plan->whole_weights);
    plan_put_bytes(w, "whole_bytes", plan->whole_bytes);
    zf_json_put_key(w, "nodes"), zf_json_put_int(w, plan->nodes);
    zf_json_put_key(w, "plan_ms"), zf_json_put_double(w, r->plan_ms);
    plan_put_bytes(w, "plan_peak_bytes", r->meter.peak);
    zf_json_end(w);
    return plan_end_json(w);
}

static void put_stage(zf_json_writer *w, const stage_plan *s)
{
    zf_json_begin_object(w);
    plan_put_bytes(w, "layers", (size_t)s->layers);
    plan_put_bytes(w, "parameter_count", (size_t)s->plan.parameter_count);
    plan_put_bytes(w, "padded_count", (size_t)s->plan.padded_count);
    plan_put_bytes(w, "whole_weights", (size_t)s->plan.whole_weights);
    plan_put_bytes(w, "whole_bytes", s->plan.whole_bytes);
    for (int k = 0; k < ZF_KINDS; k++) plan_put_bytes(w, zf_kind_name((zf_kind)k), s->plan.most[k]);
    plan_put_bytes(w, "in_flight", (size_t)s->slots), 
    plan_put_bytes(w, "peak", s->peak), plan_put_bytes(w, "live", s->plan.live_bytes);
    put_sent(w, &s->plan);
    zf_json_put_key(w, "flops"), zf_json_put_double(w, s->plan.flops);
    zf_json_put_key(w, "seconds"), zf_json_put_double(w, s->estimate.seconds);
    zf_json_end(w);
}

int plan_print_stages_json(const options *o, const stages_plan *p)
{
    zf_json_writer *w = zf_json_writer_new(2, NULL);
    zf_json_begin_object(w);
    plan_put_options(w, o);
    zf_json_put_key(w, "stages"), zf_json_begin_array(w);
    for (int64_t k = 0; k < p->count; k++) put_stage(w, &p->stages[k]);
    zf_json_end(w);
    plan_put_bytes(w, "peak", p->stages[p->largest].peak);
    plan_put_bytes(w, "largest", (size_t)p->largest);
    plan_put_bytes(w, "slowest", (size_t)p->slowest);
    zf_json_put_key(w, "schedule");
    zf_json_put_string(w, zf_pipe_kind_name(o->schedule.kind));
    zf_json_put_key(w, "idle"), zf_json_put_double(w, p->idle / (1 + p->idle));
    zf_json_put_key(w, "seconds"), zf_json_put_double(w, p->seconds);
    zf_json_put_key(w, "plan_ms"), zf_json_put_double(w, p->plan_ms);
    plan_put_bytes(w, "plan_peak_bytes", p->plan_peak_bytes);
    zf_json_end(w);
    return plan_end_json(w);
}
