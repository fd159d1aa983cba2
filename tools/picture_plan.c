/* A plan as a picture: bytes over the step, stacked by kind, for each space; and what each resource
 * does over time, by the estimate. */
#include "picture.h"
#include "../examples/frame/plan/human.h"

#include <stdlib.h>
#include <string.h>

enum { LEFT = 92, WIDE = 800, RIGHT = 220, HIGH = 220, LANE = 26, HEAD = 56 };

static const picture_colour kinds[ZF_KINDS] = {
    [ZF_PARAMETERS] = {NULL, "#4c78a8"}, [ZF_GRADIENTS] = {NULL, "#f58518"},
    [ZF_OPTIMIZER] = {NULL, "#54a24b"},  [ZF_ACTIVATIONS] = {NULL, "#e45756"},
    [ZF_COMMUNICATION] = {NULL, "#b279a2"}, [ZF_WORKSPACE] = {NULL, "#9d755d"},
    [ZF_INPUTS] = {NULL, "#bab0ac"},     [ZF_CACHES] = {NULL, "#72b7b2"},
};
static const char *const lanes[ZF_RESOURCES] = {"#4c78a8", "#9d755d", "#b279a2", "#54a24b",
                                                "#72b7b2", "#f58518", "#e45756"};

static const char *seconds_text(char text[32], double seconds)
{
    if (seconds == 0) snprintf(text, 32, "0");
    else if (seconds >= 1) snprintf(text, 32, "%.4g s", seconds);
    else if (seconds >= 1e-3) snprintf(text, 32, "%.4g ms", 1e3 * seconds);
    else snprintf(text, 32, "%.4g \xC2\xB5s", 1e6 * seconds);
    return text;
}

/* The distance of marks on an axis that ends at `most`, about five of them: 1, 2 or 5 times a power
 * of ten. */
static double mark_distance(double most)
{
    double by = 1e-9;
    while (by * 60 < most) by *= 10;
    return by * 6 >= most ? by : by * 12 >= most ? 2 * by : by * 30 >= most ? 5 * by : 10 * by;
}

/* --------------------------------------------------------------------------------------- memory */

typedef struct memory {
    const zf_graph *graph;
    const zf_plan *plan;
    zf_space space;
    size_t (*bytes)[ZF_KINDS]; /* by place */
    int32_t *shown;            /* by column: the place with the most bytes in it */
    int32_t columns;
    int32_t peak_place;
} memory;

static size_t sum_at(const memory *m, int32_t place)
{
    size_t sum = 0;
    for (int k = 0; k < ZF_KINDS; k++) sum += m->bytes[place][k];
    return sum;
}

/* Of several places in a column, that with the most bytes is shown, so the peak is. */
static void choose_places(memory *m)
{
    const int32_t nodes = m->plan->nodes;
    m->columns = nodes < WIDE ? nodes : WIDE;
    m->peak_place = 0;
    for (int32_t c = 0; c < m->columns; c++) {
        const int32_t end = (int32_t)((int64_t)(c + 1) * nodes / m->columns);
        int32_t best = (int32_t)((int64_t)c * nodes / m->columns);
        for (int32_t k = best; k < end; k++)
            if (sum_at(m, k) > sum_at(m, best)) best = k;
        m->shown[c] = best;
        if (sum_at(m, best) > sum_at(m, m->peak_place)) m->peak_place = best;
    }
}

static double place_x(const memory *m, double place)
{
    return LEFT + WIDE * place / m->plan->nodes;
}

/* The area of a kind, between the sums up to it and without it. */
static void write_area(const memory *m, int kind, double bottom, double scale, FILE *file)
{
    const zf_space_plan *s = &m->plan->spaces[m->space];
    if (!s->most[kind]) return;
    fprintf(file, "<path fill=\"%s\" d=\"M", kinds[kind].fill);
    for (int side = 0; side < 2; side++)
        for (int32_t n = 0; n < m->columns; n++) {
            const int32_t c = side ? m->columns - 1 - n : n;
            double sum = 0;
            for (int k = 0; k < kind + !side; k++) sum += (double)m->bytes[m->shown[c]][k];
            for (int end = 0; end < 2; end++)
                fprintf(file, "%.1f %.1f ",
                        LEFT + (double)WIDE * (c + (side ? !end : end)) / m->columns,
                        bottom - scale * sum);
        }
    fprintf(file, "Z\"><title>%s: at most %zu bytes, %zu at the peak</title></path>\n",
            zf_kind_name((zf_kind)kind), s->most[kind], s->at_peak[kind]);
}

