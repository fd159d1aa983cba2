/* The page of a run (--report-html), and the trace of some of its steps (--trace). */
#define _POSIX_C_SOURCE 200809L
#include "../../../build/commit.h"
#include "../options/fail.h"
#include "run.h"

#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

/* The steps that are measured: those of --trace, or one for the page, after one that warms up. */
enum { MEASURED = 2, MOST_TRACED = 1000 };

bool run_trace_steps(const char *text, run_traced *out, zf_error *error)
{
    const char *at = text ? strstr(text, ":steps=") : NULL;
    long long first, last;
    char end;
    *out = (run_traced){.first = 0};
    if (!text) return true;
    snprintf(out->path, sizeof out->path, "%.*s", (int)(at ? (size_t)(at - text) : strlen(text)),
             text);
    if (!at) return true;
    if (sscanf(at, ":steps=%lld-%lld%c", &first, &last, &end) != 2 || first < 1 || last < first ||
        last - first >= MOST_TRACED)
        return fail(
            error, ZF_ERR_ARGUMENT,
            "--trace %.200s: the steps must be A-B, 1 or more and at most %d of them, as in "
            "FILE:steps=10-12",
            text, MOST_TRACED);
    out->first = first, out->last = last;
    return true;
}

/* ------------------------------------------------------------------------------------- the page */

typedef struct option_list {
    zf_report *page;
    const run_job *job;
    bool given; /* those on the command line or in DeepSpeed's file, or the others */
} option_list;

/* Whether an argument is the whole name of an option. */
typedef struct whole_name {
    const char *text;
    size_t length;
    bool found;
} whole_name;

static void find_whole(void *user, const zf_option_value *v)
{
    whole_name *n = user;
    n->found |= v->flag && strlen(v->flag) == n->length && !strncmp(v->flag, n->text, n->length);
}

/* The option is on the command line, perhaps by the beginning of its name. */
static bool is_given(const run_job *job, const char *flag)
{
    for (int k = 1; k < job->report.argc; k++) {
        const char *given = job->report.argv[k] + 2;
        whole_name n = {.text = given};
        if (strncmp(job->report.argv[k], "--", 2)) continue;
        n.length = strcspn(given, "=");
        if (!n.length || strncmp(given, flag, n.length)) continue;
        if (!flag[n.length]) return true;
        zf_options_each(job->tables.all, job->tables.count, find_whole, &n);
        if (!n.found) return true;
    }
    return false;
}

/* Where the value of an option is from; NULL: it was not given. */
static const char *origin_of(const run_job *job, const zf_option_value *v, char text[200])
{
    const zf_deepspeed *d = &job->o.deepspeed;
    snprintf(text, 200, "command line");
    if (v->flag && is_given(job, v->flag)) return text;
    for (int32_t k = 0; k < d->count; k++) {
        const zf_deepspeed_setting *s = &d->settings[k];
        if (strcmp(s->option, v->path)) continue;
        if (s->line) snprintf(text, 200, "%s:%lld", d->file, (long long)s->line);
        else snprintf(text, 200, "%s, by default", d->file);
        return text;
    }
    return NULL;
}

static void put_option(void *user, const zf_option_value *v)
{
    const option_list *l = user;
    char name[200], text[200];
    const char *origin = origin_of(l->job, v, text);
    if (!*v->text || !origin == l->given || (!origin && !v->has_effect)) return;
    snprintf(name, sizeof name, v->flag ? "--%s" : "%s", v->flag ? v->flag : v->path);
    zf_report_fact(l->page, name, v->text, origin ? origin : "default or chosen");
}

__attribute__((format(printf, 3, 4))) static void put_fact(zf_report *page, const char *name,
                                                           const char *format, ...)
{
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    zf_report_fact(page, name, text, NULL);
}

