/* A page about runs and plans: one HTML file without scripts, and without anything from
 * elsewhere. */

enum { ZFI_REPORT_RUNS = 16, ZFI_REPORT_SERIES = 256, ZFI_REPORT_TABLE = 20 };

/* A value that jumps: it is further from the running mean than this many running deviations. */
static const double zfi_spike = 6;
enum { ZFI_SPIKE_AFTER = 50, ZFI_SPIKES_NAMED = 5 };

typedef struct zfi_spikes {
    double mean, square;
    int64_t values, count, steps[ZFI_SPIKES_NAMED];
} zfi_spikes;

struct zf_report {
    zf_allocator allocator;
    char title[200];
    char path[4096];      /* of its sink */
    double every, saved;  /* seconds between two writes, and when the last was */
    zfi_markup facts, defaults, warnings, plan, page;
    zfi_markup slow; /* warnings of the plan's queues */
    zfi_series *series[ZFI_REPORT_SERIES];
    int32_t series_count, left_out; /* left_out: numbers that had no series */
    char runs[ZFI_REPORT_RUNS][100];
    int32_t run_count;
    zfi_spikes spikes; /* of the loss, in the run that is on */
    int64_t skipped;   /* its steps that were skipped */
};

static const char zfi_page_style[] =
    ":root{color-scheme:light dark;--back:#fff;--text:#1f2328;--soft:#59636e;--line:#d1d9e0;"
    "--c0:#2f6fb4;--c1:#c95f12;--c2:#2f8a3c;--c3:#c93a3c;--c4:#8a5fb0;--c5:#8a6a55;--c6:#7d8590;"
    "--c7:#1d8a8a}\n"
    "@media(prefers-color-scheme:dark){:root{--back:#0d1117;--text:#e6edf3;--soft:#9198a1;"
    "--line:#3d444d;--c0:#6cb0f5;--c1:#f5a05a;--c2:#6ecb7a;--c3:#ff8580;--c4:#c9a0ee;"
    "--c5:#c9a58c;--c6:#b0b8c0;--c7:#5fd0d0}}\n"
    "*{box-sizing:border-box}body{margin:0 auto;padding:16px;max-width:1680px;"
    "background:var(--back);color:var(--text);font:15px/1.5 system-ui,sans-serif;"
    "overflow-wrap:anywhere}\n"
    "h1{font-size:1.5em;margin:.2em 0}h2{font-size:1.2em;margin:1.6em 0 .4em;"
    "border-bottom:1px solid var(--line)}h3{font-size:1em;margin:1em 0 .2em}p{margin:.3em 0}"
    ".soft{color:var(--soft)}\n"
    ".grid2{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,400px),1fr));"
    "gap:8px 24px}.wide{overflow-x:auto}figure{margin:0}figcaption{font-weight:600}\n"
    "svg{width:100%;height:auto;display:block;font-size:12px}svg.plan{min-width:560px;"
    "max-width:1100px}svg.roof{max-width:620px}text{fill:var(--soft)}.end{text-anchor:end}"
    ".mid{text-anchor:middle}\n"
    ".grid{stroke:var(--line);stroke-width:1;fill:none}.axis{stroke:var(--text);fill:none}"
    ".band{opacity:.22}\n"
    "table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums}td,"
    "th{padding:2px 10px 2px 0;text-align:left;vertical-align:top;"
    "border-bottom:1px solid var(--line);overflow-wrap:normal}\n"
    "td{white-space:nowrap}#ran .wide{columns:auto 420px}"
    "#ran td{white-space:normal;overflow-wrap:anywhere}\n"
    "i{display:inline-block;width:.8em;height:.8em;margin-right:.4em}.warn li{color:var(--c3)}"
    "summary{cursor:pointer;color:var(--soft)}\n";

/* ------------------------------------------------------------------------------------- parts */

