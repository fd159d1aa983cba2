/* The stages of a pipeline as a table, and their schedule as a picture. */
#include "plan.h"
#include "../../examples/frame/plan/human.h"

#include <stdlib.h>

enum { PICTURE_WIDTH = 100 }; /* characters of a schedule that is drawn without being asked for */

static void print_stages(const stages_plan *p)
{
    printf("%-6s%7s%12s%12s%12s%12s%4s%12s%12s\n", "stage", "layers", "parameters", "gradients",
           "optimizer", "kept", "x", "peak", "seconds");
    for (int64_t k = 0; k < p->count; k++) {
        const stage_plan *s = &p->stages[k];
        char parameters[32], gradients[32], optimizer[32], kept[32], peak[32];
        printf("%-6lld%7d%12s%12s%12s%12s%4lld%12s%12.4g\n", (long long)k, (int)s->layers,
               human(parameters, (double)s->plan.most[ZF_PARAMETERS]),
               human(gradients, (double)s->plan.most[ZF_GRADIENTS]),
               human(optimizer, (double)s->plan.most[ZF_OPTIMIZER]), human(kept, (double)s->kept),
               (long long)s->slots, human(peak, (double)s->peak), s->estimate.seconds);
    }
}

/* The bytes that a rank of each stage sends in a step. */
static void print_sent(const stages_plan *p)
{
    printf("\n%-6s", "sent");
    for (int a = 0; a < PLAN_AXES; a++) printf("%14s", plan_axis_name((plan_axis)a));
    printf("\n");
    for (int64_t k = 0; k < p->count; k++) {
        char text[32];
        printf("%-6lld", (long long)k);
        for (int a = 0; a < PLAN_AXES; a++)
            printf("%14s", human(text, (double)plan_sent(&p->stages[k].plan, (plan_axis)a)));
        printf("\n");
    }
}

/* The schedule, unless it is wide and not asked for. */
static void print_picture(const options *o)
{
    const size_t length = zf_pipe_picture(&o->schedule, NULL, 0, NULL);
    char *text = malloc(length + 1);
    if (text && (o->picture || length / (size_t)o->pipe <= PICTURE_WIDTH)) {
        zf_pipe_picture(&o->schedule, text, length + 1, NULL);
        printf("\n%s", text);
    }
    free(text);
}

void plan_print_stages(const options *o, const stages_plan *p)
{
    const double share = 100 * p->idle / (1 + p->idle);
    char bytes[32];
    plan_print_head(o), plan_print_ranks(o);
    print_stages(p);
    print_sent(p);
    print_picture(o);
    printf("\n%s: a rank is idle %.1f%% of a step; the step takes %.4g s, by stage %lld, the "
           "slowest, and %s\n",
           zf_pipe_kind_name(o->schedule.kind), share, p->seconds, (long long)p->slowest,
           o->cost_file ? o->cost_file : "the default cost table (--cost FILE)");
    printf("planned in %.1f ms and %s\n", p->plan_ms, human(bytes, (double)p->plan_peak_bytes));
}
