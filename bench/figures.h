/* What every benchmark has: a clock and medians. */
#ifndef FIGURES_H
#define FIGURES_H

#include <stdint.h>
#include <stdlib.h>
#include <time.h>

static inline double bench_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline int bench_by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts them. */
static inline double bench_median(double *values, int64_t count)
{
    qsort(values, (size_t)count, sizeof *values, bench_by_value);
    return count ? values[count / 2] : 0;
}

#endif
