/* The time of a session's step by rates that are measured now. */
#ifndef FORETELL_H
#define FORETELL_H

#include "../examples/frame/model/session.h"

#include <stdio.h>

/* Sets an option of the passes by its flag; text NULL: nothing. The desc may point to the copy that
 * this makes of the text: at most four texts, each below 512 bytes. */
static inline bool bench_set(zf_training *t, const char *flag, const char *text, zf_error *error)
{
    static char copies[4][512];
    static int used;
    const zf_options table = {.rows = zf_training_options(), .desc = t};
    if (!text) return true;
    snprintf(copies[used % 4], sizeof copies[0], "%s", text);
    return !zf_options_set(&table, 1, flag, copies[used++ % 4], error);
}

static inline bool foretell(session *s, const char *folder, zf_estimate *e, zf_error *error)
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

static inline void print_foretold(const zf_estimate *e, double seconds)
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
