/* The stream of metrics: every sink gets every number. */

static zf_status zfi_metrics_fail(zf_error *error, zf_status status, const char *text)
{
    if (error) {
        error->status = status;
        snprintf(error->text, sizeof error->text, "%s", text);
    }
    return status;
}

/* Keeps the first of several errors. */
static void zfi_metrics_keep(zf_status *first, zf_error *error, zf_status status,
                             const zf_error *of)
{
    if (!status || *first) return;
    *first = status;
    if (error) *error = *of;
}

ZF_API zf_status zf_metrics_add(zf_metrics *metrics, const zf_sink *sink, zf_error *error)
{
    if (!metrics || !sink || !sink->put)
        return zfi_metrics_fail(error, ZF_ERR_ARGUMENT,
                                "zf_metrics_add: a stream and a sink with `put` are needed");
    if (metrics->count < 0 || metrics->count >= ZF_SINKS)
        return zfi_metrics_fail(error, ZF_ERR_LIMIT,
                                "zf_metrics_add: the stream has 8 sinks, which is the most");
    metrics->sinks[metrics->count++] = *sink;
    return ZF_OK;
}

ZF_API zf_status zf_metrics_put(zf_metrics *metrics, const zf_metric *list, int32_t count,
                                zf_error *error)
{
    zf_status first = ZF_OK;
    if (!metrics || (count && !list) || count < 0)
        return zfi_metrics_fail(error, ZF_ERR_ARGUMENT,
                                "zf_metrics_put: a stream and a list of metrics are needed");
    for (int32_t k = 0; k < count; k++)
        if (!list[k].name || !*list[k].name)
            return zfi_metrics_fail(error, ZF_ERR_ARGUMENT,
                                    "zf_metrics_put: a metric must have a name");
    for (int32_t k = 0; count && k < metrics->count && k < ZF_SINKS; k++) {
        const zf_sink *sink = &metrics->sinks[k];
        zf_error of = {ZF_OK, ""};
        zf_status status = sink->put ? sink->put(sink->self, list, count, &of) : ZF_OK;
        zfi_metrics_keep(&first, error, status, &of);
    }
    return first;
}

ZF_API zf_status zf_metrics_close(zf_metrics *metrics, zf_error *error)
{
    zf_status first = ZF_OK;
    for (int32_t k = 0; metrics && k < metrics->count && k < ZF_SINKS; k++) {
        const zf_sink *sink = &metrics->sinks[k];
        zf_error of = {ZF_OK, ""};
        zf_status status = sink->close ? sink->close(sink->self, &of) : ZF_OK;
        zfi_metrics_keep(&first, error, status, &of);
    }
    if (metrics) *metrics = (zf_metrics){.count = 0};
    return first;
}
