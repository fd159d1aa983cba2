/* zf-plan --search: the layouts of a world that train a model fastest within a device's bytes.
 *
 *     list    all numbers of ranks along tensor, pipe and expert, schedules, sizes of micro-batches,
 *             stages of ZeRO, with and without recomputation, that divide what they must
 *     sort    by seconds of formulas; what cannot fit by formulas of bytes is left out
 *     plan    exactly, from the fastest on, until ten that fit are faster than the formula of
 *             the next; of those that differ in schedule, stage and recomputation alone the first
 *             that fits; where one of these is too large, the smallest of them is planned next, and
 *             if that is too large, too, none
 *     deal    layers by bytes, where a stage was too large by FLOPs and another one has room
 *             (--memory)
 *
 * Formulas, of b sequences of s tokens, width h, L layers, m micro-batches, P parameters; ranks t,
 * p, d along tensor, pipe, data (Narayanan et al. 2021; Korthikanti et al. 2022):
 *
 *     computing   FLOPs / (t p), a third more with recomputation
 *     tensor      4 sums of b s h a layer, 6 with recomputation, of 2 (t-1)/t each
 *     data        m sums of P / (t p), with --sum micro one in f32, or as the stage has it; of
 *                 experts that x ranks share over d/x ranks
 *     expert      4 exchanges of the rows that are planned, x min(k, E/x) b s of width h for k
 *                 choices of a token among E experts, 6 with recomputation, of (x-1)/x each
 *     pipe        2 m v values between layers, forward and backward, v chunks of a rank
 *     idle        (p-1)/m of computing and tensor, and of other schedules less (docs/pipelines.md),
 *                 where F, B and W take the same time, and B what is recomputed */
#include "plan.h"
#include "../../examples/frame/plan/human.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS = 10, MOST_PLANS = 40, MOST_DEALT = 3, MOST_LAYOUTS = 1 << 16, MOST_CHUNKS = 4 };

typedef struct layout {
    int64_t tensor, pipe, data, expert, batch, micro_batches;
    int32_t stage;
    zf_pipe_kind kind; /* the schedule, where there are several ranks along pipe */
    int32_t chunks;    /* stages of each rank along pipe */
    bool recompute;
    double seconds; /* of a step, by the formulas */
} layout;

/* A layout and its exact plan. */
typedef struct found {
    layout of;
    size_t peak;
    double seconds, traffic, idle; /* of a step; parts of it */
    bool room;  /* of several stages one fits */
    bool dealt; /* layers are dealt by bytes, and fit */
} found;

typedef struct finder {
    const options *o;
    double flops, parameters; /* of one sequence; of the model */
    int64_t experts;          /* of each layer that has some; 0: none has */
    double of_experts;        /* parameters of experts */
    double chosen, tokens;    /* experts of a token; numbers of all tokens of a sequence that layers
                               * with experts read */
    layout *list;
    int32_t count, tried, large; /* large: left out by their bytes */
    found rows[ROWS];
    int32_t found;
    layout fits[MOST_PLANS + MOST_DEALT]; /* all that fit; */
    found large_ones[MOST_PLANS];   /* those that were too large */
    int32_t fit_count, large_count;
    layout probed[MOST_PLANS]; /* whose smallest kin was planned */
    int32_t probed_count;
    char error[512]; /* of a plan that there is not */
} finder;

/* ------------------------------------------------------------------------------------- formulas */

static double number_bytes(const options *o) { return (double)zf_dtype_size(o->t.precision.dtype); }

static zf_pipe pipe_of(const layout *l)
{
    return (zf_pipe){.kind = l->kind,
                     .ranks = (int32_t)l->pipe,
                     .micro_batches = (int32_t)l->micro_batches,
                     .chunks = l->chunks};
}

/* Micro-batches of a rank's layers in flight on the first rank. */
static double in_flight(const layout *l) { return (double)plan_slots(pipe_of(l), 0) / l->chunks; }

/* Bytes that the backward pass of a rank needs at least: of a layer the inputs of its norms and of
 * its residual sums, and of each of t ranks that share it those of the products inside it; with
 * recomputation the inputs of layers, their two sums over ranks in f32, which are not repeated, and
 * all of one layer. */
static double least_kept(const finder *f, const layout *l)
{
    const options *o = f->o;
    const double x = (double)(l->batch * o->seq * o->hidden) * number_bytes(o),
                 layer = x * (2 + 6 / (double)l->tensor),
                 flying = in_flight(l),
                 layers = (double)o->layers / (double)l->pipe;
    const double sums = l->tensor > 1 ? 8 * (double)(l->batch * o->seq * o->hidden) : 0;
    return l->recompute ? flying * layers * (x + sums) + layer : flying * layers * layer;
}

