/* What a fit watches: means over examples, the best epoch, a line of text (nn/fit.c). */

/* A mean over the examples, or labelled rows, of several batches. */
typedef struct zfi_fit_mean {
    double sum, rows;
} zfi_fit_mean;

/* Those of the loss and of the metrics. */
typedef struct zfi_fit_means {
    zfi_fit_mean loss, metrics[ZF_NN_METRICS];
} zfi_fit_means;

/* The best epoch so far. */
typedef struct zfi_fit_best {
    double value;
    int64_t epoch; /* 0: none yet */
} zfi_fit_best;

static double zfi_fit_mean_of(const zfi_fit_mean *mean)
{
    return mean->rows > 0 ? mean->sum / mean->rows : 0; /* 0 of no rows, as zf_cross_entropy */
}

static void zfi_fit_metrics_of(const zf_nn_fit_desc *d, const zfi_fit_means *means, double *metrics)
{
    for (int k = 0; k < ZF_NN_METRICS; k++) {
        const double mean = zfi_fit_mean_of(&means->metrics[k]);
        metrics[k] = d->metrics[k].kind == ZF_NN_EXP ? exp(mean) : mean;
    }
}

static const char *zfi_fit_output(const zf_nn_metric *metric)
{
    return metric->output ? metric->output : metric->name;
}

/* The number of the metric of that name; -1: there is none. */
static int zfi_fit_metric(const zf_nn_fit_desc *d, const char *name)
{
    for (int k = 0; k < ZF_NN_METRICS && d->metrics[k].name; k++)
        if (!strcmp(d->metrics[k].name, name)) return k;
    return -1;
}

/* The value by which epochs are compared. */
static double zfi_fit_watched(const zf_nn_fit_desc *d, const zf_nn_progress *at)
{
    const int k = d->watch ? zfi_fit_metric(d, d->watch) : -1;
    if (k < 0) return d->held_out ? at->held_out : at->epoch_loss;
    return d->held_out ? at->held_out_metrics[k] : at->metrics[k];
}

/* Compares an epoch with the best one, whose place it takes if it is better. */
static bool zfi_fit_improves(const zf_nn_fit_desc *d, zfi_fit_best *best, const zf_nn_progress *at)
{
    const double value = zfi_fit_watched(d, at),
                 gain = d->larger ? value - best->value : best->value - value;
    if (isnan(value) || (best->epoch && !(gain > d->least))) return false;
    *best = (zfi_fit_best){value, at->epoch};
    return true;
}

/* ------------------------------------------------------------------------ the best checkpoint */

/* The best epoch, of which an earlier call has left a checkpoint. */
static void zfi_fit_remember(const zf_nn_fit_desc *d, zfi_fit_best *best)
{
    char value[64], epoch[64];
    zf_error error;
    if (!d->best || zf_checkpoint_note(d->best, "zf_nn_fit.value", value, sizeof value, &error) ||
        zf_checkpoint_note(d->best, "zf_nn_fit.epoch", epoch, sizeof epoch, &error))
        return;
    *best = (zfi_fit_best){strtod(value, NULL), strtoll(epoch, NULL, 10)};
}

static zf_status zfi_fit_save(const zf_nn_fit_desc *d, zf_store *store, const zfi_fit_best *best)
{
    char value[64], epoch[64];
    const zf_note notes[] = {{"zf_nn_fit.value", value}, {"zf_nn_fit.epoch", epoch}};
    snprintf(value, sizeof value, "%.17g", best->value);
    snprintf(epoch, sizeof epoch, "%lld", (long long)best->epoch);
    return zf_save(store, d->best, &(zf_save_desc){.notes = notes, .note_count = 2});
}

/* --------------------------------------------------------------------------------- the line */

ZFI_FAILS(3, 4)
static void zfi_fit_add(char *text, size_t size, const char *format, ...)
{
    const size_t at = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + at, size - at, format, args);
    va_end(args);
}

static void zfi_fit_add_numbers(const zf_nn_fit_desc *d, double loss, const double *metrics,
                                char *text, size_t size)
{
    zfi_fit_add(text, size, "  loss %.4f", loss);
    for (int k = 0; k < ZF_NN_METRICS && d->metrics[k].name; k++)
        zfi_fit_add(text, size, "  %.40s %.4f", d->metrics[k].name, metrics[k]);
}

ZF_API const char *zf_nn_progress_line(const zf_nn_fit_desc *d, const zf_nn_progress *at,
                                       char *text, size_t size)
{
    if (!d || !at || !text || !size) return "";
    *text = '\0';
    zfi_fit_add(text, size, "epoch %lld  step %lld  rate %.3g", (long long)at->epoch,
                (long long)at->step, at->lr);
    zfi_fit_add_numbers(d, at->epoch_loss, at->metrics, text, size);
    if (at->epoch_done && d->held_out) {
        zfi_fit_add(text, size, "  held out:");
        zfi_fit_add_numbers(d, at->held_out, at->held_out_metrics, text, size);
    }
    if (at->improved) zfi_fit_add(text, size, "  the best");
    return text;
}
