/* What a plan says, as parts of a page: bytes over the step, what queues do, operators by time, and
 * traffic. Each picture has a table. */

enum { ZFI_PLAN_WIDTH = 760, ZFI_PLAN_LEFT = 76, ZFI_PLAN_HIGH = 200, ZFI_PLAN_LANE = 22 };

/* What a step does over time: as planned, and as measured. */
typedef struct zfi_times {
    const char *name;
    const zf_span *spans;
    int32_t count;
} zfi_times;

/* ------------------------------------------------------------------------------------- memory */

static size_t zfi_alive_total(const size_t bytes[ZF_KINDS])
{
    size_t sum = 0;
    for (int k = 0; k < ZF_KINDS; k++) sum += bytes[k];
    return sum;
}

/* Of several places in a column, that with the most bytes is shown, so the peak is. */
static int32_t zfi_column_place(size_t (*bytes)[ZF_KINDS], int32_t nodes, int32_t columns,
                                int32_t c)
{
    const int32_t end = (int32_t)((int64_t)(c + 1) * nodes / columns);
    int32_t best = (int32_t)((int64_t)c * nodes / columns);
    for (int32_t k = best + 1; k < end; k++)
        if (zfi_alive_total(bytes[k]) > zfi_alive_total(bytes[best])) best = k;
    return best;
}

/* The area of a kind, between the sums up to it and without it. */
static void zfi_area_draw(zfi_markup *t, size_t (*bytes)[ZF_KINDS], int32_t nodes, int kind,
                          double scale)
{
    const int32_t columns = nodes < 400 ? nodes : 400;
    const double wide = (double)(ZFI_PLAN_WIDTH - ZFI_PLAN_LEFT) / columns;
    zfi_markup_print(t, "<path class=\"f%d\" d=\"M", kind);
    for (int32_t n = 0; n < 2 * columns; n++) {
        const bool top = n < columns;
        const int32_t c = top ? n : 2 * columns - 1 - n;
        const size_t *alive = bytes[zfi_column_place(bytes, nodes, columns, c)];
        double sum = 0;
        for (int k = 0; k < kind + top; k++) sum += (double)alive[k];
        for (int end = 0; end < 2; end++)
            zfi_markup_print(t, "%.1f %.1f ", ZFI_PLAN_LEFT + wide * (c + (top ? end : !end)),
                           ZFI_PLAN_HIGH - scale * sum);
    }
    zfi_markup_print(t, "Z\"><title>%s</title></path>\n", zf_kind_name((zf_kind)kind));
}

static void zfi_memory_table(zfi_markup *t, const zf_space_plan *s)
{
    zfi_markup_put(
        t, "<div class=\"wide\"><table><tr><th></th><th>kind</th><th>at the peak</th><th>at "
           "most</th></tr>\n");
    for (int k = ZF_KINDS - 1; k >= 0; k--) {
        if (!s->most[k]) continue;
        zfi_markup_print(t, "<tr><td><i class=\"b%d\"></i></td><td>%s</td><td>", k,
                       zf_kind_name((zf_kind)k));
        zfi_markup_bytes(t, (double)s->at_peak[k]), zfi_markup_put(t, "</td><td>");
        zfi_markup_bytes(t, (double)s->most[k]), zfi_markup_put(t, "</td></tr>\n");
    }
    zfi_markup_put(t, "</table></div>\n");
}

