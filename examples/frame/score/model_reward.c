#include "model_reward.h"
#include "../options/fail.h"
#include "../score/scorer.h"

#include <stdlib.h>

typedef struct model_reward {
    scorer scorer;
    bool standardize;
} model_reward;

static bool score(void *user, const zf_reward_item *items, int64_t n, double *out, zf_error *error)
{
    model_reward *m = user;
    const int32_t **ids = calloc((size_t)n + 1, sizeof *ids);
    int64_t *counts = calloc((size_t)n + 1, sizeof *counts);
    bool good = (ids && counts) || fail(error, ZF_ERR_NOMEM, "out of memory");
    for (int64_t k = 0; k < n && good; k++) {
        const int64_t given = (int64_t)items[k].prompt->ids.count;
        ids[k] = items[k].ids - given, counts[k] = given + items[k].count;
    }
    good = good && scorer_run(&m->scorer, ids, counts, n, out, error);
    for (int64_t k = 0; k < n && good && m->standardize; k++)
        out[k] = (out[k] - m->scorer.scale.mean) / m->scorer.scale.deviation;
    free(ids);
    free(counts);
    return good;
}

static void close_model(void *user)
{
    model_reward *m = user;
    scorer_close(&m->scorer);
    free(m);
}

static bool fits(const model_reward *m, const model_reward_desc *d, zf_error *error)
{
    const scorer_scale *scale = &m->scorer.scale;
    if (d->standardize && !(scale->known && scale->deviation > 0))
        return fail(error, ZF_ERR_ARGUMENT,
                    "%s has no reward.json with a deviation, which --reward-standardize reads",
                    m->scorer.adapter ? m->scorer.adapter : m->scorer.base);
    return scorer_fits(&m->scorer, d->vocab, d->folder, error);
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
    if (!scorer_open(&m->scorer,
                     &(scorer_desc){.sample = d->sample,
                                    .folder = argument,
                                    .tokens = d->tokens,
                                    .threads = d->threads},
                     error)) {
        free(m);
        return false;
    }
    out->fn = score, out->user = m, out->close = close_model;
    return fits(m, d, error);
}