static void zfi_page_head(zfi_markup *t, const char *title)
{
    zfi_markup_put(
        t, "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<meta "
           "name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<meta "
           "http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
           "'unsafe-inline'; img-src data:\">\n<link rel=\"icon\" href=\"data:,\">\n<title>");
    zfi_markup_escaped(t, title), zfi_markup_put(t, "</title>\n<style>\n");
    zfi_markup_put(t, zfi_page_style);
    for (int k = 0; k < ZFI_CHART_COLOURS; k++)
        zfi_markup_print(t,
                         ".s%d{stroke:var(--c%d);fill:none;stroke-width:1.6}.f%d{fill:var(--c%d)}"
                         ".b%d{background:var(--c%d)}\n",
                         k, k, k, k, k, k);
    zfi_markup_put(t, "</style></head>\n<body><h1>");
    zfi_markup_escaped(t, title), zfi_markup_put(t, "</h1>\n");
}

/* "loss" of "eval_loss": both are in one picture. */
static const char *zfi_series_group(const zfi_series *s)
{
    return strncmp(s->name, "eval_", 5) ? s->name : s->name + 5;
}

static void zfi_legend_put(zfi_markup *t, const zf_report *r, const zfi_series *const *list,
                           int count)
{
    zfi_markup_put(t, "<p class=\"soft\">");
    for (int k = 0; k < count; k++) {
        zfi_markup_print(t, "<i class=\"b%d\"></i>", k % ZFI_CHART_COLOURS);
        zfi_markup_escaped(t, list[k]->name);
        if (r->run_count > 1) zfi_markup_put(t, ", "), zfi_markup_escaped(t, r->runs[list[k]->run]);
        zfi_markup_put(t, " &ensp; ");
    }
    zfi_markup_put(t, "</p>\n");
}

static void zfi_points_table(zfi_markup *t, const zfi_series *s)
{
    const int32_t stride = (s->count + ZFI_REPORT_TABLE - 1) / ZFI_REPORT_TABLE;
    zfi_markup_put(t, "<table><tr><th>up to step</th><th>mean of ");
    zfi_markup_escaped(t, s->name), zfi_markup_put(t, "</th><th>least</th><th>most</th></tr>\n");
    for (int32_t k = 0; k < s->count; k += stride) {
        zfi_point p = s->points[k];
        for (int32_t n = k + 1; n < k + stride && n < s->count; n++)
            zfi_point_join(&p, &s->points[n]);
        zfi_markup_print(t, "<tr><td>%lld</td><td>%.6g</td><td>%.6g</td><td>%.6g</td></tr>\n",
                       (long long)p.step, zfi_point_mean(&p), p.low, p.high);
    }
    zfi_markup_put(t, "</table>\n");
}

static void zfi_group_put(zfi_markup *t, const zf_report *r, const char *group)
{
    const zfi_series *list[ZFI_REPORT_SERIES];
    int count = 0;
    for (int32_t k = 0; k < r->series_count; k++)
        if (!strcmp(zfi_series_group(r->series[k]), group)) list[count++] = r->series[k];
    zfi_markup_put(t, "<figure><figcaption>"), zfi_markup_escaped(t, group);
    zfi_markup_put(t, "</figcaption>\n");
    zfi_chart_draw(t, group, list, count);
    zfi_legend_put(t, r, list, count);
    zfi_markup_put(t, "<details><summary>table</summary>\n");
    for (int k = 0; k < count; k++) zfi_points_table(t, list[k]);
    zfi_markup_put(t, "</details></figure>\n");
}

static void zfi_summary_put(zfi_markup *t, const zf_report *r)
{
    zfi_markup_put(t, "<div class=\"wide\"><table><tr><th>number</th>");
    if (r->run_count > 1) zfi_markup_put(t, "<th>run</th>");
    zfi_markup_put(
        t, "<th>first</th><th>last</th><th>at step</th><th>mean</th><th>least</th><th>most</th>"
           "<th>values</th></tr>\n");
    for (int32_t k = 0; k < r->series_count; k++) {
        const zfi_series *s = r->series[k];
        const zfi_point all = zfi_series_whole(s);
        zfi_markup_put(t, "<tr><td>"), zfi_markup_escaped(t, s->name), zfi_markup_put(t, "</td>");
        if (r->run_count > 1)
            zfi_markup_put(t, "<td>"), zfi_markup_escaped(t, r->runs[s->run]),
                zfi_markup_put(t, "</td>");
        zfi_markup_print(t, "<td>%.6g</td><td>%.6g</td><td>%lld</td>", s->first, s->last,
                       (long long)s->last_step);
        if (all.count)
            zfi_markup_print(t, "<td>%.6g</td><td>%.6g</td><td>%.6g</td>", zfi_point_mean(&all),
                             all.low, all.high);
        else zfi_markup_put(t, "<td></td><td></td><td></td>");
        zfi_markup_print(t, "<td>%lld", (long long)s->values);
        if (s->bad) zfi_markup_print(t, ", %lld not finite", (long long)s->bad);
        zfi_markup_put(t, "</td></tr>\n");
    }
    zfi_markup_put(t, "</table></div>\n");
}

