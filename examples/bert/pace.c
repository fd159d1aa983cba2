/* How many steps fit into a time on this machine: a step is measured for a second, on a session of
 * its own that is then thrown away. */
#define _POSIX_C_SOURCE 200809L
#include "run.h"

#include <time.h>

enum { LEAST_STEPS = 200 };

int64_t bert_steps_within(double seconds, double step_seconds, int64_t most)
{
    int64_t least = most < LEAST_STEPS ? most : LEAST_STEPS;
    double fit = seconds / step_seconds;
    return fit < (double)least ? least : fit < (double)most ? (int64_t)fit : most;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Seconds of a step, the mean over about a second of steps after a first one. */
static zf_status measure(bert_session *s, const bert_batch *batch, double *seconds)
{
    const float rate = 0;
    zf_status status = zf_write(s->program, s->model.lr, &rate, sizeof rate);
    double start = 0, spent = 0;
    int steps = -1;
    while (!status && (steps < 1 || spent < 1)) {
        status = bert_session_feed_parts(s, batch, batch->labelled, batch->examples);
        if (!status) status = zf_step(s->program);
        if (!status) (void)bert_session_scalar(s, s->model.loss); /* waits for a device */
        if (++steps == 0) start = now();
        spent = now() - start;
    }
    *seconds = spent / (steps > 0 ? steps : 1);
    return status;
}

bool bert_job_pace(bert_job *job, zf_error *error)
{
    bert_settings *o = &job->o;
    bert_session_desc d = bert_job_session(job);
    bert_session s;
    bert_batch *batch;
    zf_status status = ZF_ERR_NOMEM;
    double step = 0, flops = 0;
    int64_t most;
    const char *why;
    if (!bert_session_open(&s, &d, error)) return false;
    batch = bert_batch_new(job->text.train, (int32_t)o->batch, error->text, sizeof error->text);
    if (batch) {
        bert_batch_fill(batch, job->text.train, 0);
        status = measure(&s, batch, &step);
        if (status) snprintf(error->text, sizeof error->text, "%s", zf_program_error(s.program));
        flops = zf_program_info_of(s.program).flops;
    }
    error->status = status;
    bert_batch_free(batch);
    bert_session_close(&s);
    if (status) return false;
    most = o->steps;
    o->steps = bert_steps_within(o->seconds, step, most);
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
