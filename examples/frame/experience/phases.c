#include "phases.h"
#include "../run/run.h"

static const char *const names[PHASES] = {"gather", "prompt", "decode", "score",
                                          "reward", "train",  "other"};

void phases_begin(phases *p)
{
    *p = (phases){.began = run_now(), .now = PHASE_OTHER, .some = true};
    p->since = p->began;
}

void phases_enter(phases *p, phase next)
{
    const double now = run_now();
    p->seconds[p->now] += now - p->since;
    p->since = now, p->now = next;
}

void phases_end(phases *p) { phases_enter(p, PHASE_OTHER); }

void phases_give(phases *p, phase to, double seconds)
{
    p->seconds[to] += seconds;
    p->seconds[p->now] -= seconds;
}

void phases_count(phases *p, int64_t tokens, const zf_program *program, int64_t steps)
{
    const zf_traffic t = zf_program_info_of(program).counted;
    const zf_moved *const all[] = {&t.all_gather, &t.reduce_scatter, &t.all_reduce, &t.all_to_all,
                                   &t.bcast,      &t.download,       &t.upload,     &t.read,
                                   &t.write};
    p->tokens[p->now] += tokens;
    for (size_t k = 0; k < sizeof all / sizeof *all && steps > 0; k++)
        p->moved[p->now] += (size_t)steps * all[k]->bytes;
}

void phases_sum(phases *p, int64_t count, int32_t world)
{
    p->moved[p->now] += 8 * (size_t)(world - 1) * (size_t)((count + world - 1) / world);
}

void phases_gather(phases *p, int64_t count, int32_t world)
{
    p->moved[p->now] += 4 * (size_t)(world - 1) * (size_t)count;
}

void phases_text(const phases *p, char *text, size_t size)
{
    const double all = p->since - p->began;
    int at = snprintf(text, size, "%.3g s:", all);
    for (int k = 0; k < PHASES && at > 0 && (size_t)at < size; k++) {
        at += snprintf(text + at, size - (size_t)at, "%s %s %.3g s %.0f%%", k ? "," : "", names[k],
                       p->seconds[k], all > 0 ? 100 * p->seconds[k] / all : 0);
        if (p->tokens[k] && p->seconds[k] > 0 && (size_t)at < size)
            at += snprintf(text + at, size - (size_t)at, " %.0f tokens/s",
                           (double)p->tokens[k] / p->seconds[k]);
        if (p->moved[k] && (size_t)at < size)
            at += snprintf(text + at, size - (size_t)at, " %.3g MiB",
                           (double)p->moved[k] / (1 << 20));
    }
}