static void zfi_memory_draw(zfi_markup *t, zf_graph *g, const zf_plan *plan, zf_space space,
                            size_t (*bytes)[ZF_KINDS])
{
    const zf_space_plan *s = &plan->spaces[space];
    const double most = 1.05 * (double)(s->live_bytes ? s->live_bytes : 1),
                 scale = (ZFI_PLAN_HIGH - 8) / most, step = zfi_mark_distance(most, 5);
    if (!s->peak_bytes || plan->nodes < 1 || zf_graph_alive(g, space, bytes)) return;
    zfi_markup_print(t, "<h3>%s</h3>\n<p>", zf_space_name(space));
    zfi_markup_bytes(t, (double)s->peak_bytes);
    zfi_markup_print(t, " are allocated (%zu bytes). At one time at most ", s->peak_bytes);
    zfi_markup_bytes(t, (double)s->live_bytes), zfi_markup_put(t, " are alive");
    if (*s->peak_op) {
        zfi_markup_print(t, ", at %%%d ", (int)s->peak_node), zfi_markup_escaped(t, s->peak_op);
        if (*s->peak_scope) zfi_markup_put(t, " in "), zfi_markup_escaped(t, s->peak_scope);
    }
    zfi_markup_print(
        t,
        ".</p>\n<div class=\"wide\"><svg class=\"plan\" viewBox=\"0 0 %d %d\" role=\"img\" "
        "aria-label=\"bytes over the nodes of a step\">\n",
        ZFI_PLAN_WIDTH, ZFI_PLAN_HIGH + 22);
    for (double at = 0; at <= most; at += step) {
        zfi_markup_print(
            t, "<path class=\"grid\" d=\"M%d %.1fH%d\"/><text class=\"end\" x=\"%d\" y=\"%.1f\">",
            ZFI_PLAN_LEFT, ZFI_PLAN_HIGH - scale * at, ZFI_PLAN_WIDTH, ZFI_PLAN_LEFT - 6,
            ZFI_PLAN_HIGH - scale * at + 4);
        zfi_markup_bytes(t, at), zfi_markup_put(t, "</text>\n");
    }
    for (int k = 0; k < ZF_KINDS; k++)
        if (s->most[k]) zfi_area_draw(t, bytes, plan->nodes, k, scale);
    zfi_markup_print(
        t, "<text x=\"%d\" y=\"%d\">%d nodes of a step, in their order</text></svg></div>\n",
        ZFI_PLAN_LEFT, ZFI_PLAN_HIGH + 16, (int)plan->nodes);
    zfi_memory_table(t, s);
}

/* ------------------------------------------------------------------------------------- queues */

static double zfi_times_end(const zfi_times *times)
{
    double end = 0;
    for (int32_t k = 0; k < times->count; k++)
        if (times->spans[k].to > end) end = times->spans[k].to;
    return end;
}

static double zfi_times_busy(const zfi_times *times, int resource)
{
    double sum = 0;
    for (int32_t k = 0; k < times->count; k++)
        if ((int)times->spans[k].resource == resource)
            sum += times->spans[k].to - times->spans[k].from;
    return sum;
}

/* The spans of a resource. Those that are closer than half a pixel are one box. */
static void zfi_lane_draw(zfi_markup *t, const zfi_times *times, int resource, double y,
                          double scale)
{
    double from = 0, to = -1;
    zfi_markup_print(t, "<text class=\"end\" x=\"%d\" y=\"%.1f\">%s</text><path class=\"f%d\" d=\"",
                   ZFI_PLAN_LEFT - 6, y + 14, zf_resource_name((zf_resource)resource), resource);
    for (int32_t k = 0; k <= times->count; k++) {
        const zf_span *s = k < times->count ? &times->spans[k] : NULL;
        if (s && (int)s->resource != resource) continue;
        if (s && to >= 0 && scale * (s->from - to) < 0.5) {
            if (s->to > to) to = s->to;
            continue;
        }
        if (to >= 0)
            zfi_markup_print(t, "M%.1f %.1fH%.1fV%.1fH%.1fZ", ZFI_PLAN_LEFT + scale * from, y + 3,
                           ZFI_PLAN_LEFT + scale * to + 0.4, y + ZFI_PLAN_LANE - 3,
                           ZFI_PLAN_LEFT + scale * from);
        if (s) from = s->from, to = s->to;
    }
    zfi_markup_put(t, "\"/>\n");
}