static void write_peak(const memory *m, double top, double bottom, double scale, FILE *file)
{
    const zf_space_plan *s = &m->plan->spaces[m->space];
    const double x = place_x(m, m->peak_place + 0.5), y = bottom - scale * (double)s->live_bytes;
    const bool right = x < LEFT + WIDE / 2.0;
    fprintf(file,
            "<path stroke=\"#24292f\" stroke-dasharray=\"3 3\" d=\"M%.1f %.1fV%.1f\"/>"
            "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"#24292f\"/>"
            "<text%s x=\"%.1f\" y=\"%.1f\">peak: %zu bytes at ",
            x, top, bottom, x, y, right ? "" : " class=\"end\"", x + (right ? 7 : -7), top + 4,
            s->live_bytes);
    if (s->peak_node) fprintf(file, "%%%d ", (int)s->peak_node);
    picture_text(file, s->peak_op, 24);
    if (*s->peak_scope) fputs(" in ", file);
    picture_text(file, s->peak_scope, 40);
    fputs("</text>\n", file);
}

/* Marks where the update section begins. */
static void write_update(const memory *m, double top, double bottom, FILE *file)
{
    zf_node node;
    for (int32_t k = 0; zf_graph_node(m->graph, k, &node); k++) {
        if (!node.update) continue;
        fprintf(file,
                "<path stroke=\"#8c959f\" d=\"M%.1f %.1fV%.1f\"/>"
                "<text class=\"soft end\" x=\"%.1f\" y=\"%.1f\">update</text>\n",
                place_x(m, k), top + 8, bottom + 14, place_x(m, k) - 4, bottom + 14);
        return;
    }
}

static void write_memory_axis(double most, double bottom, double scale, FILE *file)
{
    const double step = mark_distance(most);
    char text[32];
    for (double at = 0; at <= most; at += step)
        fprintf(file,
                "<path stroke=\"#d0d7de\" d=\"M%d %.1fH%d\"/>"
                "<text class=\"end soft\" x=\"%d\" y=\"%.1f\">%s</text>\n",
                LEFT, bottom - scale * at, LEFT + WIDE, LEFT - 6, bottom - scale * at + 4,
                human(text, at));
}

static void write_kinds(const memory *m, double y, FILE *file)
{
    const zf_space_plan *s = &m->plan->spaces[m->space];
    char text[32], name[96];
    for (int k = ZF_KINDS - 1; k >= 0; k--) {
        if (!s->most[k]) continue;
        snprintf(name, sizeof name, "%s, %s", zf_kind_name((zf_kind)k),
                 human(text, (double)s->at_peak[k]));
        picture_legend(file, LEFT + WIDE + 18, y, &(picture_colour){name, kinds[k].fill});
        y += 20;
    }
    fprintf(file, "<text class=\"soft\" x=\"%d\" y=\"%.1f\">(at the peak)</text>\n",
            LEFT + WIDE + 18, y);
}

static void write_memory(memory *m, double y, FILE *file)
{
    const zf_space_plan *s = &m->plan->spaces[m->space];
    const double top = y + 30, bottom = top + HIGH,
                 most = 1.12 * (double)(s->live_bytes ? s->live_bytes : 1), scale = HIGH / most;
    choose_places(m);
    fprintf(file,
            "<text class=\"head\" x=\"%d\" y=\"%.1f\">%s memory: %zu bytes are allocated</text>\n",
            LEFT, y + 14, zf_space_name(m->space), s->peak_bytes);
    write_memory_axis(most, bottom, scale, file);
    for (int k = 0; k < ZF_KINDS; k++) write_area(m, k, bottom, scale, file);
    write_update(m, top, bottom, file);
    write_peak(m, top, bottom, scale, file);
    write_kinds(m, top + 16, file);
    fprintf(file,
            "<text class=\"soft\" x=\"%d\" y=\"%.1f\">%d nodes of a step, in their order</text>\n",
            LEFT, bottom + 14, (int)m->plan->nodes);
}

/* ----------------------------------------------------------------------------------------- time */

typedef struct timeline {
    zf_span *spans;
    int32_t count;
    double end;
    zf_estimate estimate;
} timeline;

