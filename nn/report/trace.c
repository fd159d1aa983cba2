/* A trace of steps in Chrome's format, which Perfetto reads: ranks are processes, queues are
 * threads, a node that takes time is a slice.
 *
 *     {"traceEvents": [{"ph": "X", "name": "matmul", "ts": 10.5, "dur": 3, "pid": 1, "tid": 0, ...}]}
 *
 * ts and dur are microseconds. What is planned and what is measured are processes of their own. */

struct zf_trace {
    zfi_markup text;
    double at;     /* microseconds at which the next measured step begins */
    int64_t flows; /* their ids */
    bool any;
};

static void zfi_trace_begin(zf_trace *t)
{
    zfi_markup_put(&t->text, t->any ? ",\n" : "\n");
    t->any = true;
}

/* A text of JSON. */
static void zfi_trace_quoted(zf_trace *t, const char *text)
{
    zfi_markup_put(&t->text, "\"");
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') zfi_markup_add(&t->text, "\\", 1);
        if ((unsigned char)*text < 32) zfi_markup_print(&t->text, "\\u%04x", *text);
        else zfi_markup_add(&t->text, text, 1);
    }
    zfi_markup_put(&t->text, "\"");
}

/* Names a process or a thread, and sorts it. */
static void zfi_trace_name(zf_trace *t, const char *what, int pid, int tid, const char *name)
{
    zfi_trace_begin(t);
    zfi_markup_print(&t->text,
                     "{\"ph\":\"M\",\"name\":\"%s_name\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":",
                     what, pid, tid);
    zfi_trace_quoted(t, name), zfi_markup_put(&t->text, "}}");
    zfi_trace_begin(t);
    zfi_markup_print(&t->text,
                     "{\"ph\":\"M\",\"name\":\"%s_sort_index\",\"pid\":%d,\"tid\":%d,\"args\":{"
                     "\"sort_index\":%d}}",
                     what, pid, tid, *what == 'p' ? pid : tid);
}

static size_t zfi_trace_bytes(const zf_node *node)
{
    return node->effect ? 0 : (size_t)zf_shape_count(node->shape) * zf_dtype_size(node->dtype);
}

/* Whole nanoseconds since the beginning of the trace. Slices of a queue that follow one another do
 * not overlap by a rounding: readers would nest them. */
static long long zfi_trace_ns(const zf_trace *t, double seconds)
{
    return llround(1e3 * (t->at + 1e6 * seconds));
}

static void zfi_trace_slice(zf_trace *t, zf_graph *g, const zf_node *node, const zf_span *s,
                            int pid)
{
    zf_work work = {.launches = 0};
    const double seconds = s->to - s->from;
    const long long from = zfi_trace_ns(t, s->from), lasts = zfi_trace_ns(t, s->to) - from;
    zfi_trace_begin(t);
    zfi_markup_put(&t->text, "{\"ph\":\"X\",\"name\":");
    zfi_trace_quoted(t, node->op_name ? node->op_name : "?");
    zfi_markup_print(
        &t->text,
        ",\"cat\":\"%s\",\"ts\":%lld.%03lld,\"dur\":%lld.%03lld,\"pid\":%d,\"tid\":%d,\"args\":{"
        "\"node\":%d,\"bytes\":%zu,\"scope\":",
        node->update ? "update" : "micro", from / 1000, from % 1000, lasts / 1000, lasts % 1000,
        pid, (int)s->resource, (int)s->node, zfi_trace_bytes(node));
    zfi_trace_quoted(t, node->scope ? node->scope : "");
    /* FLOPs of one of the operator's nodes, as a mean */
    if (!zf_graph_work(g, node->op, &work) && work.launches > 0 && work.flops > 0 && seconds > 0)
        zfi_markup_print(&t->text, ",\"mean_gflop_per_s\":%.6g",
                       1e-9 * work.flops / (double)work.launches / seconds);
    zfi_markup_put(&t->text, "}}");
}

static bool zfi_trace_reads(const zf_node *all, int32_t count, int32_t reader, int32_t id)
{
    const zf_node *n = &all[reader];
    for (int32_t k = 0; k < n->operand_count; k++) {
        const int32_t x = n->operands[k];
        if (x == id) return true;
        /* through views, which take no time */
        if (x > 0 && x < count && all[x].op == ZF_OP_view && all[x].operand_count &&
            all[x].operands[0] == id)
            return true;
    }
    return false;
}

