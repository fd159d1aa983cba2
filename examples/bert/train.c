/* The steps of a run, its live line, its log, and the signals that end it. */
#define _POSIX_C_SOURCE 200809L
#include "../common/interrupt.h"
#include "run.h"

#include <math.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double bert_peak_mib(void)
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

static void show(bert_run *r, int64_t done)
{
    const bert_settings *o = &r->job->o;
    char eta[32], also[40] = "";
    int64_t skipped = bert_session_skipped(&r->session);
    double n = (double)(r->shown_steps ? r->shown_steps : 1), t = now(), spent = t - r->started;
    double tokens = n * (double)(o->batch * o->seq);
    int64_t here = done - r->first_step;
    clock_text(eta, sizeof eta, here ? spent / (double)here * (double)(o->steps - done) : 0);
    if (skipped) snprintf(also, sizeof also, "  %lld skipped", (long long)skipped);
    printf("%sstep %lld/%lld  loss %.4f  MLM accuracy %.1f%%  %.0f tokens/s  %.0f MiB  ETA %s%s%s",
           r->terminal ? "\r\033[K" : "", (long long)done, (long long)o->steps, r->shown_loss / n,
           100 * r->shown_correct / (r->shown_labelled > 0 ? r->shown_labelled : 1),
           tokens / (t - r->last_line), bert_peak_mib(), eta, also, r->terminal ? "" : "\n");
    interrupt_flush();
    r->shown_loss = r->shown_correct = r->shown_labelled = 0;
    r->shown_steps = 0;
    r->last_line = t;
}

/* ------------------------------------------------------------------------------------ steps */

static zf_status feed(void *user, zf_program *program, int64_t step)
{
    bert_run *r = user;
    const bert_batch_file *batches = r->job->batches;
    (void)program;
    if (batches) r->batch = &batches->batch[step % batches->entries];
    else r->batch = bert_feeder_next(r->feeder);
    return bert_session_feed_parts(&r->session, r->batch, r->batch->labelled, r->batch->pairs);
}

/* Whether a signal has reached any rank: they all hear of it after the same step. */
static bool hear(bert_run *r)
{
    int64_t heard = interrupt_came();
    if (bert_ranks_sum(r->comm, &heard, &r->error)) return false;
    r->interrupted = heard > 0;
    return true;
}

/* There is a loss scale: a gradient that is not finite is a step that was skipped. */
static bool scaled(const bert_run *r) { return r->job->o.precision == ZF_F16; }

/* The row of the log, and the line where it is time for one. */
static bool tell(bert_run *r, const bert_log_row *row, double t)
{
    const bert_settings *o = &r->job->o;
    if (!r->leads) return true;
    r->shown_loss += row->loss, r->shown_steps++;
    r->shown_correct += bert_session_scalar(&r->session, r->session.model.mlm_correct),
        r->shown_labelled += r->batch->labelled;
    if (!bert_log_add(&r->log, row, &r->error)) return false;
    if (o->quiet || !isfinite(row->loss) || !(isfinite(row->grad_norm) || scaled(r))) return true;
    if (t - r->last_line > (r->terminal ? 0.5 : 10) || row->step == o->steps) show(r, row->step);
    return true;
}

static bool report(void *user, zf_program *program, int64_t done, double lr)
{
    bert_run *r = user;
    const bert_settings *o = &r->job->o;
    bert_session *s = &r->session;
    const bert_model *m = &s->model;
    double tokens = (double)(o->batch * o->seq), t = now();
    bert_log_row row = {.step = done,
                        .loss = bert_session_scalar(s, m->loss),
                        .mlm_loss = bert_session_scalar(s, m->mlm_loss),
                        .nsp_loss = bert_session_scalar(s, m->nsp_loss),
                        .lr = lr,
                        .grad_norm = bert_session_scalar(s, zf_graph_find(s->graph, "grad_norm")),
                        .tokens_per_s = tokens / (t - r->last_step)};
    if (!tell(r, &row, t)) return false;
    if (!isfinite(row.loss) || !(isfinite(row.grad_norm) || scaled(r)))
        return bert_run_fail(r, ZF_ERR_NAN,
                             "step %lld: loss %g, gradient norm %g; " TRAINING_DIVERGED,
                             (long long)done, row.loss, row.grad_norm);
    if (r->leads && done == r->first_step + 2) training_tell_grace(&r->job->told, t - r->last_step);
    r->last_step = t;
    if (!hear(r) || r->interrupted) return false;
    if (r->comm && o->compare_every && done % o->compare_every == 0) {
        zf_status status = zf_compare_ranks(program);
        if (status) return bert_run_fail(r, status, "%s", zf_program_error(program));
        r->last_step = now();
    }
    if (!o->save || !o->save_every || done % o->save_every || done == o->steps) return true;
    if (!bert_run_save(r)) return false;
    r->last_step = now(); /* the next step's time begins here */
    return true;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double bert_run_speed(const bert_run *r)
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

/* The program's error says on which rank: "rank 2: step 5: the output ..." */
static bool fail_by_loss(bert_run *r)
{
    const char *text = zf_program_error(r->session.program);
    char rank[16] = "";
    int number;
    if (sscanf(text, "rank %d: ", &number) == 1) snprintf(rank, sizeof rank, "rank %d: ", number);
    return bert_run_fail(r, ZF_ERR_NAN,
                         "%sstep %lld: the loss is not a finite number; " TRAINING_DIVERGED, rank,
                         (long long)zf_program_step(r->session.program) + 1);
}

bool bert_run_train(bert_run *r)
{
    const bert_settings *o = &r->job->o;
    bert_session *s = &r->session;
    char err[256];
    zf_nn_train_desc d = {.program = s->program,
                          .steps = o->steps,
                          .lr = s->model.lr,
                          .user = r,
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
    if (!r->job->batches) {
        bert_feeder_desc f = {.examples = r->job->text.train,
                              .batch = (int32_t)o->batch,
                              .first = r->first_step * o->batch};
        r->feeder = bert_feeder_start(&f, err, sizeof err);
        if (!r->feeder) return bert_run_fail(r, ZF_ERR_NOMEM, "%s", err);
    }
    if (r->leads && !bert_log_open(&r->log, o->log, r->first_step, &r->error)) return false;
    r->started = r->last_step = r->last_line = now();
    status = zf_nn_train(&d);
    if (r->terminal && !o->quiet) printf("\n");
    if (!status) return !r->error.status;
    if (status == ZF_ERR_NAN && !scaled(r)) return fail_by_loss(r);
    return bert_run_fail(r, status, "%s", zf_program_error(s->program));
}
