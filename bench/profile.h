/* Where the time of a step goes: a backend's launch with a clock around it, by operator. */
#ifndef PROFILE_H
#define PROFILE_H

#include "bench.h"

typedef struct bench_profile {
    double seconds[ZF_OP_COUNT];
    zf_status (*launch)(void *self, const zf_launch *launch);
} bench_profile;

static bench_profile profiled; /* a launch has nothing to carry it */

static inline zf_status profile_launch(void *self, const zf_launch *launch)
{
    double start = bench_now();
    zf_status status = profiled.launch(self, launch);
    profiled.seconds[launch->op] += bench_now() - start;
    return status;
}

static inline void profile_begin(zf_backend *backend)
{
    profiled.launch = backend->launch;
    backend->launch = profile_launch;
}

/* Forgets what has been counted. */
static inline void profile_reset(void) { memset(profiled.seconds, 0, sizeof profiled.seconds); }

static inline const char *profile_op_name(int op)
{
    static const char *const names[] = {"none",
#define X(name, least, most, attributes, flags) #name,
                                        ZF_OPS(X)
#undef X
    };
    return names[op];
}

/* A line for each operator that takes a thousandth or more, the slowest first. */
static inline void profile_print(int64_t steps)
{
    bool told[ZF_OP_COUNT] = {false};
    double total = 0;
    for (int op = 0; op < ZF_OP_COUNT; op++) total += profiled.seconds[op];
    for (;;) {
        int most = -1;
        for (int op = 0; op < ZF_OP_COUNT; op++)
            if (!told[op] && (most < 0 || profiled.seconds[op] > profiled.seconds[most])) most = op;
        if (most < 0 || profiled.seconds[most] <= 0.001 * total) break;
        told[most] = true;
        printf("%-20s %8.3f ms %5.1f%%\n", profile_op_name(most),
               1e3 * profiled.seconds[most] / (double)steps, 100 * profiled.seconds[most] / total);
    }
}

/* The members "ms" (by operator) and "bytes" (by kind, the most of each) of a JSON object. */
static inline void profile_print_members(const zf_plan *plan, int64_t steps)
{
    printf(", \"ms\": {");
    for (int op = 0, n = 0; op < ZF_OP_COUNT; op++)
        if (profiled.seconds[op] > 0)
            printf("%s\"%s\": %.4f", n++ ? ", " : "", profile_op_name(op),
                   1e3 * profiled.seconds[op] / (double)steps);
    printf("}, \"bytes\": {");
    for (int kind = 0; kind < ZF_KINDS; kind++)
        printf("%s\"%s\": %zu", kind ? ", " : "", zf_kind_name((zf_kind)kind), plan->most[kind]);
    printf("}");
}

#endif
