/* The time of a step by operator: wraps a backend's launch with a clock, and computes the minimum
 * time of each launch, from the bytes that it must move or the FLOPs that it must compute,
 * whichever takes longer. Waits for other queues are timed by queue. On CUDA the clock is the
 * device's, between events before and after a launch's work on its stream; the step then runs
 * launch by launch, not as a graph. */
#ifndef PROFILE_H
#define PROFILE_H

#include "bench.h"

#ifdef WITH_HIP
#include "../cuda/hip/names.h"
#elif defined WITH_CUDA
#include <cuda_runtime_api.h>
#endif
#ifdef WITH_CUDA

enum { PROFILE_MARKS = 16384 }; /* launches of a step */

typedef struct profile_mark {
    cudaEvent_t begin, end;
    zf_op op;
} profile_mark;
#endif

enum { PROFILE_QUEUES = 8 };

typedef struct bench_profile {
    double seconds[ZF_OP_COUNT], flops[ZF_OP_COUNT], bytes[ZF_OP_COUNT], floor[ZF_OP_COUNT];
    int64_t launches[ZF_OP_COUNT];
    double flops_per_s, bytes_per_s; /* the roof */
    zf_status (*launch)(void *self, const zf_launch *launch);
    zf_status (*wait)(void *self, const zf_launch *launch);
    double waited[PROFILE_QUEUES]; /* by the queue that was waited for */
#ifdef WITH_CUDA
    const zf_backend *cuda; /* NULL: it is the CPU's */
    profile_mark marks[PROFILE_MARKS];
    int made, used;
#endif
} bench_profile;

static bench_profile profiled; /* a launch has nothing to carry it */

/* The group under which the launch is counted. */
static inline void profile_add(const zf_launch *launch)
{
    double flops = zf_launch_flops(launch), bytes = zf_launch_bytes(launch);
    double by_flops = flops / profiled.flops_per_s, by_bytes = bytes / profiled.bytes_per_s;
    zf_op op = launch->op;
    profiled.flops[op] += flops;
    profiled.bytes[op] += bytes;
    profiled.floor[op] += by_flops > by_bytes ? by_flops : by_bytes;
    profiled.launches[op]++;
}

static inline zf_status profile_launch(void *self, const zf_launch *launch)
{
    double start = bench_now();
    zf_status status = profiled.launch(self, launch);
    profiled.seconds[launch->op] += bench_now() - start;
    profile_add(launch);
    return status;
}

static inline zf_status profile_wait(void *self, const zf_launch *launch)
{
    double start = bench_now();
    zf_status status = profiled.wait(self, launch);
    profiled.waited[launch->queue % PROFILE_QUEUES] += bench_now() - start;
    return status;
}

#ifdef WITH_CUDA

/* The next pair of events, or NULL. */
static inline profile_mark *profile_next(void)
{
    profile_mark *m = &profiled.marks[profiled.used];
    if (!profiled.cuda || profiled.used == PROFILE_MARKS) return NULL;
    if (profiled.used < profiled.made) return m;
    if (cudaEventCreate(&m->begin) || cudaEventCreate(&m->end)) return NULL;
    profiled.made++;
    return m;
}

static inline zf_status profile_events(void *self, const zf_launch *launch)
{
    profile_mark *m = profile_next();
    cudaStream_t stream = (cudaStream_t)zf_cuda_stream(profiled.cuda, launch->queue);
    zf_status status;
    if (m) cudaEventRecord(m->begin, stream);
    status = profiled.launch(self, launch);
    if (!m) return status;
    cudaEventRecord(m->end, stream);
    m->op = launch->op;
    profiled.used++;
    profile_add(launch);
    return status;
}

#endif

/* The roof is of that many GFLOP/s and GB/s; where they are 0, of what zf_calibrate measures. */
static inline void profile_begin(zf_backend *backend, double gflops, double gbytes)
{
    zf_cost cost = zf_cost_default();
    if (gflops == 0 || gbytes == 0)
        zf_calibrate(&(zf_calibrate_desc){.backend = backend}, &cost, NULL);
    profiled.flops_per_s = gflops == 0 ? cost.device.flops_per_s : 1e9 * gflops;
    profiled.bytes_per_s = gbytes == 0 ? cost.device.bytes_per_s : 1e9 * gbytes;
    profiled.launch = backend->launch, profiled.wait = backend->wait;
    backend->launch = profile_launch;
    if (backend->wait) backend->wait = profile_wait;
    backend->run = NULL;
#ifdef WITH_CUDA
    if (!strcmp(backend->name, "cpu")) return;
    profiled.cuda = backend;
    backend->launch = profile_events;
#endif
}

