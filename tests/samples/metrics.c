/* The stream of metrics, event files and the line of progress. Event files are read back by a reader
 * of its own: its checksum is computed bit by bit, its protobuf field by field. */
#if defined(__linux__)
#define _GNU_SOURCE
#else
#define _DARWIN_C_SOURCE
#endif
#include "../support/disk.h"
#include "../support/kill.h"
#include "../support/test.h"

#include "../../examples/frame/output/csv.h"

#include <dirent.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* ------------------------------------------------------------------- a reader of event files */

typedef struct scalar {
    double wall_time;
    int64_t step;
    char tag[80];
    float value;
} scalar;

typedef struct events {
    scalar scalars[64];
    int count, records, restarts;
    int64_t restart_step;
    bool damaged; /* the file ends in the middle of a record, or a checksum is wrong */
    bool versioned;
} events;

static uint32_t checksum_of(const unsigned char *data, size_t bytes)
{
    uint32_t crc = ~0u;
    for (size_t k = 0; k < bytes; k++) {
        crc ^= data[k];
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
    }
    crc = ~crc;
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

static uint64_t little(const unsigned char *at, int bytes)
{
    uint64_t x = 0;
    for (int k = 0; k < bytes; k++) x |= (uint64_t)at[k] << 8 * k;
    return x;
}

/* A field of a message: its number, and its bytes or its number. */
typedef struct field {
    int number;
    uint64_t value;
    const unsigned char *bytes;
    size_t length;
} field;

static uint64_t varint(const unsigned char **at)
{
    uint64_t x = 0;
    for (int shift = 0;; shift += 7) {
        const unsigned char byte = *(*at)++;
        x |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) return x;
    }
}

static bool next_field(const unsigned char **at, const unsigned char *end, field *f)
{
    uint64_t key;
    if (*at >= end) return false;
    key = varint(at);
    *f = (field){.number = (int)(key >> 3)};
    switch (key & 7) {
    case 0: f->value = varint(at); break;
    case 1: f->value = little(*at, 8), *at += 8; break;
    case 2: f->length = varint(at), f->bytes = *at, *at += f->length; break;
    case 5: f->value = little(*at, 4), *at += 4; break;
    default: return false;
    }
    return *at <= end;
}

static void read_value(events *e, const scalar *of, const unsigned char *at, const unsigned char *end)
{
    scalar *s = &e->scalars[e->count];
    uint32_t bits = 0;
    field f;
    *s = *of;
    while (next_field(&at, end, &f)) {
        if (f.number == 1) snprintf(s->tag, sizeof s->tag, "%.*s", (int)f.length, (const char *)f.bytes);
        if (f.number == 2) bits = (uint32_t)f.value;
    }
    memcpy(&s->value, &bits, sizeof bits);
    if (e->count < 63) e->count++;
}

static void read_event(events *e, const unsigned char *at, const unsigned char *end)
{
    scalar of = {.step = 0};
    field f, inner;
    while (next_field(&at, end, &f)) {
        const unsigned char *in = f.bytes;
        if (f.number == 1) memcpy(&of.wall_time, &f.value, 8);
        if (f.number == 2) of.step = (int64_t)f.value;
        if (f.number == 3) e->versioned = f.length == 13 && !memcmp(f.bytes, "brain.Event:2", 13);
        if (f.number == 5)
            while (next_field(&in, f.bytes + f.length, &inner))
                if (inner.number == 1) read_value(e, &of, inner.bytes, inner.bytes + inner.length);
        if (f.number == 7) e->restarts++, e->restart_step = of.step;
    }
    e->records++;
}

static events *read_events(const char *path)
{
    static unsigned char data[1 << 16];
    static events e;
    FILE *file = fopen(path, "rb");
    size_t bytes = file ? fread(data, 1, sizeof data, file) : 0, at = 0;
    if (file) fclose(file);
    e = (events){.count = 0};
    while (at < bytes && !e.damaged) {
        const size_t length = bytes - at < 12 ? SIZE_MAX / 2 : (size_t)little(data + at, 8);
        e.damaged = length > bytes - at || length + 16 > bytes - at ||
                    little(data + at + 8, 4) != checksum_of(data + at, 8) ||
                    little(data + at + 12 + length, 4) != checksum_of(data + at + 12, length);
        if (!e.damaged) read_event(&e, data + at + 12, data + at + 12 + length);
        at += length + 16;
    }
    return &e;
}

