/* How many steps fit into a time on this machine. Steps are measured for a second, on a session of
 * their own. */
#include "../options/fail.h"
#include "run.h"

enum { LEAST_STEPS = 200 };

int64_t run_steps_within(double seconds, double step_seconds, int64_t most)
{
    int64_t least = most < LEAST_STEPS ? most : LEAST_STEPS;
    double fit = seconds / step_seconds;
    return fit < (double)least ? least : fit < (double)most ? (int64_t)fit : most;
}

/* Seconds of a step: the mean over about a second of steps, after a first one. */
static zf_status measure(session *s, const void *batch, double *seconds)
{
    const float rate = 0;
    zf_status status = zf_write(s->program, s->lr, &rate, sizeof rate);
    double start = 0, spent = 0;
    int steps = -1;
    while (!status && (steps < 1 || spent < 1)) {
        status = session_feed(s, batch, false);
        if (!status) status = zf_step(s->program);
        if (!status) (void)session_scalar(s, "loss"); /* waits for a device */
        if (++steps == 0) start = run_now();
        spent = run_now() - start;
    }
    *seconds = spent / (steps > 0 ? steps : 1);
    return status;
}

bool run_pace(run_job *job, zf_error *error)
{
    settings *o = &job->o;
    const objective *of = job->sample->objective;
    session_desc d = run_session(job);
    session s;
    void *reader;
    zf_status status;
    double step = 0, flops;
    int64_t most;
    const char *why;
    if (!session_open(&s, &d, error)) return false;
    if ((reader = of->start(&job->data, false, o->batch, 0, error))) {
        status = measure(&s, of->read(reader, 0), &step);
        if (status) fail(error, status, "%s", zf_program_error(s.program));
    }
    flops = zf_program_info_of(s.program).flops;
    of->stop(reader);
    session_close(&s);
    if (error->status) return false;
    most = o->steps;
    o->steps = run_steps_within(o->seconds, step, most);
    why = o->steps == most                  ? "all --steps"
          : step * LEAST_STEPS < o->seconds ? "what fits into --seconds"
                                            : "the least with --seconds";
    printf("a step of %.3g GFLOP takes %.3g s on this machine (%.3g GFLOP/s): %lld steps, about "
           "%.0f s (%s)\n",
           1e-9 * flops, step, 1e-9 * flops / step, (long long)o->steps, step * (double)o->steps,
           why);
    fflush(stdout);
    return true;
}
