#include "shape_phases.h"
#include "../options/fail.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ----------------------------------------------------------------------------------- options */

/* One --phase. What is not given is that of the run. */
typedef struct phase_desc {
    int64_t seq, batch, steps, warmup, every;
    double lr, end_lr;
} phase_desc;

#define ROW(kind, member, default_, range, ...)                                                    \
    ZF_OPTION(phase_desc, kind, member, default_, range, __VA_ARGS__)
static const zf_option phase_rows[] = {
    ROW(COUNT, seq, 0, "[1,65536]", .help = "tokens of an example"),
    ROW(COUNT, batch, 0, "[1,1048576]", .help = "examples of a step"),
    ROW(COUNT, steps, 0, "[1,1000000000000]", .help = "steps of the phase"),
    ROW(NUMBER, lr, 0, "[0,1000]", .help = "highest learning rate"),
    ROW(COUNT, warmup, 0, "[0,1000000000000]", .traits = ZF_OPTION_GIVEN_0,
        .help = "steps of warm-up"),
    ROW(NUMBER, end_lr, 0, "[0,1000]", .help = "learning rate at its end"),
    ROW(COUNT, every, 0, "[1,1000000000000]", .help = "steps of a change of its rate"),
    {.name = NULL}};
#undef ROW

#define ROW(kind, member, default_, range, ...)                                                    \
    ZF_OPTION(curriculum, kind, member, default_, range, __VA_ARGS__)
const zf_option curriculum_rows[] = {
    ROW(COUNT, min, 8, "[1,65536]", .unit = "T", .with = "schedule=linear|root",
        .help = "tokens of an example in the first step"),
    ROW(COUNT, max, 0, "[0,65536]", .unit = "T", .with = "schedule=linear|root",
        .help = "and from the last step of the curriculum on; 0: --seq"),
    ROW(COUNT, steps, 0, "[0,1000000000000]", .with = "schedule=linear|root",
        .help = "after which examples have all tokens"),
    ROW(CHOICE, schedule, 0, "linear|root|discrete",
        .help = "of the length between the two; discrete: given lengths"),
    ROW(COUNT, round, 8, "[1,65536]", .unit = "T", .with = "schedule=linear|root",
        .help = "lengths are multiples of it"),
    ROW(NUMBER, root, 2, "[1,100]", .with = "schedule=root",
        .help = "the length grows as this root of the steps"),
    ROW(TEXT, lengths, 0, NULL, .unit = "64+128+256", .with = "schedule=discrete",
        .help = "tokens of an example, one after the other"),
    ROW(TEXT, ends, 0, NULL, .unit = "1000+2000", .with = "schedule=discrete",
        .help = "the last step of each length but the last"),
    ROW(CHOICE, rate, 0, "steps|tokens",
        .help = "tokens: the schedule of the learning rate goes by the share of all tokens that "
                "were read"),
    {.name = NULL}};
#undef ROW

/* ------------------------------------------------------------------------------------ phases */

/* Adds one after the others, where its shape, batch and steps are set. */
static bool add(shape_phases *p, shape_phase x, zf_error *error)
{
    const shape_phase *last = p->count ? &p->at[p->count - 1] : NULL;
    if (p->count == SHAPE_PHASES)
        return fail(error, ZF_ERR_ARGUMENT,
                    p->curriculum ? "--curriculum has more than %d lengths: give a larger round"
                                  : "there are more than %d phases",
                    SHAPE_PHASES);
    x.first = last ? last->first + last->steps : 0;
    x.before = last ? last->before + last->steps * last->batch : 0;
    for (x.shape = 0; x.shape < p->shapes; x.shape++) {
        const shape_phase *of = &p->at[p->first[x.shape]];
        if (of->sequence == x.sequence && of->batch == x.batch) break;
    }
    if (x.shape == p->shapes) p->first[p->shapes++] = p->count;
    p->at[p->count++] = x;
    return true;
}

