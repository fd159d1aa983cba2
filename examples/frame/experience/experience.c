#include "experience.h"
#include "../options/fail.h"
#include "../ranks/ranks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 32, CHUNK = 32 }; /* of the decoder: texts that go on together, tokens of a prompt */

bool experience_new(experience *e, const experience_desc *desc, zf_error *error)
{
    const size_t answers = (size_t)desc->o->answers, cells = answers * (size_t)desc->sequence;
    *e = (experience){.desc = desc, .answers = desc->o->answers};
    e->ids = calloc(cells, sizeof *e->ids);
    e->labels = calloc(cells, sizeof *e->labels);
    e->group = calloc(answers, sizeof *e->group);
    e->advantage = calloc(cells, sizeof *e->advantage);
    e->weight = calloc(answers, sizeof *e->weight);
    e->reward = calloc(answers, sizeof *e->reward);
    e->old = calloc(cells, sizeof *e->old);
    e->entropy = calloc(cells, sizeof *e->entropy);
    e->reference = calloc(cells, sizeof *e->reference);
    e->correction = calloc(cells, sizeof *e->correction);
    e->sampled = calloc(cells, sizeof *e->sampled);
    e->spent = calloc(1, sizeof *e->spent);
    for (int64_t k = 0; e->group && k < e->answers; k++)
        e->group[k] = (int32_t)(k / desc->o->group);
    return (e->ids && e->labels && e->group && e->advantage && e->weight && e->reward && e->old &&
            e->entropy && e->reference && e->correction && e->sampled && e->spent) ||
           fail(error, ZF_ERR_NOMEM, "out of memory");
}

static void close_programs(experience *e)
{
    if (e->opened && e->desc->o->kind->close) e->desc->o->kind->close(e);
    joined_rewards_close(&e->judges);
    session_close(&e->base);
    session_close(&e->score);
    decoder_close(&e->decoder);
    e->opened = false;
}

void experience_close(experience *e)
{
    close_programs(e);
    free(e->ids), free(e->labels), free(e->group), free(e->advantage), free(e->weight);
    free(e->reward);
    free(e->old), free(e->entropy), free(e->reference), free(e->correction), free(e->sampled);
    free(e->spent);
    *e = (experience){.ids = NULL};
}

/* ------------------------------------------------------------------------------------ sessions */

static bool open_score(experience *e, session *s, session_adapter with, session *score,
                       zf_error *error)
{
    return session_open(score,
                        &(session_desc){.sample = s->sample,
                                        .purpose = SAMPLE_EVALUATE,
                                        .config = e->desc->config,
                                        .shape = s->shape,
                                        .training = {.fuse.without = e->desc->no_fuse},
                                        .share = s,
                                        .with = with},
                        error);
}

/* All parameters are trained: the reference has its own, those of --init, on each rank. */
static bool open_copy(experience *e, session *s, zf_error *error)
{
    const settings *o = e->desc->run;
    zf_config_any config;
    session_desc d = {.sample = s->sample,
                      .purpose = SAMPLE_EVALUATE,
                      .config = &config,
                      .shape = s->shape,
                      .training = {.fuse.without = e->desc->no_fuse},
                      .turns = s,
                      .device = s->device,
                      .threads = s->threads,
                      .plan_only = s->plans};
    memcpy(&config, e->desc->config, s->sample->config()->bytes);
    d.training.precision.dtype = s->dtype;
    if (s->plans) return session_open(&e->base, &d, error);
    return session_open_folder(&e->base, settings_first(o), &d, (int64_t)s->dtype + 1, error);
}

static bool open_base(experience *e, session *s, zf_error *error)
{
    if (!e->desc->reference) return true;
    if (e->desc->copy) return open_copy(e, s, error);
    return open_score(e, s, e->desc->first ? SESSION_FIRST : SESSION_BASE, &e->base, error);
}

bool experience_open(experience *e, session *s, zf_error *error)
{
    session_desc d = {.sample = s->sample, .config = e->desc->config, .share = s};
    const policy_kind *kind = e->desc->o->kind;
    const decoder_desc room = {
        .texts = ROWS, .context = e->desc->sequence, .chunk = CHUNK, .hold = true};
    if (decoder_open(&e->decoder, &room, &d, NULL, 0, error) &&
        open_score(e, s, SESSION_OWN, &e->score, error) && open_base(e, s, error) &&
        joined_rewards_open(&e->judges, e->desc->models, s, error) &&
        (!kind->open || kind->open(e, s, error)))
        return e->opened = true;
    close_programs(e);
    return false;
}