/* The spans of a resource. Those that are closer than half a pixel are one box. */
static void write_lane(const timeline *t, int resource, double y, FILE *file)
{
    const double scale = WIDE / t->end;
    double from = 0, to = -1;
    char text[32];
    fprintf(file, "<text class=\"end\" x=\"%d\" y=\"%.1f\">%s</text>\n<path fill=\"%s\" d=\"",
            LEFT - 6, y + 15, zf_resource_name((zf_resource)resource), lanes[resource]);
    for (int32_t k = 0; k <= t->count; k++) {
        const zf_span *s = k < t->count ? &t->spans[k] : NULL;
        if (s && (int)s->resource != resource) continue;
        if (s && to >= 0 && scale * (s->from - to) < 0.5) {
            if (s->to > to) to = s->to;
            continue;
        }
        if (to >= 0)
            fprintf(file, "M%.2f %.1fH%.2fV%.1fH%.2fZ", LEFT + scale * from, y + 2,
                    LEFT + scale * to + 0.3, y + LANE - 4, LEFT + scale * from);
        if (s) from = s->from, to = s->to;
    }
    fprintf(file, "\"/>\n<text class=\"soft\" x=\"%d\" y=\"%.1f\">busy %s", LEFT + WIDE + 18,
            y + 15, seconds_text(text, t->estimate.busy[resource]));
    if (resource != ZF_RESOURCE_COMPUTE)
        fprintf(file, ", waited for %s", seconds_text(text, t->estimate.exposed[resource]));
    fputs("</text>\n", file);
}

static bool is_used(const timeline *t, int resource)
{
    for (int32_t k = 0; k < t->count; k++)
        if ((int)t->spans[k].resource == resource) return true;
    return false;
}

static double write_time(const timeline *t, double y, FILE *file)
{
    const double step = mark_distance(t->end);
    double bottom = y + 26;
    char text[32];
    for (int k = 0; k < ZF_RESOURCES; k++) bottom += is_used(t, k) ? LANE : 0;
    fprintf(
        file,
        "<text class=\"head\" x=\"%d\" y=\"%.1f\">queues: a step of %s by the estimate</text>\n",
        LEFT, y + 14, seconds_text(text, t->estimate.seconds));
    for (double at = 0; at <= t->end; at += step)
        fprintf(file,
                "<path stroke=\"#d0d7de\" d=\"M%.1f %.1fV%.1f\"/>"
                "<text class=\"mid soft\" x=\"%.1f\" y=\"%.1f\">%s</text>\n",
                LEFT + WIDE * at / t->end, y + 22, bottom + 4, LEFT + WIDE * at / t->end,
                bottom + 17, seconds_text(text, at));
    y += 26;
    for (int k = 0; k < ZF_RESOURCES; k++) {
        if (!is_used(t, k)) continue;
        write_lane(t, k, y, file);
        y += LANE;
    }
    return bottom + 30;
}

static zf_status read_time(timeline *t, zf_graph *g, const zf_cost *cost)
{
    zf_status status = zf_graph_estimate(g, cost, &t->estimate);
    if (!status) status = zf_graph_timeline(g, cost, NULL, &t->count);
    if (status) return status;
    if (!(t->spans = calloc((size_t)t->count + 1, sizeof *t->spans))) return ZF_ERR_NOMEM;
    status = zf_graph_timeline(g, cost, t->spans, &t->count);
    for (int32_t k = 0; !status && k < t->count; k++)
        if (t->spans[k].to > t->end) t->end = t->spans[k].to;
    return status;
}

zf_status picture_plan_svg(zf_graph *graph, const zf_cost *cost, const char *title, FILE *file)
{
    zf_plan plan;
    timeline t = {.count = 0};
    memory m = {.graph = graph, .plan = &plan};
    zf_status status = zf_graph_plan(graph, &plan);
    double height = HEAD, y = HEAD;
    if (!status) status = read_time(&t, graph, cost);
    if (!status) {
        m.bytes = calloc((size_t)plan.nodes + 1, sizeof *m.bytes);
        m.shown = calloc(WIDE, sizeof *m.shown);
        if (!m.bytes || !m.shown) status = ZF_ERR_NOMEM;
        for (int k = 0; k < ZF_SPACES; k++) height += plan.spaces[k].peak_bytes ? HIGH + 70 : 0;
        for (int k = 0; k < ZF_RESOURCES; k++) height += is_used(&t, k) ? LANE : 0;
    }
    if (!status) {
        picture_begin(file, LEFT + WIDE + RIGHT, height + 70, title);
        fprintf(file, "<text class=\"head\" x=\"%d\" y=\"28\">", LEFT);
        picture_text(file, title, 120);
        fputs("</text>\n", file);
    }
    for (int k = 0; k < ZF_SPACES && !status; k++) {
        m.space = (zf_space)k;
        if (!plan.spaces[k].peak_bytes) continue;
        status = zf_graph_alive(graph, m.space, m.bytes);
        if (!status) write_memory(&m, y, file);
        y += HIGH + 70;
    }
    if (!status && t.end > 0) write_time(&t, y, file);
    if (!status) status = picture_end(file);
    free(m.bytes);
    free(m.shown);
    free(t.spans);
    return status;
}
