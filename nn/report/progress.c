/* The line that says how far a run is: numbers of the steps since the last line, speed, and the
 * time that is left. */

enum { ZFI_PROGRESS_LISTS = 3, ZFI_PROGRESS_BAR = 30 };

/* Sums since the last line. */
typedef struct zfi_progress_sum {
    double sum, per, latest;
    int64_t count;
} zfi_progress_sum;

typedef struct zfi_progress {
    zf_progress_desc d;
    zfi_progress_sum sums[ZFI_PROGRESS_LISTS][ZF_PROGRESS_COLUMNS];
    double last_line;
    int64_t tokens, last_tokens; /* of all steps, and when the last line was written */
    bool open;                   /* a line on a terminal has no end yet */
} zfi_progress;

static const zf_progress_column *zfi_progress_list(const zfi_progress *p, int list)
{
    return list == 0 ? p->d.before : list == 1 ? p->d.middle : p->d.after;
}

static void zfi_progress_take(zfi_progress *p, const zf_metric *m)
{
    for (int list = 0; list < ZFI_PROGRESS_LISTS; list++)
        for (int k = 0; k < ZF_PROGRESS_COLUMNS; k++) {
            const zf_progress_column *c = &zfi_progress_list(p, list)[k];
            zfi_progress_sum *s = &p->sums[list][k];
            if (!c->metric) break;
            if (c->per && !strcmp(c->per, m->name)) s->per += m->value;
            if (strcmp(c->metric, m->name)) continue;
            s->sum += m->value, s->latest = m->value, s->count++;
        }
}

static double zfi_progress_value(const zf_progress_column *c, const zfi_progress_sum *s)
{
    if (c->latest) return s->latest;
    if (c->per) return 100 * s->sum / (s->per > 0 ? s->per : 1);
    return s->count ? s->sum / (double)s->count : 0;
}

static void zfi_progress_columns(zfi_progress *p, int list)
{
    for (int k = 0; k < ZF_PROGRESS_COLUMNS; k++) {
        const zf_progress_column *c = &zfi_progress_list(p, list)[k];
        const zfi_progress_sum *s = &p->sums[list][k];
        const double value = c->metric ? zfi_progress_value(c, s) : 0;
        if (!c->metric) break;
        if (!s->count || (c->hide_zero && value == 0)) continue;
        fprintf(p->d.out, "  %s%s%.*f%s", c->label ? c->label : "", c->label ? " " : "",
                c->digits > 0 ? (int)c->digits : 0, value, c->unit ? c->unit : "");
    }
}

static void zfi_progress_bar(FILE *out, double share)
{
    const int full = (int)(ZFI_PROGRESS_BAR * (share > 0 ? share < 1 ? share : 1 : 0));
    fputs("\r\033[K[", out);
    for (int k = 0; k < ZFI_PROGRESS_BAR; k++) fputc(k < full ? '#' : '-', out);
    fputs("] ", out);
}

/* "1:02:03" */
static void zfi_progress_clock(char text[32], double seconds)
{
    const long s = seconds > 0 && seconds < 1e8 ? (long)(seconds + 0.5) : 0;
    if (s >= 3600) snprintf(text, 32, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
    else snprintf(text, 32, "%ld:%02ld", s / 60, s % 60);
}

static void zfi_progress_line(zfi_progress *p, int64_t step, double now)
{
    const zf_progress_desc *d = &p->d;
    const int64_t here = step - d->first;
    const double spent = now - d->wall_time, since = now - p->last_line;
    char eta[32];
    zfi_progress_clock(eta, here > 0 ? spent / (double)here * (double)(d->steps - step) : 0);
    if (d->terminal) zfi_progress_bar(d->out, d->steps ? (double)step / (double)d->steps : 1);
    fprintf(d->out, "step %lld/%lld", (long long)step, (long long)d->steps);
    zfi_progress_columns(p, 0);
    fprintf(d->out, "  %.0f tokens/s",
            since > 0 ? (double)(p->tokens - p->last_tokens) / since : 0.0);
    zfi_progress_columns(p, 1);
    fprintf(d->out, "  ETA %s", eta);
    zfi_progress_columns(p, 2);
    if (!d->terminal) fputc('\n', d->out);
    p->open = d->terminal;
    memset(p->sums, 0, sizeof p->sums);
    p->last_line = now, p->last_tokens = p->tokens;
}

static zf_status zfi_progress_put(void *self, const zf_metric *list, int32_t count, zf_error *error)
{
    zfi_progress *p = self;
    const double now = list->wall_time, every = p->d.every;
    const zfi_progress_sum *first = &p->sums[0][0];
    (void)error;
    if (!strncmp(list->name, "eval_", 5)) return ZF_OK;
    for (int32_t k = 0; k < count; k++) zfi_progress_take(p, &list[k]);
    p->tokens = list->tokens;
    if (p->d.before[0].metric && !isfinite(zfi_progress_value(&p->d.before[0], first)))
        return ZF_OK;
    if (now - p->last_line > every || list->step == p->d.steps)
        zfi_progress_line(p, list->step, now);
    return ZF_OK;
}

static zf_status zfi_progress_close(void *self, zf_error *error)
{
    zfi_progress *p = self;
    const zf_allocator a = p->d.allocator;
    (void)error;
    if (p->open) fputc('\n', p->d.out);
    a.fn(a.user, p, sizeof *p, 0);
    return ZF_OK;
}

ZF_API zf_status zf_progress_sink(const zf_progress_desc *desc, zf_sink *sink, zf_error *error)
{
    zf_progress_desc d;
    zfi_progress *p;
    if (!desc || !desc->out || !sink)
        return zfi_metrics_fail(
            error, ZF_ERR_ARGUMENT,
            "zf_progress_sink: a desc with `out`, and a place for the sink, are "
            "needed");
    if (!isfinite(desc->wall_time) || desc->steps < 0 || desc->first < 0)
        return zfi_metrics_fail(error, ZF_ERR_ARGUMENT,
                                "zf_progress_sink: wall_time must be finite, steps and first at "
                                "least 0");
    d = *desc;
    if (!d.allocator.fn) d.allocator.fn = zfi_fit_allocate;
    d.every = zfi_or(d.every, d.terminal ? 0.5 : 10);
    p = d.allocator.fn(d.allocator.user, NULL, 0, sizeof *p);
    if (!p) return zfi_metrics_fail(error, ZF_ERR_NOMEM, "out of memory");
    *p = (zfi_progress){.d = d, .last_line = d.wall_time};
    *sink = (zf_sink){.self = p, .put = zfi_progress_put, .close = zfi_progress_close};
    return ZF_OK;
}