int experience_parts(const experience *e, experience_part out[EXPERIENCE_PARTS])
{
    const policy_kind *kind = e->desc->o->kind;
    int count = 0;
    out[count++] = (experience_part){"sampling", &e->decoder.prompt, false};
    out[count++] = (experience_part){"sampling", &e->decoder.token, false};
    out[count++] = (experience_part){"scoring", &e->score, false};
    if (e->desc->reference)
        out[count++] = (experience_part){"reference", &e->base, e->desc->copy};
    for (int k = 0; e->judges.at && k < e->judges.of->count; k++)
        out[count++] = (experience_part){"reward model", &e->judges.at[k].session, false};
    return count + (kind->parts ? kind->parts(e, out + count) : 0);
}

size_t experience_turn_bytes(const zf_program *program)
{
    const zf_program_info i = zf_program_info_of(program);
    return i.peak_bytes - i.store_bytes - i.input_bytes - i.constant_bytes;
}

/* ------------------------------------------------------------------------------------- answers */

static void fill_rows(experience *e, const zf_rollouts *r)
{
    const int64_t sequence = e->desc->sequence;
    for (int64_t k = 0; k < e->answers; k++) {
        const zf_answer *a = &r->answers[k];
        const int64_t given = (int64_t)a->given, count = (int64_t)a->ids.count;
        for (int64_t t = 0; t < sequence; t++) {
            const bool answers = t + 1 >= given && t + 1 < count;
            const int64_t cell = k * sequence + t;
            e->ids[cell] = t < count ? a->ids.at[t] : 0;
            e->labels[cell] = answers ? a->ids.at[t + 1] : -100;
            e->sampled[cell] = answers ? a->logp[t + 1 - given] : 0;
        }
    }
}

/* The weights of tokens in each batch of a step. */
static bool weigh(experience *e, zf_error *error)
{
    const int64_t sequence = e->desc->sequence, batch = e->desc->batch;
    const policy_options *o = e->desc->o;
    double *numbers = malloc((size_t)e->answers * sizeof *numbers);
    if (!numbers) return fail(error, ZF_ERR_NOMEM, "out of memory");
    zf_answers_leave_out(e->labels, e->answers, sequence, e->reward);
    for (int64_t k = 0; k < e->answers; k += batch)
        zf_policy_weights(&(zf_answers){batch, sequence, e->labels + k * sequence}, o->loss.loss,
                          o->tokens, numbers + k);
    for (int64_t k = 0; k < e->answers; k++) e->weight[k] = (float)numbers[k];
    free(numbers);
    return true;
}

/* -------------------------------------------------------------------------------------- scores */

bool experience_score(const experience *e, session *by, const char *output, float *out,
                      zf_error *error)
{
    return experience_score_two(e, by, (const char *[2]){output}, (float *[2]){out}, error);
}

/* Notes the tokens and bytes of `steps` steps by a session, and of sums of its outputs. */
static void count_scores(const experience *e, const session *by, int64_t steps, int outputs)
{
    const int64_t all = e->answers * e->desc->sequence;
    phases_count(e->spent, all, by->program, steps);
    for (int k = 0; k < outputs; k++) phases_sum(e->spent, all, e->score.world);
}

bool experience_score_two(const experience *e, session *by, const char *const outputs[2],
                          float *const out[2], zf_error *error)
{
    const session *ranks = &e->score; /* the others may be of one rank */
    const int64_t rows = by->shape.batch, cells = rows * e->desc->sequence;
    const size_t bytes = (size_t)cells * sizeof **out;
    const int64_t all = e->answers * e->desc->sequence;
    int64_t steps = 0;
    zf_status status = ZF_OK;
    for (int k = 0; k < 2 && outputs[k]; k++) memset(out[k], 0, (size_t)all * sizeof **out);
    for (int64_t at = ranks->rank * cells; at < all && !status; at += ranks->world * cells) {
        status = session_write(by, "input_ids", e->ids + at, bytes);
        if (!status) status = session_write(by, "labels", e->labels + at, bytes);
        if (!status) status = zf_step(by->program), steps++;
        for (int k = 0; k < 2 && outputs[k] && !status; k++)
            status = zf_read(by->program, zf_graph_find(by->graph, outputs[k]), out[k] + at, bytes);
    }
    if (status) return fail(error, status, "%s", zf_program_error(by->program));
    count_scores(e, by, steps, outputs[1] ? 2 : 1);
    for (int k = 0; k < 2 && outputs[k]; k++)
        if (ranks_add(ranks->comm, out[k], all, error)) return false;
    return true;
}

/* Factors that correct what was sampled by other numbers than those that are trained. */
static bool correct(experience *e, zf_error *error)
{
    const int64_t cells = e->answers * e->desc->sequence;
    double *numbers = malloc(3 * (size_t)cells * sizeof *numbers);
    if (!numbers) return fail(error, ZF_ERR_NOMEM, "out of memory");
    for (int64_t k = 0; k < cells; k++)
        numbers[k] = (double)e->old[k], numbers[cells + k] = (double)e->sampled[k];
    zf_sampler_weights(&(zf_answers){e->answers, e->desc->sequence, e->labels}, numbers,
                       numbers + cells, &e->desc->o->advantage, numbers + 2 * cells);
    for (int64_t k = 0; k < cells; k++) e->correction[k] = (float)numbers[2 * cells + k];
    free(numbers);
    return true;
}

