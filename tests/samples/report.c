/* Pages and traces, and the measurement of steps that they show. */
#include "../support/test.h"

static zf_metric metric(int64_t step, const char *name, double value)
{
    return (zf_metric){.name = name, .value = value, .step = step, .wall_time = 0.1 * (double)step};
}

static void free_report(void *r) { zf_report_free(r); }
static void free_trace(void *t) { zf_trace_free(t); }
static void free_json(void *j) { zf_json_free(j); }
static void free_program(void *p) { zf_program_free(p); }
static void free_graph(void *g) { zf_graph_free(g); }
static void free_backend(void *b) { zf_backend_free(b); }

/* A classifier with a training step; `world` ranks at stage 3 for more than one. */
static zf_graph *model(test *t, int32_t world)
{
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    zf_tensor x = zf_input(g, "x", ZF_F32, ZF_SHAPE(8, 16)), y = zf_input(g, "y", ZF_I32, ZF_SHAPE(8));
    zf_tensor lr = zf_input(g, "lr", ZF_F32, ZF_SCALAR), w, v, loss;
    zf_push(g, "<first>");
    w = zf_param(g, "w", ZF_SHAPE(32, 16), NULL);
    x = zf_relu(zf_matmul_ex(x, w, &(zf_matmul_desc){.transpose_b = true}));
    zf_pop(g);
    v = zf_param(g, "v", ZF_SHAPE(4, 32), NULL);
    loss = zf_cross_entropy(zf_matmul_ex(x, v, &(zf_matmul_desc){.transpose_b = true}), y, ZF_NONE);
    zf_passes(g, &(zf_training){.loss = loss,
                                .lr = lr,
                                .optimizer = ZF_ADAMW,
                                .zero = {.stage = world > 1 ? 3 : 0, .world = world}});
    return g;
}

static zf_program *program_of(test *t, zf_graph *g, zf_backend *backend)
{
    static const int32_t labels[8] = {0, 1, 2, 3, 0, 1, 2, 3};
    float x[8 * 16], rate = 0.01f;
    zf_program *p = zf_compile(g, &(zf_compile_desc){.seed = 3, .backend = backend});
    (void)t;
    for (int k = 0; k < 8 * 16; k++) x[k] = (float)(k % 7) - 3;
    if (p) {
        zf_write(p, zf_graph_find(g, "x"), x, sizeof x);
        zf_write(p, zf_graph_find(g, "y"), labels, sizeof labels);
        zf_write(p, zf_graph_find(g, "lr"), &rate, sizeof rate);
    }
    return p;
}

/* ------------------------------------------------------------------------------------ measuring */

/* Each launch has one span; numbers are the same as without; nothing stays when it is off. */
TEST(measured_steps_have_the_same_bits)
{
    float w[2][32 * 16];
    for (int on = 0; on < 2; on++) {
        zf_graph *g = model(t, 1);
        zf_program *p;
        zf_span spans[256];
        int32_t count = 256;
        long blocks;
        NEED(t, g, NULL);
        test_defer(t, free_graph, g);
        p = program_of(t, g, NULL);
        OK(t, zf_graph_status(g), zf_graph_error(g));
        test_defer(t, free_program, p);
        blocks = t->live_blocks;
        if (on) OK(t, zf_measure(p, true), zf_program_error(p));
        for (int step = 0; step < 3; step++) OK(t, zf_step(p), zf_program_error(p));
        CHECK(t, !zf_measured(p, spans, &count));
        CHECK(t, on ? count > 5 && count < 256 : count == 0);
        for (int32_t k = 0; k < count; k++) {
            CHECK(t, spans[k].from >= (k ? spans[k - 1].to : 0) && spans[k].to >= spans[k].from);
            CHECK(t, spans[k].to < 100 && spans[k].resource == ZF_RESOURCE_COMPUTE);
        }
        if (on) OK(t, zf_measure(p, false), zf_program_error(p));
        CHECK(t, t->live_blocks == blocks && !zf_measured(p, NULL, &count) && !count);
        OK(t, zf_read(p, zf_graph_find(g, "<first>.w"), w[on], sizeof w[on]), zf_program_error(p));
    }
    CHECK(t, !memcmp(w[0], w[1], sizeof w[0]));
}