static void zfi_times_draw(zfi_markup *t, const zfi_times *times, double end)
{
    const double scale = (ZFI_PLAN_WIDTH - ZFI_PLAN_LEFT - 8) / end,
                 step = zfi_mark_distance(end, 6);
    double y = 2;
    int lanes = 0;
    for (int k = 0; k < ZF_RESOURCES; k++) lanes += zfi_times_busy(times, k) > 0;
    zfi_markup_print(t,
                     "<h3>%s</h3>\n<div class=\"wide\"><svg class=\"plan\" viewBox=\"0 0 %d %d\" "
                     "role=\"img\" aria-label=\"what each queue does over time, %s\">\n",
                     times->name, ZFI_PLAN_WIDTH, lanes * ZFI_PLAN_LANE + 26, times->name);
    for (double at = 0; at <= end; at += step) {
        const double x = ZFI_PLAN_LEFT + scale * at;
        const bool last = x > ZFI_PLAN_WIDTH - 40; /* in the middle it would be cut off */
        zfi_markup_print(
            t, "<path class=\"grid\" d=\"M%.1f 0V%d\"/><text class=\"%s\" x=\"%.1f\" y=\"%d\">", x,
            lanes * ZFI_PLAN_LANE + 6, last ? "end" : "mid", last ? ZFI_PLAN_WIDTH : x,
            lanes * ZFI_PLAN_LANE + 20);
        zfi_markup_seconds(t, at), zfi_markup_put(t, "</text>");
    }
    for (int k = 0; k < ZF_RESOURCES; k++) {
        if (!(zfi_times_busy(times, k) > 0)) continue;
        zfi_lane_draw(t, times, k, y, scale);
        y += ZFI_PLAN_LANE;
    }
    zfi_markup_put(t, "</svg></div>\n");
}

static void zfi_busy_table(zfi_markup *t, const zfi_times *all, int count, const zf_estimate *e)
{
    zfi_markup_put(t, "<div class=\"wide\"><table><tr><th>queue</th>");
    for (int n = 0; n < count; n++) zfi_markup_print(t, "<th>busy, %s</th>", all[n].name);
    zfi_markup_put(t, "<th>waited for, planned</th></tr>\n");
    for (int k = 0; k < ZF_RESOURCES; k++) {
        double busy = 0;
        for (int n = 0; n < count; n++) busy += zfi_times_busy(&all[n], k);
        if (!(busy > 0)) continue;
        zfi_markup_print(t, "<tr><td>%s</td>", zf_resource_name((zf_resource)k));
        for (int n = 0; n < count; n++) {
            zfi_markup_put(t, "<td>"), zfi_markup_seconds(t, zfi_times_busy(&all[n], k));
            zfi_markup_put(t, "</td>");
        }
        zfi_markup_put(t, "<td>");
        if (k != ZF_RESOURCE_COMPUTE) zfi_markup_seconds(t, e->exposed[k]);
        zfi_markup_put(t, "</td></tr>\n");
    }
    zfi_markup_put(t, "</table></div>\n");
}

/* A queue to other places is slow: it takes so many times as long as planned, and that is more than
 * this share of the step. */
static const double zfi_slow_factor = 2, zfi_slow_share = 0.01;

/* A line of warnings for each slow queue. */
static void zfi_slow_put(zfi_markup *t, const zfi_times *planned, const zfi_times *measured)
{
    const double step = zfi_times_end(measured);
    for (int k = ZF_RESOURCE_LINK; k < ZF_RESOURCES; k++) {
        const double plan = zfi_times_busy(planned, k), is = zfi_times_busy(measured, k);
        if (!(plan > 0) || is <= zfi_slow_factor * plan || is - plan <= zfi_slow_share * step)
            continue;
        zfi_markup_print(t, "<li>the queue %s is slow%s: it was busy for ",
                         zf_resource_name((zf_resource)k),
                         k == ZF_RESOURCE_LINK ? ", or ranks wait for one another" : "");
        zfi_markup_seconds(t, is), zfi_markup_put(t, " of the measured step, and ");
        zfi_markup_seconds(t, plan), zfi_markup_put(t, " were planned</li>\n");
    }
}

static void zfi_queues_draw(zfi_markup *t, const zfi_times *all, int count, const zf_estimate *e)
{
    double end = 0;
    for (int n = 0; n < count; n++) end = fmax(end, zfi_times_end(&all[n]));
    if (!(end > 0)) return;
    zfi_markup_put(t, "<section id=\"queues\"><h2>Queues</h2>\n<p>A step takes ");
    zfi_markup_seconds(t, e->seconds), zfi_markup_put(t, " by the estimate");
    if (count > 1) zfi_markup_put(t, "; measured, "), zfi_markup_seconds(t, zfi_times_end(&all[1]));
    zfi_markup_put(t, ".</p>\n");
    for (int n = 0; n < count; n++) zfi_times_draw(t, &all[n], end);
    zfi_busy_table(t, all, count, e);
    zfi_markup_put(t, "</section>\n");
}

/* ---------------------------------------------------------------------------------- operators */

typedef struct zfi_operator_time {
    zf_op op;
    zf_work work;
    double seconds[2]; /* of zfi_times */
} zfi_operator_time;