/* After every step, when the device is done with it. */
static inline void profile_step(void)
{
#ifdef WITH_CUDA
    for (int i = 0; i < profiled.used; i++) {
        const profile_mark *m = &profiled.marks[i];
        float ms = 0;
        if (!cudaEventElapsedTime(&ms, m->begin, m->end)) profiled.seconds[m->op] += 1e-3 * ms;
    }
    profiled.used = 0;
#endif
}

/* Bytes of the GPU that are in use, by all that runs there; 0 on the CPU. */
static inline double profile_device_bytes(const zf_backend *backend)
{
#ifdef WITH_CUDA
    size_t left, all;
    if (strcmp(backend->name, "cpu") && !cudaMemGetInfo(&left, &all)) return (double)(all - left);
#else
    (void)backend;
#endif
    return 0;
}

/* Forgets what has been counted. */
static inline void profile_reset(void)
{
    for (int op = 0; op < ZF_OP_COUNT; op++) {
        profiled.seconds[op] = profiled.flops[op] = profiled.bytes[op] = profiled.floor[op] = 0;
        profiled.launches[op] = 0;
    }
    for (int q = 0; q < PROFILE_QUEUES; q++) profiled.waited[q] = 0;
}

/* A line for each operator that takes a thousandth or more, the slowest first. */
static inline void profile_print(int64_t steps)
{
    static const char *const queues[PROFILE_QUEUES] = {"",       "gather", "reduce", "download",
                                                       "upload", "read",   "write",  "other"};
    bool printed[ZF_OP_COUNT] = {false};
    double total = 0, floor = 0, each = 1 / (double)steps;
    for (int op = 0; op < ZF_OP_COUNT; op++)
        total += profiled.seconds[op], floor += profiled.floor[op];
    printf("the roof: %.0f GFLOP/s, %.1f GB/s\n%-20s %8s %5s %8s %8s %8s %8s %8s %6s\n",
           1e-9 * profiled.flops_per_s, 1e-9 * profiled.bytes_per_s, "operator", "launches", "%",
           "ms", "GFLOP/s", "GB/s", "MB", "floor ms", "reach");
    for (;;) {
        int most = -1;
        for (int op = 0; op < ZF_OP_COUNT; op++)
            if (!printed[op] && (most < 0 || profiled.seconds[op] > profiled.seconds[most]))
                most = op;
        if (most < 0 || profiled.seconds[most] <= 0.001 * total) break;
        printed[most] = true;
        printf("%-20s %8lld %5.1f %8.3f %8.1f %8.1f %8.1f %8.3f %6.2f\n", zf_op_name((zf_op)most),
               (long long)(profiled.launches[most] / steps), 100 * profiled.seconds[most] / total,
               1e3 * profiled.seconds[most] * each,
               1e-9 * profiled.flops[most] / profiled.seconds[most],
               1e-9 * profiled.bytes[most] / profiled.seconds[most],
               1e-6 * profiled.bytes[most] * each, 1e3 * profiled.floor[most] * each,
               profiled.floor[most] / profiled.seconds[most]);
    }
    for (int q = 1; q < PROFILE_QUEUES; q++)
        if (profiled.waited[q] > 0)
            printf("wait for %-11s %8s %5s %8.3f\n", queues[q], "", "",
                   1e3 * profiled.waited[q] * each);
    printf("%-20s %8s %5s %8.3f %8s %8s %8s %8.3f %6.2f\n", "all", "", "", 1e3 * total * each, "",
           "", "", 1e3 * floor * each, floor / total);
}

/* The members "ms" and "floor_ms" (by operator) and "bytes" (by kind, the most of each) of a JSON
 * object. */
static inline void profile_print_members(const zf_plan *plan, int64_t steps)
{
    printf(", \"ms\": {");
    for (int op = 0, n = 0; op < ZF_OP_COUNT; op++)
        if (profiled.seconds[op] > 0)
            printf("%s\"%s\": %.4f", n++ ? ", " : "", zf_op_name((zf_op)op),
                   1e3 * profiled.seconds[op] / (double)steps);
    printf("}, \"floor_ms\": {");
    for (int op = 0, n = 0; op < ZF_OP_COUNT; op++)
        if (profiled.seconds[op] > 0)
            printf("%s\"%s\": %.4f", n++ ? ", " : "", zf_op_name((zf_op)op),
                   1e3 * profiled.floor[op] / (double)steps);
    printf("}, \"bytes\": {");
    for (int kind = 0; kind < ZF_KINDS; kind++)
        printf("%s\"%s\": %zu", kind ? ", " : "", zf_kind_name((zf_kind)kind), plan->most[kind]);
    printf("}");
}

#endif