TEST(measuring_needs_a_backend_that_can)
{
    zf_error error = {ZF_OK, ""};
    zf_backend *cpu = zf_cpu_backend(&(zf_cpu_desc){.allocator = t->allocator}, &error);
    zf_graph *g;
    zf_program *p;
    NEED(t, cpu, &error);
    test_defer(t, free_backend, cpu);
    cpu->measures = false;
    g = model(t, 1);
    NEED(t, g, NULL);
    test_defer(t, free_graph, g);
    p = program_of(t, g, cpu);
    OK(t, zf_graph_status(g), zf_graph_error(g));
    test_defer(t, free_program, p);
    CHECK(t, zf_measure(p, true) == ZF_ERR_BACKEND);
    CHECK_TEXT(t, zf_program_error(p), "zf_measure: the backend \"cpu\" notes no times");
    OK(t, zf_step(p), zf_program_error(p));
}

/* ---------------------------------------------------------------------------------------- pages */

/* Every element that is opened is closed, in the right order, and attributes are quoted. */
static bool is_well_formed(const char *at)
{
    static const char *const without_end[] = {"meta", "link", "!DOCTYPE"};
    char open[64][16];
    int depth = 0;
    while ((at = strchr(at, '<'))) {
        const char *end;
        char name[16];
        bool single = false;
        const bool closes = at[1] == '/';
        if (sscanf(at + 1 + closes, "%15[!a-zA-Z0-9]", name) != 1) return false;
        if (!(end = strchr(at, '>')) || memchr(at + 1, '<', (size_t)(end - at - 1))) return false;
        for (size_t k = 0; k < sizeof without_end / sizeof *without_end; k++)
            single |= !strcmp(name, without_end[k]);
        if (closes && (!depth || strcmp(open[--depth], name))) return false;
        if (!closes && !single && end[-1] != '/') {
            if (depth == 64) return false;
            strcpy(open[depth++], name);
        }
        at = end;
    }
    return !depth;
}

TEST(page_escapes_what_is_from_outside)
{
    zf_report *r = zf_report_new("<script>&\"'", &t->allocator);
    const zf_metric of = metric(1, "<b>", 1);
    zf_sink sink;
    const char *text;
    NEED(t, r, NULL);
    test_defer(t, free_report, r);
    zf_report_fact(r, "--lr", "a<b\n\x01", "x&y");
    zf_report_fact(r, "--clip", "0", "default");
    zf_report_warning(r, "</li>");
    OK(t, zf_report_sink(r, NULL, 0, &sink, NULL), NULL);
    OK(t, sink.put(sink.self, &of, 1, NULL), NULL);
    NEED(t, (text = zf_report_text(r, NULL)), NULL);
    CHECK(t, strstr(text, "<title>&lt;script&gt;&amp;&quot;&#39;</title>"));
    CHECK(t, strstr(text, "<td>a&lt;b  </td><td class=\"soft\">x&amp;y</td>"));
    CHECK(t, strstr(text, "<details><summary>defaults</summary>\n<div class=\"wide\"><table>\n"
                          "<tr><td>--clip</td><td>0</td><td class=\"soft\">default</td></tr>\n"));
    CHECK(t, strstr(text, "<li>&lt;/li&gt;</li>") && strstr(text, "&lt;b&gt;") && !strstr(text, "<b>"));
    CHECK(t, is_well_formed(text));
}

/* 100,000 steps of twelve numbers: the page stays small, asks for nothing, and the extremes of all
 * values are in its table. */
