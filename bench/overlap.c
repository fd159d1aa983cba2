/* How much of the communication the plan hides in computation: BERT on ranks whose collectives
 * take the time of a link of given latency and bandwidth.
 *
 *     build/bench/overlap [--model mini] [--stages 0123] [--ranks 2] [--prefetch BYTES] [--json]
 *                         [--trace]
 *
 * The ranks are threads. After a collective its caller sleeps (the core is free) until the rank's
 * link would have sent its bytes. A rank has one link, for which collectives queue:
 *
 *     queue gather    all_gather %20 |--meet, copy--|--- 20 us + bytes / rate ---|
 *     queue reduce       reduce_scatter %31 |--meet, copy--|  (the link is busy)   |-----------|
 *
 * A round takes, in turns, the step
 *
 *     compute     without delays, without zf_prefetch
 *     exposed     with delays, without zf_prefetch
 *     prefetched  with both
 *
 * With the bandwidth, the communication of the plan (zf_plan.traffic) takes `share` of that round's
 * `compute`. Hidden is 1 - (prefetched - compute) / communication, at best 1; medians over rounds.
 *
 *     mpirun -np 2 build/bench/overlap --real --compute MS --rate BYTES
 *
 * This uses the real link instead, without delays (bench/netns.sh). --trace shows for the last
 * prefetched step of rank 0 when each collective was issued, got the link, and was done, and how
 * long queue compute waited for it. */
#define _POSIX_C_SOURCE 200809L
#include "../examples/frame/ranks/ranks.h"
#include "bench.h"
#include "session.h"

#include <math.h>
#include <pthread.h>

typedef struct choices {
    bert_config config;
    session_desc session; /* but for comm */
    int64_t ranks, steps, rounds;
    double latency, rate, share, compute; /* seconds, bytes per second, of 1, seconds */
    bool real, trace, json;
    const char *model, *stages;
    int64_t vocab;
} choices;

/* ------------------------------------------------------------------------------------ the trace */

typedef struct event {
    zf_op op;
    int32_t node, channel;
    size_t bytes;
    double issued, started, done, stood; /* seconds; stood: of queue compute */
} event;

enum { EVENTS = 4096 };
static struct {
    bool on;
    pthread_mutex_t mutex;
    int count;
    event events[EVENTS];
} trace = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* The backend's own. */
static zf_status (*plain_launch)(void *self, const zf_launch *launch);
static zf_status (*plain_wait)(void *self, const zf_launch *launch);

/* The event of the node in this step; that of -1 where there are too many. The mutex is held. */
static event *event_of(int32_t node)
{
    int k = 0;
    while (k < trace.count && trace.events[k].node != node) k++;
    if (k == EVENTS) return &trace.events[EVENTS - 1];
    if (k == trace.count) trace.events[trace.count++] = (event){.node = node};
    return &trace.events[k];
}

static bool is_traced(const zf_launch *l)
{
    bool collective = l->op == ZF_OP_all_gather || l->op == ZF_OP_reduce_scatter ||
                      l->op == ZF_OP_all_reduce || l->op == ZF_OP_all_to_all ||
                      l->op == ZF_OP_bcast;
    return trace.on && collective && l->run->rank == 0;
}

static zf_status traced_launch(void *self, const zf_launch *l)
{
    double start = bench_now();
    zf_status status;
    if (!is_traced(l)) return plain_launch(self, l);
    pthread_mutex_lock(&trace.mutex);
    event_of(l->node)->issued = start;
    pthread_mutex_unlock(&trace.mutex);
    status = plain_launch(self, l);
    if (l->queue) return status;
    pthread_mutex_lock(&trace.mutex);
    event_of(l->node)->stood = bench_now() - start;
    pthread_mutex_unlock(&trace.mutex);
    return status;
}

static zf_status traced_wait(void *self, const zf_launch *l)
{
    double start = bench_now();
    zf_status status = plain_wait(self, l);
    if (!is_traced(l)) return status;
    pthread_mutex_lock(&trace.mutex);
    event_of(l->node)->stood = bench_now() - start;
    pthread_mutex_unlock(&trace.mutex);
    return status;
}

static void print_trace(double start)
{
    printf("%-22s queue%12s%11s%11s%11s%11s\n", "", "bytes", "issued", "link", "done", "stood ms");
    for (int k = 0; k < trace.count; k++) {
        const event *e = &trace.events[k];
        char name[64];
        snprintf(name, sizeof name, "%s %%%d", zf_op_name(e->op), (int)e->node);
        printf("%-22s %5d%12zu%11.2f%11.2f%11.2f%11.2f\n", name, (int)e->channel, e->bytes,
               1e3 * (e->issued > 0 ? e->issued - start : e->started - start),
               1e3 * (e->started - start), 1e3 * (e->done - start), 1e3 * e->stood);
    }
}

