#define _POSIX_C_SOURCE 200809L
#include "experience.h"
#include "../../../zeroflow_llm.h"
#include "../options/fail.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SHOWN = 10 }; /* answers to held-out prompts that are kept */

/* Answers to some prompts. */
typedef struct some {
    int64_t *numbers, *slots; /* [count] of prompts; the groups that they are for */
    int64_t count;
    zf_rollouts r;
    double *reward; /* [answers] */
} some;

static bool some_new(some *a, int64_t prompts, int64_t group, zf_error *error)
{
    *a = (some){.numbers = malloc((size_t)prompts * sizeof *a->numbers),
                .slots = malloc((size_t)prompts * sizeof *a->slots),
                .count = prompts,
                .reward = malloc((size_t)(prompts * group) * sizeof *a->reward)};
    for (int64_t k = 0; k < prompts && a->slots; k++) a->slots[k] = k;
    return (a->numbers && a->slots && a->reward) || fail(error, ZF_ERR_NOMEM, "out of memory");
}

static void some_free(some *a)
{
    zf_rollouts_free(&a->r);
    free(a->numbers), free(a->slots), free(a->reward);
}

/* Notes time and tokens of answers that were written. */
static void count_answers(const experience *e, const zf_rollouts *r, const session *s, double prompt)
{
    const int64_t each = (r->count + s->world - 1) / s->world, size = 1 + 2 * e->desc->o->tokens;
    int64_t given = 0, all = 0;
    for (int64_t k = 0; k < r->count; k++)
        given += (int64_t)r->answers[k].given, all += (int64_t)r->answers[k].ids.count;
    e->spent->tokens[PHASE_PROMPT] += given, e->spent->tokens[PHASE_DECODE] += all - given;
    phases_give(e->spent, PHASE_PROMPT, prompt);
    phases_gather(e->spent, each * size, s->world);
}

static bool score_some(const experience *e, const zf_prompts *data, some *a, zf_error *error)
{
    zf_error why = {ZF_OK, ""};
    return zf_rewards_score(e->desc->rewards, &a->r, a->reward, NULL, &why) ||
           fail(error, why.status, "%s: %.700s", data->name, why.text);
}

/* An answer that did not end by itself is not scored. */
static void leave_cut(some *a)
{
    for (int64_t k = 0; k < a->r.count; k++)
        if (a->r.answers[k].finish == ZF_FINISH_LENGTH) a->reward[k] = NAN;
}

/* Writes answers to the prompts of `data`, `group` to each, and rewards them: one rank does, since
 * a command may. */
static bool write_some(experience *e, session *s, const zf_prompts *data, some *a,
                       const zf_rollout_desc *how, zf_error *error)
{
    const double before = e->decoder.steps.prompt_seconds;
    const zf_collective tell = {.op = ZF_OP_bcast,
                                .dtype = ZF_F64,
                                .count = a->count * how->group,
                                .in = a->reward,
                                .out = a->reward};
    phases_enter(e->spent, PHASE_DECODE);
    zf_rollouts_free(&a->r);
    if (!zf_rollouts_write(&a->r, data, a->numbers, a->count, how, error)) return false;
    count_answers(e, &a->r, s, e->decoder.steps.prompt_seconds - before);
    phases_enter(e->spent, PHASE_REWARD);
    if (!joined_rewards_run(&e->judges, &a->r, error)) return false;
    if (!s->rank && !score_some(e, data, a, error)) return false;
    return !s->comm || !s->comm->run(s->comm->self, &tell, error);
}

static zf_rollout_desc rollout_of(experience *e, const session *s)
{
    const experience_desc *d = e->desc;
    return (zf_rollout_desc){.decoder = &e->decoder.steps,
                             .how = d->how,
                             .sampling = d->o->how,
                             .seed = d->seed,
                             .group = d->o->group,
                             .tokens = d->o->tokens,
                             .comm = s->comm};
}

/* --------------------------------------------------------------------------------- an iteration */

/* The prompts of a round follow from seed, iteration and round, so that a run goes on with them. */
static void draw(const experience *e, some *a, int64_t iteration, int64_t round)
{
    const int64_t prompts = e->answers / e->desc->o->group, all = e->desc->data->count;
    const uint64_t seed = e->desc->seed + ((uint64_t)round << 32);
    for (int64_t k = 0; k < a->count; k++)
        a->numbers[k] = zf_examples_drawn(iteration * prompts + k, all, seed);
}

/* The answers take the places of their groups in r and experience.reward. */
static void take(experience *e, some *a, zf_rollouts *r)
{
    const int64_t group = e->desc->o->group;
    for (int64_t k = 0; k < a->count; k++) {
        const int64_t to = a->slots[k] * group, from = k * group;
        for (int64_t i = 0; i < group; i++) {
            const zf_answer old = r->answers[to + i];
            r->answers[to + i] = a->r.answers[from + i], a->r.answers[from + i] = old;
            e->reward[to + i] = a->reward[from + i];
        }
        r->prompts[a->slots[k]] = a->r.prompts[k];
    }
}

/* Leaves the groups whose rewards are equal, or of which none has one. */
static void leave_equal(const experience *e, some *a)
{
    const int64_t group = e->desc->o->group;
    int64_t left = 0;
    for (int64_t k = 0; k < a->count; k++) {
        const int64_t at = a->slots[k] * group;
        if (!(zf_group_deviation(e->reward + at, e->group + at, group, e->group[at]) > 0))
            a->slots[left++] = a->slots[k];
    }
    a->count = left;
}

