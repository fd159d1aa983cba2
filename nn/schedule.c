/* Learning rates as plain functions of the step.
 *
 *     lr
 *     peak    /\___            warm-up, then one of: constant, linear, cosine, polynomial,
 *            /     \__         exponential; one_cycle has a rise and fall of its own
 *     end   /         \____
 *           0  warmup     steps
 *
 * and those of DeepSpeed, by its formulas.
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

/* ------------------------------------------------------------------------------- of DeepSpeed */

/* How far a warm-up of n steps is: 0 to 1. */
static double zfi_warmup_share(const zf_schedule *s, double t, double n)
{
    return s->logarithmic ? 1 / log(n) * log(t + 1) : t / n;
}

static double zfi_warmup_lr(const zf_schedule *s, double peak, double t)
{
    const double n = s->warmup > 2 ? (double)s->warmup : 2, total = (double)s->steps;
    double share = 1;
    if (t < 0) return s->start;
    if (t < n) share = zfi_warmup_share(s, t, n);
    else if (s->kind == ZF_WARMUP_DECAY_LR) share = (total - t) / fmax(1, total - n);
    return s->start + (peak - s->start) * fmax(share, 0);
}

static double zfi_warmup_cosine_lr(const zf_schedule *s, double peak, double t)
{
    const double pi = 3.14159265358979323846, n = s->warmup > 2 ? (double)s->warmup : 2;
    double way;
    if (t < 0) return 0;
    if (t < n) return peak * (s->start + zfi_warmup_share(s, t, n) * (1 - s->start));
    way = fmin(1, (t - n + 1) / fmax(1, (double)s->steps - n));
    return peak * fmax(0, s->end + (1 - s->end) * ((1 + cos(pi * way)) / 2));
}

static double zfi_cycle_lr(const zf_schedule *s, double peak, double t)
{
    const double rise = s->warmup > 0 ? (double)s->warmup : 1;
    const double total = rise + (s->fall > 0 ? (double)s->fall : rise), turn = rise / total;
    const double rounds = 1 + (t + 1) / total, way = rounds - floor(rounds);
    const double rate = zfi_or(s->rate, 0);
    if (t < total)
        return s->start + (peak - s->start) * (way <= turn ? way / turn : (way - 1) / (turn - 1));
    if (s->every <= 0 || rate == 0) return s->start;
    return s->start / (1 + rate * ((t - total + 1) / (double)s->every));
}

static double zfi_range_test_lr(const zf_schedule *s, double peak, double t)
{
    const double way = (t + 1) / (s->every > 0 ? (double)s->every : 2000);
    return peak * (1 + zfi_schedule_or(s->rate, 1) * (s->stairs ? floor(way) : way));
}

/* Of the kinds from ZF_WARMUP_LR on. */
static double zfi_deepspeed_lr(const zf_schedule *s, double peak, double t)
{
    switch (s->kind) {
    case ZF_WARMUP_COSINE_LR: return zfi_warmup_cosine_lr(s, peak, t);
    case ZF_CYCLE_LR: return zfi_cycle_lr(s, peak, t);
    case ZF_RANGE_TEST_LR: return zfi_range_test_lr(s, peak, t);
    default: return zfi_warmup_lr(s, peak, t);
    }
}

ZF_API double zf_schedule_at(const zf_schedule *s, int64_t step)
{
    const double pi = 3.14159265358979323846;
    double peak, end, after, way;
    if (!s) return 0;
    peak = zfi_or(s->peak, 0), end = s->end;
    after = (double)step - (double)s->warmup;
    if (s->kind >= ZF_WARMUP_LR && s->kind <= ZF_RANGE_TEST_LR)
        return zfi_deepspeed_lr(s, peak, (double)step - 2);
    if (s->kind == ZF_ONE_CYCLE) { /* Smith & Topin 2018, with cosine flanks */
        double top = s->warmup ? (double)s->warmup : 0.3 * (double)s->steps, start = peak / 25;
        if (top < 0) top = 0;
        if ((double)step < top)
            return start + (peak - start) * (1 - cos(pi * zfi_fraction((double)step, top))) / 2;
        way = zfi_fraction((double)step - top, (double)s->steps - top);
        return end + (peak - end) * (1 + cos(pi * way)) / 2;
    }
    if (step < s->warmup && s->logarithmic)
        return step < 1 ? 0 : peak * log((double)step) / log((double)s->warmup);
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
                                                 "polynomial", "exponential", "one_cycle",
                                                 "warmup_lr", "warmup_decay_lr",
                                                 "warmup_cosine_lr", "cycle_lr", "range_test_lr"};

ZF_API const char *zf_schedule_name(zf_schedule_kind kind)
{
    return (unsigned)kind < (unsigned)ZFI_COUNT(zfi_schedule_names) ? zfi_schedule_names[kind]
                                                                    : NULL;
}