enum { ZFI_OPERATORS = 64, ZFI_ROOF_NAMES = 5 };

/* The seconds of each operator, the longest first. Returns their number. */
static int zfi_operators_of(zf_graph *g, const zfi_times *all, int count,
                            const zfi_nodes_by_id *nodes, zfi_operator_time out[ZFI_OPERATORS])
{
    int used = 0;
    for (int n = 0; n < count; n++)
        for (int32_t k = 0; k < all[n].count; k++) {
            const zf_span *s = &all[n].spans[k];
            const zf_op op = nodes->all[s->node].op;
            int at = 0;
            while (at < used && out[at].op != op) at++;
            if (at == ZFI_OPERATORS) continue;
            if (at == used) out[used++] = (zfi_operator_time){.op = op};
            out[at].seconds[n] += s->to - s->from;
        }
    for (int k = 0; k < used; k++) {
        (void)zf_graph_work(g, out[k].op, &out[k].work);
        for (int m = k; m > 0 && out[m].seconds[count - 1] > out[m - 1].seconds[count - 1]; m--) {
            const zfi_operator_time other = out[m];
            out[m] = out[m - 1], out[m - 1] = other;
        }
    }
    return used;
}

/* The time that FLOPs and bytes take at least. */
static double zfi_roof(const zf_cost *cost, const zf_work *work)
{
    return fmax(work->flops / cost->device.flops_per_s, work->bytes / cost->device.bytes_per_s);
}

/* FLOP/s over FLOPs per byte, both in powers of ten, with the roof of the machine. */
static void zfi_roofline_draw(zfi_markup *t, const zf_cost *cost, const zfi_operator_time *of,
                              int used, int count)
{
    const double peak = log10(cost->device.flops_per_s), slope = log10(cost->device.bytes_per_s);
    zfi_axes a = {.x0 = -2, .x1 = 3, .y0 = floor(peak) - 4, .y1 = ceil(peak) + 0.3};
    zfi_markup_print(
        t, "<svg class=\"roof\" viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"roofline\">\n",
        ZFI_CHART_WIDTH, ZFI_CHART_HEIGHT);
    for (double y = ceil(a.y0); y <= a.y1; y++)
        zfi_markup_print(t,
                         "<path class=\"grid\" d=\"M%d %.1fH%d\"/><text class=\"end\" x=\"%d\" "
                         "y=\"%.1f\">%.0e</text>\n",
                         ZFI_CHART_LEFT, zfi_axes_y(&a, y), ZFI_CHART_WIDTH - ZFI_CHART_RIGHT,
                         ZFI_CHART_LEFT - 6, zfi_axes_y(&a, y) + 4, pow(10, y));
    for (double x = a.x0; x <= a.x1; x++)
        zfi_markup_print(t, "<text class=\"mid\" x=\"%.1f\" y=\"%d\">%g</text>\n",
                         zfi_axes_x(&a, x), ZFI_CHART_HEIGHT - 9, pow(10, x));
    zfi_markup_print(t, "<polyline class=\"axis\" points=\"%.1f,%.1f %.1f,%.1f %.1f,%.1f\"/>\n",
                   zfi_axes_x(&a, fmax(a.x0, a.y0 - slope)),
                   zfi_axes_y(&a, fmax(a.y0, a.x0 + slope)), zfi_axes_x(&a, peak - slope),
                   zfi_axes_y(&a, peak), zfi_axes_x(&a, a.x1), zfi_axes_y(&a, peak));
    for (int k = 0; k < used; k++) {
        const zfi_operator_time *o = &of[k];
        const double x = log10(o->work.flops / o->work.bytes),
                     y = log10(o->work.flops / o->seconds[count - 1]);
        if (!isfinite(x) || !isfinite(y) || x < a.x0 || x > a.x1 || y < a.y0 || y > a.y1) continue;
        zfi_markup_print(
            t, "<circle class=\"f0\" r=\"4\" cx=\"%.1f\" cy=\"%.1f\"/><text x=\"%.1f\" y=\"%.1f\">",
            zfi_axes_x(&a, x), zfi_axes_y(&a, y), zfi_axes_x(&a, x) + 6, zfi_axes_y(&a, y) + 4);
        if (k < ZFI_ROOF_NAMES) zfi_markup_escaped(t, zf_op_name(o->op));
        zfi_markup_put(t, "</text>\n");
    }
    zfi_markup_put(t, "</svg>\n");
}