/* A rank adds the gradients of its micro-batches, in f32, before the ranks do. */
static bool adds_first(const finder *f, const layout *l)
{
    options o = *f->o;
    o.pipe = l->pipe, o.data = l->data, o.t.zero.micro_batches = l->micro_batches;
    return plan_adds_first(&o);
}

/* Parameters of a rank where it has no shards. */
static double rank_parameters(const finder *f, const layout *l)
{
    return (f->parameters - f->of_experts + f->of_experts / (double)l->expert) /
           (double)(l->tensor * l->pipe);
}

/* Bytes of a rank at least: parameters, gradients, states, and what its backward pass needs. */
static double least_bytes(const finder *f, const layout *l)
{
    const double all = rank_parameters(f, l),
                 shard = f->parameters / (double)(l->tensor * l->pipe * l->data),
                 e = number_bytes(f->o),
                 states = f->o->t.optimizer != ZF_ADAMW ? 0 : e < 4 ? 12 : 8;
    return e * (l->stage > 2 ? shard : all) + states * (l->stage > 0 ? shard : all) +
           (adds_first(f, l) ? 4 * all : e * (l->stage > 1 ? shard : all)) + least_kept(f, l);
}

/* What leaves a node, if there are several. */
static const zf_cost_link *data_link(const finder *f)
{
    const zf_cost *c = &f->o->cost;
    return f->o->nodes > 1 && c->between.bytes_per_s > 0 ? &c->between : &c->link;
}

/* Seconds of the bytes of a step between ranks along data. */
static double data_seconds(const finder *f, const layout *l)
{
    const zf_cost_link *link = data_link(f);
    const double m = (double)l->micro_batches, d = (double)l->data, x = (double)l->expert,
                 sums = adds_first(f, l) ? 4 / number_bytes(f->o) : m,
                 times = l->stage == 0  ? 2 * sums
                         : l->stage < 3 ? sums + 1
                                        : sums + 2 * m;
    const double moved =
        (f->parameters - f->of_experts) * (d - 1) / d + f->of_experts / x * (d - x) / d;
    return times * moved / (double)(l->tensor * l->pipe) * number_bytes(f->o) / link->bytes_per_s;
}

/* Seconds of the rows of a step between ranks that share experts. */
static double expert_seconds(const finder *f, const layout *l)
{
    const options *o = f->o;
    const double x = (double)l->expert, each = (double)f->experts / x, given = o->t.expert_rows,
                 most = f->chosen < each ? f->chosen : each, mean = given * f->chosen / x,
                 rows = given > 0 && mean < most ? mean : most;
    const double numbers = x * rows * f->tokens * (double)l->batch / (double)l->pipe;
    if (l->expert < 2) return 0;
    return (double)l->micro_batches * (l->recompute ? 6 : 4) * numbers * number_bytes(o) * (x - 1) /
           x / data_link(f)->bytes_per_s;
}

/* Idle time of a step as a part of that in which a rank computes. */
static double idle_part(const layout *l)
{
    const double again = l->recompute, work = (3 + again) * (double)l->micro_batches,
                 each = (double)(l->pipe - 1);
    switch (l->kind) {
    case ZF_PIPE_INTERLEAVED: return each * (3 + again) / l->chunks / work;
    case ZF_PIPE_ZB_H1: return each * (1 + again) / work;
    case ZF_PIPE_ZB_V: return each / 2 / work;
    default: return each * (3 + again) / work;
    }
}

static double formula_seconds(const finder *f, const layout *l)
{
    const options *o = f->o;
    const double rate = number_bytes(o) < 4 && o->cost.device.half_flops_per_s > 0
                            ? o->cost.device.half_flops_per_s
                            : o->cost.device.flops_per_s;
    const double m = (double)l->micro_batches, t = (double)l->tensor, p = (double)l->pipe;
    const double values = 2 * m * l->chunks;
    const double x = (double)(l->batch * o->seq * o->hidden) * number_bytes(o);
    const double computing =
        f->flops * (double)l->batch * m / (t * p) / rate * (l->recompute ? 4.0 / 3 : 1);
    const zf_cost_link *link = &o->cost.link, *far = data_link(f);
    const double sum = 2 * x * (t - 1) / t / link->bytes_per_s + (t > 1 ? link->latency_s : 0);
    const double sums = (double)o->layers / p * m * (l->recompute ? 6 : 4) * sum;
    const double sends = p > 1 ? values * (x / far->bytes_per_s + far->latency_s) : 0;
    return (computing + sums + expert_seconds(f, l)) * (1 + idle_part(l)) + sends +
           data_seconds(f, l);
}

