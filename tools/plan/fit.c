/* zf-plan --fit: the largest models that fit. */
#include "plan.h"
#include "../../examples/frame/plan/human.h"

#include <math.h>
#include <string.h>

enum { MOST_WAYS = 4 * 7 };

/* A way to train: stage and offload of a row of the table. */
typedef struct way {
    int64_t stage;
    zf_offload_desc offload;
} way;

/* A row: the largest model for a way, and its plan; layers 0: none fits. */
typedef struct fitted {
    options o;
    result r;
    char error[512]; /* the error of the smallest model, if none fits */
} fitted;

static int64_t within(const options *o, int space)
{
    return space == ZF_DEVICE ? o->device : space == ZF_HOST ? o->host : o->disk;
}

/* The largest share of a space that the plan takes: at most 1 where the plan fits. */
static double share_of(const options *o, const zf_plan *plan)
{
    double most = 0;
    for (int k = 0; k < ZF_SPACES; k++) {
        const double bytes = (double)plan->spaces[k].peak_bytes;
        const double share = bytes > 0 ? bytes / (double)within(o, k) : 0;
        if (share > most) most = share;
    }
    return most;
}

/* Plans the model with so many layers and heads; returns the share, INFINITY where there is no
 * plan. */
static double try_size(fitted *f, int64_t layers, int64_t heads)
{
    fitted t = *f;
    double share;
    t.o.layers = layers, t.o.heads = heads;
    t.o.hidden = heads * (t.o.gpt ? 128 : 64);
    share = plan_of(&t.o, &t.r, t.error) ? share_of(&t.o, &t.r.plan) : INFINITY;
    if (share <= 1) *f = t;
    else if (!f->o.layers) memcpy(f->error, t.error, sizeof f->error);
    return share;
}

/* The largest n in [from, end) with try(n) <= 1, if try(from - 1) <= 1 or is unknown: bisection,
 * guided by bytes that grow with the `power` of n. */
static void search(fitted *f, int64_t heads, int64_t from, int64_t end, double power)
{
    int64_t at = heads ? from : from + (end < 16 ? 0 : 15);
    while (from < end) {
        const double share = try_size(f, at, heads ? heads : at);
        double next = (double)at * pow(1 / share, 1 / power);
        if (share <= 1) from = at + 1;
        else end = at;
        at = next < (double)end ? (int64_t)next : end - 1;
        if (at < from) at = from;
    }
}

/* The largest model of the family. */
static fitted largest(const options *o, bool gpt, const way *w)
{
    enum { MOST = 4096 };
    fitted f = {.o = *o};
    f.o.gpt = gpt, f.o.t.zero.stage = (int32_t)w->stage, f.o.t.offload = w->offload, f.o.layers = 0;
    if (!f.o.vocab) f.o.vocab = gpt ? 50257 : 30522;
    if (!f.o.seq) f.o.seq = gpt ? 1024 : 512;
    search(&f, 0, 1, MOST, 3);
    if (f.o.layers) search(&f, f.o.heads, f.o.layers + 1, 2 * f.o.layers + 2, 1);
    return f;
}

/* "stage 3, optimizer=disk,parameters=disk" */
static const char *way_name(const options *o, const way *w, char text[128])
{
    const zf_choice placed = {.offload = w->offload};
    const bool plain = !w->offload.optimizer && !w->offload.parameters;
    int at = o->world > 1 ? snprintf(text, 128, "stage %lld", (long long)w->stage)
                          : snprintf(text, 128, plain ? "plain memory" : "one rank");
    if (!plain) {
        at += snprintf(text + at, 128 - (size_t)at, ", ");
        zf_choice_text(&placed, text + at, 128 - (size_t)at);
    }
    return text;
}

/* The ways that the spaces allow; of one rank all stages are the same. */
static int list_ways(const options *o, way ways[MOST_WAYS])
{
    int count = 0;
    for (int64_t stage = 0; stage < (o->world > 1 ? 4 : 1); stage++) {
        const bool whole = stage != 1 && stage != 2; /* else parameters stay on the device */
        ways[count++] = (way){stage, {.optimizer = ZF_DEVICE}};
        for (zf_space space = ZF_HOST; space <= ZF_DISK; space++) {
            zf_offload_desc d = {.optimizer = space};
            if (!o->host || (space == ZF_DISK && !o->disk)) continue;
            ways[count++] = (way){stage, d};
            if (whole) d.parameters = space, ways[count++] = (way){stage, d};
            d.gradients = d.activations = space;
            ways[count++] = (way){stage, d};
        }
    }
    return count;
}

static void put_fitted(zf_json_writer *w, const fitted *f, const char *name)
{
    zf_json_begin_object(w);
    zf_json_put_key(w, "way"), zf_json_put_string(w, name);
    plan_put_options(w, &f->o);
    plan_put_bytes(w, "parameters", (size_t)f->r.plan.parameter_count);
    for (int k = 0; k < ZF_SPACES; k++)
        plan_put_bytes(w, zf_space_name((zf_space)k), f->r.plan.spaces[k].peak_bytes);
    zf_json_put_key(w, "seconds"), zf_json_put_double(w, f->r.estimate.seconds);
    zf_json_end(w);
}

static void print_fitted(const fitted *f, const char *name)
{
    char bytes[ZF_SPACES][32];
    printf("%-4s  %-74s", f->o.gpt ? "GPT" : "BERT", name);
    if (!f->o.layers) {
        printf("none: %s\n", *f->error ? f->error : "the smallest does not fit");
        return;
    }
    for (int k = 0; k < ZF_SPACES; k++) human(bytes[k], (double)f->r.plan.spaces[k].peak_bytes);
    printf("%10.4gB%8lld%8lld%12s%12s%12s%11.4g\n", (double)f->r.plan.parameter_count / 1e9,
           (long long)f->o.layers, (long long)f->o.hidden, bytes[0], bytes[1], bytes[2],
           f->r.estimate.seconds);
}

int plan_print_fit(const options *o)
{
    zf_json_writer *w = o->json ? zf_json_writer_new(2, NULL) : NULL;
    way ways[MOST_WAYS];
    const int count = list_ways(o, ways);
    if (w) zf_json_begin_object(w), zf_json_put_key(w, "fit"), zf_json_begin_array(w);
    else
        printf("%-4s  %-74s%11s%8s%8s%12s%12s%12s%11s\n", "", "", "parameters", "layers", "width",
               "device", "host", "disk", "seconds");
    for (int n = 0; n < 2 * count; n++) {
        const way *v = &ways[n % count];
        const fitted f = largest(o, n < count, v);
        char name[128];
        way_name(o, v, name);
        if (w) put_fitted(w, &f, name);
        else print_fitted(&f, name);
        fflush(stdout);
    }
    if (w) {
        zf_json_end(w), zf_json_end(w);
        return plan_end_json(w);
    }
    return 0;
}