/* ------------------------------------------------------------------------------------- the link */

/* A communicator that takes the time of another one and a delay. */
typedef struct slow_link {
    zf_comm comm;
    const zf_comm *inner;
    bool delays;
    double latency, rate; /* rate 0: none now */
    pthread_mutex_t mutex;
    double idle; /* from when on */
} slow_link;

/* Bytes that one rank sends, as zf_moved counts them. */
static size_t sent(const zf_collective *c, int32_t world)
{
    size_t bytes = (size_t)c->count * zf_dtype_size(c->dtype), others = (size_t)world - 1;
    if (c->op == ZF_OP_bcast) return others ? bytes : 0;
    if (c->op != ZF_OP_all_reduce) return bytes * others;
    return 2 * ((size_t)c->count + others) / (size_t)world * zf_dtype_size(c->dtype) * others;
}

static void sleep_until(double when)
{
    struct timespec t = {(time_t)when, (long)(1e9 * (when - floor(when)))};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL)) continue;
}

/* A real network needs no core. Here the thread that stands for it must not wait for one that
 * computes, so it gets a higher priority, if the system allows. */
static void go_first(void)
{
    static _Thread_local bool done;
    if (!done) pthread_setschedparam(pthread_self(), SCHED_FIFO, &(struct sched_param){1});
    done = true;
}

static zf_status link_run(void *self, const zf_collective *c, zf_error *error)
{
    slow_link *l = self;
    zf_status status;
    double start, until;
    if (c->channel && l->delays) go_first();
    status = l->inner->run(l->inner->self, c, error);
    start = bench_now();
    if (!status && l->rate > 0) {
        pthread_mutex_lock(&l->mutex);
        if (l->idle > start) start = l->idle;
        until = l->idle = start + l->latency + (double)sent(c, l->comm.world) / l->rate;
        pthread_mutex_unlock(&l->mutex);
        sleep_until(until);
    }
    if (trace.on && l->comm.rank == 0) {
        event *e;
        pthread_mutex_lock(&trace.mutex);
        e = event_of(c->node);
        e->op = c->op, e->channel = c->channel, e->bytes = sent(c, l->comm.world);
        e->started = start, e->done = bench_now();
        pthread_mutex_unlock(&trace.mutex);
    }
    return status;
}

static void link_abort(void *self, zf_status status, const char *reason)
{
    const slow_link *l = self;
    l->inner->abort(l->inner->self, status, reason);
}

/* --------------------------------------------------------------------------------------- a rank */

static bool failed(zf_error *error, zf_status status, const char *text)
{
    *error = (zf_error){.status = status};
    snprintf(error->text, sizeof error->text, "%s", text);
    return false;
}

/* Mean seconds of a step, of choices.steps. */
static bool time_steps(const choices *set, session *s, const bert_batch *batch, double *seconds,
                       zf_error *error)
{
    double start = bench_now();
    for (int64_t n = 0; n < set->steps; n++) {
        float lr = 1e-4f;
        if (masked_feed(s, batch, (double)batch->labelled * s->world,
                        (double)s->shape.batch * s->world) ||
            zf_write(s->program, s->lr, &lr, sizeof lr) || zf_step(s->program))
            return failed(error, ZF_ERR_BACKEND, zf_program_error(s->program));
    }
    *seconds = (bench_now() - start) / (double)set->steps;
    return true;
}

static void count_traffic(const zf_traffic *t, double *bytes, double *calls)
{
    *bytes = (double)(t->all_gather.bytes + t->reduce_scatter.bytes + t->all_reduce.bytes +
                      t->all_to_all.bytes + t->bcast.bytes);
    *calls = (double)(t->all_gather.calls + t->reduce_scatter.calls + t->all_reduce.calls +
                      t->all_to_all.calls + t->bcast.calls);
}

/* Rank 0's number becomes that of all. */
static bool share_number(const zf_comm *comm, double *number, zf_error *error)
{
    zf_collective c = {.op = ZF_OP_bcast, .dtype = ZF_F64, .count = 1, .in = number, .out = number};
    return !comm->run(comm->self, &c, error);
}

/* What a round gives, in seconds, and shares of 1. */
typedef struct figures {
    double compute, exposed, prefetched, communication, hidden;
} figures;

typedef struct rank_state {
    slow_link link;
    session plain, ahead;
    const bert_batch *batch;
    double bytes, calls; /* of the prefetched plan */
} rank_state;

/* The rate at which communication takes its share of the round's compute time. */
static double rate_of(const choices *set, const rank_state *s, double compute)
{
    double left = set->share * compute - s->calls * set->latency;
    return set->rate > 0 ? set->rate : s->bytes / (left > 1e-6 ? left : 1e-6);
}