/* ---------------------------------------------------------------------------------------- list */

static bool allowed(int64_t given, int64_t value) { return !given || given == value; }

static void list_ways(finder *f, layout l)
{
    const options *o = f->o;
    const bool recomputes = o->t.recompute.mode == ZF_RECOMPUTE_LAYERS;
    for (l.stage = 0; l.stage < (l.data > 1 ? 4 : 1); l.stage++)
        for (int again = recomputes; again < 2 && f->count < MOST_LAYOUTS; again++) {
            if (o->t.zero.stage && l.data > 1 && l.stage != o->t.zero.stage) continue;
            l.recompute = again;
            l.seconds = formula_seconds(f, &l);
            if (least_bytes(f, &l) > (double)o->device) f->large++;
            else f->list[f->count++] = l;
        }
}

/* Each schedule that there is for so many layers and micro-batches, or the one that is given. */
static void list_schedules(finder *f, layout l)
{
    const options *o = f->o;
    l.kind = ZF_PIPE_1F1B, l.chunks = 1;
    if (l.pipe == 1) list_ways(f, l);
    for (int kind = 0; zf_pipe_kind_name((zf_pipe_kind)kind) && l.pipe > 1; kind++) {
        const bool several = kind == ZF_PIPE_INTERLEAVED || kind == ZF_PIPE_ZB_V;
        if (o->schedule_name && kind != (int)o->schedule.kind) continue;
        if (kind == ZF_PIPE_INTERLEAVED && l.micro_batches % l.pipe) continue;
        l.kind = (zf_pipe_kind)kind;
        l.chunks = o->schedule_name ? o->schedule.chunks : several ? 2 : 1;
        for (; l.chunks * l.pipe <= o->layers; l.chunks *= 2) {
            list_ways(f, l);
            if (kind != ZF_PIPE_INTERLEAVED || o->schedule_name || l.chunks >= MOST_CHUNKS) break;
        }
    }
}

static void list_batches(finder *f, layout l)
{
    const options *o = f->o;
    for (l.batch = 1; l.batch * l.data <= o->examples; l.batch *= 2) {
        l.micro_batches = o->examples / (l.batch * l.data);
        if (l.batch * l.data * l.micro_batches != o->examples) return;
        if (l.pipe > 1 && l.micro_batches < l.pipe) return;
        if (allowed(o->given_micro_batches, l.micro_batches)) list_schedules(f, l);
    }
}

/* Each number of ranks that can share experts, in their sections. */
static void list_experts(finder *f, layout l)
{
    const options *o = f->o;
    const int64_t sections = o->t.sections.expert > 1 ? o->t.sections.expert : 0;
    for (l.expert = 1; l.expert <= (f->experts ? f->experts : 1); l.expert++)
        if (!(l.data % l.expert || (f->experts && f->experts % l.expert)) &&
            !(sections && (sections % l.expert || l.data % sections)) &&
            allowed(o->t.expert, l.expert))
            list_batches(f, l);
}

static void list_layouts(finder *f)
{
    const options *o = f->o;
    const int64_t node = o->world / o->nodes;
    for (int64_t t = 1; t <= o->heads && t <= node; t++)
        for (int64_t p = 1; p <= o->layers && t * p <= o->world; p++)
            if (!(o->world % (t * p) || o->heads % t || node % t) && allowed(o->t.tensor, t) &&
                allowed(o->given_pipe, p))
                list_experts(f, (layout){.tensor = t, .pipe = p, .data = o->world / (t * p)});
}

static int by_seconds(const void *a, const void *b)
{
    const double x = ((const layout *)a)->seconds, y = ((const layout *)b)->seconds;
    return x < y ? -1 : x > y;
}

/* ---------------------------------------------------------------------------------- exact plans */

static options options_of(const finder *f, const layout *l)
{
    options o = *f->o;
    o.tensor = l->tensor, o.pipe = l->pipe, o.data = l->data, o.batch = l->batch;
    o.t.tensor = (int32_t)l->tensor, o.t.zero.stage = l->stage, o.t.expert = (int32_t)l->expert;
    o.t.zero.micro_batches = (int32_t)l->micro_batches;
    o.t.recompute.mode = l->recompute ? ZF_RECOMPUTE_LAYERS : ZF_RECOMPUTE_OFF;
    o.schedule = pipe_of(l);
    return o;
}

