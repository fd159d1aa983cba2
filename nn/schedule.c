/* Learning rates as plain functions of the step.
 *
 *     lr
 *     peak    /\___            warm-up, then one of: constant, linear, cosine, polynomial,
 *            /     \__         exponential; one_cycle has a rise and fall of its own
 *     end   /         \____
 *           0  warmup     steps
 */

static double zfi_fraction(double at, double of)
{
    return of <= 0 || at >= of ? 1 : at <= 0 ? 0 : at / of;
}

/* A field whose 0 means its default, which may be 0 too (ZF_ZERO). */
static double zfi_schedule_or(double value, double otherwise)
{
    return value < 0 && value != ZF_ZERO ? otherwise : zfi_or(value, otherwise);
}

ZF_API double zf_schedule_at(const zf_schedule *s, int64_t step)
{
    const double pi = 3.14159265358979323846;
    double peak, end, after, way;
    if (!s) return 0;
    peak = zfi_or(s->peak, 0), end = s->end;
    after = (double)step - (double)s->warmup;
    if (s->kind == ZF_ONE_CYCLE) { /* Smith & Topin 2018, with cosine flanks */
        double top = s->warmup ? (double)s->warmup : 0.3 * (double)s->steps, start = peak / 25;
        if (top < 0) top = 0;
        if ((double)step < top)
            return start + (peak - start) * (1 - cos(pi * zfi_fraction((double)step, top))) / 2;
        way = zfi_fraction((double)step - top, (double)s->steps - top);
        return end + (peak - end) * (1 + cos(pi * way)) / 2;
    }
    if (step < s->warmup) return peak * (double)step / (double)s->warmup;
    way = zfi_fraction(after, (double)s->steps - (double)s->warmup);
    switch (s->kind) {
    case ZF_LINEAR: return end + (peak - end) * (1 - way);
    case ZF_COSINE: return end + (peak - end) * (1 + cos(pi * way)) / 2;
    case ZF_POLYNOMIAL: return end + (peak - end) * pow(1 - way, zfi_schedule_or(s->power, 1));
    case ZF_EXPONENTIAL: {
        double decayed = peak * pow(zfi_schedule_or(s->rate, 0.9),
                                    floor(after / (s->every > 0 ? (double)s->every : 1)));
        return decayed > end ? decayed : end;
    }
    default: return peak;
    }
}

static const char *const zfi_schedule_names[] = {"constant",   "linear",      "cosine",
                                                 "polynomial", "exponential", "one_cycle"};

ZF_API const char *zf_schedule_name(zf_schedule_kind kind)
{
    return (unsigned)kind < (unsigned)ZFI_COUNT(zfi_schedule_names) ? zfi_schedule_names[kind]
                                                                    : NULL;
}
