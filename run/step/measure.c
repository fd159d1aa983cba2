/* When the launches of a step run, noted by the backend. */

ZF_API zf_status zf_measure(zf_program *p, bool on)
{
    int64_t room;
    if (!p) return ZF_ERR_ARGUMENT;
    zfi_clear_error(p);
    for (int32_t n = 0; n < p->launch_count; n++) p->launches[n].span = NULL;
    zfi_free(&p->memory, p->spans, (size_t)p->span_room * sizeof *p->spans);
    p->spans = NULL, p->span_count = p->span_room = 0;
    if (!on) return ZF_OK;
    if (!p->backend->measures)
        return zfi_fail(&p->error, ZF_ERR_BACKEND,
                        "zf_measure: the backend \"%.40s\" notes no times",
                        p->backend->name ? p->backend->name : "?");
    room = p->launch_count + (p->graph->micro_batches - 1) * p->micro_end;
    if (p->tasks) room += p->tasks->sender_count * p->graph->micro_batches;
    if (room > INT32_MAX / 2)
        return zfi_fail(&p->error, ZF_ERR_LIMIT, "zf_measure: too many micro-batches");
    p->spans = zfi_calloc(&p->memory, (size_t)room + 1, sizeof *p->spans);
    if (!p->spans) return zfi_nomem(&p->error);
    p->span_room = (int32_t)room + 1;
    return ZF_OK;
}

ZF_API zf_status zf_measured(const zf_program *p, zf_span *spans, int32_t *count)
{
    double begin = INFINITY;
    int32_t room;
    if (!p || !count) return ZF_ERR_ARGUMENT;
    room = spans ? *count : 0;
    *count = p->span_count;
    for (int32_t k = 0; k < p->span_count; k++) begin = fmin(begin, p->spans[k].from);
    for (int32_t k = 0; k < p->span_count && k < room; k++) {
        spans[k] = p->spans[k];
        spans[k].from -= begin, spans[k].to -= begin;
    }
    return ZF_OK;
}