static bool plan_one(const options *o, found *row, char error[512])
{
    result r;
    if (!plan_of(o, &r, error)) return false;
    row->peak = r.plan.peak_bytes, row->seconds = r.estimate.seconds;
    row->traffic = r.estimate.exposed[ZF_RESOURCE_LINK] / row->seconds, row->idle = 0;
    return true;
}

static bool plan_all_stages(const options *o, found *row, char error[512])
{
    stages_plan p;
    if (!plan_stages(o, &p, error)) return false;
    row->peak = p.stages[p.largest].peak, row->seconds = p.seconds;
    for (int64_t k = 0; k < p.count; k++) row->room |= p.stages[k].peak < (size_t)o->device;
    row->idle = p.idle / (1 + p.idle);
    row->traffic = p.stages[p.slowest].estimate.exposed[ZF_RESOURCE_LINK] / p.seconds;
    plan_stages_free(&p);
    return true;
}

/* They differ in schedule, stage and recomputation alone. */
static bool are_kin(const layout *a, const layout *b)
{
    return a->tensor == b->tensor && a->pipe == b->pipe && a->expert == b->expert &&
           a->batch == b->batch;
}

/* One of its kin fits. */
static bool is_settled(const finder *f, const layout *l)
{
    for (int32_t k = 0; k < f->fit_count; k++)
        if (are_kin(&f->fits[k], l)) return true;
    return false;
}

/* It takes as many bytes as the other one of its kin, or fewer: it shares and recomputes more, by
 * the same schedule, or by one that has less in flight. */
static bool is_smaller(const layout *a, const layout *b)
{
    const bool same = a->kind == b->kind && a->chunks == b->chunks;
    return a->stage >= b->stage && a->recompute >= b->recompute &&
           (same || in_flight(a) < in_flight(b) ||
            (a->kind == ZF_PIPE_1F1B && in_flight(a) == in_flight(b)));
}

/* A smaller one was too large. */
static bool is_hopeless(const finder *f, const layout *l)
{
    for (int32_t k = 0; k < f->large_count; k++)
        if (are_kin(&f->large_ones[k].of, l) && is_smaller(&f->large_ones[k].of, l)) return true;
    return false;
}

/* Keeps the fastest ROWS. */
static void add_row(finder *f, const found *row)
{
    int32_t at = f->found;
    f->fits[f->fit_count++] = row->of;
    while (at > 0 && f->rows[at - 1].seconds > row->seconds) at--;
    if (at == ROWS) return;
    f->found += f->found < ROWS;
    memmove(&f->rows[at + 1], &f->rows[at], (size_t)(f->found - 1 - at) * sizeof *row);
    f->rows[at] = *row;
}

/* Plans a layout exactly; false: there is no plan, or it is too large. */
static bool fits(finder *f, const layout *l, found *row)
{
    const options o = options_of(f, l);
    *row = (found){.of = *l};
    f->tried++;
    if (!(o.pipe > 1 ? plan_all_stages : plan_one)(&o, row, f->error)) return false;
    if (row->peak <= (size_t)o.device) return true;
    f->large_ones[f->large_count++] = *row;
    return false;
}

/* After one that is too large: plans the smallest of its kin, unless that was done. */
static void probe(finder *f, const layout *l)
{
    const layout *least = l;
    found row;
    for (int32_t k = 0; k < f->probed_count; k++)
        if (are_kin(&f->probed[k], l)) return;
    f->probed[f->probed_count++] = *l;
    for (int32_t k = 0; k < f->count; k++)
        if (are_kin(&f->list[k], l) && is_smaller(&f->list[k], least)) least = &f->list[k];
    if (least != l) (void)fits(f, least, &row);
}

static void try_layouts(finder *f)
{
    for (int32_t k = 0; k < f->count && f->tried < MOST_PLANS - 1; k++) {
        const layout *l = &f->list[k];
        found row;
        if (f->found == ROWS && l->seconds >= f->rows[ROWS - 1].seconds) break;
        if (is_settled(f, l) || is_hopeless(f, l)) continue;
        if (fits(f, l, &row)) add_row(f, &row);
        else probe(f, l);
    }
}