TEST(page_of_a_long_run_is_small)
{
    static const char *const names[] = {"loss", "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k"};
    zf_report *r = zf_report_new("long", &t->allocator);
    zf_sink sink;
    size_t bytes;
    const char *text;
    NEED(t, r, NULL);
    test_defer(t, free_report, r);
    OK(t, zf_report_sink(r, NULL, 0, &sink, NULL), NULL);
    for (int64_t step = 1; step <= 100000; step++) {
        zf_metric all[12];
        for (int k = 0; k < 12; k++)
            all[k] = metric(step, names[k], k ? sin((double)step * k) : step == 77777 ? 50 : 1 + 1e-3 * (double)(step % 9));
        all[5].value = step == 500 ? -123.5 : step == 501 ? NAN : 2;
        all[11] = metric(step, "skipped_steps", step < 600 ? 0 : 3);
        OK(t, sink.put(sink.self, all, 12, NULL), NULL);
    }
    NEED(t, (text = zf_report_text(r, &bytes)), NULL);
    CHECK(t, bytes < 1000000 && bytes == strlen(text) && is_well_formed(text));
    CHECK(t, !strstr(text, "<script") && !strstr(text, "http:") && !strstr(text, "https:") &&
                 !strstr(text, "src=\"") && !strstr(text, "url(") && !strstr(text, "@import"));
    CHECK(t, strstr(text, "<td>e</td><td>2</td><td>2</td><td>100000</td><td>1.99874</td><td>-123.5</td>"
                          "<td>2</td><td>100000, 1 not finite</td>"));
    CHECK(t, strstr(text, "<li>the loss jumps in 1 steps, first in 77777</li>"));
    CHECK(t, strstr(text, "<li>3 steps were skipped, since gradients were not finite</li>"));
}

TEST(page_has_the_numbers_of_the_plan)
{
    zf_graph *g = model(t, 4);
    zf_report *r;
    zf_plan plan;
    char peak[100];
    const char *text;
    NEED(t, g, NULL);
    test_defer(t, free_graph, g);
    OK(t, zf_memory(g, NULL), zf_graph_error(g));
    NEED(t, (r = zf_report_new(NULL, &t->allocator)), NULL);
    test_defer(t, free_report, r);
    OK(t, zf_report_plan(r, g, NULL, NULL), zf_graph_error(g));
    OK(t, zf_graph_plan(g, &plan), zf_graph_error(g));
    NEED(t, (text = zf_report_text(r, NULL)), NULL);
    snprintf(peak, sizeof peak, "are allocated (%zu bytes).", plan.peak_bytes);
    CHECK(t, strstr(text, peak));
    snprintf(peak, sizeof peak, "<td>all_gather</td><td>all ranks</td><td>%lld</td>",
             (long long)plan.traffic.all_gather.calls);
    CHECK(t, plan.traffic.all_gather.calls > 0 && strstr(text, peak));
    CHECK(t, strstr(text, "<td>optimizer</td>") && strstr(text, "<tr><td>link</td>"));
    CHECK(t, is_well_formed(text));
}