static void zfi_curves_put(zfi_markup *t, const zf_report *r)
{
    if (!r->series_count) return;
    zfi_markup_put(t, "<section id=\"curves\"><h2>Curves</h2>\n<div class=\"grid2\">\n");
    for (int32_t k = 0; k < r->series_count; k++) {
        const char *group = zfi_series_group(r->series[k]);
        int32_t first = 0;
        while (strcmp(zfi_series_group(r->series[first]), group)) first++;
        if (first == k) zfi_group_put(t, r, group);
    }
    zfi_markup_put(t, "</div>\n");
    zfi_summary_put(t, r);
    zfi_markup_put(t, "</section>\n");
}

static void zfi_warnings_put(zfi_markup *t, const zf_report *r)
{
    const zfi_spikes *s = &r->spikes;
    if (!r->warnings.bytes && !r->slow.bytes && !s->count && !r->skipped && !r->left_out) return;
    zfi_markup_put(t, "<section id=\"warnings\"><h2>Warnings</h2>\n<ul class=\"warn\">\n");
    if (r->warnings.bytes) zfi_markup_add(t, r->warnings.data, r->warnings.bytes);
    if (r->slow.bytes) zfi_markup_add(t, r->slow.data, r->slow.bytes);
    if (s->count) {
        zfi_markup_print(t, "<li>the loss jumps in %lld steps, first in", (long long)s->count);
        for (int k = 0; k < s->count && k < ZFI_SPIKES_NAMED; k++)
            zfi_markup_print(t, "%s %lld", k ? "," : "", (long long)s->steps[k]);
        zfi_markup_put(t, "</li>\n");
    }
    if (r->skipped)
        zfi_markup_print(t, "<li>%lld steps were skipped, since gradients were not finite</li>\n",
                       (long long)r->skipped);
    if (r->left_out)
        zfi_markup_print(t, "<li>%d numbers have no curve: a page has %d</li>\n", (int)r->left_out,
                       ZFI_REPORT_SERIES);
    zfi_markup_put(t, "</ul></section>\n");
}

static void zfi_facts_table(zfi_markup *t, const zfi_markup *rows)
{
    if (!rows->bytes) return;
    zfi_markup_put(t, "<div class=\"wide\"><table>\n");
    zfi_markup_add(t, rows->data, rows->bytes);
    zfi_markup_put(t, "</table></div>\n");
}

/* What ran; settings that are defaults are folded. */
static void zfi_facts_put(zfi_markup *t, const zf_report *r)
{
    if (!r->facts.bytes && !r->defaults.bytes) return;
    zfi_markup_put(t, "<section id=\"ran\"><h2>What ran</h2>\n");
    zfi_facts_table(t, &r->facts);
    if (r->defaults.bytes) zfi_markup_put(t, "<details><summary>defaults</summary>\n");
    zfi_facts_table(t, &r->defaults);
    zfi_markup_put(t, r->defaults.bytes ? "</details></section>\n" : "</section>\n");
}

