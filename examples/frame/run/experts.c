/* The experts of a run: how often each was chosen, and what was dropped. */
#include "../options/fail.h"
#include "run.h"

#include <stdlib.h>

/* The output of layer i; invalid: it has no experts, or is not watched. */
static zf_tensor output_of(const run *r, int64_t i)
{
    char name[40];
    snprintf(name, sizeof name, SAMPLE_EXPERTS, (long long)i);
    return zf_graph_find(r->session.graph, name);
}

bool run_open_experts(run *r)
{
    const zf_config_table *table = r->job->sample->config();
    const int64_t layers =
        table->layers ? *(const int64_t *)(const void *)(r->job->config.bytes + table->layers) : 0;
    run_experts *x = &r->experts;
    int64_t count = 0;
    size_t each;
    if (!r->leads || !r->job->sample->rows) return true;
    for (int64_t i = 0; i < layers; i++) {
        const zf_tensor output = output_of(r, i);
        if (!zf_valid(output)) continue;
        count++, x->experts = zf_tensor_shape(output).dims[0] - 2;
    }
    if (!count) return true;
    each = (size_t)(count * (x->experts + 2));
    x->number = malloc((size_t)count * sizeof *x->number);
    x->last = calloc(each, sizeof *x->last), x->sums = calloc(each, sizeof *x->sums);
    x->room = calloc((size_t)x->experts + 2, sizeof *x->room);
    if (!x->number || !x->last || !x->sums || !x->room)
        return fail(&r->error, ZF_ERR_NOMEM, "out of memory");
    for (int64_t i = 0; i < layers; i++)
        if (zf_valid(output_of(r, i))) x->number[x->layers++] = i;
    return true;
}

void run_close_experts(run *r)
{
    free(r->experts.number);
    free(r->experts.room);
    free(r->experts.last);
    free(r->experts.sums);
    r->experts = (run_experts){.layers = 0};
}

/* The tokens of a part of a batch in the step that follows `done` steps. */
static int64_t tokens_of_part(const run_job *job, int64_t done)
{
    const shape_phase *x = shape_phases_at(&job->phases, done);
    return x ? x->batch / run_parts(job) * x->sequence : job->shape.batch * job->shape.sequence;
}

void run_take_experts(run *r, int64_t done)
{
    const run_job *job = r->job;
    run_experts *x = &r->experts;
    const int64_t each = x->experts + 2;
    for (int64_t k = 0; k < x->layers; k++) {
        (void)zf_read(r->session.program, output_of(r, x->number[k]), x->room,
                      (size_t)each * sizeof *x->room);
        for (int64_t e = 0; e < each; e++) {
            x->last[k * each + e] = x->room[e];
            x->sums[k * each + e] += x->room[e];
        }
    }
    if (!x->layers) return;
    x->last_rows = (double)(job->sample->rows(&job->config, &job->o, tokens_of_part(job, done)) *
                            run_parts(job));
    x->rows += x->last_rows;
}

/* What a layer's counts say, with room for so many rows. */
static run_load load_of(const run_experts *x, const double *counts, double rows)
{
    const double dropped = counts[x->experts], kept = counts[x->experts + 1];
    run_load load = {.most = 0};
    double sum = 0;
    for (int64_t e = 0; e < x->experts; e++) {
        sum += counts[e];
        if (counts[e] > load.most) load.most = counts[e];
    }
    if (!(sum > 0)) return load;
    load.most *= (double)x->experts / sum, load.dropped = dropped / (dropped + kept);
    load.padding = 1 - kept / rows;
    return load;
}

run_load run_load_of(const run *r)
{
    const run_experts *x = &r->experts;
    run_load all = {.most = 0};
    for (int64_t k = 0; k < x->layers; k++) {
        const run_load load = load_of(x, x->last + k * (x->experts + 2), x->last_rows);
        if (load.most > all.most) all.most = load.most;
        all.dropped += load.dropped / (double)x->layers;
        all.padding += load.padding / (double)x->layers;
    }
    return all;
}

/* ------------------------------------------------------------------------------------ the end */

static double sum_of(const run_experts *x, const double *counts)
{
    double sum = 0;
    for (int64_t e = 0; e < x->experts; e++) sum += counts[e];
    return sum > 0 ? sum : 1;
}

enum { SHOWN = 16 }; /* of more experts only the largest and the smallest share are shown */

/* The shares of a layer's experts, and what became of choices and rows. */
static void write_layer(const run_experts *x, int64_t k, char *text, size_t size)
{
    const double *counts = x->sums + k * (x->experts + 2), sum = sum_of(x, counts);
    const run_load load = load_of(x, counts, x->rows);
    double least = counts[0];
    int at = 0;
    for (int64_t e = 0; e < x->experts; e++) {
        if (counts[e] < least) least = counts[e];
        if (x->experts <= SHOWN)
            at += snprintf(text + at, size - (size_t)at, "%s%.1f%%", e ? " " : "",
                           100 * counts[e] / sum);
    }
    if (x->experts > SHOWN)
        at = snprintf(text, size, "%.2f%% to %.2f%% each of %lld", 100 * least / sum,
                      100 * load.most / (double)x->experts, (long long)x->experts);
    snprintf(text + at, size - (size_t)at, " of choices; %.1f%% dropped, %.1f%% of rows free",
             100 * load.dropped, 100 * load.padding);
}

void run_tell_experts(const run *r)
{
    const run_experts *x = &r->experts;
    for (int64_t k = 0; k < x->layers && x->rows > 0; k++) {
        char name[60], text[300];
        snprintf(name, sizeof name, "experts of layer %lld", (long long)x->number[k]);
        write_layer(x, k, text, sizeof text);
        if (!r->job->o.quiet) printf("%s: %s\n", name, text);
        if (r->page) zf_report_fact(r->page, name, text, NULL);
    }
}

void run_put_experts(const run *r, zf_json_writer *w)
{
    const run_experts *x = &r->experts;
    if (!(x->rows > 0)) return;
    zf_json_put_key(w, "experts"), zf_json_begin_array(w);
    for (int64_t k = 0; k < x->layers; k++) {
        const double *counts = x->sums + k * (x->experts + 2), sum = sum_of(x, counts);
        const run_load load = load_of(x, counts, x->rows);
        zf_json_begin_object(w);
        zf_json_put_int_member(w, "layer", x->number[k]);
        zf_json_put_key(w, "shares"), zf_json_begin_array(w);
        for (int64_t e = 0; e < x->experts; e++) zf_json_put_double(w, counts[e] / sum);
        zf_json_end(w);
        zf_json_put_double_member(w, "dropped", load.dropped);
        zf_json_put_double_member(w, "padding", load.padding);
        zf_json_end(w);
    }
    zf_json_end(w);
}