static bool one_round(const choices *set, rank_state *s, figures *f, zf_error *error)
{
    double rate;
    f->compute = set->compute;
    s->link.rate = 0;
    if (!set->real && !time_steps(set, &s->plain, s->batch, &f->compute, error)) return false;
    rate = rate_of(set, s, f->compute);
    if (!share_number(s->link.inner, &rate, error)) return false;
    s->link.rate = set->real ? 0 : rate;
    if (!time_steps(set, &s->plain, s->batch, &f->exposed, error) ||
        !time_steps(set, &s->ahead, s->batch, &f->prefetched, error))
        return false;
    f->communication = s->calls * set->latency + s->bytes / rate;
    f->hidden = 1 - (f->prefetched - f->compute) / f->communication;
    return true;
}

static double median_of(const figures *rounds, int64_t count, size_t offset)
{
    double values[1000];
    for (int64_t k = 0; k < count; k++)
        memcpy(&values[k], (const char *)&rounds[k] + offset, sizeof *values);
    return bench_median(values, count);
}

static void print_figures(const choices *set, const rank_state *s, const figures *rounds)
{
#define MEDIAN(of) median_of(rounds, set->rounds, offsetof(figures, of))
    double compute = 1e3 * MEDIAN(compute), exposed = 1e3 * MEDIAN(exposed),
           prefetched = 1e3 * MEDIAN(prefetched), communication = 1e3 * MEDIAN(communication),
           hidden = MEDIAN(hidden), all = communication - set->latency * s->calls * 1e3;
#undef MEDIAN
    if (set->json)
        printf("{\"model\": \"%s\", \"world\": %d, \"stage\": %d, \"prefetch\": %lld, "
               "\"sent_bytes\": %.0f, \"calls\": %.0f, \"bytes_per_s\": %.0f, "
               "\"compute_ms\": %.3f, \"communication_ms\": %.3f, \"exposed_ms\": %.3f, "
               "\"prefetched_ms\": %.3f, \"hidden\": %.4f}\n",
               set->model, (int)s->ahead.world, (int)set->session.training.zero.stage,
               (long long)set->session.training.prefetch.bytes, s->bytes, s->calls,
               1e3 * s->bytes / all, compute, communication, exposed, prefetched, hidden);
    else
        printf("stage %d: %.1f MB in %.0f calls at %.1f MB/s; ms: compute %.1f, "
               "communication %.1f, exposed %.1f, prefetched %.1f; hidden %.1f%%\n",
               (int)set->session.training.zero.stage, 1e-6 * s->bytes, s->calls,
               1e-3 * s->bytes / all, compute, communication, exposed, prefetched, 100 * hidden);
    fflush(stdout);
}

static bool measure(const choices *set, rank_state *s, zf_error *error)
{
    figures rounds[1000];
    choices warm = *set;
    zf_program_info info = zf_program_info_of(s->ahead.program);
    double ignored, start;
    warm.steps = 1;
    count_traffic(&info.plan.traffic, &s->bytes, &s->calls);
    if (!time_steps(&warm, &s->plain, s->batch, &ignored, error) ||
        !time_steps(&warm, &s->ahead, s->batch, &ignored, error))
        return false;
    for (int64_t k = 0; k < set->rounds; k++)
        if (!one_round(set, s, &rounds[k], error)) return false;
    if (s->link.comm.rank == 0) print_figures(set, s, rounds);
    if (!set->trace) return true;
    trace.count = 0;
    if (s->link.comm.rank == 0) trace.on = true;
    start = bench_now();
    if (!time_steps(&warm, &s->ahead, s->batch, &ignored, error)) return false;
    if (s->link.comm.rank == 0) trace.on = false, print_trace(start);
    return true;
}

static void trace_backend(zf_backend *backend)
{
    pthread_mutex_lock(&trace.mutex);
    plain_launch = backend->launch, plain_wait = backend->wait; /* the same of all ranks */
    backend->launch = traced_launch, backend->wait = traced_wait;
    pthread_mutex_unlock(&trace.mutex);
}

static bool run_rank(void *user, const zf_comm *comm, zf_error *error)
{
    const choices *set = user;
    session_desc d = set->session;
    rank_state s = {
        .link = {.comm = *comm, .inner = comm, .delays = !set->real, .latency = set->latency}};
    bool good;
    s.link.comm.self = &s.link;
    s.link.comm.run = link_run, s.link.comm.abort = link_abort, s.link.comm.destroy = NULL;
    pthread_mutex_init(&s.link.mutex, NULL);
    d.comm = &s.link.comm;
    s.batch = bench_batch(&d.shape, set->config.vocab, (uint64_t)comm->rank);
    if (!s.batch) return failed(error, ZF_ERR_NOMEM, "out of memory");
    if (!session_open(&s.ahead, &d, error)) return false;
    d.training.prefetch.bytes = 0;
    if (!session_open(&s.plain, &d, error)) {
        session_close(&s.ahead);
        return false;
    }
    if (set->trace) trace_backend(s.ahead.backend);
    good = measure(set, &s, error);
    session_close(&s.ahead);
    session_close(&s.plain);
    pthread_mutex_destroy(&s.link.mutex);
    return good;
}

