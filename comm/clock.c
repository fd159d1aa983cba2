/* The clock of all that waits for other ranks: monotonic, where there is such a clock.
 * Communicators that are compiled on their own include this file as well. */
#ifndef ZFI_CLOCK
#define ZFI_CLOCK

#include <math.h>
#include <pthread.h>
#include <time.h>

#if defined(__linux__) && !defined(CLOCK_MONOTONIC)
/* Hidden by strict C11. */
#define CLOCK_MONOTONIC 1
int clock_gettime(int, struct timespec *);
int pthread_condattr_setclock(pthread_condattr_t *, int);
#endif

/* The time in `seconds`. */
static struct timespec zfi_time_in(double seconds)
{
    const double longest = 1e8; /* three years: no overflow of a time */
    struct timespec t;
    int64_t nanoseconds;
#if defined(CLOCK_MONOTONIC)
    clock_gettime(CLOCK_MONOTONIC, &t);
#else
    timespec_get(&t, TIME_UTC);
#endif
    if (seconds > longest) seconds = longest;
    nanoseconds = (int64_t)((seconds - floor(seconds)) * 1e9) + t.tv_nsec;
    t.tv_sec += (time_t)floor(seconds) + (time_t)(nanoseconds / 1000000000);
    t.tv_nsec = (long)(nanoseconds % 1000000000);
    return t;
}

/* In seconds. */
static double zfi_now(void)
{
    struct timespec t = zfi_time_in(0);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A condition whose timed waits end at a time of this clock. */
ZFI_UNUSED static void zfi_condition_init(pthread_cond_t *condition)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
#if defined(CLOCK_MONOTONIC)
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
#endif
    pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
}

#endif
