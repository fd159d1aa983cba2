#include "model_reward.h"
#include "../options/fail.h"

#include <stdlib.h>
#include <string.h>

typedef struct model_reward {
    scorer scorer;
    scorer_desc desc;
    const void *config; /* of the policy */
    bool standardize, shares;
    double *scores; /* with `shares`: of the answers that are rewarded next, [count] */
    int64_t count;
} model_reward;

/* ---------------------------------------------------------------------------------- scores */

/* Scores texts of which a function gives the ids and their number. */
static bool score_texts(scorer *r, int64_t n,
                        void (*text)(const void *user, int64_t k, const int32_t **ids,
                                     int64_t *count),
                        const void *user, double *out, zf_error *error)
{
    const int32_t **ids = calloc((size_t)n + 1, sizeof *ids);
    int64_t *counts = calloc((size_t)n + 1, sizeof *counts);
    bool good = (ids && counts) || fail(error, ZF_ERR_NOMEM, "out of memory");
    for (int64_t k = 0; k < n && good; k++) text(user, k, &ids[k], &counts[k]);
    good = good && scorer_run(r, ids, counts, n, out, error);
    free(ids);
    free(counts);
    return good;
}

static void text_of_item(const void *user, int64_t k, const int32_t **ids, int64_t *count)
{
    const zf_reward_item *item = (const zf_reward_item *)user + k;
    const int64_t given = (int64_t)item->prompt->ids.count;
    *ids = item->ids - given, *count = given + item->count;
}

static void text_of_answer(const void *user, int64_t k, const int32_t **ids, int64_t *count)
{
    const zf_answer *a = &((const zf_rollouts *)user)->answers[k];
    *ids = a->ids.at, *count = (int64_t)a->ids.count;
}

static bool score(void *user, const zf_reward_item *items, int64_t n, double *out, zf_error *error)
{
    model_reward *m = user;
    if (!m->shares && !score_texts(&m->scorer, n, text_of_item, items, out, error)) return false;
    if (m->shares && m->count != n) /* joined_rewards_run comes first */
        return fail(error, ZF_ERR_STAGE, "%s", zf_status_name(ZF_ERR_STAGE));
    for (int64_t k = 0; k < n; k++) {
        if (m->shares) out[k] = m->scores[k];
        if (m->standardize)
            out[k] = (out[k] - m->scorer.scale.mean) / m->scorer.scale.deviation;
    }
    return true;
}

/* ------------------------------------------------------------------------------------ opening */

static void close_model(void *user)
{
    model_reward *m = user;
    scorer_close(&m->scorer);
    free(m->scores);
    free(m);
}

static bool fits(const model_reward *m, const model_reward_desc *d, zf_error *error)
{
    const scorer_scale *scale = &m->scorer.scale;
    if (d->standardize && !(scale->known && scale->deviation > 0))
        return fail(error, ZF_ERR_ARGUMENT,
                    "%s has no reward.json with a deviation, which --reward-standardize reads",
                    m->scorer.adapter ? m->scorer.adapter : m->scorer.base);
    return !d->folder || scorer_fits(&m->scorer, d->vocab, d->folder, error);
}

/* Opens a model with weights of its own, or notes one over those of the policy. */
static bool open_model(model_reward *m, const model_reward_desc *d, zf_error *error)
{
    if (!scorer_read(&m->scorer, &m->desc, error) ||
        !scorer_shares(&m->scorer, d->run, d->config, &m->shares, error))
        return false;
    if (!m->shares) return scorer_open(&m->scorer, &m->desc, error);
    if (d->over->count == MODEL_REWARDS)
        return fail(error, ZF_ERR_LIMIT, "more than %d reward models are adapters of one base",
                    (int)MODEL_REWARDS);
    m->config = d->config;
    d->over->at[d->over->count++] = m;
    return true;
}

bool model_reward_open(void *user, const char *argument, zf_reward *out, zf_error *error)
{
    const model_reward_desc *d = user;
    model_reward *m;
    if (!argument || !*argument)
        return fail(error, ZF_ERR_ARGUMENT, "the reward \"%.200s\" names no folder: model:DIR",
                    out->name);
    if (!(m = calloc(1, sizeof *m))) return fail(error, ZF_ERR_NOMEM, "out of memory");
    m->standardize = d->standardize;
    m->desc = (scorer_desc){.sample = d->sample,
                            .folder = argument,
                            .tokens = d->tokens,
                            .threads = d->threads,
                            .plan_only = d->plan_only};
    if (!open_model(m, d, error)) {
        free(m);
        return false;
    }
    out->fn = score, out->user = m, out->close = close_model;
    return fits(m, d, error);
}

const session *model_reward_session(const void *user)
{
    const model_reward *m = user;
    return m->shares ? NULL : &m->scorer.session;
}

/* -------------------------------------------------------------------- over the policy's base */

/* The k-th, with the configuration of the policy and the head. */
static bool join(joined_rewards *j, int k, session *with, zf_error *error)
{
    const model_reward *m = j->of->at[k];
    const zf_config_table *table = m->desc.sample->config();
    char name[24];
    j->at[k] = m->scorer;
    memcpy(&j->at[k].config, m->config, table->bytes);
    *zf_config_facts_of(table, &j->at[k].config).scores = 1;
    snprintf(name, sizeof name, "%s%d", SESSION_JUDGE, k);
    return scorer_join(&j->at[k], &m->desc, with, name, error);
}

bool joined_rewards_open(joined_rewards *j, const model_rewards *of, session *with,
                         zf_error *error)
{
    *j = (joined_rewards){.of = of};
    if (!of || !of->count) return true;
    if (!(j->at = calloc((size_t)of->count, sizeof *j->at)))
        return fail(error, ZF_ERR_NOMEM, "out of memory");
    for (int k = 0; k < of->count; k++) {
        if (join(j, k, with, error)) continue;
        joined_rewards_close(j);
        return false;
    }
    return true;
}

void joined_rewards_close(joined_rewards *j)
{
    for (int k = 0; j->at && k < j->of->count; k++) scorer_close(&j->at[k]);
    free(j->at);
    *j = (joined_rewards){.of = NULL};
}

bool joined_rewards_run(joined_rewards *j, const zf_rollouts *r, zf_error *error)
{
    for (int k = 0; j->at && k < j->of->count; k++) {
        model_reward *m = j->of->at[k];
        double *scores = malloc(((size_t)r->count + 1) * sizeof *scores);
        const bool good =
            scores ? score_texts(&j->at[k], r->count, text_of_answer, r, scores, error)
                   : fail(error, ZF_ERR_NOMEM, "out of memory");
        if (!good || j->at[k].session.rank) free(scores);
        else free(m->scores), m->scores = scores, m->count = r->count;
        if (!good) return false;
    }
    return true;
}