/* The plan's rates are those that were given, and a copy takes longer than by them. */
TEST(page_warns_of_slow_queues)
{
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    zf_tensor w, x;
    zf_program *p;
    zf_report *r;
    zf_cost cost = zf_cost_default();
    const float rate = 0.1f;
    const char *text = "";
    NEED(t, g, NULL);
    test_defer(t, free_graph, g);
    x = zf_input(g, "lr", ZF_F32, ZF_SCALAR), w = zf_param(g, "w", ZF_SHAPE(2, 2), NULL);
    zf_passes(g, &(zf_training){.loss = zf_sum(zf_mul(w, w)),
                                .lr = x,
                                .optimizer = ZF_ADAMW,
                                .offload = {.optimizer = ZF_HOST}});
    p = zf_compile(g, NULL);
    OK(t, zf_graph_status(g), zf_graph_error(g));
    test_defer(t, free_program, p);
    OK(t, zf_write(p, x, &rate, sizeof rate), zf_program_error(p));
    OK(t, zf_measure(p, true), zf_program_error(p));
    NEED(t, (r = zf_report_new(NULL, &t->allocator)), NULL);
    test_defer(t, free_report, r);
    cost.download = cost.upload = (zf_cost_link){.bytes_per_s = 1, .latency_s = 1};
    /* Without rates; by slow ones; by one that is too fast. Another process may take the processor
     * in the middle of a step, of which the copy then is a small part; else each node of this graph
     * takes about as long. */
    for (int try = 0; try < 30 && (try < 3 || !strstr(text, "is slow")); try++) {
        if (try > 1) cost.download = (zf_cost_link){.bytes_per_s = 1e18, .latency_s = 1e-12};
        OK(t, zf_step(p), zf_program_error(p));
        OK(t, zf_report_plan(r, g, try ? &cost : NULL, p), zf_graph_error(g));
        NEED(t, (text = zf_report_text(r, NULL)), NULL);
        CHECK(t, (try > 1 || !strstr(text, "is slow")) && is_well_formed(text));
    }
    CHECK(t, strstr(text, "<li>the queue download is slow: it was busy for "));
    CHECK(t, !strstr(text, "the queue upload is slow"));
}

/* Several runs are in one picture; a sink writes whole pages. */
TEST(page_of_several_runs)
{
    const char *path = test_path("page.html");
    zf_report *r = zf_report_new("two", &t->allocator);
    zf_error error = {ZF_OK, ""};
    zf_sink sink;
    static char text[1 << 17];
    FILE *file;
    NEED(t, r, NULL);
    test_defer(t, free_report, r);
    OK(t, zf_report_sink(r, path, ZF_ZERO, &sink, &error), error.text);
    for (int run = 0; run < 2; run++) {
        const zf_metric of[] = {metric(1, "loss", 1 + run), metric(1, "eval_loss", 3)};
        OK(t, zf_report_run(r, run ? "second" : "first"), NULL);
        for (int k = 0; k < 2; k++) OK(t, sink.put(sink.self, &of[k], 1, &error), error.text);
    }
    CHECK(t, (file = fopen(path, "rb")));
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    CHECK(t, is_well_formed(text) && strstr(text, "loss, second") && strstr(text, "eval_loss, first"));
    CHECK(t, strstr(text, "<figcaption>loss</figcaption>") && !strstr(text, "<figcaption>eval_loss"));
    CHECK(t, zf_report_save(r, "/nonexistent/page", &error) == ZF_ERR_IO);
}

/* --------------------------------------------------------------------------------------- traces */

static double number_in(const zf_json *object, const char *key)
{
    double x = NAN;
    (void)zf_json_to_double(zf_json_member(object, key), -1e18, 1e18, &x, NULL);
    return x;
}

static const char *text_in(const zf_json *object, const char *key)
{
    const char *text = "";
    (void)zf_json_to_string(zf_json_member(object, key), &text, NULL);
    return text;
}

typedef struct slice {
    double pid, tid, from, to;
} slice;

static bool is_inside(const slice *all, int32_t count, const zf_json *event)
{
    const double at = number_in(event, "ts");
    for (int32_t k = 0; k < count; k++)
        if (all[k].pid == number_in(event, "pid") && all[k].tid == number_in(event, "tid") &&
            at >= all[k].from && at <= all[k].to)
            return true;
    return false;
}

/* What Perfetto asks of a trace: slices of a thread follow one another, ends of arrows are in slices,
 * the second after the first, and processes and threads have names. */