static void zfi_operators_draw(zfi_markup *t, zf_graph *g, const zf_cost *cost,
                               const zfi_times *all, int count, const zfi_nodes_by_id *nodes)
{
    zfi_operator_time of[ZFI_OPERATORS];
    const int used = zfi_operators_of(g, all, count, nodes, of);
    if (!used) return;
    zfi_markup_put(
        t, "<section id=\"operators\"><h2>Operators</h2>\n<p>The bound is the time that the "
           "FLOPs or the bytes of all nodes of the operator take at the machine's rates, "
           "whichever is longer (roofline); the share is the bound of the time.</p>\n"
           "<div class=\"wide\"><table><tr><th>operator</th><th>runs</th>");
    for (int n = 0; n < count; n++) zfi_markup_print(t, "<th>%s</th>", all[n].name);
    zfi_markup_put(t, "<th>FLOP</th><th>bytes</th><th>bound</th><th>share</th></tr>\n");
    for (int k = 0; k < used; k++) {
        const double roof = zfi_roof(cost, &of[k].work), seconds = of[k].seconds[count - 1];
        zfi_markup_put(t, "<tr><td>"), zfi_markup_escaped(t, zf_op_name(of[k].op));
        zfi_markup_print(t, "</td><td>%lld</td>", (long long)of[k].work.launches);
        for (int n = 0; n < count; n++) {
            zfi_markup_put(t, "<td>"), zfi_markup_seconds(t, of[k].seconds[n]),
                zfi_markup_put(t, "</td>");
        }
        zfi_markup_print(t, "<td>%.3g</td><td>", of[k].work.flops);
        zfi_markup_bytes(t, of[k].work.bytes), zfi_markup_put(t, "</td><td>");
        zfi_markup_seconds(t, roof), zfi_markup_put(t, "</td><td>");
        if (seconds > 0) zfi_markup_print(t, "%.0f%%", 100 * roof / seconds);
        zfi_markup_put(t, "</td></tr>\n");
    }
    zfi_markup_put(t, "</table></div>\n");
    zfi_roofline_draw(t, cost, of, used, count);
    zfi_markup_put(t, "<p class=\"soft\">FLOP/s over FLOPs per byte.</p></section>\n");
}

/* ------------------------------------------------------------------------------------ traffic */

static void zfi_moved_row(zfi_markup *t, const char *name, const char *over,
                          const zf_moved *planned, const zf_moved *counted)
{
    if (!planned->bytes && !(counted && counted->bytes)) return;
    zfi_markup_print(t, "<tr><td>%s</td><td>%s</td><td>%lld</td><td>", name, over,
                   (long long)planned->calls);
    zfi_markup_bytes(t, (double)planned->bytes), zfi_markup_put(t, "</td><td>");
    zfi_markup_bytes(t, (double)planned->between), zfi_markup_put(t, "</td><td>");
    if (counted) zfi_markup_bytes(t, (double)counted->bytes);
    zfi_markup_put(t, "</td></tr>\n");
}

static void zfi_traffic_rows(zfi_markup *t, const char *over, const zf_traffic *p,
                             const zf_traffic *c)
{
    zfi_moved_row(t, "all_gather", over, &p->all_gather, c ? &c->all_gather : NULL);
    zfi_moved_row(t, "reduce_scatter", over, &p->reduce_scatter, c ? &c->reduce_scatter : NULL);
    zfi_moved_row(t, "all_reduce", over, &p->all_reduce, c ? &c->all_reduce : NULL);
    zfi_moved_row(t, "all_to_all", over, &p->all_to_all, c ? &c->all_to_all : NULL);
    zfi_moved_row(t, "bcast", over, &p->bcast, c ? &c->bcast : NULL);
    zfi_moved_row(t, "send", over, &p->send, c ? &c->send : NULL);
}

