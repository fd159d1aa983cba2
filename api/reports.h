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
    int64_t step;            /* steps done when it was known, */
    int64_t samples, tokens; /* examples and tokens trained on by then */
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

/* A sink that writes an event file of TensorBoard, DIRECTORY/events.out.tfevents.SECONDS.HOST.PID.N,
 * which sorts after those that are there. Each call of zf_metrics_put appends one record by one
 * write, so that a process that is killed leaves complete records, but for the last one.
 * W&B imports these files as well (`wandb sync`). Values become f32. */
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

/* A sink that writes the line. A column without values since the last line is left out; so is a line
 * while the first column is not finite. Metrics "eval_..." do not count as steps.
 *
 *     step 30/100  loss 6.8599  MLM accuracy 13.4%  2897 tokens/s  168 MiB  ETA 1:10
 *     [#########---------------------] step 30/100  loss 6.8599  ...         on a terminal */
ZF_API zf_status zf_progress_sink(const zf_progress_desc *desc, zf_sink *sink, zf_error *error);
