/* Numbers over steps, in bounded memory: when all points are taken, every two become one. A point
 * has the mean, the least and the largest value of its steps. */

enum { ZFI_SERIES_POINTS = 512, ZFI_SERIES_NAME = 96 };

typedef struct zfi_point {
    int64_t step; /* the last */
    double sum, low, high;
    int64_t count;
} zfi_point;

typedef struct zfi_series {
    char name[ZFI_SERIES_NAME];
    int32_t run;
    int32_t count;
    int64_t per; /* values of a point */
    int64_t values, bad, last_step; /* bad: those that are not finite, of which no point has any */
    double first, last;
    zfi_point points[ZFI_SERIES_POINTS];
} zfi_series;

static double zfi_point_mean(const zfi_point *p) { return p->sum / (double)p->count; }

static void zfi_point_join(zfi_point *to, const zfi_point *from)
{
    to->step = from->step;
    to->sum += from->sum, to->count += from->count;
    if (from->low < to->low) to->low = from->low;
    if (from->high > to->high) to->high = from->high;
}

static void zfi_series_halve(zfi_series *s)
{
    for (int32_t k = 0; k < s->count / 2; k++) {
        s->points[k] = s->points[2 * k];
        zfi_point_join(&s->points[k], &s->points[2 * k + 1]);
    }
    s->count /= 2, s->per *= 2;
}

static void zfi_series_add(zfi_series *s, int64_t step, double value)
{
    const zfi_point one = {.step = step, .sum = value, .low = value, .high = value, .count = 1};
    s->values++, s->last_step = step, s->last = value;
    if (s->values == 1) s->first = value;
    if (!isfinite(value)) {
        s->bad++;
        return;
    }
    if (!s->per) s->per = 1;
    if (s->count && s->points[s->count - 1].count < s->per) {
        zfi_point_join(&s->points[s->count - 1], &one);
        return;
    }
    if (s->count == ZFI_SERIES_POINTS) zfi_series_halve(s);
    s->points[s->count++] = one;
}

/* Of all values. */
static zfi_point zfi_series_whole(const zfi_series *s)
{
    zfi_point all = s->count ? s->points[0] : (zfi_point){.count = 0};
    for (int32_t k = 1; k < s->count; k++) zfi_point_join(&all, &s->points[k]);
    return all;
}