static void check_trace_events(test *t, const zf_json *events)
{
    static slice all[2048];
    int32_t count = 0;
    const int64_t length = zf_json_length(events);
    for (int64_t k = 0; k < length; k++) {
        const zf_json *of = zf_json_element(events, k);
        const slice s = {number_in(of, "pid"), number_in(of, "tid"), number_in(of, "ts"),
                         number_in(of, "ts") + number_in(of, "dur")};
        if (*text_in(of, "ph") == 'M' && strstr(text_in(of, "name"), "_name"))
            CHECK(t, *text_in(zf_json_member(of, "args"), "name"));
        if (*text_in(of, "ph") != 'X') continue;
        CHECK(t, s.pid > 0 && s.tid >= 0 && s.to >= s.from && *text_in(of, "cat"));
        CHECK(t, zf_json_member(zf_json_member(of, "args"), "bytes") != NULL);
        for (int32_t n = 0; n < count; n++) /* a nanosecond is 1e-3 */
            CHECK(t, all[n].pid != s.pid || all[n].tid != s.tid || s.from > all[n].to - 5e-4 ||
                         s.to < all[n].from + 5e-4);
        CHECK(t, count < 2048);
        all[count++] = s;
    }
    for (int64_t k = 0; k < length; k++) {
        const zf_json *of = zf_json_element(events, k), *next = zf_json_element(events, k + 1);
        if (*text_in(of, "ph") != 's') continue;
        CHECK(t, *text_in(next, "ph") == 'f' && !strcmp(text_in(of, "id"), text_in(next, "id")));
        CHECK(t, number_in(of, "ts") <= number_in(next, "ts"));
        CHECK(t, is_inside(all, count, of) && is_inside(all, count, next));
    }
}

/* Slices of a queue sum up to what it is busy; each gather has an arrow to a later slice. */
TEST(trace_has_the_spans_of_the_plan)
{
    const char *path = test_path("trace.json");
    zf_graph *g = model(t, 4);
    zf_span spans[512];
    int32_t count = 512, gathers = 0, starts = 0, ends = 0, slices = 0;
    double busy[ZF_RESOURCES] = {0};
    zf_estimate e;
    zf_trace *trace;
    zf_error error = {ZF_OK, ""};
    zf_json *json;
    const zf_json *events;
    NEED(t, g, NULL);
    test_defer(t, free_graph, g);
    OK(t, zf_memory(g, NULL), zf_graph_error(g));
    OK(t, zf_graph_estimate(g, NULL, &e), zf_graph_error(g));
    OK(t, zf_graph_timeline(g, NULL, spans, &count), zf_graph_error(g));
    NEED(t, (trace = zf_trace_new(&t->allocator)), NULL);
    test_defer(t, free_trace, trace);
    OK(t, zf_trace_spans(trace, g, &(zf_trace_desc){.spans = spans, .count = count, .planned = true}),
       NULL);
    for (int step = 0; step < 2; step++) /* two steps, as if they had been measured */
        OK(t, zf_trace_spans(trace, g, &(zf_trace_desc){.spans = spans, .count = count, .last = true}),
           NULL);
    OK(t, zf_trace_save(trace, path, &error), error.text);
    NEED(t, (json = zf_json_read(path, &t->allocator, &error)), &error);
    test_defer(t, free_json, json);
    events = zf_json_member(json, "traceEvents");
    for (int64_t k = 0; k < zf_json_length(events); k++) {
        const zf_json *of = zf_json_element(events, k);
        const char *ph = text_in(of, "ph");
        starts += *ph == 's', ends += *ph == 'f';
        CHECK(t, *ph && strchr("MXsf", *ph) && number_in(of, "pid") >= 0 && *text_in(of, "name"));
        if (*ph != 'X' || number_in(of, "pid") < 1 << 21) continue;
        slices++;
        gathers += !strcmp(text_in(of, "name"), "all_gather");
        busy[(int)number_in(of, "tid")] += 1e-6 * number_in(of, "dur");
    }
    CHECK(t, slices == count && gathers > 0 && starts == 3 * gathers && ends == 3 * gathers);
    check_trace_events(t, events);
    for (int k = 0; k < ZF_RESOURCES; k++) CHECK_NEAR(t, busy[k], e.busy[k], 1e-9 * count);
    CHECK(t, zf_trace_save(trace, "/nonexistent/trace", &error) == ZF_ERR_IO);
    CHECK(t, zf_trace_spans(trace, g, NULL) == ZF_ERR_ARGUMENT);
}