/* The event file that is number `number` by name. */
static const char *event_file(const char *folder, int number)
{
    static char path[2048];
    struct dirent **list;
    const int count = scandir(folder, &list, NULL, alphasort);
    *path = 0;
    for (int k = 0; k < count; k++) {
        if (list[k]->d_name[0] != '.' && number-- == 0)
            snprintf(path, sizeof path, "%s/%s", folder, list[k]->d_name);
        free(list[k]);
    }
    if (count >= 0) free(list);
    return path;
}

/* ------------------------------------------------------------------------------------- helpers */

static void close_metrics(void *metrics) { zf_metrics_close(metrics, NULL); }

static zf_metric metric(int64_t step, const char *name, double value)
{
    return (zf_metric){.name = name,
                       .value = value,
                       .step = step,
                       .samples = 32 * step,
                       .tokens = 1024 * step,
                       .wall_time = 1000 + 0.25 * (double)step};
}

#define FOLDER_OF(t, name) folder_of(test_path(name))
static const char *folder_of(const char *path)
{
    static char kept[1024];
    char file[2048];
    snprintf(kept, sizeof kept, "%s", path);
    while (snprintf(file, sizeof file, "%s", event_file(kept, 0)), *file) unlink(file);
    rmdir(kept);
    return kept;
}

static zf_status open_events(test *t, zf_metrics *m, const zf_event_desc *desc, zf_error *error)
{
    zf_event_desc d = *desc;
    zf_sink sink;
    zf_status status;
    d.allocator = t->allocator;
    status = zf_event_sink(&d, &sink, error);
    return status ? status : zf_metrics_add(m, &sink, error);
}

/* -------------------------------------------------------------------------------------- stream */

typedef struct counts {
    int puts, numbers, closed;
    zf_status gives;
} counts;

static zf_status count_put(void *self, const zf_metric *list, int32_t count, zf_error *error)
{
    counts *c = self;
    c->puts++, c->numbers += count;
    if (c->gives) {
        error->status = c->gives;
        snprintf(error->text, sizeof error->text, "no room for %s", list->name);
    }
    return c->gives;
}

static zf_status count_close(void *self, zf_error *error)
{
    (void)error;
    ((counts *)self)->closed++;
    return ZF_OK;
}

TEST(metrics_reach_every_sink)
{
    zf_metrics m = {.count = 0};
    counts of[2] = {{.gives = ZF_ERR_IO}, {.gives = ZF_OK}};
    zf_metric list[] = {metric(1, "loss", 2), metric(1, "grad_norm", 1)};
    zf_error error = {ZF_OK, ""};
    for (int k = 0; k < 2; k++) {
        const zf_sink sink = {.self = &of[k], .put = count_put, .close = count_close};
        OK(t, zf_metrics_add(&m, &sink, &error), error.text);
    }
    CHECK(t, zf_metrics_put(&m, list, 2, &error) == ZF_ERR_IO);
    CHECK_TEXT(t, error.text, "no room for loss");
    CHECK(t, of[0].numbers == 2 && of[1].numbers == 2);
    list[1].name = "";
    CHECK(t, zf_metrics_put(&m, list, 2, &error) == ZF_ERR_ARGUMENT && of[1].puts == 1);
    CHECK_TEXT(t, error.text, "zf_metrics_put: a metric must have a name");
    for (int k = 0; k < ZF_SINKS - 2; k++)
        OK(t, zf_metrics_add(&m, &(zf_sink){.self = &of[1], .put = count_put}, NULL), NULL);
    CHECK(t, zf_metrics_add(&m, &m.sinks[0], &error) == ZF_ERR_LIMIT);
    CHECK(t, !zf_metrics_close(&m, NULL) && of[0].closed == 1 && of[1].closed == 1 && !m.count);
}

/* A stream without sinks does nothing. */
TEST(metrics_without_sinks_allocate_nothing)
{
    zf_metrics m = {.count = 0};
    const zf_metric of = metric(1, "loss", 2);
    const long before = t->allocations;
    CHECK(t, !zf_metrics_put(&m, &of, 1, NULL) && !zf_metrics_close(&m, NULL));
    CHECK(t, t->allocations == before);
}

/* ----------------------------------------------------------------------------------- event files */