/* An arrow from a gather to the first slice that reads what it has gathered. */
static void zfi_trace_flow(zf_trace *t, const zfi_nodes_by_id *n, const zf_span *spans,
                           int32_t count, int32_t at, int pid)
{
    const zf_span *s = &spans[at];
    for (int32_t k = at + 1; k < count; k++) {
        if (!zfi_trace_reads(n->all, n->count, spans[k].node, s->node)) continue;
        zfi_trace_begin(t);
        zfi_markup_print(
            &t->text,
            "{\"ph\":\"s\",\"name\":\"gathered\",\"cat\":\"gather\",\"id\":\"%lld\",\"ts\":%.3f,"
            "\"pid\":%d,\"tid\":%d}",
            (long long)++t->flows, t->at + 1e6 * (s->from + s->to) / 2, pid, (int)s->resource);
        zfi_trace_begin(t);
        zfi_markup_print(
            &t->text,
            "{\"ph\":\"f\",\"bp\":\"e\",\"name\":\"gathered\",\"cat\":\"gather\",\"id\":\"%lld\","
            "\"ts\":%.3f,\"pid\":%d,\"tid\":%d}",
            (long long)t->flows, t->at + 1e6 * (spans[k].from + spans[k].to) / 2, pid,
            (int)spans[k].resource);
        return;
    }
}

ZF_API zf_status zf_trace_spans(zf_trace *t, zf_graph *graph, const zf_trace_desc *desc)
{
    const int pid = desc ? desc->rank + 1 + (desc->planned ? 1 << 21 : 0) : 0;
    zfi_nodes_by_id n;
    char name[64];
    double end = 0;
    if (!t || !graph || !desc || desc->rank < 0 || desc->rank > 1 << 20 || desc->count < 0 ||
        (desc->count && !desc->spans))
        return ZF_ERR_ARGUMENT;
    n = zfi_nodes_by_id_of(&t->text.allocator, graph);
    if (!n.all) return ZF_ERR_NOMEM;
    snprintf(name, sizeof name, "rank %d, %s", (int)desc->rank,
             desc->planned ? "planned" : "measured");
    zfi_trace_name(t, "process", pid, 0, name);
    for (int k = 0; k < ZF_RESOURCES; k++)
        zfi_trace_name(t, "thread", pid, k, zf_resource_name((zf_resource)k));
    for (int32_t k = 0; k < desc->count; k++) {
        const zf_span *s = &desc->spans[k];
        if (s->node < 0 || s->node >= n.count || (unsigned)s->resource >= ZF_RESOURCES) continue;
        zfi_trace_slice(t, graph, &n.all[s->node], s, pid);
        if (n.all[s->node].op == ZF_OP_all_gather)
            zfi_trace_flow(t, &n, desc->spans, desc->count, k, pid);
        if (s->to > end) end = s->to;
    }
    zfi_nodes_by_id_free(&n, &t->text.allocator);
    if (desc->last) t->at += 1e6 * end;
    return t->text.lacks_memory ? ZF_ERR_NOMEM : ZF_OK;
}

ZF_API zf_trace *zf_trace_new(const zf_allocator *allocator)
{
    zf_allocator a =
        allocator && allocator->fn ? *allocator : (zf_allocator){.fn = zfi_fit_allocate};
    zf_trace *t = a.fn(a.user, NULL, 0, sizeof *t);
    if (!t) return NULL;
    memset(t, 0, sizeof *t);
    t->text.allocator = a;
    zfi_markup_put(&t->text, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
    return t;
}

ZF_API zf_status zf_trace_save(zf_trace *t, const char *path, zf_error *error)
{
    static const char end[] = "\n]}\n";
    size_t bytes;
    zf_status status;
    if (!t || !path)
        return zfi_metrics_fail(error, ZF_ERR_ARGUMENT,
                                "zf_trace_save: a trace and a path are needed");
    bytes = t->text.bytes;
    zfi_markup_put(&t->text, end);
    if (t->text.lacks_memory) return zfi_metrics_fail(error, ZF_ERR_NOMEM, "out of memory");
    status = zf_file_replace(path, t->text.data, t->text.bytes, error);
    t->text.bytes = bytes;
    return status;
}

ZF_API void zf_trace_free(zf_trace *t)
{
    zf_allocator a;
    if (!t) return;
    a = t->text.allocator;
    zfi_markup_free(&t->text);
    a.fn(a.user, t, sizeof *t, 0);
}