/* Deals layers by bytes; false: the stages do not fit, or one of the kin that fits is as fast. */
static bool is_gained(finder *f, const found *large, found *row)
{
    options o = options_of(f, &large->of);
    o.memory = o.device;
    *row = (found){.of = large->of, .dealt = true};
    if (!plan_all_stages(&o, row, f->error) || row->peak > (size_t)o.device) return false;
    for (int32_t k = 0; k < f->found; k++)
        if (are_kin(&f->rows[k].of, &row->of) && f->rows[k].seconds <= row->seconds) return false;
    return true;
}

/* The row takes the place of its kin's. */
static void put_dealt(finder *f, const found *row)
{
    for (int32_t k = f->found - 1; k >= 0; k--)
        if (are_kin(&f->rows[k].of, &row->of))
            memmove(&f->rows[k], &f->rows[k + 1], (size_t)(--f->found - k) * sizeof *row);
    add_row(f, row);
}

/* Layouts of stages that were too large by FLOPs, unless layers or a limit are given. */
static void deal_layers(finder *f)
{
    const char *given = f->o->t.stages.layers;
    int32_t tried = 0;
    if (f->o->memory || (given && *given)) return;
    for (int32_t k = 0; k < f->large_count && tried < MOST_DEALT; k++) {
        found *large = &f->large_ones[k], row;
        if (!large->room) continue;
        if (f->found == ROWS && large->seconds >= f->rows[ROWS - 1].seconds) continue;
        tried++;
        if ((large->dealt = is_gained(f, large, &row))) put_dealt(f, &row);
    }
}

/* The smallest that does not fit; NULL: there is none. */
static const found *nearest_of(const finder *f)
{
    const found *least = NULL;
    for (int32_t k = 0; k < f->large_count; k++)
        if (!f->large_ones[k].dealt && (!least || f->large_ones[k].peak < least->peak))
            least = &f->large_ones[k];
    return least;
}

/* What layers with experts have. */
static bool measure_experts(finder *f)
{
    options o = *f->o;
    result r;
    zf_graph *g;
    zf_node node;
    bool good;
    o.batch = 1;
    if (!(g = plan_graph(&r))) return false;
    (void)plan_model(g, &o);
    for (int32_t k = 0; zf_graph_node(g, k, &node); k++) {
        if (node.op == ZF_OP_dispatch)
            f->tokens += (double)zf_shape_count(zf_tensor_shape((zf_tensor){g, node.operands[0]}));
        if (node.op == ZF_OP_route) f->chosen = (double)node.shape.dims[1];
        if (node.op == ZF_OP_grouped_linear) {
            const zf_shape w = zf_tensor_shape((zf_tensor){g, node.operands[1]});
            f->of_experts += (double)zf_shape_count(w);
            f->experts = f->experts && f->experts < w.dims[0] ? f->experts : w.dims[0];
        }
    }
    good = !zf_graph_status(g);
    snprintf(f->error, sizeof f->error, "%s", zf_graph_error(g));
    zf_graph_free(g);
    return good;
}

/* The FLOPs of a sequence, and the parameters. */
static bool measure_model(finder *f)
{
    options o = *f->o;
    result r;
    o.pipe = o.tensor = o.context = o.data = o.world = o.nodes = o.batch = 1, o.t.tensor = 0;
    o.t.zero = (zf_zero_desc){.micro_batches = 1}, o.t.expert = 0, o.t.sections.expert = 0;
    if (!plan_of(&o, &r, f->error)) return false;
    f->flops = r.plan.flops, f->parameters = (double)r.plan.parameter_count;
    return measure_experts(f);
}

/* ------------------------------------------------------------------------------------- printing */

/* What a layout has least of. */
static const char *bound_of(const finder *f, const found *row)
{
    const double most = row->traffic > row->idle ? row->traffic : row->idle;
    if (row->dealt) return "memory";
    if (most >= 0.1) return row->traffic > row->idle ? "traffic" : "idle";
    return (double)row->peak > 0.9 * (double)f->o->device ? "memory" : "computing";
}

/* The options by which zf-plan plans it, besides those that are given: a search is of bf16 where no
 * precision is. */
static const char *options_text(char text[240], const finder *f, const found *row)
{
    const layout *l = &row->of;
    char chunks[12] = "", experts[32] = "", memory[32] = "";
    if (l->kind == ZF_PIPE_INTERLEAVED) snprintf(chunks, sizeof chunks, "=%d", (int)l->chunks);
    if (l->expert > 1) snprintf(experts, sizeof experts, " --expert %lld", (long long)l->expert);
    if (row->dealt) snprintf(memory, sizeof memory, " --memory %lld", (long long)f->o->device);
    snprintf(text, 240,
             "--tensor %lld --pipe %lld%s%s%s%s --zero %d --batch %lld --micro-batches %lld%s%s%s",
             (long long)l->tensor, (long long)l->pipe, experts, l->kind ? " --schedule " : "",
             l->kind ? zf_pipe_kind_name(l->kind) : "", chunks, (int)l->stage,
             (long long)l->batch, (long long)l->micro_batches,
             l->recompute ? " --recompute layers" : "", memory,
             f->o->given_precision ? "" : " --precision bf16");
    return text;
}