static void put_facts(run *r)
{
    const run_job *job = r->job;
    const zf_program_info info = zf_program_info_of(r->session.program);
    struct utsname machine;
    zf_report_fact(r->page, "model", job->o.model, job->sample->title);
    put_fact(r->page, "parameters", "%lld", (long long)session_parameters(&r->session));
    put_fact(r->page, "FLOP of a step, of each rank", "%.4g", info.flops);
    put_fact(r->page, "ranks", "%d on %d nodes", (int)job->ranks.world, (int)job->ranks.nodes);
    if (!uname(&machine))
        put_fact(r->page, "machine", "%s, %s %s %s", machine.nodename, machine.sysname,
                 machine.release, machine.machine);
    put_fact(r->page, "zeroflow", "%s%s", zf_version(),
             *ZF_COMMIT ? ", commit " ZF_COMMIT : "");
    for (int given = 1; given >= 0; given--)
        zf_options_each(job->tables.all, job->tables.count, put_option,
                        &(option_list){.page = r->page, .job = job, .given = given});
}

/* The rates by which the plan is estimated; NULL: the default. */
static const zf_cost *cost_of(const run *r)
{
    if (settings_measures(&r->job->o)) return &r->session.cost;
    return r->job->o.cost ? &r->job->cost : NULL;
}

static bool draw_plan(run *r)
{
    const zf_status status =
        zf_report_plan(r->page, r->session.graph, cost_of(r), r->session.program);
    return !status || fail(&r->error, status, "the page: %s", zf_status_name(status));
}

bool run_open_page(run *r)
{
    const settings *o = &r->job->o;
    const char *remark = zf_program_info_of(r->session.program).remark;
    char title[200];
    zf_sink sink;
    if (!r->leads || !o->report_html) return true;
    snprintf(title, sizeof title, "%s %.150s", r->job->sample->title, o->model);
    if (!(r->page = zf_report_new(title, NULL)))
        return fail(&r->error, ZF_ERR_NOMEM, "out of memory");
    put_facts(r);
    zf_report_warning(r->page, remark);
    return draw_plan(r) && !zf_report_sink(r->page, o->report_html, 0, &sink, &r->error) &&
           !zf_metrics_add(&r->metrics, &sink, &r->error) &&
           !zf_report_save(r->page, o->report_html, &r->error);
}

static bool take_number(run *r, const zf_sink *sink, int64_t step, const char *name, double value)
{
    const zf_metric m = {.name = name, .value = value, .step = step};
    return !sink->put(sink->self, &m, 1, &r->error);
}

/* The rows of the log that earlier parts of the run have left. */
bool run_page_takes_log(run *r)
{
    const objective *of = r->job->sample->objective;
    zf_sink sink;
    if (!r->page) return true;
    if (zf_report_sink(r->page, NULL, 0, &sink, &r->error)) return false;
    for (int64_t k = 0; k < r->log.count; k++) {
        const step_log_row *row = &r->log.rows[k];
        for (int n = 0; n < SAMPLE_LOSSES && of->losses[n]; n++)
            if (!take_number(r, &sink, row->step, of->losses[n], row->losses[n])) return false;
        if (!take_number(r, &sink, row->step, "learning_rate", row->lr) ||
            !take_number(r, &sink, row->step, "grad_norm", row->grad_norm) ||
            !take_number(r, &sink, row->step, "train_tokens_per_second", row->tokens_per_s))
            return false;
    }
    return !zf_report_sink(r->page, r->job->o.report_html, 0, &sink, &r->error);
}

/* ------------------------------------------------------------------------------------ the trace */

bool run_open_trace(run *r)
{
    if (!run_trace_steps(r->job->o.trace, &r->traced, &r->error)) return false;
    if (!r->job->o.trace || !r->leads) return true;
    if (!(r->trace = zf_trace_new(NULL))) return fail(&r->error, ZF_ERR_NOMEM, "out of memory");
    return !zf_trace_save(r->trace, r->traced.path, &r->error);
}

/* Whether the step that is `done` when it ends is measured, and whether it is traced. */
static bool is_traced(const run *r, int64_t done)
{
    const int64_t first = r->traced.first ? r->traced.first : r->first_step + MEASURED;
    return r->job->o.trace && done >= first &&
           done <= (r->traced.first ? r->traced.last : first + 1);
}

