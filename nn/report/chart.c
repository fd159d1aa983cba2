/* Curves over steps, as SVG. */

enum { ZFI_CHART_WIDTH = 460, ZFI_CHART_HEIGHT = 230, ZFI_CHART_COLOURS = 8 };
enum { ZFI_CHART_LEFT = 58, ZFI_CHART_RIGHT = 12, ZFI_CHART_TOP = 10, ZFI_CHART_BOTTOM = 26 };

typedef struct zfi_axes {
    double x0, x1, y0, y1;
} zfi_axes;

static double zfi_axes_x(const zfi_axes *a, double x)
{
    return ZFI_CHART_LEFT + (x - a->x0) / (a->x1 - a->x0) *
                                (ZFI_CHART_WIDTH - ZFI_CHART_LEFT - ZFI_CHART_RIGHT);
}

static double zfi_axes_y(const zfi_axes *a, double y)
{
    return ZFI_CHART_HEIGHT - ZFI_CHART_BOTTOM -
           (y - a->y0) / (a->y1 - a->y0) * (ZFI_CHART_HEIGHT - ZFI_CHART_TOP - ZFI_CHART_BOTTOM);
}

/* The distance of about `count` marks over a span: 1, 2 or 5 times a power of ten. */
static double zfi_mark_distance(double span, int count)
{
    const double least = span / count, power = pow(10, floor(log10(least)));
    const double times = least / power;
    return power * (times <= 1 ? 1 : times <= 2 ? 2 : times <= 5 ? 5 : 10);
}

static void zfi_axes_include(zfi_axes *a, const zfi_series *s)
{
    for (int32_t k = 0; k < s->count; k++) {
        const zfi_point *p = &s->points[k];
        if ((double)p->step < a->x0) a->x0 = (double)p->step;
        if ((double)p->step > a->x1) a->x1 = (double)p->step;
        if (p->low < a->y0) a->y0 = p->low;
        if (p->high > a->y1) a->y1 = p->high;
    }
}

/* Room where all is one value, and a little above and below. */
static void zfi_axes_settle(zfi_axes *a)
{
    const double room = a->y1 > a->y0 ? 0.04 * (a->y1 - a->y0) : fmax(fabs(a->y0), 1) * 0.1;
    a->y0 -= room, a->y1 += room;
    if (!(a->x1 > a->x0)) a->x0 -= 1, a->x1 += 1;
}

static void zfi_axes_draw(zfi_markup *t, const zfi_axes *a)
{
    const double dx = fmax(1, zfi_mark_distance(a->x1 - a->x0, 5)),
                 dy = zfi_mark_distance(a->y1 - a->y0, 5);
    const int right = ZFI_CHART_WIDTH - ZFI_CHART_RIGHT,
              bottom = ZFI_CHART_HEIGHT - ZFI_CHART_BOTTOM;
    for (int k = 0; k < 20; k++) {
        const double y = (ceil(a->y0 / dy) + k) * dy;
        if (y > a->y1) break;
        zfi_markup_print(t,
                       "<path class=\"grid\" d=\"M%d %.1fH%d\"/><text class=\"end\" x=\"%d\" "
                       "y=\"%.1f\">%.6g</text>\n",
                       ZFI_CHART_LEFT, zfi_axes_y(a, y), right, ZFI_CHART_LEFT - 6,
                       zfi_axes_y(a, y) + 4, fabs(y) < 1e-9 * dy ? 0 : y);
    }
    for (int k = 0; k < 20; k++) {
        const double x = (ceil(a->x0 / dx) + k) * dx;
        if (x > a->x1) break;
        zfi_markup_print(t, "<text class=\"mid\" x=\"%.1f\" y=\"%d\">%.7g</text>\n",
                         zfi_axes_x(a, x), bottom + 17, x);
    }
}

/* The band from least to largest value, where a point has several; then the means. */
static void zfi_curve_draw(zfi_markup *t, const zfi_axes *a, const zfi_series *s, int colour)
{
    if (s->per > 1) {
        zfi_markup_print(t, "<path class=\"f%d band\" d=\"M", colour);
        for (int32_t k = 0; k < 2 * s->count; k++) {
            const zfi_point *p = &s->points[k < s->count ? k : 2 * s->count - 1 - k];
            zfi_markup_print(t, "%.1f %.1f ", zfi_axes_x(a, (double)p->step),
                           zfi_axes_y(a, k < s->count ? p->high : p->low));
        }
        zfi_markup_put(t, "Z\"/>\n");
    }
    zfi_markup_print(t, "<polyline class=\"s%d\" points=\"", colour);
    for (int32_t k = 0; k < s->count; k++)
        zfi_markup_print(t, "%.1f,%.1f ", zfi_axes_x(a, (double)s->points[k].step),
                       zfi_axes_y(a, zfi_point_mean(&s->points[k])));
    zfi_markup_put(t, "\"/>\n");
    for (int32_t k = 0; s->count <= 40 && k < s->count; k++)
        zfi_markup_print(t, "<circle class=\"f%d\" r=\"2.5\" cx=\"%.1f\" cy=\"%.1f\"/>", colour,
                       zfi_axes_x(a, (double)s->points[k].step),
                       zfi_axes_y(a, zfi_point_mean(&s->points[k])));
}

/* Draws the curves in one picture; `label` is read to those who do not see it. */
static void zfi_chart_draw(zfi_markup *t, const char *label, const zfi_series *const *list,
                           int count)
{
    zfi_axes a = {.x0 = INFINITY, .x1 = -INFINITY, .y0 = INFINITY, .y1 = -INFINITY};
    for (int k = 0; k < count; k++) zfi_axes_include(&a, list[k]);
    if (!isfinite(a.x0)) {
        zfi_markup_put(t, "<p>No value is a finite number.</p>\n");
        return;
    }
    zfi_axes_settle(&a);
    zfi_markup_print(t, "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"", ZFI_CHART_WIDTH,
                   ZFI_CHART_HEIGHT);
    zfi_markup_escaped(t, label);
    zfi_markup_put(t, " over steps\">\n");
    zfi_axes_draw(t, &a);
    for (int k = 0; k < count; k++) zfi_curve_draw(t, &a, list[k], k % ZFI_CHART_COLOURS);
    zfi_markup_put(t, "</svg>\n");
}