bool answers_sample(experience *e, session *s, int64_t iteration, zf_rollouts *r, zf_error *error)
{
    const int64_t group = e->desc->o->group, prompts = e->answers / group;
    zf_rollout_desc how = rollout_of(e, s);
    some a;
    bool good = some_new(&a, prompts, group, error);
    *r = (zf_rollouts){.answers = calloc((size_t)e->answers + 1, sizeof *r->answers),
                       .prompts = calloc((size_t)prompts + 1, sizeof *r->prompts),
                       .group = group};
    if (good && (!r->answers || !r->prompts)) good = fail(error, ZF_ERR_NOMEM, "out of memory");
    if (good) r->count = e->answers;
    e->log.redrawn = 0;
    for (int64_t round = 0; round <= e->desc->o->redraws && a.count && good; round++) {
        if (round) e->log.redrawn += (double)a.count / (double)prompts;
        draw(e, &a, iteration, round);
        how.iteration = iteration + (round << 40); /* the same prompt gets other answers */
        good = write_some(e, s, e->desc->data, &a, &how, error);
        if (good && e->desc->o->leave_cut) leave_cut(&a);
        if (good) take(e, &a, r), leave_equal(e, &a);
    }
    some_free(&a);
    if (!good) zf_rollouts_free(r);
    return good;
}

/* ------------------------------------------------------------------------------------- held out */

static void put_answer(zf_json_writer *w, const some *a, int64_t k, int64_t iteration)
{
    const zf_answer *at = &a->r.answers[k];
    zf_json_begin_object(w);
    zf_json_put_key(w, "iteration"), zf_json_put_int(w, iteration);
    zf_json_put_key(w, "line"), zf_json_put_int(w, a->r.prompts[k]->line);
    zf_json_put_key(w, "completion");
    zf_json_put_string(w, at->text.at ? at->text.at + at->prompt : "");
    zf_json_put_key(w, "reward");
    if (isnan(a->reward[k])) zf_json_put_null(w);
    else zf_json_put_double(w, a->reward[k]);
    zf_json_end(w);
}

static bool is_file(const char *path)
{
    struct stat about;
    return !stat(path, &about) && S_ISREG(about.st_mode);
}

/* Drops the lines of this iteration and later ones, which a run has written that goes on from
 * before. */
static bool drop(const char *path, int64_t iteration, zf_error *error)
{
    zf_text text = {.at = NULL};
    size_t end = 0;
    long long of = 0;
    bool good = zf_text_read(path, &text, error);
    while (good && end < text.count && sscanf(text.at + end, "{\"iteration\":%lld", &of) == 1 &&
           of < iteration && memchr(text.at + end, '\n', text.count - end))
        end += strcspn(text.at + end, "\n") + 1;
    if (good && end < text.count && truncate(path, (off_t)end))
        good = fail(error, ZF_ERR_IO, "%s: %s", path, strerror(errno));
    zf_text_free(&text);
    return good;
}

/* Adds the first answers to a file of JSON Lines. */
static bool show(const some *a, const char *path, int64_t iteration, zf_error *error)
{
    FILE *f;
    bool good;
    if (is_file(path) && !drop(path, iteration, error)) return false;
    f = fopen(path, "ab"), good = f != NULL;
    for (int64_t k = 0; k < a->count && k < SHOWN && good; k++) {
        zf_json_writer *w = zf_json_writer_new(0, NULL);
        const char *text;
        put_answer(w, a, k, iteration);
        text = zf_json_text(w, NULL, error);
        good = text && fprintf(f, "%s\n", text) > 0;
        zf_json_writer_free(w);
    }
    if (f && fclose(f)) good = false;
    return good || error->status || fail(error, ZF_ERR_IO, "%s: %s", path, strerror(errno));
}

static void count_rewards(experience *e, const some *a)
{
    double known = 0;
    e->log.held_out = 0;
    for (int64_t k = 0; k < a->count; k++)
        if (!isnan(a->reward[k])) e->log.held_out += a->reward[k], known++;
    e->log.held_out = known > 0 ? e->log.held_out / known : NAN;
}

static void count_ends(experience *e, const zf_rollouts *r)
{
    e->log.held_out_length = e->log.held_out_ended = 0;
    for (int64_t k = 0; k < r->count; k++) {
        const zf_answer *a = &r->answers[k];
        e->log.held_out_length += (double)(a->ids.count - a->given) / (double)r->count;
        e->log.held_out_ended += (a->finish != ZF_FINISH_LENGTH) / (double)r->count;
    }
}

bool answers_evaluate(experience *e, session *s, int64_t iteration, zf_error *error)
{
    const char *const path = e->desc->o->samples;
    const zf_prompts *data = e->desc->held_out;
    zf_rollout_desc how = rollout_of(e, s);
    some a;
    bool good = some_new(&a, data->count, 1, error);
    for (int64_t k = 0; k < data->count && good; k++) a.numbers[k] = k;
    how.group = 1, how.sampling = (zf_sampling){.temperature = 0};
    good = good && write_some(e, s, data, &a, &how, error);
    if (good) count_rewards(e, &a), count_ends(e, &a.r);
    good = good && (!path || s->rank || show(&a, path, iteration, error));
    some_free(&a);
    return good;
}
