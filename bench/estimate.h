/* The time of a session's step by rates that are measured now. */
#ifndef BENCH_ESTIMATE_H
#define BENCH_ESTIMATE_H

#include "../examples/frame/model/session.h"

#include <stdio.h>

static inline bool bench_estimate(session *s, const char *folder, zf_estimate *e, zf_error *error)
{
    zf_cost cost;
    if (zf_calibrate(&(zf_calibrate_desc){.backend = s->backend, .host = s->host,
                                          .offload_dir = folder},
                     &cost, error))
        return false;
    if (zf_graph_estimate(s->graph, &cost, e))
        return snprintf(error->text, sizeof error->text, "%s", zf_graph_error(s->graph)), false;
    printf("%.1f GFLOP/s, of 16 bits %.1f; values of 16 bits %.2f G/s, functions %.2f G/s; GB/s: "
           "memory %.1f, updates %.1f, download %.1f, upload %.1f, read %.2f, write %.2f\n",
           1e-9 * cost.device.flops_per_s, 1e-9 * cost.device.half_flops_per_s,
           1e-9 * cost.device.half_values_per_s, 1e-9 * cost.device.functions_per_s,
           1e-9 * cost.device.bytes_per_s, 1e-9 * cost.host.bytes_per_s,
           1e-9 * cost.download.bytes_per_s, 1e-9 * cost.upload.bytes_per_s,
           1e-9 * cost.read.bytes_per_s, 1e-9 * cost.write.bytes_per_s);
    return true;
}

static inline void bench_print_estimate(const zf_estimate *e, double seconds)
{
    printf("estimated %.2f ms, %.3f of the time measured; ms busy (exposed):", 1e3 * e->seconds,
           e->seconds / seconds);
    for (int k = 0; k < ZF_RESOURCES; k++)
        if (e->busy[k] > 0)
            printf(" %s %.1f (%.1f)", zf_resource_name((zf_resource)k), 1e3 * e->busy[k],
                   1e3 * e->exposed[k]);
    puts("");
}

#endif
