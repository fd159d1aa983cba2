/* ----------------------------------------------------------------------------- METRICS, REPORTS
 *
 * Numbers of a run, and what shows them. A program puts each number into a stream once; sinks write
 * it: to TensorBoard's event files, to a terminal, or where the program likes.
 *
 *     zf_metrics metrics = {.count = 0};
 *     zf_sink sink;
 *     if (!zf_event_sink(&(zf_event_desc){.directory = "runs/a"}, &sink, &error))
 *         zf_metrics_add(&metrics, &sink, &error);
 *     ...
 *     zf_metric of[] = {{.name = "loss", .value = loss, .step = 7, .wall_time = now}};
 *     zf_metrics_put(&metrics, of, 1, &error);
 *     ...
 *     zf_metrics_close(&metrics, &error);
 */

/* A number of a run. */
typedef struct zf_metric {
    /* As in the log of Hugging Face's Trainer: "loss", "grad_norm", "learning_rate", and with
     * "eval_" what is of held-out examples. UTF-8 */
    const char *name;
    double value;
    int64_t step;            /* steps done when it was known */
    int64_t samples, tokens; /* examples and tokens of these steps */
    double wall_time;        /* seconds since 1970 */
    int32_t rank;
} zf_metric;

/* What takes the numbers of a run. A program can have its own. */
typedef struct zf_sink {
    void *self;
    /* Numbers that were known at one time, after one step; count >= 1. After an error it is called
     * for later ones, too. */
    zf_status (*put)(void *self, const zf_metric *metrics, int32_t count, zf_error *error);
    /* Frees it. An error says what is missing from what it wrote. */
    zf_status (*close)(void *self, zf_error *error);
} zf_sink;

enum { ZF_SINKS = 8 };

/* A stream of metrics. {0} has no sinks, and does nothing. It allocates nothing. */
typedef struct zf_metrics {
    zf_sink sinks[ZF_SINKS];
    int32_t count;
} zf_metrics;

/* Adds a sink, which zf_metrics_close frees. ZF_ERR_LIMIT: there are ZF_SINKS, and the sink is
 * still the caller's. error may be NULL, here and below. */
ZF_API zf_status zf_metrics_add(zf_metrics *metrics, const zf_sink *sink, zf_error *error);
/* Gives every sink the numbers, whose step, samples, tokens, wall_time and rank are the same. The
 * first error of a sink is returned after all have been called. ZF_ERR_ARGUMENT for a name that is
 * NULL or "", and then no sink is called. */
ZF_API zf_status zf_metrics_put(zf_metrics *metrics, const zf_metric *list, int32_t count,
                                zf_error *error);
/* Closes all sinks, of which then there are none. The first error is returned. */
ZF_API zf_status zf_metrics_close(zf_metrics *metrics, zf_error *error);

/* ---------------------------------------------------------------------------------- event files */

/* The names that numbers have in event files. */
typedef enum zf_metric_names {
    /* As Hugging Face's Trainer: "loss" is train/loss, "eval_loss" eval/loss; over steps */
    ZF_NAMES_HF,
    /* As DeepSpeed's monitor: "loss" is Train/Samples/train_loss, "learning_rate" Train/Samples/lr,
     * any other NAME Train/Samples/NAME; over samples */
    ZF_NAMES_DEEPSPEED
} zf_metric_names;
/* "hf", "deepspeed"; NULL after the last */
ZF_API const char *zf_metric_names_name(zf_metric_names names);

typedef struct zf_event_desc {
    const char *directory; /* is made, with the folders above it, where there is none */
    zf_metric_names names;
    /* Of a run that goes on: the steps, or with ZF_NAMES_DEEPSPEED the samples, of which it keeps
     * the numbers. TensorBoard drops later ones of earlier files. 0: a new run */
    int64_t resumed;
    zf_allocator allocator; /* {0}: the C library's */
} zf_event_desc;

/* A sink that writes an event file of TensorBoard,
 * DIRECTORY/events.out.tfevents.SECONDS.HOST.PID.N, which sorts after those that are there. Each
 * call of zf_metrics_put appends one record by one write, so that a process that is killed leaves
 * complete records, but for the last one. W&B imports these files as well (`wandb sync`). Values
 * become f32. */
ZF_API zf_status zf_event_sink(const zf_event_desc *desc, zf_sink *sink, zf_error *error);

/* --------------------------------------------------------------------------------- the terminal */

/* A number of the line that says how far a run is. */
typedef struct zf_progress_column {
    const char *metric; /* its name; NULL: there is none */
    const char *label;  /* before the number, "loss"; NULL: none */
    int32_t digits;     /* after the point */
    const char *unit;   /* after the number, " MiB" or "%"; NULL: none */
    /* What is shown of the steps since the last line: the mean, or with `latest` the last value, or
     * with `per` 100 times the sum divided by that of the metric `per` */
    bool latest;
    const char *per;
    bool hide_zero; /* where the value is 0 the column is left out */
} zf_progress_column;