/* Makes the text of the page as it is now. */
static zf_status zfi_page_make(zf_report *r)
{
    zfi_markup *t = &r->page;
    t->bytes = 0, t->lacks_memory = false;
    zfi_page_head(t, r->title);
    zfi_warnings_put(t, r);
    zfi_facts_put(t, r);
    zfi_curves_put(t, r);
    if (r->plan.bytes) zfi_markup_add(t, r->plan.data, r->plan.bytes);
    zfi_markup_put(t, "</body></html>\n");
    return t->lacks_memory || r->facts.lacks_memory || r->defaults.lacks_memory ||
                   r->plan.lacks_memory ||
                   r->warnings.lacks_memory || r->slow.lacks_memory
               ? ZF_ERR_NOMEM
               : ZF_OK;
}

/* ------------------------------------------------------------------------------------- calls */

ZF_API zf_report *zf_report_new(const char *title, const zf_allocator *allocator)
{
    zf_allocator a =
        allocator && allocator->fn ? *allocator : (zf_allocator){.fn = zfi_fit_allocate};
    zf_report *r = a.fn(a.user, NULL, 0, sizeof *r);
    if (!r) return NULL;
    memset(r, 0, sizeof *r);
    r->allocator = a;
    r->facts.allocator = r->defaults.allocator = r->warnings.allocator = r->slow.allocator =
        r->plan.allocator = r->page.allocator = a;
    r->run_count = 1;
    snprintf(r->title, sizeof r->title, "%.199s", title && *title ? title : "zeroflow");
    snprintf(r->runs[0], sizeof r->runs[0], "%.99s", r->title);
    return r;
}

ZF_API void zf_report_free(zf_report *r)
{
    zf_allocator a;
    if (!r) return;
    a = r->allocator;
    for (int32_t k = 0; k < r->series_count; k++)
        a.fn(a.user, r->series[k], sizeof *r->series[k], 0);
    zfi_markup_free(&r->facts), zfi_markup_free(&r->defaults);
    zfi_markup_free(&r->warnings), zfi_markup_free(&r->slow);
    zfi_markup_free(&r->plan), zfi_markup_free(&r->page);
    a.fn(a.user, r, sizeof *r, 0);
}

ZF_API void zf_report_fact(zf_report *r, const char *name, const char *value, const char *origin)
{
    zfi_markup *t;
    if (!r || !name) return;
    t = origin && !strncmp(origin, "default", 7) ? &r->defaults : &r->facts;
    zfi_markup_put(t, "<tr><td>"), zfi_markup_escaped(t, name);
    zfi_markup_put(t, "</td><td>"), zfi_markup_escaped(t, value ? value : "");
    zfi_markup_put(t, "</td><td class=\"soft\">");
    zfi_markup_escaped(t, origin ? origin : ""), zfi_markup_put(t, "</td></tr>\n");
}

ZF_API void zf_report_warning(zf_report *r, const char *text)
{
    if (!r || !text || !*text) return;
    zfi_markup_put(&r->warnings, "<li>"), zfi_markup_escaped(&r->warnings, text);
    zfi_markup_put(&r->warnings, "</li>\n");
}

ZF_API zf_status zf_report_run(zf_report *r, const char *name)
{
    if (!r || !name) return ZF_ERR_ARGUMENT;
    if (r->series_count && r->run_count == ZFI_REPORT_RUNS) return ZF_ERR_LIMIT;
    if (r->series_count) r->run_count++;
    snprintf(r->runs[r->run_count - 1], sizeof r->runs[0], "%.99s", name);
    r->spikes = (zfi_spikes){.count = 0};
    return ZF_OK;
}

ZF_API zf_status zf_report_plan(zf_report *r, zf_graph *graph, const zf_cost *cost,
                                zf_program *program)
{
    zf_program_info info;
    zf_span *spans = NULL;
    int32_t count = 0;
    zf_status status;
    if (!r || !graph) return ZF_ERR_ARGUMENT;
    r->plan.bytes = r->slow.bytes = 0;
    if (program) info = zf_program_info_of(program);
    if (program && !zf_measured(program, NULL, &count) && count > 0) {
        spans = r->allocator.fn(r->allocator.user, NULL, 0, (size_t)count * sizeof *spans);
        if (!spans) return ZF_ERR_NOMEM;
        (void)zf_measured(program, spans, &count);
    }
    status = zfi_plan_draw(&r->plan, &r->slow, graph, cost, program ? &info : NULL, spans,
                           spans ? count : 0);
    if (spans) r->allocator.fn(r->allocator.user, spans, (size_t)count * sizeof *spans, 0);
    return status ? status : r->plan.lacks_memory ? ZF_ERR_NOMEM : ZF_OK;
}