TEST(events_are_read_back)
{
    static zf_metrics m;
    const char *folder = FOLDER_OF(t, "events");
    zf_error error = {ZF_OK, ""};
    const events *e;
    m = (zf_metrics){.count = 0};
    OK(t, open_events(t, &m, &(zf_event_desc){.directory = folder}, &error), error.text);
    test_defer(t, close_metrics, &m);
    for (int64_t step = 1; step <= 300; step += 299) {
        const zf_metric list[] = {metric(step, "loss", 1.0 / 3), metric(step, "learning_rate", NAN)};
        const zf_metric held_out = metric(step, "eval_mlm_loss", -INFINITY);
        OK(t, zf_metrics_put(&m, list, 2, &error), error.text);
        OK(t, zf_metrics_put(&m, &held_out, 1, &error), error.text);
    }
    e = read_events(event_file(folder, 0)); /* before it is closed: each record is in the file */
    CHECK(t, !e->damaged && e->versioned && e->records == 5 && e->count == 6 && !e->restarts);
    CHECK_TEXT(t, e->scalars[0].tag, "train/loss");
    CHECK_TEXT(t, e->scalars[1].tag, "train/learning_rate");
    CHECK_TEXT(t, e->scalars[2].tag, "eval/mlm_loss");
    CHECK(t, e->scalars[0].step == 1 && e->scalars[3].step == 300);
    CHECK(t, e->scalars[3].wall_time == 1075 && e->scalars[3].value == (float)(1.0 / 3));
    CHECK(t, isnan(e->scalars[1].value) && isinf(e->scalars[2].value));
}

TEST(events_have_the_names_of_deepspeed)
{
    static zf_metrics m;
    const char *folder = FOLDER_OF(t, "events");
    const zf_metric list[] = {metric(3, "loss", 1), metric(3, "learning_rate", 2),
                              metric(3, "eval_loss", 3)};
    zf_error error = {ZF_OK, ""};
    const events *e;
    m = (zf_metrics){.count = 0};
    OK(t,
       open_events(t, &m, &(zf_event_desc){.directory = folder, .names = ZF_NAMES_DEEPSPEED}, &error),
       error.text);
    test_defer(t, close_metrics, &m);
    OK(t, zf_metrics_put(&m, list, 3, &error), error.text);
    e = read_events(event_file(folder, 0));
    CHECK(t, e->count == 3 && e->scalars[0].step == 96);
    CHECK_TEXT(t, e->scalars[0].tag, "Train/Samples/train_loss");
    CHECK_TEXT(t, e->scalars[1].tag, "Train/Samples/lr");
    CHECK_TEXT(t, e->scalars[2].tag, "Train/Samples/eval_loss");
}

/* A run that goes on has a file of its own, which sorts after those of the same second, and says from
 * where on earlier ones do not count. An incomplete record costs nothing but itself. */
TEST(events_of_a_run_that_goes_on)
{
    const char *folder = FOLDER_OF(t, "events");
    zf_error error = {ZF_OK, ""};
    char path[2][2048];
    struct stat about;
    for (int part = 0; part < 2; part++) {
        zf_metrics m = {.count = 0};
        zf_status status =
            open_events(t, &m, &(zf_event_desc){.directory = folder, .resumed = 2 * part}, &error);
        for (int64_t step = 1 + 2 * part; step <= 4 && !status; step++) {
            const zf_metric of = metric(step, "loss", (double)step);
            status = zf_metrics_put(&m, &of, 1, &error);
        }
        zf_metrics_close(&m, NULL);
        OK(t, status, error.text);
    }
    for (int part = 0; part < 2; part++)
        snprintf(path[part], sizeof path[part], "%s", event_file(folder, part));
    CHECK(t, *path[1] && strcmp(path[0], path[1]) < 0);
    CHECK(t, read_events(path[0])->count == 4 && read_events(path[0])->restarts == 0);
    CHECK(t, read_events(path[1])->count == 2 && read_events(path[1])->restart_step == 3);
    CHECK(t, !stat(path[0], &about) && !truncate(path[0], about.st_size - 7));
    CHECK(t, read_events(path[0])->damaged && read_events(path[0])->count == 3);
}

/* A file that may not grow loses numbers, and says how many. */
TEST(events_of_a_full_disk)
{
    const char *folder = FOLDER_OF(t, "full");
    zf_error error = {ZF_OK, ""};
    zf_metrics m = {.count = 0};
    const zf_metric of = metric(1, "loss", 1);
    struct rlimit usual, small;
    zf_status status;
    CHECK(t, !getrlimit(RLIMIT_FSIZE, &usual));
    OK(t, open_events(t, &m, &(zf_event_desc){.directory = folder}, &error), error.text);
    small = usual, small.rlim_cur = 16;
    CHECK(t, !setrlimit(RLIMIT_FSIZE, &small));
    (void)zf_metrics_put(&m, &of, 1, &error);
    (void)zf_metrics_put(&m, &of, 1, &error);
    CHECK(t, !setrlimit(RLIMIT_FSIZE, &usual));
    error = (zf_error){ZF_OK, ""};
    status = zf_metrics_close(&m, &error);
    CHECK(t, status || t->refused);
    if (error.status == ZF_ERR_NOMEM) OK(t, error.status, error.text);
    CHECK(t, strstr(error.text, "; 2 numbers are not in the event file"));
}