static bool is_measured(const run *r, int64_t done)
{
    return is_traced(r, done) || (r->job->o.report_html && done == r->first_step + MEASURED);
}

zf_status run_before_step(run *r, int64_t done)
{
    zf_status status;
    if (!is_measured(r, done + 1)) return ZF_OK;
    status = zf_measure(r->session.program, true);
    /* A page does without times, where the device notes none. */
    return status == ZF_ERR_BACKEND && !is_traced(r, done + 1) ? ZF_OK : status;
}

static bool add_spans(run *r, const zf_span *spans, int32_t count, int32_t rank, bool planned,
                      bool last)
{
    const zf_trace_desc d = {
        .spans = spans, .count = count, .rank = rank, .planned = planned, .last = last};
    const zf_status status = zf_trace_spans(r->trace, r->session.graph, &d);
    return !status || fail(&r->error, status, "--trace: %s", zf_status_name(status));
}

static bool add_planned(run *r)
{
    int32_t count = 0;
    zf_span *spans;
    bool good;
    if (zf_graph_timeline(r->session.graph, cost_of(r), NULL, &count)) return true;
    if (!(spans = calloc((size_t)count + 1, sizeof *spans)))
        return fail(&r->error, ZF_ERR_NOMEM, "out of memory");
    good = !zf_graph_timeline(r->session.graph, cost_of(r), spans, &count) &&
           add_spans(r, spans, count, 0, true, false);
    free(spans);
    return good;
}

/* Spans of all ranks, which have one plan, at the first: `all` has room for them. */
static bool gather_spans(run *r, zf_span *all, int32_t count)
{
    const zf_comm *comm = r->comm;
    const size_t values = 2 * (size_t)count;
    double *times = calloc(values * ((size_t)(comm ? comm->world : 1) + 1), sizeof *times);
    zf_collective c = {.op = ZF_OP_all_gather,
                       .dtype = ZF_F64,
                       .count = (int64_t)values,
                       .in = times,
                       .out = times ? times + values : NULL};
    bool good = times != NULL;
    if (!good) fail(&r->error, ZF_ERR_NOMEM, "out of memory");
    for (int32_t k = 0; good && k < count; k++)
        times[2 * k] = all[k].from, times[2 * k + 1] = all[k].to;
    if (good && comm) good = !comm->run(comm->self, &c, &r->error);
    for (int32_t k = 0; good && comm && k < count * comm->world; k++) {
        all[k] = all[k % count];
        all[k].from = c.count ? ((double *)c.out)[2 * k] : 0,
        all[k].to = ((double *)c.out)[2 * k + 1];
    }
    free(times);
    return good;
}

/* All ranks call it. */
static bool trace_step(run *r)
{
    const int32_t world = r->comm ? r->comm->world : 1;
    int32_t count = 0;
    zf_span *all;
    bool good;
    (void)zf_measured(r->session.program, NULL, &count);
    all = calloc((size_t)count * (size_t)world + 1, sizeof *all);
    if (!all) return fail(&r->error, ZF_ERR_NOMEM, "out of memory");
    (void)zf_measured(r->session.program, all, &count);
    good = gather_spans(r, all, count);
    if (good && r->leads && !r->traced.planned) good = add_planned(r);
    r->traced.planned = true;
    for (int32_t k = 0; good && r->leads && k < world; k++)
        good = add_spans(r, all + (size_t)k * (size_t)count, count, k, false, k == world - 1);
    free(all);
    return good && (!r->leads || !zf_trace_save(r->trace, r->traced.path, &r->error));
}

bool run_after_step(run *r, int64_t done)
{
    bool good = true;
    if (!is_measured(r, done)) return true;
    if (r->page && done == r->first_step + MEASURED) good = draw_plan(r);
    if (good && is_traced(r, done)) good = trace_step(r);
    zf_measure(r->session.program, false);
    return good;
}

void run_close_reports(run *r)
{
    zf_report_free(r->page);
    zf_trace_free(r->trace);
    r->page = NULL, r->trace = NULL;
}