#define ROW(kind, member, default_, range, ...)                                                    \
    ZF_OPTION(choices, kind, member, default_, range, __VA_ARGS__)

static const zf_option rows[] = {
    ROW(TEXT, model, 0, NULL, .unit = "NAME|FILE", .traits = ZF_OPTION_READS, .topic = "overlap",
        .help = "model, as bert pretrain takes it"),
    ROW(COUNT, vocab, 8192, "[8,1000000000]", .help = "tokens of the vocabulary"),
    ROW(COUNT, ranks, 2, "[2,4096]", .help = "threads that are ranks"),
    ROW(TEXT, stages, 0, NULL, .unit = "DIGITS", .help = "stages of ZeRO, one after the other"),
    ROW(NUMBER, share, 0.5, "[0.01,100]", .help = "communication, as a share of the compute time"),
    ROW(NUMBER, latency, 20, "[0,1000000]", .unit = "US",
        .help = "latency of a collective in microseconds"),
    ROW(NUMBER, rate, 0, "[0,1000000000000000]", .unit = "BYTES",
        .help = "bytes that the link moves in a second; 0: by --share"),
    ROW(COUNT, steps, 3, "[1,1000000]", .help = "steps of each kind in a round"),
    ROW(COUNT, rounds, 5, "[1,1000]", .help = "rounds, of which the medians count"),
    ROW(FLAG, real, 0, NULL, .help = "no delays are added: the link itself is slow"),
    ROW(NUMBER, compute, 0, "[0,1000000000]", .unit = "MS", .with = "real",
        .help = "measure steps on a fast link"),
    ROW(FLAG, trace, 0, NULL, .help = "print the collectives of a step"),
    ROW(FLAG, json, 0, NULL, .help = "print one JSON object for each stage"),
    {.name = NULL}};

/* Of the passes. */
static const zf_option pass_rows[] = {
    ZF_OPTION(zf_training, BYTES, zero.bucket_bytes, 0, NULL, .flag = "bucket", .topic = "passes",
              .help = "size of a bucket of parameters; 0: the default"),
    ZF_OPTION(zf_training, BYTES, prefetch.bytes, 0, NULL, .flag = "prefetch",
              .help = "bytes that are gathered before their use"),
    {.name = NULL}};

int main(int argc, char **argv)
{
    choices set = {.model = "mini",
                   .stages = "0123",
                   .session = {.sample = &bert_sample,
                               .training = {.clip = 1,
                                            .adamw.weight_decay = 0.01,
                                            .prefetch.bytes = 32 << 20},
                               .seed = 1,
                               .threads = 1,
                               .shape = {.batch = 8, .sequence = 128}}};
    const zf_options all[] = {{.rows = rows, .desc = &set},
                              {.rows = bench_session_rows, .desc = &set.session},
                              {.rows = pass_rows, .desc = &set.session.training}};
    int status;
    rank_group ranks;
    zf_error error = {ZF_OK, ""};
    if (!bench_options(argc, argv, all, 3, 2, NULL, &status)) return status;
    if (set.stages[strspn(set.stages, "0123")])
        return fprintf(stderr, "overlap: --stages takes digits of 0 to 3\n"), 2;
    set.latency *= 1e-6, set.compute *= 1e-3;
    set.session.shape.predictions =
        bench_predictions(set.session.shape.batch, set.session.shape.sequence);
    if (!bert_config_load(set.model, &set.config, &error) ||
        !ranks_open(&ranks,
                    &(rank_group_desc){.program = "overlap",
                                       .count = rank_launch_of().launcher ? 0 : set.ranks,
                                       .deadline = 60},
                    &error))
        return fprintf(stderr, "overlap: %s\n", error.text), 1;
    set.config.vocab = set.vocab;
    set.session.config = &set.config;
    for (const char *s = set.stages; *s && !error.status; s++) {
        set.session.training.zero.stage = *s - '0';
        ranks_run(&ranks, run_rank, &set, &error);
    }
    if (error.status && ranks.first == 0) fprintf(stderr, "overlap: %s\n", error.text);
    ranks_close(&ranks, error.status ? &error : NULL);
    return error.status ? 1 : 0;
}
