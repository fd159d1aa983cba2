/* The steps of a run, its live line, its log, and the signals that end it. */
#define _POSIX_C_SOURCE 200809L
#include "../options/fail.h"
#include "interrupt.h"
#include "run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

double run_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double run_peak_mib(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_maxrss / 1024;
}

/* ------------------------------------------------------------------------------------ steps */

static zf_program *turn(void *user, int64_t done, zf_tensor *lr)
{
    run *r = user;
    const run_job *job = r->job;
    session_turn(&r->session, done);
    *lr = r->session.lr;
    if (job->phases.count) { /* the rate of this step */
        const zf_schedule whole = settings_schedule(&job->o);
        r->train->schedule = (zf_schedule){.kind = ZF_CONSTANT,
                                           .peak = shape_phases_rate(&job->phases, &whole, done)};
    }
    r->measure = run_before_step(r, done);
    return r->session.program;
}

/* The reader of the step that follows `done` steps. */
static bool open_reader(run *r, int64_t done)
{
    const run_job *job = r->job;
    const objective *of = job->sample->objective;
    const shape_phase *now = shape_phases_at(&job->phases, done);
    if (r->reader && now == r->phase) return true;
    if (r->reader && of->waits) r->waits += of->waits(r->reader);
    of->stop(r->reader);
    r->phase = now;
    r->reader =
        now ? of->start_phase(&job->data, now, done - now->first, &r->error)
            : of->start(&job->data, false, job->shape.batch * run_parts(job), done, &r->error);
    return r->reader != NULL;
}

static zf_status feed(void *user, zf_program *program, int64_t step)
{
    run *r = user;
    const objective *of = r->job->sample->objective;
    if (r->measure) return r->measure; /* the program has the error */
    (void)program;
    if (!open_reader(r, step)) return r->error.status;
    if (of->prepare && !of->prepare(&r->session, r->reader, step, &r->error))
        return r->error.status;
    r->batch = of->read(r->reader, step - (r->phase ? r->phase->first : 0));
    return session_feed(&r->session, r->batch, false);
}

/* Whether a signal has reached any rank; all ranks learn it after the same step. */
static bool hears(run *r)
{
    int64_t heard = interrupt_came();
    if (ranks_sum(r->comm, &heard, &r->error)) return true;
    r->interrupted = heard > 0;
    return r->interrupted;
}

bool run_scaled(const run *r) { return r->job->o.training.precision.dtype == ZF_F16; }

double run_number(run *r, const char *name)
{
    const objective *of = r->job->sample->objective;
    double number;
    if (of->number && of->number(r->reader, name, &number)) return number;
    return session_scalar(&r->session, name);
}

static bool report(void *user, zf_program *program, int64_t done, double lr)
{
    run *r = user;
    const settings *o = &r->job->o;
    session *s = &r->session;
    const objective *of = r->job->sample->objective;
    const int64_t before = run_tokens_until(r->job, done - 1);
    double tokens = (double)(run_tokens_until(r->job, done) - before), t = run_now();
    step_log_row row = {.step = done,
                        .lr = lr,
                        .grad_norm = session_scalar(s, "grad_norm"),
                        .tokens_per_s = tokens / (t - r->last_step)};
    for (int k = 0; k < SAMPLE_LOSSES && of->losses[k]; k++)
        row.losses[k] = run_number(r, of->losses[k]);
    run_take_experts(r, done - 1);
    if (r->leads && !run_put_step(r, &row)) return false;
    if (!run_after_step(r, done)) return false;
    if (!isfinite(row.losses[0]) || !(isfinite(row.grad_norm) || run_scaled(r)))
        return fail(&r->error, ZF_ERR_NAN,
                    "step %lld: loss %g, gradient norm %g; " TRAINING_DIVERGED, (long long)done,
                    row.losses[0], row.grad_norm);
    if (r->leads && done == r->first_step + 2)
        training_tell_grace(&r->job->report, t - r->last_step);
    r->last_step = t;
    if (hears(r)) return false;
    if (r->comm && o->compare_every && done % o->compare_every == 0) {
        zf_status status = zf_compare_ranks(program);
        if (status) return fail(&r->error, status, "%s", zf_program_error(program));
        r->last_step = run_now();
    }
    if (o->eval_every && done % o->eval_every == 0) {
        if (!run_judge(r)) return false;
        r->last_step = run_now(); /* the time of the next step begins here */
    }
    if (!o->save || !o->save_every || done % o->save_every || done == o->steps) return true;
    if (!run_save(r)) return false;
    r->last_step = run_now();
    return true;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double run_speed(const run *r)
{
    double *speeds = malloc((size_t)(r->log.count + 1) * sizeof *speeds), median = 0;
    int64_t count = 0;
    for (int64_t i = 0; i < r->log.count && speeds; i++)
        if (r->log.rows[i].step > r->first_step) speeds[count++] = r->log.rows[i].tokens_per_s;
    if (count) {
        qsort(speeds, (size_t)count, sizeof *speeds, by_value);
        median = speeds[count / 2];
    }
    free(speeds);
    return median;
}

/* The program's error names the rank: "rank 2: step 5: the output ..." */
static bool fail_by_loss(run *r)
{
    const char *text = zf_program_error(r->session.program);
    char rank[16] = "";
    int number;
    if (sscanf(text, "rank %d: ", &number) == 1) snprintf(rank, sizeof rank, "rank %d: ", number);
    return fail(&r->error, ZF_ERR_NAN,
                "%sstep %lld: the loss is not a finite number; " TRAINING_DIVERGED, rank,
                (long long)zf_program_step(r->session.program) + 1);
}

bool run_train(run *r)
{
    const settings *o = &r->job->o;
    session *s = &r->session;
    const objective *of = r->job->sample->objective;
    zf_nn_train_desc d = {.program = s->program,
                          .steps = o->steps,
                          .lr = s->lr,
                          .user = r,
                          .turn = turn,
                          .feed = feed,
                          .report = report,
                          .schedule = settings_schedule(o)};
    zf_status status;
    interrupt_catch(r->job->ranks.launcher != NULL);
    r->first_step = zf_program_step(s->program);
    r->train = &d;
    if (!open_reader(r, r->first_step)) return false;
    if (r->leads && !step_log_open(&r->log, o->log, r->job->sample->program, of->losses,
                                   r->first_step, &r->error))
        return false;
    if (r->leads && !run_open_live(r)) return false;
    r->last_step = run_now();
    status = zf_nn_train(&d);
    r->train = NULL;
    zf_metrics_close(&r->live, NULL);
    if (!status && !r->error.status && !r->interrupted && of->finish)
        return of->finish(s, r->reader, &r->error);
    if (!status || r->error.status) return !r->error.status;
    if (status == ZF_ERR_NAN && !run_scaled(r)) return fail_by_loss(r);
    return fail(&r->error, status, "%s", zf_program_error(s->program));
}