enum { ZF_PROGRESS_COLUMNS = 8 };

typedef struct zf_progress_desc {
    FILE *out;     /* stays the caller's, who flushes it */
    bool terminal; /* one line, which is written over, with a bar; else lines */
    int64_t steps; /* of the run */
    int64_t first; /* steps before this part of it */
    double wall_time; /* at which this part begins, as zf_metric.wall_time */
    /* Seconds between two lines, at least; 0: 0.5 on a terminal, else 10; ZF_ZERO: none. The last
     * step always has one */
    double every;
    /* Columns before the speed in tokens/s, of those before ETA, and of those after it */
    zf_progress_column before[ZF_PROGRESS_COLUMNS], middle[ZF_PROGRESS_COLUMNS],
        after[ZF_PROGRESS_COLUMNS];
    zf_allocator allocator; /* {0}: the C library's */
} zf_progress_desc;

/* A sink that writes the line. A column without values since the last line is left out; so is a
 * line while the first column is not finite. Metrics "eval_..." do not count as steps.
 *
 *     step 30/100  loss 6.8599  MLM accuracy 13.4%  2897 tokens/s  168 MiB  ETA 1:10
 *     [#########---------------------] step 30/100  loss 6.8599  ...         on a terminal */
ZF_API zf_status zf_progress_sink(const zf_progress_desc *desc, zf_sink *sink, zf_error *error);

/* -------------------------------------------------------------------------------------- a page
 *
 * A page of HTML about a run: what ran, curves, memory, queues, operators, traffic, warnings. It is
 * one file, without scripts, that asks nothing of a network; its size does not grow with the number
 * of steps. Texts from outside are escaped. */
typedef struct zf_report zf_report;

/* NULL without memory. title NULL: "zeroflow". */
ZF_API zf_report *zf_report_new(const char *title, const zf_allocator *allocator);
ZF_API void zf_report_free(zf_report *report); /* NULL: nothing */
/* A row of "What ran": a setting, its value, and where it is from ("--lr", "default"). value and
 * origin may be NULL. Rows whose origin begins with "default" are folded. Lack of memory is an
 * error of zf_report_save. */
ZF_API void zf_report_fact(zf_report *report, const char *name, const char *value,
                           const char *origin);
/* A line under "Warnings". */
ZF_API void zf_report_warning(zf_report *report, const char *text);
/* The numbers that follow are of this run; pages have up to 16, whose curves are drawn over one
 * another. Not called: there is one run. ZF_ERR_LIMIT: there are 16. */
ZF_API zf_status zf_report_run(zf_report *report, const char *name);
/* The parts about a plan, in place of earlier ones: the graph's, after zf_memory, by the cost table
 * (NULL: the default). With the program that runs it, what it has counted and, after zf_measure,
 * measured is next to what was planned. program NULL: nothing has run. */
ZF_API zf_status zf_report_plan(zf_report *report, zf_graph *graph, const zf_cost *cost,
                                zf_program *program);
/* A sink that draws each number over steps, as its mean, least and largest value in 512 parts, and
 * "eval_NAME" in the picture of NAME. It warns where the metric "loss" jumps, and of
 * "skipped_steps". It writes the page to `path` (NULL: not) as zf_file_replace does, every so many
 * seconds of zf_metric.wall_time (0: 30; ZF_ZERO: at each step), and when it is closed. The report
 * must outlive it. */
ZF_API zf_status zf_report_sink(zf_report *report, const char *path, double every, zf_sink *sink,
                                zf_error *error);
/* The page as it is now, *bytes long (may be NULL); it lives until the next call on the report.
 * NULL without memory. */
ZF_API const char *zf_report_text(zf_report *report, size_t *bytes);
ZF_API zf_status zf_report_save(zf_report *report, const char *path, zf_error *error);

/* ------------------------------------------------------------------------------------- a trace
 *
 * Slices over time in Chrome's trace format, for ui.perfetto.dev and chrome://tracing: a process
 * for each rank, once as planned and once as measured; a thread for each queue; a slice for each
 * node that takes time, with its operator, scope, bytes of the result and FLOP/s; an arrow from a
 * gather to the first slice that reads it. */
typedef struct zf_trace zf_trace;

typedef struct zf_trace_desc {
    const zf_span *spans; /* of zf_graph_timeline or zf_measured */
    int32_t count;
    int32_t rank;
    bool planned;
    bool last; /* what is added afterwards is of a later step: it begins where these spans end */
} zf_trace_desc;

/* NULL without memory. */
ZF_API zf_trace *zf_trace_new(const zf_allocator *allocator);
ZF_API void zf_trace_free(zf_trace *trace); /* NULL: nothing */
/* Adds the spans of a step of the graph. */
ZF_API zf_status zf_trace_spans(zf_trace *trace, zf_graph *graph, const zf_trace_desc *desc);
/* Writes what was added so far, as zf_file_replace. */
ZF_API zf_status zf_trace_save(zf_trace *trace, const char *path, zf_error *error);