/* info NULL: nothing has run. */
static void zfi_traffic_draw(zfi_markup *t, const zf_plan *plan, const zf_program_info *info)
{
    static const char *const groups[ZF_OVERS] = {
        "all ranks",         "one rank of each node", "ranks of a node",    "ranks along data",
        "ranks along tensor", "ranks along context",   "ranks along expert", "ranks along pipe",
        "groups along tensor", "copies along tensor",  "ranks with the same experts"};
    const zf_traffic *c = info ? &info->counted : NULL, *p = &plan->traffic;
    zfi_markup_put(t, "<section id=\"traffic\"><h2>Traffic</h2>\n<p>Of one rank in a step.</p>\n"
                    "<div class=\"wide\"><table><tr><th>what</th><th>among</th><th>calls</th>"
                    "<th>predicted</th><th>of these to other nodes</th><th>counted</th></tr>\n");
    for (int k = 0; k < ZF_OVERS; k++)
        zfi_traffic_rows(t, groups[k], &plan->traffic_over[k],
                         info ? &info->counted_over[k] : NULL);
    zfi_moved_row(t, "download", "device to host memory", &p->download, c ? &c->download : NULL);
    zfi_moved_row(t, "upload", "host memory to device", &p->upload, c ? &c->upload : NULL);
    zfi_moved_row(t, "read", "disk to host memory", &p->read, c ? &c->read : NULL);
    zfi_moved_row(t, "write", "host memory to disk", &p->write, c ? &c->write : NULL);
    zfi_markup_put(t, "</table></div></section>\n");
}

/* -------------------------------------------------------------------------------------- all */

/* What zfi_plan_draw needs while it draws. */
typedef struct zfi_plan_room {
    zf_allocator a;
    size_t (*alive)[ZF_KINDS];
    zfi_nodes_by_id nodes;
    zf_span *spans;
    size_t alive_bytes, span_bytes;
} zfi_plan_room;

static void zfi_plan_room_free(zfi_plan_room *r)
{
    if (r->alive) r->a.fn(r->a.user, r->alive, r->alive_bytes, 0);
    zfi_nodes_by_id_free(&r->nodes, &r->a);
    if (r->spans) r->a.fn(r->a.user, r->spans, r->span_bytes, 0);
}

static zf_status zfi_plan_room_new(zfi_plan_room *r, zf_graph *g, const zf_plan *plan,
                                   int32_t spans)
{
    r->alive_bytes = ((size_t)plan->nodes + 1) * sizeof *r->alive;
    r->span_bytes = ((size_t)spans + 1) * sizeof *r->spans;
    r->alive = r->a.fn(r->a.user, NULL, 0, r->alive_bytes);
    r->nodes = zfi_nodes_by_id_of(&r->a, g);
    r->spans = r->a.fn(r->a.user, NULL, 0, r->span_bytes);
    return r->alive && r->nodes.all && r->spans ? ZF_OK : ZF_ERR_NOMEM;
}

/* Draws all of a plan after zf_memory; measured: spans of a step that has run, or NULL. With rates
 * that were given, `warnings` gets slow queues. */
static zf_status zfi_plan_draw(zfi_markup *t, zfi_markup *warnings, zf_graph *g,
                               const zf_cost *cost, const zf_program_info *info,
                               const zf_span *measured, int32_t measured_count)
{
    zfi_plan_room r = {.a = t->allocator};
    zf_cost rates = cost ? *cost : zf_cost_default();
    zf_plan plan;
    zf_estimate e;
    int32_t count = 0;
    zf_status status = zf_graph_plan(g, &plan);
    if (!status) status = zf_graph_estimate(g, &rates, &e);
    if (!status) status = zf_graph_timeline(g, &rates, NULL, &count);
    if (!status) status = zfi_plan_room_new(&r, g, &plan, count);
    if (!status) status = zf_graph_timeline(g, &rates, r.spans, &count);
    if (!status) {
        const zfi_times all[] = {{.name = "planned", .spans = r.spans, .count = count},
                                 {.name = "measured", .spans = measured, .count = measured_count}};
        const int times = measured_count > 0 ? 2 : 1;
        zfi_markup_put(t, "<section id=\"memory\"><h2>Memory</h2>\n");
        for (int k = 0; k < ZF_SPACES; k++) zfi_memory_draw(t, g, &plan, (zf_space)k, r.alive);
        zfi_markup_put(t, "</section>\n");
        if (cost && times > 1) zfi_slow_put(warnings, &all[0], &all[1]);
        zfi_queues_draw(t, all, times, &e);
        zfi_operators_draw(t, g, &rates, all, times, &r.nodes);
        zfi_traffic_draw(t, &plan, info);
    }
    zfi_plan_room_free(&r);
    return status;
}