static void print_row(const finder *f, const found *row)
{
    char bytes[32], text[240];
    printf("%12.4g%8.1f%%%8.1f%%%12s%8.1f%%  %-9s  %s\n", row->seconds, 100 * row->traffic,
           100 * row->idle, human(bytes, (double)row->peak),
           100 * (double)row->peak / (double)f->o->device, bound_of(f, row),
           options_text(text, f, row));
}

static void print_rows(const finder *f)
{
    bool dealt = false;
    plan_print_head(f->o);
    printf("%lld ranks, %lld sequences a step\n\n", (long long)f->o->world,
           (long long)f->o->examples);
    printf("%12s%9s%9s%12s%9s  %-9s  %s\n", "seconds", "traffic", "idle", "peak", "of device",
           "bound by", "options");
    for (int32_t k = 0; k < f->found; k++) print_row(f, &f->rows[k]), dealt |= f->rows[k].dealt;
    if (dealt) printf("--memory: by FLOPs a stage does not fit, so layers are dealt by bytes\n");
    printf("\n%d layouts; %d more cannot fit by formulas; %d were planned exactly\n", (int)f->count,
           (int)f->large, (int)f->tried);
    if (nearest_of(f))
        printf("the smallest of those that do not fit:\n"), print_row(f, nearest_of(f));
}

static void put_row(zf_json_writer *w, const finder *f, const found *row)
{
    char text[240];
    zf_json_begin_object(w);
    zf_json_put_key(w, "options"), zf_json_put_string(w, options_text(text, f, row));
    plan_put_bytes(w, "tensor", (size_t)row->of.tensor),
        plan_put_bytes(w, "pipe", (size_t)row->of.pipe);
    plan_put_bytes(w, "data", (size_t)row->of.data),
        plan_put_bytes(w, "expert", (size_t)row->of.expert);
    plan_put_bytes(w, "peak", row->peak);
    zf_json_put_key(w, "seconds"), zf_json_put_double(w, row->seconds);
    zf_json_put_key(w, "traffic"), zf_json_put_double(w, row->traffic);
    zf_json_put_key(w, "idle"), zf_json_put_double(w, row->idle);
    zf_json_put_key(w, "bound"), zf_json_put_string(w, bound_of(f, row));
    zf_json_end(w);
}

static int print_json(const finder *f)
{
    zf_json_writer *w = zf_json_writer_new(2, NULL);
    zf_json_begin_object(w);
    zf_json_put_key(w, "search"), zf_json_begin_array(w);
    for (int32_t k = 0; k < f->found; k++) put_row(w, f, &f->rows[k]);
    zf_json_end(w);
    plan_put_bytes(w, "planned", (size_t)f->tried);
    zf_json_end(w);
    return plan_end_json(w);
}

/* Why there is no row. */
static int print_none(const finder *f)
{
    if (nearest_of(f))
        fprintf(stderr, "zf-plan: no layout fits %lld bytes: the smallest takes %zu\n",
                (long long)f->o->device, nearest_of(f)->peak);
    else
        fprintf(stderr, "zf-plan: no layout fits %lld bytes%s%s\n", (long long)f->o->device,
                *f->error  ? ": "
                : f->count ? ""
                           : ": by formulas all take more",
                f->error);
    return 1;
}

int plan_print_search(const options *o)
{
    finder f = {.o = o, .list = calloc(MOST_LAYOUTS, sizeof *f.list)};
    int end = 1;
    if (!f.list) fprintf(stderr, "zf-plan: out of memory\n");
    else if (!measure_model(&f)) fprintf(stderr, "zf-plan: %s\n", f.error);
    else {
        list_layouts(&f);
        qsort(f.list, (size_t)f.count, sizeof *f.list, by_seconds);
        try_layouts(&f);
        deal_layers(&f);
        if (!f.found) end = print_none(&f);
        else if (o->json) end = print_json(&f);
        else print_rows(&f), end = 0;
    }
    free(f.list);
    return end;
}