static bool add_phase(shape_phases *p, const shape_phases_desc *o, const char *given, int number,
                      zf_error *error)
{
    char text[200];
    phase_desc d = {0};
    const zf_options one = {.rows = phase_rows, .desc = &d};
    zf_error why;
    shape_phase x;
    snprintf(text, sizeof text, "%s", given);
    for (char *c = text; *c; c++)
        if (*c == ',') *c = ' ';
    if (zf_options_words(&one, text, &why) || zf_options_check(&one, 1, false, &why))
        return fail(error, ZF_ERR_ARGUMENT, "--phase number %d: %s", number, why.text);
    if (!d.steps)
        return fail(error, ZF_ERR_ARGUMENT, "--phase number %d needs its steps: steps=N", number);
    x = (shape_phase){.steps = d.steps,
                      .sequence = d.seq ? d.seq : o->seq,
                      .batch = d.batch ? d.batch : o->batch};
    x.rate = o->schedule;
    x.rate.steps = d.steps;
    if (d.every && o->schedule.kind != ZF_EXPONENTIAL)
        return fail(error, ZF_ERR_ARGUMENT, "--phase number %d: every requires --schedule exponential",
                    number);
    if (d.every) x.rate.every = d.every;
    if (d.lr != 0) x.rate.peak = d.lr == ZF_ZERO ? 0 : d.lr;
    if (d.end_lr != 0) x.rate.end = d.end_lr == ZF_ZERO ? 0 : d.end_lr;
    if (o->schedule.warmup < 0) x.rate.warmup = d.steps / 10;
    if (d.warmup) x.rate.warmup = d.warmup > 0 ? d.warmup : 0;
    return add(p, x, error);
}

static bool make_phases(shape_phases *p, shape_phases_desc *o, zf_error *error)
{
    for (int32_t k = 0; k < o->phase->count; k++)
        if (!add_phase(p, o, o->phase->at[k], (int)k + 1, error)) return false;
    o->steps = p->at[p->count - 1].first + p->at[p->count - 1].steps;
    return true;
}

/* -------------------------------------------------------------------------------- curriculum */

/* The tokens of step t = 1, 2, ... of DeepSpeed's curriculum (curriculum_scheduler.py),
 * rounded down; here at least min, rounded up, and max from the last step on. */
static int64_t length_at(const curriculum *c, int64_t max, int64_t t)
{
    const int64_t round = c->round, least = (c->min + round - 1) / round * round;
    const double root = c->schedule == CURRICULUM_ROOT ? c->root : 1;
    int64_t d;
    if (t >= c->steps) return max;
    d = (int64_t)floor(pow((double)t / (double)c->steps, 1 / root) * (double)(max - c->min) +
                       (double)c->min);
    d -= d % round;
    if (d < least) d = least;
    return d < max ? d : max;
}

/* The last step that has the length of step t, of those before the last of the curriculum. */
static int64_t last_of(const curriculum *c, int64_t max, int64_t t)
{
    int64_t low = t, high = c->steps - 1;
    const int64_t length = length_at(c, max, t);
    while (low < high) { /* lengths do not fall */
        const int64_t middle = low + (high - low + 1) / 2;
        if (length_at(c, max, middle) == length) low = middle;
        else high = middle - 1;
    }
    return low;
}

static bool make_growing(shape_phases *p, const shape_phases_desc *o, zf_error *error)
{
    const curriculum *c = o->curriculum;
    const int64_t max = c->max ? c->max : o->seq;
    shape_phase x = {.batch = o->batch};
    if (c->min > max)
        return fail(error, ZF_ERR_ARGUMENT,
                    "--curriculum goes from min=%lld to max=%lld, which is less", (long long)c->min,
                    (long long)max);
    for (int64_t t = 1, end; t <= o->steps; t = end + 1) {
        end = t < c->steps ? last_of(c, max, t) : o->steps;
        if (end > o->steps) end = o->steps;
        x.sequence = length_at(c, max, t), x.steps = end - t + 1;
        if (p->count && p->at[p->count - 1].sequence == x.sequence)
            p->at[p->count - 1].steps += x.steps;
        else if (!add(p, x, error)) return false;
    }
    return true;
}

/* The next number of "64+128"; false where there is none. */
static bool next_number(const char **text, int64_t *number)
{
    char *end;
    if (!*text || !**text) return false;
    *number = strtoll(*text, &end, 10);
    if (end == *text || (*end && *end != '+') || **text < '0' || **text > '9') return false;
    *text = end + (*end == '+' && end[1]);
    return *end != '+' || end[1];
}