/* ----------------------------------------------------------------------------------------- log */

/* The deviation of the rewards of all answers. */
static double deviation_of_all(const experience *e)
{
    int32_t *one = calloc((size_t)e->answers + 1, sizeof *one);
    const double deviation = one ? zf_group_deviation(e->reward, one, e->answers, 0) : NAN;
    free(one);
    return deviation;
}

static void log_rewards(experience *e, const zf_rollouts *r)
{
    const int64_t group = e->desc->o->group;
    const double groups = (double)(e->answers / group), answers = (double)e->answers;
    experience_log *l = &e->log;
    double known = 0;
    *l = (experience_log){.redrawn = l->redrawn, .held_out = l->held_out};
    for (int64_t k = 0; k < e->answers; k += group) {
        const double deviation =
            zf_group_deviation(e->reward + k, e->group + k, group, e->group[k]);
        l->no_signal += (deviation == 0) / groups;
        l->deviation += deviation / groups;
    }
    if (group == 1) l->deviation = deviation_of_all(e);
    for (int64_t k = 0; k < e->answers; k++) {
        const zf_answer *a = &r->answers[k];
        if (!isnan(e->reward[k])) l->reward += e->reward[k], known++;
        l->length += (double)(a->ids.count - a->given) / answers;
        l->ended += (a->finish != ZF_FINISH_LENGTH) / answers;
    }
    l->reward /= known > 0 ? known : 1;
}

static void log_tokens(experience *e, bool reference)
{
    const int64_t cells = e->answers * e->desc->sequence;
    experience_log *l = &e->log;
    double n = 0;
    for (int64_t k = 0; k < cells; k++) {
        const double q = (double)e->old[k] - (double)e->reference[k];
        if (e->labels[k] == -100) continue;
        l->kl1 += q, l->kl3 += exp(-q) - 1 + q, l->entropy += (double)e->entropy[k];
        l->mismatch += fabs((double)e->old[k] - (double)e->sampled[k]), n++;
    }
    if (n == 0) n = 1;
    l->kl1 = reference ? l->kl1 / n : NAN, l->kl3 = reference ? l->kl3 / n : NAN;
    l->entropy /= n, l->mismatch /= n;
}

/* ----------------------------------------------------------------------------------- iteration */

/* Gathers what is sampled from. */
static bool gather(experience *e, zf_error *error)
{
    phases_enter(e->spent, PHASE_GATHER);
    if (!decoder_hold(&e->decoder, error)) return false;
    if (e->decoder.prompt.gather) phases_count(e->spent, 0, e->decoder.prompt.gather, 1);
    return true;
}

/* The answers of an iteration, their rewards and weights. */
static bool sample(experience *e, session *s, int64_t iteration, zf_rollouts *r, zf_error *error)
{
    const policy_options *o = e->desc->o;
    e->log.held_out = NAN;
    if (e->desc->held_out && iteration % o->held_out_every == 0 &&
        !answers_evaluate(e, s, iteration, error))
        return false;
    if (!answers_sample(e, s, iteration, r, error)) return false;
    phases_enter(e->spent, PHASE_OTHER);
    fill_rows(e, r);
    return weigh(e, error);
}

bool experience_evaluate(experience *e, session *s, int64_t iteration, zf_error *error)
{
    const experience_log *l = &e->log, before = e->log;
    if (!(e->opened || experience_open(e, s, error)) || !gather(e, error) ||
        !answers_evaluate(e, s, iteration, error))
        return false;
    if (!s->rank)
        printf(
            "held out: reward %.4f of %lld prompts, %.1f tokens an answer, %.1f%% of them ended\n",
            l->held_out, (long long)e->desc->held_out->count, l->held_out_length,
            100 * l->held_out_ended);
    e->log = before; /* of the steps, which may go on */
    return true;
}

bool experience_make(experience *e, session *s, int64_t iteration, zf_error *error)
{
    const bool reference = e->desc->reference;
    zf_rollouts r = {.answers = NULL};
    bool good = (e->opened || experience_open(e, s, error)) && gather(e, error) &&
                sample(e, s, iteration, &r, error);
    if (good) phases_enter(e->spent, PHASE_SCORE);
    good = good &&
           experience_score_two(e, &e->score, (const char *[2]){"logp", "entropy"},
                                (float *[2]){e->old, e->entropy}, error) &&
           (!reference || experience_score(e, &e->base, "logp", e->reference, error)) &&
           correct(e, error) && e->desc->o->kind->advantages(e, s, error);
    if (good) log_rewards(e, &r), log_tokens(e, reference);
    zf_rollouts_free(&r);
    return good;
}