TEST(events_refuse)
{
    zf_sink sink;
    zf_error error = {ZF_OK, ""};
    CHECK(t, zf_event_sink(&(zf_event_desc){.directory = "/dev/null/runs"}, &sink, &error) == ZF_ERR_IO);
    CHECK_TEXT(t, error.text, "cannot create /dev/null/runs: Not a directory");
    error.status = ZF_OK;
    CHECK(t, zf_event_sink(&(zf_event_desc){.directory = ""}, &sink, &error) == ZF_ERR_ARGUMENT);
    CHECK_TEXT(t, error.text, "the path of an event file's folder is empty or too long");
    error.status = ZF_OK;
    CHECK(t, zf_event_sink(NULL, &sink, &error) == ZF_ERR_ARGUMENT);
    CHECK_TEXT(t, error.text,
               "zf_event_sink: a desc with a directory, and a place for the sink, are needed");
    error.status = ZF_OK;
    CHECK(t, zf_event_sink(&(zf_event_desc){.directory = "x", .resumed = -1}, &sink, &error) ==
                 ZF_ERR_ARGUMENT);
    CHECK_TEXT(t, error.text,
               "zf_event_sink: names is 0 and resumed -1; names must be ZF_NAMES_HF or "
               "ZF_NAMES_DEEPSPEED, and resumed at least 0");
}

/* ---------------------------------------------------------------------------------------- kill */

typedef struct watched {
    char folder[300], log[320], events[320], page[320], trace[320];
} watched;

static const char watched_header[] = "step,loss\n";

/* A graph of one node, for the trace. */
static bool trace_step(zf_trace *trace, zf_graph *g)
{
    const zf_span span = {.node = 0, .resource = ZF_RESOURCE_COMPUTE, .from = 0, .to = 1e-3};
    return !zf_trace_spans(trace, g, &(zf_trace_desc){.spans = &span, .count = 1, .last = true});
}

/* Three steps, which all that writes files takes. */
static bool watch_run(void *user)
{
    const watched *w = user;
    zf_metrics m = {.count = 0};
    zf_sink sink;
    csv_file log;
    zf_error error = {ZF_OK, ""};
    zf_graph *g = zf_graph_new(NULL);
    zf_report *page = zf_report_new("kill", NULL);
    zf_trace *trace = zf_trace_new(NULL);
    bool good = g && page && trace && zf_valid(zf_input(g, "x", ZF_F32, ZF_SCALAR)) &&
                csv_open(&log, w->log, watched_header, 0, NULL, NULL, &error) &&
                !zf_event_sink(&(zf_event_desc){.directory = w->events}, &sink, &error) &&
                !zf_metrics_add(&m, &sink, &error) &&
                !zf_report_sink(page, w->page, ZF_ZERO, &sink, &error) &&
                !zf_metrics_add(&m, &sink, &error);
    for (int64_t step = 1; step <= 3 && good; step++) {
        const zf_metric of = metric(step, "loss", (double)step);
        good = csv_add(&log, step == 1 ? "1,1\n" : step == 2 ? "2,2\n" : "3,3\n") &&
               !zf_metrics_put(&m, &of, 1, &error) && trace_step(trace, g) &&
               !zf_trace_save(trace, w->trace, &error);
    }
    if (!good) fprintf(stderr, "%s\n", error.text);
    good = !zf_metrics_close(&m, NULL) && good && csv_close(&log, &error);
    zf_trace_free(trace), zf_report_free(page), zf_graph_free(g);
    return good;
}

/* The text of a small file; NULL: there is none. */
static const char *small_file(const char *path)
{
    static char text[1 << 16];
    FILE *file = fopen(path, "rb");
    if (!file) return NULL;
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    return text;
}

/* Whether each file that is there is a whole one, and the log and the event file complete rows. */
static bool watched_is_valid(const watched *w, const char **what)
{
    const char *text = small_file(*what = w->log), *rows = "step,loss\n1,1\n2,2\n3,3\n";
    size_t length = text ? strlen(text) : 0;
    zf_json *json = NULL;
    if (length && (strncmp(rows, text, length) || text[length - 1] != '\n')) return false;
    *what = event_file(w->events, 0);
    if (**what && read_events(*what)->damaged) return false;
    text = small_file(*what = w->page), length = text ? strlen(text) : 0;
    if (text && (length < 8 || strcmp(text + length - 8, "</html>\n"))) return false;
    if (!(text = small_file(*what = w->trace))) return true;
    json = zf_json_parse(text, strlen(text), NULL, NULL);
    zf_json_free(json);
    return json != NULL;
}

