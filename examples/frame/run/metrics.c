/* The numbers of a run, to all that shows or writes them. */
#define _POSIX_C_SOURCE 200809L
#include "../options/fail.h"
#include "interrupt.h"
#include "run.h"

#include <string.h>
#include <time.h>

static double clock_offset(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec - run_now();
}

bool run_open_metrics(run *r)
{
    const settings *o = &r->job->o;
    const int64_t done = zf_program_step(r->session.program);
    const zf_metric_names names = (zf_metric_names)o->tensorboard_names;
    zf_sink sink;
    r->clock = clock_offset();
    if (!run_open_trace(r) || !run_open_page(r)) return false;
    if (!r->leads || !o->tensorboard) return true;
    if (zf_event_sink(&(zf_event_desc){.directory = o->tensorboard,
                                       .names = names,
                                       .resumed = names == ZF_NAMES_HF ? done : done * o->batch},
                      &sink, &r->error))
        return false;
    return !zf_metrics_add(&r->metrics, &sink, &r->error);
}

/* A run may train in several parts. */
static bool has_sink(const zf_metrics *m, const zf_sink *sink)
{
    for (int32_t k = 0; k < m->count; k++)
        if (m->sinks[k].self == sink->self) return true;
    return false;
}

bool run_open_live(run *r)
{
    const settings *o = &r->job->o;
    const objective *of = r->job->sample->objective;
    const zf_sink log = step_log_sink(&r->log);
    zf_sink sink;
    zf_progress_desc d = {.out = stdout,
                          .terminal = r->terminal,
                          .steps = o->steps,
                          .first = r->first_step,
                          .before = {{.metric = "loss", .label = "loss", .digits = 4}},
                          .middle = {{.metric = "memory_mib", .unit = " MiB", .latest = true}},
                          .after = {{.metric = "skipped_steps",
                                     .unit = " skipped",
                                     .latest = true,
                                     .hide_zero = true}}};
    int k = 1;
    if (!r->clock) r->clock = clock_offset();
    d.wall_time = run_now() + r->clock;
    if (!has_sink(&r->metrics, &log) && zf_metrics_add(&r->metrics, &log, &r->error)) return false;
    if (!run_page_takes_log(r)) return false;
    if (o->quiet) return true;
    if (of->hits.name)
        d.before[k++] = (zf_progress_column){.metric = "label_hits",
                                             .label = of->hits.name,
                                             .digits = 1,
                                             .unit = "%",
                                             .per = "labels"};
    if (r->experts.layers)
        d.before[k++] = (zf_progress_column){.metric = "expert_load", .label = "load", .digits = 2};
    if (of->also)
        d.before[k] = (zf_progress_column){.metric = of->also, .label = of->also, .digits = 4};
    if (zf_progress_sink(&d, &sink, &r->error)) return false;
    return !zf_metrics_add(&r->live, &sink, &r->error);
}

static int64_t samples_until(const run *r, int64_t step)
{
    const shape_phase *x = shape_phases_at(&r->job->phases, step);
    return x ? x->before + (step - x->first) * x->batch : step * r->job->o.batch;
}

/* Where the numbers of a step, or of an evaluation, belong. */
static zf_metric metric_at(const run *r, int64_t step)
{
    return (zf_metric){.step = step,
                       .samples = samples_until(r, step),
                       .tokens = run_tokens_until(r->job, step),
                       .wall_time = run_now() + r->clock,
                       .rank = r->comm ? r->comm->rank : 0};
}

typedef struct metric_list {
    zf_metric all[SAMPLE_LOSSES + 12], at;
    int32_t count;
} metric_list;

static void add(metric_list *l, const char *name, double value)
{
    l->all[l->count] = l->at;
    l->all[l->count].name = name;
    l->all[l->count++].value = value;
}

static bool put(run *r, const metric_list *l)
{
    zf_error error = {ZF_OK, ""};
    const zf_status status = zf_metrics_put(&r->metrics, l->all, l->count, &error);
    if (status == ZF_ERR_NOMEM) return fail(&r->error, status, "%s", error.text);
    if (status && !r->metrics_lost)
        fprintf(stderr,
                "%s: %s; the run goes on, without numbers there until it can be written again\n",
                r->job->sample->program, error.text);
    r->metrics_lost |= status != ZF_OK;
    zf_metrics_put(&r->live, l->all, l->count, NULL);
    if (r->live.count) interrupt_flush();
    return true;
}

bool run_put_step(run *r, const step_log_row *row)
{
    const objective *of = r->job->sample->objective;
    metric_list l = {.at = metric_at(r, row->step)};
    for (int k = 0; k < SAMPLE_LOSSES && of->losses[k]; k++) add(&l, of->losses[k], row->losses[k]);
    add(&l, "learning_rate", row->lr);
    add(&l, "grad_norm", row->grad_norm);
    add(&l, "train_tokens_per_second", row->tokens_per_s);
    add(&l, "memory_mib", run_peak_mib());
    if (of->hits.name) add(&l, "label_hits", session_scalar(&r->session, of->hits.output));
    add(&l, "labels", (double)of->count(r->batch).labelled);
    if (run_scaled(r)) add(&l, "skipped_steps", (double)session_skipped(&r->session));
    if (r->experts.layers) {
        const run_load load = run_load_of(r);
        add(&l, "expert_load", load.most);
        add(&l, "expert_dropped", load.dropped);
        add(&l, "expert_padding", load.padding);
    }
    return put(r, &l);
}

bool run_put_score(run *r)
{
    const objective *of = r->job->sample->objective;
    metric_list l = {.at = metric_at(r, r->judged)};
    char names[SAMPLE_SCORES][64];
    if (!r->score.labelled) return true;
    add(&l, "eval_loss", r->score.loss);
    for (int k = 0; k < SAMPLE_SCORES && of->scores[k].name; k++) {
        if (!strcmp(of->scores[k].name, "loss")) continue;
        if (!zf_valid(zf_graph_find(r->session.graph, of->scores[k].output))) continue;
        snprintf(names[k], sizeof names[k], "eval_%s", of->scores[k].name);
        add(&l, names[k], r->score.value[k]);
    }
    return put(r, &l);
}

bool run_close_metrics(run *r, zf_error *error)
{
    bool good;
    zf_metrics_close(&r->live, NULL);
    good = !zf_metrics_close(&r->metrics, error);
    run_close_reports(r);
    return good;
}