ZF_API const char *zf_report_text(zf_report *r, size_t *bytes)
{
    if (!r || zfi_page_make(r)) return NULL;
    if (bytes) *bytes = r->page.bytes;
    return r->page.data;
}

ZF_API zf_status zf_report_save(zf_report *r, const char *path, zf_error *error)
{
    size_t bytes = 0;
    const char *text;
    if (!r || !path)
        return zfi_metrics_fail(error, ZF_ERR_ARGUMENT,
                                "zf_report_save: a report and a path are needed");
    if (!(text = zf_report_text(r, &bytes)))
        return zfi_metrics_fail(error, ZF_ERR_NOMEM, "out of memory");
    return zf_file_replace(path, text, bytes, error);
}

/* ------------------------------------------------------------------------------------- its sink */

static zfi_series *zfi_report_series(zf_report *r, const char *name, bool *lacks_memory)
{
    const int32_t run = r->run_count - 1;
    zfi_series *s;
    for (int32_t k = 0; k < r->series_count; k++)
        if (r->series[k]->run == run && !strncmp(r->series[k]->name, name, ZFI_SERIES_NAME - 1))
            return r->series[k];
    if (r->series_count == ZFI_REPORT_SERIES) return NULL;
    s = r->allocator.fn(r->allocator.user, NULL, 0, sizeof *s);
    *lacks_memory = !s;
    if (!s) return NULL;
    memset(s, 0, sizeof *s);
    s->run = run;
    snprintf(s->name, sizeof s->name, "%.95s", name);
    return r->series[r->series_count++] = s;
}

/* Running mean and deviation, over about 100 steps. */
static void zfi_spikes_add(zfi_spikes *s, int64_t step, double value)
{
    const double away = value - s->mean, by = 1 / fmin((double)++s->values, 100);
    if (!isfinite(value)) return;
    if (s->values > ZFI_SPIKE_AFTER && away > zfi_spike * sqrt(s->square)) {
        if (s->count < ZFI_SPIKES_NAMED) s->steps[s->count] = step;
        s->count++;
    }
    s->mean += by * away;
    s->square += by * (away * away - s->square);
}

static zf_status zfi_report_put(void *self, const zf_metric *list, int32_t count, zf_error *error)
{
    zf_report *r = self;
    for (int32_t k = 0; k < count; k++) {
        bool lacks_memory = false;
        zfi_series *s = zfi_report_series(r, list[k].name, &lacks_memory);
        if (lacks_memory) return zfi_metrics_fail(error, ZF_ERR_NOMEM, "out of memory");
        if (s) zfi_series_add(s, list[k].step, list[k].value);
        else r->left_out++;
        if (!strcmp(list[k].name, "loss")) zfi_spikes_add(&r->spikes, list[k].step, list[k].value);
        if (!strcmp(list[k].name, "skipped_steps")) r->skipped = (int64_t)list[k].value;
    }
    if (!*r->path || !(list->wall_time - r->saved >= r->every)) return ZF_OK;
    r->saved = list->wall_time;
    return zf_report_save(r, r->path, error);
}

static zf_status zfi_report_close(void *self, zf_error *error)
{
    zf_report *r = self;
    return *r->path ? zf_report_save(r, r->path, error) : ZF_OK;
}

ZF_API zf_status zf_report_sink(zf_report *r, const char *path, double every, zf_sink *sink,
                                zf_error *error)
{
    if (!r || !sink || (path && strlen(path) >= sizeof r->path))
        return zfi_metrics_fail(
            error, ZF_ERR_ARGUMENT,
            "zf_report_sink: a report, a place for the sink, and a path of at most "
            "4095 bytes are needed");
    snprintf(r->path, sizeof r->path, "%s", path ? path : "");
    r->every = zfi_or(every, 30);
    *sink = (zf_sink){.self = r, .put = zfi_report_put, .close = zfi_report_close};
    return ZF_OK;
}
