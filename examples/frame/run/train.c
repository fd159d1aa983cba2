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

/* -------------------------------------------------------------------------------- live line */

static void clock_text(char *text, size_t size, double seconds)
{
    long s = seconds > 0 && seconds < 1e8 ? (long)(seconds + 0.5) : 0;
    if (s >= 3600) snprintf(text, size, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
    else snprintf(text, size, "%ld:%02ld", s / 60, s % 60);
}

static void show(run *r, int64_t done)
{
    const settings *o = &r->job->o;
    const objective *of = r->job->sample->objective;
    const char *hits = of->hits.name;
    char eta[32], share[100] = "", also[40] = "";
    int64_t skipped = session_skipped(&r->session);
    double n = (double)(r->shown_steps ? r->shown_steps : 1), t = run_now(), spent = t - r->started;
    double tokens = n * (double)run_tokens(r->job);
    int64_t here = done - r->first_step;
    clock_text(eta, sizeof eta, here ? spent / (double)here * (double)(o->steps - done) : 0);
    if (skipped) snprintf(also, sizeof also, "  %lld skipped", (long long)skipped);
    if (hits)
        snprintf(share, sizeof share, "  %s %.1f%%", hits,
                 100 * r->shown_hits / (r->shown_labelled > 0 ? r->shown_labelled : 1));
    if (of->also)
        snprintf(share + strlen(share), sizeof share - strlen(share), "  %s %.4f", of->also,
                 r->shown_also / n);
    printf("%sstep %lld/%lld  loss %.4f%s  %.0f tokens/s  %.0f MiB  ETA %s%s%s",
           r->terminal ? "\r\033[K" : "", (long long)done, (long long)o->steps, r->shown_loss / n,
           share, tokens / (t - r->last_line), run_peak_mib(), eta, also, r->terminal ? "" : "\n");
    interrupt_flush();
    r->shown_loss = r->shown_also = r->shown_hits = r->shown_labelled = 0;
    r->shown_steps = 0;
    r->last_line = t;
}

/* ------------------------------------------------------------------------------------ steps */

static zf_program *turn(void *user, int64_t done, zf_tensor *lr)
{
    run *r = user;
    session_turn(&r->session, done);
    *lr = r->session.lr;
    return r->session.program;
}

static zf_status feed(void *user, zf_program *program, int64_t step)
{
    run *r = user;
    const objective *of = r->job->sample->objective;
    (void)program;
    if (of->prepare && !of->prepare(&r->session, r->reader, step, &r->error))
        return r->error.status;
    r->batch = of->read(r->reader, step);
    return session_feed(&r->session, r->batch, false);
}

/* Whether a signal has reached any rank; all ranks learn it after the same step. */
static bool hear(run *r)
{
    int64_t heard = interrupt_came();
    if (ranks_sum(r->comm, &heard, &r->error)) return false;
    r->interrupted = heard > 0;
    return true;
}

/* Whether a signal ends the run here; one that came amid steps that belong together waits. */
static bool hears(run *r, int64_t done)
{
    const objective *of = r->job->sample->objective;
    if (!hear(r)) return true;
    if (of->whole && !of->whole(r->reader, done)) r->interrupted = false;
    return r->interrupted;
}

/* There is a loss scale, so a non-finite gradient means a skipped step. */
static bool scaled(const run *r) { return r->job->o.training.precision.dtype == ZF_F16; }

/* One of the objective's `losses`, after a step. */
static double number_of(run *r, const char *name)
{
    const objective *of = r->job->sample->objective;
    double number;
    if (of->number && of->number(r->reader, name, &number)) return number;
    return session_scalar(&r->session, name);
}

/* Adds a row to the log, and prints a line when it is time. */
static bool tell(run *r, const step_log_row *row, double t)
{
    const settings *o = &r->job->o;
    const objective *of = r->job->sample->objective;
    double loss = row->losses[0];
    if (!r->leads) return true;
    r->shown_loss += loss, r->shown_steps++;
    r->shown_labelled += (double)of->count(r->batch).labelled;
    if (of->also) r->shown_also += number_of(r, of->also);
    if (of->hits.name) r->shown_hits += session_scalar(&r->session, of->hits.output);
    if (!step_log_add(&r->log, row, &r->error)) return false;
    if (o->quiet || !isfinite(loss) || !(isfinite(row->grad_norm) || scaled(r))) return true;
    if (t - r->last_line > (r->terminal ? 0.5 : 10) || row->step == o->steps) show(r, row->step);
    return true;
}

static bool report(void *user, zf_program *program, int64_t done, double lr)
{
    run *r = user;
    const settings *o = &r->job->o;
    session *s = &r->session;
    const objective *of = r->job->sample->objective;
    double tokens = (double)run_tokens(r->job), t = run_now();
    step_log_row row = {.step = done,
                        .lr = lr,
                        .grad_norm = session_scalar(s, "grad_norm"),
                        .tokens_per_s = tokens / (t - r->last_step)};
    for (int k = 0; k < SAMPLE_LOSSES && of->losses[k]; k++)
        row.losses[k] = number_of(r, of->losses[k]);
    if (!tell(r, &row, t)) return false;
    if (!isfinite(row.losses[0]) || !(isfinite(row.grad_norm) || scaled(r)))
        return fail(&r->error, ZF_ERR_NAN,
                    "step %lld: loss %g, gradient norm %g; " TRAINING_DIVERGED, (long long)done,
                    row.losses[0], row.grad_norm);
    if (r->leads && done == r->first_step + 2) training_tell_grace(&r->job->report, t - r->last_step);
    r->last_step = t;
    if (hears(r, done)) return false;
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
                          .schedule = {.kind = (zf_schedule_kind)o->schedule,
                                       .peak = o->lr,
                                       .end = o->end_lr,
                                       .warmup = o->warmup,
                                       .steps = o->steps,
                                       .from_zero = !o->first_rate}};
    zf_status status;
    interrupt_catch(r->job->ranks.launcher != NULL);
    r->first_step = zf_program_step(s->program);
    r->reader = of->start(&r->job->data, false, r->job->shape.batch * run_parts(r->job),
                          r->first_step, &r->error);
    if (!r->reader) return false;
    if (r->leads && !step_log_open(&r->log, o->log, r->job->sample->program, of->losses,
                                   r->first_step, &r->error))
        return false;
    r->started = r->last_step = r->last_line = run_now();
    status = zf_nn_train(&d);
    if (r->terminal && !o->quiet) printf("\n");
    if (!status || r->error.status) return !r->error.status;
    if (status == ZF_ERR_NAN && !scaled(r)) return fail_by_loss(r);
    return fail(&r->error, status, "%s", zf_program_error(s->program));
}