/* kill -9 at every system call of a run that is watched in every way. */
TEST_ONCE(reports_survive_kill)
{
    static watched w;
    const char *what = "";
    int killed = 1, rounds = 0;
    if (!access("/dev/shm", W_OK))
        snprintf(w.folder, sizeof w.folder, "/dev/shm/zeroflow-watched-%ld", (long)getpid());
    else snprintf(w.folder, sizeof w.folder, "%s", test_path("watched"));
    snprintf(w.log, sizeof w.log, "%s/log.csv", w.folder);
    snprintf(w.events, sizeof w.events, "%s/events", w.folder);
    snprintf(w.page, sizeof w.page, "%s/page.html", w.folder);
    snprintf(w.trace, sizeof w.trace, "%s/trace.json", w.folder);
    for (long stop = 1 + 2 * TEST_TURN; killed && stop < 2000; stop += 2 * TEST_ONE_IN, rounds++) {
        disk_remove(w.folder);
        CHECK(t, !mkdir(w.folder, 0700));
        killed = kill_at(stop, watch_run, &w);
        if (killed >= 0 && watched_is_valid(&w, &what)) continue;
        printf("    killed at stop %ld\n", stop);
        test_fail(t, __FILE__, __LINE__, what, "is damaged");
        break;
    }
    CHECK(t, rounds > 60 / TEST_ONE_IN);
    CHECK(t, t->failed || (small_file(w.log) && strlen(small_file(w.log)) == 22));
    disk_remove(w.folder);
}

/* ------------------------------------------------------------------------------------- progress */

static const char *progress_of(test *t, bool terminal, double every)
{
    static char text[2048];
    FILE *out = tmpfile();
    zf_metrics m = {.count = 0};
    zf_sink sink;
    zf_error error = {ZF_OK, ""};
    const zf_progress_desc d = {
        .out = out,
        .terminal = terminal,
        .steps = 4,
        .wall_time = 1000,
        .every = every,
        .before = {{.metric = "loss", .label = "loss", .digits = 2},
                   {.metric = "hits", .label = "accuracy", .digits = 1, .unit = "%", .per = "labels"}},
        .middle = {{.metric = "memory", .unit = " MiB", .latest = true}},
        .after = {{.metric = "skipped", .unit = " skipped", .latest = true, .hide_zero = true}},
        .allocator = t->allocator};
    *text = 0;
    if (!out) return "no file";
    if (!zf_progress_sink(&d, &sink, &error)) zf_metrics_add(&m, &sink, &error);
    for (int64_t step = 1; step <= 4 && m.count; step++) {
        const zf_metric list[] = {metric(step, "loss", (double)step), metric(step, "hits", 1),
                                  metric(step, "labels", (double)step),
                                  metric(step, "memory", (double)(100 * step)),
                                  metric(step, "skipped", (double)(step > 3))};
        zf_metrics_put(&m, list, 5, NULL);
    }
    zf_metrics_close(&m, NULL);
    rewind(out);
    text[fread(text, 1, sizeof text - 1, out)] = 0;
    fclose(out);
    return error.status ? strcpy(text, error.text) : text;
}

/* A step takes 0.25 s and has 1024 tokens; the mean is that of the steps since the last line. */
TEST(progress_in_lines)
{
    CHECK_TEXT(t, progress_of(t, false, 0),
               "step 4/4  loss 2.50  accuracy 40.0%  4096 tokens/s  400 MiB  ETA 0:00  1 skipped\n");
    CHECK_TEXT(t, progress_of(t, false, 0.4),
               "step 2/4  loss 1.50  accuracy 66.7%  4096 tokens/s  200 MiB  ETA 0:01\n"
               "step 4/4  loss 3.50  accuracy 28.6%  4096 tokens/s  400 MiB  ETA 0:00  1 skipped\n");
}

TEST(progress_on_a_terminal)
{
    CHECK_TEXT(t, progress_of(t, true, 0),
               "\r\033[K[######################--------] step 3/4  loss 2.00  accuracy 50.0%  4096 "
               "tokens/s  300 MiB  ETA 0:00"
               "\r\033[K[##############################] step 4/4  loss 4.00  accuracy 25.0%  4096 "
               "tokens/s  400 MiB  ETA 0:00  1 skipped\n");
}