static bool make_discrete(shape_phases *p, const shape_phases_desc *o, zf_error *error)
{
    const char *lengths = o->curriculum->lengths, *ends = o->curriculum->ends;
    int64_t first = 0, end = 0;
    shape_phase x = {.batch = o->batch};
    while (next_number(&lengths, &x.sequence)) {
        const bool last = !*lengths;
        end = o->steps;
        if (x.sequence < 1 || x.sequence > 65536 ||
            (!last && (!next_number(&ends, &end) || end <= first)))
            break;
        if (end > o->steps) end = o->steps;
        x.steps = end - first;
        if (x.steps && !add(p, x, error)) return false;
        first = end;
        if (last && (!ends || !*ends)) return true;
    }
    return fail(error, ZF_ERR_ARGUMENT,
                "--curriculum schedule=discrete needs lengths=64+128+256 of 1 to 65536 tokens, and "
                "ends=1000+2000, the last step of each but the last, one more than the other");
}

/* ------------------------------------------------------------------------------------- public */

static void write_text(shape_phases *p)
{
    size_t at = 0;
    for (int32_t k = 0; k < p->count && at < sizeof p->text; k++) {
        const shape_phase *x = &p->at[k];
        at += (size_t)snprintf(p->text + at, sizeof p->text - at, "%s%lldx%lldx%lld", k ? " " : "",
                               (long long)x->steps, (long long)x->batch, (long long)x->sequence);
        if (!p->curriculum && at < sizeof p->text)
            at += (size_t)snprintf(p->text + at, sizeof p->text - at, "@%.9g:%.9g:%lld",
                                   x->rate.peak, x->rate.end, (long long)x->rate.warmup);
        if (!p->curriculum && x->rate.every && at < sizeof p->text)
            at += (size_t)snprintf(p->text + at, sizeof p->text - at, ":%lld",
                                   (long long)x->rate.every);
    }
    if (p->by_tokens && at < sizeof p->text)
        snprintf(p->text + at, sizeof p->text - at, " by tokens");
}

bool shape_phases_make(shape_phases *p, shape_phases_desc *o, zf_error *error)
{
    const bool discrete = o->curriculum->schedule == CURRICULUM_DISCRETE;
    *p = (shape_phases){.curriculum = o->curriculum->steps || o->curriculum->lengths || discrete};
    p->by_tokens = p->curriculum && o->curriculum->rate == CURRICULUM_BY_TOKENS;
    if (p->curriculum && !(discrete ? make_discrete(p, o, error) : make_growing(p, o, error)))
        return false;
    if (o->phase->count && !make_phases(p, o, error)) return false;
    if (!p->count) return true;
    write_text(p);
    o->seq = p->at[p->count - 1].sequence, o->batch = p->at[p->count - 1].batch;
    return true;
}

const shape_phase *shape_phases_at(const shape_phases *p, int64_t done)
{
    int32_t k = 0;
    if (!p || !p->count) return NULL;
    while (k + 1 < p->count && done >= p->at[k + 1].first) k++;
    return &p->at[k];
}

int64_t shape_phases_tokens(const shape_phases *p, int64_t done)
{
    int64_t tokens = 0;
    for (int32_t k = 0; k < p->count && done > p->at[k].first; k++) {
        const int64_t own = done - p->at[k].first;
        tokens +=
            (own < p->at[k].steps ? own : p->at[k].steps) * p->at[k].batch * p->at[k].sequence;
    }
    return tokens;
}

/* Steps of equal shares of all tokens that have been made after `done` steps. */
static int64_t steps_by_tokens(const shape_phases *p, int64_t done)
{
    const shape_phase *last = &p->at[p->count - 1];
    const int64_t steps = last->first + last->steps;
    const double all = (double)shape_phases_tokens(p, steps);
    if (done >= steps) return done;
    return (int64_t)floor((double)shape_phases_tokens(p, done) / all * (double)steps + 1e-6);
}

double shape_phases_rate(const shape_phases *p, const zf_schedule *run, int64_t done)
{
    const shape_phase *x = shape_phases_at(p, done);
    if (p->by_tokens) done = steps_by_tokens(p, done);
    const bool own = x && !p->curriculum;
    const zf_schedule *rate = own ? &x->rate : run;
    return zf_schedule_at(rate, done - (own ? x->first : 0) + !rate->from_zero);
}

void shape_phases_tell(const shape_phases *p)
{
    for (int32_t k = 0; k < p->count; k++) {
        const shape_phase *x = &p->at[k];
        printf("steps %lld to %lld: %lld x %lld tokens", (long long)x->first + 1,
               (long long)(x->first + x->steps), (long long)x->batch, (long long)x->sequence);
        if (!p->curriculum)
            printf(", learning rate up to %g after %lld steps", x->rate.peak,
                   (long long)x->rate.warmup);
        printf("\n");
    }
}
